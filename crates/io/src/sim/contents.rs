//! The contents of a simulated disk: what is volatile, what is durable, and what a crash leaves of the difference.
//!
//! Files and names are shared between copies, so that a copy for every operation costs little.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::CrashImage;
use super::bytes::{Bytes, SECTOR_BYTES};
use crate::faulty::mix;

/// The number of a folder's name, which leads to no file.
const FOLDER: usize = usize::MAX;

#[derive(Clone, Debug, Default)]
struct Inode {
    now: Bytes,
    durable: Bytes,
    /// Sectors that were written since the last sync, with the bytes that they had between writes.
    dirty: BTreeMap<usize, Vec<Arc<[u8; SECTOR_BYTES]>>>,
    /// Sectors that a failed sync has lost: reads see their bytes, and no later sync writes them.
    stale: BTreeSet<usize>,
    /// The length was changed since the last sync.
    is_resized: bool,
}

/// Files by name, volatile and durable.
#[derive(Clone, Debug, Default)]
pub(super) struct Contents {
    inodes: Vec<Arc<Inode>>,
    /// Full path to inode; names of folders end in '/'.
    names: Arc<BTreeMap<String, usize>>,
    durable_names: Arc<BTreeMap<String, usize>>,
    /// New names of files that were renamed since the folder was synced, with the old ones.
    renamed: Arc<BTreeMap<String, String>>,
    /// Names whose change a failed sync of their folder has lost: no later sync makes it durable.
    stale_names: Arc<BTreeSet<String>>,
}

fn sectors(at: usize, len: usize) -> std::ops::Range<usize> {
    at / SECTOR_BYTES..(at + len).div_ceil(SECTOR_BYTES)
}

/// Whether a name is in the folder `prefix`. A folder's own name is its parent's to make durable.
fn is_in(prefix: &str, name: &str) -> bool {
    name.strip_prefix(prefix).is_some_and(|rest| !rest.is_empty() && !rest.trim_end_matches('/').contains('/'))
}

