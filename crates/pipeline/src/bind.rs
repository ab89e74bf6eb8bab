//! Binding turns an expression and the domains of its registers into a [`Bound`] tree. Every node
//! has its domain, every string function is already applied to its dictionary, and checks that can
//! never fail are removed.
//!
//! This module is the type checker of the representation. Only here do facts about data (intervals
//! from zone maps) become facts about code. Both backends start from its result.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type};
use arrow_array::{Array, StringViewArray};
use arrow_schema::DataType;

use crate::{ArithmeticOp, Bounds, CompareOp, DatePart, Dictionary, DictionaryFunction, Domain, Error, Expr, Interval};
use crate::{Label, LateTexts, Result, Type, Value};

/// A bound expression.
#[derive(Clone, Debug)]
pub struct Bound {
    /// Domain of its result.
    pub domain: Domain,
    /// The operation.
    pub kind: BoundKind,
    /// True if evaluation can fail.
    pub is_fallible: bool,
}

/// Operation of a node.
#[derive(Clone, Debug)]
pub enum BoundKind {
    /// A register.
    Register(usize),
    /// A literal, never NULL.
    Literal(Value),
    /// NULL, of the domain's type.
    Null,
    /// Integer or double arithmetic.
    Arithmetic {
        /// The operator.
        op: ArithmeticOp,
        /// Its sides.
        sides: Box<[Bound; 2]>,
        /// Interval of the exact results, if 128 bits hold it.
        exact: Option<Interval>,
        /// Check of each result, with the printed expression for its error.
        check: Option<Arc<Check>>,
    },
    /// Comparison of integers, codes or booleans of one kind, or of doubles.
    Compare {
        /// The operator.
        op: CompareOp,
        /// Its sides.
        sides: Box<[Bound; 2]>,
    },
    /// True if an integer or code lies within an interval.
    Within {
        /// The integer.
        inner: Box<Bound>,
        /// The interval.
        interval: Interval,
    },
    /// True if an integer is in a sorted list.
    In {
        /// The integer.
        inner: Box<Bound>,
        /// The list.
        list: Arc<[i128]>,
    },
    /// True if all are true.
    And(Vec<Bound>),
    /// True if any is true.
    Or(Vec<Bound>),
    /// Negation.
    Not(Box<Bound>),
    /// True if the value is NULL.
    IsNull(Box<Bound>),
    /// The entry of a table at a code.
    Lookup {
        /// The code.
        code: Box<Bound>,
        /// The table.
        table: Arc<LookupTable>,
    },
    /// A function of late strings, computed only for the requested rows.
    OfLateText {
        /// The row number.
        row: Box<Bound>,
        /// The strings of the rows.
        texts: Arc<LateTexts>,
        /// The function.
        function: Arc<dyn DictionaryFunction>,
    },
    /// The value of the first branch whose condition is true.
    Case {
        /// Conditions and values.
        branches: Vec<(Bound, Bound)>,
        /// The value without a true condition.
        otherwise: Box<Bound>,
    },
    /// The first value that is not NULL.
    Coalesce(Vec<Bound>),
    /// An integer as a double, divided by 10^scale.
    ToDouble {
        /// The integer.
        inner: Box<Bound>,
        /// Digits after the point.
        scale: u8,
    },
    /// A decimal divided by a power of ten and rounded half away from zero.
    DivideRounded {
        /// The decimal.
        inner: Box<Bound>,
        /// The power of ten.
        divisor: i128,
        /// Check of each result.
        check: Option<Arc<Check>>,
    },
    /// A part of a date.
    DatePart {
        /// The part.
        part: DatePart,
        /// The date.
        inner: Box<Bound>,
    },
}

/// A check that results can fail.
#[derive(Clone, Debug)]
pub struct Check {
    /// Bounds of integer results.
    pub bounds: Bounds,
    /// The expression, for the error.
    pub label: Arc<Label>,
}

