//! Interface to devices other than the CPU that run programs. The executor of a statement knows a
//! device only through it.
//!
//! ```text
//! Devices ─ discovered on first use ─► Backend ─ prepare ─► Prepared ─ run ─► answer in chunks,
//!                                         │                                   DeviceRan each
//!                                         ├─ residency ─► Residency: data kept in its memory
//!                                         └─ arrays ─► Arrays: columns for other programs
//! ```
//! - [`Backend::prepare`] refuses a program, with a reason, before it reads any row. A device runs
//!   an accepted program as the CPU does: the same rows, bit for bit, and the same errors of data.
//! - An error of the device itself is [`Error::Device`]. The caller may run the program elsewhere,
//!   as long as no row has been emitted. Retrying does not help with any other error.
//! - A backend counts its own bytes, on the hops that they took, in the ledgers that it is given.
//! - Segments never change: resident data is identified by its [`SegmentKey`], and leaves the
//!   device some time after its segment is gone.

use std::ffi::OsString;
use std::fmt::Debug;
use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};
use std::time::Duration;

use onehop_io::Ledger;
use onehop_segment::{BlockList, BlockRun, Segment};

use crate::arrays::Arrays;
use crate::cpu::{Execution, ResultColumn, Skipped, StepRows, TableFacts, TopFacts};
use crate::fit::{Fit, Sums};
use crate::{Budget, Error, Result, Source};

/// Provider of devices. All methods may be called from many threads.
pub trait Devices: Debug + Send + Sync {
    /// Returns the devices of this process. The first call discovers them, which may take a second.
    ///
    /// # Errors
    /// A readable reason why there are none: no driver, no device.
    fn all(&self) -> std::result::Result<&[Arc<dyn Backend>], String>;

    /// Returns the devices of [`Devices::all`] if they have been discovered. Code that frees device
    /// memory does not wait for a discovery.
    fn found(&self) -> &[Arc<dyn Backend>];

    /// Returns true if there appear to be devices, as far as a quick check can tell.
    fn are_likely(&self) -> bool {
        !self.found().is_empty()
    }

    /// Returns true if shutdown waits for a running discovery that is no longer needed. It does,
    /// unless the process ends without running exit handlers: the driver's handlers, beside a
    /// thread inside the driver, may never return.
    fn are_waited_for(&self) -> bool {
        true
    }

    /// Returns the command line of the helper that runs user-defined functions for devices of this
    /// kind: a program and its arguments. Each function has a process of its own.
    fn helper(&self) -> Option<Vec<OsString>> {
        None
    }

    /// Returns true if [`Devices::all`] and the rates of all devices are available at once.
    fn are_ready(&self) -> bool {
        true
    }
}

/// A device that runs programs. All methods may be called from many threads.
pub trait Backend: Debug + Send + Sync {
    /// Returns the name that statements use: `cuda:0`.
    fn name(&self) -> &str;

    /// Returns the vendor's name of the device.
    fn description(&self) -> &str;

    /// Returns the device's speeds, measured by the first call.
    ///
    /// # Errors
    /// [`Error::Device`].
    fn rates(&self) -> Result<Rates>;

    /// Returns true if [`Backend::rates`] are known.
    fn is_measured(&self) -> bool {
        true
    }

    /// Checks a program and its sources, and prepares to run it. Reads no row, and compiles
    /// nothing.
    ///
    /// # Errors
    /// The reason why this device does not run it.
    fn prepare(&self, execution: &Execution, hints: &Hints) -> std::result::Result<Arc<dyn Prepared>, Refusal>;

    /// Checks a program that collects rows, and prepares to compute sums such as `sums` for fits of
    /// models. Reads no row, and compiles nothing.
    ///
    /// # Errors
    /// The reason why this device does not do it.
    fn prepare_fit(
        &self,
        _execution: &Execution,
        _hints: &Hints,
        _sums: &Sums,
    ) -> std::result::Result<Arc<dyn Fit>, Refusal> {
        Err(Refusal("fits of models".into()))
    }

