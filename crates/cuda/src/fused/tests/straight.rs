//! Columns that are read to the device without processing by the host, by cuFile or [`bounced`].
//! Results are the same as through the host. Damage of the stored data or of the transfer is an
//! error and never a row.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use arrow_array::{ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, StringViewArray};
use onehop_io::{Ledger, LocalFile, ReadAt, RequestedPath};
use onehop_pipeline::backend::{DevicePath, TakenPath};
use onehop_pipeline::cpu::Execution;
use onehop_pipeline::ir::{Aggregate, Program, Sink};
use onehop_pipeline::{Error as PipelineError, SegmentSource, Source};
use onehop_segment::{
    BlockCache, BlockList, ChunkPlace, CodeTable, ColumnType, Segment, SegmentOptions, SegmentWriter,
};

use super::programs::tables::Where;
use super::random::{compare_at, number};
use super::shapes::{options, r, rows_of};
use super::streamed::{in_small_batches, less, one, sums};
use crate::Cufile;
use crate::fake::{self, Answer as Fails, Call, Fault, Machine, Order};
use crate::fused::image::{Carried, ColumnImage, Outlook};
use crate::fused::part::{CodeMeaning, Memory, form, part_of, part_of_place};
use crate::fused::{Answer, Error, Executor, Images, Options, Result};

mod bounced;

/// Streams all columns by a path, and reads nothing to foresee their forms.
#[derive(Debug)]
struct By(DevicePath, Mutex<Vec<Carried>>);

impl By {
    fn new(path: DevicePath) -> Self {
        Self(path, Mutex::default())
    }

    fn carried(&self) -> Carried {
        let all = self.1.lock().unwrap();
        let mut sum = Carried::default();
        for one in &*all {
            sum.copied_bytes += one.copied_bytes;
            sum.read_bytes += one.read_bytes;
            sum.reads += one.reads;
            sum.needed_bytes += one.needed_bytes;
            sum.brought.clone_from(&one.brought);
        }
        sum
    }
}

impl Images for By {
    fn column(&self, _: &Arc<dyn Source>, _: usize) -> Result<Option<Arc<ColumnImage>>> {
        Ok(None)
    }

    fn outlook(&self, _: &dyn Source, _: usize, morsels: &[(u32, u32)]) -> Result<Outlook> {
        Ok(Outlook { forms: vec![], bytes: vec![20 << 10; morsels.len()], codes: 0 })
    }

    fn path(&self) -> DevicePath {
        self.0
    }

    fn streamed(&self, _: &Arc<dyn Source>, carried: &Carried) {
        self.1.lock().unwrap().push(carried.clone());
    }
}

const BLOCK_ROWS: usize = 2048;
const ROWS: usize = 3 * BLOCK_ROWS + 700;
const PACKED: usize = 0;
const WIDE: usize = 1;
const CODES: usize = 2;
const NULLS: usize = 3;
const TEXT: usize = 6;

/// Two segments in files: packed columns of one and of two planes, codes of a table and in steps,
/// some NULLs, blocks of one value and of none, strings with a dictionary, booleans, and doubles,
/// which the host has to decode.
struct Files {
    folder: tempfile::TempDir,
    source: Arc<dyn Source>,
    segments: Vec<Arc<Segment>>,
}

fn batch(from: usize) -> RecordBatch {
    let rows = || (from..from + ROWS).map(|row| row as i64);
    let ints = |of: &dyn Fn(i64) -> Option<i64>| Arc::new(rows().map(of).collect::<Int64Array>()) as ArrayRef;
    let columns: [(&str, ArrayRef); 9] = [
        ("packed", ints(&|row| Some(row * 7919 % 5000))),
        ("wide", ints(&|row| Some(row.wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64) >> 24))),
        ("codes", ints(&|row| Some([3, 1 << 20, -5_000_000_000, 1 << 33, 77][row as usize % 5]))),
        ("nulls", ints(&|row| (row % 7 > 0).then_some(row * 31 % 1000))),
        ("steps", ints(&|row| Some(row % 3 * 1_000_000_000))),
        (
            "blocks",
            ints(&|row| match row as usize % ROWS / BLOCK_ROWS {
                0 => None,
                1 => Some(42),
                _ => (row % 5 > 0).then_some(row % 9),
            }),
        ),
        ("text", Arc::new(rows().map(|row| Some(format!("text {}", row % 6))).collect::<StringViewArray>())),
        ("flag", Arc::new(rows().map(|row| (row % 11 > 0).then_some(row % 3 == 0)).collect::<BooleanArray>())),
        ("double", Arc::new(rows().map(|row| Some(row as f64 / 8.0)).collect::<Float64Array>())),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.map(|(name, array)| (name, array, true))).unwrap()
}

