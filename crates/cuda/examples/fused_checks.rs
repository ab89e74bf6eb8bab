//! Compares the answers of generated kernels on a GPU with those of the CPU backend, and measures
//! the kernels.
//!
//! ```text
//! cargo run -p onehop-cuda --example fused_checks -- [--gpu N] [--programs N] [--seed N]
//!     [--stream THREADS] [--files DIR]
//! cargo run -p onehop-cuda --example fused_checks --release -- --bench ROWS [--scale F]
//!     [--repeats N] [--blocks N,N] [--wide N] [--only Q2.1]
//! cargo run -p onehop-cuda --example fused_checks --release -- --bench-stream ROWS
//!     [--threads N,N] [--batch-mib N,N] [--slots N] [--registered-mib N]
//! cargo run -p onehop-cuda --example fused_checks --release -- --pool BYTES [--repeats N]
//! ```
//! Checks: random programs over random tables, as in the tests of the CPU backend in
//! `crates/pipeline`, except refused ones, some of them in partitions; and the shapes of star
//! queries. Exits with 1 if an answer is wrong, and with 2 if there is no device to run on. `make
//! test-gpu` runs it, also under compute-sanitizer. With `--stream`, columns are transferred in
//! batches of one morsel by THREADS threads: 0 is the caller's thread alone. With `--files`, tables
//! are files in DIR, which cuFile reads in either mode, and the GPU verifies.
//!
//! Bench: star queries over ROWS rows in device memory, packed as in segments. The rows repeat a
//! part that the CPU evaluates quickly, so that every answer is checked. Prints the medians of the
//! kernels' times, including those that build join tables, and then of each: the kernel that probes
//! the tables, and those that build them.
//!
//! Bench of streams: ROWS rows from host memory, packed as in segments, to a kernel that sums all
//! columns. For comparison, it also measures the ring of pinned buffers without filling, and filled
//! with plain copies. With `--registered-mib`, that much of the blocks' memory is registered with
//! the driver, which copies from there.
//!
//! Pool: join tables and groups of about twice BYTES, dense and hashed, with a limit of BYTES for
//! all memory except columns. Every answer is checked. Prints the number of passes, and their cost
//! compared with a run without the limit.
#![allow(clippy::unwrap_used)]

#[path = "../tests/large/mod.rs"]
mod large;
#[path = "../../pipeline/tests/programs/mod.rs"]
mod programs;
#[path = "../tests/star/mod.rs"]
mod star;
#[path = "fused_checks/streams.rs"]
mod streams;

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use onehop_cuda::fused::{
    Carried, ColumnImage, Error, Executor, Images, Options, Result as FusedResult, RunMemory, Streamed, Uploads,
    WhenFull,
};
use onehop_cuda::staging::Shape;
use onehop_cuda::{Context, Driver, Nvrtc};
use onehop_io::RequestedPath;
use onehop_pipeline::backend::DevicePath;
use onehop_pipeline::cpu::{Execution, ResultColumn, ResultValues, run};
use onehop_pipeline::ir::{self, Sink};
use onehop_pipeline::{Domain, Error as PipelineError, Source};
use programs::naive::expected;
use programs::random::without_refused_aggregates;
use programs::tables::{Row, Where, rows_of, table};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use star::{Repeated, Star};

/// Rows of the part that is repeated.
const PART_ROWS: usize = 1 << 22;

fn main() -> ExitCode {
    let outcome = Words::parse(std::env::args().skip(1)).and_then(|words| match words {
        Words { bench: Some(rows), .. } => bench(&words, rows),
        Words { bench_stream: Some(rows), .. } => streams::bench(&words, rows),
        Words { pool: Some(bytes), .. } => pool(&words, bytes),
        _ => checks(&words),
    });
    match outcome {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("fused_checks: {why}");
            ExitCode::from(2)
        }
    }
}

struct Words {
    gpu: usize,
    programs: usize,
    seed: u64,
    bench: Option<usize>,
    bench_stream: Option<usize>,
    /// Threads that stream the columns of random programs, if they are streamed.
    stream: Option<usize>,
    /// Folder for the tables of random programs, if they are files.
    files: Option<PathBuf>,
    threads: Vec<usize>,
    batch_mib: Vec<usize>,
    slots: usize,
    /// MiB of the blocks' memory that may be registered, for direct copies.
    registered_mib: usize,
    /// Bytes for tables and groups.
    pool: Option<u64>,
    scale: f64,
    repeats: usize,
    /// Blocks for each multiprocessor, one run for each number.
    blocks: Vec<u32>,
    only: Option<String>,
    /// Threads of a block with a bitmap in shared memory.
    wide: u32,
}

