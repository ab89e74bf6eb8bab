//! Which partition a row belongs to, and which partitions a condition can reach.
//!
//! Range: the first partition whose bound the value is below; NULL belongs to the first. List: the partition that lists
//! the value, else the default. Hash: a function of the value that is part of the on-disk format ([`hash_keys`]); NULL
//! hashes to 0. Range and list partitions need no test of their own when pruning: their segments' zones say it all.

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch, UInt32Array};
use arrow::compute::kernels::cmp;
use arrow::compute::{cast, take_record_batch};
use arrow::datatypes::{DataType, Int64Type, Schema};
use datafusion::common::ScalarValue;
use onehop_segment::{ColumnType, Comparison, Predicate, Value};

use crate::catalog::{ListPartition, PartitionBy, RangePartition, TableEntry};
use crate::hash::{hash_text, mix};
use crate::{Error, ErrorKind, Result};

/// Sends rows to their partitions.
pub(crate) struct Router {
    column: usize,
    name: String,
    method: Method,
    partitions: usize,
}

enum Method {
    /// Upper bounds, ascending; the last partition may have none.
    Range {
        bounds: Vec<ScalarValue>,
        has_maximum: bool,
    },
    /// Listed values with their partitions; where NULL goes; where the rest goes.
    List {
        values: Vec<(ScalarValue, u32)>,
        null: Option<u32>,
        default: Option<u32>,
    },
    Hash,
}

/// A literal of the catalog as a value of the column.
pub(crate) fn literal(text: &str, data_type: &DataType, column: &str) -> Result<ScalarValue> {
    ScalarValue::try_from_string(text.to_string(), data_type).map_err(|e| {
        let message = format!("'{text}' is not a value of partition column \"{column}\" ({data_type})");
        Error::new(ErrorKind::Invalid, message).with_source(e)
    })
}

impl Router {
    /// The router of a table; `None` if it has no partitions.
    pub fn new(partition_by: Option<&PartitionBy>, schema: &Schema) -> Result<Option<Self>> {
        let Some(by) = partition_by else { return Ok(None) };
        let Some((column, field)) = schema.column_with_name(by.column()) else {
            let message = format!("there is no column \"{}\" to partition by", by.column());
            return Err(Error::new(ErrorKind::NotFound, message));
        };
        let data_type = field.data_type();
        let method = match by {
            PartitionBy::Range { partitions, .. } => range(partitions, data_type, by.column())?,
            PartitionBy::List { partitions, .. } => list(partitions, data_type, by.column())?,
            PartitionBy::Hash { .. } => Method::Hash,
        };
        Ok(Some(Self { column, name: by.column().to_string(), method, partitions: by.count() }))
    }

    /// Splits a batch: partitions with rows, and their rows in order.
    pub fn split(&self, batch: &RecordBatch) -> Result<Vec<(u32, RecordBatch)>> {
        let assigned = self.assign(batch.column(self.column))?;
        if let Some(first) = assigned.first()
            && assigned.iter().all(|partition| partition == first)
        {
            return Ok(vec![(*first, batch.clone())]);
        }
        let mut rows: Vec<Vec<u32>> = vec![Vec::new(); self.partitions];
        for (row, partition) in assigned.iter().enumerate() {
            rows[*partition as usize].push(row as u32);
        }
        let parts = rows.into_iter().enumerate().filter(|(_, rows)| !rows.is_empty());
        parts.map(|(p, rows)| Ok((p as u32, take_record_batch(batch, &UInt32Array::from(rows))?))).collect()
    }

    fn assign(&self, values: &ArrayRef) -> Result<Vec<u32>> {
        match &self.method {
            Method::Hash => {
                let hashes = hash_keys(values)?;
                Ok(hashes.into_iter().map(|hash| (hash % self.partitions as u64) as u32).collect())
            }
            Method::Range { bounds, has_maximum } => self.assign_range(values, bounds, *has_maximum),
            Method::List { values: listed, null, default } => self.assign_list(values, listed, *null, *default),
        }
    }

    fn assign_range(&self, values: &ArrayRef, bounds: &[ScalarValue], has_maximum: bool) -> Result<Vec<u32>> {
        let mut assigned = vec![0u32; values.len()];
        for bound in bounds {
            let reaches = cmp::gt_eq(values, &bound.to_scalar()?)?;
            for (partition, reaches) in assigned.iter_mut().zip(reaches.iter()) {
                *partition += u32::from(reaches == Some(true));
            }
        }
        if !has_maximum && let Some(row) = assigned.iter().position(|p| *p as usize >= bounds.len()) {
            return Err(self.homeless(values, row));
        }
        Ok(assigned)
    }