fn types() -> Vec<(usize, ColumnType, bool)> {
    use ColumnType::{Boolean, Float64, Int64, Varchar};
    let types = [Int64, Int64, Int64, Int64, Int64, Int64, Varchar, Boolean, Float64];
    types.into_iter().enumerate().map(|(place, ty)| (place, ty, true)).collect()
}

impl Files {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..2 {
            let batch = batch(number * ROWS);
            let mut writer = SegmentWriter::new(&batch.schema(), SegmentOptions { block_rows: BLOCK_ROWS }).unwrap();
            writer.append(&batch).unwrap();
            let file = LocalFile::create(&path_of(folder.path(), number), RequestedPath::Buffered).unwrap();
            writer.finish(&file, &Ledger::default()).unwrap();
        }
        Self::open(folder)
    }

    /// Opens the files in their current state.
    fn open(folder: tempfile::TempDir) -> Self {
        Self::open_by(folder, BlockCache::new(0), |path| {
            Arc::new(LocalFile::open(path, RequestedPath::Buffered).unwrap())
        })
    }

    /// Opens the files by `open`, with a cache.
    fn open_by(folder: tempfile::TempDir, cache: BlockCache, open: impl Fn(&Path) -> Arc<dyn ReadAt>) -> Self {
        let mut blocks = BlockList::default();
        let segment = |number| Segment::open(open(&path_of(folder.path(), number)), &Ledger::default()).unwrap();
        let segments: Vec<Arc<Segment>> = (0..2).map(|number| Arc::new(segment(number))).collect();
        segments.iter().for_each(|segment| blocks.push_all(segment, 0..segment.blocks()));
        let cache = Arc::new(cache);
        let source = SegmentSource::new("t", Arc::new(blocks), &types(), cache, Arc::default(), 0).unwrap();
        Self { folder, source: Arc::new(source), segments }
    }

    /// Closes the files, changes one of them, and opens them again.
    fn changed(self, number: usize, change: impl FnOnce(&mut Vec<u8>)) -> Self {
        let path = path_of(self.folder.path(), number);
        let mut bytes = fs::read(&path).unwrap();
        change(&mut bytes);
        fs::write(&path, bytes).unwrap();
        Self::open(self.folder)
    }

    fn execution(&self, program: &Program) -> Execution {
        Execution::new(program.clone(), vec![Arc::clone(&self.source)], 1 << 30).unwrap()
    }
}

fn path_of(folder: &Path, number: usize) -> PathBuf {
    folder.join(format!("{number}.seg"))
}

/// Returns a program that reads every column.
fn program() -> Program {
    let aggregates = [0, 1, 2, 3, 4, 5].map(|column| Aggregate::Sum(r(column))).into_iter().chain([
        Aggregate::Max(r(8)),
        Aggregate::Count(r(7)),
        Aggregate::Count(r(5)),
        Aggregate::CountRows,
    ]);
    one(9, vec![less(0, 4900)], Sink::Aggregate { keys: vec![r(TEXT), r(7)], aggregates: aggregates.collect() })
}

fn executor(context: &Arc<crate::Context>, cufile: &Arc<Cufile>, options: Options) -> Executor {
    Executor::new(context, &fake::nvrtc(), None, options).with_cufile(cufile)
}

fn run(executor: &Executor, files: &Files, program: &Program, images: &By) -> Result<Answer> {
    executor.run(&files.execution(program), images, &AtomicBool::new(false))
}

