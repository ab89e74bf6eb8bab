//! Listing a directory, page by page, in order of names. A page has what `stat` says: a dentry is all there is to know.

use std::fmt;

use super::super::{Problem, Result};
use super::path::Path;
use super::record::{Dentry, NAMES, Node, name_key};
use super::transaction::Fates;
use super::{FileSystem, Id};

/// Entries asked for at once. OSDs give no more than this many, by default.
const PAGE_ENTRIES: u64 = 1024;

/// A file or a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A file.
    File,
    /// A directory.
    Directory,
}

/// What there is to know about a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The last name of its path; the root's is empty.
    pub name: String,
    /// What it is.
    pub kind: Kind,
    /// Bytes of a file.
    pub len: u64,
    /// When the file was closed or the directory made, in milliseconds since 1970; 0 for the root.
    pub mtime_ms: u64,
    /// Unlike that of every other file that was ever written: an entity tag. A rename keeps it.
    pub id: Id,
}

impl Entry {
    pub(super) fn of(name: &str, dentry: &Dentry) -> Self {
        let (kind, len) = match &dentry.node {
            Node::File(file) => (Kind::File, file.len()),
            Node::Directory(_) => (Kind::Directory, 0),
        };
        Self { name: name.to_owned(), kind, len, mtime_ms: dentry.mtime_ms, id: dentry.node.id() }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::File => "file",
            Self::Directory => "directory",
        })
    }
}

/// Some entries of a directory, in order of their names' bytes.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// The entries.
    pub entries: Vec<Entry>,
    /// From behind which name on to go on; `None`: that was all.
    pub next: Option<String>,
}

impl FileSystem {
    /// A page of a directory: the names behind `after`.
    pub fn list_page(&self, path: &str, after: Option<&str>) -> Result<Page> {
        let parsed = Path::parse("list", path)?;
        let directory = self.walk("list", &parsed, &parsed.names)?;
        self.page_of(directory, after)?.ok_or_else(|| parsed.error("list", Problem::NotFound))
    }

    /// All of a directory.
    pub fn list(&self, path: &str) -> Result<Vec<Entry>> {
        let parsed = Path::parse("list", path)?;
        let directory = self.walk("list", &parsed, &parsed.names)?;
        let (mut entries, mut after) = (Vec::new(), None::<String>);
        loop {
            let page = self.page_of(directory, after.as_deref())?;
            let page = page.ok_or_else(|| parsed.error("list", Problem::NotFound))?;
            entries.extend(page.entries);
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(entries),
            }
        }
    }

    pub(super) fn page_of(&self, directory: Id, after: Option<&str>) -> Result<Option<Page>> {
        let after = after.map_or_else(Vec::new, name_key);
        let Some(look) = self.look_page(directory, NAMES, &after, PAGE_ENTRIES)? else { return Ok(None) };
        let mut page = Page::default();
        let (mut last, mut fates) = (None, Fates::default());
        for (key, value) in look.entries() {
            let name = String::from_utf8_lossy(&key[NAMES.len()..]).into_owned();
            if let Some(dentry) = self.visible_among(directory, &name, Some(look.decode(key, value)?), &mut fates)? {
                page.entries.push(Entry::of(&name, &dentry));
            }
            last = Some(name);
        }
        page.next = last.filter(|_| look.more());
        Ok(Some(page))
    }
}
