//! What fits have in common: terms with their errors, and what has to be said about them.

/// A term of a fitted model. What cannot be known is `None`.
#[derive(Clone, Debug, PartialEq)]
pub struct Term {
    /// In the feature's own units; `None` for a term that cannot be told from others, which predicts as if it were 0.
    pub coefficient: Option<f64>,
    /// Its standard error.
    pub standard_error: Option<f64>,
    /// The coefficient by its standard error: `z` of a likelihood, Student's `t` of least squares.
    pub statistic: Option<f64>,
    /// How likely it is to be as large or larger if the coefficient were 0.
    pub p_value: Option<f64>,
}

/// A feature that says nothing new.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Aliased {
    /// All of its values are the same.
    Constant,
    /// It is a linear combination of these earlier features (and the intercept).
    Combination(Vec<usize>),
}

/// What whoever reads a model must know. Features are numbered from 0, in the order in which they were given.
#[derive(Clone, Debug, PartialEq)]
pub enum Warning {
    /// A feature was left out, because of others.
    LeftOut {
        /// The feature.
        feature: usize,
        /// Why.
        because: Aliased,
    },
    /// A feature is nearly a linear combination of the others.
    NearlyCollinear {
        /// The feature.
        feature: usize,
        /// By so much the others inflate the variance of its coefficient.
        inflation: f64,
    },
    /// Some linear combination of the features has all rows of one label on one side: the likelihood has no maximum.
    Separated,
    /// The likelihood still grew steadily with the coefficients: labels that features separate, all but some rows.
    Separating {
        /// Rows that are not on their side.
        wrong: u64,
    },
    /// Some rows are separated from the rest by this feature (`None`: by the intercept): the likelihood has no maximum.
    QuasiSeparated {
        /// The feature.
        feature: Option<usize>,
    },
    /// The fit ended before it was good enough.
    NotConverged {
        /// How much the last iteration gained; `None` if it was the first.
        gain: Option<f64>,
    },
    /// No step made the likelihood larger.
    Stalled,
}
