//! String columns: a sorted dictionary while that is smaller, otherwise lengths and bytes.
//!
//! Values are interned as they arrive. The builder abandons the dictionary, and writes the coded
//! rows as bytes, in three cases: the first block repeats too little, entries grow with the rows,
//! or codes would take more space at the end.

use arrow_array::cast::AsArray;
use arrow_array::{Array, StringViewArray};
use arrow_schema::DataType;
use hashbrown::{DefaultHashBuilder, HashTable};
use std::hash::BuildHasher;

use super::fixed::{CodeBlock, DictionaryColumn};
use super::validity::{BlockValidity, Validity};
use super::{ColumnBuilder, DictionaryBytes, EncodedColumn, PackedRun, type_mismatch};
use crate::layout::{EncodingCode, chunk};
use crate::packed::{VECTOR_ROWS, width_of};
use crate::types::ColumnType;
use crate::zone::Zone;
use crate::{Error, Result};

/// More entries than this are not worth sorting and looking up.
const MAX_ENTRIES: usize = 1 << 20;
/// Views into a dictionary have signed 32-bit offsets. Half of that leaves space for one more
/// block.
const MAX_DICTIONARY_BYTES: usize = 1 << 30;
/// A block's string bytes are addressed by Arrow's views with signed 32-bit offsets.
const MAX_BLOCK_TEXT_BYTES: usize = i32::MAX as usize;

/// Collects strings.
pub(crate) struct TextBuilder {
    name: String,
    rows: usize,
    text_bytes: usize,
    validity: Validity,
    state: State,
}

enum State {
    Coded { interner: Interner, staged: Vec<u32>, blocks: Vec<Coded> },
    Plain { staged: Plain, blocks: Vec<(Plain, BlockValidity)> },
}

struct Coded {
    codes: PackedRun,
    rows: usize,
    validity: BlockValidity,
}

/// Unencoded rows. NULLs have length 0.
#[derive(Debug, Default)]
struct Plain {
    lengths: Vec<u32>,
    bytes: Vec<u8>,
}

impl Plain {
    fn push(&mut self, text: &[u8]) {
        self.lengths.push(text.len() as u32);
        self.bytes.extend_from_slice(text);
    }
}

impl TextBuilder {
    /// Creates a builder of a column.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_string(),
            rows: 0,
            text_bytes: 0,
            validity: Validity::default(),
            state: State::Coded { interner: Interner::default(), staged: Vec::new(), blocks: Vec::new() },
        }
    }

    fn append_texts<'a>(&mut self, texts: impl Iterator<Item = Option<&'a str>>) {
        for text in texts {
            let bytes = text.unwrap_or("").as_bytes();
            self.text_bytes += bytes.len();
            match &mut self.state {
                State::Coded { interner, staged, .. } => {
                    // A NULL must not add an entry of its own: it takes an existing code.
                    let code = if text.is_some() { interner.intern(bytes) } else { NULL_CODE };
                    staged.push(code);
                }
                State::Plain { staged, .. } => staged.push(bytes),
            }
        }
    }

    /// Appends views. Views that repeat within an array are bitwise equal, which is cheaper to
    /// detect than equal strings.
    fn append_views(&mut self, array: &StringViewArray) {
        let State::Coded { interner, staged, .. } = &mut self.state else {
            self.append_texts(array.iter());
            return;
        };
        let mut recent = [(0u128, NULL_CODE); 256];
        staged.reserve(array.len());
        for (row, view) in array.views().iter().enumerate() {
            if array.is_null(row) {
                staged.push(NULL_CODE);
                continue;
            }
            self.text_bytes += *view as u32 as usize;
            let slot = (*view ^ (*view >> 64)) as u64;
            let slot = (slot.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as usize;
            if recent[slot].0 != *view || recent[slot].1 == NULL_CODE {
                recent[slot] = (*view, interner.intern(array.value(row).as_bytes()));
            }
            staged.push(recent[slot].1);
        }
    }

    fn should_give_up(&self) -> bool {
        match &self.state {
            State::Coded { interner, .. } => {
                let entries = interner.len();
                let is_large = entries > MAX_ENTRIES || interner.bytes.len() > MAX_DICTIONARY_BYTES;
                is_large || entries > 1000 && entries * 2 > self.rows
            }
            State::Plain { .. } => false,
        }
    }

    fn give_up_codes(&mut self) {
        if let State::Coded { interner, staged, blocks } = &mut self.state {
            let plain_blocks = blocks
                .drain(..)
                .map(|block| {
                    let mut plain = Plain::default();
                    block.codes.for_each(|code| {
                        let is_valid = block.validity.is_valid(plain.lengths.len());
                        plain.push(if is_valid { interner.text(code as u32) } else { b"" });
                    });
                    (plain, block.validity)
                })
                .collect();
            let mut open = Plain::default();
            for code in staged.iter() {
                open.push(if *code == NULL_CODE { b"" } else { interner.text(*code) });
            }
            self.state = State::Plain { staged: open, blocks: plain_blocks };
        }
    }
}

