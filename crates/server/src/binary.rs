//! Values in PostgreSQL's binary format: big-endian, times from the year 2000, numerics in digits
//! of base 10,000.

use bytes::{BufMut, BytesMut};
use onehop_engine::arrow::array::{Array, ArrayRef};
use onehop_engine::arrow::datatypes::IntervalMonthDayNano;
use onehop_engine::{Error, ErrorKind, Result};

use crate::encode::{Cells, Format, Style, item_oid};

/// Days from 1970 to 2000.
pub const EPOCH_DAYS: i32 = 10_957;
/// Microseconds from 1970 to 2000.
pub const EPOCH_MICROS: i64 = 10_957 * 86_400 * 1_000_000;

/// The number of decimal digits in one digit of a numeric.
const GROUP: usize = 4;

/// Converts days since 1970 to days since 2000.
pub fn date(day: i32) -> Option<i32> {
    day.checked_sub(EPOCH_DAYS)
}

/// Converts microseconds since 1970 to microseconds since 2000.
pub fn timestamp(micros: i64) -> Option<i64> {
    micros.checked_sub(EPOCH_MICROS)
}

/// Writes an interval.
pub fn interval(value: IntervalMonthDayNano, out: &mut BytesMut) {
    out.put_i64(value.nanoseconds / 1000);
    out.put_i32(value.days);
    out.put_i32(value.months);
}

/// Writes a numeric, given the digits of an integer and the scale that places the point.
pub fn numeric(number: &str, scale: i8, out: &mut BytesMut) {
    let (is_negative, digits) = number.strip_prefix('-').map_or((false, number), |digits| (true, digits));
    let shown = usize::try_from(scale).unwrap_or(0);
    let zeros = if scale < 0 { usize::from(scale.unsigned_abs()) } else { 0 };
    // The padding before and after the digits that aligns the point to a group boundary.
    let whole = (digits.len() + zeros).saturating_sub(shown);
    let before = (GROUP - whole % GROUP) % GROUP + (shown + whole).saturating_sub(digits.len() + zeros);
    let after = (GROUP - shown % GROUP) % GROUP;
    let padded = format!("{}{digits}{}", "0".repeat(before), "0".repeat(zeros + after));
    let padded = format!("{padded:0>width$}", width = padded.len().next_multiple_of(GROUP));
    let groups: Vec<i16> = padded
        .as_bytes()
        .chunks(GROUP)
        .map(|group| group.iter().fold(0, |number, digit| number * 10 + i16::from(digit - b'0')))
        .collect();
    let weight = groups.len() as i64 - ((shown + after) / GROUP) as i64 - 1;
    let leading = groups.iter().take_while(|group| **group == 0).count();
    let groups = &groups[leading..];
    let trailing = groups.iter().rev().take_while(|group| **group == 0).count();
    let groups = &groups[..groups.len() - trailing];
    out.put_i16(groups.len() as i16);
    out.put_i16(if groups.is_empty() { 0 } else { (weight - leading as i64) as i16 });
    out.put_u16(if is_negative && !groups.is_empty() { 0x4000 } else { 0 });
    out.put_u16(shown as u16);
    groups.iter().for_each(|group| out.put_i16(*group));
}

/// Writes an array of one dimension.
pub fn list(items: &ArrayRef, style: &Style, out: &mut BytesMut) -> Result<()> {
    if matches!(items.data_type(), onehop_engine::arrow::datatypes::DataType::List(_)) {
        let error = Error::new(ErrorKind::Invalid, "lists of lists cannot be sent in binary");
        return Err(error.with_hint("ask for the column as text"));
    }
    let cells = Cells::new(items)?;
    out.put_i32(i32::from(!items.is_empty()));
    out.put_i32(i32::from(items.null_count() > 0));
    out.put_u32(item_oid(items));
    if items.is_empty() {
        return Ok(());
    }
    let length = i32::try_from(items.len());
    out.put_i32(length.map_err(|_| Error::new(ErrorKind::Resources, "a list is too long to be sent"))?);
    out.put_i32(1);
    (0..items.len()).try_for_each(|row| cells.write(row, Format::Binary, style, out))
}

/// Returns the digits of a numeric as text, or `None` if the bytes are not a number.
pub fn read_numeric(bytes: &[u8]) -> Option<String> {
    let word = |at: usize| Some(u16::from_be_bytes(bytes.get(2 * at..2 * at + 2)?.try_into().ok()?));
    let (count, weight, sign, shown) = (word(0)?, word(1)? as i16, word(2)?, word(3)?);
    let (count, shown) = (usize::from(count), usize::from(shown));
    if bytes.len() != 8 + 2 * count || !matches!(sign, 0 | 0x4000) || shown > 0x3fff {
        return None;
    }
    let group = |at: i64| -> Option<u16> {
        match usize::try_from(at) {
            Ok(at) if at < count => word(4 + at).filter(|group| *group < 10_000),
            _ => Some(0),
        }
    };
    let mut text = String::from(if sign == 0 { "" } else { "-" });
    let mut whole = String::new();
    for at in 0..=i64::from(weight) {
        whole.push_str(&format!("{:04}", group(at)?));
    }
    let whole = whole.trim_start_matches('0');
    text.push_str(if whole.is_empty() { "0" } else { whole });
    if shown > 0 {
        let mut fraction = String::new();
        // Groups between the point and the first stored group are zeros.
        for at in (i64::from(weight) + 1..).take(shown.div_ceil(GROUP)) {
            fraction.push_str(&format!("{:04}", group(at)?));
        }
        fraction.truncate(shown);
        text.push('.');
        text.push_str(&fraction);
    }
    Some(text)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// The results of PostgreSQL 15's `numeric_send`.
    #[test]
    fn numerics_are_in_groups_of_four_digits() {
        for (number, scale, hex) in [
            ("0", 0, "0000000000000000"),
            ("0", 2, "0000000000000002"),
            ("1", 0, "00010000000000000001"),
            ("12345678", 0, "000200010000000004d2162e"),
            ("1234567", 2, "0003000100000002000109291a2c"),
            ("-5", 2, "0001ffff4000000201f4"),
            ("10000", 0, "00010001000000000001"),
            ("1", 8, "0001fffe000000080001"),
            ("7", -2, "000100000000000002bc"),
        ] {
            let mut out = BytesMut::new();
            numeric(number, scale, &mut out);
            let text: String = out.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(text, hex, "{number} {scale}");
        }
    }

    #[test]
    fn numerics_come_back() {
        for (number, scale) in [
            ("0", 0),
            ("0", 5),
            ("-1", 9),
            ("123456789012345678901234567890", 10),
            ("100000000", 4),
            ("99999999", 0),
            ("-120000", 3),
            ("42", 17),
        ] {
            let (mut out, mut text) = (BytesMut::new(), BytesMut::new());
            numeric(number, scale, &mut out);
            onehop_engine::postgres_text::decimal(number, scale, &mut text);
            let said = if number == "-0" { "0".into() } else { String::from_utf8(text.to_vec()).unwrap() };
            assert_eq!(read_numeric(&out), Some(said), "{number} {scale}");
        }
        for bytes in [&[][..], &[0; 7], &[0, 1, 0, 0, 0, 0, 0, 0], &[0, 0, 0, 0, 0xc0, 0, 0, 0]] {
            assert_eq!(read_numeric(bytes), None);
        }
    }
}
