//! Grouping. Each worker keeps its own groups, which are merged after the last row.
//!
//! A row's key maps to a place ([`Index`]), where each function keeps its state of the group
//! ([`State`]). Rows of few groups, or all of one group, are not added one by one, because each
//! addition would wait for the previous one.
//!
//! Late strings are grouped by row number. If another key determines them, these groups are
//! correct, or are corrected once all groups exist ([`super::unify`]). If no other key can
//! determine them, one row represents all rows with an equal string ([`super::interner`]).
//!
//! Many groups are merged by as many threads as there are workers. Each thread takes the groups of
//! all workers whose key hashes are in its range, and makes a part of the answer of them. Keys that
//! arrived in order are merged by [`super::ascending`]. If memory does not suffice for a merge, or
//! did not suffice earlier, groups are merged from files ([`Spilled`]).

use std::sync::Arc;

use super::grouper::{Grouper, Spilled};
use super::index::{Index, Table, hash_of, is_one};
use super::interner::Interner;
use super::kernels;
use super::keys::{KeyLayout, KeyScratch};
use super::output::ResultColumn;
use super::page::{PageGroups, Reader, put, signed, unsigned};
use super::spill::Spill;
use super::states::{Function, FunctionKind, NOT_HERE, State};
use super::vector::{Data, Vector};
use crate::budget::{Budget, Growth, Holder, Room};
use crate::{Domain, Error, LateTexts, Result, Type, VECTOR_ROWS};

/// Most groups of a dense index. Each takes a few words per worker.
const DENSE_GROUPS: u64 = 1 << 20;

/// Largest number of groups for which each vector is scanned once per group.
const FEW_GROUPS: usize = 8;

/// Number of groups from which a merge by several threads pays off.
const MANY_GROUPS: usize = 1 << 14;

/// Keys and functions of an aggregation.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Words of the key, at least one. Words with row numbers of late strings come last.
    pub(super) words: Vec<Word>,
    /// Number of words without row numbers of late strings. Keys that differ in these words belong
    /// to different groups.
    pub(super) exact_words: usize,
    /// For each key, its word and its part of that word.
    places: Vec<(usize, usize)>,
    /// Keys whose row numbers are replaced by those of representatives: the key's number, slot and
    /// strings. These keys are exact.
    interned: Vec<(usize, usize, Arc<LateTexts>)>,
    pub(super) keys: Vec<Domain>,
    pub(super) functions: Vec<Function>,
}

/// Parts of a key that fit 64 bits together.
#[derive(Clone, Debug)]
pub(super) struct Word {
    layout: KeyLayout,
    slots: Vec<usize>,
}

/// Groups of one worker.
#[derive(Debug)]
pub(crate) struct Groups {
    pub(super) index: Index,
    /// Number of rows of each place.
    pub(super) rows: Vec<i64>,
    pub(super) states: Vec<State>,
    /// Interners of the interned keys.
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
        // Late strings of one row share one number, in one slot.
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

    /// Returns true if groups may be finer than they should be, because late strings are part of
    /// their keys.
    pub(super) fn has_late_texts(&self) -> bool {
        self.exact_words < self.words.len()
    }

    /// Returns true if different values of a key always mean different groups.
    pub(super) fn is_exact(&self, key: usize) -> bool {
        self.places[key].0 < self.exact_words
    }

    /// Returns true if groups can be partitioned by hash. Groups that may be equal have to be in
    /// one partition, and they are only known to share the exact words of their keys.
    fn can_be_parted(&self) -> bool {
        !self.is_dense() && self.exact_words > 0
    }

    /// Returns true if groups can be spilled. The representative of an interned string is only
    /// known after all rows, so groups with interned keys cannot be spilled.
    pub fn can_spill(&self) -> bool {
        self.exact_words > 0 && self.interned.is_empty()
    }

    /// Returns true if the place of a group is its key.
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

