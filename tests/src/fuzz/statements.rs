//! SQL: planned, executed, and prepared.
//!
//! Seeds are the golden statements, over their tables. An input is text. The mutation uses a little
//! of SQL's grammar: [`Grammar`] splits a statement into tokens, and replaces parts by parts of
//! others, with balanced brackets.
//!
//! A statement runs in a transaction that is rolled back, so that an input does not depend on those
//! before it. Sessions have the rights to write, and access nothing outside of the database.

use std::fs;

use onehop_engine::{Database, Error, ErrorKind, Rights, Session, Value};

use super::engine::{Engine, options};
use super::{Made, Mutator, Outcome, Target, Verdict, judge, together};
use crate::fixtures::{FIXTURES, Layout, golden};

/// The table of the corpus.
const TABLE: &str = "CREATE TABLE t (a INT, b BIGINT, s VARCHAR, d DATE, x DOUBLE)";
const ROWS: &str = "INSERT INTO t VALUES (1, 2, 'xyz', DATE '2024-02-29', 1.5), (2, NULL, '', NULL, 0), \
    (NULL, -9223372036854775808, NULL, DATE '0001-01-01', NULL), (-2147483648, 9223372036854775807, 'äöü', DATE \
    '9999-12-31', 1e308)";
/// The fixtures that are too large for a quick self-join.
const LARGE: [&str; 2] = ["big", "rows_65536"];
/// Statements that no golden file has.
const MORE: [&str; 24] = [
    "SELECT json_extract('{\"a\": [1, {\"b\": null}]}', '$.a[1].b')",
    "SELECT s, row_number() OVER (PARTITION BY a ORDER BY b ROWS BETWEEN 1 PRECEDING AND CURRENT ROW), ntile(3) OVER (ORDER BY x) FROM t",
    "SELECT sum(b) OVER (ORDER BY d RANGE BETWEEN INTERVAL '1 day' PRECEDING AND INTERVAL '2 days' FOLLOWING) FROM t",
    "WITH RECURSIVE r(n, s) AS (SELECT 1, 'a' UNION ALL SELECT n + 1, s || 'b' FROM r WHERE n < 9) SELECT * FROM r JOIN t ON n = a",
    "SELECT regexp_replace(s, '(a|b)*', 'c', 'g'), regexp_matches(s, '^.y'), lpad(s, 5, 'x'), repeat(s, 3), substr(s, -1, 2) FROM t",
    "SELECT unnest([a, 1, NULL]), array_agg(b), list_sort([3, 1, 2]), [1, 2, 3][2:3], array_to_string([1, 2], ',') FROM t GROUP BY a",
    "SELECT struct_pack(a := 1, b := 'x').b, named_struct('a', a, 'b', [x]) FROM t",
    "SELECT date_trunc('month', d), extract(epoch FROM d), d + INTERVAL '1 month', age(TIMESTAMP '2024-02-29', d), to_char(d, 'YYYY-MM') FROM t",
    "SELECT CAST('12.345' AS DECIMAL(5, 2)) * 1e10, CAST(b AS SMALLINT), CAST(x AS INT), round(x, 2), x::VARCHAR::DOUBLE FROM t",
    "SELECT TIMESTAMP '2024-03-31 02:30:00' AT TIME ZONE 'Europe/Berlin', now() - INTERVAL '1-2', make_date(2024, 2, 30)",
    "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY x), string_agg(s, ',' ORDER BY a DESC), stddev(b), corr(x, b), bool_and(a > 1) FROM t",
    "SELECT a, GROUPING(a), count(*) FILTER (WHERE x > 0) FROM t GROUP BY GROUPING SETS ((a), (), ROLLUP (a, s)) HAVING count(*) > 0",
    "INSERT INTO t (a, s) SELECT a + 1, upper(s) FROM t RETURNING a, s || '!'",
    "UPDATE t SET x = x * 2, s = (SELECT max(s) FROM t AS u WHERE u.a < t.a) WHERE a IN (SELECT a FROM t) RETURNING *",
    "DELETE FROM t USING (VALUES (1), (2)) AS v(k) WHERE t.a = v.k",
    "CREATE TABLE made (a INT NOT NULL, b DECIMAL(38, 10)) PARTITION BY HASH (a) PARTITIONS 3",
    "CREATE TEMP TABLE temporary AS SELECT * FROM t ORDER BY b",
    "CREATE OR REPLACE VIEW seen AS SELECT a AS \"a b\", count(*) FROM t GROUP BY 1",
    "EXPLAIN ANALYZE SELECT count(*) FROM t JOIN keys ON a = k WHERE s LIKE 'x%' OR x BETWEEN 1 AND 2",
    "SELECT * FROM generate_series(1, 10, 3) AS g(i), LATERAL (SELECT i * a FROM t) AS l ORDER BY 1 LIMIT 5 OFFSET 1",
    "SELECT a, b FROM t INTERSECT ALL SELECT 1, 2 EXCEPT SELECT k, v FROM right_side",
    "SELECT * FROM linregr_train('t', NULL, label => 'x', features => 'a, b')",
    "SELECT encode(sha256(s), 'hex'), md5(s), gen_random_uuid() IS NULL, decode('ff', 'hex') FROM t",
    "SELECT DISTINCT ON (a) a, first_value(x IGNORE NULLS) OVER w FROM t WINDOW w AS (PARTITION BY s ORDER BY d DESC NULLS LAST)",
];

