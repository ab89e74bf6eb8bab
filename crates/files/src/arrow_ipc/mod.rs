//! Arrow's IPC format, as a file with a footer and as a stream.
//!
//! arrow-ipc reads both, and trusts them: it allocates the declared length of a message, a footer
//! or a compressed buffer before it reads the bytes, and its conversion of schemas panics. Here the
//! container is read by position, and every length is checked against the file first. Validation
//! comes before arrow-ipc rather than around it, because a failed allocation is an abort, which
//! cannot be caught.
//!
//! 1. [`ArrowFile::open`] finds the footer, or the schema that begins a stream ([`schema`]).
//! 2. [`Batches`] iterates over the messages. Each is verified as a flatbuffer. [`body`] checks it
//!    against the schema and loads the buffers of wanted columns.
//! 3. arrow-ipc's decoder makes arrays of them, and validates their values.
//!
//! A file from before Arrow 1.0 has messages of metadata version 4, which are read like others.

mod body;
mod schema;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::{DataType, Field, SchemaRef};
use arrow::ipc;
use arrow::ipc::reader::RecordBatchDecoder;

use self::body::{Place, Plan};
use crate::input::read;
use crate::{Fault, Input, Memory};

/// The first and last bytes of a file.
const MAGIC: &[u8] = b"ARROW1";
/// The first bytes of a file of Feather's first version.
const FEATHER_MAGIC: &[u8] = b"FEA1";
/// The bytes of the footer's length and the magic behind it.
const TRAILER_BYTES: u64 = 10;
/// The first bytes of a message, unless its writer is older than 0.15.
const CONTINUATION: u32 = u32::MAX;
/// The maximum metadata of one message, or of a footer: a batch of 100,000 columns has some 10 MB.
const MOST_METADATA_BYTES: u64 = 256 << 20;

/// A message of a file.
#[derive(Clone, Copy, Debug)]
struct Block {
    offset: u64,
    /// With the length before it.
    metadata_len: u64,
    body_len: u64,
}

#[derive(Clone, Debug)]
enum Container {
    File {
        dictionaries: Vec<Block>,
        batches: Vec<Block>,
    },
    /// The first message behind the schema.
    Stream {
        next: u64,
    },
}

/// An Arrow file or stream whose schema is known.
#[derive(Clone)]
pub struct ArrowFile {
    input: Arc<dyn Input>,
    size: u64,
    schema: SchemaRef,
    container: Container,
}

/// The part of a file that is read.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// The columns, by their places in the schema, in this order. `None` for all of them.
    pub columns: Option<Vec<usize>>,
    /// The batches that begin in this range of bytes. A stream is read as a whole by the range that
    /// includes the start of the file.
    pub range: Option<Range<u64>>,
}

impl ArrowFile {
    /// Reads the footer, or the schema of a stream. Blocks.
    ///
    /// # Errors
    /// If the storage refuses, or the file is not one of Arrow.
    pub fn open(input: Arc<dyn Input>) -> Result<Self, Fault> {
        let size = input.size()?;
        let mut start = vec![0; MAGIC.len().min(usize::try_from(size).unwrap_or(usize::MAX))];
        input.read_exact_at(0, &mut start)?;
        if start.starts_with(FEATHER_MAGIC) {
            return Err(Fault::Unsupported("it is a Feather file of version 1, and version 2 is read".into()));
        }
        match start == MAGIC {
            true => Self::file(input, size),
            false => Self::stream(input, size),
        }
    }

