//! Group commit.
//!
//! 1. A transaction hands over, under one lock: its versions are installed in the cache, its changes merged into the group that
//!    waits. Then the writer's place is free, and the next transaction builds on what was handed over.
//! 2. Whoever waits and finds no leader becomes it: takes the whole group, and commits it as one batch. Meanwhile the next group
//!    gathers. So under load the number of batches is that of the medium's fences, not that of transactions.
//!    Where the last batch had several transactions, it first waits a little for as many: those who were in that batch are about
//!    to hand over again, and would otherwise wait for a batch of their own.
//! 3. When the batch is durable, snapshots that begin see it, and all who wait for it return.
//!
//! Threads and tasks wait alike, side by side. A task that finds no leader has to lead as well ([`Turn::Flush`]), and does so where
//! it may block; whoever resigns wakes one that waits for the next batch, if there is any.
//!
//! If a batch fails, everything handed over and not durable is rolled back, and the open transaction, which is built on it,
//! fails at its next step (`generation`). If the medium has no room ([`Error::Full`]) nothing of the group has happened, and the
//! next transaction goes on from what is durable. After any other failure nobody commits any more, and readers go on with the
//! last state that was acknowledged.
//!
//! A transaction that outgrows its memory spills to the backend, which allows no commit in between: it leads from then on until it
//! ends, and keeps the writer's place until it is durable.

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

/// A leader waits for others for this part of the time that a batch takes, if they are to be expected. Where a flush takes 85 us, 8
/// threads on 2 cores need half of that to be woken and to hand over: with an eighth, batches had 5 of them, and were slower.
const GATHERING_SHARE: u32 = 2;

/// When a commit returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// When it is durable.
    #[default]
    Now,
    /// At once. It becomes durable, and visible to readers, with the next durable commit; a crash before loses it whole. If that
    /// commit finds no room, this one is lost with it.
    Later,
}

/// How much memory pages may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Clean pages, in bytes.
    pub(crate) cache_bytes: usize,
    /// Pages that the open transaction has changed, in bytes.
    pub(crate) transaction_bytes: usize,
    /// Versions kept for readers, in bytes.
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
    /// How often handed-over commits were rolled back. Changes under the lock of `commits`.
    generation: AtomicU64,
    /// How often that was for lack of room, so that it is known what is durable. Changes with it.
    epoch: AtomicU64,
    activity: Activity,
}

/// The writer's place.
#[derive(Debug)]
struct Writer {
    is_taken: bool,
    /// Threads that wait for it: without any, nobody is woken, which is a call of the system.
    waiting: usize,
    /// Pages in use, and the generation that they belong to; `None` while the writer has it.
    allocator: Option<(u64, Allocator)>,
}

#[derive(Debug, Default)]
struct Commits {
    /// The number of the last transaction that was handed over.
    last: u64,
    waiting: Option<Group>,
    /// What becomes of the group that was handed over to last.
    last_outcome: Option<Outcome>,
    is_led: bool,
    /// Threads that wait for what the leader does.
    watching: usize,
    /// The leader waits until so many have handed over.
    gathering: Option<u64>,
    poison: Option<Error>,
    is_closed: bool,
    transactions: u64,
    groups: u64,
    pages: u64,
    lines: u64,
    latest: LastGroup,
    /// How long the backend took for it.
    latest_took: Duration,
}

/// What the last durable group consisted of.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LastGroup {
    pub(crate) transactions: u64,
    pub(crate) pages: u64,
    pub(crate) lines: u64,
}

/// What becomes of a group.
pub(crate) type Outcome = Arc<Fate>;

/// What has become of a group, once that is known, and the tasks that want to know. Changes under the lock of `commits`.
#[derive(Debug, Default)]
pub(crate) struct Fate {
    /// Bytes written, for each of its transactions.
    known: OnceLock<Result<u64>>,
    tasks: Mutex<Tasks>,
}

/// Tasks that wait. One that is woken is none of them any more, until it waits again.
#[derive(Debug, Default)]
struct Tasks {
    last: u64,
    waiting: Vec<(Ticket, Waker)>,
}

/// Tells tasks from each other that wait for the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket(u64);

impl Fate {
    pub(super) fn is_known(&self) -> bool {
        self.known.get().is_some()
    }

    fn settle(&self, outcome: Result<u64>) {
        let _ = self.known.set(outcome);
    }

    /// Wakes a task, that waits already if it has a ticket. Returns its ticket.
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

    /// A task that waits, which does not any more.
    fn next_task(&self) -> Option<Waker> {
        lock(&self.tasks).waiting.pop().map(|(_, task)| task)
    }

    fn wake_all(&self) {
        let tasks = std::mem::take(&mut lock(&self.tasks).waiting);
        tasks.into_iter().for_each(|(_, task)| task.wake());
    }
}

/// What a task is to do that waits for a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Nothing: it is known what has become of it.
    Known,
    /// It is the one to make it durable, together with what others have handed over: [`Pending::wait`](crate::Pending::wait) does,
    /// and blocks its thread.
    Flush {
        /// How long that took last.
        expected: Duration,
        /// Transactions that became durable by it.
        shared: u64,
    },
}

/// Transactions that become durable together.
#[derive(Debug, Default)]
struct Group {
    pages: PageMap<Merged>,
    last: u64,
    transactions: u64,
    /// The reserve is for groups all of whose transactions may use it: with one that takes room, it would be gone.
    room: Room,
    outcome: Outcome,
    /// The floor of snapshots before this group raised it.
    floor_before: Option<u64>,
}

/// What happens after a batch that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    /// Nothing of it is on the medium: the next transaction may do better.
    GoOn,
    /// What is durable is not known: nobody commits any more.
    Refuse,
}

