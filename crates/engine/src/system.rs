//! System tables: what the engine knows of itself, as rows. `onehop_tables`, `onehop_columns`, `onehop_segments`,
//! `onehop_settings`, `onehop_queries`, `onehop_resident`, `onehop_models`, `onehop_model_terms`, `onehop_functions`,
//! `onehop_store`, `onehop_memory`, `onehop_activity`, `onehop_attached`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch};
use datafusion::catalog::TableProvider;
use datafusion::datasource::MemTable;
use onehop_governor::{self as governor, Usage};
use onehop_io::LedgerSnapshot;
use onehop_pipeline::backend::{Backend, Resident, SegmentKey};
use onehop_segment::{BlockCache, EncodingCode};

use crate::attached::Attached;
use crate::catalog::{CatalogStore, StoreReport};
use crate::database::Database;
use crate::history::History;
use crate::place::Known;
use crate::query::Lowering;
use crate::runtimes::Runtimes;
use crate::settings::{Setting, Settings};
use crate::snapshot::{Snapshot, Table, TableSegment};
use crate::system_columns::{moments, numbers, optional_text, text};
use crate::{Result, activity, functions, learn, planner};

/// What system tables are made of.
#[derive(Clone, Copy)]
pub(crate) struct System<'a> {
    pub snapshot: &'a Snapshot,
    pub settings: &'a Settings,
    pub history: &'a History,
    pub known: &'a Known,
    pub store: &'a dyn CatalogStore,
    pub cache: &'a BlockCache,
    pub runtimes: &'a Runtimes,
    pub attached: &'a Attached,
}

/// A system table, if that is one's name.
pub(crate) fn table(name: &str, system: &System<'_>) -> Result<Option<Arc<dyn TableProvider>>> {
    let Some(batch) = batch(name, system)? else { return Ok(None) };
    Ok(Some(Arc::new(MemTable::try_new(batch.schema(), vec![vec![batch]])?)))
}

/// Its rows.
pub(crate) fn batch(name: &str, system: &System<'_>) -> Result<Option<RecordBatch>> {
    let System { snapshot, settings, history, known, store, cache, runtimes, attached } = *system;
    Ok(Some(match name {
        "onehop_tables" => tables(snapshot)?,
        "onehop_columns" => columns(snapshot)?,
        "onehop_segments" => segments(snapshot)?,
        "onehop_store" => store_table(&store.report())?,
        "onehop_settings" => settings_table(&settings.list())?,
        "onehop_activity" => activity::table(&history.activities)?,
        "onehop_queries" => queries(history)?,
        "onehop_resident" => resident(snapshot, known)?,
        "onehop_functions" => functions::functions(&snapshot.catalog)?,
        "onehop_models" => learn::models(&snapshot.catalog)?,
        "onehop_passes" => planner::passes_table()?,
        "onehop_model_terms" => learn::model_terms(&snapshot.catalog)?,
        "onehop_attached" => attached_table(attached)?,
        "onehop_memory" => memory_table(settings.memory_limit_bytes(), cache, runtimes, known)?,
        _ => return Ok(None),
    }))
}

impl Database {
    /// A system table as it stands, `onehop_memory` for one; `None` if there is none of that name.
    ///
    /// # Errors
    /// A segment that it tells of cannot be opened.
    pub fn system_table(&self, name: &str) -> Result<Option<RecordBatch>> {
        let snapshot = self.snapshot();
        // These are a session's.
        let attached = &Attached::new();
        let system = System {
            snapshot: &snapshot,
            settings: self.settings(),
            history: self.history(),
            known: self.known(),
            store: &**self.store(),
            cache: self.cache(),
            runtimes: self.runtimes(),
            attached,
        };
        batch(name, &system)
    }
}

fn tables(snapshot: &Snapshot) -> Result<RecordBatch> {
    let tables: Vec<_> = snapshot.tables().collect();
    Ok(RecordBatch::try_from_iter([
        ("table_name", text(tables.iter().map(|t| &t.name))),
        ("rows", numbers(tables.iter().map(|t| t.rows()))),
        ("size_bytes", numbers(tables.iter().map(|t| t.entry.bytes()))),
        ("segments", numbers(tables.iter().map(|t| t.entry.segments.len() as u64))),
        (
            "cluster_by",
            optional_text(tables.iter().map(|t| Some(t.entry.cluster_by.join(", ")).filter(|c| !c.is_empty()))),
        ),
        ("partition_by", optional_text(tables.iter().map(|t| t.entry.partition_by.as_ref().map(ToString::to_string)))),
        ("fresh_rows", numbers(tables.iter().map(|t| t.fresh.rows()))),
        ("deleted_rows", numbers(tables.iter().map(|t| t.deleted_rows()))),
    ])?)
}

