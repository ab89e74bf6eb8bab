//! Lines of a page that lies in two slots: reads of the valid ones, and writes beside them.
//!
//! Invariant: a line that is not in `updated` is never written in the slot that `which` selects for
//! it, which has its committed version. It is written in the other slot, and changes sides. A line
//! in `updated` is rewritten in place.

use super::checksum::Checksum;
use super::layout::{Geometry, Slot};
use crate::Result;
use crate::backend::{Image, LINE_BYTES, PageNo, SLOT_LINES};
use crate::medium::Medium;
use crate::mutant::skips;

/// A page as the open transaction sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Staged {
    /// The slots of the page: twice the same slot if it lies in one.
    pub(super) slots: [Slot; 2],
    /// Bit `i` selects the slot of line `i`: committed bitmap ^ updated bitmap.
    pub(super) which: u64,
    /// The lines that the transaction has written: the updated bitmap.
    pub(super) updated: u64,
    /// The checksum with those lines.
    pub(super) checksum: Checksum,
    /// The free slot that was taken for the page.
    pub(super) taken: Option<Slot>,
}

/// Adjacent lines in one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    slot: Slot,
    /// The first line, counted in the slot.
    line: usize,
    lines: usize,
}

impl Run {
    /// Returns the byte range of the page.
    fn bytes(self) -> std::ops::Range<usize> {
        (self.line - 1) * LINE_BYTES..(self.line - 1 + self.lines) * LINE_BYTES
    }
}

/// Returns the lines of `mask`, which does not have line 0, in runs.
pub(super) fn runs(slots: [Slot; 2], which: u64, mask: u64) -> impl Iterator<Item = Run> {
    let mut line = 0;
    std::iter::from_fn(move || {
        line += (mask.checked_shr(line as u32)?).trailing_zeros() as usize;
        if line >= SLOT_LINES {
            return None;
        }
        let side = (which >> line) & 1;
        let first = line;
        while line < SLOT_LINES && (mask >> line) & 1 == 1 && (which >> line) & 1 == side {
            line += 1;
        }
        Some(Run { slot: slots[side as usize], line: first, lines: line - first })
    })
}

/// Reads the lines of `mask` into their positions in `into`.
pub(super) fn read(
    medium: &dyn Medium,
    geometry: Geometry,
    slots: [Slot; 2],
    which: u64,
    mask: u64,
    into: &mut Image,
) -> Result<()> {
    for run in runs(slots, which, mask) {
        medium.read(geometry.line(run.slot, run.line), &mut into.0[run.bytes()])?;
    }
    Ok(())
}

/// Writes and flushes the lines of `mask`. Returns their number. The caller fences.
pub(super) fn write(
    medium: &dyn Medium,
    geometry: Geometry,
    slots: [Slot; 2],
    which: u64,
    mask: u64,
    image: &Image,
) -> Result<u64> {
    for run in runs(slots, which, mask) {
        let (at, bytes) = (geometry.line(run.slot, run.line), &image.0[run.bytes()]);
        medium.write(at, bytes)?;
        if !skips("lines.commit.flush-data") {
            medium.flush(at, bytes.len())?;
        }
    }
    Ok(u64::from(mask.count_ones()))
}

/// Returns the lines of `mask` in which `now` and `image` differ.
pub(super) fn differing(now: &Image, image: &Image, mask: u64) -> u64 {
    let pairs = now.0.as_chunks::<LINE_BYTES>().0.iter().zip(image.0.as_chunks::<LINE_BYTES>().0);
    pairs.zip(1..).fold(0, |different, ((now, new), line)| different | u64::from(now != new) << line) & mask
}

impl Staged {
    /// Stages `image`, which differs from the present contents, `now`, in the lines of `mask`.
    pub(super) fn update(&mut self, now: &Image, image: &Image, mask: u64) {
        let fresh = if skips("lines.shadow.beside") { 0 } else { mask & !self.updated };
        if self.slots[0] != self.slots[1] {
            self.which ^= fresh;
        }
        self.updated |= mask;
        for line in (1..SLOT_LINES).filter(|line| (mask >> line) & 1 == 1) {
            let bytes = (line - 1) * LINE_BYTES..line * LINE_BYTES;
            self.checksum = self.checksum.without(line, &now.0[bytes.clone()]).with(line, &image.0[bytes]);
        }
    }

    /// Stages a page that is written as a whole into a free slot.
    pub(super) fn whole(page: PageNo, image: &Image, slot: Slot) -> Self {
        Self { slots: [slot; 2], which: 0, updated: !1, checksum: Checksum::of(page, image), taken: Some(slot) }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn runs_cover_the_mask_and_end_where_the_slot_changes() {
        let run = |slot, line, lines| Run { slot, line, lines };
        let found: Vec<Run> = runs([7, 9], 0b1100, 0b1_1110).collect();
        assert_eq!(found, [run(7, 1, 1), run(9, 2, 2), run(7, 4, 1)]);
        assert_eq!(runs([7, 7], 0, !1).collect::<Vec<_>>(), [run(7, 1, 63)]);
        assert_eq!(runs([7, 9], 1 << 63, 1 << 63 | 2).collect::<Vec<_>>(), [run(7, 1, 1), run(9, 63, 1)]);
        assert_eq!(runs([7, 9], 0, 0).count(), 0);
    }

    #[test]
    fn differing_lines_are_found_within_the_mask() {
        let mut image = Image::zeroed();
        image.0[0] = 1;
        image.0[64 * 62 + 63] = 1;
        assert_eq!(differing(&Image::zeroed(), &image, !1), 1 << 63 | 2);
        assert_eq!(differing(&Image::zeroed(), &image, 2), 2);
    }
}
