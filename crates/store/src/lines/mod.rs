//! Optimized shadow paging on media of lines: pages change atomically, and a commit costs only the
//! lines that change.
//!
//! A page that is being written lies in a *pair* of slots. For each of its 63 lines, a bit of the
//! **committed bitmap** selects the slot that has it. A bit of the **updated bitmap** is set if the
//! open transaction has written the line in the other slot. A line is read from slot
//! `committed ^ updated`.
//!
//! Commit:
//! 1. Write each line that differs into the slot that does not have it, and flush it. No store ever
//!    targets a line that a durable committed bitmap selects: until step 4 the old version is
//!    whole.
//! 2. Fence: the lines are durable.
//! 3. Write a record into the journal with the new committed bitmaps and checksums of up to three
//!    pages, one line, and flush it.
//! 4. Fence: committed. In the steady state a commit flushes each updated line, and one more.
//! 5. Only now are the slots that the commit releases free.
//!
//! ([`CommitBy::SuperPage`] replaces steps 3 and 4 by [a super page](superpage), for comparison.)
//!
//! A page that is not in a pair yet gets a free slot as its shadow, which a record states. Pairs
//! cost space. If there are more than [`Options::shadow_slots`], those that go out of use are
//! **consolidated**. The lines of the slot that has fewer are copied into the other, as in step 1,
//! and a record states that the page lies there alone. Victims are consolidated by commits, between
//! the same fences, or by `maintain`.
//!
//! **Checkpoints** empty the journal: they bring the tables up to date in place. A crash during a
//! checkpoint leaves the journal, which has everything that a half-written table lacks. Recovery
//! reads the tables, replays the journal in memory, and writes nothing. The first commit afterwards
//! begins with a checkpoint and a new epoch, before which the old journal is valid. Free slots are
//! the slots without an owner. They are not stored, so they cannot be damaged.

mod check;
mod checksum;
mod clock;
mod journal;
mod layout;
mod list;
mod recovery;
mod shadow;
mod superpage;
mod table;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
mod writer;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use crate::backend::{Backend, BackendStats, Batch, Image, Lines, PageNo};
use crate::medium::{Domain, Medium};
use crate::mutant::skips;
use crate::options::CommitBy;
use crate::superblock::random_uuid;
use crate::{Error, Result};

use checksum::Checksum;
use layout::Geometry;
use table::Place;
use writer::Writer;

/// Options of a store on a medium of lines.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// The commit mechanism of a new store.
    pub(crate) commit_by: CommitBy,
    /// The number of records of the journal, of 64 bytes, of a new store.
    pub(crate) ring_records: u32,
    /// The number of slots by which a new store grows, of 4,096 bytes, a multiple of 8.
    pub(crate) region_slots: u32,
    /// The number of slots that are reserved for commits that free space.
    pub(crate) reserve_slots: u32,
    /// The maximum number of pages in pairs of slots. More take space, fewer are consolidated more
    /// often. 0 writes whole pages.
    pub(crate) shadow_slots: u32,
    /// The unique identifier of a new store.
    pub(crate) uuid: [u8; 16],
}

impl Default for Options {
    fn default() -> Self {
        Self {
            commit_by: CommitBy::Journal,
            ring_records: 16_384,
            region_slots: 512,
            reserve_slots: 32,
            shadow_slots: 16_384,
            uuid: random_uuid(),
        }
    }
}

#[cfg(test)]
impl Options {
    /// Returns the options of a store so small that rare events happen after a few commits.
    pub(crate) fn tiny() -> Self {
        Self {
            commit_by: CommitBy::Journal,
            ring_records: 12,
            region_slots: 8,
            reserve_slots: 0,
            shadow_slots: 3,
            uuid: [7; 16],
        }
    }
}

/// Pages on a medium of lines.
///
/// Lock order: `writer` before `map`. A reader holds `map` while it reads the medium, so that a
/// slot is not rewritten while a reader reads a page in it.
pub(crate) struct LineBackend {
    medium: Arc<dyn Medium>,
    geometry: Geometry,
    map: RwLock<Map>,
    writer: Mutex<Writer>,
}

/// The location of each page, as of the last commit.
#[derive(Debug, Default)]
struct Map {
    places: Vec<Place>,
}

impl Map {
    fn place(&self, page: PageNo) -> Place {
        self.places.get(page.0 as usize).copied().unwrap_or(Place::Absent)
    }

    fn set(&mut self, page: PageNo, place: Place) {
        let index = page.0 as usize;
        if index >= self.places.len() {
            self.places.resize(index + 1, Place::Absent);
        }
        self.places[index] = place;
    }

    fn pages(&self) -> impl Iterator<Item = (PageNo, Place)> + '_ {
        let places = (0..).map(PageNo).zip(self.places.iter().copied());
        places.filter(|(_, place)| *place != Place::Absent)
    }
}

