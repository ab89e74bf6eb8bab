//! A function as the catalog keeps it, and the system table of functions.

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

/// What it is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Language {
    Python,
    Cuda,
}

impl Language {
    pub fn name(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::Cuda => "cuda",
        }
    }

    /// Of its name, in whatever case.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Python, Self::Cuda].into_iter().find(|language| language.name().eq_ignore_ascii_case(name))
    }

    /// As it is written.
    pub fn title(self) -> &'static str {
        match self {
            Self::Python => "Python",
            Self::Cuda => "CUDA",
        }
    }
}

/// What becomes of rows with a NULL among the arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OnNull {
    /// The function does not see them: its value is NULL there.
    Null,
    /// It is called with them.
    Called,
}

/// Whether equal arguments have equal values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Behavior {
    /// Always.
    Immutable,
    /// Within a statement.
    Stable,
    /// Not even there.
    Volatile,
}

impl Behavior {
    pub fn name(self) -> &'static str {
        match self {
            Self::Immutable => "immutable",
            Self::Stable => "stable",
            Self::Volatile => "volatile",
        }
    }
}

/// An argument, or a column of one that is a table.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Parameter {
    pub name: String,
    /// Its type in SQL's words: [`TABLE`], or that of a value, with [`ARRAY`] behind it if it is an array of them.
    #[serde(rename = "type")]
    pub type_name: String,
    /// Of a table.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub columns: Vec<Parameter>,
}

/// The type of an argument that is a table, and of rows that come back.
const TABLE: &str = "TABLE";
/// What follows the type of an array's items.
const ARRAY: &str = "[]";

impl Parameter {
    pub fn value(name: &str, type_name: String) -> Self {
        Self { name: name.into(), type_name, columns: Vec::new() }
    }

    pub fn table(name: &str, columns: Vec<Self>) -> Self {
        Self { name: name.into(), type_name: TABLE.into(), columns }
    }

    pub fn is_table(&self) -> bool {
        self.type_name == TABLE
    }

    /// Its type as Arrow has it; a table is a struct of its columns.
    pub fn data_type(&self) -> Result<DataType> {
        if !self.is_table() {
            return parse(&self.type_name);
        }
        struct_of(&self.columns)
    }

    /// As it is written.
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

/// The type of a value, or of an array of them.
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
    /// Its type in SQL's words; [`TABLE`] for rows.
    pub returns: String,
    /// Of the rows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub columns: Vec<Parameter>,
    pub on_null: OnNull,
    pub behavior: Behavior,
    pub source: String,
}

impl Function {
    /// What comes back, as Arrow has it; rows are an array of structs.
    pub fn return_type(&self) -> Result<DataType> {
        if self.columns.is_empty() {
            return parse(&self.returns);
        }
        let rows = struct_of(&self.columns)?;
        Ok(DataType::List(Arc::new(Field::new_list_field(rows, true))))
    }

    /// What comes back, in SQL's words.
    fn returns(&self, name: &dyn Fn(&str) -> String) -> String {
        match self.columns.as_slice() {
            [] => written(&self.returns).into(),
            columns => table_text(columns, name),
        }
    }

    pub fn encode(&self) -> Result<String> {
        serde_json::to_string(self)
            .map_err(|e| Error::new(ErrorKind::Internal, format!("cannot write a function as JSON: {e}")))
    }

    pub fn decode(name: &str, text: &str) -> Result<Self> {
        serde_json::from_str(text).map_err(|e| {
            Error::new(ErrorKind::Corrupt, format!("the function \"{name}\" cannot be read: {e}")).with_hint(NEWER)
        })
    }

    /// The statement that makes it.
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
        // A tag that the text does not have, nor begins at its end.
        let mut tag = if self.source.ends_with('$') { "f".to_string() } else { String::new() };
        while self.source.contains(&format!("${tag}$")) {
            tag.push('f');
        }
        let _ = write!(text, " AS ${tag}${}${tag}$", self.source);
        text
    }
}

/// A name as it stands before a type, where the words for modes are none.
fn argument_name(name: &str) -> String {
    match name.to_ascii_lowercase().as_str() {
        "in" | "out" | "inout" | "variadic" => format!("\"{name}\""),
        _ => quoted(name),
    }
}

/// A type as the catalog names it, if a language has it: arrays are CUDA's.
pub(crate) fn type_of(data_type: &DataType, language: Language) -> Option<String> {
    match data_type {
        DataType::List(item) if language == Language::Cuda && !item.data_type().is_nested() => {
            type_of(item.data_type(), language).map(|item| item + ARRAY)
        }
        other => onehop_segment::ColumnType::of("", other).ok().map(|column_type| type_name(&column_type)),
    }
}

/// The name of any type, as it is written.
pub(super) fn name_of(data_type: &DataType) -> String {
    match data_type {
        DataType::List(item) => name_of(item.data_type()) + ARRAY,
        other => written(&sql_name(other)).into(),
    }
}

/// `onehop_functions`: a row for each function.
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
