//! Parsing of dates, times and timestamps: `2024-02-29`, `2024/2/9 1:02`, `20240229T101112.5+02`,
//! but not `44-03-15 BC`.
//!
//! The year comes first and has at least three digits. Month and day follow, with the same
//! separator. A time has minutes; `24:00:00` and the second 60 carry over. AM or PM, a time zone,
//! and AD or BC may follow in any order, once each. A date alone means midnight.

use super::Misfit;
use super::Misfit::{Form, Range};
use super::number::trimmed;
use crate::pg_types::calendar::{days_of_civil, is_infinite_date, is_infinite_timestamp};
use crate::pg_types::zone::{Zone, offset_seconds};

pub(super) const MICROS: i64 = 1_000_000;
pub(super) const DAY_MICROS: i64 = DAY_SECONDS * MICROS;
const DAY_SECONDS: i64 = 86_400;
const HOUR: i64 = 3600;
/// 2000-01-01, PostgreSQL's epoch, which determines its rounding.
const EPOCH_2000_MICROS: i64 = 10_957 * DAY_MICROS;

/// A parsed timestamp.
struct Moment {
    /// Days since 1970-01-01.
    days: i64,
    clock: Clock,
    zone: Option<Zone>,
}

/// A time of day.
#[derive(Clone, Copy, Default)]
struct Clock {
    seconds: i64,
    /// The fraction in microseconds, rounded as in PostgreSQL. It may be a whole second.
    micros: i64,
    /// The fraction in nanoseconds.
    nanos: i64,
}

/// Parses a date as days since 1970-01-01. A time and a zone after the date are parsed and ignored.
pub(crate) fn date(text: &[u8]) -> Result<i32, Misfit> {
    let days = moment(trimmed(text))?.days;
    i32::try_from(days).ok().filter(|days| !is_infinite_date(*days)).ok_or(Range)
}

/// Parses microseconds of the day. A date before the time and a zone after it are parsed and
/// ignored.
pub(super) fn time(text: &[u8]) -> Result<i64, Misfit> {
    let text = trimmed(text);
    let time = match (text.first(), calendar_date(text)) {
        (Some(b'T' | b't'), _) => &text[1..],
        (_, Ok((date, rest))) => {
            is_date(date)?;
            time_behind_date(rest).ok_or(Form)?
        }
        (_, Err(_)) => text,
    };
    let (clock, rest) = clock(time)?;
    let tail = Tail::parse(rest)?;
    let clock = tail.on(clock)?;
    let micros = clock.seconds * MICROS + clock.micros;
    if micros > DAY_MICROS { Err(Range) } else { Ok(micros) }
}

/// Parses local microseconds since 1970. The zone is ignored.
pub(super) fn timestamp(text: &[u8]) -> Result<i64, Misfit> {
    let found = moment(trimmed(text))?;
    in_micros(&found)
}

/// Parses microseconds since 1970 in UTC, of a time in its own zone, or in `zone`.
pub(super) fn timestamp_in_zone(text: &[u8], zone: Zone) -> Result<i64, Misfit> {
    let found = moment(trimmed(text))?;
    found.zone.unwrap_or(zone).moment(in_micros(&found)?).ok_or(Range)
}

/// Like [`timestamp`], in nanoseconds.
pub(super) fn timestamp_nanos(text: &[u8]) -> Result<i64, Misfit> {
    let found = moment(trimmed(text))?;
    in_nanos(&found, found.days * DAY_SECONDS + found.clock.seconds)
}

/// Like [`timestamp_in_zone`], in nanoseconds.
pub(super) fn timestamp_nanos_in_zone(text: &[u8], zone: Zone) -> Result<i64, Misfit> {
    let found = moment(trimmed(text))?;
    let local = found.days * DAY_SECONDS + found.clock.seconds;
    let moment = found.zone.unwrap_or(zone).moment(local.checked_mul(MICROS).ok_or(Range)?).ok_or(Range)?;
    in_nanos(&found, moment.div_euclid(MICROS))
}

fn in_micros(found: &Moment) -> Result<i64, Misfit> {
    let of_day = found.clock.seconds * MICROS + found.clock.micros;
    let micros = found.days.checked_mul(DAY_MICROS).and_then(|days| days.checked_add(of_day));
    micros.filter(|micros| !is_infinite_timestamp(*micros)).ok_or(Range)
}

fn in_nanos(found: &Moment, seconds: i64) -> Result<i64, Misfit> {
    let nanos = seconds.checked_mul(1_000_000_000);
    nanos.and_then(|nanos| nanos.checked_add(found.clock.nanos)).ok_or(Range)
}

