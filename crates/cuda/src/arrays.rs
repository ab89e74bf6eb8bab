//! Columns as arrays on a GPU: decoded once from resident columns and kept beside them, or copied
//! from host memory.
//!
//! ```text
//! encoded columns of segments ─ ResidentImages ─► image ─ decode_column ─► array
//!                                                 array: kept by (segments, columns, type)
//! ```
//! - An array is kept while there is room. An array without a holder is evicted if queries need its
//!   memory, one of its columns is evicted, or one of its segments is gone. A holder keeps the
//!   memory, and it is counted, until the last holder releases it.
//! - There is one array for each list of columns and type. An array of the current rows of a table
//!   replaces the array of its earlier rows.
//! - Each allocation consists of whole device pages, so that it can be shared with other processes
//!   ([`crate::driver`]).

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use onehop_io::Hop;
use onehop_pipeline::arrays::{Arrays, DeviceMemory, Element, Shared};
use onehop_pipeline::backend::{Control, MemoryLimit, Residence, SegmentKey, Stored};
use onehop_pipeline::{Error as PipelineError, Result as PipelineResult, Source};
use onehop_segment::ColumnType;

use crate::backend::Gpu;
use crate::driver::PAGE_BYTES;
use crate::fused::{Error as FusedError, Images, Result as FusedResult};
use crate::kernels::decode::{Decoder, Rows, Sign};
use crate::resident::{Claim, ResidentImages, Store};
use crate::{Context, DeviceBuf, SharedMemory};

/// Identity of an array: its segments in order, its columns by their numbers in the segments, and
/// its element type.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    segments: Vec<SegmentKey>,
    columns: Vec<usize>,
    element: Element,
}

impl Key {
    /// Returns true if the array includes this column of this segment.
    pub fn has(&self, (segment, column): &(SegmentKey, usize)) -> bool {
        self.columns.contains(column) && self.segments.contains(segment)
    }

    /// Returns true if one of its segments is gone.
    pub fn is_gone(&self) -> bool {
        self.segments.iter().any(SegmentKey::is_gone)
    }

    /// Returns true if the array has the same columns for other rows of the same table.
    fn is_earlier_than(&self, other: &Self) -> bool {
        let is_same = (&self.columns, self.element) == (&other.columns, other.element);
        is_same && self.segments != other.segments && self.segments.iter().any(|key| other.segments.contains(key))
    }
}

/// Store of the arrays that are kept.
pub type Kept = Store<Key, Dense>;

/// An array in device memory.
#[derive(Debug)]
pub struct Dense {
    name: String,
    data: DeviceBuf,
}

impl DeviceMemory for Dense {
    fn ordinal(&self) -> i32 {
        self.data.context().device().ordinal
    }

    fn address(&self) -> u64 {
        self.data.address()
    }

    fn bytes(&self) -> u64 {
        self.data.len() as u64
    }

    fn share(&self) -> PipelineResult<Shared> {
        self.data.share().map_err(|e| PipelineError::device(&self.name, format!("sharing an array: {e}")))
    }
}

/// An array of another process.
#[derive(Debug)]
struct Foreign {
    name: String,
    data: SharedMemory,
}

impl DeviceMemory for Foreign {
    fn ordinal(&self) -> i32 {
        self.data.context().device().ordinal
    }

    fn address(&self) -> u64 {
        self.data.address()
    }

    fn bytes(&self) -> u64 {
        self.data.len() as u64
    }

    fn share(&self) -> PipelineResult<Shared> {
        Err(PipelineError::device(&self.name, "memory of another process is shared by that process alone"))
    }
}

/// Returns the allocation size for `bytes` bytes.
fn allocated(bytes: usize) -> usize {
    bytes.max(1).next_multiple_of(PAGE_BYTES)
}

impl Gpu {
    /// Returns the bytes that arrays may use beside columns.
    fn limit_of_arrays(&self, memory: MemoryLimit) -> u64 {
        self.limit_of_all(memory).saturating_sub(self.columns.bytes())
    }

    /// Evicts columns that are not in use and were not loaded to stay, if `bytes` bytes are not
    /// available.
    fn make_room(&self, bytes: u64, memory: MemoryLimit) {
        if self.arrays.available(self.limit_of_arrays(memory), false) < bytes {
            let listed = self.columns.list().into_iter();
            let may_go = listed.filter(|listed| !listed.is_kept && listed.pins == 0).map(|listed| listed.key);
            self.columns.evict(&may_go.collect::<Vec<_>>());
            self.assembled.sweep();
        }
    }

    fn decoder(&self) -> FusedResult<Arc<Decoder>> {
        let mut decoder = self.decoder.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(decoder) = &*decoder {
            return Ok(Arc::clone(decoder));
        }
        let loaded = Arc::new(Decoder::load(self.context(), &self.nvrtc)?);
        Ok(Arc::clone(decoder.insert(loaded)))
    }

    fn context(&self) -> &Arc<Context> {
        self.executor.context()
    }

    fn no_room(&self, full: crate::resident::Full) -> PipelineError {
        let (needed, available) = (full.needed as usize, full.available as usize);
        PipelineError::Memory { what: format!("an array on {}", self.name), needed, available }
    }

