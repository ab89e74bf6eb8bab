//! `x = ANY(list)`, `x > ALL(list)`: comparisons of a value with each item of a list.
//!
//! ANY is true if the comparison with one item is true, otherwise NULL if one is unknown, otherwise
//! false. ALL is the reverse. DataFusion compares with the least or the greatest item, or checks
//! whether the list contains the value, and ignores items that are NULL.
//!
//! A list literal becomes IN, which zone maps and filters handle. Any other list goes through a
//! function. For a subquery the function receives the list that
//! [`subquery_lists`](super::subquery_lists) makes. `= ANY (SELECT ..)` and `<> ALL (SELECT ..)`
//! become IN and NOT IN, which are joined.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Datum, Scalar, UInt32Array};
use arrow::compute::kernels::cmp;
use arrow::compute::{and_kleene, not, or_kleene, take};
use arrow::datatypes::{DataType, Field};
use arrow::error::ArrowError;
use arrow::row::{RowConverter, SortField};
use datafusion::common::{Result, internal_err, plan_err};
use datafusion::logical_expr::type_coercion::binary::comparison_coercion;
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility};
use datafusion::sql::sqlparser::ast::{
    self, BinaryOperator, CastKind, Expr, FunctionArg, FunctionArgExpr, FunctionArguments, ObjectNamePart, Value,
};

use super::array_literals::MAKE_ARRAY;
use super::subquery_lists::SET_OF;
use super::{equal_values, exact_comparisons, expressions};
use crate::pg_types::array_text;
use crate::type_names::sql_name;

/// Rewrites `x = ANY (SELECT ..)` to `x IN (SELECT ..)`, and `x <> ALL (SELECT ..)` to `x NOT IN
/// (SELECT ..)`.
pub(super) fn rewrite_to_in(expr: &mut Expr) {
    let (left, right, negated) = match expr {
        Expr::AnyOp { left, compare_op: BinaryOperator::Eq, right, .. } => (left, right, false),
        Expr::AllOp { left, compare_op: BinaryOperator::NotEq, right } => (left, right, true),
        _ => return,
    };
    if let Expr::Subquery(subquery) = right.as_ref() {
        *expr = Expr::InSubquery { expr: left.clone(), subquery: subquery.clone(), negated };
    }
}

/// Rewrites `x op ANY(list)` and `x op ALL(list)`.
pub(super) fn rewrite(expr: &mut Expr) {
    let rewritten = match expr {
        Expr::AnyOp { left, compare_op, right, .. } => compared(left, compare_op, right, Quantifier::Any),
        Expr::AllOp { left, compare_op, right } => compared(left, compare_op, right, Quantifier::All),
        _ => None,
    };
    if let Some(rewritten) = rewritten {
        *expr = rewritten;
    }
}

fn compared(left: &Expr, op: &BinaryOperator, list: &Expr, quantifier: Quantifier) -> Option<Expr> {
    let function = FUNCTIONS.iter().find(|function| function.op == *op && function.quantifier == quantifier)?;
    if let Expr::Subquery(_) = list {
        let set = expressions::call(SET_OF, vec![list.clone()]);
        return Some(expressions::call(function.name, vec![left.clone(), set]));
    }
    let negated = match (op, quantifier) {
        (BinaryOperator::Eq, Quantifier::Any) => Some(false),
        (BinaryOperator::NotEq, Quantifier::All) => Some(true),
        _ => None,
    };
    if let (Some(negated), Some(list)) = (negated, written(list)) {
        return Some(Expr::InList { expr: Box::new(Expr::Nested(Box::new(left.clone()))), list, negated });
    }
    // An empty list has no type; a string takes the type of the value beside it.
    let empty = Expr::Value(Value::SingleQuotedString("{}".into()).into());
    let list = if matches!(list, Expr::Array(array) if array.elem.is_empty()) { &empty } else { list };
    Some(expressions::call(function.name, vec![left.clone(), list.clone()]))
}

