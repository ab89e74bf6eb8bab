//! Runs a fused subtree on a device: one thread waits for it and passes the answer on as it comes.
//!
//! The rows of groups, and the first rows in an order, are held back until the device is done.
//! Until then the CPU can redo all of the work, if `exec.fallback` allows that. Rows of a
//! collecting pipeline leave after the first chunk. A later error fails the statement, since the
//! rows that the reader has seen are unknown. Errors in the data would occur on the CPU as well, so
//! they are not retried.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arrow::array::RecordBatch;
use datafusion::common::DataFusionError;
use datafusion::execution::memory_pool::MemoryConsumer;
use futures::StreamExt;
use futures::stream;
use onehop_io::Ledger;
use onehop_pipeline::backend::{Backend, Compiled, Control, DeviceRan, Refusal, Residency, Streamed};
use onehop_pipeline::cpu::{Execution, ResultColumn};
use onehop_pipeline::{Error as PipelineError, Result as PipelineResult};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::exec::{Leaving, Outcome, PipelineRan, Ran, Run, Stop, StopOnDrop, batch_of};
use super::input::Input;
use super::node::Fused;
use crate::place::Placed;
use crate::place::homes::{self, Homes};
use crate::place::residence::{self, Wanted};
use crate::query::Query;
use crate::settings::Fallback;
use crate::task::spawn_blocking;
use crate::{Error, Result, pipeline_budget};

/// Time and data volume of a pipeline on a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct DeviceTimes {
    /// The time of its kernels, by the device's clock.
    pub kernel: Duration,
    pub launches: u64,
    pub compiled: Compiled,
    pub resident_bytes: u64,
    pub moved_bytes: u64,
    pub returned_bytes: u64,
    /// Blocks that were ruled out once its join tables existed.
    pub morsels_skipped: u64,
    /// The number of passes over its source.
    pub passes: u64,
    /// The data that was streamed to the device while it ran.
    pub streamed: Option<Streamed>,
}

/// The outcome of a run on a device.
pub(super) enum OnDevice {
    Leaving(Leaving),
    /// The device failed before any row left, and the CPU may run it.
    Failed(String),
}

impl From<&DeviceRan> for DeviceTimes {
    fn from(ran: &DeviceRan) -> Self {
        Self {
            kernel: ran.kernel,
            launches: ran.launches,
            compiled: ran.compiled,
            resident_bytes: ran.resident_bytes,
            moved_bytes: ran.moved_bytes,
            returned_bytes: ran.returned_bytes,
            morsels_skipped: ran.morsels_skipped,
            passes: ran.passes,
            streamed: ran.streamed,
        }
    }
}

impl From<DeviceRan> for PipelineRan {
    fn from(ran: DeviceRan) -> Self {
        let device = Some(DeviceTimes::from(&ran));
        Self {
            elapsed: ran.elapsed,
            rows: ran.rows,
            skipped: ran.skipped,
            steps: ran.steps,
            sink_bytes: usize::try_from(ran.sink_bytes).unwrap_or(usize::MAX),
            table: ran.table,
            top: ran.top,
            passes: 1,
            brought: ran.brought,
            shares: ran.shares,
            device,
            ..Self::default()
        }
    }
}

/// A run on a device, and its rows so far.
struct Running {
    batches: mpsc::Receiver<Result<RecordBatch>>,
    /// The task; `None` after its outcome was taken.
    task: Option<JoinHandle<PipelineResult<Vec<DeviceRan>>>>,
    /// Stops the task when this is dropped.
    _stop: StopOnDrop,
}

impl Running {
    /// Returns the next rows; `None` when the device has ended, with any outcome.
    async fn next(&mut self) -> Option<Result<RecordBatch>> {
        self.batches.recv().await
    }

    /// Returns the outcome of the task.
    async fn ended(&mut self) -> Result<PipelineResult<Vec<DeviceRan>>> {
        let Some(task) = self.task.take() else { return Ok(Ok(Vec::new())) };
        task.await.map_err(|e| DataFusionError::ExecutionJoin(Box::new(e)).into())
    }
}

