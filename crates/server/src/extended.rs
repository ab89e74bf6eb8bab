//! The extended protocol: parsed statements, values bound to them, and portals that rows are
//! fetched from.
//!
//! - A statement that has parameters or returns rows is analyzed when it is parsed. The columns
//!   that a client was told are the columns it gets, regardless of the values it binds.
//! - A portal runs when it is first executed. With a row limit it waits for the next `Execute`, and
//!   its query with it. If the query is stopped meanwhile, for example for memory, its rows are
//!   freed at once, and the next `Execute` returns the reason.

use std::collections::HashMap;
use std::future::pending;
use std::sync::Arc;

use futures::future::select_all;
use onehop_engine::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use onehop_engine::{ClientCopy, Described, Error, Output, Prepared, Rows, StatementKind, Value};
use pgwire::messages::PgWireBackendMessage;
use pgwire::messages::data::{NoData, ParameterDescription};
use pgwire::messages::extendedquery::{
    Bind, BindComplete, Close, CloseComplete, Describe, Execute, Parse, ParseComplete, PortalSuspended,
    TARGET_TYPE_BYTE_PORTAL, TARGET_TYPE_BYTE_STATEMENT,
};
use pgwire::messages::response::EmptyQueryResponse;
use tokio::sync::OnceCell;

use crate::client::{Client, Failure, Outcome};
use crate::cursors::{Cursor, Declare};
use crate::decode;
use crate::encode::Format;
use crate::problem::{Problem, code};
use crate::run::{Running, Sent, tag};
use crate::simple::name;
use crate::types;

/// The maximum numbers of parsed statements and of portals of a client.
const MOST_NAMES: usize = 10_000;

/// A parsed statement.
#[derive(Debug)]
pub struct Statement {
    what: What,
    /// The type OIDs of the first parameters, as the client gives them.
    declared: Vec<u32>,
    described: OnceCell<Described>,
}

#[derive(Debug)]
enum What {
    /// Only blanks and comments.
    Empty,
    Copy(ClientCopy),
    Cursor(Cursor),
    /// `DECLARE`, and its query.
    Declare(Declare, Arc<Prepared>),
    Sql(Arc<Prepared>),
}

/// A statement with values, and its progress.
#[derive(Debug)]
pub struct Portal {
    statement: Arc<Statement>,
    values: Vec<Value>,
    /// The formats of the columns: none, one for all, or one for each.
    formats: Vec<Format>,
    state: State,
    made_by: MadeBy,
}

/// The origin of a portal, which determines its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MadeBy {
    Bind,
    Declare {
        is_held: bool,
        /// True if the current transaction declared it.
        is_new: bool,
    },
}

#[derive(Debug)]
enum State {
    Bound,
    Running(Box<Running>),
    /// The query was stopped between two fetches.
    Stopped(Box<Error>),
    Done,
}

impl Statement {
    /// Creates the statement of a cursor's query.
    pub fn of_query(prepared: Arc<Prepared>) -> Self {
        Self { what: What::Sql(prepared), declared: Vec::new(), described: OnceCell::new() }
    }

    /// Returns true if the statement is analyzed before values are bound to it.
    fn is_analyzed(&self) -> bool {
        match &self.what {
            What::Sql(prepared) | What::Declare(_, prepared) => {
                prepared.parameters() > 0
                    || matches!(prepared.kind(), StatementKind::Query | StatementKind::Returning(_))
            }
            What::Empty | What::Copy(_) | What::Cursor(_) => false,
        }
    }

    /// Returns the text, or a keyword for it.
    fn text(&self) -> &str {
        match &self.what {
            What::Empty => "",
            What::Copy(_) => "COPY",
            What::Cursor(_) => "FETCH",
            What::Declare(_, prepared) => prepared.text(),
            What::Sql(prepared) => prepared.text(),
        }
    }
}

impl Portal {
    /// Creates a cursor.
    pub fn of_cursor(statement: Arc<Statement>, values: Vec<Value>, is_held: bool, is_new: bool) -> Self {
        let made_by = MadeBy::Declare { is_held, is_new };
        Self { statement, values, formats: Vec::new(), state: State::Bound, made_by }
    }

