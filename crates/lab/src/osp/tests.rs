//! Small complete runs.

use super::accounting::{Commit, Metadata, STATED, UndoLog};
use super::tlb::Shape;
use super::*;

pub(super) fn options(footprint_bytes: u64) -> Options {
    Options {
        machine: Config {
            levels: vec![Shape { entries: 64, ways: 64 }],
            page_bytes: 4096,
            volatile_references: 50,
            log_bytes: 1 << 20,
        },
        footprint_bytes,
        b_tree_node_bytes: 4096,
        layout: Layout::Random,
        warm_up: 5_000,
        operations: 20_000,
        transaction_operations: 1,
        seed: 42,
        threads: 2,
    }
}

fn go(cases: &[Case], options: &Options) -> Vec<Ran> {
    run(cases, options, &AtomicBool::new(false), &|_| ()).unwrap_or_default()
}

#[test]
fn runs_are_the_same_again_whatever_the_threads() {
    let structures = Structure::ALL.map(|(_, structure)| structure);
    let cases = Case::all(&structures, &[0.99, 1.5], &Order::ALL.map(|(_, order)| order));
    assert_eq!(cases.len(), 1 + 3 * 5);
    let (one, two) = (go(&cases, &Options { threads: 1, ..options(4 << 20) }), go(&cases, &options(4 << 20)));
    assert_eq!(one.len(), cases.len());
    for ((case, one), two) in cases.iter().zip(&one).zip(&two) {
        assert_eq!((one.case, one.footprint_bytes), (*case, two.footprint_bytes));
        assert_eq!(one.counts, two.counts, "{}", case.name());
    }
}

#[test]
fn footprints_are_those_asked_for() {
    let cases = Case::all(&Structure::ALL.map(|(_, structure)| structure), &[], &[]);
    for ran in go(&cases, &options(64 << 20)) {
        let share = ran.footprint_bytes as f64 / (64 << 20) as f64;
        assert!((0.98..1.05).contains(&share), "{}: {share}", ran.case.name());
    }
}

/// Without locality every line of a swap is flushed as data and copied once its page is evicted,
/// and both pages fit one journal record. That makes five flushes, against six of undo logging.
#[test]
fn swaps_in_a_large_array_cost_what_they_must() {
    let cases = Case::all(&[Structure::Array], &[], &[]);
    let ran = &go(&cases, &options(1 << 30))[0];
    let counts = &ran.counts;
    assert_eq!((counts.operations, counts.transactions), (20_000, 20_000));
    let each = |flushes: f64| flushes / counts.transactions as f64;
    let osp = counts.osp(STATED.commit, STATED.metadata);
    assert!((each(osp.total()) - 5.0).abs() < 0.01, "{osp:?}");
    assert!((each(counts.undo_total(STATED.undo) as f64) - 6.0).abs() < 0.01);
    let expected = 2.0 / (4.0 + 50.0);
    assert!((counts.miss_ratio(0) - expected).abs() < 0.001, "{}", counts.miss_ratio(0));
}

#[test]
fn locality_saves_consolidation_and_nothing_else() {
    let uniform = Case { structure: Structure::HashTable, keys: Distribution::Uniform };
    let keys = Distribution::Zipf { exponent: 1.5, order: Order::Plain };
    let ran = go(&[uniform, Case { keys, ..uniform }], &options(64 << 20));
    let [uniform, zipf] = [&ran[0].counts, &ran[1].counts];
    assert!(zipf.consolidated_lines * 3 < uniform.consolidated_lines);
    for counts in [uniform, zipf] {
        // Two lines to insert, one to delete, equally often.
        assert!((counts.lines as f64 / counts.transactions as f64 - 1.5).abs() < 0.02);
        assert_eq!(counts.undo_total(UndoLog::F), counts.lines * 2);
        let ids = Metadata::ALL.map(|(_, metadata)| counts.osp(Commit::Packed, metadata).total());
        assert!(ids.iter().all(|total| *total >= ids[0]), "{ids:?}");
    }
}

#[test]
fn a_transaction_of_many_operations_flushes_a_line_once() {
    let case = Case { structure: Structure::Array, keys: Distribution::Uniform };
    let small = Options { footprint_bytes: 4096, transaction_operations: 1_000, ..options(4096) };
    let counts = &go(&[case], &small)[0].counts;
    assert_eq!((counts.transactions, counts.lines, counts.pages), (20, 20 * 64, 20));
    assert!(counts.words <= 20 * 512 && counts.words > 20 * 480);
}

#[test]
fn a_run_can_be_ended() {
    let cases = Case::all(&[Structure::Array], &[], &[]);
    let ended = run(&cases, &options(1 << 20), &AtomicBool::new(true), &|_| ());
    assert_eq!(ended.err(), Some(Cancelled));
}
