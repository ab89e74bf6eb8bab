//! A queue that is kept as full as its device wants it, in transfers and in bytes.
//!
//! Invariant: what is in flight is at most [`Queue::depth`] transfers, and [`Queue::depth_bytes`] but for the last that
//! began.

use std::io;

use super::{Done, Queue, Transfer};

/// Counts the bytes in flight.
#[derive(Debug)]
pub(crate) struct Metered<B> {
    queue: Box<dyn Queue<B>>,
    bytes: usize,
}

impl<B> Metered<B> {
    pub fn new(queue: Box<dyn Queue<B>>) -> Self {
        Self { queue, bytes: 0 }
    }

    /// Whether another transfer would be of use.
    pub fn has_room(&self) -> bool {
        self.queue.in_flight() < self.queue.depth() && self.bytes < self.queue.depth_bytes()
    }

    /// Whether nothing is in flight.
    pub fn is_idle(&self) -> bool {
        self.queue.in_flight() == 0
    }

    /// As [`Queue::submit`].
    pub fn submit(&mut self, transfer: Transfer<B>) {
        self.bytes += transfer.bytes;
        self.queue.submit(transfer);
    }

    /// As [`Queue::reap`], until one has come back.
    pub fn reap(&mut self, done: &mut Vec<Done<B>>) -> io::Result<()> {
        let before = done.len();
        let outcome = self.queue.reap(1, done);
        self.bytes -= done[before..].iter().map(|one| one.transfer.bytes).sum::<usize>();
        outcome
    }
}
