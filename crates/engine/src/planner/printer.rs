//! Prints planned expressions as readable SQL: names as in the statement, literals in quotes, infix
//! operators, and only the parentheses that are needed.

use datafusion::common::{Column, ScalarValue};
use datafusion::logical_expr::expr::{AggregateFunction, Between, Case, Cast, InList, Like, ScalarFunction};
use datafusion::logical_expr::{BinaryExpr, Expr, Operator};

use super::{ONE_NAN, Operation};
use crate::type_names::sql_name;

/// The precedence of an expression, lowest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Binding {
    Or,
    And,
    Not,
    Comparison,
    Sum,
    Product,
    Sign,
    Atom,
}

/// The depth at which printing stops. No reader needs more, and printing is recursive.
const MAX_DEPTH: usize = 60;

/// A printer of expressions. `name` returns the names of their columns.
pub(crate) struct Printer<'a> {
    name: &'a dyn Fn(&Column) -> String,
}

/// The text of a part of an expression, with its precedence.
type Part = (String, Binding);

impl<'a> Printer<'a> {
    /// Creates a printer.
    pub fn new(name: &'a dyn Fn(&Column) -> String) -> Self {
        Self { name }
    }

    /// Prints an expression.
    pub fn print(&self, expr: &Expr) -> String {
        self.part(expr, MAX_DEPTH).0
    }

    /// Prints an expression within one of the precedence `outer`.
    fn within(&self, expr: &Expr, outer: Binding, depth: usize) -> String {
        let (text, binding) = self.part(expr, depth);
        if binding < outer { format!("({text})") } else { text }
    }

