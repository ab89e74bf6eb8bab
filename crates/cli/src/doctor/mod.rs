//! `onehop doctor`: the capabilities of this machine, as a list of named probes.
//!
//! Each probe examines one thing and reports its finding. If it is less than possible, it adds the
//! cause and the fix. Something absent and not needed is INFO, never more: a laptop without a GPU
//! is a healthy machine. WARN marks something that works and could work better. FAIL marks
//! something that would stop the engine, and only FAIL changes the exit code.

pub mod cpu;
pub mod gpu;
mod gpu_storage;
pub mod kernel;
mod libraries;
pub mod memory;
pub mod storage;

use std::io::{self, Write};

use serde_json::json;

use crate::args::DoctorArgs;
use crate::exit::Stop;
use crate::terminal::{Paint, Terminal};
use crate::version::{self, Profile};

/// The status of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Present, and as it should be.
    Ok,
    /// Absent, and not needed.
    Info,
    /// Present, and could be better.
    Warn,
    /// The engine cannot work like this.
    Fail,
}

impl Status {
    fn name(self) -> &'static str {
        match self {
            Status::Ok => "OK",
            Status::Info => "INFO",
            Status::Warn => "WARN",
            Status::Fail => "FAIL",
        }
    }

    fn paint(self) -> Paint {
        match self {
            Status::Ok => Paint::Green,
            Status::Info => Paint::Dim,
            Status::Warn => Paint::Yellow,
            Status::Fail => Paint::Red,
        }
    }
}

/// The finding of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The name. It is stable, because JSON readers depend on it.
    name: &'static str,
    status: Status,
    found: String,
    cause: Option<String>,
    fix: Option<String>,
}

impl Finding {
    fn new(name: &'static str, status: Status, found: impl Into<String>) -> Self {
        Self { name, status, found: found.into(), cause: None, fix: None }
    }

    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self::new(name, Status::Ok, found)
    }

    fn info(name: &'static str, found: impl Into<String>) -> Self {
        Self::new(name, Status::Info, found)
    }

    fn warn(name: &'static str, found: impl Into<String>) -> Self {
        Self::new(name, Status::Warn, found)
    }

    fn fail(name: &'static str, found: impl Into<String>) -> Self {
        Self::new(name, Status::Fail, found)
    }

    /// Adds the cause.
    fn because(mut self, cause: impl Into<String>) -> Self {
        self.cause = Some(cause.into());
        self
    }

    /// Returns the finding in one line.
    fn sentence(&self) -> String {
        let more: Vec<&str> = [&self.cause, &self.fix].into_iter().flatten().map(String::as_str).collect();
        if more.is_empty() { self.found.clone() } else { format!("{}: {}", self.found, more.join("; ")) }
    }

    /// Adds the fix and its benefit.
    fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }
}

/// Runs all probes and prints the findings.
pub fn run(args: &DoctorArgs, terminal: &Terminal) -> Result<(), Stop> {
    let findings = look(args);
    let text = if args.json { as_json(&findings) } else { as_text(&findings, terminal.stdout_color()) };
    io::stdout().lock().write_all(text.as_bytes())?;
    match findings.iter().filter(|finding| finding.status == Status::Fail).count() {
        0 => Ok(()),
        n => Err(onehop_engine::Error::new(onehop_engine::ErrorKind::Io, format!("{n} of the probes failed")).into()),
    }
}

fn look(args: &DoctorArgs) -> Vec<Finding> {
    let mut findings = vec![build()];
    findings.extend(cpu::probe());
    findings.extend(memory::probe());
    findings.extend(kernel::probe());
    findings.extend(storage::probe(&args.path));
    let (gpus, gpu) = gpu::probe();
    findings.extend(gpus);
    findings.extend(libraries::probe());
    findings.extend(gpu_storage::probe(&args.path, gpu.as_ref()));
    findings
}

fn build() -> Finding {
    match Profile::of_this_build() {
        Profile::Release => Finding::ok("onehop", version::TEXT),
        Profile::Debug => Finding::info("onehop", format!("{}, a debug build", version::TEXT))
            .because("it checks itself and is slow")
            .fix("cargo build --release -p onehop"),
    }
}

fn as_text(findings: &[Finding], has_color: bool) -> String {
    let mut text = String::new();
    for finding in findings {
        let status = format!("{:<4}", finding.status.name());
        let status = if has_color { finding.status.paint().apply(status) } else { status };
        text += &format!("{status}  {:<16} {}\n", finding.name, finding.found);
        for (label, line) in [("cause", &finding.cause), ("fix", &finding.fix)] {
            if let Some(line) = line {
                text += &format!("{:<23}{label}: {line}\n", "");
            }
        }
    }
    let count = |status| findings.iter().filter(|finding| finding.status == status).count();
    let verdict = match (count(Status::Fail), count(Status::Warn)) {
        (0, 0) => "Everything onehop needs is here.".to_string(),
        (0, n) => format!("Everything onehop needs is here; {n} could be better."),
        (n, _) => format!("{n} must be mended before onehop can work."),
    };
    text += &format!("\n{verdict}\n");
    text
}

fn as_json(findings: &[Finding]) -> String {
    let probe = |finding: &Finding| {
        json!({
            "name": finding.name,
            "status": finding.status.name(),
            "found": finding.found,
            "cause": finding.cause,
            "fix": finding.fix,
        })
    };
    let report = json!({ "schema_version": 1, "probes": findings.iter().map(probe).collect::<Vec<_>>() });
    format!("{report:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_says_cause_and_fix() {
        let findings = [
            Finding::ok("cpu", "8 cores"),
            Finding::warn("memlock", "64 KiB").because("the limit of this shell").fix("ulimit -l unlimited"),
        ];
        assert_eq!(
            as_text(&findings, false),
            "OK    cpu              8 cores\nWARN  memlock          64 KiB\n                       cause: the limit of this \
             shell\n                       fix: ulimit -l unlimited\n\nEverything onehop needs is here; 1 could be better.\n"
        );
    }

    #[test]
    fn json_keeps_names_and_absent_parts() -> serde_json::Result<()> {
        let report: serde_json::Value = serde_json::from_str(&as_json(&[Finding::info("gpu", "none")]))?;
        assert_eq!(report["schema_version"], 1);
        assert_eq!(report["probes"][0]["status"], "INFO");
        assert!(report["probes"][0]["fix"].is_null());
        Ok(())
    }

    #[test]
    fn the_machine_that_tests_us_is_fit() {
        let args = DoctorArgs { path: std::env::temp_dir(), json: false };
        let failed: Vec<Finding> = look(&args).into_iter().filter(|finding| finding.status == Status::Fail).collect();
        assert_eq!(failed, []);
    }
}
