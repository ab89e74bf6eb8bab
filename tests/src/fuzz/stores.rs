//! Store files of both layouts: opened, read, checked, written to, and opened again.
//!
//! The lowest three bits of the seal: 0 leaves all checksums; 1 to 3 recompute those of the
//! superblock and of each slot or record; 4 to 7 also those that tables and lists keep of slots.
//! Damage to a node then passes all checks below the tree.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use onehop_engine::{Error, ErrorKind};
use onehop_governor::{Account, Scope};
use onehop_store::medium::{Granularity, Medium, Memory};
use onehop_store::{Access, CommitBy, Options, Store};

use super::damage::Damage;
use super::seals::{BEGIN, COPIES, LINE, Lines, SECTOR, SLOT, seal_flips, seal_lines};
use super::{Made, Mutator, Outcome, Target, Verdict};

/// The memory that a damaged store may use beyond its size, in bytes: caches, and buffers of a
/// commit.
const MOST_MORE_BYTES: u64 = 48 << 20;
/// The maximum number of regions that are single slots. An edit selects one by a byte.
const MOST_SLOTS: usize = 70;

/// The layout of pages in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// Whole pages on files.
    Flips,
    /// Pairs of slots on memory.
    Lines,
}

struct Image {
    bytes: Vec<u8>,
    regions: Vec<Range<usize>>,
}

struct Stores {
    layout: Layout,
    images: Vec<Image>,
}

pub(super) fn target(layout: Layout) -> Made {
    let images = kinds(layout).into_iter().map(|(end, by)| image(layout, end, by));
    let images = images.map(|bytes| bytes.map(|bytes| Image { regions: regions(layout, &bytes), bytes }));
    Ok(Box::new(Stores { layout, images: images.collect::<Result<_, _>>().map_err(failed)? }))
}

/// Returns the kinds of images of a layout.
fn kinds(layout: Layout) -> Vec<(End, CommitBy)> {
    let mut kinds = [End::Left, End::Closed, End::Checkpointed].map(|end| (end, CommitBy::Journal)).to_vec();
    if layout == Layout::Lines {
        kinds.extend([End::Left, End::Checkpointed].map(|end| (end, CommitBy::SuperPage)));
    }
    kinds
}

fn failed(e: onehop_store::Error) -> Error {
    Error::new(ErrorKind::Internal, e.to_string())
}

impl Target for Stores {
    fn seeds(&self) -> Vec<Vec<u8>> {
        (0..self.images.len()).map(|image| Damage { image: image as u8, seal: 4, edits: Vec::new() }.encode()).collect()
    }

    fn mutate(&self, mutator: &mut Mutator, input: &[u8], _other: &[u8]) -> Vec<u8> {
        Damage::mutate(mutator, input)
    }

    fn run(&mut self, input: &[u8]) -> Verdict {
        let damage = Damage::decode(input);
        let image = damage.pick(&self.images);
        let mut bytes = image.bytes.clone();
        damage.apply(&mut bytes, &image.regions);
        match (damage.seal % 8, self.layout) {
            (0, _) => {}
            (seal, Layout::Flips) => seal_flips(&mut bytes, seal >= 4),
            (seal, Layout::Lines) => seal_lines(&mut bytes, seal >= 4),
        }
        // The account measures the allocations of this thread for the input.
        let account = Account::new(0, u64::MAX, None::<Instant>);
        let limit = MOST_MORE_BYTES + 4 * bytes.len() as u64;
        let outcome = Scope::new().with_account(Arc::clone(&account)).run(|| try_all(self.layout, &bytes));
        match account.peak() {
            peak if peak > limit => Err(format!("{} MiB for a store of {} KiB", peak >> 20, bytes.len() >> 10)),
            _ => Ok(outcome),
        }
    }
}

/// Opens a store, reads everything, checks everything, changes something, and opens the result.
fn try_all(layout: Layout, bytes: &[u8]) -> Outcome {
    let medium = |bytes: &[u8]| Arc::new(Memory::with_bytes(granularity(layout), bytes.to_vec()));
    let all = |store: &Store| -> onehop_store::Result<usize> {
        let snapshot = store.read()?;
        let mut seen = 0;
        for name in snapshot.trees()? {
            let tree = snapshot.tree(&name)?;
            for entry in tree.iter() {
                seen += entry?.value().len();
            }
            seen += tree.iter().rev().take(3).filter(Result::is_ok).count();
            let _ = tree.prefix([7]).next();
        }
        Ok(seen)
    };
    let mut outcome = Outcome::Accepted;
    let mut note = |is_good: bool| {
        if !is_good {
            outcome = Outcome::Refused;
        }
    };
    let options = Options::default().cache_bytes(1 << 20).transaction_bytes(8 * SLOT);
    match Store::open_on(medium(bytes), &options.clone().access(Access::ReadOnly)) {
        Ok(store) => {
            note(store.check().is_ok_and(|report| report.is_sound()));
            note(all(&store).is_ok());
            note(store.close().is_ok());
        }
        Err(_) => note(false),
    }
    let changed = medium(bytes);
    if let Ok(store) = Store::open_on(Arc::clone(&changed) as Arc<dyn Medium>, &options) {
        note(all(&store).is_ok());
        note(change(&store).is_ok());
        note(store.checkpoint().is_ok());
        note(change(&store).is_ok());
        let _ = store.maintain();
        note(store.check().is_ok_and(|report| report.is_sound()));
        note(store.close().is_ok());
        if let Ok(store) = Store::open_on(changed, &options) {
            note(all(&store).is_ok());
        }
    }
    outcome
}

