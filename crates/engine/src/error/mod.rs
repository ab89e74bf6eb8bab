//! Errors by meaning: the responsible party, the object, and a remedy.
//!
//! An [`Error`] has a kind (which decides exit codes and, later, SQLSTATEs), a message for people,
//! an optional hint with a remedy, and its source. Kinds are decided where the error is created.
//! DataFusion's errors are classified by their variants, and by their text where no variant
//! distinguishes them.

use std::fmt;

use datafusion::common::{Column, DataFusionError, SchemaError, TableReference};
use datafusion::sql::sqlparser::parser::ParserError;
use onehop_io::rados::{self, Problem};

pub(crate) use self::changed_file::Changed;
pub(crate) use self::suggest::nearest;
use crate::type_names::sql_name;
use crate::type_words;

mod changed_file;

/// The maximum nesting depth of brackets, subqueries and CASEs that the parser accepts.
pub(crate) const MAX_NESTED: usize = 160;

/// The result type of the engine.
pub type Result<T> = std::result::Result<T, Error>;

/// The kind of an error, which tells who is responsible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The SQL text cannot be parsed.
    Syntax,
    /// A table, column, function or file does not exist.
    NotFound,
    /// An object of that name already exists.
    AlreadyExists,
    /// The statement is understood but cannot be executed: types, constraints, unsupported
    /// features.
    Invalid,
    /// The data broke a rule while the statement ran: overflow, division by zero, a bad CSV field.
    Data,
    /// Stored bytes do not match their checksum or their format.
    Corrupt,
    /// A newer version of Onehop has stored it in a format that this one does not know.
    TooNew,
    /// Another process has the database, or another session is the writer.
    Locked,
    /// Another session changed data that a transaction would change, after the transaction began.
    Conflict,
    /// The operating system refused.
    Io,
    /// A limit was reached: memory, disk.
    Resources,
    /// The statement was cancelled.
    Cancelled,
    /// The statement took longer than `statement_timeout`.
    Timeout,
    /// The database was opened read-only.
    ReadOnly,
    /// The session lacks the right.
    Denied,
    /// A device was required, and there is none, or it does not support the operation.
    Unmet,
    /// A device failed.
    Device,
    /// An invariant of Onehop is broken.
    Internal,
}

impl ErrorKind {
    /// Returns its stable name in JSON and in other languages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Syntax => "syntax",
            Self::NotFound => "not_found",
            Self::AlreadyExists => "already_exists",
            Self::Invalid => "invalid",
            Self::Data => "data",
            Self::Corrupt => "corrupt",
            Self::TooNew => "too_new",
            Self::Locked => "locked",
            Self::Conflict => "conflict",
            Self::Io => "io",
            Self::Resources => "resources",
            Self::Cancelled => "cancelled",
            Self::Timeout => "timeout",
            Self::ReadOnly => "read_only",
            Self::Denied => "denied",
            Self::Unmet => "unmet",
            Self::Device => "device",
            Self::Internal => "internal",
        }
    }
}

/// The kind of object that an error is about, if callers distinguish it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Object {
    /// A table, a view or a file.
    Table,
    /// A column.
    Column,
    /// A setting.
    Setting,
    /// A prepared statement.
    Statement,
    /// A function.
    Function,
    /// A savepoint of a transaction.
    Savepoint,
}

/// The rule that was broken, if callers distinguish it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A column that is NOT NULL has no NULL.
    NotNull,
    /// A list names a column once.
    NamedOnce,
    /// A character follows an escape.
    Escape,
    /// The mode of a transaction is set before its first statement.
    ModeFirst,
    /// The statement runs in a transaction.
    InTransaction,
    /// The statement runs outside a transaction.
    ByItself,
    /// A number fits its type.
    Range,
    /// A divisor is not zero.
    Divisor,
    /// A string is a valid date or time.
    Moment,
    /// A string has the form of its type.
    Form,
    /// A setting has one of its values.
    Setting,
    /// The number of values is as required.
    Count,
    /// A value does not exceed the maximum length.
    Length,
    /// A scalar subquery has one row.
    OneRow,
    /// A pattern is a regular expression.
    Pattern,
}

