//! Columns that grow by JSON values. Each value is parsed as its column's type, without an
//! intermediate type or tree.
//!
//! Invariant: a column can be truncated to any length that it has had. A duplicate key in an object
//! is read twice, and the column is truncated in between. An incomplete record is truncated as
//! well.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, BooleanBufferBuilder, Date32Array, Decimal128Array, Float64Array, Int64Array, ListArray,
    MapArray, StringArray, StructArray, TimestampMicrosecondArray, TimestampNanosecondArray, UInt32Array,
};
use arrow::buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::compute::take;
use arrow::datatypes::{DataType, Field, Fields, TimeUnit};
use arrow::error::ArrowError;
use jiter::{JiterError, Peek};

use super::declared;
use super::fault::Problem;
use super::kind::{Kind, MOST_DIGITS, element_field, entries_field, struct_fields};
use super::moment::Moment;
use super::parser::{Found, Json, Key};
use super::text;
use crate::pg_types::zone::Zone;
use crate::type_names::sql_name;

/// The form of strings in a column: plain, or JSON with quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Style {
    Plain,
    Json,
}

/// A growing column.
pub(super) struct Column {
    values: Values,
    len: usize,
    /// The places of NULLs.
    nulls: Vec<usize>,
}

enum Values {
    Boolean(BooleanBufferBuilder),
    Integer(Vec<i64>),
    LongInteger(Vec<i128>),
    Double(Vec<f64>),
    Date(Vec<i32>),
    Timestamp {
        units: Vec<i64>,
        unit: TimeUnit,
        has_zone: bool,
    },
    Text {
        texts: Texts,
        style: Style,
    },
    List {
        element: Box<Column>,
        field: Arc<Field>,
        ends: Vec<i32>,
    },
    Struct {
        object: Object,
        fields: Fields,
    },
    Map {
        keys: Texts,
        value: Box<Column>,
        field: Arc<Field>,
        ends: Vec<i32>,
    },
    /// Strings that are converted at the end, with their offsets in the chunk.
    Declared {
        texts: Texts,
        places: Vec<usize>,
        data_type: DataType,
        zone: Zone,
    },
}

/// Concatenated strings.
struct Texts {
    bytes: String,
    ends: Vec<i32>,
}

impl Texts {
    fn new() -> Self {
        Self { bytes: String::new(), ends: vec![0] }
    }

    fn len(&self) -> usize {
        self.ends.len() - 1
    }

    /// Ends a string. A chunk is shorter than the maximum offset.
    fn end(&mut self) {
        self.ends.push(self.bytes.len() as i32);
    }

    /// Rewrites the last string, a number, as an integer if its value is integral: without exponent
    /// and fraction.
    fn make_whole(&mut self) {
        let last = self.len() - 1;
        if self.get(last).bytes().all(|byte| byte.is_ascii_digit() || byte == b'-') {
            return;
        }
        if let Some(whole) = declared::whole_number(self.get(last)) {
            self.truncate(last);
            self.bytes.push_str(&whole.to_string());
            self.end();
        }
    }

    fn truncate(&mut self, len: usize) {
        self.ends.truncate(len + 1);
        self.bytes.truncate(last(&self.ends));
    }

    fn get(&self, at: usize) -> &str {
        &self.bytes[self.ends[at] as usize..self.ends[at + 1] as usize]
    }

    fn finish(self, nulls: Option<NullBuffer>) -> Result<StringArray, ArrowError> {
        if nulls.as_ref().is_some_and(|nulls| nulls.len() != self.len()) {
            return Err(ArrowError::InvalidArgumentError("a column of strings has another number of NULLs".into()));
        }
        let bytes = Buffer::from_vec(self.bytes.into_bytes());
        // SAFETY: the bytes are those of a `String`, and each end is its length after a string.
        // Ends therefore never decrease, and truncation removes bytes and ends together. The check
        // above ensures that the number of NULL bits, if any, equals the number of strings.
        Ok(unsafe { StringArray::new_unchecked(offsets(self.ends), bytes, nulls) })
    }
}