const NULL_CODE: u32 = u32::MAX;

impl ColumnBuilder for TextBuilder {
    fn append(&mut self, array: &dyn Array) -> Result<()> {
        match array.data_type() {
            DataType::Utf8View => self.append_views(array.as_string_view()),
            DataType::Utf8 => self.append_texts(array.as_string::<i32>().iter()),
            DataType::LargeUtf8 => self.append_texts(array.as_string::<i64>().iter()),
            other => return Err(type_mismatch(&self.name, &ColumnType::Varchar, other)),
        }
        self.validity.append(array);
        self.rows += array.len();
        if let State::Plain { staged, .. } = &self.state
            && staged.bytes.len() > MAX_BLOCK_TEXT_BYTES
        {
            return Err(Error::Value {
                column: self.name.clone(),
                reason: "a block of rows has more than 2 GiB of text".into(),
            });
        }
        Ok(())
    }

    fn end_block(&mut self) -> Result<()> {
        if self.should_give_up() {
            self.give_up_codes();
        }
        let validity = self.validity.take();
        match &mut self.state {
            State::Coded { staged, blocks, .. } => {
                let codes = staged.iter().map(|code| if *code == NULL_CODE { 0 } else { u64::from(*code) });
                let width = width_of(codes.clone().max().unwrap_or(0));
                blocks.push(Coded { codes: PackedRun::pack(width, codes), rows: staged.len(), validity });
                staged.clear();
            }
            State::Plain { staged, blocks } => {
                let capacity = staged.bytes.len();
                let full = std::mem::take(staged);
                staged.bytes.reserve(capacity);
                blocks.push((full, validity));
            }
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<Box<dyn EncodedColumn>> {
        if let State::Coded { interner, .. } = &self.state {
            let width = width_of(interner.len().saturating_sub(1) as u64) as usize;
            let coded_bytes = self.rows * width / 8 + interner.bytes.len() + 4 * (interner.len() + 1);
            let plain_bytes = self.rows + self.text_bytes;
            if interner.len() > 1 && coded_bytes > plain_bytes {
                self.give_up_codes();
            }
        }
        match self.state {
            State::Coded { interner, blocks, .. } => Ok(Box::new(encode_codes(&interner, blocks))),
            State::Plain { blocks, .. } => Ok(Box::new(TextColumn::new(&self.name, blocks)?)),
        }
    }

    fn memory_bytes(&self) -> usize {
        match &self.state {
            State::Coded { interner, staged, blocks } => {
                let blocks: usize = blocks.iter().map(|b| b.codes.memory_bytes() + b.validity.memory_bytes()).sum();
                interner.bytes.capacity() + interner.starts.capacity() * 12 + staged.capacity() * 4 + blocks
            }
            State::Plain { staged, blocks } => {
                let of = |plain: &Plain| plain.lengths.capacity() * 4 + plain.bytes.capacity();
                of(staged) + blocks.iter().map(|(plain, validity)| of(plain) + validity.memory_bytes()).sum::<usize>()
            }
        }
    }
}

/// Strings by code, in the order of their first appearance.
#[derive(Debug)]
struct Interner {
    bytes: Vec<u8>,
    /// The start of each string, and the end of the last.
    starts: Vec<usize>,
    codes: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl Default for Interner {
    fn default() -> Self {
        Self { bytes: Vec::new(), starts: vec![0], codes: HashTable::new(), hasher: DefaultHashBuilder::default() }
    }
}

impl Interner {
    fn len(&self) -> usize {
        self.starts.len() - 1
    }

    fn text(&self, code: u32) -> &[u8] {
        match self.starts.get(code as usize + 1) {
            Some(end) => &self.bytes[self.starts[code as usize]..*end],
            None => b"",
        }
    }

    fn intern(&mut self, text: &[u8]) -> u32 {
        let hash = self.hasher.hash_one(text);
        let (bytes, starts) = (&self.bytes, &self.starts);
        let at = |code: &u32| &bytes[starts[*code as usize]..starts[*code as usize + 1]];
        if let Some(code) = self.codes.find(hash, |code| at(code) == text) {
            return *code;
        }
        let code = (self.starts.len() - 1) as u32;
        self.codes.insert_unique(hash, code, |code| self.hasher.hash_one(at(code)));
        self.bytes.extend_from_slice(text);
        self.starts.push(self.bytes.len());
        code
    }
}

/// Sorts the dictionary, so that codes compare as the strings do, and recodes the blocks.
fn encode_codes(interner: &Interner, blocks: Vec<Coded>) -> DictionaryColumn {
    let entries = interner.len();
    let mut order: Vec<u32> = (0..entries as u32).collect();
    order.sort_unstable_by_key(|code| interner.text(*code));
    let mut recoded = vec![0u32; entries.max(1)];
    for (code, old) in order.iter().enumerate() {
        recoded[*old as usize] = code as u32;
    }
    let mut bytes = Vec::with_capacity(4 * (entries + 1) + interner.bytes.len());
    let mut offset = 0u32;
    bytes.extend(offset.to_le_bytes());
    for old in &order {
        offset += interner.text(*old).len() as u32;
        bytes.extend(offset.to_le_bytes());
    }
    for old in &order {
        bytes.extend_from_slice(interner.text(*old));
    }
    let width = width_of(entries.saturating_sub(1) as u64);
    let text = |code: u64| interner.text(order.get(code as usize).copied().unwrap_or(0));
    let blocks = blocks.into_iter().map(|block| recode(block, &recoded, width, &text)).collect();
    DictionaryColumn { width, entries: entries as u32, bytes, blocks }
}

fn recode<'a>(block: Coded, recoded: &[u32], width: u32, text: &impl Fn(u64) -> &'a [u8]) -> CodeBlock {
    let rows = block.rows;
    if block.validity.null_count == rows {
        let zone = Zone::of_nulls(rows as u64, true);
        return CodeBlock { base: 0, codes: PackedRun::default(), validity: block.validity, zone };
    }
    let mut codes = Vec::with_capacity(rows);
    block.codes.for_each(|code| codes.push(u64::from(recoded[code as usize])));
    // Codes under NULLs are the old code 0, which may not occur in this block: they must not affect
    // its zone.
    let mut ends: Option<(u64, u64)> = None;
    let mut see = |code: u64| ends = Some(ends.map_or((code, code), |(a, b)| (a.min(code), b.max(code))));
    if block.validity.null_count == 0 {
        codes.iter().for_each(|code| see(*code));
    } else {
        block.validity.valid_rows(rows).for_each(|row| see(codes[row]));
    }
    let (min, max) = ends.unwrap_or((0, 0));
    let zone = Zone::of_text(text(min), text(max), block.validity.null_count as u64, rows as u64);
    if min == max {
        return CodeBlock { base: min as i64, codes: PackedRun::default(), validity: block.validity, zone };
    }
    CodeBlock { base: 0, codes: PackedRun::pack(width, codes.into_iter()), validity: block.validity, zone }
}

/// Lengths and bytes.
struct TextColumn {
    width: u32,
    blocks: Vec<TextBlock>,
}

struct TextBlock {
    /// The least length.
    base: u32,
    lengths: PackedRun,
    anchors: Vec<u32>,
    bytes: Vec<u8>,
    validity: BlockValidity,
    zone: Zone,
}

impl TextColumn {
    fn new(name: &str, blocks: Vec<(Plain, BlockValidity)>) -> Result<Self> {
        let blocks: Vec<TextBlock> = blocks
            .into_iter()
            .map(|(plain, validity)| {
                if plain.bytes.len() > MAX_BLOCK_TEXT_BYTES {
                    let reason = "a block of rows has more than 2 GiB of text".into();
                    return Err(Error::Value { column: name.to_string(), reason });
                }
                Ok(TextBlock::new(plain, validity))
            })
            .collect::<Result<_>>()?;
        let width = blocks.iter().map(|block| block.lengths.width()).max().unwrap_or(0);
        Ok(Self { width, blocks })
    }
}

impl TextBlock {
    fn new(plain: Plain, validity: BlockValidity) -> Self {
        let Plain { lengths, bytes } = plain;
        let (min, max) = (lengths.iter().min().copied().unwrap_or(0), lengths.iter().max().copied().unwrap_or(0));
        let mut anchors = Vec::with_capacity(lengths.len().div_ceil(VECTOR_ROWS));
        let mut start = 0u32;
        let mut ends: Option<(&[u8], &[u8])> = None;
        for (row, length) in lengths.iter().enumerate() {
            if row % VECTOR_ROWS == 0 {
                anchors.push(start);
            }
            let text = &bytes[start as usize..(start + length) as usize];
            start += length;
            if validity.null_count == 0 || validity.is_valid(row) {
                ends = Some(ends.map_or((text, text), |(a, b)| (a.min(text), b.max(text))));
            }
        }
        let rows = lengths.len() as u64;
        let zone = match ends {
            Some((least, greatest)) => Zone::of_text(least, greatest, validity.null_count as u64, rows),
            None => Zone::of_nulls(rows, true),
        };
        let packed = PackedRun::pack(width_of((max - min).into()), lengths.iter().map(|l| u64::from(l - min)));
        Self { base: min, lengths: packed, anchors, bytes, validity, zone }
    }
}

impl EncodedColumn for TextColumn {
    fn encoding(&self) -> EncodingCode {
        EncodingCode::Text
    }

    fn width(&self) -> u8 {
        self.width as u8
    }

    fn dictionary(&self) -> Option<DictionaryBytes<'_>> {
        None
    }

    fn zone(&self, block: usize) -> Zone {
        self.blocks[block].zone
    }

    fn base(&self, block: usize) -> i64 {
        self.blocks[block].base.into()
    }

    fn chunk(&self, block: usize, chunk: usize, out: &mut Vec<u8>) {
        out.clear();
        let block = &self.blocks[block];
        match chunk {
            chunk::VALIDITY => block.validity.write(out),
            chunk::VALUES if block.lengths.width() > 0 => block.lengths.write_plane(self.width, 0, out),
            chunk::ANCHORS if !block.bytes.is_empty() => {
                out.extend(block.anchors.iter().flat_map(|anchor| anchor.to_le_bytes()));
            }
            chunk::TEXT => out.extend_from_slice(&block.bytes),
            _ => {}
        }
    }
}