    fn list<'e>(&self, exprs: impl IntoIterator<Item = &'e Expr>, depth: usize) -> String {
        exprs.into_iter().map(|expr| self.part(expr, depth).0).collect::<Vec<_>>().join(", ")
    }

    fn part(&self, expr: &Expr, depth: usize) -> Part {
        use Binding as B;
        let Some(depth) = depth.checked_sub(1) else { return ("...".into(), B::Atom) };
        let is = |inner: &Expr, what: &str| (format!("{} IS {what}", self.within(inner, B::Sum, depth)), B::Comparison);
        match expr {
            Expr::Alias(alias) => self.part(&alias.expr, depth),
            Expr::Column(column) => ((self.name)(column), B::Atom),
            Expr::Literal(value, _) => (literal(value), B::Atom),
            Expr::BinaryExpr(binary) => self.binary(binary, depth),
            Expr::Not(inner) => (format!("NOT {}", self.within(inner, B::Comparison, depth)), B::Not),
            Expr::Negative(inner) => (format!("-{}", self.within(inner, B::Atom, depth)), B::Sign),
            Expr::IsNull(inner) => is(inner, "NULL"),
            Expr::IsNotNull(inner) => is(inner, "NOT NULL"),
            Expr::IsTrue(inner) => is(inner, "TRUE"),
            Expr::IsNotTrue(inner) => is(inner, "NOT TRUE"),
            Expr::IsFalse(inner) => is(inner, "FALSE"),
            Expr::IsNotFalse(inner) => is(inner, "NOT FALSE"),
            Expr::Between(Between { expr, negated, low, high }) => {
                let [expr, low, high] = [expr, low, high].map(|part| self.within(part, B::Sum, depth));
                (format!("{expr}{} BETWEEN {low} AND {high}", not(*negated)), B::Comparison)
            }
            Expr::InList(InList { expr, list, negated }) => {
                let (expr, list) = (self.within(expr, B::Sum, depth), self.list(list, depth));
                (format!("{expr}{} IN ({list})", not(*negated)), B::Comparison)
            }
            Expr::Like(Like { negated, expr, pattern, case_insensitive, .. }) => {
                let [expr, pattern] = [expr, pattern].map(|part| self.within(part, B::Sum, depth));
                let like = if *case_insensitive { "ILIKE" } else { "LIKE" };
                (format!("{expr}{} {like} {pattern}", not(*negated)), B::Comparison)
            }
            Expr::Cast(Cast { expr, field }) => {
                (format!("CAST({} AS {})", self.part(expr, depth).0, sql_name(field.data_type())), B::Atom)
            }
            Expr::Case(case) => (self.case(case, depth), B::Atom),
            Expr::ScalarFunction(call) => self.call(call, depth),
            Expr::AggregateFunction(call) => (self.aggregate(call, depth), B::Atom),
            other => (other.human_display().to_string(), B::Atom),
        }
    }

    fn binary(&self, BinaryExpr { left, op, right }: &BinaryExpr, depth: usize) -> Part {
        let binding = match op {
            Operator::Or => Binding::Or,
            Operator::And => Binding::And,
            Operator::Plus | Operator::Minus => Binding::Sum,
            Operator::Multiply | Operator::Divide | Operator::Modulo => Binding::Product,
            _ => Binding::Comparison,
        };
        self.infix(&op.to_string(), binding, left, right, depth)
    }

    fn infix(&self, op: &str, binding: Binding, left: &Expr, right: &Expr, depth: usize) -> Part {
        // The right side of `a - (b - c)` needs parentheses, and comparisons do not chain.
        let is_associative = matches!(binding, Binding::Or | Binding::And);
        let is_comparison = binding == Binding::Comparison;
        let tighter = match binding {
            Binding::Comparison => Binding::Sum,
            Binding::Sum => Binding::Product,
            _ => Binding::Sign,
        };
        let left = self.within(left, if is_comparison { tighter } else { binding }, depth);
        let right = self.within(right, if is_associative { binding } else { tighter }, depth);
        (format!("{left} {op} {right}"), binding)
    }

    fn case(&self, case: &Case, depth: usize) -> String {
        let mut text = "CASE".to_string();
        if let Some(expr) = &case.expr {
            text += &format!(" {}", self.part(expr, depth).0);
        }
        for (when, then) in &case.when_then_expr {
            text += &format!(" WHEN {} THEN {}", self.part(when, depth).0, self.part(then, depth).0);
        }
        if let Some(otherwise) = &case.else_expr {
            text += &format!(" ELSE {}", self.part(otherwise, depth).0);
        }
        text + " END"
    }

    fn call(&self, call: &ScalarFunction, depth: usize) -> Part {
        if let Some((value, to)) = super::as_lossy_cast(call) {
            return (format!("CAST({} AS {})", self.part(value, depth).0, sql_name(to)), Binding::Atom);
        }
        match (super::operation_of(&call.func), call.args.as_slice()) {
            // The planner added this call.
            (None, [inner]) if call.name() == ONE_NAN => self.part(inner, depth),
            (Some((Operation::Negate, _)), [inner]) => {
                (format!("-{}", self.within(inner, Binding::Atom, depth)), Binding::Sign)
            }
            (Some((operation, _)), [left, right]) => {
                let binding = if operation == Operation::Multiply { Binding::Product } else { Binding::Sum };
                self.infix(operation.symbol(), binding, left, right, depth)
            }
            _ => (format!("{}({})", call.func.name(), self.list(&call.args, depth)), Binding::Atom),
        }
    }

    fn aggregate(&self, call: &AggregateFunction, depth: usize) -> String {
        let params = &call.params;
        let distinct = if params.distinct { "DISTINCT " } else { "" };
        let args = match params.args.as_slice() {
            // DataFusion's form of `count(*)`.
            [Expr::Literal(value, _)] if call.func.name() == "count" && !value.is_null() => "*".into(),
            [] if call.func.name() == "count" => "*".into(),
            args => self.list(args, depth),
        };
        let filter = params.filter.as_ref().map(|filter| format!(" FILTER (WHERE {})", self.part(filter, depth).0));
        format!("{}({distinct}{args}){}", call.func.name(), filter.unwrap_or_default())
    }
}

