//! Parquet's footer and page headers, checked before parquet's reader sees them.
//!
//! Parquet's reader reserves memory for as many row groups as a footer declares, builds its schema
//! by recursion, asserts that offsets are positive, and reserves the size that a page declares.
//!
//! 1. [`footer`] walks the footer's Thrift first ([`thrift`]), calls parquet to decode it, and
//!    checks that all its locations lie in the file.
//! 2. [`PageCheck`] walks the page headers of the bytes of a column chunk before they are decoded.
//! 3. [`check_indexes`] walks the page indexes before pages are looked up in them.
//!
//! [`open`] does the first two for a file that is read front to back.
//!
//! A footer of more than 32,767 row groups is decoded in parts, because parquet's reader numbers
//! them by 16 bits. A footer whose list of row groups is empty and has no type, as fastparquet
//! writes it, is given one.

mod footer;
mod indexes;
mod pages;
mod reader;
#[cfg(test)]
mod tests;
mod thrift;

pub use self::footer::{FOOTER_TAIL_BYTES, Tail, footer, tail};
pub use self::indexes::{check_indexes, check_read_indexes};
pub use self::pages::{PageCheck, PageMemory};
pub use self::reader::{Chunks, open, read_footer};
