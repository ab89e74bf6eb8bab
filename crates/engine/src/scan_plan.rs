//! The plan of a scan: the blocks that it reads, and those that partitions and zone maps rule out.
//!
//! `scan` makes plans from filters. A version of a table keeps its last plans.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use onehop_io::RequestedPath;
use onehop_pipeline::Changes;
use onehop_segment::{BlockList, DeletedBlock, DeletedRows, Predicate, Segment};

use crate::Result;
use crate::fresh::FreshRows;

/// One block to read.
#[derive(Clone, Debug)]
pub(crate) struct BlockRef {
    pub segment: Arc<Segment>,
    pub block: usize,
    /// The place of the segment in the table.
    pub place: usize,
    /// Its rows that are deleted, if any are.
    pub deleted: Option<Arc<DeletedBlock>>,
}

impl BlockRef {
    /// Its rows that are not deleted.
    pub fn live_rows(&self) -> usize {
        let deleted = self.deleted.as_ref().map_or(0, |deleted| deleted.count());
        self.segment.block_rows(self.block).saturating_sub(deleted)
    }
}

/// A segment that is read, or a part of it.
#[derive(Clone, Debug)]
pub(crate) struct SegmentPart {
    /// The partition it is in; 0 where there are none.
    pub partition: u32,
    /// The place of the segment in the table.
    pub place: usize,
    /// Its rows that are deleted, if any of those that are read are.
    pub deleted: Option<Arc<DeletedRows>>,
}

/// What of a partition will be read, and what of it is got around.
#[derive(Clone, Debug, Default)]
pub(crate) struct PartitionPlan {
    pub name: String,
    pub blocks_considered: usize,
    /// Its blocks, if rows that match cannot be in it.
    pub skipped_by_partition: usize,
    /// Blocks whose zones rule them out.
    pub skipped_by_zone: usize,
}

impl PartitionPlan {
    pub fn blocks_left(&self) -> usize {
        self.blocks_considered - self.skipped_by_partition - self.skipped_by_zone
    }
}

/// Plans of scans of one version of a table: a query asks several times, and is often asked again itself.
#[derive(Debug, Default)]
pub(crate) struct ScanPlans(Mutex<VecDeque<(Predicate, ScanPlan)>>);

impl ScanPlans {
    /// Plans that are kept, the last ones.
    const KEPT: usize = 8;

    pub fn find(&self, predicate: &Predicate) -> Option<ScanPlan> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().find(|(of, _)| of == predicate).map(|(_, plan)| plan.clone())
    }

    pub fn keep(&self, predicate: Predicate, plan: &ScanPlan) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.truncate(Self::KEPT - 1);
        kept.push_front((predicate, plan.clone()));
    }
}

/// Who makes another version of a table begins with a copy of this one, whose scans are not its own.
impl Clone for ScanPlans {
    fn clone(&self) -> Self {
        Self::default()
    }
}

/// What a scan will read, and what it got around.
#[derive(Clone, Debug, Default)]
pub(crate) struct ScanPlan {
    pub blocks: Arc<BlockList>,
    /// Of each segment of these.
    pub parts: Arc<[SegmentPart]>,
    /// Rows of the blocks, deleted ones among them.
    pub block_rows: u64,
    /// Those of them that are deleted.
    pub deleted_rows: u64,
    pub blocks_considered: usize,
    /// Blocks in partitions that cannot match.
    pub skipped_by_partition: usize,
    /// Blocks whose zones rule them out.
    pub skipped_by_zone: usize,
    /// Rows that no segment holds yet. All of them are read: no zone map knows them.
    pub fresh: Arc<FreshRows>,
    /// Of each partition, if the table has any.
    pub partitions: Vec<PartitionPlan>,
    /// The condition that zones were tested with, for EXPLAIN.
    pub condition: Option<String>,
    /// The path that was asked for.
    pub requested: RequestedPath,
}

