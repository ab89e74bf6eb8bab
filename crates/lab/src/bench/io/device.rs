//! The paths to the memory of a GPU: their queues, and buffers that are filled and checked through
//! the host.
//!
//! A block to be written is made in pinned memory and copied to the device before it is handed to
//! the queue. A block to be checked is copied back. Both copies are excluded from the latency of a
//! transfer, and included in the rate. A buffer to be read into and checked is overwritten first,
//! to detect bytes that never arrived.

use std::io;
use std::sync::Arc;

use onehop_cuda::cufile::{Counting, Counts};
use onehop_cuda::queue::{DeviceFile, Ring};
use onehop_cuda::{Context, Cufile, DeviceBuf, PinnedBuf, Verdict, Way};
use onehop_io::{Error, Ledger, LocalFile, Operation, Queue, ReadAt, Result};

use super::run::Buffers;
use super::{BenchFile, Point};

/// The GPU's pinning granularity: buffers registered with cuFile are multiples of it, for any block
/// size.
const GPU_PAGE_BYTES: usize = 64 << 10;

/// The fill byte of a buffer that is about to be read into.
const POISON: u8 = 0xee;

/// A GPU, and cuFile if it is available.
#[derive(Debug)]
pub struct Gpu {
    context: Arc<Context>,
    /// cuFile, or the reason it is unavailable.
    cufile: std::result::Result<Arc<Cufile>, String>,
}

/// Formats an error of a device, with its remedy.
fn said(e: &onehop_cuda::Error) -> String {
    match e.cure() {
        Some(cure) => format!("{e}; {cure}"),
        None => e.to_string(),
    }
}

/// Creates the error of a missing prerequisite.
pub(super) fn missing(what: impl Into<String>, why: impl Into<String>) -> Error {
    Error::new(Operation::Open, what, io::Error::new(io::ErrorKind::Unsupported, why.into()))
}

impl Gpu {
    /// Opens cuFile for a device, with its statistics.
    pub fn new(context: Arc<Context>) -> Self {
        let cufile = Cufile::open(&context, Counting::On);
        Self::with(context, cufile)
    }

    /// Creates a GPU with an opened cuFile, or the reason there is none.
    pub fn with(context: Arc<Context>, cufile: onehop_cuda::Result<Arc<Cufile>>) -> Self {
        Self { context, cufile: cufile.map_err(|e| said(&e)) }
    }

    /// Returns the device's context.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Returns cuFile, or the reason there is none.
    pub fn cufile(&self) -> std::result::Result<&Arc<Cufile>, &str> {
        self.cufile.as_ref().map_err(String::as_str)
    }
}

/// The shared state of a point's jobs.
#[derive(Debug)]
pub struct Lane<'a> {
    gpu: &'a Gpu,
    way: Way,
    file: DeviceFile,
    /// cuFile's counters before the point.
    before: std::result::Result<Counts, String>,
}

impl<'a> Lane<'a> {
    /// Registers the file for a path.
    ///
    /// # Errors
    /// Returns a missing prerequisite as an error of opening.
    pub fn open(gpu: &'a std::result::Result<Gpu, String>, way: Way, file: &Arc<LocalFile>) -> Result<Self> {
        let gpu = gpu.as_ref().map_err(|why| missing("a GPU", why))?;
        let cufile = match way.is_cufile() {
            true => Some(gpu.cufile().map_err(|why| missing("cuFile", why))?),
            false => None,
        };
        let file = DeviceFile::open(way, file, cufile).map_err(|e| missing(file.name(), said(&e)))?;
        let before = cufile.map_or(Err(String::new()), |cufile| cufile.counts());
        Ok(Self { gpu, way, file, before })
    }

    /// Returns the path that the bytes have taken since.
    pub fn verdict(&self) -> Verdict {
        match &self.file.of_cufile {
            Some(file) => file.cufile().verdict(&self.before),
            None => Verdict::staged(),
        }
    }

    /// Creates the queue and the buffers of a job.
    ///
    /// # Errors
    /// Returns an error of opening if memory is short, on the device or pinned, or if the depth
    /// exceeds cuFile's limit.
    pub fn job(
        &self,
        point: &Point,
        file: &BenchFile,
        verify: bool,
    ) -> Result<(Box<dyn Queue<DeviceBuf>>, DeviceBufs)> {
        let depth = if super::Way::Device(self.way).has_depth() { point.depth } else { 1 };
        let name = self.file.local.name();
        let (context, ring) = (&self.gpu.context, Ring::for_transfers(point.block_bytes, depth));
        let queue = self.way.queue(context, &self.file, depth, ring, Arc::new(Ledger::default()));
        let queue = queue.map_err(|e| missing(name, e.to_string()))?;
        if queue.depth() != depth {
            let why = format!("cuFile has {} transfers in a batch at most, and not {depth}", queue.depth());
            return Err(missing(name, why));
        }
        let of_device = |e: onehop_cuda::Error| missing(name, said(&e));
        let mut host = PinnedBuf::zeroed(&self.gpu.context, point.block_bytes).map_err(of_device)?;
        file.fill_noise(&mut host);
        let mut free = Vec::with_capacity(depth);
        for number in 0..depth {
            let bytes = point.block_bytes.next_multiple_of(GPU_PAGE_BYTES);
            let mut buffer = DeviceBuf::new(&self.gpu.context, bytes).map_err(of_device)?;
            if let Some(registered) = &self.file.of_cufile {
                registered.cufile().register(&mut buffer).map_err(of_device)?;
            }
            free.push((number, buffer));
        }
        Ok((queue, DeviceBufs { free, host, poisons: verify && !point.rw.writes() }))
    }
}

/// The buffers of a job, on the device.
#[derive(Debug)]
pub struct DeviceBufs {
    free: Vec<(usize, DeviceBuf)>,
    /// A staged block.
    host: PinnedBuf,
    poisons: bool,
}

impl Buffers<DeviceBuf> for DeviceBufs {
    fn take(&mut self) -> Option<(usize, DeviceBuf)> {
        self.free.pop()
    }

    fn give(&mut self, number: usize, buffer: DeviceBuf) {
        self.free.push((number, buffer));
    }

    fn for_reading(&mut self, buffer: &mut DeviceBuf) -> io::Result<()> {
        if self.poisons { Ok(buffer.fill(POISON)?) } else { Ok(()) }
    }

    fn for_writing(&mut self, file: &BenchFile, offset: u64, buffer: &mut DeviceBuf) -> io::Result<()> {
        file.stamp(offset, &mut self.host);
        Ok(buffer.copy_from(0, &self.host)?)
    }

    fn content<'a>(&'a mut self, buffer: &'a DeviceBuf, bytes: usize) -> io::Result<&'a [u8]> {
        buffer.copy_to(0, &mut self.host[..bytes])?;
        Ok(&self.host[..bytes])
    }
}
