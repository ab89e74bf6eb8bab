//! The units that are read and processed at once.
//!
//! Pages of rows: as many as fit the buffer, in one read. Segments: as many vectors as the buffer
//! holds of all four columns, in four reads, one for each. A run of vectors that spans several
//! blocks is split into *pieces*, whose codes have separate bases. Reads begin and end at page
//! boundaries of storage. No block is skipped by its zone map, because every path must read the
//! same bytes.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use onehop_cuda::kernels::q6::{PIECE_VECTORS, Piece, PieceColumn};
use onehop_io::{Extent, Ledger, LocalFile, PAGE_BYTES, RequestedPath};
use onehop_segment::PackedPlace;
use onehop_segment::packed::{VECTOR_ROWS, vector_words};

use super::rows::{self, RowFile};
use super::segments::{COLUMNS, Segments, Source};
use super::{Error, FILTER, Layout, Result};

/// The variable properties of segments.
#[derive(Clone, Debug, Default)]
pub struct Shape {
    /// The bits of the codes of each column.
    pub bits: [u32; 4],
    /// The values of the codes of discount and price, if they have dictionaries.
    pub dictionaries: [Option<Vec<i64>>; 2],
}

/// The work of a unit.
#[derive(Clone, Debug)]
pub enum Work {
    /// This number of pages of rows, in the only part.
    Rows(usize),
    /// Pieces of a segment.
    Pieces {
        /// The index of the shape.
        shape: usize,
        /// The range of the plan's pieces.
        pieces: Range<usize>,
        /// The index of each column's part; `None` if no part of it is stored.
        part_of: [Option<usize>; 4],
    },
}

/// A unit that is read and processed at once.
#[derive(Clone, Debug)]
pub struct Unit {
    /// The extents to read. Each begins on a page, and goes into a buffer of its own.
    pub parts: Vec<Extent>,
    /// The work.
    pub work: Work,
}

/// The plan of a whole table.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The layout.
    pub layout: Layout,
    /// The files of the extents.
    pub paths: Vec<PathBuf>,
    /// The units, in order.
    pub units: Vec<Unit>,
    /// The pieces of segments.
    pub pieces: Vec<Piece>,
    /// The shapes, one for each segment.
    pub shapes: Vec<Shape>,
    /// The number of rows.
    pub rows: u64,
    /// The number of bytes that are read, in whole pages of storage.
    pub bytes: u64,
    /// The size of the longest part, in whole pages, in bytes.
    pub part_bytes: usize,
}

impl Plan {
    /// Creates the plan of pages of rows.
    pub fn of_rows(file: &RowFile, buffer_bytes: usize) -> Self {
        let at_once = (buffer_bytes / rows::PAGE_BYTES).max(1) as u64;
        let unit = |first: u64| {
            let pages = at_once.min(file.pages - first) as usize;
            let offset = (first + 1) * rows::PAGE_BYTES as u64;
            Unit { parts: vec![Extent { file: 0, offset, bytes: pages * rows::PAGE_BYTES }], work: Work::Rows(pages) }
        };
        let units = (0..file.pages).step_by(at_once as usize).map(unit).collect();
        Self::new(Layout::Rows, vec![file.path.clone()], units, file.rows)
    }

    /// Creates the plan of segments.
    ///
    /// # Errors
    /// Returns [`Error::Refused`] for segments that are not stored like those of the benchmark.
    pub fn of_segments(segments: &Segments, buffer_bytes: usize) -> Result<Self> {
        let paths = segments.sources.iter().map(|source| source.path.clone()).collect();
        let mut cut = Cut { file: 0, buffer_bytes, units: Vec::new(), pieces: Vec::new(), shapes: Vec::new() };
        for (file, source) in segments.sources.iter().enumerate() {
            cut.file = file;
            cut.segment(source)?;
        }
        let mut plan = Self::new(Layout::Segments, paths, cut.units, segments.rows());
        (plan.pieces, plan.shapes) = (cut.pieces, cut.shapes);
        Ok(plan)
    }

    fn new(layout: Layout, paths: Vec<PathBuf>, units: Vec<Unit>, rows: u64) -> Self {
        let parts = || units.iter().flat_map(|unit| &unit.parts).map(|part| in_pages(part.bytes));
        let (bytes, part_bytes) = (parts().map(|bytes| bytes as u64).sum(), parts().max().unwrap_or(PAGE_BYTES));
        Self { layout, paths, units, pieces: Vec::new(), shapes: Vec::new(), rows, bytes, part_bytes }
    }

    /// Returns the number of parts of all units.
    pub fn parts(&self) -> usize {
        self.units.iter().map(|unit| unit.parts.len()).sum()
    }