    /// Returns the value of a part of a key given in words; `None` for NULL.
    pub(super) fn part_of(&self, part: usize, key: &[u64]) -> Option<i128> {
        let (word, part) = self.places[part];
        self.words[word].layout.part_of(part, key[word])
    }

    /// Returns the functions.
    pub fn functions(&self) -> &[Function] {
        &self.functions
    }

    /// Creates empty groups, with a dense index if there is room for all places. `rows` is the
    /// upper bound on the number of rows, if it is known.
    pub fn groups_within(&self, rows: Option<u64>, room: &mut Room) -> Result<Groups> {
        if let Some(places) = self.dense_places() {
            let mut groups = self.empty(Index::Dense, rows, Some(places));
            let needed = groups.growth(self, places, 0).bytes() + self.scratch_bytes();
            match room.hold(needed) {
                Ok(()) => {
                    groups.grow(places, self);
                    return Ok(groups);
                }
                // A group that exists even without rows has its place.
                Err(Error::Memory { .. }) if places > 1 => {}
                Err(e) => return Err(e),
            }
        }
        // Rows of a table may arrive in the order of their keys.
        match self.words.len() {
            1 => Ok(self.empty(Index::Hashed(Box::new(Table::in_order())), rows, None)),
            _ => Ok(self.hashed_groups(rows)),
        }
    }

    /// Creates empty groups with a hashed index. `rows` is as for [`Plan::groups_within`].
    pub fn hashed_groups(&self, rows: Option<u64>) -> Groups {
        self.empty(Index::Hashed(Box::new(Table::new(self.words.len()))), rows, None)
    }

    fn empty(&self, index: Index, rows: Option<u64>, places: Option<usize>) -> Groups {
        let states = self.functions.iter().map(|function| State::new(function, rows, places)).collect();
        let interners = self.interned.iter().map(|_| Interner::new()).collect();
        Groups { index, rows: Vec::new(), states, interners }
    }

    /// Creates a buffer for pages of groups.
    pub fn page(&self, rows: Option<u64>) -> PageGroups {
        let states = self.functions.iter().map(|function| State::new(function, rows, None)).collect();
        PageGroups { rows: Vec::new(), states }
    }

    /// Returns the bytes that spilling, and reading spilled pages, takes beside the groups.
    pub fn scratch_bytes(&self) -> usize {
        let state_words = self.functions.iter().map(Function::state_words).sum::<usize>();
        let page_bytes = VECTOR_ROWS * 8 * (self.words.len() + 1 + state_words);
        // Each page is in memory as bytes and in decoded form.
        Spill::scratch_bytes(self.functions.iter().any(|function| function.is_distinct)) + 2 * page_bytes
    }

    /// Returns the bytes of a group in the answer while it is made.
    pub fn result_bytes(&self) -> usize {
        // For each key a value of up to 128 bits and a NULL flag, a place, and the functions'
        // results.
        17 * self.keys.len() + 8 + self.functions.iter().map(Function::result_bytes).sum::<usize>()
    }

    /// Merges the groups of all workers into the answer: keys, then functions. `rows` is as for
    /// [`Plan::groups_within`].
    pub fn finish(&self, mut workers: Vec<Grouper>, rows: Option<u64>, budget: &Budget) -> Result<Answer> {
        if workers.iter().all(|worker| worker.spill.is_none()) {
            match self.finish_in_memory(&mut workers, rows, budget) {
                // A single group cannot be partitioned.
                Err(e @ Error::Memory { .. }) => {
                    if self.keys.is_empty() || !self.put_away(&mut workers)? {
                        return Err(e);
                    }
                }
                outcome => return outcome.map(Answer::Rows),
            }
        } else if !self.put_away(&mut workers)? {
            return Err(Error::Memory { what: "groups".into(), needed: 0, available: 0 });
        }
        let spilled = Spilled::new(self, rows, budget, workers);
        match spilled.is_empty() {
            true => Ok(Answer::Rows(Chunks::default())),
            false => Ok(Answer::Spilled(Arc::new(spilled))),
        }
    }

