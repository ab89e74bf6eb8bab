//! What is stored under the keys of a directory's object, byte for byte.
//!
//! | key | value | meaning |
//! |---|---|---|
//! | `n/NAME` | [`Dentry`] | something has this name |
//! | `i/ID` | [`Intent`] | somebody is about to give a name to this file or directory |
//! | `x/ID` | [`Garbage`] | nothing names this file or directory any more |
//! | `r/ID` | [`Move`] | a rename into this directory from another one |
//! | `s/ID` | [`Mark`] | names of this directory are staged by this transaction |
//!
//! Those of a transaction's object are in `transaction::object`.
//!
//! All numbers are little-endian. A value begins with its version and ends with the CRC-32C of all before it. No two values
//! that were ever stored under one key are equal: each has a random stamp, so that "is still what I have seen" can be asked
//! by comparing bytes.

use super::Id;

const VERSION: u8 = 1;

/// What a name stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dentry {
    pub stamp: Id,
    /// When the file was closed or the directory made, in milliseconds since 1970.
    pub mtime_ms: u64,
    pub node: Node,
    pub tag: Option<Tag>,
}

/// A file or a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    File(FileNode),
    Directory(Id),
}

impl Node {
    pub fn id(&self) -> Id {
        match self {
            Node::File(file) => file.id,
            Node::Directory(id) => *id,
        }
    }
}

/// Where a file's bytes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileNode {
    /// Unlike that of every other file that was ever written.
    pub id: Id,
    pub extents: Vec<Extent>,
}

impl FileNode {
    pub fn len(&self) -> u64 {
        self.extents.iter().map(|extent| extent.len).sum()
    }
}

/// A run of chunks: all have `chunk_bytes` but for the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub id: Id,
    pub len: u64,
    pub chunk_bytes: u32,
}

impl Extent {
    pub fn chunks(&self) -> u64 {
        self.len.div_ceil(u64::from(self.chunk_bytes.max(1)))
    }
}

impl Dentry {
    /// What this name stood for before it was staged; the same, if it is not staged. It keeps its tag.
    pub fn before(&self) -> Option<Self> {
        match &self.tag {
            Some(Tag::Staged { before, .. }) => {
                let Before { mtime_ms, node } = before.clone()?;
                Some(Self { mtime_ms, node, ..self.clone() })
            }
            _ => Some(self.clone()),
        }
    }
}

/// What somebody is doing with a dentry: see `rename`, `remove` and `transaction`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tag {
    /// It is being moved into another directory, which has the record of this transaction.
    Moving { to: Id, transaction: Id },
    /// The directory is being removed, if it is empty.
    Emptying { token: Id, due_ms: u64 },
    /// It counts if this transaction is committed. Else what was before does, if anything was.
    Staged { transaction: Id, before: Option<Before> },
}

/// What a staged name stood for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Before {
    pub mtime_ms: u64,
    pub node: Node,
}

/// Something is so, and says no more than that. Its stamp tells this one from any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    pub stamp: Id,
}

/// A promise to link something soon, or to have it removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intent {
    pub stamp: Id,
    pub due_ms: u64,
    pub node: Node,
}

/// Something without a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Garbage {
    pub stamp: Id,
    pub since_ms: u64,
    /// It never had a name: its writer was taken for dead.
    pub condemned: bool,
    pub node: Node,
}

/// How a rename across directories stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Pending,
    Committed,
    Aborted,
}

/// A rename across directories, in the directory that it leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    pub stamp: Id,
    pub due_ms: u64,
    pub verdict: Verdict,
    pub from: Id,
    pub name: String,
}

/// What a directory's keys begin with.
pub const NAMES: &[u8] = b"n/";
pub const INTENTS: &[u8] = b"i/";
pub const GARBAGE: &[u8] = b"x/";
pub const MOVES: &[u8] = b"r/";
pub const STAGED: &[u8] = b"s/";

pub fn name_key(name: &str) -> Vec<u8> {
    [NAMES, name.as_bytes()].concat()
}

pub fn id_key(prefix: &[u8], id: Id) -> Vec<u8> {
    [prefix, id.to_string().as_bytes()].concat()
}

