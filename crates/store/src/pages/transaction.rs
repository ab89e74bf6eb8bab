//! The open transaction: private copies of the pages that it changes, over the last handed-over
//! state.
//!
//! A changed page is copied once (`Arc::make_mut`), and its changed lines are recorded. Beyond a
//! memory bound, pages that were not used recently are spilled to the backend.
//!
//! A savepoint keeps the earlier state of every page that changes after it, and the steps of the
//! allocator. A rollback undoes them from the youngest on.

use std::collections::VecDeque;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::Source;
use super::allocator::Allocator;
use super::cache::{NEWEST, PageMap};
use super::group::{Outcome, Pages, Ticket, Turn};
use crate::backend::{Image, Lines, PageNo, Room, SLOT_BYTES};
use crate::{Error, Result};

/// The number of pages spilled at a time.
const SPILLED_AT_ONCE: usize = 16;

/// A point in a transaction to which it can roll back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Savepoint(u64);

/// The location of the bytes of a changed page.
#[derive(Clone, Debug)]
pub(super) enum State {
    Image(Arc<Image>),
    Spilled,
    Freed,
}

/// The change of a page by the transaction.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) state: State,
    /// The lines that differ from the version before.
    pub(super) lines: Lines,
    /// The version before, for readers. `None` if there is none, or there was no memory to keep it.
    pub(super) before: Option<Arc<Image>>,
    /// True if the page was in use before the transaction.
    pub(super) existed: bool,
    /// True if the backend has these bytes.
    pub(super) is_spilled: bool,
    was_used: bool,
}

impl Change {
    /// Creates the change of a page that was in use.
    fn new(state: State, lines: Lines, before: Option<Arc<Image>>) -> Self {
        Self { state, lines, before, existed: true, is_spilled: false, was_used: true }
    }
}

/// Returns the number of versions for readers that a change holds: one, or none.
fn keeps_version(change: Option<&Change>) -> usize {
    usize::from(change.is_some_and(|change| change.before.is_some()))
}

/// A step of the allocator.
#[derive(Clone, Copy, Debug)]
enum Step {
    Allocated(PageNo),
    Freed(PageNo),
}

/// The state needed to roll back to a savepoint.
#[derive(Debug)]
struct Undo {
    id: u64,
    /// The earlier state of each page that has changed since. `None` if the transaction had not
    /// changed the page.
    changes: PageMap<Option<Change>>,
    steps: usize,
}

/// The open transaction. There is one at a time.
#[derive(Debug)]
pub(crate) struct Transaction {
    pages: Arc<Pages>,
    allocator: Option<Allocator>,
    pub(super) changes: PageMap<Change>,
    pub(super) generation: u64,
    epoch: u64,
    /// The free slots that it may take.
    pub(super) room: Room,
    /// True if it has spilled, and leads until it ends.
    pub(super) is_leader: bool,
    /// The error that stopped a change half-way: the transaction cannot be committed.
    failure: Option<Error>,
    steps: Vec<Step>,
    savepoints: Vec<Undo>,
    next_savepoint: u64,
    stamp: u64,
    /// The pages changed in memory, the first to be spilled in front. A page may occur twice, or no
    /// longer be changed.
    spill_order: VecDeque<PageNo>,
    images: usize,
    /// The number of versions kept for readers, in changes, and of page states kept by savepoints.
    kept: usize,
}

impl Transaction {
    /// Returns the number of roll-backs of handed-over commits for lack of space at the start of
    /// the transaction.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Lets the transaction use the space reserved for transactions that free some.
    pub(crate) fn use_reserve(&mut self) {
        self.room = Room::Reserve;
    }

    pub(super) fn new(pages: Arc<Pages>, allocator: Allocator, generation: u64, epoch: u64) -> Self {
        Self {
            pages,
            allocator: Some(allocator),
            changes: PageMap::default(),
            generation,
            epoch,
            room: Room::default(),
            is_leader: false,
            failure: None,
            steps: Vec::new(),
            savepoints: Vec::new(),
            next_savepoint: 0,
            stamp: 0,
            spill_order: VecDeque::new(),
            images: 0,
            kept: 0,
        }
    }

