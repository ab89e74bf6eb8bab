//! Functions of dates, times, timestamps and intervals as PostgreSQL computes them: in
//! microseconds, in the session's zone.
//!
//! DataFusion 55.2 computes `date_trunc` and `date_bin` in nanoseconds, so that years before 1678
//! and after 2261 fail. Its `now()` has no zone. The difference of timestamps is a duration, which
//! `extract` does not split into days and hours.
//!
//! Each file contains the kernels of one idea. [`function`] wraps a [`Kernel`] in a function. When
//! a kernel runs, it reads the session's zone from the options that DataFusion passes.

mod bins;
mod clock;
mod differences;
mod formats;
mod parts;
mod series;
mod shifts;
mod sums;
mod truncation;

use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, TimestampMicrosecondArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, IntervalUnit, TimeUnit, TimestampMicrosecondType};
use datafusion::common::Result;
use datafusion::logical_expr::sort_properties::{ExprProperties, SortProperties};
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility};
use datafusion::scalar::ScalarValue;

pub(super) use self::differences::difference_of;
pub(super) use self::formats::{STRFTIME_FORMAT, strftime_format};
pub(super) use self::parts::{IntervalLength, part_of};
pub(super) use self::series::series_of;
pub(super) use self::shifts::{LocalTime, MomentOfLocal, RoundedTimestamp, Shift};
pub(super) use self::sums::with_intervals;
use crate::pg_types::zone::Zone;
use crate::{Error, ErrorKind, Rule};

pub(super) const INTERVAL: DataType = DataType::Interval(IntervalUnit::MonthDayNano);
pub(super) const TIMESTAMP: DataType = DataType::Timestamp(TimeUnit::Microsecond, None);
pub(super) const MICROS: i64 = 1_000_000;
pub(super) const DAY_MICROS: i64 = 86_400 * MICROS;

/// Returns the type TIMESTAMP WITH TIME ZONE.
pub(super) fn timestamptz() -> DataType {
    DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))
}

/// Returns the functions that statements call by name.
pub(super) fn functions() -> Vec<Arc<ScalarUDF>> {
    vec![
        Arc::new(clock::Now::transaction("now", &["current_timestamp", "transaction_timestamp"])),
        Arc::new(clock::Now::clock()),
        Arc::new(clock::Now::statement()),
        truncation::DateTrunc::function(),
        bins::DateBin::function(),
        formats::Reads::to_timestamp(),
        formats::Reads::strptime(),
        strftime_format(),
        shifts::AtTimeZone::function(),
    ]
}

/// A computation of a column from columns.
pub(super) trait Kernel: Debug + PartialEq + Eq + Hash + Send + Sync + 'static {
    fn name(&self) -> &str;

    fn aliases(&self) -> &[String] {
        &[]
    }

    fn volatility(&self) -> Volatility {
        Volatility::Immutable
    }

    /// Returns the types to which arguments are cast. Functions that rules insert receive the right
    /// types.
    fn coerced(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        Ok(types.to_vec())
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType>;

    /// Computes the column in a session of this zone.
    fn run(&self, columns: &[ArrayRef], zone: Zone) -> Result<ArrayRef>;

    fn ordering(&self, _: &[ExprProperties]) -> SortProperties {
        SortProperties::Unordered
    }
}

/// A function that runs a kernel.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Function<K> {
    kernel: K,
    signature: Signature,
}

/// Wraps a kernel in a function.
pub(super) fn function<K: Kernel>(kernel: K) -> ScalarUDF {
    let signature = Signature::user_defined(kernel.volatility());
    ScalarUDF::from(Function { kernel, signature })
}

impl<K: Kernel> ScalarUDFImpl for Function<K> {
    fn name(&self) -> &str {
        self.kernel.name()
    }

    fn aliases(&self) -> &[String] {
        self.kernel.aliases()
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        self.kernel.coerced(types)
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        self.kernel.return_type(types)
    }

    fn invoke_with_args(&self, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let zone = Zone::of_session(&call.config_options);
        let is_scalar = call.args.iter().all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
        let rows = if is_scalar { 1 } else { call.number_rows };
        let columns = call.args.iter().map(|arg| arg.to_array(rows)).collect::<Result<Vec<_>>>()?;
        let column = self.kernel.run(&columns, zone)?;
        Ok(match is_scalar && !columns.is_empty() {
            true => ColumnarValue::Scalar(ScalarValue::try_from_array(&column, 0)?),
            false => ColumnarValue::Array(column),
        })
    }

    fn output_ordering(&self, input: &[ExprProperties]) -> Result<SortProperties> {
        Ok(self.kernel.ordering(input))
    }
}

/// Converts timestamps of any unit and zone to microseconds. Dates become midnights.
pub(super) fn micros_of(values: &ArrayRef) -> Result<TimestampMicrosecondArray> {
    let zone = match values.data_type() {
        DataType::Timestamp(_, zone) => zone.clone(),
        _ => None,
    };
    let micros = cast(values, &DataType::Timestamp(TimeUnit::Microsecond, zone))?;
    Ok(micros.as_primitive::<TimestampMicrosecondType>().clone())
}

/// Returns whether values are moments.
pub(super) fn is_zoned(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Timestamp(_, Some(_)))
}

/// Returns the error for a timestamp that is out of range.
pub(super) fn out_of_range() -> datafusion::common::DataFusionError {
    Error::new(ErrorKind::Data, "a timestamp is out of range").breaking(Rule::Range).into()
}

/// Casts a column of microseconds to this type.
pub(super) fn in_type(micros: TimestampMicrosecondArray, data_type: &DataType) -> Result<ArrayRef> {
    let zone = match data_type {
        DataType::Timestamp(_, zone) => zone.clone(),
        _ => None,
    };
    let micros: ArrayRef = Arc::new(micros.with_timezone_opt(zone));
    Ok(if micros.data_type() == data_type { micros } else { cast(&micros, data_type)? })
}

/// Casts a column of strings to `Utf8`.
pub(super) fn texts(column: &ArrayRef) -> Result<ArrayRef> {
    Ok(cast(column, &DataType::Utf8)?)
}

/// Returns whether a type is a string or NULL. A dictionary of strings is one until the
/// [analyzer](super::dictionary_texts) has decoded it.
pub(super) fn is_text(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(_, values) => values.is_string(),
        other => other.is_string() || other.is_null(),
    }
}
