//! Random programs over random tables, and a naive interpreter that computes the expected answers,
//! for the tests of every backend. Each including test uses a part of this module.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

pub mod naive;
pub mod random;
pub mod tables;
