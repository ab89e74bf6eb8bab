//! A simulated file, and the model of its state after a crash.
//!
//! [`SimFile`] behaves like a file and records its operations. [`SectorDurability`] keeps the
//! durable bytes apart. For each sector of 512 bytes written since the last fence, a crash leaves,
//! independently of all others: the durable version, any version written since, or garbage. That is
//! more than disks do in practice, but no more than they may do. Growth is durable on return, and a
//! crash within it leaves the old length or the new one.
//!
//! A fence may fail ([`SimFile::fail_fence`]). The bytes that it should have made durable have then
//! reached the device, or not, sector by sector. The program continues to read them. No later fence
//! writes them, since the system considers them written. Only [`settle`](Medium::settle) shows the
//! bytes of the device.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Domain, Granularity, Medium};
use crate::explore::{Candidate, Coverage, CrashImage, Durability, Event, Limits, Random, Recording, mix, word_hash};
use crate::{Error, Result};

const SECTOR_BYTES: usize = 512;
const SECTOR_WORDS: u64 = SECTOR_BYTES as u64 / 8;
/// The number of sectors that a program usually writes together.
const PAGE_SECTORS: u64 = 8;

type Sector = [u8; SECTOR_BYTES];

/// A file that records its operations.
#[derive(Debug)]
pub struct SimFile {
    recording: Recording,
    device: Mutex<Device>,
}

/// The state of the device, as far as it matters to a program that continues after a failure.
#[derive(Debug)]
struct Device {
    durable: CrashImage,
    /// The sectors that the next fence makes durable.
    pending: BTreeSet<u64>,
    fences: u64,
    /// The number of the fence that fails, and the random numbers that select the sectors it loses.
    failure: Option<(u64, Random)>,
    /// The sectors that a failed fence may have lost, and that were not written since.
    doubtful: BTreeSet<u64>,
}

impl SimFile {
    /// Creates a file that holds `image` and keeps a trace.
    #[must_use]
    pub fn recording(image: CrashImage) -> Self {
        Self::with(image, true)
    }

    /// Creates a file that holds `image`, without a trace.
    #[must_use]
    pub fn quiet(image: CrashImage) -> Self {
        Self::with(image, false)
    }

    fn with(image: CrashImage, with_trace: bool) -> Self {
        let device = Device {
            durable: image.clone(),
            pending: BTreeSet::new(),
            fences: 0,
            failure: None,
            doubtful: BTreeSet::new(),
        };
        Self { recording: Recording::new(image, with_trace), device: Mutex::new(device) }
    }

    /// Limits the file to `room` bytes.
    #[must_use]
    pub fn with_room(self, room: u64) -> Self {
        Self { recording: self.recording.with_room(room), ..self }
    }

    /// Makes fence number `fence`, from 1, fail. `seed` selects the sectors that it loses.
    pub fn fail_fence(&self, fence: u64, seed: u64) {
        self.device().failure = Some((fence, Random::new(seed)));
    }

    /// Returns the number of fences so far.
    pub fn fences(&self) -> u64 {
        self.device().fences
    }

    /// Returns the recording, and the bytes that the program sees.
    #[must_use]
    pub fn record(&self) -> &Recording {
        &self.recording
    }

