//! Who keeps groups within a share of the memory: a worker while it takes rows in, and a [`Merger`] while it takes in
//! groups that were spilled.
//!
//! Room is made before rows are taken in, for as many new groups as there are rows. When it is refused, all groups go
//! into a file ([`Spill`]), and the table, emptied, is filled again. In the end there are several states of a group, all
//! in the same partition: partitions are put together one by one, each as if it were the whole, and its groups are part
//! of the answer. That takes as many bytes as the largest partition, and if they are refused the partition is spilled
//! itself.
//!
//! Groups of equal late texts ([`super::unify`]) meet in a partition: when all of it is there, they are made one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use super::aggregate::{Groups, Plan};
use super::keys::KeyScratch;
use super::output::ResultColumn;
use super::page::{PageGroups, PageKind};
use super::spill::{LEVELS, Means, PARTITIONS, Spill, SpillCounts};
use super::vector::Vector;
use crate::budget::{Budget, Holder, Room};
use crate::{Error, Result};

/// Groups that leave at a time, when they have been spilled.
pub(crate) const SLICE_ROWS: usize = 2048;

/// Keeps groups.
#[derive(Debug)]
pub(crate) struct Grouper {
    /// Once there is room for any.
    groups: Option<Groups>,
    pub(super) room: Room,
    pub(super) spill: Option<Spill>,
    /// Of the file, if there is to be one.
    level: u32,
    pub(super) counts: Arc<SpillCounts>,
    budget: Budget,
    cancelled: Arc<AtomicBool>,
}

impl Grouper {
    /// Without groups. It stops soon after `cancelled` was set.
    pub fn new(budget: &Budget, counts: &Arc<SpillCounts>, cancelled: &Arc<AtomicBool>, level: u32) -> Self {
        Self {
            groups: None,
            room: budget.room("groups", Holder::Spills),
            spill: None,
            level,
            counts: Arc::clone(counts),
            budget: budget.clone(),
            cancelled: Arc::clone(cancelled),
        }
    }

    /// The groups in memory.
    pub fn groups(&self) -> Option<&Groups> {
        self.groups.as_ref()
    }

    /// The same, to be changed in place.
    pub fn groups_mut(&mut self) -> Option<&mut Groups> {
        self.groups.as_mut()
    }

    /// The same, whose room goes with this.
    pub fn take_groups(&mut self) -> Option<Groups> {
        self.groups.take()
    }

    /// Bytes they take.
    pub fn bytes(&self) -> usize {
        self.groups.as_ref().map_or(0, Groups::bytes)
    }

    /// Takes in `n` rows. There can be so many `rows` of all groups, where that is known.
    pub fn update(
        &mut self,
        plan: &Plan,
        rows: Option<u64>,
        vectors: &mut [Vector],
        n: usize,
        scratch: &mut KeyScratch,
    ) -> Result<()> {
        if self.groups.is_none() {
            self.groups = Some(plan.groups_within(rows, &mut self.room)?);
        }
        // How much of the texts is new, nobody knows before they are read: they are counted right after.
        if let Some(groups) = &mut self.groups {
            groups.intern(plan, vectors, n)?;
            groups.look_at(plan, vectors, n);
        }
        self.make_room(plan, n)?;
        if let Some(groups) = &mut self.groups {
            groups.update(plan, vectors, n, scratch);
        }
        Ok(())
    }

    /// Room for `n` groups or values more: if it has to be, that of those that are here.
    fn make_room(&mut self, plan: &Plan, n: usize) -> Result<()> {
        let Some(groups) = &self.groups else { return Ok(()) };
        // Those that are put together leave in slices.
        let slice_bytes = if self.level > 0 { SLICE_ROWS * plan.result_bytes() } else { 0 };
        let beside = plan.scratch_bytes() + slice_bytes;
        let needed = |groups: &Groups| groups.growth_of_rows(plan, n).bytes() + beside;
        match self.room.hold(needed(groups)) {
            // A group cannot be parted.
            Err(Error::Memory { .. }) if groups.len() > 1 => {}
            outcome => return outcome,
        }
        if !self.put_away(plan)? {
            return Err(Error::Memory {
                what: "groups".into(),
                needed: needed(groups_of(&self.groups)?),
                available: 0,
            });
        }
        self.room.hold(needed(groups_of(&self.groups)?))
    }

