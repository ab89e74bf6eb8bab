//! Golden tests of passes: a query for each, and the plan before and after the pass.
//!
//! `passes/STAGE/PASS.txt` has the query and both plans. For a wrapper around a rule of
//! DataFusion's, the plans are those after the rule, without the wrapper and with it. A change of a
//! pass changes its file, and the commit says why. `ONEHOP_PASSES=write` writes the plans anew, and
//! looks among the golden queries and those of `passes/queries.sql` for the shortest plans that a
//! pass without a file changes.
//!
//! [`NO_QUERY`] lists the passes without a file. It only becomes shorter.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use futures::TryStreamExt;
use onehop_engine::arrow::array::AsArray;
use onehop_engine::{Database, DatabaseOptions, Output, Session};
use onehop_tests::fixtures::{FIXTURES, Layout, execute, golden};
use onehop_tests::slt_files;
use serde_json::Value;
use sqllogictest::{Record, parse_file};

/// Passes that none of the queries meets.
const NO_QUERY: &[&str] = &[
    "FilterPushdown",
    "FilterPushdown(Post)",
    "HashJoinBuffering",
    "LimitAggregation",
    "LimitPushPastWindows",
    "LimitedDistinctAggregation",
    "OptimizeAggregateOrder",
    "PushdownSort",
    "SanityCheckPlan",
    "TopKRepartition",
    "WindowTopN",
    "balanced_conditions",
    "decorrelate_lateral_join",
    "dictionary_texts",
    "extract_leaf_expressions",
    "filter_null_join_keys",
    "filter_pushdown",
    "finite_casts",
    "guarded_keys",
    "list_concatenation",
    "literal_casts",
    "map_lookups",
    "nested_casts",
    "nested_order",
    "null_offsets",
    "null_safe_joins",
    "ordered_aggregates",
    "push_down_leaf_projections",
    "refused_casts",
    "refused_operators",
    "rewrite_set_comparison",
    "temporal_types",
    "unbounded_windows",
    "unions_to_filter",
    "unproved_keys",
    "window_limits",
    "year_ranges",
    "zoned_moments",
];

/// Differing lines that a failure shows per file.
const MOST_LINES: usize = 20;

/// Settings that a machine would choose otherwise.
const FIXED: [(&str, &str); 4] =
    [("threads", "4"), ("memory_limit", "4GiB"), ("io.cache", "1GiB"), ("gpu.mode", "off")];

/// A pass: its stage and name, and the rule that it wraps, if it is a wrapper.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Pass {
    stage: String,
    name: String,
    around: Option<String>,
}

/// A query, and the plan before and after a pass.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Case {
    sql: String,
    before: String,
    after: String,
}

impl Pass {
    fn path(&self) -> PathBuf {
        Path::new("passes").join(&self.stage).join(&self.name).with_extension("txt")
    }
}

impl Case {
    fn of_text(text: &str) -> Option<Self> {
        let (sql, plans) = text.split_once("\n-- before\n")?;
        let (before, after) = plans.split_once("\n-- after\n")?;
        Some(Self { sql: sql.into(), before: before.into(), after: after.trim_end().into() })
    }

    fn text(&self) -> String {
        format!("{}\n-- before\n{}\n-- after\n{}\n", self.sql, self.before, self.after)
    }

