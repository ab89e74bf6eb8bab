//! Decodes a loaded block to Arrow arrays, a run of vectors at a time.
//!
//! A [`BlockColumn`] keeps its chunks as they were stored. [`BlockColumn::decode`] unpacks only the
//! requested vectors, so that a scan works on arrays that fit the caches and the block itself is
//! never materialised whole. Strings are not copied: views point into the stored chunk, or into the
//! dictionary.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Date32Type, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type,
    Int64Type, TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType,
    UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef, ArrowNativeTypeOp, BooleanArray, PrimitiveArray, StringViewArray, make_array};
use arrow_buffer::{BooleanBuffer, Buffer, NullBuffer, ScalarBuffer};
use arrow_schema::TimeUnit;
use onehop_io::AlignedBuf;

use crate::code_table::CodeTable;
use crate::layout::{BlockRecord, EncodingCode, chunk};
use crate::packed::{LANES, VECTOR_ROWS, Values, transpose, unpack, vector_words};
use crate::reader::ColumnInfo;
use crate::stored_bytes::StoredBytes;
use crate::types::{ColumnType, f32_of_key, f64_of_key, u64_of_key};
use crate::{Error, Place};

type Chunk = Option<StoredBytes>;

/// A loaded block of one column, encoded as on storage, its checksums verified.
#[derive(Clone, Debug)]
pub struct BlockColumn {
    pub(crate) column_type: ColumnType,
    pub(crate) encoding: EncodingCode,
    pub(crate) width: u32,
    pub(crate) rows: usize,
    pub(crate) base: i64,
    pub(crate) null_count: usize,
    pub(crate) chunks: [Chunk; 4],
    pub(crate) dictionary: Option<Arc<Dictionary>>,
    pub(crate) origin: Arc<Origin>,
}

/// The origin of a block, for messages.
#[derive(Debug)]
pub(crate) struct Origin {
    /// The file's name.
    pub file: String,
    /// The column and the block.
    pub place: Place,
}

impl Origin {
    pub(crate) fn corrupt(&self, reason: String) -> Error {
        Error::Corrupt { file: self.file.clone(), place: self.place.clone(), reason }
    }
}

impl BlockColumn {
    /// Creates a block from its parts. The reader has checked the chunks' lengths. The contents are
    /// checked here and when decoding.
    pub(crate) fn new(
        info: &ColumnInfo,
        rows: usize,
        record: &BlockRecord,
        chunks: [Chunk; 4],
        dictionary: Option<Arc<Dictionary>>,
        origin: Origin,
    ) -> Result<Self, Error> {
        let block = Self {
            column_type: info.column_type.clone(),
            encoding: info.encoding,
            width: info.width.into(),
            rows,
            base: record.base,
            null_count: record.null_count as usize,
            chunks,
            dictionary,
            origin: Arc::new(origin),
        };
        block.check().map_err(|reason| block.origin.corrupt(reason))?;
        Ok(block)
    }