impl fmt::Debug for LineBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LineBackend")
            .field("medium", &self.medium)
            .field("geometry", &self.geometry)
            .finish_non_exhaustive()
    }
}

impl LineBackend {
    /// Creates an empty store on `medium`. The contents of the medium are lost.
    ///
    /// # Errors
    /// [`Error::Full`] if the medium cannot hold one region, [`Error::Invalid`] if the options are
    /// out of range.
    pub(crate) fn create(medium: Arc<dyn Medium>, options: &Options) -> Result<Self> {
        recovery::create(&*medium, options)?;
        Self::open(medium, options)
    }

    /// Opens the store on `medium` as of the last commit. Writes nothing.
    ///
    /// # Errors
    /// [`Error::Unknown`] if there is none, [`Error::Corrupt`] if its tables or its journal are
    /// damaged.
    pub(crate) fn open(medium: Arc<dyn Medium>, options: &Options) -> Result<Self> {
        let recovery::Recovered { geometry, map, writer } = recovery::open(&medium, options)?;
        Ok(Self { medium, geometry, map: RwLock::new(map), writer: Mutex::new(writer) })
    }

    /// Runs an operation that writes, unless one has failed before. If it fails, the store writes
    /// nothing any more.
    fn write<T>(&self, run: impl FnOnce(&mut Writer, &RwLock<Map>) -> Result<T>) -> Result<T> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        writer.refuse_if_poisoned()?;
        let result = run(&mut writer, &self.map);
        if let Err(error) = &result
            && !matches!(error, Error::Full { .. } | Error::Invalid(_))
        {
            writer.poison(error);
        }
        result
    }

    fn verify(&self, page: PageNo, checksum: Checksum, image: &Image) -> Result<()> {
        if skips("lines.page.checksum") || Checksum::of(page, image) == checksum {
            return Ok(());
        }
        Err(Error::corrupt(self.medium.name(), format!("the bytes of {page} do not have its checksum")))
    }

    fn read_place(&self, page: PageNo, place: Place, into: &mut Image) -> Result<()> {
        let (slots, committed, checksum) = match place {
            Place::Absent => {
                return Err(Error::corrupt(self.medium.name(), format!("{page} is referred to, and is not there")));
            }
            Place::Single { slot, checksum } => ([slot; 2], 0, checksum),
            Place::Pair { slots, committed, checksum } => (slots, committed, checksum),
        };
        shadow::read(&*self.medium, self.geometry, slots, committed, Lines::ALL.0, into)?;
        self.verify(page, checksum, into)
    }
}

impl Backend for LineBackend {
    fn name(&self) -> &str {
        self.medium.name()
    }

    fn domain(&self) -> Domain {
        self.medium.domain()
    }

    fn pages(&self) -> Vec<PageNo> {
        self.map.read().unwrap_or_else(PoisonError::into_inner).pages().map(|(page, _)| page).collect()
    }

    fn read(&self, page: PageNo, into: &mut Image) -> Result<()> {
        let map = self.map.read().unwrap_or_else(PoisonError::into_inner);
        self.read_place(page, map.place(page), into)
    }

    fn commit(&self, batch: &Batch) -> Result<u64> {
        self.write(|writer, map| {
            let before = writer.stats.written_bytes;
            writer.commit(map, batch)?;
            // A file without a name is lost when the process ends.
            self.medium.named().map_or(Ok(()), |named| named.check(0))?;
            Ok(writer.stats.written_bytes - before)
        })
    }

    fn spill(&self, page: PageNo, image: &Image, lines: Lines) -> Result<()> {
        self.write(|writer, map| writer.spill(map, page, image, lines))
    }

    fn read_spilled(&self, page: PageNo, into: &mut Image) -> Result<()> {
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let staged = writer.spilled(page)?;
        shadow::read(&*self.medium, self.geometry, staged.slots, staged.which, Lines::ALL.0, into)?;
        self.verify(page, staged.checksum, into)
    }

    fn discard_spilled(&self) {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner).discard_spilled();
    }

    fn checkpoint(&self) -> Result<()> {
        self.write(|writer, map| writer.checkpoint(map))
    }

    fn maintain(&self) -> Result<bool> {
        self.write(|writer, map| writer.maintain(map))
    }

    fn close(&self) -> Result<()> {
        self.write(|writer, map| writer.close(map))
    }

    fn check(&self, found: &mut dyn FnMut(String)) -> Result<()> {
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let map = self.map.read().unwrap_or_else(PoisonError::into_inner);
        let mut image = Image::zeroed();
        for (page, place) in map.pages() {
            match self.read_place(page, place, &mut image) {
                Ok(()) => {}
                Err(Error::Corrupt { reason, .. }) => found(reason),
                Err(error) => return Err(error),
            }
        }
        writer.check(&map, found)
    }

    fn stats(&self) -> BackendStats {
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let pages = self.map.read().unwrap_or_else(PoisonError::into_inner).pages().count();
        BackendStats { pages: pages as u64, ..writer.stats() }
    }
}
