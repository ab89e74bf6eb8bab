//! The output of a client: messages, gathered, and written once there are many or the client waits
//! for them.

use bytes::BytesMut;
use pgwire::messages::PgWireBackendMessage;
use pgwire::messages::response::{CommandComplete, ReadyForQuery, TransactionStatus};
use tokio::io::{AsyncWrite, AsyncWriteExt};

use crate::problem::Problem;

/// The number of bytes to gather before a write.
const GATHERED_BYTES: usize = 32 << 10;

/// The client is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone;

/// The buffered output of a client.
pub struct Link {
    sink: Box<dyn AsyncWrite + Unpin + Send + Sync>,
    gathered: BytesMut,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("gathered_bytes", &self.gathered.len()).finish_non_exhaustive()
    }
}

impl Link {
    /// Creates the output over a stream.
    pub fn new(sink: impl AsyncWrite + Unpin + Send + Sync + 'static) -> Self {
        Self { sink: Box::new(sink), gathered: BytesMut::with_capacity(4096) }
    }

    /// Appends a message.
    pub fn put(&mut self, message: PgWireBackendMessage) {
        let before = self.gathered.len();
        if message.encode(&mut self.gathered).is_err() {
            // The message exceeds the protocol's limit. A client would read a part of it as another
            // message.
            self.gathered.truncate(before);
            let problem = Problem::error("54000", "what would be sent is longer than PostgreSQL's protocol allows");
            let _ = PgWireBackendMessage::ErrorResponse(problem.response()).encode(&mut self.gathered);
        }
    }

    /// Returns the buffer, for messages that are encoded directly as bytes.
    pub fn buffer(&mut self) -> &mut BytesMut {
        &mut self.gathered
    }

    /// Appends an error message.
    pub fn put_problem(&mut self, problem: Problem) {
        self.put(PgWireBackendMessage::ErrorResponse(problem.response()));
    }

    /// Appends a notice message.
    pub fn put_notice(&mut self, problem: Problem) {
        self.put(PgWireBackendMessage::NoticeResponse(problem.notice()));
    }

    /// Appends a `CommandComplete` message.
    pub fn put_tag(&mut self, tag: String) {
        self.put(PgWireBackendMessage::CommandComplete(CommandComplete::new(tag)));
    }

    /// Appends a `ReadyForQuery` message.
    pub fn put_ready(&mut self, status: TransactionStatus) {
        self.put(PgWireBackendMessage::ReadyForQuery(ReadyForQuery::new(status)));
    }

    /// Returns true if the buffer is large enough to be written.
    pub fn is_full(&self) -> bool {
        self.gathered.len() >= GATHERED_BYTES
    }

    /// Writes the buffer. Safe to drop and call again: no byte is written twice.
    pub async fn flush(&mut self) -> Result<(), Gone> {
        while !self.gathered.is_empty() {
            match self.sink.write_buf(&mut self.gathered).await {
                Ok(0) | Err(_) => return Err(Gone),
                Ok(_) => {}
            }
        }
        self.sink.flush().await.map_err(|_| Gone)
    }

    /// Flushes and shuts down the stream.
    pub async fn close(&mut self) {
        let _ = self.flush().await;
        let _ = self.sink.shutdown().await;
    }
}
