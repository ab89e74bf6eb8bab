//! Runs a script statement by statement, up to its first error. The error contains the statement,
//! its line and its file.

use std::io::BufRead;

use onehop_engine::Script;

use crate::client::Client;
use crate::exit::{Failure, Place, Stop};
use crate::shell::dot::{self, Flow};
use crate::source::{Piece, Pieces};

/// Runs the script of `reader`. Errors contain `name`.
pub fn run(client: &mut Client, name: &str, reader: impl BufRead) -> Result<Flow, Failure> {
    let mut pieces = Pieces::new(reader);
    let mut statement = 0;
    loop {
        let piece = pieces.read().map_err(|e| Stop::System(format!("cannot read {name}"), e))?;
        match piece {
            None => return Ok(Flow::Continue),
            Some(Piece::Sql { line, text }) => run_sql(client, name, line, &text, &mut statement)?,
            Some(Piece::Dot { line, text }) => {
                statement += 1;
                let place = Place { source: name.into(), line, statement, text: text.clone() };
                if dot::run(client, &text).map_err(|failure| failure.at(place))? == Flow::Quit {
                    return Ok(Flow::Quit);
                }
            }
        }
    }
}

fn run_sql(client: &mut Client, name: &str, line: u64, text: &str, number: &mut u64) -> Result<(), Failure> {
    for statement in Script::new(text) {
        *number += 1;
        client.run(statement).map_err(|stop| {
            // A statement is a slice of the text it was cut from.
            let before = statement.as_ptr() as usize - text.as_ptr() as usize;
            let line = line + text[..before].matches('\n').count() as u64;
            let place = Place { source: name.into(), line, statement: *number, text: statement.into() };
            Failure::from(stop).at(place)
        })?;
    }
    Ok(())
}

impl Failure {
    /// Adds the place of the failure, unless a nested script has already done so.
    fn at(self, place: Place) -> Self {
        Self { place: self.place.or_else(|| Some(Box::new(place))), ..self }
    }
}
