//! A file that is being read: by position, from many threads at once; or one place after the other.
//!
//! What is read one place after the other is read ahead, by the [`Policy`]; a *cursor* has what has come and what is on its
//! way. A read elsewhere drops the cursor, unless it is of bytes that are there already, or of some a short way ahead. A cursor
//! begins at a block's start, since a block is read whole to be verified: so whoever reads the last bytes of a file to learn
//! where its footer begins finds the footer there.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use onehop_io::Ledger;
use onehop_io::rados::fs::{File, Piece, Reader};

use crate::failure::{Failure, Result};
use crate::target::Target;

/// What is verified as a whole, and so read as a whole.
const BLOCK_BYTES: u64 = 64 << 10;
/// What is asked for first at a new place, by [`Policy::Adaptive`].
const FIRST_BYTES: u64 = 128 << 10;
/// So far ahead is read through rather than asked for anew.
const SKIP_BYTES: u64 = 256 << 10;

/// What a stream will probably be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Everything, from where it is: all of the window is asked for at once.
    Sequential,
    /// Some here and some there: nothing is read ahead.
    Random,
    /// It will be seen: little at each new place, then more and more.
    Adaptive,
}

impl Policy {
    /// The policy of a name of ours.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "sequential" => Some(Self::Sequential),
            "random" => Some(Self::Random),
            "adaptive" => Some(Self::Adaptive),
            _ => None,
        }
    }
}

/// An input stream.
#[derive(Debug)]
pub struct Input {
    pub file: File,
    policy: Policy,
    ledger: Arc<Ledger>,
    cursor: Mutex<Option<Cursor>>,
}

#[derive(Debug)]
struct Cursor {
    reader: Reader,
    piece: Piece,
    /// Where the first byte of the piece that counts is in the file.
    start: u64,
}

impl Cursor {
    /// The bytes that are there, and where they are.
    fn bytes(&self) -> &[u8] {
        &self.piece.bytes[self.piece.skip..]
    }

    fn range(&self) -> Range<u64> {
        self.start..self.start + self.bytes().len() as u64
    }

    /// Goes on to the next piece; false: there is none.
    fn advance(&mut self) -> Result<bool> {
        let Some(piece) = self.reader.next_piece()? else { return Ok(false) };
        self.start = self.range().end;
        self.piece = piece;
        Ok(true)
    }
}

impl Input {
    pub fn new(file: File, policy: Policy, ledger: Arc<Ledger>) -> Self {
        Self { file, policy, ledger, cursor: Mutex::new(None) }
    }

    /// Reads from a place on: at least `least` bytes, fewer only at the end of the file, and up to `most` if they are there
    /// already.
    pub fn read(&self, at: u64, least: usize, most: usize, target: &mut impl Target) -> Result<usize> {
        let end = self.file.size();
        let (least, most) = (least.min(most) as u64, most as u64);
        let until = at.saturating_add(most).min(end);
        let needed = at.saturating_add(least).min(end);
        let mut guard = self.cursor.lock().unwrap_or_else(PoisonError::into_inner);
        // After an error there is no cursor.
        let mut cursor = match guard.take().filter(|cursor| reaches(cursor, at)) {
            Some(cursor) => cursor,
            None if at < end => self.cursor_at(at..needed.max(at + 1)),
            None => return Ok(0),
        };
        let mut next = at;
        while next < until {
            let there = cursor.range();
            if !there.contains(&next) {
                if next >= needed && next > at {
                    break;
                }
                if !cursor.advance()? {
                    // A cursor of what was asked for, no further.
                    cursor = self.cursor_at(next..needed.max(next + 1));
                }
                continue;
            }
            let part = index(next - there.start)..index(until.min(there.end) - there.start);
            next += part.len() as u64;
            target.put(&cursor.bytes()[part])?;
        }
        *guard = Some(cursor);
        Ok(index(next - at))
    }

    fn cursor_at(&self, wanted: Range<u64>) -> Cursor {
        let start = wanted.start / BLOCK_BYTES * BLOCK_BYTES;
        let wanted_bytes = (wanted.end - start).next_multiple_of(BLOCK_BYTES);
        let (file, ledger) = (&self.file, Arc::clone(&self.ledger));
        let reader = match self.policy {
            Policy::Sequential => file.reader(start..file.size(), ledger),
            Policy::Random => file.reader(start..start + wanted_bytes, ledger),
            Policy::Adaptive => file.cautious_reader(start..file.size(), wanted_bytes.max(FIRST_BYTES), ledger),
        };
        Cursor { reader, piece: Piece { bytes: Vec::new(), skip: 0 }, start }
    }

