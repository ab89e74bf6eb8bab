//! Measures the transfer rate from host memory to the device over the path of columns.

use std::ops::ControlFlow;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use super::{Cargo, Failed, Room, Sent, Shape, Stager};
use crate::fused::Result;
use crate::queue::lose;
use crate::{DeviceBuf, Stream};

/// Bytes of an item: about those of a column's block.
const ITEM_BYTES: usize = 256 << 10;

/// Cargo that repeats a range of host memory.
struct Bytes<'a> {
    from: &'a [u8],
    /// Destination of each slot.
    to: &'a [DeviceBuf],
    items: usize,
    batches: usize,
}

impl Cargo for Bytes<'_> {
    fn batches(&self) -> usize {
        self.batches
    }

    fn items(&self, _: usize) -> usize {
        self.items
    }

    fn bytes(&self) -> u64 {
        (self.batches * self.items * ITEM_BYTES) as u64
    }

    fn fill(&self, batch: usize, item: usize, room: &Room) -> Result<()> {
        let items = self.from.len() / ITEM_BYTES;
        let at = (batch * self.items + item) % items * ITEM_BYTES;
        room.put(&self.from[at..at + ITEM_BYTES]);
        Ok(())
    }

    fn send(&self, _: usize, filled: Sent<'_>, stream: &Stream) -> Result<()> {
        let to = self.to[filled.room.slot()].address();
        // SAFETY: the slot's buffer has as many bytes as a batch, and no other user; it is freed
        // when the stream has finished, or leaked.
        unsafe { filled.copy(to, 0, filled.bytes(), stream)? };
        Ok(())
    }
}

/// Returns the shortest time in which such a ring transfers `from`, which has one item at least.
pub(super) fn measure(stager: &Stager, shape: Shape, from: &[u8], runs: usize) -> Result<Duration> {
    let items = (shape.batch_for(from.len()) / ITEM_BYTES).max(1);
    let shape = Shape { batch_bytes: items * ITEM_BYTES, ..shape };
    let to = (0..shape.slots.max(1)).map(|_| stager.device_buffer(shape.buffer_bytes())).collect::<Result<Vec<_>>>()?;
    let cargo = Bytes { from, to: &to, items, batches: from.len().div_ceil(items * ITEM_BYTES) };
    let mut best = Duration::MAX;
    for _ in 0..runs.max(1) {
        let began = Instant::now();
        let carried = stager.run(&cargo, shape, &AtomicBool::new(false), |_, _| Ok(ControlFlow::Continue(())));
        if let Err(Failed { error, in_flight }) = carried {
            if in_flight {
                lose(to);
            }
            return Err(error);
        }
        // The last batch may have more bytes than requested.
        let part = from.len() as f64 / cargo.bytes() as f64;
        best = best.min(began.elapsed().mul_f64(part));
    }
    to.into_iter().for_each(|buffer| stager.keep_device_buffer(buffer));
    Ok(best)
}
