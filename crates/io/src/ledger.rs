//! The byte ledger: how many bytes crossed which hop.
//!
//! One ledger belongs to one query (or one load, or one benchmark run) and is shared by all its threads. Counters only
//! grow; they are relaxed atomics, because nobody orders anything by them. They lie side by side: a thread that has done a block
//! adds to several of them, and has to fetch their line from another core either way, once.
//!
//! *Copy amplification* = bytes moved over all hops / bytes the answer needed. It is 1 when every byte made one hop, and
//! less when some were in memory already. What an answer *needed* is counted where it is handed out: the stored bytes
//! of every block of a column that somebody asked for, whether they came from storage or from memory, dictionaries and
//! other people's files as they were read, and, of what was written, every byte once, but for what was only *spilled*: put
//! aside for want of memory.
//!
//! A part of a query that wants figures of its own has a ledger [below](Ledger::below) the query's.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A way that bytes can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hop {
    /// From a storage device, or the operating system's cache of it, into host memory.
    StorageToHost,
    /// From a storage device straight into device memory.
    StorageToDevice,
    /// From host memory into device memory.
    HostToDevice,
    /// From device memory into host memory.
    DeviceToHost,
    /// From device memory straight to a storage device.
    DeviceToStorage,
    /// From host memory to host memory: bounce buffers, and the page-cache copy of a buffered read or write.
    HostToHost,
    /// From host memory to storage.
    HostToStorage,
    /// To storage a second time, into a log or journal.
    Journal,
    /// Copied because a name changed, where renaming means copying.
    RenameCopy,
}

impl Hop {
    /// Every hop, in the order of [`LedgerSnapshot::bytes`].
    pub const ALL: [Hop; 9] = [
        Hop::StorageToHost,
        Hop::StorageToDevice,
        Hop::HostToDevice,
        Hop::DeviceToHost,
        Hop::DeviceToStorage,
        Hop::HostToHost,
        Hop::HostToStorage,
        Hop::Journal,
        Hop::RenameCopy,
    ];

    /// The stable name used in tables, JSON and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Hop::StorageToHost => "storage_to_host_bytes",
            Hop::StorageToDevice => "storage_to_device_bytes",
            Hop::HostToDevice => "host_to_device_bytes",
            Hop::DeviceToHost => "device_to_host_bytes",
            Hop::DeviceToStorage => "device_to_storage_bytes",
            Hop::HostToHost => "host_to_host_bytes",
            Hop::HostToStorage => "host_to_storage_bytes",
            Hop::Journal => "journal_bytes",
            Hop::RenameCopy => "rename_copy_bytes",
        }
    }
}

#[derive(Debug, Default)]
struct Counter(AtomicU64);

impl Counter {
    fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Counters of one query. All methods may be called from many threads.
#[derive(Debug, Default)]
pub struct Ledger {
    hops: [Counter; Hop::ALL.len()],
    blocks_considered: Counter,
    blocks_skipped: Counter,
    blocks_read: Counter,
    rows_scanned: Counter,
    rows_written: Counter,
    read_ops: Counter,
    write_ops: Counter,
    needed_bytes: Counter,
    cached_blocks: Counter,
    cached_bytes: Counter,
    spilled_bytes: Counter,
    /// Counts all of it, too.
    above: Option<Arc<Ledger>>,
}

impl Ledger {
    /// A ledger whose counts are also `above`'s, at once.
    #[must_use]
    pub fn below(above: &Arc<Ledger>) -> Self {
        Self { above: Some(Arc::clone(above)), ..Self::default() }
    }

    /// Counts here and in all ledgers above.
    fn count(&self, add: impl Fn(&Self)) {
        let mut ledger = self;
        loop {
            add(ledger);
            match &ledger.above {
                Some(above) => ledger = above,
                None => return,
            }
        }
    }

    /// `bytes` crossed `hop`.
    pub fn moved(&self, hop: Hop, bytes: usize) {
        self.count(|ledger| ledger.hops[hop as usize].add(bytes as u64));
    }

    /// Somebody asked for `bytes` stored bytes, and got them.
    pub fn needed(&self, bytes: usize) {
        self.count(|ledger| ledger.needed_bytes.add(bytes as u64));
    }

