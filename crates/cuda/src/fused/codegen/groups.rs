//! Groups: location of their states, and updates by rows.
//!
//! A state is a number of words of 64 bits, all of which start as zeros. States are stored by word:
//! word 0 of all groups, then word 1 of all groups, and so on.
//!
//! ```text
//! one          in registers of each thread, combined over a warp or a block at the end
//! a handful    likewise: a row is compared with all of them, and no thread waits for another;
//!              or, if all inputs are packed, summed up by vectors before they are added to
//!              shared memory (see dense.rs)
//! few          in shared memory, in several copies, to reduce contention for hot groups
//! many         in global memory, at the key's place or hashed; behind a front in shared memory,
//!              whose places belong to the groups that come to them first, as hot ones do
//! ```

use onehop_pipeline::bind::Bound;
use onehop_pipeline::cpu::{KeyDigit, KeyLayout, Kind};
use onehop_pipeline::ir::Aggregate;
use onehop_pipeline::{Domain, Interval, Type, VECTOR_ROWS};

use super::dense::Dense;
use super::expr::{Operand, Valid};
use super::pipeline::{Builder, SHARED_BYTES};
use super::sink::SinkKey;
use super::{PartitionWord, Word};
use crate::fused::launch::UNIT_VECTORS;
use crate::fused::table::Rows;
use crate::fused::{Error, Result};

/// Maximum number of groups at places of their own, and maximum of their bytes.
const DENSE_GROUPS: u64 = 1 << 24;
const DENSE_BYTES: u64 = 1 << 30;
/// Maximum number of groups in registers, and maximum of their words: each row is compared with all
/// of them.
const REGISTER_GROUPS: u64 = 8;
const REGISTER_WORDS: u64 = 48;
/// Minimum fraction of the rows that must come to groups in registers.
const MANY: f64 = 0.1;
/// Maximum number of rows of a unit, for a thread and for a warp.
const UNIT_ROWS: u128 = UNIT_VECTORS as u128 * VECTOR_ROWS as u128;
/// Maximum bytes of the copies of few groups, and of a front.
const COPIES_BYTES: u64 = 4 << 10;
const FRONT_BYTES: u64 = 16 << 10;

/// Memory layout of groups.
#[derive(Clone, Debug)]
pub(in crate::fused) struct Groups {
    /// Layout of the keys; `None`: one group, with or without rows.
    pub layout: Option<KeyLayout>,
    pub place: Place,
    /// `true` if groups are resident one partition of their keys at a time.
    pub is_split: bool,
    /// Words of a state. The first is not 0 if the group has rows. It counts them if an aggregate
    /// needs the count.
    pub words: usize,
    pub keys: Vec<Domain>,
    pub slots: Vec<Slot>,
    /// Summation of dense rows before they are added to the groups, if most rows are dense.
    pub dense: Option<Dense>,
}

/// Location of the states of groups while rows are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fused) enum Place {
    One,
    /// Combined with all others after this many units of a warp, before a sum exceeds 64 bits.
    Registers {
        flush_units: u64,
    },
    Shared {
        copies: u64,
    },
    /// Behind a front of `front` places.
    Global {
        is_hashed: bool,
        front: u64,
    },
}

/// Location of an aggregate in a state.
#[derive(Clone, Debug)]
pub(in crate::fused) struct Slot {
    pub kind: SlotKind,
    pub word: usize,
    /// The word that tells if there was a value.
    pub seen: usize,
    /// Domain of the argument.
    pub domain: Domain,
    /// `true` if an earlier slot has the same words.
    pub is_repeated: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fused) enum SlotKind {
    Count,
    Sum,
    /// In two words.
    WideSum,
    Least,
    Greatest,
}

impl Groups {
    /// Returns the number of possible groups.
    pub fn count(&self) -> u64 {
        self.layout.as_ref().map_or(1, |layout| layout.count)
    }

    pub fn is_hashed(&self) -> bool {
        matches!(self.place, Place::Global { is_hashed: true, .. })
    }

    /// Returns true if there may be enough groups to make partitions worthwhile.
    pub fn may_be_split(&self) -> bool {
        matches!(self.place, Place::Global { .. })
    }

    pub fn copies(&self) -> u64 {
        if let Place::Shared { copies } = self.place { copies } else { 0 }
    }

