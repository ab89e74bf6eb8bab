//! What the paper reports (Ni, Zhao, Bittman, Miller: "Reducing NVM Writes with Optimized Shadow Paging", HotStorage
//! 2018). Figures 4a and 4b are bars without numbers; these are the ones that its text gives. Table 1 is whole.

use super::Structure;

/// Of all seven bars of Figure 4a.
pub const MEAN_RATIO: f64 = 1.6;
/// The highest bar of Figure 4a.
pub const HIGHEST_RATIO: f64 = 1.96;
/// The share of data in the flushes of BT-zipf, Figure 4b.
pub const BT_ZIPF_DATA: f64 = 0.98;

/// Flushes of undo logging by those of optimized shadow paging. The text does not say which bar is the highest: the one
/// with the highest share of data is taken for it.
pub fn ratio(structure: Structure, is_zipf: bool) -> Option<f64> {
    match (structure, is_zipf) {
        (Structure::Array, _) | (Structure::HashTable, false) => Some(1.2),
        (Structure::BTree, true) => Some(HIGHEST_RATIO),
        _ => None,
    }
}

/// Misses of the TLB by references, Table 1.
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
