//! Functions that PostgreSQL's clients call about a database and a session. They are computed row
//! by row, because catalogs have few rows.
//!
//! - All statements share them. They read the state of a statement from its configuration
//!   ([`about`]), which DataFusion passes to every call, including those during planning.
//! - Functions of objects use the statement's snapshot.
//! - Functions of objects that the engine lacks, such as comments and triggers, return NULL, as
//!   PostgreSQL does for an object without them.

use std::any::Any;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, Field};
use chrono::{DateTime, Utc};
use datafusion::common::config::{ConfigEntry, ConfigExtension, ConfigOptions, ExtensionOptions};
use datafusion::common::{DataFusionError, Result as DataFusionResult, ScalarValue};
use datafusion::execution::{FunctionRegistry, SessionState};
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, TypeSignature, Volatility,
};

use super::Scope;
use super::objects::{self, Kind, relations};
use super::parameters::SERVER_VERSION;
use super::patterns;
use crate::pg_types::types;
use crate::{Error, ErrorKind, Result, Rule};

/// The function that converts a text to the OID of a relation.
pub(crate) const REGCLASS_IN: &str = "__pg_regclass_in";
/// The function that converts the OID of a relation to its name.
pub(crate) const REGCLASS_OUT: &str = "__pg_regclass_out";
/// The function that converts a text to the OID of a type.
pub(crate) const REGTYPE_IN: &str = "__pg_regtype_in";

/// The function that rewrites a LIKE pattern with another escape character to backslashes.
pub(crate) const LIKE_PATTERN: &str = "__pg_like_pattern";

/// The function that rewrites a SIMILAR TO pattern to a regular expression.
pub(crate) const SIMILAR_PATTERN: &str = "__pg_similar_pattern";

/// The function that refuses a format of dates and times.
pub(crate) const UNKNOWN_FORMAT: &str = "__pg_unknown_format";

/// A function of one value per argument.
type Body = fn(&Scope, &[ScalarValue]) -> Result<ScalarValue>;

/// The return type of a function.
#[derive(Clone, Copy, Debug)]
enum Returns {
    Text,
    Number,
    Integer,
    Truth,
    Texts,
}

impl Returns {
    fn data_type(self) -> DataType {
        match self {
            Self::Text => DataType::Utf8,
            Self::Number => DataType::Int64,
            Self::Integer => DataType::Int32,
            Self::Truth => DataType::Boolean,
            Self::Texts => DataType::List(Arc::new(Field::new("item", DataType::Utf8, true))),
        }
    }
}

