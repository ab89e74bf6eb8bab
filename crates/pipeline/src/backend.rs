//! Other processors that run programs: what whoever runs a statement knows of a device, and nothing more.
//!
//! ```text
//! Devices ─ looked for when first asked ─► Backend ─ prepare ─► Prepared ─ run ─► chunks of the answer, a DeviceRan for
//!                                             │                                   every pipeline
//!                                             ├─ residency ─► Residency: what it keeps in its memory
//!                                             └─ arrays ─► Arrays: columns as other programs read them there
//! ```
//! - [`Backend::prepare`] refuses, with a reason, before any row is read. What it takes it runs as the CPU does: the same
//!   rows, bit for bit, and the same errors of data.
//! - An error of the device itself is [`Error::Device`]: who asked may run the program elsewhere, as long as no row has
//!   left. No other error becomes right by being tried again.
//! - A backend counts its own bytes, on the hops that they took, in the ledgers that it is given.
//! - Segments never change: what is resident is named by its [`SegmentKey`], and is gone from the device some time after
//!   the segment is.

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

/// Where devices come from. All methods may be called from many threads.
pub trait Devices: Debug + Send + Sync {
    /// The devices of this process, looked for by the first call, which may take a second.
    ///
    /// # Errors
    /// Why there are none, for people: no driver, no device.
    fn all(&self) -> std::result::Result<&[Arc<dyn Backend>], String>;

    /// As [`Devices::all`], if somebody has asked for them: nobody waits for a device in order to free its memory.
    fn found(&self) -> &[Arc<dyn Backend>];

    /// Whether it looks as if there were any, as far as that can be told at once.
    fn are_likely(&self) -> bool {
        !self.found().is_empty()
    }

    /// Whether a look at them that is under way when nobody needs them any more is waited for. It is, unless the process ends
    /// without running exit handlers: the driver's, beside a thread that is in the driver, may never return.
    fn are_waited_for(&self) -> bool {
        true
    }

    /// What is started to run functions that somebody has written for devices like these: a program, and what it is told. Each has
    /// a process of its own.
    fn helper(&self) -> Option<Vec<OsString>> {
        None
    }

    /// Whether [`Devices::all`], and the rates of all there are, can be had at once.
    fn are_ready(&self) -> bool {
        true
    }
}

/// A device that runs programs. All methods may be called from many threads.
pub trait Backend: Debug + Send + Sync {
    /// What statements call it: `cuda:0`.
    fn name(&self) -> &str;

    /// What it is: its maker's name for it.
    fn description(&self) -> &str;

    /// How fast it is, measured by the first call.
    ///
    /// # Errors
    /// [`Error::Device`].
    fn rates(&self) -> Result<Rates>;

    /// Whether [`Backend::rates`] are known.
    fn is_measured(&self) -> bool {
        true
    }

    /// Looks at a program and what it reads, and gets ready to run it. Reads no row, and compiles nothing.
    ///
    /// # Errors
    /// Why this device does not run it.
    fn prepare(&self, execution: &Execution, hints: &Hints) -> std::result::Result<Arc<dyn Prepared>, Refusal>;

    /// Looks at a program that collects rows, and gets ready to add up what fits of models need of them, such as `sums`. Reads
    /// no row, and compiles nothing.
    ///
    /// # Errors
    /// Why this device does not do it.
    fn prepare_fit(
        &self,
        _execution: &Execution,
        _hints: &Hints,
        _sums: &Sums,
    ) -> std::result::Result<Arc<dyn Fit>, Refusal> {
        Err(Refusal("fits of models".into()))
    }

    /// What it keeps in its memory, if it keeps anything.
    fn residency(&self) -> Option<&dyn Residency> {
        None
    }

    /// Columns as arrays in its memory, for other programs, if it makes any.
    fn arrays(&self) -> Option<&dyn Arrays> {
        None
    }

    /// The NUMA node that it is attached to, where that is known and there are several.
    fn node(&self) -> Option<u32> {
        None
    }

    /// The devices that it is made of, if it is several ([`crate::spread`]).
    fn parts(&self) -> &[Arc<dyn Backend>] {
        &[]
    }
}

/// A program that a device can run; as often as it is asked to, one after the other or at once.
pub trait Prepared: Debug + Send + Sync {
    /// What it will take.
    fn estimate(&self) -> Estimate;

