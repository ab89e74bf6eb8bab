//! Reads everything in a segment and verifies it: the checksums, and the consistency of the
//! contents.

use onehop_io::Ledger;

use crate::reader::corrupt;
use crate::{Error, Place, Segment};

/// The result of a check.
#[derive(Debug, Default)]
pub struct Checked {
    /// The number of rows in the segment.
    pub rows: u64,
    /// The number of blocks of columns that were read.
    pub blocks: u64,
    /// The number of bytes that were verified.
    pub bytes: u64,
    /// All problems, each naming file, column and block.
    pub problems: Vec<Error>,
}

/// Verifies an open segment. Continues after the first problem.
pub fn check(segment: &Segment, ledger: &Ledger) -> Checked {
    let mut checked = Checked { rows: segment.rows(), ..Checked::default() };
    for column in 0..segment.schema().fields().len() {
        for block in 0..segment.blocks() {
            checked.blocks += 1;
            checked.bytes += segment.stored_bytes(column, block);
            if let Err(problem) = check_block(segment, column, block, ledger) {
                checked.problems.push(problem);
            }
        }
    }
    checked
}

fn check_block(segment: &Segment, column: usize, block: usize, ledger: &Ledger) -> Result<(), Error> {
    let loaded = segment.load(column, block, ledger)?;
    let array = loaded.decode(0..loaded.rows())?;
    let nulls = segment.zone(column, block).null_count;
    if array.null_count() as u64 != nulls {
        let place = Place::Block { column: segment.column(column).name.clone(), block };
        let reason = format!("{} rows are NULL, and the zone map says {nulls}", array.null_count());
        return Err(corrupt(&**segment.file(), place, &reason));
    }
    Ok(())
}
