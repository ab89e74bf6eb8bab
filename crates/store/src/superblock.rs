//! The first part of a medium: its identity, and the location of the rest.
//!
//! There are two copies, at 0 and at 4,096, of one sector each. A new superblock overwrites the
//! older copy, and when that is durable, the other. A crash leaves one whole copy at any time.
//! Later damage of one copy does not restore an old state, because both are equal. Space that the
//! old superblock names must not be reused before both are durable. The copy with the greater
//! `sequence` is valid. A copy with a wrong checksum is ignored, and is never "repaired" with a
//! fresh checksum, which would validate a torn write.
//!
//! ```text
//!   0  magic     8 bytes        32  uuid      16 bytes
//!   8  version   u32            48  sequence  u64
//!  12  layout    u32            56  body      448 bytes, the layout's own
//!  16  requires  u64           504  zeros
//!  24  allows    u64           508  crc32c    u32, of bytes 0 .. 508
//! ```
//! `requires`: features that a reader must know. `allows`: features that a reader may not know, and
//! a writer must.

use crate::bytes::{u32_at, u64_at};
use crate::medium::Medium;
use crate::mutant::skips;
use crate::simulation;
use crate::{Error, Result};

const MAGIC: [u8; 8] = *b"1hopOSP\0";
const VERSION: u32 = 1;
/// The bytes of a copy.
pub(crate) const SECTOR_BYTES: usize = 512;
const COPIES: [u64; 2] = [0, 4096];
/// The bytes of the layout's own part.
pub(crate) const BODY_BYTES: usize = 448;
/// The bound of sequence numbers: no store reaches so many commits or checkpoints, and increments
/// beyond it could overflow.
pub(crate) const MOST_COUNTED: u64 = 1 << 62;
/// The offset at which the rest of the medium begins.
pub(crate) const SUPERBLOCKS_END: u64 = 8192;

/// The arrangement of pages on the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Pairs of slots and a bitmap of lines: memory.
    Lines,
    /// Whole pages, each written to a free slot: files.
    Flips,
}

/// The decoded contents of the copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub(crate) layout: Layout,
    pub(crate) uuid: [u8; 16],
    pub(crate) sequence: u64,
    pub(crate) body: [u8; BODY_BYTES],
}

impl Superblock {
    /// Returns the newer of the two copies.
    ///
    /// # Errors
    /// [`Error::Unknown`] if this is not a store, or one with unknown features; [`Error::Corrupt`]
    /// if it is a store and neither copy is whole.
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

    /// Returns true if both copies are byte for byte equal. If not, the last write was cut short,
    /// by a crash or by a failed fence. After a failed fence the older copy may be the only durable
    /// one, and must not be overwritten next.
    pub(crate) fn copies_agree(medium: &dyn Medium) -> Result<bool> {
        let mut copies = [[0; SECTOR_BYTES]; 2];
        for (copy, at) in copies.iter_mut().zip(COPIES) {
            medium.read(at, copy)?;
        }
        Ok(copies[0] == copies[1])
    }

    /// Returns true if the medium still has this superblock.
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

/// Returns a unique identifier for a new store. The system seeds the standard library's hasher,
/// which is random enough for an identifier.
pub(crate) fn random_uuid() -> [u8; 16] {
    use std::hash::{BuildHasher, RandomState};
    let halves = [0_u8, 1].map(|half| simulation::bits().unwrap_or_else(|| RandomState::new().hash_one(half)));
    let mut uuid = [0; 16];
    uuid[..8].copy_from_slice(&halves[0].to_le_bytes());
    uuid[8..].copy_from_slice(&halves[1].to_le_bytes());
    uuid
}
