//! Translation look-aside buffers: the pages in use, and the replacement of pages.
//!
//! 1. A level is a number of sets, each of a number of ways with true least-recently-used
//!    replacement; a fully associative one has a single set. A page belongs to the set `page mod
//!    sets`.
//! 2. Levels are looked up in order, and those above the first that has the page are filled from
//!    it. A level's order of use changes only when it is looked up: a hit above is not seen below.
//! 3. The hierarchy is inclusive: a page that leaves the last level leaves all of them, and only
//!    then goes out of use.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The maximum number of entries of a level.
const MAX_ENTRIES: usize = 1 << 20;

/// The shape of a level: `64` is fully associative, `1536:12` has 12 ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// The number of pages that it holds.
    pub entries: usize,
    /// The number of pages that a set holds: all entries if it is fully associative.
    pub ways: usize,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.entries == self.ways {
            true => write!(f, "{} entries, fully associative", self.entries),
            false => write!(f, "{} entries, {} ways", self.entries, self.ways),
        }
    }
}

impl FromStr for Shape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (entries, ways) = text.split_once(':').unwrap_or((text, text));
        let wrong = || format!("{text}: a level is 64, or 1536:12 with its ways");
        let shape = Self { entries: entries.parse().map_err(|_| wrong())?, ways: ways.parse().map_err(|_| wrong())? };
        let is_possible = shape.ways > 0 && shape.entries <= MAX_ENTRIES && shape.entries.is_multiple_of(shape.ways);
        if is_possible && shape.entries > 0 { Ok(shape) } else { Err(wrong()) }
    }
}

/// The result of a reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The level that had the page, from 0; the number of levels if none had it.
    pub level: usize,
    /// The page that left the last level for it.
    pub evicted: Option<u64>,
}

/// All levels.
#[derive(Clone, Debug)]
pub struct Tlb {
    levels: Vec<Level>,
}

impl Tlb {
    /// Creates an empty TLB. Levels go from the nearest to the last.
    pub fn new(shapes: &[Shape]) -> Self {
        Self { levels: shapes.iter().map(Level::new).collect() }
    }

    /// References a page.
    pub fn touch(&mut self, page: u64) -> Found {
        let last = self.levels.len();
        let level = self.levels.iter_mut().position(|level| level.touch(page)).unwrap_or(last);
        let mut evicted = None;
        for above in (0..level).rev() {
            let victim = self.levels[above].insert(page);
            if above + 1 == last {
                evicted = victim;
            }
        }
        if let Some(victim) = evicted {
            self.levels.iter_mut().for_each(|level| level.remove(victim));
        }
        Found { level, evicted }
    }

    /// Returns true if a page is in use.
    pub fn has(&self, page: u64) -> bool {
        self.levels.last().is_some_and(|level| level.has(page))
    }
}

/// One level.
#[derive(Clone, Debug)]
struct Level {
    /// The pages of each set, the most recently used first.
    sets: Vec<Vec<u64>>,
    ways: usize,
}

impl Level {
    fn new(shape: &Shape) -> Self {
        Self { sets: vec![Vec::with_capacity(shape.ways); shape.entries / shape.ways], ways: shape.ways }
    }

    fn index(&self, page: u64) -> usize {
        (page % self.sets.len() as u64) as usize
    }

    fn has(&self, page: u64) -> bool {
        self.sets[self.index(page)].contains(&page)
    }

    /// Looks up a page, and marks it as used last. Returns true if it is present.
    fn touch(&mut self, page: u64) -> bool {
        let index = self.index(page);
        let set = &mut self.sets[index];
        let Some(place) = find(set, page) else {
            return false;
        };
        set[..=place].rotate_right(1);
        true
    }

    /// Inserts a page that is absent. Returns the evicted page.
    fn insert(&mut self, page: u64) -> Option<u64> {
        let index = self.index(page);
        let set = &mut self.sets[index];
        let victim = if set.len() == self.ways { set.pop() } else { None };
        set.insert(0, page);
        victim
    }