    /// Returns a page as the transaction sees it.
    pub(crate) fn page(&mut self, page: PageNo) -> Result<Arc<Image>> {
        let Some(change) = self.changes.get_mut(&page) else {
            let image = self.pages.cache.get(page, NEWEST);
            // Checked before the page is used: commits that it comes from may have been rolled
            // back.
            if !self.pages.is_current(self.generation) {
                return Err(self.pages.void());
            }
            return image?.ok_or_else(|| self.not_in_use(page));
        };
        change.was_used = true;
        match &change.state {
            State::Image(image) => Ok(Arc::clone(image)),
            State::Freed => Err(self.not_in_use(page)),
            State::Spilled => {
                self.make_room()?;
                let image = self.read_spilled(page)?;
                if let Some(change) = self.changes.get_mut(&page) {
                    change.state = State::Image(Arc::clone(&image));
                    self.note_image(page);
                }
                Ok(image)
            }
        }
    }

    fn read_spilled(&self, page: PageNo) -> Result<Arc<Image>> {
        let mut image = Arc::new(Image::zeroed());
        self.pages.backend.read_spilled(page, Arc::make_mut(&mut image))?;
        Ok(image)
    }

    fn not_in_use(&self, page: PageNo) -> Error {
        not_in_use(&self.pages, page)
    }

    /// Returns a page to be changed: its bytes, and the lines changed so far, to which the caller
    /// adds.
    pub(crate) fn edit(&mut self, page: PageNo) -> Result<(&mut Image, &mut Lines)> {
        self.make_room()?;
        self.stamp += 1;
        if !matches!(self.changes.get(&page), Some(Change { state: State::Image(_), .. })) {
            let image = self.page(page)?;
            self.remember(page);
            if !self.changes.contains_key(&page) {
                let before = self.has_room_for_version().then(|| Arc::clone(&image));
                self.kept += usize::from(before.is_some());
                self.changes.insert(page, Change::new(State::Image(image), Lines::default(), before));
                self.note_image(page);
            }
        } else if !self.savepoints.is_empty() {
            self.remember(page);
        }
        match self.changes.get_mut(&page) {
            Some(Change { state: State::Image(image), lines, is_spilled, was_used, .. }) => {
                (*is_spilled, *was_used) = (false, true);
                Ok((Arc::make_mut(image), lines))
            }
            _ => Err(not_in_use(&self.pages, page)),
        }
    }

    /// Allocates a page that was not in use, of zeros.
    pub(crate) fn allocate(&mut self) -> Result<PageNo> {
        self.make_room()?;
        if !self.pages.is_current(self.generation) {
            return Err(self.pages.void());
        }
        let page = self.allocator.as_mut().and_then(Allocator::allocate).ok_or_else(|| Error::Full {
            object: self.pages.backend.name().into(),
            reason: "all page numbers are in use".into(),
        })?;
        self.stamp += 1;
        self.steps.push(Step::Allocated(page));
        self.remember(page);
        let image = State::Image(Arc::new(Image::zeroed()));
        let mut change = Change { existed: false, ..Change::new(image, Lines::ALL, None) };
        if let Some(freed) = self.changes.remove(&page) {
            // The page was freed by this transaction: for the backend it is a page that changes.
            (change.existed, change.before) = (freed.existed, freed.before);
        }
        self.changes.insert(page, change);
        self.note_image(page);
        Ok(page)
    }

    /// Frees a page in use.
    pub(crate) fn free(&mut self, page: PageNo) -> Result<()> {
        self.stamp += 1;
        if let Some(change) = self.changes.get(&page) {
            match change.state {
                State::Image(_) => {}
                // A savepoint would need its contents.
                State::Spilled if !self.savepoints.is_empty() => drop(self.page(page)?),
                State::Spilled => {}
                State::Freed => return Err(self.not_in_use(page)),
            }
            let (existed, is_image) = self
                .changes
                .get(&page)
                .map_or((false, false), |change| (change.existed, matches!(change.state, State::Image(_))));
            self.images -= usize::from(is_image);
            self.remember(page);
            match self.changes.get_mut(&page) {
                Some(change) if existed => change.state = State::Freed,
                _ => {
                    let gone = self.changes.remove(&page);
                    self.kept -= keeps_version(gone.as_ref());
                }
            }
        } else {
            let before = if self.has_room_for_version() { Some(self.page(page)?) } else { None };
            self.remember(page);
            self.kept += usize::from(before.is_some());
            self.changes.insert(page, Change::new(State::Freed, Lines::ALL, before));
        }
        self.steps.push(Step::Freed(page));
        if let Some(allocator) = &mut self.allocator {
            allocator.free(page);
        }
        Ok(())
    }

    fn has_room_for_version(&self) -> bool {
        self.kept * SLOT_BYTES < self.pages.limits.version_bytes
    }

