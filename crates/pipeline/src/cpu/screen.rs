//! Screens: filters and probes evaluated on encoded data, one bit per row, before any value is
//! decoded.
//!
//! ```text
//! step  ── Screen: the passing values ──────┐
//! block ── offsets, or codes of a table ────┴─► Answer: passing offsets or codes ─► vector masks
//! ```
//! A step that reads a single column of the source can be a screen. The passing values are a range
//! or a bitmap. For codes, they are translated once per table of codes. Therefore a join on a
//! dictionary column costs no probe, and its passing codes often form a range again (the days of a
//! year). A range is compared in registers while a vector is unpacked. A block that lies entirely
//! inside or outside the range is not read at all.

use std::sync::{Arc, Mutex, PoisonError};

use onehop_segment::CodeTable;
use onehop_segment::packed::{LANES, Mask};

use super::kernels::{self, OffsetBits};
use super::stage::{Register, Stage};
use super::table::JoinTable;
use crate::bind::{Bound, BoundKind, LookupTable, LookupValues};
use crate::block::{Block, Encoded, Rows, Scratch};
use crate::ir::JoinKind;
use crate::{Interval, Result, Type, VECTOR_ROWS};

/// Largest span of a list of values that becomes a bitmap.
const MOST_BITS: u128 = 1 << 20;

/// Prefetch distance in vectors. Screens read vectors of several columns in turn, which hardware
/// prefetchers do not predict across pages. (TPC-H Q6 at scale factor 10: 28.5 to 25 ms.)
const AHEAD: usize = 2;

/// Number of rows of a vector below which each row is looked up individually.
const FEW: usize = 512;

/// Rows of a vector that a screen evaluates.
#[derive(Clone, Copy, Debug)]
pub(super) struct Among<'a> {
    pub vector: usize,
    /// Number of rows of the vector.
    pub n: usize,
    /// The remaining rows, `kept` in all.
    pub mask: &'a Mask,
    pub kept: usize,
}

/// A step evaluated as a screen.
#[derive(Debug)]
pub(super) struct Screen {
    /// The register, which is a column of the source.
    pub register: usize,
    passing: Passing,
    /// True if the other values pass instead.
    is_negated: bool,
    /// True if NULL rows pass.
    null_passes: bool,
    /// Passing codes of each table of codes met so far.
    of_codes: Mutex<Vec<(CodeTable, Passing)>>,
}

/// Passing values.
#[derive(Clone, Debug)]
enum Passing {
    Run(Interval),
    /// Value `min + i` passes if bit `i` of `count` is set.
    Bits {
        min: i128,
        count: u32,
        bits: Arc<[u32]>,
    },
    /// A sorted list of passing values.
    List(Arc<[i128]>),
}

/// Passing rows of a block.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    kind: AnswerKind,
    has_nulls: bool,
}

#[derive(Clone, Debug)]
enum AnswerKind {
    All,
    Nothing,
    /// Offsets or codes in a range pass.
    Within {
        min: u32,
        max: u32,
    },
    /// Offset or code `i` passes if bit `i + delta` of `count` is set.
    Bits {
        delta: u32,
        count: u32,
        bits: Arc<[u32]>,
    },
    /// The values must be decoded.
    Decoded,
}

impl Screen {
    /// Creates the screen of a filter. `is_column` returns true for registers that are columns of
    /// the source.
    pub fn of_filter(condition: &Bound, is_column: impl Fn(usize) -> bool) -> Option<Self> {
        let (inner, is_negated) = match &condition.kind {
            BoundKind::Not(inner) => (&**inner, true),
            _ => (condition, false),
        };
        let (of, passing) = match &inner.kind {
            BoundKind::Within { inner, interval } => (&**inner, Passing::Run(*interval)),
            BoundKind::In { inner, list } => (&**inner, Passing::of_list(list)),
            BoundKind::Register(_) if inner.domain.ty == Type::Bool => (inner, Passing::Run(Interval::of(1))),
            BoundKind::Lookup { code, table } => {
                // The result for NULL follows those of the entries. A NULL result passes neither
                // plain nor negated.
                let (passes, null_passes) = looked_up(table, is_negated)?;
                let screen = Self::of_column(code, Passing::of_codes(&passes), is_column)?;
                return Some(Self { null_passes, ..screen });
            }
            _ => return None,
        };
        Some(Self { is_negated, ..Self::of_column(of, passing, is_column)? })
    }