/// The id in a key of this prefix.
pub fn key_id(prefix: &[u8], key: &[u8]) -> Option<Id> {
    Id::parse(std::str::from_utf8(key.strip_prefix(prefix)?).ok()?)
}

/// A value as it is stored.
pub trait Record: Sized {
    fn put(&self, to: &mut Vec<u8>);
    fn take(from: &mut Bytes<'_>) -> Option<Self>;

    fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        self.put(&mut bytes);
        let crc = crc32c::crc32c(&bytes);
        bytes.extend(crc.to_le_bytes());
        bytes
    }

    /// `None` if it is damaged, or of another version.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let (body, crc) = bytes.split_last_chunk::<4>()?;
        if crc32c::crc32c(body) != u32::from_le_bytes(*crc) {
            return None;
        }
        let mut body = Bytes(body);
        let value = (body.u8()? == VERSION).then(|| Self::take(&mut body)).flatten()?;
        body.0.is_empty().then_some(value)
    }
}

/// Bytes that are still to be read.
pub struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    pub fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub fn id(&mut self) -> Option<Id> {
        self.array().map(u128::from_le_bytes).map(Id)
    }

    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }
}

pub fn put_id(to: &mut Vec<u8>, id: Id) {
    to.extend(id.0.to_le_bytes());
}

pub fn put_u64(to: &mut Vec<u8>, n: u64) {
    to.extend(n.to_le_bytes());
}

impl Record for Node {
    fn put(&self, to: &mut Vec<u8>) {
        match self {
            Node::Directory(id) => {
                to.push(1);
                put_id(to, *id);
            }
            Node::File(file) => {
                to.push(0);
                put_id(to, file.id);
                to.extend(u32::try_from(file.extents.len()).unwrap_or(u32::MAX).to_le_bytes());
                for extent in &file.extents {
                    put_id(to, extent.id);
                    put_u64(to, extent.len);
                    to.extend(extent.chunk_bytes.to_le_bytes());
                }
            }
        }
    }

    fn take(from: &mut Bytes<'_>) -> Option<Self> {
        match from.u8()? {
            1 => Some(Node::Directory(from.id()?)),
            0 => {
                let (id, count) = (from.id()?, from.u32()?);
                let mut extents = Vec::new();
                for _ in 0..count {
                    let extent = Extent { id: from.id()?, len: from.u64()?, chunk_bytes: from.u32()? };
                    // Nothing is divided by zero.
                    (extent.chunk_bytes > 0).then_some(())?;
                    extents.push(extent);
                }
                Some(Node::File(FileNode { id, extents }))
            }
            _ => None,
        }
    }
}

impl Record for Dentry {
    fn put(&self, to: &mut Vec<u8>) {
        put_id(to, self.stamp);
        put_u64(to, self.mtime_ms);
        self.node.put(to);
        match &self.tag {
            None => to.push(0),
            Some(Tag::Moving { to: directory, transaction }) => {
                to.push(1);
                put_id(to, *directory);
                put_id(to, *transaction);
            }
            Some(Tag::Emptying { token, due_ms }) => {
                to.push(2);
                put_id(to, *token);
                put_u64(to, *due_ms);
            }
            Some(Tag::Staged { transaction, before }) => {
                to.push(3);
                put_id(to, *transaction);
                to.push(u8::from(before.is_some()));
                if let Some(before) = before {
                    put_u64(to, before.mtime_ms);
                    before.node.put(to);
                }
            }
        }
    }

    fn take(from: &mut Bytes<'_>) -> Option<Self> {
        let (stamp, mtime_ms, node) = (from.id()?, from.u64()?, Node::take(from)?);
        let tag = match from.u8()? {
            0 => None,
            1 => Some(Tag::Moving { to: from.id()?, transaction: from.id()? }),
            2 => Some(Tag::Emptying { token: from.id()?, due_ms: from.u64()? }),
            3 => {
                let transaction = from.id()?;
                let before = match from.u8()? {
                    0 => None,
                    1 => Some(Before { mtime_ms: from.u64()?, node: Node::take(from)? }),
                    _ => return None,
                };
                Some(Tag::Staged { transaction, before })
            }
            _ => return None,
        };
        Some(Self { stamp, mtime_ms, node, tag })
    }
}

