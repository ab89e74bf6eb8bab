//! A queue that is kept as full as its device wants it, in transfers and in bytes.
//!
//! Invariant: what is in flight is at most [`Queue::depth`] transfers, and [`Queue::depth_bytes`] but for the last that
//! began.

use std::io;

use super::{Done, Queue, Transfer};

/// Counts the bytes in flight.
#[derive(Debug)]
pub(crate) struct Metered<B> {
    queue: Box<dyn Queue<B>>,
    bytes: usize,
}

impl<B> Metered<B> {
    pub fn new(queue: Box<dyn Queue<B>>) -> Self {
        Self { queue, bytes: 0 }
    }

    /// Whether another transfer would be of use.
    pub fn has_room(&self) -> bool {
        self.queue.in_flight() < self.queue.depth() && !self.is_busy()
    }

    /// Whether so much is in flight that the device would not be faster with more.
    pub fn is_busy(&self) -> bool {
        self.bytes >= self.queue.depth_bytes()
    }

    /// Whether nothing is in flight.
    pub fn is_idle(&self) -> bool {
        self.queue.in_flight() == 0
    }

    /// As [`Queue::submit`].
    pub fn submit(&mut self, transfer: Transfer<B>) {
        self.bytes += transfer.bytes;
        self.queue.submit(transfer);
    }

    /// As [`Queue::reap`], until one has come back.
    pub fn reap(&mut self, done: &mut Vec<Done<B>>) -> io::Result<()> {
        let before = done.len();
        let outcome = self.queue.reap(1, done);
        self.bytes -= done[before..].iter().map(|one| one.transfer.bytes).sum::<usize>();
        outcome
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::sync::atomic::Ordering::SeqCst;

    use super::*;
    use crate::{Allowance, Cut, Extent, LentBuf, Order, Path, ReadAhead, Reads, StreamOptions, StreamReader};

    const BYTES: usize = 8192;

    /// Keeps account of the most that was in flight; what it reads is whatever it is.
    #[derive(Debug)]
    struct Slow {
        flying: VecDeque<Transfer<LentBuf>>,
        most_bytes: Arc<AtomicUsize>,
    }

    impl Queue<LentBuf> for Slow {
        fn path(&self) -> Path {
            Path::Memory
        }

        fn depth(&self) -> usize {
            64
        }

        fn depth_bytes(&self) -> usize {
            20_000
        }

        fn in_flight(&self) -> usize {
            self.flying.len()
        }

        fn submit(&mut self, transfer: Transfer<LentBuf>) {
            self.flying.push_back(transfer);
            self.most_bytes.fetch_max(self.flying.iter().map(|transfer| transfer.bytes).sum(), SeqCst);
        }

        fn reap(&mut self, _: usize, done: &mut Vec<Done<LentBuf>>) -> io::Result<()> {
            // By halves, of which the second is begun again.
            done.extend(self.flying.pop_front().map(|transfer| {
                let moved = Ok(transfer.bytes.div_ceil(2).max(BYTES / 2));
                Done { transfer, moved }
            }));
            Ok(())
        }
    }

    #[test]
    fn no_more_is_in_flight_than_the_device_wants() {
        let extents: Vec<Extent> =
            (0..50).map(|n| Extent { file: 0, offset: (n * BYTES) as u64, bytes: BYTES }).collect();
        let start = || {
            let most_bytes = Arc::new(AtomicUsize::new(0));
            let queue: Box<dyn Queue<LentBuf>> =
                Box::new(Slow { flying: VecDeque::new(), most_bytes: Arc::clone(&most_bytes) });
            (vec![queue], most_bytes, Allowance::new(1 << 20))
        };
        let (queues, most_bytes, allowance) = start();
        let options = StreamOptions { request_bytes: BYTES, cut: Cut::Anywhere, gap_bytes: None, order: Order::Given };
        let reads = Reads { files: vec![0], queues, supply: Box::new(allowance) };
        let reader = StreamReader::start(vec!["slow".into()], &extents, options, vec![reads]);
        while reader.next().unwrap().is_some() {}
        assert_eq!(most_bytes.load(SeqCst), 3 * BYTES);
        let (queues, most_bytes, allowance) = start();
        let ahead = ReadAhead::start(queues, allowance.clone(), 0);
        ahead.ask(extents.iter().copied().enumerate());
        while allowance.take((1 << 20) - extents.len() * BYTES + 1).is_some() {
            std::thread::yield_now();
        }
        assert!(extents.iter().all(|extent| ahead.take(extent).is_some()));
        assert!(most_bytes.load(SeqCst) <= 3 * BYTES);
    }
}
