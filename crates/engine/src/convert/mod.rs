//! Conversion of strings to typed values. CAST, TRY_CAST, INSERT, COPY, CSV, JSON, directory names
//! and parameters all use it.
//!
//! 1. [`ColumnParser`] appends one value per string to an array of a type. [`parse_column`] and
//!    [`parse_value`] use it. Scalars and columns run the same code, on bytes, without an
//!    allocation per value.
//! 2. The forms are PostgreSQL's with ISO dates. `docs/guide/sql.md` lists the deviations from
//!    DuckDB.
//! 3. White space around a value is ignored. Remaining text is an error, and so is a value out of
//!    range.
//! 4. Decimals round half away from zero at the scale, fractions of seconds like PostgreSQL's at
//!    the unit.
//! 5. A timestamp with a time zone uses the zone in its text, or else the session's. A timestamp
//!    without one takes the time as it is written, whatever zone follows it.

mod column;
mod moment;
mod number;

pub use self::column::{ColumnParser, OnError, parse_column, parse_value};
pub(crate) use self::moment::{date as parse_date, rounded as rounded_micros};

use arrow::datatypes::DataType;

use crate::error::shown;
use crate::type_names::sql_name;
use crate::{Error, ErrorKind, Rule};

/// The reason why a string is not a value of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misfit {
    /// Its form is not that of the type.
    Form,
    /// Its value is out of range for the type.
    Range,
}

/// A string that is not a value of its type.
#[derive(Clone, Debug, PartialEq)]
pub struct ConversionError {
    /// The row of the column.
    pub row: usize,
    /// The string.
    pub text: String,
    /// The intended type.
    pub target: DataType,
    /// The reason.
    pub misfit: Misfit,
}

impl From<ConversionError> for Error {
    fn from(error: ConversionError) -> Self {
        misfit_error(&shown(&error.text), &error.target, error.misfit)
    }
}

/// Returns the error about a value, which the message shows as `shown`.
pub(crate) fn misfit_error(shown: &str, target: &DataType, misfit: Misfit) -> Error {
    let name = sql_name(target);
    match (misfit, form_of(target)) {
        (_, Some((form, rule))) => {
            let error = Error::new(ErrorKind::Data, format!("{shown} is no {name}")).breaking(rule);
            error.with_hint(format!("one is written '{form}'"))
        }
        (Misfit::Range, None) => Error::new(ErrorKind::Data, format!("{shown} is out of range for {name}"))
            .breaking(Rule::Range)
            .with_hint("TRY_CAST gives NULL for what does not fit"),
        (Misfit::Form, None) => Error::new(ErrorKind::Data, format!("{shown} is no {name}"))
            .breaking(Rule::Form)
            .with_hint("TRY_CAST gives NULL for what does not fit"),
    }
}

/// Returns the form of a type's values for a hint, and the rule that an invalid value breaks.
fn form_of(target: &DataType) -> Option<(&'static str, Rule)> {
    match target {
        DataType::Date32 | DataType::Date64 => Some(("2020-12-31", Rule::Moment)),
        DataType::Time32(_) | DataType::Time64(_) => Some(("23:59:59.5", Rule::Moment)),
        DataType::Timestamp(_, None) => Some(("2020-12-31 23:59:59.5", Rule::Moment)),
        DataType::Timestamp(_, Some(_)) => Some(("2020-12-31 23:59:59.5+02", Rule::Moment)),
        DataType::Interval(_) => Some(("1 year 2 mons 3 days 04:05:06.789", Rule::Moment)),
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => Some(("\\x0a1b", Rule::Form)),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
