//! Statements that differ in their literals alone: one is parsed, the others are recognized.
//!
//! A client without prepared statements sends `INSERT INTO t VALUES (1, 'a')` again and again with other values, and parsing it takes
//! longer than all the rest but the commit. So the first one's [`Template`] is kept by the statement's shape, its text with a
//! parameter in place of each literal; the next one's literals are what the template takes.
//!
//! What is no plain literal for certain makes no shape, and is parsed: a statement that is not understood here is understood as ever.
//! Literals here are whole numbers, with a sign where nothing but a value can begin, and texts in single quotes.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};

use crate::Result;
use crate::parameter::Value;
use crate::prepared::{Prepared, StatementKind};
use crate::template::Template;

/// TemplateCache that are kept. With more all are forgotten: who has so many gains nothing by them.
const KEPT: usize = 64;
/// Longer texts are not looked at: parsing them is a small part of what they do.
const MOST_TEXT_BYTES: usize = 8 << 10;

/// TemplateCache of a session's statements, by their text; without a template if that can be none.
#[derive(Debug, Default)]
pub(crate) struct TemplateCache(Mutex<HashMap<String, Option<Known>>>);

#[derive(Clone, Debug)]
struct Known {
    template: Arc<Template>,
    kind: StatementKind,
}

impl TemplateCache {
    /// Parses a statement with `parse`, unless its template is known.
    pub fn parse(&self, text: &str, parse: fn(&str) -> Result<Prepared>) -> Result<Prepared> {
        let Some(shape) = Shape::of(text) else { return parse(text) };
        let known = self.kept(|kept| kept.get(&shape.text).cloned());
        match known {
            Some(Some(Known { template, kind })) => Ok(Prepared::of_template(text, template, shape.literals, kind)),
            Some(None) => parse(text),
            None => {
                let prepared = parse(text)?;
                let known = shape.template(parse).map(|template| Known { template, kind: prepared.kind().clone() });
                self.kept(|kept| {
                    if kept.len() >= KEPT {
                        kept.clear();
                    }
                    kept.insert(shape.text, known)
                });
                Ok(prepared)
            }
        }
    }

