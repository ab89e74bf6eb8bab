//! Dense rows: few groups and many rows, so that the number of instructions per row dominates.
//!
//! If filters let many rows of a vector through, no code searches for live rows. All 32 rows of a
//! lane are decoded by one unrolled stretch of code each, in which every shift is a constant. Rows
//! that are not live go to no group.
//!
//! ```text
//! a row        u64 b0 = charge | quantity << 42 ...   its inputs, several fields to a word
//!              d0[group] += b0 ...                    in shared memory, words of each thread alone
//! a window     of so many vectors that no field can overflow: unpacked, summed up over the warp,
//!              and added to the states, as single rows would be
//! ```
//! No thread waits for another, and no two threads of a warp access the same bank. Rows that are
//! not live go to an extra group after the last, which is never read. (In registers, each row would
//! have to be compared with every group: with six groups this was half of all instructions.)
//!
//! A field holds the distance of a value from its least possible value, so it is never negative.
//! The first field counts rows. The least value times this count is added back when the window
//! ends.
//!
//! A vector is processed row by row if its columns have other widths than most, or if few of its
//! rows are left. This is decided for each vector: constants that let nearly all rows through, and
//! those that do not, share one kernel.

use onehop_pipeline::bind::Bound;
use onehop_pipeline::cpu::{KeyDigit, Kind};
use onehop_pipeline::{Interval, VECTOR_ROWS};

use super::expr::{Operand, Valid};
use super::groups::{Groups, SlotKind};
use super::pipeline::Builder;
use super::type_of;
use crate::fused::Result;
use crate::fused::part::form::Layout;
use crate::fused::plan::{ActKind, Register, registers_of};
use crate::fused::table::Rows;

/// Maximum number of registers for the packed words of a vector.
const MOST_WORDS: u32 = 96;
/// Maximum bytes of shared memory for the words of a block's threads: with more, few blocks would
/// fit.
const MOST_BYTES: u64 = 24 << 10;
/// Maximum number of threads of a block: each of them needs many registers.
const DENSE_THREADS: u32 = 128;
/// Minimum fraction of the rows that must be left, as a guess from the shape of filters. With a
/// lower one, there is hardly a constant for which rows are dense.
const LEAST_PART: f64 = 0.15;
/// Minimum number of rows that must be left in some lane, which all others of its warp would wait
/// for. Searching for this many takes about as long as processing all.
const DENSE_ROWS: u32 = 8;
/// Maximum number of vectors of a window.
const WINDOW: u32 = 16;
/// Rows of a lane in a vector.
const LANE_ROWS: u128 = (VECTOR_ROWS / 32) as u128;
/// Bits of a word that has fields, and maximum bits of a field: its sum over the lanes of a warp
/// must fit a word.
const WORD_BITS: u32 = 64;
const FIELD_BITS: u32 = WORD_BITS - 5;

/// Summation of dense rows.
#[derive(Clone, Debug)]
pub(in crate::fused) struct Dense {
    /// Vectors of a window.
    window: u32,
    /// Threads of a block.
    pub threads: u32,
    fields: Vec<Field>,
    words: Vec<Packed>,
}

/// A summand.
#[derive(Clone, Debug)]
struct Field {
    /// The slot; `None` for the count of rows.
    slot: Option<usize>,
    /// The least value.
    least: i64,
    word: usize,
    shift: u32,
    /// Bits of its sum over a window.
    bits: u32,
}

/// A word of fields.
#[derive(Clone, Copy, Debug, Default)]
struct Packed {
    bits: u32,
}

impl Packed {
    fn ty(self) -> &'static str {
        if self.bits > 32 { "u64" } else { "u32" }
    }

    /// Returns the number of registers that it takes.
    fn registers(self) -> u32 {
        self.bits.div_ceil(32)
    }
}

/// Returns the number of bits of the sum of `values` values of up to `most`.
fn bits_of_sum(most: u128, values: u128) -> u32 {
    most.checked_mul(values).map_or(u128::BITS, |sum| u128::BITS - sum.leading_zeros())
}