    /// Returns the data resident in its memory, if it keeps any.
    fn residency(&self) -> Option<&dyn Residency> {
        None
    }

    /// Returns columns as arrays in its memory, for other programs, if it supports them.
    fn arrays(&self) -> Option<&dyn Arrays> {
        None
    }

    /// Returns the NUMA node that it is attached to, if the node is known and there are several.
    fn node(&self) -> Option<u32> {
        None
    }

    /// Returns the devices that it consists of, if it is several ([`crate::spread`]).
    fn parts(&self) -> &[Arc<dyn Backend>] {
        &[]
    }
}

/// A program that a device can run any number of times, in sequence or concurrently.
pub trait Prepared: Debug + Send + Sync {
    /// Returns the estimated cost of a run.
    fn estimate(&self) -> Estimate;

    /// Runs the program, and passes the answer to `take` in chunks of columns, as the
    /// [`ResultColumn`]s of the CPU would be. Blocks until it is done. Returns the execution
    /// statistics of each pipeline.
    ///
    /// # Errors
    /// Those of the data, as on the CPU; those of `take`; [`Error::Cancelled`] soon after a
    /// cancellation; [`Error::Memory`] if the program does not fit on the device; [`Error::Device`]
    /// for any failure of the device itself.
    fn run(&self, control: &Control<'_>, take: &mut Take<'_>) -> Result<Vec<DeviceRan>>;
}

/// Consumer of the chunks of an answer.
pub type Take<'a> = dyn FnMut(Vec<ResultColumn>) -> Result<()> + 'a;

/// Reason why a device does not run a program: the part of the program it has no code for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal(pub String);

/// Facts about a program's sources that the sources do not provide themselves.
#[derive(Clone, Debug, Default)]
pub struct Hints {
    /// Storage of each source's rows. `None` for rows that are in memory only.
    pub stored: Vec<Option<Stored>>,
    /// Limit of the device memory that may be used.
    pub memory: MemoryLimit,
    /// Policy for columns that a query brings to the device.
    pub residence: Residence,
    /// Path on which the bytes are brought.
    pub path: DevicePath,
    /// Preferred place of each segment, per source and by the segment's number in its blocks. Used
    /// if there are several devices. The place of a missing entry is unknown.
    pub sites: Vec<Vec<Site>>,
}

/// Preferred place for reading a segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Site {
    /// Names of the devices that it belongs on; any device if empty.
    pub devices: Arc<[String]>,
    /// The NUMA node that its storage is attached to.
    pub node: Option<u32>,
}

/// Policy for columns that a query brings to a device. Columns loaded to stay are on the device in
/// any case, and are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Residence {
    /// Columns stay while there is room.
    #[default]
    Auto,
    /// Columns do not stay: each query streams the columns that are not resident, and leaves
    /// nothing behind.
    Off,
}

/// Requested path of stored bytes to a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DevicePath {
    /// Directly, if that is known to be possible; otherwise as `Staged`.
    #[default]
    Auto,
    /// Through the host's memory. If the host keeps none of it, that may be a few buffers that only
    /// pass bytes on.
    Staged,
    /// Through the device's library for reading files (cuFile), on any path that it chooses.
    Cufile,
    /// Directly. Any other observed path is an error.
    Direct,
}

/// Path that stored bytes took to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakenPath {
    /// Through the host's memory, verified and copied by this engine.
    Staged,
    /// Past the page cache, through a few pinned buffers of this engine whose contents the host
    /// does not read; verified on the device.
    Bounced,
    /// Directly, according to the library's counters.
    Direct,
    /// Through the library's buffers in host memory.
    Compat,
    /// On several paths.
    Mixed,
    /// Through the library, which does not report the path.
    NotVerified,
}

impl TakenPath {
    /// Returns its stable name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Staged => "staged",
            Self::Bounced => "bounced",
            Self::Direct => "direct",
            Self::Compat => "compat",
            Self::Mixed => "mixed",
            Self::NotVerified => "not verified",
        }
    }
}