/// Returns the items of a list literal that is not empty, as values for IN.
fn written(list: &Expr) -> Option<Vec<Expr>> {
    let items = match list {
        Expr::Nested(inner) => written(inner)?,
        // An item that is a subquery would return all its rows.
        Expr::Array(array) if !array.elem.iter().any(|item| matches!(item, Expr::Subquery(_) | Expr::Array(_))) => {
            array.elem.clone()
        }
        Expr::Function(call) if matches!(call.name.0.as_slice(), [ObjectNamePart::Identifier(name)] if name.value == MAKE_ARRAY) =>
        {
            let FunctionArguments::List(list) = &call.args else { return None };
            let item = |argument: &FunctionArg| match argument {
                FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::Subquery(_) | Expr::Array(_) | Expr::Function(_))) => {
                    None
                }
                FunctionArg::Unnamed(FunctionArgExpr::Expr(item)) => Some(item.clone()),
                _ => None,
            };
            list.args.iter().map(item).collect::<Option<_>>()?
        }
        Expr::Cast { kind, expr, data_type: ast::DataType::Array(item), format: None, .. } => {
            let item = match item {
                ast::ArrayElemTypeDef::AngleBracket(item)
                | ast::ArrayElemTypeDef::SquareBracket(item, _)
                | ast::ArrayElemTypeDef::Parenthesis(item) => item.as_ref(),
                ast::ArrayElemTypeDef::None => return None,
            };
            let items = match text(expr) {
                Some(text) => array_text::items(text, false)?.into_iter().map(literal).collect(),
                None => written(expr)?,
            };
            items.into_iter().map(|value| cast(kind, value, item)).collect()
        }
        _ => return None,
    };
    Some(items).filter(|items| !items.is_empty())
}

fn text(expr: &Expr) -> Option<&str> {
    match expr {
        Expr::Nested(inner) => text(inner),
        Expr::Value(value) => match &value.value {
            Value::SingleQuotedString(text) => Some(text),
            _ => None,
        },
        _ => None,
    }
}

fn literal(item: Option<String>) -> Expr {
    Expr::Value(item.map_or(Value::Null, Value::SingleQuotedString).into())
}

fn cast(kind: &CastKind, value: Expr, data_type: &ast::DataType) -> Expr {
    let expr = Box::new(value);
    Expr::Cast { kind: kind.clone(), expr, data_type: data_type.clone(), array: false, format: None }
}

/// The number of items for which the comparison must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Quantifier {
    Any,
    All,
}

type Compare = fn(&dyn Datum, &dyn Datum) -> std::result::Result<BooleanArray, ArrowError>;

struct Known {
    name: &'static str,
    op: BinaryOperator,
    quantifier: Quantifier,
    compare: Compare,
}

/// The function of `x = ANY(list)`.
pub(super) const ANY_EQ: &str = "__any_eq";

const FUNCTIONS: [Known; 12] = {
    use BinaryOperator::{Eq, Gt, GtEq, Lt, LtEq, NotEq};
    use Quantifier::{All, Any};
    [
        Known { name: ANY_EQ, op: Eq, quantifier: Any, compare: cmp::eq },
        Known { name: "__any_not_eq", op: NotEq, quantifier: Any, compare: cmp::neq },
        Known { name: "__any_lt", op: Lt, quantifier: Any, compare: cmp::lt },
        Known { name: "__any_lt_eq", op: LtEq, quantifier: Any, compare: cmp::lt_eq },
        Known { name: "__any_gt", op: Gt, quantifier: Any, compare: cmp::gt },
        Known { name: "__any_gt_eq", op: GtEq, quantifier: Any, compare: cmp::gt_eq },
        Known { name: "__all_eq", op: Eq, quantifier: All, compare: cmp::eq },
        Known { name: "__all_not_eq", op: NotEq, quantifier: All, compare: cmp::neq },
        Known { name: "__all_lt", op: Lt, quantifier: All, compare: cmp::lt },
        Known { name: "__all_lt_eq", op: LtEq, quantifier: All, compare: cmp::lt_eq },
        Known { name: "__all_gt", op: Gt, quantifier: All, compare: cmp::gt },
        Known { name: "__all_gt_eq", op: GtEq, quantifier: All, compare: cmp::gt_eq },
    ]
};

/// Returns the functions that rewritten statements call.
pub(super) fn functions() -> impl Iterator<Item = Arc<ScalarUDF>> {
    (0..FUNCTIONS.len()).map(|known| {
        let signature = Signature::user_defined(Volatility::Immutable);
        Arc::new(ScalarUDF::from(Quantified { known, signature }))
    })
}

/// The maximum length of a list that is compared item by item.
const FEW: usize = 8;

