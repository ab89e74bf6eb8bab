//! The body of a record batch: checked against its schema, decompressed, and laid out anew.
//!
//! arrow-ipc slices a body at the offsets of the metadata, allocates the declared size of a
//! compressed buffer, and asserts that buffers are as long as the rows need. So a walk of the
//! schema comes first ([`Walk`]), in the order of arrow-ipc's own. It pairs each column with its
//! nodes and buffers, and computes the location of each buffer and the number of bytes that the
//! rows need of it.
//!
//! Only the buffers of wanted columns are read. [`Plan::load`] reads or decompresses each into its
//! place in one new body, and writes a message for it that declares no compression. arrow-ipc
//! decodes that message, and validates values: offsets, UTF-8, dictionary keys.
//!
//! Invariant: nothing is allocated before its size is bounded. A decompressed buffer is at most as
//! large as its codec can produce from the stored bytes. The buffers lie within the body and the
//! body within the file. The account has granted their sum.

use std::io::Read;

use arrow::buffer::Buffer;
use arrow::datatypes::{DataType, Field, Fields, IntervalUnit, UnionMode};
use arrow::ipc;
use flatbuffers::{FlatBufferBuilder, VectorIter};
use zerocopy::IntoBytes;

use crate::fault::zeroed;
use crate::input::read;
use crate::{Fault, Input, Memory};

/// The maximum rows of arrays that no buffer bounds.
const MOST_ROWS: i64 = i32::MAX as i64;
/// The alignment of buffers in a body.
const ALIGNMENT: usize = 64;
/// The bytes before a compressed buffer: its decompressed length.
const PREFIX_BYTES: usize = 8;
/// The length of a buffer that is stored uncompressed.
const STORED: i64 = -1;
/// The maximum bytes that one byte of LZ4 decompresses to.
const LZ4_RATIO: u64 = 255;
/// The maximum bytes that one byte of zstd decompresses to: a block of 4 bytes repeats a byte 128
/// KiB long.
const ZSTD_RATIO: u64 = 1 << 15;

/// A buffer of a message that is wanted.
struct Wanted {
    /// Its offset in the body, and its stored length.
    offset: u64,
    stored: usize,
    /// The bytes that the rows need, if known before the values. The decoder gets no more of them:
    /// it asserts that a buffer ends with a value.
    needed: Option<u64>,
}

/// The plan of decoding a body.
pub(super) struct Plan {
    rows: i64,
    nodes: Vec<ipc::FieldNode>,
    variadic: Vec<i64>,
    /// In the order of the message. `None` for buffers of columns that are not wanted.
    buffers: Vec<Option<Wanted>>,
    codec: Option<ipc::CompressionType>,
}

/// A body in memory, and the message that describes it.
pub(super) struct Loaded {
    /// The message.
    pub metadata: Vec<u8>,
    /// The body.
    pub body: Buffer,
}

/// The location of a body.
#[derive(Clone, Copy)]
pub(super) struct Place {
    /// The offset in the file.
    pub offset: u64,
    /// The number of bytes.
    pub len: u64,
}

/// The wanted columns, by their places, or all.
pub(super) type Projection<'a> = Option<&'a [usize]>;