    fn file(input: Arc<dyn Input>, size: u64) -> Result<Self, Fault> {
        let cut = || Fault::damaged("it has no footer: it may be cut off");
        let trailer_at = size.checked_sub(TRAILER_BYTES).ok_or_else(cut)?;
        let trailer = read(input.as_ref(), trailer_at, TRAILER_BYTES as usize, "a footer")?;
        let (len, magic) = trailer.split_at(4);
        if magic != MAGIC {
            return Err(cut());
        }
        let len = u64::from(word(len));
        let footer_at =
            trailer_at.checked_sub(len).filter(|at| len <= MOST_METADATA_BYTES && *at >= MAGIC.len() as u64);
        let footer_at = footer_at.ok_or_else(|| Fault::Damaged(format!("its footer declares {len} bytes")))?;
        let footer = read(input.as_ref(), footer_at, len as usize, "a footer")?;
        let footer = ipc::root_as_footer(&footer).map_err(|e| Fault::Damaged(format!("its footer: {e}")))?;
        let schema = footer.schema().ok_or_else(|| Fault::damaged("its footer has no schema"))?;
        let schema = Arc::new(schema::schema(schema)?);
        let blocks = |found: Option<flatbuffers::Vector<'_, ipc::Block>>| -> Result<Vec<Block>, Fault> {
            found.into_iter().flatten().map(|block| Block::checked(block, footer_at)).collect()
        };
        let container =
            Container::File { dictionaries: blocks(footer.dictionaries())?, batches: blocks(footer.recordBatches())? };
        Ok(Self { input, size, schema, container })
    }

    fn stream(input: Arc<dyn Input>, size: u64) -> Result<Self, Fault> {
        let first = header(input.as_ref(), 0, size)?;
        let block = first.ok_or_else(|| Fault::damaged("it begins with neither ARROW1 nor a message"))?;
        let message = Message::read(input.as_ref(), block)?;
        let message = message.verified()?;
        let schema = message.header_as_schema();
        let schema = schema.ok_or_else(|| Fault::damaged("its first message is not a schema"))?;
        let schema = Arc::new(schema::schema(schema)?);
        let next = block.offset + block.metadata_len;
        Ok(Self { input, size, schema, container: Container::Stream { next } })
    }

    /// Returns the columns.
    pub fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    /// Returns the batches of rows. The iterator blocks on each.
    pub fn batches(self, selection: Selection, memory: Box<dyn Memory>) -> Batches {
        let Selection { columns, range } = selection;
        let is_wanted = |block: &Block| range.as_ref().is_none_or(|range| range.contains(&block.offset));
        let queue = match &self.container {
            Container::File { dictionaries, batches } => {
                let batches: Vec<Block> = batches.iter().copied().filter(is_wanted).collect();
                // A file's dictionaries are valid for all of its batches.
                let dictionaries = if batches.is_empty() { Vec::new() } else { dictionaries.clone() };
                Queue::Blocks(dictionaries.into_iter().chain(batches).collect::<Vec<_>>().into_iter())
            }
            Container::Stream { next } => match range.as_ref().is_none_or(|range| range.contains(&0)) {
                true => Queue::From(*next),
                false => Queue::Blocks(Vec::new().into_iter()),
            },
        };
        let needed = needed_dictionaries(&self.schema, columns.as_deref());
        Batches { file: self, columns, queue, needed, dictionaries: HashMap::new(), held: HashMap::new(), memory }
    }
}

impl Block {
    fn checked(block: &ipc::Block, end: u64) -> Result<Self, Fault> {
        let parts = (block.offset(), block.metaDataLength(), block.bodyLength());
        let checked = || {
            let (offset, metadata_len) = (u64::try_from(parts.0).ok()?, u64::try_from(parts.1).ok()?);
            let body_len = u64::try_from(parts.2).ok()?;
            let ends = offset.checked_add(metadata_len)?.checked_add(body_len)?;
            let is_within = ends <= end && (8..=MOST_METADATA_BYTES).contains(&metadata_len);
            is_within.then_some(Self { offset, metadata_len, body_len })
        };
        checked().ok_or_else(|| {
            let (offset, metadata, body) = parts;
            Fault::Damaged(format!("its footer has a block of {metadata} and {body} bytes at {offset}"))
        })
    }
}

/// Checks a schema that is embedded in another format: a message, with or without its length before
/// it. Bytes that are not a message of a schema need no check.
pub(crate) fn check_schema(bytes: &[u8]) -> Result<(), Fault> {
    let behind = match (bytes.get(..4).map(word), bytes.get(4..)) {
        (Some(CONTINUATION), Some(rest)) => rest.get(4..).unwrap_or_default(),
        (_, rest) => rest.unwrap_or_default(),
    };
    for bytes in [bytes, behind] {
        let schema = ipc::root_as_message(bytes).ok().and_then(|message| message.header_as_schema());
        schema.map_or(Ok(()), |found| schema::schema(found).map(drop))?;
    }
    Ok(())
}

/// The metadata of a message.
struct Message {
    bytes: Vec<u8>,
}

