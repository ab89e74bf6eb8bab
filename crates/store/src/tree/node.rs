//! A node of a B+tree in a page: slots that grow up, cells that grow down.
//!
//! ```text
//!   0  kind     u8   1 leaf, 2 inner, 3 overflow
//!   1  level    u8   0 for leaves
//!   2  version  u8   of this layout
//!   3  zero     u8
//!   4  count    u16  cells
//!   6  start    u16  of the lowest cell
//!   8  dead     u16  bytes of cells no longer used
//!  10  run      u16  1 + the slot of the last insertion
//!  12  first    u32  inner: the child before all keys
//!  16  slots    count x u16: offsets of cells, in the order of keys
//!      free
//!      cells    from `start` to the end of the page
//!
//!  leaf cell:   key length u16, value length u16, key, value
//!  inner cell:  key length u16, child u32, key
//! ```
//! A value length of `0xffff` marks a value in overflow pages: 8 bytes follow the key, the first
//! page and the length. Child `i + 1` of an inner node has the keys that are not less than key `i`,
//! and less than key `i + 1`.
//!
//! Invariant: in a page that [`verify`] accepts, every read is within bounds, and `dead` plus the
//! live cells are exactly the bytes from `start`. So cells of a damaged page cannot make an edit
//! run over its end.

use std::cmp::Ordering;
use std::ops::Range;

use crate::backend::{Image, Lines, PAGE_BYTES, PageNo};
use crate::bytes::{u16_at, u32_at};

pub(super) const LEAF: u8 = 1;
pub(super) const INNER: u8 = 2;
pub(super) const OVERFLOW: u8 = 3;
const VERSION: u8 = 1;

const HEADER_BYTES: usize = 16;
const SLOT: usize = 2;
const LEAF_CELL_HEADER: usize = 4;
const INNER_CELL_HEADER: usize = 6;
const IN_OVERFLOW: u16 = u16::MAX;
/// The bytes of a reference to overflow pages: first page, length.
const REFERENCE_BYTES: usize = 8;

/// The bytes for slots and cells.
pub(super) const CAPACITY: usize = PAGE_BYTES - HEADER_BYTES;
/// The maximum number of bytes of a key: three of the longest cells fit into a node, so that any
/// node can be split.
pub const MAX_KEY_BYTES: usize = 1024;
/// The maximum number of bytes of a key and its value together with which the value stays in the
/// leaf.
pub(super) const MAX_INLINE_BYTES: usize = MAX_KEY_BYTES + REFERENCE_BYTES;
const _: () = assert!(3 * (LEAF_CELL_HEADER + MAX_INLINE_BYTES + SLOT) <= CAPACITY);
/// The maximum level, more than the longest keys and all page numbers can produce.
pub(super) const MAX_LEVEL: u8 = 40;
/// The bytes of a value in one overflow page.
pub(super) const OVERFLOW_BYTES: usize = PAGE_BYTES - HEADER_BYTES;

/// A value as stored in its cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stored<'a> {
    Inline(&'a [u8]),
    Overflow { first: PageNo, len: u32 },
}

/// A node to read.
#[derive(Clone, Copy)]
pub(super) struct Node<'a>(pub(super) &'a Image);

impl<'a> Node<'a> {
    #[inline]
    pub(super) fn kind(self) -> u8 {
        self.0.0[0]
    }

    #[inline]
    pub(super) fn level(self) -> u8 {
        self.0.0[1]
    }

    #[inline]
    pub(super) fn count(self) -> usize {
        u16_at(&self.0.0, 4).into()
    }

    fn start(self) -> usize {
        u16_at(&self.0.0, 6).into()
    }

    fn dead(self) -> usize {
        u16_at(&self.0.0, 8).into()
    }

    /// Returns the slot after that of the last insertion, if the insertions before it went there as
    /// well.
    fn run(self) -> usize {
        u16_at(&self.0.0, 10).into()
    }

    /// Returns the bytes of slots and live cells.
    pub(super) fn used(self) -> usize {
        (PAGE_BYTES - self.start()).saturating_sub(self.dead()) + SLOT * self.count()
    }

    #[inline]
    fn cell(self, slot: usize) -> usize {
        u16_at(&self.0.0, HEADER_BYTES + SLOT * slot).into()
    }

    fn cell_bytes(self, slot: usize) -> usize {
        let at = self.cell(slot);
        let key = usize::from(u16_at(&self.0.0, at));
        if self.kind() == INNER {
            return INNER_CELL_HEADER + key;
        }
        LEAF_CELL_HEADER + key + stored_bytes(u16_at(&self.0.0, at + 2))
    }