    /// Spills the groups of all workers. Returns false if they cannot be spilled.
    fn put_away(&self, workers: &mut [Grouper]) -> Result<bool> {
        let outcomes: Vec<_> = std::thread::scope(|scope| {
            let handles: Vec<_> = workers.iter_mut().map(|worker| scope.spawn(move || worker.put_away(self))).collect();
            handles.into_iter().map(|handle| handle.join()).collect()
        });
        let mut is_done = true;
        for outcome in outcomes {
            is_done &= outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        Ok(is_done)
    }

    /// Computes the answer in memory. On an error the workers still have all groups, possibly
    /// distributed over fewer workers.
    fn finish_in_memory(&self, workers: &mut Vec<Grouper>, rows: Option<u64>, budget: &Budget) -> Result<Chunks> {
        self.agree(&mut workers.iter_mut().filter_map(Grouper::groups_mut).collect::<Vec<_>>())?;
        let threads = workers.len();
        let groups = workers.iter().filter_map(Grouper::groups).map(Groups::len).sum::<usize>();
        if threads > 1 && self.can_be_parted() && groups >= MANY_GROUPS {
            if let Some(answer) = self.finish_ascending(workers, budget)? {
                return Ok(answer);
            }
            return self.finish_in_parts(workers, threads, rows, budget);
        }
        while let [first, .., last] = workers.as_mut_slice() {
            first.take_in(last, self, rows)?;
            workers.pop();
        }
        let only = workers.first_mut().ok_or_else(|| Error::Invalid("a stage without workers".into()))?;
        only.unify(self, rows, threads)?;
        let mut room = budget.room("an answer", Holder::Keeps);
        let columns = match only.groups() {
            Some(all) => {
                room.hold(all.len() * self.result_bytes())?;
                all.finish(self, &all.places(self).collect::<Vec<_>>())
            }
            // No worker has seen a row.
            None => {
                let none = self.groups_within(rows, &mut room)?;
                none.finish(self, &none.places(self).collect::<Vec<_>>())
            }
        };
        Ok(Chunks { chunks: vec![columns], rooms: vec![room] })
    }

    /// Agrees on one representative row for each interned string across workers.
    fn agree(&self, workers: &mut [&mut Groups]) -> Result<()> {
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

    fn finish_in_parts(
        &self,
        workers: &[Grouper],
        threads: usize,
        rows: Option<u64>,
        budget: &Budget,
    ) -> Result<Chunks> {
        let workers: Vec<&Groups> = workers.iter().filter_map(Grouper::groups).collect();
        let part = |number: usize| -> Result<(Vec<ResultColumn>, Room)> {
            let mut room = budget.room("groups", Holder::Keeps);
            let mut groups = self.hashed_groups(rows);
            // A lower bound on the number of groups of the part.
            let least = workers.iter().map(|groups| groups.len()).max().unwrap_or(0) / threads;
            room.hold(groups.growth(self, least, 0).bytes())?;
            if let Index::Hashed(table) = &mut groups.index {
                table.reserve(least);
            }
            let part = Part { number, of: threads };
            workers.iter().try_for_each(|other| groups.merge(other, self, part, &mut room))?;
            groups.unify(self, rows, &mut room, 1)?;
            let answer_bytes = groups.len() * self.result_bytes();
            room.hold(groups.bytes() + answer_bytes)?;
            let columns = groups.finish(self, &groups.places(self).collect::<Vec<_>>());
            drop(groups);
            room.keep(answer_bytes);
            Ok((columns, room))
        };
        let parts: Vec<_> = std::thread::scope(|scope| {
            let part = &part;
            let others: Vec<_> = (1..threads).map(|number| scope.spawn(move || part(number))).collect();
            let mine = part(0);
            [Ok(mine)].into_iter().chain(others.into_iter().map(|other| other.join())).collect()
        });
        let mut answer = Chunks::default();
        for part in parts {
            let (columns, room) = part.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            answer.chunks.push(columns);
            answer.rooms.push(room);
        }
        Ok(answer)
    }
}

/// Returns true for each late string key that is interned. A key is interned if the other keys have
/// fewer combinations of values than it has rows, so they cannot determine it. If they might
/// determine it, as a table's primary key does, groups by row number are as good, and no strings
/// are read.
pub(super) fn interns<'d>(keys: impl Iterator<Item = &'d Domain> + Clone) -> Vec<bool> {
    let others = keys.clone().filter(|domain| domain.ty != Type::LateText);
    let values =
        others.fold(1u128, |values, domain| values.saturating_mul(domain.interval.count().unwrap_or(u128::MAX)));
    let rows = |domain: &Domain| domain.interval.count().unwrap_or(u128::MAX);
    keys.map(|domain| domain.ty == Type::LateText && values < rows(domain)).collect()
}

/// Answer of a pipeline; empty if the pipeline has built a table.
#[derive(Debug)]
pub enum Answer {
    /// In memory.
    Rows(Chunks),
    /// In files. [`Spilled::merger`] merges them part by part.
    Spilled(Arc<Spilled>),
}

/// Chunks of columns, with the reservation of their memory.
#[derive(Debug, Default)]
pub struct Chunks {
    /// Columns of each chunk.
    pub chunks: Vec<Vec<ResultColumn>>,
    /// Reservations, released when all of it is dropped.
    pub(super) rooms: Vec<Room>,
}

/// Packs the parts of a key into as few words as possible, in their order.
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

/// A share of the groups, by hash.
#[derive(Clone, Copy)]
struct Part {
    number: usize,
    of: usize,
}

impl Part {
    /// Returns true if the part has a hash. Parts are ranges of the upper bits, since the lower
    /// bits pick the slot.
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

