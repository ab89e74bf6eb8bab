//! Options of lowering, as an extension of a session's configuration.

use std::sync::Arc;

use onehop_segment::BlockCache;

use crate::place::Placing;
use crate::settings::{ExecMode, Fallback};

/// Options of lowering. Without this extension nothing is lowered.
#[derive(Clone, Debug)]
pub(crate) struct Fusing {
    /// Whether anything is lowered.
    pub mode: ExecMode,
    /// Hot blocks.
    pub cache: Arc<BlockCache>,
    /// What to do about what cannot be lowered, or not be run where it was to.
    pub fallback: Fallback,
    /// Where what is lowered runs.
    pub placing: Placing,
}

impl Fusing {
    /// Whether whatever is lowered for one is what is lowered for the other.
    pub fn lowers_as(&self, other: &Self) -> bool {
        let Self { mode, cache, fallback, placing } = self;
        *mode == other.mode
            && cache.path() == other.cache.path()
            && *fallback == other.fallback
            && placing.places_as(&other.placing)
    }
}
