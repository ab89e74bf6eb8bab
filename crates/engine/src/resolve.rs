//! What names mean in a statement: tables and views of one snapshot, relations of the session, system tables, and files by
//! path.
//!
//! Each statement gets a catalog of its own over the snapshot it began with, so that two mentions of a table are the
//! same table. A name that is nothing is an error here, where the other names are at hand to suggest the nearest: also
//! one of several words, which DataFusion would look up in a schema that is not there, and which may be a file's name
//! without its quotes: `FROM sales.csv`.

use std::any::Any;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::information_schema::{INFORMATION_SCHEMA, InformationSchemaProvider};
use datafusion::catalog::{CatalogProvider, CatalogProviderList, SchemaProvider, TableProvider};
use datafusion::common::{DataFusionError, Result as DataFusionResult};
use datafusion::datasource::{MemTable, ViewTable};
use datafusion::execution::SessionState;
use datafusion::logical_expr::TableType;
use datafusion::sql::sqlparser::tokenizer::Token;
use onehop_segment::BlockCache;

use crate::attached::{self, Attached, AttachedCatalog};
use crate::catalog::CatalogStore;
use crate::database::Database;
use crate::files::functions::FileCall;
use crate::history::History;
use crate::identifiers::{CATALOG, SCHEMA, SYSTEM_TABLES, TARGET};
use crate::place::Known;
use crate::planner::OtherLetters;
use crate::postgres::{self, Scope, catalogs, information_schema};
use crate::query::Query;
use crate::relation::Relations;
use crate::runtimes::Runtimes;
use crate::scan::SegmentTable;
use crate::settings::Settings;
use crate::snapshot::{Snapshot, Table};
use crate::system::{self, System};
use crate::{Error, ErrorKind, files, planner};

/// What [`TARGET`] is.
#[derive(Clone, Debug)]
pub(crate) enum TargetRows {
    /// Rows of a table, with their addresses.
    Table(Arc<Table>),
    /// Rows in memory.
    Memory(Arc<MemTable>),
}

/// Views may stand on views so deep, and no deeper.
const MAX_VIEW_DEPTH: usize = 32;

/// The names of one statement: catalog list, catalog and schema in one, for there is one of each.
#[derive(Clone)]
pub(crate) struct Names {
    snapshot: Arc<Snapshot>,
    settings: Settings,
    history: Arc<History>,
    known: Arc<Known>,
    store: Arc<dyn CatalogStore>,
    cache: Arc<BlockCache>,
    runtimes: Arc<Runtimes>,
    relations: Arc<Relations>,
    attached: Arc<Attached>,
    /// For PostgreSQL's catalogs.
    scope: Arc<Scope>,
    /// To plan views and open files with. Its own catalog is not used.
    state: SessionState,
    depth: usize,
    target: Option<TargetRows>,
    /// They are listed: what cannot be opened is left out.
    is_list: bool,
    /// Files that were opened: every mention of one is of the same table.
    opened: Opened<String>,
    /// Views that were planned, by whether a view names them, which sees permanent tables alone. A statement's names are looked
    /// up more than once; so many times again each view would plan those that it stands on.
    views: Opened<(bool, String)>,
}

type Opened<K> = Arc<Mutex<HashMap<K, Arc<dyn TableProvider>>>>;

impl std::fmt::Debug for Names {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Names").field("generation", &self.snapshot.catalog.generation).finish_non_exhaustive()
    }
}

impl Names {
    /// A state that resolves names in `snapshot`.
    pub fn bind(
        mut state: SessionState,
        snapshot: Arc<Snapshot>,
        settings: Settings,
        database: &Database,
        relations: Arc<Relations>,
        attached: Arc<Attached>,
        scope: Arc<Scope>,
    ) -> SessionState {
        let names = Self {
            snapshot,
            settings,
            history: Arc::clone(database.history()),
            known: Arc::clone(database.known()),
            store: Arc::clone(database.store()),
            cache: Arc::clone(database.cache()),
            runtimes: Arc::clone(database.runtimes()),
            relations,
            attached,
            scope,
            state: state.clone(),
            depth: 0,
            target: None,
            is_list: false,
            opened: Arc::default(),
            views: Arc::default(),
        };
        names.register(&mut state);
        state
    }

