//! A PostgreSQL server as a source of rows.
//!
//! ```text
//! Server ── view() ──► View: what one statement reads
//!   │ idle connections     │ table()   what a table is: its columns, pages and rows, while nobody may change that
//!   │                      └ reader()  a connection; the first begins the moment that all of them see
//!   └──────────────────────────────────────► Reader ── batches() ──► COPY (SELECT ...) TO STDOUT (FORMAT binary)
//!                                                                     a range of pages (`ctid`) at a time ──► RecordBatch
//! ```
//! - All that one view reads is of one moment, by however many connections it comes, and after the last change of its tables.
//! - Values are decoded as PostgreSQL keeps them, without a text between, and each type has one that holds all of its values. What
//!   has none, such as `infinity` among dates, is an error that names the column; nothing is rounded.
//! - A connection whose rows nobody wants any more is told to stop, and closed.

mod decode;
mod error;
mod read;
mod server;
mod table;
mod types;

#[doc(hidden)]
pub use decode::Rows;
pub use error::{Error, Result};
pub use read::{Pages, Selection};
pub use server::{Reader, Server, View, without_addresses};
pub use table::{Column, Table};
