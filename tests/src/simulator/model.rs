//! The model: the expected answers of a database, implemented without the engine.
//!
//! 1. A [`State`] is everything committed: tables, which are multisets of rows, and views. A table
//!    has an *incarnation*, which changes when it is dropped and created again, and a *version*,
//!    which changes with every change.
//! 2. A transaction sees the state as of its first statement (`begun`), with its own [`Step`]s on
//!    top of it. From its first change on it is the only writer.
//! 3. A step that adds rows needs the incarnation that the transaction began with. One that removes
//!    rows needs the version. Otherwise it fails, and its transaction with it.
//! 4. A commit applies the steps to the state that is committed by then.
//!
//! [`Model::run`] returns the expected result of a statement, and updates the committed state.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use onehop_engine::ErrorKind;

/// `id BIGINT NOT NULL, v BIGINT, s VARCHAR`
pub type Row = (i64, Option<i64>, Option<String>);

/// Rows with their multiplicities.
pub type Rows = BTreeMap<Row, u32>;

/// The clauses of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// No clauses.
    Plain,
    /// Two partitions by a hash of `id`.
    Partitioned,
    /// Sorted by `id`.
    Clustered,
}

/// A table.
#[derive(Clone, Debug)]
pub struct Table {
    incarnation: u64,
    version: u64,
    /// Its clauses.
    pub shape: Shape,
    /// Its rows.
    pub rows: Rows,
}

impl Table {
    /// Returns the number of rows, duplicates included.
    pub fn count(&self) -> u64 {
        self.rows.values().map(|count| u64::from(*count)).sum()
    }
}

/// Everything committed, or everything that a transaction sees.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// The tables by name.
    pub tables: BTreeMap<String, Arc<Table>>,
    /// The tables of views, by the names of the views.
    pub views: BTreeMap<String, String>,
}

/// Compares contents, independent of versions.
impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        type Named<'a> = (&'a String, &'a Arc<Table>);
        let is_same = |(a, b): (Named<'_>, Named<'_>)| a.0 == b.0 && (Arc::ptr_eq(a.1, b.1) || a.1.rows == b.1.rows);
        self.views == other.views
            && self.tables.len() == other.tables.len()
            && self.tables.iter().zip(&other.tables).all(is_same)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, table) in &self.tables {
            let ids: Vec<String> = table
                .rows
                .iter()
                .take(60)
                .map(|((id, v, _), count)| {
                    let v = v.map_or("-".to_string(), |v| v.to_string());
                    if *count == 1 { format!("{id}:{v}") } else { format!("{id}:{v}*{count}") }
                })
                .collect();
            let more = if table.rows.len() > 60 { " ..." } else { "" };
            writeln!(f, "  {name}: {} rows {{{}{more}}}", table.count(), ids.join(" "))?;
        }
        for (name, table) in &self.views {
            writeln!(f, "  view {name} of {table}")?;
        }
        Ok(())
    }
}

