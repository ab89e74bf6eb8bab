//! Inference of the columns of files from their first records.
//!
//! 1. The sample of each file is large enough that small files are sampled completely: their types
//!    are certain. Many files share the bytes.
//! 2. A later record of a large file that does not fit is an error of the scan, with its position.
//! 3. Files are pieces of one table. Their records have a key in common, unless they are united by
//!    name. A column holds the values of all files.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Fields, Schema};

use super::Opened;
use super::fault::{Fault, Types};
use super::plan::JsonPlan;
use super::records::{Chunk, Resume};
use super::shape::Shape;
use super::walk::walk;
use crate::files::glob::Found;
use crate::files::{Format, Union, agree};
use crate::{Error, ErrorKind, Result};

/// The number of bytes of a file that are sampled, after decompression.
const SAMPLE_BYTES: u64 = 8 << 20;
/// The minimum of each file, if there are many.
const LEAST_BYTES: u64 = 1 << 20;
/// The minimum number of sampled rows, unless they are very long.
const SAMPLE_ROWS: u64 = 20_480;
/// The maximum factor by which the sample grows to reach that number of rows.
const LONG_ROWS: u64 = 4;

/// The amount of each file that is sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sample {
    /// The first records.
    First,
    /// This number of records.
    Records(u64),
    /// The whole file.
    All,
}

impl Sample {
    /// Interprets the option `sample_size`; a negative value means all.
    pub fn of(size: Option<i64>) -> Self {
        size.map_or(Self::First, |size| u64::try_from(size).map_or(Self::All, Self::Records))
    }

    /// Returns whether a file must be sampled further. `bytes` is the default sample size.
    fn wants_more(self, looked: u64, records: u64, bytes: u64) -> bool {
        match self {
            Self::First => looked < bytes || (records < SAMPLE_ROWS && looked < bytes * LONG_ROWS),
            Self::Records(wanted) => records < wanted,
            Self::All => true,
        }
    }
}

/// The result of sampling a file.
struct Seen {
    shape: Shape,
    /// True if the file contains text.
    has_text: bool,
}

/// Plans the columns of files. Blocks.
pub(super) fn plan(opened: &Opened, files: &[Found], sample: Sample, union: Union) -> Result<JsonPlan> {
    let bytes = (SAMPLE_BYTES / files.len().max(1) as u64).max(LEAST_BYTES);
    let (mut shape, mut has_text) = (Shape::default(), false);
    let mut first: Option<(&str, Vec<FieldRef>)> = None;
    for file in files {
        let seen = look(opened, file, sample, bytes).map_err(|fault| fault.into_error(&file.name, Types::Guessed))?;
        has_text |= seen.has_text;
        if seen.shape.is_empty() {
            continue;
        }
        if union == Union::Same
            && let Some(columns) = seen.shape.columns()
        {
            let field = |(name, _): (String, _)| Arc::new(Field::new(name, DataType::Null, true));
            let fields: Vec<FieldRef> = columns.into_iter().map(field).collect();
            match &mut first {
                Some((name, known)) => {
                    let schema = Schema::new(fields.iter().cloned().collect::<Fields>());
                    agree::same_columns(name, known, &file.name, &schema, Format::Json)?;
                    let added: Vec<FieldRef> = fields.into_iter().filter(|field| !known.contains(field)).collect();
                    known.extend(added);
                }
                None => first = Some((&file.name, fields)),
            }
        }
        shape.merge(seen.shape);
    }
    if shape.is_empty() && !has_text {
        let name = files.first().map_or("", |file| file.name.as_str());
        return Err(Error::new(ErrorKind::Data, format!("'{name}' has no columns: there is nothing in it")));
    }
    Ok(JsonPlan::of(&shape))
}

/// Samples the first records of a file, several chunks at a time.
fn look(opened: &Opened, file: &Found, sample: Sample, bytes: u64) -> std::result::Result<Seen, Fault> {
    let mut seen = Seen { shape: Shape::default(), has_text: false };
    let mut chunks = opened.chunks(&file.name, &file.path)?;
    let mut looked = 0;
    while sample.wants_more(looked, seen.shape.records(), bytes) {
        let mut round = Vec::with_capacity(opened.threads);
        while round.len() < opened.threads.max(1)
            && let Some(chunk) = chunks.next()?
        {
            looked += chunk.bytes.len() as u64;
            seen.has_text |= chunk.bytes.iter().any(|byte| !byte.is_ascii_whitespace());
            round.push(chunk);
        }
        if round.is_empty() {
            break;
        }
        for (chunk, shape) in round.iter().zip(shapes(&round)) {
            let (shape, resume) = shape?;
            seen.shape.merge(shape);
            if let Some(from) = resume {
                chunks = opened.resumed(&file.name, &file.path, from, chunk.arrays)?;
                break;
            }
        }
    }
    Ok(seen)
}

type Looked = std::result::Result<(Shape, Option<Resume>), Fault>;

/// Returns the shapes of chunks, with one thread for each.
fn shapes(round: &[Chunk]) -> Vec<Looked> {
    let look = |chunk: &Chunk| -> Looked {
        let mut shape = Shape::default();
        let resume = walk(chunk, &mut shape)?;
        Ok((shape, resume))
    };
    let [only] = round else {
        return std::thread::scope(|scope| {
            let threads: Vec<_> = round.iter().map(|chunk| scope.spawn(move || look(chunk))).collect();
            let died = |_| Fault::Io(std::io::Error::other("its reader gave up"));
            threads.into_iter().map(|thread| thread.join().map_err(died)?).collect()
        });
    };
    vec![look(only)]
}
