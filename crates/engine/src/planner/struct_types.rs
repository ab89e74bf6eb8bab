//! `STRUCT(a INTEGER, b VARCHAR)` after `::`, or within a CAST, is `STRUCT<a INTEGER, b VARCHAR>`.
//!
//! The parentheses are DuckDB's, and this database displays such a type with them. The parser
//! accepts them only in DuckDB's dialect. Elsewhere `STRUCT(` is a call of the function of that
//! name.

use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};

/// Replaces the parentheses around the fields of a type by the brackets that the parser accepts.
pub(super) fn complete(mut tokens: Vec<TokenWithSpan>) -> Vec<TokenWithSpan> {
    let mut is_type = false;
    // For each open parenthesis, whether it contains the fields of a type.
    let mut open: Vec<bool> = Vec::new();
    let mut before: Option<Token> = None;
    for token in &mut tokens {
        let bracket = match &token.token {
            Token::Whitespace(_) => continue,
            Token::LParen => {
                open.push(is_type);
                is_type.then_some(Token::Lt)
            }
            Token::RParen => open.pop().unwrap_or(false).then_some(Token::Gt),
            _ => None,
        };
        let may_be_type = matches!(before, Some(Token::DoubleColon))
            || before.as_ref().is_some_and(|before| is_keyword(before, Keyword::AS))
            || open.last().is_some_and(|is_type| *is_type);
        is_type = may_be_type && is_keyword(&token.token, Keyword::STRUCT);
        before = Some(token.token.clone());
        if let Some(bracket) = bracket {
            token.token = bracket;
        }
    }
    tokens
}

fn is_keyword(token: &Token, keyword: Keyword) -> bool {
    matches!(token, Token::Word(word) if word.quote_style.is_none() && word.keyword == keyword)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use datafusion::sql::sqlparser::dialect::GenericDialect;
    use datafusion::sql::sqlparser::tokenizer::Tokenizer;

    fn completed(text: &str) -> String {
        let tokens = Tokenizer::new(&GenericDialect {}, text).tokenize_with_location().unwrap();
        super::complete(tokens).iter().map(|token| token.token.to_string()).collect()
    }

    #[test]
    fn types_have_brackets_and_calls_keep_parentheses() {
        for (text, expected) in [
            ("x::STRUCT(a INT)", "x::STRUCT<a INT>"),
            (
                "CAST(x AS STRUCT (a DECIMAL(3, 1), b STRUCT(c INT)))",
                "CAST(x AS STRUCT <a DECIMAL(3, 1), b STRUCT<c INT>>)",
            ),
            ("SELECT struct(1, 2), (x)::INT", "SELECT struct(1, 2), (x)::INT"),
            ("x::STRUCT(a INT)[]", "x::STRUCT<a INT>[]"),
        ] {
            assert_eq!(completed(text), expected);
        }
    }
}
