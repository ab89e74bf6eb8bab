//! The PostgreSQL types that correspond to ours: their OIDs and displayed names.

use arrow::datatypes::DataType;

/// A type of PostgreSQL.
#[derive(Clone, Copy, Debug)]
pub struct PgType {
    /// The OID of the type.
    pub oid: i64,
    /// The name in `pg_type`.
    pub name: &'static str,
    /// The name in SQL.
    pub sql: &'static str,
    /// The bytes of a value; negative if they vary.
    pub size: i16,
    /// The category of the type, as a letter.
    pub category: &'static str,
    /// The type of an array's items; 0 if the type is not an array.
    pub item: i64,
    /// The type of arrays of it; 0 if there is none.
    pub array: i64,
}

const fn base(
    oid: i64,
    name: &'static str,
    sql: &'static str,
    size: i16,
    category: &'static str,
    array: i64,
) -> PgType {
    PgType { oid, name, sql, size, category, item: 0, array }
}

const fn array(oid: i64, name: &'static str, sql: &'static str, item: i64) -> PgType {
    PgType { oid, name, sql, size: -1, category: "A", item, array: 0 }
}

impl PgType {
    /// Returns PostgreSQL's function that reads or writes its values: `in`, `out`, `recv` or
    /// `send`.
    pub(crate) fn function(&self, does: &str) -> String {
        /// The old types whose functions have no underscore.
        const PLAIN: [&str; 20] = [
            "bool",
            "bytea",
            "char",
            "name",
            "int8",
            "int2",
            "int2vector",
            "int4",
            "regproc",
            "text",
            "oid",
            "oidvector",
            "float4",
            "float8",
            "unknown",
            "bpchar",
            "varchar",
            "regclass",
            "regtype",
            "xid",
        ];
        match self.category {
            "A" if self.item > 0 => format!("array_{does}"),
            _ if PLAIN.contains(&self.name) => format!("{}{does}", self.name),
            _ => format!("{}_{does}", self.name),
        }
    }
}

/// All types.
pub(crate) const TYPES: [PgType; 48] = [
    base(16, "bool", "boolean", 1, "B", 1000),
    base(17, "bytea", "bytea", -1, "U", 1001),
    base(18, "char", "\"char\"", 1, "Z", 1002),
    base(19, "name", "name", 64, "S", 1003),
    base(20, "int8", "bigint", 8, "N", 1016),
    base(21, "int2", "smallint", 2, "N", 1005),
    base(22, "int2vector", "int2vector", -1, "A", 1006),
    base(23, "int4", "integer", 4, "N", 1007),
    base(24, "regproc", "regproc", 4, "N", 1008),
    base(25, "text", "text", -1, "S", 1009),
    base(26, "oid", "oid", 4, "N", 1028),
    base(30, "oidvector", "oidvector", -1, "A", 1013),
    base(114, "json", "json", -1, "U", 199),
    base(700, "float4", "real", 4, "N", 1021),
    base(701, "float8", "double precision", 8, "N", 1022),
    base(705, "unknown", "unknown", -2, "X", 0),
    base(1042, "bpchar", "character", -1, "S", 1014),
    base(1043, "varchar", "character varying", -1, "S", 1015),
    base(1082, "date", "date", 4, "D", 1182),
    base(1083, "time", "time without time zone", 8, "D", 1183),
    base(1114, "timestamp", "timestamp without time zone", 8, "D", 1115),
    base(1184, "timestamptz", "timestamp with time zone", 8, "D", 1185),
    base(1186, "interval", "interval", 16, "T", 1187),
    base(1700, "numeric", "numeric", -1, "N", 1231),
    base(2205, "regclass", "regclass", 4, "N", 2210),
    base(2206, "regtype", "regtype", 4, "N", 2211),
    base(2950, "uuid", "uuid", 16, "U", 2951),
    base(3802, "jsonb", "jsonb", -1, "U", 3807),
    array(199, "_json", "json[]", 114),
    array(1000, "_bool", "boolean[]", 16),
    array(1001, "_bytea", "bytea[]", 17),
    array(1002, "_char", "\"char\"[]", 18),
    array(1003, "_name", "name[]", 19),
    array(1005, "_int2", "smallint[]", 21),
    array(1007, "_int4", "integer[]", 23),
    array(1009, "_text", "text[]", 25),
    array(1015, "_varchar", "character varying[]", 1043),
    array(1016, "_int8", "bigint[]", 20),
    array(1021, "_float4", "real[]", 700),
    array(1022, "_float8", "double precision[]", 701),
    array(1028, "_oid", "oid[]", 26),
    array(1115, "_timestamp", "timestamp without time zone[]", 1114),
    array(1182, "_date", "date[]", 1082),
    array(1183, "_time", "time without time zone[]", 1083),
    array(1185, "_timestamptz", "timestamp with time zone[]", 1184),
    array(1187, "_interval", "interval[]", 1186),
    array(1231, "_numeric", "numeric[]", 1700),
    array(2951, "_uuid", "uuid[]", 2950),
];

