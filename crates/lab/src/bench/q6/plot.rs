//! The paper's figures about Query 6, for the points of a run, in one SVG file:
//!
//! - Figure 7, a panel for each path: the time of the query by buffer size, as bars of its parts.
//! - Figure 8, a panel for each path: processor time of the process by buffer size, in its own code
//!   and in the kernel.
//!
//! Panels of a figure share the end of their axis, so that they can be compared. The paper has
//! rows, and one mode: layouts and modes have separate figures.

use onehop_engine::units;

use super::{Figures, Layout, Measured, Mode, Report, Way};
use crate::bench::chart::{Bars, Canvas, Panel};

/// Returns the SVG file.
pub fn svg(report: &Report) -> String {
    let mut canvas = Canvas::default();
    for (_, layout) in Layout::ALL {
        for (_, mode) in Mode::ALL {
            let of = |measured: &&Measured| measured.point.layout == layout && measured.point.mode == mode;
            let points: Vec<&Measured> = report.points.iter().filter(of).collect();
            let of = format!("{layout}, {mode}");
            figure(&mut canvas, &points, &format!("Figure 7: time of Query 6 ({of})"), &TIME);
            figure(&mut canvas, &points, &format!("Figure 8: processor time of Query 6 ({of})"), &PROCESSOR);
        }
    }
    if canvas.is_empty() {
        canvas.figure("No figures", 1, &[panel(String::new(), &[], None, &TIME)]);
    }
    canvas.finish("onehop bench q6", &subtitle(report))
}

/// The parts of a bar.
struct Stack {
    value: &'static str,
    parts: &'static [&'static str],
    of: fn(&Figures) -> Vec<f64>,
}

const TIME: Stack = Stack {
    value: "Time (ms)",
    parts: &["I/O", "transfer", "compute", "other"],
    of: |figures| {
        let spent = &figures.spent;
        let all = [spent.io_seconds, spent.transfer_seconds, spent.compute_seconds, spent.other_seconds];
        all.map(|seconds| seconds * 1e3).to_vec()
    },
};

const PROCESSOR: Stack = Stack {
    value: "Processors busy (100 % is one)",
    parts: &["user", "system"],
    of: |figures| {
        [figures.usage.process_user_cores, figures.usage.process_system_cores].map(|cores| cores * 100.0).to_vec()
    },
};

fn figure(canvas: &mut Canvas, points: &[&Measured], title: &str, stack: &Stack) {
    let height =
        |measured: &&&Measured| measured.figures.as_ref().map_or(0.0, |figures| (stack.of)(figures).iter().sum());
    let highest = points.iter().map(|measured| height(&measured)).fold(0.0, f64::max);
    let mut panels = Vec::new();
    for (_, way) in Way::ALL {
        let mut of_way: Vec<&Measured> =
            points.iter().filter(|one| one.point.way == way && one.figures.is_some()).copied().collect();
        of_way.sort_by_key(|one| one.point.buffer_bytes);
        if !of_way.is_empty() {
            let letter = (b'a' + panels.len() as u8) as char;
            panels.push(panel(format!("({letter}) {}", way.title()), &of_way, Some(rounded(highest)), stack));
        }
    }
    // A grid omits panels of a single bar, a column does not.
    let columns =
        if panels.iter().any(|panel| matches!(panel, Panel::Bars(bars) if bars.bars.len() > 1)) { 2 } else { 1 };
    canvas.figure(title, columns, &panels);
}

fn panel(title: String, points: &[&Measured], highest: Option<f64>, stack: &Stack) -> Panel {
    let bar = |measured: &&Measured| {
        let figures = measured.figures.as_ref()?;
        Some((size(measured.point.buffer_bytes), (stack.of)(figures)))
    };
    Panel::Bars(Bars {
        title,
        along: "buffer".into(),
        value: stack.value,
        parts: stack.parts.to_vec(),
        highest,
        bars: points.iter().filter_map(bar).collect(),
        marks: None,
    })
}

/// Returns the next number whose quarters are short.
fn rounded(value: f64) -> f64 {
    if value <= 0.0 {
        return 1.0;
    }
    let power = 10f64.powf(value.log10().floor());
    [1.0, 2.0, 4.0, 6.0, 8.0].into_iter().find(|step| step * power >= value).unwrap_or(10.0) * power
}

fn size(bytes: usize) -> String {
    match bytes {
        b if b.is_multiple_of(1 << 20) => format!("{} MiB", b >> 20),
        b => format!("{} KiB", b >> 10),
    }
}

fn subtitle(report: &Report) -> String {
    let environment = |name: &str| report.environment[name].as_str().unwrap_or("unknown").to_string();
    let mut parts = vec![format!("onehop bench q6 · SF {}", report.settings.scale_factor), environment("cpu")];
    if report.environment["gpu"].is_string() {
        parts.push(environment("gpu"));
    }
    parts.push(environment("file_system"));
    parts.push(format!("{} rows", units::count(report.settings.rows)));
    parts.push(environment("date"));
    parts.join(" · ")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::report::tests::{figures, point, report};
    use super::*;

    #[test]
    fn every_way_has_a_panel_in_both_figures() {
        let mut points = Vec::new();
        for (_, way) in Way::ALL {
            for bytes in [1 << 20, 65_536] {
                let point = point(way, Mode::Paper, Layout::Rows, bytes);
                points.extend(Measured::new(point, 7, vec![figures(0.5, 7)]));
            }
        }
        let wrong = point(Way::Cpu, Mode::Paper, Layout::Rows, 4 << 20);
        points.extend(Measured::new(wrong, 7, vec![figures(0.5, 8)]));
        let text = svg(&report(points));
        for part in ["Figure 7", "Figure 8", "(d) GPU direct I/O, CPU execution", "64 KiB", "transfer", "system"] {
            assert!(text.contains(part), "{part}");
        }
        assert!(!text.contains("4 MiB"), "a wrong answer has no bar");
        assert!(!text.contains("segments,"), "nothing was measured of them");
        assert!(!text.contains("NaN"));
    }

    #[test]
    fn nothing_and_one_point_are_drawn_all_the_same() {
        assert!(svg(&report(Vec::new())).ends_with("</svg>\n"));
        let point = point(Way::Cpu, Mode::Overlapped, Layout::Segments, 1 << 20);
        let text = svg(&report(Measured::new(point, 7, vec![figures(0.5, 7)]).into_iter().collect()));
        assert!(text.contains("Figure 7") && text.contains("1 MiB, compute"), "{text}");
    }

    #[test]
    fn axes_end_where_quarters_are_short() {
        assert_eq!([rounded(0.0), rounded(3.0), rounded(61.0), rounded(900.0)], [1.0, 4.0, 80.0, 1000.0]);
    }
}
