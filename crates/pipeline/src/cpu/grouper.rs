//! A grouper keeps groups within a share of the memory. A worker uses it while it adds rows, and a
//! [`Merger`] while it merges spilled groups.
//!
//! Memory is reserved before rows are added, for as many new groups as there are rows. If the
//! reservation is refused, all groups are written to a file ([`Spill`]), and the emptied table is
//! filled again. Then a group has several states, all in the same partition. Partitions are merged
//! one by one, each like a whole aggregation, and their groups are parts of the answer. That takes
//! as many bytes as the largest partition. If they are refused, the partition itself is spilled.
//!
//! Groups of equal late strings ([`super::unify`]) are in one partition. They are merged once all
//! of the partition is in memory.

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

/// Number of spilled groups that are emitted at a time.
pub(crate) const SLICE_ROWS: usize = 2048;

/// Groups of one worker or merger, with their reservation.
#[derive(Debug)]
pub(crate) struct Grouper {
    /// `None` until there is room for them.
    groups: Option<Groups>,
    pub(super) room: Room,
    pub(super) spill: Option<Spill>,
    /// Level of the spill file, if one is needed.
    level: u32,
    pub(super) counts: Arc<SpillCounts>,
    budget: Budget,
    cancelled: Arc<AtomicBool>,
}

impl Grouper {
    /// Creates a grouper without groups. It stops soon after `cancelled` is set.
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

    /// Returns the groups in memory.
    pub fn groups(&self) -> Option<&Groups> {
        self.groups.as_ref()
    }

    /// Returns the groups in memory, mutably.
    pub fn groups_mut(&mut self) -> Option<&mut Groups> {
        self.groups.as_mut()
    }

    /// Takes the groups. Their reservation stays with the grouper.
    pub fn take_groups(&mut self) -> Option<Groups> {
        self.groups.take()
    }

    /// Returns the bytes that the groups take.
    pub fn bytes(&self) -> usize {
        self.groups.as_ref().map_or(0, Groups::bytes)
    }

    /// Adds `n` rows. `rows` is the upper bound on the rows of all groups, if it is known.
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
        // The number of new strings is unknown before they are read: they are counted right after.
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

    /// Reserves room for `n` more groups or values. Spills the present groups if the budget
    /// refuses.
    fn make_room(&mut self, plan: &Plan, n: usize) -> Result<()> {
        let Some(groups) = &self.groups else { return Ok(()) };
        // Merged groups are emitted in slices.
        let slice_bytes = if self.level > 0 { SLICE_ROWS * plan.result_bytes() } else { 0 };
        let beside = plan.scratch_bytes() + slice_bytes;
        let needed = |groups: &Groups| groups.growth_of_rows(plan, n).bytes() + beside;
        match self.room.hold(needed(groups)) {
            // A single group cannot be partitioned.
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

    /// Spills all groups. Returns false if there is no directory for files, or the groups cannot be
    /// partitioned.
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

    /// Merges another grouper's groups, if there is room for all of them.
    ///
    /// # Errors
    /// [`Error::Memory`] if there is none. No group has been merged then.
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

    /// Merges groups that are equal.
    ///
    /// # Errors
    /// [`Error::Memory`] if there is no room for that. All groups are then still present.
    pub fn unify(&mut self, plan: &Plan, rows: Option<u64>, threads: usize) -> Result<()> {
        match &mut self.groups {
            Some(groups) => groups.unify(plan, rows, &mut self.room, threads),
            None => Ok(()),
        }
    }

    /// Merges a page of groups or values.
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

/// A page to be read, and its buffers.
struct PageOf<'a> {
    spill: &'a Spill,
    at: super::spill::Extent,
    buffer: &'a mut Vec<u8>,
    groups: &'a mut PageGroups,
}

/// Groups of an aggregation that did not fit in memory, in files.
#[derive(Debug)]
pub struct Spilled {
    plan: Plan,
    rows: Option<u64>,
    budget: Budget,
    spills: Arc<Vec<Spill>>,
    /// Partitions that have groups, the largest first. If any partition cannot be merged, it is
    /// that one, and it fails before another partition is part of an answer.
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

    /// Returns true if there are no groups.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Returns the counter of spilled bytes. It grows if partitions are spilled again.
    pub fn counts(&self) -> &Arc<SpillCounts> {
        &self.counts
    }

    /// Returns the number of partitions that have groups.
    pub fn partitions(&self) -> usize {
        self.order.len()
    }

    /// Returns the number of mergers to run in parallel: as many as fit in memory with their
    /// partitions, and at most `threads`.
    pub fn mergers(&self, threads: usize) -> usize {
        let Some(largest) = self.order.first() else { return 1 };
        let (groups, values) = entries(&self.spills, *largest);
        let needed = self.plan.hashed_groups(self.rows).growth(&self.plan, groups as usize, values as usize);
        let needed = needed.bytes() + self.plan.scratch_bytes();
        (self.budget.0.limit() / needed.max(1)).clamp(1, threads.clamp(1, self.order.len()))
    }

    /// Creates a merger of partitions that no other merger has taken. It stops soon after
    /// `cancelled` is set.
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

/// Returns the number of entries of groups and of values in a partition.
fn entries(spills: &[Spill], partition: usize) -> (u64, u64) {
    let parts = spills.iter().map(|spill| spill.partition(partition));
    parts.fold((0, 0), |(groups, values), part| (groups + part.groups, values + part.values))
}

/// Merges spilled groups, and emits the answer part by part.
#[derive(Debug)]
pub struct Merger {
    spilled: Arc<Spilled>,
    /// Groups of the partition that is emitted.
    grouper: Grouper,
    /// Number of emitted groups of the partition.
    next_place: usize,
    /// Partitions of spilled partitions, in files of this merger, with their level.
    left: Vec<(Arc<Vec<Spill>>, usize, u32)>,
    buffer: Vec<u8>,
    page: PageGroups,
}

impl Merger {
    /// Returns the next rows of the answer; `None` if there are no more.
    ///
    /// # Errors
    /// Those of the files; [`Error::Memory`] for groups that cannot be partitioned further;
    /// [`Error::Cancelled`].
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

    /// Merges all groups of a partition. Partitions it further if they do not fit.
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
                // Groups that may be equal are again in one of its partitions.
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
