//! Conventions of the source as tests, in the manner of TigerBeetle's `tidy.zig`.
//!
//! 1. Crates depend downwards: [`CRATES`] is their order, from the bottom up.
//! 2. Modules of `engine` import downwards: [`ENGINE`] is their order. In other crates, no more
//!    modules import each other in a circle than [`CIRCLES`] says.
//! 3. Files stay below [`MOST_LINES`] lines, but for those in [`LONG_FILES`].
//! 4. Links between documents lead to files.
//! 5. Functions are short, and public ones take no booleans by position ([`functions`]).
//! 6. Comments, messages and documents keep the rules of language ([`language`]).
//!
//! Numbers and lists here only ever become smaller. A failure prints file and line, and the fix.
//! Test modules may import anything.

#![allow(clippy::unwrap_used)]

mod functions;
mod imports;
mod language;

use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use self::imports::{Import, circles, imports};

/// The crates, from the bottom up: each depends only on those before it.
const CRATES: [&str; 17] = [
    "governor", "io", "store", "segment", "files", "learn", "postgres", "ceph", "pipeline", "cuda", "engine", "jni",
    "lab", "server", "cli", "python", "tests",
];

/// The modules of `engine`, from the bottom up: each imports only from those before it.
const ENGINE: &[&str] = &[
    // Names, hashes, errors.
    "encoded",
    "hash",
    "identifiers",
    "parameter",
    "script",
    "system_columns",
    "transaction_state",
    "type_words",
    "units",
    "explanation",
    "type_names",
    "error",
    "watched",
    // Types of values, settings, limits.
    "memory_pool",
    "pg_types",
    "relation",
    "rights",
    "writer",
    "convert",
    "settings",
    "limits",
    // Storage: catalog, rows, segments, snapshots.
    "catalog",
    "deleted_vectors",
    "directory",
    "fresh",
    "life",
    "partition",
    "scan_plan",
    "segments",
    "orphans",
    "snapshot",
    "edit",
    "step",
    // A single statement, and its resources.
    "query",
    "activity",
    "attached",
    "executors",
    "history",
    "place",
    "task",
    "template",
    "arrays",
    "fusing",
    "spill",
    "functions",
    "pipeline_budget",
    "runtimes",
    // From text to operators.
    "postgres",
    "files",
    "new_names",
    "planner",
    "scan",
    "definition",
    "prepared",
    "template_cache",
    "lower",
    "plans",
    "query_planner",
    // The database, and its writers.
    "remote",
    "database",
    "learn",
    "load",
    "repair",
    "check",
    "unsettle",
    "explain",
    "system",
    "transaction",
    "backup",
    "resolve",
    "temporary",
    // The facade.
    "session",
    "statement",
    "bulk",
];

/// The number of modules of other crates that import each other in a circle.
const CIRCLES: [(&str, usize); 16] = [
    ("governor", 8),
    ("io", 5),
    ("store", 9),
    ("segment", 3),
    ("files", 0),
    ("learn", 2),
    ("postgres", 3),
    ("ceph", 0),
    ("pipeline", 15),
    ("cuda", 8),
    ("engine", 0),
    ("jni", 6),
    ("lab", 2),
    ("server", 15),
    ("cli", 8),
    ("tests", 0),
];

/// The maximum number of lines of a file, its tests included.
const MOST_LINES: usize = 800;

/// Longer files, which wait to be split.
const LONG_FILES: &[&str] = &[
    "crates/engine/src/lower/exec.rs",
    "crates/engine/tests/fused.rs",
    "crates/io/src/rados/fs/transaction/tests/mod.rs",
    "crates/pipeline/src/cpu/code.rs",
];

