//! The `onehop` command as a binary; `lib.rs` contains all of it.
//!
//! The allocator is jemalloc, counted for statements: it gives free memory of all threads back when
//! it is asked to, so that `memory_limit` holds for what is resident.

use std::ffi::{c_char, c_int};
use std::ptr;

use onehop_governor::{Counting, set_purge, start_with_small_pages};
use tikv_jemallocator::Jemalloc;

#[global_allocator]
static ALLOCATOR: Counting<Jemalloc> = Counting::new(Jemalloc);

/// Free pages go back after ten seconds, by a thread of jemalloc's: the tables of the next query
/// are made of them. If they exceed the governor's share of the limit, it gives them back at once.
/// Huge pages: a query over millions of rows fills tables of megabytes, and a fault for each 4 KiB
/// of those took a third of its time. The governor turns them off while the largest limit is small.
#[unsafe(export_name = "_rjem_malloc_conf")]
static CONFIGURATION: Option<&c_char> = Some(
    // SAFETY: the text ends with a zero, and lives as long as the process.
    unsafe { &*c"background_thread:true,dirty_decay_ms:10000,muzzy_decay_ms:0,thp:always".as_ptr() },
);

/// Returns the free pages of all arenas to the system.
fn purge() {
    // 4096 stands for all arenas. SAFETY: the name ends with a zero; nothing is read or written by
    // it.
    let done: c_int = unsafe {
        tikv_jemalloc_sys::mallctl(c"arena.4096.purge".as_ptr(), ptr::null_mut(), ptr::null_mut(), ptr::null_mut(), 0)
    };
    debug_assert_eq!(done, 0);
}

fn main() {
    start_with_small_pages();
    set_purge(purge);
    onehop::leave(onehop::command(std::env::args_os()))
}
