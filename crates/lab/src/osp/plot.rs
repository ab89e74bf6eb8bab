//! The paper's figures in one SVG file, a panel for each Zipf distribution. Lines across bars show
//! the numbers that the paper gives:
//!
//! - Figure 4a: the ratio of the flushes of undo logging to those of optimized shadow paging.
//! - Figure 4b: the purposes of the latter.
//! - Table 1: misses of the TLB.
//! - The same ratio under every accounting, a panel for each workload.

use super::accounting::{Commit, Flushes, Metadata, RedoLog, UndoLog};
use super::paper;
use super::report::{Group, Report, Simulated, accounting_name, groups};
use crate::bench::chart::{Bars, Canvas, Marks, Panel};

/// Returns the SVG file.
pub fn svg(report: &Report) -> String {
    let mut canvas = Canvas::default();
    let groups = groups(&report.points);
    let counted = accounting_name(&report.settings.accounting);
    let panels = |of: fn(&Group) -> Panel| groups.iter().map(of).collect::<Vec<_>>();
    canvas.figure(&format!("Figure 4a: flushes of undo logging by those of OSP ({counted})"), 2, &panels(ratios));
    canvas.figure(&format!("Figure 4b: what flushes of OSP are for ({counted})"), 2, &panels(breakdown));
    canvas.figure("Table 1: misses of the nearest TLB", 2, &panels(misses));
    // Only the steepest distribution, which shows the largest differences.
    if let Some(group) = groups.last() {
        let logs: Vec<Panel> = group.bars.iter().map(|bar| logs(bar)).collect();
        canvas.figure("Flushes of every log by those of OSP", 2, &logs);
        let osp: Vec<Panel> = group.bars.iter().map(|bar| commits(bar)).collect();
        canvas.figure("Flushes of undo logging by those of OSP under every accounting", 1, &osp);
    }
    canvas.finish("onehop bench osp", &subtitle(report))
}

fn ratios(group: &Group) -> Panel {
    let heights = group.bars.iter().map(|bar| bar.paper_ratio).collect();
    let bars = group.bars.iter().map(|bar| (bar.name.clone(), vec![bar.ratio])).collect();
    let title = match group.mean_ratio() {
        Some(mean) => format!("{}: mean {mean:.2}, paper {}", group.name, paper::MEAN_RATIO),
        None => group.name.clone(),
    };
    panel(title, "undo / OSP", &["undo / OSP"], bars, Some(("paper", heights)))
}

fn breakdown(group: &Group) -> Panel {
    let share = |bar: &&Simulated| {
        let flushes = &bar.flushes_per_transaction;
        (bar.name.clone(), flushes.classes().map(|class| class / flushes.total() * 100.0).to_vec())
    };
    let is_given = |bar: &&Simulated| (bar.name == "BT-zipf").then_some(paper::BT_ZIPF_DATA * 100.0);
    let marks = ("paper, data", group.bars.iter().map(is_given).collect());
    let bars = group.bars.iter().map(share).collect();
    Panel::Bars(Bars { highest: Some(100.0), ..stack(group.name.clone(), "%", &Flushes::CLASSES, bars, Some(marks)) })
}

fn misses(group: &Group) -> Panel {
    let ratio = |bar: &&Simulated| bar.tlb_miss_ratios.first().map_or(0.0, |ratio| ratio * 100.0);
    let bars = group.bars.iter().map(|bar| (bar.name.clone(), vec![ratio(bar)])).collect();
    let heights = group.bars.iter().map(|bar| Some(bar.paper_tlb_miss_ratio * 100.0)).collect();
    panel(group.name.clone(), "% of references", &["misses"], bars, Some(("paper", heights)))
}

fn logs(bar: &Simulated) -> Panel {
    let names = UndoLog::ALL.iter().map(|(name, _)| *name).chain(RedoLog::ALL.iter().map(|(name, _)| *name));
    let bars = names.map(|name| (name.to_string(), vec![bar.ratio_of_log(name)])).collect();
    panel(title(bar), "log / OSP", &["log / OSP"], bars, even(UndoLog::ALL.len() + RedoLog::ALL.len()))
}

fn commits(bar: &Simulated) -> Panel {
    let kinds =
        Commit::ALL.iter().flat_map(|(commit, _)| Metadata::ALL.iter().map(move |(metadata, _)| (commit, metadata)));
    let bars = kinds.map(|(commit, metadata)| {
        (format!("{}/{metadata}", commit.trim_end_matches("-page")), vec![bar.ratio_of_osp(commit, metadata)])
    });
    panel(title(bar), "undo / OSP", &["undo / OSP"], bars.collect(), even(Commit::ALL.len() * Metadata::ALL.len()))
}

/// Returns the marks at which both take the same number.
fn even(bars: usize) -> Option<(&'static str, Vec<Option<f64>>)> {
    Some(("as many", vec![Some(1.0); bars]))
}

fn title(bar: &Simulated) -> String {
    format!("{}, {}", bar.name, bar.case.distribution())
}

fn panel(
    title: String,
    value: &'static str,
    parts: &[&'static str],
    bars: Vec<(String, Vec<f64>)>,
    marks: Option<(&str, Vec<Option<f64>>)>,
) -> Panel {
    Panel::Bars(stack(title, value, parts, bars, marks))
}

fn stack(
    title: String,
    value: &'static str,
    parts: &[&'static str],
    bars: Vec<(String, Vec<f64>)>,
    marks: Option<(&str, Vec<Option<f64>>)>,
) -> Bars {
    let marks = marks.map(|(name, heights)| Marks { name: name.into(), heights });
    Bars { title, along: String::new(), value, parts: parts.to_vec(), highest: None, bars, marks }
}

fn subtitle(report: &Report) -> String {
    let settings = &report.settings;
    let tlb: Vec<String> = settings.tlb_levels.iter().map(ToString::to_string).collect();
    format!(
        "onehop bench osp · TLB {} · pages of {} KiB · {:.2} GB · {} operations after {} · seed {}",
        tlb.join(", "),
        settings.page_bytes >> 10,
        settings.footprint_bytes as f64 / 1e9,
        settings.operations,
        settings.warm_up_operations,
        settings.seed
    )
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::report;
    use super::*;

    #[test]
    fn all_of_the_papers_figures_are_there_with_its_numbers() {
        let text = svg(&report());
        let parts = [
            "Figure 4a",
            "Figure 4b",
            "Table 1",
            "zipf 1.5 plain",
            "BT-zipf, consolidation",
            "paper: 12.9",
            "D16",
            "super/literal",
        ];
        for part in parts {
            assert!(text.contains(part), "{part}");
        }
        assert!(!text.contains("NaN") && text.ends_with("</svg>\n"));
    }

    #[test]
    fn nothing_and_a_single_case_are_drawn_all_the_same() {
        let mut report = report();
        report.points.truncate(1);
        assert!(svg(&report).contains("SPS"));
        report.points.clear();
        assert!(svg(&report).ends_with("</svg>\n"));
    }
}
