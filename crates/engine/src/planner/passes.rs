//! The passes over plans, in the order in which they run.
//!
//! [`ANALYZER`], [`OPTIMIZER`] and [`PHYSICAL`] list all rules of a session, ours and DataFusion's.
//! An entry of ours names the pass that it follows or precedes, the reason, and its purpose. An
//! entry of DataFusion's may have wrappers, which restrict it.
//!
//! DataFusion's rules are taken by position and name. If a version of DataFusion renames, adds,
//! removes or moves one, [`assembled`] fails, and with it the start of every session. Otherwise a
//! correction beside the wrong rule would silently return wrong answers.
//!
//! A pass that corrects DataFusion may be removed if the version named beside it is no longer used
//! and its tests pass without it. `ONEHOP_WITHOUT=name` omits it in a debug build.
//! `tests/differential/mutations.py` shows whether random queries detect the omission.

use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::optimizer::{Analyzer, AnalyzerRule, Optimizer, OptimizerRule};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::optimizer::PhysicalOptimizer;

use super::*;
use crate::Rule;
use crate::error::nearest;
use crate::system_columns::{numbers, optional_text, text};

pub(super) type AnalyzerPass = Arc<dyn AnalyzerRule + Send + Sync>;
pub(super) type OptimizerPass = Arc<dyn OptimizerRule + Send + Sync>;
pub(crate) type PhysicalPass = Arc<dyn PhysicalOptimizerRule + Send + Sync>;

/// A pass of ours, or a rule of DataFusion's.
pub(crate) struct Entry<R: 'static> {
    /// The name of the rule.
    pub name: &'static str,
    /// The origin of the rule.
    pub kind: Kind<R>,
}

/// A rule of ours or of DataFusion's.
pub(crate) enum Kind<R: 'static> {
    /// A rule of ours: its constructor, its position and its purpose.
    Ours(fn() -> R, Place, Purpose),
    /// DataFusion's rule of that name within wrappers. The first wrapper is the innermost.
    DataFusions(&'static [Wrapper<R>]),
}

/// A restriction of a rule of DataFusion's.
pub(crate) struct Wrapper<R: 'static> {
    /// The name of the correction.
    pub name: &'static str,
    /// The function that wraps the rule.
    pub wrap: fn(R) -> R,
    /// The purpose of the restriction.
    pub purpose: Purpose,
}

/// The position of a pass relative to another one, and the reason.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    Before(&'static str, &'static str),
    After(&'static str, &'static str),
    /// No other pass reads or produces the expressions that it changes.
    Anywhere,
}

/// The purpose of a pass.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    /// A meaning of PostgreSQL and DuckDB that DataFusion does not intend.
    Dialect,
    /// A fault of DataFusion or Arrow: its issues, if any, and the version that has it.
    /// docs/internals/upstream.md contains the reports of other faults.
    Fault(&'static [&'static str], &'static str),
    /// Limits on the depth and size of plans.
    Robustness,
}

use Kind::{DataFusions, Ours};
use Place::{After, Anywhere, Before};
use Purpose::{Dialect, Fault, Robustness};

/// The latest version in which the faults below were seen.
const V55: &str = "DataFusion 55.2.0";

const fn ours<R>(name: &'static str, make: fn() -> R, place: Place, purpose: Purpose) -> Entry<R> {
    Entry { name, kind: Ours(make, place, purpose) }
}

const fn theirs<R>(name: &'static str) -> Entry<R> {
    Entry { name, kind: DataFusions(&[]) }
}

const fn wrapped<R>(name: &'static str, wrappers: &'static [Wrapper<R>]) -> Entry<R> {
    Entry { name, kind: DataFusions(wrappers) }
}

const FAULT: Purpose = Fault(&[], V55);

