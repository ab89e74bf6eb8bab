//! Expressions compiled for vectors: a list of operations. Each reads slots and writes one slot
//! after them.
//!
//! Slots 0, 1, ... are the pipeline's registers, followed by constants (filled once) and
//! intermediate results. The operands of an operation have one [`Kind`] that is wide enough for its
//! exact result, so arithmetic never wraps. Results with narrower bounds are checked afterwards.
//! NULL rows take part in every operation with an arbitrary value. Their validity marks them, and
//! only checks read it.
//!
//! Branches are also evaluated for every row. A fallible operation in a branch gets a *guard*, a
//! boolean that is true for the rows that take the branch. Checks apply to those rows only, and the
//! results of other rows are never used. An operation that cannot fail has no guard.

use std::sync::Arc;

use arrow_array::Array;
use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type};

use super::kernels;
use super::vector::{Data, Kind, Vector};
use crate::VECTOR_ROWS;
use crate::bind::{Bound, BoundKind, Check, LookupTable, LookupValues, civil, rounded};
use crate::decimal::to_double;
use crate::{ArithmeticOp, CompareOp, DatePart, DictionaryFunction, Error, Interval, LateTexts, Result, Type, Value};

/// Operations, and the slot of their result.
#[derive(Clone, Debug)]
pub(crate) struct Code {
    ops: Vec<Op>,
    pub result: usize,
}

#[derive(Clone, Debug)]
struct Op {
    /// Greater than all slots of its operands.
    out: usize,
    kind: OpKind,
}

#[derive(Clone, Debug)]
enum OpKind {
    Arithmetic {
        op: ArithmeticOp,
        a: usize,
        b: usize,
    },
    /// Arithmetic in 128 bits whose exact result may not fit.
    Checked {
        op: ArithmeticOp,
        a: usize,
        b: usize,
        check: Guarded,
    },
    /// Returns an error if a row that is not NULL holds zero. Writes nothing.
    CheckNotZero {
        a: usize,
        of: [usize; 2],
        check: Guarded,
    },
    /// Returns an error if a row that is not NULL is outside the bounds. Writes nothing.
    CheckBounds {
        a: usize,
        check: Guarded,
    },
    /// A guard: the rows of another guard (or all rows) for which a test holds.
    Guard {
        outer: Option<usize>,
        a: usize,
        test: Test,
    },
    /// Conversion from one kind of integer to another that holds it, or to a double.
    Convert {
        a: usize,
    },
    Within {
        a: usize,
        interval: Interval,
    },
    Compare {
        op: CompareOp,
        a: usize,
        b: usize,
    },
    In {
        a: usize,
        list: Arc<[i128]>,
    },
    And {
        all: Vec<usize>,
    },
    Or {
        any: Vec<usize>,
    },
    Not {
        a: usize,
    },
    IsNull {
        a: usize,
    },
    Lookup {
        a: usize,
        table: Arc<LookupTable>,
    },
    OfLateText {
        a: usize,
        texts: Arc<LateTexts>,
        function: Arc<dyn DictionaryFunction>,
        /// The guard of a function that can fail.
        guard: Option<usize>,
    },
    Case {
        branches: Vec<(usize, usize)>,
        otherwise: usize,
    },
    Coalesce {
        all: Vec<usize>,
    },
    ToDouble {
        a: usize,
        scale: u8,
    },
    DivideRounded {
        a: usize,
        divisor: i128,
        check: Option<Guarded>,
    },
    DatePart {
        part: DatePart,
        a: usize,
    },
}

/// A check, and the slot of the guard that selects its rows; all rows if there is none.
#[derive(Clone, Debug)]
struct Guarded {
    check: Arc<Check>,
    guard: Option<usize>,
}

impl Guarded {
    /// Returns true if the check applies to a row.
    fn is_for(&self, vectors: &[Vector], row: usize) -> bool {
        self.guard.is_none_or(|guard| vectors[guard].integer(row) == 1)
    }
}

/// Condition under which a row takes a branch or continues to the next one.
#[derive(Clone, Copy, Debug)]
enum Test {
    /// The condition is true: the row takes the branch of a CASE.
    True,
    /// The condition is false or NULL: the row continues to the next branch of a CASE or side of an
    /// OR.
    NotTrue,
    /// The condition is true or NULL: the row continues to the next side of an AND.
    NotFalse,
    /// The value is NULL: the row continues to the next argument of a COALESCE.
    Null,
}

/// Contents of a slot that no operation writes.
#[derive(Clone, Debug)]
enum Constant {
    Integer(i128),
    Double(f64),
    Null,
}

