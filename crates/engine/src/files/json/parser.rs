//! A sequential parser of JSON text, at memory bandwidth for plain values.
//!
//! A file is mostly the same few keys, short strings without escapes, and numbers of few digits.
//! The parser reads these itself, eight bytes at a time and nothing twice. It compares a key with
//! the one expected at its place. It passes everything else, and every invalid text, to jiter, from
//! the same byte on.
//!
//! Invariant: the values, the position of the parser after each, and every error with its position
//! equal jiter's.

use jiter::{Jiter, JiterError, JiterErrorType, JiterResult, JsonErrorType, NumberInt, Peek};

use crate::files::number::{HIGH, LOW, double, first, integer, number_end, word};

/// The maximum nesting that is skipped here. For deeper nesting jiter applies its limit.
const MAX_PLAIN_DEPTH: u32 = 64;

/// An expected key.
#[derive(Clone, Debug)]
pub(super) struct Key {
    name: String,
    /// `"name":`, its most frequent form in the text.
    written: Vec<u8>,
    /// Its first bytes, eight at a time, each with a mask of the bytes present.
    words: [(u64, u64); 2],
    /// True if the key occurs without escapes. `a\b` in a text is not a name with a backslash.
    is_plain: bool,
}

impl Key {
    pub fn new(name: String) -> Self {
        let is_plain = name.bytes().all(|byte| byte >= b' ' && byte != b'"' && byte != b'\\');
        let written = format!("\"{name}\":").into_bytes();
        let word = |from: usize| {
            let (mut word, mut mask) = ([0; 8], [0; 8]);
            for (at, byte) in written.iter().skip(from).take(8).enumerate() {
                (word[at], mask[at]) = (*byte, 0xFF);
            }
            (u64::from_le_bytes(word), u64::from_le_bytes(mask))
        };
        Self { words: [word(0), word(8)], is_plain, name, written }
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the name.
    pub fn into_name(self) -> String {
        self.name
    }

    /// Returns whether the text has the key at a place, with a colon behind it.
    #[inline]
    fn is_at(&self, bytes: &[u8], at: usize) -> bool {
        let is =
            |at: usize, (expected, mask): (u64, u64)| word(bytes, at).is_some_and(|word| (word ^ expected) & mask == 0);
        self.is_plain
            && is(at, self.words[0])
            && (self.written.len() <= 8 || is(at + 8, self.words[1]))
            && (self.written.len() <= 16 || bytes.get(at + 16..at + self.written.len()) == self.written.get(16..))
    }
}

/// A key that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found<'a> {
    Expected,
    /// A key by name, usually another one than expected.
    Key(&'a str),
}

/// A parser of values. The prefix `known_` means that the first byte is known, as in jiter.
pub(super) struct Json<'a> {
    text: &'a str,
    at: usize,
    /// The last string with escapes.
    unescaped: String,
    /// jiter's buffer for such strings.
    tape: Vec<u8>,
}

impl<'a> Json<'a> {
    pub fn new(text: &'a str) -> Self {
        Self { text, at: 0, unescaped: String::new(), tape: Vec::new() }
    }

    /// Returns the offset of the next byte.
    pub fn current_index(&self) -> usize {
        self.at
    }

