//! Reading a file: ranges in parallel, and everything that is read is verified.
//!
//! A chunk has the CRC-32C of each of its blocks of 64 KiB as an attribute, which comes along with the bytes in one operation.
//! So a read is widened to whole blocks, and one of a few bytes is verified like one of a whole chunk.
//!
//! A file that is open stays what it was when it was opened: chunks are never written over. If it is removed or replaced
//! meanwhile, it can be read for the grace time, and then reads fail.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use super::super::objects::{Pending, ReadOp, Reply};
use super::super::{Code, Error, Problem, Result};
use super::path::Path;
use super::record::{Dentry, FileNode, Node};
use super::{Entry, FileSystem, Id};
use crate::{Hop, IoHints, Ledger, ReadAt};

/// Bytes under one checksum.
pub const BLOCK_BYTES: usize = 64 << 10;
/// The attribute that has the checksums.
pub const CRCS: &str = "crc";
/// Bytes of one request: larger reads are more of them, side by side.
const REQUEST_BYTES: u64 = 4 << 20;
/// Two ranges with a smaller gap are read as one.
const GAP_BYTES: u64 = 256 << 10;

const OPERATION: &str = "read";

pub(super) fn chunk_name(id: Id, chunk: u64) -> String {
    format!("f.{id}.{chunk}")
}

/// An open file.
#[derive(Clone, Debug)]
pub struct File {
    fs: FileSystem,
    path: Arc<str>,
    node: Arc<FileNode>,
    len: u64,
    mtime_ms: u64,
}

/// Part of a chunk, in whole blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Request {
    object: String,
    /// Bytes of the whole chunk.
    chunk_len: u64,
    /// What is read of the chunk.
    blocks: Range<u64>,
    /// Where the first byte that is wanted is, in the file, and how many are.
    wanted: Range<u64>,
    /// Where it is in what is read.
    skip: usize,
}

impl FileSystem {
    /// Opens a file.
    pub fn open_file(&self, path: &str) -> Result<File> {
        let parsed = Path::parse("open", path)?;
        let dentry = self.find("open", &parsed)?;
        match dentry {
            Some(Dentry { node: Node::File(node), mtime_ms, .. }) => {
                let len = node.len();
                Ok(File { fs: self.clone(), path: path.into(), node: Arc::new(node), len, mtime_ms })
            }
            Some(_) => Err(parsed.error("open", Problem::IsADirectory)),
            None => Err(parsed.error("open", Problem::NotFound)),
        }
    }

    /// What a path stands for; the root has no dentry.
    pub(super) fn find(&self, operation: &'static str, path: &Path<'_>) -> Result<Option<Dentry>> {
        match path.names.split_last() {
            None => Ok(Some(Dentry { stamp: Id::ROOT, mtime_ms: 0, node: Node::Directory(Id::ROOT), tag: None })),
            Some((name, parents)) => self.child(self.walk(operation, path, parents)?, name),
        }
    }

    /// What a path stands for.
    ///
    /// # Errors
    /// If it stands for nothing.
    pub fn stat(&self, path: &str) -> Result<Entry> {
        let parsed = Path::parse("stat", path)?;
        let dentry = self.find("stat", &parsed)?.ok_or_else(|| parsed.error("stat", Problem::NotFound))?;
        Ok(Entry::of(parsed.names.last().copied().unwrap_or(""), &dentry))
    }
}

impl File {
    /// Bytes.
    pub fn size(&self) -> u64 {
        self.len
    }

    /// Unlike that of every other file that was ever written.
    pub fn id(&self) -> Id {
        self.node.id
    }

    /// When it was closed, in milliseconds since 1970.
    pub fn mtime_ms(&self) -> u64 {
        self.mtime_ms
    }

    /// The requests that make up a range of the file. What is beyond its end is left out.
    fn requests(&self, range: Range<u64>) -> Vec<Request> {
        let mut requests = Vec::new();
        let mut extent_start = 0;
        for extent in &self.node.extents {
            let (chunk_bytes, block) = (u64::from(extent.chunk_bytes), BLOCK_BYTES as u64);
            let mut at = range.start.max(extent_start);
            let end = range.end.min(extent_start + extent.len);
            while at < end {
                let in_extent = at - extent_start;
                let chunk = in_extent / chunk_bytes;
                let chunk_start = chunk * chunk_bytes;
                let chunk_len = chunk_bytes.min(extent.len - chunk_start);
                let in_chunk = in_extent - chunk_start;
                let first = in_chunk / block * block;
                let wanted_end = (in_chunk + (end - at)).min(chunk_len).min(first + REQUEST_BYTES);
                let blocks = first..wanted_end.next_multiple_of(block).min(chunk_len);
                requests.push(Request {
                    object: chunk_name(extent.id, chunk),
                    chunk_len,
                    blocks,
                    wanted: at..at + (wanted_end - in_chunk),
                    skip: usize::try_from(in_chunk - first).unwrap_or(usize::MAX),
                });
                at += wanted_end - in_chunk;
            }
            extent_start += extent.len;
        }
        requests
    }

