//! The forms of values in text files, and the types that can hold them without loss.
//!
//! [`Forms::of`] returns the set of types that a text can be read as. The sets of a column's values
//! are intersected. The order of preference and the forms are those of DuckDB 2.0, except where
//! DuckDB loses information. A value with a fraction is not a BIGINT, and one with a time is not a
//! DATE. Nine digits of a second need nanoseconds. A number too large for a DOUBLE is text.
//! `02/01/2024` is a day, then a month, unless a value of the column excludes that.

use std::ops::BitAnd;

use crate::pg_types::calendar::days_of_civil;

/// The order of a date's parts. Two-digit years are 1969 to 2068.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// `2024-01-31`
    Iso,
    /// `24-01-31`
    ShortYearFirst,
    /// `31/01/2024`
    DayFirst,
    /// `31/01/24`
    DayFirstShort,
    /// `01/31/2024`
    MonthFirst,
    /// `01/31/24`
    MonthFirstShort,
}

impl Order {
    /// The orders of dates, the preferred one first.
    const ALL: [Self; 6] =
        [Self::Iso, Self::ShortYearFirst, Self::DayFirst, Self::DayFirstShort, Self::MonthFirst, Self::MonthFirstShort];
}

/// The type of a column's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// No value at all.
    Empty,
    Boolean,
    Int,
    /// Integers beyond 64 bits, of up to 38 digits.
    Huge,
    Double,
    Date(Order),
    /// A timestamp in microseconds.
    Timestamp(Order),
    /// A timestamp in nanoseconds.
    Nanoseconds,
    /// A timestamp with an offset from UTC.
    Moment,
    MomentNanoseconds,
    Text,
}

impl Kind {
    /// Returns true if a quick test shows that a value is in this type. False means unknown.
    #[inline]
    pub fn surely_holds(self, text: &[u8]) -> bool {
        match self {
            Self::Int | Self::Double => {
                let digits = text.strip_prefix(b"-").unwrap_or(text);
                let is_plain = !digits.is_empty() && digits.len() <= 18 && (digits[0] != b'0' || digits.len() == 1);
                is_plain && digits.iter().all(u8::is_ascii_digit) || (self == Self::Double && is_plain_fraction(digits))
            }
            Self::Text => true,
            _ => false,
        }
    }
}

/// Returns whether a text is a fraction such as `12.5` with few enough digits.
fn is_plain_fraction(text: &[u8]) -> bool {
    let whole = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let is_whole = whole == 1 || (whole > 1 && text[0] != b'0');
    text.len() < 100 && is_whole && text.get(whole) == Some(&b'.') && text[whole + 1..].iter().all(u8::is_ascii_digit)
}

/// A set of types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Forms(u32);

impl BitAnd for Forms {
    type Output = Self;
    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

const BOOLEAN: u32 = 1;
const INT: u32 = 2;
const HUGE: u32 = 4;
const DOUBLE: u32 = 8;
/// The first bit of dates. There is one bit for each of [`Order::ALL`].
const DATES: u32 = 4;
const TIMESTAMPS: u32 = 10;
const NANOSECONDS: u32 = 1 << 16;
const MOMENT: u32 = 1 << 17;
const MOMENT_NANOSECONDS: u32 = 1 << 18;

impl Forms {
    /// The set of a column without values.
    pub const ANY: Self = Self(u32::MAX);
    /// The set of text alone.
    pub const TEXT: Self = Self(0);

    /// Returns the types of a value. Blanks alone are text. So are a boolean with blanks, and a
    /// fraction with trailing blanks.
    pub fn of(value: &[u8]) -> Self {
        let text = trimmed(value);
        let Some(&first) = text.first() else { return Self::TEXT };
        let has_blank_behind = value.last() != text.last();
        Self(match first {
            b'0'..=b'9' => number(text) | moments(text),
            b'-' | b'.' => number(text),
            _ if text.len() == value.len() && boolean(text).is_some() => BOOLEAN,
            b'i' | b'I' | b'n' | b'N' => number(text),
            _ => 0,
        })
        .without_fraction(has_blank_behind)
    }

    fn without_fraction(self, has_blank_behind: bool) -> Self {
        if has_blank_behind && self.0 & INT == 0 { Self(self.0 & !DOUBLE) } else { self }
    }

