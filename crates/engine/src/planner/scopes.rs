//! The columns that a name may refer to, scope by scope.
//!
//! A scope contains the tables of one FROM. It is nested in the scope of the outer query. The
//! nearest scope that contains a name decides: if two of its tables have the name, it is ambiguous,
//! whatever the outer scopes contain. DataFusion continues with those, so that
//!
//! ```sql
//! SELECT * FROM z WHERE EXISTS (SELECT 1 FROM t, u WHERE id = 1)
//! ```
//!
//! refers to `z.id` if `t` and `u` have an `id` each. In a scope, an exact match of the name takes
//! precedence over a match that ignores case. USING and NATURAL JOIN merge columns into one, of a
//! table that [`using_joins`] names.

use std::collections::HashMap;
use std::ops::Range;

use datafusion::sql::sqlparser::ast::Ident;

use super::spellings::Spellings;
use super::using_joins;
use crate::error::{ambiguous, unknown_qualifier};
use crate::identifiers::normal;
use crate::{Error, ErrorKind, Object, Result};

/// A table in FROM.
#[derive(Clone)]
pub(super) struct Relation {
    /// The name or alias, if it has one.
    pub name: Option<String>,
    /// The schemas that may qualify the name. Empty for a subquery.
    pub schemas: Vec<String>,
    /// The names of its columns.
    pub columns: Vec<String>,
    /// True if it has no other columns.
    pub is_whole: bool,
}

impl Relation {
    /// Returns whether it has a column of the name. Without quotes the case is ignored.
    pub fn has(&self, name: &Ident) -> bool {
        let wanted = normal(name);
        let is_same = |own: &String| *own == wanted || name.quote_style.is_none() && own.to_lowercase() == wanted;
        self.columns.iter().any(is_same)
    }
}

/// A column that a join merges.
struct Merged {
    name: String,
    /// The indices of the tables that have it.
    of: Vec<usize>,
    /// True if DataFusion merges it by taking the left side's column.
    is_left: bool,
}

/// The names that a query's expressions may use.
#[derive(Default)]
pub(super) struct Scope<'a> {
    /// The tables of FROM.
    pub relations: Vec<Relation>,
    merged: Vec<Merged>,
    /// The index of the first visible table. A join condition does not see the tables before the
    /// join.
    pub first: usize,
    /// The names that the query returns.
    pub outputs: Outputs,
    /// True in ORDER BY, where a name refers to an output column if there is one.
    pub is_of_order: bool,
    /// The scope of the outer query.
    pub around: Option<&'a Scope<'a>>,
}

/// The columns that a query returns.
#[derive(Clone)]
pub(super) struct Outputs {
    /// The names of the columns.
    pub names: Vec<String>,
    /// The parts of a column's name by the name of its item. Empty for a value.
    pub items: HashMap<String, Vec<String>>,
    /// True if the query returns no other columns.
    pub is_whole: bool,
}

impl Default for Outputs {
    fn default() -> Self {
        Self { names: Vec::new(), items: HashMap::new(), is_whole: true }
    }
}

impl Outputs {
    /// Returns outputs with columns of these names.
    pub fn of(names: Vec<String>) -> Self {
        Self { names, ..Self::default() }
    }

    /// Returns outputs of which no columns are known.
    pub fn unknown() -> Self {
        Self { is_whole: false, ..Self::default() }
    }

    /// Adds an item. `column` holds the parts of its name if it is a column.
    pub fn add(&mut self, name: String, column: Vec<String>) {
        self.names.push(name.clone());
        self.items.entry(name).or_insert(column);
    }
}

/// The stage at which names are looked up.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum LookUp {
    /// Before planning: names of nested queries, if their scopes are known.
    Nearest,
    /// After planning has failed: all names.
    Anything,
}

impl<'a> Scope<'a> {
    /// Creates an empty scope.
    pub fn new(around: Option<&'a Scope<'a>>) -> Self {
        Self { around, ..Self::default() }
    }

    /// Creates a scope without tables.
    pub fn returning(outputs: Outputs, around: Option<&'a Scope<'a>>) -> Self {
        Self { outputs, ..Self::new(around) }
    }