/// `SHOW TABLES`: tables and views.
pub(crate) fn show_tables(snapshot: &Snapshot) -> Result<RecordBatch> {
    let views = snapshot.catalog.views.keys().map(|name| (name.as_str(), "view", None));
    let kind = |name: &str| if snapshot.is_temporary(name) { "temporary table" } else { "table" };
    let tables = snapshot.tables().map(|t| (t.name.as_str(), kind(&t.name), Some(t.rows() as i64)));
    let mut all: Vec<_> = tables.chain(views).collect();
    all.sort_unstable();
    Ok(RecordBatch::try_from_iter_with_nullable([
        ("name", text(all.iter().map(|(name, ..)| name)), false),
        ("kind", text(all.iter().map(|(_, kind, _)| kind)), false),
        ("rows", Arc::new(Int64Array::from_iter(all.iter().map(|(.., rows)| *rows))) as ArrayRef, true),
    ])?)
}

/// One row per column of a table and encoding it has in some of its segments.
fn columns(snapshot: &Snapshot) -> Result<RecordBatch> {
    struct Row {
        table: String,
        column: String,
        type_name: String,
        nullable: bool,
        encoding: &'static str,
        width: u64,
        segments: u64,
        stored_bytes: u64,
        null_count: u64,
    }
    let mut rows: Vec<Row> = Vec::new();
    for table in snapshot.tables() {
        for (index, column) in table.entry.columns.iter().enumerate() {
            let first = rows.len();
            for file in &table.segments {
                let info = file.segment()?.column(index);
                let (encoding, width) = (encoding_name(info.encoding, info.width), u64::from(info.width));
                let known = rows[first..].iter_mut().find(|row| row.encoding == encoding && row.width == width);
                match known {
                    Some(row) => {
                        row.segments += 1;
                        row.stored_bytes += info.stored_bytes;
                        row.null_count += info.zone.null_count;
                    }
                    None => rows.push(Row {
                        table: table.name.clone(),
                        column: column.name.clone(),
                        type_name: column.type_name.clone(),
                        nullable: column.nullable,
                        encoding,
                        width,
                        segments: 1,
                        stored_bytes: info.stored_bytes,
                        null_count: info.zone.null_count,
                    }),
                }
            }
        }
    }
    Ok(RecordBatch::try_from_iter([
        ("table_name", text(rows.iter().map(|r| &r.table))),
        ("column_name", text(rows.iter().map(|r| &r.column))),
        ("data_type", text(rows.iter().map(|r| &r.type_name))),
        ("is_nullable", Arc::new(BooleanArray::from_iter(rows.iter().map(|r| Some(r.nullable)))) as ArrayRef),
        ("encoding", text(rows.iter().map(|r| r.encoding))),
        ("width", numbers(rows.iter().map(|r| r.width))),
        ("segments", numbers(rows.iter().map(|r| r.segments))),
        ("stored_bytes", numbers(rows.iter().map(|r| r.stored_bytes))),
        ("null_count", numbers(rows.iter().map(|r| r.null_count))),
    ])?)
}

fn encoding_name(encoding: EncodingCode, width: u8) -> &'static str {
    match encoding {
        EncodingCode::Packed if width == 0 => "constant",
        EncodingCode::Packed => "packed",
        EncodingCode::Dictionary => "dictionary",
        EncodingCode::Plain => "plain",
        EncodingCode::Text => "text",
    }
}

fn segments(snapshot: &Snapshot) -> Result<RecordBatch> {
    let rows: Vec<_> = snapshot.tables().flat_map(|t| t.segments.iter().map(move |s| (t, s))).collect();
    let partition = |(table, segment): &(&Arc<Table>, &TableSegment)| {
        table.entry.partition_by.as_ref().map(|by| by.name(segment.entry.partition))
    };
    Ok(RecordBatch::try_from_iter([
        ("table_name", text(rows.iter().map(|(t, _)| &t.name))),
        ("file", text(rows.iter().map(|(_, s)| &s.entry.file))),
        ("partition", optional_text(rows.iter().map(partition))),
        ("rows", numbers(rows.iter().map(|(_, s)| s.entry.rows))),
        ("size_bytes", numbers(rows.iter().map(|(_, s)| s.entry.bytes))),
        ("deleted_rows", numbers(rows.iter().map(|(_, s)| s.entry.rows - s.live_rows()))),
        ("path", text(rows.iter().map(|(_, s)| s.path()))),
    ])?)
}