    /// Returns the words of shared memory.
    pub fn shared_words(&self) -> u64 {
        match self.place {
            Place::One | Place::Registers { .. } => 0,
            Place::Shared { copies } => {
                let sums = self.dense.as_ref().map_or(0, |dense| dense.shared_words(self.count()));
                copies * self.count() * self.words as u64 + sums
            }
            Place::Global { front, .. } => front * (self.words as u64 + 1),
        }
    }

    /// Returns true if the first word counts rows.
    pub fn counts_rows(&self) -> bool {
        self.slots.iter().any(|slot| slot.kind == SlotKind::Count && slot.word == 0)
    }
}

/// Destination of a row's values: memory or registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum To {
    One,
    Registers,
    /// `state`, with the given distance between words.
    Shared(Apart),
    Global,
}

/// Distance between the words of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Apart {
    Groups,
    Front(u64),
}

impl To {
    /// Returns the expression of a word of the state.
    fn word(self, word: usize) -> String {
        match (self, word) {
            (Self::One, _) => format!("g{word}"),
            (Self::Registers, _) => format!("g{word}[group]"),
            (Self::Shared(_) | Self::Global, 0) => "state".into(),
            (Self::Shared(Apart::Front(front)), _) => format!("state + {}", word as u64 * front),
            (Self::Shared(Apart::Groups) | Self::Global, _) => format!("state + {word} * A.groups_count"),
        }
    }

    fn mark(self, word: usize, own: &str) -> String {
        let to = self.word(word);
        match self {
            Self::One => format!("{to} = 1;"),
            Self::Registers => format!("{to} |= {own};"),
            Self::Shared(_) => format!("mark_near({to});"),
            Self::Global => format!("mark({to});"),
        }
    }

    fn add(self, word: usize, by: &str, own: &str) -> String {
        let to = self.word(word);
        match self {
            Self::One => format!("{to} += {by};"),
            Self::Registers => format!("{to} += {own} ? {by} : 0;"),
            Self::Shared(_) => format!("add_near({to}, {by});"),
            Self::Global => format!("add({to}, {by});"),
        }
    }

    fn raise(self, word: usize, number: &str, own: &str) -> String {
        let to = self.word(word);
        match self {
            Self::One => format!("keep_greatest({to}, {number});"),
            Self::Registers => format!("keep_greatest({to}, {own} ? {number} : 0);"),
            Self::Shared(_) => format!("raise_near({to}, {number});"),
            Self::Global => format!("raise({to}, {number});"),
        }
    }
}

