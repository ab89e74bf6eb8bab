//! `CREATE FUNCTION`, with the syntax of PostgreSQL:
//!
//! ```text
//! CREATE [OR REPLACE] FUNCTION name(argument type, ...)
//!     RETURNS {type | TABLE(column type, ...)} LANGUAGE {python | cuda}
//!     [IMMUTABLE | STABLE | VOLATILE]
//!     [CALLED ON NULL INPUT | RETURNS NULL ON NULL INPUT | STRICT] AS $$ ... $$
//! ```
//!
//! The language compiles the source before the function is stored, and an error names the line. So
//! a function can be created only in a process that can run it.

use datafusion::sql::sqlparser::ast::{
    ColumnDef, CreateFunction as SqlCreateFunction, CreateFunctionBody, DataType as SqlType, Expr, FunctionBehavior,
    FunctionCalledOnNull, FunctionReturnType, OperateFunctionArg, Value,
};

use super::{Context, done, new_name};
use crate::catalog::Change;
use crate::functions::{self, Behavior, Function, Language, OnNull, Parameter};
use crate::identifiers::normal;
use crate::query::Done;
use crate::task::spawn_blocking;
use crate::{Error, ErrorKind, Result, arrays, planner};

/// A parsed `CREATE FUNCTION`.
#[derive(Debug)]
pub(super) struct CreateFunction {
    name: String,
    or_replace: bool,
    language: Language,
    arguments: Vec<(String, Given)>,
    returns: Given,
    behavior: Behavior,
    on_null: OnNull,
    source: String,
}

/// The declared type of an argument or of the result.
#[derive(Debug)]
enum Given {
    /// A value of a type.
    Value(SqlType),
    /// A table with these columns.
    Table(Vec<(String, SqlType)>),
}

impl Given {
    fn types(&self) -> impl Iterator<Item = &SqlType> {
        let (value, columns) = match self {
            Self::Value(of) => (Some(of), &[][..]),
            Self::Table(columns) => (None, &columns[..]),
        };
        value.into_iter().chain(columns.iter().map(|(_, of)| of))
    }
}

fn invalid(name: &str, problem: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Invalid, format!("function {name}: {problem}"))
}

pub(super) fn convert(create: SqlCreateFunction) -> Result<CreateFunction> {
    let name = new_name(&create.name)?;
    if create.temporary || create.or_alter {
        return Err(invalid(&name, "it cannot be temporary").with_hint("DROP FUNCTION removes it"));
    }
    const LANGUAGES: &str = "LANGUAGE python, or LANGUAGE cuda";
    let language = match &create.language {
        Some(language) => Language::parse(&language.value)
            .ok_or_else(|| invalid(&name, format!("there is no language {}", language.value)).with_hint(LANGUAGES))?,
        None => return Err(invalid(&name, "its language is missing").with_hint(LANGUAGES)),
    };
    let returns = match create.return_type {
        Some(FunctionReturnType::DataType(returns)) => returns,
        Some(FunctionReturnType::SetOf(_)) => {
            return Err(invalid(&name, "it has one value for each row")
                .with_hint("RETURNS TABLE(a DOUBLE, b DOUBLE) has rows of these columns, in LANGUAGE cuda"));
        }
        None => return Err(invalid(&name, "the type that it returns is missing").with_hint("RETURNS DOUBLE")),
    };
    let arguments = create.args.unwrap_or_default().into_iter().map(|argument| parameter(&name, argument));
    let arguments = arguments.collect::<Result<Vec<_>>>()?;
    for (place, (argument, _)) in arguments.iter().enumerate() {
        if arguments.iter().take(place).any(|(other, _)| other == argument) {
            return Err(invalid(&name, format!("two arguments have the name {argument}")));
        }
    }
    let behavior = match create.behavior {
        Some(FunctionBehavior::Immutable) => Behavior::Immutable,
        Some(FunctionBehavior::Stable) => Behavior::Stable,
        Some(FunctionBehavior::Volatile) | None => Behavior::Volatile,
    };
    let on_null = match create.called_on_null {
        Some(FunctionCalledOnNull::CalledOnNullInput) => OnNull::Called,
        Some(FunctionCalledOnNull::ReturnsNullOnNullInput | FunctionCalledOnNull::Strict) | None => OnNull::Null,
    };
    let returns = match returns {
        SqlType::Table(columns) => Given::Table(named_columns(&name, "what it returns", columns)?),
        other => Given::Value(other),
    };
    let is_table = |given: &Given| matches!(given, Given::Table(_));
    if language != Language::Cuda && (is_table(&returns) || arguments.iter().any(|(_, given)| is_table(given))) {
        return Err(invalid(&name, "functions in CUDA have tables, and no others"));
    }
    if (language, on_null) == (Language::Cuda, OnNull::Called) {
        return Err(invalid(&name, "functions in CUDA are not called on NULL input")
            .with_hint("rows with a NULL among the arguments are NULL; COALESCE gives them a value"));
    }
    let source = match create.function_body {
        Some(
            CreateFunctionBody::AsBeforeOptions { body: Expr::Value(value), link_symbol: None }
            | CreateFunctionBody::AsAfterOptions(Expr::Value(value)),
        ) => text_of(value.value),
        _ => None,
    };
    let source = source.ok_or_else(|| invalid(&name, "its text is missing").with_hint("AS $$ return x + 1 $$"))?;
    Ok(CreateFunction {
        name,
        or_replace: create.or_replace,
        language,
        arguments,
        returns,
        behavior,
        on_null,
        source: settled(&source),
    })
}

