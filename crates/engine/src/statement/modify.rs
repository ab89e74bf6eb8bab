//! ```text
//! DELETE FROM table [[AS] alias] [WHERE condition] [RETURNING ...]
//! UPDATE table [[AS] alias] SET column = expression, ... [WHERE condition] [RETURNING ...]
//! TRUNCATE [TABLE] table, ...
//! ```
//! A query determines the affected rows and their new values: `SELECT address, new values FROM
//! table WHERE condition`. It reads the table under a name ([`crate::identifiers::TARGET`]) that
//! adds a column of row addresses. Conditions and values thus mean the same as in any query.
//! Subqueries over the table itself see it as it was. An updated row is deleted and inserted.

use std::collections::{BTreeMap, HashSet};

use arrow::datatypes::SchemaRef;
use datafusion::sql::sqlparser::ast::{
    Assignment, AssignmentTarget, BinaryOperator, CastKind, DataType, Delete, Expr as SqlExpr, FromTable, Ident,
    ObjectName, ObjectNamePart, Query, SelectItem, SetExpr, TableAlias, TableFactor, TableWithJoins, Truncate,
    TruncateTableTarget, Update, Value as SqlValue,
};
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::parser::Parser;

use super::describe::equalities;
use super::locking::{self, Locks};
use super::returning::Returning;
use super::{Context, done, insert, named, table_name};
use crate::edit::TableEdit;
use crate::error::nearest;
use crate::fresh::{ROW_ADDRESS, RowAddress};
use crate::identifiers::{TARGET, normal};
use crate::load::{self, Addresses, Beside, KeptRows};
use crate::postgres::column_names::ColumnNames;
use crate::query::{Done, Output};
use crate::snapshot::Table;
use crate::{Error, ErrorKind, Object, Result, Rule, planner};

/// A parsed DELETE or UPDATE.
#[derive(Debug)]
pub(super) struct Modify {
    table: String,
    /// The table's name as written.
    written: ObjectName,
    /// The name by which the statement refers to the table.
    alias: TableAlias,
    selection: Option<SqlExpr>,
    kind: Kind,
    /// Columns whose names are written in quotes.
    quoted: HashSet<String>,
    returning: Option<Returning>,
    /// The locks that its subqueries request.
    locks: Vec<Locks>,
}

#[derive(Debug)]
enum Kind {
    Delete,
    /// New values by column.
    Update(BTreeMap<String, SqlExpr>),
}

impl Kind {
    /// Resolves column names that are written in another case than in the table.
    fn of(self, table: &Table, quoted: &HashSet<String>) -> Result<Self> {
        let Self::Update(values) = self else { return Ok(self) };
        let names = || table.entry.columns.iter().map(|column| column.name.as_str());
        let mut named = BTreeMap::new();
        for (name, value) in values {
            let ident = if quoted.contains(&name) { Ident::with_quote('"', name) } else { Ident::new(name) };
            let name = planner::as_named(&ident, names(), "column")?;
            if named.insert(name.clone(), value).is_some() {
                return Err(assigned_twice(&name));
            }
        }
        Ok(Self::Update(named))
    }
}

fn assigned_twice(column: &str) -> Error {
    Error::new(ErrorKind::Invalid, format!("column \"{column}\" is assigned twice")).breaking(Rule::NamedOnce)
}

pub(super) fn delete(delete: Delete) -> Result<Modify> {
    // The pattern names every field, so that a field added by a later parser does not compile.
    let Delete { delete_token: _, optimizer_hints, tables, from, using, selection, returning, output, order_by, limit } =
        delete;
    let has_more = [
        (!tables.is_empty(), "a list of tables"),
        (using.is_some(), "USING"),
        (output.is_some(), "OUTPUT"),
        (!order_by.is_empty(), "ORDER BY"),
        (limit.is_some(), "LIMIT"),
        (!optimizer_hints.is_empty(), "hints"),
    ];
    refuse("DELETE", &has_more)?;
    let FromTable::WithFromKeyword(from) = from else {
        return Err(Error::new(ErrorKind::Syntax, "DELETE without FROM is not supported")
            .with_hint("DELETE FROM t WHERE ... deletes rows; TRUNCATE t deletes all of them"));
    };
    let [target] = <[TableWithJoins; 1]>::try_from(from).map_err(|_| one_table("DELETE"))?;
    let (table, written, alias) = target_table(target, "DELETE")?;
    let returning = returning.map(|items| Returning::new(items, alias.clone()));
    let (kind, quoted, locks) = (Kind::Delete, HashSet::new(), Vec::new());
    Ok(Modify { table, written, alias, selection, kind, quoted, returning, locks }.with_locks())
}

