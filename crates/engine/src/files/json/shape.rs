//! Inference of the types of a file's values from its first records.
//!
//! 1. A [`Shape`] accumulates the values at a place of a document. It never forgets, and merges
//!    with that of other records.
//! 2. [`Shape::kind`] is the narrowest type that holds all of them without loss. Integers are
//!    BIGINT, then DECIMAL(38,0), then their text. With fractions among them they are DOUBLE.
//!    Strings that are all dates or timestamps have that type. Values of several types are JSON
//!    text. Arrays are lists. Objects are structs, in the order of the first occurrence of keys.
//! 3. Objects whose keys are values rather than names are maps. These are objects without any key,
//!    objects most of which lack most keys, and objects of many keys with values of one type.

use std::collections::HashMap;

use arrow::datatypes::TimeUnit;
use jiter::Peek;

use super::fault::Problem;
use super::kind::{Kind, MOST_DIGITS};
use super::moment::Moment;
use super::parser::{Found, Json, Key};
use super::walk::Records;

/// The maximum nesting depth of types. Deeper values are JSON text.
const MAX_TYPE_DEPTH: usize = 32;
/// The maximum nesting depth of arrays and objects.
pub(super) const MAX_DEPTH: usize = 200;
/// The average share of objects that have a key, below which keys are values.
const LEAST_SHARE: f64 = 0.1;
/// The number of keys with values of one type from which keys are values.
const MANY_KEYS: usize = 200;

/// A summary of the values at a place.
#[derive(Clone, Debug, Default)]
pub(super) struct Shape {
    /// The number of values, including NULL.
    values: u64,
    nulls: u64,
    booleans: bool,
    numbers: Numbers,
    strings: Strings,
    list: Option<Box<Shape>>,
    object: Option<Box<Keys>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Numbers {
    are_there: bool,
    has_fraction: bool,
    is_beyond_bigint: bool,
    is_beyond_decimal: bool,
    is_beyond_double: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Strings {
    are_there: bool,
    has_text: bool,
    has_date: bool,
    has_local: bool,
    has_moment: bool,
    has_nanos: bool,
    /// True if a year is beyond the range of nanoseconds since 1970.
    is_beyond_nanos: bool,
}

/// The keys of objects, in the order of their first occurrence.
#[derive(Clone, Debug, Default)]
struct Keys {
    names: Vec<Key>,
    shapes: Vec<Shape>,
    places: HashMap<String, usize>,
}

impl Shape {
    /// Adds a value.
    pub fn see(&mut self, json: &mut Json<'_>, peek: Peek, depth: usize) -> Result<(), Problem> {
        self.values += 1;
        match peek {
            Peek::Null => {
                json.known_null()?;
                self.nulls += 1;
            }
            Peek::True | Peek::False => {
                json.known_bool(peek)?;
                self.booleans = true;
            }
            Peek::String => self.strings.see(json.known_str()?),
            Peek::Array | Peek::Object if depth >= MAX_DEPTH => return Err(Problem::Deep { at: json.current_index() }),
            Peek::Array => {
                let element = self.list.get_or_insert_default();
                let mut next = json.known_array()?;
                while let Some(peek) = next {
                    element.see(json, peek, depth + 1)?;
                    next = json.array_step()?;
                }
            }
            Peek::Object => self.object.get_or_insert_default().see(json, depth + 1)?,
            number => self.numbers.see(json.known_number(number)?.as_bytes()),
        }
        Ok(())
    }

    /// Adds the values of another shape.
    pub fn merge(&mut self, other: Self) {
        self.values += other.values;
        self.nulls += other.nulls;
        self.booleans |= other.booleans;
        self.numbers.merge(other.numbers);
        self.strings.merge(other.strings);
        match (&mut self.list, other.list) {
            (Some(list), Some(other)) => list.merge(*other),
            (list @ None, other) => *list = other,
            (Some(_), None) => {}
        }
        match (&mut self.object, other.object) {
            (Some(keys), Some(other)) => keys.merge(*other),
            (keys @ None, other) => *keys = other,
            (Some(_), None) => {}
        }
    }

    /// Returns whether there were no values.
    pub fn is_empty(&self) -> bool {
        self.values == 0
    }

    /// Returns the number of records.
    pub fn records(&self) -> u64 {
        self.values
    }

