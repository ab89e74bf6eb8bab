//! Checking a whole store.

use std::fmt;
use std::ops::Bound;
use std::sync::Arc;

use crate::Result;
use crate::backend::{PAGE_BYTES, PageNo};
use crate::pages::Pages;
use crate::tree::{self, CATALOG, Cursor, Walk};

/// What a check has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// What is wrong, a sentence each; none if all is well.
    pub findings: Vec<String>,
    /// All trees, by name.
    pub trees: Vec<TreeReport>,
    /// Pages in use.
    pub pages: u64,
}

/// What a check has seen of one tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TreeReport {
    /// Its name.
    pub name: String,
    /// Its entries.
    pub entries: u64,
    /// Nodes from the root to a leaf.
    pub levels: u64,
    /// Pages that lead to leaves.
    pub inner_pages: u64,
    /// Pages with entries.
    pub leaf_pages: u64,
    /// Pages with long values.
    pub overflow_pages: u64,
    /// How full its leaves are, in percent.
    pub leaf_fill_percent: u64,
}

impl Report {
    /// Whether nothing is wrong.
    pub fn is_sound(&self) -> bool {
        self.findings.is_empty()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for tree in &self.trees {
            let TreeReport { name, entries, levels, inner_pages, leaf_pages, overflow_pages, leaf_fill_percent } = tree;
            writeln!(
                f,
                "tree {name:?}: {entries} entries, {levels} levels, {inner_pages} inner pages, {leaf_pages} leaves \
                 ({leaf_fill_percent} % full), {overflow_pages} overflow pages"
            )?;
        }
        writeln!(f, "{} pages in use", self.pages)?;
        for finding in &self.findings {
            writeln!(f, "{finding}")?;
        }
        match self.findings.len() {
            0 => write!(f, "all is well"),
            1 => write!(f, "1 thing is wrong"),
            many => write!(f, "{many} things are wrong"),
        }
    }
}

/// Walks everything that the last commit refers to. Nobody commits meanwhile: the caller has the writer's place, or the store is
/// open for reading only.
pub(crate) fn check(pages: &Arc<Pages>) -> Result<Report> {
    let mut report = Report::default();
    let mut findings = Vec::new();
    pages.backend().check(&mut |finding| findings.push(finding))?;
    let in_use = pages.backend().pages();
    report.pages = in_use.len() as u64;
    let snapshot = pages.read();
    let mut note = |finding: String| findings.push(finding);
    let mut walk = Walk::new(&snapshot, &mut note);
    walk.tree("(catalog)", CATALOG)?;
    let mut named = Vec::new();
    let mut cursor = Cursor::new(&snapshot, CATALOG, Bound::Unbounded, Bound::Unbounded);
    let unread = loop {
        match cursor.next() {
            Ok(Some(entry)) => named.push((entry.key().to_vec(), entry.value().to_vec())),
            Ok(None) => break None,
            // The walk has said what is wrong with that page. What else is in the catalog cannot be known.
            Err(error) => break Some(error),
        }
    };
    let is_catalog_whole = unread.is_none();
    let mut misnamed = Vec::new();
    for (name, value) in named {
        let root = match tree::decode_root(&name, &value) {
            Ok(root) => root,
            Err(error) => {
                misnamed.push(error.to_string());
                continue;
            }
        };
        let name = String::from_utf8_lossy(&name).into_owned();
        let shape = walk.tree(&name, root)?;
        report.trees.push(TreeReport {
            name,
            entries: shape.entries,
            levels: shape.levels,
            inner_pages: shape.inner_pages,
            leaf_pages: shape.leaf_pages,
            overflow_pages: shape.overflow_pages,
            leaf_fill_percent: 100 * shape.leaf_used_bytes / (shape.leaf_pages * PAGE_BYTES as u64).max(1),
        });
    }
    let reached = walk.into_reached();
    findings.extend(misnamed);
    if findings.is_empty() && is_catalog_whole {
        let lost: Vec<PageNo> = in_use.into_iter().filter(|page| !reached.contains(page)).collect();
        if let Some(first) = lost.first() {
            findings.push(format!("{} pages are in use and belong to no tree, {first} first", lost.len()));
        }
    }
    if let Some(error) = unread.filter(|_| findings.is_empty()) {
        findings.push(error.to_string());
    }
    report.findings = findings;
    Ok(report)
}
