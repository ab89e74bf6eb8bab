//! A database for PostgreSQL's clients: its protocol over TCP, on the engine's sessions.
//!
//! ```text
//!                 front: a runtime of few threads                         workers: the engine's runtime
//!  TCP ─ TLS ──► Reader, a task ── messages, bounded by their bytes ──► Client ── spawn ──► Session::execute
//!                  │ end of the stream                                   │  ▲                    │
//!                  └──► Interrupt ◄── CancelRequest of another connection│  └── batches, one ───┘
//!                                                                        ▼      at a time
//!                                                              rows as messages ──► TCP
//! ```
//! - A connection is one [`Session`](onehop_engine::Session): its settings, its transaction, what it has prepared.
//! - Nothing long of the engine runs on the runtime that looks after connections: a plan that does not let go of its thread keeps no
//!   client from being heard, and none from being cancelled. Rows that are put into a table do, up to the commit: see
//!   [`Task`](onehop_engine::Task).
//! - Rows are encoded as they come and kept by nobody: a client that reads slowly slows its query down.
//! - A statement ends early when its client asks for it, is gone, or the server shuts down; then the engine is told first,
//!   and the client second.
//!
//! What is going on is told to those who look (`http`), and as it happens to a log and to what gathers spans (`observe`).
//!
//! The messages are pgwire's; its loop of handlers is not used, for it collects the whole result of a portal.

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
