//! A worker: one thread's part in a stage. It takes morsels, runs their rows through the steps, and
//! keeps its own sink.
//!
//! ```text
//! morsel ─► vector ─► screens: a bit per row, nothing decoded ─┐
//!                     vector ─► ...                            ├─► frame ─► steps ─► frame ─► sink
//!                     vector ─► ...                            ┘
//! ```
//! A *frame* holds up to a vector's worth of live rows, from as many vectors as it takes to fill
//! it. It has the row numbers and the registers loaded so far, always compacted, so every kernel is
//! a plain loop over live rows. A register is loaded when it is first needed, for the rows that are
//! still live. This is the whole of late materialization. Filters and probes run in the order that
//! removes rows most cheaply, as measured on some vectors and frames. As many of the leading ones
//! as possible are screens.

mod matches;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use onehop_segment::packed::{LANES, Mask};

use super::clock::{Clock, Work};
use super::grouper::Grouper;
use super::kernels;
use super::keys::KeyScratch;
use super::order::Order;
use super::output::{ResultColumn, ResultValues};
use super::screen::{self, Among, Answer, Screen};
use super::stage::{CompiledSink, Register, Stage, StepKind};
use super::table::{Collected, NOTHING};
use super::top::Top;
use super::vector::{Data, Vector};
use crate::block::{Block, Rows, Scratch};
use crate::budget::{Holder, Room};
use crate::ir::JoinKind;
use crate::{Domain, Error, Result, VECTOR_ROWS};

/// Periods of timed vectors and frames: for the first ones, and for those after them.
const SAMPLES: [u64; 2] = [8, 64];
/// Number of vectors or frames with the shorter period.
const FIRST: u64 = 512;
/// Most rows that are handed over at a time.
const CHUNK_ROWS: usize = 8 * VECTOR_ROWS;
/// Number of remaining rows of a vector from which they form a frame of their own: compressing them
/// is faster than picking them.
const MANY: usize = 256;

/// A worker of a stage. [`super::Execution::finish`] takes its result.
#[derive(Debug)]
pub struct Worker {
    stage: Arc<Stage>,
    /// Rows that passed the screens, then one more frame for every probe that multiplies rows.
    frames: Vec<Frame>,
    /// Loaded columns of the current morsel.
    blocks: Vec<Option<Block>>,
    /// For each step that is a screen: the passing rows of the current morsel, once known.
    answers: Vec<Option<Answer>>,
    /// Screen of the values that may still be among the first rows, once there is a threshold.
    threshold: Option<Screen>,
    morsel: usize,
    /// True if some rows of the morsel are deleted.
    has_deleted: bool,
    /// Position of the current morsel in the reading order.
    at: usize,
    order: Order,
    vectors_seen: u64,
    frames_seen: u64,
    counts: Vec<(u64, u64)>,
    clock: Clock,
    scratch: Box<WorkerScratch>,
    /// Set when the client no longer wants the answer.
    cancelled: Arc<AtomicBool>,
    /// Consumer of the rows of a collecting sink, which bounds their number.
    taker: Option<Taker>,
    pub(super) sink: SinkState,
}

/// Consumer of rows.
struct Taker(Box<dyn FnMut(Vec<ResultColumn>) -> Result<()> + Send>);

impl fmt::Debug for Taker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Taker")
    }
}

/// Temporary buffers of steps, allocated once.
#[derive(Debug)]
struct WorkerScratch {
    mask: Mask,
    step_mask: Mask,
    keep: [u8; VECTOR_ROWS],
    found: [u8; VECTOR_ROWS],
    picked: kernels::Places,
    keys: KeyScratch,
    source: Scratch,
}

#[derive(Debug)]
pub(super) enum SinkState {
    Build(Collected, Room),
    Aggregate(Box<Grouper>),
    Collect { columns: Vec<ResultColumn>, rows: usize },
    Top(Box<Top>),
}

#[derive(Debug)]
struct Frame {
    vectors: Vec<Vector>,
    /// True for registers that are loaded.
    loaded: Vec<bool>,
    /// The rows, counted from the morsel's first row; unused if they are the first `n` of a vector.
    rows: [u16; VECTOR_ROWS],
    n: usize,
    vector: Option<usize>,
    /// The vector and its mask, if the rows are all those of one vector whose bit is set.
    masked: Option<(usize, Mask)>,
    /// Places that each step's probe found, and a flag per step that they are valid for these rows.
    places: Vec<Option<Box<[i32; VECTOR_ROWS]>>>,
    is_placed: Vec<bool>,
}

