//! The figures for people.

use std::fmt::Write;

use super::accounting::{Commit, Metadata, RedoLog, UndoLog};
use super::paper;
use super::report::{Report, Simulated, accounting_name, groups};
use super::structure::Layout;

/// Returns the parameters of the figures, a line for each.
pub fn settings(report: &Report) -> Vec<(&'static str, String)> {
    let settings = &report.settings;
    let tlb: Vec<String> = settings.tlb_levels.iter().map(ToString::to_string).collect();
    let layout = match settings.layout {
        Layout::Random => "random: keys came in random order and are hashed",
        Layout::Sequential => "sequential: keys came in order and are their own hashes",
    };
    let accounting = &settings.accounting;
    vec![
        (
            "model",
            "optimized shadow paging against undo and redo logging; flushes of 64 bytes, means per transaction".into(),
        ),
        ("tlb", format!("{}, true LRU, pages of {} KiB", tlb.join("; "), settings.page_bytes >> 10)),
        ("volatile", format!("{} references an operation, all to one page", settings.volatile_references)),
        (
            "data",
            format!(
                "{:.2} GB asked for, nodes of 64 B, of the B-tree {} B",
                gigabytes(settings.footprint_bytes),
                settings.b_tree_node_bytes
            ),
        ),
        ("layout", layout.into()),
        ("keys", "half of them there; an operation inserts the one it draws, or deletes it".into()),
        (
            "runs",
            format!(
                "{} operations after {}, {} a transaction, seed {}",
                settings.operations, settings.warm_up_operations, settings.transaction_operations, settings.seed
            ),
        ),
        ("log", format!("{} KiB of redo log, or journal, between truncations", settings.log_bytes >> 10)),
        ("counted", accounting_name(accounting)),
        ("  undo", accounting.undo.meaning().into()),
        ("  commit", accounting.commit.meaning().into()),
        ("  meta", accounting.metadata.meaning().into()),
    ]
}

/// Returns all tables.
pub fn text(report: &Report) -> String {
    let mut text = String::new();
    flushes(&mut text, &report.points);
    means(&mut text, report);
    logs(&mut text, &report.points);
    kinds(&mut text, &report.points);
    text
}

fn flushes(text: &mut String, points: &[Simulated]) {
    let _ = writeln!(
        text,
        "{:<9} {:<19} {:>6} {:>6} {:>6} {:>7} {:>7} {:>7} {:>6} {:>7} {:>7} {:>6} {:>6} {:>7} {:>7}",
        "workload",
        "keys",
        "GB",
        "pages",
        "words",
        "data",
        "journal",
        "consol.",
        "meta",
        "OSP",
        "undo",
        "ratio",
        "paper",
        "miss %",
        "paper"
    );
    for point in points {
        let [data, journal, consolidation, metadata] = point.flushes_per_transaction.classes();
        let _ = writeln!(
            text,
            "{:<9} {:<19} {:>6.2} {:>6.2} {:>6.2} {:>7.2} {:>7.2} {:>7.2} {:>6.2} {:>7.2} {:>7.2} {:>6.2} {:>6} {:>7.2} {:>7.2}",
            point.name,
            point.case.distribution(),
            gigabytes(point.footprint_bytes),
            point.pages_per_transaction,
            point.words_per_transaction,
            data,
            journal,
            consolidation,
            metadata,
            point.flushes_per_transaction.total(),
            point.undo_flushes_per_transaction,
            point.ratio,
            point.paper_ratio.map_or("-".into(), |ratio| format!("{ratio:.2}")),
            point.tlb_miss_ratios.first().map_or(0.0, |ratio| ratio * 100.0),
            point.paper_tlb_miss_ratio * 100.0
        );
    }
}

