//! BT: a B-tree (Cormen, Leiserson, Rivest, Stein: "Introduction to Algorithms", chapter 18), in
//! one pass down: it splits full nodes, and fills up nodes with the fewest keys, as it descends.
//!
//! A node begins with a word of its count and one of its kind. In a leaf, pairs of key and value
//! follow; in an inner node, keys, values and links have an array each. Keys are searched from the
//! first on. Inserting and deleting shift the keys after a position, and store every word that
//! moves.
//!
//! Filling makes nodes of all levels at once. Their fill `x` has the density `1/x^2` from a half to
//! one, that of random insertion (Yao: "On random 2-3 trees", 1978), whose mean is ln 2. Nodes are
//! in random order, or in that of their keys.

use super::super::memory::{Memory, WORD_BYTES};
use super::super::random::Random;
use super::{Filling, Layout, Places};

const NONE: u32 = u32::MAX;
/// The number of words before the first key.
const HEADER_WORDS: u64 = 2;
/// The address of the root's link; nodes begin on the next page.
const ROOT: u64 = 0;
const NODES_AT: u64 = 4096;

/// The sizes of nodes.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    node_bytes: u64,
    /// The maximum numbers of keys of a leaf and of an inner node, both odd: a full node is two of
    /// the smallest, and a key.
    leaf: usize,
    inner: usize,
}

impl Sizes {
    fn new(node_bytes: u64) -> Self {
        let words = node_bytes / WORD_BYTES - HEADER_WORDS;
        let odd = |keys: u64| (keys - (keys + 1) % 2) as usize;
        Self { node_bytes, leaf: odd(words / 2), inner: odd((words - 1) / 3) }
    }

    fn most(&self, is_leaf: bool) -> usize {
        if is_leaf { self.leaf } else { self.inner }
    }

    fn fewest(&self, is_leaf: bool) -> usize {
        self.most(is_leaf) / 2
    }
}

/// An end of a node.
#[derive(Clone, Copy, Debug)]
enum Side {
    First,
    Last,
}

/// The size of the smallest node: an inner one has three keys.
pub const MIN_NODE_BYTES: u64 = 128;
/// The size of the largest node.
pub const MAX_NODE_BYTES: u64 = 65_536;

/// The tree.
#[derive(Clone, Debug)]
pub struct BTree {
    sizes: Sizes,
    /// The keys: for each node as many as a leaf may have.
    keys: Vec<u32>,
    counts: Vec<u16>,
    /// For each node the index of its links, or none for a leaf.
    inner: Vec<u32>,
    links: Vec<u32>,
    free_links: Vec<u32>,
    places: Places,
    root: u32,
}

impl BTree {
    /// Creates a tree with nodes of `node_bytes` bytes, from [`MIN_NODE_BYTES`] to
    /// [`MAX_NODE_BYTES`], a multiple of a line.
    pub fn fill(filling: &Filling, node_bytes: u64) -> Self {
        let mut tree = Self {
            sizes: Sizes::new(node_bytes),
            keys: Vec::new(),
            counts: Vec::new(),
            inner: Vec::new(),
            links: Vec::new(),
            free_links: Vec::new(),
            places: Places::new(0),
            root: NONE,
        };
        let mut random = Random::new(filling.seed ^ 2);
        let mut keys: Vec<u32> = (0..filling.keys).map(|number| number * 2).collect();
        let mut below: Vec<u32> = Vec::new();
        loop {
            let is_leaf = below.is_empty();
            let cuts = tree.cuts(keys.len(), is_leaf, &mut random);
            let (mut nodes, mut between, mut first) = (Vec::new(), Vec::new(), 0);
            let mut order: Vec<u32> = (0..cuts.len() as u32).map(|_| tree.new_node(is_leaf)).collect();
            if filling.layout == Layout::Random {
                random.shuffle(&mut order);
            }
            for (count, node) in cuts.into_iter().zip(order) {
                tree.counts[node as usize] = count as u16;
                tree.node_keys(node)[..count].copy_from_slice(&keys[first..first + count]);
                if !is_leaf {
                    tree.node_links(node)[..=count].copy_from_slice(&below[first..=first + count]);
                }
                nodes.push(node);
                // The key after it goes to the level above.
                between.extend(keys.get(first + count));
                first += count + 1;
            }
            if let [root] = nodes[..] {
                tree.root = root;
                return tree;
            }
            (keys, below) = (between, nodes);
        }
    }

