//! A server for PostgreSQL clients: the wire protocol over TCP, on top of engine sessions.
//!
//! ```text
//!       front: a runtime of few threads               workers: the engine's runtime
//! TCP ─ TLS ──► Reader, a task ── messages, ──► Client ── spawn ──► Session::execute
//!                 │               bounded by     │  ▲                   │
//!                 │ end of stream their bytes    │  └─ batches, one ────┘
//!                 └──► Interrupt ◄── Cancel-     │     at a time
//!                                    Request     ▼
//!                                         rows as messages ──► TCP
//! ```
//! - A connection owns one [`Session`](onehop_engine::Session): its settings, transaction and
//!   prepared statements.
//! - The runtime that serves connections runs no long engine work. A plan that never yields its
//!   thread therefore cannot block another client or its cancellation. Inserts run there up to the
//!   commit: see [`Task`](onehop_engine::Task).
//! - Rows are encoded as they arrive and never collected. A client that reads slowly slows its
//!   query down.
//! - A statement ends early if its client cancels it, the client disconnects, or the server shuts
//!   down. The server informs the engine first and the client second.
//!
//! The server publishes its state over HTTP (`http`). It writes events to a log and sends spans to
//! a collector (`observe`).
//!
//! The messages are those of pgwire. Its handler loop is not used, because it collects the whole
//! result of a portal.

mod admission;
mod binary;
mod block;
mod client;
mod connections;
mod copy;
mod cursors;
mod decode;
mod encode;
mod extended;
mod guesses;
mod http;
mod interrupt;
mod link;
mod login;
mod metrics;
mod observe;
mod page;
mod private;
mod problem;
mod read;
mod reported;
mod run;
mod server;
mod simple;
mod slots;
mod startup;
mod tls;
mod types;
mod users;

pub use observe::LogTo;
pub use server::{Error, Options, Result, Server, TlsFiles};
pub use users::{MOST_PASSWORD_BYTES, Users, UsersError};