    /// Returns true if the portal has a waiting query that needs a place. A held cursor may wait
    /// for long, and needs none.
    pub fn is_running(&self) -> bool {
        matches!(self.state, State::Running(_)) && !self.is_held()
    }

    /// Returns true if the portal outlives its transaction.
    pub fn is_held(&self) -> bool {
        matches!(self.made_by, MadeBy::Declare { is_held: true, .. })
    }

    /// Returns true if the portal continues outside of a transaction.
    pub fn outlives(&self) -> bool {
        self.made_by == MadeBy::Declare { is_held: true, is_new: false }
    }

    /// Returns true if the current transaction declared the portal.
    pub fn is_new(&self) -> bool {
        matches!(self.made_by, MadeBy::Declare { is_new: true, .. })
    }

    /// Marks the portal's transaction as committed.
    pub fn is_committed(&mut self) {
        if let MadeBy::Declare { is_new, .. } = &mut self.made_by {
            *is_new = false;
        }
    }

    /// Returns true if the portal is a cursor.
    pub fn is_cursor(&self) -> bool {
        self.made_by != MadeBy::Bind
    }

    /// Returns the query, while it is running.
    pub fn running(&mut self) -> Option<&mut Running> {
        match &mut self.state {
            State::Running(running) => Some(running),
            State::Bound | State::Stopped(_) | State::Done => None,
        }
    }

    /// Marks the portal as complete.
    pub fn is_over(&mut self) {
        self.state = State::Done;
    }

    /// Stops the query and frees its rows.
    pub fn stop(&mut self, error: Error) {
        self.state = State::Stopped(Box::new(error));
    }

    /// Fails if the query was stopped.
    pub fn refuse_stopped(&mut self) -> Outcome<()> {
        match std::mem::replace(&mut self.state, State::Done) {
            State::Stopped(error) => Err((*error).into()),
            state => {
                self.state = state;
                Ok(())
            }
        }
    }
}

/// Waits until the query of a portal is stopped between two fetches. Returns the portal's name and
/// the reason.
pub async fn stopped(portals: &HashMap<String, Portal>) -> (String, Error) {
    let waiting = portals.iter().filter_map(|(name, portal)| match &portal.state {
        State::Running(running) => {
            let stopped = running.stopped();
            Some(Box::pin(async move { (name.clone(), stopped.await) }))
        }
        State::Bound | State::Stopped(_) | State::Done => None,
    });
    let waiting: Vec<_> = waiting.collect();
    match waiting.is_empty() {
        true => pending().await,
        false => select_all(waiting).await.0,
    }
}

impl Client {
    /// Handles `Parse`.
    pub async fn parse(&mut self, mut parse: Parse) -> Outcome<()> {
        let (text, last) = (std::mem::take(&mut parse.query), self.last_statement());
        let parsed = self.parse_as(&text, parse).await;
        self.noted(&text, last, parsed)
    }

