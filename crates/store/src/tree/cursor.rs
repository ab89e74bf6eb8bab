//! Ranges, in both directions.
//!
//! A cursor is two positions, front and back, each a leaf with the path down to it. It steps within
//! a leaf without comparing bounds: the part of a leaf within the bounds is computed once, on
//! entry. The two positions meet in one leaf, where neither passes the other.
//!
//! A transaction may change the tree while it has a live cursor. The cursor then finds its position
//! again by the last key that it returned. A leaf does not change as long as the cursor holds it.

use std::ops::{Bound, Deref, Range};
use std::sync::Arc;

use super::node::{Node, Stored};
use super::{overflow, read};
use crate::Result;
use crate::backend::{Image, PageNo};
use crate::pages::Source;

/// A value, without a copy if it lies in a leaf. Later commits do not change it.
#[derive(Clone, Debug)]
pub struct Value(Bytes);

#[derive(Clone, Debug)]
enum Bytes {
    Page(Arc<Image>, Range<u16>),
    Owned(Arc<[u8]>),
}

fn narrow(range: Range<usize>) -> Range<u16> {
    // Positions in a page fit in 16 bits.
    range.start as u16..range.end as u16
}

fn wide(range: &Range<u16>) -> Range<usize> {
    range.start.into()..range.end.into()
}

impl Value {
    /// Returns the value of `slot`.
    pub(super) fn new(source: &mut impl Source, leaf: Arc<Image>, slot: usize) -> Result<Self> {
        let node = Node(&leaf);
        match (node.value_range(slot), node.stored(slot)) {
            (Some(range), _) => Ok(Self(Bytes::Page(leaf, narrow(range)))),
            (None, Stored::Overflow { first, len }) => {
                let mut bytes = Vec::new();
                overflow::read(source, first, len, &mut bytes)?;
                Ok(Self(Bytes::Owned(bytes.into())))
            }
            (None, Stored::Inline(bytes)) => Ok(Self(Bytes::Owned(bytes.into()))),
        }
    }
}

impl Deref for Value {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Bytes::Page(image, range) => &image.0[wide(range)],
            Bytes::Owned(bytes) => bytes,
        }
    }
}

impl AsRef<[u8]> for Value {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl<T: AsRef<[u8]> + ?Sized> PartialEq<T> for Value {
    fn eq(&self, other: &T) -> bool {
        **self == *other.as_ref()
    }
}

/// A key and its value, without a copy if they lie in a leaf.
#[derive(Clone, Debug)]
pub struct Entry {
    leaf: Arc<Image>,
    key: Range<u16>,
    value: EntryValue,
}

#[derive(Clone, Debug)]
enum EntryValue {
    Inline(Range<u16>),
    Owned(Arc<[u8]>),
}

impl Entry {
    fn new(source: &mut impl Source, leaf: Arc<Image>, slot: usize) -> Result<Self> {
        let node = Node(&leaf);
        let key = narrow(node.key_range(slot));
        if let Some(range) = node.value_range(slot) {
            return Ok(Self { leaf, key, value: EntryValue::Inline(narrow(range)) });
        }
        let value = Value::new(source, Arc::clone(&leaf), slot)?;
        Ok(Self { leaf, key, value: EntryValue::Owned(Arc::from(&*value)) })
    }

    /// Returns the key.
    pub fn key(&self) -> &[u8] {
        &self.leaf.0[wide(&self.key)]
    }

