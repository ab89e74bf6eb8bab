//! Function names of DuckDB and PostgreSQL.
//!
//! `sign(x)` becomes `signum(x)`, `year(d)` becomes `date_part('year', d)`, `mod(a, b)` becomes
//! `a % b`, and `if(a, b, c)` becomes a CASE. Counts become BIGINT instead of unsigned, as
//! everywhere else. The rewrite works on the syntax tree: an alias of a DataFusion function loses
//! the clauses that the function takes beyond plain calls. This module lists a name only if both
//! functions mean the same.

use std::ops::ControlFlow;

use datafusion::execution::SessionState;
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::helpers::attached_token::AttachedToken;
use datafusion::sql::sqlparser::ast::{
    BinaryOperator, CaseWhen, CastKind, DataType, ExactNumberInfo, Expr, Function, FunctionArg, FunctionArgExpr,
    FunctionArguments, Ident, ObjectName, ObjectNamePart, Query, TableFactor, TimezoneInfo, Value, Visit, Visitor,
    visit_expressions,
};

use super::expressions::call;
use crate::error::nearest;
use crate::identifiers::normal;
use crate::{Error, ErrorKind, Object};

/// (name, DataFusion's name)
const NAMES: [(&str, &str); 26] = [
    ("approx_count_distinct", "approx_distinct"),
    ("array_upper", "array_length"),
    ("ceiling", "ceil"),
    ("editdist3", "levenshtein"),
    ("every", "bool_and"),
    ("first", "first_value"),
    ("gen_random_uuid", "uuid"),
    ("group_concat", "string_agg"),
    ("last", "last_value"),
    ("lcase", "lower"),
    ("len", "length"),
    ("list", "array_agg"),
    ("list_value", "make_array"),
    ("listagg", "string_agg"),
    ("ord", "ascii"),
    ("prefix", "starts_with"),
    ("regexp_matches", "regexp_like"),
    ("sign", "signum"),
    ("split", "string_to_array"),
    ("str_split", "string_to_array"),
    ("strftime", "to_char"),
    ("string_split", "string_to_array"),
    ("suffix", "ends_with"),
    ("ucase", "upper"),
    ("unicode", "ascii"),
    ("variance", "var_samp"),
];

/// (name, DataFusion's name of the PostgreSQL function: DataFusion's own of that name stops at the
/// first match)
const OTHERS: [(&str, &str); 4] = [
    ("array_remove", "array_remove_all"),
    ("array_replace", "array_replace_all"),
    ("list_remove", "array_remove_all"),
    ("list_replace", "array_replace_all"),
];

/// (function of one argument, the date or time part that it returns)
const DATE_PARTS: [(&str, &str); 15] = [
    ("day", "day"),
    ("dayofmonth", "day"),
    ("dayofweek", "dow"),
    ("dayofyear", "doy"),
    ("hour", "hour"),
    ("isodow", "isodow"),
    ("microsecond", "microsecond"),
    ("millisecond", "millisecond"),
    ("minute", "minute"),
    ("month", "month"),
    ("quarter", "quarter"),
    ("second", "second"),
    ("week", "week"),
    ("weekofyear", "week"),
    ("year", "year"),
];

/// Functions whose result is unsigned in DataFusion.
const COUNTS: [&str; 14] = [
    "approx_distinct",
    "array_indexof",
    "array_length",
    "array_ndims",
    "array_position",
    "cardinality",
    "dense_rank",
    "list_indexof",
    "list_length",
    "list_ndims",
    "list_position",
    "ntile",
    "rank",
    "row_number",
];

const MODULO: &str = "mod";
const IFS: [&str; 2] = ["if", "iif"];

/// Returns the names that this module rewrites, for completion.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    NAMES.iter().chain(&DATE_PARTS).map(|(name, _)| *name).chain([MODULO]).chain(IFS)
}

/// Returns whether the name is a date or time part used as a function.
pub(super) fn is_of_dates(name: &str) -> bool {
    DATE_PARTS.iter().any(|(part, _)| *part == name)
}

/// Returns DataFusion's name of a function.
pub(super) fn meant(name: &str) -> &str {
    NAMES.iter().find(|(other, _)| *other == name).map_or(name, |(_, meant)| meant)
}