fn expected(files: &Files, program: &Program) -> Vec<Vec<Option<i128>>> {
    rows_of(&onehop_pipeline::cpu::run(&mut files.execution(program), 1).unwrap())
}

/// With one thread and with several, on devices that are as late or as early as possible, and with
/// short transfers.
#[test]
fn every_form_comes_straight_from_its_file() {
    let files = Files::new();
    let program = program();
    let expected = expected(&files, &program);
    for order in [Order::Late, Order::KernelsFirst, Order::CopiesFirst] {
        let (machine, context) = Machine::start();
        machine.set_order(order);
        {
            let cufile = fake::open_cufile(&context);
            for threads in [0, 3] {
                let executor = executor(&context, &cufile, in_small_batches(threads));
                let images = By::new(DevicePath::Cufile);
                let answer = run(&executor, &files, &program, &images).unwrap();
                assert_eq!(rows_of(&answer.chunks), expected);
                let carried = images.carried();
                let brought = carried.brought.unwrap();
                assert_eq!((brought.path, brought.bytes), (TakenPath::Compat, carried.read_bytes));
                // All blocks except the doubles.
                let blocks = |column: usize| files.segments.iter().map(move |segment| segment.all_stored_bytes(column));
                let stored: u64 = (0..8).flat_map(blocks).sum();
                assert_eq!(carried.needed_bytes, stored);
                assert!(carried.read_bytes >= stored);
                assert!(carried.copied_bytes >= 16 * ROWS as u64);
            }
        }
        assert!(machine.problems().is_empty(), "{:?}", machine.problems());
        assert!(machine.living().is_empty(), "{:?}", machine.living());
    }
}

/// The parts that kernels read do not depend on the path of the planes.
#[test]
fn parts_are_those_of_the_host() {
    #[derive(Default)]
    struct Nowhere;
    impl Memory for Nowhere {
        fn put(&mut self, _: &[u8]) -> Result<u64> {
            Ok(1)
        }

        fn meaning(&mut self, table: &CodeTable) -> Result<CodeMeaning<u64>> {
            CodeMeaning::of(table).with_table(|| Ok(7))
        }
    }
    let files = Files::new();
    let mut forms = std::collections::BTreeSet::new();
    for column in 0..8 {
        for morsel in 0..files.source.morsels() {
            let stored = files.source.stored_place(morsel, column).unwrap();
            let block = files.source.load(morsel, column).unwrap();
            let domain = &files.source.columns()[column];
            let by_host = part_of(&block, files.source.rows(morsel), domain, &mut Nowhere).unwrap();
            let there = |chunk: Option<ChunkPlace>| u64::from(chunk.is_some());
            let place = &stored.place;
            let planes =
                crate::direct::Planes { low: there(place.low), high: there(place.high), valid: there(place.validity) };
            let straight = part_of_place(place, stored.meaning, planes, &mut Nowhere).unwrap();
            assert_eq!(straight, by_host, "column {column} of block {morsel}");
            forms.insert(form::Layout::of(straight.form));
        }
    }
    assert!(forms.len() >= 7, "{forms:?}");
    // Doubles cannot be read straight, either.
    assert!(files.source.stored_place(0, 8).is_none());
}

#[test]
fn random_programs_by_cufile_give_what_the_naive_interpreter_gives() {
    assert!(bytes_of_random_programs(DevicePath::Cufile, RequestedPath::Buffered, 6) > 0);
}

/// Compares random programs over files opened by a path. Returns the number of bytes that bypassed
/// the host.
fn bytes_of_random_programs(path: DevicePath, requested: RequestedPath, seed: u64) -> u64 {
    let (machine, context) = Machine::start();
    let mut read = 0;
    {
        let cufile = fake::open_cufile(&context);
        let executor = executor(&context, &cufile, Options { counts: false, ..in_small_batches(3) });
        let folder = tempfile::tempdir().unwrap();
        let (wanted, seed) = (number("ONEHOP_GPU_PROGRAMS", 20), number("ONEHOP_GPU_SEED", seed));
        compare_at(wanted, seed, Where::Files(folder.path(), requested), |execution, _, _| {
            let images = ByFirst(By::new(path));
            let answer = executor.run(execution, &images, &AtomicBool::new(false));
            read += images.0.carried().read_bytes;
            answer
        });
    }
    assert!(machine.problems().is_empty(), "{:?}", machine.problems());
    read
}