    fn length(&self) -> usize {
        self.before.len() + self.after.len()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_pass_changes_the_plan_of_its_query() {
    let session = session().await;
    let own = own_queries(&session).await;
    let passes = passes(&session).await;
    let writes = std::env::var("ONEHOP_PASSES").is_ok_and(|what| what == "write");
    if writes {
        add_missing(&session, &passes, own).await;
    }
    let mut failures = String::new();
    let mut without = BTreeSet::new();
    for pass in &passes {
        let Ok(text) = std::fs::read_to_string(pass.path()) else {
            without.insert(pass.name.as_str());
            continue;
        };
        let golden = Case::of_text(&text).unwrap_or_else(|| panic!("{} has no two plans", pass.path().display()));
        match case(pass, &golden.sql, &session).await {
            None => failures += &format!("tests/{}: the pass changes nothing any more\n", pass.path().display()),
            Some(now) if now == golden => {}
            Some(now) if writes => std::fs::write(pass.path(), now.text()).unwrap(),
            Some(now) => failures += &difference(pass, &golden, &now),
        }
    }
    let listed: BTreeSet<&str> = NO_QUERY.iter().copied().collect();
    for pass in without.difference(&listed) {
        failures += &format!("{pass} has no golden test: ONEHOP_PASSES=write makes one of a golden query\n");
    }
    for pass in listed.difference(&without) {
        failures += &format!("{pass} has a golden test now: take it out of NO_QUERY\n");
    }
    assert!(failures.is_empty(), "{failures}");
}

fn difference(pass: &Pass, golden: &Case, now: &Case) -> String {
    let diff = similar::TextDiff::from_lines(&golden.text(), &now.text())
        .iter_all_changes()
        .filter(|change| change.tag() != similar::ChangeTag::Equal)
        .take(MOST_LINES)
        .map(|change| format!("{}{}", change.tag(), change.value()))
        .collect::<String>();
    format!("tests/{}: if the change is meant: ONEHOP_PASSES=write\n{diff}", pass.path().display())
}

/// A session over the golden fixtures.
async fn session() -> Session {
    let settings = FIXED.map(|(name, value)| (name.to_string(), value.to_string())).to_vec();
    let database = Database::memory(&DatabaseOptions { settings, ..DatabaseOptions::default() }).unwrap();
    let session = database.session().unwrap();
    for fixture in FIXTURES {
        fixture.load(&session, Layout::Segments).await.unwrap();
    }
    session
}

/// All passes, as the engine lists them. A pass that runs several times counts once.
async fn passes(session: &Session) -> BTreeSet<Pass> {
    let Output::Rows(rows) = session.sql("SELECT stage, pass, place FROM onehop_passes").await.unwrap() else {
        panic!("no rows");
    };
    let batches: Vec<_> = rows.try_collect().await.unwrap();
    let mut passes = BTreeSet::new();
    for batch in &batches {
        let column = |at: usize| batch.column(at).as_string::<i32>();
        for row in 0..batch.num_rows() {
            let place = column(2).iter().nth(row).flatten();
            let around = place.and_then(|place| place.strip_prefix("around ")).map(String::from);
            passes.insert(Pass { stage: column(0).value(row).into(), name: column(1).value(row).into(), around });
        }
    }
    passes
}

/// The runs of passes over the plan of a query, as EXPLAIN has them; none if it cannot be planned.
async fn runs(sql: &str, session: &Session) -> Vec<Value> {
    let Ok(Output::Rows(rows)) = session.sql(&format!("EXPLAIN (VERBOSE, FORMAT JSON) {sql}")).await else {
        return Vec::new();
    };
    let Ok(batches) = rows.try_collect::<Vec<_>>().await else { return Vec::new() };
    let explanation: Value = serde_json::from_str(batches[0].column(1).as_string::<i32>().value(0)).unwrap();
    explanation["passes"].as_array().cloned().unwrap_or_default()
}

/// The first change of a pass in a list of runs.
fn change(stage: &str, pass: &str, runs: &[Value]) -> Option<(String, String)> {
    let is_it = |run: &&Value| run["stage"] == stage && run["pass"] == pass && !run["change"].is_null();
    let change = &runs.iter().find(is_it)?["change"];
    let text = |of: &str| change[of].as_str().unwrap().lines().map(str::trim_end).collect::<Vec<_>>().join("\n");
    Some((text("before"), text("after")))
}

/// The plans of a query before and after a pass, if it changes them.
async fn case(pass: &Pass, sql: &str, session: &Session) -> Option<Case> {
    let with = runs(sql, session).await;
    match &pass.around {
        None => case_of(pass, sql, &with),
        Some(rule) => {
            execute(session, &format!("SET debug.disable_pass = '{}'", pass.name)).await.unwrap();
            let without = runs(sql, session).await;
            execute(session, "RESET debug.disable_pass").await.unwrap();
            wrapper_case(&pass.stage, rule, sql, &without, &with)
        }
    }
}

fn case_of(pass: &Pass, sql: &str, runs: &[Value]) -> Option<Case> {
    let (before, after) = change(&pass.stage, &pass.name, runs)?;
    Some(Case { sql: sql.into(), before, after })
}

/// The plans after a rule without and with its wrapper.
fn wrapper_case(stage: &str, rule: &str, sql: &str, without: &[Value], with: &[Value]) -> Option<Case> {
    let after = |runs: &[Value]| change(stage, rule, runs);
    let (without, with) = (after(without), after(with));
    if without == with || without.is_none() {
        return None;
    }
    let (untouched, without) = without?;
    let with = with.map_or(untouched, |(_, with)| with);
    Some(Case { sql: sql.into(), before: without, after: with })
}

/// Looks among the golden queries for those with the shortest plans that a pass without a file
/// changes.
async fn add_missing(session: &Session, passes: &BTreeSet<Pass>, own: Vec<String>) {
    let missing: Vec<&Pass> = passes.iter().filter(|pass| !pass.path().exists()).collect();
    let (wrappers, plain): (Vec<&Pass>, Vec<&Pass>) = missing.into_iter().partition(|pass| pass.around.is_some());
    let queries: Vec<String> = own.into_iter().chain(golden_queries()).collect();
    let mut found: BTreeMap<&Pass, Case> = BTreeMap::new();
    let mut offer = |pass, case: Option<Case>| {
        let Some(case) = case else { return };
        if found.get(pass).is_none_or(|known: &Case| case.length() < known.length()) {
            found.insert(pass, case);
        }
    };
    for sql in &queries {
        let with = runs(sql, session).await;
        plain.iter().for_each(|pass| offer(pass, case_of(pass, sql, &with)));
    }
    for pass in wrappers {
        for sql in &queries {
            offer(pass, case(pass, sql, session).await);
        }
    }
    for (pass, case) in found {
        std::fs::create_dir_all(pass.path().parent().unwrap()).unwrap();
        std::fs::write(pass.path(), case.text()).unwrap();
    }
}

/// The queries of `passes/queries.sql`. Its other statements run: files of passes are about their
/// tables as well.
async fn own_queries(session: &Session) -> Vec<String> {
    let text = std::fs::read_to_string("passes/queries.sql").unwrap();
    let lines = text.lines().filter(|line| !line.starts_with("--")).map(|line| line.trim_end_matches(';'));
    let (queries, others): (Vec<&str>, Vec<&str>) =
        lines.partition(|line| line.starts_with("SELECT") || line.starts_with("WITH"));
    for sql in others {
        execute(session, sql).await.unwrap();
    }
    queries.into_iter().map(String::from).collect()
}

/// The golden queries that need no file.
fn golden_queries() -> Vec<String> {
    let mut queries = Vec::new();
    for path in slt_files(&golden().join("slt"), "ONEHOP_GOLDEN").unwrap() {
        for record in parse_file::<onehop_tests::canonical::Kind>(&path).unwrap() {
            if let Record::Query { sql, .. } = record
                && !sql.contains("${")
            {
                queries.push(sql.trim().trim_end_matches(';').to_string());
            }
        }
    }
    queries
}
