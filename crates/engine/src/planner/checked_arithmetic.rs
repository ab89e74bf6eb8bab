//! `9223372036854775807 + 1` is an error, and so is `sum()` of these values.
//!
//! DataFusion adds, subtracts, multiplies and negates integers modulo 2^n. It returns a wrong
//! number where PostgreSQL and DuckDB return an error. Its physical expressions can check for
//! overflow, but SQL cannot request the check, and constants are folded before that stage. This
//! rule replaces the operators on integers with checking functions as soon as types are settled.
//! The check ORs a flag over a batch without a branch. If the flag is set, the function searches
//! for the row.
//!
//! Decimals of more than 38 digits are an error as well. Arrow computes them in 128 bits and cuts
//! off digits when it prints one ([#16406]). The type of `a * b` holds every product until it would
//! need more than 38 digits. From that size on, the function checks the results.
//!
//! [#16406]: https://github.com/apache/datafusion/issues/16406

use std::fmt::{Display, Write};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, Datum, PrimitiveArray};
use arrow::buffer::NullBuffer;
use arrow::compute::kernels::numeric;
use arrow::datatypes::{
    DECIMAL128_MAX_PRECISION, DataType, Decimal128Type, DecimalType, Field, FieldRef, Int8Type, Int16Type, Int32Type,
    Int64Type, UInt8Type, UInt16Type, UInt32Type, UInt64Type, i256,
};
use arrow::error::ArrowError;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, DataFusionError, Result, ScalarValue, internal_err};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::binary::BinaryTypeCoercer;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{
    BinaryExpr, ColumnarValue, ExprSchemable, LogicalPlan, Operator, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF,
    ScalarUDFImpl, Signature, Volatility,
};
use datafusion::optimizer::AnalyzerRule;
use datafusion::physical_expr_common::datum::apply;
use datafusion::prelude::Expr;

use super::expressions;
use crate::type_names::sql_name;
use crate::{Error, ErrorKind, Rule};

/// Returns whether the function is a checked operator, on integers of one type or on decimals.
pub(super) fn is_checked(expr: &ScalarFunction) -> bool {
    expr.func.inner().is::<Checked>()
}

#[derive(Debug)]
pub(super) struct CheckedArithmetic;

impl AnalyzerRule for CheckedArithmetic {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let rewritten = plan.transform_up_with_subqueries(|node| {
            // The numbers of LIMIT must be literals.
            if matches!(node, LogicalPlan::Limit(_)) {
                return Ok(Transformed::no(node));
            }
            let schema = expressions::readable(&node)?;
            let names = NamePreserver::new(&node);
            node.map_expressions(|expr| {
                if !has_arithmetic(&expr)? {
                    return Ok(Transformed::no(expr));
                }
                let name = names.save(&expr);
                let rewritten = expr.transform_up(|expr| Ok(rewrite(expr, &schema)))?;
                Ok(rewritten.update_data(|expr| name.restore(expr)))
            })
        });
        Ok(rewritten?.data)
    }

    fn name(&self) -> &str {
        "checked_arithmetic"
    }
}

fn has_arithmetic(expr: &Expr) -> Result<bool> {
    expr.exists(|expr| match expr {
        Expr::BinaryExpr(binary) => Ok(Operation::of(binary.op).is_some()),
        other => Ok(matches!(other, Expr::Negative(_))),
    })
}

fn rewrite(expr: Expr, schema: &DFSchema) -> Transformed<Expr> {
    match expr {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
            let operation = Operation::of(op).zip(exact(&left, schema)).zip(exact(&right, schema));
            match operation.and_then(|((operation, left), right)| Some((operation, result(&left, op, &right)?))) {
                Some((operation, data_type)) => {
                    let types = [exact(&left, schema), exact(&right, schema)].into_iter().flatten().collect();
                    Transformed::yes(operation.call(data_type, types, vec![*left, *right]))
                }
                None => Transformed::no(Expr::BinaryExpr(BinaryExpr { left, op, right })),
            }
        }
        Expr::Negative(inner) => match exact(&inner, schema) {
            Some(data_type) if data_type.is_integer() => {
                Transformed::yes(Operation::Negate.call(data_type.clone(), vec![data_type], vec![*inner]))
            }
            _ => Transformed::no(Expr::Negative(inner)),
        },
        other => Transformed::no(other),
    }
}

