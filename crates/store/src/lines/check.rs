//! The parts of `check` beside the bytes of pages: tables and memory agree, and each slot has one
//! owner.

use std::collections::HashMap;

use super::Map;
use super::table::{Entry, PairEntry, Place};
use super::writer::{Writer, slots_of};
use crate::Result;
use crate::backend::{LINE_BYTES, PageNo};

impl Writer {
    /// Compares the tables with `map`, and reports slots with two owners or none.
    pub(super) fn check(&self, map: &Map, found: &mut dyn FnMut(String)) -> Result<()> {
        self.check_owners(map, found);
        let slots = self.regions * self.geometry.region_slots;
        for page in (0..slots).map(PageNo).filter(|page| !self.dirty.contains(page)) {
            let place = map.place(page);
            let mut entry = [0; 8];
            self.medium.read(self.geometry.entry(page), &mut entry)?;
            if entry != Entry::of(place).encode(page) {
                found(format!("the table entry of {page} is not what was written"));
            }
            if let Place::Pair { slots, committed, checksum } = place {
                let mut line = [0; LINE_BYTES];
                self.medium.read(self.geometry.line(slots[0], 0), &mut line)?;
                if line != (PairEntry { second: slots[1], committed, checksum }).encode() {
                    found(format!("line 0 of slot {}, of the pair of {page}, is not what was written", slots[0]));
                }
            }
        }
        Ok(())
    }

    fn check_owners(&self, map: &Map, found: &mut dyn FnMut(String)) {
        let mut owners: HashMap<u32, String> = HashMap::new();
        let mut own = |slot, owner: String| {
            if let Some(other) = owners.insert(slot, owner.clone()) {
                found(format!("slot {slot} belongs to {owner} and to {other}"));
            }
        };
        for (page, place) in map.pages() {
            slots_of(place).into_iter().for_each(|slot| own(slot, page.to_string()));
        }
        for (page, staged) in &self.spilled {
            staged.taken.into_iter().for_each(|slot| own(slot, format!("what was spilled of {page}")));
        }
        self.lists.iter().for_each(|slot| own(*slot, "its journal".into()));
        self.free.iter().for_each(|slot| own(*slot, "the free list".into()));
        let slots = self.regions * self.geometry.region_slots;
        for slot in (0..slots).filter(|slot| !owners.contains_key(slot)) {
            found(format!("slot {slot} is neither in use nor free"));
        }
    }
}
