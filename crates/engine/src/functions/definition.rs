//! The stored form of a function, and the system table of functions.

use std::fmt::Write as _;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field};
use serde::{Deserialize, Serialize};

use crate::catalog::Catalog;
use crate::catalog::names::parse_type;
use crate::error::NEWER;
use crate::identifiers::quoted;
use crate::type_names::{sql_name, type_name, written};
use crate::{Error, ErrorKind, Result};

/// The language of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Language {
    Python,
    Cuda,
}

impl Language {
    /// Returns the name in SQL.
    pub fn name(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::Cuda => "cuda",
        }
    }

    /// Parses a name, in any case.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Python, Self::Cuda].into_iter().find(|language| language.name().eq_ignore_ascii_case(name))
    }

    /// Returns the name for messages.
    pub fn title(self) -> &'static str {
        match self {
            Self::Python => "Python",
            Self::Cuda => "CUDA",
        }
    }
}

/// The treatment of rows with a NULL among the arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OnNull {
    /// The function is not called for them: its value is NULL.
    Null,
    /// The function is called with them.
    Called,
}

/// The scope in which equal arguments have equal values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Behavior {
    /// Always.
    Immutable,
    /// Within a statement.
    Stable,
    /// Nowhere.
    Volatile,
}

impl Behavior {
    /// Returns the name in SQL.
    pub fn name(self) -> &'static str {
        match self {
            Self::Immutable => "immutable",
            Self::Stable => "stable",
            Self::Volatile => "volatile",
        }
    }
}

/// An argument, or a column of a table argument.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Parameter {
    pub name: String,
    /// The type in SQL: [`TABLE`], or that of a value, followed by [`ARRAY`] for an array.
    #[serde(rename = "type")]
    pub type_name: String,
    /// The columns of a table.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub columns: Vec<Parameter>,
}

/// The type of a table argument, and of returned rows.
const TABLE: &str = "TABLE";
/// The suffix of an array type.
const ARRAY: &str = "[]";

impl Parameter {
    /// Creates a parameter of a value type.
    pub fn value(name: &str, type_name: String) -> Self {
        Self { name: name.into(), type_name, columns: Vec::new() }
    }

    /// Creates a table parameter.
    pub fn table(name: &str, columns: Vec<Self>) -> Self {
        Self { name: name.into(), type_name: TABLE.into(), columns }
    }

    /// Returns whether it is a table.
    pub fn is_table(&self) -> bool {
        self.type_name == TABLE
    }

    /// Returns its Arrow type. A table is a struct of its columns.
    pub fn data_type(&self) -> Result<DataType> {
        if !self.is_table() {
            return parse(&self.type_name);
        }
        struct_of(&self.columns)
    }

    /// Returns its SQL text.
    pub fn text(&self, name: &dyn Fn(&str) -> String) -> String {
        match self.is_table() {
            true => format!("{} {}", name(&self.name), table_text(&self.columns, name)),
            false => format!("{} {}", name(&self.name), written(&self.type_name)),
        }
    }
}

fn table_text(columns: &[Parameter], name: &dyn Fn(&str) -> String) -> String {
    let columns: Vec<String> = columns.iter().map(|column| column.text(name)).collect();
    format!("{TABLE}({})", columns.join(", "))
}

fn struct_of(columns: &[Parameter]) -> Result<DataType> {
    let field = |column: &Parameter| Ok(Field::new(&column.name, column.data_type()?, false));
    Ok(DataType::Struct(columns.iter().map(field).collect::<Result<_>>()?))
}

/// Parses the type of a value, or of an array of values.
fn parse(type_name: &str) -> Result<DataType> {
    match type_name.strip_suffix(ARRAY) {
        Some(item) => Ok(DataType::List(Arc::new(Field::new_list_field(parse_type(item)?.arrow(), true)))),
        None => parse_type(type_name).map(|column_type| column_type.arrow()),
    }
}

/// A function.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Function {
    pub language: Language,
    pub arguments: Vec<Parameter>,
    /// The return type in SQL; [`TABLE`] for rows.
    pub returns: String,
    /// The columns of returned rows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub columns: Vec<Parameter>,
    pub on_null: OnNull,
    pub behavior: Behavior,
    pub source: String,
}

