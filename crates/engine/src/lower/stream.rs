//! Streams rows that leave a fused subtree as they are made, instead of after the last block.
//!
//! Each worker makes batches of its own rows and sends them through one short channel. A slow
//! reader thus slows the workers down, and memory holds a few batches per thread, whatever the
//! joins multiply. Dropping the stream stops the workers, within a vector or while they wait for
//! space in the channel.
//!
//! The first batch is awaited before any leaves: until then DataFusion's operators can take over. A
//! later error fails the statement, since the rows that the reader has seen are unknown.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::common::{DataFusionError, Result as DataFusionResult};
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::physical_plan::metrics::BaselineMetrics;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use onehop_governor as governor;
use onehop_pipeline::cpu::{Execution, Stage, Worker};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::exec::{PipelineRan, Ran, StopOnDrop, batch_of};
use super::node::Fused;
use crate::query::Query;
use crate::{Error, Result};

/// Join tables, with their reservations and those of derived relations.
type Held = (Execution, Vec<MemoryReservation>);

/// The last pipeline of a subtree, running.
pub(super) struct Flow {
    batches: mpsc::Receiver<Result<RecordBatch>>,
    workers: JoinSet<()>,
    _stop: StopOnDrop,
    stage: Arc<Stage>,
    began: Instant,
    threads: usize,
    /// The tables and relations that it reads.
    _held: Held,
}

impl Flow {
    /// Starts the workers.
    pub fn start(
        fused: &Arc<Fused>,
        schema: &SchemaRef,
        stage: &Arc<Stage>,
        threads: usize,
        query: Option<&Arc<Query>>,
        held: Held,
    ) -> Self {
        let threads = threads.min(stage.morsels()).max(1);
        let stop = StopOnDrop::default();
        let (sender, batches) = mpsc::channel(threads);
        let mut workers = JoinSet::new();
        for _ in 0..threads {
            let (fused, schema, sender, query) =
                (Arc::clone(fused), Arc::clone(schema), sender.clone(), query.cloned());
            let (stage, cancelled) = (Arc::clone(stage), Arc::clone(&stop.0));
            workers.spawn_blocking(governor::bind(move || {
                let to = sender.clone();
                let mut failed = None;
                let taker = move |columns: Vec<_>| {
                    let batch = batch_of(&fused, &schema, &columns, 1);
                    // The reader is gone.
                    to.blocking_send(batch).map_err(|_| onehop_pipeline::Error::Cancelled)
                };
                let mut worker = Worker::new(&stage, &cancelled).with_taker(taker);
                while failed.is_none() {
                    match worker.step() {
                        Ok(None) => return,
                        Ok(Some(_)) => query.iter().for_each(|query| query.did_rows(worker.morsel_rows() as u64)),
                        Err(e) => failed = Some(e),
                    }
                }
                if let Some(e) = failed {
                    let _ = sender.blocking_send(Err(e.into()));
                }
            }));
        }
        Self { batches, workers, _stop: stop, stage: Arc::clone(stage), began: Instant::now(), threads, _held: held }
    }

    /// Returns the next rows; `None` at the end.
    pub async fn next(&mut self) -> Option<Result<RecordBatch>> {
        match self.batches.recv().await {
            None => self.ended().await.err().map(Err),
            batch => batch,
        }
    }

    /// Waits for the workers. Fails if one of them panicked.
    async fn ended(&mut self) -> Result<()> {
        while let Some(worker) = self.workers.join_next().await {
            worker.map_err(|e| Error::from(DataFusionError::ExecutionJoin(Box::new(e))))?;
        }
        Ok(())
    }

    /// Returns the statistics so far.
    fn ran(&self) -> PipelineRan {
        PipelineRan {
            elapsed: self.began.elapsed(),
            workers: self.threads,
            rows: self.stage.taken_rows(),
            skipped: self.stage.skipped().to_vec(),
            steps: self.stage.step_rows(),
            times: self.stage.times(),
            ahead: self.stage.ahead(),
            passes: 1,
            ..PipelineRan::default()
        }
    }

    /// Returns all its rows, beginning with `first`. The statistics are published when it ends or
    /// is dropped.
    pub fn rows(
        self,
        first: Option<RecordBatch>,
        ran: Ran,
        told: Arc<Mutex<Option<Ran>>>,
        metrics: BaselineMetrics,
    ) -> BoxStream<'static, DataFusionResult<RecordBatch>> {
        let telling = Telling { flow: self, ran, told, metrics };
        let rows = stream::unfold((Some(telling), first.map(Ok)), |(telling, first)| async move {
            let mut telling = telling?;
            let batch = match first {
                Some(batch) => batch,
                None => telling.flow.next().await?,
            };
            // An error ends the stream.
            let Ok(batch) = batch else { return Some((batch.map_err(DataFusionError::from), (None, None))) };
            telling.ran.rows += batch.num_rows() as u64;
            telling.metrics.record_output(batch.num_rows());
            Some((Ok(batch), (Some(telling), None)))
        });
        rows.boxed()
    }
}

/// Publishes the statistics of a flow when dropped.
struct Telling {
    flow: Flow,
    ran: Ran,
    told: Arc<Mutex<Option<Ran>>>,
    metrics: BaselineMetrics,
}

impl Drop for Telling {
    fn drop(&mut self) {
        self.metrics.elapsed_compute().add_elapsed(self.flow.began);
        self.ran.pipelines.push(self.flow.ran());
        *self.told.lock().unwrap_or_else(PoisonError::into_inner) = Some(std::mem::take(&mut self.ran));
    }
}
