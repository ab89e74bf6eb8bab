//! The session parameters that PostgreSQL's clients set and read, beside the engine's settings.
//!
//! Every accepted value is in effect. A parameter that changes a server's answers accepts only the
//! values to which this server conforms. Some parameters do not affect answers, such as an
//! application's name, and accept any value.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::pg_types::zone::Zone;
use crate::{Error, ErrorKind, Result, Rule};

/// The version of PostgreSQL that the server reports.
pub(crate) const SERVER_VERSION: &str = concat!("15.0 (Onehop ", env!("CARGO_PKG_VERSION"), ")");

/// The values that a parameter accepts.
enum Takes {
    Anything,
    /// One of these in any case. The first is the default.
    OneOf(&'static [&'static str]),
    /// A whole number in this inclusive range.
    Number(i64, i64),
    /// UTF-8 by any of its names, of which only letters and digits are compared.
    Encoding,
    /// On or off.
    Switch,
    /// Existing schemas.
    Schemas,
    /// The name of a time zone, or a POSIX offset.
    Zone,
    /// No value: the parameter is read-only.
    Nothing,
}

struct Parameter {
    name: &'static str,
    default: &'static str,
    takes: Takes,
}

const fn parameter(name: &'static str, default: &'static str, takes: Takes) -> Parameter {
    Parameter { name, default, takes }
}

const LEVELS: &[&str] = &["read committed", "repeatable read", "read uncommitted"];

const PARAMETERS: [Parameter; 40] = [
    parameter("application_name", "", Takes::Anything),
    parameter("backslash_quote", "safe_encoding", Takes::Nothing),
    parameter("bytea_output", "hex", Takes::OneOf(&["hex"])),
    parameter("check_function_bodies", "on", Takes::OneOf(&["on", "true", "off", "false"])),
    parameter("client_encoding", "UTF8", Takes::Encoding),
    parameter(
        "client_min_messages",
        "notice",
        Takes::OneOf(&["notice", "debug5", "debug4", "debug3", "debug2", "debug1", "log", "warning", "error"]),
    ),
    parameter("datestyle", "ISO, MDY", Takes::OneOf(&["iso", "iso, mdy", "iso,mdy", "iso, dmy", "iso, ymd"])),
    parameter("default_table_access_method", "heap", Takes::OneOf(&["heap"])),
    parameter("default_tablespace", "", Takes::OneOf(&[""])),
    parameter("default_transaction_isolation", "repeatable read", Takes::OneOf(LEVELS)),
    parameter("default_transaction_read_only", "off", Takes::Switch),
    parameter("escape_string_warning", "on", Takes::OneOf(&["on", "off"])),
    parameter("extra_float_digits", "1", Takes::Number(1, 3)),
    parameter("geqo", "on", Takes::OneOf(&["on", "off", "true", "false"])),
    parameter("idle_in_transaction_session_timeout", "0", Takes::OneOf(&["0"])),
    parameter("in_hot_standby", "off", Takes::Nothing),
    parameter("integer_datetimes", "on", Takes::Nothing),
    parameter("intervalstyle", "postgres", Takes::OneOf(&["postgres"])),
    parameter("is_superuser", "on", Takes::Nothing),
    parameter("jit", "off", Takes::OneOf(&["off", "on", "false", "true"])),
    parameter("lc_collate", "C", Takes::Nothing),
    parameter("lc_ctype", "C", Takes::Nothing),
    parameter("lc_messages", "C", Takes::OneOf(&["c"])),
    parameter("lc_monetary", "C", Takes::OneOf(&["c"])),
    parameter("lc_numeric", "C", Takes::OneOf(&["c"])),
    parameter("lc_time", "C", Takes::OneOf(&["c"])),
    parameter("max_identifier_length", "63", Takes::Nothing),
    parameter("max_index_keys", "32", Takes::Nothing),
    parameter("row_security", "on", Takes::OneOf(&["on", "off"])),
    parameter("search_path", "\"$user\", public", Takes::Schemas),
    parameter("server_encoding", "UTF8", Takes::Nothing),
    parameter("server_version", SERVER_VERSION, Takes::Nothing),
    parameter("server_version_num", "150000", Takes::Nothing),
    parameter("session_authorization", "", Takes::Nothing),
    parameter("standard_conforming_strings", "on", Takes::OneOf(&["on", "true"])),
    parameter("synchronous_commit", "on", Takes::OneOf(&["on"])),
    parameter("timezone", "UTC", Takes::Zone),
    parameter("transaction_isolation", "repeatable read", Takes::OneOf(LEVELS)),
    parameter("transaction_read_only", "off", Takes::OneOf(&["off", "false"])),
    parameter("xmloption", "content", Takes::OneOf(&["content"])),
];

/// The parameters of a session.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parameters {
    values: BTreeMap<&'static str, String>,
    /// The number of times that any parameter was set or reset.
    changes: u64,
}

/// Parameters that several threads share.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shared(Arc<Mutex<Parameters>>);