impl Check {
    /// Creates a check of results of `expr`. Without a label, the error shows the printed
    /// expression.
    fn new(bounds: Bounds, expr: &Expr, label: Option<&Arc<Label>>) -> Arc<Self> {
        let unlabelled = || Arc::new(Label { text: expr.to_string(), hint: "" });
        Arc::new(Self { bounds, label: label.map_or_else(unlabelled, Arc::clone) })
    }

    /// Returns true if a result fits.
    pub fn allows(&self, value: i128) -> bool {
        (self.bounds.min..=self.bounds.max).contains(&value)
    }

    /// Returns the error for a result that does not fit.
    pub fn out_of_range(&self) -> Error {
        let hint = Some(self.label.hint).filter(|hint| !hint.is_empty());
        Error::OutOfRange { type_name: self.bounds.type_name.into(), expression: self.label.text.clone(), hint }
    }

    /// Returns the error for a divisor of zero.
    pub fn division_by_zero(&self) -> Error {
        Error::DivisionByZero { expression: self.label.text.clone() }
    }
}

/// A function's results for every entry of a dictionary, and for NULL after them.
#[derive(Debug)]
pub struct LookupTable {
    /// Printed form of the function.
    pub name: String,
    /// The results.
    pub values: LookupValues,
    /// True for results that are not NULL; `None` if no result is NULL.
    pub valid: Option<Vec<bool>>,
}

/// Results of a function of strings. NULL results hold any value.
#[derive(Debug)]
#[allow(missing_docs, reason = "they are what they are called")]
pub enum LookupValues {
    Bool(Vec<bool>),
    Int(Vec<i64>),
    Double(Vec<f64>),
    /// Codes of another dictionary.
    Text(Vec<u32>, Arc<Dictionary>),
}

/// Binds an expression over registers of these domains.
///
/// # Errors
/// [`Error::Invalid`] if it makes no sense; [`Error::Unsupported`] if no backend can compute it.
pub fn bind(expr: &Expr, registers: &[Domain]) -> Result<Bound> {
    bind_labelled(expr, None, registers)
}

fn bind_labelled(expr: &Expr, label: Option<&Arc<Label>>, registers: &[Domain]) -> Result<Bound> {
    let bind_all = |all: &[Expr]| all.iter().map(|e| bind(e, registers)).collect::<Result<Vec<_>>>();
    match expr {
        Expr::Register(register) => {
            let domain = registers.get(*register).ok_or_else(|| invalid(expr, "there is no such register"))?;
            Ok(Bound::new(domain.clone(), BoundKind::Register(*register)))
        }
        Expr::Literal(value) => Ok(literal(value)),
        Expr::Arithmetic { op, left, right, bounds } => {
            let sides = [bind(left, registers)?, bind(right, registers)?];
            arithmetic(expr, label, *op, sides, *bounds)
        }
        Expr::Compare { op, left, right } => compare(expr, *op, bind(left, registers)?, bind(right, registers)?),
        Expr::And(all) => Ok(and(booleans(expr, bind_all(all)?)?)),
        Expr::Or(any) => Ok(logic(booleans(expr, bind_all(any)?)?, BoundKind::Or)),
        Expr::Not(inner) => {
            let inner = booleans(expr, vec![bind(inner, registers)?])?.remove(0);
            Ok(Bound::of(&[&inner], Domain::bool(inner.domain.nullable), BoundKind::Not(Box::new(inner.clone()))))
        }
        Expr::IsNull(inner) => {
            let inner = bind(inner, registers)?;
            if !inner.domain.nullable && !inner.is_fallible {
                return Ok(literal(&Value::Bool(false)));
            }
            Ok(Bound::of(&[&inner], Domain::bool(false), BoundKind::IsNull(Box::new(inner.clone()))))
        }
        Expr::In { expr: inner, list } => {
            let inner = bind(inner, registers)?;
            if inner.domain.ty != Type::Int {
                return Err(invalid(expr, "IN takes integers"));
            }
            let mut list = list.clone();
            list.sort_unstable();
            list.dedup();
            let domain = Domain::bool(inner.domain.nullable);
            Ok(Bound::of(&[&inner], domain, BoundKind::In { inner: Box::new(inner.clone()), list: list.into() }))
        }
        Expr::Lookup { text, function } => match bind(text, registers)? {
            late if late.domain.ty == Type::LateText => of_late_text(expr, late, function),
            code => lookup(expr, code, &**function),
        },
        Expr::Case { branches, otherwise } => {
            let mut bound = Vec::with_capacity(branches.len());
            for (condition, value) in branches {
                let condition = booleans(expr, vec![bind(condition, registers)?])?.remove(0);
                bound.push((condition, bind(value, registers)?));
            }
            let otherwise = otherwise.as_ref().map(|otherwise| bind(otherwise, registers)).transpose()?;
            case(expr, bound, otherwise)
        }
        Expr::Coalesce(all) => coalesce(expr, bind_all(all)?),
        Expr::ToDouble { expr: inner, scale } => {
            let inner = bind(inner, registers)?;
            if inner.domain.ty != Type::Int {
                return Err(invalid(expr, "it takes an integer"));
            }
            let domain = Domain::double(inner.domain.nullable);
            Ok(Bound::of(&[&inner], domain, BoundKind::ToDouble { inner: Box::new(inner.clone()), scale: *scale }))
        }
        Expr::Rescale { expr: inner, digits, bounds } => {
            rescale(expr, label, bind(inner, registers)?, *digits, *bounds)
        }
        Expr::Labelled { label, expr } => bind_labelled(expr, Some(label), registers),
        Expr::DatePart { part, date } => date_part(expr, *part, bind(date, registers)?),
    }
}