impl Worker {
    /// Creates a worker of a stage. It stops with [`Error::Cancelled`] after `cancelled` is set.
    pub fn new(stage: &Arc<Stage>, cancelled: &Arc<AtomicBool>) -> Self {
        let sink = match &stage.sink {
            CompiledSink::Build { payload, .. } => {
                let payload: Vec<Domain> = payload.iter().map(|(_, domain)| domain.clone()).collect();
                SinkState::Build(Collected::new(&payload), stage.budget.room("a join table", Holder::Keeps))
            }
            CompiledSink::Aggregate { .. } => {
                SinkState::Aggregate(Box::new(Grouper::new(&stage.budget, &stage.spilled, cancelled, 0)))
            }
            CompiledSink::Collect { columns, .. } => SinkState::Collect { columns: empty(columns), rows: 0 },
            CompiledSink::Top { plan, .. } => SinkState::Top(Box::new(Top::new(plan, &stage.budget))),
        };
        Self {
            stage: Arc::clone(stage),
            frames: vec![Frame::new(stage)],
            blocks: (0..stage.registers.len()).map(|_| None).collect(),
            answers: vec![None; stage.steps.len()],
            threshold: None,
            morsel: 0,
            has_deleted: false,
            at: 0,
            order: Order::new(stage),
            vectors_seen: 0,
            frames_seen: 0,
            counts: vec![(0, 0); stage.counts.len()],
            clock: Clock::new(stage.steps.len()),
            scratch: Box::new(WorkerScratch {
                mask: [0; LANES],
                step_mask: [0; LANES],
                keep: [0; VECTOR_ROWS],
                found: [0; VECTOR_ROWS],
                picked: [0; VECTOR_ROWS + 32],
                keys: KeyScratch::new(),
                source: Scratch::new(),
            }),
            cancelled: Arc::clone(cancelled),
            taker: None,
            sink,
        }
    }

    /// Hands the rows of a collecting sink over to `taker`. This happens whenever there are some
    /// thousands of rows, and at the end of every morsel, since joins can multiply a morsel's rows
    /// without bound. An error of the taker ends the worker.
    #[must_use]
    pub fn with_taker(mut self, taker: impl FnMut(Vec<ResultColumn>) -> Result<()> + Send + 'static) -> Self {
        self.taker = Some(Taker(Box::new(taker)));
        self
    }

    /// Returns a worker of another pass of its stage, with the same sink and taker.
    #[must_use]
    pub fn pass(self, stage: &Arc<Stage>) -> Self {
        let cancelled = Arc::clone(&self.cancelled);
        Self { sink: self.sink, taker: self.taker, ..Self::new(stage, &cancelled) }
    }

    /// Processes the next morsel; `None` if there are none left. Returns the rows that a collecting
    /// sink has got from it, unless a taker takes them.
    ///
    /// # Errors
    /// Those of the source, and of expressions that fail for a row; [`Error::Cancelled`].
    pub fn step(&mut self) -> Result<Option<Vec<ResultColumn>>> {
        let stage = Arc::clone(&self.stage);
        self.clock.start();
        let outcome = self.carry(&stage);
        if !matches!(outcome, Ok(Some(_))) {
            self.clock.tell(&stage.times);
        }
        outcome
    }

    fn carry(&mut self, stage: &Stage) -> Result<Option<Vec<ResultColumn>>> {
        let Some((at, morsel)) = stage.take() else { return Ok(None) };
        (self.at, self.morsel) = (at, morsel);
        if self.is_too_late(stage) {
            stage.ruled_out(at);
            return Ok(Some(Vec::new()));
        }
        self.blocks.iter_mut().for_each(|block| *block = None);
        self.answers.fill(None);
        self.has_deleted = stage.source.deleted(morsel).is_some();
        // Waiting rows have passed the current screens, so the order is fixed for a morsel.
        self.order.reconsider(stage);
        let rows = stage.source.rows(morsel);
        for vector in 0..rows.div_ceil(VECTOR_ROWS) {
            self.take(stage, vector, (rows - vector * VECTOR_ROWS).min(VECTOR_ROWS))?;
        }
        self.flush(stage)?;
        stage.finished(at);
        self.tell_counts(stage);
        match self.taker {
            Some(_) => self.hand_over(stage, 1).map(|()| Some(Vec::new())),
            None => Ok(Some(self.collected(stage))),
        }
    }

