//! `LIKE pattern ESCAPE 'x'`, of any character or none: the pattern is written with a backslash, which is what DataFusion knows.

use datafusion::sql::sqlparser::ast::{Expr, Value};

use super::expressions::call;
use crate::postgres::functions::LIKE_PATTERN;

pub(super) fn rewrite(expr: &mut Expr) {
    let (Expr::Like { pattern, escape_char, .. } | Expr::ILike { pattern, escape_char, .. }) = expr else { return };
    let Some(Value::SingleQuotedString(escape)) = escape_char.as_ref().map(|value| &value.value) else { return };
    if escape == "\\" || escape.chars().nth(1).is_some() {
        return;
    }
    let written = match pattern.as_ref() {
        Expr::Value(value) => match &value.value {
            Value::SingleQuotedString(text) => escaped(text, escape.chars().next()).map(text_of),
            _ => None,
        },
        _ => None,
    };
    // What has an escape at its end is an error, which is told when it is called.
    *pattern.as_mut() =
        written.unwrap_or_else(|| call(LIKE_PATTERN, vec![pattern.as_ref().clone(), text_of(escape.clone())]));
    *escape_char = None;
}

/// A pattern with backslashes in place of its own escapes; `None` if one of these is at its end.
pub(crate) fn escaped(pattern: &str, escape: Option<char>) -> Option<String> {
    let mut written = String::with_capacity(pattern.len() + 8);
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        let meant = if Some(c) == escape { Some(chars.next()?) } else { None };
        match meant {
            Some(meant) => written.extend(['\\', meant]),
            None if c == '\\' => written.push_str("\\\\"),
            None => written.push(c),
        }
    }
    Some(written)
}

fn text_of(text: String) -> Expr {
    Expr::Value(Value::SingleQuotedString(text).into())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::planner::tests::rows;

    #[test]
    fn escapes_become_backslashes() {
        for (pattern, escape, meant) in [
            ("a/_b/%//%", Some('/'), Some("a\\_b\\%\\/%")),
            ("a\\_", Some('/'), Some("a\\\\_")),
            ("a/\\b", Some('/'), Some("a\\\\b")),
            ("a\\_", None, Some("a\\\\_")),
            ("a/", Some('/'), None),
        ] {
            assert_eq!(escaped(pattern, escape).as_deref(), meant, "{pattern}");
        }
    }

    #[tokio::test]
    async fn any_character_escapes() {
        // As PostgreSQL 15.18 answers.
        for (expr, answer) in [
            ("'a_b' LIKE 'a/_b' ESCAPE '/'", "true"),
            ("'axb' LIKE 'a/_b' ESCAPE '/'", "false"),
            ("'50% OFF' ILIKE '%!% off' ESCAPE '!'", "true"),
            ("'a\\b' LIKE 'a\\b' ESCAPE ''", "true"),
        ] {
            assert_eq!(rows(&format!("SELECT coalesce(CAST({expr} AS VARCHAR), 'NULL')")).await, [answer], "{expr}");
        }
    }
}
