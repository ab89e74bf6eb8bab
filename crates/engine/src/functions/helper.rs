//! Processes that run functions: whatever a function does, it does it to itself.
//!
//! ```text
//! caller ── request ──► a thread of the process's ── pipe ──► helper.py, or what else speaks as it does
//!   ▲                                │
//!   └─ looks now and then whether ◄──┘ response, or that the process has ended
//!      anybody still waits: then the process is killed
//! ```
//! Invariants:
//! - A process runs one function at a time, for one caller. Those that nobody needs wait for the next, [`MOST_IDLE`] at most.
//! - One that was killed, has ended or has said nonsense is never asked again.
//! - It is in a process group of its own: Ctrl-C is the caller's, who cancels.

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

/// What Python runs.
const PYTHON: &str = include_str!("helper.py");
/// Between two looks whether anybody still waits.
const LOOK: Duration = Duration::from_millis(50);
/// Processes that wait for work.
const MOST_IDLE: usize = 16;
/// Bytes of a response that make no sense any more.
const MOST_BYTES: u64 = 1 << 40;

/// Processes without work, by what they were started with.
#[derive(Debug, Default)]
pub(crate) struct Helpers(Mutex<Vec<Helper>>);

impl Helpers {
    /// One that was started as this program, or a new one.
    pub fn take(&self, program: &Program) -> Result<Helper> {
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(place) = idle.iter().rposition(|helper| helper.program == *program) {
            let mut helper = idle.remove(place);
            // What has ended meanwhile, for whatever reason, is nobody's error.
            if matches!(helper.child.try_wait(), Ok(None)) {
                return Ok(helper);
            }
        }
        drop(idle);
        Helper::start(program)
    }

    /// Has one wait for work that is fit for it.
    pub fn give(&self, helper: Helper) {
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MOST_IDLE {
            idle.push(helper);
        }
    }
}

/// A request or a response: a header, and a stream of Arrow's.
type Message = (Vec<u8>, Vec<u8>);

/// What is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    /// Its name, and what it is told.
    words: Vec<OsString>,
    /// What helps where it cannot be started.
    hint: &'static str,
}

impl Program {
    /// A Python, by its name.
    pub fn python(interpreter: &str) -> Self {
        let words = [interpreter, "-c", PYTHON].map(OsString::from).into();
        Self { words, hint: "SET functions.python = '/path/to/python3' says which Python it is" }
    }

    /// What runs functions of devices, as these say.
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
    /// What it knows, and by which number.
    pub defined: HashMap<String, u64>,
}

/// What a response says.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Said {
    pub error: Option<String>,
    pub line: Option<u64>,
    /// A module that is not there.
    pub missing: Option<String>,
    /// What it runs on is of no use to it any more: it ends.
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

    /// Asks, and waits for the answer as long as anybody waits for the query's.
    ///
    /// # Errors
    /// [`ErrorKind::Cancelled`]; that the process has ended. It is of no use any more then.
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
                    // Whatever it is doing: it is not waited for.
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
        // Without this it would stay among the processes of the system.
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

/// What a statement runs functions with.
#[derive(Debug)]
pub(crate) struct Host {
    pub helpers: Arc<Helpers>,
    /// `functions.python`.
    pub python: String,
    /// `functions.allow_python`.
    pub allows_python: bool,
    /// What runs functions in CUDA: words of a program, if devices have one.
    pub cuda: Option<Vec<OsString>>,
    /// `functions.allow_cuda`.
    pub allows_cuda: bool,
    /// What functions have tables by.
    pub tables: Tables,
    pub query: Arc<Query>,
}