    fn device(&self) -> MutexGuard<'_, Device> {
        self.device.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Medium for SimFile {
    fn name(&self) -> &str {
        "simulated file"
    }

    fn granularity(&self) -> Granularity {
        Granularity::Page
    }

    fn domain(&self) -> Domain {
        Domain::Device
    }

    fn len(&self) -> u64 {
        self.recording.len()
    }

    fn grow(&self, len: u64) -> Result<()> {
        self.recording.grow(self.name(), len)?;
        self.device().durable.set_len(len);
        Ok(())
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<()> {
        self.recording.read(self.name(), at, into)
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.recording.write(self.name(), at, bytes)?;
        let mut device = self.device();
        for sector in sectors(at, bytes.len()) {
            device.pending.insert(sector);
            device.doubtful.remove(&sector);
        }
        Ok(())
    }

    fn flush(&self, _at: u64, _len: usize) -> Result<()> {
        Ok(())
    }

    fn fence(&self) -> Result<()> {
        let mut guard = self.device();
        let device = &mut *guard;
        device.fences += 1;
        let pending = std::mem::take(&mut device.pending);
        let mut failure = device.failure.take_if(|failure| failure.0 == device.fences);
        let now = self.recording.now();
        for &sector in &pending {
            if failure.as_mut().is_none_or(|(_, random)| random.below(2) == 0) {
                device.durable.write(sector * SECTOR_BYTES as u64, &read_sector(&now, sector));
            }
        }
        if failure.is_some() {
            device.doubtful.extend(pending);
            self.recording.record(Event::FailedFence);
            return Err(Error::io("sync", self.name(), io::Error::from_raw_os_error(5)));
        }
        self.recording.record(Event::Fence);
        Ok(())
    }

    fn settle(&self) -> Result<()> {
        self.fence()?;
        let mut device = self.device();
        // In the trace, the device's bytes overwrite the doubtful ones: they are the valid ones
        // from now on.
        for sector in std::mem::take(&mut device.doubtful) {
            let durable = read_sector(&device.durable, sector);
            self.recording.record(Event::Write { at: sector * SECTOR_BYTES as u64, bytes: durable.to_vec() });
        }
        self.recording.record(Event::Fence);
        Ok(())
    }
}

/// The model: for each sector, one of several versions.
#[derive(Clone, Debug)]
pub struct SectorDurability {
    durable: CrashImage,
    /// The hash of `durable`.
    hash: u64,
    /// The sectors whose state after a crash is not determined.
    open: BTreeMap<u64, Versions>,
    /// The sectors that the last event wrote, with the number of versions that each had before.
    fresh: BTreeMap<u64, usize>,
    /// True if the last event allows an image that was not possible before, even if it wrote
    /// nothing.
    moved: bool,
}

/// The possible versions of a sector.
#[derive(Clone, Debug)]
struct Versions {
    /// The durable version first, then garbage, then the written versions, in that order. Each has
    /// its contribution to the hash.
    all: Vec<(Sector, u64)>,
    /// True if the next fence makes the last version durable.
    is_pending: bool,
}

impl SectorDurability {
    fn write(&mut self, at: u64, bytes: &[u8]) {
        for sector in sectors(at, bytes.len()) {
            let old = read_sector(&self.durable, sector);
            let versions =
                self.open.entry(sector).or_insert_with(|| Versions { all: vec![(old, 0)], is_pending: false });
            let before = versions.all.len();
            let mut new = versions.all[before - 1].0;
            let start = sector * SECTOR_BYTES as u64;
            for (i, byte) in new.iter_mut().enumerate() {
                if let Some(written) = (start + i as u64).checked_sub(at).and_then(|i| bytes.get(i as usize)) {
                    *byte = *written;
                }
            }
            let delta = |version: &Sector| hash_of(sector, version).wrapping_sub(hash_of(sector, &old));
            if before == 1 {
                let garbage = garbage(sector);
                versions.all.push((garbage, delta(&garbage)));
            }
            // A rewrite of the durable bytes adds only the garbage of a torn write.
            versions.all.push((new, delta(&new)));
            versions.is_pending = true;
            self.fresh.insert(sector, before);
        }
    }

    fn fence(&mut self) {
        let (durable, hash) = (&mut self.durable, &mut self.hash);
        self.open.retain(|sector, versions| {
            if let Some((newest, delta)) = versions.all.last().filter(|_| versions.is_pending) {
                durable.write(*sector * SECTOR_BYTES as u64, newest);
                *hash = hash.wrapping_add(*delta);
            }
            !versions.is_pending
        });
    }

    fn choices(&self) -> Vec<Choice<'_>> {
        self.open
            .iter()
            .map(|(&sector, versions)| {
                let fresh_from = self.fresh.get(&sector).copied().unwrap_or(usize::MAX);
                let same_as_old = versions.all.len() == 3 && versions.all[2].1 == 0;
                let count = if same_as_old { 2 } else { versions.all.len() };
                Choice { sector, versions: &versions.all, count, fresh_from }
            })
            .collect()
    }
}

impl Durability for SectorDurability {
    fn new(image: &CrashImage) -> Self {
        Self { durable: image.clone(), hash: image.hash(), open: BTreeMap::new(), fresh: BTreeMap::new(), moved: true }
    }

    fn apply(&mut self, event: &Event) {
        self.fresh.clear();
        self.moved = false;
        match event {
            Event::Write { at, bytes } => self.write(*at, bytes),
            Event::Flush { .. } => {}
            Event::Fence => self.fence(),
            Event::FailedFence => self.open.values_mut().for_each(|versions| versions.is_pending = false),
            Event::Grow { len } => {
                self.durable.set_len(*len);
                self.moved = true;
            }
            // Images that were possible before are judged by other rules now.
            Event::Mark(_) => self.moved = true,
        }
    }