impl ScanPlan {
    /// A block that is read.
    ///
    /// # Panics
    /// If there are not so many, as indexing does.
    pub fn block(&self, at: usize) -> BlockRef {
        let (segment, block) = self.blocks.at(at);
        let SegmentPart { place, deleted, .. } = &self.parts[self.blocks.segment_at(at)];
        let deleted = deleted.as_ref().and_then(|deleted| deleted.block(block).cloned());
        BlockRef { segment: Arc::clone(segment), block, place: *place, deleted }
    }

    /// The partition that a block is in; `None` if there are not so many.
    pub fn partition_of(&self, at: usize) -> Option<usize> {
        self.blocks.get(at)?;
        Some(self.parts[self.blocks.segment_at(at)].partition as usize)
    }

    pub fn count(&mut self, partition: u32, of_segment: &PartitionPlan) {
        let PartitionPlan { blocks_considered, skipped_by_partition, skipped_by_zone, .. } = of_segment;
        self.blocks_considered += blocks_considered;
        self.skipped_by_partition += skipped_by_partition;
        self.skipped_by_zone += skipped_by_zone;
        if let Some(plan) = self.partitions.get_mut(partition as usize) {
            plan.blocks_considered += blocks_considered;
            plan.skipped_by_partition += skipped_by_partition;
            plan.skipped_by_zone += skipped_by_zone;
        }
    }

    /// For who reads by this path.
    #[must_use]
    pub fn by_path(self, requested: RequestedPath) -> Self {
        Self { requested, ..self }
    }

    /// How bytes travel, from the first file that is read.
    pub fn path(&self) -> String {
        let Some((first, _)) = self.blocks.get(0) else { return "none".into() };
        let file = first.file_by(self.requested);
        file.map_or_else(|_| "not to be had".into(), |file| file.hints().path.to_string())
    }

    /// For EXPLAIN: what is read, what is got around and how, and the path that bytes take.
    pub fn describe(
        &self,
        f: &mut fmt::Formatter<'_>,
        table: &str,
        columns: &[impl AsRef<str>],
        separator: &str,
    ) -> fmt::Result {
        let columns: Vec<&str> = columns.iter().map(AsRef::as_ref).collect();
        write!(f, "{table}{separator}columns=[{}]", columns.join(", "))?;
        write!(f, "{separator}blocks={} -> {}", self.blocks_considered, self.blocks.len())?;
        if self.skipped_by_zone + self.skipped_by_partition > 0 {
            write!(f, " (skipped: zone map {}, partition {})", self.skipped_by_zone, self.skipped_by_partition)?;
        }
        if !self.partitions.is_empty() {
            let left = self.partitions.iter().filter(|partition| partition.blocks_left() > 0).count();
            write!(f, "{separator}partitions={left} of {}", self.partitions.len())?;
        }
        if let Some(condition) = &self.condition {
            write!(f, "{separator}zone_condition={condition}")?;
        }
        if self.fresh_rows() > 0 {
            write!(f, "{separator}fresh_rows={}", self.fresh_rows())?;
        }
        if self.deleted_rows() > 0 {
            write!(f, "{separator}deleted_rows={}", self.deleted_rows())?;
        }
        write!(f, "{separator}path={}", self.path())
    }

    /// Rows to read, fresh ones among them and deleted ones not.
    pub fn rows(&self) -> usize {
        (self.block_rows - self.deleted_rows + self.fresh_rows()) as usize
    }

    /// Those of them that no segment holds.
    pub fn fresh_rows(&self) -> u64 {
        self.fresh.rows()
    }

    /// Rows of the blocks that are deleted.
    pub fn deleted_rows(&self) -> u64 {
        self.deleted_rows
    }

    /// Whether what it reads is what segments hold, neither more nor less.
    pub fn is_settled(&self) -> bool {
        self.fresh_rows() == 0 && self.deleted_rows() == 0
    }

    /// What it reads besides, or not, for a pipeline's source.
    ///
    /// # Errors
    /// As of [`FreshRows::runs`].
    pub fn changes(&self) -> Result<Changes> {
        let blocks = 0..if self.deleted_rows > 0 { self.blocks.len() } else { 0 };
        Ok(Changes { deleted: blocks.map(|at| self.block(at).deleted).collect(), fresh: self.fresh.runs()? })
    }
}
