//! Random programs on several devices, each with memory and kernels of its own, against the naive
//! interpreter; and tables that are divided among them.
//!
//! `ONEHOP_GPU_SPREAD_PROGRAMS` sets the number of programs, and `ONEHOP_GPU_SEED` the seed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use onehop_io::{Hop, Ledger};
use onehop_pipeline::backend::{
    Backend, Control, DevicePath, DeviceRan, Devices, Hints, MemoryLimit, Prepared, Rates, Refusal, Residency,
    ShareRan, Stored,
};
use onehop_pipeline::cpu::Execution;
use onehop_pipeline::ir::{Aggregate, Pipeline, Program, Sink};
use onehop_pipeline::spread::Spread;
use onehop_pipeline::{Budget, Error as PipelineError, Expr, Source};
use proptest::prelude::RngExt as _;

use super::programs::tables::{COLUMNS, KEY, Row, TEXT, Table, WIDE, rows_of};
use super::random::{compare_stored, number};
use crate::backend::CudaDevices;
use crate::fake::{self, Answer as FakeAnswer, Call, Fault, Machine};
use crate::fused::{Answer, Error, Options};
use crate::resident::column::bytes_of_segment;

/// A device with fixed rates. Rates measured in this test would be those of the host.
#[derive(Debug)]
struct Paced(Arc<dyn Backend>);

impl Backend for Paced {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn description(&self) -> &str {
        self.0.description()
    }

    fn rates(&self) -> Result<Rates, PipelineError> {
        Ok(Rates {
            copy_bytes_per_sec: 4e12,
            to_device_bytes_per_sec: 5e10,
            to_host_bytes_per_sec: 5e10,
            launch: Duration::ZERO,
            compile: Duration::ZERO,
        })
    }

    fn prepare(&self, execution: &Execution, hints: &Hints) -> Result<Arc<dyn Prepared>, Refusal> {
        self.0.prepare(execution, hints)
    }

    fn residency(&self) -> Option<&dyn Residency> {
        self.0.residency()
    }
}

/// Starts machines with one device each.
fn devices(count: usize) -> (Vec<&'static Machine>, Vec<Arc<dyn Backend>>) {
    let (machines, contexts): (Vec<_>, Vec<_>) = (0..count as i32).map(Machine::start_as).unzip();
    let options = Options { threads: 64, wide_threads: 64, blocks: 1, counts: false, ..Options::default() };
    let devices = CudaDevices::of_contexts(&contexts, &fake::nvrtc(), options);
    let paced = devices.all().unwrap().iter().map(|device| Arc::new(Paced(Arc::clone(device))) as _).collect();
    (machines, paced)
}

/// Result of a run.
struct Ran {
    chunks: Vec<Vec<onehop_pipeline::cpu::ResultColumn>>,
    pipelines: Vec<DeviceRan>,
    /// Bytes copied to the devices, according to the ledgers, and rows of all pipelines.
    moved: u64,
    rows: u64,
}

fn run(prepared: &dyn Prepared, sources: usize) -> Result<Ran, PipelineError> {
    let ledgers: Vec<Arc<Ledger>> = (0..sources).map(|_| Arc::default()).collect();
    let (cancelled, rows, budget) = (AtomicBool::new(false), AtomicU64::new(0), Budget::from(1 << 30));
    let did_rows = |more| {
        rows.fetch_add(more, Relaxed);
    };
    let ledgers_of = &ledgers;
    let control = Control {
        cancelled: &cancelled,
        counts_steps: false,
        ledgers: ledgers_of,
        did_rows: &did_rows,
        budget: &budget,
    };
    let mut chunks = Vec::new();
    let pipelines = prepared.run(&control, &mut |chunk| {
        chunks.push(chunk);
        Ok(())
    })?;
    let moved = ledgers.iter().map(|ledger| ledger.snapshot().hop(Hop::HostToDevice)).sum();
    Ok(Ran { chunks, pipelines, moved, rows: rows.into_inner() })
}