    /// Returns whether 64-bit nanoseconds hold all values. It is true if there are none.
    pub fn fit_nanoseconds(self) -> bool {
        self.0 & (NANOSECONDS | MOMENT_NANOSECONDS) != 0
    }

    /// Returns the preferred type in the set.
    pub fn kind(self) -> Kind {
        let has = |bits: u32| self.0 & bits != 0;
        if self == Self::ANY {
            return Kind::Empty;
        }
        for (bit, kind) in [(BOOLEAN, Kind::Boolean), (INT, Kind::Int), (HUGE, Kind::Huge), (DOUBLE, Kind::Double)] {
            if has(bit) {
                return kind;
            }
        }
        for (at, order) in Order::ALL.into_iter().enumerate() {
            if has(1 << (DATES + at as u32)) {
                return Kind::Date(order);
            }
        }
        for (at, order) in Order::ALL.into_iter().enumerate() {
            if has(1 << (TIMESTAMPS + at as u32)) {
                return Kind::Timestamp(order);
            }
        }
        match () {
            () if has(NANOSECONDS) => Kind::Nanoseconds,
            () if has(MOMENT) => Kind::Moment,
            () if has(MOMENT_NANOSECONDS) => Kind::MomentNanoseconds,
            () => Kind::Text,
        }
    }
}

pub(super) fn trimmed(text: &[u8]) -> &[u8] {
    text.trim_ascii()
}

/// Parses `true`, `yes`, `t` and their opposites, in any case.
pub(super) fn boolean(text: &[u8]) -> Option<bool> {
    let is = |words: &[&str]| words.iter().any(|word| text.eq_ignore_ascii_case(word.as_bytes()));
    match text.len() {
        1..=4 if is(&["true", "t", "yes"]) => Some(true),
        1..=5 if is(&["false", "f", "no"]) => Some(false),
        _ => None,
    }
}

/// Returns the forms of integers and fractions. They have no leading zeros, unlike some other
/// notations of a number.
fn number(text: &[u8]) -> u32 {
    let (is_negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        _ => (false, text),
    };
    let whole = digits.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if whole > 1 && digits[0] == b'0' {
        return 0;
    }
    if whole == digits.len() && whole > 0 {
        return match whole {
            1..=18 => INT | HUGE | DOUBLE,
            19 if fits_i64(digits, is_negative) => INT | HUGE | DOUBLE,
            19..=38 => HUGE | DOUBLE,
            _ => 0,
        };
    }
    if double(text).is_some() { DOUBLE } else { 0 }
}

fn fits_i64(digits: &[u8], is_negative: bool) -> bool {
    let most: &[u8] = if is_negative { b"9223372036854775808" } else { b"9223372036854775807" };
    digits <= most
}

/// Parses an integer without surrounding blanks.
#[inline]
pub(super) fn integer(text: &[u8]) -> Option<i64> {
    let (is_negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, text),
    };
    if digits.is_empty() {
        return None;
    }
    let mut value = 0_i64;
    if digits.len() <= 18 {
        for byte in digits {
            let digit = byte.wrapping_sub(b'0');
            if digit > 9 {
                return None;
            }
            value = value * 10 + i64::from(digit);
        }
        return Some(if is_negative { -value } else { value });
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Parses a number in the notation of text files; `None` if it is too large.
pub(super) fn double(text: &[u8]) -> Option<f64> {
    let body = text.strip_prefix(b"-").unwrap_or(text);
    let value: f64 = match body.first()? {
        b'0'..=b'9' | b'.' => {
            let value = fast_float(text)?;
            return value.is_finite().then_some(value);
        }
        _ if body.eq_ignore_ascii_case(b"nan") && body.len() == text.len() => f64::NAN,
        _ if body.eq_ignore_ascii_case(b"inf") || body.eq_ignore_ascii_case(b"infinity") => f64::INFINITY,
        _ => return None,
    };
    Some(if body.len() < text.len() { -value } else { value })
}

fn fast_float(text: &[u8]) -> Option<f64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// A date, and an optional time and offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moment {
    /// Days since 1970-01-01.
    pub days: i32,
    /// Nanoseconds of the day, if a time is written.
    pub time: Option<i64>,
    /// Seconds that the zone is ahead of UTC, if an offset is written.
    pub offset: Option<i32>,
}

/// Parses a date whose parts are in this order.
pub(super) fn moment(text: &[u8], order: Order) -> Option<Moment> {
    let (parts, rest) = date_parts(text)?;
    let days = date_of(&parts, order)?;
    if rest.is_empty() {
        return Some(Moment { days, time: None, offset: None });
    }
    match order {
        Order::Iso => {
            let (time, offset) = iso_time(rest)?;
            Some(Moment { days, time: Some(time), offset })
        }
        _ => Some(Moment { days, time: Some(plain_time(rest, order)?), offset: None }),
    }
}

fn moments(text: &[u8]) -> u32 {
    let Some((parts, rest)) = date_parts(text) else { return 0 };
    let mut forms = 0;
    for (at, order) in Order::ALL.into_iter().enumerate() {
        let Some(days) = date_of(&parts, order) else { continue };
        let at = at as u32;
        if rest.is_empty() {
            forms |= 1 << (DATES + at) | 1 << (TIMESTAMPS + at);
            if order == Order::Iso && in_nanoseconds(days) {
                forms |= NANOSECONDS;
            }
            continue;
        }
        if order != Order::Iso {
            if plain_time(rest, order).is_some() {
                forms |= 1 << (TIMESTAMPS + at);
            }
            continue;
        }
        let Some((time, offset)) = iso_time(rest) else { continue };
        let (micro, nano) = match offset {
            None => (1 << (TIMESTAMPS + at), NANOSECONDS),
            Some(_) => (MOMENT, MOMENT_NANOSECONDS),
        };
        if time % 1000 == 0 {
            forms |= micro;
        }
        if in_nanoseconds(days) {
            forms |= nano;
        }
    }
    forms
}

/// Returns whether a day's nanoseconds since 1970 fit 64 bits in every zone.
fn in_nanoseconds(days: i32) -> bool {
    (-106_749..=106_749).contains(&days)
}

struct Parts {
    values: [u32; 3],
    digits: [usize; 3],
}

/// Parses three numbers with the same separator between them. Returns them with the rest of the
/// text.
fn date_parts(text: &[u8]) -> Option<(Parts, &[u8])> {
    let (mut values, mut digits, mut at) = ([0; 3], [0; 3], 0);
    let mut separator = None;
    for part in 0..3 {
        if part > 0 {
            let byte = *text.get(at)?;
            if !matches!(byte, b'-' | b'/' | b'.' | b' ') || separator.is_some_and(|known| known != byte) {
                return None;
            }
            separator = Some(byte);
            at += 1;
        }
        let (value, count) = digits_at(text, at, 4)?;
        (values[part], digits[part]) = (value, count);
        at += count;
    }
    Some((Parts { values, digits }, &text[at..]))
}

/// Parses a number of at most `most` digits. Returns it with the number of digits.
fn digits_at(text: &[u8], at: usize, most: usize) -> Option<(u32, usize)> {
    let (mut value, mut count) = (0, 0);
    while let Some(byte) = text.get(at + count).filter(|byte| byte.is_ascii_digit()) {
        if count == most {
            return None;
        }
        value = value * 10 + u32::from(byte - b'0');
        count += 1;
    }
    (count > 0).then_some((value, count))
}

fn date_of(parts: &Parts, order: Order) -> Option<i32> {
    let (year, month, day) = match order {
        Order::Iso | Order::ShortYearFirst => (0, 1, 2),
        Order::DayFirst | Order::DayFirstShort => (2, 1, 0),
        Order::MonthFirst | Order::MonthFirstShort => (2, 0, 1),
    };
    let year_digits = if matches!(order, Order::Iso | Order::DayFirst | Order::MonthFirst) { 4 } else { 2 };
    if parts.digits[year] != year_digits || parts.digits[month] > 2 || parts.digits[day] > 2 {
        return None;
    }
    let written = parts.values[year] as i32;
    let year = match (year_digits, written) {
        (4, written) => written,
        (_, written @ 0..=68) => 2000 + written,
        (_, written) => 1900 + written,
    };
    days(year, parts.values[month], parts.values[day])
}

/// Returns days since 1970-01-01 of a valid date in the years 1 to 9999.
pub(in crate::files) fn days(year: i32, month: u32, day: u32) -> Option<i32> {
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let last = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 if is_leap => 29,
        2 => 28,
        _ => return None,
    };
    if year < 1 || day < 1 || day > last {
        return None;
    }
    i32::try_from(days_of_civil(year.into(), month, day)).ok()
}

