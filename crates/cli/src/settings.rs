//! Settings as help shows them. One name everywhere: `memory_limit` in SQL is `--set memory_limit=...` on the command
//! line and `ONEHOP_MEMORY_LIMIT` in the environment; `io.path` is `ONEHOP_IO_PATH`. A flag wins over the environment;
//! the engine reads both.

use std::fmt::Write;

use onehop_engine::{Database, DatabaseOptions, Result, Setting};

/// The variable that stands for a setting.
pub fn variable(name: &str) -> String {
    format!("ONEHOP_{}", name.replace('.', "_").to_uppercase())
}

/// All settings, for `--help`.
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

fn known() -> Result<Vec<Setting>> {
    Ok(Database::memory(&DatabaseOptions::default())?.session()?.settings())
}

#[cfg(test)]
mod tests {
    use super::variable;

    #[test]
    fn variables_are_named_after_settings() {
        assert_eq!(variable("memory_limit"), "ONEHOP_MEMORY_LIMIT");
        assert_eq!(variable("io.path"), "ONEHOP_IO_PATH");
    }
}
