//! Tests of groups that do not fit in memory. The answer is the same, no file is left, and failing
//! or modified files are errors.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use arrow_array::{ArrayRef, Float64Array, Int64Array, RecordBatch};
use arrow_schema::{DataType, Field, Schema};
use onehop_io::{Fault, Faulty, Ledger, MemoryFile, MemoryVolume, Volume, WriteAt};
use onehop_pipeline::cpu::{Answer, Execution, ResultColumn, ResultValues, Worker, run};
use onehop_pipeline::ir::{Aggregate, Pipeline, Program, Sink};
use onehop_pipeline::{Account, BatchSourceBuilder, Budget, Error, Expr, Holder, Resources, Source};

const GROUPS: i64 = 40_000;
const ROWS_OF_A_GROUP: i64 = 3;

/// Returns rows of many groups: a key, an integer that is NULL at times, a double.
fn source() -> Arc<dyn Source> {
    let rows: Vec<i64> = (0..GROUPS * ROWS_OF_A_GROUP).collect();
    let key = rows.iter().map(|row| row * 7919 % GROUPS).collect::<Int64Array>();
    let integer = rows.iter().map(|row| (row % 5 != 0).then_some(row % 1000 - 500)).collect::<Int64Array>();
    let double = rows.iter().map(|row| *row as f64 / 8.0).collect::<Float64Array>();
    let fields = [("k", DataType::Int64), ("i", DataType::Int64), ("d", DataType::Float64)];
    let fields: Vec<Field> = fields.into_iter().map(|(name, ty)| Field::new(name, ty, true)).collect();
    let types: Vec<_> = fields.iter().map(|field| field.data_type().clone()).enumerate().collect();
    let columns: Vec<ArrayRef> = vec![Arc::new(key), Arc::new(integer), Arc::new(double)];
    let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap();
    let mut builder = BatchSourceBuilder::new("t", &types).unwrap();
    builder.push(&batch).unwrap();
    Arc::new(builder.finish())
}

/// `SELECT k, count(*), count(i), sum(i), min(i), max(i), count(DISTINCT i), sum(d), min(d),
/// var_pop(d) GROUP BY k`
fn program() -> Program {
    let (k, i, d) = (Expr::Register(0), Expr::Register(1), Expr::Register(2));
    let aggregates = vec![
        Aggregate::CountRows,
        Aggregate::Count(i.clone()),
        Aggregate::Sum(i.clone()),
        Aggregate::Min(i.clone()),
        Aggregate::Max(i.clone()),
        Aggregate::CountDistinct(i),
        Aggregate::Sum(d.clone()),
        Aggregate::Min(d.clone()),
        Aggregate::VariancePop(d),
    ];
    let sink = Sink::Aggregate { keys: vec![k], aggregates };
    Program { pipelines: vec![Pipeline { source: 0, columns: vec![0, 1, 2], steps: vec![], sink }] }
}

type Answers = BTreeMap<i128, Vec<Option<i128>>>;

fn cell(column: &ResultColumn, row: usize) -> Option<i128> {
    column.valid.as_ref().is_none_or(|valid| valid[row]).then(|| match &column.values {
        ResultValues::Int(values) => values[row].into(),
        ResultValues::Wide(values) => values[row],
        ResultValues::Double(values) => values[row].to_bits().into(),
        other => panic!("{other:?}"),
    })
}

fn answers(chunks: &[Vec<ResultColumn>]) -> Answers {
    let mut answers = Answers::new();
    for chunk in chunks {
        for row in 0..chunk[0].len() {
            let values = chunk[1..].iter().map(|column| cell(column, row)).collect();
            assert!(answers.insert(cell(&chunk[0], row).unwrap(), values).is_none(), "a group is there twice");
        }
    }
    answers
}

fn answer(budget: impl Into<Budget>, threads: usize) -> Result<Answers, Error> {
    Ok(answers(&run(&mut Execution::new(program(), vec![source()], budget)?, threads)?))
}

#[test]
fn groups_that_do_not_fit_are_spilled() {
    let expected = answer(1 << 30, 1).unwrap();
    assert_eq!(expected.len(), GROUPS as usize);
    for (threads, bytes) in [(1, 3 << 20), (2, 5 << 20), (1, 9 << 20)] {
        let (volume, ledger) = (Arc::new(MemoryVolume::new("memory")), Arc::new(Ledger::default()));
        let budget = Budget::with_volume(bytes, Arc::clone(&volume) as Arc<dyn Volume>, Arc::clone(&ledger));
        assert_eq!(answer(budget, threads).unwrap(), expected, "{threads} {bytes}");
        assert!(ledger.snapshot().spilled_bytes > 2 << 20, "{threads} {bytes} {:?}", ledger.snapshot());
        assert!(volume.list().unwrap().is_empty());
    }
    // Without a directory for files.
    assert!(matches!(answer(3 << 20, 1), Err(Error::Memory { .. })));
}

