//! A PostgreSQL server as a source of rows.
//!
//! ```text
//! Server ── view() ──► View: the reads of one statement
//!   │ idle         │ table()   the definition of a table: its columns, pages and rows, which
//!   │ connections  │           cannot change meanwhile
//!   │              └ reader()  a connection; the first begins the snapshot that all of them see
//!   └──► Reader ── batches() ──► COPY (SELECT ...) TO STDOUT (FORMAT binary)
//!                                a range of pages (`ctid`) at a time ──► RecordBatch
//! ```
//! - All reads of one view are of one snapshot, through any number of connections, taken after the
//!   last change of its tables.
//! - Values are decoded from PostgreSQL's binary form, without text in between, and each type is
//!   mapped to one that holds all of its values. A value without an equal, such as `infinity` among
//!   dates, is an error that names the column. No value is rounded.
//! - A connection whose rows are not wanted any more is cancelled, and closed.

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
