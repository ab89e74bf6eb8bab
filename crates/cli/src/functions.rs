//! `onehop run-functions`, an internal command: runs CUDA functions for a database in a separate
//! process, so that their memory errors on the device affect no other process.
//!
//! Requests arrive on standard input, and responses go to the original standard output, in the
//! protocol of `crates/engine/src/functions/helper.py`. Any other output, such as that of kernels,
//! goes to standard error. After a device error this process is unusable; it reports that and
//! exits.
//!
//! Tables arrive as handles of exports ([`onehop_engine::arrays::export`]). Those in the GPU's
//! memory are used in place, others are copied there once. They are kept from one call to the next,
//! and released after [`KEPT`] without a call: until then their exporter cannot free them.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Cursor, ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{
    Array, ArrayData, ArrayRef, AsArray, BooleanArray, ListArray, RecordBatch, StructArray, make_array,
};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer, OffsetBuffer};
use arrow::datatypes::{DataType, Field, Schema};
use arrow::error::ArrowError;
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;
use onehop_cuda::functions::{Argument, Called, Function, Kind, Returns, Signature, Wrong};
use onehop_cuda::{Context, DeviceBuf, Driver, Nvrtc};
use onehop_engine::Element;
use onehop_engine::arrays::{self, Memory};
use onehop_engine::backend::Devices;
use serde_json::{Value, json};

/// The time for which unused tables are kept.
const KEPT: Duration = Duration::from_secs(1);

/// The GPU that functions run on.
pub struct Gpu {
    /// The context of the GPU.
    pub context: Arc<Context>,
    /// The compiler for the GPU.
    pub nvrtc: Arc<Nvrtc>,
    /// The devices that open memory of other processes.
    pub devices: Arc<dyn Devices>,
}

/// Opens the first GPU of this machine.
///
/// # Errors
/// Returns a readable reason if there is none.
pub fn first_gpu() -> Result<Gpu, String> {
    let said = |e: onehop_cuda::Error| e.cure().map_or(e.to_string(), |cure| format!("{e}; {cure}"));
    let devices = Driver::load().and_then(|driver| driver.devices()).map_err(said)?;
    let device = devices.first().ok_or("the driver knows no GPU that this process may use")?;
    let (context, nvrtc) = (device.context().map_err(said)?, Nvrtc::load().map_err(said)?);
    Ok(Gpu { context, nvrtc, devices: crate::gpu::devices() })
}

