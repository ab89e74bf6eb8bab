//! The paper's results (Ni, Zhao, Bittman, Miller: "Reducing NVM Writes with Optimized Shadow
//! Paging", HotStorage 2018). Figures 4a and 4b are bars without numbers; these are the ones that
//! its text gives. Table 1 is complete.

use super::Structure;

/// The mean of all seven bars of Figure 4a.
pub const MEAN_RATIO: f64 = 1.6;
/// The highest bar of Figure 4a.
pub const HIGHEST_RATIO: f64 = 1.96;
/// The share of data in the flushes of BT-zipf, Figure 4b.
pub const BT_ZIPF_DATA: f64 = 0.98;

/// Returns the ratio of the flushes of undo logging to those of optimized shadow paging. The text
/// does not name the highest bar: the one with the highest share of data is assumed.
pub fn ratio(structure: Structure, is_zipf: bool) -> Option<f64> {
    match (structure, is_zipf) {
        (Structure::Array, _) | (Structure::HashTable, false) => Some(1.2),
        (Structure::BTree, true) => Some(HIGHEST_RATIO),
        _ => None,
    }
}

/// Returns the ratio of TLB misses to references, Table 1.
pub fn miss_ratio(structure: Structure, is_zipf: bool) -> f64 {
    let percent = match (structure, is_zipf) {
        (Structure::Array, _) => 3.6,
        (Structure::HashTable, false) => 5.66,
        (Structure::HashTable, true) => 0.09,
        (Structure::RedBlackTree, false) => 12.93,
        (Structure::RedBlackTree, true) => 0.75,
        (Structure::BTree, false) => 1.44,
        (Structure::BTree, true) => 0.15,
    };
    percent / 100.0
}