impl Plan {
    /// Checks the metadata of a batch against its schema and the length of its body.
    ///
    /// # Errors
    /// [`Fault::Damaged`] or [`Fault::Unsupported`].
    pub fn new(
        batch: ipc::RecordBatch<'_>,
        fields: &Fields,
        projection: Projection<'_>,
        version: ipc::MetadataVersion,
        body_len: u64,
    ) -> Result<Self, Fault> {
        let rows = batch.length();
        if !(0..=MOST_ROWS).contains(&rows) {
            return Err(Fault::Damaged(format!("a batch declares {rows} rows")));
        }
        let nodes = batch.nodes().ok_or_else(|| Fault::damaged("a batch has no list of nodes"))?;
        let buffers = batch.buffers().ok_or_else(|| Fault::damaged("a batch has no list of buffers"))?;
        let codec = batch.compression().map(codec).transpose()?;
        let variadic: Vec<i64> = batch.variadicBufferCounts().into_iter().flatten().collect();
        let mut walk = Walk {
            nodes: nodes.iter(),
            buffers: buffers.iter(),
            variadic: variadic.iter(),
            has_union_validity: version < ipc::MetadataVersion::V5,
            body_len,
            is_wanted: true,
            found: Vec::with_capacity(buffers.len()),
        };
        for (at, field) in fields.iter().enumerate() {
            walk.is_wanted = projection.is_none_or(|columns| columns.contains(&at));
            let column = walk.column(field)?;
            if column != rows {
                return Err(Fault::Damaged(format!("column \"{}\" has {column} rows of {rows}", field.name())));
            }
        }
        if walk.nodes.next().is_some() || walk.variadic.next().is_some() {
            return Err(Fault::damaged("a batch has more nodes than its schema has columns"));
        }
        let found = walk.found;
        Ok(Self { rows, nodes: nodes.iter().copied().collect(), variadic, buffers: found, codec })
    }

    /// Reads the wanted buffers.
    ///
    /// # Errors
    /// If the storage refuses, a buffer is damaged, or the account does not grant the memory.
    pub fn load(
        &self,
        input: &dyn Input,
        place: Place,
        dictionary: Option<(i64, bool)>,
        memory: &mut dyn Memory,
        held: u64,
    ) -> Result<Loaded, Fault> {
        let sizes = self.buffers.iter().map(|buffer| self.size(buffer.as_ref(), input, place));
        let sizes = sizes.collect::<Result<Vec<u64>, Fault>>()?;
        let (mut end, mut places) = (0_u64, Vec::with_capacity(sizes.len()));
        for size in sizes {
            places.push((end, size));
            end = end.checked_add(size.next_multiple_of(ALIGNMENT as u64)).ok_or_else(too_long)?;
        }
        let staged = self.buffers.iter().flatten().map(|buffer| buffer.stored as u64).max();
        let bytes = end.saturating_add(staged.filter(|_| self.codec.is_some()).unwrap_or(0));
        let what = "a record batch";
        let refused = |refused| Fault::Memory { what: what.into(), bytes, refused };
        memory.resize(held.saturating_add(bytes)).map_err(refused)?;
        let words = usize::try_from(end.div_ceil(16)).map_err(|_| too_long())?;
        // Words of 16 bytes: every type of Arrow is aligned to that or less.
        let mut body: Vec<u128> = zeroed(words, what)?;
        let bytes = body.as_mut_bytes();
        let mut described = Vec::with_capacity(places.len());
        for (buffer, (start, size)) in self.buffers.iter().zip(places) {
            let needed = buffer.as_ref().map_or(Some(0), |buffer| buffer.needed);
            described.push(ipc::Buffer::new(start as i64, needed.unwrap_or(size) as i64));
            let Some(buffer) = buffer else { continue };
            let target = bytes.get_mut(start as usize..(start + size) as usize).ok_or_else(too_long)?;
            self.fill(target, buffer, input, place)?;
        }
        let metadata = self.message(&described, dictionary, end);
        Ok(Loaded { metadata, body: Buffer::from_vec(body) })
    }

    /// Returns the bytes of a buffer in memory.
    fn size(&self, buffer: Option<&Wanted>, input: &dyn Input, place: Place) -> Result<u64, Fault> {
        let Some(buffer) = buffer else { return Ok(0) };
        let stored = buffer.stored as u64;
        let size = match self.codec {
            Some(codec) if stored > 0 => {
                let declared = declared(input, place.offset + buffer.offset, buffer.stored)?;
                let packed = stored - PREFIX_BYTES as u64;
                match u64::try_from(declared) {
                    Ok(declared) if declared <= most(codec, packed) => declared,
                    Err(_) if declared == STORED => packed,
                    _ => {
                        let reason = format!("{packed} compressed bytes declare {declared} bytes");
                        return Err(Fault::Damaged(reason));
                    }
                }
            }
            _ => stored,
        };
        match buffer.needed {
            Some(needed) if size < needed => {
                Err(Fault::Damaged(format!("a buffer of {size} bytes, and its rows need {needed}")))
            }
            _ => Ok(size),
        }
    }

