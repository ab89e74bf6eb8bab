//! A user-defined function as a scalar function in SQL.
//!
//! 1. Rows with a NULL among the arguments are skipped, unless the function accepts NULLs.
//! 2. The arguments go to a process as one batch. Python gets NumPy arrays, or Arrow arrays if
//!    there may be NULLs. CUDA gets columns on a device, with one thread for each row.
//! 3. The result is cast to the type that the function returns. Skipped rows are NULL.
//!
//! A table argument is named by a constant, and is the same for all rows. The process gets a handle
//! to it.
//!
//! The permission to run functions is checked at each call: it may have been revoked after
//! planning.

use std::hash::{Hash, Hasher};
use std::io::Cursor;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, RecordBatch, RecordBatchOptions, UInt32Array, new_null_array,
};
use arrow::buffer::NullBuffer;
use arrow::compute::{CastOptions, cast, cast_with_options, filter, take};
use arrow::datatypes::{DataType, Field, Float32Type, Float64Type, Schema, SchemaRef};
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;
use datafusion::common::{Result as DataFusionResult, ScalarValue, plan_err};
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDFImpl, Signature, Volatility};
use serde_json::json;
use tokio::runtime::{Handle, RuntimeFlavor};

use super::definition::{Behavior, Function, Language, OnNull, Parameter, name_of};
use super::helper::{Helper, Host, Program, Said};
use crate::{Error, ErrorKind, Result};

/// The handles of tables by argument name.
type Handles = serde_json::Map<String, serde_json::Value>;

/// A function of a statement.
#[derive(Debug)]
pub(super) struct UserFunction {
    name: String,
    function: Arc<Function>,
    /// The types of the arguments; that of a table is a struct.
    types: Vec<DataType>,
    returns: DataType,
    signature: Signature,
    host: Arc<Host>,
}

impl UserFunction {
    pub fn new(name: &str, function: Function, host: &Arc<Host>) -> Result<Self> {
        let types = function.arguments.iter().map(|argument| argument.data_type()).collect::<Result<Vec<_>>>()?;
        let returns = function.return_type()?;
        // No function is immutable for DataFusion. Plans with immutable functions are shared among
        // statements, which have their own processes.
        let volatility = match function.behavior {
            Behavior::Immutable | Behavior::Stable => Volatility::Stable,
            Behavior::Volatile => Volatility::Volatile,
        };
        let signature = Signature::user_defined(volatility);
        let (function, host) = (Arc::new(function), Arc::clone(host));
        Ok(Self { name: name.into(), function, types, returns, signature, host })
    }

    /// Checks that the language accepts the function.
    ///
    /// # Errors
    /// The message of the language, with the line.
    pub fn check(&self) -> Result<()> {
        let mut helper = self.helper()?;
        self.number_in(&mut helper)?;
        self.host.helpers.give(helper);
        Ok(())
    }

    /// Returns the columns of its rows. See [`super::columns_of_rows`].
    pub fn columns_of_rows(&self) -> Vec<String> {
        self.function.columns.iter().map(|column| column.name.clone()).collect()
    }

    fn helper(&self) -> Result<Helper> {
        let language = self.function.language;
        let is_allowed = match language {
            Language::Python => self.host.allows_python,
            Language::Cuda => self.host.allows_cuda,
        };
        if !is_allowed {
            let message = format!("{}: functions in {} are not allowed", self.name, language.title());
            return Err(Error::new(ErrorKind::Invalid, message).with_hint(format!(
                "SET functions.allow_{} = true lets them run, with all that the process of the database may do",
                language.name()
            )));
        }
        let program = match language {
            Language::Python => Program::python(&self.host.python),
            Language::Cuda => Program::of_devices(self.host.cuda.clone().ok_or_else(|| {
                Error::new(ErrorKind::Unmet, format!("{}: nothing here runs functions in CUDA", self.name))
                    .with_hint("the onehop command, its server and the Python package do")
            })?),
        };
        self.host.helpers.take(&program)
    }

    /// Returns a process that has answered to the pool, if it can be used again.
    fn done_with(&self, helper: Helper, said: &Said) {
        if !said.is_last {
            self.host.helpers.give(helper);
        }
    }

