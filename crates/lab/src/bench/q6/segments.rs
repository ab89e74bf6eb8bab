//! The four columns that the query needs, as segments: of a database, or created from the
//! generator's rows.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use onehop_engine::{Access, Database, DatabaseOptions};
use onehop_io::{Ledger, LocalFile, Operation, RequestedPath};
use onehop_segment::{ColumnType, Segment, SegmentOptions, SegmentWriter};

use super::{Error, Result, system};
use crate::generate::{Generator, Tpch};

/// The columns, in the order of [`onehop_cuda::kernels::q6::Place`].
pub const COLUMNS: [&str; 4] = ["l_shipdate", "l_quantity", "l_discount", "l_extendedprice"];

/// The approximate number of rows of our segments: few enough for several of them at scale factor
/// 1.
const SEGMENT_ROWS: u64 = 1 << 22;

/// An open segment, with the places of the four columns.
#[derive(Debug)]
pub struct Source {
    /// The path of the file.
    pub path: PathBuf,
    /// The segment.
    pub segment: Segment,
    /// The indexes of the columns, by [`onehop_cuda::kernels::q6::Place`].
    pub columns: [usize; 4],
}

/// Open segments, and the database that keeps them.
#[derive(Debug)]
pub struct Segments {
    /// The segments, in the order of the rows.
    pub sources: Vec<Source>,
    /// The database, open for reading, so that it does not change meanwhile.
    _database: Option<Database>,
}

impl Segments {
    /// Opens the segments of files.
    ///
    /// # Errors
    /// Fails if a file is not a segment, or not one of this table.
    pub fn open(paths: Vec<PathBuf>) -> Result<Self> {
        Ok(Self { sources: paths.into_iter().map(open).collect::<Result<_>>()?, _database: None })
    }

    /// Opens the segments of `lineitem` in a database, which stays open for reading.
    ///
    /// # Errors
    /// Fails if there is no database, or none with this table.
    pub fn of_database(path: &Path) -> Result<Self> {
        let options = DatabaseOptions { access: Access::ReadOnly, ..DatabaseOptions::default() };
        let database = Database::open(path, &options)?;
        let snapshot = database.snapshot();
        let refused = |reason: &str| Error::Refused { object: path.display().to_string(), reason: reason.into() };
        let table = snapshot.table("lineitem").ok_or_else(|| refused("it has no table lineitem"))?;
        let folder = path.join("segments");
        let paths = table.segments.iter().map(|segment| folder.join(&segment.entry.file)).collect();
        let sources = Self::open(paths)?.sources;
        if sources.is_empty() {
            return Err(refused("lineitem has no rows"));
        }
        Ok(Self { sources, _database: Some(database) })
    }

    /// Returns the total number of rows.
    pub fn rows(&self) -> u64 {
        self.sources.iter().map(|source| source.segment.rows()).sum()
    }

    /// Returns the size of the four columns in bytes.
    pub fn stored_bytes(&self) -> u64 {
        let of = |source: &Source| -> u64 {
            source.columns.iter().map(|column| source.segment.column(*column).stored_bytes).sum()
        };
        self.sources.iter().map(of).sum()
    }
}

fn open(path: PathBuf) -> Result<Source> {
    let file = Arc::new(LocalFile::open(&path, RequestedPath::Buffered)?);
    let segment = Segment::open(file, &Ledger::default())?;
    let mut columns = [0; 4];
    for (place, name) in columns.iter_mut().zip(COLUMNS) {
        let refused = |reason: String| Error::Refused { object: path.display().to_string(), reason };
        let found = segment.schema().index_of(name).map_err(|_| refused(format!("it has no column {name}")))?;
        // The query's constants are days and hundredths.
        let is_known = match &segment.column(found).column_type {
            ColumnType::Date => name == "l_shipdate",
            ColumnType::Decimal { scale, .. } => name != "l_shipdate" && *scale == 2,
            _ => false,
        };
        if !is_known {
            return Err(refused(format!("{name} is not of TPC-H's type")));
        }
        *place = found;
    }
    Ok(Source { path, segment, columns })
}

/// Returns the files of a scale factor in a folder.
pub fn names(folder: &Path, scale: f64) -> Result<Vec<PathBuf>> {
    let generator = Tpch::new(scale)?;
    let chunks = generator.chunks("lineitem")? as u64;
    Ok((0..chunks.div_ceil(unit_chunks())).map(|n| folder.join(format!("lineitem-{n:05}.segment"))).collect())
}

/// Returns the number of the generator's chunks in a segment.
fn unit_chunks() -> u64 {
    // A chunk has slightly more or fewer rows than its nominal number.
    (SEGMENT_ROWS / (crate::generate::CHUNK_ROWS + crate::generate::CHUNK_ROWS / 64)).max(1)
}

/// Creates the segments from the generator's rows, each by one thread. `progress` receives the
/// number of finished rows, from several threads.
///
/// # Errors
/// Fails if a file exists. Returns the system's error, or [`Error::Cancelled`].
pub fn create(
    folder: &Path,
    scale: f64,
    threads: usize,
    progress: &(dyn Fn(u64) + Sync),
    cancel: &AtomicBool,
) -> Result<Vec<PathBuf>> {
    let (generator, paths) = (Tpch::new(scale)?, names(folder, scale)?);
    let (next, rows) = (AtomicU64::new(0), AtomicU64::new(0));
    let failed: Mutex<Option<Error>> = Mutex::new(None);
    let told = |added: u64| progress(rows.fetch_add(added, Relaxed) + added);
    thread::scope(|scope| {
        for _ in 0..threads.clamp(1, paths.len().max(1)) {
            scope.spawn(|| {
                while let Some((n, path)) =
                    Some(next.fetch_add(1, Relaxed)).and_then(|n| Some((n, paths.get(n as usize)?)))
                {
                    if let Err(e) = write(&generator, n, path, &told, cancel) {
                        next.store(paths.len() as u64, Relaxed);
                        failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(e);
                        return;
                    }
                }
            });
        }
    });
    match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(e) => Err(e),
        None => Ok(paths),
    }
}

fn write(generator: &Tpch, unit: u64, path: &Path, told: &dyn Fn(u64), cancel: &AtomicBool) -> Result<()> {
    let schema = generator.table("lineitem")?.schema;
    let fields = COLUMNS.iter().filter_map(|name| schema.index_of(name).ok()).collect::<Vec<_>>();
    let schema = schema.project(&fields).map_err(crate::generate::Error::from)?;
    let mut writer = SegmentWriter::new(&schema, SegmentOptions::default())?;
    let chunks = generator.chunks("lineitem")? as u64;
    for chunk in unit * unit_chunks()..((unit + 1) * unit_chunks()).min(chunks) {
        for batch in generator.chunk("lineitem", chunk as usize)? {
            if cancel.load(Relaxed) {
                return Err(Error::Cancelled);
            }
            let batch = batch?.project(&fields).map_err(crate::generate::Error::from)?;
            writer.append(&batch)?;
            told(batch.num_rows() as u64);
        }
    }
    fs::File::create_new(path).map_err(|e| system(path, Operation::Create, e))?;
    let file = LocalFile::create(path, RequestedPath::Buffered)?;
    writer.finish(&file, &Ledger::default())?;
    Ok(())
}
