//! Streams, in which the device does one thing after the other, and events, which say how far it is.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::{Context, DeviceBuf, sys};
use crate::Result;

/// Work in order.
pub struct Stream {
    context: Arc<Context>,
    raw: sys::RawStream,
}

// SAFETY: streams may be used from any thread.
unsafe impl Send for Stream {}
// SAFETY: as above, by several at once.
unsafe impl Sync for Stream {}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("context", &self.context).finish_non_exhaustive()
    }
}

impl Stream {
    /// A stream that waits for no other.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn new(context: &Arc<Context>) -> Result<Self> {
        context.bind()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: writes one pointer; destroyed once, when this is dropped.
        context.check("cuStreamCreate", unsafe { (context.api().stream)(&raw mut raw, sys::STREAM_NON_BLOCKING) })?;
        Ok(Self { context: Arc::clone(context), raw })
    }

    /// Waits until all is done.
    ///
    /// # Errors
    /// Those of the driver, also of what was done in the stream.
    pub fn synchronize(&self) -> Result<()> {
        self.context.bind()?;
        // SAFETY: the stream lives.
        self.context.check("cuStreamSynchronize", unsafe { (self.context.api().stream_wait)(self.raw) })
    }

    /// Has what comes next wait for an event, wherever that is recorded.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn wait_for(&self, event: &Event) -> Result<()> {
        self.context.bind()?;
        // SAFETY: both live; the driver keeps what it needs of the event.
        self.context.check("cuStreamWaitEvent", unsafe { (self.context.api().stream_after)(self.raw, event.raw, 0) })
    }

    /// Copies to the device, some time.
    ///
    /// # Safety
    /// `from` and `to` have `len` bytes, are not freed, and `to` is not used and `from` not changed, until the stream is
    /// through with it.
    pub(crate) unsafe fn copy_to_device(&self, to: sys::Address, from: *const u8, len: usize) -> Result<()> {
        self.context.bind()?;
        // SAFETY: the caller's promise.
        let code = unsafe { (self.context.api().to_device_async)(to, from.cast(), len, self.raw) };
        self.context.check("cuMemcpyHtoDAsync", code)
    }

    /// Copies from the device, some time.
    ///
    /// # Safety
    /// As of [`Stream::copy_to_device`].
    pub(crate) unsafe fn copy_to_host(&self, to: *mut u8, from: sys::Address, len: usize) -> Result<()> {
        self.context.bind()?;
        // SAFETY: the caller's promise.
        let code = unsafe { (self.context.api().to_host_async)(to.cast(), from, len, self.raw) };
        self.context.check("cuMemcpyDtoHAsync", code)
    }

    /// Copies within the device's memory, some time.
    ///
    /// # Safety
    /// As of [`Stream::copy_to_device`].
    pub(crate) unsafe fn copy_within(&self, to: sys::Address, from: sys::Address, len: usize) -> Result<()> {
        self.context.bind()?;
        // SAFETY: the caller's promise.
        let code = unsafe { (self.context.api().within_async)(to, from, len, self.raw) };
        self.context.check("cuMemcpyDtoDAsync", code)
    }

    /// Makes all bytes of a buffer the same, after what is in the stream already, and waits for it.
    ///
    /// # Errors
    /// Those of the driver, also of what was done in the stream before.
    pub fn fill(&self, buffer: &mut DeviceBuf, byte: u8) -> Result<()> {
        self.context.bind()?;
        let (to, len) = (buffer.address(), buffer.len());
        // SAFETY: the buffer's own bytes; it is borrowed until the stream is through with it.
        let code = unsafe { (self.context.api().fill_async)(to, byte, len, self.raw) };
        self.context.check("cuMemsetD8Async", code)?;
        self.synchronize()
    }

    /// Makes bytes the same, some time.
    ///
    /// # Safety
    /// `len` bytes of the device lie at `to`, live, and are used by nobody else until the stream is through with it.
    pub(crate) unsafe fn fill_at(&self, to: sys::Address, byte: u8, len: usize) -> Result<()> {
        self.context.bind()?;
        // SAFETY: the caller's promise.
        let code = unsafe { (self.context.api().fill_async)(to, byte, len, self.raw) };
        self.context.check("cuMemsetD8Async", code)
    }

    pub(crate) fn raw(&self) -> sys::RawStream {
        self.raw
    }

    /// The context that it is of.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: made by `new`, destroyed here only; what is still in it is carried out.
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
// SAFETY: as above, by several at once.
unsafe impl Sync for Event {}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event").field("context", &self.context).finish_non_exhaustive()
    }
}

impl Event {
    /// An event that says whether, not when.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn new(context: &Arc<Context>) -> Result<Self> {
        Self::with_flags(context, sys::EVENT_NO_TIMING)
    }

    /// An event that takes the time.
    ///
    /// # Errors
    /// Those of the driver.
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

    /// It is when all is done that is in the stream now.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        self.context.bind()?;
        // SAFETY: both live.
        self.context.check("cuEventRecord", unsafe { (self.context.api().event_record)(self.raw, stream.raw) })
    }

    /// Whether it has come.
    ///
    /// # Errors
    /// Those of the driver, also of what was done in the stream.
    pub fn is_done(&self) -> Result<bool> {
        self.context.bind()?;
        // SAFETY: the event lives.
        match unsafe { (self.context.api().event_query)(self.raw) } {
            sys::NOT_READY => Ok(false),
            code => self.context.check("cuEventQuery", code).map(|()| true),
        }
    }

    /// Waits for it.
    ///
    /// # Errors
    /// Those of the driver, also of what was done in the stream.
    pub fn wait(&self) -> Result<()> {
        self.context.bind()?;
        // SAFETY: the event lives.
        self.context.check("cuEventSynchronize", unsafe { (self.context.api().event_wait)(self.raw) })
    }

    /// How long before this one `earlier` was. Both are [timed](Event::timed), and have come.
    ///
    /// # Errors
    /// Those of the driver.
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
            // SAFETY: made by `with_flags`, destroyed here only.
            unsafe { (self.context.api().event_free)(self.raw) };
        }
    }
}
