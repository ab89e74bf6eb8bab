//! `cuFileRead` and `cuFileWrite`, each from a thread that waits for it.
//!
//! Threads take transfers from one channel and give them back on another. A queue that is dropped closes the first and
//! waits for its threads, and so for what is in flight.

use std::io;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use onehop_io::{Direction, Done, Ledger, Path, Queue, Transfer};

use super::{check_transfer, count, path_of};
use crate::{CufileFile, DeviceBuf};

/// As many threads as transfers may be in flight.
#[derive(Debug)]
pub struct CufileSyncQueue {
    /// `None` when it is over.
    jobs: Option<Sender<Transfer<DeviceBuf>>>,
    done: Receiver<Done<DeviceBuf>>,
    threads: Vec<JoinHandle<()>>,
    files: usize,
    in_flight: usize,
    path: Path,
}

impl CufileSyncQueue {
    /// For `depth` transfers at once, at least one.
    ///
    /// # Errors
    /// No further thread.
    pub fn new(files: Vec<Arc<CufileFile>>, depth: usize, ledger: Arc<Ledger>) -> io::Result<Self> {
        let (path, files) = (path_of(&files), Arc::<[_]>::from(files));
        let (jobs, waiting) = mpsc::channel();
        let (give, done) = mpsc::channel();
        let waiting = Arc::new(Mutex::new(waiting));
        let mut queue = Self { jobs: Some(jobs), done, threads: Vec::new(), files: files.len(), in_flight: 0, path };
        for _ in 0..depth.max(1) {
            let (files, waiting, give, ledger) =
                (Arc::clone(&files), Arc::clone(&waiting), give.clone(), Arc::clone(&ledger));
            let work = move || work(&files, &waiting, &give, &ledger, path);
            queue.threads.push(thread::Builder::new().name("onehop-cufile".into()).spawn(work)?);
        }
        Ok(queue)
    }
}

fn work(
    files: &[Arc<CufileFile>],
    waiting: &Mutex<Receiver<Transfer<DeviceBuf>>>,
    give: &Sender<Done<DeviceBuf>>,
    ledger: &Ledger,
    path: Path,
) {
    loop {
        let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(mut transfer) = next else { return };
        let file = &files[transfer.file];
        let (offset, at, bytes) = (transfer.offset, transfer.at, transfer.bytes);
        let moved = match transfer.direction {
            Direction::Read => file.read(offset, &mut transfer.buffer, at, bytes),
            Direction::Write => file.write(offset, &transfer.buffer, at, bytes),
        };
        if let Ok(n) = moved {
            count(ledger, transfer.direction, path, n);
        }
        if give.send(Done { transfer, moved }).is_err() {
            return;
        }
    }
}

impl Queue<DeviceBuf> for CufileSyncQueue {
    fn path(&self) -> Path {
        self.path
    }

    fn depth(&self) -> usize {
        self.threads.len()
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn submit(&mut self, transfer: Transfer<DeviceBuf>) {
        assert!(self.in_flight < self.threads.len(), "the queue is full");
        check_transfer(&transfer, self.files);
        let sent = self.jobs.as_ref().is_some_and(|jobs| jobs.send(transfer).is_ok());
        assert!(sent, "the threads of the queue live as long as it does");
        self.in_flight += 1;
    }

    fn reap(&mut self, at_least: usize, done: &mut Vec<Done<DeviceBuf>>) -> io::Result<()> {
        let mut wanted = at_least.min(self.in_flight);
        loop {
            let next = match wanted {
                0 => self.done.try_recv().ok(),
                _ => Some(self.done.recv().map_err(|_| io::Error::other("a thread of the queue has panicked"))?),
            };
            let Some(next) = next else { return Ok(()) };
            done.push(next);
            self.in_flight -= 1;
            wanted = wanted.saturating_sub(1);
        }
    }
}

impl Drop for CufileSyncQueue {
    fn drop(&mut self) {
        self.jobs = None;
        for thread in self.threads.drain(..) {
            // One that has panicked is over, too.
            let _ = thread.join();
        }
    }
}
