//! `onehop pipe`: one JSON request a line in, one JSON response a line out.
//!
//! The simplest way to drive the engine from any language: start the process, write lines, read
//! lines.
//!
//! ```text
//! -> {"id": 1, "sql": "SELECT 1 AS one, 'x' AS letter"}
//! <- {"id":1,"ok":true,"columns":[{"name":"one","type":"Int64"},...],"rows":[[1,"x"]],
//!     "row_count":1,"plan_ns":...,"run_ns":...,"wall_ns":...,"ledger":{...}}    (on one line)
//! -> {"id": 2, "sql": "SELECT nonsense"}
//! <- {"id":2,"ok":false,"error":{"kind":"not_found","message":"...","hint":"..."}}
//! ```
//!
//! - Each request has one statement. All run in one session, and are answered in order. A statement
//!   without rows answers with a `tag` ("CREATE TABLE") and the number of rows it wrote as
//!   `row_count`.
//! - `"rows": false` runs the query and counts its rows without printing them, for benchmarks.
//! - Values lose nothing. Integers are JSON integers of any size (read them with a parser that
//!   keeps 64 bits). Floats are the shortest text that reads back the same ("NaN", "inf", "-inf" as
//!   strings). Booleans and NULL are their JSON equivalents, and lists are arrays. Decimals, dates,
//!   timestamps and everything else are strings. Types have Arrow's names.
//! - A bad request gets an error response (kind `request`) and ends nothing, even if it is not
//!   text, or has more than 256 MiB. The end of the input ends the process.
//! - A response is complete or an error, so its rows are held until the query has ended. A query
//!   must not return more rows than fit into memory.

use std::fmt::Write as _;
use std::io::{BufRead, Read, Write};
use std::time::Instant;

use arrow::array::{Array, ArrayRef, AsArray, Float32Array, Float64Array, RecordBatch};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::datatypes::{DataType, Float32Type, Float64Type, Schema};
use arrow::error::ArrowError;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use futures::StreamExt;
use onehop_engine::{
    Error, Executors, LedgerSnapshot, Output, Script, Session, Zone, column_texts, rows_in_zone, rows_with_far_texts,
    schema_in_zone,
};
use serde_json::{Value, json};

use crate::exit::Stop;

/// The maximum size of a request, in bytes.
const MOST_REQUEST_BYTES: u64 = 256 << 20;

/// Answers requests until the input ends.
///
/// # Errors
/// Fails if input or output fail, or if the system has no threads for a statement.
pub fn run(
    executors: &Executors,
    session: &Session,
    mut input: impl BufRead,
    mut output: impl Write,
) -> Result<(), Stop> {
    let mut line = Vec::new();
    loop {
        let unread = |e| Stop::System("cannot read requests from standard input".into(), e);
        line.clear();
        if input.by_ref().take(MOST_REQUEST_BYTES).read_until(b'\n', &mut line).map_err(unread)? == 0 {
            return Ok(());
        }
        if line.trim_ascii().is_empty() {
            continue;
        }
        let is_cut = line.len() as u64 == MOST_REQUEST_BYTES && line.last() != Some(&b'\n');
        let response = match is_cut && input.skip_until(b'\n').map_err(unread)? > 0 {
            true => {
                let reason = format!("a request has {MOST_REQUEST_BYTES} bytes at most");
                refused(&Value::Null, &Failure::Request(reason))
            }
            false => {
                // Each statement has threads of its own. Those of a stopped statement may still
                // compute.
                let executor = executors.lend(())?;
                executor.handle().block_on(executor.scope().future(respond(session, &line)))
            }
        };
        output.write_all(response.as_bytes())?;
        output.write_all(b"\n")?;
        output.flush()?;
    }
}

