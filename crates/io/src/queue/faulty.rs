//! A queue that misbehaves on purpose: transfers fail, are interrupted or cut short, and come back in another order.
//!
//! The fault model of [`Faulty`](crate::Faulty), for transfers instead of calls; what is cut and in which order things
//! come back are functions of the seed.

use std::io;

use super::{Done, Queue, Transfer};
use crate::Path;
use crate::faulty::{Fault, mix};

/// `inner`, with faults.
#[derive(Debug)]
pub struct FaultyQueue<Q> {
    inner: Q,
    faults: Vec<Fault>,
    calls: u64,
    waits: u64,
}

impl<Q> FaultyQueue<Q> {
    /// Wraps a queue. [`Fault::FlipBit`] has no meaning here.
    pub fn new(inner: Q, faults: Vec<Fault>) -> Self {
        Self { inner, faults, calls: 0, waits: 0 }
    }

    /// What is to become of the next transfer that comes back having moved `n` bytes.
    fn spoil(&mut self, moved: io::Result<usize>) -> io::Result<usize> {
        let call = self.calls;
        self.calls += 1;
        let n = moved?;
        for fault in &self.faults {
            match *fault {
                Fault::FailFrom(at) if call >= at => return Err(rustix::io::Errno::IO.into()),
                Fault::InterruptAt(at) if call == at => return Err(io::ErrorKind::Interrupted.into()),
                Fault::FailAt(at, code) if call == at => return Err(io::Error::from_raw_os_error(code)),
                Fault::EndFrom(at) if call >= at => return Ok(0),
                // Whole sectors, as the system cuts.
                Fault::Short(seed) if n > 512 => return Ok(512 * (1 + mix(seed ^ call) as usize % (n / 512))),
                _ => {}
            }
        }
        Ok(n)
    }
}

impl<B, Q: Queue<B>> Queue<B> for FaultyQueue<Q> {
    fn path(&self) -> Path {
        self.inner.path()
    }

    fn depth(&self) -> usize {
        self.inner.depth()
    }

    fn depth_bytes(&self) -> usize {
        self.inner.depth_bytes()
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }

    fn submit(&mut self, transfer: Transfer<B>) {
        self.inner.submit(transfer);
    }

    fn reap(&mut self, at_least: usize, done: &mut Vec<Done<B>>) -> io::Result<()> {
        let wait = self.waits;
        self.waits += 1;
        let is_refused = |fault: &Fault| match *fault {
            Fault::RefuseAt(at) => wait == at,
            Fault::RefuseFrom(at) => wait >= at,
            _ => false,
        };
        if self.faults.iter().any(is_refused) {
            return Err(rustix::io::Errno::NXIO.into());
        }
        let before = done.len();
        self.inner.reap(at_least, done)?;
        for one in &mut done[before..] {
            let moved = std::mem::replace(&mut one.moved, Ok(0));
            one.moved = self.spoil(moved);
        }
        let came = done.len() - before;
        if came > 1 {
            done[before..].rotate_left(mix(self.calls) as usize % came);
        }
        Ok(())
    }
}
