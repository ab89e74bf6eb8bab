//! Execution as in the paper: one thread, one buffer (for segments, one for each column), and no
//! overlap.
//!
//! - CPU: `pread`, compute.
//! - GPU indirect: `pread`, copy to the device, kernel, copy its result back.
//! - GPU direct: `cuFileRead`, kernel, copy its result back.
//! - GPU I/O: `cuFileRead`, copy all of it back, compute.
//!
//! Host memory comes from an allocator, and is not pinned; the kernel has one thread unless more
//! are requested.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use onehop_cuda::{CufileFile, DeviceBuf, Event};
use onehop_io::{AlignedBuf, Error as IoError, Ledger, LocalFile, Operation, ReadAt};

use super::gpu::Adder;
use super::plan::{Plan, Unit, in_pages};
use super::run::{Options, Outcome};
use super::{Error, Gpu, Result, Way, cpu};

/// Runs a plan on a path.
pub fn run(plan: &Plan, way: Way, gpu: Option<&Gpu>, options: &Options, cancel: &AtomicBool) -> Result<Outcome> {
    let started = Instant::now();
    let files = plan.open()?;
    let mut loops = Loop { plan, cancel, started, outcome: Outcome { threads: 1, depth: 1, ..Outcome::default() } };
    match (way, gpu) {
        (Way::Cpu, _) => loops.cpu(&files)?,
        (_, None) => return Err(Error::NotHere("there is no GPU".into())),
        (Way::GpuIndirect, Some(gpu)) => loops.indirect(gpu, &files, options)?,
        (Way::GpuDirect, Some(gpu)) => loops.direct(gpu, &files, options)?,
        (Way::GpuIo, Some(gpu)) => loops.device_io(gpu, &files)?,
    }
    Ok(loops.outcome)
}

struct Loop<'a> {
    plan: &'a Plan,
    cancel: &'a AtomicBool,
    started: Instant,
    outcome: Outcome,
}

