//! Parsing of booleans and numbers: digits, a sign, a point and an exponent, without hexadecimal
//! digits or underscores.

use arrow::datatypes::i256;

use super::Misfit;
use super::Misfit::{Form, Range};

/// Returns the string without surrounding white space.
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

/// Parses `true`, `yes`, `on`, `1` and their opposites, in any case. An unambiguous prefix of a
/// word is accepted.
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

/// Returns true for a negative sign, and the text after the sign.
fn signed(text: &[u8]) -> (bool, &[u8]) {
    match text.split_first() {
        Some((b'-', digits)) => (true, digits),
        Some((b'+', digits)) => (false, digits),
        _ => (false, text),
    }
}

/// Parses digits with a sign.
pub(super) fn integer<T: TryFrom<i128>>(text: &[u8]) -> Result<T, Misfit> {
    let (is_negative, digits) = signed(trimmed(text));
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(Form);
    }
    // 18 digits always fit.
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
    /// Returns whether it is an infinity, and whether it is zero.
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

/// Returns the nearest number. Accepts `inf`, `infinity` and `nan` in any case.
///
/// Fails for a number that would overflow to infinity or underflow to zero.
pub(super) fn float<T: Float>(text: &[u8]) -> Result<T, Misfit> {
    let text = trimmed(text);
    let number: T = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or(Form)?;
    let (is_infinite, is_zero) = number.extremes();
    let mantissa = || text.iter().take_while(|byte| !matches!(byte, b'e' | b'E'));
    let is_lost = (is_infinite && text.iter().any(u8::is_ascii_digit))
        || (is_zero && mantissa().any(|byte| matches!(byte, b'1'..=b'9')));
    if is_lost { Err(Range) } else { Ok(number) }
}

/// An integer number of decimal units.
pub(super) trait Units: Copy + PartialOrd {
    const ZERO: Self;

    /// Appends a digit; `None` on overflow.
    fn append(self, digit: u8) -> Option<Self>;

    /// Multiplies by a power of ten; `None` on overflow.
    fn raised(self, powers: u32) -> Option<Self>;

    /// Returns the next larger number.
    fn next(self) -> Option<Self>;

    /// Returns the smallest number of more than `digits` digits.
    fn limit(digits: u8) -> Option<Self>;

    fn negated(self) -> Self;
}

impl Units for i128 {
    const ZERO: Self = 0;

    fn append(self, digit: u8) -> Option<Self> {
        self.checked_mul(10)?.checked_add(digit.into())
    }

    fn raised(self, powers: u32) -> Option<Self> {
        self.checked_mul(10i128.checked_pow(powers)?)
    }

    fn next(self) -> Option<Self> {
        self.checked_add(1)
    }

    fn limit(digits: u8) -> Option<Self> {
        10i128.checked_pow(digits.into())
    }

    fn negated(self) -> Self {
        -self
    }
}

impl Units for i256 {
    const ZERO: Self = Self::ZERO;

    fn append(self, digit: u8) -> Option<Self> {
        self.checked_mul(Self::from_i128(10))?.checked_add(Self::from_i128(digit.into()))
    }

    fn raised(self, powers: u32) -> Option<Self> {
        self.checked_mul(Self::from_i128(10).checked_pow(powers)?)
    }

    fn next(self) -> Option<Self> {
        self.checked_add(Self::ONE)
    }

    fn limit(digits: u8) -> Option<Self> {
        Self::from_i128(10).checked_pow(digits.into())
    }

    fn negated(self) -> Self {
        self.wrapping_neg()
    }
}

/// Parses digits with a point and an exponent, as an integer number of units of 10^-scale, rounded
/// half away from zero.
pub(super) fn decimal<T: Units>(text: &[u8], precision: u8, scale: i8) -> Result<T, Misfit> {
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
    // The number of digits that are kept: those before the point, shifted by the exponent and the
    // scale.
    let kept = i64::try_from(whole.len()).map_err(|_| Range)? + exponent + i64::from(scale);
    let count = usize::try_from(kept.max(0)).map_err(|_| Range)?;
    let mut units = T::ZERO;
    for digit in digits().take(count) {
        units = units.append(digit - b'0').ok_or(Range)?;
    }
    if units != T::ZERO {
        let missing = count.saturating_sub(whole.len() + fraction.len());
        units = u32::try_from(missing).ok().and_then(|missing| units.raised(missing)).ok_or(Range)?;
    }
    if kept >= 0 && digits().nth(count).is_some_and(|next| *next >= b'5') {
        units = units.next().ok_or(Range)?;
    }
    match units < T::limit(precision).ok_or(Range)? {
        true => Ok(if is_negative { units.negated() } else { units }),
        false => Err(Range),
    }
}

/// Parses the exponent. A larger exponent than any number has is clamped.
fn exponent_of(text: &[u8]) -> Result<i64, Misfit> {
    const MOST: i64 = 1_000_000;
    let (is_negative, digits) = signed(text);
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(Form);
    }
    let size = digits.iter().fold(0, |size: i64, digit| (size * 10 + i64::from(digit - b'0')).min(MOST));
    Ok(if is_negative { -size } else { size })
}
