//! Which way the bytes took, from what cuFile counted.
//!
//! cuFile counts transfers by the way they were made: PCIe peer-to-peer and nvidia-fs (direct), or POSIX calls through
//! its own host buffers ("compat mode"). A [`Verdict`] is a difference of two [`Counts`], taken before and after. The
//! counters are the process's: what else uses cuFile meanwhile is counted, too, and can make a verdict less certain,
//! never *direct* instead of *compat*.
//!
//! Level 3 of the statistics has a record for each GPU. Where it lies changed from version to version, so it is looked
//! for by the GPU's UUID, with which it begins; the layout of 1.15 is known and serves where the UUID is not found.

use std::fmt;

use super::sys;

/// cuFile's version with a known place of the GPUs' records.
const KNOWN_VERSION: i32 = 1150;

/// Words before the number of GPUs, and of a GPU's record, in that version.
const HEAD_WORDS: usize = 128;
const GPU_WORDS: usize = 31;
const MOST_GPUS: usize = 16;

/// Words of batch counters from the start, the same in all versions so far: enqueued as POSIX calls; submitted through
/// nvidia-fs; submitted peer to peer.
const BATCH_POSIX: usize = 34;
const BATCH_NVFS: usize = 40;
const BATCH_P2P: usize = 42;

/// Words of a GPU's record: the counters of reads, and of writes.
const P2P: [usize; 2] = [7, 20];
const NVFS: [usize; 2] = [8, 21];
const POSIX: [usize; 2] = [9, 22];

/// Transfers, by way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// By PCIe peer-to-peer.
    pub p2p: u64,
    /// Through nvidia-fs.
    pub nvfs: u64,
    /// By POSIX calls and a copy.
    pub posix: u64,
}

impl Counts {
    /// From what `cuFileGetStatsL3` filled in; `None` where the record of the GPU is not to be found.
    pub(super) fn read(words: &[u64; sys::STATS_WORDS], uuid: &[u8; 16], version: i32) -> Option<Self> {
        let half = |at: usize| u64::from_ne_bytes(std::array::from_fn(|i| uuid[at + i]));
        let id = [half(0), half(8)];
        let by_id = (id != [0, 0]).then(|| words[HEAD_WORDS..].windows(2).position(|pair| pair == id)).flatten();
        let first = HEAD_WORDS + 1;
        let records = match (by_id, version) {
            (Some(at), _) if HEAD_WORDS + at + GPU_WORDS <= words.len() => vec![HEAD_WORDS + at],
            (_, KNOWN_VERSION) => {
                let gpus = (words[HEAD_WORDS] & 0xffff_ffff) as usize;
                (gpus <= MOST_GPUS).then(|| (0..gpus).map(|gpu| first + gpu * GPU_WORDS).collect())?
            }
            _ => return None,
        };
        let sum = |fields: [usize; 2]| -> u64 {
            records.iter().flat_map(|at| fields.map(|field| words[at + field])).fold(0, u64::wrapping_add)
        };
        Some(Self {
            p2p: sum(P2P).wrapping_add(words[BATCH_P2P]),
            nvfs: sum(NVFS).wrapping_add(words[BATCH_NVFS]),
            posix: sum(POSIX).wrapping_add(words[BATCH_POSIX]),
        })
    }

    /// What was counted since.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            p2p: self.p2p.saturating_sub(before.p2p),
            nvfs: self.nvfs.saturating_sub(before.nvfs),
            posix: self.posix.saturating_sub(before.posix),
        }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} peer to peer, {} nvidia-fs, {} POSIX", self.p2p, self.nvfs, self.posix)
    }
}

/// The way that bytes really took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effective {
    /// From storage into device memory.
    Direct,
    /// Through cuFile's buffers in host memory.
    Compat,
    /// Some this way, some that way.
    Mixed,
    /// Through our own pinned buffers in host memory.
    Staged,
    /// It is not known.
    NotVerified,
}

impl fmt::Display for Effective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Effective::Direct => "direct",
            Effective::Compat => "compat",
            Effective::Mixed => "mixed",
            Effective::Staged => "staged",
            Effective::NotVerified => "not verified",
        })
    }
}

/// The way that bytes took, and how we know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The way.
    pub effective: Effective,
    /// How we know, or why we do not.
    pub because: String,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.effective, self.because)
    }
}

impl Verdict {
    /// Of transfers between two counts. `can_be_direct` is whether cuFile has anything to go direct by.
    pub(super) fn of(counted: Result<Counts, String>, can_be_direct: bool) -> Self {
        let neither = "cuFile reports neither nvidia-fs nor peer-to-peer";
        let (effective, because) = match counted {
            Ok(counts) => match (counts.p2p > 0 || counts.nvfs > 0, counts.posix > 0) {
                (false, true) => (Effective::Compat, format!("cuFile counted {counts}")),
                (true, false) => (Effective::Direct, format!("cuFile counted {counts}")),
                (true, true) => (Effective::Mixed, format!("cuFile counted {counts}")),
                (false, false) if !can_be_direct => (Effective::Compat, format!("{neither}; it counted no transfers")),
                (false, false) => (Effective::NotVerified, "cuFile counted no transfers".into()),
            },
            Err(why) if !can_be_direct => (Effective::Compat, format!("{neither}; {why}")),
            Err(why) => (Effective::NotVerified, why),
        };
        Self { effective, because }
    }

    /// For the way through buffers of our own.
    pub fn staged() -> Self {
        Self { effective: Effective::Staged, because: "read and copied by onehop itself".into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(at: usize, uuid: &[u8; 16]) -> Box<[u64; sys::STATS_WORDS]> {
        let mut words = Box::new([0; sys::STATS_WORDS]);
        for (i, half) in uuid.as_chunks::<8>().0.iter().enumerate() {
            words[at + i] = u64::from_ne_bytes(*half);
        }
        (words[at + 7], words[at + 8], words[at + 9], words[at + 22]) = (1, 2, 3, 40);
        words
    }

    #[test]
    fn the_record_is_found_by_its_gpu_wherever_it_lies() {
        let uuid = std::array::from_fn(|i| i as u8 + 1);
        for at in [129, 129 + 31, 143] {
            let found = Counts::read(&words(at, &uuid), &uuid, 1170);
            assert_eq!(found, Some(Counts { p2p: 1, nvfs: 2, posix: 43 }), "at {at}");
        }
        let mut known = words(129, &uuid);
        known[128] = 1;
        assert_eq!(Counts::read(&known, &[9; 16], 1150), Some(Counts { p2p: 1, nvfs: 2, posix: 43 }));
        // Another GPU's, in a layout that is not known.
        assert_eq!(Counts::read(&known, &[9; 16], 1170), None);
    }

    #[test]
    fn what_is_not_known_is_never_direct() {
        let effective = |counted: Result<Counts, String>, can: bool| Verdict::of(counted, can).effective;
        let counts = |p2p, nvfs, posix| Ok(Counts { p2p, nvfs, posix });
        assert_eq!(effective(counts(0, 5, 0), true), Effective::Direct);
        assert_eq!(effective(counts(5, 0, 0), true), Effective::Direct);
        assert_eq!(effective(counts(0, 0, 5), true), Effective::Compat);
        assert_eq!(effective(counts(1, 0, 5), true), Effective::Mixed);
        assert_eq!(effective(counts(0, 0, 0), true), Effective::NotVerified);
        assert_eq!(effective(counts(0, 0, 0), false), Effective::Compat);
        assert_eq!(effective(Err("no statistics".into()), true), Effective::NotVerified);
        assert_eq!(effective(Err("no statistics".into()), false), Effective::Compat);
    }
}
