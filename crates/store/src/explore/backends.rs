//! Workloads of batches on a [`Backend`], and the judge of its state after a crash.
//!
//! A story is a list of states: 0 is "there is no store", 1 the empty store, `n + 1` the state
//! after commit `n`. A crash must leave the last acknowledged state, or that of the running commit.
//! The recovered store must also be sound and usable: it runs an abort, two commits, and another
//! crash, of which the last two are judged in the same way.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use super::{CrashImage, Durability, Event, Explorer, Limits, Progress, Random, Recording, mix};
use crate::backend::{Backend, Batch, Content, Image, LINE_BYTES, Lines, PageNo, Write};
use crate::medium::Medium;
use crate::{Error, Result};

/// The error describes the violation in a sentence.
type Judged<T> = std::result::Result<T, String>;

/// A medium that records.
pub(crate) trait Simulated: Medium + Sized + 'static {
    /// Creates a medium that holds `image` and keeps a trace, if `traced`.
    fn holding(image: CrashImage, traced: bool) -> Self;

    /// Returns the recording.
    fn record(&self) -> &Recording;
}

impl Simulated for crate::medium::SimPmem {
    fn holding(image: CrashImage, traced: bool) -> Self {
        if traced { Self::recording(image) } else { Self::quiet(image) }
    }

    fn record(&self) -> &Recording {
        self.record()
    }
}

/// A kind of backend with its options.
pub(crate) trait Subject {
    /// The backend's medium.
    type Medium: Simulated;

    /// Creates a store on an empty medium.
    fn create(&self, medium: Arc<Self::Medium>) -> Result<Box<dyn Backend>>;

    /// Opens the store, and recovers.
    fn open(&self, medium: Arc<Self::Medium>) -> Result<Box<dyn Backend>>;
}

/// The pages of a store.
pub(crate) type State = BTreeMap<u32, Arc<Image>>;

/// A page, and its lines that change (from 0, as they lie in the page).
pub(crate) type Change = (u32, Vec<usize>);

/// A step of a workload.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Commits.
    Commit {
        /// The pages that change, or are new.
        writes: Vec<Change>,
        /// The pages that are freed.
        frees: Vec<u32>,
        /// True if the new bytes are spilled before, in two parts.
        spilled: bool,
    },
    /// Spills, and aborts.
    Abort(Vec<Change>),
    /// Brings tables up to date.
    Checkpoint,
    /// Does all deferrable work.
    Maintain,
    /// Closes the store, and reopens it.
    Close,
    /// Reopens the store as after a crash that lost nothing.
    Reopen,
}

impl Step {
    /// Returns a commit of changes in memory.
    pub(crate) fn commit(writes: &[(u32, &[usize])]) -> Self {
        let writes = writes.iter().map(|(page, lines)| (*page, lines.to_vec())).collect();
        Self::Commit { writes, frees: Vec::new(), spilled: false }
    }

    /// Returns a commit that frees pages.
    pub(crate) fn free(frees: &[u32]) -> Self {
        Self::Commit { writes: Vec::new(), frees: frees.to_vec(), spilled: false }
    }
}

/// A workload that ran: its operations on the medium, and the expected state after each commit.
pub(crate) struct Story {
    start: CrashImage,
    trace: Vec<Event>,
    states: Vec<Option<State>>,
    /// The final bytes that the program saw.
    end: CrashImage,
}

impl Story {
    /// Returns the final bytes that the program saw.
    pub(crate) fn end(&self) -> &CrashImage {
        &self.end
    }

    /// Returns the operations on the medium.
    pub(crate) fn trace(&self) -> &[Event] {
        &self.trace
    }
}

/// The thoroughness of judging an image.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Depth {
    /// One of so many images has its recovery and later operations explored for crashes in turn; 0:
    /// none.
    pub(crate) nested_every: u64,
    /// The limits of that exploration.
    pub(crate) nested: Limits,
}

impl Default for Depth {
    fn default() -> Self {
        Self { nested_every: 64, nested: Limits { exhaustive: 64, samples: 8 } }
    }
}

