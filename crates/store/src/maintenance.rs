//! Deferrable work, done by a thread while the store is idle.
//!
//! 1. The thread sleeps. A commit wakes it. While the thread is awake, a commit only increments a
//!    counter.
//! 2. The thread waits until there has been no commit for [`QUIET`].
//! 3. The thread does pieces of the deferrable work
//!    ([`Backend::maintain`](crate::backend::Backend::maintain)) until there is no more (1), or a
//!    commit arrives (2). Each piece is bounded, and so is the wait of a commit for it.
//!
//! The thread holds the pages, not the store. The last handle of a store closes it whether or not
//! the thread is awake, and waits for the thread. A failure is not lost: it poisons the backend,
//! which reports it to the next commit.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use crate::Error;
use crate::pages::Pages;

/// The time without a commit after which the store counts as idle.
const QUIET: Duration = Duration::from_millis(50);

/// Signals from commits to the thread, if there is one.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    commits: AtomicU64,
    is_asleep: AtomicBool,
    thread: OnceLock<Thread>,
}

impl Activity {
    /// Records that a batch has become durable.
    pub(crate) fn committed(&self) {
        self.commits.fetch_add(1, SeqCst);
        // Waking a thread is a system call: done once each time that it sleeps.
        if self.is_asleep.load(SeqCst) && self.is_asleep.swap(false, SeqCst) {
            self.thread.get().inspect(|thread| thread.unpark());
        }
    }

    /// Sleeps until the number of commits differs from `seen`, or until shutdown. Returns the
    /// number.
    fn wait(&self, seen: u64, is_over: &AtomicBool) -> u64 {
        loop {
            // Set before the check: a commit after this line wakes the thread.
            self.is_asleep.store(true, SeqCst);
            let commits = self.commits.load(SeqCst);
            if commits != seen || is_over.load(SeqCst) {
                self.is_asleep.store(false, SeqCst);
                return commits;
            }
            thread::park();
        }
    }
}

/// The thread, which runs until this value is dropped.
#[derive(Debug)]
pub(crate) struct Maintainer {
    is_over: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// The process that started the thread. A forked child has no such thread, and would wait for
    /// it forever.
    process: u32,
}

impl Maintainer {
    /// Starts the thread for `pages`. Returns `None` if the system gives no thread: commits then do
    /// the work that is due.
    pub(crate) fn of(pages: &Arc<Pages>) -> Option<Self> {
        let is_over = Arc::new(AtomicBool::new(false));
        let (of_thread, pages) = (Arc::clone(&is_over), Arc::clone(pages));
        let look_after = move || {
            let _ = pages.activity().thread.set(thread::current());
            look_after(&pages, &of_thread);
        };
        let thread = thread::Builder::new().name("onehop-store".into()).spawn(look_after).ok()?;
        Some(Self { is_over, thread: Mutex::new(Some(thread)), process: std::process::id() })
    }

    /// Stops the thread. After the return the thread does not access the pages any more.
    pub(crate) fn stop(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(thread) = thread.filter(|_| self.process == std::process::id()) else { return };
        self.is_over.store(true, SeqCst);
        thread.thread().unpark();
        // The thread does not panic, and a caller that closes a store could not handle it.
        let _ = thread.join();
    }
}

impl Drop for Maintainer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Maintains the pages until shutdown, or until an error other than [`Error::Full`].
fn look_after(pages: &Pages, is_over: &AtomicBool) {
    let activity = pages.activity();
    // The number of commits after which no work was left.
    let mut done = 0;
    loop {
        let mut seen = activity.wait(done, is_over);
        while !is_over.load(SeqCst) {
            rest(is_over);
            let commits = activity.commits.load(SeqCst);
            if std::mem::replace(&mut seen, commits) == commits {
                break;
            }
        }
        while !is_over.load(SeqCst) && activity.commits.load(SeqCst) == seen && done != seen {
            match pages.alone(|backend| backend.maintain()) {
                Ok(true) => {}
                Ok(false) | Err(Error::Full { .. }) => done = seen,
                Err(_) => return,
            }
        }
        if is_over.load(SeqCst) {
            return;
        }
    }
}

/// Waits for [`QUIET`], or until shutdown.
fn rest(is_over: &AtomicBool) {
    let until = Instant::now() + QUIET;
    while !is_over.load(SeqCst) {
        match until.saturating_duration_since(Instant::now()) {
            Duration::ZERO => return,
            left => thread::park_timeout(left),
        }
    }
}
