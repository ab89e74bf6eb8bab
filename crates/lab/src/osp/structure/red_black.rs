//! RBT: a red-black tree with parent links (Cormen, Leiserson, Rivest, Stein: "Introduction to
//! Algorithms", chapter 13). Nodes are linked, never copied. There is no sentinel, which would be a
//! line that every deletion writes.
//!
//! Filling inserts the keys, so that the tree has the colours that insertion leaves. Keys come in
//! random order inside of ranges, and ranges one after the other, starting from a random sample.
//! The lower levels, which are nearly all nodes, equal those of random insertion, and filling stays
//! in the processor's cache. The place of a node does not depend on the order of insertion: it is
//! random, or that of its key in order.

use super::super::memory::{Memory, Untold, WORD_BYTES};
use super::super::random::Random;
use super::{Filling, Layout, Places};

/// The size of a node in bytes: a line.
pub const NODE_BYTES: u64 = 64;
/// The number of keys of a range that is filled at once.
const RANGE_KEYS: usize = 1 << 12;
const NONE: u32 = u32::MAX;
/// The exclusive maximum number of nodes: a link and a colour share a number here, not in
/// persistent memory.
const MAX_NODES: u32 = 1 << 31;

/// The offsets of words in a node, in bytes.
const KEY: u64 = 0;
const LEFT: u64 = 16;
const RIGHT: u64 = 24;
const PARENT: u64 = 32;
const COLOUR: u64 = 40;
/// The number of words of a new node: key, value, two links, parent, colour.
const NODE_WORDS: u64 = 6;
/// The address of the root's link; nodes begin on the next page.
const ROOT: u64 = 0;
const NODES_AT: u64 = 4096;

#[derive(Clone, Copy, Debug)]
struct Node {
    key: u32,
    child: [u32; 2],
    /// The parent, and the colour in the lowest bit.
    up: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Colour {
    Black = 0,
    Red = 1,
}

use Colour::{Black, Red};

/// The index of a child. The other one is `1 - side`.
type Side = usize;
const SIDES: [u64; 2] = [LEFT, RIGHT];

/// The tree.
#[derive(Clone, Debug)]
pub struct RedBlackTree {
    nodes: Vec<Node>,
    root: u32,
    places: Places,
}

/// The null link in 31 bits.
const NO_PARENT: u32 = MAX_NODES - 1;

impl RedBlackTree {
    /// Creates a tree with keys, fewer than 2^31 of them.
    pub fn fill(filling: &Filling) -> Self {
        let empty = Node { key: 0, child: [NONE; 2], up: NO_PARENT << 1 };
        let mut tree =
            Self { nodes: vec![empty; filling.keys as usize], root: NONE, places: Places::new(filling.keys) };
        // The place of each key.
        let place = match filling.layout {
            Layout::Sequential => (0..filling.keys).collect(),
            Layout::Random => filling.order(),
        };
        let mut random = Random::new(filling.seed ^ 1);
        let mut sample: Vec<u32> = (0..filling.keys).step_by(RANGE_KEYS).collect();
        random.shuffle(&mut sample);
        let mut ranges: Vec<u32> = Vec::new();
        for range in (0..filling.keys).collect::<Vec<_>>().chunks(RANGE_KEYS) {
            let first = ranges.len();
            ranges.extend(&range[1..]);
            random.shuffle(&mut ranges[first..]);
        }
        for number in sample.into_iter().chain(ranges) {
            let (parent, side, _) = tree.search(number * 2, &mut Untold);
            tree.link(place[number as usize], number * 2, parent, side, &mut Untold);
        }
        tree
    }

    /// Returns the persistent memory, in bytes.
    pub fn footprint_bytes(&self) -> u64 {
        NODES_AT + self.places.count() * NODE_BYTES
    }

    /// Inserts a key, or deletes it. Returns true if it is present now.
    pub fn toggle(&mut self, key: u32, memory: &mut impl Memory) -> bool {
        let (parent, side, found) = self.search(key, memory);
        if found != NONE {
            self.delete(found, memory);
            self.places.give_back(found);
            return false;
        }
        let place = self.places.take();
        if place as usize == self.nodes.len() {
            self.nodes.push(Node { key, child: [NONE; 2], up: NO_PARENT << 1 });
        }
        self.link(place, key, parent, side, memory);
        true
    }

    /// Returns the node of a key, or its parent and side if it were inserted.
    fn search(&self, key: u32, memory: &mut impl Memory) -> (u32, Side, u32) {
        memory.load(ROOT, 1);
        let (mut parent, mut side, mut node) = (NONE, 0, self.root);
        while node != NONE {
            memory.load(word(node, KEY), 1);
            let Node { key: found, child, .. } = self.nodes[node as usize];
            if found == key {
                break;
            }
            (parent, side) = (node, usize::from(key > found));
            memory.load(word(node, SIDES[side]), 1);
            node = child[side];
        }
        (parent, side, node)
    }

