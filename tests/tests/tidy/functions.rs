//! Functions have at most [`MOST_LINES`] lines, and public functions take no booleans by position:
//! a call `open(path, true, false)` says nothing. An enum of two, or two functions, do.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use syn::spanned::Spanned;
use syn::visit::Visit;

use super::imports::{attributes, is_test};
use super::{CRATES, repository, root, sources};

/// Lines of a function, its signature included, its comments and attributes not.
const MOST_LINES: usize = 80;

/// Longer functions, which wait to be split.
const LONG_FUNCTIONS: &[&str] = &[];

/// Public functions with more than one boolean parameter, by crate. The numbers only become
/// smaller.
const BOOLEANS: &[(&str, usize)] = &[];

#[test]
fn functions_are_short() {
    let found = functions();
    let mut wrong = Vec::new();
    for Function { at, name, lines, .. } in &found {
        if *lines > MOST_LINES && !LONG_FUNCTIONS.contains(&name.as_str()) {
            wrong.push(format!(
                "{at}: {name} has {lines} lines, {MOST_LINES} at most: give its steps names of their own"
            ));
        }
    }
    for listed in LONG_FUNCTIONS {
        if !found.iter().any(|function| function.name == *listed && function.lines > MOST_LINES) {
            wrong.push(format!("{listed} is short: take it out of LONG_FUNCTIONS in tests/tests/tidy/functions.rs"));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn public_functions_take_no_booleans_by_position() {
    let mut by_crate: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let found = functions();
    for Function { at, name, krate, booleans, .. } in &found {
        if *booleans > 1 {
            by_crate.entry(krate).or_default().push(format!("{at}: {name} takes {booleans} booleans by position"));
        }
    }
    let most = |krate: &str| BOOLEANS.iter().find(|(name, _)| *name == krate).map_or(0, |(_, most)| *most);
    let mut wrong = Vec::new();
    for krate in CRATES {
        let found = by_crate.remove(krate).unwrap_or_default();
        if found.len() > most(krate) {
            wrong.extend(found);
            wrong.push(format!("{krate}: {} at most: make an enum of two, or two functions", most(krate)));
        } else if found.len() < most(krate) {
            wrong.push(format!("{krate}: {}: write that into BOOLEANS in tests/tests/tidy/functions.rs", found.len()));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

struct Function {
    krate: &'static str,
    /// File and line.
    at: String,
    name: String,
    lines: usize,
    /// Boolean parameters, of a public function.
    booleans: usize,
}

fn functions() -> Vec<Function> {
    let mut found = Vec::new();
    for krate in CRATES {
        for path in sources(&root(krate)) {
            let text = fs::read_to_string(&path).unwrap();
            let parsed = syn::parse_file(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            let file = path.strip_prefix(repository()).unwrap();
            let mut reader = Reader { krate, file, found: Vec::new() };
            reader.visit_file(&parsed);
            found.extend(reader.found);
        }
    }
    found
}

struct Reader<'a> {
    krate: &'static str,
    file: &'a Path,
    found: Vec<Function>,
}

impl Reader<'_> {
    fn add(&mut self, signature: &syn::Signature, is_public: bool, body: &syn::Block) {
        let start = signature.span().start().line;
        let is_boolean = |input: &&syn::FnArg| match input {
            syn::FnArg::Typed(input) => matches!(&*input.ty, syn::Type::Path(path) if path.path.is_ident("bool")),
            syn::FnArg::Receiver(_) => false,
        };
        self.found.push(Function {
            krate: self.krate,
            at: format!("{}:{start}", self.file.display()),
            name: signature.ident.to_string(),
            lines: body.span().end().line - start + 1,
            booleans: if is_public { signature.inputs.iter().filter(is_boolean).count() } else { 0 },
        });
    }
}

impl Visit<'_> for Reader<'_> {
    fn visit_item(&mut self, item: &syn::Item) {
        if !is_test(attributes(item)) {
            syn::visit::visit_item(self, item);
        }
    }

    fn visit_item_fn(&mut self, function: &syn::ItemFn) {
        self.add(&function.sig, matches!(function.vis, syn::Visibility::Public(_)), &function.block);
        syn::visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &syn::ImplItemFn) {
        self.add(&function.sig, matches!(function.vis, syn::Visibility::Public(_)), &function.block);
        syn::visit::visit_impl_item_fn(self, function);
    }
}
