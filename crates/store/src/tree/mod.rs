//! Ordered maps in pages: B+trees.
//!
//! The page of a tree's root identifies the tree and never changes: a full root moves its cells
//! into a child, and a root with one child takes its cells back. Therefore a commit that changes a
//! leaf writes that leaf and nothing above it.
//!
//! Leaves are not linked: a link would change with its neighbour, and cost a page to write. A
//! cursor keeps its path from the root instead.

mod catalog;
mod check;
mod cursor;
mod edit;
mod node;
mod overflow;
mod read;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used)]
mod tests;

pub(crate) use catalog::{CATALOG, decode_root, encode_root};
pub(crate) use check::Walk;
pub(crate) use cursor::Cursor;
pub use cursor::{Entry, Value};
pub(crate) use edit::{clear, create, free_tree, insert, remove};
pub use node::MAX_KEY_BYTES;
pub(crate) use node::verify;
pub(crate) use read::{count, get};

use crate::backend::PageNo;
use crate::{Error, Result};

/// The maximum number of bytes of a value.
pub const MAX_VALUE_BYTES: usize = u32::MAX as usize;

/// Creates the error of a whole page that is not what the page above it expects.
fn misplaced(page: PageNo, expected: &str) -> Error {
    Error::Corrupt { object: "the store".into(), reason: format!("{page} is referred to as {expected}, and is not") }
}

/// Rejects keys that do not fit in a node.
pub(crate) fn check_key(key: &[u8]) -> Result<()> {
    if key.len() > MAX_KEY_BYTES {
        return Err(Error::Invalid(format!("a key of {} bytes is longer than {MAX_KEY_BYTES}", key.len())));
    }
    Ok(())
}