    /// Returns the text from `start` to the current offset.
    pub fn slice_to_current(&self, start: usize) -> &'a [u8] {
        self.bytes().get(start..self.at).unwrap_or_default()
    }

    #[inline]
    fn bytes(&self) -> &'a [u8] {
        self.text.as_bytes()
    }

    /// Returns the next byte that is not blank.
    #[inline]
    fn next(&mut self) -> Option<u8> {
        self.at = behind_blanks(self.bytes(), self.at);
        self.bytes().get(self.at).copied()
    }

    fn error<T>(&self, error_type: JsonErrorType) -> JiterResult<T> {
        Err(JiterError { error_type: JiterErrorType::JsonError(error_type), index: self.at })
    }

    /// Lets jiter read the value at the current offset.
    #[cold]
    fn by_jiter<T>(&mut self, read: impl FnOnce(&mut Jiter<'_>) -> JiterResult<T>) -> JiterResult<T> {
        let from = self.at;
        let rest = self.bytes().get(from..).unwrap_or_default();
        let mut jiter = Jiter::with_tape(rest, std::mem::take(&mut self.tape)).with_allow_inf_nan();
        let read = read(&mut jiter);
        self.at += jiter.current_index();
        self.tape = jiter.into_tape();
        read.map_err(|e| JiterError { error_type: e.error_type, index: from + e.index })
    }

    /// Returns the type of the next value, by its first byte.
    #[inline]
    pub fn peek(&mut self) -> JiterResult<Peek> {
        match self.next() {
            Some(byte) => Ok(Peek::new(byte)),
            None => self.error(JsonErrorType::EofWhileParsingValue),
        }
    }

    /// Reads `null`.
    #[inline]
    pub fn known_null(&mut self) -> JiterResult<()> {
        self.known_skip(Peek::Null)
    }

    /// Reads a boolean.
    #[inline]
    pub fn known_bool(&mut self, peek: Peek) -> JiterResult<bool> {
        match word_end(self.bytes(), self.at) {
            Some(end) if matches!(peek, Peek::True | Peek::False) => {
                self.at = end;
                Ok(peek == Peek::True)
            }
            _ => self.by_jiter(|jiter| jiter.known_bool(peek)),
        }
    }

    /// Reads an integer.
    #[inline]
    pub fn known_int(&mut self, peek: Peek) -> JiterResult<i64> {
        match integer(self.bytes(), self.at) {
            Some((value, end)) => {
                self.at = end;
                Ok(value)
            }
            None => self.by_jiter(|jiter| jiter.known_int(peek).map(|NumberInt::Int(value)| value)),
        }
    }

    /// Reads a number as a double.
    #[inline]
    pub fn known_float(&mut self, peek: Peek) -> JiterResult<f64> {
        match double(self.bytes(), self.at) {
            Some((value, end)) => {
                self.at = end;
                Ok(value)
            }
            None => self.by_jiter(|jiter| jiter.known_float(peek)),
        }
    }

    /// Reads a number as text.
    #[inline]
    pub fn known_number(&mut self, peek: Peek) -> JiterResult<&'a str> {
        let from = self.at;
        match number_end(self.bytes(), self.at) {
            Some(end) => self.at = end,
            None => self.by_jiter(|jiter| jiter.known_number_bytes(peek).map(|_| ()))?,
        }
        Ok(self.text.get(from..self.at).unwrap_or_default())
    }

    /// Reads a string.
    #[inline]
    pub fn known_str(&mut self) -> JiterResult<&str> {
        let from = self.at + 1;
        let end = string_stop(self.bytes(), from);
        if self.bytes().get(end) == Some(&b'"') {
            self.at = end + 1;
            // A quote is never part of a multi-byte character.
            return Ok(self.text.get(from..end).unwrap_or_default());
        }
        self.escaped()
    }

    #[cold]
    fn escaped(&mut self) -> JiterResult<&str> {
        let mut unescaped = std::mem::take(&mut self.unescaped);
        unescaped.clear();
        self.by_jiter(|jiter| jiter.known_str().map(|text| unescaped.push_str(text)))?;
        self.unescaped = unescaped;
        Ok(&self.unescaped)
    }

    /// Skips a value.
    #[inline]
    pub fn known_skip(&mut self, peek: Peek) -> JiterResult<()> {
        let end = match peek {
            Peek::Array | Peek::Object => nested_end(self.bytes(), self.at),
            _ => scalar_end(self.bytes(), self.at),
        };
        match end {
            Some(end) => {
                self.at = end;
                Ok(())
            }
            None => self.by_jiter(|jiter| jiter.known_skip(peek)),
        }
    }

    /// Enters an array. Returns the type of its first element.
    pub fn known_array(&mut self) -> JiterResult<Option<Peek>> {
        self.at += 1;
        match self.next() {
            Some(b']') => {
                self.at += 1;
                Ok(None)
            }
            Some(byte) => Ok(Some(Peek::new(byte))),
            None => self.error(JsonErrorType::EofWhileParsingList),
        }
    }

    /// Returns the type of an array's next element.
    pub fn array_step(&mut self) -> JiterResult<Option<Peek>> {
        match self.next() {
            Some(b',') => {
                self.at += 1;
                match self.next() {
                    Some(b']') => self.error(JsonErrorType::TrailingComma),
                    Some(byte) => Ok(Some(Peek::new(byte))),
                    None => self.error(JsonErrorType::EofWhileParsingValue),
                }
            }
            Some(b']') => {
                self.at += 1;
                Ok(None)
            }
            Some(_) => self.error(JsonErrorType::ExpectedListCommaOrEnd),
            None => self.error(JsonErrorType::EofWhileParsingList),
        }
    }

    /// Enters an object. Returns its first key.
    #[inline]
    pub fn known_object(&mut self, expected: Option<&Key>) -> JiterResult<Option<Found<'_>>> {
        self.at += 1;
        match self.next() {
            Some(b'"') => self.key(expected).map(Some),
            Some(b'}') => {
                self.at += 1;
                Ok(None)
            }
            Some(_) => self.error(JsonErrorType::KeyMustBeAString),
            None => self.error(JsonErrorType::EofWhileParsingObject),
        }
    }

    /// Returns the next key of an object, after a value.
    #[inline]
    pub fn next_key(&mut self, expected: Option<&Key>) -> JiterResult<Option<Found<'_>>> {
        match self.next() {
            Some(b',') => {
                self.at += 1;
                match self.next() {
                    Some(b'"') => self.key(expected).map(Some),
                    Some(b'}') => self.error(JsonErrorType::TrailingComma),
                    Some(_) => self.error(JsonErrorType::KeyMustBeAString),
                    None => self.error(JsonErrorType::EofWhileParsingValue),
                }
            }
            Some(b'}') => {
                self.at += 1;
                Ok(None)
            }
            Some(_) => self.error(JsonErrorType::ExpectedObjectCommaOrEnd),
            None => self.error(JsonErrorType::EofWhileParsingObject),
        }
    }

    /// Reads a key and its colon.
    #[inline]
    fn key(&mut self, expected: Option<&Key>) -> JiterResult<Found<'_>> {
        match expected {
            Some(key) if key.is_at(self.bytes(), self.at) => {
                self.at += key.written.len();
                Ok(Found::Expected)
            }
            _ => self.other_key(),
        }
    }

    fn other_key(&mut self) -> JiterResult<Found<'_>> {
        let from = self.at + 1;
        let end = string_stop(self.bytes(), from);
        let is_plain = self.bytes().get(end) == Some(&b'"');
        match is_plain {
            true => self.at = end + 1,
            false => self.escaped().map(|_| ())?,
        }
        match self.next() {
            Some(b':') => self.at += 1,
            Some(_) => return self.error(JsonErrorType::ExpectedColon),
            None => return self.error(JsonErrorType::EofWhileParsingObject),
        }
        Ok(Found::Key(if is_plain { self.text.get(from..end).unwrap_or_default() } else { &self.unescaped }))
    }
}

