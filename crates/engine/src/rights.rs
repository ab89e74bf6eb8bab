//! What a session may do. An embedded one may do everything; a server's are its users'.
//!
//! - Who may read reads tables and views of the database, and nothing that is outside of it.
//! - Who may write changes these as well: tables, views, models.
//! - What reaches outside is an admin's: files, functions in other languages, and settings of the process and its machine.
//!
//! They are part of a session's [`Settings`](crate::settings::Settings), which go wherever a statement does, and are no setting:
//! nothing that a statement says changes them. Where files are found is [`Sites`](crate::files::Sites); what a statement is, its
//! kind says.

use crate::{Error, ErrorKind, Result};

/// What a session may do, the least first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rights {
    /// Queries of tables and views.
    Read,
    /// Also what changes them.
    Write,
    /// Everything.
    #[default]
    Admin,
}

impl Rights {
    /// The word for them.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Admin => "admin",
        }
    }

    /// Of the word.
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Read, Self::Write, Self::Admin].into_iter().find(|rights| rights.name() == word)
    }

    /// Refuses what needs more.
    pub(crate) fn need(self, least: Self, what: &str) -> Result<()> {
        if self >= least {
            return Ok(());
        }
        let error = Error::new(ErrorKind::Denied, format!("permission denied: {what} needs the role {}", least.name()));
        Err(error.with_hint(format!("this session has the role {}", self.name())))
    }
}

/// May the database be changed?
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Reads and writes; no other process may have the database open.
    #[default]
    ReadWrite,
    /// Reads only; other readers are welcome.
    ReadOnly,
}