#[test]
fn crates_depend_downwards() {
    let mut wrong = Vec::new();
    for (place, name) in CRATES.iter().enumerate() {
        let manifest = root(name).join("Cargo.toml");
        let text = fs::read_to_string(&manifest).unwrap();
        let dependencies = text.split("[dev-dependencies]").next().unwrap();
        for (number, line) in dependencies.lines().enumerate() {
            let Some(other) = line.strip_prefix("onehop").and_then(|rest| rest.split(['.', ' ', '=']).next()) else {
                continue;
            };
            let other = if other.is_empty() { "cli" } else { other.trim_start_matches('-') };
            if !CRATES[..place].contains(&other) {
                wrong.push(format!(
                    "{}:{}: {name} stands below {other} (CRATES in tests/tests/tidy/main.rs): move what it needs into a crate \
                     below both",
                    manifest.display(),
                    number + 1
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn modules_of_engine_import_downwards() {
    let imports = imports("engine");
    let modules: BTreeSet<&str> = imports.modules.iter().map(String::as_str).collect();
    let listed: BTreeSet<&str> = ENGINE.iter().copied().collect();
    assert_eq!(listed.len(), ENGINE.len(), "ENGINE in tests/tests/tidy/main.rs names a module twice");
    let unlisted: Vec<_> = modules.difference(&listed).collect();
    assert!(unlisted.is_empty(), "give {unlisted:?} a place in ENGINE in tests/tests/tidy/main.rs");
    let gone: Vec<_> = listed.difference(&modules).collect();
    assert!(gone.is_empty(), "{gone:?} are no modules any more: take them out of ENGINE in tests/tests/tidy/main.rs");
    let place: HashMap<&str, usize> = ENGINE.iter().enumerate().map(|(place, name)| (*name, place)).collect();
    let wrong: Vec<String> = imports
        .all
        .iter()
        .filter(|import| place[import.from.as_str()] < place[import.to.as_str()])
        .map(|Import { from, to, at }| {
            format!(
                "{at}: {from} imports from {to}, which stands above it (ENGINE in tests/tests/tidy/main.rs): move the name down, \
                 or have the caller pass the value"
            )
        })
        .collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn circles_of_modules_become_fewer() {
    let mut wrong = Vec::new();
    for (name, most) in CIRCLES {
        let circles = circles(&imports(name));
        let found: usize = circles.iter().map(Vec::len).sum();
        println!("{name}: {found} modules in circles {circles:?}");
        match found.cmp(&most) {
            Ordering::Greater => {
                wrong.push(format!("{name}: {found} modules import each other in circles, {most} before: {circles:?}"))
            }
            Ordering::Less => wrong.push(format!(
                "{name}: {found} modules are left in circles: write that into CIRCLES in tests/tests/tidy/main.rs"
            )),
            Ordering::Equal => {}
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn files_are_short() {
    let mut long = Vec::new();
    for name in CRATES {
        for path in sources(&root(name)) {
            let lines = fs::read_to_string(&path).unwrap().lines().count();
            let path = path.strip_prefix(repository()).unwrap().display().to_string();
            match (lines > MOST_LINES, LONG_FILES.contains(&path.as_str())) {
                (true, false) => {
                    long.push(format!("{path}: {lines} lines, {MOST_LINES} at most: split it into two modules"))
                }
                (false, true) => long.push(format!("{path}: take it out of LONG_FILES in tests/tests/tidy/main.rs")),
                _ => {}
            }
        }
    }
    assert!(long.is_empty(), "\n{}", long.join("\n"));
}

#[test]
fn links_lead_somewhere() {
    let mut dead = Vec::new();
    let mut pages: Vec<PathBuf> = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "tests/README.md"]
        .map(|name| repository().join(name))
        .to_vec();
    pages.extend(files(&repository().join("docs"), "md"));
    for page in pages {
        let text = fs::read_to_string(&page).unwrap();
        for (number, line) in text.lines().enumerate() {
            for target in links(line) {
                let file = target.split('#').next().unwrap();
                if !file.is_empty() && !target.contains("://") && !page.parent().unwrap().join(file).exists() {
                    dead.push(format!("{}:{}: there is no {target}: mend the link", page.display(), number + 1));
                }
            }
        }
    }
    assert!(dead.is_empty(), "\n{}", dead.join("\n"));
}

/// Returns the targets of `[text](target)` in a line, code spans excluded.
fn links(line: &str) -> Vec<&str> {
    let mut targets = Vec::new();
    let mut rest = line;
    while let Some(at) = rest.find("](") {
        let before = &rest[..at];
        rest = &rest[at + 2..];
        let is_code = before.matches('`').count() % 2 == 1;
        if let Some(end) = rest.find(')').filter(|_| !is_code) {
            targets.push(rest[..end].split(' ').next().unwrap());
        }
    }
    targets
}

fn repository() -> PathBuf {
    std::path::absolute("..").unwrap().canonicalize().unwrap()
}

fn root(name: &str) -> PathBuf {
    match name {
        "python" | "tests" => repository().join(name),
        _ => repository().join("crates").join(name),
    }
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    ["src", "tests", "examples", "benches"].iter().flat_map(|name| files(&folder.join(name), "rs")).collect()
}

fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut found = Vec::new();
    for path in entries.map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|e| e == extension) {
            found.push(path);
        }
    }
    found.sort();
    found
}
