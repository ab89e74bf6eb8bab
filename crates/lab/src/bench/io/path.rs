//! The path that bytes took.

use std::fmt;

use onehop_cuda::Effective;
use onehop_io::Path;
use serde::{Deserialize, Serialize};

/// The path, as detected from the open file, or from cuFile's counters during the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EffectivePath {
    /// Through the page cache.
    #[serde(rename = "buffered")]
    Buffered,
    /// Past the page cache, into host memory.
    #[serde(rename = "host direct")]
    HostDirect,
    /// The file is in memory.
    #[serde(rename = "memory")]
    Memory,
    /// Over the network, from servers that store them.
    #[serde(rename = "remote")]
    Remote,
    /// From storage into device memory.
    #[serde(rename = "direct")]
    Direct,
    /// By cuFile, through its own host memory.
    #[serde(rename = "compat")]
    Compat,
    /// By cuFile, on both paths.
    #[serde(rename = "direct and compat")]
    Mixed,
    /// Through our pinned host memory.
    #[serde(rename = "staged")]
    Staged,
    /// By cuFile, which does not report its path.
    #[serde(rename = "not verified")]
    NotVerified,
}

impl From<Path> for EffectivePath {
    fn from(path: Path) -> Self {
        match path {
            Path::Buffered => Self::Buffered,
            Path::HostDirect => Self::HostDirect,
            Path::Memory => Self::Memory,
            Path::Remote => Self::Remote,
            Path::DeviceDirect => Self::Direct,
            Path::DeviceCompat => Self::Compat,
            Path::DeviceStaged => Self::Staged,
            Path::DeviceUnverified => Self::NotVerified,
        }
    }
}

impl From<Effective> for EffectivePath {
    fn from(effective: Effective) -> Self {
        match effective {
            Effective::Direct => Self::Direct,
            Effective::Compat => Self::Compat,
            Effective::Mixed => Self::Mixed,
            Effective::Staged => Self::Staged,
            Effective::NotVerified => Self::NotVerified,
        }
    }
}

impl fmt::Display for EffectivePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Buffered => "buffered",
            Self::HostDirect => "host direct",
            Self::Memory => "memory",
            Self::Remote => "remote",
            Self::Direct => "direct",
            Self::Compat => "compat",
            Self::Mixed => "direct and compat",
            Self::Staged => "staged",
            Self::NotVerified => "not verified",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_written_as_it_is_said() {
        for effective in
            [Effective::Direct, Effective::Compat, Effective::Mixed, Effective::Staged, Effective::NotVerified]
        {
            let path = EffectivePath::from(effective);
            assert_eq!(serde_json::to_value(path).ok(), Some(path.to_string().into()));
        }
        for path in [Path::Buffered, Path::HostDirect, Path::Memory, Path::Remote] {
            assert_eq!(serde_json::to_value(EffectivePath::from(path)).ok(), Some(path.to_string().into()));
        }
    }
}