pub(super) fn update(update: Update) -> Result<Modify> {
    let Update {
        update_token: _,
        optimizer_hints,
        table,
        assignments,
        from,
        selection,
        returning,
        output,
        or,
        order_by,
        limit,
    } = update;
    let has_more = [
        (from.is_some(), "FROM"),
        (output.is_some(), "OUTPUT"),
        (or.is_some(), "OR"),
        (!order_by.is_empty(), "ORDER BY"),
        (limit.is_some(), "LIMIT"),
        (!optimizer_hints.is_empty(), "hints"),
    ];
    refuse("UPDATE", &has_more)?;
    let (table, written, alias) = target_table(table, "UPDATE")?;
    let (mut values, mut quoted) = (BTreeMap::new(), HashSet::new());
    for Assignment { target, value } in assignments {
        for (name, value) in assigned(target, value)? {
            let column = column_name(&name, &alias)?;
            if name.0.last().and_then(ObjectNamePart::as_ident).is_some_and(|ident| ident.quote_style.is_some()) {
                quoted.insert(column.clone());
            }
            if values.insert(column.clone(), value).is_some() {
                return Err(assigned_twice(&column));
            }
        }
    }
    let returning = returning.map(|items| Returning::new(items, alias.clone()));
    let (kind, locks) = (Kind::Update(values), Vec::new());
    Ok(Modify { table, written, alias, selection, kind, quoted, returning, locks }.with_locks())
}

/// Returns columns and their values, of `a = 1` and of `(a, b) = (1, 2)`.
fn assigned(target: AssignmentTarget, value: SqlExpr) -> Result<Vec<(ObjectName, SqlExpr)>> {
    let names = match target {
        AssignmentTarget::ColumnName(name) => return Ok(vec![(name, value)]),
        AssignmentTarget::Tuple(names) => names,
    };
    let Some(values) = planner::row(&value) else {
        let error = Error::new(ErrorKind::Invalid, format!("SET (a, b) = ... takes a row, and not {value}"));
        return Err(error.with_hint("write SET (a, b) = (1, 2), or SET a = (SELECT ...), b = (SELECT ...)"));
    };
    if names.len() != values.len() {
        let message = format!("{} values are assigned to {} columns", values.len(), names.len());
        return Err(Error::new(ErrorKind::Syntax, message));
    }
    Ok(names.into_iter().zip(values).collect())
}

fn refuse(statement: &str, clauses: &[(bool, &str)]) -> Result<()> {
    match clauses.iter().find(|(is_there, _)| *is_there) {
        Some((_, clause)) => {
            let error = Error::new(ErrorKind::Invalid, format!("{statement} with {clause} is not supported"));
            Err(error.with_hint("a subquery can say the same: WHERE id IN (SELECT ...), SET x = (SELECT ...)"))
        }
        None => Ok(()),
    }
}

fn one_table(statement: &str) -> Error {
    Error::new(ErrorKind::Invalid, format!("{statement} changes one table"))
        .with_hint("other tables go into subqueries")
}

/// Returns the table's name, the name as written, and the alias that expressions use.
fn target_table(target: TableWithJoins, statement: &str) -> Result<(String, ObjectName, TableAlias)> {
    if !target.joins.is_empty() {
        return Err(one_table(statement));
    }
    planner::check_table(&target.relation)?;
    let TableFactor::Table { name, alias, args: None, .. } = target.relation else {
        return Err(one_table(statement));
    };
    let table = table_name(&name)?;
    let alias = match alias {
        Some(alias) if !alias.columns.is_empty() => {
            return Err(Error::new(ErrorKind::Invalid, format!("{statement} cannot rename columns")));
        }
        Some(alias) => alias,
        None => TableAlias { explicit: true, name: Ident::with_quote('"', &table), columns: Vec::new(), at: None },
    };
    Ok((table, name, alias))
}