/// As `By`, with the forms of the first morsels, for fewer kernels.
#[derive(Debug)]
struct ByFirst(By);

impl Images for ByFirst {
    fn column(&self, _: &Arc<dyn Source>, _: usize) -> Result<Option<Arc<ColumnImage>>> {
        Ok(None)
    }

    fn path(&self) -> DevicePath {
        self.0.0
    }

    fn streamed(&self, source: &Arc<dyn Source>, carried: &Carried) {
        self.0.streamed(source, carried);
    }
}

/// Returns the chunks of a block of a column, with their names.
fn chunks(segment: &Segment, column: usize, block: usize) -> Vec<(&'static str, ChunkPlace)> {
    let place = segment.block_place(column, block).unwrap();
    let all = [("low", place.low), ("high", place.high), ("validity", place.validity)];
    all.into_iter().filter_map(|(name, chunk)| Some((name, chunk?))).collect()
}

#[test]
fn a_flipped_bit_in_any_chunk_is_an_error_that_names_the_block() {
    let (machine, context) = Machine::start();
    let files = Files::new();
    let program = program();
    let expected = expected(&files, &program);
    {
        let cufile = fake::open_cufile(&context);
        let executor = executor(&context, &cufile, in_small_batches(2));
        let mut kinds = std::collections::BTreeSet::new();
        for (segment, column, block) in
            [(0, PACKED, 0), (1, PACKED, 3), (0, WIDE, 1), (1, CODES, 2), (0, NULLS, 2), (1, TEXT, 1)]
        {
            let of = &files.segments[segment];
            for (kind, chunk) in chunks(of, column, block) {
                kinds.insert(kind);
                let file =
                    OpenOptions::new().read(true).write(true).open(path_of(files.folder.path(), segment)).unwrap();
                // The first byte, one in the middle, the last.
                for at in [0, chunk.bytes as u64 / 2 + 1, chunk.bytes as u64 - 1] {
                    let mut byte = [0];
                    file.read_exact_at(&mut byte, chunk.offset + at).unwrap();
                    file.write_all_at(&[byte[0] ^ 0x10], chunk.offset + at).unwrap();
                    let outcome = run(&executor, &files, &program, &By::new(DevicePath::Cufile));
                    file.write_all_at(&byte, chunk.offset + at).unwrap();
                    let Err(Error::Pipeline(error)) = &outcome else {
                        panic!("{kind} of column {column}: {outcome:?}")
                    };
                    let (said, name) = (error.to_string(), &of.column(column).name);
                    assert!(said.contains("do not match their checksum") && said.contains(name), "{said}");
                    assert!(said.contains(&format!("{segment}.seg")) && said.contains(&block.to_string()), "{said}");
                }
            }
        }
        assert_eq!(kinds.len(), 3);
        let answer = run(&executor, &files, &program, &By::new(DevicePath::Cufile)).unwrap();
        assert_eq!(rows_of(&answer.chunks), expected);
    }
    assert!(machine.problems().is_empty(), "{:?}", machine.problems());
    assert!(machine.living().is_empty(), "{:?}", machine.living());
}

