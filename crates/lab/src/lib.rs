//! Data generators and the experiments behind `onehop gen` and `onehop bench`.
//!
//! - [`generate`]: the tables of the Star Schema Benchmark and of TPC-H, at any scale, in independent chunks, and their
//!   way into Parquet, CSV and tbl files.
//! - [`queries`]: the queries of both benchmarks.

pub mod bench;
pub mod generate;
pub mod queries;
