//! Chunks that wait to be sent, while the next ones are made.
//!
//! Whoever has made a chunk sends it, if that need not wait. If it must, the chunk gets a [seat](super::turns::Turn::seat) and a thread
//! waits with it, as long as there is any. So a file has one thread at most, a small one none, and chunks are sent in their order.
//! Where no seat is free, who has made the chunk waits. Of a file that is given up a chunk that is being sent still goes.

use std::collections::VecDeque;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use super::super::Result;
use super::send::{Chunk, Sender};
use super::turns::Turn;

#[derive(Debug, Default)]
struct Queue {
    chunks: VecDeque<Chunk>,
    /// The thread takes no more of them.
    has_ended: bool,
}

/// Takes the chunks with it, however the thread ends. One that has found no more of them has said so before.
struct Ends<'a>(&'a Mutex<Queue>);

#[derive(Debug)]
struct Beside {
    queue: Arc<Mutex<Queue>>,
    thread: JoinHandle<()>,
}

/// A file's chunks on their way to the cluster.
#[derive(Debug)]
pub(super) struct Outbox {
    sender: Arc<Mutex<Sender>>,
    turn: Arc<Turn>,
    beside: Option<Beside>,
}

fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

fn alone(sender: &Mutex<Sender>) -> MutexGuard<'_, Sender> {
    // What was being sent is lost, and nobody may take the file for whole.
    sender.lock().unwrap_or_else(|_| resume_unwind(Box::new("a thread has panicked while it sent a file's chunks")))
}

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        let mut queue = lock(self.0);
        queue.has_ended = true;
        queue.chunks.clear();
    }
}

/// Sends what there is; what fails, the sender knows.
fn send_all(sender: &Mutex<Sender>, queue: &Mutex<Queue>) {
    let _ends = Ends(queue);
    let next = || {
        let mut queue = lock(queue);
        let next = queue.chunks.pop_front();
        queue.has_ended = next.is_none();
        next
    };
    while let Some(chunk) = next() {
        if alone(sender).send(chunk).is_err() {
            break;
        }
    }
}

impl Outbox {
    pub fn new(sender: Sender, turn: Arc<Turn>) -> Self {
        Self { sender: Arc::new(Mutex::new(sender)), turn, beside: None }
    }

    /// What has failed, as far as it is known without waiting: nothing more is sent then.
    pub fn failed(&mut self) -> Result<()> {
        if self.beside.as_ref().is_some_and(|beside| !lock(&beside.queue).has_ended) {
            return Ok(());
        }
        self.sender().failed()
    }

    /// Sends a chunk, or has it wait.
    pub fn send(&mut self, mut chunk: Chunk) -> Result<()> {
        if self.beside.is_some() {
            chunk.seat = self.turn.seat();
        }
        if let Some(beside) = self.beside.as_ref().filter(|_| chunk.seat.is_some()) {
            let mut queue = lock(&beside.queue);
            if !queue.has_ended {
                queue.chunks.push_back(chunk);
                return Ok(());
            }
        }
        let Some(mut chunk) = self.sender().try_send(chunk)? else { return Ok(()) };
        chunk.seat = chunk.seat.or_else(|| self.turn.seat());
        match chunk.seat {
            Some(_) => self.begin(chunk),
            None => self.sender().send(chunk),
        }
    }

    /// Has a thread send this, and what comes meanwhile.
    fn begin(&mut self, first: Chunk) -> Result<()> {
        let queue = Arc::new(Mutex::new(Queue { chunks: VecDeque::from([first]), has_ended: false }));
        let (sender, chunks) = (Arc::clone(&self.sender), Arc::clone(&queue));
        match thread::Builder::new().name("onehop-send".into()).spawn(move || send_all(&sender, &chunks)) {
            Ok(thread) => {
                self.beside = Some(Beside { queue, thread });
                Ok(())
            }
            // There is none to be had.
            Err(_) => {
                send_all(&self.sender, &queue);
                self.failed()
            }
        }
    }

