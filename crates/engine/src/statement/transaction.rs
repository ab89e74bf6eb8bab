//! ```text
//! BEGIN [DEFERRED | IMMEDIATE] [TRANSACTION | WORK] [mode, ...] | START TRANSACTION [mode, ...]
//! SET TRANSACTION mode, ... | SET SESSION CHARACTERISTICS AS TRANSACTION mode, ...
//! COMMIT | END | ROLLBACK | ABORT
//! SAVEPOINT name | RELEASE [SAVEPOINT] name | ROLLBACK TO [SAVEPOINT] name
//! ```
//! [`crate::transaction`] describes their semantics.

use std::sync::PoisonError;

use datafusion::sql::sqlparser::ast::{
    Statement as Sql, TransactionAccessMode, TransactionIsolationLevel, TransactionMode, TransactionModifier,
};

use super::{Context, checkpoint, done, residence};
use crate::identifiers::normal;
use crate::query::Done;
use crate::temporary::Temporary;
use crate::transaction::{Ended, Transaction, refuse_failed};
use crate::{Error, ErrorKind, Result, Rule};

/// A parsed statement of these.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Control {
    Begin {
        is_immediate: bool,
        /// The access mode, if the statement states one.
        is_read_only: Option<bool>,
    },
    Commit,
    Rollback,
    Savepoint(String),
    Release(String),
    RollbackTo(String),
}

/// Converts the parser's statement, if it is one of these.
pub(super) fn convert(sql: &Sql) -> Result<Option<Control>> {
    let invalid = |message: &str| Err(Error::new(ErrorKind::Invalid, message));
    Ok(Some(match sql {
        Sql::StartTransaction { modes, modifier, .. } => {
            let is_read_only = read_only(modes)?;
            let is_immediate = match modifier {
                None | Some(TransactionModifier::Deferred) => false,
                Some(TransactionModifier::Immediate | TransactionModifier::Exclusive) => true,
                Some(other) => return invalid(&format!("BEGIN {other} is not supported")),
            };
            Control::Begin { is_immediate, is_read_only }
        }
        Sql::Commit { chain: true, .. } | Sql::Rollback { chain: true, .. } => {
            return invalid("AND CHAIN is not supported");
        }
        Sql::Commit { .. } => Control::Commit,
        Sql::Rollback { savepoint: None, .. } => Control::Rollback,
        Sql::Rollback { savepoint: Some(name), .. } => Control::RollbackTo(normal(name)),
        Sql::Savepoint { name } => Control::Savepoint(normal(name)),
        Sql::ReleaseSavepoint { name } => Control::Release(normal(name)),
        _ => return Ok(None),
    }))
}

/// Returns whether the modes make a transaction read-only, if they say so. Accepts isolation levels
/// that transactions have anyway, and fails on any other.
pub(super) fn read_only(modes: &[TransactionMode]) -> Result<Option<bool>> {
    let mut is_read_only = None;
    for mode in modes {
        match mode {
            TransactionMode::IsolationLevel(TransactionIsolationLevel::Serializable) => {
                let refused = "transactions have snapshot isolation, which is not SERIALIZABLE: two that read what the other \
                               writes may both commit";
                return Err(Error::new(ErrorKind::Invalid, refused).with_hint("BEGIN, without it"));
            }
            TransactionMode::IsolationLevel(_) => {}
            TransactionMode::AccessMode(mode) => is_read_only = Some(*mode == TransactionAccessMode::ReadOnly),
        }
    }
    Ok(is_read_only)
}

impl Control {
    /// Runs the statement.
    pub async fn run(self, context: &Context<'_>) -> Result<Done> {
        match self {
            Self::Begin { is_immediate, is_read_only } => begin(is_immediate, is_read_only, context).await,
            Self::Commit => commit(context).await,
            Self::Rollback => {
                let was_there = context.transaction().take().is_some();
                drop(context.session.temporary().and_then(Temporary::end));
                if !was_there {
                    context.query.notice("there is no transaction to roll back".into());
                }
                Ok(done("ROLLBACK", None))
            }
            Self::Savepoint(name) => {
                in_one_that_goes_on(context.transaction().as_mut(), "SAVEPOINT")?.savepoint(name.clone());
                of_temporary(context, |transaction| {
                    transaction.savepoint(name);
                    Ok(())
                })?;
                Ok(done("SAVEPOINT", None))
            }
            Self::Release(name) => {
                in_one_that_goes_on(context.transaction().as_mut(), "RELEASE")?.release(&name)?;
                of_temporary(context, |transaction| transaction.release(&name))?;
                Ok(done("RELEASE", None))
            }
            Self::RollbackTo(name) => {
                in_one(context.transaction().as_mut(), "ROLLBACK TO")?.roll_back_to(&name)?;
                of_temporary(context, |transaction| transaction.roll_back_to(&name))?;
                Ok(done("ROLLBACK", None))
            }
        }
    }
}