/// Compiler of expressions, which assigns slots.
#[derive(Debug)]
pub(crate) struct Compiler {
    kinds: Vec<Kind>,
    constants: Vec<(usize, Constant)>,
}

impl Compiler {
    /// Creates a compiler for a pipeline with registers of these kinds.
    pub fn new(registers: Vec<Kind>) -> Self {
        Self { kinds: registers, constants: Vec::new() }
    }

    /// Creates the vectors of all slots, with constants filled.
    pub fn vectors(&self) -> Vec<Vector> {
        let mut vectors: Vec<Vector> = self.kinds.iter().map(|kind| Vector::new(*kind)).collect();
        for (slot, constant) in &self.constants {
            vectors[*slot] = match constant {
                Constant::Integer(value) => Vector::constant(self.kinds[*slot], *value),
                Constant::Double(value) => Vector::double(*value),
                Constant::Null => Vector::null(self.kinds[*slot]),
            };
        }
        vectors
    }

    /// Compiles an expression.
    pub fn compile(&mut self, bound: &Bound) -> Result<Code> {
        let mut ops = Vec::new();
        let result = self.emit(bound, None, &mut ops)?;
        Ok(Code { ops, result })
    }

    fn slot(&mut self, kind: Kind) -> usize {
        self.kinds.push(kind);
        self.kinds.len() - 1
    }

    fn constant(&mut self, kind: Kind, constant: Constant) -> usize {
        let slot = self.slot(kind);
        self.constants.push((slot, constant));
        slot
    }

    fn push(&mut self, ops: &mut Vec<Op>, kind: Kind, op: OpKind) -> usize {
        let out = self.slot(kind);
        ops.push(Op { out, kind: op });
        out
    }

    /// Returns a slot with the same values in another kind.
    fn converted(&mut self, slot: usize, kind: Kind, ops: &mut Vec<Op>) -> usize {
        if self.kinds[slot] == kind {
            return slot;
        }
        if let Some((_, constant)) = self.constants.iter().find(|(constant, _)| *constant == slot) {
            let constant = constant.clone();
            return self.constant(kind, constant);
        }
        self.push(ops, kind, OpKind::Convert { a: slot })
    }

    /// Emits a guard: the rows of `outer` for which `test` holds of `a`.
    fn guard(&mut self, outer: Option<usize>, a: usize, test: Test, ops: &mut Vec<Op>) -> usize {
        self.push(ops, Kind::Bool, OpKind::Guard { outer, a, test })
    }

    /// Emits operands in evaluation order. A fallible operand is evaluated only for the rows that
    /// the operands before it leave open, according to `test`. Returns the slots in the order of
    /// `all`.
    fn emit_in_turn(
        &mut self,
        all: &[Bound],
        order: impl IntoIterator<Item = usize>,
        test: Test,
        guard: Option<usize>,
        ops: &mut Vec<Op>,
    ) -> Result<Vec<usize>> {
        let mut slots = vec![0; all.len()];
        let mut open = guard;
        let mut before = Vec::new();
        for side in order {
            if all[side].is_fallible {
                open = before.drain(..).fold(open, |open, slot| Some(self.guard(open, slot, test, ops)));
            }
            slots[side] = self.emit(&all[side], open, ops)?;
            before.push(slots[side]);
        }
        Ok(slots)
    }

    /// Emits the conditions of an AND or OR. As in a filter, those that cannot fail come first.
    fn emit_logic(&mut self, all: &[Bound], test: Test, guard: Option<usize>, ops: &mut Vec<Op>) -> Result<Vec<usize>> {
        let (last, first): (Vec<usize>, Vec<usize>) = (0..all.len()).partition(|side| all[*side].is_fallible);
        self.emit_in_turn(all, first.into_iter().chain(last), test, guard, ops)
    }

