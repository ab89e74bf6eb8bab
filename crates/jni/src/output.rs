//! A file that is being written: *writing*, then *closed* or *given up*, for good.
//!
//! One lock per stream: whoever gives up or closes while another thread writes waits for that write, which has a time limit.

use std::sync::{Mutex, PoisonError};

use onehop_io::rados::fs::{Entry, Writer};

use crate::failure::{Failure, Result};

#[derive(Debug)]
enum State {
    Writing(Box<Writer>),
    /// What it has become; an error of closing was told, once.
    Closed(Option<Entry>),
    Aborted,
}

/// An output stream.
#[derive(Debug)]
pub struct Output {
    path: String,
    state: Mutex<State>,
}

impl Output {
    pub fn new(path: String, writer: Writer) -> Self {
        Self { path, state: Mutex::new(State::Writing(Box::new(writer))) }
    }

    pub fn append(&self, bytes: &[u8]) -> Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *state {
            State::Writing(writer) => Ok(writer.append(bytes)?),
            State::Closed(_) => Err(Failure::Misuse(format!("write to {}: it is closed", self.path))),
            State::Aborted => Err(self.aborted()),
        }
    }

    /// Makes the file visible. Again: what it was the first time.
    pub fn close(&self) -> Result<Option<Entry>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *state, State::Closed(None)) {
            State::Writing(writer) => {
                let entry = writer.close()?;
                *state = State::Closed(Some(entry.clone()));
                Ok(Some(entry))
            }
            State::Closed(entry) => {
                *state = State::Closed(entry.clone());
                Ok(entry)
            }
            State::Aborted => {
                *state = State::Aborted;
                Err(self.aborted())
            }
        }
    }

    /// Gives the file up; false: it was closed or given up before.
    pub fn abort(&self) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *state, State::Aborted) {
            State::Writing(writer) => {
                writer.abort();
                true
            }
            before => {
                *state = before;
                false
            }
        }
    }

    fn aborted(&self) -> Failure {
        Failure::Aborted { path: self.path.clone() }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::mount::tests::in_memory;
    use onehop_io::rados::fs::Replace;

    #[test]
    fn a_file_is_visible_after_close_and_never_after_abort() {
        let mount = in_memory();
        let output = |path: &str| {
            let writer = mount.fs.create_file(path, Replace::Never, mount.ledger.clone()).unwrap();
            Output::new(path.into(), writer)
        };
        let kept = output("/kept");
        kept.append(b"abc").unwrap();
        assert!(mount.fs.stat("/kept").is_err());
        let entry = kept.close().unwrap();
        assert_eq!(entry.as_ref().map(|entry| entry.len), Some(3));
        assert_eq!(kept.close().unwrap(), entry);
        assert!(kept.append(b"d").is_err() && !kept.abort());

        let gone = output("/gone");
        gone.append(&[7; 200 << 10]).unwrap();
        assert!(gone.abort() && !gone.abort());
        assert!(matches!(gone.append(b"d"), Err(Failure::Aborted { .. })));
        assert!(matches!(gone.close(), Err(Failure::Aborted { .. })));
        assert!(mount.fs.stat("/gone").is_err());
        assert!(mount.fs.stat("/kept").is_ok());
    }
}
