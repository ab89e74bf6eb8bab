//! The statements that a database ran last, for `onehop_queries`: in memory, of all sessions, the oldest forgotten.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use onehop_io::Ledger;

use crate::Query;
use crate::activity::Activities;
use crate::limits::Limits;
use crate::query::Observers;
use crate::watched::NodeOf;

/// Statements that are remembered. A running one may be among the forgotten: it runs on.
const KEPT: usize = 256;

/// What a database remembers.
#[derive(Debug, Default)]
pub(crate) struct History {
    statements: AtomicU64,
    sessions: AtomicU64,
    kept: Mutex<VecDeque<Arc<Query>>>,
    /// What all of them have moved.
    pub ledger: Arc<Ledger>,
    /// Explains plans of statements, once a caller watches them.
    pub node_of: OnceLock<NodeOf>,
    /// Who is connected.
    pub activities: Activities,
    /// Who is told when statements end.
    pub observers: Observers,
}

impl History {
    /// A number for a session.
    pub fn new_session(&self) -> u64 {
        self.sessions.fetch_add(1, Relaxed) + 1
    }

    /// A statement begins.
    pub fn start(&self, session: u64, text: &str, limits: Limits) -> Arc<Query> {
        let id = self.statements.fetch_add(1, Relaxed) + 1;
        let watched = (self.node_of.get().copied(), self.observers.get());
        let query = Query::start_below(&self.ledger, watched, (id, session), text, limits);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back(Arc::clone(&query));
        query
    }

    /// The statements, oldest first.
    pub fn queries(&self) -> Vec<Arc<Query>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_are_forgotten() {
        let history = History::default();
        (0..KEPT + 3).for_each(|_| drop(history.start(1, "SELECT 1", Limits::default())));
        let queries = history.queries();
        assert_eq!((queries.len(), queries[0].id()), (KEPT, 4));
    }

    #[test]
    fn long_texts_are_cut_between_letters() {
        let query = History::default().start(1, &"\u{e4}".repeat(5000), Limits::default());
        assert!(query.text().ends_with("..."));
        assert!(query.text().len() < 5000);
    }
}
