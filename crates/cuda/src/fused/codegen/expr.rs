//! Expressions as statements: every node becomes a variable, and another that tells if it has a
//! value.
//!
//! An expression that can be NULL is computed only where it is not NULL: the value under a NULL is
//! arbitrary, and intervals hold for values alone. Branches become branches, so that a fallible
//! expression is evaluated only for the rows that need it.

use std::fmt::Write as _;
use std::sync::Arc;

use onehop_pipeline::bind::{Bound, BoundKind, Check, LookupTable, LookupValues};
use onehop_pipeline::cpu::Kind;
use onehop_pipeline::decimal::{EXACT_DOUBLES, EXACT_SCALE};
use onehop_pipeline::{ArithmeticOp, CompareOp, DatePart, Interval, Value};

use super::{Args, Failure, type_of};
use crate::fused::{Error, Result};

/// Validity of an operand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Valid {
    Always,
    Never,
    /// Valid if this variable is set.
    If(String),
}

/// A computed value.
#[derive(Clone, Debug)]
pub(super) struct Operand {
    pub text: String,
    pub kind: Kind,
    pub valid: Valid,
}

impl Operand {
    /// Returns the expression that is true if the operand has a value.
    pub fn is_valid(&self) -> &str {
        match &self.valid {
            Valid::Always => "true",
            Valid::Never => "false",
            Valid::If(variable) => variable,
        }
    }

    /// Returns the expression that is true if a boolean operand is true.
    pub fn is_true(&self) -> String {
        match &self.valid {
            Valid::Always => self.text.clone(),
            Valid::Never => "false".into(),
            Valid::If(variable) => format!("({variable} && {})", self.text),
        }
    }

    /// Returns the expression that is true if a boolean operand is false.
    fn is_false(&self) -> String {
        match &self.valid {
            Valid::Always => format!("!{}", self.text),
            Valid::Never => "false".into(),
            Valid::If(variable) => format!("({variable} && !{})", self.text),
        }
    }

    /// Returns the value in another kind that can represent it.
    pub fn as_kind(&self, kind: Kind) -> String {
        if self.kind == kind { self.text.clone() } else { format!("({}){}", type_of(kind), self.text) }
    }
}

/// Statements while they are generated.
#[derive(Debug, Default)]
pub(super) struct Writer {
    pub text: String,
    pub depth: usize,
    pub next: usize,
    pub args: Args,
    pub checks: Vec<Failure>,
    pub constants: Vec<Vec<u8>>,
    /// Operands of registers that are loaded.
    pub registers: Vec<Option<Operand>>,
}

impl Writer {
    pub fn line(&mut self, line: impl AsRef<str>) {
        let _ = writeln!(self.text, "{:1$}{2}", "", self.depth * 4, line.as_ref());
    }

    pub fn open(&mut self, line: impl AsRef<str>) {
        self.line(line.as_ref());
        self.depth += 1;
    }

    pub fn close(&mut self) {
        self.depth -= 1;
        self.line("}");
    }

    pub fn variable(&mut self) -> String {
        self.next += 1;
        format!("v{}", self.next)
    }

    /// Adds a constant array and returns its expression in the argument.
    pub fn constant(&mut self, ty: &str, bytes: Vec<u8>) -> String {
        let number = self.constants.len();
        self.constants.push(bytes);
        self.args.named(ty, &format!("a{number}"), super::Word::Constant(number))
    }

    fn operand(&self, text: String, kind: Kind, valid: Valid) -> Operand {
        Operand { text, kind, valid }
    }

    /// Declares a variable with the value of an expression, computed only if all operands `of` have
    /// values.
    fn computed(&mut self, kind: Kind, of: &[&Operand], value: &str) -> Operand {
        let valid = self.all_valid(of);
        self.computed_if(kind, valid, value)
    }

    pub fn computed_if(&mut self, kind: Kind, valid: Valid, value: &str) -> Operand {
        let (name, ty) = (self.variable(), type_of(kind));
        match &valid {
            Valid::Always => self.line(format!("const {ty} {name} = {value};")),
            Valid::Never => return self.operand(format!("({ty})0"), kind, Valid::Never),
            Valid::If(variable) => self.line(format!("const {ty} {name} = {variable} ? ({ty})({value}) : ({ty})0;")),
        }
        self.operand(name, kind, valid)
    }

