//! The `onehop` command as a binary; `lib.rs` has all of it.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    onehop::leave(onehop::command(std::env::args_os()))
}
