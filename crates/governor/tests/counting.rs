//! Tests of counting in a process with a counting allocator.

#![allow(clippy::expect_used)]

use std::alloc::System;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use onehop_governor::{Account, Counting, Reason, Scope, accounts, bind, check, current, is_counting, start};
use onehop_governor::{try_reserve, usage};

#[global_allocator]
static ALLOCATOR: Counting<System> = Counting::new(System);

const MIB: usize = 1 << 20;

/// Serializes the tests, because they share the memory of one process.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn scope_of(limit: usize) -> Scope {
    start().expect("a thread");
    Scope::new().with_account(Account::new(1, limit as u64, None))
}

fn account(scope: &Scope) -> &Arc<Account> {
    scope.account().expect("an account")
}

/// Waits until a condition holds, for at most 10 s.
fn wait_until(mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(10), "it never came");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn bytes_are_those_of_the_statement_that_allocates() {
    let _alone = alone();
    let (one, other) = (scope_of(1 << 40), scope_of(1 << 40));
    let mine = one.run(|| vec![1_u8; 10 * MIB]);
    let theirs = other.run(|| vec![1_u8; 3 * MIB]);
    assert!(is_counting());
    assert!((10..11).contains(&(account(&one).bytes() as usize / MIB)));
    assert!((3..4).contains(&(account(&other).bytes() as usize / MIB)));
    one.run(|| drop(mine));
    assert_eq!(account(&one).bytes() as usize / MIB, 0);
    assert!(account(&one).peak() as usize >= 10 * MIB);
    // Another statement frees the memory: its own balance falls, and reads as zero.
    one.run(|| drop(theirs));
    assert_eq!(account(&one).bytes(), 0);
    assert_eq!(current().account().map(|account| account.id()), None);
}

#[test]
fn small_allocations_and_those_of_other_threads_count() {
    let _alone = alone();
    let scope = scope_of(1 << 40);
    let made = scope.run(|| {
        let there = std::thread::spawn(bind(|| (0..100_000).map(|n| Box::new([n as u64; 8])).collect::<Vec<_>>()));
        there.join().expect("no panic")
    });
    // 8 bytes per box in the vector, and 64 bytes in each box.
    let bytes = account(&scope).bytes() as usize;
    assert!((7_200_000 - 200_000..7_200_000 + 1_500_000).contains(&bytes), "{bytes}");
    scope.run(|| drop(made));
    assert!(account(&scope).bytes() < 100_000);
}

#[test]
fn a_future_works_in_its_scope_and_is_dropped_there() {
    let _alone = alone();
    let scope = scope_of(1 << 40);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("a runtime");
    let work = async {
        let kept = vec![1_u8; 20 * MIB];
        tokio::task::yield_now().await;
        std::future::pending::<()>().await;
        drop(kept);
    };
    let task = runtime.spawn(scope.future(work));
    wait_until(|| account(&scope).bytes() as usize >= 20 * MIB);
    task.abort();
    wait_until(|| task.is_finished() && (account(&scope).bytes() as usize) < MIB);
    // An account is watched until the last work in its scope is over.
    drop((task, scope));
    wait_until(|| accounts().is_empty());
}

#[test]
fn the_one_that_passes_the_limit_is_stopped_and_waiters_hear_of_it() {
    let _alone = alone();
    let now = usage();
    let limit = (now.counted + now.overhead) as usize + 200 * MIB;
    let (large, small) = (scope_of(limit), scope_of(limit));
    let kept = small.run(|| vec![1_u8; MIB]);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().expect("a runtime");
    let told = Arc::clone(account(&large));
    let told = runtime.spawn(async move { told.stopped().await });
    let mut all: Vec<Vec<u8>> = Vec::new();
    large.run(|| {
        while check().is_ok() {
            all.push(vec![1; MIB]);
            assert!(all.len() < 400, "{:?}", usage());
        }
        assert_eq!(check(), Err(Reason::Memory));
    });
    // The statement had about the allowed bytes; pages of the program are not counted twice.
    assert!(all.len() > 100, "{}", all.len());
    assert_eq!(runtime.block_on(told).expect("no panic"), Reason::Memory);
    small.run(|| assert_eq!(check(), Ok(())));
    large.run(|| drop(all));
    drop(kept);
}

