//! The columns that RIGHT and FULL JOIN ... USING (...) merge.
//!
//! DataFusion takes `k` and `*` after `x RIGHT JOIN y USING (k)` for x.k, which is NULL where x has no row; it is y.k,
//! and `coalesce(x.k, y.k)` after a FULL JOIN. So that is what is written in the place of `k`, for the first join of a
//! FROM, between two tables that have names. Other joins of that kind are refused, with NATURAL ones, whose columns
//! nobody knows before tables are looked up.

use std::collections::HashMap;
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Expr, Function, FunctionArg, FunctionArgExpr, FunctionArgumentList, FunctionArguments, Ident, Join, JoinConstraint,
    JoinOperator, ObjectName, ObjectNamePart, OrderBy, OrderByKind, Query, ReplaceSelectElement, ReplaceSelectItem,
    Select, SelectItem, SetExpr, TableFactor, TableWithJoins, VisitMut, VisitorMut,
};

use crate::statement::normal;
use crate::{Error, ErrorKind, Result};

/// Whether a SELECT has a join whose columns [`rewrite`] does not merge.
pub(super) fn refuse(select: &Select) -> Result<()> {
    for from in &select.from {
        for (number, join) in from.joins.iter().enumerate() {
            let Some((kind, constraint)) = merging(join) else { continue };
            let is_merged = number == 0 && merged(from).is_some_and(|merged| !is_merged_again(from, &merged));
            if !is_merged {
                let what = if matches!(constraint, JoinConstraint::Natural) {
                    format!("NATURAL {kind} JOIN")
                } else {
                    format!("{kind} JOIN ... USING of other than the first two tables, or used again by the next join")
                };
                return Err(Error::new(ErrorKind::Invalid, format!("{what} is not supported"))
                    .with_hint("write ON, and coalesce(x.k, y.k) where the column of either is meant"));
            }
        }
    }
    Ok(())
}

/// The query's own SELECT with its ORDER BY.
pub(super) fn rewrite_query(query: &mut Query) {
    if let SetExpr::Select(select) = query.body.as_mut() {
        merge(select, query.order_by.as_mut());
    }
}

/// A SELECT on one side of a set operation, or one that `rewrite_query` had already.
pub(super) fn rewrite(select: &mut Select) {
    merge(select, None);
}

/// The word for a join that merges columns into others than the left side's, and what it is on.
fn merging(join: &Join) -> Option<(&'static str, &JoinConstraint)> {
    let (kind, constraint) = match &join.join_operator {
        JoinOperator::Right(constraint) | JoinOperator::RightOuter(constraint) => ("RIGHT", constraint),
        JoinOperator::FullOuter(constraint) => ("FULL", constraint),
        _ => return None,
    };
    matches!(constraint, JoinConstraint::Using(_) | JoinConstraint::Natural).then_some((kind, constraint))
}

/// What each column is that the first join merges, by name; `None` if it is none of these joins, or not known.
fn merged(from: &TableWithJoins) -> Option<HashMap<String, Expr>> {
    let join = from.joins.first()?;
    let (kind, JoinConstraint::Using(columns)) = merging(join)? else { return None };
    let (left, right) = (name_of(&from.relation)?, name_of(&join.relation)?);
    let mut merged = HashMap::new();
    for column in columns {
        let [ObjectNamePart::Identifier(column)] = column.0.as_slice() else { return None };
        let of = |table: &Ident| Expr::CompoundIdentifier(vec![table.clone(), column.clone()]);
        let value = if kind == "RIGHT" { of(&right) } else { coalesce(of(&left), of(&right)) };
        merged.insert(normal(column), value);
    }
    Some(merged)
}

