//! Runs the binary as a process and captures its output and exit code.

// Every test binary uses a part of this.
#![allow(dead_code)]

use std::process::{Command, Output, Stdio};

/// Returns the command with these arguments, no input, and none of the settings that change its
/// output.
pub fn onehop(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_onehop"));
    command.args(words).stdin(Stdio::null()).env_remove("ONEHOP_FORMAT").env("NO_COLOR", "1");
    command
}

/// The output of a process.
pub struct Said {
    pub exit: Option<i32>,
    pub out: String,
    pub err: String,
}

impl From<Output> for Said {
    fn from(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Said { exit: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }
}

/// Runs the binary with these arguments.
pub fn run(words: &[&str]) -> Said {
    onehop(words).output().unwrap_or_else(|e| panic!("{words:?}: {e}")).into()
}

/// Runs a command that must succeed. Returns its standard output.
#[track_caller]
pub fn done(words: &[&str]) -> String {
    let said = run(words);
    assert_eq!(said.exit, Some(0), "{words:?}: {}", said.err);
    said.out
}
