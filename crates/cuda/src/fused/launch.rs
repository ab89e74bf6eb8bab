//! Launches of a pipeline's kernel: one launch over columns that are on the device as a whole, or
//! one for each batch of streamed columns.
//!
//! The memory that a kernel adds to is initialized once, before the first launch. Groups, rows,
//! tables and counters are the same after one launch as after many. The launches of an attempt
//! differ in [`Reads`]. Only the number of the next unit restarts with each launch, if warps take
//! units dynamically. It is reset in the launch's own stream, so no thread waits for it.

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
/// Maximum number of vectors of a unit. A warp reads the location of the columns once per unit.
pub(super) const UNIT_VECTORS: u64 = 16;
/// Maximum number of vectors of a unit that is taken dynamically. It is smaller, so that all warps
/// finish at about the same time.
const TAKEN_VECTORS: u64 = 8;
/// Target number of units for each warp that the device can run, so that no warp waits for a slow
/// one.
const UNITS_PER_WARP: u64 = 8;
/// Approximate number of warps that a multiprocessor runs at once.
const WARPS: u64 = 32;
/// Bytes of the bits of 32 codes, and of a code run, as in device.cuh.
const CODE_BITS_BYTES: u64 = 4;
const CODE_RUN_BYTES: u64 = 16;

/// A pipeline to be read: the input of its kernel sources except the forms of its columns, and the
/// morsels to be read.
#[derive(Clone, Copy)]
pub(super) struct Reading<'a> {
    pub plan: &'a Plan<'a>,
    pub source: &'a Arc<dyn Source>,
    /// Morsels to be read, with their numbers of rows.
    pub morsels: &'a [(u32, u32)],
    /// Shapes of the tables of earlier pipelines.
    pub tables: &'a [TableShape],
    /// Shape of the table that this pipeline builds.
    pub built: Option<&'a TableShape>,
    /// `true` if groups are resident one partition at a time.
    pub splits_groups: bool,
    /// Rows of the whole source. The number of rows to be read depends on constants, which must not
    /// influence the kernel source.
    pub rows: u64,
    /// Sums that collected rows are added to instead, if any.
    pub fold: Option<Fold>,
}

/// The columns that a pipeline reads, by their numbers in the source.
pub(super) struct PipelineColumns {
    /// Columns on the device as a whole.
    pub images: BTreeMap<usize, Arc<ColumnImage>>,
    /// Columns to be brought batch by batch.
    pub streamed: BTreeMap<usize, Outlook>,
}

impl PipelineColumns {
    /// Returns the known forms of each column.
    pub fn forms(&self) -> BTreeMap<usize, Vec<u32>> {
        let there = self.images.iter().map(|(column, image)| (*column, image.forms().to_vec()));
        there.chain(self.streamed.iter().map(|(column, outlook)| (*column, outlook.forms.clone()))).collect()
    }
}

/// A kernel, and the parts of its argument that do not depend on the data of a launch.
pub(super) struct Code {
    pub generated: Generated,
    kernel: Kernel,
    /// Kernel that evaluates conditions on codes.
    of_codes: Option<Kernel>,
    /// Morsels that are known beforehand, followed by constants.
    small: Piece,
    constants: Vec<u64>,
    /// By index into [`Generated::codes`]: a run for every 32 codes of a column, followed by a bit
    /// for each code.
    of_bits: Vec<Piece>,
}

/// Output of a pipeline.
#[derive(Clone, Copy)]
pub(super) struct Sinks<'a> {
    pub memory: &'a SinkMemory,
    /// The resident partition.
    pub partition: Partition,
    /// Rank of the last row that may be among the first rows of the order.
    pub threshold: Option<u64>,
    /// Target of the sums, if rows are added up for a fit.
    pub fold: Option<FoldTarget<'a>>,
}

/// Target of the sums for a fit.
#[derive(Clone, Copy, Debug)]
pub(super) struct FoldTarget<'a> {
    /// Parameters of the fit at which the sums are evaluated.
    pub numbers: &'a [f64],
    /// Memory for the sums of each block.
    pub sums: Piece,
    /// Number of blocks of the grid, which determines the rows of each thread.
    pub blocks: u32,
}

/// Input of one launch.
#[derive(Clone, Debug, Default)]
pub(super) struct Reads {
    /// Addresses of each column.
    pub columns: BTreeMap<usize, ColumnReads>,
    /// Address of its morsels; `None` for those that were uploaded with the code.
    pub morsels_at: Option<u64>,
    pub morsels: u64,
    pub vectors: u64,
}

impl Reads {
    /// Describes columns that are on the device as a whole, and morsels that were uploaded with the
    /// code.
    pub fn of_whole(columns: &PipelineColumns, morsels: &[(u32, u32)]) -> Self {
        Self {
            columns: columns.images.iter().map(|(column, image)| (*column, ColumnReads::of(image))).collect(),
            morsels_at: None,
            morsels: morsels.len() as u64,
            vectors: vectors_of(morsels),
        }
    }
}

/// Device addresses of a column that a launch reads.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ColumnReads {
    /// One part for each number that its morsels have.
    pub parts: u64,
    pub code_words: u64,
    /// One entry for each part.
    pub code_first: u64,
    pub code_count: u64,
}

