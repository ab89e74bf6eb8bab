//! Names without quotes mean what they are the name of in whatever letters, where nothing has exactly that name.
//!
//! DataFusion writes a name without quotes in small letters, and then looks for exactly that: `SELECT Name FROM 'people.csv'`
//! finds no column of a file whose header is `Name`. Here, when planning has failed, the statement's names are looked up scope by
//! scope:
//!
//! 1. A scope has the columns of its FROM, by their tables' names, and around it those of the queries around. A name is looked
//!    for in the nearest scope first. A column of exactly the name in small letters is the one that is meant.
//! 2. Otherwise a column of the same letters is, and the name gets quotes, as that column is written. Two of them are an error.
//! 3. What a query selects are the columns of the query around. Tables' names are looked up in the same way.
//!
//! Names in quotes stay what they are.

use std::collections::HashMap;
use std::ops::ControlFlow;

use datafusion::common::TableReference;
use datafusion::execution::SessionState;
use datafusion::sql::parser::{CopyToSource, Statement};
use datafusion::sql::sqlparser::ast::{
    ExceptSelectItem, ExcludeSelectItem, Expr, Ident, JoinConstraint, JoinOperator, ObjectName, ObjectNamePart, Query,
    RenameSelectItem, Select, SelectItem, SelectItemQualifiedWildcardKind, SetExpr, Statement as Sql, TableAlias,
    TableFactor, TableWithJoins, VisitMut, VisitorMut, WildcardAdditionalOptions,
};

use super::file_functions;
use super::spellings::Spellings;
use crate::resolve::Names;
use crate::statement::normal;
use crate::{Error, ErrorKind, Object, Result};

/// The statement with names as they are; `None` if they all are already.
pub(super) async fn folded(statement: &Statement, state: &SessionState) -> Result<Option<Statement>> {
    let mut statement = statement.clone();
    // A call that reads files is a table with columns.
    file_functions::rewrite(&mut statement);
    let mut tables = Tables::default();
    let Ok(references) = state.resolve_table_references(&statement) else { return Ok(None) };
    for reference in references {
        tables.look_up(reference, state).await?;
    }
    let mut folder = Folder { tables, ctes: Vec::new(), has_changed: false };
    folder.statement(&mut statement)?;
    Ok(folder.has_changed.then_some(statement))
}

/// The tables that a statement names.
#[derive(Default)]
struct Tables {
    /// The columns, by the name in the statement.
    columns: HashMap<String, Vec<String>>,
    /// The names of tables that are written in other letters.
    names: HashMap<String, String>,
}

impl Tables {
    async fn look_up(&mut self, reference: TableReference, state: &SessionState) -> Result<()> {
        let name = reference.to_string();
        if let Some(columns) = columns_of(reference.clone(), state).await {
            self.columns.insert(name, columns);
            return Ok(());
        }
        let TableReference::Bare { table } = &reference else { return Ok(()) };
        let same = Names::in_other_letters(state, table);
        if let Some(found) = only(table, same, "table")? {
            let columns = columns_of(TableReference::bare(found.as_str()), state).await.unwrap_or_default();
            self.columns.insert(name.clone(), columns);
            self.names.insert(name, found);
        }
        Ok(())
    }
}

async fn columns_of(reference: TableReference, state: &SessionState) -> Option<Vec<String>> {
    let table = reference.table().to_string();
    let provider = state.schema_for_ref(reference).ok()?.table(&table).await.ok()??;
    Some(provider.schema().fields().iter().map(|field| field.name().clone()).collect())
}

/// The name among others that is meant: exactly that one, or one in other letters if it is written without quotes.
///
/// # Errors
/// Two others are called so in other letters.
pub(crate) fn as_named<'n>(ident: &Ident, names: impl IntoIterator<Item = &'n str>, what: &str) -> Result<String> {
    let wanted = normal(ident);
    let mut same = Vec::new();
    for name in names {
        if name == wanted {
            return Ok(wanted);
        }
        if ident.quote_style.is_none() && name.to_lowercase() == wanted {
            same.push(name.to_string());
        }
    }
    Ok(only(&wanted, same, what)?.unwrap_or(wanted))
}

