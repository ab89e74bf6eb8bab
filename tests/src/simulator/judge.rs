//! The judge of crash images: their contents, and the permitted states.
//!
//! The judge opens an image and reads all rows without a plan, from the store and from the
//! segments. The image must hold one of the states that the run permits at that moment, and its
//! folders must contain only files that its catalog knows. Images with equal bytes are opened once.
//! A sample gets a thorough check: all checksums, and the same rows by queries.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use futures::StreamExt;
use onehop_engine::arrow::array::{Array, AsArray, RecordBatch};
use onehop_engine::arrow::datatypes::Int64Type;
use onehop_engine::check::check_open;
use onehop_engine::{Database, DatabaseOptions, Error, Ledger, Output, Session};
use onehop_io::{CrashImage, SimVolume, Volume};
use tokio::runtime::Runtime;

use super::model::{Rows, State};

/// The contents of an image.
#[derive(Clone, Debug, PartialEq)]
pub struct Held {
    /// The rows of each table.
    pub tables: BTreeMap<String, Rows>,
    /// The query of each view.
    pub views: BTreeMap<String, String>,
    /// The files that are kept because the catalog does not know them.
    pub lost: BTreeSet<String>,
}

impl Held {
    /// Returns true if the contents equal a state.
    pub fn is(&self, state: &State) -> bool {
        self.tables.len() == state.tables.len()
            && self.tables.iter().zip(&state.tables).all(|(held, table)| held.0 == table.0 && *held.1 == table.1.rows)
            && self.views.len() == state.views.len()
            && self
                .views
                .iter()
                .zip(&state.views)
                .all(|(held, view)| held.0 == view.0 && held.1.ends_with(&format!(" {}", view.1)))
    }

    fn describe(&self) -> String {
        let tables = self.tables.iter().map(|(name, rows)| {
            let ids: Vec<String> = rows
                .iter()
                .take(60)
                .map(|((id, v, _), count)| {
                    let v = v.map_or("-".to_string(), |v| v.to_string());
                    if *count == 1 { format!("{id}:{v}") } else { format!("{id}:{v}*{count}") }
                })
                .collect();
            format!("  {name}: {} rows {{{}}}\n", rows.values().sum::<u32>(), ids.join(" "))
        });
        tables.chain(self.views.keys().map(|name| format!("  view {name}\n"))).collect()
    }
}

/// Adds the rows of a batch of `id, v, s`.
pub fn add_rows(rows: &mut Rows, batch: &RecordBatch, is_there: impl Fn(usize) -> bool) {
    let (ids, values) = (batch.column(0).as_primitive::<Int64Type>(), batch.column(1).as_primitive::<Int64Type>());
    let texts = onehop_engine::arrow::compute::cast(batch.column(2), &onehop_engine::arrow::datatypes::DataType::Utf8);
    let texts = texts.expect("a column of text");
    let texts = texts.as_string::<i32>();
    for row in (0..batch.num_rows()).filter(|row| is_there(*row)) {
        let value = (!values.is_null(row)).then(|| values.value(row));
        let text = (!texts.is_null(row)).then(|| texts.value(row).to_string());
        *rows.entry((ids.value(row), value, text)).or_default() += 1;
    }
}

/// The rows of tables and the texts of views, by name.
type Contents = (BTreeMap<String, Rows>, BTreeMap<String, String>);

/// Reads everything that a database has committed, without a plan.
pub fn read(database: &Database) -> Result<Contents, Error> {
    let snapshot = database.snapshot();
    let mut tables = BTreeMap::new();
    for table in snapshot.tables() {
        let mut rows = Rows::new();
        for file in &table.segments {
            let segment = file.segment()?;
            for block in 0..segment.blocks() {
                let columns = (0..3).map(|column| {
                    let loaded = segment.load(column, block, &Ledger::default())?;
                    loaded.decode(0..loaded.rows())
                });
                let columns = columns.collect::<Result<Vec<_>, _>>()?;
                let schema = Arc::clone(&table.schema);
                let batch = RecordBatch::try_new_with_options(schema, columns, &Default::default())?;
                let deleted = file.deleted.as_deref();
                add_rows(&mut rows, &batch, |row| deleted.is_none_or(|deleted| !deleted.has(block, row)));
            }
        }
        for (_, batch) in table.fresh.batches()? {
            add_rows(&mut rows, &batch, |_| true);
        }
        tables.insert(table.name.clone(), rows);
    }
    Ok((tables, snapshot.catalog.views.clone()))
}

/// Returns the rows of a query of `id, v, s`.
pub async fn rows_of(session: &Session, sql: &str) -> Result<Rows, Error> {
    let mut rows = Rows::new();
    if let Output::Rows(mut stream) = session.sql(sql).await? {
        while let Some(batch) = stream.next().await {
            add_rows(&mut rows, &batch?, |_| true);
        }
    }
    Ok(rows)
}

