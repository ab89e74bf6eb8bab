//! Parses intervals: `1 day 02:30:00`, `-1 year 2 mons`, `1.5 hours ago`, `3 4:05` (days and
//! hours), `1-2` (years and months), `P1DT2H`; a number alone is seconds. [`super::text::interval`]
//! writes them.
//!
//! A fraction of years becomes months. A fraction of months becomes days, 30 to the month. A
//! fraction of any other unit becomes hours or less, as PostgreSQL's documentation of interval
//! input specifies. Arrow's parser does not accept `hh:mm`, and takes a number alone for months.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, IntervalMonthDayNanoArray};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, DurationMicrosecondType, IntervalMonthDayNano, TimeUnit};
use arrow::util::display::FormatOptions;

use crate::Result;

const SECOND: i128 = 1_000_000_000;
const MINUTE: i128 = 60 * SECOND;
const HOUR: i128 = 60 * MINUTE;
const DAY: i128 = 24 * HOUR;
const MONTH_DAYS: i128 = 30;
/// The maximum number of significant digits of a fraction.
const DIGITS: usize = 18;
/// The denominator of a fraction of that many digits.
const WHOLE: i128 = 1_000_000_000_000_000_000;

/// Parses an interval. Returns `None` if the text is not one.
pub(crate) fn parse(text: &str) -> Option<IntervalMonthDayNano> {
    let text = text.trim();
    let mut sum = Sum::default();
    match text.strip_prefix('P') {
        Some(iso) => sum.iso(iso)?,
        None => sum.words(text)?,
    }
    sum.interval()
}

/// Converts durations to intervals of whole days and a remainder, as PostgreSQL does for the
/// difference of two timestamps.
///
/// # Errors
/// Fails if the values are not durations, or if they overflow microseconds.
pub fn of_duration(values: &ArrayRef) -> Result<ArrayRef> {
    let checked = CastOptions { safe: false, format_options: FormatOptions::new() };
    let micros = cast_with_options(values, &DataType::Duration(TimeUnit::Microsecond), &checked)?;
    let micros = micros.as_primitive::<DurationMicrosecondType>();
    let of_one = |micros: i64| {
        let day = (DAY / 1000) as i64;
        // The largest duration is less than 107 million days.
        IntervalMonthDayNano::new(0, (micros / day) as i32, micros % day * 1000)
    };
    let intervals: IntervalMonthDayNanoArray = micros.iter().map(|micros| micros.map(of_one)).collect();
    Ok(Arc::new(intervals))
}

/// A number with a fraction in units of 1/[`WHOLE`].
#[derive(Clone, Copy)]
struct Number {
    is_negative: bool,
    whole: i128,
    fraction: i128,
}

impl Number {
    fn parse(text: &str) -> Option<Self> {
        let (is_negative, digits) = match text.as_bytes().first()? {
            b'-' => (true, &text[1..]),
            b'+' => (false, &text[1..]),
            _ => (false, text),
        };
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if (whole.is_empty() && fraction.is_empty()) || !is_digits(whole) || !is_digits(fraction) {
            return None;
        }
        let whole = if whole.is_empty() { 0 } else { whole.parse::<u64>().ok()?.into() };
        let first: String = fraction.chars().chain(std::iter::repeat('0')).take(DIGITS).collect();
        Some(Self { is_negative, whole, fraction: first.parse().ok()? })
    }

    /// Multiplies by `each`. Returns the whole part, and the remainder in units of 1/[`WHOLE`].
    fn times(self, each: i128) -> (i128, i128) {
        let sign = if self.is_negative { -1 } else { 1 };
        let parts = self.fraction * each;
        (sign * (self.whole * each + parts / WHOLE), sign * (parts % WHOLE))
    }
}

/// The sum of the parts that have been parsed.
#[derive(Default)]
struct Sum {
    months: i128,
    days: i128,
    nanos: i128,
    has_any: bool,
}

impl Sum {
    fn interval(&self) -> Option<IntervalMonthDayNano> {
        if !self.has_any {
            return None;
        }
        // PostgreSQL's intervals have microseconds, to which it rounds half to even.
        let (micros, left) = (self.nanos / 1000, self.nanos % 1000);
        let rounds_up = left.abs() > 500 || (left.abs() == 500 && micros % 2 != 0);
        let nanos = (micros + if rounds_up { left.signum() } else { 0 }) * 1000;
        Some(IntervalMonthDayNano::new(
            self.months.try_into().ok()?,
            self.days.try_into().ok()?,
            nanos.try_into().ok()?,
        ))
    }

    fn add_months(&mut self, number: Number, each: i128) {
        let (mut months, left) = number.times(each);
        match each {
            1 => self.add_days_left(left * MONTH_DAYS),
            // A fraction of a year is rounded to months; it has no days.
            _ => months += (2 * left) / WHOLE,
        }
        self.months += months;
        self.has_any = true;
    }

    /// PostgreSQL does not support quarters. DuckDB does, and turns a fraction into days.
    fn add_quarters(&mut self, number: Number) {
        let (months, left) = number.times(3);
        self.months += months;
        self.add_days_left(left * MONTH_DAYS);
        self.has_any = true;
    }