/// Returns the OID of the type in which our values are sent, and its modifier: precision and scale
/// of a numeric, -1 for all others. A server sends both to its clients.
pub fn of(data_type: &DataType) -> (i64, i32) {
    let oid = match data_type {
        DataType::Boolean => 16,
        DataType::Int8 | DataType::UInt8 | DataType::Int16 => 21,
        DataType::UInt16 | DataType::Int32 => 23,
        DataType::UInt32 | DataType::Int64 => 20,
        DataType::UInt64 => return (1700, modifier(20, 0)),
        DataType::Float16 | DataType::Float32 => 700,
        DataType::Float64 => 701,
        DataType::Decimal32(p, s) | DataType::Decimal64(p, s) => return (1700, modifier(*p, *s)),
        DataType::Decimal128(p, s) | DataType::Decimal256(p, s) => return (1700, modifier(*p, *s)),
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => 17,
        DataType::Date32 | DataType::Date64 => 1082,
        DataType::Time32(_) | DataType::Time64(_) => 1083,
        DataType::Timestamp(_, None) => 1114,
        DataType::Timestamp(_, Some(_)) => 1184,
        DataType::Interval(_) | DataType::Duration(_) => 1186,
        DataType::Dictionary(_, values) => return of(values),
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            let (item, _) = of(item.data_type());
            by_oid(item).map(|t| if t.array == 0 { t.oid } else { t.array }).unwrap_or(1009)
        }
        _ => 25,
    };
    (oid, -1)
}

fn modifier(precision: u8, scale: i8) -> i32 {
    ((i32::from(precision) << 16) | (i32::from(scale) & 0x7ff)) + 4
}

/// Returns a type by its OID.
pub fn by_oid(oid: i64) -> Option<&'static PgType> {
    TYPES.iter().find(|t| t.oid == oid)
}

/// Returns a type by one of its names.
pub(crate) fn by_name(name: &str) -> Option<&'static PgType> {
    let name = name.trim().to_lowercase();
    let name = name.strip_prefix("pg_catalog.").unwrap_or(&name);
    let name = match name {
        "int" => "int4",
        "float" | "double" => "float8",
        "decimal" => "numeric",
        "string" => "text",
        other => other,
    };
    TYPES.iter().find(|t| t.name == name || t.sql == name)
}

/// Returns the displayed name of a type.
pub(crate) fn format_type(oid: i64, modifier: Option<i32>) -> String {
    let Some(found) = by_oid(oid) else { return if oid == 0 { "-".into() } else { "???".into() } };
    match modifier {
        Some(modifier) if oid == 1700 && modifier >= 4 => {
            let modifier = modifier - 4;
            // The scale is a signed number of eleven bits.
            let scale = ((modifier & 0x7ff) ^ 1024) - 1024;
            format!("numeric({},{scale})", modifier >> 16 & 0xffff)
        }
        Some(modifier) if matches!(oid, 1042 | 1043) && modifier >= 4 => format!("{}({})", found.sql, modifier - 4),
        _ => found.sql.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected names are those of PostgreSQL 15's format_type.
    #[test]
    fn types_are_called_as_postgresql_calls_them() {
        assert_eq!(format_type(1700, Some(modifier(15, 2))), "numeric(15,2)");
        assert_eq!(format_type(1700, Some(modifier(10, -3))), "numeric(10,-3)");
        assert_eq!(format_type(1700, Some(-1)), "numeric");
        assert_eq!(format_type(1184, None), "timestamp with time zone");
        assert_eq!(format_type(1016, None), "bigint[]");
        assert_eq!(format_type(0, None), "-");
        assert_eq!(by_name("pg_catalog.int4").map(|t| t.oid), Some(23));
        assert_eq!(by_name("Double Precision").map(|t| t.oid), Some(701));
    }

    #[test]
    fn items_and_arrays_know_each_other() {
        for t in TYPES.iter().filter(|t| t.item != 0) {
            assert_eq!(by_oid(t.item).map(|item| item.array), Some(t.oid), "{}", t.name);
        }
    }
}