    fn assign_list(
        &self,
        values: &ArrayRef,
        listed: &[(ScalarValue, u32)],
        null: Option<u32>,
        default: Option<u32>,
    ) -> Result<Vec<u32>> {
        let mut assigned: Vec<Option<u32>> = vec![default; values.len()];
        for (value, partition) in listed {
            let equal: BooleanArray = cmp::eq(values, &value.to_scalar()?)?;
            for (assigned, equal) in assigned.iter_mut().zip(equal.iter()) {
                if equal == Some(true) {
                    *assigned = Some(*partition);
                }
            }
        }
        if null.is_some() {
            for (row, assigned) in assigned.iter_mut().enumerate() {
                if values.is_null(row) {
                    *assigned = null;
                }
            }
        }
        let found = |(row, assigned): (usize, Option<u32>)| assigned.ok_or_else(|| self.homeless(values, row));
        assigned.into_iter().enumerate().map(found).collect()
    }

    fn homeless(&self, values: &ArrayRef, row: usize) -> Error {
        let value = ScalarValue::try_from_array(values, row).map_or_else(|_| "?".into(), |value| value.to_string());
        Error::new(ErrorKind::Data, format!("no partition takes {} = {value}", self.name))
            .with_hint("declare a partition for it: VALUES LESS THAN (MAXVALUE), or DEFAULT in a list")
    }
}

fn range(partitions: &[RangePartition], data_type: &DataType, column: &str) -> Result<Method> {
    let invalid = |message: String| Err(Error::new(ErrorKind::Invalid, message));
    let mut bounds: Vec<ScalarValue> = Vec::new();
    for (index, partition) in partitions.iter().enumerate() {
        match &partition.less_than {
            None if index + 1 < partitions.len() => {
                return invalid(format!("partition \"{}\" takes all values, so it must be the last", partition.name));
            }
            None => return Ok(Method::Range { bounds, has_maximum: true }),
            Some(text) => {
                let bound = literal(text, data_type, column)?;
                if bounds.last().is_some_and(|last| last.partial_cmp(&bound) != Some(std::cmp::Ordering::Less)) {
                    return invalid(format!(
                        "the bound of partition \"{}\" is not above the one before",
                        partition.name
                    ));
                }
                bounds.push(bound);
            }
        }
    }
    Ok(Method::Range { bounds, has_maximum: false })
}

fn list(partitions: &[ListPartition], data_type: &DataType, column: &str) -> Result<Method> {
    let (mut values, mut null, mut default): (Vec<(ScalarValue, u32)>, _, _) = (Vec::new(), None, None);
    let twice = |what: &str| Err(Error::new(ErrorKind::Invalid, format!("{what} is in two partitions")));
    for (index, partition) in partitions.iter().enumerate() {
        let index = index as u32;
        if partition.is_default && default.replace(index).is_some() {
            return twice("DEFAULT");
        }
        for value in &partition.values {
            match value {
                None if null.replace(index).is_some() => return twice("NULL"),
                None => {}
                Some(text) => {
                    let value = literal(text, data_type, column)?;
                    if values.iter().any(|(listed, _)| *listed == value) {
                        return twice(&format!("'{text}'"));
                    }
                    values.push((value, index));
                }
            }
        }
    }
    Ok(Method::List { values, null, default })
}

/// Part of the format: integers, dates and timestamps hash as 64-bit values, text by its bytes.
fn hash_keys(values: &ArrayRef) -> Result<Vec<u64>> {
    let rows = 0..values.len();
    if let Some(text) = values.as_string_view_opt() {
        return Ok(rows.map(|row| if text.is_null(row) { 0 } else { hash_text(text.value(row)) }).collect());
    }
    let keys = cast(values, &DataType::Int64)?;
    let keys = keys.as_primitive::<Int64Type>();
    Ok(rows.map(|row| if keys.is_null(row) { 0 } else { mix(keys.value(row) as u64) }).collect())
}

/// Whether a column's type can be hashed: those whose equality is that of one 64-bit value, and text.
pub(crate) fn can_hash(column_type: &ColumnType) -> bool {
    use ColumnType as T;
    !matches!(column_type, T::Float32 | T::Float64 | T::Decimal { .. } | T::UInt64)
}

/// Which partitions rows that match may be in; `None` if the table has none.
pub(crate) fn matching(entry: &TableEntry, schema: &Schema, predicate: &Predicate) -> Result<Option<Vec<bool>>> {
    let Some(by) = &entry.partition_by else { return Ok(None) };
    let all = vec![true; by.count()];
    let PartitionBy::Hash { column, partitions } = by else { return Ok(Some(all)) };
    let Some((column, _)) = schema.column_with_name(column) else { return Ok(Some(all)) };
    let Some(values) = equal_values(predicate, column) else { return Ok(Some(all)) };
    let mut wanted = vec![false; all.len()];
    for value in values {
        let hash = match value {
            Value::Key(key) => mix(*key as i64 as u64),
            Value::Text(text) => hash_text(text),
        };
        wanted[(hash % u64::from(*partitions)) as usize] = true;
    }
    Ok(Some(wanted))
}