/// The rules that settle the meaning of a plan.
#[rustfmt::skip]
pub(crate) static ANALYZER: &[Entry<AnalyzerPass>] = &[
    ours("using_hints", || Arc::new(using_joins::UsingHints),
        Before("dictionary_texts", "a hint is a node that only the planner reads: no other pass may see it"), FAULT),
    ours("dictionary_texts", || Arc::new(dictionary_texts::DictionaryTexts),
        Before("string_casts", "a dictionary has become strings before any pass reads a column's type"), Dialect),
    ours("grouping_set_keys", || Arc::new(grouping_set_keys::GroupingSetKeys),
        Before("settled_rounding", "a key within grouping sets has no alias to keep its name when a pass changes it"), FAULT),
    ours("subquery_lists", || Arc::new(subquery_lists::SubqueryLists),
        Before("subquery_places", "it makes scalar subqueries, which later passes place and unnest"),
        Fault(&["apache/datafusion #25258"], V55)),
    ours("values_without_from", || Arc::new(values_without_from::ValuesWithoutFrom),
        Before("subquery_places", "a subquery that is a plain value needs no place"), FAULT),
    ours("subquery_places", || Arc::new(subquery_places::SubqueryPlaces),
        Before("correlated_subqueries", "a subquery is unnested where it stands in the end"),
        Fault(&["apache/datafusion #25339"], V55)),
    ours("correlated_subqueries", || Arc::new(correlated_subqueries::CorrelatedSubqueries),
        Before("scalar_subqueries", "what wraps the column of a subquery hides the conditions to unnest by"),
        Fault(&["apache/datafusion #25519"], V55)),
    ours("ordered_aggregates", || Arc::new(ordered_aggregates::OrderedAggregates),
        After("subquery_lists", "the lists of subqueries are ordered aggregates"), FAULT),
    ours("set_operations", || Arc::new(set_operations::SetOperations),
        Before("type_coercion", "null-safe joins in a plan are those of INTERSECT and EXCEPT until other passes add some"), FAULT),
    ours("scalar_subqueries", || Arc::new(scalar_subqueries::ScalarSubqueries),
        After("correlated_subqueries", "what is unnested is no scalar subquery any more"), FAULT),
    ours("list_lengths", || Arc::new(list_lengths::ListLengths),
        Before("type_coercion", "coercion makes a string of the list"), Dialect),
    ours("list_concatenation", || Arc::new(list_concatenation::ListConcatenation),
        Before("type_coercion", "coercion makes strings of the lists"), FAULT),
    ours("map_lookups", || Arc::new(map_lookups::MapLookups), Anywhere, FAULT),
    ours("settled_rounding", || Arc::new(rounding::SettledRounding),
        Before("type_coercion", "coercion puts a cast around the constant that decides the type"), FAULT),
    ours("single_precision", || Arc::new(single_precision::SinglePrecision),
        Before("type_coercion", "a REAL argument is a DOUBLE before overloads are chosen"), Dialect),
    ours("volatile_values", || Arc::new(volatile_values::VolatileValues),
        Before("exact_comparisons", "BETWEEN and IN are functions of ours before they get their types"),
        Fault(&["apache/datafusion #25457", "apache/datafusion #25477"], V55)),
    ours("regular_expressions", || Arc::new(regular_expressions::RegularExpressions),
        Before("type_coercion", "coercion casts the pattern, which is then no literal"),
        Fault(&["apache/datafusion #24379"], V55)),
    ours("refused_casts", || Arc::new(refused_casts::RefusedCasts),
        Before("rounding_casts", "casts are judged as they are written"), Dialect),
    ours("value_texts_of_bytes", || Arc::new(value_texts::ValueTexts::Written),
        Before("type_coercion", "coercion adds casts of bytes that no statement wrote"), Dialect),
    ours("rounding_casts", || Arc::new(rounding_casts::RoundingCasts),
        Before("type_coercion", "only casts that are written round"), Dialect),
    ours("finite_casts", || Arc::new(finite_casts::FiniteCasts),
        Before("type_coercion", "only casts that are written are checked"), Dialect),
    ours("temporal_types", || Arc::new(temporal_types::TemporalTypes),
        Before("type_coercion", "it gives expressions the types that coercion then compares"), Dialect),
    ours("moments_of_one_type", || Arc::new(moments_of_one_type::MomentsOfOneType),
        After("temporal_types", "it reads the types that temporal expressions have by then"), FAULT),
    ours("date_arithmetic", || Arc::new(date_arithmetic::DateArithmetic),
        Before("type_coercion", "coercion makes a duration of the difference of two dates"), Dialect),
    ours("floats_beside_decimals", || Arc::new(floats_beside_decimals::FloatsBesideDecimals),
        Before("type_coercion", "coercion makes decimals of floats"), Dialect),
    ours("exact_comparisons", || Arc::new(exact_comparisons::ExactComparisons),
        Before("type_coercion", "coercion compares by a type that loses digits"), FAULT),
    ours("null_offsets", || Arc::new(null_offsets::NullOffsets), Before("type_coercion", "the default is cast to the value's type"), FAULT),
    ours("window_frames", || Arc::new(window_frames::WindowFrames),
        Before("type_coercion", "offsets are strings until coercion has settled them"),
        Fault(&["apache/datafusion #24902"], V55)),
    ours("refused_operators", || Arc::new(refused_operators::RefusedOperators),
        Before("type_coercion", "operands have the types that were written"), Dialect),
    theirs("resolve_grouping_function"),
    theirs("type_coercion"),
    ours("zoned_moments", || Arc::new(zoned_moments::ZonedMoments),
        After("type_coercion", "both sides of an operator are of one type"), Dialect),
    ours("string_casts", || Arc::new(string_casts::StringCasts),
        After("zoned_moments", "casts that go by the session's zone are functions already"), Dialect),
    ours("nested_casts", || Arc::new(nested_casts::NestedCasts),
        After("string_casts", "casts of strings to lists are functions already"), Dialect),
    ours("literal_casts", || Arc::new(literal_casts::LiteralCasts),
        After("string_casts", "literals that are strings have their own errors"), Dialect),
    ours("value_texts", || Arc::new(value_texts::ValueTexts::Settled),
        After("type_coercion", "casts to strings that coercion adds are written likewise"), Dialect),
    ours("null_in_subqueries", || Arc::new(null_in_subqueries::NullInSubqueries),
        After("type_coercion", "value and rows are of one type"), FAULT),
    ours("in_lists", || Arc::new(in_lists::InLists),
        After("type_coercion", "the values of a list are of one type"), FAULT),
    ours("one_nan", || Arc::new(one_nan::OneNans),
        Before("equal_values", "values are compared after they have one NaN"), Dialect),
    ours("checked_arithmetic", || Arc::new(checked_arithmetic::CheckedArithmetic),
        After("type_coercion", "the width of an integer is settled"),
        Fault(&["apache/datafusion #16406"], V55)),
    ours("equal_values", || Arc::new(equal_values::EqualValues),
        After("in_lists", "lists have become comparisons where they had to"), Dialect),
    ours("year_ranges", || Arc::new(year_ranges::YearRanges), After("type_coercion", "the unit of a timestamp is settled"),
        Fault(&["apache/datafusion #25135"], V55)),
    ours("nested_order", || Arc::new(nested_order::NestedOrder),
        After("equal_values", "values within lists are made equal first"), FAULT),
    ours("lossy_casts", || Arc::new(lossy_casts::LossyCasts),
        After("nested_order", "it hides casts, at which other passes look"),
        Fault(&["apache/datafusion #23095", "apache/arrow-rs #10508"], V55)),
    ours("guarded_cases", || Arc::new(guards::GuardedCases),
        After("lossy_casts", "what can fail is a function by then"), Fault(&["apache/datafusion #8927"], V55)),
    ours("unbounded_windows", || Arc::new(unbounded_windows::UnboundedWindows),
        After("nested_order", "it replaces functions, which other passes replace by their names"),
        Fault(&["apache/datafusion #25471"], V55)),
    ours("sliding_aggregates", || Arc::new(sliding_aggregates::SlidingAggregates),
        After("nested_order", "it replaces aggregates, which other passes replace by their names"), FAULT),
    ours("window_keys", || Arc::new(window_keys::WindowKeys),
        After("guarded_cases", "keys are columns of a projection, with all that passes have put around them"),
        Fault(&["apache/datafusion #20194"], V55)),
];

