//! Translates DataFusion's expressions to the pipelines'.
//!
//! DataFusion has settled types: both sides of a comparison have one type. Decimals in arithmetic
//! are the exception. An expression that reads a single text column becomes a function of its
//! dictionary, which DataFusion evaluates. So all text functions work, with the same results.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arrow::datatypes::{DECIMAL128_MAX_PRECISION, DataType};
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, ScalarValue};
use datafusion::execution::SessionState;
use datafusion::logical_expr::expr::{Between, Case, Cast, InList, ScalarFunction};
use datafusion::logical_expr::{BinaryExpr, Expr, ExprSchemable, Operator};
use onehop_pipeline::{ArithmeticOp, Bounds, CompareOp, DatePart, Expr as Pipeline, Type, Value};

use super::relation::Relation;
use super::sql::Names;
use super::text::{TextFunction, canonical};
use super::{Lowered, because};
use crate::planner::{ONE_NAN, Operation, as_lossy_cast, operation_of, room_for};
use crate::type_names::sql_name;

/// Translates expressions over the columns that have a register.
pub(super) struct Translator<'a> {
    /// All columns of the subtree.
    pub schema: Arc<DFSchema>,
    /// The relations of these columns.
    pub relations: &'a [Relation],
    pub state: &'a SessionState,
    pub registers: HashMap<Column, usize>,
    /// The nesting depth of the expression that is being translated.
    pub depth: Cell<usize>,
}

/// Maximum depth of expressions: the thread that runs the pipeline recurses over them.
const MAX_DEPTH: usize = 100;

/// Returns the pipelines' type of a column or result.
pub(super) fn type_of(data_type: &DataType) -> Lowered<Type> {
    Ok(match data_type {
        DataType::Boolean => Type::Bool,
        DataType::Float64 => Type::Double,
        DataType::Utf8View | DataType::Utf8 | DataType::LargeUtf8 => Type::Text,
        DataType::Timestamp(..) | DataType::Date32 | DataType::Decimal128(..) => Type::Int,
        integer if integer.is_integer() => Type::Int,
        other => return because(format!("values of type {}", sql_name(other))),
    })
}

/// Returns the range of values of a type.
pub(super) fn bounds(data_type: &DataType) -> Bounds {
    let of = |min: i128, max: i128, type_name: &'static str| Bounds { min, max, type_name };
    match data_type {
        DataType::Int8 => of(i8::MIN.into(), i8::MAX.into(), "TINYINT"),
        DataType::Int16 => of(i16::MIN.into(), i16::MAX.into(), "SMALLINT"),
        DataType::Int32 => of(i32::MIN.into(), i32::MAX.into(), "INTEGER"),
        DataType::Int64 => of(i64::MIN.into(), i64::MAX.into(), "BIGINT"),
        DataType::UInt8 => of(0, u8::MAX.into(), "TINYINT UNSIGNED"),
        DataType::UInt16 => of(0, u16::MAX.into(), "SMALLINT UNSIGNED"),
        DataType::UInt32 => of(0, u32::MAX.into(), "INTEGER UNSIGNED"),
        DataType::UInt64 => of(0, u64::MAX.into(), "BIGINT UNSIGNED"),
        DataType::Decimal128(precision, _) => {
            let most = 10i128.pow((*precision).min(DECIMAL128_MAX_PRECISION).into()) - 1;
            of(-most, most, "DECIMAL")
        }
        _ => Bounds::NONE,
    }
}

