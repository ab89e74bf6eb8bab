//! EXPLAIN says what is planned and runs nothing; EXPLAIN ANALYZE says what was done, in figures that other ways of
//! counting agree with: queries on DataFusion's operators, and the ledger. `onehop_queries` remembers how statements
//! ended.

#![allow(clippy::unwrap_used)]

mod support;

use futures::StreamExt;
use onehop_engine::{
    Database, ErrorKind, ExplainMode, Explanation, Facts, Hop, Node, Output, PartitionFacts, QueryState, Session,
};
use serde_json::Value;
use support::{fails, run, runtime, tiny};
use tokio::runtime::Runtime;

struct Place {
    runtime: Runtime,
    database: Database,
    session: Session,
}

impl Place {
    /// Facts clustered by day, so that blocks can be skipped, with two dimensions.
    fn new() -> Self {
        Self::with(&[])
    }

    fn with(settings: &[(&str, &str)]) -> Self {
        let mut options = tiny();
        options.settings.extend(settings.iter().map(|(name, value)| (name.to_string(), value.to_string())));
        let database = Database::memory(&options).unwrap();
        let place = Self { runtime: runtime(), session: database.session().unwrap(), database };
        place.run(
            "CREATE TABLE facts CLUSTER BY (day) AS SELECT v AS id, v / 50 AS day, v % 40 AS store, v % 7 AS kind, \
             v * 3 AS amount FROM (SELECT unnest(range(0, 10000)) AS v)",
        );
        place.run(
            "CREATE TABLE stores AS SELECT v AS store, 'town ' || (v % 5) AS town, v % 4 AS region \
             FROM (SELECT unnest(range(0, 30)) AS v)",
        );
        place.run("CREATE TABLE days AS SELECT v AS day, v / 30 AS month FROM (SELECT unnest(range(0, 200)) AS v)");
        place.run("CREATE TABLE nothing (store BIGINT)");
        place
    }

    fn run(&self, sql: &str) -> Vec<String> {
        self.runtime.block_on(run(&self.session, sql))
    }

    fn explain(&self, sql: &str, mode: ExplainMode) -> Explanation {
        self.runtime.block_on(self.session.explain(sql, mode)).unwrap_or_else(|e| panic!("{sql}: {e}"))
    }

    /// What EXPLAIN as a statement prints.
    fn text(&self, sql: &str) -> String {
        let lines = self.run(sql);
        lines.join("\n").split_once('|').unwrap().1.to_string()
    }

    /// A number that DataFusion's operators count.
    fn count(&self, sql: &str) -> u64 {
        self.run("SET exec.mode = 'datafusion'");
        let rows = self.run(sql);
        self.run("SET exec.mode = 'fused'");
        rows[0].parse().unwrap()
    }

    fn fails(&self, sql: &str) -> onehop_engine::Error {
        self.runtime.block_on(fails(&self.session, sql))
    }
}

fn operators(node: &Node) -> Vec<&str> {
    let mut names = Vec::new();
    node.for_each(&mut |node| names.push(node.operator.as_str()));
    names
}

fn find<'a>(node: &'a Node, wanted: &str) -> &'a Node {
    let mut found = None;
    node.for_each(&mut |node| {
        if found.is_none() && format!("{} {}", node.operator, node.title()).starts_with(wanted) {
            found = Some(node);
        }
    });
    found.unwrap_or_else(|| panic!("no {wanted} in {node:#?}"))
}

const STAR: &str = "SELECT town, sum(amount) FROM facts f JOIN stores s ON f.store = s.store JOIN days d ON f.day = d.day \
                    WHERE region = 1 AND month BETWEEN 2 AND 3 AND kind <> 5 GROUP BY town";

#[test]
fn a_star_is_told_step_by_step() {
    let place = Place::new();
    let text = place.text(&format!("EXPLAIN {STAR}"));
    let expected = "\
ProjectionExec expr=[town@0 as town, sum(f.amount)@1 as sum(amount)]
└─ CpuPreAgg by town: sum(amount)
   │    dense groups
   └─ CpuJoin inner on f.day = d.day
      │    table by d.day
      │    planned direct, 200 rows at most, 25 B if every key has one row
      ├─ CpuJoin inner on f.store = s.store
      │  │    table by s.store with town
      │  │    planned direct, 30 rows at most, 123 B if every key has one row
      │  ├─ CpuFilter kind != 5
      │  │  └─ CpuScan facts f
";
    assert!(text.starts_with(expected), "{text}");
    for line in ["build: CpuFilter region = 1", "CpuScan stores s", "CpuScan days d", "blocks 10 of 10"] {
        assert!(text.contains(line), "{line} in {text}");
    }
    // Registers and relations of the program are nobody's names.
    assert!(!text.contains('%') && !text.contains('#'), "{text}");
}