    /// Creates the screen of a probe that only tests if the key exists.
    pub fn of_probe(key: &Bound, kind: JoinKind, table: &JoinTable, is_column: impl Fn(usize) -> bool) -> Option<Self> {
        let only_asks = match kind {
            JoinKind::Inner => table.is_unique(),
            JoinKind::Semi | JoinKind::Anti => true,
            // If all rows pass, or none, there is nothing to look up.
            JoinKind::NotIn => !table.is_empty() && !table.has_null,
            JoinKind::Left => false,
        };
        let (interval, bits) = table.key_bits().filter(|_| only_asks)?;
        let count = u32::try_from(interval.count()?).ok()?;
        let is_full = table.is_unique() && table.rows as u128 == u128::from(count);
        let passing = match is_full {
            true => Passing::Run(interval),
            false => Passing::Bits { min: interval.min, count, bits: Arc::clone(bits) },
        };
        let is_anti = matches!(kind, JoinKind::Anti | JoinKind::NotIn);
        // A key with a NULL finds nothing. For `NOT IN`, its membership is unknown.
        Some(Self {
            is_negated: is_anti,
            null_passes: kind == JoinKind::Anti,
            ..Self::of_column(key, passing, is_column)?
        })
    }

    /// Creates the screen of a range of values of a column.
    pub fn of_run(register: usize, run: Interval, null_passes: bool) -> Self {
        Self { register, passing: Passing::Run(run), is_negated: false, null_passes, of_codes: Mutex::default() }
    }

    fn of_column(of: &Bound, passing: Passing, is_column: impl Fn(usize) -> bool) -> Option<Self> {
        let BoundKind::Register(register) = of.kind else { return None };
        let is_one = is_column(register) && of.domain.ty != Type::Double;
        let of_codes = Mutex::default();
        is_one.then_some(Self { register, passing, is_negated: false, null_passes: false, of_codes })
    }

    /// Returns true if the screen may cost almost nothing, judged before any block is read.
    pub fn may_be_light(&self, stage: &Stage) -> bool {
        match (&self.passing, &stage.registers[self.register]) {
            (Passing::Run(_), _) => true,
            (_, Register::Column(column)) => stage.source.is_coded(*column),
            _ => false,
        }
    }

    /// Returns the passing rows of a block.
    pub fn answer(&self, block: &Block) -> Answer {
        let kind = match block.encoded() {
            _ if block.is_null() => AnswerKind::Nothing,
            Encoded::Constant(value) if self.passing.has(value) => AnswerKind::All,
            Encoded::Constant(_) => AnswerKind::Nothing,
            Encoded::Offsets { base, plane } => self.passing.answer(base, plane.width()),
            Encoded::Codes { table, plane } => self.settled(table).answer(0, plane.width()),
            Encoded::Other => AnswerKind::Decoded,
        };
        let kind = match kind {
            AnswerKind::All if self.is_negated => AnswerKind::Nothing,
            AnswerKind::Nothing if self.is_negated && !block.is_null() => AnswerKind::All,
            kind => kind,
        };
        Answer { kind, has_nulls: block.has_nulls() }
    }

    /// Returns the passing codes of a table.
    fn settled(&self, table: &CodeTable) -> Passing {
        let mut settled = self.of_codes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, passing)) = settled.iter().find(|(other, _)| other.is(table)) {
            return passing.clone();
        }
        let passes = |code: usize| table.get(code).is_some_and(|value| self.passing.has(value.into()));
        let passing = Passing::of_codes(&(0..table.len()).map(passes).collect::<Vec<_>>());
        settled.push((table.clone(), passing.clone()));
        passing
    }

    /// Computes the mask of passing rows. Bits of rows removed earlier have no meaning.
    ///
    /// # Errors
    /// Those of decoding.
    pub fn mask(
        &self,
        answer: &Answer,
        block: &Block,
        rows: Among<'_>,
        scratch: &mut Scratch,
        out: &mut Mask,
    ) -> Result<()> {
        let Among { vector, n, mask, kept } = rows;
        // `All` and `Nothing` have been negated already.
        let mut is_negated = self.is_negated;
        match (&answer.kind, block.plane()) {
            (AnswerKind::All, _) => (*out, is_negated) = ([u32::MAX; LANES], false),
            (AnswerKind::Nothing, _) => (*out, is_negated) = ([0; LANES], false),
            (AnswerKind::Within { min, max }, Some(plane)) => {
                plane.prefetch_vector(vector + AHEAD);
                plane.within(vector, *min, *max, out);
            }
            (AnswerKind::Bits { delta, count, bits }, Some(plane)) => {
                plane.prefetch_vector(vector + AHEAD);
                let set = OffsetBits { delta: *delta, count: *count, bits };
                kernels::mask_bits(scratch.unpacked(plane, vector), set, mask, kept < FEW, out);
            }
            _ => self.mask_of_values(block, Rows::Vector { vector, n }, scratch, out)?,
        }
        if is_negated {
            out.iter_mut().for_each(|word| *word = !*word);
        }
        if answer.has_nulls {
            let mut valid: Mask = [0; LANES];
            block.valid_mask(vector, n, &mut valid);
            let of_null = if self.null_passes { u32::MAX } else { 0 };
            out.iter_mut().zip(&valid).for_each(|(word, valid)| *word = *word & valid | of_null & !valid);
        }
        trim(out, n);
        Ok(())
    }

    /// Computes the mask from decoded values. It is a separate function because other screens
    /// should not pay for its stack frame.
    #[inline(never)]
    fn mask_of_values(&self, block: &Block, rows: Rows<'_>, scratch: &mut Scratch, out: &mut Mask) -> Result<()> {
        let mut values = [0i128; VECTOR_ROWS];
        block.integers(rows, &mut values, scratch)?;
        *out = kernels::mask_of(&values.map(|value| self.passing.has(value).into()));
        Ok(())
    }
}