    fn error(&self, said: &Said) -> Error {
        let what = said.error.as_deref().unwrap_or("nothing");
        let line = said.line.map(|line| format!(", line {line}")).unwrap_or_default();
        let error = Error::new(ErrorKind::Data, format!("function {}{line}: {what}", self.name));
        match &said.missing {
            Some(module) => error.with_hint(format!(
                "{} has no module {module}: install it there (functions need pyarrow and numpy), or SET functions.python = \
                 '/path/to/python3'",
                self.host.python
            )),
            None => error,
        }
    }

    /// Returns the number of the function in a process. Defines it there if necessary.
    fn number_in(&self, helper: &mut Helper) -> Result<u64> {
        let key = format!("{}\0{}", self.name, self.function.encode()?);
        if let Some(number) = helper.defined.get(&key) {
            return Ok(*number);
        }
        let number = helper.defined.len() as u64;
        let arguments: Vec<&str> = self.function.arguments.iter().map(|argument| argument.name.as_str()).collect();
        let nulls = match self.function.on_null {
            OnNull::Null => "left out",
            OnNull::Called => "seen",
        };
        let request = json!({
            "define": number, "name": self.name, "arguments": arguments, "source": self.function.source, "nulls": nulls,
        });
        let result = Field::new("result", wire_type(&self.returns), true);
        let fields: Vec<Field> = self.argument_fields().chain([result]).collect();
        let writer = StreamWriter::try_new(Vec::new(), &Schema::new(fields))?;
        let (said, _) = helper.ask(&request, writer.into_inner()?, &self.host.query)?;
        if said.error.is_some() {
            return Err(self.error(&said));
        }
        helper.defined.insert(key, number);
        Ok(number)
    }

    /// Returns the type to which an argument of a given type is coerced.
    fn taken(&self, argument: &Parameter, wanted: &DataType, given: &DataType) -> DataFusionResult<DataType> {
        let told = match wanted {
            // A table is named by a string.
            DataType::Struct(_) => DataType::Utf8View,
            other => other.clone(),
        };
        // A numeric literal has the widest type. Its value is narrowed later, if it fits.
        let written = wide(&told);
        if let Some(taken) = [&told, &written].into_iter().find(|taken| keeps_values(taken, given)) {
            return Ok(taken.clone());
        }
        plan_err!(
            "function {}: argument {} is {}, and {} is given",
            self.name,
            argument.name,
            name_of(wanted),
            name_of(given)
        )
    }

    /// Casts the values of an argument to its type.
    fn narrowed(&self, argument: &Parameter, given: ArrayRef, wanted: &DataType) -> Result<ArrayRef> {
        if given.data_type() == wanted {
            return Ok(given);
        }
        let error = |why: String| {
            let what = format!("function {}: argument {} is {}: {why}", self.name, argument.name, argument.type_name);
            Error::new(ErrorKind::Data, what)
        };
        let options = CastOptions { safe: false, ..CastOptions::default() };
        let narrowed = cast_with_options(&given, wanted, &options).map_err(|e| error(e.to_string()))?;
        match too_large(&given, &narrowed) {
            Some(value) => Err(error(format!("{value:e} is out of range"))),
            None => Ok(narrowed),
        }
    }

    /// Returns the name of the table for an argument; `None` for NULL.
    fn table_name(&self, argument: &Parameter, given: &ColumnarValue) -> Result<Option<String>> {
        match given {
            ColumnarValue::Scalar(
                ScalarValue::Utf8View(name) | ScalarValue::Utf8(name) | ScalarValue::LargeUtf8(name),
            ) => Ok(name.clone()),
            _ => {
                let message =
                    format!("function {}: argument {} is a table, which a constant names", self.name, argument.name);
                Err(Error::new(ErrorKind::Invalid, message).with_hint("write its name in quotes: 'points'"))
            }
        }
    }

    /// Returns the handles of tables by argument name; `None` if one of the tables is NULL. Blocks.
    fn handles(&self, tables: &[(&Parameter, Option<String>)]) -> Result<Option<Handles>> {
        let mut handles = Handles::new();
        for (argument, name) in tables {
            let Some(name) = name else { return Ok(None) };
            let columns = argument.columns.iter().map(|column| column.name.clone()).collect();
            handles.insert(argument.name.clone(), self.host.tables.handle(name, columns)?.into());
        }
        Ok(Some(handles))
    }

    fn argument_fields(&self) -> impl Iterator<Item = Field> {
        let named = self.function.arguments.iter().zip(&self.types);
        named.map(|(argument, data_type)| Field::new(&argument.name, wire_type(data_type), true))
    }

