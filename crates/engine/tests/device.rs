//! Queries on a device, as far as that is the engine's business: where they are placed and why, what happens when the device
//! refuses or fails, and what EXPLAIN, notices and system tables say of it. The device is none: it runs programs as the CPU
//! does ([`support::device`]), and is told what to do wrong.

#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use futures::StreamExt;
use onehop_engine::{
    Database, Engine, ErrorKind, ExplainMode, Explanation, Facts, Hop, Node, Output, QueryState, Session,
};
use serde_json::Value;
use support::device::{FAST, Fake, FakeDevices, Fault, SLOW};
use support::{fails, run, runtime, tiny};
use tokio::runtime::Runtime;

struct Place {
    runtime: Runtime,
    database: Database,
    session: Session,
    devices: Arc<FakeDevices>,
}

/// Small enough for a test, and large enough for a device.
const STAR: &str = "SELECT town, sum(amount) FROM facts f JOIN stores s ON f.store = s.store \
                    WHERE region = 1 AND kind <> 5 GROUP BY town";
const SUM: &str = "SELECT sum(amount) FROM facts WHERE kind <> 5";
const ROWS: &str = "SELECT id, town FROM facts f JOIN stores s ON f.store = s.store WHERE kind <> 5";
const TOP: &str = "SELECT id, amount FROM facts WHERE kind <> 5 ORDER BY amount DESC LIMIT 3";

impl Place {
    fn new() -> Self {
        Self::with(FakeDevices::new(&["cuda:0"]), &[("gpu.min_bytes", "0")])
    }

    fn with(devices: Arc<FakeDevices>, settings: &[(&str, &str)]) -> Self {
        let mut options = tiny();
        options.settings.extend(settings.iter().map(|(name, value)| (name.to_string(), value.to_string())));
        let database = Database::memory(&options).unwrap();
        database.register_devices(Arc::clone(&devices) as _);
        let place = Self { runtime: runtime(), session: database.session().unwrap(), database, devices };
        place.run(
            "CREATE TABLE facts AS SELECT v AS id, v % 40 AS store, v % 7 AS kind, v * 3 AS amount \
             FROM (SELECT unnest(range(0, 5000)) AS v)",
        );
        place.run(
            "CREATE TABLE stores AS SELECT v AS store, 'town ' || (v % 5) AS town, v % 4 AS region \
             FROM (SELECT unnest(range(0, 30)) AS v)",
        );
        place
    }

    fn device(&self) -> &Fake {
        &self.devices.devices[0]
    }

    fn run(&self, sql: &str) -> Vec<String> {
        self.runtime.block_on(run(&self.session, sql))
    }

    fn fails(&self, sql: &str) -> onehop_engine::Error {
        self.runtime.block_on(fails(&self.session, sql))
    }

    fn explain(&self, sql: &str, mode: ExplainMode) -> Explanation {
        self.runtime.block_on(self.session.explain(sql, mode)).unwrap_or_else(|e| panic!("{sql}: {e}"))
    }

    /// What the CPU answers.
    fn expected(&self, sql: &str) -> Vec<String> {
        let before = self.session.settings().into_iter().find(|setting| setting.name == "gpu.mode").unwrap().value;
        self.run("SET gpu.mode = 'off'");
        let rows = self.run(sql);
        self.run(&format!("SET gpu.mode = '{before}'"));
        rows
    }

    fn notices(&self) -> Vec<String> {
        self.session.query().notices()
    }

    /// How often the device has run something.
    fn ran(&self) -> usize {
        self.device().ran.load(Relaxed)
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
        if found.is_none() && node.operator == wanted {
            found = Some(node);
        }
    });
    found.unwrap_or_else(|| panic!("no {wanted} in {node:#?}"))
}

#[test]
fn answers_are_those_of_the_cpu() {
    let place = Place::new();
    for sql in [STAR, SUM, ROWS, TOP, "SELECT kind, max(id) FROM facts GROUP BY kind"] {
        let expected = place.expected(sql);
        let before = place.ran();
        assert_eq!(place.run(sql), expected, "{sql}");
        assert_eq!(place.ran(), before + 1, "{sql}");
        assert_eq!(place.session.query().engine(), Engine::Gpu(vec!["cuda:0".into()]), "{sql}");
        assert!(place.notices().is_empty(), "{:?}", place.notices());
    }
}