    /// A state like `state`, which [`bind`](Self::bind) made, that resolves names in another snapshot, and [`TARGET`].
    pub fn rebind(state: &SessionState, snapshot: &Arc<Snapshot>, target: TargetRows) -> SessionState {
        let mut state = state.clone();
        let list: &dyn Any = state.catalog_list().as_ref();
        let bound = list.downcast_ref::<List>().map(|list| Arc::clone(&list.0));
        if let Some(names) = bound {
            let (snapshot, target) = (Arc::clone(snapshot), Some(target));
            let names = Self { snapshot, depth: 0, target, views: Arc::default(), ..Self::clone(&names) };
            names.register(&mut state);
        }
        state
    }

    /// A state like `state`, which [`bind`](Self::bind) made, to which names mean what they mean to all sessions.
    pub fn of_database(state: &SessionState) -> SessionState {
        let mut state = state.clone();
        let list: &dyn Any = state.catalog_list().as_ref();
        let bound = list.downcast_ref::<List>().map(|list| Arc::clone(&list.0));
        if let Some(names) = bound {
            names.of_all().register(&mut state);
        }
        state
    }

    /// Has a state resolve names by these.
    fn register(self, state: &mut SessionState) {
        let names = Arc::new(self);
        state.register_catalog_list(Arc::new(List(Arc::clone(&names))));
        let letters = OtherLetters(Box::new(move |name| names.in_other_letters(name)));
        state.config_mut().set_extension(Arc::new(letters));
    }

    /// The names of tables, views and relations that are this one in other letters.
    fn in_other_letters(&self, name: &str) -> Vec<String> {
        let catalog = &self.snapshot.catalog;
        let all = catalog.tables.keys().chain(catalog.views.keys()).chain(self.relations.keys());
        all.filter(|other| other.to_lowercase() == name).cloned().collect()
    }

    /// What all sessions have names for.
    fn of_all(&self) -> Self {
        let (relations, attached) = (Arc::default(), Arc::default());
        Self { snapshot: self.snapshot.permanent(), relations, attached, ..self.clone() }
    }

