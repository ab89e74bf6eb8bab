//! Maps each statement that reaches outside the database to an entry of the audit log: an action
//! and its target.
//!
//! The target is a name or a path and never a value, so an entry contains no password of `ATTACH`
//! and no value of `SET`. The statement that runs names the action: `EXECUTE` of a prepared `COPY`
//! is logged as `COPY`.

use datafusion::sql::parser::Statement as DataFusionStatement;

use super::{Statement, attach::Attach};
use crate::query::Action;
use crate::settings::reaches_outside;

/// Returns the action of a statement, or `None` if it stays within the database.
pub(super) fn of(statement: &Statement) -> Option<Action> {
    let action = |tag, target: &str| Some(Action { tag, target: target.into(), table: None });
    match statement {
        Statement::CopyFrom(copy) => {
            let (table, path) = copy.ends();
            action("COPY FROM", path).map(|action| Action { table: Some(table.into()), ..action })
        }
        Statement::CopyTo(copy) => {
            let (table, path) = copy.ends();
            action("COPY TO", path).map(|action| Action { table, ..action })
        }
        Statement::Attach(Attach::Attach { name, .. }) => action("ATTACH", name),
        Statement::Attach(Attach::Detach { name, .. }) => action("DETACH", name),
        Statement::CreateFunction(create) => action("CREATE FUNCTION", create.name()),
        Statement::Drop(drop) if drop.is_of_functions() => action("DROP FUNCTION", &drop.names().join(", ")),
        Statement::Set(set) if set.name() == "all" => action(set.tag(), "all"),
        Statement::Set(set) if reaches_outside(set.name()) => action(set.tag(), set.name()),
        Statement::Other(statement) => match &**statement {
            DataFusionStatement::CopyTo(copy) => action("COPY TO", &copy.target),
            DataFusionStatement::CreateExternalTable(create) => {
                action("CREATE EXTERNAL TABLE", &create.locations.join(", "))
            }
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn told(text: &str) -> Option<(&'static str, String)> {
        of(&super::super::parse(text).unwrap()).map(|action| (action.tag, action.target))
    }

    #[test]
    fn what_reaches_outside_is_an_action() {
        let all = [
            ("COPY t FROM '/a/b.csv'", "COPY FROM", "/a/b.csv"),
            ("COPY t TO 'c.parquet'", "COPY TO", "c.parquet"),
            ("COPY (SELECT 'secret') TO 'd.csv'", "COPY TO", "d.csv"),
            ("ATTACH 'postgresql://ada:secret@host/db' AS other", "ATTACH", "other"),
            ("DETACH other", "DETACH", "other"),
            ("SET memory_limit = '1GiB'", "SET", "memory_limit"),
            ("SET functions.allow_python = 'true'", "SET", "functions.allow_python"),
            ("RESET ceph.config", "RESET", "ceph.config"),
            ("RESET ALL", "RESET", "all"),
            ("DROP FUNCTION f", "DROP FUNCTION", "f"),
            (
                "CREATE FUNCTION f(a BIGINT) RETURNS BIGINT LANGUAGE python AS $$ def f(a): return a $$",
                "CREATE FUNCTION",
                "f",
            ),
        ];
        for (text, tag, target) in all {
            assert_eq!(told(text), Some((tag, target.to_string())), "{text}");
        }
        for text in ["SELECT 1", "SET threads = 2", "CREATE TABLE t (a BIGINT)", "DROP TABLE t", "RESET threads"] {
            assert_eq!(told(text), None, "{text}");
        }
    }
}