    /// Returns the validity of an expression that needs all of several operands.
    pub fn all_valid(&mut self, of: &[&Operand]) -> Valid {
        if of.iter().any(|operand| operand.valid == Valid::Never) {
            return Valid::Never;
        }
        let mut variables: Vec<&str> = Vec::new();
        for operand in of {
            if let Valid::If(variable) = &operand.valid
                && !variables.contains(&variable.as_str())
            {
                variables.push(variable);
            }
        }
        match variables.as_slice() {
            [] => Valid::Always,
            [one] => Valid::If((*one).into()),
            several => {
                let both = several.join(" && ");
                let name = self.variable();
                self.line(format!("const bool {name} = {both};"));
                Valid::If(name)
            }
        }
    }

    fn check(&mut self, failure: Failure) -> usize {
        self.checks.push(failure);
        self.checks.len() - 1
    }

    /// Records a failure and skips the row, if a condition holds.
    fn fail_if(&mut self, holds: &str, failure: Failure) {
        let number = self.check(failure);
        self.line(format!("if ({holds}) {{ fail(A.status, {number}); continue; }}"));
    }

    /// Generates a node. Its registers must be loaded.
    pub fn expr(&mut self, bound: &Bound) -> Result<Operand> {
        let kind = Kind::of(&bound.domain);
        Ok(match &bound.kind {
            BoundKind::Register(register) => self.registers[*register]
                .clone()
                .ok_or_else(|| Error::refused(&format!("register {register} before it is there")))?,
            BoundKind::Null | BoundKind::Literal(Value::Null(_)) => {
                self.operand(format!("({})0", type_of(kind)), kind, Valid::Never)
            }
            BoundKind::Literal(Value::Int(value)) => {
                let text = self.args.integer(kind, *value);
                self.operand(text, kind, Valid::Always)
            }
            BoundKind::Literal(Value::Bool(value)) => self.operand(value.to_string(), kind, Valid::Always),
            BoundKind::Literal(Value::Double(value)) => {
                let text = self.args.value("double", value.to_bits());
                self.operand(text, kind, Valid::Always)
            }
            BoundKind::Arithmetic { op, sides, exact, check } => {
                let (a, b) = (self.expr(&sides[0])?, self.expr(&sides[1])?);
                self.arithmetic(*op, &a, &b, *exact, check.as_ref(), kind)
            }
            BoundKind::Compare { op, sides } => {
                let (a, b) = (self.expr(&sides[0])?, self.expr(&sides[1])?);
                let common = a.kind.max(b.kind);
                let sides = match common {
                    Kind::F64 => [&a, &b].map(|side| format!("compared({})", side.text)),
                    _ => [&a, &b].map(|side| side.as_kind(common)),
                };
                let value = format!("{} {} {}", sides[0], compared_by(*op), sides[1]);
                self.computed(Kind::Bool, &[&a, &b], &value)
            }
            BoundKind::Within { inner, interval } => {
                let inner = self.expr(inner)?;
                let value = self.within(&inner, *interval);
                self.computed(Kind::Bool, &[&inner], &value)
            }
            BoundKind::In { inner, list } => {
                let inner = self.expr(inner)?;
                let value = self.in_list(&inner, list)?;
                self.computed(Kind::Bool, &[&inner], &value)
            }
            BoundKind::And(all) => self.logic(all, false)?,
            BoundKind::Or(any) => self.logic(any, true)?,
            BoundKind::Not(inner) => {
                let inner = self.expr(inner)?;
                self.operand(format!("!{}", inner.text), Kind::Bool, inner.valid)
            }
            BoundKind::IsNull(inner) => {
                let inner = self.expr(inner)?;
                let text = match &inner.valid {
                    Valid::Always => "false".into(),
                    Valid::Never => "true".into(),
                    Valid::If(variable) => format!("!{variable}"),
                };
                self.operand(text, Kind::Bool, Valid::Always)
            }
            BoundKind::Lookup { code, table } => {
                let code = self.expr(code)?;
                self.lookup(&code, table, kind)
            }
            BoundKind::OfLateText { texts, .. } => {
                return Err(Error::refused(&format!("a function of {}", texts.name())));
            }
            BoundKind::Case { branches, otherwise } => self.case(branches, otherwise, kind)?,
            BoundKind::Coalesce(all) => self.coalesce(all, kind)?,
            BoundKind::ToDouble { inner, scale } => {
                let is_exact = inner.domain.interval.magnitude() <= EXACT_DOUBLES && *scale <= EXACT_SCALE;
                if *scale > 0 && !is_exact {
                    return Err(Error::refused("decimals of more than 53 bits as doubles"));
                }
                let inner = self.expr(inner)?;
                let value = match scale {
                    0 => format!("(double){}", inner.text),
                    _ => format!("(double){} / 1e{scale}", inner.text),
                };
                self.computed(Kind::F64, &[&inner], &value)
            }
            BoundKind::DivideRounded { inner, divisor, check } => {
                let inner = self.expr(inner)?;
                let wide = Kind::of_interval(Interval::of(*divisor)).max(inner.kind);
                let divisor = self.args.integer(wide, *divisor);
                let value = format!("rounded<{}>({}, {divisor})", type_of(wide), inner.as_kind(wide));
                let result = self.computed(wide, &[&inner], &value);
                self.bounded(result, check.as_ref(), kind)
            }
            BoundKind::DatePart { part, inner } => {
                let inner = self.expr(inner)?;
                let number = match part {
                    DatePart::Year => 0,
                    DatePart::Quarter => 1,
                    DatePart::Month => 2,
                    DatePart::Day => 3,
                };
                let value = format!("({})date_part<{number}>({})", type_of(kind), inner.as_kind(Kind::I32));
                self.computed(kind, &[&inner], &value)
            }
        })
    }

