//! Grouping. Each worker keeps groups of its own; when all rows are through, they are put together.
//!
//! A row's key becomes a place ([`Index`]), where each function keeps its state of the group ([`State`]). Rows of few
//! groups, or all of one, are not taken in one by one: each would wait for the one before.
//!
//! Late texts are grouped by the numbers of their rows. Where another key determines them, that is what they should be,
//! or is made good when all groups are there ([`super::unify`]); where none can, one row stands for all with its text
//! ([`super::interner`]).
//!
//! Many groups are put together by as many threads as there are workers. Each takes the groups whose keys have hashes
//! of its own, of all workers, and makes its part of the answer of them.

use std::sync::Arc;

use super::index::{Index, Table, is_one};
use super::interner::Interner;
use super::kernels;
use super::keys::{KeyLayout, KeyScratch};
use super::output::ResultColumn;
use super::states::{Function, FunctionKind, State};
use super::vector::{Data, Vector};
use crate::{Domain, Error, LateTexts, Result, Type, VECTOR_ROWS};

/// Dense groups, at most. Each takes a few words per worker.
const DENSE_GROUPS: u64 = 1 << 20;

/// Groups so few that each vector is looked at once for each.
const FEW_GROUPS: usize = 8;

/// Groups so many that it is worth it to have them put together by several threads.
const MANY_GROUPS: usize = 1 << 14;

/// What to compute of each group.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// One, or as many as the key needs. Those with numbers of late texts come last.
    pub(super) words: Vec<Word>,
    /// So many of them have none, so that what is different there is a different group.
    pub(super) exact_words: usize,
    /// Of each key, the word that has it, and its part of that.
    places: Vec<(usize, usize)>,
    /// Keys, by number, whose rows are replaced by those that stand for their texts, and the slots and texts of these.
    /// They are as exact as others.
    interned: Vec<(usize, usize, Arc<LateTexts>)>,
    pub(super) keys: Vec<Domain>,
    pub(super) functions: Vec<Function>,
}

/// Parts of a key that 64 bits hold.
#[derive(Clone, Debug)]
pub(super) struct Word {
    layout: KeyLayout,
    slots: Vec<usize>,
}

/// One worker's groups.
#[derive(Debug)]
pub(crate) struct Groups {
    pub(super) index: Index,
    /// Rows of each place.
    pub(super) rows: Vec<i64>,
    pub(super) states: Vec<State>,
    /// Of each key that has one.
    interners: Vec<Interner>,
}

impl Plan {
    /// # Errors
    /// [`Error::Unsupported`] for keys and functions without code.
    pub fn new(keys: Vec<(usize, Domain)>, functions: Vec<Function>) -> Result<Self> {
        functions.iter().try_for_each(Function::check)?;
        let is_interned = interns(keys.iter().map(|(_, domain)| domain));
        let mut interned = Vec::new();
        for (number, (slot, domain)) in keys.iter().enumerate().filter(|(number, _)| is_interned[*number]) {
            interned.extend(domain.late.as_ref().map(|texts| (number, *slot, Arc::clone(texts))));
        }
        let is_late: Vec<bool> =
            keys.iter().zip(&is_interned).map(|((_, d), interned)| d.ty == Type::LateText && !interned).collect();
        let those = |wanted: bool| -> Vec<(usize, Domain)> {
            keys.iter().zip(&is_late).filter(|(_, is_late)| **is_late == wanted).map(|(key, _)| key.clone()).collect()
        };
        let exact = those(false);
        // Late texts of one row are one number, in one slot.
        let mut late = those(true);
        late.sort_by_key(|(slot, _)| *slot);
        late.dedup_by_key(|(slot, _)| *slot);
        let mut words = if exact.is_empty() && !late.is_empty() { Vec::new() } else { words_of(&exact)? };
        let exact_words = words.len();
        if !late.is_empty() {
            words.extend(words_of(&late)?);
        }
        let parts = |words: std::ops::Range<usize>, all: &[Word]| -> Vec<(usize, usize)> {
            words.flat_map(|word| (0..all[word].slots.len()).map(move |part| (word, part))).collect()
        };
        let mut of_exact = parts(0..exact_words, &words).into_iter();
        let of_late = parts(exact_words..words.len(), &words);
        let mut places = Vec::with_capacity(keys.len());
        for (key, is_late) in keys.iter().zip(&is_late) {
            let place = match is_late {
                true => late.iter().position(|(slot, _)| *slot == key.0).and_then(|at| of_late.get(at).copied()),
                false => of_exact.next(),
            };
            places.push(place.ok_or_else(|| Error::Invalid("a key without a place".into()))?);
        }
        let keys = keys.into_iter().map(|(_, domain)| domain).collect();
        Ok(Self { words, exact_words, places, interned, keys, functions })
    }

