//! Versions of pages in memory: the newest ones, those that live snapshots read, and recently read
//! ones.
//!
//! A page has an entry or none. Without an entry, the backend's version is the only one that can be
//! requested. An entry is a list of versions, newest first, each with the commit that made it. A
//! snapshot of commit `c` reads the first version that is not younger than `c`.
//!
//! Invariants:
//! - Before the backend writes or frees a page, the page's entry holds the old version and the new
//!   one. So no reader requests a page from the backend that a running commit writes, and a request
//!   to the backend returns the only version.
//! - A page is read from the backend under its shard's lock. No commit that writes the page can
//!   begin meanwhile, since the installation of its versions needs the lock.
//! - An entry is evicted only if it holds one version, and that version is durable.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, PoisonError, RwLock};

use crate::backend::{Backend, Image, PageNo, SLOT_BYTES};
use crate::{Error, Result};

/// The commit number with which the writer reads the newest version of a page.
pub(crate) const NEWEST: u64 = u64::MAX;
const SHARDS: usize = 64;
/// The number of entries that an insertion examines to find one to evict. If all of them are in
/// use, the cache exceeds its bound for a while rather than being slow.
const EVICTION_STEPS: usize = 16;

/// Verifies the bytes of a page before they are used. The error describes the damage.
pub(crate) type Verify = fn(&Image) -> std::result::Result<(), String>;

/// The contents of a version.
#[derive(Clone, Debug)]
pub(crate) enum Held {
    Image(Arc<Image>),
    /// The version is on the medium. The transaction that made it was too large to keep it in
    /// memory.
    OnMedium,
    /// The page was not in use.
    Freed,
}

#[derive(Debug)]
struct Version {
    since: u64,
    held: Held,
}

#[derive(Debug)]
struct Entry {
    page: PageNo,
    newest: Version,
    older: Vec<Version>,
    was_used: AtomicBool,
}

impl Entry {
    /// Returns the version that a snapshot of commit `at` reads.
    fn version(&self, at: u64) -> Option<&Version> {
        if self.newest.since <= at {
            return Some(&self.newest);
        }
        self.older.iter().find(|version| version.since <= at)
    }

    fn version_mut(&mut self, at: u64) -> Option<&mut Version> {
        if self.newest.since <= at {
            return Some(&mut self.newest);
        }
        self.older.iter_mut().find(|version| version.since <= at)
    }
}

#[derive(Debug, Default)]
struct Shard {
    index: PageMap<usize>,
    entries: Vec<Entry>,
    hand: usize,
}

impl Shard {
    fn entry(&self, page: PageNo) -> Option<&Entry> {
        self.index.get(&page).map(|&at| &self.entries[at])
    }

    fn entry_mut(&mut self, page: PageNo) -> Option<&mut Entry> {
        self.index.get(&page).map(|&at| &mut self.entries[at])
    }

    fn add(&mut self, page: PageNo, newest: Version, older: Vec<Version>) {
        self.index.insert(page, self.entries.len());
        self.entries.push(Entry { page, newest, older, was_used: AtomicBool::new(false) });
    }

    fn remove(&mut self, page: PageNo) {
        let Some(at) = self.index.remove(&page) else { return };
        self.entries.swap_remove(at);
        if let Some(moved) = self.entries.get(at) {
            self.index.insert(moved.page, at);
        }
    }
}

/// A map by page.
pub(super) type PageMap<T> = HashMap<PageNo, T, BuildHasherDefault<PageHasher>>;

/// Page numbers are dense: one multiplication spreads them.
#[derive(Debug, Default)]
pub(crate) struct PageHasher(u64);

impl Hasher for PageHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32(u32::from(byte));
        }
    }

    fn write_u32(&mut self, page: u32) {
        // The table takes its tag from the upper bits and the bucket from the lower ones.
        let product = (self.0 ^ u64::from(page)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ product >> 32;
    }
}

/// Counters of the cache since the opening of the store.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CacheStats {
    pub(crate) misses: u64,
    pub(crate) pages: u64,
}

/// Versions of pages over a backend.
#[derive(Debug)]
pub(crate) struct Cache {
    backend: Arc<dyn Backend>,
    verify: Verify,
    shards: Box<[RwLock<Shard>]>,
    shard_pages: usize,
    /// The last commit known to be durable. Younger versions are not evicted.
    durable: AtomicU64,
    misses: AtomicU64,
}

impl Cache {
    pub(crate) fn new(backend: Arc<dyn Backend>, bytes: usize, verify: Verify) -> Self {
        let shards = (0..SHARDS).map(|_| RwLock::default()).collect();
        let shard_pages = (bytes / SLOT_BYTES / SHARDS).max(1);
        Self { backend, verify, shards, shard_pages, durable: AtomicU64::new(0), misses: AtomicU64::new(0) }
    }

    fn shard(&self, page: PageNo) -> &RwLock<Shard> {
        &self.shards[page.0 as usize % SHARDS]
    }

    /// Returns the version of `page` in a snapshot of commit `at`, or `None` if a version that old
    /// was discarded.
    pub(crate) fn get(&self, page: PageNo, at: u64) -> Result<Option<Arc<Image>>> {
        {
            let shard = self.shard(page).read().unwrap_or_else(PoisonError::into_inner);
            if let Some(entry) = shard.entry(page) {
                match entry.version(at).map(|version| &version.held) {
                    None => return Ok(None),
                    Some(Held::Image(image)) => {
                        if !entry.was_used.load(Relaxed) {
                            entry.was_used.store(true, Relaxed);
                        }
                        return Ok(Some(Arc::clone(image)));
                    }
                    Some(Held::Freed) => return Err(self.not_in_use(page)),
                    Some(Held::OnMedium) => {}
                }
            }
        }
        self.load(page, at)
    }

