//! The records of a chunk, one by one.
//!
//! The parser reads values. The walk implements the grammar above them: consecutive values, and
//! arrays whose elements are records. A chunk may begin and end within such an array.

use jiter::{JiterResult, Peek};

use super::fault::{Fault, Problem, is_end};
use super::parser::Json;
use super::records::{Arrays, Chunk, Cut, Place, Resume};
use crate::files::utf8;

/// A consumer of records.
pub(super) trait Records {
    /// Adds a record, whose first byte is known.
    fn record(&mut self, json: &mut Json<'_>, peek: Peek) -> Result<(), Problem>;

    /// Removes the data of an incomplete record.
    fn forget(&mut self);
}

/// Passes the records of a chunk to a consumer. If the last one is incomplete because the division
/// was wrong, returns its start.
pub(super) fn walk(chunk: &Chunk, records: &mut impl Records) -> Result<Option<Resume>, Fault> {
    // The whole chunk is validated at once. The parser then takes characters as they are, and does
    // not check skipped text.
    let text = utf8(&chunk.bytes)
        .map_err(|valid| Fault::NotUtf8 { position: chunk.position.behind(&chunk.bytes[..valid]) })?;
    let mut walk = Walk { json: Json::new(text), place: chunk.place, begins: 0 };
    let problem = match walk.all(chunk.arrays, records) {
        Ok(()) => return Ok(None),
        Err(problem) => problem,
    };
    let is_cut = matches!(&problem, Problem::Syntax(e) if is_end(e));
    if !is_cut || chunk.is_last {
        return Err(problem.within(&chunk.bytes, chunk.position));
    }
    // Between two elements of an array a chunk may end.
    if walk.place == Place::BehindElement && chunk.bytes[walk.begins..].iter().all(u8::is_ascii_whitespace) {
        if chunk.cut == Cut::Brackets {
            return Ok(None);
        }
    } else if chunk.cut == Cut::Brackets {
        let position = chunk.position.behind(&chunk.bytes);
        return Err(Fault::Syntax { position, reason: "a value is expected".into() });
    }
    records.forget();
    let position = chunk.position.behind(&chunk.bytes[..walk.begins]);
    Ok(Some(Resume { position, place: walk.place }))
}

struct Walk<'a> {
    json: Json<'a>,
    /// The grammatical position at `begins`.
    place: Place,
    /// The end of the last whole record.
    begins: usize,
}

impl Walk<'_> {
    /// Walks to the end of the chunk. The end of the text is valid only between top-level values.
    fn all(&mut self, arrays: Arrays, records: &mut impl Records) -> Result<(), Problem> {
        loop {
            match self.place {
                Place::BehindElement => {
                    let next = self.json.array_step();
                    self.elements(next, records)?;
                }
                Place::Between => {
                    let Ok(peek) = self.json.peek() else { return Ok(()) };
                    if peek == Peek::Array && arrays == Arrays::OfRecords {
                        let first = self.json.known_array();
                        self.elements(first, records)?;
                    } else {
                        records.record(&mut self.json, peek)?;
                        self.is_behind(Place::Between);
                    }
                }
            }
        }
    }

    /// Passes the elements of an array up to its end.
    fn elements(&mut self, first: JiterResult<Option<Peek>>, records: &mut impl Records) -> Result<(), Problem> {
        let mut next = first?;
        while let Some(peek) = next {
            records.record(&mut self.json, peek)?;
            self.is_behind(Place::BehindElement);
            next = self.json.array_step()?;
        }
        self.is_behind(Place::Between);
        Ok(())
    }

    fn is_behind(&mut self, place: Place) {
        (self.place, self.begins) = (place, self.json.current_index());
    }
}
