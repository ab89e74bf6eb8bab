//! Builds the tree of a physical plan: Onehop's operators in its own terms, and DataFusion's in
//! theirs, with the reason why they are not fused if there is one.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::joins::{CrossJoinExec, HashJoinExec, NestedLoopJoinExec, SortMergeJoinExec};
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::{DisplayFormatType, ExecutionPlan};

use super::fused;
use crate::explanation::{Facts, Moment, Node, Refusal, Refused};
use crate::learn::LearnExec;
use crate::lower::FusedExec;
use crate::planner;
use crate::scan::SegmentScanExec;

/// Returns the tree of a plan. `refused` holds the nodes that are not fused, and the reasons.
pub(crate) fn node_of(plan: &Arc<dyn ExecutionPlan>, refused: &[Refusal], moment: Moment) -> Node {
    let does_nothing_to_rows = plan.is::<CooperativeExec>() || planner::is_unseen(plan);
    if let ([below], true) = (plan.children().as_slice(), does_nothing_to_rows) {
        return node_of(below, refused, moment);
    }
    if let Some(exec) = plan.downcast_ref::<FusedExec>() {
        let below = |plan: &Arc<dyn ExecutionPlan>| node_of(plan, refused, moment);
        return fused::node_of(exec, moment, &below);
    }
    let reason = reason_of(plan, refused);
    let metrics = plan.metrics().filter(|_| moment != Moment::Planned);
    let learnt_from = plan.downcast_ref::<LearnExec>().map(LearnExec::input);
    let children = plan.children().into_iter().chain(learnt_from);
    let inputs = children.map(|child| node_of(child, refused, moment)).collect::<Vec<_>>();
    let facts = match plan.downcast_ref::<SegmentScanExec>() {
        Some(scan) => {
            let mut facts = scan.facts();
            facts.read = metrics.as_ref().and_then(|metrics| {
                let count = |name| metrics.sum_by_name(name).map(|value| value.as_usize() as u64);
                Some((count("blocks_read")?, count("bytes_read")?))
            });
            Facts::Scan(Box::new(facts))
        }
        None => Facts::Other(described(plan)),
    };
    Node {
        operator: plan.name().to_string(),
        facts,
        rows_in: None,
        sampled: None,
        rows_out: metrics.as_ref().and_then(|metrics| metrics.output_rows()).map(|rows| rows as u64),
        time: metrics.as_ref().and_then(|metrics| metrics.elapsed_compute()).map(|ns| Duration::from_nanos(ns as u64)),
        placed: None,
        shares: Vec::new(),
        remarks: reason.map(|reason| format!("not fused: {reason}")).into_iter().collect(),
        inputs,
    }
}

/// Returns the reason why an aggregate, a join or an ORDER BY with a LIMIT is not fused. It is that
/// of its logical node, which is identified by its columns and the tables below it. An aggregate
/// may have become two operators, the last of which has the columns. A join may include the
/// projection above it, and then has some of them.
fn reason_of<'a>(plan: &Arc<dyn ExecutionPlan>, refused: &'a [Refusal]) -> Option<&'a str> {
    let is_join = plan.is::<HashJoinExec>()
        || plan.is::<CrossJoinExec>()
        || plan.is::<NestedLoopJoinExec>()
        || plan.is::<SortMergeJoinExec>();
    let what = match () {
        () if is_join => Refused::Join,
        () if plan.is::<AggregateExec>() => Refused::Aggregate,
        () if plan.is::<SortExec>() => Refused::Sort,
        () => return None,
    };
    let schema = plan.schema();
    let tables = tables_below(plan);
    let fits = |refusal: &&Refusal| {
        let is_there = schema.fields().iter().all(|field| refusal.columns.contains(field.name()));
        refusal.what == what
            && refusal.tables == tables
            && is_there
            && (is_join || refusal.columns.len() == schema.fields().len())
    };
    refused.iter().find(fits).map(|refusal| refusal.reason.as_str())
}

/// Returns the tables of the database below an operator, sorted.
fn tables_below(plan: &Arc<dyn ExecutionPlan>) -> Vec<String> {
    let mut tables = Vec::new();
    let mut left = vec![plan];
    while let Some(plan) = left.pop() {
        if let Some(scan) = plan.downcast_ref::<SegmentScanExec>() {
            tables.push(scan.table().name.clone());
        } else if let Some(exec) = plan.downcast_ref::<FusedExec>() {
            tables.extend(exec.fused().scans().map(|scan| scan.table.name.clone()));
        }
        left.extend(plan.children());
    }
    tables.sort();
    tables
}

/// Returns the reason why an operator, or one below it, was refused by a device.
pub(crate) fn refused_devices(plan: &Arc<dyn ExecutionPlan>) -> Option<String> {
    let own = plan.downcast_ref::<FusedExec>().and_then(|exec| exec.placement().refused.clone());
    own.or_else(|| plan.children().into_iter().find_map(refused_devices))
}

/// Returns DataFusion's description of an operator, without its name.
fn described(plan: &Arc<dyn ExecutionPlan>) -> String {
    struct Described<'a>(&'a dyn ExecutionPlan);
    impl fmt::Display for Described<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0.fmt_as(DisplayFormatType::Default, f)
        }
    }
    let text = Described(plan.as_ref()).to_string();
    // Some names include the kind of operator, which the description does not repeat.
    let name = plan.name().split_once('(').map_or(plan.name(), |(name, _)| name);
    let rest = text.strip_prefix(plan.name()).or_else(|| text.strip_prefix(name)).unwrap_or(&text);
    rest.trim_start_matches(':').trim().to_string()
}
