//! Tests without crashes: the cost of commits, and the effect of options. Tests with crashes:
//! `crashes`.

mod crashes;
mod damage;
mod mutants;

use std::sync::Arc;

use super::*;
use crate::backend::{Content, Write};
use crate::explore::backends::{Simulated, Step, Subject};
use crate::explore::{CrashImage, Recording};
use crate::medium::{File, Granularity, Memory, SimFile};

impl Simulated for SimFile {
    fn holding(image: CrashImage, traced: bool) -> Self {
        if traced { Self::recording(image) } else { Self::quiet(image) }
    }

    fn record(&self) -> &Recording {
        self.record()
    }
}

/// A store on a simulated file.
#[derive(Clone, Copy, Debug)]
struct Flips(FlipOptions);

impl Subject for Flips {
    type Medium = SimFile;

    fn create(&self, medium: Arc<SimFile>) -> Result<Box<dyn Backend>> {
        Ok(Box::new(FlipBackend::create(medium, self.0)?))
    }

    fn open(&self, medium: Arc<SimFile>) -> Result<Box<dyn Backend>> {
        Ok(Box::new(FlipBackend::open(medium, self.0, Access::ReadWrite)?))
    }
}

/// Returns the seed of random choices: `ONEHOP_SEED`, or a constant.
fn seed() -> u64 {
    std::env::var("ONEHOP_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(20_261_122)
}

/// One page and several, frees, reused slots, spills, aborts, checkpoints, growth, reopening: with
/// one fence, and two.
fn workloads() -> Vec<(String, Flips, Vec<Step>)> {
    let spilled = |writes: &[(u32, &[usize])], frees: &[u32]| Step::Commit {
        writes: writes.iter().map(|(page, lines)| (*page, lines.to_vec())).collect(),
        frees: frees.to_vec(),
        spilled: true,
    };
    let workloads = [
        (
            "one page",
            vec![Step::commit(&[(0, &[0])]), Step::commit(&[(0, &[0, 1])]), Step::Reopen, Step::commit(&[(0, &[2])])],
        ),
        (
            "several pages",
            vec![
                Step::commit(&[(0, &[0]), (1, &[1]), (2, &[62])]),
                Step::commit(&[(1, &[0]), (2, &[5])]),
                Step::free(&[1]),
                Step::commit(&[(1, &[3])]),
                Step::Close,
                Step::commit(&[(2, &[4])]),
            ],
        ),
        (
            "spilled pages",
            vec![
                spilled(&[(0, &[0]), (1, &[1])], &[]),
                Step::commit(&[(0, &[3])]),
                Step::Abort(vec![(0, vec![1]), (5, vec![2])]),
                spilled(&[(1, &[2]), (3, &[9])], &[0]),
                Step::Reopen,
                spilled(&[(1, &[4])], &[]),
            ],
        ),
        ("slots used again", (0..14).map(|i| Step::commit(&[(i % 3, &[i as usize % 60])])).collect()),
        (
            "growth, frees, tables of tables",
            vec![
                Step::commit(&(0..8).map(|page| (page, &[0_usize][..])).collect::<Vec<_>>()),
                Step::free(&[0, 1, 2, 3, 4, 5, 6]),
                Step::Checkpoint,
                Step::commit(&[(700, &[3])]),
                Step::Maintain,
                Step::free(&[7]),
            ],
        ),
    ];
    let both = |(name, steps): (&str, Vec<Step>)| {
        [Syncs::One, Syncs::Two]
            .map(|syncs| (format!("{name}, {syncs:?}"), Flips(FlipOptions::tiny(syncs)), steps.clone()))
    };
    workloads.into_iter().flat_map(both).collect()
}

fn image(seed: u64) -> Arc<Image> {
    let mut image = Image::zeroed();
    image.0.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&seed.to_le_bytes()));
    Arc::new(image)
}

fn write(page: u32, seed: u64) -> Write {
    Write { page: PageNo(page), content: Content::Image(image(seed)), lines: Lines::ALL }
}

