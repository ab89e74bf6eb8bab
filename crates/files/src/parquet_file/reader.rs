//! Reads a Parquet file front to back, after all checks.

use std::io::{self, BufReader, Read};
use std::sync::Arc;

use bytes::Bytes;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::metadata::ParquetMetaData;
use parquet::file::reader::{ChunkReader, Length};

use super::{FOOTER_TAIL_BYTES, PageCheck, PageMemory, footer, tail};
use crate::input::read;
use crate::{Fault, Input, Memory};

/// A file in the form that parquet's reader expects.
pub struct Chunks {
    input: Arc<dyn Input>,
    size: u64,
}

/// Opens a file. From now on the account holds the memory of the largest row group.
///
/// # Errors
/// If the file is damaged, or is not a Parquet file.
pub fn open(input: Arc<dyn Input>, memory: &mut dyn Memory) -> Result<ParquetRecordBatchReaderBuilder<Chunks>, Fault> {
    let (metadata, size) = read_footer(input.as_ref(), memory)?;
    let held = check_pages(input.as_ref(), &metadata)?;
    let refused = |refused| Fault::Memory { what: "a row group".into(), bytes: held, refused };
    memory.resize(held).map_err(refused)?;
    let metadata = ArrowReaderMetadata::try_new(Arc::new(metadata), ArrowReaderOptions::new())?;
    Ok(ParquetRecordBatchReaderBuilder::new_with_metadata(Chunks { input, size }, metadata))
}

/// Reads the footer of a file, and the file's size.
///
/// # Errors
/// If the file is damaged, or is not a Parquet file.
pub fn read_footer(input: &dyn Input, memory: &mut dyn Memory) -> Result<(ParquetMetaData, u64), Fault> {
    let size = input.size()?;
    let short = || Fault::damaged("it is too short for a footer");
    let mut end = [0; FOOTER_TAIL_BYTES as usize];
    input.read_exact_at(size.checked_sub(FOOTER_TAIL_BYTES).ok_or_else(short)?, &mut end)?;
    let found = tail(end, size)?;
    let bytes = read(input, found.offset, found.len as usize, "the footer")?;
    Ok((footer(&bytes, size, memory)?, size))
}

/// Checks all pages. Returns the bytes that a reader of the largest row group holds at a time.
fn check_pages(input: &dyn Input, metadata: &ParquetMetaData) -> Result<u64, Fault> {
    let mut most = 0;
    for group in metadata.row_groups() {
        let mut held = 0_u64;
        for column in group.columns() {
            let (start, len) = column.byte_range();
            let PageMemory { dictionary_bytes, data_bytes, .. } = PageCheck::new(column).chunk(input, start, len)?;
            held = held.saturating_add(dictionary_bytes).saturating_add(data_bytes);
        }
        most = most.max(held);
    }
    Ok(most)
}

impl Length for Chunks {
    fn len(&self) -> u64 {
        self.size
    }
}

impl ChunkReader for Chunks {
    type T = BufReader<From>;

    fn get_read(&self, start: u64) -> ParquetResult<Self::T> {
        Ok(BufReader::new(From { input: Arc::clone(&self.input), at: start, size: self.size }))
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<Bytes> {
        let is_within = start.checked_add(length as u64).is_some_and(|end| end <= self.size);
        if !is_within {
            return Err(ParquetError::EOF(format!("{length} bytes at {start}, in a file of {}", self.size)));
        }
        let bytes = read(self.input.as_ref(), start, length, "a page");
        Ok(bytes.map_err(|fault| ParquetError::External(Box::new(fault)))?.into())
    }
}

/// A file from an offset on.
pub struct From {
    input: Arc<dyn Input>,
    at: u64,
    size: u64,
}

impl Read for From {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.size.saturating_sub(self.at)).unwrap_or(usize::MAX);
        let len = left.min(buffer.len());
        self.input.read_exact_at(self.at, &mut buffer[..len])?;
        self.at += len as u64;
        Ok(len)
    }
}