    fn emit(&mut self, bound: &Bound, guard: Option<usize>, ops: &mut Vec<Op>) -> Result<usize> {
        let kind = Kind::of(&bound.domain);
        Ok(match &bound.kind {
            BoundKind::Register(register) => *register,
            BoundKind::Null => self.constant(kind, Constant::Null),
            BoundKind::Literal(Value::Int(value)) => self.constant(kind, Constant::Integer(*value)),
            BoundKind::Literal(Value::Bool(value)) => self.constant(kind, Constant::Integer((*value).into())),
            BoundKind::Literal(Value::Double(value)) => self.constant(kind, Constant::Double(*value)),
            BoundKind::Literal(Value::Null(_)) => self.constant(kind, Constant::Null),
            BoundKind::Arithmetic { op, sides, exact, check } => {
                let check = check.as_ref().map(|check| Guarded { check: Arc::clone(check), guard });
                let (a, b) = (self.emit(&sides[0], guard, ops)?, self.emit(&sides[1], guard, ops)?);
                self.emit_arithmetic(*op, (a, b), *exact, check, kind, ops)?
            }
            BoundKind::Within { inner, interval } => {
                let a = self.emit(inner, guard, ops)?;
                self.push(ops, kind, OpKind::Within { a, interval: *interval })
            }
            BoundKind::Compare { op, sides } => {
                let (a, b) = (self.emit(&sides[0], guard, ops)?, self.emit(&sides[1], guard, ops)?);
                let common = self.kinds[a].max(self.kinds[b]);
                let (a, b) = (self.converted(a, common, ops), self.converted(b, common, ops));
                self.push(ops, kind, OpKind::Compare { op: *op, a, b })
            }
            BoundKind::In { inner, list } => {
                let a = self.emit(inner, guard, ops)?;
                self.push(ops, kind, OpKind::In { a, list: Arc::clone(list) })
            }
            BoundKind::And(all) => {
                let all = self.emit_logic(all, Test::NotFalse, guard, ops)?;
                self.push(ops, kind, OpKind::And { all })
            }
            BoundKind::Or(any) => {
                let any = self.emit_logic(any, Test::NotTrue, guard, ops)?;
                self.push(ops, kind, OpKind::Or { any })
            }
            BoundKind::Not(inner) => {
                let a = self.emit(inner, guard, ops)?;
                self.push(ops, kind, OpKind::Not { a })
            }
            BoundKind::IsNull(inner) => {
                let a = self.emit(inner, guard, ops)?;
                self.push(ops, kind, OpKind::IsNull { a })
            }
            BoundKind::Lookup { code, table } => {
                let a = self.emit(code, guard, ops)?;
                self.push(ops, kind, OpKind::Lookup { a, table: Arc::clone(table) })
            }
            BoundKind::OfLateText { row, texts, function } => {
                let (texts, function) = (Arc::clone(texts), Arc::clone(function));
                let a = self.emit(row, guard, ops)?;
                let guard = guard.filter(|_| function.can_fail());
                self.push(ops, kind, OpKind::OfLateText { a, texts, function, guard })
            }
            BoundKind::Case { branches, otherwise } => self.emit_case(branches, otherwise, kind, guard, ops)?,
            BoundKind::Coalesce(all) => {
                let all = self.emit_in_turn(all, 0..all.len(), Test::Null, guard, ops)?;
                let all = all.into_iter().map(|slot| self.converted(slot, kind, ops)).collect();
                self.push(ops, kind, OpKind::Coalesce { all })
            }
            BoundKind::ToDouble { inner, scale } => {
                let a = self.emit(inner, guard, ops)?;
                self.push(ops, kind, OpKind::ToDouble { a, scale: *scale })
            }
            BoundKind::DivideRounded { inner, divisor, check } => {
                let a = self.emit(inner, guard, ops)?;
                let check = check.clone().map(|check| Guarded { check, guard });
                self.push(ops, kind, OpKind::DivideRounded { a, divisor: *divisor, check })
            }
            BoundKind::DatePart { part, inner } => {
                let a = self.emit(inner, guard, ops)?;
                let a = self.converted(a, Kind::I32, ops);
                self.push(ops, kind, OpKind::DatePart { part: *part, a })
            }
        })
    }

    fn emit_case(
        &mut self,
        branches: &[(Bound, Bound)],
        otherwise: &Bound,
        kind: Kind,
        guard: Option<usize>,
        ops: &mut Vec<Op>,
    ) -> Result<usize> {
        let is_fallible = |(condition, value): &(Bound, Bound)| condition.is_fallible || value.is_fallible;
        let mut slots = Vec::with_capacity(branches.len());
        // Rows that no branch has taken yet.
        let mut open = guard;
        for (number, (condition, value)) in branches.iter().enumerate() {
            let condition = self.emit(condition, open, ops)?;
            let taken = if value.is_fallible { Some(self.guard(open, condition, Test::True, ops)) } else { open };
            let value = self.emit(value, taken, ops)?;
            slots.push((condition, self.converted(value, kind, ops)));
            if otherwise.is_fallible || branches[number + 1..].iter().any(is_fallible) {
                open = Some(self.guard(open, condition, Test::NotTrue, ops));
            }
        }
        let otherwise = self.emit(otherwise, open, ops)?;
        let otherwise = self.converted(otherwise, kind, ops);
        Ok(self.push(ops, kind, OpKind::Case { branches: slots, otherwise }))
    }

