//! The object `super`: what a client must know before anything else, as lines of text, so that `rados get super -` tells a
//! person as well.
//!
//! A reader refuses a version that it does not know, and any feature that it does not know: features are what changes the
//! meaning of what is stored. Lines that it does not know are ignored.
//!
//! | feature | since when it is there | what others would not understand |
//! |---|---|---|
//! | `transactions` | the first transaction of a file system | staged names, and directories and objects of transactions |
//!
//! So a file system of a version that did not know a feature goes on, and can be used by that version until the feature is
//! used. A client of that version that has it open at that moment meets records that it refuses as damaged or of another
//! version. Features never go away. Who adds one compares the attribute `features`, which is the line's value, so that
//! nobody takes away what another version has added.

use std::collections::BTreeSet;

use super::super::{Code, Error, Objects, ReadOp, Result, WriteOp};
use super::read::BLOCK_BYTES;

pub const NAME: &str = "super";
const FIRST_LINE: &str = "onehop file system";
const VERSION: &str = "1";

const FEATURES: &str = "features";

/// What changes the meaning of what is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Feature {
    Transactions,
}

impl Feature {
    fn name(self) -> &'static str {
        match self {
            Self::Transactions => "transactions",
        }
    }

    fn of(name: &str) -> Option<Self> {
        (name == Self::Transactions.name()).then_some(Self::Transactions)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    pub data_pool: String,
    pub chunk_bytes: u32,
    pub features: BTreeSet<Feature>,
}

impl Superblock {
    pub fn new(data_pool: &str, chunk_bytes: u32) -> Result<Self> {
        let block = u32::try_from(BLOCK_BYTES).unwrap_or(u32::MAX);
        if chunk_bytes == 0 || !chunk_bytes.is_multiple_of(block) || chunk_bytes > 64 << 20 || data_pool.contains('\n')
        {
            return Err(Error::Cluster {
                what: format!(
                    "make a file system with chunks of {chunk_bytes} bytes: 64 KiB to 64 MiB, a multiple of 64 KiB"
                ),
                code: Code(libc::EINVAL),
            });
        }
        Ok(Self { data_pool: data_pool.into(), chunk_bytes, features: BTreeSet::new() })
    }

    /// The step after which the file system is there.
    pub fn write(&self, meta: &dyn Objects) -> Result<()> {
        meta.write(NAME, WriteOp::new("make a file system with").create_new().write_full(self.text().into_bytes()))
    }

    fn text(&self) -> String {
        format!(
            "{FIRST_LINE}\nversion={VERSION}\nfeatures={}\nchunk_bytes={}\ndata_pool={}\n",
            self.feature_names(),
            self.chunk_bytes,
            self.data_pool
        )
    }

    fn feature_names(&self) -> String {
        self.features.iter().map(|feature| feature.name()).collect::<Vec<_>>().join(",")
    }

    /// Adds a feature to what is stored; what it is then. One that is there is well.
    pub fn add_feature(meta: &dyn Objects, feature: Feature) -> Result<Self> {
        loop {
            let mut now = Self::read(meta)?;
            if now.features.contains(&feature) {
                return Ok(now);
            }
            let seen = now.feature_names();
            now.features.insert(feature);
            // One that was never added to has no attribute, which is equal to an empty one.
            let op = WriteOp::new("add a feature to").assert_exists().attribute_is(FEATURES, seen);
            let op = op.set_attribute(FEATURES, now.feature_names()).write_full(now.text().into_bytes());
            match meta.write(NAME, op) {
                Err(error) if error.is(Code::CONFLICT) => {}
                result => return result.map(|()| now),
            }
        }
    }

    pub fn read(meta: &dyn Objects) -> Result<Self> {
        let reply = meta.read(NAME, ReadOp::new("open a file system by").bytes(0, 1 << 16))?;
        let corrupt = |what: &str| Error::Corrupt { pool: meta.name().into(), object: NAME.into(), what: what.into() };
        let text = String::from_utf8(reply.bytes).map_err(|_| corrupt("it is not text"))?;
        let mut lines = text.lines();
        if lines.next() != Some(FIRST_LINE) {
            return Err(corrupt("it does not begin as a file system of Onehop's does"));
        }
        let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        let unknown = |what: String| Error::Unknown { pool: meta.name().into(), what };
        match value("version") {
            Some(VERSION) => {}
            Some(version) => return Err(unknown(format!("version {version}"))),
            None => return Err(corrupt("it has no version")),
        }
        let features = value(FEATURES).unwrap_or_default();
        let known: Option<BTreeSet<Feature>> =
            features.split(',').filter(|name| !name.is_empty()).map(Feature::of).collect();
        let features = known.ok_or_else(|| unknown(format!("the features {features}")))?;
        let chunk_bytes = value("chunk_bytes").and_then(|bytes| bytes.parse().ok());
        let data_pool = value("data_pool").ok_or_else(|| corrupt("it names no data pool"))?;
        let superblock = Self::new(data_pool, chunk_bytes.ok_or_else(|| corrupt("it has no chunk size"))?)?;
        Ok(Self { features, ..superblock })
    }
}
