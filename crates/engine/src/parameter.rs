//! Values of the parameters of statements.

/// A value for a parameter of a statement.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// NULL, of whatever type is wanted.
    Null,
    /// TRUE or FALSE.
    Boolean(bool),
    /// A whole number.
    Integer(i64),
    /// A number of type DOUBLE.
    Double(f64),
    /// A number in digits, exactly: `12.50`, `-3`.
    Decimal(String),
    /// A text; also a date or a time, where one is wanted.
    Text(String),
    /// Bytes, whatever they are.
    Binary(Vec<u8>),
    /// A text that is a date or a time wherever it stands.
    Temporal(Temporal, String),
    /// A list of values of one type.
    List(Vec<Value>),
    /// Values by the names of a struct's fields, of which there are some.
    Struct(Vec<(String, Value)>),
}

/// A type that says what a text is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Temporal {
    /// `2024-02-29`.
    Date,
    /// `12:34:56.789`.
    Time,
    /// `2024-02-29 12:34:56.789`.
    Timestamp,
    /// A timestamp with its offset to UTC: `2024-02-29 12:34:56.789+01:00`.
    TimestampTz,
    /// `-3 days 12.5 seconds`.
    Interval,
}
