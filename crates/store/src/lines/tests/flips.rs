//! Every byte of a small store, damaged: an error, or a correct state; never wrong data.

use std::sync::Arc;

use super::Small;
use crate::explore::backends::{Damage, Step, Subject, damaged, tell};
use crate::medium::SimPmem;

/// Returns a store in which every kind of entry is in use: pages in one slot and in pairs, in two
/// regions, free entries and slots.
fn workload() -> (Small, Vec<Step>) {
    let steps = vec![
        Step::commit(&[(0, &[0, 5]), (1, &[0]), (2, &[60]), (3, &[0]), (9, &[1])]),
        Step::commit(&[(0, &[1]), (1, &[0]), (3, &[2])]),
        Step::free(&[2]),
        Step::commit(&[(0, &[0])]),
        Step::commit(&[(1, &[4])]),
    ];
    (Small::new(8, 8, 4), steps)
}

const PATTERNS: &[u8] = &[0x01, 0x80, 0xFF, 0x24];

/// Flips `patterns` in every byte after the workload, `ending` included.
pub(super) fn flips(ending: Option<Step>, damage: Damage, patterns: &[u8]) -> Result<u64, String> {
    let (subject, mut steps) = workload();
    steps.extend(ending);
    damaged(&subject, &tell(&subject, subject.start(), &steps)?, damage, 0..u64::MAX, patterns)
}

/// Damages the table entry of a page that lay in another pair before: the old line is still on the
/// medium, whole.
pub(super) fn stale_entries() -> Result<u64, String> {
    // The slots of page 0 are freed before those of others, so that it is recreated in the others'
    // slots.
    let steps = [
        Step::commit(&[(0, &[0]), (1, &[0]), (5, &[0]), (6, &[0])]),
        Step::commit(&[(0, &[1])]),
        Step::Checkpoint,
        Step::free(&[0]),
        Step::free(&[5, 6]),
        Step::commit(&[(0, &[0])]),
        Step::commit(&[(0, &[2])]),
        Step::Close,
    ];
    let subject = Small::new(8, 8, 4);
    let table = subject.table();
    let patterns: Vec<u8> = (1..=255).collect();
    damaged(&subject, &tell(&subject, subject.start(), &steps)?, Damage::Nothing, table, &patterns)
}

/// Damages a store whose journal names a list.
pub(super) fn listed() -> Result<u64, String> {
    let subject = Small::new(4, 8, 4);
    let steps = [
        Step::commit(&[(0, &[0]), (1, &[0]), (2, &[0])]),
        Step::commit(&[(0, &[1]), (1, &[1]), (2, &[1]), (3, &[0])]),
        Step::commit(&[(0, &[2])]),
    ];
    damaged(&subject, &tell(&subject, subject.start(), &steps)?, Damage::LastCommit, 0..u64::MAX, &[0x01, 0x42])
}

/// Damages a store whose super page has what the tables lack.
pub(super) fn super_page() -> Result<u64, String> {
    let subject = Small::new(4, 8, 4).by_super_page();
    let steps = [
        Step::commit(&[(0, &[0]), (1, &[0])]),
        Step::Checkpoint,
        Step::commit(&[(0, &[1])]),
        Step::commit(&[(0, &[2])]),
        Step::commit(&[(1, &[1])]),
    ];
    damaged(&subject, &tell(&subject, subject.start(), &steps)?, Damage::LastCommit, 0..u64::MAX, &[0x01, 0x42])
}

/// Two pages whose entries name one slot: a change of one of them must not change the other.
pub(super) fn two_owners() -> Result<(), String> {
    let subject = Small::new(8, 8, 4);
    let story = tell(&subject, subject.start(), &[Step::commit(&[(0, &[0]), (1, &[0])]), Step::Close])?;
    let mut image = story.end().clone();
    image.set_word(subject.table().start / 8 + 1, image.word(subject.table().start / 8));
    match subject.open(Arc::new(SimPmem::quiet(image))) {
        Ok(_) => Err("a slot with two owners is not noticed".into()),
        Err(error) if error.to_string().contains("both lie in slot") => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn damaged_entries_do_not_bring_back_what_lies_about() {
    let flipped = stale_entries().unwrap();
    println!("{flipped} flipped bytes");
}

#[test]
fn damaged_super_pages_are_errors_or_lose_the_last_commit_at_most() {
    super_page().unwrap();
}

#[test]
fn damaged_lists_of_the_journal_are_errors() {
    listed().unwrap();
}

#[test]
fn a_slot_with_two_owners_is_noticed() {
    two_owners().unwrap();
}

#[test]
fn a_medium_that_was_cut_off_is_noticed() {
    let (subject, mut steps) = workload();
    steps.push(Step::Close);
    let mut image = tell(&subject, subject.start(), &steps).unwrap().end().clone();
    image.set_len(image.len() - 1);
    let error = subject.open(Arc::new(SimPmem::quiet(image))).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("it was cut off"), "{error}");
}

#[test]
fn a_flipped_byte_of_a_closed_store_is_an_error_or_changes_nothing() {
    let flipped = flips(Some(Step::Close), Damage::Nothing, PATTERNS).unwrap();
    println!("{flipped} flipped bytes");
}

/// Without a clean close, a damaged last commit cannot be told from one that a crash has torn.
#[test]
fn a_flipped_byte_of_an_open_store_is_an_error_or_loses_the_last_commit_at_most() {
    let flipped = flips(None, Damage::LastCommit, PATTERNS).unwrap();
    println!("{flipped} flipped bytes");
}

#[test]
fn a_flipped_byte_after_a_checkpoint_is_an_error_or_changes_nothing() {
    flips(Some(Step::Checkpoint), Damage::Nothing, &[0x42]).unwrap();
}