/// Marks bytes that equal `byte`. Only the first mark is exact.
#[inline]
fn equal(word: u64, byte: u8) -> u64 {
    let differ = word ^ (LOW * u64::from(byte));
    differ.wrapping_sub(LOW) & !differ & HIGH
}

/// Marks quotes, backslashes and control characters. Only the first mark is exact.
#[inline]
fn stops(word: u64) -> u64 {
    let control = word.wrapping_sub(LOW * 0x20) & !word & HIGH;
    equal(word, b'"') | equal(word, b'\\') | control
}

#[inline]
fn behind_blanks(bytes: &[u8], mut at: usize) -> usize {
    while let Some(b' ' | b'\n' | b'\r' | b'\t') = bytes.get(at) {
        at += 1;
    }
    at
}

/// Returns the offset of the next quote, backslash or control character in a string, or the end of
/// the text.
#[inline]
fn string_stop(bytes: &[u8], mut at: usize) -> usize {
    while let Some(word) = word(bytes, at) {
        let marks = stops(word);
        if marks != 0 {
            return at + first(marks);
        }
        at += 8;
    }
    while bytes.get(at).is_some_and(|byte| !matches!(byte, b'"' | b'\\' | 0..0x20)) {
        at += 1;
    }
    at
}

/// Returns the end of a string whose opening quote is at an offset. Like all functions here that
/// return an end, it returns `None` if jiter must decide.
#[inline]
fn string_end(bytes: &[u8], quote: usize) -> Option<usize> {
    let mut at = quote + 1;
    loop {
        at = string_stop(bytes, at);
        match bytes.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at = escape_end(bytes, at)?,
            _ => return None,
        }
    }
}

