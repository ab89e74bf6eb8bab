//! A kernel that copies: how fast the device's memory is.

use std::sync::Arc;
use std::time::Duration;

use super::Argument;
use crate::{Context, DeviceBuf, Event, Grid, Kernel, Nvrtc, Result, Stream};

/// Its text.
pub const TEXT: &str = include_str!("copy.cu");

/// What is copied at once.
const WORD_BYTES: usize = 16;

#[derive(Clone, Copy)]
#[repr(C)]
struct CopyArgs {
    from: u64,
    to: u64,
    count: u64,
}

const _: () = assert!(size_of::<CopyArgs>() == 24);

/// How long the device took to copy so many bytes within its memory: the shortest of `runs`, by its own clock.
///
/// # Errors
/// Those of the compiler and of the driver.
pub fn measure(context: &Arc<Context>, nvrtc: &Nvrtc, bytes: usize, runs: usize) -> Result<Duration> {
    let image = nvrtc.compile("copy.cu", TEXT, context.device().compute, &[])?;
    let kernel = Kernel::load(context, &image, c"copy_words")?;
    let (stream, events) = (Stream::new(context)?, [Event::timed(context)?, Event::timed(context)?]);
    let (mut from, mut to) = (DeviceBuf::new(context, bytes)?, DeviceBuf::new(context, bytes)?);
    stream.fill(&mut from, 1)?;
    stream.fill(&mut to, 0)?;
    let count = (bytes / WORD_BYTES) as u64;
    let arguments = Argument::new(CopyArgs { from: from.address(), to: to.address(), count });
    let mut best = Duration::MAX;
    for _ in 0..runs.max(1) {
        events[0].record(&stream)?;
        // SAFETY: the argument is laid out as copy.cu has it; both buffers have `count` words, and live until the stream
        // is through, which is waited for.
        unsafe { kernel.launch(&stream, Grid::of(count / 4), &arguments)? };
        events[1].record(&stream)?;
        stream.synchronize()?;
        best = best.min(events[1].since(&events[0])?);
    }
    Ok(best)
}
