//! The supplier table. Draws per row: address, then place and telephone number.

use arrow::array::{Int32Array, RecordBatch};
use arrow::datatypes::{DataType, SchemaRef};
use std::ops::Range;
use std::sync::{Arc, LazyLock};

use super::values::{Places, Strings, keys, push_address, push_name, push_phone};
use crate::generate::Result;
use crate::generate::random::Stream;

const SEED: u64 = 0x7373_625f_7375_7070;

pub(super) static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
    super::schema([
        ("s_suppkey", DataType::Int32),
        ("s_name", DataType::Utf8View),
        ("s_address", DataType::Utf8View),
        ("s_city", DataType::Utf8View),
        ("s_nation", DataType::Utf8View),
        ("s_region", DataType::Utf8View),
        ("s_phone", DataType::Utf8View),
    ])
});

/// Returns the suppliers with the row numbers `rows`.
pub(super) fn batch(rows: Range<u64>) -> Result<RecordBatch> {
    let count = (rows.end - rows.start) as usize;
    let mut names = Strings::with_capacity(count);
    let mut addresses = Strings::with_capacity(count);
    let mut phones = Strings::with_capacity(count);
    let mut places = Places::with_capacity(count);
    for row in rows.clone() {
        let mut stream = Stream::of_row(SEED, row);
        names.push(|text| push_name(text, "Supplier#", row + 1));
        addresses.push(|text| push_address(text, &mut stream));
        let mut draw = stream.draw();
        let nation = places.push(&mut draw);
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
    ];
    Ok(RecordBatch::try_new(Arc::clone(&SCHEMA), columns)?)
}