impl Bound {
    fn new(domain: Domain, kind: BoundKind) -> Self {
        Self { domain, kind, is_fallible: false }
    }

    fn of(inner: &[&Bound], domain: Domain, kind: BoundKind) -> Self {
        Self { domain, kind, is_fallible: inner.iter().any(|bound| bound.is_fallible) }
    }

    /// Returns the conditions of a filter on this expression.
    pub fn into_conjuncts(self) -> Vec<Bound> {
        match self.kind {
            BoundKind::And(all) => all,
            _ => vec![self],
        }
    }

    /// Calls `f` with every register that it reads.
    pub fn for_each_register(&self, f: &mut impl FnMut(usize)) {
        match &self.kind {
            BoundKind::Register(register) => f(*register),
            BoundKind::Literal(_) | BoundKind::Null => {}
            BoundKind::Arithmetic { sides, .. } | BoundKind::Compare { sides, .. } => {
                sides.iter().for_each(|side| side.for_each_register(f));
            }
            BoundKind::And(all) | BoundKind::Or(all) | BoundKind::Coalesce(all) => {
                all.iter().for_each(|inner| inner.for_each_register(f));
            }
            BoundKind::Within { inner, .. }
            | BoundKind::In { inner, .. }
            | BoundKind::Not(inner)
            | BoundKind::IsNull(inner)
            | BoundKind::Lookup { code: inner, .. }
            | BoundKind::OfLateText { row: inner, .. }
            | BoundKind::ToDouble { inner, .. }
            | BoundKind::DivideRounded { inner, .. }
            | BoundKind::DatePart { inner, .. } => inner.for_each_register(f),
            BoundKind::Case { branches, otherwise } => {
                for (condition, value) in branches {
                    condition.for_each_register(f);
                    value.for_each_register(f);
                }
                otherwise.for_each_register(f);
            }
        }
    }

    /// Returns the integer if the expression is constant.
    pub fn constant(&self) -> Option<i128> {
        match self.kind {
            BoundKind::Literal(Value::Int(value)) => Some(value),
            _ => None,
        }
    }
}

fn invalid(expr: &Expr, reason: &str) -> Error {
    Error::Invalid(format!("{expr}: {reason}"))
}

