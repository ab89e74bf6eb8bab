//! TIMESTAMP counts microseconds, as in PostgreSQL and DuckDB.
//!
//! DataFusion's counts nanoseconds, in which the years before 1678 and after 2261 do not exist: `TIMESTAMP '0001-01-01
//! 00:00:00'` fails, and a file's timestamps, mostly of microseconds, are converted to be compared. TIMESTAMP(9) still
//! counts nanoseconds.
//!
//! TIMESTAMPTZ is a TIMESTAMP in UTC: a text's offset counts, and one without is in UTC, or [where the session is](super::zoned_moments). DataFusion makes
//! a TIMESTAMP without a zone of it unless the session has one, which would be that of now() and all else, too; so the
//! type is given in Arrow's words.

use datafusion::sql::sqlparser::ast::{
    CastKind, DataType, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArgumentList, FunctionArguments, Ident,
    ObjectName, TableFactor, TableFunctionArgs, TimezoneInfo, TypedString, Value,
};

use super::expressions::call;
use super::zoned_moments::TIMEZONE;

const MICROSECONDS: u64 = 6;
const NANOSECONDS: u64 = 9;

pub(super) fn rewrite(expr: &mut Expr) {
    if let Expr::AtTimeZone { timestamp, time_zone } = expr {
        *expr = call(TIMEZONE, vec![time_zone.as_ref().clone(), timestamp.as_ref().clone()]);
        return;
    }
    let data_type = match expr {
        Expr::Cast { data_type, .. } => data_type,
        Expr::TypedString(typed) => &mut typed.data_type,
        _ => return,
    };
    if let DataType::Timestamp(precision @ None, _) = data_type {
        *precision = Some(MICROSECONDS);
    }
    if let Some(in_utc) = in_utc(expr) {
        *expr = in_utc;
    }
}

/// `generate_series()` and the like take nanoseconds and nothing else.
pub(super) fn rewrite_table(table: &mut TableFactor) {
    let TableFactor::Table { args: Some(TableFunctionArgs { args, .. }), .. } = table else { return };
    for arg in args {
        let FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) = arg else { continue };
        let data_type = match expr {
            Expr::Cast { data_type, .. } => data_type,
            Expr::TypedString(typed) => &mut typed.data_type,
            _ => continue,
        };
        if let DataType::Timestamp(precision @ Some(MICROSECONDS), _) = data_type {
            *precision = Some(NANOSECONDS);
        }
    }
}

/// `2020-12-31 23:59`, with what is behind it, with seconds; `None` for any other text.
pub(super) fn with_seconds(text: &str) -> Option<String> {
    const FORM: &[u8] = b"0000-00-00 00:00";
    let head = text.as_bytes().get(..FORM.len())?;
    let is_formed = head.iter().zip(FORM).all(|(byte, form)| match form {
        b'0' => byte.is_ascii_digit(),
        b' ' => matches!(byte, b' ' | b'T'),
        form => byte == form,
    });
    let rest = text.get(FORM.len()..)?;
    (is_formed && !rest.starts_with(':')).then(|| format!("{}:00{rest}", &text[..FORM.len()]))
}

fn in_utc(expr: &Expr) -> Option<Expr> {
    let (mut value, data_type, function) = match expr {
        Expr::Cast { expr, data_type, array: false, format: None, kind } => {
            let is_try = matches!(kind, CastKind::TryCast | CastKind::SafeCast);
            (expr.as_ref().clone(), data_type, if is_try { "arrow_try_cast" } else { "arrow_cast" })
        }
        Expr::TypedString(TypedString { data_type, value, .. }) => {
            (Expr::Value(value.clone()), data_type, "arrow_cast")
        }
        _ => return None,
    };
    let DataType::Timestamp(Some(precision), TimezoneInfo::Tz | TimezoneInfo::WithTimeZone) = data_type else {
        return None;
    };
    if let Expr::Value(literal) = &mut value
        && let Value::SingleQuotedString(text) = &mut literal.value
        && let Some(with_seconds) = with_seconds(text)
    {
        *text = with_seconds;
    }
    let unit = match precision {
        0 => "s",
        3 => "ms",
        6 => "µs",
        9 => "ns",
        _ => return None,
    };
    let arrow_type = Value::SingleQuotedString(format!("Timestamp({unit}, \"UTC\")"));
    let args = [value, Expr::Value(arrow_type.into())];
    Some(Expr::Function(Function {
        name: ObjectName::from(vec![Ident::new(function)]),
        uses_odbc_syntax: false,
        parameters: FunctionArguments::None,
        args: FunctionArguments::List(FunctionArgumentList {
            duplicate_treatment: None,
            args: args.map(|arg| FunctionArg::Unnamed(FunctionArgExpr::Expr(arg))).into(),
            clauses: Vec::new(),
        }),
        filter: None,
        null_treatment: None,
        over: None,
        within_group: Vec::new(),
    }))
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::rows;

    #[tokio::test]
    async fn all_years_are_there() {
        for (text, expected) in [
            ("SELECT TIMESTAMP '0001-01-01 00:00:00' < CAST('9999-12-31' AS TIMESTAMP)", "true"),
            (
                "SELECT arrow_typeof('2024-01-01'::TIMESTAMP), arrow_typeof(CAST(NULL AS TIMESTAMP(9)))",
                "Timestamp(µs) Timestamp(ns)",
            ),
            ("SELECT TIMESTAMP '2024-01-01 00:00:00' + INTERVAL '90 minutes'", "2024-01-01T01:30:00"),
            ("SELECT date_trunc('hour', TIMESTAMP '2024-01-01 05:06:07')", "2024-01-01T05:00:00"),
            (
                "SELECT date_bin(INTERVAL '15 minutes', TIMESTAMP '2024-01-01 05:36:07', TIMESTAMP '2001-01-01 00:00:00')",
                "2024-01-01T05:30:00",
            ),
            (
                "SELECT TIMESTAMPTZ '2024-01-01 00:00:00+02', '2024-01-01 00:00:00'::TIMESTAMP WITH TIME ZONE",
                "2023-12-31T22:00:00Z 2024-01-01T00:00:00Z",
            ),
            (
                "SELECT arrow_typeof(CAST(NULL AS TIMESTAMPTZ(0))), TRY_CAST('x' AS TIMESTAMPTZ)",
                "Timestamp(s, \"UTC\") NULL",
            ),
            ("SELECT TIMESTAMPTZ '2024-01-01 00:00:00+02' < TIMESTAMP '2024-01-01 00:00:00'", "true"),
            ("SELECT now() > TIMESTAMP '2024-01-01 00:00:00'", "true"),
            (
                "SELECT count(*) FROM generate_series(TIMESTAMP '2024-01-01 00:00:00', TIMESTAMP '2024-01-02 00:00:00', INTERVAL '6 hours')",
                "5",
            ),
        ] {
            assert_eq!(rows(text).await, [expected], "{text}");
        }
    }
}