    async fn parse_as(&mut self, text: &str, parse: Parse) -> Outcome<()> {
        let name = parse.name.unwrap_or_default();
        if name.is_empty() {
            self.statements.remove("");
        } else if self.statements.contains_key(&name) {
            let message = format!("prepared statement \"{name}\" already exists");
            return Err(Problem::error(code::DUPLICATE_STATEMENT, message).into());
        }
        refuse_more(self.statements.len(), "prepared statements")?;
        let placed = |e: Error| {
            let place = e.place();
            Problem::from(e).at(place, "", text)
        };
        let what = if onehop_engine::Script::new(text).next().is_none() {
            What::Empty
        } else if let Some(copy) = self.session.client_copy(text).map_err(placed)? {
            What::Copy(copy)
        } else if let Some(cursor) = Cursor::parse(text)? {
            match cursor {
                Cursor::Declare(declare) => {
                    let prepared = Arc::new(self.declared(&declare, text)?);
                    What::Declare(declare, prepared)
                }
                cursor => What::Cursor(cursor),
            }
        } else {
            let prepared = Arc::new(self.parsed(text).await?.map_err(placed)?);
            self.refuse_failed(&prepared)?;
            What::Sql(prepared)
        };
        let statement = Arc::new(Statement { what, declared: parse.type_oids, described: OnceCell::new() });
        // Reports errors of the statement now, as clients expect. Its columns will be asked for, or
        // needed.
        if statement.is_analyzed() {
            self.described(&statement).await?;
        }
        if !onehop_governor::may_keep(text.len() as u64 * 4, self.shared.database.memory_limit_bytes()) {
            let message = "memory_limit is reached by what is kept in memory: no room for another prepared statement";
            return Err(Problem::error(code::OUT_OF_MEMORY, message)
                .with_hint("DEALLOCATE those that are not needed")
                .into());
        }
        self.statements.insert(name, statement);
        self.link.put(PgWireBackendMessage::ParseComplete(ParseComplete::new()));
        Ok(())
    }

    fn statement(&self, name: &str) -> Result<Arc<Statement>, Problem> {
        self.statements.get(name).cloned().ok_or_else(|| {
            let message = match name {
                "" => "unnamed prepared statement does not exist".into(),
                name => format!("prepared statement \"{name}\" does not exist"),
            };
            Problem::error(code::INVALID_STATEMENT_NAME, message)
        })
    }

    /// Returns the parameters and columns of a statement.
    async fn described(&self, statement: &Arc<Statement>) -> Outcome<Described> {
        let prepared = match &statement.what {
            What::Sql(prepared) | What::Declare(_, prepared) => Arc::clone(prepared),
            What::Empty | What::Copy(_) | What::Cursor(_) => {
                return Ok(Described { parameters: Vec::new(), columns: None });
            }
        };
        if let StatementKind::Show(Some(name)) = prepared.kind() {
            return Ok(Described { parameters: Vec::new(), columns: Some(one_text(name)) });
        }
        let described = statement.described.get_or_try_init(|| async {
            let declared: Vec<Option<DataType>> = statement.declared.iter().map(|oid| types::declared(*oid)).collect();
            let session = Arc::clone(&self.session);
            let named = Arc::clone(&prepared);
            let mut described = self.on_workers(async move { session.describe(&prepared, &declared).await }).await?;
            described.columns = described.columns.map(|columns| named.named(&columns));
            Ok::<_, Failure>(described)
        });
        described.await.cloned()
    }

    /// Handles `Bind`.
    pub async fn bind(&mut self, bind: Bind) -> Outcome<()> {
        let statement = self.statement(bind.statement_name.as_deref().unwrap_or_default())?;
        let last = self.last_statement();
        let bound = self.bind_to(Arc::clone(&statement), bind).await;
        self.noted(statement.text(), last, bound)
    }

    async fn bind_to(&mut self, statement: Arc<Statement>, bind: Bind) -> Outcome<()> {
        let (portal, name) = (bind.portal_name.unwrap_or_default(), bind.statement_name.unwrap_or_default());
        if let What::Sql(prepared) = &statement.what {
            self.refuse_failed(prepared)?;
        }
        if portal.is_empty() {
            self.portals.remove("");
        } else if self.portals.contains_key(&portal) {
            return Err(Problem::error(code::DUPLICATE_CURSOR, format!("cursor \"{portal}\" already exists")).into());
        }
        refuse_more(self.portals.len(), "portals")?;
        let takes = match &statement.what {
            What::Sql(prepared) | What::Declare(_, prepared) => prepared.parameters(),
            What::Empty | What::Copy(_) | What::Cursor(_) => 0,
        };
        if takes != bind.parameters.len() {
            let given = bind.parameters.len();
            let message =
                format!("bind message supplies {given} parameters, but prepared statement \"{name}\" requires {takes}");
            return Err(Problem::error(code::PROTOCOL_VIOLATION, message).into());
        }
        let formats = formats(&bind.result_column_format_codes)?;
        let of_parameters = spread(self::formats(&bind.parameter_format_codes)?, takes, "parameters")?;
        let mut values = Vec::with_capacity(takes);
        if takes > 0 {
            let described = self.described(&statement).await?;
            for (at, (bytes, format)) in bind.parameters.iter().zip(of_parameters).enumerate() {
                let oid = oid(&statement, &described, at);
                values.push(decode::value(at + 1, oid, format, bytes.as_deref())?);
            }
        }
        let made_by = MadeBy::Bind;
        self.portals.insert(portal, Portal { statement, values, formats, state: State::Bound, made_by });
        self.link.put(PgWireBackendMessage::BindComplete(BindComplete::new()));
        Ok(())
    }