fn literal(value: &Value) -> Bound {
    let kind = BoundKind::Literal(value.clone());
    match value {
        Value::Null(ty) => {
            let interval = if *ty == Type::Int { Interval::EMPTY } else { Interval::ALL };
            Bound::new(Domain { ty: *ty, nullable: true, interval, dictionary: None, late: None }, BoundKind::Null)
        }
        Value::Bool(_) => Bound::new(Domain::bool(false), kind),
        Value::Int(value) => Bound::new(Domain::int(Interval::of(*value), false), kind),
        Value::Double(_) => Bound::new(Domain::double(false), kind),
    }
}

fn booleans(expr: &Expr, all: Vec<Bound>) -> Result<Vec<Bound>> {
    if all.iter().all(|bound| bound.domain.ty == Type::Bool) {
        Ok(all)
    } else {
        Err(invalid(expr, "it takes booleans"))
    }
}

fn logic(all: Vec<Bound>, kind: impl Fn(Vec<Bound>) -> BoundKind) -> Bound {
    let nullable = all.iter().any(|bound| bound.domain.nullable);
    let is_fallible = all.iter().any(|bound| bound.is_fallible);
    Bound { domain: Domain::bool(nullable), kind: kind(all), is_fallible }
}

/// Flattens an AND, and merges interval tests of the same register.
fn and(all: Vec<Bound>) -> Bound {
    let mut flat: Vec<Bound> = Vec::with_capacity(all.len());
    for bound in all.into_iter().flat_map(Bound::into_conjuncts) {
        let BoundKind::Within { inner, interval } = &bound.kind else {
            flat.push(bound);
            continue;
        };
        let same = flat.iter_mut().find_map(|other| match (&mut other.kind, &inner.kind) {
            (BoundKind::Within { inner: other, interval }, BoundKind::Register(register)) => {
                matches!(&other.kind, BoundKind::Register(o) if o == register).then_some(interval)
            }
            _ => None,
        });
        match same {
            Some(other) => *other = other.intersection(*interval),
            None => flat.push(bound),
        }
    }
    if flat.len() == 1 { flat.remove(0) } else { logic(flat, BoundKind::And) }
}

fn arithmetic(
    expr: &Expr,
    label: Option<&Arc<Label>>,
    op: ArithmeticOp,
    [left, right]: [Bound; 2],
    bounds: Bounds,
) -> Result<Bound> {
    if left.domain.ty != right.domain.ty || !matches!(left.domain.ty, Type::Int | Type::Double) {
        return Err(invalid(expr, "it takes two integers or two doubles"));
    }
    let nullable = left.domain.nullable || right.domain.nullable;
    let mut is_fallible = left.is_fallible || right.is_fallible;
    if left.domain.ty == Type::Double {
        let sides = Box::new([left, right]);
        let kind = BoundKind::Arithmetic { op, sides, exact: None, check: None };
        return Ok(Bound { domain: Domain::double(nullable), kind, is_fallible });
    }
    let (a, b) = (left.domain.interval, right.domain.interval);
    let exact = match op {
        ArithmeticOp::Add => a.checked_add(b),
        ArithmeticOp::Sub => a.checked_sub(b),
        ArithmeticOp::Mul => a.checked_mul(b),
        ArithmeticOp::Div => quotients(a, b),
        ArithmeticOp::Rem => remainders(a, b),
    };
    let divides = matches!(op, ArithmeticOp::Div | ArithmeticOp::Rem);
    let limit = Interval::new(bounds.min, bounds.max);
    let can_fail = exact.is_none_or(|exact| !limit.contains(exact)) || divides && b.contains(Interval::of(0));
    is_fallible |= can_fail;
    let check = can_fail.then(|| Check::new(bounds, expr, label));
    let interval = exact.map_or(limit, |exact| exact.intersection(limit));
    let kind = BoundKind::Arithmetic { op, sides: Box::new([left, right]), exact, check };
    Ok(Bound { domain: Domain::int(interval, nullable), kind, is_fallible })
}