    fn images(&self, limits: &Limits, random: &mut Random, visit: &mut dyn FnMut(&dyn Candidate)) -> Coverage {
        if self.fresh.is_empty() && !self.moved {
            return Coverage::Nothing;
        }
        let choices = self.choices();
        let total = choices.iter().try_fold(1_u64, |product, choice| product.checked_mul(choice.count as u64));
        let mut chosen = Chosen { model: self, choices: &choices, versions: vec![0; choices.len()] };
        if total.is_some_and(|total| total <= limits.exhaustive) {
            loop {
                chosen.offer(visit);
                if !chosen.advance() {
                    return Coverage::All;
                }
            }
        }
        chosen.pages(limits.exhaustive, visit);
        chosen.deviations(visit);
        for i in 0..limits.samples {
            for (version, choice) in chosen.versions.iter_mut().zip(&choices) {
                // Half of the samples have nearly all written sectors: most of a commit's sectors,
                // except one or two.
                let newest = i % 2 == 0 && random.below(choices.len() as u64) > 0;
                *version = if newest { choice.newest() } else { random.below(choice.count as u64) as usize };
            }
            chosen.offer(visit);
        }
        Coverage::Sample
    }
}

/// The possible versions of one sector.
struct Choice<'a> {
    sector: u64,
    versions: &'a [(Sector, u64)],
    /// The number of versions, from the first, that differ.
    count: usize,
    /// Versions from this index on are the last event's.
    fresh_from: usize,
}

impl Choice<'_> {
    fn newest(&self) -> usize {
        self.versions.len() - 1
    }
}

/// One version of each sector.
struct Chosen<'a> {
    model: &'a SectorDurability,
    choices: &'a [Choice<'a>],
    versions: Vec<usize>,
}

impl Chosen<'_> {
    /// Advances to the next combination, in the order of an odometer. Returns false after the last.
    fn advance(&mut self) -> bool {
        for (version, choice) in self.versions.iter_mut().zip(self.choices) {
            *version += 1;
            if *version < choice.count {
                return true;
            }
            *version = 0;
        }
        false
    }

    /// Visits all combinations of pages, each as it was or as it was last written, if there are no
    /// more than `most`.
    fn pages(&mut self, most: u64, visit: &mut dyn FnMut(&dyn Candidate)) {
        let mut pages: Vec<u64> = self.choices.iter().map(|choice| choice.sector / PAGE_SECTORS).collect();
        pages.dedup();
        if pages.len() >= 63 || 1 << pages.len() > most {
            return;
        }
        for subset in 0..1_u64 << pages.len() {
            for (version, choice) in self.versions.iter_mut().zip(self.choices) {
                let page = pages.partition_point(|page| *page < choice.sector / PAGE_SECTORS);
                *version = if subset >> page & 1 == 1 { choice.newest() } else { 0 };
            }
            self.offer(visit);
        }
    }

    /// Visits the images with none of the writes, with all of them, and those that differ from
    /// either in one sector.
    fn deviations(&mut self, visit: &mut dyn FnMut(&dyn Candidate)) {
        let choices = self.choices;
        for all in [false, true] {
            let extreme = |choice: &Choice<'_>| if all { choice.newest() } else { 0 };
            self.versions = choices.iter().map(extreme).collect();
            self.offer(visit);
            for (i, choice) in choices.iter().enumerate() {
                for version in 0..choice.count {
                    self.versions[i] = version;
                    self.offer(visit);
                }
                self.versions[i] = extreme(choice);
            }
        }
    }

    fn offer(&self, visit: &mut dyn FnMut(&dyn Candidate)) {
        let is_fresh = |(version, choice): (&usize, &Choice<'_>)| *version >= choice.fresh_from;
        if self.model.moved || self.versions.iter().zip(self.choices).any(is_fresh) {
            visit(self);
        }
    }
}

impl Candidate for Chosen<'_> {
    fn hash(&self) -> u64 {
        let deltas = self.choices.iter().zip(&self.versions).map(|(choice, version)| choice.versions[*version].1);
        // An image that is longer by zeros is a different one.
        deltas.fold(self.model.hash, u64::wrapping_add) ^ mix(self.model.durable.len())
    }

    fn build(&self) -> CrashImage {
        let mut image = self.model.durable.clone();
        for (choice, version) in self.choices.iter().zip(&self.versions) {
            if *version > 0 {
                image.write(choice.sector * SECTOR_BYTES as u64, &choice.versions[*version].0);
            }
        }
        image
    }
}

