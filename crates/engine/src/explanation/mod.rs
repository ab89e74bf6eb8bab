//! Explanations of queries as data: a tree of operators with conditions, blocks, rows, bytes and
//! times, and the ledger of the whole. `explain` builds them from plans.
//!
//! - `text`: for people, EXPLAIN.
//! - `json`: for programs, FORMAT JSON and `onehop explain`.
//! - `html`: a page, for `onehop explain --html` and the server.

mod html;
mod json;
mod sankey;
mod text;

use std::time::Duration;

use arrow::array::{Array, ArrayRef, RecordBatch};
use onehop_io::LedgerSnapshot;
use onehop_pipeline::backend::{Brought, Compiled, Streamed};
use onehop_pipeline::cpu::{Grouping, TableFacts};
use onehop_segment::AheadFacts;

pub use self::html::STYLE as EXPLANATION_STYLE;

/// The time at which a plan is explained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// Before it runs.
    Planned,
    /// While it runs: statistics exist for scans, and for pipelines that have ended.
    Running,
    /// After it has run.
    Ended,
}

/// The execution of a query to be explained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExplainMode {
    /// It is planned and not executed.
    Plan,
    /// It runs, and its rows are counted and discarded.
    Analyze,
    /// As [`ExplainMode::Analyze`], but a device does not count the rows of steps, so that its
    /// kernels take as long as in a normal run.
    Time,
}

impl ExplainMode {
    /// Returns whether the query runs.
    pub(crate) fn runs(self) -> bool {
        self != Self::Plan
    }
}

/// An explained query.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The query.
    pub sql: String,
    /// The operator that returns the rows.
    pub plan: Node,
    /// The reasons why parts of it are not fused, each once.
    pub not_fused: Vec<String>,
    /// The reason why the query would fail, known without running it: `exec.fallback = 'error'` and
    /// a part that is not fused, or a required GPU that is not available.
    pub fails: Option<String>,
    /// Its totals, if it was run.
    pub totals: Option<Totals>,
    /// The passes that its plan went through, if they were logged.
    pub passes: Vec<PassRun>,
}

/// A run of a pass over a plan.
#[derive(Clone, Debug)]
pub struct PassRun {
    /// The stage: `analyzer`, `optimizer` or `physical`.
    pub stage: &'static str,
    /// The name of the pass, as in `onehop_passes`.
    pub pass: String,
    /// The time that it took.
    pub time: Duration,
    /// The plan before and after it, if plans are logged and it changed this one.
    pub change: Option<PlanChange>,
}

/// A plan before and after a pass, in DataFusion's indented form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanChange {
    /// Before the pass.
    pub before: String,
    /// After the pass.
    pub after: String,
}

/// Totals of a whole query.
#[derive(Clone, Copy, Debug)]
pub struct Totals {
    /// Time spent parsing and planning.
    pub plan_time: Duration,
    /// Time spent running.
    pub run_time: Duration,
    /// Rows of the answer.
    pub rows: u64,
    /// Bytes of the answer, in memory.
    pub answer_bytes: u64,
    /// The data that was moved, including planning.
    pub ledger: LedgerSnapshot,
}

/// An operator.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its name: `CpuScan`, `CpuFilter`, `CpuJoin`, `CpuPreAgg`, `CpuCollect`, `CpuTopK`, the same
    /// with `Gpu` if it is placed on a device or ran there, or the name of DataFusion's operator.
    pub operator: String,
    /// Its description.
    pub facts: Facts,
    /// The number of input rows, once it has run, if known.
    pub rows_in: Option<u64>,
    /// The number of output rows, once it has run.
    pub rows_out: Option<u64>,
    /// Its time: of a pipeline from its first block to its result, of DataFusion's operators summed
    /// over threads.
    pub time: Option<Duration>,
    /// Its fraction of the time of its pipeline's threads, by samples.
    pub sampled: Option<Sampled>,
    /// The placement of its pipelines, if there was a choice. Only for the operator that returns
    /// their rows.
    pub placed: Option<PlacementFacts>,
    /// Its statistics on each of several devices. Only for the operator that returns the rows of
    /// pipelines.
    pub shares: Vec<DeviceShare>,
    /// Remarks: why it is not fused, or that memory ran out.
    pub remarks: Vec<String>,
    /// Its inputs. A join's first is the streamed side.
    pub inputs: Vec<Node>,
}

