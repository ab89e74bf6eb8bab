//! The paper's figures about its I/O paths, for the points of a run, in one SVG file:
//!
//! - Figure 2, one thread: rate, transfers per second and latency by block size; sequential above,
//!   random below.
//! - Figure 3, many threads: rate and latency by their number for large sequential blocks,
//!   transfers per second and latency for small random ones.
//! - Figure 4, the same by processor time: user, system and waiting for storage, of the whole
//!   machine.
//! - Figure 5, one thread with many transfers in flight beside many threads with one each.
//!
//! An axis needs two values. A figure whose axis has fewer is omitted, and if all are, the rates
//! are drawn as bars. Fixed parameters of a figure have the paper's values if the run has those,
//! and otherwise the lowest ones of the run.

use onehop_engine::units;

use super::{Measured, Point, Report};
use crate::bench::chart::{Axis, Bars, Canvas, Lines, Panel, Series};

/// The paper's block sizes for its threads and batches.
const LARGE_BYTES: usize = 1 << 20;
const SMALL_BYTES: usize = 4096;

/// Returns the SVG file.
pub fn svg(report: &Report) -> String {
    let all: Vec<&Measured> = report.points.iter().collect();
    let figures = [blocks(&all), threads(&all), processors(&all), batches(&all)];
    let mut canvas = Canvas::default();
    for (title, columns, panels) in figures {
        canvas.figure(&title, columns, &panels);
    }
    if canvas.is_empty() {
        canvas.figure("Rates", 1, &[rates(&all)]);
    }
    canvas.finish("onehop bench io", &subtitle(report))
}

type Figure = (String, usize, Vec<Panel>);

fn subtitle(report: &Report) -> String {
    let environment = |name: &str| report.environment[name].as_str().unwrap_or("unknown").to_string();
    format!(
        "onehop bench io · {} · {} on {} · {} · {} · {}",
        environment("cpu"),
        environment("file_system"),
        environment("mounted_device"),
        environment("kernel"),
        units::memory(report.settings.file_bytes),
        environment("date"),
    )
}

/// The quantity on a value axis.
#[derive(Clone, Copy)]
enum Value {
    MegabytesPerSec,
    OpsPerSec,
    Latency,
}

impl Value {
    fn of(self, measured: &Measured) -> f64 {
        let figures = &measured.figures;
        match self {
            Value::MegabytesPerSec => figures.bytes_per_sec / 1e6,
            Value::OpsPerSec => figures.ops_per_sec,
            Value::Latency => figures.latency.mean_us,
        }
    }

    fn title(self) -> &'static str {
        match self {
            Value::MegabytesPerSec => "Transfer rate (MB/s)",
            Value::OpsPerSec => "Transfers a second (IO/s)",
            Value::Latency => "Latency, mean (µs)",
        }
    }
}

/// Draws lines of points. `line` returns the line of a point, and `at` its position.
fn lines(
    title: String,
    along: &str,
    (value, axis): (Value, Axis),
    points: &[&Measured],
    line: impl Fn(&Point) -> String,
    at: impl Fn(&Point) -> usize,
    label: fn(usize) -> String,
) -> Panel {
    let mut places: Vec<usize> = points.iter().map(|measured| at(&measured.figures.point)).collect();
    places.sort_unstable();
    places.dedup();
    let mut series: Vec<Series> = Vec::new();
    for measured in points {
        let point = &measured.figures.point;
        let name = line(point);
        let Ok(place) = places.binary_search(&at(point)) else { continue };
        let number = series.iter().position(|one| one.name == name).unwrap_or_else(|| {
            series.push(Series { name, is_dashed: point.rw.writes(), points: Vec::new() });
            series.len() - 1
        });
        series[number].points.push((place, value.of(measured)));
    }
    series.iter_mut().for_each(|one| one.points.sort_by_key(|point| point.0));
    let labels = places.into_iter().map(label).collect();
    Panel::Lines(Lines { title, along: along.into(), value: value.title(), axis, labels, series })
}

fn order(is_random: bool) -> &'static str {
    if is_random { "random" } else { "sequential" }
}

fn letter(number: usize) -> char {
    (b'a' + (number % 26) as u8) as char
}

/// Returns the name of a point's line: `read host`, and the depth if it is not one.
fn name(point: &Point) -> String {
    let mut name = format!("{} {}", if point.rw.writes() { "write" } else { "read" }, point.way);
    if point.depth > 1 {
        name += &format!(", {} in flight", point.depth);
    }
    name
}

fn few_in_flight<'a>(all: &[&'a Measured], is_random: bool) -> Vec<&'a Measured> {
    let of_order = all.iter().filter(|measured| measured.figures.point.rw.is_random() == is_random);
    let is_least = |measured: &&&Measured| {
        let point = &measured.figures.point;
        all.iter()
            .map(|other| &other.figures.point)
            .filter(|other| other.way == point.way)
            .all(|other| other.depth >= point.depth)
    };
    of_order.filter(is_least).copied().collect()
}