/// Returns the type of the result if the operator is checked on these operand types.
fn result(left: &DataType, op: Operator, right: &DataType) -> Option<DataType> {
    match (left, right) {
        (DataType::Decimal128(..), DataType::Decimal128(..)) => {
            let result = BinaryTypeCoercer::new(left, &op, right).get_result_type().ok()?;
            matches!(result, DataType::Decimal128(..)).then_some(result)
        }
        _ => (left == right && left.is_integer()).then(|| left.clone()),
    }
}

/// Returns the expression's type if it is an integer or a decimal.
fn exact(expr: &Expr, schema: &DFSchema) -> Option<DataType> {
    // A rewritten operator stores its type. `get_type` would traverse the whole subtree at every
    // level.
    if let Some(checked) = Checked::of(expr) {
        return Some(checked.data_type.clone());
    }
    let data_type = expr.get_type(schema).ok()?;
    (data_type.is_integer() || matches!(data_type, DataType::Decimal128(..))).then_some(data_type)
}

/// Returns the checked operator that the function implements, and its result type. Integer operands
/// have that type.
pub(crate) fn operation_of(function: &ScalarUDF) -> Option<(Operation, &DataType)> {
    let checked: &Checked = function.inner().downcast_ref()?;
    Some((checked.operation, &checked.data_type))
}

/// A checked operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Operation {
    Add,
    Subtract,
    Multiply,
    Negate,
}

impl Operation {
    fn of(op: Operator) -> Option<Self> {
        match op {
            Operator::Plus => Some(Self::Add),
            Operator::Minus => Some(Self::Subtract),
            Operator::Multiply => Some(Self::Multiply),
            _ => None,
        }
    }

    fn call(self, data_type: DataType, types: Vec<DataType>, args: Vec<Expr>) -> Expr {
        let signature = Signature::exact(types, Volatility::Immutable);
        let mut hasher = DefaultHasher::new();
        let mut operators = 1;
        self.hash(&mut hasher);
        for arg in &args {
            match Checked::of(arg) {
                Some(inner) => {
                    operators += inner.operators;
                    inner.id.hash(&mut hasher);
                }
                None => arg.hash(&mut hasher),
            }
        }
        let checked = Checked { operation: self, data_type, signature, operators, id: hasher.finish() };
        Expr::ScalarFunction(ScalarFunction::new_udf(Arc::new(ScalarUDF::from(checked)), args))
    }

    /// Returns the operator's SQL symbol.
    pub(crate) fn symbol(self) -> &'static str {
        match self {
            Self::Add => "+",
            Self::Subtract | Self::Negate => "-",
            Self::Multiply => "*",
        }
    }
}

/// An operator on integers of one type, or on decimals.
#[derive(Debug)]
struct Checked {
    operation: Operation,
    data_type: DataType,
    signature: Signature,
    /// The number of checked operators in this expression, including this one.
    operators: usize,
    /// A hash of the operator and its original arguments.
    id: u64,
}

/// Compares operators and types. DataFusion compares the arguments separately.
impl PartialEq for Checked {
    fn eq(&self, other: &Self) -> bool {
        self.operation == other.operation && self.data_type == other.data_type
    }
}

impl Eq for Checked {}

impl Hash for Checked {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.operation.hash(state);
        self.data_type.hash(state);
    }
}

impl ScalarUDFImpl for Checked {
    fn name(&self) -> &str {
        match self.operation {
            Operation::Add => "add",
            Operation::Subtract => "subtract",
            Operation::Multiply => "multiply",
            Operation::Negate => "negate",
        }
    }