    /// The sender, once nothing waits any more.
    pub fn sender(&mut self) -> MutexGuard<'_, Sender> {
        if let Some(beside) = self.beside.take() {
            // A panic goes on where somebody sees it.
            beside.thread.join().unwrap_or_else(|why| resume_unwind(why));
        }
        alone(&self.sender)
    }

    /// What waits is not sent.
    pub fn discard(&self) {
        if let Some(beside) = &self.beside {
            lock(&beside.queue).chunks.clear();
        }
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.discard();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Condvar;
    use std::time::Duration;

    use super::super::super::{Code, Done, Objects, ReadOp, Reply, SimCluster, SimFault, SimPool, WriteOp};
    use super::super::send::{Place, Target};
    use super::super::tests::{CHUNK, World, clean, content, tree};
    use super::super::{FileSystem, FsOptions, Id, Replace, SimClock};
    use super::*;

    /// Answers to nothing that is written until it is told to.
    #[derive(Debug)]
    struct Slow {
        pool: Arc<SimPool>,
        state: Mutex<SlowState>,
        changed: Condvar,
    }

    #[derive(Default)]
    struct SlowState {
        held: Vec<(String, WriteOp, Done<()>)>,
        is_open: bool,
    }

    impl std::fmt::Debug for SlowState {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "{} held", self.held.len())
        }
    }

    impl Objects for Slow {
        fn name(&self) -> &str {
            self.pool.name()
        }

        fn start_write(&self, object: &str, op: WriteOp, done: Done<()>) {
            let mut state = self.state.lock().unwrap();
            if state.is_open {
                drop(state);
                return self.pool.start_write(object, op, done);
            }
            state.held.push((object.into(), op, done));
            self.changed.notify_all();
        }

        fn start_read(&self, object: &str, op: ReadOp, done: Done<Reply>) {
            self.pool.start_read(object, op, done);
        }

        fn list(&self) -> Result<Vec<String>> {
            self.pool.list()
        }
    }

    impl Slow {
        /// Waits until so many writes wait for an answer, and no more have come; whether they have.
        fn holds(&self, count: usize) -> bool {
            let (state, timeout) = (self.state.lock().unwrap(), Duration::from_secs(60));
            let (state, _) = self.changed.wait_timeout_while(state, timeout, |state| state.held.len() < count).unwrap();
            state.held.len() == count
        }

        fn open(&self) {
            let held = {
                let mut state = self.state.lock().unwrap();
                state.is_open = true;
                std::mem::take(&mut state.held)
            };
            for (object, op, done) in held {
                self.pool.start_write(&object, op, done);
            }
        }
    }

    /// A window of four chunks, and as many that may wait.
    fn options() -> FsOptions {
        let window_bytes = 4 * CHUNK;
        FsOptions { chunk_bytes: CHUNK as u32, window_bytes, waiting_bytes: window_bytes, ..FsOptions::default() }
    }

    #[test]
    fn who_waits_for_its_turn_makes_its_next_chunks() {
        let client = SimCluster::default().client();
        let (names, pool) = (client.replicated("meta"), client.replicated("data"));
        let slow = Arc::new(Slow { pool, state: Mutex::default(), changed: Condvar::new() });
        let fs = FileSystem::create_on(names, slow.clone(), "data", Arc::<SimClock>::default(), options()).unwrap();
        let mut first = fs.create_file("/first", Replace::Never, Arc::default()).unwrap();
        first.append(&content("first", 4 * CHUNK)).unwrap();
        assert!(slow.holds(4));
        // It has two in flight. Whatever it waits for, it does not wait for that here.
        let (made, is_made) = std::sync::mpsc::channel();
        let second = {
            let mut file = fs.create_file("/second", Replace::Never, Arc::default()).unwrap();
            thread::spawn(move || {
                file.append(&content("second", 4 * CHUNK)).unwrap();
                made.send(()).unwrap();
                file.append(&content("second", 9 * CHUNK + 1)[4 * CHUNK..]).unwrap();
                file.close()
            })
        };
        let (is_made, holds) = (is_made.recv_timeout(Duration::from_secs(60)).is_ok(), slow.holds(6));
        slow.open();
        assert!(is_made && holds);
        first.close().unwrap();
        second.join().unwrap().unwrap();
        assert_eq!(tree(&fs)["/first"], Some(content("first", 4 * CHUNK)));
        assert_eq!(tree(&fs)["/second"], Some(content("second", 9 * CHUNK + 1)));
    }

    #[test]
    fn a_file_that_lacks_a_chunk_gets_no_name() {
        let (world, fs) = World::new();
        let place = Place::Directory(Id::ROOT);
        let (replace, hint, seen) = (Replace::Never, Vec::new(), None);
        let target = Target { path: "/f".into(), place, name: "f".into(), replace, hint, seen };
        let mut sender = Sender::new(&fs, target, Arc::new(fs.inner.turns.join()), Arc::default()).unwrap();
        assert!(sender.finish(None, 1).unwrap_err().to_string().contains("was not sent"));
        sender.clean_up();
        assert!(fs.stat("/f").is_err());
        clean(&world, &world.recover(), "a chunk is missing");
    }

    #[test]
    fn what_fails_while_chunks_wait_leaves_nothing_and_is_told() {
        // The directory is listed, which takes two; the intent, nine chunks, the name. There is nothing else that could fail.
        const OPERATIONS: u64 = 2 + 1 + 9 + 1;
        for number in 0..=OPERATIONS {
            for is_closed in [true, false] {
                let (world, _) = World::new();
                let (client, fs) = world.client_with(options());
                let mut file = fs.create_file("/f", Replace::Never, Arc::default()).unwrap();
                client.fail_at(number, SimFault::Refuse(Code(libc::EIO)));
                let mut outcome = file.append(&content("f", 9 * CHUNK - 1));
                if is_closed {
                    outcome = file.close().map(drop);
                } else {
                    file.abort();
                }
                let fs = world.recover();
                let is_there = fs.stat("/f").is_ok();
                assert_eq!(is_there, is_closed && outcome.is_ok(), "{number}");
                assert_eq!(is_there, is_closed && number == OPERATIONS, "{number}");
                if is_there {
                    assert_eq!(tree(&fs)["/f"], Some(content("f", 9 * CHUNK - 1)));
                }
                clean(&world, &fs, &format!("{number}"));
            }
        }
    }
}
