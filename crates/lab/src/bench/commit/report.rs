//! The report's record of each point.

use onehop_store::Stats;
use serde::{Deserialize, Serialize};

use super::drive::{Data, Driven, Point};
use super::insert::Inserted;
use super::mapped::Mapped;
use super::written::Written;
use super::{Medium, Recovered};
use crate::bench::report::{self, Line, or_empty, quoted};
use crate::osp::accounting;
use crate::osp::random::{Distribution, Order};

/// A whole run. No point is ever missing.
pub type Report = report::Report<Settings, Measured, Point>;

/// The settings of the run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Settings {
    /// The path of the store.
    pub path: String,
    /// The contents of the store.
    #[serde(flatten)]
    pub data: Data,
    /// The unmeasured time of each point.
    pub ramp_ns: u64,
    /// The measured time of each point.
    pub runtime_ns: u64,
    /// The times of opening after a crash, by size.
    pub recovered: Vec<Recovered>,
    /// The results of `INSERT` beside the store, by threads.
    pub inserted: Vec<Inserted>,
    /// Mapped memory, if requested.
    pub mapped: Option<Mapped>,
}

/// A measured point. Written bytes include the checkpoint at its end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measured {
    /// The medium of the store.
    pub medium: Medium,
    /// The point.
    #[serde(flatten)]
    pub point: Point,
    /// The number of durable transactions.
    pub commits: u64,
    /// The rate.
    pub commits_per_sec: f64,
    /// The median latency.
    pub p50_ns: u64,
    /// The 90th percentile of latency.
    pub p90_ns: u64,
    /// The 99th percentile.
    pub p99_ns: u64,
    /// The 99.9th percentile.
    pub p999_ns: u64,
    /// The maximum.
    pub max_ns: u64,
    /// The bytes of keys and values.
    pub useful_bytes_per_commit: f64,
    /// The written bytes by the store's own counter.
    pub store_written_bytes_per_commit: f64,
    /// The bytes passed to the system in write calls.
    pub handed_bytes_per_commit: Option<f64>,
    /// The bytes that reached the device, of all processes.
    pub device_bytes_per_commit: Option<f64>,
    /// The ratio of the store's written bytes to the payload.
    pub write_amplification_ratio: f64,
    /// The number of changed pages, once for commits that became durable together.
    pub changed_pages_per_commit: f64,
    /// The number of changed 64-byte lines in these pages.
    pub changed_lines_per_commit: f64,
    /// The new contents of pages: in lines, or on files in pages.
    pub data_units_per_commit: f64,
    /// The journal units, except where data itself serves as the journal; in the same units.
    pub journal_units_per_commit: f64,
    /// The units that consolidate pages from two slots.
    pub consolidation_units_per_commit: f64,
    /// The units of tables and superblocks.
    pub table_units_per_commit: f64,
    /// The number of flushed lines; zero on files.
    pub flushed_lines_per_commit: f64,
    /// The number of waits for the device.
    pub fences_per_commit: f64,
    /// The number of transactions that became durable together.
    pub commits_per_batch: f64,
}

impl Measured {
    /// Creates the record of a run, with the counters of the system and the store.
    pub fn new(
        medium: Medium,
        point: &Point,
        data: &Data,
        driven: &Driven,
        written: &Written,
        before: &Stats,
        after: &Stats,
    ) -> Self {
        let each = |count: u64| count as f64 / driven.commits.max(1) as f64;
        let of = |count: &dyn Fn(&Stats) -> u64| each(count(after) - count(before));
        let at = |quantile| driven.latencies.value_at_quantile(quantile);
        let stored = after.backend.written_bytes - before.backend.written_bytes;
        let useful = data.useful_bytes(point.transaction_keys) as f64;
        Self {
            medium,
            point: *point,
            commits: driven.commits,
            commits_per_sec: driven.commits as f64 / driven.elapsed.as_secs_f64(),
            p50_ns: at(0.5),
            p90_ns: at(0.9),
            p99_ns: at(0.99),
            p999_ns: at(0.999),
            max_ns: driven.latencies.max(),
            useful_bytes_per_commit: useful,
            store_written_bytes_per_commit: each(stored),
            handed_bytes_per_commit: written.handed_bytes.map(each),
            device_bytes_per_commit: written.device_bytes.map(each),
            write_amplification_ratio: each(stored) / useful,
            changed_pages_per_commit: of(&|stats| stats.changed_pages),
            changed_lines_per_commit: of(&|stats| stats.changed_lines),
            data_units_per_commit: of(&|stats| stats.backend.data_units),
            journal_units_per_commit: of(&|stats| stats.backend.journal_units),
            consolidation_units_per_commit: of(&|stats| stats.backend.consolidation_units),
            table_units_per_commit: of(&|stats| stats.backend.table_units),
            flushed_lines_per_commit: of(&|stats| stats.backend.flushes),
            fences_per_commit: of(&|stats| stats.backend.fences),
            commits_per_batch: driven.commits as f64 / (after.batches - before.batches).max(1) as f64,
        }
    }

