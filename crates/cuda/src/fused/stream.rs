//! A pipeline over columns that are not on the device. Batches of morsels are copied there, and the
//! kernel reads one batch while the next ones are on their way.
//!
//! ```text
//! morsels        ... m m m │ m m m m │ m m ...      batches: what fits a buffer
//! threads        load a block, copy its planes      an item is a column of a morsel, or several
//! copy stream    [copy 0][copy 1]   [copy 2] ...    after the kernel that read the slot before
//! run's stream           [kernel 0][kernel 1] ...   after the copy
//! ```
//! The buffer of a batch has its planes, followed by the data by which the kernel finds them:
//! morsels, numbered from 0, and their parts, also for columns that are on the device as a whole.
//! Thus one copy transfers all, and one kernel reads columns of both kinds.
//!
//! Blocks that are stored as kernels read them may be read from storage without processing by the
//! host ([`crate::direct`]). Their reads are items like any others, and their target is memory
//! beside the slot's buffer. They are verified after the copy. The kernel of a batch with such
//! blocks is launched once the host has seen the result of the verification.
//!
//! Invariants:
//! - Device memory is limited to that of the slots, whatever the size of the columns, and that of
//!   the code tables of segments. If a batch is larger than foreseen, the excess is copied by
//!   itself, and freed when the batch's kernel has finished.
//! - Forms are known beforehand, or foreseen. If a batch has a form that its kernel was not
//!   generated for, another kernel is generated for all forms known by then, before the batch is
//!   launched.
//! - A slot is written only after the event of the kernel that reads it, and freed only when both
//!   streams have finished.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{ControlFlow, Range};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use onehop_io::PAGE_BYTES;
use onehop_pipeline::{Block, Domain, Source, StoredMeaning, StoredPlace};
use onehop_segment::{BlockScan, CodeTable};

use super::codegen::SinkShape;
use super::image::{Carried, ColumnImage, Outlook};
use super::launch::{Code, ColumnReads, PipelineColumns, Reading, Reads, Sinks, morsel_bytes, vectors_of};
use super::part::{
    CodeMeaning, CodeWord, Memory, Part, bytes_of, bytes_of_table, code_words, is_read_as_stored, part_of,
    part_of_place,
};
use super::result::words_of;
use super::run::{PipelineFacts, Run, STATUS_WORDS};
use super::{Error, Result};
use crate::direct::{Landing, Passage, Plan, Read, Wanted, doubtful};
use crate::queue::lose;
use crate::staging::{ALIGNMENT, Cargo, Put, Room, Sent, Shape, Stager};
use crate::{Context, DeviceBuf, Event, Stream};

/// Bytes that storage reads ahead of the batch that is filled, if there is memory for it.
const HORIZON_BYTES: usize = 256 << 20;
/// Approximate bytes of an item, which one thread brings at a time: one column of a morsel, or
/// several narrow ones.
const ITEM_BYTES: usize = 128 << 10;
/// Minimum number of items of a batch, if it has as many columns of morsels.
const ITEMS: usize = 32;
/// Size of the smallest batch. If the device has no memory even for this size, the allocation
/// fails.
const LEAST_BATCH_BYTES: usize = 256 << 10;

/// Statistics of the data streamed for a pipeline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamFacts {
    /// Number of batches.
    pub batches: usize,
    /// Bytes that were copied or read to the device.
    pub bytes: u64,
    /// Time that the device waited for batches, by its own clock: from the beginning to the end of
    /// the last kernel, minus the kernel times.
    pub waited: Duration,
}

/// Memory for a batch on the device.
struct Slot {
    buffer: DeviceBuf,
    /// Target of reads straight to the device, if there are any.
    landing: Option<Landing>,
    before: Event,
    after: Event,
    draft: Mutex<Draft>,
}

/// A batch that is being filled.
#[derive(Default)]
struct Draft {
    batch: Option<usize>,
    /// Parts by column, then morsel.
    parts: Vec<Part>,
    beyond: Vec<DeviceBuf>,
}

/// A batch that is on its way to the device.
struct Arrived {
    slot: usize,
    reads: Reads,
    /// Forms of each streamed column.
    forms: BTreeMap<usize, BTreeSet<u32>>,
    /// Buffers that did not fit the slot's buffer, held until the batch's kernel has finished.
    _beyond: Vec<DeviceBuf>,
}

