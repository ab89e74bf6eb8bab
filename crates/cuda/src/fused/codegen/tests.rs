//! Golden kernel sources, for readers of generated code. `ONEHOP_BLESS=1` writes them anew.

use onehop_pipeline::cpu::{KeyLayout, TableKind};
use onehop_pipeline::ir::{self, Aggregate, JoinKind, Pipeline, Probe, Program, Shape, Sink, Step};
use onehop_pipeline::{ArithmeticOp, BatchSource, Bounds, CompareOp, Domain, Expr, Interval};

use super::{Input, generate};
use crate::fused::part::form;
use crate::fused::plan::Plan;
use crate::fused::table::{Element, Rows, TableShape};

const BIGINT: Bounds = Bounds { min: i64::MIN as i128, max: i64::MAX as i128, type_name: "BIGINT" };

fn r(register: usize) -> Expr {
    Expr::Register(register)
}

fn domain(min: i128, max: i128) -> Domain {
    Domain::int(Interval::new(min, max), false)
}

/// Generates the kernel source of the last pipeline.
fn text(program: &Program, sources: &[Vec<Domain>], forms: &[u32], rows: Rows) -> String {
    let shapes: Vec<Shape> = ir::validate(program, sources).unwrap();
    let tables: Vec<TableShape> = shapes[..shapes.len() - 1]
        .iter()
        .map(|shape| {
            let payload = shape.outputs.iter().map(|domain| Some(Element::of(domain))).collect();
            let mut table = TableShape::new(KeyLayout::new(&shape.keys, false).unwrap(), payload, 10_000, true);
            assert_eq!(table.kind, TableKind::Direct);
            table.rows = rows;
            table
        })
        .collect();
    let last = shapes.len() - 1;
    let source = BatchSource::expected("t", sources[program.pipelines[last].source].clone());
    let plan = Plan::new(&program.pipelines[last], &shapes[last], &tables, &source, false).unwrap();
    let forms = |column: usize| vec![forms[column]];
    let input = Input {
        plan: &plan,
        tables: &tables,
        built: None,
        splits_groups: false,
        forms: &forms,
        rows: 1 << 30,
        counts: false,
        many_rows: 1 << 20,
        threads: [256, 1024],
        fold: None,
    };
    generate(&input).unwrap().text
}

fn golden(name: &str, text: &str) {
    // Relative to the package's directory, in which tests run.
    let path = format!("src/fused/codegen/golden/{name}.cu");
    if std::env::var_os("ONEHOP_BLESS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap();
    assert!(expected == text, "{path} is not what is generated now (ONEHOP_BLESS=1 writes it anew):\n{text}");
}

fn star(low: i64, rows: Rows) -> String {
    let dates = Pipeline {
        source: 0,
        columns: vec![0, 1],
        steps: vec![],
        sink: Sink::Build { keys: vec![r(0)], payload: vec![r(1)] },
    };
    let probe = Probe { table: 0, kind: JoinKind::Inner, keys: vec![r(0)], payload: vec![0], condition: None };
    let facts = Pipeline {
        source: 1,
        columns: vec![0, 1, 2],
        steps: vec![
            Step::Probe(probe),
            Step::Filter(Expr::And(vec![
                Expr::compare(CompareOp::GreaterOrEqual, r(1), Expr::int(low)),
                Expr::compare(CompareOp::LessOrEqual, r(1), Expr::int(low + 2)),
            ])),
        ],
        sink: Sink::Aggregate {
            keys: vec![r(3)],
            aggregates: vec![Aggregate::Sum(Expr::arithmetic(ArithmeticOp::Mul, r(2), r(1), BIGINT))],
        },
    };
    let sources =
        [vec![domain(0, 2555), domain(1992, 1998)], vec![domain(0, 2555), domain(0, 10), domain(90_000, 10_500_000)]];
    let program = Program { pipelines: vec![dates, facts] };
    text(&program, &sources, &[form::PACKED + 12, form::PACKED + 4, form::PACKED + 24], rows)
}

#[test]
fn a_star() {
    golden("star", &star(1, Rows::Unique));
    golden("star_with_chains", &star(1, Rows::Chains));
}

/// Screens leave few rows, so rows wait for the probe, and the remaining ones wait for the rest.
#[test]
fn few_rows() {
    let dates = Pipeline {
        source: 0,
        columns: vec![0, 1],
        steps: vec![],
        sink: Sink::Build { keys: vec![r(0)], payload: vec![r(1)] },
    };
    let probe = Probe { table: 0, kind: JoinKind::Inner, keys: vec![r(0)], payload: vec![0], condition: None };
    let facts = Pipeline {
        source: 1,
        columns: vec![0, 1, 2],
        steps: vec![Step::Filter(Expr::compare(CompareOp::Equal, r(1), Expr::int(7))), Step::Probe(probe)],
        sink: Sink::Aggregate { keys: vec![r(3)], aggregates: vec![Aggregate::Sum(r(2))] },
    };
    let nullable = Domain { nullable: true, ..domain(90_000, 10_500_000) };
    let sources = [vec![domain(0, 2555), domain(1992, 1998)], vec![domain(0, 2555), domain(0, 24), nullable]];
    let forms = [form::PACKED + 12, form::PACKED + 4, form::PACKED + 24];
    golden("few", &text(&Program { pipelines: vec![dates, facts] }, &sources, &forms, Rows::Unique));
}

#[test]
fn dense_rows() {
    let product = Expr::arithmetic(ArithmeticOp::Mul, r(1), r(2), BIGINT);
    let pipeline = Pipeline {
        source: 0,
        columns: vec![0, 1, 2, 3, 4],
        steps: vec![Step::Filter(Expr::compare(CompareOp::LessOrEqual, r(3), Expr::int(2400)))],
        sink: Sink::Aggregate {
            keys: vec![r(0)],
            aggregates: vec![Aggregate::Sum(r(1)), Aggregate::Sum(product), Aggregate::Sum(r(4)), Aggregate::CountRows],
        },
    };
    let sources = [vec![domain(0, 3), domain(90_000, 10_500_000), domain(-10, 0), domain(0, 2555), domain(100, 5000)]];
    let forms = [form::PACKED + 2, form::PACKED + 24, form::CODES + 4, form::PACKED + 12, form::STEPS + 6];
    golden("dense", &text(&Program { pipelines: vec![pipeline] }, &sources, &forms, Rows::Unique));
}

#[test]
fn constants_are_not_in_the_text() {
    for low in 0..8 {
        assert_eq!(star(1, Rows::Unique), star(low, Rows::Unique));
    }
}

#[test]
fn rows_that_may_fail() {
    let nullable = Domain { nullable: true, ..domain(-5, 5) };
    let quotient = Expr::arithmetic(ArithmeticOp::Div, Expr::int(100), r(0), BIGINT);
    let pipeline = Pipeline {
        source: 0,
        columns: vec![0, 1],
        steps: vec![Step::Filter(Expr::compare(CompareOp::Less, quotient, r(1)))],
        sink: Sink::Collect { columns: vec![r(1)] },
    };
    let sources = [vec![nullable, domain(0, 100)]];
    let text = text(&Program { pipelines: vec![pipeline] }, &sources, &[form::PACKED + 4, form::SAME], Rows::Unique);
    golden("fallible", &text);
}
