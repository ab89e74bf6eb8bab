//! Limits of statements in a process: memory and time.
//!
//! ```text
//!   allocator ──counts──► thread's balance ──every 64 KiB──► Account of the statement, process
//!                                                                        │
//!   sampler, every 5 ms: resident memory, deadlines ──► Account::stop(Reason) ◄── cancel
//!                                                                        │
//!   functions, readers, operators: check() between slices of work ◄──────┘
//! ```
//!
//! - [`Counting`] is a global allocator that wraps another one. It counts bytes per thread and adds
//!   each thread's balance to the account of the statement that the thread works for.
//! - A [`Scope`] identifies that statement. Futures and closures carry it from thread to thread:
//!   [`Scope::future`], [`bind`].
//! - An allocator cannot return an error: Rust's collections abort, and unwinding out of an
//!   allocation is undefined behavior. Therefore an account over its limit is *stopped*: its work
//!   ends with an error at the next [`check`]. Work that knows its size in advance calls
//!   [`try_reserve`] before it allocates.
//! - The limit applies to resident memory. The process also has memory that is not counted: its
//!   program, stacks, and free memory that the allocator keeps. The governor measures that overhead
//!   every 5 ms, and whenever the allocations since the last sample could pass the limit. It
//!   subtracts the overhead from the limit.
//!
//! Without [`Counting`] as the global allocator, accounts stay empty and no reservation is refused.

mod account;
mod allocator;
mod caches;
mod fork;
mod memory;
mod pages;
mod resident;
mod sampler;
mod scope;

pub use account::{Account, Guest, Reason, accounts};
pub use allocator::Counting;
pub use caches::{Cache, register_cache};
pub use memory::{Usage, allowed_to_statements, fits, is_counting, may_keep, set_purge, try_reserve, usage};
pub use pages::start_with_small_pages;
pub use sampler::start;
pub use scope::{Scope, ScopedFuture, bind, check, current};