/// A code table on the device. Tables are identified by their address in host memory, so the one on
/// the host is held to keep its address unique.
struct KnownTable {
    meaning: CodeMeaning<DeviceBuf>,
    _on_host: CodeTable,
}

impl KnownTable {
    fn meaning(&self) -> CodeMeaning<u64> {
        match &self.meaning {
            CodeMeaning::Steps { first, step } => CodeMeaning::Steps { first: *first, step: *step },
            CodeMeaning::Table(on_device) => CodeMeaning::Table(on_device.address()),
            CodeMeaning::Unordered => CodeMeaning::Unordered,
        }
    }
}

/// Columns of a source that are being streamed.
struct Streams<'a> {
    context: &'a Arc<Context>,
    source: &'a Arc<dyn Source>,
    scan: Option<BlockScan>,
    /// Index of the first column that the scan reads.
    scanned: usize,
    passage: &'a Passage<'a>,
    streamed: Vec<usize>,
    images: &'a BTreeMap<usize, Arc<ColumnImage>>,
    /// Morsels to be read, with their numbers of rows.
    morsels: &'a [(u32, u32)],
    batches: Vec<Batch<'a>>,
    /// Approximate total bytes, and the number of copied bytes.
    bytes: u64,
    moved: AtomicU64,
    slots: Vec<Slot>,
    tables: Mutex<BTreeMap<usize, KnownTable>>,
    arrived: Mutex<BTreeMap<usize, Arrived>>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Morsels that are brought together.
struct Batch<'a> {
    /// Range among the morsels to be read.
    morsels: Range<usize>,
    /// Blocks that come through the host, numbered by morsel and then column, and their division
    /// into items, each of which a thread brings at a time.
    by_host: Vec<usize>,
    items: Vec<Range<usize>>,
    /// Blocks that do not: their numbers and their meanings. `plan` has their reads.
    straight: Vec<(usize, StoredMeaning<'a>)>,
    plan: Plan,
}

/// A block that is read straight to the device; `None` if it comes through the host.
type Straight<'a> = Option<(Wanted, StoredMeaning<'a>)>;

/// Determines which blocks of the streamed columns are read straight to the device, by morsel and
/// then column.
fn straight_of<'a>(reading: &Reading<'a>, streamed: &[usize], passage: &Passage<'_>) -> Result<Vec<Straight<'a>>> {
    let mut all = Vec::with_capacity(reading.morsels.len() * streamed.len());
    for (morsel, _) in reading.morsels {
        for column in streamed {
            let stored = reading.source.stored_place(*morsel as usize, *column);
            let fitting = stored.filter(|stored| is_read_as_stored(&stored.place, stored.meaning));
            all.push(match fitting {
                Some(stored) => {
                    let StoredPlace { place, meaning, .. } = stored;
                    passage.file(&stored)?.map(|file| (Wanted { file, place }, meaning))
                }
                None => None,
            });
        }
    }
    Ok(all)
}

/// Divides morsels into batches of at most `most` bytes, or of one morsel. `bytes` has the size of
/// each morsel, and `beside` is the size that every batch has in addition.
fn batches_of(bytes: &[usize], most: usize, beside: usize) -> Vec<Range<usize>> {
    let (mut batches, mut filled): (Vec<Range<usize>>, usize) = (Vec::new(), 0);
    for (morsel, bytes) in bytes.iter().enumerate() {
        match batches.last_mut() {
            Some(last) if filled + bytes <= most => last.end = morsel + 1,
            _ => {
                batches.push(morsel..morsel + 1);
                filled = beside;
            }
        }
        filled += bytes;
    }
    batches
}

