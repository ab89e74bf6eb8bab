//! `SET name = value`, `RESET name`.

use std::sync::{Arc, PoisonError};

use datafusion::sql::parser::ResetStatement;
use datafusion::sql::sqlparser::ast::{ContextModifier, Expr, ObjectName, Set, Value};

use super::{Context, done, transaction};
use crate::planner::DisabledPasses;
use crate::query::Done;
use crate::settings::{DISABLE_PASS, SettingSource, environment_name, with_unit};
use crate::{Error, ErrorKind, Result, Rule};

/// A parsed `SET` or `RESET`.
#[derive(Debug)]
pub(super) struct SetValue {
    name: String,
    /// The new value; `None` resets the setting.
    value: Option<String>,
    /// The first word of the statement.
    tag: &'static str,
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
    Ok(SetValue { name, value, tag: "SET" })
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

/// Converts `SET name = value`, and PostgreSQL's other forms of it.
pub(super) fn convert(set: &Set) -> Result<Option<SetValue>> {
    let value = |name: &str, value: String| Ok(Some(SetValue { name: name.into(), value: Some(value), tag: "SET" }));
    match set {
        Set::SingleAssignment { scope: Some(ContextModifier::Local), .. } => {
            let error = Error::new(ErrorKind::Invalid, "SET LOCAL is not supported");
            Err(error.with_hint("SET holds for the session"))
        }
        Set::SingleAssignment { variable, values, .. } => assign(variable, values).map(Some),
        Set::SetTimeZone { value: zone, local: false } => value("timezone", written(zone)),
        Set::SetNames { charset_name, .. } => value("client_encoding", charset_name.value.clone()),
        Set::SetTransaction { modes, snapshot: None, session } => {
            let name = if *session { "default_transaction_read_only" } else { TRANSACTION_READ_ONLY };
            match transaction::read_only(modes)? {
                Some(is_read_only) => value(name, if is_read_only { "on" } else { "off" }.into()),
                // Only isolation levels that transactions have anyway.
                None => Ok(Some(SetValue { name: String::new(), value: None, tag: "SET" })),
            }
        }
        _ => Ok(None),
    }
}

pub(super) fn reset(reset: &ResetStatement) -> SetValue {
    let ResetStatement::Variable(name) = reset;
    SetValue { name: setting_name(name), value: None, tag: "RESET" }
}

/// Returns a setting's name, which may contain dots.
pub(super) fn setting_name(name: &ObjectName) -> String {
    let parts = name.0.iter().map(|part| part.as_ident().map_or_else(|| part.to_string(), |ident| ident.value.clone()));
    parts.collect::<Vec<_>>().join(".").to_lowercase()
}

/// The parameter that belongs to the transaction.
const TRANSACTION_READ_ONLY: &str = "transaction_read_only";

fn set_read_only(value: &str, context: &Context<'_>) -> Result<Done> {
    let is_read_only = match value.to_lowercase().as_str() {
        "on" | "true" | "yes" | "1" => true,
        "off" | "false" | "no" | "0" => false,
        _ => {
            return Err(Error::new(ErrorKind::Invalid, format!("{TRANSACTION_READ_ONLY} is on or off, not '{value}'")));
        }
    };
    let was_read_only = context.session.is_read_only();
    match context.transaction().as_mut() {
        Some(transaction) if was_read_only && !is_read_only && !transaction.is_untouched() => {
            let message = "a transaction that is READ ONLY, and has read something, stays READ ONLY";
            let error = Error::new(ErrorKind::Invalid, message).breaking(Rule::ModeFirst);
            return Err(error.with_hint("SET TRANSACTION READ WRITE comes before its first query"));
        }
        Some(transaction) => transaction.is_read_only = Some(is_read_only),
        None => context.query.notice("SET TRANSACTION is for transactions, and there is none: BEGIN starts one".into()),
    }
    Ok(done("SET", None))
}

/// Settings of a database rather than a session, with an example of each.
const AT_OPENING: [(&str, &str); 2] = [("io.cache", "4GiB"), ("gpu.memory_limit", "40GiB")];

impl SetValue {
    /// Returns the name of the setting.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the first word of the statement.
    pub fn tag(&self) -> &'static str {
        self.tag
    }

    /// Runs the statement.
    pub fn run(self, context: &Context<'_>) -> Result<Done> {
        if let Some((name, example)) = AT_OPENING.iter().find(|(name, _)| *name == self.name) {
            let error =
                Error::new(ErrorKind::Invalid, format!("{name} takes effect when a database is opened, not later"));
            let variable = environment_name(name);
            return Err(error.with_hint(format!("give it then: --set {name}={example}, or {variable}={example}")));
        }
        if let (TRANSACTION_READ_ONLY, Some(value)) = (self.name.as_str(), &self.value) {
            return set_read_only(value, context);
        }
        let parameters = context.session.parameters();
        let mut settings = context.settings.lock().unwrap_or_else(PoisonError::into_inner);
        let settings = Arc::make_mut(&mut settings);
        match self.value {
            // A mode that transactions have anyway.
            None if self.name.is_empty() => Ok(done("SET", None)),
            Some(value) => {
                if self.name == DISABLE_PASS {
                    DisabledPasses::parse(&value)?;
                }
                if !parameters.set(&self.name, &value)? {
                    // Clients of other databases omit units. Elsewhere a time without a unit is an
                    // error.
                    let is_of_client = context.session.client().number > 0;
                    let value = if is_of_client { with_unit(&self.name, &value) } else { value };
                    settings.set(&self.name, &value, SettingSource::Session)?;
                }
                Ok(done("SET", None))
            }
            None if self.name == "all" => {
                parameters.reset_all();
                settings.reset_all();
                Ok(done(self.tag, None))
            }
            None => {
                if !parameters.reset(&self.name) {
                    settings.reset(&self.name)?;
                }
                Ok(done(self.tag, None))
            }
        }
    }
}
