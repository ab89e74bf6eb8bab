//! Opens a database's store, creates it if there is none, and moves the catalogs of older databases
//! into one.
//!
//! A store is completed before it gets its name. A crash at any instruction therefore leaves the
//! database either unchanged or fully converted:
//! 1. `store.new` is created with the catalog of the old file, or an empty one. It is durable at
//!    the end of this step.
//! 2. It is renamed to `store`, and the directory is synced. From this point the store is the
//!    database's catalog.
//! 3. The old file `catalog` is removed. A `catalog` that is found beside a store has been moved
//!    already.
//!
//! Read-only access creates and moves nothing: an old catalog is read into memory.

use std::path::Path;
use std::sync::Arc;

use onehop_io::Volume;
use onehop_store::medium::File;
use onehop_store::mutant::skips;
use onehop_store::{Maintenance, Options, Store};

use super::manifest::{FILE as MANIFEST_FILE, Manifest, NEW_FILE as NEW_MANIFEST_FILE};
use super::medium;
use super::store::{NEW_FILE, Removed, STORE_FILE, StoreCatalog};
use super::{Catalog, CatalogStore, SegmentPlace};
use crate::rights::Access;
use crate::{Error, ErrorKind, Result};

/// The location of a database's store.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place<'a> {
    /// In memory. The store ends with the process.
    Memory,
    /// In a directory of the operating system.
    Directory(&'a Path),
    /// In the database's volume, of any kind.
    Volume,
}

/// Opens the store of a database, and creates it if there is none. `begin` returns the place of the
/// new database's segments.
///
/// # Errors
/// The error of `begin` if it refuses the creation. [`ErrorKind::NotFound`] if there is no database
/// and access is read-only.
pub(crate) fn open(
    root: &Arc<dyn Volume>,
    place: Place<'_>,
    access: Access,
    begin: impl FnOnce() -> Result<Option<SegmentPlace>>,
) -> Result<Box<dyn CatalogStore>> {
    let database = Files { root, place, access };
    let files = root.list()?;
    let has = |name: &str| files.iter().any(|file| file == name);
    let opened = if has(STORE_FILE) {
        if access == Access::ReadWrite {
            database.remove_left_overs(&files)?;
        }
        StoreCatalog::open(database.open(STORE_FILE)?, database.name(STORE_FILE))?
    } else {
        match (Manifest::new(Arc::clone(root)).load()?, access) {
            (Some(catalog), Access::ReadOnly) => {
                StoreCatalog::create(Store::memory()?, database.name(MANIFEST_FILE), &catalog, None)?
            }
            (None, Access::ReadOnly) => {
                return Err(Error::new(ErrorKind::NotFound, format!("there is no database at {}", root.name())));
            }
            (Some(catalog), Access::ReadWrite) => database.make(&files, &catalog, None)?,
            (None, Access::ReadWrite) => {
                let place = begin()?;
                // The name of the folder must be durable before anything in it can be.
                root.sync()?;
                let empty = Catalog { generation: 1, next_id: 1, ..Catalog::default() };
                database.make(&files, &empty, place.as_ref())?
            }
        }
    };
    // Segments in memory end with the process, and segments on a cluster have marks.
    let is_kept = !matches!(place, Place::Memory) && opened.segment_place()?.is_none() && !skips("removed.remember");
    Ok(Box::new(opened.with_removed(if is_kept { Removed::Remember } else { Removed::Forget })))
}

/// Copies the store of a database, as of one commit, to another volume. Others may write to it
/// meanwhile.
pub(crate) fn copy_live(from: &Arc<dyn Volume>, to: &Arc<dyn Volume>) -> Result<()> {
    Ok(Store::copy_live(&mut || medium::open_for_reading(from, STORE_FILE), medium::create(to, STORE_FILE)?)?)
}

struct Files<'a> {
    root: &'a Arc<dyn Volume>,
    place: Place<'a>,
    access: Access,
}

impl Files<'_> {
    fn name(&self, file: &str) -> String {
        format!("{}/{file}", self.root.name())
    }

    fn open(&self, file: &str) -> Result<Store> {
        let options = Options::default().access(match self.access {
            Access::ReadWrite => onehop_store::Access::ReadWrite,
            Access::ReadOnly => onehop_store::Access::ReadOnly,
        });
        Ok(match self.place {
            Place::Memory => Store::memory()?,
            // A volume of another party gets no maintenance that was not requested.
            Place::Directory(path) => Store::open(path.join(file), &options.maintenance(Maintenance::WhenIdle))?,
            Place::Volume => Store::open_on(medium::open(self.root, file)?, &options)?,
        })
    }

    fn create(&self, file: &str) -> Result<Store> {
        Ok(match self.place {
            Place::Memory => Store::memory()?,
            Place::Directory(path) => Store::create_on(Arc::new(File::create(&path.join(file))?), &Options::default())?,
            Place::Volume => Store::create_on(medium::create(self.root, file)?, &Options::default())?,
        })
    }

    fn make(&self, files: &[String], catalog: &Catalog, place: Option<&SegmentPlace>) -> Result<StoreCatalog> {
        if let Place::Memory = self.place {
            return StoreCatalog::create(Store::memory()?, self.name(STORE_FILE), catalog, place);
        }
        // The remains of an interrupted attempt have no use.
        if files.iter().any(|file| file == NEW_FILE) {
            self.root.remove(NEW_FILE)?;
        }
        drop(StoreCatalog::create(self.create(NEW_FILE)?, self.name(NEW_FILE), catalog, place)?);
        self.root.rename(NEW_FILE, STORE_FILE)?;
        self.root.sync()?;
        let rest: Vec<String> = files.iter().filter(|file| *file != NEW_FILE).cloned().collect();
        self.remove_left_overs(&rest)?;
        StoreCatalog::open(self.open(STORE_FILE)?, self.name(STORE_FILE))
    }

    /// Removes the files that the store replaces. The old catalog is removed last.
    fn remove_left_overs(&self, files: &[String]) -> Result<()> {
        for name in [NEW_FILE, NEW_MANIFEST_FILE, MANIFEST_FILE] {
            if files.iter().any(|file| file == name) {
                self.root.remove(name)?;
            }
        }
        Ok(())
    }
}
