//! ```text
//! CREATE [OR REPLACE] [TEMP | TEMPORARY | UNLOGGED] TABLE [IF NOT EXISTS] name [(columns)]
//!     [PARTITION BY ...] [CLUSTER BY (...)] [WITH (residence = 'cuda:0')]
//!     [ON COMMIT PRESERVE ROWS | DELETE ROWS | DROP] [AS query]
//!
//! PARTITION BY RANGE (column) (PARTITION name VALUES LESS THAN (literal | MAXVALUE), ...)
//! PARTITION BY LIST (column)
//!     (PARTITION name VALUES IN (literal | NULL, ...), ..., PARTITION name DEFAULT)
//! PARTITION BY HASH (column) PARTITIONS n
//! ```
//! `UNLOGGED` permits a table to be empty after a crash. It is accepted, and the table is durable
//! all the same. The statement writes the rows of the query first; one commit makes the table and
//! its segments visible. `ON COMMIT` is for temporary tables.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arrow::datatypes::{DECIMAL128_MAX_PRECISION, DECIMAL128_MAX_SCALE, DataType, Field, Fields, Schema, SchemaRef};
use datafusion::logical_expr::LogicalPlan;
use datafusion::sql::parser::Statement as DataFusionStatement;
use datafusion::sql::sqlparser::ast::{
    ColumnDef, ColumnOption, Expr as SqlExpr, ObjectName, Query as SqlQuery, Statement as Sql, TableConstraint,
    UnaryOperator, Value,
};
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::parser::{Parser, ParserError};
use datafusion::sql::sqlparser::tokenizer::Token;
use onehop_segment::ColumnType;

use super::{Context, done, insert, new_name, parse_name_list, parse_word, residence};
use crate::catalog::{
    Catalog, Change, ColumnEntry, ListPartition, MOST_PARTITIONS, PartitionBy, RangePartition, SegmentEntry, TableEntry,
};
use crate::error::nearest;
use crate::identifiers::normal;
use crate::load::{Beside, Target};
use crate::partition::{Router, can_hash};
use crate::place::homes::Homes;
use crate::query::Done;
use crate::temporary::OnCommit;
use crate::type_names::type_name;
use crate::{Error, ErrorKind, Result, Rule, planner};

/// A parsed `CREATE TABLE`.
#[derive(Debug)]
pub(super) struct CreateTable {
    name: String,
    /// The action when a transaction commits, if the table is temporary.
    temporary: Option<OnCommit>,
    exists: IfExists,
    columns: Vec<ColumnDef>,
    constraints: Vec<TableConstraint>,
    partition_by: Option<PartitionBy>,
    cluster_by: Vec<String>,
    residence: Option<String>,
    query: Option<Box<SqlQuery>>,
}

/// The action if a table of that name exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IfExists {
    Fail,
    Keep,
    Replace,
}

/// Tells whether the commit created the table or kept an existing one.
enum Committed {
    New,
    Kept,
}

/// Parses the statement. Returns `None`, with nothing consumed, for another statement.
pub(super) fn parse(parser: &mut Parser<'_>) -> Result<Option<CreateTable>> {
    let to_error = |e| super::syntax::<()>(Err(e));
    match parser.maybe_parse(parse_head).map_err(to_error)? {
        Some((is_temporary, exists)) => parse_rest(parser, is_temporary, exists).map_err(to_error)?.map(Some),
        None => Ok(None),
    }
}