    fn arithmetic(
        &mut self,
        op: ArithmeticOp,
        a: &Operand,
        b: &Operand,
        exact: Option<Interval>,
        check: Option<&Arc<Check>>,
        kind: Kind,
    ) -> Operand {
        let sign = match op {
            ArithmeticOp::Add => "+",
            ArithmeticOp::Sub => "-",
            ArithmeticOp::Mul => "*",
            ArithmeticOp::Div => "/",
            ArithmeticOp::Rem => "%",
        };
        if kind == Kind::F64 {
            let value = match op {
                ArithmeticOp::Rem => format!("remainder_of({}, {})", a.text, b.text),
                _ => format!("{} {sign} {}", a.text, b.text),
            };
            return self.computed(kind, &[a, b], &value);
        }
        let wide = exact.map_or(Kind::I128, Kind::of_interval).max(a.kind).max(b.kind);
        let valid = self.all_valid(&[a, b]);
        if valid == Valid::Never {
            return self.operand(format!("({})0", type_of(kind)), kind, valid);
        }
        let and_valid = match &valid {
            Valid::If(variable) => format!("{variable} && "),
            _ => String::new(),
        };
        if let Some(check) = check
            && matches!(op, ArithmeticOp::Div | ArithmeticOp::Rem)
        {
            self.fail_if(&format!("{and_valid}{} == 0", b.text), Failure::DivisionByZero(Arc::clone(check)));
        }
        let (left, right) = (a.as_kind(wide), b.as_kind(wide));
        if exact.is_none()
            && let Some(check) = check
        {
            let name = self.variable();
            let function = match op {
                ArithmeticOp::Add => "add_fits",
                ArithmeticOp::Sub => "sub_fits",
                ArithmeticOp::Mul => "mul_fits",
                ArithmeticOp::Div => "div_fits",
                ArithmeticOp::Rem => "rem_fits",
            };
            self.line(format!("i128 {name} = 0;"));
            let failed = format!("{and_valid}!{function}({left}, {right}, {name})");
            self.fail_if(&failed, Failure::OutOfRange(Arc::clone(check)));
            let result = self.operand(name, wide, valid);
            return self.bounded(result, Some(check), kind);
        }
        let value = match op {
            ArithmeticOp::Div => format!("quotient<{}>({left}, {right})", type_of(wide)),
            ArithmeticOp::Rem => format!("remainder_of<{}>({left}, {right})", type_of(wide)),
            _ => format!("{left} {sign} {right}"),
        };
        let result = self.computed_if(wide, valid, &value);
        // A quotient has a check for its divisor, too.
        let may_leave = |check: &&Arc<Check>| {
            exact.is_none_or(|exact| !Interval::new(check.bounds.min, check.bounds.max).contains(exact))
        };
        self.bounded(result, check.filter(may_leave), kind)
    }

