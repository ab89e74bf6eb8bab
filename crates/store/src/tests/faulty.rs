//! A backend that waits, counts and fails on purpose.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use crate::backend::{Backend, BackendStats, Batch, Image, Lines, PageNo};
use crate::medium::Domain;
use crate::pages::Volatile;
use crate::{Error, Options, Result, Store};

#[derive(Debug, Default)]
pub(crate) struct Faulty {
    inner: Volatile,
    pub(crate) commits: AtomicU64,
    pub(crate) spills: AtomicU64,
    /// 0: none, 1: the next commit finds no space, 2: it fails half-way, 3: it panics.
    pub(crate) fault: AtomicU32,
    /// The number of commits that pass before it.
    pub(crate) passing: AtomicU64,
    pub(crate) commit_micros: AtomicU64,
    /// While it is shut, commits wait.
    gate: Gate,
}

#[derive(Debug, Default)]
struct Gate {
    is_shut: Mutex<bool>,
    opened: Condvar,
}

impl Faulty {
    pub(crate) fn store(options: &Options) -> (Arc<Self>, Store) {
        let backend = Arc::new(Self::default());
        let store = Store::on(Arc::clone(&backend) as Arc<dyn Backend>, options, None).unwrap();
        (backend, store)
    }

    pub(crate) fn shut(&self) {
        *self.gate.is_shut.lock().unwrap() = true;
    }

    pub(crate) fn open(&self) {
        *self.gate.is_shut.lock().unwrap() = false;
        self.gate.opened.notify_all();
    }
}

impl Backend for Faulty {
    fn name(&self) -> &str {
        "faulty"
    }

    fn domain(&self) -> Domain {
        Domain::Process
    }

    fn pages(&self) -> Vec<PageNo> {
        self.inner.pages()
    }

    fn read(&self, page: PageNo, into: &mut Image) -> Result<()> {
        self.inner.read(page, into)
    }

    fn commit(&self, batch: &Batch) -> Result<u64> {
        self.commits.fetch_add(1, SeqCst);
        let mut is_shut = self.gate.is_shut.lock().unwrap();
        while *is_shut {
            is_shut = self.gate.opened.wait(is_shut).unwrap();
        }
        drop(is_shut);
        std::thread::sleep(Duration::from_micros(self.commit_micros.load(SeqCst)));
        if self.passing.fetch_update(SeqCst, SeqCst, |passing| passing.checked_sub(1)).is_ok() {
            return self.inner.commit(batch);
        }
        match self.fault.swap(0, SeqCst) {
            0 => self.inner.commit(batch),
            1 => Err(Error::Full { object: "faulty".into(), reason: "on purpose".into() }),
            3 => panic!("on purpose"),
            _ => Err(Error::io("sync", "faulty", std::io::Error::other("on purpose"))),
        }
    }

    fn spill(&self, page: PageNo, image: &Image, lines: Lines) -> Result<()> {
        self.spills.fetch_add(1, SeqCst);
        self.inner.spill(page, image, lines)
    }

    fn read_spilled(&self, page: PageNo, into: &mut Image) -> Result<()> {
        self.inner.read_spilled(page, into)
    }

    fn discard_spilled(&self) {
        self.inner.discard_spilled();
    }

    fn checkpoint(&self) -> Result<()> {
        Ok(())
    }

    fn maintain(&self) -> Result<bool> {
        Ok(false)
    }

    fn check(&self, found: &mut dyn FnMut(String)) -> Result<()> {
        self.inner.check(found)
    }

    fn stats(&self) -> BackendStats {
        self.inner.stats()
    }
}
