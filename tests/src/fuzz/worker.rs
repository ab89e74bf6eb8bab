//! Runs one target in this process: its corpus, its own seeds, then damaged inputs by ascending
//! number.
//!
//! 1. The progress is written to a file before each input, so that the watcher knows the input of
//!    an abort or a hang.
//! 2. The first failing input of each kind is written to a folder. The kind is the location of a
//!    panic, or the text of an internal error without its numbers. A long run continues, and lists
//!    the kinds.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{Entry, Mutator, Outcome, TARGETS, Target, panics};

/// The maximum time of an input, even on a slow machine.
const MOST_TIME: Duration = Duration::from_secs(10);
/// The number of inputs between two checks of memory, and between two checks across inputs.
const LOOK_EVERY: u64 = 64;
const SETTLE_EVERY: u64 = 512;
/// The number of a target's own seeds that a short run reads.
const SHORT_SEEDS: usize = 50;

/// Known upstream panics, by target, location and a part of the message. Each is listed in
/// `docs/internals/upstream.md`. They are counted separately, and each removal from this list makes
/// the test stricter.
///
/// Parquet's decoders panic in many places over the contents of pages, which headers do not reveal.
/// The guard turns that into an error. Only a second decompression could detect it first.
const KNOWN: [(&[&str], &str, &str); 13] = [
    (PARQUET, "fixed_len_byte_array.rs", "out of range for slice of length"),
    (PARQUET, "bit_util.rs", "num_bits <= size_of::<T>() * 8"),
    (PARQUET, "bit_util.rs", "slice must not be empty"),
    (PARQUET, "bit_util.rs", "attempt to shift left with overflow"),
    (PARQUET, "bit_chunk_iterator.rs", "offset + len out of bounds"),
    (PARQUET, "delta_byte_array.rs", "attempt to add with overflow"),
    (PARQUET, "decoding.rs", "attempt to subtract with overflow"),
    (PARQUET, "byte_stream_split_decoder.rs", "index out of bounds"),
    (PARQUET, "byte_array.rs", "attempt to divide by zero"),
    (PARQUET, "map_array.rs", "Not all children array length are the same"),
    (PARQUET, "map_array.rs", "Failed to reconstruct list from level data"),
    (PARQUET, "bytes.rs", "range start must not be greater than end"),
    // An assertion of debug builds.
    (STATEMENTS, "physical_planner.rs", "shall have the same sort keys"),
];
const PARQUET: &[&str] = &["parquet"];
const STATEMENTS: &[&str] = &["sql", "execute", "prepared"];

/// The order of a worker.
#[derive(Clone, Debug)]
pub struct Order {
    /// The name of the target.
    pub target: String,
    /// The folder that contains `corpus` and `failed`.
    pub root: PathBuf,
    /// The folder for its progress and the kinds of failures.
    pub notes: PathBuf,
    /// The number of the first damaged input.
    pub first: u64,
    /// The number of the first undamaged input, of the corpus and the target's own.
    pub first_seed: u64,
    /// The duration of the run, or its number of damaged inputs.
    pub length: Length,
}

/// The amount of work of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// Undamaged inputs, and damaged ones for this time.
    For(Duration),
    /// Some undamaged inputs, and this number of damaged ones.
    Short(u64),
    /// This number of damaged inputs alone.
    Only(u64),
    /// Writes the next input to a file instead of running it.
    Save,
}

/// The progress of a worker, and the outcomes of its inputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// True if the input is damaged; false for one of the corpus, or of the target's own.
    pub is_damaged: bool,
    /// The number of the current input.
    pub number: u64,
    /// The number of inputs read.
    pub runs: u64,
    /// The number of inputs without any error.
    pub accepted: u64,
    /// The number of known upstream panics.
    pub known: u64,
    /// The longest time of an input, in microseconds.
    pub slowest_us: u64,
    /// The peak memory of the process, in bytes.
    pub peak_bytes: u64,
    /// The number of failed inputs.
    pub failed: u64,
}

const PROGRESS_WORDS: usize = 8;

impl Progress {
    fn words(self) -> [u64; PROGRESS_WORDS] {
        let Self { is_damaged, number, runs, accepted, known, slowest_us, peak_bytes, failed } = self;
        [u64::from(is_damaged), number, runs, accepted, known, slowest_us, peak_bytes, failed]
    }

