//! Columns as dense arrays in a device's memory: what programs of other people's, which know no encoding, can use where it is.
//!
//! - An array is whole when it is handed out: whoever has it need not wait for anything.
//! - It is never written to again, and its memory stays as long as somebody holds it, whatever becomes of what it was made of.
//! - One allocation has columns of one type, one behind the other without a gap: one column, or a column-major matrix.
//!
//! What is decoded of columns that are stored is kept beside them while there is room: who asks again, for the same rows, has
//! the same memory. Memory of one process is another's by a [`Shared`] handle, which is the driver's.

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
    /// Signed integers.
    Int8,
    /// Of 16 bits.
    Int16,
    /// Of 32 bits.
    Int32,
    /// Of 64 bits.
    Int64,
    /// Integers without a sign.
    UInt8,
    /// Of 16 bits.
    UInt16,
    /// Of 32 bits.
    UInt32,
    /// Of 64 bits.
    UInt64,
    /// IEEE 754 half precision, which no column is stored as.
    Float16,
    /// Single precision.
    Float32,
    /// Double precision.
    Float64,
}

impl Element {
    /// All there are.
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

    /// Of a stored column, if arrays have its type: numbers and truth values do.
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

    /// Bytes of a value.
    pub fn bytes(self) -> usize {
        match self {
            Self::Bool | Self::Int8 | Self::UInt8 => 1,
            Self::Int16 | Self::UInt16 | Self::Float16 => 2,
            Self::Int32 | Self::UInt32 | Self::Float32 => 4,
            Self::Int64 | Self::UInt64 | Self::Float64 => 8,
        }
    }

    /// Whether a value can be NaN.
    pub fn is_float(self) -> bool {
        matches!(self, Self::Float16 | Self::Float32 | Self::Float64)
    }

    /// As NumPy, CuPy and PyTorch call it.
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

    /// Of the name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|element| element.name() == name)
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A handle of the driver's to memory of one process, for all others that have the same device.
pub type Shared = [u8; 64];

/// Memory of a device that somebody holds.
pub trait DeviceMemory: Debug + Send + Sync {
    /// The device's number in this process.
    fn ordinal(&self) -> i32;

    /// Where it is, on the device.
    fn address(&self) -> u64;

    /// How many bytes can be read there.
    fn bytes(&self) -> u64;

    /// A handle to it, good as long as this is held.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device): a driver that shares no memory.
    fn share(&self) -> Result<Shared>;
}

/// A device's arrays. All methods may be called from many threads, and block until the memory is what it is said to be.
pub trait Arrays: Debug + Send + Sync {
    /// What tells the device from all others, in every process.
    fn uuid(&self) -> [u8; 16];

    /// The rows of all columns of a source as one array, as `element`s: decoded there, if it is not there from before. NULL is NaN,
    /// if that is an element.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported) for a column that cannot be on the device as it is stored,
    /// [`Error::Memory`](crate::Error::Memory), [`Error::Device`](crate::Error::Device), those of the storage;
    /// [`Error::OutOfRange`](crate::Error::OutOfRange) for a value that no element is equal to.
    fn decode(
        &self,
        source: &Arc<dyn Source>,
        stored: &Stored,
        element: Element,
        limit: MemoryLimit,
        control: &Control<'_>,
    ) -> Result<Arc<dyn DeviceMemory>>;

    /// These bytes, one behind the other, copied to memory of their own.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory) and [`Error::Device`](crate::Error::Device).
    fn upload(&self, parts: &[&[u8]], limit: MemoryLimit, control: &Control<'_>) -> Result<Arc<dyn DeviceMemory>>;

    /// Memory of another process, of which at least so many bytes are wanted.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) for a handle that is none any more, or to less than that.
    fn open(&self, shared: &Shared, bytes: u64) -> Result<Arc<dyn DeviceMemory>>;
}
