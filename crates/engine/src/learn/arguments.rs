//! Parses arguments of table functions: first positional ones, then named ones, each once. Errors
//! name the function and the argument.

use std::sync::Arc;

use arrow::array::Array;
use arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use datafusion::logical_expr::Expr;

use crate::error::nearest;
use crate::{Error, ErrorKind, Result};

/// The parameters of a function in positional order, with aliases for some.
#[derive(Debug)]
pub(super) struct Signature {
    pub function: &'static str,
    pub parameters: &'static [&'static str],
    /// The number of required parameters, from the first.
    pub required: usize,
    pub aliases: &'static [(&'static str, &'static str)],
}

/// The arguments of a call.
#[derive(Clone, Debug)]
pub(super) struct Call {
    signature: &'static Signature,
    values: Vec<Option<ScalarValue>>,
}

impl Call {
    /// Parses the arguments of a call.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if an argument is unknown, or a required one is missing.
    pub fn new(signature: &'static Signature, args: &[Expr]) -> Result<Self> {
        let mut call = Self { signature, values: vec![None; signature.parameters.len()] };
        let mut is_named = false;
        for (place, arg) in args.iter().enumerate() {
            let Expr::Literal(value, _) = arg else {
                return Err(call.invalid(format!("argument {} is no constant", place + 1)));
            };
            let (at, value) = match named(value)? {
                Some((name, value)) => {
                    is_named = true;
                    (call.place_of(&name)?, value)
                }
                None if is_named => return Err(call.invalid("arguments without a name come before those with one")),
                None if place >= call.values.len() => {
                    let most = call.values.len();
                    return Err(call.invalid(format!("{} arguments are given, and it takes {most}", args.len())));
                }
                None => (place, value.clone()),
            };
            if call.values[at].replace(value).is_some() {
                return Err(call.invalid(format!("{} is given twice", signature.parameters[at])));
            }
        }
        match call.values.iter().take(signature.required).position(Option::is_none) {
            Some(missing) => Err(call.invalid(format!("{} is missing", signature.parameters[missing]))),
            None => Ok(call),
        }
    }

    fn place_of(&self, name: &str) -> Result<usize> {
        let Signature { parameters, aliases, .. } = self.signature;
        let meant = aliases.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, meant)| meant);
        parameters.iter().position(|parameter| *parameter == meant).ok_or_else(|| {
            let error = self.error(format!("there is no argument {name}"));
            match nearest(name, parameters.iter().copied()) {
                Some(near) => error.with_hint(format!("did you mean {near}?")),
                None => error.with_hint(format!("it takes {}", parameters.join(", "))),
            }
        })
    }

    fn error(&self, problem: impl std::fmt::Display) -> Error {
        Error::new(ErrorKind::Invalid, format!("{}: {problem}", self.signature.function))
    }

    /// Returns an error about the call as a whole.
    pub fn invalid(&self, problem: impl std::fmt::Display) -> Error {
        self.error(problem).with_hint(format!("it takes {}", self.signature.parameters.join(", ")))
    }

    fn value(&self, name: &str) -> Option<&ScalarValue> {
        let place = self.signature.parameters.iter().position(|parameter| *parameter == name)?;
        self.values[place].as_ref().filter(|value| !value.is_null())
    }

    /// Returns a string argument; `None` if it is NULL or missing.
    pub fn text(&self, name: &str) -> Result<Option<String>> {
        match self.value(name) {
            None => Ok(None),
            Some(value) => match value.try_as_str() {
                Some(Some(text)) => Ok(Some(text.to_string())),
                _ => Err(self.error(format!("{name} is {value}, and must be a text"))),
            },
        }
    }

    /// Returns a required string argument.
    pub fn required_text(&self, name: &str) -> Result<String> {
        self.text(name)?
            .filter(|text| !text.trim().is_empty())
            .ok_or_else(|| self.error(format!("{name} is NULL or empty, and must be a text")))
    }

    /// Returns strings: a list of them, or a single string, which is a list separated by commas.
    pub fn list(&self, name: &str) -> Result<Vec<String>> {
        let texts = match self.value(name) {
            Some(ScalarValue::List(list)) => of_list(list.value(0)),
            Some(ScalarValue::LargeList(list)) => of_list(list.value(0)),
            Some(ScalarValue::FixedSizeList(list)) => of_list(list.value(0)),
            _ => return Ok(vec![self.required_text(name)?]),
        };
        texts
            .filter(|texts| !texts.is_empty())
            .ok_or_else(|| self.error(format!("{name} must be a list of texts, or one text")))
    }

    /// Returns a boolean argument, or a default.
    pub fn boolean(&self, name: &str, default: bool) -> Result<bool> {
        match self.value(name) {
            None => Ok(default),
            Some(ScalarValue::Boolean(Some(value))) => Ok(*value),
            Some(other) => Err(self.error(format!("{name} is {other}, and must be true or false"))),
        }
    }

    /// Returns a numeric argument, or a default.
    pub fn number(&self, name: &str, default: f64) -> Result<f64> {
        let Some(value) = self.value(name) else { return Ok(default) };
        let number = match value.data_type().is_numeric() {
            true => value.cast_to(&DataType::Float64).ok(),
            false => None,
        };
        match number {
            Some(ScalarValue::Float64(Some(number))) => Ok(number),
            _ => Err(self.error(format!("{name} is {value}, and must be a number"))),
        }
    }

    /// Returns an argument that is a number of items, or a default.
    pub fn count(&self, name: &str, default: u32) -> Result<u32> {
        let number = self.number(name, f64::from(default))?;
        let is_count = number.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&number);
        if is_count {
            Ok(number as u32)
        } else {
            Err(self.error(format!("{name} is {number}, and must be a number of them")))
        }
    }
}

/// Parses the struct that [`named_arguments`](crate::planner) makes of `name => value`.
fn named(value: &ScalarValue) -> Result<Option<(String, ScalarValue)>> {
    let ScalarValue::Struct(fields) = value else { return Ok(None) };
    match fields.fields().iter().next() {
        Some(field) if fields.num_columns() == 1 && fields.len() == 1 => {
            Ok(Some((field.name().clone(), ScalarValue::try_from_array(fields.column(0), 0)?)))
        }
        _ => Ok(None),
    }
}

fn of_list(list: Arc<dyn Array>) -> Option<Vec<String>> {
    let text = |place| ScalarValue::try_from_array(&list, place).ok()?.try_as_str()?.map(String::from);
    (0..list.len()).map(text).collect()
}
