//! The query benchmarks: they run, check every answer, and only then report times.
//!
//! A query runs once to warm up, and then as often as requested; its figure is the median. Times
//! are of the whole statement, parsing and planning included, until the last row arrives. The
//! answer of the warm-up run is compared with the stored one ([`answers`]); a query with a wrong
//! answer gets no figure.

pub mod answers;
pub(crate) mod chart;
pub mod commit;
mod held;
pub mod io;
pub mod logreg;
pub mod q6;
pub mod report;

use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use futures::StreamExt;
use onehop_engine::{ExplainMode, Explanation, Facts, Hop, LedgerSnapshot, Output, Session};
use serde::Serialize;

use crate::queries::Query;

/// The result of one query.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The query.
    pub id: &'static str,
    /// The verdict on its answer.
    pub answer: Answer,
    /// The times of the measured runs, ascending. Empty if the answer is wrong.
    pub times: Vec<Duration>,
    /// The number of rows in the answer.
    pub rows_out: u64,
    /// The transfers of one run.
    pub ledger: LedgerSnapshot,
    /// The figures on a device, if the query is to run on one.
    pub device: Option<OnDevice>,
}

/// The figures of a query on a device, of the run with the median kernel time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct OnDevice {
    /// The time of its kernels, by the device's clock.
    pub kernel_ns: u64,
    /// The stored bytes that they read.
    pub read_bytes: u64,
    /// The bytes that were moved there for it.
    pub moved_bytes: u64,
    /// The number of kernels.
    pub launches: u64,
    /// The measured copy rate of the device's memory, in bytes per second.
    pub copy_bytes_per_sec: Option<f64>,
}

impl OnDevice {
    /// Returns the bytes per second while kernels ran.
    pub fn bytes_per_sec(&self) -> Option<f64> {
        (self.kernel_ns > 0).then(|| self.read_bytes as f64 / (self.kernel_ns as f64 / 1e9))
    }

    /// Returns the ratio of this rate to the copy rate.
    pub fn share(&self) -> Option<f64> {
        Some(self.bytes_per_sec()? / self.copy_bytes_per_sec.filter(|rate| *rate > 0.0)?)
    }

    /// Collects the figures of one run.
    fn of(explanation: &Explanation) -> Self {
        let mut all = Self::default();
        explanation.plan.for_each(&mut |node| {
            let pipeline = match &node.facts {
                Facts::Groups(facts) => facts.pipeline,
                Facts::Rows(facts) => facts.pipeline,
                Facts::Top(facts) => facts.pipeline,
                Facts::Join(facts) => facts.build,
                _ => None,
            };
            if let Some(device) = pipeline.and_then(|pipeline| pipeline.device) {
                all.kernel_ns += device.kernel.as_nanos() as u64;
                all.read_bytes += device.read_bytes;
                all.launches += device.launches;
                all.copy_bytes_per_sec = all.copy_bytes_per_sec.or(device.copy_bytes_per_sec);
            }
        });
        let ledger = explanation.totals.map(|totals| totals.ledger).unwrap_or_default();
        all.moved_bytes = ledger.hop(Hop::HostToDevice) + ledger.hop(Hop::StorageToDevice);
        all
    }
}

/// The configuration of a measurement.
#[derive(Clone, Debug, Default)]
pub struct How {
    /// The number of measured runs.
    pub runs: usize,
    /// True if queries run on a device, whose own clock is read in as many additional runs.
    pub on_device: bool,
    /// Statements that are executed before each run, and not timed.
    pub before: Vec<String>,
}

/// The verdict on an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum Answer {
    /// It equals the stored one.
    Verified,
    /// There is no stored one for this scale factor.
    NotStored,
    /// It differs from the stored one.
    Wrong {
        /// The description of the difference.
        reason: String,
    },
}

impl Measured {
    /// Returns the median time.
    pub fn median(&self) -> Option<Duration> {
        let n = self.times.len();
        match n {
            0 => None,
            n if n % 2 == 1 => Some(self.times[n / 2]),
            n => Some((self.times[n / 2 - 1] + self.times[n / 2]) / 2),
        }
    }

    /// Returns the bytes read from storage per second, at the median time.
    pub fn read_bytes_per_sec(&self) -> Option<f64> {
        let seconds = self.median()?.as_secs_f64();
        Some(self.ledger.read_bytes() as f64 / seconds)
    }
}