#[test]
fn a_commit_of_one_page_is_one_write_of_a_slot_and_one_fence() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    {
        let medium = Arc::new(File::create(&path).unwrap());
        let backend = FlipBackend::create(medium, FlipOptions::default()).unwrap();
        let before = backend.stats();
        for i in 0..100_u64 {
            backend
                .commit(&Batch { writes: vec![write((i % 7) as u32, i)], frees: vec![], ..Batch::default() })
                .unwrap();
        }
        let after = backend.stats();
        assert_eq!(after.written_bytes - before.written_bytes, 100 * 4096);
        assert_eq!(after.fences - before.fences, 100);
        std::mem::forget(backend);
    }
    for _ in 0..2 {
        let medium = Arc::new(File::open(&path).unwrap());
        let backend = FlipBackend::open(medium, FlipOptions::default(), Access::ReadWrite).unwrap();
        assert_eq!(backend.pages(), (0..7).map(PageNo).collect::<Vec<_>>());
        for page in 0..7_u64 {
            let mut read = Image::zeroed();
            backend.read(PageNo(page as u32), &mut read).unwrap();
            let last = (0..100).rev().find(|i| i % 7 == page).unwrap();
            assert!(read == *image(last));
        }
        backend.check(&mut |found| panic!("{found}")).unwrap();
    }
}

/// A store of three levels of tables: page numbers beyond two levels, which are used sparsely.
#[test]
fn checkpoints_of_many_tables_leave_no_slot_behind() {
    let options = FlipOptions { initial_slots: 4096, ..FlipOptions::default() };
    let medium = Arc::new(Memory::new(Granularity::Page));
    let backend = FlipBackend::create(Arc::clone(&medium) as Arc<dyn Medium>, options).unwrap();
    let far = (slot::FANOUT * slot::FANOUT) as u32 + 7;
    backend.commit(&Batch { writes: vec![write(far, 0)], frees: vec![], ..Batch::default() }).unwrap();
    for round in 0..4_u64 {
        // Two of two tables, which share the table above them.
        let writes = [0, slot::FANOUT as u32].map(|page| write(page, round)).into();
        backend.commit(&Batch { writes, frees: vec![], ..Batch::default() }).unwrap();
        backend.checkpoint().unwrap();
        backend.check(&mut |found| panic!("{found}")).unwrap();
    }
    // Pages, tables of three levels, and the first slots of two commits.
    assert_eq!(backend.stats().slots - backend.stats().free_slots, 3 + 3 + 2 + 1 + 2);
}

#[test]
fn how_many_pages_there_may_be_depends_on_the_slots_after_the_commit() {
    let medium = Arc::new(Memory::new(Granularity::Page));
    let backend = FlipBackend::create(medium, FlipOptions::default()).unwrap();
    let slots = backend.stats().slots as u32 + FIRST_SLOT;
    let beyond = pages_limit(slots) as u32 + 100;
    let writes = |page| (0..64).chain([page]).map(|page| write(page, 1)).collect();
    backend.commit(&Batch { writes: writes(beyond), frees: vec![], ..Batch::default() }).unwrap();
    let nonsense = backend.commit(&Batch { writes: writes(u32::MAX), frees: vec![], ..Batch::default() });
    assert!(matches!(nonsense, Err(Error::Invalid(_))), "{nonsense:?}");
    backend.commit(&Batch { writes: writes(2), frees: vec![PageNo(beyond)], ..Batch::default() }).unwrap();
    backend.check(&mut |found| panic!("{found}")).unwrap();
}

#[test]
fn readers_meet_a_writer() {
    let backend = FlipBackend::create(Arc::new(Memory::new(Granularity::Page)), FlipOptions::tiny(Syncs::One)).unwrap();
    backend
        .commit(&Batch {
            writes: (0..8).map(|page| write(page, u64::from(page))).collect(),
            frees: vec![],
            ..Batch::default()
        })
        .unwrap();
    std::thread::scope(|scope| {
        for reader in 0..2 {
            let backend = &backend;
            scope.spawn(move || {
                let mut back = Image::zeroed();
                for round in 0..20_000_u32 {
                    let page = (round + reader) % 8;
                    backend.read(PageNo(page), &mut back).unwrap();
                    // Pages below 4 do not change. Others have any version that was written.
                    if page < 4 {
                        assert!(back == *image(u64::from(page)));
                    } else {
                        assert!(back == *image(u64::from_le_bytes(*back.0.first_chunk().unwrap())));
                    }
                }
            });
        }
        for round in 0..4000_u64 {
            let writes = vec![write(4 + (round % 4) as u32, 100 + round)];
            backend.commit(&Batch { writes, frees: vec![], ..Batch::default() }).unwrap();
            if round % 100 == 0 {
                backend.checkpoint().unwrap();
            }
        }
    });
    backend.check(&mut |found| panic!("{found}")).unwrap();
}
