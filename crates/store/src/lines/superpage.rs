//! Commits by a super page: the paper's alternative to the journal.
//!
//! The present state of pages is in lines of a page that is itself shadow-paged, the *super page*:
//! each of its lines lies in one of two slots. A commit writes the lines of its pages in the slot
//! that does not have them, along with the data and before the same fence. Then it stores one word
//! of 8 bytes that selects the slot of each line. That word is the commit.
//!
//! A commit flushes one line for each page and one for the word, whereas the journal takes one for
//! three pages. It rewrites the same line, whereas the journal rotates through its ring. In return,
//! recovery reads two slots at most.
//!
//! ```text
//! line 0 of the first slot:
//!     word  u64: bits 0-31 which slot has each line, 32-39 lines in use, 40-63 check
//! lines 1-32 of both slots:
//!     0  check  u32: crc32c of bytes 4 .. 64, seeded with uuid and epoch
//!     4  page   u32    16  committed  u64
//!     8  first  u32    24  sum        u32
//!     12 second u32    28  kind       u32: 0 no page, 1 one slot, 2 a pair
//! ```
//! A checkpoint begins a new epoch: the word and the lines of the old one become invalid, and the
//! super page is empty. The superblock names the old word. A word that is neither that one nor of
//! this epoch is damaged, since a word is never torn. A commit of more pages than there are lines
//! goes into the journal, as does a commit of a store without a super page. Checkpoints keep the
//! two from being in use at once.

use std::collections::HashMap;

use super::checksum::Checksum;
use super::journal::{damaged, epoch_salt};
use super::layout::{Geometry, Slot};
use super::table::Place;
use crate::Result;
use crate::backend::{LINE_BYTES, PageNo};
use crate::bytes::{u32_at, u64_at};
use crate::medium::Medium;
use crate::mutant::skips;

/// The maximum number of pages in the super page.
pub(super) const LINES: usize = 32;
/// The number of its slots.
pub(super) const SLOTS: usize = 2;

/// The super page, as the writer sees it.
#[derive(Clone, Debug)]
pub(super) struct SuperPage {
    geometry: Geometry,
    salt: u32,
    /// Bit `i` selects the slot of line `i`.
    which: u32,
    /// The line of each page.
    lines: HashMap<PageNo, usize>,
    /// The word on the medium.
    word: Word,
}

/// The word that is a commit.
pub(super) type Word = [u8; 8];

impl SuperPage {
    /// Creates an empty super page, on a medium where `stale` is the word of another epoch.
    pub(super) fn new(geometry: Geometry, uuid: &[u8; 16], epoch: u64, stale: Word) -> Self {
        Self { geometry, salt: epoch_salt(uuid, epoch), which: 0, lines: HashMap::new(), word: stale }
    }

    /// Returns the word on the medium.
    pub(super) fn word(&self) -> Word {
        self.word
    }

    /// Returns the number of pages that have lines.
    pub(super) fn used(&self) -> usize {
        self.lines.len()
    }

    /// Reads the state of pages after the commits of `epoch`.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt) if the word, or a valid line, is damaged.
    pub(super) fn read(
        medium: &dyn Medium,
        geometry: Geometry,
        uuid: &[u8; 16],
        epoch: u64,
        stale: Word,
    ) -> Result<(Self, Vec<(PageNo, Place)>)> {
        let mut found = Self::new(geometry, uuid, epoch, stale);
        let mut head = [0; 8];
        medium.read(geometry.super_page(0, 0), &mut head)?;
        let (which, used) = (u32_at(&head, 0), head[4] as usize);
        if head == stale {
            return Ok((found, Vec::new()));
        }
        if !skips("lines.super.word-check") && head != encode_word(found.salt, which, used) {
            return Err(damaged(medium, "the first word of its super page is not what was written".into()));
        }
        found.word = head;
        let mut places = Vec::new();
        for line in 0..used.min(LINES) {
            let mut bytes = [0; LINE_BYTES];
            medium.read(geometry.super_page((which >> line) & 1, line + 1), &mut bytes)?;
            let (page, place) = decode_line(found.salt, &bytes).ok_or_else(|| {
                damaged(medium, format!("line {} of its super page is not what was written", line + 1))
            })?;
            found.lines.insert(page, line);
            places.push((page, place));
        }
        found.which = which;
        Ok((found, places))
    }

