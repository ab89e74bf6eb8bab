//! Damage of all kinds to a small store: an error, or a correct state; never wrong data, never a
//! panic.

use std::sync::Arc;

use super::Flips;
use crate::Error;
use crate::backend::SLOT_BYTES;
use crate::explore::backends::{Damage, Step, Story, damaged, misplaced, tell, truncated};
use crate::explore::{CrashImage, Event};
use crate::flips::{FlipBackend, FlipOptions};
use crate::medium::SimFile;
use crate::options::Access;
use crate::options::Syncs;

/// Enough slots for the story without growth.
const FEW_SLOTS: u32 = 20;
/// Enough slots to keep old versions until the end: a reader that is led to one finds it whole.
const MANY_SLOTS: u32 = 48;

/// Returns a store of so many slots, in which every kind of slot is in use, and stale ones of every
/// kind.
fn story(slots: u32, ending: Option<Step>) -> Result<(Flips, Story), String> {
    let subject = Flips(FlipOptions { initial_slots: slots, ..FlipOptions::tiny(Syncs::One) });
    let spilled = Step::Commit { writes: vec![(1, vec![3]), (4, vec![2])], frees: vec![2], spilled: true };
    let mut steps = vec![
        Step::commit(&[(0, &[0, 5]), (1, &[0]), (2, &[60]), (3, &[0])]),
        Step::commit(&[(0, &[1])]),
        Step::commit(&[(3, &[1])]),
        Step::commit(&[(600, &[1])]),
        Step::Checkpoint,
        Step::commit(&[(0, &[2])]),
        spilled,
        Step::commit(&[(0, &[3])]),
    ];
    steps.extend(ending);
    let story = tell(&subject, CrashImage::new(), &steps)?;
    Ok((subject, story))
}

/// The endings of a story, each with the allowed loss from damage to it. Without a clean close, a
/// damaged last commit cannot be told from one that a crash has torn.
pub(super) const ENDINGS: [(Option<Step>, Damage); 3] =
    [(Some(Step::Close), Damage::Nothing), (Some(Step::Checkpoint), Damage::Nothing), (None, Damage::LastCommit)];

/// The bits that are flipped in a byte: single bits, low ones too, which make an empty slot a used
/// one, and all bits.
const PATTERNS: &[u8] = &[0x01, 0x04, 0x08, 0x10, 0x80, 0xFF];

pub(super) fn flips(ending: Option<Step>, damage: Damage) -> Result<u64, String> {
    let (subject, story) = story(FEW_SLOTS, ending)?;
    damaged(&subject, &story, damage, 0..u64::MAX, PATTERNS)
}

pub(super) fn misplacements(ending: Option<Step>, damage: Damage) -> Result<u64, String> {
    let (subject, story) = story(MANY_SLOTS, ending)?;
    misplaced(&subject, &story, damage, SLOT_BYTES)
}

/// Damages adjacent slots together: the loss of commits in the middle of the chain is detected,
/// regardless of their number.
pub(super) fn bursts() -> Result<(), String> {
    let subject = Flips(FlipOptions {
        initial_slots: FEW_SLOTS,
        chain_min_slots: 16,
        chain_max_slots: 16,
        ..FlipOptions::tiny(Syncs::One)
    });
    let steps: Vec<Step> = (0..8).map(|page| Step::commit(&[(page, &[0])])).collect();
    let story = tell(&subject, CrashImage::new(), &steps)?;
    let slots: Vec<u64> = story
        .trace()
        .iter()
        .filter_map(|event| match event {
            Event::Write { at, bytes } if bytes.len() == SLOT_BYTES => Some(*at),
            _ => None,
        })
        .collect();
    for first in 0..slots.len() - 1 {
        for last in first..slots.len() - 1 {
            let mut image = story.end().clone();
            slots[first..=last].iter().for_each(|&at| image.write(at, &[0xA5; SLOT_BYTES]));
            match FlipBackend::open(Arc::new(SimFile::quiet(image)), subject.0, Access::ReadWrite) {
                Err(Error::Corrupt { .. }) => {}
                other => return Err(format!("commits {first} to {last} were damaged: {other:?}")),
            }
        }
    }
    Ok(())
}

#[test]
fn commits_that_are_damaged_together_are_missed() {
    bursts().unwrap();
}

#[test]
fn every_flipped_byte_of_a_closed_store() {
    println!("{} flips", flips(Some(Step::Close), Damage::Nothing).unwrap());
}

#[test]
fn every_flipped_byte_of_an_open_store() {
    println!("{} flips", flips(None, Damage::LastCommit).unwrap());
}

#[test]
fn lost_and_misdirected_writes() {
    for (ending, damage) in ENDINGS {
        println!("{ending:?}: {} slots", misplacements(ending.clone(), damage).unwrap());
    }
}

#[test]
fn a_file_cut_off_anywhere() {
    for (ending, damage) in ENDINGS {
        let (subject, story) = story(FEW_SLOTS, ending).unwrap();
        println!("{} lengths", truncated(&subject, &story, damage, 64).unwrap());
    }
}
