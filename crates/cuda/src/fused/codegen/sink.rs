//! What becomes of the rows: groups, a table, or the rows themselves.
//!
//! A group's state is some words of 64 bits, all of which start as zeros. Where states are depends on how many there
//! are: of one group, and of a handful, in registers of each thread, put together over a warp now and then; of few in
//! shared memory, in several copies, so that threads do not queue for the hot ones; of all others in global memory, at
//! the key's place or hashed.

use onehop_pipeline::bind::Bound;
use onehop_pipeline::cpu::{KeyDigit, KeyLayout, Kind, TableKind};
use onehop_pipeline::ir::{Aggregate, Direction, Nulls, Sink};
use onehop_pipeline::{Domain, Interval, Type};

use super::expr::{Operand, Valid};
use super::pipeline::{Builder, SHARED_BYTES};
use super::{End, TableWord, Word, type_of};
use crate::fused::plan::registers_of;
use crate::fused::table::{Rows, TableShape};
use crate::fused::{Error, Result};

/// Groups at places of their own, at most, and their bytes.
const DENSE_GROUPS: u64 = 1 << 24;
const DENSE_BYTES: u64 = 1 << 30;
/// Groups in registers, at most, and their words: each row is compared with all of them.
const REGISTER_GROUPS: u64 = 8;
const REGISTER_WORDS: u64 = 48;
/// And only if so many rows come to them.
const MANY: f64 = 0.1;
/// Rows of a unit that a thread has, at most, and those of a warp.
const UNIT_ROWS: u128 = 8 * 32 * 32;
/// Bytes that copies of few groups may take.
const COPIES_BYTES: u64 = 16 << 10;

/// What the host finds when a kernel is through.
#[derive(Clone, Debug)]
pub(in crate::fused) enum SinkShape {
    /// A join table.
    Table,
    Groups(Groups),
    /// Rows, as columns. Those of the first rows in an order begin with its keys, by the first of which they are left out
    /// if they come after a threshold, where that is so.
    Rows {
        outputs: Vec<Output>,
        has_threshold: bool,
    },
}

/// Groups as they lie in memory: word after word, each of all groups.
#[derive(Clone, Debug)]
pub(in crate::fused) struct Groups {
    /// `None`: one group, with or without rows.
    pub layout: Option<KeyLayout>,
    pub is_hashed: bool,
    /// Copies in shared memory; 0: groups are not there.
    pub copies: u64,
    /// Units that a warp takes before its threads' registers are put together with all others, if groups are there.
    pub flush_units: Option<u64>,
    /// Words of a state. The first is not 0 if the group has rows, and counts them if anybody asks.
    pub words: usize,
    pub keys: Vec<Domain>,
    pub slots: Vec<Slot>,
}

/// Where an aggregate is in a state.
#[derive(Clone, Debug)]
pub(in crate::fused) struct Slot {
    pub kind: SlotKind,
    pub word: usize,
    /// The word that says whether there was a value.
    pub seen: usize,
    /// Of the argument.
    pub domain: Domain,
    /// Whether another one before it has the same words.
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

/// A column of collected rows.
#[derive(Clone, Debug)]
pub(in crate::fused) struct Output {
    pub domain: Domain,
    pub kind: Kind,
}

impl Output {
    pub fn bytes(&self) -> usize {
        match self.kind {
            Kind::Bool => 1,
            Kind::I32 => 4,
            Kind::I64 | Kind::F64 => 8,
            Kind::I128 => 16,
        }
    }
}

/// A sink with its expressions bound.
pub(super) enum SinkPlan {
    Build { keys: Vec<Bound>, payload: Vec<Option<Bound>>, shape: TableShape },
    Groups { keys: Vec<Bound>, arguments: Vec<Option<Bound>>, groups: Groups },
    Rows { columns: Vec<Bound>, outputs: Vec<Output>, threshold: Option<Threshold> },
}

/// Which rows in an order come too late to be among the first. A value's rank is a number of the order's direction.
pub(super) struct Threshold {
    first: Bound,
    direction: Direction,
    nulls: Nulls,
}

impl SinkPlan {
    fn exprs(&self) -> Vec<&Bound> {
        match self {
            Self::Build { keys, payload, .. } => keys.iter().chain(payload.iter().flatten()).collect(),
            Self::Groups { keys, arguments, .. } => keys.iter().chain(arguments.iter().flatten()).collect(),
            Self::Rows { columns, .. } => columns.iter().collect(),
        }
    }

