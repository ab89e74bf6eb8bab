//! Expressions over registers.
//!
//! Logic is SQL's three-valued logic: comparisons and arithmetic with NULL are NULL. Integer
//! arithmetic is exact. A result that does not fit the [`Bounds`] of its type is an error.
//!
//! An expression fails only for a row that needs it. In a CASE or COALESCE, a row needs a branch or
//! argument if those before it leave the row to it. In an AND (an OR), a row needs a condition if
//! no condition evaluated before it is false (true). Conditions that cannot fail are evaluated
//! first, followed by those that can, in the order written. [`bind`](crate::bind) decides if an
//! expression can fail, from the domains of its registers.

use std::fmt;
use std::sync::Arc;

use crate::{DictionaryFunction, Type};

/// A literal.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// NULL of a type.
    Null(Type),
    /// True or false.
    Bool(bool),
    /// An integer, an unscaled decimal, a date, a timestamp.
    Int(i128),
    /// A double.
    Double(f64),
}

/// An arithmetic operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArithmeticOp {
    /// `+`
    Add,
    /// `-`
    Sub,
    /// `*`
    Mul,
    /// `/`, truncated towards zero for integers
    Div,
    /// `%`, with the sign of the left side
    Rem,
}

/// A comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "they are what they are called")]
pub enum CompareOp {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl CompareOp {
    /// Returns the same comparison with its sides exchanged.
    #[must_use]
    pub fn mirrored(self) -> Self {
        match self {
            Self::Equal | Self::NotEqual => self,
            Self::Less => Self::Greater,
            Self::LessOrEqual => Self::GreaterOrEqual,
            Self::Greater => Self::Less,
            Self::GreaterOrEqual => Self::LessOrEqual,
        }
    }
}

/// A part of a date.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "they are what they are called")]
pub enum DatePart {
    Year,
    Quarter,
    Month,
    Day,
}

/// The integers of an SQL type, and its name for errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The least.
    pub min: i128,
    /// The greatest.
    pub max: i128,
    /// The type's name for users.
    pub type_name: &'static str,
}

impl Bounds {
    /// No bounds but those of 128 bits.
    pub const NONE: Self = Self { min: i128::MIN, max: i128::MAX, type_name: "a 128-bit integer" };
}

/// Description of an expression for errors, in the words of the query's author.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// The expression.
    pub text: String,
    /// A remedy if its result is out of range.
    pub hint: &'static str,
}

/// An expression over registers.
#[derive(Clone, Debug)]
pub enum Expr {
    /// A register.
    Register(usize),
    /// A literal.
    Literal(Value),
    /// Arithmetic on two integers or two doubles.
    Arithmetic {
        /// The operator.
        op: ArithmeticOp,
        /// Its left side.
        left: Box<Expr>,
        /// Its right side.
        right: Box<Expr>,
        /// Bounds of an integer result.
        bounds: Bounds,
    },
    /// Comparison of two integers, two doubles, two booleans, or two strings.
    Compare {
        /// The operator.
        op: CompareOp,
        /// Its left side.
        left: Box<Expr>,
        /// Its right side.
        right: Box<Expr>,
    },
    /// True if all are true.
    And(Vec<Expr>),
    /// True if any is true.
    Or(Vec<Expr>),
    /// Negation.
    Not(Box<Expr>),
    /// True if the value is NULL; never NULL itself.
    IsNull(Box<Expr>),
    /// True if the value is in a list of integers without NULLs.
    In {
        /// The value to look up.
        expr: Box<Expr>,
        /// The list.
        list: Vec<i128>,
    },
    /// A function of a string.
    Lookup {
        /// The string.
        text: Box<Expr>,
        /// The function.
        function: Arc<dyn DictionaryFunction>,
    },
    /// The value of the first branch whose condition is true.
    Case {
        /// Conditions and values.
        branches: Vec<(Expr, Expr)>,
        /// The value without a true condition; NULL if there is none.
        otherwise: Option<Box<Expr>>,
    },
    /// The first value that is not NULL.
    Coalesce(Vec<Expr>),
    /// An integer as a double, divided by a power of ten.
    ToDouble {
        /// The integer.
        expr: Box<Expr>,
        /// Digits after the point.
        scale: u8,
    },
    /// A decimal at another scale: multiplied by a power of ten, or divided by one and rounded half
    /// away from zero.
    Rescale {
        /// The decimal.
        expr: Box<Expr>,
        /// Digits more (or, if negative, less) after the point.
        digits: i8,
        /// Bounds of the result.
        bounds: Bounds,
    },
    /// An expression with a label for its own errors, not for those of its operands.
    Labelled {
        /// The label.
        label: Arc<Label>,
        /// The expression.
        expr: Box<Expr>,
    },
    /// A part of a date in days since 1970-01-01, in the proleptic Gregorian calendar.
    DatePart {
        /// The part.
        part: DatePart,
        /// The date.
        date: Box<Expr>,
    },
}

impl Expr {
    /// Creates a literal integer.
    pub fn int(value: impl Into<i128>) -> Self {
        Self::Literal(Value::Int(value.into()))
    }