/// Stored bytes that were brought to a device, and their path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Brought {
    /// The path taken.
    pub path: TakenPath,
    /// Bytes that the device's library read, or that were bounced; 0 if all went through the host.
    pub bytes: u64,
    /// Evidence for the path, or the reason for it.
    pub because: String,
}

impl Brought {
    /// Returns the bounced bytes, if all bytes that did not go through the host were bounced.
    pub fn bounced_bytes(&self) -> u64 {
        if self.path == TakenPath::Bounced { self.bytes } else { 0 }
    }

    /// Adds bytes that were brought separately.
    pub fn add(&mut self, other: &Self) {
        // Bytes bypass the host if they can, and the rest is staged: `bytes` tells them apart.
        match (self.bytes, other.bytes) {
            (_, 0) => {}
            (0, _) => (self.path, self.because) = (other.path, other.because.clone()),
            _ if self.path == other.path => self.because.clone_from(&other.because),
            _ => (self.path, self.because) = (TakenPath::Mixed, format!("{}; {}", self.because, other.because)),
        }
        self.bytes += other.bytes;
    }
}

/// Limit on the use of a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryLimit {
    /// A number of bytes.
    Bytes(u64),
    /// A percentage of the device's memory.
    Percent(u64),
}

impl MemoryLimit {
    /// Returns the limit in bytes for a device with `all` bytes.
    pub fn bytes_of(self, all: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.min(all),
            Self::Percent(percent) => all / 100 * percent.min(100),
        }
    }
}

impl Default for MemoryLimit {
    fn default() -> Self {
        Self::Percent(90)
    }
}

/// Storage of a source's rows.
#[derive(Clone, Debug)]
pub struct Stored {
    /// The block of each morsel.
    pub blocks: Arc<BlockList>,
    /// Index of each column in the segments.
    pub columns: Vec<usize>,
}

impl Stored {
    /// Returns the stored bytes of all blocks of its columns.
    pub fn bytes(&self) -> u64 {
        self.columns.iter().map(|column| self.blocks.stored_bytes(*column)).sum()
    }

    /// Returns a subset of its morsels, in runs of one segment each, by the segments' numbers here.
    pub(crate) fn part<M: Iterator<Item = usize>>(&self, runs: impl IntoIterator<Item = (usize, M)>) -> Self {
        let mut blocks = BlockList::default();
        for (segment, morsels) in runs {
            blocks.push_all(&self.blocks.segments()[segment], morsels.map(|morsel| self.blocks.at(morsel).1));
        }
        Self { blocks: Arc::new(blocks), columns: self.columns.clone() }
    }

    /// Returns the runs of morsels that belong to one segment.
    pub fn runs(&self) -> Vec<SegmentRun> {
        let run = |run: &BlockRun| SegmentRun {
            segment: Arc::clone(&self.blocks.segments()[run.segment]),
            morsels: run.places.clone(),
            is_whole: self.blocks.is_whole(run),
        };
        self.blocks.runs().iter().map(run).collect()
    }

    /// Returns the bytes of one column of one run, by the column's index in the segments.
    pub fn run_bytes(&self, run: &SegmentRun, column: usize) -> u64 {
        match run.is_whole {
            true => run.segment.all_stored_bytes(column),
            false => {
                let blocks = run.morsels.clone().map(|morsel| self.blocks.at(morsel));
                blocks.map(|(segment, block)| segment.stored_bytes(column, block)).sum()
            }
        }
    }
}

/// Consecutive morsels of one segment.
#[derive(Clone, Debug)]
pub struct SegmentRun {
    /// The segment.
    pub segment: Arc<Segment>,
    /// The morsels.
    pub morsels: Range<usize>,
    /// True if they are all blocks of the segment in their order.
    pub is_whole: bool,
}

/// Identity of an open segment. It is stable while the segment is open, and no other segment ever
/// has it.
#[derive(Clone, Debug)]
pub struct SegmentKey(Weak<Segment>);

