//! A pipeline over columns that are not on the device: batches of morsels are brought there and read by the kernel while the
//! next are on their way.
//!
//! ```text
//! morsels that are wanted    ... m m m │ m m m m │ m m ...          batches: what fits a buffer
//! threads                    load a block, copy its planes          an item is a column of a morsel
//! copy stream                [copy 0][copy 1]   [copy 2] ...        behind the kernel that read the slot before
//! the run's stream                   [kernel 0][kernel 1] ...       behind the copy
//! ```
//! A batch's buffer has what its planes are, and behind them what the kernel finds them by: morsels, numbered from 0, and
//! their parts, of columns that are on the device as a whole as well. So one copy brings all, and one kernel reads columns of
//! both kinds.
//!
//! Invariants:
//! - Device memory is that of the slots, whatever the columns have; what a batch has beyond its buffer is copied by itself,
//!   and freed when its kernel is through.
//! - Forms are known beforehand, or foreseen. A batch with a form that its kernel was not made for gets another kernel,
//!   made for all that are known by then, before it is launched.
//! - A slot is written to only behind the event of the kernel that reads it, and freed only when both streams are through.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{ControlFlow, Range};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use onehop_pipeline::{Domain, Source};
use onehop_segment::BlockScan;

use super::image::{ColumnImage, Outlook};
use super::launch::{Code, ColumnReads, Maker, PipelineColumns, Reads, Sinks, morsel_bytes, vectors_of};
use super::part::{CodeTable, Memory, Part, bytes_of, code_words, part_of};
use super::run::{PipelineFacts, Run, STATUS_WORDS};
use super::codegen::SinkShape;
use super::result::words_of;
use super::{Error, Result};
use crate::queue::lose;
use crate::staging::{ALIGNMENT, Cargo, Failed, Room, Sent, Shape, Stager};
use crate::{Context, DeviceBuf, Event, Stream};

/// Bytes that storage reads ahead of the batch that is filled, where there is memory for it.
const HORIZON_BYTES: usize = 256 << 20;
/// Where there is no device memory for batches of this size, there is none.
const LEAST_BATCH_BYTES: usize = 256 << 10;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: i32 = 2;

/// What was brought for a pipeline batch by batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamFacts {
    /// Batches.
    pub batches: usize,
    /// Bytes that were copied to the device.
    pub bytes: u64,
    /// How long the device waited for them, by its own clock: from the beginning to the last kernel's end, less the kernels.
    pub waited: Duration,
}

/// A place on the device for a batch.
struct Slot {
    buffer: DeviceBuf,
    before: Event,
    after: Event,
    draft: Mutex<Draft>,
}

/// A batch while it is filled.
#[derive(Default)]
struct Draft {
    batch: Option<usize>,
    /// By column, then morsel.
    parts: Vec<Part>,
    beyond: Vec<DeviceBuf>,
}

/// A batch that is on its way.
struct Arrived {
    slot: usize,
    reads: Reads,
    /// Forms of each streamed column.
    forms: BTreeMap<usize, BTreeSet<u32>>,
    bytes: u64,
    /// What did not fit its buffer, held until its kernel is through.
    _beyond: Vec<DeviceBuf>,
}

/// A table of codes on the device. The one on the host is held: another would not be told from it.
struct KnownTable {
    on_device: Option<DeviceBuf>,
    _on_host: Box<dyn Any + Send + Sync>,
}

/// Columns of a source on their way.
struct Streams<'a> {
    context: &'a Arc<Context>,
    source: &'a Arc<dyn Source>,
    scan: Option<BlockScan>,
    streamed: Vec<usize>,
    images: &'a BTreeMap<usize, Arc<ColumnImage>>,
    /// Those that are wanted, with their rows.
    morsels: &'a [(u32, u32)],
    batches: Vec<Range<usize>>,
    bytes: u64,
    slots: Vec<Slot>,
    tables: Mutex<BTreeMap<usize, KnownTable>>,
    arrived: Mutex<BTreeMap<usize, Arrived>>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Morsels by batches of at most so many bytes, or one morsel; and the bytes of the largest, about.
fn batches_of(bytes: &[usize], most: usize, before: usize) -> (Vec<Range<usize>>, usize) {
    let (mut batches, mut largest): (Vec<Range<usize>>, usize) = (Vec::new(), 0);
    let mut filled = 0;
    for (morsel, bytes) in bytes.iter().enumerate() {
        match batches.last_mut() {
            Some(last) if filled + bytes <= most => last.end = morsel + 1,
            _ => {
                batches.push(morsel..morsel + 1);
                filled = before;
            }
        }
        filled += bytes;
        largest = largest.max(filled);
    }
    (batches, largest)
}