/// Parses up to the name. Returns whether the table is temporary, and the action if it exists.
fn parse_head(parser: &mut Parser<'_>) -> std::result::Result<(bool, IfExists), ParserError> {
    parser.expect_keyword(Keyword::CREATE)?;
    let replaces = parser.parse_keywords(&[Keyword::OR, Keyword::REPLACE]);
    // `LOCAL` and `GLOBAL` mean the same here.
    let has_kind = parser.parse_one_of_keywords(&[Keyword::LOCAL, Keyword::GLOBAL]).is_some();
    let is_temporary = parser.parse_one_of_keywords(&[Keyword::TEMP, Keyword::TEMPORARY]).is_some();
    // The table survives a crash, which `UNLOGGED` permits.
    let _ = !has_kind && !is_temporary && parser.parse_keyword(Keyword::UNLOGGED);
    if has_kind && !is_temporary {
        let next = parser.peek_token();
        return parser.expected("TEMPORARY", next);
    }
    parser.expect_keyword(Keyword::TABLE)?;
    let keeps = parser.parse_keywords(&[Keyword::IF, Keyword::NOT, Keyword::EXISTS]);
    let exists = match (replaces, keeps) {
        (true, true) => {
            return Err(ParserError::ParserError("OR REPLACE and IF NOT EXISTS exclude each other".into()));
        }
        (true, false) => IfExists::Replace,
        (false, true) => IfExists::Keep,
        (false, false) => IfExists::Fail,
    };
    Ok((is_temporary, exists))
}

/// Parses `ON COMMIT ...`, if it is next.
fn parse_on_commit(parser: &mut Parser<'_>) -> Parsed<Option<OnCommit>> {
    if !parser.parse_keywords(&[Keyword::ON, Keyword::COMMIT]) {
        return Ok(None);
    }
    if parser.parse_keyword(Keyword::DROP) {
        return Ok(Some(OnCommit::Drop));
    }
    let on_commit = match parser.parse_one_of_keywords(&[Keyword::PRESERVE, Keyword::DELETE]) {
        Some(Keyword::PRESERVE) => OnCommit::PreserveRows,
        Some(_) => OnCommit::DeleteRows,
        None => {
            let next = parser.peek_token();
            return parser.expected("PRESERVE ROWS, DELETE ROWS or DROP after ON COMMIT", next);
        }
    };
    parser.expect_keyword(Keyword::ROWS)?;
    Ok(Some(on_commit))
}

type Parsed<T> = std::result::Result<T, ParserError>;

fn parse_rest(parser: &mut Parser<'_>, is_temporary: bool, exists: IfExists) -> Parsed<Result<CreateTable>> {
    let name: ObjectName = parser.parse_object_name(false)?;
    let (columns, constraints) = match parser.peek_token().token {
        Token::LParen => parser.parse_columns()?,
        _ => (Vec::new(), Vec::new()),
    };
    let partition_by = if parser.parse_keywords(&[Keyword::PARTITION, Keyword::BY]) {
        Some(parse_partition_by(parser)?)
    } else {
        None
    };
    let cluster_by =
        if parser.parse_keywords(&[Keyword::CLUSTER, Keyword::BY]) { parse_name_list(parser)? } else { Vec::new() };
    let residence = if parser.parse_keyword(Keyword::WITH) { Some(residence::parse_parameters(parser)?) } else { None };
    let on_commit = parse_on_commit(parser)?;
    let query = if parser.parse_keyword(Keyword::AS) { Some(parser.parse_query()?) } else { None };
    if columns.is_empty() && query.is_none() {
        let next = parser.peek_token();
        return parser.expected("columns in parentheses, or AS and a query", next);
    }
    let named = new_name(&name).and_then(|name| {
        let residence = residence.map(|text| Homes::parse(&text)).transpose()?;
        if let Some(homes) = &residence {
            homes.check(partition_by.as_ref())?;
        }
        let residence = residence.map(|homes| homes.to_string());
        if on_commit.is_some() && !is_temporary {
            return Err(
                Error::new(ErrorKind::Invalid, "ON COMMIT is for temporary tables").with_hint("CREATE TEMPORARY TABLE")
            );
        }
        let temporary = is_temporary.then(|| on_commit.unwrap_or(OnCommit::PreserveRows));
        Ok(CreateTable { name, temporary, exists, columns, constraints, partition_by, cluster_by, residence, query })
    });
    Ok(named)
}