/// The one name of the same letters.
fn only(name: &str, mut same: Vec<String>, what: &str) -> Result<Option<String>> {
    same.sort_unstable();
    same.dedup();
    if same.len() > 1 {
        let quoted = same.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(" or ");
        let error = Error::new(ErrorKind::Invalid, format!("the {what} \"{name}\" may be {quoted}"));
        return Err(error.with_hint("a name in quotes is exactly what is written").of(match what {
            "table" => Object::Table,
            _ => Object::Column,
        }));
    }
    Ok(same.pop())
}

fn same_letters<'n>(name: &str, names: impl IntoIterator<Item = &'n String>) -> Vec<String> {
    let is_same = |other: &&String| **other != name && other.to_lowercase() == name;
    names.into_iter().filter(is_same).cloned().collect()
}

fn spellings(relations: &[Relation]) -> Spellings<'_> {
    relations.iter().flat_map(|relation| &relation.columns).map(String::as_str).collect()
}

/// A table in FROM.
#[derive(Clone)]
struct Relation {
    name: Option<String>,
    columns: Vec<String>,
}

/// What a query's expressions may name.
struct Scope<'a> {
    relations: Vec<Relation>,
    /// The names that the query gives.
    outputs: Vec<String>,
    around: Option<&'a Scope<'a>>,
}

impl<'a> Scope<'a> {
    fn new(around: Option<&'a Scope<'a>>) -> Self {
        Self { relations: Vec::new(), outputs: Vec::new(), around }
    }

    fn columns(&self) -> impl Iterator<Item = &String> {
        self.relations.iter().flat_map(|relation| &relation.columns)
    }

    /// Gives the columns that tables from a place on are joined by the names that the tables before
    /// have for them: see [`using_joins`](super::using_joins). `using`: of those; otherwise of all
    /// that both sides have.
    fn merge(&mut self, place: usize, using: Option<&[String]>) {
        let (left, right) = self.relations.split_at_mut(place);
        let (in_left, in_right) = (spellings(left), spellings(right));
        let pairs = match using {
            Some(names) => names.iter().filter_map(|name| in_left.of(name).zip(in_right.of(name))).collect(),
            None => in_left.common(&in_right),
        };
        let owned = |(own, other): (&str, &str)| (other.to_string(), own.to_string());
        let names: HashMap<String, String> = pairs.into_iter().map(owned).collect();
        for column in right.iter_mut().flat_map(|relation| &mut relation.columns) {
            if let Some(name) = names.get(column) {
                column.clone_from(name);
            }
        }
    }

    fn relation(&self, name: &Ident) -> Option<&Relation> {
        let wanted = normal(name);
        let found = self.relations.iter().find(|relation| relation.name.as_ref() == Some(&wanted)).or_else(|| {
            let is_same = |relation: &&Relation| relation.name.as_ref().is_some_and(|own| own.to_lowercase() == wanted);
            self.relations.iter().find(|relation| name.quote_style.is_none() && is_same(relation))
        });
        found.or_else(|| self.around.and_then(|around| around.relation(name)))
    }

    /// What a name is written as, if it is another one.
    fn column(&self, name: &Ident) -> Result<Option<String>> {
        let wanted = normal(name);
        if name.quote_style.is_some() || self.columns().chain(&self.outputs).any(|column| *column == wanted) {
            return Ok(None);
        }
        match only(&wanted, same_letters(&wanted, self.columns().chain(&self.outputs)), "column")? {
            Some(found) => Ok(Some(found)),
            None => self.around.map_or(Ok(None), |around| around.column(name)),
        }
    }
}

struct Folder {
    tables: Tables,
    /// The names of WITH queries, nearer ones last, and their columns.
    ctes: Vec<(String, Vec<String>)>,
    has_changed: bool,
}

impl Folder {
    fn statement(&mut self, statement: &mut Statement) -> Result<()> {
        match statement {
            Statement::Statement(sql) => match sql.as_mut() {
                Sql::Query(query) => self.query(query, None).map(drop),
                Sql::Insert(insert) => match &mut insert.source {
                    Some(source) => self.query(source, None).map(drop),
                    None => Ok(()),
                },
                _ => Ok(()),
            },
            Statement::Explain(explain) => self.statement(&mut explain.statement),
            Statement::CopyTo(copy) => match &mut copy.source {
                CopyToSource::Query(query) => self.query(query, None).map(drop),
                CopyToSource::Relation(name) => {
                    self.table_name(name);
                    Ok(())
                }
            },
            Statement::CreateExternalTable(_) | Statement::Reset(_) => Ok(()),
        }
    }