/// A statement of a session. Its text documents its parts.
#[derive(Clone, Debug)]
pub enum Statement {
    Begin {
        is_immediate: bool,
    },
    Commit,
    Rollback,
    Savepoint(&'static str),
    Release(&'static str),
    RollbackTo(&'static str),
    /// Inserts literal rows.
    Insert {
        table: String,
        rows: Vec<Row>,
    },
    /// Inserts rows `first ..` from a query.
    InsertMany {
        table: String,
        first: i64,
        count: i64,
    },
    /// Inserts rows of another table, with other ids.
    InsertFrom {
        table: String,
        source: String,
        add: i64,
    },
    /// `SET v = id + add WHERE id % modulus = rest`
    Update {
        table: String,
        modulus: i64,
        rest: i64,
        add: i64,
    },
    /// `WHERE id % modulus = rest`
    Delete {
        table: String,
        modulus: i64,
        rest: i64,
    },
    DeleteAll {
        table: String,
    },
    Truncate {
        tables: Vec<String>,
    },
    Create {
        table: String,
        shape: Shape,
    },
    /// Creates a table of rows `first ..` from a query.
    CreateAs {
        table: String,
        shape: Shape,
        replaces: bool,
        first: i64,
        count: i64,
    },
    Drop {
        tables: Vec<String>,
    },
    CreateView {
        view: String,
        table: String,
        replaces: bool,
    },
    DropView {
        view: String,
    },
    Checkpoint {
        table: Option<String>,
    },
    /// Returns all rows of a table.
    Select {
        table: String,
    },
    /// Returns the number of rows, and the sum of their ids.
    Count {
        table: String,
    },
}

/// Returns the rows that a statement's query makes.
fn made(first: i64, count: i64) -> impl Iterator<Item = Row> {
    (first..first + count).map(|id| (id, (id % 5 != 0).then_some(id % 7), Some(format!("s{}", id % 3))))
}

/// Returns the query that makes [`made`].
fn making(first: i64, count: i64) -> String {
    format!(
        "SELECT n AS id, CASE WHEN n % 5 <> 0 THEN n % 7 END AS v, 's' || (n % 3) AS s \
         FROM (SELECT unnest(range({first}, {})) AS n)",
        first + count
    )
}

fn clauses(shape: Shape) -> &'static str {
    match shape {
        Shape::Plain => "",
        Shape::Partitioned => " PARTITION BY HASH (id) PARTITIONS 2",
        Shape::Clustered => " CLUSTER BY (id)",
    }
}

fn literal(row: &Row) -> String {
    let (id, v, s) = row;
    let v = v.map_or("NULL".to_string(), |v| v.to_string());
    let s = s.as_ref().map_or("NULL".to_string(), |s| format!("'{s}'"));
    format!("({id}, {v}, {s})")
}

impl fmt::Display for Statement {
    /// Formats the statement as SQL.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Begin { is_immediate: true } => write!(f, "BEGIN IMMEDIATE"),
            Self::Begin { is_immediate: false } => write!(f, "BEGIN"),
            Self::Commit => write!(f, "COMMIT"),
            Self::Rollback => write!(f, "ROLLBACK"),
            Self::Savepoint(name) => write!(f, "SAVEPOINT {name}"),
            Self::Release(name) => write!(f, "RELEASE {name}"),
            Self::RollbackTo(name) => write!(f, "ROLLBACK TO {name}"),
            Self::Insert { table, rows } => {
                write!(f, "INSERT INTO {table} VALUES {}", rows.iter().map(literal).collect::<Vec<_>>().join(", "))
            }
            Self::InsertMany { table, first, count } => write!(f, "INSERT INTO {table} {}", making(*first, *count)),
            Self::InsertFrom { table, source, add } => {
                write!(f, "INSERT INTO {table} SELECT id + {add}, v, s FROM {source}")
            }
            Self::Update { table, modulus, rest, add } => {
                write!(f, "UPDATE {table} SET v = id + {add} WHERE id % {modulus} = {rest}")
            }
            Self::Delete { table, modulus, rest } => write!(f, "DELETE FROM {table} WHERE id % {modulus} = {rest}"),
            Self::DeleteAll { table } => write!(f, "DELETE FROM {table}"),
            Self::Truncate { tables } => write!(f, "TRUNCATE {}", tables.join(", ")),
            Self::Create { table, shape } => {
                write!(f, "CREATE TABLE {table} (id BIGINT NOT NULL, v BIGINT, s VARCHAR){}", clauses(*shape))
            }
            Self::CreateAs { table, shape, replaces, first, count } => {
                let or_replace = if *replaces { "OR REPLACE " } else { "" };
                write!(f, "CREATE {or_replace}TABLE {table}{} AS {}", clauses(*shape), making(*first, *count))
            }
            Self::Drop { tables } => write!(f, "DROP TABLE {}", tables.join(", ")),
            Self::CreateView { view, table, replaces } => {
                let or_replace = if *replaces { "OR REPLACE " } else { "" };
                write!(f, "CREATE {or_replace}VIEW {view} AS SELECT id, s FROM {table}")
            }
            Self::DropView { view } => write!(f, "DROP VIEW {view}"),
            Self::Checkpoint { table: None } => write!(f, "CHECKPOINT"),
            Self::Checkpoint { table: Some(table) } => write!(f, "CHECKPOINT {table}"),
            Self::Select { table } => write!(f, "SELECT id, v, s FROM {table}"),
            Self::Count { table } => write!(f, "SELECT count(*), sum(id) FROM {table}"),
        }
    }
}

/// The result of a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Completion, with the number of rows if the statement reports one.
    Done(Option<u64>),
    /// These rows.
    Rows(Rows),
    /// This count and this sum.
    Count(u64, Option<i64>),
    /// An error of one of these kinds.
    Error(Vec<ErrorKind>),
}

