//! `x SIMILAR TO 'a(b|c)%'`: a regular expression of the whole string, in which `%` and `_` have
//! LIKE's meaning.
//!
//! DataFusion takes the pattern for a regular expression of a part of the string.

use datafusion::sql::sqlparser::ast::{BinaryOperator, Expr, Value};

use super::like_escapes::written;
use crate::postgres::functions::SIMILAR_PATTERN;
use crate::postgres::patterns::regular;

pub(super) fn rewrite(expr: &mut Expr) {
    let Expr::SimilarTo { negated, expr: text, pattern, escape_char } = expr else { return };
    let escape = match escape_char.as_ref().map(|value| &value.value) {
        None => "\\",
        Some(Value::SingleQuotedString(escape)) if escape.chars().nth(1).is_none() => escape,
        Some(_) => return,
    };
    let written = written(pattern, escape, regular, SIMILAR_PATTERN);
    let op = if *negated { BinaryOperator::PGRegexNotMatch } else { BinaryOperator::PGRegexMatch };
    let left = Box::new(Expr::Nested(text.clone()));
    *expr = Expr::Nested(Box::new(Expr::BinaryOp { left, op, right: Box::new(written) }));
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::rows;

    #[tokio::test]
    async fn patterns_are_of_the_whole_text() {
        // Expected values are PostgreSQL 15.18's.
        for (expr, answer) in [
            ("'abc' SIMILAR TO 'abc'", "true"),
            ("'abc' SIMILAR TO 'a'", "false"),
            ("'abc' SIMILAR TO 'a%'", "true"),
            ("'abc' SIMILAR TO '%(b|d)%'", "true"),
            ("'abc' SIMILAR TO '(b|c)%'", "false"),
            ("'abc' SIMILAR TO 'a_c'", "true"),
            ("'abc' SIMILAR TO 'a.c'", "false"),
            ("'a.c' SIMILAR TO 'a.c'", "true"),
            ("'abbb' SIMILAR TO 'ab{3}'", "true"),
            ("'abc' SIMILAR TO '[a-c]+'", "true"),
            ("'a%c' SIMILAR TO 'a\\%c'", "true"),
            ("'abc' SIMILAR TO 'a#%c' ESCAPE '#'", "false"),
            ("'a%c' SIMILAR TO 'a#%c' ESCAPE '#'", "true"),
            ("'x' SIMILAR TO '[[:alpha:]]'", "true"),
            ("'x5' SIMILAR TO '[[:alpha:]_][[:digit:]]+'", "true"),
            ("'5' SIMILAR TO '\\d'", "true"),
            ("'d' SIMILAR TO '\\d'", "false"),
            ("'ab' SIMILAR TO '[^a]b'", "false"),
            ("'abc' NOT SIMILAR TO 'a%'", "false"),
            ("NULL SIMILAR TO 'a%'", "NULL"),
            ("'a' || chr(10) || 'b' SIMILAR TO 'a%b'", "true"),
        ] {
            assert_eq!(rows(&format!("SELECT coalesce(CAST({expr} AS VARCHAR), 'NULL')")).await, [answer], "{expr}");
        }
    }
}
