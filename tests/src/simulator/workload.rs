//! The workload: statements of several sessions, by seed.
//!
//! Most statements are valid: tables and ids are chosen from the session's view. Some are invalid
//! on purpose. After a statement has failed in a transaction, the next step ends the transaction.

use std::collections::VecDeque;

use onehop_store::explore::Random;

use super::model::{Model, Row, Shape, Statement};

const TABLES: [&str; 4] = ["a", "b", "c", "d"];
const VIEWS: [&str; 2] = ["v", "w"];
const SAVEPOINTS: [&str; 2] = ["one", "two"];

/// A number of rows that is too many for the store, so that they make segments.
const MANY: i64 = 40;

/// A generator of statements.
pub struct Workload {
    random: Random,
    next_id: i64,
    sessions: usize,
    /// The table of most statements.
    hot: &'static str,
    /// The remaining statements of a running scene.
    scene: VecDeque<(usize, Statement)>,
}

impl Workload {
    /// Creates a workload of `sessions` sessions.
    pub fn new(mut random: Random, sessions: usize) -> Self {
        let hot = TABLES[random.below(TABLES.len() as u64) as usize];
        Self { random, next_id: 1, sessions, hot, scene: VecDeque::new() }
    }

    fn below(&mut self, bound: usize) -> usize {
        self.random.below(bound as u64) as usize
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.random.below(count) == 0
    }

    fn ids(&mut self, count: i64) -> i64 {
        let first = self.next_id;
        // Some ids repeat, so that rows may have duplicates.
        self.next_id += if self.one_in(8) { 0 } else { count };
        first
    }

    fn rows(&mut self) -> Vec<Row> {
        let count = 1 + self.below(3) as i64;
        let first = self.ids(count);
        (first..first + count)
            .map(|id| {
                let v = (!self.one_in(4)).then(|| self.random.below(50) as i64);
                let length = if self.one_in(8) { 900 } else { 9 };
                let s = (!self.one_in(4)).then(|| "x".repeat(self.below(length)));
                (id, v, s)
            })
            .collect()
    }

    fn shape(&mut self) -> Shape {
        [Shape::Plain, Shape::Plain, Shape::Partitioned, Shape::Clustered][self.below(4)]
    }

    /// Selects a table that the session sees, most of the time.
    fn table(&mut self, model: &Model, session: usize) -> String {
        let names: Vec<&String> = model.view(session).tables.keys().collect();
        if names.is_empty() || self.one_in(40) {
            return TABLES[self.below(TABLES.len())].to_string();
        }
        if names.iter().any(|name| *name == self.hot) && self.one_in(2) {
            return self.hot.to_string();
        }
        let place = self.below(names.len());
        names[place].clone()
    }

    /// Selects a name that no table has, most of the time.
    fn free(&mut self, model: &Model, session: usize) -> String {
        let is_free = |name: &&&str| !model.view(session).tables.contains_key(**name);
        let names: Vec<&&str> = TABLES.iter().filter(is_free).collect();
        if names.is_empty() || self.one_in(20) {
            return TABLES[self.below(TABLES.len())].to_string();
        }
        let place = self.below(names.len());
        names[place].to_string()
    }

    /// Occasionally returns concurrent statements of all sessions, if none is in a transaction.
    pub fn together(&mut self, model: &Model) -> Option<Vec<(usize, Statement)>> {
        if !self.scene.is_empty() {
            return None;
        }
        let is_idle = (0..self.sessions).all(|session| !model.in_transaction(session));
        let tables: Vec<&String> = model.committed.tables.keys().collect();
        if !is_idle || tables.is_empty() || !self.one_in(8) {
            return None;
        }
        // Inserts into a sorted table may need a plan, and take longer.
        let is_plain = |table: &&&String| model.committed.tables[**table].shape != Shape::Clustered;
        let tables: Vec<&&String> = tables.iter().filter(is_plain).collect();
        if tables.is_empty() {
            return None;
        }
        let statements = (0..self.sessions).map(|session| {
            let table = tables[self.random.below(tables.len() as u64) as usize].to_string();
            (session, Statement::Insert { table, rows: self.rows() })
        });
        Some(statements.collect())
    }

    /// Returns the next statement and its session.
    pub fn next(&mut self, model: &Model) -> (usize, Statement) {
        if let Some(session) = (0..self.sessions).find(|session| model.is_failed(*session)) {
            let ends =
                [Statement::Rollback, Statement::Rollback, Statement::Commit, Statement::RollbackTo(SAVEPOINTS[0])];
            let end = &ends[self.below(ends.len())];
            return (session, if model.is_unclear(session) { Statement::Rollback } else { end.clone() });
        }
        if self.scene.is_empty() && self.one_in(8) {
            self.begin_scene(model);
        }
        if let Some(next) = self.scene.pop_front() {
            return next;
        }
        let session = self.below(self.sessions);
        (session, self.statement(model, session))
    }

