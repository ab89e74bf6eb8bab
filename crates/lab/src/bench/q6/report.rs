//! The report's record of each point.

use serde::{Deserialize, Serialize};

use super::super::io::PageCache;
use super::super::report::{self, Line, SPREAD, or_empty, quoted};
use super::answer::{self, Source};
use super::{Figures, Point};

/// A point, run as often as requested.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measured {
    /// The point.
    #[serde(flatten)]
    pub point: Point,
    /// The answer of all runs.
    pub answer: String,
    /// True if the answer is right. If it is not, there are no figures.
    pub is_right: bool,
    /// The figures of the run with the median time.
    pub figures: Option<Figures>,
    /// The times of all runs, in their order.
    pub runs_seconds: Vec<f64>,
    /// The role of the page cache.
    pub page_cache: PageCache,
    /// Notes for the reader of the figures.
    pub notes: Vec<String>,
}

impl Measured {
    /// Creates the record from the figures of all runs. Returns `None` if there are none.
    pub fn new(point: Point, expected: i128, runs: Vec<Figures>) -> Option<Self> {
        let worst = runs.iter().find(|figures| figures.answer != expected).or(runs.first())?;
        let (found, is_right) = (worst.answer, worst.answer == expected);
        let page_cache = match worst.effective_path.contains("buffered") {
            true => PageCache::Dropped,
            false => PageCache::Bypassed,
        };
        let (mut runs_seconds, mut figures, mut notes) = (Vec::new(), None, Vec::new());
        if is_right {
            runs_seconds = runs.iter().map(|figures| figures.seconds).collect();
            let mut runs = runs;
            runs.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
            // The slower of two middle ones: a claimed time was reached at least half of the time.
            figures = Some(runs.swap_remove(runs.len() / 2));
        } else {
            notes.push(format!("WRONG: {} instead of {}", answer::text(found), answer::text(expected)));
        }
        let mut measured =
            Self { point, answer: answer::text(found), is_right, figures, runs_seconds, page_cache, notes };
        if let Some(spread) = measured.spread().filter(|spread| *spread > SPREAD) {
            measured.notes.push(format!("runs are {:.0} % apart", spread * 100.0));
        }
        Some(measured)
    }

    /// Returns the range of the runs as a share of the median, or `None` for a single one.
    pub fn spread(&self) -> Option<f64> {
        let median = self.figures.as_ref()?.seconds;
        let (low, high) = self.runs_seconds.iter().fold((f64::INFINITY, 0.0f64), |(l, h), t| (l.min(*t), h.max(*t)));
        (self.runs_seconds.len() > 1 && median > 0.0).then(|| (high - low) / median)
    }
}

/// A point that could not be measured.
pub type Unavailable = report::Unavailable<Point>;

/// A whole run.
pub type Report = report::Report<Settings, Measured, Point>;

/// The settings of the run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Settings {
    /// The scale factor of the rows.
    pub scale_factor: f64,
    /// The path of the tables.
    pub data: String,
    /// The number of rows of the table.
    pub rows: u64,
    /// The number of runs of each point.
    pub runs: usize,
    /// The number of runs before them, of each path, layout and mode.
    pub warm_up_runs: usize,
    /// The number of CPU threads, if several may compute.
    pub threads: usize,
    /// The number of reads in flight, if there may be several.
    pub depth: usize,
    /// The threads of the device in paper mode: `one` or `many`.
    pub paper_device_threads: String,
    /// The expected answer of every run.
    pub expected_answer: String,
    /// The source of the expected answer.
    pub expected_by: Source,
}

impl Line for Measured {
    const BENCHMARK: &'static str = "q6";
    const SCHEMA_VERSION: u32 = 1;
    const COLUMNS: &'static [&'static str] = &COLUMNS;

    fn fields(&self) -> Vec<String> {
        fields(self)
    }
}

const COLUMNS: [&str; 29] = [
    "layout",
    "mode",
    "way",
    "buffer_bytes",
    "answer",
    "is_right",
    "seconds",
    "io_seconds",
    "transfer_seconds",
    "compute_seconds",
    "other_seconds",
    "setup_seconds",
    "kernel_seconds",
    "read_bytes",
    "bytes_per_sec",
    "rows_per_sec",
    "effective_path",
    "page_cache",
    "threads",
    "depth",
    "process_user_cores",
    "process_system_cores",
    "machine_user_share",
    "machine_system_share",
    "machine_iowait_share",
    "device_read_bytes",
    "runs",
    "spread",
    "notes",
];

