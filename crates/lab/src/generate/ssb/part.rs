//! The part table.
//!
//! A part draws three different colours: the first is its colour, the other two are its name.
//! Brands nest: manufacturer 1..5, category (manufacturer and 1..5), brand (category and 1..40,
//! appended without padding, so that MFGR#111 and MFGR#1111 both exist).

use arrow::array::{Int32Array, RecordBatch};
use arrow::datatypes::{DataType, SchemaRef};
use std::ops::Range;
use std::sync::{Arc, LazyLock};

use super::values::{Strings, keys};
use crate::generate::Result;
use crate::generate::random::{Draw, Stream};
use crate::generate::views::ViewSet;

const SEED: u64 = 0x7373_625f_7061_7274;

pub(super) static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
    super::schema([
        ("p_partkey", DataType::Int32),
        ("p_name", DataType::Utf8View),
        ("p_mfgr", DataType::Utf8View),
        ("p_category", DataType::Utf8View),
        ("p_brand1", DataType::Utf8View),
        ("p_color", DataType::Utf8View),
        ("p_type", DataType::Utf8View),
        ("p_size", DataType::Int32),
        ("p_container", DataType::Utf8View),
    ])
});

#[rustfmt::skip]
const COLORS: [&str; 92] = [
    "almond", "antique", "aquamarine", "azure", "beige", "bisque", "black", "blanched", "blue", "blush", "brown",
    "burlywood", "burnished", "chartreuse", "chiffon", "chocolate", "coral", "cornflower", "cornsilk", "cream",
    "cyan", "dark", "deep", "dim", "dodger", "drab", "firebrick", "floral", "forest", "frosted", "gainsboro", "ghost",
    "goldenrod", "green", "grey", "honeydew", "hot", "indian", "ivory", "khaki", "lace", "lavender", "lawn", "lemon",
    "light", "lime", "linen", "magenta", "maroon", "medium", "metallic", "midnight", "mint", "misty", "moccasin",
    "navajo", "navy", "olive", "orange", "orchid", "pale", "papaya", "peach", "peru", "pink", "plum", "powder",
    "puff", "purple", "red", "rose", "rosy", "royal", "saddle", "salmon", "sandy", "seashell", "sienna", "sky",
    "slate", "smoke", "snow", "spring", "steel", "tan", "thistle", "tomato", "turquoise", "violet", "wheat", "white",
    "yellow",
];

const MANUFACTURERS: u16 = 5;
const CATEGORIES: u16 = 5;
const BRANDS: u16 = 40;

/// The codes of the part table's strings are mixed-radix numbers: manufacturer, category, brand.
static MANUFACTURER_VIEWS: LazyLock<ViewSet> =
    LazyLock::new(|| ViewSet::new((1..=MANUFACTURERS).map(|mfgr| format!("MFGR#{mfgr}"))));
static CATEGORY_VIEWS: LazyLock<ViewSet> = LazyLock::new(|| ViewSet::new(categories()));
static BRAND_VIEWS: LazyLock<ViewSet> = LazyLock::new(|| {
    ViewSet::new(categories().flat_map(|category| (1..=BRANDS).map(move |brand| format!("{category}{brand}"))))
});
static COLOR_VIEWS: LazyLock<ViewSet> = LazyLock::new(|| ViewSet::new(COLORS));
static TYPE_VIEWS: LazyLock<ViewSet> = LazyLock::new(|| {
    words([
        &["STANDARD", "SMALL", "MEDIUM", "LARGE", "ECONOMY", "PROMO"],
        &["ANODIZED", "BURNISHED", "PLATED", "POLISHED", "BRUSHED"],
        &["TIN", "NICKEL", "BRASS", "STEEL", "COPPER"],
    ])
});
static CONTAINER_VIEWS: LazyLock<ViewSet> = LazyLock::new(|| {
    words([&["SM", "LG", "MED", "JUMBO", "WRAP"], &["CASE", "BOX", "BAG", "JAR", "PACK", "PKG", "CAN", "DRUM"]])
});

