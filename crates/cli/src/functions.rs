//! `onehop run-functions`, which is not for people: runs functions in CUDA for a database, in a process of its own, so that what they do
//! to a device's memory they do to nobody else's.
//!
//! Requests come on standard input, responses go to what was standard output, as `crates/engine/src/functions/helper.py` has them. What
//! else prints there, kernels among it, prints to standard error. After an error of the device this process is of no use any
//! more, says so, and ends.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Cursor, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::sync::Arc;

use arrow::array::{Array, ArrayData, ArrayRef, BooleanArray, RecordBatch, make_array};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer};
use arrow::datatypes::{DataType, Field, Schema};
use arrow::error::ArrowError;
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;
use onehop_cuda::functions::{Called, Function, Signature, Wrong};
use onehop_cuda::{Context, Driver, Nvrtc};
use onehop_engine::Element;
use serde_json::{Value, json};

/// What functions run on.
pub type Gpu = (Arc<Context>, Arc<Nvrtc>);

/// The first GPU of this machine.
///
/// # Errors
/// Why there is none, for people.
pub fn first_gpu() -> Result<Gpu, String> {
    let said = |e: onehop_cuda::Error| e.cure().map_or(e.to_string(), |cure| format!("{e}; {cure}"));
    let devices = Driver::load().and_then(|driver| driver.devices()).map_err(said)?;
    let device = devices.first().ok_or("the driver knows no GPU that this process may use")?;
    Ok((device.context().map_err(said)?, Nvrtc::load().map_err(said)?))
}