impl Shared {
    fn with<T>(&self, work: impl FnOnce(&mut Parameters) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn change<T>(&self, work: impl FnOnce(&mut BTreeMap<&'static str, String>) -> T) -> T {
        self.with(|all| {
            all.changes += 1;
            work(&mut all.values)
        })
    }

    /// Returns the number of times that any parameter was set or reset.
    pub fn changes(&self) -> u64 {
        self.with(|all| all.changes)
    }

    /// Returns a parameter's value, or `None` if there is no such parameter.
    pub fn get(&self, name: &str) -> Option<String> {
        let parameter = find(name)?;
        let set = self.with(|all| all.values.get(parameter.name).cloned());
        Some(set.unwrap_or_else(|| parameter.default.into()))
    }

    /// Sets a parameter. Returns whether there is one of that name.
    ///
    /// # Errors
    /// Fails if the parameter does not accept the value.
    pub fn set(&self, name: &str, value: &str) -> Result<bool> {
        let Some(parameter) = find(name) else { return Ok(false) };
        let value = parameter.check(value.trim())?;
        self.change(|values| values.insert(parameter.name, value));
        Ok(true)
    }

    /// Resets a parameter to its default. Returns whether there is one of that name.
    pub fn reset(&self, name: &str) -> bool {
        let parameter = find(name);
        self.change(|values| parameter.map(|parameter| values.remove(parameter.name))).is_some()
    }

    /// Resets all parameters to their defaults.
    pub fn reset_all(&self) {
        self.change(BTreeMap::clear);
    }

    /// Returns all parameters with their values.
    pub fn list(&self) -> Vec<(&'static str, String)> {
        PARAMETERS.iter().map(|p| (p.name, self.get(p.name).unwrap_or_default())).collect()
    }
}

fn find(name: &str) -> Option<&'static Parameter> {
    PARAMETERS.iter().find(|parameter| parameter.name.eq_ignore_ascii_case(name))
}

impl Parameter {
    /// Returns the value to store.
    fn check(&self, value: &str) -> Result<String> {
        let small = value.to_lowercase();
        let wanted = match &self.takes {
            Takes::Anything => return Ok(value.into()),
            Takes::OneOf(_) if small == "default" => return Ok(self.default.into()),
            Takes::OneOf(words) => match words.iter().position(|word| *word == small) {
                Some(_) if self.default.eq_ignore_ascii_case(value) => return Ok(self.default.into()),
                Some(_) if self.name == "datestyle" => return Ok("ISO, MDY".into()),
                Some(at) => return Ok(words[at].into()),
                None => words.join(", "),
            },
            Takes::Number(least, most) => match value.parse::<i64>() {
                Ok(number) if (*least..=*most).contains(&number) => return Ok(number.to_string()),
                _ => format!("a whole number from {least} to {most}"),
            },
            Takes::Encoding => {
                let name: String = small.chars().filter(char::is_ascii_alphanumeric).collect();
                match name.as_str() {
                    "utf8" | "unicode" | "default" => return Ok(self.default.into()),
                    _ => "UTF8".into(),
                }
            }
            Takes::Switch => match small.as_str() {
                "on" | "true" | "yes" | "1" => return Ok("on".into()),
                "off" | "false" | "no" | "0" | "default" => return Ok("off".into()),
                _ => "on or off".into(),
            },
            Takes::Schemas => {
                let is_there = |name: &str| {
                    let name = name.trim().trim_matches(['"', '\'']);
                    matches!(name, "" | "public" | "$user" | "pg_catalog" | "information_schema")
                };
                if small.split(',').all(is_there) {
                    return Ok(value.into());
                }
                "schemas that there are: public, pg_catalog, information_schema".into()
            }
            Takes::Zone if zone_in_arrow(value).is_some() => return Ok(value.into()),
            Takes::Zone => {
                "the name of a time zone, such as Europe/Berlin, or, with POSIX's sign, UTC-02:00, which is east of it"
                    .into()
            }
            Takes::Nothing => {
                let message = format!("parameter \"{}\" cannot be changed", self.name);
                return Err(Error::new(ErrorKind::Invalid, message));
            }
        };
        let message = format!("{} cannot be '{value}': it takes {wanted}", self.name);
        Err(Error::new(ErrorKind::Invalid, message).breaking(Rule::Setting))
    }
}

/// Returns Arrow's name for a zone: `Some(None)` for UTC, and `None` if there is no such zone or
/// Arrow has no name for it.
pub(crate) fn zone_in_arrow(name: &str) -> Option<Option<String>> {
    Zone::parse(name)?.in_arrow()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_hold_is_refused() {
        let all = Shared::default();
        assert!(all.set("Extra_Float_Digits", "3").unwrap() && all.get("extra_float_digits").unwrap() == "3");
        assert!(all.set("client_encoding", "'Utf-8'").unwrap() && all.get("client_encoding").unwrap() == "UTF8");
        assert!(all.set("timezone", "Europe/Berlin").unwrap());
        assert!(all.set("timezone", "GMT-03:00").unwrap() && all.get("timezone").unwrap() == "GMT-03:00");
        assert_eq!(zone_in_arrow("GMT-03:00").unwrap().unwrap(), "+03:00");
        assert_eq!(zone_in_arrow("GMT+5").unwrap().unwrap(), "-05:00");
        assert_eq!(zone_in_arrow("-02:00").unwrap().unwrap(), "+02:00");
        assert_eq!(zone_in_arrow("europe/berlin").unwrap().unwrap(), "Europe/Berlin");
        assert!(!all.set("threads", "3").unwrap());
        for (name, value) in [
            ("client_encoding", "LATIN1"),
            ("datestyle", "German"),
            ("server_version", "9.6"),
            ("search_path", "other"),
            ("extra_float_digits", "0"),
            ("timezone", "Mars"),
            ("standard_conforming_strings", "off"),
        ] {
            assert!(all.set(name, value).is_err(), "{name} {value}");
        }
        assert!(all.reset("timezone") && all.get("timezone").unwrap() == "UTC");
        assert!(!all.reset("threads"));
    }
}
