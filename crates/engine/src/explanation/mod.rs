//! Explanations of queries as data: a tree of operators with conditions, blocks, rows, bytes and times, and
//! the ledger of the whole. `explain` builds them from plans.
//!
//! - `text`: for people, EXPLAIN.
//! - `json`: for programs, FORMAT JSON and `onehop explain`.
//! - `html`: a page, `onehop explain --html` and the server's.

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

/// When a plan is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// Nothing has run.
    Planned,
    /// It runs: what its scans have moved is known, and what has ended before the rest.
    Running,
    /// It has run.
    Ended,
}

/// Whether a query is run to be explained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExplainMode {
    /// It is planned, and nothing of it is executed.
    Plan,
    /// It is run, and its rows are counted and thrown away.
    Analyze,
    /// As [`ExplainMode::Analyze`], but a device does not count the rows of steps: its kernels take as long as they do when
    /// nobody asks.
    Time,
}

impl ExplainMode {
    /// Whether the query is run.
    pub(crate) fn runs(self) -> bool {
        self != Self::Plan
    }
}

/// A query, explained.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The query.
    pub sql: String,
    /// The operator that the rows come out of.
    pub plan: Node,
    /// Why parts of it are not fused, each reason once.
    pub not_fused: Vec<String>,
    /// Why the query would fail, known without running it: `exec.fallback = 'error'` and something that is not fused.
    pub fails: Option<String>,
    /// What came of it, if it was run.
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

/// What came of a whole query.
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
    /// What was moved, planning included.
    pub ledger: LedgerSnapshot,
}

/// An operator.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its name: `CpuScan`, `CpuFilter`, `CpuJoin`, `CpuPreAgg`, `CpuCollect`, `CpuTopK`, the same with `Gpu` for what is
    /// placed on a device or ran there, or DataFusion's.
    pub operator: String,
    /// What it does.
    pub facts: Facts,
    /// Rows that it saw, once it has run, where that is known.
    pub rows_in: Option<u64>,
    /// Rows that it passed on, once it has run.
    pub rows_out: Option<u64>,
    /// How long it took: a pipeline from its first block to its result, DataFusion's operators summed over threads.
    pub time: Option<Duration>,
    /// Its part in the time of its pipeline's threads, by samples.
    pub sampled: Option<Sampled>,
    /// Where its pipelines run and why, of the operator that the rows of pipelines come out of, if there was a choice.
    pub placed: Option<PlacementFacts>,
    /// What came of it on each of several devices, of the operator that the rows of pipelines come out of.
    pub shares: Vec<DeviceShare>,
    /// What is to be known about it: why it is not fused, or that memory ran out.
    pub remarks: Vec<String>,
    /// Where its rows come from. A join's first is the side that streams through.
    pub inputs: Vec<Node>,
}

/// A part of the time that the threads of a pipeline have spent, as samples tell.
#[derive(Clone, Copy, Debug)]
pub struct Sampled {
    /// The time.
    pub time: Duration,
    /// The part: 1 is all of it.
    pub share: f64,
}

/// What a pipeline took.
#[derive(Clone, Copy, Debug)]
pub struct PipelineTimes {
    /// From its first block to its result.
    pub elapsed: Duration,
    /// Threads that worked on it, at most.
    pub threads: u64,
    /// What they spent on it, waiting included, all of them together.
    pub thread_time: Duration,
    /// The processor's time in that.
    pub cpu: Duration,
    /// How much of `elapsed` it took to put together what the threads had: a table, or groups.
    pub finishing: Duration,
    /// What it took on a device, if that is where it ran. No thread worked on it then.
    pub device: Option<DevicePipeline>,
}

/// What a pipeline took on a device.
#[derive(Clone, Copy, Debug)]
pub struct DevicePipeline {
    /// The time of its kernels by the device's clock, waiting not included.
    pub kernel: Duration,
    /// How many there were.
    pub launches: u64,
    /// Whether they had to be compiled, and how long that took.
    pub compiled: Compiled,
    /// Stored bytes that they read, moved there for it or not.
    pub read_bytes: u64,
    /// Bytes that came back.
    pub returned_bytes: u64,
    /// Bytes a second that the device copies in its memory, as measured.
    pub copy_bytes_per_sec: Option<f64>,
    /// How often it went through what it reads: more than once if a table or groups were there part by part.
    pub passes: u64,
    /// What came to the device while it ran.
    pub streamed: Option<Streamed>,
}

impl DevicePipeline {
    /// Stored bytes a second, while kernels ran.
    pub fn bytes_per_sec(&self) -> Option<f64> {
        (!self.kernel.is_zero()).then(|| self.read_bytes as f64 / self.kernel.as_secs_f64())
    }

    /// The part of the device's copy rate that this is.
    pub fn share(&self) -> Option<f64> {
        let copy = self.copy_bytes_per_sec.filter(|rate| *rate > 0.0)?;
        Some(self.bytes_per_sec()? / copy)
    }
}

