//! Messages out of bytes, from whoever sends them.
//!
//! 1. The header first: a type that there is, a length that is allowed. Nothing is set aside for a message before its bytes are
//!    here.
//! 2. The message's bytes by themselves, so that what is wrong within one is about no other.
//! 3. What the type says has to be there, before pgwire's decoder, which panics where something is missing. Should it panic
//!    over something else, that is an error of this connection.
//!
//! A task reads ahead of the statement that runs, so that it sees the client go, and no further than [`AHEAD_MESSAGES`] and
//! the allowance of bytes: then the client waits.

use std::sync::Arc;

use bytes::{Buf, BytesMut};
use onehop_engine::guarded;
use pgwire::messages::{DecodeContext, PgWireFrontendMessage};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::interrupt::{Interrupt, Reason};
use crate::problem::{Problem, code};

/// Messages that wait for the one that is being dealt with.
const AHEAD_MESSAGES: usize = 64;

/// What is read at once at most, and at least if it is there.
const READ_BYTES: usize = 8 << 10;
const LEAST_READ_BYTES: usize = 1 << 10;

/// Before a log-in nobody needs more.
pub const STARTUP_BYTES: usize = 10_000;

/// Types of messages that a client sends once it is connected.
const TYPES: &[u8] = b"BCDEFHPQSXcdfp";

/// What comes from a client.
pub type Message = Result<PgWireFrontendMessage, Problem>;

/// A stream of bytes as messages.
#[derive(Debug)]
pub struct Reader<R> {
    source: R,
    buffer: BytesMut,
    most_bytes: usize,
    context: DecodeContext,
}

/// Why there is no message.
#[derive(Debug)]
pub enum End {
    /// The stream is at its end, or broken.
    Closed,
    /// What came is none. What comes after it cannot be understood either.
    Nonsense(Problem),
}

impl<R: AsyncRead + Unpin> Reader<R> {
    /// Of a stream, of which some bytes have been read already.
    pub fn new(source: R, buffer: BytesMut) -> Self {
        let mut context = DecodeContext::default();
        (context.awaiting_frontend_ssl, context.awaiting_frontend_startup) = (false, false);
        Self { source, buffer, most_bytes: STARTUP_BYTES, context }
    }

    /// From now on messages may have so many bytes.
    pub fn allow(&mut self, most_bytes: usize) {
        self.most_bytes = most_bytes;
    }

    /// What has been read and not used.
    pub fn into_parts(self) -> (R, BytesMut) {
        (self.source, self.buffer)
    }

    /// Reads until there are so many bytes.
    pub async fn fill(&mut self, bytes: usize) -> Result<(), End> {
        while self.buffer.len() < bytes {
            // Room for what most messages are, so that each comes by one call of the system.
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

    /// Where the bytes come from.
    pub fn source(&mut self) -> &mut R {
        &mut self.source
    }

    /// What is there of what was read.
    pub fn bytes(&mut self) -> &mut BytesMut {
        &mut self.buffer
    }

    /// The next message, and its bytes.
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

/// Whether a message is made of what its type is made of. The decoder panics where something is missing, and puts something else
/// in place of what is not UTF-8.
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

    /// Up to its zero.
    fn text(&mut self) -> Option<()> {
        let end = self.rest.iter().position(|byte| *byte == 0)?;
        self.is_utf8 &= std::str::from_utf8(&self.rest[..end]).is_ok();
        self.take(end + 1)
    }
}

/// A message, and the room that it takes until it has been dealt with.
#[derive(Debug)]
pub struct Received {
    pub message: Message,
    /// Given back when it is dropped.
    pub room: Option<OwnedSemaphorePermit>,
}

/// Messages of a connection, in their order.
#[derive(Debug)]
pub struct Incoming {
    messages: mpsc::Receiver<Received>,
    /// The next one, if somebody has looked at it.
    seen: Option<Received>,
    task: tokio::task::JoinHandle<()>,
}

impl Incoming {
    /// Reads from now on, in a task.
    pub fn start<R: AsyncRead + Unpin + Send + 'static>(reader: Reader<R>, interrupt: Arc<Interrupt>) -> Self {
        let (sender, messages) = mpsc::channel(AHEAD_MESSAGES);
        let task = tokio::spawn(read_all(reader, sender, interrupt));
        Self { messages, seen: None, task }
    }

    /// Whether none has come that is not dealt with.
    pub fn is_empty(&self) -> bool {
        self.seen.is_none() && self.messages.is_empty()
    }

    /// The next one, which stays where it is; `None` if there are no more.
    pub async fn peek(&mut self) -> Option<&Received> {
        if self.seen.is_none() {
            self.seen = self.messages.recv().await;
        }
        self.seen.as_ref()
    }

    /// The next one; `None` if there are no more.
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
    // What a message takes, and as much again ahead of it.
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
        // Who has said goodbye has what it sent before carried out.
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