impl SegmentKey {
    /// Returns the identity of a segment.
    pub fn of(segment: &Arc<Segment>) -> Self {
        // The address stays allocated as long as the key exists.
        Self(Arc::downgrade(segment))
    }

    /// Returns true if the segment is closed: no reader will request it again.
    pub fn is_gone(&self) -> bool {
        self.0.strong_count() == 0
    }
}

impl PartialEq for SegmentKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.ptr_eq(&other.0)
    }
}

impl Eq for SegmentKey {}

/// An arbitrary order, the same for all users while the segments are open.
impl Ord for SegmentKey {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.as_ptr().cmp(&other.0.as_ptr())
    }
}

impl PartialOrd for SegmentKey {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Hash for SegmentKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.as_ptr().hash(state);
    }
}

/// Context of a run.
#[derive(Clone, Copy)]
pub struct Control<'a> {
    /// Set when the client no longer waits for the answer.
    pub cancelled: &'a AtomicBool,
    /// True if steps count the rows that they see and emit, which takes time.
    pub counts_steps: bool,
    /// Ledger that counts the bytes of each source.
    pub ledgers: &'a [Arc<Ledger>],
    /// Called with the number of rows of completed morsels, for progress.
    pub did_rows: &'a (dyn Fn(u64) + Sync),
    /// Budget of host memory for assembling an answer, if that is needed.
    pub budget: &'a Budget,
}

impl Debug for Control<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control").field("cancelled", self.cancelled).finish_non_exhaustive()
    }
}

/// Estimated cost of a run, as far as it is known in advance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Estimate {
    /// Stored bytes that the run will read, counted as often as it reads them.
    pub read_bytes: u64,
    /// Those of them that will be resident on the device by then; all others are moved there.
    pub resident_bytes: u64,
    /// Kernels that are not compiled yet.
    pub to_compile: usize,
}

/// Speeds of a device and of its connections.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Copy rate within its memory, bytes read and bytes written counted together. No kernel can be
    /// faster.
    pub copy_bytes_per_sec: f64,
    /// Copy rate from host memory to its memory.
    pub to_device_bytes_per_sec: f64,
    /// Copy rate from its memory to host memory.
    pub to_host_bytes_per_sec: f64,
    /// Time of a pipeline that reads nothing: launch, wait, and the transfer of the answer.
    pub launch: Duration,
    /// Time to compile a kernel.
    pub compile: Duration,
}

/// Origin of a pipeline's kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compiled {
    /// It was compiled, in this time.
    Now(Duration),
    /// It was in memory, or in the on-disk cache.
    Before,
}

/// Execution statistics of one pipeline on a device.
#[derive(Clone, Debug)]
pub struct DeviceRan {
    /// Rows of the morsels that remained to be read.
    pub rows: u64,
    /// Morsels ruled out by the keys of join tables, if the join table is known.
    pub skipped: Vec<Skipped>,
    /// Other morsels ruled out by conditions of the pipeline.
    pub morsels_skipped: u64,
    /// Rows seen and emitted by each step; empty if they were not counted.
    pub steps: Vec<StepRows>,
    /// Rows that left its sink, if the sink is not a join table: groups, or rows.
    pub rows_out: u64,
    /// Statistics of the join table that it built.
    pub table: Option<TableFacts>,
    /// Statistics of a sink of the first rows in an order.
    pub top: Option<TopFacts>,
    /// Bytes of its sink on the device.
    pub sink_bytes: u64,
    /// Number of passes over its source. There is more than one if a join table or groups did not
    /// fit on the device and were processed in parts.
    pub passes: u64,
    /// Time from its first byte to its result.
    pub elapsed: Duration,
    /// Time of its kernels by the device's own clock, without waits.
    pub kernel: Duration,
    /// Number of kernel launches.
    pub launches: u64,
    /// Origin of its kernel, and the compile time.
    pub compiled: Compiled,
    /// Stored bytes that its kernels read and that were on the device.
    pub resident_bytes: u64,
    /// Bytes that were moved to the device for it.
    pub moved_bytes: u64,
    /// Bytes that were returned.
    pub returned_bytes: u64,
    /// Columns that were brought for it alone, batch by batch, if there were any.
    pub streamed: Option<Streamed>,
    /// Path of the bytes moved from storage, if there was a choice.
    pub brought: Option<Brought>,
    /// Statistics of each device's part, if there were several devices. The times above are then
    /// those of the device that finished last, and all other fields are totals. Work that every
    /// device repeats is counted once.
    pub shares: Vec<ShareRan>,
}