    /// Handles `Describe`.
    pub async fn describe(&mut self, describe: Describe) -> Outcome<()> {
        let name = describe.name.unwrap_or_default();
        match describe.target_type {
            TARGET_TYPE_BYTE_STATEMENT => {
                let statement = self.statement(&name)?;
                let described = self.told(&statement).await?;
                let count = described.parameters.len();
                let oids = (0..count).map(|at| oid(&statement, &described, at)).collect();
                self.link.put(PgWireBackendMessage::ParameterDescription(ParameterDescription::new(oids)));
                self.put_described(described.columns.as_ref(), &[])
            }
            TARGET_TYPE_BYTE_PORTAL => {
                let portal = self.portals.get(&name).ok_or_else(|| no_portal(&name))?;
                let (statement, formats) = (Arc::clone(&portal.statement), portal.formats.clone());
                let described = self.told(&statement).await?;
                self.put_described(described.columns.as_ref(), &formats)
            }
            other => {
                let message = format!("there is nothing of the kind {other:#04x} to describe");
                Err(Problem::error(code::PROTOCOL_VIOLATION, message).into())
            }
        }
    }

    /// Returns the parameters and columns that a client is told.
    async fn told(&self, statement: &Arc<Statement>) -> Outcome<Described> {
        let last = self.last_statement();
        let described = match &statement.what {
            What::Cursor(Cursor::Fetch(fetch)) if fetch.has_rows() => {
                let columns = self.cursor_columns(&fetch.name).await?;
                return Ok(Described { parameters: Vec::new(), columns: Some(columns) });
            }
            What::Declare(..) => {
                self.described(statement).await.map(|described| Described { columns: None, ..described })
            }
            _ => self.described(statement).await,
        };
        self.noted(statement.text(), last, described)
    }

    /// Returns the columns of a cursor, or of another portal.
    pub async fn cursor_columns(&self, name: &str) -> Outcome<SchemaRef> {
        let portal = self.portals.get(name).ok_or_else(|| no_portal(name))?;
        let described = self.described(&portal.statement).await?;
        described.columns.ok_or_else(|| no_portal(name).into())
    }

    /// Fails if the client has the maximum number of portals.
    pub fn refuse_more_portals(&self) -> Result<(), Problem> {
        refuse_more(self.portals.len(), "portals")
    }

    /// Starts the query of a cursor.
    pub async fn start(&mut self, portal: &mut Portal) -> Outcome<()> {
        let statement = Arc::clone(&portal.statement);
        let (State::Bound, What::Sql(prepared)) = (&portal.state, &statement.what) else { return self.enter().await };
        self.described(&statement).await?;
        if let Output::Rows(rows) = self.run(prepared, std::mem::take(&mut portal.values)).await? {
            let told = told(&statement, prepared, &rows)?;
            let formats = vec![Format::Text; told.fields().len()];
            portal.state = State::Running(Box::new(Running::new(rows, told, formats)));
        }
        Ok(())
    }

    fn put_described(&mut self, columns: Option<&SchemaRef>, formats: &[Format]) -> Outcome<()> {
        match columns {
            Some(schema) => {
                let formats = spread(formats.to_vec(), schema.fields().len(), "columns")?;
                self.put_columns(schema, &formats);
            }
            None => self.link.put(PgWireBackendMessage::NoData(NoData::new())),
        }
        Ok(())
    }

