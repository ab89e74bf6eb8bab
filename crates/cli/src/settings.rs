//! Settings for help and validation. One name everywhere: `memory_limit` in SQL is `--set
//! memory_limit=...` on the command line and `ONEHOP_MEMORY_LIMIT` in the environment; `io.path` is
//! `ONEHOP_IO_PATH`. A flag overrides the environment; the engine reads both. A value that the
//! engine refuses is a usage error, reported before anything is opened or created.

use std::fmt::Write;

use onehop_engine::{Database, DatabaseOptions, Error, ErrorKind, Result, Setting};

use crate::exit::Stop;

/// Returns the environment variable of a setting.
pub fn variable(name: &str) -> String {
    format!("ONEHOP_{}", name.replace('.', "_").to_uppercase())
}

/// Lists all settings, for `--help`.
pub fn help() -> String {
    let mut text =
        String::from("Settings (SET name = value, --set name=value, or the variable; .settings shows values):");
    for setting in known().unwrap_or_default() {
        let Setting { name, description, default, .. } = setting;
        let variable = variable(name);
        let _ = write!(text, "\n  {name:<22} [default: {default}; {variable}]\n      {description}");
    }
    text
}

/// Returns the effective settings, given those of the command line.
pub fn effective(given: &[(String, String)]) -> std::result::Result<Vec<Setting>, Stop> {
    let options = DatabaseOptions { settings: given.to_vec(), ..DatabaseOptions::default() };
    let settings = Database::memory(&options).and_then(|database| Ok(database.session()?.settings()));
    settings.map_err(|e| match e.kind() {
        ErrorKind::NotFound => Stop::Misuse(with_names(e)),
        _ => Stop::Misuse(e),
    })
}

/// Returns the number of threads.
pub fn threads(effective: &[Setting]) -> usize {
    let value = effective.iter().find(|setting| setting.name == "threads").and_then(|s| s.value.parse().ok());
    value.unwrap_or(1)
}

/// Extends the error of an unknown name with all known names.
fn with_names(e: Error) -> Error {
    let names: Vec<&str> = known().unwrap_or_default().iter().map(|setting| setting.name).collect();
    let all = format!("settings: {}", names.join(", "));
    let hint = match e.hint().filter(|hint| hint.starts_with("did you mean")) {
        Some(near) => format!("{near} {all}"),
        None => all,
    };
    Error::new(e.kind(), e.message()).with_hint(hint)
}

fn known() -> Result<Vec<Setting>> {
    Ok(Database::memory(&DatabaseOptions::default())?.session()?.settings())
}

#[cfg(test)]
mod tests {
    use onehop_engine::ErrorKind;

    use super::{Stop, effective, threads, variable};

    #[test]
    fn variables_are_named_after_settings() {
        assert_eq!(variable("memory_limit"), "ONEHOP_MEMORY_LIMIT");
        assert_eq!(variable("io.path"), "ONEHOP_IO_PATH");
    }

    fn refused(name: &str, value: &str) -> (ErrorKind, String, String) {
        match effective(&[(name.into(), value.into())]) {
            Err(Stop::Misuse(e)) => (e.kind(), e.message().into(), e.hint().unwrap_or_default().into()),
            other => panic!("{name}={value}: {other:?}"),
        }
    }

    #[test]
    fn a_wrong_setting_is_named_with_the_right_ones() {
        let (kind, message, hint) = refused("thread", "2");
        assert_eq!((kind, message.as_str()), (ErrorKind::NotFound, "there is no setting \"thread\""));
        assert!(hint.starts_with("did you mean \"threads\"? settings: threads, memory_limit, "), "{hint}");
        let (_, _, hint) = refused("zzzzzzzzzz", "2");
        assert!(hint.starts_with("settings: threads, "), "{hint}");
        let (kind, message, _) = refused("io.path", "fast");
        assert_eq!(
            (kind, message.as_str()),
            (ErrorKind::Invalid, "io.path cannot be 'fast': it takes auto, buffered, direct")
        );
        assert_eq!(effective(&[("threads".into(), "3".into())]).map(|all| threads(&all)).ok(), Some(3));
    }
}
