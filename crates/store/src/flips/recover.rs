//! Creation and opening of a store: the newest superblock, the tables it names, the chain as far as
//! it is whole, and a checkpoint.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use super::commit::set;
use super::slot::{Entry, FANOUT, Header, Kind, Slot, Spill};
use super::space::{SlotSet, Space};
use super::table::Tables;
use super::{Body, FIRST_SLOT, FlipBackend, FlipOptions, OPEN_END, Writer, pages_limit, position};
use crate::backend::{BackendStats, Image, PageNo, SLOT_BYTES};
use crate::medium::Medium;
use crate::mutant::skips;
use crate::options::Access;
use crate::superblock::{BODY_BYTES, Layout, MOST_COUNTED, SUPERBLOCKS_END, Superblock, random_uuid};
use crate::{Error, Result};

/// The number of free slots behind the end of the chain that are searched for later commits.
const LOOK_AROUND_SLOTS: usize = 64;

/// A commit, as far as its parts were read.
#[derive(Default)]
struct Commit {
    /// The slots to hold, each with the page in it.
    links: Vec<(u32, Option<PageNo>)>,
    entries: Vec<(PageNo, Entry)>,
    spills: Vec<Spill>,
}

impl FlipBackend {
    /// Creates a store on an empty medium, with fewer slots than `options` has if they do not fit.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the medium is not empty; errors of the medium.
    pub(crate) fn create(medium: Arc<dyn Medium>, options: FlipOptions) -> Result<Self> {
        if !medium.is_empty() {
            return Err(Error::Invalid(format!("{} is not empty; no store is made over what it has", medium.name())));
        }
        const LEAST: u32 = FIRST_SLOT + 2;
        let mut slots = options.initial_slots.max(LEAST);
        while let Err(error) = medium.grow(position(slots)) {
            match error {
                Error::Full { .. } if slots > LEAST => slots = (slots / 2).max(LEAST),
                error => return Err(error),
            }
        }
        let uuid = options.uuid.unwrap_or_else(random_uuid);
        let superblock = Superblock { layout: Layout::Flips, uuid, sequence: 0, body: [0; BODY_BYTES] };
        let mut backend = Self::with(medium, options, superblock, slots);
        backend.begin_epoch()?;
        Ok(backend)
    }

    /// Opens a store.
    ///
    /// # Errors
    /// [`Error::Unknown`] if it is not one, or not of this layout; [`Error::Corrupt`] with the
    /// damaged part.
    pub(crate) fn open(medium: Arc<dyn Medium>, options: FlipOptions, access: Access) -> Result<Self> {
        let mut superblock = Superblock::read(&*medium)?;
        let mut body = Body::decode(&superblock.body);
        let is_closed = body.is_clean() && (Superblock::copies_agree(&*medium)? || skips("flips.open.copies-agree"));
        if access == Access::ReadWrite && !is_closed && !skips("flips.open.settle") {
            medium.settle()?;
            superblock = Superblock::read(&*medium)?;
            body = Body::decode(&superblock.body);
        }
        if superblock.layout != Layout::Flips {
            let reason = "it has lines, which is for memory, not for files".into();
            return Err(Error::Unknown { object: medium.name().into(), reason });
        }
        if body.epoch >= MOST_COUNTED || body.commit >= MOST_COUNTED {
            let reason = format!("its superblock names commit {} of epoch {}", body.commit, body.epoch);
            return Err(Error::corrupt(medium.name(), reason));
        }
        let slots = u32::try_from(medium.len() / SLOT_BYTES as u64).unwrap_or(u32::MAX);
        let mut backend = Self::with(medium, options, superblock, slots);
        let mut writer = backend.writer.lock().unwrap_or_else(PoisonError::into_inner);
        (writer.epoch, writer.commit) = (body.epoch, body.commit);
        backend.load_tables(&mut writer, body)?;
        if !body.is_clean() {
            backend.follow_chain(&mut writer, body)?;
        }
        backend.find_free(&mut writer)?;
        if body.end == OPEN_END {
            backend.verify_end(&writer)?;
        }
        if access == Access::ReadWrite && body.end == OPEN_END && !skips("flips.open.seal") {
            let end = writer.commit;
            backend.write_superblock(&mut writer, Body { end, ..body })?;
        }
        drop(writer);
        if access == Access::ReadWrite {
            backend.begin_epoch()?;
        }
        Ok(backend)
    }