    fn load(&self, page: PageNo, at: u64) -> Result<Option<Arc<Image>>> {
        let mut shard = self.shard(page).write().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have been faster, or a commit.
        let is_there = match shard.entry(page) {
            None => false,
            Some(entry) => match entry.version(at).map(|version| &version.held) {
                None => return Ok(None),
                Some(Held::Image(image)) => return Ok(Some(Arc::clone(image))),
                Some(Held::Freed) => return Err(self.not_in_use(page)),
                Some(Held::OnMedium) => true,
            },
        };
        self.misses.fetch_add(1, Relaxed);
        let mut image = Arc::new(Image::zeroed());
        self.backend.read(page, Arc::make_mut(&mut image))?;
        (self.verify)(&image).map_err(|wrong| Error::corrupt(self.backend.name(), format!("{page}: {wrong}")))?;
        if is_there {
            if let Some(version) = shard.entry_mut(page).and_then(|entry| entry.version_mut(at)) {
                version.held = Held::Image(Arc::clone(&image));
            }
        } else {
            // The version counts as made by commit 0: a snapshot that is older than it would imply
            // an entry.
            shard.add(page, Version { since: 0, held: Held::Image(Arc::clone(&image)) }, Vec::new());
            self.evict(&mut shard);
        }
        Ok(Some(image))
    }

    fn not_in_use(&self, page: PageNo) -> Error {
        Error::corrupt(self.backend.name(), format!("{page} is referred to and not in use"))
    }

    fn evict(&self, shard: &mut Shard) {
        let durable = self.durable.load(SeqCst);
        for _ in 0..EVICTION_STEPS {
            if shard.entries.len() <= self.shard_pages {
                return;
            }
            shard.hand = (shard.hand + 1) % shard.entries.len();
            let entry = &mut shard.entries[shard.hand];
            let is_needed = !entry.older.is_empty() || entry.newest.since > durable;
            if !is_needed && !std::mem::take(entry.was_used.get_mut()) {
                let page = entry.page;
                shard.remove(page);
            }
        }
    }

    /// Installs the version of `page` that commit `since` made. `before` is the version that it
    /// replaces, if there was one and it is known. Returns true if [`prune`](Self::prune) will have
    /// a version to drop after the last snapshot before `since` has ended.
    pub(crate) fn install(&self, page: PageNo, since: u64, held: Held, before: Option<Arc<Image>>) -> bool {
        let mut shard = self.shard(page).write().unwrap_or_else(PoisonError::into_inner);
        let is_image = matches!(held, Held::Image(_));
        let newest = Version { since, held };
        if let Some(entry) = shard.entry_mut(page) {
            let mut replaced = std::mem::replace(&mut entry.newest, newest);
            if let (Held::OnMedium, Some(image)) = (&replaced.held, before) {
                replaced.held = Held::Image(image);
            }
            // A version on the medium is about to be overwritten there.
            if !matches!(replaced.held, Held::OnMedium) {
                entry.older.insert(0, replaced);
            }
            return !is_image || !entry.older.is_empty();
        }
        let older: Vec<_> = before.map(|image| Version { since: 0, held: Held::Image(image) }).into_iter().collect();
        let is_prunable = !is_image || !older.is_empty();
        shard.add(page, newest, older);
        self.evict(&mut shard);
        is_prunable
    }

    /// Drops the versions of `page` that no snapshot of commit `oldest` or later reads.
    pub(crate) fn prune(&self, page: PageNo, oldest: u64) {
        let mut shard = self.shard(page).write().unwrap_or_else(PoisonError::into_inner);
        let Some(entry) = shard.entry_mut(page) else { return };
        if entry.newest.since <= oldest {
            entry.older = Vec::new();
            if !matches!(entry.newest.held, Held::Image(_)) {
                shard.remove(page);
            }
        } else if let Some(last) = entry.older.iter().position(|version| version.since <= oldest) {
            entry.older.truncate(last + 1);
        }
    }

    /// Rolls back the versions of `page` that commits after `durable` made.
    pub(crate) fn roll_back(&self, page: PageNo, durable: u64) {
        let mut shard = self.shard(page).write().unwrap_or_else(PoisonError::into_inner);
        let Some(entry) = shard.entry_mut(page) else { return };
        if entry.newest.since <= durable {
            return;
        }
        entry.older.retain(|version| version.since <= durable);
        if entry.older.is_empty() {
            shard.remove(page);
        } else {
            entry.newest = entry.older.remove(0);
        }
    }

    /// Marks commits up to `commit` as durable: their pages may be evicted.
    pub(crate) fn set_durable(&self, commit: u64) {
        self.durable.store(commit, SeqCst);
    }

    pub(crate) fn stats(&self) -> CacheStats {
        let pages = |shard: &RwLock<Shard>| shard.read().unwrap_or_else(PoisonError::into_inner).entries.len() as u64;
        CacheStats { misses: self.misses.load(Relaxed), pages: self.shards.iter().map(pages).sum() }
    }
}
