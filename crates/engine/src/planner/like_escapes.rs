//! `LIKE pattern ESCAPE 'x'` with any escape character or none: rewrites the pattern to backslash
//! escapes, which DataFusion supports.
//!
//! DataFusion accepts a backslash at the end of a pattern. Here it is an error as with any other
//! escape. A literal fails only if letters of the string remain when the match reaches the
//! backslash.

use datafusion::sql::sqlparser::ast::helpers::attached_token::AttachedToken;
use datafusion::sql::sqlparser::ast::{CaseWhen, Expr, Value};

use super::expressions::call;
use crate::postgres::functions::LIKE_PATTERN;
use crate::postgres::patterns::escaped;

pub(super) fn rewrite(expr: &mut Expr) {
    let (Expr::Like { pattern, escape_char, .. } | Expr::ILike { pattern, escape_char, .. }) = expr else { return };
    let escape = match escape_char.as_ref().map(|value| &value.value) {
        None => "\\",
        Some(Value::SingleQuotedString(escape)) if escape.chars().nth(1).is_none() => escape,
        Some(_) => return,
    };
    if escape == "\\" && is_whole(pattern) {
        return;
    }
    if let Some(cut) = cut_off(pattern, escape) {
        *expr = of_cut_off(expr, cut);
        return;
    }
    *pattern.as_mut() = written(pattern, escape, escaped, LIKE_PATTERN);
    *escape_char = None;
}

/// Returns a literal pattern without the backslash at its end.
fn cut_off(pattern: &Expr, escape: &str) -> Option<String> {
    match pattern {
        Expr::Value(value) if escape == "\\" => match &value.value {
            Value::SingleQuotedString(text) => text.strip_suffix('\\').map(str::to_string),
            _ => None,
        },
        _ => None,
    }
}

/// Rewrites `x LIKE 'a\'`: an error if a letter remains at the backslash, otherwise false.
fn of_cut_off(like: &Expr, cut: String) -> Expr {
    let (mut longer, mut wrong) = (like.clone(), like.clone());
    let mut is_not = false;
    if let Expr::Like { pattern, negated, .. } | Expr::ILike { pattern, negated, .. } = &mut longer {
        **pattern = text_of(format!("{cut}_%"));
        is_not = std::mem::take(negated);
    }
    if let Expr::Like { pattern, .. } | Expr::ILike { pattern, .. } = &mut wrong {
        let whole = text_of(format!("{cut}\\"));
        **pattern = call(LIKE_PATTERN, vec![whole, text_of("\\".into())]);
    }
    let value = |is: bool| Expr::Value(Value::Boolean(is).into());
    let when = |condition: Expr, result: Expr| CaseWhen { condition, result };
    let is_false = Expr::IsFalse(Box::new(Expr::Nested(Box::new(longer.clone()))));
    Expr::Case {
        case_token: AttachedToken::empty(),
        end_token: AttachedToken::empty(),
        operand: None,
        conditions: vec![when(longer, wrong), when(is_false, value(is_not))],
        else_result: None,
    }
}

/// Returns whether the pattern is known not to end with a lone backslash.
fn is_whole(pattern: &Expr) -> bool {
    match pattern {
        Expr::Value(value) => match &value.value {
            Value::SingleQuotedString(text) => escaped(text, Some('\\')).is_some(),
            _ => true,
        },
        _ => false,
    }
}

/// Rewrites a pattern with an escape: a literal immediately, any other expression with a call of
/// `function`. The call reports an escape at the end of the pattern.
pub(super) fn written(
    pattern: &Expr,
    escape: &str,
    write: fn(&str, Option<char>) -> Option<String>,
    function: &str,
) -> Expr {
    let at_once = match pattern {
        Expr::Value(value) => match &value.value {
            Value::SingleQuotedString(text) => write(text, escape.chars().next()).map(text_of),
            _ => None,
        },
        _ => None,
    };
    at_once.unwrap_or_else(|| call(function, vec![pattern.clone(), text_of(escape.to_string())]))
}

fn text_of(text: String) -> Expr {
    Expr::Value(Value::SingleQuotedString(text).into())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use crate::planner::tests::rows;

    #[tokio::test]
    async fn any_character_escapes() {
        // Expected values are from PostgreSQL 15.18.
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
