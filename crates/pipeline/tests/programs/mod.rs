//! Random programs over random tables, and a naive interpreter that says what they have to give: for the tests of every
//! backend. What includes this file uses what it needs of it.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

pub mod naive;
pub mod random;
pub mod tables;