/// The statements that ran last in this process, as they stand: the one that asks is running.
fn queries(history: &History) -> Result<RecordBatch> {
    let queries = history.queries();
    let ledgers: Vec<LedgerSnapshot> = queries.iter().map(|query| query.ledger()).collect();
    let lowered: Vec<Lowering> = queries.iter().map(|query| query.lowering()).collect();
    let seconds = |times: &mut dyn Iterator<Item = Duration>| -> ArrayRef {
        Arc::new(Float64Array::from_iter_values(times.map(|time| time.as_secs_f64())))
    };
    let reasons = |lowering: &Lowering| {
        let mut reasons: Vec<&str> = lowering.refused.iter().map(|refusal| refusal.reason.as_str()).collect();
        reasons.sort_unstable();
        reasons.dedup();
        (!reasons.is_empty()).then(|| reasons.join("; "))
    };
    let mut columns: Vec<(&str, ArrayRef, bool)> = vec![
        ("id", numbers(queries.iter().map(|query| query.id())), false),
        ("session", numbers(queries.iter().map(|query| query.session())), false),
        ("state", text(queries.iter().map(|query| query.state().name())), false),
        ("text", text(queries.iter().map(|query| query.text())), false),
        ("started_at", moments(queries.iter().map(|query| Some(query.started_at()))), false),
        ("seconds", seconds(&mut queries.iter().map(|query| query.total_time())), false),
        ("plan_seconds", seconds(&mut queries.iter().map(|query| query.plan_time())), false),
        ("rows", numbers(queries.iter().map(|query| query.rows())), false),
        ("error", optional_text(queries.iter().map(|query| query.error().map(String::from))), true),
        ("fused_parts", numbers(lowered.iter().map(|lowering| lowering.fused)), false),
        ("not_fused", optional_text(lowered.iter().map(reasons)), true),
        ("engine", text(queries.iter().map(|query| query.engine().name())), false),
    ];
    let amplification = ledgers.iter().map(LedgerSnapshot::copy_amplification);
    columns.push(("copy_amplification", Arc::new(Float64Array::from_iter(amplification)), true));
    for (place, (name, _)) in LedgerSnapshot::default().counters().enumerate() {
        let counts = ledgers.iter().map(|ledger| ledger.counters().nth(place).map_or(0, |(_, count)| count));
        columns.push((name, numbers(counts), false));
    }
    Ok(RecordBatch::try_from_iter_with_nullable(columns)?)
}

/// What devices have of columns: a row for each device and column. Nobody looks for a device on this account.
fn resident(snapshot: &Snapshot, known: &Known) -> Result<RecordBatch> {
    struct Row {
        device: String,
        /// Of what no table of this moment has any more, nothing is known but that it is there.
        table: Option<(String, String)>,
        segments: u64,
        bytes: u64,
        hits: u64,
        is_kept: bool,
        pins: u64,
    }
    let mut names = HashMap::new();
    for table in snapshot.tables() {
        for segment in table.segments.iter().filter_map(|file| file.opened()) {
            names.insert(SegmentKey::of(segment), table);
        }
    }
    let mut rows: Vec<Row> = Vec::new();
    for backend in known.devices().map_or(&[][..], |devices| devices.found()) {
        for Resident { segment, column, bytes, hits, is_kept, pins } in
            backend.residency().iter().flat_map(|residency| residency.list())
        {
            let named =
                names.get(&segment).map(|table| (table.name.clone(), table.schema.field(column).name().clone()));
            match rows.iter_mut().find(|row| row.device == backend.name() && row.table == named) {
                Some(row) => {
                    row.segments += 1;
                    row.bytes += bytes;
                    row.hits += hits;
                    row.is_kept &= is_kept;
                    row.pins += pins;
                }
                None => rows.push(Row {
                    device: backend.name().into(),
                    table: named,
                    segments: 1,
                    bytes,
                    hits,
                    is_kept,
                    pins,
                }),
            }
        }
    }
    rows.sort_by(|a, b| (&a.device, &a.table).cmp(&(&b.device, &b.table)));
    let table = |row: &Row| row.table.as_ref().map(|(table, _)| table.clone());
    let column = |row: &Row| row.table.as_ref().map(|(_, column)| column.clone());
    let flags =
        |flag: fn(&Row) -> bool| Arc::new(BooleanArray::from_iter(rows.iter().map(|row| Some(flag(row))))) as ArrayRef;
    Ok(RecordBatch::try_from_iter_with_nullable([
        ("device", text(rows.iter().map(|row| &row.device)), false),
        ("table_name", optional_text(rows.iter().map(table)), true),
        ("column_name", optional_text(rows.iter().map(column)), true),
        ("segments", numbers(rows.iter().map(|row| row.segments)), false),
        ("bytes", numbers(rows.iter().map(|row| row.bytes)), false),
        ("hits", numbers(rows.iter().map(|row| row.hits)), false),
        ("is_kept", flags(|row| row.is_kept), false),
        ("is_pinned", flags(|row| row.pins > 0), false),
    ])?)
}

