//! `WITH` within `WITH`: the nearest query of a name takes precedence.
//!
//! DataFusion 55.2.0 refuses a name that an outer query defines, `WITH query name "a" specified
//! more than once`. Here the inner one gets a unique name, and its original name as an alias in
//! FROM.

use std::collections::HashSet;
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Ident, ObjectName, ObjectNamePart, Query, TableAlias, TableFactor, VisitMut, VisitorMut,
};

use crate::identifiers::normal;

/// The names that the outer queries define.
#[derive(Default)]
pub(super) struct Around {
    given: Vec<HashSet<String>>,
    renamed: usize,
}

impl Around {
    /// Renames the WITH queries of a query whose names an outer query defines.
    pub(super) fn enter(&mut self, query: &mut Query) {
        let names = given(query);
        let again: Vec<String> = names.iter().filter(|name| self.has(name)).cloned().collect();
        for name in again {
            self.renamed += 1;
            rename(query, &name, &format!("__{name}_{}", self.renamed));
        }
        self.given.push(names.into_iter().collect());
    }

    pub(super) fn leave(&mut self) {
        self.given.pop();
    }

    fn has(&self, name: &str) -> bool {
        self.given.iter().any(|names| names.contains(name))
    }
}

fn given(query: &Query) -> Vec<String> {
    query.with.iter().flat_map(|with| &with.cte_tables).map(|cte| normal(&cte.alias.name)).collect()
}

fn rename(query: &mut Query, old: &str, new: &str) {
    let Some(with) = &mut query.with else { return };
    let mut renamer = Renamer { old, new, shadows: 0 };
    let mut is_known = false;
    for cte in &mut with.cte_tables {
        let is_it = normal(&cte.alias.name) == old;
        if is_known || (is_it && with.recursive) {
            let _ = cte.query.visit(&mut renamer);
        }
        if is_it {
            cte.alias.name = Ident::with_quote('"', new);
            is_known = true;
        }
    }
    let _ = query.body.visit(&mut renamer);
    let _ = query.order_by.visit(&mut renamer);
}

struct Renamer<'a> {
    old: &'a str,
    new: &'a str,
    /// The number of queries around that redefine the name.
    shadows: usize,
}

impl Renamer<'_> {
    fn is_given_by(&self, query: &Query) -> bool {
        given(query).iter().any(|name| name == self.old)
    }
}

impl VisitorMut for Renamer<'_> {
    type Break = std::convert::Infallible;

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<Self::Break> {
        self.shadows += usize::from(self.is_given_by(query));
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, query: &mut Query) -> ControlFlow<Self::Break> {
        self.shadows -= usize::from(self.is_given_by(query));
        ControlFlow::Continue(())
    }

    fn post_visit_table_factor(&mut self, table: &mut TableFactor) -> ControlFlow<Self::Break> {
        if let TableFactor::Table { name, alias, args: None, .. } = table
            && self.shadows == 0
            && let [ObjectNamePart::Identifier(ident)] = name.0.as_slice()
            && normal(ident) == self.old
        {
            let old = ident.clone();
            *name = ObjectName::from(vec![Ident::with_quote('"', self.new)]);
            if alias.is_none() {
                *alias = Some(TableAlias { explicit: true, name: old, columns: Vec::new(), at: None });
            }
        }
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::rows;

    #[tokio::test]
    async fn the_nearer_one_is_meant() {
        for (query, expected) in [
            ("WITH a AS (SELECT 1 AS id), b AS (WITH a AS (SELECT 2 AS id) SELECT * FROM a) SELECT a.id, b.id FROM a, b", "1 2"),
            ("WITH a AS (SELECT 1 AS id) SELECT (WITH a AS (SELECT id + 1 AS id FROM a) SELECT a.id FROM a), id FROM a", "2 1"),
            (
                "WITH a AS (SELECT 1 AS id) SELECT * FROM (WITH RECURSIVE a(id) AS (SELECT 5 UNION ALL SELECT id + 1 FROM a WHERE id < 6)
                 SELECT sum(id) FROM a) AS s(x), a",
                "11 1",
            ),
            (
                "WITH a AS (SELECT 1 AS id) SELECT * FROM (WITH a AS (SELECT 2 AS id) SELECT * FROM (WITH a AS (SELECT 3 AS id)
                 SELECT a.id FROM a) AS x, a) AS s(x, y)",
                "3 2",
            ),
        ] {
            assert_eq!(rows(query).await, [expected], "{query}");
        }
    }
}
