//! PostgreSQL's text forms of values, the OIDs of its types, and time zones.
//!
//! - [`text`], [`column_text`]: values and whole columns as PostgreSQL prints them.
//! - [`array_text`], [`bytea`], [`interval_text`], [`nested_text`]: arrays, bytes, intervals, rows.
//! - [`types`]: OIDs, names and sizes of types.
//! - [`zone`]: time zones, with PostgreSQL's rules for changes of the clock.

pub(crate) mod array_text;
pub(crate) mod bytea;
pub(crate) mod calendar;
pub mod column_text;
pub(crate) mod interval_text;
pub(crate) mod nested_text;
pub mod text;
pub(crate) mod types;
pub mod zone;
