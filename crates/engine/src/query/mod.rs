//! One statement from text to its last row: its result, its progress and its data movement.
//!
//! Planning, and the stream of rows, are tasks of their own. A caller that waits for them can do
//! something else at any time, and drop them, however long a plan or an operator occupies its
//! thread. A task that panics, as readers of foreign formats do on damaged files, is an error of
//! its statement only. Rows are passed one batch at a time, so that a slow reader slows the query
//! down instead of filling memory.

use std::any::Any;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant, SystemTime};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::ExecutionPlan;
use futures::{Stream, StreamExt};
use onehop_governor::{self as governor, Account, Scope};
use onehop_io::{Ledger, LedgerSnapshot};
use onehop_postgres::{Server, View, without_addresses};
use onehop_store::mutant::skips;
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinHandle};

use crate::explanation::{self, Explanation, Moment, Refusal, Totals};
use crate::limits::{Limited, Limits};
use crate::watched::{NodeOf, Watched};
use crate::{Error, ErrorKind, Result};

mod observer;

pub use self::observer::Observer;
pub(crate) use self::observer::Observers;

/// The number of batches that wait for a reader, besides the one being computed.
const BATCHES_AHEAD: usize = 1;

/// The stack for planning. Planning clones, compares and drops trees of the permitted depth, merged
/// some dozens of times.
const PLANNING_STACK_BYTES: usize = 128 << 20;

/// The stack for threads of a runtime that runs statements. A statement that finds less is planned
/// on a stack of its own, which it frees afterwards. That takes some tenths of a millisecond, most
/// of it for telling all processors that the stack is gone. Untouched pages of a stack use no
/// memory.
pub const STACK_BYTES: usize = PLANNING_STACK_BYTES + (4 << 20);

/// The progress of a statement in rows: the rows that scans and loads have processed, and their
/// total.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Rows done.
    pub done: u64,
    /// Rows in all; 0 if unknown.
    pub total: u64,
}

/// An effect of a statement outside the database, or on the settings of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Action {
    /// The statement's tag, such as `COPY FROM`.
    pub tag: &'static str,
    /// The path or the name.
    pub target: String,
    /// The table that a file is copied from or to, if any.
    pub table: Option<String>,
}

/// A running or finished statement, as seen by observers. It is shared; all methods may be called
/// from any thread.
#[derive(Debug)]
pub struct Query {
    id: u64,
    session: u64,
    text: String,
    started_at: SystemTime,
    started: Instant,
    limits: Limits,
    account: Arc<Account>,
    /// The scope of its work, until its end is known.
    scope: Mutex<Option<Scope>>,
    ended: OnceLock<Ended>,
    rows: AtomicU64,
    lowering: Mutex<Lowering>,
    planned_ns: AtomicU64,
    done: AtomicU64,
    total: AtomicU64,
    ledger: Arc<Ledger>,
    is_cancelled: AtomicBool,
    /// True if devices count the rows of each step.
    counts_steps: AtomicBool,
    /// Files of other formats that it reads, by the paths in the statement.
    files: Mutex<Vec<String>>,
    notices: Mutex<Vec<String>>,
    /// The state of its plan, if plans are watched.
    watched: Option<Watched>,
    /// Its views of other databases, until it is over.
    views: Mutex<Vec<Arc<View>>>,
    /// Its action outside the database.
    action: OnceLock<Action>,
    /// The observer that is told of its end.
    observer: Option<Weak<dyn Observer>>,
}

/// The outcome of lowering a statement's plans.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lowering {
    /// The number of subtrees that run as fused pipelines.
    pub fused: u64,
    pub refused: Vec<Refusal>,
    /// The devices that ran some of these.
    pub devices: Vec<String>,
    /// The number of these that ran on devices.
    pub on_devices: u64,
}

/// The processors that ran a statement's pipelines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// The CPU alone.
    #[default]
    Cpu,
    /// These devices, all of them.
    Gpu(Vec<String>),
    /// Some on these devices, some on the CPU.
    Mixed(Vec<String>),
}