    /// Returns the names and types of columns, if all records are objects whose keys are columns.
    pub fn columns(&self) -> Option<Vec<(String, Kind)>> {
        let keys = self.object.as_ref().filter(|_| self.types() == 1)?;
        let is_one = self.values - self.nulls == 1;
        // For many records a table of many columns of one type is more likely than a map.
        let is_map =
            keys.is_map(self.values - self.nulls, 1) && (is_one || keys.is_scattered(self.values - self.nulls));
        (!is_map).then(|| keys.kinds(1))
    }

    /// Returns the type that holds every value.
    pub fn kind(&self) -> Kind {
        self.kind_at(0)
    }

    fn types(&self) -> usize {
        let of =
            [self.booleans, self.numbers.are_there, self.strings.are_there, self.list.is_some(), self.object.is_some()];
        of.into_iter().filter(|is_there| *is_there).count()
    }

    fn kind_at(&self, depth: usize) -> Kind {
        match self {
            _ if self.types() == 0 => Kind::Text,
            _ if self.types() > 1 => Kind::Json,
            Self { booleans: true, .. } => Kind::Boolean,
            Self { numbers, .. } if numbers.are_there => numbers.kind(),
            Self { strings, .. } if strings.are_there => strings.kind(),
            _ if depth >= MAX_TYPE_DEPTH => Kind::Json,
            // Empty lists do not determine the type of their elements.
            Self { list: Some(element), .. } => Kind::List(Box::new(element.element_kind(depth + 1))),
            Self { object: Some(keys), .. } => match keys.is_map(self.values - self.nulls, depth + 1) {
                true => Kind::Map(Box::new(keys.merged().element_kind(depth + 1))),
                false => Kind::Struct(keys.kinds(depth + 1)),
            },
            Self { list: None, object: None, .. } => Kind::Text,
        }
    }

    fn element_kind(&self, depth: usize) -> Kind {
        if self.types() == 0 { Kind::Json } else { self.kind_at(depth) }
    }
}

impl Records for Shape {
    fn record(&mut self, json: &mut Json<'_>, peek: Peek) -> Result<(), Problem> {
        self.see(json, peek, 0)
    }

    /// An incomplete record is harmless: the complete one repeats its values.
    fn forget(&mut self) {}
}

impl Numbers {
    fn see(&mut self, text: &[u8]) {
        self.are_there = true;
        let digits = text.strip_prefix(b"-").unwrap_or(text);
        if !digits.iter().all(u8::is_ascii_digit) {
            self.has_fraction = true;
            // NaN and infinities are written as words.
            self.is_beyond_double |= digits.iter().any(|byte| matches!(byte, b'e' | b'E'))
                && std::str::from_utf8(text).is_ok_and(|text| text.parse::<f64>().is_ok_and(f64::is_infinite));
            return;
        }
        if digits.len() > 18 {
            let is_bigint = std::str::from_utf8(text).is_ok_and(|text| text.parse::<i64>().is_ok());
            self.is_beyond_bigint |= !is_bigint;
            self.is_beyond_decimal |= digits.len() > usize::from(MOST_DIGITS);
            self.is_beyond_double |= digits.len() > 308;
        }
    }

    fn merge(&mut self, other: Self) {
        self.are_there |= other.are_there;
        self.has_fraction |= other.has_fraction;
        self.is_beyond_bigint |= other.is_beyond_bigint;
        self.is_beyond_decimal |= other.is_beyond_decimal;
        self.is_beyond_double |= other.is_beyond_double;
    }

    fn kind(self) -> Kind {
        match self {
            Self { is_beyond_double: true, .. } => Kind::Json,
            Self { has_fraction: true, .. } => Kind::Double,
            Self { is_beyond_decimal: true, .. } => Kind::Json,
            Self { is_beyond_bigint: true, .. } => Kind::LongInteger,
            _ => Kind::Integer,
        }
    }
}

impl Strings {
    fn see(&mut self, text: &str) {
        self.are_there = true;
        if self.has_text {
            return;
        }
        let Some(moment) = Moment::parse(text) else {
            self.has_text = true;
            return;
        };
        self.is_beyond_nanos |= !moment.fits_nanoseconds();
        match moment {
            Moment::Date { .. } => self.has_date = true,
            Moment::Timestamp { fraction_digits, offset_seconds, .. } => {
                self.has_moment |= offset_seconds.is_some();
                self.has_local |= offset_seconds.is_none();
                self.has_nanos |= fraction_digits > 6;
            }
        }
    }