    /// Returns true if no row of the morsel can be among the first in an order. Otherwise updates
    /// the threshold's screen.
    fn is_too_late(&mut self, stage: &Stage) -> bool {
        let (CompiledSink::Top { plan, .. }, SinkState::Top(top)) = (&stage.sink, &mut self.sink) else { return false };
        let Some((step, _)) = plan.early else { return false };
        if let (StepKind::Threshold(register), Some(passing)) = (&stage.steps[step].kind, top.passing(plan)) {
            self.threshold = Some(Screen::of_run(*register, passing.interval, passing.null));
        }
        top.skips(plan, &*stage.source, self.morsel)
    }

    fn tell_counts(&mut self, stage: &Stage) {
        for (counts, (rows_in, rows_out)) in stage.counts.iter().zip(&mut self.counts) {
            counts.add(std::mem::take(rows_in), std::mem::take(rows_out));
        }
    }

    /// Takes the rows that a collecting sink has got so far.
    fn collected(&mut self, stage: &Stage) -> Vec<ResultColumn> {
        match (&mut self.sink, &stage.sink) {
            (SinkState::Collect { columns, rows }, CompiledSink::Collect { columns: shape, .. }) => {
                *rows = 0;
                std::mem::replace(columns, empty(shape))
            }
            _ => Vec::new(),
        }
    }

    /// Hands over the rows of a collecting sink, if there are at least `least` and a taker.
    fn hand_over(&mut self, stage: &Stage, least: usize) -> Result<()> {
        if self.taker.is_none() || !matches!(self.sink, SinkState::Collect { rows, .. } if rows >= least) {
            return Ok(());
        }
        // The taker may not take any later rows.
        self.tell_counts(stage);
        let began = Instant::now();
        let chunk = self.collected(stage);
        let outcome = self.taker.as_mut().map_or(Ok(()), |taker| (taker.0)(chunk));
        self.clock.handed_over(began);
        outcome
    }

    /// Returns the rows of the last processed morsel.
    pub fn morsel_rows(&self) -> usize {
        self.stage.source.live_rows(self.morsel)
    }

    /// Returns the bytes that the sink has taken.
    pub fn bytes(&self) -> usize {
        match &self.sink {
            SinkState::Build(collected, _) => collected.bytes(),
            SinkState::Aggregate(grouper) => grouper.bytes(),
            SinkState::Collect { .. } => 0,
            SinkState::Top(top) => top.bytes(),
        }
    }

    /// Adds those of a vector's `n` rows that pass the screens to the waiting rows.
    fn take(&mut self, stage: &Stage, vector: usize, n: usize) -> Result<()> {
        if self.cancelled.load(Relaxed) {
            return Err(Error::Cancelled);
        }
        self.clock.screens(n);
        let kept = self.screen(stage, vector, n)?;
        if kept == 0 {
            self.clock.stop();
            return Ok(());
        }
        // A whole vector is also a frame of its own, however short: waiting rows go first.
        let is_alone = kept >= MANY || kept == n;
        if is_alone || self.frames[0].n + kept > VECTOR_ROWS {
            self.flush(stage)?;
        }
        let frame = &mut self.frames[0];
        if kept == n {
            (frame.vector, frame.n) = (Some(vector), n);
            return self.flush(stage);
        }
        let WorkerScratch { mask, picked, .. } = &mut *self.scratch;
        frame.masked = is_alone.then_some((vector, *mask));
        kernels::places_of_mask(mask, (vector * VECTOR_ROWS) as u16, picked);
        frame.rows[frame.n..][..kept].copy_from_slice(&picked[..kept]);
        frame.n += kept;
        if is_alone {
            return self.flush(stage);
        }
        // Waiting rows are sparse: their values are prefetched while other rows are screened.
        for register in &self.order.first_columns {
            loaded(&mut self.blocks, stage, self.at, *register, &mut self.clock)?.prefetch(&picked[..kept]);
        }
        self.clock.stop();
        Ok(())
    }