fn quotients(a: Interval, b: Interval) -> Option<Interval> {
    if a.is_empty() || b.is_empty() {
        return Some(Interval::EMPTY);
    }
    if a.min == i128::MIN && b.contains(Interval::of(-1)) {
        return None;
    }
    // Division by an integer never leaves [-|a|, |a|].
    let magnitude = i128::try_from(a.magnitude()).ok()?;
    if a.min >= 0 && b.min >= 0 {
        return Some(Interval::new(0, a.max / b.min.max(1)));
    }
    Some(Interval::new(-magnitude, magnitude))
}

fn remainders(a: Interval, b: Interval) -> Option<Interval> {
    if a.is_empty() || b.is_empty() {
        return Some(Interval::EMPTY);
    }
    let most = i128::try_from(a.magnitude().min(b.magnitude().saturating_sub(1))).ok()?;
    Some(Interval::new(if a.min < 0 { -most } else { 0 }, if a.max > 0 { most } else { 0 }))
}

fn compare(expr: &Expr, op: CompareOp, left: Bound, right: Bound) -> Result<Bound> {
    let nullable = left.domain.nullable || right.domain.nullable;
    if matches!(left.kind, BoundKind::Null) || matches!(right.kind, BoundKind::Null) {
        return Ok(literal(&Value::Null(Type::Bool)));
    }
    if let Some(texts) = left.domain.late_name().or_else(|| right.domain.late_name()) {
        return Err(Error::Unsupported(format!("a comparison of {texts}")));
    }
    if left.domain.ty != right.domain.ty {
        return Err(invalid(expr, "its sides are of different types"));
    }
    if left.domain.ty == Type::Text {
        let same = match (&left.domain.dictionary, &right.domain.dictionary) {
            (Some(a), Some(b)) => a.is_same_as(b),
            _ => false,
        };
        if !same {
            return Err(Error::Unsupported("a comparison of texts of different columns".into()));
        }
    }
    if left.constant().is_some() && right.constant().is_none() {
        return compare(expr, op.mirrored(), right, left);
    }
    let domain = Domain::bool(nullable);
    if let (Type::Int, Some(value)) = (left.domain.ty, right.constant()) {
        let below = value.checked_sub(1);
        let above = value.checked_add(1);
        let interval = match op {
            CompareOp::Equal => Some(Interval::of(value)),
            CompareOp::Less => Some(below.map_or(Interval::EMPTY, |max| Interval::new(i128::MIN, max))),
            CompareOp::LessOrEqual => Some(Interval::new(i128::MIN, value)),
            CompareOp::Greater => Some(above.map_or(Interval::EMPTY, |min| Interval::new(min, i128::MAX))),
            CompareOp::GreaterOrEqual => Some(Interval::new(value, i128::MAX)),
            CompareOp::NotEqual => None,
        };
        if let Some(interval) = interval {
            return Ok(Bound::of(&[&left], domain, BoundKind::Within { inner: Box::new(left.clone()), interval }));
        }
    }
    let is_fallible = left.is_fallible || right.is_fallible;
    Ok(Bound { domain, kind: BoundKind::Compare { op, sides: Box::new([left, right]) }, is_fallible })
}

