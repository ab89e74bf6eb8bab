//! The language of comments, messages and documents: the component is the subject, one idea a
//! sentence.
//!
//! 1. No indefinite pronouns ([`PRONOUNS`]): the sentence names the reader, the caller, the
//!    session.
//! 2. No sentence of a comment begins with a relative clause that stands for a noun ("What comes of
//!    it").
//! 3. Lines of comments have at most [`MOST_COLUMNS`] columns.
//!
//! [`KNOWN`] and [`IN_DOCUMENTS`] count what is left by crate; the numbers only become smaller.

use std::fs;
use std::path::Path;

use super::{CRATES, files, repository, root, sources};

/// Columns of a line of a comment, indentation included. Links may be longer.
const MOST_COLUMNS: usize = 100;

/// Words that name no actor.
const PRONOUNS: [&str; 8] = ["nobody", "somebody", "whoever", "anybody", "whomever", "everybody", "someone", "anyone"];

/// Relative words that do not begin a sentence.
const OPENERS: [&str; 8] = ["What", "Whether", "Who", "Whom", "Whose", "Of", "Where", "Whatever"];

/// The violations that are left in the comments and messages of a crate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Left {
    /// Pronouns in comments.
    pronouns: usize,
    /// Sentences of comments that begin with a relative word.
    openers: usize,
    /// Long lines of comments.
    long: usize,
    /// Pronouns in strings outside of tests.
    in_messages: usize,
}

const fn left(pronouns: usize, openers: usize, long: usize, in_messages: usize) -> Left {
    Left { pronouns, openers, long, in_messages }
}

const KNOWN: [(&str, Left); 6] = [
    ("io", left(214, 351, 604, 0)),
    ("ceph", left(9, 12, 23, 0)),
    ("engine", left(75, 303, 397, 3)),
    ("jni", left(11, 24, 35, 0)),
    ("server", left(0, 0, 0, 9)),
    ("python", left(26, 56, 73, 0)),
];

/// Lines of documents with a pronoun.
const IN_DOCUMENTS: usize = 65;