    fn start(&self, request: &Request, ledger: &Ledger) -> Pending<Reply> {
        let len = usize::try_from(request.blocks.end - request.blocks.start).unwrap_or(usize::MAX);
        ledger.read_op();
        let op = ReadOp::new(OPERATION).attributes().bytes(request.blocks.start, len);
        self.fs.inner.data.submit_read(&request.object, op)
    }

    /// The wanted bytes of a request that was answered.
    fn finish<'a>(&self, request: &Request, reply: &'a Result<Reply>, ledger: &Ledger) -> Result<&'a [u8]> {
        let pool = self.fs.inner.data.name();
        let corrupt = |what: String| Error::Corrupt { pool: pool.into(), object: request.object.clone(), what };
        let reply = match reply {
            Ok(reply) => reply,
            Err(error) if error.is(Code::NOT_FOUND) => {
                let what = format!(
                    "it is missing: {} was removed longer ago than the grace time, or its pool has lost it",
                    self.path
                );
                return Err(corrupt(what));
            }
            Err(error) => return Err(error.clone()),
        };
        ledger.moved(Hop::StorageToHost, reply.bytes.len());
        if reply.bytes.len() as u64 != request.blocks.end - request.blocks.start {
            return Err(corrupt(format!("it ends at {} bytes", request.blocks.start + reply.bytes.len() as u64)));
        }
        let crcs = reply.attributes.get(CRCS).map_or(&[][..], Vec::as_slice);
        if crcs.len() as u64 != request.chunk_len.div_ceil(BLOCK_BYTES as u64) * 4 {
            return Err(corrupt(format!("it has checksums of {} bytes", crcs.len())));
        }
        let first = usize::try_from(request.blocks.start).unwrap_or(usize::MAX) / BLOCK_BYTES;
        for (number, block) in reply.bytes.chunks(BLOCK_BYTES).enumerate() {
            let at = (first + number) * 4;
            if crcs[at..at + 4] != crc32c::crc32c(block).to_le_bytes() {
                return Err(corrupt(format!("the checksum of block {} is wrong", first + number)));
            }
        }
        let wanted = usize::try_from(request.wanted.end - request.wanted.start).unwrap_or(usize::MAX);
        Ok(&reply.bytes[request.skip..request.skip + wanted])
    }

    /// Reads a range, its requests side by side, into `buf`; short at the end of the file.
    pub fn read_into(&self, offset: u64, buf: &mut [u8], ledger: &Ledger) -> Result<usize> {
        let end = offset.saturating_add(buf.len() as u64).min(self.len);
        if offset >= end {
            return Ok(0);
        }
        let mut done = 0;
        let mut copy = |bytes: &[u8]| {
            buf[done..done + bytes.len()].copy_from_slice(bytes);
            ledger.moved(Hop::HostToHost, bytes.len());
            done += bytes.len();
        };
        self.each(std::iter::once(offset..end), ledger, |_, bytes| {
            copy(bytes);
            Ok::<(), Error>(())
        })?;
        Ok(done)
    }

    /// Reads ranges, all side by side. Those that are close to each other are read as one. Short at the end of the file.
    pub fn read_ranges(&self, ranges: &[Range<u64>], ledger: &Ledger) -> Result<Vec<Vec<u8>>> {
        let mut read: Vec<Vec<u8>> = ranges.iter().map(|_| Vec::new()).collect();
        self.visit_ranges(ranges, ledger, |at, part| {
            read[at].extend_from_slice(part);
            Ok(())
        })?;
        Ok(read)
    }

    /// The same for who has a place for the bytes: hands over the number of a range and what comes next of it. The parts of
    /// one range come in order; those of ranges that overlap or are close to each other take turns.
    pub fn visit_ranges<E: From<Error>>(
        &self,
        ranges: &[Range<u64>],
        ledger: &Ledger,
        mut take: impl FnMut(usize, &[u8]) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let mut order: Vec<usize> = (0..ranges.len()).filter(|&at| ranges[at].start < ranges[at].end).collect();
        order.sort_by_key(|&at| ranges[at].start);
        let mut merged: Vec<Range<u64>> = Vec::new();
        for &at in &order {
            let range = &ranges[at];
            match merged.last_mut() {
                Some(last) if range.start <= last.end.saturating_add(GAP_BYTES) => last.end = last.end.max(range.end),
                _ => merged.push(range.clone()),
            }
        }
        self.each(merged, ledger, |start, bytes| {
            let piece = start..start + bytes.len() as u64;
            // Those that begin behind the piece have nothing of it.
            for &at in order.iter().take_while(|&&at| ranges[at].start < piece.end) {
                let (from, to) = (ranges[at].start.max(piece.start), ranges[at].end.min(piece.end));
                if from < to {
                    let (from, to) = (from - piece.start, to - piece.start);
                    let part = &bytes[usize::try_from(from).unwrap_or(0)..usize::try_from(to).unwrap_or(0)];
                    ledger.moved(Hop::HostToHost, part.len());
                    take(at, part)?;
                }
            }
            Ok(())
        })
    }

    /// Hands over the pieces of ranges, in order, while as many are in flight as the window has room for.
    fn each<E: From<Error>>(
        &self,
        ranges: impl IntoIterator<Item = Range<u64>>,
        ledger: &Ledger,
        mut take: impl FnMut(u64, &[u8]) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let window = self.fs.inner.options.read_ahead_bytes as u64;
        let mut waiting: VecDeque<Request> = ranges.into_iter().flat_map(|range| self.requests(range)).collect();
        let mut in_flight: VecDeque<(Request, Pending<Reply>)> = VecDeque::new();
        let mut bytes = 0;
        loop {
            while let Some(request) = waiting.pop_front_if(|_| in_flight.is_empty() || bytes < window) {
                bytes += request.blocks.end - request.blocks.start;
                let pending = self.start(&request, ledger);
                in_flight.push_back((request, pending));
            }
            let Some((request, pending)) = in_flight.pop_front() else { return Ok(()) };
            bytes -= request.blocks.end - request.blocks.start;
            let reply = pending.wait();
            take(request.wanted.start, self.finish(&request, &reply, ledger)?)?;
        }
    }

    /// Reads a range from its beginning to its end, ahead of who reads. What is beyond the end of the file is left out.
    pub fn reader(&self, range: Range<u64>, ledger: Arc<Ledger>) -> Reader {
        self.cautious_reader(range, self.fs.inner.options.read_ahead_bytes as u64, ledger)
    }

    /// The same for one who may soon go elsewhere: asks for so many bytes at first, then for twice as many each time.
    pub fn cautious_reader(&self, range: Range<u64>, first_bytes: u64, ledger: Arc<Ledger>) -> Reader {
        let end = range.end.min(self.len);
        Reader {
            file: self.clone(),
            window: first_bytes.max(1),
            next: range.start,
            end,
            ahead: VecDeque::new(),
            current: Vec::new(),
            at: 0,
            ledger,
        }
    }
}

