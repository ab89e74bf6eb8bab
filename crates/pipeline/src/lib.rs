//! Fused pipelines: the work of a query on rows between storage and its answer, as a small typed
//! program, and the CPU backend that runs it.
//!
//! [`ir`] defines the program: sources, filters, probes, sinks. [`Expr`] defines its expressions.
//! [`cpu`] runs a program morsel by morsel and never materializes a table. It is also the oracle
//! for every other backend, so it favors readable code. This crate contains no SQL and does not
//! depend on DataFusion.

pub mod arrays;
pub mod backend;
mod batches;
pub mod bind;
mod block;
mod budget;
pub mod cpu;
pub mod decimal;
mod dictionary;
mod domain;
mod error;
mod expr;
pub mod fit;
mod fresh;
pub mod ir;
mod late;
mod plain;
mod source;
pub mod spread;

pub use batches::{BatchSource, BatchSourceBuilder};
pub use block::{Block, View, ViewValid, ViewValues};
pub use budget::{Account, Budget, Holder, Resources};
pub use dictionary::{Dictionary, DictionaryFunction};
pub use domain::{Domain, Interval, Type};
pub use error::{Error, Result};
pub use expr::{ArithmeticOp, Bounds, CompareOp, DatePart, Expr, Label, Value};
pub use fresh::{FreshChunk, FreshRun};
pub use late::LateTexts;
pub use source::{Changes, SegmentSource, Source, StoredMeaning, StoredPlace};

/// Rows in a vector: the unit of execution, and of the packed layout.
pub const VECTOR_ROWS: usize = onehop_segment::packed::VECTOR_ROWS;