fn parse_partition_by(parser: &mut Parser<'_>) -> Parsed<PartitionBy> {
    if parse_word(parser, "range") {
        let column = parse_one_column(parser)?;
        Ok(PartitionBy::Range { column, partitions: parse_parts(parser, parse_range_part)? })
    } else if parse_word(parser, "list") {
        let column = parse_one_column(parser)?;
        Ok(PartitionBy::List { column, partitions: parse_parts(parser, parse_list_part)? })
    } else if parse_word(parser, "hash") {
        let column = parse_one_column(parser)?;
        if !parse_word(parser, "partitions") {
            let next = parser.peek_token();
            return parser.expected("PARTITIONS and their number", next);
        }
        let partitions = match parser.parse_literal_uint()? {
            n if (1..=MOST_PARTITIONS as u64).contains(&n) => n as u32,
            n => {
                let message = format!("a table has 1 to {MOST_PARTITIONS} partitions, not {n}");
                return Err(ParserError::ParserError(message));
            }
        };
        Ok(PartitionBy::Hash { column, partitions })
    } else {
        let next = parser.peek_token();
        parser.expected("RANGE, LIST or HASH after PARTITION BY", next)
    }
}

fn parse_one_column(parser: &mut Parser<'_>) -> Parsed<String> {
    match parse_name_list(parser)?.as_slice() {
        [one] => Ok(one.clone()),
        more => Err(ParserError::ParserError(format!("a table is partitioned by one column, not {}", more.len()))),
    }
}

fn parse_parts<T>(parser: &mut Parser<'_>, part: fn(&mut Parser<'_>) -> Parsed<T>) -> Parsed<Vec<T>> {
    parser.expect_token(&Token::LParen)?;
    let parts = parser.parse_comma_separated(part)?;
    parser.expect_token(&Token::RParen)?;
    Ok(parts)
}

fn parse_part_name(parser: &mut Parser<'_>) -> Parsed<String> {
    parser.expect_keyword(Keyword::PARTITION)?;
    parser.parse_identifier().map(|name| normal(&name))
}

fn parse_range_part(parser: &mut Parser<'_>) -> Parsed<RangePartition> {
    let name = parse_part_name(parser)?;
    parser.expect_keyword(Keyword::VALUES)?;
    if !(parse_word(parser, "less") && parse_word(parser, "than")) {
        let next = parser.peek_token();
        return parser.expected("LESS THAN", next);
    }
    if parse_word(parser, "maxvalue") {
        return Ok(RangePartition { name, less_than: None });
    }
    parser.expect_token(&Token::LParen)?;
    let less_than = if parse_word(parser, "maxvalue") { None } else { Some(parse_literal(parser)?) };
    parser.expect_token(&Token::RParen)?;
    match less_than {
        Some(None) => Err(ParserError::ParserError(format!("the bound of partition {name} cannot be NULL"))),
        bound => Ok(RangePartition { name, less_than: bound.flatten() }),
    }
}

fn parse_list_part(parser: &mut Parser<'_>) -> Parsed<ListPartition> {
    let name = parse_part_name(parser)?;
    if parser.parse_keyword(Keyword::DEFAULT) {
        return Ok(ListPartition { name, values: Vec::new(), is_default: true });
    }
    parser.expect_keyword(Keyword::VALUES)?;
    parser.expect_keyword(Keyword::IN)?;
    parser.expect_token(&Token::LParen)?;
    let values = parser.parse_comma_separated(parse_literal)?;
    parser.expect_token(&Token::RParen)?;
    Ok(ListPartition { name, values, is_default: false })
}

/// Parses a literal to its string; `None` for NULL. `DATE '...'` and `-5` are literals too.
fn parse_literal(parser: &mut Parser<'_>) -> Parsed<Option<String>> {
    let expr = parser.parse_expr()?;
    literal_text(&expr).ok_or_else(|| ParserError::ParserError(format!("expected a literal, found {expr}")))
}

fn literal_text(expr: &SqlExpr) -> Option<Option<String>> {
    match expr {
        SqlExpr::Value(value) => match &value.value {
            Value::Null => Some(None),
            Value::Number(number, _) => Some(Some(number.clone())),
            Value::Boolean(b) => Some(Some(b.to_string())),
            other => other.clone().into_string().map(Some),
        },
        SqlExpr::UnaryOp { op: UnaryOperator::Minus, expr } => Some(Some(format!("-{}", literal_text(expr)??))),
        SqlExpr::TypedString(typed) => typed.value.value.clone().into_string().map(Some),
        _ => None,
    }
}

