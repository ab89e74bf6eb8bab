//! A device that does not answer.

use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Condvar, Mutex};

use onehop_io::{BlockingQueue, Done, LentBuf, Path, Queue, Transfer};

/// A queue that does not answer until it is told to, and whose device is busy with a single transfer.
#[derive(Debug)]
pub struct Stuck {
    /// What answers.
    pub inner: BlockingQueue<LentBuf>,
    /// Whether it answers, and where it is told.
    pub gate: Arc<(Mutex<bool>, Condvar)>,
    /// Whether somebody waits for its answer.
    pub is_asked: Arc<AtomicBool>,
}

impl Queue<LentBuf> for Stuck {
    fn path(&self) -> Path {
        self.inner.path()
    }

    fn depth(&self) -> usize {
        self.inner.depth()
    }

    fn depth_bytes(&self) -> usize {
        1
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }

    fn submit(&mut self, transfer: Transfer<LentBuf>) {
        self.inner.submit(transfer);
    }

    fn reap(&mut self, at_least: usize, done: &mut Vec<Done<LentBuf>>) -> io::Result<()> {
        self.is_asked.store(true, SeqCst);
        let (answers, changed) = &*self.gate;
        drop(changed.wait_while(answers.lock().unwrap(), |answers| !*answers).unwrap());
        self.inner.reap(at_least, done)
    }
}