/// A position in a statement's text: a line and a column, both from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The line.
    pub line: u64,
    /// The character of the line.
    pub column: u64,
}

/// The hint for data that a newer version has stored.
pub(crate) const NEWER: &str = "use the newer onehop that wrote it, or a later one";

/// Returns a string in quotes, truncated for a message.
pub(crate) fn shown(text: &str) -> String {
    const LETTERS: usize = 60;
    let short: String = text.chars().take(LETTERS).collect();
    if short.len() < text.len() { format!("'{short}...'") } else { format!("'{text}'") }
}

/// The operating system's text for this error, from any component.
const TOO_MANY_OPEN_FILES: &str = "(os error 24)";
const MORE_OPEN_FILES: &str = "the process may have more open files after `ulimit -n 65536`, or Python's \
                               resource.setrlimit(resource.RLIMIT_NOFILE, ...); with more memory_limit less is spilled to files";

/// The hint for a device that fails.
const SICK_DEVICE: &str = "`onehop doctor` looks at the device; SET gpu.mode = 'off' runs queries without it";

/// An error with a message for people.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    hint: Option<String>,
    object: Option<Object>,
    rule: Option<Rule>,
    place: Option<Place>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// Creates an error with a message.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hint: None, object: None, rule: None, place: None, source: None }
    }

    /// Adds a hint with a remedy.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Adds the cause. Its text is *not* appended to the message.
    #[must_use]
    pub fn with_source(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.source = Some(Box::new(source));
        self
    }

    /// Sets the kind of object that the error is about.
    #[must_use]
    pub fn of(mut self, object: Object) -> Self {
        self.object = Some(object);
        self
    }

    /// Sets the broken rule.
    #[must_use]
    pub fn breaking(mut self, rule: Rule) -> Self {
        self.rule = Some(rule);
        self
    }

    /// Sets the position in the statement's text.
    pub(crate) fn at(mut self, place: Place) -> Self {
        self.place = Some(place);
        self
    }

    /// Adds the name of the subject before the message.
    pub(crate) fn about(mut self, what: &str) -> Self {
        self.message = format!("{what}: {}", self.message);
        self
    }

    /// Returns the kind.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns the message, without the hint.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns the kind of object that the error is about, if callers distinguish it.
    pub fn object(&self) -> Option<Object> {
        self.object
    }

    /// Returns the broken rule, if callers distinguish it.
    pub fn rule(&self) -> Option<Rule> {
        self.rule
    }

    /// Returns the position in the statement's text, if it is known.
    pub fn place(&self) -> Option<Place> {
        self.place
    }

    /// Returns the hint with a remedy, if there is one.
    pub fn hint(&self) -> Option<&str> {
        let of_files = || self.message.contains(TOO_MANY_OPEN_FILES).then_some(MORE_OPEN_FILES);
        self.hint.as_deref().or_else(of_files)
    }

    /// Returns the error for an unknown table. `names` are the existing tables.
    pub(crate) fn unknown_table<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> Self {
        let error = Self::new(ErrorKind::NotFound, format!("there is no table \"{name}\"")).of(Object::Table);
        let mut names: Vec<&str> = names.into_iter().collect();
        match nearest(name, names.iter().copied()) {
            Some(near) => error.with_hint(format!("did you mean \"{near}\"?")),
            None if names.is_empty() => error.with_hint("the database has no tables yet"),
            None => {
                names.sort_unstable();
                names.truncate(12);
                error.with_hint(format!("tables here: {}", names.join(", ")))
            }
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match self.hint() {
            Some(hint) => write!(f, "\n  hint: {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| &**source as _)
    }
}

impl From<onehop_io::Error> for Error {
    fn from(e: onehop_io::Error) -> Self {
        let kind = if e.is_not_found() { ErrorKind::NotFound } else { ErrorKind::Io };
        Self::new(kind, e.to_string()).with_source(e)
    }
}

impl From<rados::Error> for Error {
    fn from(e: rados::Error) -> Self {
        let kind = match &e {
            rados::Error::Path { problem: Problem::NotFound, .. } => ErrorKind::NotFound,
            rados::Error::Path { problem: Problem::Exists, .. } => ErrorKind::AlreadyExists,
            rados::Error::Corrupt { .. } => ErrorKind::Corrupt,
            rados::Error::Unknown { .. } => ErrorKind::TooNew,
            _ => ErrorKind::Io,
        };
        Self::new(kind, e.to_string()).with_source(e)
    }
}

impl From<onehop_segment::Error> for Error {
    fn from(e: onehop_segment::Error) -> Self {
        use onehop_segment::Error as Segment;
        match e {
            Segment::Io(e) => e.into(),
            Segment::Read { ref source, .. } => {
                let kind = Self::from(source.clone()).kind();
                Self::new(kind, e.to_string()).with_source(e)
            }
            Segment::Corrupt { .. } => Self::new(ErrorKind::Corrupt, e.to_string())
                .with_hint("`onehop check` lists everything that is damaged; load the table again from its source")
                .with_source(e),
            Segment::Version { .. } | Segment::Feature { .. } => {
                Self::new(ErrorKind::TooNew, e.to_string()).with_hint(NEWER).with_source(e)
            }
            Segment::Type { ref data_type, .. } => {
                let message = e.to_string().replacen(&data_type.to_string(), &sql_name(data_type), 1);
                Self::new(ErrorKind::Invalid, message).with_source(e)
            }
            Segment::Null { .. } => Self::new(ErrorKind::Data, e.to_string()).breaking(Rule::NotNull).with_source(e),
            Segment::Value { .. } => Self::new(ErrorKind::Data, e.to_string()).with_source(e),
            Segment::Usage(_) => Self::new(ErrorKind::Internal, e.to_string()).with_source(e),
        }
    }
}

impl From<onehop_store::Error> for Error {
    fn from(e: onehop_store::Error) -> Self {
        use onehop_store::Error as Store;
        let kind = match e {
            Store::Io { .. } | Store::Poisoned { .. } | Store::Displaced { .. } => ErrorKind::Io,
            Store::Corrupt { .. } | Store::Unknown { .. } => ErrorKind::Corrupt,
            Store::Locked { .. } => ErrorKind::Locked,
            Store::ReadOnly { .. } => ErrorKind::ReadOnly,
            Store::Full { .. } | Store::SnapshotTooOld { .. } => ErrorKind::Resources,
            Store::Invalid(_) => ErrorKind::Invalid,
            _ => ErrorKind::Internal,
        };
        let hint = match kind {
            _ if matches!(e, Store::Displaced { .. }) => {
                Some("close the database, put the file back that belongs there, and open it again")
            }
            ErrorKind::Corrupt => Some(
                "restore the database directory from a backup; a newer onehop may know a format that this one does not",
            ),
            _ if e.to_string().contains(TOO_MANY_OPEN_FILES) => Some(MORE_OPEN_FILES),
            ErrorKind::Io => Some("close the database and open it again"),
            ErrorKind::Resources => Some("make room on its disk: nothing of this has happened, and commits go on then"),
            _ => None,
        };
        let error = Self::new(kind, e.to_string()).with_source(e);
        match hint {
            Some(hint) => error.with_hint(hint),
            None => error,
        }
    }
}

impl From<onehop_pipeline::Error> for Error {
    fn from(e: onehop_pipeline::Error) -> Self {
        use onehop_pipeline::Error as Pipeline;
        let kind = match e {
            Pipeline::Segment(e) => return e.into(),
            Pipeline::OutOfRange { hint, .. } => {
                let hint = hint.map(String::from);
                return Self { hint, ..Self::new(ErrorKind::Data, e.to_string()).breaking(Rule::Range).with_source(e) };
            }
            Pipeline::DivisionByZero { .. } => {
                let error = Self::new(ErrorKind::Data, e.to_string()).breaking(Rule::Divisor);
                return error.with_hint(ZERO_DIVISOR).with_source(e);
            }
            Pipeline::Spill { .. } => {
                return Self::new(ErrorKind::Io, e.to_string()).with_hint(NO_PLACE_TO_SPILL).with_source(e);
            }
            Pipeline::Device { .. } => {
                return Self::new(ErrorKind::Device, e.to_string()).with_hint(SICK_DEVICE).with_source(e);
            }
            Pipeline::Memory { .. } => ErrorKind::Resources,
            Pipeline::Cancelled => ErrorKind::Cancelled,
            Pipeline::Invalid(_) | Pipeline::Unsupported(_) => ErrorKind::Internal,
        };
        Self { hint: hint_of(kind), ..Self::new(kind, e.to_string()).with_source(e) }
    }
}

impl From<Error> for DataFusionError {
    fn from(e: Error) -> Self {
        DataFusionError::External(Box::new(e))
    }
}

impl From<arrow::error::ArrowError> for Error {
    fn from(e: arrow::error::ArrowError) -> Self {
        DataFusionError::from(e).into()
    }
}

impl From<DataFusionError> for Error {
    fn from(e: DataFusionError) -> Self {
        if let DataFusionError::ObjectStore(e) = &e
            && let Some(gone) = changed_file::gone(e)
        {
            return gone;
        }
        match e {
            DataFusionError::External(inner) => match inner.downcast::<Error>() {
                Ok(own) => *own,
                Err(other) => match other.downcast::<DataFusionError>() {
                    Ok(nested) => (*nested).into(),
                    Err(other) => {
                        let error = Self::new(ErrorKind::Io, chain(&*other));
                        Self { source: Some(other), ..error }
                    }
                },
            },
            DataFusionError::Context(_, inner) => (*inner).into(),
            DataFusionError::Diagnostic(_, inner) => (*inner).into(),
            DataFusionError::Collection(mut all) if !all.is_empty() => all.swap_remove(0).into(),
            DataFusionError::Shared(shared) => shared_error(&shared),
            DataFusionError::SchemaError(schema, _) => schema_error(*schema),
            DataFusionError::SQL(e, _) if matches!(*e, ParserError::RecursionLimitExceeded) => {
                let message =
                    format!("brackets, subqueries or the like nest too deep: the limit is {MAX_NESTED} levels");
                Self::new(ErrorKind::Syntax, message)
                    .with_hint("split it: into several statements, WITH queries or views")
                    .with_source(*e)
            }
            DataFusionError::SQL(e, _) => {
                let message = e.to_string().trim_start_matches("sql parser error: ").to_string();
                let place = place_of(&message);
                Self { place, ..Self::new(ErrorKind::Syntax, message).with_source(*e) }
            }
            other => {
                let message = plain_message(&other);
                if let Some(refusal) = refused_argument(&message) {
                    let hint = "CAST(x AS type) makes one of another type of it";
                    let hint = refusal.contains(": argument ").then(|| hint.to_string());
                    return Self { hint, ..Self::new(ErrorKind::Invalid, refusal).with_source(other) };
                }
                if let Some(error) = bad_pattern(&message) {
                    return error.with_source(other);
                }
                if let Some(refusal) = unmatched_call(&message) {
                    let error = Self::new(ErrorKind::Invalid, refusal).of(Object::Function).with_source(other);
                    return error.with_hint("CAST(x AS type) makes one of another type of it");
                }
                if let Some(types) = behind(&message, "Cannot run range queries on datatype: ") {
                    let message = format!("RANGE with an offset is not for the type {}", type_words::in_sql(types));
                    let error = Self::new(ErrorKind::Invalid, message).with_source(other);
                    return error.with_hint("ROWS BETWEEN counts rows, whatever their type");
                }
                if let Some(column) = ungrouped_column(&message) {
                    let message = format!("column \"{column}\" must be in GROUP BY, or in an aggregate function");
                    let error = Self::new(ErrorKind::Invalid, message).with_source(other);
                    return error.with_hint(format!("GROUP BY {column}, or any_value({column})"));
                }
                let kind = kind_of(&other);
                let hint = hint_for(&other).or_else(|| hint_of(kind));
                Self { hint, ..Self::new(kind, message).with_source(other) }
            }
        }
    }
}

/// Returns the rest of the first line after `beginning`, without a final period.
fn behind<'a>(text: &'a str, beginning: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(beginning)?;
    let rest = rest.lines().next()?;
    Some(rest.strip_suffix('.').unwrap_or(rest))
}

/// Returns the refusal of arguments by a function of a client. DataFusion adds text before and
/// after it.
fn refused_argument(text: &str) -> Option<&str> {
    let (_, refusal) = text.split_once(" user-defined coercion failed with: Error during planning: ")?;
    let (refusal, _) = refusal.split_once(". No function matches ").unwrap_or((refusal, ""));
    (refusal.starts_with("function ") || refusal.starts_with("ANY and ALL ")).then_some(refusal)
}

/// Returns a message for DataFusion's error about a call whose argument types do not match. The
/// original lists all attempts.
fn unmatched_call(text: &str) -> Option<String> {
    if let Some(types) = behind(text, "Unavailable default cast for native type ") {
        let (wanted, found) = types.split_once(" from physical type ")?;
        let (wanted, found) = (type_words::in_sql(wanted), type_words::in_sql(found));
        return Some(format!("a function takes {wanted}, and there is no conversion of {found} to it"));
    }
    let Some((_, call)) = text.split_once("No function matches the given name and argument types '") else {
        // DataFusion fails like this if it needs the type of a call before its analysis, as in
        // LIMIT.
        let (call, _) = text.split_once("' failed to match any signature")?;
        let (_, name) = call.rsplit_once("Function '")?;
        return Some(format!("function {name} takes no arguments of these types"));
    };
    let (call, _) = call.split_once("'. You might need")?;
    let (name, types) = call.strip_suffix(')')?.split_once('(')?;
    if types.is_empty() {
        return Some(format!("function {name} takes arguments"));
    }
    Some(format!("function {name} takes no arguments of the types ({})", type_words::in_sql(types)))
}

/// Returns the error for Arrow's message about an invalid regular expression in a column.
fn bad_pattern(text: &str) -> Option<Error> {
    let (_, why) = text.split_once("Regular expression did not compile: ")?;
    let why = why.strip_prefix("CompiledTooBig(").map_or(why, |_| "it is too large when it is compiled");
    // The line with the reason follows those that show the position.
    let why = why.rsplit_once("error: ").map_or(why, |(_, why)| why).lines().next().unwrap_or(why);
    Some(Error::new(ErrorKind::Data, format!("invalid regular expression: {why}")).breaking(Rule::Pattern))
}

/// Returns the column that is neither grouped nor aggregated.
fn ungrouped_column(text: &str) -> Option<String> {
    let (_, column) = text.split_once(" must be in GROUP BY or an aggregate function: ")?;
    let (_, column) = column.split_once("column \"")?;
    let (column, _) = column.split_once("\" must appear in the GROUP BY clause")?;
    Some(column.to_string())
}

/// Returns the position of a parser's error. It is only at the end of the message.
fn place_of(message: &str) -> Option<Place> {
    let (_, place) = message.rsplit_once(" at Line: ")?;
    let (line, column) = place.split_once(", Column: ")?;
    Some(Place { line: line.trim().parse().ok()?, column: column.trim().parse().ok()? })
}

/// Converts a shared error, which cannot be consumed. The outermost Onehop error inside determines
/// the result, even if its causes are DataFusion's. Without one, the root is described.
fn shared_error(shared: &DataFusionError) -> Error {
    if let Some(own) = within::<Error>(shared) {
        let Error { kind, object, rule, place, .. } = *own;
        return Error { kind, object, rule, place, message: own.message.clone(), hint: own.hint.clone(), source: None };
    }
    let root = shared.find_root();
    if let Some(error) = bad_pattern(&plain_message(root)) {
        return error;
    }
    let kind = kind_of(root);
    Error { hint: hint_for(root).or_else(|| hint_of(kind)), ..Error::new(kind, plain_message(root)) }
}

fn kind_of(e: &DataFusionError) -> ErrorKind {
    match e {
        DataFusionError::SQL(..) => ErrorKind::Syntax,
        DataFusionError::ArrowError(inner, _) => match &**inner {
            arrow::error::ArrowError::IoError(..) => ErrorKind::Io,
            arrow::error::ArrowError::MemoryError(_) => ErrorKind::Resources,
            // A column of strings beyond 2 GiB.
            arrow::error::ArrowError::ArithmeticOverflow(text) if text.contains("offset overflow") => {
                ErrorKind::Resources
            }
            _ => ErrorKind::Data,
        },
        DataFusionError::ParquetError(_) => ErrorKind::Data,
        DataFusionError::ObjectStore(inner) => match **inner {
            object_store::Error::NotFound { .. } => ErrorKind::NotFound,
            _ => ErrorKind::Io,
        },
        DataFusionError::IoError(inner) if inner.kind() == std::io::ErrorKind::NotFound => ErrorKind::NotFound,
        DataFusionError::IoError(_) => ErrorKind::Io,
        DataFusionError::ResourcesExhausted(_) => ErrorKind::Resources,
        DataFusionError::Execution(_) => ErrorKind::Data,
        DataFusionError::ExecutionJoin(_) | DataFusionError::Internal(_) => ErrorKind::Internal,
        _ => ErrorKind::Invalid,
    }
}

fn hint_of(kind: ErrorKind) -> Option<String> {
    match kind {
        ErrorKind::Resources => {
            Some("raise memory_limit (SET memory_limit = '8GiB'), or lower threads (SET threads = 1)".into())
        }
        _ => None,
    }
}

const NO_PLACE_TO_SPILL: &str = "temp_directory has to be a directory with room, where files can be made (SET temp_directory = \
                                 '/a/larger/disk'), or raise memory_limit (SET memory_limit = '8GiB')";

const ZERO_DIVISOR: &str = "a / nullif(b, 0) is NULL where b is 0";

/// Returns the hint for values that Arrow cannot compute with.
fn hint_for(e: &DataFusionError) -> Option<String> {
    use arrow::error::ArrowError as Arrow;
    let DataFusionError::ArrowError(inner, _) = e else { return None };
    match **inner {
        Arrow::DivideByZero => Some(ZERO_DIVISOR.into()),
        Arrow::CastError(_) => Some("TRY_CAST gives NULL for what does not fit".into()),
        Arrow::ArithmeticOverflow(_) => Some("CAST(x AS DOUBLE) has room for more, at less precision".into()),
        _ => None,
    }
}

/// Returns the innermost message, without DataFusion's prefixes and backtraces.
fn plain_message(e: &DataFusionError) -> String {
    match e {
        DataFusionError::ArrowError(inner, _) => match &**inner {
            arrow::error::ArrowError::ExternalError(source) => chain(&**source),
            arrow::error::ArrowError::DivideByZero => "division by zero".into(),
            // The name of the variant before the text is omitted.
            arrow::error::ArrowError::CastError(text) | arrow::error::ArrowError::InvalidArgumentError(text) => {
                type_words::in_sql(text)
            }
            inner => inner.to_string(),
        },
        DataFusionError::ObjectStore(inner) => chain(&**inner),
        DataFusionError::Plan(_) | DataFusionError::NotImplemented(_) => {
            type_words::in_sql(&e.strip_backtrace_message())
        }
        other => other.strip_backtrace_message(),
    }
}

/// Returns a source chain on one line.
fn chain(e: &(dyn std::error::Error + 'static)) -> String {
    let mut text = e.to_string();
    for part in causes(e).skip(1).map(ToString::to_string) {
        if !text.contains(&part) {
            text = format!("{text}: {part}");
        }
    }
    text
}

/// Returns the error for a column name that several tables have.
pub(crate) fn ambiguous<'n>(column: &str, tables: impl Iterator<Item = &'n str>) -> Error {
    let error = Error::new(ErrorKind::Invalid, format!("the column \"{column}\" is ambiguous")).of(Object::Column);
    let columns: Vec<String> = tables.map(|table| format!("{table}.{column}")).collect();
    match columns.is_empty() {
        true => error.with_hint(format!("the table's name says which one: t.{column}")),
        false => error.with_hint(format!("it may be {}", columns.join(" or "))),
    }
}

/// Returns the outermost cause of a type, which may be the error itself.
pub(crate) fn within<'a, E: std::error::Error + 'static>(e: &'a (dyn std::error::Error + 'static)) -> Option<&'a E> {
    causes(e).find_map(|e| e.downcast_ref())
}