/// The rules that improve the shape of a plan.
#[rustfmt::skip]
pub(crate) static OPTIMIZER: &[Entry<OptimizerPass>] = &[
    theirs("rewrite_set_comparison"),
    theirs("optimize_unions"),
    theirs("unions_to_filter"),
    theirs("simplify_expressions"),
    proved_keys("replace_distinct_aggregate"),
    wrapped("replace_distinct_aggregate",
        &[Wrapper { name: "unproved_keys", wrap: unproved_keys::top_down, purpose: FAULT }]),
    proved_keys("eliminate_join"),
    theirs("eliminate_join"),
    ours("correlated_names", || Arc::new(correlated_names::CorrelatedNames),
        Before("decorrelate_predicate_subquery", "that rule takes the condition out of the subquery"), FAULT),
    theirs("decorrelate_predicate_subquery"),
    theirs("scalar_subquery_to_join"),
    theirs("decorrelate_lateral_join"),
    ours("guarded_keys", join_guards::guarded_keys,
        Before("extract_equijoin_predicate", "that rule makes keys of guarded expressions"), FAULT),
    wrapped("extract_equijoin_predicate",
        &[Wrapper { name: "null_safe_joins", wrap: null_safe_joins::keys_without_null, purpose: FAULT }]),
    proved_keys("eliminate_duplicated_expr"),
    theirs("eliminate_duplicated_expr"),
    theirs("eliminate_filter"),
    wrapped("eliminate_cross_join",
        &[Wrapper { name: "null_safe_joins", wrap: null_safe_joins::kept_together, purpose: FAULT }]),
    theirs("eliminate_limit"),
    theirs("propagate_empty_relation"),
    theirs("filter_null_join_keys"),
    theirs("eliminate_outer_join"),
    theirs("push_down_limit"),
    wrapped("push_down_filter", &[
        Wrapper { name: "one_row_aggregates", wrap: one_row_aggregates::above_one_row, purpose: FAULT },
        Wrapper { name: "volatile_filters", wrap: volatile_filters::what_is_certain,
            purpose: Fault(&["apache/datafusion #25415"], V55) },
    ]),
    wrapped("single_distinct_aggregation_to_group_by",
        &[Wrapper { name: "single_distinct", wrap: single_distinct::where_types_stay, purpose: FAULT }]),
    theirs("eliminate_group_by_constant"),
    theirs("common_sub_expression_eliminate"),
    theirs("extract_leaf_expressions"),
    theirs("push_down_leaf_projections"),
    proved_keys("optimize_projections"),
    theirs("optimize_projections"),
    ours("balanced_conditions", || Arc::new(balanced_conditions::BalancedConditions),
        After("optimize_projections", "it mends the chains that other rules leave"), Robustness),
];