impl<'a> Batch<'a> {
    /// Creates a batch. An item has consecutive columns, as many as are worth a thread's
    /// synchronization with the ring. `all` has the blocks of all morsels that are read without the
    /// host.
    fn new(morsels: Range<usize>, outlooks: &[&Outlook], item_bytes: usize, all: &[Straight<'a>]) -> Self {
        let (mut items, mut filled): (Vec<Range<usize>>, usize) = (Vec::new(), 0);
        let (mut by_host, mut straight, mut wanted) = (Vec::new(), Vec::new(), Vec::new());
        let columns = morsels.clone().flat_map(|morsel| (0..outlooks.len()).map(move |place| (morsel, place)));
        for (number, (morsel, place)) in columns.enumerate() {
            if let Some((of, meaning)) = &all[morsel * outlooks.len() + place] {
                straight.push((number, *meaning));
                wanted.push(of.clone());
                continue;
            }
            let at = by_host.len();
            by_host.push(number);
            match items.last_mut() {
                Some(last) if filled < item_bytes => last.end = at + 1,
                _ => {
                    items.push(at..at + 1);
                    filled = 0;
                }
            }
            filled += outlooks[place].bytes.get(morsel).copied().unwrap_or(0);
        }
        Self { morsels, by_host, items, straight, plan: Plan::new(&wanted) }
    }
}

impl<'a> Streams<'a> {
    /// Divides the streamed columns into batches that the device has memory for. Returns them and
    /// their shape.
    fn new(
        stager: &'a Stager,
        passage: &'a Passage<'a>,
        reading: &Reading<'a>,
        columns: &'a PipelineColumns,
        shape: Shape,
    ) -> Result<(Self, Shape)> {
        let (source, morsels) = (reading.source, reading.morsels);
        let outlooks: Vec<&Outlook> = columns.streamed.values().collect();
        let streamed: Vec<usize> = columns.streamed.keys().copied().collect();
        let straight = straight_of(reading, &streamed, passage)?;
        let sizes = Sizes::new(&outlooks, columns.images.len(), &straight, morsels.len());
        let mut batch_bytes = shape.batch_for(sizes.total());
        let (batches, shape, slots) = loop {
            let ranges = batches_of(&sizes.all, batch_bytes, sizes.beside);
            let item_bytes = ITEM_BYTES.min(batch_bytes / ITEMS);
            let batches: Vec<Batch<'a>> =
                ranges.into_iter().map(|morsels| Batch::new(morsels, &outlooks, item_bytes, &straight)).collect();
            let by_host = batches.iter().map(|batch| sizes.by_host[batch.morsels.clone()].iter().sum::<usize>());
            let largest = by_host.max().unwrap_or(0) + sizes.beside;
            let shape = Shape { batch_bytes: largest, slots: shape.slots.min(batches.len()), ..shape };
            match slots_of(stager, passage, shape, &batches) {
                Ok(slots) => break (batches, Shape { slots: slots.len(), ..shape }, slots),
                Err(e) if e.is_out_of_memory() && batch_bytes > LEAST_BATCH_BYTES => batch_bytes /= 2,
                Err(e) => return Err(e),
            }
        };
        let order: Vec<usize> = morsels.iter().map(|(morsel, _)| *morsel as usize).collect();
        // The host does not read ahead blocks that are read straight to the device.
        let comes_by_host = |place: &usize| straight.iter().skip(*place).step_by(streamed.len()).any(Option::is_none);
        let scanned: Vec<usize> = (0..streamed.len()).filter(comes_by_host).collect();
        let sure: Vec<usize> = scanned.iter().map(|place| streamed[*place]).collect();
        let scan = if sure.is_empty() { None } else { source.scan(&order, &sure, HORIZON_BYTES) };
        let streams = Self {
            context: stager.context(),
            source,
            scan,
            scanned: scanned.first().copied().unwrap_or(0),
            passage,
            streamed,
            images: &columns.images,
            morsels,
            batches,
            bytes: sizes.total() as u64,
            moved: AtomicU64::new(0),
            slots,
            tables: Mutex::default(),
            arrived: Mutex::default(),
        };
        Ok((streams, shape))
    }

    /// Loads a streamed column of a morsel. `at` is the morsel's index among those to be read.
    fn block(&self, at: usize, place: usize) -> Result<Block> {
        let (number, column) = (self.morsels[at].0 as usize, self.streamed[place]);
        Ok(match &self.scan {
            Some(scan) => {
                if place == self.scanned {
                    scan.begin(at);
                }
                self.source.load_of(scan, at, number, column)?
            }
            None => self.source.load(number, column)?,
        })
    }

    /// Copies bytes to device memory of their own.
    fn copied(&self, bytes: &[u8]) -> Result<DeviceBuf> {
        let mut buffer = DeviceBuf::new(self.context, bytes.len())?;
        buffer.copy_from(0, bytes)?;
        self.moved.fetch_add(bytes.len() as u64, Relaxed);
        Ok(buffer)
    }