fn last(ends: &[i32]) -> usize {
    ends.last().map_or(0, |end| *end as usize)
}

/// Returns the offsets. Ends only grow: each is a length of the growing data.
fn offsets(ends: Vec<i32>) -> OffsetBuffer<i32> {
    OffsetBuffer::new(ScalarBuffer::from(ends))
}

impl Column {
    pub fn new(kind: &Kind) -> Self {
        let values = match kind {
            Kind::Boolean => Values::Boolean(BooleanBufferBuilder::new(0)),
            Kind::Integer => Values::Integer(Vec::new()),
            Kind::LongInteger => Values::LongInteger(Vec::new()),
            Kind::Double => Values::Double(Vec::new()),
            Kind::Date => Values::Date(Vec::new()),
            Kind::Timestamp { unit, has_zone } => {
                Values::Timestamp { units: Vec::new(), unit: *unit, has_zone: *has_zone }
            }
            Kind::Text => Values::Text { texts: Texts::new(), style: Style::Plain },
            Kind::Json => Values::Text { texts: Texts::new(), style: Style::Json },
            Kind::List(element) => {
                Values::List { element: Box::new(Self::new(element)), field: element_field(element), ends: vec![0] }
            }
            Kind::Struct(fields) => {
                let keys = fields.iter().map(|(name, kind)| (name.clone(), Some(kind.clone())));
                Values::Struct { object: Object::new(keys, Unknown::Refused), fields: struct_fields(fields) }
            }
            Kind::Map(value) => Values::Map {
                keys: Texts::new(),
                value: Box::new(Self::new(value)),
                field: entries_field(value),
                ends: vec![0],
            },
            Kind::Declared(data_type, zone) => {
                let (texts, data_type) = (Texts::new(), data_type.clone());
                Values::Declared { texts, places: Vec::new(), data_type, zone: *zone }
            }
        };
        Self { values, len: 0, nulls: Vec::new() }
    }

    /// Returns the number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Appends a value.
    pub fn push(&mut self, json: &mut Json<'_>, peek: Peek) -> Result<(), Problem> {
        if peek == Peek::Null {
            json.known_null()?;
            self.push_null();
            return Ok(());
        }
        let at = json.current_index();
        match &mut self.values {
            Values::Boolean(values) => match peek {
                Peek::True | Peek::False => values.append(json.known_bool(peek)?),
                _ => return Err(other(json, peek, &Kind::Boolean.data_type())),
            },
            Values::Integer(values) => values.push(integer(json, peek)?),
            Values::LongInteger(values) => values.push(long_integer(json, peek)?),
            Values::Double(values) => values.push(double(json, peek)?),
            Values::Date(values) => {
                let days = moment(json, peek, |moment| moment.days());
                values.push(days?.ok_or_else(|| again(json, at, peek, &DataType::Date32))?);
            }
            Values::Timestamp { units, unit, has_zone } => {
                let (unit, has_zone) = (*unit, *has_zone);
                let value = moment(json, peek, |moment| timestamp(&moment, unit, has_zone));
                let kind = Kind::Timestamp { unit, has_zone };
                units.push(value?.ok_or_else(|| again(json, at, peek, &kind.data_type()))?);
            }
            Values::Text { texts, style } => push_text(json, peek, texts, *style)?,
            Values::List { element, ends, .. } => {
                if peek != Peek::Array {
                    return Err(other_type(json, peek, "a list"));
                }
                let mut next = json.known_array()?;
                while let Some(peek) = next {
                    element.push(json, peek)?;
                    next = json.array_step()?;
                }
                ends.push(element.len() as i32);
            }
            Values::Struct { object, .. } => match peek {
                Peek::Object => object.push(json)?,
                _ => return Err(other_type(json, peek, "a struct")),
            },
            Values::Map { keys, value, ends, .. } => match peek {
                Peek::Object => push_map(json, keys, value, ends)?,
                _ => return Err(other_type(json, peek, "a map")),
            },
            Values::Declared { texts, places, data_type, .. } => {
                push_text(json, peek, texts, Style::Plain)?;
                if peek.is_num() && data_type.is_integer() {
                    texts.make_whole();
                }
                places.push(at);
            }
        }
        self.len += 1;
        Ok(())
    }