impl CreateTable {
    /// Settles the expressions of the statement. See [`planner::settle`].
    pub fn settle(&mut self) -> Result<()> {
        self.columns.iter_mut().try_for_each(planner::settle)?;
        self.query.as_mut().map_or(Ok(()), |query| planner::settle(query.as_mut()))
    }

    /// True if the table is temporary.
    pub fn is_temporary(&self) -> bool {
        self.temporary.is_some()
    }

    /// Runs the statement.
    pub async fn run(self, context: &Context<'_>) -> Result<Done> {
        if self.already_exists(context)? {
            return Ok(done("CREATE TABLE", None));
        }
        let of_temporary = match self.temporary {
            Some(on_commit) => {
                let temporary = context.session.temporary_or_new()?;
                Some(context.of_temporary(temporary, on_commit != OnCommit::PreserveRows))
            }
            None => None,
        };
        let context = of_temporary.as_ref().unwrap_or(context);
        context.database.check_writable()?;
        let plan = match &self.query {
            Some(query) => {
                let statement = DataFusionStatement::Statement(Box::new(Sql::Query(query.clone())));
                Some(context.plan(statement).await?)
            }
            None => None,
        };
        let schema = self.schema(plan.as_ref(), context).await?;
        self.check_clauses(&schema)?;
        let id = context.database.new_id();
        let target = Target::new(
            context.database,
            &context.settings(),
            id,
            Arc::clone(&schema),
            self.partition_by.clone(),
            &context.query,
        );
        let segments = match plan {
            Some(plan) => insert::load(plan, &self.cluster_by, &target, 0, &Beside::default(), context).await?.segments,
            None => Vec::new(),
        };
        let rows = self.query.is_some().then(|| segments.iter().map(|s| s.rows).sum());
        match self.commit(id, &schema, segments, target, context).await? {
            // Another session created the table first.
            Committed::Kept => return Ok(done("CREATE TABLE", None)),
            // The commit of the transaction moves the table to its devices.
            Committed::New if context.transaction().is_some() => {}
            Committed::New => residence::follow(&self.name, context).await?,
        }
        Ok(done("CREATE TABLE", rows))
    }

