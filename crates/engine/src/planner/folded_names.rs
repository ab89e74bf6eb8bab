//! Resolves unquoted names without regard to case if no column has exactly that name, and names in
//! a subquery to the nearest query that has such a column.
//!
//! DataFusion folds an unquoted name to lower case and then requires an exact match:
//! `SELECT Name FROM 'people.csv'` finds no column of a file whose header is `Name`. In a subquery,
//! DataFusion continues with the outer queries and may take a column of theirs. This module
//! resolves the statement's names [scope by scope](super::scopes):
//!
//! 1. Before planning, in a statement whose subqueries may use columns of outer queries. A resolved
//!    name gets quotes in the column's case, and a table if two tables have the name. A scope with
//!    unknown columns, such as a function's rows, keeps its names as they are.
//! 2. After planning has failed, all names of all scopes.
//! 3. `z.s.a` is the field `a` of the column `s` if the table `z` has that column, even if a table
//!    `s` has a column `a`. `public.t.a` must name the schema of `t`.
//! 4. A query's items are the columns of the query around it. Table names are resolved in the same
//!    way.
//!
//! Quoted names stay as they are.

use std::collections::HashMap;
use std::ops::ControlFlow;

use datafusion::common::TableReference;
use datafusion::execution::SessionState;
use datafusion::sql::parser::{CopyToSource, Statement};
use datafusion::sql::sqlparser::ast::{
    AccessExpr, ExceptSelectItem, ExcludeSelectItem, Expr, Ident, JoinConstraint, JoinOperator, ObjectName,
    ObjectNamePart, Query, RenameSelectItem, Select, SelectItem, SelectItemQualifiedWildcardKind, SetExpr,
    Statement as Sql, Subscript, TableAlias, TableFactor, TableWithJoins, Value, VisitMut, VisitorMut,
    WildcardAdditionalOptions,
};

use super::scopes::{LookUp, Outputs, Relation, Scope, only};
use super::{file_functions, outer_aggregates, output_names, using_joins, visit_statement};
use crate::identifiers::{SCHEMA, normal};
use crate::{Error, Result};