/// Parses `column` or `table.column`.
fn column_name(name: &ObjectName, alias: &TableAlias) -> Result<String> {
    let parts: Vec<&Ident> = name.0.iter().filter_map(|part| part.as_ident()).collect();
    match parts.as_slice() {
        [column] => Ok(normal(column)),
        [table, column] if normal(table) == normal(&alias.name) => Ok(normal(column)),
        _ => Err(Error::new(ErrorKind::NotFound, format!("{name} is no column of the table that is updated"))),
    }
}

impl Modify {
    /// Removes `FOR UPDATE` from its subqueries and keeps the locks.
    fn with_locks(mut self) -> Self {
        let values = match &mut self.kind {
            Kind::Delete => None,
            Kind::Update(values) => Some(values.values_mut()),
        };
        let expressions = self.selection.iter_mut().chain(values.into_iter().flatten());
        self.locks = expressions.filter_map(locking::take_out_of).collect();
        self
    }

    /// Settles the expressions of the statement. See [`planner::settle`].
    pub fn settle(&mut self) -> Result<()> {
        self.selection.iter_mut().try_for_each(planner::settle)?;
        self.returning.iter_mut().try_for_each(Returning::settle)?;
        match &mut self.kind {
            Kind::Delete => Ok(()),
            Kind::Update(values) => values.values_mut().try_for_each(planner::settle),
        }
    }

    /// Returns a query with the statement's expressions beside the same columns, which determines
    /// the types of parameters.
    pub fn conditions(self) -> Option<Box<Query>> {
        let mut query = target_query("0").ok()?;
        let SetExpr::Select(select) = query.body.as_mut() else { return None };
        let [TableWithJoins { relation: TableFactor::Table { name, alias, .. }, .. }] = select.from.as_mut_slice()
        else {
            return None;
        };
        *name = self.written;
        *alias = Some(self.alias);
        let values = match &self.kind {
            Kind::Delete => None,
            Kind::Update(values) => Some(values),
        };
        let all = self.selection.into_iter().chain(equalities(values.into_iter().flatten()));
        select.selection = all.map(|expr| SqlExpr::Nested(Box::new(expr))).reduce(|left, right| SqlExpr::BinaryOp {
            left: Box::new(left),
            op: BinaryOperator::And,
            right: Box::new(right),
        });
        Some(query)
    }

    /// True if it only removes rows.
    pub fn is_delete(&self) -> bool {
        matches!(self.kind, Kind::Delete)
    }