impl<'a> Streams<'a> {
    /// The streamed columns of morsels, in batches for which there is memory on the device; and the shape of them.
    fn new(
        stager: &'a Stager,
        source: &'a Arc<dyn Source>,
        columns: &'a PipelineColumns,
        morsels: &'a [(u32, u32)],
        shape: Shape,
    ) -> Result<(Self, Shape)> {
        let outlooks: Vec<&Outlook> = columns.streamed.values().collect();
        let all = columns.streamed.len() + columns.images.len();
        let of_part = size_of::<Part>() + size_of::<u32>();
        let of_morsel = |morsel: usize| {
            let planes: usize = outlooks.iter().filter_map(|outlook| outlook.bytes.get(morsel)).sum();
            planes + all * of_part + 8
        };
        let bytes: Vec<usize> = (0..morsels.len()).map(of_morsel).collect();
        let total: usize = bytes.iter().sum();
        // Parts and first words of each column, and morsels, begin on a boundary.
        let before = (2 * all + 1) * ALIGNMENT;
        let mut batch_bytes = shape.batch_for(total);
        let (batches, shape, buffers) = loop {
            let (batches, largest) = batches_of(&bytes, batch_bytes, before);
            let shape = Shape { batch_bytes: largest, slots: shape.slots.min(batches.len()), ..shape };
            match buffers(stager, shape) {
                Ok(buffers) => break (batches, Shape { slots: buffers.len(), ..shape }, buffers),
                Err(e) if is_full(&e) && batch_bytes > LEAST_BATCH_BYTES => batch_bytes /= 2,
                Err(e) => return Err(e),
            }
        };
        let context = stager.context();
        let slot = |buffer| -> Result<Slot> {
            let (before, after) = (Event::timed(context)?, Event::timed(context)?);
            Ok(Slot { buffer, before, after, draft: Mutex::default() })
        };
        let slots = buffers.into_iter().map(slot).collect::<Result<Vec<Slot>>>()?;
        let streamed: Vec<usize> = columns.streamed.keys().copied().collect();
        let order: Vec<usize> = morsels.iter().map(|(morsel, _)| *morsel as usize).collect();
        let streams = Self {
            context,
            source,
            scan: source.scan(&order, &streamed, HORIZON_BYTES),
            streamed,
            images: &columns.images,
            morsels,
            batches,
            bytes: total as u64,
            slots,
            tables: Mutex::default(),
            arrived: Mutex::default(),
        };
        Ok((streams, shape))
    }

    /// What is made of all blocks of a batch, put behind them.
    fn seal(&self, batch: usize, room: &Room) -> Result<Arrived> {
        let slot = &self.slots[room.slot()];
        let mut draft = std::mem::take(&mut *lock(&slot.draft));
        let range = self.batches[batch].clone();
        let count = range.len();
        let morsels = &self.morsels[range];
        let mut to = Batch { streams: self, room, beyond: Vec::new() };
        let numbered: Vec<(u32, u32)> = (0..).zip(morsels).map(|(number, (_, rows))| (number, *rows)).collect();
        let mut reads = Reads {
            columns: BTreeMap::new(),
            morsels_at: Some(to.put(&morsel_bytes(&numbered))?),
            morsels: count as u64,
            vectors: vectors_of(morsels),
        };
        let mut forms = BTreeMap::new();
        for (place, column) in self.streamed.iter().enumerate() {
            let parts = &draft.parts[place * count..][..count];
            forms.insert(*column, parts.iter().map(|part| part.form).collect());
            let mut found = ColumnReads { parts: to.put(bytes_of(parts))?, ..ColumnReads::default() };
            if let Some((words, first)) = code_words(parts)? {
                found.code_words = to.put(bytes_of(&words))?;
                found.code_first = to.put(bytes_of(&first))?;
                found.code_count = words.len() as u64;
            }
            reads.columns.insert(*column, found);
        }
        for (column, image) in self.images {
            let numbers = || morsels.iter().map(|(morsel, _)| *morsel as usize);
            let parts: Vec<Part> = numbers().map(|morsel| image.part(morsel)).collect();
            let mut found = ColumnReads { parts: to.put(bytes_of(&parts))?, ..ColumnReads::default() };
            if let Some(codes) = image.codes() {
                let first: Vec<u32> = numbers().map(|morsel| codes.first_of[morsel]).collect();
                found.code_words = codes.words.address();
                found.code_first = to.put(bytes_of(&first))?;
                found.code_count = codes.count as u64;
            }
            reads.columns.insert(*column, found);
        }
        draft.beyond.append(&mut to.beyond);
        let beyond = draft.beyond;
        let bytes = beyond.iter().map(|buffer| buffer.len() as u64).sum();
        Ok(Arrived { slot: room.slot(), reads, forms, bytes, _beyond: beyond })
    }
}