    /// Returns the location of the key of `slot`.
    #[inline]
    pub(super) fn key_range(self, slot: usize) -> Range<usize> {
        let at = self.cell(slot);
        let from = at + if self.kind() == INNER { INNER_CELL_HEADER } else { LEAF_CELL_HEADER };
        from..from + usize::from(u16_at(&self.0.0, at))
    }

    #[inline]
    pub(super) fn key(self, slot: usize) -> &'a [u8] {
        &self.0.0[self.key_range(slot)]
    }

    /// Returns the location of the value of `slot`, or `None` if it is in overflow pages.
    #[inline]
    pub(super) fn value_range(self, slot: usize) -> Option<Range<usize>> {
        let at = self.cell(slot);
        let from = at + LEAF_CELL_HEADER + usize::from(u16_at(&self.0.0, at));
        match u16_at(&self.0.0, at + 2) {
            IN_OVERFLOW => None,
            len => Some(from..from + usize::from(len)),
        }
    }

    pub(super) fn stored(self, slot: usize) -> Stored<'a> {
        match self.value_range(slot) {
            Some(range) => Stored::Inline(&self.0.0[range]),
            None => {
                let at = self.key_range(slot).end;
                Stored::Overflow { first: PageNo(u32_at(&self.0.0, at)), len: u32_at(&self.0.0, at + 4) }
            }
        }
    }

    /// Returns the slot of `key`, or the slot to insert it at.
    pub(super) fn search(self, key: &[u8]) -> Result<usize, usize> {
        let (mut low, mut high) = (0, self.count());
        while low < high {
            let middle = low.midpoint(high);
            match self.key(middle).cmp(key) {
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
                Ordering::Equal => return Ok(middle),
            }
        }
        Err(low)
    }

    /// Returns child `index` of an inner node, from 0 to `count`.
    pub(super) fn child(self, index: usize) -> PageNo {
        PageNo(match index.checked_sub(1) {
            None => u32_at(&self.0.0, 12),
            Some(slot) => u32_at(&self.0.0, self.cell(slot) + 2),
        })
    }

    /// Returns the index of the child that has `key`.
    pub(super) fn child_of(self, key: &[u8]) -> usize {
        match self.search(key) {
            Ok(slot) => slot + 1,
            Err(slot) => slot,
        }
    }

    /// Returns the bytes of an overflow page, and the page after it.
    pub(super) fn overflow(self) -> (&'a [u8], PageNo) {
        (&self.0.0[HEADER_BYTES..HEADER_BYTES + self.count()], PageNo(u32_at(&self.0.0, 12)))
    }

    /// Returns the split point of a node without space for a cell of `cell` bytes at `slot`. The
    /// split point is the first item of the right part, counted with the new cell in its place.
    /// Each part has at least one item, and space for its items.
    ///
    /// Insertions that continue where the last one was leave full nodes behind them. Others halve.
    pub(super) fn split_point(self, slot: usize, cell: usize) -> usize {
        let count = self.count();
        let total = self.used() + cell + SLOT;
        let item_bytes = |item: usize| {
            SLOT + match item.cmp(&slot) {
                Ordering::Less => self.cell_bytes(item),
                Ordering::Equal => cell,
                Ordering::Greater => self.cell_bytes(item - 1),
            }
        };
        let is_ascending = slot > 0 && slot == self.run();
        let is_descending = slot + 1 == self.run();
        if is_ascending && slot == count {
            return slot;
        }
        if (is_ascending || is_descending) && slot < count {
            // The items behind the run are not part of it.
            let left: usize = (0..=slot).map(item_bytes).sum();
            if left <= CAPACITY {
                return slot + 1;
            }
        }
        let mut left = 0;
        for item in 0..count {
            left += item_bytes(item);
            if left >= total / 2 {
                return item + 1;
            }
        }
        count
    }
}

fn stored_bytes(len: u16) -> usize {
    if len == IN_OVERFLOW { REFERENCE_BYTES } else { len.into() }
}

/// Returns the bytes of the leaf cell of `key` and `value`, without its slot.
pub(super) fn leaf_cell_bytes(key: &[u8], value: Stored<'_>) -> usize {
    LEAF_CELL_HEADER
        + key.len()
        + match value {
            Stored::Inline(value) => value.len(),
            Stored::Overflow { .. } => REFERENCE_BYTES,
        }
}

/// Returns the bytes of the inner cell of `key`, without its slot.
pub(super) fn inner_cell_bytes(key: &[u8]) -> usize {
    INNER_CELL_HEADER + key.len()
}

/// A node to change. Every change adds the lines that it touches.
pub(super) struct NodeMut<'a> {
    image: &'a mut Image,
    lines: &'a mut Lines,
}

