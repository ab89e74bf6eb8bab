//! Runs functions over strings, lists and patterns in slices, and checks their memory first.
//!
//! DataFusion calls a function once for a batch and cannot interrupt the call. A `regexp_replace`
//! of 8,192 long strings runs for minutes after its statement was cancelled, and no account holds
//! its result. This module cuts a batch into slices of a few milliseconds each. Between two slices,
//! the call checks that its statement has not been cancelled. If the arguments tell the size of a
//! result, the call refuses a slice that exceeds the rest of `memory_limit` before computing it.
//! Constant folding uses the same calls.
//!
//! A call whose constant result would be large stays a call. Optimizer rules copy, compare and
//! print constants some hundred times. (DataFusion keeps a call that fails, for it may never be
//! evaluated.)
//!
//! The rows of a function are independent of each other, so the concatenated results of the slices
//! are the result.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::ArrayRef;
use arrow::compute::concat;
use arrow::datatypes::DataType;
use datafusion::common::{DataFusionError, Result, exec_err};
use datafusion::functions::{crypto, encoding, regex, string, unicode};
use datafusion::functions_nested;
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::{ColumnarValue, ExpressionPlacement, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl};
use datafusion::prelude::Expr;

use super::call_sizes;
use super::declared_as::declared_as;
use super::own_memory::values_bytes;
use crate::limits::{go_on, go_on_with};
use crate::{Error, ErrorKind, Rule};

/// The target time of a slice.
const SLICE_TIME: Duration = Duration::from_millis(2);

/// The number of rows of the first slice, unless they are large.
const FIRST_ROWS: usize = 256;

/// The bytes of arguments in the first slice, at most.
const FIRST_BYTES: usize = 64 << 10;

/// The factor by which the next slice may grow, at most.
const GROWTH: usize = 8;

/// A call that makes at most this many bytes does not check the memory limit.
const SMALL_BYTES: u64 = 1 << 20;

/// The bytes of a date and time format, at most.
const MOST_FORMAT_BYTES: u64 = 64 << 10;

/// Functions outside the string and list modules whose arguments decide their time or result size.
const OTHERS: [&str; 10] = [
    "to_char",
    "to_date",
    "to_timestamp",
    "to_timestamp_micros",
    "to_timestamp_millis",
    "to_timestamp_nanos",
    "to_timestamp_seconds",
    "to_time",
    "to_unixtime",
    "strptime",
];

/// The bytes of a constant that the optimizer may substitute for a call, at most.
const MOST_FOLDED_BYTES: u64 = 64 << 10;

thread_local! {
    /// True while this thread optimizes a plan.
    static FOLDS_LITTLE: Cell<bool> = const { Cell::new(false) };
}

/// Optimizes a plan without folding calls into large constants.
pub(super) fn folding_little<T>(optimize: impl FnOnce() -> T) -> T {
    /// Restores the previous flag, also on a panic.
    struct Until(bool);
    impl Drop for Until {
        fn drop(&mut self) {
            FOLDS_LITTLE.set(self.0);
        }
    }
    let _until = Until(FOLDS_LITTLE.replace(true));
    optimize()
}

/// Wraps those of the functions that process strings, lists and patterns, or are in [`OTHERS`].
pub(super) fn bounded(functions: &mut [Arc<ScalarUDF>]) {
    let modules = [
        string::functions(),
        unicode::functions(),
        regex::functions(),
        crypto::functions(),
        encoding::functions(),
        functions_nested::all_default_nested_functions(),
    ];
    let names: Vec<String> = modules.iter().flatten().map(|function| function.name().to_string()).collect();
    for function in functions {
        let name = function.name();
        let is_one = OTHERS.contains(&name) || names.iter().any(|known| known == name);
        if is_one && !function.short_circuits() && !function.inner().is::<Bounded>() {
            *function = Arc::new(ScalarUDF::from(Bounded { of: Arc::clone(function) }));
        }
    }
}

/// A function that runs in slices.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Bounded {
    of: Arc<ScalarUDF>,
}

impl ScalarUDFImpl for Bounded {
    declared_as!(of);

    fn invoke_with_args(&self, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
        go_on()?;
        let arrays = call.args.iter().filter(|arg| matches!(arg, ColumnarValue::Array(_))).count();
        let bytes = arguments_bytes(&call.args);
        if arrays == 0 || (call.number_rows <= FIRST_ROWS && bytes <= FIRST_BYTES) {
            return self.slice(call);
        }
        self.in_slices(&call, bytes)
    }

