//! Simulated persistent memory, and the model of its state after a crash.
//!
//! [`SimPmem`] behaves like memory and records its operations. [`LineDurability`] keeps the durable
//! image apart. For each *unit* it has the stores since the unit was last confirmed durable, in
//! program order, and the number of flushed ones. A fence confirms those. A crash leaves each unit,
//! independently of the others, with its confirmed bytes and any prefix of its stores, flushed or
//! not: a cache may evict a line at any time.
//!
//! A store has 8 bytes: larger writes consist of several, in ascending order. In the **strong**
//! model a unit is a line of 64 bytes, whose stores become durable in order (x86-64). In the
//! **weak** one it is a word of 8 bytes: any subset of a line's words may be durable, in any order.

use std::collections::BTreeMap;

use super::{Domain, Granularity, Medium};
use crate::Result;
use crate::backend::LINE_BYTES;
use crate::explore::{Candidate, Coverage, CrashImage, Durability, Event, Limits, Random, Recording, word_hash};

const WORD_BYTES: u64 = 8;
const LINE_WORDS: u64 = LINE_BYTES as u64 / WORD_BYTES;

/// Memory that records its operations.
#[derive(Debug)]
pub struct SimPmem {
    recording: Recording,
}

impl SimPmem {
    /// Creates memory that holds `image` and keeps a trace.
    #[must_use]
    pub fn recording(image: CrashImage) -> Self {
        Self { recording: Recording::new(image, true) }
    }

    /// Creates memory that holds `image`, without a trace.
    #[must_use]
    pub fn quiet(image: CrashImage) -> Self {
        Self { recording: Recording::new(image, false) }
    }

    /// Limits the memory to `room` bytes.
    #[must_use]
    pub fn with_room(self, room: u64) -> Self {
        Self { recording: self.recording.with_room(room) }
    }

    /// Returns the recording, and the bytes that the program sees.
    #[must_use]
    pub fn record(&self) -> &Recording {
        &self.recording
    }
}

impl Medium for SimPmem {
    fn name(&self) -> &str {
        "simulated memory"
    }

    fn granularity(&self) -> Granularity {
        Granularity::Line
    }

    fn domain(&self) -> Domain {
        Domain::Device
    }

    fn len(&self) -> u64 {
        self.recording.len()
    }

    fn grow(&self, len: u64) -> Result<()> {
        self.recording.grow(self.name(), len)
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<()> {
        self.recording.read(self.name(), at, into)
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.recording.write(self.name(), at, bytes)
    }

    fn flush(&self, at: u64, len: usize) -> Result<()> {
        self.recording.record(Event::Flush { at, len });
        Ok(())
    }

    fn fence(&self) -> Result<()> {
        self.recording.record(Event::Fence);
        Ok(())
    }
}

/// The strong model: a prefix of the stores of each line.
pub type LineDurability = Units<LINE_WORDS>;

/// The weak model: a prefix of the stores of each word.
pub type WordDurability = Units<1>;

/// Units of `WORDS` words: the durable contents, and the stores not confirmed yet.
#[derive(Clone, Debug)]
pub struct Units<const WORDS: u64> {
    durable: CrashImage,
    /// The hash of `durable`.
    hash: u64,
    /// The units that have unconfirmed stores.
    dirty: BTreeMap<u64, Pending>,
    /// The units that the last event stored to, with the number of stores that each had before it.
    fresh: Vec<(u64, usize)>,
    /// True if the last event allows an image that was not possible before, even if it stored
    /// nothing.
    moved: bool,
}

/// The stores of one unit.
#[derive(Clone, Debug, Default)]
struct Pending {
    /// Word and value, in program order.
    stores: Vec<(u64, u64)>,
    /// The number of stores, from the first, that were flushed.
    flushed: usize,
}

impl<const WORDS: u64> Durability for Units<WORDS> {
    fn new(image: &CrashImage) -> Self {
        Self { durable: image.clone(), hash: image.hash(), dirty: BTreeMap::new(), fresh: Vec::new(), moved: true }
    }

    fn apply(&mut self, event: &Event) {
        self.fresh.clear();
        self.moved = false;
        match event {
            Event::Write { at, bytes } => self.write(*at, bytes),
            Event::Flush { at, len } => self.flush(*at, *len),
            Event::Fence => self.confirm(),
            Event::FailedFence => unreachable!("sfence does not fail"),
            Event::Grow { len } => {
                self.durable.set_len(*len);
                self.moved = true;
            }
            // Images that were possible before are judged by other rules now.
            Event::Mark(_) => self.moved = true,
        }
    }