impl Translator<'_> {
    /// Returns the names for messages.
    pub fn names(&self) -> Names<'_> {
        Names { relations: self.relations, schema: &self.schema }
    }

    /// Translates an expression.
    pub fn translate(&self, expr: &Expr) -> Lowered<Pipeline> {
        if self.depth.get() == MAX_DEPTH {
            return because(format!("an expression of more than {MAX_DEPTH} levels"));
        }
        self.depth.set(self.depth.get() + 1);
        let translated = self.translate_one(expr);
        self.depth.set(self.depth.get() - 1);
        translated
    }

    fn translate_one(&self, expr: &Expr) -> Lowered<Pipeline> {
        if let Some(lookup) = self.function_of_text(expr)? {
            return Ok(lookup);
        }
        match expr {
            Expr::Alias(alias) => self.translate(&alias.expr),
            Expr::Column(column) => match self.registers.get(column) {
                Some(register) => Ok(Pipeline::Register(*register)),
                None => because(format!("{} where it is not known", self.names().column(column))),
            },
            Expr::Literal(value, _) => literal(value),
            Expr::BinaryExpr(binary) => self.binary(expr, binary),
            Expr::Not(inner) => Ok(Pipeline::Not(Box::new(self.translate(inner)?))),
            Expr::IsNull(inner) => Ok(Pipeline::IsNull(Box::new(self.translate(inner)?))),
            Expr::IsNotNull(inner) => Ok(not(Pipeline::IsNull(Box::new(self.translate(inner)?)))),
            Expr::IsTrue(inner) => Ok(or_false(self.translate(inner)?)),
            Expr::IsNotTrue(inner) => Ok(not(or_false(self.translate(inner)?))),
            Expr::IsFalse(inner) => Ok(or_false(not(self.translate(inner)?))),
            Expr::IsNotFalse(inner) => Ok(not(or_false(not(self.translate(inner)?)))),
            Expr::Between(Between { expr: inner, negated, low, high }) => {
                let at_least = self.compare(CompareOp::GreaterOrEqual, inner, low)?;
                let at_most = self.compare(CompareOp::LessOrEqual, inner, high)?;
                let between = Pipeline::And(vec![at_least, at_most]);
                Ok(if *negated { not(between) } else { between })
            }
            Expr::InList(list) => self.in_list(list),
            Expr::Case(case) => self.case(case),
            Expr::Cast(Cast { expr: inner, field }) => self.cast(inner, field.data_type()),
            Expr::Negative(inner) => {
                let data_type = inner.get_type(&self.schema)?;
                let zero = match type_of(&data_type)? {
                    Type::Double => return because(format!("{}, of a double", self.names().text(expr))),
                    _ => Pipeline::int(0),
                };
                let negative =
                    Pipeline::arithmetic(ArithmeticOp::Sub, zero, self.translate(inner)?, bounds(&data_type));
                Ok(self.labelled(negative, expr, room_for(&data_type)))
            }
            Expr::ScalarFunction(call) => self.call(expr, call),
            other => because(format!("the expression {}", self.names().text(other))),
        }
    }

    /// Translates `expr` as a function of the only column that it reads, if that is text.
    fn function_of_text(&self, expr: &Expr) -> Lowered<Option<Pipeline>> {
        if matches!(expr, Expr::Column(_) | Expr::Literal(..) | Expr::Alias(_)) {
            return Ok(None);
        }
        let columns: HashSet<&Column> = expr.column_refs();
        let (Some(column), 1) = (columns.iter().next(), columns.len()) else { return Ok(None) };
        let is_text = matches!(Expr::Column((*column).clone()).get_type(&self.schema)?, DataType::Utf8View);
        if !is_text || expr.is_volatile() {
            return Ok(None);
        }
        if depth_of(expr)? > MAX_DEPTH {
            return because(format!("an expression of more than {MAX_DEPTH} levels"));
        }
        let data_type = expr.get_type(&self.schema)?;
        let Some(result) = canonical(&data_type) else { return Ok(None) };
        let Some(register) = self.registers.get(*column) else {
            return because(format!("{} where it is not known", self.names().column(column)));
        };
        // DataFusion reports its own errors when it runs the expression.
        let function = match TextFunction::new(expr, column, &data_type, result, self.state) {
            Ok(function) => function,
            Err(_) => return because(format!("the expression {}", self.names().text(expr))),
        };
        let text = Box::new(Pipeline::Register(*register));
        Ok(Some(Pipeline::Lookup { text, function: Arc::new(function) }))
    }

    fn binary(&self, expr: &Expr, binary: &BinaryExpr) -> Lowered<Pipeline> {
        let compare = |op| self.compare(op, &binary.left, &binary.right);
        match binary.op {
            Operator::And => Ok(Pipeline::And(vec![self.translate(&binary.left)?, self.translate(&binary.right)?])),
            Operator::Or => Ok(Pipeline::Or(vec![self.translate(&binary.left)?, self.translate(&binary.right)?])),
            Operator::Eq => compare(CompareOp::Equal),
            Operator::NotEq => compare(CompareOp::NotEqual),
            Operator::Lt => compare(CompareOp::Less),
            Operator::LtEq => compare(CompareOp::LessOrEqual),
            Operator::Gt => compare(CompareOp::Greater),
            Operator::GtEq => compare(CompareOp::GreaterOrEqual),
            Operator::IsNotDistinctFrom => self.is_same(&binary.left, &binary.right),
            Operator::IsDistinctFrom => Ok(not(self.is_same(&binary.left, &binary.right)?)),
            Operator::Plus => self.arithmetic(expr, ArithmeticOp::Add, &binary.left, &binary.right),
            Operator::Minus => self.arithmetic(expr, ArithmeticOp::Sub, &binary.left, &binary.right),
            Operator::Multiply => self.arithmetic(expr, ArithmeticOp::Mul, &binary.left, &binary.right),
            Operator::Divide => self.arithmetic(expr, ArithmeticOp::Div, &binary.left, &binary.right),
            Operator::Modulo => self.arithmetic(expr, ArithmeticOp::Rem, &binary.left, &binary.right),
            other => because(format!("the operator {other} in {}", self.names().text(expr))),
        }
    }

    fn compare(&self, op: CompareOp, left: &Expr, right: &Expr) -> Lowered<Pipeline> {
        let (a, b) = (left.get_type(&self.schema)?, right.get_type(&self.schema)?);
        let is_null = |t: &DataType| *t == DataType::Null;
        if a != b && !is_null(&a) && !is_null(&b) {
            return because(format!("a comparison of {} with {}", sql_name(&a), sql_name(&b)));
        }
        type_of(if is_null(&a) { &b } else { &a })?;
        Ok(Pipeline::compare(op, self.translate(left)?, self.translate(right)?))
    }

    /// Equal, or both NULL.
    fn is_same(&self, left: &Expr, right: &Expr) -> Lowered<Pipeline> {
        let is_null = |expr| -> Lowered<Pipeline> { Ok(Pipeline::IsNull(Box::new(self.translate(expr)?))) };
        let both = Pipeline::And(vec![is_null(left)?, is_null(right)?]);
        Ok(Pipeline::Coalesce(vec![self.compare(CompareOp::Equal, left, right)?, both]))
    }

    fn arithmetic(&self, expr: &Expr, op: ArithmeticOp, left: &Expr, right: &Expr) -> Lowered<Pipeline> {
        let result = expr.get_type(&self.schema)?;
        let (a, b) = (left.get_type(&self.schema)?, right.get_type(&self.schema)?);
        let (x, y) = (self.translate(left)?, self.translate(right)?);
        if let (DataType::Decimal128(p, s), DataType::Decimal128(q, t), DataType::Decimal128(precision, scale)) =
            (&a, &b, &result)
        {
            let unbounded = Bounds { type_name: "DECIMAL", ..Bounds::NONE };
            // The result fits if its type has enough digits.
            let digits = match op {
                ArithmeticOp::Mul => u16::from(*p) + u16::from(*q) + 1,
                _ => {
                    ((i16::from(*p) - i16::from(*s)).max(i16::from(*q) - i16::from(*t)) + i16::from(*scale) + 1) as u16
                }
            };
            let bounds = if digits > u16::from(*precision) { bounds(&result) } else { unbounded };
            let label = |computed: Pipeline| self.labelled(computed, expr, room_for(&result));
            let at_scale = |value: Pipeline, from: i8| match scale - from {
                0 => value,
                digits => label(Pipeline::Rescale { expr: Box::new(value), digits, bounds: unbounded }),
            };
            return match op {
                ArithmeticOp::Add | ArithmeticOp::Sub if *scale == (*s).max(*t) => {
                    Ok(label(Pipeline::arithmetic(op, at_scale(x, *s), at_scale(y, *t), bounds)))
                }
                ArithmeticOp::Mul if *scale == s + t => Ok(label(Pipeline::arithmetic(op, x, y, bounds))),
                _ => because(format!("the decimal arithmetic {}", self.names().text(expr))),
            };
        }
        let is_plain = a == b && a == result && (a == DataType::Float64 || a.is_integer());
        match is_plain {
            true => Ok(self.labelled(Pipeline::arithmetic(op, x, y, bounds(&result)), expr, room_for(&result))),
            false => because(format!("{}, of {} and {}", self.names().text(expr), sql_name(&a), sql_name(&b))),
        }
    }

    /// Attaches the SQL that errors show to a computation.
    fn labelled(&self, computed: Pipeline, expr: &Expr, hint: &'static str) -> Pipeline {
        computed.labelled(self.names().text(expr), hint)
    }

    fn in_list(&self, InList { expr, list, negated }: &InList) -> Lowered<Pipeline> {
        let data_type = expr.get_type(&self.schema)?;
        if type_of(&data_type)? != Type::Int {
            return because(format!("IN with a list of {}", sql_name(&data_type)));
        }
        let mut values = Vec::with_capacity(list.len());
        for item in list {
            match (self.translate(item)?, item.get_type(&self.schema)? == data_type) {
                (Pipeline::Literal(Value::Int(value)), true) => values.push(value),
                _ => return because("IN with a list of more than constants"),
            }
        }
        let found = Pipeline::In { expr: Box::new(self.translate(expr)?), list: values };
        Ok(if *negated { not(found) } else { found })
    }

    fn case(&self, case: &Case) -> Lowered<Pipeline> {
        let mut branches = Vec::with_capacity(case.when_then_expr.len());
        for (when, then) in &case.when_then_expr {
            let condition = match &case.expr {
                // The form in which the planner writes a CASE of booleans that may fail.
                Some(of) if matches!(**of, Expr::Literal(ScalarValue::Boolean(Some(true)), _)) => {
                    self.translate(when)?
                }
                Some(of) => self.compare(CompareOp::Equal, of, when)?,
                None => self.translate(when)?,
            };
            branches.push((condition, self.translate(then)?));
        }
        let otherwise = case.else_expr.as_ref().map(|expr| self.translate(expr)).transpose()?;
        Ok(Pipeline::Case { branches, otherwise: otherwise.map(Box::new) })
    }

    fn cast(&self, inner: &Expr, to: &DataType) -> Lowered<Pipeline> {
        let from = inner.get_type(&self.schema)?;
        let value = self.translate(inner)?;
        if let Pipeline::Literal(Value::Null(_)) = value {
            return Ok(Pipeline::Literal(Value::Null(type_of(to)?)));
        }
        let rescaled = |digits: i8| {
            let rescaled = Pipeline::Rescale { expr: Box::new(value.clone()), digits, bounds: bounds(to) };
            Ok(rescaled.labelled(self.names().cast(inner, to), "TRY_CAST gives NULL for what does not fit"))
        };
        match (&from, to) {
            _ if from == *to => Ok(value),
            (_, DataType::Float64) if from.is_integer() => Ok(Pipeline::ToDouble { expr: Box::new(value), scale: 0 }),
            (DataType::Decimal128(_, scale @ 0..), DataType::Float64) => {
                Ok(Pipeline::ToDouble { expr: Box::new(value), scale: *scale as u8 })
            }
            (DataType::Float32, DataType::Float64)
            | (DataType::Date32, DataType::Int32)
            | (DataType::Int32, DataType::Date32) => Ok(value),
            _ if from.is_integer() && to.is_integer() => rescaled(0),
            (_, DataType::Decimal128(_, scale)) if from.is_integer() => rescaled(*scale),
            (DataType::Decimal128(_, from), DataType::Decimal128(_, to)) => rescaled(to - from),
            _ => because(format!(
                "the cast of {} from {} to {}",
                self.names().text(inner),
                sql_name(&from),
                sql_name(to)
            )),
        }
    }

    fn call(&self, expr: &Expr, call: &ScalarFunction) -> Lowered<Pipeline> {
        if let Some((operation, data_type)) = operation_of(&call.func) {
            let op = match operation {
                Operation::Add => ArithmeticOp::Add,
                Operation::Subtract | Operation::Negate => ArithmeticOp::Sub,
                Operation::Multiply => ArithmeticOp::Mul,
            };
            if let (DataType::Decimal128(..), [left, right]) = (data_type, call.args.as_slice()) {
                return self.arithmetic(expr, op, left, right);
            }
            let mut args = call.args.iter().map(|arg| self.translate(arg)).collect::<Lowered<Vec<_>>>()?;
            let (left, right) = match (args.pop(), args.pop()) {
                (Some(right), Some(left)) => (left, right),
                (Some(value), None) => (Pipeline::int(0), value),
                _ => return because(format!("the expression {}", self.names().text(expr))),
            };
            let computed = Pipeline::arithmetic(op, left, right, bounds(data_type));
            return Ok(self.labelled(computed, expr, room_for(data_type)));
        }
        if let Some((value, to)) = as_lossy_cast(call) {
            return self.cast(value, to);
        }
        match (call.func.name(), call.args.as_slice()) {
            // Pipelines compute only one NaN.
            (ONE_NAN, [value]) => self.translate(value),
            ("coalesce", args) => {
                Ok(Pipeline::Coalesce(args.iter().map(|arg| self.translate(arg)).collect::<Lowered<Vec<_>>>()?))
            }
            ("nullif", [value, other]) => {
                let null = Pipeline::Literal(Value::Null(type_of(&value.get_type(&self.schema)?)?));
                let branches = vec![(self.compare(CompareOp::Equal, value, other)?, null)];
                Ok(Pipeline::Case { branches, otherwise: Some(Box::new(self.translate(value)?)) })
            }
            ("date_part", [Expr::Literal(part, _), date]) if date.get_type(&self.schema)? == DataType::Date32 => {
                let part = match part.try_as_str().flatten().map(str::to_lowercase).as_deref() {
                    Some("year") => DatePart::Year,
                    Some("quarter") => DatePart::Quarter,
                    Some("month") => DatePart::Month,
                    Some("day") => DatePart::Day,
                    _ => return because(format!("date_part() of {part}")),
                };
                Ok(Pipeline::DatePart { part, date: Box::new(self.translate(date)?) })
            }
            (name, _) => because(format!("the function {name}()")),
        }
    }
}

