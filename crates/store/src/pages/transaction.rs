//! The open transaction: private copies of the pages that it changes, over what was handed over last.
//!
//! A page that is changed is copied once (`Arc::make_mut`), and the lines that change are noted. Past a bound of memory, pages that
//! were not touched lately are spilled to the backend.
//!
//! A savepoint keeps, for every page that changes after it, what the page was at that time, and the steps of the allocator;
//! rolling back to it undoes them from the youngest on.

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

/// Pages spilled at a time.
const SPILLED_AT_ONCE: usize = 16;

/// A point in a transaction that it can go back to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Savepoint(u64);

/// Where the bytes of a page are that the transaction has changed.
#[derive(Clone, Debug)]
pub(super) enum State {
    Image(Arc<Image>),
    Spilled,
    Freed,
}

/// What the transaction has done to a page.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) state: State,
    /// Lines that differ from the version before.
    pub(super) lines: Lines,
    /// The version before, for readers; `None` if there is none, or there was no room to keep it.
    pub(super) before: Option<Arc<Image>>,
    /// The page was in use before the transaction.
    pub(super) existed: bool,
    /// The backend has been given these bytes.
    pub(super) is_spilled: bool,
    was_used: bool,
}

impl Change {
    /// A change of a page that was in use.
    fn new(state: State, lines: Lines, before: Option<Arc<Image>>) -> Self {
        Self { state, lines, before, existed: true, is_spilled: false, was_used: true }
    }
}

/// Versions for readers that a change holds on to: one, or none.
fn keeps_version(change: Option<&Change>) -> usize {
    usize::from(change.is_some_and(|change| change.before.is_some()))
}

/// A step of the allocator.
#[derive(Clone, Copy, Debug)]
enum Step {
    Allocated(PageNo),
    Freed(PageNo),
}

/// What it takes to go back to a savepoint.
#[derive(Debug)]
struct Undo {
    id: u64,
    /// What each page was that has changed since; `None` if the transaction had not changed it.
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
    /// Which room it may take.
    pub(super) room: Room,
    /// It has spilled, and leads until it ends.
    pub(super) is_leader: bool,
    /// What made a change stop half-way: it cannot be committed.
    failure: Option<Error>,
    steps: Vec<Step>,
    savepoints: Vec<Undo>,
    next_savepoint: u64,
    stamp: u64,
    /// Pages changed in memory, those that may be spilled first in front. A page may be in it twice, or no longer be changed.
    spill_order: VecDeque<PageNo>,
    images: usize,
    /// Versions kept for readers, in changes, and what savepoints keep of pages.
    kept: usize,
}

impl Transaction {
    /// How often handed-over commits had been rolled back for lack of room when it began.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Lets it have the room that is kept for those that make some.
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

    /// A page as the transaction sees it.
    pub(crate) fn page(&mut self, page: PageNo) -> Result<Arc<Image>> {
        let Some(change) = self.changes.get_mut(&page) else {
            let image = self.pages.cache.get(page, NEWEST);
            // Before anything is made of it: commits that it comes from may have been rolled back.
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

    /// A page to be changed: its bytes, and the lines that have changed so far, to which the caller adds.
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

    /// A page that was not in use, of zeros.
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
            // Freed by this transaction: for the backend it is a page that changes.
            (change.existed, change.before) = (freed.existed, freed.before);
        }
        self.changes.insert(page, change);
        self.note_image(page);
        Ok(page)
    }

    /// Gives up a page in use.
    pub(crate) fn free(&mut self, page: PageNo) -> Result<()> {
        self.stamp += 1;
        if let Some(change) = self.changes.get(&page) {
            match change.state {
                State::Image(_) => {}
                // A savepoint would have to know it.
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

    /// Keeps what `page` is for the youngest savepoint, unless that has it already. A page that was spilled has been read back.
    fn remember(&mut self, page: PageNo) {
        let Some(undo) = self.savepoints.last_mut() else { return };
        if let Entry::Vacant(entry) = undo.changes.entry(page) {
            // What the backend has of it may be written over.
            let change = self.changes.get(&page).map(|change| Change { is_spilled: false, ..change.clone() });
            self.kept += usize::from(change.is_some());
            entry.insert(change);
        }
    }

    /// Runs a change of several pages. If it fails, the transaction can only be aborted, or rolled back to a savepoint.
    pub(crate) fn change<T>(&mut self, change: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.refuse_if_failed()?;
        let before = self.stamp;
        let changed = change(self);
        match &changed {
            // Arguments are checked before anything is done.
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

    /// A point to go back to.
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

    /// Undoes all that was done since `savepoint`, which stays; later ones go.
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
        // Whatever stopped half-way began after the savepoint: no savepoint is made after a failure.
        self.failure = None;
        Ok(())
    }

    /// Forgets `savepoint` and later ones; what was done since stays.
    pub(crate) fn release(&mut self, savepoint: Savepoint) -> Result<()> {
        let position = self.position(savepoint)?;
        let released = self.savepoints.split_off(position);
        let mut before = self.savepoints.last_mut();
        for (page, change) in released.into_iter().flat_map(|undo| undo.changes) {
            match before.as_mut().map(|before| before.changes.entry(page)) {
                Some(Entry::Vacant(entry)) => drop(entry.insert(change)),
                // The eldest wins: what it was when the earlier savepoint was made.
                Some(Entry::Occupied(_)) | None => self.kept -= usize::from(change.is_some()),
            }
        }
        Ok(())
    }

    /// Spills pages if more are changed in memory than may be.
    fn make_room(&mut self) -> Result<()> {
        if self.images * SLOT_BYTES < self.pages.limits.transaction_bytes {
            return Ok(());
        }
        if !self.is_leader {
            self.pages.lead()?;
            self.is_leader = true;
            // What this is built on was committed first, and may have found no room.
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

    /// There is one more image in memory.
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

    /// Hands over what was changed, and waits until it is durable.
    pub(crate) fn commit(mut self) -> Result<()> {
        self.refuse_if_failed()?;
        if self.changes.is_empty() {
            return Ok(());
        }
        let pages = Arc::clone(&self.pages);
        pages.commit(&mut self)
    }

    /// Hands over what was changed. Returns what is to become of it, and of all that it is built on.
    pub(crate) fn commit_later(mut self) -> Result<Handed> {
        self.refuse_if_failed()?;
        let pages = Arc::clone(&self.pages);
        let outcome = if self.changes.is_empty() {
            // An outcome that is known already is of what was there when this began.
            pages.last_outcome().filter(|outcome| !outcome.is_known())
        } else {
            Some(pages.commit_later(&mut self)?)
        };
        Ok(Handed { pages, outcome, ticket: None, is_leader: false })
    }

    /// Gives back the writer's place, after all was handed over.
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
    /// `None`: there was nothing to make durable.
    outcome: Option<Outcome>,
    /// Of the task that waits for it, if one does.
    ticket: Option<Ticket>,
    /// It has to make durable what waits.
    is_leader: bool,
}

impl Handed {
    /// Waits until it is durable, or known to be lost. Returns its share of the bytes that were written.
    pub(crate) fn wait(&mut self) -> Result<u64> {
        let Some(outcome) = &self.outcome else { return Ok(0) };
        if std::mem::take(&mut self.is_leader) {
            self.pages.lead_on()?;
        }
        self.pages.wait_for(outcome)
    }

    /// Ready when [`wait`](Self::wait) waits for nobody else.
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
    /// Others do not wait for one that is not there any more.
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