impl Run {
    /// Runs the program on a device.
    pub async fn on_device(&self, placed: &Placed, execution: &Execution, ran: &mut Ran) -> Outcome<OnDevice> {
        let query = self.context.session_config().get_extension::<Query>();
        let prepared = match self.fused.inputs.iter().any(|input| matches!(input, Input::Derived(_))) {
            false => Arc::clone(&placed.prepared),
            // The contents of derived relations are known only now.
            true => match placed.backend.prepare(execution, &placed.hints) {
                Ok(prepared) => prepared,
                Err(Refusal(reason)) => {
                    return self.give_up(PipelineError::Unsupported(reason), placed.backend.name(), query.as_deref());
                }
            },
        };
        let stop = StopOnDrop::default();
        let (sender, batches) = mpsc::channel(1);
        let ledgers = self.ledgers(query.as_ref());
        let (fused, schema, cancelled, of) =
            (Arc::clone(&self.fused), Arc::clone(&self.schema), Arc::clone(&stop.0), query.clone());
        let backend = Arc::clone(&placed.backend);
        let threads = self.context.session_config().target_partitions();
        let budget = pipeline_budget::budget(&self.context);
        let task = spawn_blocking(move || {
            bring(&fused, &backend, of.as_deref(), &cancelled);
            let did_rows = |rows| of.iter().for_each(|query| query.did_rows(rows));
            let counts_steps = of.as_ref().is_some_and(|query| query.counts_steps());
            let (ledgers, did_rows, budget) = (&ledgers, &did_rows, &budget);
            let control = Control { cancelled: &cancelled, counts_steps, ledgers, did_rows, budget };
            let mut take = |columns: Vec<ResultColumn>| -> PipelineResult<()> {
                let batch = batch_of(&fused, &schema, &columns, threads);
                let is_bad = batch.is_err();
                // The reader is gone.
                if sender.blocking_send(batch).is_err() || is_bad {
                    cancelled.store(true, Relaxed);
                    return Err(PipelineError::Cancelled);
                }
                Ok(())
            };
            prepared.run(&control, &mut take)
        });
        let running = Running { batches, task: Some(task), _stop: stop };
        match self.fused.collects() {
            true => self.flowing(running, placed, ran, query.as_deref()).await,
            false => self.whole(running, placed, ran, query.as_deref()).await,
        }
    }

    /// Waits for the whole answer.
    async fn whole(
        &self,
        mut running: Running,
        placed: &Placed,
        ran: &mut Ran,
        query: Option<&Query>,
    ) -> Outcome<OnDevice> {
        let held = MemoryConsumer::new("GpuAnswer").register(self.context.memory_pool());
        let mut batches = Vec::new();
        while let Some(batch) = running.next().await {
            let batch = batch?;
            held.try_grow(batch.get_array_memory_size())?;
            // The first rows in their order are one chunk.
            let wanted = self.fetch.map_or(batch.num_rows(), |fetch| fetch.min(batch.num_rows()));
            batches.extend(self.sliced(&batch.slice(0, wanted)));
        }
        match running.ended().await? {
            Ok(done) => {
                ran.pipelines = done.into_iter().map(PipelineRan::from).collect();
                ran.on_device = true;
            }
            Err(e) => return self.give_up(e, placed.backend.name(), query),
        }
        if let Some(query) = query {
            query.ran_on(&placed.names());
        }
        let batches = stream::iter(batches).inspect(move |_| {
            let _held = &held;
        });
        Ok(OnDevice::Leaving(Leaving::Batches(batches.map(Ok).boxed())))
    }

