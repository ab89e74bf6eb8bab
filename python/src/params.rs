//! Python's values as values of parameters. Each means what it is, or is refused: nothing is rounded, cut or guessed.

use onehop_engine::{Error, ErrorKind, Prepared, Temporal, Value};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{
    PyBool, PyByteArray, PyBytes, PyDate, PyDateTime, PyDelta, PyDict, PyFloat, PyInt, PyList, PyMapping, PyMemoryView,
    PySequence, PyString, PyTime, PyTuple, PyTzInfoAccess,
};

use crate::error;

/// Microseconds in a day.
const DAY: i64 = 86_400_000_000;

/// Digits of a DECIMAL.
const MOST_DIGITS: usize = 38;

/// The values of a statement's parameters: of a sequence by their place, of a mapping by their name.
pub fn values(prepared: &Prepared, given: &Bound<'_, PyAny>) -> PyResult<Vec<Value>> {
    if given.cast::<PyString>().is_ok() || given.cast::<PyBytes>().is_ok() {
        return Err(PyTypeError::new_err("params is a sequence or a mapping of values; for one text: [text]"));
    }
    if let Ok(by_name) = given.cast::<PyMapping>() {
        return of_mapping(prepared, by_name);
    }
    if !prepared.names().is_empty() {
        let names = prepared.names().join("\", \"");
        return Err(PyTypeError::new_err(format!("params is a mapping for parameters with names: \"{names}\"")));
    }
    let Ok(sequence) = given.cast::<PySequence>() else {
        let kind = given.get_type().fully_qualified_name()?;
        return Err(PyTypeError::new_err(format!("params is a sequence or a mapping of values, not {kind}")));
    };
    let mut values = Vec::with_capacity(sequence.len()?);
    for (at, item) in sequence.try_iter()?.enumerate() {
        values.push(value(&item?, &format!("${}", at + 1))?);
    }
    Ok(values)
}

fn of_mapping(prepared: &Prepared, given: &Bound<'_, PyMapping>) -> PyResult<Vec<Value>> {
    let py = given.py();
    let refused = |message: String, hint: &str| {
        Err(error::engine(py, &Error::new(ErrorKind::Invalid, message).with_hint(hint.to_string())))
    };
    if prepared.names().is_empty() && prepared.parameters() > 0 {
        return refused("values have names, and the statement's parameters have none".into(), "write them as $name");
    }
    for key in given.keys()?.iter() {
        let known = key.cast::<PyString>().ok().map(|key| key.to_cow()).transpose()?;
        if !known.is_some_and(|key| prepared.names().iter().any(|name| *name == key)) {
            return refused(
                format!("the statement has no parameter {}", key.repr()?),
                "it has one for each $name in it",
            );
        }
    }
    let mut values = Vec::with_capacity(prepared.names().len());
    for name in prepared.names() {
        if !given.contains(name)? {
            return refused(
                format!("nothing is given for the parameter ${name}"),
                "each of its parameters needs a value",
            );
        }
        values.push(value(&given.get_item(name)?, &format!("${name}"))?);
    }
    Ok(values)
}

