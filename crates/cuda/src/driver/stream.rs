//! Streams, in which the device runs work in order, and events, which mark points in a stream.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::{Context, DeviceBuf, sys};
use crate::Result;

/// Ordered queue of device work.
pub struct Stream {
    context: Arc<Context>,
    raw: sys::RawStream,
}

// SAFETY: streams may be used from any thread.
unsafe impl Send for Stream {}
// SAFETY: as above, by several threads at once.
unsafe impl Sync for Stream {}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("context", &self.context).finish_non_exhaustive()
    }
}

impl Stream {
    /// Creates a stream that waits for no other.
    ///
    /// # Errors
    /// Returns the error of the driver.
    pub fn new(context: &Arc<Context>) -> Result<Self> {
        context.bind()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: writes one pointer; destroyed once, when this is dropped.
        context.check("cuStreamCreate", unsafe { (context.api().stream)(&raw mut raw, sys::STREAM_NON_BLOCKING) })?;
        Ok(Self { context: Arc::clone(context), raw })
    }

    /// Waits until all work in the stream is done.
    ///
    /// # Errors
    /// Returns the error of the driver, including errors of earlier work in the stream.
    pub fn synchronize(&self) -> Result<()> {
        self.context.bind()?;
        // SAFETY: the stream lives.
        self.context.check("cuStreamSynchronize", unsafe { (self.context.api().stream_wait)(self.raw) })
    }

    /// Makes later work in this stream wait for an event of any stream.
    ///
    /// # Errors
    /// Returns the error of the driver.
    pub fn wait_for(&self, event: &Event) -> Result<()> {
        self.context.bind()?;
        // SAFETY: both live; the driver keeps the state of the event that it needs.
        self.context.check("cuStreamWaitEvent", unsafe { (self.context.api().stream_after)(self.raw, event.raw, 0) })
    }

    /// Enqueues a copy to the device.
    ///
    /// # Safety
    /// `from` and `to` have `len` bytes. Until the stream has finished the copy, neither is freed,
    /// `to` is not used and `from` is not changed.
    pub(crate) unsafe fn copy_to_device(&self, to: sys::Address, from: *const u8, len: usize) -> Result<()> {
        self.context.bind()?;
        // SAFETY: the caller upholds the contract.
        let code = unsafe { (self.context.api().to_device_async)(to, from.cast(), len, self.raw) };
        self.context.check("cuMemcpyHtoDAsync", code)
    }

    /// Enqueues a copy from the device.
    ///
    /// # Safety
    /// As for [`Stream::copy_to_device`].
    pub(crate) unsafe fn copy_to_host(&self, to: *mut u8, from: sys::Address, len: usize) -> Result<()> {
        self.context.bind()?;
        // SAFETY: the caller upholds the contract.
        let code = unsafe { (self.context.api().to_host_async)(to.cast(), from, len, self.raw) };
        self.context.check("cuMemcpyDtoHAsync", code)
    }

    /// Enqueues a copy within the memory of the device.
    ///
    /// # Safety
    /// As for [`Stream::copy_to_device`].
    pub(crate) unsafe fn copy_within(&self, to: sys::Address, from: sys::Address, len: usize) -> Result<()> {
        self.context.bind()?;
        // SAFETY: the caller upholds the contract.
        let code = unsafe { (self.context.api().within_async)(to, from, len, self.raw) };
        self.context.check("cuMemcpyDtoDAsync", code)
    }

    /// Sets all bytes of a buffer to one value, after earlier work in the stream, and waits.
    ///
    /// # Errors
    /// Returns the error of the driver, including errors of earlier work in the stream.
    pub fn fill(&self, buffer: &mut DeviceBuf, byte: u8) -> Result<()> {
        self.context.bind()?;
        let (to, len) = (buffer.address(), buffer.len());
        // SAFETY: the buffer's own bytes; it is borrowed until the stream has finished.
        let code = unsafe { (self.context.api().fill_async)(to, byte, len, self.raw) };
        self.context.check("cuMemsetD8Async", code)?;
        self.synchronize()
    }

