//! Dates and timestamps in strings, detected by their form: `2024-01-02`, `2024-01-02 10:11:12.5`,
//! `2024-01-02T10:11:12+02:00`.
//!
//! A month or day may have one digit in a date. A string in another form is text, and so is one of
//! the year 0, which no other parser of dates accepts.

use arrow::datatypes::TimeUnit;

use crate::files::csv::days;

const DAY_SECONDS: i64 = 86_400;
/// The number of days before and after 1970 that 64-bit nanoseconds can represent with every offset
/// from UTC.
const NANOSECOND_DAYS: i32 = 106_750;

/// A date or timestamp.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Moment {
    Date {
        /// Days since 1970.
        days: i32,
    },
    /// A timestamp, with the offset from UTC in seconds if it is written.
    Timestamp {
        days: i32,
        /// Seconds of the day.
        seconds: i32,
        nanos: u32,
        fraction_digits: usize,
        offset_seconds: Option<i32>,
    },
}

impl Moment {
    /// Parses a string; `None` if it is other text.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        // Most strings are rejected here.
        if !(8..=41).contains(&bytes.len()) || bytes[4] != b'-' || !bytes[0].is_ascii_digit() {
            return None;
        }
        match bytes.get(10) {
            Some(b' ' | b'T') => timestamp(bytes),
            _ => Some(Self::Date { days: date(bytes)? }),
        }
    }

    /// Returns the days since 1970 of a date.
    pub fn days(&self) -> Option<i32> {
        match self {
            Self::Date { days } => Some(*days),
            Self::Timestamp { .. } => None,
        }
    }

    /// Returns units since 1970, in UTC if there is an offset. `None` if they overflow, or digits
    /// of the fraction would be lost.
    pub fn units(&self, unit: TimeUnit) -> Option<i64> {
        let (per_second, most_digits) = match unit {
            TimeUnit::Second => (1, 0),
            TimeUnit::Millisecond => (1_000, 3),
            TimeUnit::Microsecond => (1_000_000, 6),
            TimeUnit::Nanosecond => (1_000_000_000, 9),
        };
        let (days, seconds, nanos, digits) = match *self {
            Self::Date { days } => (days, 0, 0, 0),
            Self::Timestamp { days, seconds, nanos, fraction_digits, offset_seconds } => {
                (days, seconds - offset_seconds.unwrap_or(0), nanos, fraction_digits)
            }
        };
        let seconds = i64::from(days) * DAY_SECONDS + i64::from(seconds);
        let fraction = i64::from(nanos) / (1_000_000_000 / per_second);
        seconds.checked_mul(per_second)?.checked_add(fraction).filter(|_| digits <= most_digits)
    }

    /// Returns whether nanoseconds since 1970 can represent it.
    pub fn fits_nanoseconds(&self) -> bool {
        let (Self::Date { days } | Self::Timestamp { days, .. }) = *self;
        days.abs() <= NANOSECOND_DAYS || self.units(TimeUnit::Nanosecond).is_some()
    }
}

/// Parses a number of `least` to `most` digits. Returns it with the rest of the text.
#[inline]
fn number(text: &[u8], least: usize, most: usize) -> Option<(u32, &[u8])> {
    let (mut value, mut count) = (0, 0);
    while let Some(digit @ b'0'..=b'9') = text.get(count).filter(|_| count < most) {
        value = value * 10 + u32::from(digit - b'0');
        count += 1;
    }
    if count < least { None } else { Some((value, text.get(count..)?)) }
}

/// Parses two digits at a place.
#[inline]
fn two(text: &[u8], at: usize) -> Option<u32> {
    match (text.get(at)?, text.get(at + 1)?) {
        (tens @ b'0'..=b'9', ones @ b'0'..=b'9') => Some(u32::from(tens - b'0') * 10 + u32::from(ones - b'0')),
        _ => None,
    }
}

