//! The page index of a file: the locations of a column chunk's pages, and the least and greatest
//! value of each.
//!
//! Parquet's reader subtracts the offset of a chunk from that of its first page, and the first row
//! of a page from that of the next. DataFusion looks up the least value of a page by the page's
//! number. So indexes are checked as bytes before a reader gets them, or as they were read with the
//! footer. The check requires for each column chunk:
//! 1. pages in the order of the file, without overlap and within the chunk,
//! 2. rows in ascending order, from 0 to at most those of the row group,
//! 3. as many entries in each list of a column index as there are pages.

use std::ops::Range;

use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData};
use parquet::file::page_index::column_index::ColumnIndexMetaData;
use parquet::file::page_index::offset_index::PageLocation;

use super::pages::size_of_page;
use super::thrift::{Kind, Walk, Walked};
use crate::Fault;

/// Checks the page indexes in `bytes`, which are those of the file from `start` on.
///
/// # Errors
/// If an index points outside of its column chunk.
pub fn check_indexes(metadata: &ParquetMetaData, start: u64, bytes: &[u8]) -> Result<(), Fault> {
    let part = |offset: Option<i64>, len: Option<i32>| {
        let from = usize::try_from(u64::try_from(offset?).ok()?.checked_sub(start)?).ok()?;
        bytes.get(from..from.checked_add(usize::try_from(len?).ok()?)?)
    };
    each_chunk(metadata, |chunk, _| {
        let column = chunk.column;
        let Some(pages) = part(column.offset_index_offset(), column.offset_index_length()) else { return Ok(()) };
        let pages = chunk.check(locations(pages).map_err(|broken| broken.to_string())?)?;
        match part(column.column_index_offset(), column.column_index_length()) {
            Some(ends) => check_ends(pages, ends),
            None => Ok(()),
        }
    })
}

/// Checks the page indexes that were read with a footer.
///
/// # Errors
/// If an index points outside of its column chunk.
pub fn check_read_indexes(metadata: &ParquetMetaData) -> Result<(), Fault> {
    let Some(indexes) = metadata.offset_index() else { return Ok(()) };
    each_chunk(metadata, |chunk, (group, column)| {
        let Some(index) = indexes.get(group).and_then(|columns| columns.get(column)) else { return Ok(()) };
        let locations = index.page_locations();
        // A chunk without an index has an empty one.
        if chunk.column.offset_index_offset().is_some() {
            chunk.check(locations.iter().map(Location::from))?;
        }
        let pages = locations.len() as u64;
        match metadata.column_index().and_then(|groups| groups.get(group)?.get(column)) {
            None | Some(ColumnIndexMetaData::NONE) => Ok(()),
            Some(ends) if ends.num_pages() == pages => Ok(()),
            Some(ends) => Err(format!("its column index has {} entries for {pages} pages", ends.num_pages())),
        }
    })
}

/// Calls `check` for each column chunk, with its row group and its column.
fn each_chunk(
    metadata: &ParquetMetaData,
    mut check: impl FnMut(&Chunk<'_>, (usize, usize)) -> Result<(), String>,
) -> Result<(), Fault> {
    for (at, group) in metadata.row_groups().iter().enumerate() {
        for (number, column) in group.columns().iter().enumerate() {
            let chunk = Chunk { column, rows: group.num_rows() };
            check(&chunk, (at, number)).map_err(|reason| {
                let path = column.column_path();
                Fault::Damaged(format!("row group {at}: column {path}: its page index: {reason}"))
            })?;
        }
    }
    Ok(())
}

struct Chunk<'m> {
    column: &'m ColumnChunkMetaData,
    rows: i64,
}

/// The location of a page.
#[derive(Clone, Copy, Debug, Default)]
struct Location {
    offset: i64,
    len: i64,
    first_row: i64,
}

impl From<&PageLocation> for Location {
    fn from(page: &PageLocation) -> Self {
        Self { offset: page.offset, len: page.compressed_page_size.into(), first_row: page.first_row_index }
    }
}

impl Location {
    fn walk(walk: &mut Walk<'_>) -> Walked<Self> {
        let mut found = Self::default();
        walk.fields(|walk, id, kind| {
            let field = match (id, kind) {
                (1, Kind::Integer) => &mut found.offset,
                (2, Kind::Integer) => &mut found.len,
                (3, Kind::Integer) => &mut found.first_row,
                _ => return Ok(false),
            };
            *field = walk.integer()?;
            Ok(true)
        })?;
        Ok(found)
    }

    fn bytes(&self) -> Option<Range<u64>> {
        let start = u64::try_from(self.offset).ok()?;
        Some(start..start.checked_add(size_of_page(self.len)?)?)
    }
}

/// Returns the pages of an offset index.
fn locations(bytes: &[u8]) -> Walked<Vec<Location>> {
    let mut locations = Vec::new();
    Walk::new(bytes).fields(|walk, id, kind| {
        if (id, kind) != (1, Kind::List) {
            return Ok(false);
        }
        let list = walk.list()?;
        for _ in 0..list.len {
            locations.push(Location::walk(walk)?);
        }
        Ok(true)
    })?;
    Ok(locations)
}

impl Chunk<'_> {
    /// Checks the locations of all pages of this chunk. Returns the number of pages.
    fn check(&self, locations: impl IntoIterator<Item = Location>) -> Result<usize, String> {
        let (rows, (start, len)) = (self.rows, self.column.byte_range());
        let (mut end, mut row, mut pages) = (start, 0, 0);
        for (page, location) in locations.into_iter().enumerate() {
            let Location { offset, len: page_len, first_row } = location;
            let bytes = location.bytes().filter(|bytes| end <= bytes.start && bytes.end <= start.saturating_add(len));
            let outside = || format!("page {page} has {page_len} bytes at {offset}, in a chunk of {len} at {start}");
            end = bytes.ok_or_else(outside)?.end;
            let is_next = if page == 0 { first_row == 0 } else { first_row >= row && first_row <= rows };
            if !is_next {
                return Err(format!("page {page} begins with row {first_row} of {rows}, behind row {row}"));
            }
            row = first_row;
            pages = page + 1;
        }
        match pages == 0 && rows > 0 {
            true => Err(format!("no pages for {rows} rows")),
            false => Ok(pages),
        }
    }
}

/// Checks the lists of a column index: null pages, the least values, the greatest, and the numbers
/// of nulls.
fn check_ends(pages: usize, bytes: &[u8]) -> Result<(), String> {
    let mut wrong = None;
    let walked = Walk::new(bytes).fields(|walk, id, kind| {
        if kind == Kind::List && matches!(id, 1..=3 | 5) {
            // Only the header is read here: the walk skips the list.
            let len = walk.clone().list()?.len;
            wrong = wrong.or((len != pages).then_some((id, len)));
        }
        Ok(false)
    });
    walked.map_err(|broken| broken.to_string())?;
    match wrong {
        Some((id, len)) => Err(format!("list {id} of its column index has {len} entries for {pages} pages")),
        None => Ok(()),
    }
}
