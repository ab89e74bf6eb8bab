//! Queue over `cuFileRead` and `cuFileWrite`, each from a thread that waits for it.
//!
//! A queue of depth one uses its caller's thread, and executes a transfer when it is submitted.
//! Otherwise threads take transfers from one channel and return them on another. Dropping the queue
//! closes the first channel and waits for the threads, and therefore for the transfers in flight.

use std::io;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use onehop_io::{Direction, Done, Ledger, Path, Queue, Transfer};

use super::{check_transfer, count, path_of};
use crate::{CufileFile, DeviceBuf};

/// Queue with one thread for each transfer in flight.
#[derive(Debug)]
pub struct CufileSyncQueue {
    calls: Arc<Calls>,
    crew: Crew,
    in_flight: usize,
}

/// Threads that make the calls.
#[derive(Debug)]
enum Crew {
    /// The submitting thread, with its completed transfer.
    Caller(Option<Done<DeviceBuf>>),
    Threads {
        /// `None` once the queue is dropped.
        jobs: Option<Sender<Transfer<DeviceBuf>>>,
        done: Receiver<Done<DeviceBuf>>,
        threads: Vec<JoinHandle<()>>,
    },
}

/// State that the calls need.
#[derive(Debug)]
struct Calls {
    files: Vec<Arc<CufileFile>>,
    ledger: Arc<Ledger>,
    path: Path,
}

impl Calls {
    fn make(&self, mut transfer: Transfer<DeviceBuf>) -> Done<DeviceBuf> {
        let file = &self.files[transfer.file];
        let (offset, at, bytes) = (transfer.offset, transfer.at, transfer.bytes);
        let moved = match transfer.direction {
            Direction::Read => file.read(offset, &mut transfer.buffer, at, bytes),
            Direction::Write => file.write(offset, &transfer.buffer, at, bytes),
        };
        if let Ok(n) = moved {
            count(&self.ledger, transfer.direction, self.path, n);
        }
        Done { transfer, moved }
    }
}

impl CufileSyncQueue {
    /// Creates a queue for `depth` concurrent transfers, at least one.
    ///
    /// # Errors
    /// Returns an error if no further thread can be started.
    pub fn new(files: Vec<Arc<CufileFile>>, depth: usize, ledger: Arc<Ledger>) -> io::Result<Self> {
        let calls = Arc::new(Calls { path: path_of(&files), files, ledger });
        if depth <= 1 {
            return Ok(Self { calls, crew: Crew::Caller(None), in_flight: 0 });
        }
        let (jobs, waiting) = mpsc::channel();
        let (give, done) = mpsc::channel();
        let waiting = Arc::new(Mutex::new(waiting));
        let mut threads = Vec::with_capacity(depth);
        for _ in 0..depth {
            let (calls, waiting, give) = (Arc::clone(&calls), Arc::clone(&waiting), give.clone());
            let work = move || work(&calls, &waiting, &give);
            // If this thread cannot be started, the earlier ones end with the channel.
            threads.push(thread::Builder::new().name("onehop-cufile".into()).spawn(work)?);
        }
        Ok(Self { calls, crew: Crew::Threads { jobs: Some(jobs), done, threads }, in_flight: 0 })
    }
}

fn work(calls: &Calls, waiting: &Mutex<Receiver<Transfer<DeviceBuf>>>, give: &Sender<Done<DeviceBuf>>) {
    loop {
        let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(transfer) = next else { return };
        if give.send(calls.make(transfer)).is_err() {
            return;
        }
    }
}

impl Queue<DeviceBuf> for CufileSyncQueue {
    fn path(&self) -> Path {
        self.calls.path
    }

    fn depth(&self) -> usize {
        match &self.crew {
            Crew::Caller(_) => 1,
            Crew::Threads { threads, .. } => threads.len(),
        }
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn submit(&mut self, transfer: Transfer<DeviceBuf>) {
        assert!(self.in_flight < self.depth(), "the queue is full");
        check_transfer(&transfer, self.calls.files.len());
        match &mut self.crew {
            Crew::Caller(came) => *came = Some(self.calls.make(transfer)),
            Crew::Threads { jobs, .. } => {
                let sent = jobs.as_ref().is_some_and(|jobs| jobs.send(transfer).is_ok());
                assert!(sent, "the threads of the queue live as long as it does");
            }
        }
        self.in_flight += 1;
    }

    fn reap(&mut self, at_least: usize, done: &mut Vec<Done<DeviceBuf>>) -> io::Result<()> {
        let mut wanted = at_least.min(self.in_flight);
        loop {
            let next = match &mut self.crew {
                Crew::Caller(came) => came.take(),
                Crew::Threads { done: came, .. } if wanted == 0 => came.try_recv().ok(),
                Crew::Threads { done: came, .. } => {
                    Some(came.recv().map_err(|_| io::Error::other("a thread of the queue has panicked"))?)
                }
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
        if let Crew::Threads { jobs, threads, .. } = &mut self.crew {
            *jobs = None;
            for thread in threads.drain(..) {
                // A thread that has panicked has ended, too.
                let _ = thread.join();
            }
        }
    }
}