    /// Returns the number of places.
    pub fn len(&self) -> usize {
        match &self.index {
            Index::Dense => self.rows.len(),
            Index::Hashed(table) => table.len(),
        }
    }

    /// Returns the bytes that they take.
    pub fn bytes(&self) -> usize {
        let index = match &self.index {
            Index::Dense => 0,
            Index::Hashed(table) => table.bytes(),
        };
        let interners: usize = self.interners.iter().map(Interner::bytes).sum();
        index + interners + self.rows.capacity() * 8 + self.states.iter().map(State::bytes).sum::<usize>()
    }

    /// Replaces the first `n` row numbers of late strings by those of their representatives.
    pub fn intern(&mut self, plan: &Plan, vectors: &mut [Vector], n: usize) -> Result<()> {
        for (interner, (_, slot, texts)) in self.interners.iter_mut().zip(&plan.interned) {
            interner.replace(texts, &mut vectors[*slot], n)?;
        }
        Ok(())
    }

    /// Returns the bytes that they take with `places` more places, and `values` more values in each
    /// function's sets.
    pub fn growth(&self, plan: &Plan, places: usize, values: usize) -> Growth {
        let index = match &self.index {
            Index::Dense => Growth::default(),
            Index::Hashed(table) => table.growth(places),
        };
        let interners = Growth::none(self.interners.iter().map(Interner::bytes).sum());
        let states = self.states.iter().zip(&plan.functions);
        states.fold(index.and(interners).and(Growth::of_vec(&self.rows, places)), |sum, (state, function)| {
            sum.and(state.growth(function, places, values))
        })
    }

    /// Returns the bytes that they take after `rows` more rows.
    pub fn growth_of_rows(&self, plan: &Plan, rows: usize) -> Growth {
        let places = if matches!(self.index, Index::Dense) { 0 } else { rows };
        self.growth(plan, places, rows)
    }

