//! Session parameters that the server reports to its client: all at the start, and later the
//! changed ones, before `ReadyForQuery`. A client depends on them to read values, for example the
//! time zone.

use std::collections::BTreeMap;

use onehop_engine::Session;
use pgwire::messages::PgWireBackendMessage;
use pgwire::messages::startup::ParameterStatus;

use crate::link::Link;
use onehop_engine::postgres_text::Zone;

const NAMES: [&str; 13] = [
    "server_version",
    "server_encoding",
    "client_encoding",
    "application_name",
    "DateStyle",
    "IntervalStyle",
    "TimeZone",
    "integer_datetimes",
    "standard_conforming_strings",
    "in_hot_standby",
    "default_transaction_read_only",
    "is_superuser",
    "session_authorization",
];

/// The parameters a client was told.
#[derive(Debug, Default)]
pub struct Reported {
    /// The session's change counter at the last report.
    changes: Option<u64>,
    values: BTreeMap<&'static str, String>,
    zone: Zone,
}

impl Reported {
    /// Reports the parameters that have changed.
    pub fn put_changed(&mut self, session: &Session, link: &mut Link) {
        let changes = Some(session.parameter_changes());
        if self.changes == changes {
            return;
        }
        self.changes = changes;
        for name in NAMES {
            let value = session.parameter(name).unwrap_or_default();
            if self.values.get(name) == Some(&value) {
                continue;
            }
            if name == "TimeZone" {
                self.zone = Zone::parse(&value).unwrap_or_default();
            }
            link.put(PgWireBackendMessage::ParameterStatus(ParameterStatus::new(name.into(), value.clone())));
            self.values.insert(name, value);
        }
    }

    /// Returns the zone in which timestamps are shown.
    pub fn zone(&self) -> Zone {
        self.zone
    }
}
