//! `INTERVAL 2 QUARTERS`: moves a unit that the parser does not know into the interval string.
//! `INTERVAL 5 BANANAS` is an error.
//!
//! sqlparser 0.62 reads a word that is not one of its units as the column's name, and DataFusion
//! reads the number as seconds.

use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Location, Token, TokenWithSpan, Word};

use crate::pg_types::interval_text;
use crate::{Error, ErrorKind, Place, Result};

/// The units that the parser and DataFusion know.
const KNOWN: [&str; 14] = [
    "year", "years", "month", "months", "week", "weeks", "day", "days", "hour", "hours", "minute", "minutes", "second",
    "seconds",
];

/// Returns tokens with units that the parser knows for all numeric intervals.
///
/// # Errors
/// Fails if a number after INTERVAL has an unknown unit or none.
pub(super) fn complete(mut tokens: Vec<TokenWithSpan>) -> Result<Vec<TokenWithSpan>> {
    let is_interval = |token: &TokenWithSpan| is_word(token, |word| word.keyword == Keyword::INTERVAL);
    let mut at = 0;
    while let Some(found) = tokens.get(at..).and_then(|rest| rest.iter().position(is_interval)) {
        at += found + 1;
        let Some(number) = next(&tokens, at) else { break };
        let (sign, number) = match &tokens[number].token {
            Token::Minus => match next(&tokens, number + 1) {
                Some(behind) => ("-", behind),
                None => break,
            },
            _ => ("", number),
        };
        let Token::Number(digits, _) = &tokens[number].token else { continue };
        let written = format!("{sign}{digits}");
        let unit = next(&tokens, number + 1);
        let name = unit.and_then(|unit| match &tokens[unit].token {
            Token::Word(word) if word.quote_style.is_none() => Some(word.value.to_ascii_lowercase()),
            _ => None,
        });
        let (Some(unit), Some(name)) = (unit, name) else {
            return Err(without_unit(&tokens[number], "a number is no interval without a unit"));
        };
        if KNOWN.contains(&name.as_str()) {
            continue;
        }
        if interval_text::parse(&format!("1 {name}")).is_none() {
            return Err(without_unit(&tokens[unit], &format!("{name} is no unit of an interval")));
        }
        let first = if sign.is_empty() { number } else { next(&tokens, at).unwrap_or(number) };
        tokens[first].token = Token::SingleQuotedString(format!("{written} {name}"));
        tokens.drain(first + 1..=unit);
    }
    Ok(tokens)
}

fn is_word(token: &TokenWithSpan, is_it: impl Fn(&Word) -> bool) -> bool {
    matches!(&token.token, Token::Word(word) if word.quote_style.is_none() && is_it(word))
}

/// Returns the index of the next token from `from` on that is not whitespace.
fn next(tokens: &[TokenWithSpan], from: usize) -> Option<usize> {
    let rest = tokens.get(from..)?;
    rest.iter().position(|token| !matches!(token.token, Token::Whitespace(_))).map(|found| from + found)
}

fn without_unit(token: &TokenWithSpan, what: &str) -> Error {
    let Location { line, column } = token.span.start;
    Error::new(ErrorKind::Syntax, format!("{what} at Line: {line}, Column: {column}"))
        .at(Place { line, column })
        .with_hint("an interval is written INTERVAL 5 DAYS, or INTERVAL '1 year 2 days 03:00'")
}

#[cfg(test)]
mod tests {
    use crate::ErrorKind;
    use crate::planner::tests::{fails, rows};

    #[tokio::test]
    async fn units_are_known_or_refused() {
        for (expr, expected) in [
            ("CAST(INTERVAL 2 QUARTERS AS VARCHAR)", "6 mons"),
            ("CAST(INTERVAL 1 DECADE AS VARCHAR)", "10 years"),
            ("CAST(INTERVAL 5 DAYS AS VARCHAR)", "5 days"),
            ("CAST(INTERVAL -2 quarters AS VARCHAR)", "-6 mons"),
            ("DATE '2020-01-01' + INTERVAL 2 QUARTERS", "2020-07-01"),
        ] {
            assert_eq!(rows(&format!("SELECT {expr}")).await, [expected], "{expr}");
        }
        for expr in ["INTERVAL 5 BANANAS", "INTERVAL 5", "INTERVAL 5 AS x", "DATE '2020-01-01' + INTERVAL 2 dyas"] {
            assert_eq!(fails(&format!("SELECT {expr}")).await.kind(), ErrorKind::Syntax, "{expr}");
        }
    }
}
