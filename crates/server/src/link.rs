//! What goes to a client: messages, gathered, and written when there are many or the client waits for them.

use bytes::BytesMut;
use pgwire::messages::PgWireBackendMessage;
use pgwire::messages::response::{CommandComplete, ReadyForQuery, TransactionStatus};
use tokio::io::{AsyncWrite, AsyncWriteExt};

use crate::problem::Problem;

/// Bytes that are gathered before they are written.
const GATHERED_BYTES: usize = 32 << 10;

/// The client is not there any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone;

/// The way to a client.
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
    pub fn new(sink: impl AsyncWrite + Unpin + Send + Sync + 'static) -> Self {
        Self { sink: Box::new(sink), gathered: BytesMut::with_capacity(4096) }
    }

    /// Puts a message behind the others.
    pub fn put(&mut self, message: PgWireBackendMessage) {
        let before = self.gathered.len();
        if message.encode(&mut self.gathered).is_err() {
            // One that is longer than the protocol allows: a part of it would be read as something else.
            self.gathered.truncate(before);
            let problem = Problem::error("54000", "what would be sent is longer than PostgreSQL's protocol allows");
            let _ = PgWireBackendMessage::ErrorResponse(problem.response()).encode(&mut self.gathered);
        }
    }

    /// Where messages are put that are made as bytes.
    pub fn buffer(&mut self) -> &mut BytesMut {
        &mut self.gathered
    }

    pub fn put_problem(&mut self, problem: Problem) {
        self.put(PgWireBackendMessage::ErrorResponse(problem.response()));
    }

    pub fn put_notice(&mut self, problem: Problem) {
        self.put(PgWireBackendMessage::NoticeResponse(problem.notice()));
    }

    pub fn put_tag(&mut self, tag: String) {
        self.put(PgWireBackendMessage::CommandComplete(CommandComplete::new(tag)));
    }

    pub fn put_ready(&mut self, status: TransactionStatus) {
        self.put(PgWireBackendMessage::ReadyForQuery(ReadyForQuery::new(status)));
    }

    /// Whether so much is gathered that it should be written.
    pub fn is_full(&self) -> bool {
        self.gathered.len() >= GATHERED_BYTES
    }

    /// Writes what is gathered. May be dropped and called again: nothing is written twice.
    pub async fn flush(&mut self) -> Result<(), Gone> {
        while !self.gathered.is_empty() {
            match self.sink.write_buf(&mut self.gathered).await {
                Ok(0) | Err(_) => return Err(Gone),
                Ok(_) => {}
            }
        }
        self.sink.flush().await.map_err(|_| Gone)
    }

    /// Says no more.
    pub async fn close(&mut self) {
        let _ = self.flush().await;
        let _ = self.sink.shutdown().await;
    }
}