    /// Writes and flushes the lines of `places` beside the valid ones. The caller fences, and then
    /// calls [`commit`](Self::commit).
    pub(super) fn write(&mut self, medium: &dyn Medium, places: &[(PageNo, Place)]) -> Result<()> {
        for (page, place) in places {
            let line = match self.lines.get(page) {
                Some(line) => {
                    self.which ^= if skips("lines.super.beside") { 0 } else { 1 << line };
                    *line
                }
                None => {
                    let line = self.lines.len();
                    self.lines.insert(*page, line);
                    line
                }
            };
            let at = self.geometry.super_page((self.which >> line) & 1, line + 1);
            medium.write(at, &encode_line(self.salt, *page, *place))?;
            if !skips("lines.super.flush-line") {
                medium.flush(at, LINE_BYTES)?;
            }
        }
        Ok(())
    }

    /// Writes and flushes the word. The caller fences.
    pub(super) fn commit(&mut self, medium: &dyn Medium) -> Result<()> {
        let at = self.geometry.super_page(0, 0);
        self.word = encode_word(self.salt, self.which, self.lines.len());
        medium.write(at, &self.word)?;
        if !skips("lines.super.flush-word") {
            medium.flush(at, LINE_BYTES)?;
        }
        Ok(())
    }
}

fn encode_word(salt: u32, which: u32, used: usize) -> Word {
    let mut head = [0; 8];
    head[..4].copy_from_slice(&which.to_le_bytes());
    head[4] = used as u8;
    let check = crc32c::crc32c_append(salt, &head[..5]).to_le_bytes();
    head[5..].copy_from_slice(&check[..3]);
    head
}

fn encode_line(salt: u32, page: PageNo, place: Place) -> [u8; LINE_BYTES] {
    let (kind, slots, committed, sum): (u32, [Slot; 2], u64, u32) = match place {
        Place::Absent => (0, [0; 2], 0, 0),
        Place::Single { slot, checksum } => (1, [slot, 0], 0, checksum.stored()),
        Place::Pair { slots, committed, checksum } => (2, slots, committed, checksum.stored()),
    };
    let mut line = [0; LINE_BYTES];
    line[4..8].copy_from_slice(&page.0.to_le_bytes());
    line[8..12].copy_from_slice(&slots[0].to_le_bytes());
    line[12..16].copy_from_slice(&slots[1].to_le_bytes());
    line[16..24].copy_from_slice(&committed.to_le_bytes());
    line[24..28].copy_from_slice(&sum.to_le_bytes());
    line[28..32].copy_from_slice(&kind.to_le_bytes());
    let check = crc32c::crc32c_append(salt, &line[4..]);
    line[..4].copy_from_slice(&check.to_le_bytes());
    line
}

fn decode_line(salt: u32, line: &[u8; LINE_BYTES]) -> Option<(PageNo, Place)> {
    if !skips("lines.super.line-check") && u32_at(line, 0) != crc32c::crc32c_append(salt, &line[4..]) {
        return None;
    }
    let committed = u64_at(line, 16);
    let (first, second, checksum) = (u32_at(line, 8), u32_at(line, 12), Checksum::from_stored(u32_at(line, 24)));
    let place = match u32_at(line, 28) {
        0 => Place::Absent,
        1 => Place::Single { slot: first, checksum: checksum? },
        2 => Place::Pair { slots: [first, second], committed, checksum: checksum? },
        _ => return None,
    };
    Some((PageNo(u32_at(line, 4)), place))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::medium::{Granularity, Memory};
    use crate::options::CommitBy;

    #[test]
    fn the_word_decides_and_other_epochs_do_not_count() {
        let geometry = Geometry::new(8, 8, CommitBy::SuperPage).unwrap();
        let memory = Memory::new(Granularity::Line);
        memory.grow(geometry.len(1)).unwrap();
        let uuid = [3; 16];
        let place = |slot| Place::Single { slot, checksum: Checksum::from_stored(5).unwrap() };
        let read = |epoch| SuperPage::read(&memory, geometry, &uuid, epoch, [0; 8]).unwrap().1;
        let mut page = SuperPage::new(geometry, &uuid, 1, [0; 8]);
        page.write(&memory, &[(PageNo(4), place(1)), (PageNo(7), Place::Absent)]).unwrap();
        assert_eq!(read(1), []);
        page.commit(&memory).unwrap();
        assert_eq!(read(1), [(PageNo(4), place(1)), (PageNo(7), Place::Absent)]);
        page.write(&memory, &[(PageNo(4), place(2))]).unwrap();
        assert_eq!(read(1), [(PageNo(4), place(1)), (PageNo(7), Place::Absent)]);
        page.commit(&memory).unwrap();
        assert_eq!(read(1), [(PageNo(4), place(2)), (PageNo(7), Place::Absent)]);
        assert!(SuperPage::read(&memory, geometry, &uuid, 2, [0; 8]).is_err(), "not of this epoch, nor known");
        assert_eq!(SuperPage::read(&memory, geometry, &uuid, 2, page.word()).unwrap().1, []);
    }
}