impl Engine {
    /// Returns the word for it in `onehop_queries`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Gpu(_) => "gpu",
            Self::Mixed(_) => "mixed",
        }
    }
}

/// The state of a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryState {
    /// It is being planned, or its rows are being read.
    Running,
    /// It completed.
    Done,
    /// It ended in an error.
    Failed,
    /// Its client stopped waiting for it.
    Cancelled,
}

impl QueryState {
    /// Returns the word for it in `onehop_queries`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// The end of a statement.
#[derive(Debug)]
struct Ended {
    state: QueryState,
    elapsed: Duration,
    error: Option<String>,
}

/// The maximum number of bytes that are kept of a statement's text.
const KEPT_TEXT_BYTES: usize = 4096;

impl Query {
    /// Starts a statement within limits.
    pub(crate) fn start(id: u64, session: u64, text: &str, limits: Limits) -> Arc<Self> {
        Arc::new(Self::new(id, session, text, limits, Arc::default()))
    }

    /// Returns the placeholder that a session has before its first statement.
    pub(crate) fn none(session: u64) -> Arc<Self> {
        let none = Self::new(0, session, "", Limits::default(), Arc::default());
        none.end(QueryState::Done, None);
        Arc::new(none)
    }

    /// Starts a statement with a ledger below another one. Its plan is kept if plans are watched,
    /// and the observer is told of its end.
    pub(crate) fn start_below(
        ledger: &Arc<Ledger>,
        (node_of, observer): (Option<NodeOf>, Option<Weak<dyn Observer>>),
        (id, session): (u64, u64),
        text: &str,
        limits: Limits,
    ) -> Arc<Self> {
        let watched = node_of.map(Watched::new);
        let ledger = Arc::new(Ledger::below(ledger));
        Arc::new(Self { watched, observer, ..Self::new(id, session, text, limits, ledger) })
    }

    fn new(id: u64, session: u64, text: &str, limits: Limits, ledger: Arc<Ledger>) -> Self {
        let account = limits.account(id);
        let scope = governor::current().with_account(Arc::clone(&account));
        Self {
            id,
            session,
            text: shortened(&without_addresses(text)),
            started_at: SystemTime::now(),
            ended: OnceLock::new(),
            rows: AtomicU64::new(0),
            lowering: Mutex::default(),
            started: Instant::now(),
            limits,
            account,
            scope: Mutex::new(Some(scope)),
            planned_ns: AtomicU64::new(0),
            done: AtomicU64::new(0),
            total: AtomicU64::new(0),
            ledger,
            is_cancelled: AtomicBool::new(false),
            counts_steps: AtomicBool::new(false),
            files: Mutex::default(),
            notices: Mutex::default(),
            watched: None,
            views: Mutex::default(),
            action: OnceLock::new(),
            observer: None,
        }
    }

    /// Returns its limits.
    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    /// Returns the account of its resources.
    pub(crate) fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// Returns the scope of its work, or the scope of no statement once its end is known.
    pub(crate) fn scope(&self) -> Scope {
        self.scope.lock().unwrap_or_else(PoisonError::into_inner).clone().unwrap_or_default()
    }

    /// Returns the error that it ends in, if it was stopped.
    pub(crate) fn stopped(&self) -> Option<Error> {
        self.account.reason().map(|reason| self.limits.error(reason))
    }

    /// Cancels it, since its client no longer waits. Work that cannot be stopped from outside polls
    /// this flag.
    pub(crate) fn cancel(&self) {
        let state = if self.try_stop() { QueryState::Cancelled } else { QueryState::Done };
        self.is_cancelled.store(true, Relaxed);
        self.end(state, None);
    }

    /// Stops it, so that it changes nothing more. Returns `false` if its changes are being
    /// committed: then it ends soon as it would have anyway, and the caller must report the changes
    /// as made.
    pub fn try_stop(&self) -> bool {
        self.account.cancel()
    }

