//! Measures the transfer rate of columns from host memory to a device.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use onehop_cuda::fused::{ColumnImage, Executor, Images, Options, Outlook, Result as FusedResult};
use onehop_cuda::staging::{Cargo, Failed, Room, Sent, Shape, Stager};
use onehop_cuda::{DeviceBuf, Stream};
use onehop_pipeline::cpu::{Execution, run};
use onehop_pipeline::ir::{Aggregate, Pipeline, Program, Sink};
use onehop_pipeline::{Expr, Source, ViewValues};
use onehop_segment::Plane;
use onehop_segment::packed::VECTOR_ROWS;

use super::star::{Repeated, Star};
use super::{Words, device, sorted};

/// Maximum rows in memory, more than any cache holds. They are repeated as needed.
const MEMORY_ROWS: usize = 1 << 25;
/// Bytes that are transferred without being filled.
const UNFILLED_BYTES: usize = 8 << 30;
/// Bytes of an item: a block of a column.
const ITEM_BYTES: usize = 160 << 10;

/// Cargo whose bytes are never filled.
struct Nothing<'a> {
    batches: usize,
    items: usize,
    device: &'a [DeviceBuf],
}

impl Cargo for Nothing<'_> {
    fn batches(&self) -> usize {
        self.batches
    }

    fn items(&self, _: usize) -> usize {
        self.items
    }

    fn bytes(&self) -> u64 {
        (self.batches * self.items * ITEM_BYTES) as u64
    }

    fn fill(&self, _: usize, _: usize, room: &Room) -> FusedResult<()> {
        room.reserve(ITEM_BYTES);
        Ok(())
    }

    fn send(&self, _: usize, filled: Sent<'_>, stream: &Stream) -> FusedResult<()> {
        let to = &self.device[filled.room.slot()];
        // SAFETY: the buffer is as long as any batch, and has no other user.
        unsafe { filled.copy(to.address(), 0, filled.bytes(), stream)? };
        Ok(())
    }
}

/// No column is on the device, and every morsel takes as many bytes as the first.
#[derive(Debug)]
struct AsTheFirst;

impl Images for AsTheFirst {
    fn column(&self, _: &Arc<dyn Source>, _: usize) -> FusedResult<Option<Arc<ColumnImage>>> {
        Ok(None)
    }

    fn outlook(&self, source: &dyn Source, column: usize, morsels: &[(u32, u32)]) -> FusedResult<Outlook> {
        let outlook = Outlook::of_first(source, column, morsels)?;
        let block = source.load(0, column)?;
        let plane = |plane: Option<Plane<'_>>| {
            plane.map_or(0, |plane| plane.vectors(source.rows(0).div_ceil(VECTOR_ROWS)).len() * 4)
        };
        Ok(match block.view().values {
            ViewValues::Packed { low, high, .. } => {
                Outlook { bytes: vec![plane(low) + plane(high) + 768; morsels.len()], ..outlook }
            }
            _ => outlook,
        })
    }
}

fn rate(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / 1e9 / time.as_secs_f64()
}

/// Returns the rate of the bus in GB/s with a ring that is not filled: the best of several runs.
fn unfilled(stager: &Stager, shape: Shape, repeats: usize) -> Result<f64, String> {
    let items = (shape.batch_bytes / ITEM_BYTES).max(1);
    let shape = Shape { batch_bytes: items * ITEM_BYTES, ..shape };
    let device = (0..shape.slots).map(|_| stager.device_buffer(shape.buffer_bytes())).collect::<Result<Vec<_>, _>>();
    let device = device.map_err(|e| e.to_string())?;
    let batches = UNFILLED_BYTES / (items * ITEM_BYTES);
    let mut best = 0.0f64;
    for _ in 0..repeats {
        let cargo = Nothing { batches, items, device: &device };
        let began = Instant::now();
        let carried = stager.run(&cargo, shape, &AtomicBool::new(false), |_, _| Ok(ControlFlow::Continue(())));
        carried.map_err(|Failed { error, .. }| error.to_string())?;
        best = best.max(rate(cargo.bytes(), began.elapsed()));
    }
    Ok(best)
}

/// Runs the measurements, and returns the number of wrong answers.
pub fn bench(words: &Words, rows: usize) -> Result<usize, String> {
    let (context, nvrtc) = device(words)?;
    let part = rows.clamp(1, MEMORY_ROWS);
    let times = rows.div_ceil(part).max(1);
    let star = Star::new(part, 0.1);
    let facts = Repeated::source(&star.lineorder, times);
    let columns = facts.columns().len();
    println!("rows     {} ({times} times {part}), {columns} columns", times * part);
    let sums = (0..columns).map(|column| Aggregate::Sum(Expr::Register(column))).collect();
    let sink = Sink::Aggregate { keys: vec![], aggregates: sums };
    let pipeline = Pipeline { source: 0, columns: (0..columns).collect(), steps: vec![], sink };
    let program = Program { pipelines: vec![pipeline] };
    let execution = |source: &Arc<dyn Source>| {
        Execution::new(program.clone(), vec![Arc::clone(source)], 1 << 34).map_err(|e| e.to_string())
    };
    let mut expected = sorted(&run(&mut execution(&star.lineorder)?, 16).map_err(|e| e.to_string())?);
    expected.iter_mut().flatten().for_each(|sum| *sum = sum.map(|sum| sum * times as i128));
    let memory = vec![1u8; 8 << 30];
    let mut wrong = 0;
    for batch_mib in &words.batch_mib {
        for threads in &words.threads {
            let shape = Shape { batch_bytes: batch_mib << 20, slots: words.slots, threads: *threads };
            let executor = Executor::new(
                &context,
                &nvrtc,
                None,
                Options { staging: shape, registered_bytes: words.registered_mib << 20, ..Options::default() },
            );
            let stager = executor.stager();
            let empty = unfilled(stager, shape, words.repeats)?;
            let copied = stager.bytes_per_sec(shape, &memory, words.repeats).map_err(|e| e.to_string())? / 1e9;
            let execution = execution(&facts)?;
            let mut best = (0.0f64, String::new());
            for _ in 0..words.repeats {
                let began = Instant::now();
                let answer =
                    executor.run(&execution, &AsTheFirst, &AtomicBool::new(false)).map_err(|e| e.to_string())?;
                let elapsed = began.elapsed();
                let facts = &answer.pipelines[0];
                let streamed = facts.streamed.unwrap_or_default();
                let rate = rate(streamed.bytes, elapsed - facts.compile);
                if sorted(&answer.chunks) != expected {
                    wrong += 1;
                    println!("WRONG");
                }
                if rate > best.0 {
                    let ms = |time: Duration| time.as_secs_f64() * 1e3;
                    let said = format!(
                        "{:.2} GB in {} batches, {:.1} ms, kernels {:.1} ms, waiting {:.1} ms",
                        streamed.bytes as f64 / 1e9,
                        streamed.batches,
                        ms(elapsed),
                        ms(facts.kernel),
                        ms(streamed.waited)
                    );
                    best = (rate, said);
                }
            }
            println!(
                "{batch_mib:>3} MiB, {threads:>2} threads: {empty:.1} GB/s without filling, {copied:.1} with plain copies, \
                 {:.1} streamed ({})",
                best.0, best.1
            );
        }
    }
    Ok(wrong)
}
