//! The arguments of `onehop bench osp`.

use std::path::PathBuf;

use onehop_lab::osp::accounting::{Accounting, Commit, Metadata, STATED, UndoLog};
use onehop_lab::osp::machine::{BITMAP_BYTES, Config};
use onehop_lab::osp::random::Order;
use onehop_lab::osp::structure::Layout;
use onehop_lab::osp::structure::b_tree::{MAX_NODE_BYTES, MIN_NODE_BYTES};
use onehop_lab::osp::tlb::Shape;
use onehop_lab::osp::{MAX_FOOTPRINT_BYTES, Options, Structure};

use super::io::{parallel, size, svg};
use super::report::ReportArgs;

/// The examples of the help text.
pub const EXAMPLES: &str = "\
Accountings: every run is charged under all of them; these choose the one that tables and figures begin with.
  --undo           A    72 bytes a line, packed; commit; truncate         B    a flush a line; commit; truncate
                   C    72 bytes a line, packed; commit                   D16  16 bytes a word, packed; commit
                   E    a flush a word; commit                            F    a flush a line
  --commit         packed      a journal of 8 bytes and 16 a page         per-page    a record and flush a page
                   lines       records of 64 bytes, three pages each      super-page  no journal: a table in shadow pages
  --metadata       none        not counted                                one         a flush a consolidated page
                   lazy        a record for that; tables at checkpoints   eager       table entries, at once
                   literal     the same for all pages in the TLB

Examples:
  onehop bench osp                                          all workloads, the paper's machine
  onehop bench osp --plot figure4.svg --json osp.json       with the figures of the paper
  onehop bench osp --workload ht --layout sequential        keys that lie in order, hashed by themselves
  onehop bench osp --workload bt --btree-node 512           smaller nodes
  onehop bench osp --tlb 64,1536:12 --metadata lazy         a second level; tables counted as the store writes them";

/// `onehop bench osp`.
#[derive(Debug, clap::Args)]
pub struct OspArgs {
    /// The workloads: sps (swaps in an array), ht (hash table), rbt (red-black tree), bt (B-tree)
    #[arg(long = "workload", value_name = "LIST", value_delimiter = ',', default_value = "sps,ht,rbt,bt", value_parser = structure)]
    pub structures: Vec<Structure>,
    /// Exponents of the Zipf distributions of keys, besides uniform keys
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "0.99,1.2,1.5", value_parser = exponent)]
    pub zipf: Vec<f64>,
    /// The placement of frequent keys: plain (beside each other), scrambled (anywhere)
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "plain,scrambled", value_parser = order)]
    pub order: Vec<Order>,
    /// The placement of elements that are neighbours by key: random, sequential
    #[arg(long, value_name = "HOW", default_value = "random", value_parser = layout)]
    pub layout: Layout,
    /// Persistent memory of each structure
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = footprint)]
    pub footprint: u64,
    /// Bytes of a node of the B-tree
    #[arg(long = "btree-node", value_name = "SIZE", default_value = "4KiB", value_parser = node)]
    pub b_tree_node: u64,
    /// The number of counted operations
    #[arg(long, value_name = "N", default_value_t = 500_000, value_parser = operations)]
    pub ops: u64,
    /// The number of warm-up operations
    #[arg(long, value_name = "N", default_value_t = 250_000)]
    pub warm_up: u64,
    /// The number of operations of a transaction
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = operations)]
    pub tx_ops: u64,
    /// Levels of the data TLB: entries, or entries:ways
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "64")]
    pub tlb: Vec<Shape>,
    /// Bytes of a page
    #[arg(long, value_name = "SIZE", default_value = "4KiB", value_parser = page)]
    pub page: u64,
    /// The number of references of an operation to volatile memory, which share the TLB
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub volatile_refs: u64,
    /// The size of a redo log, and of a journal, at which it is truncated
    #[arg(long, value_name = "SIZE", default_value = "1MiB", value_parser = log)]
    pub log: u64,
    /// The accounting of the undo log, see below
    #[arg(long, value_name = "ID", default_value = "B", value_parser = undo)]
    pub undo: UndoLog,
    /// The commit of a transaction's bitmaps, see below
    #[arg(long, value_name = "HOW", default_value = "packed", value_parser = commit)]
    pub commit: Commit,
    /// The counted flushes of tables, see below
    #[arg(long, value_name = "WHICH", default_value = "none", value_parser = metadata)]
    pub metadata: Metadata,
    /// The seed of everything random
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// The number of concurrent workloads; each has a copy of its structure [default: one per core,
    /// at most 4]
    #[arg(long, value_name = "N", value_parser = parallel)]
    pub threads: Option<usize>,
    #[command(flatten)]
    pub reports: ReportArgs,
    /// Draw the paper's Figures 4a and 4b and Table 1 into an SVG file
    #[arg(long, value_name = "FILE", value_parser = svg)]
    pub plot: Option<PathBuf>,
}