    /// Runs it, and gives the answer to `take` in chunks of columns, as [`ResultColumn`]s of the CPU's would be. Blocks until it
    /// is done. What came of each pipeline.
    ///
    /// # Errors
    /// Those of the data, as on the CPU; those of `take`; [`Error::Cancelled`] soon after it was; [`Error::Memory`] if it does
    /// not fit on the device; [`Error::Device`] for all that went wrong with the device itself.
    fn run(&self, control: &Control<'_>, take: &mut Take<'_>) -> Result<Vec<DeviceRan>>;
}

/// Takes a chunk of an answer.
pub type Take<'a> = dyn FnMut(Vec<ResultColumn>) -> Result<()> + 'a;

/// Why a device does not run a program: what of the program it has no code for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal(pub String);

/// What is known of a program's sources beside what they say themselves.
#[derive(Clone, Debug, Default)]
pub struct Hints {
    /// Of each source: where its rows are stored. `None` for rows that are in memory only.
    pub stored: Vec<Option<Stored>>,
    /// How much of a device's memory may be taken.
    pub memory: MemoryLimit,
    /// Whether what is brought there for a query may stay.
    pub residence: Residence,
    /// By which way it is brought.
    pub path: DevicePath,
    /// Of each source, of each segment of its blocks by its number there: where it had better be read, if there are several
    /// devices. What is missing is not known.
    pub sites: Vec<Vec<Site>>,
}

/// Where a segment had better be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Site {
    /// The devices that it belongs on, by name; any, if there are none.
    pub devices: Arc<[String]>,
    /// The NUMA node that its storage is attached to.
    pub node: Option<u32>,
}

/// Whether columns that a query brings to a device stay there. What was loaded to stay is there in any case, and is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Residence {
    /// While there is room.
    #[default]
    Auto,
    /// No: each query has what is not there streamed, and leaves nothing behind.
    Off,
}

/// By which way stored bytes are to get to a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DevicePath {
    /// Straight there, where that is known to be possible; as `Staged` elsewhere.
    #[default]
    Auto,
    /// Through the host's memory, which may be a few buffers that only pass bytes on, where none of it is kept.
    Staged,
    /// By the device's library for reading files (cuFile), whichever way that takes.
    Cufile,
    /// Straight there: whatever turns out to have taken another way is an error.
    Direct,
}

/// By which way they got there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakenPath {
    /// Through the host's memory, verified and copied by us.
    Staged,
    /// Past the page cache, through a few pinned buffers of ours that nobody looks into; verified on the device.
    Bounced,
    /// Straight there, by what the library has counted.
    Direct,
    /// Through buffers of the library's in host memory.
    Compat,
    /// Some this way, some that way.
    Mixed,
    /// By the library, which does not say how.
    NotVerified,
}

impl TakenPath {
    /// Its stable name.
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

/// Stored bytes that got to a device, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Brought {
    /// The way.
    pub path: TakenPath,
    /// Bytes that the device's library read, or that were bounced; none if all went through the host.
    pub bytes: u64,
    /// How we know, or why it was this way.
    pub because: String,
}

impl Brought {
    /// Those of the bytes that were bounced, where all were that did not go through the host.
    pub fn bounced_bytes(&self) -> u64 {
        if self.path == TakenPath::Bounced { self.bytes } else { 0 }
    }

    /// Adds what came besides.
    pub fn add(&mut self, other: &Self) {
        // What can goes past the host, and the rest through it: that is told by the bytes.
        match (self.bytes, other.bytes) {
            (_, 0) => {}
            (0, _) => (self.path, self.because) = (other.path, other.because.clone()),
            _ if self.path == other.path => self.because.clone_from(&other.because),
            _ => (self.path, self.because) = (TakenPath::Mixed, format!("{}; {}", self.because, other.because)),
        }
        self.bytes += other.bytes;
    }
}

/// What a device's memory may be used up to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryLimit {
    /// So many bytes.
    Bytes(u64),
    /// So many hundredths of what it has.
    Percent(u64),
}

