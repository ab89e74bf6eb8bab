//! `SET name = value`, `RESET name`.

use datafusion::sql::parser::ResetStatement;
use datafusion::sql::sqlparser::ast::{Expr, ObjectName, Value};
use std::sync::PoisonError;

use super::{Context, done};
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
    let [value] = values else {
        return Err(Error::new(ErrorKind::Invalid, format!("{name} takes one value")));
    };
    let value = match value {
        Expr::Value(value) => match &value.value {
            Value::Number(number, _) => number.clone(),
            other => other.clone().into_string().unwrap_or_else(|| other.to_string()),
        },
        Expr::Identifier(word) => word.value.clone(),
        other => other.to_string(),
    };
    Ok(SetValue { name, value: Some(value) })
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
        let mut settings = context.settings.lock().unwrap_or_else(PoisonError::into_inner);
        match self.value {
            Some(value) => {
                settings.set(&self.name, &value, SettingSource::Session)?;
                Ok(done("SET", None))
            }
            None => {
                settings.reset(&self.name)?;
                Ok(done("RESET", None))
            }
        }
    }
}