    /// Whether groups may be finer than they should be, for late texts make a part of their keys.
    pub(super) fn has_late_texts(&self) -> bool {
        self.exact_words < self.words.len()
    }

    /// Whether what is different in a key is a different group.
    pub(super) fn is_exact(&self, key: usize) -> bool {
        self.places[key].0 < self.exact_words
    }

    /// Whether groups lie at their keys.
    pub fn is_dense(&self) -> bool {
        self.dense_places().is_some()
    }

    fn dense_places(&self) -> Option<usize> {
        match self.words.as_slice() {
            [word] if !self.has_late_texts() && self.interned.is_empty() && word.layout.count <= DENSE_GROUPS => {
                Some(word.layout.count as usize)
            }
            _ => None,
        }
    }

    /// The value of a part of a key that is given in words; `None` for NULL.
    pub(super) fn part_of(&self, part: usize, key: &[u64]) -> Option<i128> {
        let (word, part) = self.places[part];
        self.words[word].layout.part_of(part, key[word])
    }

    /// No groups. `rows` is how many rows there can be, where that is known.
    pub fn groups(&self, rows: Option<u64>) -> Groups {
        let places = self.dense_places();
        let index = match places {
            Some(_) => Index::Dense,
            None => Index::Hashed(Box::new(Table::new(self.words.len()))),
        };
        let states = self.functions.iter().map(|function| State::new(function, rows, places)).collect();
        let interners = self.interned.iter().map(|_| Interner::new()).collect();
        let mut groups = Groups { index, rows: Vec::new(), states, interners };
        groups.grow(places.unwrap_or(0), self);
        groups
    }

    /// The answer: keys, then functions, of the groups of all workers. `rows` is as for [`Plan::groups`].
    pub fn finish(&self, mut workers: Vec<Groups>, rows: Option<u64>) -> Result<Vec<ResultColumn>> {
        self.agree(&mut workers)?;
        let threads = workers.len();
        // Groups that may be one have to meet: they have the exact words in common, if nothing else.
        let can_be_parted = !self.is_dense() && self.exact_words > 0;
        if threads > 1 && can_be_parted && workers.iter().map(Groups::len).sum::<usize>() >= MANY_GROUPS {
            return self.finish_in_parts(&workers, threads, rows);
        }
        let mut workers = workers.into_iter();
        let mut all = workers.next().ok_or_else(|| Error::Invalid("a stage without workers".into()))?;
        workers.for_each(|other| all.merge(&other, self, Part { number: 0, of: 1 }));
        Ok(all.unified(self, rows, threads)?.finish(self))
    }

    /// Has one row stand for each text that is interned, whichever worker's it was.
    fn agree(&self, workers: &mut [Groups]) -> Result<()> {
        let Some((first, others)) = workers.split_first_mut() else { return Ok(()) };
        for (at, mut interner) in std::mem::take(&mut first.interners).into_iter().enumerate() {
            let (word, part) = self.places[self.interned[at].0];
            let layout = &self.words[word].layout;
            for other in others.iter_mut() {
                let stand_ins = interner.take_in(&other.interners[at])?;
                other.interners[at] = Interner::new();
                let Index::Hashed(table) = &mut other.index else { continue };
                if stand_ins.is_empty() {
                    continue;
                }
                table.replace_keys(|key| {
                    let row = layout.part_of(part, key[word]);
                    if let Some(stand_in) = row.and_then(|row| stand_ins.get(&(row as u64))) {
                        key[word] = layout.with_part(part, key[word], i128::from(*stand_in));
                    }
                });
            }
        }
        Ok(())
    }

    fn finish_in_parts(&self, workers: &[Groups], threads: usize, rows: Option<u64>) -> Result<Vec<ResultColumn>> {
        let part = |number: usize| {
            let mut groups = self.groups(rows);
            if let Index::Hashed(table) = &mut groups.index {
                // It has as many, at least.
                table.reserve(workers.iter().map(Groups::len).max().unwrap_or(0) / threads);
            }
            workers.iter().for_each(|other| groups.merge(other, self, Part { number, of: threads }));
            Ok(groups.unified(self, rows, 1)?.finish(self))
        };
        let parts: Vec<std::thread::Result<Result<Vec<ResultColumn>>>> = std::thread::scope(|scope| {
            let part = &part;
            let others: Vec<_> = (1..threads).map(|number| scope.spawn(move || part(number))).collect();
            let mine = part(0);
            [Ok(mine)].into_iter().chain(others.into_iter().map(|other| other.join())).collect()
        });
        let mut answer: Vec<ResultColumn> = Vec::new();
        for part in parts {
            let part = part.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            match answer.is_empty() {
                true => answer = part,
                false => answer.iter_mut().zip(part).for_each(|(column, more)| column.append(more)),
            }
        }
        Ok(answer)
    }
}