/// Returns days since 1970.
#[inline]
fn date(text: &[u8]) -> Option<i32> {
    let year = (two(text, 0)? * 100 + two(text, 2)?) as i32;
    let (month, day) = match text {
        [_, _, _, _, b'-', _, _, b'-', _, _] => (two(text, 5)?, two(text, 8)?),
        _ => short(text)?,
    };
    days(year, month, day)
}

/// Returns the month and the day of a date in which one of them has one digit.
#[cold]
fn short(text: &[u8]) -> Option<(u32, u32)> {
    let (month, rest) = number(text.get(4..)?.strip_prefix(b"-")?, 1, 2)?;
    let (day, rest) = number(rest.strip_prefix(b"-")?, 1, 2)?;
    rest.is_empty().then_some((month, day))
}

#[inline]
fn timestamp(text: &[u8]) -> Option<Moment> {
    let (day, time) = (text.get(..10)?, text.get(11..)?);
    let days = date(day)?;
    let (hour, minute, second) = (two(time, 0)?, two(time, 3)?, two(time, 6)?);
    let is_time = time[2] == b':' && time[5] == b':' && hour < 24 && minute < 60 && second < 60;
    if !is_time {
        return None;
    }
    let mut rest = time.get(8..)?;
    let (mut nanos, mut fraction_digits) = (0, 0);
    if let Some(fraction) = rest.strip_prefix(b".") {
        let (value, behind) = number(fraction, 1, 9)?;
        fraction_digits = fraction.len() - behind.len();
        (nanos, rest) = (value * 10_u32.pow(9 - fraction_digits as u32), behind);
    }
    let seconds = (hour * 3600 + minute * 60 + second) as i32;
    Some(Moment::Timestamp { days, seconds, nanos, fraction_digits, offset_seconds: offset(rest)? })
}

/// Parses the empty string, `Z`, `+02`, `+0230` or `-02:30`, in seconds.
fn offset(text: &[u8]) -> Option<Option<i32>> {
    let (sign, rest) = match text {
        [] => return Some(None),
        [b'Z' | b'z'] => return Some(Some(0)),
        [b'+', rest @ ..] => (1, rest),
        [b'-', rest @ ..] => (-1, rest),
        _ => return None,
    };
    let (hours, rest) = number(rest, 2, 2)?;
    let (minutes, rest) = match rest {
        [] => (0, rest),
        rest => number(rest.strip_prefix(b":").unwrap_or(rest), 2, 2)?,
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
            ("2000-02-29", 11016),
            ("2000-03-01", 11017),
            ("1900-03-01", -25508),
            ("9999-12-31", 2_932_896),
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
        for (text, fits) in [
            ("1677-09-20", false),
            ("1677-09-21 00:12:44", true),
            ("1970-01-01", true),
            ("2262-04-11 23:47:16", true),
            ("2262-04-11 23:47:17", false),
            ("2262-04-11T23:47:17+01:00", true),
        ] {
            assert_eq!(Moment::parse(text).unwrap().fits_nanoseconds(), fits, "{text}");
        }
        for text in [
            "",
            "2024",
            "2024-02-30",
            "2024-13-01",
            "10000-01-01",
            "-001-01-01",
            "0000-01-01",
            "0000-12-31 10:11:12",
            "1900-02-29",
            "2024-00-01",
            "2024-01-00",
            "2024-01-011",
            "2024-011-1",
            "2024-1-2-",
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

    #[test]
    fn every_day_is_the_one_behind_the_day_before() {
        let mut expected = -719_162;
        for year in 1..=9999 {
            for month in 1..=12 {
                for day in 1..=31 {
                    match days(year, month, day) {
                        Some(found) => {
                            assert_eq!(found, expected, "{year}-{month}-{day}");
                            expected += 1;
                        }
                        None => assert!(day > 28, "{year}-{month}-{day}"),
                    }
                }
            }
        }
        assert_eq!(expected, 2_932_897);
    }
}