fn text_of(value: Value) -> Option<String> {
    match value {
        Value::SingleQuotedString(text) => Some(text),
        Value::DollarQuotedString(text) => Some(text.value),
        _ => None,
    }
}

/// Removes the common indentation of the source. The first line keeps its number.
fn settled(source: &str) -> String {
    let indent = |line: &str| line.len() - line.trim_start_matches([' ', '\t']).len();
    let of_text = || source.lines().filter(|line| !line.trim().is_empty());
    let first = source.lines().next().unwrap_or_default();
    let by = match first.trim().is_empty() {
        true => of_text().map(indent).min().unwrap_or(0),
        // Indentation after the quotes has no meaning.
        false => return [first.trim_start(), &source[first.len()..]].concat(),
    };
    let cut = |line: &str| line.get(by.min(indent(line))..).unwrap_or_default().to_string();
    source.lines().map(cut).collect::<Vec<_>>().join("\n")
}

fn parameter(function: &str, argument: OperateFunctionArg) -> Result<(String, Given)> {
    let Some(name) = &argument.name else {
        return Err(invalid(function, format!("an argument of type {} has no name", argument.data_type)));
    };
    if argument.mode.is_some() || argument.default_expr.is_some() {
        return Err(invalid(function, format!("argument {name} has a mode or a default, which there are none of")));
    }
    // The parser reads a quoted name as a type first, and keeps its quotes.
    let name = match name.value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
        Some(quoted) if name.quote_style.is_none() => quoted.to_string(),
        _ => normal(name),
    };
    if !is_name(&name) {
        return Err(invalid(function, format!("\"{name}\" is no name for an argument: letters, digits and _ are")));
    }
    match argument.data_type {
        SqlType::Table(columns) => {
            let columns = named_columns(function, &format!("argument {name}"), columns)?;
            if columns.iter().any(|(of, _)| of == "rows") {
                return Err(invalid(function, format!("\"rows\" is no name for a column of argument {name}"))
                    .with_hint("that is how many there are"));
            }
            Ok((name, Given::Table(columns)))
        }
        other => Ok((name, Given::Value(other))),
    }
}

/// Returns the names and types of the columns of a table. `what` names that table in errors.
fn named_columns(function: &str, what: &str, columns: Option<Vec<ColumnDef>>) -> Result<Vec<(String, SqlType)>> {
    let columns = columns.unwrap_or_default();
    if columns.is_empty() {
        return Err(invalid(function, format!("{what} is a table without columns"))
            .with_hint("TABLE(x DOUBLE, y DOUBLE) has two"));
    }
    let mut named: Vec<(String, SqlType)> = Vec::with_capacity(columns.len());
    for column in columns {
        let of = normal(&column.name);
        if !is_name(&of) || named.iter().any(|(other, _)| *other == of) {
            return Err(invalid(function, format!("\"{of}\" is no name for a column of {what}"))
                .with_hint("letters, digits and _ are; each name once"));
        }
        if !column.options.is_empty() {
            return Err(invalid(function, format!("column {of} of {what} has more than a name and a type")));
        }
        named.push((of, column.data_type));
    }
    Ok(named)
}