/// Answers requests until there are no more. The GPU is opened when the first function is defined.
///
/// # Errors
/// Fails if a pipe breaks or a request is malformed.
pub fn serve(gpu: impl Fn() -> Result<Gpu, String>) -> io::Result<()> {
    let mut responses = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    // SAFETY: both are open, and the original standard output has another descriptor now.
    if unsafe { libc::dup2(libc::STDERR_FILENO, libc::STDOUT_FILENO) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut requests = io::stdin().lock();
    let mut runner = Runner { gpu: None, functions: HashMap::new(), tables: HashMap::new() };
    loop {
        if !runner.tables.is_empty() && !is_readable(&io::stdin(), KEPT)? {
            runner.tables.clear();
        }
        let Some(header) = part(&mut requests)? else { break };
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

/// Returns true if input is available, or becomes available within the time. Between two requests
/// nothing of the next is buffered.
fn is_readable(file: &impl AsRawFd, within: Duration) -> io::Result<bool> {
    let mut wanted = libc::pollfd { fd: file.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry, of a descriptor that is open.
    match unsafe { libc::poll(&raw mut wanted, 1, within.as_millis() as i32) } {
        ready if ready >= 0 => Ok(ready > 0),
        _ => match io::Error::last_os_error() {
            e if e.kind() == ErrorKind::Interrupted => Ok(true),
            e => Err(e),
        },
    }
}

/// Reads a part of a request, or `None` at the end of the input.
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

/// The reason there is no result.
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
    /// The functions, by the number that the caller has given them.
    functions: HashMap<u64, (Function, DataType)>,
    /// The tables, by their handles.
    tables: HashMap<String, Table>,
}

/// A table argument.
struct Table {
    rows: u64,
    columns: HashMap<String, Column>,
    /// The memory of the exporter.
    _exported: arrays::Arrays,
}

struct Column {
    element: Element,
    address: u64,
    /// Memory of this process.
    _brought: Option<DeviceBuf>,
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
        let handles = request["tables"].as_object();
        // Tables that only the previous call used are released, so that both are not in memory
        // together.
        self.tables.retain(|handle, _| handles.is_some_and(|all| all.values().any(|of| of == handle.as_str())));
        for handle in handles.into_iter().flat_map(|all| all.values()).filter_map(Value::as_str) {
            if !self.tables.contains_key(handle) {
                let gpu = self.gpu.as_ref().ok_or_else(|| "a request for no function".to_string())?;
                self.tables.insert(handle.into(), Table::open(handle, gpu)?);
            }
        }
        let mut tables = HashMap::new();
        for (name, kind) in &function.signature().arguments {
            let Kind::Table(columns) = kind else { continue };
            let handle = handles.and_then(|all| all.get(name)?.as_str());
            let table = handle.and_then(|handle| self.tables.get(handle));
            let table = table.ok_or_else(|| format!("argument {name}: there is no table"))?;
            tables.insert(name.clone(), (table.rows, table.addresses(name, columns)?));
        }
        call(function, returns, rows as usize, data, &tables)
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
        let returns = match result.data_type() {
            DataType::List(item) => match item.data_type() {
                DataType::Struct(columns) => {
                    let columns = columns.iter().map(|column| element_of(column.name(), column.data_type()));
                    Returns::Rows(columns.collect::<Result<_, _>>()?)
                }
                item => Returns::Array(element_of("its result", item)?),
            },
            other => Returns::Value(element_of("its result", other)?),
        };
        let signature = Signature { arguments, returns };
        let Gpu { context, nvrtc, .. } = match &self.gpu {
            Some(gpu) => gpu,
            None => {
                let found = gpu().map_err(|why| format!("functions in CUDA need a GPU, and there is none: {why}"))?;
                self.gpu.insert(found)
            }
        };
        Ok((Function::new(context, nvrtc, source, signature)?, result.data_type().clone()))
    }
}

impl Table {
    /// Opens the table of a handle, in the memory of the GPU.
    fn open(handle: &str, gpu: &Gpu) -> Result<Self, Refused> {
        let exported = arrays::export::import(handle, &[], Some(&gpu.devices)).map_err(|e| e.to_string())?;
        let rows = exported.arrays.first().map_or(0, |array| array.rows as u64);
        let mut columns = HashMap::new();
        for (name, array) in exported.columns.iter().zip(&exported.arrays) {
            let (address, brought) = match &array.memory {
                Memory::Device(memory) if memory.ordinal() == gpu.context.device().ordinal => (memory.address(), None),
                Memory::Device(memory) => {
                    let (on, own) = (memory.ordinal(), gpu.context.device().ordinal);
                    let why = format!("the table is on cuda:{on}, and functions run on cuda:{own}: LOAD it there");
                    return Err(why.into());
                }
                Memory::Host(bytes) => {
                    let of_device = |e: onehop_cuda::Error| Refused::from(e.to_string());
                    let mut memory = DeviceBuf::new(&gpu.context, bytes.len().max(1)).map_err(of_device)?;
                    memory.copy_from(0, bytes).map_err(of_device)?;
                    (memory.address(), Some(memory))
                }
            };
            columns.insert(name.clone(), Column { element: array.element, address, _brought: brought });
        }
        Ok(Self { rows, columns, _exported: exported })
    }

    /// Returns the addresses of the columns that a function uses.
    fn addresses(&self, argument: &str, wanted: &[(String, Element)]) -> Result<Vec<u64>, Refused> {
        let address = |(name, element): &(String, Element)| {
            let column =
                self.columns.get(name).ok_or_else(|| format!("argument {argument}: no column {name} in it"))?;
            match column.element == *element {
                true => Ok(column.address),
                false => Err(format!(
                    "argument {argument}: column {name} is of type {:?}, and {element:?} is wanted",
                    column.element
                )),
            }
        };
        Ok(wanted.iter().map(address).collect::<Result<_, String>>()?)
    }
}

/// Returns the device form of an argument: a list is an array, and a struct describes a table with
/// columns of these names and types.
fn kind_of(name: &str, data_type: &DataType) -> Result<Kind, String> {
    Ok(match data_type {
        DataType::List(item) => Kind::Array(element_of(name, item.data_type())?),
        DataType::Struct(columns) => {
            let column = |of: &Arc<Field>| Ok((of.name().clone(), element_of(of.name(), of.data_type())?));
            Kind::Table(columns.iter().map(column).collect::<Result<_, String>>()?)
        }
        other => Kind::Value(element_of(name, other)?),
    })
}

/// Returns the device form of a value.
fn element_of(name: &str, data_type: &DataType) -> Result<Element, String> {
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

/// The contents of arrays in their device form.
struct Given {
    starts: Vec<u64>,
    items: Vec<u8>,
}

impl Given {
    fn of(name: &str, array: &ArrayRef) -> Result<Self, Refused> {
        let Some(lists) = array.as_list_opt::<i32>() else {
            return Ok(Self { starts: Vec::new(), items: bytes_of(array) });
        };
        let offsets = lists.value_offsets();
        let first = offsets.first().copied().unwrap_or(0);
        let items = lists.values().slice(first as usize, (offsets.last().copied().unwrap_or(0) - first) as usize);
        if items.null_count() > 0 {
            return Err(
                format!("argument {name}: an array with a NULL in it, which functions in CUDA do not take").into()
            );
        }
        let starts = offsets.iter().map(|offset| (offset - first) as u64).collect();
        Ok(Self { starts, items: bytes_of(&items) })
    }
}

/// Calls a function for rows. Returns the results as an Arrow stream.
fn call(
    function: &mut Function,
    returns: &DataType,
    rows: usize,
    data: &[u8],
    tables: &HashMap<String, (u64, Vec<u64>)>,
) -> Result<Vec<u8>, Refused> {
    let batch = match data {
        [] => None,
        data => StreamReader::try_new(Cursor::new(data), None)?.next().transpose()?,
    };
    let arrays: &[ArrayRef] = batch.as_ref().map_or(&[][..], RecordBatch::columns);
    let expected = &function.signature().arguments;
    let of_rows = expected.iter().filter(|(_, kind)| !matches!(kind, Kind::Table(_)));
    let given = of_rows.clone().zip(arrays).map(|((name, _), array)| Given::of(name, array));
    let given = given.collect::<Result<Vec<_>, _>>()?;
    let are_whole = of_rows.clone().zip(&given).all(|((_, kind), given)| match kind {
        Kind::Value(element) => given.items.len() == rows * element.bytes(),
        Kind::Array(_) | Kind::Table(_) => given.starts.len() == rows + 1,
    });
    if arrays.len() != of_rows.clone().count() || !are_whole {
        let wanted = of_rows.count();
        return Err(format!("{} columns where {wanted} of {rows} rows are wanted", arrays.len()).into());
    }
    let mut given = given.iter();
    let arguments = expected.iter().filter_map(|(name, kind)| match kind {
        Kind::Value(_) => given.next().map(|given| Argument::Values(&given.items)),
        Kind::Array(_) => given.next().map(|given| Argument::Arrays { starts: &given.starts, items: &given.items }),
        Kind::Table(_) => tables.get(name).map(|(rows, columns)| Argument::Table { rows: *rows, columns }),
    });
    let arguments: Vec<Argument<'_>> = arguments.collect();
    let got = function.call(&arguments, rows).map_err(|e| match e {
        Called::Failed(e) => Refused::from(e.to_string()),
        Called::Refused(why) => Refused::from(why),
        Called::Lost(e) => Refused { is_last: true, ..e.to_string().into() },
    })?;
    let validity = NullBuffer::new(got.nulls.iter().map(|is_null| *is_null == 0).collect());
    let validity = Some(validity).filter(|validity| validity.null_count() > 0);
    let mut columns = got.columns.into_iter();
    let mut next = || columns.next().unwrap_or_default();
    let array: ArrayRef = match returns {
        DataType::List(item) => {
            let ends: Vec<i32> = got.starts.iter().map(|start| i32::try_from(*start).unwrap_or(i32::MAX)).collect();
            let items: ArrayRef = match item.data_type() {
                DataType::Struct(fields) => {
                    let columns = fields.iter().map(|field| values(field.data_type(), next(), None));
                    Arc::new(StructArray::try_new(fields.clone(), columns.collect::<Result<_, _>>()?, None)?)
                }
                item => values(item, next(), None)?,
            };
            Arc::new(ListArray::try_new(Arc::clone(item), OffsetBuffer::new(ends.into()), items, validity)?)
        }
        returns => values(returns, next(), validity)?,
    };
    let schema = Arc::new(Schema::new(vec![Field::new("result", returns.clone(), true)]));
    let mut writer = StreamWriter::try_new(Vec::new(), &schema)?;
    writer.write(&RecordBatch::try_new(Arc::clone(&schema), vec![array])?)?;
    Ok(writer.into_inner()?)
}

/// Creates an array from packed values; booleans are a byte each.
fn values(data_type: &DataType, values: Vec<u8>, validity: Option<NullBuffer>) -> Result<ArrayRef, ArrowError> {
    if *data_type == DataType::Boolean {
        let values: BooleanBuffer = values.iter().map(|value| *value != 0).collect();
        return Ok(Arc::new(BooleanArray::new(values, validity)));
    }
    let rows = values.len() / data_type.primitive_width().unwrap_or(1);
    let array = ArrayData::builder(data_type.clone()).len(rows).add_buffer(Buffer::from_vec(values));
    Ok(make_array(array.nulls(validity).align_buffers(true).build()?))
}

/// Returns the packed values of a column without NULLs; booleans are a byte each.
fn bytes_of(column: &ArrayRef) -> Vec<u8> {
    if let Some(values) = column.as_any().downcast_ref::<BooleanArray>() {
        return values.values().iter().map(u8::from).collect();
    }
    let data = column.to_data();
    let width = data.data_type().primitive_width().unwrap_or(0);
    let bytes = data.buffers().first().map_or(&[][..], |buffer| buffer.as_slice());
    bytes.get(data.offset() * width..(data.offset() + data.len()) * width).unwrap_or_default().to_vec()
}
