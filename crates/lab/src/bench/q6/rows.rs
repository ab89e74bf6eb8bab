//! A table as pages of whole rows, like the input of the paper's query engine.
//! `docs/internals/row-pages.md` specifies the bytes.
//!
//! ```text
//! 0      header page: magic, version, what follows, checksum
//! 8192   pages of 8,192 bytes:
//!        0   checksum of the rest of the page   4  rows   6  zero   8  the page's number
//!        16  rows, one after the other, each on a multiple of 8
//!        end where each row starts, two bytes each, the first row's last
//! ```
//! All numbers are little-endian. A row has all sixteen columns of `lineitem`: numbers at fixed
//! places, then the lengths of three strings, then the strings. An unfinished file has a header
//! without pages, which identifies it as ours.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use arrow::array::{AsArray, RecordBatch, StringViewArray};
use arrow::datatypes::{Date32Type, Decimal128Type, Int32Type, Int64Type};
use onehop_io::{AlignedBuf, Ledger, LocalFile, Operation, ReadAt, RequestedPath, WriteAt};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{Error, Result, system};
use crate::generate::{Generator, Tpch};

/// The first bytes of a file of row pages.
pub const MAGIC: [u8; 8] = *b"1HOPROW\0";
/// The format version that this build writes, and the only one it reads.
pub const FORMAT_VERSION: u32 = 1;
/// The size of a page, in bytes.
pub const PAGE_BYTES: usize = 8192;

/// The offset of a page's first row.
const PAGE_HEAD: usize = 16;
/// The size of a row before its strings, in bytes.
const ROW_FIXED: usize = 77;
/// The offsets of the requested columns in a row.
const QUANTITY_AT: usize = 24;
const PRICE_AT: usize = 32;
const DISCOUNT_AT: usize = 40;
const SHIPDATE_AT: usize = 56;

/// The number of rows that a thread turns into pages at once.
const CHUNK_ROWS: u64 = 1 << 17;
/// The number of pages that are checked at once.
const CHECK_PAGES: usize = 512;

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    version: u32,
    page_bytes: u32,
    pages: u64,
    rows: u64,
    /// The scale factor, as a double's bits.
    scale: u64,
    /// Features that a reader must know: none yet.
    features: u64,
    reserved: u32,
    /// The CRC-32C of this record, with this field as zero.
    crc: u32,
}

const _: () = assert!(size_of::<Header>() == 56);

/// A finished file.
#[derive(Clone, Debug)]
pub struct RowFile {
    /// The path.
    pub path: PathBuf,
    /// The number of pages after the header's.
    pub pages: u64,
    /// The number of rows in them.
    pub rows: u64,
    /// The scale factor of its rows.
    pub scale: f64,
}

impl RowFile {
    /// Creates a file from the generator's rows, in their order. `progress` receives the number of
    /// rows written.
    ///
    /// # Errors
    /// Fails if the file exists. Returns the system's error, or [`Error::Cancelled`]; no file is
    /// left then.
    pub fn create(
        path: &Path,
        scale: f64,
        threads: usize,
        progress: &mut dyn FnMut(u64),
        cancel: &AtomicBool,
    ) -> Result<Self> {
        fs::File::create_new(path).map_err(|e| system(path, Operation::Create, e))?;
        let written = write(path, scale, threads, progress, cancel);
        if written.is_err() {
            // If that fails, the header of the leftover marks it as unfinished.
            let _ = fs::remove_file(path);
        }
        written
    }

