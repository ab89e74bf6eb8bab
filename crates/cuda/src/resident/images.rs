//! What kernels read of the sources of one run: planes from the store where segments are there whole, or can be loaded whole,
//! and a copy for this run alone where that is not so.
//!
//! Putting an image together takes a record for every block, and a table of codes for every segment with a dictionary. Queries
//! over the same blocks need the same: the last of them are remembered, without holding what they are made of.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use onehop_io::{Hop, Ledger};
use onehop_pipeline::backend::{SegmentKey, Stored};
use onehop_pipeline::{Error as PipelineError, Source, Type, ViewValues};
use onehop_segment::EncodingCode;

use super::column::{Column, Meaning, SegmentRun, bytes_of, bytes_of_segment, can_be_kept, runs};
use super::store::{Full, Store};
use crate::fused::{ColumnImage, Error, Images, Part, Result, form};
use crate::{Context, DeviceBuf};

/// Images that are remembered.
const ASSEMBLED: usize = 64;

/// Columns of segments by segment and place.
pub type Columns = Store<(SegmentKey, usize), Column>;

/// Why columns are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// A query needs them, and they may stay.
    WhileThereIsRoom,
    /// They are to stay.
    ToStay,
}

/// Images that were put together, the last ones first.
#[derive(Debug, Default)]
pub struct Assembled(Mutex<VecDeque<Remembered>>);

/// An image, and what it is made of.
#[derive(Debug)]
struct Remembered {
    of: Identity,
    image: Arc<ColumnImage>,
    columns: Vec<Weak<Column>>,
}

/// What makes an image what it is: segments in their order, each whole or with its blocks, the column's place in them, and
/// what it is to its reader.
#[derive(Clone, Debug, PartialEq)]
struct Identity {
    segments: Vec<(SegmentKey, Option<Vec<usize>>)>,
    column: usize,
    ty: Type,
}

impl Assembled {
    /// An image with all that it is made of, if that is still there.
    fn find(&self, of: &Identity) -> Option<(Arc<ColumnImage>, Vec<Arc<Column>>)> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = all.iter().position(|known| known.of == *of)?;
        let known = all.remove(at)?;
        let columns = known.columns.iter().map(Weak::upgrade).collect::<Option<Vec<_>>>()?;
        let image = Arc::clone(&known.image);
        all.push_front(known);
        Some((image, columns))
    }

    fn remember(&self, of: Identity, image: &Arc<ColumnImage>, columns: &[Arc<Column>]) {
        let columns = columns.iter().map(Arc::downgrade).collect();
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // What nobody holds any more is never found again.
        all.retain(|known| known.of != of && known.columns.iter().all(|column| column.strong_count() > 0));
        all.push_front(Remembered { of, image: Arc::clone(image), columns });
        all.truncate(ASSEMBLED);
    }

    /// Forgets what is made of things that are gone.
    pub fn sweep(&self) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|known| known.columns.iter().all(|column| column.strong_count() > 0));
    }
}

/// The images of one run. What they are made of stays while this lives.
#[derive(Debug)]
pub struct ResidentImages<'a> {
    context: &'a Arc<Context>,
    columns: &'a Columns,
    assembled: &'a Assembled,
    /// Bytes that the store may take.
    limit: u64,
    sources: Vec<Kept<'a>>,
    counted: Mutex<BTreeMap<usize, Bytes>>,
    held: Mutex<Vec<Arc<Column>>>,
}

/// A source, where it is stored, and where its bytes are counted.
pub type SourceOfRun<'a> = (Arc<dyn Source>, Option<&'a Stored>, Arc<Ledger>);

/// A source of a run.
#[derive(Debug)]
struct Kept<'a> {
    source: Arc<dyn Source>,
    /// Where it is stored, by blocks and by segments.
    stored: Option<(&'a Stored, Vec<SegmentRun>)>,
    /// Where its bytes are counted.
    ledger: Arc<Ledger>,
}

/// Where the bytes of a source were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bytes {
    /// On the device.
    pub resident: u64,
    /// Elsewhere, and were copied there.
    pub moved: u64,
}

