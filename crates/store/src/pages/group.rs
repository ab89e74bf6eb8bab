//! Group commit.
//!
//! 1. A transaction hands over under one lock: its versions are installed in the cache, its changes
//!    merged into the waiting group. Then the writer slot is free, and the next transaction builds
//!    on the handed-over state.
//! 2. A waiting thread that finds no leader becomes the leader: it takes the whole group, and
//!    commits it as one batch. Meanwhile the next group gathers. So under load the number of
//!    batches is that of the medium's fences, not that of transactions. If the last batch had
//!    several transactions, the leader first waits briefly for as many. The writers of that batch
//!    are about to hand over again, and would otherwise wait for a batch of their own.
//! 3. When the batch is durable, new snapshots see it, and all its waiters return.
//!
//! Threads and tasks wait side by side. A task that finds no leader has to lead as well
//! ([`Turn::Flush`]), and does so on a thread that may block. A leader that resigns wakes one task
//! that waits for the next batch, if there is any.
//!
//! If a batch fails, all handed-over commits that are not durable are rolled back. The open
//! transaction, which is built on them, fails at its next step (`generation`). If the medium has no
//! space ([`Error::Full`]) the group has changed nothing, and the next transaction continues from
//! the durable state. After any other failure no commit succeeds any more, and readers continue
//! with the last acknowledged state.
//!
//! A transaction that outgrows its memory spills to the backend, which allows no commit in between.
//! It leads from then on until it ends, and keeps the writer slot until it is durable.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use super::Source;
use super::allocator::Allocator;
use super::cache::{Cache, Held, PageMap, Verify};
use super::snapshots::{Garbage, Snapshots};
use super::transaction::{Change, State, Transaction};
use crate::backend::{Backend, Batch, Content, Image, Lines, PageNo, Room, Write};
use crate::maintenance::Activity;
use crate::{Error, Result};

/// A leader waits for other transactions, if they are expected, for this part of the time of a
/// batch. With a flush of 85 us, 8 threads on 2 cores need half of that to wake and to hand over.
/// With an eighth, batches had 5 of them, and were slower.
const GATHERING_SHARE: u32 = 2;

/// The time at which a commit returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// When it is durable.
    #[default]
    Now,
    /// At once. The commit becomes durable, and visible to readers, with the next durable commit. A
    /// crash before that loses it whole. If that commit finds no space, this one is lost with it.
    Later,
}

/// The memory limits of pages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The limit of clean pages, in bytes.
    pub(crate) cache_bytes: usize,
    /// The limit of pages that the open transaction has changed, in bytes.
    pub(crate) transaction_bytes: usize,
    /// The limit of versions kept for readers, in bytes.
    pub(crate) version_bytes: usize,
}

/// Versions of pages over a backend, shared by all transactions and snapshots.
#[derive(Debug)]
pub(crate) struct Pages {
    pub(super) backend: Arc<dyn Backend>,
    pub(super) cache: Cache,
    pub(super) snapshots: Snapshots,
    pub(super) limits: Limits,
    writer: Mutex<Writer>,
    writer_left: Condvar,
    commits: Mutex<Commits>,
    commits_changed: Condvar,
    handed_over: Condvar,
    /// The number of roll-backs of handed-over commits. Changes under the lock of `commits`.
    generation: AtomicU64,
    /// The number of roll-backs for lack of space, after which the durable state is known. Changes
    /// with `generation`.
    epoch: AtomicU64,
    activity: Activity,
}

/// The writer slot.
#[derive(Debug)]
struct Writer {
    is_taken: bool,
    /// The number of threads that wait for the slot. Without any, the system call to wake one is
    /// skipped.
    waiting: usize,
    /// The pages in use, and the generation that they belong to. `None` while the writer has them.
    allocator: Option<(u64, Allocator)>,
}

#[derive(Debug, Default)]
struct Commits {
    /// The number of the last transaction that was handed over.
    last: u64,
    waiting: Option<Group>,
    /// The outcome of the group of the last handed-over transaction.
    last_outcome: Option<Outcome>,
    is_led: bool,
    /// The number of threads that wait for the leader's next step.
    watching: usize,
    /// The number of handed-over transactions that the leader waits for.
    gathering: Option<u64>,
    poison: Option<Error>,
    is_closed: bool,
    transactions: u64,
    groups: u64,
    pages: u64,
    lines: u64,
    latest: LastGroup,
    /// The time that the backend took for it.
    latest_took: Duration,
}

