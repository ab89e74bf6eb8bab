//! Device memory for the reads of one batch, and the state that verifies them.
//!
//! 1. Several threads read concurrently, each to a range of its own. The memory is registered with
//!    cuFile for its reads. Other reads copy from pinned memory, and return after the copy.
//! 2. After all reads, records of the blocks are copied to the device. The kernel of verify.cu runs
//!    over them, and its findings are copied back, all in one stream.
//! 3. After the stream has finished these, the host compares. No other kernel over these blocks is
//!    launched before that.
//!
//! The owner must not start reads into the memory before the kernels that read its previous content
//! have finished.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use onehop_io::PAGE_BYTES;

use super::plan::{Landed, Plan, Read};
use super::verify::{self, Found, Record};
use super::{Passage, failed};
use crate::fused::{Error, Result, bytes_of};
use crate::queue::lose;
use crate::{DeviceBuf, PinnedBuf, Stream};

/// Attempt named in errors after the reads.
const VERIFYING: &str = "verifying columns on the GPU";

/// Memory for one batch at a time.
#[derive(Debug)]
pub struct Landing {
    /// Also held by a transfer whose end is unknown: then the memory is never freed.
    memory: Arc<DeviceBuf>,
    /// Offset of the first page boundary.
    first: usize,
    /// Records and findings, on the device and on the host.
    on_device: DeviceBuf,
    on_host: Mutex<PinnedBuf>,
    /// Maximum number of blocks.
    most: usize,
}

const RECORD: usize = size_of::<Record>();
const FOUND: usize = size_of::<Found>();

impl Landing {
    /// Allocates memory for plans of up to `bytes` bytes and `blocks` blocks.
    ///
    /// # Errors
    /// Returns an error if the device has no memory left, or no host memory can be pinned.
    pub fn new(passage: &Passage<'_>, bytes: usize, blocks: usize) -> Result<Self> {
        let context = passage.context();
        let memory = Arc::new(passage.memory(bytes + PAGE_BYTES)?);
        let first = (memory.address() as usize).next_multiple_of(PAGE_BYTES) - memory.address() as usize;
        let most = blocks.max(1);
        let on_device = DeviceBuf::new(context, most * (RECORD + FOUND))?;
        let on_host = Mutex::new(PinnedBuf::zeroed(context, most * (RECORD + FOUND))?);
        Ok(Self { memory, first, on_device, on_host, most })
    }

    /// Returns the address of the first byte of a plan's memory.
    pub fn start(&self) -> u64 {
        self.memory.address() + self.first as u64
    }

    fn host(&self) -> MutexGuard<'_, PinnedBuf> {
        self.on_host.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Executes one read of a plan, waits for it, and counts its bytes.
    ///
    /// # Errors
    /// Returns the error of the file's reader, or an error if the file ends too early.
    ///
    /// # Safety
    /// The memory has room for the plan. No pending operation uses its previous content, and no
    /// other thread executes the same read at the same time.
    pub unsafe fn read(&self, passage: &Passage<'_>, read: &Read) -> Result<()> {
        let (file, mut done) = (&read.file, 0);
        while done < read.bytes {
            let (offset, at) = (read.offset + done as u64, self.first + read.at + done);
            // SAFETY: reads of a plan have disjoint ranges, which have no user until all have
            // ended, as the caller guarantees.
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

    /// Enqueues the verification of blocks that were read, and counts them.
    ///
    /// # Errors
    /// Returns the error of the driver.
    ///
    /// # Safety
    /// All reads of the plan have ended. This value stays unchanged until the stream has finished,
    /// or is leaked.
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
            return Err(failed(VERIFYING, "blocks".into(), "they could not be verified".into()));
        };
        let (bytes, found) = (bytes_of(&records), self.on_device.address() + (self.most * RECORD) as u64);
        let mut host = self.host();
        host[..bytes.len()].copy_from_slice(bytes);
        // Zeros match no block until the findings arrive.
        host[self.most * RECORD..].fill(0);
        let from = host.as_ptr();
        let to = host.as_mut_ptr().wrapping_add(self.most * RECORD);
        drop(host);
        let count = records.len();
        let multiprocessors = passage.context().device().multiprocessors;
        // SAFETY: both buffers have room for `most` records and their findings. Their previous
        // content has no user: the previous batch was compared after its stream was waited for. The
        // caller guarantees that all of it lives as long as the stream needs it. The planes lie at
        // the places of the plan, where the reads have put them.
        unsafe {
            stream.copy_to_device(self.on_device.address(), from, bytes.len())?;
            stream.fill_at(found, 0, count * FOUND)?;
            verify::launch(kernel, stream, (self.on_device.address(), found), (count, units), multiprocessors)?;
            stream.copy_to_host(to, found, count * FOUND)?;
        }
        passage.has_needed(plan.chunk_bytes());
        Ok(())
    }

    /// Returns the first block of a plan that is wrong, and the reason. The stream must have
    /// finished the verification.
    pub fn wrong<'p>(&self, plan: &'p Plan) -> Option<(usize, &'p Landed, &'static str)> {
        let host = self.host();
        let found = host[self.most * RECORD..].chunks_exact(FOUND);
        plan.blocks.iter().zip(found).enumerate().find_map(|(number, (block, bytes))| {
            // SAFETY: `bytes` has the size of `Found`, which consists of numbers; the read is
            // unaligned.
            let found = unsafe { bytes.as_ptr().cast::<Found>().read_unaligned() };
            found.is_wrong(&block.place).map(|why| (number, block, why))
        })
    }

    /// Returns the memory to the passage. No pending operation may use it.
    pub fn settle(self, passage: &Passage<'_>) {
        if let Ok(memory) = Arc::try_unwrap(self.memory) {
            passage.keep(memory);
        }
    }

    /// Leaks the memory: it is unknown which operation still uses it.
    pub fn lose(self) {
        lose(self);
    }
}

/// Returns the error for a block that the device finds wrong and the host finds right.
pub fn doubtful(name: &str, why: &str) -> Error {
    let reason = format!("{why}, as it came to the GPU; as the host reads it, nothing is wrong");
    failed(VERIFYING, name.to_string(), reason)
}
