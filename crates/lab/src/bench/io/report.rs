//! The report's record of each point, with notes: a rate that the device's counters do not confirm
//! is a rate of memory, for any requested path, and is marked.

use serde::{Deserialize, Serialize};

use super::super::report::{self, Line, SPREAD, or_empty, quoted};
use super::{EffectivePath, Figures, Point};

/// The minimum share of our transfers that the device moved. Below it, a cache served the rest.
const SEEN_BY_DEVICE: f64 = 0.9;

/// The role of the page cache in a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PageCache {
    /// Bypassed by `O_DIRECT`.
    Bypassed,
    /// In use, and the file was dropped from it before each run.
    Dropped,
    /// In use: writes complete in the cache, independent of the device.
    Used,
}

impl PageCache {
    /// Returns the name in tables.
    pub fn name(self) -> &'static str {
        match self {
            PageCache::Bypassed => "bypassed",
            PageCache::Dropped => "dropped before",
            PageCache::Used => "in use",
        }
    }

    fn of(figures: &Figures) -> Self {
        match (is_past_cache(figures), figures.point.rw.writes()) {
            (true, _) => PageCache::Bypassed,
            (false, false) => PageCache::Dropped,
            (false, true) => PageCache::Used,
        }
    }
}

/// Returns true if the bytes bypassed the page cache. In compat mode cuFile may use it, regardless
/// of its settings.
fn is_past_cache(figures: &Figures) -> bool {
    figures.point.way.is_direct() || figures.path == EffectivePath::Direct
}

/// A point, measured as often as requested.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measured {
    /// The figures of the repeat with the median rate.
    #[serde(flatten)]
    pub figures: Figures,
    /// The rates of all repeats, in their order.
    pub repeats_bytes_per_sec: Vec<f64>,
    /// The role of the page cache.
    pub page_cache: PageCache,
    /// Notes for the reader of the figures.
    pub notes: Vec<String>,
}

impl Measured {
    /// Creates the record from the figures of all repeats. Returns `None` if there are none.
    pub fn new(all: Vec<Figures>) -> Option<Self> {
        Self::of(all, None)
    }

    /// Like [`Self::new`], for a file in memory, on a file system of this kind.
    pub fn of(all: Vec<Figures>, memory_kind: Option<&str>) -> Option<Self> {
        let repeats_bytes_per_sec = all.iter().map(|figures| figures.bytes_per_sec).collect();
        let mut all = all;
        all.sort_by(|a, b| a.bytes_per_sec.total_cmp(&b.bytes_per_sec));
        // The slower of two middle ones: a claimed rate was reached at least half of the time.
        let figures = (!all.is_empty()).then(|| all.swap_remove((all.len() - 1) / 2))?;
        let page_cache = PageCache::of(&figures);
        let mut measured = Self { figures, repeats_bytes_per_sec, page_cache, notes: Vec::new() };
        measured.notes = notes(&measured);
        let in_memory = |kind| format!("a rate of memory: the file is on {kind}, and no device has it");
        measured.notes.extend(memory_kind.map(in_memory));
        Some(measured)
    }

    /// Returns the rate.
    pub fn bytes_per_sec(&self) -> f64 {
        self.figures.bytes_per_sec
    }

    /// Returns the range of the repeats as a share of the median, or `None` for a single one.
    pub fn spread(&self) -> Option<f64> {
        let rates = &self.repeats_bytes_per_sec;
        let (low, high) = rates.iter().fold((f64::INFINITY, 0.0f64), |(low, high), r| (low.min(*r), high.max(*r)));
        (rates.len() > 1 && self.bytes_per_sec() > 0.0).then(|| (high - low) / self.bytes_per_sec())
    }

    /// Returns the bytes that the device moved in that time, for all processes.
    pub fn device_bytes(&self) -> Option<u64> {
        match self.figures.point.rw.writes() {
            true => self.figures.usage.device_written_bytes,
            false => self.figures.usage.device_read_bytes,
        }
    }

    /// Returns the ratio of the device's bytes to ours, or `None` if the device has no counters.
    pub fn device_share(&self) -> Option<f64> {
        let moved = self.bytes_per_sec() * self.figures.usage.seconds;
        (moved > 0.0).then_some(self.device_bytes()? as f64 / moved)
    }
}

fn notes(measured: &Measured) -> Vec<String> {
    let (figures, mut notes) = (&measured.figures, Vec::new());
    let point = &figures.point;
    if figures.transfers == 0 {
        notes.push("no transfer ended in the measured time: give it a longer --runtime".to_string());
        return notes;
    }
    if let Some(share) = measured.device_share().filter(|share| *share < SEEN_BY_DEVICE) {
        let percent = share * 100.0;
        notes.push(match (is_past_cache(figures), point.rw.writes()) {
            (false, false) => format!("a rate of the page cache: the device read {percent:.0} % of these bytes"),
            (false, true) => {
                format!("a rate of the page cache: the device had {percent:.0} % of these bytes when the time was over")
            }
            (true, _) => {
                format!("not the device's rate: it moved {percent:.0} % of these bytes in that time")
            }
        });
    }
    if figures.is_steady == Some(false) {
        notes.push("not steady: the rate changed while it was measured; a longer --ramp or --runtime may help".into());
    }
    if figures.is_steady.is_none() {
        notes.push(format!("{} transfers are too few to say whether the rate is steady", figures.transfers));
    }
    if let Some(spread) = measured.spread().filter(|spread| *spread > SPREAD) {
        notes.push(format!("repeats are {:.0} % apart", spread * 100.0));
    }
    notes
}