fn depth_of(expr: &Expr) -> Lowered<usize> {
    let (mut deepest, mut open) = (0, vec![(expr, 1)]);
    while let Some((expr, depth)) = open.pop() {
        deepest = deepest.max(depth);
        expr.apply_children(|child| {
            open.push((child, depth + 1));
            Ok(TreeNodeRecursion::Continue)
        })?;
    }
    Ok(deepest)
}

fn not(expr: Pipeline) -> Pipeline {
    Pipeline::Not(Box::new(expr))
}

fn or_false(expr: Pipeline) -> Pipeline {
    Pipeline::Coalesce(vec![expr, Pipeline::Literal(Value::Bool(false))])
}

fn literal(value: &ScalarValue) -> Lowered<Pipeline> {
    let int = |value: Option<i128>| match value {
        Some(value) => Pipeline::int(value),
        None => Pipeline::Literal(Value::Null(Type::Int)),
    };
    Ok(match value {
        ScalarValue::Boolean(Some(value)) => Pipeline::Literal(Value::Bool(*value)),
        ScalarValue::Boolean(None) => Pipeline::Literal(Value::Null(Type::Bool)),
        ScalarValue::Float64(Some(value)) => Pipeline::Literal(Value::Double(*value)),
        ScalarValue::Float64(None) => Pipeline::Literal(Value::Null(Type::Double)),
        ScalarValue::Int8(value) => int(value.map(Into::into)),
        ScalarValue::Int16(value) => int(value.map(Into::into)),
        ScalarValue::Int32(value) | ScalarValue::Date32(value) => int(value.map(Into::into)),
        ScalarValue::Int64(value)
        | ScalarValue::TimestampSecond(value, _)
        | ScalarValue::TimestampMillisecond(value, _)
        | ScalarValue::TimestampMicrosecond(value, _)
        | ScalarValue::TimestampNanosecond(value, _) => int(value.map(Into::into)),
        ScalarValue::UInt8(value) => int(value.map(Into::into)),
        ScalarValue::UInt16(value) => int(value.map(Into::into)),
        ScalarValue::UInt32(value) => int(value.map(Into::into)),
        ScalarValue::UInt64(value) => int(value.map(Into::into)),
        ScalarValue::Decimal128(value, ..) => int(*value),
        other => return because(format!("the literal {other}")),
    })
}

/// Returns whether an expression has a result for each input, if its operands have one. Covers
/// expressions for which that holds for all types.
pub(super) fn cannot_fail(expr: &Expr) -> bool {
    match expr {
        Expr::BinaryExpr(binary) => matches!(
            binary.op,
            Operator::And
                | Operator::Or
                | Operator::Eq
                | Operator::NotEq
                | Operator::Lt
                | Operator::LtEq
                | Operator::Gt
                | Operator::GtEq
                | Operator::IsDistinctFrom
                | Operator::IsNotDistinctFrom
        ),
        Expr::Column(_)
        | Expr::Literal(..)
        | Expr::Alias(_)
        | Expr::Not(_)
        | Expr::IsNull(_)
        | Expr::IsNotNull(_)
        | Expr::IsTrue(_)
        | Expr::IsFalse(_)
        | Expr::IsUnknown(_)
        | Expr::IsNotTrue(_)
        | Expr::IsNotFalse(_)
        | Expr::IsNotUnknown(_)
        | Expr::Between(_)
        | Expr::InList(_) => true,
        _ => false,
    }
}