fn of_fewest_jobs<'a>(points: &[&'a Measured]) -> Vec<&'a Measured> {
    let fewest = points.iter().map(|measured| measured.figures.point.jobs).min();
    points.iter().filter(|measured| Some(measured.figures.point.jobs) == fewest).copied().collect()
}

/// Returns the points of the wanted block size, or of the most frequent one.
fn of_block<'a>(points: &[&'a Measured], wanted: usize) -> (usize, Vec<&'a Measured>) {
    let count = |bytes: usize| points.iter().filter(|measured| measured.figures.point.block_bytes == bytes).count();
    let sizes = points.iter().map(|measured| measured.figures.point.block_bytes);
    let most = sizes.max_by_key(|bytes| (count(*bytes), std::cmp::Reverse(*bytes)));
    let bytes = if count(wanted) > 0 { wanted } else { most.unwrap_or(wanted) };
    (bytes, points.iter().filter(|measured| measured.figures.point.block_bytes == bytes).copied().collect())
}

fn block(bytes: usize) -> String {
    match bytes {
        b if b.is_multiple_of(1 << 30) => format!("{} GiB", b >> 30),
        b if b.is_multiple_of(1 << 20) => format!("{} MiB", b >> 20),
        b => format!("{} KiB", b >> 10),
    }
}

fn blocks(all: &[&Measured]) -> Figure {
    let mut panels = Vec::new();
    for is_random in [false, true] {
        let points = of_fewest_jobs(&few_in_flight(all, is_random));
        for (value, axis) in
            [(Value::MegabytesPerSec, Axis::Linear), (Value::OpsPerSec, Axis::Log), (Value::Latency, Axis::Log)]
        {
            let title = format!("({}) {}", letter(panels.len()), order(is_random));
            panels.push(lines(title, "block", (value, axis), &points, name, |point| point.block_bytes, block));
        }
    }
    ("Figure 2: one thread, by block size".into(), 3, panels)
}

fn threads(all: &[&Measured]) -> Figure {
    let mut panels = Vec::new();
    for (is_random, wanted, value) in
        [(false, LARGE_BYTES, Value::MegabytesPerSec), (true, SMALL_BYTES, Value::OpsPerSec)]
    {
        let (bytes, points) = of_block(&few_in_flight(all, is_random), wanted);
        for value in [(value, Axis::Linear), (Value::Latency, Axis::Log)] {
            let title = format!("({}) {} {}", letter(panels.len()), block(bytes), order(is_random));
            let number = |jobs: usize| jobs.to_string();
            panels.push(lines(title, "threads", value, &points, name, |point| point.jobs, number));
        }
    }
    ("Figure 3: many threads".into(), 2, panels)
}

fn processors(all: &[&Measured]) -> Figure {
    let mut panels = Vec::new();
    for (is_random, wanted) in [(false, LARGE_BYTES), (true, SMALL_BYTES)] {
        let (bytes, points) = of_block(&few_in_flight(all, is_random), wanted);
        let mut kinds: Vec<(bool, _)> = Vec::new();
        for point in points.iter().map(|measured| &measured.figures.point) {
            if !kinds.contains(&(point.rw.writes(), point.way)) {
                kinds.push((point.rw.writes(), point.way));
            }
        }
        for (writes, way) in kinds {
            let is_kind = |point: &Point| point.rw.writes() == writes && point.way == way;
            let mut points: Vec<&&Measured> =
                points.iter().filter(|measured| is_kind(&measured.figures.point)).collect();
            points.sort_by_key(|measured| measured.figures.point.jobs);
            let verb = if writes { "write" } else { "read" };
            let bars = points.iter().map(|measured| {
                let usage = &measured.figures.usage;
                let shares = [usage.machine_user_share, usage.machine_system_share, usage.machine_iowait_share];
                (measured.figures.point.jobs.to_string(), shares.map(|share| share.unwrap_or(0.0) * 100.0).to_vec())
            });
            // Four panels in a row leave little space.
            let order = if is_random { "rand." } else { "seq." };
            let title = format!("({}) {} {order} {verb}, {way}", letter(panels.len()), block(bytes));
            panels.push(Panel::Bars(Bars {
                title,
                along: "threads".into(),
                value: "Processor time of the machine (%)",
                parts: vec!["user", "system", "waiting for storage"],
                highest: Some(100.0),
                bars: bars.collect(),
                marks: None,
            }));
        }
    }
    ("Figure 4: processor time of many threads".into(), 4, panels)
}

