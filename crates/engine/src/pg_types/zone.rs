//! Time zones: the local time of a moment, and the moment of a local time.
//!
//! A local time that occurs twice, when the clock is set back, is the later moment. A time that is
//! skipped, when the clock is set forward, uses the offset before. PostgreSQL does the same.
//!
//! The zone tables end in this century. Later years have the offsets of an earlier year with the
//! same calendar.

use std::collections::HashMap;
use std::sync::LazyLock;

use chrono::{DateTime, LocalResult, NaiveDateTime, Offset, TimeZone};
use chrono_tz::{TZ_VARIANTS, Tz};
use datafusion::config::ConfigOptions;
use onehop_pipeline::bind::civil;

use super::calendar::days_of_civil;

const DAY_SECONDS: i64 = 86_400;
const MICROS: i64 = 1_000_000;
/// The last year for which the zone tables are used. The 28 years up to it contain all fourteen
/// calendars of a year.
const LAST_YEAR: i64 = 2088;

/// A time zone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Zone {
    /// UTC.
    #[default]
    Utc,
    /// A fixed number of seconds east of UTC.
    Fixed(i32),
    /// A named zone, whose offset changes.
    Named(Tz),
}

/// The zones by their names in lower case.
static NAMES: LazyLock<HashMap<String, Tz>> =
    LazyLock::new(|| TZ_VARIANTS.iter().map(|zone| (zone.name().to_ascii_lowercase(), *zone)).collect());

/// The abbreviations that PostgreSQL accepts by default, and their seconds east of UTC. Other
/// abbreviations are names of zones.
const ABBREVIATIONS: [(&str, i32); 34] = [
    ("acst", 34_200),
    ("aest", 36_000),
    ("akdt", -28_800),
    ("akst", -32_400),
    ("art", -10_800),
    ("ast", -14_400),
    ("adt", -10_800),
    ("bst", 3_600),
    ("brt", -10_800),
    ("cdt", -18_000),
    ("cest", 7_200),
    ("cet", 3_600),
    ("cst", -21_600),
    ("edt", -14_400),
    ("eest", 10_800),
    ("eet", 7_200),
    ("est", -18_000),
    ("hst", -36_000),
    ("ist", 7_200),
    ("jst", 32_400),
    ("kst", 32_400),
    ("mdt", -21_600),
    ("mest", 7_200),
    ("met", 3_600),
    ("mez", 3_600),
    ("msk", 10_800),
    ("mst", -25_200),
    ("ndt", -9_000),
    ("nzdt", 46_800),
    ("nzst", 43_200),
    ("pdt", -25_200),
    ("pst", -28_800),
    ("west", 3_600),
    ("wet", 0),
];

impl Zone {
    /// Parses a name, `Europe/Berlin`, or a POSIX offset, in which `-02:00` is east.
    pub fn parse(name: &str) -> Option<Self> {
        let name = name.trim();
        Self::of_posix(name).or_else(|| Self::named(name))
    }

    /// Parses Arrow's notation: a name, or an offset in which a minus is west.
    pub fn of_arrow(name: &str) -> Option<Self> {
        match offset_seconds(name.as_bytes()) {
            Some(seconds) => Some(Self::fixed(seconds)),
            None => Self::named(name),
        }
    }

    /// Returns the zone of a session from its options.
    pub(crate) fn of_session(options: &ConfigOptions) -> Self {
        options.execution.time_zone.as_deref().and_then(Self::of_arrow).unwrap_or_default()
    }

    /// Returns Arrow's name for the zone: `Some(None)` for UTC, and `None` if Arrow has no name for
    /// it.
    pub(crate) fn in_arrow(self) -> Option<Option<String>> {
        match self {
            Self::Utc => Some(None),
            Self::Named(zone) => Some(Some(zone.name().to_string())),
            Self::Fixed(seconds) if seconds % 60 == 0 => {
                let (sign, minutes) = (if seconds < 0 { '-' } else { '+' }, seconds.unsigned_abs() / 60);
                Some(Some(format!("{sign}{:02}:{:02}", minutes / 60, minutes % 60)))
            }
            Self::Fixed(_) => None,
        }
    }

    /// Returns a zone by its name in any case.
    pub(crate) fn named(name: &str) -> Option<Self> {
        let name = name.to_ascii_lowercase();
        if ["utc", "gmt", "z", "zulu", "etc/utc", "ut", "uct"].contains(&name.as_str()) {
            return Some(Self::Utc);
        }
        NAMES.get(&name).copied().map(Self::Named)
    }

    /// Returns the zone that follows a time: an abbreviation, or a name.
    pub(crate) fn behind_time(name: &str) -> Option<Self> {
        let is_it = |(abbreviation, _): &&(&str, i32)| abbreviation.eq_ignore_ascii_case(name);
        match ABBREVIATIONS.iter().find(is_it) {
            Some((_, seconds)) => Some(Self::fixed(*seconds)),
            None => Self::parse(name),
        }
    }

