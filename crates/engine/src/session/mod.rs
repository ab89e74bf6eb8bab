//! The state of one client: its settings, its transaction and the running statement.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::{SessionState, SessionStateBuilder};
use datafusion::prelude::SessionConfig;
use futures::FutureExt;
use onehop_io::rados::ClusterOptions;
use onehop_postgres::Server;

use crate::arrays::Exporting;
use crate::attached::Attached;
use crate::database::Database;
use crate::definition::{self, Definition};
use crate::files::{self, CountingRegistry, Sites};
use crate::fusing::Fusing;
use crate::identifiers::{CATALOG, SCHEMA};
use crate::learn::Learning;
use crate::limits::Limits;
use crate::new_names::check_new_name;
use crate::place::Placing;
use crate::planner::DisabledPasses;
use crate::postgres::parameters::{Shared as Parameters, zone_in_arrow};
use crate::postgres::{self, ClientFacts, Scope};
use crate::prepared::Prepared;
use crate::query::panicked;
use crate::relation::{Relation, Relations};
use crate::resolve::Names as BoundNames;
use crate::rights::Rights;
use crate::runtimes::Runtimes;
use crate::settings::{DISABLE_PASS, Setting, SettingSource, Settings, with_unit};
use crate::snapshot::Snapshot;
use crate::spill::SpillFiles;
use crate::template_cache::TemplateCache;
use crate::temporary::Temporary;
use crate::transaction::Transaction;
use crate::transaction_state::TransactionState;
use crate::{Error, ErrorKind, Query, Result, functions, learn, memory_pool, planner, query_planner};

mod arrays;
mod deadline;

/// A session. Statements of one session run one after the other; sessions run concurrently.
pub struct Session {
    /// Its number among the sessions of the database since it was opened.
    id: u64,
    database: Database,
    /// A running statement keeps the settings that it began with.
    settings: Mutex<Arc<Settings>>,
    /// The planner's state and the runtime. Recreated when a setting that they depend on changes.
    base: Mutex<Base>,
    current: Mutex<Arc<Query>>,
    /// The arrival time of the next statement, if it has not begun yet.
    came: Mutex<Option<Instant>>,
    transaction: Mutex<Option<Transaction>>,
    /// Its own tables, created with the first one.
    temporary: OnceLock<Temporary>,
    /// Prepared statements, by name.
    prepared: Mutex<HashMap<String, Arc<Prepared>>>,
    /// Rows from outside, by name.
    relations: Mutex<Arc<Relations>>,
    attached: Mutex<Arc<Attached>>,
    /// Facts about the connected client.
    client: Mutex<ClientFacts>,
    /// PostgreSQL's parameters.
    parameters: Parameters,
    templates: TemplateCache,
}

struct Base {
    made_for: (usize, u64, PathBuf, String),
    /// What plans are run with.
    state: SessionState,
    /// The same state with names that only a planned statement can mention. It is separate, since
    /// each statement copies its state, name by name.
    planning: SessionState,
}

/// Names for completion and suggestions.
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// Tables and views, sorted.
    pub tables: Vec<String>,
    /// (table, column), in table order.
    pub columns: Vec<(String, String)>,
    /// Scalar, aggregate and window functions, sorted.
    pub functions: Vec<String>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("database", &self.database).finish_non_exhaustive()
    }
}

impl Session {
    pub(crate) fn new(database: Database, settings: Settings) -> Result<Self> {
        let base = Base::new(&settings, database.runtimes())?;
        let id = database.history().new_session();
        Ok(Self {
            id,
            database,
            settings: Mutex::new(Arc::new(settings)),
            base: Mutex::new(base),
            current: Mutex::new(Query::none(id)),
            came: Mutex::default(),
            transaction: Mutex::default(),
            temporary: OnceLock::new(),
            prepared: Mutex::default(),
            relations: Mutex::default(),
            attached: Mutex::default(),
            client: Mutex::default(),
            parameters: Parameters::default(),
            templates: TemplateCache::default(),
        })
    }

