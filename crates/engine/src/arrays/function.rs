//! The SQL functions for exports. `onehop_export('table' [, 'x, y' [, 'nan']])` returns a handle
//! for another process. `onehop_release('handle')` returns whether there was such an export.
//!
//! Both have side effects on each call, so neither is evaluated during planning. A table is
//! exported in its committed state.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::{Array as _, ArrayRef, AsArray, BooleanArray, StringArray};
use arrow::compute::cast;
use arrow::datatypes::DataType;
use datafusion::common::{Result as DataFusionResult, ScalarValue};
use datafusion::execution::{FunctionRegistry, SessionState};
use datafusion::logical_expr::async_udf::{AsyncScalarUDF, AsyncScalarUDFImpl};
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDFImpl, Signature, TypeSignature, Volatility,
};
use futures::future::BoxFuture;

use super::{Nulls, Wanted, host};
use crate::query::Query;
use crate::rights::Rights;
use crate::settings::Settings;
use crate::snapshot::Snapshot;
use crate::{Error, ErrorKind, Result};

const EXPORT: &str = "onehop_export";
const RELEASE: &str = "onehop_release";

/// Exports of committed tables to other processes. The session implements it.
pub(crate) trait TableExports: Send + Sync {
    /// Returns the committed state.
    fn snapshot(&self) -> Arc<Snapshot>;

    /// Exports columns of a table, and returns the handle.
    ///
    /// # Errors
    /// Errors of reading the table, and of making arrays of its columns.
    fn export(&self, table: String, wanted: Wanted, query: Arc<Query>) -> BoxFuture<'static, Result<String>>;

    /// Releases an export. Returns false if there is none with this handle.
    ///
    /// # Errors
    /// The handle cannot be parsed.
    fn release(&self, handle: &str) -> Result<bool>;
}

/// The part of a session that the functions of a statement need.
#[derive(Clone)]
pub(crate) struct Exporting {
    pub tables: Arc<dyn TableExports>,
    pub settings: Settings,
    pub in_transaction: bool,
    pub snapshot: Arc<Snapshot>,
    pub query: Arc<Query>,
}

impl fmt::Debug for Exporting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exporting").finish_non_exhaustive()
    }
}

impl Exporting {
    /// Registers the functions for a statement.
    ///
    /// # Errors
    /// Errors of registering a function.
    pub fn bind(self, state: &mut SessionState) -> Result<()> {
        let host = Arc::new(self);
        for (what, arguments) in [(What::Export, 1..=3), (What::Release, 1..=1)] {
            let signatures = arguments.map(TypeSignature::String).collect();
            let signature = Signature::one_of(signatures, Volatility::Volatile);
            let function = Function { what, host: Arc::clone(&host), signature };
            state.register_udf(Arc::new(AsyncScalarUDF::new(Arc::new(function)).into_scalar_udf()))?;
        }
        Ok(())
    }

    async fn export(&self, table: &str, columns: Option<&str>, nulls: Option<&str>) -> Result<String> {
        self.settings.rights().need(Rights::Admin, EXPORT)?;
        if self.in_transaction {
            let error = Error::new(ErrorKind::Invalid, format!("{EXPORT} cannot be called in a transaction"));
            return Err(error.with_hint("COMMIT first: tables are exported as they are committed"));
        }
        let nulls = match nulls {
            None | Some("error") => Nulls::Refused,
            Some("nan") => Nulls::NaN,
            Some(other) => {
                let message = format!("{EXPORT}: nulls are 'error' or 'nan', and not '{other}'");
                return Err(Error::new(ErrorKind::Invalid, message));
            }
        };
        let columns = match columns {
            Some(names) => names.split(',').map(|name| name.trim().to_string()).collect(),
            None => self.all_columns(table)?,
        };
        self.shared(table, columns, nulls).await
    }

    /// Returns a handle to columns of a table for a helper process that runs functions. It is valid
    /// until [`Exporting::done_with`].
    ///
    /// # Errors
    /// Errors of an export.
    pub async fn for_function(&self, table: &str, columns: &[String]) -> Result<String> {
        if self.in_transaction {
            let message = format!("functions in CUDA cannot have \"{table}\" in a transaction");
            return Err(Error::new(ErrorKind::Invalid, message)
                .with_hint("COMMIT first: they have tables as they are committed"));
        }
        self.shared(table, columns.to_vec(), Nulls::Refused).await
    }

