//! The cost of commits on a mapped file, rejected commits, and the behaviour after a failure.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::super::{LineBackend, Options};
use crate::backend::{Backend, BackendStats, Batch, Content, Image, LINE_BYTES, Lines, PageNo, Write};
use crate::explore::CrashImage;
use crate::medium::{Emulation, Granularity, Limited, Medium, Memory, Pmem, SimPmem};
use crate::options::CommitBy;
use crate::{Error, Result};

fn write(page: u32, image: &Image, lines: Lines) -> Write {
    Write { page: PageNo(page), content: Content::Image(Arc::new(image.clone())), lines }
}

fn commit(backend: &LineBackend, writes: Vec<Write>) -> Result<BackendStats> {
    let before = backend.stats();
    backend.commit(&Batch { writes, frees: Vec::new(), ..Batch::default() })?;
    let after = backend.stats();
    Ok(BackendStats {
        flushes: after.flushes - before.flushes,
        fences: after.fences - before.fences,
        data_units: after.data_units - before.data_units,
        journal_units: after.journal_units - before.journal_units,
        consolidation_units: after.consolidation_units - before.consolidation_units,
        table_units: after.table_units - before.table_units,
        ..after
    })
}

/// The paper's cost: each updated line, and one for the commit.
#[test]
fn a_commit_of_one_page_flushes_its_updated_lines_and_one_more() {
    let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let pmem = Arc::new(Pmem::create(&directory.path().join("store"), Emulation::Allowed).unwrap());
    let backend = LineBackend::create(pmem.clone(), &Options::default()).unwrap();
    let mut image = Image::zeroed();
    commit(&backend, vec![write(0, &image, Lines::ALL)]).unwrap();
    image.0[0] = 1;
    commit(&backend, vec![write(0, &image, Lines::ALL)]).unwrap();
    for round in 1..200_usize {
        let updated = 1 + round % 7;
        let mut lines = Lines::default();
        for line in (0..updated).map(|i| (round + 5 * i) % 63) {
            image.0[line * LINE_BYTES + round % LINE_BYTES] ^= 0x55;
            lines = lines.with(Lines::of(line * LINE_BYTES, (line + 1) * LINE_BYTES));
        }
        // Lines that are named and do not differ cost nothing.
        let cost = commit(&backend, vec![write(0, &image, lines.with(Lines::of(0, 512)))]).unwrap();
        assert_eq!((cost.flushes, cost.fences), (updated as u64 + 1, 2), "round {round}");
        assert_eq!((cost.data_units, cost.journal_units), (updated as u64, 1));
    }
    let mut back = Image::zeroed();
    backend.read(PageNo(0), &mut back).unwrap();
    assert!(back == image);
    println!("{}: {}, {}", pmem.name(), pmem.domain(), pmem.flushes_with());
}

#[test]
fn three_pages_share_one_line_of_the_journal() {
    let medium = Arc::new(Memory::new(Granularity::Line));
    let backend = LineBackend::create(medium, &Options::default()).unwrap();
    let mut image = Image::zeroed();
    let writes = |image: &Image, lines| (0..3).map(|page| write(page, image, lines)).collect::<Vec<_>>();
    commit(&backend, writes(&image, Lines::ALL)).unwrap();
    image.0[0] = 1;
    commit(&backend, writes(&image, Lines::ALL)).unwrap();
    image.0[0] = 2;
    let cost = commit(&backend, writes(&image, Lines::of(0, 1))).unwrap();
    assert_eq!((cost.flushes, cost.data_units, cost.journal_units, cost.fences), (4, 3, 1, 2));
}

/// The cost of the paper's alternative: a line for each page, and one for the word.
#[test]
fn a_super_page_takes_a_line_for_each_page_and_one_more() {
    let medium = Arc::new(Memory::new(Granularity::Line));
    let options = Options { commit_by: CommitBy::SuperPage, ..Options::default() };
    let backend = LineBackend::create(medium, &options).unwrap();
    let mut image = Image::zeroed();
    let writes = |image: &Image, lines| (0..3).map(|page| write(page, image, lines)).collect::<Vec<_>>();
    commit(&backend, writes(&image, Lines::ALL)).unwrap();
    for round in 1..5 {
        image.0[0] = round;
        let cost = commit(&backend, writes(&image, Lines::of(0, 1))).unwrap();
        assert_eq!((cost.flushes, cost.data_units, cost.journal_units, cost.fences), (7, 3, 4, 2));
    }
}