    fn emit_arithmetic(
        &mut self,
        op: ArithmeticOp,
        (a, b): (usize, usize),
        exact: Option<Interval>,
        check: Option<Guarded>,
        kind: Kind,
        ops: &mut Vec<Op>,
    ) -> Result<usize> {
        if kind == Kind::F64 {
            return Ok(self.push(ops, kind, OpKind::Arithmetic { op, a, b }));
        }
        let exact_kind = exact.map_or(Kind::I128, Kind::of_interval);
        let wide = self.kinds[a].max(self.kinds[b]).max(exact_kind);
        let (a, b) = (self.converted(a, wide, ops), self.converted(b, wide, ops));
        if let Some(check) = check.clone().filter(|_| matches!(op, ArithmeticOp::Div | ArithmeticOp::Rem)) {
            ops.push(Op { out: self.kinds.len(), kind: OpKind::CheckNotZero { a: b, of: [a, b], check } });
        }
        let result = match (exact, &check) {
            (Some(_), _) => self.push(ops, wide, OpKind::Arithmetic { op, a, b }),
            (None, Some(check)) => self.push(ops, wide, OpKind::Checked { op, a, b, check: check.clone() }),
            (None, None) => return Err(Error::Invalid("arithmetic that may not fit 128 bits, unchecked".into())),
        };
        if let Some(check) = check {
            ops.push(Op { out: self.kinds.len(), kind: OpKind::CheckBounds { a: result, check } });
        }
        Ok(self.converted(result, kind, ops))
    }
}

impl Code {
    /// Returns true if it reads late strings, which costs more than any other operation.
    pub fn reads_texts(&self) -> bool {
        self.ops.iter().any(|op| matches!(op.kind, OpKind::OfLateText { .. }))
    }

    /// Evaluates the first `n` rows.
    pub fn run(&self, vectors: &mut [Vector], n: usize) -> Result<()> {
        let n = n.min(VECTOR_ROWS);
        for op in &self.ops {
            let (operands, rest) = vectors.split_at_mut(op.out);
            match &op.kind {
                OpKind::CheckNotZero { a, of, check } => check_not_zero(operands, *a, *of, n, check)?,
                OpKind::CheckBounds { a, check } => check_bounds(operands, *a, n, check)?,
                kind => run(kind, operands, &mut rest[0], n)?,
            }
        }
        Ok(())
    }
}

