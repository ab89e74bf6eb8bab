//! Parses messages from the bytes of a client.
//!
//! 1. The header is checked first: a known type, and a permitted length. No memory is reserved for
//!    a message before its bytes arrive.
//! 2. Each message is decoded from its own bytes, so that an error within one affects no other.
//! 3. The fields of the type are checked before pgwire's decoder runs, because it panics on missing
//!    ones. Any other panic of it becomes an error of this connection.
//!
//! A task reads ahead of the running statement, so that it detects when the client disconnects. It
//! reads no further than [`AHEAD_MESSAGES`] and the byte limit; beyond that the client waits.

use std::sync::Arc;

use bytes::{Buf, BytesMut};
use onehop_engine::guarded;
use pgwire::messages::{DecodeContext, PgWireFrontendMessage};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::interrupt::{Interrupt, Reason};
use crate::problem::{Problem, code};

/// The maximum number of messages that wait behind the current one.
const AHEAD_MESSAGES: usize = 64;

/// The maximum size of a read, and the minimum free space in the buffer, in bytes.
const READ_BYTES: usize = 8 << 10;
const LEAST_READ_BYTES: usize = 1 << 10;

/// The maximum size of a message before the log-in, in bytes.
pub const STARTUP_BYTES: usize = 10_000;

/// The types of messages that a connected client sends.
const TYPES: &[u8] = b"BCDEFHPQSXcdfp";

/// A message of a client.
pub type Message = Result<PgWireFrontendMessage, Problem>;

/// A byte stream as messages.
#[derive(Debug)]
pub struct Reader<R> {
    source: R,
    buffer: BytesMut,
    most_bytes: usize,
    context: DecodeContext,
}

/// The reason there is no message.
#[derive(Debug)]
pub enum End {
    /// The stream has ended or is broken.
    Closed,
    /// The bytes are not a message. The bytes after them cannot be parsed either.
    Nonsense(Problem),
}

impl<R: AsyncRead + Unpin> Reader<R> {
    /// Creates a reader of a stream, of which some bytes have already been read.
    pub fn new(source: R, buffer: BytesMut) -> Self {
        let mut context = DecodeContext::default();
        (context.awaiting_frontend_ssl, context.awaiting_frontend_startup) = (false, false);
        Self { source, buffer, most_bytes: STARTUP_BYTES, context }
    }

    /// Sets the maximum size of further messages, in bytes.
    pub fn allow(&mut self, most_bytes: usize) {
        self.most_bytes = most_bytes;
    }

    /// Returns the stream, and the bytes that were read and not used.
    pub fn into_parts(self) -> (R, BytesMut) {
        (self.source, self.buffer)
    }

    /// Reads until the buffer has at least `bytes` bytes.
    pub async fn fill(&mut self, bytes: usize) -> Result<(), End> {
        while self.buffer.len() < bytes {
            // Reserves the space of a typical message, so that each takes one system call.
            if self.buffer.capacity() - self.buffer.len() < LEAST_READ_BYTES {
                self.buffer.reserve(READ_BYTES);
            }
            match self.source.read_buf(&mut self.buffer).await {
                Ok(0) | Err(_) => return Err(End::Closed),
                Ok(_) => {}
            }
        }
        Ok(())
    }

    /// Returns the stream.
    pub fn source(&mut self) -> &mut R {
        &mut self.source
    }

    /// Returns the buffered bytes.
    pub fn bytes(&mut self) -> &mut BytesMut {
        &mut self.buffer
    }

