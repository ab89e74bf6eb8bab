//! A register of one vector of rows, in the narrowest type that holds its domain.

use crate::late::TextReader;
use crate::{Domain, Interval, Type, VECTOR_ROWS};

/// The values of a vector.
pub(crate) type Lane<T> = Box<[T; VECTOR_ROWS]>;

/// Memory representation of a register's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// 0 or 1.
    Bool,
    /// 32 bits.
    I32,
    /// 64 bits.
    I64,
    /// 128 bits.
    I128,
    /// A double.
    F64,
}

impl Kind {
    /// Returns the narrowest kind for a domain.
    pub fn of(domain: &Domain) -> Self {
        match domain.ty {
            Type::Bool => Self::Bool,
            Type::Double => Self::F64,
            Type::Text => Self::I32,
            Type::Int | Type::LateText => Self::of_interval(domain.interval),
        }
    }

    /// Returns the narrowest kind for integers.
    pub fn of_interval(interval: Interval) -> Self {
        let fits = |min: i128, max: i128| Interval::new(min, max).contains(interval);
        if fits(i32::MIN.into(), i32::MAX.into()) {
            Self::I32
        } else if fits(i64::MIN.into(), i64::MAX.into()) {
            Self::I64
        } else {
            Self::I128
        }
    }
}

/// Values of one kind. Values past the live rows and NULL values are arbitrary.
#[derive(Debug)]
pub(crate) enum Data {
    Bool(Lane<u8>),
    I32(Lane<i32>),
    I64(Lane<i64>),
    I128(Lane<i128>),
    F64(Lane<f64>),
}

impl Data {
    fn zeroed(kind: Kind) -> Self {
        match kind {
            Kind::Bool => Self::Bool(Box::new([0; VECTOR_ROWS])),
            Kind::I32 => Self::I32(Box::new([0; VECTOR_ROWS])),
            Kind::I64 => Self::I64(Box::new([0; VECTOR_ROWS])),
            Kind::I128 => Self::I128(Box::new([0; VECTOR_ROWS])),
            Kind::F64 => Self::F64(Box::new([0.0; VECTOR_ROWS])),
        }
    }
}

/// A register.
#[derive(Debug)]
pub(crate) struct Vector {
    pub data: Data,
    /// 1 for rows that are not NULL. Meaningful only if `has_nulls`.
    pub valid: Lane<u8>,
    /// True if some row may be NULL.
    pub has_nulls: bool,
    /// Read position of the late strings from which it was last computed.
    pub reader: TextReader,
}

impl Vector {
    pub fn new(kind: Kind) -> Self {
        Self {
            data: Data::zeroed(kind),
            valid: Box::new([1; VECTOR_ROWS]),
            has_nulls: false,
            reader: TextReader::default(),
        }
    }

    /// Creates a vector with one integer or boolean in every row.
    pub fn constant(kind: Kind, value: i128) -> Self {
        let mut vector = Self::new(kind);
        match &mut vector.data {
            Data::Bool(values) => values.fill(u8::from(value != 0)),
            Data::I32(values) => values.fill(value as i32),
            Data::I64(values) => values.fill(value as i64),
            Data::I128(values) => values.fill(value),
            Data::F64(values) => values.fill(value as f64),
        }
        vector
    }

    /// Creates a vector with one double in every row.
    pub fn double(value: f64) -> Self {
        let mut vector = Self::new(Kind::F64);
        if let Data::F64(values) = &mut vector.data {
            values.fill(value);
        }
        vector
    }

    /// Creates a vector with NULL in every row.
    pub fn null(kind: Kind) -> Self {
        let mut vector = Self::new(kind);
        vector.valid.fill(0);
        vector.has_nulls = true;
        vector
    }

    /// Moves the rows at `picked`, in ascending order, to the front.
    pub fn compact(&mut self, picked: &[u16]) {
        fn pick<T: Copy>(values: &mut [T; VECTOR_ROWS], picked: &[u16]) {
            for (to, from) in picked.iter().enumerate().take(VECTOR_ROWS) {
                values[to] = values[usize::from(*from) % VECTOR_ROWS];
            }
        }
        match &mut self.data {
            Data::Bool(values) => pick(values, picked),
            Data::I32(values) => pick(values, picked),
            Data::I64(values) => pick(values, picked),
            Data::I128(values) => pick(values, picked),
            Data::F64(values) => pick(values, picked),
        }
        if self.has_nulls {
            pick(&mut self.valid, picked);
        }
    }

    /// Copies the rows at `picked`, in any order, from another vector of the same kind.
    pub fn gather(&mut self, other: &Self, picked: &[u16]) {
        fn pick<T: Copy>(to: &mut [T; VECTOR_ROWS], from: &[T; VECTOR_ROWS], picked: &[u16]) {
            for (to, row) in to.iter_mut().zip(picked) {
                *to = from[usize::from(*row) % VECTOR_ROWS];
            }
        }
        match (&mut self.data, &other.data) {
            (Data::Bool(to), Data::Bool(from)) => pick(to, from, picked),
            (Data::I32(to), Data::I32(from)) => pick(to, from, picked),
            (Data::I64(to), Data::I64(from)) => pick(to, from, picked),
            (Data::I128(to), Data::I128(from)) => pick(to, from, picked),
            (Data::F64(to), Data::F64(from)) => pick(to, from, picked),
            // Registers keep their kind from frame to frame.
            _ => debug_assert!(false, "vectors of different kinds"),
        }
        self.has_nulls = other.has_nulls;
        if self.has_nulls {
            pick(&mut self.valid, &other.valid, picked);
        }
    }

    /// Returns the integer, code or boolean of a row.
    pub fn integer(&self, row: usize) -> i128 {
        match &self.data {
            Data::Bool(values) => values[row].into(),
            Data::I32(values) => values[row].into(),
            Data::I64(values) => values[row].into(),
            Data::I128(values) => values[row],
            Data::F64(_) => 0,
        }
    }

    pub fn is_valid(&self, row: usize) -> bool {
        !self.has_nulls || self.valid[row] != 0
    }
}