#[test]
fn a_plan_on_a_device_is_told() {
    let place = Place::new();
    let text = place.explain(STAR, ExplainMode::Plan).text();
    for line in [
        "GpuPreAgg by town: sum(amount)",
        "placed on cuda:0 (a device that is none): estimated ",
        " 0 B resident, ",
        "1 kernel to be compiled",
        "GpuJoin inner on f.store = s.store",
        "GpuFilter kind != 5",
        "GpuScan facts f",
        "build: GpuFilter region = 1",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    assert_eq!(place.ran(), 0);
    assert!(!operators(&place.explain(STAR, ExplainMode::Plan).plan).iter().any(|name| name.starts_with("Cpu")));
    assert!(place.explain(ROWS, ExplainMode::Plan).text().starts_with("GpuCollect "), "rows");
    assert!(place.explain(TOP, ExplainMode::Plan).text().starts_with("GpuTopK "), "top");
}

#[test]
fn what_came_of_a_run_is_told() {
    let place = Place::new();
    let cold = place.explain(STAR, ExplainMode::Analyze);
    let plan = &cold.plan;
    let groups = find(plan, "GpuPreAgg");
    let Facts::Groups(facts) = &groups.facts else { panic!("{groups:?}") };
    let device = facts.pipeline.unwrap().device.unwrap();
    assert_eq!((device.launches, device.copy_bytes_per_sec), (2, Some(FAST.copy_bytes_per_sec)));
    assert!(device.read_bytes > 0 && device.share().is_some_and(|share| share > 0.0 && share < 1.0), "{device:?}");
    let placed = groups.placed.as_ref().unwrap();
    assert_eq!(placed.device.as_ref().map(|(name, _)| name.as_str()), Some("cuda:0"));
    assert!(placed.estimate.is_some_and(|estimate| estimate.device < estimate.cpu), "{placed:?}");
    let scan = find(plan, "GpuScan");
    let Facts::Scan(facts) = &scan.facts else { panic!("{scan:?}") };
    let of_scan = facts.device.as_ref().unwrap();
    assert_eq!((of_scan.resident_bytes, of_scan.moved_bytes), (0, facts.planned_bytes));
    assert_eq!(facts.ledger.unwrap().hop(Hop::HostToDevice), facts.planned_bytes);
    let join = find(plan, "GpuJoin");
    let Facts::Join(facts) = &join.facts else { panic!("{join:?}") };
    assert!(facts.built.is_some() && facts.build.unwrap().device.is_some(), "{facts:?}");
    // Rows are those that the CPU counts.
    place.run("SET gpu.mode = 'off'");
    let cpu = place.explain(STAR, ExplainMode::Analyze);
    place.run("RESET gpu.mode");
    for (gpu, on_cpu) in [("GpuPreAgg", "CpuPreAgg"), ("GpuJoin", "CpuJoin"), ("GpuFilter", "CpuFilter")] {
        let (gpu, on_cpu) = (find(plan, gpu), find(&cpu.plan, on_cpu));
        assert_eq!((gpu.rows_in, gpu.rows_out), (on_cpu.rows_in, on_cpu.rows_out), "{}", gpu.operator);
    }
    let text = cold.text();
    for line in [
        "kernels 1.0 ms in 2 launches, ",
        " % of the copy rate; compiled in 300 ms",
        "cuda:0: 0 B were resident, ",
        "host to device ",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    assert!(place.explain(STAR, ExplainMode::Analyze).text().contains("; compiled before"));
}

#[test]
fn json_says_the_same() {
    let place = Place::new();
    let planned = place.explain(SUM, ExplainMode::Plan).json();
    let top = &planned["plan"];
    let top = if top["operator"] == "GpuPreAgg" { top } else { &top["inputs"][0] };
    assert_eq!((&top["operator"], &top["placement"]["device"]), (&"GpuPreAgg".into(), &"cuda:0".into()), "{planned}");
    let estimate = &top["placement"]["estimate"];
    for name in ["cpu_seconds", "device_seconds"] {
        assert!(estimate[name].is_f64(), "{estimate}");
    }
    for name in ["read_bytes", "resident_bytes", "kept_bytes", "kernels_to_compile"] {
        assert!(estimate[name].is_u64(), "{estimate}");
    }
    let ran = place.explain(SUM, ExplainMode::Analyze).json();
    let mut pipelines = 0;
    each(&ran["plan"], &mut |node| {
        assert!(!node["operator"].as_str().unwrap().starts_with("Cpu"), "{node}");
        if node["operator"] == "GpuScan" {
            assert_eq!((&node["device"]["name"], &node["device"]["resident_bytes"]), (&"cuda:0".into(), &0.into()));
        }
        if node["operator"] == "GpuPreAgg" {
            pipelines += 1;
            let device = &node["pipeline"]["device"];
            assert_eq!((&device["launches"], &device["is_compiled_now"]), (&2.into(), &true.into()), "{node}");
            assert!(device["kernel_seconds"].is_f64() && device["copy_rate_ratio"].is_f64(), "{node}");
        }
    });
    assert_eq!(pipelines, 1);
    assert_eq!(ran["ledger"]["host_to_device_bytes"].as_u64().map(|bytes| bytes > 0), Some(true));
}

fn each(node: &Value, f: &mut impl FnMut(&Value)) {
    f(node);
    node["inputs"].as_array().unwrap().iter().for_each(|input| each(input, f));
}

#[test]
fn what_is_small_or_cheaper_stays_on_the_cpu_and_nobody_is_told_but_explain() {
    // Not even looked for.
    let place = Place::with(FakeDevices::new(&["cuda:0"]), &[]);
    place.run(SUM);
    assert_eq!((place.devices.looked_for.load(Relaxed), place.ran()), (0, 0));
    assert!(place.notices().is_empty() && place.session.query().engine() == Engine::Cpu);
    let text = place.explain(SUM, ExplainMode::Plan).text();
    assert!(text.contains("placed on the CPU: ") && text.contains(" are too little for a GPU"), "{text}");
    place.run("SET gpu.min_bytes = '1GB'");
    let text = place.explain(SUM, ExplainMode::Plan).text();
    assert!(text.contains(" are less than gpu.min_bytes"), "{text}");
    // Looked for, and too slow.
    place.run("SET gpu.min_bytes = '0'");
    *place.device().rates.lock().unwrap() = SLOW;
    place.run(SUM);
    assert!(place.ran() == 0 && place.notices().is_empty(), "{:?}", place.notices());
    let explanation = place.explain(SUM, ExplainMode::Plan);
    let placed = find(&explanation.plan, "CpuPreAgg").placed.as_ref().unwrap();
    assert!(placed.device.is_none() && placed.why.contains("on the CPU, 10.0"), "{placed:?}");
    // Whatever it takes.
    place.run("SET gpu.mode = 'require'");
    place.run(SUM);
    assert_eq!(place.ran(), 1);
    let text = place.explain(SUM, ExplainMode::Plan).text();
    assert!(text.contains("placed on cuda:0 (a device that is none): gpu.mode = 'require'; "), "{text}");
    place.run("SET gpu.mode = 'off'");
    place.run(SUM);
    assert_eq!(place.ran(), 1);
    assert!(!place.explain(SUM, ExplainMode::Plan).text().contains("placed"));
}

#[test]
fn the_first_query_does_not_wait_for_devices_to_be_found() {
    let place = Place::new();
    place.devices.is_slow.store(true, Relaxed);
    let text = place.explain(SUM, ExplainMode::Plan).text();
    assert!(text.contains("placed on the CPU: GPUs are being looked for"), "{text}");
    support::eventually("they are found", || place.devices.looked_for.load(Relaxed) > 0);
    place.run(SUM);
    assert_eq!((place.ran(), place.notices()), (1, Vec::new()));
}

#[test]
fn nobody_looks_for_devices_when_the_database_is_gone() {
    let place = Place::new();
    place.devices.is_slow.store(true, Relaxed);
    place.run(SUM);
    let devices = Arc::clone(&place.devices);
    drop(place);
    assert_eq!(devices.looked_for.load(Relaxed), 1);
}

#[test]
fn the_device_with_the_columns_is_taken_if_it_may_be() {
    let place = Place::with(FakeDevices::new(&["cuda:0", "cuda:1"]), &[("gpu.min_bytes", "0")]);
    place.run("LOAD TABLE facts INTO 'cuda:1'");
    place.run(SUM);
    assert_eq!(place.session.query().engine(), Engine::Gpu(vec!["cuda:1".into()]));
    place.run("SET gpu.devices = '0'");
    assert_eq!(place.run("SHOW gpu.devices")[0].split('|').nth(1), Some("cuda:0"));
    place.run(SUM);
    assert_eq!(place.session.query().engine(), Engine::Gpu(vec!["cuda:0".into()]));
    place.run("SET gpu.devices = 'cuda:7'");
    place.run(SUM);
    assert_eq!(place.session.query().engine(), Engine::Cpu);
    assert_eq!(place.notices(), ["not on a GPU: none of the GPUs here is one of gpu.devices"]);
    for (name, value) in [
        ("gpu.devices", "first"),
        ("gpu.spread", "require"),
        ("gpu.mode", "always"),
        ("gpu.min_bytes", "many"),
        ("gpu.memory_limit", "10GiB"),
    ] {
        assert_eq!(place.fails(&format!("SET {name} = '{value}'")).kind(), ErrorKind::Invalid, "{name}");
    }
}

#[test]
fn a_refusal_is_said_once_or_is_an_error_where_a_device_is_required() {
    let place = Place::new();
    place.device().is(Fault::Refuses("texts read late"));
    let why = "not on a GPU: cuda:0 cannot run texts read late";
    let expected = place.expected(STAR);
    let twice = format!("SELECT (SELECT count(*) FROM ({STAR})) + (SELECT count(*) FROM ({STAR} ORDER BY town DESC))");
    for (mode, fallback, notices) in [
        ("auto", "warn", &[why][..]),
        ("auto", "silent", &[]),
        ("auto", "error", &[]),
        ("require", "warn", &[why]),
        ("require", "silent", &[]),
    ] {
        place.run(&format!("SET gpu.mode = '{mode}'"));
        place.run(&format!("SET exec.fallback = '{fallback}'"));
        assert_eq!(place.run(STAR), expected, "{mode} {fallback}");
        assert_eq!(place.notices(), notices, "{mode} {fallback}");
        assert_eq!(place.session.query().engine(), Engine::Cpu);
        place.run(&twice);
        assert!(place.notices().len() <= notices.len() + 1, "{:?}", place.notices());
    }
    place.run("SET exec.fallback = 'error'");
    let error = place.fails(STAR);
    assert_eq!(error.kind(), ErrorKind::Unmet);
    assert!(error.message().contains("a GPU is required, and cuda:0 cannot run texts read late"), "{error}");
    let explanation = place.explain(STAR, ExplainMode::Plan);
    assert!(explanation.text().contains("placed on the CPU: cuda:0 cannot run texts read late"), "{explanation:?}");
    assert!(explanation.fails.is_some_and(|why| why.contains("a GPU is required")), "{:?}", explanation.plan);
    // Nothing runs on pipelines here, and nobody asked for what is not about tables.
    assert_eq!(place.run("SELECT 1 + 1"), ["2"]);
}

#[test]
fn without_a_device_nothing_is_said_unless_one_is_required() {
    let place = Place::with(FakeDevices::none("libcuda cannot be loaded: no such file"), &[("gpu.min_bytes", "0")]);
    place.run(SUM);
    assert!(place.notices().is_empty());
    assert!(!place.explain(SUM, ExplainMode::Plan).text().contains("placed"));
    place.run("SET gpu.mode = 'require'");
    place.run(SUM);
    assert_eq!(place.notices(), ["not on a GPU: libcuda cannot be loaded: no such file"]);
    place.run("SET exec.fallback = 'error'");
    assert_eq!(place.fails(SUM).kind(), ErrorKind::Unmet);
    assert_eq!(place.fails("LOAD TABLE facts INTO 'cuda:0'").kind(), ErrorKind::Unmet);
    // Nothing was registered at all.
    let database = Database::memory(&tiny()).unwrap();
    let session = database.session().unwrap();
    let run = |sql| place.runtime.block_on(run(&session, sql));
    run("CREATE TABLE t AS SELECT 1 AS a");
    run("SELECT sum(a) FROM t");
    run("SET gpu.mode = 'require'");
    run("SELECT sum(a) FROM t");
    assert!(session.query().notices()[0].starts_with("not on a GPU: no GPU is known here"));
}

#[test]
fn a_device_that_fails_is_replaced_by_the_cpu_as_long_as_no_row_has_left() {
    let place = Place::new();
    for sql in [STAR, SUM, TOP, ROWS] {
        let expected = place.expected(sql);
        for fault in [Fault::Fails("an illegal memory access was encountered", 0), Fault::IsFull] {
            place.device().is(fault.clone());
            for (fallback, notices) in [("warn", 1), ("silent", 0)] {
                place.run(&format!("SET exec.fallback = '{fallback}'"));
                assert_eq!(place.run(sql), expected, "{sql} {fault:?}");
                assert_eq!(place.notices().len(), notices, "{sql} {fault:?}: {:?}", place.notices());
                assert_eq!(place.session.query().engine(), Engine::Cpu);
            }
            place.run("SET exec.fallback = 'error'");
            let error = place.fails(sql);
            let kind = if let Fault::IsFull = fault { ErrorKind::Resources } else { ErrorKind::Device };
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.message().starts_with("cuda:0: ") && error.hint().is_some(), "{error:?}");
            place.run("RESET exec.fallback");
        }
    }
    place.device().is(Fault::Fails("an illegal memory access was encountered", 0));
    let explanation = place.explain(SUM, ExplainMode::Analyze);
    let notices = place.notices();
    assert_eq!(
        notices,
        [
            "not on a GPU after all: cuda:0: an illegal memory access was encountered; the CPU did all of it again, no row \
          had left"
        ]
    );
    let groups = find(&explanation.plan, "CpuPreAgg");
    assert!(groups.remarks[0].contains("an illegal memory access was encountered; the CPU did"), "{groups:?}");
    // Nobody who cannot be measured is used.
    place.device().is(Fault::HasNoRates);
    let before = place.ran();
    place.run(SUM);
    assert_eq!(
        (place.ran(), place.notices()),
        (before, vec!["not on a GPU: cuda:0: it cannot be measured".to_string()])
    );
    // The process lives, and so does the device.
    place.device().is(Fault::None);
    place.run(SUM);
    assert_eq!(place.session.query().engine(), Engine::Gpu(vec!["cuda:0".into()]));
}

#[test]
fn an_error_after_the_first_row_is_an_error() {
    let place = Place::new();
    // More chunks than one: a block is one, and the first has left when the second comes.
    place.device().is(Fault::Fails("unspecified launch failure", 2));
    let error = place.fails(ROWS);
    assert_eq!((error.kind(), error.message()), (ErrorKind::Device, "cuda:0: unspecified launch failure"));
    assert!(place.notices().is_empty(), "{:?}", place.notices());
}

#[test]
fn errors_of_the_data_are_those_of_the_cpu() {
    let place = Place::new();
    let sql = "SELECT sum(1 / (id - id)) FROM facts";
    let before = place.ran();
    let error = place.fails(sql);
    assert_eq!((error.kind(), place.ran()), (ErrorKind::Data, before + 1));
    place.run("SET gpu.mode = 'off'");
    assert_eq!(place.fails(sql).message(), error.message());
}

#[test]
fn who_stops_waiting_stops_the_device() {
    let place = Place::new();
    place.device().is(Fault::Hangs);
    for sql in [SUM, ROWS] {
        let (ran, before) = (place.ran(), place.device().cancelled.load(Relaxed));
        let rows = place.runtime.block_on(place.session.sql(sql)).unwrap();
        support::eventually("the device begins", || place.ran() > ran);
        drop(rows);
        support::eventually("the device stops", || place.device().cancelled.load(Relaxed) > before);
        assert_eq!(place.session.query().state(), QueryState::Cancelled);
    }
    // Rows that nobody reads to their end.
    place.device().is(Fault::None);
    place.runtime.block_on(async {
        let Output::Rows(mut rows) = place.session.sql(ROWS).await.unwrap() else { panic!("no rows") };
        rows.next().await.unwrap().unwrap();
        drop(rows);
    });
    assert_eq!(place.session.query().state(), QueryState::Cancelled);
}

#[test]
fn derived_relations_are_looked_at_when_they_are_there() {
    let place = Place::new();
    let sql = "SELECT count(*), sum(amount) FROM facts f JOIN (SELECT DISTINCT store % 20 AS near FROM facts \
               ORDER BY near LIMIT 5) d ON f.store = d.near";
    let expected = place.expected(sql);
    let before = place.device().prepared.load(Relaxed);
    assert_eq!(place.run(sql), expected);
    assert!(place.device().prepared.load(Relaxed) > before + 1);
    assert!(matches!(place.session.query().engine(), Engine::Gpu(_) | Engine::Mixed(_)));
}

#[test]
fn statements_remember_what_ran_them() {
    let place = Place::new();
    place.run(SUM);
    place.run("SELECT median(amount), sum(amount) FROM facts");
    place.run("SET gpu.mode = 'off'");
    place.run(SUM);
    // What comes back is sorted.
    let engines = place.run("SELECT id, engine FROM onehop_queries WHERE text LIKE 'SELECT%amount%kind <> 5'");
    let engines: Vec<&str> = engines.iter().filter_map(|row| row.split('|').nth(1)).collect();
    assert_eq!(engines, ["gpu", "cpu"]);
    let engine = place.run("SELECT engine FROM onehop_queries WHERE text LIKE 'SELECT median(amount)%'");
    assert_eq!(engine, ["cpu"]);
}

/// Device, table, column, whether it is kept, and whether there are bytes.
const RESIDENT: &str = "SELECT device, table_name, column_name, segments, bytes > 0 AS there, hits, is_kept, is_pinned \
                        FROM onehop_resident ORDER BY 1, 2, 3";

#[test]
fn columns_are_loaded_and_evicted() {
    let place = Place::new();
    assert!(place.run(RESIDENT).is_empty());
    place.run("LOAD TABLE facts (amount, kind) INTO 'cuda:0'");
    let there = ["cuda:0|facts|amount|5|true|0|true|false", "cuda:0|facts|kind|5|true|0|true|false"];
    assert_eq!(place.run(RESIDENT), there);
    let moved = place.session.query().ledger();
    assert_eq!(moved.hop(Hop::HostToDevice), 0);
    let text = place.explain(SUM, ExplainMode::Plan).text();
    assert!(text.contains(" resident, 0 B to be moved"), "{text}");
    let explanation = place.explain(SUM, ExplainMode::Analyze);
    let Facts::Scan(scan) = &find(&explanation.plan, "GpuScan").facts else { panic!("{explanation:?}") };
    let device = scan.device.as_ref().unwrap();
    assert_eq!((device.resident_bytes, device.moved_bytes), (scan.planned_bytes, 0));
    assert_eq!(place.run("SELECT min(hits) > 0 FROM onehop_resident"), ["true"]);
    // For all sessions of the database.
    let other = place.database.session().unwrap();
    assert_eq!(place.runtime.block_on(run(&other, "SELECT count(*) FROM onehop_resident")), ["2"]);
    place.run("EVICT TABLE facts (kind) FROM 'cuda:0'");
    assert_eq!(place.run("SELECT column_name FROM onehop_resident"), ["amount"]);
    place.run("EVICT TABLE facts FROM 'cuda:3'");
    assert_eq!(place.run("SELECT column_name FROM onehop_resident"), ["amount"]);
    place.run("EVICT TABLE facts");
    assert!(place.run(RESIDENT).is_empty());
    for (sql, kind) in [
        ("LOAD TABLE nothing INTO 'cuda:0'", ErrorKind::NotFound),
        ("LOAD TABLE facts (amont) INTO 'cuda:0'", ErrorKind::NotFound),
        ("LOAD TABLE facts INTO 'cuda:9'", ErrorKind::Unmet),
        ("LOAD TABLE facts INTO 'the moon'", ErrorKind::Invalid),
        ("LOAD TABLE facts INTO 7", ErrorKind::Syntax),
        ("EVICT TABLE facts (nothing)", ErrorKind::NotFound),
        ("EVICT facts", ErrorKind::Syntax),
        ("ALTER TABLE facts SET (compression = 'none')", ErrorKind::Syntax),
        ("ALTER TABLE facts SET (residence = 'all')", ErrorKind::Invalid),
        ("LOAD TABLE facts INTO 'cuda:0,cuda:9'", ErrorKind::Unmet),
        ("ALTER TABLE facts ADD COLUMN x INT", ErrorKind::Invalid),
        ("CREATE TABLE t (a INT) WITH (residence = 'here')", ErrorKind::Invalid),
    ] {
        let error = place.fails(sql);
        assert_eq!(error.kind(), kind, "{sql}: {error}");
    }
    place.device().is(Fault::IsFull);
    let error = place.fails("LOAD TABLE facts INTO 'cuda:0'");
    assert!(error.kind() == ErrorKind::Resources && error.hint().unwrap().contains("EVICT"), "{error:?}");
    place.device().is(Fault::Fails("the device is lost", 0));
    assert_eq!(place.fails("LOAD TABLE facts INTO 'cuda:0'").kind(), ErrorKind::Device);
    place.run("SET gpu.mode = 'off'");
    assert_eq!(place.fails("LOAD TABLE facts INTO 'cuda:0'").kind(), ErrorKind::Unmet);
}

#[test]
fn a_residence_follows_the_catalog() {
    let place = Place::new();
    let columns = "SELECT table_name, sum(segments), sum(bytes) > 0 FROM onehop_resident GROUP BY 1 ORDER BY 1";
    place.run("CREATE TABLE near WITH (residence = 'cuda:0') AS SELECT id, kind FROM facts WHERE id < 1000");
    assert_eq!(place.run(columns), ["near|2|true"]);
    place.run("INSERT INTO near SELECT id, kind FROM facts WHERE id BETWEEN 1000 AND 1999");
    assert_eq!(place.run(columns), ["near|4|true"]);
    assert_eq!(place.run("SHOW CREATE TABLE near")[0].lines().last(), Some("WITH (residence = 'cuda:0')"));
    place.run("ALTER TABLE facts SET (residence = 'cuda:0')");
    assert_eq!(place.run(columns), ["facts|20|true", "near|4|true"]);
    place.run("ALTER TABLE facts RESET (residence)");
    assert_eq!(place.run(columns), ["near|4|true"]);
    assert!(!place.run("SHOW CREATE TABLE facts")[0].contains("WITH"));
    place.run("CREATE OR REPLACE TABLE near WITH (residence = 'cuda:0') AS SELECT id FROM facts WHERE id < 500");
    assert_eq!(place.run(columns), ["near|1|true"]);
    place.run("DROP TABLE near");
    assert!(place.run(columns).is_empty());
    assert!(place.device().swept.load(Relaxed) > 0);
}

#[test]
fn a_table_that_cannot_be_resident_is_a_table_all_the_same() {
    let place = Place::with(FakeDevices::none("there is no driver"), &[("gpu.min_bytes", "0")]);
    place.run("CREATE TABLE near WITH (residence = 'cuda:0') AS SELECT id FROM facts");
    assert_eq!(place.notices(), ["\"near\" is not resident: cuda:0 cannot be used: there is no driver"]);
    assert_eq!(place.run("SELECT sum(id) FROM near"), ["12497500"]);
    assert!(place.notices().is_empty());
    place.run("SET exec.fallback = 'error'");
    place.run("INSERT INTO near VALUES (0)");
    assert_eq!(place.run("SELECT count(*), sum(id) FROM near"), ["5001|12497500"]);
    place.run("SET gpu.mode = 'off'");
    place.run("INSERT INTO near VALUES (0)");
    assert!(place.notices().is_empty());
}

#[test]
fn what_belongs_on_a_device_is_brought_there_by_the_first_query() {
    let runtime = runtime();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("db");
    let options = support::options(&[("gpu.min_bytes", "0"), ("storage.block_rows", "1024")]);
    let database = Database::open(&path, &options).unwrap();
    let session = database.session().unwrap();
    let make = "CREATE TABLE near WITH (residence = 'cuda:0') AS SELECT unnest(range(0, 5000)) AS id, 7 AS other";
    runtime.block_on(run(&session, make));
    drop((session, database));
    let database = Database::open(&path, &options).unwrap();
    let devices = FakeDevices::new(&["cuda:0"]);
    database.register_devices(Arc::clone(&devices) as _);
    let session = database.session().unwrap();
    let run = |sql: &str| runtime.block_on(run(&session, sql));
    let explain = |mode| runtime.block_on(session.explain("SELECT sum(id) FROM near WHERE id < 3000", mode)).unwrap();
    let text = explain(ExplainMode::Plan).text();
    assert!(text.contains("to be moved to stay"), "{text}");
    assert!(run("SELECT * FROM onehop_resident").is_empty());
    explain(ExplainMode::Analyze);
    // All of the column, though the query reads a part.
    let all = "SELECT r.column_name, r.bytes = c.stored_bytes, is_kept FROM onehop_resident r \
               JOIN onehop_columns c ON r.column_name = c.column_name";
    assert_eq!(run(all), ["id|true|true"]);
    let text = explain(ExplainMode::Plan).text();
    assert!(text.contains(" resident, 0 B to be moved\n"), "{text}");
}

/// Two devices, and five segments.
fn two(spread: &str) -> Place {
    let settings =
        [("gpu.min_bytes", "0"), ("gpu.mode", "require"), ("exec.fallback", "error"), ("gpu.spread", spread)];
    Place::with(FakeDevices::new(&["cuda:0", "cuda:1"]), &settings)
}

fn both() -> Engine {
    Engine::Gpu(vec!["cuda:0".into(), "cuda:1".into()])
}

#[test]
fn several_devices_give_the_answers_of_one() {
    let place = two("on");
    let averages = "SELECT town, avg(amount), count(*), min(id), max(town) FROM facts f JOIN stores s ON f.store = s.store \
                    GROUP BY town";
    for sql in [STAR, SUM, ROWS, TOP, averages, "SELECT count(*) FROM facts WHERE id < 0", "SELECT sum(id) FROM facts"]
    {
        let expected = place.expected(sql);
        let before = [0, 1].map(|device| place.devices.devices[device].ran.load(Relaxed));
        assert_eq!(place.run(sql), expected, "{sql}");
        let ran = [0, 1].map(|device| place.devices.devices[device].ran.load(Relaxed) - before[device]);
        // Of nothing that zone maps leave there is nothing to divide.
        let is_empty = sql.contains("id < 0");
        assert_eq!(ran, if is_empty { [1, 0] } else { [1, 1] }, "{sql}");
        let engine = place.session.query().engine();
        assert_eq!(engine, if is_empty { Engine::Gpu(vec!["cuda:0".into()]) } else { both() }, "{sql}");
        assert!(place.notices().is_empty(), "{:?}", place.notices());
    }
    // What comes of derived relations is prepared once they are there.
    let derived = "SELECT sum(amount) FROM facts JOIN (SELECT DISTINCT store AS s FROM stores LIMIT 10) ON store = s";
    assert_eq!(place.run(derived), place.expected(derived));
}

#[test]
fn a_plan_over_several_devices_is_told() {
    let place = two("on");
    let plan = place.explain(SUM, ExplainMode::Plan);
    let lines: Vec<String> =
        plan.text().lines().map(|line| line.trim_matches([' ', '│', '├', '└', '─']).into()).collect();
    let placed = lines.iter().find(|line| line.starts_with("placed on ")).unwrap();
    assert!(
        placed.starts_with("placed on cuda:0,cuda:1 (2 x a device that is none): gpu.mode = 'require'; 0 B resident, ")
    );
    assert!(placed.ends_with(" to be moved, 2 kernels to be compiled"), "{placed}");
    let ran = place.explain(SUM, ExplainMode::Analyze);
    let groups = find(&ran.plan, "GpuPreAgg");
    let shares: Vec<_> = groups.shares.iter().map(|share| (share.device.as_str(), share.blocks, share.rows)).collect();
    assert_eq!(shares, [("cuda:0", 3, 2952), ("cuda:1", 2, 2048)]);
    let text = ran.text();
    for line in [
        "kernels 1.0 ms in 4 launches, ",
        "cuda:0: 3 blocks, 2,952 rows; 0 B were resident, ",
        "cuda:1: 2 blocks, 2,048 rows; 0 B were resident, ",
        " moved there; 2.0 ms, kernels 1.0 ms in 2 launches, ",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    // As the CPU counts.
    place.run("SET gpu.mode = 'off'");
    let on_cpu = place.explain(STAR, ExplainMode::Analyze);
    place.run("SET gpu.mode = 'require'");
    let star = place.explain(STAR, ExplainMode::Analyze);
    for (gpu, cpu) in [("GpuPreAgg", "CpuPreAgg"), ("GpuJoin", "CpuJoin"), ("GpuFilter", "CpuFilter")] {
        let (gpu, cpu) = (find(&star.plan, gpu), find(&on_cpu.plan, cpu));
        assert_eq!((gpu.rows_in, gpu.rows_out), (cpu.rows_in, cpu.rows_out), "{}", gpu.operator);
    }
    let json = star.json();
    let mut devices = Vec::new();
    each(&json["plan"], &mut |node| devices.extend(node["devices"].as_array().cloned().unwrap_or_default()));
    assert_eq!(devices.len(), 2, "{json}");
    assert_eq!((&devices[1]["name"], &devices[1]["launches"]), (&"cuda:1".into(), &2.into()));
    // What has no parts runs on one, and EXPLAIN says why; EXPLAIN of who did not ask does not.
    let distinct = "SELECT count(DISTINCT store), count(DISTINCT kind) FROM facts";
    let text = place.explain(distinct, ExplainMode::Plan).text();
    assert!(text.contains("; not on several: several devices cannot run DISTINCT in parts"), "{text}");
    place.run("SET gpu.spread = 'auto'");
    assert!(!place.explain(distinct, ExplainMode::Plan).text().contains("not on several"));
}

#[test]
fn several_devices_are_taken_where_that_takes_less_time() {
    let place = two("auto");
    // As fast as they are, one is enough.
    place.run(SUM);
    assert_eq!(place.session.query().engine(), Engine::Gpu(vec!["cuda:0".into()]));
    for device in &place.devices.devices {
        *device.rates.lock().unwrap() = onehop_engine::backend::Rates { copy_bytes_per_sec: 1e6, ..FAST };
    }
    let text = place.explain(SUM, ExplainMode::Plan).text();
    assert!(text.contains("placed on cuda:0,cuda:1 "), "{text}");
    place.run(SUM);
    assert_eq!(place.session.query().engine(), both());
    place.run("SET gpu.spread = 'off'");
    place.run(SUM);
    assert_eq!(place.session.query().engine(), Engine::Gpu(vec!["cuda:0".into()]));
    place.run("SET gpu.spread = 'on'");
    place.run("SET gpu.devices = 'cuda:1'");
    place.run(SUM);
    assert_eq!(place.session.query().engine(), Engine::Gpu(vec!["cuda:1".into()]));
}

#[test]
fn a_table_is_divided_among_devices() {
    let place = two("on");
    let where_it_is = "SELECT device, sum(segments), min(hits) FROM onehop_resident WHERE column_name = 'amount' GROUP BY 1 ORDER BY 1";
    place.run("ALTER TABLE facts SET (residence = '1, 0')");
    assert_eq!(place.run("SHOW CREATE TABLE facts")[0].lines().last(), Some("WITH (residence = 'cuda:0,cuda:1')"));
    assert_eq!(place.run(where_it_is), ["cuda:0|3|0", "cuda:1|2|0"]);
    let text = place.explain(SUM, ExplainMode::Plan).text();
    assert!(text.contains(" resident, 0 B to be moved"), "{text}");
    place.run(SUM);
    assert_eq!(place.run(where_it_is), ["cuda:0|3|3", "cuda:1|2|2"]);
    // It belongs on one now, whatever else may be used.
    place.run("ALTER TABLE facts SET (residence = 'cuda:1')");
    assert_eq!(place.run(where_it_is), ["cuda:1|5|0"]);
    place.run(SUM);
    assert_eq!(place.session.query().engine(), Engine::Gpu(vec!["cuda:1".into()]));
    let text = place.explain(SUM, ExplainMode::Plan).text();
    assert!(text.contains("; not on several: all that is to be divided is cuda:1's"), "{text}");
    place.run("ALTER TABLE facts RESET (residence)");
    assert!(place.run(where_it_is).is_empty());
    place.run("LOAD TABLE facts (amount) INTO 'cuda:0,cuda:1'");
    assert_eq!(place.run(where_it_is), ["cuda:0|3|0", "cuda:1|2|0"]);
    place.run("EVICT TABLE facts FROM 'cuda:0,cuda:1'");
    assert!(place.run(where_it_is).is_empty());
}

#[test]
fn one_of_several_devices_that_fails_fails_all_of_it() {
    let place = two("on");
    let expected = place.expected(STAR);
    place.devices.devices[1].is(Fault::Fails("the device is lost", 0));
    let error = place.fails(STAR);
    assert_eq!((error.kind(), error.message()), (ErrorKind::Device, "cuda:1: the device is lost"));
    place.run("SET exec.fallback = 'warn'");
    assert_eq!(place.run(STAR), expected);
    let why = "not on a GPU after all: cuda:1: the device is lost; the CPU did all of it again, no row had left";
    assert_eq!(place.notices(), [why]);
    // One that refuses leaves it to the other.
    place.devices.devices[1].is(Fault::Refuses("texts"));
    assert_eq!(place.run(STAR), expected);
    assert_eq!(place.session.query().engine(), Engine::Gpu(vec!["cuda:0".into()]));
}

#[test]
fn partitions_have_devices_of_their_own() {
    let place = two("on");
    let make = "CREATE TABLE parts PARTITION BY RANGE (id) (PARTITION low VALUES LESS THAN (1024), \
                PARTITION high VALUES LESS THAN (MAXVALUE)) WITH (residence = 'low = 1; 0') AS SELECT * FROM facts";
    place.run(make);
    let where_it_is =
        "SELECT device, sum(segments) FROM onehop_resident WHERE column_name = 'amount' GROUP BY 1 ORDER BY 1";
    assert_eq!(place.run(where_it_is), ["cuda:0|4", "cuda:1|1"]);
    let definition = place.run("SHOW CREATE TABLE parts").remove(0);
    assert_eq!(definition.lines().last(), Some("WITH (residence = 'low=cuda:1; cuda:0')"), "{definition}");
    let sum = "SELECT sum(amount), count(*) FROM parts WHERE kind <> 5";
    let ran = place.explain(sum, ExplainMode::Analyze);
    let shares = &find(&ran.plan, "GpuPreAgg").shares;
    let shares: Vec<_> = shares.iter().map(|share| (share.device.as_str(), share.blocks, share.moved_bytes)).collect();
    assert_eq!(shares, [("cuda:0", 4, 0), ("cuda:1", 1, 0)]);
    assert_eq!(place.run(sum), place.expected(sum));
    // All that is left is in one partition.
    let low = "SELECT sum(amount) FROM parts WHERE id < 500";
    assert_eq!(place.run(low), place.expected(low));
    assert_eq!(place.run("SELECT sum(amount) FROM parts WHERE id < 500"), place.expected(low));
    place.run("ALTER TABLE parts SET (residence = 'high=cuda:1')");
    assert_eq!(place.run(where_it_is), ["cuda:1|4"]);
    place.run("INSERT INTO parts SELECT id, store, kind, amount FROM facts WHERE id < 2048");
    assert_eq!(place.run(where_it_is), ["cuda:1|5"]);
    let error = place.fails("ALTER TABLE parts SET (residence = 'higj=cuda:1')");
    assert_eq!((error.kind(), error.hint()), (ErrorKind::NotFound, Some("did you mean \"high\"?")));
    let error = place.fails("CREATE TABLE t (a INT) WITH (residence = 'p0=cuda:1')");
    assert_eq!((error.kind(), error.message()), (ErrorKind::NotFound, "the table has no partition \"p0\""));
    place.run("DROP TABLE parts");
    assert!(place.run(where_it_is).is_empty());
}
