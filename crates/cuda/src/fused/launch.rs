//! Launches of a pipeline's kernel: once over columns that are on the device as a whole, or once for each batch of those
//! that are not.
//!
//! Whatever a kernel adds to is filled once, before the first launch: groups, rows, tables and counters are the same whether
//! their additions come of one launch or of many. What differs between the launches of an attempt is [`Reads`]. Only the
//! number of the next unit begins anew with each launch, if warps take units as they come: it is filled in the launch's own
//! stream, so that nobody waits for it.

use std::collections::BTreeMap;
use std::sync::Arc;

use onehop_pipeline::{Source, VECTOR_ROWS};

use super::codegen::{Fold, Generated, Input, SinkShape, Units, Word, columns_read, generate};
use super::compile::Compiled;
use super::image::{ColumnImage, Outlook};
use super::memory::Piece;
use super::part::bytes_of;
use super::partition::Partition;
use super::plan::Plan;
use super::run::{Lane, NEXT_UNIT_WORD, Options, PipelineFacts, Run};
use super::sinks::SinkMemory;
use super::table::TableShape;
use super::{Error, Result};
use crate::kernels::ARGUMENT_WORDS;
use crate::{Event, Grid, Kernel};

/// As in device.cuh.
const MORSEL_VECTORS: u64 = 64;
/// Vectors that a warp takes at once, at most: it reads where columns are once for all of them.
pub(super) const UNIT_VECTORS: u64 = 16;
/// The same of warps that take units as they come: less, so that all are done at about the same time.
const TAKEN_VECTORS: u64 = 8;
/// Units that there should be for each warp that the device can run, so that none waits for a slow one.
const UNITS_PER_WARP: u64 = 8;
/// Warps that a multiprocessor runs at once, about.
const WARPS: u64 = 32;
/// Of the bits of 32 codes, and of what is kept of them in a run, as in device.cuh.
const CODE_BITS_BYTES: u64 = 4;
const CODE_RUN_BYTES: u64 = 16;

/// A pipeline as it is read: what its texts are made of, but for the forms of its columns; and the morsels that are wanted.
#[derive(Clone, Copy)]
pub(super) struct Reading<'a> {
    pub plan: &'a Plan<'a>,
    pub source: &'a Arc<dyn Source>,
    /// Those that are wanted, with their rows.
    pub morsels: &'a [(u32, u32)],
    /// Of the tables before it.
    pub tables: &'a [TableShape],
    /// Of the table that it builds.
    pub built: Option<&'a TableShape>,
    /// Whether groups are there one partition at a time.
    pub splits_groups: bool,
    /// Of the source: those that are wanted depend on constants, which are not to be in a text.
    pub rows: u64,
    /// What rows that would be collected are added up to instead, if they are.
    pub fold: Option<Fold>,
}

/// The columns that a pipeline reads, by their numbers in the source.
pub(super) struct PipelineColumns {
    /// On the device as a whole.
    pub images: BTreeMap<usize, Arc<ColumnImage>>,
    /// To be brought batch by batch.
    pub streamed: BTreeMap<usize, Outlook>,
}

impl PipelineColumns {
    /// Forms of each, as far as they are known.
    pub fn forms(&self) -> BTreeMap<usize, Vec<u32>> {
        let there = self.images.iter().map(|(column, image)| (*column, image.forms().to_vec()));
        there.chain(self.streamed.iter().map(|(column, outlook)| (*column, outlook.forms.clone()))).collect()
    }
}

/// A kernel, and what its argument has beside what it reads.
pub(super) struct Code {
    pub generated: Generated,
    kernel: Kernel,
    /// The one that asks about codes.
    of_codes: Option<Kernel>,
    /// Morsels that are known beforehand, and constants behind them.
    small: Piece,
    constants: Vec<u64>,
    /// By number in [`Generated::codes`]: a run for every 32 codes of a column, and behind them a bit for each code.
    of_bits: Vec<Piece>,
}

/// What a pipeline ends in.
#[derive(Clone, Copy)]
pub(super) struct Sinks<'a> {
    pub memory: &'a SinkMemory,
    /// That is there.
    pub partition: Partition,
    /// The rank of the last row that may be among the first.
    pub threshold: Option<u64>,
    /// What rows are added up to, if they are.
    pub fold: Option<FoldTarget<'a>>,
}

