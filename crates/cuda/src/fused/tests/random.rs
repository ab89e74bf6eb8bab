//! Random programs over random tables: the programs that test the CPU backend, except those that
//! are refused.
//!
//! The system's compiler takes a moment for each kernel. `ONEHOP_GPU_PROGRAMS` sets the number of
//! programs, and `ONEHOP_GPU_SEED` the seed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use onehop_pipeline::backend::Stored;
use onehop_pipeline::cpu::Execution;
use onehop_pipeline::ir;
use onehop_pipeline::{Domain, Error as PipelineError, Source};
use proptest::prelude::RngExt as _;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::programs::naive::expected;
use super::programs::random::{program, without_refused_aggregates};
use super::programs::tables::{Table, Where, rows_of, table};
use super::shapes::{executor, executor_of};
use super::streamed::in_small_batches;
use crate::fused::{Error, Executor, Images, Options, RunMemory, Streamed, Uploads, WhenFull};

pub(super) fn number(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).ok().and_then(|value| value.parse().ok()).unwrap_or(otherwise)
}

#[test]
fn programs_give_what_the_naive_interpreter_gives() {
    let executor = executor();
    check(&executor, &Uploads::new(executor.context()));
}

#[test]
fn streamed_programs_give_the_same() {
    check(&executor_of(Options { counts: false, ..in_small_batches(3) }), &Streamed);
}

fn check(executor: &Executor, images: &dyn Images) {
    let (wanted, seed) = (number("ONEHOP_GPU_PROGRAMS", 40), number("ONEHOP_GPU_SEED", 1));
    compare(wanted, seed, |execution, _| executor.run(execution, images, &AtomicBool::new(false)));
}

/// Tables, groups and rows in 1 to 16 partitions each, as far as they can be split; or in the
/// fewest partitions that fit too little memory.
#[test]
fn they_give_the_same_in_partitions() {
    let (wanted, seed) = (number("ONEHOP_GPU_PROGRAMS", 30), number("ONEHOP_GPU_SEED", 2));
    let executor = executor();
    let mut passes: BTreeMap<u64, usize> = BTreeMap::new();
    let (mut within, mut not_within) = (0, 0);
    compare(wanted, seed, |execution, random| {
        let images = Uploads::new(executor.context());
        let never = AtomicBool::new(false);
        if random.random_bool(0.4) {
            let bytes = 1 << random.random_range(12..17);
            let memory = RunMemory { bytes, when_full: WhenFull::Split };
            match executor.run_within(execution, &images, &never, true, memory) {
                Err(Error::Pipeline(PipelineError::Memory { .. })) => not_within += 1,
                other => {
                    within += 1;
                    return other;
                }
            }
        }
        let split: Vec<u64> = (0..execution.pipelines()).map(|_| random.random_range(1..=16)).collect();
        let answer = executor.run_split(execution, &images, &never, true, RunMemory::default(), &split);
        for facts in answer.iter().flat_map(|answer| &answer.pipelines) {
            *passes.entry(facts.passes).or_default() += 1;
        }
        answer
    });
    println!("{within} within too little memory, {not_within} not; the others' pipelines by passes: {passes:?}");
    let in_passes: usize = passes.iter().filter(|(passes, _)| **passes > 1).map(|(_, pipelines)| pipelines).sum();
    assert!(in_passes as u64 >= wanted / 3, "{passes:?}");
    assert!(within > 0, "{not_within}");
}

fn compare(
    wanted: u64,
    seed: u64,
    mut run: impl FnMut(&Execution, &mut TestRng) -> Result<crate::fused::Answer, Error>,
) {
    compare_stored(wanted, seed, |execution, _, random| run(execution, random));
}

/// As [`compare`], and tells `run` where the sources are stored.
pub(super) fn compare_stored(
    wanted: u64,
    seed: u64,
    run: impl FnMut(&Execution, &[Option<Stored>], &mut TestRng) -> Result<crate::fused::Answer, Error>,
) {
    compare_at(wanted, seed, Where::Memory, run);
}

/// As [`compare_stored`], with segments at a given place.
pub(super) fn compare_at(
    wanted: u64,
    seed: u64,
    place: Where<'_>,
    mut run: impl FnMut(&Execution, &[Option<Stored>], &mut TestRng) -> Result<crate::fused::Answer, Error>,
) {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let mut runner = TestRunner::new_with_rng(Config::default(), TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let facts = proptest::prop_oneof![table(0..60, 15), table(1000..2500, 15), table(2900..4200, 300)];
    let case = (table(0..40, 12), facts, program(), proptest::prelude::any::<[bool; 2]>());
    let mut refused: BTreeMap<String, usize> = BTreeMap::new();
    let (mut ran, mut failed, mut invalid) = (0, 0, 0);
    while ran < wanted {
        let (build, facts, program, in_memory) = case.new_tree(&mut runner).unwrap().current();
        let program = without_refused_aggregates(program);
        let tables = [build, facts];
        let source = |(table, in_memory): (&Table, bool)| match in_memory {
            true => (table.in_memory(), None),
            false => {
                let (source, stored) = table.stored_at(place);
                (source, Some(stored))
            }
        };
        let (sources, stored): (Vec<Arc<dyn Source>>, Vec<_>) = tables.iter().zip(in_memory).map(source).unzip();
        let domains: Vec<Vec<Domain>> = sources.iter().map(|source| source.columns().to_vec()).collect();
        let Ok(shapes) = ir::validate(&program, &domains) else {
            invalid += 1;
            continue;
        };
        let execution = Execution::new(program.clone(), sources, 1 << 30).unwrap();
        match run(&execution, &stored, runner.rng()) {
            Err(Error::Refused(why)) => {
                *refused.entry(why).or_default() += 1;
                continue;
            }
            Ok(answer) => {
                let rows = rows_of(&answer.chunks);
                match expected(&program, &shapes, &tables) {
                    Ok(expected) => assert!(
                        expected.allows(&rows),
                        "program {ran} of seed {seed}: {rows:?}, not {expected:?}\n{program}\n{:?}",
                        answer.pipelines
                    ),
                    Err(()) => panic!("program {ran} of seed {seed} does not fail\n{program}"),
                }
            }
            Err(Error::Pipeline(PipelineError::OutOfRange { .. } | PipelineError::DivisionByZero { .. })) => {
                assert!(expected(&program, &shapes, &tables).is_err(), "program {ran} of seed {seed} fails\n{program}");
                failed += 1;
            }
            Err(e) => panic!("program {ran} of seed {seed}: {e}\n{program}"),
        }
        ran += 1;
    }
    println!("{ran} ran, of which {failed} failed as they should; {invalid} invalid; refused: {refused:#?}");
    assert!(failed < ran / 2, "{failed} of {ran}");
}
