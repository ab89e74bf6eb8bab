//! `FROM t WHERE a` is `SELECT * FROM t WHERE a`, and `TABLE t` is `SELECT * FROM t`.
//!
//! The parser accepts `FROM t` alone, as a SELECT of no columns. DataFusion plans rows without
//! columns, and `CREATE TABLE x AS FROM 'file'` creates a table without columns. This module
//! inserts `SELECT *` before a FROM that begins a query and has no SELECT after it. The preceding
//! word tells where a query begins. After the parentheses of a WITH it does not: there the parser
//! reads a SELECT of no columns, and [`rewrite`] gives it all columns.
//!
//! DataFusion does not plan the parser's own `TABLE t`. A column may be named `table`: after a
//! parenthesis, the word is a keyword only where a subquery may begin.

use datafusion::sql::sqlparser::ast::{Select, SelectFlavor, SelectItem, WildcardAdditionalOptions};
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan, Whitespace};

/// The keywords before a query, apart from parentheses.
const BEFORE: [Keyword; 8] = [
    Keyword::ALL,
    Keyword::ANALYZE,
    Keyword::AS,
    Keyword::EXCEPT,
    Keyword::EXPLAIN,
    Keyword::INTERSECT,
    Keyword::UNION,
    Keyword::VERBOSE,
];

/// Some of the keywords before a parenthesized subquery.
const BEFORE_SUBQUERY: [Keyword; 8] = [
    Keyword::ALL,
    Keyword::ANY,
    Keyword::AS,
    Keyword::EXISTS,
    Keyword::FROM,
    Keyword::IN,
    Keyword::JOIN,
    Keyword::SOME,
];

/// Returns the tokens with the omitted words inserted.
pub(super) fn complete(tokens: Vec<TokenWithSpan>) -> Vec<TokenWithSpan> {
    let is = |token: &TokenWithSpan, word: Keyword| keyword(token) == Some(word);
    if !tokens.iter().any(|token| is(token, Keyword::FROM) || is(token, Keyword::TABLE)) {
        return tokens;
    }
    let mut complete = Vec::with_capacity(tokens.len() + 2);
    let (mut begins, mut may_be_table) = (true, true);
    let mut before = None;
    for (i, token) in tokens.iter().enumerate() {
        let is_table = begins && may_be_table && is(token, Keyword::TABLE) && names_table(&tokens[i + 1..]);
        if is_table || (begins && is(token, Keyword::FROM) && !has_select(&tokens[i + 1..])) {
            for left_out in [Token::make_keyword("SELECT"), Token::Mul] {
                complete.push(TokenWithSpan::new(left_out, token.span));
            }
        }
        if is_table {
            // Two words need whitespace between them.
            for word in [Token::Whitespace(Whitespace::Space), Token::make_keyword("FROM")] {
                complete.push(TokenWithSpan::new(word, token.span));
            }
            (begins, before) = (false, None);
            continue;
        }
        match &token.token {
            Token::Whitespace(_) => {}
            Token::SemiColon => (begins, may_be_table) = (true, true),
            Token::LParen => {
                may_be_table = (begins && may_be_table) || before.is_some_and(|word| BEFORE_SUBQUERY.contains(&word));
                begins = true;
            }
            _ => {
                begins = keyword(token).is_some_and(|word| BEFORE.contains(&word));
                may_be_table = begins;
            }
        }
        if !matches!(token.token, Token::Whitespace(_)) {
            before = keyword(token);
        }
        complete.push(token.clone());
    }
    complete
}

/// Returns whether the next token is a name.
fn names_table(rest: &[TokenWithSpan]) -> bool {
    let next = rest.iter().find(|token| !matches!(token.token, Token::Whitespace(_)));
    matches!(next.map(|token| &token.token), Some(Token::Word(_) | Token::SingleQuotedString(_)))
}

/// Returns whether the query has a SELECT after its FROM.
fn has_select(rest: &[TokenWithSpan]) -> bool {
    let mut depth = 0;
    for token in rest {
        match &token.token {
            Token::LParen => depth += 1,
            Token::RParen if depth == 0 => return false,
            Token::RParen => depth -= 1,
            Token::SemiColon => return false,
            _ if depth > 0 => {}
            _ => match keyword(token) {
                Some(Keyword::SELECT) => return true,
                Some(Keyword::UNION | Keyword::EXCEPT | Keyword::INTERSECT) => return false,
                _ => {}
            },
        }
    }
    false
}

fn keyword(token: &TokenWithSpan) -> Option<Keyword> {
    match &token.token {
        Token::Word(word) if word.quote_style.is_none() => Some(word.keyword),
        _ => None,
    }
}

pub(super) fn rewrite(select: &mut Select) {
    if select.flavor == SelectFlavor::FromFirstNoSelect {
        select.flavor = SelectFlavor::Standard;
        select.projection = vec![SelectItem::Wildcard(WildcardAdditionalOptions::default())];
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use crate::planner::tests::rewritten;

    #[test]
    fn from_without_select_selects_everything() {
        for (text, meant) in [
            ("FROM t", "SELECT * FROM t"),
            ("from 'x.parquet' WHERE a LIMIT 1", "SELECT * FROM 'x.parquet' WHERE a LIMIT 1"),
            ("EXPLAIN FROM t", "EXPLAIN SELECT * FROM t"),
            ("SELECT a FROM (FROM t WHERE b) AS s", "SELECT a FROM (SELECT * FROM t WHERE b) AS s"),
            ("(FROM t) UNION ALL (FROM s)", "(SELECT * FROM t) UNION ALL (SELECT * FROM s)"),
            ("FROM t WHERE a UNION FROM s WHERE b", "SELECT * FROM t WHERE a UNION SELECT * FROM s WHERE b"),
            ("INSERT INTO t FROM s", "INSERT INTO t SELECT * FROM s"),
            ("WITH c AS (FROM t WHERE a) FROM c", "WITH c AS (SELECT * FROM t WHERE a) SELECT * FROM c"),
            ("TABLE t", "SELECT * FROM t"),
            ("table public.t ORDER BY a LIMIT 1", "SELECT * FROM public.t ORDER BY a LIMIT 1"),
            ("(TABLE t) UNION TABLE s", "(SELECT * FROM t) UNION SELECT * FROM s"),
            (
                "SELECT a FROM (TABLE t) AS s WHERE b IN (TABLE s)",
                "SELECT a FROM (SELECT * FROM t) AS s WHERE b IN (SELECT * FROM s)",
            ),
            ("SELECT a FROM t WHERE b IN (FROM s)", "SELECT a FROM t WHERE b IN (SELECT * FROM s)"),
        ] {
            assert_eq!(rewritten(text), meant);
        }
    }

    #[test]
    fn other_froms_stay() {
        for text in [
            "FROM t SELECT a",
            "SELECT a FROM t WHERE b IS DISTINCT FROM c",
            "SELECT EXTRACT(YEAR FROM d) AS y, SUBSTRING(s FROM 2) AS z FROM t",
            "SELECT 1 AS \"from\"",
            "CREATE TABLE t (a INT)",
            "DROP TABLE t",
        ] {
            assert_eq!(rewritten(text), text);
        }
    }
}