    /// Returns the templates of its statements.
    pub(crate) fn templates(&self) -> &TemplateCache {
        &self.templates
    }

    /// Returns the locks of its settings and its transaction.
    pub(crate) fn locks(&self) -> (&Mutex<Arc<Settings>>, &Mutex<Option<Transaction>>) {
        (&self.settings, &self.transaction)
    }

    /// Clears the arrival time of a statement, which begins now.
    pub(crate) fn forget_arrival(&self) {
        self.came.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Refuses changes of anything but temporary tables in a READ ONLY transaction or session.
    ///
    /// # Errors
    /// [`ErrorKind::ReadOnly`].
    pub(crate) fn refuse_if_read_only(&self) -> Result<()> {
        if !self.is_read_only() {
            return Ok(());
        }
        let message = "this transaction is READ ONLY: it changes nothing but temporary tables";
        Err(Error::new(ErrorKind::ReadOnly, message)
            .with_hint("SET TRANSACTION READ WRITE, or SET default_transaction_read_only = off, lets it"))
    }

    /// Returns the snapshot for a statement that begins now, with the session's own tables.
    pub(crate) fn snapshot(&self) -> Arc<Snapshot> {
        let permanent = match self.transaction_slot().as_mut() {
            Some(transaction) => Arc::clone(transaction.look(|| self.database.snapshot())),
            None => self.database.snapshot(),
        };
        match self.temporary() {
            Some(temporary) => temporary.over(&permanent, &temporary.snapshot()),
            None => permanent,
        }
    }

    /// Returns its transaction, locked.
    pub(crate) fn transaction_slot(&self) -> MutexGuard<'_, Option<Transaction>> {
        self.transaction.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns its own tables, if it ever had one.
    pub(crate) fn temporary(&self) -> Option<&Temporary> {
        self.temporary.get()
    }

    /// Returns its own tables, and creates their database if necessary.
    ///
    /// # Errors
    /// Fails if there is no memory for it.
    pub(crate) fn temporary_or_new(&self) -> Result<&Temporary> {
        if let Some(temporary) = self.temporary.get() {
            return Ok(temporary);
        }
        let made = Temporary::new(&self.database, &self.current_settings())?;
        Ok(self.temporary.get_or_init(|| made))
    }

    /// Registers rows from outside as a table of this session, for statements that begin later. The
    /// name is taken literally: statements that do not quote it refer to it in lower case.
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyExists`] if the name is taken; [`ErrorKind::Invalid`] if it is no valid
    /// name.
    pub fn register(&self, name: &str, relation: Relation) -> Result<()> {
        check_new_name(name)?;
        let exists = |what: &str| {
            Error::new(ErrorKind::AlreadyExists, format!("there is a {what} \"{name}\""))
                .with_hint("register the rows under another name")
        };
        let snapshot = self.snapshot();
        if snapshot.table(name).is_some() {
            return Err(exists(if snapshot.is_temporary(name) { "temporary table" } else { "table" }));
        }
        if snapshot.catalog.views.contains_key(name) {
            return Err(exists("view"));
        }
        let mut relations = self.relations.lock().unwrap_or_else(PoisonError::into_inner);
        if relations.contains_key(name) {
            return Err(exists("registered table"));
        }
        Arc::make_mut(&mut relations).insert(name.to_string(), relation);
        Ok(())
    }

    /// Removes a registered relation. Returns whether there was one. Running statements keep it.
    pub fn unregister(&self, name: &str) -> bool {
        let mut relations = self.relations.lock().unwrap_or_else(PoisonError::into_inner);
        relations.contains_key(name) && Arc::make_mut(&mut relations).remove(name).is_some()
    }

    /// Returns the registered relations.
    pub(crate) fn relations(&self) -> Arc<Relations> {
        Arc::clone(&self.relations.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the attached databases of PostgreSQL.
    pub(crate) fn attached(&self) -> Arc<Attached> {
        Arc::clone(&self.attached.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn attach(&self, name: String, server: Arc<Server>) {
        Arc::make_mut(&mut self.attached.lock().unwrap_or_else(PoisonError::into_inner)).insert(name, server);
    }

    /// Detaches a database. Returns whether there was one. Running statements keep it.
    pub(crate) fn detach(&self, name: &str) -> bool {
        let mut attached = self.attached.lock().unwrap_or_else(PoisonError::into_inner);
        attached.contains_key(name) && Arc::make_mut(&mut attached).remove(name).is_some()
    }

    /// Detaches all databases.
    pub(crate) fn detach_all(&self) {
        *self.attached.lock().unwrap_or_else(PoisonError::into_inner) = Arc::default();
    }

    /// Returns its number among the sessions of the database since it was opened.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Checks that it may add rows to a table. The right to read suffices for its own tables.
    ///
    /// # Errors
    /// [`ErrorKind::Denied`]; [`ErrorKind::ReadOnly`] in a read-only transaction.
    pub fn may_add_to(&self, table: &str) -> Result<()> {
        match self.snapshot().is_temporary(table) {
            true => Ok(()),
            false => {
                self.rights().need(Rights::Write, "to change rows")?;
                self.refuse_if_read_only()
            }
        }
    }

    /// Returns its rights.
    pub fn rights(&self) -> Rights {
        self.current_settings().rights()
    }

    /// Returns the state of its transaction.
    pub fn transaction(&self) -> TransactionState {
        match self.transaction_slot().as_ref().map(Transaction::is_failed) {
            None => TransactionState::None,
            Some(false) => TransactionState::Open,
            Some(true) => TransactionState::Failed,
        }
    }

    /// Fails the transaction, if there is one, for an error outside its statements and rows: rows
    /// that could not be delivered, or a statement that was abandoned. The transaction can then
    /// only be ended.
    pub fn fail_transaction(&self) {
        if let Some(transaction) = self.transaction_slot().as_mut() {
            transaction.failed();
        }
    }

    /// Begins a transaction as `BEGIN` does, unless there is one, without a statement. For callers
    /// that run several statements as one.
    pub fn begin(&self) {
        let mut slot = self.transaction_slot();
        slot.get_or_insert_with(|| Transaction::new(self.database.snapshot(), None));
    }

    /// Rolls back its transaction, if there is one, without a statement.
    pub fn roll_back(&self) {
        // The lock of the slot is free before the transaction's resources are released.
        let ended = self.transaction_slot().take();
        drop(self.temporary().and_then(Temporary::end));
        drop(ended);
    }

    /// Returns whether it is in a transaction.
    pub fn in_transaction(&self) -> bool {
        self.transaction_slot().is_some()
    }

    /// Returns the running or last statement: its progress, ledger and times, for progress bars and
    /// footers.
    pub fn query(&self) -> Arc<Query> {
        Arc::clone(&self.current.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Stops the statement that came after `before`, so that it changes nothing more. `before` was
    /// the session's statement until then. Returns `false` if its changes are being committed: it
    /// will succeed soon, and the caller should wait for it.
    pub fn stop_after(&self, before: &Arc<Query>) -> bool {
        let now = self.query();
        // The new statement may not have begun yet.
        Arc::ptr_eq(&now, before) || now.try_stop()
    }

    /// Records the arrival of a statement: its time counts from now. It may wait for a slot, and
    /// has to be parsed, before it begins.
    pub fn statement_came(&self) {
        *self.came.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Waits until a statement that has arrived and not begun is out of time. Returns its error.
    pub async fn out_of_time(&self) -> Error {
        deadline::out_of_time(self).await
    }

    /// Returns the limits of a statement that arrives.
    pub(crate) fn limits(&self) -> Limits {
        let came = *self.came.lock().unwrap_or_else(PoisonError::into_inner);
        Limits::of(&self.current_settings()).since(came)
    }

    /// Waits until the statement after `before` was stopped by a limit and its work has not
    /// returned, since it may compute for long. Returns its error. Must be polled by a thread that
    /// does not compute.
    pub async fn overdue(&self, before: &Arc<Query>) -> Error {
        deadline::overdue(self, before).await
    }

    /// Returns the database.
    pub fn database(&self) -> &Database {
        &self.database
    }

    /// Returns names for completion.
    pub async fn names(&self) -> Names {
        let snapshot = self.snapshot();
        let mut tables: Vec<String> = snapshot.catalog.views.keys().cloned().collect();
        let mut columns = Vec::new();
        for table in snapshot.tables() {
            tables.push(table.name.clone());
            columns.extend(table.entry.columns.iter().map(|column| (table.name.clone(), column.name.clone())));
        }
        tables.sort();
        let base = self.base.lock().unwrap_or_else(PoisonError::into_inner);
        let state = &base.state;
        let all = state
            .scalar_functions()
            .keys()
            .chain(state.aggregate_functions().keys())
            .chain(state.window_functions().keys());
        let mut functions: Vec<String> = all.chain(state.table_functions().keys()).cloned().collect();
        functions.extend(planner::function_names().map(String::from));
        functions.sort();
        functions.dedup();
        Names { tables, columns, functions }
    }

    /// Returns the statements that recreate the tables and views, in an order in which they can
    /// run.
    pub fn definitions(&self) -> Vec<Definition> {
        definition::definitions(&self.database.snapshot().catalog)
    }

    /// Returns all settings with their values.
    pub fn settings(&self) -> Vec<Setting> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner).list()
    }

    /// Returns the options for finding the cluster of `rados://` paths.
    pub fn ceph(&self) -> ClusterOptions {
        self.current_settings().ceph()
    }

    /// Returns the facts about the connected client.
    pub fn client(&self) -> ClientFacts {
        self.client.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets the facts about the connected client.
    pub fn set_client(&self, facts: ClientFacts) {
        *self.client.lock().unwrap_or_else(PoisonError::into_inner) = facts;
    }

    /// Returns the value of a PostgreSQL parameter or of a setting.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if it is neither.
    pub fn parameter(&self, name: &str) -> Result<String> {
        match self.parameters.get(name) {
            Some(_) if name.eq_ignore_ascii_case("transaction_read_only") => {
                Ok(if self.is_read_only() { "on" } else { "off" }.into())
            }
            Some(value) if name.eq_ignore_ascii_case("session_authorization") && value.is_empty() => {
                Ok(self.client().user)
            }
            Some(value) => Ok(value),
            None => Ok(self.current_settings().get(name)?.value),
        }
    }

    /// Returns whether its transaction, or else the session, restricts a statement that begins now
    /// to changes of temporary tables.
    pub(crate) fn is_read_only(&self) -> bool {
        let of_transaction = self.transaction_slot().as_ref().and_then(|transaction| transaction.is_read_only);
        of_transaction.unwrap_or_else(|| self.parameters.get("default_transaction_read_only").as_deref() == Some("on"))
    }

    /// Returns the number of changes of PostgreSQL's parameters. If it is the same, so are they.
    pub fn parameter_changes(&self) -> u64 {
        self.parameters.changes()
    }

    /// Changes a PostgreSQL parameter or a setting, as `SET` does.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if it is neither; [`ErrorKind::Invalid`] if it cannot have this
    /// value.
    pub fn set_parameter(&self, name: &str, value: &str) -> Result<()> {
        match self.parameters.set(name, value)? {
            true => Ok(()),
            false => {
                if name.eq_ignore_ascii_case(DISABLE_PASS) {
                    DisabledPasses::parse(value)?;
                }
                let mut settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
                Arc::make_mut(&mut settings).set(name, &with_unit(name, value), SettingSource::Session)
            }
        }
    }

    /// Returns PostgreSQL's parameters.
    pub(crate) fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Returns the prepared statements by name, locked.
    pub(crate) fn prepared(&self) -> MutexGuard<'_, HashMap<String, Arc<Prepared>>> {
        self.prepared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn current_settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn start_query(&self, text: &str, limits: Limits) -> Arc<Query> {
        let query = self.database.history().start(self.id, text, limits);
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&query);
        query
    }

    /// Returns its time zone, if it differs from UTC.
    pub fn zone(&self) -> Option<String> {
        zone_in_arrow(&self.parameters.get("timezone")?)?
    }

    /// Returns the base state with the parts of one statement: its names, and its ledger for scans
    /// and object stores.
    pub(crate) fn state(&self, query: &Arc<Query>, snapshot: &Arc<Snapshot>) -> Result<SessionState> {
        let settings = self.current_settings();
        let state = self.base_state(&settings, |base| &base.planning)?;
        let runtime = state.runtime_env();
        let registry =
            CountingRegistry::new(Arc::clone(&runtime.object_store_registry), Arc::clone(query.shared_ledger()));
        let runtime =
            RuntimeEnvBuilder::from_runtime_env(runtime).with_object_store_registry(Arc::new(registry)).build_arc()?;
        let mut state = SessionStateBuilder::new_from_existing(state).with_runtime_env(runtime).build();
        if let Some(zone) = self.zone() {
            state.config_mut().options_mut().execution.time_zone = Some(zone);
        }
        let sites = Sites::new(Arc::clone(self.database.connections()), &settings).of_query(query);
        state.config_mut().set_extension(Arc::new(sites));
        let scope = Arc::new(Scope {
            snapshot: Arc::clone(snapshot),
            settings: Settings::clone(&settings),
            client: self.client(),
            parameters: self.parameters.clone(),
            transaction_since: self.transaction_slot().as_ref().map(|transaction| transaction.since),
        });
        postgres::functions::about(&mut state, Arc::clone(&scope));
        let mut state = self.of_statement(state, query, &settings);
        let learning = Learning {
            database: self.database.clone(),
            settings: Settings::clone(&settings),
            catalog: Arc::clone(&snapshot.catalog),
            in_transaction: self.in_transaction(),
        };
        learning.bind(&mut state)?;
        self.exporting(&settings, query, snapshot).bind(&mut state)?;
        if !snapshot.catalog.functions.is_empty() {
            functions::bind(&snapshot.catalog, self.function_host(query, snapshot), &mut state)?;
        }
        Ok(BoundNames::bind(
            state,
            Arc::clone(snapshot),
            Settings::clone(&settings),
            &self.database,
            self.relations(),
            self.attached(),
            scope,
        ))
    }

    /// Returns the state with which a statement exports tables.
    fn exporting(&self, settings: &Settings, query: &Arc<Query>, snapshot: &Arc<Snapshot>) -> Exporting {
        let tables = arrays::CommittedTables { database: self.database.clone(), settings: settings.clone() };
        Exporting {
            tables: Arc::new(tables),
            settings: settings.clone(),
            in_transaction: self.in_transaction(),
            snapshot: Arc::clone(snapshot),
            query: Arc::clone(query),
        }
    }

    /// Returns the host that runs a statement's functions.
    pub(crate) fn function_host(&self, query: &Arc<Query>, snapshot: &Arc<Snapshot>) -> functions::Host {
        let settings = self.current_settings();
        functions::Host {
            helpers: Arc::clone(self.database.helpers()),
            python: settings.functions_python().into(),
            allows_python: settings.functions_allow_python(),
            cuda: self.database.known().devices().and_then(|devices| devices.helper()),
            allows_cuda: settings.functions_allow_cuda(),
            tables: functions::Tables::new(self.exporting(&settings, query, snapshot)),
            query: Arc::clone(query),
        }
    }

    /// Returns a state that suffices for an optimized plan of tables of the database alone, without
    /// names or other files. It takes a small part of the time of `Session::state`.
    pub(crate) fn state_of_known_plan(&self, query: &Arc<Query>) -> Result<SessionState> {
        let settings = self.current_settings();
        let state = self.base_state(&settings, |base| &base.state)?;
        Ok(self.of_statement(state, query, &settings))
    }

    fn base_state(&self, settings: &Settings, which: impl Fn(&Base) -> &SessionState) -> Result<SessionState> {
        let mut base = self.base.lock().unwrap_or_else(PoisonError::into_inner);
        if base.made_for != Base::key(settings) {
            *base = Base::new(settings, self.database.runtimes())?;
        }
        Ok(which(&base).clone())
    }

    /// Adds a statement's ledger, for its scans, and the settings for running it.
    fn of_statement(&self, mut state: SessionState, query: &Arc<Query>, settings: &Settings) -> SessionState {
        state.config_mut().set_extension(Arc::clone(query));
        let cache = Arc::new(self.database.cache().by_path(settings.io_path()));
        let placing = Placing::new(self.database.known(), settings);
        let fusing = Fusing { mode: settings.exec_mode(), cache, fallback: settings.exec_fallback(), placing };
        state.config_mut().set_extension(Arc::new(fusing));
        state.config_mut().set_extension(Arc::new(settings.row_order()));
        // now() and current_date are the same throughout the statement, and fail without this.
        state.mark_start_execution();
        state
    }
}

impl Database {
    /// Creates a session on it.
    pub fn session(&self) -> Result<Session> {
        Session::new(self.clone(), self.settings().clone())
    }