impl Function {
    /// Returns the Arrow type of the result. Rows are an array of structs.
    pub fn return_type(&self) -> Result<DataType> {
        if self.columns.is_empty() {
            return parse(&self.returns);
        }
        let rows = struct_of(&self.columns)?;
        Ok(DataType::List(Arc::new(Field::new_list_field(rows, true))))
    }

    /// Returns the SQL text of the result type.
    fn returns(&self, name: &dyn Fn(&str) -> String) -> String {
        match self.columns.as_slice() {
            [] => written(&self.returns).into(),
            columns => table_text(columns, name),
        }
    }

    /// Encodes the function as JSON.
    pub fn encode(&self) -> Result<String> {
        serde_json::to_string(self)
            .map_err(|e| Error::new(ErrorKind::Internal, format!("cannot write a function as JSON: {e}")))
    }

    /// Decodes a function of this name.
    pub fn decode(name: &str, text: &str) -> Result<Self> {
        serde_json::from_str(text).map_err(|e| {
            Error::new(ErrorKind::Corrupt, format!("the function \"{name}\" cannot be read: {e}")).with_hint(NEWER)
        })
    }

    /// Returns the statement that creates the function.
    pub fn statement(&self, name: &str) -> String {
        let arguments: Vec<String> = self.arguments.iter().map(|argument| argument.text(&argument_name)).collect();
        let mut text = format!(
            "CREATE FUNCTION {}({}) RETURNS {} LANGUAGE {}",
            quoted(name),
            arguments.join(", "),
            self.returns(&argument_name),
            self.language.name()
        );
        if self.behavior != Behavior::Volatile {
            let _ = write!(text, " {}", self.behavior.name().to_uppercase());
        }
        if self.on_null == OnNull::Called {
            text += " CALLED ON NULL INPUT";
        }
        // The tag must not occur in the source, nor begin at its end.
        let mut tag = if self.source.ends_with('$') { "f".to_string() } else { String::new() };
        while self.source.contains(&format!("${tag}$")) {
            tag.push('f');
        }
        let _ = write!(text, " AS ${tag}${}${tag}$", self.source);
        text
    }
}

/// Quotes the name of an argument, including the keywords for argument modes.
fn argument_name(name: &str) -> String {
    match name.to_ascii_lowercase().as_str() {
        "in" | "out" | "inout" | "variadic" => format!("\"{name}\""),
        _ => quoted(name),
    }
}

/// Returns the catalog's name of a type, if a language supports it. Only CUDA supports arrays.
pub(crate) fn type_of(data_type: &DataType, language: Language) -> Option<String> {
    match data_type {
        DataType::List(item) if language == Language::Cuda && !item.data_type().is_nested() => {
            type_of(item.data_type(), language).map(|item| item + ARRAY)
        }
        other => onehop_segment::ColumnType::of("", other).ok().map(|column_type| type_name(&column_type)),
    }
}

/// Returns the SQL name of any type.
pub(super) fn name_of(data_type: &DataType) -> String {
    match data_type {
        DataType::List(item) => name_of(item.data_type()) + ARRAY,
        other => written(&sql_name(other)).into(),
    }
}

/// Builds the rows of `onehop_functions`, one for each function.
pub(crate) fn functions(catalog: &Catalog) -> Result<RecordBatch> {
    let all = catalog.functions.iter().map(|(name, text)| Ok((name, Function::decode(name, text)?)));
    let all = all.collect::<Result<Vec<_>>>()?;
    let texts = |of: &dyn Fn(&(&String, Function)) -> String| -> ArrayRef {
        Arc::new(StringArray::from_iter_values(all.iter().map(of)))
    };
    let arguments = |(_, function): &(&String, Function)| {
        let each = function.arguments.iter().map(|argument| argument.text(&str::to_string));
        each.collect::<Vec<_>>().join(", ")
    };
    let on_null = |(_, function): &(&String, Function)| match function.on_null {
        OnNull::Null => "null".into(),
        OnNull::Called => "called".into(),
    };
    Ok(RecordBatch::try_from_iter_with_nullable([
        ("function_name", texts(&|(name, _)| (*name).clone()), false),
        ("language", texts(&|(_, function)| function.language.name().into()), false),
        ("arguments", texts(&arguments), false),
        ("returns", texts(&|(_, function)| function.returns(&str::to_string)), false),
        ("on_null", texts(&on_null), false),
        ("behavior", texts(&|(_, function)| function.behavior.name().into()), false),
        ("definition", texts(&|(name, function)| function.statement(name)), false),
    ])?)
}
