//! A PostgreSQL server as a source of rows.
//!
//! ```text
//! Server ── snapshot() ──► Snapshot: a transaction that has exported what it sees, and stays open
//!   │ idle connections        │ table()   what a table is: its columns, pages and rows, while nobody may change that
//!   │                         └ reader()  another connection that sees the same
//!   └──────────────────────────────────────► Reader ── batches() ──► COPY (SELECT ...) TO STDOUT (FORMAT binary)
//!                                                                     a range of pages (`ctid`) at a time ──► RecordBatch
//! ```
//! - All that one snapshot reads is of one moment, by however many connections it comes.
//! - Values are decoded as PostgreSQL keeps them, without a text between, and each type has one that holds all of its values. What
//!   has none, such as `infinity` among dates, is an error that names the column; nothing is rounded.
//! - A connection whose rows nobody wants any more is told to stop, and closed.

mod decode;
mod error;
mod read;
mod server;
mod table;
mod types;

pub use error::{Error, Result};
pub use read::{Pages, Selection};
pub use server::{Reader, Server, Snapshot, without_passwords};
pub use table::{Column, Table};