    /// Spills all groups; whether there is a place for them, and they can be parted.
    pub fn put_away(&mut self, plan: &Plan) -> Result<bool> {
        let Some(groups) = &mut self.groups else { return Ok(true) };
        if !plan.can_spill() {
            return Ok(false);
        }
        if self.spill.is_none() && self.level < LEVELS {
            self.spill = Spill::new(&self.budget, self.level)?;
        }
        let Some(spill) = &mut self.spill else { return Ok(false) };
        let means = Means { budget: &self.budget, counts: &self.counts, cancelled: &self.cancelled };
        spill.write(groups, plan, &means)?;
        groups.clear(plan);
        Ok(true)
    }

    /// Takes in another's groups, if there is room for them all.
    ///
    /// # Errors
    /// [`Error::Memory`] if there is none: nothing has been taken in.
    pub fn take_in(&mut self, other: &Self, plan: &Plan, rows: Option<u64>) -> Result<()> {
        let Some(others) = &other.groups else { return Ok(()) };
        if self.groups.is_none() {
            self.groups = Some(plan.groups_within(rows, &mut self.room)?);
        }
        let Some(groups) = &mut self.groups else { return Ok(()) };
        groups.leave_order();
        self.room.hold(groups.growth_of_groups(plan, others).bytes())?;
        groups.merge_all(others, plan)
    }

    /// Makes all groups one that should be.
    ///
    /// # Errors
    /// [`Error::Memory`] if there is no room for that: all groups are there still.
    pub fn unify(&mut self, plan: &Plan, rows: Option<u64>, threads: usize) -> Result<()> {
        match &mut self.groups {
            Some(groups) => groups.unify(plan, rows, &mut self.room, threads),
            None => Ok(()),
        }
    }

    /// Takes in a page of groups or values.
    fn take_page(&mut self, plan: &Plan, page: PageOf<'_>, rows: Option<u64>) -> Result<()> {
        if self.cancelled.load(Relaxed) {
            return Err(Error::Cancelled);
        }
        if self.groups.is_none() {
            self.groups = Some(plan.hashed_groups(rows));
        }
        let (mut reader, kind, n) = page.spill.read(page.at, page.buffer, self.budget.0.ledger())?;
        self.make_room(plan, n)?;
        let Some(groups) = &mut self.groups else { return Ok(()) };
        let places = groups.places_of_page(plan, n, &mut reader)?;
        match kind {
            PageKind::Groups => {
                page.groups.read(plan.functions(), n, &mut reader)?;
                groups.merge_page(plan, page.groups, &places);
            }
            PageKind::Values(function) => groups.take_values(function, n, &places, &mut reader)?,
        }
        reader.finish()
    }
}

fn groups_of(groups: &Option<Groups>) -> Result<&Groups> {
    groups.as_ref().ok_or_else(|| Error::Invalid("groups that are not there".into()))
}

/// A page to be read, and where to.
struct PageOf<'a> {
    spill: &'a Spill,
    at: super::spill::Extent,
    buffer: &'a mut Vec<u8>,
    groups: &'a mut PageGroups,
}

/// The groups of an aggregate that did not fit in memory, in files.
#[derive(Debug)]
pub struct Spilled {
    plan: Plan,
    rows: Option<u64>,
    budget: Budget,
    spills: Arc<Vec<Spill>>,
    /// Partitions that have groups, the largest first: if one cannot be put together, it is that, before any other is
    /// part of an answer.
    order: Vec<usize>,
    next: AtomicUsize,
    counts: Arc<SpillCounts>,
}

impl Spilled {
    pub(super) fn new(plan: &Plan, rows: Option<u64>, budget: &Budget, groupers: Vec<Grouper>) -> Self {
        let counts = groupers.first().map_or_else(Arc::default, |grouper| Arc::clone(&grouper.counts));
        let spills: Vec<Spill> = groupers.into_iter().filter_map(|grouper| grouper.spill).collect();
        let size = |partition: usize| entries(&spills, partition).0 + entries(&spills, partition).1;
        let mut order: Vec<usize> = (0..PARTITIONS).filter(|partition| size(*partition) > 0).collect();
        order.sort_by_key(|partition| std::cmp::Reverse(size(*partition)));
        let (plan, budget) = (plan.clone(), budget.clone());
        Self { plan, rows, budget, spills: Arc::new(spills), order, next: AtomicUsize::new(0), counts }
    }

    /// Whether there are no groups.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// What was spilled so far, and will be, where partitions are spilled again.
    pub fn counts(&self) -> &Arc<SpillCounts> {
        &self.counts
    }