    /// Reads the next message. Returns it with its size in bytes.
    pub async fn next(&mut self) -> Result<(PgWireFrontendMessage, usize), End> {
        self.fill(5).await?;
        let (kind, mut length) = (self.buffer[0], &self.buffer[1..5]);
        let length = length.get_i32();
        let wrong = |message: String| End::Nonsense(Problem::fatal(code::PROTOCOL_VIOLATION, message));
        if !TYPES.contains(&kind) {
            return Err(wrong(format!("there is no message of type {kind:#04x}")));
        }
        let Some(body) = usize::try_from(length).ok().and_then(|length| length.checked_sub(4)) else {
            return Err(wrong(format!("a message cannot be {length} bytes long")));
        };
        if body > self.most_bytes {
            let most = self.most_bytes;
            return Err(wrong(format!("a message of {body} bytes is longer than the {most} that are allowed")));
        }
        self.fill(5 + body).await?;
        let mut message = self.buffer.split_to(5 + body);
        check(kind, &message[5..])?;
        let decoded = guarded(|| PgWireFrontendMessage::decode(&mut message, &self.context));
        match decoded {
            Ok(Ok(Some(decoded))) => Ok((decoded, 5 + body)),
            Ok(Err(e)) => Err(wrong(e.to_string())),
            Ok(Ok(None)) | Err(_) => Err(wrong(format!("a message of type '{}' makes no sense", char::from(kind)))),
        }
    }
}

/// Checks that a message has the fields of its type. The decoder panics on missing fields, and
/// replaces invalid UTF-8.
fn check(kind: u8, body: &[u8]) -> Result<(), End> {
    let mut parts = Parts { rest: body, is_utf8: true };
    let is_whole = parts.message(kind).is_some() && parts.rest.is_empty();
    match (is_whole, parts.is_utf8) {
        (true, true) => Ok(()),
        (_, false) => Err(End::Nonsense(Problem::fatal(code::INVALID_ENCODING, "a text in a message is not UTF-8"))),
        (false, true) => {
            let message = format!("a message of type '{}' makes no sense", char::from(kind));
            Err(End::Nonsense(Problem::fatal(code::PROTOCOL_VIOLATION, message)))
        }
    }
}

struct Parts<'a> {
    rest: &'a [u8],
    is_utf8: bool,
}

impl Parts<'_> {
    fn message(&mut self, kind: u8) -> Option<()> {
        match kind {
            b'Q' | b'f' => self.text(),
            b'P' => {
                self.text()?;
                self.text()?;
                self.many(4)
            }
            b'B' => {
                self.text()?;
                self.text()?;
                self.many(2)?;
                for _ in 0..self.count()? {
                    if let Ok(length) = usize::try_from(self.number()?) {
                        self.take(length)?;
                    }
                }
                self.many(2)
            }
            b'C' | b'D' => {
                self.take(1)?;
                self.text()
            }
            b'E' => {
                self.text()?;
                self.take(4)
            }
            b'd' | b'p' => {
                self.rest = &[];
                Some(())
            }
            _ => Some(()),
        }
    }

    fn take(&mut self, bytes: usize) -> Option<()> {
        self.rest = self.rest.get(bytes..)?;
        Some(())
    }

    fn count(&mut self) -> Option<usize> {
        let bytes: [u8; 2] = self.rest.get(..2)?.try_into().ok()?;
        self.take(2)?;
        Some(u16::from_be_bytes(bytes).into())
    }

    fn number(&mut self) -> Option<i32> {
        let bytes: [u8; 4] = self.rest.get(..4)?.try_into().ok()?;
        self.take(4)?;
        Some(i32::from_be_bytes(bytes))
    }

    fn many(&mut self, bytes: usize) -> Option<()> {
        let count = self.count()?;
        self.take(count * bytes)
    }

    /// Reads a string up to its terminating zero.
    fn text(&mut self) -> Option<()> {
        let end = self.rest.iter().position(|byte| *byte == 0)?;
        self.is_utf8 &= std::str::from_utf8(&self.rest[..end]).is_ok();
        self.take(end + 1)
    }
}

/// A message, and the bytes that it reserves until it has been handled.
#[derive(Debug)]
pub struct Received {
    pub message: Message,
    /// The reservation, released when dropped.
    pub room: Option<OwnedSemaphorePermit>,
}