impl Dense {
    /// Returns the words of 64 bits that each group takes, for all threads of a block.
    fn group_words(&self) -> u64 {
        let each: u32 = self.words.iter().map(|word| word.registers()).sum();
        (u64::from(each) * u64::from(self.threads)).div_ceil(2)
    }

    /// Returns the words of shared memory in addition to the states of `groups` groups.
    pub fn shared_words(&self, groups: u64) -> u64 {
        self.group_words() * (groups + 1)
    }

    /// Packs fields of values of up to `most` into words: the widest first, each into the first
    /// word that has room. Chooses the window with the fewest registers. Returns `None` if a value
    /// fits no word.
    fn pack(fields: &[(Option<usize>, i64, u128)], threads: u32) -> Option<Self> {
        let mut best: Option<(u32, Self)> = None;
        let mut window = WINDOW;
        while window > 0 {
            if let Some(dense) = Self::pack_window(fields, window, threads) {
                let registers = dense.words.iter().map(|word| word.registers()).sum();
                if best.as_ref().is_none_or(|(least, _)| registers < *least) {
                    best = Some((registers, dense));
                }
            }
            window /= 2;
        }
        best.map(|(_, dense)| dense)
    }

    fn pack_window(fields: &[(Option<usize>, i64, u128)], window: u32, threads: u32) -> Option<Self> {
        let bits = |most: u128| bits_of_sum(most, LANE_ROWS * u128::from(window)).max(1);
        let mut order: Vec<usize> = (0..fields.len()).collect();
        order.sort_by_key(|field| std::cmp::Reverse(bits(fields[*field].2)));
        let mut words: Vec<Packed> = Vec::new();
        let mut packed: Vec<Option<Field>> = vec![None; fields.len()];
        for number in order {
            let (slot, least, most) = fields[number];
            let bits = bits(most);
            if bits > FIELD_BITS {
                return None;
            }
            let word = words.iter().position(|word| word.bits + bits <= WORD_BITS).unwrap_or_else(|| {
                words.push(Packed::default());
                words.len() - 1
            });
            packed[number] = Some(Field { slot, least, word, shift: words[word].bits, bits });
            words[word].bits += bits;
        }
        // Wide words come first, so that all are aligned.
        let mut places: Vec<usize> = (0..words.len()).collect();
        places.sort_by_key(|word| std::cmp::Reverse(words[*word].registers()));
        let words_of = places.iter().map(|word| words[*word]).collect();
        let place = |word: usize| places.iter().position(|place| *place == word).unwrap_or(word);
        let fields = packed.into_iter().flatten().map(|field| Field { word: place(field.word), ..field }).collect();
        Some(Self { window, threads, fields, words: words_of })
    }
}

