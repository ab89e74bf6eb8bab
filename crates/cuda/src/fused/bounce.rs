//! Small copies to and from the device, through page-locked memory and in the run's own stream.
//!
//! A copy from or to pageable memory is synchronous and takes some 10 to 20 microseconds. A pass
//! needs a few: its constants and morsels before the kernel, its status and groups after it. Copies
//! through this buffer are queued around the kernel, so one wait for the stream completes all of
//! them.
//!
//! Invariants:
//! - A byte of the buffer is used once between two calls of [`Bounce::reset`], which waits for the
//!   stream.
//! - Fetched bytes are the device's content at that position of the stream. They are valid until
//!   the next reset. No caller fetches before the last kernel that writes them.

use std::sync::Arc;

use super::Result;
use super::memory::Piece;
use crate::{Context, PinnedBuf, Stream};

/// Size of the buffer in bytes: enough for the constants of a query, and for its groups if there
/// are few.
const BYTES: usize = 1 << 20;
const ALIGNMENT: usize = 64;

/// Page-locked buffer of one run.
#[derive(Debug)]
pub(super) struct Bounce {
    memory: PinnedBuf,
    used: usize,
    /// Fetched pieces, and their offsets in the buffer.
    fetched: Vec<(Piece, usize)>,
}

impl Bounce {
    pub fn new(context: &Arc<Context>) -> Result<Self> {
        Ok(Self { memory: PinnedBuf::zeroed(context, BYTES)?, used: 0, fetched: Vec::new() })
    }

    /// Frees the whole buffer. Waits for the stream first if any of the buffer was used.
    ///
    /// # Errors
    /// Errors of the device, also those of earlier work in the stream.
    pub fn reset(&mut self, stream: &Stream) -> Result<()> {
        self.fetched.clear();
        if self.used > 0 {
            stream.synchronize()?;
            self.used = 0;
        }
        Ok(())
    }

    fn take(&mut self, len: usize) -> Option<usize> {
        let at = self.used;
        let end = at.checked_add(len).filter(|end| *end <= self.memory.len())?;
        self.used = end.next_multiple_of(ALIGNMENT);
        Some(at)
    }

    /// Copies `bytes` to the beginning of a piece, before the next launch. Returns `false` if the
    /// buffer has no room.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn put(&mut self, stream: &Stream, to: Piece, bytes: &[u8]) -> Result<bool> {
        assert!(bytes.len() <= to.len, "{} bytes into {}", bytes.len(), to.len);
        let Some(at) = self.take(bytes.len()) else { return Ok(false) };
        let from = &mut self.memory[at..at + bytes.len()];
        from.copy_from_slice(bytes);
        // SAFETY: the piece belongs to the run and is at least as long. The run does not touch
        // these bytes before it has waited for the stream.
        unsafe { stream.copy_to_device(to.address, from.as_ptr(), from.len())? };
        Ok(true)
    }

    /// Copies a piece from the device, after the launches so far. [`Bounce::fetched`] returns it
    /// once the stream has been waited for. A piece that the buffer has no room for is not copied.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn fetch(&mut self, stream: &Stream, from: Piece) -> Result<()> {
        let Some(at) = self.take(from.len) else { return Ok(()) };
        let to = &mut self.memory[at..at + from.len];
        // SAFETY: the piece belongs to the run and is as long as the target. The run does not touch
        // these bytes before it has waited for the stream.
        unsafe { stream.copy_to_host(to.as_mut_ptr(), from.address, to.len())? };
        self.fetched.push((from, at));
        Ok(())
    }

    /// Returns the fetched bytes of a piece, if it was fetched.
    pub fn fetched(&self, piece: Piece) -> Option<&[u8]> {
        let is_it = |(other, _): &&(Piece, usize)| (other.address, other.len) == (piece.address, piece.len);
        let (_, at) = self.fetched.iter().find(is_it)?;
        Some(&self.memory[*at..*at + piece.len])
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::fake;
    use crate::fused::memory::{Arena, Pool};

    #[test]
    fn what_was_put_is_fetched_until_the_next_reset() {
        let context = fake::context();
        let (stream, mut arena) = (Stream::new(&context).unwrap(), Arena::new(&context, &Pool::default()));
        let mut bounce = Bounce::new(&context).unwrap();
        let [a, b] = [100, 1000].map(|len| arena.take(len).unwrap());
        assert!(bounce.put(&stream, a, &[7; 100]).unwrap());
        assert!(bounce.put(&stream, b, &[8; 1000]).unwrap());
        bounce.fetch(&stream, a).unwrap();
        stream.synchronize().unwrap();
        assert_eq!(bounce.fetched(a), Some(&[7; 100][..]));
        assert_eq!(bounce.fetched(b), None);
        assert_eq!(arena.read(b, 1000).unwrap(), [8; 1000]);
        bounce.reset(&stream).unwrap();
        assert_eq!(bounce.fetched(a), None);
    }

    #[test]
    fn what_there_is_no_room_for_is_left_to_others() {
        let context = fake::context();
        let (stream, mut arena) = (Stream::new(&context).unwrap(), Arena::new(&context, &Pool::default()));
        let mut bounce = Bounce::new(&context).unwrap();
        let large = arena.take(BYTES / 4 * 3).unwrap();
        assert!(bounce.put(&stream, large, &vec![1; large.len]).unwrap());
        assert!(!bounce.put(&stream, large, &vec![2; large.len]).unwrap());
        bounce.fetch(&stream, large).unwrap();
        stream.synchronize().unwrap();
        assert_eq!(bounce.fetched(large), None);
        assert!(arena.read(large, large.len).unwrap().iter().all(|byte| *byte == 1));
        bounce.reset(&stream).unwrap();
        bounce.fetch(&stream, large).unwrap();
        stream.synchronize().unwrap();
        assert!(bounce.fetched(large).unwrap().iter().all(|byte| *byte == 1));
    }
}