/// The value of the parameter of that name.
fn value(item: &Bound<'_, PyAny>, name: &str) -> PyResult<Value> {
    let py = item.py();
    if item.is_none() {
        return Ok(Value::Null);
    }
    // Truth values are ints as well, and timestamps are dates.
    if let Ok(truth) = item.cast::<PyBool>() {
        return Ok(Value::Boolean(truth.is_true()));
    }
    if item.cast::<PyInt>().is_ok() {
        return integer(item);
    }
    if let Ok(number) = item.cast::<PyFloat>() {
        return Ok(Value::Double(number.value()));
    }
    if let Ok(text) = item.cast::<PyString>() {
        return Ok(Value::Text(text.to_cow()?.into_owned()));
    }
    if let Ok(bytes) = item.cast::<PyBytes>() {
        return Ok(Value::Binary(bytes.as_bytes().to_vec()));
    }
    if item.cast::<PyByteArray>().is_ok() || item.cast::<PyMemoryView>().is_ok() {
        return Ok(Value::Binary(py.get_type::<PyBytes>().call1((item,))?.extract()?));
    }
    if is_missing(item)? {
        return Ok(Value::Null);
    }
    if let Ok(moment) = item.cast::<PyDateTime>() {
        return timestamp(moment, name);
    }
    if item.cast::<PyDate>().is_ok() {
        return Ok(Value::Temporal(Temporal::Date, iso(item)?));
    }
    if let Ok(time) = item.cast::<PyTime>() {
        return match time.get_tzinfo() {
            None => Ok(Value::Temporal(Temporal::Time, iso(item)?)),
            Some(_) => Err(PyTypeError::new_err(format!("parameter {name}: a time with a time zone has no SQL type"))),
        };
    }
    if let Ok(delta) = item.cast::<PyDelta>() {
        return interval(delta);
    }
    if item.is_instance(&py.import(intern!(py, "onehop.interval"))?.getattr(intern!(py, "Interval"))?)? {
        return interval_of_parts(item, name);
    }
    if item.is_instance(&py.import(intern!(py, "decimal"))?.getattr(intern!(py, "Decimal"))?)? {
        return decimal(item, name);
    }
    if item.cast::<PyList>().is_ok() || item.cast::<PyTuple>().is_ok() {
        return list(item, name);
    }
    if let Ok(fields) = item.cast::<PyDict>() {
        return fields_of(fields, name);
    }
    if let Some(text) = text_of(item)? {
        return Ok(Value::Text(text));
    }
    of_numpy(item, name)?.ok_or_else(|| {
        let kind = item.get_type().fully_qualified_name().map_or_else(|_| "?".to_string(), |kind| kind.to_string());
        PyTypeError::new_err(format!("parameter {name}: {kind} has no SQL type"))
    })
}