    pub(crate) fn fixed(seconds: i32) -> Self {
        if seconds == 0 { Self::Utc } else { Self::Fixed(seconds) }
    }

    /// Parses `UTC+2` or `-05:30`. The text before the sign is only a name, and a plus is west.
    fn of_posix(name: &str) -> Option<Self> {
        let at = name.find(['+', '-'])?;
        let is_name = name[..at].bytes().all(|byte| byte.is_ascii_alphabetic());
        if !is_name || (at > 0 && at < 3) {
            return None;
        }
        offset_seconds(&name.as_bytes()[at..]).map(|seconds| Self::fixed(-seconds))
    }

    /// Returns the seconds east of UTC at a moment, in microseconds.
    pub fn offset_seconds(&self, micros: i64) -> i64 {
        match self {
            Self::Utc => 0,
            Self::Fixed(seconds) => i64::from(*seconds),
            Self::Named(zone) => zone.offset_from_utc_datetime(&calendar(micros)).fix().local_minus_utc().into(),
        }
    }

    /// Returns the seconds east of UTC at a local time, in microseconds.
    pub fn offset_seconds_at_local(&self, micros: i64) -> i64 {
        let Self::Named(zone) = self else { return self.offset_seconds(micros) };
        let offset = |offset: chrono_tz::TzOffset| i64::from(offset.fix().local_minus_utc());
        match zone.offset_from_local_datetime(&calendar(micros)) {
            LocalResult::Single(only) => offset(only),
            LocalResult::Ambiguous(_, later) => offset(later),
            LocalResult::None => self.offset_seconds(micros.saturating_sub(DAY_SECONDS * MICROS)),
        }
    }

    /// Returns the local time at a moment, both in microseconds, or `None` if it is out of range.
    pub fn local(&self, micros: i64) -> Option<i64> {
        micros.checked_add(self.offset_seconds(micros) * MICROS)
    }

    /// Returns the moment of a local time, both in microseconds, or `None` if it is out of range.
    pub fn moment(&self, local: i64) -> Option<i64> {
        local.checked_sub(self.offset_seconds_at_local(local) * MICROS)
    }
}

/// Parses `+02`, `-05:30`, `+0230`, `+2`, `+02:30:15`: seconds east, less than sixteen hours.
pub(crate) fn offset_seconds(text: &[u8]) -> Option<i32> {
    let (is_west, digits) = match text.split_first()? {
        (b'+', digits) => (false, digits),
        (b'-', digits) => (true, digits),
        _ => return None,
    };
    let number = |digits: &[u8]| -> Option<i32> {
        let is_digits = matches!(digits.len(), 1 | 2) && digits.iter().all(u8::is_ascii_digit);
        is_digits.then(|| digits.iter().fold(0, |number, digit| number * 10 + i32::from(digit - b'0')))
    };
    let (hours, minutes, seconds) = match digits.contains(&b':') {
        true => {
            let mut parts = digits.split(|byte| *byte == b':');
            let hours = number(parts.next()?)?;
            let minutes = number(parts.next()?)?;
            let seconds = parts.next().map_or(Some(0), number)?;
            if parts.next().is_some() {
                return None;
            }
            (hours, minutes, seconds)
        }
        false => match digits.len() {
            1 | 2 => (number(digits)?, 0, 0),
            3 => (number(&digits[..1])?, number(&digits[1..])?, 0),
            4 => (number(&digits[..2])?, number(&digits[2..])?, 0),
            6 => (number(&digits[..2])?, number(&digits[2..4])?, number(&digits[4..])?),
            _ => return None,
        },
    };
    let size = hours * 3600 + minutes * 60 + seconds;
    let is_within = hours < 16 && minutes < 60 && seconds < 60;
    is_within.then_some(if is_west { -size } else { size })
}

/// Returns a time within the range of the zone tables.
fn calendar(micros: i64) -> NaiveDateTime {
    let seconds = micros.div_euclid(MICROS);
    let (day, second) = (seconds.div_euclid(DAY_SECONDS), seconds.rem_euclid(DAY_SECONDS));
    let (year, month, day_of_month) = civil(day);
    let day = match year {
        year if year > LAST_YEAR => days_of_civil(alike(year), month, day_of_month),
        // Before zones were introduced, there is one offset.
        year if year < 1 => days_of_civil(1, month, 1),
        _ => day,
    };
    DateTime::from_timestamp(day * DAY_SECONDS + second, 0).unwrap_or_default().naive_utc()
}

/// Returns a year of the tables whose days have the same days of the week.
fn alike(year: i64) -> i64 {
    let calendar = |year: i64| {
        let first = days_of_civil(year, 1, 1);
        (first.rem_euclid(7), days_of_civil(year + 1, 1, 1) - first)
    };
    let wanted = calendar(year);
    (LAST_YEAR - 27..=LAST_YEAR).find(|year| calendar(*year) == wanted).unwrap_or(LAST_YEAR)
}