/// Databases of PostgreSQL that the session has attached.
fn attached_table(attached: &Attached) -> Result<RecordBatch> {
    Ok(RecordBatch::try_from_iter([
        ("name", text(attached.keys())),
        ("address", text(attached.values().map(|server| server.place()))),
    ])?)
}

/// What takes memory, and how much it may take, where that is known.
fn memory_table(limit: u64, cache: &BlockCache, runtimes: &Runtimes, known: &Known) -> Result<RecordBatch> {
    let Usage { counted, overhead, resident } = governor::usage();
    let limit = i64::try_from(limit).ok();
    let process =
        [("process", resident, limit), ("allocated", counted, None), ("program and free pages", overhead, None)];
    let process = process.into_iter().filter(|_| governor::is_counting());
    let process = process.map(|(name, bytes, limit)| (name.to_string(), bytes, limit));
    let blocks = ("block cache".to_string(), cache.bytes() as u64, Some(cache.budget() as i64));
    // One for each limit that is in force.
    let statements = |(limit, used)| ("statements".to_string(), used, i64::try_from(limit).ok());
    let reserved = runtimes.memory().into_iter().map(statements);
    let each = governor::accounts().into_iter().filter(|_| governor::is_counting());
    let each = each
        .map(|account| (format!("statement {}", account.id()), account.bytes(), i64::try_from(account.limit()).ok()));
    let host = process.chain([blocks]).chain(reserved).chain(each);
    let devices = known.devices().map_or(&[][..], |devices| devices.found());
    let resident = |device: &Arc<dyn Backend>| device.residency().map(|residency| residency.list());
    let columns = devices.iter().filter_map(|device| {
        let bytes = resident(device)?.iter().map(|column| column.bytes).sum();
        Some((format!("columns on {}", device.name()), bytes, None))
    });
    let rows: Vec<(String, u64, Option<i64>)> = host.chain(columns).collect();
    Ok(RecordBatch::try_from_iter_with_nullable([
        ("name", text(rows.iter().map(|(name, ..)| name)), false),
        ("used_bytes", numbers(rows.iter().map(|(_, used, _)| *used)), false),
        ("limit_bytes", Arc::new(Int64Array::from_iter(rows.iter().map(|(.., limit)| *limit))) as ArrayRef, true),
    ])?)
}

/// One row: what the store of the catalog and of fresh rows has done since the database was opened, and what it has.
fn store_table(report: &StoreReport) -> Result<RecordBatch> {
    let StoreReport { domain, stats } = report;
    let number = |n: u64| numbers([n]);
    Ok(RecordBatch::try_from_iter([
        ("safe_in", text([domain.to_string()])),
        ("commits", number(stats.transactions)),
        ("batches", number(stats.batches)),
        ("changed_pages", number(stats.changed_pages)),
        ("changed_lines", number(stats.changed_lines)),
        ("written_bytes", number(stats.backend.written_bytes)),
        ("flushed_lines", number(stats.backend.flushes)),
        ("fences", number(stats.backend.fences)),
        ("checkpoints", number(stats.backend.checkpoints)),
        ("pages", number(stats.backend.pages)),
        ("slots", number(stats.backend.slots)),
        ("free_slots", number(stats.backend.free_slots)),
    ])?)
}

/// `SHOW ALL` and `onehop_settings`.
pub(crate) fn settings_table(settings: &[Setting]) -> Result<RecordBatch> {
    Ok(RecordBatch::try_from_iter([
        ("name", text(settings.iter().map(|s| s.name))),
        ("value", text(settings.iter().map(|s| &s.value))),
        ("default", text(settings.iter().map(|s| &s.default))),
        ("source", text(settings.iter().map(|s| s.source.name()))),
        ("description", text(settings.iter().map(|s| s.description))),
    ])?)
}