impl Message {
    fn read(input: &dyn Input, block: Block) -> Result<Self, Fault> {
        let mut bytes = read(input, block.offset, block.metadata_len as usize, "a message")?;
        // The length, behind a mark that the oldest files do not have.
        let prefix = if bytes.get(..4).map(word) == Some(CONTINUATION) { 8 } else { 4 };
        bytes.drain(..prefix.min(bytes.len()));
        Ok(Self { bytes })
    }

    fn verified(&self) -> Result<ipc::Message<'_>, Fault> {
        ipc::root_as_message(&self.bytes).map_err(|e| Fault::Damaged(format!("a message: {e}")))
    }
}

/// Returns the message of a stream at an offset, without its body, or `None` at the end of the
/// stream.
fn header(input: &dyn Input, offset: u64, size: u64) -> Result<Option<Block>, Fault> {
    let mut at = offset;
    let mut next = || -> Result<Option<u32>, Fault> {
        if size.saturating_sub(at) < 4 {
            return Ok(None);
        }
        let mut bytes = [0; 4];
        input.read_exact_at(at, &mut bytes)?;
        at += 4;
        Ok(Some(u32::from_le_bytes(bytes)))
    };
    let len = match next()? {
        Some(CONTINUATION) => next()?,
        len => len,
    };
    let Some(len) = len.filter(|len| *len > 0) else { return Ok(None) };
    let left = size.saturating_sub(at);
    if u64::from(len) > left.min(MOST_METADATA_BYTES) {
        return Err(Fault::Damaged(format!("a message at {offset} declares {len} bytes, and {left} follow")));
    }
    Ok(Some(Block { offset, metadata_len: at - offset + u64::from(len), body_len: 0 }))
}

fn word(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |word, byte| (word << 8) | u32::from(*byte))
}

/// Returns the dictionaries that wanted columns refer to, including those of dictionaries' values.
fn needed_dictionaries(schema: &SchemaRef, columns: Option<&[usize]>) -> HashSet<i64> {
    fn add(field: &Field, ids: &mut HashSet<i64>) {
        #[allow(deprecated, reason = "the ids of a schema that has been read are nowhere else")]
        ids.extend(field.dict_id());
        of_type(field.data_type(), ids);
    }
    fn of_type(data_type: &DataType, ids: &mut HashSet<i64>) {
        match data_type {
            DataType::Dictionary(_, values) => of_type(values, ids),
            DataType::Struct(fields) => fields.iter().for_each(|field| add(field, ids)),
            DataType::Union(fields, _) => fields.iter().for_each(|(_, field)| add(field, ids)),
            DataType::RunEndEncoded(ends, values) => [ends, values].into_iter().for_each(|field| add(field, ids)),
            DataType::List(field)
            | DataType::LargeList(field)
            | DataType::ListView(field)
            | DataType::LargeListView(field)
            | DataType::FixedSizeList(field, _)
            | DataType::Map(field, _) => add(field, ids),
            _ => {}
        }
    }
    let mut ids = HashSet::new();
    let wanted = |at: &usize| columns.is_none_or(|columns| columns.contains(at));
    let fields = schema.fields().iter().enumerate().filter(|(at, _)| wanted(at));
    fields.for_each(|(_, field)| add(field, &mut ids));
    ids
}

/// The remaining messages.
enum Queue {
    Blocks(std::vec::IntoIter<Block>),
    From(u64),
}

/// The batches of a file, one by one. Ends after an error.
pub struct Batches {
    file: ArrowFile,
    columns: Option<Vec<usize>>,
    queue: Queue,
    needed: HashSet<i64>,
    dictionaries: HashMap<i64, ArrayRef>,
    /// The bytes of each dictionary.
    held: HashMap<i64, u64>,
    memory: Box<dyn Memory>,
}

impl Batches {
    /// Returns the next message, without its body, and the location of the body.
    fn next_message(&mut self) -> Result<Option<(Message, Place)>, Fault> {
        let input = self.file.input.as_ref();
        let (block, is_stream) = match &mut self.queue {
            Queue::Blocks(blocks) => (blocks.next(), false),
            Queue::From(at) => (header(input, *at, self.file.size)?, true),
        };
        let Some(mut block) = block else { return Ok(None) };
        let message = Message::read(input, block)?;
        let body_at = block.offset + block.metadata_len;
        if is_stream {
            let declared = message.verified()?.bodyLength();
            let left = self.file.size.saturating_sub(body_at);
            let body_len = u64::try_from(declared).ok().filter(|len| *len <= left);
            block.body_len = body_len.ok_or_else(|| {
                Fault::Damaged(format!(
                    "a message at {} has a body of {declared} bytes, and {left} follow",
                    block.offset
                ))
            })?;
            self.queue = Queue::From(body_at + block.body_len);
        }
        Ok(Some((message, Place { offset: body_at, len: block.body_len })))
    }