struct Request {
    id: Value,
    sql: String,
    rows: WantRows,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum WantRows {
    Printed,
    Counted,
}

/// The reason there is no answer: the request, or the statement in it.
enum Failure {
    Request(String),
    Statement(Error),
}

impl From<Error> for Failure {
    fn from(e: Error) -> Self {
        Self::Statement(e)
    }
}

impl From<ArrowError> for Failure {
    fn from(e: ArrowError) -> Self {
        Self::Statement(e.into())
    }
}

async fn respond(session: &Session, line: &[u8]) -> String {
    let (id, answer) = match Request::parse(line) {
        Ok(request) => (request.id.clone(), answer(session, &request).await),
        Err((id, reason)) => (id, Err(Failure::Request(reason))),
    };
    match answer {
        Ok(answer) => format!("{{\"id\":{id},\"ok\":true,{answer}}}"),
        Err(failure) => refused(&id, &failure),
    }
}

fn refused(id: &Value, failure: &Failure) -> String {
    json!({ "id": id, "ok": false, "error": failure.to_json() }).to_string()
}

impl Request {
    fn parse(line: &[u8]) -> Result<Self, (Value, String)> {
        let value: Value =
            serde_json::from_slice(line).map_err(|e| (Value::Null, format!("the request is not JSON: {e}")))?;
        let id = value.get("id").cloned().unwrap_or(Value::Null);
        let Some(fields) = value.as_object() else {
            return Err((id, "the request is not a JSON object".into()));
        };
        if let Some(name) = fields.keys().find(|name| !["id", "sql", "rows"].contains(&name.as_str())) {
            return Err((id, format!("a request has \"id\", \"sql\" and \"rows\"; this one has \"{name}\"")));
        }
        let Some(sql) = fields.get("sql").and_then(Value::as_str) else {
            return Err((id, "the request has no \"sql\" string".into()));
        };
        let rows = match fields.get("rows") {
            None | Some(Value::Bool(true)) => WantRows::Printed,
            Some(Value::Bool(false)) => WantRows::Counted,
            Some(_) => return Err((id, "\"rows\" is true or false".into())),
        };
        Ok(Self { id, sql: sql.into(), rows })
    }