fn lookup(expr: &Expr, code: Bound, function: &dyn DictionaryFunction) -> Result<Bound> {
    let Some(dictionary) = code.domain.dictionary.clone().filter(|_| code.domain.ty == Type::Text) else {
        return Err(invalid(expr, "it takes a text"));
    };
    let entries: StringViewArray = dictionary.texts().iter().chain([None]).collect();
    let results = function.apply(&entries)?;
    if results.len() != entries.len() {
        return Err(invalid(expr, "the function gave another number of results"));
    }
    let wrong_type = || invalid(expr, &format!("the function gave {}", results.data_type()));
    let valid: Vec<bool> = (0..results.len()).map(|i| results.is_valid(i)).collect();
    let for_null = valid[valid.len() - 1];
    let nullable = valid[..valid.len() - 1].contains(&false) || code.domain.nullable && !for_null;
    let (values, domain) = match results.data_type() {
        DataType::Boolean => {
            let values = results.as_boolean_opt().ok_or_else(wrong_type)?;
            (LookupValues::Bool((0..values.len()).map(|i| values.value(i)).collect()), Domain::bool(nullable))
        }
        DataType::Int64 => {
            let values = results.as_primitive_opt::<Int64Type>().ok_or_else(wrong_type)?;
            let interval =
                values.iter().flatten().map(|v| Interval::of(v.into())).fold(Interval::EMPTY, Interval::union);
            (LookupValues::Int(values.values().to_vec()), Domain::int(interval, nullable))
        }
        DataType::Float64 => {
            let values = results.as_primitive_opt::<Float64Type>().ok_or_else(wrong_type)?;
            (LookupValues::Double(values.values().to_vec()), Domain::double(nullable))
        }
        DataType::Utf8View => {
            let texts = results.as_string_view_opt().ok_or_else(wrong_type)?;
            let (dictionary, codes) = Dictionary::from_unsorted(texts);
            let dictionary = Arc::new(dictionary);
            (LookupValues::Text(codes, Arc::clone(&dictionary)), Domain::text(dictionary, nullable))
        }
        _ => return Err(wrong_type()),
    };
    let valid = valid.contains(&false).then_some(valid);
    let table = Arc::new(LookupTable { name: function.name(), values, valid });
    Ok(Bound::of(&[&code], domain, BoundKind::Lookup { code: Box::new(code.clone()), table }))
}

/// Binds a function of late strings. The result type is determined by applying the function to
/// NULL. The possible results are unknown before a row is read.
fn of_late_text(expr: &Expr, row: Bound, function: &Arc<dyn DictionaryFunction>) -> Result<Bound> {
    let Some(texts) = row.domain.late.clone() else { return Err(invalid(expr, "it takes a text")) };
    let result = function.apply(&StringViewArray::new_null(1))?;
    let domain = match result.data_type() {
        DataType::Boolean => Domain::bool(true),
        DataType::Int64 => Domain::int(function.interval(), true),
        DataType::Float64 => Domain::double(true),
        DataType::Utf8View => return Err(Error::Unsupported(format!("a text that is made of {}", texts.name()))),
        other => return Err(invalid(expr, &format!("the function gave {other}"))),
    };
    let is_fallible = row.is_fallible || function.can_fail();
    let kind = BoundKind::OfLateText { row: Box::new(row), texts, function: Arc::clone(function) };
    Ok(Bound { domain, kind, is_fallible })
}

/// Returns the common domain of several values.
fn common(expr: &Expr, all: &[&Bound]) -> Result<Domain> {
    let mut typed = all.iter().filter(|bound| !matches!(bound.kind, BoundKind::Null));
    let Some(first) = typed.next() else { return Ok(all[0].domain.clone()) };
    let mut domain = first.domain.clone();
    for bound in typed {
        let is_same = |a: &LateTexts, b: &LateTexts| a.is_same_as(b);
        match (&domain.late, &bound.domain.late) {
            (None, None) => {}
            (Some(a), Some(b)) if is_same(a, b) => {}
            _ => return Err(different_texts()),
        }
        if bound.domain.ty != domain.ty {
            return Err(invalid(expr, "its values are of different types"));
        }
        let same_dictionary = match (&domain.dictionary, &bound.domain.dictionary) {
            (Some(a), Some(b)) => a.is_same_as(b),
            (None, None) => true,
            _ => false,
        };
        if !same_dictionary {
            return Err(different_texts());
        }
        domain.interval = domain.interval.union(bound.domain.interval);
    }
    domain.nullable = all.iter().any(|bound| bound.domain.nullable);
    Ok(domain)
}