    fn with_updated_config(&self, config: &datafusion::config::ConfigOptions) -> Option<ScalarUDF> {
        let of = Arc::new(self.of.inner().with_updated_config(config)?);
        Some(ScalarUDF::from(Self { of }))
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        self.of.coerce_types(types)
    }

    fn is_strict(&self) -> bool {
        self.of.inner().is_strict()
    }

    fn simplify(&self, args: Vec<Expr>, context: &SimplifyContext) -> Result<ExprSimplifyResult> {
        self.of.simplify(args, context)
    }

    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        self.of.schema_name(args)
    }

    fn documentation(&self) -> Option<&datafusion::logical_expr::Documentation> {
        self.of.documentation()
    }

    fn placement(&self, args: &[ExpressionPlacement]) -> ExpressionPlacement {
        self.of.placement(args)
    }
}

impl Bounded {
    /// Computes one slice if its result fits into the memory limit.
    fn slice(&self, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
        if OTHERS.contains(&self.of.name()) {
            self.check_formats(&call)?;
        }
        let made = call_sizes::estimate(self.of.name(), &call)?;
        if made > SMALL_BYTES {
            go_on_with(made)?;
        }
        let result = self.of.invoke_with_args(call).map_err(|e| match e {
            // Invalid arguments are not an internal error.
            DataFusionError::Internal(text) => DataFusionError::Execution(text),
            e => e,
        })?;
        if FOLDS_LITTLE.get() && call_sizes::bytes_of(&result) > MOST_FOLDED_BYTES {
            return exec_err!("the result is too large for a plan");
        }
        Ok(result)
    }

    /// Fails if a format is too long. The function parses it for each row, without interruption.
    fn check_formats(&self, call: &ScalarFunctionArgs) -> Result<()> {
        for format in call.args.iter().skip(1) {
            let longest = call_sizes::longest(format)?;
            if longest > MOST_FORMAT_BYTES {
                let message = format!("a format of {}() has {longest} bytes", self.of.name());
                let error = Error::new(ErrorKind::Data, message).breaking(Rule::Length);
                return Err(error.with_hint(format!("a format has {MOST_FORMAT_BYTES} bytes at most")).into());
            }
        }
        Ok(())
    }

    fn in_slices(&self, call: &ScalarFunctionArgs, bytes: usize) -> Result<ColumnarValue> {
        let rows = call.number_rows;
        let row_bytes = (bytes / rows.max(1)).max(1);
        let mut size = FIRST_ROWS.min(FIRST_BYTES / row_bytes).max(1);
        let mut results: Vec<ArrayRef> = Vec::new();
        let mut start = 0;
        while start < rows {
            go_on()?;
            let length = size.min(rows - start);
            let began = Instant::now();
            results.push(self.slice(part(call, start, length))?.into_array(length)?);
            size = next_size(size, began.elapsed());
            start += length;
        }
        // `concat` copies all results into one array.
        let made: usize = results.iter().map(|result| values_bytes(result.as_ref())).sum();
        go_on_with(made as u64)?;
        let results: Vec<_> = results.iter().map(AsRef::as_ref).collect();
        Ok(ColumnarValue::Array(concat(&results)?))
    }
}

/// Returns the number of rows of the slice after one of `size` rows that took `elapsed`.
fn next_size(size: usize, elapsed: Duration) -> usize {
    let (target, took) = (SLICE_TIME.as_nanos(), elapsed.as_nanos().max(1));
    let wanted = (size as u128 * target / took).clamp(1, (size * GROWTH) as u128);
    wanted as usize
}

fn part(call: &ScalarFunctionArgs, start: usize, length: usize) -> ScalarFunctionArgs {
    let sliced = |arg: &ColumnarValue| match arg {
        ColumnarValue::Array(array) => ColumnarValue::Array(array.slice(start, length)),
        scalar @ ColumnarValue::Scalar(_) => scalar.clone(),
    };
    ScalarFunctionArgs { args: call.args.iter().map(sliced).collect(), number_rows: length, ..call.clone() }
}

/// Returns the bytes of the array arguments.
fn arguments_bytes(args: &[ColumnarValue]) -> usize {
    let bytes = |arg: &ColumnarValue| match arg {
        ColumnarValue::Array(array) => values_bytes(array.as_ref()),
        ColumnarValue::Scalar(_) => 0,
    };
    args.iter().map(bytes).fold(0, usize::saturating_add)
}