/// Returns the sectors that contain `len` bytes at `at`.
fn sectors(at: u64, len: usize) -> std::ops::Range<u64> {
    let sector = SECTOR_BYTES as u64;
    if len == 0 { 0..0 } else { at / sector..(at + len as u64).div_ceil(sector) }
}

fn read_sector(image: &CrashImage, sector: u64) -> Sector {
    let mut bytes = [0; SECTOR_BYTES];
    let at = sector * SECTOR_BYTES as u64;
    let len = SECTOR_BYTES.min(image.len().saturating_sub(at) as usize);
    image.read(at, &mut bytes[..len]);
    bytes
}

fn garbage(sector: u64) -> Sector {
    let mut bytes = [0; SECTOR_BYTES];
    for (i, word) in bytes.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&mix(sector << 16 | i as u64 | 1 << 60).to_le_bytes());
    }
    bytes
}

fn hash_of(sector: u64, bytes: &Sector) -> u64 {
    let words = bytes.as_chunks::<8>().0.iter().zip(sector * SECTOR_WORDS..);
    words.fold(0, |sum, (bytes, word)| sum.wrapping_add(word_hash(word, u64::from_le_bytes(*bytes))))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::explore::Progress;
    use crate::medium::conformance;

    #[test]
    fn a_simulated_file_conforms() {
        conformance::check(&SimFile::recording(CrashImage::new()));
    }

    fn empty() -> CrashImage {
        let mut empty = CrashImage::new();
        empty.set_len(8192);
        empty
    }

    /// Returns the first bytes of sectors 0, 1 and 2 in the images that a crash at the very end can
    /// leave; 255 is garbage.
    fn left_by(run: impl Fn(&SimFile)) -> BTreeSet<[u8; 3]> {
        let medium = SimFile::recording(empty());
        run(&medium);
        medium.record().record(Event::Mark(Progress::default()));
        let mut model = SectorDurability::new(&empty());
        medium.record().take_trace().iter().for_each(|event| model.apply(event));
        let mut left = BTreeSet::new();
        let coverage = model.images(&Limits::default(), &mut Random::new(1), &mut |candidate| {
            let image = candidate.build();
            assert_eq!(image.hash() ^ mix(8192), candidate.hash());
            left.insert([0, 1, 2].map(|sector| {
                let bytes = read_sector(&image, sector);
                if bytes == garbage(sector) { 255 } else { bytes[0] }
            }));
        });
        assert_eq!(coverage, Coverage::All);
        left
    }

    #[test]
    fn each_sector_is_old_or_new_or_garbage_until_it_is_fenced() {
        let one = |medium: &SimFile| medium.write(0, &[1; 512]).unwrap();
        assert_eq!(left_by(one), BTreeSet::from([[0; 3], [1, 0, 0], [255, 0, 0]]));
        let two = |medium: &SimFile| {
            medium.write(0, &[1; 512]).unwrap();
            medium.write(0, &[2; 1024]).unwrap();
        };
        assert_eq!(left_by(two).len(), 4 * 3);
        let fenced = |medium: &SimFile| {
            medium.write(0, &[1; 512]).unwrap();
            medium.fence().unwrap();
            medium.write(512, &[2; 512]).unwrap();
        };
        assert_eq!(left_by(fenced), BTreeSet::from([[1, 0, 0], [1, 2, 0], [1, 255, 0]]));
    }

    #[test]
    fn what_a_failed_fence_lost_no_later_fence_brings_back_and_settling_shows() {
        let lost = |medium: &SimFile| {
            medium.fail_fence(1, 7);
            medium.write(0, &[1; 1024]).unwrap();
            assert!(medium.fence().is_err());
            medium.write(1024, &[3; 512]).unwrap();
            medium.fence().unwrap();
            let mut byte = [0];
            medium.read(0, &mut byte).unwrap();
            assert_eq!(byte, [1], "the program sees what may be lost");
        };
        let left = left_by(lost);
        assert_eq!(left.len(), 9);
        assert!(left.iter().all(|left| left[2] == 3));
        let settled = |medium: &SimFile| {
            lost(medium);
            medium.settle().unwrap();
        };
        assert_eq!(left_by(settled).len(), 1);
    }
}
