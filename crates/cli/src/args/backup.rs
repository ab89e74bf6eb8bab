//! The arguments of `onehop backup` and `onehop restore`.

use std::path::PathBuf;

/// The examples of the help text.
pub const EXAMPLES: &str = "\
Examples:
  onehop backup sales /backups/sales-monday                                        while a server writes to it, too
  onehop backup sales /backups/sales-tuesday --base /backups/sales-monday          segments of Monday are not copied again
  onehop check /backups/sales-tuesday && onehop --readonly /backups/sales-tuesday  a backup is a database
  onehop restore /backups/sales-tuesday sales-again

The backup is the state of one commit. It appears under its name when it is whole, verified and durable.";

/// `onehop backup`.
#[derive(Debug, clap::Args)]
pub struct DatabaseBackupArgs {
    /// Database directory; other processes may be writing to it
    pub path: PathBuf,
    /// The backup, a path that must not exist
    pub to: PathBuf,
    /// An earlier backup: the files that it has are linked or cloned, and not copied again
    #[arg(long, value_name = "BACKUP")]
    pub base: Option<PathBuf>,
    /// Copy every byte, also where files or blocks could be shared with the database
    #[arg(long)]
    pub copy: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `onehop restore`.
#[derive(Debug, clap::Args)]
pub struct RestoreArgs {
    /// The backup, which stays as it is
    pub backup: PathBuf,
    /// The database, a path that must not exist, or an empty directory
    pub to: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
