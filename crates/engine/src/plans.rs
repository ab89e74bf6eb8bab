//! Optimized plans of queries that were asked before: who asks the same once more has them at once.
//!
//! - A plan is found by the text of its statement and the settings that it was made for, as long as the snapshot whose tables it
//!   names is the one that readers see. With the next snapshot all are forgotten, so that none keeps a file that is gone.
//! - Only what the same text would give again is kept: plans over tables of the database alone (files and system tables are
//!   looked at when they are planned), without functions whose result may be another one in the next statement.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use datafusion::common::Result as DataFusionResult;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::{LogicalPlan, Volatility};
use datafusion::prelude::Expr;

use crate::lower::{self, Optimized};
use crate::snapshot::Snapshot;

/// Plans that are kept. The one that was not asked for for the longest time makes room.
const KEPT: usize = 128;
/// Longer texts are not worth being kept: planning is a small part of what they do.
const MOST_TEXT_BYTES: usize = 4 << 10;

/// The plans of a database.
#[derive(Debug, Default)]
pub(crate) struct Plans {
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    plans: HashMap<String, Plan>,
    /// How often plans were asked for or kept.
    clock: u64,
}

#[derive(Debug)]
struct Plan {
    optimized: Arc<Optimized>,
    /// Threads that it was made for.
    threads: usize,
    snapshot: Weak<Snapshot>,
    used: u64,
}

impl Plans {
    /// The optimized plan of a text for so many threads, if it was kept and is over this snapshot.
    pub fn find(&self, text: &str, threads: usize, snapshot: &Arc<Snapshot>) -> Option<Arc<Optimized>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.clock += 1;
        let clock = kept.clock;
        let plan = kept.plans.get_mut(text)?;
        let is_it = plan.threads == threads && std::ptr::eq(plan.snapshot.as_ptr(), Arc::as_ptr(snapshot));
        is_it.then(|| {
            plan.used = clock;
            Arc::clone(&plan.optimized)
        })
    }

    /// Keeps the optimized plan of a text, if `is_current` says, while nobody can have all forgotten, that its snapshot is what
    /// readers see.
    pub fn keep(
        &self,
        text: &str,
        threads: usize,
        snapshot: &Arc<Snapshot>,
        optimized: Arc<Optimized>,
        is_current: impl FnOnce() -> bool,
    ) {
        if text.len() > MOST_TEXT_BYTES {
            return;
        }
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if !is_current() {
            return;
        }
        if kept.plans.len() >= KEPT && !kept.plans.contains_key(text) {
            let oldest = kept.plans.iter().min_by_key(|(_, plan)| plan.used).map(|(text, _)| text.clone());
            oldest.and_then(|oldest| kept.plans.remove(&oldest));
        }
        kept.clock += 1;
        let plan = Plan { optimized, threads, snapshot: Arc::downgrade(snapshot), used: kept.clock };
        kept.plans.insert(text.to_string(), plan);
    }

    /// Forgets all: there is another snapshot.
    pub fn forget(&self) {
        let plans = std::mem::take(&mut self.kept.lock().unwrap_or_else(PoisonError::into_inner).plans);
        // Dropped without the lock: they may be the last that have files open.
        drop(plans);
    }
}

