//! Checking a file system: everything that is reachable makes sense and is there.
//!
//! It may run while others work: what they change meanwhile may be reported, and is not the next time. Nothing is changed.

use std::collections::BTreeSet;

use super::super::objects::ReadOp;
use super::super::{Code, Error, Result};
use super::collect::UNFINISHED;
use super::directory::{SHARDS, object_of};
use super::read::chunk_name;
use super::record::{Dentry, Extent, FileNode, GARBAGE, Garbage, INTENTS, Intent, NAMES, Node, STAGED, Tag, key_id};
use super::transaction::{Fate, object};
use super::{FileSystem, Id};
use crate::Ledger;

/// How much is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Depth {
    /// Directories, and whether every chunk is there and as long as it should be.
    Chunks,
    /// All objects of both pools as well: are there any that nobody knows?
    Objects,
    /// All bytes of all files as well.
    Bytes,
}

/// What a check has found.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// Directories, the root among them.
    pub directories: u64,
    /// Files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Files and directories without a name that the collector knows of, those of transactions that are not dealt with among
    /// them.
    pub unfinished: u64,
    /// Transactions that are not dealt with.
    pub transactions: u64,
    /// What is wrong, a line each.
    pub damage: Vec<String>,
    /// Objects that nobody knows, as POOL/OBJECT.
    pub unknown: Vec<String>,
}

struct Walk {
    findings: Findings,
    meta: BTreeSet<String>,
    data: BTreeSet<String>,
    /// Directories still to be looked at, and whether they have a name.
    todo: Vec<(String, Id, bool)>,
}

impl FileSystem {
    /// Looks at everything; says what is wrong and changes nothing.
    pub fn check(&self, depth: Depth) -> Result<Findings> {
        let mut walk = Walk {
            findings: Findings::default(),
            meta: ["super".to_owned(), "moves".to_owned()].into_iter().collect(),
            data: BTreeSet::new(),
            todo: vec![(String::new(), Id::ROOT, true)],
        };
        // Names of objects first: what is made meanwhile is not unknown.
        let listed = (depth >= Depth::Objects).then(|| Ok((self.inner.meta.list()?, self.inner.data.list()?)));
        let listed: Option<(Vec<String>, Vec<String>)> = listed.transpose()?;
        walk.meta.extend((0..SHARDS).map(|shard| format!("g.{shard:x}")));
        for id in self.transaction_ids()? {
            self.check_transaction(&mut walk, id)?;
        }
        while let Some((path, id, named)) = walk.todo.pop() {
            self.check_directory(&mut walk, depth, &path, id, named)?;
        }
        if let Some((meta, data)) = listed {
            let ours = |name: &String| ["d.", "g.", "t."].iter().any(|kind| name.starts_with(kind));
            let meta = meta.into_iter().filter(|name| ours(name) && !walk.meta.contains(name));
            let data = data.into_iter().filter(|name| name.starts_with("f.") && !walk.data.contains(name));
            walk.findings.unknown = meta.map(|name| format!("{}/{name}", self.inner.meta.name())).collect();
            walk.findings.unknown.extend(data.map(|name| format!("{}/{name}", self.inner.data.name())));
        }
        Ok(walk.findings)
    }

    /// What a transaction knows of: the directories of its attempts, and those that its commit has made. The latter have
    /// nothing of their own as long as it is not committed, and a name once it is.
    fn check_transaction(&self, walk: &mut Walk, id: Id) -> Result<()> {
        walk.meta.insert(object::object_of(id));
        walk.findings.transactions += u64::from(self.look_transaction(id, Vec::new())?.is_some());
        self.each_record(id, b"", |look, key, value| {
            if key.starts_with(object::ATTEMPTS) {
                walk.findings.unfinished += 1;
                walk.todo.push((String::new(), look.decode::<object::Attempt>(key, value)?.directory, false));
            }
            walk.meta.extend(key_id(object::MADE, key).map(object_of));
            Ok(())
        })
    }