    /// Returns the numbers of keys of the nodes of a level, of `left` keys; one key is between each
    /// two.
    fn cuts(&self, mut left: usize, is_leaf: bool, random: &mut Random) -> Vec<usize> {
        let (fewest, most) = (self.sizes.fewest(is_leaf), self.sizes.most(is_leaf));
        let mut cuts = Vec::new();
        while left > 2 * most + 1 {
            let fill = 1.0 / (2.0 - random.unit());
            let count = ((fill * (most + 1) as f64) as usize).clamp(fewest, most);
            cuts.push(count);
            left -= count + 1;
        }
        match left > most {
            true => cuts.extend([(left - 1) / 2, left - 1 - (left - 1) / 2]),
            false => cuts.push(left),
        }
        cuts
    }

    /// Returns the persistent memory, in bytes.
    pub fn footprint_bytes(&self) -> u64 {
        NODES_AT + self.places.count() * self.sizes.node_bytes
    }

    /// Inserts a key, or deletes it. Returns true if it is present now.
    pub fn toggle(&mut self, key: u32, memory: &mut impl Memory) -> bool {
        memory.load(ROOT, 1);
        // The search comes first, because the preparation of nodes depends on the presence of the
        // key.
        let mut node = self.root;
        loop {
            let (place, is_it) = self.search(node, key, memory);
            if is_it {
                self.delete(self.root, key, memory);
                self.shrink(memory);
                return false;
            }
            if self.is_leaf(node) {
                break;
            }
            node = self.link(node, place, memory);
        }
        self.insert(key, memory);
        true
    }

    fn insert(&mut self, key: u32, memory: &mut impl Memory) {
        if self.is_full(self.root) {
            let root = self.new_node(false);
            self.node_links(root)[0] = self.root;
            self.stored_links(root, 0, 1, memory);
            self.stored_header(root, memory);
            self.root = root;
            memory.store(ROOT, 1);
            self.split(root, 0, memory);
        }
        let mut node = self.root;
        loop {
            let (mut place, _) = self.search(node, key, memory);
            if self.is_leaf(node) {
                self.open_gap(node, place, memory);
                self.node_keys(node)[place] = key;
                return self.stored_pairs(node, place, 1, memory);
            }
            let child = self.link(node, place, memory);
            memory.load(self.word(child, 0), 1);
            if self.is_full(child) {
                self.split(node, place, memory);
                place += usize::from(key > self.key(node, place, memory));
            }
            node = self.link(node, place, memory);
        }
    }

    /// Splits the full child at `place`: its upper half becomes a separate node.
    fn split(&mut self, parent: u32, place: usize, memory: &mut impl Memory) {
        let child = self.node_links(parent)[place];
        let is_leaf = self.is_leaf(child);
        let half = self.sizes.fewest(is_leaf);
        let right = self.new_node(is_leaf);
        self.counts[right as usize] = half as u16;
        self.move_pairs(child, half + 1, right, 0, half, memory);
        if !is_leaf {
            self.move_links(child, half + 1, right, 0, half + 1, memory);
        }
        self.stored_header(right, memory);
        self.open_gap(parent, place, memory);
        self.node_links(parent)[place + 1] = right;
        self.stored_links(parent, place + 1, 1, memory);
        self.move_pairs(child, half, parent, place, 1, memory);
        self.set_count(child, half, memory);
    }

