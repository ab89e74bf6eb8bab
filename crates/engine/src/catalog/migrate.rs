//! Opening a database's store, making it where there is none yet, and moving older databases' catalogs into one.
//!
//! A store is made whole before it has its name, so that a crash at any instruction leaves the database as it was or as it
//! is to be:
//! 1. `store.new` is made, with the catalog of the old file, or an empty one; it is durable when this is done.
//! 2. It is renamed to `store`, and the directory is synced. From here on the store is the database's catalog.
//! 3. The old file `catalog` is removed. One that is found beside a store has been moved already.
//!
//! For reading only nothing is made and nothing moved: an old catalog is read into memory.

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

/// Where a database's store is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place<'a> {
    /// Nowhere: it lives and dies with the process.
    Memory,
    /// In a directory of the operating system's.
    Directory(&'a Path),
    /// In the database's volume, whatever that is.
    Volume,
}

/// Opens the store of a database; makes it if there is none, unless `begin` has a reason against it, which says where the new
/// database's segments lie.
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
                // The folder's own name must be durable before anything in it can be.
                root.sync()?;
                let empty = Catalog { generation: 1, next_id: 1, ..Catalog::default() };
                database.make(&files, &empty, place.as_ref())?
            }
        }
    };
    // Segments that end with the process are never met again, and those on a cluster have marks.
    let is_kept = !matches!(place, Place::Memory) && opened.segment_place()?.is_none() && !skips("removed.remember");
    Ok(Box::new(opened.with_removed(if is_kept { Removed::Remember } else { Removed::Forget })))
}

/// Copies the store of a database, as of one commit, to another volume, while others write to it.
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
            // On a volume of somebody else's nothing happens that nobody has asked for.
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
        // What is left of an attempt that was cut short has no use.
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

    /// Removes what a store has made needless: the old catalog above all, last.
    fn remove_left_overs(&self, files: &[String]) -> Result<()> {
        for name in [NEW_FILE, NEW_MANIFEST_FILE, MANIFEST_FILE] {
            if files.iter().any(|file| file == name) {
                self.root.remove(name)?;
            }
        }
        Ok(())
    }
}