    /// Appends a NULL.
    pub fn push_null(&mut self) {
        match &mut self.values {
            Values::Boolean(values) => values.append(false),
            Values::Integer(values) => values.push(0),
            Values::LongInteger(values) => values.push(0),
            Values::Double(values) => values.push(0.0),
            Values::Date(values) => values.push(0),
            Values::Timestamp { units, .. } => units.push(0),
            Values::Text { texts, .. } => texts.end(),
            Values::List { ends, .. } | Values::Map { ends, .. } => ends.push(ends.last().copied().unwrap_or(0)),
            Values::Struct { object, .. } => object.push_null(),
            Values::Declared { texts, places, .. } => {
                texts.end();
                places.push(0);
            }
        }
        self.nulls.push(self.len);
        self.len += 1;
    }

    /// Truncates the column to `len` values.
    pub fn truncate(&mut self, len: usize) {
        match &mut self.values {
            Values::Boolean(values) => values.truncate(len),
            Values::Integer(values) => values.truncate(len),
            Values::LongInteger(values) => values.truncate(len),
            Values::Double(values) => values.truncate(len),
            Values::Date(values) => values.truncate(len),
            Values::Timestamp { units, .. } => units.truncate(len),
            Values::Text { texts, .. } => texts.truncate(len),
            Values::List { element, ends, .. } => {
                ends.truncate(len + 1);
                element.truncate(last(ends));
            }
            Values::Struct { object, .. } => object.truncate(len),
            Values::Map { keys, value, ends, .. } => {
                ends.truncate(len + 1);
                keys.truncate(last(ends));
                value.truncate(last(ends));
            }
            Values::Declared { texts, places, .. } => {
                texts.truncate(len);
                places.truncate(len);
            }
        }
        while self.nulls.pop_if(|at| *at >= len).is_some() {}
        self.len = self.len.min(len);
    }