    /// Returns the name of the SQL operator on its arguments.
    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        let mut name = String::new();
        if self.operators > MAX_NAMED {
            let _ = write!(name, "{}_{:016x}", self.name(), self.id);
        } else {
            self.write_name(args, &mut name);
        }
        Ok(name)
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(self.data_type.clone())
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        let is_nullable = args.arg_fields.iter().any(|field| field.is_nullable());
        Ok(Arc::new(Field::new(self.name(), self.data_type.clone(), is_nullable)))
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
        match &self.data_type {
            DataType::Int8 => self.invoke::<Int8Type>(&call),
            DataType::Int16 => self.invoke::<Int16Type>(&call),
            DataType::Int32 => self.invoke::<Int32Type>(&call),
            DataType::Int64 => self.invoke::<Int64Type>(&call),
            DataType::UInt8 => self.invoke::<UInt8Type>(&call),
            DataType::UInt16 => self.invoke::<UInt16Type>(&call),
            DataType::UInt32 => self.invoke::<UInt32Type>(&call),
            DataType::UInt64 => self.invoke::<UInt64Type>(&call),
            DataType::Decimal128(precision, scale) => self.invoke_decimals(&call.args, *precision, *scale),
            other => internal_err!("{} of {other}", self.name()),
        }
    }
}

/// The number of operators up to which a name is spelled out. DataFusion requests the name at every
/// level whenever it computes a type. The names of a chain of hundreds would dominate planning
/// time, so a hash replaces them.
const MAX_NAMED: usize = 32;

impl Checked {
    fn of(expr: &Expr) -> Option<&Self> {
        match expr {
            Expr::ScalarFunction(call) => call.func.inner().downcast_ref(),
            _ => None,
        }
    }

    /// Appends the names of all operators below to one string. Separate names would be copied once
    /// a level.
    fn write_name(&self, args: &[Expr], name: &mut String) {
        let write = |expr: &Expr, name: &mut String| match (Self::of(expr), expr) {
            (Some(inner), Expr::ScalarFunction(call)) => inner.write_name(&call.args, name),
            _ => _ = write!(name, "{}", expr.schema_name()),
        };
        match args {
            [value] => {
                name.push_str("(- ");
                write(value, name);
                name.push(')');
            }
            [left, right] => {
                write(left, name);
                let _ = write!(name, " {} ", self.operation.symbol());
                write(right, name);
            }
            _ => {}
        }
    }

    fn invoke<T: ArrowPrimitiveType>(&self, call: &ScalarFunctionArgs) -> Result<ColumnarValue>
    where
        T::Native: Integer,
    {
        let zero = ScalarValue::new_zero(&self.data_type)?;
        let (left, right) = match call.args.as_slice() {
            [left, right] => (Operand::<T>::of(left)?, Operand::<T>::of(right)?),
            [value] => (Operand::of(&ColumnarValue::Scalar(zero))?, Operand::of(value)?),
            other => return internal_err!("{} of {} arguments", self.name(), other.len()),
        };
        match self.operation {
            Operation::Add => self.compute(&left, &right, T::Native::add),
            Operation::Subtract | Operation::Negate => self.compute(&left, &right, T::Native::subtract),
            Operation::Multiply => self.compute(&left, &right, T::Native::multiply),
        }
    }

