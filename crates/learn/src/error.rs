//! What cannot be fitted, and why.

/// The result of a fit.
pub type Result<T> = std::result::Result<T, Error>;

/// Why there is no model. Features are numbered from 0, in the order in which they were given.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// Nothing to learn from.
    #[error("there are no rows")]
    NoRows,
    /// More unknowns than equations.
    #[error("{rows} rows are fewer than the {terms} terms of the model")]
    FewRows {
        /// Rows.
        rows: u64,
        /// Terms, with the intercept.
        terms: usize,
    },
    /// Nothing to tell apart.
    #[error("all labels are {label}")]
    OneClass {
        /// The label that all rows have.
        label: u8,
    },
    /// A label that is neither 0 nor 1.
    #[error("a label is {value}")]
    Label {
        /// The first one found.
        value: f64,
    },
    /// A sum has left the range of doubles.
    #[error("the values of feature {feature} are too large to be summed")]
    Range {
        /// The feature.
        feature: usize,
    },
    /// The value to predict has left the range of doubles.
    #[error("the values to predict are too large to be summed")]
    TargetRange,
    /// An option that makes no sense.
    #[error("{0}")]
    Option(String),
}