/// Converts microseconds to units of `each` microseconds, rounded as in PostgreSQL: half away from
/// 2000.
pub(crate) fn rounded(micros: i64, each: i64) -> i64 {
    let since = i128::from(micros) - i128::from(EPOCH_2000_MICROS);
    let each = i128::from(each);
    let units = (since.abs() + each / 2) / each * since.signum();
    ((units * each + i128::from(EPOCH_2000_MICROS)) / each) as i64
}

fn moment(text: &[u8]) -> Result<Moment, Misfit> {
    if text.eq_ignore_ascii_case(b"epoch") {
        return Ok(Moment { days: 0, clock: Clock::default(), zone: Some(Zone::Utc) });
    }
    let ((year, month, day), rest) = calendar_date(text)?;
    let (clock, rest) = match time_behind_date(rest) {
        Some(time) => self::clock(time)?,
        // `2024-02-03-0530`: PostgreSQL and DuckDB take an offset for part of the date, and refuse
        // it.
        None if rest.starts_with(b"-") && !has_other_marks(&text[..text.len() - rest.len()]) => return Err(Form),
        None => (Clock::default(), rest),
    };
    let tail = Tail::parse(rest)?;
    let clock = tail.on(clock)?;
    let year = if tail.is_before_era { 1 - year } else { year };
    is_date((year, month, day))?;
    Ok(Moment { days: days_of_civil(year, month, day), clock, zone: tail.zone })
}

/// Returns whether a date has separators with which no offset begins.
fn has_other_marks(date: &[u8]) -> bool {
    date.iter().any(|byte| matches!(byte, b'/' | b'.'))
}

/// Checks that the calendar has a date.
fn is_date((year, month, day): Date) -> Result<(), Misfit> {
    let is_there = (1..=12).contains(&month) && day > 0 && day <= days_in(year, month);
    if is_there { Ok(()) } else { Err(Range) }
}

fn days_in(year: i64, month: u32) -> u32 {
    let next = if month == 12 { (year + 1, 1) } else { (year, month + 1) };
    (days_of_civil(next.0, next.1, 1) - days_of_civil(year, month, 1)) as u32
}

type Date = (i64, u32, u32);

/// Parses year, month and day. Returns them with the rest of the text.
fn calendar_date(text: &[u8]) -> Result<(Date, &[u8]), Misfit> {
    let (year, digits, rest) = number(text, 7 + 1)?;
    let date = match digits {
        8 => ((i64::from(year / 10_000), year / 100 % 100, year % 100), rest),
        3..=7 => {
            let (mark, rest) = rest.split_first().ok_or(Form)?;
            if !matches!(mark, b'-' | b'/' | b'.' | b'\\' | b' ') {
                return Err(Form);
            }
            let (month, _, rest) = number(rest, 2)?;
            let rest = rest.strip_prefix(&[*mark]).ok_or(Form)?;
            let (day, _, rest) = number(rest, 2)?;
            ((i64::from(year), month, day), rest)
        }
        _ => return Err(Form),
    };
    if date.0.0 == 0 { Err(Range) } else { Ok(date) }
}

/// Returns the time that follows a date.
fn time_behind_date(rest: &[u8]) -> Option<&[u8]> {
    let time = match rest.split_first()? {
        (b'T' | b't', time) => time,
        (b' ', _) => trimmed(rest),
        _ => return None,
    };
    time.first().filter(|byte| byte.is_ascii_digit()).map(|_| time)
}

/// Parses a time of day. Returns it with the rest of the text.
fn clock(text: &[u8]) -> Result<(Clock, &[u8]), Misfit> {
    let (first, digits, rest) = number(text, 6)?;
    let (hours, minutes, seconds, rest) = match (digits, rest.split_first()) {
        (1 | 2, Some((b':', rest))) => {
            let (minutes, _, rest) = number(rest, 2)?;
            match rest.split_first() {
                Some((b':', rest)) => {
                    let (seconds, _, rest) = number(rest, 2)?;
                    (first, minutes, Some(seconds), rest)
                }
                _ => (first, minutes, None, rest),
            }
        }
        (4, _) => (first / 100, first % 100, None, rest),
        (6, _) => (first / 10_000, first / 100 % 100, Some(first % 100), rest),
        _ => return Err(Form),
    };
    let (micros, nanos, rest) = match (seconds, rest.split_first()) {
        (Some(_), Some((b'.', digits))) => fraction(digits)?,
        _ => (0, 0, rest),
    };
    let seconds = seconds.unwrap_or(0);
    let all = i64::from(hours) * HOUR + i64::from(minutes) * 60 + i64::from(seconds);
    let is_over = hours > 24 || (hours == 24 && (all > 24 * HOUR || micros > 0));
    if is_over || minutes > 59 || seconds > 60 {
        return Err(Range);
    }
    Ok((Clock { seconds: all, micros, nanos }, rest))
}

