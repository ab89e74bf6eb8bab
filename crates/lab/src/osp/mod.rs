//! The simulator of optimized shadow paging: flushes of transactions over data structures in persistent memory, against
//! undo and redo logging (Ni, Zhao, Bittman, Miller: "Reducing NVM Writes with Optimized Shadow Paging", 2018).
//!
//! 1. A structure of the workload is filled. Nothing is counted.
//! 2. Operations run on it, each told to a [`machine`] that has a TLB, pages in pairs, and logs, and
//!    ends a transaction after each operation or several. The first ones warm the TLB up; then counting begins.
//! 3. One run is charged under every accounting at once ([`accounting`]): those differ in nothing but what they count.
//!
//! Runs of the same options give the same figures: everything random has the seed.

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

/// Operations between two looks at whether to go on.
const STRIDE: u64 = 1 << 14;

/// What is worked on.
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
    /// All, by the names that the command line has for them.
    pub const ALL: [(&'static str, Structure); 4] = [
        ("sps", Structure::Array),
        ("ht", Structure::HashTable),
        ("rbt", Structure::RedBlackTree),
        ("bt", Structure::BTree),
    ];

    /// The paper's name.
    pub fn name(self) -> &'static str {
        match self {
            Structure::Array => "SPS",
            Structure::HashTable => "HT",
            Structure::RedBlackTree => "RBT",
            Structure::BTree => "BT",
        }
    }

    /// Keys that it is filled with: as many as make the footprint, about.
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

/// A run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// What is worked on.
    pub structure: Structure,
    /// Which keys.
    #[serde(flatten)]
    pub keys: Distribution,
}

impl Case {
    /// The paper's name for it: `HT-zipf`.
    pub fn name(&self) -> String {
        match (self.structure, self.keys) {
            (Structure::Array, _) => "SPS".into(),
            (structure, Distribution::Uniform) => format!("{}-uni", structure.name()),
            (structure, Distribution::Zipf { .. }) => format!("{}-zipf", structure.name()),
        }
    }

    /// The distribution of its keys: `zipf 1.5 plain`.
    pub fn distribution(&self) -> String {
        match self.keys {
            Distribution::Uniform => "uniform".into(),
            Distribution::Zipf { exponent, order } => {
                format!("zipf {exponent} {}", accounting::name(&Order::ALL, order))
            }
        }
    }

    /// Whether some keys come up more often than others.
    pub fn is_zipf(&self) -> bool {
        self.keys != Distribution::Uniform
    }

    /// All of these structures: with uniform keys, and with every exponent in every order. Swaps are uniform, as in the
    /// paper.
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

/// How cases are run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The machine.
    pub machine: Config,
    /// Bytes of persistent memory that a structure has when it is filled, about; no more than [`MAX_FOOTPRINT_BYTES`].
    pub footprint_bytes: u64,
    /// Bytes of a node of the B-tree: see [`BTree::fill`].
    pub b_tree_node_bytes: u64,
    /// Where elements lie.
    pub layout: Layout,
    /// Operations that are not counted.
    pub warm_up: u64,
    /// Operations that are.
    pub operations: u64,
    /// Operations of a transaction.
    pub transaction_operations: u64,
    /// Of everything random.
    pub seed: u64,
    /// Cases at a time.
    pub threads: usize,
}

/// Keys have 31 bits, and a B-tree has one for each 23 bytes or so.
pub const MAX_FOOTPRINT_BYTES: u64 = 32 << 30;

/// What came of a case.
#[derive(Clone, Debug)]
pub struct Ran {
    /// The case.
    pub case: Case,
    /// Bytes of persistent memory at the end.
    pub footprint_bytes: u64,
    /// What was counted.
    pub counts: Counts,
}

/// The run was ended from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the simulation was cancelled")]
pub struct Cancelled;

/// A structure with its keys, as all cases of it begin.
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

/// Runs cases, several at a time, and hands each over as it is done, in any order.
///
/// # Errors
/// If `cancel` is set before all are done.
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
            // A thread that panicked takes this one with it.
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
    // Twice as many as are there: half of the operations insert.
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