fn different_texts() -> Error {
    Error::Unsupported("a choice between texts of different columns, as in CASE or coalesce()".into())
}

fn case(expr: &Expr, branches: Vec<(Bound, Bound)>, otherwise: Option<Bound>) -> Result<Bound> {
    let Some((_, first)) = branches.first() else { return Err(invalid(expr, "it has no branch")) };
    let otherwise = otherwise.unwrap_or_else(|| literal(&Value::Null(first.domain.ty)));
    let values: Vec<&Bound> = branches.iter().map(|(_, value)| value).chain([&otherwise]).collect();
    let domain = common(expr, &values)?;
    let is_fallible = values.iter().any(|value| value.is_fallible) || branches.iter().any(|(when, _)| when.is_fallible);
    Ok(Bound { domain, kind: BoundKind::Case { branches, otherwise: Box::new(otherwise) }, is_fallible })
}

fn coalesce(expr: &Expr, mut all: Vec<Bound>) -> Result<Bound> {
    if all.is_empty() {
        return Err(invalid(expr, "it has no argument"));
    }
    // Values after one that is never NULL are never used.
    if let Some(last) = all.iter().position(|bound| !bound.domain.nullable) {
        all.truncate(last + 1);
    }
    let references: Vec<&Bound> = all.iter().collect();
    let is_fallible = references.iter().any(|bound| bound.is_fallible);
    let mut domain = common(expr, &references)?;
    domain.nullable = all.iter().all(|bound| bound.domain.nullable);
    if all.len() == 1 {
        return Ok(all.remove(0));
    }
    Ok(Bound { domain, kind: BoundKind::Coalesce(all), is_fallible })
}

fn rescale(expr: &Expr, label: Option<&Arc<Label>>, inner: Bound, digits: i8, bounds: Bounds) -> Result<Bound> {
    if inner.domain.ty != Type::Int {
        return Err(invalid(expr, "it takes a decimal"));
    }
    let factor = 10i128.checked_pow(digits.unsigned_abs().into());
    let factor = factor.ok_or_else(|| invalid(expr, "more digits than 128 bits hold"))?;
    let interval = inner.domain.interval;
    let exact = match digits {
        0.. => interval.checked_mul(Interval::of(factor)),
        _ if interval.is_empty() => Some(interval),
        _ => Some(Interval::new(rounded(interval.min, factor), rounded(interval.max, factor))),
    };
    let limit = Interval::new(bounds.min, bounds.max);
    let can_fail = exact.is_none_or(|exact| !limit.contains(exact));
    let check = can_fail.then(|| Check::new(bounds, expr, label));
    let domain = Domain::int(exact.map_or(limit, |exact| exact.intersection(limit)), inner.domain.nullable);
    let is_fallible = inner.is_fallible || can_fail;
    let kind = match (inner.constant(), digits) {
        (Some(_), _) if !can_fail => return Ok(literal(&Value::Int(domain.interval.min))),
        (_, ..0) => BoundKind::DivideRounded { inner: Box::new(inner), divisor: factor, check },
        // Like any product, it is computed in as few bits as possible.
        _ => {
            let sides = Box::new([inner, literal(&Value::Int(factor))]);
            BoundKind::Arithmetic { op: ArithmeticOp::Mul, sides, exact, check }
        }
    };
    Ok(Bound { domain, kind, is_fallible })
}

/// Returns `value / factor`, rounded half away from zero.
pub fn rounded(value: i128, factor: i128) -> i128 {
    let (quotient, remainder) = (value / factor, value % factor);
    // Not `2 * remainder`, which may not fit.
    if remainder.unsigned_abs() >= (factor - factor / 2).unsigned_abs() { quotient + value.signum() } else { quotient }
}