/// Returns whether the statement has subqueries in expressions, LATERAL subqueries, or names of
/// three words, which have a schema or a field.
pub(super) fn may_look_out(statement: &mut Statement) -> bool {
    struct Subqueries {
        exprs: usize,
    }
    impl VisitorMut for Subqueries {
        type Break = ();

        fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
            self.exprs += 1;
            match expr {
                Expr::CompoundIdentifier(words) if words.len() > 2 => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        }

        fn post_visit_expr(&mut self, _: &mut Expr) -> ControlFlow<()> {
            self.exprs -= 1;
            ControlFlow::Continue(())
        }

        fn pre_visit_query(&mut self, _: &mut Query) -> ControlFlow<()> {
            if self.exprs > 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }

        fn pre_visit_table_factor(&mut self, table: &mut TableFactor) -> ControlFlow<()> {
            match table {
                TableFactor::Derived { lateral: true, .. } => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        }
    }
    visit_statement(statement, &mut Subqueries { exprs: 0 }).is_break()
}

/// Returns the statement with names in their stored case, or `None` if nothing changes.
///
/// # Errors
/// Fails if a name matches two columns.
pub(super) async fn folded(statement: &Statement, state: &SessionState, look_up: LookUp) -> Result<Option<Statement>> {
    let mut statement = statement.clone();
    // A call that reads files is a table with columns.
    file_functions::rewrite(&mut statement);
    let mut tables = Tables::default();
    let Ok(references) = state.resolve_table_references(&statement) else { return Ok(None) };
    for reference in references {
        tables.look_up(reference, state).await?;
    }
    let mut folder = Folder { tables, look_up, ctes: Vec::new(), has_changed: false };
    folder.statement(&mut statement)?;
    Ok(folder.has_changed.then_some(statement))
}

/// The tables that a statement names.
#[derive(Default)]
struct Tables {
    /// The columns of each table, by the name in the statement.
    columns: HashMap<String, Vec<String>>,
    /// The names of tables that the statement writes in another case.
    names: HashMap<String, String>,
}

/// Finds the names that differ from a name in case only.
type FindNames = Box<dyn Fn(&str) -> Vec<String> + Send + Sync>;

/// Finds the tables, views and relations whose names differ from a name in case only. The binder of
/// a statement's names registers it with the session's configuration.
pub(crate) struct OtherLetters(pub FindNames);

impl OtherLetters {
    fn of(state: &SessionState, name: &str) -> Vec<String> {
        state.config().get_extension::<Self>().map(|letters| (letters.0)(name)).unwrap_or_default()
    }
}

impl Tables {
    async fn look_up(&mut self, reference: TableReference, state: &SessionState) -> Result<()> {
        let name = reference.to_string();
        if let Some(columns) = columns_of(reference.clone(), state).await {
            self.columns.insert(name, columns);
            return Ok(());
        }
        let TableReference::Bare { table } = &reference else { return Ok(()) };
        let same = OtherLetters::of(state, table);
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

/// Returns the name that `ident` refers to: an exact match, or a match in another case if `ident`
/// is unquoted.
///
/// # Errors
/// Fails if two names match in another case only.
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

struct Folder {
    tables: Tables,
    look_up: LookUp,
    /// The names of WITH queries and their columns, innermost last.
    ctes: Vec<(String, Outputs)>,
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

    /// Returns whether the names of a scope are resolved.
    fn looks_up(&self, scope: &Scope<'_>) -> bool {
        self.look_up == LookUp::Anything || scope.around.is_some()
    }

    /// Resolves a column's name where it cannot have a table prefix.
    fn column(&mut self, ident: &mut Ident, scope: &Scope<'_>) -> Result<()> {
        if self.looks_up(scope) {
            let meant = scope.column(ident, self.look_up)?.and_then(|mut words| words.pop());
            self.set(ident, meant.filter(|name| *name != normal(ident)));
        }
        Ok(())
    }

    /// Resolves the names of a query. Returns its columns.
    fn query(&mut self, query: &mut Query, around: Option<&Scope<'_>>) -> Result<Outputs> {
        let known = self.ctes.len();
        if let Some(with) = &mut query.with {
            let is_recursive = with.recursive;
            for cte in &mut with.cte_tables {
                let name = normal(&cte.alias.name);
                if is_recursive {
                    // The columns of the recursive query's first term.
                    let columns = match cte.query.body.as_mut() {
                        SetExpr::SetOperation { left, .. } => self.body(left, around)?.outputs,
                        _ => Outputs::unknown(),
                    };
                    self.ctes.push((name.clone(), aliased(columns, &cte.alias)));
                }
                let columns = self.query(&mut cte.query, around)?;
                self.ctes.push((name, aliased(columns, &cte.alias)));
            }
        }
        let mut scope = self.body(&mut query.body, around)?;
        scope.is_of_order = true;
        if let Some(order) = &mut query.order_by {
            self.exprs(order, &scope)?;
        }
        self.ctes.truncate(known);
        Ok(scope.outputs)
    }

    /// Returns the scope of a query's ORDER BY.
    fn body<'s>(&mut self, body: &mut SetExpr, around: Option<&'s Scope<'s>>) -> Result<Scope<'s>> {
        let returns = |outputs| Scope::returning(outputs, around);
        Ok(match body {
            SetExpr::Select(select) => self.select(select, around)?,
            SetExpr::Query(query) => returns(self.query(query, around)?),
            SetExpr::SetOperation { left, right, .. } => {
                let outputs = self.body(left, around)?.outputs;
                self.body(right, around)?;
                returns(outputs)
            }
            SetExpr::Values(values) => {
                let width = values.rows.first().map_or(0, |row| row.content.len());
                self.exprs(values, &Scope::new(around))?;
                returns(Outputs::of((1..=width).map(|at| format!("column{at}")).collect()))
            }
            _ => returns(Outputs::unknown()),
        })
    }

    fn select<'s>(&mut self, select: &mut Select, around: Option<&'s Scope<'s>>) -> Result<Scope<'s>> {
        let mut scope = Scope::new(around);
        for table in &mut select.from {
            self.table_with_joins(table, &mut scope)?;
        }
        self.exprs(&mut select.selection, &scope)?;
        self.exprs(&mut select.prewhere, &scope)?;
        self.exprs(&mut select.distinct, &scope)?;
        let mut outputs = Outputs::default();
        for item in &mut select.projection {
            self.item(item, &scope, &mut outputs)?;
        }
        scope.outputs = outputs;
        self.exprs(&mut select.group_by, &scope)?;
        self.exprs(&mut select.having, &scope)?;
        self.exprs(&mut select.qualify, &scope)?;
        self.exprs(&mut select.named_window, &scope)?;
        Ok(scope)
    }

    fn item(&mut self, item: &mut SelectItem, scope: &Scope<'_>, outputs: &mut Outputs) -> Result<()> {
        match item {
            SelectItem::UnnamedExpr(expr) => {
                let had_changed = std::mem::take(&mut self.has_changed);
                let last = || output_names::path(expr).and_then(|mut words| words.pop());
                let name = output_names::of_what_is_written(expr).or_else(last);
                self.exprs(expr, scope)?;
                match (output_names::path(expr), name) {
                    (Some(words), _) => {
                        if let Some(name) = words.last().cloned() {
                            outputs.add(name, words);
                        }
                    }
                    (None, Some(name)) => {
                        outputs.add(name.clone(), Vec::new());
                        // The text of the expression has changed, so the alias preserves its
                        // original name.
                        if self.has_changed {
                            let alias = Ident::with_quote('"', name);
                            *item = SelectItem::ExprWithAlias { expr: expr.clone(), alias };
                        }
                    }
                    (None, None) => outputs.is_whole = false,
                }
                self.has_changed |= had_changed;
            }
            SelectItem::ExprWithAlias { expr, alias } => {
                self.exprs(expr, scope)?;
                outputs.add(normal(alias), Vec::new());
            }
            SelectItem::Wildcard(options) => {
                self.options(options, scope)?;
                outputs.is_whole &= scope.relations.iter().all(|relation| relation.is_whole);
                outputs.names.extend(without_left_out(scope.columns().cloned(), options));
            }
            SelectItem::QualifiedWildcard(SelectItemQualifiedWildcardKind::ObjectName(name), options) => {
                self.options(options, scope)?;
                match name.0.last_mut() {
                    Some(ObjectNamePart::Identifier(ident)) if let Some(relation) = scope.relation(ident).cloned() => {
                        outputs.is_whole &= relation.is_whole;
                        outputs.names.extend(without_left_out(relation.columns.into_iter(), options));
                        self.qualifier(ident, relation.name);
                    }
                    _ => outputs.is_whole = false,
                }
            }
            _ => outputs.is_whole = false,
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
        let start = scope.relations.len();
        self.table(&mut table.relation, scope)?;
        for join in &mut table.joins {
            let right = scope.relations.len();
            self.table(&mut join.relation, scope)?;
            let is_left = using_joins::is_left_sides(join);
            let tables = start..scope.relations.len();
            match constraint(&mut join.join_operator) {
                Some(JoinConstraint::On(condition)) => {
                    scope.first = start;
                    self.exprs(condition, scope)?;
                    scope.first = 0;
                }
                // A join column has the left side's name: see `using_joins`.
                Some(JoinConstraint::Using(names)) => {
                    let names = names.iter().filter_map(|name| name.0.last()?.as_ident().cloned());
                    scope.merge(tables, right, Some(&names.collect::<Vec<_>>()), is_left);
                }
                Some(JoinConstraint::Natural) => scope.merge(tables, right, None, is_left),
                _ => {}
            }
            match join.join_operator {
                JoinOperator::Semi(_)
                | JoinOperator::LeftSemi(_)
                | JoinOperator::Anti(_)
                | JoinOperator::LeftAnti(_) => scope.relations.truncate(right),
                JoinOperator::RightSemi(_) | JoinOperator::RightAnti(_) => drop(scope.relations.drain(start..right)),
                _ => {}
            }
        }
        Ok(())
    }

    fn table(&mut self, table: &mut TableFactor, scope: &mut Scope<'_>) -> Result<()> {
        let mut schemas = Vec::new();
        let (alias, own_name, columns) = match table {
            TableFactor::Table { name, alias, args: None, .. } => {
                let columns = self.columns(name);
                schemas = schemas_of(name);
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
                    scope.append(inner);
                    return Ok(());
                }
                let is_whole = inner.relations.iter().all(|relation| relation.is_whole);
                (alias.as_ref(), None, Outputs { is_whole, ..Outputs::of(inner.columns().cloned().collect()) })
            }
            other => {
                self.exprs(other, scope)?;
                // Only the columns that the statement names are known.
                let unknown = Outputs::unknown();
                match other {
                    TableFactor::Table { alias, .. }
                    | TableFactor::Function { alias, .. }
                    | TableFactor::TableFunction { alias, .. }
                    | TableFactor::UNNEST { alias, .. } => (alias.as_ref(), None, unknown),
                    _ => (None, None, unknown),
                }
            }
        };
        let columns = match alias {
            Some(alias) => aliased(columns, alias),
            None => columns,
        };
        let name = alias.map(|alias| normal(&alias.name)).or(own_name);
        scope.relations.push(Relation { name, schemas, columns: columns.names, is_whole: columns.is_whole });
        Ok(())
    }

    fn columns(&mut self, name: &mut ObjectName) -> Outputs {
        if let [ObjectNamePart::Identifier(ident)] = name.0.as_mut_slice() {
            let wanted = normal(ident);
            let is_same = |own: &str| own == wanted || (ident.quote_style.is_none() && own.to_lowercase() == wanted);
            let nearest = |is: &dyn Fn(&str) -> bool| self.ctes.iter().rev().find(|(own, _)| is(own));
            let is_table = self.tables.columns.contains_key(&wanted) && !self.tables.names.contains_key(&wanted);
            let found = nearest(&|own| own == wanted).or_else(|| nearest(&is_same).filter(|_| !is_table));
            if let Some((own, columns)) = found.cloned() {
                self.qualifier(ident, Some(own));
                return columns;
            }
        }
        self.table_name(name)
    }

    /// Returns the columns of a catalog table, and replaces its name by the stored one.
    fn table_name(&mut self, name: &mut ObjectName) -> Outputs {
        let key = written(name);
        let columns = match self.tables.columns.get(&key) {
            Some(columns) => Outputs::of(columns.clone()),
            None => Outputs::unknown(),
        };
        if let [ObjectNamePart::Identifier(ident)] = name.0.as_mut_slice()
            && ident.quote_style.is_none()
            && let Some(own) = self.tables.names.get(&key).cloned()
        {
            self.set(ident, Some(own));
        }
        columns
    }

    fn exprs(&mut self, of: &mut impl VisitMut, scope: &Scope<'_>) -> Result<()> {
        match of.visit(&mut Exprs { folder: self, scope, depth: 0, parameters: Vec::new() }) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(error) => Err(error),
        }
    }
}

/// Returns the schemas that may prefix a table's column: the one in FROM, or those that FROM may
/// omit.
fn schemas_of(name: &ObjectName) -> Vec<String> {
    match name.0.as_slice() {
        [.., schema, _] => schema.as_ident().map(normal).into_iter().collect(),
        _ => [SCHEMA, "pg_catalog"].map(String::from).into(),
    }
}

/// Returns the name in the notation of [`TableReference`].
fn written(name: &ObjectName) -> String {
    name.0.iter().filter_map(ObjectNamePart::as_ident).map(normal).collect::<Vec<_>>().join(".")
}

fn aliased(mut columns: Outputs, alias: &TableAlias) -> Outputs {
    for (at, renamed) in alias.columns.iter().enumerate() {
        match columns.names.get_mut(at) {
            Some(column) => *column = normal(&renamed.name),
            None => columns.names.push(normal(&renamed.name)),
        }
    }
    columns
}

/// Returns the columns of `*`, without those that its options exclude and with those that they
/// rename.
fn without_left_out(
    columns: impl Iterator<Item = String>,
    options: &WildcardAdditionalOptions,
) -> impl Iterator<Item = String> {
    let mut left_out = Vec::new();
    match &options.opt_exclude {
        Some(ExcludeSelectItem::Single(name)) => left_out.extend(last_of(name)),
        Some(ExcludeSelectItem::Multiple(names)) => left_out.extend(names.iter().filter_map(last_of)),
        None => {}
    }
    if let Some(ExceptSelectItem { first_element, additional_elements }) = &options.opt_except {
        left_out.extend(std::iter::once(first_element).chain(additional_elements).map(normal));
    }
    let renamed: HashMap<String, String> = match &options.opt_rename {
        Some(RenameSelectItem::Single(one)) => [(normal(&one.ident), normal(&one.alias))].into(),
        Some(RenameSelectItem::Multiple(all)) => {
            all.iter().map(|one| (normal(&one.ident), normal(&one.alias))).collect()
        }
        None => HashMap::new(),
    };
    columns
        .filter(move |column| !left_out.contains(column))
        .map(move |column| renamed.get(&column).cloned().unwrap_or(column))
}

fn last_of(name: &ObjectName) -> Option<String> {
    name.0.last().and_then(ObjectNamePart::as_ident).map(normal)
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

/// Visits the names in expressions of one scope, and the queries in them.
struct Exprs<'f, 's> {
    folder: &'f mut Folder,
    scope: &'s Scope<'s>,
    depth: usize,
    /// The parameters of the enclosing lambdas, such as `x -> x + 1`.
    parameters: Vec<String>,
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
        self.field(expr);
        if let Err(error) = self.schema(expr) {
            return ControlFlow::Break(error);
        }
        if !self.folder.looks_up(self.scope) {
            return ControlFlow::Continue(());
        }
        let folded = match expr {
            Expr::Lambda(function) => {
                self.parameters.extend(function.params.iter().map(|parameter| normal(&parameter.name)));
                Ok(())
            }
            Expr::Identifier(ident) if self.parameters.contains(&normal(ident)) => Ok(()),
            Expr::Identifier(_) => self.alone(expr),
            Expr::Function(function) => outer_aggregates::check(function, self.scope),
            Expr::CompoundIdentifier(parts) => self.compound(parts),
            _ => Ok(()),
        };
        match folded {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => ControlFlow::Break(error),
        }
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Error> {
        if let Expr::Lambda(function) = expr
            && self.depth == 0
            && self.folder.looks_up(self.scope)
        {
            let outer = self.parameters.len().saturating_sub(function.params.len());
            self.parameters.truncate(outer);
        }
        ControlFlow::Continue(())
    }
}

impl Exprs<'_, '_> {
    /// Resolves a name without a table.
    fn alone(&mut self, expr: &mut Expr) -> Result<()> {
        let Expr::Identifier(ident) = expr else { return Ok(()) };
        let Some(words) = self.scope.column(ident, self.folder.look_up)? else { return Ok(()) };
        let quoted = |value| Ident { value, quote_style: Some('"'), span: ident.span };
        let mut words: Vec<Ident> = words.into_iter().map(quoted).collect();
        *expr = match (words.len(), words.pop()) {
            (1, Some(column)) => Expr::Identifier(column),
            (_, column) => Expr::CompoundIdentifier(words.into_iter().chain(column).collect()),
        };
        self.folder.has_changed = true;
        Ok(())
    }

    /// Rewrites a field of a column if its words are also a table's and a column's names.
    /// DataFusion would take it for that column.
    fn field(&mut self, expr: &mut Expr) {
        let Expr::CompoundIdentifier(words) = expr else { return };
        let is_column =
            |table: &Ident, column: &Ident| self.scope.relation(table).is_some_and(|relation| relation.has(column));
        let [first, second, rest @ ..] = words.as_slice() else { return };
        let is_hidden = words.windows(2).skip(1).any(|pair| is_column(&pair[0], &pair[1]));
        if !is_hidden {
            return;
        }
        let (root, fields) = match is_column(first, second) {
            true => (Expr::CompoundIdentifier(vec![first.clone(), second.clone()]), rest),
            // `schema.table.column`, unless a column has the schema's name.
            false if self.scope.has(first) => (Expr::Identifier(first.clone()), &words[1..]),
            false => return,
        };
        let field = |name: &Ident| {
            let index = Expr::Value(Value::SingleQuotedString(normal(name)).into());
            AccessExpr::Subscript(Subscript::Index { index })
        };
        let access_chain = fields.iter().map(field).collect();
        *expr = Expr::CompoundFieldAccess { root: Box::new(root), access_chain };
        self.folder.has_changed = true;
    }

    /// Refuses a wrong schema before a table's name.
    fn schema(&self, expr: &Expr) -> Result<()> {
        match expr {
            Expr::CompoundIdentifier(words) if self.folder.look_up == LookUp::Nearest => match words.as_slice() {
                [schema, table, column] => self.scope.check_schema(schema, table, column),
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }

    fn compound(&mut self, parts: &mut [Ident]) -> Result<()> {
        let [.., table, column] = parts else { return Ok(()) };
        let Some(relation) = self.scope.relation(table).cloned() else {
            // A field of a column.
            return match parts.first_mut() {
                Some(column) => self.folder.column(column, self.scope),
                None => Ok(()),
            };
        };
        if self.folder.look_up == LookUp::Nearest {
            self.scope.check_is_nearest(table, column)?;
        }
        let of_it = Scope::of(relation.clone());
        let meant = of_it.column(column, self.folder.look_up)?.and_then(|mut words| words.pop());
        self.folder.set(column, meant);
        self.folder.qualifier(table, relation.name);
        Ok(())
    }
}