#[test]
fn comments_and_messages_are_plain() {
    let mut wrong = Vec::new();
    for name in CRATES {
        let known = KNOWN.iter().find(|(known, _)| *known == name).map(|(_, left)| *left).unwrap_or_default();
        let (mut found, mut places) = (Left::default(), Vec::new());
        for path in sources(&root(name)) {
            let text = fs::read_to_string(&path).unwrap();
            let file = path.strip_prefix(repository()).unwrap();
            read(file, &text, &mut found, &mut places);
        }
        if found == known {
            continue;
        }
        let is_less = found.pronouns <= known.pronouns
            && found.openers <= known.openers
            && found.long <= known.long
            && found.in_messages <= known.in_messages;
        match is_less {
            true => wrong.push(format!("{name}: {found:?}: write that into KNOWN in tests/tests/tidy/language.rs")),
            false => {
                wrong.extend(places.into_iter().take(20));
                wrong.push(format!("{name}: {found:?}, and KNOWN in tests/tests/tidy/language.rs has {known:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn documents_name_who_acts() {
    let mut pages: Vec<_> =
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].map(|name| repository().join(name)).to_vec();
    pages.extend(files(&repository().join("docs"), "md"));
    let mut found = Vec::new();
    for page in pages {
        for (number, line) in fs::read_to_string(&page).unwrap().lines().enumerate() {
            if let Some(word) = pronoun(line) {
                let page = page.strip_prefix(repository()).unwrap();
                found.push(format!(
                    "{}:{}: \"{word}\": name the user, the session, the program",
                    page.display(),
                    number + 1
                ));
            }
        }
    }
    let count = found.len();
    assert!(count <= IN_DOCUMENTS, "\n{}\n{count} lines, {IN_DOCUMENTS} at most", found.join("\n"));
    assert!(count == IN_DOCUMENTS, "{count} lines: write that into IN_DOCUMENTS in tests/tests/tidy/language.rs");
}

/// Counts what a file breaks, and says where.
fn read(file: &Path, text: &str, found: &mut Left, places: &mut Vec<String>) {
    let mut say = |number: usize, what: &str| places.push(format!("{}:{number}: {what}", file.display()));
    let pieces = pieces(text);
    let mut before: Option<usize> = None;
    let (mut sentence_begins, mut is_code) = (true, false);
    for Piece { line: number, kind, text: piece } in &pieces {
        if *kind == Kind::String {
            if let Some(word) = pronoun(piece).filter(|_| !is_of_tests(file)) {
                found.in_messages += 1;
                say(*number, &format!("\"{word}\" in a message: name who acts"));
            }
            continue;
        }
        if before != Some(number - 1) {
            (sentence_begins, is_code) = (true, false);
        }
        before = Some(*number);
        let words = piece.trim_start_matches(['/', '!']).trim();
        if words.starts_with("```") {
            is_code = !is_code;
        }
        if is_code {
            continue;
        }
        if let Some(word) = pronoun(words) {
            found.pronouns += 1;
            say(*number, &format!("\"{word}\": name the caller, the session, the thread"));
        }
        let line = text.lines().nth(number - 1).unwrap_or_default();
        let is_whole = line.trim_start().starts_with("//");
        if is_whole && line.chars().count() > MOST_COLUMNS && !line.contains("](") && !line.contains("://") {
            found.long += 1;
            say(*number, &format!("{} columns, {MOST_COLUMNS} at most: wrap the comment", line.chars().count()));
        }
        for opener in openers(words, &mut sentence_begins) {
            found.openers += 1;
            say(*number, &format!("a sentence begins with \"{opener}\": begin with the component that acts"));
        }
    }
}

fn is_of_tests(file: &Path) -> bool {
    file.components().any(|part| ["tests", "tests.rs"].iter().any(|name| part.as_os_str() == *name))
}

fn pronoun(text: &str) -> Option<&'static str> {
    let lower = text.to_lowercase();
    let words: Vec<&str> = lower.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    PRONOUNS.into_iter().find(|pronoun| words.contains(pronoun))
}

/// The relative words that begin a sentence in a line of a comment.
fn openers(line: &str, sentence_begins: &mut bool) -> Vec<&'static str> {
    let is_list = line.starts_with("- ")
        || line.starts_with("* ")
        || line.split_once(". ").is_some_and(|(n, _)| n.parse::<u32>().is_ok());
    let line = match is_list {
        true => line.split_once(' ').map_or("", |(_, rest)| rest),
        false => line,
    };
    if line.is_empty() || line.starts_with(['#', '|', '`']) {
        *sentence_begins = true;
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut begins = *sentence_begins || is_list;
    for word in line.split_whitespace() {
        let bare = word.trim_matches(|c: char| !c.is_alphanumeric());
        if begins && let Some(opener) = OPENERS.into_iter().find(|opener| *opener == bare) {
            found.push(opener);
        }
        begins = word.ends_with(['.', '!', '?']) || word.ends_with(".)");
    }
    // A question is no relative clause.
    if line.ends_with('?') {
        found.pop();
    }
    *sentence_begins = begins;
    found
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Comment,
    String,
}

/// A comment to the end of a line, or a string.
#[derive(Debug)]
struct Piece<'a> {
    line: usize,
    kind: Kind,
    text: &'a str,
}

/// The comments and strings of Rust's source, in order.
fn pieces(text: &str) -> Vec<Piece<'_>> {
    let bytes = text.as_bytes();
    let (mut pieces, mut at, mut line) = (Vec::new(), 0, 1);
    while at < bytes.len() {
        let rest = &text[at..];
        let (kind, length) = match bytes[at] {
            b'/' if rest.starts_with("//") => (Some(Kind::Comment), rest.find('\n').unwrap_or(rest.len())),
            b'r' if !follows_word(bytes, at) && raw_string(rest).is_some() => {
                (Some(Kind::String), raw_string(rest).unwrap_or(1))
            }
            b'"' => (Some(Kind::String), string(rest)),
            b'\'' => (None, character(rest)),
            _ => (None, rest.chars().next().map_or(1, char::len_utf8)),
        };
        let piece = &rest[..length];
        if let Some(kind) = kind {
            pieces.push(Piece { line, kind, text: piece });
        }
        line += piece.matches('\n').count();
        at += length;
    }
    pieces
}

fn follows_word(bytes: &[u8], at: usize) -> bool {
    at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_') && bytes[at - 1] != b'b'
}

/// The length of a raw string that begins here.
fn raw_string(rest: &str) -> Option<usize> {
    let hashes = rest[1..].bytes().take_while(|byte| *byte == b'#').count();
    let body = 1 + hashes + 1;
    if rest.as_bytes().get(body - 1) != Some(&b'"') {
        return None;
    }
    let end = format!("\"{}", "#".repeat(hashes));
    rest[body..].find(&end).map(|at| body + at + end.len())
}

/// The length of a string that begins here.
fn string(rest: &str) -> usize {
    let mut is_escaped = false;
    for (at, byte) in rest.bytes().enumerate().skip(1) {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// The length of a character that begins here; 1 for a lifetime.
fn character(rest: &str) -> usize {
    let mut letters = rest.char_indices().skip(1);
    match letters.next() {
        Some((_, '\\')) => rest[2..].char_indices().skip(1).find(|(_, c)| *c == '\'').map_or(1, |(at, _)| 2 + at + 1),
        Some((_, _)) => match letters.next() {
            Some((at, '\'')) => at + 1,
            _ => 1,
        },
        None => 1,
    }
}

#[test]
fn violations_are_found() {
    let count = |text: &str| {
        let (mut found, mut places) = (Left::default(), Vec::new());
        read(Path::new("crates/engine/src/some.rs"), text, &mut found, &mut places);
        assert_eq!(found.pronouns + found.openers + found.long + found.in_messages, places.len());
        found
    };
    assert_eq!(count("// Nobody reads it.\n"), left(1, 0, 0, 0));
    assert_eq!(count("/// Reads it. Whether that\n/// is right. Of all.\nfn f() {}\n"), left(0, 2, 0, 0));
    assert_eq!(count("/// True if so.\n/// What is it?\n"), left(0, 0, 0, 0));
    assert_eq!(count(&format!("// {}\n", "a ".repeat(60))), left(0, 0, 1, 0));
    assert_eq!(count("let a = \"whoever // Nobody\"; let c = '\"'; // What\n"), left(0, 1, 0, 1));
    assert_eq!(count("let a = r#\"somebody \" \"#; let b: &'static str = \"a\\\"nobody\";\n"), left(0, 0, 0, 2));
    assert_eq!(count("let c = '\\''; // Somebody\n"), left(1, 0, 0, 0));
}