    /// Calls the function for `rows` rows with these argument columns and table handles.
    fn call(&self, arguments: &[ArrayRef], tables: &Handles, rows: usize) -> Result<ArrayRef> {
        let mut helper = self.helper()?;
        let number = self.number_in(&mut helper)?;
        let columns = self.argument_fields().filter(|field| !matches!(field.data_type(), DataType::Struct(_)));
        let schema: SchemaRef = Arc::new(Schema::new(columns.collect::<Vec<_>>()));
        let mut request = json!({ "call": number, "rows": rows });
        if !tables.is_empty() {
            request["tables"] = tables.clone().into();
        }
        let data = match arguments {
            [] => Vec::new(),
            arguments => {
                let columns =
                    arguments.iter().zip(schema.fields()).map(|(column, field)| cast(column, field.data_type()));
                let columns = columns.collect::<std::result::Result<Vec<_>, _>>()?;
                let options = RecordBatchOptions::new().with_row_count(Some(rows));
                let batch = RecordBatch::try_new_with_options(Arc::clone(&schema), columns, &options)?;
                let mut writer = StreamWriter::try_new(Vec::new(), &schema)?;
                writer.write(&batch)?;
                writer.into_inner()?
            }
        };
        let (said, data) = helper.ask(&request, data, &self.host.query)?;
        self.done_with(helper, &said);
        if said.error.is_some() {
            return Err(self.error(&said));
        }
        let nonsense = |what: String| Error::new(ErrorKind::Internal, format!("function {}: {what}", self.name));
        let mut batches = StreamReader::try_new(Cursor::new(data), None)?;
        let batch = batches.next().ok_or_else(|| nonsense("its process sent no rows".into()))??;
        match batch.columns() {
            [result] if result.len() == rows => Ok(cast(result, &self.returns)?),
            _ => Err(nonsense(format!("its process sent {} rows instead of {rows}", batch.num_rows()))),
        }
    }

    /// Returns the results of rows. Rows with a NULL are skipped unless the function accepts NULLs.
    fn results(&self, arguments: &[ArrayRef], tables: &Handles, rows: usize) -> Result<ArrayRef> {
        let nulls = match self.function.on_null {
            OnNull::Null => arguments
                .iter()
                .fold(None, |all, column| NullBuffer::union(all.as_ref(), column.logical_nulls().as_ref())),
            OnNull::Called => None,
        };
        let Some(nulls) = nulls.filter(|nulls| nulls.null_count() > 0) else {
            return self.call(arguments, tables, rows);
        };
        let whole = rows - nulls.null_count();
        if whole == 0 {
            return Ok(new_null_array(&self.returns, rows));
        }
        let mask = BooleanArray::new(nulls.inner().clone(), None);
        let arguments = arguments.iter().map(|column| filter(column, &mask));
        let results = self.call(&arguments.collect::<std::result::Result<Vec<_>, _>>()?, tables, whole)?;
        let mut next = 0..whole as u32;
        let places: UInt32Array = nulls.iter().map(|is_whole| if is_whole { next.next() } else { None }).collect();
        Ok(take(&results, &places, None)?)
    }
}

/// Returns the type of numeric literals of the same kind.
fn wide(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Float32 => DataType::Float64,
        DataType::List(item) => {
            let wider = item.as_ref().clone().with_data_type(wide(item.data_type()));
            DataType::List(Arc::new(wider))
        }
        other if other.is_integer() => DataType::Int64,
        other => other.clone(),
    }
}

/// Returns a finite value that overflows single precision, which a cast does not report.
fn too_large(given: &ArrayRef, narrowed: &ArrayRef) -> Option<f64> {
    if let (Some(given), Some(narrowed)) = (given.as_list_opt::<i32>(), narrowed.as_list_opt::<i32>()) {
        return too_large(given.values(), narrowed.values());
    }
    let (given, narrowed) = (given.as_primitive_opt::<Float64Type>()?, narrowed.as_primitive_opt::<Float32Type>()?);
    // Values behind NULLs are arbitrary.
    let mut both = given.iter().zip(narrowed).filter_map(|(given, narrowed)| given.zip(narrowed));
    both.find(|(given, narrowed)| given.is_finite() && narrowed.is_infinite()).map(|(given, _)| given)
}