/// Runs `steps` on a new store, which is created on a medium that held `start`.
///
/// # Errors
/// An error of the backend, which must not fail.
pub(crate) fn tell<S: Subject>(subject: &S, start: CrashImage, steps: &[Step]) -> Judged<Story> {
    let mut teller = Teller::begin(subject, Arc::new(S::Medium::holding(start.clone(), true)))?;
    for step in steps {
        teller.step(step).map_err(|error| format!("{step:?}: {error}"))?;
        teller.compare()?;
    }
    Ok(teller.story(start))
}

/// Runs `steps` as [`tell`] does, on an empty medium on which `prepare` makes an operation fail
/// after the creation of the store. A failed step makes the backend refuse commits, and the story
/// continues with the state of the reopened store. Returns `None` if no step failed.
///
/// # Errors
/// A backend that continues after a failure, or that lost a commit.
pub(crate) fn tell_failing<S: Subject>(
    subject: &S,
    medium: S::Medium,
    prepare: impl FnOnce(&S::Medium),
    steps: &[Step],
) -> Judged<Option<Story>> {
    let mut teller = Teller::begin(subject, Arc::new(medium))?;
    prepare(&teller.medium);
    let mut failures = 0;
    for step in steps {
        if let Err(error) = teller.step(step) {
            failures += 1;
            if !matches!(step, Step::Reopen) {
                teller.verify_refusal()?;
            }
            teller.survive().map_err(|reason| format!("after {step:?} failed ({error}): {reason}"))?;
        }
        teller.compare()?;
    }
    Ok((failures > 0).then(|| teller.story(CrashImage::new())))
}

/// Explores every crash of `story`. `explorer` counts.
///
/// # Errors
/// The first violation, as a sentence.
pub(crate) fn explore<S: Subject, D: Durability>(
    subject: &S,
    story: &Story,
    explorer: &mut Explorer,
    depth: Depth,
    nested: &mut Explorer,
) -> Judged<()> {
    let mut judged = 0_u64;
    let judge = &mut |image: &CrashImage, progress: Progress| {
        judged += 1;
        let Some(found) = recover(subject, image, false, &story.states, progress)? else { return Ok(()) };
        if depth.nested_every > 0 && judged.is_multiple_of(depth.nested_every) {
            let sequel = live_on(subject, image, found, &story.states, true)?;
            let judge = &mut |image: &CrashImage, progress: Progress| {
                recover(subject, image, false, &sequel.states, progress).map(|_| ())
            };
            nested
                .explore::<D>(&sequel.start, &sequel.trace, judge)
                .map_err(|violation| format!("afterwards, {violation}"))
        } else {
            live_on(subject, image, found, &story.states, false).map(|_| ())
        }
    };
    explorer.explore::<D>(&story.start, &story.trace, judge).map_err(|violation| violation.to_string())
}

/// Ends the process after every event of `story`: its writes are visible, durable or not. Another
/// process opens the store, and then the machine crashes. The state that the second process saw
/// must not be lost.
///
/// # Errors
/// The first violation, as a sentence.
pub(crate) fn killed<S: Subject, D: Durability>(subject: &S, story: &Story, explorer: &mut Explorer) -> Judged<()> {
    let mut seen = story.start.clone();
    let mut progress = Progress::default();
    for (done, event) in (1..).zip(&story.trace) {
        match event {
            Event::Write { at, bytes } => seen.write(*at, bytes),
            Event::Grow { len } => seen.set_len(*len),
            Event::Mark(now) => progress = *now,
            Event::Flush { .. } | Event::Fence | Event::FailedFence => {}
        }
        let medium = Arc::new(S::Medium::holding(seen.clone(), true));
        let state = match subject.open(medium.clone()) {
            Ok(backend) => matching(&*backend, &story.states, progress)?,
            Err(_) if story.states[progress.acked as usize].is_none() => continue,
            Err(error) => return Err(format!("the process ended after event {done}: {error}")),
        };
        let trace: Vec<Event> = story.trace[..done].iter().cloned().chain(medium.record().take_trace()).collect();
        let judge = &mut |image: &CrashImage, progress: Progress| {
            recover(subject, image, false, &story.states, progress).map(|_| ())
        };
        explorer
            .explore_end::<D>(&story.start, &trace, Progress { acked: state, begun: state }, judge)
            .map_err(|violation| format!("the process ended after event {done}, and then, {violation}"))?;
    }
    Ok(())
}

