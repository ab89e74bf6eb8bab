//! Databases that generators fill, and the rows of queries over them.

use std::num::NonZeroUsize;
use std::sync::atomic::AtomicBool;

use futures::StreamExt;
use onehop_engine::arrow::util::display::{ArrayFormatter, FormatOptions};
use onehop_engine::{Error, Output, Result, Session};
use onehop_lab::generate::segments::load_table;
use onehop_lab::generate::{self, Generator};

/// Creates all tables of a generator, with their rows.
pub async fn load_all(generator: &dyn Generator, session: &Session) -> generate::Result<()> {
    for table in generator.tables() {
        session.sql(&table.ddl).await?;
        load_table(generator, &table, session, NonZeroUsize::MIN, &|_| {}, &AtomicBool::new(false))?;
    }
    Ok(())
}

/// Returns the rows of a query, each as its values with bars between them. Returns no rows for a
/// statement without a result.
pub async fn rows(session: &Session, sql: &str) -> Result<Vec<String>> {
    let mut all = Vec::new();
    let Output::Rows(mut rows) = session.sql(sql).await? else { return Ok(all) };
    while let Some(batch) = rows.next().await {
        let batch = batch?;
        let options = FormatOptions::default();
        let columns = batch.columns().iter().map(|column| ArrayFormatter::try_new(column, &options));
        let columns = columns.collect::<std::result::Result<Vec<_>, _>>().map_err(Error::from)?;
        for row in 0..batch.num_rows() {
            let cells: Vec<String> = columns.iter().map(|column| column.value(row).to_string()).collect();
            all.push(cells.join("|"));
        }
    }
    Ok(all)
}