    /// A block of `bytes` stored bytes was asked for, and was in memory: it crossed no hop.
    pub fn cached(&self, bytes: usize) {
        self.needed(bytes);
        self.count(|ledger| {
            ledger.cached_blocks.add(1);
            ledger.cached_bytes.add(bytes as u64);
        });
    }

    /// `blocks` blocks of `bytes` stored bytes were asked for, and were in the memory of the device that asked.
    pub fn resident(&self, blocks: u64, bytes: usize) {
        self.needed(bytes);
        self.count(|ledger| {
            ledger.cached_blocks.add(blocks);
            ledger.cached_bytes.add(bytes as u64);
        });
    }

    /// `bytes` of what was moved to storage are there for want of memory: they crossed a hop as any others, and no
    /// answer needed them there.
    pub fn spilled(&self, bytes: usize) {
        self.count(|ledger| ledger.spilled_bytes.add(bytes as u64));
    }

    /// One read call went to a backend.
    pub fn read_op(&self) {
        self.count(|ledger| ledger.read_ops.add(1));
    }

    /// One write call went to a backend.
    pub fn write_op(&self) {
        self.count(|ledger| ledger.write_ops.add(1));
    }

    /// A scan planned over `considered` blocks and ruled out `skipped` of them before any I/O.
    pub fn planned_blocks(&self, considered: u64, skipped: u64) {
        self.count(|ledger| {
            ledger.blocks_considered.add(considered);
            ledger.blocks_skipped.add(skipped);
        });
    }

    /// A block was read, and `rows` rows of it handed on.
    pub fn read_block(&self, rows: u64) {
        self.read_blocks(1, rows);
    }

    /// Blocks were read, and `rows` rows of them handed on.
    pub fn read_blocks(&self, blocks: u64, rows: u64) {
        self.count(|ledger| {
            ledger.blocks_read.add(blocks);
            ledger.rows_scanned.add(rows);
        });
    }

    /// `rows` rows came in from elsewhere: a file of another format, values in the statement.
    pub fn rows_in(&self, rows: u64) {
        self.count(|ledger| ledger.rows_scanned.add(rows));
    }

    /// `rows` rows were written to a table or a file.
    pub fn rows_out(&self, rows: u64) {
        self.count(|ledger| ledger.rows_written.add(rows));
    }

    /// The counters as they stand.
    pub fn snapshot(&self) -> LedgerSnapshot {
        LedgerSnapshot {
            bytes: std::array::from_fn(|i| self.hops[i].get()),
            blocks_considered: self.blocks_considered.get(),
            blocks_skipped: self.blocks_skipped.get(),
            blocks_read: self.blocks_read.get(),
            rows_scanned: self.rows_scanned.get(),
            rows_written: self.rows_written.get(),
            read_ops: self.read_ops.get(),
            write_ops: self.write_ops.get(),
            needed_bytes: self.needed_bytes.get(),
            cached_blocks: self.cached_blocks.get(),
            cached_bytes: self.cached_bytes.get(),
            spilled_bytes: self.spilled_bytes.get(),
        }
    }
}

/// A copy of a ledger's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LedgerSnapshot {
    /// Bytes per hop, in the order of [`Hop::ALL`].
    pub bytes: [u64; Hop::ALL.len()],
    /// Blocks of the scanned tables before any skipping.
    pub blocks_considered: u64,
    /// Blocks ruled out before any I/O.
    pub blocks_skipped: u64,
    /// Blocks really read. Smaller than considered - skipped when a LIMIT stopped the scan.
    pub blocks_read: u64,
    /// Rows that scans handed on.
    pub rows_scanned: u64,
    /// Rows written to tables or files.
    pub rows_written: u64,
    /// Read calls made to storage.
    pub read_ops: u64,
    /// Write calls made to storage.
    pub write_ops: u64,
    /// Stored bytes that somebody asked for, whether they came from storage or from memory.
    pub needed_bytes: u64,
    /// Blocks of columns that were in memory.
    pub cached_blocks: u64,
    /// Their stored bytes: the part of [`Self::needed_bytes`] that crossed no hop.
    pub cached_bytes: u64,
    /// Bytes written for want of memory.
    pub spilled_bytes: u64,
}

