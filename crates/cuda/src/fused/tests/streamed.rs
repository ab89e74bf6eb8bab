//! Columns that are brought batch by batch give the answers that they give as a whole.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use onehop_pipeline::cpu::{Execution, TableKind};
use onehop_pipeline::ir::{Aggregate, Direction, JoinKind, Nulls, Pipeline, Probe, Program, Sink, SortKey, Step};
use onehop_pipeline::{CompareOp, Expr, Source};

use super::shapes::{executor_of, options, r, rows_of, stored};
use crate::fused::{Answer, Executor, Options, Streamed};
use crate::staging::Shape;

/// Batches of one morsel or two, by so many threads.
pub fn in_small_batches(threads: usize) -> Options {
    Options { staging: Shape { batch_bytes: 1, slots: 3, threads }, ..options() }
}
