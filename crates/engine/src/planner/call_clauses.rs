//! Refuses clauses that a function does not take. The error names the function and the clause.
//!
//! DataFusion reads the arguments of a scalar function and ignores the rest:
//! `abs(x) FILTER (WHERE x > 0)` and `abs(x) OVER ()` are `abs(x)`. It ignores FILTER and DISTINCT
//! of a window function, and IGNORE NULLS of window functions that read no values (seen in 55.2.0).
//! PostgreSQL and DuckDB return an error, and so does this module.

use std::ops::ControlFlow;

use datafusion::execution::SessionState;
use datafusion::sql::parser::{CopyToSource, Statement};
use datafusion::sql::sqlparser::ast::{
    DuplicateTreatment, Expr, Function, FunctionArgumentClause, FunctionArguments, ObjectNamePart, Visit, Visitor,
};

use super::functions;
use crate::identifiers::normal;
use crate::{Error, ErrorKind, Result};

/// Fails at the first call with a clause that has no meaning for its function.
pub(super) fn check(statement: &Statement, state: &SessionState) -> Result<()> {
    let mut calls = Calls { state };
    let found = match statement {
        Statement::Statement(sql) => sql.visit(&mut calls),
        Statement::Explain(explain) => return check(&explain.statement, state),
        Statement::CopyTo(copy) => match &copy.source {
            CopyToSource::Query(query) => query.visit(&mut calls),
            CopyToSource::Relation(_) => ControlFlow::Continue(()),
        },
        Statement::CreateExternalTable(_) | Statement::Reset(_) => ControlFlow::Continue(()),
    };
    match found {
        ControlFlow::Break(error) => Err(error),
        ControlFlow::Continue(()) => Ok(()),
    }
}

struct Calls<'a> {
    state: &'a SessionState,
}

impl Visitor for Calls<'_> {
    type Break = Error;

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<Error> {
        let Expr::Function(call) = expr else { return ControlFlow::Continue(()) };
        match self.refused(call) {
            Some(error) => ControlFlow::Break(error),
            None => ControlFlow::Continue(()),
        }
    }
}

/// The kinds of functions that accept different clauses.
enum Kind {
    Scalar,
    /// A window function that reads values of other rows.
    Values,
    /// A window function that counts rows.
    Ranks,
    Aggregate,
}

const OF_VALUES: [&str; 5] = ["first_value", "lag", "last_value", "lead", "nth_value"];

impl Calls<'_> {
    fn refused(&self, call: &Function) -> Option<Error> {
        let [ObjectNamePart::Identifier(name)] = call.name.0.as_slice() else { return None };
        let name = normal(name);
        let (list, clauses) = match &call.args {
            FunctionArguments::List(list) => (Some(list), list.clauses.as_slice()),
            _ => (None, &[][..]),
        };
        let is_distinct = list.is_some_and(|list| list.duplicate_treatment == Some(DuplicateTreatment::Distinct));
        let is_ordered = clauses.iter().any(|clause| matches!(clause, FunctionArgumentClause::OrderBy(_)));
        let minds_nulls = call.null_treatment.is_some()
            || clauses.iter().any(|clause| matches!(clause, FunctionArgumentClause::IgnoreOrRespectNulls(_)));
        let (is_filtered, is_over) = (call.filter.is_some(), call.over.is_some());
        let found = match self.kind(&name, is_over)? {
            Kind::Scalar => [
                (is_over, "OVER"),
                (is_filtered, "FILTER"),
                (is_distinct, "DISTINCT"),
                (is_ordered, "ORDER BY"),
                (minds_nulls, "IGNORE or RESPECT NULLS"),
                (!call.within_group.is_empty(), "WITHIN GROUP"),
            ]
            .into_iter()
            .find(|(is_there, _)| *is_there),
            Kind::Values => {
                [(is_filtered, "FILTER"), (is_distinct, "DISTINCT")].into_iter().find(|(is_there, _)| *is_there)
            }
            Kind::Ranks => {
                [(is_filtered, "FILTER"), (is_distinct, "DISTINCT"), (minds_nulls, "IGNORE or RESPECT NULLS")]
                    .into_iter()
                    .find(|(is_there, _)| *is_there)
            }
            Kind::Aggregate => None,
        };
        let (_, clause) = found?;
        Some(
            Error::new(ErrorKind::Invalid, format!("the function {name} does not take {clause}"))
                .with_hint("FILTER, DISTINCT and ORDER BY belong to aggregates, OVER to them and to window functions"),
        )
    }

    /// Returns the function's kind, or `None` if the function does not exist.
    fn kind(&self, name: &str, is_over: bool) -> Option<Kind> {
        let name = functions::meant(name);
        if self.state.scalar_functions().contains_key(name) || functions::is_of_dates(name) {
            return Some(Kind::Scalar);
        }
        if is_over && self.state.window_functions().contains_key(name) && OF_VALUES.contains(&name) {
            return Some(Kind::Values);
        }
        if self.state.aggregate_functions().contains_key(name) {
            return Some(Kind::Aggregate);
        }
        self.state.window_functions().contains_key(name).then_some(Kind::Ranks)
    }
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::{fails, rows};

    #[tokio::test]
    async fn clauses_that_mean_nothing_are_refused() {
        let table = "(VALUES (1), (2)) AS t(x)";
        for (call, message) in [
            ("abs(x) FILTER (WHERE x > 1)", "the function abs does not take FILTER"),
            ("abs(x) OVER (ORDER BY x)", "the function abs does not take OVER"),
            ("abs(DISTINCT x)", "the function abs does not take DISTINCT"),
            ("abs(x ORDER BY x)", "the function abs does not take ORDER BY"),
            ("abs(x) IGNORE NULLS", "the function abs does not take IGNORE or RESPECT NULLS"),
            ("lag(x) FILTER (WHERE x > 1) OVER (ORDER BY x)", "the function lag does not take FILTER"),
            ("first_value(DISTINCT x) OVER (ORDER BY x)", "the function first_value does not take DISTINCT"),
            ("row_number() FILTER (WHERE x > 1) OVER (ORDER BY x)", "the function row_number does not take FILTER"),
            ("rank() IGNORE NULLS OVER (ORDER BY x)", "the function rank does not take IGNORE or RESPECT NULLS"),
        ] {
            let error = fails(&format!("SELECT {call} FROM {table}")).await;
            assert_eq!(error.message(), message, "{call}");
        }
        let query =
            format!("SELECT count(DISTINCT x) FILTER (WHERE x > 1), first_value(x ORDER BY x DESC) FROM {table}");
        assert_eq!(rows(&query).await, ["1 2"]);
    }
}