    /// Deletes a key that is below `node`, which can spare one or is the root.
    fn delete(&mut self, mut node: u32, mut key: u32, memory: &mut impl Memory) {
        loop {
            let (place, is_it) = self.search(node, key, memory);
            if self.is_leaf(node) {
                return if is_it {
                    self.close_gap(node, place, memory)
                };
            }
            if !is_it {
                node = self.prepare(node, place, memory);
                continue;
            }
            let (left, right) = (self.link(node, place, memory), self.link(node, place + 1, memory));
            let (below, (leaf, at)) = if self.can_spare(left, memory) {
                (left, self.outermost(left, Side::Last, memory))
            } else if self.can_spare(right, memory) {
                (right, self.outermost(right, Side::First, memory))
            } else {
                node = self.merge(node, place, memory);
                continue;
            };
            // A neighbour takes its place, and is deleted from its old one.
            key = self.node_keys(leaf)[at];
            self.move_pairs(leaf, at, node, place, 1, memory);
            node = below;
        }
    }

    /// Returns the leaf and place of the last key below a node, or of the first.
    fn outermost(&mut self, mut node: u32, side: Side, memory: &mut impl Memory) -> (u32, usize) {
        loop {
            memory.load(self.word(node, 0), 1);
            let past = match side {
                Side::First => 0,
                Side::Last => self.count(node),
            };
            if self.is_leaf(node) {
                return (node, past.saturating_sub(1));
            }
            node = self.link(node, past, memory);
        }
    }

    /// Ensures that the child at `place` can spare a key. Returns the child, or the node that it
    /// was merged into.
    fn prepare(&mut self, node: u32, place: usize, memory: &mut impl Memory) -> u32 {
        let child = self.link(node, place, memory);
        if self.can_spare(child, memory) {
            return child;
        }
        let is_leaf = self.is_leaf(child);
        if place > 0 {
            let left = self.link(node, place - 1, memory);
            if self.can_spare(left, memory) {
                let last = self.count(left) - 1;
                self.open_gap(child, 0, memory);
                self.move_pairs(node, place - 1, child, 0, 1, memory);
                self.move_pairs(left, last, node, place - 1, 1, memory);
                if !is_leaf {
                    // The gap for the link is after the key's: here the new link comes first.
                    self.node_links(child)[1] = self.node_links(child)[0];
                    self.stored_links(child, 1, 1, memory);
                    self.move_links(left, last + 1, child, 0, 1, memory);
                }
                self.set_count(left, last, memory);
                return child;
            }
        }
        if place < self.count(node) {
            let right = self.link(node, place + 1, memory);
            if self.can_spare(right, memory) {
                let last = self.count(child);
                self.set_count(child, last + 1, memory);
                self.move_pairs(node, place, child, last, 1, memory);
                self.move_pairs(right, 0, node, place, 1, memory);
                if !is_leaf {
                    self.move_links(right, 0, child, last + 1, 1, memory);
                    let links = self.count(right);
                    self.shift_links(right, 1, 0, links, memory);
                }
                let rest = self.count(right) - 1;
                self.shift_pairs(right, 1, 0, rest, memory);
                self.set_count(right, rest, memory);
                return child;
            }
        }
        let first = if place < self.count(node) { place } else { place - 1 };
        self.merge(node, first, memory)
    }

    /// Merges the children around the key at `place`, which have the fewest keys, with it. Returns
    /// the merged node.
    fn merge(&mut self, node: u32, place: usize, memory: &mut impl Memory) -> u32 {
        let (left, right) = (self.link(node, place, memory), self.link(node, place + 1, memory));
        let (count, more) = (self.count(left), self.count(right));
        self.move_pairs(node, place, left, count, 1, memory);
        self.move_pairs(right, 0, left, count + 1, more, memory);
        if !self.is_leaf(left) {
            self.move_links(right, 0, left, count + 1, more + 1, memory);
        }
        self.set_count(left, count + 1 + more, memory);
        self.close_gap(node, place, memory);
        self.give_back(right);
        left
    }