    /// Creates a session on it with limited rights.
    pub fn session_with(&self, rights: Rights) -> Result<Session> {
        Session::new(self.clone(), self.settings().clone().with_rights(rights))
    }
}

/// A statement's work, pinned in place: callers that await it neither move it nor grow by its size.
pub(crate) type Work<'a, T> = Pin<&'a mut (dyn Future<Output = Result<T>> + Send)>;

/// Runs a statement's work within its limits. Records an error in the statement, and cancels the
/// statement if the returned future is dropped.
pub(crate) async fn watched<T>(query: &Arc<Query>, work: Work<'_, T>) -> Result<T> {
    let guard = CancelOnDrop::new(query);
    let work = AssertUnwindSafe(work).catch_unwind();
    let work = work.map(|outcome| outcome.unwrap_or_else(|panic| Err(panicked(&*panic))));
    let outcome = deadline::hold(query, query.scope().future(work)).await;
    let outcome = outcome.map_err(|e| query.explain(e)).inspect_err(|e| query.failed(e));
    if !outcome.as_ref().is_err_and(|e| e.kind() == ErrorKind::Timeout) {
        guard.disarm();
    }
    outcome
}

/// Cancels a statement if it is dropped without being disarmed.
#[derive(Debug)]
pub(crate) struct CancelOnDrop(Option<Arc<Query>>);

impl CancelOnDrop {
    /// Returns a guard of the statement.
    pub fn new(query: &Arc<Query>) -> Self {
        Self(Some(Arc::clone(query)))
    }