impl ReadAt for File {
    fn name(&self) -> &str {
        &self.path
    }

    fn hints(&self) -> IoHints {
        IoHints {
            path: crate::Path::Remote,
            alignment: 1,
            concurrency: 16,
            in_flight_bytes: self.fs.inner.options.read_ahead_bytes,
            coalesce_gap_bytes: usize::try_from(GAP_BYTES).unwrap_or(usize::MAX),
            max_request_bytes: usize::try_from(REQUEST_BYTES).unwrap_or(usize::MAX),
        }
    }

    fn len(&self) -> crate::Result<u64> {
        Ok(self.len)
    }

    fn try_read_at(&self, offset: u64, buf: &mut [u8], ledger: &Ledger) -> io::Result<usize> {
        Ok(self.read_into(offset, buf, ledger)?)
    }
}

/// A range of a file from its beginning to its end, read ahead by as much as [`super::FsOptions`] say.
#[derive(Debug)]
pub struct Reader {
    file: File,
    /// Bytes ahead of who reads, next time.
    window: u64,
    /// Where what was not asked for yet begins.
    next: u64,
    end: u64,
    ahead: VecDeque<(Request, Pending<Reply>)>,
    current: Vec<u8>,
    at: usize,
    ledger: Arc<Ledger>,
}

impl Reader {
    /// What comes next, in the buffer in which it came; `None`: that was all.
    pub fn next_piece(&mut self) -> Result<Option<Piece>> {
        if self.at == self.current.len() {
            self.refill()?;
        }
        let skip = std::mem::take(&mut self.at);
        let bytes = std::mem::take(&mut self.current);
        Ok((skip < bytes.len()).then_some(Piece { bytes, skip }))
    }

    fn refill(&mut self) -> Result<()> {
        let window = self.window;
        self.window = (window * 2).min(self.file.fs.inner.options.read_ahead_bytes as u64);
        let asked = self.ahead.front().map_or(self.next, |(request, _)| request.wanted.start);
        while self.next < self.end && (self.ahead.is_empty() || self.next - asked < window) {
            for request in
                self.file.requests(self.next..self.next.saturating_add(window.min(REQUEST_BYTES)).min(self.end))
            {
                self.next = request.wanted.end;
                let pending = self.file.start(&request, &self.ledger);
                self.ahead.push_back((request, pending));
            }
        }
        self.current.clear();
        self.at = 0;
        if let Some((request, pending)) = self.ahead.pop_front() {
            let reply = pending.wait();
            let wanted = self.file.finish(&request, &reply, &self.ledger)?.len();
            // The reply's own buffer, without a copy.
            self.current = reply?.bytes;
            self.current.truncate(request.skip + wanted);
            self.at = request.skip;
        }
        Ok(())
    }
}

/// Bytes of a file behind some that nobody asked for.
#[derive(Debug)]
pub struct Piece {
    /// All that was read.
    pub bytes: Vec<u8>,
    /// How many of them are to be left out.
    pub skip: usize,
}

impl io::Read for Reader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.at == self.current.len() && !buf.is_empty() {
            self.refill()?;
        }
        let n = buf.len().min(self.current.len() - self.at);
        buf[..n].copy_from_slice(&self.current[self.at..self.at + n]);
        self.at += n;
        self.ledger.moved(Hop::HostToHost, n);
        Ok(n)
    }
}