    /// Marks its changes as about to be committed. It cannot be stopped from now on.
    ///
    /// # Errors
    /// [`ErrorKind::Cancelled`], [`ErrorKind::Timeout`] or [`ErrorKind::Resources`] if it was
    /// stopped before.
    pub(crate) fn settle(&self) -> Result<()> {
        let settled = self.account.settle();
        if skips("commit.settle") {
            return Ok(());
        }
        settled.map_err(|reason| self.limits.error(reason))
    }

    /// Returns whether its changes are being committed, or are.
    pub fn is_settled(&self) -> bool {
        self.account.is_settled()
    }

    /// Ends it as done. Only the first end counts.
    pub(crate) fn done(&self) {
        self.end(QueryState::Done, None);
    }

    /// Ends it with an error.
    pub(crate) fn failed(&self, error: &Error) {
        let state = if error.kind() == ErrorKind::Cancelled { QueryState::Cancelled } else { QueryState::Failed };
        self.end(state, Some(error));
    }

    fn end(&self, state: QueryState, error: Option<&Error>) {
        let message = error.map(|error| shortened(error.message()));
        if self.ended.set(Ended { state, elapsed: self.started.elapsed(), error: message }).is_err() {
            return;
        }
        if let Some(watched) = &self.watched {
            watched.end(|plan, moment| self.explained(plan, moment, watched));
        }
        // Its work may continue, and then keeps the scope.
        let scope = self.scope.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(scope);
        let views = std::mem::take(&mut *self.views());
        drop(views);
        if let Some(observer) = self.observer.as_ref().and_then(Weak::upgrade) {
            observer.ended(self, error);
        }
    }

    fn views(&self) -> MutexGuard<'_, Vec<Arc<View>>> {
        self.views.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns its view of another database, which is the same throughout.
    pub(crate) async fn view_of(&self, server: &Arc<Server>) -> onehop_postgres::Result<Arc<View>> {
        let known = self.views().iter().find(|view| view.is_of(server)).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        // Names are resolved one after the other, so no concurrent call creates a second view.
        let view = Arc::new(server.view().await?);
        self.views().push(Arc::clone(&view));
        // It may have ended meanwhile.
        if self.ended.get().is_some() {
            self.views().clear();
        }
        Ok(view)
    }

    /// Records a plan that is about to run.
    pub(crate) fn runs(&self, plan: &Arc<dyn ExecutionPlan>) {
        if let Some(watched) = &self.watched {
            watched.planned(plan);
        }
    }

    /// Returns its plan with current or final statistics; `None` if it has no plan or plans are not
    /// watched ([`Database::watch_plans`](crate::Database::watch_plans)).
    pub fn explanation(&self) -> Option<Arc<Explanation>> {
        let watched = self.watched.as_ref()?;
        watched.explanation(|plan, moment| self.explained(plan, moment, watched))
    }

    fn explained(&self, plan: &Arc<dyn ExecutionPlan>, moment: Moment, watched: &Watched) -> Explanation {
        let refused = self.lowering().refused;
        let totals = Totals {
            plan_time: self.plan_time(),
            run_time: self.total_time().saturating_sub(self.plan_time()),
            rows: self.rows(),
            answer_bytes: watched.answer_bytes(),
            ledger: self.ledger(),
        };
        Explanation {
            sql: self.text.clone(),
            plan: watched.node_of(plan, &refused, moment),
            not_fused: explanation::reasons(&refused),
            fails: None,
            totals: Some(totals),
            passes: Vec::new(),
        }
    }

    /// Counts rows that were returned or written.
    pub(crate) fn made_rows(&self, rows: u64) {
        self.rows.fetch_add(rows, Relaxed);
    }

    /// Records the outcome of lowering a plan.
    pub(crate) fn lowered(&self, fused: u64, refused: Vec<Refusal>) {
        let mut lowering = self.lowering.lock().unwrap_or_else(PoisonError::into_inner);
        lowering.fused += fused;
        for refusal in refused {
            if !lowering.refused.contains(&refusal) {
                lowering.refused.push(refusal);
            }
        }
    }

