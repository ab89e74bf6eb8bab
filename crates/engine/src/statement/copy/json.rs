//! Maps keys of JSON files to columns of a table.
//!
//! 1. By name, if the files have all wanted columns or the table has all keys. An exact match wins
//!    over one in another case. Objects may lack keys, and their columns are NULL.
//! 2. By position, in the order of the keys in the files, if no key is a column's name and there
//!    are as many keys as columns.
//! 3. Anything else is an error: otherwise a file of another table would be loaded in part.
//!
//! Values are parsed as the columns' types, from the characters in the file.

use std::sync::Arc;

use arrow::datatypes::Field;
use datafusion::catalog::{Session as DataFusionSession, TableProvider};

use crate::files::json::{JsonPlan, Sample};
use crate::files::{Source, Union};
use crate::pg_types::zone::Zone;
use crate::statement::Context;
use crate::{Error, ErrorKind, Result};

/// Opens the files as a table with the wanted columns.
pub(super) async fn open(
    source: &Source,
    wanted: &[Field],
    table: &str,
    path: &str,
    context: &Context<'_>,
) -> Result<Arc<dyn TableProvider>> {
    let state: &dyn DataFusionSession = &**context.state()?;
    let plan = source.json_plan(state, Sample::First, Union::Same).await?;
    let zone = Zone::of_session(state.config_options());
    let plan = columns(&plan, &source.directory_names(), wanted, zone, (table, path))?;
    source.json_table(state, plan)
}

/// Maps the files at `path` to the columns of `table`.
fn columns(
    plan: &JsonPlan,
    directories: &[String],
    wanted: &[Field],
    zone: Zone,
    (table, path): (&str, &str),
) -> Result<JsonPlan> {
    let names: Vec<&str> = plan.names().collect();
    let found: Vec<Option<&str>> = wanted.iter().map(|field| same(&names, field.name())).collect();
    let is_directory = |field: &Field| directories.contains(field.name());
    let own = |(field, found): (&Field, &Option<&str>)| match found {
        Some(name) => Some(((*name).to_string(), field.clone())),
        // The scan adds the directory's column. Keys that objects lack are NULL.
        None if is_directory(field) || !(plan.is_of_objects() || plan.is_empty()) => None,
        None => Some((field.name().clone(), field.clone())),
    };
    let by_name = || plan.declared(wanted.iter().zip(&found).filter_map(own), zone);
    let known = found.iter().flatten().count();
    let has_all = wanted.iter().zip(&found).all(|(field, found)| found.is_some() || is_directory(field));
    if plan.is_empty() || has_all || (known > 0 && known == names.len()) {
        return Ok(by_name());
    }
    if known == 0 && names.len() == wanted.len() {
        return Ok(plan.declared(names.iter().map(ToString::to_string).zip(wanted.iter().cloned()), zone));
    }
    let shown = |names: Vec<&str>| names.into_iter().take(12).collect::<Vec<_>>().join(", ");
    let (message, hint) = match known {
        0 => (
            format!("'{path}' has {} columns, and {table} takes {}", names.len(), wanted.len()),
            format!("columns of the file: {}", shown(names)),
        ),
        _ => {
            let lacks = wanted.iter().zip(&found).filter(|(_, found)| found.is_none());
            let lacks = lacks.map(|(field, _)| field.name().as_str()).collect();
            let others = names.iter().filter(|name| !found.contains(&Some(**name))).copied().collect();
            (
                format!(
                    "'{path}' has other columns than {table}: it lacks {}, and has also {}",
                    shown(lacks),
                    shown(others)
                ),
                format!(
                    "choose: INSERT INTO {table} (...) SELECT ... FROM '{path}', or COPY {table} (...) FROM '{path}'"
                ),
            )
        }
    };
    Err(Error::new(ErrorKind::Invalid, message).with_hint(hint))
}

/// Returns the same name among others, or the only one that differs in case alone.
fn same<'a>(names: &[&'a str], name: &str) -> Option<&'a str> {
    let exact = names.iter().find(|known| **known == name).copied();
    let lower = name.to_lowercase();
    let mut others = names.iter().filter(|known| known.to_lowercase() == lower);
    exact.or_else(|| match (others.next(), others.next()) {
        (Some(only), None) => Some(only),
        _ => None,
    })
}