    fn kept<T>(&self, work: impl FnOnce(&mut HashMap<String, Option<Known>>) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A statement without its literals, and these.
#[derive(Debug, PartialEq)]
struct Shape {
    /// With `$1`, `$2` ... in place of them.
    text: String,
    literals: Vec<Value>,
}

impl Shape {
    /// Of an `INSERT` that has some, and nothing that is not understood here.
    fn of(text: &str) -> Option<Self> {
        let first = text.trim_start().get(..6)?;
        if text.len() > MOST_TEXT_BYTES || !first.eq_ignore_ascii_case("INSERT") {
            return None;
        }
        let mut shape = Self { text: String::with_capacity(text.len()), literals: Vec::new() };
        let bytes = text.as_bytes();
        // What is before the next byte, blanks aside.
        let (mut at, mut before) = (0, b' ');
        while let Some(&byte) = bytes.get(at) {
            let start = at;
            match byte {
                b'\'' => {
                    let (literal, end) = quoted(text, at)?;
                    shape.put(Value::Text(literal))?;
                    at = end;
                }
                b'"' => {
                    at += 2 + text[at + 1..].find('"')?;
                    shape.text.push_str(&text[start..at]);
                }
                b'0'..=b'9' => {
                    at += digits(&bytes[at..]);
                    shape.put(Value::Integer(text[start..at].parse().ok()?))?;
                }
                // Only a value stands there.
                b'-' if matches!(before, b'(' | b',') && bytes.get(at + 1).is_some_and(u8::is_ascii_digit) => {
                    at += 1 + digits(&bytes[at + 1..]);
                    shape.put(Value::Integer(text[start..at].parse().ok()?))?;
                }
                byte if is_of_word(byte) => {
                    at += bytes[at..].iter().take_while(|byte| is_of_word(**byte)).count();
                    shape.text.push_str(&text[start..at]);
                }
                b' ' | b'\t' | b'\n' | b'\r' | b'(' | b')' | b',' | b';' => {
                    at += 1;
                    shape.text.push(char::from(byte));
                }
                // Comments, operators, points, parameters, texts of other kinds.
                _ => return None,
            }
            // A literal that ends where a word begins, or another literal, is something else, such as 1e5 or E'a'.
            let is_literal = |byte: u8| byte == b'\'' || is_of_word(byte);
            if is_literal(byte) && bytes.get(at).is_some_and(|next| is_literal(*next) || *next == b'"') {
                return None;
            }
            if !byte.is_ascii_whitespace() {
                before = byte;
            }
        }
        (!shape.literals.is_empty()).then_some(shape)
    }

    fn put(&mut self, literal: Value) -> Option<()> {
        self.literals.push(literal);
        write!(self.text, "${}", self.literals.len()).ok()
    }

    /// What takes the literals of all statements of this shape.
    fn template(&self, parse: fn(&str) -> Result<Prepared>) -> Option<Arc<Template>> {
        let prepared = parse(&self.text).ok()?;
        prepared.template().filter(|_| prepared.parameters() == self.literals.len()).cloned()
    }
}

fn digits(bytes: &[u8]) -> usize {
    bytes.iter().take_while(|byte| byte.is_ascii_digit()).count()
}

/// Of a name or a number; beyond ASCII all is.
fn is_of_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || !byte.is_ascii()
}

/// A text in single quotes, and where it ends. Backslashes and zeros mean something to some.
fn quoted(text: &str, start: usize) -> Option<(String, usize)> {
    let mut literal = String::new();
    let mut at = start + 1;
    loop {
        let end = at + text[at..].find('\'')?;
        literal.push_str(&text[at..end]);
        if text.as_bytes().get(end + 1) != Some(&b'\'') {
            return (!literal.contains(['\\', '\0'])).then_some((literal, end + 1));
        }
        literal.push('\'');
        at = end + 2;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(text: &str) -> Option<(String, Vec<Value>)> {
        Shape::of(text).map(|shape| (shape.text, shape.literals))
    }

    #[test]
    fn literals_are_what_statements_of_a_shape_differ_in() {
        let (shape, literals) =
            of("insert into T1 (a, \"b 1\")\nVALUES (12, 'it''s'), (-3, ''), (NULL,' x ')").unwrap();
        assert_eq!(shape, "insert into T1 (a, \"b 1\")\nVALUES ($1, $2), ($3, $4), (NULL,$5)");
        let expected: [Value; 5] = [12.into(), "it's".into(), (-3).into(), "".into(), " x ".into()];
        assert_eq!(literals, expected);
        assert_eq!(of("INSERT INTO größe VALUES ('ä€');").unwrap().0, "INSERT INTO größe VALUES ($1);");
    }

    #[test]
    fn what_is_no_plain_literal_makes_none() {
        for text in [
            "INSERT INTO t VALUES ($1)",
            "INSERT INTO t VALUES (1.5)",
            "INSERT INTO t VALUES (.5)",
            "INSERT INTO t VALUES (1e5)",
            "INSERT INTO t VALUES (0x1F)",
            "INSERT INTO t VALUES (1_000)",
            "INSERT INTO t VALUES (99999999999999999999)",
            "INSERT INTO t VALUES (E'a')",
            "INSERT INTO t VALUES (x'00')",
            "INSERT INTO t VALUES ('a\\b')",
            "INSERT INTO t VALUES ('a'::text)",
            "INSERT INTO t VALUES (1 + 1)",
            "INSERT INTO t VALUES (2 -1)",
            "INSERT INTO t VALUES (1) -- 'a",
            "INSERT INTO t VALUES (1 /* 2 */)",
            "INSERT INTO t VALUES ($$a$$)",
            "INSERT INTO t VALUES (?)",
            "INSERT INTO t VALUES ('a",
            "INSERT INTO \"t VALUES (1)",
            "INSERT INTO a.t VALUES (1)",
            "INSERT INTO t VALUES (NULL)",
            "SELECT 1",
            "",
        ] {
            assert_eq!(of(text), None, "{text}");
        }
    }

    /// What a statement puts into a table, however it was understood, and what it is parsed as if it needs a plan.
    fn rows(prepared: &Prepared) -> (Option<String>, StatementKind, String) {
        let filled = prepared.template().map(|template| template.filled(prepared.literals()));
        (filled, prepared.kind().clone(), format!("{:?}", prepared.bind(&[]).map(|tokens| tokens.len())))
    }

    #[test]
    fn what_is_recognized_is_what_is_parsed() {
        let shapes = TemplateCache::default();
        for text in [
            "INSERT INTO t VALUES (1, 'a')",
            "INSERT INTO t VALUES (2, 'it''s'), (3, 'b')",
            "INSERT INTO t VALUES (-2, 'it''s'), (3, NULL)",
            "INSERT INTO t (a) VALUES (DATE '2024-01-01')",
            "INSERT INTO t VALUES (1, 'a') RETURNING 1",
            "INSERT INTO t SELECT 1",
            "INSERT INTO t VALUES ('a' 'b')",
            "INSERT INTO t VALUES (1 2)",
        ] {
            let parsed = crate::statement::client(text).map(|prepared| rows(&prepared)).map_err(|e| e.to_string());
            // The first one is parsed, those after it are not.
            for _ in 0..3 {
                let recognized = shapes
                    .parse(text, crate::statement::client)
                    .map(|prepared| rows(&prepared))
                    .map_err(|e| e.to_string());
                assert_eq!(recognized, parsed, "{text}");
            }
        }
    }

    proptest! {
        #[test]
        fn whatever_is_sent_is_understood_as_ever(
            tail in r#"[a1'"(),;$ \\E.\-+é:]{0,24}"#,
            values in prop::collection::vec(prop_oneof![r"-?[0-9]{1,20}", r"'[a'\\ \-é]{0,4}'", Just("NULL".to_string())], 1..4),
        ) {
            let shapes = TemplateCache::default();
            for text in [format!("INSERT INTO t VALUES ({})", values.join(", ")), format!("INSERT INTO t VALUES (1, {tail}")] {
                let parsed = crate::statement::client(&text).map(|prepared| rows(&prepared)).map_err(|e| e.to_string());
                for _ in 0..2 {
                    let recognized = shapes.parse(&text, crate::statement::client).map(|prepared| rows(&prepared)).map_err(|e| e.to_string());
                    prop_assert_eq!(&recognized, &parsed, "{}", text);
                }
            }
        }
    }
}