    /// Returns the array of the values.
    pub fn finish(self) -> Result<ArrayRef, Unfinished> {
        let nulls = (!self.nulls.is_empty()).then(|| {
            let mut valid = BooleanBufferBuilder::new(self.len);
            valid.append_n(self.len, true);
            self.nulls.iter().for_each(|at| valid.set_bit(*at, false));
            NullBuffer::new(valid.finish())
        });
        Ok(match self.values {
            Values::Boolean(mut values) => Arc::new(BooleanArray::new(values.finish(), nulls)),
            Values::Integer(values) => Arc::new(Int64Array::new(values.into(), nulls)),
            Values::LongInteger(values) => {
                Arc::new(Decimal128Array::new(values.into(), nulls).with_precision_and_scale(MOST_DIGITS, 0)?)
            }
            Values::Double(values) => Arc::new(Float64Array::new(values.into(), nulls)),
            Values::Date(values) => Arc::new(Date32Array::new(values.into(), nulls)),
            Values::Timestamp { units, unit, has_zone } => {
                let zone: Option<Arc<str>> = has_zone.then(|| "UTC".into());
                match unit {
                    TimeUnit::Nanosecond => {
                        Arc::new(TimestampNanosecondArray::new(units.into(), nulls).with_timezone_opt(zone))
                    }
                    _ => Arc::new(TimestampMicrosecondArray::new(units.into(), nulls).with_timezone_opt(zone)),
                }
            }
            Values::Text { texts, .. } => Arc::new(texts.finish(nulls)?),
            Values::List { element, field, ends } => {
                Arc::new(ListArray::try_new(field, offsets(ends), element.finish()?, nulls)?)
            }
            Values::Struct { object, fields } => {
                let rows = object.rows;
                let columns = object.finish()?;
                Arc::new(StructArray::try_new_with_length(fields, columns, nulls, rows)?)
            }
            Values::Map { keys, value, field, ends } => {
                let DataType::Struct(fields) = field.data_type() else { return Err(Unfinished::internal()) };
                // As in columns, the last value of a duplicate key is kept.
                let last = last_of_keys(&keys, &ends);
                let mut entries: Vec<ArrayRef> = vec![Arc::new(keys.finish(None)?), value.finish()?];
                let mut ends = ends;
                if let Some((kept, kept_ends)) = last {
                    entries = entries.iter().map(|array| take(array, &kept, None)).collect::<Result<_, _>>()?;
                    ends = kept_ends;
                }
                let entries = StructArray::try_new(fields.clone(), entries, None)?;
                Arc::new(MapArray::try_new(field, offsets(ends), entries, nulls, false)?)
            }
            Values::Declared { texts, places, data_type, zone } => {
                let texts = texts.finish(nulls)?;
                declared::converted(&texts, &data_type, zone).map_err(|row| Unfinished::Value {
                    at: places.get(row).copied().unwrap_or(0),
                    path: Vec::new(),
                    text: texts.value(row).to_string(),
                    type_name: sql_name(&data_type),
                })?
            }
        })
    }
}

/// The reason why a column cannot be finished.
#[derive(Debug)]
pub(super) enum Unfinished {
    /// A string could not be converted.
    Value {
        at: usize,
        path: Vec<String>,
        text: String,
        type_name: String,
    },
    Arrow(ArrowError),
}

impl Unfinished {
    fn internal() -> Self {
        Self::Arrow(ArrowError::InvalidArgumentError("a map's entries are none".into()))
    }
}

impl From<ArrowError> for Unfinished {
    fn from(e: ArrowError) -> Self {
        Self::Arrow(e)
    }
}

/// The treatment of keys without a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unknown {
    Refused,
    Skipped,
}

/// Columns by the keys of objects.
pub(super) struct Object {
    keys: Vec<Key>,
    places: HashMap<String, usize>,
    /// The column of each key; `None` if its values are not wanted.
    columns: Vec<Option<Column>>,
    /// The number of wanted columns.
    wanted: usize,
    unknown: Unknown,
    rows: usize,
}

impl Object {
    /// Creates columns by key. The kind of a key is `None` if its values are not wanted.
    pub fn new(keys: impl IntoIterator<Item = (String, Option<Kind>)>, unknown: Unknown) -> Self {
        let (keys, columns): (Vec<String>, Vec<Option<Column>>) =
            keys.into_iter().map(|(key, kind)| (key, kind.as_ref().map(Column::new))).unzip();
        let places = keys.iter().cloned().enumerate().map(|(at, key)| (key, at)).collect();
        let wanted = columns.iter().flatten().count();
        Self { keys: keys.into_iter().map(Key::new).collect(), places, columns, wanted, unknown, rows: 0 }
    }

    /// Returns the number of objects.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Appends an object.
    pub fn push(&mut self, json: &mut Json<'_>) -> Result<(), Problem> {
        let mut at = json.current_index();
        let (mut expected, mut filled) = (0, 0);
        let mut next = json.known_object(self.keys.first())?;
        while let Some(found) = next {
            let place = match found {
                Found::Expected => Ok(expected),
                Found::Key(key) => self.places.get(key).copied().ok_or_else(|| key.to_string()),
            };
            let peek = json.peek()?;
            match place {
                Ok(place) => {
                    filled += self.push_value(place, json, peek)?;
                    expected = place + 1;
                }
                Err(key) => match self.unknown {
                    Unknown::Skipped => json.known_skip(peek)?,
                    Unknown::Refused => {
                        let before = json.slice_to_current(at).iter().position(|byte| *byte == b'"').unwrap_or(0);
                        return Err(Problem::UnknownKey { at: at + before, path: vec![key] });
                    }
                },
            }
            at = json.current_index();
            next = json.next_key(self.keys.get(expected))?;
        }
        self.rows += 1;
        if filled < self.wanted {
            self.fill_up();
        }
        Ok(())
    }

