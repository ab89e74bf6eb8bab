//! Creation and recovery of a store.
//!
//! 1. The superblock states which records of the journal are valid, and their salt.
//! 2. Read the page table. For a pair, read its line of the consistent-state table, as far as it is
//!    whole.
//! 3. Replay the journal (or the super page) in memory, commit by commit. Its items are absolute,
//!    and replace the contents of the tables.
//! 4. Now every page must have a fully known location, and no slot two owners. The journal has what
//!    the tables lack after an interrupted checkpoint. Anything else that is missing is damage.
//! 5. Slots without an owner are free.
//!
//! If a process ended, and not the machine, the superblock and the records may be in a cache only.
//! They are flushed, so that a state that was read once stays. Recovery writes nothing. Contents of
//! the journal count as not yet in the tables. The next checkpoint puts them there, and only then
//! the journal is discarded. So a crash at any time during recovery, and before the end of the
//! first checkpoint, changes nothing.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::clock::Clock;
use super::journal::{Item, Journal, Scanned};
use super::layout::{Body, ENTRY_BYTES, Geometry, Slot};
use super::superpage::{self, SuperPage};
use super::table::{Entry, PairEntry, Place};
use super::writer::{Writer, slots_of};
use super::{Map, Options};
use crate::backend::{BackendStats, LINE_BYTES, PageNo, SLOT_BYTES, SLOT_LINES};
use crate::medium::Medium;
use crate::mutant::skips;
use crate::options::CommitBy;
use crate::superblock::{BODY_BYTES, Layout, SUPERBLOCKS_END, Superblock};
use crate::{Error, Result};

/// A store in memory, as of the last commit.
pub(super) struct Recovered {
    pub(super) geometry: Geometry,
    pub(super) map: Map,
    pub(super) writer: Writer,
}

/// Makes `medium` an empty store of one region, or of as many as fit.
pub(super) fn create(medium: &dyn Medium, options: &Options) -> Result<()> {
    let geometry = Geometry::new(options.ring_records, options.region_slots, options.commit_by)?;
    if medium.len() < geometry.len(1) {
        medium.grow(geometry.len(1))?;
    }
    let regions = geometry.regions(medium.len());
    let empty = vec![0; geometry.region_slots as usize * ENTRY_BYTES];
    for region in 0..regions {
        medium.write(geometry.table(region), &empty)?;
        if !skips("lines.create.flush") {
            medium.flush(geometry.table(region), empty.len())?;
        }
    }
    if !skips("lines.create.fence") {
        medium.fence()?;
    }
    let mut stale_word = [0; 8];
    if geometry.commit_by == CommitBy::SuperPage {
        medium.read(geometry.super_page(0, 0), &mut stale_word)?;
    }
    let body = Body { geometry, regions, is_clean: true, epoch: 0, checkpoint: 1, stale_word };
    let mut superblock = Superblock { layout: Layout::Lines, uuid: options.uuid, sequence: 0, body: [0; BODY_BYTES] };
    superblock.body = body.encode();
    superblock.write(medium)
}

/// Recovers the store on `medium`.
pub(super) fn open(medium: &Arc<dyn Medium>, options: &Options) -> Result<Recovered> {
    let superblock = Superblock::read(&**medium)?;
    if superblock.layout != Layout::Lines {
        return Err(Error::Unknown {
            object: medium.name().into(),
            reason: "its pages lie as on files: open it as a file".into(),
        });
    }
    let body = Body::decode(&**medium, &superblock.body)?;
    let geometry = body.geometry;
    let regions = geometry.regions(medium.len());
    let mut recovery =
        Recovery { medium: &**medium, geometry, slots: regions * geometry.region_slots, places: HashMap::new() };
    let mut map = recovery.tables(regions)?;
    let mut dirty = BTreeSet::new();
    let Scanned { journal, commits, lists } = if body.is_clean {
        let journal = Journal::new(geometry, &superblock.uuid, body.epoch, body.checkpoint);
        Scanned { journal, commits: Vec::new(), lists: Vec::new() }
    } else {
        Journal::scan(&**medium, geometry, &superblock.uuid, body.epoch, body.checkpoint)?
    };
    if !skips("lines.open.flush") {
        medium.flush(0, SUPERBLOCKS_END as usize)?;
        journal.flush(&**medium)?;
        if geometry.commit_by == CommitBy::SuperPage {
            medium.flush(geometry.super_page(0, 0), superpage::SLOTS * SLOT_BYTES)?;
        }
        medium.fence()?;
    }
    let mut super_page = SuperPage::new(geometry, &superblock.uuid, body.epoch, body.stale_word);
    if geometry.commit_by == CommitBy::SuperPage && !body.is_clean {
        let (found, places) = SuperPage::read(&**medium, geometry, &superblock.uuid, body.epoch, body.stale_word)?;
        super_page = found;
        for (page, place) in places {
            dirty.insert(recovery.found(page, Found::Known(place))?);
        }
    }
    for item in commits.into_iter().flatten() {
        dirty.insert(recovery.replay(item)?);
    }
    let mut clock = Clock::default();
    for (page, found) in std::mem::take(&mut recovery.places) {
        map.set(page, recovery.known(page, found)?);
    }
    for (page, place) in map.pages() {
        if matches!(place, Place::Pair { .. }) {
            clock.touch(page);
        }
    }
    let free = recovery.free_slots(&map, &lists)?;
    let writer = Writer {
        medium: medium.clone(),
        geometry,
        shadow_slots: options.shadow_slots as usize,
        reserve_slots: options.reserve_slots as usize,
        superblock,
        epoch: body.epoch,
        is_begun: false,
        is_clean: body.is_clean,
        regions,
        journal,
        super_page,
        free,
        lists,
        dirty,
        clock,
        spilled: HashMap::new(),
        is_fence_due: false,
        poison: None,
        stats: BackendStats::default(),
    };
    Ok(Recovered { geometry, map, writer })
}

