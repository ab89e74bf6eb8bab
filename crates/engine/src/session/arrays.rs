//! Returns a table's columns as arrays.
//!
//! If all rows are in segments and there is a device, the device decodes the columns and keeps
//! them, so a second call moves no data. Otherwise a query reads the rows and they are
//! concatenated. This covers fresh and deleted rows, types that a device lacks, and host memory.

use std::pin::pin;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::common::DataFusionError;
use datafusion::physical_plan::execute_stream;
use futures::StreamExt;
use futures::future::BoxFuture;
use onehop_pipeline::arrays::Element;
use onehop_pipeline::backend::{Backend, Stored};
use onehop_pipeline::{Error as PipelineError, SegmentSource, Source};
use onehop_segment::{BlockCache, ColumnType};

use super::{Session, watched};
use crate::arrays::{
    Array, ArrayMaker, Arrays, Layout, Memory, Nulls, TableExports, Target, Wanted, host, with_cancelled,
};
use crate::database::Database;
use crate::fusing::Fusing;
use crate::identifiers::quoted;
use crate::limits::Limits;
use crate::lower::StopOnDrop;
use crate::place::{Placing, residence};
use crate::query::Rows;
use crate::settings::{ExecMode, Settings};
use crate::snapshot::{Snapshot, Table};
use crate::task::spawn_blocking;
use crate::transaction::refuse_failed;
use crate::transaction_state::TransactionState;
use crate::{Error, ErrorKind, Query, Result, planner, query_planner};

/// Outcomes without decoded columns. `Elsewhere` is no error: a query returns the same rows.
enum Miss {
    Elsewhere,
    Failed(Error),
}

impl From<Error> for Miss {
    fn from(e: Error) -> Self {
        Self::Failed(e)
    }
}

/// Exports from a session of their own: tables as they are committed, independent of the calling
/// session.
pub(super) struct CommittedTables {
    pub database: Database,
    pub settings: Settings,
}

impl TableExports for CommittedTables {
    fn snapshot(&self) -> Arc<Snapshot> {
        self.database.snapshot()
    }

    fn export(&self, table: String, wanted: Wanted, query: Arc<Query>) -> BoxFuture<'static, Result<String>> {
        let (database, settings) = (self.database.clone(), self.settings.clone());
        Box::pin(async move {
            let session = Session::new(database.clone(), settings)?;
            let arrays = session.table_arrays(&table, &wanted).await?;
            let maker = session.array_maker(query);
            let export = move || {
                let device = match arrays.arrays.first().map(|array| &array.memory) {
                    Some(Memory::Device(memory)) => Some(maker.device_of(&**memory)?),
                    _ => None,
                };
                database.exports().export(&table, arrays, device)
            };
            spawn_blocking(export).await.map_err(|e| Error::new(ErrorKind::Internal, e.to_string()))?
        })
    }

    fn release(&self, handle: &str) -> Result<bool> {
        self.database.exports().release(handle)
    }
}

impl Session {
    /// Returns the maker of arrays from the rows of a statement of this session.
    pub fn array_maker(&self, query: Arc<Query>) -> ArrayMaker {
        let placing = Placing::new(self.database().known(), &self.current_settings());
        ArrayMaker { placing, query }
    }

    /// Returns columns of a table as arrays, with its current rows. Accepts views and registered
    /// relations too. The name is taken literally, as if in quotes.
    ///
    /// # Errors
    /// The errors of [`ArrayMaker::of_rows`], and those of reading the table.
    pub async fn table_arrays(&self, table: &str, wanted: &Wanted) -> Result<Arrays> {
        let text = select(table, &wanted.columns);
        let work = Box::pin(self.decoded(table, wanted, &text));
        if let Some(arrays) = work.await? {
            return Ok(arrays);
        }
        let (schema, batches) = Box::pin(self.in_order(&text)).await?;
        let (maker, wanted) = (self.array_maker(self.query()), wanted.clone());
        let home = self.snapshot().table(table).and_then(|table| table.entry.residence.clone());
        joined(spawn_blocking(move || {
            let target = maker.backend(&wanted.target, home.as_deref())?;
            let target = target.map_or(Target::Host, |backend| Target::Device(backend.name().into()));
            maker.of_rows(&schema, &batches, &Wanted { target, ..wanted })
        }))
        .await
    }