    fn set(&mut self, ident: &mut Ident, name: Option<String>) {
        if let Some(name) = name {
            *ident = Ident::with_quote('"', name);
            self.has_changed = true;
        }
    }

    fn column(&mut self, ident: &mut Ident, scope: &Scope<'_>) -> Result<()> {
        let name = scope.column(ident)?;
        self.set(ident, name);
        Ok(())
    }

    /// A query's columns.
    fn query(&mut self, query: &mut Query, around: Option<&Scope<'_>>) -> Result<Vec<String>> {
        let known = self.ctes.len();
        if let Some(with) = &mut query.with {
            let is_recursive = with.recursive;
            for cte in &mut with.cte_tables {
                let name = normal(&cte.alias.name);
                if is_recursive {
                    // By what it begins with.
                    let columns = match cte.query.body.as_mut() {
                        SetExpr::SetOperation { left, .. } => self.body(left, around)?.relations_columns(),
                        _ => Vec::new(),
                    };
                    self.ctes.push((name.clone(), aliased(columns, &cte.alias)));
                }
                let columns = self.query(&mut cte.query, around)?;
                self.ctes.push((name, aliased(columns, &cte.alias)));
            }
        }
        let scope = self.body(&mut query.body, around)?;
        let scope = Scope { relations: scope.relations, outputs: scope.outputs, around };
        if let Some(order) = &mut query.order_by {
            self.exprs(order, &scope)?;
        }
        self.ctes.truncate(known);
        Ok(scope.outputs)
    }

    fn body(&mut self, body: &mut SetExpr, around: Option<&Scope<'_>>) -> Result<Found> {
        Ok(match body {
            SetExpr::Select(select) => self.select(select, around)?,
            SetExpr::Query(query) => Found::of(self.query(query, around)?),
            SetExpr::SetOperation { left, right, .. } => {
                let outputs = self.body(left, around)?.outputs;
                self.body(right, around)?;
                Found::of(outputs)
            }
            SetExpr::Values(values) => {
                let scope = Scope { relations: Vec::new(), outputs: Vec::new(), around };
                let width = values.rows.first().map_or(0, |row| row.content.len());
                self.exprs(values, &scope)?;
                Found::of((1..=width).map(|at| format!("column{at}")).collect())
            }
            _ => Found::of(Vec::new()),
        })
    }

    fn select(&mut self, select: &mut Select, around: Option<&Scope<'_>>) -> Result<Found> {
        let mut scope = Scope::new(around);
        for table in &mut select.from {
            self.table_with_joins(table, &mut scope)?;
        }
        self.exprs(&mut select.selection, &scope)?;
        self.exprs(&mut select.prewhere, &scope)?;
        self.exprs(&mut select.distinct, &scope)?;
        let mut outputs = Vec::new();
        for item in &mut select.projection {
            self.item(item, &scope, &mut outputs)?;
        }
        let scope = Scope { outputs: outputs.clone(), ..scope };
        self.exprs(&mut select.group_by, &scope)?;
        self.exprs(&mut select.having, &scope)?;
        self.exprs(&mut select.qualify, &scope)?;
        self.exprs(&mut select.named_window, &scope)?;
        Ok(Found { relations: scope.relations, outputs })
    }