const FUNCTIONS: &[(&str, Returns, Body)] = &[
    (REGCLASS_IN, Returns::Number, regclass_in),
    (REGCLASS_OUT, Returns::Text, regclass_out),
    (REGTYPE_IN, Returns::Number, regtype_in),
    (LIKE_PATTERN, Returns::Text, |_, values| pattern(values, "LIKE", patterns::escaped)),
    (SIMILAR_PATTERN, Returns::Text, |_, values| pattern(values, "SIMILAR TO", patterns::regular)),
    (UNKNOWN_FORMAT, Returns::Text, unknown_format),
    ("to_regclass", Returns::Number, to_regclass),
    ("to_regtype", Returns::Number, to_regtype),
    ("version", Returns::Text, |_, _| {
        Ok(text(format!("PostgreSQL {SERVER_VERSION}, an analytical engine that speaks PostgreSQL's protocol")))
    }),
    ("current_schema", Returns::Text, |_, _| Ok(text(crate::identifiers::SCHEMA))),
    ("current_schemas", Returns::Texts, current_schemas),
    ("current_database", Returns::Text, |scope, _| Ok(text(&scope.client.database))),
    ("current_catalog", Returns::Text, |scope, _| Ok(text(&scope.client.database))),
    ("current_user", Returns::Text, |scope, _| Ok(text(&scope.client.user))),
    ("session_user", Returns::Text, |scope, _| Ok(text(&scope.client.user))),
    ("current_role", Returns::Text, |scope, _| Ok(text(&scope.client.user))),
    ("user", Returns::Text, |scope, _| Ok(text(&scope.client.user))),
    ("pg_backend_pid", Returns::Integer, |scope, _| Ok(ScalarValue::Int32(Some(scope.client.number)))),
    ("pg_is_in_recovery", Returns::Truth, |_, _| Ok(truth(false))),
    ("current_setting", Returns::Text, current_setting),
    ("set_config", Returns::Text, set_config),
    ("format_type", Returns::Text, format_type),
    ("pg_get_userbyid", Returns::Text, |scope, _| Ok(text(&scope.client.user))),
    ("pg_encoding_to_char", Returns::Text, |_, _| Ok(text("UTF8"))),
    ("pg_table_is_visible", Returns::Truth, is_visible),
    ("pg_collation_is_visible", Returns::Truth, |_, _| Ok(truth(true))),
    ("pg_my_temp_schema", Returns::Number, |_, _| Ok(number(0))),
    ("pg_type_is_visible", Returns::Truth, |_, _| Ok(truth(true))),
    ("pg_function_is_visible", Returns::Truth, |_, _| Ok(truth(true))),
    ("pg_relation_is_publishable", Returns::Truth, |_, _| Ok(truth(false))),
    ("pg_get_expr", Returns::Text, |_, _| Ok(ScalarValue::Utf8(None))),
    ("pg_get_indexdef", Returns::Text, |_, _| Ok(ScalarValue::Utf8(None))),
    ("pg_get_constraintdef", Returns::Text, |_, _| Ok(ScalarValue::Utf8(None))),
    ("pg_get_partkeydef", Returns::Text, |_, _| Ok(ScalarValue::Utf8(None))),
    ("pg_get_serial_sequence", Returns::Text, |_, _| Ok(ScalarValue::Utf8(None))),
    ("pg_get_viewdef", Returns::Text, view_definition),
    ("pg_get_function_result", Returns::Text, function_result),
    ("pg_get_function_arguments", Returns::Text, function_arguments),
    ("pg_get_function_identity_arguments", Returns::Text, function_arguments),
    ("obj_description", Returns::Text, |_, _| Ok(ScalarValue::Utf8(None))),
    ("col_description", Returns::Text, |_, _| Ok(ScalarValue::Utf8(None))),
    ("shobj_description", Returns::Text, |_, _| Ok(ScalarValue::Utf8(None))),
    ("pg_relation_size", Returns::Number, relation_size),
    ("pg_table_size", Returns::Number, relation_size),
    ("pg_total_relation_size", Returns::Number, relation_size),
    ("pg_indexes_size", Returns::Number, |_, _| Ok(number(0))),
    ("pg_database_size", Returns::Number, database_size),
    ("pg_size_pretty", Returns::Text, size_pretty),
    ("pg_tablespace_location", Returns::Text, |_, _| Ok(text(""))),
    ("has_schema_privilege", Returns::Truth, |_, _| Ok(truth(true))),
    ("has_table_privilege", Returns::Truth, |_, _| Ok(truth(true))),
    ("has_any_column_privilege", Returns::Truth, |_, _| Ok(truth(true))),
    ("has_column_privilege", Returns::Truth, |_, _| Ok(truth(true))),
    ("has_function_privilege", Returns::Truth, |_, _| Ok(truth(true))),
    ("has_sequence_privilege", Returns::Truth, |_, _| Ok(truth(true))),
    // There are no advisory locks to release.
    ("pg_advisory_unlock_all", Returns::Text, |_, _| Ok(text(""))),
    ("has_database_privilege", Returns::Truth, |_, _| Ok(truth(true))),
    ("quote_ident", Returns::Text, quote_ident),
    ("quote_literal", Returns::Text, quote_literal),
];

/// Registers the functions in a state.
pub(crate) fn register(state: &mut SessionState) -> Result<()> {
    for (name, returns, body) in FUNCTIONS {
        let call = Call { name, returns: *returns, body: *body, signature: signature() };
        state.register_udf(Arc::new(ScalarUDF::from(call)))?;
    }
    Ok(())
}

/// Sets the scope of a statement. Must precede the mark of the statement's start, which copies the
/// configuration.
pub(crate) fn about(state: &mut SessionState, scope: Arc<Scope>) {
    state.config_mut().options_mut().extensions.insert(OfStatement(scope));
}

/// Returns the memory limit of a statement in bytes, if its configuration has one.
pub(crate) fn memory_limit_bytes(options: &ConfigOptions) -> Option<u64> {
    options.extensions.get::<OfStatement>().map(|OfStatement(scope)| scope.settings.memory_limit_bytes())
}

/// Returns the start of a statement's transaction, if it is in one.
pub(crate) fn transaction_since(options: &ConfigOptions) -> Option<DateTime<Utc>> {
    options.extensions.get::<OfStatement>().and_then(|OfStatement(scope)| scope.transaction_since)
}