    pub fn reads(&self) -> Vec<usize> {
        registers_of(self.exprs())
    }

    /// Words of shared memory for one copy of the groups.
    pub fn shared_words(&self) -> u64 {
        match self {
            Self::Groups { groups, .. } if groups.copies > 0 => {
                groups.copies * groups.layout.as_ref().map_or(0, |layout| layout.count) * groups.words as u64
            }
            _ => 0,
        }
    }

    /// After how many units registers are put together, if groups are there.
    pub fn flush_units(&self) -> Option<u64> {
        match self {
            Self::Groups { groups, .. } => groups.flush_units,
            _ => None,
        }
    }

    pub fn into_shape(self) -> SinkShape {
        match self {
            Self::Build { .. } => SinkShape::Table,
            Self::Groups { groups, .. } => SinkShape::Groups(groups),
            Self::Rows { outputs, threshold, .. } => SinkShape::Rows { outputs, has_threshold: threshold.is_some() },
        }
    }
}

impl Builder<'_> {
    pub fn sink_plan(&self) -> Result<SinkPlan> {
        let plan = self.input.plan;
        let bind_all =
            |all: &[onehop_pipeline::Expr]| all.iter().map(|expr| plan.bind(expr)).collect::<Result<Vec<_>>>();
        match &plan.pipeline.sink {
            Sink::Build { keys, payload } => {
                let Some(shape) = self.input.built else { return Err(Error::refused("a table of no known shape")) };
                let wanted = |(expr, element): (_, &Option<_>)| element.as_ref().map(|_| plan.bind(expr)).transpose();
                let payload = payload.iter().zip(&shape.payload).map(wanted).collect::<Result<Vec<_>>>()?;
                Ok(SinkPlan::Build { keys: bind_all(keys)?, payload, shape: shape.clone() })
            }
            Sink::Aggregate { keys, aggregates } => {
                let keys = bind_all(keys)?;
                let argument = |aggregate: &Aggregate| aggregate.argument().map(|expr| plan.bind(expr)).transpose();
                let arguments = aggregates.iter().map(argument).collect::<Result<Vec<_>>>()?;
                let groups = self.groups(&keys, aggregates, &arguments)?;
                Ok(SinkPlan::Groups { keys, arguments, groups })
            }
            Sink::Collect { columns } => rows_plan(bind_all(columns)?),
            Sink::Top { keys, columns, .. } => {
                let exprs: Vec<_> = keys.iter().map(|key| key.expr.clone()).chain(columns.iter().cloned()).collect();
                let mut sink = rows_plan(bind_all(&exprs)?)?;
                if let SinkPlan::Rows { columns, threshold, .. } = &mut sink
                    && let (Some(key), Some(first)) = (keys.first(), columns.first())
                {
                    // A row that fails is looked at, wherever it comes.
                    let may_fail = columns.iter().any(|column| plan.may_fail(column));
                    let is_short = Kind::of(&first.domain) != Kind::I128;
                    let (first, direction, nulls) = (first.clone(), key.direction, key.nulls);
                    *threshold = (is_short && !may_fail).then_some(Threshold { first, direction, nulls });
                }
                Ok(sink)
            }
        }
    }