#[test]
fn rows_that_leave_as_they_are_made_are_told() {
    let place = Place::new();
    let sql = "SELECT id, town FROM facts f LEFT JOIN stores s ON f.store = s.store AND region = 1 WHERE kind <> 5";
    let text = place.text(&format!("EXPLAIN {sql}"));
    let expected = "\
CpuCollect id, town
└─ CpuJoin left on f.store = s.store
   │    table by s.store with town
   │    planned direct, 30 rows at most, 123 B if every key has one row
   ├─ CpuFilter kind != 5
";
    assert!(text.starts_with(expected), "{text}");
    let explanation = place.explain(sql, ExplainMode::Analyze);
    let rows = find(&explanation.plan, "CpuCollect");
    let Facts::Rows(facts) = &rows.facts else { panic!("{rows:?}") };
    assert!(facts.columns == ["id", "town"] && facts.pipeline.unwrap().threads > 0, "{facts:?}");
    let expected = place.count("SELECT count(*) FROM facts WHERE kind <> 5");
    assert_eq!((rows.rows_in, rows.rows_out), (Some(expected), Some(expected)));
    assert_eq!(explanation.totals.unwrap().rows, expected);
    // As far as it came before nobody wanted more.
    let some = place.explain(&format!("{sql} LIMIT 3"), ExplainMode::Analyze);
    assert!(find(&some.plan, "CpuCollect").rows_out >= Some(3), "{some:#?}");
}

#[test]
fn blocks_that_come_too_late_are_told() {
    let place = Place::with(&[("threads", "1")]);
    let sql = "SELECT * FROM facts WHERE kind <> 5 ORDER BY day DESC, id DESC LIMIT 3";
    let text = place.text(&format!("EXPLAIN {sql}"));
    let expected = "\
CpuTopK first 3 by day DESC, id DESC
│    columns id, day, store, kind, amount
└─ CpuFilter kind != 5
   └─ CpuScan facts
";
    assert!(text.starts_with(expected), "{text}");
    let explanation = place.explain(sql, ExplainMode::Analyze);
    let top = find(&explanation.plan, "CpuTopK");
    let Facts::Top(facts) = &top.facts else { panic!("{top:?}") };
    assert!(
        facts.rows == 3 && facts.pipeline.is_some_and(|pipeline| pipeline.threads == 1) && top.rows_out == Some(3),
        "{top:?}"
    );
    let scan = find(&explanation.plan, "CpuScan");
    let Facts::Scan(scanned) = &scan.facts else { panic!("{scan:?}") };
    // The last block has the last days.
    assert_eq!((scanned.skipped_by_top_k, scanned.blocks_left()), (scanned.blocks - 1, 1), "{scanned:?}");
    let ledger = scanned.ledger.unwrap();
    assert_eq!((ledger.blocks_skipped, ledger.blocks_considered), (scanned.skipped_by_top_k, scanned.blocks));
    assert_eq!(scan.rows_out, Some(ledger.rows_scanned));
    // All rows that it saw, but for those that the filter has left out.
    assert!(top.rows_in <= scan.rows_out && find(&explanation.plan, "CpuFilter").rows_out <= top.rows_in, "{top:?}");
    assert!(explanation.text().contains("skipped 9 by the first rows of others"), "{}", explanation.text());
}

#[test]
fn a_plan_runs_nothing() {
    let place = Place::new();
    // It would fail, in the end.
    let explanation = place.explain("SELECT sum(1 / (id - id)) FROM facts", ExplainMode::Plan);
    assert!(explanation.totals.is_none());
    explanation.plan.for_each(&mut |node| assert_eq!((node.rows_in, node.rows_out, node.time), (None, None, None)));
    let ledger = place.session.query().ledger();
    assert_eq!((ledger.rows_scanned, ledger.blocks_read, ledger.moved_bytes()), (0, 0, 0));
    assert_eq!(place.fails("EXPLAIN ANALYZE SELECT sum(1 / (id - id)) FROM facts").kind(), ErrorKind::Data);
}