impl Contents {
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.keys().map(String::as_str)
    }

    pub fn find(&self, name: &str) -> Option<usize> {
        self.names.get(name).copied()
    }

    pub fn len(&self, inode: usize) -> usize {
        self.inodes[inode].now.len()
    }

    pub fn read(&self, inode: usize, at: usize, into: &mut [u8]) -> usize {
        self.inodes[inode].now.read(at, into)
    }

    pub fn write(&mut self, inode: usize, at: usize, bytes: &[u8]) {
        let inode = Arc::make_mut(&mut self.inodes[inode]);
        inode.is_resized |= at + bytes.len() > inode.now.len();
        for sector in sectors(at, bytes.len()) {
            inode.stale.remove(&sector);
            match inode.dirty.get_mut(&sector) {
                Some(versions) => versions.push(Arc::new(inode.now.sector(sector))),
                None => drop(inode.dirty.insert(sector, Vec::new())),
            }
        }
        inode.now.write(at, bytes);
    }

    pub fn sync(&mut self, inode: usize) {
        let inode = Arc::make_mut(&mut self.inodes[inode]);
        if inode.stale.is_empty() {
            inode.durable = inode.now.clone();
        } else {
            inode.durable.set_len(inode.now.len());
            for sector in inode.dirty.keys() {
                inode.durable.put_sector(*sector, &inode.now.sector(*sector));
            }
        }
        inode.dirty.clear();
        inode.is_resized = false;
    }

    /// A sync that fails: some sectors are durable by `seed`. The system forgets that the others are to be written.
    pub fn fail_sync(&mut self, inode: usize, seed: u64) {
        let inode = Arc::make_mut(&mut self.inodes[inode]);
        let is_resized = std::mem::take(&mut inode.is_resized);
        if is_resized && mix(seed) & 1 == 1 {
            inode.durable.set_len(inode.now.len());
        }
        for sector in std::mem::take(&mut inode.dirty).into_keys() {
            if mix(seed ^ sector as u64) & 1 == 1 {
                inode.durable.put_sector(sector, &inode.now.sector(sector));
            } else {
                inode.stale.insert(sector);
            }
        }
    }

    pub fn create(&mut self, name: &str) -> usize {
        self.inodes.push(Arc::default());
        let inode = self.inodes.len() - 1;
        self.put_name(name, inode);
        inode
    }

    pub fn put_folder(&mut self, name: &str) {
        self.put_name(name, FOLDER);
    }

    fn put_name(&mut self, name: &str, inode: usize) {
        self.forget_stale(name);
        if self.renamed.contains_key(name) {
            Arc::make_mut(&mut self.renamed).remove(name);
        }
        Arc::make_mut(&mut self.names).insert(name.to_string(), inode);
    }

    fn forget_stale(&mut self, name: &str) {
        if self.stale_names.contains(name) {
            Arc::make_mut(&mut self.stale_names).remove(name);
        }
    }

    /// Removes a name; whether there was one.
    pub fn remove(&mut self, name: &str) -> bool {
        self.forget_stale(name);
        Arc::make_mut(&mut self.names).remove(name).is_some()
    }

    /// Renames a file; whether there was one.
    pub fn rename(&mut self, from: &str, to: &str) -> bool {
        let Some(inode) = self.find(from) else { return false };
        self.remove(from);
        self.put_name(to, inode);
        Arc::make_mut(&mut self.renamed).insert(to.to_string(), from.to_string());
        true
    }

    pub fn sync_names(&mut self, prefix: &str) {
        let is_due = |name: &str| is_in(prefix, name) && !self.stale_names.contains(name);
        let durable = Arc::make_mut(&mut self.durable_names);
        durable.retain(|name, _| !is_due(name));
        durable.extend(self.names.iter().filter(|(name, _)| is_due(name)).map(|(name, inode)| (name.clone(), *inode)));
        if self.renamed.keys().any(|to| is_in(prefix, to)) {
            Arc::make_mut(&mut self.renamed).retain(|to, _| !is_in(prefix, to));
        }
    }

    /// A sync of names that fails: some changes are durable by `seed`, and the others no later sync makes so.
    pub fn fail_sync_names(&mut self, prefix: &str, seed: u64) {
        let both: BTreeSet<&String> = self.names.keys().chain(self.durable_names.keys()).collect();
        let changed = both
            .into_iter()
            .filter(|name| is_in(prefix, name) && self.names.get(*name) != self.durable_names.get(*name));
        let (kept, lost): (Vec<String>, Vec<String>) = changed
            .cloned()
            .enumerate()
            .map(|(index, name)| (mix(seed ^ index as u64) & 1 == 1, name))
            .fold((Vec::new(), Vec::new()), |(mut kept, mut lost), (is_kept, name)| {
                if is_kept {
                    kept.push(name)
                } else {
                    lost.push(name)
                }
                (kept, lost)
            });
        let durable = Arc::make_mut(&mut self.durable_names);
        for name in kept {
            match self.names.get(&name) {
                Some(inode) => drop(durable.insert(name, *inode)),
                None => drop(durable.remove(&name)),
            }
        }
        Arc::make_mut(&mut self.stale_names).extend(lost);
    }

    /// A hash of all names and bytes that a process sees.
    pub fn hash(&self) -> u64 {
        self.names.iter().fold(0, |hash, (name, inode)| {
            let name = name.bytes().fold(hash, |hash, byte| mix(hash ^ u64::from(byte)));
            mix(name ^ self.inodes.get(*inode).map_or(1, |inode| inode.now.hash()))
        })
    }

    /// The contents after the process has died, and the machine has not: the system's memory is as it was, but for the sectors
    /// that a failed sync has lost. Those are read from the device again.
    pub fn after_kill(&self) -> Self {
        let mut left = self.clone();
        for inode in left.inodes.iter_mut().filter(|inode| !inode.stale.is_empty()) {
            let inode = Arc::make_mut(inode);
            for sector in std::mem::take(&mut inode.stale) {
                inode.now.put_sector(sector, &inode.durable.sector(sector));
            }
        }
        left
    }

    /// The contents after a crash of the machine.
    pub fn after_crash(&self, image: CrashImage) -> Self {
        let mut left = Self::default();
        let names = self.surviving_names(image);
        let used: BTreeSet<usize> = names.values().copied().collect();
        left.inodes = (0..self.inodes.len())
            .map(|index| match used.contains(&index) {
                true => {
                    let bytes = self.inodes[index].surviving(image, index as u64);
                    Arc::new(Inode { now: bytes.clone(), durable: bytes, ..Inode::default() })
                }
                false => Arc::default(),
            })
            .collect();
        left.names = Arc::new(names);
        left.durable_names = Arc::clone(&left.names);
        left
    }

    fn surviving_names(&self, image: CrashImage) -> BTreeMap<String, usize> {
        let all: BTreeSet<&String> = self.names.keys().chain(self.durable_names.keys()).collect();
        let mut left = BTreeMap::new();
        for (index, name) in all.into_iter().enumerate() {
            let keeps_new = !self.stale_names.contains(name)
                && match image {
                    CrashImage::Durable => false,
                    CrashImage::Everything => true,
                    CrashImage::Random(seed) | CrashImage::Garbled(seed) => mix(seed ^ (index as u64) << 17) & 1 == 1,
                };
            let names = if keeps_new { &self.names } else { &self.durable_names };
            if let Some(inode) = names.get(name) {
                left.insert(name.clone(), *inode);
            }
        }
        // A rename is one change: its old name does not go before the new one is there.
        for (to, from) in self.renamed.iter() {
            let inode = self.names.get(to).copied();
            if inode.is_some() && left.get(to).copied() != inode && self.durable_names.get(from).copied() == inode {
                left.extend(inode.map(|inode| (from.clone(), inode)));
            }
        }
        let folders: BTreeSet<String> = left.keys().filter(|name| name.ends_with('/')).cloned().collect();
        left.retain(|name, _| match name.split_once('/') {
            Some((folder, rest)) => rest.is_empty() || folders.contains(&format!("{folder}/")),
            None => true,
        });
        left
    }
}