fn fields(measured: &Measured) -> Vec<String> {
    let (point, figures) = (&measured.point, measured.figures.as_ref());
    let number = |of: fn(&Figures) -> f64| or_empty(figures.map(of));
    let usage = figures.map(|figures| &figures.usage);
    let cache = serde_json::to_value(measured.page_cache).unwrap_or_default();
    vec![
        point.layout.to_string(),
        point.mode.to_string(),
        point.way.to_string(),
        point.buffer_bytes.to_string(),
        measured.answer.clone(),
        measured.is_right.to_string(),
        number(|figures| figures.seconds),
        number(|figures| figures.spent.io_seconds),
        number(|figures| figures.spent.transfer_seconds),
        number(|figures| figures.spent.compute_seconds),
        number(|figures| figures.spent.other_seconds),
        number(|figures| figures.setup_seconds),
        or_empty(figures.and_then(|figures| figures.kernel_seconds)),
        or_empty(figures.map(|figures| figures.read_bytes)),
        number(|figures| figures.bytes_per_sec),
        number(|figures| figures.rows_per_sec),
        quoted(figures.map_or("", |figures| &figures.effective_path)),
        cache.as_str().unwrap_or_default().to_string(),
        or_empty(figures.map(|figures| figures.threads)),
        or_empty(figures.map(|figures| figures.depth)),
        or_empty(usage.map(|usage| usage.process_user_cores)),
        or_empty(usage.map(|usage| usage.process_system_cores)),
        or_empty(usage.and_then(|usage| usage.machine_user_share)),
        or_empty(usage.and_then(|usage| usage.machine_system_share)),
        or_empty(usage.and_then(|usage| usage.machine_iowait_share)),
        or_empty(usage.and_then(|usage| usage.device_read_bytes)),
        measured.runs_seconds.len().to_string(),
        or_empty(measured.spread()),
        quoted(&measured.notes.join("; ")),
    ]
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(super) mod tests {
    use serde_json::Value;

    use super::super::{Layout, Mode, Way, run::Spent};
    use super::*;
    use crate::bench::io::usage::Usage;

    /// Returns plausible figures.
    pub fn figures(seconds: f64, answer: i128) -> Figures {
        let part = seconds / 4.0;
        Figures {
            seconds,
            spent: Spent { io_seconds: part, transfer_seconds: part, compute_seconds: part, other_seconds: part },
            setup_seconds: part / 2.0,
            kernel_seconds: Some(part),
            read_bytes: 1_000_000,
            bytes_per_sec: 1e6 / seconds,
            rows_per_sec: 1e5 / seconds,
            effective_path: "io_uring, host direct".into(),
            threads: 2,
            depth: 8,
            usage: Usage { seconds, process_user_cores: 0.5, process_system_cores: 0.25, ..Usage::default() },
            answer,
        }
    }

    /// Returns a point.
    pub fn point(way: Way, mode: Mode, layout: Layout, buffer_bytes: usize) -> Point {
        Point { layout, mode, way, buffer_bytes }
    }

    /// Returns a report of these points.
    pub fn report(points: Vec<Measured>) -> Report {
        let settings = Settings {
            scale_factor: 1.0,
            data: "/data".into(),
            rows: 6_001_215,
            runs: 1,
            warm_up_runs: 1,
            threads: 2,
            depth: 8,
            paper_device_threads: "one".into(),
            expected_answer: "0.0007".into(),
            expected_by: Source::DuckDb,
        };
        let mut report = Report::new(settings, serde_json::json!({ "cpu": "one" }));
        report.points = points;
        report
    }

    #[test]
    fn the_median_run_stands_for_all_and_a_wrong_one_for_none() {
        let point = point(Way::Cpu, Mode::Paper, Layout::Rows, 65_536);
        let runs = |answers: [i128; 3]| {
            let all = [3.0, 1.0, 2.0].into_iter().zip(answers).map(|(seconds, answer)| figures(seconds, answer));
            Measured::new(point, 7, all.collect()).unwrap()
        };
        let right = runs([7, 7, 7]);
        assert_eq!(right.figures.as_ref().map(|figures| figures.seconds), Some(2.0));
        assert_eq!((right.spread(), right.is_right, right.answer.as_str()), (Some(1.0), true, "0.0007"));
        let wrong = runs([7, 8, 7]);
        assert!(wrong.figures.is_none() && wrong.runs_seconds.is_empty() && !wrong.is_right);
        assert_eq!(wrong.notes, ["WRONG: 0.0008 instead of 0.0007"]);
        assert!(Measured::new(point, 7, Vec::new()).is_none());
    }

    #[test]
    fn json_comes_back_and_csv_has_a_field_for_every_column() {
        let of = |answer| {
            let point = point(Way::GpuDirect, Mode::Overlapped, Layout::Segments, 1 << 20);
            Measured::new(point, 7, vec![figures(0.5, answer)]).unwrap()
        };
        let report = report(vec![of(7), of(8)]);
        let text = serde_json::to_string(&report).unwrap();
        let back: Report = serde_json::from_str(&text).unwrap();
        assert_eq!(serde_json::to_string(&back).unwrap(), text);
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&value["benchmark"], &value["points"][0]["way"]), (&"q6".into(), &"gpu-direct".into()));
        assert_eq!(value["points"][0]["figures"]["spent"]["io_seconds"], 0.125);
        let csv = report.csv();
        for line in csv.lines().skip(1) {
            let outside: String = line.split('"').step_by(2).collect();
            assert_eq!(outside.split(',').count(), COLUMNS.len(), "{line}");
        }
        assert!(csv.contains("segments,overlapped,gpu-direct,1048576,0.0007,true,0.5,0.125,"), "{csv}");
    }
}