/// Returns an error and its causes.
pub(crate) fn causes<'a>(
    e: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(e), |e| e.source())
}

trait StripBacktrace {
    fn strip_backtrace_message(&self) -> String;
}

impl StripBacktrace for DataFusionError {
    fn strip_backtrace_message(&self) -> String {
        let text = self.message().into_owned();
        match text.find(DataFusionError::BACK_TRACE_SEP) {
            Some(at) => text[..at].to_string(),
            None => text,
        }
    }
}

/// Returns the error for a column of a table that the query does not read. `known` are the tables
/// that it reads.
pub(crate) fn unknown_qualifier(table: &str, column: &str, known: impl Iterator<Item = String>) -> Error {
    let message = format!("there is no table {table} in this query, of which {table}.{column} could be a column");
    let mut tables: Vec<String> = known.collect();
    tables.dedup();
    let error = Error::new(ErrorKind::NotFound, message).of(Object::Table);
    match tables.as_slice() {
        [] => error,
        tables => error.with_hint(format!("tables here: {}; FROM t AS x names one x", tables.join(", "))),
    }
}

fn schema_error(e: SchemaError) -> Error {
    match &e {
        SchemaError::FieldNotFound { field, valid_fields } => {
            let is_of = |table: &TableReference, known: &Column| known.relation.as_ref() == Some(table);
            let error = match &field.relation {
                Some(table) if !valid_fields.is_empty() && !valid_fields.iter().any(|known| is_of(table, known)) => {
                    let tables = valid_fields.iter().filter_map(|known| known.relation.as_ref());
                    return unknown_qualifier(&table.to_string(), &field.name, tables.map(ToString::to_string));
                }
                Some(table) => {
                    Error::new(ErrorKind::NotFound, format!("there is no column \"{}\" in {table}", field.name))
                }
                None => Error::new(ErrorKind::NotFound, format!("there is no column \"{}\"", field.name)),
            };
            let error = error.of(Object::Column);
            let names: Vec<&str> = valid_fields.iter().map(|column| column.name.as_str()).collect();
            match nearest(&field.name, names.iter().copied()) {
                Some(near) => error.with_hint(format!("did you mean \"{near}\"?")),
                None if names.is_empty() => error,
                None => {
                    let shown: Vec<&str> = names.iter().copied().take(12).collect();
                    let more = if names.len() > shown.len() { ", ..." } else { "" };
                    error.with_hint(format!("columns here: {}{more}", shown.join(", ")))
                }
            }
        }
        SchemaError::AmbiguousReference { field } => ambiguous(&field.name, std::iter::empty()).with_source(e),
        _ => Error::new(ErrorKind::Invalid, e.to_string()).with_source(e),
    }
}

mod suggest {
    //! The name most similar to another one.

    /// Returns the name most similar to `wanted`. At most a third of the letters may differ, and
    /// none if there are only one or two. Case is ignored.
    pub fn nearest<'a>(wanted: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
        let wanted = wanted.to_lowercase();
        let limit = match wanted.chars().count() {
            0..3 => 0,
            letters => letters / 3,
        };
        names
            .into_iter()
            .map(|name| (strsim::damerau_levenshtein(&wanted, &name.to_lowercase()), name))
            .filter(|(distance, _)| *distance <= limit)
            .min()
            .map(|(_, name)| name)
    }

    #[cfg(test)]
    mod tests {
        use super::nearest;

        #[test]
        fn near_names_are_found_and_far_ones_are_not() {
            let names = ["lineorder", "customer", "date"];
            assert_eq!(nearest("lineordr", names), Some("lineorder"));
            assert_eq!(nearest("CUSTOMERS", names), Some("customer"));
            assert_eq!(nearest("dtae", names), Some("date"));
            assert_eq!(nearest("warehouse", names), None);
            assert_eq!(nearest("b", ["a", "B"]), Some("B"));
            assert_eq!(nearest("foo", ["cos", "bar"]), None);
        }
    }
}
