//! Conventions of the source as tests, in the manner of TigerBeetle's `tidy.zig`.
//!
//! 1. Crates depend downwards: [`CRATES`] is their order, from the bottom up.
//! 2. Modules of `engine` import downwards: [`ENGINE`] is their order. In other crates, no more modules
//!    import each other in a circle than [`CIRCLES`] says.
//! 3. Files stay below [`MOST_LINES`] lines, but for those in [`LONG_FILES`].
//! 4. Links between documents lead to files.
//!
//! Numbers and lists here only ever become smaller. A failure prints file and line, and what to do.
//! Test modules import what they like.

#![allow(clippy::unwrap_used)]

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use syn::spanned::Spanned;
use syn::visit::Visit;

/// The crates, from the bottom up: each depends on those before it alone.
const CRATES: [&str; 17] = [
    "governor", "io", "store", "segment", "files", "learn", "postgres", "ceph", "pipeline", "cuda", "engine", "jni",
    "lab", "server", "cli", "python", "tests",
];

/// The modules of `engine`, from the bottom up: each imports from those before it alone.
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
    // What is stored: catalog, rows, segments, snapshots.
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
    // One statement, and what it may use.
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
    // The database, and who changes it.
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

/// Modules of other crates that import each other in a circle.
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

/// Lines of a file, its tests included.
const MOST_LINES: usize = 800;