/// Answers requests until there are no more. The GPU is looked for when the first function is defined.
///
/// # Errors
/// Pipes that break; requests that are none.
pub fn serve(gpu: impl Fn() -> Result<Gpu, String>) -> io::Result<()> {
    let mut responses = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    // SAFETY: both are open, and what was standard output has another descriptor now.
    if unsafe { libc::dup2(libc::STDERR_FILENO, libc::STDOUT_FILENO) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut requests = io::stdin().lock();
    let mut runner = Runner { gpu: None, functions: HashMap::new() };
    while let Some(header) = part(&mut requests)? {
        let data = part(&mut requests)?.ok_or(ErrorKind::UnexpectedEof)?;
        let request: Value = serde_json::from_slice(&header)?;
        let (said, data) = match runner.answer(&request, &data, &gpu) {
            Ok(data) => (json!({}), data),
            Err(Refused { wrong: Wrong { what, line }, is_last }) => {
                (json!({ "error": what, "line": line, "is_last": is_last }), Vec::new())
            }
        };
        for part in [said.to_string().as_bytes(), &data] {
            responses.write_all(&(part.len() as u64).to_le_bytes())?;
            responses.write_all(part)?;
        }
        if said["is_last"] == true {
            break;
        }
    }
    Ok(())
}

/// A part of a request; `None` where there are no more.
fn part(from: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 8];
    match from.read_exact(&mut length) {
        Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let length = u64::from_le_bytes(length);
    let mut bytes = Vec::new();
    let read = from.take(length).read_to_end(&mut bytes)?;
    if (read as u64) < length { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(Some(bytes)) }
}

/// Why there is no result.
#[derive(Debug)]
struct Refused {
    wrong: Wrong,
    is_last: bool,
}

impl From<Wrong> for Refused {
    fn from(wrong: Wrong) -> Self {
        Self { wrong, is_last: false }
    }
}

impl From<String> for Refused {
    fn from(what: String) -> Self {
        Wrong { what, line: None }.into()
    }
}

impl From<ArrowError> for Refused {
    fn from(error: ArrowError) -> Self {
        error.to_string().into()
    }
}

struct Runner {
    gpu: Option<Gpu>,
    /// By the number that whoever asks has given them.
    functions: HashMap<u64, (Function, DataType)>,
}

impl Runner {
    fn answer(
        &mut self,
        request: &Value,
        data: &[u8],
        gpu: &impl Fn() -> Result<Gpu, String>,
    ) -> Result<Vec<u8>, Refused> {
        if let Some(number) = request["define"].as_u64() {
            let source = request["source"].as_str().ok_or_else(|| "a request without a text".to_string())?;
            let schema = StreamReader::try_new(Cursor::new(data), None)?.schema();
            let function = self.define(source, &schema, gpu)?;
            self.functions.insert(number, function);
            return Ok(Vec::new());
        }
        let number = request["call"].as_u64().and_then(|number| self.functions.get_mut(&number));
        let ((function, returns), rows) =
            number.zip(request["rows"].as_u64()).ok_or_else(|| "a request for no function".to_string())?;
        call(function, returns, rows as usize, data)
    }

    fn define(
        &mut self,
        source: &str,
        schema: &Schema,
        gpu: &impl Fn() -> Result<Gpu, String>,
    ) -> Result<(Function, DataType), Refused> {
        let (result, arguments) =
            schema.fields().split_last().ok_or_else(|| "a request without a type of the result".to_string())?;
        let argument = |field: &Arc<Field>| Ok((field.name().clone(), kind_of(field.name(), field.data_type())?));
        let arguments = arguments.iter().map(argument).collect::<Result<Vec<_>, String>>()?;
        let signature = Signature { arguments, returns: kind_of("its result", result.data_type())? };
        let (context, nvrtc) = match &self.gpu {
            Some(gpu) => gpu,
            None => {
                let found = gpu().map_err(|why| format!("functions in CUDA need a GPU, and there is none: {why}"))?;
                self.gpu.insert(found)
            }
        };
        Ok((Function::new(context, nvrtc, source, signature)?, result.data_type().clone()))
    }
}

/// What a column is on a device.
fn kind_of(name: &str, data_type: &DataType) -> Result<Element, String> {
    Ok(match data_type {
        DataType::Boolean => Element::Bool,
        DataType::Int8 => Element::Int8,
        DataType::Int16 => Element::Int16,
        DataType::Int32 | DataType::Date32 => Element::Int32,
        DataType::Int64 | DataType::Timestamp(..) => Element::Int64,
        DataType::UInt8 => Element::UInt8,
        DataType::UInt16 => Element::UInt16,
        DataType::UInt32 => Element::UInt32,
        DataType::UInt64 => Element::UInt64,
        DataType::Float32 => Element::Float32,
        DataType::Float64 => Element::Float64,
        other => {
            return Err(format!(
                "{name} is of type {other}: functions in CUDA have numbers, truth values, dates and timestamps"
            ));
        }
    })
}

/// Results of rows, as a stream of Arrow's.
fn call(function: &mut Function, returns: &DataType, rows: usize, data: &[u8]) -> Result<Vec<u8>, Refused> {
    let batch = match data {
        [] => None,
        data => StreamReader::try_new(Cursor::new(data), None)?.next().transpose()?,
    };
    let arrays: &[ArrayRef] = batch.as_ref().map_or(&[][..], RecordBatch::columns);
    let columns: Vec<Vec<u8>> = arrays.iter().map(bytes_of).collect();
    let expected = &function.signature().arguments;
    let are_whole = columns.iter().zip(expected).all(|(column, (_, kind))| column.len() == rows * kind.bytes());
    if columns.len() != expected.len() || !are_whole {
        return Err(format!("{} columns where {} of {rows} rows are wanted", columns.len(), expected.len()).into());
    }
    let columns: Vec<&[u8]> = columns.iter().map(Vec::as_slice).collect();
    let got = function.call(&columns, rows).map_err(|e| match e {
        Called::Failed(e) => Refused::from(e.to_string()),
        Called::Lost(e) => Refused { is_last: true, ..e.to_string().into() },
    })?;
    let validity = NullBuffer::new(got.nulls.iter().map(|is_null| *is_null == 0).collect());
    let validity = Some(validity).filter(|validity| validity.null_count() > 0);
    let array: ArrayRef = match returns {
        DataType::Boolean => {
            let values: BooleanBuffer = got.values.iter().map(|value| *value != 0).collect();
            Arc::new(BooleanArray::new(values, validity))
        }
        returns => {
            let array = ArrayData::builder(returns.clone()).len(rows).add_buffer(Buffer::from_vec(got.values));
            make_array(array.nulls(validity).align_buffers(true).build()?)
        }
    };
    let schema = Arc::new(Schema::new(vec![Field::new("result", returns.clone(), true)]));
    let mut writer = StreamWriter::try_new(Vec::new(), &schema)?;
    writer.write(&RecordBatch::try_new(Arc::clone(&schema), vec![array])?)?;
    Ok(writer.into_inner()?)
}

/// The values of a column without NULLs, one behind the other; truth values are a byte each.
fn bytes_of(column: &ArrayRef) -> Vec<u8> {
    if let Some(values) = column.as_any().downcast_ref::<BooleanArray>() {
        return values.values().iter().map(u8::from).collect();
    }
    let data = column.to_data();
    let width = data.data_type().primitive_width().unwrap_or(0);
    let bytes = data.buffers().first().map_or(&[][..], |buffer| buffer.as_slice());
    bytes.get(data.offset() * width..(data.offset() + data.len()) * width).unwrap_or_default().to_vec()
}
