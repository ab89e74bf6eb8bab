//! Compiles every kernel with NVIDIA's compiler, for its target architectures. Needs NVRTC and no
//! GPU: `make test-nvrtc` installs it and runs this. Without the library it fails.

#![allow(clippy::unwrap_used)]

#[path = "../../pipeline/tests/programs/mod.rs"]
mod programs;
mod star;

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, Int64Array, RecordBatch};
use onehop_cuda::Nvrtc;
use onehop_cuda::functions::{self, Kind, Returns, Signature};
use onehop_cuda::fused;
use onehop_cuda::kernels::{decode, q6};
use onehop_pipeline::arrays::Element;
use onehop_pipeline::cpu::Execution;
use onehop_pipeline::fit::{Family, Sums, Target};
use onehop_pipeline::ir::{Pipeline, Program, Sink};
use onehop_pipeline::{BatchSourceBuilder, Expr, Source};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

/// Target architectures: H100 and H200, A100.
const ARCHITECTURES: [(i32, i32); 2] = [(9, 0), (8, 0)];

fn load() -> Arc<Nvrtc> {
    match Nvrtc::load() {
        Ok(nvrtc) => nvrtc,
        Err(e) => panic!("{e}; {}", e.cure().unwrap_or_default()),
    }
}

/// Returns the number of random programs. `ONEHOP_GPU_PROGRAMS` raises it.
fn wanted() -> usize {
    std::env::var("ONEHOP_GPU_PROGRAMS").ok().and_then(|value| value.parse().ok()).unwrap_or(20)
}

/// Returns the sources of sums for fits, over doubles and integers: in one kernel, and in several.
fn folds() -> BTreeSet<String> {
    let mut texts = BTreeSet::new();
    for features in [1, 4, 8, fused::MOST_FEATURES] {
        let columns: Vec<Expr> = (0..=features).map(Expr::Register).collect();
        let pipeline =
            Pipeline { source: 0, columns: (0..=features).collect(), steps: vec![], sink: Sink::Collect { columns } };
        let arrays = (0..=features).map(|column| -> (String, ArrayRef) {
            let value = |row: i32| f64::from(row * 7 % 13) + f64::from(column as u32);
            let array: ArrayRef = match column % 3 {
                2 => Arc::new((0..2000).map(|row| value(row) as i64).collect::<Int64Array>()),
                1 => Arc::new((0..2000).map(|row| (row % 50 != 0).then(|| value(row))).collect::<Float64Array>()),
                _ => Arc::new((0..2000).map(|row| Some(value(row) / 3.0)).collect::<Float64Array>()),
            };
            (format!("c{column}"), array)
        });
        let batch = RecordBatch::try_from_iter(arrays).unwrap();
        let columns: Vec<_> = batch.columns().iter().map(|column| column.data_type().clone()).enumerate().collect();
        let mut builder = BatchSourceBuilder::new("t", &columns).unwrap();
        builder.push(&batch).unwrap();
        let source: Arc<dyn Source> = Arc::new(builder.finish());
        let execution = Execution::new(Program { pipelines: vec![pipeline] }, vec![source], 1 << 30).unwrap();
        let (centres, scales) = (vec![0.0; features], vec![1.0; features]);
        let coefficients = vec![0.0; features + 1];
        for family in [Family::Logistic, Family::Gaussian] {
            let (centres, scales, coefficients) = (centres.clone(), scales.clone(), coefficients.clone());
            let sums = Sums::Model { family, centres, scales, target_centre: 0.0, coefficients };
            texts.extend(fused::fold_texts_of(&execution, &sums).unwrap());
        }
        for target in [Target::Label, Target::Number] {
            let sums = Sums::Columns { centres: vec![0.0; features + 1], target };
            texts.extend(fused::fold_texts_of(&execution, &sums).unwrap());
        }
    }
    texts
}

/// Returns the sources of the first random programs that are not refused, and of the shapes of star
/// queries.
fn generated() -> BTreeSet<String> {
    let mut texts = BTreeSet::new();
    for (_, program, sources) in star::Star::new(5000, 0.01).queries() {
        texts.extend(fused::texts_of(&Execution::new(program, sources, 1 << 30).unwrap()).unwrap());
    }
    texts.extend(folds());
    texts.insert(onehop_cuda::VERIFY_TEXT.into());
    let mut runner = TestRunner::deterministic();
    let tables = (programs::tables::table(0..40, 12), programs::tables::table(1000..2500, 15));
    let case = (tables, programs::random::program(), proptest::prelude::any::<[bool; 2]>());
    let mut programs = 0;
    while programs < wanted() {
        let ((build, facts), program, in_memory) = case.new_tree(&mut runner).unwrap().current();
        let sources: Vec<Arc<dyn Source>> =
            [build, facts].iter().zip(in_memory).map(|(table, in_memory)| table.source(in_memory)).collect();
        let Ok(execution) = Execution::new(program, sources, 1 << 30) else { continue };
        match fused::texts_of(&execution) {
            Ok(more) => texts.extend(more),
            Err(fused::Error::Refused(_)) => continue,
            Err(e) => panic!("{e}"),
        }
        programs += 1;
    }
    texts
}

