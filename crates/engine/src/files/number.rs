//! Fast parsing of short numbers: eight digits at a time, in words of eight bytes.
//!
//! For any other number the result is `None`, and the caller uses the general parser.

/// The maximum number of digits of an integer that always fits 64 bits.
const MAX_PLAIN_DIGITS: usize = 18;
/// The limit of digits above which a number may be too long for jiter.
const MAX_SKIPPED_DIGITS: usize = 4000;

pub(super) const LOW: u64 = 0x0101_0101_0101_0101;
pub(super) const HIGH: u64 = 0x8080_8080_8080_8080;

/// Returns eight bytes, if there are that many, the first one in the lowest bits.
#[inline]
pub(super) fn word(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8).and_then(|word| Some(u64::from_le_bytes(word.try_into().ok()?)))
}

/// Marks bytes that are not digits. Only the first mark is exact.
#[inline]
fn no_digits(word: u64) -> u64 {
    let value = word ^ (LOW * u64::from(b'0'));
    (value.wrapping_add(LOW * 0x76) | value) & HIGH
}

/// Returns the index of the first marked byte of a word that has one.
#[inline]
pub(super) fn first(marks: u64) -> usize {
    marks.trailing_zeros() as usize / 8
}

/// Returns the end of a run of digits.
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

/// Returns the end of the digits before a fraction or an exponent. The number begins at `at`.
#[inline]
fn whole_end(bytes: &[u8], at: usize) -> Option<usize> {
    let end = digits_end(bytes, at);
    let is_plain = end == at + 1 || (end > at && bytes[at] != b'0' && end - at < MAX_SKIPPED_DIGITS);
    is_plain.then_some(end)
}

/// Returns the end of a number.
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

/// Returns the value of eight digits, the first one in the lowest bits.
#[inline]
fn eight_digits(digits: u64) -> u64 {
    let pairs = digits.wrapping_mul(10).wrapping_add(digits >> 8);
    let (low, high) = (pairs & 0x0000_00FF_0000_00FF, (pairs >> 16) & 0x0000_00FF_0000_00FF);
    low.wrapping_mul(0x000F_4240_0000_0064).wrapping_add(high.wrapping_mul(0x0000_2710_0000_0001)) >> 32
}

/// Appends digits to the value of a number. Returns the value and the end of the digits. More than
/// 19 digits in total wrap around.
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
        // The shift prepends zeros.
        let last = eight_digits(values << (64 - 8 * count));
        return (value.wrapping_mul(POWERS[count]).wrapping_add(last), at + count);
    }
    while let Some(digit @ b'0'..=b'9') = bytes.get(at) {
        value = value.wrapping_mul(10).wrapping_add(u64::from(digit & 0x0F));
        at += 1;
    }
    (value, at)
}

/// Parses a short integer. Returns the value and its end.
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

/// Parses a number that is the quotient of two numbers that a DOUBLE represents exactly. The
/// quotient is then the nearest DOUBLE. Returns the value and its end.
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
