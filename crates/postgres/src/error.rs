//! What can go wrong with a server that is somebody else's.

/// The result of anything that this crate does.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address makes no sense, or asks for what there is not.
    #[error("{0}")]
    Address(String),
    /// There is no thread for connections.
    #[error("cannot start a thread for connections to PostgreSQL: {source}")]
    Threads {
        /// What the system said.
        source: std::io::Error,
    },
    /// There is no connection.
    #[error("cannot connect to PostgreSQL at {place}: {}", said(source))]
    Connect {
        /// Where, without a password.
        place: String,
        /// What was in the way.
        source: tokio_postgres::Error,
    },
    /// The server refused something, or was gone.
    #[error("PostgreSQL at {place} {}: {}", if source.is_closed() { "is gone" } else { "refused" }, said(source))]
    Server {
        /// Where, without a password.
        place: String,
        /// What it said.
        source: tokio_postgres::Error,
    },
    /// There is no such table.
    #[error("PostgreSQL at {place} has no table \"{schema}\".\"{name}\"")]
    NoTable {
        /// Where, without a password.
        place: String,
        /// The schema.
        schema: String,
        /// The name.
        name: String,
    },
    /// A column whose values cannot be read.
    #[error("column \"{column}\" of {table} is of type {type_name}, which cannot be read")]
    Type {
        /// The table.
        table: String,
        /// The column.
        column: String,
        /// What PostgreSQL calls its type.
        type_name: String,
    },
    /// A value that no value here is the same as.
    #[error("column \"{column}\" of {table} has a value that cannot be read: {what}")]
    Value {
        /// The table.
        table: String,
        /// The column.
        column: String,
        /// Why.
        what: &'static str,
    },
    /// Bytes that are no rows.
    #[error("PostgreSQL at {place} has sent something that is no row of {table}: {what}")]
    Format {
        /// Where, without a password.
        place: String,
        /// The table.
        table: String,
        /// What is wrong with it.
        what: &'static str,
    },
    /// An array that could not be made.
    #[error(transparent)]
    Arrow(#[from] arrow_schema::ArrowError),
}

/// What a server said, or else the library.
fn said(e: &tokio_postgres::Error) -> String {
    match e.as_db_error() {
        Some(db) => db.message().to_string(),
        // The cause says more than what it was a cause of.
        None => std::iter::successors(std::error::Error::source(e), |e| e.source())
            .last()
            .map_or_else(|| e.to_string(), ToString::to_string),
    }
}

impl Error {
    /// The SQLSTATE that the server gave, if it was the server's.
    pub fn sqlstate(&self) -> Option<&str> {
        match self {
            Self::Connect { source, .. } | Self::Server { source, .. } => source.code().map(|code| code.code()),
            _ => None,
        }
    }
}