    /// Enqueues a fill that sets bytes to one value.
    ///
    /// # Safety
    /// `len` bytes of the device lie at `to`. They live, and have no other user, until the stream
    /// has finished the fill.
    pub(crate) unsafe fn fill_at(&self, to: sys::Address, byte: u8, len: usize) -> Result<()> {
        self.context.bind()?;
        // SAFETY: the caller upholds the contract.
        let code = unsafe { (self.context.api().fill_async)(to, byte, len, self.raw) };
        self.context.check("cuMemsetD8Async", code)
    }

    pub(crate) fn raw(&self) -> sys::RawStream {
        self.raw
    }

    /// Returns the context of this stream.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: created by `new`, destroyed only here; the driver still completes the
            // enqueued work.
            unsafe { (self.context.api().stream_free)(self.raw) };
        }
    }
}

/// A point in a stream.
pub struct Event {
    context: Arc<Context>,
    raw: sys::RawEvent,
}

// SAFETY: events may be used from any thread.
unsafe impl Send for Event {}
// SAFETY: as above, by several threads at once.
unsafe impl Sync for Event {}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event").field("context", &self.context).finish_non_exhaustive()
    }
}

impl Event {
    /// Creates an event without a timestamp.
    ///
    /// # Errors
    /// Returns the error of the driver.
    pub fn new(context: &Arc<Context>) -> Result<Self> {
        Self::with_flags(context, sys::EVENT_NO_TIMING)
    }

    /// Creates an event that records its time.
    ///
    /// # Errors
    /// Returns the error of the driver.
    pub fn timed(context: &Arc<Context>) -> Result<Self> {
        Self::with_flags(context, 0)
    }

    fn with_flags(context: &Arc<Context>, flags: u32) -> Result<Self> {
        context.bind()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: writes one pointer; destroyed once, when this is dropped.
        context.check("cuEventCreate", unsafe { (context.api().event)(&raw mut raw, flags) })?;
        Ok(Self { context: Arc::clone(context), raw })
    }

    /// Records the event in a stream: it completes when all work now in the stream is done.
    ///
    /// # Errors
    /// Returns the error of the driver.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        self.context.bind()?;
        // SAFETY: both live.
        self.context.check("cuEventRecord", unsafe { (self.context.api().event_record)(self.raw, stream.raw) })
    }

    /// Returns true if the event has completed.
    ///
    /// # Errors
    /// Returns the error of the driver, including errors of earlier work in the stream.
    pub fn is_done(&self) -> Result<bool> {
        self.context.bind()?;
        // SAFETY: the event lives.
        match unsafe { (self.context.api().event_query)(self.raw) } {
            sys::NOT_READY => Ok(false),
            code => self.context.check("cuEventQuery", code).map(|()| true),
        }
    }

    /// Waits until the event completes.
    ///
    /// # Errors
    /// Returns the error of the driver, including errors of earlier work in the stream.
    pub fn wait(&self) -> Result<()> {
        self.context.bind()?;
        // SAFETY: the event lives.
        self.context.check("cuEventSynchronize", unsafe { (self.context.api().event_wait)(self.raw) })
    }

    /// Returns the time from `earlier` to this event. Both are [timed](Event::timed), and have
    /// completed.
    ///
    /// # Errors
    /// Returns the error of the driver.
    pub fn since(&self, earlier: &Event) -> Result<Duration> {
        self.context.bind()?;
        let mut ms = 0.0;
        // SAFETY: both live; writes one number.
        let code = unsafe { (self.context.api().event_elapsed)(&raw mut ms, earlier.raw, self.raw) };
        self.context.check("cuEventElapsedTime", code)?;
        Ok(Duration::try_from_secs_f32(ms / 1e3).unwrap_or_default())
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: created by `with_flags`, destroyed only here.
            unsafe { (self.context.api().event_free)(self.raw) };
        }
    }
}
