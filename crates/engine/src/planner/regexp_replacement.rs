//! `regexp_replace(s, pattern, replacement [, flags])` with PostgreSQL's replacements: `\1` is the
//! match of the first group, `\&` the whole match, `\\` a backslash. All other characters stand for
//! themselves.
//!
//! DataFusion 55.2 passes the replacement to Rust's regular expressions, in which `$1` and `$name`
//! are groups: `regexp_replace('5 EUR', 'EUR', '$price')` loses the price. It also reads every
//! backslash as a group's.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, StringBuilder};
use arrow::datatypes::DataType;
use datafusion::common::{Result, exec_err};
use datafusion::logical_expr::ScalarUDF;
use regex::{Captures, Regex};

use super::temporal::{Kernel, function, is_text, texts};
use crate::pg_types::zone::Zone;

/// The maximum number of patterns that are cached for the rows of a batch.
const KEPT: usize = 256;

#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct RegexpReplace;

pub(super) fn regexp_replace() -> Arc<ScalarUDF> {
    Arc::new(function(RegexpReplace))
}

/// A piece of a replacement.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    Group(usize),
}

fn pieces(replacement: &str) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut text = String::new();
    let mut letters = replacement.chars().peekable();
    while let Some(letter) = letters.next() {
        let group = match (letter, letters.peek()) {
            ('\\', Some('&')) => Some(0),
            ('\\', Some(digit @ '1'..='9')) => digit.to_digit(10),
            ('\\', Some('\\')) => {
                letters.next();
                text.push('\\');
                continue;
            }
            _ => None,
        };
        match group {
            Some(group) => {
                letters.next();
                if !text.is_empty() {
                    pieces.push(Piece::Text(std::mem::take(&mut text)));
                }
                pieces.push(Piece::Group(group as usize));
            }
            None => text.push(letter),
        }
    }
    if !text.is_empty() {
        pieces.push(Piece::Text(text));
    }
    pieces
}

fn put(found: &Captures<'_>, pieces: &[Piece], out: &mut String) {
    for piece in pieces {
        match piece {
            Piece::Text(text) => out.push_str(text),
            Piece::Group(group) => out.push_str(found.get(*group).map_or("", |found| found.as_str())),
        }
    }
}

/// Compiles a pattern. Returns it with whether all matches are replaced.
fn compiled(pattern: &str, flags: &str) -> Result<(Regex, bool)> {
    let others: String = flags.chars().filter(|flag| *flag != 'g').collect();
    let text = if others.is_empty() { pattern.to_string() } else { format!("(?{others}){pattern}") };
    let regex = Regex::new(&text).map_err(|e| super::regular_expressions::refused(pattern, &e))?;
    Ok((regex, flags.contains('g')))
}

impl Kernel for RegexpReplace {
    fn name(&self) -> &str {
        "regexp_replace"
    }

    fn coerced(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        match types.len() {
            3 | 4 if types.iter().all(is_text) => Ok(vec![DataType::Utf8; types.len()]),
            _ => exec_err!("regexp_replace takes a text, a pattern, a replacement and perhaps flags"),
        }
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Utf8)
    }

    fn run(&self, columns: &[ArrayRef], _: Zone) -> Result<ArrayRef> {
        let columns = columns.iter().map(texts).collect::<Result<Vec<_>>>()?;
        let columns: Vec<_> = columns.iter().map(|column| column.as_string::<i32>()).collect();
        let [values, patterns, replacements, flags @ ..] = columns.as_slice() else {
            return exec_err!("regexp_replace takes three arguments");
        };
        let mut known: HashMap<(&str, &str), (Regex, bool)> = HashMap::new();
        let mut last: Option<(&str, Vec<Piece>)> = None;
        let mut out = StringBuilder::with_capacity(values.len(), values.value_data().len());
        let mut text = String::new();
        for row in 0..values.len() {
            if columns.iter().any(|column| column.is_null(row)) {
                out.append_null();
                continue;
            }
            let key = (patterns.value(row), flags.first().map_or("", |flags| flags.value(row)));
            if !known.contains_key(&key) {
                if known.len() >= KEPT {
                    known.clear();
                }
                known.insert(key, compiled(key.0, key.1)?);
            }
            let Some((regex, is_global)) = known.get(&key) else { return exec_err!("a pattern is lost") };
            let replacement = replacements.value(row);
            if last.as_ref().is_none_or(|(known, _)| *known != replacement) {
                last = Some((replacement, pieces(replacement)));
            }
            let pieces = last.as_ref().map_or(&[][..], |(_, pieces)| pieces);
            let value = values.value(row);
            text.clear();
            let mut at = 0;
            for found in regex.captures_iter(value).take(if *is_global { usize::MAX } else { 1 }) {
                let Some(whole) = found.get(0) else { continue };
                text.push_str(&value[at..whole.start()]);
                put(&found, pieces, &mut text);
                at = whole.end();
            }
            text.push_str(&value[at..]);
            out.append_value(&text);
        }
        Ok(Arc::new(out.finish()))
    }
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::rows;

    #[tokio::test]
    async fn replacements_are_those_of_postgresql() {
        for (call, expected) in [
            (r"regexp_replace('5 EUR', 'EUR', '$price')", "5 $price"),
            (r"regexp_replace('5 EUR', 'EUR', '$$1')", "5 $$1"),
            (r"regexp_replace('abc', 'b', '\\')", r"a\c"),
            (r"regexp_replace('abc', 'b', '[\&]')", "a[b]c"),
            (r"regexp_replace('abcabc', '(b)(c)', '\2\1')", "acbabc"),
            (r"regexp_replace('abcabc', '(b)(c)', '\2\1', 'g')", "acbacb"),
            (r"regexp_replace('aBc', 'b', 'x', 'i')", "axc"),
            (r"regexp_replace('abc', 'b', '\9')", "ac"),
            (r"regexp_replace('abc', 'b', '\x')", r"a\xc"),
            (r"regexp_replace('abc', '', '-', 'g')", "-a-b-c-"),
            (r"regexp_replace(NULL, 'b', 'x')", "NULL"),
        ] {
            assert_eq!(rows(&format!("SELECT {call}")).await, [expected], "{call}");
        }
    }
}