    fn compute<T: ArrowPrimitiveType>(
        &self,
        left: &Operand<T>,
        right: &Operand<T>,
        operation: impl Fn(T::Native, T::Native) -> (T::Native, bool),
    ) -> Result<ColumnarValue>
    where
        T::Native: Integer,
    {
        let mut is_out_of_range = false;
        let mut one = |left, right| {
            let (value, is_wrong) = operation(left, right);
            is_out_of_range |= is_wrong;
            value
        };
        let (values, nulls): (Vec<T::Native>, Option<NullBuffer>) = match (left, right) {
            (Operand::Scalar(left), Operand::Scalar(right)) => {
                let value = left.zip(*right).map(|(left, right)| one(left, right));
                if is_out_of_range {
                    return Err(self.out_of_range(left.as_ref(), right.as_ref()));
                }
                return Ok(ColumnarValue::Scalar(ScalarValue::new_primitive::<T>(value, &self.data_type)?));
            }
            (Operand::Array(_), Operand::Scalar(None)) | (Operand::Scalar(None), Operand::Array(_)) => {
                return Ok(ColumnarValue::Scalar(ScalarValue::try_new_null(&self.data_type)?));
            }
            (Operand::Array(left), Operand::Array(right)) => {
                let values = left.values().iter().zip(right.values()).map(|(left, right)| one(*left, *right));
                (values.collect(), NullBuffer::union(left.nulls(), right.nulls()))
            }
            (Operand::Array(left), Operand::Scalar(Some(right))) => {
                (left.values().iter().map(|left| one(*left, *right)).collect(), left.nulls().cloned())
            }
            (Operand::Scalar(Some(left)), Operand::Array(right)) => {
                (right.values().iter().map(|right| one(*left, *right)).collect(), right.nulls().cloned())
            }
        };
        if is_out_of_range {
            // A value under a NULL does not count.
            let is_wrong = |row: &usize| {
                nulls.as_ref().is_none_or(|nulls| nulls.is_valid(*row))
                    && left.value(*row).zip(right.value(*row)).is_some_and(|(l, r)| operation(l, r).1)
            };
            if let Some(row) = (0..values.len()).find(is_wrong) {
                return Err(self.out_of_range(left.value(row).as_ref(), right.value(row).as_ref()));
            }
        }
        let array: ArrayRef = Arc::new(PrimitiveArray::<T>::new(values.into(), nulls));
        Ok(ColumnarValue::Array(array))
    }

    fn invoke_decimals(&self, args: &[ColumnarValue], precision: u8, scale: i8) -> Result<ColumnarValue> {
        let [left, right] = args else { return internal_err!("{} of {} arguments", self.name(), args.len()) };
        let kernel: fn(&dyn Datum, &dyn Datum) -> std::result::Result<ArrayRef, ArrowError> = match self.operation {
            Operation::Add => numeric::add,
            Operation::Subtract => numeric::sub,
            Operation::Multiply => numeric::mul,
            Operation::Negate => return internal_err!("{} of decimals", self.name()),
        };
        let computed = match apply(left, right, kernel) {
            Err(DataFusionError::ArrowError(e, _)) if matches!(*e, ArrowError::ArithmeticOverflow(_)) => None,
            computed => Some(computed?),
        };
        let fits = |computed: &ColumnarValue| match computed {
            _ if precision < DECIMAL128_MAX_PRECISION => true,
            ColumnarValue::Scalar(ScalarValue::Decimal128(Some(value), ..)) => is_valid(*value, precision),
            ColumnarValue::Scalar(_) => true,
            ColumnarValue::Array(values) => match values.as_primitive_opt::<Decimal128Type>() {
                Some(values) if values.null_count() == 0 => {
                    values.values().iter().fold(true, |fit, value| fit & is_valid(*value, precision))
                }
                Some(values) => values.iter().flatten().all(|value| is_valid(value, precision)),
                None => false,
            },
        };
        match computed {
            Some(computed) if fits(&computed) => Ok(computed),
            _ => Err(self.decimal_out_of_range(left, right, precision, scale)?),
        }
    }