/// The knowledge about a page so far.
#[derive(Clone, Copy, Debug)]
enum Found {
    Known(Place),
    /// A pair whose lines are not known yet.
    Fixed([Slot; 2]),
    /// A pair of which only the first slot is known.
    Torn(Slot),
}

struct Recovery<'a> {
    medium: &'a dyn Medium,
    geometry: Geometry,
    slots: u32,
    /// The pages whose location is not known from the tables alone: pairs, and pages in the
    /// journal.
    places: HashMap<PageNo, Found>,
}

impl Recovery<'_> {
    fn damaged(&self, reason: String) -> Error {
        Error::corrupt(self.medium.name(), reason)
    }

    /// Reads the page table. Pairs go to `places`.
    fn tables(&mut self, regions: u32) -> Result<Map> {
        let mut map = Map::default();
        let mut table = vec![0; self.geometry.region_slots as usize * ENTRY_BYTES];
        for region in 0..regions {
            self.medium.read(self.geometry.table(region), &mut table)?;
            for (index, bytes) in table.as_chunks::<ENTRY_BYTES>().0.iter().enumerate() {
                let page = PageNo(region * self.geometry.region_slots + index as u32);
                match Entry::decode(page, *bytes) {
                    Some(Entry::Absent) => {}
                    Some(Entry::Single { slot, checksum }) => map.set(page, Place::Single { slot, checksum }),
                    Some(Entry::Pair { first }) => {
                        let found = self.pair(page, first)?;
                        self.places.insert(page, found);
                    }
                    None => return Err(self.damaged(format!("the table entry of {page} is not one that was written"))),
                }
            }
        }
        Ok(map)
    }

    fn pair(&self, page: PageNo, first: Slot) -> Result<Found> {
        if first >= self.slots {
            return Err(self.damaged(format!("{page} lies in slot {first}, and there are {}", self.slots)));
        }
        let mut line = [0; LINE_BYTES];
        self.medium.read(self.geometry.line(first, 0), &mut line)?;
        Ok(match PairEntry::decode(&line) {
            Some(PairEntry { second, committed, checksum }) => {
                Found::Known(Place::Pair { slots: [first, second], committed, checksum })
            }
            None => Found::Torn(first),
        })
    }

    /// Applies an item of the journal. Returns the page.
    fn replay(&mut self, item: Item) -> Result<PageNo> {
        let (page, found) = match item {
            Item::Settle { page, slot, checksum } => (page, Found::Known(Place::Single { slot, checksum })),
            Item::Free { page } => (page, Found::Known(Place::Absent)),
            Item::Pair { page, slots } => (page, Found::Fixed(slots)),
            Item::Flip { page, committed, checksum } => {
                let found = match self.places.get(&page) {
                    Some(Found::Fixed(slots) | Found::Known(Place::Pair { slots, .. })) => {
                        Found::Known(Place::Pair { slots: *slots, committed, checksum })
                    }
                    // The tables are newer already, and a later item will be, too.
                    Some(Found::Torn(first)) => Found::Torn(*first),
                    Some(Found::Known(place)) => Found::Known(*place),
                    None => return Ok(page),
                };
                (page, found)
            }
        };
        self.found(page, found)
    }

    /// Records the state of a page after a commit. Returns the page.
    fn found(&mut self, page: PageNo, found: Found) -> Result<PageNo> {
        if page.0 >= self.slots {
            return Err(self.damaged(format!("a commit names {page}, and there is room for {} pages", self.slots)));
        }
        self.places.insert(page, found);
        Ok(page)
    }

    fn known(&self, page: PageNo, found: Found) -> Result<Place> {
        match found {
            Found::Known(place) => Ok(place),
            Found::Fixed([first, _]) | Found::Torn(first) => Err(self.damaged(format!(
                "line 0 of slot {first}, which says where the {} lines of {page} are, is not what was written",
                SLOT_LINES - 1
            ))),
        }
    }

    /// Returns the slots that neither a page nor the journal owns, the lowest last.
    fn free_slots(&self, map: &Map, lists: &[Slot]) -> Result<Vec<Slot>> {
        let mut owners = vec![None; self.slots as usize];
        for (page, place) in map.pages() {
            for slot in slots_of(place) {
                let Some(owner) = owners.get_mut(slot as usize) else {
                    return Err(self.damaged(format!("{page} lies in slot {slot}, and there are {}", self.slots)));
                };
                if let Some(other) = owner.replace(page)
                    && !skips("lines.open.owners")
                {
                    return Err(self.damaged(format!("{page} and {other} both lie in slot {slot}")));
                }
            }
        }
        let listed: HashSet<Slot> = lists.iter().copied().filter(|_| !skips("lines.list.hold")).collect();
        Ok((0..self.slots).rev().filter(|slot| owners[*slot as usize].is_none() && !listed.contains(slot)).collect())
    }
}
