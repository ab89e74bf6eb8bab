//! Copy kernel that measures the bandwidth of device memory.

use std::sync::Arc;
use std::time::Duration;

use super::Argument;
use crate::{Context, DeviceBuf, Event, Grid, Kernel, Nvrtc, Result, Stream};

/// CUDA source of the kernel.
pub const TEXT: &str = include_str!("copy.cu");

/// Bytes that a thread copies at once.
const WORD_BYTES: usize = 16;

#[derive(Clone, Copy)]
#[repr(C)]
struct CopyArgs {
    from: u64,
    to: u64,
    count: u64,
}

const _: () = assert!(size_of::<CopyArgs>() == 24);

/// Measures a copy of `bytes` bytes within device memory: the shortest of `runs` runs, by the clock
/// of the device.
///
/// # Errors
/// Returns the error of the compiler or of the driver.
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
        // SAFETY: the argument is laid out as in copy.cu; both buffers have `count` words, and live
        // until the stream has finished, which is waited for.
        unsafe { kernel.launch(&stream, Grid::of(count / 4), &arguments)? };
        events[1].record(&stream)?;
        stream.synchronize()?;
        best = best.min(events[1].since(&events[0])?);
    }
    Ok(best)
}