    /// Returns the rows of a query. Rows of a table come in storage order, so that columns fetched
    /// by separate calls have the same rows at the same positions.
    async fn in_order(&self, text: &str) -> Result<(SchemaRef, Vec<RecordBatch>)> {
        if self.transaction() == TransactionState::Failed {
            return Err(refuse_failed());
        }
        let query = self.start_query(text, Limits::of(&self.current_settings()));
        let planned = async {
            let mut state = self.state(&query, &self.snapshot())?;
            // Several threads would each read a part, in no order, as would a device or a pipeline.
            state.config_mut().options_mut().execution.target_partitions = 1;
            if let Some(fusing) = state.config().get_extension::<Fusing>() {
                let fusing = Fusing { mode: ExecMode::DataFusion, ..(*fusing).clone() };
                state.config_mut().set_extension(Arc::new(fusing));
            }
            let plan = planner::plan_text(&state, text).await?;
            let physical = query_planner::physical_plan(&state, &plan, &query).await?;
            query.planned();
            Ok(Rows::new(execute_stream(physical, state.task_ctx())?, &query))
        };
        let mut rows = watched(&query, pin!(planned)).await?;
        let (schema, mut batches) = (Arc::clone(rows.schema()), Vec::new());
        while let Some(batch) = rows.next().await {
            batches.push(batch?);
        }
        Ok((schema, batches))
    }

    /// Returns columns that a device decodes; `None` if there is no device or it cannot decode
    /// them.
    async fn decoded(&self, name: &str, wanted: &Wanted, text: &str) -> Result<Option<Arrays>> {
        if wanted.target == Target::Host {
            return Ok(None);
        }
        let snapshot = self.snapshot();
        let table = snapshot.table(name).filter(|table| table.is_settled() && !self.relations().contains_key(name));
        let table = table.filter(|_| snapshot.only_once(name).is_ok());
        let Some(table) = table.cloned() else { return Ok(None) };
        let settings = self.current_settings();
        let placing = Placing::new(self.database().known(), &settings);
        let may = placing.may_use_devices() || matches!(wanted.target, Target::Device(_));
        if !may {
            return Ok(None);
        }
        let cache = Arc::new(self.database().cache().by_path(settings.io_path()));
        let query = self.start_query(text, Limits::of(&self.current_settings()).without_time());
        let maker = ArrayMaker { placing, query: Arc::clone(&query) };
        let (stop, wanted) = (StopOnDrop::default(), wanted.clone());
        let cancelled = Arc::clone(&stop.0);
        let rows = table.rows();
        let made = joined(spawn_blocking(move || {
            let stored = StoredTable { table: &table, cache: &cache, maker: &maker, cancelled: &cancelled };
            match stored.arrays(&wanted) {
                Ok(arrays) => Ok(Some(arrays)),
                Err(Miss::Elsewhere) => Ok(None),
                Err(Miss::Failed(e)) => Err(e),
            }
        }));
        let made = made.await;
        match &made {
            Ok(Some(_)) => query.made_rows(rows),
            Ok(None) => {}
            Err(e) => query.failed(e),
        }
        query.done();
        made
    }
}

async fn joined<T: Send + 'static>(task: tokio::task::JoinHandle<Result<T>>) -> Result<T> {
    task.await.map_err(|e| Error::from(DataFusionError::ExecutionJoin(Box::new(e))))?
}

/// Returns the query for columns.
fn select(table: &str, columns: &[String]) -> String {
    let columns: Vec<String> = columns.iter().map(|column| quoted(column)).collect();
    let columns = if columns.is_empty() { "*".into() } else { columns.join(", ") };
    format!("SELECT {columns} FROM {}", quoted(table))
}

/// A table whose rows are all in segments.
struct StoredTable<'a> {
    table: &'a Table,
    cache: &'a Arc<BlockCache>,
    maker: &'a ArrayMaker,
    cancelled: &'a std::sync::atomic::AtomicBool,
}