impl MemoryLimit {
    /// Of a device with so much.
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

/// Where the rows of a source are stored.
#[derive(Clone, Debug)]
pub struct Stored {
    /// The block that each of its morsels is.
    pub blocks: Arc<BlockList>,
    /// The place in the segments of each of its columns.
    pub columns: Vec<usize>,
}

impl Stored {
    /// Bytes of all of its columns' blocks, as they are stored.
    pub fn bytes(&self) -> u64 {
        self.columns.iter().map(|column| self.blocks.stored_bytes(*column)).sum()
    }

    /// Some of its morsels, in runs of one segment each, by the segments' numbers here.
    pub(crate) fn part<M: Iterator<Item = usize>>(&self, runs: impl IntoIterator<Item = (usize, M)>) -> Self {
        let mut blocks = BlockList::default();
        for (segment, morsels) in runs {
            blocks.push_all(&self.blocks.segments()[segment], morsels.map(|morsel| self.blocks.at(morsel).1));
        }
        Self { blocks: Arc::new(blocks), columns: self.columns.clone() }
    }

    /// The runs of morsels that are of one segment.
    pub fn runs(&self) -> Vec<SegmentRun> {
        let run = |run: &BlockRun| SegmentRun {
            segment: Arc::clone(&self.blocks.segments()[run.segment]),
            morsels: run.places.clone(),
            is_whole: self.blocks.is_whole(run),
        };
        self.blocks.runs().iter().map(run).collect()
    }

    /// Bytes of one column of a run of its, by the column's place in the segments.
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

/// Morsels of one segment in a row.
#[derive(Clone, Debug)]
pub struct SegmentRun {
    /// The segment.
    pub segment: Arc<Segment>,
    /// The morsels.
    pub morsels: Range<usize>,
    /// Whether they are all of its blocks in their order.
    pub is_whole: bool,
}

/// A segment's name while it is open: it is the same as long as that is the same one, and no other ever has it.
#[derive(Clone, Debug)]
pub struct SegmentKey(Weak<Segment>);

impl SegmentKey {
    /// The name of a segment.
    pub fn of(segment: &Arc<Segment>) -> Self {
        // The address stays taken as long as the name is known.
        Self(Arc::downgrade(segment))
    }

    /// Whether nobody has it open any more: no reader will come.
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

/// Some order, the same for everybody while the segments are open.
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

/// What a run is carried out under.
#[derive(Clone, Copy)]
pub struct Control<'a> {
    /// Set when nobody waits for the answer any more.
    pub cancelled: &'a AtomicBool,
    /// Whether steps count the rows that they see and pass on, which takes time.
    pub counts_steps: bool,
    /// Of each source, by which its bytes are counted.
    pub ledgers: &'a [Arc<Ledger>],
    /// Is told rows of morsels that have been dealt with, for progress.
    pub did_rows: &'a (dyn Fn(u64) + Sync),
    /// The host's memory that may be taken to put an answer together, if it takes that.
    pub budget: &'a Budget,
}

impl Debug for Control<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control").field("cancelled", self.cancelled).finish_non_exhaustive()
    }
}

/// What a run will take, as far as that is known before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Estimate {
    /// Stored bytes that it will read, as often as it does.
    pub read_bytes: u64,
    /// Those of them that are in the device's memory by then; all others are moved there.
    pub resident_bytes: u64,
    /// Kernels that are not compiled yet.
    pub to_compile: usize,
}

/// How fast a device is, and what is around it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// From its memory to its memory, bytes read and bytes written counted together: what no kernel can be faster than.
    pub copy_bytes_per_sec: f64,
    /// From host memory to its memory.
    pub to_device_bytes_per_sec: f64,
    /// From its memory to host memory.
    pub to_host_bytes_per_sec: f64,
    /// What a pipeline takes that reads nothing: launch, wait, and the answer's way back.
    pub launch: Duration,
    /// What a kernel takes to compile.
    pub compile: Duration,
}

/// How a pipeline's kernel came to be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compiled {
    /// It was compiled, which took so long.
    Now(Duration),
    /// It was in memory, or in the cache on disk.
    Before,
}

