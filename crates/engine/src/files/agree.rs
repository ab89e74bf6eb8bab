//! One schema for several files, or an error that names the file that differs.
//!
//! Files of one pattern are meant to be pieces of one table. Where they are not, filling up with NULL would make rows
//! that no file has. So:
//!
//! 1. Every file has the columns of the first. Columns are found by name; those of Arrow files are read by position, and
//!    have to be in the same order. Keys of JSON objects may be missing, in a file as in an object, as long as the files
//!    have one in common. With `union_by_name` any file may lack any column.
//! 2. A column has one type. Guessed types, a type and NULL alone, and integers and text of different widths, become a
//!    type that holds both; everything else is an error.
//!
//! Invariant: the time is linear in columns.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Fields, Schema, SchemaRef, TimeUnit};

use super::{Format, Union};
use crate::catalog::names::sql_name;
use crate::{Error, ErrorKind, Result};

const HINT: &str = "files of different tables cannot be read as one: name them one by one, or join their queries with \
                    UNION ALL BY NAME";
/// Where columns that are missing can be NULL.
const UNION_HINT: &str = "read_csv and read_parquet with union_by_name = true read columns that are missing as NULL";

/// The schema that all files have; `files` are their names and their own.
pub(super) fn agree(files: &[(String, SchemaRef)], format: Format, union: Union) -> Result<SchemaRef> {
    let Some(((first, schema), others)) = files.split_first() else {
        return Err(Error::new(ErrorKind::Internal, "no files to agree on columns"));
    };
    let mut fields: Vec<FieldRef> = schema.fields().iter().cloned().collect();
    let mut places: HashMap<String, usize> =
        fields.iter().enumerate().map(|(place, field)| (field.name().clone(), place)).collect();
    for (name, schema) in others {
        if union == Union::Same {
            same_columns(first, &fields, name, schema, format)?;
        }
        for field in schema.fields() {
            match places.get(field.name()).and_then(|place| fields.get_mut(*place)) {
                Some(known) => {
                    let joined = join(known, field, format).ok_or_else(|| {
                        let (a, b) = (sql_name(known.data_type()), sql_name(field.data_type()));
                        let message = format!("column \"{}\" is {a} in '{first}', and {b} in '{name}'", known.name());
                        Error::new(ErrorKind::Data, message).with_hint(HINT)
                    })?;
                    *known = Arc::new(joined);
                }
                None => {
                    places.insert(field.name().clone(), fields.len());
                    fields.push(Arc::clone(field));
                }
            }
        }
    }
    Ok(Arc::new(Schema::new_with_metadata(fields.into_iter().collect::<Fields>(), schema.metadata().clone())))
}

/// Refuses a file that has other columns than those before it.
pub(super) fn same_columns(
    first: &str,
    fields: &[FieldRef],
    name: &str,
    schema: &Schema,
    format: Format,
) -> Result<()> {
    let names: Vec<&str> = fields.iter().map(|field| field.name().as_str()).collect();
    let theirs: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
    let (known, found): (HashSet<&str>, HashSet<&str>) =
        (names.iter().copied().collect(), theirs.iter().copied().collect());
    let missing: Vec<&str> = names.iter().copied().filter(|column| !found.contains(column)).collect();
    let added: Vec<&str> = theirs.iter().copied().filter(|column| !known.contains(column)).collect();
    let differ = |what: String, hint| Err(Error::new(ErrorKind::Data, what).with_hint(hint));
    match format {
        Format::Json if missing.len() < names.len() => Ok(()),
        _ if missing.is_empty() && added.is_empty() => match format {
            Format::Arrow if names != theirs => differ(
                format!(
                    "'{name}' has its columns in another order than '{first}': {}, and not {}",
                    list(&theirs),
                    list(&names)
                ),
                HINT,
            ),
            _ => Ok(()),
        },
        _ => {
            let hint = if matches!(format, Format::Csv | Format::Parquet) { UNION_HINT } else { HINT };
            let parts = [("lacks", missing), ("has also", added)];
            let parts = parts.iter().filter(|(_, columns)| !columns.is_empty());
            let parts: Vec<String> = parts.map(|(verb, columns)| format!("{verb} {}", list(columns))).collect();
            differ(format!("'{name}' has other columns than '{first}': it {}", parts.join(", and ")), hint)
        }
    }
}

fn list(columns: &[&str]) -> String {
    let shown: Vec<&str> = columns.iter().copied().take(8).collect();
    let more = if columns.len() > shown.len() { ", ..." } else { "" };
    format!("{}{more}", shown.join(", "))
}

/// A column that holds the values of both.
fn join(a: &Field, b: &Field, format: Format) -> Option<Field> {
    let field = a.clone().with_nullable(a.is_nullable() || b.is_nullable());
    if a.data_type() == b.data_type() {
        return Some(field);
    }
    let data_type = match format {
        Format::Arrow => None,
        Format::Parquet => stored(a.data_type(), b.data_type()),
        Format::Csv => Some(guessed(a.data_type(), b.data_type()).unwrap_or(DataType::Utf8)),
        Format::Json => guessed(a.data_type(), b.data_type()).or_else(|| {
            let mut merged = a.clone();
            merged.try_merge(b).ok().map(|()| merged.data_type().clone())
        }),
    };
    Some(field.with_data_type(data_type?))
}

