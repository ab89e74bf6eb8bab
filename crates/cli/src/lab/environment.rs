//! The environment of a measurement. A figure without it cannot be reproduced, so a benchmark
//! prints it before its first time and includes it in its JSON. It is detected, not configured:
//! unknown values are `None`.

use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use arrow::array::TimestampSecondArray;
use arrow::util::display::array_value_to_string;
use serde_json::{Value, json};

use crate::doctor::{cpu, kernel, memory, storage};
use crate::version::{self, Profile};
use onehop_engine::units;

/// Machine, system and binary.
#[derive(Clone, Debug)]
pub struct Environment {
    /// The time in UTC: `2026-11-21T12:34:56Z`.
    pub date: Option<String>,
    /// The processor's model.
    pub cpu: Option<String>,
    /// The number of cores that this process may use.
    pub cores: usize,
    /// The memory of the machine, in bytes.
    pub memory_bytes: Option<u64>,
    /// The distribution.
    pub os: Option<String>,
    /// The kernel, its release and architecture.
    pub kernel: String,
    /// The file system of the database, and its device.
    pub file_system: Option<String>,
}

impl Environment {
    /// Detects the environment. `database` is the path of the data.
    pub fn find(database: &Path) -> Self {
        Self {
            date: date(),
            cpu: cpu::model(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: memory::total_bytes(),
            os: fs::read_to_string("/etc/os-release").ok().and_then(|text| os(&text)),
            kernel: kernel::name(),
            file_system: storage::file_system_of(database),
        }
    }

    /// Returns name and value pairs, for the head of a table.
    pub fn lines(&self) -> Vec<(&'static str, String)> {
        let or_unknown = |text: &Option<String>| text.clone().unwrap_or_else(|| "unknown".into());
        let cores = units::plural(self.cores as u64, "core");
        let memory = self.memory_bytes.map_or("memory unknown".into(), units::memory);
        let profile = match Profile::of_this_build() {
            Profile::Release => "release build",
            Profile::Debug => "DEBUG BUILD: its times say nothing",
        };
        vec![
            ("onehop", format!("{}, {profile}", version::TEXT)),
            ("machine", format!("{}, {cores}, {memory}", or_unknown(&self.cpu))),
            ("system", format!("{}, {}", or_unknown(&self.os), self.kernel)),
            ("storage", or_unknown(&self.file_system)),
            ("date", or_unknown(&self.date)),
        ]
    }

    /// Returns the environment as JSON, in base units.
    pub fn json(&self) -> Value {
        json!({
            "date": self.date,
            "onehop_version": version::NUMBER,
            "git_commit": version::commit(),
            "build_profile": Profile::of_this_build().name(),
            "cpu": self.cpu,
            "cores": self.cores,
            "memory_bytes": self.memory_bytes,
            "os": self.os,
            "kernel": self.kernel,
            "file_system": self.file_system,
        })
    }
}

fn date() -> Option<String> {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs();
    let date = TimestampSecondArray::from(vec![i64::try_from(seconds).ok()?]);
    array_value_to_string(&date, 0).ok().map(|text| format!("{text}Z"))
}

fn os(release: &str) -> Option<String> {
    let name = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
    Some(name.trim_matches(['"', '\'']).to_string()).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_date_is_one() {
        let date = date().unwrap_or_default();
        assert!(date.len() == 20 && date.as_bytes()[10] == b'T' && date.ends_with('Z'), "{date}");
    }

    #[test]
    fn the_distribution_has_a_name() {
        assert_eq!(os("NAME=Debian\nPRETTY_NAME=\"Debian GNU/Linux 13\"\n").as_deref(), Some("Debian GNU/Linux 13"));
        assert_eq!(os("NAME=x\n"), None);
    }
}