/// Returns whether values of one type may be implicitly taken as those of another. No value
/// changes, except by rounding to floats and to the type's unit of time. Some values may be
/// refused.
fn keeps_values(into: &DataType, from: &DataType) -> bool {
    use DataType::{
        Date32, Decimal32, Decimal64, Decimal128, Decimal256, Dictionary, FixedSizeList, Float32, Float64, Int64,
        LargeList, LargeUtf8, List, Null, Timestamp, Utf8, Utf8View,
    };
    match (into, from) {
        (into, from) if into == from => true,
        (_, Null) => true,
        (into, Dictionary(_, from)) => keeps_values(into, from),
        (Utf8View, from) => !from.is_nested(),
        (List(into), List(from) | LargeList(from) | FixedSizeList(from, _)) => {
            keeps_values(into.data_type(), from.data_type())
        }
        (Float32 | Float64, from) if from.is_integer() => true,
        (Float64, from) => from.is_floating() || from.is_decimal(),
        (Decimal128(_, into), from) if from.is_integer() => *into >= 0,
        (Decimal128(_, into), Decimal32(_, from) | Decimal64(_, from) | Decimal128(_, from) | Decimal256(_, from)) => {
            from <= into
        }
        (Timestamp(_, zone), Timestamp(_, other)) => zone.is_some() == other.is_some(),
        (Timestamp(_, None), Date32) => true,
        (Timestamp(..) | Date32, Utf8 | LargeUtf8 | Utf8View) => true,
        // Narrower integers are taken as this type, and narrowed later.
        (Int64, from) => from.is_integer(),
        _ => false,
    }
}

/// Returns a type that every version of Arrow for Python supports.
fn wire_type(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Utf8View | DataType::LargeUtf8 => DataType::Utf8,
        other => other.clone(),
    }
}

/// Returns the runtime of this thread, if it has other threads that can continue while this one
/// waits.
pub(super) fn runtime_of_threads() -> Option<Handle> {
    Handle::try_current().ok().filter(|runtime| runtime.runtime_flavor() == RuntimeFlavor::MultiThread)
}

/// Runs work that waits for another process. The runtime uses another thread meanwhile.
fn blocking<T>(work: impl FnOnce() -> T) -> T {
    match runtime_of_threads() {
        Some(_) => tokio::task::block_in_place(work),
        None => work(),
    }
}

impl PartialEq for UserFunction {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && self.function == other.function && Arc::ptr_eq(&self.host, &other.host)
    }
}

impl Eq for UserFunction {}

impl Hash for UserFunction {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.name, &self.function).hash(state);
    }
}

impl ScalarUDFImpl for UserFunction {
    fn name(&self) -> &str {
        &self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, given: &[DataType]) -> DataFusionResult<Vec<DataType>> {
        let arguments = &self.function.arguments;
        if given.len() != arguments.len() {
            let all: Vec<String> = arguments.iter().map(|argument| argument.text(&str::to_string)).collect();
            return plan_err!(
                "function {} takes ({}), and {} arguments are given",
                self.name,
                all.join(", "),
                given.len()
            );
        }
        let each = arguments.iter().zip(&self.types).zip(given);
        each.map(|((argument, wanted), given)| self.taken(argument, wanted, given)).collect()
    }

    fn return_type(&self, _: &[DataType]) -> DataFusionResult<DataType> {
        Ok(self.returns.clone())
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DataFusionResult<ColumnarValue> {
        let are_constants = args.args.iter().all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
        // A volatile function of constant arguments still has a value for each row.
        let is_constant = are_constants && self.function.behavior != Behavior::Volatile;
        let rows = if is_constant { 1 } else { args.number_rows };
        if rows == 0 {
            return Ok(ColumnarValue::Array(new_null_array(&self.returns, 0)));
        }
        let (mut columns, mut tables) = (Vec::new(), Vec::new());
        for ((argument, wanted), given) in self.function.arguments.iter().zip(&self.types).zip(&args.args) {
            match argument.is_table() {
                true => tables.push((argument, self.table_name(argument, given)?)),
                false => columns.push(self.narrowed(argument, given.to_array(rows)?, wanted)?),
            }
        }
        let results = blocking(|| match self.handles(&tables)? {
            Some(handles) => self.results(&columns, &handles, rows),
            None => Ok(new_null_array(&self.returns, rows)),
        })?;
        Ok(match is_constant {
            true => ColumnarValue::Scalar(ScalarValue::try_from_array(&results, 0)?),
            false => ColumnarValue::Array(results),
        })
    }
}