impl OspArgs {
    /// Returns the options of the cases.
    pub fn options(&self) -> Options {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Options {
            machine: Config {
                levels: self.tlb.clone(),
                page_bytes: self.page,
                volatile_references: self.volatile_refs,
                log_bytes: self.log,
            },
            footprint_bytes: self.footprint,
            b_tree_node_bytes: self.b_tree_node,
            layout: self.layout,
            warm_up: self.warm_up,
            operations: self.ops,
            transaction_operations: self.tx_ops,
            seed: self.seed,
            threads: self.threads.unwrap_or(cores.min(4)),
        }
    }

    /// Returns the accounting of the first tables and figures.
    pub fn accounting(&self) -> Accounting {
        Accounting { undo: self.undo, commit: self.commit, metadata: self.metadata }
    }
}

const _: () = assert!(
    matches!(STATED, Accounting { undo: UndoLog::B, commit: Commit::Packed, metadata: Metadata::None }),
    "the defaults above are the stated accounting"
);

/// Returns the value of a name.
fn named<T: Copy>(all: &[(&'static str, T)], text: &str) -> Result<T, String> {
    let found = all.iter().find(|(name, _)| *name == text).map(|(_, one)| *one);
    found.ok_or_else(|| {
        let names: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
        format!("there are {}", names.join(", "))
    })
}

fn structure(text: &str) -> Result<Structure, String> {
    named(&Structure::ALL, text)
}

fn order(text: &str) -> Result<Order, String> {
    named(&Order::ALL, text)
}

fn layout(text: &str) -> Result<Layout, String> {
    named(&Layout::ALL, text)
}

fn undo(text: &str) -> Result<UndoLog, String> {
    named(&UndoLog::ALL, text)
}

fn commit(text: &str) -> Result<Commit, String> {
    named(&Commit::ALL, text)
}

fn metadata(text: &str) -> Result<Metadata, String> {
    named(&Metadata::ALL, text)
}

fn exponent(text: &str) -> Result<f64, String> {
    let exponent = text.parse::<f64>().ok().filter(|exponent| (0.01..=10.0).contains(exponent));
    exponent.ok_or_else(|| "an exponent from 0.01 to 10".into())
}

fn operations(text: &str) -> Result<u64, String> {
    text.parse().ok().filter(|n| *n > 0).ok_or_else(|| "a whole number from 1".into())
}

fn footprint(text: &str) -> Result<u64, String> {
    let bytes = Some(size(text, "1GiB")?).filter(|bytes| (1 << 16..=MAX_FOOTPRINT_BYTES).contains(bytes));
    bytes.ok_or_else(|| format!("a size from 64 KiB to {} GiB", MAX_FOOTPRINT_BYTES >> 30))
}

fn node(text: &str) -> Result<u64, String> {
    let bytes = Some(size(text, "512 or 4KiB")?).filter(|bytes| (MIN_NODE_BYTES..=MAX_NODE_BYTES).contains(bytes));
    bytes.filter(|bytes| bytes.is_multiple_of(64)).ok_or_else(|| "whole lines of 64 bytes, from 128 to 64KiB".into())
}

fn page(text: &str) -> Result<u64, String> {
    let bytes = Some(size(text, "4KiB or 2MiB")?).filter(|bytes| (BITMAP_BYTES..=1 << 30).contains(bytes));
    bytes.filter(|bytes| bytes.is_power_of_two()).ok_or_else(|| "a power of two from 4KiB to 1GiB".into())
}

fn log(text: &str) -> Result<u64, String> {
    let bytes = Some(size(text, "1MiB")?).filter(|bytes| *bytes >= 64);
    bytes.ok_or_else(|| "a size from 64 bytes".into())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use clap::{Args, FromArgMatches};

    use super::*;

    #[test]
    fn the_default_is_the_papers_machine_under_the_stated_accounting() {
        let matches = OspArgs::augment_args(clap::Command::new("osp")).get_matches_from(["osp"]);
        let args = OspArgs::from_arg_matches(&matches).unwrap();
        assert_eq!(args.accounting(), STATED);
        let options = args.options();
        assert_eq!(options.machine.levels, [Shape { entries: 64, ways: 64 }]);
        assert_eq!((options.machine.page_bytes, options.footprint_bytes), (4096, 1 << 30));
        assert_eq!((args.structures.len(), args.zipf.len(), args.order.len()), (4, 3, 2));
    }

    #[test]
    fn words_have_their_meaning_or_say_which_there_are() {
        assert_eq!((undo("D16"), commit("super-page")), (Ok(UndoLog::D16), Ok(Commit::SuperPage)));
        assert!(undo("G").unwrap_err().contains("D16") && structure("x").unwrap_err().contains("rbt"));
        assert!(metadata("all").unwrap_err().contains("literal") && layout("x").unwrap_err().contains("sequential"));
        assert_eq!((page("2MiB"), node("512"), footprint("1GB")), (Ok(2 << 20), Ok(512), Ok(1_000_000_000)));
        for wrong in ["1KiB", "5000", "2GiB"] {
            assert!(page(wrong).is_err(), "{wrong}");
        }
        assert!(node("100").is_err() && node("130").is_err() && footprint("1TiB").is_err() && log("1").is_err());
        assert!(exponent("0").is_err() && exponent("nan").is_err() && operations("0").is_err());
    }
}