    /// Passes rows on as they are made, after the first chunk.
    async fn flowing(
        &self,
        mut running: Running,
        placed: &Placed,
        ran: &mut Ran,
        query: Option<&Query>,
    ) -> Outcome<OnDevice> {
        let first = match running.next().await {
            Some(first) => Some(first?),
            None => match running.ended().await? {
                Ok(done) => {
                    ran.pipelines = done.into_iter().map(PipelineRan::from).collect();
                    None
                }
                Err(e) => return self.give_up(e, placed.backend.name(), query),
            },
        };
        ran.on_device = true;
        if let Some(query) = query {
            query.ran_on(&placed.names());
        }
        let told = Arc::clone(&self.told);
        let rest = stream::unfold((Some(running), told), |(running, told)| async move {
            let mut running = running?;
            if let Some(batch) = running.next().await {
                // An error ends the stream.
                let next = batch.is_ok().then_some(running);
                return Some((batch.map_err(DataFusionError::from), (next, told)));
            }
            // A closed channel does not tell why: incomplete rows must not look complete.
            match running.ended().await {
                Ok(Ok(done)) => {
                    tell(&told, done);
                    None
                }
                Ok(Err(e)) => Some((Err(Error::from(e).into()), (None, told))),
                Err(e) => Some((Err(e.into()), (None, told))),
            }
        });
        let batches = stream::iter(first).map(Ok).chain(rest).boxed();
        Ok(OnDevice::Leaving(Leaving::Batches(batches)))
    }

    /// Returns the ledger that counts the bytes of each source.
    fn ledgers(&self, query: Option<&Arc<Query>>) -> Vec<Arc<Ledger>> {
        let of_query = query.map_or_else(Arc::default, |query| Arc::clone(query.shared_ledger()));
        let ledger = |input: &Input| match input {
            Input::Table(scan) => Arc::clone(&scan.ledger),
            Input::Derived(_) => Arc::clone(&of_query),
        };
        self.fused.inputs.iter().map(ledger).collect()
    }

    /// Handles an error before any row has left: fails, or lets the CPU run it.
    fn give_up(&self, e: PipelineError, device: &str, query: Option<&Query>) -> Outcome<OnDevice> {
        let why = match &e {
            PipelineError::Device { .. } => e.to_string(),
            PipelineError::Memory { .. } => format!("{device}: {e}"),
            PipelineError::Unsupported(reason) => format!("{device} cannot run {reason}"),
            // The CPU would return the same error.
            _ => return Err(Error::from(e).into()),
        };
        match (self.fused.fallback, query) {
            (Fallback::Error, _) => {
                let error = Error::new(Error::from(e).kind(), why);
                return Err(Stop::Failed(error.with_hint(HINT_OF_DEVICE).into()));
            }
            (Fallback::Warn, Some(query)) => {
                query.notice(format!("not on a GPU after all: {why}; the CPU did all of it again, no row had left"));
            }
            _ => {}
        }
        // All rows are to be processed again.
        query.iter().for_each(|query| self.fused.scans().for_each(|scan| query.expect_rows(scan.plan.rows() as u64)));
        Ok(OnDevice::Failed(why))
    }
}

/// Loads columns whose residence is this device and that are not loaded yet, as after the database
/// was opened.
pub(super) fn bring(fused: &Fused, backend: &Arc<dyn Backend>, query: Option<&Query>, cancelled: &AtomicBool) {
    let Some(query) = query else { return };
    for scan in fused.scans() {
        let Some(homes) = Homes::of(&scan.table.entry) else { continue };
        let choices = homes.choices();
        let mut here = choices.into_iter().filter(|home| homes::belongs_on(home, &**backend));
        let loaded = here.try_for_each(|home| {
            let wanted = Wanted { table: &scan.table, columns: &scan.columns, home: Some(home) };
            let stored = wanted.stored(&scan.columns)?;
            let home = residence::device(&fused.placing, home)?;
            let is_there = |residency: &dyn Residency| residency.resident_bytes(&stored) == stored.bytes();
            if home.residency().is_none_or(is_there) {
                return Ok(());
            }
            residence::load(&fused.placing, &fused.cache, wanted, &home, query, cancelled).map(drop)
        });
        // The query itself fails if the error matters to it.
        if let Err(e) = loaded {
            query.notice(format!("\"{}\" is not resident: {}", scan.table.name, e.message()));
        }
    }
}

const HINT_OF_DEVICE: &str =
    "SET exec.fallback = 'warn' lets the CPU do it again, SET gpu.mode = 'off' runs it there from the start";

/// Records the outcome of pipelines whose rows had begun to leave.
fn tell(told: &Mutex<Option<Ran>>, done: Vec<DeviceRan>) {
    if let Some(ran) = told.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
        ran.pipelines = done.into_iter().map(PipelineRan::from).collect();
    }
}