/// Slots' buffers, as many as there is memory for.
fn buffers(stager: &Stager, shape: Shape) -> Result<Vec<DeviceBuf>> {
    let mut buffers = Vec::with_capacity(shape.slots);
    for _ in 0..shape.slots.max(1) {
        match stager.device_buffer(shape.buffer_bytes()) {
            Ok(buffer) => buffers.push(buffer),
            // With fewer, kernels and copies take turns.
            Err(_) if !buffers.is_empty() => break,
            Err(e) => return Err(e),
        }
    }
    Ok(buffers)
}

fn is_full(error: &Error) -> bool {
    matches!(error, Error::Device { source: crate::Error::Cuda { code: OUT_OF_MEMORY, .. }, .. })
}

impl Cargo for Streams<'_> {
    fn batches(&self) -> usize {
        self.batches.len()
    }

    fn items(&self, batch: usize) -> usize {
        self.batches[batch].len() * self.streamed.len()
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn fill(&self, batch: usize, item: usize, room: &Room) -> Result<()> {
        let range = &self.batches[batch];
        let (morsel, place) = (item / self.streamed.len(), item % self.streamed.len());
        let (at, column) = (range.start + morsel, self.streamed[place]);
        let (number, rows) = self.morsels[at];
        let block = match &self.scan {
            Some(scan) => {
                if place == 0 {
                    scan.begin(at);
                }
                self.source.load_of(scan, at, number as usize, column)?
            }
            None => self.source.load(number as usize, column)?,
        };
        let domain: &Domain = &self.source.columns()[column];
        let mut to = Batch { streams: self, room, beyond: Vec::new() };
        let part = part_of(&block, rows as usize, domain, &mut to)?;
        let mut draft = lock(&self.slots[room.slot()].draft);
        if draft.batch != Some(batch) {
            let parts = vec![Part::default(); self.items(batch)];
            *draft = Draft { batch: Some(batch), parts, beyond: Vec::new() };
        }
        draft.parts[place * range.len() + morsel] = part;
        draft.beyond.append(&mut to.beyond);
        Ok(())
    }

    fn send(&self, batch: usize, filled: Sent<'_>, stream: &Stream) -> Result<()> {
        if let Some(scan) = &self.scan {
            self.batches[batch].clone().for_each(|at| scan.end(at));
        }
        let mut arrived = self.seal(batch, filled.room)?;
        let slot = &self.slots[arrived.slot];
        arrived.bytes += filled.bytes() as u64;
        stream.wait_for(&slot.after)?;
        // SAFETY: what was put into the room fits the slot's buffer, which is at least as long, is read by nobody before
        // the kernel that waits for this copy, and is freed when the stream is through, or leaked.
        unsafe { filled.copy(slot.buffer.address(), 0, filled.bytes(), stream)? };
        lock(&self.arrived).insert(batch, arrived);
        Ok(())
    }
}

/// Where the bytes of a batch go: to its buffer, or beyond it.
struct Batch<'a> {
    streams: &'a Streams<'a>,
    room: &'a Room,
    beyond: Vec<DeviceBuf>,
}

impl Memory for Batch<'_> {
    fn put(&mut self, bytes: &[u8]) -> Result<u64> {
        if let Some(at) = self.room.put(bytes) {
            return Ok(self.streams.slots[self.room.slot()].buffer.address() + at as u64);
        }
        let mut buffer = DeviceBuf::new(self.streams.context, bytes.len())?;
        buffer.copy_from(0, bytes)?;
        let address = buffer.address();
        self.beyond.push(buffer);
        Ok(address)
    }

    fn table(&mut self, table: CodeTable<'_>) -> Result<Option<u64>> {
        let mut tables = lock(&self.streams.tables);
        let key = table.bytes().as_ptr().addr();
        if let Some(known) = tables.get(&key) {
            return Ok(known.on_device.as_ref().map(DeviceBuf::address));
        }
        let on_device = match table.ascends() {
            true => {
                let mut buffer = DeviceBuf::new(self.streams.context, table.bytes().len())?;
                buffer.copy_from(0, table.bytes())?;
                Some(buffer)
            }
            false => None,
        };
        let address = on_device.as_ref().map(DeviceBuf::address);
        tables.insert(key, KnownTable { on_device, _on_host: table.held() });
        Ok(address)
    }
}