/// The allowed loss from damage to one byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Damage {
    /// None: the result is the last state, or an error.
    Nothing,
    /// The state before the last commit is allowed, too.
    LastCommit,
}

/// Flips the bits of each of `patterns` in each of `bytes` that `story` left, one byte at a time.
/// The opened store must be in a state that `damage` allows, except for pages that cannot be read.
/// Returns the number of flips.
///
/// # Errors
/// The first flip that gave wrong data, as a sentence.
pub(crate) fn damaged<S: Subject>(
    subject: &S,
    story: &Story,
    damage: Damage,
    bytes: Range<u64>,
    patterns: &[u8],
) -> Judged<u64> {
    let image = &story.end;
    let mut flips = 0;
    for at in bytes.start..bytes.end.min(image.len()) {
        for flip in patterns.iter().copied() {
            let mut byte = [0];
            image.read(at, &mut byte);
            let mut flipped = image.clone();
            flipped.write(at, &[byte[0] ^ flip]);
            flips += 1;
            judge_damaged(subject, story, damage, flipped)
                .map_err(|wrong| format!("byte {at} ^ {flip:#04x}: {wrong}"))?;
        }
    }
    Ok(flips)
}

/// Replaces each `unit` bytes that `story` left, one at a time, by all contents that any of them
/// ever had: lost and misdirected writes. Returns the number of replacements.
///
/// # Errors
/// The first replacement that gave wrong data, as a sentence.
pub(crate) fn misplaced<S: Subject>(subject: &S, story: &Story, damage: Damage, unit: usize) -> Judged<u64> {
    let end = &story.end;
    let units = end.len() / unit as u64;
    let read = |image: &CrashImage, at: u64| {
        let mut bytes = vec![0; unit];
        image.read(at * unit as u64, &mut bytes);
        bytes
    };
    let mut contents = BTreeSet::new();
    let mut image = story.start.clone();
    for event in &story.trace {
        apply(&mut image, event);
        if let Event::Write { at, bytes } = event {
            let units = at / unit as u64..(at + bytes.len() as u64).div_ceil(unit as u64);
            contents.extend(units.map(|at| read(&image, at)));
        }
    }
    let mut tried = 0;
    for at in 0..units {
        for content in &contents {
            let mut changed = end.clone();
            changed.write(at * unit as u64, content);
            tried += 1;
            judge_damaged(subject, story, damage, changed)
                .map_err(|wrong| format!("{unit} other bytes at {}: {wrong}", at * unit as u64))?;
        }
    }
    Ok(tried)
}

/// Truncates the medium that `story` left, at every multiple of `unit`. Returns the number of
/// lengths.
///
/// # Errors
/// The first length that gave wrong data, as a sentence.
pub(crate) fn truncated<S: Subject>(subject: &S, story: &Story, damage: Damage, unit: usize) -> Judged<u64> {
    let end = &story.end;
    let mut tried = 0;
    for len in (0..end.len()).step_by(unit) {
        let mut cut = end.clone();
        cut.set_len(len);
        tried += 1;
        judge_damaged(subject, story, damage, cut).map_err(|wrong| format!("cut off at {len}: {wrong}"))?;
    }
    Ok(tried)
}

/// Checks that the opened store, if any, is in a state that `damage` allows, except for pages that
/// cannot be read.
fn judge_damaged<S: Subject>(subject: &S, story: &Story, damage: Damage, image: CrashImage) -> Judged<()> {
    let Ok(backend) = subject.open(Arc::new(S::Medium::holding(image, false))) else { return Ok(()) };
    let last = story.states.len() - 1;
    let allowed = if damage == Damage::Nothing { last..=last } else { last - 1..=last };
    let states = story.states[allowed.clone()].iter().flatten();
    let wrong: Vec<String> = states.filter_map(|state| contradicts(&*backend, state).err()).collect();
    if wrong.len() == allowed.count() { Err(wrong.join("; ")) } else { Ok(()) }
}