/// Where pipelines run, and why.
#[derive(Clone, Debug)]
pub struct PlacementFacts {
    /// The device that they were placed on, with what it is; `None` for the CPU.
    pub device: Option<(String, String)>,
    /// Why.
    pub why: String,
    /// What they were estimated to take.
    pub estimate: Option<EstimateFacts>,
}

/// What pipelines were estimated to take.
#[derive(Clone, Copy, Debug)]
pub struct EstimateFacts {
    /// On the CPU.
    pub cpu: Duration,
    /// On the device.
    pub device: Duration,
    /// Stored bytes to be read.
    pub read_bytes: u64,
    /// Those of them that are in the device's memory.
    pub resident_bytes: u64,
    /// Those that belong there, and will be when the query has run.
    pub kept_bytes: u64,
    /// Kernels that nobody has compiled yet.
    pub to_compile: u64,
}

/// What a pipeline took on one of several devices.
#[derive(Clone, Debug)]
pub struct DeviceShare {
    /// The device.
    pub device: String,
    /// Blocks that were to be read there and nowhere else.
    pub blocks: u64,
    /// Rows of those that were left when join tables were there.
    pub rows: u64,
    /// From its first byte to its answer.
    pub elapsed: Duration,
    /// Stored bytes that were in its memory.
    pub resident_bytes: u64,
    /// Bytes that were moved there.
    pub moved_bytes: u64,
    /// What its kernels took.
    pub pipeline: DevicePipeline,
}

/// What a scan took from where, for a device.
#[derive(Clone, Debug)]
pub struct DeviceScan {
    /// The device.
    pub device: String,
    /// Stored bytes that were in its memory.
    pub resident_bytes: u64,
    /// Bytes that were moved there.
    pub moved_bytes: u64,
    /// How those of storage got there, where there was a choice.
    pub brought: Option<Brought>,
}

/// What an operator does.
#[derive(Clone, Debug)]
pub enum Facts {
    /// A scan of a table of the database.
    Scan(Box<ScanFacts>),
    /// A condition.
    Filter(String),
    /// A join with a table that was built of the second input.
    Join(Box<JoinFacts>),
    /// Groups.
    Groups(GroupFacts),
    /// The rows of a pipeline as they are.
    Rows(RowFacts),
    /// The first of them in an order.
    Top(TopFacts),
    /// An operator of DataFusion's, in its words.
    Other(String),
}

/// A scan.
#[derive(Clone, Debug)]
pub struct ScanFacts {
    /// The table.
    pub table: String,
    /// What the query calls it.
    pub alias: String,
    /// Columns that it reads.
    pub columns: Vec<String>,
    /// Those of them that are texts without a dictionary, read where a condition or the answer asks for them.
    pub late_columns: Vec<String>,
    /// Stored bytes of these columns, in all of the table's blocks.
    pub stored_bytes: u64,
    /// Stored bytes of these columns in the blocks that are left after planning.
    pub planned_bytes: u64,
    /// The table's blocks.
    pub blocks: u64,
    /// Blocks whose zone maps rule them out.
    pub skipped_by_zone_map: u64,
    /// Blocks in partitions that cannot match.
    pub skipped_by_partition: u64,
    /// Blocks that the keys of join tables rule out, by join; known once it has run.
    pub skipped_by_joins: Vec<(String, u64)>,
    /// Blocks that can have none of the first rows in an order, by then; known once it has run.
    pub skipped_by_top_k: u64,
    /// Rows that it reads beside those of blocks: no segment holds them yet.
    pub fresh_rows: u64,
    /// Rows of the blocks that are left after planning that are deleted.
    pub deleted_rows: u64,
    /// Of each partition what is left of it, if the table has any.
    pub partitions: Vec<PartitionFacts>,
    /// The condition that zone maps were tested with.
    pub zone_condition: Option<String>,
    /// How bytes travel, from the files as they were opened.
    pub path: String,
    /// It stops after so many rows.
    pub limit: Option<u64>,
    /// What it moved, once it has run as a part of a pipeline. Elsewhere the query's ledger has it.
    pub ledger: Option<LedgerSnapshot>,
    /// What it read before it was asked for, once it has run.
    pub ahead: Option<AheadFacts>,
    /// Blocks and bytes that it read by itself, outside of a pipeline.
    pub read: Option<(u64, u64)>,
    /// Where its bytes were, once it has run on a device.
    pub device: Option<DeviceScan>,
}

/// What is left of a partition.
#[derive(Clone, Debug, Default)]
pub struct PartitionFacts {
    /// Its name.
    pub name: String,
    /// Its blocks.
    pub blocks: u64,
    /// All of them, if nothing in it can match.
    pub skipped_by_partition: u64,
    /// Blocks whose zone maps rule them out.
    pub skipped_by_zone_map: u64,
    /// Blocks that the keys of join tables rule out; known once it has run.
    pub skipped_by_joins: u64,
}