    /// Reads a range, whatever else is read: short at the end of the file.
    pub fn read_at(&self, at: u64, len: usize, target: &mut impl Target) -> Result<usize> {
        let mut reader = self.file.reader(at..at.saturating_add(len as u64), Arc::clone(&self.ledger));
        let mut read = 0;
        while let Some(piece) = reader.next_piece()? {
            let bytes = &piece.bytes[piece.skip..];
            target.put(bytes)?;
            read += bytes.len();
        }
        Ok(read)
    }

    /// Reads ranges side by side, each into the target of its number. All of them must be inside the file.
    pub fn read_ranges<T: Target>(&self, ranges: &[Range<u64>], targets: &mut [T]) -> Result<()> {
        if let Some(beyond) = ranges.iter().find(|range| range.end > self.file.size()) {
            let size = self.file.size();
            return Err(Failure::Misuse(format!("bytes {beyond:?} were asked for, and there are {size}")));
        }
        self.file.visit_ranges(ranges, &self.ledger, |number, bytes| match targets.get_mut(number) {
            Some(target) => target.put(bytes),
            None => Err(Failure::Misuse(format!("range {number} has no buffer"))),
        })
    }

    /// Gives back the memory of what was read ahead.
    pub fn unbuffer(&self) {
        *self.cursor.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Whether a cursor has a place, or gets there soon.
fn reaches(cursor: &Cursor, at: u64) -> bool {
    let there = cursor.range();
    at >= there.start && at <= there.end.saturating_add(SKIP_BYTES)
}

/// A length of something in memory.
fn index(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::mount::tests::in_memory;
    use onehop_io::rados::fs::Replace;

    impl Target for Vec<u8> {
        fn put(&mut self, bytes: &[u8]) -> Result<()> {
            self.extend_from_slice(bytes);
            Ok(())
        }
    }

    #[test]
    fn every_policy_reads_what_is_there_wherever_it_goes() {
        let mount = in_memory();
        let bytes: Vec<u8> = (0..900_001u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let mut writer = mount.fs.create_file("/f", Replace::Never, mount.ledger.clone()).unwrap();
        writer.append(&bytes).unwrap();
        writer.close().unwrap();
        let size = bytes.len() as u64;
        // Forward by steps, short and long skips, back, the end, beyond it.
        let places = [0, 10, 70_000, 69_990, 400_000, 399_000, 0, size - 8, size - 60_000, size - 1, size, size + 9, 5];
        for policy in [Policy::Sequential, Policy::Random, Policy::Adaptive] {
            let input = Input::new(mount.fs.open_file("/f").unwrap(), policy, mount.ledger.clone());
            for at in places {
                for (least, most) in [(1, 1), (1, 70_000), (130_000, 130_000), (1, 0)] {
                    let mut read = Vec::new();
                    let n = input.read(at, least, most, &mut read).unwrap();
                    assert_eq!(n, read.len());
                    let rest = usize::try_from(size.saturating_sub(at)).unwrap();
                    assert!(n >= least.min(most).min(rest) && n <= most, "{policy:?} {at} {least} {most}: {n}");
                    let from = usize::try_from(at.min(size)).unwrap();
                    assert_eq!(read, bytes[from..from + n], "{policy:?} {at}");
                }
            }
            input.unbuffer();
            let mut read = Vec::new();
            assert_eq!(input.read_at(size - 10, 100, &mut read).unwrap(), 10);
            assert_eq!(read, bytes[bytes.len() - 10..]);
            let mut both = [Vec::new(), Vec::new()];
            input.read_ranges(&[5..200_000, 700_000..700_003], &mut both).unwrap();
            assert_eq!(both[0], bytes[5..200_000]);
            assert_eq!(both[1], bytes[700_000..700_003]);
            let beyond = size - 1..size + 1;
            assert!(input.read_ranges(std::slice::from_ref(&beyond), &mut both).is_err());
        }
    }

    #[test]
    fn random_reads_ask_for_the_blocks_they_need() {
        let mount = in_memory();
        let mut writer = mount.fs.create_file("/f", Replace::Never, mount.ledger.clone()).unwrap();
        writer.append(&vec![1; 4 << 20]).unwrap();
        writer.close().unwrap();
        let requests = |policy| {
            let before = mount.ledger.snapshot().read_ops;
            let input = Input::new(mount.fs.open_file("/f").unwrap(), policy, mount.ledger.clone());
            input.read(1 << 20, 8, 8, &mut Vec::new()).unwrap();
            mount.ledger.snapshot().read_ops - before
        };
        // Chunks are blocks here.
        assert_eq!(requests(Policy::Random), 1);
        assert_eq!(requests(Policy::Adaptive), FIRST_BYTES / BLOCK_BYTES);
    }
}
