//! The report's record of each case: means per transaction, under every accounting, beside the
//! paper's figures.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::accounting::{self, Accounting, Commit, Flushes, Metadata, RedoLog, UndoLog};
use super::random::Distribution;
use super::structure::Layout;
use super::tlb::Shape;
use super::{Case, Options, Ran, paper};
use crate::bench::report::{self, Line, or_empty, quoted};

/// A whole run. No case is ever missing.
pub type Report = report::Report<Settings, Simulated, Case>;

/// The settings of the simulation: all parameters that influence the figures.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Settings {
    /// The levels of the TLB, from the nearest.
    pub tlb_levels: Vec<Shape>,
    /// The size of a TLB page, in bytes.
    pub page_bytes: u64,
    /// The number of volatile references of an operation.
    pub volatile_references: u64,
    /// The size of a redo log, and of a journal between checkpoints, in bytes.
    pub log_bytes: u64,
    /// The requested persistent memory, in bytes.
    pub footprint_bytes: u64,
    /// The size of a node of the B-tree, in bytes.
    pub b_tree_node_bytes: u64,
    /// The layout of elements.
    pub layout: Layout,
    /// The number of operations before the counted ones.
    pub warm_up_operations: u64,
    /// The number of counted operations.
    pub operations: u64,
    /// The number of operations of a transaction.
    pub transaction_operations: u64,
    /// The seed of everything random.
    pub seed: u64,
    /// The accounting of the flushes and ratios of the points.
    pub accounting: Accounting,
    /// The descriptions of all names: logs, commits, metadata.
    pub meanings: BTreeMap<String, String>,
}

impl Settings {
    /// Creates the settings of a run.
    pub fn new(options: &Options, accounting: Accounting) -> Self {
        let undo = UndoLog::ALL.map(|(name, one)| (name, one.meaning()));
        let redo = RedoLog::ALL.map(|(name, one)| (name, one.meaning()));
        let commit = Commit::ALL.map(|(name, one)| (name, one.meaning()));
        let metadata = Metadata::ALL.map(|(name, one)| (name, one.meaning()));
        let meanings = undo.into_iter().chain(redo).chain(commit).chain(metadata);
        Self {
            tlb_levels: options.machine.levels.clone(),
            page_bytes: options.machine.page_bytes,
            volatile_references: options.machine.volatile_references,
            log_bytes: options.machine.log_bytes,
            footprint_bytes: options.footprint_bytes,
            b_tree_node_bytes: options.b_tree_node_bytes,
            layout: options.layout,
            warm_up_operations: options.warm_up,
            operations: options.operations,
            transaction_operations: options.transaction_operations,
            seed: options.seed,
            accounting,
            meanings: meanings.map(|(name, meaning)| (name.to_string(), meaning.to_string())).collect(),
        }
    }
}

/// A simulated case. Each `_per_transaction` member is a mean.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Simulated {
    /// The paper's name.
    pub name: String,
    /// The case.
    #[serde(flatten)]
    pub case: Case,
    /// The persistent memory, in bytes.
    pub footprint_bytes: u64,
    /// The number of transactions that wrote something.
    pub transactions: u64,
    /// The number of distinct lines written.
    pub lines_per_transaction: f64,
    /// The number of distinct pages of 4 KiB written.
    pub pages_per_transaction: f64,
    /// The number of distinct words written.
    pub words_per_transaction: f64,
    /// The number of loads and stores of persistent words by operation.
    pub references_per_operation: f64,
    /// The misses of each level, by all references.
    pub tlb_miss_ratios: Vec<f64>,
    /// The miss ratio in Table 1.
    pub paper_tlb_miss_ratio: f64,
    /// The number of volatile references of an operation that would yield the paper's ratio in the
    /// nearest level, if any number would.
    pub volatile_references_for_paper: Option<f64>,
    /// The number of TLB pages whose pair was dissolved.
    pub consolidated_pages_per_transaction: f64,
    /// The number of pages that went out of use within the transaction that wrote them.
    pub postponed_pages: u64,
    /// The flushes of optimized shadow paging, under the accounting of the settings.
    pub flushes_per_transaction: Flushes,
    /// The flushes of undo logging, under the accounting of the settings.
    pub undo_flushes_per_transaction: f64,
    /// The ratio of the latter to the former.
    pub ratio: f64,
    /// The ratio in Figure 4a, if the text gives a number.
    pub paper_ratio: Option<f64>,
    /// The flushes of every log, data included.
    pub log_flushes_per_transaction: BTreeMap<String, f64>,
    /// The flushes of every kind of commit (`packed`) with every way to count metadata (`none`):
    /// `packed/none`.
    pub osp_flushes_per_transaction: BTreeMap<String, f64>,
}

