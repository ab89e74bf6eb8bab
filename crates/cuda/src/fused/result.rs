//! Conversion of the memory that kernels have filled to columns of the result.

use onehop_pipeline::cpu::{Kind, ResultColumn, ResultValues};
use onehop_pipeline::ir::{Direction, Nulls, SortKey};
use onehop_pipeline::{Domain, Type};

use super::codegen::{Groups, Output, Slot, SlotKind};

/// Returns the words of memory.
pub(super) fn words_of(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

/// Maps the bits of a double to an integer of the same order. The function is its own inverse.
fn ordered(bits: i64) -> i64 {
    bits ^ ((bits >> 63) as u64 >> 1) as i64
}

/// Returns the columns of the groups that have rows. `states` holds each word of all `places`,
/// `keys` the keys of hashed places. The keys of places that are not hashed begin with that of the
/// group `first`.
pub(super) fn of_groups(
    groups: &Groups,
    states: &[u64],
    keys: Option<&[u64]>,
    first: u64,
    places: usize,
) -> Vec<ResultColumn> {
    let is_there = |place: &usize| groups.layout.is_none() || states[*place] != 0;
    let found: Vec<usize> = (0..places).filter(is_there).collect();
    let word = |word: usize, place: usize| states[word * places + place];
    let mut columns = Vec::with_capacity(groups.keys.len() + groups.slots.len());
    for (part, domain) in groups.keys.iter().enumerate() {
        let Some(layout) = &groups.layout else { continue };
        let key = |place: &usize| layout.part_of(part, keys.map_or(first + *place as u64, |keys| keys[*place]));
        let values: Vec<Option<i128>> = found.iter().map(key).collect();
        columns.push(ResultColumn::of_integers(domain, values.into_iter()));
    }
    for Slot { kind, word: first, seen, domain, .. } in &groups.slots {
        let is_seen = || found.iter().map(|place| word(*seen, *place) != 0).collect::<Vec<bool>>();
        columns.push(match kind {
            SlotKind::Count => ResultColumn {
                values: ResultValues::Int(found.iter().map(|place| word(*first, *place) as i64).collect()),
                valid: None,
            },
            SlotKind::Sum => ResultColumn {
                values: ResultValues::Int(found.iter().map(|place| word(*first, *place) as i64).collect()),
                valid: Some(is_seen()),
            },
            SlotKind::WideSum => {
                let sum = |place: &usize| wide(word(*first, *place), word(first + 1, *place));
                ResultColumn { values: ResultValues::Wide(found.iter().map(sum).collect()), valid: Some(is_seen()) }
            }
            SlotKind::Least | SlotKind::Greatest => {
                let value = |place: &usize| {
                    let word = word(*first, *place);
                    let word = if *kind == SlotKind::Least { !word } else { word };
                    (word ^ 1 << 63) as i64
                };
                let valid = is_seen();
                let values = found.iter().map(value);
                match domain.ty {
                    Type::Double => ResultColumn {
                        values: ResultValues::Double(values.map(|v| f64::from_bits(ordered(v) as u64)).collect()),
                        valid: Some(valid),
                    },
                    _ => {
                        let values = values.zip(&valid).map(|(value, valid)| valid.then_some(value.into()));
                        let domain = Domain { nullable: true, ..domain.clone() };
                        ResultColumn::of_integers(&domain, values.collect::<Vec<Option<i128>>>().into_iter())
                    }
                }
            }
        });
    }
    columns
}

fn wide(low: u64, high: u64) -> i128 {
    i128::from(high as i64) << 64 | i128::from(low)
}

/// Returns a column of collected rows.
pub(super) fn of_rows(output: &Output, bytes: &[u8], valid: Option<&[u8]>) -> ResultColumn {
    fn integers<const N: usize>(bytes: &[u8], of: impl Fn([u8; N]) -> i128) -> Vec<i128> {
        bytes.as_chunks::<N>().0.iter().map(|value| of(*value)).collect()
    }
    let values = match output.kind {
        Kind::F64 => {
            let doubles = bytes.as_chunks::<8>().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect();
            let valid = valid.map(|valid| valid.iter().map(|valid| *valid != 0).collect());
            return ResultColumn { values: ResultValues::Double(doubles), valid };
        }
        Kind::Bool => integers::<1>(bytes, |[value]| value.into()),
        Kind::I32 => integers(bytes, |bytes| i32::from_le_bytes(bytes).into()),
        Kind::I64 => integers(bytes, |bytes| i64::from_le_bytes(bytes).into()),
        Kind::I128 => integers(bytes, i128::from_le_bytes),
    };
    let is_valid = |row: usize| valid.is_none_or(|valid| valid[row] != 0);
    let values: Vec<Option<i128>> =
        values.into_iter().enumerate().map(|(row, value)| is_valid(row).then_some(value)).collect();
    ResultColumn::of_integers(&output.domain, values.into_iter())
}

/// Returns the first `rows` rows in an order. The columns begin with the sort keys.
pub(super) fn first_rows(columns: &[ResultColumn], keys: &[SortKey], rows: usize) -> Vec<ResultColumn> {
    let of_keys: Vec<Vec<Option<i128>>> = columns.iter().take(keys.len()).map(comparable).collect();
    let count = columns.first().map_or(0, ResultColumn::len);
    let mut places: Vec<u32> = (0..count as u32).collect();
    let compare = |a: &u32, b: &u32| {
        let each = keys.iter().zip(&of_keys).map(|(key, values)| {
            let (a, b) = (values[*a as usize], values[*b as usize]);
            match (a, b) {
                (Some(a), Some(b)) if key.direction == Direction::Ascending => a.cmp(&b),
                (Some(a), Some(b)) => b.cmp(&a),
                (a, b) if key.nulls == Nulls::First => a.is_some().cmp(&b.is_some()),
                (a, b) => b.is_some().cmp(&a.is_some()),
            }
        });
        each.fold(std::cmp::Ordering::Equal, std::cmp::Ordering::then)
    };
    if rows < places.len() {
        places.select_nth_unstable_by(rows, compare);
        places.truncate(rows);
    }
    places.sort_unstable_by(compare);
    columns.iter().map(|column| column.gather(&places)).collect()
}

/// Returns the rank of the `rows`-th value in an order, as kernels compute it (sink.rs). Returns
/// `None` if there are fewer values.
pub(super) fn rank_of_last(column: &ResultColumn, key: &SortKey, rows: usize) -> Option<u64> {
    let rank = |value: Option<i128>| {
        let rank = value.map(|value| (value as i64 as u64) ^ 1 << 63);
        match (rank, key.direction) {
            (Some(rank), Direction::Ascending) => rank,
            (Some(rank), Direction::Descending) => !rank,
            (None, _) if key.nulls == Nulls::First => 0,
            (None, _) => u64::MAX,
        }
    };
    let mut ranks: Vec<u64> = comparable(column).into_iter().map(rank).collect();
    let last = rows.checked_sub(1).filter(|last| *last < ranks.len())?;
    Some(*ranks.select_nth_unstable(last).1)
}

/// Returns values as integers of the same order.
fn comparable(column: &ResultColumn) -> Vec<Option<i128>> {
    let value = |row: usize| match &column.values {
        ResultValues::Bool(values) => values[row].into(),
        ResultValues::Int(values) => values[row].into(),
        ResultValues::Wide(values) => values[row],
        // Both zeros are equal.
        ResultValues::Double(values) => ordered((values[row] + 0.0).to_bits() as i64).into(),
        ResultValues::Text(codes, _) => codes[row].into(),
        ResultValues::LateText(rows, _) => rows[row].into(),
    };
    let is_valid = |row: usize| column.valid.as_ref().is_none_or(|valid| valid[row]);
    (0..column.len()).map(|row| is_valid(row).then(|| value(row))).collect()
}
