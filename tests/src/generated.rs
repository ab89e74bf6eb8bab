//! Databases that generators fill, and the rows that queries over them answer with.

use std::num::NonZeroUsize;
use std::sync::atomic::AtomicBool;

use futures::StreamExt;
use onehop_engine::arrow::util::display::{ArrayFormatter, FormatOptions};
use onehop_engine::{Error, Output, Result, Session};
use onehop_lab::generate::segments::load_table;
use onehop_lab::generate::{self, Generator};

/// Makes all tables of a generator, with their rows.
pub async fn load_all(generator: &dyn Generator, session: &Session) -> generate::Result<()> {
    for table in generator.tables() {
        session.sql(&table.ddl).await?;
        load_table(generator, &table, session, NonZeroUsize::MIN, &|_| {}, &AtomicBool::new(false))?;
    }
    Ok(())
}

/// The rows that a query answers with, the values of each with bars between; none of a statement that has no answer.
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
