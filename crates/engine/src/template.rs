//! `INSERT INTO table [(columns)] VALUES (...)` of literals: rows as they are written, without a plan, which takes many times
//! as long as to store a row.
//!
//! Only what cannot mean anything else than its plan would: whole numbers for numbers, texts for texts, truth values, and NULL
//! where it may be; in each column one kind of them. Whatever else there is in the statement, and whatever might be an error, is
//! left to the plan, and so are its words.
//!
//! A prepared statement is looked at once: its [`Template`] takes the values of its parameters as they are. Values become what
//! the store keeps at once, and no arrays, which would take longer than all the rest.

use std::sync::Arc;

use arrow::datatypes::{DataType, Schema};
use datafusion::sql::sqlparser::ast::{
    Expr, Ident, Insert, ObjectName, ObjectNamePart, Parens, Query, SetExpr, TableObject, UnaryOperator, Value, Values,
};

use crate::catalog::row::{Cell, EncodedRows};
use crate::convert::parse_date;
use crate::parameter;
use crate::snapshot::{Snapshot, Table};

/// The table that an INSERT names and the query of its rows, by which it says no more than what rows there are; `None` for any
/// other.
pub(crate) fn parts(insert: &Insert) -> Option<(&ObjectName, &Query)> {
    // Every field has a name here: one that a later parser knows must be looked at.
    let Insert {
        insert_token: _,
        optimizer_hints,
        or: None,
        ignore: false,
        into: _,
        table: TableObject::TableName(table),
        table_alias: None,
        columns: _,
        overwrite: false,
        source: Some(source),
        assignments,
        partitioned: None,
        after_columns,
        has_table_keyword: _,
        on: None,
        returning: None,
        output: None,
        replace_into: false,
        priority: None,
        insert_alias: None,
        settings: None,
        format_clause: None,
        multi_table_insert_type: None,
        multi_table_into_clauses,
        multi_table_when_clauses,
        multi_table_else_clause: None,
    } = insert
    else {
        return None;
    };
    let is_all = optimizer_hints.is_empty()
        && assignments.is_empty()
        && after_columns.is_empty()
        && multi_table_into_clauses.is_empty()
        && multi_table_when_clauses.is_empty();
    is_all.then_some((table, source))
}

/// What is wrong with a name of a column.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Misnamed<'a> {
    Unknown(&'a str),
    Twice(&'a str),
}

/// Which value of a row is each column's, if the statement names the columns, or none: then it is all of them.
pub(crate) fn places<'a>(
    columns: &'a [String],
    schema: &Schema,
) -> std::result::Result<Vec<Option<usize>>, Misnamed<'a>> {
    if columns.is_empty() {
        return Ok((0..schema.fields().len()).map(Some).collect());
    }
    let mut places = vec![None; schema.fields().len()];
    for (value, name) in columns.iter().enumerate() {
        let (column, _) = schema.column_with_name(name).ok_or(Misnamed::Unknown(name))?;
        if places[column].replace(value).is_some() {
            return Err(Misnamed::Twice(name));
        }
    }
    Ok(places)
}

/// The rows that a statement puts into a table.
pub(crate) fn rows_of(insert: &Insert, snapshot: &Snapshot) -> Option<(Arc<Table>, EncodedRows)> {
    let Plain { table, columns, rows } = plain(insert)?;
    let table = snapshot.table(&table)?;
    let literals = rows.iter().map(|row| row.content.iter().map(literal));
    Some((Arc::clone(table), encoded(literals, &columns, &table.schema)?))
}

/// An `INSERT` of literals and parameters.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    table: String,
    /// Those that are named; none: all of the table.
    columns: Vec<String>,
    rows: Vec<Vec<Slot>>,
}

/// A place in a row of a template.
#[derive(Clone, Debug)]
enum Slot {
    /// From 0.
    Parameter(usize),
    Fixed(parameter::Value),
}

impl Template {
    /// Of a statement whose parameters are `$1`, `$2` ...; `None` for any that is no such `INSERT`.
    pub fn of(insert: &Insert) -> Option<Self> {
        let Plain { table, columns, rows } = plain(insert)?;
        let rows = rows.iter().map(|row| row.content.iter().map(slot).collect()).collect::<Option<_>>()?;
        Some(Self { table, columns, rows })
    }

