//! Changes of a tree.
//!
//! Insertion descends to a leaf, and splits full nodes on its way back up. Removal merges a small
//! node with a neighbour, if both fit into one page. The page of the root never changes: before the
//! root splits, its cells move into a child of their own.

use super::node::{CAPACITY, MAX_INLINE_BYTES, Node, NodeMut, Stored, inner_cell_bytes, leaf_cell_bytes};
use super::{MAX_VALUE_BYTES, check_key, overflow, read};
use crate::backend::PageNo;
use crate::pages::Transaction;
use crate::{Error, Result};

/// A node with fewer bytes in use is merged with a neighbour.
const SMALL: usize = CAPACITY / 3;
/// The most bytes of two nodes that are merged. The result has space to grow, or the next insertion
/// would split it again.
const MERGED: usize = CAPACITY - CAPACITY / 8;

/// The path down from a root: inner nodes, each with the index of the child taken.
type Path = Vec<(PageNo, usize)>;

/// Creates an empty tree. Returns its root.
pub(crate) fn create(transaction: &mut Transaction) -> Result<PageNo> {
    let root = transaction.allocate()?;
    NodeMut::new(transaction.edit(root)?).format(0, PageNo(0));
    Ok(root)
}

/// Descends to the leaf of `key`.
fn descend(transaction: &mut Transaction, root: PageNo, key: &[u8], path: &mut Path) -> Result<PageNo> {
    let mut page = root;
    let mut level = None;
    loop {
        // The image is released before anything is changed: a second owner would make the change
        // copy it.
        let image = read::node(transaction, page, level)?;
        let node = Node(&image);
        level = node.level().checked_sub(1);
        if level.is_none() {
            return Ok(page);
        }
        let index = node.child_of(key);
        path.push((page, index));
        page = node.child(index);
    }
}

/// Puts `value` at `key`. Returns true if there was a value before.
pub(crate) fn insert(transaction: &mut Transaction, root: PageNo, key: &[u8], value: &[u8]) -> Result<bool> {
    check_key(key)?;
    let Ok(len) = u32::try_from(value.len()) else {
        return Err(Error::Invalid(format!("a value of {} bytes is longer than {MAX_VALUE_BYTES}", value.len())));
    };
    let mut path = Path::with_capacity(8);
    let leaf = descend(transaction, root, key, &mut path)?;
    let (slot, old) = {
        let image = transaction.page(leaf)?;
        let node = Node(&image);
        match node.search(key) {
            Err(slot) => (slot, None),
            Ok(slot) => match node.stored(slot) {
                Stored::Inline(_) => (slot, Some(None)),
                Stored::Overflow { first, len } => (slot, Some(Some((first, len)))),
            },
        }
    };
    let stored = if key.len() + value.len() <= MAX_INLINE_BYTES {
        Stored::Inline(value)
    } else {
        Stored::Overflow { first: overflow::write(transaction, value)?, len }
    };
    if let Some(old) = old {
        let mut node = NodeMut::new(transaction.edit(leaf)?);
        if let Stored::Inline(value) = stored
            && node.replace_value(slot, value)
        {
            return Ok(true);
        }
        node.remove(slot);
        if let Some((first, len)) = old {
            overflow::free(transaction, first, len)?;
        }
    }
    let mut node = NodeMut::new(transaction.edit(leaf)?);
    if node.has_room(leaf_cell_bytes(key, stored)) {
        node.insert_leaf(slot, key, stored);
    } else {
        split_leaf(transaction, leaf, slot, key, stored, &mut path)?;
    }
    Ok(old.is_some())
}

/// Moves the cells of a root into a new child. Returns the child.
fn push_down(transaction: &mut Transaction, root: PageNo, path: &mut Path) -> Result<PageNo> {
    let child = transaction.allocate()?;
    let image = transaction.page(root)?;
    NodeMut::new(transaction.edit(child)?).copy(&image);
    NodeMut::new(transaction.edit(root)?).format(Node(&image).level() + 1, child);
    path.push((root, 0));
    Ok(child)
}