    /// Handles `Execute`.
    pub async fn execute(&mut self, execute: Execute) -> Outcome<()> {
        let name = execute.name.unwrap_or_default();
        let most = u64::try_from(execute.max_rows).ok().filter(|most| *most > 0);
        // A failure removes the portal.
        let mut portal = self.portals.remove(&name).ok_or_else(|| no_portal(&name))?;
        let (is_new, last) = (matches!(portal.state, State::Bound), self.last_statement());
        let fetched = self.fetch(&mut portal, most).await;
        match is_new {
            true => self.noted(portal.statement.text(), last, fetched)?,
            // The engine has reported it since its first execution.
            false => fetched?,
        }
        self.portals.insert(name, portal);
        Ok(())
    }

    async fn fetch(&mut self, portal: &mut Portal, most: Option<u64>) -> Outcome<()> {
        let statement = Arc::clone(&portal.statement);
        let prepared = match &statement.what {
            What::Empty => {
                self.link.put(PgWireBackendMessage::EmptyQueryResponse(EmptyQueryResponse::new()));
                return Ok(());
            }
            What::Copy(copy) => {
                let tag = self.copy(copy).await?;
                self.link.put_tag(tag);
                return Ok(());
            }
            What::Cursor(cursor) => {
                let tag = match cursor {
                    Cursor::Fetch(fetch) => self.fetch_from(fetch, &portal.formats).await?,
                    Cursor::Close(name) => self.close_cursor(name.as_deref())?,
                    Cursor::Declare(_) => return Ok(()),
                };
                portal.state = State::Done;
                self.link.put_tag(tag);
                return Ok(());
            }
            What::Declare(declare, prepared) => {
                let query = Statement {
                    what: What::Sql(Arc::clone(prepared)),
                    declared: statement.declared.clone(),
                    described: statement.described.clone(),
                };
                let tag = self.declare(declare, query, std::mem::take(&mut portal.values)).await?;
                portal.state = State::Done;
                self.link.put_tag(tag);
                return Ok(());
            }
            What::Sql(prepared) => prepared,
        };
        self.refuse_failed(prepared)?;
        if let State::Bound = portal.state {
            let place = self.place(prepared.kind()).await?;
            if self.is_begun(prepared.kind())? {
                portal.state = State::Done;
                self.link.put_tag("BEGIN".into());
                return Ok(());
            }
            self.begin_block(prepared.kind(), place).await?;
            self.warn_of_end(prepared.kind());
            if let StatementKind::Show(Some(name)) = prepared.kind() {
                portal.state = State::Done;
                let formats = spread(portal.formats.clone(), 1, "columns")?;
                let tag = self.show(name, formats.first().copied().unwrap_or(Format::Text))?;
                self.link.put_tag(tag);
                return Ok(());
            }
            match self.run(prepared, std::mem::take(&mut portal.values)).await? {
                Output::Done(done) => {
                    self.notices();
                    self.link.put_tag(tag(done.tag, done.rows));
                    portal.state = State::Done;
                    return Ok(());
                }
                Output::Rows(rows) => {
                    let told = told(&statement, prepared, &rows)?;
                    let formats = spread(portal.formats.clone(), told.fields().len(), "columns")?;
                    portal.state = State::Running(Box::new(Running::new(rows, told, formats)));
                }
            }
        }
        self.fetch_rows(portal, prepared.kind(), most).await
    }

    async fn fetch_rows(&mut self, portal: &mut Portal, kind: &StatementKind, most: Option<u64>) -> Outcome<()> {
        portal.refuse_stopped()?;
        let State::Running(running) = &mut portal.state else {
            if !matches!(kind, StatementKind::Query | StatementKind::Explain | StatementKind::Show(_)) {
                return Err(
                    Problem::error(code::NOT_IN_STATE, "the portal has been run, and cannot be run again").into()
                );
            }
            // The portal was already at its end.
            self.link.put_tag(tag(name(kind), Some(0)));
            return Ok(());
        };
        let before = running.sent;
        match self.send_rows(running, most).await? {
            Sent::Some => self.link.put(PgWireBackendMessage::PortalSuspended(PortalSuspended::new())),
            Sent::All => {
                let rows = running.sent - before;
                portal.state = State::Done;
                self.notices();
                self.link.put_tag(tag(name(kind), Some(rows)));
            }
        }
        Ok(())
    }