/// A point that could not be measured.
pub type Unavailable = report::Unavailable<Point>;

/// A whole run.
pub type Report = report::Report<Settings, Measured, Point>;

/// The settings of the run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Settings {
    /// The path of the file.
    pub file: String,
    /// The length of the file.
    pub file_bytes: u64,
    /// The measured time of each point.
    pub runtime_seconds: f64,
    /// The unmeasured time before that.
    pub ramp_seconds: f64,
    /// The number of repeats.
    pub repeats: usize,
    /// The seed of contents and patterns.
    pub seed: u64,
    /// True if contents were compared.
    pub verify: bool,
    /// True if the processor read the contents.
    #[serde(default)]
    pub touch: bool,
}

impl Line for Measured {
    const BENCHMARK: &'static str = "io";
    const SCHEMA_VERSION: u32 = 1;
    const COLUMNS: &'static [&'static str] = &COLUMNS;

    fn fields(&self) -> Vec<String> {
        fields(self)
    }
}

const COLUMNS: [&str; 32] = [
    "rw",
    "requested_path",
    "effective_path",
    "page_cache",
    "block_bytes",
    "depth",
    "jobs",
    "transfers",
    "bytes_per_sec",
    "ops_per_sec",
    "mean_us",
    "p50_us",
    "p90_us",
    "p95_us",
    "p99_us",
    "p999_us",
    "max_us",
    "seconds",
    "process_user_cores",
    "process_system_cores",
    "machine_user_share",
    "machine_system_share",
    "machine_iowait_share",
    "device_read_bytes",
    "device_written_bytes",
    "is_steady",
    "verified_bytes",
    "repeats",
    "min_bytes_per_sec",
    "max_bytes_per_sec",
    "effective_path_evidence",
    "notes",
];

