//! The page's state as JSON. Names contain the units: bytes, seconds, and milliseconds since 1970.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use onehop_engine::arrow::json::ArrayWriter;
use onehop_engine::{Activity, Connected, LedgerSnapshot, Progress, Query, QueryState, Result};
use serde_json::{Map, Value, json};

use super::Viewer;
use crate::server::Shared;

/// The maximum number of listed past statements.
const RECENT: usize = 50;

/// Returns the whole state, without plans.
pub(super) fn all(shared: &Shared, viewer: &Viewer) -> Result<Value> {
    let connected = shared.connections.connected();
    let queries = queries(shared, &connected);
    let (running, over): (Vec<_>, Vec<_>) = queries.iter().partition(|query| query.state() == QueryState::Running);
    let line = |query: &&Arc<Query>| line(query, &connected, viewer);
    let (statements, waiting) = shared.admission.counts();
    let counter = |counter: &std::sync::atomic::AtomicU64| counter.load(std::sync::atomic::Ordering::Relaxed);
    let path = shared.database.path().map(|path| path.display().to_string());
    Ok(json!({
        "server": {
            "version": env!("CARGO_PKG_VERSION"),
            "database": path.as_deref().unwrap_or(":memory:"),
            "now_ms": millis(SystemTime::now()),
            "since_ms": millis(shared.since),
            "user": viewer.name,
            "role": viewer.rights.name(),
            "connections": connected.len(),
            "max_connections": shared.options.max_connections,
            "running": statements,
            "queued": waiting,
            "max_running": shared.options.max_queries,
            "statements": counter(&shared.counters.statements),
            "errors": counter(&shared.counters.errors),
            "rows_sent": counter(&shared.counters.rows),
        },
        "moved": ledger(&shared.database.moved()),
        "running": running.iter().map(line).collect::<Vec<_>>(),
        "recent": over.iter().rev().take(RECENT).map(line).collect::<Vec<_>>(),
        "memory": table(shared, "onehop_memory")?,
        "resident": table(shared, "onehop_resident")?,
        "activity": table(shared, "onehop_activity")?,
    }))
}

/// Returns one statement, with its plan as an HTML fragment if it has one.
pub(super) fn query(shared: &Shared, query: &Arc<Query>, viewer: &Viewer) -> Value {
    let mut all = line(query, &shared.connections.connected(), viewer);
    if let Value::Object(all) = &mut all {
        // If the statement ends meanwhile, these statistics are those of its end.
        let explanation = query.explanation();
        all.insert("notices".into(), query.notices().into());
        all.insert("moved".into(), ledger(&query.ledger()));
        all.insert("html".into(), explanation.map(|explanation| explanation.html_body()).into());
    }
    all
}

/// Returns a statement by its number.
pub(super) fn find(shared: &Shared, id: u64) -> Option<Arc<Query>> {
    queries(shared, &shared.connections.connected()).into_iter().find(|query| query.id() == id)
}

/// Returns the statements that the database remembers, and those that clients run, in the order of
/// their start.
fn queries(shared: &Shared, connected: &[Connected]) -> Vec<Arc<Query>> {
    let mut queries = shared.database.queries();
    for query in connected.iter().map(|one| Arc::clone(&one.query)) {
        // The database may have forgotten a long-running statement.
        if query.id() > 0 && !queries.iter().any(|known| known.id() == query.id()) {
            queries.push(query);
        }
    }
    queries.sort_by_key(|query| query.id());
    queries
}

fn line(query: &Arc<Query>, connected: &[Connected], viewer: &Viewer) -> Value {
    let client = connected.iter().find(|one| one.session == query.session());
    let Progress { done, total } = query.progress();
    let moved = query.ledger();
    let is_running = query.state() == QueryState::Running;
    json!({
        "id": query.id(),
        "state": query.state().name(),
        "text": query.text(),
        "user": client.map(|client| &client.user),
        "connection": client.map(|client| client.number),
        "started_ms": millis(query.started_at()),
        "seconds": query.total_time().as_secs_f64(),
        "plan_seconds": query.plan_time().as_secs_f64(),
        "rows": query.rows(),
        "done_rows": done,
        "total_rows": total,
        "read_bytes": moved.read_bytes(),
        "cached_bytes": moved.cached_bytes,
        "moved_bytes": moved.moved_bytes(),
        "engine": query.engine().name(),
        "error": query.error(),
        "may_cancel": is_running && client.is_some_and(|client| viewer.may_cancel(&client.user)),
    })
}

fn ledger(ledger: &LedgerSnapshot) -> Value {
    ledger.counters().map(|(name, count)| (name.to_string(), Value::from(count))).collect::<Map<_, _>>().into()
}

/// Returns a system table as objects.
fn table(shared: &Shared, name: &str) -> Result<Value> {
    let Some(batch) = shared.database.system_table(name)? else { return Ok(Value::Null) };
    let mut writer = ArrayWriter::new(Vec::new());
    writer.write(&batch)?;
    writer.finish()?;
    Ok(serde_json::from_slice(&writer.into_inner()).unwrap_or_default())
}

/// Returns the milliseconds since 1970.
fn millis(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