    async fn view(&self, name: &str, text: &str) -> crate::Result<Arc<dyn TableProvider>> {
        if self.depth >= MAX_VIEW_DEPTH {
            let message = format!("view \"{name}\" stands on too many other views, or on itself");
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let key = (self.depth > 0, name.to_string());
        let views = || self.views.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(view) = views().get(&key) {
            return Ok(Arc::clone(view));
        }
        let below = Self { depth: self.depth + 1, target: None, ..self.of_all() };
        let mut state = self.state.clone();
        below.register(&mut state);
        let plan = planner::plan_text(&state, text).await.map_err(|e| {
            let inner = Error::from(e);
            let error = Error::new(inner.kind(), format!("view \"{name}\" no longer works: {}", inner.message()));
            match inner.hint() {
                Some(hint) => error.with_hint(hint),
                None => error,
            }
        })?;
        let view: Arc<dyn TableProvider> = Arc::new(ViewTable::new(plan, Some(text.to_string())));
        views().insert(key, Arc::clone(&view));
        Ok(view)
    }

    async fn find(&self, name: &str) -> crate::Result<Arc<dyn TableProvider>> {
        if let Some(relation) = self.relations.get(name) {
            return match self.is_in_catalog(name) {
                true => Err(is_both(name)),
                false => relation.table(name),
            };
        }
        if let Some(table) = self.snapshot.table(name) {
            self.snapshot.only_once(name)?;
            return Ok(Arc::new(SegmentTable::new(Arc::clone(table))));
        }
        if let (TARGET, Some(target)) = (name, &self.target) {
            return Ok(match target {
                TargetRows::Table(table) => Arc::new(SegmentTable::with_addresses(Arc::clone(table))),
                TargetRows::Memory(rows) => Arc::clone(rows) as Arc<dyn TableProvider>,
            });
        }
        if let Some(text) = self.snapshot.catalog.views.get(name) {
            return Box::pin(self.view(name, text)).await;
        }
        let Self { snapshot, settings, history, known, store, cache, runtimes, attached, .. } = self;
        let system = System { snapshot, settings, history, known, store: &**store, cache, runtimes, attached };
        if let Some(table) = system::table(name, &system)? {
            return Ok(table);
        }
        if let Some(table) = self.postgres_catalog(name).await? {
            return Ok(table);
        }
        let call = FileCall::of_name(name);
        if call.is_some() || files::is_path(name) {
            return self.file(name, call).await;
        }
        let catalog = &self.snapshot.catalog;
        let names = catalog.tables.keys().chain(catalog.views.keys()).chain(self.relations.keys()).map(String::as_str);
        Err(Error::unknown_table(name, names.chain(SYSTEM_TABLES.iter().copied())))
    }

    /// A file, by its path or by a call that reads it.
    async fn file(&self, name: &str, call: Option<FileCall>) -> crate::Result<Arc<dyn TableProvider>> {
        let opened = || self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(table) = opened().get(name) {
            return Ok(Arc::clone(table));
        }
        let table = match call {
            Some(call) => call.open(&self.state).await?,
            None => files::open(&self.state, name).await?,
        };
        opened().insert(name.to_string(), Arc::clone(&table));
        Ok(table)
    }

    /// One of PostgreSQL's catalogs.
    async fn postgres_catalog(&self, name: &str) -> crate::Result<Option<Arc<dyn TableProvider>>> {
        if catalogs::schema(name).is_none() {
            return Ok(None);
        }
        let views = self.columns_of_views(name).await;
        let Some(batch) = catalogs::table(name, &self.scope, &views)? else { return Ok(None) };
        Ok(Some(Arc::new(MemTable::try_new(batch.schema(), vec![vec![batch]])?)))
    }

    /// The columns of views, if a catalog is about those.
    async fn columns_of_views(&self, catalog: &str) -> BTreeMap<String, SchemaRef> {
        let mut views = BTreeMap::new();
        if catalogs::is_about_columns(catalog) {
            for (view, text) in &self.snapshot.catalog.views {
                // One that no longer works has no columns.
                if let Ok(table) = Box::pin(self.view(view, text)).await {
                    views.insert(view.clone(), table.schema());
                }
            }
        }
        views
    }

    /// What three-part names begin with: the catalog's own name, or what the client calls the database that it is connected to.
    fn is_here(&self, catalog: &str) -> bool {
        catalog == CATALOG || catalog == self.scope.client.database
    }

    /// An attached database.
    fn attached(&self, name: &str) -> Option<AttachedCatalog> {
        let server = Arc::clone(self.attached.get(name)?);
        Some(AttachedCatalog { server, query: self.state.config().get_extension::<Query>() })
    }

    fn is_in_catalog(&self, name: &str) -> bool {
        let catalog = &self.snapshot.catalog;
        catalog.tables.contains_key(name) || catalog.views.contains_key(name)
    }
}

#[derive(Debug)]
struct List(Arc<Names>);

#[derive(Debug)]
struct Catalog(Arc<Names>);

#[derive(Debug)]
struct Schema(Arc<Names>);

impl CatalogProviderList for List {
    fn register_catalog(&self, _name: String, _catalog: Arc<dyn CatalogProvider>) -> Option<Arc<dyn CatalogProvider>> {
        None
    }

    fn catalog_names(&self) -> Vec<String> {
        vec![self.0.scope.client.database.clone()]
    }

    fn catalog(&self, name: &str) -> Option<Arc<dyn CatalogProvider>> {
        Some(match name {
            here if self.0.is_here(here) => Arc::new(Catalog(Arc::clone(&self.0))),
            attached if let Some(attached) = self.0.attached(attached) => Arc::new(attached),
            other => Arc::new(Elsewhere(other.to_string())),
        })
    }
}

impl CatalogProvider for Catalog {
    fn schema_names(&self) -> Vec<String> {
        vec![SCHEMA.into()]
    }