/// Returns whether it is a valid name in each language.
fn is_name(name: &str) -> bool {
    name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') && !name.starts_with(|c: char| c.is_ascii_digit())
}

impl CreateFunction {
    /// Returns the function's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs the statement.
    pub async fn run(self, context: &Context<'_>) -> Result<Done> {
        context.database.check_writable()?;
        let function = self.function(context).await?;
        let (name, replaces) = (self.name, self.or_replace);
        if context.is_own_function(&name)? {
            return Err(invalid(&name, "a function of SQL's has this name").with_hint("choose another name"));
        }
        let host = context.session.function_host(&context.query, &context.session.snapshot());
        let (checked, of) = (function.clone(), name.clone());
        let check = spawn_blocking(move || functions::check(&of, &checked, host));
        check.await.map_err(|e| Error::new(ErrorKind::Internal, format!("a thread has ended: {e}")))??;
        let text = function.encode()?;
        let writing = context.database.writing(&context.settings()).await?;
        context.query.settle()?;
        let ((), commit) = context.database.change(writing, |catalog| {
            if catalog.functions.contains_key(&name) && !replaces {
                let error = Error::new(ErrorKind::AlreadyExists, format!("there is a function \"{name}\" already"));
                return Err(error.with_hint("CREATE OR REPLACE FUNCTION replaces it"));
            }
            catalog.functions.insert(name.clone(), text);
            Ok(((), vec![Change::PutFunction { name: name.clone() }]))
        })?;
        commit.wait(context.query.shared_ledger()).await?;
        Ok(done("CREATE FUNCTION", None))
    }

    /// Checks the types of table columns. A function gets columns as arrays, so they must be types
    /// of array elements.
    fn check_tables(&self, arguments: &[Parameter]) -> Result<()> {
        for Parameter { name, columns, .. } in arguments {
            for column in columns {
                if arrays::element_of(&column.data_type()?).is_none() {
                    let of = &column.name;
                    let message =
                        format!("column {of} of argument {name} is {}: arrays have no such type", column.type_name);
                    return Err(invalid(&self.name, message).with_hint(
                        "they hold numbers and truth values: a table may have CAST(.. AS BIGINT) of a date",
                    ));
                }
            }
        }
        Ok(())
    }

    /// Resolves the types and returns the function to be stored.
    async fn function(&self, context: &Context<'_>) -> Result<Function> {
        // DataFusion maps SQL types to Arrow types when it plans a cast.
        let all = self.arguments.iter().map(|(_, given)| given).chain([&self.returns]).flat_map(Given::types);
        let casts = all.enumerate().map(|(place, sql)| format!("CAST(NULL AS {sql}) AS \"{place}\""));
        let text = format!("SELECT {}", casts.collect::<Vec<_>>().join(", "));
        let plan = planner::plan_text(context.state()?, &text).await?;
        let mut types = plan.schema().fields().iter().map(|field| {
            functions::type_of(field.data_type(), self.language)
                .ok_or_else(|| invalid(&self.name, format!("it cannot take or return {}", field.data_type())))
        });
        let mut next =
            || types.next().unwrap_or_else(|| Err(Error::new(ErrorKind::Internal, "a plan without columns")));
        let mut parameter = |name: &str, given: &Given| {
            Ok(match given {
                Given::Value(_) => Parameter::value(name, next()?),
                Given::Table(columns) => {
                    let column = |(name, _): &(String, SqlType)| Ok(Parameter::value(name, next()?));
                    Parameter::table(name, columns.iter().map(column).collect::<Result<_>>()?)
                }
            })
        };
        let arguments: Vec<Parameter> =
            self.arguments.iter().map(|(name, given)| parameter(name, given)).collect::<Result<_>>()?;
        self.check_tables(&arguments)?;
        let Parameter { type_name: returns, columns, .. } = parameter("", &self.returns)?;
        let Self { language, on_null, behavior, ref source, .. } = *self;
        Ok(Function { language, arguments, returns, columns, on_null, behavior, source: source.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_begin_where_the_first_one_does_and_keep_their_numbers() {
        assert_eq!(settled("\n    a = 1\n    if a:\n        return a\n"), "\na = 1\nif a:\n    return a");
        assert_eq!(settled(" return x "), "return x ");
        assert_eq!(settled("\n\treturn 'a\n  b'"), "\nreturn 'a\n b'");
        assert_eq!(settled(""), "");
    }
}
