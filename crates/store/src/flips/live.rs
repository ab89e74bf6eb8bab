//! Copying a store while another process writes to it, which neither knows of it nor waits for it.
//!
//! 1. *Look*: read where every page is, as recovery does, and write nothing. It is the state of one commit if the superblock is the
//!    same before and after: what tables and the chain lie in is not written again before there is another superblock.
//! 2. Copy the pages that are elsewhere than when they were copied last. A page that is read with its checksum is that version: no
//!    other is in that slot. One that is not may have been written over, after its commit was replaced.
//! 3. If all were read, the copy is the state of that commit. Otherwise look again: only what changed since is left to copy, so
//!    each round is shorter than the one before.
//!
//! Damage is told from haste by looking again: a page that is still where it could not be read was not written over, and a chain
//! that ends before a later commit does so again.
//!
//! What is copied may be a commit that is not durable yet, as what a crash leaves may be.

use std::sync::{Arc, PoisonError};

use super::slot::Entry;
use super::{FlipBackend, FlipOptions};
use crate::backend::{Backend, Batch, Content, Image, Lines, PageNo, Write};
use crate::medium::Medium;
use crate::options::Access;
use crate::superblock::Superblock;
use crate::{Error, Result};

/// Pages that are read and written at a time.
const PAGES_AT_ONCE: usize = 256;
/// Rounds until it is given up: each is as long as what the writer changed in the one before.
const MOST_ROUNDS: usize = 100;
/// Looks that fail in the same way, one after the other, are no haste.
const MOST_LOOKS: usize = 10;

/// Opens the medium that is copied, for reading.
pub(crate) type Open<'a> = &'a mut dyn FnMut() -> Result<Arc<dyn Medium>>;

/// Makes `copy`, which is empty, the state of one commit of the store that `open` opens.
///
/// # Errors
/// [`Error::Corrupt`] if it is damaged, [`Error::Invalid`] if it was replaced, or changed faster than it can be read.
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

/// Where all pages are.
fn look(open: Open<'_>) -> Result<FlipBackend> {
    let mut looks = 0;
    loop {
        // Opened anew: it may have grown.
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

/// Copies pages that are elsewhere than `copied` says, which then says where they are. Returns one that could not be read.
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