    fn groups(&self, keys: &[Bound], aggregates: &[Aggregate], arguments: &[Option<Bound>]) -> Result<Groups> {
        let domains: Vec<Domain> = keys.iter().map(|key| key.domain.clone()).collect();
        if let Some(late) = domains.iter().find_map(|domain| domain.late.as_ref()) {
            return Err(Error::refused(&format!("a GROUP BY of {}", late.name())));
        }
        let mut words = 1;
        let mut slots: Vec<Slot> = Vec::with_capacity(aggregates.len());
        for (aggregate, argument) in aggregates.iter().zip(arguments) {
            if aggregate.is_distinct() {
                return Err(Error::refused("an aggregate of DISTINCT values"));
            }
            let domain = argument.as_ref().map_or_else(|| Domain::bool(false), |bound| bound.domain.clone());
            let kind = match aggregate {
                Aggregate::CountRows => SlotKind::Count,
                Aggregate::Count(_) => SlotKind::Count,
                Aggregate::Sum(_) if domain.ty == Type::Int && Kind::of(&domain) <= Kind::I64 => {
                    match self.fits(domain.interval) {
                        true => SlotKind::Sum,
                        false => SlotKind::WideSum,
                    }
                }
                Aggregate::Min(_) if Kind::of(&domain) != Kind::I128 => SlotKind::Least,
                Aggregate::Max(_) if Kind::of(&domain) != Kind::I128 => SlotKind::Greatest,
                other => return Err(Error::refused(&format!("{other} of {domain}"))),
            };
            // An average asks for a sum that is asked for anyway.
            let is_same = |other: &&Aggregate| {
                let of_same = aggregate.argument().map(|expr| expr.to_string());
                std::mem::discriminant(*other) == std::mem::discriminant(aggregate)
                    && other.argument().map(|expr| expr.to_string()) == of_same
            };
            let is_fallible = argument.as_ref().is_some_and(|argument| argument.is_fallible);
            let before = aggregates[..slots.len()].iter().position(|other| is_same(&other)).filter(|_| !is_fallible);
            if let Some(before) = before {
                let slot = slots[before].clone();
                slots.push(Slot { is_repeated: true, ..slot });
                continue;
            }
            // Rows without a NULL are counted, or seen, as rows.
            let counts_rows = kind == SlotKind::Count && !domain.nullable;
            let mut own = |count: usize| {
                words += count;
                words - count
            };
            let (word, seen) = match kind {
                _ if counts_rows => (0, 0),
                SlotKind::Count => (own(1), 0),
                SlotKind::WideSum => (own(2), if domain.nullable { own(1) } else { 0 }),
                _ => (own(1), if domain.nullable { own(1) } else { 0 }),
            };
            slots.push(Slot { kind, word, seen, domain, is_repeated: false });
        }
        let mut groups =
            Groups { layout: None, is_hashed: false, copies: 0, flush_units: None, words, keys: domains, slots };
        if keys.is_empty() {
            return Ok(groups);
        }
        let layout = KeyLayout::new(&groups.keys, true)?;
        let bytes = layout.count.saturating_mul(words as u64 * 8);
        // Beside a bitmap, if there is one: that gives way.
        groups.copies = if bytes <= SHARED_BYTES / 2 { (COPIES_BYTES / bytes.max(1)).clamp(1, 8) } else { 0 };
        groups.is_hashed = layout.count > DENSE_GROUPS || bytes > DENSE_BYTES;
        groups.flush_units = self.flush_units(&groups, layout.count);
        if groups.flush_units.is_some() {
            groups.copies = 0;
        }
        groups.layout = Some(layout);
        Ok(groups)
    }

    /// How many units a warp can take before a sum of its threads may not fit 64 bits any more; `None` if groups are not
    /// to be in registers.
    fn flush_units(&self, groups: &Groups, count: u64) -> Option<u64> {
        let multiplies = self.input.tables.iter().any(|table| table.rows == Rows::Chains);
        // Registers that hardly any row gets to are missed by the columns that all of them are in.
        let passes: f64 = self.input.plan.acts.iter().map(|act| act.passes).product();
        if passes < MANY || multiplies || count > REGISTER_GROUPS || count * groups.words as u64 > REGISTER_WORDS {
            return None;
        }
        let sums = groups.slots.iter().filter(|slot| matches!(slot.kind, SlotKind::Sum | SlotKind::WideSum));
        let most = sums.map(|slot| slot.domain.interval.magnitude()).max().unwrap_or(1).max(1);
        let units = (1u128 << 62) / UNIT_ROWS / most;
        u64::try_from(units).ok().filter(|units| *units > 0)
    }