    /// Visits images in which at least one store of the last event is durable, or all images if the
    /// event does not store.
    fn images(&self, limits: &Limits, random: &mut Random, visit: &mut dyn FnMut(&dyn Candidate)) -> Coverage {
        if self.fresh.is_empty() && !self.moved {
            return Coverage::Nothing;
        }
        let units: Vec<Choice<'_>> = self.dirty.iter().map(|(unit, pending)| self.choice(*unit, pending)).collect();
        let total = units.iter().try_fold(1_u64, |product, unit| product.checked_mul(unit.hashes.len() as u64));
        let mut chosen = Chosen { base: &self.durable, hash: self.hash, units: &units, prefixes: vec![0; units.len()] };
        if total.is_some_and(|total| total <= limits.exhaustive) {
            loop {
                self.offer(&chosen, visit);
                if !chosen.advance() {
                    return Coverage::All;
                }
            }
        }
        self.extremes(&mut chosen, visit);
        for _ in 0..limits.samples {
            for (prefix, unit) in chosen.prefixes.iter_mut().zip(&units) {
                *prefix = random.below(unit.hashes.len() as u64) as usize;
            }
            self.offer(&chosen, visit);
        }
        Coverage::Sample
    }
}

impl<const WORDS: u64> Units<WORDS> {
    fn write(&mut self, at: u64, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        for word in at / WORD_BYTES..=(at + bytes.len() as u64 - 1) / WORD_BYTES {
            let before = self.newest(word);
            let mut value = before.to_le_bytes();
            for (byte, value) in (word * WORD_BYTES..).zip(&mut value) {
                if let Some(new) = byte.checked_sub(at).and_then(|i| bytes.get(i as usize)) {
                    *value = *new;
                }
            }
            let value = u64::from_le_bytes(value);
            // A store of the present value changes no image.
            if value != before {
                let unit = word / WORDS;
                let pending = self.dirty.entry(unit).or_default();
                if self.fresh.last().is_none_or(|(last, _)| *last != unit) {
                    self.fresh.push((unit, pending.stores.len()));
                }
                pending.stores.push((word, value));
            }
        }
    }

    fn newest(&self, word: u64) -> u64 {
        let pending = self.dirty.get(&(word / WORDS));
        let store = pending.and_then(|pending| pending.stores.iter().rev().find(|store| store.0 == word));
        store.map_or_else(|| self.durable.word(word), |store| store.1)
    }

    fn flush(&mut self, at: u64, len: usize) {
        if len == 0 {
            return;
        }
        let (first, last) = (at / LINE_BYTES as u64, (at + len as u64 - 1) / LINE_BYTES as u64);
        for (_, pending) in self.dirty.range_mut(first * LINE_WORDS / WORDS..(last + 1) * LINE_WORDS / WORDS) {
            pending.flushed = pending.stores.len();
        }
    }

    fn confirm(&mut self) {
        let (durable, hash) = (&mut self.durable, &mut self.hash);
        self.dirty.retain(|_, pending| {
            for (word, value) in pending.stores.drain(..pending.flushed) {
                *hash = hash.wrapping_sub(word_hash(word, durable.word(word))).wrapping_add(word_hash(word, value));
                durable.set_word(word, value);
            }
            pending.flushed = 0;
            !pending.stores.is_empty()
        });
    }

    fn choice<'a>(&'a self, unit: u64, pending: &'a Pending) -> Choice<'a> {
        let mut hash = 0_u64;
        let mut hashes = vec![hash];
        for (i, (word, value)) in pending.stores.iter().enumerate() {
            let earlier = pending.stores[..i].iter().rev().find(|store| store.0 == *word);
            let before = earlier.map_or_else(|| self.durable.word(*word), |store| store.1);
            hash = hash.wrapping_sub(word_hash(*word, before)).wrapping_add(word_hash(*word, *value));
            hashes.push(hash);
        }
        let fresh_from = self.fresh.iter().find(|fresh| fresh.0 == unit).map_or(usize::MAX, |fresh| fresh.1);
        Choice { stores: &pending.stores, hashes, fresh_from }
    }

    /// Visits the images with none of the pending stores, with all of them, and those that differ
    /// from either in one unit.
    fn extremes(&self, chosen: &mut Chosen<'_>, visit: &mut dyn FnMut(&dyn Candidate)) {
        let units = chosen.units;
        for all in [false, true] {
            let extreme = |unit: &Choice<'_>| if all { unit.hashes.len() - 1 } else { 0 };
            chosen.prefixes = units.iter().map(extreme).collect();
            self.offer(chosen, visit);
            for (i, unit) in units.iter().enumerate() {
                for prefix in 0..unit.hashes.len() {
                    chosen.prefixes[i] = prefix;
                    self.offer(chosen, visit);
                }
                chosen.prefixes[i] = extreme(unit);
            }
        }
    }