impl<'a> NodeMut<'a> {
    pub(super) fn new((image, lines): (&'a mut Image, &'a mut Lines)) -> Self {
        Self { image, lines }
    }

    pub(super) fn node(&self) -> Node<'_> {
        Node(self.image)
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        let to = &mut self.image.0[at..at + bytes.len()];
        if to != bytes {
            to.copy_from_slice(bytes);
            *self.lines = self.lines.with(Lines::of(at, at + bytes.len()));
        }
    }

    fn put_u16(&mut self, at: usize, value: usize) {
        debug_assert!(value <= usize::from(u16::MAX));
        self.put(at, &(value as u16).to_le_bytes());
    }

    /// Makes the page an empty node.
    pub(super) fn format(&mut self, level: u8, first: PageNo) {
        let kind = if level == 0 { LEAF } else { INNER };
        self.put(0, &[kind, level, VERSION, 0]);
        self.put_u16(4, 0);
        self.put_u16(6, PAGE_BYTES);
        self.put(8, &[0; 4]);
        self.put(12, &first.0.to_le_bytes());
    }

    /// Makes the page an overflow page.
    pub(super) fn format_overflow(&mut self, bytes: &[u8], next: PageNo) {
        self.put(0, &[OVERFLOW, 0, VERSION, 0]);
        self.put_u16(4, bytes.len());
        self.put_u16(6, PAGE_BYTES);
        self.put(8, &[0; 4]);
        self.put(12, &next.0.to_le_bytes());
        self.put(HEADER_BYTES, bytes);
    }

    /// Makes the page a copy of `other`.
    pub(super) fn copy(&mut self, other: &Image) {
        for (at, line) in other.0.chunks(64).enumerate() {
            self.put(at * 64, line);
        }
    }

    /// Returns true if a cell of `cell` bytes fits.
    pub(super) fn has_room(&self, cell: usize) -> bool {
        self.node().used() + cell + SLOT <= CAPACITY
    }

    /// Inserts a cell, which fits, at `slot`.
    fn insert(&mut self, slot: usize, parts: &[&[u8]]) {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        let count = self.node().count();
        let slots_end = HEADER_BYTES + SLOT * count;
        if self.node().start() < slots_end + SLOT + bytes {
            self.compact();
        }
        let start = self.node().start() - bytes;
        let mut at = start;
        for part in parts {
            self.put(at, part);
            at += part.len();
        }
        let slot_at = HEADER_BYTES + SLOT * slot;
        self.image.0.copy_within(slot_at..slots_end, slot_at + SLOT);
        *self.lines = self.lines.with(Lines::of(slot_at, slots_end + SLOT));
        self.put_u16(slot_at, start);
        self.put_u16(4, count + 1);
        self.put_u16(6, start);
        // A run continues at this slot. The first insertion elsewhere ends it.
        self.put_u16(10, slot + 1);
    }

    pub(super) fn insert_leaf(&mut self, slot: usize, key: &[u8], value: Stored<'_>) {
        let key_len = (key.len() as u16).to_le_bytes();
        match value {
            Stored::Inline(value) => self.insert(slot, &[&key_len, &(value.len() as u16).to_le_bytes(), key, value]),
            Stored::Overflow { first, len } => {
                let reference = [&first.0.to_le_bytes()[..], &len.to_le_bytes()].concat();
                self.insert(slot, &[&key_len, &IN_OVERFLOW.to_le_bytes(), key, &reference]);
            }
        }
    }

    pub(super) fn insert_inner(&mut self, slot: usize, key: &[u8], child: PageNo) {
        self.insert(slot, &[&(key.len() as u16).to_le_bytes(), &child.0.to_le_bytes(), key]);
    }

    /// Overwrites an inline value with one of the same length. Returns false if the lengths differ
    /// or the value is not inline.
    pub(super) fn replace_value(&mut self, slot: usize, value: &[u8]) -> bool {
        match self.node().value_range(slot) {
            Some(range) if range.len() == value.len() => {
                for (at, part) in line_parts(range.start, value) {
                    self.put(at, part);
                }
                true
            }
            _ => false,
        }
    }

    /// Removes the cell at `slot`.
    pub(super) fn remove(&mut self, slot: usize) {
        let node = self.node();
        let (count, start, dead) = (node.count(), node.start(), node.dead());
        let (cell, bytes) = (node.cell(slot), node.cell_bytes(slot));
        let run = node.run();
        if count == 1 {
            self.put_u16(6, PAGE_BYTES);
            self.put_u16(8, 0);
        } else if cell == start {
            self.put_u16(6, start + bytes);
        } else {
            self.put_u16(8, dead + bytes);
        }
        let slot_at = HEADER_BYTES + SLOT * slot;
        let slots_end = HEADER_BYTES + SLOT * count;
        self.image.0.copy_within(slot_at + SLOT..slots_end, slot_at);
        *self.lines = self.lines.with(Lines::of(slot_at, slots_end - SLOT));
        self.put_u16(4, count - 1);
        if run > slot {
            self.put_u16(10, run - 1);
        }
    }

    /// Removes the cells from `slot` on, which have been copied elsewhere.
    pub(super) fn truncate(&mut self, slot: usize) {
        let node = self.node();
        let gone: usize = (slot..node.count()).map(|slot| node.cell_bytes(slot)).sum();
        let (dead, run) = (node.dead() + gone, node.run().min(slot));
        if slot == 0 {
            self.put_u16(6, PAGE_BYTES);
            self.put_u16(8, 0);
        } else {
            self.put_u16(8, dead);
        }
        self.put_u16(4, slot);
        self.put_u16(10, run);
    }

    /// Appends the cells `slots` of `other`, which is of the same kind.
    pub(super) fn append(&mut self, other: Node<'_>, slots: Range<usize>) {
        for slot in slots {
            let (at, bytes) = (other.cell(slot), other.cell_bytes(slot));
            self.insert(self.node().count(), &[&other.0.0[at..at + bytes]]);
        }
        self.put_u16(10, 0);
    }

    /// Moves the live cells to the end of the page.
    fn compact(&mut self) {
        let old = self.image.clone();
        let old = Node(&old);
        let mut start = PAGE_BYTES;
        for slot in 0..old.count() {
            let (at, bytes) = (old.cell(slot), old.cell_bytes(slot));
            start -= bytes;
            self.image.0[start..start + bytes].copy_from_slice(&old.0.0[at..at + bytes]);
            self.put_u16(HEADER_BYTES + SLOT * slot, start);
        }
        *self.lines = self.lines.with(Lines::of(start, PAGE_BYTES));
        self.put_u16(6, start);
        self.put_u16(8, 0);
    }
}