    /// Handles `Close`. Closing a missing statement or portal succeeds.
    pub fn close(&mut self, close: &Close) -> Outcome<()> {
        let name = close.name.as_deref().unwrap_or_default();
        match close.target_type {
            TARGET_TYPE_BYTE_STATEMENT => drop(self.statements.remove(name)),
            TARGET_TYPE_BYTE_PORTAL => drop(self.portals.remove(name)),
            other => {
                let message = format!("there is nothing of the kind {other:#04x} to close");
                return Err(Problem::error(code::PROTOCOL_VIOLATION, message).into());
            }
        }
        self.link.put(PgWireBackendMessage::CloseComplete(CloseComplete::new()));
        Ok(())
    }
}

/// Returns the columns that the client knows, if the rows match them.
///
/// Parameter values may change the numeric type of a column, which is still sent as the announced
/// type. Any other difference from the parsed statement is an error: its tables may have been
/// recreated since.
fn told(statement: &Statement, prepared: &Prepared, rows: &Rows) -> Result<SchemaRef, Problem> {
    let columns = prepared.named(rows.schema());
    let Some(told) = statement.described.get().and_then(|described| described.columns.clone()) else {
        return Ok(columns);
    };
    let has_parameters = prepared.parameters() > 0;
    let is_same = |(now, told): (&Arc<Field>, &Arc<Field>)| {
        now.name() == told.name() && (has_parameters || types::is_same(now.data_type(), told.data_type()))
    };
    let are_same =
        columns.fields().len() == told.fields().len() && columns.fields().iter().zip(told.fields()).all(is_same);
    match are_same {
        true => Ok(told),
        false => Err(Problem::error(code::FEATURE_NOT_SUPPORTED, "cached plan must not change result type")
            .with_hint("a table of the statement has changed: prepare it again")),
    }
}

/// Returns the OID of a parameter's type.
fn oid(statement: &Statement, described: &Described, at: usize) -> u32 {
    let declared = statement.declared.get(at).copied().unwrap_or(0);
    types::parameter(declared, described.parameters.get(at).and_then(Option::as_ref))
}

fn formats(codes: &[i16]) -> Result<Vec<Format>, Problem> {
    let format = |code: &i16| {
        let wrong = || Problem::error(code::PROTOCOL_VIOLATION, format!("there is no format {code}"));
        Format::of_code(*code).ok_or_else(wrong)
    };
    codes.iter().map(format).collect()
}

/// Returns one format for each: text if none is given, the single given one for all, or the given
/// ones.
pub fn spread(formats: Vec<Format>, count: usize, what: &str) -> Result<Vec<Format>, Problem> {
    match formats.as_slice() {
        [] => Ok(vec![Format::Text; count]),
        [one] => Ok(vec![*one; count]),
        all if all.len() == count => Ok(formats),
        all => {
            let message = format!("{} formats are given for {count} {what}", all.len());
            Err(Problem::error(code::PROTOCOL_VIOLATION, message))
        }
    }
}

fn no_portal(name: &str) -> Problem {
    Problem::error(code::INVALID_CURSOR_NAME, format!("portal \"{name}\" does not exist"))
}

fn refuse_more(count: usize, what: &str) -> Result<(), Problem> {
    if count < MOST_NAMES {
        return Ok(());
    }
    let message = format!("a connection can have {MOST_NAMES} {what}, and this one has");
    Err(Problem::error(code::LIMIT_EXCEEDED, message).with_hint("close those that are not needed any more"))
}

/// Returns a schema with one string column.
pub fn one_text(name: &str) -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new(name, DataType::Utf8View, true)]))
}