    /// Drops the guard without cancelling the statement.
    pub fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        if let Some(query) = &self.0 {
            query.cancel();
        }
    }
}

impl Base {
    fn key(settings: &Settings) -> (usize, u64, PathBuf, String) {
        let disabled = settings.disabled_passes().to_string();
        (settings.threads(), settings.memory_limit_bytes(), settings.temp_directory(), disabled)
    }

    fn new(settings: &Settings, runtimes: &Runtimes) -> Result<Self> {
        planner::check_left_out()?;
        let config = SessionConfig::new()
            .with_target_partitions(settings.threads())
            .with_sort_spill_reservation_bytes(memory_pool::to_merge(settings.memory_limit_bytes(), settings.threads()))
            .with_create_default_catalog_and_schema(false)
            .with_default_catalog_and_schema(CATALOG, SCHEMA)
            .with_extension(Arc::new(SpillFiles::new(settings.temp_directory())));
        let builder = SessionStateBuilder::new().with_runtime_env(runtimes.of(settings)?);
        let disabled = DisabledPasses::parse(settings.disabled_passes())?;
        let builder = query_planner::configure(config, builder, &disabled)?;
        let state = files::json::configure(learn::configure(builder)).build();
        let mut planning = state.clone();
        postgres::functions::register(&mut planning)?;
        Ok(Self { made_for: Self::key(settings), state, planning })
    }
}
