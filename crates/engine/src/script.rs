//! A script cut into statements, without parsing them.
//!
//! Statements end at a `;` that is outside of quotes ('...', "...", `...`, $tag$...$tag$) and comments (`-- ...` and
//! nested `/* ... */`). Cutting before parsing lets a script run up to its first wrong statement, and lets an
//! interactive shell know when a statement is whole.

/// The statements of a script, one at a time, with the comments and blanks around them cut off.
#[derive(Clone, Debug)]
pub struct Script<'a> {
    rest: &'a str,
}

impl<'a> Script<'a> {
    /// The statements of `text`.
    pub fn new(text: &'a str) -> Self {
        Self { rest: text }
    }
}

impl<'a> Iterator for Script<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        loop {
            let cut = scan(self.rest);
            if cut.content_start >= self.rest.len() {
                return None;
            }
            let statement = self.rest[cut.content_start..cut.end].trim_end();
            self.rest = &self.rest[(cut.end + 1).min(self.rest.len())..];
            if !statement.is_empty() {
                return Some(statement);
            }
        }
    }
}

/// Whether `text` ends in a whole statement (or holds nothing but blanks and comments).
pub fn is_complete(text: &str) -> bool {
    let mut rest = text;
    loop {
        let cut = scan(rest);
        if cut.content_start >= rest.len() {
            return !cut.is_open;
        }
        if cut.end >= rest.len() {
            return false;
        }
        rest = &rest[cut.end + 1..];
    }
}

struct Cut {
    /// First byte that is neither blank nor comment.
    content_start: usize,
    /// The terminating `;`, or the end of the text.
    end: usize,
    /// A quote or comment was still open at the end.
    is_open: bool,
}

fn scan(text: &str) -> Cut {
    let bytes = text.as_bytes();
    let mut content_start = None;
    let mut at = 0;
    while at < bytes.len() {
        let skip = match bytes[at] {
            b'-' if bytes[at..].starts_with(b"--") => skip_line(bytes, at),
            b'/' if bytes[at..].starts_with(b"/*") => skip_comment(bytes, at),
            byte => {
                if byte == b';' {
                    return Cut { content_start: content_start.unwrap_or(at), end: at, is_open: false };
                }
                if !byte.is_ascii_whitespace() {
                    content_start.get_or_insert(at);
                }
                match byte {
                    b'\'' | b'"' | b'`' => skip_quoted(bytes, at),
                    b'$' => skip_dollar_quoted(text, at),
                    _ => Some(at + 1),
                }
            }
        };
        match skip {
            Some(next) => at = next,
            None => {
                return Cut { content_start: content_start.unwrap_or(bytes.len()), end: bytes.len(), is_open: true };
            }
        }
    }
    Cut { content_start: content_start.unwrap_or(bytes.len()), end: bytes.len(), is_open: false }
}

fn skip_line(bytes: &[u8], at: usize) -> Option<usize> {
    Some(bytes[at..].iter().position(|b| *b == b'\n').map_or(bytes.len(), |n| at + n + 1))
}

fn skip_comment(bytes: &[u8], mut at: usize) -> Option<usize> {
    let mut depth = 0;
    while at < bytes.len() {
        if bytes[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if bytes[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return Some(at);
            }
        } else {
            at += 1;
        }
    }
    None
}

/// A doubled quote inside is two quoted parts in a row, which comes to the same.
fn skip_quoted(bytes: &[u8], at: usize) -> Option<usize> {
    bytes[at + 1..].iter().position(|b| *b == bytes[at]).map(|n| at + 1 + n + 1)
}

fn skip_dollar_quoted(text: &str, at: usize) -> Option<usize> {
    let rest = &text[at + 1..];
    let tag = rest.find('$').map(|n| &rest[..n]);
    match tag {
        Some(tag)
            if tag.chars().all(|c| c.is_alphanumeric() || c == '_') && !tag.starts_with(|c: char| c.is_numeric()) =>
        {
            let delimiter = &text[at..at + tag.len() + 2];
            let body = at + delimiter.len();
            text[body..].find(delimiter).map(|n| body + n + delimiter.len())
        }
        // A parameter like $1, or a lone dollar.
        _ => Some(at + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::{Script, is_complete};

    fn cut(text: &str) -> Vec<&str> {
        Script::new(text).collect()
    }

    #[test]
    fn statements_end_at_semicolons_outside_quotes_and_comments() {
        assert_eq!(cut("select 1; select 2"), ["select 1", "select 2"]);
        assert_eq!(cut("select ';' ; select \"a;b\", `c;`;"), ["select ';'", "select \"a;b\", `c;`"]);
        assert_eq!(cut("-- no; statement\nselect 1 /* ; /* ; */ ; */ + 1;"), ["select 1 /* ; /* ; */ ; */ + 1"]);
        assert_eq!(cut("select 'it''s;'; x"), ["select 'it''s;'", "x"]);
        assert_eq!(cut("as $$ a; b $$; as $f$ ; $$ ; $f$; $1; 2"), ["as $$ a; b $$", "as $f$ ; $$ ; $f$", "$1", "2"]);
        assert_eq!(cut(" ;; \n ; -- end"), Vec::<&str>::new());
        assert_eq!(cut("select 'ü;ß'; é"), ["select 'ü;ß'", "é"]);
    }

    #[test]
    fn a_statement_is_complete_with_its_semicolon() {
        for text in ["", "  ", "select 1;", "-- note\n", "select 1; -- done", "select ';';"] {
            assert!(is_complete(text), "{text:?}");
        }
        for text in ["select 1", "select ';", "select 1; select", "/* open", "as $$ x; "] {
            assert!(!is_complete(text), "{text:?}");
        }
    }
}