fn run(op: &OpKind, vectors: &[Vector], out: &mut Vector, n: usize) -> Result<()> {
    match op {
        OpKind::Arithmetic { op, a, b } => {
            let (a, b) = (&vectors[*a], &vectors[*b]);
            match (&a.data, &b.data, &mut out.data) {
                (Data::I32(a), Data::I32(b), Data::I32(out)) => {
                    kernels::arithmetic_i32(*op, &a[..n], &b[..n], &mut out[..n]);
                }
                (Data::I64(a), Data::I64(b), Data::I64(out)) => {
                    kernels::arithmetic_i64(*op, &a[..n], &b[..n], &mut out[..n]);
                }
                (Data::F64(a), Data::F64(b), Data::F64(out)) => {
                    kernels::arithmetic_f64(*op, &a[..n], &b[..n], &mut out[..n]);
                }
                (Data::I128(a), Data::I128(b), Data::I128(out)) => {
                    for row in 0..n {
                        // Only NULL rows may not fit.
                        out[row] = checked(*op, a[row], b[row]).unwrap_or(0);
                    }
                }
                _ => return Err(mixed()),
            }
            both_valid(a, b, out, n);
        }
        OpKind::Checked { op, a, b, check } => {
            let (a, b) = (&vectors[*a], &vectors[*b]);
            both_valid(a, b, out, n);
            let (Data::I128(a), Data::I128(b)) = (&a.data, &b.data) else { return Err(mixed()) };
            for row in 0..n {
                let result = checked(*op, a[row], b[row]);
                if result.is_none() && out.is_valid(row) && check.is_for(vectors, row) {
                    return Err(check.check.out_of_range());
                }
                let Data::I128(out) = &mut out.data else { return Err(mixed()) };
                out[row] = result.unwrap_or(0);
            }
        }
        OpKind::Guard { outer, a, test } => {
            guard(&vectors[*a], *test, out, n)?;
            if let (Some(outer), Data::Bool(open)) = (outer, &mut out.data) {
                let Data::Bool(outer) = &vectors[*outer].data else { return Err(mixed()) };
                kernels::and_assign(&mut open[..n], &outer[..n]);
            }
        }
        OpKind::Convert { a } => {
            convert(&vectors[*a], out, n);
            same_valid(&vectors[*a], out, n);
        }
        OpKind::Within { a, interval } => {
            within(&vectors[*a], *interval, out, n)?;
            same_valid(&vectors[*a], out, n);
        }
        OpKind::Compare { op, a, b } => {
            let (a, b) = (&vectors[*a], &vectors[*b]);
            compare(*op, a, b, out, n)?;
            both_valid(a, b, out, n);
        }
        OpKind::In { a, list } => {
            let a = &vectors[*a];
            let Data::Bool(found) = &mut out.data else { return Err(mixed()) };
            for (row, found) in found.iter_mut().enumerate().take(n) {
                *found = list.binary_search(&a.integer(row)).is_ok().into();
            }
            same_valid(a, out, n);
        }
        OpKind::And { all } => logic(all, vectors, out, n, false)?,
        OpKind::Or { any } => logic(any, vectors, out, n, true)?,
        OpKind::Not { a } => {
            let a = &vectors[*a];
            let (Data::Bool(values), Data::Bool(negated)) = (&a.data, &mut out.data) else { return Err(mixed()) };
            negated.iter_mut().zip(values.iter()).take(n).for_each(|(out, value)| *out = value ^ 1);
            same_valid(a, out, n);
        }
        OpKind::IsNull { a } => {
            let a = &vectors[*a];
            let Data::Bool(nulls) = &mut out.data else { return Err(mixed()) };
            if a.has_nulls {
                nulls.iter_mut().zip(a.valid.iter()).take(n).for_each(|(out, valid)| *out = valid ^ 1);
            } else {
                nulls[..n].fill(0);
            }
            out.has_nulls = false;
        }
        OpKind::Lookup { a, table } => lookup(&vectors[*a], table, out, n)?,
        OpKind::OfLateText { a, texts, function, guard } => {
            let is_asked = |row: usize| guard.is_none_or(|guard| vectors[guard].integer(row) == 1);
            let rows = &vectors[*a];
            // Rows outside the guard get no string. The function has a result for NULL, since
            // `bind` applied it to one.
            let number = |row| (rows.is_valid(row) && is_asked(row)).then(|| rows.integer(row) as u64);
            of_late_text((0..n).map(number).collect(), texts, &**function, out)?;
        }
        OpKind::Case { branches, otherwise } => {
            assign(&vectors[*otherwise], out, n);
            for (condition, value) in branches.iter().rev() {
                let (condition, value) = (&vectors[*condition], &vectors[*value]);
                let Data::Bool(holds) = &condition.data else { return Err(mixed()) };
                select(|row| holds[row] != 0 && condition.is_valid(row), value, out, n)?;
            }
        }
        OpKind::Coalesce { all } => {
            let Some((last, before)) = all.split_last() else { return Ok(()) };
            assign(&vectors[*last], out, n);
            for slot in before.iter().rev() {
                let value = &vectors[*slot];
                select(|row| value.is_valid(row), value, out, n)?;
            }
        }
        OpKind::ToDouble { a, scale } => {
            let a = &vectors[*a];
            let Data::F64(doubles) = &mut out.data else { return Err(mixed()) };
            for (row, double) in doubles.iter_mut().enumerate().take(n) {
                *double = to_double(a.integer(row), *scale);
            }
            same_valid(a, out, n);
        }
        OpKind::DivideRounded { a, divisor, check } => {
            let a = &vectors[*a];
            for row in 0..n {
                let quotient = rounded(a.integer(row), *divisor);
                let fits = |guarded: &Guarded| guarded.check.allows(quotient);
                match check {
                    Some(guarded) if !fits(guarded) && a.is_valid(row) && guarded.is_for(vectors, row) => {
                        return Err(guarded.check.out_of_range());
                    }
                    Some(guarded) if !fits(guarded) => set_integer(out, row, 0)?,
                    _ => set_integer(out, row, quotient)?,
                }
            }
            same_valid(a, out, n);
        }
        OpKind::DatePart { part, a } => {
            let a = &vectors[*a];
            let (Data::I32(days), Data::I32(parts)) = (&a.data, &mut out.data) else { return Err(mixed()) };
            for (out, day) in parts.iter_mut().zip(days.iter()).take(n) {
                let (year, month, day) = civil((*day).into());
                *out = match part {
                    DatePart::Year => year as i32,
                    DatePart::Quarter => month.div_ceil(3) as i32,
                    DatePart::Month => month as i32,
                    DatePart::Day => day as i32,
                };
            }
            same_valid(a, out, n);
        }
        OpKind::CheckNotZero { .. } | OpKind::CheckBounds { .. } => {}
    }
    Ok(())
}

fn mixed() -> Error {
    Error::Invalid("operands of different kinds".into())
}

