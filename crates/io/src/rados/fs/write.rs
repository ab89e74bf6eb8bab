//! Writing a file: an intent, chunks in parallel, a name.
//!
//! 1. Before the first chunk the directory has an intent, with a lease and the number of chunks that there may be. It is
//!    renewed, with more chunks, before a chunk beyond them is sent, and when half of the lease is over. That of a file of a task
//!    attempt is renewed when half of the grace time is over as well, if the attempt goes on.
//! 2. What comes is given to the library in pieces, which it copies at once: checksums and copies are made of bytes that the processor's
//!    cache still has. A whole chunk of them is [sent](super::send); if that has to wait, it is [kept](super::outbox), and the next one
//!    is gathered meanwhile. A writer waits when as much of it is kept or in flight as its [turn](super::turns) allows; whichever
//!    chunk is answered first makes room for the next.
//! 3. [`Writer::close`] waits for all of them, then one operation takes the intent away and puts the name in its place.
//!
//! A writer that is dropped without being closed leaves its intent: nothing of it is visible, and the collector finds it.
//! [`Writer::abort`] cleans up at once.

use std::io;
use std::sync::Arc;

use super::super::objects::WriteOnce;
use super::super::{Problem, Result};
use super::outbox::Outbox;
use super::path::Path;
use super::read::BLOCK_BYTES;
use super::record::name_key;
use super::send::{Chunk, OPERATION, Place, Sender, Target, refused};
use super::turns::Turn;
use super::{Entry, FileSystem, Id};
use crate::{Hop, Ledger};

/// What is given to the library at once, a multiple of [`BLOCK_BYTES`]. A processor's second cache has it beside other things; an OSD
/// does not notice that a chunk came in so many pieces.
const PIECE_BYTES: usize = 256 << 10;

/// Whether a name that is taken may be given to something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replace {
    /// No: that is an error.
    Never,
    /// If it is a file's.
    File,
    /// If it is the file's of this identity.
    Only(Id),
}

/// A file that is being written. Nothing of it is visible before [`Self::close`] has succeeded.
#[derive(Debug)]
pub struct Writer {
    fs: FileSystem,
    chunk_bytes: usize,
    /// What is not a piece yet.
    buffer: Vec<u8>,
    /// The pieces of a chunk so far, and the CRC-32C of each of their blocks.
    gathered: Option<WriteOnce>,
    crcs: Vec<u8>,
    len: u64,
    outbox: Outbox,
    ledger: Arc<Ledger>,
}

impl FileSystem {
    /// What a [`Writer`] passes on without a copy of its own, if it gets that much at once, always.
    pub fn piece_bytes(&self) -> usize {
        PIECE_BYTES.min(self.inner.superblock.chunk_bytes as usize)
    }

    /// Begins a file, in a directory that is there. What is moved is counted in `ledger`.
    pub fn create_file(&self, path: &str, replace: Replace, ledger: Arc<Ledger>) -> Result<Writer> {
        let parsed = Path::parse(OPERATION, path)?;
        let (parents, _) = parsed.split(OPERATION)?;
        let directory = self.walk(OPERATION, &parsed, parents)?;
        self.create_file_in(directory, path, replace, ledger)
    }

    /// The same in a directory by its identity, which may have no name. The last name of the path is the file's.
    pub(super) fn create_file_in(
        &self,
        directory: Id,
        path: &str,
        replace: Replace,
        ledger: Arc<Ledger>,
    ) -> Result<Writer> {
        let parsed = Path::parse(OPERATION, path)?;
        let (_, name) = parsed.split(OPERATION)?;
        let mut retry = self.retry(OPERATION, &parsed);
        let look = self.look_live(directory, vec![name_key(name)], &mut retry)?;
        let seen = look.raw(&name_key(name)).zip(look.dentry(name)?);
        // As early as it can be known: the name may be taken meanwhile, which is seen at the end.
        let there = self.visible(directory, name, seen.as_ref().map(|(_, dentry)| dentry.clone()))?;
        if let Some(problem) = refused(there.as_ref(), replace) {
            return Err(parsed.error(OPERATION, problem));
        }
        let place = Place::Directory(directory);
        let target = Target { path: path.into(), place, name: name.into(), replace, hint: look.hint, seen };
        Writer::begin(self, target, Arc::new(self.inner.turns.join()), ledger)
    }
}

