//! Imports between the modules of a crate, read from its source.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::Path;

use syn::spanned::Spanned;
use syn::visit::Visit;

use super::{repository, root};

/// An import from another module of the same crate.
pub struct Import {
    pub from: String,
    pub to: String,
    /// The file and the line.
    pub at: String,
}

/// The imports between the top modules of a crate.
pub struct Imports {
    pub modules: BTreeSet<String>,
    pub all: Vec<Import>,
}

/// The imports of a crate, test modules left out.
pub fn imports(name: &str) -> Imports {
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

/// Reads the modules of a crate, except test modules.
struct Reader {
    paths: Vec<Mention>,
    modules: BTreeSet<String>,
    /// Modules by the names that the root re-exports.
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
                    // A module with a path attribute is generated.
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

/// Returns the path from the root of the crate, or `None` for one of another crate.
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
        // At the root, names of its modules need no prefix.
        _ if module.is_empty() => {}
        _ => return None,
    }
    base.extend(rest.iter().cloned());
    Some(base)
}

/// Collects paths: their line, their segments, and true for imports.
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

/// The attributes of an item.
pub fn attributes(item: &syn::Item) -> &[syn::Attribute] {
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

/// True for an item of tests alone.
pub fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.meta.require_list().is_ok_and(|list| {
                let condition = list.tokens.to_string();
                condition == "test" || condition.starts_with("any (test") || condition.starts_with("all (test")
            })
    })
}

/// Returns the strongly connected groups of more than one module, by the reachability of each
/// module.
pub fn circles(imports: &Imports) -> Vec<Vec<String>> {
    let mut next: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for Import { from, to, .. } in &imports.all {
        next.entry(from).or_default().insert(to);
    }
    // There are few modules. Two are in one circle if each reaches the other.
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