    /// Appends a NULL object.
    pub fn push_null(&mut self) {
        self.rows += 1;
        self.fill_up();
    }

    /// Appends a value. Returns the number of columns, 0 or 1, that got a value for the first time
    /// in this object.
    fn push_value(&mut self, place: usize, json: &mut Json<'_>, peek: Peek) -> Result<usize, Problem> {
        let Some(column) = self.columns.get_mut(place).and_then(Option::as_mut) else {
            json.known_skip(peek)?;
            return Ok(0);
        };
        let is_again = column.len() > self.rows;
        if is_again {
            // For a duplicate key the last value is kept.
            column.truncate(self.rows);
        }
        column.push(json, peek).map_err(|problem| problem.below(self.keys[place].name()))?;
        Ok(usize::from(!is_again))
    }

    fn fill_up(&mut self) {
        for column in self.columns.iter_mut().flatten().filter(|column| column.len() < self.rows) {
            column.push_null();
        }
    }

    /// Truncates the columns to `rows` objects.
    pub fn truncate(&mut self, rows: usize) {
        self.columns.iter_mut().flatten().for_each(|column| column.truncate(rows));
        self.rows = rows;
    }

    /// Returns the arrays of the wanted columns, in the order of keys.
    pub fn finish(self) -> Result<Vec<ArrayRef>, Unfinished> {
        let columns = self.keys.into_iter().zip(self.columns).filter_map(|(key, column)| Some((key, column?)));
        let finish = |(key, column): (Key, Column)| {
            column.finish().map_err(|e| match e {
                Unfinished::Value { at, mut path, text, type_name } => {
                    path.insert(0, key.into_name());
                    Unfinished::Value { at, path, text, type_name }
                }
                e => e,
            })
        };
        columns.map(finish).collect()
    }
}

fn push_map(json: &mut Json<'_>, keys: &mut Texts, value: &mut Column, ends: &mut Vec<i32>) -> Result<(), Problem> {
    let mut next = json.known_object(None)?;
    while let Some(key) = next {
        if let Found::Key(key) = key {
            keys.bytes.push_str(key);
            keys.end();
        }
        let peek = json.peek()?;
        value.push(json, peek)?;
        next = json.next_key(None)?;
    }
    ends.push(keys.len() as i32);
    Ok(())
}

/// Appends a value as a string.
fn push_text(json: &mut Json<'_>, peek: Peek, texts: &mut Texts, style: Style) -> Result<(), Problem> {
    match (peek, style) {
        (Peek::String, Style::Plain) => texts.bytes.push_str(json.known_str()?),
        _ => text::write(json, peek, &mut texts.bytes, 0)?,
    }
    texts.end();
    Ok(())
}

fn moment<T>(json: &mut Json<'_>, peek: Peek, read: impl Fn(Moment) -> Option<T>) -> Result<Option<T>, Problem> {
    match peek {
        Peek::String => Ok(Moment::parse(json.known_str()?).and_then(read)),
        _ => Ok(None),
    }
}

/// Returns a timestamp in units since 1970. Returns `None` unless it has an offset from UTC exactly
/// if its column has a zone.
fn timestamp(moment: &Moment, unit: TimeUnit, has_zone: bool) -> Option<i64> {
    let says_zone = matches!(moment, Moment::Timestamp { offset_seconds: Some(_), .. });
    moment.units(unit).filter(|_| says_zone == has_zone)
}