    /// Checks a result against the bounds of its type and converts it to its kind.
    fn bounded(&mut self, result: Operand, check: Option<&Arc<Check>>, kind: Kind) -> Operand {
        if let (Some(check), true) = (check, result.valid != Valid::Never) {
            let inside = self.within(&result, Interval::new(check.bounds.min, check.bounds.max));
            let failed = match &result.valid {
                Valid::If(variable) => format!("{variable} && !({inside})"),
                _ => format!("!({inside})"),
            };
            self.fail_if(&failed, Failure::OutOfRange(Arc::clone(check)));
        }
        Operand { text: result.as_kind(kind), kind, valid: result.valid }
    }

    /// Generates the test that a value lies within an interval, whose ends are in the argument.
    pub fn within(&mut self, value: &Operand, interval: Interval) -> String {
        let (low, high) = self.ends(value.kind, interval);
        format!("{0} >= {low} && {0} <= {high}", value.text)
    }

    /// Returns the ends of an interval as values of a kind. They are crossed if the kind has no
    /// value in the interval.
    pub fn ends(&mut self, kind: Kind, interval: Interval) -> (String, String) {
        let clipped = clipped(kind, interval);
        (self.args.integer(kind, clipped.min), self.args.integer(kind, clipped.max))
    }

    fn in_list(&mut self, value: &Operand, list: &[i128]) -> Result<String> {
        let narrow: Vec<i64> = list.iter().filter_map(|entry| i64::try_from(*entry).ok()).collect();
        if narrow.len() < list.len() && value.kind == Kind::I128 {
            return Err(Error::refused("IN with integers of more than 64 bits"));
        }
        // An empty list gets one entry to be read, and a count of 0.
        let last = narrow.last().copied().unwrap_or(0);
        let bytes = narrow.iter().chain([&last]).flat_map(|entry| entry.to_le_bytes()).collect();
        let (list, count) = (self.constant("const i64*", bytes), self.args.value("u64", narrow.len() as u64));
        Ok(format!("{count} != 0 && in_list({}, {list}, {count})", value.text))
    }

    /// Generates AND (decided by false) or OR (decided by true). Infallible operands are computed
    /// first. Fallible ones are computed while the result is undecided.
    fn logic(&mut self, all: &[Bound], decisive: bool) -> Result<Operand> {
        let decides = |side: &Operand| if decisive { side.is_true() } else { side.is_false() };
        let agrees = |side: &Operand| if decisive { side.is_false() } else { side.is_true() };
        let (last, first): (Vec<&Bound>, Vec<&Bound>) = all.iter().partition(|bound| bound.is_fallible);
        let mut sides = Vec::with_capacity(first.len());
        for bound in first {
            sides.push(self.expr(bound)?);
        }
        let (decided, agreed) = (self.variable(), self.variable());
        let joined = |texts: Vec<String>, with: &str, none: &str| match texts.is_empty() {
            true => none.to_string(),
            false => texts.join(with),
        };
        let start = joined(sides.iter().map(decides).collect(), " || ", "false");
        self.line(format!("bool {decided} = {start};"));
        let start = joined(sides.iter().map(agrees).collect(), " && ", "true");
        self.line(format!("bool {agreed} = {start};"));
        for bound in last {
            self.open(format!("if (!{decided}) {{"));
            let side = self.expr(bound)?;
            self.line(format!("{decided} = {};", decides(&side)));
            self.line(format!("{agreed} = {agreed} && {};", agrees(&side)));
            self.close();
        }
        let is_nullable = all.iter().any(|bound| bound.domain.nullable);
        let text = if decisive { decided.clone() } else { format!("!{decided}") };
        if !is_nullable {
            return Ok(self.operand(text, Kind::Bool, Valid::Always));
        }
        let valid = self.variable();
        self.line(format!("const bool {valid} = {decided} || {agreed};"));
        Ok(self.operand(text, Kind::Bool, Valid::If(valid)))
    }

