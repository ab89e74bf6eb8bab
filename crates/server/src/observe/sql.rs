//! The parts of a statement's text that a span contains: its operation, the text without values,
//! and the parent span.
//!
//! The text is split into words, quotes, numbers and comments like the engine's scripts, and not
//! parsed. Text that cannot be parsed is reported as well, with its values masked. An unclosed
//! quote or comment extends to the end of the text, which may have been cut there.

use std::borrow::Cow;
use std::collections::HashMap;

use percent_encoding::percent_decode_str;

/// The maximum length of the first word of a statement.
const LONGEST_OPERATION: usize = 20;

/// A token of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'a> {
    /// A value: '...', E'...', $tag$...$tag$ ...
    Text,
    /// A value: 1, 1.5e-3, 0xff ...
    Number,
    /// A comment, with its delimiters.
    Comment(&'a str),
    /// A keyword, or an unquoted name.
    Word(&'a str),
    /// A quoted name, a parameter, a blank, or any other character.
    Other(&'a str),
}

struct Tokens<'a> {
    rest: &'a str,
}

impl<'a> Iterator for Tokens<'a> {
    type Item = Token<'a>;

    fn next(&mut self) -> Option<Token<'a>> {
        let text = self.rest;
        let bytes = text.as_bytes();
        let next = |at: usize| bytes.get(at).copied().unwrap_or(0);
        let (length, make): (usize, fn(&'a str) -> Token<'a>) = match *bytes.first()? {
            b'-' if next(1) == b'-' => (text.find('\n').unwrap_or(text.len()), Token::Comment),
            b'/' if next(1) == b'*' => (comment(bytes), Token::Comment),
            b'\'' => (quoted(bytes, 0, Escapes::None), |_| Token::Text),
            b'e' | b'E' if next(1) == b'\'' => (quoted(bytes, 1, Escapes::Backslash), |_| Token::Text),
            b'b' | b'B' | b'x' | b'X' | b'n' | b'N' if next(1) == b'\'' => {
                (quoted(bytes, 1, Escapes::None), |_| Token::Text)
            }
            b'u' | b'U' if next(1) == b'&' && next(2) == b'\'' => (quoted(bytes, 2, Escapes::None), |_| Token::Text),
            b'"' | b'`' => (quoted(bytes, 0, Escapes::None), Token::Other),
            b'$' => match dollar_quoted(text) {
                Some(length) => (length, |_| Token::Text),
                None => (1 + count(&bytes[1..], |byte| byte.is_ascii_digit()), Token::Other),
            },
            b'0'..=b'9' => (number(bytes), |_| Token::Number),
            b'.' if next(1).is_ascii_digit() => (number(bytes), |_| Token::Number),
            first if is_of_word(first) => (count(bytes, is_of_word), Token::Word),
            _ => (1, Token::Other),
        };
        let (token, rest) = text.split_at(length);
        self.rest = rest;
        Some(make(token))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Escapes {
    /// Only doubled quotes.
    None,
    /// Backslash escapes, as in E'...'.
    Backslash,
}

/// Returns true for a byte of a word. All bytes of non-ASCII characters are.
fn is_of_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || !byte.is_ascii()
}

fn count(bytes: &[u8], is: impl Fn(u8) -> bool) -> usize {
    bytes.iter().take_while(|byte| is(**byte)).count()
}

/// Returns the length of a quoted token, whose quote is at `at`.
fn quoted(bytes: &[u8], at: usize, escapes: Escapes) -> usize {
    let mut end = at + 1;
    while let Some(byte) = bytes.get(end) {
        end += 1;
        match *byte {
            b'\\' if escapes == Escapes::Backslash => end += 1,
            byte if byte == bytes[at] && bytes.get(end) == Some(&byte) => end += 1,
            byte if byte == bytes[at] => return end,
            _ => {}
        }
    }
    bytes.len()
}

fn comment(bytes: &[u8]) -> usize {
    let (mut at, mut depth) = (0, 0);
    while at < bytes.len() {
        match &bytes[at..] {
            [b'/', b'*', ..] => (at, depth) = (at + 2, depth + 1),
            [b'*', b'/', ..] => (at, depth) = (at + 2, depth - 1),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    bytes.len()
}

/// Returns the length of `$tag$...$tag$`, if the text begins with one.
fn dollar_quoted(text: &str) -> Option<usize> {
    let tag = &text[1..1 + text[1..].find('$')?];
    if tag.starts_with(|c: char| c.is_numeric()) || !tag.chars().all(|c| c.is_alphanumeric() || c == '_') {
        return None;
    }
    let (mark, body) = text.split_at(tag.len() + 2);
    Some(body.find(mark).map_or(text.len(), |at| at + 2 * mark.len()))
}

fn number(bytes: &[u8]) -> usize {
    let is_decimal = !matches!(bytes, [b'0', b'x' | b'X', ..]);
    let mut end = 0;
    while let Some(byte) = bytes.get(end) {
        let is_sign = matches!(byte, b'+' | b'-') && is_decimal && matches!(bytes[..end], [.., b'e' | b'E']);
        if !is_of_word(*byte) && *byte != b'.' && !is_sign {
            break;
        }
        end += 1;
    }
    end
}

/// Returns the text with each value replaced by `?`, and without comments. Statements that differ
/// only in these become equal.
pub fn masked(text: &str) -> String {
    let mut masked = String::with_capacity(text.len());
    for token in (Tokens { rest: text }) {
        match token {
            Token::Text | Token::Number => masked.push('?'),
            Token::Comment(_) => masked.push(' '),
            Token::Word(part) | Token::Other(part) => masked.push_str(part),
        }
    }
    masked.trim().to_string()
}

/// Returns the operation of a statement: its first word.
pub fn operation(text: &str) -> Option<String> {
    let words = Tokens { rest: text }.filter_map(|token| match token {
        Token::Word(word) => Some(word),
        _ => None,
    });
    let is_one = |word: &&str| word.len() <= LONGEST_OPERATION && word.bytes().all(|byte| byte.is_ascii_alphabetic());
    words.take(1).find(is_one).map(str::to_ascii_uppercase)
}

/// Returns the headers of the W3C trace context that the client put in a comment, as sqlcommenter
/// does: `/*traceparent='00-...',tracestate='...'*/`.
pub fn parent(text: &str) -> Option<HashMap<String, String>> {
    // Nearly no statement has one.
    if !text.contains("traceparent=") {
        return None;
    }
    Tokens { rest: text }.find_map(|token| match token {
        Token::Comment(comment) => {
            let parent = value(comment, "traceparent")?;
            let state = value(comment, "tracestate");
            let headers = [("traceparent", Some(parent)), ("tracestate", state)];
            Some(headers.into_iter().filter_map(|(name, value)| Some((name.into(), value?.into()))).collect())
        }
        _ => None,
    })
}

/// Returns the value of a key in a comment.
fn value<'a>(comment: &'a str, key: &str) -> Option<Cow<'a, str>> {
    let said = comment.trim_start_matches("/*").trim_start_matches("--").trim_end_matches("*/");
    let value = said.split(',').find_map(|pair| pair.trim().strip_prefix(key)?.strip_prefix("='")?.strip_suffix('\''));
    percent_decode_str(value?).decode_utf8().ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn values_are_masked_and_names_are_not() {
        for (text, expected) in [
            ("SELECT 1", "SELECT ?"),
            ("SELECT a1, _2, \u{e4}3 FROM t4 WHERE x=-5.5e-3", "SELECT a1, _2, \u{e4}3 FROM t4 WHERE x=-?"),
            ("SELECT 1.,.5,0xFF,1_000,1e5,1e+5,1-2,a-2", "SELECT ?,?,?,?,?,?,?-?,a-?"),
            ("SELECT 'it''s', '', 'a''', e'\\'b' || N'c' || U&'d'", "SELECT ?, ?, ?, ? || ? || ?"),
            ("SELECT E'a\\'secret\\\\', \"it's 5\", `x'5`, t.e", "SELECT ?, \"it's 5\", `x'5`, t.e"),
            ("SELECT $$it's 1$$, $tag$a $$ b$tag$, $1, $23", "SELECT ?, ?, $1, $23"),
            ("SELECT date'2024-01-01', CAST('x' AS VARCHAR(7))", "SELECT date?, CAST(? AS VARCHAR(?))"),
            ("SELECT /* 'secret' /* 2 */ 3 */ a -- 'secret'\n, b", "SELECT   a  \n, b"),
            ("/*x='1'*/ INSERT INTO t VALUES (1, 'a'), (?, NULL) --", "INSERT INTO t VALUES (?, ?), (?, NULL)"),
            // Unclosed or cut texts.
            ("SELECT 'secret...", "SELECT ?"),
            ("SELECT E'secret\\", "SELECT ?"),
            ("SELECT $a$secret $b$", "SELECT ?"),
            ("SELECT /* secret", "SELECT"),
            ("SELECT 12...", "SELECT ?"),
            ("SELECT \"a", "SELECT \"a"),
            ("SELECT $", "SELECT $"),
            ("\u{20ac} '\u{20ac}' $\u{e4}$\u{20ac}$\u{e4}$", "\u{20ac} ? ?"),
            ("", ""),
        ] {
            assert_eq!(masked(text), expected, "{text}");
        }
    }

    #[test]
    fn any_text_is_cut_into_tokens() {
        // All triples of significant pieces, and so each of their prefixes.
        let pieces =
            ["'", "\"", "`", "$", "$a$", "/*", "*/", "--", "\n", "\\", "e'", "u&'", "1", ".", "e", "-", "\u{e4}", " "];
        for a in pieces {
            for b in pieces {
                for c in pieces {
                    let text = format!("{a}{b}{c}x");
                    let _ = (masked(&text), operation(&text), parent(&format!("{text}/*traceparent='{a}{b}'*/")));
                }
            }
        }
    }

    #[test]
    fn operations_are_first_words() {
        for (text, expected) in [
            ("select 1", Some("SELECT")),
            ("/* c */ -- d\n((SELECT 1))", Some("SELECT")),
            ("WITH x AS (SELECT 1) SELECT 2", Some("WITH")),
            ("'INSERT' x5 SELECT", None),
            ("", None),
            ("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", None),
        ] {
            assert_eq!(operation(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn parents_are_in_comments_alone() {
        const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let of =
            |text: &str| parent(text).map(|mut all| (all.remove("traceparent").unwrap(), all.remove("tracestate")));
        let found = Some((PARENT.to_string(), None));
        assert_eq!(of(&format!("SELECT 1 /*traceparent='{PARENT}'*/")), found);
        assert_eq!(of(&format!("/* action='%2Fx', traceparent='{PARENT}' */ SELECT 1")), found);
        let with_state = of(&format!("SELECT 1 /*traceparent='{PARENT}',tracestate='a%3D1%2Cb%3D2'*/"));
        assert_eq!(with_state, Some((PARENT.to_string(), Some("a=1,b=2".into()))));
        for none in [
            format!("SELECT '/*traceparent=''{PARENT}''*/'"),
            format!("SELECT \"/*traceparent='{PARENT}'*/\""),
            format!("SELECT $$/*traceparent='{PARENT}'*/$$"),
            format!("SELECT 1 /*xtraceparent='{PARENT}'*/"),
            format!("SELECT 1 /*traceparent={PARENT}*/"),
            "SELECT traceparent='1'".into(),
        ] {
            assert_eq!(of(&none), None, "{none}");
        }
    }
}
