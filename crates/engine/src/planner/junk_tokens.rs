//! Refuses adjacent tokens that the parser would misread.
//!
//! The parser reads the letters of `0b11` and `1st`, and the second string of `'a' 'b'`, as a
//! column's name. PostgreSQL concatenates two strings if they are on two lines.

use datafusion::sql::sqlparser::tokenizer::{Location, Token, TokenWithSpan};

use crate::{Error, ErrorKind, Place, Result};

/// Fails if the tokens contain such a pair.
pub(super) fn refuse(tokens: &[TokenWithSpan]) -> Result<()> {
    refuse_letters_behind_numbers(tokens)?;
    refuse_two_strings(tokens)
}

fn refuse_letters_behind_numbers(tokens: &[TokenWithSpan]) -> Result<()> {
    for pair in tokens.windows(2) {
        if let (Token::Number(number, _), Token::Word(word)) = (&pair[0].token, &pair[1].token)
            && word.quote_style.is_none()
        {
            let what = format!("{number}{} is no number", word.value);
            return Err(refused(&pair[0], &what, "a blank goes between a number and a name"));
        }
    }
    Ok(())
}

fn refuse_two_strings(tokens: &[TokenWithSpan]) -> Result<()> {
    // OPTIONS ('name' 'value') contains adjacent strings.
    let is_options =
        |token: &TokenWithSpan| matches!(&token.token, Token::Word(word) if word.value.eq_ignore_ascii_case("options"));
    if tokens.iter().any(is_options) {
        return Ok(());
    }
    let is_string = |token: &TokenWithSpan| matches!(token.token, Token::SingleQuotedString(_));
    let mut written = tokens.iter().filter(|token| !matches!(token.token, Token::Whitespace(_))).peekable();
    while let Some(token) = written.next() {
        if is_string(token)
            && let Some(second) = written.next_if(|next| is_string(next))
        {
            let hint = "'a' || 'b' is one, AS names a column";
            return Err(refused(second, "there are two strings beside each other", hint));
        }
    }
    Ok(())
}

fn refused(at: &TokenWithSpan, what: &str, hint: &str) -> Error {
    let Location { line, column } = at.span.start;
    let message = format!("{what} at Line: {line}, Column: {column}");
    Error::new(ErrorKind::Syntax, message).at(Place { line, column }).with_hint(hint)
}