/// The values that `column` must be one of, if the predicate says so.
fn equal_values(predicate: &Predicate, wanted: usize) -> Option<Vec<&Value>> {
    match predicate {
        Predicate::Compare { column, op: Comparison::Equal, value } if *column == wanted => Some(vec![value]),
        Predicate::In { column, values } if *column == wanted => Some(values.iter().collect()),
        Predicate::And(parts) => parts.iter().find_map(|part| equal_values(part, wanted)),
        _ => None,
    }
}

/// The partition of a value, for tests of the pruning.
#[cfg(test)]
fn partition_of(value: &Value, partitions: u64) -> u64 {
    match value {
        Value::Key(key) => mix(*key as i64 as u64) % partitions,
        Value::Text(text) => hash_text(text) % partitions,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Date32Array, Int32Array, StringViewArray};
    use arrow::datatypes::Field;

    use super::*;

    fn router(by: &PartitionBy, values: ArrayRef) -> (Router, RecordBatch) {
        let schema = Arc::new(Schema::new(vec![Field::new("k", values.data_type().clone(), true)]));
        let router = Router::new(Some(by), &schema).unwrap().unwrap();
        (router, RecordBatch::try_new(schema, vec![values]).unwrap())
    }

    fn counts(by: &PartitionBy, values: ArrayRef) -> Vec<(u32, usize)> {
        let (router, batch) = router(by, values);
        router.split(&batch).unwrap().into_iter().map(|(p, part)| (p, part.num_rows())).collect()
    }

    #[test]
    fn ranges_take_what_is_below_their_bound_and_the_first_takes_null() {
        let partition = |name: &str, less_than: Option<&str>| RangePartition {
            name: name.into(),
            less_than: less_than.map(str::to_string),
        };
        let by = PartitionBy::Range {
            column: "k".into(),
            partitions: vec![partition("a", Some("10")), partition("b", Some("20")), partition("c", None)],
        };
        let values = Int32Array::from(vec![Some(9), Some(10), Some(19), Some(20), None, Some(i32::MIN)]);
        assert_eq!(counts(&by, Arc::new(values)), [(0, 3), (1, 2), (2, 1)]);

        let by = PartitionBy::Range { column: "k".into(), partitions: vec![partition("a", Some("10"))] };
        let (router, batch) = router(&by, Arc::new(Int32Array::from(vec![5, 10])));
        assert_eq!(router.split(&batch).unwrap_err().message(), "no partition takes k = 10");
    }

    #[test]
    fn lists_take_what_they_list() {
        let part = |values: &[Option<&str>], is_default| ListPartition {
            name: "p".into(),
            values: values.iter().map(|v| v.map(str::to_string)).collect(),
            is_default,
        };
        let by = PartitionBy::List {
            column: "k".into(),
            partitions: vec![part(&[Some("ASIA"), None], false), part(&[Some("AFRICA")], false), part(&[], true)],
        };
        let values = StringViewArray::from(vec![Some("ASIA"), None, Some("AFRICA"), Some("EUROPE"), Some("asia")]);
        assert_eq!(counts(&by, Arc::new(values)), [(0, 2), (1, 1), (2, 2)]);
    }

    #[test]
    fn hashing_rows_and_hashing_literals_agree() {
        let by = PartitionBy::Hash { column: "k".into(), partitions: 7 };
        for i in [0, 1, -1, 42, i32::MAX, i32::MIN] {
            let (r, batch) = router(&by, Arc::new(Int32Array::from(vec![i])));
            assert_eq!(u64::from(r.split(&batch).unwrap()[0].0), partition_of(&Value::Key(i.into()), 7));
            let (r, batch) = router(&by, Arc::new(Date32Array::from(vec![i])));
            assert_eq!(u64::from(r.split(&batch).unwrap()[0].0), partition_of(&Value::Key(i.into()), 7));
        }
        let (r, batch) = router(&by, Arc::new(StringViewArray::from(vec!["a rather long text for a key"])));
        let expected = partition_of(&Value::Text("a rather long text for a key".into()), 7);
        assert_eq!(u64::from(r.split(&batch).unwrap()[0].0), expected);
        // Part of the on-disk format: these may never change.
        assert_eq!(hash_text("ASIA") % 1000, hash_text("ASIA") % 1000);
        assert_eq!(mix(1), 0x5692_161d_100b_05e5);
    }
}