/// Returns the names in the folder of segments that the catalog does not know, and the known names
/// that are missing.
pub fn strangers(volume: &SimVolume, database: &Database) -> Result<Vec<String>, String> {
    let folder = volume.folder("segments").map_err(|e| e.to_string())?;
    let found: BTreeSet<String> = folder.list().map_err(|e| e.to_string())?.into_iter().collect();
    let snapshot = database.snapshot();
    let known: BTreeSet<String> =
        snapshot.tables().flat_map(|table| &table.segments).map(|segment| segment.entry.file.clone()).collect();
    Ok(found.symmetric_difference(&known).cloned().collect())
}

/// The judge, with a cache of judged images.
pub struct Judge {
    options: DatabaseOptions,
    seen: HashMap<u64, Result<Arc<Held>, String>>,
    /// The interval of thorough checks: one image in this number.
    thorough: u64,
    /// The number of judged images.
    pub images: u64,
}

impl Judge {
    /// Creates a judge that opens databases with these options, and checks one image in `thorough`
    /// thoroughly.
    pub fn new(options: DatabaseOptions, thorough: u64) -> Self {
        Self { options, seen: HashMap::new(), thorough: thorough.max(1), images: 0 }
    }

    /// Returns the number of distinct images that were opened.
    pub fn distinct(&self) -> u64 {
        self.seen.len() as u64
    }

    /// Returns the contents of an image.
    ///
    /// # Errors
    /// Fails if the image cannot be opened or read, or has forbidden contents.
    pub fn open(&mut self, image: &SimVolume, runtime: &Runtime) -> Result<Arc<Held>, String> {
        self.images += 1;
        let key = image.hash();
        if let Some(known) = self.seen.get(&key) {
            return known.clone();
        }
        let held = self.look(image, runtime, key.is_multiple_of(self.thorough)).map(Arc::new);
        self.seen.insert(key, held.clone());
        held
    }

    fn look(&self, image: &SimVolume, runtime: &Runtime, is_thorough: bool) -> Result<Held, String> {
        let database =
            Database::on_volume(Arc::new(image.clone()), &self.options).map_err(|e| format!("opening: {e}"))?;
        let (tables, views) = read(&database).map_err(|e| format!("reading: {e}"))?;
        let strangers = strangers(image, &database)?;
        if !strangers.is_empty() {
            return Err(format!("the folder of segments and the catalog differ in {strangers:?}"));
        }
        let lost = image.folder("lost+found").and_then(|folder| folder.list()).map_err(|e| e.to_string())?;
        if is_thorough {
            let report = check_open(&database, &mut |_, _| {}).map_err(|e| format!("checking: {e}"))?;
            if let Some(problem) = report.problems.first() {
                return Err(format!("a check finds {} problems: {}", report.problems.len(), problem.error));
            }
            runtime.block_on(by_queries(&database, &tables))?;
            self.exchanged(image, &database, &tables)?;
        }
        // Closing it would cost more than all the rest, and the lives test it.
        image.crash_at(0);
        Ok(Held { tables, views, lost: lost.into_iter().collect() })
    }

    /// Checks that two segments with exchanged names, each of them intact, are detected.
    fn exchanged(&self, image: &SimVolume, database: &Database, tables: &BTreeMap<String, Rows>) -> Result<(), String> {
        let snapshot = database.snapshot();
        let files: Vec<String> =
            snapshot.tables().flat_map(|table| &table.segments).map(|segment| segment.entry.file.clone()).collect();
        let [one, other, ..] = files.as_slice() else { return Ok(()) };
        let volume = image.crash_image(CrashImage::Everything);
        let folder = volume.folder("segments").map_err(|e| e.to_string())?;
        for (from, to) in [(one.as_str(), "between"), (other.as_str(), one.as_str()), ("between", other.as_str())] {
            folder.rename(from, to).map_err(|e| e.to_string())?;
        }
        let opened =
            Database::on_volume(Arc::new(volume.clone()), &self.options).map_err(|e| format!("opening: {e}"))?;
        let found = read(&opened);
        volume.crash_at(0);
        match found {
            Ok((found, _)) if found != *tables => Err(format!("{one} and {other} are taken for each other")),
            _ => Ok(()),
        }
    }

    /// Checks that an image holds one of the permitted states. Returns the index of the first
    /// matching one.
    ///
    /// # Errors
    /// Fails if the image holds none of them.
    pub fn judge(
        &mut self,
        image: &SimVolume,
        allowed: &[State],
        runtime: &Runtime,
    ) -> Result<(usize, Arc<Held>), String> {
        let held = self.open(image, runtime)?;
        let place = allowed.iter().position(|state| held.is(state));
        place.map(|place| (place, Arc::clone(&held))).ok_or_else(|| {
            let states: Vec<String> = allowed.iter().map(ToString::to_string).collect();
            format!("the database holds\n{}and should hold\n{}", held.describe(), states.join(" or\n"))
        })
    }
}

/// Checks that queries return the rows that were read.
async fn by_queries(database: &Database, tables: &BTreeMap<String, Rows>) -> Result<(), String> {
    let session = database.session().map_err(|e| e.to_string())?;
    for (name, rows) in tables {
        let found = rows_of(&session, &format!("SELECT id, v, s FROM {name}")).await.map_err(|e| e.to_string())?;
        if found != *rows {
            return Err(format!("a query of {name} gives other rows than it has: {found:?}, {rows:?}"));
        }
    }
    Ok(())
}
