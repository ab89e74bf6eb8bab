//! Rewrites `FOR NO KEY UPDATE` to `FOR UPDATE`, `FOR KEY SHARE` to `FOR SHARE`, and `FOR UPDATE OF
//! a, b` to `FOR UPDATE OF a`.
//!
//! The parser (sqlparser 0.62) accepts `UPDATE`, `SHARE` and one table. Each rewritten lock is
//! wider than the original: see `statement/locking.rs`.

use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};

/// Rewrites the tokens to clauses that the parser accepts.
pub(super) fn plain(mut tokens: Vec<TokenWithSpan>) -> Vec<TokenWithSpan> {
    let places: Vec<usize> =
        (0..tokens.len()).filter(|at| !matches!(tokens[*at].token, Token::Whitespace(_))).collect();
    let kinds: Vec<&Token> = places.iter().map(|at| &tokens[*at].token).collect();
    let mut left_out: Vec<usize> = Vec::new();
    for at in (0..kinds.len()).filter(|at| is(&kinds, *at, "FOR")) {
        let (extra, behind) = match () {
            () if is(&kinds, at + 1, "NO") && is(&kinds, at + 2, "KEY") && is(&kinds, at + 3, "UPDATE") => (2, at + 4),
            () if is(&kinds, at + 1, "KEY") && is(&kinds, at + 2, "SHARE") => (1, at + 3),
            () if is(&kinds, at + 1, "UPDATE") || is(&kinds, at + 1, "SHARE") => (0, at + 2),
            () => continue,
        };
        left_out.extend(at + 1..at + 1 + extra);
        if is(&kinds, behind, "OF") {
            left_out.extend(end_of_name(&kinds, behind + 1)..end_of_names(&kinds, behind + 1));
        }
    }
    for at in left_out.iter().rev().filter_map(|at| places.get(*at)) {
        tokens.remove(*at);
    }
    tokens
}

/// Returns whether a token is a word without quotes.
fn is(tokens: &[&Token], at: usize, word: &str) -> bool {
    matches!(tokens.get(at), Some(Token::Word(found)) if found.quote_style.is_none() && found.value.eq_ignore_ascii_case(word))
}

/// Returns the position after `a` or `public.a`.
fn end_of_name(tokens: &[&Token], mut at: usize) -> usize {
    at += 1;
    while matches!(tokens.get(at), Some(Token::Period)) {
        at += 2;
    }
    at
}

fn end_of_names(tokens: &[&Token], at: usize) -> usize {
    let mut end = end_of_name(tokens, at);
    while matches!(tokens.get(end), Some(Token::Comma)) {
        end = end_of_name(tokens, end + 1);
    }
    end.min(tokens.len())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use crate::planner::parse_statement;

    #[test]
    fn each_is_one_that_the_parser_knows() {
        for (text, meant) in [
            ("SELECT a FROM t FOR NO KEY UPDATE", "SELECT a FROM t FOR UPDATE"),
            ("SELECT a FROM t for key share nowait", "SELECT a FROM t FOR SHARE NOWAIT"),
            (
                "SELECT a FROM t, u FOR UPDATE OF t, public.u, v SKIP LOCKED",
                "SELECT a FROM t, u FOR UPDATE OF t SKIP LOCKED",
            ),
            (
                "SELECT (SELECT a FROM t FOR UPDATE OF public.t), b FROM u",
                "SELECT (SELECT a FROM t FOR UPDATE OF public.t), b FROM u",
            ),
            ("SELECT substring(a FOR 2) FROM t", "SELECT substring(a FOR 2) FROM t"),
        ] {
            let [found, expected] = [text, meant].map(|text| parse_statement(text).unwrap().to_string());
            assert_eq!(found, expected, "{text}");
        }
    }
}
