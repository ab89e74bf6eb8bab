//! Functions have at most [`MOST_LINES`] lines, and public functions take no booleans by position:
//! a call `open(path, true, false)` says nothing. An enum of two, or two functions, do.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use syn::spanned::Spanned;
use syn::visit::Visit;

use super::imports::{attributes, is_test};
use super::{CRATES, repository, root, sources};

/// Lines of a function, from its signature to its end.
const MOST_LINES: usize = 80;

/// Longer functions, by file and name. The list only becomes shorter.
const LONG_FUNCTIONS: &[&str] = &[
    "crates/cuda/examples/fused_checks.rs checks",
    "crates/cuda/src/fake/compiler.rs api",
    "crates/cuda/src/fake/cufile.rs api",
    "crates/cuda/src/fake/driver.rs api",
    "crates/cuda/src/functions/mod.rs run",
    "crates/cuda/src/functions/text.rs generate",
    "crates/cuda/src/fused/codegen/dense.rs dense_vector",
    "crates/cuda/src/fused/codegen/expr.rs expr",
    "crates/cuda/src/fused/codegen/sink.rs build_row",
    "crates/cuda/src/fused/run.rs outcome",
    "crates/cuda/src/fused/schedule.rs carried",
    "crates/cuda/src/fused/tests/edges.rs codes_in_steps_are_computed",
    "crates/cuda/src/resident/tests.rs columns_stay",
    "crates/engine/src/catalog/store.rs apply",
    "crates/engine/src/database/mod.rs with_volume",
    "crates/engine/src/place/mod.rs place",
    "crates/engine/src/planner/equal_values.rs rewrite",
    "crates/engine/src/planner/unnesting/tests.rs lateral_is_about_each_row",
    "crates/engine/tests/files.rs directories_named_by_keys_are_columns",
    "crates/engine/tests/files.rs statistics_of_parquet_know_nothing_of_nan",
    "crates/engine/tests/fused.rs texts_without_a_dictionary_are_read_late",
    "crates/engine/tests/learn.rs bad_input_is_an_error_that_names_it",
    "crates/io/src/rados/fs/rename.rs move_over",
    "crates/io/src/rados/fs/transaction/tests/opposite_orders.rs cross",
    "crates/lab/src/bench/io/run.rs measure",
    "crates/pipeline/src/cpu/code.rs run",
    "crates/pipeline/src/cpu/worker.rs run",
    "crates/pipeline/src/ir.rs shape",
    "crates/pipeline/tests/programs/random.rs program",
    "crates/store/src/lines/tests/mod.rs workloads",
    "crates/store/src/tests/model.rs step",
    "tests/src/fuzz/protocol.rs seeds",
    "tests/src/simulator/model.rs outcome",
    "tests/src/simulator/model.rs steps",
    "tests/src/simulator/workload.rs statement",
];

/// Public functions with more than one boolean parameter, by crate. The numbers only become
/// smaller.
const BOOLEANS: &[(&str, usize)] = &[("server", 1)];

#[test]
fn functions_are_short() {
    let found = functions();
    let mut wrong = Vec::new();
    for Function { at, name, key, lines, .. } in &found {
        if *lines > MOST_LINES && !LONG_FUNCTIONS.contains(&key.as_str()) {
            wrong.push(format!(
                "{at}: {name} has {lines} lines, {MOST_LINES} at most: give its steps names of their own"
            ));
        }
    }
    for listed in LONG_FUNCTIONS {
        if !found.iter().any(|function| function.key == *listed && function.lines > MOST_LINES) {
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
    /// File and name.
    key: String,
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
            key: format!("{} {}", self.file.display(), signature.ident),
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
