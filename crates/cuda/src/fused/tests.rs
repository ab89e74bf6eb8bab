//! Tests of programs on the device, against the CPU backend and the naive interpreter of
//! `crates/pipeline`'s own tests.

mod edges;
mod faults;
mod fold;
#[path = "../../tests/large/mod.rs"]
mod large;
#[path = "../../../pipeline/tests/programs/mod.rs"]
mod programs;
mod random;
mod shapes;
mod split;
mod spread;
#[path = "../../tests/star/mod.rs"]
mod star;
mod straight;
mod streamed;