const fn proved_keys(before: &'static str) -> Entry<OptimizerPass> {
    ours(
        "proved_keys",
        unproved_keys::proved_keys,
        Before(before, "that rule trusts the keys that a node notes"),
        FAULT,
    )
}

/// The rules over operators.
#[rustfmt::skip]
pub(crate) static PHYSICAL: &[Entry<PhysicalPass>] = &[
    ours("GroupingSets", || Arc::new(grouping_sets::GroupingSets),
        Before("OutputRequirements", "rules read what an aggregation says of its rows"), FAULT),
    ours("OffsetOrders", || Arc::new(offset_orders::OffsetOrders),
        Before("EnsureRequirements", "that rule removes and moves sorts"),
        Fault(&["apache/datafusion #23534", "apache/datafusion #25378"], V55)),
    ours("RecursiveLimits", || Arc::new(recursive_limits::RecursiveLimits),
        Before("LimitPushdown", "that rule makes one operator of a sort over a LIMIT"), FAULT),
    ours("HideOuterConstants", outer_constants::hide,
        Before("OutputRequirements", "rules read what joins say of their rows"), FAULT),
    theirs("OutputRequirements"),
    theirs("aggregate_statistics"),
    theirs("join_selection"),
    theirs("LimitedDistinctAggregation"),
    wrapped("FilterPushdown",
        &[Wrapper { name: "filter_pushdown", wrap: filter_pushdown::where_names_are_unique,
            purpose: Fault(&["apache/datafusion #21246"], V55) }]),
    theirs("WindowTopN"),
    theirs("EnsureRequirements"),
    theirs("CombinePartialFinalAggregate"),
    theirs("OptimizeAggregateOrder"),
    wrapped("ProjectionPushdown", KEPT_WHOLE),
    theirs("OutputRequirements"),
    theirs("LimitAggregation"),
    wrapped("LimitPushPastWindows",
        &[Wrapper { name: "window_limits", wrap: window_limits::where_one_window_is, purpose: FAULT }]),
    theirs("HashJoinBuffering"),
    theirs("LimitPushdown"),
    theirs("TopKRepartition"),
    wrapped("ProjectionPushdown", KEPT_WHOLE),
    theirs("PushdownSort"),
    theirs("EnsureCooperative"),
    wrapped("FilterPushdown(Post)",
        &[Wrapper { name: "filter_pushdown", wrap: filter_pushdown::where_names_are_unique,
            purpose: Fault(&["apache/datafusion #21246"], V55) }]),
    theirs("SanityCheckPlan"),
    ours("ShowOuterConstants", outer_constants::show,
        After("SanityCheckPlan", "all rules of DataFusion's have run"), FAULT),
    ours("LargeTops", || Arc::new(large_tops::LargeTops),
        After("LimitPushdown", "that rule makes TopK of a sort below a LIMIT"), Robustness),
];

