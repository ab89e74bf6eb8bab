//! `SET name = value`, `RESET name`.

use datafusion::sql::parser::ResetStatement;
use datafusion::sql::sqlparser::ast::{ContextModifier, Expr, ObjectName, Set, Value};
use std::sync::{Arc, PoisonError};

use super::{Context, done, transaction};
use crate::query::Done;
use crate::settings::{SettingSource, environment_name};
use crate::{Error, ErrorKind, Result};

/// The parsed statement; without a value it is a RESET.
#[derive(Debug)]
pub(super) struct SetValue {
    name: String,
    value: Option<String>,
}

pub(super) fn assign(variable: &ObjectName, values: &[Expr]) -> Result<SetValue> {
    let name = setting_name(variable);
    let value = match values {
        [Expr::Identifier(word)] if word.quote_style.is_none() && word.value.eq_ignore_ascii_case("default") => None,
        [value] => Some(written(value)),
        // A list of schemas.
        values if name == "search_path" && !values.is_empty() => {
            Some(values.iter().map(written).collect::<Vec<_>>().join(", "))
        }
        _ => return Err(Error::new(ErrorKind::Invalid, format!("{name} takes one value"))),
    };
    Ok(SetValue { name, value })
}

fn written(value: &Expr) -> String {
    match value {
        Expr::Value(value) => match &value.value {
            Value::Number(number, _) => number.clone(),
            other => other.clone().into_string().unwrap_or_else(|| other.to_string()),
        },
        Expr::Identifier(word) => word.value.clone(),
        other => other.to_string(),
    }
}

/// What PostgreSQL has other words for than `SET name = value`.
pub(super) fn convert(set: &Set) -> Result<Option<SetValue>> {
    let value = |name: &str, value: String| Ok(Some(SetValue { name: name.into(), value: Some(value) }));
    match set {
        Set::SingleAssignment { scope: Some(ContextModifier::Local), .. } => {
            let error = Error::new(ErrorKind::Invalid, "SET LOCAL is not supported");
            Err(error.with_hint("SET holds for the session"))
        }
        Set::SingleAssignment { variable, values, .. } => assign(variable, values).map(Some),
        Set::SetTimeZone { value: zone, local: false } => value("timezone", written(zone)),
        Set::SetNames { charset_name, .. } => value("client_encoding", charset_name.value.clone()),
        Set::SetTransaction { modes, snapshot: None, .. } => {
            modes.iter().try_for_each(transaction::accept)?;
            Ok(Some(SetValue { name: String::new(), value: None }))
        }
        _ => Ok(None),
    }
}

/// PostgreSQL's times are milliseconds where they are nothing else.
pub(crate) fn with_unit(name: &str, value: &str) -> String {
    let is_time = ["statement_timeout", "lock_timeout"].iter().any(|time| name.eq_ignore_ascii_case(time));
    match is_time && value != "0" && !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        true => format!("{value}ms"),
        false => value.into(),
    }
}

pub(super) fn reset(reset: &ResetStatement) -> SetValue {
    let ResetStatement::Variable(name) = reset;
    SetValue { name: setting_name(name), value: None }
}

/// Settings' names have dots of their own.
pub(super) fn setting_name(name: &ObjectName) -> String {
    let parts = name.0.iter().map(|part| part.as_ident().map_or_else(|| part.to_string(), |ident| ident.value.clone()));
    parts.collect::<Vec<_>>().join(".").to_lowercase()
}

/// Settings of a database rather than a session, with an example of each.
const AT_OPENING: [(&str, &str); 2] = [("io.cache", "4GiB"), ("gpu.memory_limit", "40GiB")];

impl SetValue {
    pub fn run(self, context: &Context<'_>) -> Result<Done> {
        if let Some((name, example)) = AT_OPENING.iter().find(|(name, _)| *name == self.name) {
            let error =
                Error::new(ErrorKind::Invalid, format!("{name} takes effect when a database is opened, not later"));
            let variable = environment_name(name);
            return Err(error.with_hint(format!("give it then: --set {name}={example}, or {variable}={example}")));
        }
        let parameters = context.session.parameters();
        let mut settings = context.settings.lock().unwrap_or_else(PoisonError::into_inner);
        let settings = Arc::make_mut(&mut settings);
        match self.value {
            // A mode that transactions have anyway.
            None if self.name.is_empty() => Ok(done("SET", None)),
            Some(value) => {
                if !parameters.set(&self.name, &value)? {
                    // Elsewhere a time without a unit is one that somebody has forgotten.
                    let is_of_client = context.session.client().number > 0;
                    let value = if is_of_client { with_unit(&self.name, &value) } else { value };
                    settings.set(&self.name, &value, SettingSource::Session)?;
                }
                Ok(done("SET", None))
            }
            None if self.name == "all" => {
                parameters.reset_all();
                settings.reset_all();
                Ok(done("RESET", None))
            }
            None => {
                if !parameters.reset(&self.name) {
                    settings.reset(&self.name)?;
                }
                Ok(done("RESET", None))
            }
        }
    }
}
