//! Numbers of few digits, eight digits at a time, and words of eight bytes.
//!
//! A number that is not plain is `None`: the reader of all numbers says what it is.

/// An integer of so many digits is one of 64 bits.
const MAX_PLAIN_DIGITS: usize = 18;
/// A number with more digits may be too long for jiter.
const MAX_SKIPPED_DIGITS: usize = 4000;

pub(super) const LOW: u64 = 0x0101_0101_0101_0101;
pub(super) const HIGH: u64 = 0x8080_8080_8080_8080;

/// Eight bytes, if there are so many, the first one in the lowest bits.
#[inline]
pub(super) fn word(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8).and_then(|word| Some(u64::from_le_bytes(word.try_into().ok()?)))
}

/// Marks bytes that are no digits; only the first mark is exact.
#[inline]
fn no_digits(word: u64) -> u64 {
    let value = word ^ (LOW * u64::from(b'0'));
    (value.wrapping_add(LOW * 0x76) | value) & HIGH
}

/// The first marked byte of a word that has one.
#[inline]
pub(super) fn first(marks: u64) -> usize {
    marks.trailing_zeros() as usize / 8
}

/// Behind digits.
#[inline]
fn digits_end(bytes: &[u8], mut at: usize) -> usize {
    while let Some(word) = word(bytes, at) {
        let marks = no_digits(word);
        if marks != 0 {
            return at + first(marks);
        }
        at += 8;
    }
    while bytes.get(at).is_some_and(u8::is_ascii_digit) {
        at += 1;
    }
    at
}

/// Behind the digits before a fraction or an exponent, at the first of which a number begins.
#[inline]
fn whole_end(bytes: &[u8], at: usize) -> Option<usize> {
    let end = digits_end(bytes, at);
    let is_plain = end == at + 1 || (end > at && bytes[at] != b'0' && end - at < MAX_SKIPPED_DIGITS);
    is_plain.then_some(end)
}

/// Behind a number.
#[inline]
pub(super) fn number_end(bytes: &[u8], start: usize) -> Option<usize> {
    let mut end = whole_end(bytes, start + usize::from(bytes.get(start) == Some(&b'-')))?;
    if bytes.get(end) == Some(&b'.') {
        let fraction = end + 1;
        end = digits_end(bytes, fraction);
        if end == fraction {
            return None;
        }
    }
    if let Some(b'e' | b'E') = bytes.get(end) {
        let exponent = end + 1 + usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
        end = digits_end(bytes, exponent);
        if end == exponent {
            return None;
        }
    }
    Some(end)
}

/// The value of eight digits, of which the first one is in the lowest bits.
#[inline]
fn eight_digits(digits: u64) -> u64 {
    let pairs = digits.wrapping_mul(10).wrapping_add(digits >> 8);
    let (low, high) = (pairs & 0x0000_00FF_0000_00FF, (pairs >> 16) & 0x0000_00FF_0000_00FF);
    low.wrapping_mul(0x000F_4240_0000_0064).wrapping_add(high.wrapping_mul(0x0000_2710_0000_0001)) >> 32
}

/// Appends digits to the digits of a number, and says where they end. More than 19 in all wrap
/// around.
#[inline]
fn digits(bytes: &[u8], mut at: usize, mut value: u64) -> (u64, usize) {
    const POWERS: [u64; 8] = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000];
    while let Some(word) = word(bytes, at) {
        let (marks, values) = (no_digits(word), word & (LOW * 0x0F));
        if marks == 0 {
            value = value.wrapping_mul(100_000_000).wrapping_add(eight_digits(values));
            at += 8;
            continue;
        }
        let count = first(marks);
        if count == 0 {
            return (value, at);
        }
        // Zeros come in before them.
        let last = eight_digits(values << (64 - 8 * count));
        return (value.wrapping_mul(POWERS[count]).wrapping_add(last), at + count);
    }
    while let Some(digit @ b'0'..=b'9') = bytes.get(at) {
        value = value.wrapping_mul(10).wrapping_add(u64::from(digit & 0x0F));
        at += 1;
    }
    (value, at)
}

/// An integer that is not long.
#[inline]
pub(super) fn integer(bytes: &[u8], start: usize) -> Option<(i64, usize)> {
    let is_negative = bytes.get(start) == Some(&b'-');
    let from = start + usize::from(is_negative);
    let (value, end) = digits(bytes, from, 0);
    let has_zero = bytes.get(from) == Some(&b'0') && end > from + 1;
    if end == from || end - from > MAX_PLAIN_DIGITS || has_zero || matches!(bytes.get(end), Some(b'.' | b'e' | b'E')) {
        return None;
    }
    let value = value as i64;
    Some((if is_negative { -value } else { value }, end))
}

/// A number that is the quotient of two numbers that a DOUBLE holds: then the quotient is the
/// nearest DOUBLE.
#[inline]
pub(super) fn double(bytes: &[u8], start: usize) -> Option<(f64, usize)> {
    const POWERS: [f64; 19] =
        [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18];
    let is_negative = bytes.get(start) == Some(&b'-');
    let from = start + usize::from(is_negative);
    let (mut value, mut end) = digits(bytes, from, 0);
    let whole = end - from;
    let has_zero = bytes.get(from) == Some(&b'0') && whole > 1;
    if whole == 0 || has_zero {
        return None;
    }
    let mut fraction = 0;
    if bytes.get(end) == Some(&b'.') {
        let behind = end + 1;
        (value, end) = digits(bytes, behind, value);
        fraction = end - behind;
        if fraction == 0 {
            return None;
        }
    }
    if whole + fraction > MAX_PLAIN_DIGITS || value > 1 << 53 || matches!(bytes.get(end), Some(b'e' | b'E')) {
        return None;
    }
    let value = value as f64 / POWERS[fraction];
    Some((if is_negative { -value } else { value }, end))
}
