//! `COPY table [(columns)] FROM 'path'`: rows of files into a table, in one commit.
//!
//! Options that the statement omits are inferred from the first line of each text file, and must be
//! the same in all files of a pattern. The line is a header if it holds the names of the wanted
//! columns. A header determines their order. A delimiter may end each line, as TPC-H's and SSB's
//! generators write it.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use arrow::datatypes::{Field, Schema};
use datafusion::catalog::TableProvider;
use datafusion::common::{Column, TableReference};
use datafusion::datasource::provider_as_source;
use datafusion::logical_expr::{LogicalPlan, LogicalPlanBuilder, cast, lit};
use datafusion::prelude::Expr;
use datafusion::scalar::ScalarValue;

use super::{Options, json};
use crate::error::nearest;
use crate::files::{Declared, Format, Sites, Source, Union, own_columns, parse_name};
use crate::query::Done;
use crate::snapshot::Table;
use crate::statement::{Context, done, insert};
use crate::{Error, ErrorKind, Result};

/// A parsed `COPY ... FROM`.
#[derive(Debug)]
pub(in crate::statement) struct CopyFrom {
    pub(super) table: String,
    pub(super) columns: Vec<String>,
    pub(super) path: String,
    pub(super) options: Options,
}

/// The properties inferred from the first line of a text file.
#[derive(Debug, PartialEq)]
struct Shape {
    /// The first line, if it is a header.
    header: Option<Vec<String>>,
    /// The wanted columns in the file's order.
    columns: Vec<Field>,
    has_trailing_delimiter: bool,
}

impl CopyFrom {
    /// Returns the table and the path.
    pub fn ends(&self) -> (&str, &str) {
        (&self.table, &self.path)
    }

    /// Runs the statement.
    pub async fn run(self, context: &Context<'_>) -> Result<Done> {
        let of_table = context.of_table(&self.table)?;
        let context = of_table.as_ref().unwrap_or(context);
        let table = insert::own_table(&self.table, context)?;
        let wanted = self.wanted_columns(&table)?;
        if self.options.compression.is_some() {
            let error = Error::new(ErrorKind::Invalid, "COMPRESSION is an option of COPY TO");
            return Err(error.with_hint("files that are read are compressed as their names say: x.csv.gz"));
        }
        let format = self.options.format.or_else(|| Format::parse(&parse_name(&self.path).extension).ok());
        // A name without a known extension is that of a text file. A directory's files have names
        // of their own.
        let sites = Sites::of(&**context.state()?)?;
        let source = Source::find(&self.path, format, Some(Format::Csv), sites).await?;
        self.options.check(source.format)?;
        let rows = match source.format {
            Format::Csv => self.open_csv(&source, &wanted, context).await?,
            Format::Json => json::open(&source, &wanted, &table.name, &self.path, context).await?,
            _ => source.table(&**context.state()?, &self.options.csv, Union::Same, None).await?,
        };
        let own = own_columns(&*rows);
        let plan = LogicalPlanBuilder::scan(TableReference::bare("file"), provider_as_source(rows), None)?.build()?;
        let plan = fit(plan, own, &wanted, &table, &self.path)?;
        let rows = insert::append(plan, &table, context).await?;
        Ok(done("COPY", Some(rows)))
    }

    /// Returns the table's columns that the file has.
    fn wanted_columns(&self, table: &Table) -> Result<Vec<Field>> {
        if self.columns.is_empty() {
            return Ok(table.schema.fields().iter().map(|f| f.as_ref().clone()).collect());
        }
        let field = |name: &String| match table.schema.field_with_name(name) {
            Ok(field) => Ok(field.clone()),
            Err(_) => {
                let error = Error::new(ErrorKind::NotFound, format!("there is no column \"{name}\" in {}", table.name));
                Err(match nearest(name, table.schema.fields().iter().map(|f| f.name().as_str())) {
                    Some(near) => error.with_hint(format!("did you mean \"{near}\"?")),
                    None => error,
                })
            }
        };
        let repeated = self.columns.iter().enumerate().find(|(at, name)| self.columns[..*at].contains(name));
        if let Some((_, name)) = repeated {
            return Err(Error::new(ErrorKind::Invalid, format!("column \"{name}\" is named twice")));
        }
        self.columns.iter().map(field).collect()
    }

    async fn open_csv(
        &self,
        source: &Source,
        wanted: &[Field],
        context: &Context<'_>,
    ) -> Result<Arc<dyn TableProvider>> {
        let csv = &self.options.csv;
        let shapes = source.declared_shapes(csv, wanted.len(), &context.query).await?;
        let mut shape: Option<(&str, Shape)> = None;
        for file in &shapes {
            let next = self.shape(&file.name, &file.first, file.has_trailing(), wanted)?;
            match &shape {
                Some((first, shape)) if *shape != next => return Err(differ(first, shape, &file.name, &next)),
                Some(_) => {}
                None => shape = Some((&file.name, next)),
            }
        }
        // Without a line there are no rows, whatever the shape.
        let shape = shape.map_or_else(|| Shape::plain(wanted), |(_, shape)| shape);
        let has_header = shape.header.is_some();
        let fields: Vec<Field> = shape.columns.into_iter().map(|field| field.with_nullable(true)).collect();
        let declared = Declared { schema: Arc::new(Schema::new(fields)), has_header, shapes };
        source.table(&**context.state()?, csv, Union::Same, Some(declared)).await
    }

