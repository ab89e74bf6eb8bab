//! The customer table. Draws per row: address, then place, segment and telephone number.

use arrow::array::{Int32Array, RecordBatch};
use arrow::datatypes::{DataType, SchemaRef};
use std::ops::Range;
use std::sync::{Arc, LazyLock};

use super::values::{Places, Strings, keys, push_address, push_name, push_phone};
use crate::generate::Result;
use crate::generate::random::Stream;
use crate::generate::views::ViewSet;

const SEED: u64 = 0x7373_625f_6375_7374;

pub(super) static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
    super::schema([
        ("c_custkey", DataType::Int32),
        ("c_name", DataType::Utf8View),
        ("c_address", DataType::Utf8View),
        ("c_city", DataType::Utf8View),
        ("c_nation", DataType::Utf8View),
        ("c_region", DataType::Utf8View),
        ("c_phone", DataType::Utf8View),
        ("c_mktsegment", DataType::Utf8View),
    ])
});

static SEGMENTS: LazyLock<ViewSet> =
    LazyLock::new(|| ViewSet::new(["AUTOMOBILE", "BUILDING", "FURNITURE", "HOUSEHOLD", "MACHINERY"]));

/// Returns the customers with the row numbers `rows`.
pub(super) fn batch(rows: Range<u64>) -> Result<RecordBatch> {
    let count = (rows.end - rows.start) as usize;
    let mut names = Strings::with_capacity(count);
    let mut addresses = Strings::with_capacity(count);
    let mut phones = Strings::with_capacity(count);
    let mut places = Places::with_capacity(count);
    let mut segments: Vec<u8> = Vec::with_capacity(count);
    for row in rows.clone() {
        let mut stream = Stream::of_row(SEED, row);
        names.push(|text| push_name(text, "Customer#", row + 1));
        addresses.push(|text| push_address(text, &mut stream));
        let mut draw = stream.draw();
        let nation = places.push(&mut draw);
        segments.push(draw.below_u8(SEGMENTS.len() as u8));
        phones.push(|text| push_phone(text, nation, &mut draw));
    }
    let [cities, nations, regions] = places.columns()?;
    let columns = vec![
        Arc::new(Int32Array::from_iter_values(keys(rows))) as _,
        names.column(),
        addresses.column(),
        cities,
        nations,
        regions,
        phones.column(),
        SEGMENTS.column(&segments)?,
    ];
    Ok(RecordBatch::try_new(Arc::clone(&SCHEMA), columns)?)
}
