//! The arguments of `onehop rados`.

use std::time::Duration;

use clap::Subcommand;

use super::io::{file_bytes, parallel, positive_time, size};
use super::setting;

/// The examples of the help text.
pub const EXAMPLES: &str = "\
Examples:
  onehop rados mkfs rados://meta.sales --data bytes        a file system: names in the pool meta, bytes in the pool bytes
  onehop rados ls rados://meta.sales/2026                  a directory
  onehop rados mv rados://meta.sales/new rados://meta.sales/2026/11     any directory, whatever is in it, without a copy
  onehop rados fsck rados://meta.sales --deep              every byte against its checksum; exit code 3 if anything is damaged
  onehop rados gc rados://meta.sales                       unreferenced bytes, removed
  onehop rados bench rados://meta.sales --streams 4        what the cluster gives to files: MiB/s written and read
  onehop rados txn ls rados://meta.sales                   transactions over many files, such as those of Spark's jobs

The cluster is that of the settings: --set ceph.conf=/etc/ceph/ceph.conf --set ceph.user=sales --set ceph.timeout=10s, or
ONEHOP_CEPH_CONF and so on. SQL reads and writes the same paths: FROM 'rados://meta.sales/2026/*.parquet'.";

/// The commands for files on a Ceph cluster.
#[derive(Debug, Subcommand)]
pub enum RadosCommand {
    /// Make a file system in a pool
    Mkfs(MkfsArgs),
    /// List a directory
    Ls(PathArgs),
    /// Print the attributes of a file or a directory
    Stat(PathArgs),
    /// Create a directory and its parents
    Mkdir(PathArgs),
    /// Rename a file or a directory; nothing is copied
    Mv(MvArgs),
    /// Remove a file, or a directory with --recursive
    Rm(RmArgs),
    /// Check for damage; changes nothing
    Fsck(FsckArgs),
    /// Remove unreferenced objects
    Gc(PathArgs),
    /// Measure the rates of writing and reading files, in a folder that is removed at the end
    Bench(RadosBenchArgs),
    /// Show transactions over many files, and abort them
    #[command(subcommand)]
    Txn(TxnCommand),
}

/// The commands for transactions.
#[derive(Debug, Subcommand)]
pub enum TxnCommand {
    /// List open transactions
    Ls(PathArgs),
    /// Show a transaction
    Show(TxnArgs),
    /// Abort a transaction: none of its changes become visible. A committed one stays committed
    Abort(TxnArgs),
}

/// A transaction.
#[derive(Debug, clap::Args)]
pub struct TxnArgs {
    /// rados://POOL[.NAMESPACE]
    pub url: String,
    /// Its id
    pub id: String,
    #[command(flatten)]
    pub common: Common,
}

/// The arguments that all commands take.
#[derive(Debug, clap::Args)]
pub struct Common {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Change a setting, as SET does (may be repeated)
    #[arg(long, value_name = "NAME=VALUE", value_parser = setting)]
    pub set: Vec<(String, String)>,
}

/// A path.
#[derive(Debug, clap::Args)]
pub struct PathArgs {
    /// rados://POOL[.NAMESPACE]/PATH
    pub url: String,
    #[command(flatten)]
    pub common: Common,
}

/// `onehop rados mkfs`.
#[derive(Debug, clap::Args)]
pub struct MkfsArgs {
    /// rados://POOL[.NAMESPACE]: the replicated pool of the names
    pub url: String,
    /// The pool of the bytes, of any kind; the same without it
    #[arg(long, value_name = "POOL")]
    pub data: Option<String>,
    /// Bytes of an object, 64KiB to 64MiB
    #[arg(long, value_name = "SIZE", default_value = "4MiB")]
    pub chunk: String,
    #[command(flatten)]
    pub common: Common,
}

/// `onehop rados mv`.
#[derive(Debug, clap::Args)]
pub struct MvArgs {
    /// rados://POOL[.NAMESPACE]/PATH
    pub url: String,
    /// The new name, in the same file system
    pub to: String,
    /// Replace a file that has the new name
    #[arg(long)]
    pub replace: bool,
    #[command(flatten)]
    pub common: Common,
}

/// `onehop rados rm`.
#[derive(Debug, clap::Args)]
pub struct RmArgs {
    /// rados://POOL[.NAMESPACE]/PATH
    pub url: String,
    /// Remove a directory and all of its contents, atomically
    #[arg(short, long)]
    pub recursive: bool,
    #[command(flatten)]
    pub common: Common,
}

/// `onehop rados fsck`.
#[derive(Debug, clap::Args)]
pub struct FsckArgs {
    /// rados://POOL[.NAMESPACE]
    pub url: String,
    /// Look for unreferenced objects as well: lists both pools
    #[arg(long)]
    pub objects: bool,
    /// Read every byte as well
    #[arg(long)]
    pub deep: bool,
    #[command(flatten)]
    pub common: Common,
}

/// `onehop rados bench`.
#[derive(Debug, clap::Args)]
pub struct RadosBenchArgs {
    /// rados://POOL[.NAMESPACE]
    pub url: String,
    /// Bytes of a file
    #[arg(long, value_name = "SIZE", default_value = "128MiB", value_parser = file_bytes)]
    pub file: u64,
    /// The number of files that are written, and read, concurrently
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = parallel)]
    pub streams: usize,
    /// Bytes of each file that are in flight
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = window_bytes)]
    pub window: usize,
    /// The time in which files are started, once for writing and once for reading: 500ms, 3s, 2min
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = positive_time)]
    pub runtime: Duration,
    #[command(flatten)]
    pub common: Common,
}

fn window_bytes(text: &str) -> Result<usize, String> {
    let bytes = Some(size(text, "32MiB")?).filter(|bytes| (64 << 10..=1 << 30).contains(bytes));
    bytes.and_then(|bytes| usize::try_from(bytes).ok()).ok_or_else(|| "a size from 64KiB to 1GiB".into())
}
