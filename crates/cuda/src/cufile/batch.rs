//! Batches: many transfers handed over in one call, and asked for in another.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::{Cufile, sys};
use crate::{Error, Result};

/// A batch of so many transfers at most.
pub struct Batch {
    cufile: Arc<Cufile>,
    raw: sys::RawBatch,
}

// SAFETY: a batch may be used from any thread, by one at a time.
unsafe impl Send for Batch {}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").finish_non_exhaustive()
    }
}

const LIBRARY: &str = "libcufile";

impl Batch {
    /// A batch for `capacity` transfers.
    ///
    /// # Errors
    /// A version without batches, or more than cuFile allows.
    pub fn new(cufile: &Arc<Cufile>, capacity: usize) -> Result<Self> {
        let make = cufile.api().batch_new.ok_or(Error::TooOld { library: LIBRARY, symbol: "cuFileBatchIOSetUp" })?;
        cufile.context().bind()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: writes one pointer; destroyed once, when this is dropped.
        cufile.check("cuFileBatchIOSetUp", unsafe { make(&raw mut raw, capacity as u32) })?;
        Ok(Self { cufile: Arc::clone(cufile), raw })
    }

    /// Hands over transfers.
    ///
    /// # Safety
    /// What the entries speak of lives, and is not used, until the batch has said that they are done, or is destroyed.
    pub(crate) unsafe fn submit(&mut self, entries: &mut [sys::BatchEntry]) -> Result<()> {
        let symbol = "cuFileBatchIOSubmit";
        let submit = self.cufile.api().batch_submit.ok_or(Error::TooOld { library: LIBRARY, symbol })?;
        self.cufile.context().bind()?;
        // SAFETY: as many entries as said; the rest is the caller's promise.
        self.cufile.check(symbol, unsafe { submit(self.raw, entries.len() as u32, entries.as_mut_ptr(), 0) })
    }

    /// Adds what is done to `events`: waits for at least so many, not longer than `patience`, and takes `most`.
    pub(crate) fn done(
        &mut self,
        at_least: usize,
        most: usize,
        patience: Duration,
        events: &mut Vec<sys::BatchEvent>,
    ) -> Result<()> {
        let symbol = "cuFileBatchIOGetStatus";
        let ask = self.cufile.api().batch_status.ok_or(Error::TooOld { library: LIBRARY, symbol })?;
        self.cufile.context().bind()?;
        let none = sys::BatchEvent { cookie: std::ptr::null_mut(), status: 0, moved: 0 };
        let before = events.len();
        events.resize(before + most, none);
        let mut found = most as u32;
        let mut timeout =
            libc::timespec { tv_sec: patience.as_secs() as libc::time_t, tv_nsec: patience.subsec_nanos().into() };
        let at_least = at_least.min(most) as u32;
        // SAFETY: room for as many events as `found` says before the call.
        let status =
            unsafe { ask(self.raw, at_least, &raw mut found, events[before..].as_mut_ptr(), &raw mut timeout) };
        events.truncate(before + if status.code == 0 { (found as usize).min(most) } else { 0 });
        // What it has not come to yet is not done.
        events.retain(|event| event.status & !sys::UNFINISHED != 0);
        self.cufile.check(symbol, status)
    }

    /// What an event says: bytes, or what went wrong.
    pub(crate) fn outcome(&self, event: &sys::BatchEvent) -> io::Result<usize> {
        match (event.status, event.moved) {
            (sys::COMPLETE, moved @ 0..) => Ok(moved as usize),
            (_, code @ -4095..0) => Err(io::Error::from_raw_os_error(-code as i32)),
            (_, code @ ..0) => Err(self.cufile.error("a transfer of a batch", code.unsigned_abs() as i32, 0).into()),
            (status, _) => {
                let what = match status {
                    0x4 => "was ill-formed",
                    0x8 => "was cancelled",
                    0x20 => "took too long",
                    _ => "failed",
                };
                Err(io::Error::other(format!("cuFile says that a transfer of a batch {what} (status {status:#x})")))
            }
        }
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        if let Some(free) = self.cufile.api().batch_free
            && self.cufile.context().bind().is_ok()
        {
            // SAFETY: made by `new`, destroyed here only.
            unsafe { free(self.raw) };
        }
    }
}