/// What a group does to a page.
#[derive(Debug)]
struct Merged {
    /// `None`: it is free afterwards.
    content: Option<Content>,
    lines: Lines,
    /// It is in use before the group.
    existed: bool,
}

/// What has become of transactions since the store was opened.
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

    /// What is told to a thread that does what can wait.
    pub(crate) fn activity(&self) -> &Activity {
        &self.activity
    }

    /// Begins a transaction, when the one before has been handed over.
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
            // The lock: a roll-back is over, or will make the transaction void.
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

    /// Gives the writer's place back.
    pub(super) fn leave(&self, allocator: Allocator, generation: u64) {
        let mut writer = lock(&self.writer);
        writer.is_taken = false;
        writer.allocator = Some((generation, allocator));
        let is_awaited = writer.waiting > 0;
        // Who is woken wants the lock.
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

    /// How often handed-over commits were rolled back for lack of room.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(SeqCst)
    }

    fn refusal(&self, poison: &Error) -> Error {
        Error::Poisoned { object: self.backend.name().into(), reason: poison.to_string() }
    }

    /// What a transaction gets that was built on commits that were rolled back.
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

    /// Waits until nothing is being committed, commits what waits, and leads from then on: no commit happens before
    /// [`resign`](Self::resign).
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

    /// Waits for what the leader does next.
    fn watch<'a>(&self, mut commits: MutexGuard<'a, Commits>) -> MutexGuard<'a, Commits> {
        commits.watching += 1;
        let mut commits = wait(&self.commits_changed, commits);
        commits.watching -= 1;
        commits
    }

    /// Ends what [`lead`](Self::lead) began.
    pub(super) fn resign(&self) {
        let mut commits = lock(&self.commits);
        commits.is_led = false;
        let is_watched = commits.watching > 0;
        // Of the next batch, one of its tasks is enough: it leads, if no thread does.
        let waiting = commits.waiting.as_ref().and_then(|group| group.outcome.next_task());
        // Who is woken wants the lock.
        drop(commits);
        if let Some(task) = waiting {
            task.wake();
        }
        if is_watched {
            self.commits_changed.notify_all();
        }
    }

    /// Runs `work` while no commit is under way and none waits.
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

    /// Hands over what `transaction` changed, gives back the writer's place, and waits until it is durable.
    pub(super) fn commit(&self, transaction: &mut Transaction) -> Result<()> {
        let (outcome, _) = self.hand_over(transaction)?;
        self.wait_for(&outcome).map(drop)
    }

    /// The same without waiting, unless what waits would take too much memory, or keep readers from beginning.
    pub(super) fn commit_later(&self, transaction: &mut Transaction) -> Result<Outcome> {
        let (outcome, can_wait) = self.hand_over(transaction)?;
        if !can_wait {
            self.wait_for(&outcome)?;
        }
        Ok(outcome)
    }

    /// What is to become of everything that was handed over; `None` if nothing ever was.
    pub(super) fn last_outcome(&self) -> Option<Outcome> {
        lock(&self.commits).last_outcome.clone()
    }

    /// Hands over what `transaction` changed, and gives back the writer's place. Returns where its outcome will be, and whether it
    /// may stay without one for a while.
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

    /// Makes durable what was handed over.
    ///
    /// # Errors
    /// What kept the last that was handed over from becoming durable.
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

    /// Waits until it is known what has become of a group, and makes it durable if nobody else does. Returns a transaction's share of
    /// the bytes that were written.
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

    /// The same for a task: ready when it is known, or when the task leads from now on. Then it has to [`lead_on`](Self::lead_on), or to
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

    /// A task waits no longer for what is not known yet. If it was the one that was woken to lead, another does.
    pub(super) fn give_up(&self, outcome: &Fate, ticket: Ticket) {
        let commits = lock(&self.commits);
        lock(&outcome.tasks).waiting.retain(|(of, _)| *of != ticket);
        let next = if commits.is_led { None } else { outcome.next_task() };
        drop(commits);
        if let Some(next) = next {
            next.wake();
        }
    }

    /// Makes durable what waits. The caller leads, and resigns by that.
    pub(super) fn lead_on(&self) -> Result<()> {
        self.flush(lock(&self.commits))
    }

    fn flush(&self, commits: MutexGuard<'_, Commits>) -> Result<()> {
        let mut commits = self.gather(commits);
        let Some(group) = commits.waiting.take() else {
            // What is waited for is neither waiting nor led nor done: impossible, and an error rather than a hang.
            drop(commits);
            self.resign();
            return Err(Error::Invalid("a commit was lost between groups".into()));
        };
        drop(commits);
        self.make_durable(group);
        Ok(())
    }

    /// Waits for as many transactions as there were in the last batch, but not for long. The caller leads.
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

    /// Installs the versions that commit `number` makes, and adds what it does to the group.
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

    /// Commits `group` to the backend, says so to all, and resigns. The caller leads.
    fn make_durable(&self, group: Group) {
        /// A leader that panics must not leave others waiting for it.
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
        // In the order of pages: what lies together is written together, and runs are alike.
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

    /// Takes back what `group` did, and what was built on it, and tells who waits for either.
    fn fail(&self, group: &Group, error: &Error, after: After) {
        self.backend.discard_spilled();
        let mut commits = lock(&self.commits);
        // First: whoever reads a page that was taken back finds out that its transaction is void.
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
        // Also if nobody commits any more: snapshots would wait for a commit that never becomes durable.
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

    /// Makes durable what was handed over, and closes the backend. The last call.
    ///
    /// # Errors
    /// What keeps it from that; what was lost for lack of room is closed without.
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

    /// The number of the last transaction that was handed over.
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

/// Pages as of one durable commit.
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