const SECOND: i64 = 1_000_000_000;

/// Parses `T10:11` or ` 10:11:12.5`, followed by a zone.
fn iso_time(text: &[u8]) -> Option<(i64, Option<i32>)> {
    let (b'T' | b't' | b' ', text) = text.split_first()? else { return None };
    let (time, end) = time_of_day(text)?;
    Some((time, zone(&text[end..])?))
}

/// Returns whether a text is a time such as `9:05`, `09:24:24` or `09:24:24.5`.
pub(super) fn is_time(text: &[u8]) -> bool {
    let text = trimmed(text);
    time_of_day(text).is_some_and(|(_, end)| end == text.len())
}

/// Parses a time. Returns nanoseconds of the day, and the end of the time in the text.
fn time_of_day(text: &[u8]) -> Option<(i64, usize)> {
    let (hour, count) = digits_at(text, 0, 2)?;
    let mut at = count;
    let minute = two_digits(text, at, b':')?;
    at += 3;
    let (mut second, mut nanos) = (0, 0);
    if let Some(found) = two_digits(text, at, b':') {
        second = found;
        at += 3;
        if text.get(at) == Some(&b'.') {
            let digits = text[at + 1..].iter().take_while(|byte| byte.is_ascii_digit()).count();
            nanos = fraction(&text[at + 1..at + 1 + digits])?;
            at += 1 + digits;
        }
    }
    Some((clock(hour, minute, second)? + nanos, at))
}