impl Simulated {
    /// Creates the record of a run.
    pub fn new(ran: &Ran, accounting: Accounting) -> Self {
        let (case, counts) = (ran.case, &ran.counts);
        let each = |count: u64| count as f64 / counts.transactions.max(1) as f64;
        let flushes = |commit, metadata| {
            let all = counts.osp(commit, metadata);
            let each = |count: f64| count / counts.transactions.max(1) as f64;
            Flushes {
                data: each(all.data),
                journal: each(all.journal),
                consolidation: each(all.consolidation),
                metadata: each(all.metadata),
            }
        };
        let own = flushes(accounting.commit, accounting.metadata);
        let undo = each(counts.undo_total(accounting.undo));
        let mut logs: BTreeMap<String, f64> =
            UndoLog::ALL.iter().map(|(name, log)| (name.to_string(), each(counts.undo_total(*log)))).collect();
        logs.extend(RedoLog::ALL.iter().zip(counts.redo).map(|((name, _), count)| (name.to_string(), each(count))));
        let kinds = Commit::ALL.iter().flat_map(|commit| Metadata::ALL.iter().map(move |metadata| (commit, metadata)));
        let osp =
            kinds.map(|(commit, metadata)| (osp_name(commit.0, metadata.0), flushes(commit.1, metadata.1).total()));
        let osp = osp.collect();
        let paper_miss_ratio = paper::miss_ratio(case.structure, case.is_zipf());
        let operations = counts.operations.max(1) as f64;
        let misses = counts.misses.first().map_or(0.0, |misses| *misses as f64) / operations;
        let persistent = counts.persistent_references as f64 / operations;
        Self {
            name: case.name(),
            case,
            footprint_bytes: ran.footprint_bytes,
            transactions: counts.transactions,
            lines_per_transaction: each(counts.lines),
            pages_per_transaction: each(counts.pages),
            words_per_transaction: each(counts.words),
            references_per_operation: persistent,
            tlb_miss_ratios: (0..counts.misses.len()).map(|level| counts.miss_ratio(level)).collect(),
            paper_tlb_miss_ratio: paper_miss_ratio,
            volatile_references_for_paper: Some(misses / paper_miss_ratio - persistent).filter(|more| *more >= 0.0),
            consolidated_pages_per_transaction: each(counts.consolidated_pages),
            postponed_pages: counts.postponed_pages,
            flushes_per_transaction: own,
            undo_flushes_per_transaction: undo,
            ratio: undo / own.total(),
            paper_ratio: paper::ratio(case.structure, case.is_zipf()),
            log_flushes_per_transaction: logs,
            osp_flushes_per_transaction: osp,
        }
    }

    /// Returns the ratio of a log's flushes to those of optimized shadow paging under the
    /// accounting of the settings.
    pub fn ratio_of_log(&self, log: &str) -> f64 {
        self.log_flushes_per_transaction
            .get(log)
            .map_or(f64::NAN, |flushes| flushes / self.flushes_per_transaction.total())
    }

    /// Returns the ratio of the flushes of the settings' undo log to those of optimized shadow
    /// paging under another accounting.
    pub fn ratio_of_osp(&self, commit: &str, metadata: &str) -> f64 {
        let flushes = self.osp_flushes_per_transaction.get(&osp_name(commit, metadata));
        flushes.map_or(f64::NAN, |flushes| self.undo_flushes_per_transaction / flushes)
    }
}

fn osp_name(commit: &str, metadata: &str) -> String {
    format!("{commit}/{metadata}")
}

/// The bars of one of the paper's figures: all cases with uniform keys, and those of one Zipf
/// distribution.
#[derive(Clone, Debug)]
pub struct Group<'a> {
    /// The distribution: `zipf 1.5 plain`; `uniform` alone if there is no other.
    pub name: String,
    /// The bars, in the paper's order.
    pub bars: Vec<&'a Simulated>,
}

impl Group<'_> {
    /// Returns the mean of the ratios, if all seven bars exist.
    pub fn mean_ratio(&self) -> Option<f64> {
        (self.bars.len() == 7).then(|| self.bars.iter().map(|bar| bar.ratio).sum::<f64>() / 7.0)
    }
}

/// Returns the figures' bars, by the distribution of the keys that are not uniform.
pub fn groups(points: &[Simulated]) -> Vec<Group<'_>> {
    let mut distributions: Vec<Distribution> = Vec::new();
    for point in points.iter().filter(|point| point.case.is_zipf()) {
        if !distributions.contains(&point.case.keys) {
            distributions.push(point.case.keys);
        }
    }
    if distributions.is_empty() {
        distributions.push(Distribution::Uniform);
    }
    let group = |keys: &Distribution| {
        let bars: Vec<&Simulated> =
            points.iter().filter(|point| !point.case.is_zipf() || point.case.keys == *keys).collect();
        let named = bars.iter().find(|point| point.case.keys == *keys);
        Group { name: named.map_or_else(String::new, |point| point.case.distribution()), bars }
    };
    distributions.iter().map(group).collect()
}

impl Line for Simulated {
    const BENCHMARK: &'static str = "osp";
    const SCHEMA_VERSION: u32 = 1;
    const COLUMNS: &'static [&'static str] = &COLUMNS;

    fn fields(&self) -> Vec<String> {
        let [data, journal, consolidation, metadata] = self.flushes_per_transaction.classes();
        vec![
            self.name.clone(),
            quoted(&self.case.distribution()),
            self.footprint_bytes.to_string(),
            self.transactions.to_string(),
            self.lines_per_transaction.to_string(),
            self.pages_per_transaction.to_string(),
            self.words_per_transaction.to_string(),
            or_empty(self.tlb_miss_ratios.first()),
            self.paper_tlb_miss_ratio.to_string(),
            data.to_string(),
            journal.to_string(),
            consolidation.to_string(),
            metadata.to_string(),
            self.undo_flushes_per_transaction.to_string(),
            self.ratio.to_string(),
            or_empty(self.paper_ratio),
        ]
    }
}