    /// Puts morsels, parts and code words of a batch behind its blocks.
    fn seal(&self, batch: usize, room: &Room) -> Result<Arrived> {
        let (slot, of) = (&self.slots[room.slot()], &self.batches[batch]);
        let mut draft = std::mem::take(&mut *lock(&slot.draft));
        let morsels = &self.morsels[of.morsels.clone()];
        let count = morsels.len();
        draft.begin(batch, count * self.streamed.len());
        let mut to = Writer { streams: self, room, beyond: Vec::new(), reads_block: false };
        let numbered: Vec<(u32, u32)> = (0..).zip(morsels).map(|(number, (_, rows))| (number, *rows)).collect();
        let mut reads = Reads {
            columns: BTreeMap::new(),
            morsels_at: Some(to.put(&morsel_bytes(&numbered))?),
            morsels: count as u64,
            vectors: vectors_of(morsels),
        };
        if let Some(landing) = &slot.landing {
            for ((number, meaning), landed) in of.straight.iter().zip(&of.plan.blocks) {
                let (morsel, place) = (number / self.streamed.len(), number % self.streamed.len());
                let planes = landed.planes(landing.start());
                draft.parts[place * count + morsel] = part_of_place(&landed.place, *meaning, planes, &mut to)?;
            }
        }
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
        Ok(Arrived { slot: room.slot(), reads, forms, _beyond: draft.beyond })
    }
}

/// Bytes that morsels take.
struct Sizes {
    /// Approximate bytes of each morsel on the device, and the part of them in the slot's buffer.
    all: Vec<usize>,
    by_host: Vec<usize>,
    /// Additional bytes of every batch.
    beside: usize,
}

impl Sizes {
    /// Computes the sizes of streamed columns and of the parts, also for `there` columns that are
    /// on the device as a whole.
    fn new(outlooks: &[&Outlook], there: usize, straight: &[Straight<'_>], morsels: usize) -> Self {
        let all = outlooks.len() + there;
        let of_part = size_of::<Part>() + size_of::<u32>();
        let of = |morsel: usize| {
            let (mut by_host, mut read) = (all * of_part + 8, 0);
            for (outlook, straight) in outlooks.iter().zip(&straight[morsel * outlooks.len()..]) {
                match straight {
                    Some((Wanted { place, .. }, _)) => {
                        read += place.chunks().map(|chunk| chunk.bytes.next_multiple_of(PAGE_BYTES)).sum::<usize>();
                    }
                    None => by_host += outlook.bytes.get(morsel).copied().unwrap_or(0),
                }
            }
            (by_host + read, by_host)
        };
        let (all_bytes, by_host) = (0..morsels).map(of).unzip();
        // Morsels, and the data of each column, begin on a boundary. Most batches are of one or two
        // segments.
        let words =
            outlooks.iter().map(|outlook| 2 * outlook.codes.div_ceil(32) * size_of::<CodeWord>()).sum::<usize>();
        Self { all: all_bytes, by_host, beside: (3 * all + 1) * ALIGNMENT + words }
    }

    fn total(&self) -> usize {
        self.all.iter().sum()
    }
}

/// Allocates slots, as many as there is memory for.
fn slots_of(stager: &Stager, passage: &Passage<'_>, shape: Shape, batches: &[Batch<'_>]) -> Result<Vec<Slot>> {
    let read_bytes = batches.iter().map(|batch| batch.plan.bytes).max().unwrap_or(0);
    let blocks = batches.iter().map(|batch| batch.plan.blocks.len()).max().unwrap_or(0);
    let slot = || -> Result<Slot> {
        let landing = (blocks > 0).then(|| Landing::new(passage, read_bytes, blocks)).transpose()?;
        let (before, after) = (Event::timed(stager.context())?, Event::timed(stager.context())?);
        Ok(Slot {
            buffer: stager.device_buffer(shape.buffer_bytes())?,
            landing,
            before,
            after,
            draft: Mutex::default(),
        })
    };
    let mut slots = Vec::with_capacity(shape.slots);
    for _ in 0..shape.slots.max(1) {
        match slot() {
            Ok(slot) => slots.push(slot),
            // With fewer slots, kernels and copies alternate.
            Err(_) if !slots.is_empty() => break,
            Err(e) => return Err(e),
        }
    }
    Ok(slots)
}

impl Draft {
    /// Starts a batch with this many parts, unless it has been started.
    fn begin(&mut self, batch: usize, parts: usize) {
        if self.batch != Some(batch) {
            *self = Self { batch: Some(batch), parts: vec![Part::default(); parts], beyond: Vec::new() };
        }
    }
}

impl Streams<'_> {
    /// Executes a read of a batch, once the previous content of its target is no longer read.
    fn read(&self, slot: &Slot, read: &Read) -> Result<()> {
        let Some(landing) = &slot.landing else { return Ok(()) };
        slot.after.wait()?;
        // SAFETY: the kernel that read the slot's previous batch has finished, and that batch was
        // verified before its launch. Each item is filled once, and the memory is large enough for
        // the largest of the plans.
        unsafe { landing.read(self.passage, read) }
    }