    fn fill(&self, target: &mut [u8], buffer: &Wanted, input: &dyn Input, place: Place) -> Result<(), Fault> {
        let at = place.offset + buffer.offset;
        let Some(codec) = self.codec.filter(|_| buffer.stored > 0) else {
            return Ok(input.read_exact_at(at, target)?);
        };
        if declared(input, at, buffer.stored)? == STORED {
            return Ok(input.read_exact_at(at + PREFIX_BYTES as u64, target)?);
        }
        let packed = read(input, at + PREFIX_BYTES as u64, buffer.stored - PREFIX_BYTES, "a compressed buffer")?;
        decompress(codec, &packed, target)
    }

    /// Returns the message of the new body.
    fn message(&self, buffers: &[ipc::Buffer], dictionary: Option<(i64, bool)>, body_len: u64) -> Vec<u8> {
        let mut builder = FlatBufferBuilder::new();
        let nodes = Some(builder.create_vector(&self.nodes));
        let buffers = Some(builder.create_vector(buffers));
        let variadic = (!self.variadic.is_empty()).then(|| builder.create_vector(&self.variadic));
        let batch = ipc::RecordBatchArgs {
            length: self.rows,
            nodes,
            buffers,
            compression: None,
            variadicBufferCounts: variadic,
        };
        let batch = ipc::RecordBatch::create(&mut builder, &batch);
        let (header_type, header) = match dictionary {
            None => (ipc::MessageHeader::RecordBatch, batch.as_union_value()),
            Some((id, is_delta)) => {
                let dictionary = ipc::DictionaryBatchArgs { id, data: Some(batch), isDelta: is_delta };
                let dictionary = ipc::DictionaryBatch::create(&mut builder, &dictionary);
                (ipc::MessageHeader::DictionaryBatch, dictionary.as_union_value())
            }
        };
        let message = ipc::MessageArgs {
            version: ipc::MetadataVersion::V5,
            header_type,
            header: Some(header),
            bodyLength: body_len as i64,
            custom_metadata: None,
        };
        let message = ipc::Message::create(&mut builder, &message);
        builder.finish(message, None);
        builder.finished_data().to_vec()
    }
}

fn too_long() -> Fault {
    Fault::damaged("the lengths of a batch's buffers add up to more than a file can hold")
}

fn codec(compression: ipc::BodyCompression<'_>) -> Result<ipc::CompressionType, Fault> {
    if compression.method() != ipc::BodyCompressionMethod::BUFFER {
        return Err(Fault::Unsupported(format!("a batch is compressed by method {}", compression.method().0)));
    }
    match compression.codec() {
        known @ (ipc::CompressionType::LZ4_FRAME | ipc::CompressionType::ZSTD) => Ok(known),
        other => Err(Fault::Unsupported(format!("a batch is compressed by codec {}", other.0))),
    }
}

/// Returns the length that is written before a compressed buffer.
fn declared(input: &dyn Input, at: u64, stored: usize) -> Result<i64, Fault> {
    if stored < PREFIX_BYTES {
        return Err(Fault::Damaged(format!("a compressed buffer of {stored} bytes has no length")));
    }
    let mut prefix = [0; PREFIX_BYTES];
    input.read_exact_at(at, &mut prefix)?;
    Ok(i64::from_le_bytes(prefix))
}

/// Returns the maximum bytes that a codec produces from `packed` bytes.
fn most(codec: ipc::CompressionType, packed: u64) -> u64 {
    packed.saturating_mul(if codec == ipc::CompressionType::ZSTD { ZSTD_RATIO } else { LZ4_RATIO })
}