impl<'a> ResidentImages<'a> {
    /// Of sources, each with where it is stored and its ledger.
    pub fn new(
        context: &'a Arc<Context>,
        columns: &'a Columns,
        assembled: &'a Assembled,
        limit: u64,
        sources: Vec<SourceOfRun<'a>>,
    ) -> Self {
        let (counted, held) = (Mutex::default(), Mutex::default());
        let kept = |(source, stored, ledger): SourceOfRun<'a>| {
            let stored = stored.map(|stored| (stored, runs(stored)));
            Kept { source, stored, ledger }
        };
        let sources = sources.into_iter().map(kept).collect();
        Self { context, columns, assembled, limit, sources, counted, held }
    }

    /// What was counted of a source.
    pub fn bytes(&self, source: usize) -> Bytes {
        let counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        counted.get(&source).copied().unwrap_or_default()
    }

    /// Loads a column of a source to stay; how much of it is there now.
    ///
    /// # Errors
    /// As [`Images::column`]; [`PipelineError::Unsupported`] for a column that cannot stay.
    pub fn load(&self, number: usize, column: usize) -> Result<u64> {
        let kept = &self.sources[number];
        let columns = match kept.stays(column) {
            Some((stored, runs)) => self.pieces(number, stored, runs, column, Keep::ToStay)?,
            None => None,
        };
        match columns {
            Some(columns) => Ok(columns.iter().map(|column| column.bytes() as u64).sum()),
            None => {
                let column = kept.stored.as_ref().map(|(stored, runs)| {
                    let place = stored.columns[column];
                    runs.first().map_or(String::new(), |(segment, ..)| segment.column(place).name.clone())
                });
                let what = format!("column {} of {} on a device", column.unwrap_or_default(), kept.source.name());
                Err(Error::Pipeline(PipelineError::Unsupported(what)))
            }
        }
    }

    fn count(&self, number: usize, resident: u64, moved: u64) {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = counted.entry(number).or_default();
        bytes.resident += resident;
        bytes.moved += moved;
        self.sources[number].ledger.moved(Hop::HostToDevice, moved as usize);
    }

    /// The columns of all segments of a source, loaded if need be; `None` if one of them cannot be there.
    fn pieces(
        &self,
        number: usize,
        stored: &Stored,
        runs: &[SegmentRun],
        column: usize,
        keep: Keep,
    ) -> Result<Option<Vec<Arc<Column>>>> {
        let Kept { source, ledger, .. } = &self.sources[number];
        let place = stored.columns[column];
        let mut columns = Vec::new();
        for (segment, morsels, is_whole) in runs {
            let key = (SegmentKey::of(segment), place);
            let bytes: u64 = match is_whole {
                true => segment.column(place).stored_bytes,
                false => {
                    let blocks = stored.blocks[morsels.clone()].iter();
                    blocks.map(|(segment, block)| segment.stored_bytes(place, *block)).sum()
                }
            };
            let found = match keep {
                Keep::WhileThereIsRoom => self.columns.get(&key),
                Keep::ToStay => None,
            };
            if let Some(found) = found {
                self.count(number, bytes, 0);
                ledger.resident(morsels.len() as u64, bytes as usize);
                columns.push(found);
                continue;
            }
            if !*is_whole {
                return Ok(None);
            }
            let is_coded = segment.column(place).encoding == EncodingCode::Dictionary;
            let load = || match Column::load(self.context, &**source, morsels.clone(), column, is_coded) {
                Ok(Some(column)) => Ok(column),
                Ok(None) => Err(Miss::NotItsOwn),
                Err(e) => Err(Miss::Failed(e)),
            };
            let room = bytes_of_segment(segment, place);
            match self.columns.get_or_load(&key, room, self.limit, keep == Keep::ToStay, load) {
                Ok((loaded, was_there)) => {
                    let moved = if was_there { 0 } else { loaded.bytes() as u64 };
                    self.count(number, if was_there { bytes } else { 0 }, moved);
                    columns.push(loaded);
                }
                Err(Miss::NotItsOwn) => return Ok(None),
                Err(Miss::Full(Full { needed, available })) if keep == Keep::ToStay => {
                    let what = format!("{} in device memory", segment.column(place).name);
                    let (needed, available) = (needed as usize, available as usize);
                    return Err(Error::Pipeline(PipelineError::Memory { what, needed, available }));
                }
                // It is copied for this run, and is gone with it.
                Err(Miss::Full(_)) => return Ok(None),
                Err(Miss::Failed(e)) => return Err(e),
            }
        }
        Ok(Some(columns))
    }

    /// An image of columns that are on the device.
    fn assemble(
        &self,
        number: usize,
        (stored, runs): (&Stored, &[SegmentRun]),
        column: usize,
        columns: &[Arc<Column>],
    ) -> Result<Option<ColumnImage>> {
        let source = &*self.sources[number].source;
        let place = stored.columns[column];
        let (mut parts, mut tables) = (Vec::with_capacity(stored.blocks.len()), Tables::default());
        for ((segment, morsels, _), kept) in runs.iter().zip(columns) {
            let mut codes: Option<Codes> = None;
            for morsel in morsels.clone() {
                let Some(block) = kept.block(stored.blocks[morsel].1) else { return Ok(None) };
                let (low, high) = block.widths;
                let mut part = Part { low: block.low, high: block.high, valid: block.valid, ..Part::default() };
                part.width = low + high;
                part.form = match block.meaning {
                    Meaning::Null => form::NULL,
                    Meaning::Doubles => form::F64,
                    Meaning::Packed(base, bias) => {
                        (part.base, part.bias) = (base, bias);
                        packed(low, high)
                    }
                    Meaning::Asked => {
                        let loaded = source.load(morsel, column)?;
                        let ViewValues::Packed { base, bias, .. } = loaded.view().values else { return Ok(None) };
                        (part.base, part.bias) = (base, bias);
                        form::SAME
                    }
                    Meaning::Codes => {
                        let codes = match codes {
                            Some(codes) => codes,
                            None => *codes.insert(tables.of(source, morsel, column)?),
                        };
                        match codes {
                            Codes::Plain => packed(low, high),
                            Codes::Table { at, values, is_wide } => {
                                part.set_codes(at, values, is_wide, low + high);
                                part.form
                            }
                            Codes::Unknown => return Ok(None),
                        }
                    }
                };
                parts.push(part);
            }
            debug_assert!(can_be_kept(segment, place));
        }
        let mut data = DeviceBuf::new(self.context, tables.data.len())?;
        data.copy_from(0, &tables.data)?;
        for part in &mut parts {
            // Offsets begin at 1, so that 0 is none.
            part.table = if part.table == 0 { 0 } else { data.address() + part.table - 1 };
        }
        ColumnImage::of_parts(self.context, data, parts).map(Some)
    }
}

