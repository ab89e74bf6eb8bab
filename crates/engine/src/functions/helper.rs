//! Processes that run functions, which isolate their faults from the database.
//!
//! ```text
//! caller ── request ──► a thread for the process ── pipe ──► helper.py, or another program
//!   ▲                                │
//!   └─ polls for cancellation, ◄─────┘ a response, or the end of the process
//!      which kills the process
//! ```
//! Invariants:
//! - A process runs one function at a time, for one caller. Idle processes wait for the next call,
//!   at most [`MOST_IDLE`].
//! - A process that was killed, has ended or has sent an invalid response is never used again.
//! - A process is in its own process group. Ctrl-C reaches only the caller, which cancels.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Deserialize;

use super::tables::Tables;
use crate::query::Query;
use crate::{Error, ErrorKind, Result};

/// The Python program.
const PYTHON: &str = include_str!("helper.py");
/// The interval of checks for cancellation.
const LOOK: Duration = Duration::from_millis(50);
/// The maximum number of idle processes.
const MOST_IDLE: usize = 16;
/// The maximum size of a valid response, in bytes.
const MOST_BYTES: u64 = 1 << 40;

/// Idle processes, with the programs that they run.
#[derive(Debug, Default)]
pub(crate) struct Helpers(Mutex<Vec<Helper>>);

impl Helpers {
    /// Returns an idle process of this program, or starts a new one.
    pub fn take(&self, program: &Program) -> Result<Helper> {
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(place) = idle.iter().rposition(|helper| helper.program == *program) {
            let mut helper = idle.remove(place);
            // An idle process may end for any reason. This is not an error.
            if matches!(helper.child.try_wait(), Ok(None)) {
                return Ok(helper);
            }
        }
        drop(idle);
        Helper::start(program)
    }

    /// Keeps a process for the next call, if there is space.
    pub fn give(&self, helper: Helper) {
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MOST_IDLE {
            idle.push(helper);
        }
    }
}

/// A request or a response: a header, and an Arrow stream.
type Message = (Vec<u8>, Vec<u8>);

/// A program to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    /// Its name and arguments.
    words: Vec<OsString>,
    /// The hint if it cannot be started.
    hint: &'static str,
}

impl Program {
    /// Returns the program of a Python interpreter.
    pub fn python(interpreter: &str) -> Self {
        let words = [interpreter, "-c", PYTHON].map(OsString::from).into();
        Self { words, hint: "SET functions.python = '/path/to/python3' says which Python it is" }
    }

    /// Returns the program that runs functions on devices.
    pub fn of_devices(words: Vec<OsString>) -> Self {
        Self { words, hint: "functions in CUDA are run by the program that the database runs in, started once more" }
    }
}

/// A process.
#[derive(Debug)]
pub(crate) struct Helper {
    program: Program,
    child: Child,
    requests: SyncSender<Message>,
    responses: Receiver<io::Result<Message>>,
    /// The defined functions, with their numbers.
    pub defined: HashMap<String, u64>,
}

/// The header of a response.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Said {
    pub error: Option<String>,
    pub line: Option<u64>,
    /// A missing module.
    pub missing: Option<String>,
    /// True if the process cannot be used again: it ends.
    pub is_last: bool,
}

impl Helper {
    fn start(program: &Program) -> Result<Self> {
        let (name, words) = program.words.split_first().unzip();
        let name = name.map_or(OsStr::new(""), OsString::as_os_str);
        let mut command = Command::new(name);
        command.args(words.unwrap_or_default()).stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut child = command.spawn().map_err(|e| {
            Error::new(ErrorKind::Io, format!("cannot start {name:?} to run functions: {e}")).with_hint(program.hint)
        })?;
        let (requests, to_send) = sync_channel(1);
        let (said, responses) = sync_channel(1);
        let pipes = child.stdin.take().zip(child.stdout.take());
        let serve = move || {
            let Some((mut stdin, mut stdout)) = pipes else { return };
            while let Ok(request) = to_send.recv() {
                let outcome = converse(&mut stdin, &mut stdout, &request);
                let has_failed = outcome.is_err();
                if said.send(outcome).is_err() || has_failed {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("onehop-function".into()).spawn(serve);
        let helper = Self { program: program.clone(), child, requests, responses, defined: HashMap::new() };
        match thread {
            Ok(_) => Ok(helper),
            Err(e) => Err(Error::new(ErrorKind::Resources, format!("cannot start a thread for a function: {e}"))),
        }
    }

    /// Sends a request, and waits for the response until the query is cancelled.
    ///
    /// # Errors
    /// [`ErrorKind::Cancelled`]; the process has ended. The process cannot be used again then.
    pub fn ask(&mut self, header: &serde_json::Value, data: Vec<u8>, query: &Query) -> Result<(Said, Vec<u8>)> {
        if self.requests.send((header.to_string().into_bytes(), data)).is_err() {
            return Err(self.ended(None));
        }
        loop {
            match self.responses.recv_timeout(LOOK) {
                Ok(Ok((header, data))) => {
                    let said = serde_json::from_slice(&header).map_err(|e| {
                        Error::new(ErrorKind::Internal, format!("what a function's process said is no JSON: {e}"))
                    })?;
                    return Ok((said, data));
                }
                Ok(Err(e)) => return Err(self.ended(Some(&e))),
                Err(RecvTimeoutError::Disconnected) => return Err(self.ended(None)),
                Err(RecvTimeoutError::Timeout) if query.is_cancelled() => {
                    // The process is not waited for, whatever it is doing.
                    let _ = self.child.kill();
                    return Err(Error::new(ErrorKind::Cancelled, "the query was cancelled"));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    fn ended(&mut self, why: Option<&io::Error>) -> Error {
        let _ = self.child.kill();
        let how = match (self.child.wait(), why) {
            (Ok(status), _) => status.to_string(),
            (Err(e), _) => e.to_string(),
        };
        Error::new(ErrorKind::Data, format!("the process that ran the function has ended: {how}"))
            .with_hint("what it wrote to standard error may say why; the next call starts another process")
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        // Without the wait the process would remain as a zombie.
        let _ = self.child.wait();
    }
}

fn converse(stdin: &mut ChildStdin, stdout: &mut ChildStdout, (header, data): &Message) -> io::Result<Message> {
    for part in [header, data] {
        stdin.write_all(&(part.len() as u64).to_le_bytes())?;
        stdin.write_all(part)?;
    }
    stdin.flush()?;
    Ok((part_of(stdout)?, part_of(stdout)?))
}

fn part_of(stdout: &mut ChildStdout) -> io::Result<Vec<u8>> {
    let mut length = [0; 8];
    stdout.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length > MOST_BYTES {
        return Err(io::Error::other(format!("a response of {length} bytes")));
    }
    let mut bytes = Vec::new();
    let read = stdout.take(length).read_to_end(&mut bytes)?;
    if (read as u64) < length { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(bytes) }
}

/// The environment in which a statement runs functions.
#[derive(Debug)]
pub(crate) struct Host {
    pub helpers: Arc<Helpers>,
    /// `functions.python`.
    pub python: String,
    /// `functions.allow_python`.
    pub allows_python: bool,
    /// The command line of the program for CUDA functions, if devices have one.
    pub cuda: Option<Vec<OsString>>,
    /// `functions.allow_cuda`.
    pub allows_cuda: bool,
    /// The table arguments.
    pub tables: Tables,
    pub query: Arc<Query>,
}