/// Where rows are added up, for a fit.
#[derive(Clone, Copy, Debug)]
pub(super) struct FoldTarget<'a> {
    /// Where the sums are.
    pub numbers: &'a [f64],
    /// Memory for those of each block.
    pub sums: Piece,
    /// The grid's, which says what rows a thread has.
    pub blocks: u32,
}

/// What one launch reads.
#[derive(Clone, Debug, Default)]
pub(super) struct Reads {
    /// By column.
    pub columns: BTreeMap<usize, ColumnReads>,
    /// Where its morsels are; none: those that came with the code.
    pub morsels_at: Option<u64>,
    pub morsels: u64,
    pub vectors: u64,
}

impl Reads {
    /// Of columns that are on the device as a whole, and morsels that came with the code.
    pub fn of_whole(columns: &PipelineColumns, morsels: &[(u32, u32)]) -> Self {
        Self {
            columns: columns.images.iter().map(|(column, image)| (*column, ColumnReads::of(image))).collect(),
            morsels_at: None,
            morsels: morsels.len() as u64,
            vectors: vectors_of(morsels),
        }
    }
}

/// Where a column is that a launch reads.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ColumnReads {
    /// A part for each number that its morsels have.
    pub parts: u64,
    pub code_words: u64,
    /// For each part.
    pub code_first: u64,
    pub code_count: u64,
}

impl ColumnReads {
    /// Of a whole column.
    fn of(image: &ColumnImage) -> Self {
        let codes = image.codes();
        Self {
            parts: image.address(),
            code_words: codes.map_or(0, |codes| codes.words.address()),
            code_first: codes.map_or(0, |codes| codes.first.address()),
            code_count: codes.map_or(0, |codes| codes.count as u64),
        }
    }
}

/// Vectors of morsels.
pub(super) fn vectors_of(morsels: &[(u32, u32)]) -> u64 {
    morsels.iter().map(|(_, rows)| u64::from(*rows).div_ceil(VECTOR_ROWS as u64)).sum()
}

