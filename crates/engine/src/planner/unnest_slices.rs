//! UNNEST receives few enough rows at a time that its result fits memory.
//!
//! DataFusion makes one batch of a batch. From 8,192 rows with lists of a thousand items and a
//! string of a kilobyte it makes 8 GB, which are not accounted. So its input is split into slices
//! whose results have a few megabytes. A row that produces more by itself is refused if
//! `memory_limit` does not allow it.
//!
//! This applies to a plan that is about to run, so that EXPLAIN shows the planned operators.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::compute::kernels::length::length;
use arrow::datatypes::{DataType, Int64Type};
use datafusion::common::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::unnest::UnnestExec;
use futures::{StreamExt, stream};

use super::call_sizes::items_of;
use super::own_memory::values_bytes;
use super::unseen;
use crate::limits::go_on_with;

/// The target size of a slice's result.
const SLICE_BYTES: u64 = 4 << 20;

/// The minimum size of an item in each column.
const ITEM_BYTES: u64 = 16;

/// Returns the plan with UNNESTs that receive slices.
pub(super) fn sliced(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    unseen::below(plan, |node| node.is::<UnnestExec>(), "Slicing", slicing)
}

fn slicing(
    input: &Arc<dyn ExecutionPlan>,
    partition: usize,
    context: Arc<TaskContext>,
) -> Result<SendableRecordBatchStream> {
    let in_slices = |batches: SendableRecordBatchStream| {
        batches.flat_map(|batch| match batch.and_then(|batch| Ok((slices(&batch)?, batch))) {
            Ok((slices, batch)) => {
                let of = move |slice: Slice| {
                    // A single row that is larger has to fit.
                    if slice.made > SLICE_BYTES {
                        go_on_with(slice.made)?;
                    }
                    Ok(batch.slice(slice.start, slice.rows))
                };
                stream::iter(slices.into_iter().map(of)).left_stream()
            }
            Err(e) => stream::once(async move { Err(e) }).right_stream(),
        })
    };
    unseen::changed(input, partition, context, in_slices)
}

/// Rows that are passed together. `made` is the size of their UNNEST in bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Slice {
    start: usize,
    rows: usize,
    made: u64,
}

fn slices(batch: &RecordBatch) -> Result<Vec<Slice>> {
    let mut slices = Vec::new();
    let mut slice = Slice::default();
    for (row, made) in made_of(batch)?.into_iter().enumerate() {
        if slice.rows > 0 && slice.made.saturating_add(made) > SLICE_BYTES {
            slices.push(slice);
            slice = Slice { start: row, ..Slice::default() };
        }
        slice.rows += 1;
        slice.made = slice.made.saturating_add(made);
    }
    slices.push(slice);
    Ok(slices)
}

/// Returns an upper bound of the bytes that UNNEST produces for each row: all columns for each item
/// of its longest list.
fn made_of(batch: &RecordBatch) -> Result<Vec<u64>> {
    let items = |row: usize| batch.columns().iter().map(|column| items_of(column.as_ref(), row)).max().unwrap_or(1);
    let items: Vec<u64> = (0..batch.num_rows()).map(|row| items(row).max(1)).collect();
    let mut made = vec![0_u64; batch.num_rows()];
    for column in batch.columns() {
        let is_list = is_list(column.data_type());
        for ((made, bytes), items) in made.iter_mut().zip(row_bytes(column)?).zip(&items) {
            // The items of a list are distributed over the rows.
            let times = if is_list { 1 } else { *items };
            *made = made.saturating_add(bytes.saturating_mul(times).max(items.saturating_mul(ITEM_BYTES)));
        }
    }
    Ok(made)
}

/// Returns the bytes of each value of a column.
fn row_bytes(column: &ArrayRef) -> Result<Vec<u64>> {
    let rows = column.len();
    Ok(match column.data_type() {
        fixed if fixed.is_primitive() || *fixed == DataType::Boolean => vec![ITEM_BYTES; rows],
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => {
            let lengths = cast(&length(column)?, &DataType::Int64)?;
            lengths.as_primitive::<Int64Type>().iter().map(|length| length.unwrap_or(0).max(0) as u64).collect()
        }
        _ => (0..rows).map(|row| values_bytes(column.slice(row, 1).as_ref()) as u64).collect(),
    })
}

fn is_list(data_type: &DataType) -> bool {
    matches!(data_type, DataType::List(_) | DataType::LargeList(_) | DataType::FixedSizeList(..))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use arrow::array::{ListArray, StringArray};

    use super::*;
    use crate::planner::tests::rows;

    #[test]
    fn slices_make_some_megabytes_and_have_all_rows() {
        let lists = (0..1000).map(|row| Some((0..row % 50).map(Some)));
        let columns: [(&str, ArrayRef); 2] = [
            ("list", Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(lists))),
            ("text", Arc::new((0..1000).map(|_| Some("x".repeat(5000))).collect::<StringArray>())),
        ];
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let slices = slices(&batch).unwrap();
        assert!((25..60).contains(&slices.len()), "{}", slices.len());
        assert_eq!((slices[0].start, slices.iter().map(|slice| slice.rows).sum::<usize>()), (0, 1000));
        assert!(slices.windows(2).all(|pair| pair[0].start + pair[0].rows == pair[1].start));
    }

    #[tokio::test]
    async fn rows_are_those_of_the_whole() {
        let wide = "SELECT count(*), sum(n), count(DISTINCT z), min(length(z)) FROM (\
                    SELECT unnest(range(x % 300)) AS n, repeat(x::TEXT, 3000) AS z FROM generate_series(1, 3000) AS t(x)) AS s";
        assert_eq!(rows(wide).await, ["448500 44551000 2990 3000"]);
    }
}