/// Statistics of the last durable group.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LastGroup {
    pub(crate) transactions: u64,
    pub(crate) pages: u64,
    pub(crate) lines: u64,
}

/// The shared outcome of a group.
pub(crate) type Outcome = Arc<Fate>;

/// The outcome of a group, once it is known, and the tasks that wait for it. Changes under the lock
/// of `commits`.
#[derive(Debug, Default)]
pub(crate) struct Fate {
    /// The bytes written, for each of its transactions.
    known: OnceLock<Result<u64>>,
    tasks: Mutex<Tasks>,
}

/// Waiting tasks. A woken task is removed, until it waits again.
#[derive(Debug, Default)]
struct Tasks {
    last: u64,
    waiting: Vec<(Ticket, Waker)>,
}

/// Identifies one of the tasks that wait for the same outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket(u64);

impl Fate {
    pub(super) fn is_known(&self) -> bool {
        self.known.get().is_some()
    }

    fn settle(&self, outcome: Result<u64>) {
        let _ = self.known.set(outcome);
    }

    /// Registers a task to be woken. It waits already if it has a ticket. Returns its ticket.
    fn wakes(&self, task: &Waker, ticket: Option<Ticket>) -> Ticket {
        let mut tasks = lock(&self.tasks);
        let ticket = ticket.unwrap_or_else(|| {
            tasks.last += 1;
            Ticket(tasks.last)
        });
        match tasks.waiting.iter_mut().find(|(of, _)| *of == ticket) {
            Some((_, known)) => known.clone_from(task),
            None => tasks.waiting.push((ticket, task.clone())),
        }
        ticket
    }

    /// Removes and returns a waiting task.
    fn next_task(&self) -> Option<Waker> {
        lock(&self.tasks).waiting.pop().map(|(_, task)| task)
    }

    fn wake_all(&self) {
        let tasks = std::mem::take(&mut lock(&self.tasks).waiting);
        tasks.into_iter().for_each(|(_, task)| task.wake());
    }
}

/// The next step of a task that waits for a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Nothing: the outcome is known.
    Known,
    /// The task is to make the commit durable, together with those of other threads.
    /// [`Pending::wait`](crate::Pending::wait) does so, and blocks its thread.
    Flush {
        /// The time that the last batch took.
        expected: Duration,
        /// The number of transactions that became durable by it.
        shared: u64,
    },
}

/// Transactions that become durable together.
#[derive(Debug, Default)]
struct Group {
    pages: PageMap<Merged>,
    last: u64,
    transactions: u64,
    /// The reserve is for groups all of whose transactions may use it: a transaction that takes
    /// space would exhaust it.
    room: Room,
    outcome: Outcome,
    /// The floor of snapshots before this group raised it.
    floor_before: Option<u64>,
}

/// The state of the backend after a failed batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    /// The batch has changed nothing on the medium: the next transaction may succeed.
    GoOn,
    /// The durable state is unknown: no commit succeeds any more.
    Refuse,
}

/// The change of a page by a group.
#[derive(Debug)]
struct Merged {
    /// The new contents, or `None` if the page is free afterwards.
    content: Option<Content>,
    lines: Lines,
    /// True if the page is in use before the group.
    existed: bool,
}

/// Counters of transactions since the opening of the store.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PagesStats {
    pub(crate) transactions: u64,
    pub(crate) groups: u64,
    pub(crate) pages: u64,
    pub(crate) lines: u64,
    pub(crate) latest: LastGroup,
    pub(crate) cache_misses: u64,
    pub(crate) cached_pages: u64,
    pub(crate) snapshots: u64,
    pub(crate) versions: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

impl Pages {
    pub(crate) fn new(backend: Arc<dyn Backend>, limits: Limits, verify: Verify) -> Arc<Self> {
        Arc::new(Self {
            cache: Cache::new(Arc::clone(&backend), limits.cache_bytes, verify),
            snapshots: Snapshots::new(limits.version_bytes),
            backend,
            limits,
            writer: Mutex::new(Writer { is_taken: false, waiting: 0, allocator: None }),
            writer_left: Condvar::new(),
            commits: Mutex::default(),
            commits_changed: Condvar::new(),
            handed_over: Condvar::new(),
            generation: AtomicU64::new(0),
            epoch: AtomicU64::new(0),
            activity: Activity::default(),
        })
    }

    pub(crate) fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// Returns the signals to the maintenance thread.
    pub(crate) fn activity(&self) -> &Activity {
        &self.activity
    }