fn date_part(expr: &Expr, part: DatePart, inner: Bound) -> Result<Bound> {
    if inner.domain.ty != Type::Int {
        return Err(invalid(expr, "it takes a date"));
    }
    let days = inner.domain.interval;
    if !Interval::new(i32::MIN.into(), i32::MAX.into()).contains(days) {
        return Err(Error::Unsupported("a part of a date that may be out of range".into()));
    }
    let interval = match part {
        _ if days.is_empty() => days,
        DatePart::Year => Interval::new(civil(days.min as i64).0.into(), civil(days.max as i64).0.into()),
        DatePart::Quarter => Interval::new(1, 4),
        DatePart::Month => Interval::new(1, 12),
        DatePart::Day => Interval::new(1, 31),
    };
    let domain = Domain::int(interval, inner.domain.nullable);
    Ok(Bound::of(&[&inner], domain, BoundKind::DatePart { part, inner: Box::new(inner.clone()) }))
}

/// Returns year, month and day of a day since 1970-01-01 (Hinnant, "chrono-compatible low-level
/// date algorithms").
pub fn civil(day: i64) -> (i64, u32, u32) {
    let shifted = day + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = (day_of_year - (153 * shifted_month + 2) / 5 + 1) as u32;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 } as u32;
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const INTEGER: Bounds = Bounds { min: i32::MIN as i128, max: i32::MAX as i128, type_name: "INTEGER" };

    fn register(min: i128, max: i128) -> Domain {
        Domain::int(Interval::new(min, max), false)
    }

    #[test]
    fn checks_go_where_data_cannot_fail_them() {
        let product = Expr::arithmetic(ArithmeticOp::Mul, Expr::Register(0), Expr::Register(1), INTEGER);
        let bound = bind(&product, &[register(0, 10_000_000), register(0, 10)]).unwrap();
        assert!(!bound.is_fallible);
        assert_eq!(bound.domain.interval, Interval::new(0, 100_000_000));
        let bound = bind(&product, &[register(0, 10_000_000), register(0, 1000)]).unwrap();
        assert!(bound.is_fallible);
        assert_eq!(bound.domain.interval, Interval::new(0, i32::MAX.into()));
    }

    #[test]
    fn ranges_of_a_register_are_one_test() {
        let at_least = Expr::compare(CompareOp::GreaterOrEqual, Expr::Register(0), Expr::int(3));
        let at_most = Expr::compare(CompareOp::GreaterOrEqual, Expr::int(9), Expr::Register(0));
        let bound = bind(&Expr::And(vec![at_least, at_most]), &[register(0, 100)]).unwrap();
        assert!(
            matches!(&bound.kind, BoundKind::Within { interval, .. } if *interval == Interval::new(3, 9)),
            "{bound:?}"
        );
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let registers = [register(0, 1), Domain::bool(false)];
        let bad = [
            Expr::Register(7),
            Expr::Not(Box::new(Expr::Register(0))),
            Expr::compare(CompareOp::Equal, Expr::Register(0), Expr::Register(1)),
            Expr::And(vec![Expr::Register(0)]),
            Expr::Coalesce(vec![]),
        ];
        for expr in bad {
            assert!(matches!(bind(&expr, &registers), Err(Error::Invalid(_))), "{expr}");
        }
    }

    #[test]
    fn dates_are_civil() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(-1), (1969, 12, 31));
        assert_eq!(civil(11_016), (2000, 2, 29));
        assert_eq!(civil(8_035), (1992, 1, 1));
        assert_eq!(civil(-719_469), (0, 2, 29));
    }

    #[test]
    fn halves_are_rounded_away_from_zero() {
        let cases = [(15, 10, 2), (-15, 10, -2), (14, 10, 1), (-14, 10, -1), (5, 10, 1), (4, 10, 0), (7, 1, 7)];
        for (value, factor, expected) in cases {
            assert_eq!(rounded(value, factor), expected, "{value} / {factor}");
        }
        assert_eq!(rounded(i128::MAX, 10), i128::MAX / 10 + 1);
    }
}
