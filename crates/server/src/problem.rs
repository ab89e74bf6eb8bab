//! Errors as PostgreSQL clients receive them: an SQLSTATE, a message, and a hint.
//!
//! The SQLSTATE follows from the kind of the engine's error, from the violated rule and, for data
//! errors, from the type of their cause. It never follows from the text of a message.

use onehop_engine::arrow::error::ArrowError;
use onehop_engine::{Error, ErrorKind, Object, Place, Rule};
use pgwire::messages::response::{ErrorResponse, NoticeResponse};

/// The severity of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The statement and its transaction have failed.
    Error,
    /// The connection ends.
    Fatal,
    /// Information.
    Notice,
    /// Information about a likely mistake.
    Warning,
}

impl Severity {
    fn name(self) -> &'static str {
        match self {
            Self::Error => "ERROR",
            Self::Fatal => "FATAL",
            Self::Notice => "NOTICE",
            Self::Warning => "WARNING",
        }
    }
}

/// A problem as a client receives it.
#[derive(Clone, Debug)]
pub struct Problem {
    pub severity: Severity,
    pub code: &'static str,
    pub message: String,
    pub hint: Option<String>,
    /// The position of the error in the statement, in characters from 1.
    pub position: Option<usize>,
    /// The location in the data that the client sent.
    pub context: Option<String>,
}

/// The SQLSTATEs of the server itself.
pub mod code {
    pub const PROTOCOL_VIOLATION: &str = "08P01";
    pub const FEATURE_NOT_SUPPORTED: &str = "0A000";
    pub const INVALID_TEXT: &str = "22P02";
    pub const BAD_COPY: &str = "22P04";
    pub const INVALID_BINARY: &str = "22P03";
    pub const INVALID_ENCODING: &str = "22021";
    pub const ACTIVE_TRANSACTION: &str = "25001";
    pub const NO_TRANSACTION: &str = "25P01";
    pub const IN_FAILED_TRANSACTION: &str = "25P02";
    pub const INVALID_STATEMENT_NAME: &str = "26000";
    pub const INVALID_AUTHORIZATION: &str = "28000";
    pub const INVALID_PASSWORD: &str = "28P01";
    pub const INSUFFICIENT_PRIVILEGE: &str = "42501";
    pub const INVALID_CURSOR_NAME: &str = "34000";
    pub const DUPLICATE_STATEMENT: &str = "42P05";
    pub const DUPLICATE_CURSOR: &str = "42P03";
    pub const TOO_MANY_CONNECTIONS: &str = "53300";
    pub const LIMIT_EXCEEDED: &str = "53400";
    pub const SYNTAX_ERROR: &str = "42601";
    pub const OUT_OF_MEMORY: &str = "53200";
    pub const NOT_IN_STATE: &str = "55000";
    pub const QUERY_CANCELED: &str = "57014";
    pub const ADMIN_SHUTDOWN: &str = "57P01";
    pub const SUCCESS: &str = "00000";
}

impl Problem {
    /// Creates an error of a statement.
    pub fn error(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(Severity::Error, code, message)
    }

    /// Creates an error that ends the connection.
    pub fn fatal(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(Severity::Fatal, code, message)
    }

    /// Creates a problem without hint, position and context.
    pub fn new(severity: Severity, code: &'static str, message: impl Into<String>) -> Self {
        Self { severity, code, message: message.into(), hint: None, position: None, context: None }
    }

    /// Creates the error of a statement in a failed transaction.
    pub fn in_failed_transaction() -> Self {
        let message = "current transaction is aborted, commands ignored until end of transaction block";
        Self::error(code::IN_FAILED_TRANSACTION, message)
            .with_hint("ROLLBACK ends it; ROLLBACK TO a savepoint goes back to before the error")
    }

    /// Adds a hint.
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Adds the position of the error, if it is known. `before` is the part of the client's text
    /// before the statement.
    pub fn at(mut self, place: Option<Place>, before: &str, statement: &str) -> Self {
        self.position = place.and_then(|place| {
            let line = usize::try_from(place.line).ok()?.checked_sub(1)?;
            let column = usize::try_from(place.column).ok()?;
            let lines = statement.split_inclusive('\n');
            let above: usize = lines.take(line).map(|line| line.chars().count()).sum();
            Some(before.chars().count() + above + column)
        });
        self
    }

    /// Adds the location in the data that the client sent.
    pub fn with_context(mut self, context: impl Into<String>) -> Self {
        self.context = Some(context.into());
        self
    }

    fn fields(self) -> Vec<(u8, String)> {
        let severity = self.severity.name().to_string();
        let mut fields =
            vec![(b'S', severity.clone()), (b'V', severity), (b'C', self.code.into()), (b'M', self.message)];
        fields.extend(self.hint.map(|text| (b'H', text)));
        fields.extend(self.position.map(|position| (b'P', position.to_string())));
        fields.extend(self.context.map(|text| (b'W', text)));
        fields
    }