    /// Computes the mask of a vector's rows that exist and pass the screens. Returns their number.
    fn screen(&mut self, stage: &Stage, vector: usize, n: usize) -> Result<usize> {
        self.vectors_seen += 1;
        let is_timed = is_sample(self.vectors_seen);
        let WorkerScratch { mask, step_mask, source: scratch, .. } = &mut *self.scratch;
        mask.fill(u32::MAX);
        screen::trim(mask, n);
        let mut kept = n;
        if self.has_deleted
            && let Some(deleted) = stage.source.deleted(self.morsel).and_then(|deleted| deleted.vector(vector))
        {
            mask.iter_mut().zip(deleted).for_each(|(word, deleted)| *word &= !deleted);
            kept = mask.iter().map(|word| word.count_ones() as usize).sum();
            if kept == 0 {
                return Ok(0);
            }
        }
        for at in 0..self.order.screens().len() {
            let number = self.order.steps[at];
            let step = &stage.steps[number];
            let screen = match &step.kind {
                StepKind::Threshold(_) => self.threshold.as_ref(),
                _ => step.screen.as_ref(),
            };
            // There is no threshold yet.
            let Some(screen) = screen else { continue };
            self.clock.turn_to(Work::Step(number));
            let started = is_timed.then(Instant::now);
            let block = loaded(&mut self.blocks, stage, self.at, screen.register, &mut self.clock)?;
            let answer = self.answers[number].get_or_insert_with(|| screen.answer(block));
            let rows_in = kept;
            if !answer.is_all() {
                screen.mask(answer, block, Among { vector, n, mask, kept }, scratch, step_mask)?;
                kept = kernels::and_count(mask, step_mask) as usize;
            }
            let counts = &mut self.counts[step.number];
            *counts = (counts.0 + rows_in as u64, counts.1 + kept as u64);
            if let Some(started) = started {
                self.order.measured(number, rows_in, kept, started.elapsed().as_nanos() as u64);
                self.order.is_light[number] = answer.is_light();
            }
            if kept == 0 {
                break;
            }
        }
        self.clock.turn_to(Work::Source);
        Ok(kept)
    }

    /// Runs the waiting rows through the remaining steps.
    fn flush(&mut self, stage: &Stage) -> Result<()> {
        if self.frames[0].n > 0 {
            self.frames_seen += 1;
            self.clock.frame(self.frames[0].n);
            self.frames[0].start();
            self.run(stage, self.order.screens().len(), 0)?;
            self.clock.stop();
            let frame = &mut self.frames[0];
            (frame.n, frame.vector, frame.masked) = (0, None, None);
        }
        Ok(())
    }

