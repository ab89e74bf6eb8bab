//! `CHECKPOINT [table, ...]` moves rows outside segments into segments. It rewrites segments with
//! many deleted rows, without these rows. Query results are the same before and after.
//!
//! 1. The statement takes the writer slot, so the table does not change meanwhile. Readers
//!    continue.
//! 2. It collects the rows and the live rows of the segments to be rewritten, sorts them if the
//!    table is sorted, writes them to segment files and syncs these.
//! 3. One commit adds the new segments and removes the rows and segments they replace.
//!
//! A segment is rewritten if half of its rows are deleted. In a table without partitions it is also
//! rewritten if it has less than twice as many rows as are outside segments. A table that grows in
//! small steps thus has few segments, and each row is rewritten about log n times in a table of n
//! rows.

use std::sync::Arc;

use datafusion::sql::sqlparser::ast::ObjectName;
use datafusion::sql::sqlparser::parser::{Parser, ParserError};
use datafusion::sql::sqlparser::tokenizer::Token;
use onehop_store::mutant::skips;

use super::{Context, done, insert, modify, table_name};
use crate::edit::TableEdit;
use crate::identifiers::quoted;
use crate::load::Beside;
use crate::query::Done;
use crate::snapshot::{Table, TableSegment};
use crate::{Error, ErrorKind, Result, task};

/// A parsed `CHECKPOINT`.
#[derive(Debug)]
pub(super) struct Checkpoint {
    /// The named tables. Empty for all tables.
    tables: Vec<String>,
}

/// Parses the names after `CHECKPOINT`.
pub(super) fn parse(parser: &mut Parser<'_>) -> Result<Checkpoint> {
    let names = parse_names(parser).map_err(|e| super::syntax::<()>(Err(e)))?;
    Ok(Checkpoint { tables: names.iter().map(table_name).collect::<Result<_>>()? })
}

fn parse_names(parser: &mut Parser<'_>) -> std::result::Result<Vec<ObjectName>, ParserError> {
    match parser.peek_token().token {
        Token::EOF | Token::SemiColon => Ok(Vec::new()),
        _ => parser.parse_comma_separated(|parser| parser.parse_object_name(false)),
    }
}

impl Checkpoint {
    /// Returns the named tables.
    pub fn tables(&self) -> &[String] {
        &self.tables
    }

    /// Runs the statement.
    pub async fn run(self, context: &Context<'_>) -> Result<Done> {
        let names = match self.tables.is_empty() {
            true => context.snapshot.tables().map(|table| table.name.clone()).collect(),
            false => self.tables,
        };
        let (temporary, permanent) = context.apart(names);
        let of_temporary = context.of_tables(&temporary)?;
        if temporary.is_empty() || !permanent.is_empty() {
            context.database.check_writable()?;
        }
        for name in &permanent {
            insert::own_table(name, context)?;
        }
        for name in &permanent {
            checkpoint(name, context).await?;
        }
        if let Some(context) = of_temporary {
            for name in &temporary {
                checkpoint(name, &context).await?;
            }
        }
        Ok(done("CHECKPOINT", None))
    }
}

/// Checkpoints tables that are due after a commit. An error becomes a notice, since the commit is
/// done.
pub(super) async fn if_due(names: &[String], context: &Context<'_>) {
    let Some(most) = context.settings().checkpoint_rows() else { return };
    let snapshot = context.database.snapshot();
    for table in names.iter().filter_map(|name| snapshot.table(name)) {
        if (table.fresh.rows().max(table.deleted_rows()) >= most || table.fresh.bytes() >= MOST_BYTES)
            && let Err(e) = Box::pin(checkpoint(&table.name, context)).await
        {
            context.query.notice(format!("table \"{}\" could not be checkpointed: {e}", table.name));
        }
    }
}

/// Maximum bytes of rows outside segments in each table, before a checkpoint is due.
const MOST_BYTES: u64 = 256 << 20;

async fn checkpoint(name: &str, context: &Context<'_>) -> Result<()> {
    task::long().await;
    let writing = context.database.writing(&context.settings()).await?;
    let seen = context.database.head(&writing)?;
    // Another session may have dropped the table meanwhile.
    let Some(table) = seen.table(name) else { return Ok(()) };
    let segments: Vec<TableSegment> =
        table.segments.iter().filter(|segment| is_rewritten(segment, table)).cloned().collect();
    if table.fresh.is_empty() && !segments.iter().any(|segment| segment.deleted.is_some()) {
        return Ok(());
    }
    segments.iter().try_for_each(TableSegment::check_deleted)?;
    let mut edit = TableEdit::default();
    edit.gone_segments.extend(segments.iter().map(|segment| segment.entry.file.clone()));
    for (ids, _) in table.fresh.batches()? {
        edit.gone_rows.extend(ids);
    }
    let moved = Arc::new(Table { segments, fresh: Arc::clone(&table.fresh), ..Table::clone(table) });
    let of_target = context.of_target(&seen, &moved)?;
    let columns: Vec<String> = table.entry.columns.iter().map(|column| quoted(&column.name)).collect();
    let plan = of_target.plan_query(modify::target_query(&columns.join(", "))?).await?;
    let target = context.load_target(table);
    let loaded = insert::load(plan, &table.entry.cluster_by, &target, 0, &Beside::default(), &of_target).await?;
    if loaded.count() != moved.rows() {
        let message = format!("{} of {} rows of table \"{name}\" came to a checkpoint", loaded.count(), moved.rows());
        return Err(Error::new(ErrorKind::Internal, message));
    }
    edit.segments = loaded.segments.into_iter().map(|entry| target.segment_file(entry, name)).collect();
    if skips("checkpoint.commit-first") {
        for file in &edit.gone_segments {
            let _ = context.database.segments().remove(file);
        }
    }
    let commit = context.database.edit(writing, &[(name.to_string(), edit)], &seen)?;
    target.keep_files();
    commit.wait(context.query.shared_ledger()).await?;
    super::residence::follow(name, context).await
}

fn is_rewritten(segment: &TableSegment, table: &Table) -> bool {
    let (rows, live) = (segment.entry.rows, segment.live_rows());
    live * 2 <= rows || (table.entry.partition_by.is_none() && live < 2 * table.fresh.rows())
}