    /// Returns the maximum number of parts of a unit.
    pub fn most_parts(&self) -> usize {
        self.units.iter().map(|unit| unit.parts.len()).max().unwrap_or(0)
    }

    /// Returns the maximum size of a unit's buffers, in whole pages, in bytes.
    pub fn unit_bytes(&self) -> usize {
        let of = |unit: &Unit| unit.parts.iter().map(|part| in_pages(part.bytes)).sum();
        self.units.iter().map(of).max().unwrap_or(0).max(PAGE_BYTES)
    }

    /// Opens the files past the page cache, if the file system permits it.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn open(&self) -> Result<Vec<Arc<LocalFile>>> {
        let open = |path: &PathBuf| LocalFile::open(path, RequestedPath::PreferHostDirect).map(Arc::new);
        Ok(self.paths.iter().map(open).collect::<onehop_io::Result<_>>()?)
    }

    /// Drops the files from the system's page cache.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn forget(&self) -> Result<()> {
        self.paths.iter().try_for_each(|path| forget(path))
    }
}

fn forget(path: &std::path::Path) -> Result<()> {
    let failed = |e| super::system(path, onehop_io::Operation::Sync, e);
    let file = std::fs::File::open(path).map_err(failed)?;
    // Dirty pages cannot be dropped. A foreign file may not be ours to sync.
    let _ = file.sync_all();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).map_err(|e| failed(e.into()))
}

/// Rounds up to whole pages of storage.
pub fn in_pages(bytes: usize) -> usize {
    bytes.next_multiple_of(PAGE_BYTES)
}

/// Splits segments into units.
struct Cut {
    file: usize,
    buffer_bytes: usize,
    units: Vec<Unit>,
    pieces: Vec<Piece>,
    shapes: Vec<Shape>,
}

/// A run of vectors of a block.
#[derive(Clone, Copy)]
struct Run {
    block: usize,
    first: usize,
    vectors: usize,
    rows: usize,
}

impl Cut {
    fn segment(&mut self, source: &Source) -> Result<()> {
        let shape = shape(source)?;
        let at_once = vectors_at_once(shape.bits, self.buffer_bytes);
        self.shapes.push(shape);
        let (mut runs, mut left) = (Vec::new(), at_once);
        for block in 0..source.segment.blocks() {
            let rows = source.segment.block_rows(block);
            let mut first = 0;
            while first * VECTOR_ROWS < rows {
                let vectors = left.min(rows.div_ceil(VECTOR_ROWS) - first).min(PIECE_VECTORS);
                let rows = (rows - first * VECTOR_ROWS).min(vectors * VECTOR_ROWS);
                runs.push(Run { block, first, vectors, rows });
                first += vectors;
                left -= vectors;
                if left == 0 {
                    self.unit(source, &runs)?;
                    runs.clear();
                    left = at_once;
                }
            }
        }
        if runs.is_empty() { Ok(()) } else { self.unit(source, &runs) }
    }

    fn unit(&mut self, source: &Source, runs: &[Run]) -> Result<()> {
        let shape = self.shapes.len() - 1;
        let first = self.pieces.len();
        self.pieces.extend(runs.iter().map(|run| Piece { rows: run.rows as u32, ..Piece::default() }));
        let (mut parts, mut part_of) = (Vec::new(), [None; 4]);
        for (place, column) in source.columns.iter().enumerate() {
            let mut extent: Option<Range<u64>> = None;
            for (run, piece) in runs.iter().zip(&mut self.pieces[first..]) {
                let found = place_of(source, place, *column, run.block)?;
                let start = found.offset.map(|offset| offset + packed_bytes(found.bits, run.first));
                piece.columns[place] = PieceColumn {
                    // The offset in the file, for now.
                    at: start.unwrap_or(0),
                    base: found.base,
                    stored: u32::from(start.is_some()),
                    ..PieceColumn::default()
                };
                if let Some(start) = start {
                    let end = start + packed_bytes(found.bits, run.vectors);
                    let whole = extent.get_or_insert(start..end);
                    *whole = whole.start.min(start)..whole.end.max(end);
                }
            }
            let Some(extent) = extent else { continue };
            let bytes = (extent.end - extent.start) as usize;
            if bytes > 2 * self.buffer_bytes + runs.len() * PAGE_BYTES {
                let reason = format!("the blocks of {} do not lie one after the other", COLUMNS[place]);
                return Err(Error::Refused { object: source.path.display().to_string(), reason });
            }
            // A buffer begins with the page in which the extent begins.
            let page = extent.start - extent.start % PAGE_BYTES as u64;
            for piece in &mut self.pieces[first..] {
                let column = &mut piece.columns[place];
                column.at = if column.stored == 1 { (column.at - page) / size_of::<u32>() as u64 } else { 0 };
            }
            part_of[place] = Some(parts.len());
            parts.push(Extent { file: self.file, offset: page, bytes: (extent.end - page) as usize });
        }
        self.filter(source, first)?;
        let pieces = first..self.pieces.len();
        self.units.push(Unit { parts, work: Work::Pieces { shape, pieces, part_of } });
        Ok(())
    }