/// pandas' `NA` and `NaT`, which are NULL.
fn is_missing(item: &Bound<'_, PyAny>) -> PyResult<bool> {
    let Some(pandas) = imported(item.py(), "pandas")? else { return Ok(false) };
    // While it is imported it has neither.
    for name in ["NA", "NaT"] {
        if let Some(missing) = pandas.getattr_opt(name)?
            && item.is(&missing)
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A module, if anything has imported it: before that there are no objects of it.
fn imported<'py>(py: Python<'py>, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
    Ok(py.import(intern!(py, "sys"))?.getattr("modules")?.get_item(name).ok().filter(|module| !module.is_none()))
}

/// Items of one type, or of types that have a common one.
fn list(items: &Bound<'_, PyAny>, name: &str) -> PyResult<Value> {
    let items = items.try_iter()?.map(|item| value(&item?, name));
    Ok(Value::List(items.collect::<PyResult<Vec<_>>>()?))
}

/// A struct, whose fields have names.
fn fields_of(given: &Bound<'_, PyDict>, name: &str) -> PyResult<Value> {
    let mut fields = Vec::with_capacity(given.len());
    for (key, item) in given.iter() {
        let Ok(key) = key.cast::<PyString>() else {
            return Err(PyTypeError::new_err(format!(
                "parameter {name}: a dict is a struct, whose fields have names, and {} is none",
                key.repr()?
            )));
        };
        fields.push((key.to_cow()?.into_owned(), value(&item, name)?));
    }
    match fields.is_empty() {
        true => Err(PyTypeError::new_err(format!("parameter {name}: a dict without fields has no SQL type"))),
        false => Ok(Value::Struct(fields)),
    }
}

/// What has a text and no SQL type of its own: a UUID, the path of a file.
fn text_of(item: &Bound<'_, PyAny>) -> PyResult<Option<String>> {
    let py = item.py();
    for (module, class) in [("uuid", "UUID"), ("pathlib", "PurePath")] {
        if let Some(module) = imported(py, module)?
            && item.is_instance(&module.getattr(class)?)?
        {
            return Ok(Some(item.str()?.extract()?));
        }
    }
    Ok(None)
}

fn iso(item: &Bound<'_, PyAny>) -> PyResult<String> {
    item.call_method0(intern!(item.py(), "isoformat"))?.extract()
}

/// Any number of digits.
fn integer(item: &Bound<'_, PyAny>) -> PyResult<Value> {
    match item.extract::<i64>() {
        Ok(number) => Ok(Value::Integer(number)),
        // Its own class may print something else.
        Err(_) => Ok(Value::Decimal(item.py().get_type::<PyInt>().call_method1("__repr__", (item,))?.extract()?)),
    }
}

fn decimal(item: &Bound<'_, PyAny>, name: &str) -> PyResult<Value> {
    if !item.call_method0("is_finite")?.extract::<bool>()? {
        return Err(PyValueError::new_err(format!("parameter {name}: DECIMAL has no {item}")));
    }
    let text: String = item.call_method1("__format__", ("f",))?.extract()?;
    // The engine would take a longer one for a DOUBLE.
    if text.trim_start_matches(['-', '0']).bytes().filter(u8::is_ascii_digit).count() > MOST_DIGITS {
        return Err(PyValueError::new_err(format!("parameter {name}: DECIMAL has room for {MOST_DIGITS} digits")));
    }
    Ok(Value::Decimal(text))
}

fn timestamp(moment: &Bound<'_, PyDateTime>, name: &str) -> PyResult<Value> {
    let py = moment.py();
    // Those of pandas have nanoseconds as well, and NaT is one of them.
    if let Ok(nanoseconds) = moment.getattr(intern!(py, "nanosecond"))
        && !nanoseconds.eq(0)?
    {
        return Err(PyValueError::new_err(format!("parameter {name}: {moment} has no value in microseconds")));
    }
    if moment.get_tzinfo().is_none() {
        return Ok(Value::Temporal(Temporal::Timestamp, iso(moment)?));
    }
    let utc = py.import(intern!(py, "datetime"))?.getattr(intern!(py, "timezone"))?.getattr(intern!(py, "utc"))?;
    let in_utc = moment.call_method1(intern!(py, "astimezone"), (utc,))?;
    Ok(Value::Temporal(Temporal::TimestampTz, iso(&in_utc)?))
}

fn interval(delta: &Bound<'_, PyDelta>) -> PyResult<Value> {
    let py = delta.py();
    let part = |name: &Bound<'_, PyString>| delta.getattr(name)?.extract::<i64>();
    let (days, seconds) = (part(intern!(py, "days"))?, part(intern!(py, "seconds"))?);
    let all = i128::from(days) * i128::from(DAY) + i128::from(seconds * 1_000_000 + part(intern!(py, "microseconds"))?);
    let (sign, all) = if all < 0 { ("-", -all) } else { ("", all) };
    let (days, rest) = (all / i128::from(DAY), all % i128::from(DAY));
    let text = format!("{sign}{days} days {sign}{}.{:06} seconds", rest / 1_000_000, rest % 1_000_000);
    Ok(Value::Temporal(Temporal::Interval, text))
}

/// `onehop.Interval`.
fn interval_of_parts(item: &Bound<'_, PyAny>, name: &str) -> PyResult<Value> {
    let (months, days, nanoseconds): (i32, i32, i64) = item.extract()?;
    if nanoseconds % 1000 != 0 {
        let message = format!("parameter {name}: {nanoseconds} ns are not whole microseconds, which an INTERVAL has");
        return Err(PyTypeError::new_err(message));
    }
    let (sign, all) = (if nanoseconds < 0 { "-" } else { "" }, nanoseconds.unsigned_abs());
    let (seconds, rest) = (all / 1_000_000_000, all % 1_000_000_000 / 1000);
    let text = format!("{months} months {days} days {sign}{seconds}.{rest:06} seconds");
    Ok(Value::Temporal(Temporal::Interval, text))
}

/// Scalars of NumPy are what they are in Python, where that is the same; arrays are lists of such.
fn of_numpy(item: &Bound<'_, PyAny>, name: &str) -> PyResult<Option<Value>> {
    let Some(numpy) = imported(item.py(), "numpy")? else { return Ok(None) };
    if item.is_instance(&numpy.getattr("ndarray")?)? && item.getattr("ndim")?.gt(0)? {
        return list(item, name).map(Some);
    }
    if !item.is_instance(&numpy.getattr("generic")?)? {
        return Ok(None);
    }
    let kind: String = item.getattr("dtype")?.getattr("kind")?.extract()?;
    let plain = item.call_method0("item")?;
    // A time that Python has no value for becomes a number, and what Python does not know stays as it is.
    if (matches!(kind.as_str(), "M" | "m") && plain.cast::<PyInt>().is_ok()) || plain.is_instance(&item.get_type())? {
        return Ok(None);
    }
    value(&plain, name).map(Some)
}
