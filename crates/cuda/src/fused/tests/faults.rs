//! Failures of the device are errors that name the attempted operation, and leave nothing behind.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use onehop_pipeline::Error as PipelineError;
use onehop_pipeline::Expr;
use onehop_pipeline::cpu::Execution;
use onehop_pipeline::ir::{Aggregate, JoinKind, Pipeline, Probe, Program, Sink, Step};

use super::shapes::{options, r, stored};
use crate::fake::{self, Answer, Call, Fault, Machine};
use crate::fused::{Error, Executor, Uploads};

fn program() -> Program {
    let build = Sink::Build { keys: vec![r(0)], payload: vec![r(1)] };
    let probe = Probe { table: 0, kind: JoinKind::Inner, keys: vec![r(0)], payload: vec![0], condition: None };
    let sink = Sink::Aggregate { keys: vec![r(2)], aggregates: vec![Aggregate::Sum(r(1))] };
    Program {
        pipelines: vec![
            Pipeline { source: 0, columns: vec![0, 1], steps: vec![], sink: build },
            Pipeline { source: 0, columns: vec![0, 1], steps: vec![Step::Probe(probe)], sink },
        ],
    }
}

#[test]
fn a_sick_device_is_an_error_and_leaves_nothing_behind() {
    let (machine, context) = Machine::start();
    let keys = (0..500).map(|row| Some(row % 100)).collect();
    let source = stored(&[keys, (0..500).map(Some).collect()], 400, 1024);
    let execution = Execution::new(program(), vec![source], 1 << 30).unwrap();
    {
        let executor = Executor::new(&context, &fake::nvrtc(), None, options());
        let run = || executor.run(&execution, &Uploads::new(&context), &AtomicBool::new(false));
        let whole = run().unwrap();
        assert_eq!(whole.pipelines[0].launches, 2, "the table has several rows of a key");
        for call in [Call::Record, Call::Synchronize] {
            for at in 0..4 {
                machine.set_faults(&[Fault { call, at, lasts: false, answer: Answer::Code(700) }]);
                let error = run().unwrap_err();
                assert!(matches!(&error, Error::Device { .. }) && error.to_string().contains("700"), "{error}");
                machine.set_faults(&[]);
                assert_eq!(super::shapes::rows_of(&run().unwrap().chunks), super::shapes::rows_of(&whole.chunks));
            }
        }
        let cancelled = executor.run(&execution, &Uploads::new(&context), &AtomicBool::new(true));
        assert!(matches!(cancelled, Err(Error::Pipeline(PipelineError::Cancelled))));
    }
    assert!(machine.problems().is_empty(), "{:?}", machine.problems());
}

#[test]
fn what_has_no_code_is_refused_before_anything_runs() {
    let context = fake::context();
    let executor = Executor::new(&context, &fake::nvrtc(), None, options());
    let double = Expr::ToDouble { expr: Box::new(r(0)), scale: 0 };
    for (aggregate, reason) in [
        (Aggregate::CountDistinct(r(0)), "DISTINCT"),
        (Aggregate::Sum(double.clone()), "sum"),
        (Aggregate::VariancePop(double), "var_pop"),
    ] {
        let sink = Sink::Aggregate { keys: vec![], aggregates: vec![aggregate] };
        let pipeline = Pipeline { source: 0, columns: vec![0], steps: vec![], sink };
        let source = stored(&[vec![Some(1)]], 10, 1024);
        let execution = Execution::new(Program { pipelines: vec![pipeline] }, vec![source], 1 << 20).unwrap();
        let Err(Error::Refused(why)) = executor.check(&execution) else { panic!("{reason}") };
        assert!(why.contains(reason), "{why}");
    }
    assert_eq!(executor.compiler().counts(), Default::default());
    drop(Arc::new(executor));
}
