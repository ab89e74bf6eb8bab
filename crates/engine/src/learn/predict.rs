//! `logregr_predict('m', x, ..)`, `logregr_predict_prob`, `logregr_predict_proba` and
//! `linregr_predict`: a model as a function of its features' values, in their order. The result is
//! NULL if one of them is.
//!
//! The model is that of the statement's snapshot. Its name must be a constant, since planning
//! checks the number of arguments and determines the result type.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::{ArrayRef, AsArray, BooleanArray, Float64Array, Int64Array};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Field, FieldRef, Float64Type};
use datafusion::common::{Result as DataFusionResult, ScalarValue};
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use onehop_learn::logistic::probability;

use super::model::{Kind, Model};
use crate::catalog::Catalog;
use crate::{Error, ErrorKind, Result};

/// The predicted quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum What {
    /// The predicted label, in the label's type; or a number.
    Value,
    /// The probability of label 1.
    Probability,
}

/// Returns the functions, over the models of a catalog.
pub(super) fn functions(catalog: &Arc<Catalog>) -> [ScalarUDF; 4] {
    let models = Arc::new(Models { catalog: Arc::clone(catalog), read: Mutex::default() });
    let function = |name, kind, what| ScalarUDF::from(Predict::new(name, kind, what, &models));
    [
        function("logregr_predict", Kind::Logistic, What::Value),
        function("logregr_predict_prob", Kind::Logistic, What::Probability),
        function("logregr_predict_proba", Kind::Logistic, What::Probability),
        function("linregr_predict", Kind::Linear, What::Value),
    ]
}

/// Models of a catalog, cached after their first use.
#[derive(Debug)]
struct Models {
    catalog: Arc<Catalog>,
    read: Mutex<HashMap<String, Arc<Model>>>,
}

impl Models {
    fn find(&self, name: &str) -> Result<Arc<Model>> {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(model) = read.get(name) {
            return Ok(Arc::clone(model));
        }
        let model = Arc::new(Model::find(name, &self.catalog)?);
        read.insert(name.to_string(), Arc::clone(&model));
        Ok(model)
    }
}

#[derive(Debug)]
struct Predict {
    name: &'static str,
    kind: Kind,
    what: What,
    models: Arc<Models>,
    signature: Signature,
}

impl Predict {
    fn new(name: &'static str, kind: Kind, what: What, models: &Arc<Models>) -> Self {
        let signature = Signature::user_defined(Volatility::Immutable);
        Self { name, kind, what, models: Arc::clone(models), signature }
    }

    fn invalid(&self, problem: impl std::fmt::Display) -> Error {
        Error::new(ErrorKind::Invalid, format!("{}: {problem}", self.name))
    }

    /// Returns the model of a call with `arguments` arguments.
    fn model(&self, name: Option<&ScalarValue>, arguments: usize) -> Result<Arc<Model>> {
        let name = match name.map(ScalarValue::try_as_str) {
            Some(Some(Some(name))) => name,
            _ => return Err(self.invalid("the first argument is the model's name, a text that is a constant")),
        };
        let model = self.models.find(name).map_err(|e| e.about(self.name))?;
        if model.kind != self.kind {
            let right = format!("{}_predict", model.kind.prefix());
            return Err(self
                .invalid(format!("the model \"{name}\" is of another kind"))
                .with_hint(format!("use {right}")));
        }
        let (given, wanted) = (arguments.saturating_sub(1), model.terms.len());
        if given != wanted {
            let names = model.terms.iter().map(|term| term.name.as_str()).collect::<Vec<_>>().join(", ");
            return Err(self
                .invalid(format!("{given} values are given, and the model \"{name}\" has {wanted} features"))
                .with_hint(format!("they are, in this order: {names}")));
        }
        Ok(model)
    }

    fn return_type_of(&self, model: &Model) -> DataType {
        match (self.what, self.kind) {
            (What::Value, Kind::Logistic) if model.label_is_boolean => DataType::Boolean,
            (What::Value, Kind::Logistic) => DataType::Int64,
            _ => DataType::Float64,
        }
    }

    fn predict(&self, model: &Model, features: &[ArrayRef], rows: usize) -> ArrayRef {
        let coefficients = model.coefficients();
        let mut etas = vec![coefficients[0]; rows];
        let mut nulls = None;
        for (feature, coefficient) in features.iter().zip(&coefficients[1..]) {
            let feature = feature.as_primitive::<Float64Type>();
            nulls = NullBuffer::union(nulls.as_ref(), arrow::array::Array::nulls(feature));
            for (eta, x) in etas.iter_mut().zip(feature.values()) {
                *eta += coefficient * x;
            }
        }
        match (self.return_type_of(model), self.kind) {
            (DataType::Boolean, _) => {
                let values = etas.iter().map(|eta| *eta >= 0.0).collect();
                Arc::new(BooleanArray::new(values, known(&etas, nulls)))
            }
            (DataType::Int64, _) => {
                let values = etas.iter().map(|eta| i64::from(*eta >= 0.0)).collect();
                Arc::new(Int64Array::new(values, known(&etas, nulls)))
            }
            (_, Kind::Logistic) => {
                let values = etas.iter().map(|eta| probability(*eta)).collect();
                Arc::new(Float64Array::new(values, nulls))
            }
            (_, Kind::Linear) => Arc::new(Float64Array::new(etas.into(), nulls)),
        }
    }
}

/// Adds NULL for each prediction that is NaN.
fn known(etas: &[f64], nulls: Option<NullBuffer>) -> Option<NullBuffer> {
    match etas.iter().any(|eta| eta.is_nan()) {
        true => NullBuffer::union(nulls.as_ref(), Some(&etas.iter().map(|eta| !eta.is_nan()).collect::<NullBuffer>())),
        false => nulls,
    }
}

/// Equal if it is the same function over the same models.
impl PartialEq for Predict {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && Arc::ptr_eq(&self.models.catalog, &other.models.catalog)
    }
}

impl Eq for Predict {}

impl Hash for Predict {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl ScalarUDFImpl for Predict {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> DataFusionResult<DataType> {
        Err(self.invalid("its type depends on the model").into())
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> DataFusionResult<FieldRef> {
        let name = args.scalar_arguments.first().copied().flatten();
        let model = self.model(name, args.arg_fields.len())?;
        Ok(Arc::new(Field::new(self.name, self.return_type_of(&model), true)))
    }

    fn coerce_types(&self, types: &[DataType]) -> DataFusionResult<Vec<DataType>> {
        let [_, values @ ..] = types else {
            return Err(self.invalid("it takes a model's name and the values of its features").into());
        };
        if let Some(place) =
            values.iter().position(|t| !(t.is_numeric() || matches!(t, DataType::Boolean | DataType::Null)))
        {
            return Err(self.invalid(format!("value {} is no number", place + 1)).into());
        }
        Ok([DataType::Utf8].into_iter().chain(values.iter().map(|_| DataType::Float64)).collect())
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DataFusionResult<ColumnarValue> {
        let name = match args.args.first() {
            Some(ColumnarValue::Scalar(name)) => Some(name),
            _ => None,
        };
        let model = self.model(name, args.args.len())?;
        let is_constant = args.args.iter().all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
        let rows = if is_constant { 1 } else { args.number_rows };
        let features = args.args[1..].iter().map(|arg| arg.to_array(rows)).collect::<DataFusionResult<Vec<_>>>()?;
        let values = self.predict(&model, &features, rows);
        Ok(match is_constant {
            true => ColumnarValue::Scalar(ScalarValue::try_from_array(&values, 0)?),
            false => ColumnarValue::Array(values),
        })
    }
}