/// Splits `bytes`, which are written at `at`, by line: unchanged lines need no flush.
fn line_parts(at: usize, bytes: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let head = (at.next_multiple_of(64) - at).min(bytes.len());
    let tail = bytes[head..].chunks(64).enumerate().map(move |(i, part)| (at + head + i * 64, part));
    std::iter::once((at, &bytes[..head])).chain(tail)
}

/// Verifies a page that was read from a medium. The error describes the damage.
pub(crate) fn verify(image: &Image) -> Result<(), String> {
    let node = Node(image);
    let (kind, level, version) = (node.kind(), node.level(), image.0[2]);
    let (count, start) = (node.count(), node.start());
    if version != VERSION {
        return Err(format!("its layout is version {version}, and this program knows {VERSION}"));
    }
    match (kind, level) {
        (LEAF, 0) | (INNER, 1..=MAX_LEVEL) => {}
        (OVERFLOW, 0) if (1..=OVERFLOW_BYTES).contains(&count) => return Ok(()),
        (OVERFLOW, 0) => return Err(format!("an overflow page with {count} bytes")),
        _ => return Err(format!("there is no node of kind {kind} at level {level}")),
    }
    if start > PAGE_BYTES || HEADER_BYTES + SLOT * count > start {
        return Err(format!("{count} slots and cells from {start} do not fit into it"));
    }
    let header = if kind == INNER { INNER_CELL_HEADER } else { LEAF_CELL_HEADER };
    let mut live = 0;
    for slot in 0..count {
        let at = node.cell(slot);
        let is_inside = at >= start && at + header <= PAGE_BYTES;
        if !is_inside || at + node.cell_bytes(slot) > PAGE_BYTES {
            return Err(format!("cell {slot}, at {at}, is not inside of it"));
        }
        let key = node.key(slot);
        if key.len() > MAX_KEY_BYTES {
            return Err(format!("the key of cell {slot} has {} bytes", key.len()));
        }
        if slot > 0 && node.key(slot - 1) >= key {
            return Err(format!("keys {} and {slot} are not in order", slot - 1));
        }
        if kind == LEAF && matches!(node.stored(slot), Stored::Overflow { first: PageNo(0), .. }) {
            return Err(format!("the value of cell {slot} lies in page 0"));
        }
        live += node.cell_bytes(slot);
    }
    if live + node.dead() != PAGE_BYTES - start {
        return Err(format!("cells of {live} bytes and {} dead ones from {start}", node.dead()));
    }
    if kind == INNER && (0..=count).any(|index| node.child(index).0 == 0) {
        return Err("a child of it is page 0".into());
    }
    Ok(())
}
