//! Tests of the whole store.

mod crashes;
mod faulty;
mod files;
mod groups;
mod model;
mod snapshots;