    /// Opens a file.
    ///
    /// # Errors
    /// Returns [`Error::Refused`] for a file of another kind or version, and [`Error::Damaged`].
    pub fn open(path: &Path) -> Result<Self> {
        let file = LocalFile::open(path, RequestedPath::Buffered)?;
        let refused = |reason: String| Error::Refused { object: path.display().to_string(), reason };
        let length = file.len()?;
        if length < size_of::<Header>() as u64 {
            return Err(refused("it is no file of row pages".into()));
        }
        let mut bytes = [0; size_of::<Header>()];
        file.read_at(0, &mut bytes, &Ledger::default())?;
        let header = Header::read_from_bytes(&bytes).map_err(|_| refused("it is no file of row pages".into()))?;
        if header.magic != MAGIC {
            return Err(refused("it is no file of row pages".into()));
        }
        if header.version != FORMAT_VERSION {
            return Err(refused(format!("it has format version {}, and this reads {FORMAT_VERSION}", header.version)));
        }
        let damaged = |reason: &str| Error::Damaged { object: path.display().to_string(), reason: reason.into() };
        if crc32c::crc32c(Header { crc: 0, ..header }.as_bytes()) != header.crc {
            return Err(damaged("the header does not match its checksum"));
        }
        if header.features != 0 || header.page_bytes as usize != PAGE_BYTES {
            return Err(refused("it needs features that this version does not know".into()));
        }
        if header.pages == 0 {
            return Err(refused("it was not finished".into()));
        }
        let bytes = header.pages.checked_add(1).and_then(|pages| pages.checked_mul(PAGE_BYTES as u64));
        if bytes != Some(length) {
            return Err(damaged("its length is not what the header says: it may have been truncated"));
        }
        let scale = f64::from_bits(header.scale);
        Ok(Self { path: path.to_path_buf(), pages: header.pages, rows: header.rows, scale })
    }

    /// Reads the whole file, and checks every page's checksum and number. `progress` receives the
    /// number of bytes.
    ///
    /// # Errors
    /// Returns [`Error::Damaged`] with the page, or [`Error::Cancelled`].
    pub fn check(&self, progress: &mut dyn FnMut(u64), cancel: &AtomicBool) -> Result<()> {
        let (file, ledger) = (LocalFile::open(&self.path, RequestedPath::PreferHostDirect)?, Ledger::default());
        let mut buffer = AlignedBuf::zeroed(CHECK_PAGES * PAGE_BYTES);
        let (mut number, mut rows) = (0, 0);
        while number < self.pages {
            let pages = (self.pages - number).min(CHECK_PAGES as u64) as usize;
            let bytes = &mut buffer[..pages * PAGE_BYTES];
            file.read_at((number + 1) * PAGE_BYTES as u64, bytes, &ledger)?;
            for page in bytes.chunks_exact(PAGE_BYTES) {
                let damaged =
                    |reason: String| Error::Damaged { object: format!("{}, page {number}", file.name()), reason };
                rows += check_page(page, number).map_err(damaged)?;
                number += 1;
            }
            progress(number * PAGE_BYTES as u64);
            if cancel.load(Relaxed) {
                return Err(Error::Cancelled);
            }
        }
        if rows != self.rows {
            let reason = format!("its pages have {rows} rows, and its header says {}", self.rows);
            return Err(Error::Damaged { object: file.name().into(), reason });
        }
        Ok(())
    }
}

/// Checks a page. Returns its number of rows.
fn check_page(page: &[u8], number: u64) -> Result<u64, String> {
    if crc32c::crc32c(&page[4..]) != u32::from_le_bytes(array(page, 0)) {
        return Err("it does not match its checksum".into());
    }
    if u64::from_le_bytes(array(page, 8)) != number {
        return Err("it is another page".into());
    }
    let rows = u16::from_le_bytes(array(page, 4));
    let mut all = 0;
    for_each_row(page, |_| all += 1)?;
    Ok(if all == u64::from(rows) { all } else { 0 })
}

fn write(
    path: &Path,
    scale: f64,
    threads: usize,
    progress: &mut dyn FnMut(u64),
    cancel: &AtomicBool,
) -> Result<RowFile> {
    let generator = Tpch::new(scale)?.with_chunk_rows(CHUNK_ROWS);
    let file = LocalFile::create(path, RequestedPath::Buffered)?;
    let ledger = Ledger::default();
    let header = Header {
        magic: MAGIC,
        version: FORMAT_VERSION,
        page_bytes: PAGE_BYTES as u32,
        pages: 0,
        rows: 0,
        scale: scale.to_bits(),
        features: 0,
        reserved: 0,
        crc: 0,
    };
    write_header(&file, header)?;
    let chunks = generator.chunks("lineitem")?;
    let (mut pages, mut rows) = (0u64, 0u64);
    for first in (0..chunks).step_by(threads.max(1)) {
        // A round: a chunk for each thread, and then all of them written, in order.
        let round: Vec<Result<(Vec<u8>, u64)>> = thread::scope(|scope| {
            let make = |chunk| make_pages(&generator, chunk, cancel);
            let numbers = first..(first + threads.max(1)).min(chunks);
            let threads: Vec<_> = numbers.map(|chunk| scope.spawn(move || make(chunk))).collect();
            let panicked =
                || system(path, Operation::Create, io::Error::other("a thread that makes pages has panicked"));
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(panicked()))).collect()
        });
        for made in round {
            let (mut bytes, count) = made?;
            for page in bytes.chunks_exact_mut(PAGE_BYTES) {
                seal(page, pages);
                pages += 1;
            }
            let at = (pages + 1) * PAGE_BYTES as u64 - bytes.len() as u64;
            file.write_at(at, &bytes, &ledger)?;
            rows += count;
            progress(rows);
        }
    }
    // All pages are durable before the header counts them.
    file.sync()?;
    write_header(&file, Header { pages, rows, ..header })?;
    file.sync()?;
    Ok(RowFile { path: path.to_path_buf(), pages, rows, scale })
}