/// Returns the geometric mean of the medians, if every query has one.
pub fn geometric_mean(all: &[Measured]) -> Option<Duration> {
    let logs: Option<Vec<f64>> = all.iter().map(|m| m.median().map(|t| t.as_secs_f64().ln())).collect();
    let logs = logs.filter(|logs| !logs.is_empty())?;
    Some(Duration::from_secs_f64((logs.iter().sum::<f64>() / logs.len() as f64).exp()))
}

/// The number of runs before the measured ones, whose answer is checked.
pub const WARM_UP_RUNS: usize = 1;

/// Runs one query: once to warm up and check, then as often as requested.
///
/// # Errors
/// Fails if the query fails. A wrong answer is not an error but a result.
pub async fn measure(session: &Session, query: &Query, scale: f64, how: &How) -> onehop_engine::Result<Measured> {
    let (batches, _) = run(session, query, how).await?;
    let answer = match answers::stored(query.id, scale) {
        None => Answer::NotStored,
        Some(kept) => match answers::verify(&batches, kept) {
            Ok(()) => Answer::Verified,
            Err(reason) => Answer::Wrong { reason },
        },
    };
    let rows_out = batches.iter().map(|batch| batch.num_rows() as u64).sum();
    let mut times = Vec::new();
    if !matches!(answer, Answer::Wrong { .. }) {
        for _ in 0..how.runs {
            times.push(run(session, query, how).await?.1);
        }
    }
    times.sort_unstable();
    let ledger = session.query().ledger();
    let device = match how.on_device && !matches!(answer, Answer::Wrong { .. }) {
        true => Some(on_device(session, query, how).await?),
        false => None,
    };
    Ok(Measured { id: query.id, answer, times, rows_out, ledger, device })
}

/// Returns the run with the median time of kernels.
async fn on_device(session: &Session, query: &Query, how: &How) -> onehop_engine::Result<OnDevice> {
    let mut runs = Vec::new();
    for _ in 0..how.runs.max(1) {
        prepare(session, how).await?;
        runs.push(OnDevice::of(&session.explain(query.sql, ExplainMode::Time).await?));
    }
    runs.sort_by_key(|run| run.kernel_ns);
    Ok(runs[runs.len() / 2])
}

async fn prepare(session: &Session, how: &How) -> onehop_engine::Result<()> {
    for statement in &how.before {
        session.sql(statement).await?;
    }
    Ok(())
}

async fn run(session: &Session, query: &Query, how: &How) -> onehop_engine::Result<(Vec<RecordBatch>, Duration)> {
    prepare(session, how).await?;
    let started = Instant::now();
    let mut batches = Vec::new();
    if let Output::Rows(mut rows) = session.sql(query.sql).await? {
        while let Some(batch) = rows.next().await {
            batches.push(batch?);
        }
    }
    Ok((batches, started.elapsed()))
}

/// The figures of one query in the JSON.
#[derive(Debug, Serialize)]
pub struct Row {
    query: &'static str,
    answer: Answer,
    median_ns: Option<u64>,
    min_ns: Option<u64>,
    max_ns: Option<u64>,
    runs_ns: Vec<u64>,
    rows_in: u64,
    rows_out: u64,
    read_bytes: u64,
    moved_bytes: u64,
    host_to_host_bytes: u64,
    blocks_considered: u64,
    blocks_skipped: u64,
    blocks_read: u64,
    read_bytes_per_sec: Option<f64>,
    /// The figures on a device.
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<OnDevice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    device_bytes_per_sec: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    device_copy_rate_ratio: Option<f64>,
}

impl From<&Measured> for Row {
    fn from(m: &Measured) -> Self {
        let ns = |time: &Duration| time.as_nanos() as u64;
        Self {
            query: m.id,
            answer: m.answer.clone(),
            median_ns: m.median().as_ref().map(ns),
            min_ns: m.times.first().map(ns),
            max_ns: m.times.last().map(ns),
            runs_ns: m.times.iter().map(ns).collect(),
            rows_in: m.ledger.rows_scanned,
            rows_out: m.rows_out,
            read_bytes: m.ledger.read_bytes(),
            moved_bytes: m.ledger.moved_bytes(),
            host_to_host_bytes: m.ledger.hop(Hop::HostToHost),
            blocks_considered: m.ledger.blocks_considered,
            blocks_skipped: m.ledger.blocks_skipped,
            blocks_read: m.ledger.blocks_read,
            read_bytes_per_sec: m.read_bytes_per_sec(),
            device: m.device,
            device_bytes_per_sec: m.device.and_then(|device| device.bytes_per_sec()),
            device_copy_rate_ratio: m.device.and_then(|device| device.share()),
        }
    }
}