/// Parts of a time with a fraction, which DataFusion cuts off, and their length in microseconds.
const FRACTIONS: [(&str, &str); 6] = [
    ("second", "1000000"),
    ("seconds", "1000000"),
    ("millisecond", "1000"),
    ("milliseconds", "1000"),
    ("sec", "1000000"),
    ("msec", "1000"),
];

/// Returns `extract(second FROM t)` with its fraction, as in PostgreSQL. The function `second(t)`
/// has none, as in DuckDB.
fn with_fraction(part: &str, moment: &Expr) -> Option<Expr> {
    let (_, micros) = FRACTIONS.iter().find(|(name, _)| part.eq_ignore_ascii_case(name))?;
    let micro = Expr::Value(Value::SingleQuotedString("microsecond".into()).into());
    let whole = Expr::Cast {
        kind: CastKind::Cast,
        expr: Box::new(call("date_part", vec![micro, moment.clone()])),
        data_type: DataType::Double(ExactNumberInfo::None),
        array: false,
        format: None,
    };
    let right = Box::new(Expr::Value(Value::Number((*micros).into(), false).into()));
    let parts = Expr::BinaryOp { left: Box::new(whole), op: BinaryOperator::Divide, right };
    Some(Expr::Nested(Box::new(parts)))
}

/// Returns the extraction of a part with a fraction.
fn extracted(expr: &Expr) -> Option<Expr> {
    match expr {
        Expr::Extract { field, expr, .. } => with_fraction(&field.to_string(), expr),
        Expr::Function(function) => {
            let [ObjectNamePart::Identifier(name)] = function.name.0.as_slice() else { return None };
            let [
                FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::Value(part))),
                FunctionArg::Unnamed(FunctionArgExpr::Expr(moment)),
            ] = plain_arguments(function)?
            else {
                return None;
            };
            let Value::SingleQuotedString(part) = &part.value else { return None };
            if normal(name) == "date_part" { with_fraction(part, moment) } else { None }
        }
        _ => None,
    }
}

/// (function, the type of the transaction's time that it returns)
const CLOCKS: [(&str, Clock); 6] = [
    ("current_date", Clock::Date),
    ("current_time", Clock::Time),
    ("current_timestamp", Clock::Moment),
    ("localtime", Clock::Time),
    ("localtimestamp", Clock::Timestamp),
    ("today", Clock::Date),
];

#[derive(Clone, Copy)]
enum Clock {
    Date,
    Time,
    Moment,
    Timestamp,
}

/// Rewrites `current_date` to `CAST(now() AS DATE)`, which follows the session's time zone.
/// `localtimestamp(3)` has three digits.
fn clock(expr: &Expr) -> Option<Expr> {
    let Expr::Function(function) = expr else { return None };
    let [ObjectNamePart::Identifier(name)] = function.name.0.as_slice() else { return None };
    let name = normal(name);
    let (_, clock) = CLOCKS.iter().find(|(known, _)| *known == name)?;
    let precision = match &function.args {
        FunctionArguments::None => None,
        _ => match plain_arguments(function)? {
            [] => None,
            [FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::Value(digits)))] => match &digits.value {
                Value::Number(digits, _) => Some(digits.parse::<u64>().ok()?),
                _ => return None,
            },
            _ => return None,
        },
    };
    let moment = |precision, zone| DataType::Timestamp(precision, zone);
    let data_type = match clock {
        Clock::Date if precision.is_none() => DataType::Date,
        Clock::Date => return None,
        Clock::Time => DataType::Time(None, TimezoneInfo::None),
        Clock::Moment if precision.is_none() => return Some(call("now", Vec::new())),
        Clock::Moment => moment(precision, TimezoneInfo::Tz),
        Clock::Timestamp => moment(precision, TimezoneInfo::None),
    };
    let now = Box::new(call("now", Vec::new()));
    Some(Expr::Cast { kind: CastKind::Cast, expr: now, data_type, array: false, format: None })
}

/// Folds the names of table functions, since DataFusion resolves them as written.
pub(super) fn rewrite_table(table: &mut TableFactor) {
    let (TableFactor::Table { name, args: Some(_), .. } | TableFactor::Function { name, .. }) = table else { return };
    for part in &mut name.0 {
        if let ObjectNamePart::Identifier(ident) = part
            && ident.quote_style.is_none()
        {
            ident.value = normal(ident);
        }
    }
}

