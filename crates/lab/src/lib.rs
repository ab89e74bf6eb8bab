//! Data generators and the experiments behind `onehop gen` and `onehop bench`.
//!
//! - [`generate`]: generates the tables of the Star Schema Benchmark and of TPC-H, at any scale, in
//!   independent chunks, and writes them into Parquet, CSV and tbl files.
//! - [`queries`]: the queries of both benchmarks.
//! - [`bench`]: runs them, and measures I/O paths.
//! - [`osp`]: the simulator of optimized shadow paging.

pub mod bench;
pub mod generate;
pub mod osp;
pub mod queries;
