//! Golden texts: what a reader finds who looks at what was generated.