#[test]
fn what_is_asked_for_before_it_is_made_is_refused_if_it_would_not_fit() {
    let _alone = alone();
    let now = usage();
    let scope = scope_of((now.counted + now.overhead) as usize + 100 * MIB);
    scope.run(|| {
        // Counting begins with the first 64 KiB.
        drop(vec![1_u8; MIB]);
        assert_eq!(try_reserve(MIB as u64), Ok(()));
        assert_eq!(try_reserve(1 << 40), Err(Reason::Memory));
        assert_eq!(check(), Ok(()), "it may still do with less");
    });
    assert_eq!(try_reserve(1 << 50), Ok(()), "no statement, no limit");
    account(&scope).stop(Reason::Cancelled);
    account(&scope).stop(Reason::TimedOut);
    scope.run(|| assert_eq!(try_reserve(1), Err(Reason::Cancelled)));
}

#[test]
fn what_stops_gives_back_before_another_is_refused() {
    let _alone = alone();
    let now = usage();
    let limit = (now.counted + now.overhead) as usize + 200 * MIB;
    let (stopped, next) = (scope_of(limit), scope_of(limit));
    let theirs = stopped.run(|| vec![1_u8; 150 * MIB]);
    next.run(|| assert_eq!(try_reserve(100 * MIB as u64), Err(Reason::Memory), "it goes on"));
    account(&stopped).stop(Reason::Cancelled);
    let gives_back = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(5));
        stopped.run(|| drop(theirs));
    });
    next.run(|| assert_eq!(try_reserve(100 * MIB as u64), Ok(()), "it has given back"));
    gives_back.join().expect("no panic");
}

#[test]
fn memory_without_an_owner_is_taken_from_the_largest() {
    let _alone = alone();
    let now = usage();
    let limit = (now.counted + now.overhead) as usize + 200 * MIB;
    let (large, small) = (scope_of(limit), scope_of(limit));
    let theirs = large.run(|| vec![1_u8; 100 * MIB]);
    let ours = small.run(|| vec![1_u8; 60 * MIB]);
    assert_eq!((account(&large).reason(), account(&small).reason()), (None, None));
    let unknown = vec![1_u8; 120 * MIB];
    // If one statement frees nothing, the next largest is stopped sooner or later.
    wait_until(|| [&small, &large].iter().any(|scope| account(scope).reason().is_some()));
    assert_eq!(account(&large).reason(), Some(Reason::Memory));
    drop((theirs, ours, unknown));
    assert_eq!(accounts().len(), 2);
    drop((large, small));
    assert_eq!(accounts().len(), 0);
}

#[test]
fn time_ends_what_is_not_settled() {
    let _alone = alone();
    start().expect("a thread");
    let soon = Some(Instant::now() + Duration::from_millis(20));
    let (late, settled) = (Account::new(1, 1 << 40, soon), Account::new(2, 1 << 40, soon));
    let (one, other) = (Scope::new().with_account(Arc::clone(&late)), Scope::new().with_account(Arc::clone(&settled)));
    assert_eq!(settled.settle(), Ok(()));
    wait_until(|| late.reason() == Some(Reason::TimedOut));
    assert_eq!(late.settle(), Err(Reason::TimedOut));
    assert!(late.stop(Reason::Cancelled) && !settled.stop(Reason::Cancelled));
    one.run(|| assert_eq!(check(), Err(Reason::TimedOut)));
    other.run(|| assert_eq!((check(), settled.settle(), settled.is_settled()), (Ok(()), Ok(()), true)));
}

#[test]
fn a_child_that_was_forked_has_a_clock_of_its_own() {
    let _alone = alone();
    start().expect("a thread");
    let is_over = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let busy: Vec<_> = (0..3)
        .map(|_| {
            let is_over = Arc::clone(&is_over);
            std::thread::spawn(move || {
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    drop(scope_of(1 << 40));
                }
            })
        })
        .collect();
    for _ in 0..50 {
        // SAFETY: the child calls only functions allowed in a child; this crate supports that.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let is_right = std::panic::catch_unwind(|| {
                start().expect("a thread");
                assert!(accounts().is_empty());
                let late = Instant::now() + Duration::from_millis(5);
                let scope = Scope::new().with_account(Account::new(1, 1 << 40, Some(late)));
                wait_until(|| account(&scope).reason() == Some(Reason::TimedOut));
            });
            // SAFETY: the call ends the process at once.
            unsafe { libc::_exit(i32::from(is_right.is_err())) };
        }
        let mut status = -1;
        // SAFETY: the child belongs to this process, and `status` is a valid place for its status.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!((waited, status), (child, 0));
    }
    is_over.store(true, std::sync::atomic::Ordering::Relaxed);
    busy.into_iter().for_each(|thread| thread.join().expect("no panic"));
}