#[test]
fn figures_are_those_of_other_ways_to_count() {
    let place = Place::new();
    let explanation = place.explain(STAR, ExplainMode::Analyze);
    let plan = &explanation.plan;
    let join = find(plan, "CpuJoin inner on f.store");
    let Facts::Join(stores) = &join.facts else { panic!("{join:?}") };
    let built = stores.built.unwrap();
    assert_eq!(built.rows as u64, place.count("SELECT count(*) FROM stores WHERE region = 1"));
    assert_eq!(built.is_unique, Some(true));
    assert_eq!(find(plan, "CpuFilter region").rows_in, Some(place.count("SELECT count(*) FROM stores")));
    assert_eq!(find(plan, "CpuFilter region").rows_out, Some(built.rows as u64));
    // The keys of the days rule blocks out; all else of the facts is read.
    let scan = find(plan, "CpuScan facts");
    let Facts::Scan(facts) = &scan.facts else { panic!("{scan:?}") };
    assert!(!facts.skipped_by_joins.is_empty() && facts.blocks_left() < facts.blocks, "{facts:?}");
    let ledger = facts.ledger.unwrap();
    assert_eq!((ledger.blocks_read, ledger.blocks_considered), (facts.blocks_left(), facts.blocks));
    assert_eq!(scan.rows_out, Some(ledger.rows_scanned));
    // What reaches the groups is what the whole condition leaves, whatever the order of the steps was.
    let joined = "SELECT count(*) FROM facts f JOIN stores s ON f.store = s.store JOIN days d ON f.day = d.day \
                  WHERE region = 1 AND month BETWEEN 2 AND 3 AND kind <> 5";
    let groups = find(plan, "CpuPreAgg");
    assert_eq!(groups.rows_in, Some(place.count(joined)));
    assert_eq!(groups.rows_out, Some(place.count(&format!("SELECT count(*) FROM ({STAR})"))));
    assert_eq!(explanation.totals.unwrap().rows, groups.rows_out.unwrap());
}

#[test]
fn rows_that_a_join_multiplies_are_counted() {
    let place = Place::new();
    place.run("CREATE TABLE twice AS SELECT v % 20 AS store, v AS x FROM (SELECT unnest(range(0, 40)) AS v)");
    let sql = "SELECT count(*) FROM facts JOIN twice USING (store) WHERE id < 5000 AND x BETWEEN 3 AND 35";
    let explanation = place.explain(sql, ExplainMode::Analyze);
    let join = find(&explanation.plan, "CpuJoin");
    let Facts::Join(facts) = &join.facts else { panic!("{join:?}") };
    assert_eq!(facts.built.unwrap().is_unique, Some(false));
    assert_eq!(find(&explanation.plan, "CpuPreAgg").rows_in, Some(place.count(sql)));
}

#[test]
fn bytes_are_the_ledgers() {
    let place = Place::with(&[("io.cache", "0")]);
    for run in 0..2 {
        let explanation = place.explain(STAR, ExplainMode::Analyze);
        let totals = explanation.totals.unwrap();
        assert_eq!(totals.ledger, place.session.query().ledger());
        let mut of_scans = [0; 2];
        explanation.plan.for_each(&mut |node| {
            if let Facts::Scan(scan) = &node.facts {
                let ledger = scan.ledger.unwrap();
                of_scans[0] += ledger.moved_bytes();
                of_scans[1] += ledger.needed_bytes;
            }
        });
        assert_eq!(of_scans, [totals.ledger.moved_bytes(), totals.ledger.needed_bytes]);
        assert_eq!(totals.ledger.cached_bytes, 0, "run {run}");
        let amplification = totals.ledger.moved_bytes() as f64 / totals.ledger.needed_bytes as f64;
        assert_eq!(totals.ledger.copy_amplification(), Some(amplification));
    }
}

#[test]
fn what_is_in_memory_is_needed_and_not_moved() {
    let place = Place::with(&[("io.cache", "64MiB")]);
    let sql = "SELECT sum(amount) FROM facts";
    let cold = place.explain(sql, ExplainMode::Analyze).totals.unwrap().ledger;
    let hot = place.explain(sql, ExplainMode::Analyze).totals.unwrap().ledger;
    assert_eq!((hot.moved_bytes(), hot.read_ops), (0, 0));
    assert_eq!((hot.needed_bytes, hot.cached_bytes), (cold.needed_bytes, cold.needed_bytes));
    assert_eq!(hot.copy_amplification(), Some(0.0));
    assert!(cold.hop(Hop::StorageToHost) + cold.hop(Hop::HostToHost) >= cold.needed_bytes, "{cold:?}");
}

/// Every operator has a name and inputs; figures are there once it has run.
fn check(node: &Value, analyzed: bool) {
    assert!(node["operator"].is_string(), "{node}");
    if node["operator"].as_str().unwrap().starts_with("Cpu") {
        assert_eq!(node["rows_out"].is_u64(), analyzed, "{node}");
    }
    node["inputs"].as_array().unwrap().iter().for_each(|input| check(input, analyzed));
}