/// A fraction of the time of a pipeline's threads, estimated from samples.
#[derive(Clone, Copy, Debug)]
pub struct Sampled {
    /// The time.
    pub time: Duration,
    /// The fraction, from 0 to 1.
    pub share: f64,
}

/// Statistics of a pipeline's time.
#[derive(Clone, Copy, Debug)]
pub struct PipelineTimes {
    /// The time from its first block to its result.
    pub elapsed: Duration,
    /// The maximum number of threads that worked on it.
    pub threads: u64,
    /// The time of all of its threads, including waits.
    pub thread_time: Duration,
    /// The processor time of these threads.
    pub cpu: Duration,
    /// The part of `elapsed` that merged the threads' results: a table, or groups.
    pub finishing: Duration,
    /// Statistics of a device, if it ran there. Then no thread worked on it.
    pub device: Option<DevicePipeline>,
}

/// Statistics of a pipeline on a device.
#[derive(Clone, Copy, Debug)]
pub struct DevicePipeline {
    /// The time of its kernels by the device's clock, without waits.
    pub kernel: Duration,
    /// The number of kernel launches.
    pub launches: u64,
    /// Tells whether the kernels had to be compiled, and the time that took.
    pub compiled: Compiled,
    /// Stored bytes that they read, moved there for it or not.
    pub read_bytes: u64,
    /// Bytes that were returned to the host.
    pub returned_bytes: u64,
    /// The measured rate at which the device copies within its memory, in bytes per second.
    pub copy_bytes_per_sec: Option<f64>,
    /// The number of passes over its input: more than one if a table or groups were built part by
    /// part.
    pub passes: u64,
    /// The data that was streamed to the device while it ran.
    pub streamed: Option<Streamed>,
}

impl DevicePipeline {
    /// Returns the stored bytes per second while kernels ran.
    pub fn bytes_per_sec(&self) -> Option<f64> {
        (!self.kernel.is_zero()).then(|| self.read_bytes as f64 / self.kernel.as_secs_f64())
    }

    /// Returns this rate as a fraction of the device's copy rate.
    pub fn share(&self) -> Option<f64> {
        let copy = self.copy_bytes_per_sec.filter(|rate| *rate > 0.0)?;
        Some(self.bytes_per_sec()? / copy)
    }
}

/// The placement of pipelines, and the reason for it.
#[derive(Clone, Debug)]
pub struct PlacementFacts {
    /// The name and description of the device; `None` for the CPU.
    pub device: Option<(String, String)>,
    /// The reason.
    pub why: String,
    /// The estimated cost.
    pub estimate: Option<EstimateFacts>,
}

/// The estimated cost of pipelines.
#[derive(Clone, Copy, Debug)]
pub struct EstimateFacts {
    /// On the CPU.
    pub cpu: Duration,
    /// On the device.
    pub device: Duration,
    /// Stored bytes to be read.
    pub read_bytes: u64,
    /// The part of these bytes in the device's memory.
    pub resident_bytes: u64,
    /// The part that belongs there, and will be there after the query.
    pub kept_bytes: u64,
    /// Kernels that are not compiled yet.
    pub to_compile: u64,
}

/// Statistics of a pipeline on one of several devices.
#[derive(Clone, Debug)]
pub struct DeviceShare {
    /// The device.
    pub device: String,
    /// Blocks that were assigned to this device only.
    pub blocks: u64,
    /// Rows of these blocks that were left once the join tables existed.
    pub rows: u64,
    /// The time from its first byte to its answer.
    pub elapsed: Duration,
    /// Stored bytes that were in its memory.
    pub resident_bytes: u64,
    /// Bytes that were moved there.
    pub moved_bytes: u64,
    /// Statistics of its kernels.
    pub pipeline: DevicePipeline,
}

/// The sources of a scan's bytes on a device.
#[derive(Clone, Debug)]
pub struct DeviceScan {
    /// The device.
    pub device: String,
    /// Stored bytes that were in its memory.
    pub resident_bytes: u64,
    /// Bytes that were moved there.
    pub moved_bytes: u64,
    /// The path of the bytes from storage, if there was a choice.
    pub brought: Option<Brought>,
}