    /// Returns the name of the distribution: `uniform`, `zipf 0.99 scrambled`.
    pub fn distribution(&self) -> String {
        match self.point.keys {
            Distribution::Uniform => "uniform".into(),
            Distribution::Zipf { exponent, order } => {
                format!("zipf {exponent} {}", accounting::name(&Order::ALL, order))
            }
        }
    }
}

impl Line for Measured {
    const BENCHMARK: &'static str = "commit";
    const SCHEMA_VERSION: u32 = 1;
    const COLUMNS: &'static [&'static str] = &COLUMNS;

    fn fields(&self) -> Vec<String> {
        vec![
            self.point.transaction_keys.to_string(),
            quoted(&self.distribution()),
            self.point.threads.to_string(),
            self.commits.to_string(),
            self.commits_per_sec.to_string(),
            self.p50_ns.to_string(),
            self.p90_ns.to_string(),
            self.p99_ns.to_string(),
            self.p999_ns.to_string(),
            self.max_ns.to_string(),
            self.useful_bytes_per_commit.to_string(),
            self.store_written_bytes_per_commit.to_string(),
            or_empty(self.handed_bytes_per_commit),
            or_empty(self.device_bytes_per_commit),
            self.write_amplification_ratio.to_string(),
            self.fences_per_commit.to_string(),
            self.commits_per_batch.to_string(),
            self.medium.name().to_string(),
            self.changed_pages_per_commit.to_string(),
            self.changed_lines_per_commit.to_string(),
            self.data_units_per_commit.to_string(),
            self.journal_units_per_commit.to_string(),
            self.consolidation_units_per_commit.to_string(),
            self.table_units_per_commit.to_string(),
            self.flushed_lines_per_commit.to_string(),
        ]
    }
}

const COLUMNS: [&str; 25] = [
    "transaction_keys",
    "keys",
    "threads",
    "commits",
    "commits_per_sec",
    "p50_ns",
    "p90_ns",
    "p99_ns",
    "p999_ns",
    "max_ns",
    "useful_bytes_per_commit",
    "store_written_bytes_per_commit",
    "handed_bytes_per_commit",
    "device_bytes_per_commit",
    "write_amplification_ratio",
    "fences_per_commit",
    "commits_per_batch",
    "medium",
    "changed_pages_per_commit",
    "changed_lines_per_commit",
    "data_units_per_commit",
    "journal_units_per_commit",
    "consolidation_units_per_commit",
    "table_units_per_commit",
    "flushed_lines_per_commit",
];

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Duration;

    use hdrhistogram::Histogram;

    use super::*;

    #[test]
    fn figures_are_by_transaction() {
        let mut latencies = Histogram::new_with_bounds(1, 1_000_000, 3).unwrap();
        (1..=100).for_each(|us| latencies.record(us * 1_000).unwrap());
        let driven = Driven { commits: 100, elapsed: Duration::from_secs(2), latencies };
        let mut after = Stats::default();
        after.backend.written_bytes = 540_000;
        after.backend.fences = 50;
        after.backend.flushes = 400;
        (after.changed_lines, after.batches) = (300, 25);
        let written = Written { handed_bytes: Some(600_000), dirtied_bytes: None, device_bytes: None };
        let point = Point { transaction_keys: 5, keys: Distribution::Uniform, threads: 4 };
        let data = Data { keys: 1_000, value_bytes: 100, seed: 1 };
        let one = Measured::new(Medium::Mapped, &point, &data, &driven, &written, &Stats::default(), &after);
        assert_eq!((one.commits_per_sec, one.fences_per_commit, one.commits_per_batch), (50.0, 0.5, 4.0));
        assert_eq!((one.useful_bytes_per_commit, one.store_written_bytes_per_commit), (540.0, 5_400.0));
        assert_eq!((one.write_amplification_ratio, one.handed_bytes_per_commit), (10.0, Some(6_000.0)));
        assert!(one.p50_ns.abs_diff(50_000) < 100 && one.p99_ns.abs_diff(99_000) < 100, "{one:?}");
        let csv_fields = one.fields();
        assert_eq!((one.changed_lines_per_commit, one.flushed_lines_per_commit), (3.0, 4.0));
        assert_eq!((csv_fields.len(), csv_fields[13].as_str(), csv_fields[17].as_str()), (COLUMNS.len(), "", "mapped"));
    }
}