fn apply(image: &mut CrashImage, event: &Event) {
    match event {
        Event::Write { at, bytes } => image.write(*at, bytes),
        Event::Grow { len } => image.set_len(*len),
        Event::Flush { .. } | Event::Fence | Event::FailedFence | Event::Mark(_) => {}
    }
}

/// Compares like `compare`, but allows unreadable pages that checks find, too.
fn contradicts(backend: &dyn Backend, state: &State) -> Judged<()> {
    compare_by(backend, state, |_, error| match sound(backend) {
        Ok(()) => Err(format!("check finds nothing, but {error}")),
        Err(_) => Ok(()),
    })
}

/// Opens a store after a crash, and returns the number of its state. Returns `None` if there is no
/// store, and none was acknowledged.
fn recover<S: Subject>(
    subject: &S,
    image: &CrashImage,
    traced: bool,
    states: &[Option<State>],
    progress: Progress,
) -> Judged<Option<u64>> {
    let medium = Arc::new(S::Medium::holding(image.clone(), traced));
    match subject.open(medium) {
        Ok(backend) => matching(&*backend, states, progress).map(Some),
        Err(_) if states[progress.acked as usize].is_none() => Ok(None),
        Err(error) => Err(format!("recovery: {error}")),
    }
}

/// Returns the number of the allowed state that the backend is in.
fn matching(backend: &dyn Backend, states: &[Option<State>], progress: Progress) -> Judged<u64> {
    let mut difference = String::new();
    for number in [progress.begun, progress.acked] {
        let Some(state) = &states[number as usize] else { continue };
        match compare(backend, state) {
            Ok(()) => return sound(backend).map(|()| number),
            Err(reason) => difference = reason,
        }
    }
    Err(format!("neither what was acknowledged nor what was under way: {difference}"))
}

fn compare(backend: &dyn Backend, state: &State) -> Judged<()> {
    compare_by(backend, state, |page, error| Err(format!("page {page}: {error}")))
}

/// Checks that the backend has the pages of `state`. `unread` judges those that cannot be read.
fn compare_by(backend: &dyn Backend, state: &State, unread: impl Fn(u32, Error) -> Judged<()>) -> Judged<()> {
    let pages: Vec<u32> = backend.pages().iter().map(|page| page.0).collect();
    let expected: Vec<u32> = state.keys().copied().collect();
    if pages != expected {
        return Err(format!("pages {pages:?} instead of {expected:?}"));
    }
    let mut image = Image::zeroed();
    for (page, expected) in state {
        match backend.read(PageNo(*page), &mut image) {
            Ok(()) if image != **expected => return Err(format!("page {page} holds something else")),
            Ok(()) => {}
            Err(error) => unread(*page, error)?,
        }
    }
    Ok(())
}

fn sound(backend: &dyn Backend) -> Judged<()> {
    let mut findings = Vec::new();
    backend.check(&mut |finding| findings.push(finding)).map_err(|error| format!("check: {error}"))?;
    if findings.is_empty() { Ok(()) } else { Err(format!("check finds: {}", findings.join("; "))) }
}

/// Recovers once more, aborts, commits twice, and reopens the store without loss.
fn live_on<S: Subject>(
    subject: &S,
    image: &CrashImage,
    found: u64,
    states: &[Option<State>],
    traced: bool,
) -> Judged<Story> {
    let medium = Arc::new(S::Medium::holding(image.clone(), traced));
    medium.record().record(Event::Mark(Progress::default()));
    let backend = subject.open(medium.clone()).map_err(|error| format!("recovery for the second time: {error}"))?;
    let state = states[found as usize].clone().unwrap_or_default();
    let mut teller = Teller { subject, medium, backend, states: vec![Some(state.clone())], acked: 0 };
    for step in sequel(&state) {
        teller.step(&step).map_err(|error| format!("after recovery, {step:?}: {error}"))?;
        teller.compare().map_err(|reason| format!("after recovery, {step:?}: {reason}"))?;
    }
    Ok(teller.story(image.clone()))
}