/// The description of an operator.
#[derive(Clone, Debug)]
pub enum Facts {
    /// A scan of a table of the database.
    Scan(Box<ScanFacts>),
    /// A condition.
    Filter(String),
    /// A join with a table that was built from the second input.
    Join(Box<JoinFacts>),
    /// Groups.
    Groups(GroupFacts),
    /// The rows of a pipeline as they are.
    Rows(RowFacts),
    /// The first rows in an order.
    Top(TopFacts),
    /// An operator of DataFusion's, in its words.
    Other(String),
}

/// A scan.
#[derive(Clone, Debug)]
pub struct ScanFacts {
    /// The table.
    pub table: String,
    /// Its name in the query.
    pub alias: String,
    /// Columns that it reads.
    pub columns: Vec<String>,
    /// Those of them that are text without a dictionary, read only when a condition or the answer
    /// needs them.
    pub late_columns: Vec<String>,
    /// Stored bytes of these columns, in all of the table's blocks.
    pub stored_bytes: u64,
    /// Stored bytes of these columns in the blocks that are left after planning.
    pub planned_bytes: u64,
    /// The table's blocks.
    pub blocks: u64,
    /// Blocks that zone maps exclude.
    pub skipped_by_zone_map: u64,
    /// Blocks in partitions that cannot match.
    pub skipped_by_partition: u64,
    /// Blocks that the keys of join tables exclude, by join; known once it has run.
    pub skipped_by_joins: Vec<(String, u64)>,
    /// Blocks that cannot contain any of the first rows in an order; known once it has run.
    pub skipped_by_top_k: u64,
    /// Rows that it reads besides those of blocks: no segment holds them yet.
    pub fresh_rows: u64,
    /// Deleted rows in the blocks that are left after planning.
    pub deleted_rows: u64,
    /// The remaining blocks of each partition, if the table has any.
    pub partitions: Vec<PartitionFacts>,
    /// The condition that zone maps were tested with.
    pub zone_condition: Option<String>,
    /// The I/O path of its bytes, from the files as they were opened.
    pub path: String,
    /// The number of rows after which it stops.
    pub limit: Option<u64>,
    /// The data that it moved, once it has run as a part of a pipeline. Otherwise the query's
    /// ledger has it.
    pub ledger: Option<LedgerSnapshot>,
    /// The data that it read ahead, once it has run.
    pub ahead: Option<AheadFacts>,
    /// Blocks and bytes that it read by itself, outside a pipeline.
    pub read: Option<(u64, u64)>,
    /// The sources of its bytes, once it has run on a device.
    pub device: Option<DeviceScan>,
}

/// The remaining blocks of a partition.
#[derive(Clone, Debug, Default)]
pub struct PartitionFacts {
    /// Its name.
    pub name: String,
    /// Its blocks.
    pub blocks: u64,
    /// All of them, if nothing in it can match.
    pub skipped_by_partition: u64,
    /// Blocks that zone maps exclude.
    pub skipped_by_zone_map: u64,
    /// Blocks that the keys of join tables exclude; known once it has run.
    pub skipped_by_joins: u64,
}

/// A join.
#[derive(Clone, Debug)]
pub struct JoinFacts {
    /// `inner`, `left`, `semi`, `anti`, or `not in`, which is a null-aware anti join.
    pub kind: &'static str,
    /// Its equalities.
    pub on: String,
    /// The key of its table.
    pub keys: Vec<String>,
    /// The payload of its table's rows.
    pub payload: Vec<String>,
    /// The table as planned.
    pub planned: Option<TableFacts>,
    /// The table as built.
    pub built: Option<TableFacts>,
    /// The times of its pipeline.
    pub build: Option<PipelineTimes>,
    /// The part of these for collecting the table's rows.
    pub collecting: Option<Sampled>,
}

/// Groups.
#[derive(Clone, Debug)]
pub struct GroupFacts {
    /// The keys of a group. Without keys there is one group.
    pub keys: Vec<String>,
    /// The aggregates of each.
    pub aggregates: Vec<String>,
    /// The grouping algorithm.
    pub grouping: Option<Grouping>,
    /// The memory of all threads' groups, in bytes.
    pub bytes: Option<u64>,
    /// The times of their pipeline.
    pub pipeline: Option<PipelineTimes>,
}