    /// Returns the error for the first row whose result has too many digits.
    fn decimal_out_of_range(
        &self,
        left: &ColumnarValue,
        right: &ColumnarValue,
        precision: u8,
        scale: i8,
    ) -> Result<DataFusionError> {
        let most = i256::from_i128(10).checked_pow(u32::from(precision)).unwrap_or(i256::MAX);
        let arrays = ColumnarValue::values_to_arrays(&[left.clone(), right.clone()])?;
        let [left, right] = arrays.as_slice() else { return internal_err!("{} of two arguments", self.name()) };
        let (left, right) = (left.as_primitive::<Decimal128Type>(), right.as_primitive::<Decimal128Type>());
        let at_scale = |value: i128, from: i8| {
            let more = u32::try_from(scale - from).unwrap_or(0);
            i256::from_i128(value).wrapping_mul(i256::from_i128(10).wrapping_pow(more))
        };
        let exact = |a: i128, b: i128| match self.operation {
            Operation::Add => at_scale(a, left.scale()).wrapping_add(at_scale(b, right.scale())),
            Operation::Subtract | Operation::Negate => {
                at_scale(a, left.scale()).wrapping_sub(at_scale(b, right.scale()))
            }
            Operation::Multiply => i256::from_i128(a).wrapping_mul(i256::from_i128(b)),
        };
        let mut rows = left.iter().zip(right.iter()).filter_map(|(a, b)| a.zip(b));
        let wrong = rows.find(|(a, b)| {
            let result = exact(*a, *b);
            result >= most || result <= most.wrapping_neg()
        });
        let text = |value: i128, of: &PrimitiveArray<Decimal128Type>| {
            Decimal128Type::format_decimal(value, of.precision(), of.scale())
        };
        let (a, b) = wrong.map_or_else(Default::default, |(a, b)| (text(a, left), text(b, right)));
        Ok(out_of_range(&self.data_type, &format!("{a} {} {b}", self.operation.symbol())))
    }

    fn out_of_range(&self, left: Option<&impl Display>, right: Option<&impl Display>) -> DataFusionError {
        let text = |value: Option<&dyn Display>| value.map_or_else(|| "NULL".to_string(), ToString::to_string);
        let right = text(right.map(|value| value as &dyn Display));
        let what = match self.operation {
            Operation::Negate => format!("-({right})"),
            other => format!("{} {} {right}", text(left.map(|value| value as &dyn Display)), other.symbol()),
        };
        out_of_range(&self.data_type, &what)
    }
}

/// Returns the error `BIGINT out of range in 9223372036854775807 + 1`.
pub(super) fn out_of_range(data_type: &DataType, what: &str) -> DataFusionError {
    let error = Error::new(ErrorKind::Data, format!("{} out of range in {what}", sql_name(data_type)));
    error.breaking(Rule::Range).with_hint(room_for(data_type)).into()
}

fn is_valid(value: i128, precision: u8) -> bool {
    Decimal128Type::is_valid_decimal_precision(value, precision)
}

/// Returns the hint for an arithmetic result that is out of range.
pub(crate) fn room_for(data_type: &DataType) -> &'static str {
    match data_type {
        DataType::Decimal128(..) | DataType::Decimal256(..) => "CAST(x AS DOUBLE) has room for more, at less precision",
        _ => MORE_ROOM,
    }
}

/// The hint for integers that are out of range.
pub(crate) const MORE_ROOM: &str =
    "CAST(x AS DECIMAL(38, 0)) has room for more, CAST(x AS DOUBLE) for more at less precision";

enum Operand<T: ArrowPrimitiveType> {
    Array(PrimitiveArray<T>),
    Scalar(Option<T::Native>),
}

impl<T: ArrowPrimitiveType> Operand<T> {
    fn of(value: &ColumnarValue) -> Result<Self> {
        let primitive = |array: &dyn Array| match array.as_primitive_opt::<T>() {
            Some(array) => Ok(array.clone()),
            None => internal_err!("an array of {} where {} was promised", array.data_type(), T::DATA_TYPE),
        };
        Ok(match value {
            ColumnarValue::Array(array) => Self::Array(primitive(array.as_ref())?),
            ColumnarValue::Scalar(scalar) => {
                let array = primitive(scalar.to_array()?.as_ref())?;
                Self::Scalar(array.is_valid(0).then(|| array.value(0)))
            }
        })
    }

    fn value(&self, row: usize) -> Option<T::Native> {
        match self {
            Self::Array(array) => Some(array.value(row)),
            Self::Scalar(value) => *value,
        }
    }
}

