//! Parses the names of column types in the catalog.

use arrow::datatypes::TimeUnit;
use onehop_segment::ColumnType;

use crate::type_names::{SIMPLE, unit_digits};
use crate::{Error, ErrorKind, Result};

/// Parses a name that [`type_name`](crate::type_names::type_name) wrote.
pub(crate) fn parse_type(name: &str) -> Result<ColumnType> {
    let unknown = || Error::new(ErrorKind::Corrupt, format!("the catalog names a type \"{name}\" that does not exist"));
    if let Some((_, simple)) = SIMPLE.iter().find(|(known, _)| *known == name) {
        return Ok(simple.clone());
    }
    if let Some(arguments) = name.strip_prefix("DECIMAL(").and_then(|rest| rest.strip_suffix(')')) {
        let (precision, scale) = arguments.split_once(',').ok_or_else(unknown)?;
        let (precision, scale) = (precision.parse().map_err(|_| unknown())?, scale.parse().map_err(|_| unknown())?);
        return Ok(ColumnType::Decimal { precision, scale });
    }
    let rest = name.strip_prefix("TIMESTAMP(").ok_or_else(unknown)?;
    let (digits, rest) = rest.split_once(')').ok_or_else(unknown)?;
    let units = [TimeUnit::Second, TimeUnit::Millisecond, TimeUnit::Microsecond, TimeUnit::Nanosecond];
    let unit = units.into_iter().find(|unit| unit_digits(*unit).to_string() == digits).ok_or_else(unknown)?;
    let zone = match rest {
        "" => None,
        rest => {
            let zone = rest.strip_prefix(" WITH TIME ZONE '").and_then(|rest| rest.strip_suffix('\''));
            Some(zone.ok_or_else(unknown)?.into())
        }
    };
    Ok(ColumnType::Timestamp { unit, zone })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use arrow::datatypes::{DataType, Field};

    use super::*;
    use crate::type_names::{sql_name, type_name};

    #[test]
    fn names_come_back() {
        let mut types: Vec<ColumnType> = SIMPLE.into_iter().map(|(_, t)| t).collect();
        types.push(ColumnType::Decimal { precision: 15, scale: 2 });
        types.push(ColumnType::Decimal { precision: 38, scale: -3 });
        for unit in [TimeUnit::Second, TimeUnit::Nanosecond] {
            types.push(ColumnType::Timestamp { unit, zone: None });
            types.push(ColumnType::Timestamp { unit, zone: Some("+09:00".into()) });
        }
        for t in types {
            assert_eq!(parse_type(&type_name(&t)).unwrap(), t);
        }
        let item = Arc::new(Field::new("item", DataType::Int64, true));
        let fields = vec![
            Field::new("a", DataType::List(Arc::clone(&item)), true),
            Field::new("B c", DataType::Time64(TimeUnit::Microsecond), true),
        ];
        assert_eq!(sql_name(&DataType::LargeList(item)), "BIGINT[]");
        assert_eq!(sql_name(&DataType::Struct(fields.into())), "STRUCT(a BIGINT[], \"B c\" TIME)");
        assert!(parse_type("DECIMAL(x,2)").is_err());
        assert!(parse_type("GEOMETRY").is_err());
    }
}
