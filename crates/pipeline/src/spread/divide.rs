//! Division of a source among devices.
//!
//! The source is divided into *units*, the blocks of one segment each. A segment resides in one
//! device's memory, so that later queries find it there. Each unit in turn goes to the device that
//! would finish it first:
//!
//! ```text
//! end(unit, device) = work already assigned to the device
//!                   + rows × bytes per row × (1 / copy rate + missing part / rate to the device)
//! ```
//! 1. first the units that are restricted to some devices by the user;
//! 2. then the units resident on a device: elsewhere they would have to be moved, which takes a
//!    hundred times as long as a read;
//! 3. then the rest, in order: if a table is clustered, the rows that a key range leaves are on all
//!    devices.
//!
//! Within each round, units that are best placed on different devices take turns. Otherwise the
//! first half of the units would fill the device that is best for the other half.
//!
//! Units are weighted by rows, not by bytes, so that queries of different columns divide a table in
//! the same way and find their common columns. A path through another NUMA node counts as longer by
//! [`DETOUR`]: if nothing else differs, the near device gets the unit. Ties go to the first device.

use std::ops::Range;

/// Factor by which a path through another node counts as longer.
const DETOUR: f64 = 1.125;

/// Number of rounds in which units are assigned.
const ROUNDS: usize = 3;

/// Part of a source that goes to one device as a whole.
#[derive(Clone, Debug, Default)]
pub(super) struct Unit {
    /// Its morsels.
    pub morsels: Vec<Range<usize>>,
    pub rows: u64,
    /// For each device, the resident fraction, from 0 to 1; empty if no part is resident anywhere.
    pub resident: Vec<f64>,
    /// True for devices that the unit may go to; if there is none, it may go to any.
    pub allowed: Vec<bool>,
    /// True for devices near its storage; all if empty.
    pub near: Vec<bool>,
}

/// Speeds of a device, in seconds per byte.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Reading resident bytes.
    pub read: f64,
    /// Moving bytes to the device.
    pub moved: f64,
}

impl Unit {
    /// Creates a unit of a single morsel.
    pub fn of(morsel: usize, rows: u64) -> Self {
        Self { morsels: std::iter::once(morsel..morsel + 1).collect(), rows, ..Self::default() }
    }

    fn may_go_to(&self, device: usize) -> bool {
        !self.allowed.contains(&true) || self.allowed.get(device) == Some(&true)
    }

    fn resident_on(&self, device: usize) -> f64 {
        self.resident.get(device).copied().unwrap_or(0.0)
    }

    /// Returns the round in which it is assigned.
    fn round(&self) -> usize {
        let is_there = self.resident.iter().any(|part| *part > 0.0);
        match (self.allowed.contains(&true), is_there) {
            (true, _) => 0,
            (false, true) => 1,
            (false, false) => 2,
        }
    }

    /// Returns the seconds on a device for `row_bytes` bytes per row.
    fn time_on(&self, device: usize, pace: Pace, row_bytes: f64) -> f64 {
        let way = if self.near.get(device).copied().unwrap_or(true) { 1.0 } else { DETOUR };
        let moved = (1.0 - self.resident_on(device)) * pace.moved * way;
        self.rows as f64 * row_bytes * (pace.read + moved)
    }
}

/// Returns the units in order of assignment.
fn turns<'a>(units: &'a [Unit], paces: &[Pace], row_bytes: f64) -> Vec<&'a Unit> {
    let mut before = vec![[0u64; ROUNDS]; paces.len()];
    let turn = |unit: &'a Unit| {
        let time = |device: usize| unit.time_on(device, paces[device], row_bytes);
        let best = (0..paces.len()).min_by(|a, b| time(*a).total_cmp(&time(*b))).unwrap_or(0);
        let round = unit.round();
        let number = before.get_mut(best).map_or(0, |rounds| {
            rounds[round] += 1;
            rounds[round]
        });
        (round, number, unit)
    };
    let mut turns: Vec<(usize, u64, &Unit)> = units.iter().map(turn).collect();
    turns.sort_by_key(|(round, number, _)| (*round, *number));
    turns.into_iter().map(|(.., unit)| unit).collect()
}

