//! Checks the assumptions of arrow-ipc about a schema.
//!
//! `fb_to_schema` returns no errors: it panics at an invalid width, unit or number of children. The
//! flatbuffers verifier bounds depth, tables and strings. The checks here are those of
//! `arrow_ipc::convert::get_data_type`, type by type, and of the constructors that it calls.

use arrow::datatypes::{DECIMAL32_MAX_PRECISION, DECIMAL64_MAX_PRECISION};
use arrow::datatypes::{DECIMAL128_MAX_PRECISION, DECIMAL256_MAX_PRECISION, Schema};
use arrow::ipc;

use crate::Fault;

type Checked = Result<(), String>;

/// Returns the columns of a schema in a message or a footer.
pub(super) fn schema(found: ipc::Schema<'_>) -> Result<Schema, Fault> {
    if found.endianness() != ipc::Endianness::Little {
        return Err(Fault::Unsupported("its numbers are big-endian, and little-endian ones are read".into()));
    }
    let fields = found.fields().ok_or_else(|| Fault::damaged("its schema has no list of fields"))?;
    for field in fields {
        checked(field).map_err(|reason| {
            let name: String = field.name().unwrap_or_default().chars().take(60).collect();
            Fault::Damaged(format!("its schema has no valid type for column \"{name}\": {reason}"))
        })?;
    }
    Ok(ipc::convert::fb_to_schema(found))
}

fn checked(field: ipc::Field<'_>) -> Checked {
    if let Some(dictionary) = field.dictionary() {
        let keys = dictionary.indexType().ok_or("a dictionary has no type of keys")?;
        integer(keys.bitWidth())?;
    }
    own_type(field)?;
    field.children().into_iter().flatten().try_for_each(checked)
}

fn own_type(field: ipc::Field<'_>) -> Checked {
    let children = field.children().map_or(0, |children| children.len());
    let has = |wanted: usize| match children {
        found if found == wanted => Ok(()),
        found => Err(format!("{found} child fields, and {wanted} are expected")),
    };
    let missing = "its parameters are missing";
    match field.type_type() {
        ipc::Type::Null
        | ipc::Type::Bool
        | ipc::Type::Binary
        | ipc::Type::BinaryView
        | ipc::Type::LargeBinary
        | ipc::Type::Utf8
        | ipc::Type::Utf8View
        | ipc::Type::LargeUtf8
        | ipc::Type::Struct_ => Ok(()),
        ipc::Type::List | ipc::Type::LargeList | ipc::Type::ListView | ipc::Type::LargeListView => has(1),
        ipc::Type::Int => integer(field.type_as_int().ok_or(missing)?.bitWidth()),
        ipc::Type::FixedSizeBinary => width(field.type_as_fixed_size_binary().ok_or(missing)?.byteWidth()),
        ipc::Type::FixedSizeList => {
            width(field.type_as_fixed_size_list().ok_or(missing)?.listSize())?;
            has(1)
        }
        ipc::Type::FloatingPoint => known(field.type_as_floating_point().ok_or(missing)?.precision().variant_name()),
        ipc::Type::Date => known(field.type_as_date().ok_or(missing)?.unit().variant_name()),
        ipc::Type::Timestamp => known(field.type_as_timestamp().ok_or(missing)?.unit().variant_name()),
        ipc::Type::Duration => known(field.type_as_duration().ok_or(missing)?.unit().variant_name()),
        ipc::Type::Interval => known(field.type_as_interval().ok_or(missing)?.unit().variant_name()),
        ipc::Type::Time => time(field.type_as_time().ok_or(missing)?),
        ipc::Type::Decimal => decimal(field.type_as_decimal().ok_or(missing)?),
        ipc::Type::Map => {
            field.type_as_map().ok_or(missing)?;
            has(1)?;
            let entries = field.children().map(|children| children.get(0));
            let is_pair = entries.is_some_and(|entries| {
                entries.type_type() == ipc::Type::Struct_
                    && entries.dictionary().is_none()
                    && entries.children().is_some_and(|pair| pair.len() == 2)
            });
            if is_pair { Ok(()) } else { Err("a map whose entries are not structs of two fields".into()) }
        }
        ipc::Type::RunEndEncoded => {
            has(2)?;
            let ends = field.children().map(|children| children.get(0));
            let is_number = ends.filter(|ends| ends.dictionary().is_none()).and_then(|ends| ends.type_as_int());
            match is_number.map(|number| (number.is_signed(), number.bitWidth())) {
                Some((true, 16 | 32 | 64)) => Ok(()),
                _ => Err("run ends that are not signed integers".into()),
            }
        }
        ipc::Type::Union => union(field.type_as_union().ok_or(missing)?, children),
        other => Err(format!("type number {}", other.0)),
    }
}

fn known(name: Option<&str>) -> Checked {
    name.map(drop).ok_or_else(|| "a unit or a precision that does not exist".into())
}

fn integer(bits: i32) -> Checked {
    if matches!(bits, 8 | 16 | 32 | 64) { Ok(()) } else { Err(format!("an integer of {bits} bits")) }
}

fn width(width: i32) -> Checked {
    if width >= 0 { Ok(()) } else { Err(format!("a width of {width}")) }
}

fn time(time: ipc::Time<'_>) -> Checked {
    match (time.bitWidth(), time.unit()) {
        (32, ipc::TimeUnit::SECOND | ipc::TimeUnit::MILLISECOND)
        | (64, ipc::TimeUnit::MICROSECOND | ipc::TimeUnit::NANOSECOND) => Ok(()),
        (bits, unit) => Err(format!("a time of {bits} bits in unit {}", unit.0)),
    }
}

fn decimal(decimal: ipc::Decimal<'_>) -> Checked {
    let most = match decimal.bitWidth() {
        32 => DECIMAL32_MAX_PRECISION,
        64 => DECIMAL64_MAX_PRECISION,
        128 => DECIMAL128_MAX_PRECISION,
        256 => DECIMAL256_MAX_PRECISION,
        bits => return Err(format!("a decimal of {bits} bits")),
    };
    let (precision, scale) = (decimal.precision(), decimal.scale());
    let is_scale = scale <= precision && i8::try_from(scale).is_ok();
    match (1..=i32::from(most)).contains(&precision) && is_scale {
        true => Ok(()),
        false => Err(format!("a decimal of precision {precision} and scale {scale}")),
    }
}

fn union(union: ipc::Union<'_>, children: usize) -> Checked {
    known(union.mode().variant_name())?;
    let ids: Vec<i32> = match union.typeIds() {
        Some(ids) => ids.iter().collect(),
        None => (0..i32::try_from(children).unwrap_or(i32::MAX)).collect(),
    };
    let distinct: std::collections::HashSet<&i32> = ids.iter().collect();
    let are_ids = ids.len() == children && distinct.len() == ids.len() && ids.iter().all(|id| (0..128).contains(id));
    if are_ids { Ok(()) } else { Err(format!("a union of {children} fields with other type ids")) }
}
