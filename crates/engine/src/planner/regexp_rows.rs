//! `SELECT regexp_matches('abc', '(b)(c)')` is a row with `{b,c}`, and no row without a match, as
//! in PostgreSQL. With the flag `g` it is a row for each match. The call becomes
//! `unnest(regexp_match_rows(..))`.
//!
//! DuckDB's function of this name returns whether there is a match. PostgreSQL's cannot stand in a
//! condition, so there it has DuckDB's meaning: see [`super::functions`].

use std::sync::Arc;

use arrow::array::{Array, ArrayBuilder, AsArray, ListBuilder, StringBuilder};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field};
use datafusion::common::Result;
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, TypeSignature, Volatility,
};
use datafusion::sql::sqlparser::ast::{
    Expr, Function, FunctionArg, FunctionArgExpr, ObjectNamePart, Select, SelectItem,
};
use regex::{Regex, RegexBuilder};

use super::expressions::call;
use super::functions::plain_arguments;
use crate::identifiers::normal;
use crate::limits::{go_on, go_on_with};
use crate::{Error, ErrorKind, Rule};

/// The name in SQL.
const MATCHES: &str = "regexp_matches";
/// The function whose value is an array of all matches.
const ROWS: &str = "regexp_match_rows";

/// The number of bytes produced between two checks of cancellation and memory.
const LOOK_BYTES: usize = 1 << 16;
/// The bytes that a string or a list takes beside its contents.
const VALUE_BYTES: usize = 8;

pub(super) fn functions() -> [Arc<ScalarUDF>; 1] {
    [Arc::new(ScalarUDF::from(MatchRows::new()))]
}

/// Replaces calls in a SELECT list, and calls whose parts it selects, by rows.
pub(super) fn rewrite(select: &mut Select) {
    for item in &mut select.projection {
        if let SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } = item {
            rewrite_value(expr);
        }
    }
}

fn rewrite_value(expr: &mut Expr) {
    match expr {
        Expr::Nested(inner) | Expr::Cast { expr: inner, .. } => rewrite_value(inner),
        Expr::CompoundFieldAccess { root, .. } => rewrite_value(root),
        Expr::Function(function) if is_matches(function) => {
            let values = |argument: &FunctionArg| match argument {
                FunctionArg::Unnamed(FunctionArgExpr::Expr(value)) => Some(value.clone()),
                _ => None,
            };
            let arguments =
                plain_arguments(function).and_then(|all| all.iter().map(values).collect::<Option<Vec<_>>>());
            if let Some(arguments) = arguments {
                *expr = call("unnest", vec![call(ROWS, arguments)]);
            }
        }
        _ => {}
    }
}

fn is_matches(function: &Function) -> bool {
    let [ObjectNamePart::Identifier(name)] = function.name.0.as_slice() else { return false };
    normal(name) == MATCHES
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct MatchRows {
    signature: Signature,
}

impl MatchRows {
    fn new() -> Self {
        let texts = |count| TypeSignature::Uniform(count, vec![DataType::Utf8]);
        Self { signature: Signature::one_of(vec![texts(2), texts(3)], Volatility::Immutable) }
    }
}

fn groups_type() -> DataType {
    DataType::List(Arc::new(Field::new_list_field(DataType::Utf8, true)))
}

impl ScalarUDFImpl for MatchRows {
    fn name(&self) -> &str {
        ROWS
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::List(Arc::new(Field::new_list_field(groups_type(), true))))
    }

    fn invoke_with_args(&self, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let text = |value: &ColumnarValue| Ok(cast(&value.to_array(call.number_rows)?, &DataType::Utf8)?);
        let texts = call.args.iter().map(text).collect::<Result<Vec<_>>>()?;
        let columns: Vec<_> = texts.iter().map(|array| array.as_string::<i32>()).collect();
        let mut all = ListBuilder::new(ListBuilder::new(StringBuilder::new()));
        let mut known: Option<(String, String, Pattern)> = None;
        let rows = columns.first().map_or(0, |texts| texts.len());
        for row in 0..rows {
            if let Some([text, pattern, flags]) = arguments(&columns, row) {
                if known.as_ref().is_none_or(|(of, with, _)| of != pattern || with != flags) {
                    known = Some((pattern.into(), flags.into(), Pattern::new(pattern, flags)?));
                }
                if let Some((_, _, pattern)) = &known {
                    pattern.append_matches(text, all.values())?;
                }
            }
            // An argument that is NULL has no match.
            all.append(true);
        }
        Ok(ColumnarValue::Array(Arc::new(all.finish())))
    }
}