    /// Returns the bytes that they take after a merge of other groups, including the memory of the
    /// merge itself.
    pub fn growth_of_groups(&self, plan: &Plan, other: &Self) -> Growth {
        let places = if matches!(self.index, Index::Dense) { 0 } else { other.len() };
        let values = other.states.iter().filter_map(State::seen).map(|seen| seen.len()).max().unwrap_or(0);
        self.growth(plan, places, values).and(Growth::none(other.len() * size_of::<u32>()))
    }

    /// Removes all groups, and keeps the memory.
    pub fn clear(&mut self, plan: &Plan) {
        let places = self.rows.len();
        self.rows.clear();
        self.states.iter_mut().for_each(State::clear);
        match &mut self.index {
            Index::Dense => self.grow(places, plan),
            Index::Hashed(table) => table.clear(),
        }
    }

    /// Returns the places that have groups.
    pub fn places(&self, plan: &Plan) -> impl Iterator<Item = usize> + '_ {
        // The one group of an aggregation without keys exists even without rows.
        let may_be_empty = matches!(self.index, Index::Dense) && !plan.keys.is_empty();
        (0..self.len()).filter(move |place| !may_be_empty || self.rows[*place] > 0)
    }

    /// Returns the states, by function.
    pub fn states(&self) -> &[State] {
        &self.states
    }

    /// Returns a word of a place's key.
    fn key(&self, place: usize, word: usize) -> u64 {
        match &self.index {
            Index::Dense => place as u64,
            Index::Hashed(table) => table.key(place)[word],
        }
    }

    /// Returns the hash of the key words that groups of the same key share for certain.
    pub fn hash(&self, plan: &Plan, place: usize) -> u32 {
        match &self.index {
            Index::Dense => hash_of(std::iter::once(place as u64)),
            Index::Hashed(table) => table.hash(place, plan.exact_words),
        }
    }

    /// Writes the keys of `n` places, in their order.
    pub fn write_keys(&self, out: &mut Vec<u8>, n: usize, place: impl Fn(usize) -> usize) {
        let words = match &self.index {
            Index::Dense => 1,
            Index::Hashed(table) => table.words(),
        };
        (0..words).for_each(|word| put(out, n, |row| self.key(place(row), word)));
    }

    /// Writes places, without their sets of values.
    pub fn write(&self, plan: &Plan, places: &[u32], out: &mut Vec<u8>) {
        self.write_keys(out, places.len(), |row| places[row] as usize);
        put(out, places.len(), |row| unsigned(self.rows[places[row] as usize]));
        debug_assert_eq!(self.states.len(), plan.functions.len());
        self.states.iter().for_each(|state| state.write(places, out));
    }

    /// Finds the places of the keys of a page with `n` entries, and adds new places for new keys.
    pub fn places_of_page(&mut self, plan: &Plan, n: usize, page: &mut Reader<'_>) -> Result<[u32; VECTOR_ROWS]> {
        let mut places = [0; VECTOR_ROWS];
        let Index::Hashed(table) = &mut self.index else {
            return Err(Error::Invalid("groups that were spilled, for places of their own".into()));
        };
        page.keys(n, table.rows())?;
        table.find_or_insert(n, &mut places);
        self.make_room(plan);
        Ok(places)
    }

    /// Merges the groups of a page into their places.
    pub fn merge_page(&mut self, plan: &Plan, page: &PageGroups, places: &[u32; VECTOR_ROWS]) {
        let pairs: Vec<(u32, u32)> = places.iter().copied().zip(0..page.rows.len() as u32).collect();
        self.merge_pairs(plan, &page.rows, &page.states, &pairs);
    }