/// Writes correct checksums of a chunk, of the footer and of the trailer, as a forger would.
fn sign(bytes: &mut [u8], segment: &Segment, column: usize, block: usize) {
    let word = |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
    let trailer = bytes.len() - 64;
    let (footer, footer_bytes) = (word(bytes, trailer), word(bytes, trailer + 8));
    let columns = segment.schema().fields().len();
    let record = footer + 64 + 128 * columns + 128 * (column * segment.blocks() + block);
    for chunk in (0..4).map(|chunk| record + 48 + 16 * chunk) {
        let (offset, len) = (word(bytes, chunk), word(bytes, chunk + 8) & 0xffff_ffff);
        let crc = if len > 0 { crc32c::crc32c(&bytes[offset..offset + len]) } else { 0 };
        bytes[chunk + 12..chunk + 16].copy_from_slice(&crc.to_le_bytes());
    }
    let crc = crc32c::crc32c(&bytes[footer..footer + footer_bytes]);
    bytes[trailer + 32..trailer + 36].copy_from_slice(&crc.to_le_bytes());
    bytes[trailer + 36..trailer + 40].fill(0);
    let crc = crc32c::crc32c(&bytes[trailer..]);
    bytes[trailer + 36..trailer + 40].copy_from_slice(&crc.to_le_bytes());
}

/// Values outside zone map or dictionary, and NULLs missing from the count, with correct checksums.
#[test]
fn what_was_forged_is_found() {
    let (machine, context) = Machine::start();
    {
        let cufile = fake::open_cufile(&context);
        let executor = executor(&context, &cufile, in_small_batches(2));
        let program = program();
        for (column, block, kind, said) in [
            (PACKED, 1, "low", "zone map"),
            (WIDE, 2, "high", "zone map"),
            (CODES, 0, "low", "dictionary"),
            (TEXT, 3, "low", "dictionary"),
            (NULLS, 1, "validity", "NULL"),
        ] {
            let files = Files::new();
            let segment = Arc::clone(&files.segments[0]);
            let places = chunks(&segment, column, block);
            let (_, chunk) = places.iter().find(|(of, _)| *of == kind).unwrap();
            let files = files.changed(0, |bytes| {
                let at = chunk.offset as usize;
                // All bits of a row's value; for validity, a bit that was not set.
                match kind {
                    "validity" => bytes[at..at + 4].fill(0xff),
                    _ => bytes[at..at + chunk.bytes].fill(0xff),
                }
                sign(bytes, &segment, column, block);
            });
            // The forgery is good enough that no other check fails.
            let by_host = run(&executor, &files, &program, &By::new(DevicePath::Staged)).unwrap_err();
            let error = run(&executor, &files, &program, &By::new(DevicePath::Cufile)).unwrap_err();
            assert!(matches!(error, Error::Pipeline(_)), "{error}");
            assert_eq!(error.to_string(), by_host.to_string());
            assert!(error.to_string().contains(said), "{error}");
        }
    }
    assert!(machine.problems().is_empty(), "{:?}", machine.problems());
}

/// Failing driver calls, a cancellation, and a truncated file are errors, and the next run
/// succeeds.
fn calls_fail_and_files_end(machine: &Machine, files: &Files, executor: &Executor, path: DevicePath) {
    let program = program();
    let expected = expected(files, &program);
    let run = || run(executor, files, &program, &By::new(path));
    let again = || assert_eq!(rows_of(&run().unwrap().chunks), expected);
    for call in [Call::Copy, Call::Record, Call::Wait] {
        for at in [0, 1, 5, 9, 14] {
            machine.set_faults(&[Fault { call, at, lasts: false, answer: Fails::Code(700) }]);
            let error = run().unwrap_err();
            assert!(matches!(&error, Error::Device { .. }) && error.to_string().contains("700"), "{error}");
        }
    }
    machine.set_faults(&[]);
    again();
    let cancelled = executor.run(&files.execution(&program), &By::new(path), &AtomicBool::new(true));
    assert!(matches!(cancelled, Err(Error::Pipeline(PipelineError::Cancelled))));
    // The file itself.
    let chunk = chunks(&files.segments[1], PACKED, 2)[0].1;
    let cut = path_of(files.folder.path(), 1);
    let whole = fs::read(&cut).unwrap();
    let file = OpenOptions::new().write(true).open(&cut).unwrap();
    file.set_len(chunk.offset + 512).unwrap();
    let error = run().unwrap_err();
    assert!(error.to_string().contains("cut off") && error.to_string().contains("1.seg"), "{error}");
    file.write_all_at(&whole, 0).unwrap();
    again();
}