    /// Returns the value.
    pub fn value(&self) -> &[u8] {
        match &self.value {
            EntryValue::Inline(range) => &self.leaf.0[wide(range)],
            EntryValue::Owned(bytes) => bytes,
        }
    }
}

/// A position between two entries of a leaf.
#[derive(Clone, Debug)]
struct Position {
    /// The inner nodes from the root on, each with the index of the child taken.
    path: Vec<(Arc<Image>, usize)>,
    page: PageNo,
    leaf: Arc<Image>,
    /// For the front, the slot of the next entry. For the back, one more than that.
    slot: usize,
    /// The entries of this leaf within the bounds.
    within: Range<usize>,
}

/// The entries of a tree within bounds.
#[derive(Clone, Debug)]
pub(crate) struct Cursor<S> {
    source: S,
    root: PageNo,
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
    front: Option<Position>,
    back: Option<Position>,
    is_done: bool,
    stamp: u64,
    /// The buffer of a long value that is lent.
    lent: Vec<u8>,
}

impl<S: Source> Cursor<S> {
    pub(crate) fn new(source: S, root: PageNo, lower: Bound<Vec<u8>>, upper: Bound<Vec<u8>>) -> Self {
        let is_done = match (&lower, &upper) {
            (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
            (Bound::Included(lower), Bound::Included(upper)) => lower > upper,
            (Bound::Included(lower) | Bound::Excluded(lower), Bound::Included(upper) | Bound::Excluded(upper)) => {
                lower >= upper
            }
        };
        let stamp = source.stamp();
        Self { source, root, lower, upper, front: None, back: None, is_done, stamp, lent: Vec::new() }
    }

    /// Returns the next entry from the front.
    pub(crate) fn next(&mut self) -> Result<Option<Entry>> {
        let Some(slot) = self.step_front()? else { return Ok(None) };
        let Some(front) = &self.front else { return Ok(None) };
        Entry::new(&mut self.source, Arc::clone(&front.leaf), slot).map(Some)
    }

    /// Returns the next entry from the back.
    pub(crate) fn next_back(&mut self) -> Result<Option<Entry>> {
        let Some(slot) = self.step_back()? else { return Ok(None) };
        let Some(back) = &self.back else { return Ok(None) };
        Entry::new(&mut self.source, Arc::clone(&back.leaf), slot).map(Some)
    }

    /// Returns the next entry from the front, lent.
    pub(crate) fn lend(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        let Some(slot) = self.step_front()? else { return Ok(None) };
        let Some(front) = &self.front else { return Ok(None) };
        let node = Node(&front.leaf);
        let value = match node.stored(slot) {
            Stored::Inline(value) => value,
            Stored::Overflow { first, len } => {
                self.lent.clear();
                overflow::read(&mut self.source, first, len, &mut self.lent)?;
                &self.lent
            }
        };
        Ok(Some((node.key(slot), value)))
    }

    /// Returns the slot of the next entry in the leaf of `front`.
    fn step_front(&mut self) -> Result<Option<usize>> {
        if self.stamp != self.source.stamp() {
            self.find_again();
        }
        loop {
            if self.is_done {
                return Ok(None);
            }
            // A cursor that fails or ends in this iteration stays done.
            self.is_done = true;
            let Some(front) = &mut self.front else {
                self.front = Some(self.seek(Side::Front)?);
                self.is_done = false;
                continue;
            };
            let (end, is_last) = match &self.back {
                Some(back) if back.page == front.page => (back.slot, true),
                _ => (front.within.end, front.within.end < Node(&front.leaf).count()),
            };
            if front.slot < end {
                front.slot += 1;
                self.is_done = false;
                return Ok(Some(front.slot - 1));
            }
            if !is_last && let Some(from) = self.front.take() {
                self.front = self.next_leaf(Side::Front, from)?;
                self.is_done = self.front.is_none();
            }
        }
    }

    /// Returns the slot of the next entry in the leaf of `back`.
    fn step_back(&mut self) -> Result<Option<usize>> {
        if self.stamp != self.source.stamp() {
            self.find_again();
        }
        loop {
            if self.is_done {
                return Ok(None);
            }
            self.is_done = true;
            let Some(back) = &mut self.back else {
                self.back = Some(self.seek(Side::Back)?);
                self.is_done = false;
                continue;
            };
            let (begin, is_last) = match &self.front {
                Some(front) if front.page == back.page => (front.slot, true),
                _ => (back.within.start, back.within.start > 0),
            };
            if back.slot > begin {
                back.slot -= 1;
                self.is_done = false;
                return Ok(Some(back.slot));
            }
            if !is_last && let Some(from) = self.back.take() {
                self.back = self.next_leaf(Side::Back, from)?;
                self.is_done = self.back.is_none();
            }
        }
    }

    /// Handles a changed tree: discards the positions, and narrows the bounds to the entries not
    /// returned yet.
    fn find_again(&mut self) {
        if let Some(front) = self.front.take()
            && front.slot > front.within.start
        {
            self.lower = Bound::Excluded(Node(&front.leaf).key(front.slot - 1).to_vec());
        }
        if let Some(back) = self.back.take()
            && back.slot < back.within.end
        {
            self.upper = Bound::Excluded(Node(&back.leaf).key(back.slot).to_vec());
        }
        self.stamp = self.source.stamp();
    }

    /// Descends from the root to the leaf of one end.
    fn seek(&mut self, side: Side) -> Result<Position> {
        let bound = match (side, &self.lower, &self.upper) {
            (Side::Front, Bound::Included(key) | Bound::Excluded(key), _)
            | (Side::Back, _, Bound::Included(key) | Bound::Excluded(key)) => Some(key),
            _ => None,
        };
        let mut path = Vec::with_capacity(4);
        let mut page = self.root;
        let mut image = read::node(&mut self.source, page, None)?;
        loop {
            let node = Node(&image);
            let Some(level) = node.level().checked_sub(1) else { break };
            let index = match (bound, side) {
                (Some(key), _) => node.child_of(key),
                (None, Side::Front) => 0,
                (None, Side::Back) => node.count(),
            };
            page = node.child(index);
            let below = read::node(&mut self.source, page, Some(level))?;
            path.push((image, index));
            image = below;
        }
        Ok(self.enter(side, path, page, image))
    }

    fn enter(&self, side: Side, path: Vec<(Arc<Image>, usize)>, page: PageNo, leaf: Arc<Image>) -> Position {
        let within = self.within(Node(&leaf));
        let slot = if side == Side::Front { within.start } else { within.end };
        Position { path, page, leaf, slot, within }
    }

    /// Returns the entries of a leaf within the bounds.
    fn within(&self, leaf: Node<'_>) -> Range<usize> {
        let count = leaf.count();
        if count == 0 {
            return 0..0;
        }
        let start = match &self.lower {
            Bound::Unbounded => 0,
            Bound::Included(key) if leaf.key(0) >= &key[..] => 0,
            Bound::Excluded(key) if leaf.key(0) > &key[..] => 0,
            Bound::Included(key) => leaf.search(key).unwrap_or_else(|slot| slot),
            Bound::Excluded(key) => leaf.search(key).map_or_else(|slot| slot, |slot| slot + 1),
        };
        let end = match &self.upper {
            Bound::Unbounded => count,
            Bound::Included(key) if leaf.key(count - 1) <= &key[..] => count,
            Bound::Excluded(key) if leaf.key(count - 1) < &key[..] => count,
            Bound::Included(key) => leaf.search(key).map_or_else(|slot| slot, |slot| slot + 1),
            Bound::Excluded(key) => leaf.search(key).unwrap_or_else(|slot| slot),
        };
        start..end
    }

    /// Moves one end to the next leaf in its direction. Returns `None` if there is none.
    fn next_leaf(&mut self, side: Side, from: Position) -> Result<Option<Position>> {
        let mut path = from.path;
        while let Some((image, index)) = path.pop() {
            let mut node = Node(&image);
            let next = match side {
                Side::Front => (index < node.count()).then(|| index + 1),
                Side::Back => index.checked_sub(1),
            };
            let Some(mut index) = next else { continue };
            let mut image = Arc::clone(&image);
            // Descend along the edge.
            loop {
                node = Node(&image);
                let Some(level) = node.level().checked_sub(1) else { break };
                let page = node.child(index);
                let below = read::node(&mut self.source, page, Some(level))?;
                path.push((std::mem::replace(&mut image, below), index));
                let (lower, upper) = left_to(&path);
                read::check_keys(Node(&image), page, lower, upper)?;
                if level == 0 {
                    return Ok(Some(self.enter(side, path, page, image)));
                }
                index = if side == Side::Front { 0 } else { Node(&image).count() };
            }
        }
        Ok(None)
    }
}

/// Returns the bounds of the keys below a path: an inclusive lower and an exclusive upper bound.
fn left_to(path: &[(Arc<Image>, usize)]) -> (Option<&[u8]>, Option<&[u8]>) {
    let lower = path.iter().rev().find(|(_, index)| *index > 0);
    let upper = path.iter().rev().find(|(image, index)| *index < Node(image).count());
    let lower = lower.map(|(image, index)| Node(image).key(index - 1));
    (lower, upper.map(|(image, index)| Node(image).key(*index)))
}

/// An end of a cursor.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Front,
    Back,
}
