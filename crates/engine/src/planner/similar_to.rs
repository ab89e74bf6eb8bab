//! `x SIMILAR TO 'a(b|c)%'`: a regular expression of the whole text, in which `%` and `_` stand for what they do in LIKE.
//!
//! DataFusion takes the pattern for a regular expression of a part of the text.

use datafusion::sql::sqlparser::ast::{BinaryOperator, Expr, Value};

use super::like_escapes::written;
use crate::postgres::functions::SIMILAR_PATTERN;

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

/// A pattern as a regular expression; `None` if one of its escapes is at its end.
pub(crate) fn regular(pattern: &str, escape: Option<char>) -> Option<String> {
    let mut written = String::from("^(?s:");
    let mut is_class = false;
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        match c {
            c if Some(c) == escape => {
                let meant = chars.next()?;
                let is_class_of_letters = matches!(meant, 'd' | 'D' | 's' | 'S' | 'w' | 'W');
                if is_class_of_letters || (!meant.is_alphanumeric() && meant.is_ascii()) {
                    written.push('\\');
                }
                written.push(meant);
            }
            '\\' => written.push_str("\\\\"),
            ']' if is_class => {
                is_class = false;
                written.push(']');
            }
            // `[:alpha:]`
            '[' if is_class && chars.as_str().starts_with(':') => {
                let (name, rest) = chars.as_str().split_once(":]")?;
                written.extend(["[", name, ":]"]);
                chars = rest.chars();
            }
            '[' if is_class => written.push_str("\\["),
            c if is_class => written.push(c),
            '[' => {
                is_class = true;
                written.push('[');
            }
            '%' => written.push_str(".*"),
            '_' => written.push('.'),
            '.' | '^' | '$' => written.extend(['\\', c]),
            c => written.push(c),
        }
    }
    written.push_str(")$");
    Some(written)
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::rows;

    #[tokio::test]
    async fn patterns_are_of_the_whole_text() {
        // As PostgreSQL 15.18 answers.
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