    /// How many rows it has.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// The rows with values in place of the parameters, as [`rows_of`] has those of the statement with these values in it.
    pub fn rows(&self, values: &[parameter::Value], snapshot: &Snapshot) -> Option<(Arc<Table>, EncodedRows)> {
        let table = snapshot.table(&self.table)?;
        Some((Arc::clone(table), self.encoded(values, &table.schema)?))
    }

    fn encoded(&self, values: &[parameter::Value], schema: &Schema) -> Option<EncodedRows> {
        encoded(self.rows.iter().map(|row| row.iter().map(|slot| slot.value(values))), &self.columns, schema)
    }
}

#[cfg(test)]
impl Template {
    /// With literals in place of its parameters, as far as there are any: the same for all that do the same.
    pub fn filled(&self, literals: &[parameter::Value]) -> String {
        let filled = |slot: &Slot| match slot {
            Slot::Parameter(number) => literals.get(*number).map_or(format!("${number}"), |value| format!("{value:?}")),
            Slot::Fixed(value) => format!("{value:?}"),
        };
        let rows: Vec<Vec<String>> = self.rows.iter().map(|row| row.iter().map(filled).collect()).collect();
        format!("{} {:?} {rows:?}", self.table, self.columns)
    }
}

impl Slot {
    fn value<'a>(&'a self, values: &'a [parameter::Value]) -> Option<Literal<'a>> {
        match self {
            Self::Parameter(number) => given(values.get(*number)?),
            Self::Fixed(value) => given(value),
        }
    }
}

fn slot(expr: &Expr) -> Option<Slot> {
    if let Expr::Value(value) = expr
        && let Value::Placeholder(name) = &value.value
    {
        return name.strip_prefix('$')?.parse::<usize>().ok()?.checked_sub(1).map(Slot::Parameter);
    }
    Some(Slot::Fixed(match literal(expr)? {
        Literal::Null => parameter::Value::Null,
        Literal::Whole(number) => number.into(),
        Literal::Double(number) => number.into(),
        Literal::Text(text) => text.into(),
        Literal::Truth(truth) => truth.into(),
    }))
}

/// An INSERT that has nothing else.
struct Plain<'a> {
    table: String,
    columns: Vec<String>,
    rows: &'a [Parens<Vec<Expr>>],
}

fn plain(insert: &Insert) -> Option<Plain<'_>> {
    let (table, source) = parts(insert)?;
    // Every field has a name here: one that a later parser knows must be looked at.
    let Query {
        with: None,
        body,
        order_by: None,
        limit_clause: None,
        fetch: None,
        locks,
        for_clause: None,
        settings: None,
        format_clause: None,
        pipe_operators,
    } = source
    else {
        return None;
    };
    let SetExpr::Values(Values { explicit_row: false, value_keyword: false, rows }) = &**body else { return None };
    if !(locks.is_empty() && pipe_operators.is_empty()) {
        return None;
    }
    let columns = insert.columns.iter().map(simple_name).collect::<Option<_>>()?;
    Some(Plain { table: simple_name(table)?, columns, rows })
}

/// A name of one word, as names are compared: in lower case unless it is in quotes.
fn simple_name(name: &ObjectName) -> Option<String> {
    match &name.0[..] {
        [ObjectNamePart::Identifier(Ident { value, quote_style: None, .. })] => Some(value.to_ascii_lowercase()),
        [ObjectNamePart::Identifier(Ident { value, quote_style: Some('"'), .. })] => Some(value.clone()),
        _ => None,
    }
}

/// Rows of literals as the store keeps them; `None` if one is not what its column takes.
fn encoded<'a>(
    rows: impl ExactSizeIterator<Item = impl Iterator<Item = Option<Literal<'a>>>>,
    columns: &[String],
    schema: &Schema,
) -> Option<EncodedRows> {
    if rows.len() == 0 {
        return None;
    }
    let (places, fields) = (places(columns, schema).ok()?, schema.fields());
    let values = places.iter().flatten().count();
    let mut encoded = EncodedRows::default();
    // Of each column, once one is there.
    let mut kinds = vec![None; fields.len()];
    let mut row = Vec::with_capacity(values);
    for literals in rows {
        row.clear();
        for literal in literals {
            row.push(literal?);
        }
        if row.len() != values {
            return None;
        }
        let value = |column: usize| {
            let literal = places[column].map_or(Literal::Null, |value| row[value]);
            if let Literal::Null = literal {
                return if fields[column].is_nullable() { Ok(None) } else { Err(()) };
            }
            let kind = std::mem::discriminant(&literal);
            if *kinds[column].get_or_insert(kind) != kind {
                return Err(());
            }
            literal.cell(fields[column].data_type()).map(Some).ok_or(())
        };
        encoded.push(fields.len(), value).ok()?;
    }
    Some(encoded)
}