#[test]
fn whatever_fails_on_the_way_is_an_error_of_the_device() {
    let (machine, context) = Machine::start();
    let files = Files::new();
    let program = program();
    let expected = expected(&files, &program);
    {
        let cufile = fake::open_cufile(&context);
        let executor = executor(&context, &cufile, in_small_batches(2));
        let run = || run(&executor, &files, &program, &By::new(DevicePath::Cufile));
        let again = || assert_eq!(rows_of(&run().unwrap().chunks), expected);
        // Every run has this many transfers. Their order determines which of them are short and
        // repeated.
        let images = By::new(DevicePath::Cufile);
        executor.run(&files.execution(&program), &images, &AtomicBool::new(false)).unwrap();
        let reads = images.carried().reads;
        assert!(reads > 20, "{reads}");
        for at in (0..reads).step_by(3) {
            for (answer, said) in
                [(Fails::System(libc::EIO), "Input/output error"), (Fails::Code(5011), "5011"), (Fails::End, "cut off")]
            {
                machine.set_faults(&[Fault { call: Call::Transfer, at, lasts: false, answer }]);
                let error = run().unwrap_err();
                assert!(matches!(&error, Error::Device { .. }) && error.to_string().contains(said), "{error}");
            }
            machine.set_faults(&[Fault { call: Call::Transfer, at, lasts: true, answer: Fails::Short(4096) }]);
            again();
        }
        calls_fail_and_files_end(machine, &files, &executor, DevicePath::Cufile);
    }
    assert!(machine.problems().is_empty(), "{:?}", machine.problems());
    assert!(machine.living().is_empty(), "{:?}", machine.living());
}

/// A device with too little memory for all slots, or none for the reads.
#[test]
fn with_less_memory_there_are_fewer_slots() {
    let (machine, context) = Machine::start();
    let files = Files::new();
    let program = one(2, vec![], sums(2));
    let expected = expected(&files, &program);
    {
        let cufile = fake::open_cufile(&context);
        let (mut ran, mut failed) = (0, 0);
        for lasts in [false, true] {
            for at in 0..12 {
                let executor = executor(&context, &cufile, in_small_batches(0));
                machine.set_faults(&[Fault { call: Call::Allocate, at, lasts, answer: Fails::Code(2) }]);
                match run(&executor, &files, &program, &By::new(DevicePath::Cufile)) {
                    Ok(answer) => {
                        assert_eq!(rows_of(&answer.chunks), expected);
                        ran += 1;
                    }
                    Err(error) => {
                        assert!(error.is_out_of_memory(), "{error}");
                        failed += 1;
                    }
                }
                machine.set_faults(&[]);
            }
        }
        assert!(ran > 5 && failed > 2, "{ran}, {failed}");
    }
    assert!(machine.problems().is_empty(), "{:?}", machine.problems());
    assert!(machine.living().is_empty(), "{:?}", machine.living());
}