pub(super) fn rewrite(expr: &mut Expr) {
    if let Some(clock) = clock(expr) {
        *expr = clock;
        return;
    }
    if let Some(extracted) = extracted(expr) {
        *expr = extracted;
        return;
    }
    let Expr::Function(function) = expr else { return };
    let [ObjectNamePart::Identifier(name)] = function.name.0.as_slice() else { return };
    let name = normal(name);
    let meant =
        |names: &[(&str, &'static str)]| names.iter().find(|(other, _)| *other == name).map(|(_, meant)| *meant);
    let known = meant(&NAMES).or_else(|| meant(&OTHERS));
    if let Some(meant) = known {
        function.name = ObjectName::from(vec![Ident::new(meant)]);
    }
    if COUNTS.contains(&known.unwrap_or(&name)) {
        let count = Box::new(expr.clone());
        *expr = Expr::Cast {
            kind: CastKind::Cast,
            expr: count,
            data_type: DataType::BigInt(None),
            array: false,
            format: None,
        };
    } else if known.is_some() {
    } else if let Some(part) = meant(&DATE_PARTS)
        && let Some([_]) = plain_arguments(function)
        && let FunctionArguments::List(list) = &mut function.args
    {
        function.name = ObjectName::from(vec![Ident::new("date_part")]);
        let part = Expr::Value(Value::SingleQuotedString(part.into()).into());
        list.args.insert(0, FunctionArg::Unnamed(FunctionArgExpr::Expr(part)));
    } else if name == MODULO
        && let Some([FunctionArg::Unnamed(FunctionArgExpr::Expr(a)), FunctionArg::Unnamed(FunctionArgExpr::Expr(b))]) =
            plain_arguments(function)
    {
        let nested = |expr: &Expr| Box::new(Expr::Nested(Box::new(expr.clone())));
        let modulo = Expr::BinaryOp { left: nested(a), op: BinaryOperator::Modulo, right: nested(b) };
        *expr = Expr::Nested(Box::new(modulo));
    } else if IFS.contains(&name.as_str())
        && let Some(
            [
                FunctionArg::Unnamed(FunctionArgExpr::Expr(condition)),
                FunctionArg::Unnamed(FunctionArgExpr::Expr(result)),
                FunctionArg::Unnamed(FunctionArgExpr::Expr(otherwise)),
            ],
        ) = plain_arguments(function)
    {
        *expr = Expr::Case {
            case_token: AttachedToken::empty(),
            end_token: AttachedToken::empty(),
            operand: None,
            conditions: vec![CaseWhen { condition: condition.clone(), result: result.clone() }],
            else_result: Some(Box::new(otherwise.clone())),
        };
    }
}

/// Returns the first function of a statement that DataFusion does not have.
pub(super) fn unknown(statement: &Statement, state: &SessionState) -> Option<String> {
    let Statement::Statement(sql) = statement else { return None };
    let found = visit_expressions(sql.as_ref(), |expr| {
        let Expr::Function(Function { name, over, .. }) = expr else { return ControlFlow::Continue(()) };
        let [ObjectNamePart::Identifier(word)] = name.0.as_slice() else { return ControlFlow::Continue(()) };
        let name = normal(word);
        // DataFusion's planner handles it by name.
        let is_known = name == "unnest"
            || state.scalar_functions().contains_key(&name)
            || state.aggregate_functions().contains_key(&name)
            || (over.is_some() && state.window_functions().contains_key(&name))
            || state.higher_order_functions().contains_key(&name);
        if is_known { ControlFlow::Continue(()) } else { ControlFlow::Break(name) }
    });
    found.break_value()
}

/// Returns whether the tree has a matching call outside of its subqueries.
pub(super) fn calls(tree: &impl Visit, is_meant: &dyn Fn(&str, &Function) -> bool) -> bool {
    first_call(tree, is_meant).is_some()
}

/// Returns the name of the first matching call.
pub(super) fn first_call(tree: &impl Visit, is_meant: &dyn Fn(&str, &Function) -> bool) -> Option<String> {
    struct Finder<'a> {
        is_meant: &'a dyn Fn(&str, &Function) -> bool,
        depth: usize,
    }
    impl Visitor for Finder<'_> {
        type Break = String;

        fn pre_visit_query(&mut self, _: &Query) -> ControlFlow<String> {
            self.depth += 1;
            ControlFlow::Continue(())
        }

        fn post_visit_query(&mut self, _: &Query) -> ControlFlow<String> {
            self.depth -= 1;
            ControlFlow::Continue(())
        }

        fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<String> {
            let Expr::Function(function) = expr else { return ControlFlow::Continue(()) };
            let name = function.name.0.last().and_then(ObjectNamePart::as_ident).map(normal);
            match name {
                Some(name) if self.depth == 0 && (self.is_meant)(&name, function) => ControlFlow::Break(name),
                _ => ControlFlow::Continue(()),
            }
        }
    }
    tree.visit(&mut Finder { is_meant, depth: 0 }).break_value()
}