    /// Returns the statement's tag, if it returns rows.
    pub fn returns(&self) -> Option<&'static str> {
        self.returning.as_ref().map(|_| self.tag())
    }

    fn tag(&self) -> &'static str {
        match self.kind {
            Kind::Delete => "DELETE",
            Kind::Update(_) => "UPDATE",
        }
    }

    /// Returns the names by which PostgreSQL's clients know the returned columns.
    pub fn column_names(&self) -> ColumnNames {
        self.returning.as_ref().map(Returning::column_names).unwrap_or_default()
    }

    /// Returns the table's name.
    pub fn table(&self) -> &str {
        &self.table
    }

    /// Returns the schema of the returned rows.
    pub async fn columns(self, context: &Context<'_>) -> Result<SchemaRef> {
        let table = insert::own_table(&named(&self.written, &context.snapshot)?, context)?;
        match self.returning {
            Some(returning) => returning.columns(&table, &context.snapshot, context).await,
            None => Err(Error::new(ErrorKind::Internal, "a statement without rows is asked for their columns")),
        }
    }

    /// Runs the statement.
    pub async fn run(mut self, context: &Context<'_>) -> Result<Output> {
        let mut locked = None;
        for locks in &self.locks {
            locked = Box::pin(locks.take(context)).await?.or(locked);
        }
        let context = locked.as_ref().unwrap_or(context);
        self.table = named(&self.written, &context.snapshot)?;
        let of_table = context.of_table(&self.table)?;
        let context = of_table.as_ref().unwrap_or(context);
        // Checks before it waits for another writer.
        insert::own_table(&self.table, context)?;
        let write = context.write_what_it_sees().await?;
        let table = insert::writable_table(&self.table, context.database, &write.seen)?;
        self.kind = std::mem::replace(&mut self.kind, Kind::Delete).of(&table, &self.quoted)?;
        if let Kind::Update(values) = &self.kind {
            known_columns(values, &table)?;
        }
        let mut edit = TableEdit::default();
        if let (Kind::Delete, None, None) = (&self.kind, &self.selection, &self.returning) {
            edit.remove_all(&table)?;
            let rows = table.rows();
            write.edit(&table.name, edit, None, context).await?;
            return Ok(Output::Done(done("DELETE", Some(rows))));
        }
        let of_target = context.of_target(&write.seen, &table)?;
        let query = self.query(&table)?;
        let plan = of_target.plan_query(query).await?;
        let addresses = Addresses::default();
        let task = of_target.state()?.task_ctx();
        let kept = self.returning.take().map(|returning| (returning, KeptRows::new(&task)));
        let rows = kept.as_ref().map(|(_, rows)| rows.clone());
        let beside = Beside { addresses: Some(addresses.clone()), rows };
        let tag = self.tag();
        let loaded = match self.kind {
            Kind::Delete => {
                let physical = of_target.physical_plan(plan).await?;
                context.query.planned();
                load::go_through(physical, task, &table.schema, &beside).await?;
                None
            }
            Kind::Update(_) => Some(insert::load_rows(plan, &table, &beside, &of_target).await?),
        };
        // Computes the returned rows before anything changes, since it may fail.
        let returned = match kept {
            Some((returning, rows)) => Some(returning.rows(rows, &table, &write.seen, context).await?),
            None => None,
        };
        let addresses = addresses.into_vec();
        let rows = addresses.len() as u64;
        edit.remove(addresses.into_iter().map(RowAddress::from), &table)?;
        let target = match loaded {
            Some(loaded) => write.add(loaded, &table, &mut edit, context)?,
            None => None,
        };
        write.edit(&table.name, edit, target, context).await?;
        match returned {
            Some(returned) => returned.into_output(context),
            None => Ok(Output::Done(done(tag, Some(rows)))),
        }
    }

    /// Builds `SELECT address, values FROM target AS alias WHERE selection`.
    fn query(&self, table: &Table) -> Result<Box<Query>> {
        let of_table =
            |column: &str| SqlExpr::CompoundIdentifier(vec![self.alias.name.clone(), Ident::with_quote('"', column)]);
        let item = |expr, name: &str| SelectItem::ExprWithAlias { expr, alias: Ident::with_quote('"', name) };
        let mut projection = vec![item(of_table(ROW_ADDRESS), ROW_ADDRESS)];
        let values = match &self.kind {
            Kind::Update(values) => Some(values),
            Kind::Delete => None,
        };
        if values.is_some() || self.returning.is_some() {
            for column in &table.entry.columns {
                let value = match values.and_then(|values| values.get(&column.name)) {
                    Some(value) => cast(value, &column.type_name)?,
                    None => of_table(&column.name),
                };
                projection.push(item(value, &column.name));
            }
        }
        let mut query = target_query("0")?;
        let SetExpr::Select(select) = query.body.as_mut() else { return Err(no_template()) };
        select.projection = projection;
        select.selection = self.selection.clone();
        match select.from.as_mut_slice() {
            [TableWithJoins { relation: TableFactor::Table { alias, .. }, .. }] => *alias = Some(self.alias.clone()),
            _ => return Err(no_template()),
        }
        Ok(query)
    }
}

/// Returns `SELECT projection FROM target`, for callers to complete.
pub(super) fn target_query(projection: &str) -> Result<Box<Query>> {
    planner::template(&format!("SELECT {projection} FROM \"{TARGET}\""))
}

fn no_template() -> Error {
    Error::new(ErrorKind::Internal, "a query of one table is not what it was written as")
}

