//! Who is connected to a database, for `onehop_activity`: whoever has clients says so, and is asked each time. And who wants to
//! know when statements end.
//!
//! Both are held weakly: they know sessions, which keep the database open.

use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::SystemTime;

use arrow::array::{Float64Array, Int64Array, RecordBatch};

use crate::system_columns::{moments, numbers, optional_text, text};
use crate::transaction_state::TransactionState;
use crate::{Query, Result};

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
    /// The number of its session.
    pub session: u64,
    /// The statement that its session began last.
    pub query: Arc<Query>,
    /// The state of its session's transaction.
    pub transaction: TransactionState,
    /// The name that the client gives itself: `application_name`.
    pub application: String,
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
    match (connected.is_busy, connected.transaction) {
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
    // Before its first statement, what a session has is none.
    let queries: Vec<Option<Arc<Query>>> =
        all.iter().map(|one| Some(Arc::clone(&one.query)).filter(|query| query.id() > 0)).collect();
    let of_queries = || queries.iter().map(Option::as_ref);
    let seconds = of_queries().map(|query| query.map(|query| query.total_time().as_secs_f64()));
    let rows = of_queries().map(|query| query.map(|query| query.rows() as i64));
    Ok(RecordBatch::try_from_iter_with_nullable([
        ("connection", numbers(all.iter().map(|one| one.number as u64)), false),
        ("session", numbers(all.iter().map(|one| one.session)), false),
        ("user_name", text(all.iter().map(|one| &one.user)), false),
        ("application_name", text(all.iter().map(|one| &one.application)), false),
        ("client_address", text(all.iter().map(|one| &one.address)), false),
        ("connected_at", moments(all.iter().map(|one| Some(one.since))), false),
        ("state", text(all.iter().map(state)), false),
        ("query", optional_text(of_queries().map(|query| query.map(|query| query.text().to_string()))), true),
        ("query_started_at", moments(of_queries().map(|query| query.map(|query| query.started_at()))), true),
        ("query_seconds", Arc::new(Float64Array::from_iter(seconds)), true),
        ("query_rows", Arc::new(Int64Array::from_iter(rows)), true),
    ])?)
}