fn not(negated: bool) -> &'static str {
    if negated { " NOT" } else { "" }
}

fn literal(value: &ScalarValue) -> String {
    use ScalarValue as S;
    if value.is_null() {
        return "NULL".into();
    }
    if let Some(Some(text)) = value.try_as_str() {
        return format!("'{}'", text.replace('\'', "''"));
    }
    match value {
        S::Boolean(Some(value)) => value.to_string().to_uppercase(),
        S::Date32(_) | S::Date64(_) => format!("DATE '{value}'"),
        S::TimestampSecond(..)
        | S::TimestampMillisecond(..)
        | S::TimestampMicrosecond(..)
        | S::TimestampNanosecond(..) => {
            // Its own text is a number.
            let text =
                value.to_array().ok().and_then(|array| arrow::util::display::array_value_to_string(&array, 0).ok());
            format!("TIMESTAMP '{}'", text.unwrap_or_else(|| value.to_string()))
        }
        S::Decimal128(Some(value), _, scale) => decimal(*value, *scale),
        other => other.to_string(),
    }
}

/// Returns the digits of a decimal, without trailing zeros.
fn decimal(value: i128, scale: i8) -> String {
    let Ok(scale) = usize::try_from(scale) else { return format!("{value}e{}", -i32::from(scale)) };
    let digits = format!("{:0>width$}", value.unsigned_abs(), width = scale + 1);
    let (whole, fraction) = digits.split_at(digits.len() - scale);
    let sign = if value < 0 { "-" } else { "" };
    match fraction.trim_end_matches('0') {
        "" => format!("{sign}{whole}"),
        fraction => format!("{sign}{whole}.{fraction}"),
    }
}

#[cfg(test)]
mod tests {
    use datafusion::prelude::{col, lit};

    use super::*;

    fn printed(expr: &Expr) -> String {
        Printer::new(&|column| column.name.clone()).print(expr)
    }

    #[test]
    fn expressions_read_as_they_were_written() {
        let (a, b, c) = (col("a"), col("b"), col("c"));
        assert_eq!(printed(&(a.clone() + b.clone()).gt(lit(1))), "a + b > 1");
        assert_eq!(printed(&((a.clone() + b.clone()) * c.clone())), "(a + b) * c");
        assert_eq!(printed(&(a.clone() - (b.clone() - c.clone()))), "a - (b - c)");
        let either = a.clone().eq(lit("it's")).or(b.clone().is_null());
        assert_eq!(
            printed(&either.clone().and(c.clone().not_eq(lit(true)))),
            "(a = 'it''s' OR b IS NULL) AND c != TRUE"
        );
        assert_eq!(printed(&Expr::Not(Box::new(either))), "NOT (a = 'it''s' OR b IS NULL)");
        assert_eq!(printed(&a.clone().between(lit(1), lit(3))), "a BETWEEN 1 AND 3");
        assert_eq!(printed(&a.in_list(vec![lit("x"), lit("y")], true)), "a NOT IN ('x', 'y')");
    }

    #[test]
    fn literals_are_sql() {
        let decimal = |value, scale| Expr::Literal(ScalarValue::Decimal128(Some(value), 9, scale), None);
        assert_eq!(printed(&decimal(-150, 2)), "-1.5");
        assert_eq!(printed(&decimal(5, 2)), "0.05");
        assert_eq!(printed(&decimal(500, 2)), "5");
        assert_eq!(printed(&Expr::Literal(ScalarValue::Date32(Some(0)), None)), "DATE '1970-01-01'");
        assert_eq!(printed(&Expr::Literal(ScalarValue::Int32(None), None)), "NULL");
    }

    #[test]
    fn nobody_reads_what_is_too_deep() {
        let deep = (0..10_000).fold(col("a"), |expr, _| Expr::Not(Box::new(expr)));
        assert!(printed(&deep).contains("NOT ..."));
        // Dropping it takes a stack as deep as itself.
        std::mem::forget(deep);
    }
}