impl Kept<'_> {
    /// Where it is stored, if a column of it can be on a device segment by segment.
    fn stays(&self, column: usize) -> Option<(&Stored, &[SegmentRun])> {
        let (stored, runs) = self.stored.as_ref()?;
        let place = *stored.columns.get(column)?;
        runs.iter().all(|(segment, ..)| can_be_kept(segment, place)).then_some((*stored, runs.as_slice()))
    }
}

/// Why a column of a segment is not there.
enum Miss {
    Full(Full),
    NotItsOwn,
    Failed(Error),
}

impl From<Full> for Miss {
    fn from(full: Full) -> Self {
        Self::Full(full)
    }
}

impl Images for ResidentImages<'_> {
    fn column(&self, source: &Arc<dyn Source>, column: usize) -> Result<Option<Arc<ColumnImage>>> {
        let number = self.sources.iter().position(|known| Arc::ptr_eq(&known.source, source));
        let stored = number.and_then(|number| Some((number, self.sources[number].stays(column)?)));
        if let Some((number, (stored, runs))) = stored {
            let segments = runs.iter().map(|(segment, morsels, is_whole)| {
                let blocks = || stored.blocks[morsels.clone()].iter().map(|(_, block)| *block).collect();
                (SegmentKey::of(segment), (!is_whole).then(blocks))
            });
            let (segments, column_place) = (segments.collect(), stored.columns[column]);
            let identity = Identity { segments, column: column_place, ty: source.columns()[column].ty };
            let pieces = self.pieces(number, stored, runs, column, Keep::WhileThereIsRoom)?;
            if let Some(columns) = pieces {
                if let Some((image, of)) = self.assembled.find(&identity)
                    && of.iter().zip(&columns).all(|(a, b)| Arc::ptr_eq(a, b))
                {
                    self.held.lock().unwrap_or_else(PoisonError::into_inner).extend(columns);
                    return Ok(Some(image));
                }
                if let Some(image) = self.assemble(number, (stored, runs), column, &columns)? {
                    let image = Arc::new(image);
                    self.count(number, 0, image.bytes() as u64);
                    self.assembled.remember(identity, &image, &columns);
                    self.held.lock().unwrap_or_else(PoisonError::into_inner).extend(columns);
                    return Ok(Some(image));
                }
            }
        }
        Ok(None)
    }

    fn streamed(&self, source: &Arc<dyn Source>, bytes: u64) {
        if let Some(number) = self.sources.iter().position(|known| Arc::ptr_eq(&known.source, source)) {
            self.count(number, 0, bytes);
        }
    }
}

/// The form of packed values.
fn packed(low: u32, high: u32) -> u32 {
    match (low, high) {
        (0, _) => form::SAME,
        (low, 0) => form::PACKED + low,
        (low, high) => form::WIDE + low + high,
    }
}

/// What a segment's codes are to the reader of a source.
#[derive(Clone, Copy)]
enum Codes {
    /// Themselves.
    Plain,
    /// Places in a table of so many ascending values of 32 bits, or of 64, at an offset from 1 on.
    Table {
        at: u64,
        values: usize,
        is_wide: bool,
    },
    Unknown,
}

/// Tables of codes, put together on the host.
#[derive(Default)]
struct Tables {
    data: Vec<u8>,
}

impl Tables {
    fn of(&mut self, source: &dyn Source, morsel: usize, column: usize) -> Result<Codes> {
        let block = source.load(morsel, column)?;
        Ok(match block.view().values {
            ViewValues::Packed { base: 0, bias: 0, low: Some(_), high: None } => Codes::Plain,
            ViewValues::Codes32(table, _) if table.is_sorted() => {
                Codes::Table { at: self.put(bytes_of(table)), values: table.len(), is_wide: false }
            }
            ViewValues::Codes64(table, _) if table.is_sorted() => {
                Codes::Table { at: self.put(bytes_of(table)), values: table.len(), is_wide: true }
            }
            _ => Codes::Unknown,
        })
    }

    fn put(&mut self, bytes: &[u8]) -> u64 {
        let at = self.data.len().next_multiple_of(256);
        self.data.resize(at, 0);
        self.data.extend_from_slice(bytes);
        at as u64 + 1
    }
}