/// Returns the morsels that each device reads, ascending.
pub(super) fn divide(units: &[Unit], paces: &[Pace], row_bytes: f64) -> Vec<Vec<u32>> {
    let mut shares: Vec<Vec<u32>> = vec![Vec::new(); paces.len()];
    let mut busy = vec![0.0; paces.len()];
    for unit in turns(units, paces, row_bytes) {
        let end = |device: usize| busy[device] + unit.time_on(device, paces[device], row_bytes);
        let devices = (0..paces.len()).filter(|device| unit.may_go_to(*device));
        let Some(first) = devices.min_by(|a, b| end(*a).total_cmp(&end(*b))) else { continue };
        busy[first] = end(first);
        shares[first].extend(unit.morsels.iter().flat_map(|run| run.start as u32..run.end as u32));
    }
    shares.iter_mut().for_each(|share| share.sort_unstable());
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A GPU with 4 TB/s of memory bandwidth and 50 GB/s from the host.
    const CARD: Pace = Pace { read: 0.25e-12, moved: 20e-12 };

    /// Creates units of these rows, in order.
    fn units(rows: &[u64]) -> Vec<Unit> {
        rows.iter().enumerate().map(|(at, rows)| Unit::of(at, *rows)).collect()
    }

    fn divided(units: &[Unit], devices: usize) -> Vec<Vec<u32>> {
        divide(units, &vec![CARD; devices], 8.0)
    }

    #[test]
    fn what_is_nowhere_is_dealt_out_in_turn() {
        assert_eq!(divided(&units(&[10; 5]), 2), [vec![0, 2, 4], vec![1, 3]]);
        assert_eq!(divided(&units(&[10; 7]), 3), [vec![0, 3, 6], vec![1, 4], vec![2, 5]]);
        // Fewer units than devices, and none.
        assert_eq!(divided(&units(&[10]), 3), [vec![0], vec![], vec![]]);
        assert_eq!(divided(&[], 2), [vec![], Vec::<u32>::new()]);
    }

    #[test]
    fn a_large_one_is_worth_several_small_ones() {
        assert_eq!(divided(&units(&[30, 10, 10, 10, 10]), 2), [vec![0, 4], vec![1, 2, 3]]);
    }

    #[test]
    fn a_device_that_is_faster_gets_more() {
        let fast = Pace { read: CARD.read / 3.0, moved: CARD.moved / 3.0 };
        let shares = divide(&units(&[10; 40]), &[CARD, fast], 8.0);
        assert_eq!((shares[0].len(), shares[1].len()), (10, 30));
    }

    #[test]
    fn what_is_there_is_read_there() {
        let mut all = units(&[10; 8]);
        // Four units are resident on the second device, one of them by half.
        for (at, part) in [(0, 1.0), (1, 1.0), (2, 0.5), (3, 1.0)] {
            all[at].resident = vec![0.0, part];
        }
        assert_eq!(divided(&all, 2), [vec![4, 6], vec![0, 1, 2, 3, 5, 7]]);
        // All are resident there: moving any of them takes longer than reading the rest.
        all.iter_mut().for_each(|unit| unit.resident = vec![0.0, 1.0]);
        assert_eq!(divided(&all, 2), [vec![], (0..8).collect::<Vec<u32>>()]);
        // A half is resident on each device: each reads its own, for any number of units.
        let mut many = units(&[10; 400]);
        many.iter_mut()
            .enumerate()
            .for_each(|(at, unit)| unit.resident = vec![f64::from(at < 200), f64::from(at >= 200)]);
        assert_eq!(divided(&many, 2), [(0..200).collect::<Vec<u32>>(), (200..400).collect()]);
        // All are resident on both devices: they are divided evenly.
        all.iter_mut().for_each(|unit| unit.resident = vec![1.0, 1.0]);
        assert_eq!(divided(&all, 2), [vec![0, 2, 4, 6], vec![1, 3, 5, 7]]);
    }

    #[test]
    fn what_somebody_said_comes_first() {
        let mut all = units(&[10; 6]);
        all[5].allowed = vec![false, true];
        all[4].allowed = vec![false, true];
        all[4].resident = vec![1.0, 0.0];
        // None of the allowed devices is present, so the restriction does not apply.
        all[0].allowed = vec![false, false];
        assert_eq!(divided(&all, 2), [vec![0, 1, 2], vec![3, 4, 5]]);
    }

    #[test]
    fn near_devices_get_more() {
        let mut all = units(&[10; 36]);
        all.iter_mut().for_each(|unit| unit.near = vec![false, true]);
        let shares = divided(&all, 2);
        assert_eq!((shares[0].len(), shares[1].len()), (17, 19));
        assert_eq!(shares[1][0], 0);
        // One disk per device.
        all.iter_mut().enumerate().for_each(|(at, unit)| unit.near = vec![at < 18, at >= 18]);
        assert_eq!(divided(&all, 2), [(0..18).collect::<Vec<u32>>(), (18..36).collect()]);
    }
}