/// A step of a transaction.
#[derive(Clone, Debug)]
enum Step {
    Add { table: String, rows: Arc<Rows> },
    Remove { table: String, rows: Arc<Rows> },
    Put { table: String, is_new: bool, made: Arc<Table> },
    Drop { table: String },
    PutView { view: String, table: String, is_new: bool },
    DropView { view: String },
}

#[derive(Clone, Debug)]
struct Transaction {
    begun: State,
    view: State,
    steps: Vec<Step>,
    savepoints: Vec<(&'static str, State, Vec<Step>)>,
    is_untouched: bool,
    is_failed: bool,
    /// True if it failed, and it is unknown if it is the writer.
    is_unclear: bool,
}

impl Transaction {
    fn failed(&mut self, statement: &Statement, is_writer: bool) {
        // A statement that changes something detects some errors before it waits for the writer's
        // place.
        let reads = matches!(statement, Statement::Select { .. } | Statement::Count { .. });
        self.is_unclear |= !self.is_failed && !is_writer && !reads;
        self.is_failed = true;
    }
}

/// The database, and the sessions on it.
#[derive(Clone, Debug)]
pub struct Model {
    /// The committed state.
    pub committed: State,
    sessions: Vec<Option<Transaction>>,
    /// The session whose transaction is the only writer.
    writer: Option<usize>,
    last_version: u64,
}

type Kinds = Vec<ErrorKind>;

fn kind<T>(kind: ErrorKind) -> Result<T, Kinds> {
    Err(vec![kind])
}

impl State {
    fn apply(&mut self, step: &Step, version: u64) -> Result<(), Kinds> {
        match step {
            Step::Add { table, rows } => {
                let table = self.changed(table, version)?;
                rows.iter().for_each(|(row, count)| *table.rows.entry(row.clone()).or_default() += count);
            }
            Step::Remove { table, rows } => {
                let table = self.changed(table, version)?;
                for (row, count) in rows.iter() {
                    let left = table.rows.get(row).copied().unwrap_or(0).saturating_sub(*count);
                    match left {
                        0 => drop(table.rows.remove(row)),
                        left => drop(table.rows.insert(row.clone(), left)),
                    }
                }
            }
            Step::Put { table, is_new, made } => {
                if self.views.contains_key(table) || (*is_new && self.tables.contains_key(table)) {
                    return kind(ErrorKind::AlreadyExists);
                }
                self.tables.insert(table.clone(), Arc::clone(made));
            }
            Step::Drop { table } => match self.tables.remove(table) {
                Some(_) => {}
                None if self.views.contains_key(table) => return kind(ErrorKind::Invalid),
                None => return kind(ErrorKind::NotFound),
            },
            Step::PutView { view, table, is_new } => {
                if self.tables.contains_key(view) || (*is_new && self.views.contains_key(view)) {
                    return kind(ErrorKind::AlreadyExists);
                }
                self.views.insert(view.clone(), table.clone());
            }
            Step::DropView { view } => match self.views.remove(view) {
                Some(_) => {}
                None if self.tables.contains_key(view) => return kind(ErrorKind::Invalid),
                None => return kind(ErrorKind::NotFound),
            },
        }
        Ok(())
    }

    fn changed(&mut self, table: &str, version: u64) -> Result<&mut Table, Kinds> {
        let Some(table) = self.tables.get_mut(table) else { return kind(ErrorKind::NotFound) };
        let table = Arc::make_mut(table);
        table.version = version;
        Ok(table)
    }

    fn table(&self, name: &str) -> Result<&Arc<Table>, Kinds> {
        match self.tables.get(name) {
            Some(table) => Ok(table),
            None if self.views.contains_key(name) => kind(ErrorKind::Invalid),
            None => kind(ErrorKind::NotFound),
        }
    }
}

impl Model {
    /// Creates sessions on a database that holds `committed`, in a life of this number. Versions
    /// are not reused.
    pub fn new(committed: State, sessions: usize, life: usize) -> Self {
        Self { committed, sessions: vec![None; sessions], writer: None, last_version: (life as u64) << 32 }
    }

    /// Returns true if a session is in a transaction.
    pub fn in_transaction(&self, session: usize) -> bool {
        self.sessions[session].is_some()
    }