    fn statement(&self) -> Result<&str, Failure> {
        let mut statements = Script::new(&self.sql);
        match (statements.next(), statements.next()) {
            (Some(statement), None) => Ok(statement),
            (None, _) => Err(Failure::Request("\"sql\" holds no statement".into())),
            (Some(_), Some(_)) => Err(Failure::Request("\"sql\" holds more than one statement".into())),
        }
    }
}

impl Failure {
    fn to_json(&self) -> Value {
        match self {
            Self::Request(message) => json!({ "kind": "request", "message": message, "hint": null }),
            Self::Statement(e) => json!({ "kind": e.kind().name(), "message": e.message(), "hint": e.hint() }),
        }
    }
}

/// Returns the members of a successful response after `"ok"`.
async fn answer(session: &Session, request: &Request) -> Result<String, Failure> {
    let statement = request.statement()?;
    let started = Instant::now();
    let result = match session.sql(statement).await? {
        Output::Rows(mut rows) => {
            let columns = columns_json(rows.schema());
            let shown = schema_in_zone(rows.schema(), session.zone().as_deref());
            let mut printed = String::new();
            let mut row_count = 0;
            while let Some(batch) = rows.next().await {
                let batch = batch?;
                row_count += batch.num_rows();
                if request.rows == WantRows::Printed {
                    let batch = rows_in_zone(&batch, &shown)?;
                    write_rows(&rows_with_far_texts(&batch, &shown)?, &mut printed)?;
                }
            }
            format!("\"columns\":{columns},\"rows\":[{printed}],\"row_count\":{row_count}")
        }
        Output::Done(done) => {
            let row_count = done.rows.unwrap_or(0);
            format!("\"tag\":{},\"columns\":[],\"rows\":[],\"row_count\":{row_count}", json!(done.tag))
        }
    };
    let wall = started.elapsed();
    let query = session.query();
    let plan = query.plan_time();
    Ok(format!(
        "{result},\"plan_ns\":{},\"run_ns\":{},\"wall_ns\":{},\"ledger\":{}",
        plan.as_nanos(),
        wall.saturating_sub(plan).as_nanos(),
        wall.as_nanos(),
        ledger_json(&query.ledger()),
    ))
}

fn columns_json(schema: &Schema) -> Value {
    schema.fields().iter().map(|field| json!({ "name": field.name(), "type": field.data_type().to_string() })).collect()
}

fn ledger_json(ledger: &LedgerSnapshot) -> Value {
    ledger
        .counters()
        .map(|(name, count)| (name.to_string(), Value::from(count)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

/// Appends the batch's rows as JSON arrays, with a comma before each but the very first of `out`.
fn write_rows(batch: &RecordBatch, out: &mut String) -> Result<(), ArrowError> {
    // A column's own NULLs are written as JSON's null.
    let options = FormatOptions::new().with_display_error(false).with_null("NULL");
    let columns: Vec<Column> =
        batch.columns().iter().map(|array| Column::new(array, &options)).collect::<Result<_, _>>()?;
    for row in 0..batch.num_rows() {
        out.push_str(if out.is_empty() { "[" } else { ",[" });
        for (i, column) in columns.iter().enumerate() {
            if i > 0 {
                out.push(',');
            }
            column.write(row, out)?;
        }
        out.push(']');
    }
    Ok(())
}

/// A column and the conversion of its values to JSON.
struct Column<'a> {
    nulls: Option<NullBuffer>,
    values: Values<'a>,
}

enum Values<'a> {
    /// Arrow's text is valid JSON.
    Plain(ArrayFormatter<'a>),
    /// Arrow's text becomes a JSON string.
    Quoted(ArrayFormatter<'a>),
    /// Intervals, in the engine's SQL form.
    Texts(ArrayRef),
    Float32(&'a Float32Array),
    Float64(&'a Float64Array),
    List(&'a OffsetBuffer<i32>, Box<Column<'a>>),
}

impl<'a> Column<'a> {
    fn new(array: &'a ArrayRef, options: &FormatOptions<'a>) -> Result<Self, ArrowError> {
        let values = match array.data_type() {
            DataType::Float32 => Values::Float32(array.as_primitive::<Float32Type>()),
            DataType::Float64 => Values::Float64(array.as_primitive::<Float64Type>()),
            DataType::List(_) => {
                let lists = array.as_list::<i32>();
                Values::List(lists.offsets(), Box::new(Column::new(lists.values(), options)?))
            }
            plain if plain.is_integer() || *plain == DataType::Boolean => {
                Values::Plain(ArrayFormatter::try_new(array, options)?)
            }
            DataType::Interval(_) | DataType::Duration(_) => Values::Texts(interval_texts(array)?),
            _ => Values::Quoted(ArrayFormatter::try_new(array, options)?),
        };
        Ok(Self { nulls: array.logical_nulls(), values })
    }

    fn write(&self, row: usize, out: &mut String) -> Result<(), ArrowError> {
        if self.nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)) {
            out.push_str("null");
            return Ok(());
        }
        match &self.values {
            Values::Plain(text) => text.value(row).write(out)?,
            Values::Quoted(text) => write_string(&text.value(row).try_to_string()?, out),
            Values::Texts(texts) => write_string(texts.as_string::<i32>().value(row), out),
            Values::Float32(values) => {
                let value = values.value(row);
                write_float(value.is_finite(), value, out);
            }
            Values::Float64(values) => {
                let value = values.value(row);
                write_float(value.is_finite(), value, out);
            }
            Values::List(offsets, elements) => {
                out.push('[');
                let (start, end) = (offsets[row] as usize, offsets[row + 1] as usize);
                for at in start..end {
                    if at > start {
                        out.push(',');
                    }
                    elements.write(at, out)?;
                }
                out.push(']');
            }
        }
        Ok(())
    }
}

fn interval_texts(array: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    let texts = column_texts(array, Zone::Utc).map_err(|e| ArrowError::ExternalError(Box::new(e)))?;
    texts.ok_or_else(|| ArrowError::InvalidArgumentError("intervals have no text".into()))
}

/// Writes a float. Rust's debug form is the shortest text that reads back the same, and valid JSON
/// if it is finite.
fn write_float(is_finite: bool, value: impl std::fmt::Debug, out: &mut String) {
    let quote = if is_finite { "" } else { "\"" };
    // Writing to a String cannot fail.
    let _ = write!(out, "{quote}{value:?}{quote}");
}

fn write_string(text: &str, out: &mut String) {
    let _ = write!(out, "{}", Value::from(text));
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use onehop_engine::{Database, DatabaseOptions, Executors};
    use serde_json::Value;

    use super::run;

    fn converse(requests: &str) -> Vec<Value> {
        converse_in_bytes(requests.as_bytes())
    }

    fn converse_in_bytes(requests: &[u8]) -> Vec<Value> {
        let database = Database::memory(&DatabaseOptions::default()).unwrap();
        let session = database.session().unwrap();
        let mut output = Vec::new();
        let executors = Executors::new(Some(1)).unwrap();
        run(&executors, &session, requests, &mut output).unwrap();
        String::from_utf8(output).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn values_lose_nothing() {
        let sql = "SELECT 9223372036854775807 AS i, 0.1::double AS f, 'NaN'::double AS n, true AS b, NULL AS z, \
                   '12345678901234567890.123'::decimal(38,3) AS d, DATE '2024-02-29' AS day, 'a\\\"\u{e9}' AS s, \
                   make_array(1, NULL) AS l, 1e300::double AS big, '-inf'::double AS m";
        let request = serde_json::json!({ "id": [1, "x"], "sql": sql }).to_string();
        let response = converse(&request).remove(0);
        assert_eq!(response["ok"], true, "{response}");
        assert_eq!(response["id"], serde_json::json!([1, "x"]));
        assert_eq!(
            response["rows"][0].to_string(),
            "[9223372036854775807,0.1,\"NaN\",true,null,\"12345678901234567890.123\",\"2024-02-29\",\"a\\\\\\\"é\",\
             [1,null],1e+300,\"-inf\"]"
        );
        assert_eq!(response["row_count"], 1);
        assert_eq!(response["columns"][0], serde_json::json!({ "name": "i", "type": "Int64" }));
        assert!(response["wall_ns"].as_u64() >= response["run_ns"].as_u64());
        assert!(response["ledger"]["storage_to_host_bytes"].is_u64());
    }

    #[test]
    fn dates_of_all_years_are_as_sql_writes_them() {
        let sql = "SELECT DATE '0044-03-15 BC' AS a, DATE '12000-01-01' AS b, DATE '262144-01-01' AS c, \
                   TIMESTAMP '12000-01-01 00:00:00' AS d, [DATE '262144-01-01', NULL] AS l, DATE '2024-02-29' AS e";
        let response = converse(&serde_json::json!({ "sql": sql }).to_string()).remove(0);
        assert_eq!(response["ok"], true, "{response}");
        assert_eq!(
            response["rows"][0].to_string(),
            "[\"0044-03-15 BC\",\"12000-01-01\",\"262144-01-01\",\"12000-01-01 00:00:00\",\
             [\"262144-01-01\",null],\"2024-02-29\"]"
        );
    }

    #[test]
    fn a_request_that_is_no_text_is_answered_too() {
        let responses = converse_in_bytes(b"{\"sql\":\"SELECT '\xff'\"}\n{\"id\":2,\"sql\":\"SELECT 1\"}");
        assert_eq!(responses[0]["error"]["kind"], "request", "{}", responses[0]);
        assert_eq!((&responses[1]["id"], &responses[1]["ok"]), (&2.into(), &true.into()));
    }

    #[test]
    fn rows_can_be_counted_without_printing() {
        let response = converse(r#"{"sql": "SELECT * FROM (VALUES (1), (2), (3)) AS t(a);", "rows": false}"#).remove(0);
        assert_eq!((&response["row_count"], &response["rows"]), (&3.into(), &Value::Array(vec![])));
    }

    #[test]
    fn bad_requests_are_answered_and_end_nothing() {
        let responses = converse(
            "not json\n[]\n\n{\"id\":7}\n{\"sql\":\"SELECT 1; SELECT 2\"}\n{\"sql\":\" ; \"}\n\
             {\"sql\":\"SELECT 1\",\"rows\":2}\n{\"sql\":\"SELECT 1\",\"row\":true}\n{\"id\":8,\"sql\":\"SELEC\"}\n\
             {\"id\":9,\"sql\":\"SELECT 1\"}",
        );
        assert_eq!(responses.len(), 9);
        for response in &responses[..7] {
            assert_eq!(response["error"]["kind"], "request", "{response}");
        }
        assert_eq!(responses[2]["id"], 7);
        assert_eq!((&responses[7]["id"], &responses[7]["error"]["kind"]), (&8.into(), &"syntax".into()));
        assert_eq!((&responses[8]["id"], &responses[8]["ok"]), (&9.into(), &true.into()));
    }
}