    /// Merges the values of a page into one function's sets at these places.
    pub fn take_values(
        &mut self,
        function: usize,
        n: usize,
        places: &[u32; VECTOR_ROWS],
        page: &mut Reader<'_>,
    ) -> Result<()> {
        let mut values = Vec::with_capacity(n);
        page.words(n, |word| values.push(signed(word)))?;
        match self.states.get_mut(function).filter(|state| state.seen().is_some()) {
            Some(state) => state.take_values(&places[..n], values.into_iter()),
            None => return Err(page.corrupt("values of a function that has no sets of them")),
        }
        Ok(())
    }

    fn merge_pairs(&mut self, plan: &Plan, rows: &[i64], states: &[State], pairs: &[(u32, u32)]) {
        for (ours, theirs) in pairs {
            self.rows[*ours as usize] += rows[*theirs as usize];
        }
        for ((state, other), function) in self.states.iter_mut().zip(states).zip(&plan.functions) {
            state.merge(function, other, pairs);
        }
    }

    /// Computes the keys of the next `n` rows.
    pub fn look_at(&mut self, plan: &Plan, vectors: &[Vector], n: usize) {
        let Index::Hashed(table) = &mut self.index else { return };
        for (word, keys) in plan.words.iter().zip(table.rows()) {
            word.layout.wide_digits(&word.slots, vectors, n, keys);
        }
        table.rows_are_there(n);
    }

    /// Returns the keys by place, if they ascend.
    pub fn ascending(&self) -> Option<&[u64]> {
        match &self.index {
            Index::Dense => None,
            Index::Hashed(table) => table.ascending(),
        }
    }

    /// Leaves ordered mode: later keys may be in any order.
    pub fn leave_order(&mut self) {
        if let Index::Hashed(table) = &mut self.index {
            table.leave_order();
        }
    }