fn categories() -> impl Iterator<Item = String> {
    (1..=MANUFACTURERS).flat_map(|mfgr| (1..=CATEGORIES).map(move |category| format!("MFGR#{mfgr}{category}")))
}

/// Returns all strings of one word of each list, in order.
fn words<const N: usize>(lists: [&[&str]; N]) -> ViewSet {
    let mut phrases = vec![String::new()];
    for list in lists {
        let separator = if phrases[0].is_empty() { "" } else { " " };
        phrases =
            phrases.iter().flat_map(|start| list.iter().map(move |word| format!("{start}{separator}{word}"))).collect();
    }
    ViewSet::new(phrases)
}

/// Draws three different indices of [`COLORS`].
fn three_colors(draw: &mut Draw) -> [u8; 3] {
    let count = COLORS.len() as u8;
    let first = draw.below_u8(count);
    // The second and third are drawn from the remaining colours, and shifted past the taken ones.
    let mut second = draw.below_u8(count - 1);
    second += u8::from(second >= first);
    let mut third = draw.below_u8(count - 2);
    for taken in [first.min(second), first.max(second)] {
        third += u8::from(third >= taken);
    }
    [first, second, third]
}

/// Returns the parts with the row numbers `rows`.
pub(super) fn batch(rows: Range<u64>) -> Result<RecordBatch> {
    let count = (rows.end - rows.start) as usize;
    let mut names = Strings::with_capacity(count);
    let mut brands: Vec<u16> = Vec::with_capacity(count);
    let mut colors: Vec<u8> = Vec::with_capacity(count);
    let mut types: Vec<u8> = Vec::with_capacity(count);
    let mut sizes: Vec<i32> = Vec::with_capacity(count);
    let mut containers: Vec<u8> = Vec::with_capacity(count);
    for row in rows.clone() {
        let mut stream = Stream::of_row(SEED, row);
        let [color, name_start, name_end] = three_colors(&mut stream.draw());
        let mut draw = stream.draw();
        names.push(|text| {
            text.push_str(COLORS[usize::from(name_start)]);
            text.push(' ');
            text.push_str(COLORS[usize::from(name_end)]);
        });
        colors.push(color);
        brands.push(draw.below(u64::from(MANUFACTURERS * CATEGORIES * BRANDS)) as u16);
        types.push(draw.below_u8(TYPE_VIEWS.len() as u8));
        sizes.push(draw.between(1, 50));
        containers.push(draw.below_u8(CONTAINER_VIEWS.len() as u8));
    }
    let categories: Vec<u16> = brands.iter().map(|brand| brand / BRANDS).collect();
    let manufacturers: Vec<u16> = categories.iter().map(|category| category / CATEGORIES).collect();
    let columns = vec![
        Arc::new(Int32Array::from_iter_values(keys(rows))) as _,
        names.column(),
        MANUFACTURER_VIEWS.column(&manufacturers)?,
        CATEGORY_VIEWS.column(&categories)?,
        BRAND_VIEWS.column(&brands)?,
        COLOR_VIEWS.column(&colors)?,
        TYPE_VIEWS.column(&types)?,
        Arc::new(Int32Array::from(sizes)),
        CONTAINER_VIEWS.column(&containers)?,
    ];
    Ok(RecordBatch::try_new(Arc::clone(&SCHEMA), columns)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colors_of_a_part_differ_and_all_occur() {
        let mut seen = [[false; COLORS.len()]; 3];
        for row in 0..20_000 {
            let colors = three_colors(&mut Stream::of_row(1, row).draw());
            assert!(colors[0] != colors[1] && colors[1] != colors[2] && colors[0] != colors[2]);
            for (place, &color) in colors.iter().enumerate() {
                seen[place][usize::from(color)] = true;
            }
        }
        assert!(seen.iter().flatten().all(|&seen| seen));
    }
}