/// Casts a value to the type of its column.
pub(super) fn cast(value: &SqlExpr, type_name: &str) -> Result<SqlExpr> {
    if let SqlExpr::Identifier(word) = value
        && word.quote_style.is_none()
        && word.value.eq_ignore_ascii_case("default")
    {
        // Columns have no other default than NULL.
        return Ok(SqlExpr::Value(SqlValue::Null.into()));
    }
    let type_name = sql_type(type_name);
    let data_type: DataType = Parser::new(&GenericDialect {})
        .try_with_sql(type_name)
        .and_then(|mut parser| parser.parse_data_type())
        .map_err(|e| Error::new(ErrorKind::Internal, format!("{type_name} is no type that the parser knows: {e}")))?;
    Ok(SqlExpr::Cast {
        kind: CastKind::Cast,
        expr: Box::new(SqlExpr::Nested(Box::new(value.clone()))),
        data_type,
        array: false,
        format: None,
    })
}

/// Returns the type of a column for a cast. A time zone affects only the display of a value, so it
/// is left out.
pub(super) fn sql_type(type_name: &str) -> &str {
    type_name.split_once(" '").map_or(type_name, |(name, _)| name)
}

fn known_columns(values: &BTreeMap<String, SqlExpr>, table: &Table) -> Result<()> {
    let names = || table.entry.columns.iter().map(|column| column.name.as_str());
    match values.keys().find(|name| !names().any(|known| known == *name)) {
        None => Ok(()),
        Some(name) => {
            let message = format!("there is no column \"{name}\" in {}", table.name);
            let error = Error::new(ErrorKind::NotFound, message).of(Object::Column);
            Err(match nearest(name, names()) {
                Some(near) => error.with_hint(format!("did you mean \"{near}\"?")),
                None => error,
            })
        }
    }
}

/// `TRUNCATE [TABLE] a, b`: a DELETE without a condition, of all these tables at once.
#[derive(Debug)]
pub(super) struct TruncateTables {
    tables: Vec<String>,
}

pub(super) fn truncate(truncate: Truncate) -> Result<TruncateTables> {
    let Truncate { table_names, partitions, table: _, if_exists, identity, cascade, on_cluster } = truncate;
    let has_more = [
        (partitions.is_some(), "PARTITION"),
        (if_exists, "IF EXISTS"),
        (identity.is_some(), "IDENTITY"),
        (cascade.is_some(), "CASCADE"),
        (on_cluster.is_some(), "ON CLUSTER"),
    ];
    if let Some((_, clause)) = has_more.iter().find(|(is_there, _)| *is_there) {
        return Err(Error::new(ErrorKind::Invalid, format!("TRUNCATE with {clause} is not supported")));
    }
    // ONLY and * refer to table inheritance, which does not exist here.
    let names = table_names.iter().map(|TruncateTableTarget { name, only: _, has_asterisk: _ }| table_name(name));
    let mut tables = names.collect::<Result<Vec<_>>>()?;
    tables.sort();
    tables.dedup();
    Ok(TruncateTables { tables })
}

impl TruncateTables {
    /// Returns the names of the tables.
    pub fn tables(&self) -> &[String] {
        &self.tables
    }

    /// Runs the statement.
    pub async fn run(self, context: &Context<'_>) -> Result<Done> {
        let (temporary, permanent) = context.apart(self.tables);
        let of_temporary = context.of_tables(&temporary)?;
        for name in &permanent {
            insert::own_table(name, context)?;
        }
        if !permanent.is_empty() {
            Self::empty(permanent, context).await?;
        }
        if let Some(context) = of_temporary {
            Self::empty(temporary, &context).await?;
        }
        Ok(done("TRUNCATE TABLE", None))
    }

    async fn empty(names: Vec<String>, context: &Context<'_>) -> Result<()> {
        let write = context.write_what_it_sees().await?;
        let mut edits = Vec::new();
        for name in names {
            let table = insert::writable_table(&name, context.database, &write.seen)?;
            let mut edit = TableEdit::default();
            edit.remove_all(&table)?;
            edits.push((name, edit));
        }
        write.edits(edits, None, context).await
    }
}