/// Returns whether each value is among the items: NULL if that depends on an unknown one.
fn among(values: &ArrayRef, items: &ArrayRef) -> Result<BooleanArray> {
    let converter = RowConverter::new(vec![SortField::new(items.data_type().clone())])?;
    let rows = converter.convert_columns(&[Arc::clone(items)])?;
    let known: HashSet<&[u8]> =
        (0..items.len()).filter(|item| items.is_valid(*item)).map(|item| rows.row(item).data()).collect();
    let otherwise = if items.null_count() > 0 { None } else { Some(false) };
    let asked = converter.convert_columns(&[Arc::clone(values)])?;
    let said = (0..values.len()).map(|row| match values.is_valid(row) {
        true if known.contains(asked.row(row).data()) => Some(true),
        true => otherwise,
        false => None,
    });
    Ok(said.collect())
}

/// Returns whether a function is one of these.
pub(super) fn is_one(name: &str) -> bool {
    FUNCTIONS.iter().any(|function| function.name == name)
}

/// Returns the condition that a value is among the items of a list.
pub(super) fn equals_any(
    value: datafusion::prelude::Expr,
    list: datafusion::prelude::Expr,
) -> datafusion::prelude::Expr {
    let known = FUNCTIONS.iter().position(|function| function.name == ANY_EQ).unwrap_or_default();
    let signature = Signature::user_defined(Volatility::Immutable);
    ScalarUDF::from(Quantified { known, signature }).call(vec![value, list])
}

/// The comparison of a value with each item of a list.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Quantified {
    /// The index in [`FUNCTIONS`].
    known: usize,
    signature: Signature,
}

impl Quantified {
    fn known(&self) -> &'static Known {
        &FUNCTIONS[self.known]
    }

    /// Combines the results for two sets of items.
    fn both(&self, a: &BooleanArray, b: &BooleanArray) -> Result<BooleanArray> {
        Ok(match self.known().quantifier {
            Quantifier::Any => or_kleene(a, b)?,
            Quantifier::All => and_kleene(a, b)?,
        })
    }

    /// Compares each value with the items of one list.
    fn of_one_list(&self, values: &ArrayRef, list: &ArrayRef) -> Result<BooleanArray> {
        let list = list.as_list::<i32>();
        if list.is_null(0) {
            return Ok(BooleanArray::new_null(values.len()));
        }
        let items = equal_values::as_one(&list.value(0))?;
        if items.len() > FEW {
            match (&self.known().op, self.known().quantifier) {
                (BinaryOperator::Eq, Quantifier::Any) => return among(values, &items),
                (BinaryOperator::NotEq, Quantifier::All) => return Ok(not(&among(values, &items)?)?),
                _ => {}
            }
        }
        let mut said = BooleanArray::from(vec![self.known().quantifier == Quantifier::All; values.len()]);
        for item in 0..items.len() {
            let item = Scalar::new(items.slice(item, 1));
            said = self.both(&said, &(self.known().compare)(values, &item)?)?;
        }
        Ok(said)
    }

    /// Compares each value with the items of its own list.
    fn of_lists(&self, values: &ArrayRef, lists: &ArrayRef) -> Result<BooleanArray> {
        let lists = lists.as_list::<i32>();
        let (mut rows, mut places) = (Vec::new(), Vec::new());
        for (row, ends) in lists.offsets().windows(2).enumerate() {
            if lists.is_valid(row) {
                places.extend((ends[0]..ends[1]).map(|place| place as u32));
                rows.resize(places.len(), row as u32);
            }
        }
        let values = take(values, &UInt32Array::from(rows.clone()), None)?;
        let items = equal_values::as_one(&take(lists.values(), &UInt32Array::from(places), None)?)?;
        let each = (self.known().compare)(&values, &items)?;
        let decides = self.known().quantifier == Quantifier::Any;
        let mut said: Vec<Option<bool>> = (0..lists.len()).map(|row| lists.is_valid(row).then_some(!decides)).collect();
        for (row, one) in rows.iter().zip(&each) {
            let all = &mut said[*row as usize];
            *all = match (*all, one) {
                (Some(all), _) if all == decides => Some(decides),
                (_, Some(one)) if one == decides => Some(decides),
                (None, _) | (_, None) => None,
                (all, _) => all,
            };
        }
        Ok(BooleanArray::from(said))
    }
}