    /// Returns true if a session's transaction can only be ended.
    pub fn is_failed(&self, session: usize) -> bool {
        self.sessions[session].as_ref().is_some_and(|transaction| transaction.is_failed)
    }

    /// Returns the state that a session sees.
    pub fn view(&self, session: usize) -> &State {
        match &self.sessions[session] {
            Some(transaction) if !transaction.is_untouched || self.writer == Some(session) => &transaction.view,
            _ => &self.committed,
        }
    }

    /// Records that a statement of the session has failed for a reason outside of the model.
    pub fn fail(&mut self, session: usize, statement: &Statement) {
        match (statement, &mut self.sessions[session]) {
            (Statement::Commit | Statement::Rollback, slot) => {
                *slot = None;
                self.leave(session);
            }
            (_, Some(transaction)) => transaction.failed(statement, self.writer == Some(session)),
            (_, None) => {}
        }
    }

    /// Returns true if only the end of the session's transaction has a known outcome.
    pub fn is_unclear(&self, session: usize) -> bool {
        self.sessions[session].as_ref().is_some_and(|transaction| transaction.is_unclear)
    }

    /// Records that the engine has rewritten a table, with the same rows.
    pub fn rewritten(&mut self, table: &str) {
        let version = self.next();
        let _ = self.committed.changed(table, version);
    }

    fn leave(&mut self, session: usize) {
        if self.writer == Some(session) {
            self.writer = None;
        }
    }

    fn next(&mut self) -> u64 {
        self.last_version += 1;
        self.last_version
    }

    /// Runs a statement.
    pub fn run(&mut self, session: usize, statement: &Statement) -> Outcome {
        let (was_in_one, was_writer) = (self.in_transaction(session), self.writer == Some(session));
        let committed = self.committed.clone();
        if let Some(transaction) = &mut self.sessions[session]
            && transaction.is_untouched
            && self.writer != Some(session)
        {
            // The transaction sees the newest state until its first read.
            (transaction.begun, transaction.view) = (committed.clone(), committed);
        }
        let outcome = self.outcome(session, statement);
        if let (true, Some(transaction)) = (was_in_one, &mut self.sessions[session]) {
            match &outcome {
                Ok(_) => transaction.is_untouched = false,
                Err(_) => transaction.failed(statement, was_writer),
            }
        }
        outcome.unwrap_or_else(Outcome::Error)
    }

    fn outcome(&mut self, session: usize, statement: &Statement) -> Result<Outcome, Kinds> {
        let done = Ok(Outcome::Done(None));
        match statement {
            Statement::Begin { is_immediate } => {
                if self.in_transaction(session) {
                    return kind(ErrorKind::Invalid);
                }
                if *is_immediate {
                    self.take_place(session)?;
                }
                self.sessions[session] = Some(Transaction {
                    begun: self.committed.clone(),
                    view: self.committed.clone(),
                    steps: Vec::new(),
                    savepoints: Vec::new(),
                    is_untouched: true,
                    is_failed: false,
                    is_unclear: false,
                });
                return done;
            }
            Statement::Commit => {
                let ended = self.sessions[session].take();
                self.leave(session);
                if let Some(transaction) = ended.filter(|transaction| !transaction.is_failed) {
                    let version = self.next();
                    let mut next = self.committed.clone();
                    transaction.steps.iter().try_for_each(|step| next.apply(step, version))?;
                    self.committed = next;
                }
                return done;
            }
            Statement::Rollback => {
                self.sessions[session] = None;
                self.leave(session);
                return done;
            }
            Statement::RollbackTo(name) => {
                let Some(transaction) = &mut self.sessions[session] else { return kind(ErrorKind::Invalid) };
                let place = transaction.savepoints.iter().rposition(|(known, ..)| known == name);
                let Some(place) = place else { return kind(ErrorKind::NotFound) };
                transaction.savepoints.truncate(place + 1);
                let (_, view, steps) = transaction.savepoints[place].clone();
                (transaction.view, transaction.steps, transaction.is_failed) = (view, steps, false);
                return done;
            }
            _ if self.is_failed(session) => return kind(ErrorKind::Invalid),
            Statement::Savepoint(name) => {
                let Some(transaction) = &mut self.sessions[session] else { return kind(ErrorKind::Invalid) };
                let (view, steps) = (transaction.view.clone(), transaction.steps.clone());
                transaction.savepoints.push((name, view, steps));
                transaction.is_untouched = false;
                return done;
            }
            Statement::Release(name) => {
                let Some(transaction) = &mut self.sessions[session] else { return kind(ErrorKind::Invalid) };
                let place = transaction.savepoints.iter().rposition(|(known, ..)| known == name);
                let Some(place) = place else { return kind(ErrorKind::NotFound) };
                transaction.savepoints.truncate(place);
                return done;
            }
            Statement::Select { table } => return Ok(Outcome::Rows(self.view(session).table(table)?.rows.clone())),
            Statement::Count { table } => {
                let table = self.view(session).table(table)?;
                let ids = table.rows.iter().map(|((id, ..), count)| id * i64::from(*count));
                let sum = (table.count() > 0).then(|| ids.sum());
                return Ok(Outcome::Count(table.count(), sum));
            }
            Statement::Checkpoint { table } => {
                if self.in_transaction(session) {
                    return kind(ErrorKind::Invalid);
                }
                if let Some(table) = table {
                    self.committed.table(table)?;
                }
                // Without tables it need not wait for the writer's place.
                return match self.writer {
                    Some(_) if !self.committed.tables.is_empty() => kind(ErrorKind::Locked),
                    _ => done,
                };
            }
            _ => {}
        }
        self.change(session, statement)
    }

