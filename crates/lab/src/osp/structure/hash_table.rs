//! HT: a hash table with chains. An array of heads, and nodes of key, value and link.
//!
//! Inserting stores a node (three words) and its bucket's head; deleting stores one link. There are
//! initially as many buckets as keys, so that a chain has one node on average.

use super::super::memory::{Memory, WORD_BYTES};
use super::{Filling, Layout, Places};
use crate::generate::random::{GOLDEN, mix};

/// The size of a node in bytes: a line.
pub const NODE_BYTES: u64 = 64;
const NONE: u32 = u32::MAX;
/// The offsets of words in a node, in bytes.
const KEY: u64 = 0;
const NEXT: u64 = 16;

#[derive(Clone, Copy, Debug)]
struct Node {
    key: u32,
    next: u32,
}

/// The table.
#[derive(Clone, Debug)]
pub struct HashTable {
    heads: Vec<u32>,
    nodes: Vec<Node>,
    places: Places,
    layout: Layout,
}

impl HashTable {
    /// Creates a table with keys.
    pub fn fill(filling: &Filling) -> Self {
        let mut table = Self {
            heads: vec![NONE; filling.keys.max(1) as usize],
            nodes: Vec::with_capacity(filling.keys as usize),
            places: Places::new(0),
            layout: filling.layout,
        };
        for number in filling.order() {
            let key = number * 2;
            let bucket = table.bucket(key);
            table.insert(key, bucket);
        }
        table
    }

    /// Returns the persistent memory in bytes: heads, then nodes, from a page of their own on.
    pub fn footprint_bytes(&self) -> u64 {
        self.nodes_at() + self.places.count() * NODE_BYTES
    }

    fn nodes_at(&self) -> u64 {
        (self.heads.len() as u64 * WORD_BYTES).next_multiple_of(4096)
    }

    fn word(&self, node: u32, word: u64) -> u64 {
        self.nodes_at() + u64::from(node) * NODE_BYTES + word
    }

    fn bucket(&self, key: u32) -> usize {
        let buckets = self.heads.len() as u64;
        (match self.layout {
            Layout::Random => mix(u64::from(key).wrapping_mul(GOLDEN)) % buckets,
            // Two keys to a bucket, of which one is present on average.
            Layout::Sequential => u64::from(key) / 2 % buckets,
        }) as usize
    }

    fn insert(&mut self, key: u32, bucket: usize) -> u32 {
        let place = self.places.take();
        let node = Node { key, next: self.heads[bucket] };
        match self.nodes.get_mut(place as usize) {
            Some(old) => *old = node,
            None => self.nodes.push(node),
        }
        self.heads[bucket] = place;
        place
    }

    /// Inserts a key, or deletes it. Returns true if it is present now.
    pub fn toggle(&mut self, key: u32, memory: &mut impl Memory) -> bool {
        let bucket = self.bucket(key);
        // The address of the word that links to the node.
        let mut link = bucket as u64 * WORD_BYTES;
        let (mut before, mut node) = (NONE, self.heads[bucket]);
        memory.load(link, 1);
        while node != NONE {
            memory.load(self.word(node, KEY), 1);
            memory.load(self.word(node, NEXT), 1);
            let Node { key: found, next } = self.nodes[node as usize];
            if found == key {
                memory.store(link, 1);
                match before {
                    NONE => self.heads[bucket] = next,
                    before => self.nodes[before as usize].next = next,
                }
                self.places.give_back(node);
                return false;
            }
            (before, link, node) = (node, self.word(node, NEXT), next);
        }
        let node = self.insert(key, bucket);
        memory.store(self.word(node, KEY), 3);
        memory.store(bucket as u64 * WORD_BYTES, 1);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::super::super::random::Random;
    use super::super::tests::Bounds;
    use super::*;

    #[test]
    fn it_has_the_keys_that_a_set_has() {
        for layout in [Layout::Random, Layout::Sequential] {
            let mut table = HashTable::fill(&Filling { keys: 500, layout, seed: 3 });
            let mut set: HashSet<u32> = (0..500).map(|number| number * 2).collect();
            let (mut random, mut bounds) = (Random::new(9), Bounds::default());
            for step in 0..20_000 {
                let key = random.below(1000) as u32;
                let is_there = set.insert(key) || !set.remove(&key);
                assert_eq!(table.toggle(key, &mut bounds), is_there, "{layout:?}, step {step}, key {key}");
            }
            let mut found: Vec<u32> = Vec::new();
            for head in &table.heads {
                let mut node = *head;
                while node != NONE {
                    found.push(table.nodes[node as usize].key);
                    node = table.nodes[node as usize].next;
                }
            }
            let mut expected: Vec<u32> = set.into_iter().collect();
            found.sort_unstable();
            expected.sort_unstable();
            assert_eq!(found, expected, "{layout:?}");
            assert!(bounds.highest <= table.footprint_bytes() && bounds.stores > 20_000);
        }
    }

    #[test]
    fn keys_in_order_lie_in_order() {
        let table = HashTable::fill(&Filling { keys: 100, layout: Layout::Sequential, seed: 3 });
        assert!(table.nodes.iter().zip(0..).all(|(node, number)| node.key == number * 2));
        assert!(table.heads.iter().copied().eq(0..100));
    }
}
