//! Tests of the whole store.

mod crashes;
mod faulty;
mod files;
mod full;
mod groups;
mod maintenance;
mod misuse;
mod model;
mod snapshots;
mod tasks;
