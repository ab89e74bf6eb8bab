//! Verifies a tree: it reaches every page at most once, levels decrease by one, keys are within the
//! bounds of the nodes above. Chains of overflow pages are as long as their values.

use std::collections::HashSet;

use super::node::{INNER, LEAF, Node, Stored};
use super::overflow;
use crate::backend::PageNo;
use crate::pages::Source;
use crate::{Error, Result};

/// Statistics of a walked tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) entries: u64,
    pub(crate) levels: u64,
    pub(crate) inner_pages: u64,
    pub(crate) leaf_pages: u64,
    pub(crate) overflow_pages: u64,
    /// The bytes in use in leaves.
    pub(crate) leaf_used_bytes: u64,
}

/// A walk over all trees.
pub(crate) struct Walk<'a, S> {
    source: S,
    reached: HashSet<PageNo>,
    found: &'a mut dyn FnMut(String),
}

impl<'a, S: Source> Walk<'a, S> {
    pub(crate) fn new(source: S, found: &'a mut dyn FnMut(String)) -> Self {
        Self { source, reached: HashSet::new(), found }
    }

    /// Returns the pages that were reached, of all trees.
    pub(crate) fn into_reached(self) -> HashSet<PageNo> {
        self.reached
    }

    /// Walks the tree of `name`.
    ///
    /// # Errors
    /// Those of the medium. Damaged pages are findings.
    pub(crate) fn tree(&mut self, name: &str, root: PageNo) -> Result<Shape> {
        let mut shape = Shape::default();
        self.node(name, root, None, None, None, &mut shape)?;
        Ok(shape)
    }

    fn note(&mut self, name: &str, what: &str) {
        (self.found)(format!("tree {name:?}: {what}"));
    }

    /// Records `page` as reached. Returns true if it was not reached before.
    fn reach(&mut self, name: &str, page: PageNo) -> bool {
        let is_new = self.reached.insert(page);
        if !is_new {
            self.note(name, &format!("{page} is referred to twice"));
        }
        is_new
    }

    fn node(
        &mut self,
        name: &str,
        page: PageNo,
        level: Option<u8>,
        lower: Option<&[u8]>,
        upper: Option<&[u8]>,
        shape: &mut Shape,
    ) -> Result<()> {
        if !self.reach(name, page) {
            return Ok(());
        }
        let image = match self.source.page(page) {
            Ok(image) => image,
            Err(Error::Corrupt { reason, .. }) => {
                self.note(name, &reason);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let node = Node(&image);
        if !matches!(node.kind(), LEAF | INNER) || level.is_some_and(|level| level != node.level()) {
            let expected = level.map_or("the root".into(), |level| format!("a node of level {level}"));
            self.note(name, &format!("{page} is not {expected}"));
            return Ok(());
        }
        let count = node.count();
        shape.levels = shape.levels.max(u64::from(node.level()) + 1);
        if count > 0 {
            let is_below = lower.is_some_and(|lower| node.key(0) < lower);
            let is_above = upper.is_some_and(|upper| node.key(count - 1) >= upper);
            if is_below || is_above {
                self.note(name, &format!("{page} has keys that belong elsewhere"));
            }
        }
        if let Some(below) = node.level().checked_sub(1) {
            shape.inner_pages += 1;
            for index in 0..=count {
                let from = if index == 0 { lower } else { Some(node.key(index - 1)) };
                let to = if index == count { upper } else { Some(node.key(index)) };
                self.node(name, node.child(index), Some(below), from, to, shape)?;
            }
            return Ok(());
        }
        shape.leaf_pages += 1;
        shape.entries += count as u64;
        shape.leaf_used_bytes += node.used() as u64;
        for slot in 0..count {
            if let Stored::Overflow { first, len } = node.stored(slot) {
                self.value(name, page, slot, first, len, shape)?;
            }
        }
        Ok(())
    }

    fn value(
        &mut self,
        name: &str,
        leaf: PageNo,
        slot: usize,
        first: PageNo,
        len: u32,
        shape: &mut Shape,
    ) -> Result<()> {
        let mut pages = Vec::new();
        let walked = overflow::walk(&mut self.source, first, len, |_, page, _| {
            pages.push(page);
            Ok(())
        });
        for page in pages {
            shape.overflow_pages += 1;
            self.reach(name, page);
        }
        match walked {
            Err(Error::Corrupt { reason, .. }) => {
                self.note(name, &format!("the value of cell {slot} of {leaf}: {reason}"));
                Ok(())
            }
            other => other,
        }
    }
}
