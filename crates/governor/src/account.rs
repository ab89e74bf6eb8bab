//! Accounts of statements: bytes that their threads allocated and did not free, and why they stop.
//!
//! An account is a net balance. Memory that one statement allocates and another one frees (a cache that
//! grows, a batch handed on) moves between balances, and the sum stays exact. A balance below zero reads
//! as zero.
//!
//! The course of a statement is one word: it runs, then it is either settled (its changes are being
//! committed, nothing stops it) or stopped, for the first reason that came. [`Account::stop`] takes no
//! lock and allocates nothing: the allocator calls it.

use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use tokio::sync::Notify;

use crate::{memory, resident, sampler};

/// Of what a limit allows, a statement has to have one sixteenth before the allocator stops it for want of
/// memory. The sampler stops the largest.
const LEAST_PART: u64 = 16;

/// Why a statement has to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reason {
    /// Its client asked for it, or is gone.
    Cancelled = 1,
    /// It reached `statement_timeout`.
    TimedOut = 2,
    /// It reached `memory_limit`.
    Memory = 3,
}

/// It runs, and may be stopped.
const RUNNING: u8 = 0;
/// Its changes are being committed, or are.
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

/// What one statement takes. Shared; all methods may be called from any thread.
#[derive(Debug)]
pub struct Account {
    id: u64,
    limit: u64,
    deadline: Option<Instant>,
    bytes: AtomicI64,
    peak: AtomicI64,
    course: AtomicU8,
    /// Whether waiters were told that it is stopped.
    is_told: AtomicBool,
    stopped: Notify,
    /// Samples since waiters were told.
    samples: AtomicU32,
}

/// What is lent to the work of a statement, and lives as long as that.
pub trait Guest: Debug + Send + Sync {
    /// The work goes on although its statement was stopped a while ago. It has to stand back behind
    /// others.
    fn fence(&self);
}

/// Samples after which work that goes on is fenced: 100 ms.
const FENCED_AFTER: u32 = 20;

impl Account {
    /// Of statement `id`, in a process that may have `limit` bytes, up to `deadline`.
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

    /// The statement's number.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Bytes that the process may have while this statement runs.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Bytes that its threads have allocated and not freed; exact within 64 KiB for each thread.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed).max(0) as u64
    }

    /// The most that it had.
    pub fn peak(&self) -> u64 {
        self.peak.load(Relaxed).max(0) as u64
    }

    /// Adds to its balance, where the process has `in_all` bytes. Called by the allocator: no lock, no
    /// allocation.
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

    /// Makes its work end at the next check, unless it is settled. The first reason counts. Whether it
    /// is stopped, now or before.
    pub fn stop(&self, reason: Reason) -> bool {
        self.course.compare_exchange(RUNNING, reason as u8, SeqCst, SeqCst) != Err(SETTLED)
    }

    /// Stops it for its client, as [`stop`](Self::stop) does, and tells those who wait for that at once.
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

    /// Nothing stops it from now on: its changes are about to be committed.
    ///
    /// # Errors
    /// It was stopped before.
    pub fn settle(&self) -> Result<(), Reason> {
        let before = self.course.compare_exchange(RUNNING, SETTLED, SeqCst, SeqCst);
        before.err().and_then(Reason::of).map_or(Ok(()), Err)
    }

    /// Whether nothing stops it any more.
    pub fn is_settled(&self) -> bool {
        self.course.load(SeqCst) == SETTLED
    }

    /// Why it has to end, if it has to.
    #[inline]
    pub fn reason(&self) -> Option<Reason> {
        Reason::of(self.course.load(Relaxed))
    }

    /// Ends when the statement has to; at once if it already has.
    pub async fn stopped(&self) -> Reason {
        loop {
            // Before the flag is read: what is told in between is not missed.
            let told = self.stopped.notified();
            if let Some(reason) = self.reason() {
                return reason;
            }
            told.await;
        }
    }

    /// Whether it was stopped more than 100 ms ago, and its work goes on.
    pub fn is_fenced(&self) -> bool {
        self.samples.load(Relaxed) > FENCED_AFTER
    }

    /// Stops it if its time is over, wakes those who wait for [`Account::stopped`], and fences work that
    /// does not stop; each once.
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

/// The accounts of statements whose work is not over, and what is lent to it.
static OPEN: Mutex<Vec<Entry>> = Mutex::new(Vec::new());

#[derive(Debug)]
pub(crate) struct Entry {
    account: Arc<Account>,
    guest: Option<Weak<dyn Guest>>,
}

/// An account, and what is lent to its work.
#[derive(Debug)]
pub(crate) struct Lent {
    pub account: Arc<Account>,
    pub guest: Option<Arc<dyn Guest>>,
}

/// The largest limit of these, in bytes; 0 without any.
static LARGEST_LIMIT: AtomicU64 = AtomicU64::new(0);

/// The lock of the accounts, for a thread that forks.
pub(crate) type Held = MutexGuard<'static, Vec<Entry>>;

pub(crate) fn hold() -> Held {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// In a child, which runs none of its parent's statements. Nothing is dropped: what is lent to them
/// belongs to threads that are not there.
pub(crate) fn forget(accounts: &mut Held) {
    std::mem::forget(std::mem::take(&mut **accounts));
    LARGEST_LIMIT.store(0, Relaxed);
}

/// The accounts of statements that run, or whose work is not over although their clients were told so.
pub fn accounts() -> Vec<Arc<Account>> {
    hold().iter().map(|entry| Arc::clone(&entry.account)).collect()
}

/// The same, with what is lent to them.
pub(crate) fn lent() -> Vec<Lent> {
    let lent = |entry: &Entry| {
        let guest = entry.guest.as_ref().and_then(Weak::upgrade);
        Lent { account: Arc::clone(&entry.account), guest }
    };
    hold().iter().map(lent).collect()
}

/// Bytes of all statements.
pub(crate) fn held() -> u64 {
    hold().iter().map(|entry| entry.account.bytes()).sum()
}

/// Bytes of statements that were stopped less than 100 ms ago, and whose work is not over.
pub(crate) fn held_by_stopped() -> u64 {
    let all = hold();
    let stopping = |account: &&Arc<Account>| account.reason().is_some() && !account.is_fenced();
    all.iter().map(|entry| &entry.account).filter(stopping).map(|account| account.bytes()).sum()
}

pub(crate) fn largest_limit() -> u64 {
    LARGEST_LIMIT.load(SeqCst)
}

/// An account that is watched for as long as this lives.
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
