//! The arguments of `onehop store`.

use std::path::PathBuf;

use clap::Subcommand;

/// The examples of the help text.
pub const EXAMPLES: &str = "\
Examples:
  onehop store check state.store                       every page, checksum and key; exit code 3 if anything is damaged
  onehop store dump state.store --tree colours         keys and values of a tree, a line each
  onehop store backup state.store copy.store           a whole copy, as of now; also while a process writes to it
  onehop store compact state.store                     the file, as small as it can be

A store is a file. It has one writer: a store that a process has open for writing is refused here, with that process's number, \
but for backups of files.";

/// The commands for a store.
#[derive(Debug, Subcommand)]
pub enum StoreCommand {
    /// Verify everything: every page reachable once, checksums, the order of keys
    Check(StoreArgs),
    /// Print keys and values
    Dump(DumpArgs),
    /// Make the file as small as possible, atomically
    Compact(StoreArgs),
    /// Copy it to a new file, which is complete and durable at the end
    Backup(BackupArgs),
}

/// A store.
#[derive(Debug, clap::Args)]
pub struct StoreArgs {
    /// The store's file
    pub file: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `onehop store dump`.
#[derive(Debug, clap::Args)]
pub struct DumpArgs {
    /// The store's file
    pub file: PathBuf,
    /// Only this tree
    #[arg(long, value_name = "NAME")]
    pub tree: Option<String>,
    /// Print JSON: an object a line, keys and values as hexadecimal digits
    #[arg(long)]
    pub json: bool,
}

/// `onehop store backup`.
#[derive(Debug, clap::Args)]
pub struct BackupArgs {
    /// The store's file
    pub file: PathBuf,
    /// The copy, a path that must not exist
    pub to: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