fn split_leaf(
    transaction: &mut Transaction,
    leaf: PageNo,
    slot: usize,
    key: &[u8],
    value: Stored<'_>,
    path: &mut Path,
) -> Result<()> {
    let left = if path.is_empty() { push_down(transaction, leaf, path)? } else { leaf };
    let right = transaction.allocate()?;
    let image = transaction.page(left)?;
    let node = Node(&image);
    let split = node.split_point(slot, leaf_cell_bytes(key, value));
    // The cells from `first` on move to the right.
    let first = if slot < split { split - 1 } else { split };
    let separator = {
        let last_left = if slot + 1 == split { key } else { node.key(first - 1) };
        let first_right = if slot == split { key } else { node.key(first) };
        shortest_between(last_left, first_right).to_vec()
    };
    let mut new = NodeMut::new(transaction.edit(right)?);
    new.format(0, PageNo(0));
    new.append(node, first..node.count());
    if slot >= split {
        new.insert_leaf(slot - split, key, value);
    }
    drop(image);
    let mut old = NodeMut::new(transaction.edit(left)?);
    old.truncate(first);
    if slot < split {
        old.insert_leaf(slot, key, value);
    }
    insert_child(transaction, path, &separator, right)
}

/// Returns the shortest key that is greater than `left` and not greater than `right`.
fn shortest_between<'a>(left: &[u8], right: &'a [u8]) -> &'a [u8] {
    let common = left.iter().zip(right).take_while(|(a, b)| a == b).count();
    &right[..(common + 1).min(right.len())]
}

/// Inserts `child`, whose keys begin at `key`, behind the child that the path took.
fn insert_child(transaction: &mut Transaction, path: &mut Path, key: &[u8], child: PageNo) -> Result<()> {
    let Some((page, slot)) = path.pop() else {
        return Err(Error::Invalid("a root was split without a node above it".into()));
    };
    let mut node = NodeMut::new(transaction.edit(page)?);
    if node.has_room(inner_cell_bytes(key)) {
        node.insert_inner(slot, key, child);
        return Ok(());
    }
    let left = if path.is_empty() { push_down(transaction, page, path)? } else { page };
    let right = transaction.allocate()?;
    let image = transaction.page(left)?;
    let node = Node(&image);
    // The first item of the right part moves up: its key separates, its child is the first on the
    // right.
    let split = node.split_point(slot, inner_cell_bytes(key));
    let first = if slot < split { split - 1 } else { split };
    let (separator, first_child, from) = if slot == split {
        (key.to_vec(), child, first)
    } else {
        (node.key(first).to_vec(), node.child(first + 1), first + 1)
    };
    let mut new = NodeMut::new(transaction.edit(right)?);
    new.format(node.level(), first_child);
    new.append(node, from..node.count());
    if slot > split {
        new.insert_inner(slot - split - 1, key, child);
    }
    drop(image);
    let mut old = NodeMut::new(transaction.edit(left)?);
    old.truncate(first);
    if slot < split {
        old.insert_inner(slot, key, child);
    }
    insert_child(transaction, path, &separator, right)
}

/// Removes `key`. Returns true if it was there.
pub(crate) fn remove(transaction: &mut Transaction, root: PageNo, key: &[u8]) -> Result<bool> {
    let mut path = Path::with_capacity(8);
    let leaf = descend(transaction, root, key, &mut path)?;
    let (slot, old) = {
        let image = transaction.page(leaf)?;
        let node = Node(&image);
        let Ok(slot) = node.search(key) else { return Ok(false) };
        match node.stored(slot) {
            Stored::Inline(_) => (slot, None),
            Stored::Overflow { first, len } => (slot, Some((first, len))),
        }
    };
    NodeMut::new(transaction.edit(leaf)?).remove(slot);
    if let Some((first, len)) = old {
        overflow::free(transaction, first, len)?;
    }
    shrink(transaction, leaf, &mut path)?;
    Ok(true)
}