    /// Creates a scope of one table.
    pub fn of(relation: Relation) -> Self {
        Self { relations: vec![relation], ..Self::default() }
    }

    /// Returns the columns of the visible tables.
    pub fn columns(&self) -> impl Iterator<Item = &String> {
        self.relations.iter().skip(self.first).flat_map(|relation| &relation.columns)
    }

    /// Adds the tables of a join in parentheses.
    pub fn append(&mut self, mut inner: Scope<'_>) {
        let place = self.relations.len();
        self.relations.append(&mut inner.relations);
        self.merged.extend(inner.merged.into_iter().map(|mut merged| {
            merged.of.iter_mut().for_each(|at| *at += place);
            merged
        }));
    }

    /// Merges columns of a join. `sides` are its tables, of which those from `place` on are the
    /// right side. `using` holds the names; without it, all common names are merged. The right
    /// side's columns get the names of the left side's.
    pub fn merge(&mut self, sides: Range<usize>, place: usize, using: Option<&[Ident]>, is_left: bool) {
        let (left, right) = self.relations[sides.clone()].split_at_mut(place - sides.start);
        let (in_left, in_right) = (spellings(left), spellings(right));
        let pair = |name: &Ident| {
            let wanted = normal(name);
            let of = |side: &Spellings<'_>| {
                let found = side.of(&wanted).filter(|found| name.quote_style.is_none() || *found == wanted);
                found.map(str::to_string)
            };
            of(&in_left).zip(of(&in_right))
        };
        let owned = |(own, other): (&str, &str)| (own.to_string(), other.to_string());
        let pairs: Vec<(String, String)> = match using {
            Some(names) => names.iter().filter_map(pair).collect(),
            None => in_left.common(&in_right).into_iter().map(owned).collect(),
        };
        let names: HashMap<&String, &String> = pairs.iter().map(|(own, other)| (other, own)).collect();
        for column in right.iter_mut().flat_map(|relation| &mut relation.columns) {
            if let Some(name) = names.get(column) {
                column.clone_from(name);
            }
        }
        for (name, _) in pairs {
            let of = sides.clone().filter(|at| self.relations[*at].columns.contains(&name)).collect();
            self.merged.push(Merged { name, of, is_left });
        }
    }

    /// Returns the scope and those around it, nearest first.
    fn and_around(&self) -> impl Iterator<Item = &Scope<'a>> {
        std::iter::successors(Some(self), |scope| scope.around)
    }

    /// Returns the nearest table of a name.
    pub fn relation(&self, name: &Ident) -> Option<&Relation> {
        self.own_relation(name).or_else(|| self.around.and_then(|around| around.relation(name)))
    }

    fn own_relation(&self, name: &Ident) -> Option<&Relation> {
        let wanted = normal(name);
        let found = self.relations.iter().find(|relation| relation.name.as_ref() == Some(&wanted));
        found.or_else(|| {
            let is_same = |relation: &&Relation| relation.name.as_ref().is_some_and(|own| own.to_lowercase() == wanted);
            self.relations.iter().find(|relation| name.quote_style.is_none() && is_same(relation))
        })
    }

    /// Checks that the nearest table of a name has a column. DataFusion searches for one that has
    /// it.
    ///
    /// # Errors Fails if the nearest table is known to lack the column, and a table of that name in
    /// an outer scope has it.
    pub fn check_is_nearest(&self, table: &Ident, column: &Ident) -> Result<()> {
        let has = |relation: &Relation| {
            relation.columns.iter().any(|own| own.to_lowercase() == normal(column).to_lowercase())
        };
        let mut relations = self.and_around().filter_map(|scope| scope.own_relation(table));
        let is_nearest = relations.next().is_none_or(has);
        // `table` may be a column, and `column` a field of it.
        if is_nearest || !relations.any(has) || self.spelling(table)?.is_some() {
            return Ok(());
        }
        let message = format!("there is no column \"{}\" in {}", normal(column), normal(table));
        let error = Error::new(ErrorKind::NotFound, message).of(Object::Column);
        Err(error.with_hint(format!("a table around the subquery is called {} as well", normal(table))))
    }

    /// Returns the parts of the column to which a name refers, if it must be written differently.
    /// Usually the column has no qualifier.
    ///
    /// # Errors
    /// Fails if the nearest scope that has the name has two such columns.
    pub fn column(&self, name: &Ident, look_up: LookUp) -> Result<Option<Vec<String>>> {
        for scope in self.and_around() {
            if let Some(column) = scope.spelling(name)? {
                let is_written = name.quote_style.is_some() || column == normal(name);
                let meant = scope.told_apart(&column, look_up)?;
                return Ok(meant.or_else(|| (!is_written).then(|| vec![column])));
            }
            // An unknown column may have the name.
            if look_up == LookUp::Nearest && !scope.is_whole() {
                break;
            }
        }
        Ok(None)
    }

    /// Returns whether a column of this scope or of an outer one has a name.
    pub fn has(&self, name: &Ident) -> bool {
        self.and_around().any(|scope| scope.has_own(name))
    }

    fn has_own(&self, name: &Ident) -> bool {
        !matches!(self.spelling(name), Ok(None))
    }

    /// Checks that `schema.table.column` may qualify the nearest table of the name.
    ///
    /// # Errors
    /// Fails if the table has another schema, or none, and `schema` is neither a table nor a
    /// column. DataFusion compares only the table's name.
    pub fn check_schema(&self, schema: &Ident, table: &Ident, column: &Ident) -> Result<()> {
        let Some(relation) = self.relation(table) else { return Ok(()) };
        let is_known = relation.schemas.contains(&normal(schema)) || self.relation(schema).is_some();
        // The parts may be fields of an unknown column.
        if is_known || self.has(schema) || self.and_around().any(|scope| !scope.is_whole()) {
            return Ok(());
        }
        let tables = self.and_around().flat_map(|scope| &scope.relations).filter_map(|relation| relation.name.clone());
        Err(unknown_qualifier(&format!("{}.{}", normal(schema), normal(table)), &normal(column), tables))
    }

    /// Returns whether a column, with or without its table, belongs to the outer scopes.
    pub fn is_around(&self, column: &[Ident]) -> bool {
        let Some(around) = self.around else { return false };
        match column {
            [name] => !self.has_own(name) && self.is_whole() && around.has(name),
            [table, _] => self.own_relation(table).is_none() && around.relation(table).is_some(),
            _ => false,
        }
    }

    fn is_whole(&self) -> bool {
        self.outputs.is_whole && self.relations.iter().skip(self.first).all(|relation| relation.is_whole)
    }

    /// Returns the scope's spelling of a name: an exact match, or without quotes the only one that
    /// ignores case.
    fn spelling(&self, name: &Ident) -> Result<Option<String>> {
        let names = || self.columns().chain(&self.outputs.names);
        let wanted = normal(name);
        if names().any(|column| *column == wanted) {
            return Ok(Some(wanted));
        }
        match name.quote_style {
            Some(_) => Ok(None),
            None => only(&wanted, same_letters(&wanted, names()), "column"),
        }
    }

    /// Returns the qualified parts of a column that several tables have, or `None` if its name
    /// suffices.
    fn told_apart(&self, column: &String, look_up: LookUp) -> Result<Option<Vec<String>>> {
        match self.outputs.items.get(column).map(Vec::as_slice) {
            Some([]) => return Ok(None),
            Some(words) if self.is_of_order && words.len() > 1 => return Ok(Some(words.to_vec())),
            _ => {}
        }
        let places = self.first..self.relations.len();
        let holders: Vec<usize> = places.filter(|at| self.relations[*at].columns.contains(column)).collect();
        if holders.len() < 2 {
            return Ok(None);
        }
        let names = || holders.iter().filter_map(|at| self.relations[*at].name.as_deref());
        let table = match self.merged.iter().find(|merged| merged.name == *column && merged.of == holders) {
            Some(Merged { is_left: true, .. }) => names().next().map(str::to_string),
            Some(_) => Some(using_joins::table_of_merged(names())),
            None if look_up == LookUp::Anything => None,
            None => return Err(ambiguous(column, names())),
        };
        Ok(table.map(|table| vec![table, column.clone()]))
    }
}

/// Returns the only name that matches if case is ignored.
pub(super) fn only(name: &str, mut same: Vec<String>, what: &str) -> Result<Option<String>> {
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