static KEPT_WHOLE: &[Wrapper<PhysicalPass>] =
    &[Wrapper { name: "guarded_cases", wrap: join_guards::where_nothing_guards, purpose: FAULT }];

/// Returns the rules of a session's analyzer.
///
/// # Errors
/// See [`assembled`].
pub(super) fn analyzer(disabled: &Disabled) -> Result<Vec<AnalyzerPass>> {
    assembled(ANALYZER, Analyzer::new().rules, disabled, |rule| rule.name())
}

/// Returns the rules of a session's optimizer.
///
/// # Errors
/// See [`assembled`].
pub(super) fn optimizer(disabled: &Disabled) -> Result<Vec<OptimizerPass>> {
    assembled(OPTIMIZER, Optimizer::new().rules, disabled, |rule| rule.name())
}

/// Returns the rules over a session's operators.
///
/// # Errors
/// See [`assembled`].
pub(super) fn physical(disabled: &Disabled) -> Result<Vec<PhysicalPass>> {
    assembled(PHYSICAL, PhysicalOptimizer::new().rules, disabled, |rule| rule.name())
}

/// Names of passes that a session leaves out: the setting `debug.disable_pass`.
#[derive(Debug, Default)]
pub(crate) struct Disabled(Vec<String>);

impl Disabled {
    /// Reads a list of names, with commas between.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if there is no pass of a name, with the nearest one.
    pub fn parse(names: &str) -> Result<Self> {
        let names: Vec<String> = names.split(',').map(|name| name.trim().to_string()).collect();
        let names: Vec<String> = names.into_iter().filter(|name| !name.is_empty()).collect();
        let known = all_names();
        match names.iter().find(|name| !known.contains(&name.as_str())) {
            None => Ok(Self(names)),
            Some(unknown) => {
                let error = Error::new(ErrorKind::Invalid, format!("there is no pass \"{unknown}\""));
                Err(error.breaking(Rule::Setting).with_hint(match nearest(unknown, known) {
                    Some(name) => format!("did you mean \"{name}\"? onehop_passes lists all"),
                    None => "SELECT pass FROM onehop_passes lists all".to_string(),
                }))
            }
        }
    }

    fn has(&self, name: &str) -> bool {
        self.0.iter().any(|disabled| disabled == name)
    }
}

/// The names of all passes and wrappers.
fn all_names() -> Vec<&'static str> {
    fn names<R>(table: &'static [Entry<R>]) -> impl Iterator<Item = &'static str> {
        table.iter().flat_map(|entry| {
            let wrappers = match &entry.kind {
                Ours(..) => &[],
                DataFusions(wrappers) => *wrappers,
            };
            std::iter::once(entry.name).chain(wrappers.iter().map(|wrapper| wrapper.name))
        })
    }
    names(ANALYZER).chain(names(OPTIMIZER)).chain(names(PHYSICAL)).collect()
}