    /// Runs frame `depth` through the steps from `first` on, and into the sink.
    fn run(&mut self, stage: &Stage, first: usize, depth: usize) -> Result<()> {
        if depth > 0 && self.cancelled.load(Relaxed) {
            return Err(Error::Cancelled);
        }
        for at in first..self.order.steps.len() {
            let number = self.order.steps[at];
            let step = &stage.steps[number];
            let rows_in = self.frames[depth].n;
            self.clock.turn_to(Work::Step(number));
            let started = is_sample(self.frames_seen).then(Instant::now);
            for register in &step.needs {
                self.ensure(stage, depth, *register)?;
            }
            let frame = &mut self.frames[depth];
            let WorkerScratch { keep, picked, keys: key_scratch, .. } = &mut *self.scratch;
            match &step.kind {
                StepKind::Filter(code) => {
                    code.run(&mut frame.vectors, rows_in)?;
                    let result = &frame.vectors[code.result];
                    let Data::Bool(values) = &result.data else { return Err(not_boolean()) };
                    keep[..rows_in].copy_from_slice(&values[..rows_in]);
                    if result.has_nulls {
                        kernels::and_assign(&mut keep[..rows_in], &result.valid[..rows_in]);
                    }
                    frame.keep(keep, picked, stage, &self.order.needed[at]);
                }
                StepKind::Threshold(register) => {
                    if let (CompiledSink::Top { plan, .. }, SinkState::Top(top)) = (&stage.sink, &mut self.sink)
                        && let Some(passing) = top.passing(plan)
                    {
                        passing.mark(&frame.vectors[*register], rows_in, keep);
                        frame.keep(keep, picked, stage, &self.order.needed[at]);
                    }
                }
                StepKind::Probe { table, kind, keys, slots, condition } => {
                    for key in keys {
                        key.run(&mut frame.vectors, rows_in)?;
                    }
                    let mut rows_in = rows_in;
                    if table.is_part() && matches!(kind, JoinKind::Left | JoinKind::Anti) {
                        // Other passes decide about rows of other parts.
                        table.in_part(slots, &frame.vectors, rows_in, key_scratch, keep);
                        // Registers that this step or later ones read, loaded or not.
                        let later = &self.order.needed[at];
                        let needed: Vec<bool> = frame.loaded.iter().zip(later).map(|(a, b)| *a || *b).collect();
                        frame.keep(keep, picked, stage, &needed);
                        rows_in = frame.n;
                        for key in keys {
                            key.run(&mut frame.vectors, rows_in)?;
                        }
                    }
                    let mut places = frame.places[number].take().unwrap_or_else(|| Box::new([NOTHING; VECTOR_ROWS]));
                    table.probe(slots, &frame.vectors, rows_in, key_scratch, keep, &mut places[..]);
                    let is_one_row = table.is_unique() || matches!(kind, JoinKind::Semi | JoinKind::Anti);
                    if condition.is_some() && is_one_row {
                        let found = *keep;
                        self.scratch.keep = self.any_match(stage, depth, number, &found, &places)?;
                    }
                    let frame = &mut self.frames[depth];
                    let WorkerScratch { keep, picked, .. } = &mut *self.scratch;
                    let multiplies = !table.is_unique() && matches!(kind, JoinKind::Inner | JoinKind::Left);
                    if multiplies && condition.is_some() {
                        let found = *keep;
                        let result = self.multiply_met(stage, at, depth, table, &found, &places);
                        self.frames[depth].places[number] = Some(places);
                        return result;
                    } else if !multiplies {
                        match kind {
                            JoinKind::Inner | JoinKind::Semi => {}
                            JoinKind::Anti => keep[..rows_in].iter_mut().for_each(|keep| *keep ^= 1),
                            JoinKind::NotIn if table.is_empty() => keep[..rows_in].fill(1),
                            JoinKind::NotIn if table.has_null => keep[..rows_in].fill(0),
                            JoinKind::NotIn => {
                                let key = &frame.vectors[slots[0]];
                                for (row, keep) in keep.iter_mut().enumerate().take(rows_in) {
                                    *keep = u8::from(*keep == 0 && key.is_valid(row));
                                }
                            }
                            JoinKind::Left => {
                                for (place, found) in places.iter_mut().zip(keep.iter_mut()).take(rows_in) {
                                    *place = if *found == 1 { *place } else { NOTHING };
                                    *found = 1;
                                }
                            }
                        }
                        frame.places[number] = Some(places);
                        frame.is_placed[number] = true;
                        frame.keep(keep, picked, stage, &self.order.needed[at]);
                    } else {
                        let is_left = *kind == JoinKind::Left;
                        let found = *keep;
                        let result = self.multiply(stage, at, depth, table, &found, &places, is_left);
                        self.frames[depth].places[number] = Some(places);
                        return result;
                    }
                }
            }
            let rows_out = self.frames[depth].n;
            let counts = &mut self.counts[step.number];
            *counts = (counts.0 + rows_in as u64, counts.1 + rows_out as u64);
            if let Some(started) = started {
                self.order.measured(number, rows_in, rows_out, started.elapsed().as_nanos() as u64);
            }
            if rows_out == 0 {
                return Ok(());
            }
        }
        self.clock.turn_to(Work::Sink);
        if matches!(stage.sink, CompiledSink::Top { .. }) {
            return self.take_first(stage, depth);
        }
        for register in &stage.sink_needs {
            self.ensure(stage, depth, *register)?;
        }
        self.sink.take(stage, &mut self.frames[depth], &mut self.scratch.keys)?;
        self.hand_over(stage, CHUNK_ROWS - VECTOR_ROWS + 1)
    }

