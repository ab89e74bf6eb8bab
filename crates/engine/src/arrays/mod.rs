//! Results and tables as dense arrays, for NumPy, CuPy, PyTorch and whatever else knows no Arrow: in host memory, or in a
//! device's.
//!
//! ```text
//! table, all rows in segments ─ a device decodes its columns, once ─────────────────────► Array in its memory, kept there
//! any other table, a result ─ batches ─ dense buffers, where they are if they can be ─┬─► Array in host memory
//!                                                                                     └─ copied ─► Array in a device's
//! ```
//! - Arrays hold numbers and truth values. What else a column may be is an error that names it, and says what to do.
//! - NULL has no place in an array: it is an error, or NaN for who asks for that. Integers with NULLs are doubles then, and an
//!   integer that no double is equal to is an error.
//! - Nothing is written to an array that was handed out, and its memory stays as long as somebody has it.
//!
//! Other processes have them by a handle ([`export`]).

pub mod export;
mod function;
pub(crate) mod host;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use arrow::array::RecordBatch;
use arrow::buffer::Buffer;
use arrow::datatypes::SchemaRef;
use onehop_pipeline::Budget;
use onehop_pipeline::arrays::{DeviceMemory, Element};
use onehop_pipeline::backend::{Backend, Control};

pub(crate) use self::function::{Exporting, TableExports};
pub(crate) use self::host::element_of;
pub use self::host::together;
use crate::place::{Placing, residence};
use crate::query::Query;
use crate::settings::GpuMode;
use crate::{Error, ErrorKind, Result};

/// What arrays are wanted.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Columns by name, in their order; all, if there are none.
    pub columns: Vec<String>,
    /// Where.
    pub target: Target,
    /// What NULL becomes.
    pub nulls: Nulls,
    /// How columns lie.
    pub layout: Layout,
}

/// Where arrays are to be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Target {
    /// On a GPU if there is one, that of the table's residence first; in host memory otherwise.
    #[default]
    Auto,
    /// In host memory.
    Host,
    /// On this device.
    Device(String),
}

/// What NULL becomes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Nulls {
    /// An error.
    #[default]
    Refused,
    /// NaN: of what has NULLs, floats stay what they are, and all else becomes doubles.
    NaN,
}

/// How columns lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// An array each.
    #[default]
    Columns,
    /// All in one, column-major: they are of one type.
    Matrix,
}

/// Arrays, in the order of what was wanted; a matrix is one.
#[derive(Clone, Debug)]
pub struct Arrays {
    /// Names of the columns, of those in a matrix as well.
    pub columns: Vec<String>,
    /// Of each, or the matrix.
    pub arrays: Vec<Array>,
}

/// An array.
#[derive(Clone, Debug)]
pub struct Array {
    /// The type of its values.
    pub element: Element,
    /// Values of a column.
    pub rows: usize,
    /// Columns, if it is a matrix: they lie one behind the other.
    pub columns: Option<usize>,
    /// Where it is.
    pub memory: Memory,
}

/// Memory of an array.
#[derive(Clone, Debug)]
pub enum Memory {
    /// Of the host, from its beginning.
    Host(Buffer),
    /// Of a device, from its beginning.
    Device(Arc<dyn DeviceMemory>),
}

impl Array {
    /// Where its first value is: in host memory, or on the device.
    pub fn address(&self) -> u64 {
        match &self.memory {
            Memory::Host(buffer) => buffer.as_ptr() as u64,
            Memory::Device(memory) => memory.address(),
        }
    }

    /// Bytes of all values.
    pub fn bytes(&self) -> usize {
        self.rows * self.columns.unwrap_or(1) * self.element.bytes()
    }
}

/// What makes arrays of rows that are there, as a session would have them made.
#[derive(Clone, Debug)]
pub struct ArrayMaker {
    pub(crate) placing: Placing,
    pub(crate) query: Arc<Query>,
}

impl ArrayMaker {
    /// Of all these rows. Blocks until it is done; what was copied to a device is in the statement's ledger.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for columns that are not there, [`ErrorKind::Invalid`] for types that arrays have not,
    /// [`ErrorKind::Data`] for NULLs, [`ErrorKind::Unmet`] for devices that are not there; those of the device.
    pub fn of_rows(&self, schema: &SchemaRef, batches: &[RecordBatch], wanted: &Wanted) -> Result<Arrays> {
        let backend = self.backend(&wanted.target, None)?;
        let columns = host::columns(schema, batches, wanted)?;
        let names = columns.iter().map(|column| column.name.clone()).collect();
        let arrays = match wanted.layout {
            Layout::Columns => columns.iter().map(|column| self.array(&backend, &[column], None)).collect(),
            Layout::Matrix => {
                host::check_agree(&columns)?;
                self.array(&backend, &columns.iter().collect::<Vec<_>>(), Some(columns.len())).map(|array| vec![array])
            }
        };
        Ok(Arrays { columns: names, arrays: arrays? })
    }