impl Loop<'_> {
    fn cpu(&mut self, files: &[Arc<LocalFile>]) -> Result<()> {
        let mut buffers = self.host_buffers();
        self.began(files);
        for unit in &self.plan.units {
            self.check()?;
            self.read_host(files, unit, &mut buffers)?;
            self.compute(unit, &buffers)?;
        }
        Ok(())
    }

    fn indirect(&mut self, gpu: &Gpu, files: &[Arc<LocalFile>], options: &Options) -> Result<()> {
        let mut buffers = self.host_buffers();
        let mut device: Vec<DeviceBuf> = self.device_buffers(|bytes| Ok(DeviceBuf::new(&gpu.context, bytes)?))?;
        let kernel = Timed::new(gpu, self.plan, options)?;
        self.began(files);
        self.outcome.path += ", copied to the device";
        for unit in &self.plan.units {
            self.check()?;
            self.read_host(files, unit, &mut buffers)?;
            let from = Instant::now();
            for ((part, host), device) in unit.parts.iter().zip(&buffers).zip(&mut device) {
                device.copy_from(0, &host[..part.bytes])?;
            }
            self.outcome.transfer += from.elapsed();
            self.kernel(&kernel, unit, &device)?;
        }
        Ok(())
    }

    fn direct(&mut self, gpu: &Gpu, files: &[Arc<LocalFile>], options: &Options) -> Result<()> {
        let registered = gpu.register(files)?;
        let mut device = self.device_buffers(|bytes| gpu.registered_buffer(bytes))?;
        let kernel = Timed::new(gpu, self.plan, options)?;
        self.began_with_cufile(&registered);
        for unit in &self.plan.units {
            self.check()?;
            self.read_device(&registered, unit, &mut device)?;
            self.kernel(&kernel, unit, &device)?;
        }
        Ok(())
    }

    fn device_io(&mut self, gpu: &Gpu, files: &[Arc<LocalFile>]) -> Result<()> {
        let registered = gpu.register(files)?;
        let mut device = self.device_buffers(|bytes| gpu.registered_buffer(bytes))?;
        let mut buffers = self.host_buffers();
        self.began_with_cufile(&registered);
        for unit in &self.plan.units {
            self.check()?;
            self.read_device(&registered, unit, &mut device)?;
            let from = Instant::now();
            for ((part, host), device) in unit.parts.iter().zip(&mut buffers).zip(&device) {
                device.copy_to(0, &mut host[..part.bytes])?;
            }
            self.outcome.transfer += from.elapsed();
            self.compute(unit, &buffers)?;
        }
        Ok(())
    }

    fn check(&self) -> Result<()> {
        if self.cancel.load(Relaxed) { Err(Error::Cancelled) } else { Ok(()) }
    }

    fn host_buffers(&self) -> Vec<AlignedBuf> {
        (0..self.plan.most_parts()).map(|_| AlignedBuf::zeroed(self.plan.part_bytes)).collect()
    }

    fn device_buffers(&self, new: impl Fn(usize) -> Result<DeviceBuf>) -> Result<Vec<DeviceBuf>> {
        (0..self.plan.most_parts()).map(|_| new(self.plan.part_bytes)).collect()
    }

    fn began(&mut self, files: &[Arc<LocalFile>]) {
        let path = files.first().map_or(onehop_io::Path::Memory, |file| file.hints().path);
        self.outcome.path = format!("pread, {path}");
        self.outcome.setup = self.started.elapsed();
    }

    fn began_with_cufile(&mut self, files: &[Arc<CufileFile>]) {
        let verdict = files.first().map(|file| file.verdict().to_string());
        self.outcome.path = format!("cuFileRead, {}", verdict.unwrap_or_default());
        self.outcome.setup = self.started.elapsed();
    }

    fn read_host(&mut self, files: &[Arc<LocalFile>], unit: &Unit, buffers: &mut [AlignedBuf]) -> Result<()> {
        let (from, ledger) = (Instant::now(), Ledger::default());
        for (part, buffer) in unit.parts.iter().zip(buffers) {
            // Its pages, all of which the file has.
            files[part.file].read_at(part.offset, &mut buffer[..in_pages(part.bytes)], &ledger)?;
        }
        self.outcome.io += from.elapsed();
        Ok(())
    }

    fn read_device(&mut self, files: &[Arc<CufileFile>], unit: &Unit, buffers: &mut [DeviceBuf]) -> Result<()> {
        let from = Instant::now();
        for (part, buffer) in unit.parts.iter().zip(buffers) {
            let (file, bytes) = (&files[part.file], in_pages(part.bytes));
            let mut done = 0;
            while done < part.bytes {
                let at = part.offset + done as u64;
                let moved = match file.read(at, buffer, done, bytes - done) {
                    Ok(0) => Err(std::io::ErrorKind::UnexpectedEof.into()),
                    Err(e) if e.kind() == std::io::ErrorKind::Interrupted => Ok(0),
                    moved => moved,
                };
                done += moved.map_err(|e| IoError::at(Operation::Read, file.file().name(), at, bytes - done, e))?;
            }
        }
        self.outcome.io += from.elapsed();
        Ok(())
    }

    fn compute(&mut self, unit: &Unit, buffers: &[AlignedBuf]) -> Result<()> {
        let from = Instant::now();
        let parts: Vec<&[u8]> = unit.parts.iter().zip(buffers).map(|(part, buffer)| &buffer[..part.bytes]).collect();
        let sum = cpu::add(self.plan, unit, &parts)?;
        self.outcome.answer = self.outcome.answer.wrapping_add(sum);
        self.outcome.compute += from.elapsed();
        Ok(())
    }

    /// Runs the kernel, and copies its accumulated result to the host.
    fn kernel(&mut self, kernel: &Timed<'_>, unit: &Unit, device: &[DeviceBuf]) -> Result<()> {
        let parts: Vec<&DeviceBuf> = device.iter().collect();
        kernel.start.record(&kernel.adder.stream)?;
        // SAFETY: the parts were read just now, and the stream is waited for before they are read
        // into again.
        unsafe { kernel.adder.begin(unit, &parts)? };
        kernel.end.record(&kernel.adder.stream)?;
        kernel.adder.stream.synchronize()?;
        let time = kernel.end.since(&kernel.start)?;
        self.outcome.compute += time;
        *self.outcome.kernel.get_or_insert(Duration::ZERO) += time;
        let from = Instant::now();
        self.outcome.answer = kernel.adder.read()?;
        self.outcome.transfer += from.elapsed();
        Ok(())
    }
}

/// A kernel with a clock of the device.
struct Timed<'a> {
    adder: Adder<'a>,
    start: Event,
    end: Event,
}

impl<'a> Timed<'a> {
    fn new(gpu: &Gpu, plan: &'a Plan, options: &Options) -> Result<Self> {
        let adder = Adder::new(gpu, plan, options.device_threads)?;
        Ok(Self { adder, start: Event::timed(&gpu.context)?, end: Event::timed(&gpu.context)? })
    }
}
