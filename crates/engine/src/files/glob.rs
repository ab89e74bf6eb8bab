//! The files that a path stands for.
//!
//! 1. An existing path is taken literally, whatever characters it has.
//! 2. Otherwise a pattern is walked one component at a time, from the first one with a wildcard.
//!    `*`, `?` and `[a-z]` match within a name; `**` is any number of directories. Directories that
//!    the pattern does not reach are not listed.
//! 3. A directory is all the files in it and below it, except names that begin with `_` and have no
//!    `=` (Spark's marks).
//!
//! `**` and directories do not follow symbolic links to directories, which may lead back up. As in
//! a shell, names that begin with a dot match only if the pattern has the dot. Files are sorted by
//! name.

use std::io::ErrorKind as IoErrorKind;

use onehop_io::Operation;

use super::site::{DirectoryEntry, Site, Stat, StatKind, refused};
use crate::{Error, ErrorKind, Result};

/// An existing file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// The name as the statement would write it.
    pub name: String,
    /// The path at its site.
    pub path: String,
    pub bytes: u64,
}

impl Found {
    fn new(site: &Site, path: String, stat: &Stat) -> Result<Self> {
        let name = site.shown(&path);
        if stat.kind == StatKind::File {
            return Ok(Self { name, path, bytes: stat.bytes });
        }
        let message = format!("cannot read '{name}': it is a pipe or a device");
        Err(Error::new(ErrorKind::Invalid, message).with_hint("put what it gives into a file first"))
    }
}

pub(super) fn is_pattern(path: &str) -> bool {
    path.contains(['*', '?', '['])
}

/// The files that a path stands for.
#[derive(Debug)]
pub(super) struct Match {
    /// The files. There is at least one.
    pub files: Vec<Found>,
    /// True if the path is that of a directory.
    pub is_directory: bool,
}

