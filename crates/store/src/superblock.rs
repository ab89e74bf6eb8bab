//! The first thing on a medium: what it is, and where to begin.
//!
//! Two copies, at 0 and at 4,096, of one sector each. A new one is written over the older of the two, and when that is durable
//! over the other: a crash finds one whole copy at any time, and afterwards a damaged one does not bring an old state back,
//! since both say the same. Nothing that the old one names may be used again before both are durable. The one with the greater
//! `sequence` counts. A copy whose checksum is wrong is as good as none, and is never "repaired" by giving it a fresh
//! checksum: that would bless what a crash has torn.
//!
//! ```text
//!   0  magic     8 bytes        32  uuid      16 bytes
//!   8  version   u32            48  sequence  u64
//!  12  layout    u32            56  body      448 bytes, the layout's own
//!  16  requires  u64           504  zeros
//!  24  allows    u64           508  crc32c    u32, of bytes 0 .. 508
//! ```
//! `requires`: features that a reader must know. `allows`: features that a reader may not know, and a writer must.

use crate::bytes::{u32_at, u64_at};
use crate::medium::Medium;
use crate::mutant::skips;
use crate::simulation;
use crate::{Error, Result};

const MAGIC: [u8; 8] = *b"1hopOSP\0";
const VERSION: u32 = 1;
/// Bytes of a copy.
pub(crate) const SECTOR_BYTES: usize = 512;
const COPIES: [u64; 2] = [0, 4096];
/// Bytes of the layout's own part.
pub(crate) const BODY_BYTES: usize = 448;
/// No store lives to count so many commits or checkpoints: counting on from there could overflow.
pub(crate) const MOST_COUNTED: u64 = 1 << 62;
/// Where the rest of the medium begins.
pub(crate) const SUPERBLOCKS_END: u64 = 8192;

/// How pages lie on the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Pairs of slots and a bitmap of lines: memory.
    Lines,
    /// Whole pages, each written to a free slot: files.
    Flips,
}

/// What is read from, and written to, the copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub(crate) layout: Layout,
    pub(crate) uuid: [u8; 16],
    pub(crate) sequence: u64,
    pub(crate) body: [u8; BODY_BYTES],
}

impl Superblock {
    /// The newer of the two copies.
    ///
    /// # Errors
    /// [`Error::Unknown`] if this is no store, or one of features unknown here; [`Error::Corrupt`] if it is one and neither copy is
    /// whole.
    pub(crate) fn read(medium: &dyn Medium) -> Result<Self> {
        let mut newest: Option<Self> = None;
        let mut is_ours = false;
        for at in COPIES {
            if medium.len() < at + SECTOR_BYTES as u64 {
                continue;
            }
            let mut sector = [0; SECTOR_BYTES];
            medium.read(at, &mut sector)?;
            is_ours |= sector[..8] == MAGIC;
            if sector[..8] != MAGIC || !is_whole(&sector) {
                continue;
            }
            let copy = Self::decode(medium.name(), &sector)?;
            if newest.as_ref().is_none_or(|newest| copy.sequence > newest.sequence) {
                newest = Some(copy);
            }
        }
        match newest {
            Some(superblock) => Ok(superblock),
            None if is_ours => Err(Error::corrupt(medium.name(), "neither copy of its superblock is whole")),
            None => Err(Error::Unknown { object: medium.name().into(), reason: "it is not a store".into() }),
        }
    }

    /// Whether both copies are byte for byte the same. If not, the last write was cut short, by a crash or by a failed fence; in
    /// the second case the older copy may be the only one that is durable, and must not be the next to be written over.
    pub(crate) fn copies_agree(medium: &dyn Medium) -> Result<bool> {
        let mut copies = [[0; SECTOR_BYTES]; 2];
        for (copy, at) in copies.iter_mut().zip(COPIES) {
            medium.read(at, copy)?;
        }
        Ok(copies[0] == copies[1])
    }

    /// Whether the medium still has this one.
    pub(crate) fn is_on(&self, medium: &dyn Medium) -> Result<bool> {
        let mut sector = [0; SECTOR_BYTES];
        medium.read(COPIES[0], &mut sector)?;
        Ok(sector == self.encode())
    }

    /// Makes this the superblock, durably, with the next sequence number.
    pub(crate) fn write(&mut self, medium: &dyn Medium) -> Result<()> {
        self.sequence += 1;
        let sector = self.encode();
        let older = (self.sequence % 2) as usize;
        for at in [COPIES[older], COPIES[1 - older]] {
            medium.write(at, &sector)?;
            if !skips("superblock.flush") {
                medium.flush(at, SECTOR_BYTES)?;
            }
            if !skips("superblock.fence") {
                medium.fence()?;
            }
        }
        Ok(())
    }

    fn encode(&self) -> [u8; SECTOR_BYTES] {
        let mut sector = [0; SECTOR_BYTES];
        sector[..8].copy_from_slice(&MAGIC);
        sector[8..12].copy_from_slice(&VERSION.to_le_bytes());
        let layout = match self.layout {
            Layout::Lines => 1_u32,
            Layout::Flips => 2,
        };
        sector[12..16].copy_from_slice(&layout.to_le_bytes());
        sector[32..48].copy_from_slice(&self.uuid);
        sector[48..56].copy_from_slice(&self.sequence.to_le_bytes());
        sector[56..56 + BODY_BYTES].copy_from_slice(&self.body);
        let checksum = crc32c::crc32c(&sector[..508]);
        sector[508..].copy_from_slice(&checksum.to_le_bytes());
        sector
    }

    fn decode(object: &str, sector: &[u8; SECTOR_BYTES]) -> Result<Self> {
        let unknown = |reason: String| Error::Unknown { object: object.into(), reason };
        let version = u32_at(sector, 8);
        if version != VERSION {
            return Err(unknown(format!("its format is version {version}, and this program knows {VERSION}")));
        }
        let (requires, allows) = (u64_at(sector, 16), u64_at(sector, 24));
        if requires != 0 || allows != 0 {
            return Err(unknown(format!(
                "it uses features ({requires:#x}, {allows:#x}) that this program does not know"
            )));
        }
        let sequence = u64_at(sector, 48);
        if sequence >= MOST_COUNTED {
            return Err(unknown(format!("it was written {sequence} times, which cannot be")));
        }
        let layout = match u32_at(sector, 12) {
            1 => Layout::Lines,
            2 => Layout::Flips,
            other => return Err(unknown(format!("its layout is {other}, which this program does not know"))),
        };
        let mut superblock = Self { layout, uuid: [0; 16], sequence, body: [0; BODY_BYTES] };
        superblock.uuid.copy_from_slice(&sector[32..48]);
        superblock.body.copy_from_slice(&sector[56..56 + BODY_BYTES]);
        Ok(superblock)
    }
}

fn is_whole(sector: &[u8; SECTOR_BYTES]) -> bool {
    skips("superblock.checksum") || u32_at(sector, 508) == crc32c::crc32c(&sector[..508])
}

/// A name for a new store. The standard library's hasher is seeded by the system, which is random enough for a name.
pub(crate) fn random_uuid() -> [u8; 16] {
    use std::hash::{BuildHasher, RandomState};
    let halves = [0_u8, 1].map(|half| simulation::bits().unwrap_or_else(|| RandomState::new().hash_one(half)));
    let mut uuid = [0; 16];
    uuid[..8].copy_from_slice(&halves[0].to_le_bytes());
    uuid[8..].copy_from_slice(&halves[1].to_le_bytes());
    uuid
}