/// The rules of a table, with DataFusion's in their places; without those that are [left out](without)
/// or `disabled`.
///
/// # Errors
/// [`ErrorKind::Internal`] if DataFusion has other rules than the table, or the same in another order.
fn assembled<R>(
    table: &[Entry<R>],
    datafusion: Vec<R>,
    disabled: &Disabled,
    name: impl Fn(&R) -> &str,
) -> Result<Vec<R>> {
    let differs = |listed: &str, found: &str| {
        let message = format!(
            "DataFusion's rules are not those of planner/passes.rs: that lists {listed}, and DataFusion has {found}. \
             Compare the two lists, and what each correction beside it relies on"
        );
        Error::new(ErrorKind::Internal, message)
    };
    let mut rest = datafusion.into_iter();
    let mut rules = Vec::with_capacity(table.len());
    for Entry { name: listed, kind } in table {
        match kind {
            Ours(make, ..) if keeps(correction_of(listed)) && !disabled.has(listed) => rules.push(make()),
            Ours(..) => {}
            DataFusions(wrappers) => {
                let rule = rest.next().ok_or_else(|| differs(listed, "no more"))?;
                if name(&rule) != *listed {
                    return Err(differs(listed, name(&rule)));
                }
                let kept = wrappers.iter().filter(|wrapper| keeps(wrapper.name) && !disabled.has(wrapper.name));
                if !disabled.has(listed) {
                    rules.push(kept.fold(rule, |rule, wrapper| (wrapper.wrap)(rule)));
                }
            }
        }
    }
    match rest.next() {
        None => Ok(rules),
        Some(more) => Err(differs("no more", name(&more))),
    }
}

/// Returns the name of the correction to which a pass belongs. It is the pass's name if the
/// correction has one pass.
fn correction_of(pass: &str) -> &str {
    match pass {
        "proved_keys" => "unproved_keys",
        "guarded_keys" => "guarded_cases",
        "GroupingSets" => "grouping_sets",
        "HideOuterConstants" | "ShowOuterConstants" => "outer_constants",
        other => other,
    }
}