/// Prints the figures that the paper gives for all seven bars, and for one.
fn means(text: &mut String, report: &Report) {
    let groups = groups(&report.points);
    if groups.iter().all(|group| group.mean_ratio().is_none()) {
        return;
    }
    let _ = writeln!(text, "\n{:<29} {:>10} {:>10} {:>14}", "seven bars of", "mean", "highest", "BT-zipf data");
    let _ = writeln!(
        text,
        "{:<29} {:>10} {:>10} {:>12.1} %",
        "the paper",
        paper::MEAN_RATIO,
        paper::HIGHEST_RATIO,
        paper::BT_ZIPF_DATA * 100.0
    );
    for group in &groups {
        let Some(mean) = group.mean_ratio() else {
            continue;
        };
        let highest = group.bars.iter().map(|bar| bar.ratio).fold(0.0, f64::max);
        let data = group
            .bars
            .last()
            .map_or(0.0, |bar| bar.flushes_per_transaction.data / bar.flushes_per_transaction.total() * 100.0);
        let _ = writeln!(text, "{:<29} {mean:>10.2} {highest:>10.2} {data:>12.1} %", group.name);
    }
}

fn logs(text: &mut String, points: &[Simulated]) {
    let names: Vec<&str> =
        UndoLog::ALL.iter().map(|(name, _)| *name).chain(RedoLog::ALL.iter().map(|(name, _)| *name)).collect();
    let _ = writeln!(text, "\nevery log by OSP as counted above:");
    for (name, log) in UndoLog::ALL {
        let _ = writeln!(text, "  {name:<11} {}", log.meaning());
    }
    for (name, log) in RedoLog::ALL {
        let _ = writeln!(text, "  {name:<11} {}", log.meaning());
    }
    matrix(text, points, &names, &|point, column| point.ratio_of_log(names[column]));
}

fn kinds(text: &mut String, points: &[Simulated]) {
    // Commits without metadata, metadata with the first commit, and the combination of this
    // project's store.
    let mut kinds: Vec<(&str, &str)> = Commit::ALL.iter().map(|(commit, _)| (*commit, Metadata::ALL[0].0)).collect();
    kinds.extend(Metadata::ALL[1..].iter().map(|(metadata, _)| (Commit::ALL[0].0, *metadata)));
    kinds.push(("lines", "lazy"));
    let _ = writeln!(text, "\nundo logging as counted above by OSP, commit/metadata:");
    for (name, commit) in Commit::ALL {
        let _ = writeln!(text, "  {name:<11} {}", commit.meaning());
    }
    for (name, metadata) in Metadata::ALL {
        let _ = writeln!(text, "  /{name:<10} {}", metadata.meaning());
    }
    let names: Vec<String> = kinds.iter().map(|(commit, metadata)| format!("{commit}/{metadata}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    matrix(text, points, &names, &|point, column| point.ratio_of_osp(kinds[column].0, kinds[column].1));
}

fn matrix(text: &mut String, points: &[Simulated], names: &[&str], ratio: &dyn Fn(&Simulated, usize) -> f64) {
    let width = |name: &str| name.len().max(5);
    let _ = write!(text, "{:<9} {:<19}", "workload", "keys");
    for name in names {
        let _ = write!(text, " {name:>0$}", width(name));
    }
    let _ = writeln!(text);
    for point in points {
        let _ = write!(text, "{:<9} {:<19}", point.name, point.case.distribution());
        for (column, name) in names.iter().enumerate() {
            let _ = write!(text, " {:>1$.2}", ratio(point, column), width(name));
        }
        let _ = writeln!(text);
    }
}

fn gigabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::report;
    use super::*;

    #[test]
    fn every_case_is_in_every_table() {
        let report = report();
        let text = text(&report);
        for point in &report.points {
            let front = format!("{:<9} {:<19} ", point.name, point.case.distribution());
            assert_eq!(text.lines().filter(|line| line.starts_with(&front)).count(), 3, "{front}");
        }
        assert!(!text.contains("NaN"));
        assert!(text.contains("the paper") && text.contains("lines/lazy") && text.contains("redo-words"));
        assert!(settings(&report).iter().any(|(_, value)| value == "undo B, commit packed, metadata none"));
    }
}
