//! Transfers that are begun and finished apart, so that many are in flight at once.
//!
//! A [`Queue`] **owns** the buffer of a transfer from [`Queue::submit`] until it is handed back by [`Queue::reap`]:
//! nobody can look at it, reuse it or free it in between, whatever kind of memory it is. A queue that is dropped with
//! transfers in flight waits for them.
//!
//! A queue moves what the system moves: a transfer may come back with fewer bytes than asked, or interrupted.
//! [`Transfer::advance`] says what to do about it, for every kind of queue in one place.

mod blocking;
mod faulty;
mod fixed;
mod metered;
mod uring;

use std::fmt;
use std::io;

pub use blocking::BlockingQueue;
pub use faulty::FaultyQueue;
pub use fixed::Registered;
pub(crate) use metered::Metered;
pub use uring::UringQueue;

use crate::Path;

/// What a transfer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the file into the buffer.
    Read,
    /// From the buffer into the file.
    Write,
}

/// Bytes to be moved between a file and a part of a buffer.
#[derive(Debug)]
pub struct Transfer<B> {
    /// Which way.
    pub direction: Direction,
    /// Which of the queue's files, counted from 0.
    pub file: usize,
    /// Where in the file. In bytes.
    pub offset: u64,
    /// Where in the buffer. In bytes.
    pub at: usize,
    /// How many bytes to ask for.
    pub bytes: usize,
    /// How many bytes must have been moved, at most `bytes`: a read of whole pages at the end of a file asks for more
    /// than there is.
    pub needed: usize,
    /// The memory.
    pub buffer: B,
    /// Whatever helps the caller to recognise it.
    pub tag: u64,
}

/// What has become of a transfer.
#[derive(Debug)]
pub struct Done<B> {
    /// The transfer as it was begun, with its buffer.
    pub transfer: Transfer<B>,
    /// Bytes moved, or what the system said.
    pub moved: io::Result<usize>,
}

/// What is to be done with a transfer that came back.
#[derive(Debug)]
pub enum Advance<B> {
    /// All that is needed has been moved.
    Whole(Transfer<B>),
    /// The rest has to be begun again.
    Rest(Transfer<B>),
    /// It cannot be carried out: at this offset, for this reason.
    Failed(Transfer<B>, io::Error),
}

impl<B> Done<B> {
    /// Goes on where the system left off: what was interrupted or cut short is begun again, and an end of the file
    /// before what is needed is an error.
    pub fn advance(self) -> Advance<B> {
        let Self { mut transfer, moved } = self;
        match moved {
            Ok(n) if n >= transfer.needed => Advance::Whole(transfer),
            Ok(0) => {
                let error = match transfer.direction {
                    Direction::Read => {
                        io::Error::new(io::ErrorKind::UnexpectedEof, format!("the file ends at {}", transfer.offset))
                    }
                    Direction::Write => io::Error::from(io::ErrorKind::WriteZero),
                };
                Advance::Failed(transfer, error)
            }
            Ok(n) => {
                transfer.offset += n as u64;
                transfer.at += n;
                transfer.bytes -= n;
                transfer.needed -= n;
                Advance::Rest(transfer)
            }
            Err(e) if matches!(e.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {
                Advance::Rest(transfer)
            }
            Err(e) => Advance::Failed(transfer, e),
        }
    }
}

/// Transfers in flight. Belongs to the thread that submits to it first: until then it may be handed on.
pub trait Queue<B>: Send + fmt::Debug {
    /// The path that the bytes take, as found out when the queue was made.
    fn path(&self) -> Path;

    /// Transfers that may be in flight at once.
    fn depth(&self) -> usize;

    /// Bytes in flight at once that are enough for the device: with as many, no other transfer should begin.
    fn depth_bytes(&self) -> usize {
        usize::MAX
    }

    /// Transfers that are in flight.
    fn in_flight(&self) -> usize;

    /// Begins a transfer. The system may hear of it only when [`Queue::reap`] is called, together with others.
    ///
    /// # Panics
    /// If the queue is full, the file unknown, or the bytes do not lie in the buffer: errors of the caller.
    fn submit(&mut self, transfer: Transfer<B>);

    /// Waits until at least so many transfers (at most those in flight) have come back, and adds all that have.
    ///
    /// # Errors
    /// What the system says about the queue itself; the transfers stay in flight. What it says about a transfer is in
    /// its [`Done`].
    fn reap(&mut self, at_least: usize, done: &mut Vec<Done<B>>) -> io::Result<()>;
}
