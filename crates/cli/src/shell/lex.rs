//! A minimal SQL lexer, to colour and complete a line while it is being typed. It cannot fail, and
//! marks a token that is open at the end.

use std::ops::Range;

/// The kind of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A keyword or a bare name.
    Word,
    /// A number.
    Number,
    /// `'...'`.
    Text,
    /// `"..."`.
    Name,
    /// `-- ...` or `/* ... */`.
    Comment,
    /// A single other character that is not blank.
    Symbol,
}

/// A token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// The kind.
    pub kind: Kind,
    /// The range in bytes.
    pub at: Range<usize>,
    /// True if the token is open at the end of the text: a quote or a comment is not closed.
    pub is_open: bool,
}

/// Returns the tokens of `text`, in order. Blanks are between them.
pub fn lex(text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(c) = text[at..].chars().next() {
        if c.is_whitespace() {
            at += c.len_utf8();
            continue;
        }
        let (kind, length, is_open) = token(&text[at..], c);
        tokens.push(Token { kind, at: at..at + length, is_open });
        at += length;
    }
    tokens
}

fn token(rest: &str, first: char) -> (Kind, usize, bool) {
    let until = |end: &str, from: usize| match rest[from..].find(end) {
        Some(n) => (from + n + end.len(), false),
        None => (rest.len(), true),
    };
    let spanned = |kind, (length, is_open)| (kind, length, is_open);
    match first {
        '\'' => spanned(Kind::Text, until("'", 1)),
        '"' => spanned(Kind::Name, until("\"", 1)),
        '-' if rest.starts_with("--") => spanned(Kind::Comment, until("\n", 2)),
        '/' if rest.starts_with("/*") => spanned(Kind::Comment, until("*/", 2)),
        c if c.is_ascii_digit() => {
            (Kind::Number, run(rest, |c| c.is_ascii_alphanumeric() || c == '.' || c == '_'), false)
        }
        c if c.is_alphabetic() || c == '_' => (Kind::Word, run(rest, |c| c.is_alphanumeric() || c == '_'), false),
        c => (Kind::Symbol, c.len_utf8(), false),
    }
}

fn run(rest: &str, goes_on: impl Fn(char) -> bool) -> usize {
    rest.find(|c| !goes_on(c)).unwrap_or(rest.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_told_apart() {
        let text = "SELECT a.b, 'it''s', \"N\", 1.5e3 -- x\n/* y";
        let pieces: Vec<(Kind, &str)> = lex(text).into_iter().map(|t| (t.kind, &text[t.at])).collect();
        use Kind::*;
        assert_eq!(
            pieces,
            [
                (Word, "SELECT"),
                (Word, "a"),
                (Symbol, "."),
                (Word, "b"),
                (Symbol, ","),
                (Text, "'it'"),
                (Text, "'s'"),
                (Symbol, ","),
                (Name, "\"N\""),
                (Symbol, ","),
                (Number, "1.5e3"),
                (Comment, "-- x\n"),
                (Comment, "/* y")
            ]
        );
        assert!(lex(text).last().is_some_and(|last| last.is_open));
    }

    #[test]
    fn any_text_is_taken() {
        for text in ["", "'", "\"", "é'ü", "🦀", "--", "/*", "a'é"] {
            let end = lex(text).last().map_or(0, |last| last.at.end);
            assert_eq!(end, text.len(), "{text:?}");
        }
    }
}
