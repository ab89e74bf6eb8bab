//! The free slots: one bit a slot, in memory only, recomputed when the store is opened. No durable
//! state of it could be damaged.
//!
//! Slots are allocated in ascending order from the last one (next fit), so that consecutive writes
//! are adjacent if there is space.

const WORD_BITS: u32 = u64::BITS;

/// A set of slots.
#[derive(Debug, Default)]
pub(super) struct SlotSet {
    words: Vec<u64>,
}

impl SlotSet {
    pub(super) fn contains(&self, slot: u32) -> bool {
        self.words.get((slot / WORD_BITS) as usize).is_some_and(|word| word >> (slot % WORD_BITS) & 1 == 1)
    }

    /// Adds `slot`. Returns false if it was there.
    pub(super) fn insert(&mut self, slot: u32) -> bool {
        let at = (slot / WORD_BITS) as usize;
        if at >= self.words.len() {
            self.words.resize(at + 1, 0);
        }
        let (word, bit) = (&mut self.words[at], 1 << (slot % WORD_BITS));
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }

    /// Removes `slot`. Returns false if it was not there.
    pub(super) fn remove(&mut self, slot: u32) -> bool {
        let Some(word) = self.words.get_mut((slot / WORD_BITS) as usize) else { return false };
        let bit = 1 << (slot % WORD_BITS);
        let was_there = *word & bit != 0;
        *word &= !bit;
        was_there
    }

    /// Returns the first slot that is `from` or greater.
    fn first(&self, from: u32) -> Option<u32> {
        let mut at = (from / WORD_BITS) as usize;
        let mut word = self.words.get(at)? & (u64::MAX << (from % WORD_BITS));
        while word == 0 {
            at += 1;
            word = *self.words.get(at)?;
        }
        Some(at as u32 * WORD_BITS + word.trailing_zeros())
    }
}

/// The free slots.
#[derive(Debug, Default)]
pub(super) struct Space {
    free: SlotSet,
    free_count: u32,
    /// The number of slots from 0 on, those of the superblocks included.
    slots: u32,
    cursor: u32,
}

impl Space {
    /// Creates the set of slots `first .. slots`, all of them free.
    pub(super) fn new(first: u32, slots: u32) -> Self {
        let mut space = Self { slots: first, ..Self::default() };
        space.extend(slots);
        space
    }

    pub(super) fn slots(&self) -> u32 {
        self.slots
    }

    pub(super) fn free_count(&self) -> u32 {
        self.free_count
    }

    pub(super) fn is_free(&self, slot: u32) -> bool {
        self.free.contains(slot)
    }

    /// Extends the set to `slots` slots. The new ones are free.
    pub(super) fn extend(&mut self, slots: u32) {
        for slot in self.slots..slots {
            self.release(slot);
        }
        self.slots = self.slots.max(slots);
    }

    /// Takes the next free slot.
    pub(super) fn take(&mut self) -> Option<u32> {
        let slot = self.free.first(self.cursor).or_else(|| self.free.first(0))?;
        self.take_this(slot);
        self.cursor = slot + 1;
        Some(slot)
    }

    /// Returns up to `count` free slots, in the order in which they would be taken from `slot` on.
    pub(super) fn following(&self, slot: u32, count: usize) -> Vec<u32> {
        let ascending = |from: u32| std::iter::successors(self.free.first(from), |&last| self.free.first(last + 1));
        ascending(slot).chain(ascending(0).take_while(|&free| free < slot)).take(count).collect()
    }

    /// Takes `slot`. Returns false if it is not free.
    pub(super) fn take_this(&mut self, slot: u32) -> bool {
        let was_free = self.free.remove(slot);
        self.free_count -= u32::from(was_free);
        was_free
    }

    /// Frees `slot`.
    pub(super) fn release(&mut self, slot: u32) {
        self.free_count += u32::from(self.free.insert(slot));
    }
}
