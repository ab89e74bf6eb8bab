//! Checks of foreign files before a decoder allocates or trusts their declarations.
//!
//! Decoders of Arrow and Parquet take lengths, counts and offsets from the file. They allocate as
//! much as a header declares, slice at declared offsets, and panic if an invariant fails. This
//! crate stands between such a file and its decoder:
//!
//! - [`arrow_ipc`] reads Arrow files and streams, validates each message, and decompresses it.
//! - [`parquet_file`] validates footers and page headers, and reads footers of any row group count.
//! - [`inflate`] decompresses whole text files within a memory bound.
//! - [`guard`] catches the remaining panics, without a trace on standard error, and counts them.
//!
//! Invariant: no allocation is larger than the file's bytes justify, or than [`Memory`] grants.

pub mod arrow_ipc;
mod fault;
pub mod guard;
pub mod inflate;
mod input;
pub mod parquet_file;

pub use self::fault::{Fault, Memory, OverMemory, Unbounded};
pub use self::input::Input;