fn two_digits(text: &[u8], at: usize, before: u8) -> Option<u32> {
    let (value, count) = (*text.get(at)? == before).then(|| digits_at(text, at + 1, 2)).flatten()?;
    (count == 2).then_some(value)
}

/// Parses nanoseconds. Further digits must be zeros.
fn fraction(digits: &[u8]) -> Option<i64> {
    if digits.is_empty() || digits.iter().skip(9).any(|byte| *byte != b'0') {
        return None;
    }
    let known = digits.iter().chain(std::iter::repeat(&b'0')).take(9);
    Some(known.fold(0, |value, byte| value * 10 + i64::from(byte - b'0')))
}

fn clock(hour: u32, minute: u32, second: u32) -> Option<i64> {
    (hour < 24 && minute < 60 && second < 60).then(|| i64::from(hour * 3600 + minute * 60 + second) * SECOND)
}

/// Parses seconds ahead of UTC: nothing, `Z`, `+01`, `-05:30`, `+0530`. The zone name `UTC` is
/// treated as no offset.
fn zone(text: &[u8]) -> Option<Option<i32>> {
    let (sign, text) = match text {
        [] | [b' ', b'U', b'T', b'C'] => return Some(None),
        [b'Z' | b'z'] => return Some(Some(0)),
        [b'+', rest @ ..] => (1, rest),
        [b'-', rest @ ..] => (-1, rest),
        _ => return None,
    };
    let (hours, minutes) = match text {
        [_, _] => (two(text)?, 0),
        [_, _, b':', _, _] => (two(&text[..2])?, two(&text[3..])?),
        [_, _, _, _] => (two(&text[..2])?, two(&text[2..])?),
        _ => return None,
    };
    (hours < 16 && minutes < 60).then(|| Some(sign * (hours * 3600 + minutes * 60) as i32))
}

fn two(text: &[u8]) -> Option<u32> {
    digits_at(text, 0, 2).filter(|(_, count)| *count == 2).map(|(value, _)| value)
}

/// Parses ` 10:11:12`, or ` 10:11:12 PM` in the orders with the month first.
fn plain_time(text: &[u8], order: Order) -> Option<i64> {
    let text = text.strip_prefix(b" ")?;
    let (hour, count) = digits_at(text, 0, 2)?;
    let (minute, second) = (two_digits(text, count, b':')?, two_digits(text, count + 3, b':')?);
    let half = &text[count + 6..];
    let hour = match (order, half) {
        (Order::MonthFirst | Order::MonthFirstShort, [b' ', half @ (b'A' | b'a' | b'P' | b'p'), b'M' | b'm']) => {
            let afternoon = if half.eq_ignore_ascii_case(&b'p') { 12 } else { 0 };
            (1..=12).contains(&hour).then_some(hour % 12 + afternoon)?
        }
        (Order::MonthFirst | Order::MonthFirstShort, _) => return None,
        (_, []) => hour,
        _ => return None,
    };
    clock(hour, minute, second)
}