/// A join.
#[derive(Clone, Debug)]
pub struct JoinFacts {
    /// `inner`, `left`, `semi`, `anti`, or `not in`, which is an anti join that minds NULLs.
    pub kind: &'static str,
    /// Its equalities.
    pub on: String,
    /// The key of its table.
    pub keys: Vec<String>,
    /// What a row of its table brings.
    pub payload: Vec<String>,
    /// The table as planned.
    pub planned: Option<TableFacts>,
    /// The table as built.
    pub built: Option<TableFacts>,
    /// What its pipeline took.
    pub build: Option<PipelineTimes>,
    /// Of that, collecting the table's rows.
    pub collecting: Option<Sampled>,
}

/// Groups.
#[derive(Clone, Debug)]
pub struct GroupFacts {
    /// What makes a group; one group without.
    pub keys: Vec<String>,
    /// What is computed of each.
    pub aggregates: Vec<String>,
    /// How they are found.
    pub grouping: Option<Grouping>,
    /// Bytes that they took, all threads together.
    pub bytes: Option<u64>,
    /// What their pipeline took.
    pub pipeline: Option<PipelineTimes>,
}

/// The rows that leave a pipeline as they are made.
#[derive(Clone, Debug)]
pub struct RowFacts {
    /// Their columns.
    pub columns: Vec<String>,
    /// What their pipeline took.
    pub pipeline: Option<PipelineTimes>,
}

/// The first rows in an order.
#[derive(Clone, Debug)]
pub struct TopFacts {
    /// How many.
    pub rows: u64,
    /// What they are in the order of.
    pub keys: Vec<String>,
    /// Their columns.
    pub columns: Vec<String>,
    /// Rows that came too late in the order, which was seen before anything else of them was read.
    pub rows_left_out: Option<u64>,
    /// Bytes that the candidates took, all threads together.
    pub bytes: Option<u64>,
    /// What their pipeline took.
    pub pipeline: Option<PipelineTimes>,
}

impl Explanation {
    /// For people, in lines.
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

    /// What is on that page below the query's text, for a page of somebody else's with [`EXPLANATION_STYLE`]. Nothing in it that
    /// comes from a query is markup.
    pub fn html_body(&self) -> String {
        html::body(self)
    }

    /// For programs. The guide's SQL page describes every member.
    pub fn json(&self) -> serde_json::Value {
        json::json(self)
    }
}

impl Totals {
    /// What is to be said about the whole, in lines with a name each.
    pub fn lines(&self) -> Vec<(&'static str, String)> {
        text::summary(self)
    }
}

impl Node {
    /// What it does, in a line.
    pub fn title(&self) -> String {
        text::title(&self.facts)
    }

    /// Its figures, in lines.
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
    /// Blocks that nothing rules out, as far as that is known.
    pub fn blocks_left(&self) -> u64 {
        self.blocks - self.skipped_by_partition - self.skipped_by_zone_map - self.skipped_by_joins
    }
}

impl ScanFacts {
    /// Partitions of which blocks are left, as far as that is known.
    pub fn partitions_left(&self) -> u64 {
        self.partitions.iter().filter(|partition| partition.blocks_left() > 0).count() as u64
    }

    /// Blocks that nothing rules out, as far as that is known.
    pub fn blocks_left(&self) -> u64 {
        let by_joins: u64 = self.skipped_by_joins.iter().map(|(_, blocks)| blocks).sum();
        self.blocks - self.skipped_by_zone_map - self.skipped_by_partition - by_joins - self.skipped_by_top_k
    }
}

/// What stays with DataFusion although it is about tables of the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    Aggregate,
    Join,
    /// The first rows in an order: nobody has to be told of a plan that sorts, as any does.
    Sort,
}

/// Why an aggregate, a join or an ORDER BY with a LIMIT stays with DataFusion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub what: Refused,
    /// The names of its columns, which its operator has, too.
    pub columns: Vec<String>,
    /// Tables of the database below it, sorted. Nobody wonders why what reads none is not fused.
    pub tables: Vec<String>,
    pub reason: String,
}

/// Why parts of a query are not fused, each reason once.
pub(crate) fn reasons(refused: &[Refusal]) -> Vec<String> {
    let mut reasons: Vec<String> = Vec::new();
    for Refusal { reason, .. } in refused {
        if !reasons.contains(reason) {
            reasons.push(reason.clone());
        }
    }
    reasons
}

/// Bytes of the rows of a batch, which may be a part of a larger one.
pub(crate) fn answer_bytes(batch: &RecordBatch) -> u64 {
    let bytes = |array: &ArrayRef| match array.to_data().get_slice_memory_size() {
        Ok(bytes) => bytes,
        Err(_) => array.get_array_memory_size(),
    };
    batch.columns().iter().map(|array| bytes(array) as u64).sum()
}