/// Finds all files that `path` stands for.
pub(super) fn find(site: &Site, path: &str) -> Result<Match> {
    let (mut found, mut is_directory) = (Vec::new(), false);
    match site.stat(path) {
        Ok(stat) if stat.kind == StatKind::Directory => {
            is_directory = true;
            let directory = match path.trim_end_matches('/') {
                "" => "/",
                directory => directory,
            };
            walk(site, directory, &["**"], &mut found)?;
            let below = |file: &Found| file.path.strip_prefix(directory).is_some_and(|name| !has_mark(name));
            found.retain(below);
        }
        Ok(stat) => found.push(Found::new(site, path.to_string(), &stat)?),
        Err(_) if is_pattern(path) => expand(site, path, &mut found)?,
        Err(e) => return Err(refused(Operation::Open, &site.shown(path), e)),
    }
    if found.is_empty() {
        let message = match is_pattern(path) {
            true => format!("no file matches '{}'", site.shown(path)),
            false => format!("there are no files in the directory '{}'", site.shown(path)),
        };
        return Err(Error::new(ErrorKind::NotFound, message));
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found.dedup();
    Ok(Match { files: found, is_directory })
}

/// Returns whether a component of a path begins with `_`, as Spark's marks and unfinished files do,
/// and has no `=`.
fn has_mark(path: &str) -> bool {
    path.split('/').any(|part| part.starts_with('_') && !part.contains('='))
}

fn expand(site: &Site, pattern: &str, found: &mut Vec<Found>) -> Result<()> {
    let mut parts: Vec<&str> = pattern.split('/').filter(|part| !part.is_empty()).collect();
    // `**/**` equals `**`, and would visit every directory once for each split of the path.
    parts.dedup_by(|a, b| *a == "**" && *b == "**");
    let fixed = parts.iter().take_while(|part| !is_pattern(part)).count();
    let root = if pattern.starts_with('/') { "/" } else { "" };
    let directory = format!("{root}{}", parts[..fixed].join("/"));
    walk(site, &directory, &parts[fixed..], found)
}

/// Adds the files below `directory` that match the rest of a pattern. The directory was named or
/// listed, so it must exist.
fn walk(site: &Site, directory: &str, pattern: &[&str], found: &mut Vec<Found>) -> Result<()> {
    let Some((part, rest)) = pattern.split_first() else { return Ok(()) };
    if *part == "**" {
        walk(site, directory, if rest.is_empty() { &["*"] } else { rest }, found)?;
        for entry in entries(site, directory)? {
            if entry.is_directory && !entry.name.starts_with('.') {
                walk(site, &join(directory, &entry.name), pattern, found)?;
            }
        }
        return Ok(());
    }
    if !is_pattern(part) {
        return visit(site, join(directory, part), rest, found);
    }
    let letters: Vec<char> = part.chars().collect();
    for DirectoryEntry { name, .. } in entries(site, directory)? {
        if matches(&letters, &name.chars().collect::<Vec<_>>()) {
            visit(site, join(directory, &name), rest, found)?;
        }
    }
    Ok(())
}

/// Continues at a path that matches the pattern down to it.
fn visit(site: &Site, path: String, rest: &[&str], found: &mut Vec<Found>) -> Result<()> {
    match site.stat(&path) {
        Ok(stat) if stat.kind == StatKind::Directory => match rest {
            [] => Ok(()),
            rest => walk(site, &path, rest, found),
        },
        Ok(stat) if rest.is_empty() => {
            found.push(Found::new(site, path, &stat)?);
            Ok(())
        }
        Ok(_) => Ok(()),
        // Another directory of the pattern may have it. (A dangling link is not found either.)
        Err(e) if matches!(e.kind(), IoErrorKind::NotFound | IoErrorKind::NotADirectory) => Ok(()),
        Err(e) => Err(refused(Operation::Open, &site.shown(&path), e)),
    }
}

fn entries(site: &Site, directory: &str) -> Result<Vec<DirectoryEntry>> {
    let directory = if directory.is_empty() { "." } else { directory };
    site.entries(directory).map_err(|e| refused(Operation::List, &site.shown(directory), e))
}

fn join(directory: &str, name: &str) -> String {
    match directory {
        "" => name.to_string(),
        "/" => format!("/{name}"),
        directory => format!("{directory}/{name}"),
    }
}

/// Returns whether a name matches a component of a pattern.
fn matches(pattern: &[char], name: &[char]) -> bool {
    if name.first() == Some(&'.') && pattern.first() != Some(&'.') {
        return false;
    }
    let (mut p, mut n) = (0, 0);
    // The place of the last star, and the last place in the name that was tried for the rest.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        let step = match pattern.get(p) {
            Some('*') => {
                star = Some((p, n));
                p += 1;
                continue;
            }
            Some('?') => Some(1),
            Some('[') => class(&pattern[p..], name[n]),
            Some(c) if *c == name[n] => Some(1),
            _ => None,
        };
        match (step, star) {
            (Some(letters), _) => (p, n) = (p + letters, n + 1),
            (None, Some((at, tried))) => {
                star = Some((at, tried + 1));
                (p, n) = (at + 1, tried + 1);
            }
            (None, None) => return false,
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

/// Returns the length of a `[...]` that matches the letter. An unclosed one is a literal bracket.
fn class(pattern: &[char], letter: char) -> Option<usize> {
    let is_negated = matches!(pattern.get(1), Some('!' | '^'));
    let first = if is_negated { 2 } else { 1 };
    let Some(close) = (first + 1..pattern.len()).find(|at| pattern[*at] == ']') else {
        return (letter == '[').then_some(1);
    };
    let mut has = false;
    let mut at = first;
    while at < close {
        if at + 2 < close && pattern[at + 1] == '-' {
            has |= (pattern[at]..=pattern[at + 2]).contains(&letter);
            at += 3;
        } else {
            has |= pattern[at] == letter;
            at += 1;
        }
    }
    (has != is_negated).then_some(close + 1)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn patterns_match_names() {
        for (pattern, name, expected) in [
            ("*", "a.csv", true),
            ("*", "", true),
            ("*", ".hidden", false),
            (".*", ".hidden", true),
            ("*.csv", "a.csv", true),
            ("*.csv", "a.csv.gz", false),
            ("*a*b*c", "xaybzc", true),
            ("*a*b*c", "xaybz", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("?", "ä", true),
            ("[ab]x", "bx", true),
            ("[a-c]x", "bx", true),
            ("[a-c]x", "dx", false),
            ("[!a-c]x", "dx", true),
            ("[^a-c]x", "ax", false),
            ("[]]x", "]x", true),
            ("[a-]x", "-x", true),
            ("[ab", "[ab", true),
            ("[", "[", true),
        ] {
            let letters = |text: &str| text.chars().collect::<Vec<_>>();
            assert_eq!(matches(&letters(pattern), &letters(name)), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn only_what_the_pattern_reaches_is_walked() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for directory in ["a/deep/deeper", "b", "_odd"] {
            fs::create_dir_all(at(directory)).unwrap();
        }
        for file in
            ["1.csv", "[x].csv", "a/2.csv", "a/deep/3.csv", "a/deep/deeper/4.csv", "b/5.txt", ".6.csv", "_odd/7.csv"]
        {
            fs::write(at(file), b"x").unwrap();
        }
        // These links lead back up. A walk that follows them does not end.
        std::os::unix::fs::symlink(folder.path(), at("b/loop")).unwrap();
        std::os::unix::fs::symlink("nowhere", at("a/dangling.csv")).unwrap();
        let names = |pattern: &str| -> Vec<String> {
            let base = format!("{}/", folder.path().display());
            let found =
                find(&Site::Local, &format!("{base}{pattern}")).map_or_else(|_| Vec::new(), |found| found.files);
            found.iter().map(|file| file.name.replacen(&base, "", 1)).collect()
        };
        assert_eq!(names("*.csv"), ["1.csv", "[x].csv"]);
        assert_eq!(names("[x].csv"), ["[x].csv"]);
        assert_eq!(names("*/*.csv"), ["_odd/7.csv", "a/2.csv"]);
        assert_eq!(names("a/**/*.csv"), ["a/2.csv", "a/deep/3.csv", "a/deep/deeper/4.csv"]);
        assert_eq!(names("**/**/deep*/*.csv"), ["a/deep/3.csv", "a/deep/deeper/4.csv"]);
        assert_eq!(names("*/deep/3.csv"), ["a/deep/3.csv"]);
        assert_eq!(names("b/**"), ["b/5.txt"]);
        assert_eq!(names("a"), ["a/2.csv", "a/deep/3.csv", "a/deep/deeper/4.csv"]);
        assert_eq!(names(""), ["1.csv", "[x].csv", "a/2.csv", "a/deep/3.csv", "a/deep/deeper/4.csv", "b/5.txt"]);
        assert_eq!(names("a/deep/////////////////////////"), names("a/deep"));
        assert_eq!(names("b/loop/*.csv"), ["b/loop/1.csv", "b/loop/[x].csv"]);

        let e = find(&Site::Local, &format!("{}/absent/*.csv", folder.path().display())).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NotFound);
        assert!(e.message().contains("/absent:"), "{e}");
        let e = find(&Site::Local, &format!("{}/*.nothing", folder.path().display())).unwrap_err();
        assert!(e.kind() == ErrorKind::NotFound && e.message().contains("no file matches"), "{e}");
    }
}
