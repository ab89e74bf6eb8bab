//! Crashes, mutants, flipped bytes, and a model, on the backend for media of lines.

mod cost;
mod crash;
mod flips;
mod model;
mod mutants;

use std::ops::Range;
use std::sync::Arc;

use super::checksum::Checksum;
use super::layout::Geometry;
use super::table::Entry;
use super::{LineBackend, Options};
use crate::Result;
use crate::backend::{Backend, PageNo};
use crate::explore::CrashImage;
use crate::explore::backends::{Step, Subject};
use crate::medium::SimPmem;
use crate::options::CommitBy;

/// A small store on simulated memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Small {
    pub(super) options: Options,
    /// True if the medium has other contents at first.
    pub(super) is_used: bool,
}

impl Small {
    pub(super) fn new(ring_records: u32, region_slots: u32, shadow_slots: u32) -> Self {
        Self {
            options: Options {
                commit_by: CommitBy::Journal,
                ring_records,
                region_slots,
                reserve_slots: 0,
                shadow_slots,
                uuid: [7; 16],
            },
            is_used: false,
        }
    }

    /// Returns the same with commits by a super page.
    pub(super) fn by_super_page(mut self) -> Self {
        self.options.commit_by = CommitBy::SuperPage;
        self
    }

    /// Returns the location of the table of the first region.
    pub(super) fn table(&self) -> Range<u64> {
        let geometry =
            Geometry::new(self.options.ring_records, self.options.region_slots, self.options.commit_by).unwrap();
        geometry.table(0)..geometry.line(0, 0)
    }

    /// Returns the initial contents of the medium. If it was used, the location of the table holds
    /// entries that could be valid.
    pub(super) fn start(&self) -> CrashImage {
        let mut image = CrashImage::new();
        if self.is_used {
            image.set_len(50_000);
            image.write(0, &[0xAB; 50_000]);
            let checksum = Checksum::from_stored(9).unwrap();
            for (slot, word) in (0..).zip(self.table().start / 8..self.table().end / 8) {
                let entry = Entry::Single { slot, checksum }.encode(PageNo(slot));
                image.set_word(word, u64::from_le_bytes(entry));
            }
        }
        image
    }
}

impl Subject for Small {
    type Medium = SimPmem;

    fn create(&self, medium: Arc<SimPmem>) -> Result<Box<dyn Backend>> {
        Ok(Box::new(LineBackend::create(medium, &self.options)?))
    }

    fn open(&self, medium: Arc<SimPmem>) -> Result<Box<dyn Backend>> {
        Ok(Box::new(LineBackend::open(medium, &self.options)?))
    }
}

