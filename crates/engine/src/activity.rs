//! Who is connected to a database, for `onehop_activity`: whoever has clients says so, and is asked each time.

use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{SystemTime, UNIX_EPOCH};

use arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray};

use crate::{Query, Result, Session, TransactionState};

/// A client that is connected.
#[derive(Debug)]
pub struct Connected {
    /// The number of the connection.
    pub number: i64,
    /// Who it is.
    pub user: String,
    /// Where it is.
    pub address: String,
    /// Since when.
    pub since: SystemTime,
    /// Its session.
    pub session: Arc<Session>,
    /// Whether it has asked for something that is not done yet.
    pub is_busy: bool,
}

/// Who knows the clients that are connected. May be asked from many threads.
pub trait Activity: Debug + Send + Sync {
    /// All of them, as of now.
    fn connected(&self) -> Vec<Connected>;
}

/// Who is asked.
#[derive(Debug, Default)]
pub(crate) struct Activities(Mutex<Option<Weak<dyn Activity>>>);

impl Activities {
    pub fn set(&self, activity: &Arc<dyn Activity>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::downgrade(activity));
    }

    fn connected(&self) -> Vec<Connected> {
        let activity = self.0.lock().unwrap_or_else(PoisonError::into_inner).as_ref().and_then(Weak::upgrade);
        activity.map(|activity| activity.connected()).unwrap_or_default()
    }
}

/// What a client does, in a word of PostgreSQL's.
fn state(connected: &Connected) -> &'static str {
    match (connected.is_busy, connected.session.transaction()) {
        (true, _) => "active",
        (false, TransactionState::None) => "idle",
        (false, TransactionState::Open) => "idle in transaction",
        (false, TransactionState::Failed) => "idle in transaction (aborted)",
    }
}

/// `onehop_activity`.
pub(crate) fn table(activities: &Activities) -> Result<RecordBatch> {
    let mut all = activities.connected();
    all.sort_by_key(|connected| connected.number);
    let queries: Vec<Arc<Query>> = all.iter().map(|connected| connected.session.query()).collect();
    // Before its first statement, what a session has is none.
    let has_query: Vec<bool> = queries.iter().map(|query| query.id() > 0).collect();
    let micros = |time: SystemTime| time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as i64);
    let text = |values: Vec<String>| -> ArrayRef { Arc::new(StringArray::from_iter_values(values)) };
    let of_query = || queries.iter().zip(&has_query);
    let times = TimestampMicrosecondArray::from_iter_values(all.iter().map(|connected| micros(connected.since)));
    let begun =
        TimestampMicrosecondArray::from_iter(of_query().map(|(query, has)| has.then(|| micros(query.started_at()))));
    let seconds = of_query().map(|(query, has)| has.then(|| query.total_time().as_secs_f64()));
    let application = |connected: &Connected| connected.session.parameter("application_name").unwrap_or_default();
    Ok(RecordBatch::try_from_iter_with_nullable([
        ("connection", Arc::new(Int64Array::from_iter_values(all.iter().map(|one| one.number))) as ArrayRef, false),
        ("session", Arc::new(Int64Array::from_iter_values(all.iter().map(|one| one.session.id() as i64))), false),
        ("user_name", text(all.iter().map(|one| one.user.clone()).collect()), false),
        ("application_name", text(all.iter().map(application).collect()), false),
        ("client_address", text(all.iter().map(|one| one.address.clone()).collect()), false),
        ("connected_at", Arc::new(times.with_timezone("UTC")), false),
        ("state", text(all.iter().map(|one| state(one).to_string()).collect()), false),
        (
            "query",
            Arc::new(StringArray::from_iter(of_query().map(|(query, has)| has.then(|| query.text().to_string())))),
            true,
        ),
        ("query_started_at", Arc::new(begun.with_timezone("UTC")), true),
        ("query_seconds", Arc::new(Float64Array::from_iter(seconds)), true),
        (
            "query_rows",
            Arc::new(Int64Array::from_iter(of_query().map(|(query, has)| has.then(|| query.rows() as i64)))),
            true,
        ),
    ])?)
}