    /// Converts the problem to an error message.
    pub fn response(self) -> ErrorResponse {
        ErrorResponse::new(self.fields())
    }

    /// Converts the problem to a notice message.
    pub fn notice(self) -> NoticeResponse {
        NoticeResponse::new(self.fields())
    }
}

impl From<Error> for Problem {
    fn from(e: Error) -> Self {
        let problem = Self::error(sqlstate(&e), e.message());
        match e.hint() {
            Some(hint) => problem.with_hint(hint),
            None => problem,
        }
    }
}

/// Returns the SQLSTATE of an engine error.
pub fn sqlstate(e: &Error) -> &'static str {
    if let Some(rule) = e.rule() {
        return of_rule(rule);
    }
    match e.kind() {
        ErrorKind::Syntax => "42601",
        ErrorKind::NotFound => match e.object() {
            Some(Object::Column) => "42703",
            Some(Object::Function) => "42883",
            Some(Object::Savepoint) => "3B001",
            Some(Object::Setting) => "42704",
            Some(Object::Statement) => code::INVALID_STATEMENT_NAME,
            Some(Object::Table) | None => "42P01",
        },
        ErrorKind::AlreadyExists if e.object() == Some(Object::Statement) => code::DUPLICATE_STATEMENT,
        ErrorKind::AlreadyExists => "42P07",
        // PostgreSQL returns the same for a function with other parameter types.
        ErrorKind::Invalid if e.object() == Some(Object::Function) => "42883",
        ErrorKind::Invalid => "42000",
        ErrorKind::Data => of_data(e),
        ErrorKind::Corrupt => "XX001",
        ErrorKind::TooNew => code::FEATURE_NOT_SUPPORTED,
        ErrorKind::Locked => "55P03",
        ErrorKind::Conflict => "40001",
        ErrorKind::Io => "58030",
        ErrorKind::Resources => code::OUT_OF_MEMORY,
        ErrorKind::Cancelled | ErrorKind::Timeout => code::QUERY_CANCELED,
        ErrorKind::ReadOnly => "25006",
        ErrorKind::Denied => code::INSUFFICIENT_PRIVILEGE,
        ErrorKind::Unmet => code::NOT_IN_STATE,
        ErrorKind::Device => "58000",
        ErrorKind::Internal => "XX000",
    }
}

fn of_rule(rule: Rule) -> &'static str {
    match rule {
        Rule::NotNull => "23502",
        Rule::NamedOnce => "42701",
        Rule::Escape => "22025",
        Rule::ModeFirst | Rule::ByItself => code::ACTIVE_TRANSACTION,
        Rule::InTransaction => code::NO_TRANSACTION,
        Rule::Range => "22003",
        Rule::Divisor => "22012",
        Rule::Moment => "22007",
        Rule::Form => code::INVALID_TEXT,
        Rule::Setting => "22023",
        Rule::Count => code::SYNTAX_ERROR,
        Rule::Length => "54000",
        Rule::OneRow => "21000",
        Rule::Pattern => "2201B",
    }
}

/// Returns the SQLSTATE of a data error, by its cause.
fn of_data(e: &Error) -> &'static str {
    let causes = std::iter::successors(std::error::Error::source(e), |e| e.source());
    for cause in causes {
        match cause.downcast_ref::<ArrowError>() {
            Some(ArrowError::DivideByZero) => return "22012",
            Some(ArrowError::ArithmeticOverflow(_)) => return "22003",
            Some(ArrowError::CastError(_) | ArrowError::ParseError(_)) => return code::INVALID_TEXT,
            _ => {}
        }
    }
    "22000"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_letters_of_the_whole_text() {
        let at = |line, column, before: &str, text: &str| {
            Problem::error("42601", "").at(Some(Place { line, column }), before, text).position
        };
        assert_eq!(at(1, 8, "", "SELECT ,"), Some(8));
        assert_eq!(at(2, 3, "S;\u{e4}; ", "SELECT \u{e4}\n x"), Some(5 + 9 + 3));
        assert_eq!(at(0, 1, "", "x"), None);
    }

    #[test]
    fn codes_follow_from_kinds_and_causes() {
        let data = |cause: ArrowError| sqlstate(&Error::new(ErrorKind::Data, "").with_source(cause));
        assert_eq!(data(ArrowError::DivideByZero), "22012");
        assert_eq!(data(ArrowError::CastError(String::new())), "22P02");
        assert_eq!(sqlstate(&Error::new(ErrorKind::Data, "division by zero")), "22000");
        assert_eq!(sqlstate(&Error::new(ErrorKind::Conflict, "")), "40001");
    }
}
