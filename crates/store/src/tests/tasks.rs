//! Group commit by tasks, which wait without a thread: the choice of the leader, and the effect of
//! dropped tasks.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use futures::executor::block_on;

use super::faulty::Faulty;
use crate::{Error, Options, Pending, Result, Store, Turn};

/// Counts its wake-ups.
#[derive(Default)]
struct Woken(AtomicU64);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

/// A commit that is polled by hand.
struct Task {
    pending: Pending,
    woken: Arc<Woken>,
    waker: Waker,
}

impl Task {
    fn of(store: &Store, key: &str) -> Self {
        let woken = Arc::<Woken>::default();
        let waker = Waker::from(Arc::clone(&woken));
        Self { pending: later(store, key).unwrap(), woken, waker }
    }

    fn poll(&mut self) -> Poll<Turn> {
        self.pending.poll_turn(&Context::from_waker(&self.waker))
    }

    fn woken(&self) -> u64 {
        self.woken.0.load(SeqCst)
    }
}

fn later(store: &Store, key: &str) -> Result<Pending> {
    let transaction = store.write()?;
    transaction.tree("t")?.insert(key, "1")?;
    transaction.commit_later()
}

fn keys(store: &Store) -> u64 {
    store.read().unwrap().tree("t").map_or(0, |tree| tree.len().unwrap())
}

fn flushes(turn: Poll<Turn>) -> bool {
    matches!(turn, Poll::Ready(Turn::Flush { .. }))
}

/// Shuts the backend of a store, and returns a running commit and two tasks that wait behind it.
fn two_behind_one<'scope>(
    scope: &'scope std::thread::Scope<'scope, '_>,
    store: &'scope Store,
    backend: &Faulty,
) -> (std::thread::ScopedJoinHandle<'scope, Result<()>>, [Task; 2]) {
    backend.shut();
    let before = backend.commits.load(SeqCst);
    let under_way = scope.spawn(|| later(store, "under way")?.wait().map(drop));
    while backend.commits.load(SeqCst) == before {
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut tasks = ["a", "b"].map(|key| Task::of(store, key));
    assert!(tasks.iter_mut().all(|task| task.poll().is_pending()));
    (under_way, tasks)
}

#[test]
fn one_task_leads_and_the_others_are_told() {
    let (backend, store) = Faulty::store(&Options::default());
    let before = backend.commits.load(SeqCst);
    std::thread::scope(|scope| {
        let (under_way, [mut a, mut b]) = two_behind_one(scope, &store, &backend);
        backend.open();
        under_way.join().unwrap().unwrap();
        // One is enough.
        assert_eq!(a.woken() + b.woken(), 1);
        if b.woken() == 0 {
            std::mem::swap(&mut a, &mut b);
        }
        assert!(flushes(b.poll()));
        assert!(a.poll().is_pending());
        b.pending.wait().unwrap();
        assert_eq!(a.woken(), 1);
        assert_eq!(a.poll(), Poll::Ready(Turn::Known));
        a.pending.wait().unwrap();
    });
    assert_eq!((backend.commits.load(SeqCst) - before, keys(&store)), (2, 3));
}

#[test]
fn a_task_that_is_dropped_leaves_the_others_one_that_leads() {
    let (backend, store) = Faulty::store(&Options::default());
    // Before it learns that it is to lead, and after.
    for heard in [false, true] {
        std::thread::scope(|scope| {
            let (under_way, [mut a, mut b]) = two_behind_one(scope, &store, &backend);
            backend.open();
            under_way.join().unwrap().unwrap();
            if b.woken() == 0 {
                std::mem::swap(&mut a, &mut b);
            }
            if heard {
                assert!(flushes(b.poll()));
            }
            drop(b);
            assert_eq!(a.woken(), 1);
            assert!(flushes(a.poll()));
            a.pending.wait().unwrap();
        });
        // The dropped transactions had been handed over.
        assert_eq!(keys(&store), 3);
    }
}

#[test]
fn the_last_waker_is_the_one_that_is_woken() {
    let (backend, store) = Faulty::store(&Options::default());
    std::thread::scope(|scope| {
        let (under_way, [mut a, b]) = two_behind_one(scope, &store, &backend);
        drop(b);
        // The commit has moved to another task.
        let woken = Arc::<Woken>::default();
        a.waker = Waker::from(Arc::clone(&woken));
        assert!(a.poll().is_pending());
        backend.open();
        under_way.join().unwrap().unwrap();
        assert_eq!((a.woken(), woken.0.load(SeqCst)), (0, 1));
        assert!(flushes(a.poll()));
    });
    // A commit that no task made durable does not block later ones.
    later(&store, "after").unwrap().wait().unwrap();
    assert_eq!(keys(&store), 4);
}

#[test]
fn a_task_that_waits_for_a_thread_is_told_what_went_wrong() {
    for fault in [1, 2] {
        let (backend, store) = Faulty::store(&Options::default());
        let wrong = |failed: Result<_>| match fault {
            1 => matches!(failed, Err(Error::Full { .. })),
            _ => matches!(failed, Err(Error::Io { .. } | Error::Poisoned { .. })),
        };
        std::thread::scope(|scope| {
            let (under_way, [mut a, mut b]) = two_behind_one(scope, &store, &backend);
            backend.fault.store(fault, SeqCst);
            backend.open();
            assert!(wrong(under_way.join().unwrap()));
            assert_eq!((a.woken(), b.woken()), (1, 1));
            assert_eq!((a.poll(), b.poll()), (Poll::Ready(Turn::Known), Poll::Ready(Turn::Known)));
            assert!(wrong(a.pending.wait().map(drop)) && wrong(b.pending.wait().map(drop)));
        });
        assert_eq!(keys(&store), 0);
    }
}

#[test]
fn tasks_and_threads_and_those_who_give_up_lose_nothing() {
    let (backend, store) = Faulty::store(&Options::default());
    backend.commit_micros.store(200, SeqCst);
    let (threads, rounds) = (6, 200);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let store = &store;
            scope.spawn(move || {
                for round in 0..rounds {
                    let mut pending = later(store, &format!("{thread} {round}")).unwrap();
                    match (thread + round) % 3 {
                        0 => drop(pending.wait().unwrap()),
                        1 => {
                            block_on(poll_fn(|context| pending.poll_turn(context)));
                            pending.wait().unwrap();
                        }
                        _ => drop(pending.poll_turn(&Context::from_waker(Waker::noop()))),
                    }
                }
            });
        }
    });
    later(&store, "last").unwrap().wait().unwrap();
    assert_eq!(keys(&store), threads * rounds + 1);
    assert!(store.check().unwrap().is_sound());
}
