//! Truth values and numbers as they are written: digits, a sign, a point and an exponent. No hexadecimal, no underscores.

use super::Misfit;
use super::Misfit::{Form, Range};

/// The string without the white space around it.
pub(super) fn trimmed(text: &[u8]) -> &[u8] {
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\t'..=b'\r');
    match (text.first(), text.last()) {
        (Some(first), Some(last)) if is_space(first) || is_space(last) => {
            let start = text.iter().position(|byte| !is_space(byte)).unwrap_or(text.len());
            let end = text.iter().rposition(|byte| !is_space(byte)).map_or(start, |last| last + 1);
            &text[start..end]
        }
        _ => text,
    }
}

/// `true`, `yes`, `on`, `1` and their opposites, in any case; a beginning of a word that no other word has.
pub(super) fn boolean(text: &[u8]) -> Result<bool, Misfit> {
    const WORDS: [(&[u8], usize, bool); 8] = [
        (b"true", 1, true),
        (b"false", 1, false),
        (b"yes", 1, true),
        (b"no", 1, false),
        (b"on", 2, true),
        (b"off", 2, false),
        (b"1", 1, true),
        (b"0", 1, false),
    ];
    let text = trimmed(text);
    let is_word = |(word, least, _): &&(&[u8], usize, bool)| {
        text.len() >= *least && word.get(..text.len()).is_some_and(|head| head.eq_ignore_ascii_case(text))
    };
    WORDS.iter().find(is_word).map(|(_, _, truth)| *truth).ok_or(Form)
}

/// The sign, and what is behind it.
fn signed(text: &[u8]) -> (bool, &[u8]) {
    match text.split_first() {
        Some((b'-', digits)) => (true, digits),
        Some((b'+', digits)) => (false, digits),
        _ => (false, text),
    }
}

/// Digits with a sign.
pub(super) fn integer<T: TryFrom<i128>>(text: &[u8]) -> Result<T, Misfit> {
    let (is_negative, digits) = signed(trimmed(text));
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(Form);
    }
    // Of 18 digits there is always room.
    let size: i128 = match digits.len() <= 18 {
        true => digits.iter().fold(0, |number: i64, digit| number * 10 + i64::from(digit - b'0')).into(),
        false => {
            let significant = &digits[digits.iter().take_while(|digit| **digit == b'0').count()..];
            if significant.len() > 38 {
                return Err(Range);
            }
            significant.iter().fold(0, |number: i128, digit| number * 10 + i128::from(digit - b'0'))
        }
    };
    T::try_from(if is_negative { -size } else { size }).map_err(|_| Range)
}

/// A floating point number of one of the two widths.
pub(super) trait Float: std::str::FromStr + Copy {
    /// Whether it is an infinity, and whether it is zero.
    fn extremes(self) -> (bool, bool);
}

impl Float for f32 {
    fn extremes(self) -> (bool, bool) {
        (self.is_infinite(), self == 0.0)
    }
}

impl Float for f64 {
    fn extremes(self) -> (bool, bool) {
        (self.is_infinite(), self == 0.0)
    }
}

/// The number that is nearest; `inf`, `infinity` and `nan` in any case.
///
/// A number that is too large is no infinity, and one that is too small is no zero.
pub(super) fn float<T: Float>(text: &[u8]) -> Result<T, Misfit> {
    let text = trimmed(text);
    let number: T = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or(Form)?;
    let (is_infinite, is_zero) = number.extremes();
    let mantissa = || text.iter().take_while(|byte| !matches!(byte, b'e' | b'E'));
    let is_lost = (is_infinite && text.iter().any(u8::is_ascii_digit))
        || (is_zero && mantissa().any(|byte| matches!(byte, b'1'..=b'9')));
    if is_lost { Err(Range) } else { Ok(number) }
}

/// Digits with a point and an exponent, as a whole number of units of 10^-scale, rounded half away from zero.
pub(super) fn decimal(text: &[u8], precision: u8, scale: i8) -> Result<i128, Misfit> {
    let (is_negative, text) = signed(trimmed(text));
    let end = text.iter().position(|byte| matches!(byte, b'e' | b'E')).unwrap_or(text.len());
    let (mantissa, exponent) = text.split_at(end);
    let exponent = match exponent.split_first() {
        Some((_, digits)) => exponent_of(digits)?,
        None => 0,
    };
    let point = mantissa.iter().position(|byte| *byte == b'.').unwrap_or(mantissa.len());
    let (whole, fraction) = (&mantissa[..point], mantissa.get(point + 1..).unwrap_or_default());
    let digits = || whole.iter().chain(fraction);
    if whole.len() + fraction.len() == 0 || !digits().all(u8::is_ascii_digit) {
        return Err(Form);
    }
    // So many of the digits are kept: those before the point, as the exponent and the scale have it.
    let kept = i64::try_from(whole.len()).map_err(|_| Range)? + exponent + i64::from(scale);
    let count = usize::try_from(kept.max(0)).map_err(|_| Range)?;
    let mut units: i128 = 0;
    for digit in digits().take(count) {
        units = append(units, *digit)?;
    }
    if units != 0 {
        let missing = count.saturating_sub(whole.len() + fraction.len());
        let factor = u32::try_from(missing).ok().and_then(|missing| 10i128.checked_pow(missing)).ok_or(Range)?;
        units = units.checked_mul(factor).ok_or(Range)?;
    }
    if kept >= 0 && digits().nth(count).is_some_and(|next| *next >= b'5') {
        units += 1;
    }
    let is_within = 10u128.checked_pow(precision.into()).is_some_and(|limit| units.unsigned_abs() < limit);
    match is_within {
        true => Ok(if is_negative { -units } else { units }),
        false => Err(Range),
    }
}

fn append(units: i128, digit: u8) -> Result<i128, Misfit> {
    units.checked_mul(10).and_then(|units| units.checked_add((digit - b'0').into())).ok_or(Range)
}

/// The exponent; one with more digits than any number has is cut to such a one.
fn exponent_of(text: &[u8]) -> Result<i64, Misfit> {
    const MOST: i64 = 1_000_000;
    let (is_negative, digits) = signed(text);
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(Form);
    }
    let size = digits.iter().fold(0, |size: i64, digit| (size * 10 + i64::from(digit - b'0')).min(MOST));
    Ok(if is_negative { -size } else { size })
}
