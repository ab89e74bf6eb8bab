//! Execution statistics of a pipeline on several devices, combined and per device.
//!
//! The devices divide the last pipeline: its rows, bytes and skipped morsels add up. Each device
//! runs all other pipelines in full: their rows and tables are those of the first device, their
//! bytes are totals. Times are those of the device that finished last.

use super::ShareProgram;
use crate::backend::{Compiled, DeviceRan, ShareRan, Streamed};
use crate::cpu::{Skipped, StepRows, TopFacts};

/// Distribution of a pipeline: the devices divide it, or each runs all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Divided {
    Yes,
    No,
}

/// Combines the statistics of each pipeline over the devices.
pub(super) fn together(shares: &[ShareProgram], mut ran: Vec<Vec<DeviceRan>>) -> Vec<DeviceRan> {
    // A single device needs no separate statistics.
    if let [only] = ran.as_mut_slice() {
        return shares.first().map_or_else(Vec::new, |share| {
            only.iter_mut().for_each(|ran| in_whole_source(share, ran));
            std::mem::take(only)
        });
    }
    let pipelines = ran.iter().map(Vec::len).min().unwrap_or(0);
    let of = |number: usize| {
        let divided = if number + 1 == pipelines { Divided::Yes } else { Divided::No };
        let each = shares.iter().zip(&ran).map(|(share, ran)| {
            let mut ran = ran[number].clone();
            if divided == Divided::Yes {
                in_whole_source(share, &mut ran);
            }
            ShareRan { device: share.backend().name().into(), blocks: share.share.blocks(), ran }
        });
        of_pipeline(each.collect(), divided)
    };
    (0..pipelines).map(of).collect()
}

/// Translates the numbers of morsels to those in the whole source.
fn in_whole_source(share: &ShareProgram, ran: &mut DeviceRan) {
    let morsels = ran.skipped.iter_mut().flat_map(|skipped| &mut skipped.morsels);
    morsels.for_each(|morsel| *morsel = share.share.number(*morsel));
}

fn of_pipeline(shares: Vec<ShareRan>, divided: Divided) -> DeviceRan {
    let mut each = shares.iter().map(|share| &share.ran);
    let Some(mut all) = each.next().cloned() else { return DeviceRan::default() };
    for ran in each {
        add(&mut all, ran, divided);
    }
    all.shares = shares;
    all
}

fn add(all: &mut DeviceRan, ran: &DeviceRan, divided: Divided) {
    all.sink_bytes += ran.sink_bytes;
    all.launches += ran.launches;
    all.resident_bytes += ran.resident_bytes;
    all.moved_bytes += ran.moved_bytes;
    all.returned_bytes += ran.returned_bytes;
    all.passes = all.passes.max(ran.passes);
    all.elapsed = all.elapsed.max(ran.elapsed);
    all.kernel = all.kernel.max(ran.kernel);
    all.compiled = match (all.compiled, ran.compiled) {
        (Compiled::Now(a), Compiled::Now(b)) => Compiled::Now(a.max(b)),
        (Compiled::Before, other) | (other, Compiled::Before) => other,
    };
    all.streamed = match (all.streamed, ran.streamed) {
        (Some(a), Some(b)) => {
            Some(Streamed { batches: a.batches + b.batches, bytes: a.bytes + b.bytes, waited: a.waited.max(b.waited) })
        }
        (a, b) => a.or(b),
    };
    all.brought = match (all.brought.take(), &ran.brought) {
        (Some(mut all), Some(more)) => {
            all.add(more);
            Some(all)
        }
        (all, more) => all.or_else(|| more.clone()),
    };
    if divided == Divided::No {
        return;
    }
    all.rows += ran.rows;
    all.rows_out += ran.rows_out;
    all.morsels_skipped += ran.morsels_skipped;
    ran.skipped.iter().for_each(|skipped| add_skipped(&mut all.skipped, skipped));
    // Either all devices count steps, or none.
    all.steps.resize(all.steps.len().max(ran.steps.len()), StepRows::default());
    for (rows, other) in all.steps.iter_mut().zip(&ran.steps) {
        rows.rows_in += other.rows_in;
        rows.rows_out += other.rows_out;
    }
    all.top = match (all.top, ran.top) {
        (Some(a), Some(b)) => Some(TopFacts {
            rows_in: a.rows_in + b.rows_in,
            rows_left_out: a.rows_left_out + b.rows_left_out,
            morsels_skipped: a.morsels_skipped + b.morsels_skipped,
            rows_skipped: a.rows_skipped + b.rows_skipped,
        }),
        (a, b) => a.or(b),
    };
}

fn add_skipped(all: &mut Vec<Skipped>, more: &Skipped) {
    match all.iter_mut().find(|known| known.step == more.step) {
        Some(known) => {
            known.morsels.extend(&more.morsels);
            known.morsels.sort_unstable();
        }
        None => all.push(more.clone()),
    }
}