impl ScalarUDFImpl for Quantified {
    fn name(&self) -> &str {
        self.known().name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Boolean)
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        let [value, list] = types else { return internal_err!("{} takes two arguments", self.name()) };
        let item = match list {
            // The text of an array of the other value's type.
            list if list.is_string() || *list == DataType::Null => {
                exact_comparisons::common(value, list).unwrap_or_else(|| value.clone())
            }
            DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
                item.data_type().clone()
            }
            list => return plan_err!("ANY and ALL take an array, not {}", sql_name(list)),
        };
        let common = exact_comparisons::common(value, &item).or_else(|| comparison_coercion(value, &item));
        let Some(common) = common else {
            return plan_err!("ANY and ALL cannot compare {} with items of {}", sql_name(value), sql_name(&item));
        };
        let list = DataType::List(Arc::new(Field::new_list_field(common.clone(), true)));
        Ok(vec![common, list])
    }

    fn invoke_with_args(&self, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [value, list] = call.args.as_slice() else { return internal_err!("{} takes two arguments", self.name()) };
        let rows = call.number_rows;
        let values = equal_values::as_one(&value.to_array(rows)?)?;
        let said = match list {
            ColumnarValue::Scalar(list) => self.of_one_list(&values, &list.to_array()?)?,
            ColumnarValue::Array(lists) => self.of_lists(&values, lists)?,
        };
        Ok(ColumnarValue::Array(Arc::new(said)))
    }
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::{fails, rewritten, rows};

    #[test]
    fn a_list_that_is_written_out_becomes_in() {
        for (text, meant) in [
            ("SELECT 1 AS x WHERE a = ANY(ARRAY[1, b])", "SELECT 1 AS x WHERE (a) IN (1, b)"),
            ("SELECT 1 AS x WHERE a <> ALL((ARRAY[1]))", "SELECT 1 AS x WHERE (a) NOT IN (1)"),
            (
                "SELECT 1 AS x WHERE a = ANY(CAST('{1,NULL}' AS INT[]))",
                "SELECT 1 AS x WHERE (a) IN (CAST('1' AS INT), CAST(NULL AS INT))",
            ),
            ("SELECT 1 AS x WHERE a = ANY('{1}')", "SELECT 1 AS x WHERE __any_eq(a, '{1}')"),
            ("SELECT 1 AS x WHERE a = ANY(ARRAY[])", "SELECT 1 AS x WHERE __any_eq(a, '{}')"),
            ("SELECT 1 AS x WHERE a = ANY(b)", "SELECT 1 AS x WHERE __any_eq(a, b)"),
            ("SELECT 1 AS x WHERE a < ALL(ARRAY[1])", "SELECT 1 AS x WHERE __all_lt(a, ARRAY[1])"),
        ] {
            assert_eq!(rewritten(text), meant);
        }
    }

    /// Returns a condition's values for x = 1, 2 and NULL.
    async fn for_each_x(condition: &str) -> String {
        let values = "(VALUES (1, ARRAY[1, NULL]), (2, ARRAY[3]), (NULL, CAST('{}' AS INT[]))) AS t(x, y)";
        rows(&format!("SELECT {condition} FROM {values} ORDER BY x")).await.join(" ")
    }

    #[tokio::test]
    async fn items_that_are_unknown_count() {
        // Expected values are PostgreSQL 15.18's.
        for (condition, expected) in [
            ("x = ANY(y)", "true false false"),
            ("x <> ANY(y)", "NULL true false"),
            ("x <> ALL(y)", "false true true"),
            ("x = ALL(y)", "NULL false true"),
            ("x < ANY(y)", "NULL true false"),
            ("x < ALL(y)", "false true true"),
            ("x >= ALL(y)", "NULL false true"),
            ("x = ANY(ARRAY[1, NULL])", "true NULL NULL"),
            ("x > ANY(ARRAY[1, NULL])", "NULL true NULL"),
            ("x <= ANY(ARRAY[1, NULL])", "true NULL NULL"),
            ("x = ANY('{1,3}')", "true false NULL"),
            ("x = ANY(CAST('{}' AS INT[]))", "false false false"),
            ("x = ALL(CAST('{}' AS INT[]))", "true true true"),
            ("x = ANY(CAST(NULL AS INT[]))", "NULL NULL NULL"),
            ("NOT x = ANY(ARRAY[x, NULL])", "false false NULL"),
            ("x = ANY(ARRAY[x + 0.5, 1.0])", "true false NULL"),
        ] {
            assert_eq!(for_each_x(condition).await, expected, "{condition}");
        }
        assert_eq!(rows("SELECT -0e0 = ANY(y) FROM (VALUES (ARRAY[0e0, 1e0])) AS t(y)").await, ["true"]);
    }

    #[tokio::test]
    async fn what_is_no_list_is_refused() {
        let error = fails("SELECT 1 = ANY(2)").await;
        assert!(error.message().contains("ANY and ALL take an array"), "{error}");
    }
}