/// Returns the end of an escape.
fn escape_end(bytes: &[u8], at: usize) -> Option<usize> {
    match bytes.get(at + 1)? {
        b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Some(at + 2),
        b'u' => match unit(bytes, at)? {
            0xD800..0xDC00 => matches!(unit(bytes, at + 6)?, 0xDC00..0xE000).then_some(at + 12),
            0xDC00..0xE000 => None,
            _ => Some(at + 6),
        },
        _ => None,
    }
}

/// Returns the code unit of an escape such as `\u12ab`.
fn unit(bytes: &[u8], at: usize) -> Option<u32> {
    let digits = bytes.get(at..at + 6)?.strip_prefix(b"\\u")?;
    digits.iter().try_fold(0, |unit, digit| Some(unit * 16 + char::from(*digit).to_digit(16)?))
}

/// Returns the end of `null`, `true` or `false`.
#[inline]
fn word_end(bytes: &[u8], at: usize) -> Option<usize> {
    let word: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
    match &word {
        b"null" | b"true" => Some(at + 4),
        b"fals" if bytes.get(at + 4) == Some(&b'e') => Some(at + 5),
        _ => None,
    }
}

/// Returns the end of a value without brackets.
#[inline]
fn scalar_end(bytes: &[u8], at: usize) -> Option<usize> {
    match bytes.get(at)? {
        b'"' => string_end(bytes, at),
        b'0'..=b'9' | b'-' => number_end(bytes, at),
        _ => word_end(bytes, at),
    }
}

/// Returns the end of a value.
fn nested_end(bytes: &[u8], mut at: usize) -> Option<usize> {
    // One bit for each open bracket, the innermost one lowest: 1 for an object.
    let (mut objects, mut depth) = (0_u64, 0);
    loop {
        let open = *bytes.get(at)?;
        match open {
            b'{' | b'[' => {
                at = behind_blanks(bytes, at + 1);
                // In ASCII the closing bracket follows the opening one at a distance of two.
                if bytes.get(at) == Some(&(open + 2)) {
                    at += 1;
                } else if depth == MAX_PLAIN_DEPTH {
                    return None;
                } else {
                    (objects, depth) = (objects << 1 | u64::from(open == b'{'), depth + 1);
                    if open == b'{' {
                        at = key_end(bytes, at)?;
                    }
                    continue;
                }
            }
            _ => at = scalar_end(bytes, at)?,
        }
        loop {
            if depth == 0 {
                return Some(at);
            }
            at = behind_blanks(bytes, at);
            let is_object = objects & 1 == 1;
            match bytes.get(at)? {
                b',' => {
                    at = behind_blanks(bytes, at + 1);
                    if is_object {
                        at = key_end(bytes, at)?;
                    }
                    break;
                }
                b'}' if is_object => {}
                b']' if !is_object => {}
                _ => return None,
            }
            (objects, depth, at) = (objects >> 1, depth - 1, at + 1);
        }
    }
}

