//! One schema for several files, or an error that names the file that differs.
//!
//! Files of one pattern are meant to be pieces of one table. If they are not, filling up with NULL
//! would make rows that no file has. The rules are:
//!
//! 1. Every file has the columns of the first. Columns are found by name, in another case if no
//!    column has exactly the name ([`places`]). The first spelling is the table's, as in DuckDB.
//!    Columns of Arrow files are read by position, and must be in the same order. Keys of JSON
//!    objects are case-sensitive, as in DuckDB. They may be missing, in a file as in an object, if
//!    the files have one in common. With `union_by_name` any file may lack any column.
//! 2. A column has one type. These pairs are joined to a type that holds both: guessed types; a
//!    type and NULL alone; integers of different widths; string types; timestamps of different
//!    zones; structs with the same names. Everything else is an error.
//! 3. Types of text files are guessed. The field of a timestamp column says whether its values fit
//!    nanoseconds ([`FITS_NANOSECONDS`]). If they do not, and another file has nanoseconds, the
//!    joined column is a string.
//!
//! Invariant: the time is linear in columns.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arrow::datatypes::{DECIMAL128_MAX_PRECISION, DataType, Field, FieldRef, Fields, Schema, SchemaRef, TimeUnit};

use super::{Format, Union};
use crate::type_names::sql_name;
use crate::{Error, ErrorKind, Result};

const HINT: &str = "files of different tables cannot be read as one: name them one by one, or join their queries with \
                    UNION ALL BY NAME";
/// The hint for formats in which missing columns can be NULL.
const UNION_HINT: &str = "read_csv and read_parquet with union_by_name = true read columns that are missing as NULL";

/// A metadata key of a text file's field. It says that all values are within the range of
/// nanoseconds since 1970, in the years 1678 to 2261.
pub(super) const FITS_NANOSECONDS: &str = "onehop.fits_nanoseconds";

/// Returns the common schema of all files. `files` are their names and schemas.
pub(super) fn agree(files: &[(String, SchemaRef)], format: Format, union: Union) -> Result<SchemaRef> {
    let Some(((first, schema), others)) = files.split_first() else {
        return Err(Error::new(ErrorKind::Internal, "no files to agree on columns"));
    };
    let names = names(files, format, union)?;
    let mut fields: Vec<Option<FieldRef>> = vec![None; names.len()];
    for (at, field) in places(&names, &names_of(schema), format).into_iter().enumerate() {
        fields[at] = field.and_then(|place| schema.fields().get(place)).cloned();
    }
    for (name, schema) in others {
        for (known, place) in fields.iter_mut().zip(places(&names, &names_of(schema), format)) {
            let Some(field) = place.and_then(|place| schema.fields().get(place)) else { continue };
            *known = Some(match known {
                None => Arc::clone(field),
                Some(known) => Arc::new(join(known, field, format).ok_or_else(|| {
                    let (a, b) = (sql_name(known.data_type()), sql_name(field.data_type()));
                    let message = format!("column \"{}\" is {a} in '{first}', and {b} in '{name}'", known.name());
                    Error::new(ErrorKind::Data, message).with_hint(HINT)
                })?),
            });
        }
    }
    let named = |(field, name): (FieldRef, String)| {
        let mut metadata = field.metadata().clone();
        metadata.remove(FITS_NANOSECONDS);
        field.as_ref().clone().with_name(name).with_metadata(metadata)
    };
    let fields = fields.into_iter().flatten().zip(names).map(named).collect::<Fields>();
    Ok(Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone())))
}

/// Returns the names of all columns of the files, in the order of their first occurrence.
fn names(files: &[(String, SchemaRef)], format: Format, union: Union) -> Result<Vec<String>> {
    let Some(((first, schema), others)) = files.split_first() else { return Ok(Vec::new()) };
    let mut known: Vec<FieldRef> = schema.fields().iter().cloned().collect();
    let mut names: Vec<String> = known.iter().map(|field| field.name().clone()).collect();
    for (name, theirs) in others {
        if union == Union::Same {
            same_columns(first, &known, name, theirs, format)?;
        }
        let found: HashSet<usize> = places(&names, &names_of(theirs), format).into_iter().flatten().collect();
        for (_, field) in theirs.fields().iter().enumerate().filter(|(place, _)| !found.contains(place)) {
            known.push(Arc::clone(field));
            names.push(field.name().clone());
        }
    }
    Ok(names)
}