    /// Takes the writer's place.
    fn take_place(&mut self, session: usize) -> Result<(), Kinds> {
        match self.writer {
            Some(writer) if writer != session => kind(ErrorKind::Locked),
            _ => {
                self.writer = Some(session);
                Ok(())
            }
        }
    }

    /// Executes a statement that changes something: in the transaction, or in one of its own.
    fn change(&mut self, session: usize, statement: &Statement) -> Result<Outcome, Kinds> {
        let is_alone = !self.in_transaction(session);
        let looked = self.steps(session, statement);
        // Some errors are detected before it waits for the writer's place, others after.
        let place = self.take_place(session);
        let (steps, outcome) = match (looked, place) {
            (Err(mut kinds), Err(locked)) => {
                kinds.extend(locked);
                return Err(kinds);
            }
            (_, Err(locked)) => return Err(locked),
            (Err(kinds), Ok(())) => {
                if is_alone {
                    self.leave(session);
                }
                // A transaction that fails here may be the writer or not: the workload ends it.
                return Err(kinds);
            }
            (Ok(looked), Ok(())) => looked,
        };
        let version = self.next();
        if is_alone {
            self.leave(session);
            let mut next = self.committed.clone();
            steps.iter().try_for_each(|step| next.apply(step, version))?;
            self.committed = next;
            return Ok(outcome);
        }
        let committed = self.committed.clone();
        let Some(transaction) = &mut self.sessions[session] else { return Ok(outcome) };
        for step in steps {
            transaction.refuse(&step, &committed, version)?;
            transaction.view.apply(&step, version)?;
            transaction.steps.push(step);
        }
        Ok(outcome)
    }