    /// Decodes columns, one after the other, into one allocation.
    fn decoded(
        &self,
        source: &Arc<dyn Source>,
        stored: &Stored,
        element: Element,
        limit: MemoryLimit,
        control: &Control<'_>,
    ) -> FusedResult<DeviceBuf> {
        let ledger = control.ledgers.first().cloned().unwrap_or_default();
        let sources = vec![(Arc::clone(source), Some(stored), ledger)];
        let limit = (self.limit(limit), Residence::Auto);
        let images = ResidentImages::new(&self.executor, &self.columns, &self.assembled, limit, sources);
        let rows = Rows::new(self.context(), (0..source.morsels()).map(|morsel| source.rows(morsel)))?;
        let bytes = rows.rows as usize * element.bytes();
        let mut data = DeviceBuf::new(self.context(), allocated(bytes * stored.columns.len()))?;
        let decoder = self.decoder()?;
        for (number, place) in stored.columns.iter().enumerate() {
            let column = stored.blocks.segments().first().map(|segment| segment.column(*place));
            let Some(column) = column else { continue };
            let image = images.columns(source, &[number], control.cancelled)?.pop().flatten();
            let cannot = |why: &str| FusedError::Refused(format!("column \"{}\" as an array: {why}", column.name));
            let Some(image) = image else {
                return Err(cannot("it does not fit beside what is there, or is not stored as numbers"));
            };
            let sign = if column.column_type == ColumnType::UInt64 { Sign::Unsigned } else { Sign::Signed };
            let done = decoder.run(&image, &rows, (element, sign), &mut data, number * bytes)?;
            if done.unknown > 0 {
                return Err(cannot("it is stored in a way that is not decoded there"));
            }
            if done.inexact > 0 {
                let (type_name, hint) = (element.name().into(), None);
                let expression =
                    format!("{} values of \"{}\", which no {element} is equal to", done.inexact, column.name);
                return Err(FusedError::Pipeline(PipelineError::OutOfRange { type_name, expression, hint }));
            }
            if control.cancelled.load(Relaxed) {
                return Err(FusedError::Pipeline(PipelineError::Cancelled));
            }
        }
        Ok(data)
    }
}

impl Arrays for Gpu {
    fn uuid(&self) -> [u8; 16] {
        self.context().device().uuid
    }

    fn decode(
        &self,
        source: &Arc<dyn Source>,
        stored: &Stored,
        element: Element,
        limit: MemoryLimit,
        control: &Control<'_>,
    ) -> PipelineResult<Arc<dyn DeviceMemory>> {
        let segments = stored.runs().iter().map(|run| SegmentKey::of(&run.segment)).collect();
        let key = Key { segments, columns: stored.columns.clone(), element };
        let bytes = allocated(source.all_rows() as usize * element.bytes() * stored.columns.len()) as u64;
        self.arrays.evict_if(|kept| kept.is_earlier_than(&key));
        // An array that is already there needs no room.
        if self.arrays.sum_of(std::iter::once((key.clone(), 1))) == 0 {
            self.make_room(bytes, limit);
        }
        let claim = self.arrays.claim(&key, bytes, self.limit_of_arrays(limit), false);
        match claim.map_err(|full| self.no_room(full))? {
            Claim::There(array) => Ok(array),
            Claim::Mine(claim) => {
                let data = self.decoded(source, stored, element, limit, control).map_err(|e| self.error(e))?;
                Ok(claim.done(Dense { name: self.name.clone(), data }))
            }
        }
    }

    fn upload(
        &self,
        parts: &[&[u8]],
        limit: MemoryLimit,
        control: &Control<'_>,
    ) -> PipelineResult<Arc<dyn DeviceMemory>> {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        let needed = allocated(bytes) as u64;
        // The array counts like all others, but no lookup finds it: its key is evicted once it is
        // there.
        let number = self.uploads.fetch_add(1, Relaxed);
        let key = Key { segments: Vec::new(), columns: vec![number], element: Element::UInt8 };
        self.make_room(needed, limit);
        let claim = match self.arrays.claim(&key, needed, self.limit_of_arrays(limit), false) {
            Ok(Claim::Mine(claim)) => claim,
            Ok(Claim::There(array)) => return Ok(array),
            Err(full) => return Err(self.no_room(full)),
        };
        let uploaded = || -> crate::Result<DeviceBuf> {
            let mut data = DeviceBuf::new(self.context(), allocated(bytes))?;
            let mut at = 0;
            for part in parts {
                data.copy_from(at, part)?;
                at += part.len();
            }
            Ok(data)
        };
        let data = uploaded().map_err(|e| self.device_error("copying an array to it", &e))?;
        if let Some(ledger) = control.ledgers.first() {
            ledger.moved(Hop::HostToDevice, bytes);
        }
        let array = claim.done(Dense { name: self.name.clone(), data });
        self.arrays.evict([&key]);
        Ok(array)
    }

    fn open(&self, shared: &Shared, bytes: u64) -> PipelineResult<Arc<dyn DeviceMemory>> {
        let opened = SharedMemory::open(self.context(), *shared, usize::try_from(bytes).unwrap_or(usize::MAX));
        let data = opened.map_err(|e| self.device_error("opening another process's array", &e))?;
        Ok(Arc::new(Foreign { name: self.name.clone(), data }))
    }
}