impl Run<'_> {
    /// What a pipeline's text is made of, for columns of such forms.
    fn input<'i>(&self, reading: &Reading<'i>, forms: &'i dyn Fn(usize) -> Vec<u32>) -> Input<'i> {
        let options = &self.executor.options;
        let Reading { plan, tables, built, splits_groups, rows, fold, .. } = *reading;
        let (counts, many_rows, threads) = (self.counts, options.many_rows, options.threads());
        Input { plan, tables, built, splits_groups, forms, rows, counts, many_rows, threads, fold }
    }

    /// A pipeline's text where there is nothing to be read.
    pub fn text(&self, reading: &Reading<'_>) -> Result<Generated> {
        generate(&self.input(reading, &|_| Vec::new()))
    }

    /// The columns that a pipeline reads, those that are to be on the device brought there.
    pub fn columns(&mut self, reading: &Reading<'_>) -> Result<PipelineColumns> {
        let Reading { source, morsels, .. } = *reading;
        let read = columns_read(&self.input(reading, &|_| Vec::new()))?;
        let mut columns = PipelineColumns { images: BTreeMap::new(), streamed: BTreeMap::new() };
        for (column, image) in read.iter().zip(self.images.columns(source, &read, self.cancelled)?) {
            match image {
                Some(image) => drop(columns.images.insert(*column, image)),
                None => drop(columns.streamed.insert(*column, self.images.outlook(&**source, *column, morsels)?)),
            }
        }
        self.held.extend(columns.images.values().cloned());
        Ok(columns)
    }

    /// The kernel for columns of such forms.
    pub fn code(
        &mut self,
        reading: &Reading<'_>,
        forms: &BTreeMap<usize, Vec<u32>>,
        morsels: &[(u32, u32)],
        facts: &mut PipelineFacts,
    ) -> Result<Code> {
        let forms = |column: usize| forms.get(&column).cloned().unwrap_or_default();
        let generated = generate(&self.input(reading, &forms))?;
        if generated.args.len() > ARGUMENT_WORDS {
            return Err(Error::refused("a query with so many columns and constants"));
        }
        let (kernel, compiled) = self
            .executor
            .compiler
            .kernel(&generated.text)
            .map_err(|source| Error::Device { attempt: "compiling a pipeline for the GPU".into(), source })?;
        match compiled {
            Compiled::Anew(elapsed) => facts.compile += elapsed,
            Compiled::Kept | Compiled::Stored => facts.compile_hits += 1,
        }
        let of_codes = if generated.codes.is_empty() { None } else { Some(kernel.sibling(c"codes")?) };
        let (small, constants) = self.small(&generated, morsels)?;
        facts.bytes_up += small.len as u64;
        Ok(Code { generated, kernel, of_codes, small, constants, of_bits: Vec::new() })
    }

    /// What is small and goes to the device as one: morsels, and constant arrays after them, whose places come with it.
    fn small(&mut self, generated: &Generated, morsels: &[(u32, u32)]) -> Result<(Piece, Vec<u64>)> {
        let mut bytes = morsel_bytes(morsels);
        let mut places = Vec::with_capacity(generated.constants.len());
        for constant in &generated.constants {
            bytes.resize(bytes.len().next_multiple_of(16), 0);
            places.push(bytes.len() as u64);
            bytes.extend(constant);
        }
        let piece = self.piece(bytes.len() as u64)?;
        if !self.lane.bounce.put(&self.lane.stream, piece, &bytes)? {
            self.lane.arena.write(piece, &bytes)?;
        }
        Ok((piece, places.into_iter().map(|place| piece.address + place).collect()))
    }

    /// One launch over columns that are on the device as a whole, and waits; for groups, too, if it `is_last`.
    pub fn launch_once(
        &mut self,
        reading: &Reading<'_>,
        columns: &PipelineColumns,
        code: &mut Code,
        sinks: &Sinks<'_>,
        is_last: bool,
        facts: &mut PipelineFacts,
    ) -> Result<()> {
        let reads = Reads::of_whole(columns, reading.morsels);
        self.make_room_for_codes(code, &reads)?;
        let [before, after] = &self.lane.events;
        self.launch(code, sinks, &reads, [before, after])?;
        let SinkMemory { status, targets, .. } = sinks.memory;
        let groups = [targets.groups, targets.group_keys].into_iter().flatten().filter(|_| is_last);
        let Lane { stream, bounce, events: [before, after], .. } = &mut *self.lane;
        for piece in [*status].into_iter().chain(groups) {
            bounce.fetch(stream, piece)?;
        }
        stream.synchronize().map_err(|source| Error::Device { attempt: "a pipeline on the GPU".into(), source })?;
        self.held.clear();
        facts.kernel += after.since(before)?;
        facts.launches += 1;
        Ok(())
    }

    /// Makes sure that each code that a launch asks about has a bit, and a place in a run.
    pub fn make_room_for_codes(&mut self, code: &mut Code, reads: &Reads) -> Result<()> {
        for (number, column) in code.generated.codes.iter().enumerate() {
            let bytes = reads.columns.get(column).map_or(0, |column| column.code_count);
            let bytes = bytes * (CODE_RUN_BYTES + CODE_BITS_BYTES);
            match code.of_bits.get(number) {
                Some(piece) if piece.len as u64 >= bytes => {}
                Some(_) => code.of_bits[number] = self.piece(bytes)?,
                None => {
                    let piece = self.piece(bytes)?;
                    code.of_bits.push(piece);
                }
            }
        }
        Ok(())
    }

    /// Launches the kernel between two events.
    pub fn launch(&self, code: &Code, sinks: &Sinks<'_>, reads: &Reads, [before, after]: [&Event; 2]) -> Result<()> {
        let (generated, options) = (&code.generated, &self.executor.options);
        let SinkMemory { status, table, targets, .. } = sinks.memory;
        let column = |column: &usize| reads.columns.get(column).copied().unwrap_or_default();
        let multiprocessors = u64::from(self.executor.context.device().multiprocessors);
        let shares = Shares::of(reads, (generated.threads, generated.units), multiprocessors, options);
        let mut words: Vec<u64> = Vec::with_capacity(ARGUMENT_WORDS);
        for word in &generated.args {
            words.push(match *word {
                Word::Value(value) => value,
                Word::Constant(number) => code.constants[number],
                Word::Parts(number) => column(&number).parts,
                Word::CodeWords(number) => column(&number).code_words,
                Word::CodeFirst(number) => column(&number).code_first,
                Word::CodeCount(number) => column(&number).code_count,
                Word::CodeRuns(number) => code.of_bits[number].address,
                Word::CodeBits(number) => {
                    code.of_bits[number].address + column(&generated.codes[number]).code_count * CODE_RUN_BYTES
                }
                Word::Morsels => reads.morsels_at.unwrap_or(code.small.address),
                Word::Units => shares.units,
                Word::UnitVectors => shares.unit_vectors,
                Word::Status => status.address,
                Word::Table(number, word) => self.tables[number].word(word),
                Word::Built(word) => table.as_ref().map_or(0, |table| table.word(word)),
                Word::BitmapWords(number) => self.tables[number].bitmap_words(),
                Word::Groups => targets.groups.map_or(0, |piece| piece.address),
                Word::GroupKeys => targets.group_keys.map_or(0, |piece| piece.address),
                Word::GroupMask => targets.group_places.saturating_sub(1),
                Word::GroupCount => targets.group_places,
                Word::GroupPartition(word) => self.group_word(generated, sinks.partition, word),
                Word::Copies => copies(generated),
                Word::Output(number) => targets.outputs[number].0.address,
                Word::OutputValid(number) => targets.outputs[number].1.map_or(0, |piece| piece.address),
                Word::Capacity => targets.capacity,
                Word::Threshold => sinks.threshold.unwrap_or(u64::MAX),
                Word::FoldNumber(number) => sinks.fold.map_or(0, |fold| fold.numbers[number].to_bits()),
                Word::FoldSums => sinks.fold.map_or(0, |fold| fold.sums.address),
            });
        }
        words.resize(ARGUMENT_WORDS, 0);
        let bitmaps = generated.shared.bitmaps.iter().map(|number| self.tables[*number].bitmap_words());
        let shared = (bitmaps.sum::<u64>() + generated.shared.groups) * 8;
        let blocks = sinks.fold.map_or(shares.blocks, |fold| fold.blocks);
        let grid = Grid { blocks, threads: generated.threads };
        let stream = &self.lane.stream;
        if generated.units == Units::Taken {
            // SAFETY: a word of the status, which is nobody else's; what was launched before is through with it by then.
            unsafe { stream.fill_at(status.address + NEXT_UNIT_WORD * 8, 0, 8)? };
        }
        before.record(stream)?;
        if let Some(codes) = &code.of_codes {
            let most: u64 = generated.codes.iter().map(|number| column(number).code_count).max().unwrap_or(0);
            for (piece, number) in code.of_bits.iter().zip(&generated.codes) {
                let bytes = column(number).code_count * CODE_RUN_BYTES;
                // SAFETY: runs of as many words as the column's codes have are in the piece, which is nobody else's, and
                // what was launched before has read them.
                unsafe { stream.fill_at(piece.address, 0, bytes as usize)? };
            }
            // SAFETY: as below; the bits are pieces of as many words as the columns' codes have.
            unsafe { codes.launch_words(stream, Grid::of(most), 0, &words)? };
        }
        // SAFETY: the argument is made of the words that the text declares, in their order. Addresses are those of memory
        // of the lengths that its parts say: of columns, which are held until the stream is through, of batches, which this
        // stream was made to wait for, of pieces of the arena, which are nobody else's, and of tables that earlier kernels
        // have finished.
        unsafe { code.kernel.launch_words(stream, grid, shared as u32, &words)? };
        Ok(after.record(stream)?)
    }
}