    /// Begins a transaction, after the previous one has been handed over.
    pub(crate) fn write(self: &Arc<Self>) -> Result<Transaction> {
        let mut writer = lock(&self.writer);
        while writer.is_taken {
            writer.waiting += 1;
            writer = wait(&self.writer_left, writer);
            writer.waiting -= 1;
        }
        self.enter(writer)
    }

    /// Begins a transaction, unless there is one.
    pub(crate) fn try_write(self: &Arc<Self>) -> Result<Option<Transaction>> {
        let writer = lock(&self.writer);
        if writer.is_taken { Ok(None) } else { self.enter(writer).map(Some) }
    }

    fn enter(self: &Arc<Self>, mut writer: MutexGuard<'_, Writer>) -> Result<Transaction> {
        let (generation, epoch) = {
            // Under the lock, a roll-back is either complete, or will invalidate the transaction.
            let commits = lock(&self.commits);
            if let Some(poison) = &commits.poison {
                return Err(self.refusal(poison));
            }
            (self.generation.load(SeqCst), self.epoch())
        };
        let allocator = match writer.allocator.take() {
            Some((of, allocator)) if of == generation => allocator,
            _ => Allocator::new(&self.backend.pages()),
        };
        writer.is_taken = true;
        Ok(Transaction::new(Arc::clone(self), allocator, generation, epoch))
    }

    /// Releases the writer slot.
    pub(super) fn leave(&self, allocator: Allocator, generation: u64) {
        let mut writer = lock(&self.writer);
        writer.is_taken = false;
        writer.allocator = Some((generation, allocator));
        let is_awaited = writer.waiting > 0;
        // The woken thread needs the lock.
        drop(writer);
        if is_awaited {
            self.writer_left.notify_one();
        }
    }

    /// Begins a snapshot of the last durable commit.
    pub(crate) fn read(self: &Arc<Self>) -> Snapshot {
        Snapshot { commit: self.snapshots.begin(), pages: Arc::clone(self) }
    }

    pub(super) fn is_current(&self, generation: u64) -> bool {
        generation == self.generation.load(SeqCst)
    }