/// The target of statements over the tables.
struct Statements {
    engine: Engine,
    database: Database,
    /// One session with pipelines if possible, and one with DataFusion's operators alone.
    sessions: [Session; 2],
    how: How,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Planned,
    Executed,
    Prepared,
}

pub(super) fn planned() -> Made {
    Statements::target(How::Planned)
}

pub(super) fn executed() -> Made {
    Statements::target(How::Executed)
}

pub(super) fn prepared() -> Made {
    Statements::target(How::Prepared)
}

impl Statements {
    fn target(how: How) -> Made {
        let engine = Engine::new()?;
        let database = Database::memory(&options("2s", &[("lock_timeout", "1s")]))?;
        let admin = database.session()?;
        for sql in [TABLE, ROWS] {
            engine.run(&admin, sql)?;
        }
        for fixture in FIXTURES.iter().filter(|fixture| !LARGE.contains(&fixture.name)) {
            engine.drive(fixture.load(&admin, Layout::Segments))?;
        }
        // The tables of golden files exist throughout. Some are made from files, which are not read
        // here.
        for sql in golden_statements().iter().filter(|sql| ["CREATE", "INSERT"].contains(&first_word(sql).as_str())) {
            let _ = engine.run(&admin, sql);
        }
        let sessions = sessions(&engine, &database)?;
        Ok(Box::new(Self { engine, database, sessions, how }))
    }

    /// Runs a statement in a transaction that is rolled back.
    fn rolled_back(&mut self, text: &str, run: impl Fn(&Engine, &Session) -> Result<usize, Error>) -> Verdict {
        let session = &self.sessions[usize::from(text.len().is_multiple_of(3))];
        let begun = self.engine.run(session, "BEGIN");
        let ran = begun.and_then(|_| run(&self.engine, session));
        let ended = self.engine.run(session, "ROLLBACK");
        if leaves_something(text) {
            self.sessions = sessions(&self.engine, &self.database).map_err(|e| e.to_string())?;
        }
        together([judge(&ran), judge(&ended).map(|_| Outcome::Accepted)])
    }
}

fn sessions(engine: &Engine, database: &Database) -> Result<[Session; 2], Error> {
    let sessions = [database.session_with(Rights::Write)?, database.session_with(Rights::Write)?];
    engine.run(&sessions[1], "SET exec.mode = 'datafusion'")?;
    Ok(sessions)
}

