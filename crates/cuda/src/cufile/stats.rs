//! Transfer path of bytes, derived from cuFile's counters.
//!
//! cuFile counts transfers by their path: PCIe peer-to-peer and nvidia-fs (direct), or POSIX calls
//! through its own host buffers ("compat mode"). A [`Verdict`] is a difference of two [`Counts`],
//! taken before and after. The counters belong to the process. Other concurrent uses of cuFile are
//! counted, too. They can make a verdict less certain, but never *direct* instead of *compat*.
//!
//! Level 3 of the statistics has a record for each GPU. Its offset differs between versions, so the
//! record is located by the GPU's UUID, with which it begins. If the UUID is not found, the known
//! layout of 1.15 is used for that version.

use std::fmt;

use super::sys;

/// Version of cuFile whose record layout is known.
const KNOWN_VERSION: i32 = 1150;

/// Words before the number of GPUs, and words of a GPU's record, in that version.
const HEAD_WORDS: usize = 128;
const GPU_WORDS: usize = 31;
const MOST_GPUS: usize = 16;

/// Word offsets of the batch counters, the same in all versions so far: enqueued as POSIX calls;
/// submitted through nvidia-fs; submitted peer to peer.
const BATCH_POSIX: usize = 34;
const BATCH_NVFS: usize = 40;
const BATCH_P2P: usize = 42;

/// Word offsets in a GPU's record: the counters of reads, and of writes.
const P2P: [usize; 2] = [7, 20];
const NVFS: [usize; 2] = [8, 21];
const POSIX: [usize; 2] = [9, 22];

/// Numbers of transfers by path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Transfers by PCIe peer-to-peer.
    pub p2p: u64,
    /// Transfers through nvidia-fs.
    pub nvfs: u64,
    /// Transfers by POSIX calls and a copy.
    pub posix: u64,
}

impl Counts {
    /// Reads the counters from the structure of `cuFileGetStatsL3`; `None` if the record of the GPU
    /// is not found.
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

    /// Returns the difference to earlier counters.
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

/// Observed path of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effective {
    /// From storage into device memory.
    Direct,
    /// Through cuFile's buffers in host memory.
    Compat,
    /// Some direct, some in compat mode.
    Mixed,
    /// Through pinned buffers of this crate in host memory.
    Staged,
    /// Unknown.
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

/// Observed path of bytes, and the evidence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Observed path.
    pub effective: Effective,
    /// Evidence, or the reason why there is none.
    pub because: String,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.effective, self.because)
    }
}

impl Verdict {
    /// Returns the verdict for the transfers between two counts. `can_be_direct` is true if cuFile
    /// has a direct mechanism.
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

    /// Returns the verdict for transfers through buffers of this crate.
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
        // The record of another GPU, in an unknown layout.
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
