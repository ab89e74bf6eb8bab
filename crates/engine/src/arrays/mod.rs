//! Results and tables as dense arrays in host or device memory, for NumPy, CuPy, PyTorch and other
//! consumers without Arrow.
//!
//! ```text
//! table, all rows in segments ─ decoded once on a device ─► Array in its memory, kept there
//! any other table, a result ─ batches ─ dense buffers, shared if possible ┬► Array on the host
//!                                                                         └ copied ► on a device
//! ```
//! - Arrays hold numbers and booleans. For any other column type the error names the column and
//!   suggests a remedy.
//! - An array cannot represent NULL. NULL is an error, or NaN on request. Integers with NULLs then
//!   become doubles, and an integer that no double equals is an error.
//! - An array is never written to after it was handed out. Its memory stays as long as a reference
//!   exists.
//!
//! Other processes access arrays by a handle ([`export`]).

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

/// A request for arrays.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// The columns by name, in order; all columns if empty.
    pub columns: Vec<String>,
    /// The target memory.
    pub target: Target,
    /// The representation of NULL.
    pub nulls: Nulls,
    /// The layout of columns.
    pub layout: Layout,
}

/// The memory that arrays are placed in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Target {
    /// A GPU if there is one, preferably that of the table's residence; host memory otherwise.
    #[default]
    Auto,
    /// Host memory.
    Host,
    /// The memory of this device.
    Device(String),
}

/// The representation of NULL.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Nulls {
    /// NULL is an error.
    #[default]
    Refused,
    /// NULL is NaN. A float column with NULLs keeps its type. Any other becomes a double column.
    NaN,
}

/// The layout of columns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// One array for each column.
    #[default]
    Columns,
    /// One column-major array of all columns, which must have the same type.
    Matrix,
}

/// Arrays in the requested order. A matrix is one array.
#[derive(Clone, Debug)]
pub struct Arrays {
    /// The names of the columns, including those of a matrix.
    pub columns: Vec<String>,
    /// The array of each column, or the matrix.
    pub arrays: Vec<Array>,
}

/// An array.
#[derive(Clone, Debug)]
pub struct Array {
    /// The type of its values.
    pub element: Element,
    /// The number of values of a column.
    pub rows: usize,
    /// The number of columns of a matrix, which lie one behind the other; `None` for a single
    /// column.
    pub columns: Option<usize>,
    /// The memory of the values.
    pub memory: Memory,
}

/// The memory of an array.
#[derive(Clone, Debug)]
pub enum Memory {
    /// Host memory. The array begins at its start.
    Host(Buffer),
    /// Device memory. The array begins at its start.
    Device(Arc<dyn DeviceMemory>),
}

impl Array {
    /// Returns the address of the first value, in host memory or on the device.
    pub fn address(&self) -> u64 {
        match &self.memory {
            Memory::Host(buffer) => buffer.as_ptr() as u64,
            Memory::Device(memory) => memory.address(),
        }
    }

    /// Returns the size of all values, in bytes.
    pub fn bytes(&self) -> usize {
        self.rows * self.columns.unwrap_or(1) * self.element.bytes()
    }
}

/// Converts rows to arrays with the settings of a session.
#[derive(Clone, Debug)]
pub struct ArrayMaker {
    pub(crate) placing: Placing,
    pub(crate) query: Arc<Query>,
}

impl ArrayMaker {
    /// Converts all these rows. Blocks until the conversion is complete. The statement's ledger
    /// counts the bytes copied to a device.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for columns that do not exist, [`ErrorKind::Invalid`] for types that
    /// arrays do not have, [`ErrorKind::Data`] for NULLs, [`ErrorKind::Unmet`] for devices that do
    /// not exist; errors of the device.
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

    /// Converts columns of one type to an array.
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

    /// Returns the name of a device and its UUID.
    pub(crate) fn device_of(&self, memory: &dyn DeviceMemory) -> Result<(String, [u8; 16])> {
        let name = format!("cuda:{}", memory.ordinal());
        let device = residence::device(&self.placing, std::slice::from_ref(&name))?;
        match device.arrays() {
            Some(arrays) => Ok((name, arrays.uuid())),
            None => Err(Error::new(ErrorKind::Internal, format!("{name} has an array, and makes none"))),
        }
    }

    /// Returns the device for the arrays; `None` is host memory. `home` is the residence of the
    /// table.
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

/// Runs a function on a device for a statement.
fn with_control<T>(query: &Query, f: impl FnOnce(&Control<'_>) -> onehop_pipeline::Result<T>) -> Result<T> {
    with_cancelled(query, &AtomicBool::new(false), f)
}

pub(crate) fn with_cancelled<T>(
    query: &Query,
    cancelled: &AtomicBool,
    f: impl FnOnce(&Control<'_>) -> onehop_pipeline::Result<T>,
) -> Result<T> {
    let ledgers = [Arc::clone(query.shared_ledger())];
    // Nothing is assembled, so the budget is empty.
    let budget = Budget::from(0);
    f(&Control { cancelled, counts_steps: false, ledgers: &ledgers, did_rows: &|_| (), budget: &budget })
        .map_err(of_device)
}

/// Converts an error of a device to an error of an array request.
fn of_device(e: onehop_pipeline::Error) -> Error {
    const ROOM: &str = "drop arrays that are not needed; EVICT TABLE makes room, gpu.memory_limit says how much there may be; \
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