    /// Columns of one type as an array.
    fn array(&self, backend: &Option<Arc<dyn Backend>>, of: &[&host::Column], columns: Option<usize>) -> Result<Array> {
        let Some(first) = of.first() else {
            return Err(Error::new(ErrorKind::Invalid, "an array of no columns was asked for"));
        };
        let memory = match backend.as_ref().and_then(|backend| backend.arrays()) {
            Some(arrays) => {
                let parts: Vec<&[u8]> = of.iter().map(|column| column.values.as_slice()).collect();
                Memory::Device(with_control(&self.query, |control| {
                    arrays.upload(&parts, self.placing.memory, control)
                })?)
            }
            None => Memory::Host(host::joined(of)),
        };
        Ok(Array { element: first.element, rows: first.rows, columns, memory })
    }

    /// What a device is called, and its number that no other has.
    pub(crate) fn device_of(&self, memory: &dyn DeviceMemory) -> Result<(String, [u8; 16])> {
        let name = format!("cuda:{}", memory.ordinal());
        let device = residence::device(&self.placing, std::slice::from_ref(&name))?;
        match device.arrays() {
            Some(arrays) => Ok((name, arrays.uuid())),
            None => Err(Error::new(ErrorKind::Internal, format!("{name} has an array, and makes none"))),
        }
    }

    /// The device that arrays go to; `None` is host memory. `home` is where the table belongs.
    pub(crate) fn backend(&self, target: &Target, home: Option<&str>) -> Result<Option<Arc<dyn Backend>>> {
        let placing = &self.placing;
        let is_required = placing.mode == GpuMode::Require;
        match target {
            Target::Host => Ok(None),
            Target::Device(name) => residence::device(placing, std::slice::from_ref(name)).map(Some),
            Target::Auto if placing.mode == GpuMode::Off => Ok(None),
            Target::Auto => {
                let Some(devices) = placing.known.devices() else { return Ok(None) };
                let all = match devices.all() {
                    Ok(all) => all,
                    Err(_) if !is_required => return Ok(None),
                    Err(why) => return Err(Error::new(ErrorKind::Unmet, format!("a GPU is required: {why}"))),
                };
                let mut may = all.iter().filter(|backend| placing.names.has(backend.name()));
                let may: Vec<_> = may.by_ref().filter(|backend| backend.arrays().is_some()).collect();
                let at_home = may.iter().find(|backend| Some(backend.name()) == home);
                Ok(at_home.or(may.first()).map(|backend| Arc::clone(backend)))
            }
        }
    }
}

/// Does something on a device for a statement.
fn with_control<T>(query: &Query, f: impl FnOnce(&Control<'_>) -> onehop_pipeline::Result<T>) -> Result<T> {
    with_cancelled(query, &AtomicBool::new(false), f)
}

pub(crate) fn with_cancelled<T>(
    query: &Query,
    cancelled: &AtomicBool,
    f: impl FnOnce(&Control<'_>) -> onehop_pipeline::Result<T>,
) -> Result<T> {
    let ledgers = [Arc::clone(query.shared_ledger())];
    // Nothing is put together.
    let budget = Budget::from(0);
    f(&Control { cancelled, counts_steps: false, ledgers: &ledgers, did_rows: &|_| (), budget: &budget })
        .map_err(of_device)
}

/// An error of a device's as whoever wants an array knows it.
fn of_device(e: onehop_pipeline::Error) -> Error {
    const ROOM: &str = "drop arrays that nobody needs; EVICT TABLE makes room, gpu.memory_limit says how much there may be; \
                        or ask for the array in host memory";
    match e {
        onehop_pipeline::Error::Memory { .. } => Error::new(ErrorKind::Resources, e.to_string()).with_hint(ROOM),
        onehop_pipeline::Error::OutOfRange { ref expression, .. } => {
            let message = format!("NULLs cannot be NaN here: {expression}");
            Error::new(ErrorKind::Data, message).with_hint("COALESCE(column, 0) keeps it an integer").with_source(e)
        }
        other => other.into(),
    }
}