    /// Whether the sum of so many such values fits 64 bits.
    fn fits(&self, interval: Interval) -> bool {
        let multiplies = self.input.tables.iter().any(|table| table.rows == Rows::Chains);
        let sum = interval.magnitude().checked_mul(self.input.rows.into());
        !multiplies && sum.is_some_and(|sum| sum <= i64::MAX as u128)
    }

    /// What is before the rows.
    pub fn begin_sink(&mut self, sink: &SinkPlan) {
        match sink {
            SinkPlan::Groups { groups, .. } if groups.layout.is_none() => {
                for word in 0..groups.words {
                    self.w.line(format!("u64 g{word} = 0;"));
                }
                for slot in groups.slots.iter().filter(|slot| slot.kind == SlotKind::WideSum) {
                    self.w.line(format!("u128 s{} = 0;", slot.word));
                }
            }
            SinkPlan::Groups { groups, .. } if groups.flush_units.is_some() => {
                let count = groups.layout.as_ref().map_or(1, |layout| layout.count);
                for word in 0..groups.words {
                    self.w.line(format!("u64 g{word}[{count}] = {{}};"));
                }
            }
            SinkPlan::Groups { groups, .. } if groups.copies > 0 => {
                let count = self.w.args.named("u64", "groups_count", Word::GroupCount);
                let copies = self.w.args.named("u64", "copies", Word::Copies);
                let bitmap = self.bitmap_words();
                self.w.line(format!("u64* const G = S{bitmap};"));
                self.w.line(format!("const u64 state_words = {count} * {};", groups.words));
                self.w
                    .line(format!("for (u64 w = threadIdx.x; w < state_words * {copies}; w += blockDim.x) G[w] = 0;"));
                self.w.line(format!("u64* const mine = G + threadIdx.x / LANES % (u32){copies} * state_words;"));
            }
            SinkPlan::Build { shape, .. } if shape.rows != Rows::Chains => self.w.line("u64 built = 0;"),
            _ => {}
        }
        if self.w.text.contains("SHARED(S);") {
            self.w.line("__syncthreads();");
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

    /// What becomes of a row.
    pub fn take_row(&mut self, sink: &SinkPlan) -> Result<()> {
        if let SinkPlan::Rows { threshold: Some(threshold), .. } = sink {
            self.leave_out(threshold)?;
        }
        self.load_all(sink.reads())?;
        match sink {
            SinkPlan::Build { keys, payload, shape } => self.build_row(keys, payload, shape),
            SinkPlan::Groups { keys, arguments, groups } => self.group_row(keys, arguments, groups),
            SinkPlan::Rows { columns, outputs, .. } => self.collect_row(columns, outputs),
        }
    }

    /// Leaves out a row that comes too late, before anything else of it is read.
    fn leave_out(&mut self, threshold: &Threshold) -> Result<()> {
        self.load_all(registers_of([&threshold.first]))?;
        let key = self.w.expr(&threshold.first)?;
        let number = match key.kind {
            Kind::F64 => format!("total({})", key.text),
            _ => key.as_kind(Kind::I64),
        };
        let rank = match threshold.direction {
            Direction::Ascending => format!("ordered({number})"),
            Direction::Descending => format!("~ordered({number})"),
        };
        let null = if threshold.nulls == Nulls::First { "0ull" } else { "~0ull" };
        let rank = match &key.valid {
            Valid::Always => rank,
            Valid::Never => null.into(),
            Valid::If(valid) => format!("({valid} ? {rank} : {null})"),
        };
        let last = self.w.args.named("u64", "threshold", Word::Threshold);
        self.w.line(format!("if ({rank} > {last}) continue;"));
        Ok(())
    }

    fn operands(&mut self, all: &[Bound]) -> Result<Vec<Operand>> {
        all.iter().map(|bound| self.w.expr(bound)).collect()
    }

    fn collect_row(&mut self, columns: &[Bound], outputs: &[Output]) -> Result<()> {
        let values = self.operands(columns)?;
        let capacity = self.w.args.named("u64", "capacity", Word::Capacity);
        self.w.line("const u64 at = atomicAdd(&A.status->rows, (u64)1);");
        self.w.open(format!("if (at < {capacity}) {{"));
        for (number, (value, output)) in values.iter().zip(outputs).enumerate() {
            let ty = type_of(output.kind);
            let to = self.w.args.named(&format!("{ty}*"), &format!("o{number}"), Word::Output(number));
            let text = value.as_kind(output.kind);
            self.w.line(format!("{to}[at] = {text};"));
            if output.domain.nullable {
                let to = self.w.args.named("u8*", &format!("ov{number}"), Word::OutputValid(number));
                self.w.line(format!("{to}[at] = {};", value.is_valid()));
            }
        }
        self.w.close();
        Ok(())
    }

    fn built_word(&mut self, ty: &str, name: &str, word: TableWord) -> String {
        self.w.args.named(ty, &format!("built_{name}"), Word::Built(word))
    }

    fn build_row(&mut self, keys: &[Bound], payload: &[Option<Bound>], shape: &TableShape) -> Result<()> {
        let parts = self.operands(keys)?;
        let values = payload.iter().map(|bound| bound.as_ref().map(|bound| self.w.expr(bound)).transpose());
        let values = values.collect::<Result<Vec<_>>>()?;
        let domains: Vec<Interval> = keys.iter().map(|key| key.domain.interval).collect();
        let digits: Vec<KeyDigit> = shape.layout.digits_of_parts().collect();
        let (key, is_key) = self.key(&parts, &domains, &digits);
        if is_key != "true" {
            self.w.line(format!("if (!({is_key})) {{ mark(&A.status->keyless); continue; }}"));
        }
        let place = match shape.kind {
            TableKind::Direct => key.clone(),
            TableKind::Hashed => {
                let slots = self.built_word("u64*", "keys", TableWord::Keys);
                let mask = self.built_word("u64", "mask", TableWord::Mask);
                let place = self.w.variable();
                self.w.line(format!("const u64 {place} = place({slots}, {mask}, {key});"));
                self.w.line(format!("if ({place} == NO_KEY) {{ mark(&A.status->full); continue; }}"));
                place
            }
        };
        let is_direct = shape.kind == TableKind::Direct;
        if is_direct {
            let bits = self.built_word("u32*", "bits", TableWord::Bits);
            match shape.rows {
                Rows::Unique => {
                    self.w.line(format!("const u32 bit_of = 1u << ({key} & 31);"));
                    self.w.line(format!(
                        "if (atomicOr({bits} + ({key} >> 5), bit_of) & bit_of) mark(&A.status->repeated);"
                    ));
                }
                _ => self
                    .w
                    .line(format!("if (!bit({bits}, {key})) atomicOr({bits} + ({key} >> 5), 1u << ({key} & 31));")),
            }
        }
        let row = match shape.rows {
            Rows::Chains => {
                let capacity = self.built_word("u64", "capacity", TableWord::Capacity);
                let head = self.built_word("u32*", "head", TableWord::Head);
                let next = self.built_word("u32*", "next", TableWord::Next);
                self.w.line("const u64 row = atomicAdd(&A.status->rows, (u64)1);");
                self.w.line(format!("if (row >= {capacity}) {{ mark(&A.status->full); continue; }}"));
                self.w.line(format!("{next}[row] = atomicExch({head} + {place}, (u32)row + 1);"));
                "row".to_string()
            }
            Rows::Unique if !is_direct => {
                // A slot that was another row's already.
                let head = self.built_word("u32*", "head", TableWord::Head);
                self.w.line(format!("if (atomicExch({head} + {place}, 1u)) mark(&A.status->repeated);"));
                self.w.line("built++;");
                place
            }
            Rows::Unique | Rows::Keys => {
                self.w.line("built++;");
                place
            }
        };
        if let [key] = keys
            && key.domain.ty != Type::Bool
            && let [part] = parts.as_slice()
        {
            self.keep_ends(End::Key, part);
        }
        for (number, value) in values.iter().enumerate() {
            let (Some(value), Some(element)) = (value, &shape.payload[number]) else { continue };
            if matches!(element.kind, Kind::I32 | Kind::I64) {
                self.keep_ends(End::Payload(number), value);
            }
            let to =
                self.built_word(&format!("{}*", element.stored), &format!("p{number}"), TableWord::Payload(number));
            let text = match element.least {
                None => value.as_kind(element.kind),
                Some(least) => {
                    let least = self.w.args.value("i64", least as u64);
                    format!("({})digit({}, {least})", element.stored, value.text)
                }
            };
            self.w.line(format!("{to}[{row}] = {text};"));
            if element.nullable {
                let to = self.built_word("u8*", &format!("v{number}"), TableWord::PayloadValid(number));
                self.w.line(format!("{to}[{row}] = {};", value.is_valid()));
            }
        }
        Ok(())
    }

    /// Keeps the least and the greatest of the values that come.
    fn keep_ends(&mut self, end: End, value: &Operand) {
        let number = self.ends.len();
        self.ends.push(end);
        let test = match &value.valid {
            Valid::Always => String::new(),
            Valid::Never => return,
            Valid::If(valid) => format!("if ({valid}) "),
        };
        self.w.line(format!("{test}keep_greatest(low{number}, least({}));", value.text));
        self.w.line(format!("{test}keep_greatest(high{number}, greatest({}));", value.text));
    }

    fn group_row(&mut self, keys: &[Bound], arguments: &[Option<Bound>], groups: &Groups) -> Result<()> {
        let parts = self.operands(keys)?;
        let values = arguments.iter().map(|bound| bound.as_ref().map(|bound| self.w.expr(bound)).transpose());
        let values = values.collect::<Result<Vec<_>>>()?;
        let place = match &groups.layout {
            None => None,
            Some(layout) => {
                let domains: Vec<Interval> = keys.iter().map(|key| key.domain.interval).collect();
                let digits: Vec<KeyDigit> = layout.digits_of_parts().collect();
                let (key, _) = self.key(&parts, &domains, &digits);
                self.group_place(&key, groups);
                Some(())
            }
        };
        let counts_rows = groups.slots.iter().any(|slot| slot.kind == SlotKind::Count && slot.word == 0);
        let in_registers = groups.flush_units.is_some();
        let state = |word: usize| match (&place, word) {
            (None, _) => format!("g{word}"),
            (Some(_), _) if in_registers => format!("g{word}[group]"),
            (Some(_), 0) => "state".into(),
            (Some(_), _) => format!("state + {word} * A.groups_count"),
        };
        let is_one = place.is_none();
        // Registers have no addresses: every group takes every row, as nothing if it is not its own.
        let is_own = |valid: &Valid| if matches!(valid, Valid::If(_)) { "both" } else { "is" };
        let marked = |to: &str, valid: &Valid| match is_one {
            _ if in_registers => format!("{to} |= {};", is_own(valid)),
            true => format!("{to} = 1;"),
            false => format!("mark({to});"),
        };
        let added = |to: &str, by: &str, valid: &Valid| match is_one {
            _ if in_registers => format!("{to} += {} ? {by} : 0;", is_own(valid)),
            true => format!("{to} += {by};"),
            false if groups.copies > 0 => format!("add_near({to}, {by});"),
            false => format!("add({to}, {by});"),
        };
        let rows = if counts_rows { added(&state(0), "1", &Valid::Always) } else { marked(&state(0), &Valid::Always) };
        self.w.line(rows);
        for (slot, value) in groups.slots.iter().zip(&values) {
            if slot.kind == SlotKind::Count && slot.word == 0 || slot.is_repeated {
                continue;
            }
            let Some(value) = value else { continue };
            match &value.valid {
                Valid::Never => continue,
                Valid::Always => {}
                Valid::If(valid) if in_registers => {
                    self.w.open("{");
                    self.w.line(format!("const bool both = is && {valid};"));
                }
                Valid::If(valid) => self.w.open(format!("if ({valid}) {{")),
            }
            let word = state(slot.word);
            match slot.kind {
                SlotKind::Count => self.w.line(added(&word, "1", &value.valid)),
                SlotKind::WideSum if is_one && !in_registers => {
                    self.w.line(format!("s{} += (u128)(i128){};", slot.word, value.text));
                }
                SlotKind::WideSum if !in_registers => {
                    let high = state(slot.word + 1);
                    let add = if groups.copies > 0 { "add_wide_near" } else { "add_wide" };
                    self.w.line(format!("{add}({word}, {high}, (u128)(i128){});", value.text));
                }
                SlotKind::Sum | SlotKind::WideSum => {
                    self.w.line(added(&word, &format!("(u64)(i64){}", value.text), &value.valid));
                }
                SlotKind::Least | SlotKind::Greatest => {
                    let number = match value.kind {
                        Kind::F64 => format!("total({})", value.text),
                        _ => value.as_kind(Kind::I64),
                    };
                    let function = if slot.kind == SlotKind::Least { "least" } else { "greatest" };
                    let number = format!("{function}({number})");
                    self.w.line(match is_one {
                        _ if in_registers => {
                            format!("keep_greatest({word}, {} ? {number} : 0);", is_own(&value.valid))
                        }
                        true => format!("keep_greatest({word}, {number});"),
                        false => format!("raise({word}, {number});"),
                    });
                }
            }
            if slot.seen > 0 {
                self.w.line(marked(&state(slot.seen), &value.valid));
            }
            if matches!(value.valid, Valid::If(_)) {
                self.w.close();
            }
        }
        if in_registers {
            self.w.close();
        }
        Ok(())
    }

    /// Has `state` be that of a key's group.
    fn group_place(&mut self, key: &str, groups: &Groups) {
        self.w.args.named("u64", "groups_count", Word::GroupCount);
        if groups.flush_units.is_some() {
            let count = groups.layout.as_ref().map_or(1, |layout| layout.count);
            self.w.line("#pragma unroll");
            self.w.open(format!("for (u32 group = 0; group < {count}; group++) {{"));
            return self.w.line(format!("const bool is = group == (u32){key};"));
        }
        if groups.copies > 0 {
            return self.w.line(format!("u64* const state = mine + {key};"));
        }
        let all = self.w.args.named("u64*", "groups", Word::Groups);
        if !groups.is_hashed {
            return self.w.line(format!("u64* const state = {all} + {key};"));
        }
        let keys = self.w.args.named("u64*", "group_keys", Word::GroupKeys);
        let mask = self.w.args.named("u64", "group_mask", Word::GroupMask);
        self.w.line(format!("const u64 group = place({keys}, {mask}, {key});"));
        self.w.line("if (group == NO_KEY) { mark(&A.status->full); continue; }");
        self.w.line(format!("u64* const state = {all} + group;"));
    }

    /// What is after the rows.
    pub fn end_sink(&mut self, sink: &SinkPlan) {
        match sink {
            SinkPlan::Build { shape, .. } if shape.rows != Rows::Chains => {
                self.w.line("built = warp_sum(built);");
                self.w.line("if (lane == 0 && built) add(&A.status->rows, built);");
            }
            SinkPlan::Groups { groups, .. } if groups.layout.is_none() => self.end_one(groups),
            SinkPlan::Groups { groups, .. } if groups.flush_units.is_some() => self.end_registers(groups),
            SinkPlan::Groups { groups, .. } if groups.copies > 0 => self.end_shared(groups),
            _ => {}
        }
    }

    /// Puts the only group together over a warp.
    fn end_one(&mut self, groups: &Groups) {
        let all = self.w.args.named("u64*", "groups", Word::Groups);
        for (word, how) in how_words(groups).into_iter().enumerate() {
            match how {
                How::Add => {
                    self.w.line(format!("g{word} = warp_sum(g{word});"));
                    self.w.line(format!("if (lane == 0 && g{word}) add({all} + {word}, g{word});"));
                }
                How::AddWide => {
                    self.w.line(format!("s{word} = warp_sum_wide(s{word});"));
                    self.w.line(format!(
                        "if (lane == 0 && s{word}) add_wide({all} + {word}, {all} + {word} + 1, s{word});"
                    ));
                }
                How::High => {}
                How::Raise => {
                    self.w.line(format!("g{word} = warp_greatest(g{word});"));
                    self.w.line(format!("if (lane == 0 && g{word}) raise({all} + {word}, g{word});"));
                }
            }
        }
    }

    /// Puts groups in registers together over a warp, and forgets them.
    fn end_registers(&mut self, groups: &Groups) {
        let all = self.w.args.named("u64*", "groups", Word::Groups);
        let count = groups.layout.as_ref().map_or(1, |layout| layout.count);
        self.w.line("#pragma unroll");
        self.w.open(format!("for (u32 group = 0; group < {count}; group++) {{"));
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

    /// Adds the groups of a block to those of all.
    fn end_shared(&mut self, groups: &Groups) {
        let all = self.w.args.named("u64*", "groups", Word::Groups);
        self.w.line("__syncthreads();");
        self.w.open("for (u64 n = threadIdx.x; n < A.groups_count * A.copies; n += blockDim.x) {");
        self.w.line("const u64 group = n % A.groups_count;");
        self.w.line("u64* const from = G + n / A.groups_count * state_words + group;");
        self.w.line("if (!*from) continue;");
        self.w.line(format!("u64* const to = {all} + group;"));
        for (word, how) in how_words(groups).into_iter().enumerate() {
            let at = format!("{word} * A.groups_count");
            match how {
                How::Add => self.w.line(format!("if (from[{at}]) add(to + {at}, from[{at}]);")),
                How::AddWide => self.w.line(format!(
                    "add_wide(to + {at}, to + {0} * A.groups_count, (u128)made(from[{at}], from[{0} * A.groups_count]));",
                    word + 1
                )),
                How::High => {}
                How::Raise => self.w.line(format!("raise(to + {at}, from[{at}]);")),
            }
        }
        self.w.close();
    }
}

/// How a word of one state is put together with that of another.
#[derive(Clone, Copy)]
enum How {
    Add,
    AddWide,
    /// The second word of a wide sum.
    High,
    Raise,
}

fn how_words(groups: &Groups) -> Vec<How> {
    let counts_rows = groups.slots.iter().any(|slot| slot.kind == SlotKind::Count && slot.word == 0);
    let mut how = vec![How::Raise; groups.words];
    how[0] = if counts_rows { How::Add } else { How::Raise };
    for slot in groups.slots.iter().filter(|slot| slot.word > 0) {
        match slot.kind {
            SlotKind::Count | SlotKind::Sum => how[slot.word] = How::Add,
            SlotKind::WideSum => (how[slot.word], how[slot.word + 1]) = (How::AddWide, How::High),
            SlotKind::Least | SlotKind::Greatest => how[slot.word] = How::Raise,
        }
    }
    how
}

fn rows_plan(columns: Vec<Bound>) -> Result<SinkPlan> {
    let outputs = columns.iter().map(|bound| Output { domain: bound.domain.clone(), kind: Kind::of(&bound.domain) });
    let outputs = outputs.collect();
    Ok(SinkPlan::Rows { columns, outputs, threshold: None })
}
