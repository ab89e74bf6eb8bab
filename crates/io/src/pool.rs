//! A fixed set of equal page-aligned buffers in one allocation.
//!
//! Invariants:
//! - A [`PoolBuf`] is the only way to its bytes, and there is one at most for each buffer: it goes back when it is
//!   dropped, wherever that happens.
//! - The memory is freed when the last of the pool, its buffers and the queues that registered it with the system is
//!   gone, never before: what is in flight is owned by its queue, and the queue holds the pool.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Acquire;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::{AlignedBuf, PAGE_BYTES};

/// Buffers to lend.
#[derive(Debug)]
pub struct Pool {
    memory: Memory,
    buffer_bytes: usize,
    buffers: usize,
    free: Mutex<Free>,
    returned: Condvar,
}

#[derive(Debug)]
struct Free {
    buffers: Vec<usize>,
    /// Threads that wait for one: telling nobody costs a system call as well.
    waiting: usize,
}

/// One allocation that is handed out in parts that do not overlap.
#[derive(Debug)]
struct Memory {
    start: *mut u8,
    /// Never looked into again: `start` is the only way in.
    _owner: AlignedBuf,
}

// SAFETY: the bytes are reached through `PoolBuf`s alone, of which each owns a part that no other one has.
unsafe impl Send for Memory {}
// SAFETY: as above; the pool itself never touches the bytes.
unsafe impl Sync for Memory {}

impl Pool {
    /// `buffers` buffers of `buffer_bytes`, rounded up to whole pages. All zero.
    pub fn new(buffers: usize, buffer_bytes: usize) -> Arc<Self> {
        let buffer_bytes = buffer_bytes.next_multiple_of(PAGE_BYTES).max(PAGE_BYTES);
        let mut owner = AlignedBuf::zeroed(buffer_bytes * buffers);
        let memory = Memory { start: owner.padded_mut().as_mut_ptr(), _owner: owner };
        let free = Mutex::new(Free { buffers: (0..buffers).rev().collect(), waiting: 0 });
        Arc::new(Self { memory, buffer_bytes, buffers, free, returned: Condvar::new() })
    }

    /// Bytes of each buffer.
    pub fn buffer_bytes(&self) -> usize {
        self.buffer_bytes
    }

    /// How many there are.
    pub fn buffers(&self) -> usize {
        self.buffers
    }

    /// A buffer, if one is free. Its contents are what its last owner left.
    pub fn take(self: &Arc<Self>) -> Option<PoolBuf> {
        let number = self.free().buffers.pop()?;
        Some(PoolBuf { pool: Arc::clone(self), number })
    }

    /// Waits until a buffer is free, or it is over.
    pub fn wait_for(&self, is_over: &AtomicBool) {
        let mut free = self.free();
        while free.buffers.is_empty() && !is_over.load(Acquire) {
            free.waiting += 1;
            free = self.returned.wait(free).unwrap_or_else(PoisonError::into_inner);
            free.waiting -= 1;
        }
    }

    /// Has everybody who waits look whether it is over.
    pub fn wake(&self) {
        let _free = self.free();
        self.returned.notify_all();
    }

    fn free(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where buffer `number` starts: for who registers all of them with the system.
    pub(crate) fn address(&self, number: usize) -> *mut u8 {
        assert!(number < self.buffers);
        // SAFETY: `buffers` times `buffer_bytes` were allocated from `start` on.
        unsafe { self.memory.start.add(number * self.buffer_bytes) }
    }
}

/// A buffer of a [`Pool`]; goes back when it is dropped.
#[derive(Debug)]
pub struct PoolBuf {
    pool: Arc<Pool>,
    number: usize,
}

impl PoolBuf {
    /// The pool that it is of.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Which of its buffers.
    pub fn number(&self) -> usize {
        self.number
    }
}

impl Deref for PoolBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: this part of the allocation is initialised, and this value alone may reach it.
        unsafe { std::slice::from_raw_parts(self.pool.address(self.number), self.pool.buffer_bytes) }
    }
}

impl DerefMut for PoolBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and self is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.pool.address(self.number), self.pool.buffer_bytes) }
    }
}

impl Drop for PoolBuf {
    fn drop(&mut self) {
        let mut free = self.pool.free();
        free.buffers.push(self.number);
        let is_waited_for = free.waiting > 0;
        drop(free);
        if is_waited_for {
            self.pool.returned.notify_all();
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_belongs_to_one() {
        let pool = Pool::new(3, 5000);
        assert_eq!(pool.buffer_bytes(), 8192);
        let mut all: Vec<PoolBuf> = (0..3).map(|_| pool.take().unwrap()).collect();
        assert!(pool.take().is_none());
        for (i, buf) in all.iter_mut().enumerate() {
            buf.fill(i as u8 + 1);
        }
        assert!(all.iter().enumerate().all(|(i, buf)| buf.iter().all(|byte| *byte == i as u8 + 1)));
        drop(all.remove(1));
        assert_eq!(pool.take().unwrap().number(), 1);
    }

    #[test]
    fn who_waits_gets_what_comes_back() {
        let pool = Pool::new(1, 1);
        let held = pool.take();
        let waiting = {
            let pool = Arc::clone(&pool);
            std::thread::spawn(move || {
                pool.wait_for(&AtomicBool::new(false));
                pool.take().map(|buf| buf.number())
            })
        };
        drop(held);
        assert_eq!(waiting.join().unwrap(), Some(0));
    }

    #[test]
    fn buffers_outlive_the_pool_s_owner() {
        let pool = Pool::new(2, 4096);
        let mut buf = pool.take().unwrap();
        drop(pool);
        buf.fill(7);
        assert!(buf.iter().all(|byte| *byte == 7));
    }
}
