//! SPS: random pairs of elements of a large array are swapped. Two loads, two stores.

use super::super::memory::{Memory, WORD_BYTES};
use super::super::random::Random;

/// Elements of eight bytes, from address 0 on. Their values do not affect the flushes, so none is
/// kept.
#[derive(Clone, Debug)]
pub struct Array {
    elements: u64,
}

impl Array {
    /// Creates an array of at least two elements.
    pub fn new(bytes: u64) -> Self {
        Self { elements: (bytes / WORD_BYTES).max(2) }
    }

    /// Returns the persistent memory, in bytes.
    pub fn footprint_bytes(&self) -> u64 {
        self.elements * WORD_BYTES
    }

    /// Swaps two different elements.
    pub fn swap(&self, random: &mut Random, memory: &mut impl Memory) {
        let first = random.below(self.elements);
        let second = (first + 1 + random.below(self.elements - 1)) % self.elements;
        for place in [first, second] {
            memory.load(place * WORD_BYTES, 1);
        }
        for place in [first, second] {
            memory.store(place * WORD_BYTES, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Executes swaps of elements that are their own places.
    #[derive(Default)]
    struct Swaps {
        loads: Vec<u64>,
        stores: Vec<u64>,
    }

    impl Memory for Swaps {
        fn load(&mut self, address: u64, _: u64) {
            self.loads.push(address / WORD_BYTES);
        }

        fn store(&mut self, address: u64, _: u64) {
            self.stores.push(address / WORD_BYTES);
        }
    }

    #[test]
    fn swaps_are_of_two_elements_anywhere() {
        let (array, mut random) = (Array::new(100 * WORD_BYTES), Random::new(1));
        let mut values: Vec<u64> = (0..100).collect();
        let mut seen = [false; 100];
        for _ in 0..2_000 {
            let mut swaps = Swaps::default();
            array.swap(&mut random, &mut swaps);
            assert_eq!(swaps.loads, swaps.stores);
            let (a, b) = (swaps.stores[0] as usize, swaps.stores[1] as usize);
            assert_ne!(a, b);
            values.swap(a, b);
            (seen[a], seen[b]) = (true, true);
        }
        values.sort_unstable();
        assert!(values.into_iter().eq(0..100) && seen.iter().all(|seen| *seen));
    }
}