/// Which late texts are interned: those that the other keys cannot determine, for these have fewer values than there
/// are rows. Where they might, as the column does that a table's rows are known by, groups by rows are as good, and
/// cost no reading.
pub(super) fn interns<'d>(keys: impl Iterator<Item = &'d Domain> + Clone) -> Vec<bool> {
    let others = keys.clone().filter(|domain| domain.ty != Type::LateText);
    let values =
        others.fold(1u128, |values, domain| values.saturating_mul(domain.interval.count().unwrap_or(u128::MAX)));
    let rows = |domain: &Domain| domain.interval.count().unwrap_or(u128::MAX);
    keys.map(|domain| domain.ty == Type::LateText && values < rows(domain)).collect()
}

/// The parts of a key in as few words as they fit, in their order.
fn words_of(keys: &[(usize, Domain)]) -> Result<Vec<Word>> {
    let layout_of = |keys: &[(usize, Domain)]| {
        let domains: Vec<Domain> = keys.iter().map(|(_, domain)| domain.clone()).collect();
        KeyLayout::new(&domains, true)
    };
    let mut words = Vec::new();
    let mut rest = keys;
    loop {
        let mut taken = rest.len();
        let layout = loop {
            match layout_of(&rest[..taken]) {
                Err(_) if taken > 1 => taken -= 1,
                outcome => break outcome?,
            }
        };
        words.push(Word { layout, slots: rest[..taken].iter().map(|(slot, _)| *slot).collect() });
        rest = &rest[taken..];
        if rest.is_empty() {
            return Ok(words);
        }
    }
}

/// A share of all possible groups.
#[derive(Clone, Copy)]
struct Part {
    number: usize,
    of: usize,
}

impl Part {
    /// By the upper bits of a hash: the lower ones pick the slot.
    fn has(self, hash: u32) -> bool {
        (u64::from(hash) * self.of as u64) >> 32 == self.number as u64
    }
}

impl Groups {
    fn grow(&mut self, places: usize, plan: &Plan) {
        self.rows.resize(places, 0);
        for (state, function) in self.states.iter_mut().zip(&plan.functions) {
            state.grow(function, places);
        }
    }

    /// Places that it has.
    fn len(&self) -> usize {
        match &self.index {
            Index::Dense => self.rows.len(),
            Index::Hashed(table) => table.len(),
        }
    }

    /// Bytes they take.
    pub fn bytes(&self) -> usize {
        let index = match &self.index {
            Index::Dense => 0,
            Index::Hashed(table) => table.bytes(),
        };
        let interners: usize = self.interners.iter().map(Interner::bytes).sum();
        index + interners + self.rows.capacity() * 8 + self.states.iter().map(State::bytes).sum::<usize>()
    }

    /// Puts those rows into the first `n` of the vectors of late texts that stand for theirs.
    pub fn intern(&mut self, plan: &Plan, vectors: &mut [Vector], n: usize) -> Result<()> {
        for (interner, (_, slot, texts)) in self.interners.iter_mut().zip(&plan.interned) {
            interner.replace(texts, &mut vectors[*slot], n)?;
        }
        Ok(())
    }

    /// Takes in `n` rows.
    pub fn update(&mut self, plan: &Plan, vectors: &[Vector], n: usize, scratch: &mut KeyScratch) {
        self.places(plan, vectors, n, scratch);
        let places = &scratch.short[..n];
        let is_few = matches!(self.index, Index::Dense) && self.rows.len() <= FEW_GROUPS;
        // A function without an argument reads no vector: there may be none.
        let functions = self.states.iter_mut().zip(&plan.functions);
        let functions = functions.filter(|(_, function)| function.kind != FunctionKind::CountRows);
        if is_one(places) {
            self.rows[places[0] as usize] += n as i64;
            functions.for_each(|(state, function)| state.update_one(function, &vectors[function.slot], places));
        } else if is_few {
            self.update_few(plan, vectors, places);
        } else {
            places.iter().for_each(|place| self.rows[*place as usize] += 1);
            functions.for_each(|(state, function)| state.update(function, &vectors[function.slot], places));
        }
    }