impl StoredTable<'_> {
    fn arrays(&self, wanted: &Wanted) -> std::result::Result<Arrays, Miss> {
        let home = self.table.entry.residence.as_deref();
        let Some(backend) = self.maker.backend(&wanted.target, home)? else { return Err(Miss::Elsewhere) };
        if backend.arrays().is_none() || self.table.segments.is_empty() {
            return Err(Miss::Elsewhere);
        }
        let schema = &self.table.schema;
        let places = host::places(schema, &wanted.columns)?;
        let columns = places.iter().map(|place| Ok((*place, self.element(*place, wanted.nulls)?)));
        let columns = columns.collect::<Result<Vec<(usize, Element)>>>()?;
        let names: Vec<String> = places.iter().map(|place| schema.field(*place).name().clone()).collect();
        let arrays = match wanted.layout {
            Layout::Columns => {
                columns.iter().map(|(place, element)| self.array(&backend, &[*place], *element, None)).collect()
            }
            Layout::Matrix => {
                let elements = columns.iter().map(|(_, element)| *element);
                let element = host::agree(names.iter().map(String::as_str).zip(elements))?.ok_or(Miss::Elsewhere)?;
                self.array(&backend, &places, element, Some(places.len())).map(|array| vec![array])
            }
        };
        Ok(Arrays { columns: names, arrays: arrays? })
    }

    /// Returns the element type of a column's array. The zones tell whether the column has NULLs.
    fn element(&self, place: usize, nulls: Nulls) -> Result<Element> {
        let field = self.table.schema.field(place);
        let (element, mut count) = (host::need_element(field)?, 0);
        for segment in &self.table.segments {
            let segment = segment.segment()?;
            count += (0..segment.blocks()).map(|block| segment.zone(place, block).null_count).sum::<u64>();
        }
        host::with_nulls(field.name(), element, count, nulls)
    }

    fn array(
        &self,
        backend: &Arc<dyn Backend>,
        places: &[usize],
        element: Element,
        columns: Option<usize>,
    ) -> std::result::Result<Array, Miss> {
        let Some(arrays) = backend.arrays() else { return Err(Miss::Elsewhere) };
        let wanted = residence::Wanted { table: self.table, columns: places, home: None };
        let stored = wanted.stored(places)?;
        let source = match self.source(places, &stored) {
            Ok(source) => source,
            Err(Failure::Pipeline(PipelineError::Unsupported(_))) => return Err(Miss::Elsewhere),
            Err(Failure::Pipeline(e)) => return Err(Miss::Failed(e.into())),
            Err(Failure::Engine(e)) => return Err(Miss::Failed(e)),
        };
        let query = &self.maker.query;
        let mut unsupported = false;
        let made = with_cancelled(query, self.cancelled, |control| {
            let made = arrays.decode(&source, &stored, element, self.maker.placing.memory, control);
            unsupported = matches!(made, Err(PipelineError::Unsupported(_)));
            made
        });
        match made {
            Ok(memory) => {
                let rows = source.all_rows() as usize;
                Ok(Array { element, rows, columns, memory: Memory::Device(memory) })
            }
            Err(_) if unsupported => Err(Miss::Elsewhere),
            Err(e) => Err(Miss::Failed(e)),
        }
    }

    fn source(&self, places: &[usize], stored: &Stored) -> std::result::Result<Arc<dyn Source>, Failure> {
        let typed = places.iter().map(|place| {
            let field = self.table.schema.field(*place);
            Ok((*place, ColumnType::of(field.name(), field.data_type())?, field.is_nullable()))
        });
        let typed = typed.collect::<std::result::Result<Vec<_>, onehop_segment::Error>>();
        let typed = typed.map_err(|e| Failure::Engine(e.into()))?;
        let (cache, ledger) = (Arc::clone(self.cache), Arc::clone(self.maker.query.shared_ledger()));
        let source = SegmentSource::new(&self.table.name, Arc::clone(&stored.blocks), &typed, cache, ledger, 0);
        Ok(Arc::new(source.map_err(Failure::Pipeline)?))
    }
}

enum Failure {
    Pipeline(PipelineError),
    Engine(Error),
}
