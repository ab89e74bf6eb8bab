//! Dictionaries and runs of Arrow are decoded where rows enter, from files and from registered
//! frames. Fields and items behind a NULL are removed there.
//!
//! A SQL type describes values; casts, operators and functions go by it alone. So columns are
//! decoded where they enter. Dictionaries of texts stay encoded, for a query may hand them on:
//! pandas' categories come back as categories. The planner decodes these where it computes with
//! them ([`dictionary_texts`](crate::planner)).
//!
//! Arrow has two places for a NULL in a dictionary, the keys and the values. Much of it looks at
//! the keys alone, and takes `''` or 0 for a value that is NULL. A dictionary here has NULLs among
//! its keys only.
//!
//! A struct that is NULL may have fields that are not, and a list or a map that is NULL may have
//! items: pyarrow writes such. Much of Arrow looks at the fields alone, and `s.a` of a NULL would
//! be 0. Here the fields of a NULL are NULL, and a list that is NULL has no items.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, GenericListArray, MapArray, OffsetSizeTrait, RecordBatch,
    RecordBatchOptions, StructArray, UInt64Array,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::{cast, nullif, take};
use arrow::datatypes::{DataType, Field, FieldRef, Fields, Schema, SchemaRef};
use arrow::error::ArrowError;

/// The type of a column whose values are plain, or texts of a dictionary.
pub(crate) fn entered(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Dictionary(_, values) if values.is_string() => data_type.clone(),
        other => decoded(other),
    }
}

/// The type of the values, at every depth.
fn decoded(data_type: &DataType) -> DataType {
    let within =
        |field: &FieldRef| -> FieldRef { Arc::new(field.as_ref().clone().with_data_type(decoded(field.data_type()))) };
    match data_type {
        DataType::Dictionary(_, values) => decoded(values),
        DataType::RunEndEncoded(_, values) => decoded(values.data_type()),
        DataType::List(item) => DataType::List(within(item)),
        DataType::LargeList(item) => DataType::LargeList(within(item)),
        DataType::FixedSizeList(item, size) => DataType::FixedSizeList(within(item), *size),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(within).collect()),
        DataType::Map(entries, is_sorted) => DataType::Map(within(entries), *is_sorted),
        other => other.clone(),
    }
}

/// A schema whose columns are [`entered`].
pub(crate) fn entered_schema(schema: &Schema) -> SchemaRef {
    let fields = schema.fields().iter().map(|field| match entered(field.data_type()) {
        same if same == *field.data_type() => Arc::clone(field),
        plain => Arc::new(Field::new(field.name(), plain, field.is_nullable()).with_metadata(field.metadata().clone())),
    });
    Arc::new(Schema::new_with_metadata(fields.collect::<Fields>(), schema.metadata().clone()))
}

/// The rows with columns of the types of [`entered_schema`]. No dictionary has NULL among its
/// values, and no NULL hides fields or items.
///
/// # Errors
/// Arrow cannot decode a column.
pub(crate) fn entered_batch(batch: RecordBatch) -> Result<RecordBatch, ArrowError> {
    let is_plain = |column: &ArrayRef| {
        let data_type = column.data_type();
        entered(data_type) == *data_type && !has_null_values(column) && !data_type.is_nested()
    };
    if batch.columns().iter().all(is_plain) {
        return Ok(batch);
    }
    let schema = entered_schema(batch.schema_ref());
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    let columns = batch.columns().iter().map(entered_column).collect::<Result<Vec<_>, _>>()?;
    RecordBatch::try_new_with_options(schema, columns, &options)
}

fn entered_column(column: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    let data_type = entered(column.data_type());
    if data_type.is_nested() && !matches!(data_type, DataType::Dictionary(..)) {
        return without_hidden(&in_type(column, &data_type)?);
    }
    match column.data_type() {
        // To values and back: the NULLs are keys then.
        DataType::Dictionary(_, values) if has_null_values(column) && data_type == *column.data_type() => {
            cast(&cast(column, values)?, &data_type)
        }
        same if *same == data_type => Ok(Arc::clone(column)),
        _ => in_type(column, &data_type),
    }
}

/// Arrow decodes one level at a time, runs and dictionaries to the type of their values.
fn in_type(column: &ArrayRef, data_type: &DataType) -> Result<ArrayRef, ArrowError> {
    match column.data_type() {
        same if same == data_type => Ok(Arc::clone(column)),
        DataType::Dictionary(_, values) => in_type(&cast(column, values)?, data_type),
        DataType::RunEndEncoded(_, values) => in_type(&cast(column, values.data_type())?, data_type),
        _ => cast(column, data_type),
    }
}

/// Values whose NULLs hide nothing, at every depth.
fn without_hidden(column: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    let rows = column.len();
    Ok(match column.data_type() {
        DataType::Struct(fields) => {
            let structs = column.as_struct();
            let hidden = structs.nulls().filter(|nulls| nulls.null_count() > 0).map(is_null);
            let fields_of = structs.columns().iter().map(|field| match &hidden {
                Some(hidden) => without_hidden(&nullif(field, hidden)?),
                None => without_hidden(field),
            });
            let columns = fields_of.collect::<Result<Vec<_>, _>>()?;
            let nulls = structs.nulls().cloned();
            Arc::new(StructArray::try_new_with_length(fields.clone(), columns, nulls, rows)?)
        }
        DataType::List(item) => lists_without_hidden::<i32>(column.as_list(), item)?,
        DataType::LargeList(item) => lists_without_hidden::<i64>(column.as_list(), item)?,
        DataType::Map(entries, is_sorted) => {
            let maps = column.as_map();
            let items: ArrayRef = Arc::new(maps.entries().clone());
            let (offsets, items) = shown(maps.offsets(), maps.nulls(), &items)?;
            let (entries, nulls) = (Arc::clone(entries), maps.nulls().cloned());
            Arc::new(MapArray::try_new(entries, offsets, items.as_struct().clone(), nulls, *is_sorted)?)
        }
        _ => Arc::clone(column),
    })
}

