//! The state of a session's transaction, as clients see it.

/// The state of a session's transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionState {
    /// There is none: each statement is one.
    None,
    /// It goes on.
    Open,
    /// A statement of it has failed: nothing but its end is accepted.
    Failed,
}
