//! `SHOW TABLES`, `SHOW CREATE TABLE name`, `SHOW ALL`, `SHOW setting`, `DESCRIBE table`.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, RecordBatch, StringArray};
use datafusion::physical_plan::memory::MemoryStream;
use datafusion::sql::sqlparser::ast::{Ident, ObjectName, ShowStatementOptions};
use datafusion::sql::sqlparser::parser::Parser;
use datafusion::sql::sqlparser::tokenizer::Token;

use super::{Context, table_name};
use crate::definition::definition;
use crate::query::{Output, Rows};
use crate::type_names::sql_name;
use crate::{Error, ErrorKind, Result, system};

/// A parsed statement of these.
#[derive(Debug)]
pub(super) enum Show {
    Tables,
    AllSettings,
    Setting(String),
    Describe(ObjectName),
    Create(ObjectName),
}

/// Parses `SHOW a.b`, where `a` may be a word that SHOW has a meaning for (`functions`).
pub(super) fn parse_dotted(parser: &mut Parser<'_>) -> Result<Option<Show>> {
    if parser.peek_nth_token(2).token != Token::Period {
        return Ok(None);
    }
    parser.next_token();
    let name = parser.parse_object_name(false).map_err(|e| super::syntax::<()>(Err(e)))?;
    let words: Vec<Ident> = name.0.iter().filter_map(|part| part.as_ident()).cloned().collect();
    Ok(Some(show_variable(&words)))
}

pub(super) fn show_variable(words: &[Ident]) -> Show {
    let name = words.iter().map(|word| word.value.to_lowercase()).collect::<Vec<_>>().join(".");
    match name.as_str() {
        "all" => Show::AllSettings,
        // The forms in which PostgreSQL's clients ask for them.
        "transaction.isolation.level" => Show::Setting("transaction_isolation".into()),
        "time.zone" => Show::Setting("timezone".into()),
        _ => Show::Setting(name),
    }
}

/// Converts `SHOW COLUMNS FROM x`, which is `DESCRIBE x`.
pub(super) fn show_columns(options: ShowStatementOptions) -> Result<Show> {
    let ShowStatementOptions { show_in, starts_with, limit, limit_from, filter_position } = options;
    if starts_with.is_some() || limit.is_some() || limit_from.is_some() || filter_position.is_some() {
        return Err(Error::new(ErrorKind::Invalid, "SHOW COLUMNS takes no condition")
            .with_hint("SELECT * FROM onehop_columns WHERE table_name = 't' AND column_name LIKE 'a%'"));
    }
    match show_in.and_then(|of| of.parent_name) {
        Some(name) => Ok(Show::Describe(name)),
        None => Err(Error::new(ErrorKind::Syntax, "SHOW COLUMNS is of a table, a view or a file")
            .with_hint("SHOW COLUMNS FROM t, or FROM 'x.csv'")),
    }
}

impl Show {
    /// Runs the statement.
    pub async fn run(self, context: &Context<'_>) -> Result<Output> {
        let batch = self.batch(context).await?;
        context.query.planned();
        let schema = batch.schema();
        let stream = MemoryStream::try_new(vec![batch], schema, None)?;
        Ok(Output::Rows(Rows::new(Box::pin(stream), &context.query)))
    }

    /// Returns the statement's rows.
    pub async fn batch(self, context: &Context<'_>) -> Result<RecordBatch> {
        Ok(match self {
            Self::Tables => system::show_tables(&context.snapshot)?,
            Self::AllSettings => system::settings_table(&context.settings().list())?,
            Self::Setting(name) => match context.session.parameters().get(&name) {
                Some(_) => {
                    let value: ArrayRef =
                        Arc::new(StringArray::from_iter_values([context.session.parameter(&name)?]));
                    RecordBatch::try_from_iter([(name, value)])?
                }
                None => system::settings_table(&[context.settings().get(&name)?])?,
            },
            Self::Describe(name) => describe(&name, context).await?,
            Self::Create(name) => create(&name, context)?,
        })
    }
}

/// Returns a row with the statement that creates the table or view.
fn create(name: &ObjectName, context: &Context<'_>) -> Result<RecordBatch> {
    let name = table_name(name)?;
    let catalog = &context.snapshot.catalog;
    let Some(mut definition) = definition(catalog, &name) else {
        let known = catalog.tables.keys().chain(catalog.views.keys()).map(String::as_str);
        return Err(Error::unknown_table(&name, known));
    };
    if context.snapshot.is_temporary(&name) {
        let id = catalog.tables.get(&name).map(|table| table.id);
        let on_commit = context.session.temporary().zip(id).map(|(temporary, id)| temporary.on_commit(id).clause());
        definition.sql = definition.sql.replacen("CREATE TABLE", "CREATE TEMPORARY TABLE", 1);
        definition.sql += on_commit.unwrap_or_default();
    }
    Ok(RecordBatch::try_from_iter([
        ("name", Arc::new(StringArray::from_iter_values([&definition.name])) as _),
        ("sql", Arc::new(StringArray::from_iter_values([&definition.sql])) as _),
    ])?)
}

async fn describe(name: &ObjectName, context: &Context<'_>) -> Result<RecordBatch> {
    let name = table_name(name)?;
    let reference = datafusion::common::TableReference::bare(name);
    let schema = context.state()?.schema_for_ref(reference.clone())?;
    let Some(table) = schema.table(reference.table()).await? else {
        return Err(Error::unknown_table(reference.table(), []));
    };
    let schema = table.schema();
    let fields = schema.fields();
    Ok(RecordBatch::try_from_iter([
        ("column_name", Arc::new(StringArray::from_iter_values(fields.iter().map(|f| f.name()))) as _),
        ("data_type", Arc::new(StringArray::from_iter_values(fields.iter().map(|f| sql_name(f.data_type())))) as _),
        ("is_nullable", Arc::new(BooleanArray::from_iter(fields.iter().map(|f| Some(f.is_nullable())))) as _),
    ])?)
}