#[test]
fn json_has_the_same_figures() {
    let place = Place::new();
    for (options, analyzed) in [
        ("(FORMAT JSON)", false),
        ("(ANALYZE, FORMAT JSON)", true),
        ("(FORMAT json, ANALYZE)", true),
        ("ANALYZE FORMAT JSON", true),
    ] {
        let json: Value = serde_json::from_str(&place.text(&format!("EXPLAIN {options} {STAR}"))).unwrap();
        assert_eq!((json["schema_version"].as_u64(), json["analyzed"].as_bool()), (Some(1), Some(analyzed)));
        check(&json["plan"], analyzed);
        assert_eq!(json["ledger"]["storage_to_host_bytes"].is_u64(), analyzed);
    }
    let explanation = place.explain(STAR, ExplainMode::Analyze);
    let json = explanation.json();
    let totals = explanation.totals.unwrap();
    for (name, count) in totals.ledger.counters() {
        assert_eq!(json["ledger"][name], count, "{name}");
    }
    assert_eq!(json["rows"], totals.rows);
    let groups = find(&explanation.plan, "CpuPreAgg");
    assert_eq!(json["plan"]["inputs"][0]["rows_in"], groups.rows_in.unwrap());
}

#[test]
fn what_is_not_fused_says_why() {
    let place = Place::new();
    for (sql, operator, reason) in [
        ("SELECT count(*) FROM facts FULL JOIN stores USING (store)", "AggregateExec", "a FULL JOIN"),
        ("SELECT id, town FROM facts FULL JOIN stores USING (store)", "HashJoinExec", "a FULL JOIN"),
        ("SELECT median(amount) FROM facts", "AggregateExec", "median()"),
    ] {
        for mode in [ExplainMode::Plan, ExplainMode::Analyze] {
            let explanation = place.explain(sql, mode);
            let node = find(&explanation.plan, operator);
            assert!(node.remarks.iter().any(|remark| remark.contains(reason)), "{sql}: {explanation:#?}");
            let [only] = explanation.not_fused.as_slice() else { panic!("{sql}: {:?}", explanation.not_fused) };
            assert!(only.contains(reason), "{only}");
        }
    }
}

#[test]
fn what_would_fail_is_planned_and_says_why() {
    let place = Place::new();
    place.run("SET exec.fallback = 'error'");
    let sql = "SELECT count(*) FROM facts FULL JOIN stores USING (store)";
    let explanation = place.explain(sql, ExplainMode::Plan);
    assert!(explanation.fails.as_ref().is_some_and(|why| why.contains("a FULL JOIN")), "{:?}", explanation.fails);
    assert!(explanation.plan.title().contains("count") && !operators(&explanation.plan).is_empty());
    assert!(explanation.text().contains("would fail: no fused pipeline can run a FULL JOIN"), "{}", explanation.text());
    assert!(explanation.json()["fails"].is_string());
    let text = place.text(&format!("EXPLAIN {sql}"));
    assert!(text.contains("would fail: ") && text.contains("AggregateExec"), "{text}");
    // In formats of DataFusion's, too.
    assert!(place.run(&format!("EXPLAIN FORMAT INDENT {sql}")).join("\n").contains("logical_plan"));
    // What is run fails as the query does.
    for sql in [sql.to_string(), format!("EXPLAIN ANALYZE {sql}"), format!("EXPLAIN ANALYZE VERBOSE {sql}")] {
        let error = place.fails(&sql);
        assert_eq!(
            (error.kind(), error.message()),
            (ErrorKind::Invalid, "no fused pipeline can run a FULL JOIN"),
            "{sql}"
        );
    }
    assert_eq!(place.explain(STAR, ExplainMode::Plan).fails, None);
    assert_eq!(place.explain(STAR, ExplainMode::Analyze).fails, None);
    place.run("SET exec.fallback = 'warn'");
    assert_eq!(place.explain(sql, ExplainMode::Plan).fails, None);
}

/// The shares of a pipeline's steps and its scan, from its last step down.
fn shares(mut node: &Node) -> f64 {
    let mut sum = 0.0;
    loop {
        sum += node.sampled.map_or(0.0, |sampled| sampled.share);
        match node.inputs.first() {
            Some(input) if !matches!(node.operator.as_str(), "CpuScan" | "CpuDerived") => node = input,
            _ => return sum,
        }
    }
}