    /// Records that a subtree ran on a device, or on several together.
    pub(crate) fn ran_on(&self, devices: &[&str]) {
        let mut lowering = self.lowering.lock().unwrap_or_else(PoisonError::into_inner);
        lowering.on_devices += 1;
        for device in devices {
            if !lowering.devices.iter().any(|known| known == device) {
                lowering.devices.push((*device).into());
            }
        }
    }

    /// Returns the processors that ran its pipelines so far.
    pub fn engine(&self) -> Engine {
        let Lowering { fused, refused, devices, on_devices } = self.lowering();
        match () {
            () if on_devices == 0 => Engine::Cpu,
            () if on_devices >= fused && refused.iter().all(|refusal| refusal.tables.is_empty()) => {
                Engine::Gpu(devices)
            }
            () => Engine::Mixed(devices),
        }
    }

    pub(crate) fn lowering(&self) -> Lowering {
        self.lowering.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns its number among the statements of the database since it was opened.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns the number of its session.
    pub fn session(&self) -> u64 {
        self.session
    }

    /// Returns its text, or the beginning of it.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the time at which it began.
    pub fn started_at(&self) -> SystemTime {
        self.started_at
    }

    /// Returns its state.
    pub fn state(&self) -> QueryState {
        self.ended.get().map_or(QueryState::Running, |ended| ended.state)
    }

    /// Returns the message of the error that it ended in.
    pub fn error(&self) -> Option<&str> {
        self.ended.get()?.error.as_deref()
    }

    /// Returns the number of rows that were returned or written so far.
    pub fn rows(&self) -> u64 {
        self.rows.load(Relaxed)
    }

    /// Returns the time from its beginning to its end, or until now.
    pub fn total_time(&self) -> Duration {
        self.ended.get().map_or_else(|| self.started.elapsed(), |ended| ended.elapsed)
    }

    /// Makes devices count the rows of each step.
    pub(crate) fn count_steps(&self) {
        self.counts_steps.store(true, Relaxed);
    }

    pub(crate) fn counts_steps(&self) -> bool {
        self.counts_steps.load(Relaxed)
    }

    /// Returns true if its work has to end: its client is gone, or it reached a limit.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Relaxed) || self.account.reason().is_some()
    }

    pub(crate) fn reads_file(&self, path: &str) {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if !files.iter().any(|known| known == path) {
            files.push(path.to_string());
        }
    }

    /// Returns the files of other formats that it has read, by the paths in the statement.
    pub fn files(&self) -> Vec<String> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records an action that it is about to perform. Only the first is kept.
    pub(crate) fn acts(&self, action: Action) {
        let _ = self.action.set(action);
    }

    /// Returns its action outside the database, done or about to be.
    pub fn action(&self) -> Option<&Action> {
        self.action.get()
    }

    /// Adds a notice for its user, once.
    pub(crate) fn notice(&self, text: String) {
        let mut notices = self.notices.lock().unwrap_or_else(PoisonError::into_inner);
        if !notices.contains(&text) {
            notices.push(text);
        }
    }

    /// Returns notices for its user: the reasons why a part of it does not run as fast as it could.
    pub fn notices(&self) -> Vec<String> {
        self.notices.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Runs planning, or other work with a single result, as a task of its own with a stack for
    /// deep trees.
    pub(crate) async fn apart<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let mut task = Task(tokio::spawn(self.scope().future(OnLargeStack(Box::pin(work)))));
        (&mut task.0).await.unwrap_or_else(|e| Err(died(e)))
    }

    /// Converts an internal error to one about the files read, if any: broken invariants in readers
    /// of foreign files nearly always come from damaged files.
    pub(crate) fn explain(&self, error: Error) -> Error {
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if error.kind() != ErrorKind::Internal || files.is_empty() {
            return error;
        }
        let names = files.iter().map(|path| format!("'{path}'")).collect::<Vec<_>>().join(" or ");
        Error::new(ErrorKind::Data, format!("{names} cannot be read: {}", error.message()))
            .with_hint("the file is damaged, or is of another format than its name says; write it again")
            .with_source(error)
    }