#[test]
fn pairs_stay_within_their_budget() {
    let medium = Arc::new(Memory::new(Granularity::Line));
    let options = Options { shadow_slots: 16, ..Options::default() };
    let backend = LineBackend::create(medium, &options).unwrap();
    let mut image = Image::zeroed();
    for page in 0..32 {
        commit(&backend, vec![write(page, &image, Lines::ALL)]).unwrap();
    }
    for round in 0..200_u32 {
        image.0[64 * (round as usize % 63)] ^= 1;
        commit(&backend, vec![write(round % 32, &image, Lines::ALL)]).unwrap();
        assert!(backend.stats().pairs <= 16, "round {round}");
    }
    assert!(backend.stats().consolidation_units > 0);
    while backend.maintain().unwrap() {}
    assert!(backend.stats().pairs <= 14);
}

#[test]
fn a_full_medium_refuses_the_commit_and_keeps_what_it_has() {
    let options =
        Options { ring_records: 16, region_slots: 8, reserve_slots: 0, shadow_slots: 4, ..Options::default() };
    let medium = Arc::new(SimPmem::quiet(CrashImage::new()).with_room(8192 + 16 * 64 + 8 * (8 + 4096)));
    let backend = LineBackend::create(medium, &options).unwrap();
    let mut image = Image::zeroed();
    commit(&backend, (0..7).map(|page| write(page, &image, Lines::ALL)).collect()).unwrap();
    image.0[0] = 1;
    commit(&backend, vec![write(0, &image, Lines::ALL)]).unwrap();
    assert_eq!((backend.stats().pairs, backend.stats().free_slots), (1, 0));
    // The shadow slot of the pair goes to the next page that is written.
    commit(&backend, vec![write(1, &image, Lines::ALL)]).unwrap();
    assert_eq!((backend.stats().pairs, backend.stats().free_slots), (1, 0));
    let full = commit(&backend, vec![write(2, &image, Lines::ALL), write(3, &image, Lines::ALL)]);
    assert!(matches!(full, Err(Error::Full { .. })), "{full:?}");
    let mut back = Image::zeroed();
    backend.read(PageNo(2), &mut back).unwrap();
    assert!(back == Image::zeroed());
    backend.commit(&Batch { writes: Vec::new(), frees: vec![PageNo(6)], ..Batch::default() }).unwrap();
    commit(&backend, vec![write(2, &image, Lines::ALL), write(3, &image, Lines::ALL)]).unwrap();
    backend.read(PageNo(2), &mut back).unwrap();
    assert!(back == image);
}

#[test]
fn after_a_failed_fence_nothing_is_committed_any_more() {
    let medium = Limited::new(Granularity::Line);
    let backend = LineBackend::create(medium.clone(), &Options::default()).unwrap();
    let mut image = Image::zeroed();
    commit(&backend, vec![write(0, &image, Lines::ALL)]).unwrap();
    medium.fences.store(1, Ordering::Relaxed);
    image.0[0] = 1;
    assert!(matches!(commit(&backend, vec![write(0, &image, Lines::ALL)]), Err(Error::Io { .. })));
    medium.fences.store(1000, Ordering::Relaxed);
    let refused = commit(&backend, vec![write(0, &image, Lines::ALL)]).unwrap_err();
    assert!(matches!(&refused, Error::Poisoned { reason, .. } if reason.contains("told to fail")), "{refused}");
    assert!(matches!(backend.checkpoint(), Err(Error::Poisoned { .. })));
    assert!(matches!(backend.close(), Err(Error::Poisoned { .. })));
    let mut back = Image::zeroed();
    backend.read(PageNo(0), &mut back).unwrap();
    assert!(back == Image::zeroed(), "what was committed can still be read");
}

#[test]
fn readers_meet_a_writer() {
    let backend = LineBackend::create(
        Arc::new(Memory::new(Granularity::Line)),
        &Options { shadow_slots: 2, ..Options::default() },
    )
    .unwrap();
    let image = |value: u8| {
        let mut image = Image::zeroed();
        image.0.fill(value);
        image
    };
    commit(&backend, (0..8).map(|page| write(page, &image(page as u8), Lines::ALL)).collect()).unwrap();
    std::thread::scope(|scope| {
        for reader in 0..2 {
            let backend = &backend;
            scope.spawn(move || {
                let mut back = Image::zeroed();
                for round in 0..2000_u32 {
                    // Pages below 4 are not written meanwhile, but consolidated and moved.
                    let page = (round + reader) % 4;
                    backend.read(PageNo(page), &mut back).unwrap();
                    assert!(back == image(page as u8));
                }
            });
        }
        for round in 0..1000_u32 {
            let mut changed = image(9);
            changed.0[(round as usize * 64) % 4032] = round as u8;
            commit(&backend, vec![write(4 + round % 4, &changed, Lines::ALL)]).unwrap();
            backend.maintain().unwrap();
        }
    });
}