fn write_header(file: &LocalFile, header: Header) -> Result<()> {
    let crc = crc32c::crc32c(Header { crc: 0, ..header }.as_bytes());
    let mut page = vec![0; PAGE_BYTES];
    page[..size_of::<Header>()].copy_from_slice(Header { crc, ..header }.as_bytes());
    Ok(file.write_at(0, &page, &Ledger::default())?)
}

/// Returns the pages of a chunk, not yet numbered, and its number of rows.
fn make_pages(generator: &Tpch, chunk: usize, cancel: &AtomicBool) -> Result<(Vec<u8>, u64)> {
    let (mut bytes, mut page, mut row, mut rows) = (Vec::new(), Page::new(), Vec::new(), 0);
    for batch in generator.chunk("lineitem", chunk)? {
        if cancel.load(Relaxed) {
            return Err(Error::Cancelled);
        }
        let batch = batch?;
        let columns = Columns::of(&batch)?;
        for n in 0..batch.num_rows() {
            columns.row(n, &mut row);
            if !page.add(&row) {
                bytes.extend_from_slice(&page.bytes);
                page = Page::new();
                if !page.add(&row) {
                    let reason = format!("a row of {} bytes does not fit a page", row.len());
                    return Err(Error::Refused { object: "lineitem".into(), reason });
                }
            }
        }
        rows += batch.num_rows() as u64;
    }
    if page.rows > 0 {
        bytes.extend_from_slice(&page.bytes);
    }
    Ok((bytes, rows))
}

struct Page {
    bytes: [u8; PAGE_BYTES],
    at: usize,
    rows: usize,
}

impl Page {
    fn new() -> Self {
        Self { bytes: [0; PAGE_BYTES], at: PAGE_HEAD, rows: 0 }
    }

    /// Adds a row. Returns false if it does not fit.
    fn add(&mut self, row: &[u8]) -> bool {
        let slot = PAGE_BYTES - 2 * (self.rows + 1);
        if self.at + row.len() > slot {
            return false;
        }
        self.bytes[self.at..self.at + row.len()].copy_from_slice(row);
        self.bytes[slot..slot + 2].copy_from_slice(&(self.at as u16).to_le_bytes());
        self.at = (self.at + row.len()).next_multiple_of(8);
        self.rows += 1;
        self.bytes[4..6].copy_from_slice(&(self.rows as u16).to_le_bytes());
        true
    }
}

/// Writes a page's number and its checksum.
fn seal(page: &mut [u8], number: u64) {
    page[8..16].copy_from_slice(&number.to_le_bytes());
    let crc = crc32c::crc32c(&page[4..]);
    page[..4].copy_from_slice(&crc.to_le_bytes());
}