#[test]
#[ignore = "needs NVRTC: make test-nvrtc"]
fn every_generated_kernel_compiles() {
    let nvrtc = load();
    let texts = generated();
    for compute in ARCHITECTURES {
        for text in &texts {
            match fused::compile(&nvrtc, compute, text) {
                Ok(image) => assert!(image.starts_with(b"\x7fELF"), "an image for {compute:?}"),
                Err(e) => panic!("{compute:?}: {e}\n{text}"),
            }
        }
    }
    println!("\ngenerated: {} passed, 0 failed", texts.len() * ARCHITECTURES.len());
}

/// Returns examples of user-defined functions, of every type.
fn written() -> Vec<(&'static str, Signature)> {
    use Element::*;
    let all = [Bool, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64, Float32, Float64];
    let signature = |arguments: Vec<(String, Element)>, returns| Signature {
        arguments: arguments.into_iter().map(|(name, element)| (name, Kind::Value(element))).collect(),
        returns: Returns::Value(returns),
    };
    let mut written = vec![
        (
            "#decl\n__device__ double square(double x) { return x * x; }\nconstexpr double ONE = 1;\n#begin\n\
             is_null = b < 0;\nreturn sqrt(square(a) + ONE) + __popcll(b);\n#end",
            signature(vec![("a".into(), Float64), ("b".into(), Int64)], Float64),
        ),
        ("return 42;", signature(vec![], Int32)),
        (
            "for (float x : a) result.push(x * t.weight[0]);\nresult.push(a.size + t.rows);\nis_null = a.size == 0;",
            Signature {
                arguments: vec![
                    ("a".into(), Kind::Array(Float32)),
                    ("t".into(), Kind::Table(vec![("weight".into(), Float64), ("key".into(), Int64)])),
                ],
                returns: Returns::Array(Float64),
            },
        ),
        (
            "for (long long i = 0; i < n; ++i) result.push(i, i / 2.0f, i % 2);",
            Signature {
                arguments: vec![("n".into(), Kind::Value(Int64))],
                returns: Returns::Rows(vec![Int64, Float32, Bool]),
            },
        ),
    ];
    written.extend(all.map(|kind| ("return x;", signature(vec![("x".into(), kind)], kind))));
    written
}

#[test]
#[ignore = "needs NVRTC: make test-nvrtc"]
fn every_kernel_compiles() {
    let nvrtc = load();
    let mut compiled = 0;
    for compute in ARCHITECTURES {
        let mut compile =
            |name: &str, text: &str, macros: &[(&str, String)]| match nvrtc.compile(name, text, compute, macros) {
                Ok(image) => {
                    assert!(image.starts_with(b"\x7fELF"), "an image for {compute:?}");
                    compiled += 1;
                }
                Err(e) => panic!("{compute:?}, {macros:?}: {e}"),
            };
        compile("decode.cu", decode::TEXT, &[]);
        compile("q6.cu", q6::TEXT, &q6::rows_macros());
        for bits in 0..=32 {
            let macros = q6::segment_macros([bits, (bits + 8) % 33, (bits + 16) % 33, (bits + 25) % 33]);
            compile("q6.cu", q6::TEXT, &macros);
        }
        for (source, signature) in written() {
            let image = functions::compile(&nvrtc, compute, source, &signature).unwrap();
            assert!(image.starts_with(b"\x7fELF"), "an image for {compute:?}");
            compiled += 1;
        }
        for (source, line, what) in [
            ("double y = x;\nreturn y + missing;", 2, "missing"),
            ("#decl\nint f( { }\n#begin\nreturn f();\n#end", 2, ""),
            // NVIDIA's compiler accepts it with a warning, and the result is whatever a register
            // holds.
            ("if (x > 0) {\n    return 1;\n}", 3, "return"),
        ] {
            let arguments = vec![("x".into(), Kind::Value(Element::Float64))];
            let signature = Signature { arguments, returns: Returns::Value(Element::Float64) };
            let wrong = functions::compile(&nvrtc, compute, source, &signature).unwrap_err();
            assert!(
                wrong.line.is_some_and(|at| at.abs_diff(line) <= 1) && wrong.what.contains(what),
                "{source}: {wrong:?}"
            );
            compiled += 1;
        }
    }
    let (major, minor) = nvrtc.version();
    // On a line of its own, after any output of the harness.
    println!("\nnvrtc: {compiled} passed, 0 failed (NVRTC {major}.{minor}, for {ARCHITECTURES:?})");
}