impl Inode {
    fn surviving(&self, image: CrashImage, salt: u64) -> Bytes {
        let seed = match image {
            CrashImage::Durable => return self.durable.clone(),
            CrashImage::Everything if self.stale.is_empty() => return self.now.clone(),
            CrashImage::Everything => None,
            CrashImage::Random(seed) | CrashImage::Garbled(seed) => Some(seed ^ mix(salt)),
        };
        let dice = |n: u64| seed.map(|seed| mix(seed ^ n));
        let mut left = self.durable.clone();
        if self.is_resized {
            let (short, long) = (left.len().min(self.now.len()), left.len().max(self.now.len()));
            left.set_len(dice(u64::MAX).map_or(self.now.len(), |dice| short + dice as usize % (long - short + 1)));
        }
        for (sector, versions) in &self.dirty {
            // What is left is the old sector, the new one, or one that it was in between.
            let Some(dice) = dice(*sector as u64) else {
                left.put_sector(*sector, &self.now.sector(*sector));
                continue;
            };
            let is_garbage = matches!(image, CrashImage::Garbled(_)) && dice >> 8 & 7 == 0;
            if is_garbage {
                let mut garbage = self.now.sector(*sector);
                garbage.iter_mut().enumerate().for_each(|(i, byte)| *byte ^= mix(dice ^ i as u64) as u8);
                left.put_sector(*sector, &garbage);
            } else if dice & 1 == 1 {
                left.put_sector(*sector, &self.now.sector(*sector));
            } else if let Some(version) = versions.get((dice >> 1) as usize % (versions.len() + 1)) {
                left.put_sector(*sector, version);
            }
        }
        left
    }
}
