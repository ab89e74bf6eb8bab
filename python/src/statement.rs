//! Statements on their way through the engine: on its threads, one after the other within a session.

use std::sync::Arc;

use futures::StreamExt;
use onehop_engine::arrays::{Arrays, Wanted};
use onehop_engine::{Done, Error, ErrorKind, Executors, Output, Prepared, Query, Relation, Result, Session, Value};
use tokio::runtime::Handle;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::task::{JoinHandle, yield_now};

/// A session whose statements wait for their turn.
pub struct Turns {
    session: Session,
    turn: Arc<Mutex<()>>,
}

/// A statement that can be carried out.
pub enum Statement {
    /// As it is.
    Text(String),
    /// With values for its parameters.
    Prepared(Box<Prepared>, Vec<Value>),
}

/// What came of a statement, and what can be asked about it.
pub type Carried = (Output, Arc<Query>);

impl Turns {
    /// Of a session.
    pub fn new(session: Session) -> Self {
        Self { session, turn: Arc::default() }
    }

    /// The session.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Carries out a script on these threads, with further tables: what came of its last statement. Rows of those before it
    /// are made and dropped. Dropping the future cancels it.
    pub async fn script(
        self: Arc<Self>,
        executors: &Executors,
        statements: Vec<Statement>,
        tables: Vec<(String, Relation)>,
    ) -> Result<Carried> {
        apart(executors, async move {
            let _turn = self.turn.lock().await;
            let _tables = Tables::register(&self.session, tables)?;
            let (all, mut last) = (statements.len(), None);
            for (at, statement) in statements.iter().enumerate() {
                yield_now().await;
                let carried = self.carry_out(statement).await;
                let (mut output, query) = carried.map_err(|e| placed(e, at, all))?;
                if at + 1 < all
                    && let Output::Rows(rows) = &mut output
                {
                    while let Some(batch) = rows.next().await {
                        batch.map_err(|e| placed(e, at, all))?;
                    }
                }
                last = Some((output, query));
            }
            last.ok_or_else(|| Error::new(ErrorKind::Syntax, "there is no statement here"))
        })
        .await
    }

    /// Carries out a statement with the values of each row, all or none: in a transaction, unless there is one already.
    pub async fn each(
        self: Arc<Self>,
        executors: &Executors,
        prepared: Prepared,
        rows: Vec<Vec<Value>>,
    ) -> Result<Carried> {
        apart(executors, async move {
            let turn = Arc::clone(&self.turn).lock_owned().await;
            if self.session.in_transaction() {
                return self.all(&prepared, &rows).await;
            }
            self.session.sql("BEGIN").await?;
            let begun = Begun { turns: Arc::clone(&self), turn: Some(turn) };
            let carried = self.all(&prepared, &rows).await;
            let ended = begun.end(if carried.is_ok() { "COMMIT" } else { "ROLLBACK" }).await;
            carried.and_then(|carried| ended.map(|()| carried))
        })
        .await
    }

    /// Columns of a table as arrays.
    pub async fn table_arrays(self: Arc<Self>, executors: &Executors, table: String, wanted: Wanted) -> Result<Arrays> {
        apart(executors, async move {
            let _turn = self.turn.lock().await;
            self.session.table_arrays(&table, &wanted).await
        })
        .await
    }

    async fn all(&self, prepared: &Prepared, rows: &[Vec<Value>]) -> Result<Carried> {
        let (mut count, mut tag) = (0, "EXECUTE");
        for (at, values) in rows.iter().enumerate() {
            // Nothing else may give up the thread, and only then is it seen that nobody waits any more.
            yield_now().await;
            match self.session.execute(prepared, values).await.map_err(|e| placed(e, at, rows.len()))? {
                Output::Done(done) => {
                    tag = done.tag;
                    count += done.rows.unwrap_or(0);
                }
                Output::Rows(_) => {
                    return Err(Error::new(ErrorKind::Invalid, "a statement that returns rows is executed once")
                        .with_hint("run it with the values of each row in turn"));
                }
            }
        }
        Ok((Output::Done(Done { tag, rows: Some(count) }), self.session.query()))
    }

    async fn carry_out(&self, statement: &Statement) -> Result<Carried> {
        let output = match statement {
            Statement::Text(text) => self.session.sql(text).await?,
            Statement::Prepared(prepared, values) => self.session.execute(prepared, values).await?,
        };
        Ok((output, self.session.query()))
    }
}

/// A transaction that is rolled back unless it is ended, also if nobody waits for that: until then, no other statement has its
/// turn.
struct Begun {
    turns: Arc<Turns>,
    /// `None` once it has ended.
    turn: Option<OwnedMutexGuard<()>>,
}

impl Begun {
    async fn end(mut self, how: &str) -> Result<()> {
        self.turns.session.sql(how).await?;
        self.turn = None;
        Ok(())
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if let (Some(turn), Ok(workers)) = (self.turn.take(), Handle::try_current()) {
            let turns = Arc::clone(&self.turns);
            workers.spawn(async move {
                // A commit that failed has ended it already.
                let _ = turns.session.sql("ROLLBACK").await;
                drop(turn);
            });
        }
    }
}

/// Tables that are there for one call.
struct Tables<'a> {
    session: &'a Session,
    names: Vec<String>,
}

impl<'a> Tables<'a> {
    fn register(session: &'a Session, tables: Vec<(String, Relation)>) -> Result<Self> {
        let mut registered = Self { session, names: Vec::with_capacity(tables.len()) };
        for (name, relation) in tables {
            session.register(&name, relation)?;
            registered.names.push(name);
        }
        Ok(registered)
    }
}

impl Drop for Tables<'_> {
    fn drop(&mut self) {
        for name in &self.names {
            self.session.unregister(name);
        }
    }
}

/// Says which of several statements, or rows of values, it was, from 0.
fn placed(e: Error, at: usize, all: usize) -> Error {
    if all == 1 {
        return e;
    }
    let placed = Error::new(e.kind(), format!("number {} of {all}: {}", at + 1, e.message()));
    match e.hint().map(String::from) {
        Some(hint) => placed.with_hint(hint).with_source(e),
        None => placed.with_source(e),
    }
}

/// Does work on the engine's threads, where its stacks are large enough. Dropping the future aborts it.
pub async fn apart<T: Send + 'static>(
    executors: &Executors,
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    let mut task = Aborted(executors.lend(())?.spawn(work));
    (&mut task.0).await.unwrap_or_else(|e| {
        Err(Error::new(ErrorKind::Internal, "the engine stopped at a bug of its own")
            .with_hint("please report it, with the statement")
            .with_source(e))
    })
}

/// A task that ends when nobody waits for it any more.
struct Aborted<T>(JoinHandle<T>);

impl<T> Drop for Aborted<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
