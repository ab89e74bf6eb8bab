//! Some of a source's morsels as a source of their own: the share of one device.
//!
//! Morsels are renumbered in their order. Columns, dictionaries and row numbers of late strings
//! stay those of the whole source, so results of several shares can be compared and merged. Nothing
//! is copied.

use std::sync::Arc;

use onehop_io::Ledger;
use onehop_segment::{BlockScan, CodeTable, DeletedBlock};

use crate::backend::Stored;
use crate::{Block, Domain, Interval, Result, Source, StoredPlace};

/// Accounting of morsels that have been read, in ledgers and progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// Morsels are counted.
    Yes,
    /// Another share reads the same morsels and counts them.
    No,
}

/// Some of a source's morsels.
#[derive(Clone, Debug)]
pub(super) struct Share {
    of: Arc<dyn Source>,
    /// Numbers in the whole source, ascending.
    morsels: Arc<[u32]>,
    rows: u64,
    told: Told,
}

impl Share {
    /// Creates a share of these morsels, given by their numbers in ascending order.
    pub fn new(of: &Arc<dyn Source>, morsels: Vec<u32>, told: Told) -> Self {
        let rows = morsels.iter().map(|morsel| of.rows(*morsel as usize) as u64).sum();
        Self { of: Arc::clone(of), morsels: morsels.into(), rows, told }
    }

    /// Creates a share of all morsels.
    pub fn whole(of: &Arc<dyn Source>, told: Told) -> Self {
        Self::new(of, (0..of.morsels() as u32).collect(), told)
    }

    /// Returns the number of its morsels that are blocks.
    pub fn blocks(&self) -> u64 {
        (0..self.morsels.len()).filter(|morsel| self.is_block(*morsel)).count() as u64
    }

    /// Returns the number of a morsel in the whole source.
    pub fn number(&self, morsel: usize) -> usize {
        self.morsels[morsel] as usize
    }

    /// Returns the storage of its morsels, given that of the whole source.
    pub fn stored(&self, of: &Stored) -> Stored {
        let segment = |morsel: &u32| of.blocks.segment_at(*morsel as usize);
        // Consecutive blocks of a segment are added together.
        let runs = self.morsels.chunk_by(|a, b| segment(a) == segment(b));
        of.part(runs.map(|run| (segment(&run[0]), run.iter().map(|morsel| *morsel as usize))))
    }
}

impl Source for Share {
    fn name(&self) -> &str {
        self.of.name()
    }

    fn columns(&self) -> &[Domain] {
        self.of.columns()
    }

    fn morsels(&self) -> usize {
        self.morsels.len()
    }

    fn rows(&self, morsel: usize) -> usize {
        self.of.rows(self.number(morsel))
    }

    fn deleted(&self, morsel: usize) -> Option<&DeletedBlock> {
        self.of.deleted(self.number(morsel))
    }

    fn is_block(&self, morsel: usize) -> bool {
        self.of.is_block(self.number(morsel))
    }

    fn all_rows(&self) -> u64 {
        self.rows
    }

    fn is_settled(&self) -> bool {
        let is_settled = |morsel: usize| self.deleted(morsel).is_none() && self.is_block(morsel);
        self.of.is_settled() || (0..self.morsels()).all(is_settled)
    }

    fn for_ledger(&self, ledger: &Arc<Ledger>) -> Option<Arc<dyn Source>> {
        let of = self.of.for_ledger(ledger)?;
        Some(Arc::new(Self { of, ..self.clone() }))
    }

    fn interval(&self, morsel: usize, column: usize) -> Option<Interval> {
        self.of.interval(self.number(morsel), column)
    }

    fn retain_within(&self, column: usize, wanted: Interval, morsels: &mut Vec<u32>) {
        let mut left: Vec<u32> = morsels.iter().map(|morsel| self.morsels[*morsel as usize]).collect();
        self.of.retain_within(column, wanted, &mut left);
        morsels.clear();
        morsels.extend(left.iter().filter_map(|number| self.morsels.binary_search(number).ok()).map(|at| at as u32));
    }

    fn may_have_nulls(&self, morsel: usize, column: usize) -> bool {
        self.of.may_have_nulls(self.number(morsel), column)
    }

    fn is_coded(&self, column: usize) -> bool {
        self.of.is_coded(column)
    }

    fn code_table(&self, morsel: usize, column: usize) -> Option<&CodeTable> {
        self.of.code_table(self.number(morsel), column)
    }

    fn stored_place(&self, morsel: usize, column: usize) -> Option<StoredPlace<'_>> {
        self.of.stored_place(self.number(morsel), column)
    }

    fn load(&self, morsel: usize, column: usize) -> Result<Block> {
        self.of.load(self.number(morsel), column)
    }

    fn scan(&self, order: &[usize], sure: &[usize], horizon_bytes: usize) -> Option<BlockScan> {
        let order: Vec<usize> = order.iter().map(|morsel| self.number(*morsel)).collect();
        self.of.scan(&order, sure, horizon_bytes)
    }

    fn load_of(&self, scan: &BlockScan, at: usize, morsel: usize, column: usize) -> Result<Block> {
        self.of.load_of(scan, at, self.number(morsel), column)
    }

    fn finished(&self, morsel: usize) {
        if self.told == Told::Yes {
            self.of.finished(self.number(morsel));
        }
    }

    fn all_finished(&self, morsels: &mut dyn Iterator<Item = usize>) {
        if self.told == Told::Yes {
            self.of.all_finished(&mut morsels.map(|morsel| self.number(morsel)));
        }
    }
}