#[test]
fn programs_give_the_same_on_several_devices() {
    let (wanted, seed) = (number("ONEHOP_GPU_SPREAD_PROGRAMS", 12), number("ONEHOP_GPU_SEED", 3));
    let (machines, all) = devices(4);
    let mut by_shares: BTreeMap<usize, usize> = BTreeMap::new();
    compare_stored(wanted, seed, |execution, stored, random| {
        let spread = Spread::new(all[..random.random_range(2..=all.len())].to_vec());
        // Divided by segments, or by blocks if segments are unknown.
        let stored = if random.random_bool(0.5) { stored.to_vec() } else { vec![None; stored.len()] };
        let prepared = spread.divide(execution, &Hints { stored, ..Hints::default() });
        let prepared = prepared.map_err(|refusal| Error::Refused(refusal.0))?;
        if prepared.shares().len() < 2 && random.random_bool(0.8) {
            return Err(Error::Refused("too little to be divided".into()));
        }
        *by_shares.entry(prepared.shares().len()).or_default() += 1;
        let ran = run(&prepared, execution.sources().len()).map_err(Error::from)?;
        Ok(Answer { chunks: ran.chunks, pipelines: Vec::new() })
    });
    println!("programs by devices that had a share: {by_shares:?}");
    assert!(by_shares.range(2..).map(|(_, programs)| programs).sum::<usize>() as u64 >= wanted / 2, "{by_shares:?}");
    assert!(machines.iter().all(|machine| machine.problems().is_empty()));
}

/// Returns facts in five segments.
fn facts() -> (Arc<dyn Source>, Stored) {
    let row = |v: i128| -> Row { vec![Some(v % 50), Some(v), Some(v % 2), Some(v % 4), None, None] };
    let (source, stored) = Table { rows: (0..7000).map(row).collect() }.stored_in();
    assert_eq!(stored.blocks.segments().len(), 5);
    // Columns that cannot be resident are left out.
    (source, Stored { columns: stored.columns[..=TEXT].to_vec(), ..stored })
}

fn summing(source: &Arc<dyn Source>) -> Execution {
    let sink = Sink::Aggregate {
        keys: vec![Expr::Register(TEXT)],
        aggregates: vec![Aggregate::Sum(Expr::Register(WIDE)), Aggregate::Max(Expr::Register(KEY))],
    };
    let pipeline = Pipeline { source: 0, columns: (0..COLUMNS).collect(), steps: vec![], sink };
    Execution::new(Program { pipelines: vec![pipeline] }, vec![Arc::clone(source)], 1 << 30).unwrap()
}

fn expected() -> Vec<Row> {
    let of = |text: i128| (0..7000i128).filter(move |v| v % 4 == text);
    (0..4).map(|text| vec![Some(text), Some(of(text).sum()), of(text).map(|v| v % 50).max()]).collect()
}

fn sorted(mut rows: Vec<Row>) -> Vec<Row> {
    rows.sort();
    rows
}

/// A segment that one query brings is used by the next, and is on one device.
#[test]
fn segments_stay_on_the_device_that_has_had_them() {
    let (_, all) = devices(2);
    let (source, stored) = facts();
    let (spread, execution) = (Spread::new(all.clone()), summing(&source));
    let hints = Hints { stored: vec![Some(stored.clone())], ..Hints::default() };
    let mut shares = Vec::new();
    for is_there in [false, true, true] {
        let prepared = spread.divide(&execution, &hints).unwrap();
        shares.push(prepared.shares().iter().map(|share| share.rows()).collect::<Vec<_>>());
        let estimate = prepared.estimate();
        let ran = run(&prepared, 1).unwrap();
        assert_eq!(sorted(rows_of(&ran.chunks)), expected());
        let [last] = ran.pipelines.as_slice() else { panic!() };
        let devices: Vec<&str> = last.shares.iter().map(|ShareRan { device, .. }| device.as_str()).collect();
        assert_eq!(devices, ["cuda:0", "cuda:1"]);
        assert_eq!((ran.rows, last.rows, last.moved_bytes), (7000, 7000, ran.moved));
        assert_eq!((estimate.read_bytes, estimate.resident_bytes > 0), (stored.bytes(), is_there));
        assert_eq!(last.resident_bytes > 0, is_there, "{last:?}");
    }
    assert_eq!(shares, vec![[1500 + 1500 + 1000, 3000]; 3]);
    // Each column of each segment is on one of them.
    let listed: usize = all.iter().map(|device| device.residency().unwrap().list().len()).sum();
    assert_eq!(listed, spread.residency().unwrap().list().len());
    let read = [KEY, WIDE, TEXT];
    let of_read = Stored { columns: read.to_vec(), ..stored };
    assert_eq!((listed, spread.resident_bytes(&of_read)), (read.len() * 5, of_read.bytes()));
}