    fn add_days(&mut self, number: Number, each: i128) {
        let (days, left) = number.times(each);
        self.days += days;
        self.nanos += left * DAY / WHOLE;
        self.has_any = true;
    }

    /// Adds days in units of 1/[`WHOLE`].
    fn add_days_left(&mut self, left: i128) {
        self.days += left / WHOLE;
        self.nanos += left % WHOLE * DAY / WHOLE;
    }

    fn add_time(&mut self, number: Number, each: i128) {
        self.nanos += number.times(each).0;
        self.has_any = true;
    }

    fn add(&mut self, number: Number, unit: &str) -> Option<()> {
        match unit.to_ascii_lowercase().as_str() {
            "millennium" | "millennia" | "mil" | "mils" => self.add_months(number, 12_000),
            "century" | "centuries" | "cent" | "c" => self.add_months(number, 1200),
            "decade" | "decades" | "dec" | "decs" => self.add_months(number, 120),
            "year" | "years" | "yr" | "yrs" | "y" => self.add_months(number, 12),
            "quarter" | "quarters" | "qtr" | "qtrs" => self.add_quarters(number),
            "month" | "months" | "mon" | "mons" => self.add_months(number, 1),
            "week" | "weeks" | "w" => self.add_days(number, 7),
            "day" | "days" | "d" => self.add_days(number, 1),
            "hour" | "hours" | "hr" | "hrs" | "h" => self.add_time(number, HOUR),
            "minute" | "minutes" | "min" | "mins" | "m" => self.add_time(number, MINUTE),
            "second" | "seconds" | "sec" | "secs" | "s" => self.add_time(number, SECOND),
            "millisecond" | "milliseconds" | "msec" | "msecs" | "ms" => self.add_time(number, SECOND / 1000),
            "microsecond" | "microseconds" | "usec" | "usecs" | "us" => self.add_time(number, 1000),
            "nanosecond" | "nanoseconds" | "nsec" | "nsecs" | "ns" => self.add_time(number, 1),
            _ => return None,
        }
        Some(())
    }

    /// Parses `1 day -2 hours 03:04:05 ago`.
    fn words(&mut self, text: &str) -> Option<()> {
        let mut words: Vec<&str> = text.split_ascii_whitespace().flat_map(number_and_unit).collect();
        if words.first() == Some(&"@") {
            words.remove(0);
        }
        let is_ago = words.last().is_some_and(|last| last.eq_ignore_ascii_case("ago"));
        if is_ago {
            words.pop();
        }
        let mut words = words.into_iter().peekable();
        while let Some(word) = words.next() {
            if word.contains(':') {
                self.time(word)?;
                continue;
            }
            if let Some((years, months)) = years_and_months(word) {
                self.add_months(years, 12);
                self.add_months(months, 1);
                continue;
            }
            let number = Number::parse(word)?;
            match words.peek() {
                Some(next) if next.contains(':') => self.add_days(number, 1),
                Some(next) if next.starts_with(|c: char| c.is_ascii_alphabetic()) => {
                    let unit = words.next()?;
                    self.add(number, unit)?;
                }
                Some(_) => return None,
                None => self.add_time(number, SECOND),
            }
        }
        if is_ago {
            (self.months, self.days, self.nanos) = (-self.months, -self.days, -self.nanos);
        }
        Some(())
    }

    /// Parses `[-]hh:mm[:ss.fff]`.
    fn time(&mut self, word: &str) -> Option<()> {
        let (is_negative, digits) = match word.as_bytes().first()? {
            b'-' => (true, &word[1..]),
            b'+' => (false, &word[1..]),
            _ => (false, word),
        };
        let mut parts = digits.split(':');
        let (hours, minutes) = (Number::parse(parts.next()?)?, Number::parse(parts.next()?)?);
        let seconds = parts.next().map_or(Some(Number { is_negative: false, whole: 0, fraction: 0 }), Number::parse)?;
        let is_signed = [hours, minutes, seconds].iter().any(|number| number.is_negative);
        let has_fraction = hours.fraction != 0 || minutes.fraction != 0;
        let is_over = minutes.whole > 59 || seconds.whole > 59;
        if parts.next().is_some() || is_signed || has_fraction || is_over {
            return None;
        }
        for (number, each) in [(hours, HOUR), (minutes, MINUTE), (seconds, SECOND)] {
            self.add_time(Number { is_negative, ..number }, each);
        }
        Some(())
    }

