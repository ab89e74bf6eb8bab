//! Settings: names and values, by `SET` and by a client's parameters, `name=value` in an input.

use onehop_engine::{Database, Rights};

use super::engine::{Engine, options};
use super::{Made, Outcome, Target, Verdict, judge, together};

struct Settings {
    engine: Engine,
    database: Database,
}

pub(super) fn target() -> Made {
    Ok(Box::new(Settings { engine: Engine::new()?, database: Database::memory(&options("5s", &[]))? }))
}

impl Target for Settings {
    fn seeds(&self) -> Vec<Vec<u8>> {
        let seeds = [
            "threads=2",
            "memory_limit=256MiB",
            "memory_limit=60%",
            "temp_directory=/nowhere",
            "statement_timeout=500ms",
            "statement_timeout=1.5h",
            "lock_timeout=2min",
            "exec.mode=datafusion",
            "exec.fallback=error",
            "preserve_order=false",
            "functions.python=python3",
            "gpu.mode=auto",
            "gpu.devices=0,1",
            "gpu.min_bytes=1GiB",
            "io.path=buffered",
            "ceph.timeout=30s",
            "storage.block_rows=1024",
            "storage.segment_rows=4096",
            "storage.checkpoint_rows=10",
            "TimeZone=Europe/Berlin",
            "TimeZone=<+02>-02:30",
            "DateStyle=ISO, MDY",
            "IntervalStyle=postgres",
            "client_encoding=UTF8",
            "extra_float_digits=3",
            "search_path=\"$user\", public",
            "application_name=x",
            "standard_conforming_strings=on",
            "bytea_output=hex",
        ];
        seeds.into_iter().map(|seed| seed.as_bytes().to_vec()).collect()
    }

    fn run(&mut self, input: &[u8]) -> Verdict {
        let text = String::from_utf8_lossy(input);
        let (name, value) = text.split_once('=').unwrap_or((&text, ""));
        // Threads and memory belong to this process. Only the parsing of their values is tested.
        let session = self.database.session_with(Rights::Write).map_err(|e| e.to_string())?;
        let by_client = judge(&session.set_parameter(name, value));
        let by_statement = judge(&self.engine.run(&session, &format!("SET {name} = '{}'", value.replace('\'', "''"))));
        let bare = judge(&self.engine.run(&session, &format!("SET {name} TO {}", value.replace(';', " "))));
        let used = judge(&self.engine.run(
            &session,
            "SELECT now(), CAST(TIMESTAMPTZ '2024-03-31 02:30:00' AS VARCHAR), sum(i) FROM generate_series(1, 9) AS g(i)",
        ));
        let shown = judge(&self.engine.run(&session, "SHOW ALL"));
        // A value that is refused on use, and not when it is set, is a late error and no failure.
        together([by_client, by_statement.and(bare), used.map(|_| Outcome::Accepted), shown])
    }
}