    fn check_directory(&self, walk: &mut Walk, depth: Depth, path: &str, id: Id, named: bool) -> Result<()> {
        walk.meta.insert(object_of(id));
        let shown = if path.is_empty() { "/" } else { path };
        let (mut after, mut first) = (Vec::new(), true);
        // Transactions whose names the directory says it has. Marks come behind the names.
        let (mut staged, mut marks) = (BTreeSet::new(), BTreeSet::new());
        loop {
            let Some(look) = self.look_page(id, b"", &after, 1024)? else {
                if named {
                    walk.findings.damage.push(format!("{shown}: the directory's object {} is missing", object_of(id)));
                }
                return Ok(());
            };
            walk.findings.directories += u64::from(first && named);
            first = false;
            for (key, value) in look.entries() {
                let unfinished = UNFINISHED.iter().any(|prefix| key.starts_with(prefix));
                marks.extend(key_id(STAGED, key));
                if unfinished && look.hint.starts_with(b"-") {
                    walk.findings
                        .damage
                        .push(format!("{shown}: unfinished business that the collector does not know of"));
                }
                let mut before_it = None;
                let node = if let Some(name) = key.strip_prefix(NAMES) {
                    let name = String::from_utf8_lossy(name).into_owned();
                    let child = format!("{path}/{name}");
                    let dentry: Dentry = match look.decode(key, value) {
                        Ok(dentry) => dentry,
                        Err(error) => {
                            walk.findings.damage.push(format!("{child}: {error}"));
                            continue;
                        }
                    };
                    if let Some(Tag::Staged { transaction, before }) = &dentry.tag {
                        staged.insert(*transaction);
                        if self.fate(*transaction)? == Fate::Committed {
                            before_it = before.clone().map(|before| (String::new(), before.node, false));
                        }
                    }
                    self.visible(id, &name, Some(dentry))?.map(|dentry| (child, dentry.node, named))
                } else if key.starts_with(INTENTS) {
                    Some((String::new(), look.decode::<Intent>(key, value)?.node, false))
                } else if key.starts_with(GARBAGE) {
                    Some((String::new(), look.decode::<Garbage>(key, value)?.node, false))
                } else {
                    walk.findings.unfinished += u64::from(key.starts_with(STAGED));
                    None
                };
                for (child, node, named) in node.into_iter().chain(before_it) {
                    match node {
                        Node::Directory(below) => {
                            walk.findings.unfinished += u64::from(!named);
                            walk.todo.push((child, below, named));
                        }
                        Node::File(file) => self.check_file(walk, depth, &child, &file, named)?,
                    }
                }
            }
            match look.entries().last() {
                Some((key, _)) if look.more() => after.clone_from(key),
                _ => break,
            }
        }
        for transaction in staged.difference(&marks) {
            walk.findings
                .damage
                .push(format!("{shown}: it has names of transaction {transaction}, and does not say so"));
        }
        Ok(())
    }

    fn check_file(&self, walk: &mut Walk, depth: Depth, path: &str, file: &FileNode, named: bool) -> Result<()> {
        for extent in &file.extents {
            walk.data.extend((0..extent.chunks()).map(|chunk| chunk_name(extent.id, chunk)));
        }
        if !named {
            walk.findings.unfinished += 1;
            return Ok(());
        }
        walk.findings.files += 1;
        walk.findings.bytes += file.len();
        let known = walk.findings.damage.len();
        for extent in &file.extents {
            self.check_extent(walk, path, extent)?;
        }
        // What is known to be damaged need not be read to be found damaged again.
        if depth >= Depth::Bytes && walk.findings.damage.len() == known {
            walk.findings.damage.extend(self.unreadable(path).map(|why| format!("{path}: {why}")));
        }
        Ok(())
    }

    /// Why a file cannot be read to its end.
    fn unreadable(&self, path: &str) -> Option<String> {
        let read = || -> Result<()> {
            let mut reader = self.open_file(path)?.reader(0..u64::MAX, Ledger::default().into());
            while reader.next_piece()?.is_some() {}
            Ok(())
        };
        match read() {
            Ok(()) => None,
            Err(Error::Corrupt { object, what, .. }) => Some(format!("{object}: {what}")),
            Err(error) => Some(error.to_string()),
        }
    }

    fn check_extent(&self, walk: &mut Walk, path: &str, extent: &Extent) -> Result<()> {
        for chunk in 0..extent.chunks() {
            let name = chunk_name(extent.id, chunk);
            let want = u64::from(extent.chunk_bytes).min(extent.len - chunk * u64::from(extent.chunk_bytes));
            match self.inner.data.read(&name, ReadOp::new("stat").size()) {
                Ok(reply) if reply.size == want => {}
                Ok(reply) => walk.findings.damage.push(format!("{path}: {name} has {} bytes of {want}", reply.size)),
                Err(error) if error.is(Code::NOT_FOUND) => {
                    walk.findings.damage.push(format!("{path}: {name} is missing"));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