fn lists_without_hidden<O: OffsetSizeTrait>(
    lists: &GenericListArray<O>,
    item: &FieldRef,
) -> Result<ArrayRef, ArrowError> {
    let items = without_hidden(lists.values())?;
    let (offsets, items) = shown(lists.offsets(), lists.nulls(), &items)?;
    Ok(Arc::new(GenericListArray::try_new(Arc::clone(item), offsets, items, lists.nulls().cloned())?))
}

fn is_null(nulls: &NullBuffer) -> BooleanArray {
    BooleanArray::new(!nulls.inner(), None)
}

/// The items of lists that are not NULL, and where each list has its own.
fn shown<O: OffsetSizeTrait>(
    offsets: &OffsetBuffer<O>,
    nulls: Option<&NullBuffer>,
    items: &ArrayRef,
) -> Result<(OffsetBuffer<O>, ArrayRef), ArrowError> {
    let ranges = || offsets.windows(2).map(|pair| pair[0].as_usize()..pair[1].as_usize()).enumerate();
    let is_hidden = |row: usize| nulls.is_some_and(|nulls| nulls.is_null(row));
    if !ranges().any(|(row, range)| is_hidden(row) && !range.is_empty()) {
        return Ok((offsets.clone(), Arc::clone(items)));
    }
    let seen = || ranges().map(|(row, range)| if is_hidden(row) { 0..0 } else { range });
    let places = UInt64Array::from_iter_values(seen().flatten().map(|place| place as u64));
    Ok((OffsetBuffer::from_lengths(seen().map(|range| range.len())), take(items, &places, None)?))
}

fn has_null_values(column: &ArrayRef) -> bool {
    matches!(column.data_type(), DataType::Dictionary(..)) && column.as_any_dictionary().values().null_count() > 0
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use arrow::array::{
        BooleanArray, DictionaryArray, Float64Array, Int8Array, Int32Array, ListArray, RunArray, StringArray,
    };
    use arrow::buffer::OffsetBuffer;
    use arrow::datatypes::{Int8Type, Int32Type};

    use super::*;

    fn entered_of(column: ArrayRef) -> ArrayRef {
        let batch = RecordBatch::try_from_iter([("c", column)]).unwrap();
        Arc::clone(entered_batch(batch).unwrap().column(0))
    }

    #[test]
    fn numbers_and_runs_are_decoded() {
        let keys = Int8Array::from(vec![Some(0), None, Some(1), Some(2)]);
        let values = Arc::new(Float64Array::from(vec![Some(1.5), None, Some(-0.0)]));
        let found = entered_of(Arc::new(DictionaryArray::<Int8Type>::new(keys, values)));
        assert_eq!(found.as_ref(), &Float64Array::from(vec![Some(1.5), None, None, Some(-0.0)]));

        let keys = Int8Array::from(vec![1, 0]);
        let values = Arc::new(BooleanArray::from(vec![true, false]));
        let found = entered_of(Arc::new(DictionaryArray::<Int8Type>::new(keys, values)));
        assert_eq!(found.as_ref(), &BooleanArray::from(vec![false, true]));

        let runs =
            RunArray::<Int32Type>::try_new(&Int32Array::from(vec![2, 3]), &StringArray::from(vec!["a", "b"])).unwrap();
        assert_eq!(entered_of(Arc::new(runs)).as_ref(), &StringArray::from(vec!["a", "a", "b"]));
        let texts: DictionaryArray<Int8Type> = ["a", "b"].into_iter().collect();
        let runs = RunArray::<Int32Type>::try_new(&Int32Array::from(vec![2, 3]), &texts).unwrap();
        assert_eq!(entered_of(Arc::new(runs)).as_ref(), &StringArray::from(vec!["a", "a", "b"]));
    }

    #[test]
    fn texts_stay_a_dictionary_without_null_values() {
        let keys = Int8Array::from(vec![Some(0), Some(1), None]);
        let dictionary = DictionaryArray::<Int8Type>::new(keys, Arc::new(StringArray::from(vec![Some("x"), None])));
        let found = entered_of(Arc::new(dictionary));
        assert!(matches!(found.data_type(), DataType::Dictionary(..)));
        assert!(!has_null_values(&found));
        assert_eq!((found.null_count(), found.len()), (2, 3));
    }

    #[test]
    fn dictionaries_within_lists_are_decoded() {
        let texts: DictionaryArray<Int8Type> = ["a", "b", "a"].into_iter().collect();
        let item = Field::new_list_field(texts.data_type().clone(), true);
        let list = ListArray::new(Arc::new(item), OffsetBuffer::from_lengths([2, 1]), Arc::new(texts), None);
        let found = entered_of(Arc::new(list));
        assert_eq!(found.as_list::<i32>().values().as_ref(), &StringArray::from(vec!["a", "b", "a"]));
    }
}