    fn write(self, to: &File) -> io::Result<()> {
        to.write_all_at(self.words().map(u64::to_le_bytes).as_flattened(), 0)
    }

    /// Reads the progress in a folder; all zero if the worker has not begun.
    pub fn read(notes: &Path) -> Self {
        let bytes = fs::read(notes.join("progress")).unwrap_or_default();
        let mut words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        let mut next = || words.next().unwrap_or(0);
        Self {
            is_damaged: next() != 0,
            number: next(),
            runs: next(),
            accepted: next(),
            known: next(),
            slowest_us: next(),
            peak_bytes: next(),
            failed: next(),
        }
    }
}

struct Worker<'a> {
    order: &'a Order,
    entry: &'a Entry,
    target: Box<dyn Target>,
    file: File,
    progress: Progress,
    kinds: BTreeSet<String>,
}

/// Carries out an order.
///
/// # Errors
/// Fails if there is no such target, if it cannot be created, or if files cannot be written.
pub fn work(order: &Order) -> io::Result<()> {
    let entry = TARGETS.iter().find(|entry| entry.name == order.target);
    let entry = entry.ok_or_else(|| io::Error::other(format!("there is no target {}", order.target)))?;
    panics::watch();
    let target = entry.make().map_err(io::Error::other)?;
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(order.notes.join("progress"))?;
    let kinds = fs::read_to_string(order.notes.join("kinds")).unwrap_or_default();
    let kinds = kinds.lines().filter_map(|line| line.split('\t').next()).map(String::from).collect();
    let mut worker = Worker { order, entry, target, file, progress: Progress::default(), kinds };
    let _ = panics::take();
    worker.all()
}