fn checked(op: ArithmeticOp, a: i128, b: i128) -> Option<i128> {
    match op {
        ArithmeticOp::Add => a.checked_add(b),
        ArithmeticOp::Sub => a.checked_sub(b),
        ArithmeticOp::Mul => a.checked_mul(b),
        ArithmeticOp::Div => a.checked_div(b),
        ArithmeticOp::Rem => a.checked_rem(b),
    }
}

fn set_integer(out: &mut Vector, row: usize, value: i128) -> Result<()> {
    match &mut out.data {
        Data::I32(out) => out[row] = value as i32,
        Data::I64(out) => out[row] = value as i64,
        Data::I128(out) => out[row] = value,
        Data::Bool(_) | Data::F64(_) => return Err(mixed()),
    }
    Ok(())
}

fn same_valid(a: &Vector, out: &mut Vector, n: usize) {
    out.has_nulls = a.has_nulls;
    if a.has_nulls {
        out.valid[..n].copy_from_slice(&a.valid[..n]);
    }
}

fn both_valid(a: &Vector, b: &Vector, out: &mut Vector, n: usize) {
    match (a.has_nulls, b.has_nulls) {
        (true, true) => {
            same_valid(a, out, n);
            kernels::and_assign(&mut out.valid[..n], &b.valid[..n]);
        }
        (false, _) => same_valid(b, out, n),
        (true, false) => same_valid(a, out, n),
    }
}

fn check_not_zero(vectors: &[Vector], a: usize, of: [usize; 2], n: usize, guarded: &Guarded) -> Result<()> {
    // A NULL dividend makes the quotient NULL, for any divisor.
    let is_used = |row: usize| of.iter().all(|slot| vectors[*slot].is_valid(row)) && guarded.is_for(vectors, row);
    match (0..n).any(|row| vectors[a].integer(row) == 0 && is_used(row)) {
        true => Err(guarded.check.division_by_zero()),
        false => Ok(()),
    }
}

fn check_bounds(vectors: &[Vector], a: usize, n: usize, guarded: &Guarded) -> Result<()> {
    let (values, check) = (&vectors[a], &guarded.check);
    let mut inside = [0u8; VECTOR_ROWS];
    if let (Data::I64(values), Ok(min), Ok(max)) =
        (&values.data, i64::try_from(check.bounds.min), i64::try_from(check.bounds.max))
    {
        kernels::within_i64(&values[..n], min, max, &mut inside[..n]);
        if inside[..n].iter().all(|inside| *inside == 1) {
            return Ok(());
        }
    }
    let is_used = |row: usize| values.is_valid(row) && guarded.is_for(vectors, row);
    match (0..n).any(|row| !check.allows(values.integer(row)) && is_used(row)) {
        true => Err(check.out_of_range()),
        false => Ok(()),
    }
}

fn guard(a: &Vector, test: Test, out: &mut Vector, n: usize) -> Result<()> {
    let Data::Bool(open) = &mut out.data else { return Err(mixed()) };
    let open = open.iter_mut().enumerate().take(n);
    match (&a.data, test) {
        (_, Test::Null) => open.for_each(|(row, open)| *open = u8::from(!a.is_valid(row))),
        (Data::Bool(values), Test::True) => {
            open.for_each(|(row, open)| *open = u8::from(a.is_valid(row) && values[row] == 1));
        }
        (Data::Bool(values), Test::NotTrue) => {
            open.for_each(|(row, open)| *open = u8::from(!a.is_valid(row) || values[row] == 0));
        }
        (Data::Bool(values), Test::NotFalse) => {
            open.for_each(|(row, open)| *open = u8::from(!a.is_valid(row) || values[row] == 1));
        }
        _ => return Err(mixed()),
    }
    out.has_nulls = false;
    Ok(())
}

fn convert(a: &Vector, out: &mut Vector, n: usize) {
    match (&a.data, &mut out.data) {
        (Data::I32(a), Data::I64(out)) => kernels::widen_i32_i64(&a[..n], &mut out[..n]),
        (Data::I64(a), Data::I32(out)) => kernels::narrow_i64_i32(&a[..n], &mut out[..n]),
        (_, Data::I32(out)) => (0..n).for_each(|row| out[row] = a.integer(row) as i32),
        (_, Data::I64(out)) => (0..n).for_each(|row| out[row] = a.integer(row) as i64),
        (_, Data::I128(out)) => (0..n).for_each(|row| out[row] = a.integer(row)),
        (_, Data::F64(out)) => (0..n).for_each(|row| out[row] = a.integer(row) as f64),
        (_, Data::Bool(out)) => (0..n).for_each(|row| out[row] = u8::from(a.integer(row) != 0)),
    }
}

