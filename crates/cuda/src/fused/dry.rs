//! Code generation without a device: checks that there is code for a program, and lists every
//! kernel source that it may need.

use std::cell::RefCell;

use onehop_pipeline::Source;
use onehop_pipeline::cpu::{Execution, KeyLayout};
use onehop_pipeline::fit::Sums;
use onehop_pipeline::ir::{JoinKind, Pipeline, Shape, Sink, Step};

use super::codegen::{Fold, Input, generate};
use super::image::forms_of_column;
use super::plan::Plan;
use super::run::Options;
use super::table::{Element, Rows, TableShape};
use super::{Error, Result};
use crate::kernels::ARGUMENT_WORDS;

/// Parameters of code generation without a device.
pub(super) struct Dry<'a> {
    /// Returns the forms of a source's column.
    pub forms: &'a dyn Fn(&dyn Source, usize) -> Vec<u32>,
    /// Row layout assumed for the tables.
    pub rows: Rows,
    /// `true` if tables and groups are resident one partition at a time.
    pub split: bool,
    pub many_rows: u64,
    pub counts: bool,
    /// As in [`Options::threads`].
    pub threads: [u32; 2],
    /// The sums of a fit that the last pipeline's rows are added to, if any.
    pub fold: Option<Fold>,
}

/// Generates a program's kernel sources for tables and columns of some kind. They depend on nothing
/// else about the data, so this function also decides if there is code for the program.
pub(super) fn texts(execution: &Execution, dry: &Dry<'_>) -> Result<Vec<String>> {
    let mut shapes: Vec<TableShape> = Vec::new();
    let mut all = Vec::new();
    for (number, (pipeline, shape)) in execution.program().pipelines.iter().zip(execution.shapes()).enumerate() {
        let source = &*execution.sources()[pipeline.source];
        let plan = Plan::new(pipeline, shape, &shapes, source, dry.counts)?;
        let rows = source.all_rows();
        let mut built = table_shape(execution, number, pipeline, shape, rows)?;
        if let Some(shape) = &mut built {
            shape.rows = if shape.rows == Rows::Unique { dry.rows } else { shape.rows };
            shape.is_split = dry.split;
        }
        let forms = |column| (dry.forms)(source, column);
        let (many_rows, counts, threads) = (dry.many_rows, dry.counts, dry.threads);
        let input = Input {
            plan: &plan,
            tables: &shapes,
            built: built.as_ref(),
            splits_groups: dry.split,
            forms: &forms,
            rows,
            counts,
            many_rows,
            threads,
            fold: dry.fold,
        };
        let generated = generate(&input)?;
        if generated.args.len() > ARGUMENT_WORDS {
            return Err(Error::refused("a query with so many columns and constants"));
        }
        all.push(generated.text);
        shapes.extend(built);
    }
    Ok(all)
}

/// Returns every kernel source that a program may need, for columns as its sources store them.
/// Callers use it to compile kernels without a device.
///
/// # Errors
/// [`Error::Refused`], and errors of the sources.
pub fn texts_of(execution: &Execution) -> Result<Vec<String>> {
    let failed = RefCell::new(None);
    let forms = |source: &dyn Source, column: usize| {
        let forms = forms_of_column(source, column);
        forms.unwrap_or_else(|error| {
            failed.replace(Some(error));
            Vec::new()
        })
    };
    let threads = Options::default().threads();
    let of = |rows, split, many_rows, counts| {
        texts(execution, &Dry { forms: &forms, rows, split, many_rows, counts, threads, fold: None })
    };
    let mut all = of(Rows::Unique, false, 0, true)?;
    for (rows, split, many_rows, counts) in
        [(Rows::Chains, false, u64::MAX, false), (Rows::Unique, true, 0, false), (Rows::Chains, true, 0, false)]
    {
        for text in of(rows, split, many_rows, counts)? {
            if !all.contains(&text) {
                all.push(text);
            }
        }
    }
    match failed.into_inner() {
        Some(error) => Err(error),
        None => Ok(all),
    }
}

/// Returns every kernel source that sums over the rows of a program may need, for columns as its
/// sources store them. Callers use it to compile kernels without a device.
///
/// # Errors
/// [`Error::Refused`], and errors of the sources.
pub fn fold_texts_of(execution: &Execution, sums: &Sums) -> Result<Vec<String>> {
    let failed = RefCell::new(None);
    let forms = |source: &dyn Source, column: usize| {
        let forms = forms_of_column(source, column);
        forms.unwrap_or_else(|error| {
            failed.replace(Some(error));
            Vec::new()
        })
    };
    let threads = Options::default().threads();
    let dry = Dry { forms: &forms, rows: Rows::Unique, split: false, many_rows: 0, counts: false, threads, fold: None };
    let texts = super::fold::fold_texts(execution, sums, &dry)?;
    failed.into_inner().map_or(Ok(texts), Err)
}

/// Returns the shape of the table that a pipeline builds, if it builds one.
pub(super) fn table_shape(
    execution: &Execution,
    number: usize,
    pipeline: &Pipeline,
    shape: &Shape,
    rows: u64,
) -> Result<Option<TableShape>> {
    if !matches!(pipeline.sink, Sink::Build { .. }) {
        return Ok(None);
    }
    let layout = KeyLayout::new(&shape.keys, false)?;
    let mut is_wanted = vec![false; shape.outputs.len()];
    let mut wants_rows = false;
    for step in execution.program().pipelines.iter().flat_map(|pipeline| &pipeline.steps) {
        let Step::Probe(probe) = step else { continue };
        if probe.table == number {
            probe.payload.iter().for_each(|column| is_wanted[*column] = true);
            wants_rows |= matches!(probe.kind, JoinKind::Inner | JoinKind::Left) || probe.condition.is_some();
        }
    }
    let element = |(domain, wanted): (_, bool)| wanted.then(|| Element::of(domain));
    let payload = shape.outputs.iter().zip(is_wanted).map(element).collect();
    Ok(Some(TableShape::new(layout, payload, rows, wants_rows)))
}
