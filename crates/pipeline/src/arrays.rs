//! Columns as dense arrays in a device's memory, for programs outside this engine that know no
//! encoding and read the data in place.
//!
//! - An array is complete when it is returned: its holder need not wait for anything.
//! - It is immutable, and its memory stays while a holder exists, whatever happens to the data it
//!   was decoded from.
//! - One allocation has columns of one type, one behind the other without a gap: a single column,
//!   or a column-major matrix.
//!
//! Arrays decoded from stored columns are kept beside those columns while there is room: a repeated
//! request for the same rows returns the same memory. A [`Shared`] handle of the driver gives other
//! processes access to the memory of one process.

use std::fmt::{self, Debug};
use std::sync::Arc;

use onehop_segment::ColumnType;

use crate::backend::{Control, MemoryLimit, Stored};
use crate::{Result, Source};

/// The type of an array's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Element {
    /// 0 or 1 in a byte.
    Bool,
    /// Signed integers of 8 bits.
    Int8,
    /// Signed integers of 16 bits.
    Int16,
    /// Signed integers of 32 bits.
    Int32,
    /// Signed integers of 64 bits.
    Int64,
    /// Unsigned integers of 8 bits.
    UInt8,
    /// Unsigned integers of 16 bits.
    UInt16,
    /// Unsigned integers of 32 bits.
    UInt32,
    /// Unsigned integers of 64 bits.
    UInt64,
    /// IEEE 754 half precision, in which no column is stored.
    Float16,
    /// Single precision.
    Float32,
    /// Double precision.
    Float64,
}

impl Element {
    /// All types of elements.
    pub const ALL: [Self; 12] = [
        Self::Bool,
        Self::Int8,
        Self::Int16,
        Self::Int32,
        Self::Int64,
        Self::UInt8,
        Self::UInt16,
        Self::UInt32,
        Self::UInt64,
        Self::Float16,
        Self::Float32,
        Self::Float64,
    ];

    /// Returns the element type of a stored column. Numbers and booleans have one.
    pub fn of(column: &ColumnType) -> Option<Self> {
        Some(match column {
            ColumnType::Boolean => Self::Bool,
            ColumnType::Int8 => Self::Int8,
            ColumnType::Int16 => Self::Int16,
            ColumnType::Int32 => Self::Int32,
            ColumnType::Int64 => Self::Int64,
            ColumnType::UInt8 => Self::UInt8,
            ColumnType::UInt16 => Self::UInt16,
            ColumnType::UInt32 => Self::UInt32,
            ColumnType::UInt64 => Self::UInt64,
            ColumnType::Float32 => Self::Float32,
            ColumnType::Float64 => Self::Float64,
            ColumnType::Decimal { .. } | ColumnType::Date | ColumnType::Timestamp { .. } | ColumnType::Varchar => {
                return None;
            }
        })
    }

    /// Returns the bytes of a value.
    pub fn bytes(self) -> usize {
        match self {
            Self::Bool | Self::Int8 | Self::UInt8 => 1,
            Self::Int16 | Self::UInt16 | Self::Float16 => 2,
            Self::Int32 | Self::UInt32 | Self::Float32 => 4,
            Self::Int64 | Self::UInt64 | Self::Float64 => 8,
        }
    }

    /// Returns true if a value can be NaN.
    pub fn is_float(self) -> bool {
        matches!(self, Self::Float16 | Self::Float32 | Self::Float64)
    }

    /// Returns the name that NumPy, CuPy and PyTorch use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::Int8 => "int8",
            Self::Int16 => "int16",
            Self::Int32 => "int32",
            Self::Int64 => "int64",
            Self::UInt8 => "uint8",
            Self::UInt16 => "uint16",
            Self::UInt32 => "uint32",
            Self::UInt64 => "uint64",
            Self::Float16 => "float16",
            Self::Float32 => "float32",
            Self::Float64 => "float64",
        }
    }

    /// Returns the element type with a name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|element| element.name() == name)
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A handle of the driver to memory of one process, for all other processes with the same device.
pub type Shared = [u8; 64];

/// Memory of a device, kept while a holder exists.
pub trait DeviceMemory: Debug + Send + Sync {
    /// Returns the device's number in this process.
    fn ordinal(&self) -> i32;

    /// Returns its address on the device.
    fn address(&self) -> u64;

    /// Returns the number of readable bytes at the address.
    fn bytes(&self) -> u64;

    /// Returns a handle to it, valid while this value is held.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) if the driver cannot share memory.
    fn share(&self) -> Result<Shared>;
}

/// A device's arrays. All methods may be called from many threads, and block until the memory has
/// its final contents.
pub trait Arrays: Debug + Send + Sync {
    /// Returns the identifier of the device, unique across devices and processes.
    fn uuid(&self) -> [u8; 16];

    /// Returns the rows of all columns of a source as one array of `element`s. Decodes them on the
    /// device, unless an earlier request has left them there. NULL becomes NaN if the element has
    /// one.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported) for a column that cannot be on the device
    /// as it is stored, [`Error::Memory`](crate::Error::Memory),
    /// [`Error::Device`](crate::Error::Device), those of the storage;
    /// [`Error::OutOfRange`](crate::Error::OutOfRange) for a value that no element is equal to.
    fn decode(
        &self,
        source: &Arc<dyn Source>,
        stored: &Stored,
        element: Element,
        limit: MemoryLimit,
        control: &Control<'_>,
    ) -> Result<Arc<dyn DeviceMemory>>;

    /// Copies these bytes, one part behind the other, to memory of their own.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory) and [`Error::Device`](crate::Error::Device).
    fn upload(&self, parts: &[&[u8]], limit: MemoryLimit, control: &Control<'_>) -> Result<Arc<dyn DeviceMemory>>;

    /// Opens memory of another process, of which the caller needs at least `bytes` bytes.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) for a handle that is no longer valid, or to less
    /// memory than that.
    fn open(&self, shared: &Shared, bytes: u64) -> Result<Arc<dyn DeviceMemory>>;
}
