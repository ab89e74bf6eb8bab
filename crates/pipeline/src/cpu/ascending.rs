//! Final merge of workers whose keys arrived in order
//! ([`Table::ascending`](super::index::Table::ascending)).
//!
//! ```text
//! worker 0   1 4 5 6 ─────────── 30 31 33 34 ──────►
//! worker 1          6 8 9 ── 30 ────────── 34 36 ──►
//! ```
//! The workers' keys interleave in runs: a worker has runs of keys with no key of another worker in
//! between, and shares at most the keys at the ends of its runs. Therefore only the groups of
//! shared keys are merged. The first worker that has a shared key takes the group over from the
//! others. The remaining groups are the answer, one part per worker. If keys of several workers
//! alternate in short runs, groups are merged in the general way.

use super::aggregate::{Chunks, Plan};
use super::grouper::Grouper;
use super::output::ResultColumn;
use crate::Result;
use crate::budget::{Budget, Holder};

/// Least average number of keys per run.
const RUN_KEYS: usize = 64;

/// A key that several workers have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shared {
    /// The worker that takes the group over, and its place there.
    first: (usize, u32),
    /// Another worker that has the key, and its place there.
    other: (usize, u32),
}

/// Returns the shared keys of workers whose keys ascend; `None` if these are more than `runs_left`
/// runs.
fn shared(workers: &[&[u64]], mut runs_left: usize) -> Option<Vec<Shared>> {
    let mut shared = Vec::new();
    let mut heads = vec![0; workers.len()];
    // The previous key, the first worker that had it, and its place there.
    let mut last: Option<(u64, (usize, u32))> = None;
    loop {
        let mut next: Option<(u64, usize)> = None;
        // The least key of the other workers.
        let mut bound = u64::MAX;
        for (worker, (keys, head)) in workers.iter().zip(&heads).enumerate() {
            let Some(key) = keys.get(*head) else { continue };
            match next {
                Some((least, _)) if least <= *key => bound = bound.min(*key),
                _ => {
                    bound = next.map_or(bound, |(least, _)| bound.min(least));
                    next = Some((*key, worker));
                }
            }
        }
        let Some((key, worker)) = next else { return Some(shared) };
        runs_left = runs_left.checked_sub(1)?;
        let (keys, head) = (workers[worker], heads[worker]);
        let met_first = match last {
            Some((other, first)) if other == key => {
                shared.push(Shared { first, other: (worker, head as u32) });
                Some(first)
            }
            _ => None,
        };
        let end = head + keys[head..].partition_point(|key| *key <= bound);
        heads[worker] = end;
        last = match met_first {
            Some(first) if end == head + 1 => Some((key, first)),
            _ => Some((keys[end - 1], (worker, end as u32 - 1))),
        };
    }
}