    /// Replaces a root without keys by its only child.
    fn shrink(&mut self, memory: &mut impl Memory) {
        if self.count(self.root) == 0 && !self.is_leaf(self.root) {
            let old = self.root;
            self.root = self.link(old, 0, memory);
            memory.store(ROOT, 1);
            self.give_back(old);
        }
    }

    /// Opens a gap for a key at `place`, and for a link after it.
    fn open_gap(&mut self, node: u32, place: usize, memory: &mut impl Memory) {
        let count = self.count(node);
        self.shift_pairs(node, place, place + 1, count - place, memory);
        if !self.is_leaf(node) {
            self.shift_links(node, place + 1, place + 2, count - place, memory);
        }
        self.set_count(node, count + 1, memory);
    }

    /// Removes the key at `place`, and the link after it.
    fn close_gap(&mut self, node: u32, place: usize, memory: &mut impl Memory) {
        let rest = self.count(node) - 1;
        self.shift_pairs(node, place + 1, place, rest - place, memory);
        if !self.is_leaf(node) {
            self.shift_links(node, place + 2, place + 1, rest - place, memory);
        }
        self.set_count(node, rest, memory);
    }

    /// Returns the place of a key, or of the first that is greater, and true if it is the key.
    fn search(&self, node: u32, key: u32, memory: &mut impl Memory) -> (usize, bool) {
        let keys = &self.keys[self.first_key(node)..][..self.count(node)];
        let place = keys.partition_point(|one| *one < key);
        memory.load(self.word(node, 0), 1);
        let looked_at = (place + 1).min(keys.len()) as u64;
        if looked_at > 0 {
            // In a leaf there is a value between each two keys, which is not loaded.
            match self.is_leaf(node) {
                true => (0..looked_at).for_each(|key| memory.load(self.word(node, HEADER_WORDS + 2 * key), 1)),
                false => memory.load(self.word(node, HEADER_WORDS), looked_at),
            }
        }
        (place, keys.get(place) == Some(&key))
    }

    fn can_spare(&self, node: u32, memory: &mut impl Memory) -> bool {
        memory.load(self.word(node, 0), 1);
        self.count(node) > self.sizes.fewest(self.is_leaf(node))
    }

    fn is_full(&self, node: u32) -> bool {
        self.count(node) == self.sizes.most(self.is_leaf(node))
    }

    fn is_leaf(&self, node: u32) -> bool {
        self.inner[node as usize] == NONE
    }

    fn count(&self, node: u32) -> usize {
        usize::from(self.counts[node as usize])
    }

    fn set_count(&mut self, node: u32, count: usize, memory: &mut impl Memory) {
        self.counts[node as usize] = count as u16;
        memory.store(self.word(node, 0), 1);
    }

    fn key(&self, node: u32, place: usize, memory: &mut impl Memory) -> u32 {
        memory.load(self.key_word(node, place), 1);
        self.keys[self.first_key(node) + place]
    }

    fn link(&mut self, node: u32, place: usize, memory: &mut impl Memory) -> u32 {
        memory.load(self.link_word(node, place), 1);
        self.node_links(node)[place]
    }

    /// Moves keys with their values between nodes.
    fn move_pairs(&mut self, from: u32, at: usize, to: u32, place: usize, count: usize, memory: &mut impl Memory) {
        let (source, target) = (self.first_key(from) + at, self.first_key(to) + place);
        self.keys.copy_within(source..source + count, target);
        self.loaded_pairs(from, at, count, memory);
        self.stored_pairs(to, place, count, memory);
    }

    fn shift_pairs(&mut self, node: u32, at: usize, place: usize, count: usize, memory: &mut impl Memory) {
        if count > 0 {
            self.move_pairs(node, at, node, place, count, memory);
        }
    }

