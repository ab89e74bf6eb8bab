//! Join tables and groups that exceed the memory, for the checks and the measurements of
//! partitioned execution.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::sync::Arc;

use onehop_pipeline::cpu::{ResultColumn, ResultValues};
use onehop_pipeline::ir::{Aggregate, JoinKind, Pipeline, Probe, Program, Sink, Step};
use onehop_pipeline::{Expr, Source};

use super::star::stored;

/// A query that does not fit: its name, its program, and its sources.
pub type Large = (String, Program, Vec<Arc<dyn Source>>);

/// Returns queries with join tables and groups of about twice `bytes` bytes, whose keys are `apart`
/// apart.
pub fn queries(bytes: u64, apart: i64) -> Vec<Large> {
    // A dense table takes a bit and eight bytes for a key; a hashed one two to four slots of twenty
    // bytes for a row. Groups take two words each, or one to two slots of three.
    let (name, key_bytes) = if apart == 1 { ("dense", 8.125) } else { ("hashed", 60.0) };
    let keys = (2.0 * bytes as f64 / key_bytes) as i64;
    let groups = (2.0 * bytes as f64 / if apart == 1 { 16.0 } else { 30.0 }) as i64;
    // An odd factor visits every remainder of a power of two once: the keys are not sorted.
    let places = (keys as u64).next_power_of_two();
    let shuffled = (0..places).map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) & (places - 1)) as i64);
    let of_table: Vec<i64> = shuffled.filter(|key| *key < keys).map(|key| key * apart).collect();
    let payload = of_table.iter().map(|key| (*key ^ 0x5555) << 20).collect();
    let table = stored("keys", vec![of_table, payload]);
    let rows = (keys as usize * 2).clamp(1 << 12, 1 << 27);
    let noise = |row: usize, below: i64| {
        let mixed = (row as u64 + 1).wrapping_mul(0xd6e8_feb8_6659_fd93);
        ((u128::from(mixed ^ mixed >> 29) * below as u128) >> 64) as i64
    };
    // Every tenth row finds nothing.
    let probing = (0..rows).map(|row| noise(row, keys + keys / 10) * apart).collect();
    let grouped = (0..rows).map(|row| noise(row ^ 0x55, groups) * apart).collect();
    let facts = stored("facts", vec![probing, grouped, (0..rows as i64).map(|row| row % 1000).collect()]);
    let r = Expr::Register;
    let build = Pipeline {
        source: 0,
        columns: vec![0, 1],
        steps: vec![],
        sink: Sink::Build { keys: vec![r(0)], payload: vec![r(1)] },
    };
    let join = |kind| Step::Probe(Probe { table: 0, kind, keys: vec![r(0)], payload: vec![0], condition: None });
    let sums = |all: &[usize]| {
        let sums = all.iter().map(|register| Aggregate::Sum(r(*register)));
        sums.chain([Aggregate::CountRows]).collect::<Vec<_>>()
    };
    let last = |source, steps, keys, aggregates| Pipeline {
        source,
        columns: vec![0, 1, 2],
        steps,
        sink: Sink::Aggregate { keys, aggregates },
    };
    let both = || vec![Arc::clone(&table), Arc::clone(&facts)];
    let program = |pipelines| Program { pipelines };
    vec![
        (
            format!("{name} table, left join"),
            program(vec![build.clone(), last(1, vec![join(JoinKind::Left)], vec![], sums(&[2, 3]))]),
            both(),
        ),
        (
            format!("{name} table, inner join"),
            program(vec![build.clone(), last(1, vec![join(JoinKind::Inner)], vec![], sums(&[2, 3]))]),
            both(),
        ),
        (format!("{name} groups"), program(vec![last(0, vec![], vec![r(1)], sums(&[2]))]), vec![Arc::clone(&facts)]),
        (
            format!("{name} table and groups"),
            program(vec![build, last(1, vec![join(JoinKind::Left)], vec![r(1)], sums(&[2, 3]))]),
            both(),
        ),
    ]
}

/// Returns a digest of all rows that is independent of their order.
pub fn digest(chunks: &[Vec<ResultColumn>]) -> (usize, u128) {
    let mut digest = (0usize, 0u128);
    for chunk in chunks.iter().filter(|chunk| !chunk.is_empty()) {
        for row in 0..chunk[0].len() {
            let cells = chunk.iter().map(|column| {
                let is_valid = column.valid.as_ref().is_none_or(|valid| valid[row]);
                match &column.values {
                    _ if !is_valid => u128::MAX / 3,
                    ResultValues::Int(values) => values[row] as u128,
                    ResultValues::Wide(values) => values[row] as u128,
                    other => panic!("{other:?}"),
                }
            });
            let of_row = cells.fold(1u128, |all, cell| {
                let mixed = (all ^ cell).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
                mixed ^ mixed >> 61
            });
            digest = (digest.0 + 1, digest.1.wrapping_add(of_row));
        }
    }
    digest
}