/// Applies the same change to the temporary tables' part of the transaction, if there is one.
fn of_temporary(context: &Context<'_>, change: impl FnOnce(&mut Transaction) -> Result<()>) -> Result<()> {
    let Some(temporary) = context.session.temporary() else { return Ok(()) };
    let mut slot = temporary.transaction().lock().unwrap_or_else(PoisonError::into_inner);
    slot.as_mut().map_or(Ok(()), change)
}

fn in_one<'a>(transaction: Option<&'a mut Transaction>, what: &str) -> Result<&'a mut Transaction> {
    transaction.ok_or_else(|| {
        Error::new(ErrorKind::Invalid, format!("{what} is for transactions, and there is none"))
            .breaking(Rule::InTransaction)
            .with_hint("BEGIN starts one")
    })
}

fn in_one_that_goes_on<'a>(transaction: Option<&'a mut Transaction>, what: &str) -> Result<&'a mut Transaction> {
    let transaction = in_one(transaction, what)?;
    if transaction.is_failed() { Err(refuse_failed()) } else { Ok(transaction) }
}

async fn begin(is_immediate: bool, is_read_only: Option<bool>, context: &Context<'_>) -> Result<Done> {
    if context.transaction().is_some() {
        let error = Error::new(ErrorKind::Invalid, "there is a transaction already");
        return Err(error.with_hint("COMMIT or ROLLBACK ends it; SAVEPOINT is for transactions within one"));
    }
    let mut transaction = if is_immediate {
        let writing = context.database.writing(&context.settings()).await?;
        Transaction::new(context.database.head(&writing)?, Some(writing))
    } else {
        Transaction::new(context.database.snapshot(), None)
    };
    transaction.is_read_only = is_read_only;
    *context.transaction() = Some(transaction);
    Ok(done("BEGIN", None))
}

async fn commit(context: &Context<'_>) -> Result<Done> {
    let Some(transaction) = context.transaction().take() else {
        context.query.notice("there is no transaction to commit: every statement by itself is one".into());
        return Ok(done("COMMIT", None));
    };
    let temporary = context.session.temporary().and_then(|temporary| Some((temporary, temporary.end()?)));
    if transaction.is_failed() {
        context.query.notice("a statement of the transaction had failed, so it was rolled back".into());
        return Ok(done("ROLLBACK", None));
    }
    context.query.settle()?;
    let ended = transaction.commit(context.database, context.query.shared_ledger()).await?;
    committed(ended, context).await?;
    if let Some((temporary, transaction)) = temporary {
        commit_temporary(temporary, transaction, context).await?;
    }
    Ok(done("COMMIT", None))
}

/// Commits the temporary tables' part of a transaction that has ended.
pub(super) async fn commit_temporary<'a>(
    temporary: &'a Temporary,
    transaction: Transaction,
    context: &Context<'a>,
) -> Result<()> {
    let ended = temporary.commit(transaction, context.query.shared_ledger()).await?;
    committed(ended, &context.beside(temporary)).await
}

/// Runs the work that follows a commit.
async fn committed(ended: Ended, context: &Context<'_>) -> Result<()> {
    let Ended::Changed(tables) = ended else { return Ok(()) };
    for name in &tables {
        residence::follow(name, context).await?;
    }
    checkpoint::if_due(&tables, context).await;
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use datafusion::sql::sqlparser::ast::Ident;

    use super::*;

    #[test]
    fn savepoints_have_names_like_all_others() {
        let savepoint = |name| convert(&Sql::Savepoint { name }).unwrap();
        assert_eq!(savepoint(Ident::new("Sp")), Some(Control::Savepoint("sp".into())));
        assert_eq!(savepoint(Ident::with_quote('"', "Sp")), Some(Control::Savepoint("Sp".into())));
    }
}