    /// Makes the recovered state the base of further commits, durably, and allows writing.
    fn begin_epoch(&mut self) -> Result<()> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        self.write_checkpoint(&mut writer, super::checkpoint::Then::GoOn)?;
        drop(writer);
        self.access = Access::ReadWrite;
        Ok(())
    }

    /// Creates the backend without contents. Nothing is written to it in this state.
    fn with(medium: Arc<dyn Medium>, options: FlipOptions, superblock: Superblock, slots: u32) -> Self {
        let seed = crc32c::crc32c(&superblock.uuid);
        let writer = Writer {
            superblock,
            epoch: 0,
            commit: 0,
            next: 0,
            after: 0,
            space: Space::new(FIRST_SLOT, slots),
            tables: Tables::default(),
            chain: Vec::new(),
            chained: SlotSet::default(),
            last: None,
            spilled: BTreeMap::new(),
            is_closed: false,
            stats: BackendStats::default(),
        };
        Self {
            medium,
            options,
            access: Access::ReadOnly,
            seed,
            pages: RwLock::default(),
            writer: Mutex::new(writer),
            failure: OnceLock::new(),
        }
    }

    fn corrupt(&self, reason: String) -> Error {
        Error::corrupt(self.medium.name(), reason)
    }

    fn verify_slot(&self, writer: &Writer, slot: u32, what: &str) -> Result<()> {
        if (FIRST_SLOT..writer.space.slots()).contains(&slot) {
            return Ok(());
        }
        let slots = writer.space.slots();
        Err(self
            .corrupt(format!("{what} is in slot {slot}, and there are {slots}: the file was cut off, or is damaged")))
    }

    /// Reads the tables, from the root down.
    fn load_tables(&self, writer: &mut Writer, body: Body) -> Result<()> {
        if u64::from(body.pages) > pages_limit(writer.space.slots()) {
            return Err(self.corrupt(format!("its superblock says that it has {} pages", body.pages)));
        }
        writer.tables = Tables::new(body.pages as usize);
        let mut pages = vec![Entry::NONE; body.pages as usize];
        let levels = writer.tables.levels().len();
        if levels > 0 {
            writer.tables.level_mut(levels - 1).at[0] = body.root;
        }
        for level in (0..levels).rev() {
            for index in 0..writer.tables.levels()[level].at.len() {
                let at = writer.tables.levels()[level].at[index];
                if at.is_none() {
                    continue;
                }
                let table = self.read_table(writer, level, index, at)?;
                let below = match level {
                    0 => &mut pages,
                    _ => &mut writer.tables.level_mut(level - 1).at,
                };
                for (entry, read) in below[index * FANOUT..].iter_mut().zip(table.entries()) {
                    *entry = read;
                }
            }
        }
        writer.tables.count_used(&pages);
        *self.pages.write().unwrap_or_else(PoisonError::into_inner) = pages;
        Ok(())
    }

    /// Reads one table and verifies its identity.
    pub(super) fn read_table(&self, writer: &Writer, level: usize, index: usize, at: Entry) -> Result<Slot> {
        let what = format!("table {index} of level {level}");
        self.verify_slot(writer, at.slot, &what)?;
        let mut slot = Slot::zeroed();
        self.medium.read(position(at.slot), &mut slot.0)?;
        match slot.header(self.seed, "flips.table.checksum") {
            Some((header, checksum))
                if (checksum == at.checksum || skips("flips.table.version"))
                    && header.kind == Kind::Table
                    && header.part as usize == level
                    && header.page as usize == index =>
            {
                Ok(slot)
            }
            Some((header, _)) => {
                let is = format!("a {:?} of level {}, number {}", header.kind, header.part, header.page);
                Err(self.corrupt(format!("{what}, in slot {}: {is} of commit {}", at.slot, header.commit)))
            }
            None => Err(self.corrupt(format!("{what}, in slot {}: its checksum is wrong", at.slot))),
        }
    }

    /// Applies all commits of the chain that are whole.
    fn follow_chain(&self, writer: &mut Writer, body: Body) -> Result<()> {
        (writer.next, writer.after) = (body.next, body.after);
        while writer.commit < body.end {
            self.verify_slot(writer, writer.next, "the next commit")?;
            self.verify_slot(writer, writer.after, "the commit after the next")?;
            let Some((commit, next, after)) = self.read_commit(writer)? else {
                return if body.end == OPEN_END { Ok(()) } else { Err(self.lost(writer, body.end)) };
            };
            let mut pages = self.pages.write().unwrap_or_else(PoisonError::into_inner);
            for (page, entry) in commit.entries {
                set(&mut pages, &mut writer.tables, page, entry);
            }
            for (slot, page) in commit.links {
                writer.hold(slot, page);
            }
            (writer.next, writer.after) = (next, after);
            writer.commit += 1;
        }
        Ok(())
    }

    /// Fails if the commit at `writer.next`, which is not whole, cannot be one that a crash has
    /// torn. It was acknowledged if another commit was begun after it.
    fn verify_end(&self, writer: &Writer) -> Result<()> {
        let around = writer.space.following(writer.next, LOOK_AROUND_SLOTS);
        let ahead = [writer.after].into_iter().filter(|_| !skips("flips.recover.look-ahead"));
        for slot in ahead.chain(around.into_iter().filter(|_| !skips("flips.recover.look-around"))) {
            if let Some((_, header)) = self.read_link(writer, slot)?
                && header.commit > writer.commit + 1
            {
                return Err(self.lost(writer, header.commit));
            }
        }
        Ok(())
    }

    fn lost(&self, writer: &Writer, later: u64) -> Error {
        self.corrupt(format!(
            "commit {}, from slot {} on, is not whole, although commit {later} was made",
            writer.commit + 1,
            writer.next,
        ))
    }

    /// Reads the commit that begins at `writer.next`, and the slots where the next two begin.
    /// Returns `None` if it is not whole.
    fn read_commit(&self, writer: &Writer) -> Result<Option<(Commit, u32, u32)>> {
        let mut commit = Commit::default();
        let mut at = writer.next;
        for part in 0.. {
            // Each link has a slot of its own.
            if writer.chain.len() + commit.links.len() > writer.space.slots() as usize {
                return Err(self.corrupt(format!("the chain of its commits goes in a circle, by way of slot {at}")));
            }
            let Some((slot, header)) = self.read_link(writer, at)? else { return Ok(None) };
            if !skips("flips.recover.sequence") && (header.commit != writer.commit + 1 || header.part != part) {
                return Err(self.corrupt(format!(
                    "slot {at} has part {} of commit {}, where part {part} of commit {} should be",
                    header.part,
                    header.commit,
                    writer.commit + 1
                )));
            }
            self.add_part(writer, &mut commit, at, &slot, &header)?;
            if header.is_last {
                let is_whole = self.spills_are_whole(&commit.spills)?;
                return Ok(is_whole.then_some((commit, header.next, header.after)));
            }
            at = header.next;
            self.verify_slot(writer, at, &format!("part {} of commit {}", part + 1, writer.commit + 1))?;
        }
        Ok(None)
    }

    /// Reads a link of the present epoch. Returns `None` if there is none in that slot.
    fn read_link(&self, writer: &Writer, at: u32) -> Result<Option<(Slot, Header)>> {
        let mut slot = Slot::zeroed();
        self.medium.read(position(at), &mut slot.0)?;
        let header = slot.header(self.seed, "flips.recover.checksum").map(|(header, _)| header);
        Ok(header
            .filter(|header| header.is_link() && (header.epoch == writer.epoch || skips("flips.recover.epoch")))
            .map(|header| (slot, header)))
    }

    /// Adds the contents of one part.
    fn add_part(&self, writer: &Writer, commit: &mut Commit, at: u32, slot: &Slot, header: &Header) -> Result<()> {
        let object = |what: &str| self.corrupt(format!("slot {at}, a part of commit {}, {what}", header.commit));
        let limit = pages_limit(writer.space.slots());
        let mut page_of_link = None;
        match header.kind {
            Kind::Page => {
                let page = PageNo(header.page);
                page_of_link = Some(page);
                commit.entries.push((page, Entry { slot: at, checksum: slot.checksum() }));
            }
            Kind::Frees => {
                let frees = slot.listed_frees(header.count).ok_or_else(|| object("lists more than it can hold"))?;
                commit.entries.extend(frees.map(|page| (page, Entry::NONE)));
            }
            Kind::Spills => {
                let spills = slot.listed_spills(header.count).ok_or_else(|| object("lists more than it can hold"))?;
                commit.spills.extend(spills);
            }
            Kind::Spilled | Kind::Table => return Err(object("is no link")),
        }
        commit.entries.extend(header.frees().map(|page| (page, Entry::NONE)));
        commit.links.push((at, page_of_link));
        if header.is_last {
            for spill in &commit.spills {
                self.verify_slot(writer, spill.at.slot, &format!("{}, spilled,", spill.page))?;
                commit.entries.push((spill.page, spill.at));
                commit.links.push((spill.at.slot, Some(spill.page)));
            }
        }
        match commit.entries.iter().find(|(page, _)| u64::from(page.0) >= limit) {
            Some((page, _)) => Err(object(&format!("is about {page}, which cannot be"))),
            None => Ok(()),
        }
    }

    /// Returns true if all spilled pages have reached the medium.
    fn spills_are_whole(&self, spills: &[Spill]) -> Result<bool> {
        let mut image = Image::zeroed();
        for spill in spills {
            match self.read_at(spill.page, spill.at, &mut image) {
                Ok(()) => {}
                Err(Error::Corrupt { .. }) if skips("flips.recover.spilled") => {}
                Err(Error::Corrupt { .. }) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Finds the free slots: those without a page, a table or a link. A slot with two owners is
    /// damage.
    fn find_free(&self, writer: &mut Writer) -> Result<()> {
        let pages = self.pages.read().unwrap_or_else(PoisonError::into_inner);
        for (page, entry) in (0..).map(PageNo).zip(pages.iter()).filter(|(_, entry)| !entry.is_none()) {
            self.verify_slot(writer, entry.slot, &page.to_string())?;
            if !writer.space.take_this(entry.slot) {
                return Err(self.corrupt(format!("{page} is in slot {}, which is another's", entry.slot)));
            }
        }
        let tables: Vec<Entry> =
            writer.tables.levels().iter().flat_map(|level| &level.at).filter(|at| !at.is_none()).copied().collect();
        for at in tables {
            if !writer.space.take_this(at.slot) {
                return Err(self.corrupt(format!("a table is in slot {}, which is another's", at.slot)));
            }
        }
        for (slot, _) in &writer.chain {
            writer.space.take_this(*slot);
        }
        for slot in [writer.next, writer.after].into_iter().filter(|&slot| slot != 0) {
            if !writer.space.take_this(slot) {
                return Err(self.corrupt(format!("slot {slot}, where a commit is to begin, is another's")));
            }
        }
        Ok(())
    }
}

const _: () = assert!(SUPERBLOCKS_END == FIRST_SLOT as u64 * SLOT_BYTES as u64);