impl Answer {
    /// Returns true if every row passes.
    pub fn is_all(&self) -> bool {
        matches!(self.kind, AnswerKind::All) && !self.has_nulls
    }

    /// Returns true if it costs almost nothing.
    pub fn is_light(&self) -> bool {
        !matches!(self.kind, AnswerKind::Bits { .. } | AnswerKind::Decoded)
    }
}

impl Passing {
    /// Creates the passing set of codes 0, 1, ..
    fn of_codes(passes: &[bool]) -> Self {
        let first = passes.iter().position(|passes| *passes);
        let last = passes.iter().rposition(|passes| *passes);
        let (Some(first), Some(last)) = (first, last) else { return Self::Run(Interval::EMPTY) };
        if passes[first..=last].iter().all(|passes| *passes) {
            return Self::Run(Interval::new(first as i128, last as i128));
        }
        let word = |word: &[bool]| word.iter().enumerate().map(|(bit, passes)| u32::from(*passes) << bit).sum();
        Self::Bits { min: 0, count: passes.len() as u32, bits: passes.chunks(32).map(word).collect() }
    }

    fn of_list(list: &Arc<[i128]>) -> Self {
        let (Some(min), Some(max)) = (list.first(), list.last()) else { return Self::Run(Interval::EMPTY) };
        match Interval::new(*min, *max).count() {
            Some(count) if count <= MOST_BITS => {
                let mut passes = vec![false; count as usize];
                list.iter().for_each(|value| passes[(value - min) as usize] = true);
                match Self::of_codes(&passes) {
                    Self::Bits { count, bits, .. } => Self::Bits { min: *min, count, bits },
                    // The first and the last code pass.
                    _ => Self::Run(Interval::new(*min, *max)),
                }
            }
            _ => Self::List(Arc::clone(list)),
        }
    }

    /// Returns true if a value passes.
    fn has(&self, value: i128) -> bool {
        match self {
            Self::Run(interval) => (interval.min..=interval.max).contains(&value),
            Self::Bits { min, count, bits } => match value.checked_sub(*min) {
                Some(at) if (0..i128::from(*count)).contains(&at) => bits[at as usize / 32] >> (at % 32) & 1 == 1,
                _ => false,
            },
            Self::List(list) => list.binary_search(&value).is_ok(),
        }
    }

    /// Returns the passing offsets of values that are `base` plus `width` bits.
    fn answer(&self, base: i128, width: u32) -> AnswerKind {
        let most = (1i128 << width) - 1;
        match self {
            Self::Run(interval) => {
                let (min, max) =
                    (interval.min.saturating_sub(base).max(0), interval.max.saturating_sub(base).min(most));
                match (min, max) {
                    _ if min > max => AnswerKind::Nothing,
                    (0, max) if max == most => AnswerKind::All,
                    _ => AnswerKind::Within { min: min as u32, max: max as u32 },
                }
            }
            Self::Bits { min, count, bits } => {
                // Offset plus delta must not wrap in signed 32 bits: then negative sums are large
                // as unsigned numbers.
                let small = -(1i128 << 31)..1i128 << 31;
                let delta = base.saturating_sub(*min);
                if delta >= i128::from(*count) || delta + most < 0 {
                    AnswerKind::Nothing
                } else if small.contains(&delta) && small.contains(&(delta + most)) && *count <= 1 << 31 {
                    AnswerKind::Bits { delta: delta as u32, count: *count, bits: Arc::clone(bits) }
                } else {
                    AnswerKind::Decoded
                }
            }
            Self::List(_) => AnswerKind::Decoded,
        }
    }
}

/// Returns if each entry passes (its result is true, or false if negated), and the same for NULL.
fn looked_up(table: &LookupTable, is_negated: bool) -> Option<(Vec<bool>, bool)> {
    let LookupValues::Bool(values) = &table.values else { return None };
    let is_valid = |entry: usize| table.valid.as_ref().is_none_or(|valid| valid[entry]);
    let passes = values.iter().enumerate().map(|(entry, holds)| (holds ^ is_negated) && is_valid(entry));
    let mut passes: Vec<bool> = passes.collect();
    let of_null = passes.pop()?;
    Some((passes, of_null))
}

/// Clears the bits from row `n` on.
pub(super) fn trim(mask: &mut Mask, n: usize) {
    if n < VECTOR_ROWS {
        let (word, bit) = (n / LANES, n % LANES);
        mask[word] &= (1 << bit) - 1;
        mask[word + 1..].fill(0);
    }
}