    fn shape(&self, name: &str, record: &[String], has_trailing_delimiter: bool, wanted: &[Field]) -> Result<Shape> {
        let names: Vec<String> = record.iter().map(|name| name.trim().to_lowercase()).collect();
        let given = self.options.csv.has_header;
        let by_name = |name: &String| wanted.iter().find(|field| field.name().to_lowercase() == *name).cloned();
        let columns: Vec<Field> = names.iter().filter_map(by_name).collect();
        let distinct = names.iter().collect::<BTreeSet<_>>().len();
        let has_all = columns.len() == wanted.len() && given != Some(false);
        if has_all && distinct == names.len() && names.len() > wanted.len() {
            let message = format!("'{name}' has the columns {}, and {} are wanted", names.join(", "), wanted.len());
            let hint = format!("choose: INSERT INTO {} SELECT ... FROM '{}'", self.table, self.path);
            return Err(Error::new(ErrorKind::Invalid, message).with_hint(hint));
        }
        let is_named = has_all && distinct == names.len();
        Ok(Shape {
            header: given.unwrap_or(is_named).then_some(names),
            columns: if is_named { columns } else { wanted.to_vec() },
            has_trailing_delimiter,
        })
    }
}

impl Shape {
    fn plain(wanted: &[Field]) -> Self {
        Self { header: None, columns: wanted.to_vec(), has_trailing_delimiter: false }
    }

    fn describe(&self) -> String {
        let line = match &self.header {
            Some(names) => format!("the header {}", names.join(", ")),
            None => "no header".to_string(),
        };
        if self.has_trailing_delimiter { format!("{line} and a delimiter at the end of lines") } else { line }
    }
}

fn differ(first: &str, shape: &Shape, name: &str, other: &Shape) -> Error {
    let message = format!("'{name}' has {}, and '{first}' has {}", other.describe(), shape.describe());
    Error::new(ErrorKind::Data, message).with_hint("load files that differ one by one")
}

/// Maps columns of a file to columns of the table. It maps by name if the file and its directories
/// have the wanted names. Otherwise it maps by position, if the file has as many columns of its
/// `own`, which come first. Columns that are not wanted are NULL.
fn fit(plan: LogicalPlan, own: usize, wanted: &[Field], table: &Table, path: &str) -> Result<LogicalPlan> {
    let names = |count: usize| {
        let names = plan.schema().fields().iter().take(count).map(|field| field.name().clone());
        names.collect::<Vec<String>>()
    };
    let all = names(usize::MAX);
    // A name in another case matches if it is the only one.
    let mut places: HashMap<String, Option<usize>> = HashMap::new();
    for (place, name) in all.iter().enumerate() {
        places.entry(name.to_lowercase()).and_modify(|place| *place = None).or_insert(Some(place));
    }
    let exact: HashMap<&str, usize> = all.iter().enumerate().map(|(place, name)| (name.as_str(), place)).collect();
    let place = |name: &str| exact.get(name).copied().or_else(|| places.get(&name.to_lowercase()).copied().flatten());
    let by_name = wanted.iter().all(|field| place(field.name()).is_some());
    let have = names(own);
    if !by_name && have.len() != wanted.len() {
        let message = format!(
            "'{path}' has {} columns, and {} takes {}{}",
            have.len(),
            table.name,
            wanted.len(),
            if wanted.len() == table.schema.fields().len() { "" } else { " of them here" },
        );
        return Err(Error::new(ErrorKind::Invalid, message).with_hint(format!(
            "columns of the file: {}",
            have.iter().take(12).cloned().collect::<Vec<_>>().join(", ")
        )));
    }
    let positions: HashMap<&str, usize> =
        wanted.iter().enumerate().map(|(position, field)| (field.name().as_str(), position)).collect();
    let source = |field: &Field| -> Option<&String> {
        let position = *positions.get(field.name().as_str())?;
        all.get(if by_name { place(field.name())? } else { position })
    };
    let columns = table.schema.fields().iter().map(|field| {
        let value = match source(field) {
            Some(name) => Expr::Column(Column::new(Some("file"), name)),
            None => lit(ScalarValue::Null),
        };
        cast(value, field.data_type().clone()).alias(field.name())
    });
    Ok(LogicalPlanBuilder::new(plan).project(columns)?.build()?)
}
