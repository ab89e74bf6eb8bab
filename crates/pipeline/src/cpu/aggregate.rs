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
//! of its own, of all workers, and makes its part of the answer of them; keys that came in order are for
//! [`super::ascending`]. Where there is no memory for that, or was none
//! before, groups are put together from files ([`Spilled`]).

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

    /// Whether groups can be parted by hashes: groups that may be one have to meet, and what they have in common, if
    /// nothing else, are the exact words of their keys.
    fn can_be_parted(&self) -> bool {
        !self.is_dense() && self.exact_words > 0
    }

    /// Whether groups can be put into files. Which row stands for a text that is interned is known when all of them
    /// have been met, and no sooner.
    pub fn can_spill(&self) -> bool {
        self.exact_words > 0 && self.interned.is_empty()
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

    /// The functions.
    pub fn functions(&self) -> &[Function] {
        &self.functions
    }

    /// No groups, at places of their own where there is room for them all. `rows` is how many rows there can be, where
    /// that is known.
    pub fn groups_within(&self, rows: Option<u64>, room: &mut Room) -> Result<Groups> {
        if let Some(places) = self.dense_places() {
            let mut groups = self.empty(Index::Dense, rows, Some(places));
            let needed = groups.growth(self, places, 0).bytes() + self.scratch_bytes();
            match room.hold(needed) {
                Ok(()) => {
                    groups.grow(places, self);
                    return Ok(groups);
                }
                // One that is there even without rows has its place.
                Err(Error::Memory { .. }) if places > 1 => {}
                Err(e) => return Err(e),
            }
        }
        // Those of the rows of a table may come in the order of their keys.
        match self.words.len() {
            1 => Ok(self.empty(Index::Hashed(Box::new(Table::in_order())), rows, None)),
            _ => Ok(self.hashed_groups(rows)),
        }
    }

    /// No groups, whose places are found by their keys. `rows` is as for [`Plan::groups_within`].
    pub fn hashed_groups(&self, rows: Option<u64>) -> Groups {
        self.empty(Index::Hashed(Box::new(Table::new(self.words.len()))), rows, None)
    }

    fn empty(&self, index: Index, rows: Option<u64>, places: Option<usize>) -> Groups {
        let states = self.functions.iter().map(|function| State::new(function, rows, places)).collect();
        let interners = self.interned.iter().map(|_| Interner::new()).collect();
        Groups { index, rows: Vec::new(), states, interners }
    }

    /// Where pages of groups are read to.
    pub fn page(&self, rows: Option<u64>) -> PageGroups {
        let states = self.functions.iter().map(|function| State::new(function, rows, None)).collect();
        PageGroups { rows: Vec::new(), states }
    }

    /// Bytes that spilling takes beside the groups, and reading what was spilled.
    pub fn scratch_bytes(&self) -> usize {
        let state_words = self.functions.iter().map(Function::state_words).sum::<usize>();
        let page_bytes = VECTOR_ROWS * 8 * (self.words.len() + 1 + state_words);
        // As bytes, and as what they say.
        Spill::scratch_bytes(self.functions.iter().any(|function| function.is_distinct)) + 2 * page_bytes
    }

    /// Bytes of a group in the answer, while it is made.
    pub fn result_bytes(&self) -> usize {
        // A key's value, be it of 128 bits, and whether it is NULL; a place; and the functions' results.
        17 * self.keys.len() + 8 + self.functions.iter().map(Function::result_bytes).sum::<usize>()
    }

    /// The answer: keys, then functions, of the groups of all workers. `rows` is as for [`Plan::groups_within`].
    pub fn finish(&self, mut workers: Vec<Grouper>, rows: Option<u64>, budget: &Budget) -> Result<Answer> {
        if workers.iter().all(|worker| worker.spill.is_none()) {
            match self.finish_in_memory(&mut workers, rows, budget) {
                // A group cannot be parted.
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

    /// Spills what all workers have; whether there is a place for it.
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

    /// The answer, if there is memory for it. If not, the workers still have all groups, though fewer of them may.
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
            // Nobody has seen a row.
            None => {
                let none = self.groups_within(rows, &mut room)?;
                none.finish(self, &none.places(self).collect::<Vec<_>>())
            }
        };
        Ok(Chunks { chunks: vec![columns], rooms: vec![room] })
    }

    /// Has one row stand for each text that is interned, whichever worker's it was.
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
            // It has as many, at least.
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

/// The answer of a pipeline, or none if it has built a table.
#[derive(Debug)]
pub enum Answer {
    /// In memory.
    Rows(Chunks),
    /// In files: [`Spilled::merger`] makes it, part by part.
    Spilled(Arc<Spilled>),
}

/// Chunks of columns, and the memory that they take.
#[derive(Debug, Default)]
pub struct Chunks {
    /// Columns of each.
    pub chunks: Vec<Vec<ResultColumn>>,
    /// Given back when all of it is dropped.
    pub(super) rooms: Vec<Room>,
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
    pub fn len(&self) -> usize {
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

    /// Bytes they take when there are so many places more, and so many values in each function's sets.
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

    /// Bytes they take when so many rows more are among them.
    pub fn growth_of_rows(&self, plan: &Plan, rows: usize) -> Growth {
        let places = if matches!(self.index, Index::Dense) { 0 } else { rows };
        self.growth(plan, places, rows)
    }

    /// Bytes they take when another's are among them, and while those are taken in.
    pub fn growth_of_groups(&self, plan: &Plan, other: &Self) -> Growth {
        let places = if matches!(self.index, Index::Dense) { 0 } else { other.len() };
        let values = other.states.iter().filter_map(State::seen).map(|seen| seen.len()).max().unwrap_or(0);
        self.growth(plan, places, values).and(Growth::none(other.len() * size_of::<u32>()))
    }

    /// Forgets all groups, and keeps its memory.
    pub fn clear(&mut self, plan: &Plan) {
        let places = self.rows.len();
        self.rows.clear();
        self.states.iter_mut().for_each(State::clear);
        match &mut self.index {
            Index::Dense => self.grow(places, plan),
            Index::Hashed(table) => table.clear(),
        }
    }

    /// Places that have groups.
    pub fn places(&self, plan: &Plan) -> impl Iterator<Item = usize> + '_ {
        // The one group of an aggregate without keys is there even without rows.
        let may_be_empty = matches!(self.index, Index::Dense) && !plan.keys.is_empty();
        (0..self.len()).filter(move |place| !may_be_empty || self.rows[*place] > 0)
    }

    /// The states, by function.
    pub fn states(&self) -> &[State] {
        &self.states
    }

    /// A word of a place's key.
    fn key(&self, place: usize, word: usize) -> u64 {
        match &self.index {
            Index::Dense => place as u64,
            Index::Hashed(table) => table.key(place)[word],
        }
    }

    /// The hash of what a place's key has in common with those of groups that may be the same.
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

    /// Writes places, but for their sets of values.
    pub fn write(&self, plan: &Plan, places: &[u32], out: &mut Vec<u8>) {
        self.write_keys(out, places.len(), |row| places[row] as usize);
        put(out, places.len(), |row| unsigned(self.rows[places[row] as usize]));
        debug_assert_eq!(self.states.len(), plan.functions.len());
        self.states.iter().for_each(|state| state.write(places, out));
    }

    /// The places of the keys of a page of `n` entries, new ones for new keys.
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

    /// Takes in the groups of a page, at their places.
    pub fn merge_page(&mut self, plan: &Plan, page: &PageGroups, places: &[u32; VECTOR_ROWS]) {
        let pairs: Vec<(u32, u32)> = places.iter().copied().zip(0..page.rows.len() as u32).collect();
        self.merge_pairs(plan, &page.rows, &page.states, &pairs);
    }

    /// Takes in the values of a page, which a function's sets at these places have.
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

    /// Reads the keys of the `n` rows that are taken in next.
    pub fn look_at(&mut self, plan: &Plan, vectors: &[Vector], n: usize) {
        let Index::Hashed(table) = &mut self.index else { return };
        for (word, keys) in plan.words.iter().zip(table.rows()) {
            word.layout.wide_digits(&word.slots, vectors, n, keys);
        }
        table.rows_are_there(n);
    }

    /// The keys by place, if they ascend.
    pub fn ascending(&self) -> Option<&[u64]> {
        match &self.index {
            Index::Dense => None,
            Index::Hashed(table) => table.ascending(),
        }
    }

    /// Keys that come next may be any.
    pub fn leave_order(&mut self) {
        if let Index::Hashed(table) = &mut self.index {
            table.leave_order();
        }
    }

    /// Takes in the `n` rows that [`Groups::look_at`] has looked at.
    pub fn update(&mut self, plan: &Plan, vectors: &[Vector], n: usize, scratch: &mut KeyScratch) {
        self.find_places(plan, vectors, n, scratch);
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

    /// Room for the states of all keys there are.
    fn make_room(&mut self, plan: &Plan) {
        let places = self.len();
        if places > self.rows.len() {
            // No more than there are: what is behind them in memory has not been touched.
            self.grow(places, plan);
        }
    }

    /// Takes in places of another's, for which there is room: pairs of ours and theirs.
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

    /// Takes in all of another worker's groups; there is room for them.
    pub fn merge_all(&mut self, other: &Self, plan: &Plan) -> Result<()> {
        self.merge_with(other, plan, Part { number: 0, of: 1 }, |_, _, _| Ok(()))
    }

    /// Takes in those of another worker's groups that are in a part.
    ///
    /// # Errors
    /// [`Error::Memory`]; some may have been taken in then.
    fn merge(&mut self, other: &Self, plan: &Plan, part: Part, room: &mut Room) -> Result<()> {
        let map_bytes = if plan.functions.iter().any(|f| f.is_distinct) { other.len() * size_of::<u32>() } else { 0 };
        self.merge_with(other, plan, part, |groups, places, values| {
            room.hold(groups.growth(plan, places, values).bytes() + map_bytes)
        })
    }

    /// Takes in groups, a vector's worth at a time; before that, and before values, `make_room` is asked for so many.
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

    /// Keys, then functions, of the groups at some places.
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