    fn next_batch(&mut self) -> Result<Option<RecordBatch>, Fault> {
        loop {
            let Some((message, place)) = self.next_message()? else { return Ok(None) };
            let message = message.verified()?;
            if let Some(batch) = message.header_as_record_batch() {
                return self.batch(batch, message.version(), place).map(Some);
            }
            if let Some(dictionary) = message.header_as_dictionary_batch() {
                self.dictionary(dictionary, message.version(), place)?;
                continue;
            }
            let kind = message.header_type();
            if kind != ipc::MessageHeader::NONE {
                let kind = kind.variant_name().unwrap_or("unknown");
                return Err(Fault::Damaged(format!("a message of kind {kind} where a batch is expected")));
            }
        }
    }

    fn batch(
        &mut self,
        batch: ipc::RecordBatch<'_>,
        version: ipc::MetadataVersion,
        place: Place,
    ) -> Result<RecordBatch, Fault> {
        let columns = self.columns.as_deref();
        let plan = Plan::new(batch, self.file.schema.fields(), columns, version, place.len)?;
        let held = self.held.values().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
        let loaded = plan.load(self.file.input.as_ref(), place, None, self.memory.as_mut(), held)?;
        let message = ipc::root_as_message(&loaded.metadata).map_err(|e| Fault::Damaged(e.to_string()))?;
        let batch = message.header_as_record_batch().ok_or_else(|| Fault::damaged("a batch is lost"))?;
        let schema = Arc::clone(&self.file.schema);
        let decoder = RecordBatchDecoder::try_new(&loaded.body, batch, schema, &self.dictionaries, &version)?;
        Ok(decoder.with_projection(columns).read_record_batch()?)
    }

    fn dictionary(
        &mut self,
        found: ipc::DictionaryBatch<'_>,
        version: ipc::MetadataVersion,
        place: Place,
    ) -> Result<(), Fault> {
        let (id, is_delta) = (found.id(), found.isDelta());
        if !self.needed.contains(&id) {
            return Ok(());
        }
        let batch = found.data().ok_or_else(|| Fault::damaged("a dictionary has no values"))?;
        let fields = self.dictionary_fields(id)?;
        let plan = Plan::new(batch, &fields, None, version, place.len)?;
        let held = self.held.values().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
        let loaded = plan.load(self.file.input.as_ref(), place, Some((id, is_delta)), self.memory.as_mut(), held)?;
        let message = ipc::root_as_message(&loaded.metadata).map_err(|e| Fault::Damaged(e.to_string()))?;
        let batch = message.header_as_dictionary_batch();
        let batch = batch.ok_or_else(|| Fault::damaged("a dictionary is lost"))?;
        let dictionaries = &mut self.dictionaries;
        ipc::reader::read_dictionary(&loaded.body, batch, &self.file.schema, dictionaries, &version)?;
        let bytes = loaded.body.len() as u64;
        let before = if is_delta { self.held.get(&id).copied().unwrap_or(0) } else { 0 };
        self.held.insert(id, before.saturating_add(bytes));
        Ok(())
    }

    /// Returns the values of a dictionary as the only column of a batch.
    fn dictionary_fields(&self, id: i64) -> Result<arrow::datatypes::Fields, Fault> {
        #[allow(deprecated, reason = "the ids of a schema that has been read are nowhere else")]
        let fields = self.file.schema.fields_with_dict_id(id);
        match fields.first().map(|field| field.data_type()) {
            Some(DataType::Dictionary(_, values)) => {
                Ok([Arc::new(Field::new("", values.as_ref().clone(), true))].into_iter().collect())
            }
            _ => Err(Fault::Damaged(format!("a dictionary of id {id}, which no column has"))),
        }
    }
}

impl Iterator for Batches {
    type Item = Result<RecordBatch, Fault>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.next_batch().transpose();
        if !matches!(next, Some(Ok(_))) {
            self.queue = Queue::Blocks(Vec::new().into_iter());
        }
        next
    }
}
