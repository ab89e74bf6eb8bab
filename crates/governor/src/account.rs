//! Accounts of statements: bytes that their threads allocated and did not free, and the reason to
//! stop.
//!
//! An account is a net balance. Memory that one statement allocates and another one frees (a
//! growing cache, a batch passed on) moves between balances, and the sum stays exact. A negative
//! balance reads as zero.
//!
//! The state of a statement is one word. A statement runs, and then it is either settled or
//! stopped. A settled statement commits its changes and can no longer be stopped. A stopped one
//! keeps the first reason. [`Account::stop`] takes no lock and allocates nothing, because the
//! allocator calls it.

use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use tokio::sync::Notify;

use crate::{memory, resident, sampler};

/// Least part of the allowed bytes that a statement must have before the allocator stops it for
/// lack of memory: one sixteenth. The sampler stops the largest.
const LEAST_PART: u64 = 16;

/// Reason to end a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reason {
    /// The client cancelled the statement, or disconnected.
    Cancelled = 1,
    /// The statement reached `statement_timeout`.
    TimedOut = 2,
    /// The statement reached `memory_limit`.
    Memory = 3,
}

/// The statement runs and may be stopped.
const RUNNING: u8 = 0;
/// The statement commits its changes, or has committed them.
const SETTLED: u8 = u8::MAX;

impl Reason {
    fn of(course: u8) -> Option<Self> {
        match course {
            1 => Some(Self::Cancelled),
            2 => Some(Self::TimedOut),
            3 => Some(Self::Memory),
            _ => None,
        }
    }
}

/// Resource usage of one statement. Shared; all methods may be called from any thread.
#[derive(Debug)]
pub struct Account {
    id: u64,
    limit: u64,
    deadline: Option<Instant>,
    bytes: AtomicI64,
    peak: AtomicI64,
    course: AtomicU8,
    /// True once waiters were notified that it is stopped.
    is_told: AtomicBool,
    stopped: Notify,
    /// Samples since waiters were notified.
    samples: AtomicU32,
}

/// A resource lent to the work of a statement. It lives as long as that work.
pub trait Guest: Debug + Send + Sync {
    /// Restricts work that continues although its statement was stopped a while ago. The work
    /// yields to other work from then on.
    fn fence(&self);
}

/// Samples after which continuing work is fenced: 100 ms.
const FENCED_AFTER: u32 = 20;

impl Account {
    /// Creates the account of statement `id`, in a process that may have `limit` bytes, with a
    /// `deadline`.
    pub fn new(id: u64, limit: u64, deadline: Option<Instant>) -> Arc<Self> {
        Arc::new(Self {
            id,
            limit,
            deadline,
            bytes: AtomicI64::new(0),
            peak: AtomicI64::new(0),
            course: AtomicU8::new(RUNNING),
            is_told: AtomicBool::new(false),
            stopped: Notify::new(),
            samples: AtomicU32::new(0),
        })
    }

    /// Returns the statement's number.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns the bytes that the process may have while this statement runs.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns the bytes that its threads have allocated and not freed, exact within 64 KiB per
    /// thread.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed).max(0) as u64
    }

    /// Returns the largest balance so far.
    pub fn peak(&self) -> u64 {
        self.peak.load(Relaxed).max(0) as u64
    }

    /// Adds to the balance, given that the process has `in_all` bytes. The allocator calls this, so
    /// it takes no lock and allocates nothing.
    pub(crate) fn add(&self, bytes: i64, in_all: u64) {
        let now = self.bytes.fetch_add(bytes, Relaxed) + bytes;
        if bytes <= 0 {
            return;
        }
        self.peak.fetch_max(now, Relaxed);
        let allowed = memory::allowed(self.limit);
        if in_all > allowed && now.max(0) as u64 > allowed / LEAST_PART {
            self.stop(Reason::Memory);
        }
    }

    /// Ends the statement's work at the next check, unless it is settled. The first reason counts.
    /// Returns true if the statement is stopped, now or before.
    pub fn stop(&self, reason: Reason) -> bool {
        self.course.compare_exchange(RUNNING, reason as u8, SeqCst, SeqCst) != Err(SETTLED)
    }

    /// Stops the statement for its client, as [`stop`](Self::stop) does, and notifies waiters at
    /// once.
    pub fn cancel(&self) -> bool {
        let is_stopped = self.stop(Reason::Cancelled);
        if is_stopped {
            self.tell();
        }
        is_stopped
    }

    fn tell(&self) {
        if !self.is_told.swap(true, Relaxed) {
            self.stopped.notify_waiters();
        }
    }

    /// Settles the statement, whose changes are about to be committed: it cannot be stopped from
    /// now on.
    ///
    /// # Errors
    /// The reason, if the statement was stopped before.
    pub fn settle(&self) -> Result<(), Reason> {
        let before = self.course.compare_exchange(RUNNING, SETTLED, SeqCst, SeqCst);
        before.err().and_then(Reason::of).map_or(Ok(()), Err)
    }

    /// Returns true if the statement can no longer be stopped.
    pub fn is_settled(&self) -> bool {
        self.course.load(SeqCst) == SETTLED
    }

    /// Returns the reason to end the statement, if there is one.
    #[inline]
    pub fn reason(&self) -> Option<Reason> {
        Reason::of(self.course.load(Relaxed))
    }

    /// Completes when the statement must end, at once if it already must.
    pub async fn stopped(&self) -> Reason {
        loop {
            // Registered before the reason is read, so that a notification in between is not
            // missed.
            let told = self.stopped.notified();
            if let Some(reason) = self.reason() {
                return reason;
            }
            told.await;
        }
    }

    /// Returns true if it was stopped more than 100 ms ago and its work continues.
    pub fn is_fenced(&self) -> bool {
        self.samples.load(Relaxed) > FENCED_AFTER
    }

    /// Stops the statement if its deadline has passed, wakes the waiters of [`Account::stopped`],
    /// and fences work that does not stop. Each happens once.
    pub(crate) fn look(&self, now: Instant, guest: Option<&dyn Guest>) {
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            self.stop(Reason::TimedOut);
        }
        if self.reason().is_none() {
            return;
        }
        self.tell();
        if self.samples.fetch_add(1, Relaxed) == FENCED_AFTER {
            guest.into_iter().for_each(Guest::fence);
        }
    }
}