/// The messages of a connection, in order.
#[derive(Debug)]
pub struct Incoming {
    messages: mpsc::Receiver<Received>,
    /// The next message, if it has been peeked at.
    seen: Option<Received>,
    task: tokio::task::JoinHandle<()>,
}

impl Incoming {
    /// Starts to read in a task.
    pub fn start<R: AsyncRead + Unpin + Send + 'static>(reader: Reader<R>, interrupt: Arc<Interrupt>) -> Self {
        let (sender, messages) = mpsc::channel(AHEAD_MESSAGES);
        let task = tokio::spawn(read_all(reader, sender, interrupt));
        Self { messages, seen: None, task }
    }

    /// Returns true if no unhandled message has arrived.
    pub fn is_empty(&self) -> bool {
        self.seen.is_none() && self.messages.is_empty()
    }

    /// Returns the next message without removing it, or `None` if there are no more.
    pub async fn peek(&mut self) -> Option<&Received> {
        if self.seen.is_none() {
            self.seen = self.messages.recv().await;
        }
        self.seen.as_ref()
    }

    /// Returns the next message, or `None` if there are no more.
    pub async fn next(&mut self) -> Option<Received> {
        match self.seen.take() {
            Some(seen) => Some(seen),
            None => self.messages.recv().await,
        }
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn read_all<R: AsyncRead + Unpin>(
    mut reader: Reader<R>,
    sender: mpsc::Sender<Received>,
    interrupt: Arc<Interrupt>,
) {
    // The largest message, and as much again ahead of it.
    let most = u32::try_from(reader.most_bytes + 5).unwrap_or(u32::MAX);
    let room = Arc::new(Semaphore::new(most as usize));
    loop {
        let received = match reader.next().await {
            Ok((message, bytes)) => {
                let bytes = u32::try_from(bytes).unwrap_or(most).min(most);
                let room = Arc::clone(&room).acquire_many_owned(bytes).await.ok();
                Received { message: Ok(message), room }
            }
            Err(End::Nonsense(problem)) => {
                let _ = sender.send(Received { message: Err(problem), room: None }).await;
                return;
            }
            Err(End::Closed) => {
                interrupt.raise(Reason::Gone);
                return;
            }
        };
        let is_last = matches!(received.message, Ok(PgWireFrontendMessage::Terminate(_)));
        // A client that sends `Terminate` still has its earlier messages executed.
        if sender.send(received).await.is_err() || is_last {
            return;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    async fn read(bytes: &[u8]) -> Result<(PgWireFrontendMessage, usize), End> {
        Reader::new(bytes, BytesMut::new()).next().await
    }

    #[tokio::test]
    async fn nonsense_is_told_from_the_end() {
        assert!(matches!(read(b"Q\0\0\0\x0dselect 1\0").await, Ok((PgWireFrontendMessage::Query(_), 14))));
        for bytes in [&b""[..], b"Q", b"Q\0\0\0\x0dselect"] {
            assert!(matches!(read(bytes).await, Err(End::Closed)), "{bytes:?}");
        }
        let nonsense: [&[u8]; 12] = [
            b"\xff\0\0\0\x04",
            b"Q\0\0\0\x03",
            b"Q\xff\xff\xff\xff",
            b"Q\x7f\xff\xff\xff",
            b"Q\0\0\0\x06ab",
            b"Q\0\0\0\x06\xff\0",
            b"B\0\0\0\x04",
            b"B\0\0\0\x0c\0\0\0\0\xff\xff\0\0",
            b"P\0\0\0\x08\0\0\0\x01",
            b"E\0\0\0\x05\0",
            b"S\0\0\0\x05x",
            b"D\0\0\0\x05S",
        ];
        for bytes in nonsense {
            assert!(matches!(read(bytes).await, Err(End::Nonsense(_))), "{bytes:?}");
        }
    }
}