    fn check(&self) -> Result<(), String> {
        let (block, rows) = (self, self.rows);
        if block.encoding == EncodingCode::Text {
            block.check_text()?;
        }
        if let Some(validity) = &block.chunks[chunk::VALIDITY] {
            let padding = validity.words().len() * 32 - rows;
            let valid: usize = validity.words().iter().map(|word| word.count_ones() as usize).sum();
            if valid != rows - block.null_count {
                return Err(format!(
                    "{valid} rows are valid and {} NULL, of {rows} ({padding} padding)",
                    block.null_count
                ));
            }
        }
        Ok(())
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the bytes held in memory.
    pub fn memory_bytes(&self) -> usize {
        self.chunks.iter().flatten().map(|chunk| chunk.len()).sum()
    }

    /// Returns the rows in `rows` as an array. The range starts on a vector and ends on one or at
    /// the end of the block.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the stored values are invalid.
    pub fn decode(&self, rows: Range<usize>) -> Result<ArrayRef, Error> {
        self.decode_rows(rows).map_err(|reason| self.origin.corrupt(reason))
    }

    fn decode_rows(&self, rows: Range<usize>) -> Result<ArrayRef, String> {
        let ends_well = rows.end == self.rows || rows.end.is_multiple_of(VECTOR_ROWS);
        if !rows.start.is_multiple_of(VECTOR_ROWS) || !ends_well || rows.end > self.rows || rows.start > rows.end {
            return Err(format!("rows {rows:?} are not whole vectors of a block of {}", self.rows));
        }
        let nulls = self.nulls(&rows);
        Ok(match &self.column_type {
            ColumnType::Boolean => Arc::new(self.booleans(&rows, nulls)),
            ColumnType::Int8 => self.primitive::<Int8Type>(&rows, nulls, |key| key as i8)?,
            ColumnType::Int16 => self.primitive::<Int16Type>(&rows, nulls, |key| key as i16)?,
            ColumnType::Int32 => self.primitive::<Int32Type>(&rows, nulls, |key| key as i32)?,
            ColumnType::Int64 => self.primitive::<Int64Type>(&rows, nulls, |key| key)?,
            ColumnType::UInt8 => self.primitive::<UInt8Type>(&rows, nulls, |key| key as u8)?,
            ColumnType::UInt16 => self.primitive::<UInt16Type>(&rows, nulls, |key| key as u16)?,
            ColumnType::UInt32 => self.primitive::<UInt32Type>(&rows, nulls, |key| key as u32)?,
            ColumnType::UInt64 => self.primitive::<UInt64Type>(&rows, nulls, u64_of_key)?,
            ColumnType::Float32 => self.primitive::<Float32Type>(&rows, nulls, f32_of_key)?,
            ColumnType::Float64 => self.primitive::<Float64Type>(&rows, nulls, f64_of_key)?,
            ColumnType::Date => self.primitive::<Date32Type>(&rows, nulls, |key| key as i32)?,
            ColumnType::Decimal { .. } => self.primitive::<Decimal128Type>(&rows, nulls, i128::from)?,
            ColumnType::Timestamp { unit, .. } => match unit {
                TimeUnit::Second => self.primitive::<TimestampSecondType>(&rows, nulls, |key| key)?,
                TimeUnit::Millisecond => self.primitive::<TimestampMillisecondType>(&rows, nulls, |key| key)?,
                TimeUnit::Microsecond => self.primitive::<TimestampMicrosecondType>(&rows, nulls, |key| key)?,
                TimeUnit::Nanosecond => self.primitive::<TimestampNanosecondType>(&rows, nulls, |key| key)?,
            },
            ColumnType::Varchar => self.texts(&rows, nulls)?,
        })
    }

    fn nulls(&self, rows: &Range<usize>) -> Option<NullBuffer> {
        if self.null_count == self.rows {
            return (self.rows > 0).then(|| NullBuffer::new_null(rows.len()));
        }
        let validity = self.chunks[chunk::VALIDITY].as_ref()?;
        let bits = bits_in_order(validity.words(), rows);
        Some(NullBuffer::new(bits)).filter(|nulls| nulls.null_count() > 0)
    }

    fn booleans(&self, rows: &Range<usize>, nulls: Option<NullBuffer>) -> BooleanArray {
        let bits = match &self.chunks[chunk::VALUES] {
            Some(values) if self.base == 0 => bits_in_order(values.words(), rows),
            _ if self.base == 0 => BooleanBuffer::new_unset(rows.len()),
            _ => BooleanBuffer::new_set(rows.len()),
        };
        BooleanArray::new(bits, nulls)
    }

    fn primitive<T: ArrowPrimitiveType>(
        &self,
        rows: &Range<usize>,
        nulls: Option<NullBuffer>,
        of_key: impl Fn(i64) -> T::Native,
    ) -> Result<ArrayRef, String> {
        let values = match self.encoding {
            EncodingCode::Plain => self.plain::<T>(rows, of_key),
            EncodingCode::Dictionary => {
                let Some(Entries::Keys(keys)) = self.dictionary.as_ref().map(|d| &d.entries) else {
                    return Err("its dictionary holds no keys".into());
                };
                let mut values = Vec::with_capacity(rows.len().next_multiple_of(VECTOR_ROWS));
                self.for_each_codes(rows, keys.len(), |codes| {
                    values.extend(codes.iter().map(|code| of_key(keys[*code as usize])));
                })?;
                values.truncate(rows.len());
                ScalarBuffer::from(values)
            }
            EncodingCode::Packed | EncodingCode::Text => self.packed::<T>(rows, of_key),
        };
        let array = PrimitiveArray::<T>::new(values, nulls);
        Ok(make_array(array.into_data_of(&self.column_type)))
    }

    /// Calls `f` with the codes of each vector. In a block without NULLs, a code outside of the
    /// dictionary is an error. Under a NULL there may be any code.
    fn for_each_codes(&self, rows: &Range<usize>, entries: usize, mut f: impl FnMut(&[u32])) -> Result<(), String> {
        if entries == 0 {
            return if rows.is_empty() { Ok(()) } else { Err("it has codes of an empty dictionary".into()) };
        }
        let out_of_range = |code: i64| format!("code {code} is outside of a dictionary of {entries} entries");
        let Some(values) = &self.chunks[chunk::VALUES] else {
            let code = usize::try_from(self.base).ok().filter(|code| *code < entries);
            let code = code.ok_or_else(|| out_of_range(self.base))? as u32;
            f(&vec![code; rows.len()]);
            return Ok(());
        };
        let mut codes: Values = [0; VECTOR_ROWS];
        for vector in vectors(rows) {
            unpack(self.width, words_of(values, self.width, vector), &mut codes);
            let greatest = codes.iter().copied().max().unwrap_or(0);
            if greatest as usize >= entries {
                return Err(out_of_range(greatest.into()));
            }
            f(&codes);
        }
        Ok(())
    }

    fn packed<T: ArrowPrimitiveType>(
        &self,
        rows: &Range<usize>,
        of_key: impl Fn(i64) -> T::Native,
    ) -> ScalarBuffer<T::Native> {
        let Some(low_plane) = &self.chunks[chunk::VALUES] else {
            return ScalarBuffer::from(vec![of_key(self.base); rows.len()]);
        };
        let mut values: Vec<T::Native> = Vec::with_capacity(rows.len().next_multiple_of(VECTOR_ROWS));
        let (mut low, mut high): (Values, Values) = ([0; VECTOR_ROWS], [0; VECTOR_ROWS]);
        for vector in vectors(rows) {
            unpack(self.width.min(32), words_of(low_plane, self.width.min(32), vector), &mut low);
            if let Some(high_plane) = &self.chunks[chunk::HIGH] {
                let width = self.width.saturating_sub(32);
                unpack(width, words_of(high_plane, width, vector), &mut high);
                values.extend(low.iter().zip(&high).map(|(low, high)| {
                    of_key(self.base.wrapping_add((u64::from(*high) << 32 | u64::from(*low)) as i64))
                }));
            } else {
                values.extend(low.iter().map(|low| of_key(self.base.wrapping_add(i64::from(*low)))));
            }
        }
        values.truncate(rows.len());
        ScalarBuffer::from(values)
    }

    fn plain<T: ArrowPrimitiveType>(
        &self,
        rows: &Range<usize>,
        of_key: impl Fn(i64) -> T::Native,
    ) -> ScalarBuffer<T::Native> {
        match &self.chunks[chunk::VALUES] {
            // The stored bytes are the array: no copy.
            Some(values) => ScalarBuffer::new(buffer(values), rows.start, rows.len()),
            None if self.width == 16 => ScalarBuffer::from(vec![T::Native::ZERO; rows.len()]),
            None => ScalarBuffer::from(vec![of_key(self.base); rows.len()]),
        }
    }

    fn texts(&self, rows: &Range<usize>, nulls: Option<NullBuffer>) -> Result<ArrayRef, String> {
        let (views, buffers) = match self.encoding {
            EncodingCode::Dictionary => self.dictionary_views(rows)?,
            _ => (self.text_views(rows), self.chunks[chunk::TEXT].as_ref().map(buffer).into_iter().collect()),
        };
        // SAFETY: every view was made from offsets that `check_text` or `Dictionary::parse` found
        // to lie inside its buffer and to cut it between characters of valid UTF-8.
        let array = unsafe { StringViewArray::new_unchecked(ScalarBuffer::from(views), buffers, nulls) };
        Ok(Arc::new(array))
    }

    fn dictionary_views(&self, rows: &Range<usize>) -> Result<(Vec<u128>, Vec<Buffer>), String> {
        let Some(Entries::Texts { views, text }) = self.dictionary.as_ref().map(|d| &d.entries) else {
            return Err("its dictionary holds no text".into());
        };
        let mut out = Vec::with_capacity(rows.len().next_multiple_of(VECTOR_ROWS));
        if self.null_count == self.rows {
            out.resize(rows.len(), 0);
        } else {
            self.for_each_codes(rows, views.len(), |codes| out.extend(codes.iter().map(|code| views[*code as usize])))?;
        }
        out.truncate(rows.len());
        Ok((out, vec![text.clone()]))
    }

    fn text_views(&self, rows: &Range<usize>) -> Vec<u128> {
        let text: &[u8] = self.chunks[chunk::TEXT].as_deref().map_or(&[], |text| text);
        let mut views = Vec::with_capacity(rows.len());
        self.for_each_text(rows, |start, length| views.push(view(text, start, length)));
        views
    }

    /// Calls `f` with the string of each of `rows`, `None` for NULL. Rows are counted from the
    /// block's first, and ascend, with possible repetitions. Cheaper than [`BlockColumn::decode`]
    /// if they are only a part of their vectors.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the stored values are invalid, or a row is out of range.
    pub fn texts_at(&self, rows: &[u16], mut f: impl FnMut(Option<&str>)) -> Result<(), Error> {
        for run in rows.chunk_by(|a, b| usize::from(*a) / VECTOR_ROWS == usize::from(*b) / VECTOR_ROWS) {
            let outcome = match self.encoding {
                EncodingCode::Text => self.plain_texts_at(run, &mut f),
                _ => self.decoded_texts_at(run, &mut f),
            };
            outcome.map_err(|reason| self.origin.corrupt(reason))?;
        }
        Ok(())
    }

    fn decoded_texts_at(&self, rows: &[u16], f: &mut impl FnMut(Option<&str>)) -> Result<(), String> {
        let Some(first) = rows.first().map(|row| usize::from(*row) / VECTOR_ROWS * VECTOR_ROWS) else { return Ok(()) };
        let vector = self.decode_rows(first..(first + VECTOR_ROWS).min(self.rows))?;
        let texts = vector.as_string_view_opt().ok_or("it is asked for texts, and holds none")?;
        for row in rows.iter().map(|row| usize::from(*row) - first) {
            if row >= texts.len() {
                return Err(format!("row {} is asked for, of {}", first + row, self.rows));
            }
            f(texts.is_valid(row).then(|| texts.value(row)));
        }
        Ok(())
    }

    /// Does this for rows of one vector: unpacks its lengths, and sums them up to the last row.
    fn plain_texts_at(&self, rows: &[u16], f: &mut impl FnMut(Option<&str>)) -> Result<(), String> {
        let (Some(first), Some(last)) = (rows.first(), rows.last()) else { return Ok(()) };
        if usize::from(*last) >= self.rows {
            return Err(format!("row {last} is asked for, of {}", self.rows));
        }
        let vector = usize::from(*first) / VECTOR_ROWS;
        let bytes: &[u8] = self.chunks[chunk::TEXT].as_deref().map_or(&[], |text| text);
        // SAFETY: `check_text` found the whole chunk to be UTF-8 when the block was created.
        let text = unsafe { std::str::from_utf8_unchecked(bytes) };
        let mut lengths: Values = [0; VECTOR_ROWS];
        if let Some(stored) = &self.chunks[chunk::VALUES] {
            unpack(self.width, words_of(stored, self.width, vector), &mut lengths);
        }
        let mut valid: Values = [u32::from(self.null_count < self.rows); VECTOR_ROWS];
        if let Some(validity) = &self.chunks[chunk::VALIDITY] {
            unpack(1, words_of(validity, 1, vector), &mut valid);
        }
        let mut start = self.chunks[chunk::ANCHORS].as_ref().map_or(0, |a| a.words()[vector] as usize);
        let mut at = 0;
        for row in rows.iter().map(|row| usize::from(*row) % VECTOR_ROWS) {
            start += lengths[at..row].iter().map(|length| self.base as usize + *length as usize).sum::<usize>();
            at = row;
            let end = start + self.base as usize + lengths[row] as usize;
            let found = text.get(start..end).ok_or("its lengths do not fit its text")?;
            f((valid[row] == 1).then_some(found));
        }
        Ok(())
    }

    /// Calls `f` with start and length of each string.
    fn for_each_text(&self, rows: &Range<usize>, mut f: impl FnMut(usize, usize)) {
        let mut lengths: Values = [0; VECTOR_ROWS];
        for vector in vectors(rows) {
            if let Some(stored) = &self.chunks[chunk::VALUES] {
                unpack(self.width, words_of(stored, self.width, vector), &mut lengths);
            }
            let mut start = self.chunks[chunk::ANCHORS].as_ref().map_or(0, |a| a.words()[vector] as usize);
            let n = (self.rows - vector * VECTOR_ROWS).min(VECTOR_ROWS);
            for length in &lengths[..n] {
                let length = self.base as usize + *length as usize;
                f(start, length);
                start += length;
            }
        }
    }

    /// Checks that strings lie one after the other, fill the chunk, and are UTF-8 each.
    fn check_text(&self) -> Result<(), String> {
        if self.base < 0 || self.base > i64::from(u32::MAX) {
            return Err("its least length makes no sense".into());
        }
        let text: &[u8] = self.chunks[chunk::TEXT].as_deref().map_or(&[], |text| text);
        let whole = std::str::from_utf8(text).map_err(|e| format!("its text is not UTF-8: {e}"))?;
        let mut next = 0;
        let mut is_sound = true;
        self.for_each_text(&(0..self.rows), |start, length| {
            is_sound &= start == next && whole.is_char_boundary(start);
            next = start + length;
        });
        if is_sound && next == text.len() { Ok(()) } else { Err("its lengths do not fit its text".into()) }
    }
}

/// A sorted dictionary in memory.
#[derive(Debug)]
pub(crate) struct Dictionary {
    pub(crate) entries: Entries,
    /// The integers of the codes of a dictionary of keys, created on first use.
    codes: OnceLock<CodeTable>,
}

#[derive(Debug)]
pub(crate) enum Entries {
    Keys(Vec<i64>),
    Texts { views: Vec<u128>, text: Buffer },
}

impl Dictionary {
    /// Parses a dictionary. The error describes the damage.
    pub fn parse(info: &ColumnInfo, entries: usize, bytes: AlignedBuf) -> Result<Self, String> {
        if !info.column_type.is_text() {
            let keys: Vec<i64> = bytes.as_chunks::<8>().0.iter().map(|key| i64::from_le_bytes(*key)).collect();
            if keys.len() != entries || !keys.is_sorted() {
                return Err("the dictionary is not in order".into());
            }
            return Ok(Self { entries: Entries::Keys(keys), codes: OnceLock::new() });
        }
        let offsets: Vec<usize> =
            bytes.as_chunks::<4>().0[..=entries].iter().map(|at| u32::from_le_bytes(*at) as usize).collect();
        let text_start = 4 * (entries + 1);
        let text = &bytes[text_start..];
        let whole = std::str::from_utf8(text).map_err(|e| format!("the dictionary is not UTF-8: {e}"))?;
        let is_sound = offsets[0] == 0
            && offsets.is_sorted()
            && offsets.last() == Some(&text.len())
            && text.len() <= i32::MAX as usize
            && offsets.iter().all(|at| whole.is_char_boundary(*at));
        if !is_sound {
            return Err("the dictionary's offsets do not fit its text".into());
        }
        let views = offsets.windows(2).map(|ends| view(text, ends[0], ends[1] - ends[0])).collect();
        let text_bytes = text.len();
        let text = buffer(&StoredBytes::from(bytes)).slice_with_length(text_start, text_bytes);
        Ok(Self { entries: Entries::Texts { views, text }, codes: OnceLock::new() })
    }