impl LedgerSnapshot {
    /// Bytes that crossed `hop`.
    pub fn hop(&self, hop: Hop) -> u64 {
        self.bytes[hop as usize]
    }

    /// Bytes read from storage, whichever memory they went to.
    pub fn read_bytes(&self) -> u64 {
        self.hop(Hop::StorageToHost) + self.hop(Hop::StorageToDevice)
    }

    /// Bytes moved over all hops.
    pub fn moved_bytes(&self) -> u64 {
        self.bytes.iter().sum()
    }

    /// What was counted since `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            bytes: std::array::from_fn(|i| self.bytes[i].saturating_sub(earlier.bytes[i])),
            blocks_considered: self.blocks_considered - earlier.blocks_considered,
            blocks_skipped: self.blocks_skipped - earlier.blocks_skipped,
            blocks_read: self.blocks_read - earlier.blocks_read,
            rows_scanned: self.rows_scanned - earlier.rows_scanned,
            rows_written: self.rows_written - earlier.rows_written,
            read_ops: self.read_ops - earlier.read_ops,
            write_ops: self.write_ops - earlier.write_ops,
            needed_bytes: self.needed_bytes - earlier.needed_bytes,
            cached_blocks: self.cached_blocks - earlier.cached_blocks,
            cached_bytes: self.cached_bytes - earlier.cached_bytes,
            spilled_bytes: self.spilled_bytes - earlier.spilled_bytes,
        }
    }

    /// Bytes moved over all hops for each byte that the answer needed; `None` if it needed none.
    pub fn copy_amplification(&self) -> Option<f64> {
        let written = self.hop(Hop::HostToStorage) + self.hop(Hop::DeviceToStorage);
        let needed = self.needed_bytes + written.saturating_sub(self.spilled_bytes);
        (needed > 0).then(|| self.moved_bytes() as f64 / needed as f64)
    }

    /// Every counter by its stable name, as JSON and tables have them.
    pub fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let hops = Hop::ALL.into_iter().zip(self.bytes).map(|(hop, bytes)| (hop.name(), bytes));
        hops.chain([
            ("needed_bytes", self.needed_bytes),
            ("cached_bytes", self.cached_bytes),
            ("cached_blocks", self.cached_blocks),
            ("spilled_bytes", self.spilled_bytes),
            ("blocks_considered", self.blocks_considered),
            ("blocks_skipped", self.blocks_skipped),
            ("blocks_read", self.blocks_read),
            ("rows_scanned", self.rows_scanned),
            ("rows_written", self.rows_written),
            ("read_ops", self.read_ops),
            ("write_ops", self.write_ops),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_below_is_counted_above() {
        let query = Arc::new(Ledger::default());
        let (one, other) = (Ledger::below(&query), Ledger::below(&query));
        one.moved(Hop::StorageToHost, 10);
        other.moved(Hop::StorageToHost, 5);
        other.read_block(3);
        assert_eq!(one.snapshot().hop(Hop::StorageToHost), 10);
        assert_eq!((query.snapshot().hop(Hop::StorageToHost), query.snapshot().rows_scanned), (15, 3));
    }

    #[test]
    fn amplification_is_moved_for_needed() {
        let ledger = Ledger::default();
        assert_eq!(ledger.snapshot().copy_amplification(), None);
        // Through the page cache: every byte twice.
        ledger.needed(100);
        ledger.moved(Hop::StorageToHost, 100);
        ledger.moved(Hop::HostToHost, 100);
        assert_eq!(ledger.snapshot().copy_amplification(), Some(2.0));
        // As much again that was in memory.
        ledger.cached(100);
        assert_eq!(ledger.snapshot().copy_amplification(), Some(1.0));
        // Written once.
        ledger.moved(Hop::HostToStorage, 200);
        assert_eq!(ledger.snapshot().copy_amplification(), Some(1.0));
        // And what nobody asked for.
        ledger.moved(Hop::HostToStorage, 400);
        ledger.spilled(400);
        assert_eq!(ledger.snapshot().copy_amplification(), Some(2.0));
    }
}
