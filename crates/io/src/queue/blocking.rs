//! A queue of one: a transfer is carried out when it is submitted, by the file's own calls. What is in flight at once
//! is up to threads, of which each has a queue.

use std::io;
use std::ops::DerefMut;
use std::sync::Arc;

use super::{Direction, Done, Queue, Transfer};
use crate::{Ledger, Path, ReadAt, WriteAt};

/// Reads and writes files by `pread`, `pwrite`, or whatever they offer.
#[derive(Debug)]
pub struct BlockingQueue<B> {
    files: Files,
    ledger: Arc<Ledger>,
    done: Option<Done<B>>,
}

#[derive(Debug)]
enum Files {
    Read(Vec<Arc<dyn ReadAt>>),
    Write(Vec<Arc<dyn WriteAt>>),
}

impl<B> BlockingQueue<B> {
    /// For reading.
    pub fn reader(files: Vec<Arc<dyn ReadAt>>, ledger: Arc<Ledger>) -> Self {
        Self { files: Files::Read(files), ledger, done: None }
    }

    /// For reading and writing.
    pub fn writer(files: Vec<Arc<dyn WriteAt>>, ledger: Arc<Ledger>) -> Self {
        Self { files: Files::Write(files), ledger, done: None }
    }
}

impl<B: DerefMut<Target = [u8]> + Send + std::fmt::Debug> Queue<B> for BlockingQueue<B> {
    fn path(&self) -> Path {
        let first = match &self.files {
            Files::Read(files) => files.first().map(|file| file.hints().path),
            Files::Write(files) => files.first().map(|file| file.hints().path),
        };
        first.unwrap_or(Path::Memory)
    }

    fn depth(&self) -> usize {
        1
    }

    fn in_flight(&self) -> usize {
        usize::from(self.done.is_some())
    }

    fn submit(&mut self, mut transfer: Transfer<B>) {
        assert!(self.done.is_none(), "a queue of one is full");
        let (offset, ledger) = (transfer.offset, &self.ledger);
        let bytes = &mut transfer.buffer[transfer.at..transfer.at + transfer.bytes];
        let moved = match (transfer.direction, &self.files) {
            (Direction::Read, Files::Read(files)) => files[transfer.file].try_read_at(offset, bytes, ledger),
            (Direction::Read, Files::Write(files)) => files[transfer.file].try_read_at(offset, bytes, ledger),
            (Direction::Write, Files::Write(files)) => files[transfer.file].try_write_at(offset, bytes, ledger),
            (Direction::Write, Files::Read(_)) => Err(io::ErrorKind::PermissionDenied.into()),
        };
        self.done = Some(Done { transfer, moved });
    }

    fn reap(&mut self, _at_least: usize, done: &mut Vec<Done<B>>) -> io::Result<()> {
        done.extend(self.done.take());
        Ok(())
    }
}
