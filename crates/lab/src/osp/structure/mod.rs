//! The data structures of the paper's workloads. Each keeps its elements in ordinary memory, in a
//! few bytes each. It reports its loads and stores in persistent memory to a
//! [`Memory`](super::memory::Memory), where elements, keys and values have eight bytes.
//!
//! An operation *toggles* a key: it is inserted if it is absent, and deleted if it is present. The
//! free list is volatile, because recovery could rebuild it, and last in, first out. Keys are
//! smaller than 2^32.

pub mod array;
pub mod b_tree;
pub mod hash_table;
pub mod red_black;

/// The keys of a structure that is filled before anything is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filling {
    /// The number of keys: the even ones from 0 on.
    pub keys: u32,
    /// The layout of the keys.
    pub layout: Layout,
    /// The seed of the random order.
    pub seed: u64,
}

impl Filling {
    /// Returns for each place in persistent memory the number of its key.
    pub(super) fn order(&self) -> Vec<u32> {
        let mut order: Vec<u32> = (0..self.keys).collect();
        if self.layout == Layout::Random {
            super::random::Random::new(self.seed).shuffle(&mut order);
        }
        order
    }
}

/// The layout of elements that are neighbours by key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    /// Random: keys came in random order, and are hashed well.
    Random,
    /// Adjacent: keys came in order, and a hash table takes the key for its hash.
    Sequential,
}

impl Layout {
    /// All, by name.
    pub const ALL: [(&'static str, Layout); 2] = [("random", Layout::Random), ("sequential", Layout::Sequential)];
}

/// The places of nodes. Returned places are reused first, in last in, first out order.
#[derive(Clone, Debug)]
pub(super) struct Places {
    free: Vec<u32>,
    next: u32,
}

impl Places {
    /// Creates places of which all below `next` are taken.
    pub(super) fn new(next: u32) -> Self {
        Self { free: Vec::new(), next }
    }

    pub(super) fn take(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        })
    }

    pub(super) fn give_back(&mut self, place: u32) {
        self.free.push(place);
    }

    /// Returns the number of places ever taken.
    pub(super) fn count(&self) -> u64 {
        u64::from(self.next)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::memory::{Memory, WORD_BYTES};

    /// Checks that references are to words of a structure's address space.
    #[derive(Default)]
    pub struct Bounds {
        pub highest: u64,
        pub stores: u64,
    }

    impl Memory for Bounds {
        fn load(&mut self, address: u64, words: u64) {
            assert!(address.is_multiple_of(WORD_BYTES) && words > 0);
            self.highest = self.highest.max(address + words * WORD_BYTES);
        }

        fn store(&mut self, address: u64, words: u64) {
            self.load(address, words);
            self.stores += words;
        }
    }
}