const COLUMNS: [&str; 16] = [
    "name",
    "keys",
    "footprint_bytes",
    "transactions",
    "lines_per_transaction",
    "pages_per_transaction",
    "words_per_transaction",
    "tlb_miss_ratio",
    "paper_tlb_miss_ratio",
    "data_flushes_per_transaction",
    "journal_flushes_per_transaction",
    "consolidation_flushes_per_transaction",
    "metadata_flushes_per_transaction",
    "undo_flushes_per_transaction",
    "ratio",
    "paper_ratio",
];

/// Returns the name of an accounting: `undo B, commit packed, metadata none`.
pub fn accounting_name(accounting: &Accounting) -> String {
    format!(
        "undo {}, commit {}, metadata {}",
        accounting::name(&UndoLog::ALL, accounting.undo),
        accounting::name(&Commit::ALL, accounting.commit),
        accounting::name(&Metadata::ALL, accounting.metadata)
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(super) mod tests {
    use std::sync::atomic::AtomicBool;

    use serde_json::Value;

    use super::super::accounting::STATED;
    use super::super::random::Order;
    use super::super::{Structure, run, tests::options};
    use super::*;

    /// Returns a small run of everything.
    pub fn report() -> Report {
        let options = options(1 << 20);
        let structures = Structure::ALL.map(|(_, structure)| structure);
        let cases = Case::all(&structures, &[0.99, 1.5], &[Order::Plain]);
        let all = run(&cases, &options, &AtomicBool::new(false), &|_| ()).unwrap();
        let mut report = Report::new(Settings::new(&options, STATED), serde_json::json!({ "cpu": "one" }));
        report.points = all.iter().map(|ran| Simulated::new(ran, STATED)).collect();
        report
    }

    #[test]
    fn json_and_csv_have_every_case_under_every_accounting() {
        let report = report();
        let value: Value = serde_json::from_str(&report.json().unwrap()).unwrap();
        assert_eq!((&value["benchmark"], &value["schema_version"]), (&"osp".into(), &1.into()));
        assert_eq!(value["settings"]["accounting"]["commit"], "packed");
        let points = value["points"].as_array().unwrap();
        assert_eq!(points.len(), 10);
        let hot = &points[3];
        assert_eq!((&hot["name"], &hot["structure"]), (&"HT-zipf".into(), &"HT".into()));
        assert_eq!((&hot["distribution"], &hot["exponent"]), (&"zipf".into(), &1.5.into()));
        for point in points {
            assert_eq!(point["log_flushes_per_transaction"].as_object().unwrap().len(), 8);
            assert_eq!(point["osp_flushes_per_transaction"].as_object().unwrap().len(), 20);
        }
        let csv = report.csv();
        assert_eq!(csv.lines().count(), 11);
        for line in csv.lines().skip(1) {
            let outside: String = line.split('"').step_by(2).collect();
            assert_eq!(outside.split(',').count(), COLUMNS.len(), "{line}");
        }
    }

    #[test]
    fn ratios_are_of_the_totals_they_name() {
        for point in report().points {
            let own = point.osp_flushes_per_transaction["packed/none"];
            assert!((own - point.flushes_per_transaction.total()).abs() < 1e-9);
            assert!((point.ratio - point.log_flushes_per_transaction["B"] / own).abs() < 1e-9);
            assert!((point.ratio_of_log("B") - point.ratio).abs() < 1e-9);
            assert!((point.ratio_of_osp("packed", "none") - point.ratio).abs() < 1e-9);
            assert!(point.ratio_of_osp("packed", "one") <= point.ratio);
        }
    }

    #[test]
    fn a_group_has_the_seven_bars_of_the_paper() {
        let report = report();
        let groups = groups(&report.points);
        assert_eq!(
            groups.iter().map(|group| group.name.as_str()).collect::<Vec<_>>(),
            ["zipf 0.99 plain", "zipf 1.5 plain"]
        );
        for group in &groups {
            let names: Vec<&str> = group.bars.iter().map(|bar| bar.name.as_str()).collect();
            assert_eq!(names, ["SPS", "HT-uni", "HT-zipf", "RBT-uni", "RBT-zipf", "BT-uni", "BT-zipf"]);
            let mean = group.mean_ratio().unwrap();
            assert!((mean * 7.0 - group.bars.iter().map(|bar| bar.ratio).sum::<f64>()).abs() < 1e-9);
        }
        let uniform: Vec<Simulated> = report.points.iter().filter(|point| !point.case.is_zipf()).cloned().collect();
        let alone = super::groups(&uniform);
        assert_eq!((alone.len(), alone[0].name.as_str(), alone[0].mean_ratio()), (1, "uniform", None));
    }
}