/// The requested path and the path taken differ, and only the latter is reported.
#[test]
fn paths_are_what_cufile_has_counted() {
    let (machine, context) = Machine::start();
    let files = Files::new();
    let program = one(2, vec![], sums(2));
    let rows = expected(&files, &program);
    {
        // Without O_DIRECT nothing is direct, and cuFile reads through the page cache.
        let is_past = LocalFile::open(&path_of(files.folder.path(), 0), RequestedPath::HostDirect).is_ok();
        for (is_direct, path, taken) in [
            (false, DevicePath::Auto, Some((TakenPath::Staged, false))),
            (false, DevicePath::Staged, None),
            (false, DevicePath::Cufile, Some((TakenPath::Compat, true))),
            (true, DevicePath::Auto, Some((TakenPath::Direct, true))),
            (true, DevicePath::Direct, Some((TakenPath::Direct, true))),
            (true, DevicePath::Staged, None),
        ] {
            machine.set_direct(is_direct);
            // Files are registered again.
            let executor = executor(&context, &fake::open_cufile(&context), options());
            let images = By::new(path);
            let answer = run(&executor, &files, &program, &images);
            if is_direct && !is_past {
                assert!(path != DevicePath::Direct || answer.is_err());
                continue;
            }
            assert_eq!(rows_of(&answer.unwrap().chunks), rows);
            let Carried { read_bytes, brought, .. } = images.carried();
            assert_eq!(brought.as_ref().map(|brought| (brought.path, brought.bytes > 0)), taken, "{path:?}");
            assert_eq!(read_bytes, brought.map_or(0, |brought| brought.bytes));
        }
        machine.set_direct(false);
        let executor = executor(&context, &fake::open_cufile(&context), options());
        let error = run(&executor, &files, &program, &By::new(DevicePath::Direct)).unwrap_err();
        assert!(matches!(error, Error::Device { .. }) && error.to_string().contains("gpu.path = 'direct'"), "{error}");
        // Data outside files comes through the host, unless the path is `direct`.
        let source = super::shapes::stored(&[(0..3000).map(Some).collect()], 3000, 1024);
        let execution = Execution::new(one(1, vec![], sums(1)), vec![source], 1 << 30).unwrap();
        let no = AtomicBool::new(false);
        let error = executor.run(&execution, &By::new(DevicePath::Direct), &no).unwrap_err();
        assert!(error.to_string().contains("no file of this machine"), "{error}");
        assert!(executor.run(&execution, &By::new(DevicePath::Cufile), &no).is_ok());
    }
    assert!(machine.problems().is_empty(), "{:?}", machine.problems());
    assert!(machine.living().is_empty(), "{:?}", machine.living());
}

/// A commit may remove files that a query still reads.
#[test]
fn a_removed_file_is_read_by_the_host_but_for_who_insists() {
    let (machine, context) = Machine::start();
    let files = Files::new();
    let program = program();
    let expected = expected(&files, &program);
    let read_bytes = || {
        let executor = executor(&context, &fake::open_cufile(&context), options());
        let images = By::new(DevicePath::Cufile);
        assert_eq!(rows_of(&run(&executor, &files, &program, &images).unwrap().chunks), expected);
        images.carried().read_bytes
    };
    {
        let all = read_bytes();
        fs::remove_file(path_of(files.folder.path(), 0)).unwrap();
        let rest = read_bytes();
        assert!(rest > 0 && rest < all, "{rest} of {all}");
        let executor = executor(&context, &fake::open_cufile(&context), options());
        let error = run(&executor, &files, &program, &By::new(DevicePath::Direct)).unwrap_err().to_string();
        assert!(error.contains("0.seg was removed") || error.contains("cuFile is not direct here"), "{error}");
    }
    assert!(machine.problems().is_empty(), "{:?}", machine.problems());
    assert!(machine.living().is_empty(), "{:?}", machine.living());
}

/// Each file takes descriptors. Idle files are closed to make room.
#[test]
fn where_no_more_files_can_be_open_idle_ones_are_closed() {
    let (machine, context) = Machine::start();
    let (idle, files) = (Files::new(), Files::new());
    let program = program();
    let expected = expected(&files, &program);
    let full = |lasts| Fault { call: Call::Open, at: 0, lasts, answer: Fails::Code(5031) };
    {
        let executor = executor(&context, &fake::open_cufile(&context), options());
        run(&executor, &idle, &program, &By::new(DevicePath::Cufile)).unwrap();
        let open = || machine.living().iter().filter(|what| **what == "a file").count();
        assert_eq!(open(), 2);
        machine.set_faults(&[full(false)]);
        let answer = run(&executor, &files, &program, &By::new(DevicePath::Cufile)).unwrap();
        assert_eq!((rows_of(&answer.chunks), open()), (expected, 2));
        machine.set_faults(&[full(true)]);
        let error = run(&executor, &Files::new(), &program, &By::new(DevicePath::Cufile)).unwrap_err().to_string();
        assert!(error.contains("gpu.path = 'cufile'") && error.contains("descriptor"), "{error}");
        machine.set_faults(&[]);
    }
    assert!(machine.problems().is_empty(), "{:?}", machine.problems());
    assert!(machine.living().is_empty(), "{:?}", machine.living());
}