impl Words {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut all = Self {
            gpu: 0,
            programs: 300,
            seed: 1,
            bench: None,
            bench_stream: None,
            stream: None,
            files: None,
            threads: vec![0],
            batch_mib: vec![32],
            slots: 4,
            registered_mib: 0,
            pool: None,
            scale: 100.0,
            repeats: 7,
            blocks: vec![16],
            only: None,
            wide: Options::default().wide_threads,
        };
        while let Some(word) = words.next() {
            let value = words.next().ok_or(format!("{word} needs a value"))?;
            let number = |value: &str| value.parse::<u64>().map_err(|_| format!("{word} takes a number"));
            let numbers = |value: &str| -> Result<Vec<usize>, String> {
                value.split(',').map(|one| number(one).map(|one| one as usize)).collect()
            };
            match word.as_str() {
                "--gpu" => all.gpu = number(&value)? as usize,
                "--programs" => all.programs = number(&value)? as usize,
                "--seed" => all.seed = number(&value)?,
                "--bench" => all.bench = Some(number(&value)? as usize),
                "--pool" => all.pool = Some(number(&value)?.max(1 << 16)),
                "--repeats" => all.repeats = number(&value)?.max(1) as usize,
                "--blocks" => all.blocks = numbers(&value)?.into_iter().map(|blocks| blocks.max(1) as u32).collect(),
                "--bench-stream" => all.bench_stream = Some(number(&value)? as usize),
                "--stream" => all.stream = Some(number(&value)? as usize),
                "--files" => all.files = Some(value.into()),
                "--threads" => all.threads = numbers(&value)?,
                "--batch-mib" => all.batch_mib = numbers(&value)?,
                "--registered-mib" => all.registered_mib = number(&value)? as usize,
                "--slots" => all.slots = number(&value)?.max(1) as usize,
                "--scale" => all.scale = value.parse().map_err(|_| "--scale takes a number")?,
                "--wide" => all.wide = number(&value)?.clamp(32, 1024) as u32 / 32 * 32,
                "--only" => all.only = Some(value),
                other => return Err(format!("what is {other}? The head of the file says what there is")),
            }
        }
        Ok(all)
    }
}

fn said(e: &onehop_cuda::Error) -> String {
    e.cure().map_or(e.to_string(), |cure| format!("{e}\n  fix: {cure}"))
}

fn device(words: &Words) -> Result<(Arc<Context>, Arc<Nvrtc>), String> {
    let devices = Driver::load().and_then(|driver| driver.devices()).map_err(|e| said(&e))?;
    let device = devices.get(words.gpu).ok_or("the driver lists no such device")?;
    let nvrtc = Nvrtc::load().map_err(|e| said(&e))?;
    println!("gpu      {}, {} multiprocessors, NVRTC {:?}", device.name, device.multiprocessors, nvrtc.version());
    Ok((device.context().map_err(|e| said(&e))?, nvrtc))
}

/// Streams all columns, with cuFile if possible, and counts the bytes.
#[derive(Debug)]
struct ByCufile(Arc<AtomicU64>);

impl Images for ByCufile {
    fn column(&self, _: &Arc<dyn Source>, _: usize) -> FusedResult<Option<Arc<ColumnImage>>> {
        Ok(None)
    }

    fn path(&self) -> DevicePath {
        DevicePath::Cufile
    }

    fn streamed(&self, _: &Arc<dyn Source>, carried: &Carried) {
        self.0.fetch_add(carried.read_bytes, Relaxed);
    }
}