    /// Keeps the state of `page` for the youngest savepoint, unless it has one already. A page that
    /// was spilled has been read back.
    fn remember(&mut self, page: PageNo) {
        let Some(undo) = self.savepoints.last_mut() else { return };
        if let Entry::Vacant(entry) = undo.changes.entry(page) {
            // The backend's copy of it may be overwritten.
            let change = self.changes.get(&page).map(|change| Change { is_spilled: false, ..change.clone() });
            self.kept += usize::from(change.is_some());
            entry.insert(change);
        }
    }

    /// Runs a change of several pages. If it fails, the transaction can only be aborted, or rolled
    /// back to a savepoint.
    pub(crate) fn change<T>(&mut self, change: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.refuse_if_failed()?;
        let before = self.stamp;
        let changed = change(self);
        match &changed {
            // Arguments are checked before any change.
            Err(Error::Invalid(_)) if self.stamp == before => {}
            Err(error) => self.failure = Some(error.clone()),
            Ok(_) => {}
        }
        changed
    }

    fn refuse_if_failed(&self) -> Result<()> {
        match &self.failure {
            None => Ok(()),
            Some(failure) => Err(Error::Invalid(format!(
                "the transaction stopped half-way in a change ({failure}); abort it, or roll it back to a savepoint"
            ))),
        }
    }

    /// Creates a savepoint.
    pub(crate) fn savepoint(&mut self) -> Result<Savepoint> {
        self.refuse_if_failed()?;
        self.next_savepoint += 1;
        let id = self.next_savepoint;
        self.savepoints.push(Undo { id, changes: PageMap::default(), steps: self.steps.len() });
        Ok(Savepoint(id))
    }

    fn position(&self, savepoint: Savepoint) -> Result<usize> {
        let unknown = || Error::Invalid("the savepoint is not one of this transaction's, or was rolled back".into());
        self.savepoints.iter().position(|undo| undo.id == savepoint.0).ok_or_else(unknown)
    }

    /// Undoes all changes since `savepoint`, which stays valid. Later savepoints are discarded.
    pub(crate) fn roll_back_to(&mut self, savepoint: Savepoint) -> Result<()> {
        let position = self.position(savepoint)?;
        self.stamp += 1;
        for undo in self.savepoints.split_off(position).into_iter().rev() {
            for (page, change) in undo.changes {
                let is_image = |change: Option<&Change>| matches!(change.map(|c| &c.state), Some(State::Image(_)));
                self.images -= usize::from(is_image(self.changes.get(&page)));
                let will_be_image = is_image(change.as_ref());
                self.kept += keeps_version(change.as_ref());
                self.kept -= usize::from(change.is_some()) + keeps_version(self.changes.get(&page));
                match change {
                    Some(change) => drop(self.changes.insert(page, change)),
                    None => drop(self.changes.remove(&page)),
                }
                if will_be_image {
                    self.note_image(page);
                }
            }
            if let Some(allocator) = &mut self.allocator {
                undo_steps(allocator, &mut self.steps, undo.steps);
            }
        }
        self.savepoints.push(Undo { id: savepoint.0, changes: PageMap::default(), steps: self.steps.len() });
        // The failed change began after the savepoint: no savepoint is made after a failure.
        self.failure = None;
        Ok(())
    }

    /// Discards `savepoint` and later ones. The changes since then stay.
    pub(crate) fn release(&mut self, savepoint: Savepoint) -> Result<()> {
        let position = self.position(savepoint)?;
        let released = self.savepoints.split_off(position);
        let mut before = self.savepoints.last_mut();
        for (page, change) in released.into_iter().flat_map(|undo| undo.changes) {
            match before.as_mut().map(|before| before.changes.entry(page)) {
                Some(Entry::Vacant(entry)) => drop(entry.insert(change)),
                // The oldest wins: the state when the earlier savepoint was made.
                Some(Entry::Occupied(_)) | None => self.kept -= usize::from(change.is_some()),
            }
        }
        Ok(())
    }

    /// Spills pages if the pages changed in memory exceed the limit.
    fn make_room(&mut self) -> Result<()> {
        if self.images * SLOT_BYTES < self.pages.limits.transaction_bytes {
            return Ok(());
        }
        if !self.is_leader {
            self.pages.lead()?;
            self.is_leader = true;
            // The commits below this transaction were committed first, and may have found no space.
            if !self.pages.is_current(self.generation) {
                return Err(self.pages.void());
            }
        }
        let mut spilled = 0;
        while spilled < SPILLED_AT_ONCE {
            let Some(page) = self.spill_order.pop_front() else { return Ok(()) };
            let Some(change) = self.changes.get_mut(&page) else { continue };
            let State::Image(image) = &change.state else { continue };
            if std::mem::take(&mut change.was_used) {
                self.spill_order.push_back(page);
                continue;
            }
            if !change.is_spilled {
                self.pages.backend.spill(page, image, change.lines)?;
            }
            (change.state, change.is_spilled) = (State::Spilled, true);
            self.images -= 1;
            spilled += 1;
        }
        Ok(())
    }

