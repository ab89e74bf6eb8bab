//! Shared output code of the benchmarks that print a table and write reports.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use crate::args::ReportArgs;
use crate::exit::Stop;
use crate::terminal::{Paint, Terminal, note};
use crate::version::Profile;

/// Warns if this is a debug build, whose `what` (for example times) is meaningless.
pub fn warn_of_debug_build(what: &str, terminal: &Terminal) {
    if Profile::of_this_build() == Profile::Debug {
        note(format!(
            "{} this is a debug build, and its {what} say nothing about Onehop. Build with: cargo build --release -p onehop",
            terminal.paint(Paint::Yellow, "WARNING:")
        ));
    }
}

/// Returns the head of a table: a line for each name and value.
pub fn head(lines: &[(&'static str, String)]) -> String {
    lines.iter().map(|(name, value)| format!("{name:<9} {value}\n")).collect()
}

/// Writes the requested reports.
pub fn write_reports(
    args: &ReportArgs,
    plot: Option<&Path>,
    json: impl FnOnce() -> serde_json::Result<String>,
    csv: impl FnOnce() -> String,
    svg: impl FnOnce() -> String,
) -> Result<(), Stop> {
    if let Some(target) = &args.json {
        let json = json().map_err(|e| Stop::System("cannot write JSON".into(), e.into()))?;
        write_text(target, &(json + "\n"))?;
    }
    if let Some(target) = &args.csv {
        write_text(target, &csv())?;
    }
    if let Some(target) = plot {
        write_text(target, &svg())?;
    }
    Ok(())
}

/// Writes a text to a file, or to standard output (`-`).
pub fn write_text(target: &Path, text: &str) -> Result<(), Stop> {
    match target.to_str() {
        Some("-") => Ok(io::stdout().lock().write_all(text.as_bytes())?),
        _ => fs::write(target, text).map_err(|e| Stop::System(format!("cannot write {}", target.display()), e)),
    }
}