    /// Makes rows candidates if they may be among the first in an order. Their keys are compared
    /// before any other column is read.
    fn take_first(&mut self, stage: &Stage, depth: usize) -> Result<()> {
        let CompiledSink::Top { keys, codes, plan } = &stage.sink else { return Err(not_boolean()) };
        for register in &plan.first {
            self.ensure(stage, depth, *register)?;
        }
        let frame = &mut self.frames[depth];
        // Expressions that can fail must be evaluated for every row.
        for code in keys.iter().chain(codes.iter().filter(|_| plan.is_fallible)) {
            code.run(&mut frame.vectors, frame.n)?;
        }
        let SinkState::Top(top) = &mut self.sink else { return Err(not_boolean()) };
        let WorkerScratch { keep, picked, .. } = &mut *self.scratch;
        if top.begin(plan, &frame.vectors, frame.n, keep)? == 0 {
            return Ok(());
        }
        frame.keep(keep, picked, stage, &vec![true; stage.registers.len()]);
        for register in &stage.sink_needs {
            self.ensure(stage, depth, *register)?;
        }
        let frame = &mut self.frames[depth];
        for code in codes {
            code.run(&mut frame.vectors, frame.n)?;
        }
        let SinkState::Top(top) = &mut self.sink else { return Err(not_boolean()) };
        let morsel = self.morsel as u32;
        let row = |at: usize| match frame.vector {
            Some(vector) => (vector * VECTOR_ROWS + at) as u16,
            None => frame.rows[at],
        };
        top.end(plan, &frame.vectors, (0..frame.n).map(|at| (morsel, row(at))));
        Ok(())
    }

    /// Finds the places of rows whose keys a screen has found.
    fn place(&mut self, stage: &Stage, depth: usize, number: usize) -> Result<()> {
        let step = &stage.steps[number];
        for register in &step.needs {
            self.ensure(stage, depth, *register)?;
        }
        let StepKind::Probe { table, keys, slots, .. } = &step.kind else { return Err(not_boolean()) };
        let frame = &mut self.frames[depth];
        for key in keys {
            key.run(&mut frame.vectors, frame.n)?;
        }
        let places = frame.places[number].get_or_insert_with(|| Box::new([NOTHING; VECTOR_ROWS]));
        let WorkerScratch { found, keys: key_scratch, .. } = &mut *self.scratch;
        table.probe(slots, &frame.vectors, frame.n, key_scratch, found, &mut places[..]);
        frame.is_placed[number] = true;
        Ok(())
    }

    /// Loads a register of a frame for its live rows.
    fn ensure(&mut self, stage: &Stage, depth: usize, register: usize) -> Result<()> {
        if self.frames[depth].loaded[register] {
            return Ok(());
        }
        match &stage.registers[register] {
            Register::Column(_) => {
                let before = self.clock.turn_to(Work::Source);
                let block = loaded(&mut self.blocks, stage, self.at, register, &mut self.clock)?;
                self.frames[depth].load(block, register, &mut self.scratch.source)?;
                self.clock.turn_to(before);
            }
            Register::Payload { step, column } => {
                if !self.frames[depth].is_placed[*step] {
                    self.place(stage, depth, *step)?;
                }
                let frame = &mut self.frames[depth];
                let StepKind::Probe { table, kind, .. } = &stage.steps[*step].kind else { return Err(not_boolean()) };
                let Some(places) = &frame.places[*step] else { return Err(not_boolean()) };
                let may_miss = *kind == JoinKind::Left;
                table.payload(*column, &places[..frame.n], may_miss, &mut frame.vectors[register]);
            }
            Register::Map { code, needs, .. } => {
                for register in needs {
                    self.ensure(stage, depth, *register)?;
                }
                let frame = &mut self.frames[depth];
                code.run(&mut frame.vectors, frame.n)?;
                frame.adopt(register, code.result, stage.registers.len());
            }
        }
        self.frames[depth].loaded[register] = true;
        Ok(())
    }
}

/// Returns true if the vector or frame with this number is timed.
fn is_sample(number: u64) -> bool {
    number.is_multiple_of(SAMPLES[usize::from(number > FIRST)])
}

/// Returns a column of a morsel, and loads it on first use.
fn loaded<'b>(
    blocks: &'b mut [Option<Block>],
    stage: &Stage,
    at: usize,
    register: usize,
    clock: &mut Clock,
) -> Result<&'b Block> {
    Ok(match &mut blocks[register] {
        Some(block) => block,
        none => none.insert(match &stage.registers[register] {
            Register::Column(column) => {
                let began = Instant::now();
                let block = stage.load(at, *column)?;
                clock.loaded(began);
                block
            }
            _ => return Err(Error::Invalid("a register that is no column".into())),
        }),
    })
}