/// Integer arithmetic that returns the value modulo 2^n, and true if it overflowed.
trait Integer: Copy + Display {
    fn add(self, other: Self) -> (Self, bool);
    fn subtract(self, other: Self) -> (Self, bool);
    fn multiply(self, other: Self) -> (Self, bool);
}

// Comparisons vectorize; the processor's overflow flag does not.
macro_rules! signed {
    ($($native:ty => $wide:ty),*) => {
        $(impl Integer for $native {
            fn add(self, other: Self) -> (Self, bool) {
                let sum = self.wrapping_add(other);
                (sum, (self ^ sum) & (other ^ sum) < 0)
            }

            fn subtract(self, other: Self) -> (Self, bool) {
                let difference = self.wrapping_sub(other);
                (difference, (self ^ other) & (self ^ difference) < 0)
            }

            fn multiply(self, other: Self) -> (Self, bool) {
                let product = <$wide>::from(self) * <$wide>::from(other);
                (product as Self, product != <$wide>::from(product as Self))
            }
        })*
    };
}

macro_rules! unsigned {
    ($($native:ty => $wide:ty),*) => {
        $(impl Integer for $native {
            fn add(self, other: Self) -> (Self, bool) {
                let sum = self.wrapping_add(other);
                (sum, sum < self)
            }

            fn subtract(self, other: Self) -> (Self, bool) {
                (self.wrapping_sub(other), self < other)
            }

            fn multiply(self, other: Self) -> (Self, bool) {
                let product = <$wide>::from(self) * <$wide>::from(other);
                (product as Self, product != <$wide>::from(product as Self))
            }
        })*
    };
}

