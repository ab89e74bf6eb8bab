//! Small copies to and from the device, through page-locked memory and in the run's own stream.
//!
//! A copy from or to ordinary memory waits for itself, some 10 to 20 microseconds each; a pass needs a few: its constants
//! and morsels before the kernel, its status and groups after it. Here they queue up around the kernel, and whoever waits
//! for that has waited for all of them.
//!
//! Invariants:
//! - A byte of the memory is used once between two calls of [`Bounce::reset`], which waits for the stream.
//! - What was fetched is what the device had when the stream came to it: it is forgotten with the next reset, and nobody
//!   fetches before the last kernel that writes it.

use std::sync::Arc;

use super::Result;
use super::memory::Piece;
use crate::{Context, PinnedBuf, Stream};

/// Bytes of the memory: constants of a query, and its groups if there are not many.
const BYTES: usize = 1 << 20;
const ALIGNMENT: usize = 64;

/// Page-locked memory of a run.
#[derive(Debug)]
pub(super) struct Bounce {
    memory: PinnedBuf,
    used: usize,
    /// What was fetched, and where in the memory it lies.
    fetched: Vec<(Piece, usize)>,
}

impl Bounce {
    pub fn new(context: &Arc<Context>) -> Result<Self> {
        Ok(Self { memory: PinnedBuf::zeroed(context, BYTES)?, used: 0, fetched: Vec::new() })
    }

    /// Has all of its memory free again, after waiting for the stream if any of it was used.
    ///
    /// # Errors
    /// Those of the device, also of what was done in the stream.
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

    /// Copies to the first bytes of a piece, before what is launched next; `false` if there is no room for that.
    ///
    /// # Errors
    /// Those of the device.
    pub fn put(&mut self, stream: &Stream, to: Piece, bytes: &[u8]) -> Result<bool> {
        assert!(bytes.len() <= to.len, "{} bytes into {}", bytes.len(), to.len);
        let Some(at) = self.take(bytes.len()) else { return Ok(false) };
        let from = &mut self.memory[at..at + bytes.len()];
        from.copy_from_slice(bytes);
        // SAFETY: the piece is the run's own and as long; these bytes are not touched before the stream was waited for.
        unsafe { stream.copy_to_device(to.address, from.as_ptr(), from.len())? };
        Ok(true)
    }

    /// Copies a piece from the device, after what was launched. It can be [had](Bounce::fetched) when the stream was waited
    /// for. What there is no room for is not copied.
    ///
    /// # Errors
    /// Those of the device.
    pub fn fetch(&mut self, stream: &Stream, from: Piece) -> Result<()> {
        let Some(at) = self.take(from.len) else { return Ok(()) };
        let to = &mut self.memory[at..at + from.len];
        // SAFETY: the piece is the run's own and as long; these bytes are not touched before the stream was waited for.
        unsafe { stream.copy_to_host(to.as_mut_ptr(), from.address, to.len())? };
        self.fetched.push((from, at));
        Ok(())
    }

    /// What was fetched of a piece, if it was.
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