/// A value that is handled here.
#[derive(Clone, Copy)]
enum Literal<'a> {
    Null,
    Whole(i64),
    /// Given, not written: digits with a point are a decimal number.
    Double(f64),
    Text(&'a str),
    Truth(bool),
}

/// What a parameter is given.
fn given(value: &parameter::Value) -> Option<Literal<'_>> {
    match value {
        parameter::Value::Null => Some(Literal::Null),
        parameter::Value::Integer(number) => Some(Literal::Whole(*number)),
        parameter::Value::Double(number) => Some(Literal::Double(*number)),
        parameter::Value::Text(text) => Some(Literal::Text(text)),
        parameter::Value::Boolean(truth) => Some(Literal::Truth(*truth)),
        parameter::Value::Decimal(_)
        | parameter::Value::Binary(_)
        | parameter::Value::Temporal(..)
        | parameter::Value::List(_)
        | parameter::Value::Struct(_) => None,
    }
}

fn literal(expr: &Expr) -> Option<Literal<'_>> {
    let whole = |digits: &str, sign: &str| format!("{sign}{digits}").parse().ok().map(Literal::Whole);
    match expr {
        Expr::Value(value) => match &value.value {
            Value::Null => Some(Literal::Null),
            Value::Number(digits, false) => whole(digits, ""),
            Value::SingleQuotedString(text) => Some(Literal::Text(text)),
            Value::Boolean(truth) => Some(Literal::Truth(*truth)),
            _ => None,
        },
        Expr::UnaryOp { op: UnaryOperator::Minus, expr } => match &**expr {
            Expr::Value(value) => match &value.value {
                Value::Number(digits, false) => whole(digits, "-"),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    }
}

/// Whether a text is written as dates are: 2024-02-29. There are other ways, which are the plan's to read.
fn is_date(text: &str) -> bool {
    let is_right =
        |(place, byte): (usize, u8)| if matches!(place, 4 | 7) { byte == b'-' } else { byte.is_ascii_digit() };
    text.len() == 10 && text.bytes().enumerate().all(is_right)
}

impl<'a> Literal<'a> {
    /// As a value of a type, by the cast that the plan would carry out; `None` for NULL too.
    fn cell(self, data_type: &DataType) -> Option<Cell<'a>> {
        Some(match (self, data_type) {
            (Self::Whole(number), DataType::Int8) => Cell::Byte(i8::try_from(number).ok()? as u8),
            (Self::Whole(number), DataType::Int16) => Cell::Signed(i16::try_from(number).ok()?.into()),
            (Self::Whole(number), DataType::Int32) => Cell::Signed(i32::try_from(number).ok()?.into()),
            (Self::Whole(number), DataType::Int64) => Cell::Signed(number.into()),
            (Self::Whole(number), DataType::Float64) => Cell::Double(number as f64),
            (Self::Whole(number), DataType::Decimal128(precision, scale)) => {
                let scaled = i128::from(number).checked_mul(10i128.checked_pow(u32::try_from(*scale).ok()?)?)?;
                let is_within = scaled.unsigned_abs() < 10u128.checked_pow((*precision).into())?;
                is_within.then_some(Cell::Signed(scaled))?
            }
            (Self::Double(number), DataType::Float64) => Cell::Double(number),
            (Self::Text(text), DataType::Utf8View) => Cell::Text(text),
            (Self::Text(text), DataType::Date32) if is_date(text) => {
                Cell::Signed(parse_date(text.as_bytes()).ok()?.into())
            }
            (Self::Truth(truth), DataType::Boolean) => Cell::Byte(truth.into()),
            _ => return None,
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use arrow::array::RecordBatch;
    use arrow::datatypes::Field;
    use arrow::util::pretty::pretty_format_batches;
    use datafusion::sql::parser::{DFParser, Statement as DataFusionStatement};
    use datafusion::sql::sqlparser::ast::Statement as Sql;

    use super::*;
    use crate::catalog::row::Decoder;

    /// The INSERT that a text is; `None` for any other statement.
    fn insert(text: &str) -> Option<Insert> {
        let statement = DFParser::parse_sql(text).unwrap().pop_front().unwrap();
        let DataFusionStatement::Statement(sql) = statement else { return None };
        if let Sql::Insert(insert) = *sql { Some(insert) } else { None }
    }

    fn rows_of_text(text: &str) -> Option<RecordBatch> {
        let insert = insert(text)?;
        let Plain { columns, rows, .. } = plain(&insert)?;
        let literals = rows.iter().map(|row| row.content.iter().map(literal));
        encoded(literals, &columns, &schema()).as_ref().map(decoded)
    }

    fn decoded(rows: &EncodedRows) -> RecordBatch {
        let mut decoder = Decoder::new(&schema()).unwrap();
        rows.iter().for_each(|row| decoder.push(row).unwrap());
        decoder.finish().unwrap()
    }

    fn schema() -> Arc<Schema> {
        Arc::new(Schema::new(vec![
            Field::new("a", DataType::Int32, false),
            Field::new("t", DataType::Utf8View, true),
            Field::new("D", DataType::Decimal128(5, 2), true),
        ]))
    }

    #[test]
    fn literals_need_no_plan() {
        let batch = rows_of_text("INSERT INTO x (\"D\", A) VALUES (-12, 1), (NULL, 2)").unwrap();
        let shown = pretty_format_batches(&[batch]).unwrap().to_string();
        let lines: Vec<String> = shown.lines().map(|line| line.replace(' ', "")).collect();
        assert_eq!(lines[3..5], ["|1||-12.00|", "|2|||"]);
        assert_eq!(rows_of_text("INSERT INTO x VALUES (1, 'one', 5)").unwrap().num_rows(), 1);
    }

    #[test]
    fn parameters_are_where_they_are_mentioned() {
        let of = |text: &str| Template::of(&insert(text)?);
        let template = of("INSERT INTO x (t, a) VALUES ($2, $1), ('b', -3), ($2, $3)").unwrap();
        let given = [1.into(), "one".into(), 2.into()];
        let rows = template.encoded(&given, &schema()).unwrap();
        let same = rows_of_text("INSERT INTO x (t, a) VALUES ('one', 1), ('b', -3), ('one', 2)").unwrap();
        assert_eq!(decoded(&rows), same);
        assert!(template.encoded(&given[..2], &schema()).is_none());
        let decimal = [1.into(), parameter::Value::Decimal("1.5".into()), 2.into()];
        assert!(template.encoded(&decimal, &schema()).is_none());
        for text in
            ["INSERT INTO x VALUES ($1 + 1)", "INSERT INTO x SELECT $1", "INSERT INTO x VALUES (CAST($1 AS INT))"]
        {
            assert!(of(text).is_none(), "{text}");
        }
    }

    #[test]
    fn everything_else_does() {
        for text in [
            "INSERT INTO x VALUES (1, 2, 3)",
            "INSERT INTO x VALUES ('1', 'one', 5)",
            "INSERT INTO x VALUES (1, 'one', 5.5)",
            "INSERT INTO x VALUES (1 + 1, 'one', 5)",
            "INSERT INTO x VALUES (NULL, 'one', 5)",
            "INSERT INTO x VALUES (2147483648, 'one', 5)",
            "INSERT INTO x VALUES (1, 'one', 1000)",
            "INSERT INTO x VALUES (1, 'one')",
            "INSERT INTO x VALUES (1, 'one', 5), (2, 'two')",
            "INSERT INTO x (d) VALUES (1)",
            "INSERT INTO x (a, a) VALUES (1, 2)",
            "INSERT INTO x (a, x.t) VALUES (1, 'one')",
            "INSERT INTO x SELECT 1, 'one', 5",
            "INSERT INTO x VALUES (1, 'one', 5) RETURNING a",
            "INSERT INTO x VALUES (1, 'one', 5) ORDER BY 1",
            "INSERT INTO x VALUES (1, 'one', 5) ON CONFLICT DO NOTHING",
            "INSERT OVERWRITE x VALUES (1, 'one', 5)",
        ] {
            assert!(rows_of_text(text).is_none(), "{text}");
        }
    }
}