    /// Takes in rows of groups so few that it is best to look at all rows once for each: rows of the same few groups
    /// one after the other would wait for each other's sums.
    fn update_few(&mut self, plan: &Plan, vectors: &[Vector], places: &[u32]) {
        let mut counts = [0; FEW_GROUPS];
        for (place, rows) in self.rows.iter_mut().enumerate() {
            counts[place] = kernels::count_where(places, place as u32);
            *rows += i64::from(counts[place]);
        }
        for (state, function) in self.states.iter_mut().zip(&plan.functions) {
            if function.kind == FunctionKind::CountRows {
                continue;
            }
            let vector = &vectors[function.slot];
            let present = (0u32..).zip(&counts).filter(|(_, count)| **count > 0).map(|(place, _)| place);
            let is_plain = state.is_plain_sum(function, vector);
            match &vector.data {
                Data::I32(values) if is_plain => {
                    present.for_each(|place| state.add(place, kernels::sum_where_i32(&values[..], places, place)));
                }
                // 1,024 such values fit 64 bits.
                Data::I64(values) if is_plain && function.domain.interval.magnitude() < 1 << 53 => {
                    present.for_each(|place| state.add(place, kernels::sum_where_i64(&values[..], places, place)));
                }
                _ => state.update(function, vector, places),
            }
        }
    }

    /// The places of rows, new ones for new keys.
    fn places(&mut self, plan: &Plan, vectors: &[Vector], n: usize, scratch: &mut KeyScratch) {
        let KeyScratch { short, keys } = scratch;
        match &mut self.index {
            Index::Dense => plan.words[0].layout.digits(&plan.words[0].slots, vectors, n, keys, short),
            Index::Hashed(table) => {
                for (word, keys) in plan.words.iter().zip(table.rows()) {
                    word.layout.wide_digits(&word.slots, vectors, n, keys);
                }
                table.find_or_insert(n, short);
                self.make_room(plan);
            }
        }
    }

    /// Room for the states of all keys there are.
    fn make_room(&mut self, plan: &Plan) {
        let places = self.len();
        if places > self.rows.len() {
            // No more than there are: what is behind them in memory has not been touched.
            self.grow(places, plan);
        }
    }

    /// Takes in those of another worker's groups that are in a part.
    fn merge(&mut self, other: &Self, plan: &Plan, part: Part) {
        let mut pairs = Vec::new();
        match (&mut self.index, &other.index) {
            (Index::Hashed(mine), Index::Hashed(theirs)) => {
                let mut places = [0; VECTOR_ROWS];
                let mut found = Vec::with_capacity(VECTOR_ROWS);
                let mut wanted =
                    (0..theirs.len()).filter(|place| part.of == 1 || part.has(theirs.hash(*place, plan.exact_words)));
                loop {
                    found.clear();
                    found.extend(wanted.by_ref().take(VECTOR_ROWS));
                    if found.is_empty() {
                        break;
                    }
                    for (row, place) in found.iter().enumerate() {
                        mine.rows().iter_mut().zip(theirs.key(*place)).for_each(|(word, key)| word[row] = *key);
                    }
                    mine.find_or_insert(found.len(), &mut places);
                    pairs.extend(places.iter().copied().zip(found.iter().map(|place| *place as u32)));
                }
            }
            _ => pairs.extend((0..).zip(&other.rows).filter(|(_, rows)| **rows > 0).map(|(place, _)| (place, place))),
        }
        self.take_in(other, &pairs, plan);
    }

    /// Takes in places of another's: pairs of ours and theirs.
    pub(super) fn take_in(&mut self, other: &Self, pairs: &[(u32, u32)], plan: &Plan) {
        self.make_room(plan);
        for (ours, theirs) in pairs {
            self.rows[*ours as usize] += other.rows[*theirs as usize];
        }
        for ((state, other), function) in self.states.iter_mut().zip(&other.states).zip(&plan.functions) {
            state.merge(function, other, pairs);
        }
    }

    /// Keys, then functions, of all groups.
    fn finish(&self, plan: &Plan) -> Vec<ResultColumn> {
        let places: Vec<usize> = match &self.index {
            // The one group of an aggregate without keys is there even without rows.
            Index::Dense if plan.keys.is_empty() => vec![0],
            Index::Dense => (0..self.rows.len()).filter(|place| self.rows[*place] > 0).collect(),
            Index::Hashed(table) => (0..table.len()).collect(),
        };
        let mut columns = Vec::with_capacity(plan.keys.len() + plan.functions.len());
        for (part, domain) in plan.keys.iter().enumerate() {
            let parts = places.iter().map(|place| match &self.index {
                Index::Dense => plan.part_of(part, &[*place as u64]),
                Index::Hashed(table) => plan.part_of(part, table.key(*place)),
            });
            columns.push(ResultColumn::of_integers(domain, parts));
        }
        for (state, function) in self.states.iter().zip(&plan.functions) {
            columns.push(state.finish(function, &self.rows, &places));
        }
        columns
    }
}