    fn schema(&self, name: &str) -> Option<Arc<dyn SchemaProvider>> {
        Some(match name {
            SCHEMA => Arc::new(Schema(Arc::clone(&self.0))),
            INFORMATION_SCHEMA => {
                let names = Names { is_list: true, ..Names::clone(&self.0) };
                let list = Arc::new(List(Arc::new(names)));
                let functions = self.0.state.table_functions().clone();
                let others = InformationSchemaProvider::new(list).with_table_functions(functions);
                Arc::new(OfInformationSchema { names: Arc::clone(&self.0), others })
            }
            postgres::SCHEMA => Arc::new(OfPostgres(Arc::clone(&self.0))),
            attached if let Some(attached) = self.0.attached(attached) => attached.schema_named(attached::SCHEMA),
            other => Arc::new(Elsewhere(other.to_string())),
        })
    }
}

#[async_trait]
impl SchemaProvider for Schema {
    fn table_names(&self) -> Vec<String> {
        let catalog = &self.0.snapshot.catalog;
        catalog.tables.keys().chain(catalog.views.keys()).cloned().collect()
    }

    async fn table(&self, name: &str) -> DataFusionResult<Option<Arc<dyn TableProvider>>> {
        // The planner asks for table functions too, before it looks among the functions.
        if self.0.state.table_functions().contains_key(name) && !self.table_exist(name) {
            return Ok(None);
        }
        match self.0.find(name).await {
            // A view over what is gone.
            Err(_) if self.0.is_list => Ok(None),
            found => found.map(Some).map_err(DataFusionError::from),
        }
    }

    /// Without planning views, some of which may not work any more.
    async fn table_type(&self, name: &str) -> DataFusionResult<Option<TableType>> {
        let snapshot = &self.0.snapshot;
        Ok(match (snapshot.is_temporary(name), snapshot.catalog.views.contains_key(name)) {
            (true, _) => Some(TableType::Temporary),
            (false, true) => Some(TableType::View),
            (false, false) => self.table_exist(name).then_some(TableType::Base),
        })
    }

    fn table_exist(&self, name: &str) -> bool {
        self.0.is_in_catalog(name) || self.0.relations.contains_key(name)
    }
}

/// `pg_catalog`: PostgreSQL's catalogs, and our system tables.
#[derive(Debug)]
struct OfPostgres(Arc<Names>);

#[async_trait]
impl SchemaProvider for OfPostgres {
    fn table_names(&self) -> Vec<String> {
        catalogs::names().map(|(_, name)| name.to_string()).collect()
    }

    async fn table(&self, name: &str) -> DataFusionResult<Option<Arc<dyn TableProvider>>> {
        if let Some(table) = self.0.postgres_catalog(name).await? {
            return Ok(Some(table));
        }
        if SYSTEM_TABLES.contains(&name) {
            return self.0.find(name).await.map(Some).map_err(DataFusionError::from);
        }
        Err(Error::unknown_table(name, catalogs::names().map(|(_, name)| name)).into())
    }

    fn table_exist(&self, name: &str) -> bool {
        catalogs::schema(name).is_some() || SYSTEM_TABLES.contains(&name)
    }
}

/// `information_schema`: PostgreSQL's, and what only DataFusion's has.
#[derive(Debug)]
struct OfInformationSchema {
    names: Arc<Names>,
    others: InformationSchemaProvider,
}

#[async_trait]
impl SchemaProvider for OfInformationSchema {
    fn table_names(&self) -> Vec<String> {
        let others = self.others.table_names().into_iter().filter(|name| !information_schema::has(name));
        information_schema::names().map(String::from).chain(others).collect()
    }

    async fn table(&self, name: &str) -> DataFusionResult<Option<Arc<dyn TableProvider>>> {
        if !information_schema::has(name) {
            return self.others.table(name).await;
        }
        let views = self.names.columns_of_views(name).await;
        let Some(batch) = information_schema::table(name, &self.names.scope, &views)? else { return Ok(None) };
        Ok(Some(Arc::new(MemTable::try_new(batch.schema(), vec![vec![batch]])?)))
    }