fn within(a: &Vector, interval: Interval, out: &mut Vector, n: usize) -> Result<()> {
    let Data::Bool(out) = &mut out.data else { return Err(mixed()) };
    let out = &mut out[..n];
    macro_rules! clipped {
        ($values:expr, $t:ty, $kernel:path) => {{
            let clipped = interval.intersection(Interval::new(<$t>::MIN.into(), <$t>::MAX.into()));
            match clipped.is_empty() {
                true => out.fill(0),
                false => $kernel(&$values[..n], clipped.min as $t, clipped.max as $t, out),
            }
        }};
    }
    match &a.data {
        Data::I32(values) => clipped!(values, i32, kernels::within_i32),
        Data::I64(values) => clipped!(values, i64, kernels::within_i64),
        Data::I128(values) => {
            let range = interval.min..=interval.max;
            out.iter_mut().zip(values.iter()).for_each(|(out, value)| *out = range.contains(value).into());
        }
        Data::Bool(_) | Data::F64(_) => return Err(mixed()),
    }
    Ok(())
}

fn compare(op: CompareOp, a: &Vector, b: &Vector, out: &mut Vector, n: usize) -> Result<()> {
    let Data::Bool(out) = &mut out.data else { return Err(mixed()) };
    let out = &mut out[..n];
    match (&a.data, &b.data) {
        (Data::Bool(a), Data::Bool(b)) => kernels::compare_u8(op, &a[..n], &b[..n], out),
        (Data::I32(a), Data::I32(b)) => kernels::compare_i32(op, &a[..n], &b[..n], out),
        (Data::I64(a), Data::I64(b)) => kernels::compare_i64(op, &a[..n], &b[..n], out),
        (Data::I128(a), Data::I128(b)) => {
            for ((out, a), b) in out.iter_mut().zip(a.iter()).zip(b.iter()) {
                *out = holds(op, a.cmp(b)).into();
            }
        }
        (Data::F64(a), Data::F64(b)) => {
            for ((out, a), b) in out.iter_mut().zip(a.iter()).zip(b.iter()) {
                // IEEE 754's total order, except that adding +0 turns -0 into +0. NaN equals itself
                // and comes last.
                *out = holds(op, (a + 0.0).total_cmp(&(b + 0.0))).into();
            }
        }
        _ => return Err(mixed()),
    }
    Ok(())
}

fn holds(op: CompareOp, order: std::cmp::Ordering) -> bool {
    match op {
        CompareOp::Equal => order.is_eq(),
        CompareOp::NotEqual => order.is_ne(),
        CompareOp::Less => order.is_lt(),
        CompareOp::LessOrEqual => order.is_le(),
        CompareOp::Greater => order.is_gt(),
        CompareOp::GreaterOrEqual => order.is_ge(),
    }
}

/// Evaluates AND (`decisive` false) or OR (`decisive` true). The decisive value takes precedence
/// over NULL, and NULL over the other value.
fn logic(all: &[usize], vectors: &[Vector], out: &mut Vector, n: usize, decisive: bool) -> Result<()> {
    let neutral = u8::from(!decisive);
    let Data::Bool(result) = &mut out.data else { return Err(mixed()) };
    result[..n].fill(neutral);
    out.has_nulls = all.iter().any(|slot| vectors[*slot].has_nulls);
    if out.has_nulls {
        out.valid[..n].fill(1);
    }
    for slot in all {
        let vector = &vectors[*slot];
        let Data::Bool(values) = &vector.data else { return Err(mixed()) };
        for row in 0..n {
            if vector.is_valid(row) {
                if values[row] != neutral {
                    result[row] = values[row];
                }
            } else {
                out.valid[row] = 0;
            }
        }
    }
    if out.has_nulls {
        for row in 0..n {
            out.valid[row] |= u8::from(result[row] != neutral);
        }
    }
    Ok(())
}