#[test]
fn the_time_of_threads_is_dealt_to_steps() {
    let place = Place::new();
    place.run("CREATE TABLE twice AS SELECT v % 20 AS store, v AS x FROM (SELECT unnest(range(0, 40)) AS v)");
    let twice = "SELECT id, x FROM facts JOIN twice USING (store) WHERE kind <> 5";
    for (sql, sink) in [(STAR, "CpuPreAgg"), (twice, "CpuCollect")] {
        let explanation = place.explain(sql, ExplainMode::Analyze);
        let sink = find(&explanation.plan, sink);
        let pipeline = match &sink.facts {
            Facts::Groups(groups) => groups.pipeline.unwrap(),
            Facts::Rows(rows) => rows.pipeline.unwrap(),
            other => panic!("{other:?}"),
        };
        assert!(pipeline.threads > 0 && !pipeline.cpu.is_zero() && !pipeline.elapsed.is_zero(), "{pipeline:?}");
        assert!((shares(sink) - 1.0).abs() < 0.01, "{sink:#?}");
        let mut parts = Vec::new();
        sink.for_each(&mut |node| parts.extend(node.sampled));
        assert!(parts.iter().all(|part| (0.0..=1.0).contains(&part.share)), "{parts:?}");
    }
    let explanation = place.explain(STAR, ExplainMode::Analyze);
    let join = find(&explanation.plan, "CpuJoin inner on f.store");
    let Facts::Join(facts) = &join.facts else { panic!("{join:?}") };
    // The pipeline that built a table has all its time, too.
    assert!((facts.collecting.unwrap().share + shares(&join.inputs[1]) - 1.0).abs() < 0.01, "{join:#?}");
    let text = explanation.text();
    assert!(text.contains("~") && text.contains("pipeline ") && text.contains(", CPU "), "{text}");
    let json = explanation.json();
    let groups = &json["plan"]["inputs"][0];
    assert!(groups["sampled"]["share"].is_f64() && groups["pipeline"]["cpu_seconds"].is_f64(), "{groups}");
    // Nothing has been sampled of what has not run.
    place.explain(STAR, ExplainMode::Plan).plan.for_each(&mut |node| assert!(node.sampled.is_none()));
}

/// Names, blocks, and blocks left, of each partition of a scan; they add up to what the scan says.
fn partitions(explanation: &Explanation) -> Vec<(String, u64, u64)> {
    let scan = find(&explanation.plan, "CpuScan sales");
    let Facts::Scan(facts) = &scan.facts else { panic!("{scan:?}") };
    let sum = |of: fn(&PartitionFacts) -> u64| facts.partitions.iter().map(of).sum::<u64>();
    assert_eq!(sum(|p| p.blocks), facts.blocks);
    assert_eq!(sum(|p| p.skipped_by_zone_map), facts.skipped_by_zone_map);
    assert_eq!(sum(|p| p.skipped_by_partition), facts.skipped_by_partition);
    assert_eq!(sum(|p| p.skipped_by_joins), facts.skipped_by_joins.iter().map(|(_, blocks)| blocks).sum::<u64>());
    assert_eq!(sum(PartitionFacts::blocks_left), facts.blocks_left());
    facts.partitions.iter().map(|p| (p.name.clone(), p.blocks, p.blocks_left())).collect()
}

fn names_left(explanation: &Explanation) -> Vec<String> {
    partitions(explanation).into_iter().filter(|(_, _, left)| *left > 0).map(|(name, ..)| name).collect()
}

#[test]
fn partitions_are_told_apart() {
    let place = Place::new();
    place.run(
        "CREATE TABLE sales PARTITION BY RANGE (day) (PARTITION a VALUES LESS THAN (50), PARTITION b VALUES LESS THAN \
         (100), PARTITION c VALUES LESS THAN (150), PARTITION d VALUES LESS THAN (200), PARTITION e VALUES LESS THAN \
         (MAXVALUE)) AS SELECT * FROM facts",
    );
    // Each is ruled out by what it holds, not only by what it is partitioned by.
    let by_other = "SELECT sum(amount) FROM sales WHERE id >= 5000 AND id < 7000";
    let explanation = place.explain(by_other, ExplainMode::Analyze);
    assert_eq!(names_left(&explanation), ["c"]);
    let text = explanation.text();
    assert!(text.contains("partitions 1 of 5: c "), "{text}");
    assert!(text.contains("partitions 3 ruled out by id >= 5000 AND id < 7000: a, b, d"), "{text}");
    assert!(text.contains("partitions 1 empty: e"), "{text}");
    let json = place.explain(by_other, ExplainMode::Plan).json();
    let mut scan = &json["plan"];
    while scan["operator"] != "CpuScan" {
        scan = &scan["inputs"][0];
    }
    let told = &scan["partitions"];
    assert_eq!((told["wanted"].as_u64(), told["left"].as_u64(), told["all"].as_u64()), (Some(1), Some(1), Some(5)));
    assert_eq!(told["each"][2]["name"], "c");
    assert_eq!(told["each"][4]["blocks"], 0);
    // A join's keys rule out what its table cannot match, and with it whole partitions.
    let joined = "SELECT count(*) FROM sales s JOIN days d ON s.day = d.day WHERE month BETWEEN 2 AND 3";
    let before = place.explain(joined, ExplainMode::Plan);
    assert_eq!(names_left(&before), ["a", "b", "c", "d"]);
    let explanation = place.explain(joined, ExplainMode::Analyze);
    assert_eq!(names_left(&explanation), ["b", "c"]);
    let text = explanation.text();
    assert!(text.contains("partitions 2 ruled out by the keys of joins: a, d"), "{text}");
    // And the blocks that are left have all rows that there are.
    let scan = find(&explanation.plan, "CpuScan sales");
    assert!(scan.rows_out >= Some(place.count("SELECT count(*) FROM facts WHERE day BETWEEN 60 AND 119")));
    // Outside of pipelines.
    place.run("SET exec.mode = 'datafusion'");
    assert_eq!(names_left(&place.explain(by_other, ExplainMode::Analyze)), ["c"]);
}

