//! Lists, structs and maps as text in DuckDB's format: `[1, NULL, a b]`, `{'x': 1, 'y z': ''}`,
//! `{k=v}`. PostgreSQL has neither structs with names nor maps. Its clients receive arrays in
//! braces.
//!
//! 1. Nested values have the format of a cast to VARCHAR; NULL is the bare word.
//! 2. A string that would be read as another value is in quotes, with `\` before `'` and `\`. These
//!    are an empty string, the word NULL, and one with a space at an end or any of `"'(),:=[\]{}`.
//!    So no two values have the same text.
//! 3. A struct's names are always in quotes.
//!
//! Arrow writes nothing for a nested NULL, and has no cast of structs and maps to strings.

use arrow::array::{Array, ArrayRef, AsArray, ListLikeArray, StringArray};
use arrow::compute::cast;
use arrow::datatypes::DataType;

use crate::Result;

/// The characters that require quotes.
const SPECIAL: &[char] = &['"', '\'', '(', ')', ',', ':', '=', '[', '\\', ']', '{', '}'];

/// A function that formats values that are not nested, as a cast to VARCHAR does.
pub(crate) type Plain<'a> = &'a dyn Fn(&ArrayRef) -> Result<ArrayRef>;

/// Returns whether values of a type contain others.
pub(crate) fn is_nested(data_type: &DataType) -> bool {
    use DataType as T;
    match data_type {
        T::Dictionary(_, values) => is_nested(values),
        T::RunEndEncoded(_, values) => is_nested(values.data_type()),
        T::List(_) | T::LargeList(_) | T::FixedSizeList(..) | T::ListView(_) | T::LargeListView(_) => true,
        data_type => matches!(data_type, T::Struct(_) | T::Map(..)),
    }
}

/// Returns the strings of nested values.
pub(crate) fn texts(values: &ArrayRef, plain: Plain<'_>) -> Result<StringArray> {
    written(values, plain).map(StringArray::from)
}

fn written(values: &ArrayRef, plain: Plain<'_>) -> Result<Vec<Option<String>>> {
    use DataType as T;
    match values.data_type() {
        T::List(_) => lists(values.as_list::<i32>(), plain),
        T::LargeList(_) => lists(values.as_list::<i64>(), plain),
        T::FixedSizeList(..) => lists(values.as_fixed_size_list(), plain),
        T::ListView(_) => lists(values.as_list_view::<i32>(), plain),
        T::LargeListView(_) => lists(values.as_list_view::<i64>(), plain),
        T::Struct(_) => structs(values, plain),
        T::Map(..) => maps(values, plain),
        T::Dictionary(_, of) => written(&cast(values, of)?, plain),
        T::RunEndEncoded(_, of) => written(&cast(values, of.data_type())?, plain),
        _ => {
            let texts = plain(values)?;
            let texts = cast(&texts, &T::Utf8)?;
            Ok(texts.as_string::<i32>().iter().map(|text| text.map(String::from)).collect())
        }
    }
}

/// Returns the strings of values within another one.
fn parts(values: &ArrayRef, plain: Plain<'_>) -> Result<Vec<String>> {
    let is_nested = is_nested(values.data_type());
    let part = |text: Option<String>| match text {
        None => "NULL".to_string(),
        Some(text) if !is_nested && needs_quotes(&text) => quoted(&text),
        Some(text) => text,
    };
    Ok(written(values, plain)?.into_iter().map(part).collect())
}

fn lists(lists: &impl ListLikeArray, plain: Plain<'_>) -> Result<Vec<Option<String>>> {
    let items = parts(lists.values(), plain)?;
    let list = |row: usize| lists.is_valid(row).then(|| format!("[{}]", items[lists.element_range(row)].join(", ")));
    Ok((0..lists.len()).map(list).collect())
}

fn structs(values: &ArrayRef, plain: Plain<'_>) -> Result<Vec<Option<String>>> {
    let structs = values.as_struct();
    let members = structs.columns().iter().map(|member| parts(member, plain)).collect::<Result<Vec<_>>>()?;
    let names: Vec<String> = structs.fields().iter().map(|field| quoted(field.name())).collect();
    let one = |row: usize| {
        let fields: Vec<String> =
            names.iter().zip(&members).map(|(name, member)| format!("{name}: {}", member[row])).collect();
        format!("{{{}}}", fields.join(", "))
    };
    Ok((0..structs.len()).map(|row| structs.is_valid(row).then(|| one(row))).collect())
}

fn maps(values: &ArrayRef, plain: Plain<'_>) -> Result<Vec<Option<String>>> {
    let maps = values.as_map();
    let (keys, items) = (parts(maps.keys(), plain)?, parts(maps.values(), plain)?);
    let one = |row: usize| {
        let (from, to) = (maps.value_offsets()[row] as usize, maps.value_offsets()[row + 1] as usize);
        let pairs: Vec<String> =
            keys[from..to].iter().zip(&items[from..to]).map(|(key, item)| format!("{key}={item}")).collect();
        format!("{{{}}}", pairs.join(", "))
    };
    Ok((0..maps.len()).map(|row| maps.is_valid(row).then(|| one(row))).collect())
}

fn needs_quotes(text: &str) -> bool {
    let is_space = |c: char| c.is_ascii_whitespace() || c == '\x0b';
    text.is_empty()
        || text.starts_with(is_space)
        || text.ends_with(is_space)
        || text.contains(SPECIAL)
        || text.eq_ignore_ascii_case("null")
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"))
}