/// Decompresses into a buffer, which must be filled exactly.
fn decompress(codec: ipc::CompressionType, packed: &[u8], target: &mut [u8]) -> Result<(), Fault> {
    let broken = |e: std::io::Error| Fault::Damaged(format!("a compressed buffer: {e}"));
    if target.is_empty() {
        return Ok(());
    }
    let is_exact = if codec == ipc::CompressionType::ZSTD {
        let len = target.len();
        zstd::bulk::decompress_to_buffer(packed, target).map_err(broken)? == len
    } else {
        let mut frames = lz4_flex::frame::FrameDecoder::new(packed);
        frames.read_exact(target).map_err(broken)?;
        frames.read(&mut [0]).map_err(broken)? == 0
    };
    match is_exact {
        true => Ok(()),
        false => Err(Fault::damaged("a compressed buffer is not as long as it declares")),
    }
}

/// The nodes and buffers of a batch, paired with its columns.
struct Walk<'a> {
    nodes: VectorIter<'a, ipc::FieldNode>,
    buffers: VectorIter<'a, ipc::Buffer>,
    variadic: std::slice::Iter<'a, i64>,
    /// True for messages before version 5, in which unions have a validity buffer.
    has_union_validity: bool,
    body_len: u64,
    is_wanted: bool,
    found: Vec<Option<Wanted>>,
}

/// A node's rows and NULLs.
struct Node {
    rows: i64,
    nulls: i64,
}

