//! Verification of an open store: everything durable equals the state in memory, byte by byte, and
//! each slot has one owner, or is free.

use std::sync::PoisonError;

use super::slot::{Entry, Slot};
use super::space::SlotSet;
use super::{FIRST_SLOT, FlipBackend, Writer, position};
use crate::backend::{Image, PageNo};
use crate::options::Access;
use crate::{Error, Result};

impl FlipBackend {
    pub(super) fn check_all(&self, found: &mut dyn FnMut(String)) -> Result<()> {
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let pages = self.pages.read().unwrap_or_else(PoisonError::into_inner).clone();
        self.check_pages(&pages, found)?;
        self.check_tables(&writer, found)?;
        self.check_chain(&writer, found)?;
        self.check_owners(&writer, &pages, found);
        Ok(())
    }

    fn check_pages(&self, pages: &[Entry], found: &mut dyn FnMut(String)) -> Result<()> {
        let mut image = Image::zeroed();
        for (page, &entry) in (0..).map(PageNo).zip(pages).filter(|(_, entry)| !entry.is_none()) {
            tell(self.read_at(page, entry, &mut image), found)?;
        }
        Ok(())
    }

    fn check_tables(&self, writer: &Writer, found: &mut dyn FnMut(String)) -> Result<()> {
        for (number, level) in writer.tables.levels().iter().enumerate() {
            for (index, &at) in level.at.iter().enumerate().filter(|(_, at)| !at.is_none()) {
                tell(self.read_table(writer, number, index, at).map(drop), found)?;
            }
        }
        Ok(())
    }

    /// Checks all links that recovery would follow.
    fn check_chain(&self, writer: &Writer, found: &mut dyn FnMut(String)) -> Result<()> {
        let mut bytes = Slot::zeroed();
        for &(slot, _) in &writer.chain {
            self.medium.read(position(slot), &mut bytes.0)?;
            if bytes.header(self.seed, "flips.check.checksum").is_none() {
                found(format!("slot {slot}, which recovery goes through: its checksum is wrong"));
            }
        }
        Ok(())
    }

    fn check_owners(&self, writer: &Writer, pages: &[Entry], found: &mut dyn FnMut(String)) {
        let mut owned = SlotSet::default();
        let mut own = |slot: u32, owner: &dyn Fn() -> String| {
            if slot == 0 {
                return;
            }
            if !owned.insert(slot) {
                found(format!("{} is in slot {slot}, which is another's", owner()));
            }
            if writer.space.is_free(slot) {
                found(format!("{} is in slot {slot}, which is taken to be free", owner()));
            }
        };
        for (page, entry) in (0..).map(PageNo).zip(pages) {
            own(entry.slot, &|| page.to_string());
        }
        for at in writer.tables.levels().iter().flat_map(|level| &level.at) {
            own(at.slot, &|| "a table".into());
        }
        for (page, entry) in &writer.spilled {
            own(entry.slot, &|| format!("{page}, spilled,"));
        }
        if self.access == Access::ReadWrite {
            own(writer.next, &|| "the next commit".into());
            own(writer.after, &|| "the commit after the next".into());
        }
        for &(slot, page) in &writer.chain {
            // The last version of a page was counted already.
            if page.is_none_or(|page| pages.get(page.0 as usize).is_none_or(|entry| entry.slot != slot)) {
                own(slot, &|| "a link".into());
            }
        }
        if self.access == Access::ReadWrite {
            let slots = FIRST_SLOT..writer.space.slots();
            for slot in slots.filter(|&slot| !owned.contains(slot) && !writer.space.is_free(slot)) {
                found(format!("slot {slot} is neither in use nor free"));
            }
        }
    }
}

/// Passes damage to `found`, and other errors to the caller.
fn tell(result: Result<()>, found: &mut dyn FnMut(String)) -> Result<()> {
    match result {
        Err(Error::Corrupt { reason, .. }) => {
            found(reason);
            Ok(())
        }
        result => result,
    }
}