fn batches(all: &[&Measured]) -> Figure {
    let mut panels = Vec::new();
    for (is_random, wanted, value) in
        [(false, LARGE_BYTES, Value::MegabytesPerSec), (true, SMALL_BYTES, Value::OpsPerSec)]
    {
        let of_order: Vec<&Measured> =
            all.iter().filter(|measured| measured.figures.point.rw.is_random() == is_random).copied().collect();
        let (bytes, points) = of_block(&of_order, wanted);
        let batched: Vec<&Measured> =
            points.iter().filter(|measured| measured.figures.point.way.has_depth()).copied().collect();
        let mut shown = of_fewest_jobs(&batched);
        let mut depths: Vec<usize> = shown.iter().map(|measured| measured.figures.point.depth).collect();
        depths.sort_unstable();
        depths.dedup();
        if depths.len() > 1 {
            shown.extend(points.iter().filter(|measured| !measured.figures.point.way.has_depth()));
        } else {
            shown.clear();
        }
        let line = |point: &Point| {
            let verb = if point.rw.writes() { "write" } else { "read" };
            let what = if point.way.has_depth() { "in flight" } else { "threads" };
            format!("{verb} {}, {what}", point.way)
        };
        let at = |point: &Point| if point.way.has_depth() { point.depth } else { point.jobs };
        for value in [(value, Axis::Linear), (Value::Latency, Axis::Log)] {
            let title = format!("({}) {} {}", letter(panels.len()), block(bytes), order(is_random));
            panels.push(lines(title, "in flight, or threads", value, &shown, line, at, |n| n.to_string()));
        }
    }
    ("Figure 5: one thread with many transfers in flight, and many threads".into(), 2, panels)
}

fn rates(all: &[&Measured]) -> Panel {
    let bar = |measured: &&Measured| {
        let point = &measured.figures.point;
        let label = format!("{} {} x{} j{}", point.way, block(point.block_bytes), point.depth, point.jobs);
        (label, vec![Value::MegabytesPerSec.of(measured)])
    };
    Panel::Bars(Bars {
        title: String::new(),
        along: String::new(),
        value: Value::MegabytesPerSec.title(),
        parts: vec!["rate"],
        highest: None,
        bars: all.iter().map(bar).collect(),
        marks: None,
    })
}

#[cfg(test)]
#[allow(clippy::expect_used)]
mod tests {
    use super::super::report::tests::{figures, report};
    use super::super::{Rw, Way};
    use super::*;

    /// Checks that every opened element is closed, in order, and that text contains no markup.
    fn assert_well_formed(text: &str) {
        let mut open: Vec<&str> = Vec::new();
        let mut rest = text;
        while let Some(start) = rest.find('<') {
            assert!(!rest[..start].contains('>'), "{}", &rest[..start]);
            let end = rest[start..].find('>').expect("an element ends") + start;
            let element = &rest[start + 1..end];
            assert_eq!(element.matches('"').count() % 2, 0, "{element}");
            match element.strip_prefix('/') {
                Some(name) => assert_eq!(open.pop(), Some(name)),
                None if element.ends_with('/') => {}
                None => open.push(element.split_whitespace().next().unwrap_or_default()),
            }
            rest = &rest[end + 1..];
        }
        assert!(open.is_empty(), "{open:?}");
        assert!(!text.contains("NaN") && !text.contains("inf\""), "a number that is none");
    }

    #[test]
    fn a_run_like_the_paper_s_has_all_its_figures() {
        let mut points = Vec::new();
        for rw in Rw::ALL.map(|(_, rw)| rw) {
            let device = onehop_cuda::Way::CufileSync;
            for way in [Way::Host, Way::Uring, Way::Device(device), Way::Device(onehop_cuda::Way::CufileBatch)] {
                for block in [4096, 1 << 20, 64 << 20] {
                    points.push(figures(rw, way, block, 1, 1, block as f64 * 100.0));
                }
                for n in [2, 16, 64] {
                    for block in [4096, 1 << 20] {
                        points.push(figures(rw, way, block, 1, n, 1e9));
                        if way.has_depth() {
                            points.push(figures(rw, way, block, n, 1, 1e9));
                        }
                    }
                }
            }
        }
        let text = svg(&report(points));
        assert_well_formed(&text);
        for title in
            ["Figure 2", "Figure 3", "Figure 4", "Figure 5", "(f) random", "64 MiB", "(n) 4 KiB rand. write, uring"]
        {
            assert!(text.contains(title), "{title}");
        }
        // The GPU's paths beside the host's: batches by their depth, blocking calls by their
        // threads.
        for series in
            ["read cufile-sync", "read cufile-batch, in flight", "read cufile-sync, threads", "write, cufile-sync"]
        {
            assert!(text.contains(series), "{series}");
        }
        assert!(text.contains("prefers-color-scheme: dark"));
    }

    #[test]
    fn one_point_is_a_bar_and_none_is_a_figure_all_the_same() {
        let text = svg(&report(vec![figures(Rw::Read, Way::Host, 4096, 1, 1, 1e9)]));
        assert_well_formed(&text);
        assert!(text.contains("Rates") && !text.contains("Figure 2"));
        assert_well_formed(&svg(&report(Vec::new())));
    }

    #[test]
    fn rates_of_nothing_and_names_with_markup_are_drawn() {
        let mut nothing =
            report(vec![figures(Rw::Read, Way::Host, 4096, 1, 1, 0.0), figures(Rw::Read, Way::Host, 8192, 1, 1, 0.0)]);
        nothing.points[0].figures.latency.mean_us = 0.0;
        nothing.environment["cpu"] = "<b>&\"fast\"".into();
        let text = svg(&nothing);
        assert_well_formed(&text);
        assert!(text.contains("&lt;b&gt;&amp;&quot;fast&quot;"));
    }
}