/// Returns the text, pattern and flags of a row, if none of them is NULL.
fn arguments<'a>(columns: &[&'a arrow::array::StringArray], row: usize) -> Option<[&'a str; 3]> {
    if columns.iter().any(|column| column.is_null(row)) {
        return None;
    }
    let flags = columns.get(2).map_or("", |flags| flags.value(row));
    Some([columns.first()?.value(row), columns.get(1)?.value(row), flags])
}

struct Pattern {
    regex: Regex,
    is_global: bool,
}

impl Pattern {
    fn new(pattern: &str, flags: &str) -> Result<Self> {
        let mut builder = RegexBuilder::new(pattern);
        // A dot matches any character, and ^ the beginning of the text, unless the flags enable
        // lines.
        builder.dot_matches_new_line(true);
        let mut is_global = false;
        for flag in flags.chars() {
            match flag {
                'g' => is_global = true,
                'i' => _ = builder.case_insensitive(true),
                'c' => _ = builder.case_insensitive(false),
                'm' | 'n' => _ = builder.multi_line(true).dot_matches_new_line(false),
                's' => _ = builder.multi_line(false).dot_matches_new_line(true),
                'x' => _ = builder.ignore_whitespace(true),
                other => {
                    let message = format!("{MATCHES} has no flag '{other}'");
                    let error = Error::new(ErrorKind::Invalid, message);
                    return Err(error.with_hint("its flags are g, i, c, m, n, s and x").into());
                }
            }
        }
        let regex = builder.build().map_err(|e| {
            Error::new(ErrorKind::Data, format!("'{pattern}' is no regular expression: {e}")).breaking(Rule::Pattern)
        })?;
        Ok(Self { regex, is_global })
    }

    /// Appends the groups of each match, or of the first. Without groups it appends the whole
    /// match.
    fn append_matches(&self, text: &str, rows: &mut ListBuilder<StringBuilder>) -> Result<()> {
        let most = if self.is_global { usize::MAX } else { 1 };
        let mut made = 0;
        go_on()?;
        for found in self.regex.captures_iter(text).take(most) {
            let from = usize::from(found.len() > 1);
            for group in found.iter().skip(from) {
                rows.values().append_option(group.map(|group| group.as_str()));
                made += VALUE_BYTES + group.map_or(0, |group| group.len());
            }
            rows.append(true);
            made += VALUE_BYTES;
            if made >= LOOK_BYTES {
                // Builders double their capacity.
                let has = rows.values().values_slice().len() + VALUE_BYTES * (rows.values().len() + rows.len());
                go_on_with(2 * has as u64)?;
                made = 0;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::{fails, rows};

    #[tokio::test]
    async fn matches_are_rows() {
        // Expected rows are PostgreSQL 15.18's.
        for (query, expected) in [
            ("SELECT regexp_matches('abc', '(b)(c)')", vec!["[b, c]"]),
            ("SELECT regexp_matches('abc', 'b')", vec!["[b]"]),
            ("SELECT regexp_matches('abc', 'x')", vec![]),
            ("SELECT regexp_matches(NULL, 'x')", vec![]),
            ("SELECT regexp_matches('abab', 'a(b)', 'g')", vec!["[b]", "[b]"]),
            ("SELECT regexp_matches('ABC', '(b)(x)?', 'i')", vec!["[B, NULL]"]),
            ("SELECT (regexp_matches('a12', '([0-9]+)'))[1]", vec!["12"]),
            ("SELECT x, regexp_matches(x, '[0-9]') FROM (VALUES ('a1'), ('b')) AS t(x)", vec!["a1 [1]"]),
            ("SELECT x FROM (VALUES ('a1'), ('b')) AS t(x) WHERE regexp_matches(x, '[0-9]')", vec!["a1"]),
        ] {
            assert_eq!(rows(query).await, expected, "{query}");
        }
        for query in ["SELECT regexp_matches('a', '(')", "SELECT regexp_matches('a', 'a', 'q')"] {
            let _ = fails(query).await;
        }
    }
}
