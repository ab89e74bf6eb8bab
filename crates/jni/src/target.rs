//! Where bytes go: a Java array, or memory outside the heap that a direct buffer stands for.
//!
//! The bounds are looked at here, before anything is copied, whatever the Java half has looked at already.

use std::marker::PhantomData;

use jni::Env;
use jni::objects::{JByteArray, JByteBuffer};

use crate::failure::{Failure, Result};

/// A place for some bytes.
pub trait Target {
    /// Puts the next bytes.
    fn put(&mut self, bytes: &[u8]) -> Result<()>;
}

impl Target for Box<dyn Target + '_> {
    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        (**self).put(bytes)
    }
}

/// A part of a Java array.
pub struct ArrayTarget<'a, 'local> {
    env: &'a Env<'local>,
    array: &'a JByteArray<'local>,
    range: std::ops::Range<usize>,
}

/// A part of a direct buffer. A pointer, not a slice: who reads ranges may have given one buffer for two of them.
pub struct DirectTarget<'a> {
    next: *mut u8,
    room: usize,
    buffer: PhantomData<&'a JByteBuffer<'a>>,
}

/// Offset and length as Java has them, as a range of something that has `size` bytes.
fn range(offset: i32, len: i32, size: usize) -> Result<std::ops::Range<usize>> {
    let start = usize::try_from(offset).ok();
    let end = start.zip(usize::try_from(len).ok()).and_then(|(start, len)| start.checked_add(len));
    match (start, end) {
        (Some(start), Some(end)) if end <= size => Ok(start..end),
        _ => Err(Failure::Misuse(format!("{len} bytes at {offset} of a buffer of {size}"))),
    }
}

impl<'a, 'local> ArrayTarget<'a, 'local> {
    pub fn new(env: &'a Env<'local>, array: &'a JByteArray<'local>, offset: i32, len: i32) -> Result<Self> {
        let range = range(offset, len, array.len(env)?)?;
        Ok(Self { env, array, range })
    }
}

impl Target for ArrayTarget<'_, '_> {
    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        let fits = bytes.len() <= self.range.len();
        let at = i32::try_from(self.range.start).ok().filter(|_| fits);
        let at = at.ok_or_else(|| Failure::Misuse(format!("{} bytes too many", bytes.len())))?;
        // SAFETY: as many bytes, of which each is a value of `i8` as well.
        let signed = unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast::<i8>(), bytes.len()) };
        self.array.set_region(self.env, at, signed)?;
        self.range.start += bytes.len();
        Ok(())
    }
}

impl<'a> DirectTarget<'a> {
    pub fn new(env: &Env<'_>, buffer: &'a JByteBuffer<'_>, offset: i32, len: i32) -> Result<Self> {
        let (next, room) = direct(env, buffer, offset, len)?;
        Ok(Self { next, room, buffer: PhantomData })
    }
}

impl Target for DirectTarget<'_> {
    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        if bytes.len() > self.room {
            return Err(Failure::Misuse(format!("{} bytes too many", bytes.len() - self.room)));
        }
        // SAFETY: so much room is in the buffer, whose memory lives as long as the reference to it; and what was read is in
        // memory of ours.
        unsafe {
            self.next.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            self.next = self.next.add(bytes.len());
        }
        self.room -= bytes.len();
        Ok(())
    }
}

/// The bytes of a part of a direct buffer.
///
/// Java could change them at the same time from another thread: the contract of `io.onehop.rados.Native` is that nobody
/// does while a call has the buffer, and only streams that hold their own lock call.
pub fn direct_bytes<'a>(env: &Env<'_>, buffer: &'a JByteBuffer<'_>, offset: i32, len: i32) -> Result<&'a [u8]> {
    let (start, len) = direct(env, buffer, offset, len)?;
    // SAFETY: inside the buffer, whose memory lives as long as the reference to it; nobody changes it: see above.
    Ok(unsafe { std::slice::from_raw_parts(start, len) })
}

/// Where a part of a direct buffer is, and how long.
fn direct(env: &Env<'_>, buffer: &JByteBuffer<'_>, offset: i32, len: i32) -> Result<(*mut u8, usize)> {
    let range = range(offset, len, env.get_direct_buffer_capacity(buffer)?)?;
    let address = env.get_direct_buffer_address(buffer)?;
    // SAFETY: inside the buffer, or at its end.
    Ok((unsafe { address.add(range.start) }, range.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_inside() {
        assert!(range(0, 0, 0).is_ok_and(|range| range == (0..0)));
        assert!(range(3, 2, 5).is_ok_and(|range| range == (3..5)));
        for (offset, len, size) in [(3, 3, 5), (-1, 1, 5), (0, -1, 5), (i32::MAX, i32::MAX, 5), (6, 0, 5)] {
            assert!(range(offset, len, size).is_err(), "{offset} {len}");
        }
    }
}