#[test]
fn partitions_that_do_not_fit_are_spilled_again() {
    let (volume, ledger) = (Arc::new(MemoryVolume::new("memory")), Arc::new(Ledger::default()));
    // Some 1,250 groups per partition, with memory for fewer.
    let budget = Budget::with_volume(2 << 20, volume, Arc::clone(&ledger));
    let once = Budget::with_volume(12 << 20, Arc::new(MemoryVolume::new("memory")), Arc::default());
    assert_eq!(answer(budget, 1).unwrap(), answer(once.clone(), 1).unwrap());
    assert!(ledger.snapshot().spilled_bytes > once.0.ledger().snapshot().spilled_bytes * 3 / 2);
}

/// A small budget with faulty files.
#[derive(Debug)]
struct Failing {
    memory: Budget,
    faults: Vec<Fault>,
    file: Mutex<Option<Arc<MemoryFile>>>,
}

impl Failing {
    fn new(faults: Vec<Fault>) -> Arc<Self> {
        let memory = Budget::with_volume(6 << 20, Arc::new(MemoryVolume::new("memory")), Arc::default());
        Arc::new(Self { memory, faults, file: Mutex::default() })
    }
}

impl Resources for Failing {
    fn limit(&self) -> usize {
        self.memory.0.limit()
    }

    fn account(&self, what: &'static str, holder: Holder) -> Box<dyn Account> {
        self.memory.0.account(what, holder)
    }

    fn file(&self) -> Result<Option<Arc<dyn WriteAt>>, Error> {
        let file = Arc::new(MemoryFile::new("somewhere/spill", Vec::new()));
        *self.file.lock().unwrap() = Some(Arc::clone(&file));
        Ok(Some(Arc::new(Faulty::new(file, self.faults.clone()))))
    }

    fn ledger(&self) -> &Ledger {
        self.memory.0.ledger()
    }
}

#[test]
fn files_that_fail_are_errors_that_say_where() {
    // Faults during writes, and during reads.
    for call in [0, 3, 40, 250] {
        match answer(Budget(Failing::new(vec![Fault::FailFrom(call)])), 1) {
            Err(e @ Error::Spill { .. }) => assert!(e.to_string().contains("cannot spill to somewhere: "), "{e}"),
            other => panic!("{call}: {:?}", other.map(|answers| answers.len())),
        }
    }
}

#[test]
fn short_transfers_and_interruptions_change_nothing() {
    let expected = answer(1 << 30, 1).unwrap();
    let faults = vec![Fault::Short(7), Fault::InterruptAt(2)];
    assert_eq!(answer(Budget(Failing::new(faults)), 1).unwrap(), expected);
}

#[test]
fn files_that_change_are_errors() {
    for bit in [1, 40, 90, 200, 4000, 77_777, 500_001] {
        match answer(Budget(Failing::new(vec![Fault::FlipBit(bit)])), 1) {
            Err(e @ Error::Spill { .. }) => assert!(e.to_string().contains("it holds"), "{e}"),
            other => panic!("{bit}: {:?}", other.map(|answers| answers.len())),
        }
    }
}

/// Returns a pipeline's answer after its rows have been added.
fn spilled(budget: Budget) -> Answer {
    let mut execution = Execution::new(program(), vec![source()], budget).unwrap();
    let stage = execution.stage(0).unwrap();
    let mut worker = Worker::new(&stage, &Arc::default());
    while worker.step().unwrap().is_some() {}
    execution.finish(0, &stage, vec![worker]).unwrap()
}

#[test]
fn files_that_were_cut_are_errors() {
    let failing = Failing::new(vec![]);
    let Answer::Spilled(groups) = spilled(Budget(Arc::clone(&failing) as Arc<dyn Resources>)) else { panic!() };
    assert_eq!(groups.partitions(), 32);
    let file = failing.file.lock().unwrap().take().unwrap();
    let bytes = file.to_vec();
    // Zeros from the middle on, as in a file that is longer than its written part.
    file.try_write_at(bytes.len() as u64 / 2, &vec![0; bytes.len() - bytes.len() / 2], &Ledger::default()).unwrap();
    let mut merger = groups.merger(&Arc::default());
    let error = loop {
        match merger.next() {
            Ok(Some(_)) => {}
            Ok(None) => panic!("it was read to its end"),
            Err(e) => break e,
        }
    };
    assert!(error.to_string().contains("it holds "), "{error}");
}

#[test]
fn who_does_not_want_the_answer_stops_the_mergers() {
    let Answer::Spilled(groups) = spilled(Budget(Failing::new(vec![]))) else { panic!() };
    let cancelled = Arc::new(AtomicBool::new(false));
    let mut merger = groups.merger(&cancelled);
    assert!(merger.next().unwrap().is_some());
    cancelled.store(true, Relaxed);
    while let Ok(chunk) = merger.next() {
        assert!(chunk.is_some(), "it went on to the end");
    }
    assert!(matches!(groups.merger(&cancelled).next(), Err(Error::Cancelled)));
}