/// The columns of a batch, in their order in a row.
struct Columns<'a> {
    keys: [&'a [i64]; 3],
    amounts: [&'a [i128]; 4],
    dates: [&'a [i32]; 3],
    line: &'a [i32],
    letters: [&'a StringViewArray; 2],
    texts: [&'a StringViewArray; 3],
}

impl<'a> Columns<'a> {
    fn of(batch: &'a RecordBatch) -> Result<Self> {
        let column = |name: &str| {
            let reason = || Error::Refused { object: "the generator".into(), reason: format!("has no {name}") };
            batch.column_by_name(name).ok_or_else(reason)
        };
        let key = |name: &str| Ok::<_, Error>(&column(name)?.as_primitive::<Int64Type>().values()[..]);
        let amount = |name: &str| Ok::<_, Error>(&column(name)?.as_primitive::<Decimal128Type>().values()[..]);
        let date = |name: &str| Ok::<_, Error>(&column(name)?.as_primitive::<Date32Type>().values()[..]);
        let text = |name: &str| Ok::<_, Error>(column(name)?.as_string_view());
        Ok(Self {
            keys: [key("l_orderkey")?, key("l_partkey")?, key("l_suppkey")?],
            amounts: [amount("l_quantity")?, amount("l_extendedprice")?, amount("l_discount")?, amount("l_tax")?],
            dates: [date("l_shipdate")?, date("l_commitdate")?, date("l_receiptdate")?],
            line: &column("l_linenumber")?.as_primitive::<Int32Type>().values()[..],
            letters: [text("l_returnflag")?, text("l_linestatus")?],
            texts: [text("l_shipinstruct")?, text("l_shipmode")?, text("l_comment")?],
        })
    }

    fn row(&self, n: usize, out: &mut Vec<u8>) {
        out.clear();
        self.keys.iter().for_each(|key| out.extend(key[n].to_le_bytes()));
        self.amounts.iter().for_each(|amount| out.extend((amount[n] as i64).to_le_bytes()));
        self.dates.iter().for_each(|date| out.extend(date[n].to_le_bytes()));
        out.extend(self.line[n].to_le_bytes());
        self.letters.iter().for_each(|letter| out.push(letter.value(n).bytes().next().unwrap_or(b' ')));
        // No string of the table exceeds the length that a byte can hold.
        self.texts.iter().for_each(|text| out.push(text.value(n).len().min(255) as u8));
        debug_assert_eq!(out.len(), ROW_FIXED);
        self.texts.iter().for_each(|text| out.extend(text.value(n).bytes().take(255)));
    }
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut found = [0; N];
    if let Some(there) = bytes.get(at..at + N) {
        found.copy_from_slice(there);
    }
    found
}

/// Calls `f` with the fixed part of each row of a page.
#[inline(always)]
fn for_each_row(page: &[u8], mut f: impl FnMut(&[u8; ROW_FIXED])) -> Result<(), String> {
    let rows = usize::from(u16::from_le_bytes(array(page, 4)));
    let end = page.len().checked_sub(2 * rows).filter(|end| *end >= PAGE_HEAD);
    let end = end.ok_or_else(|| format!("it says that it has {rows} rows"))?;
    let (body, slots) = page.split_at(end);
    for slot in slots.as_chunks::<2>().0.iter().rev() {
        let at = usize::from(u16::from_le_bytes(*slot));
        let is_place = at >= PAGE_HEAD && at.is_multiple_of(8);
        let row = body.get(at..at + ROW_FIXED).filter(|_| is_place).and_then(|row| row.first_chunk());
        f(row.ok_or_else(|| format!("a row starts at {at}"))?);
    }
    Ok(())
}

/// Returns a page's contribution to the answer. The checksum is not verified, because the answer
/// verifies the data.
#[inline]
pub fn add_page(page: &[u8]) -> Result<i128, String> {
    let filter = super::FILTER;
    let mut sum = 0i128;
    for_each_row(page, |row| {
        let number = |at: usize| i64::from_le_bytes(array(row, at));
        let shipdate = i32::from_le_bytes(array(row, SHIPDATE_AT));
        let discount = number(DISCOUNT_AT);
        if (filter.shipdate_from..filter.shipdate_before).contains(&shipdate)
            && (filter.discount_min..=filter.discount_max).contains(&discount)
            && number(QUANTITY_AT) < filter.quantity_below
        {
            sum = sum.wrapping_add(i128::from(discount) * i128::from(number(PRICE_AT)));
        }
    })?;
    Ok(sum)
}

/// Returns true if a file begins like one of ours, finished or not.
pub fn is_ours(path: &Path) -> io::Result<bool> {
    let mut start = [0; MAGIC.len()];
    let mut file = fs::File::open(path)?;
    match io::Read::read_exact(&mut file, &mut start) {
        Ok(()) => Ok(start == MAGIC),
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(e) => Err(e),
    }
}