    fn table_exist(&self, name: &str) -> bool {
        information_schema::has(name) || self.others.table_exist(name)
    }
}

/// A catalog or a schema that is not there: all it has is what to say about a name in it.
#[derive(Debug)]
struct Elsewhere(String);

impl CatalogProvider for Elsewhere {
    fn schema_names(&self) -> Vec<String> {
        Vec::new()
    }

    fn schema(&self, name: &str) -> Option<Arc<dyn SchemaProvider>> {
        Some(Arc::new(Self(format!("{}.{name}", self.0))))
    }
}

#[async_trait]
impl SchemaProvider for Elsewhere {
    fn table_names(&self) -> Vec<String> {
        Vec::new()
    }

    async fn table(&self, name: &str) -> DataFusionResult<Option<Arc<dyn TableProvider>>> {
        Err(no_schema(&format!("{}.{name}", self.0)).into())
    }

    fn table_exist(&self, _name: &str) -> bool {
        false
    }
}

/// A table was made of a relation's name, by another session most likely.
fn is_both(name: &str) -> Error {
    let message = format!("\"{name}\" is a table of the database, and registered by this session as well");
    Error::new(ErrorKind::Invalid, message).with_hint("unregister it, and register the rows under another name")
}

/// A statement in which `demo.public.t` is `onehop.public.t`, where `demo` is what the client calls the database.
pub(crate) fn named_here<'a>(statement: &'a str, database: &str) -> Cow<'a, str> {
    if database == CATALOG || !statement.contains(database) {
        return Cow::Borrowed(statement);
    }
    // What is no SQL is an error of whatever parses it.
    let Ok(mut tokens) = planner::tokens(statement) else { return Cow::Borrowed(statement) };
    let mut found = Vec::new();
    for (at, four) in tokens.windows(4).enumerate() {
        let [catalog, first, schema, second] = four else { continue };
        let (catalog, schema) = (&catalog.token, &schema.token);
        if first.token != Token::Period || second.token != Token::Period {
            continue;
        }
        let is_schema = [SCHEMA, postgres::SCHEMA, INFORMATION_SCHEMA].iter().any(|name| is_word(schema, name));
        if is_schema && is_word(catalog, database) {
            found.push(at);
        }
    }
    if found.is_empty() {
        return Cow::Borrowed(statement);
    }
    for at in found {
        tokens[at].token = Token::make_word(CATALOG, None);
    }
    Cow::Owned(tokens.iter().map(|token| token.token.to_string()).collect())
}

/// Whether a token is a name; unquoted letters are small.
fn is_word(token: &Token, name: &str) -> bool {
    match token {
        Token::Word(word) if word.quote_style.is_some() => word.value == name,
        Token::Word(word) => word.value.to_lowercase() == name,
        _ => false,
    }
}

/// A name of several words that stand for nothing.
pub(crate) fn no_schema(name: &str) -> Error {
    let error = Error::new(ErrorKind::NotFound, format!("there is no schema for the name {name}"));
    if files::is_path(name) || std::path::Path::new(name).exists() {
        return error.with_hint(format!("the name of a file is written in quotes: FROM '{name}'"));
    }
    error.with_hint(format!(
        "there is one catalog, {CATALOG}, with one schema, {SCHEMA}; tables of an attached database can be read by queries, \
         and nothing else"
    ))
}

#[cfg(test)]
mod tests {
    use super::named_here;

    #[test]
    fn the_clients_name_of_the_database_is_the_catalogs() {
        for (statement, expected) in [
            ("SELECT * FROM demo.public.t", "SELECT * FROM onehop.public.t"),
            ("CREATE TABLE \"demo\".\"public\".\"z 1\" (a int)", "CREATE TABLE onehop.\"public\".\"z 1\" (a int)"),
            ("SELECT 'demo.public.t'", "SELECT 'demo.public.t'"),
            ("SELECT * FROM other.public.t", "SELECT * FROM other.public.t"),
            ("SELECT demo.x FROM demo", "SELECT demo.x FROM demo"),
            ("SELECT 'demo", "SELECT 'demo"),
        ] {
            assert_eq!(named_here(statement, "demo"), expected);
        }
    }
}