    fn item(&mut self, item: &mut SelectItem, scope: &Scope<'_>, outputs: &mut Vec<String>) -> Result<()> {
        match item {
            SelectItem::UnnamedExpr(expr) => {
                self.exprs(expr, scope)?;
                match expr {
                    Expr::Identifier(name) => outputs.push(normal(name)),
                    Expr::CompoundIdentifier(names) => outputs.extend(names.last().map(normal)),
                    _ => {}
                }
            }
            SelectItem::ExprWithAlias { expr, alias } => {
                self.exprs(expr, scope)?;
                outputs.push(normal(alias));
            }
            SelectItem::Wildcard(options) => {
                self.options(options, scope)?;
                outputs.extend(scope.columns().cloned());
            }
            SelectItem::QualifiedWildcard(SelectItemQualifiedWildcardKind::ObjectName(name), options) => {
                self.options(options, scope)?;
                if let Some(ObjectNamePart::Identifier(ident)) = name.0.last_mut()
                    && let Some(relation) = scope.relation(ident).cloned()
                {
                    outputs.extend(relation.columns);
                    self.qualifier(ident, relation.name);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn qualifier(&mut self, ident: &mut Ident, name: Option<String>) {
        let is_other = name.as_ref().is_some_and(|name| *name != normal(ident));
        self.set(ident, name.filter(|_| is_other));
    }

    fn options(&mut self, options: &mut WildcardAdditionalOptions, scope: &Scope<'_>) -> Result<()> {
        let left_out: Vec<&mut ObjectName> = match &mut options.opt_exclude {
            Some(ExcludeSelectItem::Single(name)) => vec![name],
            Some(ExcludeSelectItem::Multiple(names)) => names.iter_mut().collect(),
            None => Vec::new(),
        };
        for name in left_out {
            if let Some(ObjectNamePart::Identifier(ident)) = name.0.last_mut() {
                self.column(ident, scope)?;
            }
        }
        if let Some(ExceptSelectItem { first_element, additional_elements }) = &mut options.opt_except {
            self.column(first_element, scope)?;
            additional_elements.iter_mut().try_for_each(|ident| self.column(ident, scope))?;
        }
        match &mut options.opt_rename {
            Some(RenameSelectItem::Single(renamed)) => self.column(&mut renamed.ident, scope)?,
            Some(RenameSelectItem::Multiple(renamed)) => {
                renamed.iter_mut().try_for_each(|renamed| self.column(&mut renamed.ident, scope))?;
            }
            None => {}
        }
        if let Some(replace) = &mut options.opt_replace {
            for item in &mut replace.items {
                self.exprs(&mut item.expr, scope)?;
                self.column(&mut item.column_name, scope)?;
            }
        }
        Ok(())
    }

    fn table_with_joins(&mut self, table: &mut TableWithJoins, scope: &mut Scope<'_>) -> Result<()> {
        self.table(&mut table.relation, scope)?;
        for join in &mut table.joins {
            let before = scope.relations.len();
            self.table(&mut join.relation, scope)?;
            match constraint(&mut join.join_operator) {
                Some(JoinConstraint::On(condition)) => self.exprs(condition, scope)?,
                // A column that they join by has the left side's name: see `using_joins`.
                Some(JoinConstraint::Using(names)) => {
                    let names = names.iter().filter_map(|name| name.0.last()?.as_ident());
                    let names = names.filter(|name| name.quote_style.is_none());
                    scope.merge(before, Some(&names.map(normal).collect::<Vec<_>>()));
                }
                Some(JoinConstraint::Natural) => scope.merge(before, None),
                _ => {}
            }
        }
        Ok(())
    }

    fn table(&mut self, table: &mut TableFactor, scope: &mut Scope<'_>) -> Result<()> {
        let (alias, own_name, columns) = match table {
            TableFactor::Table { name, alias, args: None, .. } => {
                let columns = self.columns(name);
                let own_name = name.0.last().and_then(ObjectNamePart::as_ident).map(normal);
                (alias.as_ref(), own_name, columns)
            }
            TableFactor::Derived { lateral, subquery, alias, .. } => {
                let columns = match lateral {
                    true => self.query(subquery, Some(scope))?,
                    false => self.query(subquery, scope.around)?,
                };
                (alias.as_ref(), None, columns)
            }
            TableFactor::NestedJoin { table_with_joins, alias } => {
                let mut inner = Scope::new(scope.around);
                self.table_with_joins(table_with_joins, &mut inner)?;
                if alias.is_none() {
                    scope.relations.append(&mut inner.relations);
                    return Ok(());
                }
                let columns = inner.columns().cloned().collect();
                (alias.as_ref(), None, columns)
            }
            other => {
                self.exprs(other, scope)?;
                let (TableFactor::Table { alias: Some(alias), .. }
                | TableFactor::Function { alias: Some(alias), .. }
                | TableFactor::TableFunction { alias: Some(alias), .. }
                | TableFactor::UNNEST { alias: Some(alias), .. }) = other
                else {
                    return Ok(());
                };
                // Of its columns those are known that the statement names.
                (Some(&*alias), None, Vec::new())
            }
        };
        let columns = alias.map_or(columns.clone(), |alias| aliased(columns, alias));
        let name = alias.map(|alias| normal(&alias.name)).or(own_name);
        scope.relations.push(Relation { name, columns });
        Ok(())
    }

    fn columns(&mut self, name: &mut ObjectName) -> Vec<String> {
        if let [ObjectNamePart::Identifier(ident)] = name.0.as_mut_slice() {
            let wanted = normal(ident);
            let is_same = |own: &str| own == wanted || (ident.quote_style.is_none() && own.to_lowercase() == wanted);
            let found = self.ctes.iter().rev().find(|(own, _)| *own == wanted);
            if let Some((own, columns)) =
                found.or_else(|| self.ctes.iter().rev().find(|(own, _)| is_same(own))).cloned()
            {
                self.qualifier(ident, Some(own));
                return columns;
            }
        }
        self.table_name(name)
    }

    /// Columns of a table of the catalog, which is called by its name from here on.
    fn table_name(&mut self, name: &mut ObjectName) -> Vec<String> {
        let key = written(name);
        let columns = self.tables.columns.get(&key).cloned().unwrap_or_default();
        if let [ObjectNamePart::Identifier(ident)] = name.0.as_mut_slice()
            && ident.quote_style.is_none()
            && let Some(own) = self.tables.names.get(&key).cloned()
        {
            self.set(ident, Some(own));
        }
        columns
    }

    fn exprs(&mut self, of: &mut impl VisitMut, scope: &Scope<'_>) -> Result<()> {
        match of.visit(&mut Exprs { folder: self, scope, depth: 0 }) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(error) => Err(error),
        }
    }
}

/// The tables and the columns of a query.
struct Found {
    relations: Vec<Relation>,
    outputs: Vec<String>,
}

impl Found {
    fn of(outputs: Vec<String>) -> Self {
        Self { relations: Vec::new(), outputs }
    }

    fn relations_columns(self) -> Vec<String> {
        self.outputs
    }
}

/// As [`TableReference`] is written.
fn written(name: &ObjectName) -> String {
    name.0.iter().filter_map(ObjectNamePart::as_ident).map(normal).collect::<Vec<_>>().join(".")
}

fn aliased(mut columns: Vec<String>, alias: &TableAlias) -> Vec<String> {
    for (at, renamed) in alias.columns.iter().enumerate() {
        match columns.get_mut(at) {
            Some(column) => *column = normal(&renamed.name),
            None => columns.push(normal(&renamed.name)),
        }
    }
    columns
}

fn constraint(join: &mut JoinOperator) -> Option<&mut JoinConstraint> {
    match join {
        JoinOperator::Join(on)
        | JoinOperator::Inner(on)
        | JoinOperator::Left(on)
        | JoinOperator::LeftOuter(on)
        | JoinOperator::Right(on)
        | JoinOperator::RightOuter(on)
        | JoinOperator::FullOuter(on)
        | JoinOperator::CrossJoin(on)
        | JoinOperator::Semi(on)
        | JoinOperator::LeftSemi(on)
        | JoinOperator::RightSemi(on)
        | JoinOperator::Anti(on)
        | JoinOperator::LeftAnti(on)
        | JoinOperator::RightAnti(on) => Some(on),
        _ => None,
    }
}

/// The names in expressions of one scope, and the queries in them.
struct Exprs<'f, 's> {
    folder: &'f mut Folder,
    scope: &'s Scope<'s>,
    depth: usize,
}

impl VisitorMut for Exprs<'_, '_> {
    type Break = Error;

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<Error> {
        if self.depth == 0
            && let Err(error) = self.folder.query(query, Some(self.scope))
        {
            return ControlFlow::Break(error);
        }
        self.depth += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &mut Query) -> ControlFlow<Error> {
        self.depth -= 1;
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Error> {
        if self.depth > 0 {
            return ControlFlow::Continue(());
        }
        let folded = match expr {
            Expr::Identifier(ident) => self.folder.column(ident, self.scope),
            Expr::CompoundIdentifier(parts) => self.compound(parts),
            _ => Ok(()),
        };
        match folded {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => ControlFlow::Break(error),
        }
    }
}

impl Exprs<'_, '_> {
    fn compound(&mut self, parts: &mut [Ident]) -> Result<()> {
        let [.., table, column] = parts else { return Ok(()) };
        let Some(relation) = self.scope.relation(table).cloned() else {
            // A field of a column.
            return match parts.first_mut() {
                Some(column) => self.folder.column(column, self.scope),
                None => Ok(()),
            };
        };
        let of_it = Scope { relations: vec![relation.clone()], outputs: Vec::new(), around: None };
        self.folder.column(column, &of_it)?;
        self.folder.qualifier(table, relation.name);
        Ok(())
    }
}