/// Returns the place in a file of each of a table's columns. The file has the column's name, or one
/// that differs in case and is no other column's own.
pub(super) fn places(names: &[impl AsRef<str>], own: &[&str], format: Format) -> Vec<Option<usize>> {
    let exact: HashMap<&str, usize> = names.iter().enumerate().map(|(at, name)| (name.as_ref(), at)).collect();
    let mut folded: HashMap<String, usize> = HashMap::with_capacity(names.len());
    for (at, name) in names.iter().enumerate().filter(|_| format != Format::Json) {
        folded.entry(name.as_ref().to_lowercase()).or_insert(at);
    }
    let (mut places, mut respelled) = (vec![None; names.len()], Vec::new());
    for (place, name) in own.iter().enumerate() {
        match exact.get(name) {
            Some(at) => places[*at] = Some(place),
            None => respelled.extend(folded.get(&name.to_lowercase()).map(|at| (*at, place))),
        }
    }
    for (at, place) in respelled {
        places[at].get_or_insert(place);
    }
    places
}

/// Returns the names of a schema's columns.
pub(super) fn names_of(schema: &Schema) -> Vec<&str> {
    schema.fields().iter().map(|field| field.name().as_str()).collect()
}

/// The differences between a Parquet file's columns and those of its table.
#[derive(Default)]
pub(super) struct Deviations {
    /// True if the file spells the name of a column differently.
    pub(super) respelled: bool,
    /// The places in the table of the timestamps for which the file has another unit.
    pub(super) units: Vec<usize>,
}

impl Deviations {
    pub(super) fn of(table: &Schema, file: &Schema) -> Self {
        let mut found = Self::default();
        let places = places(&names_of(table), &names_of(file), Format::Parquet);
        for (at, (column, place)) in table.fields().iter().zip(places).enumerate() {
            let Some(own) = place.and_then(|place| file.fields().get(place)) else { continue };
            found.respelled |= own.name() != column.name();
            if let (DataType::Timestamp(unit, _), DataType::Timestamp(other, _)) = (column.data_type(), own.data_type())
                && unit != other
            {
                found.units.push(at);
            }
        }
        found
    }
}