/// Together, the devices hold a table that is too large for each.
#[test]
fn a_table_is_loaded_into_several() {
    let (_, all) = devices(2);
    let (source, stored) = facts();
    let spread = Spread::new(all.clone());
    let (cancelled, ledgers, budget) = (AtomicBool::new(false), [Arc::new(Ledger::default())], Budget::from(0));
    let control =
        Control { cancelled: &cancelled, counts_steps: false, ledgers: &ledgers, did_rows: &|_| {}, budget: &budget };
    // The limit makes each device hold four fifths of the columns; an eighth of it is left to runs.
    let segments = stored.blocks.segments().iter();
    let columns = segments.flat_map(|segment| stored.columns.iter().map(|column| bytes_of_segment(segment, *column)));
    let all_bytes: u64 = columns.sum();
    let limit = MemoryLimit::Bytes(all_bytes * 4 / 5 * 8 / 7);
    assert!(all[0].residency().unwrap().load(&source, &stored, (limit, DevicePath::Staged), &control).is_err());
    let loaded = spread.load(&source, &stored, (limit, DevicePath::Staged), &control).unwrap();
    assert!(loaded.bytes >= stored.bytes() && loaded.moved_bytes >= loaded.bytes, "{loaded:?}");
    assert_eq!(spread.resident_bytes(&stored), stored.bytes());
    // A second load has nothing left to do.
    let again = spread.load(&source, &stored, (limit, DevicePath::Staged), &control).unwrap();
    assert_eq!((again.bytes, again.moved_bytes), (loaded.bytes, 0));
    let hints = Hints { stored: vec![Some(stored.clone())], memory: limit, ..Hints::default() };
    let prepared = spread.divide(&summing(&source), &hints).unwrap();
    assert_eq!(prepared.estimate().resident_bytes, stored.bytes());
    assert_eq!(sorted(rows_of(&run(&prepared, 1).unwrap().chunks)), expected());
}

/// If any call of any device fails, the result is correct or the error names the device. No memory
/// is used while it is in flight.
#[test]
fn a_device_that_fails_is_named() {
    let (machines, all) = devices(2);
    let (source, stored) = facts();
    let (spread, execution) = (Spread::new(all), summing(&source));
    let hints = Hints { stored: vec![Some(stored)], ..Hints::default() };
    // The first run measures and compiles.
    run(&spread.divide(&execution, &hints).unwrap(), 1).unwrap();
    let mut failed = 0;
    for call in [Call::Copy, Call::Record, Call::Wait, Call::Synchronize, Call::Allocate] {
        for at in [0, 1, 2, 5] {
            machines[1].set_faults(&[Fault { call, at, lasts: true, answer: FakeAnswer::Code(719) }]);
            match run(&spread.divide(&execution, &hints).unwrap(), 1) {
                Ok(ran) => assert_eq!(sorted(rows_of(&ran.chunks)), expected(), "{call:?} {at}"),
                Err(PipelineError::Device { device, .. }) => {
                    assert_eq!(device, "cuda:1", "{call:?} {at}");
                    failed += 1;
                }
                Err(e) => panic!("{call:?} {at}: {e}"),
            }
            machines[1].set_faults(&[]);
        }
    }
    assert!(failed >= 3, "{failed}");
    assert_eq!(sorted(rows_of(&run(&spread.divide(&execution, &hints).unwrap(), 1).unwrap().chunks)), expected());
    machines.iter().for_each(|machine| assert!(machine.problems().is_empty(), "{:?}", machine.problems()));
}