signed!(i8 => i16, i16 => i32, i32 => i64, i64 => i128);
unsigned!(u8 => u16, u16 => u32, u32 => u64, u64 => u128);

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::planner::tests::{fails, rows};

    #[tokio::test]
    async fn what_fits_is_what_it_was() {
        let table = "(VALUES (1, 9223372036854775806), (NULL, 5), (-7, -9223372036854775807)) AS t(a, b)";
        for (expression, expected) in [
            ("b + 1", "-9223372036854775806 6 9223372036854775807"),
            ("a * 3 - 1", "-22 2 NULL"),
            ("-b", "-5 -9223372036854775806 9223372036854775807"),
            ("a - a", "0 0 NULL"),
            ("CAST(NULL AS BIGINT) + b", "NULL NULL NULL"),
            ("CAST(a AS TINYINT) * CAST(2 AS TINYINT)", "-14 2 NULL"),
            ("arrow_typeof(CAST(a AS SMALLINT) + CAST(a AS SMALLINT))", "Int16 Int16 Int16"),
            ("5 + 3", "8 8 8"),
        ] {
            let mut found = rows(&format!("SELECT {expression} FROM {table}")).await;
            found.sort();
            assert_eq!(found.join(" "), expected, "{expression}");
        }
        assert_eq!(rows("SELECT a + 1, sum(a) FROM (VALUES (1), (1)) AS t(a) GROUP BY a + 1").await, ["2 2"]);
        assert_eq!(rows("SELECT 1 LIMIT 1 + 1").await, ["1"]);
        assert_eq!(rows("SELECT x + 1 AS x FROM (SELECT 1 AS x) UNION ALL SELECT 2 * 3").await.len(), 2);
    }

    #[tokio::test]
    async fn what_does_not_is_an_error() {
        let table = "(VALUES (9223372036854775807, 1), (NULL, 5)) AS t(a, b)";
        for (expression, expected) in [
            ("a + b", "BIGINT out of range in 9223372036854775807 + 1"),
            ("-2 - a", "BIGINT out of range in -2 - 9223372036854775807"),
            ("a * 2", "BIGINT out of range in 9223372036854775807 * 2"),
            ("-(-a - 1)", "BIGINT out of range in -(-9223372036854775808)"),
            ("CAST(100 AS TINYINT) + CAST(b + 27 AS TINYINT)", "TINYINT out of range in 100 + 28"),
            ("9223372036854775807 + 1", "BIGINT out of range in 9223372036854775807 + 1"),
            ("sum(a + b)", "BIGINT out of range in 9223372036854775807 + 1"),
        ] {
            let error = fails(&format!("SELECT {expression} FROM {table}")).await;
            assert_eq!((error.kind(), error.message()), (ErrorKind::Data, expected), "{expression}");
        }
        // A constant that the planner folds.
        let error = fails("SELECT x + 9223372036854775807 FROM (SELECT 1 AS x)").await;
        assert_eq!(error.message(), "BIGINT out of range in 1 + 9223372036854775807");
        let error = fails(&format!("SELECT a FROM {table} WHERE a + 1 > 0")).await;
        assert_eq!(error.kind(), ErrorKind::Data);
    }

    #[tokio::test]
    async fn decimals_of_more_than_38_digits_are_an_error() {
        let table = "(VALUES (CAST(12345678.5 AS DECIMAL(38, 30)), CAST(0.5 AS DECIMAL(38, 38)), 90000000000000000000000000000000000000)) AS t(a, b, c)";
        for (expression, expected) in [
            ("a * 10", "DECIMAL(38,30) out of range in 12345678.500000000000000000000000000000 * 10"),
            ("a + 99999999", "DECIMAL(38,30) out of range in 12345678.500000000000000000000000000000 + 99999999"),
            ("c + c", "DECIMAL(38,0) out of range in"),
            ("-c - c", "DECIMAL(38,0) out of range in"),
            ("b + 1", "DECIMAL(38,38) out of range in"),
            ("b + b", "DECIMAL(38,38) out of range in"),
        ] {
            let error = fails(&format!("SELECT {expression} FROM {table}")).await;
            assert_eq!(error.kind(), ErrorKind::Data, "{expression}: {error}");
            assert!(error.message().starts_with(expected), "{expression}: {error}");
        }
        let fits = "SELECT a * 2, b - b, c - 1 FROM";
        assert_eq!(
            rows(&format!("{fits} {table}")).await,
            [
                "24691357.000000000000000000000000000000 0.00000000000000000000000000000000000000 89999999999999999999999999999999999999"
            ]
        );
    }

    #[test]
    fn all_values_of_a_byte() {
        for left in i8::MIN..=i8::MAX {
            for right in i8::MIN..=i8::MAX {
                assert_eq!(Integer::add(left, right), left.overflowing_add(right));
                assert_eq!(Integer::subtract(left, right), left.overflowing_sub(right));
                assert_eq!(Integer::multiply(left, right), left.overflowing_mul(right));
                let (left, right) = (left as u8, right as u8);
                assert_eq!(Integer::add(left, right), left.overflowing_add(right));
                assert_eq!(Integer::subtract(left, right), left.overflowing_sub(right));
                assert_eq!(Integer::multiply(left, right), left.overflowing_mul(right));
            }
        }
    }

    #[test]
    fn what_lies_under_a_null_does_not_count() {
        let nulls = NullBuffer::from(vec![true, false]);
        let array: ArrayRef = Arc::new(PrimitiveArray::<Int64Type>::new(vec![1, i64::MAX].into(), Some(nulls)));
        let data_type = DataType::Int64;
        let call = Operation::Add.call(data_type.clone(), vec![data_type.clone(); 2], vec![]);
        let Expr::ScalarFunction(call) = call else { panic!() };
        let field = Arc::new(Field::new("", data_type, true));
        let sum = call.func.invoke_with_args(ScalarFunctionArgs {
            args: vec![ColumnarValue::Array(Arc::clone(&array)), ColumnarValue::Scalar(1i64.into())],
            arg_fields: vec![Arc::clone(&field), Arc::clone(&field)],
            number_rows: 2,
            return_field: field,
            config_options: Arc::default(),
        });
        let ColumnarValue::Array(sum) = sum.unwrap() else { panic!() };
        assert_eq!((sum.as_primitive::<Int64Type>().value(0), sum.null_count()), (2, 1));
    }
}