    /// Records one more image in memory.
    fn note_image(&mut self, page: PageNo) {
        self.images += 1;
        if self.spill_order.len() > 2 * self.images + 1024 {
            let changes = &self.changes;
            let mut seen = std::collections::HashSet::new();
            self.spill_order.retain(|page| {
                matches!(changes.get(page), Some(Change { state: State::Image(_), .. })) && seen.insert(*page)
            });
        }
        self.spill_order.push_back(page);
    }

    /// Hands over the changes, and waits until they are durable.
    pub(crate) fn commit(mut self) -> Result<()> {
        self.refuse_if_failed()?;
        if self.changes.is_empty() {
            return Ok(());
        }
        let pages = Arc::clone(&self.pages);
        pages.commit(&mut self)
    }

    /// Hands over the changes. Returns a handle to their outcome, and to that of the commits that
    /// they are built on.
    pub(crate) fn commit_later(mut self) -> Result<Handed> {
        self.refuse_if_failed()?;
        let pages = Arc::clone(&self.pages);
        let outcome = if self.changes.is_empty() {
            // A known outcome belongs to commits from before this transaction.
            pages.last_outcome().filter(|outcome| !outcome.is_known())
        } else {
            Some(pages.commit_later(&mut self)?)
        };
        Ok(Handed { pages, outcome, ticket: None, is_leader: false })
    }

    /// Releases the writer slot, after the handover.
    pub(super) fn leave(&mut self) {
        if let Some(allocator) = self.allocator.take() {
            self.pages.leave(allocator, self.generation);
        }
    }
}

/// A transaction that was handed over.
#[derive(Debug)]
pub(crate) struct Handed {
    pages: Arc<Pages>,
    /// The outcome, or `None` if there was nothing to make durable.
    outcome: Option<Outcome>,
    /// The ticket of the waiting task, if there is one.
    ticket: Option<Ticket>,
    /// True if it has to make the waiting group durable.
    is_leader: bool,
}

impl Handed {
    /// Waits until the transaction is durable, or known to be lost. Returns its share of the bytes
    /// that were written.
    pub(crate) fn wait(&mut self) -> Result<u64> {
        let Some(outcome) = &self.outcome else { return Ok(0) };
        if std::mem::take(&mut self.is_leader) {
            self.pages.lead_on()?;
        }
        self.pages.wait_for(outcome)
    }

    /// Ready when [`wait`](Self::wait) waits for no other thread.
    pub(crate) fn poll_turn(&mut self, context: &Context<'_>) -> Poll<Turn> {
        match &self.outcome {
            Some(outcome) if !self.is_leader => {
                let turn = ready!(self.pages.poll_turn(outcome, &mut self.ticket, context));
                self.is_leader = turn != Turn::Known;
                Poll::Ready(turn)
            }
            Some(_) => Poll::Ready(Turn::Flush { expected: Duration::ZERO, shared: 0 }),
            None => Poll::Ready(Turn::Known),
        }
    }
}

impl Drop for Handed {
    /// Passes the lead on, so that other threads and tasks do not wait for this one.
    fn drop(&mut self) {
        if self.is_leader {
            self.pages.resign();
        } else if let (Some(outcome), Some(ticket)) = (&self.outcome, self.ticket)
            && !outcome.is_known()
        {
            self.pages.give_up(outcome, ticket);
        }
    }
}

fn not_in_use(pages: &Pages, page: PageNo) -> Error {
    Error::corrupt(pages.backend.name(), format!("{page} is referred to and not in use"))
}

fn undo_steps(allocator: &mut Allocator, steps: &mut Vec<Step>, to: usize) {
    for step in steps.drain(to..).rev() {
        match step {
            Step::Allocated(page) => allocator.free(page),
            Step::Freed(page) => allocator.take(page),
        }
    }
}

impl Drop for Transaction {
    /// Aborts, if it was not committed.
    fn drop(&mut self) {
        if self.is_leader {
            self.pages.backend.discard_spilled();
            self.pages.resign();
        }
        if let Some(mut allocator) = self.allocator.take() {
            undo_steps(&mut allocator, &mut self.steps, 0);
            self.pages.leave(allocator, self.generation);
        }
    }
}

impl Source for Transaction {
    fn page(&mut self, page: PageNo) -> Result<Arc<Image>> {
        Transaction::page(self, page)
    }

    fn stamp(&self) -> u64 {
        self.stamp
    }
}
