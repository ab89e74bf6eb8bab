//! Dates and timestamps in strings, as they are found: `2024-01-02`, `2024-01-02 10:11:12.5`, `2024-01-02T10:11:12+02:00`.
//!
//! A month or day may have one digit in a date. A string in another form is text.

use arrow::datatypes::TimeUnit;
use chrono::{NaiveDate, NaiveDateTime, NaiveTime};

/// What a string is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Moment {
    Date(NaiveDate),
    /// With the offset from UTC in seconds if it is written.
    Timestamp {
        time: NaiveDateTime,
        fraction_digits: usize,
        offset_seconds: Option<i32>,
    },
}

impl Moment {
    /// The moment that a string is; `None` for text.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        // Most text ends here.
        if !(8..=41).contains(&bytes.len()) || !bytes[..4].iter().all(u8::is_ascii_digit) || bytes[4] != b'-' {
            return None;
        }
        match bytes.get(10) {
            Some(b' ' | b'T') => timestamp(text),
            _ => date(text).map(Self::Date),
        }
    }

    /// Days since 1970 of a date.
    pub fn days(&self) -> Option<i32> {
        match self {
            Self::Date(date) => Some(days(*date)),
            Self::Timestamp { .. } => None,
        }
    }

    /// Units since 1970, in UTC if there is an offset. `None` if they do not fit, or digits of the fraction would be lost.
    pub fn units(&self, unit: TimeUnit) -> Option<i64> {
        let (time, digits, offset) = match self {
            Self::Date(date) => (date.and_time(NaiveTime::MIN), 0, 0),
            Self::Timestamp { time, fraction_digits, offset_seconds } => {
                (*time, *fraction_digits, offset_seconds.unwrap_or(0))
            }
        };
        let time = time.and_utc();
        let (seconds, nanos) = (time.timestamp() - i64::from(offset), i64::from(time.timestamp_subsec_nanos()));
        let (per_second, most_digits) = match unit {
            TimeUnit::Second => (1, 0),
            TimeUnit::Millisecond => (1_000, 3),
            TimeUnit::Microsecond => (1_000_000, 6),
            TimeUnit::Nanosecond => (1_000_000_000, 9),
        };
        let fraction = nanos / (1_000_000_000 / per_second);
        seconds.checked_mul(per_second)?.checked_add(fraction).filter(|_| digits <= most_digits)
    }
}

fn days(date: NaiveDate) -> i32 {
    date.signed_duration_since(NaiveDate::default()).num_days() as i32
}

/// A number of some digits, and the text behind it.
fn number(text: &str, least: usize, most: usize) -> Option<(u32, &str)> {
    let digits = text.bytes().take(most).take_while(u8::is_ascii_digit).count();
    if digits < least {
        return None;
    }
    Some((text[..digits].parse().ok()?, &text[digits..]))
}

fn date(text: &str) -> Option<NaiveDate> {
    let (year, rest) = number(text, 4, 4)?;
    let (month, rest) = number(rest.strip_prefix('-')?, 1, 2)?;
    let (day, rest) = number(rest.strip_prefix('-')?, 1, 2)?;
    NaiveDate::from_ymd_opt(year.try_into().ok()?, month, day).filter(|_| rest.is_empty())
}

fn timestamp(text: &str) -> Option<Moment> {
    let (day, rest) = (date(text.get(..10)?)?, text.get(11..)?);
    let (hour, rest) = number(rest, 2, 2)?;
    let (minute, rest) = number(rest.strip_prefix(':')?, 2, 2)?;
    let (second, mut rest) = number(rest.strip_prefix(':')?, 2, 2)?;
    let (mut nanos, mut fraction_digits) = (0, 0);
    if let Some(fraction) = rest.strip_prefix('.') {
        let (value, behind) = number(fraction, 1, 9)?;
        fraction_digits = fraction.len() - behind.len();
        (nanos, rest) = (value * 10_u32.pow(9 - fraction_digits as u32), behind);
    }
    let time = day.and_time(NaiveTime::from_hms_nano_opt(hour, minute, second, nanos)?);
    Some(Moment::Timestamp { time, fraction_digits, offset_seconds: offset(rest)? })
}

/// Nothing, `Z`, `+02`, `+0230` or `-02:30`, in seconds.
fn offset(text: &str) -> Option<Option<i32>> {
    let (sign, rest) = match text {
        "" => return Some(None),
        "Z" | "z" => return Some(Some(0)),
        _ => (if text.starts_with('-') { -1 } else { 1 }, text.strip_prefix(['+', '-'])?),
    };
    let (hours, rest) = number(rest, 2, 2)?;
    let (minutes, rest) = match rest {
        "" => (0, ""),
        rest => number(rest.strip_prefix(':').unwrap_or(rest), 2, 2)?,
    };
    let is_offset = rest.is_empty() && hours < 16 && minutes < 60;
    is_offset.then_some(Some(sign * (hours * 3600 + minutes * 60) as i32))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_moments_or_text() {
        for (text, days) in [
            ("1970-01-01", 0),
            ("2024-02-29", 19782),
            ("2024-1-2", 19724),
            ("0001-01-01", -719_162),
            ("1969-12-31", -1),
        ] {
            assert_eq!(Moment::parse(text).unwrap().days(), Some(days), "{text}");
        }
        for (text, micros) in [
            ("1970-01-01 00:00:01", 1_000_000),
            ("1970-01-01T00:00:01.5", 1_500_000),
            ("1969-12-31 23:59:59.999999", -1),
            ("1970-01-01T01:00:00+01:00", 0),
            ("1970-01-01 00:00:00-0130", 5_400_000_000),
            ("1970-01-01 00:00:00Z", 0),
        ] {
            assert_eq!(Moment::parse(text).unwrap().units(TimeUnit::Microsecond), Some(micros), "{text}");
        }
        let fine = Moment::parse("1970-01-01 00:00:00.000000001").unwrap();
        assert_eq!((fine.units(TimeUnit::Microsecond), fine.units(TimeUnit::Nanosecond)), (None, Some(1)));
        for text in [
            "",
            "2024",
            "2024-02-30",
            "2024-13-01",
            "10000-01-01",
            "-001-01-01",
            "2024-01-02 ",
            "20240102",
            "2024-01-02 10",
            "2024-01-02 24:00:00",
            "2024-01-02 10:11:60",
            "2024-01-02 10:11:12 ",
            "2024-01-02 10:11:12.",
            "2024-01-02 10:11:12+2",
            "2024-01-02 10:11:12.1234567890",
            "2024-01-02 10:11:12 UTC",
            "2024-1-2 10:11:12",
            "2024-01-0é",
            "2024/01/02",
        ] {
            assert_eq!(Moment::parse(text), None, "{text}");
        }
    }
}
