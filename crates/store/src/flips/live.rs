//! Copies of a store while another process writes to it. The other process neither knows of the
//! copy nor waits for it.
//!
//! 1. *Look*: read the location of every page, as recovery does, and write nothing. The result is
//!    the state of one commit if the superblock is the same before and after: the slots of tables
//!    and of the chain are not rewritten before the next superblock.
//! 2. Copy the pages whose location has changed since they were last copied. A page that matches
//!    its checksum is that version, because no other version is in that slot. A page that does not
//!    may have been overwritten, after its commit was replaced.
//! 3. If all pages were read, the copy is the state of that commit. Otherwise look again. Only
//!    later changes are left to copy, so each round is shorter than the one before.
//!
//! A repeated look tells damage from a race. A page that is still in the slot where it could not be
//! read was not overwritten. A chain that ends before a later commit does so again.
//!
//! The copied commit may not be durable yet, as a commit that a crash leaves may not be.

use std::sync::{Arc, PoisonError};

use super::slot::Entry;
use super::{FlipBackend, FlipOptions};
use crate::backend::{Backend, Batch, Content, Image, Lines, PageNo, Write};
use crate::medium::Medium;
use crate::options::Access;
use crate::superblock::Superblock;
use crate::{Error, Result};

/// The number of pages that are read and written at a time.
const PAGES_AT_ONCE: usize = 256;
/// The maximum number of rounds. Each is as long as the writer's changes in the one before.
const MOST_ROUNDS: usize = 100;
/// The number of looks that fail in the same way in a row before the failure counts as damage.
const MOST_LOOKS: usize = 10;

/// Opens the medium that is copied, for reading.
pub(crate) type Open<'a> = &'a mut dyn FnMut() -> Result<Arc<dyn Medium>>;

/// Makes `copy`, which is empty, the state of one commit of the store that `open` opens.
///
/// # Errors
/// [`Error::Corrupt`] if it is damaged, [`Error::Invalid`] if it was replaced, or changed faster
/// than it can be read.
pub(crate) fn copy_live(open: Open<'_>, copy: &FlipBackend) -> Result<()> {
    let mut copied: Vec<Entry> = Vec::new();
    let mut seed = None;
    let mut missed: Option<(PageNo, Entry)> = None;
    let mut name = String::new();
    for _ in 0..MOST_ROUNDS {
        let now = look(open)?;
        name.replace_range(.., now.medium.name());
        if *seed.get_or_insert(now.seed) != now.seed {
            return Err(Error::Invalid(format!("{name} was replaced while it was copied; try again")));
        }
        if let Some((page, entry)) = missed.take().filter(|(page, entry)| now.entry(*page) == *entry) {
            now.read_at(page, entry, &mut Image::zeroed())?;
        }
        missed = copy_changed(&now, copy, &mut copied)?;
        if missed.is_none() {
            return Ok(());
        }
    }
    Err(Error::Invalid(format!(
        "{name} changes faster than it can be copied; try again, or have the process that writes make the backup"
    )))
}

/// Reads the locations of all pages.
fn look(open: Open<'_>) -> Result<FlipBackend> {
    let mut looks = 0;
    loop {
        // Opened anew: the file may have grown.
        let file = open()?;
        let before = Superblock::read(&*file)?;
        let found = FlipBackend::open(Arc::clone(&file), FlipOptions::default(), Access::ReadOnly);
        let is_same = Superblock::read(&*file)? == before;
        match found {
            Ok(found) if is_same => return Ok(found),
            Err(error) if !matches!(error, Error::Corrupt { .. }) => return Err(error),
            Err(error) if is_same => {
                looks += 1;
                if looks == MOST_LOOKS {
                    return Err(error);
                }
            }
            Ok(_) | Err(_) => {}
        }
    }
}

/// Copies the pages whose location differs from `copied`, and updates `copied`. Returns a page that
/// could not be read, if any.
fn copy_changed(now: &FlipBackend, copy: &FlipBackend, copied: &mut Vec<Entry>) -> Result<Option<(PageNo, Entry)>> {
    let entries = now.pages.read().unwrap_or_else(PoisonError::into_inner).clone();
    copied.resize(copied.len().max(entries.len()), Entry::NONE);
    let mut missed = None;
    let mut batch = Batch::default();
    for (number, before) in copied.iter_mut().enumerate() {
        let (page, entry) = (PageNo(number as u32), entries.get(number).copied().unwrap_or(Entry::NONE));
        if entry == *before {
            continue;
        }
        if entry.is_none() {
            batch.frees.push(page);
        } else {
            let mut image = Arc::new(Image::zeroed());
            match now.read_at(page, entry, Arc::make_mut(&mut image)) {
                Ok(()) => batch.writes.push(Write { page, content: Content::Image(image), lines: Lines::ALL }),
                Err(Error::Corrupt { .. }) => {
                    missed = Some((page, entry));
                    continue;
                }
                Err(error) => return Err(error),
            }
        }
        *before = entry;
        if batch.writes.len() == PAGES_AT_ONCE {
            copy.commit(&std::mem::take(&mut batch))?;
        }
    }
    copy.commit(&batch)?;
    Ok(missed)
}
