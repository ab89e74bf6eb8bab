//! The records of a chunk, one by one.
//!
//! The parser reads values; the walk holds the grammar above them: values one after another, and
//! arrays whose elements are records. A chunk may begin and end within such an array.

use jiter::{JiterResult, Peek};

use super::fault::{Fault, Problem, is_end};
use super::parser::Json;
use super::records::{Arrays, Chunk, Cut, Place, Resume};
use crate::files::utf8;

/// Takes records.
pub(super) trait Records {
    /// A record, whose first byte is known.
    fn record(&mut self, json: &mut Json<'_>, peek: Peek) -> Result<(), Problem>;

    /// Forgets what it has of a record that was not whole.
    fn forget(&mut self);
}

/// Takes the records of a chunk. If its last one is not whole, because the cut was a mistake, gives where it begins.
pub(super) fn walk(chunk: &Chunk, records: &mut impl Records) -> Result<Option<Resume>, Fault> {
    // All of it at once: the parser then takes letters as they are, and does not look at what is
    // skipped.
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
    // Between two elements of an array there is a cut.
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
    /// Where the walk is, as of `begins`: behind the last whole record.
    place: Place,
    begins: usize,
}

impl Walk<'_> {
    /// To the end of the chunk, which is one of the text only between top-level values.
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

    /// Elements of an array up to its end.
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