/// What came of a pipeline on a device.
#[derive(Clone, Debug)]
pub struct DeviceRan {
    /// Rows of the morsels that were left to read.
    pub rows: u64,
    /// Morsels ruled out by the keys of join tables, where somebody knows which table's.
    pub skipped: Vec<Skipped>,
    /// Others that were ruled out, by whatever the pipeline looks for.
    pub morsels_skipped: u64,
    /// What each step has seen and passed on; empty if nobody has counted.
    pub steps: Vec<StepRows>,
    /// Rows that left its sink, if it is not a table's: groups, or rows.
    pub rows_out: u64,
    /// The join table that it built.
    pub table: Option<TableFacts>,
    /// How it got at the first rows in an order.
    pub top: Option<TopFacts>,
    /// Bytes of its sink on the device.
    pub sink_bytes: u64,
    /// How often its source was gone through: more than once if a join table or groups did not fit on the device, and were
    /// there one part after the other.
    pub passes: u64,
    /// From its first byte to its result.
    pub elapsed: Duration,
    /// Its kernels' time by the device's own clock, waiting not included.
    pub kernel: Duration,
    /// How many there were.
    pub launches: u64,
    /// What its kernel took to compile.
    pub compiled: Compiled,
    /// Stored bytes that its kernels read and that were on the device.
    pub resident_bytes: u64,
    /// Bytes that were moved there for it.
    pub moved_bytes: u64,
    /// Bytes that came back.
    pub returned_bytes: u64,
    /// What was brought for it alone, batch by batch, if anything was.
    pub streamed: Option<Streamed>,
    /// How what was moved there from storage got there, where there was a choice.
    pub brought: Option<Brought>,
    /// Of each device what came of its part, if there were several. Times above are then those of the last to be done, all else
    /// is of all of them together, and what each of them has done alike is told once.
    pub shares: Vec<ShareRan>,
}

/// What came of a part of a pipeline.
#[derive(Clone, Debug)]
pub struct ShareRan {
    /// The device.
    pub device: String,
    /// Blocks of the last pipeline's source that were its share.
    pub blocks: u64,
    /// What came of it there.
    pub ran: DeviceRan,
}

/// Columns that came to a device while a pipeline ran there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Streamed {
    /// Batches, each of which was copied and read as one; of all attempts at the pipeline.
    pub batches: u64,
    /// Bytes of them: a part of what was moved.
    pub bytes: u64,
    /// How long the device had nothing to do but wait for them, by its own clock.
    pub waited: Duration,
}

impl DeviceRan {
    /// Nothing yet.
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

/// Columns that a device keeps in its memory, encoded as they are stored. All methods may be called from many threads.
///
/// What a query brings stays while there is room; what was loaded here stays until it is evicted, or other columns that are
/// loaded need its place. Nothing goes that a query uses.
pub trait Residency: Debug + Send + Sync {
    /// Makes columns of a source resident, and keeps them. Those that are there stay. What is read from storage for it takes
    /// the way that is asked for.
    ///
    /// # Errors
    /// Those of the storage, [`Error::Memory`] if they do not fit beside what has to stay, and [`Error::Device`].
    fn load(
        &self,
        source: &Arc<dyn Source>,
        stored: &Stored,
        how: (MemoryLimit, DevicePath),
        control: &Control<'_>,
    ) -> Result<Loaded>;

    /// Lets columns of segments go, the one by its place in the segment; when the last query that uses them ends, if one
    /// does. How many bytes those were.
    fn evict(&self, columns: &[(SegmentKey, usize)]) -> u64;

    /// Stored bytes of these columns that are resident.
    fn resident_bytes(&self, stored: &Stored) -> u64;

    /// Lets go of what belongs to segments that nobody has open.
    fn sweep(&self);

    /// All there is.
    fn list(&self) -> Vec<Resident>;
}

/// What loading came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Bytes on the device now.
    pub bytes: u64,
    /// Those that were moved there for it.
    pub moved_bytes: u64,
}

/// A column of a segment, or some blocks of it, in a device's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resident {
    /// The segment.
    pub segment: SegmentKey,
    /// The column's place in it.
    pub column: usize,
    /// Bytes it takes.
    pub bytes: u64,
    /// How often a query found it there.
    pub hits: u64,
    /// Whether it was loaded to stay.
    pub is_kept: bool,
    /// Queries that use it now.
    pub pins: u64,
}

impl Error {
    /// An error of a device.
    pub fn device(device: impl Into<String>, what: impl Into<String>) -> Self {
        Self::Device { device: device.into(), what: what.into() }
    }
}