    fn move_links(&mut self, from: u32, at: usize, to: u32, place: usize, count: usize, memory: &mut impl Memory) {
        let (source, target) = (self.first_link(from) + at, self.first_link(to) + place);
        self.links.copy_within(source..source + count, target);
        memory.load(self.link_word(from, at), count as u64);
        self.stored_links(to, place, count, memory);
    }

    fn shift_links(&mut self, node: u32, at: usize, place: usize, count: usize, memory: &mut impl Memory) {
        if count > 0 {
            self.move_links(node, at, node, place, count, memory);
        }
    }

    fn loaded_pairs(&self, node: u32, at: usize, count: usize, memory: &mut impl Memory) {
        for (first, words) in self.pair_words(node, at, count) {
            memory.load(first, words);
        }
    }

    fn stored_pairs(&self, node: u32, at: usize, count: usize, memory: &mut impl Memory) {
        for (first, words) in self.pair_words(node, at, count) {
            memory.store(first, words);
        }
    }

    fn stored_links(&self, node: u32, at: usize, count: usize, memory: &mut impl Memory) {
        memory.store(self.link_word(node, at), count as u64);
    }

    /// Reports the store of a new node's count and kind.
    fn stored_header(&self, node: u32, memory: &mut impl Memory) {
        memory.store(self.word(node, 0), HEADER_WORDS);
    }

    /// Returns the ranges of pairs: together in a leaf, keys and values separate in an inner node.
    fn pair_words(&self, node: u32, at: usize, count: usize) -> impl Iterator<Item = (u64, u64)> + use<> {
        let (key, count) = (self.key_word(node, at), count as u64);
        let value = key + self.sizes.inner as u64 * WORD_BYTES;
        let (pairs, values) = if self.is_leaf(node) { (2 * count, 0) } else { (count, count) };
        [(key, pairs), (value, values)].into_iter().filter(|(_, words)| *words > 0)
    }

    fn key_word(&self, node: u32, place: usize) -> u64 {
        let words = if self.is_leaf(node) { 2 * place } else { place };
        self.word(node, HEADER_WORDS + words as u64)
    }

    fn link_word(&self, node: u32, place: usize) -> u64 {
        self.word(node, HEADER_WORDS + 2 * self.sizes.inner as u64 + place as u64)
    }

    fn word(&self, node: u32, word: u64) -> u64 {
        NODES_AT + u64::from(node) * self.sizes.node_bytes + word * WORD_BYTES
    }

    fn first_key(&self, node: u32) -> usize {
        node as usize * self.sizes.leaf
    }

    fn node_keys(&mut self, node: u32) -> &mut [u32] {
        let first = self.first_key(node);
        &mut self.keys[first..first + self.sizes.leaf]
    }

    fn first_link(&self, node: u32) -> usize {
        self.inner[node as usize] as usize * (self.sizes.inner + 1)
    }

    /// Returns the links of an inner node.
    fn node_links(&mut self, node: u32) -> &mut [u32] {
        let first = self.first_link(node);
        &mut self.links[first..=first + self.sizes.inner]
    }

    fn new_node(&mut self, is_leaf: bool) -> u32 {
        let node = self.places.take();
        if node as usize == self.counts.len() {
            self.keys.resize(self.keys.len() + self.sizes.leaf, 0);
            self.counts.push(0);
            self.inner.push(NONE);
        }
        self.counts[node as usize] = 0;
        self.inner[node as usize] = if is_leaf { NONE } else { self.new_links() };
        node
    }

    fn new_links(&mut self) -> u32 {
        self.free_links.pop().unwrap_or_else(|| {
            let links = self.sizes.inner + 1;
            self.links.resize(self.links.len() + links, NONE);
            (self.links.len() / links - 1) as u32
        })
    }

