//! The tree of trees. Its root is page 0. It maps the name of a tree to the location of the tree's
//! root.
//!
//! ```text
//! 0  root   u32   page of the root, never 0
//! 4  flags  u32   0
//! ```

use crate::backend::PageNo;
use crate::{Error, Result};

/// The root of the tree of trees.
pub(crate) const CATALOG: PageNo = PageNo(0);

/// Encodes the value of a tree's name.
pub(crate) fn encode_root(root: PageNo) -> [u8; 8] {
    u64::from(root.0).to_le_bytes()
}

/// Decodes the root from the value of a tree's name.
pub(crate) fn decode_root(name: &[u8], value: &[u8]) -> Result<PageNo> {
    let number = <[u8; 8]>::try_from(value).ok().map(u64::from_le_bytes);
    match number.and_then(|number| u32::try_from(number).ok()) {
        Some(root) if root != 0 => Ok(PageNo(root)),
        _ => {
            let name = String::from_utf8_lossy(name);
            Err(Error::corrupt("the store", format!("the catalog says nonsense of the tree {name:?}")))
        }
    }
}
