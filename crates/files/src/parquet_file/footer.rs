//! The footer of a Parquet file.

use arrow::datatypes::DataType;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use parquet::arrow::{ARROW_SCHEMA_META_KEY, parquet_to_arrow_schema};
use parquet::basic::{ConvertedType, LogicalType, Type};
use parquet::file::metadata::{
    ColumnChunkMetaData, FileMetaData, ParquetMetaData, ParquetMetaDataBuilder, ParquetMetaDataReader, RowGroupMetaData,
};

use super::thrift::{Kind, List, Walk, Walked};
use crate::{Fault, Memory, arrow_ipc};

/// The bytes of the footer's length and the magic behind it.
pub const FOOTER_TAIL_BYTES: u64 = 8;
/// The maximum row groups that parquet's reader can number.
const MOST_ROW_GROUPS: usize = i16::MAX as usize;
/// The maximum nesting of groups in a schema. A list has two or three.
const MOST_SCHEMA_DEPTH: usize = 128;
/// The arrays of statistics: least and greatest values, and those of a file while they are
/// compared.
const STATISTICS: u64 = 4;
/// The digits of a decimal of 16 bytes.
const MOST_DIGITS: i32 = 38;
/// The header of an empty list of structs.
const NO_STRUCTS: u8 = 0x0C;

/// The location of the footer of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tail {
    /// The bytes of the file before it.
    pub offset: u64,
    /// The number of its bytes.
    pub len: u64,
}

/// Reads the last bytes of a file of this size.
///
/// # Errors
/// If they are not those of a Parquet file.
pub fn tail(bytes: [u8; FOOTER_TAIL_BYTES as usize], size: u64) -> Result<Tail, Fault> {
    let [a, b, c, d, magic @ ..] = bytes;
    match &magic {
        b"PAR1" => {}
        b"PARE" => return Err(Fault::Unsupported("its footer is encrypted".into())),
        _ => return Err(Fault::damaged("it does not end with PAR1: it may be cut off")),
    }
    let len = u64::from(u32::from_le_bytes([a, b, c, d]));
    let offset = size.checked_sub(FOOTER_TAIL_BYTES).and_then(|end| end.checked_sub(len));
    let offset = offset.filter(|offset| *offset >= 4);
    let offset = offset.ok_or_else(|| Fault::Damaged(format!("its footer declares {len} bytes of {size}")))?;
    Ok(Tail { offset, len })
}

/// The result of a walk of a footer.
#[derive(Debug, Default)]
pub(super) struct Outline {
    leaves: usize,
    /// The start of the list of row groups.
    pub list_at: usize,
    /// The start of its elements.
    pub groups_from: usize,
    /// The ends of the row groups.
    pub groups: Vec<usize>,
    is_untyped: bool,
}

/// Decodes the footer of a file of this size. The account holds the memory of the metadata.
///
/// # Errors
/// If the footer is damaged, or points outside of the file.
pub fn footer(bytes: &[u8], size: u64, memory: &mut dyn Memory) -> Result<ParquetMetaData, Fault> {
    let outline = outline(bytes)?;
    let chunks = (outline.leaves as u64).saturating_mul(outline.groups.len() as u64);
    let each = (size_of::<ColumnChunkMetaData>() + size_of::<RowGroupMetaData>()) as u64;
    let needed = chunks.saturating_mul(each).saturating_add(bytes.len() as u64);
    let refused = |refused| Fault::Memory { what: "the footer".into(), bytes: needed, refused };
    memory.resize(needed).map_err(refused)?;
    let metadata = with_rows(decoded(bytes, &outline)?);
    check(&metadata, size)?;
    check_arrow_schema(&metadata)?;
    let file = metadata.file_metadata();
    let types = parquet_to_arrow_schema(file.schema_descr(), file.key_value_metadata())?;
    let row = types.fields().iter().map(|field| row_bytes(field.data_type())).fold(0, u64::saturating_add);
    let groups = metadata.row_groups().len() as u64;
    let needed = needed.saturating_add(row.saturating_mul(groups + 1).saturating_mul(STATISTICS));
    let refused = |refused| Fault::Memory { what: "the statistics of its columns".into(), bytes: needed, refused };
    memory.resize(needed).map_err(refused)?;
    Ok(metadata)
}

/// Returns the minimum bytes of a row. A fixed-length type takes them in a NULL row as well, and
/// statistics have a row for each row group.
fn row_bytes(data_type: &DataType) -> u64 {
    match data_type {
        DataType::FixedSizeList(item, len) => u64::from(len.unsigned_abs()).saturating_mul(row_bytes(item.data_type())),
        DataType::FixedSizeBinary(len) => u64::from(len.unsigned_abs()),
        DataType::Struct(fields) => {
            fields.iter().map(|field| row_bytes(field.data_type())).fold(0, u64::saturating_add)
        }
        // Other types are insignificant.
        _ => 1,
    }
}

