//! The sets of values that several tables draw from, and the formats of names, addresses and phone
//! numbers.
//!
//! Sets and their order are those of TPC-H, which the Star Schema Benchmark adopts.

use arrow::array::{ArrayRef, StringViewBuilder};
use std::ops::Range;
use std::sync::{Arc, LazyLock};

use crate::generate::Result;
use crate::generate::random::{Draw, Stream};
use crate::generate::views::ViewSet;

const REGIONS: [&str; 5] = ["AFRICA", "AMERICA", "ASIA", "EUROPE", "MIDDLE EAST"];

/// Nations with the index of their region; a nation's index is also its telephone country code,
/// less 10.
const NATIONS: [(&str, usize); 25] = [
    ("ALGERIA", 0),
    ("ARGENTINA", 1),
    ("BRAZIL", 1),
    ("CANADA", 1),
    ("EGYPT", 4),
    ("ETHIOPIA", 0),
    ("FRANCE", 3),
    ("GERMANY", 3),
    ("INDIA", 2),
    ("INDONESIA", 2),
    ("IRAN", 4),
    ("IRAQ", 4),
    ("JAPAN", 2),
    ("JORDAN", 4),
    ("KENYA", 0),
    ("MOROCCO", 0),
    ("MOZAMBIQUE", 0),
    ("PERU", 1),
    ("CHINA", 2),
    ("ROMANIA", 3),
    ("SAUDI ARABIA", 4),
    ("VIETNAM", 2),
    ("RUSSIA", 3),
    ("UNITED KINGDOM", 3),
    ("UNITED STATES", 1),
];

const CITIES_PER_NATION: usize = 10;
const CITY_NATION_BYTES: usize = 9;

static REGION_VIEWS: LazyLock<ViewSet> =
    LazyLock::new(|| ViewSet::new(NATIONS.iter().map(|&(_, region)| REGIONS[region])));
static NATION_VIEWS: LazyLock<ViewSet> = LazyLock::new(|| ViewSet::new(NATIONS.iter().map(|&(nation, _)| nation)));
static CITY_VIEWS: LazyLock<ViewSet> = LazyLock::new(|| {
    let cities = NATIONS.iter().flat_map(|&(nation, _)| (0..CITIES_PER_NATION).map(move |digit| city(nation, digit)));
    ViewSet::new(cities)
});

/// Returns the name of a city: its nation's name, cut or padded to 9 characters, and a digit.
fn city(nation: &str, digit: usize) -> String {
    format!("{nation:<CITY_NATION_BYTES$.CITY_NATION_BYTES$}{digit}")
}

/// The places of the customers or suppliers of a batch, row by row.
pub(super) struct Places {
    nations: Vec<u8>,
    cities: Vec<u8>,
}

impl Places {
    pub(super) fn with_capacity(rows: usize) -> Self {
        Self { nations: Vec::with_capacity(rows), cities: Vec::with_capacity(rows) }
    }

    /// Draws the place of the next row; returns the nation's index.
    pub(super) fn push(&mut self, draw: &mut Draw) -> u8 {
        let nation = draw.below_u8(NATIONS.len() as u8);
        self.nations.push(nation);
        self.cities.push(nation * CITIES_PER_NATION as u8 + draw.below_u8(CITIES_PER_NATION as u8));
        nation
    }

    /// Returns the columns city, nation, region.
    pub(super) fn columns(&self) -> Result<[ArrayRef; 3]> {
        Ok([CITY_VIEWS.column(&self.cities)?, NATION_VIEWS.column(&self.nations)?, REGION_VIEWS.column(&self.nations)?])
    }
}

/// A string column of distinct values, built from one reused scratch buffer.
pub(super) struct Strings {
    builder: StringViewBuilder,
    scratch: String,
}

impl Strings {
    pub(super) fn with_capacity(rows: usize) -> Self {
        Self { builder: StringViewBuilder::with_capacity(rows), scratch: String::with_capacity(64) }
    }

    /// Appends the string that `write` leaves in the buffer.
    pub(super) fn push(&mut self, write: impl FnOnce(&mut String)) {
        self.scratch.clear();
        write(&mut self.scratch);
        self.builder.append_value(&self.scratch);
    }

    pub(super) fn column(mut self) -> ArrayRef {
        Arc::new(self.builder.finish())
    }
}

/// Appends `number`, with leading zeros up to `digits` digits.
pub(super) fn push_padded(text: &mut String, number: u64, digits: usize) {
    let mut bytes = [b'0'; 20];
    let mut start = bytes.len();
    let mut rest = number;
    while rest > 0 {
        start -= 1;
        bytes[start] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    let start = start.min(bytes.len() - digits);
    text.extend(bytes[start..].iter().map(|&byte| char::from(byte)));
}

/// Appends `TAG#000000001`.
pub(super) fn push_name(text: &mut String, tag: &str, key: u64) {
    text.push_str(tag);
    push_padded(text, key, 9);
}

/// Appends a telephone number: country code, area, exchange, number.
pub(super) fn push_phone(text: &mut String, nation: u8, draw: &mut Draw) {
    push_padded(text, u64::from(nation) + 10, 2);
    for (low, numbers, digits) in [(100, 900, 3), (100, 900, 3), (1_000, 9_000, 4)] {
        text.push('-');
        push_padded(text, low + draw.below(numbers), digits);
    }
}

/// Appends an address: 6 to 24 characters of 64 kinds (0.4 to 1.6 times the mean length, 15).
pub(super) fn push_address(text: &mut String, stream: &mut Stream) {
    const KINDS: &[u8; 64] = b"0123456789abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ,";
    const KINDS_PER_DRAW: usize = 10;
    let length = stream.draw().between(6, 24) as usize;
    for start in (0..length).step_by(KINDS_PER_DRAW) {
        let mut draw = stream.draw();
        let kinds = KINDS_PER_DRAW.min(length - start);
        text.extend((0..kinds).map(|_| char::from(KINDS[usize::from(draw.below_u8(64))])));
    }
}

/// Returns the keys of a batch's rows, which count from 1.
pub(super) fn keys(rows: Range<u64>) -> Range<i32> {
    rows.start as i32 + 1..rows.end as i32 + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cities_are_nine_characters_and_a_digit() {
        assert_eq!(city("UNITED KINGDOM", 1), "UNITED KI1");
        assert_eq!(city("MOROCCO", 0), "MOROCCO  0");
        assert_eq!(city("ARGENTINA", 7), "ARGENTINA7");
    }

    #[test]
    fn every_region_has_five_nations() {
        for region in 0..REGIONS.len() {
            assert_eq!(NATIONS.iter().filter(|&&(_, of)| of == region).count(), 5);
        }
    }

    #[test]
    fn numbers_are_padded_and_never_cut() {
        let padded = |number, digits| {
            let mut text = String::new();
            push_padded(&mut text, number, digits);
            text
        };
        assert_eq!(padded(1, 9), "000000001");
        assert_eq!(padded(0, 2), "00");
        assert_eq!(padded(1_234_567_890, 9), "1234567890");
    }
}