    /// Parses `1Y2M3DT4H5M6.7S`, the part after the P.
    fn iso(&mut self, text: &str) -> Option<()> {
        let (mut rest, mut is_time) = (text, false);
        while !rest.is_empty() {
            if let Some(time) = rest.strip_prefix('T') {
                if is_time {
                    return None;
                }
                (rest, is_time) = (time, true);
                continue;
            }
            let at = rest.find(|c: char| c.is_ascii_alphabetic())?;
            let (number, unit) = (Number::parse(&rest[..at])?, rest.as_bytes()[at]);
            rest = &rest[at + 1..];
            match (unit, is_time) {
                (b'Y', false) => self.add_months(number, 12),
                (b'M', false) => self.add_months(number, 1),
                (b'W', false) => self.add_days(number, 7),
                (b'D', false) => self.add_days(number, 1),
                (b'H', true) => self.add_time(number, HOUR),
                (b'M', true) => self.add_time(number, MINUTE),
                (b'S', true) => self.add_time(number, SECOND),
                _ => return None,
            }
        }
        Some(())
    }
}

/// The units that a number may follow directly, as in PostgreSQL.
const BEFORE_DIGITS: [&str; 5] = ["d", "h", "m", "s", "y"];

/// Splits a word. `1h30m` is four words, and `m5s` three; `hours2` stays one, which is invalid.
fn number_and_unit(word: &str) -> Vec<&str> {
    if word.to_ascii_lowercase().ends_with("ago") {
        return vec![word];
    }
    let is_mixed =
        word.bytes().any(|byte| byte.is_ascii_digit()) && word.bytes().any(|byte| byte.is_ascii_alphabetic());
    if !is_mixed {
        return vec![word];
    }
    let mut words = Vec::new();
    let (mut start, mut was_letter) = (0, word.starts_with(|c: char| c.is_ascii_alphabetic()));
    for (at, letter) in word.char_indices() {
        let is_letter = letter.is_ascii_alphabetic();
        if at > start && is_letter != was_letter {
            words.push(&word[start..at]);
            start = at;
        }
        was_letter = is_letter;
    }
    words.push(&word[start..]);
    let is_apart = |pair: &[&str]| {
        let is_before_digits = pair[1].starts_with(|c: char| c.is_ascii_digit());
        !is_before_digits || BEFORE_DIGITS.iter().any(|unit| unit.eq_ignore_ascii_case(pair[0]))
    };
    if words.windows(2).all(is_apart) { words } else { vec![word] }
}

/// Parses `1-2` or `-1-2`.
fn years_and_months(word: &str) -> Option<(Number, Number)> {
    let (is_negative, digits) = match word.as_bytes().first()? {
        b'-' => (true, &word[1..]),
        b'+' => (false, &word[1..]),
        _ => (false, word),
    };
    let (years, months) = digits.split_once('-')?;
    let whole = |text: &str| {
        let number = Number::parse(text).filter(|number| !number.is_negative && number.fraction == 0)?;
        Some(Number { is_negative, ..number })
    };
    Some((whole(years)?, whole(months).filter(|months| months.whole < 12)?))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::pg_types::text;

    /// Expected strings are PostgreSQL 15's.
    #[test]
    fn intervals_are_read_as_postgresql_does() {
        for (written, shown) in [
            ("1 day 03:00:00", "1 day 03:00:00"),
            ("1", "00:00:01"),
            ("1.5", "00:00:01.5"),
            ("10 days 1", "10 days 00:00:01"),
            ("3 4:05", "3 days 04:05:00"),
            ("1 year 2 mons -3 days +04:05:06.789", "1 year 2 mons -3 days +04:05:06.789"),
            ("P1DT2H", "1 day 02:00:00"),
            ("P1Y2M3W", "1 year 2 mons 21 days"),
            ("1-2", "1 year 2 mons"),
            ("-1-2", "-1 years -2 mons"),
            ("1 day ago", "-1 days"),
            ("1h30m", "01:30:00"),
            ("1h30m4", "01:30:04"),
            ("1.7 m5s", "00:01:47"),
            ("-1.5 days", "-1 days -12:00:00"),
            ("1.5 months", "1 mon 15 days"),
            ("1.5 years", "1 year 6 mons"),
            ("1.05 years", "1 year 1 mon"),
            ("@ 3 weeks", "21 days"),
            ("1.5 weeks", "10 days 12:00:00"),
            ("-00:00:01.5", "-00:00:01.5"),
            ("1 century", "100 years"),
            ("2 hrs 5 mins 1.234567 secs", "02:05:01.234567"),
            ("100:00", "100:00:00"),
            ("1 hour -15 min", "00:45:00"),
            ("0.0000000005 day", "00:00:00.000043"),
            ("1.23456789 s", "00:00:01.234568"),
            ("0.0000005 s", "00:00:00"),
            ("1.9999999 us", "00:00:00.000002"),
            ("0.3 months", "9 days"),
        ] {
            let mut out = String::new();
            text::interval(parse(written).unwrap_or_else(|| panic!("{written}")), &mut out);
            assert_eq!(out, shown, "{written}");
        }
        for wrong in [
            "",
            "2 hours2",
            "1 week2 days",
            "1.7 ms4",
            "5days3h",
            "day",
            "1 dya",
            "1 2 3",
            "P",
            "PT1D",
            "1:70",
            "1:2:3:4",
            "a day",
            "99999999999 years",
            // PostgreSQL's range includes it; nanoseconds end at 292 years.
            "999999999999 s",
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
