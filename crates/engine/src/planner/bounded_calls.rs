//! Calls of functions over texts, lists and patterns are made in slices, and ask before they make much.
//!
//! DataFusion calls a function once for a batch, and nothing interrupts the call: 8,192 rows of
//! `regexp_replace` over long texts take minutes after their statement was cancelled, and what they
//! return is in no account. So a batch is cut into slices that take some milliseconds each. Between two
//! of them the call looks whether its statement goes on. A slice that would make more than
//! `memory_limit` leaves is refused before it is made, where the function's arguments tell how much that
//! is. Constants are folded by the same calls.
//!
//! A constant that would be large stays a call: rules of the optimizer copy, compare and print constants
//! some hundred times. (DataFusion keeps a call that fails, for it may never be made.)
//!
//! Rows of a function are independent of each other, so that the slices' results, one behind the other,
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

/// What a slice should take.
const SLICE_TIME: Duration = Duration::from_millis(2);

/// Rows of the first slice, unless they are large.
const FIRST_ROWS: usize = 256;

/// Bytes of arguments in the first slice.
const FIRST_BYTES: usize = 64 << 10;

/// How much more rows the next slice has, at most.
const GROWTH: usize = 8;

/// Results below this size are not asked for.
const SMALL_BYTES: u64 = 1 << 20;

/// Bytes of a format of dates and times, at most.
const MOST_FORMAT_BYTES: u64 = 64 << 10;

/// Functions of other modules than those of texts and lists whose time or result their arguments decide.
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

/// Bytes of a constant that the optimizer puts in the place of a call, at most.
const MOST_FOLDED_BYTES: u64 = 64 << 10;

thread_local! {
    /// Whether this thread optimizes a plan.
    static FOLDS_LITTLE: Cell<bool> = const { Cell::new(false) };
}

/// Optimizes a plan without constants that are large.
pub(super) fn folding_little<T>(optimize: impl FnOnce() -> T) -> T {
    /// Puts back what was there before, also when what is done panics.
    struct Until(bool);
    impl Drop for Until {
        fn drop(&mut self) {
            FOLDS_LITTLE.set(self.0);
        }
    }
    let _until = Until(FOLDS_LITTLE.replace(true));
    optimize()
}

/// The functions, those over texts, lists and patterns bounded.
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

/// A function that is called in slices.
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
    /// One slice, if there is room for what it makes.
    fn slice(&self, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
        if OTHERS.contains(&self.of.name()) {
            self.check_formats(&call)?;
        }
        let made = call_sizes::estimate(self.of.name(), &call)?;
        if made > SMALL_BYTES {
            go_on_with(made)?;
        }
        let result = self.of.invoke_with_args(call).map_err(|e| match e {
            // What is wrong with arguments is no bug.
            DataFusionError::Internal(text) => DataFusionError::Execution(text),
            e => e,
        })?;
        if FOLDS_LITTLE.get() && call_sizes::bytes_of(&result) > MOST_FOLDED_BYTES {
            return exec_err!("the result is too large for a plan");
        }
        Ok(result)
    }

    /// A format is taken apart for each row, in one go.
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
        // They are copied into one.
        let made: usize = results.iter().map(|result| values_bytes(result.as_ref())).sum();
        go_on_with(made as u64)?;
        let results: Vec<_> = results.iter().map(AsRef::as_ref).collect();
        Ok(ColumnarValue::Array(concat(&results)?))
    }
}

/// Rows of the slice after one of `size` rows that took `elapsed`.
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

/// What the columns among the arguments take.
fn arguments_bytes(args: &[ColumnarValue]) -> usize {
    let bytes = |arg: &ColumnarValue| match arg {
        ColumnarValue::Array(array) => values_bytes(array.as_ref()),
        ColumnarValue::Scalar(_) => 0,
    };
    args.iter().map(bytes).fold(0, usize::saturating_add)
}