impl Plan {
    /// Computes the answer, if all workers' keys arrived in order and memory suffices. Returns
    /// `None` if the general way is needed. In that case, and on an error, the workers still have
    /// all groups.
    pub(super) fn finish_ascending(&self, workers: &mut [Grouper], budget: &Budget) -> Result<Option<Chunks>> {
        let has_sets = self.functions.iter().any(|function| function.is_distinct);
        if has_sets || self.has_late_texts() {
            return Ok(None);
        }
        let keys = workers.iter().filter_map(Grouper::groups).map(|groups| groups.ascending());
        let Some(keys) = keys.collect::<Option<Vec<_>>>() else { return Ok(None) };
        let runs = keys.iter().map(|keys| keys.len()).sum::<usize>() / RUN_KEYS;
        let Some(shared) = shared(&keys, runs) else { return Ok(None) };
        let mut workers: Vec<&mut Grouper> = workers.iter_mut().filter(|worker| worker.groups().is_some()).collect();
        let mut rooms = Vec::with_capacity(workers.len());
        for worker in &workers {
            let mut room = budget.room("an answer", Holder::Keeps);
            room.hold(worker.groups().map_or(0, |groups| groups.len()) * self.result_bytes())?;
            rooms.push(room);
        }
        let mut gone: Vec<Vec<u32>> = vec![Vec::new(); workers.len()];
        for Shared { first, other } in shared {
            gone[other.0].push(other.1);
            let Ok([first_of, other_of]) = workers.get_disjoint_mut([first.0, other.0]) else { continue };
            if let (Some(ours), Some(theirs)) = (first_of.groups_mut(), other_of.groups()) {
                ours.take_in(theirs, &[(first.1, other.1)], self);
            }
        }
        let finish = |worker: &mut Grouper, gone: &[u32]| -> Vec<ResultColumn> {
            let Some(groups) = worker.take_groups() else { return Vec::new() };
            let mut gone = gone.iter().map(|place| *place as usize).peekable();
            let places = groups.places(self).filter(|place| gone.next_if_eq(place).is_none());
            groups.finish(self, &places.collect::<Vec<_>>())
        };
        let chunks: Vec<_> = std::thread::scope(|scope| {
            let finish = &finish;
            let each = workers.iter_mut().zip(&gone);
            let handles: Vec<_> = each.map(|(worker, gone)| scope.spawn(move || finish(worker, gone))).collect();
            handles.into_iter().map(|handle| handle.join()).collect()
        });
        let mut answer = Chunks::default();
        for (chunk, room) in chunks.into_iter().zip(rooms) {
            answer.chunks.push(chunk.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            answer.rooms.push(room);
        }
        Ok(Some(answer))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Returns the shared keys with all workers that have them.
    fn expected(workers: &[&[u64]]) -> Vec<(u64, Vec<usize>)> {
        let mut all: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        for (worker, keys) in workers.iter().enumerate() {
            keys.iter().for_each(|key| all.entry(*key).or_default().push(worker));
        }
        all.into_iter().filter(|(_, workers)| workers.len() > 1).collect()
    }

    fn found(workers: &[&[u64]]) -> Vec<(u64, Vec<usize>)> {
        let key = |(worker, place): (usize, u32)| workers[worker][place as usize];
        let mut all: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        let mut firsts: BTreeMap<u64, usize> = BTreeMap::new();
        for Shared { first, other } in shared(workers, 100).unwrap() {
            assert_eq!(key(first), key(other));
            assert_eq!(*firsts.entry(key(first)).or_insert(first.0), first.0, "one takes it over");
            let of_key = all.entry(key(first)).or_insert_with(|| vec![first.0]);
            of_key.push(other.0);
        }
        all.values_mut().for_each(|workers| workers.sort_unstable());
        all.into_iter().collect()
    }

    #[test]
    fn shared_keys_are_found_whoever_has_them() {
        let cases: [&[&[u64]]; 6] = [
            &[&[1, 4, 5, 6, 30, 31, 33, 34], &[6, 8, 9, 30, 34, 36]],
            &[&[], &[1, 2], &[]],
            &[&[5], &[5], &[5]],
            &[&[1, 2, 3], &[3, 4, 5], &[3, 5, 6], &[6]],
            &[&[0, u64::MAX - 1], &[u64::MAX - 1], &[7, u64::MAX - 1]],
            &[],
        ];
        for workers in cases {
            assert_eq!(found(workers), expected(workers), "{workers:?}");
        }
    }

    #[test]
    fn keys_that_alternate_are_not_worth_it() {
        let (even, odd): (Vec<u64>, Vec<u64>) =
            ((0..1000).map(|i| 2 * i).collect(), (0..1000).map(|i| 2 * i + 1).collect());
        assert!(shared(&[&even, &odd], 1999).is_none());
        assert_eq!(shared(&[&even, &odd], 2000).unwrap(), []);
        let (low, high): (Vec<u64>, Vec<u64>) = ((0..1000).collect(), (999..2000).collect());
        assert_eq!(shared(&[&low, &high], 2).unwrap(), [Shared { first: (0, 999), other: (1, 0) }]);
    }
}