/// Refuses a file whose columns differ from those before it.
pub(super) fn same_columns(
    first: &str,
    fields: &[FieldRef],
    name: &str,
    schema: &Schema,
    format: Format,
) -> Result<()> {
    let names: Vec<&str> = fields.iter().map(|field| field.name().as_str()).collect();
    let theirs = names_of(schema);
    let places = places(&names, &theirs, format);
    let found: HashSet<usize> = places.iter().flatten().copied().collect();
    let missing: Vec<&str> =
        names.iter().zip(&places).filter(|(_, place)| place.is_none()).map(|(name, _)| *name).collect();
    let added: Vec<&str> =
        theirs.iter().enumerate().filter(|(place, _)| !found.contains(place)).map(|(_, name)| *name).collect();
    let is_in_order = places.iter().flatten().is_sorted();
    let differ = |what: String, hint| Err(Error::new(ErrorKind::Data, what).with_hint(hint));
    match format {
        Format::Json if missing.len() < names.len() => Ok(()),
        _ if missing.is_empty() && added.is_empty() => match format {
            Format::Arrow if !is_in_order => differ(
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

/// Returns a column that holds the values of both; `None` if there is none.
fn join(a: &Field, b: &Field, format: Format) -> Option<Field> {
    let field = a.clone().with_nullable(a.is_nullable() || b.is_nullable());
    if a.data_type() == b.data_type() && format != Format::Csv {
        return Some(field);
    }
    let data_type = match format {
        Format::Arrow => None,
        Format::Parquet => stored(a.data_type(), b.data_type()),
        Format::Csv => return Some(guessed_of_text(a, b)),
        Format::Json => guessed(a.data_type(), b.data_type()).or_else(|| {
            let mut merged = a.clone();
            merged.try_merge(b).ok().map(|()| merged.data_type().clone())
        }),
    };
    Some(field.with_data_type(data_type?))
}

/// Joins types of files that declare their types.
fn stored(a: &DataType, b: &DataType) -> Option<DataType> {
    use DataType::{Float32, Float64, LargeUtf8, Utf8, Utf8View};
    let is_text = |kind: &DataType| matches!(kind, Utf8 | LargeUtf8 | Utf8View);
    match (a, b) {
        (DataType::Null, other) | (other, DataType::Null) => Some(other.clone()),
        (a, b) if is_text(a) && is_text(b) => Some(Utf8View),
        (DataType::Dictionary(_, a), b) | (b, DataType::Dictionary(_, a)) => stored_or_same(a, b),
        (Float32, Float64) | (Float64, Float32) => Some(Float64),
        (DataType::Decimal128(p, s), DataType::Decimal128(q, t)) => {
            let scale = (*s).max(*t);
            let whole = (i16::from(*p) - i16::from(*s)).max(i16::from(*q) - i16::from(*t));
            let precision = u8::try_from(whole + i16::from(scale)).ok()?;
            (precision <= DECIMAL128_MAX_PRECISION).then_some(DataType::Decimal128(precision, scale))
        }
        (a, b) if a.is_signed_integer() && b.is_signed_integer() => wider(a, b),
        (a, b) if a.is_unsigned_integer() && b.is_unsigned_integer() => wider(a, b),
        (DataType::Timestamp(x, p), DataType::Timestamp(y, q)) if p.is_some() == q.is_some() => {
            // A zone of a file determines the display of its moments, not the moments.
            let zone = if p == q { p.clone() } else { Some("UTC".into()) };
            Some(DataType::Timestamp(*finer(x, y), zone))
        }
        (DataType::Struct(a), DataType::Struct(b)) => structs(a, b).map(DataType::Struct),
        (DataType::List(a), DataType::List(b)) => items(a, b).map(DataType::List),
        (DataType::LargeList(a), DataType::LargeList(b)) => items(a, b).map(DataType::LargeList),
        _ => None,
    }
}

/// Returns the common type, or one that holds values of both.
fn stored_or_same(a: &DataType, b: &DataType) -> Option<DataType> {
    if a == b { Some(a.clone()) } else { stored(a, b) }
}

/// Joins structs whose fields have the same names, in any order: they are read by name.
fn structs(a: &Fields, b: &Fields) -> Option<Fields> {
    let names: HashSet<&str> = a.iter().map(|field| field.name().as_str()).collect();
    if a.len() != b.len() || names.len() != a.len() {
        return None;
    }
    let joined = a.iter().map(|field| {
        let other = b.find(field.name())?.1;
        items(field, other)
    });
    joined.collect()
}

/// Joins fields within another field.
fn items(a: &FieldRef, b: &FieldRef) -> Option<FieldRef> {
    let data_type = stored_or_same(a.data_type(), b.data_type())?;
    Some(Arc::new(a.as_ref().clone().with_data_type(data_type).with_nullable(a.is_nullable() || b.is_nullable())))
}

fn wider(a: &DataType, b: &DataType) -> Option<DataType> {
    Some(if a.primitive_width()? >= b.primitive_width()? { a.clone() } else { b.clone() })
}

fn finer<'a>(a: &'a TimeUnit, b: &'a TimeUnit) -> &'a TimeUnit {
    a.max(b)
}

/// Joins types that were guessed from the first rows of two files.
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

/// Returns a column of text files that holds the values of both.
fn guessed_of_text(a: &Field, b: &Field) -> Field {
    let fits = |field: &Field| match field.data_type() {
        DataType::Null | DataType::Timestamp(TimeUnit::Nanosecond, _) => true,
        _ => field.metadata().contains_key(FITS_NANOSECONDS),
    };
    let joined = match a.data_type() == b.data_type() {
        true => a.data_type().clone(),
        false => guessed(a.data_type(), b.data_type()).unwrap_or(DataType::Utf8),
    };
    let fits_both = fits(a) && fits(b);
    let is_beyond = matches!(joined, DataType::Timestamp(TimeUnit::Nanosecond, _)) && !fits_both;
    let mut metadata = a.metadata().clone();
    metadata.remove(FITS_NANOSECONDS);
    if fits_both {
        metadata.insert(FITS_NANOSECONDS.into(), String::new());
    }
    let joined = if is_beyond { DataType::Utf8 } else { joined };
    Field::new(a.name(), joined, a.is_nullable() || b.is_nullable()).with_metadata(metadata)
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
        for (a, b, both) in [
            (DataType::Dictionary(Box::new(Int32), Box::new(Utf8)), Utf8, Utf8),
            (
                DataType::Dictionary(Box::new(DataType::Int8), Box::new(Int32)),
                DataType::Dictionary(Box::new(Int32), Box::new(Int64)),
                Int64,
            ),
            (DataType::Decimal128(5, 2), DataType::Decimal128(9, 2), DataType::Decimal128(9, 2)),
            (DataType::Decimal128(5, 2), DataType::Decimal128(4, 3), DataType::Decimal128(6, 3)),
        ] {
            assert_eq!(stored(&a, &b), Some(both.clone()), "{a} {b}");
            assert_eq!(stored(&b, &a), Some(both), "{b} {a}");
        }
        assert_eq!(stored(&DataType::Decimal128(38, 0), &DataType::Decimal128(38, 2)), None);
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

    #[test]
    fn a_name_in_other_letters_is_the_same_column_where_no_column_has_it_exactly() {
        use DataType::{Int32, Int64};
        let of = |names: &[&str]| {
            let columns: Vec<(&str, DataType)> = names.iter().map(|name| (*name, Int64)).collect();
            file(&names.concat(), &columns)
        };
        let union = |files: &[&[&str]], format| {
            let files: Vec<(String, SchemaRef)> = files.iter().map(|names| of(names)).collect();
            let schema = agree(&files, format, Union::ByName).unwrap();
            schema.fields().iter().map(|field| field.name().clone()).collect::<Vec<_>>()
        };
        for format in [Format::Csv, Format::Parquet] {
            assert_eq!(union(&[&["Id", "x"], &["X", "id"], &["y"]], format), ["Id", "x", "y"]);
            assert_eq!(union(&[&["Id"], &["id", "ID"]], format), ["Id", "ID"]);
            assert_eq!(union(&[&["Id", "id"], &["ID"]], format), ["Id", "id"]);
            assert_eq!(union(&[&["\u{c4}"], &["\u{e4}"]], format), ["\u{c4}"]);
            let e = agree(&[of(&["id", "ID"]), of(&["id"])], format, Union::Same).unwrap_err();
            assert!(e.message().contains("it lacks ID"), "{e}");
        }
        assert_eq!(union(&[&["Id"], &["id"]], Format::Json), ["Id", "id"]);
        let same = agree(&[file("a", &[("A", Int32)]), of(&["a"])], Format::Parquet, Union::Same).unwrap();
        assert_eq!((same.field(0).name().as_str(), same.field(0).data_type()), ("A", &Int64));
        assert!(agree(&[of(&["A", "b"]), of(&["a", "B"])], Format::Arrow, Union::Same).is_ok());
        // Every column of every file has a place.
        let table = Schema::new(vec![Field::new("Id", Int64, true), Field::new("ID", Int64, true)]);
        let names = ["Id", "ID"];
        for (own, expected, respelled) in [
            (["ID", "Id"], [Some(1), Some(0)], false),
            (["ID", "id"], [Some(1), Some(0)], true),
            (["id", "x"], [Some(0), None], true),
        ] {
            assert_eq!(places(&names, &own, Format::Parquet), expected, "{own:?}");
            let (_, own) = of(&own);
            assert_eq!(Deviations::of(&table, &own).respelled, respelled, "{own:?}");
        }
    }

    #[test]
    fn moments_and_structs_are_one_whatever_their_zones_and_orders() {
        use DataType::{Date32, Int32, Int64, Utf8};
        let moment = |zone: Option<&str>| DataType::Timestamp(TimeUnit::Microsecond, zone.map(Into::into));
        let of = |fields: &[(&str, DataType)]| {
            let fields = fields.iter().map(|(name, kind)| Field::new(*name, kind.clone(), true));
            DataType::Struct(fields.collect())
        };
        let list = |name: &str, item| DataType::List(Arc::new(Field::new(name, item, true)));
        let joined = |a: DataType, b: DataType| {
            let schema = agree(&[file("a", &[("x", a)]), file("b", &[("x", b)])], Format::Parquet, Union::Same)?;
            Ok::<DataType, Error>(schema.field(0).data_type().clone())
        };
        assert_eq!(joined(moment(Some("Europe/Berlin")), moment(Some("UTC"))).unwrap(), moment(Some("UTC")));
        assert_eq!(joined(moment(Some("Asia/Tokyo")), moment(Some("Asia/Tokyo"))).unwrap(), moment(Some("Asia/Tokyo")));
        assert!(joined(moment(Some("UTC")), moment(None)).is_err());
        let (xy, yx) = (of(&[("x", Int32), ("y", Utf8)]), of(&[("y", Utf8), ("x", Int64)]));
        assert_eq!(joined(xy.clone(), yx.clone()).unwrap(), of(&[("x", Int64), ("y", Utf8)]));
        assert_eq!(
            joined(list("item", xy.clone()), list("element", yx)).unwrap(),
            list("item", of(&[("x", Int64), ("y", Utf8)]))
        );
        let e = joined(xy, of(&[("x", Int32), ("z", Utf8)])).unwrap_err();
        assert!(
            e.message().contains("is STRUCT(x INTEGER, y VARCHAR) in 'a', and STRUCT(x INTEGER, z VARCHAR) in 'b'"),
            "{e}"
        );
        let e = joined(list("element", Int64), list("element", Date32)).unwrap_err();
        assert!(e.message().contains("is BIGINT[] in 'a', and DATE[] in 'b'"), "{e}");
    }

    #[test]
    fn nanoseconds_beside_years_that_they_do_not_reach_are_text() {
        let nanos = DataType::Timestamp(TimeUnit::Nanosecond, None);
        let micros = DataType::Timestamp(TimeUnit::Microsecond, None);
        let of = |kind: &DataType, fits: bool| {
            let metadata =
                if fits { HashMap::from([(FITS_NANOSECONDS.to_string(), String::new())]) } else { HashMap::new() };
            let field = Field::new("t", kind.clone(), true).with_metadata(metadata);
            (format!("{kind}{fits}"), Arc::new(Schema::new(vec![field])) as SchemaRef)
        };
        let joined = |files: &[(String, SchemaRef)]| {
            let schema = agree(files, Format::Csv, Union::Same).unwrap();
            assert!(schema.field(0).metadata().is_empty());
            schema.field(0).data_type().clone()
        };
        let (near, far, fine) = (of(&micros, true), of(&micros, false), of(&nanos, true));
        let (day, far_day, none) =
            (of(&DataType::Date32, true), of(&DataType::Date32, false), of(&DataType::Null, false));
        assert_eq!(joined(&[fine.clone(), far.clone()]), DataType::Utf8);
        assert_eq!(joined(&[far.clone(), near.clone(), fine.clone()]), DataType::Utf8);
        assert_eq!(joined(&[near.clone(), none.clone(), near.clone(), fine.clone()]), nanos);
        assert_eq!(joined(&[fine.clone(), day]), nanos);
        assert_eq!(joined(&[far_day.clone(), fine]), DataType::Utf8);
        assert_eq!(joined(&[near, far_day]), micros);
        assert_eq!(joined(&[none, far]), micros);
    }
}