fn lookup(code: &Vector, table: &LookupTable, out: &mut Vector, n: usize) -> Result<()> {
    let Data::I32(codes) = &code.data else { return Err(mixed()) };
    // The result for NULL follows those of the entries. Sources guarantee that a code is an entry.
    let entries = match &table.values {
        LookupValues::Bool(values) => values.len(),
        LookupValues::Int(values) => values.len(),
        LookupValues::Double(values) => values.len(),
        LookupValues::Text(values, _) => values.len(),
    } - 1;
    let at = |row: usize| if code.is_valid(row) { (codes[row] as usize).min(entries) } else { entries };
    match (&table.values, &mut out.data) {
        (LookupValues::Bool(values), Data::Bool(out)) => (0..n).for_each(|row| out[row] = values[at(row)].into()),
        (LookupValues::Int(values), Data::I32(out)) => (0..n).for_each(|row| out[row] = values[at(row)] as i32),
        (LookupValues::Int(values), Data::I64(out)) => (0..n).for_each(|row| out[row] = values[at(row)]),
        (LookupValues::Double(values), Data::F64(out)) => (0..n).for_each(|row| out[row] = values[at(row)]),
        (LookupValues::Text(values, _), Data::I32(out)) => (0..n).for_each(|row| out[row] = values[at(row)] as i32),
        _ => return Err(mixed()),
    }
    out.has_nulls = table.valid.is_some();
    if let Some(valid) = &table.valid {
        (0..n).for_each(|row| out.valid[row] = valid[at(row)].into());
    }
    Ok(())
}

/// Applies a function to the strings of the first rows.
fn of_late_text(
    numbers: Vec<Option<u64>>,
    texts: &LateTexts,
    function: &dyn DictionaryFunction,
    out: &mut Vector,
) -> Result<()> {
    let n = numbers.len();
    let results = texts.apply(function, &numbers, &mut out.reader)?;
    let outside = || Error::Invalid(format!("{} gave {} for {n} texts", function.name(), results.data_type()));
    if results.len() != n {
        return Err(outside());
    }
    match &mut out.data {
        Data::Bool(out) => {
            let values = results.as_boolean_opt().ok_or_else(outside)?.values();
            out.iter_mut().zip(values).for_each(|(out, value)| *out = value.into());
        }
        Data::F64(out) => {
            let values = results.as_primitive_opt::<Float64Type>().ok_or_else(outside)?;
            out.iter_mut().zip(values.values()).for_each(|(out, value)| *out = *value);
        }
        _ => {
            let values = results.as_primitive_opt::<Int64Type>().ok_or_else(outside)?;
            let interval = function.interval();
            for (row, value) in values.values().iter().enumerate() {
                let value = if values.is_valid(row) { i128::from(*value) } else { 0 };
                if values.is_valid(row) && !interval.contains(Interval::of(value)) {
                    return Err(outside());
                }
                set_integer(out, row, value)?;
            }
        }
    }
    out.has_nulls = results.null_count() > 0;
    if out.has_nulls {
        out.valid.iter_mut().enumerate().take(n).for_each(|(row, valid)| *valid = results.is_valid(row).into());
    }
    Ok(())
}

/// Copies the first rows of a vector of the same kind.
fn assign(value: &Vector, out: &mut Vector, n: usize) {
    match (&value.data, &mut out.data) {
        (Data::Bool(a), Data::Bool(out)) => out[..n].copy_from_slice(&a[..n]),
        (Data::I32(a), Data::I32(out)) => out[..n].copy_from_slice(&a[..n]),
        (Data::I64(a), Data::I64(out)) => out[..n].copy_from_slice(&a[..n]),
        (Data::I128(a), Data::I128(out)) => out[..n].copy_from_slice(&a[..n]),
        (Data::F64(a), Data::F64(out)) => out[..n].copy_from_slice(&a[..n]),
        _ => debug_assert!(false, "vectors of different kinds"),
    }
    out.has_nulls = value.has_nulls;
    if value.has_nulls {
        out.valid[..n].copy_from_slice(&value.valid[..n]);
    } else {
        // Branches may add NULLs.
        out.valid[..n].fill(1);
    }
}

/// Copies the rows of `value` for which `wanted` holds.
fn select(wanted: impl Fn(usize) -> bool, value: &Vector, out: &mut Vector, n: usize) -> Result<()> {
    for row in (0..n).filter(|row| wanted(*row)) {
        match (&value.data, &mut out.data) {
            (Data::Bool(a), Data::Bool(out)) => out[row] = a[row],
            (Data::I32(a), Data::I32(out)) => out[row] = a[row],
            (Data::I64(a), Data::I64(out)) => out[row] = a[row],
            (Data::I128(a), Data::I128(out)) => out[row] = a[row],
            (Data::F64(a), Data::F64(out)) => out[row] = a[row],
            _ => return Err(mixed()),
        }
        out.valid[row] = value.is_valid(row).into();
    }
    out.has_nulls |= value.has_nulls;
    Ok(())
}

/// Returns true if a domain can be a key of a join or a group: integers of up to 64 bits, booleans,
/// strings.
pub(crate) fn is_key(domain: &crate::Domain) -> bool {
    domain.ty != Type::Double && Interval::new(i64::MIN.into(), i64::MAX.into()).contains(domain.interval)
}