impl Worker<'_> {
    fn all(&mut self) -> io::Result<()> {
        let mut corpus = self.entry.corpus(&self.order.root.join("corpus"))?;
        let kept = corpus.len();
        let own = self.target.seeds().into_iter().enumerate();
        corpus.extend(own.map(|(number, input)| (PathBuf::from(format!("own-{number}")), input)));
        if corpus.is_empty() {
            return Err(io::Error::other(format!("{} has no seeds", self.entry.name)));
        }
        // Damaged statements may write to files with arbitrary relative names, which end up here.
        std::env::set_current_dir(&self.order.notes)?;
        let damaged = |worker: &Self, number: u64| {
            let (at, other) = (number as usize % corpus.len(), number as usize / 7 % corpus.len());
            worker.target.mutate(&mut Mutator::new(number), &corpus[at].1, &corpus[other].1)
        };
        match self.order.length {
            Length::Save => {
                let (is_damaged, number) = (self.order.first_seed == u64::MAX, self.order.first);
                let input = match is_damaged {
                    true => damaged(self, number),
                    false => corpus.get(number as usize).map_or_else(Vec::new, |(_, input)| input.clone()),
                };
                return fs::write(self.order.notes.join("input"), input);
            }
            Length::Only(_) => {}
            Length::For(_) | Length::Short(_) => {
                let step = match self.order.length {
                    Length::Short(_) => (corpus.len() - kept).div_ceil(SHORT_SEEDS).max(1),
                    _ => 1,
                };
                for (number, (path, input)) in corpus.iter().enumerate().skip(self.order.first_seed as usize) {
                    if number < kept || (number - kept) % step == 0 {
                        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                        self.one((false, number as u64), &name, input)?;
                    }
                }
            }
        }
        let begun = Instant::now();
        for number in self.order.first.. {
            let is_over = match self.order.length {
                Length::For(time) => begun.elapsed() >= time,
                Length::Short(most) | Length::Only(most) => number - self.order.first >= most,
                Length::Save => true,
            };
            if is_over {
                break;
            }
            let input = damaged(self, number);
            self.one((true, number), &number.to_string(), &input)?;
        }
        self.settle()?;
        self.progress.peak_bytes = peak_bytes();
        self.progress.write(&self.file)
    }

    fn one(&mut self, (is_damaged, number): (bool, u64), name: &str, input: &[u8]) -> io::Result<()> {
        (self.progress.is_damaged, self.progress.number) = (is_damaged, number);
        self.progress.write(&self.file)?;
        let begun = Instant::now();
        // The hook has recorded all data about a panic that nothing else has caught.
        let verdict = catch_unwind(AssertUnwindSafe(|| self.target.run(input)));
        let verdict = verdict.unwrap_or_else(|_| Err("it panicked".into()));
        let took = begun.elapsed();
        self.progress.runs += 1;
        self.progress.slowest_us = self.progress.slowest_us.max(took.as_micros() as u64);
        self.progress.accepted += u64::from(verdict == Ok(Outcome::Accepted));
        let panics = panics::take();
        let is_known = |panic: &panics::Panic| {
            KNOWN.iter().any(|(targets, place, text)| {
                targets.contains(&self.entry.name) && panic.location.contains(place) && panic.message.contains(text)
            })
        };
        let kind = match (&panics[..], verdict) {
            (all, _) if !all.is_empty() && all.iter().all(is_known) => {
                self.progress.known += 1;
                None
            }
            ([first, ..], _) => Some((format!("panic at {}", first.location), first.message.clone())),
            ([], Err(reason)) => Some((without_numbers(&reason), reason)),
            ([], Ok(_)) if took > MOST_TIME => Some(("slow".into(), format!("{took:?}"))),
            ([], Ok(_)) => None,
        };
        if let Some((kind, reason)) = kind {
            self.failed(&kind, &reason, name, Some(input))?;
        }
        if self.progress.runs.is_multiple_of(LOOK_EVERY) {
            let peak = peak_bytes();
            if peak > self.entry.most_bytes && self.progress.peak_bytes <= self.entry.most_bytes {
                let reason =
                    format!("the process held {} MiB, in this input or one of the {LOOK_EVERY} before", peak >> 20);
                self.failed("memory", &reason, name, Some(input))?;
            }
            self.progress.peak_bytes = peak;
        }
        if self.progress.runs.is_multiple_of(SETTLE_EVERY) {
            self.settle()?;
        }
        Ok(())
    }

    fn settle(&mut self) -> io::Result<()> {
        match self.target.settle() {
            Ok(()) => Ok(()),
            Err(reason) => {
                let name = format!("up-to-{}", self.progress.number);
                self.failed(&without_numbers(&reason), &reason, &name, None)
            }
        }
    }

    /// Records a failure, and keeps the input of the first of its kind.
    fn failed(&mut self, kind: &str, reason: &str, name: &str, input: Option<&[u8]>) -> io::Result<()> {
        self.progress.failed += 1;
        if !self.kinds.insert(kind.to_string()) {
            return Ok(());
        }
        let failed = keep(&self.order.root, self.entry.name, name, input.unwrap_or_default())?;
        let line = format!("{kind}\t{}: {}: {}\n", self.entry.name, failed, reason.replace(['\n', '\t'], " "));
        let mut kinds = OpenOptions::new().create(true).append(true).open(self.order.notes.join("kinds"))?;
        kinds.write_all(line.as_bytes())
    }
}

/// Keeps a failing input. Returns the command that repeats it.
pub(super) fn keep(root: &Path, target: &str, name: &str, input: &[u8]) -> io::Result<String> {
    let folder = root.join("failed");
    fs::create_dir_all(&folder)?;
    let file = format!("{target}-{name}");
    fs::write(folder.join(&file), input)?;
    let command = format!("FUZZ_TARGET={target} FUZZ_INPUT=fuzz/failed/{file} make fuzz");
    let mut list = OpenOptions::new().create(true).append(true).open(folder.join("commands"))?;
    writeln!(list, "{command}")?;
    Ok(command)
}

/// Strips the parts of a reason that differ from input to input.
fn without_numbers(reason: &str) -> String {
    let mut short = String::new();
    let mut is_quoted = false;
    for c in reason.chars().take(300) {
        match c {
            '"' | '\'' => is_quoted = !is_quoted,
            '0'..='9' | '\n' | '\t' => {}
            _ if is_quoted => {}
            c => short.push(c),
        }
    }
    short.chars().take(120).collect()
}

/// Returns the peak memory of this process in bytes, or 0 if the system does not report it.
pub fn peak_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap_or_default();
    let kilobytes: u64 = line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).unwrap_or(0);
    kilobytes << 10
}
