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