/// Parses the digits after a point. Returns microseconds, nanoseconds, and the rest of the text.
fn fraction(text: &[u8]) -> Result<(i64, i64, &[u8]), Misfit> {
    let count = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (digits, rest) = text.split_at(count);
    let first = |count: usize| {
        let digits = digits.iter().copied().chain(std::iter::repeat(b'0')).take(count);
        digits.fold(0, |number: i64, digit| number * 10 + i64::from(digit - b'0'))
    };
    if count <= 6 {
        let micros = first(6);
        return Ok((micros, micros * 1000, rest));
    }
    // PostgreSQL parses a double, and rounds its microseconds half to even.
    let text = std::str::from_utf8(digits).map_err(|_| Form)?;
    let seconds: f64 = format!("0.{text}").parse().map_err(|_| Form)?;
    let nanos = first(9) + i64::from(digits.get(9).is_some_and(|next| *next >= b'5'));
    Ok(((seconds * 1e6).round_ties_even() as i64, nanos, rest))
}

/// Parses the number at the start. Returns it with its number of digits and the rest of the text.
fn number(text: &[u8], most: usize) -> Result<(u32, usize, &[u8]), Misfit> {
    let count = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if count == 0 || count > most {
        return Err(Form);
    }
    let number = text[..count].iter().fold(0, |number: u32, digit| number * 10 + u32::from(digit - b'0'));
    Ok((number, count, &text[count..]))
}

/// The text after a date or a time.
#[derive(Default)]
struct Tail {
    zone: Option<Zone>,
    is_before_era: bool,
    /// True for PM, false for AM.
    is_afternoon: Option<bool>,
}

impl Tail {
    fn parse(text: &[u8]) -> Result<Self, Misfit> {
        let mut tail = Self::default();
        let (mut rest, mut has_era) = (trimmed(text), false);
        while !rest.is_empty() {
            let end = rest.iter().position(|byte| *byte == b' ').unwrap_or(rest.len());
            let (mut word, mut behind) = rest.split_at(end);
            if let Some(end) = end_before_offset(word) {
                (word, behind) = rest.split_at(end);
            }
            let era = [&b"BC"[..], b"(BC)", b"AD"].into_iter().position(|era| word.eq_ignore_ascii_case(era));
            let noon = [&b"AM"[..], b"PM"].into_iter().position(|noon| word.eq_ignore_ascii_case(noon));
            match (era, noon) {
                (Some(era), _) if !has_era => (tail.is_before_era, has_era) = (era < 2, true),
                (_, Some(noon)) if tail.is_afternoon.is_none() => tail.is_afternoon = Some(noon == 1),
                (None, None) if tail.zone.is_none() => tail.zone = Some(zone(word)?),
                _ => return Err(Form),
            }
            rest = trimmed(behind);
        }
        Ok(tail)
    }

    /// Applies AM or PM to a time of day.
    fn on(&self, clock: Clock) -> Result<Clock, Misfit> {
        let hours = clock.seconds / HOUR;
        let shift = match self.is_afternoon {
            None => 0,
            Some(_) if hours > 12 => return Err(Range),
            Some(true) if hours < 12 => 12,
            Some(false) if hours == 12 => -12,
            Some(_) => 0,
        };
        Ok(Clock { seconds: clock.seconds + shift * HOUR, ..clock })
    }
}

/// Returns the end of Z, AM or PM that other text follows directly. PostgreSQL loses the PM of
/// `11:30 PM-05`, which is refused here.
fn end_before_offset(word: &[u8]) -> Option<usize> {
    match word {
        [b'Z' | b'z', next, ..] if !next.is_ascii_alphabetic() => Some(1),
        [b'A' | b'a' | b'P' | b'p', b'M' | b'm', b'+', ..] => Some(2),
        _ => None,
    }
}

fn zone(word: &[u8]) -> Result<Zone, Misfit> {
    if matches!(word.first(), Some(b'+' | b'-')) {
        return offset_seconds(word).map(Zone::fixed).ok_or(Form);
    }
    std::str::from_utf8(word).ok().and_then(Zone::behind_time).ok_or(Form)
}
