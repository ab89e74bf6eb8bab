//! Requests of `onehop pipe`: lines of JSON. Each line that is not blank has one response.

use onehop_engine::{Database, Error, Executors, Rights, Session};
use serde_json::Value;

use super::engine::options;
use super::{Made, Outcome, Target, Verdict, judge};

struct Requests {
    executors: Executors,
}

pub(super) fn target() -> Made {
    Ok(Box::new(Requests { executors: Executors::new(Some(2))? }))
}

fn session() -> Result<Session, Error> {
    Database::memory(&options("2s", &[]))?.session_with(Rights::Write)
}

impl Target for Requests {
    fn seeds(&self) -> Vec<Vec<u8>> {
        let seeds = [
            r#"{"id": 1, "sql": "SELECT 1 AS one, 'x' AS letter"}"#,
            r#"{"id": [2, {"a": null}], "sql": "SELECT * FROM (VALUES (1, 1.5), (NULL, 'NaN'::DOUBLE)) AS t(a, b);", "rows": false}"#,
            "{\"sql\": \"CREATE TABLE t (a INT, d DATE, n DECIMAL(38, 10))\"}\n\
             {\"sql\": \"INSERT INTO t VALUES (1, DATE '0044-03-15 BC', 0.1), (2, NULL, -1)\"}\n\
             {\"id\": \"\\ud83e\\udd80\", \"sql\": \"SELECT *, [a, NULL], named_struct('x', d) FROM t ORDER BY a\"}",
            "{\"sql\": \"SELEC\"}\n\n[]\nnot json\n{\"sql\": \"SELECT 1; SELECT 2\"}\n{\"id\": 1e999, \"sql\": \"\"}",
            r#"{"sql": "SELECT TIMESTAMPTZ '2024-02-29 12:00:00+01', INTERVAL '1 month', 'a\u0000b', '\\x00ff'::BLOB"}"#,
            "{\"sql\": \"BEGIN\"}\n{\"sql\": \"SELECT 1 / 0\"}\n{\"sql\": \"COMMIT\"}",
        ];
        seeds.into_iter().map(|seed| seed.as_bytes().to_vec()).collect()
    }

    fn run(&mut self, input: &[u8]) -> Verdict {
        let session = match session() {
            Ok(session) => session,
            Err(e) => return judge::<()>(&Err(e)),
        };
        let mut output = Vec::new();
        onehop::pipe::run(&self.executors, &session, input, &mut output).map_err(|_| "it ended before its input")?;
        let requests = input.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty()).count();
        let answers: Vec<Value> = serde_json::Deserializer::from_slice(&output)
            .into_iter()
            .collect::<Result<_, _>>()
            .map_err(|e| format!("an answer is no JSON: {e}"))?;
        let lines = output.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).count();
        if (answers.len(), lines) != (requests, requests) {
            return Err(format!("{requests} requests have {} answers in {lines} lines", answers.len()));
        }
        let mut outcome = Outcome::Accepted;
        for answer in &answers {
            match (&answer["ok"], &answer["error"]["kind"]) {
                (Value::Bool(true), _) => {}
                (_, Value::String(kind)) if kind != "internal" => outcome = Outcome::Refused,
                _ => return Err(answer.to_string()),
            }
        }
        Ok(outcome)
    }
}