    /// Links a new red node below a parent.
    fn link(&mut self, node: u32, key: u32, parent: u32, side: Side, memory: &mut impl Memory) {
        let up = if parent == NONE { NO_PARENT } else { parent };
        self.nodes[node as usize] = Node { key, child: [NONE; 2], up: up << 1 | Red as u32 };
        memory.store(word(node, KEY), NODE_WORDS);
        match parent {
            NONE => self.set_root(node, memory),
            parent => self.set_child(parent, side, node, memory),
        }
        self.repair_red(node, memory);
    }

    /// Restores the colours above `node`, which is red, and whose parent may be.
    fn repair_red(&mut self, mut node: u32, memory: &mut impl Memory) {
        loop {
            let parent = self.parent(node, memory);
            if parent == NONE {
                return self.set_colour(node, Black, memory);
            }
            if self.colour(parent, memory) == Black {
                return;
            }
            // A red node has a parent.
            let above = self.parent(parent, memory);
            let side = self.side(above, parent, memory);
            let uncle = self.child(above, 1 - side, memory);
            if uncle != NONE && self.colour(uncle, memory) == Red {
                self.set_colour(parent, Black, memory);
                self.set_colour(uncle, Black, memory);
                self.set_colour(above, Red, memory);
                node = above;
                continue;
            }
            let mut middle = parent;
            if self.child(parent, 1 - side, memory) == node {
                self.rotate(parent, side, memory);
                middle = node;
            }
            self.set_colour(middle, Black, memory);
            self.set_colour(above, Red, memory);
            return self.rotate(above, 1 - side, memory);
        }
    }

    fn delete(&mut self, node: u32, memory: &mut impl Memory) {
        let children = [self.child(node, 0, memory), self.child(node, 1, memory)];
        let (lost, child, parent);
        if let Some(side) = (0..2).find(|side| children[*side] == NONE) {
            lost = self.colour(node, memory);
            child = children[1 - side];
            parent = self.parent(node, memory);
            self.replace(node, child, memory);
        } else {
            // The next key's node takes its place.
            let mut next = children[1];
            loop {
                match self.child(next, 0, memory) {
                    NONE => break,
                    left => next = left,
                }
            }
            lost = self.colour(next, memory);
            child = self.child(next, 1, memory);
            let above = self.parent(next, memory);
            if above == node {
                parent = next;
            } else {
                parent = above;
                self.replace(next, child, memory);
                self.set_child(next, 1, children[1], memory);
                self.set_parent(children[1], next, memory);
            }
            self.replace(node, next, memory);
            self.set_child(next, 0, children[0], memory);
            self.set_parent(children[0], next, memory);
            let colour = self.colour(node, memory);
            self.set_colour(next, colour, memory);
        }
        if lost == Black {
            self.repair_black(child, parent, memory);
        }
    }

    /// Restores the black heights: paths through `node`, which may be none below `parent`, have one
    /// black node too few.
    fn repair_black(&mut self, mut node: u32, mut parent: u32, memory: &mut impl Memory) {
        while parent != NONE && (node == NONE || self.colour(node, memory) == Black) {
            let side = self.side(parent, node, memory);
            let mut sibling = self.child(parent, 1 - side, memory);
            if self.colour(sibling, memory) == Red {
                self.set_colour(sibling, Black, memory);
                self.set_colour(parent, Red, memory);
                self.rotate(parent, side, memory);
                sibling = self.child(parent, 1 - side, memory);
            }
            let (near, far) = (self.child(sibling, side, memory), self.child(sibling, 1 - side, memory));
            let is_red = |tree: &Self, node: u32, memory: &mut _| node != NONE && tree.colour(node, memory) == Red;
            if !is_red(self, near, memory) && !is_red(self, far, memory) {
                self.set_colour(sibling, Red, memory);
                node = parent;
                parent = self.parent(node, memory);
                continue;
            }
            if !is_red(self, far, memory) {
                self.set_colour(near, Black, memory);
                self.set_colour(sibling, Red, memory);
                self.rotate(sibling, 1 - side, memory);
                sibling = near;
            }
            let colour = self.colour(parent, memory);
            self.set_colour(sibling, colour, memory);
            self.set_colour(parent, Black, memory);
            let far = self.child(sibling, 1 - side, memory);
            self.set_colour(far, Black, memory);
            return self.rotate(parent, side, memory);
        }
        if node != NONE {
            self.set_colour(node, Black, memory);
        }
    }

    /// Rotates: `node` goes down on `side`, and its child on the other side comes up.
    fn rotate(&mut self, node: u32, side: Side, memory: &mut impl Memory) {
        let up = self.child(node, 1 - side, memory);
        let inner = self.child(up, side, memory);
        self.set_child(node, 1 - side, inner, memory);
        if inner != NONE {
            self.set_parent(inner, node, memory);
        }
        self.replace(node, up, memory);
        self.set_child(up, side, node, memory);
        self.set_parent(node, up, memory);
    }

    /// Replaces `old` by `new` below its parent.
    fn replace(&mut self, old: u32, new: u32, memory: &mut impl Memory) {
        let parent = self.parent(old, memory);
        match parent {
            NONE => self.set_root(new, memory),
            parent => {
                let side = self.side(parent, old, memory);
                self.set_child(parent, side, new, memory);
            }
        }
        if new != NONE {
            self.set_parent(new, parent, memory);
        }
    }