/// Returns the error for an [`unknown`] function.
pub(super) fn not_found(name: &str, state: &SessionState) -> Error {
    if state.window_functions().contains_key(name) {
        return Error::new(ErrorKind::Invalid, format!("{name}() is a window function, and has no OVER"))
            .with_hint(format!("{name}(..) OVER (PARTITION BY k ORDER BY x)"));
    }
    let error = Error::new(ErrorKind::NotFound, format!("there is no function \"{name}\"")).of(Object::Function);
    let known = state.scalar_functions().keys().chain(state.aggregate_functions().keys());
    let known = known.chain(state.window_functions().keys()).map(String::as_str).filter(|name| !name.starts_with("__"));
    let mut known: Vec<&str> = known.collect();
    names().for_each(|name| known.push(name));
    match nearest(name, known) {
        Some(near) => error.with_hint(format!("did you mean \"{near}\"?")),
        None => error,
    }
}

/// Returns the arguments of a call without any clauses.
pub(super) fn plain_arguments(function: &Function) -> Option<&[FunctionArg]> {
    let is_plain = function.over.is_none() && function.filter.is_none() && function.within_group.is_empty();
    match &function.args {
        FunctionArguments::List(list) if is_plain && list.clauses.is_empty() && list.duplicate_treatment.is_none() => {
            Some(&list.args)
        }
        _ => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::planner::tests::{rewritten, rows, state};

    #[test]
    fn every_name_is_one_that_datafusion_has_not_for_one_that_it_has() {
        let state = state();
        let has = |name: &str| {
            state.scalar_functions().contains_key(name)
                || state.aggregate_functions().contains_key(name)
                || state.window_functions().contains_key(name)
        };
        for (name, meant) in NAMES {
            assert!(!has(name), "DataFusion has {name} itself");
            assert!(has(meant), "DataFusion has no {meant}");
        }
        for (name, _) in DATE_PARTS {
            assert!(!has(name), "DataFusion has {name} itself");
        }
    }

    #[test]
    fn calls_are_put_in_other_words() {
        for (text, meant) in [
            ("SELECT a FROM t WHERE SIGN(x) = mod(a + 1, b)", "SELECT a FROM t WHERE signum(x) = ((a + 1) % (b))"),
            ("SELECT a FROM t ORDER BY Year(d)", "SELECT a FROM t ORDER BY date_part('year', d)"),
            ("SELECT a FROM t WHERE year(d, e)", "SELECT a FROM t WHERE year(d, e)"),
            ("SELECT year FROM t", "SELECT year FROM t"),
            ("SELECT a FROM t WHERE if(x, y, z)", "SELECT a FROM t WHERE CASE WHEN x THEN y ELSE z END"),
        ] {
            assert_eq!(rewritten(text), meant);
        }
    }

    #[tokio::test]
    async fn they_mean_the_same() {
        let text = "SELECT sign(-2.5), year(DATE '2024-02-03'), dayofweek(DATE '2024-01-07'), mod(-7, 3), len('abc'),
                           ceiling(1.2), list_value(1, 2), strftime(DATE '2024-02-03', '%d.%m.%Y'), regexp_matches('abc', 'b'),
                           strptime('03.02.2024', '%d.%m.%Y')";
        assert_eq!(rows(text).await, ["-1.0 2024 0 -1 3 2 [1, 2] 03.02.2024 [b] 2024-02-03T00:00:00"]);
    }
}