    /// Adds the `n` rows prepared by [`Groups::look_at`].
    pub fn update(&mut self, plan: &Plan, vectors: &[Vector], n: usize, scratch: &mut KeyScratch) {
        self.find_places(plan, vectors, n, scratch);
        let places = &scratch.short[..n];
        let is_few = matches!(self.index, Index::Dense) && self.rows.len() <= FEW_GROUPS;
        // A function without an argument reads no vector; there may be none.
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

    /// Adds rows of few groups by scanning all rows once per group. One-by-one additions to the
    /// same few groups would wait for each other's sums.
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
                // A sum of 1,024 such values fits 64 bits.
                Data::I64(values) if is_plain && function.domain.interval.magnitude() < 1 << 53 => {
                    present.for_each(|place| state.add(place, kernels::sum_where_i64(&values[..], places, place)));
                }
                _ => state.update(function, vector, places),
            }
        }
    }

    /// Finds the places of rows, and adds new places for new keys.
    fn find_places(&mut self, plan: &Plan, vectors: &[Vector], n: usize, scratch: &mut KeyScratch) {
        let KeyScratch { short, keys } = scratch;
        match &mut self.index {
            Index::Dense => plan.words[0].layout.digits(&plan.words[0].slots, vectors, n, keys, short),
            Index::Hashed(table) => {
                table.find_or_insert(n, short);
                self.make_room(plan);
            }
        }
    }

    /// Grows the states to the number of keys.
    fn make_room(&mut self, plan: &Plan) {
        let places = self.len();
        if places > self.rows.len() {
            // Exactly to the number of keys: memory behind them stays untouched.
            self.grow(places, plan);
        }
    }

    /// Merges places of other groups, given as pairs of this and the other place. There must be
    /// room for them.
    pub(super) fn take_in(&mut self, other: &Self, pairs: &[(u32, u32)], plan: &Plan) {
        self.make_room(plan);
        self.merge_pairs(plan, &other.rows, &other.states, pairs);
        if self.states.iter().all(|state| state.seen().is_none()) {
            return;
        }
        let mut ours_of = vec![NOT_HERE; other.len()];
        pairs.iter().for_each(|(ours, theirs)| ours_of[*theirs as usize] = *ours);
        for (state, other) in self.states.iter_mut().zip(&other.states) {
            state.merge_sets(other, &ours_of);
        }
    }

    /// Merges all groups of another worker. There must be room for them.
    pub fn merge_all(&mut self, other: &Self, plan: &Plan) -> Result<()> {
        self.merge_with(other, plan, Part { number: 0, of: 1 }, |_, _, _| Ok(()))
    }

    /// Merges the groups of another worker that are in a part.
    ///
    /// # Errors
    /// [`Error::Memory`]; some groups may have been merged by then.
    fn merge(&mut self, other: &Self, plan: &Plan, part: Part, room: &mut Room) -> Result<()> {
        let map_bytes = if plan.functions.iter().any(|f| f.is_distinct) { other.len() * size_of::<u32>() } else { 0 };
        self.merge_with(other, plan, part, |groups, places, values| {
            room.hold(groups.growth(plan, places, values).bytes() + map_bytes)
        })
    }

    /// Merges groups, one vector's worth at a time. Calls `make_room` before each of them, and
    /// before each function's values.
    fn merge_with(
        &mut self,
        other: &Self,
        plan: &Plan,
        part: Part,
        mut make_room: impl FnMut(&Self, usize, usize) -> Result<()>,
    ) -> Result<()> {
        let has_sets = self.states.iter().any(|state| state.seen().is_some());
        let mut all = vec![NOT_HERE; if has_sets { other.len() } else { 0 }];
        let mut wanted = other.places(plan).filter(|place| part.of == 1 || part.has(other.hash(plan, *place)));
        let mut places = [0; VECTOR_ROWS];
        let mut found = Vec::with_capacity(VECTOR_ROWS);
        let mut pairs: Vec<(u32, u32)> = Vec::with_capacity(VECTOR_ROWS);
        loop {
            found.clear();
            found.extend(wanted.by_ref().take(VECTOR_ROWS));
            if found.is_empty() {
                break;
            }
            match &mut self.index {
                Index::Dense => {
                    let ours = found.iter().map(|place| other.key(*place, 0) as u32);
                    places.iter_mut().zip(ours).for_each(|(to, place)| *to = place);
                }
                Index::Hashed(_) => {
                    make_room(self, found.len(), 0)?;
                    let Index::Hashed(mine) = &mut self.index else { continue };
                    for (number, word) in mine.rows().iter_mut().enumerate() {
                        word.iter_mut().zip(&found).for_each(|(word, place)| *word = other.key(*place, number));
                    }
                    mine.find_or_insert(found.len(), &mut places);
                    self.make_room(plan);
                }
            }
            pairs.clear();
            pairs.extend(places.iter().copied().zip(found.iter().map(|place| *place as u32)));
            self.merge_pairs(plan, &other.rows, &other.states, &pairs);
            if has_sets {
                pairs.iter().for_each(|(ours, theirs)| all[*theirs as usize] = *ours);
            }
        }
        for number in 0..self.states.len() {
            let Some(seen) = other.states[number].seen() else { continue };
            let mut values = 0;
            seen.for_each(|place, _| values += usize::from(all[place as usize] != NOT_HERE));
            make_room(self, 0, values)?;
            self.states[number].merge_sets(&other.states[number], &all);
        }
        Ok(())
    }

    /// Returns the columns of keys, then functions, of the groups at some places.
    pub fn finish(&self, plan: &Plan, places: &[usize]) -> Vec<ResultColumn> {
        let mut columns = Vec::with_capacity(plan.keys.len() + plan.functions.len());
        for (part, domain) in plan.keys.iter().enumerate() {
            let parts = places.iter().map(|place| match &self.index {
                Index::Dense => plan.part_of(part, &[*place as u64]),
                Index::Hashed(table) => plan.part_of(part, table.key(*place)),
            });
            columns.push(ResultColumn::of_integers(domain, parts));
        }
        for (state, function) in self.states.iter().zip(&plan.functions) {
            columns.push(state.finish(function, &self.rows, places));
        }
        columns
    }
}
