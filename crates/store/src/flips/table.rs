//! The tree of tables with the locations of pages: the part in memory, and its changes since the
//! checkpoint.
//!
//! Level 0 has the tables of pages. Level `l + 1` has the tables of the tables of level `l`. The
//! highest level is one table, the root. The number of levels depends only on the number of pages.
//! The backend keeps the entries of pages, for its readers. This module keeps the location of each
//! table, and the set of tables to be written.

use std::collections::BTreeSet;

use super::slot::{Entry, FANOUT};

/// The locations of the tables of one level, as of the last checkpoint.
#[derive(Debug, Default)]
pub(super) struct Level {
    pub(super) at: Vec<Entry>,
    pub(super) changed: BTreeSet<u32>,
}

/// All levels, the lowest first.
#[derive(Debug, Default)]
pub(super) struct Tables {
    levels: Vec<Level>,
    used_pages: u64,
}

impl Tables {
    /// Creates tables for `pages` page numbers, none of which is in use.
    pub(super) fn new(pages: usize) -> Self {
        let mut tables = Self::default();
        tables.extend(pages);
        tables
    }

    pub(super) fn levels(&self) -> &[Level] {
        &self.levels
    }

    pub(super) fn level_mut(&mut self, level: usize) -> &mut Level {
        &mut self.levels[level]
    }

    /// Returns the location of the root, or none if there are no pages.
    pub(super) fn root(&self) -> Entry {
        self.levels.last().map_or(Entry::NONE, |top| top.at[0])
    }

    /// Extends the tables to `pages` page numbers.
    pub(super) fn extend(&mut self, pages: usize) {
        let mut below = pages;
        let mut level = 0;
        while below > 0 && (level == 0 || below > 1) {
            let tables = below.div_ceil(FANOUT);
            if level == self.levels.len() {
                self.levels.push(Level::default());
            }
            let at = &mut self.levels[level].at;
            if at.len() < tables {
                at.resize(tables, Entry::NONE);
            }
            below = tables;
            level += 1;
        }
    }

    /// Records that the entry of `page` changes.
    pub(super) fn changed(&mut self, page: u32, old: Entry, new: Entry) {
        self.levels[0].changed.insert(page / FANOUT as u32);
        self.used_pages += u64::from(!new.is_none());
        self.used_pages -= u64::from(!old.is_none());
    }

    /// Returns the number of pages in use.
    pub(super) fn used_pages(&self) -> u64 {
        self.used_pages
    }

    /// Counts the pages in use among the entries of all pages.
    pub(super) fn count_used(&mut self, pages: &[Entry]) {
        self.used_pages = pages.iter().filter(|entry| !entry.is_none()).count() as u64;
    }

    /// Returns the slots of the tables that a checkpoint replaces: the changed ones, and all above
    /// them.
    pub(super) fn replaced(&self) -> Vec<u32> {
        let mut slots = Vec::new();
        let mut changed = BTreeSet::new();
        for level in &self.levels {
            changed = changed.iter().map(|below| below / FANOUT as u32).chain(level.changed.iter().copied()).collect();
            slots.extend(changed.iter().map(|&index| level.at[index as usize].slot).filter(|&slot| slot != 0));
        }
        slots
    }

    /// Returns the maximum number of tables that a checkpoint writes, if entries of `more` pages,
    /// up to number `pages`, change before it.
    pub(super) fn to_write(&self, more: usize, pages: usize) -> usize {
        let mut changed = self.levels.first().map_or(0, |level| level.changed.len()) + more;
        let mut below = pages;
        let mut total = 0;
        while below > 0 && changed > 0 {
            let tables = below.div_ceil(FANOUT);
            changed = changed.min(tables);
            total += changed;
            if tables == 1 {
                break;
            }
            below = tables;
        }
        total
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn as_many_levels_as_pages_need() {
        let levels = |pages| Tables::new(pages).levels().iter().map(|level| level.at.len()).collect::<Vec<_>>();
        assert_eq!(levels(0), []);
        assert_eq!(levels(1), [1]);
        assert_eq!(levels(FANOUT), [1]);
        assert_eq!(levels(FANOUT + 1), [2, 1]);
        assert_eq!(levels(FANOUT * FANOUT + 1), [FANOUT + 1, 2, 1]);
        let mut grown = Tables::new(1);
        grown.extend(FANOUT * 2 + 1);
        assert_eq!(grown.levels().iter().map(|level| level.at.len()).collect::<Vec<_>>(), [3, 1]);
    }

    #[test]
    fn what_a_checkpoint_writes_is_bounded_by_what_there_is() {
        let mut tables = Tables::new(FANOUT * 3);
        assert_eq!(tables.to_write(0, FANOUT * 3), 0);
        let somewhere = Entry { slot: 9, checksum: 1 };
        tables.changed(5, Entry::NONE, somewhere);
        tables.changed(6, Entry::NONE, somewhere);
        assert_eq!(tables.used_pages(), 2);
        assert_eq!(tables.to_write(0, FANOUT * 3), 2, "a table and the root");
        assert_eq!(tables.to_write(1, FANOUT * 3), 3);
        assert_eq!(tables.to_write(100, FANOUT * 3), 4);
        assert_eq!(Tables::default().to_write(1, 1), 1);
    }
}
