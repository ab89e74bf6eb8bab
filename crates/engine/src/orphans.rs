//! Segment files that no catalog mentions: which of them are garbage, and which may be the only copy of data.
//!
//! | file | what it is | when the database is opened to write |
//! |---|---|---|
//! | has a [marker](crate::segments) | was being written when its process ended | removed, with the marker |
//! | the catalog remembers its length and checksum | a commit took it out | removed |
//! | any other | of a later store than this one, of another database, or of the instant before a commit | moved to [`LOST`] |
//!
//! Nothing else about a file would do. A store that was brought back from a copy has the same sessions and the same
//! generation as the one that went on, up to the moment of the copy, which may have been a moment ago.

use std::collections::{BTreeMap, HashSet};

use onehop_io::Volume;
use onehop_segment::Segment;
use onehop_store::mutant::skips;

use crate::Result;
use crate::catalog::{Catalog, RemovedSegment};
use crate::directory::{LOST, SEGMENTS_FOLDER, is_segment_name};
use crate::segments::{MARKER_SUFFIX, marker_of};

/// Files in the folder of segments that no catalog mentions.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Orphans {
    /// Segments that were never finished, if they are there.
    pub unfinished: Vec<String>,
    /// Markers, also of segments that are committed.
    pub markers: Vec<String>,
    /// Segments that a commit took out.
    pub removed: Vec<String>,
    /// Segments that may hold data.
    pub unknown: Vec<String>,
    /// Names that the catalog remembers needlessly: there is no such file.
    pub gone: Vec<String>,
}

impl Orphans {
    /// Finds the files in `segments` that `catalog` does not mention.
    ///
    /// # Errors
    /// Those of listing the folder.
    pub fn find(segments: &dyn Volume, catalog: &Catalog, removed: &[RemovedSegment]) -> Result<Self> {
        let known: HashSet<&str> =
            catalog.tables.values().flat_map(|table| &table.segments).map(|segment| segment.file.as_str()).collect();
        let removed: BTreeMap<&str, &RemovedSegment> = removed.iter().map(|of| (of.file.as_str(), of)).collect();
        let names = segments.list()?;
        let there: HashSet<&str> = names.iter().map(String::as_str).collect();
        let mut found = Self::default();
        for name in &names {
            if name.strip_suffix(MARKER_SUFFIX).is_some_and(is_segment_name) {
                found.markers.push(name.clone());
            } else if !is_segment_name(name) || (known.contains(name.as_str()) && !skips("orphans.known")) {
                continue;
            } else if there.contains(marker_of(name).as_str()) {
                found.unfinished.push(name.clone());
            } else if removed.get(name.as_str()).is_some_and(|of| is_that(segments, of)) {
                found.removed.push(name.clone());
            } else {
                found.unknown.push(name.clone());
            }
        }
        found.gone = removed.keys().filter(|name| !there.contains(*name)).map(ToString::to_string).collect();
        Ok(found)
    }

    /// Removes garbage, and moves all other orphans out of the way of later segments. `root` is the database's directory, and
    /// `segments` its folder of segments.
    ///
    /// # Errors
    /// Those of the folders. What is left is found again.
    pub fn collect(&self, root: &dyn Volume, segments: &dyn Volume) -> Result<()> {
        for name in self.unfinished.iter().chain(&self.removed) {
            segments.remove(name)?;
        }
        // A marker goes last: without it the segment would be kept.
        for name in &self.markers {
            segments.remove(name)?;
        }
        self.keep(root, segments)
    }

    fn keep(&self, root: &dyn Volume, segments: &dyn Volume) -> Result<()> {
        if self.unknown.is_empty() {
            return Ok(());
        }
        let lost = root.folder(LOST)?;
        root.sync()?;
        let mut taken: HashSet<String> = lost.list()?.into_iter().collect();
        for name in &self.unknown {
            let free = (0..).map(|number: u32| if number == 0 { name.clone() } else { format!("{name}.{number}") });
            let Some(to) = free.into_iter().find(|name| !taken.contains(name)) else { continue };
            root.rename(&format!("{SEGMENTS_FOLDER}/{name}"), &format!("{LOST}/{to}"))?;
            taken.insert(to);
        }
        lost.sync()?;
        segments.sync()?;
        Ok(())
    }
}

/// Whether the file of a name is the segment that was removed. A file that cannot be read is not.
fn is_that(segments: &dyn Volume, removed: &RemovedSegment) -> bool {
    let Ok(file) = segments.open(&removed.file) else { return false };
    file.len().is_ok_and(|bytes| bytes == removed.bytes) && Segment::checksum_of(&*file) == Some(removed.checksum)
}
