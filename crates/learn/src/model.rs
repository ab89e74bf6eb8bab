//! The common parts of fits: terms with their errors, and warnings.

/// A term of a fitted model. Unknown values are `None`.
#[derive(Clone, Debug, PartialEq)]
pub struct Term {
    /// The coefficient in the feature's own units. `None` for a term that depends on others, which
    /// predicts as if it were 0.
    pub coefficient: Option<f64>,
    /// The standard error.
    pub standard_error: Option<f64>,
    /// The ratio of the coefficient to its standard error: `z` of a likelihood, Student's `t` of
    /// least squares.
    pub statistic: Option<f64>,
    /// The probability of a statistic as large or larger if the coefficient were 0.
    pub p_value: Option<f64>,
}

/// A feature that adds no information.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Aliased {
    /// All of its values are the same.
    Constant,
    /// It is a linear combination of these earlier features (and the intercept).
    Combination(Vec<usize>),
}

/// A warning for the reader of a model. Features are numbered from 0, in the given order.
#[derive(Clone, Debug, PartialEq)]
pub enum Warning {
    /// A feature was left out, because of others.
    LeftOut {
        /// The feature.
        feature: usize,
        /// The reason.
        because: Aliased,
    },
    /// A feature is nearly a linear combination of the others.
    NearlyCollinear {
        /// The feature.
        feature: usize,
        /// The factor by which the others inflate the variance of its coefficient.
        inflation: f64,
    },
    /// Some linear combination of the features has all rows of one label on one side: the
    /// likelihood has no maximum.
    Separated,
    /// The likelihood still grew steadily with the coefficients: the features separate the labels,
    /// except for some rows.
    Separating {
        /// The number of misclassified rows.
        wrong: u64,
    },
    /// This feature separates some rows from the rest (`None`: the intercept does): the likelihood
    /// has no maximum.
    QuasiSeparated {
        /// The feature.
        feature: Option<usize>,
    },
    /// The fit ended before it converged.
    NotConverged {
        /// The gain of the last iteration. `None` if it was the first.
        gain: Option<f64>,
    },
    /// No step increased the likelihood.
    Stalled,
}