    /// Returns the table of the codes, if the dictionary has keys.
    pub fn code_table(&self) -> Option<CodeTable> {
        match &self.entries {
            Entries::Keys(keys) => Some(self.codes.get_or_init(|| CodeTable::new(keys)).clone()),
            Entries::Texts { .. } => None,
        }
    }
}

/// Returns Arrow's view of a string in buffer 0: its length, then all of it up to 12 bytes, or 4
/// bytes of it and its offset.
fn view(text: &[u8], start: usize, length: usize) -> u128 {
    let Some(bytes) = text.get(start..start + length) else { return 0 };
    let mut view = [0u8; 16];
    view[..4].copy_from_slice(&(length as u32).to_le_bytes());
    if length <= 12 {
        view[4..4 + length].copy_from_slice(bytes);
    } else {
        view[4..8].copy_from_slice(&bytes[..4]);
        view[12..].copy_from_slice(&(start as u32).to_le_bytes());
    }
    u128::from_le_bytes(view)
}

/// Returns a chunk as an Arrow buffer that keeps it alive.
fn buffer(chunk: &StoredBytes) -> Buffer {
    let start = NonNull::from(&chunk[..]).cast::<u8>();
    // SAFETY: the bytes stay in place, and are not written, as long as the given Arc lives.
    unsafe { Buffer::from_custom_allocation(start, chunk.len(), Arc::clone(chunk.buffer()) as _) }
}

fn vectors(rows: &Range<usize>) -> Range<usize> {
    rows.start / VECTOR_ROWS..rows.end.div_ceil(VECTOR_ROWS)
}

fn words_of(plane: &StoredBytes, width: u32, vector: usize) -> &[u32] {
    &plane.words()[vector * vector_words(width)..][..vector_words(width)]
}

/// Converts the bits of whole vectors from lane geometry to row order.
fn bits_in_order(lanes: &[u32], rows: &Range<usize>) -> BooleanBuffer {
    let mut words: Vec<u32> = Vec::with_capacity(vectors(rows).len() * LANES);
    for vector in vectors(rows) {
        let mut bits = [0; LANES];
        bits.copy_from_slice(&lanes[vector * LANES..][..LANES]);
        transpose(&mut bits);
        words.extend_from_slice(&bits);
    }
    BooleanBuffer::new(Buffer::from_vec(words), 0, rows.len())
}

/// Adds the parameters of decimals and timestamps, which the native type does not have, to the
/// Arrow type.
trait IntoDataOf {
    fn into_data_of(self, column_type: &ColumnType) -> arrow_data::ArrayData;
}

impl<T: ArrowPrimitiveType> IntoDataOf for PrimitiveArray<T> {
    fn into_data_of(self, column_type: &ColumnType) -> arrow_data::ArrayData {
        self.with_data_type(column_type.arrow()).into()
    }
}