/// How the vectors of a launch are shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shares {
    /// Vectors of a unit, a power of two, and units, those beyond the rows of their morsel included.
    unit_vectors: u64,
    units: u64,
    blocks: u32,
}

impl Shares {
    /// To blocks of so many threads, which come to their units in some way.
    fn of(reads: &Reads, (threads, of_units): (u32, Units), multiprocessors: u64, options: &Options) -> Self {
        let warps = u64::from(threads / 32).max(1);
        let enough = multiprocessors * WARPS * UNITS_PER_WARP;
        let most_vectors = if of_units == Units::Taken { TAKEN_VECTORS } else { UNIT_VECTORS };
        let mut unit_vectors = (reads.vectors / enough.max(1) + 1).next_power_of_two().min(most_vectors);
        let most = multiprocessors * u64::from(options.blocks) * u64::from(options.threads);
        let most = (most / u64::from(threads)).max(1);
        // Most units of a short morsel are beyond its rows.
        let mut blocks = reads.vectors.div_ceil(unit_vectors * warps);
        if of_units == Units::Taken {
            // Of few vectors, every multiprocessor has some, though most of its warps find nothing.
            let at_once = multiprocessors * (WARPS / warps).max(1);
            blocks = blocks.max(reads.vectors.div_ceil(unit_vectors).min(multiprocessors)).min(at_once);
            // One that nothing is in is taken, too. A morsel has a unit of its own, however long those are: longer ones
            // leave less of them empty.
            while unit_vectors < UNIT_VECTORS && reads.vectors <= reads.morsels * unit_vectors {
                unit_vectors *= 2;
            }
        }
        let units = reads.morsels * (MORSEL_VECTORS / unit_vectors);
        Self { unit_vectors, units, blocks: blocks.clamp(1, most) as u32 }
    }
}