#[test]
fn many_partitions_are_told_briefly() {
    let place = Place::new();
    place.run("CREATE TABLE sales PARTITION BY HASH (id) PARTITIONS 12 AS SELECT * FROM facts");
    let explanation = place.explain("SELECT sum(amount) FROM sales WHERE id = 3", ExplainMode::Analyze);
    assert_eq!(names_left(&explanation).len(), 1);
    let Facts::Scan(scan) = &find(&explanation.plan, "CpuScan").facts else { panic!("no scan") };
    assert!(scan.skipped_by_partition > 0 && scan.partitions.len() == 12);
    let text = explanation.text();
    assert!(text.contains("partitions 11 ruled out by id = 3: ") && text.contains(", and 3 more"), "{text}");
    let text = place.explain("SELECT sum(amount) FROM sales", ExplainMode::Plan).text();
    assert!(text.contains("partitions 12 of 12: ") && text.contains(", and 4 more"), "{text}");
}

#[test]
fn a_reason_is_told_where_it_belongs() {
    let place = Place::new();
    // Three aggregates of the same columns: one is fused, one cannot be, one reads no table.
    let sql = "SELECT count(*) FROM facts UNION ALL SELECT count(*) FROM facts FULL JOIN stores USING (store) \
               UNION ALL SELECT count(*) FROM (VALUES (1), (random())) v (x) WHERE x > 0.5";
    let explanation = place.explain(sql, ExplainMode::Plan);
    let mut told = Vec::new();
    explanation.plan.for_each(&mut |node| {
        told.extend(node.remarks.iter().filter(|_| node.operator == "AggregateExec").map(String::as_str));
    });
    assert!(told.iter().filter(|remark| remark.contains("a FULL JOIN")).count() == 1, "{told:?}");
    place.run(sql);
    assert_eq!(place.session.query().notices(), ["not fused: a FULL JOIN"]);
}

#[test]
fn what_is_computed_first_is_told_below_its_pipeline() {
    let place = Place::new();
    let sql = "SELECT max(n) FROM (SELECT store, count(*) AS n FROM facts GROUP BY store) t WHERE n > 1";
    let planned = place.explain(sql, ExplainMode::Plan);
    assert_eq!(
        operators(&planned.plan),
        ["ProjectionExec", "CpuPreAgg", "CpuFilter", "CpuDerived", "CpuPreAgg", "CpuScan"]
    );
    let derived = place.explain(sql, ExplainMode::Analyze);
    let derived = find(&derived.plan, "CpuDerived");
    assert_eq!(derived.rows_out, derived.inputs[0].rows_out);
    assert!(derived.remarks.iter().any(|remark| remark.contains("in memory")), "{derived:?}");
    assert!(derived.title().starts_with("t: "), "{}", derived.title());
}

