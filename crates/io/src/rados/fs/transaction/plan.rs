//! What a commit is to do: the files of a transaction as a tree, and what each directory of the file system lacks of it.

use std::collections::BTreeMap;

use super::super::super::{Problem, Result};
use super::super::record::{Dentry, Node, Record, Tag, name_key};
use super::super::send::refused;
use super::super::{FileSystem, Id, Replace};
use super::attempt::StagedFile;

/// A directory as it is to be: what is put into it and below it.
#[derive(Debug, Default)]
pub(super) struct Branch {
    pub directories: BTreeMap<String, Branch>,
    pub files: BTreeMap<String, StagedFile>,
    /// It takes the place of one that is there.
    pub is_new: bool,
}

impl Branch {
    /// The tree of some files, and of directories that are to be replaced.
    pub fn of(files: impl IntoIterator<Item = StagedFile>, replaced: &[String]) -> Result<Self> {
        let mut root = Self::default();
        for path in replaced {
            root.below(path.split('/')).is_new = true;
        }
        for file in files {
            let (above, name) = file.path.rsplit_once('/').unwrap_or(("", &file.path));
            let branch = root.below(above.split('/').filter(|name| !name.is_empty()));
            if branch.files.contains_key(name) {
                return Err(file.error(Problem::WrittenTwice));
            }
            let name = name.to_owned();
            branch.files.insert(name, file);
        }
        root.check()?;
        Ok(root)
    }

    fn below<'n>(&mut self, names: impl Iterator<Item = &'n str>) -> &mut Self {
        names.fold(self, |at, name| at.directories.entry(name.to_owned()).or_default())
    }

    /// No name is both a file's and a directory's.
    fn check(&self) -> Result<()> {
        if let Some(file) = self.files.iter().find_map(|(name, file)| self.directories.get(name).map(|_| file)) {
            return Err(file.error(Problem::IsADirectory));
        }
        self.directories.values().try_for_each(Self::check)
    }

    pub fn keys(&self) -> Vec<Vec<u8>> {
        self.directories.keys().chain(self.files.keys()).map(|name| name_key(name)).collect()
    }
}

/// A directory that is to be made, with all that will be in it.
#[derive(Clone, Debug)]
pub(super) struct Made {
    pub id: Id,
    pub entries: Vec<(Vec<u8>, Vec<u8>)>,
}

/// What a name is to stand for.
#[derive(Debug)]
pub(super) enum Goal<'b> {
    File(&'b StagedFile),
    /// A new directory, the first of those that are made.
    Directory {
        branch: &'b Branch,
        made: Vec<Made>,
    },
}

impl Goal<'_> {
    fn node(&self) -> Node {
        match self {
            Self::File(file) => file.node.clone(),
            Self::Directory { made, .. } => Node::Directory(made.first().map_or(Id::ROOT, |made| made.id)),
        }
    }
}

/// A name that is to be staged.
#[derive(Debug)]
pub(super) struct Item<'b> {
    pub name: &'b str,
    /// What is there: bytes, and what they mean.
    pub seen: Option<(Vec<u8>, Dentry)>,
    pub goal: Goal<'b>,
}

impl Item<'_> {
    /// The staged dentry.
    pub fn staged(&self, fs: &FileSystem, transaction: Id) -> Result<Dentry> {
        let before = self
            .seen
            .as_ref()
            .map(|(_, dentry)| super::super::record::Before { mtime_ms: dentry.mtime_ms, node: dentry.node.clone() });
        let mtime_ms = match &self.goal {
            Goal::File(file) => file.mtime_ms,
            Goal::Directory { .. } => fs.now_ms(),
        };
        let tag = Some(Tag::Staged { transaction, before });
        Ok(Dentry { stamp: fs.new_id()?, mtime_ms, node: self.goal.node(), tag })
    }
}

/// What is to be done about a name, as it was seen.
pub(super) enum Step {
    /// It is to be staged.
    Stage,
    /// It is a directory that is there: what is to be done is below it.
    Descend(Id),
    /// It is staged by this transaction.
    Done,
}

pub(super) fn is_staged_by(transaction: Id, seen: Option<&Dentry>) -> bool {
    matches!(seen.and_then(|seen| seen.tag.as_ref()), Some(Tag::Staged { transaction: by, .. }) if *by == transaction)
}

/// What a file's name lacks.
pub(super) fn step_for_file(transaction: Id, file: &StagedFile, seen: Option<&Dentry>) -> Result<Step> {
    if is_staged_by(transaction, seen) {
        return Ok(Step::Done);
    }
    match refused(seen, file.replace) {
        Some(problem) => Err(file.error(problem)),
        None => Ok(Step::Stage),
    }
}

/// What a directory's name lacks.
pub(super) fn step_for_directory(
    transaction: Id,
    branch: &Branch,
    seen: Option<&Dentry>,
) -> std::result::Result<Step, Problem> {
    if is_staged_by(transaction, seen) {
        return Ok(Step::Done);
    }
    match seen.map(|seen| &seen.node) {
        Some(Node::File(_)) => Err(Problem::NotADirectory),
        Some(Node::Directory(id)) if !branch.is_new => Ok(Step::Descend(*id)),
        Some(Node::Directory(_)) | None => Ok(Step::Stage),
    }
}

/// New directories for a branch and all below it, that of the branch first.
pub(super) fn make(fs: &FileSystem, branch: &Branch) -> Result<Vec<Made>> {
    let mut made = vec![Made { id: fs.new_id()?, entries: Vec::new() }];
    let mut entries = Vec::new();
    let mut add = |name: &str, mtime_ms, node| -> Result<()> {
        let dentry = Dentry { stamp: fs.new_id()?, mtime_ms, node, tag: None };
        entries.push((name_key(name), dentry.encode()));
        Ok(())
    };
    for (name, file) in &branch.files {
        // Nothing of this name can be there.
        if let Replace::Only(_) = file.replace {
            return Err(file.error(Problem::Changed));
        }
        add(name, file.mtime_ms, file.node.clone())?;
    }
    for (name, below) in &branch.directories {
        let below = make(fs, below)?;
        add(name, fs.now_ms(), Node::Directory(below.first().map_or(Id::ROOT, |made| made.id)))?;
        made.extend(below);
    }
    made[0].entries = entries;
    Ok(made)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::super::record::FileNode;
    use super::*;

    fn file(path: &str) -> StagedFile {
        let node = Node::File(FileNode { id: Id(1), extents: Vec::new() });
        StagedFile { path: path.into(), replace: Replace::Never, mtime_ms: 0, node }
    }

    #[test]
    fn files_become_a_tree_in_which_every_name_is_one_thing() {
        let tree = Branch::of([file("a/b/c"), file("a/d"), file("e")], &["a/b".into(), "f/g".into()]).unwrap();
        assert!(tree.directories["a"].directories["b"].is_new && !tree.directories["a"].is_new);
        assert!(tree.directories["f"].directories["g"].is_new);
        assert!(tree.files.contains_key("e") && tree.directories["a"].files.contains_key("d"));
        let error = Branch::of([file("a/b"), file("a/b")], &[]).unwrap_err();
        assert_eq!(error.problem(), Some(Problem::WrittenTwice));
        let error = Branch::of([file("a/b/c"), file("a/b")], &[]).unwrap_err();
        assert_eq!(error.problem(), Some(Problem::IsADirectory));
    }
}