    /// Returns the steps of a statement in its session's view, and its result.
    fn steps(&mut self, session: usize, statement: &Statement) -> Result<(Vec<Step>, Outcome), Kinds> {
        let incarnation = self.next();
        let view = self.view(session);
        let counted = |rows: &Rows| Outcome::Done(Some(rows.values().map(|count| u64::from(*count)).sum()));
        let multiset = |rows: &mut dyn Iterator<Item = Row>| {
            rows.fold(Rows::new(), |mut rows, row| {
                *rows.entry(row).or_default() += 1;
                rows
            })
        };
        let adding = |table: &str, rows: Rows| {
            let outcome = counted(&rows);
            let steps =
                if rows.is_empty() { vec![] } else { vec![Step::Add { table: table.into(), rows: Arc::new(rows) }] };
            (steps, outcome)
        };
        let removing = |table: &str, rows: Rows| match rows.is_empty() {
            true => vec![],
            false => vec![Step::Remove { table: table.into(), rows: Arc::new(rows) }],
        };
        let found = |table: &Table, modulus: i64, rest: i64| -> Rows {
            let is_it = |(row, _): &(&Row, &u32)| row.0 % modulus == rest;
            table.rows.iter().filter(is_it).map(|(row, count)| (row.clone(), *count)).collect()
        };
        Ok(match statement {
            Statement::Insert { table, rows } => {
                view.table(table)?;
                adding(table, multiset(&mut rows.iter().cloned()))
            }
            Statement::InsertMany { table, first, count } => {
                view.table(table)?;
                adding(table, multiset(&mut made(*first, *count)))
            }
            Statement::InsertFrom { table, source, add } => {
                view.table(table)?;
                let rows = &view.table(source)?.rows;
                adding(table, rows.iter().map(|((id, v, s), count)| ((id + add, *v, s.clone()), *count)).collect())
            }
            Statement::Update { table, modulus, rest, add } => {
                let before = found(view.table(table)?, *modulus, *rest);
                let mut after = Rows::new();
                for ((id, _, s), count) in &before {
                    *after.entry((*id, Some(id + add), s.clone())).or_default() += count;
                }
                let outcome = counted(&before);
                let mut steps = removing(table, before);
                steps.extend(adding(table, after).0);
                (steps, outcome)
            }
            Statement::Delete { table, modulus, rest } => {
                let rows = found(view.table(table)?, *modulus, *rest);
                let outcome = counted(&rows);
                (removing(table, rows), outcome)
            }
            Statement::DeleteAll { table } => {
                let rows = view.table(table)?.rows.clone();
                let outcome = counted(&rows);
                (removing(table, rows), outcome)
            }
            Statement::Truncate { tables } => {
                let mut steps = Vec::new();
                for table in tables {
                    steps.extend(removing(table, view.table(table)?.rows.clone()));
                }
                (steps, Outcome::Done(None))
            }
            Statement::Create { table, shape } => {
                let made = Arc::new(Table { incarnation, version: incarnation, shape: *shape, rows: Rows::new() });
                let step = Step::Put { table: table.clone(), is_new: true, made };
                view.clone().apply(&step, 0)?;
                (vec![step], Outcome::Done(None))
            }
            Statement::CreateAs { table, shape, replaces, first, count } => {
                let rows = multiset(&mut made(*first, *count));
                let outcome = counted(&rows);
                let made = Arc::new(Table { incarnation, version: incarnation, shape: *shape, rows });
                let step = Step::Put { table: table.clone(), is_new: !replaces, made };
                view.clone().apply(&step, 0)?;
                (vec![step], outcome)
            }
            Statement::Drop { tables } => {
                let steps: Vec<Step> = tables.iter().map(|table| Step::Drop { table: table.clone() }).collect();
                let mut view = view.clone();
                steps.iter().try_for_each(|step| view.apply(step, 0))?;
                (steps, Outcome::Done(None))
            }
            Statement::CreateView { view: name, table, replaces } => {
                view.table(table)?;
                let step = Step::PutView { view: name.clone(), table: table.clone(), is_new: !replaces };
                view.clone().apply(&step, 0)?;
                (vec![step], Outcome::Done(None))
            }
            Statement::DropView { view: name } => {
                let step = Step::DropView { view: name.clone() };
                view.clone().apply(&step, 0)?;
                (vec![step], Outcome::Done(None))
            }
            _ => (Vec::new(), Outcome::Done(None)),
        })
    }
}

impl Transaction {
    /// Refuses a step that conflicts with commits of others since the transaction began.
    fn refuse(&self, step: &Step, committed: &State, version: u64) -> Result<(), Kinds> {
        let incarnation = |state: &State, name: &str| state.tables.get(name).map(|table| table.incarnation);
        match step {
            Step::Add { table, .. } | Step::Remove { table, .. } => {
                let begun = incarnation(&self.begun, table);
                if incarnation(&self.view, table) != begun {
                    return Ok(());
                }
                if incarnation(committed, table) != begun {
                    return kind(ErrorKind::NotFound);
                }
                let version = |state: &State| state.tables.get(table).map(|table| table.version);
                match step {
                    Step::Remove { .. } if version(committed) != version(&self.begun) => kind(ErrorKind::Conflict),
                    _ => Ok(()),
                }
            }
            // Steps of the catalog must be possible in the committed state, one after the other.
            _ => {
                let mut committed = committed.clone();
                let is_of_catalog = |step: &&Step| !matches!(step, Step::Add { .. } | Step::Remove { .. });
                let earlier = self.steps.iter().filter(is_of_catalog);
                earlier.chain([step]).try_for_each(|step| committed.apply(step, version))
            }
        }
    }
}
