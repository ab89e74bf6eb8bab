//! Merge of groups whose late strings are equal.
//!
//! Late strings are grouped by row number, so one group may appear several times, with equal
//! strings of different rows. Two such groups can be equal only if the rest of their keys is equal:
//!
//! 1. Groups are divided into classes by the exact words of their keys. If each class has one
//!    group, all groups are final, and no string is read. That is the usual case: `c_custkey` is a
//!    key beside `c_name`.
//! 2. For classes with several groups, the strings are read, one key after the other. Each key
//!    splits the classes further.
//! 3. The groups that remain in one class are one group.

use std::collections::HashMap;

use arrow_array::Array;

use super::aggregate::{Groups, Plan};
use super::index::{Index, Table};
use super::states::State;
use crate::budget::Room;
use crate::{Error, Result, VECTOR_ROWS};

/// Bytes per group during a merge: its representative, a kept flag, and its new place.
const MERGING_BYTES: usize = 32;

/// Classes of some groups.
struct Classes {
    /// Places of the groups, ascending, with their classes.
    of: Vec<(usize, u32)>,
    count: usize,
}

impl Classes {
    /// Removes classes with a single group.
    fn without_loners(mut self) -> Self {
        if self.count == self.of.len() {
            return Self { of: Vec::new(), count: 0 };
        }
        let mut members = vec![0u32; self.count];
        self.of.iter().for_each(|(_, class)| members[*class as usize] += 1);
        self.of.retain(|(_, class)| members[*class as usize] > 1);
        self
    }
}

impl Groups {
    /// Merges all groups that are equal. `rows` is as for [`Plan::groups_within`]; `room` is the
    /// reservation of these groups.
    ///
    /// # Errors
    /// [`Error::Memory`] in most cases. All groups are then still present.
    pub(super) fn unify(&mut self, plan: &Plan, rows: Option<u64>, room: &mut Room, threads: usize) -> Result<()> {
        let Index::Hashed(table) = &self.index else { return Ok(()) };
        if !plan.has_late_texts() {
            return Ok(());
        }
        let mut classes = by_exact_words(table, plan).without_loners();
        for (key, domain) in plan.keys.iter().enumerate() {
            let Some(texts) = domain.late.as_ref().filter(|_| !plan.is_exact(key)) else { continue };
            if classes.of.is_empty() {
                return Ok(());
            }
            let row = |(place, _): &(usize, u32)| plan.part_of(key, table.key(*place)).map(|row| row as u64);
            let texts = texts.texts(classes.of.iter().map(row), threads)?;
            let mut known: HashMap<(u32, Option<&str>), u32> = HashMap::new();
            let mut of = Vec::with_capacity(classes.of.len());
            for (at, (place, class)) in classes.of.iter().enumerate() {
                let next = known.len() as u32;
                let text = texts.is_valid(at).then(|| texts.value(at));
                of.push((*place, *known.entry((*class, text)).or_insert(next)));
            }
            classes = Classes { count: known.len(), of }.without_loners();
        }
        if !classes.of.is_empty() {
            *self = self.merged(&classes, plan, rows, room)?;
        }
        Ok(())
    }

    /// Merges every class into one group.
    fn merged(&self, classes: &Classes, plan: &Plan, rows: Option<u64>, room: &mut Room) -> Result<Self> {
        let places_of_their_own = || Error::Invalid("groups of late texts at places of their own".into());
        let Index::Hashed(table) = &self.index else { return Err(places_of_their_own()) };
        // The first group of each class represents it.
        let mut first: Vec<Option<usize>> = vec![None; classes.count];
        let mut stands_for: Vec<usize> = (0..table.len()).collect();
        for (place, class) in &classes.of {
            stands_for[*place] = *first[*class as usize].get_or_insert(*place);
        }
        let mut new_places = vec![0u32; table.len()];
        let kept: Vec<usize> = (0..table.len()).filter(|place| stands_for[*place] == *place).collect();
        let mut merged = plan.hashed_groups(rows);
        let values = self.states.iter().filter_map(State::seen).map(|seen| seen.len()).max().unwrap_or(0);
        room.hold(self.bytes() + merged.growth(plan, kept.len(), values).bytes() + table.len() * MERGING_BYTES)?;
        let Index::Hashed(fewer) = &mut merged.index else { return Err(places_of_their_own()) };
        let mut found = [0; VECTOR_ROWS];
        for places in kept.chunks(VECTOR_ROWS) {
            for (row, place) in places.iter().enumerate() {
                fewer.rows().iter_mut().zip(table.key(*place)).for_each(|(word, key)| word[row] = *key);
            }
            fewer.find_or_insert(places.len(), &mut found);
            places.iter().zip(&found).for_each(|(place, new)| new_places[*place] = *new);
        }
        let pairs: Vec<(u32, u32)> =
            stands_for.iter().enumerate().map(|(place, first)| (new_places[*first], place as u32)).collect();
        merged.take_in(self, &pairs, plan);
        Ok(merged)
    }
}

/// Returns the classes of groups whose keys have the same exact words.
fn by_exact_words(table: &Table, plan: &Plan) -> Classes {
    if plan.exact_words == 0 {
        let of: Vec<(usize, u32)> = (0..table.len()).map(|place| (place, 0)).collect();
        return Classes { count: of.len().min(1), of };
    }
    let mut exact = Table::new(plan.exact_words);
    exact.reserve(table.len());
    let mut of = Vec::with_capacity(table.len());
    let mut found = [0; VECTOR_ROWS];
    for first in (0..table.len()).step_by(VECTOR_ROWS) {
        let places = first..(first + VECTOR_ROWS).min(table.len());
        for (row, place) in places.clone().enumerate() {
            exact.rows().iter_mut().zip(table.key(place)).for_each(|(word, key)| word[row] = *key);
        }
        exact.find_or_insert(places.len(), &mut found);
        of.extend(places.zip(found.iter().copied()));
    }
    Classes { of, count: exact.len() }
}