    fn remove(&mut self, page: u64) {
        let index = self.index(page);
        self.sets[index].retain(|one| *one != page);
    }
}

/// Returns the index of a page. Eight entries are compared without a branch, which compiles to
/// vector instructions.
fn find(set: &[u64], page: u64) -> Option<usize> {
    let chunk = set.chunks(8).position(|chunk| chunk.iter().fold(false, |is_there, one| is_there | (*one == page)))?;
    set[chunk * 8..].iter().position(|one| *one == page).map(|place| chunk * 8 + place)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::random::Random;
    use super::*;

    /// A literal implementation of the definition: every page with the time of its last use.
    struct Naive {
        shapes: Vec<Shape>,
        levels: Vec<Vec<(u64, u64)>>,
        now: u64,
    }

    impl Naive {
        fn new(shapes: &[Shape]) -> Self {
            Self { shapes: shapes.to_vec(), levels: vec![Vec::new(); shapes.len()], now: 0 }
        }

        fn touch(&mut self, page: u64) -> Found {
            self.now += 1;
            let now = self.now;
            let level = self.levels.iter().position(|level| level.iter().any(|(one, _)| *one == page));
            let level = level.unwrap_or(self.levels.len());
            let mut evicted = None;
            for (number, (pages, shape)) in self.levels.iter_mut().zip(&self.shapes).enumerate() {
                if number == level {
                    pages.iter_mut().filter(|(one, _)| *one == page).for_each(|one| one.1 = now);
                }
                if number >= level {
                    break;
                }
                let sets = (shape.entries / shape.ways) as u64;
                let of_set: Vec<_> = pages.iter().filter(|(one, _)| one % sets == page % sets).copied().collect();
                if of_set.len() == shape.ways {
                    let oldest = of_set.into_iter().min_by_key(|(_, used)| *used).unwrap().0;
                    pages.retain(|(one, _)| *one != oldest);
                    if number + 1 == self.shapes.len() {
                        evicted = Some(oldest);
                    }
                }
                pages.push((page, now));
            }
            if let Some(victim) = evicted {
                self.levels.iter_mut().for_each(|level| level.retain(|(one, _)| *one != victim));
            }
            Found { level, evicted }
        }
    }

    #[test]
    fn it_is_what_the_definition_says() {
        for levels in [&["4"][..], &["64"], &["8:2"], &["1"], &["4", "16:4"], &["2", "6:3", "24:2"], &["8", "8"]] {
            let shapes: Vec<Shape> = levels.iter().map(|text| text.parse().unwrap()).collect();
            let (mut tlb, mut naive) = (Tlb::new(&shapes), Naive::new(&shapes));
            let mut random = Random::new(7);
            for step in 0..20_000 {
                // Some pages are far more frequent than others, and all sets occur.
                let range = 1 + random.below(120);
                let page = random.below(range);
                let (found, expected) = (tlb.touch(page), naive.touch(page));
                assert_eq!(found, expected, "{levels:?}, step {step}, page {page}");
                assert!(tlb.has(page) && found.evicted.is_none_or(|page| !tlb.has(page)));
            }
        }
    }

    #[test]
    fn the_page_used_least_recently_leaves() {
        let mut tlb = Tlb::new(&["2".parse().unwrap()]);
        let evicted: Vec<_> = [1, 2, 1, 3, 2].map(|page| tlb.touch(page).evicted).to_vec();
        assert_eq!(evicted, [None, None, None, Some(2), Some(1)]);
    }

    #[test]
    fn shapes_are_read_or_refused() {
        assert_eq!("64".parse(), Ok(Shape { entries: 64, ways: 64 }));
        assert_eq!("1536:12".parse(), Ok(Shape { entries: 1536, ways: 12 }));
        for wrong in ["", "0", "64:0", "64:5", "x", "64:", "99999999"] {
            assert!(wrong.parse::<Shape>().is_err(), "{wrong}");
        }
    }
}