#[test]
fn any_query_can_be_explained() {
    let place = Place::new();
    place.run("CREATE VIEW v AS SELECT town, count(*) AS n FROM facts JOIN stores USING (store) GROUP BY town");
    for sql in [
        "SELECT 1",
        "VALUES (1), (2)",
        "FROM v",
        "(SELECT 1)",
        "SELECT count(*) FROM nothing",
        "SELECT count(*) FROM facts JOIN nothing USING (store)",
        "SELECT sum(amount) FROM facts UNION ALL SELECT sum(amount) FROM facts",
        "SELECT (SELECT max(amount) FROM facts), count(*) FROM stores",
        "SELECT count(*) FROM facts WHERE amount > (SELECT avg(amount) FROM facts)",
        "SELECT count(*) FROM facts WHERE EXISTS (SELECT 1 FROM stores WHERE stores.store = facts.store AND region = 1)",
        "SELECT count(*) FROM facts WHERE NOT EXISTS (SELECT 1 FROM stores WHERE stores.store = facts.store)",
        "SELECT count(*) FROM stores a JOIN stores b ON a.store = b.region JOIN stores c ON b.store = c.store",
        "SELECT * FROM facts FULL JOIN stores USING (store) ORDER BY 1 LIMIT 3",
        "WITH RECURSIVE n AS (SELECT 1 AS x UNION ALL SELECT x + 1 FROM n WHERE x < 4) SELECT sum(x) FROM n",
        "SELECT count(*) FROM facts WHERE id < 0",
        "SELECT count(*) FROM onehop_queries",
        "SELECT DISTINCT kind FROM facts",
    ] {
        let plan = place.explain(sql, ExplainMode::Plan);
        assert!(!plan.text().is_empty() && plan.totals.is_none(), "{sql}");
        let analyzed = place.explain(sql, ExplainMode::Analyze);
        assert_eq!(operators(&plan.plan), operators(&analyzed.plan), "{sql}");
        let rows = place.run(sql).len() as u64;
        assert_eq!(analyzed.totals.unwrap().rows, rows, "{sql}");
    }
}

#[test]
fn what_cannot_be_explained_says_why() {
    let place = Place::new();
    for (sql, kind) in [
        ("EXPLAIN SELECT 1; SELECT 2", ErrorKind::Syntax),
        ("EXPLAIN", ErrorKind::Syntax),
        ("EXPLAIN ANALYZE", ErrorKind::Syntax),
        ("EXPLAIN (ANALYZE", ErrorKind::Syntax),
        ("EXPLAIN (FORMAT XML) SELECT 1", ErrorKind::Invalid),
        ("EXPLAIN SELECT nonsense FROM facts", ErrorKind::NotFound),
        ("EXPLAIN (FORMAT JSON) CREATE TABLE x AS SELECT 1", ErrorKind::Invalid),
    ] {
        let error = place.fails(sql);
        assert!(!error.message().is_empty());
        assert!(error.kind() == kind || error.kind() == ErrorKind::Syntax, "{sql}: {error}");
    }
    let of_two = place.runtime.block_on(place.session.explain("SELECT 1; SELECT 2", ExplainMode::Plan)).unwrap_err();
    assert!(of_two.message().contains("end of statement"), "{of_two}");
    let of_none = place.runtime.block_on(place.session.explain("DROP TABLE facts", ExplainMode::Analyze)).unwrap_err();
    assert_eq!((of_none.kind(), of_none.hint().is_some()), (ErrorKind::Invalid, true));
    assert_eq!(place.count("SELECT count(*) FROM facts"), 10_000);
}

#[test]
fn other_formats_are_datafusions() {
    let place = Place::new();
    // So are statements that are no queries, wherever their text begins.
    assert!(place.run("  EXPLAIN COPY facts TO 'never-written.csv'").join("\n").contains("CpuScan"));
    assert!(place.run(" EXPLAIN FROM facts").join("\n").contains("blocks 10 of 10"));
    for (options, expected) in [("FORMAT TREE", "CpuPreAgg"), ("FORMAT INDENT", "CpuPreAgg: ")] {
        let lines = place.run(&format!("EXPLAIN {options} SELECT count(*) FROM facts")).join("\n");
        assert!(lines.contains(expected), "{options}: {lines}");
    }
}

#[test]
fn verbose_lists_the_passes() {
    let place = Place::new();
    let sql = "SELECT sum(amount) FROM facts WHERE amount > 1.5 AND amount < 3";
    for options in ["VERBOSE", "ANALYZE VERBOSE", "(VERBOSE, ANALYZE)"] {
        let text = place.text(&format!("EXPLAIN {options} {sql}"));
        for expected in ["CpuScan facts", "\nanalyzer  type_coercion", "\noptimizer push_down_filter", "\nphysical  "] {
            assert!(text.contains(expected), "{options}: {expected}: {text}");
        }
        // The plan after a pass that changed it.
        assert!(text.contains("  TableScan: facts"), "{text}");
    }
    let text = place.text(&format!("EXPLAIN (VERBOSE, FORMAT JSON) {sql}"));
    let explanation: serde_json::Value = serde_json::from_str(&text).unwrap();
    let passes = explanation["passes"].as_array().unwrap();
    let changed: Vec<_> = passes.iter().filter(|pass| !pass["change"].is_null()).collect();
    assert!(passes.len() > 100 && !changed.is_empty() && changed.len() < passes.len() / 2, "{text}");
    assert!(changed.iter().all(|pass| pass["change"]["before"] != pass["change"]["after"]));
    // Without VERBOSE, times alone.
    let explanation = place.explain(sql, ExplainMode::Analyze);
    assert!(explanation.text().contains("\npasses  "), "{}", explanation.text());
    assert!(explanation.passes.len() > 100 && explanation.passes.iter().all(|run| run.change.is_none()));
    assert!(place.explain(sql, ExplainMode::Plan).passes.is_empty());
}

