//! A file that misbehaves on purpose.
//!
//! Fault model: calls fail with an error from the N-th on; reads and writes move fewer bytes than asked; single bits
//! flip on the way in. Each is a [`Fault`]; they combine. What is flipped or cut is a function of the seed and the
//! offset, so a failing test repeats.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use crate::{IoHints, Ledger, ReadAt, Result, WriteAt};

/// One way to misbehave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The call with this number (from 0) and every later one fails with `EIO`.
    FailFrom(u64),
    /// The call with this number (from 0) alone fails with `EINTR`.
    InterruptAt(u64),
    /// The call with this number (from 0) alone fails with this error of the system.
    FailAt(u64, i32),
    /// The call with this number (from 0) and every later one finds the end of the file.
    EndFrom(u64),
    /// Of a queue: the wait with this number (from 0) alone fails, and leaves everything in flight.
    RefuseAt(u64),
    /// Of a queue: the wait with this number (from 0) and every later one.
    RefuseFrom(u64),
    /// Every transfer is cut to between 1 byte and what was asked, by this seed.
    Short(u64),
    /// The bit with this number, counted from the start of the file, reads as its opposite.
    FlipBit(u64),
}

/// `inner`, with faults.
#[derive(Debug)]
pub struct Faulty<F> {
    inner: Arc<F>,
    faults: Vec<Fault>,
    calls: AtomicU64,
}

impl<F> Faulty<F> {
    /// Wraps a file.
    pub fn new(inner: Arc<F>, faults: Vec<Fault>) -> Self {
        Self { inner, faults, calls: AtomicU64::new(0) }
    }

    /// Calls made so far; the number to give to [`Fault::FailFrom`] to fail the next one.
    pub fn calls(&self) -> u64 {
        self.calls.load(SeqCst)
    }

    /// Counts a call, fails it if it is due, and says how many of `wanted` bytes it may move.
    fn admit(&self, offset: u64, wanted: usize) -> io::Result<usize> {
        let call = self.calls.fetch_add(1, SeqCst);
        let mut allowed = wanted;
        for fault in &self.faults {
            match *fault {
                Fault::FailFrom(n) if call >= n => return Err(rustix::io::Errno::IO.into()),
                Fault::InterruptAt(n) if call == n => return Err(io::ErrorKind::Interrupted.into()),
                Fault::FailAt(n, code) if call == n => return Err(io::Error::from_raw_os_error(code)),
                Fault::EndFrom(n) if call >= n => return Ok(0),
                Fault::Short(seed) if wanted > 1 => {
                    allowed = allowed.min(1 + (mix(seed ^ offset ^ (call << 32)) % wanted as u64) as usize);
                }
                _ => {}
            }
        }
        Ok(allowed)
    }

    fn flip(&self, offset: u64, buf: &mut [u8]) {
        for fault in &self.faults {
            if let Fault::FlipBit(bit) = *fault
                && let Some(at) = (bit / 8).checked_sub(offset)
                && let Some(byte) = usize::try_from(at).ok().and_then(|at| buf.get_mut(at))
            {
                *byte ^= 1 << (bit % 8);
            }
        }
    }
}

/// SplitMix64's finaliser.
pub(crate) fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl<F: ReadAt> ReadAt for Faulty<F> {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn hints(&self) -> IoHints {
        self.inner.hints()
    }

    fn len(&self) -> Result<u64> {
        self.inner.len()
    }

    fn try_read_at(&self, offset: u64, buf: &mut [u8], ledger: &Ledger) -> io::Result<usize> {
        let allowed = self.admit(offset, buf.len())?;
        let n = self.inner.try_read_at(offset, &mut buf[..allowed], ledger)?;
        self.flip(offset, &mut buf[..n]);
        Ok(n)
    }
}

impl<F: WriteAt> WriteAt for Faulty<F> {
    fn try_write_at(&self, offset: u64, buf: &[u8], ledger: &Ledger) -> io::Result<usize> {
        let allowed = self.admit(offset, buf.len())?;
        self.inner.try_write_at(offset, &buf[..allowed], ledger)
    }

    fn sync(&self) -> Result<()> {
        self.admit(0, 0)
            .map_err(|e| crate::Error::new(crate::Operation::Sync, self.name(), e))
            .and_then(|_| self.inner.sync())
    }
}
