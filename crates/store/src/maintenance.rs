//! Work that can wait, done by a thread while nobody commits.
//!
//! 1. The thread sleeps. A commit wakes it; while it is awake, a commit is only counted.
//! 2. It waits until there has been no commit for [`QUIET`].
//! 3. It does pieces of what can wait ([`Backend::maintain`](crate::backend::Backend::maintain)) until there is no more (1), or
//!    somebody has committed (2). Each piece is bounded: that long a commit may have to wait for it.
//!
//! It has the pages, not the store: the last handle of a store closes it whether or not the thread is awake, and waits for it. What
//! fails is not lost: the backend is poisoned by it, and says so to whoever commits next.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use crate::Error;
use crate::pages::Pages;

/// So long without a commit, and nobody is about to make one.
const QUIET: Duration = Duration::from_millis(50);

/// What commits tell the thread, if there is one.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    commits: AtomicU64,
    is_asleep: AtomicBool,
    thread: OnceLock<Thread>,
}

impl Activity {
    /// A batch has become durable.
    pub(crate) fn committed(&self) {
        self.commits.fetch_add(1, SeqCst);
        // To wake a thread is a call of the system: once for each time that it sleeps.
        if self.is_asleep.load(SeqCst) && self.is_asleep.swap(false, SeqCst) {
            self.thread.get().inspect(|thread| thread.unpark());
        }
    }

    /// Sleeps until there are other commits than `seen`, or the end. Returns their number.
    fn wait(&self, seen: u64, is_over: &AtomicBool) -> u64 {
        loop {
            // First: whoever commits from here on wakes it.
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

/// The thread, until this is dropped.
#[derive(Debug)]
pub(crate) struct Maintainer {
    is_over: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// A child that was forked has no such thread, and would wait for it for ever.
    process: u32,
}

impl Maintainer {
    /// Begins to look after `pages`; `None` where the system gives no thread: commits do then what is due.
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

    /// Ends it: when this returns, the pages are not looked at any more.
    pub(crate) fn stop(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(thread) = thread.filter(|_| self.process == std::process::id()) else { return };
        self.is_over.store(true, SeqCst);
        thread.thread().unpark();
        // It does not panic; and who closes a store has nothing to do about it.
        let _ = thread.join();
    }
}

impl Drop for Maintainer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Returns when it is over, or nobody commits any more.
fn look_after(pages: &Pages, is_over: &AtomicBool) {
    let activity = pages.activity();
    // Commits after which nothing was left to do.
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

/// Waits for [`QUIET`], or until it is over.
fn rest(is_over: &AtomicBool) {
    let until = Instant::now() + QUIET;
    while !is_over.load(SeqCst) {
        match until.saturating_duration_since(Instant::now()) {
            Duration::ZERO => return,
            left => thread::park_timeout(left),
        }
    }
}
