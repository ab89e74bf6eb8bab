//! The simulator of optimized shadow paging: flushes of transactions over data structures in
//! persistent memory, against undo and redo logging (Ni, Zhao, Bittman, Miller: "Reducing NVM
//! Writes with Optimized Shadow Paging", 2018).
//!
//! 1. A structure of the workload is filled. Nothing is counted.
//! 2. Operations run on it, each reported to a [`machine`] that has a TLB, pages in pairs, and
//!    logs. A transaction ends after each operation or several. The first ones warm the TLB up;
//!    then counting begins.
//! 3. One run is charged under every accounting at once ([`accounting`]): those differ in nothing
//!    but their counts.
//!
//! Runs of the same options give the same figures: everything random uses the seed.

pub mod accounting;
pub mod machine;
pub mod memory;
pub mod paper;
pub mod plot;
pub mod random;
pub mod report;
pub mod structure;
pub mod table;
pub mod tlb;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use serde::{Deserialize, Serialize};

use machine::{Config, Counts, Machine};
use memory::Memory;
use random::{Distribution, Keys, Order, Random};
use structure::array::Array;
use structure::b_tree::BTree;
use structure::hash_table::{self, HashTable};
use structure::red_black::{self, RedBlackTree};
use structure::{Filling, Layout};

/// The number of operations between two checks of `cancel`.
const STRIDE: u64 = 1 << 14;

/// The data structure of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Structure {
    /// Swaps in an array.
    #[serde(rename = "SPS")]
    Array,
    /// A hash table.
    #[serde(rename = "HT")]
    HashTable,
    /// A red-black tree.
    #[serde(rename = "RBT")]
    RedBlackTree,
    /// A B-tree.
    #[serde(rename = "BT")]
    BTree,
}

impl Structure {
    /// All, by their names on the command line.
    pub const ALL: [(&'static str, Structure); 4] = [
        ("sps", Structure::Array),
        ("ht", Structure::HashTable),
        ("rbt", Structure::RedBlackTree),
        ("bt", Structure::BTree),
    ];

    /// Returns the paper's name.
    pub fn name(self) -> &'static str {
        match self {
            Structure::Array => "SPS",
            Structure::HashTable => "HT",
            Structure::RedBlackTree => "RBT",
            Structure::BTree => "BT",
        }
    }

    /// Returns the number of keys that it is filled with, which yields approximately the footprint.
    pub fn keys(self, options: &Options) -> u32 {
        let bytes = options.footprint_bytes.min(MAX_FOOTPRINT_BYTES);
        let keys = match self {
            Structure::Array => 0,
            Structure::HashTable => bytes / (hash_table::NODE_BYTES + memory::WORD_BYTES),
            Structure::RedBlackTree => bytes / red_black::NODE_BYTES,
            // Pairs have 16 bytes, and nodes are full by ln 2.
            Structure::BTree => (bytes as f64 * std::f64::consts::LN_2 / 16.0) as u64,
        };
        u32::try_from(keys).unwrap_or(u32::MAX).max(1)
    }
}

/// A case of the simulation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// The data structure.
    pub structure: Structure,
    /// The distribution of keys.
    #[serde(flatten)]
    pub keys: Distribution,
}

impl Case {
    /// Returns the paper's name for it: `HT-zipf`.
    pub fn name(&self) -> String {
        match (self.structure, self.keys) {
            (Structure::Array, _) => "SPS".into(),
            (structure, Distribution::Uniform) => format!("{}-uni", structure.name()),
            (structure, Distribution::Zipf { .. }) => format!("{}-zipf", structure.name()),
        }
    }

    /// Returns the distribution of its keys: `zipf 1.5 plain`.
    pub fn distribution(&self) -> String {
        match self.keys {
            Distribution::Uniform => "uniform".into(),
            Distribution::Zipf { exponent, order } => {
                format!("zipf {exponent} {}", accounting::name(&Order::ALL, order))
            }
        }
    }

    /// Returns true if some keys are more frequent than others.
    pub fn is_zipf(&self) -> bool {
        self.keys != Distribution::Uniform
    }

    /// Returns all cases of these structures: with uniform keys, and with every exponent in every
    /// order. Swaps are uniform, as in the paper.
    pub fn all(structures: &[Structure], exponents: &[f64], orders: &[Order]) -> Vec<Case> {
        let mut cases = Vec::new();
        for structure in structures {
            let case = |keys| Case { structure: *structure, keys };
            cases.push(case(Distribution::Uniform));
            if *structure != Structure::Array {
                let each = exponents.iter().flat_map(|exponent| orders.iter().map(move |order| (*exponent, *order)));
                cases.extend(each.map(|(exponent, order)| case(Distribution::Zipf { exponent, order })));
            }
        }
        cases
    }
}

/// The options of cases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The machine.
    pub machine: Config,
    /// The approximate persistent memory of a filled structure, in bytes; no more than
    /// [`MAX_FOOTPRINT_BYTES`].
    pub footprint_bytes: u64,
    /// The size of a node of the B-tree in bytes: see [`BTree::fill`].
    pub b_tree_node_bytes: u64,
    /// The layout of elements.
    pub layout: Layout,
    /// The number of uncounted operations.
    pub warm_up: u64,
    /// The number of counted operations.
    pub operations: u64,
    /// The number of operations of a transaction.
    pub transaction_operations: u64,
    /// The seed of everything random.
    pub seed: u64,
    /// The number of concurrent cases.
    pub threads: usize,
}