fn not_boolean() -> Error {
    Error::Invalid("a step or payload of another kind".into())
}

impl Frame {
    fn new(stage: &Stage) -> Self {
        Self {
            vectors: stage.compiler.vectors(),
            loaded: vec![false; stage.registers.len()],
            rows: [0; VECTOR_ROWS],
            n: 0,
            vector: None,
            masked: None,
            places: stage.steps.iter().map(|_| None).collect(),
            is_placed: vec![false; stage.steps.len()],
        }
    }

    /// Resets the frame, except for its rows.
    fn start(&mut self) {
        self.loaded.fill(false);
        self.is_placed.fill(false);
    }

    fn load(&mut self, block: &Block, register: usize, scratch: &mut Scratch) -> Result<()> {
        let rows = match (self.vector, &self.masked) {
            (Some(vector), _) => Rows::Vector { vector, n: self.n },
            (_, Some((vector, mask))) => Rows::Masked { vector: *vector, n: self.n, mask },
            _ => Rows::Picked(&self.rows[..self.n]),
        };
        let to = &mut self.vectors[register];
        match &mut to.data {
            Data::Bool(values) => {
                let mut wide = [0i32; VECTOR_ROWS];
                block.integers(rows, &mut wide, scratch)?;
                values.iter_mut().zip(&wide).for_each(|(to, from)| *to = *from as u8);
            }
            Data::I32(values) => block.integers(rows, values, scratch)?,
            Data::I64(values) => block.integers(rows, values, scratch)?,
            Data::I128(values) => block.integers(rows, values, scratch)?,
            Data::F64(values) => block.doubles(rows, values)?,
        }
        to.has_nulls = block.has_nulls();
        if to.has_nulls {
            block.validity(rows, &mut to.valid, scratch);
        }
        Ok(())
    }

    /// Makes a computed result the value of a register.
    fn adopt(&mut self, register: usize, result: usize, registers: usize) {
        if result < registers {
            // The expression is itself a register.
            let (a, b) = (register.min(result), register.max(result));
            let (before, after) = self.vectors.split_at_mut(b);
            let (to, from) = if register > result { (&mut after[0], &before[a]) } else { (&mut before[a], &after[0]) };
            let mut all = [0; VECTOR_ROWS];
            all.iter_mut().enumerate().for_each(|(i, place)| *place = i as u16);
            to.gather(from, &all[..self.n]);
        } else {
            self.vectors.swap(register, result);
        }
    }

    /// Keeps the rows marked 1, and drops registers that are no longer needed.
    fn keep(&mut self, keep: &[u8; VECTOR_ROWS], picked: &mut kernels::Places, stage: &Stage, needed: &[bool]) {
        let kept = kernels::places(&keep[..self.n], picked);
        for (register, needed) in needed.iter().enumerate() {
            self.loaded[register] &= needed;
        }
        if kept == self.n {
            return;
        }
        let picked = &picked[..kept];
        for (vector, loaded) in self.vectors.iter_mut().zip(&self.loaded) {
            if *loaded {
                vector.compact(picked);
            }
        }
        for (step, places) in self.places.iter_mut().enumerate() {
            let is_needed = || {
                if !self.is_placed[step] {
                    return false;
                }
                let of_step = |r: &Register| matches!(r, Register::Payload { step: s, .. } if *s == step);
                stage.registers.iter().zip(needed).any(|(register, needed)| *needed && of_step(register))
            };
            if let Some(places) = places.as_mut().filter(|_| is_needed()) {
                picked.iter().enumerate().for_each(|(to, from)| places[to] = places[usize::from(*from) % VECTOR_ROWS]);
            }
        }
        let picked = picked.iter().enumerate();
        self.masked = None;
        match self.vector.take() {
            Some(vector) => {
                let first = (vector * VECTOR_ROWS) as u16;
                picked.for_each(|(to, from)| self.rows[to] = first + from);
            }
            None => picked.for_each(|(to, from)| self.rows[to] = self.rows[usize::from(*from) % VECTOR_ROWS]),
        }
        self.n = kept;
    }