/// Longer files, which wait to be split.
const LONG_FILES: &[&str] = &[
    "crates/engine/src/database.rs",
    "crates/engine/src/lower/exec.rs",
    "crates/engine/src/settings.rs",
    "crates/engine/src/statement/mod.rs",
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
                    "{}:{}: {name} stands below {other} (CRATES in tests/tests/tidy.rs): move what it needs into a crate \
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
    assert_eq!(listed.len(), ENGINE.len(), "ENGINE in tests/tests/tidy.rs names a module twice");
    let unlisted: Vec<_> = modules.difference(&listed).collect();
    assert!(unlisted.is_empty(), "give {unlisted:?} a place in ENGINE in tests/tests/tidy.rs");
    let gone: Vec<_> = listed.difference(&modules).collect();
    assert!(gone.is_empty(), "{gone:?} are no modules any more: take them out of ENGINE in tests/tests/tidy.rs");
    let place: HashMap<&str, usize> = ENGINE.iter().enumerate().map(|(place, name)| (*name, place)).collect();
    let wrong: Vec<String> = imports
        .all
        .iter()
        .filter(|import| place[import.from.as_str()] < place[import.to.as_str()])
        .map(|Import { from, to, at }| {
            format!(
                "{at}: {from} imports from {to}, which stands above it (ENGINE in tests/tests/tidy.rs): move the name down, \
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
                "{name}: {found} modules are left in circles: write that into CIRCLES in tests/tests/tidy.rs"
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
                (false, true) => long.push(format!("{path}: take it out of LONG_FILES in tests/tests/tidy.rs")),
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

/// Targets of `[text](target)` in a line, code spans left out.
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

/// An import from another module of the same crate.
struct Import {
    from: String,
    to: String,
    /// File and line.
    at: String,
}

/// Imports between the top modules of a crate.
struct Imports {
    modules: BTreeSet<String>,
    all: Vec<Import>,
}

fn imports(name: &str) -> Imports {
    let folder = root(name).join("src");
    let file = ["lib.rs", "main.rs"].map(|file| folder.join(file)).into_iter().find(|path| path.exists()).unwrap();
    let mut reader = Reader { paths: Vec::new(), modules: BTreeSet::new(), reexports: HashMap::new() };
    reader.read(&file, &folder, &[]);
    let Reader { paths, modules, reexports } = reader;
    let all = paths.into_iter().filter_map(|Mention { from, target, at }| {
        let first = target.first()?;
        let to = if modules.contains(first) { first.clone() } else { reexports.get(first)?.clone() };
        let from = from.first().filter(|from| **from != to)?.clone();
        Some(Import { from, to, at })
    });
    Imports { all: all.collect(), modules: modules.clone() }
}

/// A path in the source, from the root of the crate.
struct Mention {
    from: Vec<String>,
    target: Vec<String>,
    at: String,
}

/// Reads the modules of a crate, test modules left out.
struct Reader {
    paths: Vec<Mention>,
    modules: BTreeSet<String>,
    /// Modules by the names that the root gives out.
    reexports: HashMap<String, String>,
}

impl Reader {
    /// Reads a file whose module's files are in `folder`.
    fn read(&mut self, file: &Path, folder: &Path, module: &[String]) {
        let text = fs::read_to_string(file).unwrap();
        let parsed = syn::parse_file(&text).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        self.items(&parsed.items, file, folder, module);
    }

    fn items(&mut self, items: &[syn::Item], file: &Path, folder: &Path, module: &[String]) {
        let mut paths = Paths { found: Vec::new() };
        for item in items {
            let syn::Item::Mod(inner) = item else {
                if !is_test(attributes(item)) {
                    paths.visit_item(item);
                }
                continue;
            };
            if is_test(&inner.attrs) {
                continue;
            }
            let name = inner.ident.to_string();
            let below: Vec<String> = module.iter().cloned().chain([name.clone()]).collect();
            if module.is_empty() {
                self.modules.insert(name.clone());
            }
            let inside = folder.join(&name);
            match &inner.content {
                Some((_, items)) => self.items(items, file, &inside, &below),
                None => {
                    let candidates = [folder.join(format!("{name}.rs")), inside.join("mod.rs")];
                    let found = candidates.iter().find(|path| path.exists());
                    // One with a path attribute is generated.
                    if let Some(found) = found {
                        self.read(found, &inside, &below);
                    }
                }
            }
        }
        for (line, segments, is_use) in paths.found {
            let Some(target) = absolute(&segments, module) else { continue };
            if module.is_empty()
                && is_use
                && let [first, .., last] = target.as_slice()
            {
                self.reexports.insert(last.clone(), first.clone());
            }
            let at = format!("{}:{line}", file.strip_prefix(repository()).unwrap_or(file).display());
            self.paths.push(Mention { from: module.to_vec(), target, at });
        }
    }
}

/// The path from the root of the crate; `None` for one of another crate.
fn absolute(segments: &[String], module: &[String]) -> Option<Vec<String>> {
    let mut base = module.to_vec();
    let mut rest = segments;
    match segments.first()?.as_str() {
        "crate" => {
            base.clear();
            rest = &segments[1..];
        }
        "self" => rest = &segments[1..],
        "super" => {
            while rest.first().is_some_and(|segment| segment == "super") {
                base.pop()?;
                rest = &rest[1..];
            }
        }
        // At the root, names of its modules stand by themselves.
        _ if module.is_empty() => {}
        _ => return None,
    }
    base.extend(rest.iter().cloned());
    Some(base)
}

/// Collects paths: their line, their segments, and whether they are imports.
struct Paths {
    found: Vec<(usize, Vec<String>, bool)>,
}

impl Visit<'_> for Paths {
    fn visit_item_use(&mut self, item: &syn::ItemUse) {
        self.tree(&item.tree, &mut Vec::new());
    }

    fn visit_path(&mut self, path: &syn::Path) {
        let segments: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if segments.len() > 1 && path.leading_colon.is_none() {
            self.found.push((path.span().start().line, segments, false));
        }
        syn::visit::visit_path(self, path);
    }

    fn visit_item(&mut self, item: &syn::Item) {
        if !is_test(attributes(item)) {
            syn::visit::visit_item(self, item);
        }
    }
}

impl Paths {
    fn tree(&mut self, tree: &syn::UseTree, before: &mut Vec<String>) {
        match tree {
            syn::UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.tree(&path.tree, before);
                before.pop();
            }
            syn::UseTree::Group(group) => group.items.iter().for_each(|tree| self.tree(tree, before)),
            syn::UseTree::Name(_) | syn::UseTree::Rename(_) | syn::UseTree::Glob(_) => {
                let mut segments = before.clone();
                match tree {
                    syn::UseTree::Name(name) if name.ident != "self" => segments.push(name.ident.to_string()),
                    syn::UseTree::Rename(rename) => segments.push(rename.ident.to_string()),
                    _ => {}
                }
                self.found.push((tree.span().start().line, segments, true));
            }
        }
    }
}

fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Const(item) => &item.attrs,
        syn::Item::Enum(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Macro(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Static(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Trait(item) => &item.attrs,
        syn::Item::Type(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.meta.require_list().is_ok_and(|list| {
                let condition = list.tokens.to_string();
                condition == "test" || condition.starts_with("any (test") || condition.starts_with("all (test")
            })
    })
}

/// Strongly connected groups of more than one module, by Tarjan's algorithm.
fn circles(imports: &Imports) -> Vec<Vec<String>> {
    let mut next: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for Import { from, to, .. } in &imports.all {
        next.entry(from).or_default().insert(to);
    }
    // Modules are few: two are in one circle if each reaches the other.
    let reaches = |from: &str| {
        let mut seen = BTreeSet::new();
        let mut left = vec![from];
        while let Some(module) = left.pop() {
            for other in next.get(module).into_iter().flatten() {
                if seen.insert(*other) {
                    left.push(other);
                }
            }
        }
        seen
    };
    let all: BTreeMap<&str, BTreeSet<&str>> = imports.modules.iter().map(|m| (m.as_str(), reaches(m))).collect();
    let mut circles: BTreeSet<Vec<String>> = BTreeSet::new();
    for (module, reached) in &all {
        if reached.contains(module) {
            let circle = reached.iter().filter(|other| all.get(**other).is_some_and(|back| back.contains(module)));
            circles.insert(circle.map(|other| (*other).to_string()).collect());
        }
    }
    circles.into_iter().collect()
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