/// Returns the first word of a statement, in capitals.
fn first_word(text: &str) -> String {
    let word = text.trim_start().split(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or("");
    word.to_ascii_uppercase()
}

/// Returns true if a statement ends the transaction that isolates inputs, or waits for something
/// outside.
fn is_passed_over(text: &str) -> bool {
    let words =
        ["BEGIN", "START", "COMMIT", "END", "ROLLBACK", "ABORT", "CHECKPOINT", "VACUUM", "SAVEPOINT", "RELEASE"];
    words.contains(&first_word(text).as_str()) || text.contains("pg_sleep")
}

/// Returns true if a statement may change a session although its transaction is rolled back.
fn leaves_something(text: &str) -> bool {
    ["SET", "RESET", "PREPARE", "DEALLOCATE", "DISCARD", "ATTACH", "DETACH"].contains(&first_word(text).as_str())
}

impl Target for Statements {
    fn seeds(&self) -> Vec<Vec<u8>> {
        let more = MORE.iter().map(|sql| (*sql).to_string());
        golden_statements().into_iter().chain(more).map(String::into_bytes).collect()
    }

    fn mutate(&self, mutator: &mut Mutator, input: &[u8], other: &[u8]) -> Vec<u8> {
        match mutator.next(8) {
            0 => mutator.mutate(input, other),
            _ => {
                let (input, other) = (String::from_utf8_lossy(input), String::from_utf8_lossy(other));
                Grammar(mutator).mutate(&input, &other).into_bytes()
            }
        }
    }

    fn run(&mut self, input: &[u8]) -> Verdict {
        let text = String::from_utf8_lossy(input).replace(';', " ");
        if is_passed_over(&text) {
            return Ok(Outcome::Refused);
        }
        match self.how {
            How::Planned => judge(&self.engine.run(&self.sessions[0], &format!("EXPLAIN {text}"))),
            How::Executed => self.rolled_back(&text, |engine, session| engine.run(session, &text)),
            How::Prepared => {
                let (with_parameters, values) = parameters(&text);
                self.rolled_back(&text, |engine, session| {
                    let prepared = session.prepare(&with_parameters)?;
                    let described = engine.drive(session.describe(&prepared, &[]));
                    if let Err(e) = &described
                        && e.kind() == ErrorKind::Internal
                    {
                        return described.map(|_| 0);
                    }
                    let values: Vec<Value> = values.iter().cycle().take(prepared.parameters()).cloned().collect();
                    let first = engine.execute(session, &prepared, &values)?;
                    let last: Vec<Value> = values.into_iter().rev().collect();
                    match engine.execute(session, &prepared, &last) {
                        Err(e) if e.kind() == ErrorKind::Internal => Err(e),
                        _ => Ok(first),
                    }
                })
            }
        }
    }
}

/// Returns the statements of the golden files that are to succeed, each once.
fn golden_statements() -> Vec<String> {
    let mut all = Vec::new();
    let files = crate::slt_files(&golden().join("slt"), "ONEHOP_GOLDEN").unwrap_or_default();
    for file in files {
        let text = fs::read_to_string(file).unwrap_or_default();
        for record in text.split("\n\n") {
            let mut lines = record.lines().skip_while(|line| line.starts_with('#'));
            let head = lines.next().unwrap_or("");
            if head.starts_with("query") || head.starts_with("statement ok") {
                all.push(lines.take_while(|line| *line != "----").collect::<Vec<_>>().join("\n"));
            }
        }
    }
    let mut seen = std::collections::BTreeSet::new();
    // Sessions with the rights to write cannot read files.
    let is_one =
        |sql: &String| !sql.is_empty() && sql.len() < 2000 && !sql.contains("${FIXTURES}") && !is_passed_over(sql);
    all.into_iter().filter(|sql| is_one(sql) && seen.insert(sql.clone())).collect()
}

/// Replaces a statement's literals by parameters. Returns the text and their values.
fn parameters(text: &str) -> (String, Vec<Value>) {
    let (mut out, mut values) = (String::new(), Vec::new());
    for token in tokens(text) {
        let value = match token.as_bytes().first() {
            Some(b'0'..=b'9') => match token.parse::<i64>() {
                Ok(number) => Value::Integer(number),
                Err(_) => Value::Decimal(token.to_string()),
            },
            Some(b'\'') if token.len() >= 2 && token.ends_with('\'') => {
                Value::Text(token[1..token.len() - 1].replace("''", "'"))
            }
            _ => {
                out += token;
                continue;
            }
        };
        values.push(value);
        out += &format!("${}", values.len());
    }
    if values.is_empty() {
        values.push(Value::Null);
    }
    (out, values)
}

/// Splits a statement into tokens, white space included. Their concatenation is the statement.
fn tokens(text: &str) -> Vec<&str> {
    let bytes = text.as_bytes();
    let (mut all, mut from) = (Vec::new(), 0);
    while from < bytes.len() {
        let is = |byte: u8| -> u8 {
            match byte {
                b' ' | b'\n' | b'\t' | b'\r' => 0,
                b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' | b'_' | 128.. => 1,
                _ => 2,
            }
        };
        let mut to = from + 1;
        match bytes[from] {
            quote @ (b'\'' | b'"') => {
                while to < bytes.len() && bytes[to] != quote {
                    to += 1;
                }
                to = (to + 1).min(bytes.len());
            }
            first if is(first) < 2 => {
                let is_number = first.is_ascii_digit();
                while to < bytes.len() && (is(bytes[to]) == is(first) || is_number && bytes[to] == b'.') {
                    to += 1;
                }
            }
            _ => {
                let pairs = [&b"<>"[..], b"<=", b">=", b"!=", b"||", b"::", b"=>", b":="];
                if pairs.iter().any(|pair| bytes[from..].starts_with(pair)) {
                    to += 1;
                }
            }
        }
        // Bytes of one character stay together.
        while !text.is_char_boundary(to) {
            to += 1;
        }
        all.push(&text[from..to]);
        from = to;
    }
    all
}

/// Literals at the edges of types, and invalid ones.
const LITERALS: [&str; 30] = [
    "NULL",
    "TRUE",
    "0",
    "-1",
    "1",
    "2",
    "127",
    "128",
    "32768",
    "2147483647",
    "2147483648",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "170141183460469231731687303715884105727",
    "1e308",
    "1e999",
    "0.1",
    "12345678901234567890.123456789",
    "''",
    "'x'",
    "'äöü'",
    "'1'",
    "'NaN'",
    "DATE '2024-02-29'",
    "DATE '9999-12-31'",
    "TIMESTAMP '0001-01-01 00:00:00'",
    "INTERVAL '1 month -3 days'",
    "[1, NULL]",
    "ROW(1, 'a')",
];
const TYPES: [&str; 16] = [
    "TINYINT",
    "INT",
    "BIGINT",
    "BIGINT UNSIGNED",
    "REAL",
    "DOUBLE",
    "DECIMAL(38, 10)",
    "DECIMAL(5, 5)",
    "VARCHAR",
    "DATE",
    "TIMESTAMP",
    "TIMESTAMPTZ",
    "BOOLEAN",
    "INTERVAL",
    "INT[]",
    "BYTEA",
];
/// Functions and other words that take one expression, at a place where an expression may be.
const FUNCTIONS: [&str; 44] = [
    "abs",
    "sum",
    "avg",
    "min",
    "max",
    "count",
    "length",
    "upper",
    "reverse",
    "trim",
    "md5",
    "date_trunc",
    "round",
    "floor",
    "sqrt",
    "ln",
    "exp",
    "stddev",
    "median",
    "first_value",
    "lag",
    "array_agg",
    "string_agg",
    "unnest",
    "coalesce",
    "nullif",
    "greatest",
    "concat",
    "to_char",
    "to_timestamp",
    "array_length",
    "generate_series",
    "bool_or",
    "any_value",
    "approx_distinct",
    "json_extract",
    "regexp_replace",
    "substr",
    "lpad",
    "strpos",
    "split_part",
    "chr",
    "ascii",
    "sign",
];
const OPERATORS: [&str; 20] = [
    "+",
    "-",
    "*",
    "/",
    "%",
    "=",
    "<>",
    "<",
    ">=",
    "||",
    "AND",
    "OR",
    "LIKE",
    "IS DISTINCT FROM",
    "IN",
    "&",
    "|",
    "~",
    "->",
    "^",
];

/// Damages statements by their grammar.
struct Grammar<'a>(&'a mut Mutator);