#[test]
fn passes_are_left_out_by_name() {
    let place = Place::new();
    let sql = "SELECT CAST(2.5 AS INT)";
    assert_eq!(place.run(sql), ["3"]);
    place.run("SET debug.disable_pass = 'rounding_casts'");
    assert_eq!(place.run(sql), ["2"]);
    assert!(!place.text(&format!("EXPLAIN VERBOSE {sql}")).contains("rounding_casts"));
    let error = place.fails("SET debug.disable_pass = 'rounding_cast'");
    assert_eq!(error.message(), "there is no pass \"rounding_cast\"");
    assert_eq!(error.hint(), Some("did you mean \"rounding_casts\"? onehop_passes lists all"));
    place.run("RESET debug.disable_pass");
    assert_eq!(place.run(sql), ["3"]);
}

#[test]
fn memory_that_runs_out_is_said() {
    let place = Place::with(&[("storage.segment_rows", "1000000"), ("storage.block_rows", "65536")]);
    place.run("CREATE TABLE many AS SELECT v AS x, v * 7 AS y FROM (SELECT unnest(range(0, 1000000)) AS v)");
    place.run("SET memory_limit = '16MiB'");
    let sql = "SELECT count(*), sum(n) FROM (SELECT x, y, count(*) AS n FROM many GROUP BY x, y)";
    let explanation = place.explain(sql, ExplainMode::Analyze);
    let mut remarks = Vec::new();
    explanation.plan.for_each(&mut |node| remarks.extend(node.remarks.iter().cloned()));
    assert!(remarks.iter().any(|remark| remark.contains("memory_limit")), "{remarks:?}");
}

#[test]
fn statements_are_remembered_with_how_they_ended() {
    let place = Place::new();
    let other = place.database.session().unwrap();
    place.run(STAR);
    place.fails("SELECT nonsense FROM facts");
    place.fails("SELECT sum(1 / (id - id)) FROM facts");
    place.runtime.block_on(async {
        let Output::Rows(mut rows) = other.sql("SELECT a.id FROM facts a, facts b, facts c").await.unwrap() else {
            panic!("no rows")
        };
        rows.next().await.unwrap().unwrap();
        assert_eq!(other.query().state(), QueryState::Running);
        drop(rows);
        assert_eq!(other.query().state(), QueryState::Cancelled);
        // A plan that is run to be explained, and that nobody waits for.
        let endless =
            other.explain("SELECT sum(a.id + b.id + c.id) FROM facts a, facts b, facts c", ExplainMode::Analyze);
        let outcome = tokio::time::timeout(std::time::Duration::from_millis(50), endless).await;
        assert!(outcome.is_err());
        assert_eq!(other.query().state(), QueryState::Cancelled);
    });
    let last = |columns: &str, condition: &str| {
        place.run(&format!(
            "SELECT {columns} FROM onehop_queries WHERE text NOT LIKE '%onehop_queries%' AND {condition}"
        ))
    };
    assert_eq!(last("state, rows, fused_parts, error IS NULL", "text LIKE 'SELECT town%'"), ["done|5|1|true"]);
    assert_eq!(last("state, error LIKE '%nonsense%'", "text LIKE '%nonsense%'"), ["failed|true"]);
    assert_eq!(last("state, error IS NOT NULL", "text LIKE '%id - id%'"), ["failed|true"]);
    assert_eq!(last("state, session", "text LIKE 'SELECT a.id%'"), ["cancelled|2"]);
    assert_eq!(last("count(*)", "state = 'cancelled'"), ["2"]);
    assert_eq!(last("rows, state", "text LIKE 'CREATE TABLE facts%'"), ["10000|done"]);
    let counted = last("rows_scanned = 0, needed_bytes > 0, copy_amplification > 0", "text LIKE 'SELECT town%'");
    assert_eq!(counted, ["false|true|true"]);
    assert_eq!(last("count(*)", "state = 'running'"), ["0"]);
    assert_eq!(place.run("SELECT state FROM onehop_queries ORDER BY id DESC LIMIT 1"), ["running"]);
}
