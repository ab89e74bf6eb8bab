//! Sorts receive and emit batches that have memory of their own.
//!
//! A sort counts each batch that it keeps as the full size of the buffers that contain it. UNNEST
//! of a long list, and a grouping with many groups, emit slices of one batch, each of which would
//! count as the whole batch. Within a memory limit, a sort would spill every few thousand rows to a
//! file, and run out of open files. So a batch in much larger buffers is copied, once.
//!
//! The strings of a sort's own batches are views of the buffers of all runs that it merges. An
//! operator that merges the rows of several sorts counts these batches, and receives the same
//! copies.
//!
//! This applies to a plan that is about to run, so that EXPLAIN shows the planned operators.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, MutableArrayData, RecordBatch, make_array};
use arrow::datatypes::DataType;
use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::sorts::sort::SortExec;
use futures::StreamExt;

use super::unseen;

/// Returns the plan with sorts that count the memory that they keep.
pub(super) fn of_sorts(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    let is_sort = |node: &Arc<dyn ExecutionPlan>| node.is::<SortExec>();
    let plan = unseen::below(plan, is_sort, "Owning", owning)?;
    let changed = plan.transform_up(|node| {
        Ok(match is_sort(&node) {
            true => Transformed::yes(unseen::over("Owning", node, owning)),
            false => Transformed::no(node),
        })
    });
    Ok(changed?.data)
}

fn owning(
    input: &Arc<dyn ExecutionPlan>,
    partition: usize,
    context: Arc<TaskContext>,
) -> Result<SendableRecordBatchStream> {
    unseen::changed(input, partition, context, |batches| batches.map(|batch| batch.and_then(owned)))
}

/// Copies the columns of a batch whose buffers are much larger than needed.
pub(super) fn owned(batch: RecordBatch) -> Result<RecordBatch> {
    if !batch.columns().iter().any(is_small_part) {
        return Ok(batch);
    }
    let columns = batch.columns().iter().map(|column| match is_small_part(column) {
        true => copied(column),
        false => Ok(Arc::clone(column)),
    });
    Ok(RecordBatch::try_new(batch.schema(), columns.collect::<Result<_>>()?)?)
}

/// Returns whether an array's buffers hold so much more than its values that a copy pays off.
fn is_small_part(array: &ArrayRef) -> bool {
    const TIMES: usize = 2;
    array.get_buffer_memory_size() > values_bytes(array.as_ref()).saturating_mul(TIMES).saturating_add(4096)
}

/// Returns the bytes of an array's values, nested values included.
pub(super) fn values_bytes(array: &dyn Array) -> usize {
    let within = |values: &ArrayRef, start: usize, end: usize| values_bytes(values.slice(start, end - start).as_ref());
    match array.data_type() {
        DataType::Utf8View => array.len() * size_of::<u128>() + array.as_string_view().total_buffer_bytes_used(),
        DataType::BinaryView => array.len() * size_of::<u128>() + array.as_binary_view().total_buffer_bytes_used(),
        DataType::List(_) => {
            let list = array.as_list::<i32>();
            let (start, end) = (list.value_offsets()[0], list.value_offsets()[list.len()]);
            list.len() * size_of::<i32>() + within(list.values(), start as usize, end as usize)
        }
        DataType::Struct(_) => array.as_struct().columns().iter().map(|column| values_bytes(column.as_ref())).sum(),
        // An array that does not report its size keeps its buffers.
        _ => array.to_data().get_slice_memory_size().unwrap_or(usize::MAX),
    }
}

fn copied(array: &ArrayRef) -> Result<ArrayRef> {
    Ok(match array.data_type() {
        DataType::Utf8View => Arc::new(array.as_string_view().gc()),
        DataType::BinaryView => Arc::new(array.as_binary_view().gc()),
        _ => {
            let values = array.to_data();
            let mut copy = MutableArrayData::new(vec![&values], false, array.len());
            copy.try_extend(0, 0, array.len())?;
            make_array(copy.freeze())
        }
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use arrow::array::{BooleanArray, Int64Array, ListArray, StringArray, StringViewArray};
    use arrow::datatypes::Int64Type;

    use super::*;

    #[test]
    fn a_slice_is_copied_and_a_whole_is_not() {
        const ROWS: i64 = 100_000;
        let texts = || (0..ROWS).map(|row| (row % 5 > 0).then(|| format!("a text of some length, {row}")));
        let columns: [(&str, ArrayRef); 5] = [
            ("integers", Arc::new((0..ROWS).map(|row| (row % 7 > 0).then_some(row)).collect::<Int64Array>())),
            ("truths", Arc::new((0..ROWS).map(|row| Some(row % 3 == 0)).collect::<BooleanArray>())),
            ("texts", Arc::new(texts().collect::<StringArray>())),
            ("views", Arc::new(texts().collect::<StringViewArray>())),
            (
                "lists",
                Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(
                    (0..ROWS).map(|row| (row % 4 > 0).then(|| (0..row % 4).map(Some))),
                )),
            ),
        ];
        let whole = RecordBatch::try_from_iter(columns).unwrap();
        let bytes = |batch: &RecordBatch| batch.columns().iter().map(|c| c.get_buffer_memory_size()).sum::<usize>();
        assert_eq!(bytes(&owned(whole.clone()).unwrap()), bytes(&whole));
        for (start, rows) in [(0, 8192), (50_000, 8192), (99_000, 1000), (7, 1)] {
            let slice = whole.slice(start, rows);
            let owned = owned(slice.clone()).unwrap();
            assert_eq!(owned, slice);
            // Two strings of 30 bytes, two integers, and their overhead.
            assert!(bytes(&owned) < rows * 250 + 5 * 4096, "{rows} rows in {} bytes", bytes(&owned));
        }
    }
}