impl Run<'_> {
    /// Launches the kernel for one batch after the other, and waits for the last.
    #[allow(clippy::too_many_arguments, reason = "what an attempt is made of")]
    pub fn stream(
        &mut self,
        maker: &Maker<'_>,
        source: &Arc<dyn Source>,
        columns: &PipelineColumns,
        morsels: &[(u32, u32)],
        code: &mut Code,
        sinks: &Sinks,
        facts: &mut PipelineFacts,
    ) -> Result<()> {
        let executor = self.executor;
        if morsels.is_empty() {
            // What it ends in is still to be filled.
            return Ok(self.lane.stream.synchronize()?);
        }
        let (streams, shape) = Streams::new(&executor.stager, source, columns, morsels, executor.options.staging)?;
        let mut known = columns.forms();
        let mut running: Vec<Option<Arrived>> = streams.slots.iter().map(|_| None).collect();
        let mut told = StreamFacts::default();
        let mut kernels = Duration::ZERO;
        self.lane.events[0].record(&self.lane.stream)?;
        let cancelled = self.cancelled;
        let carried = executor.stager.run(&streams, shape, cancelled, |number, copied| {
            let Some(arrived) = lock(&streams.arrived).remove(&number) else { return Ok(ControlFlow::Break(())) };
            let slot = &streams.slots[arrived.slot];
            // The kernel that read the slot before: what it had beyond the slot is freed, and it may have come to an end
            // that makes all further ones useless.
            if running[arrived.slot].take().is_some() {
                slot.after.wait()?;
                kernels += slot.after.since(&slot.before)?;
                if self.is_in_vain(code, sinks)? {
                    return Ok(ControlFlow::Break(()));
                }
            }
            let is_new = |column: &usize, form: &u32| !known.get(column).is_some_and(|known| known.contains(form));
            let new = arrived.forms.iter().flat_map(|(column, forms)| forms.iter().map(|form| (*column, *form)));
            let new: Vec<(usize, u32)> = new.filter(|(column, form)| is_new(column, form)).collect();
            if !new.is_empty() {
                new.into_iter().for_each(|(column, form)| known.entry(column).or_default().push(form));
                *code = self.code(maker, &known, &[], facts)?;
            }
            self.make_room_for_codes(code, &arrived.reads)?;
            self.lane.stream.wait_for(copied)?;
            self.launch(code, sinks, &arrived.reads, [&slot.before, &slot.after])?;
            facts.launches += 1;
            told.batches += 1;
            told.bytes += arrived.bytes;
            let slot = arrived.slot;
            running[slot] = Some(arrived);
            Ok(ControlFlow::Continue(()))
        });
        let ended = self.lane.events[1].record(&self.lane.stream);
        let settled = ended.and_then(|()| self.lane.stream.synchronize());
        let carried = match (carried, settled) {
            (Ok(()), Ok(())) => Ok(()),
            (Err(Failed { error, in_flight: false }), Ok(())) => Err(error),
            // Nobody knows what still touches its memory.
            (carried, settled) => {
                lose((streams.slots, streams.tables, streams.arrived, running));
                let lost = settled.err().map(|source| Error::Device { attempt: "a pipeline on the GPU".into(), source });
                return carried.map_err(|failed| failed.error).and(lost.map_or(Ok(()), Err));
            }
        };
        streams.slots.iter().zip(&running).filter(|(_, running)| running.is_some()).try_for_each(|(slot, _)| {
            kernels += slot.after.since(&slot.before)?;
            Ok::<(), Error>(())
        })?;
        let [begun, ended] = &self.lane.events;
        told.waited = ended.since(begun)?.saturating_sub(kernels);
        streams.slots.into_iter().for_each(|slot| executor.stager.keep_device_buffer(slot.buffer));
        self.held.clear();
        self.images.streamed(source, told.bytes);
        facts.kernel += kernels;
        facts.add_streamed(&told);
        carried
    }

    /// Whether the pipeline will be started again, whatever comes: there was no room for groups, or the first rows of some
    /// are there, and say what all others have to beat.
    fn is_in_vain(&self, code: &Code, sinks: &Sinks) -> Result<bool> {
        let has_threshold = match &code.generated.sink {
            SinkShape::Groups(groups) if groups.is_hashed() => false,
            SinkShape::Rows { has_threshold: true, .. } if sinks.threshold.is_none() => true,
            _ => return Ok(false),
        };
        let status = words_of(&self.lane.arena.read(sinks.status, STATUS_WORDS * 8)?);
        Ok(if has_threshold { status[1] > sinks.targets.capacity } else { status[4] != 0 })
    }
}

impl PipelineFacts {
    /// Adds what an attempt has brought.
    fn add_streamed(&mut self, told: &StreamFacts) {
        let all = self.streamed.get_or_insert_default();
        all.batches += told.batches;
        all.bytes += told.bytes;
        all.waited += told.waited;
    }
}