    /// Takes the picked rows of another frame. A row may be picked several times.
    fn pick(&mut self, from: &Self, picked: &[u16], needed: &[bool]) {
        self.n = picked.len();
        (self.vector, self.masked) = (None, None);
        for (to, row) in self.rows.iter_mut().zip(picked) {
            *to = match from.vector {
                Some(vector) => (vector * VECTOR_ROWS) as u16 + row,
                None => from.rows[usize::from(*row) % VECTOR_ROWS],
            };
        }
        for (register, needed) in needed.iter().enumerate() {
            self.loaded[register] = *needed && from.loaded[register];
            if self.loaded[register] {
                self.vectors[register].gather(&from.vectors[register], picked);
            }
        }
        self.is_placed.copy_from_slice(&from.is_placed);
        for ((to, from), is_placed) in self.places.iter_mut().zip(&from.places).zip(&from.is_placed) {
            let Some(from) = from.as_ref().filter(|_| *is_placed) else { continue };
            let to = to.get_or_insert_with(|| Box::new([NOTHING; VECTOR_ROWS]));
            to.iter_mut().zip(picked).for_each(|(to, row)| *to = from[usize::from(*row) % VECTOR_ROWS]);
        }
    }
}

impl SinkState {
    fn take(&mut self, stage: &Stage, frame: &mut Frame, scratch: &mut KeyScratch) -> Result<()> {
        let n = frame.n;
        let (CompiledSink::Build { codes, .. }
        | CompiledSink::Aggregate { codes, .. }
        | CompiledSink::Collect { codes, .. }
        | CompiledSink::Top { codes, .. }) = &stage.sink;
        for code in codes {
            code.run(&mut frame.vectors, n)?;
        }
        match (self, &stage.sink) {
            (Self::Build(collected, room), CompiledSink::Build { layout, part, key_slots, payload, .. }) => {
                room.hold(collected.growth(n).bytes())?;
                layout.keys(key_slots, &frame.vectors, n, &mut scratch.keys);
                Collected::only(*part, layout, &mut scratch.keys[..n]);
                let payload: Vec<&Vector> = payload.iter().map(|(slot, _)| &frame.vectors[*slot]).collect();
                collected.push(&scratch.keys, &payload, n);
            }
            (Self::Aggregate(grouper), CompiledSink::Aggregate { plan, .. }) => {
                grouper.update(plan, stage.most_rows, &mut frame.vectors, n, scratch)?;
            }
            (Self::Collect { columns, rows }, CompiledSink::Collect { columns: shape, .. }) => {
                *rows += n;
                for (column, (slot, domain)) in columns.iter_mut().zip(shape) {
                    extend(column, &frame.vectors[*slot], domain, n);
                }
            }
            _ => return Err(not_boolean()),
        }
        Ok(())
    }
}

fn empty(columns: &[(usize, Domain)]) -> Vec<ResultColumn> {
    columns.iter().map(|(_, domain)| ResultColumn::empty(domain)).collect()
}

/// Appends the rows of a vector to a column of the answer.
pub(super) fn extend(column: &mut ResultColumn, vector: &Vector, domain: &Domain, n: usize) {
    match (&mut column.values, &vector.data) {
        (ResultValues::Double(to), Data::F64(from)) => to.extend_from_slice(&from[..n]),
        (ResultValues::Int(to), Data::I64(from)) => to.extend_from_slice(&from[..n]),
        (ResultValues::Int(to), Data::I32(from)) => to.extend(from[..n].iter().map(|value| i64::from(*value))),
        (ResultValues::Int(to), _) => to.extend((0..n).map(|row| vector.integer(row) as i64)),
        (ResultValues::Wide(to), _) => to.extend((0..n).map(|row| vector.integer(row))),
        (ResultValues::Bool(to), _) => to.extend((0..n).map(|row| vector.integer(row) != 0)),
        (ResultValues::Text(to, _), Data::I32(from)) => to.extend(from[..n].iter().map(|code| *code as u32)),
        (ResultValues::Text(to, _), _) => to.extend((0..n).map(|row| vector.integer(row) as u32)),
        (ResultValues::LateText(to, _), _) => to.extend((0..n).map(|row| vector.integer(row) as u64)),
        (ResultValues::Double(_), _) => debug_assert!(false, "doubles of {domain}"),
    }
    if let Some(valid) = &mut column.valid {
        valid.extend((0..n).map(|row| vector.is_valid(row)));
    }
}
