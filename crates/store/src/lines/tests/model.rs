//! Random batches against a map of pages in memory: on plain memory, reopened at times, until it is
//! full.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;

use super::super::{LineBackend, Options};
use crate::Error;
use crate::backend::{Backend, Batch, Content, Image, LINE_BYTES, Lines, PageNo, Write};
use crate::explore::CrashImage;
use crate::medium::SimPmem;
use crate::options::CommitBy;

const PAGES: u32 = 24;

#[derive(Clone, Debug)]
enum Op {
    /// Pages with a seed for their changes, freed pages, and true if the batch is spilled.
    Commit(Vec<(u32, u64)>, Vec<u32>, bool),
    Abort(Vec<(u32, u64)>),
    Checkpoint,
    Maintain,
    Reopen,
    Close,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let writes = || prop::collection::vec((0..PAGES, any::<u64>()), 0..12);
    let op = prop_oneof![
        8 => (writes(), prop::collection::vec(0..PAGES, 0..4), any::<bool>()).prop_map(|(w, f, s)| Op::Commit(w, f, s)),
        1 => writes().prop_map(Op::Abort),
        1 => Just(Op::Checkpoint),
        1 => Just(Op::Maintain),
        1 => Just(Op::Reopen),
        1 => Just(Op::Close),
    ];
    prop::collection::vec(op, 1..60)
}

/// Changes random bytes of a page, few or many.
fn change(image: &mut Image, seed: u64) -> Lines {
    let mut random = crate::explore::Random::new(seed);
    let mut lines = Lines::default();
    let most = [1, 4, 30][random.below(3) as usize];
    for _ in 0..=random.below(most) {
        let from = random.below(image.0.len() as u64) as usize;
        let to = (from + 1 + random.below(2 * LINE_BYTES as u64) as usize).min(image.0.len());
        image.0[from..to].fill(random.draw() as u8);
        lines = lines.with(Lines::of(from, to));
    }
    lines
}

type Model = BTreeMap<u32, Arc<Image>>;

/// Returns the batch, and the model after it. Spills the written pages if requested.
fn batch(
    backend: &LineBackend,
    model: &Model,
    writes: &[(u32, u64)],
    frees: &[u32],
    spilled: bool,
) -> Result<(Batch, Model), Error> {
    let (mut batch, mut next) = (Batch::default(), model.clone());
    for (page, seed) in writes {
        if batch.writes.iter().any(|write| write.page.0 == *page) {
            continue;
        }
        let old = model.get(page);
        let mut image = old.map_or_else(Image::zeroed, |old| (**old).clone());
        let changed = change(&mut image, *seed);
        let lines = if old.is_some() { changed } else { Lines::ALL };
        let image = Arc::new(image);
        let content = if spilled {
            backend.spill(PageNo(*page), &image, lines)?;
            Content::Spilled
        } else {
            Content::Image(image.clone())
        };
        batch.writes.push(Write { page: PageNo(*page), content, lines });
        next.insert(*page, image);
    }
    for page in frees {
        if model.contains_key(page) && !writes.iter().any(|write| write.0 == *page) && next.remove(page).is_some() {
            batch.frees.push(PageNo(*page));
        }
    }
    Ok((batch, next))
}

fn agree(backend: &LineBackend, model: &Model) -> Result<(), TestCaseError> {
    let pages: Vec<u32> = backend.pages().iter().map(|page| page.0).collect();
    prop_assert_eq!(pages, model.keys().copied().collect::<Vec<_>>());
    let mut image = Image::zeroed();
    for (page, expected) in model {
        backend.read(PageNo(*page), &mut image).map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert!(image == **expected, "page {} holds something else", page);
    }
    let mut findings = Vec::new();
    backend.check(&mut |finding| findings.push(finding)).map_err(|error| TestCaseError::fail(error.to_string()))?;
    prop_assert_eq!(findings, Vec::<String>::new());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn batches_do_what_a_map_does(
        ops in ops(), ring_records in 4_u32..40, shadow_slots in 0_u32..12, regions in 1_u32..6,
        by_super_page in any::<bool>(), reserve_slots in 0_u32..3,
    ) {
        let commit_by = if by_super_page { CommitBy::SuperPage } else { CommitBy::Journal };
        let options = Options { commit_by, ring_records, region_slots: 16, reserve_slots, shadow_slots, uuid: [1; 16] };
        let room = 2 * 8192 + u64::from(ring_records) * 64 + u64::from(regions) * 16 * (8 + 4096);
        let medium = Arc::new(SimPmem::quiet(CrashImage::new()).with_room(room));
        let mut backend = LineBackend::create(medium.clone(), &options).unwrap();
        let mut model = Model::new();
        for op in &ops {
            match op {
                Op::Commit(writes, frees, spilled) => {
                    let done = batch(&backend, &model, writes, frees, *spilled)
                        .and_then(|(batch, next)| backend.commit(&batch).map(|_| next));
                    match done {
                        Ok(next) => model = next,
                        // The failed commit has changed nothing.
                        Err(Error::Full { .. }) => backend.discard_spilled(),
                        Err(error) => prop_assert!(false, "{error}"),
                    }
                }
                Op::Abort(writes) => {
                    let done = batch(&backend, &model, writes, &[], true);
                    prop_assert!(matches!(done, Ok(_) | Err(Error::Full { .. })), "{done:?}");
                    backend.discard_spilled();
                }
                Op::Checkpoint => backend.checkpoint().unwrap(),
                Op::Maintain => while backend.maintain().unwrap() {},
                Op::Close | Op::Reopen => {
                    if matches!(op, Op::Close) {
                        backend.close().unwrap();
                    }
                    backend = LineBackend::open(medium.clone(), &options).unwrap();
                }
            }
            agree(&backend, &model)?;
        }
    }
}