/// The accounts of statements whose work is not over, and the resources lent to it.
static OPEN: Mutex<Vec<Entry>> = Mutex::new(Vec::new());

#[derive(Debug)]
pub(crate) struct Entry {
    account: Arc<Account>,
    guest: Option<Weak<dyn Guest>>,
}

/// An account and the resource lent to its work.
#[derive(Debug)]
pub(crate) struct Lent {
    pub account: Arc<Account>,
    pub guest: Option<Arc<dyn Guest>>,
}

/// The largest limit of the open accounts, in bytes; 0 if there are none.
static LARGEST_LIMIT: AtomicU64 = AtomicU64::new(0);

/// The lock of the accounts, held by a thread that forks.
pub(crate) type Held = MutexGuard<'static, Vec<Entry>>;

pub(crate) fn hold() -> Held {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Clears the accounts in a forked child, which runs none of its parent's statements. Nothing is
/// dropped: the resources lent to them belong to threads that do not exist in the child.
pub(crate) fn forget(accounts: &mut Held) {
    std::mem::forget(std::mem::take(&mut **accounts));
    LARGEST_LIMIT.store(0, Relaxed);
}

/// Returns the accounts of statements that run, or whose work continues after their clients got an
/// answer.
pub fn accounts() -> Vec<Arc<Account>> {
    hold().iter().map(|entry| Arc::clone(&entry.account)).collect()
}

/// Returns the open accounts with the resources lent to them.
pub(crate) fn lent() -> Vec<Lent> {
    let lent = |entry: &Entry| {
        let guest = entry.guest.as_ref().and_then(Weak::upgrade);
        Lent { account: Arc::clone(&entry.account), guest }
    };
    hold().iter().map(lent).collect()
}

/// Returns the bytes of all statements.
pub(crate) fn held() -> u64 {
    hold().iter().map(|entry| entry.account.bytes()).sum()
}

/// Returns the bytes of statements that were stopped less than 100 ms ago and whose work is not
/// over.
pub(crate) fn held_by_stopped() -> u64 {
    let all = hold();
    let stopping = |account: &&Arc<Account>| account.reason().is_some() && !account.is_fenced();
    all.iter().map(|entry| &entry.account).filter(stopping).map(|account| account.bytes()).sum()
}

pub(crate) fn largest_limit() -> u64 {
    LARGEST_LIMIT.load(SeqCst)
}

/// Registration of an account, watched for as long as this value lives.
#[derive(Debug)]
pub(crate) struct Open(pub Arc<Account>);

impl Open {
    pub fn new(account: Arc<Account>, guest: Option<&Arc<dyn Guest>>) -> Arc<Self> {
        let mut all = hold();
        all.push(Entry { account: Arc::clone(&account), guest: guest.map(Arc::downgrade) });
        LARGEST_LIMIT.fetch_max(account.limit, SeqCst);
        drop(all);
        resident::begin();
        sampler::wake();
        Arc::new(Self(account))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let mut all = hold();
        all.retain(|entry| !Arc::ptr_eq(&entry.account, &self.0));
        LARGEST_LIMIT.store(all.iter().map(|entry| entry.account.limit).max().unwrap_or(0), Relaxed);
    }
}