fn change(store: &Store) -> onehop_store::Result<()> {
    let mut transaction = store.write()?;
    for name in ["t", "u", "new"] {
        let mut tree = transaction.tree(name)?;
        tree.insert("key", vec![1; 9000])?;
        for key in 0..30_u8 {
            tree.insert([7, key], [key; 200])?;
            tree.remove([key])?;
        }
        tree.remove("long")?;
    }
    transaction.drop_tree("v")?;
    transaction.commit()
}

fn granularity(layout: Layout) -> Granularity {
    match layout {
        Layout::Flips => Granularity::Page,
        Layout::Lines => Granularity::Line,
    }
}

/// The end of the process that made an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// It ended abruptly, with commits since the last checkpoint.
    Left,
    /// It closed the store.
    Closed,
    /// It ended abruptly, with a short commit since the last checkpoint.
    Checkpointed,
}

/// Creates a store with varied contents.
fn image(layout: Layout, end: End, by: CommitBy) -> onehop_store::Result<Vec<u8>> {
    let medium = Arc::new(Memory::new(granularity(layout)));
    let options = Options::default().transaction_bytes(8 * SLOT).commit_by(by);
    let store = Store::create_on(Arc::clone(&medium) as Arc<dyn Medium>, &options)?;
    for round in 0..3_u8 {
        let transaction = store.write()?;
        for (name, size) in [("t", 900), ("u", 40), ("v", 5)] {
            let mut tree = transaction.tree(name)?;
            for key in 0..40_u8 {
                tree.insert([key], vec![round; size])?;
            }
            tree.insert("long", vec![round; 10 * size])?;
        }
        transaction.commit()?;
        if round == 1 || end == End::Checkpointed {
            store.checkpoint()?;
        }
    }
    if end == End::Checkpointed {
        let transaction = store.write()?;
        transaction.tree("u")?.insert("late", "value")?;
        transaction.commit()?;
    }
    match end {
        End::Closed => store.close()?,
        // The writes of its destructor never happen.
        End::Left | End::Checkpointed => std::mem::forget(store),
    }
    Ok(medium.to_vec())
}

/// Returns the superblocks and their bodies, the beginnings of slots and of the nodes in them,
/// tables, and the whole file.
fn regions(layout: Layout, bytes: &[u8]) -> Vec<Range<usize>> {
    let mut regions = Vec::new();
    for at in COPIES {
        regions.extend([at..at + SECTOR, at + 8..at + 110, at + 48..at + 110]);
    }
    let mut from = BEGIN;
    if layout == Layout::Lines {
        let lines = Lines::of(bytes);
        // The used records.
        regions.extend((0..4).map(|_| BEGIN..BEGIN + 40 * LINE));
        for region in 0..lines.regions(bytes.len()) {
            let table = lines.table(region);
            regions.extend((0..6).map(|_| table..table + 60 * 8));
        }
        if let Some(super_page) = lines.super_page {
            regions.extend([0, SLOT].map(|side| super_page + side..super_page + side + 8 * LINE));
        }
        from = lines.table(0) + lines.region_slots * 8;
    }
    let slots = (from..bytes.len()).step_by(SLOT);
    let used: Vec<usize> = slots.filter(|at| bytes[*at..bytes.len().min(at + SLOT)].iter().any(|b| *b != 0)).collect();
    for at in used.into_iter().take(MOST_SLOTS) {
        regions.extend([at..at + LINE + 16, at + LINE..at + 2 * LINE, at + LINE..at + SLOT]);
    }
    regions.push(0..bytes.len());
    regions
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn seals_are_those_of_the_store() {
        for layout in [Layout::Flips, Layout::Lines] {
            for (end, by) in kinds(layout) {
                let mut sealed = image(layout, end, by).unwrap();
                match layout {
                    Layout::Flips => seal_flips(&mut sealed, true),
                    Layout::Lines => seal_lines(&mut sealed, true),
                }
                assert_eq!(try_all(layout, &sealed), Outcome::Accepted, "{layout:?} {end:?} {by:?}");
            }
        }
    }
}