/// Keys have 31 bits, and a B-tree has one for each 23 bytes or so.
pub const MAX_FOOTPRINT_BYTES: u64 = 32 << 30;

/// The result of a case.
#[derive(Clone, Debug)]
pub struct Ran {
    /// The case.
    pub case: Case,
    /// The persistent memory at the end, in bytes.
    pub footprint_bytes: u64,
    /// The counters.
    pub counts: Counts,
}

/// The run was cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the simulation was cancelled")]
pub struct Cancelled;

/// A structure with its keys, the initial state of all its cases.
#[derive(Clone, Debug)]
enum Filled {
    Array(Array),
    HashTable(HashTable),
    RedBlackTree(RedBlackTree),
    BTree(BTree),
}

impl Filled {
    fn new(structure: Structure, options: &Options) -> Self {
        let filling = Filling { keys: structure.keys(options), layout: options.layout, seed: options.seed };
        match structure {
            Structure::Array => Filled::Array(Array::new(options.footprint_bytes)),
            Structure::HashTable => Filled::HashTable(HashTable::fill(&filling)),
            Structure::RedBlackTree => Filled::RedBlackTree(RedBlackTree::fill(&filling)),
            Structure::BTree => Filled::BTree(BTree::fill(&filling, options.b_tree_node_bytes)),
        }
    }

    fn footprint_bytes(&self) -> u64 {
        match self {
            Filled::Array(array) => array.footprint_bytes(),
            Filled::HashTable(table) => table.footprint_bytes(),
            Filled::RedBlackTree(tree) => tree.footprint_bytes(),
            Filled::BTree(tree) => tree.footprint_bytes(),
        }
    }

    fn operate(&mut self, keys: &mut Keys, random: &mut Random, memory: &mut impl Memory) {
        match self {
            Filled::Array(array) => array.swap(random, memory),
            Filled::HashTable(table) => {
                table.toggle(keys.draw() as u32, memory);
            }
            Filled::RedBlackTree(tree) => {
                tree.toggle(keys.draw() as u32, memory);
            }
            Filled::BTree(tree) => {
                tree.toggle(keys.draw() as u32, memory);
            }
        }
    }
}

/// Runs cases, several concurrently, and reports each as it completes, in any order.
///
/// # Errors
/// Fails if `cancel` is set before all are done.
pub fn run(
    cases: &[Case],
    options: &Options,
    cancel: &AtomicBool,
    each: &(dyn Fn(&Ran) + Sync),
) -> Result<Vec<Ran>, Cancelled> {
    let mut done: Vec<(usize, Ran)> = Vec::new();
    // One structure after the other: filling one takes longer than a case, and copies take memory.
    for (_, structure) in Structure::ALL {
        let of_structure = cases.iter().enumerate().filter(|(_, case)| case.structure == structure);
        let waiting: VecDeque<(usize, Case)> = of_structure.map(|(number, case)| (number, *case)).collect();
        if waiting.is_empty() {
            continue;
        }
        let filled = Filled::new(structure, options);
        let threads = options.threads.clamp(1, waiting.len());
        let (waiting, finished) = (Mutex::new(waiting), Mutex::new(&mut done));
        let work = || {
            while let Some((number, case)) = lock(&waiting).pop_front() {
                let ran = simulate(case, filled.clone(), options, cancel)?;
                each(&ran);
                lock(&finished).push((number, ran));
            }
            Ok(())
        };
        thread::scope(|scope| {
            let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
            let own = work();
            // A panic of a thread propagates to this one.
            others
                .into_iter()
                .map(|other| other.join().unwrap_or_else(|e| std::panic::resume_unwind(e)))
                .fold(own, Result::and)
        })?;
    }
    done.sort_by_key(|(number, _)| *number);
    Ok(done.into_iter().map(|(_, ran)| ran).collect())
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn simulate(case: Case, mut filled: Filled, options: &Options, cancel: &AtomicBool) -> Result<Ran, Cancelled> {
    let mut machine = Machine::new(options.machine.clone());
    // Twice as many keys as the structure has, so that half of the operations insert.
    let mut keys = Keys::new(case.keys, 2 * u64::from(case.structure.keys(options)), options.seed ^ 3);
    let mut random = Random::new(options.seed ^ 4);
    for operation in 0..options.warm_up + options.operations {
        if operation.is_multiple_of(STRIDE) && cancel.load(Ordering::Relaxed) {
            return Err(Cancelled);
        }
        if operation == options.warm_up {
            machine.commit();
            machine.reset();
        }
        machine.operation();
        filled.operate(&mut keys, &mut random, &mut machine);
        if (operation + 1).is_multiple_of(options.transaction_operations) {
            machine.commit();
        }
    }
    machine.commit();
    Ok(Ran { case, footprint_bytes: filled.footprint_bytes(), counts: machine.counts().clone() })
}

#[cfg(test)]
mod tests;
