//! Prints expressions nearly as users wrote them, for errors and for reasons why something is not
//! fused.
//!
//! In the plan, columns have other names, checked operators are functions, and casts have been
//! added. Here columns have their names in tables, operators their symbols, and only casts that can
//! change a value are shown.

use arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, DFSchema, ScalarValue};
use datafusion::logical_expr::expr::{Cast, ScalarFunction, TryCast};
use datafusion::logical_expr::{BinaryExpr, Expr, ExprSchemable, Operator};

use super::graph::relation_of;
use super::relation::{Relation, named, original};
use crate::planner::{ONE_NAN, Operation, as_lossy_cast, operation_of};
use crate::type_names::sql_name;

/// The length at which a text is cut: its beginning names the operator that matters.
const MOST_CHARS: usize = 160;

/// The names of the columns of relations.
#[derive(Clone, Copy)]
pub(super) struct Names<'a> {
    /// The relations, by number.
    pub relations: &'a [Relation],
    /// All columns of all relations.
    pub schema: &'a DFSchema,
}

impl Names<'_> {
    /// Returns the text of an expression.
    pub fn text(self, expr: &Expr) -> String {
        let text = self.write(expr);
        match text.char_indices().nth(MOST_CHARS) {
            Some((at, _)) => format!("{}...", &text[..at]),
            None => text,
        }
    }

    /// Returns a column's own name, qualified by its table if several columns have that name.
    pub fn column(self, column: &Column) -> String {
        let column = original(self.relations, column);
        let relation = relation_of(column).and_then(|relation| self.relations.get(relation));
        match relation {
            Some(relation) if named(self.relations, &column.name) > 1 => {
                format!("{}.{}", relation.table_name(), column.name)
            }
            _ => column.name.clone(),
        }
    }

    fn write(self, expr: &Expr) -> String {
        match expr {
            Expr::Alias(alias) => self.write(&alias.expr),
            Expr::Column(column) => self.column(column),
            Expr::Literal(value, _) => literal(value),
            Expr::BinaryExpr(BinaryExpr { left, op, right }) => self.binary(left, *op, right),
            Expr::Negative(inner) => format!("-{}", self.operand(inner, u8::MAX)),
            Expr::Cast(Cast { expr: inner, field }) => match self.is_widening(inner, field.data_type()) {
                true => self.write(inner),
                false => self.cast(inner, field.data_type()),
            },
            Expr::TryCast(TryCast { expr: inner, field }) => {
                format!("TRY_CAST({} AS {})", self.write(inner), sql_name(field.data_type()))
            }
            Expr::ScalarFunction(call) => self.call(call),
            other => self.renamed(other),
        }
    }

    /// Returns `CAST(expr AS type)`.
    pub fn cast(self, inner: &Expr, data_type: &DataType) -> String {
        format!("CAST({} AS {})", self.write(inner), sql_name(data_type))
    }

    fn binary(self, left: &Expr, op: Operator, right: &Expr) -> String {
        let precedence = op.precedence();
        // A right operand of the same precedence needs parentheses: a - (b - c).
        format!("{} {op} {}", self.operand(left, precedence), self.operand(right, precedence.saturating_add(1)))
    }

    /// Prints an operand, in parentheses if it binds less tightly.
    fn operand(self, expr: &Expr, precedence: u8) -> String {
        let own = match expr {
            Expr::BinaryExpr(binary) => Some(binary.op),
            Expr::ScalarFunction(call) if call.name() == ONE_NAN => match call.args.first() {
                Some(inner) => return self.operand(inner, precedence),
                None => None,
            },
            Expr::ScalarFunction(call) => operation_of(&call.func).and_then(|(operation, _)| operator(operation)),
            Expr::Cast(Cast { expr: inner, field }) if self.is_widening(inner, field.data_type()) => {
                return self.operand(inner, precedence);
            }
            _ => None,
        };
        match own {
            Some(own) if own.precedence() < precedence => format!("({})", self.write(expr)),
            _ => self.write(expr),
        }
    }

    fn call(self, call: &ScalarFunction) -> String {
        if let Some((value, to)) = as_lossy_cast(call) {
            return self.cast(value, to);
        }
        let operation = operation_of(&call.func).map(|(operation, _)| operation);
        match (operation.and_then(operator), operation, call.args.as_slice()) {
            (Some(op), _, [left, right]) => self.binary(left, op, right),
            (None, None, [value]) if call.name() == ONE_NAN => self.write(value),
            (None, Some(Operation::Negate), [value]) => format!("-{}", self.operand(value, u8::MAX)),
            _ => {
                let args: Vec<String> = call.args.iter().map(|arg| self.write(arg)).collect();
                format!("{}({})", call.func.name(), args.join(", "))
            }
        }
    }

    /// Prints any other expression as DataFusion does, with the names of columns.
    fn renamed(self, expr: &Expr) -> String {
        let renamed = expr.clone().transform_up(|expr| match &expr {
            Expr::Column(column) => Ok(Transformed::yes(Expr::Column(Column::new_unqualified(self.column(column))))),
            _ => Ok(Transformed::no(expr)),
        });
        renamed.map_or_else(|_| "an expression".into(), |renamed| renamed.data.human_display().to_string())
    }

    /// Returns whether a cast preserves all values. Such casts are added by the planner and not
    /// shown.
    fn is_widening(self, inner: &Expr, to: &DataType) -> bool {
        let Ok(from) = inner.get_type(self.schema) else { return false };
        match to {
            // Days are numbers.
            DataType::Int32 if from == DataType::Date32 => true,
            DataType::Date32 => from == DataType::Int32,
            DataType::Float64 | DataType::Decimal128(..) => from.is_integer(),
            _ => from == *to || from.is_integer() && to.is_integer() && from.primitive_width() < to.primitive_width(),
        }
    }
}

fn operator(operation: Operation) -> Option<Operator> {
    match operation {
        Operation::Add => Some(Operator::Plus),
        Operation::Subtract => Some(Operator::Minus),
        Operation::Multiply => Some(Operator::Multiply),
        Operation::Negate => None,
    }
}

fn literal(value: &ScalarValue) -> String {
    match value {
        ScalarValue::Date32(Some(_)) => format!("DATE '{value}'"),
        _ => match value.try_as_str() {
            Some(Some(text)) => format!("'{}'", text.replace('\'', "''")),
            _ => value.to_string(),
        },
    }
}
