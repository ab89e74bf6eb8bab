//! Errors of fits.

/// The result of a fit.
pub type Result<T> = std::result::Result<T, Error>;

/// The reason why there is no model. Features are numbered from 0, in the given order.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// There are no rows.
    #[error("there are no rows")]
    NoRows,
    /// There are more unknowns than equations.
    #[error("{rows} rows are fewer than the {terms} terms of the model")]
    FewRows {
        /// The number of rows.
        rows: u64,
        /// The number of terms, with the intercept.
        terms: usize,
    },
    /// All labels are the same.
    #[error("all labels are {label}")]
    OneClass {
        /// The label of all rows.
        label: u8,
    },
    /// A label is neither 0 nor 1.
    #[error("a label is {value}")]
    Label {
        /// The first such label.
        value: f64,
    },
    /// A sum has left the range of doubles.
    #[error("the values of feature {feature} are too large to be summed")]
    Range {
        /// The feature.
        feature: usize,
    },
    /// The target has left the range of doubles.
    #[error("the values to predict are too large to be summed")]
    TargetRange,
    /// An invalid option.
    #[error("{0}")]
    Option(String),
}