impl Grammar<'_> {
    fn mutate(&mut self, input: &str, other: &str) -> String {
        let mut text = input.to_string();
        // Most parts come from the statement itself, because its names are valid there.
        let other = if self.0.next(3) == 0 { other } else { input };
        let most = [1, 1, 2, 4][self.0.next(4)];
        for _ in 0..=self.0.next(most) {
            text = self.once(&text, other);
            if text.len() > 4000 {
                break;
            }
        }
        text
    }

    fn once(&mut self, text: &str, other: &str) -> String {
        let all = tokens(text);
        let Some(part) = self.expression(&all) else { return text.to_string() };
        let (before, inner, after) = (&all[..part.0], all[part.0..part.1].concat(), &all[part.1..]);
        let (before, after) = (before.concat(), after.concat());
        let others = tokens(other);
        let theirs = self.expression(&others).map_or_else(String::new, |(from, to)| others[from..to].concat());
        let literal = *self.0.one_of(&LITERALS);
        let function = *self.0.one_of(&FUNCTIONS);
        let made = match self.0.next(24) {
            0..6 => theirs,
            6 | 7 => literal.to_string(),
            8 => format!("CAST({inner} AS {})", self.0.one_of(&TYPES)),
            9 => format!("({inner})::{}", self.0.one_of(&TYPES)),
            10 => format!("{function}({inner})"),
            11 => format!("{function}({inner}, {theirs})"),
            12 => format!("({inner} {} {theirs})", self.0.one_of(&OPERATORS)),
            13 => format!("(SELECT max({inner}) FROM t)"),
            14 => format!("{function}({inner}) OVER (ORDER BY {theirs})"),
            15 => format!("CASE WHEN {inner} THEN {theirs} ELSE {literal} END"),
            16 => format!("[{inner}, {theirs}]"),
            17 => format!("NOT ({inner})"),
            18 => return self.whole(text, other),
            19 => format!("{inner} IN ({theirs}, {literal})"),
            20 => format!("({inner} IS NULL)"),
            21 => String::new(),
            22 => return self.token(&all, &others),
            _ => format!("EXISTS (SELECT 1 FROM t WHERE {inner} = {theirs})"),
        };
        format!("{before}{made}{after}")
    }

    /// Wraps a statement in another one, or combines two.
    fn whole(&mut self, text: &str, other: &str) -> String {
        match self.0.next(9) {
            0 => format!("SELECT * FROM ({text}) AS q"),
            1 => format!("{text} UNION ALL {other}"),
            2 => format!("CREATE TABLE made AS {text}"),
            3 => format!("INSERT INTO t (a) {text}"),
            4 => format!("EXPLAIN ANALYZE {text}"),
            5 => format!("WITH q AS ({text}) SELECT count(*) FROM q JOIN t ON true"),
            6 => format!("SELECT count(*) FROM ({text}) AS p NATURAL JOIN ({other}) AS q"),
            7 => format!("{text} LIMIT 3 OFFSET 1"),
            _ => format!("SELECT a FROM t WHERE a IN ({text})"),
        }
    }

    /// Replaces one token by another.
    fn token(&mut self, all: &[&str], others: &[&str]) -> String {
        let is_word = |token: &&str| token.trim() != "";
        let at = self.0.next(all.len());
        let theirs: Vec<&&str> = others.iter().filter(|token| is_word(token)).collect();
        let new = if theirs.is_empty() { "" } else { *theirs[self.0.next(theirs.len())] };
        all.iter().enumerate().map(|(i, token)| if i == at { new } else { *token }).collect()
    }

    /// Selects a range for an expression. It begins after a word that an expression may follow. It
    /// ends with its clause, its item or, half of the time, its operand. Brackets in it are
    /// balanced.
    fn expression(&mut self, all: &[&str]) -> Option<(usize, usize)> {
        let is_space = |at: usize| all[at].trim().is_empty();
        let is_begin = |at: usize| {
            let before = (0..at).rev().find(|before| !is_space(*before)).map_or("", |before| all[before]);
            is_mark(before) && before != ")" && before != "]" || is_keyword(before)
        };
        let begins: Vec<usize> = (0..all.len())
            .filter(|at| {
                !is_space(*at) && is_begin(*at) && (!is_mark(all[*at]) || all[*at] == "(") && !is_keyword(all[*at])
            })
            .collect();
        if begins.is_empty() {
            return None;
        }
        let (from, is_operand) = (*self.0.one_of(&begins), self.0.next(2) == 0);
        let (mut to, mut depth) = (from, 0_usize);
        while to < all.len() {
            match all[to] {
                "(" | "[" => depth += 1,
                ")" | "]" if depth == 0 => break,
                ")" | "]" => depth -= 1,
                "," if depth == 0 => break,
                token if depth == 0 && is_keyword(token) => break,
                token if depth == 0 && is_operand && is_mark(token) && token != "." => break,
                _ => {}
            }
            to += 1;
        }
        while to > from + 1 && is_space(to - 1) {
            to -= 1;
        }
        Some((from, to))
    }
}