    /// Checks the verification result of a batch, once its copy has finished and before its kernel
    /// is launched.
    fn check(&self, batch: usize, slot: &Slot, copied: &Event) -> Result<()> {
        let of = &self.batches[batch];
        let Some(landing) = slot.landing.as_ref().filter(|_| !of.plan.blocks.is_empty()) else { return Ok(()) };
        copied.wait()?;
        let Some((number, _, why)) = landing.wrong(&of.plan) else { return Ok(()) };
        let (number, column) =
            (of.straight[number].0 / self.streamed.len(), of.straight[number].0 % self.streamed.len());
        let (morsel, column) = (self.morsels[of.morsels.start + number].0 as usize, self.streamed[column]);
        // The host's own check reports the exact error.
        self.source.load(morsel, column)?;
        Err(doubtful(&format!("block {morsel} of column {column} of {}", self.source.name()), why))
    }
}

impl Cargo for Streams<'_> {
    fn batches(&self) -> usize {
        self.batches.len()
    }

    fn items(&self, batch: usize) -> usize {
        let Batch { plan, items, .. } = &self.batches[batch];
        // A batch of constants alone must also be sealed.
        (plan.reads.len() + items.len()).max(1)
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn readers(&self) -> usize {
        self.passage.readers()
    }

    fn fill(&self, batch: usize, item: usize, room: &Room) -> Result<()> {
        let of = &self.batches[batch];
        let (count, columns) = (of.morsels.len(), self.streamed.len());
        if let Some(read) = of.plan.reads.get(item) {
            return self.read(&self.slots[room.slot()], read);
        }
        let Some(numbers) = of.items.get(item - of.plan.reads.len()) else { return Ok(()) };
        let mut to = Writer { streams: self, room, beyond: Vec::new(), reads_block: false };
        let mut parts = Vec::with_capacity(numbers.len());
        for number in of.by_host[numbers.clone()].iter().copied() {
            let (morsel, place) = (number / columns, number % columns);
            let block = self.block(of.morsels.start + morsel, place)?;
            let (_, rows) = self.morsels[of.morsels.start + morsel];
            let domain: &Domain = &self.source.columns()[self.streamed[place]];
            let part = part_of(&block, rows as usize, domain, &mut to)?;
            parts.push((place * count + morsel, part));
            if std::mem::take(&mut to.reads_block) {
                room.hold(block);
            }
        }
        let mut draft = lock(&self.slots[room.slot()].draft);
        draft.begin(batch, count * columns);
        parts.into_iter().for_each(|(at, part)| draft.parts[at] = part);
        draft.beyond.append(&mut to.beyond);
        Ok(())
    }

    fn send(&self, batch: usize, filled: Sent<'_>, stream: &Stream) -> Result<()> {
        if let Some(scan) = &self.scan {
            self.batches[batch].morsels.clone().for_each(|at| scan.end(at));
        }
        let arrived = self.seal(batch, filled.room)?;
        let slot = &self.slots[arrived.slot];
        stream.wait_for(&slot.after)?;
        // SAFETY: the bytes in the room fit the slot's buffer, which is at least as long. Nothing
        // reads the buffer before the kernel that waits for this copy. It is freed when the stream
        // has finished, or leaked.
        unsafe { filled.copy(slot.buffer.address(), 0, filled.bytes(), stream)? };
        self.moved.fetch_add(filled.bytes() as u64, Relaxed);
        let plan = &self.batches[batch].plan;
        if let Some(landing) = slot.landing.as_ref().filter(|_| !plan.blocks.is_empty()) {
            // SAFETY: all items of the batch are complete, its reads among them. The slot is kept
            // until the stream has finished, or leaked.
            unsafe { landing.verify(self.passage, plan, stream)? };
        }
        lock(&self.arrived).insert(batch, arrived);
        Ok(())
    }
}

