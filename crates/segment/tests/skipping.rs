//! The test of a whole segment gives the same blocks as the test of each block's zone.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use arrow_array::*;
use arrow_schema::Schema;
use onehop_io::{Ledger, MemoryFile};
use onehop_segment::{Comparison, Predicate, Segment, SegmentOptions, SegmentWriter, Value};
use proptest::prelude::*;

const BLOCK_ROWS: usize = 1024;

/// Returns blocks of few values in each of: 64-bit integers, decimals beyond 64 bits, floats,
/// strings. Some have only NULLs.
fn segment(blocks: &[[Option<i8>; 2]]) -> Segment {
    let values: Vec<Option<i64>> =
        blocks.iter().flat_map(|ends| (0..BLOCK_ROWS).map(|row| ends[row % 2].map(i64::from))).collect();
    let wide = values.iter().map(|v| v.map(|v| i128::from(v) << 70));
    let floats = values.iter().map(|v| v.map(|v| if v == 1 { -0.0 } else { v as f64 }));
    let batch = RecordBatch::try_from_iter_with_nullable([
        ("a", Arc::new(Int64Array::from(values.clone())) as ArrayRef, true),
        ("b", Arc::new(Decimal128Array::from_iter(wide).with_precision_and_scale(38, 0).unwrap()), true),
        ("c", Arc::new(Float64Array::from_iter(floats)), true),
        ("d", Arc::new(StringViewArray::from_iter(values.iter().map(|v| v.map(|v| format!("text {v}"))))), true),
    ])
    .unwrap();
    let schema: Arc<Schema> = batch.schema();
    let mut writer = SegmentWriter::new(&schema, SegmentOptions { block_rows: BLOCK_ROWS }).unwrap();
    writer.append(&batch).unwrap();
    let file = MemoryFile::new("test.seg", Vec::new());
    writer.finish(&file, &Ledger::default()).unwrap();
    Segment::open(Arc::new(file), &Ledger::default()).unwrap()
}

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        4 => (-4i128..4).prop_map(Value::Key),
        1 => (-4i128..4).prop_map(|key| Value::Key(key << 70)),
        1 => prop_oneof![Just(i128::MIN), Just(i128::MAX), Just(i128::from(i64::MAX) + 1)].prop_map(Value::Key),
        1 => any::<i64>().prop_map(|key| Value::Key(key.into())),
        1 => (-4i8..4).prop_map(|v| Value::Text(format!("text {v}"))),
    ]
}

fn predicate() -> impl Strategy<Value = Predicate> {
    use Comparison::*;
    let op = prop::sample::select(vec![Equal, NotEqual, Less, LessOrEqual, Greater, GreaterOrEqual]);
    let leaf = prop_oneof![
        6 => (0usize..4, op, value()).prop_map(|(column, op, value)| Predicate::Compare { column, op, value }),
        1 => (0usize..4, prop::collection::vec(value(), 0..3)).prop_map(|(column, values)| Predicate::In { column, values }),
        1 => (0usize..4).prop_map(|column| Predicate::IsNull { column }),
        1 => (0usize..4).prop_map(|column| Predicate::IsNotNull { column }),
        1 => Just(Predicate::StartsWith { column: 3, prefix: "text -".into() }),
        1 => prop_oneof![Just(Predicate::Unknown), Just(Predicate::Never)],
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        let some = prop::collection::vec(inner, 0..4);
        prop_oneof![some.clone().prop_map(Predicate::And), some.prop_map(Predicate::Or)]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn all_blocks_at_once_as_each_by_itself(
        blocks in prop::collection::vec(prop::array::uniform2(prop::option::weighted(0.7, -3i8..3)), 0..5),
        predicates in prop::collection::vec(predicate(), 20),
    ) {
        let segment = segment(&blocks);
        for predicate in predicates {
            let each: Vec<bool> = (0..segment.blocks())
                .map(|block| predicate.may_match(&|column| segment.zone(column, block)))
                .collect();
            prop_assert_eq!(segment.may_match(&predicate), each, "{:?}", predicate);
        }
    }
}
