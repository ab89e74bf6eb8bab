//! What came of a pipeline on several devices, told as of one, with what came of it on each.
//!
//! The last pipeline is what they have divided: rows, bytes and what was ruled out add up. All others were carried through by each
//! of them alike: rows and tables are those of the first, bytes are what was moved for all. Times are those of the last to be done.

use super::ShareProgram;
use crate::backend::{Compiled, DeviceRan, ShareRan, Streamed};
use crate::cpu::{Skipped, StepRows, TopFacts};

/// Whether devices have divided a pipeline, or each has carried all of it through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Divided {
    Yes,
    No,
}

/// Of each pipeline, given what each device says of each.
pub(super) fn together(shares: &[ShareProgram], mut ran: Vec<Vec<DeviceRan>>) -> Vec<DeviceRan> {
    // Who has done all of it alone has nothing to be told apart.
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

/// Morsels by their numbers in the whole source.
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
    // Nobody counts, or all do.
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