    pub(crate) fn planned(&self) {
        self.planned_ns.store(self.started.elapsed().as_nanos() as u64, Relaxed);
    }

    pub(crate) fn expect_rows(&self, rows: u64) {
        self.total.fetch_add(rows, Relaxed);
    }

    pub(crate) fn did_rows(&self, rows: u64) {
        self.done.fetch_add(rows, Relaxed);
    }

    /// Returns the time since the statement began.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Returns the time spent parsing and planning; zero until that is over.
    pub fn plan_time(&self) -> Duration {
        Duration::from_nanos(self.planned_ns.load(Relaxed))
    }

    /// Returns its progress.
    pub fn progress(&self) -> Progress {
        Progress { done: self.done.load(Relaxed), total: self.total.load(Relaxed) }
    }

    /// Returns the data that it has moved so far.
    pub fn ledger(&self) -> LedgerSnapshot {
        self.ledger.snapshot()
    }

    pub(crate) fn shared_ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }
}

/// The result of a statement.
#[derive(Debug)]
pub enum Output {
    /// A stream of rows.
    Rows(Rows),
    /// No rows: the statement is done.
    Done(Done),
}

/// The result of a statement that returns no rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// The action in SQL's words: `CREATE TABLE`, `INSERT`, `COPY` ...
    pub tag: &'static str,
    /// The number of rows written or removed, if there is one.
    pub rows: Option<u64>,
}

/// A stream of record batches. Dropping it cancels the query.
pub struct Rows {
    schema: SchemaRef,
    batches: mpsc::Receiver<RecordBatch>,
    /// The task that fills `batches`; `None` after it has ended and reported its outcome.
    task: Option<Task<Result<()>>>,
    /// A future that ends when the statement is stopped.
    limited: Option<Limited>,
    query: Arc<Query>,
    /// The failure flag of the transaction that the rows are read in.
    failure: Option<Arc<AtomicBool>>,
}

impl Rows {
    /// Spawns a task that runs a stream, and returns its rows.
    pub(crate) fn new(stream: SendableRecordBatchStream, query: &Arc<Query>) -> Self {
        let (sender, batches) = mpsc::channel(BATCHES_AHEAD);
        let schema = stream.schema();
        let account = Arc::clone(query.account());
        let task = Some(Task(tokio::spawn(query.scope().future(hand_over(stream, sender, account)))));
        Self {
            schema,
            batches,
            task,
            limited: Some(Limited::new(query.account(), query.limits())),
            query: Arc::clone(query),
            failure: None,
        }
    }

    /// Returns the same rows, whose error fails a transaction.
    pub(crate) fn or_fail(mut self, failure: Arc<AtomicBool>) -> Self {
        self.failure = Some(failure);
        self
    }

    /// Records that the rows end in an error.
    fn fail(&mut self, error: &Error) {
        self.query.failed(error);
        if let Some(failure) = &self.failure {
            failure.store(true, SeqCst);
        }
    }

    /// Returns the schema.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Waits until their statement is stopped. A caller that keeps rows without reading them should
    /// then drop them.
    pub fn stopped(&self) -> impl Future<Output = Error> + Send + 'static {
        Limited::new(self.query.account(), self.query.limits())
    }
}

impl std::fmt::Debug for Rows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rows").field("schema", &self.schema).finish_non_exhaustive()
    }
}

