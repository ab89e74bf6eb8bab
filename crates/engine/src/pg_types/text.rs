//! Values as text in PostgreSQL's format: ISO dates, intervals in its own style, the shortest
//! digits that identify a number.

use std::fmt::Write;

use arrow::datatypes::IntervalMonthDayNano;
use onehop_pipeline::bind::civil;

use super::calendar::{is_infinite_date, is_infinite_timestamp};
pub use super::zone::Zone;

const MICROS: i64 = 1_000_000;
const NANOS: i64 = 1_000_000_000;
const DAY_SECONDS: i64 = 86_400;

/// Writing to memory cannot fail.
macro_rules! put {
    ($out:expr, $($what:tt)*) => { let _ = write!($out, $($what)*); };
}

fn put_text(text: &str, out: &mut impl Write) {
    put!(out, "{text}");
}

/// Writes a whole number.
pub fn integer(value: i64, out: &mut impl Write) {
    put!(out, "{value}");
}

/// Writes the shortest digits that identify the number.
pub fn float64(value: f64, out: &mut impl Write) {
    match value {
        value if value.is_finite() => shortest(&format!("{value:e}"), 15, out),
        value => not_finite(value.is_nan(), value > 0.0, out),
    }
}

/// Writes the shortest digits that identify the number.
pub fn float32(value: f32, out: &mut impl Write) {
    match value {
        value if value.is_finite() => shortest(&format!("{value:e}"), 6, out),
        value => not_finite(value.is_nan(), value > 0.0, out),
    }
}

fn not_finite(is_nan: bool, is_positive: bool, out: &mut impl Write) {
    let text = match (is_nan, is_positive) {
        (true, _) => "NaN",
        (_, true) => "Infinity",
        (_, false) => "-Infinity",
    };
    put!(out, "{text}");
}