/// Whether a later join takes the left side's column for the merged one.
fn is_merged_again(from: &TableWithJoins, merged: &HashMap<String, Expr>) -> bool {
    from.joins.iter().skip(1).any(|join| match &join.join_operator {
        JoinOperator::Join(constraint)
        | JoinOperator::Inner(constraint)
        | JoinOperator::Left(constraint)
        | JoinOperator::LeftOuter(constraint)
        | JoinOperator::Right(constraint)
        | JoinOperator::RightOuter(constraint)
        | JoinOperator::FullOuter(constraint) => match constraint {
            JoinConstraint::Using(columns) => columns.iter().any(|column| match column.0.as_slice() {
                [ObjectNamePart::Identifier(column)] => merged.contains_key(&normal(column)),
                _ => true,
            }),
            JoinConstraint::Natural => true,
            JoinConstraint::On(_) | JoinConstraint::None => false,
        },
        _ => false,
    })
}

/// What a table's columns are called by.
fn name_of(table: &TableFactor) -> Option<Ident> {
    match table {
        TableFactor::Table { alias: Some(alias), .. } | TableFactor::Derived { alias: Some(alias), .. } => {
            alias.columns.is_empty().then(|| alias.name.clone())
        }
        TableFactor::Table { name, .. } => match name.0.last()? {
            ObjectNamePart::Identifier(name) => Some(name.clone()),
            ObjectNamePart::Function(_) => None,
        },
        _ => None,
    }
}

fn coalesce(left: Expr, right: Expr) -> Expr {
    let argument = |expr| FunctionArg::Unnamed(FunctionArgExpr::Expr(expr));
    Expr::Function(Function {
        name: ObjectName(vec![ObjectNamePart::Identifier(Ident::new("coalesce"))]),
        uses_odbc_syntax: false,
        parameters: FunctionArguments::None,
        args: FunctionArguments::List(FunctionArgumentList {
            duplicate_treatment: None,
            args: vec![argument(left), argument(right)],
            clauses: Vec::new(),
        }),
        filter: None,
        null_treatment: None,
        over: None,
        within_group: Vec::new(),
    })
}

fn merge(select: &mut Select, order: Option<&mut OrderBy>) {
    let mut all = HashMap::new();
    for from in &select.from {
        all.extend(merged(from).into_iter().flatten());
    }
    if all.is_empty() {
        return;
    }
    let outputs: Vec<String> = select.projection.iter().filter_map(output).collect();
    let mut merger = Merger { merged: &all, depth: 0 };
    for item in &mut select.projection {
        merge_item(item, &mut merger);
    }
    let mut visit = |expr: &mut Expr| {
        let _ = expr.visit(&mut merger);
    };
    select.selection.iter_mut().for_each(&mut visit);
    select.having.iter_mut().for_each(&mut visit);
    select.qualify.iter_mut().for_each(&mut visit);
    for join in select.from.iter_mut().flat_map(|from| &mut from.joins) {
        if let Some(JoinConstraint::On(condition)) = constraint_of(&mut join.join_operator) {
            visit(condition);
        }
    }
    let _ = select.group_by.visit(&mut merger);
    if let Some(OrderBy { kind: OrderByKind::Expressions(keys), .. }) = order {
        for key in keys {
            // An output of that name is what is meant.
            let is_output = matches!(&key.expr, Expr::Identifier(name) if outputs.contains(&normal(name)));
            if !is_output {
                let _ = key.expr.visit(&mut merger);
            }
        }
    }
}

/// The name of an output that is given, or a column's.
fn output(item: &SelectItem) -> Option<String> {
    match item {
        SelectItem::ExprWithAlias { alias, .. } => Some(normal(alias)),
        SelectItem::UnnamedExpr(Expr::Identifier(name)) => Some(normal(name)),
        _ => None,
    }
}