impl Walk<'_> {
    /// Takes the nodes and buffers of a column. Returns its rows.
    fn column(&mut self, field: &Field) -> Result<i64, Fault> {
        // The buffer count of views precedes their node.
        let views = matches!(field.data_type(), DataType::Utf8View | DataType::BinaryView);
        let more = if views { self.variadic_buffers()? } else { 0 };
        let node = self.node(field)?;
        let rows = node.rows;
        match field.data_type() {
            DataType::Null => {}
            DataType::RunEndEncoded(ends, values) => {
                self.column(ends)?;
                self.column(values)?;
            }
            DataType::Union(fields, mode) => {
                if self.has_union_validity {
                    self.buffer(0)?;
                }
                self.buffer(bytes(rows, 1)?)?;
                if *mode == UnionMode::Dense {
                    self.buffer(bytes(rows, 4)?)?;
                }
                for (_, child) in fields.iter() {
                    let found = self.column(child)?;
                    same(field, *mode == UnionMode::Dense || found == rows)?;
                }
            }
            other => {
                self.buffer(if node.nulls > 0 { bits(rows) } else { 0 })?;
                self.values(field, other, rows, more)?;
            }
        }
        Ok(rows)
    }

    /// Takes the buffers and children behind a validity buffer.
    fn values(&mut self, field: &Field, data_type: &DataType, rows: i64, more: i64) -> Result<(), Fault> {
        let offsets = |width| if rows == 0 { Ok(0) } else { bytes(rows + 1, width) };
        match data_type {
            DataType::Boolean => self.buffer(bits(rows)),
            DataType::Utf8 | DataType::Binary => {
                self.buffer(offsets(4)?)?;
                self.data()
            }
            DataType::LargeUtf8 | DataType::LargeBinary => {
                self.buffer(offsets(8)?)?;
                self.data()
            }
            DataType::Utf8View | DataType::BinaryView => {
                self.buffer(bytes(rows, 16)?)?;
                (0..more).try_for_each(|_| self.data())
            }
            DataType::List(child) | DataType::Map(child, _) => {
                self.buffer(offsets(4)?)?;
                self.column(child).map(drop)
            }
            DataType::LargeList(child) => {
                self.buffer(offsets(8)?)?;
                self.column(child).map(drop)
            }
            DataType::ListView(child) => self.list_view(child, bytes(rows, 4)?),
            DataType::LargeListView(child) => self.list_view(child, bytes(rows, 8)?),
            DataType::FixedSizeList(child, size) => {
                let items = self.column(child)?;
                same(field, rows.checked_mul((*size).into()) == Some(items))
            }
            DataType::Struct(fields) => fields.iter().try_for_each(|child| {
                let found = self.column(child)?;
                same(child, found == rows)
            }),
            DataType::Dictionary(keys, _) => self.buffer(bytes(rows, width(keys)?)?),
            other => self.buffer(bytes(rows, width(other)?)?),
        }
    }

    fn list_view(&mut self, child: &Field, needed: u64) -> Result<(), Fault> {
        self.buffer(needed)?;
        self.buffer(needed)?;
        self.column(child).map(drop)
    }

    fn node(&mut self, field: &Field) -> Result<Node, Fault> {
        let node = self.nodes.next();
        let node =
            node.ok_or_else(|| Fault::Damaged(format!("a batch has no node for column \"{}\"", field.name())))?;
        let (rows, nulls) = (node.length(), node.null_count());
        match (0..=MOST_ROWS).contains(&rows) && (0..=rows).contains(&nulls) {
            true => Ok(Node { rows, nulls }),
            false => Err(Fault::Damaged(format!("column \"{}\" declares {rows} rows and {nulls} NULLs", field.name()))),
        }
    }

    fn variadic_buffers(&mut self) -> Result<i64, Fault> {
        let left = self.buffers.len() as i64;
        match self.variadic.next() {
            Some(count) if (0..=left).contains(count) => Ok(*count),
            Some(count) => {
                Err(Fault::Damaged(format!("a column of views declares {count} buffers, and {left} are left")))
            }
            None => Err(Fault::damaged("a column of views has no number of buffers")),
        }
    }

    /// Takes a buffer of which the rows need `needed` bytes.
    fn buffer(&mut self, needed: u64) -> Result<(), Fault> {
        self.take(Some(needed))
    }

    /// Takes a buffer whose length depends on the values.
    fn data(&mut self) -> Result<(), Fault> {
        self.take(None)
    }

    fn take(&mut self, needed: Option<u64>) -> Result<(), Fault> {
        let buffer = self.buffers.next().ok_or_else(|| Fault::damaged("a batch has too few buffers"))?;
        let (offset, len) = (buffer.offset(), buffer.length());
        let place = u64::try_from(offset).ok().zip(u64::try_from(len).ok());
        let place = place.filter(|(offset, len)| offset.checked_add(*len).is_some_and(|end| end <= self.body_len));
        let place = place.and_then(|(offset, len)| Some((offset, usize::try_from(len).ok()?)));
        let Some((offset, stored)) = place else {
            let body = self.body_len;
            return Err(Fault::Damaged(format!("a buffer of {len} bytes at {offset}, and the body has {body} bytes")));
        };
        self.found.push(self.is_wanted.then_some(Wanted { offset, stored, needed }));
        Ok(())
    }
}

fn same(field: &Field, is_same: bool) -> Result<(), Fault> {
    match is_same {
        true => Ok(()),
        false => Err(Fault::Damaged(format!("the rows of column \"{}\" do not fit those of its parent", field.name()))),
    }
}

fn bits(rows: i64) -> u64 {
    rows.unsigned_abs().div_ceil(8)
}

fn bytes(rows: i64, width: u64) -> Result<u64, Fault> {
    rows.unsigned_abs().checked_mul(width).ok_or_else(too_long)
}

/// Returns the bytes of a value of a fixed-length type.
fn width(data_type: &DataType) -> Result<u64, Fault> {
    if let Some(width) = data_type.primitive_width() {
        return Ok(width as u64);
    }
    match data_type {
        DataType::FixedSizeBinary(width) => Ok(u64::from(width.unsigned_abs())),
        DataType::Interval(IntervalUnit::MonthDayNano) => Ok(16),
        other => Err(Fault::Unsupported(format!("a column of type {other}"))),
    }
}