/// Writes digits and an exponent, `-1.25e3`. From 1e-4 to 1e`most` it writes a decimal point
/// instead of an exponent.
fn shortest(scientific: &str, most: i32, out: &mut impl Write) {
    let (digits, exponent) = scientific.split_once('e').unwrap_or((scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if !(-4..most).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        put!(out, "{digits}e{sign}{:02}", exponent.unsigned_abs());
        return;
    }
    let (sign, digits) = digits.strip_prefix('-').map_or(("", digits), |digits| ("-", digits));
    let digits: String = digits.chars().filter(char::is_ascii_digit).collect();
    put_text(sign, out);
    if exponent < 0 {
        put!(out, "0.{:0>width$}", digits, width = digits.len() + exponent.unsigned_abs() as usize - 1);
        return;
    }
    let whole = exponent as usize + 1;
    match digits.len() <= whole {
        true => put_padded(&digits, whole, out),
        false => {
            put!(out, "{}.{}", &digits[..whole], &digits[whole..]);
        }
    }
}

fn put_padded(digits: &str, width: usize, out: &mut impl Write) {
    put!(out, "{digits:0<width$}");
}

/// Writes the digits of a whole number with `scale` of them after the point.
pub fn decimal(number: &str, scale: i8, out: &mut impl Write) {
    let (sign, digits) = number.strip_prefix('-').map_or(("", number), |digits| ("-", digits));
    put_text(sign, out);
    match usize::try_from(scale) {
        Ok(0) => put_text(digits, out),
        Ok(scale) => {
            let padded = format!("{digits:0>width$}", width = scale + 1);
            let (whole, fraction) = padded.split_at(padded.len() - scale);
            put!(out, "{whole}.{fraction}");
        }
        Err(_) if digits == "0" => put_text("0", out),
        Err(_) => put_padded(digits, digits.len() + usize::from(scale.unsigned_abs()), out),
    }
}

/// Writes `\x0a1b`.
pub fn bytes(value: &[u8], out: &mut impl Write) {
    put_text("\\x", out);
    for byte in value {
        put!(out, "{byte:02x}");
    }
}

/// Writes the date. Returns whether it is before year 1, which the end of the text shows.
fn put_date(day: i64, out: &mut impl Write) -> bool {
    let (year, month, day) = civil(day);
    let is_before = year <= 0;
    let year = if is_before { 1 - year } else { year };
    put!(out, "{year:04}-{month:02}-{day:02}");
    is_before
}

fn put_era(is_before: bool, out: &mut impl Write) {
    if is_before {
        put_text(" BC", out);
    }
}

/// Writes `infinity`, which has no digits.
fn put_infinity(is_later: bool, out: &mut impl Write) {
    put_text(if is_later { "infinity" } else { "-infinity" }, out);
}

/// Writes `2024-02-29`.
pub fn date(day: i32, out: &mut impl Write) {
    if is_infinite_date(day) {
        return put_infinity(day > 0, out);
    }
    let is_before = put_date(day.into(), out);
    put_era(is_before, out);
}

/// Writes `12:34:56.789`.
pub fn time(micros: i64, out: &mut impl Write) {
    let (seconds, fraction) = (micros.div_euclid(MICROS), micros.rem_euclid(MICROS));
    put!(out, "{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
    put_fraction(fraction, out);
}

fn put_fraction(micros: i64, out: &mut impl Write) {
    if micros != 0 {
        let digits = format!("{micros:06}");
        put!(out, ".{}", digits.trim_end_matches('0'));
    }
}

/// Writes `12:34:56.789`, with all digits of nanoseconds.
pub fn time_nanos(nanos: i64, out: &mut impl Write) {
    let (seconds, nanos) = (nanos.div_euclid(NANOS), nanos.rem_euclid(NANOS));
    put!(out, "{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
    put_nanos(nanos, out);
}

fn put_nanos(nanos: i64, out: &mut impl Write) {
    if nanos != 0 {
        let digits = format!("{nanos:09}");
        put!(out, ".{}", digits.trim_end_matches('0'));
    }
}

/// Writes nanoseconds as [`timestamp`] and [`timestamp_tz`] do.
pub fn timestamp_nanos(nanos: i64, has_zone: bool, zone: &Zone, out: &mut impl Write) {
    let seconds = nanos.div_euclid(NANOS) * MICROS;
    let offset = if has_zone { zone.offset_seconds(seconds) } else { 0 };
    let is_before = put_timestamp(seconds + offset * MICROS, out);
    put_nanos(nanos.rem_euclid(NANOS), out);
    if has_zone {
        put_offset(offset, out);
    }
    put_era(is_before, out);
}

/// Writes `2024-02-29 12:34:56.789`.
pub fn timestamp(micros: i64, out: &mut impl Write) {
    if is_infinite_timestamp(micros) {
        return put_infinity(micros > 0, out);
    }
    let is_before = put_timestamp(micros, out);
    put_era(is_before, out);
}

fn put_timestamp(micros: i64, out: &mut impl Write) -> bool {
    let day = DAY_SECONDS * MICROS;
    let is_before = put_date(micros.div_euclid(day), out);
    put_text(" ", out);
    time(micros.rem_euclid(day), out);
    is_before
}

/// Writes `2024-02-29 12:34:56.789+01`, in local time.
pub fn timestamp_tz(micros: i64, zone: &Zone, out: &mut impl Write) {
    if is_infinite_timestamp(micros) {
        return put_infinity(micros > 0, out);
    }
    let offset = zone.offset_seconds(micros);
    let is_before = put_timestamp(micros.saturating_add(offset * MICROS), out);
    put_offset(offset, out);
    put_era(is_before, out);
}

fn put_offset(offset: i64, out: &mut impl Write) {
    let (sign, size) = (if offset < 0 { '-' } else { '+' }, offset.unsigned_abs());
    put!(out, "{sign}{:02}", size / 3600);
    if size % 3600 != 0 {
        put!(out, ":{:02}", size / 60 % 60);
    }
    if size % 60 != 0 {
        put!(out, ":{:02}", size % 60);
    }
}

/// Writes `1 year 2 mons -3 days +04:05:06.789`. A positive part after a negative one has a sign.
/// Nanoseconds are written if there are any.
pub fn interval(value: IntervalMonthDayNano, out: &mut impl Write) {
    let IntervalMonthDayNano { months, days, nanoseconds } = value;
    let (mut is_first, mut after_negative) = (true, false);
    for (count, name) in [(months / 12, "year"), (months % 12, "mon"), (days, "day")] {
        if count == 0 {
            continue;
        }
        let space = if is_first { "" } else { " " };
        let sign = if after_negative && count > 0 { "+" } else { "" };
        let plural = if count == 1 { "" } else { "s" };
        put!(out, "{space}{sign}{count} {name}{plural}");
        (is_first, after_negative) = (false, count < 0);
    }
    if nanoseconds != 0 || is_first {
        let space = if is_first { "" } else { " " };
        let sign = match nanoseconds < 0 {
            true => "-",
            false if after_negative => "+",
            false => "",
        };
        put!(out, "{space}{sign}");
        time_nanos(nanoseconds.saturating_abs(), out);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn text(write: impl Fn(&mut String)) -> String {
        let mut out = String::new();
        write(&mut out);
        out
    }

    /// Expected strings are PostgreSQL 15's for `SELECT x::float8` and `x::float4`.
    #[test]
    fn floats_are_short() {
        for (value, said) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (1.0, "1"),
            (0.1, "0.1"),
            (-12.5, "-12.5"),
            (1e14, "100000000000000"),
            (1e15, "1e+15"),
            (123_456_789_012_345.0, "123456789012345"),
            (1.5e-5, "1.5e-05"),
            (0.00012, "0.00012"),
            (1e300, "1e+300"),
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-Infinity"),
        ] {
            assert_eq!(text(|out| float64(value, out)), said);
        }
        assert_eq!(text(|out| float32(1e6, out)), "1e+06");
        assert_eq!(text(|out| float32(123_456.0, out)), "123456");
        assert_eq!(text(|out| float32(0.1, out)), "0.1");
    }

    #[test]
    fn decimals_have_all_their_digits() {
        for (number, scale, said) in [
            ("12345", 2, "123.45"),
            ("-5", 2, "-0.05"),
            ("0", 3, "0.000"),
            ("7", 0, "7"),
            ("7", -2, "700"),
            ("0", -2, "0"),
        ] {
            assert_eq!(text(|out| decimal(number, scale, out)), said);
        }
    }

    #[test]
    fn dates_and_times_are_as_postgresql_has_them() {
        assert_eq!(text(|out| date(0, out)), "1970-01-01");
        assert_eq!(text(|out| date(19_782, out)), "2024-02-29");
        assert_eq!(text(|out| date(-719_529, out)), "0002-12-31 BC");
        assert_eq!(text(|out| date(2_932_897, out)), "10000-01-01");
        assert_eq!(text(|out| timestamp(-1, out)), "1969-12-31 23:59:59.999999");
        assert_eq!(text(|out| timestamp(1_500_000, out)), "1970-01-01 00:00:01.5");
        let berlin = Zone::parse("Europe/Berlin").unwrap();
        assert_eq!(text(|out| timestamp_tz(1_720_000_000_000_000, &berlin, out)), "2024-07-03 11:46:40+02");
        let kolkata = Zone::parse("-05:30").unwrap();
        assert_eq!(text(|out| timestamp_tz(0, &kolkata, out)), "1970-01-01 05:30:00+05:30");
        assert_eq!(text(|out| timestamp_tz(0, &Zone::default(), out)), "1970-01-01 00:00:00+00");
        assert!(Zone::parse("Mars/Olympus").is_none());
    }

    #[test]
    fn intervals_say_their_signs() {
        let said =
            |months, days, nanoseconds| text(|out| interval(IntervalMonthDayNano { months, days, nanoseconds }, out));
        assert_eq!(said(0, 0, 0), "00:00:00");
        assert_eq!(said(14, 3, 14_706_789_000_000), "1 year 2 mons 3 days 04:05:06.789");
        assert_eq!(said(0, -1, 7_380_000_000_000), "-1 days +02:03:00");
        assert_eq!(said(-1, 1, -1_000_000_000), "-1 mons +1 day -00:00:01");
        assert_eq!(said(1, 2, 3), "1 mon 2 days 00:00:00.000000003");
        assert_eq!(said(0, -1, -1), "-1 days -00:00:00.000000001");
    }
}
