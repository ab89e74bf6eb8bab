//! `s ~ '.*'` is NULL if s is NULL, and a backslash in a pattern is not an escape of LIKE.
//!
//! DataFusion rewrites it to `s IS NOT NULL`, which is false for a NULL, so `NOT (s ~ '.*')`
//! returns wrong rows ([#24379]). It rewrites patterns without operators to LIKE, and forgets that
//! LIKE interprets backslashes: `s ~ 'a\\b'` finds 'ab' (docs/internals/upstream.md). Such patterns
//! are put into parentheses, which its optimizer does not inspect. Seen in 55.2.0.
//!
//! [#24379]: https://github.com/apache/datafusion/issues/24379

use datafusion::common::Result;
use datafusion::common::tree_node::Transformed;
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::{BinaryExpr, LogicalPlan, Operator};
use datafusion::optimizer::AnalyzerRule;
use datafusion::prelude::Expr;
use datafusion::scalar::ScalarValue;

use regex::Regex;

use super::expressions;
use crate::error::shown;
use crate::{Error, ErrorKind, Rule};

#[derive(Debug)]
pub(super) struct RegularExpressions;

/// The functions whose second argument is a regular expression.
const FUNCTIONS: [&str; 7] = [
    "regexp_like",
    "regexp_match",
    "regexp_matches",
    "regexp_replace",
    "regexp_count",
    "regexp_instr",
    "regexp_substr",
];

impl AnalyzerRule for RegularExpressions {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        check(&plan)?;
        expressions::rewritten_if_any(
            plan,
            |expr| bracketed(expr).is_some(),
            |mut expr, _| {
                let Some(pattern) = bracketed(&expr) else { return Ok(Transformed::no(expr)) };
                match &mut expr {
                    Expr::BinaryExpr(binary) => *binary.right = pattern,
                    Expr::ScalarFunction(call) => {
                        call.args.iter_mut().skip(1).take(1).for_each(|arg| *arg = pattern.clone())
                    }
                    _ => {}
                }
                Ok(Transformed::yes(expr))
            },
        )
    }

    fn name(&self) -> &str {
        "regular_expressions"
    }
}

/// Refuses invalid patterns before DataFusion's optimizer and Arrow's kernels do, whose messages
/// differ.
fn check(plan: &LogicalPlan) -> Result<()> {
    let mut bad = None;
    expressions::has(plan, |expr| {
        if bad.is_none()
            && let Some(Expr::Literal(value, _)) = pattern_of(expr, &FUNCTIONS)
        {
            bad = value.try_as_str().flatten().and_then(|text| Regex::new(text).err().map(|e| refused(text, &e)));
        }
        bad.is_some()
    })?;
    bad.map_or(Ok(()), |error| Err(error.into()))
}

pub(super) fn refused(pattern: &str, e: &regex::Error) -> Error {
    let why = match e {
        regex::Error::CompiledTooBig(_) => "it is too large when it is compiled".to_string(),
        // The last line contains the message, and the lines before it the position.
        other => other.to_string().lines().last().unwrap_or_default().trim_start_matches("error: ").to_string(),
    };
    Error::new(ErrorKind::Data, format!("invalid regular expression {}: {why}", shown(pattern))).breaking(Rule::Pattern)
}

/// Returns the pattern of an operator, or of one of these functions.
fn pattern_of<'a>(expr: &'a Expr, functions: &[&str]) -> Option<&'a Expr> {
    match expr {
        Expr::BinaryExpr(BinaryExpr { op, right, .. }) if is_match(*op) => Some(right),
        Expr::ScalarFunction(call) if functions.contains(&call.name()) => call.args.get(1),
        _ => None,
    }
}

/// Returns the pattern that replaces an expression's own.
fn bracketed(expr: &Expr) -> Option<Expr> {
    let pattern = pattern_of(expr, &FUNCTIONS[..1])?;
    let Expr::Literal(value, metadata) = pattern else { return None };
    let text = value.try_as_str()??;
    let is_misread = text == ".*" || text.contains('\\') && !(text.starts_with('(') && text.ends_with(')'));
    let bracketed = format!("({text})");
    let value = match value {
        ScalarValue::Utf8View(_) => ScalarValue::Utf8View(Some(bracketed)),
        ScalarValue::LargeUtf8(_) => ScalarValue::LargeUtf8(Some(bracketed)),
        _ => ScalarValue::Utf8(Some(bracketed)),
    };
    is_misread.then(|| Expr::Literal(value, metadata.clone()))
}

fn is_match(op: Operator) -> bool {
    use Operator::{RegexIMatch, RegexMatch, RegexNotIMatch, RegexNotMatch};
    matches!(op, RegexMatch | RegexIMatch | RegexNotMatch | RegexNotIMatch)
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::rows;

    #[tokio::test]
    async fn null_matches_nothing_and_everything_is_matched() {
        let table = r"(VALUES (1, 'a'), (2, NULL), (3, 'a\b'), (4, 'ab'), (5, '')) AS t(k, s)";
        for (expression, expected) in [
            ("s ~ '.*'", "true NULL true true true"),
            ("NOT (s ~ '.*')", "false NULL false false false"),
            ("s !~ '.*'", "false NULL false false false"),
            ("s ~* '.*'", "true NULL true true true"),
            ("regexp_like(s, '.*')", "true NULL true true true"),
            ("(s ~ '.*') IS NULL", "false true false false false"),
            ("s ~ ''", "true NULL true true true"),
            ("s LIKE '%'", "true NULL true true true"),
            ("NOT (s LIKE '%')", "false NULL false false false"),
            (r"s ~ 'a\\b'", "false NULL true false false"),
            (r"s ~ '^a\\b$'", "false NULL true false false"),
            (r"s ~ '^\w+$'", "true NULL false true false"),
        ] {
            let query = format!("SELECT {expression} FROM {table} ORDER BY k");
            assert_eq!(rows(&query).await.join(" "), expected, "{expression}");
        }
    }
}