/// Types of files that say their types.
fn stored(a: &DataType, b: &DataType) -> Option<DataType> {
    use DataType::{Float32, Float64, LargeUtf8, Utf8, Utf8View};
    let is_text = |kind: &DataType| matches!(kind, Utf8 | LargeUtf8 | Utf8View);
    match (a, b) {
        (DataType::Null, other) | (other, DataType::Null) => Some(other.clone()),
        (a, b) if is_text(a) && is_text(b) => Some(Utf8View),
        (Float32, Float64) | (Float64, Float32) => Some(Float64),
        (a, b) if a.is_signed_integer() && b.is_signed_integer() => wider(a, b),
        (a, b) if a.is_unsigned_integer() && b.is_unsigned_integer() => wider(a, b),
        (DataType::Timestamp(x, p), DataType::Timestamp(y, q)) if p == q => {
            Some(DataType::Timestamp(*finer(x, y), p.clone()))
        }
        _ => None,
    }
}

fn wider(a: &DataType, b: &DataType) -> Option<DataType> {
    Some(if a.primitive_width()? >= b.primitive_width()? { a.clone() } else { b.clone() })
}

fn finer<'a>(a: &'a TimeUnit, b: &'a TimeUnit) -> &'a TimeUnit {
    a.max(b)
}

/// Types that one file's first rows suggest, and another's.
fn guessed(a: &DataType, b: &DataType) -> Option<DataType> {
    use DataType::{Date32, Decimal128, Float64, Int64, Null, Timestamp};
    match (a, b) {
        (Null, other) | (other, Null) => Some(other.clone()),
        (Int64 | Decimal128(_, 0), Float64) | (Float64, Int64 | Decimal128(_, 0)) => Some(Float64),
        (Int64, huge @ Decimal128(_, 0)) | (huge @ Decimal128(_, 0), Int64) => Some(huge.clone()),
        (Timestamp(x, p), Timestamp(y, q)) if p == q => Some(Timestamp(*finer(x, y), p.clone())),
        (Date32, time @ Timestamp(_, None)) | (time @ Timestamp(_, None), Date32) => Some(time.clone()),
        _ => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn file(name: &str, columns: &[(&str, DataType)]) -> (String, SchemaRef) {
        let fields = columns.iter().map(|(name, kind)| Field::new(*name, kind.clone(), true)).collect::<Fields>();
        (name.to_string(), Arc::new(Schema::new(fields)))
    }

    #[test]
    fn pieces_of_one_table_agree_and_others_do_not() {
        use DataType::{Boolean, Float64, Int32, Int64, Utf8};
        let a = file("a", &[("x", Int64), ("y", Utf8)]);
        let types = |files: &[(String, SchemaRef)], format| {
            agree(files, format, Union::Same)
                .map(|schema| schema.fields().iter().map(|f| f.data_type().clone()).collect::<Vec<_>>())
        };
        let swapped = file("b", &[("y", Utf8), ("x", Int64)]);
        assert_eq!(types(&[a.clone(), swapped.clone()], Format::Parquet).unwrap(), [Int64, Utf8]);
        assert_eq!(types(&[a.clone(), swapped.clone()], Format::Csv).unwrap(), [Int64, Utf8]);
        let e = agree(&[a.clone(), swapped.clone()], Format::Arrow, Union::Same).unwrap_err();
        assert!(e.message().contains("another order"), "{e}");
        let other = file("b", &[("x", Int64), ("z", Utf8)]);
        for format in [Format::Csv, Format::Arrow, Format::Parquet] {
            let e = agree(&[a.clone(), other.clone()], format, Union::Same).unwrap_err();
            assert!(e.message().contains("'b' has other columns than 'a': it lacks y, and has also z"), "{e}");
        }
        assert_eq!(types(&[a.clone(), other], Format::Json).unwrap(), [Int64, Utf8, Utf8]);
        assert!(agree(&[a.clone(), file("b", &[("z", Utf8)])], Format::Json, Union::Same).is_err());

        let wider = [file("a", &[("x", Int32), ("y", Utf8)]), a.clone()];
        assert_eq!(types(&wider, Format::Parquet).unwrap(), [Int64, Utf8]);
        assert!(agree(&wider, Format::Arrow, Union::Same).is_err());
        let union = agree(&[a.clone(), file("b", &[("z", Utf8)])], Format::Parquet, Union::ByName).unwrap();
        assert_eq!(union.fields().len(), 3);
        let e =
            agree(&[a.clone(), file("b", &[("x", Boolean), ("y", Utf8)])], Format::Parquet, Union::Same).unwrap_err();
        assert!(e.message().contains("column \"x\" is BIGINT in 'a', and BOOLEAN in 'b'"), "{e}");
        assert_eq!(
            types(&[a.clone(), file("b", &[("x", Float64), ("y", Utf8)])], Format::Csv).unwrap(),
            [Float64, Utf8]
        );
        assert_eq!(types(&[a, file("b", &[("x", Boolean), ("y", Utf8)])], Format::Csv).unwrap(), [Utf8, Utf8]);
    }
}