/// Returns the start of a key's value.
#[inline]
fn key_end(bytes: &[u8], at: usize) -> Option<usize> {
    if bytes.get(at) != Some(&b'"') {
        return None;
    }
    let at = behind_blanks(bytes, string_end(bytes, at)?);
    (bytes.get(at) == Some(&b':')).then(|| behind_blanks(bytes, at + 1))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// The method by which numbers are read, or whole values skipped.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Way {
        Integers,
        Doubles,
        Texts,
        Skipped,
    }

    /// The operations of both parsers.
    trait Reads {
        fn at(&self) -> usize;
        fn peek(&mut self) -> JiterResult<Peek>;
        fn scalar(&mut self, peek: Peek, way: Way) -> JiterResult<String>;
        fn array(&mut self, is_first: bool) -> JiterResult<Option<Peek>>;
        fn key(&mut self, is_first: bool) -> JiterResult<Option<String>>;
    }

    /// The parser, and the key that it expects.
    struct Expecting<'a>(Json<'a>, Key);

    impl Reads for Expecting<'_> {
        fn at(&self) -> usize {
            self.0.current_index()
        }

        fn peek(&mut self) -> JiterResult<Peek> {
            self.0.peek()
        }

        fn scalar(&mut self, peek: Peek, way: Way) -> JiterResult<String> {
            Ok(match (peek, way) {
                (_, Way::Skipped) => self.0.known_skip(peek).map(|()| String::new())?,
                (Peek::String, _) => self.0.known_str()?.to_string(),
                (Peek::True | Peek::False, _) => self.0.known_bool(peek)?.to_string(),
                (Peek::Null, _) => self.0.known_null().map(|()| String::new())?,
                (_, Way::Integers) => self.0.known_int(peek)?.to_string(),
                (_, Way::Doubles) => format!("{:?}", self.0.known_float(peek)?),
                (_, Way::Texts) => self.0.known_number(peek)?.to_string(),
            })
        }

        fn array(&mut self, is_first: bool) -> JiterResult<Option<Peek>> {
            if is_first { self.0.known_array() } else { self.0.array_step() }
        }

        fn key(&mut self, is_first: bool) -> JiterResult<Option<String>> {
            let expected = Some(&self.1);
            let found = if is_first { self.0.known_object(expected) } else { self.0.next_key(expected) }?;
            Ok(found.map(|found| match found {
                Found::Expected => self.1.name().to_string(),
                Found::Key(key) => key.to_string(),
            }))
        }
    }

    impl Reads for Jiter<'_> {
        fn at(&self) -> usize {
            self.current_index()
        }

        fn peek(&mut self) -> JiterResult<Peek> {
            self.peek()
        }

        fn scalar(&mut self, peek: Peek, way: Way) -> JiterResult<String> {
            Ok(match (peek, way) {
                (_, Way::Skipped) => self.known_skip(peek).map(|()| String::new())?,
                (Peek::String, _) => self.known_str()?.to_string(),
                (Peek::True | Peek::False, _) => self.known_bool(peek)?.to_string(),
                (Peek::Null, _) => self.known_null().map(|()| String::new())?,
                (_, Way::Integers) => self.known_int(peek).map(|NumberInt::Int(value)| value)?.to_string(),
                (_, Way::Doubles) => format!("{:?}", self.known_float(peek)?),
                (_, Way::Texts) => String::from_utf8_lossy(self.known_number_bytes(peek)?).into_owned(),
            })
        }

        fn array(&mut self, is_first: bool) -> JiterResult<Option<Peek>> {
            if is_first { self.known_array() } else { self.array_step() }
        }

        fn key(&mut self, is_first: bool) -> JiterResult<Option<String>> {
            let key = if is_first { self.known_object() } else { self.next_key() }?;
            Ok(key.map(str::to_string))
        }
    }

    fn value(json: &mut impl Reads, peek: Peek, way: Way, out: &mut Vec<(usize, String)>) -> JiterResult<()> {
        match peek {
            Peek::Array if way != Way::Skipped => {
                let mut next = json.array(true)?;
                while let Some(peek) = next {
                    value(json, peek, way, out)?;
                    next = json.array(false)?;
                }
            }
            Peek::Object if way != Way::Skipped => {
                let mut next = json.key(true)?;
                while let Some(key) = next {
                    out.push((json.at(), key));
                    let peek = json.peek()?;
                    value(json, peek, way, out)?;
                    next = json.key(false)?;
                }
            }
            _ => {
                // A number of another form than requested does not end the test.
                let read = json.scalar(peek, way).or_else(|e| match e.error_type {
                    JiterErrorType::WrongType { .. } => json.scalar(peek, Way::Texts),
                    _ => Err(e),
                });
                out.push((json.at(), read?));
            }
        }
        Ok(())
    }

    /// Returns all values, and the final error.
    fn all(json: &mut impl Reads, way: Way) -> (Vec<(usize, String)>, JiterError) {
        let mut out = Vec::new();
        loop {
            let read = json.peek().and_then(|peek| value(json, peek, way, &mut out));
            if let Err(e) = read {
                return (out, e);
            }
        }
    }

    fn same(text: &[u8]) {
        let Ok(text) = std::str::from_utf8(text) else { return };
        for way in [Way::Integers, Way::Doubles, Way::Texts, Way::Skipped] {
            let mut json = Expecting(Json::new(text), Key::new("a".into()));
            let mut jiter = Jiter::new(text.as_bytes()).with_allow_inf_nan();
            assert_eq!(all(&mut json, way), all(&mut jiter, way), "{way:?}: {text}");
        }
    }

    #[test]
    fn all_that_is_read_and_every_error_is_that_of_jiter() {
        let texts = [
            "{\"a\":12,\"name\":\"x\",\"p\":-0.50,\"w\":25.774193548387096,\"t\":true,\"n\":null,\"f\":false,\"a\":[]}\n",
            "{\"s\":\"a\\n\\u00e9\\ud83d\\ude00\\\"é0123456789abc\",\"a\" : {\"a\":\"0123456789abcdef\"}}[[1,{}],[]] ",
            "[123456789012345678901234567890, -9223372036854775808, 0, 0.1e-5, 1E+400 , NaN,-Infinity, 999999999999999999]",
            "{\n  \"a\": 1,\n  \"b\" : [ 1 , 2.5 ],\r\n\t\"c\": { }\n}\n12345678 123456789 9007199254740993 0.1234567890123456789",
        ];
        let bytes = b"\"\\{}[],:09.-+eEntu \n\x01";
        for text in texts.map(str::as_bytes) {
            same(text);
            for at in 0..text.len() {
                same(&text[..at]);
                same(&[&text[..at], &text[at + 1..]].concat());
                for byte in bytes {
                    same(&[&text[..at], &[*byte], &text[at + 1..]].concat());
                    same(&[&text[..at], &[*byte], &text[at..]].concat());
                }
            }
        }
        for depth in [1, 63, 64, 65, 66, 199, 200, 201, 202] {
            same(&[vec![b'['; depth], vec![b']'; depth]].concat());
            same(&["{\"a\":".repeat(depth).as_bytes(), b"1", "}".repeat(depth).as_bytes()].concat());
        }
        for digits in [17, 18, 19, 20, 39, 3999, 4000, 4299, 4300, 4301] {
            same("1".repeat(digits).as_bytes());
            same(format!("-{}.5", "1".repeat(digits)).as_bytes());
            same(format!("0.{}", "1".repeat(digits)).as_bytes());
        }
    }

    #[test]
    fn a_key_is_found_where_it_is_written_plainly() {
        for name in ["", "a", "id123", "id1234", "customer", "0123456789abc", "0123456789abcdefghi", "é", "a\\", "a\""]
        {
            let key = Key::new(name.into());
            for (text, expected) in [
                (format!("{{{}:1,\"x\":2,\"y\":3}}", serde_json::to_string(name).unwrap()), true),
                (format!("{{{}:1,\"x\":2,\"y\":3}}", serde_json::to_string(&format!("{name}z")).unwrap()), false),
                (format!("{{{}:1,\"x\":2,\"y\":3}}", serde_json::to_string(&format!("z{name}")).unwrap()), false),
            ] {
                let mut json = Json::new(&text);
                let is_found = match json.known_object(Some(&key)).unwrap().unwrap() {
                    Found::Expected => true,
                    Found::Key(found) => found == name,
                };
                assert_eq!(is_found, expected, "{text}");
                assert_eq!(json.peek().unwrap(), Peek::new(b'1'), "{text}");
            }
        }
        // A backslash in a name is not the backslash of an escape.
        let key = Key::new("a\\b".into());
        let mut json = Json::new(r#"{"a\b":1}"#);
        assert_eq!(json.known_object(Some(&key)).unwrap(), Some(Found::Key("a\u{8}")));
        assert!(Json::new(r#"{"a"b":1}"#).known_object(Some(&Key::new("a\"b".into()))).is_err());
    }
}
