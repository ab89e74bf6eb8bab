//! A backend that keeps pages in the process's memory only: for stores that need not outlive it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::backend::{Backend, BackendStats, Batch, Content, Image, Lines, PageNo, SLOT_BYTES};
use crate::medium::Domain;
use crate::{Error, Result};

/// Pages in memory.
#[derive(Debug, Default)]
pub(crate) struct Volatile(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    pages: BTreeMap<PageNo, Arc<Image>>,
    spilled: BTreeMap<PageNo, Arc<Image>>,
    stats: BackendStats,
}

impl Volatile {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn copy(page: PageNo, from: &BTreeMap<PageNo, Arc<Image>>, into: &mut Image) -> Result<()> {
        let image = from.get(&page).ok_or_else(|| Error::corrupt("memory", format!("{page} is not in use")))?;
        into.0 = image.0;
        Ok(())
    }
}

impl Backend for Volatile {
    fn name(&self) -> &str {
        "memory"
    }

    fn domain(&self) -> Domain {
        Domain::Process
    }

    fn pages(&self) -> Vec<PageNo> {
        self.lock().pages.keys().copied().collect()
    }

    fn read(&self, page: PageNo, into: &mut Image) -> Result<()> {
        Self::copy(page, &self.lock().pages, into)
    }

    fn commit(&self, batch: &Batch) -> Result<u64> {
        let mut kept = self.lock();
        for write in &batch.writes {
            let image = match &write.content {
                Content::Image(image) => Arc::clone(image),
                Content::Spilled => kept
                    .spilled
                    .remove(&write.page)
                    .ok_or_else(|| Error::Invalid(format!("{} was not spilled", write.page)))?,
            };
            kept.pages.insert(write.page, image);
            kept.stats.data_units += u64::from(write.lines.count());
        }
        for page in &batch.frees {
            kept.pages.remove(page);
        }
        kept.spilled.clear();
        kept.stats.commits += 1;
        kept.stats.written_bytes += (batch.writes.len() * SLOT_BYTES) as u64;
        kept.stats.pages = kept.pages.len() as u64;
        kept.stats.slots = kept.stats.pages;
        // There is no medium.
        Ok(0)
    }

    fn spill(&self, page: PageNo, image: &Image, _lines: Lines) -> Result<()> {
        self.lock().spilled.insert(page, Arc::new(image.clone()));
        Ok(())
    }

    fn read_spilled(&self, page: PageNo, into: &mut Image) -> Result<()> {
        Self::copy(page, &self.lock().spilled, into)
    }

    fn discard_spilled(&self) {
        self.lock().spilled.clear();
    }

    fn checkpoint(&self) -> Result<()> {
        Ok(())
    }

    fn maintain(&self) -> Result<bool> {
        Ok(false)
    }

    fn check(&self, _found: &mut dyn FnMut(String)) -> Result<()> {
        Ok(())
    }

    fn stats(&self) -> BackendStats {
        self.lock().stats
    }
}