    fn offer(&self, chosen: &Chosen<'_>, visit: &mut dyn FnMut(&dyn Candidate)) {
        let is_new = |(prefix, unit): (&usize, &Choice<'_>)| *prefix > unit.fresh_from;
        if self.moved || chosen.prefixes.iter().zip(chosen.units).any(is_new) {
            visit(chosen);
        }
    }
}

/// The possible states of one unit after a crash.
struct Choice<'a> {
    stores: &'a [(u64, u64)],
    /// For each length of the prefix, from 0, its contribution to the hash.
    hashes: Vec<u64>,
    /// Prefixes longer than this have a store of the last event.
    fresh_from: usize,
}

/// One prefix per unit.
struct Chosen<'a> {
    base: &'a CrashImage,
    hash: u64,
    units: &'a [Choice<'a>],
    prefixes: Vec<usize>,
}

impl Chosen<'_> {
    /// Advances to the next combination, in the order of an odometer. Returns false after the last.
    fn advance(&mut self) -> bool {
        for (prefix, unit) in self.prefixes.iter_mut().zip(self.units) {
            *prefix += 1;
            if *prefix < unit.hashes.len() {
                return true;
            }
            *prefix = 0;
        }
        false
    }
}

impl Candidate for Chosen<'_> {
    fn hash(&self) -> u64 {
        let parts = self.units.iter().zip(&self.prefixes).map(|(unit, prefix)| unit.hashes[*prefix]);
        parts.fold(self.hash, u64::wrapping_add)
    }

    fn build(&self) -> CrashImage {
        let mut image = self.base.clone();
        for (unit, prefix) in self.units.iter().zip(&self.prefixes) {
            for (word, value) in &unit.stores[..*prefix] {
                image.set_word(*word, *value);
            }
        }
        image
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::explore::Progress;
    use crate::medium::conformance;

    #[test]
    fn simulated_memory_conforms() {
        conformance::check(&SimPmem::recording(CrashImage::new()));
    }

    /// Returns the first words of the images that a crash at the very end can leave.
    fn left_by<D: Durability>(run: impl Fn(&SimPmem)) -> BTreeSet<Vec<u64>> {
        let mut empty = CrashImage::new();
        empty.set_len(4096);
        let medium = SimPmem::recording(empty.clone());
        run(&medium);
        medium.record().record(Event::Mark(Progress::default()));
        let trace = medium.record().take_trace();
        let mut model = D::new(&empty);
        trace.iter().for_each(|event| model.apply(event));
        let mut left = BTreeSet::new();
        let coverage = model.images(&Limits::default(), &mut Random::new(1), &mut |candidate| {
            let image = candidate.build();
            assert_eq!(image.hash(), candidate.hash());
            left.insert((0..16).map(|word| image.word(word)).filter(|word| *word > 0).collect());
        });
        assert_eq!(coverage, Coverage::All);
        left
    }

    fn sets(sets: &[&[u64]]) -> BTreeSet<Vec<u64>> {
        sets.iter().map(|set| set.to_vec()).collect()
    }

    #[test]
    fn a_line_keeps_program_order_lines_among_each_other_do_not() {
        let run = |medium: &SimPmem| {
            for (at, value) in [(0, 1_u64), (8, 2), (64, 3)] {
                medium.write(at, &value.to_le_bytes()).unwrap();
            }
        };
        assert_eq!(left_by::<LineDurability>(run), sets(&[&[], &[1], &[1, 2], &[3], &[1, 3], &[1, 2, 3]]));
        let any_subset = sets(&[&[], &[1], &[2], &[1, 2], &[3], &[1, 3], &[2, 3], &[1, 2, 3]]);
        assert_eq!(left_by::<WordDurability>(run), any_subset);
    }

    #[test]
    fn a_fence_confirms_what_was_flushed_before_it_and_nothing_else() {
        let run = |medium: &SimPmem| {
            medium.write(0, &1_u64.to_le_bytes()).unwrap();
            medium.flush(0, 8).unwrap();
            medium.write(0, &2_u64.to_le_bytes()).unwrap();
            medium.write(64, &3_u64.to_le_bytes()).unwrap();
            medium.fence().unwrap();
        };
        let left = sets(&[&[1], &[2], &[1, 3], &[2, 3]]);
        assert_eq!(left_by::<LineDurability>(run), left);
        assert_eq!(left_by::<WordDurability>(run), left);
    }

    #[test]
    fn boundaries_together_visit_every_image_once() {
        let mut empty = CrashImage::new();
        empty.set_len(4096);
        let medium = SimPmem::recording(empty.clone());
        for i in 0..4_u64 {
            medium.write(64 * i, &(i + 1).to_le_bytes()).unwrap();
        }
        let mut explorer = crate::explore::Explorer::new(Limits::default(), 1);
        let mut judged = 0;
        let judge = &mut |_: &CrashImage, _: Progress| {
            judged += 1;
            Ok(())
        };
        explorer.explore::<LineDurability>(&empty, &medium.record().take_trace(), judge).unwrap();
        assert_eq!((judged, explorer.counts().images), (15, 15), "all but the one from before the first event");
    }
}
