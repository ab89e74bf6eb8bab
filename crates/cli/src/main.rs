//! The `onehop` command as a binary; `lib.rs` has all of it.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    ExitCode::from(onehop::command(std::env::args_os()))
}