/// Destination of a batch's bytes: its buffer, or extra buffers.
struct Writer<'a> {
    streams: &'a Streams<'a>,
    room: &'a Room,
    beyond: Vec<DeviceBuf>,
    /// `true` if bytes of the block will be copied from where they are.
    reads_block: bool,
}

impl Memory for Writer<'_> {
    fn put(&mut self, bytes: &[u8]) -> Result<u64> {
        if let Some(at) = self.room.put(bytes) {
            return Ok(self.streams.slots[self.room.slot()].buffer.address() + at as u64);
        }
        let buffer = self.streams.copied(bytes)?;
        let address = buffer.address();
        self.beyond.push(buffer);
        Ok(address)
    }

    fn put_stored(&mut self, bytes: &[u8]) -> Result<u64> {
        // SAFETY: the bytes belong to a block whose buffer is never written again. The room takes
        // the block once its part is made; if that fails, the batch is not sent.
        let Some((at, put)) = (unsafe { self.room.put_held(bytes) }) else { return self.put(bytes) };
        self.reads_block |= put == Put::Direct;
        Ok(self.streams.slots[self.room.slot()].buffer.address() + at as u64)
    }

    fn meaning(&mut self, table: &CodeTable) -> Result<CodeMeaning<u64>> {
        let mut tables = lock(&self.streams.tables);
        let bytes = bytes_of_table(table);
        let key = bytes.as_ptr().addr();
        if let Some(known) = tables.get(&key) {
            return Ok(known.meaning());
        }
        let meaning = CodeMeaning::of(table).with_table(|| self.streams.copied(bytes))?;
        let known = KnownTable { meaning, _on_host: table.clone() };
        let meaning = known.meaning();
        tables.insert(key, known);
        Ok(meaning)
    }
}

/// The run's side of a stream: its launches, and the state of the batches so far.
struct Consumer<'c, 'r> {
    run: &'c mut Run<'r>,
    reading: &'c Reading<'c>,
    streams: &'c Streams<'c>,
    code: &'c mut Code,
    sinks: &'c Sinks<'c>,
    facts: &'c mut PipelineFacts,
    /// Forms that the kernel was generated for.
    known: BTreeMap<usize, Vec<u32>>,
    /// For each slot, the batch that is being read or was read last.
    running: Vec<Option<Arrived>>,
    kernels: Duration,
    batches: usize,
}

impl Consumer<'_, '_> {
    /// Launches the kernel for a batch, after its copy.
    fn take(&mut self, number: usize, copied: &Event) -> Result<ControlFlow<()>> {
        let Some(arrived) = lock(&self.streams.arrived).remove(&number) else { return Ok(ControlFlow::Break(())) };
        let slot = &self.streams.slots[arrived.slot];
        if self.running[arrived.slot].is_some() {
            slot.after.wait()?;
            self.end(arrived.slot)?;
            if self.is_in_vain()? {
                return Ok(ControlFlow::Break(()));
            }
        }
        self.streams.check(number, slot, copied)?;
        self.know(&arrived)?;
        self.run.make_room_for_codes(self.code, &arrived.reads)?;
        self.run.lane.stream.wait_for(copied)?;
        self.run.launch(self.code, self.sinks, &arrived.reads, [&slot.before, &slot.after])?;
        self.facts.launches += 1;
        self.batches += 1;
        let at = arrived.slot;
        self.running[at] = Some(arrived);
        Ok(ControlFlow::Continue(()))
    }

    /// Records that the kernel reading a slot has finished.
    fn end(&mut self, slot: usize) -> Result<()> {
        if self.running[slot].take().is_some() {
            let Slot { before, after, .. } = &self.streams.slots[slot];
            self.kernels += after.since(before)?;
        }
        Ok(())
    }

