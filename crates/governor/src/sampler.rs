//! A thread that samples time and resident memory while statements run.
//!
//! Every 5 ms the sampler
//! 1. reads resident memory ([`resident`]), from which the overhead is derived
//!    ([`memory::allowed`]);
//! 2. evicts from caches when memory runs short, and stops the largest account if the process
//!    exceeds the largest limit in force;
//! 3. stops accounts whose deadline has passed, and wakes the waiters of stopped accounts: the
//!    allocator stops accounts, but it cannot wake waiters;
//! 4. fences work that still runs 100 ms after it was stopped ([`Guest::fence`]).
//!
//! Without a statement the thread sleeps.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::account::{self, Account, Lent, Reason, accounts};
use crate::{caches, fork, memory, resident};

/// Time between two samples.
const PERIOD: Duration = Duration::from_millis(5);

/// Number of samples after the last statement ended. The last of them returns all free memory to
/// the system.
const AFTER: u32 = 20;

/// Least bytes of a statement that the sampler stops for the benefit of others. A statement with
/// almost no memory would free nothing.
const LEAST_BYTES: u64 = 1 << 20;

static IS_ASLEEP: AtomicBool = AtomicBool::new(false);
/// True while the thread exists. The thread sleeps with this lock.
static IS_STARTED: Mutex<bool> = Mutex::new(false);
static WAKE: Condvar = Condvar::new();

/// The lock of the sampler, held by a thread that forks.
pub(crate) type Held = MutexGuard<'static, bool>;

pub(crate) fn hold() -> Held {
    IS_STARTED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Resets the sampler in a forked child, which has no such thread.
pub(crate) fn forget(is_started: &mut Held) {
    **is_started = false;
    resident::forget();
    IS_ASLEEP.store(false, SeqCst);
}

/// Starts the thread, once in a process. A forked child starts its own.
///
/// # Errors
/// The system provides no thread. The limits are then enforced by operators and functions alone.
pub fn start() -> io::Result<()> {
    fork::prepare()?;
    let mut is_started = hold();
    if !*is_started {
        resident::open();
        thread::Builder::new().name("onehop-memory".into()).stack_size(256 << 10).spawn(run)?;
        *is_started = true;
    }
    Ok(())
}

/// Wakes the sampler because a statement begins.
pub(crate) fn wake() {
    if IS_ASLEEP.load(SeqCst) {
        let _locked = hold();
        WAKE.notify_one();
    }
}

fn run() {
    loop {
        let mut idle = 0;
        while idle < AFTER {
            let all = account::lent();
            idle = if all.is_empty() { idle + 1 } else { 0 };
            // Statements in close succession reuse the memory that the previous one freed.
            resident::look(idle == AFTER);
            if all.is_empty() {
                memory::sampled_at_rest(memory::counted().saturating_sub(caches::held()));
            }
            enforce(&all);
            drop(all);
            thread::sleep(PERIOD);
        }
        sleep();
    }
}

fn enforce(lent: &[Lent]) {
    let all = || lent.iter().map(|lent| &lent.account);
    let limit = account::largest_limit();
    let allowed = memory::allowed(limit);
    if limit > 0 && memory::is_counting() {
        let pressing = caches::pressing(limit);
        if pressing > 0 {
            caches::evict(pressing);
        }
    }
    if limit > 0 && memory::counted() > allowed && memory::is_counting() {
        // A stopping account frees memory soon: the next one is stopped only if that was not
        // enough.
        let would_help = |account: &&Arc<Account>| account.bytes() >= LEAST_BYTES;
        let is_stopping = |account: &Arc<Account>| account.reason().is_some() && !account.is_fenced();
        let runs = |account: &&Arc<Account>| account.reason().is_none() && !account.is_settled();
        let largest = all().filter(would_help).filter(runs).max_by_key(|account| account.bytes());
        if let Some(largest) = largest
            && !all().filter(would_help).any(is_stopping)
        {
            largest.stop(Reason::Memory);
        }
    }
    let now = Instant::now();
    lent.iter().for_each(|lent| lent.account.look(now, lent.guest.as_deref()));
}

fn sleep() {
    let mut locked = hold();
    IS_ASLEEP.store(true, SeqCst);
    while accounts().is_empty() {
        locked = WAKE.wait(locked).unwrap_or_else(PoisonError::into_inner);
    }
    IS_ASLEEP.store(false, Relaxed);
}