    fn give_back(&mut self, node: u32) {
        if !self.is_leaf(node) {
            self.free_links.push(self.inner[node as usize]);
        }
        self.places.give_back(node);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::super::memory::Untold;
    use super::super::tests::Bounds;
    use super::*;

    /// Returns the keys in order. Panics if the tree is invalid: by order, counts, depth.
    fn keys(tree: &BTree) -> Vec<u32> {
        fn walk(tree: &mut BTree, node: u32, keys: &mut Vec<u32>) -> u32 {
            let (count, is_leaf) = (tree.count(node), tree.is_leaf(node));
            assert!(count <= tree.sizes.most(is_leaf));
            assert!(node == tree.root || count >= tree.sizes.fewest(is_leaf), "{count} keys");
            let own = tree.node_keys(node)[..count].to_vec();
            if is_leaf {
                keys.extend(own);
                return 1;
            }
            let links = tree.node_links(node)[..=count].to_vec();
            let mut depths = Vec::new();
            for (place, link) in links.into_iter().enumerate() {
                depths.push(walk(tree, link, keys));
                keys.extend(own.get(place));
            }
            assert!(depths.iter().all(|depth| *depth == depths[0]), "leaves of all depths");
            depths[0] + 1
        }
        let mut all = Vec::new();
        walk(&mut tree.clone(), tree.root, &mut all);
        assert!(all.is_sorted_by(|a, b| a < b), "{all:?}");
        all
    }

    #[test]
    fn nodes_are_used_up_to_their_last_words() {
        let sizes = [512, 4096, MIN_NODE_BYTES].map(|bytes| (Sizes::new(bytes).leaf, Sizes::new(bytes).inner));
        assert_eq!(sizes, [(31, 19), (255, 169), (7, 3)]);
    }

    #[test]
    fn it_has_the_keys_that_a_set_has_and_stays_a_b_tree() {
        for (count, bytes) in [(0, 128), (1, 128), (300, 128), (3_000, 192), (2_000, 512)] {
            let mut tree = BTree::fill(&Filling { keys: count, layout: Layout::Random, seed: 3 }, bytes);
            let mut set: BTreeSet<u32> = (0..count).map(|number| number * 2).collect();
            assert!(keys(&tree).iter().eq(&set));
            let (mut random, mut bounds) = (Random::new(9), Bounds::default());
            let mut toggle = |key: u32, step: u32, check: bool| {
                let is_there = set.insert(key) || !set.remove(&key);
                assert_eq!(tree.toggle(key, &mut bounds), is_there, "{bytes} bytes, step {step}, key {key}");
                if check {
                    assert!(keys(&tree).iter().eq(&set), "{bytes} bytes, step {step}");
                }
            };
            for step in 0..6_000 {
                toggle(random.below(u64::from(count) * 2 + 20) as u32, step, step % 13 == 0);
            }
            // Deletes all keys, which merges nodes down to the root, and inserts some again.
            let mut all: Vec<u32> = (0..count * 2 + 20).collect();
            random.shuffle(&mut all);
            for (step, key) in all.iter().chain(&all[..all.len() / 2]).enumerate() {
                toggle(*key, step as u32, step % 13 == 0);
            }
            assert!(bounds.highest <= tree.footprint_bytes());
        }
    }

    #[test]
    fn filling_leaves_nodes_as_full_as_insertion_does() {
        let fill = |tree: &BTree| {
            let keys: usize = tree.counts.iter().map(|count| usize::from(*count)).sum();
            keys as f64 / (tree.counts.len() * tree.sizes.leaf) as f64
        };
        let filled = BTree::fill(&Filling { keys: 60_000, layout: Layout::Random, seed: 3 }, 512);
        let mut inserted = BTree::fill(&Filling { keys: 0, layout: Layout::Random, seed: 3 }, 512);
        let mut order: Vec<u32> = (0..60_000).collect();
        Random::new(1).shuffle(&mut order);
        order.iter().for_each(|number| assert!(inserted.toggle(number * 2, &mut Untold)));
        assert_eq!(keys(&filled), keys(&inserted));
        assert!((fill(&filled) - fill(&inserted)).abs() < 0.02, "{} {}", fill(&filled), fill(&inserted));
    }
}