/// Runs the checks, and returns the number of wrong answers.
fn checks(words: &Words) -> Result<usize, String> {
    let (context, nvrtc) = device(words)?;
    let mut seed = [0; 32];
    seed[..8].copy_from_slice(&words.seed.to_le_bytes());
    let mut runner = TestRunner::new_with_rng(Config::default(), TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
    let facts = proptest::prop_oneof![
        table(0..60, 15),
        table(1000..2500, 15),
        table(2900..4200, 300),
        table(60_000..80_000, 40)
    ];
    let case = (table(0..40, 12), facts, programs::random::program(), proptest::prelude::any::<[bool; 2]>());
    // With and without small bitmaps in shared memory, with and without counted steps.
    let executors: Vec<Executor> = [(0, true, 256), (u64::MAX, false, 128)]
        .map(|(many_rows, counts, threads)| {
            // Batches of one morsel, if columns are streamed.
            let staging = words.stream.map(|threads| Shape { batch_bytes: 1, slots: 3, threads }).unwrap_or_default();
            let options = Options { many_rows, counts, threads, wide_threads: threads, staging, ..Options::default() };
            Executor::new(&context, &nvrtc, None, options)
        })
        .into();
    let folder = words.files.as_ref().map(tempfile::tempdir_in).transpose().map_err(|e| e.to_string())?;
    let by_cufile = Arc::new(AtomicU64::new(0));
    let images: Box<dyn Images> = match (words.stream, &folder) {
        (_, Some(_)) => Box::new(ByCufile(Arc::clone(&by_cufile))),
        (Some(_), None) => Box::new(Streamed),
        (None, None) => Box::new(Uploads::new(&context)),
    };
    let mut refused: BTreeMap<String, usize> = BTreeMap::new();
    let (mut passed, mut failing, mut wrong) = (0, 0, 0);
    while passed + wrong < words.programs {
        let (build, facts, program, in_memory) = case.new_tree(&mut runner).map_err(|e| e.to_string())?.current();
        let program = without_refused_aggregates(program);
        let tables = [build, facts];
        let sources: Vec<Arc<dyn Source>> = tables
            .iter()
            .zip(in_memory)
            .map(|(table, in_memory)| match &folder {
                Some(folder) if !in_memory => table.stored_at(Where::Files(folder.path(), RequestedPath::Buffered)).0,
                _ => table.source(in_memory),
            })
            .collect();
        let domains: Vec<Vec<Domain>> = sources.iter().map(|source| source.columns().to_vec()).collect();
        let Ok(shapes) = ir::validate(&program, &domains) else { continue };
        let Ok(execution) = Execution::new(program.clone(), sources, 1 << 30) else { continue };
        let number = passed + wrong;
        let executor = &executors[number % executors.len()];
        // Every third program in partitions, of all possible numbers.
        let split: Vec<u64> = match number % 3 {
            2 => (0..execution.pipelines()).map(|pipeline| 1 + ((number + 7 * pipeline) % 16) as u64).collect(),
            _ => Vec::new(),
        };
        let never = AtomicBool::new(false);
        let counts = number % 2 == 0;
        let is_right = match executor.run_split(&execution, &*images, &never, counts, RunMemory::default(), &split) {
            Err(Error::Refused(why)) => {
                *refused.entry(why).or_default() += 1;
                continue;
            }
            // The naive interpreter is slow for joins of large tables. For these, the CPU backend
            // serves as reference.
            Ok(answer) if tables[1].rows.len() > 10_000 => match &program.pipelines.last().map(|last| &last.sink) {
                Some(Sink::Top { .. }) => continue,
                _ => run(&mut execution.clone(), 8).is_ok_and(|of_cpu| {
                    let sorted = |chunks: &[Vec<ResultColumn>]| programs::naive::sorted(rows_of(chunks));
                    sorted(&of_cpu) == sorted(&answer.chunks)
                }),
            },
            Ok(answer) => expected(&program, &shapes, &tables).is_ok_and(|all| all.allows(&rows_of(&answer.chunks))),
            Err(Error::Pipeline(PipelineError::OutOfRange { .. } | PipelineError::DivisionByZero { .. })) => {
                failing += 1;
                run(&mut execution.clone(), 8).is_err()
            }
            Err(e) => {
                println!("program {number}: {e}");
                if matches!(e, Error::Device { .. }) {
                    println!("{program}");
                    return Ok(wrong + 1);
                }
                false
            }
        };
        if is_right {
            passed += 1;
        } else {
            wrong += 1;
            println!("program {number} of seed {} is WRONG\n{program}", words.seed);
        }
    }
    println!("programs {passed} passed ({failing} of them fail as they should), {wrong} failed");
    println!("refused  {refused:?}");
    if folder.is_some() {
        let bytes = by_cufile.load(Relaxed);
        println!("cufile   {bytes} bytes read straight to the device");
        // Nothing was read by cuFile, so the intended check did not happen.
        wrong += usize::from(bytes == 0);
    }
    let star = Star::new(300_000, 0.1);
    for (name, program, sources) in star.queries() {
        let mut execution = Execution::new(program, sources, 1 << 30).map_err(|e| e.to_string())?;
        let answer = executors[0].run(&execution, &*images, &AtomicBool::new(false));
        let rows = answer.map(|answer| sorted(&answer.chunks)).map_err(|e| e.to_string())?;
        let is_right = rows == sorted(&run(&mut execution, 8).map_err(|e| e.to_string())?) && !rows.is_empty();
        println!("{name}     {}", if is_right { "passed" } else { "WRONG" });
        passed += usize::from(is_right);
        wrong += usize::from(!is_right);
    }
    println!("fused checks: {passed} passed, {wrong} failed");
    Ok(wrong)
}

fn sorted(chunks: &[Vec<ResultColumn>]) -> Vec<Row> {
    let cell = |column: &ResultColumn, row: usize| {
        let value = match &column.values {
            ResultValues::Int(values) => values[row].into(),
            ResultValues::Wide(values) => values[row],
            other => panic!("{other:?}"),
        };
        column.valid.as_ref().is_none_or(|valid| valid[row]).then_some(value)
    };
    let mut rows: Vec<Row> = Vec::new();
    for chunk in chunks.iter().filter(|chunk| !chunk.is_empty()) {
        rows.extend((0..chunk[0].len()).map(|row| chunk.iter().map(|column| cell(column, row)).collect::<Row>()));
    }
    rows.sort();
    rows
}

/// Images that are kept.
#[derive(Debug)]
struct Kept {
    context: Arc<Context>,
    images: Mutex<HashMap<(usize, usize), Arc<ColumnImage>>>,
}

impl Images for Kept {
    fn column(&self, source: &Arc<dyn Source>, column: usize) -> onehop_cuda::fused::Result<Option<Arc<ColumnImage>>> {
        let key = (Arc::as_ptr(source).addr(), column);
        let mut images = self.images.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(image) = images.get(&key) {
            return Ok(Some(Arc::clone(image)));
        }
        let image = Arc::new(ColumnImage::upload(&self.context, &**source, column)?);
        images.insert(key, Arc::clone(&image));
        Ok(Some(image))
    }
}

fn bench(words: &Words, rows: usize) -> Result<usize, String> {
    let (context, nvrtc) = device(words)?;
    let times = rows.div_ceil(PART_ROWS).max(1);
    println!("rows     {} ({times} times {PART_ROWS}), dimensions of scale {}", times * PART_ROWS, words.scale);
    let star = Star::new(PART_ROWS, words.scale);
    let facts = Repeated::source(&star.lineorder, times);
    let kept = Kept { context: Arc::clone(&context), images: Mutex::default() };
    let mut wrong = 0;
    let runs = words.blocks.iter().map(|blocks| (false, *blocks)).chain([(true, words.blocks[0])]);
    for (counts, blocks) in runs {
        println!("blocks   {blocks} for each multiprocessor{}", if counts { ", steps count their rows" } else { "" });
        let options = Options { counts, blocks, wide_threads: words.wide, ..Options::default() };
        let executor = Executor::new(&context, &nvrtc, None, options);
        for (name, program, mut sources) in star.queries() {
            if words.only.as_ref().is_some_and(|only| only != name) {
                continue;
            }
            let mut part = Execution::new(program.clone(), sources.clone(), 1 << 34).map_err(|e| e.to_string())?;
            let of_part = run(&mut part, 16).map_err(|e| e.to_string())?;
            sources[0] = Arc::clone(&facts);
            let execution = Execution::new(program, sources, 1 << 34).map_err(|e| e.to_string())?;
            let keys = execution.program().pipelines.last().map_or(0, |last| match &last.sink {
                Sink::Aggregate { keys, .. } => keys.len(),
                _ => 0,
            });
            let mut expected = sorted(&of_part);
            for row in &mut expected {
                row[keys..].iter_mut().for_each(|sum| *sum = sum.map(|sum| sum * times as i128));
            }
            let run = || executor.run(&execution, &kept, &AtomicBool::new(false)).map_err(|e| e.to_string());
            let first = run()?;
            let (mut kernels, mut walls, mut facts) = (Vec::new(), Vec::new(), Vec::new());
            let mut of_each = vec![Vec::new(); execution.pipelines()];
            for _ in 0..words.repeats {
                let began = Instant::now();
                let answer = run()?;
                walls.push(began.elapsed());
                kernels.push(answer.pipelines.iter().map(|pipeline| pipeline.kernel).sum::<Duration>());
                facts = answer.pipelines;
                of_each.iter_mut().zip(&facts).for_each(|(times, facts)| times.push(facts.kernel));
            }
            let is_right = sorted(&first.chunks) == expected;
            wrong += usize::from(!is_right);
            let median = |all: &mut Vec<Duration>| {
                all.sort();
                all[all.len() / 2]
            };
            let (kernel, wall) = (median(&mut kernels), median(&mut walls));
            let ms = |time: Duration| time.as_secs_f64() * 1e3;
            let bytes = facts.last().map_or(0, |last| last.column_bytes);
            let mut each: Vec<String> = of_each.iter_mut().map(|times| format!("{:.3}", ms(median(times)))).collect();
            let probe = each.pop().unwrap_or_default();
            println!(
                "{name}  {}  kernels {:.3} ms (probe {probe}, builds {}), end to end {:.3} ms, columns {:.2} GB = {:.0} GB/s if all \
                 of them were read, compiled in {:.0} ms, {} groups",
                if is_right { "right" } else { "WRONG" },
                ms(kernel),
                each.join(" "),
                ms(wall),
                bytes as f64 / 1e9,
                bytes as f64 / 1e9 / kernel.as_secs_f64(),
                ms(first.pipelines.iter().map(|pipeline| pipeline.compile).sum()),
                expected.len(),
            );
            if counts {
                let steps = facts.last().map(|last| last.steps.clone()).unwrap_or_default();
                let steps: Vec<String> =
                    steps.iter().map(|step| format!("{} -> {}", step.rows_in, step.rows_out)).collect();
                println!("      counted: {}", steps.join(", "));
            }
        }
    }
    Ok(wrong)
}

/// Runs queries with too little memory, and returns the number of wrong answers.
fn pool(words: &Words, bytes: u64) -> Result<usize, String> {
    let (context, nvrtc) = device(words)?;
    println!("pool     {bytes} bytes for what is not a column");
    let (mut passed, mut wrong) = (0, 0);
    for (name, program, sources) in [1, 1_000_003].into_iter().flat_map(|apart| large::queries(bytes, apart)) {
        let execution = Execution::new(program, sources, 1 << 36).map_err(|e| e.to_string())?;
        let expected = large::digest(&run(&mut execution.clone(), 16).map_err(|e| e.to_string())?);
        let kept = Kept { context: Arc::clone(&context), images: Mutex::default() };
        for bytes in [u64::MAX, bytes] {
            // A new executor, which has no memory yet.
            let executor = Executor::new(&context, &nvrtc, None, Options { counts: false, ..Options::default() });
            let memory = RunMemory { bytes, when_full: WhenFull::Split };
            let never = AtomicBool::new(false);
            let mut walls = Vec::with_capacity(words.repeats);
            let mut last = None;
            for _ in 0..words.repeats {
                let began = Instant::now();
                last = Some(executor.run_within(&execution, &kept, &never, false, memory).map_err(|e| e.to_string())?);
                walls.push(began.elapsed());
            }
            walls.sort();
            let answer = last.ok_or("no run")?;
            let is_right = large::digest(&answer.chunks) == expected;
            // Within the limit it must have been split. Otherwise the case is meaningless.
            let is_split = answer.pipelines.iter().any(|facts| facts.passes > 1);
            let is_right = is_right && is_split == (bytes != u64::MAX);
            let of = |f: &dyn Fn(&onehop_cuda::fused::PipelineFacts) -> String| {
                answer.pipelines.iter().map(f).collect::<Vec<_>>().join(" ")
            };
            println!(
                "{name}, {}: {}, passes {}, launches {}, kernels {} ms, end to end {:.1} ms, table {} bytes, {} rows",
                if bytes == u64::MAX { "all the memory" } else { "the pool" },
                if is_right { "passed" } else { "WRONG" },
                of(&|facts| facts.passes.to_string()),
                of(&|facts| facts.launches.to_string()),
                of(&|facts| format!("{:.2}", facts.kernel.as_secs_f64() * 1e3)),
                walls[walls.len() / 2].as_secs_f64() * 1e3,
                answer.pipelines[0].table.map_or(0, |table| table.bytes),
                expected.0,
            );
            passed += usize::from(is_right);
            wrong += usize::from(!is_right);
        }
    }
    println!("pool checks: {passed} passed, {wrong} failed");
    Ok(wrong)
}