    /// Partitions that have groups.
    pub fn partitions(&self) -> usize {
        self.order.len()
    }

    /// How many mergers to run side by side: so many that their partitions fit in memory together, and no more than
    /// `threads`.
    pub fn mergers(&self, threads: usize) -> usize {
        let Some(largest) = self.order.first() else { return 1 };
        let (groups, values) = entries(&self.spills, *largest);
        let needed = self.plan.hashed_groups(self.rows).growth(&self.plan, groups as usize, values as usize);
        let needed = needed.bytes() + self.plan.scratch_bytes();
        (self.budget.0.limit() / needed.max(1)).clamp(1, threads.clamp(1, self.order.len()))
    }

    /// Puts partitions together that no other merger has taken. It stops soon after `cancelled` was set.
    pub fn merger(self: &Arc<Self>, cancelled: &Arc<AtomicBool>) -> Merger {
        Merger {
            grouper: Grouper::new(&self.budget, &self.counts, cancelled, 1),
            spilled: Arc::clone(self),
            left: Vec::new(),
            next_place: 0,
            buffer: Vec::new(),
            page: self.plan.page(self.rows),
        }
    }
}

/// Entries of groups and of values that a partition has.
fn entries(spills: &[Spill], partition: usize) -> (u64, u64) {
    let parts = spills.iter().map(|spill| spill.partition(partition));
    parts.fold((0, 0), |(groups, values), part| (groups + part.groups, values + part.values))
}

/// Makes one part after the other of the answer, of groups that were spilled.
#[derive(Debug)]
pub struct Merger {
    spilled: Arc<Spilled>,
    /// The partition whose groups are leaving.
    grouper: Grouper,
    /// Of these, so many have left.
    next_place: usize,
    /// Partitions of partitions, in files of its own, with their level.
    left: Vec<(Arc<Vec<Spill>>, usize, u32)>,
    buffer: Vec<u8>,
    page: PageGroups,
}

impl Merger {
    /// Some rows of the answer; `None` if there are no more.
    ///
    /// # Errors
    /// Those of the files; [`Error::Memory`] for what cannot be parted further; [`Error::Cancelled`].
    #[allow(clippy::should_implement_trait, reason = "an iterator of results would go on after an error")]
    pub fn next(&mut self) -> Result<Option<Vec<ResultColumn>>> {
        loop {
            let plan = &self.spilled.plan;
            if let Some(groups) = self.grouper.groups.as_mut().filter(|groups| groups.len() > 0) {
                let places = self.next_place..groups.len().min(self.next_place + SLICE_ROWS);
                if !places.is_empty() {
                    self.next_place = places.end;
                    return Ok(Some(groups.finish(plan, &places.collect::<Vec<_>>())));
                }
                groups.clear(plan);
            }
            self.next_place = 0;
            let (spills, partition, level) = match self.left.pop() {
                Some(part) => part,
                None => match self.spilled.order.get(self.spilled.next.fetch_add(1, Relaxed)) {
                    Some(partition) => (Arc::clone(&self.spilled.spills), *partition, 0),
                    None => return Ok(None),
                },
            };
            self.put_together(&spills, partition, level)?;
        }
    }

    /// Takes in all groups of a partition; parts it if they do not fit.
    fn put_together(&mut self, spills: &[Spill], partition: usize, level: u32) -> Result<()> {
        let Spilled { plan, rows, .. } = &*self.spilled;
        self.grouper.level = level + 1;
        for spill in spills {
            for at in spill.partition(partition).pages.iter().copied() {
                let page = PageOf { spill, at, buffer: &mut self.buffer, groups: &mut self.page };
                self.grouper.take_page(plan, page, *rows)?;
            }
        }
        if self.grouper.spill.is_none() {
            match self.grouper.unify(plan, *rows, 1) {
                // Those that may be one are in one of its partitions again.
                Err(e @ Error::Memory { .. }) => {
                    if !self.grouper.put_away(plan)? {
                        return Err(e);
                    }
                }
                outcome => outcome?,
            }
        }
        if self.grouper.spill.is_some() {
            self.grouper.put_away(plan)?;
            let parts = Arc::new(self.grouper.spill.take().into_iter().collect::<Vec<_>>());
            let is_there = |partition: &usize| entries(&parts, *partition) != (0, 0);
            let all = (0..PARTITIONS).filter(is_there);
            self.left.extend(all.map(|partition| (Arc::clone(&parts), partition, level + 1)));
        }
        Ok(())
    }
}