    fn merge(&mut self, other: Self) {
        self.are_there |= other.are_there;
        self.has_text |= other.has_text;
        self.has_date |= other.has_date;
        self.has_local |= other.has_local;
        self.has_moment |= other.has_moment;
        self.has_nanos |= other.has_nanos;
        self.is_beyond_nanos |= other.is_beyond_nanos;
    }

    fn kind(self) -> Kind {
        let unit = if self.has_nanos { TimeUnit::Nanosecond } else { TimeUnit::Microsecond };
        match self {
            Self { has_text: true, .. } => Kind::Text,
            // No type holds both.
            Self { has_nanos: true, is_beyond_nanos: true, .. } => Kind::Text,
            // A date beside moments would have an unknown zone.
            Self { has_moment: true, has_date: false, has_local: false, .. } => {
                Kind::Timestamp { unit, has_zone: true }
            }
            Self { has_moment: true, .. } => Kind::Text,
            Self { has_local: true, .. } => Kind::Timestamp { unit, has_zone: false },
            _ => Kind::Date,
        }
    }
}

impl Keys {
    fn see(&mut self, json: &mut Json<'_>, depth: usize) -> Result<(), Problem> {
        let mut expected = 0;
        let mut next = json.known_object(self.names.first())?;
        while let Some(found) = next {
            let at = match found {
                Found::Expected => expected,
                Found::Key(key) => self.place(key),
            };
            let peek = json.peek()?;
            if let Some(shape) = self.shapes.get_mut(at) {
                shape.see(json, peek, depth)?;
            }
            expected = at + 1;
            next = json.next_key(self.names.get(expected))?;
        }
        Ok(())
    }

    /// Returns the place of a key, and adds the key if it is new.
    fn place(&mut self, key: &str) -> usize {
        if let Some(at) = self.places.get(key) {
            return *at;
        }
        self.places.insert(key.to_string(), self.names.len());
        self.names.push(Key::new(key.to_string()));
        self.shapes.push(Shape::default());
        self.names.len() - 1
    }

    fn merge(&mut self, other: Self) {
        for (key, shape) in other.names.into_iter().zip(other.shapes) {
            let at = self.place(key.name());
            if let Some(known) = self.shapes.get_mut(at) {
                known.merge(shape);
            }
        }
    }

    fn kinds(&self, depth: usize) -> Vec<(String, Kind)> {
        self.names.iter().zip(&self.shapes).map(|(key, shape)| (key.name().to_string(), shape.kind_at(depth))).collect()
    }

    /// Merges the values of all keys into one shape.
    fn merged(&self) -> Shape {
        let mut merged = Shape::default();
        self.shapes.iter().for_each(|shape| merged.merge(shape.clone()));
        merged
    }

    /// Returns whether most of `objects` objects lack most keys.
    fn is_scattered(&self, objects: u64) -> bool {
        let share = |shape: &Shape| shape.values as f64 / objects.max(1) as f64;
        let shares: f64 = self.shapes.iter().map(share).sum();
        self.names.is_empty() || shares / (self.names.len() as f64) < LEAST_SHARE
    }

    fn is_map(&self, objects: u64, depth: usize) -> bool {
        self.is_scattered(objects) || (self.names.len() >= MANY_KEYS && self.is_of_one_type(depth))
    }

    /// Returns whether all values could belong to one key. Objects among them must have most of
    /// each other's keys.
    fn is_of_one_type(&self, depth: usize) -> bool {
        let merged = self.merged();
        if merged.types() > 1 || merged.kind_at(depth) == Kind::Json {
            return false;
        }
        let Some(all) = merged.object.as_ref().map(|keys| keys.names.len()).filter(|all| *all > 0) else { return true };
        let share = |shape: &Shape| shape.object.as_ref().map_or(1.0, |keys| keys.names.len() as f64 / all as f64);
        self.shapes.iter().map(share).sum::<f64>() / self.shapes.len() as f64 >= 0.8
    }
}