    /// Creates a comparison.
    pub fn compare(op: CompareOp, left: Expr, right: Expr) -> Self {
        Self::Compare { op, left: Box::new(left), right: Box::new(right) }
    }

    /// Creates an arithmetic expression.
    pub fn arithmetic(op: ArithmeticOp, left: Expr, right: Expr, bounds: Bounds) -> Self {
        Self::Arithmetic { op, left: Box::new(left), right: Box::new(right), bounds }
    }

    /// Adds a label for errors.
    #[must_use]
    pub fn labelled(self, text: String, hint: &'static str) -> Self {
        Self::Labelled { label: Arc::new(Label { text, hint }), expr: Box::new(self) }
    }

    /// Returns true if it reads values of a register, beyond a test of it for NULL.
    pub fn reads_values_of(&self, register: usize) -> bool {
        match self {
            Self::IsNull(expr) if matches!(**expr, Self::Register(_)) => false,
            Self::Not(expr) => expr.reads_values_of(register),
            Self::And(all) | Self::Or(all) => all.iter().any(|expr| expr.reads_values_of(register)),
            other => {
                let mut reads = false;
                other.for_each_register(&mut |read| reads |= read == register);
                reads
            }
        }
    }

    /// Calls `f` with every register that it reads.
    pub fn for_each_register(&self, f: &mut impl FnMut(usize)) {
        match self {
            Self::Register(register) => f(*register),
            Self::Literal(_) => {}
            Self::Arithmetic { left, right, .. } | Self::Compare { left, right, .. } => {
                left.for_each_register(f);
                right.for_each_register(f);
            }
            Self::And(all) | Self::Or(all) | Self::Coalesce(all) => all.iter().for_each(|e| e.for_each_register(f)),
            Self::Not(expr)
            | Self::IsNull(expr)
            | Self::In { expr, .. }
            | Self::Lookup { text: expr, .. }
            | Self::ToDouble { expr, .. }
            | Self::Rescale { expr, .. }
            | Self::Labelled { expr, .. }
            | Self::DatePart { date: expr, .. } => expr.for_each_register(f),
            Self::Case { branches, otherwise } => {
                for (condition, value) in branches {
                    condition.for_each_register(f);
                    value.for_each_register(f);
                }
                if let Some(otherwise) = otherwise {
                    otherwise.for_each_register(f);
                }
            }
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Null(_) => f.write_str("null"),
            Value::Bool(value) => write!(f, "{value}"),
            Value::Int(value) => write!(f, "{value}"),
            Value::Double(value) => write!(f, "{value:?}"),
        }
    }
}

impl fmt::Display for ArithmeticOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Add => "+",
            Self::Sub => "-",
            Self::Mul => "*",
            Self::Div => "/",
            Self::Rem => "%",
        })
    }
}

impl fmt::Display for CompareOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Equal => "=",
            Self::NotEqual => "<>",
            Self::Less => "<",
            Self::LessOrEqual => "<=",
            Self::Greater => ">",
            Self::GreaterOrEqual => ">=",
        })
    }
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |f: &mut fmt::Formatter<'_>, all: &[Expr], separator: &str| {
            f.write_str("(")?;
            for (i, expr) in all.iter().enumerate() {
                write!(f, "{}{expr}", if i == 0 { "" } else { separator })?;
            }
            f.write_str(")")
        };
        match self {
            Self::Register(register) => write!(f, "%{register}"),
            Self::Literal(value) => write!(f, "{value}"),
            Self::Arithmetic { op, left, right, .. } => write!(f, "({left} {op} {right})"),
            Self::Compare { op, left, right } => write!(f, "{left} {op} {right}"),
            Self::And(all) => list(f, all, " and "),
            Self::Or(all) => list(f, all, " or "),
            Self::Coalesce(all) => {
                f.write_str("coalesce")?;
                list(f, all, ", ")
            }
            Self::Not(expr) => write!(f, "not {expr}"),
            Self::IsNull(expr) => write!(f, "{expr} is null"),
            Self::In { expr, list } => {
                let list: Vec<String> = list.iter().map(i128::to_string).collect();
                write!(f, "{expr} in ({})", list.join(", "))
            }
            Self::Lookup { text, function } => f.write_str(&function.name().replace('$', &text.to_string())),
            Self::Case { branches, otherwise } => {
                f.write_str("case")?;
                for (condition, value) in branches {
                    write!(f, " when {condition} then {value}")?;
                }
                if let Some(otherwise) = otherwise {
                    write!(f, " else {otherwise}")?;
                }
                f.write_str(" end")
            }
            Self::ToDouble { expr, scale: 0 } => write!(f, "double({expr})"),
            Self::ToDouble { expr, scale } => write!(f, "double({expr} / 10^{scale})"),
            Self::Rescale { expr, digits, .. } => write!(f, "rescale({expr}, {digits:+})"),
            Self::Labelled { expr, .. } => write!(f, "{expr}"),
            Self::DatePart { part, date } => write!(f, "{part:?}({date})"),
        }
    }
}