    /// Generates another kernel if a batch has forms that the current one lacks.
    fn know(&mut self, arrived: &Arrived) -> Result<()> {
        let mut has_new = false;
        for (column, forms) in &arrived.forms {
            let known = self.known.entry(*column).or_default();
            let before = known.len();
            known.extend(forms.iter().filter(|form| !known[..before].contains(form)).copied().collect::<Vec<u32>>());
            has_new |= known.len() > before;
        }
        if has_new {
            *self.code = self.run.code(self.reading, &self.known, &[], self.facts)?;
        }
        Ok(())
    }

    /// Returns true if the pipeline will have to be restarted in any case: there was no room for
    /// groups, or the sink has enough rows for a threshold that all others must beat.
    fn is_in_vain(&self) -> Result<bool> {
        let has_threshold = match &self.code.generated.sink {
            SinkShape::Groups(groups) if groups.is_hashed() => false,
            SinkShape::Rows { has_threshold: true, .. } if self.sinks.threshold.is_none() => true,
            _ => return Ok(false),
        };
        let status = words_of(&self.run.lane.arena.read(self.sinks.memory.status, STATUS_WORDS * 8)?);
        Ok(if has_threshold { status[1] > self.sinks.memory.targets.capacity } else { status[4] != 0 })
    }
}

impl Run<'_> {
    /// Launches the kernel for one batch after the other, and waits for the last.
    pub fn stream(
        &mut self,
        reading: &Reading<'_>,
        columns: &PipelineColumns,
        code: &mut Code,
        sinks: &Sinks<'_>,
        facts: &mut PipelineFacts,
    ) -> Result<()> {
        if reading.morsels.is_empty() {
            // The output must still be initialized.
            return Ok(self.lane.stream.synchronize()?);
        }
        let (executor, cancelled) = (self.executor, self.cancelled);
        let bytes: usize = columns.streamed.values().flat_map(|outlook| &outlook.bytes).sum();
        let passage = executor.direct.passage(&executor.compiler, self.images.path(), bytes as u64)?;
        let (streams, shape) = Streams::new(&executor.stager, &passage, reading, columns, executor.options.staging)?;
        self.lane.events[0].record(&self.lane.stream)?;
        let running = streams.slots.iter().map(|_| None).collect();
        let (known, kernels) = (columns.forms(), Duration::ZERO);
        let mut consumer =
            Consumer { run: self, reading, streams: &streams, code, sinks, facts, known, running, kernels, batches: 0 };
        let carried = executor.stager.run(&streams, shape, cancelled, |number, copied| consumer.take(number, copied));
        let stream = &consumer.run.lane.stream;
        let ended = consumer.run.lane.events[1].record(stream);
        let settled = stream.synchronize();
        let in_flight = settled.is_err() || carried.as_ref().is_err_and(|failed| failed.in_flight);
        let failed = |source| Error::Device { attempt: "a pipeline on the GPU".into(), source };
        let outcome = carried.map_err(|failed| failed.error).and(settled.and(ended).map_err(failed));
        if in_flight {
            // The state of the streams is unknown, so the device may still access this memory.
            let running = consumer.running;
            lose((streams.slots, streams.tables, streams.arrived, running));
            return outcome;
        }
        consumer.told(outcome.is_ok())?;
        let brought = passage.told();
        let told = brought.as_ref().ok().cloned().flatten();
        let carried = Carried { brought: told, ..passage.carried(streams.moved.load(Relaxed)) };
        self.images.streamed(reading.source, &carried);
        for Slot { buffer, landing, .. } in streams.slots {
            executor.stager.keep_device_buffer(buffer);
            landing.into_iter().for_each(|landing| landing.settle(&passage));
        }
        self.held.clear();
        outcome.and(brought.map(|_| ()))
    }
}

impl Consumer<'_, '_> {
    /// Records the statistics after all kernels have finished. A failed stream has no times.
    fn told(mut self, has_times: bool) -> Result<()> {
        let bytes = self.streams.moved.load(Relaxed) + self.streams.passage.read_bytes();
        let mut waited = Duration::ZERO;
        if has_times {
            (0..self.running.len()).try_for_each(|slot| self.end(slot))?;
            let [begun, ended] = &self.run.lane.events;
            waited = ended.since(begun)?.saturating_sub(self.kernels);
        }
        self.facts.kernel += self.kernels;
        let all = self.facts.streamed.get_or_insert_default();
        all.batches += self.batches;
        all.bytes += bytes;
        all.waited += waited;
        Ok(())
    }
}