impl Writer {
    /// A file that is to become this, whose turn is its own or its task attempt's. What is moved is counted in `ledger`.
    pub(super) fn begin(fs: &FileSystem, target: Target, turn: Arc<Turn>, ledger: Arc<Ledger>) -> Result<Self> {
        let sender = Sender::new(fs, target, Arc::clone(&turn), Arc::clone(&ledger))?;
        Ok(Self {
            fs: fs.clone(),
            chunk_bytes: fs.inner.superblock.chunk_bytes as usize,
            buffer: Vec::new(),
            gathered: None,
            crcs: Vec::new(),
            len: 0,
            outbox: Outbox::new(sender, turn),
            ledger,
        })
    }

    /// Bytes written so far.
    pub fn written_bytes(&self) -> u64 {
        self.len
    }

    /// Adds bytes; pieces of [`PIECE_BYTES`], where a piece begins, without a copy here. After an error nothing more can be added.
    pub fn append(&mut self, mut bytes: &[u8]) -> Result<()> {
        self.outbox.failed()?;
        while !bytes.is_empty() {
            let gathered = self.gathered.as_ref().map_or(0, WriteOnce::len);
            let piece = PIECE_BYTES.min(self.chunk_bytes - gathered);
            let (now, later) = bytes.split_at(bytes.len().min(piece - self.buffer.len()));
            bytes = later;
            self.len += now.len() as u64;
            if now.len() == piece {
                self.gather(now, self.chunk_bytes);
            } else {
                self.keep(now, piece);
            }
            if self.gathered.as_ref().is_some_and(|gathered| gathered.len() == self.chunk_bytes)
                && let Some(chunk) = self.chunk()
            {
                self.outbox.send(chunk)?;
            }
        }
        Ok(())
    }

    /// Copies what is less than a piece, until it is one.
    fn keep(&mut self, bytes: &[u8], piece: usize) {
        if self.buffer.capacity() < piece {
            // A small file takes as much as it has.
            let want = (self.buffer.len() + bytes.len()).next_power_of_two().min(piece);
            self.buffer.reserve_exact(want.max(BLOCK_BYTES).saturating_sub(self.buffer.len()));
        }
        self.buffer.extend_from_slice(bytes);
        self.ledger.moved(Hop::HostToHost, bytes.len());
        if self.buffer.len() == piece {
            self.gather_kept(self.chunk_bytes);
        }
    }

    /// What was kept is a piece. The buffer keeps its memory: what was used is there already.
    fn gather_kept(&mut self, most_bytes: usize) {
        let mut piece = std::mem::take(&mut self.buffer);
        self.gather(&piece, most_bytes);
        piece.clear();
        self.buffer = piece;
    }

    /// Gives a piece, of whole blocks unless it is the file's last one, to the library, which copies it.
    fn gather(&mut self, piece: &[u8], most_bytes: usize) {
        let gathered = self.gathered.get_or_insert_with(|| self.fs.inner.data.gather(OPERATION, most_bytes));
        // First: the copy writes to memory that the cache does not have, and takes the place of what it has.
        self.crcs.extend(piece.chunks(BLOCK_BYTES).flat_map(|block| crc32c::crc32c(block).to_le_bytes()));
        gathered.add(piece);
        self.ledger.moved(Hop::HostToHost, piece.len());
    }

    /// What is gathered.
    fn chunk(&mut self) -> Option<Chunk> {
        let (gathered, crcs) = (self.gathered.take(), std::mem::take(&mut self.crcs));
        gathered.map(|bytes| Chunk { bytes, crcs, seat: None })
    }

    /// Gives the file its name, once all of it is in the cluster.
    ///
    /// # Errors
    /// If anything could not be written, or the name is taken: then nothing is visible, and what was written is cleaned up,
    /// except after [`Problem::OutcomeUnknown`], where only the collector can tell.
    pub fn close(mut self) -> Result<Entry> {
        match self.finish() {
            Ok(entry) => Ok(entry),
            Err(error) => {
                if error.problem() != Some(Problem::OutcomeUnknown) {
                    self.outbox.sender().clean_up();
                }
                Err(error)
            }
        }
    }

    /// Gives the file up. What cannot be cleaned up now, the collector finds.
    pub fn abort(mut self) {
        self.outbox.discard();
        self.outbox.sender().clean_up();
    }

    fn finish(&mut self) -> Result<Entry> {
        self.outbox.failed()?;
        if !self.buffer.is_empty() {
            self.gather_kept(self.buffer.len());
        }
        let last = self.chunk();
        self.outbox.sender().finish(last, self.len)
    }
}

impl io::Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.append(bytes)?;
        Ok(bytes.len())
    }

    /// Sends nothing: chunks are written once, and whole.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