    /// Begins a scene: one session has begun to read, and another changes the tables that it reads,
    /// or drops one that it has not read yet.
    fn begin_scene(&mut self, model: &Model) {
        let names: Vec<String> = model.committed.tables.keys().cloned().collect();
        if names.is_empty() || (0..self.sessions).any(|session| model.in_transaction(session)) {
            return;
        }
        let (reader, writer) = (0, self.sessions - 1);
        let one = names[self.below(names.len())].clone();
        let others: Vec<&String> = names.iter().filter(|name| **name != one).collect();
        let other = match self.one_in(3) || others.is_empty() {
            true => one.clone(),
            false => others[self.below(others.len())].clone(),
        };
        let (modulus, rest) = self.some();
        let begin = Statement::Begin { is_immediate: false };
        let look = Statement::Count { table: one.clone() };
        let change = match self.below(6) {
            0 => Statement::Truncate { tables: vec![other.clone()] },
            1 => Statement::Drop { tables: vec![other.clone()] },
            2 => Statement::Checkpoint { table: Some(other.clone()) },
            3 => Statement::Delete { table: other.clone(), modulus, rest },
            4 => {
                let first = self.ids(MANY);
                Statement::CreateAs { table: other.clone(), shape: Shape::Plain, replaces: true, first, count: MANY }
            }
            _ => Statement::Insert { table: other.clone(), rows: self.rows() },
        };
        let answer = match self.below(4) {
            0 => Statement::Update { table: other, modulus, rest, add: 1 },
            1 => Statement::Insert { table: other, rows: self.rows() },
            _ => Statement::Select { table: other },
        };
        self.scene.extend([
            (reader, begin),
            (reader, look),
            (writer, change),
            (reader, answer),
            (reader, Statement::Commit),
        ]);
    }

    fn statement(&mut self, model: &Model, session: usize) -> Statement {
        if model.view(session).tables.is_empty() && !self.one_in(8) {
            return self.create(model, session);
        }
        if model.in_transaction(session) {
            match self.below(12) {
                0..=2 => return Statement::Commit,
                3 => return Statement::Rollback,
                4 => {
                    let name = SAVEPOINTS[self.below(2)];
                    return match self.below(4) {
                        0 => Statement::RollbackTo(name),
                        1 => Statement::Release(name),
                        _ => Statement::Savepoint(name),
                    };
                }
                _ => {}
            }
        } else if self.one_in(5) {
            return Statement::Begin { is_immediate: self.one_in(3) };
        }
        match self.below(30) {
            0..=5 => Statement::Insert { table: self.table(model, session), rows: self.rows() },
            6 => {
                // The maximum number of rows of the store, each with a long text: commits of
                // several pages.
                let first = self.ids(18);
                let rows = (first..first + 18).map(|id| (id, None, Some("y".repeat(900)))).collect();
                Statement::Insert { table: self.table(model, session), rows }
            }
            7..=9 => {
                let count = MANY + self.random.below(30) as i64;
                Statement::InsertMany { table: self.table(model, session), first: self.ids(count), count }
            }
            10 => Statement::InsertFrom {
                table: self.table(model, session),
                source: self.table(model, session),
                add: self.ids(1000),
            },
            11..=13 => {
                let (modulus, rest) = self.some();
                let add = self.random.below(1000) as i64;
                Statement::Update { table: self.table(model, session), modulus, rest, add }
            }
            14..=16 => {
                let (modulus, rest) = self.some();
                Statement::Delete { table: self.table(model, session), modulus, rest }
            }
            17 => Statement::DeleteAll { table: self.table(model, session) },
            18 => {
                let mut tables = vec![self.table(model, session), self.table(model, session)];
                tables.sort();
                tables.dedup();
                Statement::Truncate { tables }
            }
            19..=20 => self.create(model, session),
            21 => {
                let mut tables = vec![self.table(model, session)];
                if self.one_in(3) {
                    tables.push(self.table(model, session));
                }
                tables.sort();
                tables.dedup();
                Statement::Drop { tables }
            }
            22 => match self.below(3) {
                0 => Statement::DropView { view: VIEWS[self.below(2)].to_string() },
                kind => Statement::CreateView {
                    view: VIEWS[self.below(2)].to_string(),
                    table: self.table(model, session),
                    replaces: kind == 1,
                },
            },
            23..=25 => {
                let table = (!self.one_in(3)).then(|| self.table(model, session));
                Statement::Checkpoint { table }
            }
            26..=27 => Statement::Count { table: self.table(model, session) },
            _ => Statement::Select { table: self.table(model, session) },
        }
    }

    /// Returns a part of the rows: `id % modulus = rest`.
    fn some(&mut self) -> (i64, i64) {
        let modulus = [1, 2, 3, 5, 11][self.below(5)];
        (modulus, self.random.below(modulus as u64) as i64)
    }

    fn create(&mut self, model: &Model, session: usize) -> Statement {
        let shape = self.shape();
        match self.below(3) {
            0 => Statement::Create { table: self.free(model, session), shape },
            kind => {
                let count = self.random.below(60) as i64;
                let first = self.ids(count);
                let replaces = kind == 1;
                let table = if replaces { self.table(model, session) } else { self.free(model, session) };
                Statement::CreateAs { table, shape, replaces, first, count }
            }
        }
    }
}