    fn side(&self, parent: u32, node: u32, memory: &mut impl Memory) -> Side {
        memory.load(word(parent, LEFT), 1);
        usize::from(self.nodes[parent as usize].child[0] != node)
    }

    fn child(&self, node: u32, side: Side, memory: &mut impl Memory) -> u32 {
        memory.load(word(node, SIDES[side]), 1);
        self.nodes[node as usize].child[side]
    }

    fn parent(&self, node: u32, memory: &mut impl Memory) -> u32 {
        memory.load(word(node, PARENT), 1);
        match self.nodes[node as usize].up >> 1 {
            NO_PARENT => NONE,
            parent => parent,
        }
    }

    fn colour(&self, node: u32, memory: &mut impl Memory) -> Colour {
        memory.load(word(node, COLOUR), 1);
        if self.nodes[node as usize].up & 1 == 1 { Red } else { Black }
    }

    fn set_root(&mut self, node: u32, memory: &mut impl Memory) {
        if self.root != node {
            self.root = node;
            memory.store(ROOT, 1);
        }
    }

    fn set_child(&mut self, node: u32, side: Side, child: u32, memory: &mut impl Memory) {
        if self.nodes[node as usize].child[side] != child {
            self.nodes[node as usize].child[side] = child;
            memory.store(word(node, SIDES[side]), 1);
        }
    }

    fn set_parent(&mut self, node: u32, parent: u32, memory: &mut impl Memory) {
        let (old, parent) = (self.nodes[node as usize].up, if parent == NONE { NO_PARENT } else { parent });
        if old >> 1 != parent {
            self.nodes[node as usize].up = parent << 1 | old & 1;
            memory.store(word(node, PARENT), 1);
        }
    }

    fn set_colour(&mut self, node: u32, colour: Colour, memory: &mut impl Memory) {
        let old = self.nodes[node as usize].up;
        if old & 1 != colour as u32 {
            self.nodes[node as usize].up = old & !1 | colour as u32;
            memory.store(word(node, COLOUR), 1);
        }
    }
}

fn word(node: u32, word: u64) -> u64 {
    NODES_AT + u64::from(node) * NODE_BYTES + word
}

const _: () = assert!(NODE_WORDS * WORD_BYTES <= NODE_BYTES);

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::tests::Bounds;
    use super::*;

    /// Returns the keys in order. Panics if the tree is invalid: by order, parents, colours, black
    /// nodes on every path.
    fn keys(tree: &RedBlackTree) -> Vec<u32> {
        fn walk(tree: &RedBlackTree, node: u32, parent: u32, keys: &mut Vec<u32>) -> u32 {
            if node == NONE {
                return 1;
            }
            assert_eq!(tree.parent(node, &mut Untold), parent);
            let is_red = tree.colour(node, &mut Untold) == Red;
            let [left, right] = tree.nodes[node as usize].child;
            for child in [left, right] {
                assert!(!is_red || child == NONE || tree.colour(child, &mut Untold) == Black, "two red nodes");
            }
            let black = walk(tree, left, node, keys);
            keys.push(tree.nodes[node as usize].key);
            assert_eq!(black, walk(tree, right, node, keys), "black nodes");
            black + u32::from(!is_red)
        }
        let mut all = Vec::new();
        assert!(tree.root == NONE || tree.colour(tree.root, &mut Untold) == Black);
        walk(tree, tree.root, NONE, &mut all);
        assert!(all.is_sorted_by(|a, b| a < b));
        all
    }

    #[test]
    fn it_has_the_keys_that_a_set_has_and_stays_a_red_black_tree() {
        for (count, layout) in
            [(0, Layout::Random), (1, Layout::Random), (300, Layout::Random), (64, Layout::Sequential)]
        {
            let mut tree = RedBlackTree::fill(&Filling { keys: count, layout, seed: 3 });
            let mut set: BTreeSet<u32> = (0..count).map(|number| number * 2).collect();
            assert!(keys(&tree).iter().eq(&set));
            let (mut random, mut bounds) = (Random::new(9), Bounds::default());
            for step in 0..6_000 {
                let key = random.below(u64::from(count) * 2 + 10) as u32;
                let is_there = set.insert(key) || !set.remove(&key);
                assert_eq!(tree.toggle(key, &mut bounds), is_there, "step {step}, key {key}");
                if step % 7 == 0 {
                    assert!(keys(&tree).iter().eq(&set), "step {step}");
                }
            }
            assert!(bounds.highest <= tree.footprint_bytes());
        }
    }

    #[test]
    fn filling_is_a_tree_of_all_keys_wherever_they_lie() {
        for layout in [Layout::Random, Layout::Sequential] {
            let tree = RedBlackTree::fill(&Filling { keys: 20_000, layout, seed: 3 });
            assert!(keys(&tree).into_iter().eq((0..20_000).map(|number| number * 2)));
            let in_order = (0..20_000).all(|place| tree.nodes[place as usize].key == place * 2);
            assert_eq!(in_order, layout == Layout::Sequential);
        }
    }
}