/// Copies of the groups in shared memory.
fn copies(generated: &Generated) -> u64 {
    match &generated.sink {
        SinkShape::Groups(groups) => groups.copies(),
        SinkShape::Table | SinkShape::Rows { .. } | SinkShape::Fold => 0,
    }
}

/// Morsels as kernels read them: number and rows of each.
pub(super) fn morsel_bytes(morsels: &[(u32, u32)]) -> Vec<u8> {
    let words: Vec<[u32; 2]> = morsels.iter().map(|(number, rows)| [*number, *rows]).collect();
    bytes_of(&words).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MULTIPROCESSORS: u64 = 132;

    fn shares(vectors: u64, morsels: u64, of: (u32, Units)) -> Shares {
        let reads = Reads { vectors, morsels, ..Reads::default() };
        Shares::of(&reads, of, MULTIPROCESSORS, &Options::default())
    }

    #[test]
    fn all_vectors_are_in_units_and_no_multiprocessor_is_idle() {
        for morsels in [1, 2, 15, 16, 100, 150, 1000, 9156, 100_000] {
            for of_morsel in [1, 3, 8, 9, 40, 64] {
                for of in [(256, Units::Dealt), (1024, Units::Taken), (256, Units::Taken), (128, Units::Taken)] {
                    let vectors = morsels * of_morsel;
                    let Shares { unit_vectors, units, blocks } = shares(vectors, morsels, of);
                    let why =
                        format!("{morsels} morsels of {of_morsel} vectors, {of:?}: {unit_vectors} {units} {blocks}");
                    assert!(unit_vectors.is_power_of_two() && unit_vectors <= UNIT_VECTORS, "{why}");
                    assert_eq!(units * unit_vectors, morsels * MORSEL_VECTORS, "{why}");
                    // Units with rows in them: as many as there are blocks, and enough for all multiprocessors.
                    let filled = morsels * of_morsel.div_ceil(unit_vectors);
                    assert!(u64::from(blocks) <= filled, "{why}");
                    if of.1 == Units::Taken {
                        assert!(u64::from(blocks) >= vectors.min(MULTIPROCESSORS).min(filled), "{why}");
                        assert!(u64::from(blocks * (of.0 / 32)) <= MULTIPROCESSORS * WARPS, "{why}");
                        // Few are empty where all morsels are as short.
                        assert!(units <= filled.max(morsels * 8) * 8, "{why}");
                    }
                }
            }
        }
    }

    #[test]
    fn units_are_as_long_as_there_is_enough_for_everybody() {
        // 64 vectors a morsel: a batch of a stream, and 600,000,000 rows.
        let batch = shares(2700, 43, (1024, Units::Taken));
        assert_eq!((batch.unit_vectors, batch.blocks), (1, MULTIPROCESSORS as u32));
        let all = shares(585_984, 9156, (1024, Units::Taken));
        assert_eq!((all.unit_vectors, all.blocks), (8, MULTIPROCESSORS as u32));
        let dealt = shares(585_984, 9156, (256, Units::Dealt));
        assert_eq!((dealt.unit_vectors, u64::from(dealt.blocks)), (16, 585_984_u64.div_ceil(16 * 8)));
    }
}
