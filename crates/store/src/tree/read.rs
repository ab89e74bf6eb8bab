//! Descents to a key.

use std::sync::Arc;

use super::cursor::Value;
use super::misplaced;
use super::node::{INNER, LEAF, Node};
use crate::Result;
use crate::backend::{Image, PageNo};
use crate::pages::Source;

/// Reads a node of the `level` that the node above expects. A root may have any level.
///
/// Levels that decrease by one make every descent end, even through a damaged page.
pub(super) fn node(source: &mut impl Source, page: PageNo, level: Option<u8>) -> Result<Arc<Image>> {
    let image = source.page(page)?;
    let node = Node(&image);
    let is_expected = match (node.kind(), level) {
        (LEAF | INNER, None) => true,
        (LEAF | INNER, Some(level)) => node.level() == level,
        _ => false,
    };
    if is_expected {
        return Ok(image);
    }
    let expected = level.map_or("the root of a tree".into(), |level| format!("a node of level {level}"));
    Err(misplaced(page, &expected))
}

/// Checks that the keys of a node are within the bounds of the nodes above: from `lower` on, and
/// before `upper`.
///
/// Two paths lead to one node only if one of them is damage. Without this check, a walk of all
/// paths could take as many as there are subsets of pages.
pub(super) fn check_keys(node: Node<'_>, page: PageNo, lower: Option<&[u8]>, upper: Option<&[u8]>) -> Result<()> {
    let Some(last) = node.count().checked_sub(1) else { return Ok(()) };
    let is_within = lower.is_none_or(|lower| node.key(0) >= lower) && upper.is_none_or(|upper| node.key(last) < upper);
    if is_within { Ok(()) } else { Err(misplaced(page, "a node of other keys")) }
}

/// Returns the leaf of `key`, if `key` is in the tree.
fn leaf_of(source: &mut impl Source, root: PageNo, key: &[u8]) -> Result<Arc<Image>> {
    let mut image = node(source, root, None)?;
    loop {
        let inner = Node(&image);
        let Some(level) = inner.level().checked_sub(1) else { return Ok(image) };
        let child = inner.child(inner.child_of(key));
        image = node(source, child, Some(level))?;
    }
}

/// Returns the value of `key`.
pub(crate) fn get(source: &mut impl Source, root: PageNo, key: &[u8]) -> Result<Option<Value>> {
    let leaf = leaf_of(source, root, key)?;
    match Node(&leaf).search(key) {
        Ok(slot) => Value::new(source, leaf, slot).map(Some),
        Err(_) => Ok(None),
    }
}

/// Returns the number of entries in the tree. Reads all of its pages.
pub(crate) fn count(source: &mut impl Source, root: PageNo) -> Result<u64> {
    fn below(
        source: &mut impl Source,
        page: PageNo,
        level: Option<u8>,
        (lower, upper): (Option<&[u8]>, Option<&[u8]>),
    ) -> Result<u64> {
        let image = node(source, page, level)?;
        let node = Node(&image);
        check_keys(node, page, lower, upper)?;
        let (count, Some(level)) = (node.count(), node.level().checked_sub(1)) else { return Ok(node.count() as u64) };
        let mut entries = 0;
        for index in 0..=count {
            let from = index.checked_sub(1).map_or(lower, |before| Some(node.key(before)));
            let to = if index == count { upper } else { Some(node.key(index)) };
            entries += below(source, node.child(index), Some(level), (from, to))?;
        }
        Ok(entries)
    }
    below(source, root, None, (None, None))
}
