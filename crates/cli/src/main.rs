//! The `onehop` command: what was typed ([`args`]) becomes something to do ([`run`]), which ends in an exit code
//! ([`exit`]). Results go to standard output; everything said about them goes to standard error.

mod args;
mod check;
mod client;
mod doctor;
mod exit;
mod explain;
mod footer;
mod format;
mod gpu;
mod interrupt;
mod lab;
mod message;
mod pipe;
mod progress;
mod run;
mod script;
mod settings;
mod shell;
mod source;
mod statement;
mod store;
mod terminal;
mod version;
mod view;

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let exit = match args::parse(std::env::args_os()) {
        Ok(args) => run::run(args),
        Err(exit) => exit,
    };
    exit.into()
}