/// Returns an abort, two commits, and another crash that loses nothing.
fn sequel(state: &State) -> Vec<Step> {
    let first = state.keys().next().copied().unwrap_or(0);
    let last = state.keys().next_back().copied().unwrap_or(0);
    let new = (0..).find(|page| !state.contains_key(page)).unwrap_or(0);
    let changed = if state.is_empty() { vec![] } else { vec![(first, vec![1])] };
    let mut writes = changed.clone();
    writes.push((new, vec![0, 2]));
    vec![
        Step::Abort(vec![(first, vec![0, 1]), (new, vec![3])]),
        Step::Commit { writes, frees: vec![], spilled: false },
        Step::Commit {
            writes: vec![(new, vec![1])],
            frees: if last == new { vec![] } else { vec![last] },
            spilled: true,
        },
        Step::Reopen,
    ]
}

/// Runs steps, and keeps the states.
struct Teller<'a, S: Subject> {
    subject: &'a S,
    medium: Arc<S::Medium>,
    backend: Box<dyn Backend>,
    states: Vec<Option<State>>,
    /// The last state that must not be lost.
    acked: u64,
}

impl<'a, S: Subject> Teller<'a, S> {
    /// Creates a store.
    fn begin(subject: &'a S, medium: Arc<S::Medium>) -> Judged<Self> {
        let mark = |acked, begun| medium.record().record(Event::Mark(Progress { acked, begun }));
        mark(0, 1);
        let backend = subject.create(medium.clone()).map_err(|error| format!("create: {error}"))?;
        mark(1, 1);
        Ok(Self { subject, medium, backend, states: vec![None, Some(State::new())], acked: 1 })
    }

    fn story(self, start: CrashImage) -> Story {
        let record = self.medium.record();
        Story { start, trace: record.take_trace(), states: self.states, end: record.now() }
    }

    /// Checks that a commit after a failure is refused.
    fn verify_refusal(&self) -> Judged<()> {
        let write = Write { page: PageNo(0), content: Content::Image(Arc::new(Image::zeroed())), lines: Lines::ALL };
        match self.backend.commit(&Batch { writes: vec![write], frees: Vec::new(), ..Batch::default() }) {
            Err(Error::Poisoned { .. } | Error::Invalid(_)) => Ok(()),
            other => Err(format!("after a failure, another commit is not refused: {other:?}")),
        }
    }

    /// Reopens the store after a failure, and records the found state as a new one.
    fn survive(&mut self) -> Judged<()> {
        self.reopen().map_err(|error| format!("opening it again: {error}"))?;
        let begun = self.states.len() as u64 - 1;
        let progress = Progress { acked: self.acked, begun };
        let found = matching(&*self.backend, &self.states, progress)?;
        self.states.push(self.states[found as usize].clone());
        self.acked = begun + 1;
        self.medium.record().record(Event::Mark(Progress { acked: begun + 1, begun: begun + 1 }));
        Ok(())
    }

    fn step(&mut self, step: &Step) -> Result<()> {
        match step {
            Step::Commit { writes, frees, spilled } => self.commit(writes, frees, *spilled),
            Step::Abort(writes) => {
                for (page, lines) in writes {
                    let (image, _) = self.changed(*page, lines, 1);
                    self.backend.spill(PageNo(*page), &image, Lines::ALL)?;
                }
                self.backend.discard_spilled();
                Ok(())
            }
            Step::Checkpoint => self.backend.checkpoint(),
            Step::Maintain => {
                while self.backend.maintain()? {}
                Ok(())
            }
            Step::Close => {
                self.backend.close()?;
                self.reopen()
            }
            Step::Reopen => self.reopen(),
        }
    }

    fn reopen(&mut self) -> Result<()> {
        self.backend = self.subject.open(self.medium.clone())?;
        Ok(())
    }