/// Whether the text of an analyzed plan would give the same plan again, over the same snapshot.
pub(crate) fn is_repeatable(plan: &LogicalPlan) -> DataFusionResult<bool> {
    let mut is_repeatable = true;
    plan.apply_with_subqueries(|node| {
        is_repeatable = match node {
            LogicalPlan::TableScan(_) => lower::is_of_database(node)?,
            LogicalPlan::Projection(_)
            | LogicalPlan::Filter(_)
            | LogicalPlan::Window(_)
            | LogicalPlan::Aggregate(_)
            | LogicalPlan::Sort(_)
            | LogicalPlan::Join(_)
            | LogicalPlan::Union(_)
            | LogicalPlan::EmptyRelation(_)
            | LogicalPlan::Subquery(_)
            | LogicalPlan::SubqueryAlias(_)
            | LogicalPlan::Limit(_)
            | LogicalPlan::Values(_)
            | LogicalPlan::Distinct(_) => true,
            _ => false,
        };
        if is_repeatable {
            node.apply_expressions(|expr| {
                expr.apply(|expr| {
                    is_repeatable = match expr {
                        Expr::ScalarFunction(call) => call.func.signature().volatility == Volatility::Immutable,
                        Expr::AggregateFunction(call) => call.func.signature().volatility == Volatility::Immutable,
                        Expr::ScalarVariable(..) | Expr::Placeholder(_) => false,
                        _ => true,
                    };
                    Ok(if is_repeatable { TreeNodeRecursion::Continue } else { TreeNodeRecursion::Stop })
                })
            })?;
        }
        Ok(if is_repeatable { TreeNodeRecursion::Continue } else { TreeNodeRecursion::Stop })
    })?;
    Ok(is_repeatable)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use arrow::util::pretty::pretty_format_batches;
    use futures::StreamExt;

    use super::*;
    use crate::{Database, DatabaseOptions, Output, Session};

    fn session() -> Session {
        let settings = vec![("threads".to_string(), "2".to_string())];
        Database::memory(&DatabaseOptions { settings, ..DatabaseOptions::default() }).unwrap().session().unwrap()
    }

    /// The rows of a statement, one after the other.
    async fn run(session: &Session, text: &str) -> String {
        let Output::Rows(mut rows) = session.sql(text).await.unwrap() else { return String::new() };
        let mut batches = Vec::new();
        while let Some(batch) = rows.next().await {
            batches.push(batch.unwrap());
        }
        let table = pretty_format_batches(&batches).unwrap().to_string();
        let lines = table.lines().skip(3).filter(|line| line.starts_with('|'));
        lines.map(|line| line.trim_matches(['|', ' ']).to_string()).collect::<Vec<_>>().join(";")
    }

    fn is_kept(session: &Session, text: &str) -> bool {
        let database = session.database();
        database.plans().find(text, 2, &database.snapshot()).is_some()
    }

    async fn table(session: &Session) {
        run(session, "CREATE TABLE t (n BIGINT, v VARCHAR)").await;
        run(session, "INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, NULL)").await;
    }

    #[tokio::test]
    async fn a_query_that_is_asked_again_sees_what_has_changed() {
        let session = session();
        table(&session).await;
        let sum = "SELECT sum(n) FROM t WHERE n < 10";
        for (change, expected) in [
            ("SELECT 1", "6"),
            ("SELECT 1", "6"),
            ("INSERT INTO t VALUES (4, 'd')", "10"),
            ("DELETE FROM t WHERE n = 1", "9"),
            ("CHECKPOINT", "9"),
            ("UPDATE t SET n = 5 WHERE v = 'b'", "12"),
            ("SET exec.mode = 'datafusion'", "12"),
            ("SET exec.mode = 'fused'", "12"),
            ("CREATE OR REPLACE TABLE t AS SELECT 7 AS n", "7"),
        ] {
            run(&session, change).await;
            assert_eq!(run(&session, sum).await, expected, "after {change}");
            assert!(is_kept(&session, sum), "after {change}");
            // From the third time on it is kept lowered as well.
            for time in 2..6 {
                assert_eq!(run(&session, sum).await, expected, "the {time}th time after {change}");
            }
        }
        run(&session, "DROP TABLE t").await;
        assert!(!is_kept(&session, sum));
        assert!(session.sql(sum).await.is_err());
    }

    #[tokio::test]
    async fn only_what_would_be_the_same_is_kept() {
        let session = session();
        table(&session).await;
        run(&session, "CREATE VIEW w AS SELECT n + 1 AS m FROM t").await;
        for (text, is_repeatable) in [
            ("SELECT * FROM t ORDER BY n", true),
            ("SELECT v, count(*) FROM t GROUP BY v HAVING count(*) > 0", true),
            ("SELECT m FROM w WHERE m IN (SELECT n FROM t)", true),
            ("WITH a AS (SELECT n FROM t) SELECT a.n FROM a JOIN t ON a.n = t.n UNION ALL SELECT 5", true),
            ("SELECT upper(v), n + 1, CASE WHEN n > 1 THEN 'x' END FROM t", true),
            ("SELECT row_number() OVER (ORDER BY n) FROM t", true),
            ("SELECT now() FROM t", false),
            ("SELECT n FROM t WHERE current_date > DATE '2020-01-01'", false),
            ("SELECT random() FROM t", false),
            ("SELECT n FROM t WHERE n IN (SELECT CAST(random() * 3 AS BIGINT) FROM t)", false),
            ("SELECT count(*) FROM onehop_queries", false),
            ("SELECT t.n FROM t, onehop_settings", false),
            ("SELECT * FROM generate_series(1, 3)", false),
            ("EXPLAIN SELECT n FROM t", false),
            ("SHOW threads", false),
        ] {
            for _ in 0..2 {
                run(&session, text).await;
                assert_eq!(is_kept(&session, text), is_repeatable, "{text}");
            }
        }
        let long = format!("SELECT n FROM t WHERE v <> '{}'", "x".repeat(MOST_TEXT_BYTES));
        run(&session, &long).await;
        assert!(!is_kept(&session, &long));
        run(&session, "SET threads = 1").await;
        assert_eq!(run(&session, "SELECT * FROM t WHERE n = 2").await.replace(' ', ""), "2|b");
        assert!(!is_kept(&session, "SELECT * FROM t WHERE n = 2"), "it was planned for another number of threads");
    }

    #[tokio::test]
    async fn transactions_and_sessions_see_their_own() {
        let one = session();
        table(&one).await;
        let other = one.database().session().unwrap();
        let count = "SELECT count(*) FROM t";
        assert_eq!(run(&one, count).await, "3");
        run(&one, "BEGIN").await;
        assert_eq!(run(&one, count).await, "3");
        run(&one, "INSERT INTO t VALUES (4, 'd')").await;
        assert_eq!((run(&one, count).await, run(&other, count).await), ("4".into(), "3".into()));
        assert!(one.sql("SELECT nothing FROM t").await.is_err());
        assert!(one.sql(count).await.is_err(), "the transaction has failed");
        assert_eq!(run(&other, count).await, "3");
        run(&one, "ROLLBACK").await;
        assert_eq!(run(&one, count).await, "3");
    }

    #[tokio::test]
    async fn the_oldest_make_room_and_files_that_are_gone_are_let_go_of() {
        let folder = tempfile::tempdir().unwrap();
        let database = Database::open(folder.path(), &DatabaseOptions::default()).unwrap();
        let session = database.session().unwrap();
        run(&session, "CREATE TABLE t AS SELECT 1 AS n").await;
        run(&session, "SET threads = 2").await;
        let text = |number| format!("SELECT n + {number} FROM t");
        for number in 0..KEPT + 10 {
            run(&session, &text(number)).await;
            run(&session, &text(0)).await;
        }
        assert!(is_kept(&session, &text(0)) && is_kept(&session, &text(KEPT + 9)) && !is_kept(&session, &text(1)));
        let files = || std::fs::read_dir(folder.path().join("segments")).unwrap().count();
        assert_eq!(files(), 1);
        run(&session, "DROP TABLE t").await;
        assert_eq!(files(), 0, "a plan has kept the file of a table that is gone");
    }
}