/// Returns true for words that end an expression, and that one may follow.
fn is_keyword(token: &str) -> bool {
    const WORDS: [&str; 44] = [
        "SELECT",
        "DISTINCT",
        "ALL",
        "FROM",
        "WHERE",
        "GROUP",
        "ORDER",
        "BY",
        "HAVING",
        "LIMIT",
        "OFFSET",
        "UNION",
        "INTERSECT",
        "EXCEPT",
        "JOIN",
        "LEFT",
        "RIGHT",
        "FULL",
        "INNER",
        "CROSS",
        "NATURAL",
        "OUTER",
        "LATERAL",
        "ON",
        "USING",
        "AS",
        "WITH",
        "ASC",
        "DESC",
        "NULLS",
        "OVER",
        "PARTITION",
        "ROWS",
        "RANGE",
        "FILTER",
        "WHEN",
        "THEN",
        "ELSE",
        "END",
        "VALUES",
        "SET",
        "RETURNING",
        "QUALIFY",
        "WINDOW",
    ];
    WORDS.iter().any(|word| word.eq_ignore_ascii_case(token))
}

/// Returns true for operators and brackets.
fn is_mark(token: &str) -> bool {
    token.bytes().next().is_some_and(|byte| byte.is_ascii_punctuation() && !b"'\"_".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_the_statement() {
        for text in ["", "SELECT 'a''b', \"ü\" FROM t WHERE x>=1.5e3::int", "'", "\"", "ä||'é", "a.b[1:2] -- c\n;"] {
            assert_eq!(tokens(text).concat(), text);
        }
        assert_eq!(parameters("SELECT 1, 'a', x2").0, "SELECT $1, $2, x2");
    }
}