    /// Returns whether there is nothing to do.
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyExists`] if the name is taken.
    fn already_exists(&self, context: &Context<'_>) -> Result<bool> {
        context.snapshot.only_once(&self.name)?;
        let catalog = &context.snapshot.catalog;
        if catalog.views.contains_key(&self.name) {
            return Err(Error::new(ErrorKind::AlreadyExists, format!("there is a view \"{}\"", self.name)));
        }
        let is_temporary = context.snapshot.is_temporary(&self.name);
        if catalog.tables.contains_key(&self.name) && is_temporary != self.is_temporary() {
            let (there, hint) = match is_temporary {
                true => ("a temporary table", "give the new table another name, or DROP the temporary one"),
                false => ("a table", "a temporary table hides nothing: give it another name"),
            };
            let message = format!("there is {there} \"{}\"", self.name);
            return Err(Error::new(ErrorKind::AlreadyExists, message).with_hint(hint));
        }
        match (catalog.tables.contains_key(&self.name), self.exists) {
            (true, IfExists::Fail) => Err(already_there(&self.name)),
            (true, IfExists::Keep) => Ok(true),
            _ => Ok(false),
        }
    }

    /// Returns the columns as declared, or as the query has them, in the types that tables store.
    async fn schema(&self, plan: Option<&LogicalPlan>, context: &Context<'_>) -> Result<SchemaRef> {
        let declared = if self.columns.is_empty() { None } else { Some(self.declared_schema(context).await?) };
        let fields = match (declared, plan) {
            (Some(declared), Some(plan)) if declared.fields().len() != plan.schema().fields().len() => {
                let message = format!(
                    "{} columns are declared, and the query has {}",
                    declared.fields().len(),
                    plan.schema().fields().len()
                );
                return Err(Error::new(ErrorKind::Invalid, message));
            }
            (Some(declared), _) => declared.fields().clone(),
            // A column without NULLs today may have some tomorrow: only a declaration forbids them.
            (None, Some(plan)) => averages_stored(nullable(plan.schema().as_arrow())),
            (None, None) => return Err(Error::new(ErrorKind::Syntax, "a table needs columns")),
        };
        if fields.is_empty() {
            return Err(Error::new(ErrorKind::Invalid, "the query has no columns, and a table needs some"));
        }
        let fields = fields.iter().map(|field| storable(field));
        let schema = Schema::new(fields.collect::<Result<Vec<Field>>>()?);
        no_name_twice(schema.fields().iter().map(|field| field.name().clone()))?;
        Ok(Arc::new(schema))
    }

    async fn declared_schema(&self, context: &Context<'_>) -> Result<Schema> {
        for column in &self.columns {
            for option in &column.options {
                if !matches!(option.option, ColumnOption::Null | ColumnOption::NotNull) {
                    return Err(unenforced(&format!("column {}: {}", column.name, option.option)));
                }
            }
        }
        if let Some(constraint) = self.constraints.first() {
            return Err(unenforced(&constraint.to_string()));
        }
        no_name_twice(self.columns.iter().map(|column| normal(&column.name)))?;
        // DataFusion maps SQL types to Arrow types when it plans a cast. Each type is cast once,
        // since the planner's rules compare each column with all others.
        let (mut known, mut casts) = (HashMap::new(), Vec::new());
        let mut place_of = |data_type| {
            *known.entry(data_type).or_insert_with(|| {
                casts.push(format!("CAST(NULL AS {data_type}) AS \"{}\"", casts.len()));
                casts.len() - 1
            })
        };
        let places: Vec<usize> = self.columns.iter().map(|column| place_of(&column.data_type)).collect();
        let plan = planner::plan_text(context.state()?, &format!("SELECT {}", casts.join(", "))).await?;
        let types = plan.schema().fields();
        let fields = self.columns.iter().zip(places).map(|(column, place)| {
            let is_nullable = !column.options.iter().any(|option| matches!(option.option, ColumnOption::NotNull));
            types[place].as_ref().clone().with_name(normal(&column.name)).with_nullable(is_nullable)
        });
        Ok(Schema::new(fields.collect::<Vec<Field>>()))
    }

    fn check_partition_names(&self) -> Result<()> {
        let names: Vec<&str> = match &self.partition_by {
            Some(PartitionBy::Range { partitions, .. }) => partitions.iter().map(|part| part.name.as_str()).collect(),
            Some(PartitionBy::List { partitions, .. }) => partitions.iter().map(|part| part.name.as_str()).collect(),
            Some(PartitionBy::Hash { .. }) | None => return Ok(()),
        };
        let mut seen = HashSet::new();
        match names.into_iter().find(|name| !seen.insert(*name)) {
            Some(name) => Err(Error::new(ErrorKind::Invalid, format!("two partitions are called \"{name}\""))
                .with_hint("each partition of a table has a name of its own")),
            None => Ok(()),
        }
    }

    fn check_clauses(&self, schema: &SchemaRef) -> Result<()> {
        let names = || schema.fields().iter().map(|f| f.name().as_str());
        let partition_column = self.partition_by.iter().map(PartitionBy::column);
        for name in self.cluster_by.iter().map(String::as_str).chain(partition_column) {
            if schema.column_with_name(name).is_none() {
                let error = Error::new(ErrorKind::NotFound, format!("there is no column \"{name}\" in the new table"));
                return Err(match nearest(name, names()) {
                    Some(near) => error.with_hint(format!("did you mean \"{near}\"?")),
                    None => error,
                });
            }
        }
        if let Some(PartitionBy::Hash { column, .. }) = &self.partition_by
            && let Some((_, field)) = schema.column_with_name(column)
            && !can_hash(&ColumnType::of(column, field.data_type())?)
        {
            let message =
                format!("\"{column}\" cannot be a hash partition column: it is of type {}", field.data_type());
            return Err(Error::new(ErrorKind::Invalid, message)
                .with_hint("hash by an integer, date, timestamp, boolean or text column"));
        }
        self.check_partition_names()?;
        // Checks bounds and lists against the column's type here, instead of at the first row.
        Router::new(self.partition_by.as_ref(), schema).map(drop)
    }

    async fn commit(
        &self,
        id: u64,
        schema: &SchemaRef,
        segments: Vec<SegmentEntry>,
        target: Target,
        context: &Context<'_>,
    ) -> Result<Committed> {
        let columns = schema.fields().iter().map(|field| {
            let column_type = ColumnType::of(field.name(), field.data_type())?;
            Ok(ColumnEntry {
                name: field.name().clone(),
                type_name: type_name(&column_type),
                nullable: field.is_nullable(),
            })
        });
        let entry = TableEntry {
            id,
            columns: columns.collect::<Result<_>>()?,
            cluster_by: self.cluster_by.clone(),
            partition_by: self.partition_by.clone(),
            residence: self.residence.clone(),
            segments,
        };
        let (name, exists) = (self.name.clone(), self.exists);
        let change = move |catalog: &mut Catalog| {
            // Another session may have created the table since the statement's snapshot.
            match (catalog.tables.contains_key(&name), exists) {
                (true, IfExists::Fail) => return Err(already_there(&name)),
                (true, IfExists::Keep) => return Ok((Committed::Kept, Vec::new())),
                _ => {}
            }
            catalog.tables.insert(name.clone(), entry.clone());
            Ok((Committed::New, vec![Change::PutTable { name: name.clone() }]))
        };
        let committed = context.change(Some(target), change).await?;
        if let (Committed::New, Some(on_commit), Some(temporary)) =
            (&committed, self.temporary, context.session.temporary())
        {
            temporary.made(id, on_commit);
        }
        Ok(committed)
    }
}

fn no_name_twice(names: impl Iterator<Item = String>) -> Result<()> {
    let mut names: Vec<String> = names.collect();
    names.sort();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(twice) => Err(Error::new(ErrorKind::Invalid, format!("two columns are called \"{}\"", twice[0]))
            .breaking(Rule::NamedOnce)
            .with_hint("give one of them another name; in a query, with AS")),
        None => Ok(()),
    }
}

fn nullable(schema: &Schema) -> Fields {
    schema.fields().iter().map(|field| field.as_ref().clone().with_nullable(true)).collect()
}

/// Averages of DECIMAL(35, s) or more have up to 42 digits. Tables store 38 of them. A value that
/// needs more does not fit.
fn averages_stored(fields: Fields) -> Fields {
    let stored = |field: &Arc<Field>| match field.data_type() {
        DataType::Decimal256(39..=42, scale) => {
            let decimal = DataType::Decimal128(DECIMAL128_MAX_PRECISION, (*scale).min(DECIMAL128_MAX_SCALE));
            Arc::new(field.as_ref().clone().with_data_type(decimal))
        }
        _ => Arc::clone(field),
    };
    fields.iter().map(stored).collect()
}

fn already_there(name: &str) -> Error {
    Error::new(ErrorKind::AlreadyExists, format!("there is a table \"{name}\" already"))
        .with_hint("CREATE TABLE IF NOT EXISTS keeps it, CREATE OR REPLACE TABLE replaces it")
}

fn unenforced(what: &str) -> Error {
    Error::new(ErrorKind::Invalid, format!("tables cannot enforce this yet: {what}"))
        .with_hint("leave it out; NOT NULL is the constraint that is enforced")
}

/// Returns a field of a query as a column of a table.
fn storable(field: &Field) -> Result<Field> {
    let data_type = match field.data_type() {
        DataType::Dictionary(_, values) => values.as_ref(),
        DataType::RunEndEncoded(_, values) => values.data_type(),
        // Smaller forms of a decimal are stored as one type.
        DataType::Decimal32(p, s) | DataType::Decimal64(p, s) => &DataType::Decimal128(*p, *s),
        DataType::Date64 => &DataType::Date32,
        DataType::Float16 => &DataType::Float32,
        other => other,
    };
    let column_type = ColumnType::of(field.name(), data_type)?;
    Ok(Field::new(field.name(), column_type.arrow(), field.is_nullable()))
}
