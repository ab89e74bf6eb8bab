//! Memory on the device that a batch's reads go to, with what verifies them.
//!
//! 1. Reads go there from several threads at once, each to bytes of its own: by cuFile, which the memory is registered with, or
//!    by copies from pinned memory, which are over when the read is.
//! 2. When all have come, records of the blocks are copied to the device, the kernel of verify.cu runs over them, and what it
//!    has found is copied back: all of it in one stream.
//! 3. When the stream has come so far, the host compares. Nothing else is launched over these blocks before that.
//!
//! Nobody reads into it before the kernels are through that read what was there: that is up to whoever has it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use onehop_io::PAGE_BYTES;

use super::plan::{Landed, Plan, Read};
use super::verify::{self, Found, Record};
use super::{Passage, failed};
use crate::fused::{Error, Result, bytes_of};
use crate::queue::lose;
use crate::{DeviceBuf, PinnedBuf, Stream};

/// What goes wrong when bytes have come.
const VERIFYING: &str = "verifying columns on the GPU";

/// Memory for one batch at a time.
#[derive(Debug)]
pub struct Landing {
    /// Held by whoever cannot know whether it still writes to it, too: then it is never free again.
    memory: Arc<DeviceBuf>,
    /// Where its first page begins.
    first: usize,
    /// Records and what is found, on the device and beside it.
    on_device: DeviceBuf,
    on_host: Mutex<PinnedBuf>,
    /// Blocks that there is room for.
    most: usize,
}

const RECORD: usize = size_of::<Record>();
const FOUND: usize = size_of::<Found>();

impl Landing {
    /// For plans of so many bytes and blocks.
    ///
    /// # Errors
    /// No memory on the device, or none that can be pinned.
    pub fn new(passage: &Passage<'_>, bytes: usize, blocks: usize) -> Result<Self> {
        let context = passage.context();
        let memory = Arc::new(passage.memory(bytes + PAGE_BYTES)?);
        let first = (memory.address() as usize).next_multiple_of(PAGE_BYTES) - memory.address() as usize;
        let most = blocks.max(1);
        let on_device = DeviceBuf::new(context, most * (RECORD + FOUND))?;
        let on_host = Mutex::new(PinnedBuf::zeroed(context, most * (RECORD + FOUND))?);
        Ok(Self { memory, first, on_device, on_host, most })
    }

    /// Where the first byte of a plan's memory is.
    pub fn start(&self) -> u64 {
        self.memory.address() + self.first as u64
    }

    fn host(&self) -> MutexGuard<'_, PinnedBuf> {
        self.on_host.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a read of a plan, waits for it, and counts what came.
    ///
    /// # Errors
    /// Those of the file's reader; a file that ends too early.
    ///
    /// # Safety
    /// The plan is one that there is room for. Nothing that is on its way touches what was there before, and nobody else
    /// makes the same read at the same time.
    pub unsafe fn read(&self, passage: &Passage<'_>, read: &Read) -> Result<()> {
        let (file, mut done) = (&read.file, 0);
        while done < read.bytes {
            let (offset, at) = (read.offset + done as u64, self.first + read.at + done);
            // SAFETY: reads of a plan have bytes of their own, which are nobody's until all have come, as the caller promises.
            let moved = unsafe { file.read_part(offset, &self.memory, at, read.padded_bytes() - done) };
            let failed = |reason| {
                let what = format!("{} bytes at {offset} of {}", read.bytes - done, file.name());
                Err(failed(file.attempt(), what, reason))
            };
            match moved {
                Ok(0) => return failed("the file ends before them: it was cut off".into()),
                Ok(moved) => done += moved,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return failed(e.to_string()),
            }
        }
        passage.has_read(file, done);
        Ok(())
    }

    /// Has blocks verified that have come, some time, and counts them.
    ///
    /// # Errors
    /// Those of the driver.
    ///
    /// # Safety
    /// All reads of the plan have been made. This stays as it is until the stream is through, or is leaked.
    pub unsafe fn verify(&self, passage: &Passage<'_>, plan: &Plan, stream: &Stream) -> Result<()> {
        let start = self.start();
        let (records, units) = verify::records(plan.blocks.iter().map(|block| (&block.place, block.planes(start))));
        if records.is_empty() {
            return Ok(());
        }
        if records.len() > self.most {
            let reason = format!("{} of them where {} fit", records.len(), self.most);
            return Err(failed(VERIFYING, "blocks".into(), reason));
        }
        let Some(kernel) = passage.kernel() else {
            return Err(failed(VERIFYING, "blocks".into(), "nobody could verify them".into()));
        };
        let (bytes, found) = (bytes_of(&records), self.on_device.address() + (self.most * RECORD) as u64);
        let mut host = self.host();
        host[..bytes.len()].copy_from_slice(bytes);
        // Until something else is found, nothing matches.
        host[self.most * RECORD..].fill(0);
        let from = host.as_ptr();
        let to = host.as_mut_ptr().wrapping_add(self.most * RECORD);
        drop(host);
        let count = records.len();
        let multiprocessors = passage.context().device().multiprocessors;
        // SAFETY: both have room for `most` records and what is found of each. Nothing touches what was there before: the
        // batch before this one was compared, which its stream was waited for. All of it lives as long as the stream needs it,
        // as the caller promises; planes lie where the reads have put them, which is where the plan says.
        unsafe {
            stream.copy_to_device(self.on_device.address(), from, bytes.len())?;
            stream.fill_at(found, 0, count * FOUND)?;
            verify::launch(kernel, stream, (self.on_device.address(), found), (count, units), multiprocessors)?;
            stream.copy_to_host(to, found, count * FOUND)?;
        }
        passage.has_needed(plan.chunk_bytes());
        Ok(())
    }

    /// The first block of a plan that is not what it should be, and why, once the stream has come so far.
    pub fn wrong<'p>(&self, plan: &'p Plan) -> Option<(usize, &'p Landed, &'static str)> {
        let host = self.host();
        let found = host[self.most * RECORD..].chunks_exact(FOUND);
        plan.blocks.iter().zip(found).enumerate().find_map(|(number, (block, bytes))| {
            // SAFETY: as many bytes as it has, of numbers, wherever they lie.
            let found = unsafe { bytes.as_ptr().cast::<Found>().read_unaligned() };
            found.is_wrong(&block.place).map(|why| (number, block, why))
        })
    }

    /// Gives the memory back, which nothing on its way touches any more.
    pub fn settle(self, passage: &Passage<'_>) {
        if let Ok(memory) = Arc::try_unwrap(self.memory) {
            passage.keep(memory);
        }
    }

    /// Keeps it for good: nobody knows what still touches it.
    pub fn lose(self) {
        lose(self);
    }
}

/// That a block is not what it should be, although the host finds it to be.
pub fn doubtful(name: &str, why: &str) -> Error {
    let reason = format!("{why}, as it came to the GPU; as the host reads it, nothing is wrong");
    failed(VERIFYING, name.to_string(), reason)
}