/// Checks the Arrow schema in a footer. Parquet's reader converts it by arrow-ipc, and ignores
/// bytes that are not a message.
fn check_arrow_schema(metadata: &ParquetMetaData) -> Result<(), Fault> {
    let pairs = metadata.file_metadata().key_value_metadata().into_iter().flatten();
    for text in pairs.filter(|pair| pair.key == ARROW_SCHEMA_META_KEY).filter_map(|pair| pair.value.as_ref()) {
        let Ok(bytes) = BASE64_STANDARD.decode(text) else { continue };
        arrow_ipc::check_schema(&bytes).map_err(|fault| Fault::Damaged(format!("its Arrow schema: {fault}")))?;
    }
    Ok(())
}

pub(super) fn outline(bytes: &[u8]) -> Result<Outline, Fault> {
    let mut outline = Outline::default();
    let mut depth = Ok(());
    let mut walk = Walk::new(bytes);
    let walked = walk.fields(|walk, id, kind| {
        match (id, kind) {
            (2, Kind::List) => depth = schema(walk, &mut outline)?,
            (4, Kind::List) => row_groups(walk, &mut outline)?,
            _ => return Ok(false),
        }
        Ok(true)
    });
    walked.map_err(|broken| Fault::Damaged(format!("its footer: {broken}")))?;
    depth?;
    Ok(outline)
}

/// Counts the leaves of a schema, and bounds its depth.
fn schema(walk: &mut Walk<'_>, outline: &mut Outline) -> Walked<Result<(), Fault>> {
    let list = walk.list()?;
    // The number of missing children of each open group.
    let mut open: Vec<i64> = Vec::new();
    let mut depth = Ok(());
    for _ in 0..list.len {
        let mut children = 0;
        walk.fields(|walk, id, kind| {
            let is_children = id == 5 && kind == Kind::Integer;
            if is_children {
                children = walk.integer()?;
            }
            Ok(is_children)
        })?;
        if let Some(missing) = open.last_mut() {
            *missing -= 1;
        }
        match children > 0 {
            true => open.push(children),
            false => outline.leaves += 1,
        }
        while open.pop_if(|missing| *missing <= 0).is_some() {}
        if open.len() > MOST_SCHEMA_DEPTH {
            depth = Err(Fault::Unsupported(format!(
                "its schema has more than {MOST_SCHEMA_DEPTH} groups within each other"
            )));
            open.truncate(1);
        }
    }
    Ok(depth)
}

fn row_groups(walk: &mut Walk<'_>, outline: &mut Outline) -> Walked<()> {
    outline.list_at = walk.position();
    let List { kind, len } = walk.list()?;
    outline.is_untyped = kind.is_none();
    outline.groups_from = walk.position();
    outline.groups.clear();
    for _ in 0..len {
        walk.skip_element(kind.unwrap_or(Kind::Struct))?;
        outline.groups.push(walk.position());
    }
    Ok(())
}

fn decoded(bytes: &[u8], outline: &Outline) -> Result<ParquetMetaData, Fault> {
    if outline.groups.len() <= MOST_ROW_GROUPS && !outline.is_untyped {
        return Ok(ParquetMetaDataReader::decode_metadata(bytes)?);
    }
    let behind = outline.groups.last().copied().unwrap_or(outline.groups_from);
    let mut all: Vec<RowGroupMetaData> = Vec::with_capacity(outline.groups.len());
    let mut first = None;
    let mut from = outline.groups_from;
    let parts: Vec<&[usize]> = outline.groups.chunks(MOST_ROW_GROUPS).collect();
    for part in if parts.is_empty() { vec![&[][..]] } else { parts } {
        let to = part.last().copied().unwrap_or(from);
        let header = list_header(part.len());
        let footer = [&bytes[..outline.list_at], &header, &bytes[from..to], &bytes[behind..]].concat();
        let metadata = ParquetMetaDataReader::decode_metadata(&footer)?;
        all.extend(metadata.row_groups().iter().cloned());
        first.get_or_insert(metadata);
        from = to;
    }
    let first = first.ok_or_else(|| Fault::damaged("its footer has no row groups"))?;
    Ok(ParquetMetaDataBuilder::new(first.file_metadata().clone()).set_row_groups(all).build())
}