fn integer(json: &mut Json<'_>, peek: Peek) -> Result<i64, Problem> {
    let at = json.current_index();
    match json.known_int(peek) {
        Ok(value) => Ok(value),
        Err(e) => {
            let value = whole(json, at, peek, e, &DataType::Int64)?;
            i64::try_from(value).map_err(|_| again(json, at, peek, &DataType::Int64))
        }
    }
}

fn long_integer(json: &mut Json<'_>, peek: Peek) -> Result<i128, Problem> {
    let at = json.current_index();
    match json.known_int(peek) {
        Ok(value) => Ok(value.into()),
        Err(e) => whole(json, at, peek, e, &Kind::LongInteger.data_type()),
    }
}

/// Parses a number that the parser does not read as a 64-bit integer. It may be longer, or have a
/// fraction of zeros.
fn whole(json: &mut Json<'_>, at: usize, peek: Peek, e: JiterError, data_type: &DataType) -> Result<i128, Problem> {
    if !peek.is_num() {
        return Err(if is_value(peek) { other(json, peek, data_type) } else { e.into() });
    }
    let value = declared::whole_number(json.known_number(peek)?);
    value.ok_or_else(|| again(json, at, peek, data_type))
}

fn double(json: &mut Json<'_>, peek: Peek) -> Result<f64, Problem> {
    let at = json.current_index();
    if !peek.is_num() {
        return match is_value(peek) {
            true => Err(other(json, peek, &DataType::Float64)),
            false => Ok(json.known_float(peek)?),
        };
    }
    let value = json.known_float(peek)?;
    // A number that is too large is not an infinity.
    let is_written = value.is_finite() || json.slice_to_current(at).iter().any(|byte| matches!(byte, b'I' | b'N'));
    if is_written { Ok(value) } else { Err(again(json, at, peek, &DataType::Float64)) }
}

fn is_value(peek: Peek) -> bool {
    matches!(peek, Peek::True | Peek::False | Peek::String | Peek::Array | Peek::Object)
}

/// Reads a value of another type, and returns its problem.
fn other(json: &mut Json<'_>, peek: Peek, data_type: &DataType) -> Problem {
    other_type(json, peek, &sql_name(data_type))
}

pub(super) fn other_type(json: &mut Json<'_>, peek: Peek, type_name: &str) -> Problem {
    let at = json.current_index();
    let mut text = String::new();
    match text::write(json, peek, &mut text, 0) {
        Ok(()) => Problem::Value { at, path: Vec::new(), text, type_name: type_name.into() },
        Err(problem) => problem,
    }
}

/// Returns the problem of a value that has been read from `at`.
fn again(json: &mut Json<'_>, at: usize, peek: Peek, data_type: &DataType) -> Problem {
    let read = json.slice_to_current(at);
    if read.is_empty() {
        return other(json, peek, data_type);
    }
    let text = String::from_utf8_lossy(read).into_owned();
    Problem::Value { at, path: Vec::new(), text, type_name: sql_name(data_type) }
}

/// Returns the entries of maps without those whose key occurs again later in the same map, and the
/// resulting ends of the maps; `None` if all entries stay.
fn last_of_keys(keys: &Texts, ends: &[i32]) -> Option<(UInt32Array, Vec<i32>)> {
    let (mut kept, mut kept_ends) = (Vec::with_capacity(keys.len()), vec![0]);
    for map in ends.windows(2) {
        let entries = map[0] as usize..map[1] as usize;
        let last: HashMap<&str, usize> = entries.clone().map(|at| (keys.get(at), at)).collect();
        kept.extend(entries.filter(|at| last.get(keys.get(*at)) == Some(at)).map(|at| at as u32));
        kept_ends.push(kept.len() as i32);
    }
    (kept.len() < keys.len()).then(|| (kept.into(), kept_ends))
}