fn merge_item(item: &mut SelectItem, merger: &mut Merger<'_>) {
    match item {
        SelectItem::UnnamedExpr(Expr::Identifier(name)) => {
            if let Some(value) = merger.merged.get(&normal(name)) {
                *item = SelectItem::ExprWithAlias { expr: value.clone(), alias: name.clone() };
            }
        }
        SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } => {
            let _ = expr.visit(merger);
        }
        SelectItem::Wildcard(options) if options.opt_replace.is_none() => {
            let mut columns: Vec<_> = merger.merged.iter().collect();
            columns.sort_unstable_by_key(|(name, _)| *name);
            let replaced = columns.into_iter().map(|(name, value)| {
                let column_name = Ident::with_quote('"', name.clone());
                Box::new(ReplaceSelectElement { expr: value.clone(), column_name, as_keyword: true })
            });
            options.opt_replace = Some(ReplaceSelectItem { items: replaced.collect() });
        }
        _ => {}
    }
}

fn constraint_of(operator: &mut JoinOperator) -> Option<&mut JoinConstraint> {
    match operator {
        JoinOperator::Join(constraint)
        | JoinOperator::Inner(constraint)
        | JoinOperator::Left(constraint)
        | JoinOperator::LeftOuter(constraint)
        | JoinOperator::Right(constraint)
        | JoinOperator::RightOuter(constraint)
        | JoinOperator::FullOuter(constraint) => Some(constraint),
        _ => None,
    }
}

/// Puts what merged columns are in the place of their names, but for those in subqueries, which have columns of their
/// own.
struct Merger<'a> {
    merged: &'a HashMap<String, Expr>,
    depth: usize,
}

impl VisitorMut for Merger<'_> {
    type Break = std::convert::Infallible;

    fn pre_visit_query(&mut self, _: &mut Query) -> ControlFlow<Self::Break> {
        self.depth += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &mut Query) -> ControlFlow<Self::Break> {
        self.depth -= 1;
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Self::Break> {
        if let (0, Expr::Identifier(name)) = (self.depth, &*expr)
            && let Some(value) = self.merged.get(&normal(name))
        {
            *expr = value.clone();
        }
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use crate::planner::tests::{fails, rows};

    #[tokio::test]
    async fn columns_are_those_of_either_side() {
        let (x, y) = ("(VALUES (1, 'a'), (2, 'b')) AS x(k, s)", "(VALUES (2, 20), (3, 30)) AS y(k, n)");
        let (x, y) = (format!("(SELECT * FROM {x}) AS x"), format!("(SELECT * FROM {y}) AS y"));
        for (query, expected) in [
            ("SELECT k, s, n FROM x RIGHT JOIN y USING (k) ORDER BY k", "2 b 20,3 NULL 30"),
            ("SELECT * FROM x RIGHT JOIN y USING (k) ORDER BY n", "2 b 20,3 NULL 30"),
            ("SELECT * FROM x FULL JOIN y USING (k) ORDER BY k", "1 a NULL,2 b 20,3 NULL 30"),
            ("SELECT K AS g, count(*) FROM x FULL JOIN y USING (k) GROUP BY k ORDER BY g", "1 1,2 1,3 1"),
            ("SELECT sum(k) FROM x FULL JOIN y USING (k) WHERE k > 1 HAVING max(k) = 3", "5"),
            ("SELECT x.k, y.k FROM x FULL JOIN y USING (k) ORDER BY k", "1 NULL,2 2,NULL 3"),
            ("SELECT k + 1 FROM x RIGHT JOIN y USING (k) WHERE k IN (SELECT k FROM y) ORDER BY k DESC", "4,3"),
            ("SELECT k, s FROM x LEFT JOIN y USING (k) ORDER BY k", "1 a,2 b"),
        ] {
            let query = query.replace("FROM x", &format!("FROM {x}")).replace("JOIN y", &format!("JOIN {y}"));
            let query = query.replace("(SELECT k FROM y)", &format!("(SELECT k FROM {y})"));
            assert_eq!(rows(&query).await.join(","), expected, "{query}");
        }
        for query in
            ["SELECT * FROM x NATURAL FULL JOIN y", "SELECT k FROM x FULL JOIN y USING (k) JOIN x AS z USING (k)"]
        {
            assert!(fails(query).await.message().contains("FULL JOIN"), "{query}");
        }
    }
}
