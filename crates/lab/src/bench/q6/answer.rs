//! The expected answer: DuckDB's for the scale factors with a stored one. For all others it comes
//! from a loop over the generator's rows, one at a time, that shares no code with the measured one.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::thread;

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::{Date32Type, Decimal128Type};
use serde::{Deserialize, Serialize};

use super::{ANSWER_SCALE, Error, Result};
use crate::bench::answers;
use crate::generate::{Generator, Tpch};

/// The name of the query among the stored answers.
const QUERY: &str = "q06";

/// Its stored answer at a scale factor without answers of other queries.
const AT_SCALE_10: &str = include_str!("../../../answers/tpch/sf10/q06.csv");

/// The source of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// DuckDB's, stored.
    DuckDb,
    /// A loop over the generator's rows.
    Rows,
}

/// The expected answer of the query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// The answer in ten thousandths.
    pub answer: i128,
    /// The source.
    pub source: Source,
}

impl Expected {
    /// Returns the answer at a scale factor.
    ///
    /// # Errors
    /// Fails if there is no data for the scale. Returns [`Error::Cancelled`].
    pub fn at(scale: f64, threads: usize, cancel: &AtomicBool) -> Result<Self> {
        match stored(scale) {
            Some(answer) => Ok(Self { answer, source: Source::DuckDb }),
            None => Ok(Self { answer: by_rows(scale, threads, cancel)?, source: Source::Rows }),
        }
    }
}

fn stored(scale: f64) -> Option<i128> {
    let text = if scale == 10.0 { Some(AT_SCALE_10) } else { answers::stored(QUERY, scale) }?;
    parse(text.lines().nth(1)?)
}

/// Parses an answer such as `123141078.2283`.
fn parse(text: &str) -> Option<i128> {
    let (whole, fraction) = text.trim().split_once('.')?;
    (fraction.len() == ANSWER_SCALE as usize).then(|| format!("{whole}{fraction}").parse().ok())?
}

/// Formats an answer as a decimal number.
pub fn text(answer: i128) -> String {
    let (sign, digits) = (if answer < 0 { "-" } else { "" }, answer.unsigned_abs());
    let one = 10u128.pow(ANSWER_SCALE);
    format!("{sign}{}.{:0width$}", digits / one, digits % one, width = ANSWER_SCALE as usize)
}

fn by_rows(scale: f64, threads: usize, cancel: &AtomicBool) -> Result<i128> {
    let generator = Tpch::new(scale)?;
    let (chunks, next) = (generator.chunks("lineitem")? as u64, AtomicU64::new(0));
    let outcome = Mutex::new(Ok(0i128));
    let work = || -> Result<i128> {
        let mut sum = 0;
        loop {
            let chunk = next.fetch_add(1, Relaxed);
            if chunk >= chunks {
                return Ok(sum);
            }
            for batch in generator.chunk("lineitem", chunk as usize)? {
                if cancel.load(Relaxed) {
                    return Err(Error::Cancelled);
                }
                sum += of_batch(&batch?)?;
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                let part = work();
                let mut outcome = outcome.lock().unwrap_or_else(PoisonError::into_inner);
                match (&mut *outcome, part) {
                    (Ok(sum), Ok(part)) => *sum += part,
                    (Ok(_), Err(e)) => *outcome = Err(e),
                    (Err(_), _) => {}
                }
            });
        }
    });
    outcome.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Computes the query row by row. 1994 is days 8,766 to 9,130 of the epoch that begins with 1970.
fn of_batch(batch: &RecordBatch) -> Result<i128> {
    let column = |name: &str| {
        let missing = || Error::Refused { object: "the generator".into(), reason: format!("has no {name}") };
        batch.column_by_name(name).ok_or_else(missing)
    };
    let shipdate = column("l_shipdate")?.as_primitive::<Date32Type>();
    let quantity = column("l_quantity")?.as_primitive::<Decimal128Type>();
    let discount = column("l_discount")?.as_primitive::<Decimal128Type>();
    let price = column("l_extendedprice")?.as_primitive::<Decimal128Type>();
    let mut sum = 0;
    for row in 0..batch.num_rows() {
        let is_of_1994 = shipdate.value(row) >= 8766 && shipdate.value(row) < 9131;
        if is_of_1994 && discount.value(row) >= 6 - 1 && discount.value(row) <= 6 + 1 && quantity.value(row) < 24 * 100
        {
            sum += price.value(row) * discount.value(row);
        }
    }
    Ok(sum)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn rows_give_the_stored_answer() {
        let by_rows = by_rows(0.01, 2, &AtomicBool::new(false)).unwrap();
        assert_eq!(Some(by_rows), stored(0.01), "DuckDB's");
        assert_eq!(Expected::at(0.01, 1, &AtomicBool::new(false)).unwrap().source, Source::DuckDb);
        assert_eq!(stored(1.0), Some(1_231_410_782_283));
        assert_eq!(stored(10.0), Some(12_301_136_360_101));
        assert_eq!(stored(3.0), None);
    }

    #[test]
    fn answers_are_written_as_decimals() {
        assert_eq!([text(1_231_410_782_283), text(-5), text(0)], ["123141078.2283", "-0.0005", "0.0000"]);
        assert_eq!((parse("12.3400"), parse("12.34"), parse("x")), (Some(123_400), None, None));
    }

    #[test]
    fn who_cancels_gets_no_answer() {
        assert!(matches!(by_rows(0.01, 2, &AtomicBool::new(true)), Err(Error::Cancelled)));
    }
}
