//! Batches of a bounded size.
//!
//! A dictionary or a view stores a value once, and any number of rows refer to it: a file of 500
//! bytes can have 1,000 rows of 1 MB each. An operator that writes the values out makes 1 GB of one
//! batch. A batch is therefore cut if its values would exceed [`MOST_BYTES`] when they are written
//! out. Slices share their buffers, so a cut copies nothing.

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int64Type};

/// The maximum size of the values of a batch of several rows, in bytes.
const MOST_BYTES: u64 = 32 << 20;

/// Cuts a batch into batches of at most [`MOST_BYTES`] when written out, and at most `most_rows`
/// rows.
pub(super) fn cut(batch: &RecordBatch, most_rows: usize) -> Vec<RecordBatch> {
    let mut cut = Vec::new();
    for start in (0..batch.num_rows()).step_by(most_rows.max(1)) {
        halve(batch.slice(start, most_rows.max(1).min(batch.num_rows() - start)), &mut cut);
    }
    if cut.is_empty() {
        cut.push(batch.clone());
    }
    cut
}

fn halve(batch: RecordBatch, into: &mut Vec<RecordBatch>) {
    let rows = batch.num_rows();
    let bytes = batch.columns().iter().fold(0_u64, |sum, column| sum.saturating_add(written_out(column)));
    if rows < 2 || bytes <= MOST_BYTES {
        into.push(batch);
        return;
    }
    halve(batch.slice(0, rows / 2), into);
    halve(batch.slice(rows / 2, rows - rows / 2), into);
}

/// Returns an upper bound of the bytes of shared values, if each row gets its own copy.
fn written_out(column: &ArrayRef) -> u64 {
    let rows = column.len() as u64;
    match column.data_type() {
        DataType::Utf8View => column.as_string_view().views().iter().map(|view| u64::from(*view as u32)).sum(),
        DataType::BinaryView => column.as_binary_view().views().iter().map(|view| u64::from(*view as u32)).sum(),
        DataType::Dictionary(..) => {
            let dictionary = column.as_any_dictionary();
            let longest = longest(dictionary.values());
            match rows.saturating_mul(longest) <= MOST_BYTES {
                true => rows.saturating_mul(longest),
                false => by_keys(column),
            }
        }
        DataType::RunEndEncoded(_, values) => {
            let values = values.data_type();
            let runs = cast(&column.slice(0, column.len().min(1)), values).map_or(0, |one| one.get_array_memory_size());
            rows.saturating_mul((runs as u64).max(16))
        }
        DataType::Struct(_) => column.as_struct().columns().iter().map(written_out).sum(),
        _ => 0,
    }
}

/// Returns the bytes of the values that the keys of a dictionary refer to.
fn by_keys(column: &ArrayRef) -> u64 {
    let dictionary = column.as_any_dictionary();
    let lengths = lengths(dictionary.values());
    let Ok(keys) = cast(dictionary.keys(), &DataType::Int64) else { return 0 };
    let keys = keys.as_primitive::<Int64Type>();
    let length = |key: Option<i64>| lengths.get(usize::try_from(key?).ok()?).copied();
    keys.iter().filter_map(length).sum()
}

fn longest(values: &ArrayRef) -> u64 {
    match values.len() {
        // The sum is an upper bound of the longest.
        many if many > 1 << 16 => values.get_buffer_memory_size() as u64,
        _ => lengths(values).into_iter().max().unwrap_or(0),
    }
}

fn lengths(values: &ArrayRef) -> Vec<u64> {
    fn of<O: Into<i64> + Copy>(offsets: &[O]) -> Vec<u64> {
        offsets.windows(2).map(|pair| pair[1].into().abs_diff(pair[0].into())).collect()
    }
    match values.data_type() {
        DataType::Utf8 => of(values.as_string::<i32>().value_offsets()),
        DataType::LargeUtf8 => of(values.as_string::<i64>().value_offsets()),
        DataType::Binary => of(values.as_binary::<i32>().value_offsets()),
        DataType::LargeBinary => of(values.as_binary::<i64>().value_offsets()),
        DataType::Utf8View => values.as_string_view().views().iter().map(|view| u64::from(*view as u32)).collect(),
        other => {
            let width = match other {
                DataType::FixedSizeBinary(width) => u64::from(width.unsigned_abs()),
                // For lists and structs, the mean.
                _ => (values.get_buffer_memory_size() / values.len().max(1)) as u64,
            };
            vec![width; values.len()]
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{DictionaryArray, Int32Array, StringArray, StringViewArray};
    use arrow::compute::concat_batches;
    use arrow::datatypes::Int32Type;

    use super::*;

    #[test]
    fn rows_that_share_values_are_cut() {
        let long = "x".repeat(1 << 20);
        let texts = StringArray::from(vec![long.as_str(), "y"]);
        let keys = Int32Array::from_iter_values((0..200).map(|row| i32::from(row % 4 == 0)));
        let words: ArrayRef = Arc::new(DictionaryArray::<Int32Type>::new(keys, Arc::new(texts)));
        let views: ArrayRef = Arc::new(StringViewArray::from_iter_values(vec![long.as_str(); 200]));
        for column in [words, views] {
            let batch = RecordBatch::try_from_iter([("c", column)]).unwrap();
            let batches = cut(&batch, 8192);
            assert!(batches.len() > 4, "{}", batches.len());
            assert!(batches.iter().all(|batch| written_out(batch.column(0)) <= MOST_BYTES));
            assert_eq!(concat_batches(&batch.schema(), &batches).unwrap(), batch);
        }
        let numbers: ArrayRef = Arc::new((0..20_000).collect::<Int32Array>());
        let batch = RecordBatch::try_from_iter([("c", numbers)]).unwrap();
        assert_eq!(cut(&batch, 8192).iter().map(RecordBatch::num_rows).collect::<Vec<_>>(), [8192, 8192, 3616]);
        assert_eq!(cut(&batch.slice(0, 0), 8192).len(), 1);
    }
}