/// Returns workloads, by name, that together reach every precaution.
pub(super) fn workloads() -> Vec<(&'static str, Small, Vec<Step>)> {
    let commit = Step::commit;
    let used = Small { is_used: true, ..Small::new(4, 8, 2) };
    let spilled = |writes: &[(u32, &[usize])]| match Step::commit(writes) {
        Step::Commit { writes, frees, .. } => Step::Commit { writes, frees, spilled: true },
        other => other,
    };
    vec![
        (
            "single pages",
            Small::new(16, 16, 4),
            vec![
                commit(&[(0, &[0])]),
                commit(&[(0, &[1, 2])]),
                commit(&[(0, &[1])]),
                commit(&[(0, &[0, 1, 2, 3])]),
                commit(&[(0, &[2])]),
            ],
        ),
        (
            "many pages",
            Small::new(16, 16, 8),
            vec![
                commit(&[(0, &[0]), (1, &[0]), (2, &[0]), (3, &[0])]),
                commit(&[(0, &[1]), (1, &[1]), (2, &[1])]),
                commit(&[(0, &[0]), (1, &[0]), (2, &[0]), (3, &[0])]),
                commit(&[(3, &[1])]),
            ],
        ),
        (
            "frees",
            Small::new(16, 8, 4),
            vec![
                commit(&[(0, &[0]), (1, &[0])]),
                commit(&[(0, &[1])]),
                Step::free(&[0]),
                commit(&[(2, &[0, 1])]),
                Step::Commit { writes: vec![(3, vec![0, 1])], frees: vec![1], spilled: false },
                commit(&[(0, &[3])]),
            ],
        ),
        (
            "checkpoints",
            Small::new(8, 8, 4),
            vec![
                commit(&[(0, &[0]), (1, &[1])]),
                Step::Checkpoint,
                commit(&[(0, &[1]), (1, &[2])]),
                Step::Checkpoint,
                commit(&[(0, &[1])]),
                Step::Checkpoint,
                commit(&[(1, &[1])]),
                commit(&[(0, &[0])]),
            ],
        ),
        (
            "laps of the journal",
            Small::new(4, 8, 4),
            (0..14).map(|i| commit(&[(0, &[i % 3]), (1, &[i % 2])])).collect(),
        ),
        (
            "consolidation",
            Small::new(16, 16, 2),
            vec![
                commit(&[(0, &[0]), (1, &[0]), (2, &[0]), (3, &[0])]),
                commit(&[(0, &[1]), (1, &[1])]),
                commit(&[(2, &[1])]),
                commit(&[(3, &[1, 2])]),
                Step::Maintain,
                commit(&[(0, &[0, 2])]),
                commit(&[(1, &[0])]),
                Step::Checkpoint,
                Step::Maintain,
                commit(&[(2, &[0])]),
            ],
        ),
        (
            "growth",
            Small::new(16, 8, 8),
            vec![
                commit(&[(0, &[0]), (1, &[0]), (2, &[0]), (3, &[0]), (4, &[0]), (5, &[0])]),
                commit(&[(0, &[1]), (1, &[1])]),
                commit(&[(2, &[1]), (6, &[1])]),
                Step::Checkpoint,
                commit(&[(9, &[0])]),
            ],
        ),
        (
            "spills and aborts",
            Small::new(16, 16, 4),
            vec![
                spilled(&[(0, &[0]), (1, &[0, 1])]),
                Step::Abort(vec![(0, vec![1]), (2, vec![0])]),
                spilled(&[(0, &[1, 2]), (2, &[0])]),
                commit(&[(1, &[0])]),
                spilled(&[(0, &[0]), (1, &[1])]),
            ],
        ),
        (
            "more than the journal takes",
            Small::new(4, 16, 8),
            vec![
                commit(&[(0, &[0]), (1, &[0]), (2, &[0])]),
                commit(&[(0, &[1]), (1, &[1]), (2, &[1]), (3, &[0])]),
                commit(&[(0, &[2])]),
                Step::Reopen,
                spilled(&[(0, &[3]), (4, &[1])]),
                commit(&[(0, &[1]), (1, &[1]), (2, &[1]), (3, &[0]), (4, &[0])]),
                Step::Reopen,
                Step::Abort(vec![(5, vec![0, 1]), (6, vec![1])]),
                Step::Reopen,
                commit(&[(0, &[1])]),
            ],
        ),
        (
            "a super page",
            Small::new(8, 16, 2).by_super_page(),
            vec![
                commit(&[(0, &[0]), (1, &[0]), (2, &[0])]),
                commit(&[(0, &[1])]),
                commit(&[(0, &[0]), (1, &[1]), (2, &[1])]),
                Step::Checkpoint,
                commit(&[(1, &[0])]),
                commit(&[(1, &[2]), (0, &[1])]),
                Step::free(&[2]),
                Step::Reopen,
                commit(&[(0, &[3])]),
                Step::Close,
                spilled(&[(3, &[0]), (0, &[0])]),
                Step::Maintain,
                commit(&[(3, &[1])]),
            ],
        ),
        (
            "more than a super page takes",
            Small::new(16, 48, 24).by_super_page(),
            vec![
                commit(&(0..18).map(|page| (page, &[0_usize][..])).collect::<Vec<_>>()),
                commit(&[(0, &[1]), (1, &[1])]),
                commit(&(0..17).map(|page| (page, &[1_usize][..])).collect::<Vec<_>>()),
                Step::Reopen,
                commit(&[(0, &[0])]),
                commit(&[(1, &[0])]),
            ],
        ),
        ("a medium that was used", used, vec![commit(&[(0, &[0])])]),
        (
            "victims that are in use",
            Small::new(16, 16, 1),
            vec![
                commit(&[(0, &[0]), (1, &[0])]),
                commit(&[(0, &[1])]),
                commit(&[(1, &[1]), (0, &[2])]),
                spilled(&[(0, &[1])]),
                spilled(&[(0, &[0]), (1, &[0])]),
                Step::Commit { writes: vec![(1, vec![3])], frees: vec![0], spilled: false },
            ],
        ),
        (
            "closing and opening",
            Small::new(8, 8, 4),
            vec![
                commit(&[(0, &[0])]),
                Step::Close,
                commit(&[(0, &[1]), (1, &[0])]),
                Step::Reopen,
                commit(&[(1, &[1])]),
                Step::Reopen,
                Step::Close,
                Step::Close,
                commit(&[(0, &[0])]),
                Step::Reopen,
                Step::Checkpoint,
                commit(&[(0, &[2])]),
            ],
        ),
    ]
}
