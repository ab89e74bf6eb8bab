//! `to_char(d, 'YYYY-MM-DD')`, `to_date('02.01.2020', 'DD.MM.YYYY')`: formats in PostgreSQL's
//! notation.
//!
//! DataFusion uses strftime's formats, in which a letter without `%` stands for itself: it would
//! answer `YYYY-MM-DD`. A format that contains a `%` stays as it is. A format with unknown letters
//! is refused when it runs.

use datafusion::sql::sqlparser::ast::{Expr, FunctionArg, FunctionArgExpr, FunctionArguments, ObjectNamePart, Value};

use super::expressions::call;
use crate::identifiers::normal;
use crate::postgres::functions::UNKNOWN_FORMAT;

/// PostgreSQL's fields and strftime's. A field precedes those that are prefixes of it.
const FIELDS: [(&str, &str); 34] = [
    ("YYYY", "%Y"),
    ("IYYY", "%G"),
    ("YY", "%y"),
    ("IY", "%g"),
    ("FMMonth", "%B"),
    ("FMDay", "%A"),
    ("FMDD", "%-d"),
    ("FMMM", "%-m"),
    ("FMHH24", "%-H"),
    ("FMHH12", "%-I"),
    ("FMHH", "%-I"),
    ("FMMI", "%-M"),
    ("FMSS", "%-S"),
    ("HH24", "%H"),
    ("HH12", "%I"),
    ("HH", "%I"),
    ("MI", "%M"),
    ("MM", "%m"),
    ("MS", "%3f"),
    ("US", "%6f"),
    ("SS", "%S"),
    ("Mon", "%b"),
    ("DDD", "%j"),
    ("DD", "%d"),
    ("Dy", "%a"),
    ("ID", "%u"),
    ("IW", "%V"),
    ("AM", "%p"),
    ("PM", "%p"),
    ("am", "%P"),
    ("pm", "%P"),
    ("TZH:TZM", "%:z"),
    ("OF", "%:z"),
    ("TZ", "%Z"),
];

/// The fields that match in any case.
const IN_ANY_LETTERS: [&str; 19] = [
    "YYYY", "IYYY", "YY", "IY", "FMDD", "FMMM", "FMHH24", "FMHH12", "FMHH", "FMMI", "FMSS", "HH24", "HH12", "HH", "MI",
    "MM", "SS", "DD", "DDD",
];

/// Runs before functions are renamed.
pub(super) fn rewrite(expr: &mut Expr) {
    let Expr::Function(function) = expr else { return };
    let [ObjectNamePart::Identifier(name)] = function.name.0.as_slice() else { return };
    if !["to_char", "to_date", "to_timestamp"].contains(&normal(name).as_str()) {
        return;
    }
    let FunctionArguments::List(list) = &mut function.args else { return };
    let [_, FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::Value(format)))] = list.args.as_mut_slice() else {
        return;
    };
    let Value::SingleQuotedString(text) = &mut format.value else { return };
    if text.contains('%') {
        return;
    }
    match strftime(text) {
        Some(strftime) => *text = strftime,
        None => *expr = call(UNKNOWN_FORMAT, vec![Expr::Value(format.clone())]),
    }
}

/// Translates a format to strftime's notation. Returns `None` if it has letters without a meaning
/// here.
fn strftime(format: &str) -> Option<String> {
    let mut written = String::with_capacity(format.len() + 8);
    let mut rest = format;
    while let Some(first) = rest.chars().next() {
        // `SSSS`, the seconds of the day, has no translation.
        if rest.get(..4).is_some_and(|head| head.eq_ignore_ascii_case("SSSS")) {
            return None;
        }
        let field = FIELDS.iter().find(|(name, _)| {
            let head = rest.get(..name.len());
            let is_any = IN_ANY_LETTERS.contains(name);
            head.is_some_and(|head| head == *name || (is_any && head.eq_ignore_ascii_case(name)))
        });
        if let Some((name, meant)) = field {
            written.push_str(meant);
            rest = &rest[name.len()..];
        } else if first == '"' {
            let (quoted, behind) = rest[1..].split_once('"')?;
            written.push_str(quoted);
            rest = behind;
        } else if first.is_alphabetic() {
            return None;
        } else {
            written.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
    Some(written)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planner::tests::rows;

    #[test]
    fn fields_are_known_by_their_names() {
        for (format, meant) in [
            ("YYYY-MM-DD", Some("%Y-%m-%d")),
            ("yyyy/mm/dd", Some("%Y/%m/%d")),
            ("HH24:MI:SS.US", Some("%H:%M:%S.%6f")),
            ("Dy, FMDD Mon YY", Some("%a, %-d %b %y")),
            ("YYYY\"T\"DDD", Some("%YT%j")),
            ("YYYY Q", None),
            ("SSSS", None),
            ("Month", None),
            ("\"open", None),
        ] {
            assert_eq!(strftime(format).as_deref(), meant, "{format}");
        }
    }

    #[tokio::test]
    async fn moments_are_written_and_read() {
        for (expr, expected) in [
            ("to_char(DATE '2020-01-02', 'YYYY-MM-DD')", "2020-01-02"),
            ("to_char(TIMESTAMP '2020-01-02 15:04:05', 'DD.MM.YYYY HH24:MI')", "02.01.2020 15:04"),
            ("to_date('02.01.2020', 'DD.MM.YYYY')", "2020-01-02"),
            ("to_char(DATE '2020-01-02', '%d')", "02"),
            ("strftime(DATE '2020-01-02', 'DD')", "DD"),
        ] {
            assert_eq!(rows(&format!("SELECT {expr}")).await, [expected], "{expr}");
        }
    }
}
