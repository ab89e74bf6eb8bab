//! Checks of a whole store.

use std::fmt;
use std::ops::Bound;
use std::sync::Arc;

use crate::Result;
use crate::backend::{PAGE_BYTES, PageNo};
use crate::pages::Pages;
use crate::tree::{self, CATALOG, Cursor, Walk};

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The findings, a sentence each. Empty if the store is sound.
    pub findings: Vec<String>,
    /// All trees, by name.
    pub trees: Vec<TreeReport>,
    /// The number of pages in use.
    pub pages: u64,
}

/// Statistics of one tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TreeReport {
    /// The tree's name.
    pub name: String,
    /// The number of entries.
    pub entries: u64,
    /// The number of nodes from the root to a leaf.
    pub levels: u64,
    /// The number of pages that lead to leaves.
    pub inner_pages: u64,
    /// The number of pages with entries.
    pub leaf_pages: u64,
    /// The number of pages with long values.
    pub overflow_pages: u64,
    /// The fill of the leaves, in percent.
    pub leaf_fill_percent: u64,
}

impl Report {
    /// Returns true if there is no finding.
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

/// Walks everything that the last commit refers to. There is no commit meanwhile: the caller holds
/// the writer slot, or the store is open for reading only.
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
            // The walk has reported the damage of that page. The rest of the catalog is unknown.
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