    /// Computes the codes that pass, and drops pieces without any.
    fn filter(&mut self, source: &Source, first: usize) -> Result<()> {
        let ranges = [
            (i128::from(FILTER.shipdate_from), i128::from(FILTER.shipdate_before) - 1),
            (i128::from(i64::MIN), i128::from(FILTER.quantity_below) - 1),
            (i128::from(FILTER.discount_min), i128::from(FILTER.discount_max)),
        ];
        let ledger = Ledger::default();
        for (place, (low, high)) in ranges.into_iter().enumerate() {
            let keys = source.segment.dictionary_keys(source.columns[place], &ledger)?;
            // Dictionaries are sorted: a range of values is one of codes.
            let (low, high) = match &keys {
                None => (low, high),
                Some(keys) => (
                    keys.partition_point(|key| i128::from(*key) < low) as i128,
                    keys.partition_point(|key| i128::from(*key) <= high) as i128 - 1,
                ),
            };
            for piece in &mut self.pieces[first..] {
                let column = &mut piece.columns[place];
                let base = i128::from(column.base);
                let (least, most) = ((low - base).max(0), (high - base).min(i128::from(u32::MAX)));
                match least <= most {
                    true => (column.min, column.span) = (least as u32, (most - least) as u32),
                    // No code passes: no rows.
                    false => piece.rows = 0,
                }
            }
        }
        let kept: Vec<Piece> = self.pieces.drain(first..).filter(|piece| piece.rows > 0).collect();
        self.pieces.extend(kept);
        Ok(())
    }
}

fn packed_bytes(bits: u32, vectors: usize) -> u64 {
    (vector_words(bits) * size_of::<u32>() * vectors) as u64
}

fn place_of(source: &Source, place: usize, column: usize, block: usize) -> Result<PackedPlace> {
    let refused = || Error::Refused {
        object: source.path.display().to_string(),
        reason: format!("{} has NULLs, or is not stored in codes of up to 32 bits", COLUMNS[place]),
    };
    source.segment.packed_place(column, block).ok_or_else(refused)
}

fn shape(source: &Source) -> Result<Shape> {
    let mut shape = Shape::default();
    let ledger = Ledger::default();
    for (place, column) in source.columns.iter().enumerate() {
        let blocks = 0..source.segment.blocks();
        shape.bits[place] = blocks
            .map(|block| place_of(source, place, *column, block))
            .try_fold(0, |_, found| Ok::<_, Error>(found?.bits))?;
        if let Some(n) = place.checked_sub(2) {
            shape.dictionaries[n] = source.segment.dictionary_keys(*column, &ledger)?;
        }
    }
    Ok(shape)
}

/// Returns the number of vectors that fit, with the padding of reads to whole pages. Runs end at
/// page boundaries of all columns, if they are that long.
fn vectors_at_once(bits: [u32; 4], buffer_bytes: usize) -> usize {
    let each: u64 = bits.iter().map(|bits| packed_bytes(*bits, 1)).sum();
    let room = buffer_bytes.saturating_sub(bits.len() * 2 * PAGE_BYTES).max(each as usize) as u64;
    let fitting = (room / each.max(1)).clamp(1, 1 << 20) as usize;
    match fitting {
        n if n >= 32 => n / 32 * 32,
        n if n >= 8 => n / 8 * 8,
        n => n,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_hold_what_is_read_for_them() {
        for bits in [[12, 6, 4, 24], [0, 0, 0, 0], [32, 32, 32, 32], [1, 1, 1, 1]] {
            for buffer_bytes in [64 << 10, 1 << 20, 64 << 20] {
                let vectors = vectors_at_once(bits, buffer_bytes);
                let read: usize =
                    bits.iter().map(|bits| in_pages(packed_bytes(*bits, vectors) as usize) + PAGE_BYTES).sum();
                assert!(vectors >= 1 && read <= buffer_bytes, "{vectors} vectors of {bits:?} are {read} bytes");
            }
        }
        assert_eq!(vectors_at_once([12, 6, 4, 24], 1 << 20), 160);
    }
}
