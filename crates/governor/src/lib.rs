//! What statements may take of a process: its memory, and its time.
//!
//! ```text
//!   allocator ──counts──► this thread's balance ──every 64 KiB──► Account of the statement, and the process
//!                                                                        │
//!   sampler, every 5 ms: resident memory, deadlines ──► Account::stop(Reason) ◄── cancel
//!                                                                        │
//!   functions, readers, operators: check() between slices of work ◄──────┘
//! ```
//!
//! - [`Counting`] is a global allocator around another one. It counts bytes per thread, and moves the
//!   balance to the account of the statement that the thread works for.
//! - A [`Scope`] says which statement that is. Futures and closures carry it from thread to thread:
//!   [`Scope::future`], [`bind`].
//! - An allocator cannot fail with an error: Rust's collections abort, and unwinding out of an
//!   allocation is undefined. So an account that is over its limit is *stopped*: its work ends with an
//!   error at the next [`check`]. Work that knows its size asks before it allocates: [`try_reserve`].
//! - The limit holds for resident memory. What the process has beside counted bytes (its program,
//!   stacks, free memory that the allocator keeps) is measured, every 5 ms and whenever so much was
//!   allocated since that the limit could be passed, and subtracted from the limit.
//!
//! Without [`Counting`] as the global allocator, accounts stay empty and nothing is refused.

mod account;
mod allocator;
mod caches;
mod fork;
mod memory;
mod resident;
mod sampler;
mod scope;

pub use account::{Account, Guest, Reason, accounts};
pub use allocator::Counting;
pub use caches::{Cache, register_cache};
pub use memory::{Usage, allowed_to_statements, fits, is_counting, may_keep, set_purge, try_reserve, usage};
pub use sampler::start;
pub use scope::{Scope, ScopedFuture, bind, check, current};
