//! Residency of a table over several devices: each segment is in the memory of one device, so
//! together they hold more than any of them could.
//!
//! A table is divided as a query over it would be, so that queries find its segments. Segments that
//! are already resident stay on their device, and missing columns are added there.

use std::sync::Arc;

use super::Spread;
use super::share::{Share, Told};
use crate::backend::{Control, DevicePath, Loaded, MemoryLimit, Residency, Resident, SegmentKey, Stored};
use crate::{Error, Result, Source};

impl Residency for Spread {
    fn load(
        &self,
        source: &Arc<dyn Source>,
        stored: &Stored,
        how: (MemoryLimit, DevicePath),
        control: &Control<'_>,
    ) -> Result<Loaded> {
        let shares = self.shares(source, Some(stored), &[]).map_err(|refusal| Error::Unsupported(refusal.0))?;
        let mut all = Loaded::default();
        for (device, morsels) in shares {
            let Some(residency) = device.residency().filter(|_| !morsels.is_empty()) else { continue };
            let share = Share::new(source, morsels, Told::No);
            let of = share.stored(stored);
            let source: Arc<dyn Source> = Arc::new(share);
            let Loaded { bytes, moved_bytes } = residency.load(&source, &of, how, control)?;
            all.bytes += bytes;
            all.moved_bytes += moved_bytes;
        }
        Ok(all)
    }

    fn evict(&self, columns: &[(SegmentKey, usize)]) -> u64 {
        self.residencies().map(|residency| residency.evict(columns)).sum()
    }

    /// Columns that are resident on several devices count once.
    fn resident_bytes(&self, stored: &Stored) -> u64 {
        let of_run = |run: &onehop_segment::BlockRun| {
            let of = stored.part([(run.segment, run.places.clone())]);
            self.residencies().map(|residency| residency.resident_bytes(&of)).max().unwrap_or(0)
        };
        stored.blocks.runs().iter().map(of_run).sum()
    }

    fn sweep(&self) {
        self.residencies().for_each(Residency::sweep);
    }

    fn list(&self) -> Vec<Resident> {
        self.residencies().flat_map(Residency::list).collect()
    }
}

impl Spread {
    fn residencies(&self) -> impl Iterator<Item = &dyn Residency> {
        self.devices.iter().filter_map(|device| device.residency())
    }
}