/// Returns the metadata with the rows of its row groups, if a writer has left the file's at 0.
fn with_rows(metadata: ParquetMetaData) -> ParquetMetaData {
    let file = metadata.file_metadata();
    let rows = metadata.row_groups().iter().map(RowGroupMetaData::num_rows).fold(0, i64::saturating_add);
    if file.num_rows() != 0 || rows == 0 {
        return metadata;
    }
    let file = FileMetaData::new(
        file.version(),
        rows,
        file.created_by().map(str::to_string),
        file.key_value_metadata().cloned(),
        file.schema_descr_ptr(),
        file.column_orders().cloned(),
    );
    ParquetMetaDataBuilder::new(file).set_row_groups(metadata.row_groups().to_vec()).build()
}

/// Returns the header of a list of `len` structs.
pub(super) fn list_header(len: usize) -> Vec<u8> {
    match u8::try_from(len) {
        Ok(len @ 0..=14) => vec![(len << 4) | NO_STRUCTS],
        _ => {
            let (mut header, mut rest) = (vec![0xF0 | NO_STRUCTS], len);
            while rest > 0x7F {
                header.push((rest & 0x7F) as u8 | 0x80);
                rest >>= 7;
            }
            header.push(rest as u8);
            header
        }
    }
}

/// Checks that all locations in a footer lie in a file of this size.
fn check(metadata: &ParquetMetaData, size: u64) -> Result<(), Fault> {
    let file_rows = metadata.file_metadata().num_rows();
    let mut rows = 0_i64;
    for (at, group) in metadata.row_groups().iter().enumerate() {
        let damaged = |reason: String| Fault::Damaged(format!("row group {at}: {reason}"));
        if group.num_rows() < 0 {
            return Err(damaged(format!("{} rows", group.num_rows())));
        }
        rows = rows.checked_add(group.num_rows()).ok_or_else(|| damaged("the rows add up to too many".into()))?;
        for column in group.columns() {
            let wrong = column_fault(column, group.num_rows(), size);
            wrong.map_or(Ok(()), |reason| Err(damaged(format!("column {}: {reason}", column.column_path()))))?;
        }
    }
    match rows == file_rows {
        true => Ok(()),
        false => Err(Fault::Damaged(format!("its footer declares {file_rows} rows, and its row groups {rows}"))),
    }
}

/// Returns the error of a column chunk, if any.
fn column_fault(column: &ColumnChunkMetaData, rows: i64, size: u64) -> Option<String> {
    let within = |what: &str, offset: i64, len: i64| {
        let end = u64::try_from(offset).ok().zip(u64::try_from(len).ok());
        let is_within = end.and_then(|(offset, len)| offset.checked_add(len)).is_some_and(|end| end <= size);
        (!is_within).then(|| format!("{what} of {len} bytes at {offset}, in a file of {size}"))
    };
    let start = column.dictionary_page_offset().unwrap_or(column.data_page_offset());
    let index = |what, offset: Option<i64>, len: Option<i32>| within(what, offset?, len.unwrap_or(0).into());
    let is_flat = column.column_descr().max_rep_level() == 0;
    if column.num_values() < 0 || (is_flat && column.num_values() != rows) {
        return Some(format!("{} values in {rows} rows", column.num_values()));
    }
    if column.uncompressed_size() < 0 {
        return Some(format!("{} uncompressed bytes", column.uncompressed_size()));
    }
    within("pages", start, column.compressed_size())
        .or_else(|| within("a page", column.data_page_offset(), 0))
        .or_else(|| index("a column index", column.column_index_offset(), column.column_index_length()))
        .or_else(|| index("an offset index", column.offset_index_offset(), column.offset_index_length()))
        .or_else(|| index("a bloom filter", column.bloom_filter_offset(), column.bloom_filter_length()))
        .or_else(|| statistics_fault(column))
}

/// Returns the error of the statistics of a decimal column, if any. Parquet's reader asserts that
/// they have at least one byte, and at most as many as fit in the decimal.
fn statistics_fault(column: &ColumnChunkMetaData) -> Option<String> {
    let (statistics, descriptor) = (column.statistics()?, column.column_descr());
    let is_decimal = matches!(descriptor.logical_type_ref(), Some(LogicalType::Decimal(_)))
        || descriptor.converted_type() == ConvertedType::DECIMAL;
    let most = match descriptor.physical_type() {
        Type::FIXED_LEN_BYTE_ARRAY => usize::try_from(descriptor.type_length()).unwrap_or(0),
        Type::BYTE_ARRAY if descriptor.type_precision() > MOST_DIGITS => 32,
        Type::BYTE_ARRAY => 16,
        _ => return None,
    };
    let ends = [statistics.min_bytes_opt(), statistics.max_bytes_opt()];
    let wrong = ends.into_iter().flatten().find(|bytes| is_decimal && !(1..=most).contains(&bytes.len()))?;
    Some(format!("statistics of {} bytes, of a decimal of {most}", wrong.len()))
}
