//! Crashes at every write and fence, and failed fences.

use super::{Flips, seed, workloads};
use crate::explore::backends::{Depth, Step, Story, explore, random_steps, tell, tell_failing};
use crate::explore::{Counts, CrashImage, Event, Explorer, Limits, Random};
use crate::flips::FlipOptions;
use crate::medium::{SectorDurability, SimFile};
use crate::options::Syncs;

/// Explores all crashes of `steps`.
pub(super) fn exploring(subject: &Flips, steps: &[Step], limits: Limits) -> Result<[Counts; 2], String> {
    exploring_story(subject, &tell(subject, CrashImage::new(), steps)?, limits)
}

fn exploring_story(subject: &Flips, story: &Story, limits: Limits) -> Result<[Counts; 2], String> {
    let mut explorer = Explorer::new(limits, seed());
    let depth = Depth::default();
    let mut nested = Explorer::new(depth.nested, seed());
    explore::<_, SectorDurability>(subject, story, &mut explorer, depth, &mut nested)?;
    Ok([explorer.counts(), nested.counts()])
}

/// Runs `steps` with each fence failing once, and explores all crashes afterwards.
pub(super) fn failing_fences(subject: &Flips, steps: &[Step]) -> Result<u64, String> {
    let fences =
        tell(subject, CrashImage::new(), steps)?.trace().iter().filter(|event| matches!(event, Event::Fence)).count()
            as u64;
    let mut judged = 0;
    for fence in 1..=fences {
        let fail = |medium: &SimFile| medium.fail_fence(medium.fences() + fence, seed() + fence);
        let medium = SimFile::recording(CrashImage::new());
        let Some(story) =
            tell_failing(subject, medium, fail, steps).map_err(|wrong| format!("fence {fence}: {wrong}"))?
        else {
            break;
        };
        let counts = exploring_story(subject, &story, Limits { exhaustive: 64, samples: 16 })
            .map_err(|wrong| format!("fence {fence} failed: {wrong}"))?;
        judged += counts[0].distinct;
    }
    Ok(judged)
}

/// With two fences, the part that makes the commit valid is written when all else is durable, so
/// that checksums need not be trusted.
pub(super) fn parts_are_fenced_before_the_last() -> Result<(), String> {
    let story =
        tell(&Flips(FlipOptions::tiny(Syncs::Two)), CrashImage::new(), &[Step::commit(&[(0, &[0]), (1, &[0])])])?;
    let commit =
        story.trace().iter().skip_while(|event| !matches!(event, Event::Mark(progress) if progress.begun == 2));
    let kinds: Vec<&str> = commit
        .filter_map(|event| match event {
            Event::Write { .. } => Some("write"),
            Event::Fence => Some("fence"),
            _ => None,
        })
        .collect();
    let (last, before) = kinds.split_at(kinds.len() - 2);
    if *before == ["write", "fence"] && last.ends_with(&["fence"]) { Ok(()) } else { Err(format!("{kinds:?}")) }
}

fn print(name: &str, counts: [Counts; 2]) {
    println!("{name}: {}; within recovery and after: {}", counts[0], counts[1]);
}

#[test]
fn every_crash_of_small_workloads() {
    println!("seed {}", seed());
    for (name, subject, steps) in workloads() {
        match exploring(&subject, &steps, Limits::default()) {
            Ok(counts) => print(&name, counts),
            Err(wrong) => panic!("{name}, seed {}: {wrong}", seed()),
        }
    }
}

/// Returns the number of random workloads to explore: `ONEHOP_CRASH_WORKLOADS`, or 6.
fn random_workloads() -> u64 {
    std::env::var("ONEHOP_CRASH_WORKLOADS").ok().and_then(|count| count.parse().ok()).unwrap_or(6)
}

#[test]
fn crashes_of_random_workloads() {
    println!("seed {}", seed());
    let mut random = Random::new(seed());
    for number in 0..random_workloads() {
        let subject = Flips(FlipOptions::tiny(if number % 3 == 0 { Syncs::Two } else { Syncs::One }));
        let steps = random_steps(&mut random, 24, 9);
        match exploring(&subject, &steps, Limits { exhaustive: 512, samples: 64 }) {
            Ok(counts) => print(&format!("random workload {number}"), counts),
            Err(wrong) => panic!("random workload {number}, seed {}: {wrong}", seed()),
        }
    }
}

#[test]
fn a_failed_fence_at_any_time_loses_nothing_that_was_acknowledged() {
    for (name, subject, steps) in workloads() {
        match failing_fences(&subject, &steps) {
            Ok(judged) => println!("{name}: {judged} distinct crash images after failed fences"),
            Err(wrong) => panic!("{name}, seed {}: {wrong}", seed()),
        }
    }
}

#[test]
fn two_fences_do_not_rely_on_checksums() {
    parts_are_fenced_before_the_last().unwrap();
}