/// Merges `page` with a neighbour if it has become small, and then the nodes above.
fn shrink(transaction: &mut Transaction, mut page: PageNo, path: &mut Path) -> Result<()> {
    loop {
        let image = transaction.page(page)?;
        if Node(&image).used() >= SMALL {
            return Ok(());
        }
        drop(image);
        let Some((parent, index)) = path.pop() else { return pull_up(transaction, page) };
        let count = Node(&*transaction.page(parent)?).count();
        let has_merged = (index < count && merge(transaction, parent, index)?)
            || (index > 0 && merge(transaction, parent, index - 1)?);
        if !has_merged {
            return Ok(());
        }
        page = parent;
    }
}

/// Merges children `index` and `index + 1` of `parent`, if they fit into one page.
fn merge(transaction: &mut Transaction, parent: PageNo, index: usize) -> Result<bool> {
    let image = transaction.page(parent)?;
    let above = Node(&image);
    let level = above.level() - 1;
    let (left, right) = (above.child(index), above.child(index + 1));
    let right_image = read::node(transaction, right, Some(level))?;
    let left_image = read::node(transaction, left, Some(level))?;
    let (left_node, right_node) = (Node(&left_image), Node(&right_image));
    let separator = above.key(index);
    let between = if level == 0 { 0 } else { inner_cell_bytes(separator) + 2 };
    let total = left_node.used() + between + right_node.used();
    let is_one_empty = level == 0 && (left_node.count() == 0 || right_node.count() == 0);
    if total > if is_one_empty { CAPACITY } else { MERGED } {
        return Ok(false);
    }
    let left_count = left_node.count();
    drop(left_image);
    let mut node = NodeMut::new(transaction.edit(left)?);
    if level > 0 {
        node.insert_inner(left_count, separator, right_node.child(0));
    }
    node.append(right_node, 0..right_node.count());
    transaction.free(right)?;
    drop(image);
    NodeMut::new(transaction.edit(parent)?).remove(index);
    Ok(true)
}

/// While a root has only one child, replaces its cells with those of the child.
fn pull_up(transaction: &mut Transaction, root: PageNo) -> Result<()> {
    loop {
        let image = transaction.page(root)?;
        let node = Node(&image);
        let Some(level) = node.level().checked_sub(1).filter(|_| node.count() == 0) else { return Ok(()) };
        let child = node.child(0);
        drop(image);
        let cells = read::node(transaction, child, Some(level))?;
        NodeMut::new(transaction.edit(root)?).copy(&cells);
        transaction.free(child)?;
    }
}

/// Removes all entries of a tree. Its root stays.
pub(crate) fn clear(transaction: &mut Transaction, root: PageNo) -> Result<()> {
    free_below(transaction, root, None)?;
    NodeMut::new(transaction.edit(root)?).format(0, PageNo(0));
    Ok(())
}

/// Frees all pages of a tree.
pub(crate) fn free_tree(transaction: &mut Transaction, root: PageNo) -> Result<()> {
    free_below(transaction, root, None)?;
    transaction.free(root)
}

/// Frees the pages below a node.
fn free_below(transaction: &mut Transaction, page: PageNo, level: Option<u8>) -> Result<()> {
    let image = read::node(transaction, page, level)?;
    let node = Node(&image);
    let Some(level) = node.level().checked_sub(1) else {
        for slot in 0..node.count() {
            if let Stored::Overflow { first, len } = node.stored(slot) {
                overflow::free(transaction, first, len)?;
            }
        }
        return Ok(());
    };
    for index in 0..=node.count() {
        free_below(transaction, node.child(index), Some(level))?;
        transaction.free(node.child(index))?;
    }
    Ok(())
}
