//! Rules of DataFusion's optimizer in others of ours.

use std::sync::Arc;

use datafusion::optimizer::OptimizerRule;

pub(super) type Rule = Arc<dyn OptimizerRule + Send + Sync>;

/// The rules, with `restrict` around the one of that name.
pub(super) fn restricted(rules: Vec<Rule>, name: &str, restrict: fn(Rule) -> Rule) -> Vec<Rule> {
    rules.into_iter().map(|rule| if rule.name() == name { restrict(rule) } else { rule }).collect()
}
