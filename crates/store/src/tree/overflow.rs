//! Values too long for a leaf: a chain of pages, all full except the last.

use super::misplaced;
use super::node::{Node, NodeMut, OVERFLOW, OVERFLOW_BYTES};
use crate::Result;
use crate::backend::PageNo;
use crate::pages::{Source, Transaction};

/// The end of a chain: page 0 is the root of all trees.
const NONE: PageNo = PageNo(0);

/// Writes `value`, which is not empty. Returns the first page.
pub(super) fn write(transaction: &mut Transaction, value: &[u8]) -> Result<PageNo> {
    let mut next = NONE;
    // From the end, so that each page names the one after it.
    let last = (value.len() - 1) / OVERFLOW_BYTES;
    for index in (0..=last).rev() {
        let part = &value[index * OVERFLOW_BYTES..value.len().min((index + 1) * OVERFLOW_BYTES)];
        let page = transaction.allocate()?;
        NodeMut::new(transaction.edit(page)?).format_overflow(part, next);
        next = page;
    }
    Ok(next)
}

/// Calls `visit` with each page of a chain of `len` bytes, and the bytes in it.
pub(super) fn walk<S: Source>(
    source: &mut S,
    first: PageNo,
    len: u32,
    mut visit: impl FnMut(&mut S, PageNo, &[u8]) -> Result<()>,
) -> Result<()> {
    let (mut page, mut rest) = (first, len as usize);
    loop {
        let image = source.page(page)?;
        let node = Node(&image);
        // The length bounds the number of pages: the walk ends even if a damaged page makes the
        // chain a ring.
        if node.kind() != OVERFLOW || node.overflow().0.len() != rest.min(OVERFLOW_BYTES) || rest == 0 {
            return Err(misplaced(page, &format!("the last {rest} bytes of a value")));
        }
        let (bytes, next) = node.overflow();
        rest -= bytes.len();
        visit(source, page, bytes)?;
        match (rest, next) {
            (0, NONE) => return Ok(()),
            (0, _) | (_, NONE) => {
                return Err(misplaced(page, &format!("the last {rest} bytes but one page of a value")));
            }
            _ => page = next,
        }
    }
}

/// Reads a value of `len` bytes.
pub(super) fn read(source: &mut impl Source, first: PageNo, len: u32, into: &mut Vec<u8>) -> Result<()> {
    walk(source, first, len, |_, _, bytes| {
        into.extend_from_slice(bytes);
        Ok(())
    })
}

/// Frees the pages of a value.
pub(super) fn free(transaction: &mut Transaction, first: PageNo, len: u32) -> Result<()> {
    walk(transaction, first, len, |transaction, page, _| transaction.free(page))
}