impl ColumnReads {
    /// Describes a whole column.
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

/// Returns the number of vectors of morsels.
pub(super) fn vectors_of(morsels: &[(u32, u32)]) -> u64 {
    morsels.iter().map(|(_, rows)| u64::from(*rows).div_ceil(VECTOR_ROWS as u64)).sum()
}

impl Run<'_> {
    /// Returns the input of a pipeline's kernel source, for columns of these forms.
    fn input<'i>(&self, reading: &Reading<'i>, forms: &'i dyn Fn(usize) -> Vec<u32>) -> Input<'i> {
        let options = &self.executor.options;
        let Reading { plan, tables, built, splits_groups, rows, fold, .. } = *reading;
        let (counts, many_rows, threads) = (self.counts, options.many_rows, options.threads());
        Input { plan, tables, built, splits_groups, forms, rows, counts, many_rows, threads, fold }
    }

    /// Generates a pipeline's kernel source when there is nothing to read.
    pub fn text(&self, reading: &Reading<'_>) -> Result<Generated> {
        generate(&self.input(reading, &|_| Vec::new()))
    }

    /// Returns the columns that a pipeline reads. Columns that are to be on the device as a whole
    /// are brought there.
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

    /// Compiles the kernel for columns of these forms.
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

    /// Uploads the small inputs in one piece: morsels, followed by constant arrays. Returns the
    /// piece and the addresses of the arrays.
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

    /// Runs one launch over columns that are on the device as a whole and waits for it. Fetches the
    /// groups as well, if it `is_last`.
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

    /// Reserves a bit, and a place in a run, for each code that a launch evaluates.
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
            // SAFETY: the target is a word of the status, which only this run uses. Earlier
            // launches in the stream have finished with it by then.
            unsafe { stream.fill_at(status.address + NEXT_UNIT_WORD * 8, 0, 8)? };
        }
        before.record(stream)?;
        if let Some(codes) = &code.of_codes {
            let most: u64 = generated.codes.iter().map(|number| column(number).code_count).max().unwrap_or(0);
            for (piece, number) in code.of_bits.iter().zip(&generated.codes) {
                let bytes = column(number).code_count * CODE_RUN_BYTES;
                // SAFETY: the piece has runs for as many words as the column's codes have. Only
                // this run uses it, and earlier launches in the stream have read it by then.
                unsafe { stream.fill_at(piece.address, 0, bytes as usize)? };
            }
            // SAFETY: as below; the bits are pieces of as many words as the columns' codes have.
            unsafe { codes.launch_words(stream, Grid::of(most), 0, &words)? };
        }
        // SAFETY: the argument consists of the words that the kernel source declares, in their
        // order. Addresses belong to memory of the lengths that its parts state: columns, which are
        // held until the stream has finished; batches, which this stream was made to wait for;
        // pieces of the arena, which only this run uses; and tables that earlier kernels have
        // finished.
        unsafe { code.kernel.launch_words(stream, grid, shared as u32, &words)? };
        Ok(after.record(stream)?)
    }
}

/// Division of a launch's vectors into units and blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shares {
    /// Vectors of a unit (a power of two), and the number of units. The units include those beyond
    /// the rows of their morsel.
    unit_vectors: u64,
    units: u64,
    blocks: u32,
}

impl Shares {
    /// Computes the division for blocks of this many threads, whose warps get units in the given
    /// way.
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
            // If there are few vectors, every multiprocessor gets some, although most of its warps
            // find none.
            let at_once = multiprocessors * (WARPS / warps).max(1);
            blocks = blocks.max(reads.vectors.div_ceil(unit_vectors).min(multiprocessors)).min(at_once);
            // A warp takes empty units, too. A morsel has units of its own, however long they are:
            // longer units leave fewer of them empty.
            while unit_vectors < UNIT_VECTORS && reads.vectors <= reads.morsels * unit_vectors {
                unit_vectors *= 2;
            }
        }
        let units = reads.morsels * (MORSEL_VECTORS / unit_vectors);
        Self { unit_vectors, units, blocks: blocks.clamp(1, most) as u32 }
    }
}

/// Returns the number of copies of the groups in shared memory.
fn copies(generated: &Generated) -> u64 {
    match &generated.sink {
        SinkShape::Groups(groups) => groups.copies(),
        SinkShape::Table | SinkShape::Rows { .. } | SinkShape::Fold => 0,
    }
}

/// Returns morsels as kernels read them: number and rows of each.
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
                    // Units with rows: at least as many as blocks, and enough for all
                    // multiprocessors.
                    let filled = morsels * of_morsel.div_ceil(unit_vectors);
                    assert!(u64::from(blocks) <= filled, "{why}");
                    if of.1 == Units::Taken {
                        assert!(u64::from(blocks) >= vectors.min(MULTIPROCESSORS).min(filled), "{why}");
                        assert!(u64::from(blocks * (of.0 / 32)) <= MULTIPROCESSORS * WARPS, "{why}");
                        // Few units are empty if all morsels are equally short.
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