impl Builder<'_> {
    /// Returns the summation for these groups, if rows are dense.
    pub fn dense(&self, keys: &[Bound], arguments: &[Option<Bound>], groups: &Groups) -> Option<Dense> {
        let plan = self.input.plan;
        let screens = self.screens();
        let is_filter = |(act, _): &(usize, usize)| matches!(plan.acts[*act].kind, ActKind::Filter(_));
        let passes: f64 = plan.acts.iter().map(|act| act.passes).product();
        let has_chains = self.input.tables.iter().any(|table| table.rows == Rows::Chains);
        if screens.len() < plan.acts.len() || !screens.iter().all(is_filter) || passes < LEAST_PART || has_chains {
            return None;
        }
        let exprs = || keys.iter().chain(arguments.iter().flatten());
        if self.input.splits_groups || exprs().any(|bound| bound.domain.nullable || bound.is_fallible) {
            return None;
        }
        let columns = self.dense_columns(&registers_of(exprs()))?;
        let words: u32 = columns.iter().filter_map(|(_, form)| Layout::of(*form).width_of_plane()).sum();
        if words > MOST_WORDS {
            return None;
        }
        let mut fields = vec![(None, 0, 1)];
        for (number, slot) in groups.slots.iter().enumerate().filter(|(_, slot)| !slot.is_repeated) {
            let Interval { min, max } = slot.domain.interval;
            match slot.kind {
                SlotKind::Count if slot.word == 0 => {}
                SlotKind::Sum | SlotKind::WideSum if !slot.domain.interval.is_empty() => {
                    let least = i64::try_from(min.min(0)).ok()?;
                    fields.push((Some(number), least, max.checked_sub(i128::from(least))?.try_into().ok()?));
                }
                _ => return None,
            }
        }
        let dense = Dense::pack(&fields, self.input.threads[0].min(DENSE_THREADS))?;
        (dense.shared_words(groups.count()) <= MOST_BYTES / 8).then_some(dense)
    }

    /// Returns the columns that registers are computed from, each with its most frequent form.
    /// Returns `None` if one of them is not packed in a single plane.
    fn dense_columns(&self, registers: &[usize]) -> Option<Vec<(usize, u32)>> {
        let plan = self.input.plan;
        let mut columns: Vec<(usize, u32)> = Vec::new();
        for register in registers {
            match &plan.registers[*register] {
                Register::Column(column) => {
                    let form = *(self.input.forms)(*column).first()?;
                    let is_packed = Layout::of(form).width_of_plane().is_some();
                    if !is_packed || plan.domains[*register].nullable || Kind::of(&plan.domains[*register]) > Kind::I64
                    {
                        return None;
                    }
                    columns.push((*register, form));
                }
                Register::Payload { .. } => return None,
                Register::Map(bound) if bound.is_fallible => return None,
                Register::Map(bound) => columns.extend(self.dense_columns(&registers_of([bound]))?),
            }
        }
        columns.sort_unstable();
        columns.dedup();
        Some(columns)
    }

    /// Generates the code before the rows. The words with number n of group g are at `dn[g *
    /// THREADS]`.
    pub fn begin_dense(&mut self, dense: &Dense, count: u64) {
        self.w.line("u64* const sums = G + state_words * A.copies;");
        let each = (count + 1) * u64::from(dense.threads);
        let mut before = 0;
        for (number, word) in dense.words.iter().enumerate() {
            let ty = word.ty();
            self.w.line(format!("{ty}* const d{number} = ({ty}*)((u32*)sums + {before}) + threadIdx.x;"));
            self.w.line(format!("for (u32 g = 0; g <= {count}; g++) d{number}[g * THREADS] = 0;"));
            before += each * u64::from(word.registers());
        }
        self.w.line("u32 held = 0;");
    }

    /// Generates the processing of a vector, if its columns have the most frequent forms. The
    /// generated code then continues with the next vector.
    pub fn dense_vector(
        &mut self,
        dense: &Dense,
        groups: &Groups,
        keys: &[Bound],
        arguments: &[Option<Bound>],
    ) -> Result<()> {
        let registers = registers_of(keys.iter().chain(arguments.iter().flatten()));
        let columns = self.dense_columns(&registers).unwrap_or_default();
        let mut tests: Vec<String> =
            columns.iter().map(|(register, form)| format!("p{register}.form == {form}")).collect();
        tests.push(format!("__any_sync(ALL_LANES, __popc(live) >= {DENSE_ROWS})"));
        self.w.open(format!("if ({}) {{", tests.join(" && ")));
        for (register, form) in &columns {
            let width = Layout::of(*form).width_of_plane().unwrap_or(0);
            self.w.line(format!("Column<{width}> w{register};"));
            self.w.line(format!("w{register}.load_now(words<{width}>(p{register}.low, vector, lane));"));
        }
        // Terms that are equal for all rows are combined before them.
        let digits: Vec<KeyDigit> = groups.layout.iter().flat_map(|layout| layout.digits_of_parts()).collect();
        for (register, form) in &columns {
            let ty = type_of(Kind::of(&self.input.plan.domains[*register]));
            match Layout::of(*form) {
                Layout::Packed(_) => {
                    self.w.line(format!("const {ty} base{register} = stored<{ty}>(p{register}, 0);"));
                }
                Layout::Steps(_) => {
                    self.w.line(format!("const i64 base{register} = p{register}.base;"));
                    self.w.line(format!("const u64 step{register} = p{register}.bias;"));
                }
                _ => {}
            }
        }
        let mut first_group: Vec<String> = Vec::new();
        let mut key: Vec<String> = Vec::new();
        let layout_of =
            |register: usize| columns.iter().find(|(of, _)| *of == register).map(|(_, form)| Layout::of(*form));
        for (bound, digit) in keys.iter().zip(&digits) {
            let least = self.w.args.value("i64", if digit.interval.is_empty() { 0 } else { digit.interval.min as u64 });
            let stride = digit.stride as u32;
            let of_base = |register: usize| format!("((u32)base{register} - (u32){least}) * {stride}u");
            let register = self.input.plan.column_register(bound);
            match register.and_then(|register| Some((register, layout_of(register)?))) {
                Some((register, Layout::Packed(_))) => {
                    first_group.push(of_base(register));
                    key.push(format!("q{register} * {stride}u"));
                }
                Some((register, Layout::Steps(_))) => {
                    first_group.push(of_base(register));
                    key.push(format!("q{register} * ((u32)step{register} * {stride}u)"));
                }
                _ => {
                    first_group.push(format!("0u - (u32){least} * {stride}u"));
                    key.push(String::new());
                }
            }
        }
        if !first_group.is_empty() {
            self.w.line(format!("const u32 first_group = {};", first_group.join(" + ")));
        }
        self.w.open("each_row<0>([&](auto row) {");
        self.w.line("constexpr int i = decltype(row)::number;");
        let before = self.w.registers.clone();
        for (register, form) in &columns {
            let kind = Kind::of(&self.input.plan.domains[*register]);
            let ty = type_of(kind);
            self.w.line(format!("const u32 q{register} = w{register}.template get<i>();"));
            let value = match Layout::of(*form) {
                Layout::Packed(_) => format!("base{register} + ({ty})q{register}"),
                Layout::Steps(_) => format!("stepped<{ty}>(base{register}, step{register}, q{register})"),
                Layout::Codes(_) => format!("({ty})load<i32>(p{register}.table, q{register})"),
                _ => format!("({ty})load<i64>(p{register}.table, q{register})"),
            };
            self.w.line(format!("const {ty} r{register} = {value};"));
            self.w.registers[*register] = Some(Operand { text: format!("r{register}"), kind, valid: Valid::Always });
        }
        self.load_all(registers)?;
        for ((bound, digit), key) in keys.iter().zip(&digits).zip(&mut key) {
            if key.is_empty() {
                let part = self.w.expr(bound)?;
                *key = format!("(u32){} * {}u", part.text, digit.stride as u32);
            }
        }
        key.insert(0, if first_group.is_empty() { "0u".into() } else { "first_group".to_string() });
        self.w.line(format!("const u32 at = (live & 1u << i ? {} : {}u) * THREADS;", key.join(" + "), groups.count()));
        let mut terms: Vec<Vec<String>> = vec![Vec::new(); dense.words.len()];
        for field in &dense.fields {
            let ty = dense.words[field.word].ty();
            let value = match field.slot.and_then(|slot| arguments[slot].as_ref()) {
                None => "1".to_string(),
                Some(argument) => {
                    let value = self.w.expr(argument)?;
                    if field.least == 0 {
                        value.text
                    } else {
                        let least = self.w.args.value("i64", field.least as u64);
                        format!("((u64)(i64){} - (u64){least})", value.text)
                    }
                }
            };
            let shift = if field.shift == 0 { String::new() } else { format!(" << {}", field.shift) };
            terms[field.word].push(format!("(({ty}){value}{shift})"));
        }
        for (number, (word, terms)) in dense.words.iter().zip(&terms).enumerate() {
            self.w.line(format!("const {} b{number} = {};", word.ty(), terms.join(" | ")));
            self.w.line(format!("d{number}[at] += b{number};"));
        }
        self.w.registers = before;
        self.w.depth -= 1;
        self.w.line("});");
        self.w.open(format!("if (++held == {}) {{", dense.window));
        self.end_window(dense, groups);
        self.w.close();
        self.w.line("continue;");
        self.w.close();
        Ok(())
    }

    /// Adds the held sums to the groups in shared memory, and clears them.
    pub fn end_window(&mut self, dense: &Dense, groups: &Groups) {
        self.w.line("held = 0;");
        self.w.open(format!("for (u32 g = 0; g < {}; g++) {{", groups.count()));
        self.w.line("u64* const state = mine + g;");
        for (number, field) in dense.fields.iter().enumerate() {
            let mask = (1u64 << field.bits) - 1;
            let of = format!("(u64)d{}[g * THREADS] >> {} & {mask:#x}ull", field.word, field.shift);
            self.w.line(format!("const u64 f{number} = warp_total<{}>({of});", field.bits));
        }
        self.w.open("if (lane == 0 && f0) {");
        self.w.line(if groups.counts_rows() { "add_near(state, f0);" } else { "mark_near(state);" });
        for (number, field) in dense.fields.iter().enumerate() {
            let Some(slot) = field.slot.map(|slot| &groups.slots[slot]) else { continue };
            let least = match field.least {
                0 => String::new(),
                least => {
                    let least = self.w.args.value("i64", least as u64);
                    format!(" + (u128)(i128){least} * f0")
                }
            };
            let word = |word: usize| format!("state + {word} * A.groups_count");
            let sum = format!("(u128)f{number}{least}");
            self.w.line(match slot.kind {
                SlotKind::WideSum => format!("add_wide_near({}, {}, {sum});", word(slot.word), word(slot.word + 1)),
                _ => format!("add_near({}, (u64)({sum}));", word(slot.word)),
            });
        }
        self.w.close();
        for number in 0..dense.words.len() {
            self.w.line(format!("d{number}[g * THREADS] = 0;"));
        }
        self.w.close();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn fields_of_tpch_q1_take_five_registers() {
        let most: [u128; 6] = [1, 5000, 10_495_000, 1_049_500_000, 113_346_000_000, 10];
        let fields: Vec<_> = most.iter().map(|most| (None, 0, *most)).collect();
        let dense = Dense::pack(&fields, 128).unwrap();
        assert_eq!(dense.words.iter().map(|word| word.registers()).sum::<u32>(), 5);
        assert!(dense.window >= 4, "{dense:?}");
    }

    #[test]
    fn what_no_word_holds_is_not_dense() {
        assert!(Dense::pack(&[(None, 0, 1), (None, 0, u128::from(u64::MAX))], 128).is_none());
        assert!(Dense::pack(&[(None, 0, 1), (None, 0, u128::MAX)], 128).is_none());
    }

    proptest! {
        /// Sums over a window fit their fields, and fields fit their words without overlap.
        #[test]
        fn fields_hold_what_a_window_comes_to(most in proptest::collection::vec(0u64..1 << 58, 1..9)) {
            let fields: Vec<_> = most.iter().map(|most| (None, 0, u128::from(*most))).collect();
            let Some(dense) = Dense::pack(&fields, 128) else { return Ok(()) };
            let rows = LANE_ROWS * u128::from(dense.window);
            let mut taken = vec![0u128; dense.words.len()];
            for (field, most) in dense.fields.iter().zip(&most) {
                prop_assert!(field.shift + field.bits <= WORD_BITS && field.bits <= FIELD_BITS);
                prop_assert!(u128::from(*most) * rows < 1 << field.bits);
                let mask = ((1u128 << field.bits) - 1) << field.shift;
                prop_assert_eq!(taken[field.word] & mask, 0);
                taken[field.word] |= mask;
            }
        }
    }
}