fn fields(measured: &Measured) -> Vec<String> {
    let (figures, rates) = (&measured.figures, &measured.repeats_bytes_per_sec);
    let (point, latency, usage) = (&figures.point, &figures.latency, &figures.usage);
    let cache = serde_json::to_value(measured.page_cache).unwrap_or_default();
    vec![
        point.rw.to_string(),
        point.way.to_string(),
        figures.path.to_string(),
        cache.as_str().unwrap_or_default().to_string(),
        point.block_bytes.to_string(),
        point.depth.to_string(),
        point.jobs.to_string(),
        figures.transfers.to_string(),
        figures.bytes_per_sec.to_string(),
        figures.ops_per_sec.to_string(),
        latency.mean_us.to_string(),
        latency.p50_us.to_string(),
        latency.p90_us.to_string(),
        latency.p95_us.to_string(),
        latency.p99_us.to_string(),
        latency.p999_us.to_string(),
        latency.max_us.to_string(),
        usage.seconds.to_string(),
        usage.process_user_cores.to_string(),
        usage.process_system_cores.to_string(),
        or_empty(usage.machine_user_share),
        or_empty(usage.machine_system_share),
        or_empty(usage.machine_iowait_share),
        or_empty(usage.device_read_bytes),
        or_empty(usage.device_written_bytes),
        or_empty(figures.is_steady),
        figures.verified_bytes.to_string(),
        rates.len().to_string(),
        rates.iter().copied().fold(f64::INFINITY, f64::min).to_string(),
        rates.iter().copied().fold(0.0, f64::max).to_string(),
        figures.evidence.as_deref().map_or(String::new(), quoted),
        quoted(&measured.notes.join("; ")),
    ]
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(super) mod tests {
    use serde_json::Value;

    use super::super::{Latency, Rw, Way, usage::Usage};
    use super::*;

    /// Returns plausible figures.
    pub fn figures(rw: Rw, way: Way, block_bytes: usize, depth: usize, jobs: usize, rate: f64) -> Figures {
        let device = Some(rate as u64);
        Figures {
            point: Point { rw, way, block_bytes, depth, jobs },
            path: match way {
                Way::Host | Way::Uring => EffectivePath::HostDirect,
                Way::Buffered | Way::UringBuffered => EffectivePath::Buffered,
                Way::Device(way) if way.is_cufile() => EffectivePath::Compat,
                Way::Device(_) => EffectivePath::Staged,
            },
            evidence: way.is_cufile().then(|| "cuFile counted 0 peer to peer, 0 nvidia-fs, 7 POSIX".into()),
            transfers: 1000,
            bytes_per_sec: rate,
            ops_per_sec: rate / block_bytes as f64,
            latency: Latency { mean_us: 10.0, p50_us: 9.0, p99_us: 30.5, max_us: 99.0, ..Latency::default() },
            usage: Usage {
                seconds: 1.0,
                process_user_cores: 0.125,
                process_system_cores: 0.5,
                machine_user_share: Some(0.1),
                machine_system_share: Some(0.2),
                machine_iowait_share: Some(0.3),
                device_read_bytes: device,
                device_written_bytes: device,
            },
            is_steady: Some(true),
            verified_bytes: 0,
        }
    }

    /// Returns a report of these figures.
    pub fn report(points: Vec<Figures>) -> Report {
        let settings = Settings {
            file: "/data/f".into(),
            file_bytes: 1 << 30,
            runtime_seconds: 1.0,
            ramp_seconds: 0.5,
            repeats: 1,
            seed: 1,
            verify: false,
            touch: false,
        };
        let mut report = Report::new(settings, serde_json::json!({ "cpu": "one" }));
        report.points = points.into_iter().filter_map(|figures| Measured::new(vec![figures])).collect();
        report
    }

    #[test]
    fn json_comes_back_as_it_was() {
        let mut report = report(vec![figures(Rw::Read, Way::UringBuffered, 4096, 8, 2, 1e9)]);
        let point = report.points[0].figures.point;
        report.unavailable.push(Unavailable { point, reason: "no \"such\" thing".into() });
        let text = serde_json::to_string(&report).unwrap();
        let back = Report::parse(&text).unwrap();
        assert_eq!(serde_json::to_string(&back).unwrap(), text);
        let value: Value = serde_json::from_str(&text).unwrap();
        let point = &value["points"][0];
        assert_eq!((&value["schema_version"], &value["benchmark"]), (&1.into(), &"io".into()));
        assert_eq!((&point["rw"], &point["requested_path"]), (&"read".into(), &"uring-buffered".into()));
        assert_eq!((&point["effective_path"], &point["page_cache"]), (&"buffered".into(), &"dropped".into()));
        assert_eq!(point["latency"]["p99_us"], 30.5);
    }

    #[test]
    fn what_is_no_report_is_refused() {
        for (text, why) in [
            ("nonsense", "no JSON"),
            ("{}", "no report"),
            ("{\"benchmark\": \"io\", \"schema_version\": 9}", "schema_version is 9"),
            ("{\"benchmark\": \"io\", \"schema_version\": 1, \"points\": 3}", "damaged"),
        ] {
            let error = Report::parse(text).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn csv_has_a_field_for_every_column() {
        let mut report = report(vec![figures(Rw::RandWrite, Way::Host, 4096, 1, 4, 1e6)]);
        report.points[0].notes.push("a \"note\", with a comma".into());
        let text = report.csv();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0].split(',').count(), COLUMNS.len());
        assert!(lines[1].starts_with("randwrite,host,host direct,bypassed,4096,1,4,1000,1000000,"), "{}", lines[1]);
        assert!(lines[1].ends_with(",1,1000000,1000000,,\"a \"\"note\"\", with a comma\""), "{}", lines[1]);
        assert_eq!(lines[1].split('"').next().unwrap().split(',').count(), COLUMNS.len());
    }

    #[test]
    fn the_median_repeat_stands_for_all() {
        let all = [3e8, 1e8, 2e8].map(|rate| figures(Rw::Read, Way::Host, 4096, 1, 1, rate));
        let measured = Measured::new(all.to_vec()).unwrap();
        assert_eq!((measured.bytes_per_sec(), measured.spread()), (2e8, Some(1.0)));
        assert_eq!(measured.repeats_bytes_per_sec, [3e8, 1e8, 2e8]);
        assert_eq!(measured.notes, ["repeats are 100 % apart"]);
        assert!(Measured::new(Vec::new()).is_none());
    }

    #[test]
    fn rates_that_the_device_knows_nothing_of_are_marked() {
        let of = |way, rw, device: Option<u64>| {
            let mut figures = figures(rw, way, 4096, 1, 1, 1e9);
            figures.usage.device_read_bytes = device;
            figures.usage.device_written_bytes = device;
            Measured::new(vec![figures]).unwrap().notes.join("; ")
        };
        assert!(of(Way::Buffered, Rw::Read, Some(0)).contains("page cache: the device read 0 %"));
        assert!(of(Way::Buffered, Rw::Write, Some(300_000_000)).contains("the device had 30 %"));
        assert!(of(Way::Host, Rw::Read, Some(500_000_000)).contains("it moved 50 %"));
        // Other processes used the device too, or its counters are unknown.
        assert_eq!(of(Way::Host, Rw::Read, Some(2_000_000_000)), "");
        assert_eq!(of(Way::Buffered, Rw::Read, None), "");
    }
}