    /// Releases an export of [`Exporting::for_function`].
    pub fn done_with(&self, handle: &str) {
        // The handle is valid, and an export that has already ended needs no release.
        let _ = self.tables.release(handle);
    }

    async fn shared(&self, table: &str, columns: Vec<String>, nulls: Nulls) -> Result<String> {
        if self.snapshot.is_temporary(table) {
            let message = format!("\"{table}\" is a temporary table, which no other process can have");
            return Err(Error::new(ErrorKind::Invalid, message).with_hint("CREATE TABLE ... AS SELECT * FROM it"));
        }
        let wanted = Wanted { columns, nulls, ..Wanted::default() };
        self.tables.export(table.to_string(), wanted, Arc::clone(&self.query)).await
    }

    /// Returns the columns that arrays have types for. A notice lists the others.
    fn all_columns(&self, table: &str) -> Result<Vec<String>> {
        let snapshot = self.tables.snapshot();
        let names = snapshot.tables().map(|table| table.name.as_str());
        let found = snapshot.table(table).ok_or_else(|| Error::unknown_table(table, names))?;
        let (kept, left): (Vec<_>, Vec<_>) =
            found.schema.fields().iter().partition(|field| host::element_of(field.data_type()).is_some());
        let name = |field: &&Arc<arrow::datatypes::Field>| field.name().clone();
        if kept.is_empty() {
            let message = format!("\"{table}\" has no columns that arrays have types for");
            return Err(Error::new(ErrorKind::Invalid, message).with_hint("they hold numbers and truth values"));
        }
        if !left.is_empty() {
            let left: Vec<String> = left.iter().map(name).collect();
            self.query.notice(format!("left out of the export, for arrays have no such types: {}", left.join(", ")));
        }
        Ok(kept.iter().map(name).collect())
    }

    fn release(&self, handle: &str) -> Result<bool> {
        self.settings.rights().need(Rights::Admin, RELEASE)?;
        self.tables.release(handle)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum What {
    Export,
    Release,
}

#[derive(Debug)]
struct Function {
    what: What,
    host: Arc<Exporting>,
    signature: Signature,
}

impl PartialEq for Function {
    fn eq(&self, other: &Self) -> bool {
        self.what == other.what && Arc::ptr_eq(&self.host, &other.host)
    }
}

impl Eq for Function {}

impl Hash for Function {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.what.hash(state);
    }
}

impl ScalarUDFImpl for Function {
    fn name(&self) -> &str {
        match self.what {
            What::Export => EXPORT,
            What::Release => RELEASE,
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> DataFusionResult<DataType> {
        Ok(match self.what {
            What::Export => DataType::Utf8,
            What::Release => DataType::Boolean,
        })
    }

    fn invoke_with_args(&self, _: ScalarFunctionArgs) -> DataFusionResult<ColumnarValue> {
        Err(Error::new(ErrorKind::Internal, format!("{} is called where nothing can be waited for", self.name()))
            .into())
    }
}

#[async_trait::async_trait]
impl AsyncScalarUDFImpl for Function {
    async fn invoke_async_with_args(&self, args: ScalarFunctionArgs) -> DataFusionResult<ColumnarValue> {
        let arguments = args.args.iter().map(|argument| {
            let array = argument.to_array(args.number_rows)?;
            Ok(cast(&array, &DataType::Utf8)?)
        });
        let arguments = arguments.collect::<DataFusionResult<Vec<ArrayRef>>>()?;
        let argument = |number: usize, row: usize| {
            let array = arguments.get(number)?.as_string::<i32>();
            array.is_valid(row).then(|| array.value(row).to_string())
        };
        let (mut handles, mut released) = (Vec::new(), Vec::new());
        for row in 0..args.number_rows {
            // A NULL argument gives NULL.
            let first = argument(0, row).filter(|_| arguments.iter().all(|array| array.is_valid(row)));
            match self.what {
                What::Export => handles.push(match first {
                    Some(table) => {
                        let (columns, nulls) = (argument(1, row), argument(2, row));
                        Some(self.host.export(&table, columns.as_deref(), nulls.as_deref()).await?)
                    }
                    None => None,
                }),
                What::Release => released.push(first.map(|handle| self.host.release(&handle)).transpose()?),
            }
        }
        let array: ArrayRef = match self.what {
            What::Export => Arc::new(StringArray::from(handles)),
            What::Release => Arc::new(BooleanArray::from(released)),
        };
        match array.len() {
            1 => Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&array, 0)?)),
            _ => Ok(ColumnarValue::Array(array)),
        }
    }
}