    /// Returns the number of roll-backs of handed-over commits for lack of space.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(SeqCst)
    }

    fn refusal(&self, poison: &Error) -> Error {
        Error::Poisoned { object: self.backend.name().into(), reason: poison.to_string() }
    }

    /// Returns the error of a transaction that was built on rolled-back commits.
    pub(super) fn void(&self) -> Error {
        match &lock(&self.commits).poison {
            Some(poison) => self.refusal(poison),
            None => self.void_for_lack_of_room(),
        }
    }

    fn void_for_lack_of_room(&self) -> Error {
        let reason = "a commit that this transaction builds on found no room; begin again".into();
        Error::Full { object: self.backend.name().into(), reason }
    }

    /// Waits until no commit is running, commits the waiting group, and leads from then on: no
    /// commit happens before [`resign`](Self::resign).
    pub(super) fn lead(&self) -> Result<()> {
        let mut commits = lock(&self.commits);
        loop {
            if let Some(poison) = &commits.poison {
                return Err(self.refusal(poison));
            }
            if commits.is_led {
                commits = self.watch(commits);
                continue;
            }
            commits.is_led = true;
            let Some(group) = commits.waiting.take() else { return Ok(()) };
            drop(commits);
            self.make_durable(group);
            commits = lock(&self.commits);
        }
    }

    /// Waits for the leader's next step.
    fn watch<'a>(&self, mut commits: MutexGuard<'a, Commits>) -> MutexGuard<'a, Commits> {
        commits.watching += 1;
        let mut commits = wait(&self.commits_changed, commits);
        commits.watching -= 1;
        commits
    }

    /// Ends the lead that [`lead`](Self::lead) began.
    pub(super) fn resign(&self) {
        let mut commits = lock(&self.commits);
        commits.is_led = false;
        let is_watched = commits.watching > 0;
        // One task of the next batch is enough: it leads, if no thread does.
        let waiting = commits.waiting.as_ref().and_then(|group| group.outcome.next_task());
        // The woken thread needs the lock.
        drop(commits);
        if let Some(task) = waiting {
            task.wake();
        }
        if is_watched {
            self.commits_changed.notify_all();
        }
    }

    /// Runs `work` while no commit is running and none waits.
    pub(crate) fn alone<T>(&self, work: impl FnOnce(&dyn Backend) -> Result<T>) -> Result<T> {
        struct Resign<'a>(&'a Pages);
        impl Drop for Resign<'_> {
            fn drop(&mut self) {
                self.0.resign();
            }
        }
        self.lead()?;
        let _resign = Resign(self);
        work(&*self.backend)
    }

    /// Hands over the changes of `transaction`, releases the writer slot, and waits until they are
    /// durable.
    pub(super) fn commit(&self, transaction: &mut Transaction) -> Result<()> {
        let (outcome, _) = self.hand_over(transaction)?;
        self.wait_for(&outcome).map(drop)
    }

    /// Hands over the changes of `transaction`. Waits only if the waiting group would take too much
    /// memory, or keep readers from beginning.
    pub(super) fn commit_later(&self, transaction: &mut Transaction) -> Result<Outcome> {
        let (outcome, can_wait) = self.hand_over(transaction)?;
        if !can_wait {
            self.wait_for(&outcome)?;
        }
        Ok(outcome)
    }

    /// Returns the outcome of all handed-over transactions, or `None` if there were none.
    pub(super) fn last_outcome(&self) -> Option<Outcome> {
        lock(&self.commits).last_outcome.clone()
    }

    /// Hands over the changes of `transaction`, and releases the writer slot. Returns the place of
    /// its outcome, and true if it may wait for one.
    fn hand_over(&self, transaction: &mut Transaction) -> Result<(Outcome, bool)> {
        let mut commits = lock(&self.commits);
        if let Some(poison) = &commits.poison {
            return Err(self.refusal(poison));
        }
        if !self.is_current(transaction.generation) {
            return Err(self.void_for_lack_of_room());
        }
        let is_leader = transaction.is_leader;
        commits.last += 1;
        let number = commits.last;
        let mut group = commits.waiting.take().unwrap_or_default();
        group.last = number;
        group.room = if group.transactions == 0 { transaction.room } else { group.room.min(transaction.room) };
        group.transactions += 1;
        self.merge(&mut group, transaction, number);
        let outcome = Arc::clone(&group.outcome);
        commits.last_outcome = Some(Arc::clone(&outcome));
        if is_leader {
            drop(commits);
            transaction.is_leader = false;
            self.make_durable(group);
            transaction.leave();
            return Ok((outcome, false));
        }
        let is_large = group.pages.len() * size_of::<Image>() > self.limits.transaction_bytes;
        // With the floor raised, no snapshot begins before the group is durable.
        let can_wait = !is_large && group.floor_before.is_none();
        let is_complete = commits.gathering.is_some_and(|expected| group.transactions >= expected);
        commits.waiting = Some(group);
        drop(commits);
        if is_complete {
            self.handed_over.notify_one();
        }
        transaction.leave();
        Ok((outcome, can_wait))
    }

    /// Makes all handed-over transactions durable.
    ///
    /// # Errors
    /// The error that kept the last of them from becoming durable.
    pub(crate) fn sync(&self) -> Result<()> {
        match self.last_outcome() {
            Some(outcome) => self.wait_for(&outcome).map(drop),
            None => self.refuse_if_poisoned(),
        }
    }

    fn refuse_if_poisoned(&self) -> Result<()> {
        match &lock(&self.commits).poison {
            Some(poison) => Err(self.refusal(poison)),
            None => Ok(()),
        }
    }

    /// Waits for the outcome of a group, and makes the group durable if no other thread does.
    /// Returns a transaction's share of the bytes that were written.
    pub(crate) fn wait_for(&self, outcome: &Fate) -> Result<u64> {
        let mut commits = lock(&self.commits);
        loop {
            if let Some(outcome) = outcome.known.get() {
                return outcome.clone();
            }
            if commits.is_led {
                commits = self.watch(commits);
                continue;
            }
            commits.is_led = true;
            self.flush(commits)?;
            commits = lock(&self.commits);
        }
    }

    /// Polls for the outcome of a group. Ready when the outcome is known, or when the task leads
    /// from now on. A task that leads has to call [`lead_on`](Self::lead_on), or
    /// [`resign`](Self::resign).
    pub(super) fn poll_turn(&self, outcome: &Fate, ticket: &mut Option<Ticket>, context: &Context<'_>) -> Poll<Turn> {
        let mut commits = lock(&self.commits);
        if outcome.is_known() {
            return Poll::Ready(Turn::Known);
        }
        if commits.is_led {
            *ticket = Some(outcome.wakes(context.waker(), *ticket));
            return Poll::Pending;
        }
        commits.is_led = true;
        Poll::Ready(Turn::Flush { expected: commits.latest_took, shared: commits.latest.transactions })
    }

    /// Ends the wait of a task for an unknown outcome. If that task was woken to lead, another one
    /// is woken.
    pub(super) fn give_up(&self, outcome: &Fate, ticket: Ticket) {
        let commits = lock(&self.commits);
        lock(&outcome.tasks).waiting.retain(|(of, _)| *of != ticket);
        let next = if commits.is_led { None } else { outcome.next_task() };
        drop(commits);
        if let Some(next) = next {
            next.wake();
        }
    }

    /// Makes the waiting group durable. The caller leads, and thereby resigns.
    pub(super) fn lead_on(&self) -> Result<()> {
        self.flush(lock(&self.commits))
    }

    fn flush(&self, commits: MutexGuard<'_, Commits>) -> Result<()> {
        let mut commits = self.gather(commits);
        let Some(group) = commits.waiting.take() else {
            // The awaited group is neither waiting nor led nor done. This is impossible, and an
            // error is better than a hang.
            drop(commits);
            self.resign();
            return Err(Error::Invalid("a commit was lost between groups".into()));
        };
        drop(commits);
        self.make_durable(group);
        Ok(())
    }

    /// Waits for as many transactions as the last batch had, but not for long. The caller leads.
    fn gather<'a>(&self, mut commits: MutexGuard<'a, Commits>) -> MutexGuard<'a, Commits> {
        let expected = commits.latest.transactions;
        let deadline = Instant::now() + commits.latest_took / GATHERING_SHARE;
        while expected > 1 && commits.waiting.as_ref().is_some_and(|group| group.transactions < expected) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            commits.gathering = Some(expected);
            commits = self.handed_over.wait_timeout(commits, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        commits.gathering = None;
        commits
    }

    /// Installs the versions that commit `number` makes, and adds its changes to the group.
    fn merge(&self, group: &mut Group, transaction: &mut Transaction, number: u64) {
        let mut superseded = Vec::with_capacity(transaction.changes.len());
        let mut is_all_known = true;
        for (page, change) in transaction.changes.drain() {
            let Change { state, is_spilled, lines, before, existed, .. } = change;
            is_all_known &= !existed || before.is_some();
            let (held, content) = match state {
                State::Image(image) if is_spilled => (Held::Image(image), Some(Content::Spilled)),
                State::Image(image) => (Held::Image(Arc::clone(&image)), Some(Content::Image(image))),
                State::Spilled => (Held::OnMedium, Some(Content::Spilled)),
                State::Freed => (Held::Freed, None),
            };
            if self.cache.install(page, number, held, before) {
                superseded.push(page);
            }
            let merged = group.pages.entry(page).or_insert(Merged { content: None, lines: Lines::default(), existed });
            merged.content = content;
            merged.lines = merged.lines.with(lines);
        }
        if !superseded.is_empty() {
            self.snapshots.supersede(superseded.into_iter(), number);
        }
        if !is_all_known {
            let before = self.snapshots.give_up_before(number);
            group.floor_before.get_or_insert(before);
        }
    }

    /// Commits `group` to the backend, notifies all waiters, and resigns. The caller leads.
    fn make_durable(&self, group: Group) {
        /// Handles a leader that panics: other threads must not wait for it.
        struct Abandoned<'a>(&'a Pages, &'a Group);
        impl Drop for Abandoned<'_> {
            fn drop(&mut self) {
                if std::thread::panicking() {
                    self.0.fail(self.1, &Error::Invalid("the thread that committed panicked".into()), After::Refuse);
                    self.0.resign();
                    self.1.outcome.wake_all();
                }
            }
        }
        let _abandoned = Abandoned(self, &group);
        let mut batch = Batch { room: group.room, ..Batch::default() };
        for (&page, merged) in &group.pages {
            match &merged.content {
                Some(content) => {
                    let lines = if merged.existed { merged.lines } else { Lines::ALL };
                    batch.writes.push(Write { page, content: content.clone(), lines });
                }
                None if merged.existed => batch.frees.push(page),
                None => {}
            }
        }
        // In the order of pages: adjacent pages are written together, and runs are reproducible.
        batch.writes.sort_unstable_by_key(|write| write.page);
        batch.frees.sort_unstable();
        let is_empty = batch.writes.is_empty() && batch.frees.is_empty();
        let began = Instant::now();
        let committed = if is_empty { Ok(0) } else { self.backend.commit(&batch) };
        let took = began.elapsed();
        let lines = batch.writes.iter().map(|write| u64::from(write.lines.count())).sum();
        let latest = LastGroup { transactions: group.transactions, pages: batch.writes.len() as u64, lines };
        drop(batch);
        match committed {
            Ok(written_bytes) => {
                self.cache.set_durable(group.last);
                self.drop_garbage(&self.snapshots.advance(group.last));
                let mut commits = lock(&self.commits);
                commits.transactions += latest.transactions;
                commits.groups += u64::from(!is_empty);
                commits.pages += latest.pages;
                commits.lines += latest.lines;
                (commits.latest, commits.latest_took) = (latest, took);
                group.outcome.settle(Ok(written_bytes / group.transactions.max(1)));
                drop(commits);
                self.activity.committed();
            }
            Err(error @ Error::Full { .. }) => self.fail(&group, &error, After::GoOn),
            Err(error) => self.fail(&group, &error, After::Refuse),
        }
        self.resign();
        group.outcome.wake_all();
    }

    /// Rolls back `group` and everything built on it, and notifies the waiters of both.
    fn fail(&self, group: &Group, error: &Error, after: After) {
        self.backend.discard_spilled();
        let mut commits = lock(&self.commits);
        // Incremented first: a reader of a page that was rolled back detects that its transaction
        // is void.
        self.generation.fetch_add(1, SeqCst);
        let of_others = match after {
            After::GoOn => {
                self.epoch.fetch_add(1, SeqCst);
                error.clone()
            }
            After::Refuse => {
                commits.poison.get_or_insert_with(|| error.clone());
                self.refusal(error)
            }
        };
        let waiting = commits.waiting.take();
        let durable = self.snapshots.durable();
        for page in group.pages.keys().chain(waiting.iter().flat_map(|group| group.pages.keys())) {
            self.cache.roll_back(*page, durable);
        }
        // Done also if the backend is poisoned: snapshots would wait for a commit that never
        // becomes durable.
        self.snapshots.roll_back(group.floor_before.or(waiting.as_ref().and_then(|group| group.floor_before)));
        group.outcome.settle(Err(error.clone()));
        drop(commits);
        if let Some(waiting) = waiting {
            waiting.outcome.settle(Err(of_others));
            waiting.outcome.wake_all();
        }
    }

    fn drop_garbage(&self, garbage: &Garbage) {
        for &page in &garbage.pages {
            self.cache.prune(page, garbage.oldest);
        }
    }

    /// Makes all handed-over transactions durable, and closes the backend. This is the last call.
    ///
    /// # Errors
    /// The error that prevents it. The store closes without commits that were lost for lack of
    /// space.
    pub(crate) fn close(&self) -> Result<()> {
        let waiting = lock(&self.commits).waiting.as_ref().map(|group| Arc::clone(&group.outcome));
        let handed_over = waiting.map_or(Ok(()), |outcome| self.wait_for(&outcome).map(drop));
        let closed = self.alone(|backend| {
            let mut commits = lock(&self.commits);
            if !commits.is_closed {
                backend.close()?;
                commits.is_closed = true;
            }
            Ok(())
        });
        handed_over.and(closed)
    }

    /// Returns the number of the last transaction that was handed over.
    #[cfg(test)]
    pub(crate) fn handed_over(&self) -> u64 {
        lock(&self.commits).last
    }

    pub(crate) fn stats(&self) -> PagesStats {
        let (snapshots, versions) = self.snapshots.counts();
        let cache = self.cache.stats();
        let commits = lock(&self.commits);
        PagesStats {
            transactions: commits.transactions,
            groups: commits.groups,
            pages: commits.pages,
            lines: commits.lines,
            latest: commits.latest,
            cache_misses: cache.misses,
            cached_pages: cache.pages,
            snapshots,
            versions,
        }
    }
}

/// The pages as of one durable commit.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pages: Arc<Pages>,
    commit: u64,
}

impl Snapshot {
    pub(crate) fn commit(&self) -> u64 {
        self.commit
    }
}

impl Source for &Snapshot {
    fn page(&mut self, page: PageNo) -> Result<Arc<Image>> {
        let image = self.pages.cache.get(page, self.commit);
        if self.pages.snapshots.is_dead(self.commit) {
            return Err(Error::SnapshotTooOld { commit: self.commit });
        }
        image?.ok_or(Error::SnapshotTooOld { commit: self.commit })
    }

    fn stamp(&self) -> u64 {
        0
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        let garbage = self.pages.snapshots.end(self.commit);
        self.pages.drop_garbage(&garbage);
    }
}