impl Record for Intent {
    fn put(&self, to: &mut Vec<u8>) {
        put_id(to, self.stamp);
        put_u64(to, self.due_ms);
        self.node.put(to);
    }

    fn take(from: &mut Bytes<'_>) -> Option<Self> {
        Some(Self { stamp: from.id()?, due_ms: from.u64()?, node: Node::take(from)? })
    }
}

impl Record for Garbage {
    fn put(&self, to: &mut Vec<u8>) {
        put_id(to, self.stamp);
        put_u64(to, self.since_ms);
        to.push(u8::from(self.condemned));
        self.node.put(to);
    }

    fn take(from: &mut Bytes<'_>) -> Option<Self> {
        let (stamp, since_ms, condemned) = (from.id()?, from.u64()?, from.u8()? != 0);
        Some(Self { stamp, since_ms, condemned, node: Node::take(from)? })
    }
}

impl Record for Move {
    fn put(&self, to: &mut Vec<u8>) {
        put_id(to, self.stamp);
        put_u64(to, self.due_ms);
        to.push(match self.verdict {
            Verdict::Pending => 0,
            Verdict::Committed => 1,
            Verdict::Aborted => 2,
        });
        put_id(to, self.from);
        to.extend(self.name.as_bytes());
    }

    fn take(from: &mut Bytes<'_>) -> Option<Self> {
        let (stamp, due_ms) = (from.id()?, from.u64()?);
        let verdict = match from.u8()? {
            0 => Verdict::Pending,
            1 => Verdict::Committed,
            2 => Verdict::Aborted,
            _ => return None,
        };
        let directory = from.id()?;
        let name = std::str::from_utf8(from.rest()).ok()?.to_owned();
        Some(Self { stamp, due_ms, verdict, from: directory, name })
    }
}

impl Record for Mark {
    fn put(&self, to: &mut Vec<u8>) {
        put_id(to, self.stamp);
    }

    fn take(from: &mut Bytes<'_>) -> Option<Self> {
        Some(Self { stamp: from.id()? })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn file() -> Node {
        let extent = Extent { id: Id(3), len: 9 << 20, chunk_bytes: 4 << 20 };
        assert_eq!(extent.chunks(), 3);
        Node::File(FileNode { id: Id(2), extents: vec![extent, Extent { id: Id(4), len: 1, chunk_bytes: 1 }] })
    }

    fn round_trip<R: Record + PartialEq + std::fmt::Debug>(record: &R) {
        let bytes = record.encode();
        assert_eq!(R::decode(&bytes).as_ref(), Some(record));
        for len in 0..bytes.len() {
            assert_eq!(R::decode(&bytes[..len]), None);
        }
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(R::decode(&damaged), None, "bit {bit}");
        }
    }

    #[test]
    fn records_come_back_and_damage_is_seen() {
        let tags = [
            None,
            Some(Tag::Moving { to: Id(7), transaction: Id(8) }),
            Some(Tag::Emptying { token: Id(9), due_ms: 10 }),
            Some(Tag::Staged { transaction: Id(11), before: None }),
            Some(Tag::Staged { transaction: Id(11), before: Some(Before { mtime_ms: 12, node: file() }) }),
        ];
        for tag in tags {
            round_trip(&Dentry { stamp: Id(1), mtime_ms: 5, node: file(), tag });
        }
        round_trip(&Mark { stamp: Id(1) });
        round_trip(&Intent { stamp: Id(1), due_ms: 5, node: Node::Directory(Id(6)) });
        round_trip(&Garbage { stamp: Id(1), since_ms: 5, condemned: true, node: file() });
        for verdict in [Verdict::Pending, Verdict::Committed, Verdict::Aborted] {
            round_trip(&Move { stamp: Id(1), due_ms: 5, verdict, from: Id(2), name: "ä b".into() });
        }
    }

    #[test]
    fn keys_have_their_id() {
        assert_eq!(key_id(GARBAGE, &id_key(GARBAGE, Id(0xabc))), Some(Id(0xabc)));
        assert_eq!(key_id(GARBAGE, &id_key(MOVES, Id(0xabc))), None);
    }
}
