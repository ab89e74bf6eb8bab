//! The facade: a database directory, sessions on it, SQL in, Arrow batches out.
//!
//! ```no_run
//! use futures::StreamExt;
//! use onehop_engine::{Database, DatabaseOptions, Output};
//!
//! # async fn example() -> onehop_engine::Result<()> {
//! let database = Database::open("flights.onehop".as_ref(), &DatabaseOptions::default())?;
//! let session = database.session()?;
//! if let Output::Rows(mut rows) = session.sql("SELECT origin, count(*) FROM flights GROUP BY origin").await? {
//!     while let Some(batch) = rows.next().await {
//!         println!("{} rows", batch?.num_rows());
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! This is the only crate that names DataFusion.

mod activity;
pub mod arrays;
mod attached;
pub mod backup;
mod bulk;
mod catalog;
pub mod check;
mod convert;
mod database;
mod definition;
mod deleted_vectors;
mod directory;
mod edit;
mod encoded;
mod error;
mod executors;
mod explain;
mod explanation;
mod files;
mod fresh;
mod functions;
mod fusing;
mod hash;
mod history;
mod identifiers;
mod learn;
mod life;
mod limits;
mod load;
mod lower;
mod memory_pool;
mod new_names;
mod orphans;
mod parameter;
mod partition;
mod pg_types;
mod pipeline_budget;
mod place;
mod planner;
mod plans;
mod postgres;
mod prepared;
mod query;
mod query_planner;
mod relation;
mod remote;
pub mod repair;
mod resolve;
mod rights;
mod runtimes;
mod scan;
mod scan_plan;
mod script;
mod segments;
mod session;
mod settings;
mod snapshot;
mod spill;
mod statement;
mod step;
mod system;
mod system_columns;
mod task;
mod template;
mod template_cache;
mod temporary;
mod transaction;
mod transaction_state;
mod type_names;
mod type_words;
pub mod units;
mod unsettle;
mod watched;
mod writer;

pub use activity::{Activity, Connected};
pub use bulk::{BulkLoad, BulkWriter};
pub use convert::{ColumnParser, ConversionError, Misfit, OnError, parse_column, parse_value};
pub use database::{Database, DatabaseOptions, MEMORY};
pub use definition::Definition;
pub use error::{Error, ErrorKind, Object, Place, Result, Rule};
pub use executors::{Executor, Executors, front, workers};
pub use explanation::{
    DevicePipeline, DeviceScan, DeviceShare, EXPLANATION_STYLE, EstimateFacts, ExplainMode, Explanation, Facts,
    GroupFacts, JoinFacts, Node, PartitionFacts, PassRun, PipelineTimes, PlacementFacts, PlanChange, RowFacts, Sampled,
    ScanFacts, TopFacts, Totals as ExplainTotals,
};
pub use files::json::values::writer as json_writer;
pub use parameter::{Temporal, Value};
pub use pg_types::array_text::items as array_items;
pub use pg_types::bytea::bytes as bytea_bytes;
pub use pg_types::column_text::{rows_in_zone, rows_with_far_texts, schema_in_zone, texts as column_texts};
pub use pg_types::interval_text::of_duration as interval_of_duration;
pub use pg_types::text as postgres_text;
pub use pg_types::types::{PgType, by_oid as postgres_type, of as postgres_type_of};
pub use pg_types::zone::Zone;
pub use postgres::ClientFacts;
pub use prepared::{Prepared, StatementKind};
pub use query::{Action, Done, Engine, Observer, Output, Progress, Query, QueryState, Rows, STACK_BYTES};
pub use relation::Relation;
pub use rights::{Access, Rights};
pub use script::{Script, is_complete};
pub use session::{Names, Session};
pub use settings::{Setting, SettingSource, parse_size, reaches_outside};
pub use statement::{ClientCopy, CopyDirection, CopyFormat, Described};
pub use task::{Ended, Task};
pub use transaction_state::TransactionState;
pub use type_names::sql_name;

pub use arrow;
pub use onehop_files::guard::{Panicked, caught_panics, guarded};
pub use onehop_io::{Hop, Ledger, LedgerSnapshot};
pub use onehop_pipeline::arrays::{DeviceMemory, Element};
pub use onehop_pipeline::backend;
pub use onehop_pipeline::bind::civil;
pub use onehop_pipeline::cpu::{Grouping, TableFacts, TableKind};
pub use onehop_postgres::without_addresses;

/// Values as `CAST(x AS VARCHAR)` writes them, whatever their type; NULL where they are.
///
/// # Errors
/// A value has no text, such as a duration of more microseconds than there is room for.
pub fn value_texts(values: &arrow::array::ArrayRef) -> Result<arrow::array::StringArray> {
    use arrow::array::AsArray;
    let texts = pg_types::column_text::texts_of_any(values, None)?;
    let texts = arrow::compute::cast(&texts, &arrow::datatypes::DataType::Utf8)?;
    Ok(texts.as_string::<i32>().clone())
}
