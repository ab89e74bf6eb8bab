//! The object `super`: what a client must know before anything else, as lines of text, so that `rados get super -` tells a
//! person as well.
//!
//! A reader refuses a version that it does not know, and any feature that it does not know: features are what changes the
//! meaning of what is stored. Lines that it does not know are ignored.

use super::super::{Code, Error, Objects, ReadOp, Result, WriteOp};
use super::read::BLOCK_BYTES;

pub const NAME: &str = "super";
const FIRST_LINE: &str = "onehop file system";
const VERSION: &str = "1";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    pub data_pool: String,
    pub chunk_bytes: u32,
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
        Ok(Self { data_pool: data_pool.into(), chunk_bytes })
    }

    /// The step after which the file system is there.
    pub fn write(&self, meta: &dyn Objects) -> Result<()> {
        let text = format!(
            "{FIRST_LINE}\nversion={VERSION}\nfeatures=\nchunk_bytes={}\ndata_pool={}\n",
            self.chunk_bytes, self.data_pool
        );
        meta.write(NAME, WriteOp::new("make a file system with").create_new().write_full(text.into_bytes()))
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
        if let Some(features) = value("features").filter(|features| !features.is_empty()) {
            return Err(unknown(format!("the features {features}")));
        }
        let chunk_bytes = value("chunk_bytes").and_then(|bytes| bytes.parse().ok());
        let data_pool = value("data_pool").ok_or_else(|| corrupt("it names no data pool"))?;
        Self::new(data_pool, chunk_bytes.ok_or_else(|| corrupt("it has no chunk size"))?)
    }
}
