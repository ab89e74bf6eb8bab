//! Processes a unit on the device, and the setup of the device.

use std::sync::Arc;

use onehop_cuda::kernels::q6::{Added, Piece, Q6, Shape as DeviceShape, Sums, Threads};
use onehop_cuda::{Context, Cufile, CufileFile, DeviceBuf, Stream};
use onehop_io::LocalFile;

use super::plan::{Plan, Unit, Work};
use super::{Error, FILTER, Result, Way, rows};

/// A GPU with its available libraries.
#[derive(Debug)]
pub struct Gpu {
    /// The device.
    pub context: Arc<Context>,
    /// cuFile, or the reason there is none.
    pub cufile: Result<Arc<Cufile>, String>,
    /// The kernels, or the reason there are none.
    pub kernels: Result<Arc<Q6>, String>,
}

impl Gpu {
    /// Checks that a path is available.
    ///
    /// # Errors
    /// Returns the reason it is not.
    pub fn can(&self, way: Way) -> Result<(), String> {
        if way.is_cufile() {
            self.cufile.as_ref().map_err(String::clone)?;
        }
        if way.has_kernel() {
            self.kernels.as_ref().map_err(String::clone)?;
        }
        Ok(())
    }

    /// Compiles the kernels of a plan: once, and not during a measurement.
    ///
    /// # Errors
    /// Returns the compiler's error.
    pub fn compile(&self, plan: &Plan) -> Result<()> {
        let kernels = self.kernels()?;
        plan.shapes.iter().try_for_each(|shape| kernels.for_bits(shape.bits).map(drop))?;
        Ok(())
    }

    fn kernels(&self) -> Result<&Arc<Q6>> {
        self.kernels.as_ref().map_err(|why| Error::NotHere(why.clone()))
    }

    /// Returns cuFile.
    ///
    /// # Errors
    /// Returns the reason there is none.
    pub fn cufile(&self) -> Result<&Arc<Cufile>> {
        self.cufile.as_ref().map_err(|why| Error::NotHere(why.clone()))
    }

    /// Registers files with cuFile.
    ///
    /// # Errors
    /// Returns cuFile's error with its remedy.
    pub fn register(&self, files: &[Arc<LocalFile>]) -> Result<Vec<Arc<CufileFile>>> {
        let cufile = self.cufile()?;
        let register = |file: &Arc<LocalFile>| match CufileFile::new(cufile, Arc::clone(file)) {
            Ok(file) => Ok(Arc::new(file)),
            Err(e) => Err(Error::NotHere(match e.cure() {
                Some(cure) => format!("{e}; {cure}"),
                None => e.to_string(),
            })),
        };
        files.iter().map(register).collect()
    }

    /// Creates a buffer that is registered with cuFile.
    ///
    /// # Errors
    /// Fails if the device has no memory left.
    pub fn registered_buffer(&self, bytes: usize) -> Result<DeviceBuf> {
        let mut buffer = DeviceBuf::new(&self.context, bytes)?;
        self.cufile()?.register(&mut buffer)?;
        Ok(buffer)
    }
}

/// Sums units of a plan on a device.
#[derive(Debug)]
pub struct Adder<'a> {
    plan: &'a Plan,
    kernels: Arc<Q6>,
    /// The stream of the kernels.
    pub stream: Stream,
    sums: Sums,
    pieces: Option<DeviceBuf>,
    shapes: Vec<DeviceShape>,
    threads: Threads,
}

impl<'a> Adder<'a> {
    /// Copies the necessary data of the plan to the device.
    ///
    /// # Errors
    /// Fails without kernels, or without memory.
    pub fn new(gpu: &Gpu, plan: &'a Plan, threads: Threads) -> Result<Self> {
        let context = &gpu.context;
        let upload = |values: &Option<Vec<i64>>| -> Result<Option<Arc<DeviceBuf>>> {
            let Some(values) = values else { return Ok(None) };
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            let mut buffer = DeviceBuf::new(context, bytes.len())?;
            buffer.copy_from(0, &bytes)?;
            Ok(Some(Arc::new(buffer)))
        };
        let shape = |shape: &super::plan::Shape| -> Result<DeviceShape> {
            let [discount, price] = &shape.dictionaries;
            Ok(DeviceShape { bits: shape.bits, dictionaries: [upload(discount)?, upload(price)?] })
        };
        Ok(Self {
            plan,
            kernels: Arc::clone(gpu.kernels()?),
            stream: Stream::new(context)?,
            sums: Sums::new(context)?,
            pieces: (!plan.pieces.is_empty()).then(|| Piece::upload(context, &plan.pieces)).transpose()?,
            shapes: plan.shapes.iter().map(shape).collect::<Result<_>>()?,
            threads,
        })
    }

    /// Starts to add a unit on the device, asynchronously.
    ///
    /// # Errors
    /// Returns the driver's error.
    ///
    /// # Safety
    /// `parts` are those of the unit, have been read completely, and are neither freed nor written
    /// to until the stream has completed.
    pub unsafe fn begin(&self, unit: &Unit, parts: &[&DeviceBuf]) -> Result<()> {
        let (stream, threads) = (&self.stream, self.threads);
        match &unit.work {
            Work::Rows(pages) => {
                let Some(buffer) = parts.first() else { return Ok(()) };
                let pages = (*buffer, 0, *pages, rows::PAGE_BYTES);
                // SAFETY: the caller's promise.
                unsafe { self.kernels.add_rows(stream, threads, &FILTER, pages, &self.sums)? };
            }
            Work::Pieces { shape, pieces, part_of } => {
                let (Some(known), false) = (&self.pieces, pieces.is_empty()) else { return Ok(()) };
                let columns = part_of.map(|part| part.and_then(|part| Some((*parts.get(part)?, 0))));
                let at = (known, pieces.start * size_of::<Piece>());
                let shape = &self.shapes[*shape];
                // SAFETY: the plan's pieces lie within the extents that were read, whose lengths
                // follow from the same records; the rest is the caller's promise.
                unsafe {
                    self.kernels.add_segments(stream, threads, shape, (at, pieces.len()), columns, &self.sums)?;
                }
            }
        }
        Ok(())
    }

    /// Returns the sum of a completed stream.
    ///
    /// # Errors
    /// Returns the driver's error. Fails if rows or codes are invalid.
    pub fn read(&self) -> Result<i128> {
        let Added { sum, damaged } = self.sums.read()?;
        match damaged {
            0 => Ok(sum),
            n => {
                let object = self.plan.paths.first().map_or("a file".into(), |path| path.display().to_string());
                Err(Error::Damaged { object, reason: format!("{n} rows, pages or codes make no sense") })
            }
        }
    }
}

impl Drop for Adder<'_> {
    fn drop(&mut self) {
        // Sums and pieces are freed after this. After an error, kernels may still use them.
        let _ = self.stream.synchronize();
    }
}