impl Stream for Rows {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.task.is_none() {
            return Poll::Ready(None);
        }
        // Checked before the rows, which may never end.
        if let Some(Poll::Ready(e)) = self.limited.as_mut().map(|limited| Pin::new(limited).poll(cx)) {
            self.fail(&e);
            self.query.cancel();
            (self.task, self.limited) = (None, None);
            return Poll::Ready(Some(Err(e)));
        }
        if let Some(batch) = ready!(self.batches.poll_recv(cx)) {
            self.query.made_rows(batch.num_rows() as u64);
            if let Some(watched) = &self.query.watched {
                watched.answered(&batch);
            }
            return Poll::Ready(Some(Ok(batch)));
        }
        // A closed channel does not tell why: incomplete results must not look complete.
        let Some(task) = &mut self.task else { return Poll::Ready(None) };
        let ended = ready!(Pin::new(&mut task.0).poll(cx)).unwrap_or_else(|e| Err(died(e)));
        (self.task, self.limited) = (None, None);
        let error = ended.err().map(|e| self.query.stopped().unwrap_or_else(|| self.query.explain(e)));
        match &error {
            Some(error) => self.fail(error),
            None => self.query.done(),
        }
        Poll::Ready(error.map(Err))
    }
}

impl Drop for Rows {
    fn drop(&mut self) {
        if self.task.is_some() {
            self.query.cancel();
        }
    }
}

/// Returns the beginning of a long text.
fn shortened(text: &str) -> String {
    match text.len() <= KEPT_TEXT_BYTES {
        true => text.to_string(),
        false => format!("{}...", &text[..text.floor_char_boundary(KEPT_TEXT_BYTES)]),
    }
}

/// Sends batches to a reader. If the statement is stopped while a batch waits for its reader, the
/// operators are dropped at once.
async fn hand_over(
    mut stream: SendableRecordBatchStream,
    batches: mpsc::Sender<RecordBatch>,
    account: Arc<Account>,
) -> Result<()> {
    while let Some(batch) = stream.next().await {
        let sent = tokio::select! {
            biased;
            sent = batches.send(batch?) => sent,
            // The reader gets the error with its next read.
            _ = account.stopped() => break,
        };
        // The reader is gone.
        if sent.is_err() {
            break;
        }
    }
    Ok(())
}

/// A task that is aborted when its handle is dropped.
struct Task<T>(JoinHandle<T>);

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A future that is polled on a stack large enough for deep trees.
struct OnLargeStack<F>(Pin<Box<F>>);

impl<F: Future> Future for OnLargeStack<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let future = &mut self.0;
        stacker::maybe_grow(PLANNING_STACK_BYTES, PLANNING_STACK_BYTES, || future.as_mut().poll(cx))
    }
}

fn died(e: JoinError) -> Error {
    match e.try_into_panic() {
        Ok(panic) => panicked(&*panic),
        Err(_) => Error::new(ErrorKind::Cancelled, "the runtime was shut down"),
    }
}

/// Returns the error of a panic. The session continues: statements share nothing that a panic could
/// leave inconsistent.
pub(crate) fn panicked(panic: &(dyn Any + Send)) -> Error {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    // Tokio's words for a thread that the operating system refuses.
    if let Some(refused) = text.and_then(|text| text.strip_prefix("OS can't spawn worker thread: ")) {
        let message = format!("the system has no more threads for the statement: {refused}");
        return Error::new(ErrorKind::Resources, message).with_hint(
            "lower threads (SET threads = 1), or let this process have more (ulimit -u, ulimit -v, pids.max of its \
             control group)",
        );
    }
    let message = format!("something that must not happen did: {}", text.unwrap_or("a panic"));
    Error::new(ErrorKind::Internal, message).with_hint("please report it, with the statement")
}

#[cfg(test)]
mod tests {
    use super::panicked;
    use crate::ErrorKind;

    #[test]
    fn a_thread_that_the_system_refuses_is_no_bug() {
        let words = "OS can't spawn worker thread: Resource temporarily unavailable (os error 11)".to_string();
        let refused = panicked(&words);
        assert_eq!(refused.kind(), ErrorKind::Resources);
        assert!(
            refused.message().contains("os error 11") && refused.hint().is_some_and(|hint| hint.contains("threads"))
        );
        assert_eq!(panicked(&"a bug").kind(), ErrorKind::Internal);
    }
}