/// The scope of a statement in its configuration.
#[derive(Clone, Debug)]
struct OfStatement(Arc<Scope>);

impl ConfigExtension for OfStatement {
    const PREFIX: &'static str = "onehop_statement";
}

impl ExtensionOptions for OfStatement {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }

    fn cloned(&self) -> Box<dyn ExtensionOptions> {
        Box::new(self.clone())
    }

    fn set(&mut self, key: &str, _: &str) -> DataFusionResult<()> {
        Err(DataFusionError::Configuration(format!("{key} is nothing that can be set")))
    }

    fn entries(&self) -> Vec<ConfigEntry> {
        Vec::new()
    }
}

fn signature() -> Signature {
    // The result may change from one statement to the next, but not within one.
    Signature::one_of(vec![TypeSignature::Nullary, TypeSignature::VariadicAny], Volatility::Stable)
}

/// A function of this module.
struct Call {
    name: &'static str,
    returns: Returns,
    body: Body,
    signature: Signature,
}

impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Call").field("name", &self.name).finish_non_exhaustive()
    }
}

impl PartialEq for Call {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Call {}

impl Hash for Call {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl ScalarUDFImpl for Call {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> DataFusionResult<DataType> {
        Ok(self.returns.data_type())
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DataFusionResult<ColumnarValue> {
        let Some(OfStatement(scope)) = args.config_options.extensions.get() else {
            let message = format!("{} is called outside of a statement", self.name);
            return Err(Error::new(ErrorKind::Internal, message).into());
        };
        let call = |values: &[ScalarValue]| (self.body)(scope, values);
        let is_constant = args.args.iter().all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
        if is_constant {
            let values: Vec<ScalarValue> = args.args.iter().filter_map(scalar).collect();
            return Ok(ColumnarValue::Scalar(call(&values)?));
        }
        let columns = ColumnarValue::values_to_arrays(&args.args)?;
        let rows = (0..args.number_rows).map(|row| {
            let values = columns.iter().map(|column| ScalarValue::try_from_array(column, row));
            Ok(call(&values.collect::<DataFusionResult<Vec<_>>>()?)?)
        });
        let rows = rows.collect::<DataFusionResult<Vec<_>>>()?;
        let array: ArrayRef = match rows.is_empty() {
            true => arrow::array::new_empty_array(&self.returns.data_type()),
            false => ScalarValue::iter_to_array(rows)?,
        };
        Ok(ColumnarValue::Array(array))
    }
}

fn scalar(value: &ColumnarValue) -> Option<ScalarValue> {
    match value {
        ColumnarValue::Scalar(value) => Some(value.clone()),
        ColumnarValue::Array(_) => None,
    }
}

fn text(text: impl Into<String>) -> ScalarValue {
    ScalarValue::Utf8(Some(text.into()))
}

fn number(number: i64) -> ScalarValue {
    ScalarValue::Int64(Some(number))
}

fn truth(truth: bool) -> ScalarValue {
    ScalarValue::Boolean(Some(truth))
}

/// Returns an argument as text, or `None` if it is NULL or missing.
fn string(values: &[ScalarValue], at: usize) -> Option<String> {
    let value = values.get(at)?;
    if value.is_null() {
        return None;
    }
    match value.cast_to(&DataType::Utf8).ok()? {
        ScalarValue::Utf8(text) => text,
        _ => None,
    }
}

/// Returns an argument as a number, or `None` if it is not one.
fn integer(values: &[ScalarValue], at: usize) -> Option<i64> {
    string(values, at)?.trim().parse().ok()
}

fn regclass_in(scope: &Scope, values: &[ScalarValue]) -> Result<ScalarValue> {
    let Some(name) = string(values, 0) else { return Ok(ScalarValue::Int64(None)) };
    match objects::relation_oid(&scope.snapshot, &name) {
        Some(oid) => Ok(number(oid)),
        None => Err(Error::new(ErrorKind::NotFound, format!("relation \"{name}\" does not exist"))),
    }
}

fn to_regclass(scope: &Scope, values: &[ScalarValue]) -> Result<ScalarValue> {
    let name = string(values, 0);
    Ok(ScalarValue::Int64(name.and_then(|name| objects::relation_oid(&scope.snapshot, &name))))
}

/// Returns the quoted name of a relation.
fn regclass_out(scope: &Scope, values: &[ScalarValue]) -> Result<ScalarValue> {
    let Some(oid) = integer(values, 0) else {
        return Ok(ScalarValue::Utf8(string(values, 0)));
    };
    let found = relations(&scope.snapshot).into_iter().find(|relation| relation.oid == oid);
    Ok(text(match found {
        Some(relation) => crate::identifiers::quoted(relation.name),
        None if oid == 0 => "-".into(),
        None => oid.to_string(),
    }))
}

fn regtype_in(_: &Scope, values: &[ScalarValue]) -> Result<ScalarValue> {
    let Some(name) = string(values, 0) else { return Ok(ScalarValue::Int64(None)) };
    match name.trim().parse::<u32>().ok().map(i64::from).or_else(|| types::by_name(&name).map(|t| t.oid)) {
        Some(oid) => Ok(number(oid)),
        None => Err(Error::new(ErrorKind::NotFound, format!("type \"{name}\" does not exist"))),
    }
}

fn to_regtype(_: &Scope, values: &[ScalarValue]) -> Result<ScalarValue> {
    let name = string(values, 0);
    Ok(ScalarValue::Int64(name.and_then(|name| types::by_name(&name)).map(|t| t.oid)))
}

fn current_schemas(_: &Scope, values: &[ScalarValue]) -> Result<ScalarValue> {
    let with_implicit = matches!(values.first(), Some(ScalarValue::Boolean(Some(true))));
    let all = with_implicit.then_some(super::SCHEMA).into_iter().chain([crate::identifiers::SCHEMA]);
    let all: Vec<ScalarValue> = all.map(text).collect();
    Ok(ScalarValue::List(ScalarValue::new_list(&all, &DataType::Utf8, true)))
}

fn current_setting(scope: &Scope, values: &[ScalarValue]) -> Result<ScalarValue> {
    let Some(name) = string(values, 0) else { return Ok(ScalarValue::Utf8(None)) };
    let is_missing_ok = matches!(values.get(1), Some(ScalarValue::Boolean(Some(true))));
    let own = || scope.settings.get(&name.to_lowercase()).map(|setting| setting.value);
    match scope.parameters.get(&name).map_or_else(own, Ok) {
        Ok(value) => Ok(text(value)),
        Err(_) if is_missing_ok => Ok(ScalarValue::Utf8(None)),
        Err(e) => Err(e),
    }
}

/// Sets a parameter for the session. A parameter that should apply to the transaction alone applies
/// to the session as well.
fn set_config(scope: &Scope, values: &[ScalarValue]) -> Result<ScalarValue> {
    let (Some(name), Some(value)) = (string(values, 0), string(values, 1)) else {
        return Err(Error::new(ErrorKind::Invalid, "set_config takes a name and a value"));
    };
    match scope.parameters.set(&name, &value)? {
        true => Ok(ScalarValue::Utf8(scope.parameters.get(&name))),
        false => Err(Error::new(ErrorKind::Invalid, format!("set_config cannot change \"{name}\""))
            .with_hint(format!("SET {name} = '{value}' changes a setting"))),
    }
}

fn format_type(_: &Scope, values: &[ScalarValue]) -> Result<ScalarValue> {
    let Some(oid) = integer(values, 0) else { return Ok(ScalarValue::Utf8(None)) };
    let modifier = integer(values, 1).and_then(|modifier| i32::try_from(modifier).ok());
    Ok(text(types::format_type(oid, modifier)))
}

fn is_visible(scope: &Scope, values: &[ScalarValue]) -> Result<ScalarValue> {
    let Some(oid) = integer(values, 0) else { return Ok(ScalarValue::Boolean(None)) };
    Ok(truth(relations(&scope.snapshot).iter().any(|relation| relation.oid == oid)))
}

fn view_definition(scope: &Scope, values: &[ScalarValue]) -> Result<ScalarValue> {
    let oid = string(values, 0).and_then(|name| objects::relation_oid(&scope.snapshot, &name));
    let found = relations(&scope.snapshot).into_iter().find(|relation| Some(relation.oid) == oid);
    Ok(ScalarValue::Utf8(found.and_then(|relation| match relation.kind {
        Kind::View(query) => Some(query.to_string()),
        _ => None,
    })))
}

fn relation_size(scope: &Scope, values: &[ScalarValue]) -> Result<ScalarValue> {
    let oid = string(values, 0).and_then(|name| objects::relation_oid(&scope.snapshot, &name));
    let found = relations(&scope.snapshot).into_iter().find(|relation| Some(relation.oid) == oid);
    Ok(ScalarValue::Int64(found.map(|relation| match relation.kind {
        Kind::Table(table) => table.entry.bytes() as i64,
        _ => 0,
    })))
}

fn database_size(scope: &Scope, _: &[ScalarValue]) -> Result<ScalarValue> {
    Ok(number(scope.snapshot.tables().map(|table| table.entry.bytes() as i64).sum()))
}

/// Formats a size as PostgreSQL does: each unit is used up to ten thousand.
fn size_pretty(_: &Scope, values: &[ScalarValue]) -> Result<ScalarValue> {
    let Some(bytes) = integer(values, 0) else { return Ok(ScalarValue::Utf8(None)) };
    if bytes.abs() < 10 * 1024 {
        return Ok(text(format!("{bytes} bytes")));
    }
    let mut size = bytes >> 9;
    let units = ["kB", "MB", "GB", "TB", "PB"];
    let mut unit = 0;
    while size.abs() >= 20 * 1024 - 1 && unit + 1 < units.len() {
        size >>= 10;
        unit += 1;
    }
    Ok(text(format!("{} {}", (size + size.signum()) / 2, units[unit])))
}

fn function_result(scope: &Scope, values: &[ScalarValue]) -> Result<ScalarValue> {
    let result = with_function(scope, values, |function| sql_name(function.return_type()));
    Ok(ScalarValue::Utf8(result))
}

fn function_arguments(scope: &Scope, values: &[ScalarValue]) -> Result<ScalarValue> {
    let all = with_function(scope, values, |function| {
        let all = function.arguments.iter();
        all.map(|argument| format!("{} {}", argument.name, sql_name(argument.data_type())))
            .collect::<Vec<_>>()
            .join(", ")
    });
    Ok(ScalarValue::Utf8(all))
}

fn with_function(
    scope: &Scope,
    values: &[ScalarValue],
    tell: impl Fn(&crate::functions::Function) -> String,
) -> Option<String> {
    let oid = integer(values, 0)?;
    let found = objects::functions(&scope.snapshot).into_iter().find(|(name, _)| objects::function_oid(name) == oid);
    found.map(|(_, function)| tell(&function))
}

fn sql_name(data_type: Result<DataType>) -> String {
    data_type.map_or_else(|_| "text".into(), |data_type| types::format_type(types::of(&data_type).0, None))
}

fn pattern(values: &[ScalarValue], what: &str, write: fn(&str, Option<char>) -> Option<String>) -> Result<ScalarValue> {
    let [pattern, escape] = values else { return Err(Error::new(ErrorKind::Internal, "a pattern without its escape")) };
    let (Some(Some(pattern)), Some(Some(escape))) = (pattern.try_as_str(), escape.try_as_str()) else {
        return Ok(ScalarValue::Utf8(None));
    };
    write(pattern, escape.chars().next()).map(text).ok_or_else(|| {
        let message = format!("{what} pattern must not end with escape character");
        Error::new(ErrorKind::Data, message).breaking(Rule::Escape)
    })
}

fn unknown_format(_: &Scope, values: &[ScalarValue]) -> Result<ScalarValue> {
    let format = values.first().and_then(|value| value.try_as_str().flatten()).unwrap_or_default();
    let message = format!("the format '{format}' has letters that are no field of a date or time here");
    Err(Error::new(ErrorKind::Invalid, message)
        .with_hint("fields are YYYY, MM, DD, HH24, MI, SS, MS, US, Mon, Dy and the like, texts are in \"quotes\", and strftime's %B is the month's name"))
}

fn quote_literal(_: &Scope, values: &[ScalarValue]) -> Result<ScalarValue> {
    let Some(value) = values.first().filter(|value| !value.is_null()) else { return Ok(ScalarValue::Utf8(None)) };
    let value = value.cast_to(&DataType::Utf8).map_err(Error::from)?;
    let quoted = value.try_as_str().flatten().map(|text| text.replace('\'', "''"));
    Ok(ScalarValue::Utf8(quoted.map(|quoted| match quoted.contains('\\') {
        true => format!("E'{}'", quoted.replace('\\', "\\\\")),
        false => format!("'{quoted}'"),
    })))
}

fn quote_ident(_: &Scope, values: &[ScalarValue]) -> Result<ScalarValue> {
    Ok(ScalarValue::Utf8(string(values, 0).map(|name| crate::identifiers::quoted(&name))))
}
