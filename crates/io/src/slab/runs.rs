//! Which parts of a slab's regions are free: best fit, with neighbours put together.
//!
//! Invariants:
//! - Free runs do not overlap, no two of a region touch, and none reaches from one region into another: what is free in a
//!   row is one run.
//! - A run is taken from its front, and of runs of equal length the one at the lowest address: memory that was used before
//!   is used again before memory is that nobody has touched, which the system would first have to find and clear.
//!
//! Lengths are what the caller asks for, to the page, and not powers of two: a read of 516 KiB takes 516 KiB. A buddy
//! allocator would find neighbours in fewer steps, and leave half of some buffers empty; there are some hundred buffers, so
//! that a step in a tree costs nothing beside the read.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Free parts of an address space. All in bytes.
#[derive(Debug, Default)]
pub(super) struct FreeRuns {
    /// The length of each, by where it starts.
    by_start: BTreeMap<usize, usize>,
    /// Length and start of each: the best fit is the first that is long enough.
    by_bytes: BTreeSet<(usize, usize)>,
}

impl FreeRuns {
    /// Takes `bytes` from the best fit; where they start.
    pub fn take(&mut self, bytes: usize) -> Option<usize> {
        let (run, start) = self.by_bytes.range((bytes, 0)..).next().copied()?;
        self.remove(start, run);
        if run > bytes {
            self.insert(start + bytes, run - bytes);
        }
        Some(start)
    }

    /// Gives back a part of `region`, which is not free. What is free in a row around it from now on.
    pub fn give(&mut self, part: Range<usize>, region: &Range<usize>) -> Range<usize> {
        debug_assert!(!part.is_empty() && region.start <= part.start && part.end <= region.end);
        let mut run = part;
        if let Some((&start, &bytes)) = self.by_start.range(region.start..run.start).next_back() {
            debug_assert!(start + bytes <= run.start, "given back twice");
            if start + bytes == run.start {
                self.remove(start, bytes);
                run.start = start;
            }
        }
        if let Some((&start, &bytes)) = self.by_start.range(run.end..region.end).next()
            && start == run.end
        {
            self.remove(start, bytes);
            run.end += bytes;
        }
        self.insert(run.start, run.len());
        run
    }

    /// Forgets a run.
    pub fn remove(&mut self, start: usize, bytes: usize) {
        self.by_start.remove(&start);
        self.by_bytes.remove(&(bytes, start));
    }

    fn insert(&mut self, start: usize, bytes: usize) {
        self.by_start.insert(start, bytes);
        self.by_bytes.insert((bytes, start));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Two regions, which touch: a run must not reach from one into the other.
    const REGIONS: [Range<usize>; 2] = [100..164, 164..196];

    /// What is free, page by page.
    struct Naive {
        is_free: Vec<bool>,
    }

    impl Naive {
        /// Maximal runs of free pages, of each region by itself.
        fn runs(&self) -> Vec<(usize, usize)> {
            let mut runs: Vec<(usize, usize)> = Vec::new();
            for region in REGIONS {
                for page in region.clone().filter(|page| self.is_free[*page]) {
                    match runs.last_mut() {
                        Some((start, pages)) if *start + *pages == page && page > region.start => *pages += 1,
                        _ => runs.push((page, 1)),
                    }
                }
            }
            runs
        }
    }

    proptest! {
        #[test]
        fn is_what_counting_pages_says(steps in prop::collection::vec((any::<bool>(), 1usize..40), 1..200)) {
            let mut free = FreeRuns::default();
            let mut naive = Naive { is_free: vec![false; REGIONS[1].end] };
            for region in &REGIONS {
                free.give(region.clone(), region);
                naive.is_free[region.clone()].fill(true);
            }
            let mut taken: Vec<Range<usize>> = Vec::new();
            for (takes, n) in steps {
                if takes || taken.is_empty() {
                    let fits = naive.runs().into_iter().filter(|(_, pages)| *pages >= n);
                    let best = fits.min_by_key(|(start, pages)| (*pages, *start)).map(|(start, _)| start);
                    let start = free.take(n);
                    prop_assert_eq!(start, best);
                    if let Some(start) = start {
                        naive.is_free[start..start + n].fill(false);
                        taken.push(start..start + n);
                    }
                } else {
                    let part = taken.swap_remove(n % taken.len());
                    let region = REGIONS.iter().find(|region| region.contains(&part.start)).unwrap();
                    naive.is_free[part.clone()].fill(true);
                    let run = free.give(part, region);
                    prop_assert!(naive.runs().contains(&(run.start, run.len())));
                }
                prop_assert_eq!(free.by_start.iter().map(|(s, b)| (*s, *b)).collect::<Vec<_>>(), naive.runs());
                prop_assert_eq!(free.by_bytes.len(), free.by_start.len());
            }
            for part in taken {
                let region = REGIONS.iter().find(|region| region.contains(&part.start)).unwrap();
                free.give(part, region);
            }
            let whole: Vec<_> = REGIONS.iter().map(|region| (region.start, region.len())).collect();
            prop_assert_eq!(free.by_start.into_iter().collect::<Vec<_>>(), whole);
        }
    }
}