    fn lookup(&mut self, code: &Operand, table: &LookupTable, kind: Kind) -> Operand {
        let entries = match &table.values {
            LookupValues::Bool(values) => values.len(),
            LookupValues::Int(values) => values.len(),
            LookupValues::Double(values) => values.len(),
            LookupValues::Text(values, _) => values.len(),
        };
        let (ty, bytes): (_, Vec<u8>) = match (&table.values, kind) {
            (LookupValues::Bool(values), _) => ("u8", values.iter().map(|value| u8::from(*value)).collect()),
            (LookupValues::Int(values), Kind::I32) => {
                ("i32", values.iter().flat_map(|value| (*value as i32).to_le_bytes()).collect())
            }
            (LookupValues::Int(values), _) => ("i64", values.iter().flat_map(|value| value.to_le_bytes()).collect()),
            (LookupValues::Double(values), _) => {
                ("double", values.iter().flat_map(|value| value.to_le_bytes()).collect())
            }
            (LookupValues::Text(values, _), _) => {
                ("i32", values.iter().flat_map(|value| value.to_le_bytes()).collect())
            }
        };
        // The result for NULL follows those of the entries.
        let null = self.args.value("u64", entries as u64 - 1);
        let place = match &code.valid {
            Valid::Always => format!("(u64)(u32){}", code.text),
            Valid::Never => null,
            Valid::If(variable) => format!("{variable} ? (u64)(u32){} : {null}", code.text),
        };
        let at = self.variable();
        self.line(format!("const u64 {at} = {place};"));
        let values = self.constant(&format!("const {ty}*"), bytes);
        let valid = match &table.valid {
            None => Valid::Always,
            Some(valid) => {
                let valid = self.constant("const u8*", valid.iter().map(|valid| u8::from(*valid)).collect());
                let name = self.variable();
                self.line(format!("const bool {name} = {valid}[{at}];"));
                Valid::If(name)
            }
        };
        self.computed_if(kind, valid, &format!("{values}[{at}]"))
    }

    /// Declares a variable that branches assign, and its validity.
    fn assigned(&mut self, kind: Kind, nullable: bool) -> Operand {
        let name = self.variable();
        self.line(format!("{} {name} = 0;", type_of(kind)));
        let valid = match nullable {
            false => Valid::Always,
            true => {
                let valid = self.variable();
                self.line(format!("bool {valid} = false;"));
                Valid::If(valid)
            }
        };
        self.operand(name, kind, valid)
    }

    fn assign(&mut self, to: &Operand, value: &Operand) {
        if value.valid == Valid::Never {
            return;
        }
        self.line(format!("{} = {};", to.text, value.as_kind(to.kind)));
        if let Valid::If(valid) = &to.valid {
            self.line(format!("{valid} = {};", value.is_valid()));
        }
    }

    fn case(&mut self, branches: &[(Bound, Bound)], otherwise: &Bound, kind: Kind) -> Result<Operand> {
        let values = branches.iter().map(|(_, value)| value).chain([otherwise]);
        let result = self.assigned(kind, values.into_iter().any(|value| value.domain.nullable));
        for (condition, value) in branches {
            let condition = self.expr(condition)?;
            self.open(format!("if ({}) {{", condition.is_true()));
            let value = self.expr(value)?;
            self.assign(&result, &value);
            self.depth -= 1;
            self.open("} else {");
        }
        let otherwise = self.expr(otherwise)?;
        self.assign(&result, &otherwise);
        branches.iter().for_each(|_| self.close());
        Ok(result)
    }

    fn coalesce(&mut self, all: &[Bound], kind: Kind) -> Result<Operand> {
        let result = self.assigned(kind, all.iter().all(|bound| bound.domain.nullable));
        for (number, bound) in all.iter().enumerate() {
            let value = self.expr(bound)?;
            if number + 1 == all.len() {
                self.assign(&result, &value);
                break;
            }
            self.open(format!("if ({}) {{", value.is_valid()));
            self.assign(&result, &value);
            self.depth -= 1;
            self.open("} else {");
        }
        all.iter().skip(1).for_each(|_| self.close());
        Ok(result)
    }
}

/// Returns the part of an interval that a kind can represent, or crossed ends if it is empty.
pub(super) fn clipped(kind: Kind, interval: Interval) -> Interval {
    let of_kind = match kind {
        Kind::Bool => Interval::new(0, 1),
        Kind::I32 => Interval::new(i32::MIN.into(), i32::MAX.into()),
        Kind::I64 => Interval::new(i64::MIN.into(), i64::MAX.into()),
        Kind::I128 | Kind::F64 => Interval::ALL,
    };
    let clipped = interval.intersection(of_kind);
    if clipped.is_empty() { Interval::new(1, 0) } else { clipped }
}

fn compared_by(op: CompareOp) -> &'static str {
    match op {
        CompareOp::Equal => "==",
        CompareOp::NotEqual => "!=",
        CompareOp::Less => "<",
        CompareOp::LessOrEqual => "<=",
        CompareOp::Greater => ">",
        CompareOp::GreaterOrEqual => ">=",
    }
}