/// Execution statistics of one device's part of a pipeline.
#[derive(Clone, Debug)]
pub struct ShareRan {
    /// The device.
    pub device: String,
    /// Blocks of the last pipeline's source that were its share.
    pub blocks: u64,
    /// Execution statistics of the part.
    pub ran: DeviceRan,
}

/// Columns that were streamed to a device while a pipeline ran there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Streamed {
    /// Batches over all attempts at the pipeline. Each was copied and read as one.
    pub batches: u64,
    /// Bytes of the batches: a part of the moved bytes.
    pub bytes: u64,
    /// Time that the device idled while it waited for them, by its own clock.
    pub waited: Duration,
}

impl DeviceRan {
    /// Creates empty statistics.
    pub fn new() -> Self {
        Self {
            rows: 0,
            skipped: Vec::new(),
            morsels_skipped: 0,
            steps: Vec::new(),
            rows_out: 0,
            table: None,
            top: None,
            sink_bytes: 0,
            passes: 1,
            elapsed: Duration::ZERO,
            kernel: Duration::ZERO,
            launches: 0,
            compiled: Compiled::Before,
            resident_bytes: 0,
            moved_bytes: 0,
            returned_bytes: 0,
            streamed: None,
            brought: None,
            shares: Vec::new(),
        }
    }
}

impl Default for DeviceRan {
    fn default() -> Self {
        Self::new()
    }
}

/// Columns that a device keeps in its memory, encoded as they are stored. All methods may be called
/// from many threads.
///
/// Columns brought by a query stay while there is room. Columns loaded here stay until they are
/// evicted, or until other loaded columns need their place. A column that a query uses is never
/// removed.
pub trait Residency: Debug + Send + Sync {
    /// Makes columns of a source resident, and keeps them. Columns that are already resident stay.
    /// Bytes read from storage take the requested path.
    ///
    /// # Errors
    /// Those of the storage, [`Error::Memory`] if the columns do not fit beside those that must
    /// stay, and [`Error::Device`].
    fn load(
        &self,
        source: &Arc<dyn Source>,
        stored: &Stored,
        how: (MemoryLimit, DevicePath),
        control: &Control<'_>,
    ) -> Result<Loaded>;

    /// Evicts columns of segments, by index in the segment. A column in use is evicted when the
    /// last query that uses it ends. Returns the number of bytes.
    fn evict(&self, columns: &[(SegmentKey, usize)]) -> u64;

    /// Returns the stored bytes of these columns that are resident.
    fn resident_bytes(&self, stored: &Stored) -> u64;

    /// Removes the data of segments that are no longer open.
    fn sweep(&self);

    /// Returns all resident columns.
    fn list(&self) -> Vec<Resident>;
}

/// Result of a load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Bytes on the device now.
    pub bytes: u64,
    /// Bytes that were moved there for the load.
    pub moved_bytes: u64,
}

/// A column of a segment, or some blocks of it, in a device's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resident {
    /// The segment.
    pub segment: SegmentKey,
    /// The column's index in the segment.
    pub column: usize,
    /// Bytes that it takes.
    pub bytes: u64,
    /// Number of queries that found it resident.
    pub hits: u64,
    /// True if it was loaded to stay.
    pub is_kept: bool,
    /// Number of queries that use it now.
    pub pins: u64,
}

impl Error {
    /// Creates an error of a device.
    pub fn device(device: impl Into<String>, what: impl Into<String>) -> Self {
        Self::Device { device: device.into(), what: what.into() }
    }
}
