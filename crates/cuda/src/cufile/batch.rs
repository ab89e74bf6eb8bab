//! Batches of cuFile: many transfers are submitted in one call, and polled in another.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::{Cufile, sys};
use crate::{Error, Result};

/// A batch with a maximum number of transfers.
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
    /// Creates a batch for `capacity` transfers.
    ///
    /// # Errors
    /// Returns an error if cuFile is too old for batches, or the capacity exceeds its maximum.
    pub fn new(cufile: &Arc<Cufile>, capacity: usize) -> Result<Self> {
        let make = cufile.api().batch_new.ok_or(Error::TooOld { library: LIBRARY, symbol: "cuFileBatchIOSetUp" })?;
        cufile.context().bind()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: writes one pointer; destroyed once, when this is dropped.
        cufile.check("cuFileBatchIOSetUp", unsafe { make(&raw mut raw, capacity as u32) })?;
        Ok(Self { cufile: Arc::clone(cufile), raw })
    }

    /// Submits transfers.
    ///
    /// # Safety
    /// The memory and files of the entries live, and are not used, until the batch has reported
    /// them done, or is destroyed.
    pub(crate) unsafe fn submit(&mut self, entries: &mut [sys::BatchEntry]) -> Result<()> {
        let symbol = "cuFileBatchIOSubmit";
        let submit = self.cufile.api().batch_submit.ok_or(Error::TooOld { library: LIBRARY, symbol })?;
        self.cufile.context().bind()?;
        // SAFETY: the count is the number of entries; the caller guarantees the rest.
        self.cufile.check(symbol, unsafe { submit(self.raw, entries.len() as u32, entries.as_mut_ptr(), 0) })
    }

    /// Appends completed transfers to `events`: waits for `at_least` of them, for at most
    /// `patience`, and takes up to `most`.
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
        // SAFETY: there is room for as many events as `found` says before the call.
        let status =
            unsafe { ask(self.raw, at_least, &raw mut found, events[before..].as_mut_ptr(), &raw mut timeout) };
        events.truncate(before + if status.code == 0 { (found as usize).min(most) } else { 0 });
        // Entries that are still waiting or pending are not done.
        events.retain(|event| event.status & !sys::UNFINISHED != 0);
        self.cufile.check(symbol, status)
    }

    /// Returns the bytes or the error of an event.
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
            // SAFETY: created by `new`, destroyed only here.
            unsafe { free(self.raw) };
        }
    }
}