/// Returns the names of the corrections in the tables.
pub(super) fn corrections() -> Vec<&'static str> {
    fn names<R>(table: &'static [Entry<R>]) -> impl Iterator<Item = &'static str> {
        table.iter().flat_map(|entry| match &entry.kind {
            Ours(..) => vec![correction_of(entry.name)],
            DataFusions(wrappers) => wrappers.iter().map(|wrapper| wrapper.name).collect(),
        })
    }
    let mut all: Vec<_> = names(ANALYZER).chain(names(OPTIMIZER)).chain(names(PHYSICAL)).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Returns `onehop_passes`: all passes in the order in which they run. Wrappers follow the rule
/// that they restrict.
///
/// # Errors
/// Fails with Arrow's error if columns differ in length.
pub(crate) fn table() -> Result<RecordBatch> {
    let mut rows = Rows::default();
    rows.add("analyzer", ANALYZER);
    rows.add("optimizer", OPTIMIZER);
    rows.add("physical", PHYSICAL);
    let Rows { stages, names, places, reasons, purposes, issues, versions } = rows;
    Ok(RecordBatch::try_from_iter_with_nullable([
        ("position", numbers(0..names.len() as u64), false),
        ("stage", text(stages), false),
        ("pass", text(names), false),
        ("place", optional_text(places), true),
        ("reason", optional_text(reasons), true),
        ("purpose", text(purposes), false),
        ("issues", optional_text(issues), true),
        ("seen_in", optional_text(versions), true),
    ])?)
}

/// The columns of [`table`].
#[derive(Default)]
struct Rows {
    stages: Vec<&'static str>,
    names: Vec<&'static str>,
    places: Vec<Option<String>>,
    reasons: Vec<Option<String>>,
    purposes: Vec<&'static str>,
    issues: Vec<Option<String>>,
    versions: Vec<Option<String>>,
}

impl Rows {
    fn add<R>(&mut self, stage: &'static str, table: &'static [Entry<R>]) {
        for Entry { name, kind } in table {
            match kind {
                Ours(_, Before(other, why), purpose) => {
                    self.row(stage, name, Some(("before", other, Some(why))), Some(purpose))
                }
                Ours(_, After(other, why), purpose) => {
                    self.row(stage, name, Some(("after", other, Some(why))), Some(purpose))
                }
                Ours(_, Anywhere, purpose) => self.row(stage, name, None, Some(purpose)),
                DataFusions(wrappers) => {
                    self.row(stage, name, None, None);
                    for Wrapper { name: wrapper, purpose, .. } in *wrappers {
                        self.row(stage, wrapper, Some(("around", name, None)), Some(purpose));
                    }
                }
            }
        }
    }

    fn row(
        &mut self,
        stage: &'static str,
        name: &'static str,
        place: Option<(&str, &str, Option<&str>)>,
        purpose: Option<&Purpose>,
    ) {
        self.stages.push(stage);
        self.names.push(name);
        self.places.push(place.map(|(word, other, _)| format!("{word} {other}")));
        self.reasons.push(place.and_then(|(_, _, why)| why).map(str::to_string));
        let (word, issues, version) = match purpose {
            None => ("datafusion", None, None),
            Some(Dialect) => ("dialect", None, None),
            Some(Robustness) => ("robustness", None, None),
            Some(Fault(issues, version)) => ("fault", Some(issues.join(", ")), Some((*version).to_string())),
        };
        self.purposes.push(word);
        self.issues.push(issues.filter(|issues| !issues.is_empty()));
        self.versions.push(version);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Checks that each pass has the position that its entry requires, and gives a reason.
    fn check<R>(table: &[Entry<R>], made: &[R], name: impl Fn(&R) -> &str) {
        assert_eq!(made.len(), table.len());
        for (at, (entry, rule)) in table.iter().zip(made).enumerate() {
            assert_eq!(name(rule), entry.name);
            let Ours(_, place, _) = &entry.kind else { continue };
            let stands = |other: &str| {
                let positions = table.iter().enumerate().filter(|(_, entry)| entry.name == other).map(|(at, _)| at);
                let positions: Vec<usize> = positions.collect();
                assert!(!positions.is_empty(), "{}: there is no pass {other}", entry.name);
                positions
            };
            match place {
                Before(other, why) => {
                    assert!(stands(other).iter().any(|position| at < *position), "{} before {other}", entry.name);
                    assert!(!why.is_empty());
                }
                After(other, why) => {
                    assert!(stands(other).iter().any(|position| at > *position), "{} after {other}", entry.name);
                    assert!(!why.is_empty());
                }
                Anywhere => {}
            }
        }
    }

    #[test]
    fn passes_stand_where_they_say() {
        let all = Disabled::default();
        check(ANALYZER, &analyzer(&all).unwrap(), |rule| rule.name());
        check(OPTIMIZER, &optimizer(&all).unwrap(), |rule| rule.name());
        check(PHYSICAL, &physical(&all).unwrap(), |rule| rule.name());
    }

    #[test]
    fn each_pass_can_be_left_out() {
        let names = |disabled: &Disabled| {
            let mut names: Vec<String> = Vec::new();
            names.extend(analyzer(disabled).unwrap().iter().map(|rule| rule.name().to_string()));
            names.extend(optimizer(disabled).unwrap().iter().map(|rule| rule.name().to_string()));
            names.extend(physical(disabled).unwrap().iter().map(|rule| rule.name().to_string()));
            names
        };
        let all = names(&Disabled::default());
        for name in all_names() {
            let others: Vec<&String> = all.iter().filter(|other| *other != name).collect();
            assert_eq!(names(&Disabled::parse(name).unwrap()).iter().collect::<Vec<_>>(), others, "{name}");
        }
        assert_eq!(names(&Disabled::parse(" , type_coercion,refused_casts ,").unwrap()).len(), all.len() - 2);
        let error = Disabled::parse("lossy_cast").unwrap_err();
        assert_eq!((error.kind(), error.message()), (ErrorKind::Invalid, "there is no pass \"lossy_cast\""));
        assert_eq!(error.hint(), Some("did you mean \"lossy_casts\"? onehop_passes lists all"));
    }

    #[test]
    fn a_rule_of_another_name_is_an_error() {
        let renamed = |from: usize, to: usize| {
            let mut rules = Optimizer::new().rules;
            rules.swap(from, to);
            assembled(OPTIMIZER, rules, &Disabled::default(), |rule| rule.name()).map(|_| ()).unwrap_err().to_string()
        };
        let message = renamed(0, 1);
        assert!(message.contains("lists rewrite_set_comparison, and DataFusion has optimize_unions"), "{message}");
        let mut rules = Optimizer::new().rules;
        rules.pop();
        let message =
            assembled(OPTIMIZER, rules, &Disabled::default(), |rule| rule.name()).map(|_| ()).unwrap_err().to_string();
        assert!(message.contains("lists optimize_projections, and DataFusion has no more"), "{message}");
        let mut rules = Analyzer::new().rules;
        rules.extend(Analyzer::new().rules);
        let message =
            assembled(ANALYZER, rules, &Disabled::default(), |rule| rule.name()).map(|_| ()).unwrap_err().to_string();
        assert!(message.contains("lists no more, and DataFusion has resolve_grouping_function"), "{message}");
    }
}