impl Builder<'_> {
    pub fn groups(&self, keys: &[Bound], aggregates: &[Aggregate], arguments: &[Option<Bound>]) -> Result<Groups> {
        let domains: Vec<Domain> = keys.iter().map(|key| key.domain.clone()).collect();
        if let Some(late) = domains.iter().find_map(|domain| domain.late.as_ref()) {
            return Err(Error::refused(&format!("a GROUP BY of {}", late.name())));
        }
        let (words, slots) = self.slots(aggregates, arguments)?;
        let mut groups =
            Groups { layout: None, place: Place::One, is_split: false, words, keys: domains, slots, dense: None };
        if keys.is_empty() {
            return Ok(groups);
        }
        groups.layout = Some(KeyLayout::new(&groups.keys, true)?);
        let state_bytes = words as u64 * 8;
        let bytes = groups.count().saturating_mul(state_bytes);
        groups.dense = self.dense(keys, arguments, &groups);
        groups.place = match self.flush_units(&groups).filter(|_| groups.dense.is_none()) {
            Some(flush_units) => Place::Registers { flush_units },
            // A bitmap may need shared memory as well; then groups have precedence.
            None if bytes <= SHARED_BYTES / 2 => Place::Shared { copies: (COPIES_BYTES / bytes.max(1)).clamp(1, 8) },
            None => {
                let front = (FRONT_BYTES / (state_bytes + 8)).max(1);
                let front = if front.is_power_of_two() { front } else { front.next_power_of_two() / 2 };
                Place::Global { is_hashed: groups.count() > DENSE_GROUPS || bytes > DENSE_BYTES, front }
            }
        };
        groups.is_split = self.input.splits_groups && groups.may_be_split();
        Ok(groups)
    }

    /// Returns the number of words of a state, and the location of each aggregate in it.
    fn slots(&self, aggregates: &[Aggregate], arguments: &[Option<Bound>]) -> Result<(usize, Vec<Slot>)> {
        let mut words = 1;
        let mut slots: Vec<Slot> = Vec::with_capacity(aggregates.len());
        for (aggregate, argument) in aggregates.iter().zip(arguments) {
            // An average needs a sum that another aggregate often computes, too.
            let text = |of: &Aggregate| of.argument().map(|expr| expr.to_string());
            let is_same = |other: &Aggregate| {
                std::mem::discriminant(other) == std::mem::discriminant(aggregate) && text(other) == text(aggregate)
            };
            let is_fallible = argument.as_ref().is_some_and(|argument| argument.is_fallible);
            let before = aggregates[..slots.len()].iter().position(is_same).filter(|_| !is_fallible);
            if let Some(before) = before {
                let slot = slots[before].clone();
                slots.push(Slot { is_repeated: true, ..slot });
                continue;
            }
            let domain = argument.as_ref().map_or_else(|| Domain::bool(false), |bound| bound.domain.clone());
            let kind = self.slot_kind(aggregate, &domain)?;
            let mut own = |count: usize| {
                words += count;
                words - count
            };
            let (word, seen) = match kind {
                // If there are no NULLs, counting values is counting rows.
                SlotKind::Count if !domain.nullable => (0, 0),
                SlotKind::Count => (own(1), 0),
                SlotKind::WideSum => (own(2), if domain.nullable { own(1) } else { 0 }),
                SlotKind::Sum | SlotKind::Least | SlotKind::Greatest => {
                    (own(1), if domain.nullable { own(1) } else { 0 })
                }
            };
            slots.push(Slot { kind, word, seen, domain, is_repeated: false });
        }
        Ok((words, slots))
    }

    fn slot_kind(&self, aggregate: &Aggregate, domain: &Domain) -> Result<SlotKind> {
        if aggregate.is_distinct() {
            return Err(Error::refused("an aggregate of DISTINCT values"));
        }
        Ok(match aggregate {
            Aggregate::CountRows | Aggregate::Count(_) => SlotKind::Count,
            Aggregate::Sum(_) if domain.ty == Type::Int && Kind::of(domain) <= Kind::I64 => {
                if self.fits(domain.interval) { SlotKind::Sum } else { SlotKind::WideSum }
            }
            Aggregate::Min(_) if Kind::of(domain) != Kind::I128 => SlotKind::Least,
            Aggregate::Max(_) if Kind::of(domain) != Kind::I128 => SlotKind::Greatest,
            other => return Err(Error::refused(&format!("{other} of {domain}"))),
        })
    }

    fn multiplies(&self) -> bool {
        self.input.tables.iter().any(|table| table.rows == Rows::Chains)
    }

    /// Returns true if the sum of one such value per row fits 64 bits.
    fn fits(&self, interval: Interval) -> bool {
        let sum = interval.magnitude().checked_mul(self.input.rows.into());
        !self.multiplies() && sum.is_some_and(|sum| sum <= i64::MAX as u128)
    }

    /// Returns the number of units that a warp can process before a sum of its threads may exceed
    /// 64 bits. Returns `None` if groups are not to be in registers.
    fn flush_units(&self, groups: &Groups) -> Option<u64> {
        // If hardly any row reaches the groups, the registers are better used for the columns,
        // which all rows are in.
        let passes: f64 = self.input.plan.acts.iter().map(|act| act.passes).product();
        let count = groups.count();
        if passes < MANY || self.multiplies() || count > REGISTER_GROUPS || count * groups.words as u64 > REGISTER_WORDS
        {
            return None;
        }
        let sums = groups.slots.iter().filter(|slot| matches!(slot.kind, SlotKind::Sum | SlotKind::WideSum));
        let most = sums.map(|slot| slot.domain.interval.magnitude()).max().unwrap_or(1).max(1);
        let units = (1u128 << 62) / UNIT_ROWS / most;
        u64::try_from(units).ok().filter(|units| *units > 0)
    }

    /// Generates the code before the rows.
    pub fn begin_groups(&mut self, groups: &Groups) {
        match groups.place {
            Place::One => {
                for word in 0..groups.words {
                    self.w.line(format!("u64 g{word} = 0;"));
                }
                for slot in groups.slots.iter().filter(|slot| slot.kind == SlotKind::WideSum && !slot.is_repeated) {
                    self.w.line(format!("u128 s{} = 0;", slot.word));
                }
            }
            Place::Registers { .. } => {
                for word in 0..groups.words {
                    self.w.line(format!("u64 g{word}[{}] = {{}};", groups.count()));
                }
            }
            Place::Shared { .. } => {
                let count = self.w.args.named("u64", "groups_count", Word::GroupCount);
                let copies = self.w.args.named("u64", "copies", Word::Copies);
                let bitmap = self.bitmap_words();
                self.w.line(format!("u64* const G = S{bitmap};"));
                self.w.line(format!("const u64 state_words = {count} * {};", groups.words));
                self.w
                    .line(format!("for (u64 w = threadIdx.x; w < state_words * {copies}; w += blockDim.x) G[w] = 0;"));
                self.w.line(format!("u64* const mine = G + threadIdx.x / LANES % (u32){copies} * state_words;"));
                if let Some(dense) = &groups.dense {
                    self.begin_dense(dense, groups.count());
                }
            }
            Place::Global { front, .. } => {
                self.w.args.named("u64", "groups_count", Word::GroupCount);
                let bitmap = self.bitmap_words();
                self.w.line(format!("u64* const owners = S{bitmap};"));
                self.w.line(format!("u64* const G = owners + {front};"));
                self.w.line(format!("for (u32 w = threadIdx.x; w < {front}; w += blockDim.x) owners[w] = NO_KEY;"));
                let words = front * groups.words as u64;
                self.w.line(format!("for (u32 w = threadIdx.x; w < {words}; w += blockDim.x) G[w] = 0;"));
            }
        }
    }

    fn bitmap_words(&mut self) -> String {
        match self.shared.bitmaps.first().copied() {
            Some(table) => {
                let words = self.w.args.named("u64", &format!("t{table}_words"), Word::BitmapWords(table));
                format!(" + {words}")
            }
            None => String::new(),
        }
    }

    /// Generates the number of a row's group, if the group is in the resident partition.
    pub fn group_key(&mut self, keys: &[Bound], parts: Vec<Operand>, groups: &Groups) -> SinkKey {
        let Some(layout) = &groups.layout else { return SinkKey { parts, key: String::new() } };
        let domains: Vec<Interval> = keys.iter().map(|key| key.domain.interval).collect();
        let digits: Vec<KeyDigit> = layout.digits_of_parts().collect();
        self.w.args.named("u64", "groups_count", Word::GroupCount);
        let mut key = self.key(&parts, &domains, &digits).0;
        if groups.is_split {
            let named = |b: &mut Self, word: PartitionWord| {
                b.w.args.named("u64", &format!("groups_{}", word.name()), Word::GroupPartition(word))
            };
            key = self.leave_others(!groups.is_hashed(), &key, named);
        }
        SinkKey { parts, key }
    }

    pub fn group_row(
        &mut self,
        keys: &[Bound],
        arguments: &[Option<Bound>],
        groups: &Groups,
        key: Option<SinkKey>,
    ) -> Result<()> {
        let parts = key.as_ref().map(|key| Ok(key.parts.clone())).unwrap_or_else(|| self.operands(keys))?;
        let values = arguments.iter().map(|bound| bound.as_ref().map(|bound| self.w.expr(bound)).transpose());
        let values = values.collect::<Result<Vec<_>>>()?;
        let SinkKey { key, .. } = key.unwrap_or_else(|| self.group_key(keys, parts, groups));
        match groups.place {
            Place::One => self.update(groups, &values, To::One),
            Place::Registers { .. } => {
                // Registers have no addresses, so every group is updated for every row, with zero
                // if the row is not its own.
                self.w.line("#pragma unroll");
                self.w.open(format!("for (u32 group = 0; group < {}; group++) {{", groups.count()));
                self.w.line(format!("const bool is = group == (u32){key};"));
                self.update(groups, &values, To::Registers);
                self.w.close();
            }
            Place::Shared { .. } => {
                self.w.line(format!("u64* const state = mine + {key};"));
                self.update(groups, &values, To::Shared(Apart::Groups));
            }
            Place::Global { is_hashed, front } => {
                let group = match is_hashed {
                    false => key,
                    true => {
                        let keys = self.w.args.named("u64*", "group_keys", Word::GroupKeys);
                        let mask = self.w.args.named("u64", "group_mask", Word::GroupMask);
                        self.w.line(format!("const u64 group = place({keys}, {mask}, {key});"));
                        self.w.line("if (group == NO_KEY) { mark(&A.status->full); continue; }");
                        "group".into()
                    }
                };
                self.w.line(format!("const u32 near = (u32){group} % {front};"));
                self.w.open(format!("if (owns(owners + near, {group})) {{"));
                self.w.line("u64* const state = G + near;");
                self.update(groups, &values, To::Shared(Apart::Front(front)));
                self.w.depth -= 1;
                self.w.open("} else {");
                let all = self.w.args.named("u64*", "groups", Word::Groups);
                self.w.line(format!("u64* const state = {all} + {group};"));
                self.update(groups, &values, To::Global);
                self.w.close();
            }
        }
        Ok(())
    }

    /// Adds a row's values to the state of its group.
    fn update(&mut self, groups: &Groups, values: &[Option<Operand>], to: To) {
        self.w.line(if groups.counts_rows() { to.add(0, "1", "is") } else { to.mark(0, "is") });
        for (slot, value) in groups.slots.iter().zip(values) {
            let counts_rows = slot.kind == SlotKind::Count && slot.word == 0;
            let Some(value) = value.as_ref().filter(|_| !counts_rows && !slot.is_repeated) else { continue };
            let own = match &value.valid {
                Valid::Never => continue,
                Valid::Always => "is",
                Valid::If(valid) if to == To::Registers => {
                    self.w.open("{");
                    self.w.line(format!("const bool both = is && {valid};"));
                    "both"
                }
                Valid::If(valid) => {
                    self.w.open(format!("if ({valid}) {{"));
                    "is"
                }
            };
            let long = |value: &Operand| format!("(u64)(i64){}", value.text);
            let line = match (slot.kind, to) {
                (SlotKind::Count, _) => to.add(slot.word, "1", own),
                (SlotKind::WideSum, To::One) => format!("s{} += (u128)(i128){};", slot.word, value.text),
                (SlotKind::WideSum, To::Shared(_) | To::Global) => {
                    let add = if to == To::Global { "add_wide" } else { "add_wide_near" };
                    let (low, high) = (to.word(slot.word), to.word(slot.word + 1));
                    format!("{add}({low}, {high}, (u128)(i128){});", value.text)
                }
                (SlotKind::Sum | SlotKind::WideSum, _) => to.add(slot.word, &long(value), own),
                (SlotKind::Least | SlotKind::Greatest, _) => {
                    let number = match value.kind {
                        Kind::F64 => format!("total({})", value.text),
                        _ => value.as_kind(Kind::I64),
                    };
                    let function = if slot.kind == SlotKind::Least { "least" } else { "greatest" };
                    to.raise(slot.word, &format!("{function}({number})"), own)
                }
            };
            self.w.line(line);
            if slot.seen > 0 {
                self.w.line(to.mark(slot.seen, own));
            }
            if matches!(value.valid, Valid::If(_)) {
                self.w.close();
            }
        }
    }

    /// Generates the code after the rows.
    pub fn end_groups(&mut self, groups: &Groups) {
        match groups.place {
            Place::One => self.end_one(groups),
            Place::Registers { .. } => self.end_registers(groups),
            Place::Shared { .. } => {
                if let Some(dense) = &groups.dense {
                    self.end_window(dense, groups);
                }
                self.w.line("__syncthreads();");
                self.w.open("for (u64 n = threadIdx.x; n < A.groups_count * A.copies; n += blockDim.x) {");
                self.w.line("const u64 group = n % A.groups_count;");
                self.w.line("u64* const from = G + n / A.groups_count * state_words + group;");
                self.w.line("if (!*from) continue;");
                self.give(groups, "group", "A.groups_count");
            }
            Place::Global { front, .. } => {
                self.w.line("__syncthreads();");
                self.w.open(format!("for (u32 n = threadIdx.x; n < {front}; n += blockDim.x) {{"));
                self.w.line("if (owners[n] == NO_KEY) continue;");
                self.w.line("u64* const from = G + n;");
                self.give(groups, "owners[n]", &front.to_string());
            }
        }
    }

    /// Combines the only group over a block, or over a warp for words that are not plain sums.
    fn end_one(&mut self, groups: &Groups) {
        let all = self.w.args.named("u64*", "groups", Word::Groups);
        for (word, how) in how_words(groups).into_iter().enumerate() {
            let (of, together, give) = match how {
                How::Add => {
                    self.w.line(format!("g{word} = block_sum(g{word});"));
                    self.w.line(format!("if (threadIdx.x == 0 && g{word}) add({all} + {word}, g{word});"));
                    continue;
                }
                How::AddWide => (
                    format!("s{word}"),
                    "warp_sum_wide",
                    format!("add_wide({all} + {word}, {all} + {word} + 1, s{word})"),
                ),
                How::High => continue,
                How::Raise => (format!("g{word}"), "warp_greatest", format!("raise({all} + {word}, g{word})")),
            };
            self.w.line(format!("{of} = {together}({of});"));
            self.w.line(format!("if (lane == 0 && {of}) {give};"));
        }
    }

    /// Combines groups in registers over a warp, and clears them.
    fn end_registers(&mut self, groups: &Groups) {
        let all = self.w.args.named("u64*", "groups", Word::Groups);
        self.w.line("#pragma unroll");
        self.w.open(format!("for (u32 group = 0; group < {}; group++) {{", groups.count()));
        self.w.line(format!("u64* const to = {all} + group;"));
        for (word, how) in how_words(groups).into_iter().enumerate() {
            let (from, at) = (format!("g{word}[group]"), format!("{word} * A.groups_count"));
            let (together, give) = match how {
                How::Add => ("warp_sum", format!("add(to + {at}, {from})")),
                How::AddWide => (
                    "warp_sum",
                    format!("add_wide(to + {at}, to + {} * A.groups_count, (u128)(i128)(i64){from})", word + 1),
                ),
                How::High => continue,
                How::Raise => ("warp_greatest", format!("raise(to + {at}, {from})")),
            };
            self.w.line(format!("{from} = {together}({from});"));
            self.w.line(format!("if (lane == 0 && {from}) {give};"));
            self.w.line(format!("{from} = 0;"));
        }
        self.w.close();
    }

    /// Adds the state at `from`, whose words are `apart` words apart, to that of a group. Ends a
    /// loop.
    fn give(&mut self, groups: &Groups, group: &str, apart: &str) {
        let all = self.w.args.named("u64*", "groups", Word::Groups);
        self.w.line(format!("u64* const to = {all} + {group};"));
        for (word, how) in how_words(groups).into_iter().enumerate() {
            let (at, of) = (format!("{word} * A.groups_count"), format!("from[{word} * {apart}]"));
            self.w.line(match how {
                How::Add => format!("if ({of}) add(to + {at}, {of});"),
                How::AddWide => format!(
                    "add_wide(to + {at}, to + {0} * A.groups_count, (u128)made({of}, from[{0} * {apart}]));",
                    word + 1
                ),
                How::High => continue,
                How::Raise => format!("raise(to + {at}, {of});"),
            });
        }
        self.w.close();
    }
}

/// Combination of a word of one state with that of another.
#[derive(Clone, Copy)]
enum How {
    Add,
    AddWide,
    /// The second word of a wide sum.
    High,
    Raise,
}

fn how_words(groups: &Groups) -> Vec<How> {
    let mut how = vec![How::Raise; groups.words];
    how[0] = if groups.counts_rows() { How::Add } else { How::Raise };
    for slot in groups.slots.iter().filter(|slot| slot.word > 0) {
        match slot.kind {
            SlotKind::Count | SlotKind::Sum => how[slot.word] = How::Add,
            SlotKind::WideSum => (how[slot.word], how[slot.word + 1]) = (How::AddWide, How::High),
            SlotKind::Least | SlotKind::Greatest => how[slot.word] = How::Raise,
        }
    }
    how
}