/// The rows that leave a pipeline as they are made.
#[derive(Clone, Debug)]
pub struct RowFacts {
    /// Their columns.
    pub columns: Vec<String>,
    /// The times of their pipeline.
    pub pipeline: Option<PipelineTimes>,
}

/// The first rows in an order.
#[derive(Clone, Debug)]
pub struct TopFacts {
    /// The maximum number of rows.
    pub rows: u64,
    /// The sort keys.
    pub keys: Vec<String>,
    /// Their columns.
    pub columns: Vec<String>,
    /// Rows that came too late in the order, by a key that is read before their other columns.
    pub rows_left_out: Option<u64>,
    /// The memory of all threads' candidates, in bytes.
    pub bytes: Option<u64>,
    /// The times of their pipeline.
    pub pipeline: Option<PipelineTimes>,
}

impl Explanation {
    /// Renders it for people, in lines.
    pub fn text(&self) -> String {
        text::text(self)
    }

    /// Returns a line for each pass that the plan went through, and the plan after each pass that
    /// changed it. Empty if the passes were not logged.
    pub fn passes_text(&self) -> String {
        text::passes(&self.passes)
    }

    /// As a page that stands by itself: one file, which loads nothing.
    pub fn html(&self) -> String {
        html::page(self)
    }

    /// Renders the part of that page below the query's text, for a page of the caller's with
    /// [`EXPLANATION_STYLE`]. All text from a query is escaped.
    pub fn html_body(&self) -> String {
        html::body(self)
    }

    /// Renders it for programs. The guide's SQL page describes every member.
    pub fn json(&self) -> serde_json::Value {
        json::json(self)
    }
}

impl Totals {
    /// Returns a summary in lines, each with a name.
    pub fn lines(&self) -> Vec<(&'static str, String)> {
        text::summary(self)
    }
}

impl Node {
    /// Returns its description in a line.
    pub fn title(&self) -> String {
        text::title(&self.facts)
    }

    /// Returns its figures in lines.
    pub fn figures(&self) -> Vec<String> {
        text::figures(self)
    }

    /// Calls `f` with this operator and all below it.
    pub fn for_each<'a>(&'a self, f: &mut impl FnMut(&'a Node)) {
        f(self);
        self.inputs.iter().for_each(|input| input.for_each(f));
    }
}

impl PartitionFacts {
    /// Returns the blocks that are not excluded, as far as known.
    pub fn blocks_left(&self) -> u64 {
        self.blocks - self.skipped_by_partition - self.skipped_by_zone_map - self.skipped_by_joins
    }
}

impl ScanFacts {
    /// Returns the number of partitions with blocks left, as far as known.
    pub fn partitions_left(&self) -> u64 {
        self.partitions.iter().filter(|partition| partition.blocks_left() > 0).count() as u64
    }

    /// Returns the blocks that are not excluded, as far as known.
    pub fn blocks_left(&self) -> u64 {
        let by_joins: u64 = self.skipped_by_joins.iter().map(|(_, blocks)| blocks).sum();
        self.blocks - self.skipped_by_zone_map - self.skipped_by_partition - by_joins - self.skipped_by_top_k
    }
}

/// The kind of a node that DataFusion runs although it reads tables of the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    Aggregate,
    Join,
    /// The first rows in an order. These cause no notice, since any plan may sort.
    Sort,
}

/// The reason why DataFusion runs an aggregate, a join or an ORDER BY with a LIMIT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub what: Refused,
    /// The names of its columns, which its operator has, too.
    pub columns: Vec<String>,
    /// Tables of the database below it, sorted. A node without such tables needs no reason.
    pub tables: Vec<String>,
    pub reason: String,
}

/// Returns the reasons why parts of a query are not fused, each once.
pub(crate) fn reasons(refused: &[Refusal]) -> Vec<String> {
    let mut reasons: Vec<String> = Vec::new();
    for Refusal { reason, .. } in refused {
        if !reasons.contains(reason) {
            reasons.push(reason.clone());
        }
    }
    reasons
}

/// Returns the bytes of the rows of a batch, which may be a slice of a larger one.
pub(crate) fn answer_bytes(batch: &RecordBatch) -> u64 {
    let bytes = |array: &ArrayRef| match array.to_data().get_slice_memory_size() {
        Ok(bytes) => bytes,
        Err(_) => array.get_array_memory_size(),
    };
    batch.columns().iter().map(|array| bytes(array) as u64).sum()
}
