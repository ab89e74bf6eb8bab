//! Errors of a foreign server.

/// The result of the operations of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a server, or of its connections.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address is invalid, or requests an unsupported feature.
    #[error("{0}")]
    Address(String),
    /// There is no thread for connections.
    #[error("cannot start a thread for connections to PostgreSQL: {source}")]
    Threads {
        /// The system's error.
        source: std::io::Error,
    },
    /// There is no connection.
    #[error("cannot connect to PostgreSQL at {place}: {}", said(source))]
    Connect {
        /// The server, without a password.
        place: String,
        /// The cause.
        source: tokio_postgres::Error,
    },
    /// The server refused a request, or is gone.
    #[error("PostgreSQL at {place} {}: {}", if source.is_closed() { "is gone" } else { "refused" }, said(source))]
    Server {
        /// The server, without a password.
        place: String,
        /// The server's error.
        source: tokio_postgres::Error,
    },
    /// There is no such table.
    #[error("PostgreSQL at {place} has no table \"{schema}\".\"{name}\"")]
    NoTable {
        /// The server, without a password.
        place: String,
        /// The schema.
        schema: String,
        /// The name.
        name: String,
    },
    /// The values of a column cannot be read.
    #[error("column \"{column}\" of {table} is of type {type_name}, which cannot be read")]
    Type {
        /// The table.
        table: String,
        /// The column.
        column: String,
        /// PostgreSQL's name of its type.
        type_name: String,
    },
    /// A value has no equal Arrow value.
    #[error("column \"{column}\" of {table} has a value that cannot be read: {what}")]
    Value {
        /// The table.
        table: String,
        /// The column.
        column: String,
        /// The reason.
        what: &'static str,
    },
    /// The bytes are not rows.
    #[error("PostgreSQL at {place} has sent something that is no row of {table}: {what}")]
    Format {
        /// The server, without a password.
        place: String,
        /// The table.
        table: String,
        /// The reason.
        what: &'static str,
    },
    /// An array could not be created.
    #[error(transparent)]
    Arrow(#[from] arrow_schema::ArrowError),
}

/// Returns the message of the server, or else of the library.
fn said(e: &tokio_postgres::Error) -> String {
    match e.as_db_error() {
        Some(db) => db.message().to_string(),
        // The cause is more specific than its consequence.
        None => std::iter::successors(std::error::Error::source(e), |e| e.source())
            .last()
            .map_or_else(|| e.to_string(), ToString::to_string),
    }
}

impl Error {
    /// Returns the SQLSTATE of the server, if the error is the server's.
    pub fn sqlstate(&self) -> Option<&str> {
        match self {
            Self::Connect { source, .. } | Self::Server { source, .. } => source.code().map(|code| code.code()),
            _ => None,
        }
    }
}