    fn state(&self) -> &State {
        static EMPTY: State = State::new();
        self.states.last().and_then(Option::as_ref).unwrap_or(&EMPTY)
    }

    /// Returns the page with new bytes in `lines`. `salt` distinguishes committed bytes from
    /// others.
    fn changed(&self, page: u32, lines: &[usize], salt: u64) -> (Arc<Image>, Lines) {
        let old = self.state().get(&page);
        let mut image = old.map_or_else(Image::zeroed, |old| (**old).clone());
        let mut mask = if old.is_some() { Lines::default() } else { Lines::ALL };
        for line in lines {
            let value = mix(self.states.len() as u64 | u64::from(page) << 16 | (*line as u64) << 40 | salt << 50);
            image.0[line * LINE_BYTES..line * LINE_BYTES + 8].copy_from_slice(&value.to_le_bytes());
            mask = mask.with(Lines::of(line * LINE_BYTES, (line + 1) * LINE_BYTES));
        }
        (Arc::new(image), mask)
    }

    fn commit(&mut self, writes: &[Change], frees: &[u32], spilled: bool) -> Result<()> {
        let mut next = self.state().clone();
        let mut batch = Batch::default();
        for (page, lines) in writes {
            let (image, mask) = self.changed(*page, lines, 0);
            let content = if spilled {
                // Spills other bytes first, which the second spill replaces.
                let (wrong, wrong_mask) = self.changed(*page, &lines[..lines.len() / 2], 2);
                self.backend.spill(PageNo(*page), &wrong, wrong_mask)?;
                self.backend.spill(PageNo(*page), &image, mask)?;
                let mut back = Image::zeroed();
                self.backend.read_spilled(PageNo(*page), &mut back)?;
                if back != *image {
                    return Err(Error::Invalid(format!("page {page} was spilled, and is read back as something else")));
                }
                Content::Spilled
            } else {
                Content::Image(image.clone())
            };
            batch.writes.push(Write { page: PageNo(*page), content, lines: mask });
            next.insert(*page, image);
        }
        for page in frees {
            batch.frees.push(PageNo(*page));
            next.remove(page);
        }
        let number = self.states.len() as u64;
        let mark = |acked, begun| self.medium.record().record(Event::Mark(Progress { acked, begun }));
        mark(number - 1, number);
        self.states.push(Some(next));
        self.backend.commit(&batch)?;
        self.acked = number;
        mark(number, number);
        Ok(())
    }

    fn compare(&self) -> Judged<()> {
        compare(&*self.backend, self.state())
    }
}

/// Returns a random workload of `count` steps on at most `pages` pages.
pub(crate) fn random_steps(random: &mut Random, count: usize, pages: u32) -> Vec<Step> {
    let mut used: Vec<u32> = Vec::new();
    let mut steps = Vec::new();
    while steps.len() < count {
        match random.below(16) {
            0 => steps.push(Step::Checkpoint),
            1 | 2 => steps.push(Step::Maintain),
            3 => steps.push(Step::Close),
            4 => steps.push(Step::Reopen),
            5 => steps.push(Step::Abort(random_changes(random, pages, &[]))),
            _ => {
                let frees: Vec<u32> = used.iter().copied().filter(|_| random.below(8) == 0).collect();
                let writes = random_changes(random, pages, &frees);
                used.retain(|page| !frees.contains(page));
                used.extend(writes.iter().map(|write| write.0));
                used.sort_unstable();
                used.dedup();
                steps.push(Step::Commit { writes, frees, spilled: random.below(4) == 0 });
            }
        }
    }
    steps
}

fn random_changes(random: &mut Random, pages: u32, without: &[u32]) -> Vec<Change> {
    let mut changes: Vec<Change> = Vec::new();
    let most = if random.below(4) == 0 { 6 } else { 2 };
    for _ in 0..=random.below(most) {
        let page = random.below(u64::from(pages)) as u32;
        if without.contains(&page) || changes.iter().any(|change| change.0 == page) {
            continue;
        }
        let lines = (0..=random.below(4)).map(|_| random.below(5) as usize).collect();
        changes.push((page, lines));
    }
    changes
}
