//! The command line. This module parses and validates words; it opens and reads nothing.

mod backup;
mod commit;
mod io;
mod logreg;
mod osp;
mod q6;
mod rados;
mod report;
mod serve;
mod store;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::exit::{Exit, Stop};
use crate::format::Format;
use crate::settings;
use crate::terminal::{Terminal, note};
use crate::{message, version};

pub use backup::{DatabaseBackupArgs, RestoreArgs};
pub use commit::CommitArgs;
pub use io::{Emit, IoArgs};
pub use logreg::LogregArgs;
pub use osp::OspArgs;
pub use q6::{CufileFlight, DeviceThreads, Q6Args};
pub use rados::{FsckArgs, MkfsArgs, MvArgs, PathArgs, RadosBenchArgs, RadosCommand, RmArgs, TxnArgs, TxnCommand};
pub use report::ReportArgs;
pub use serve::{RoleName, ServeArgs, UserCommand};
pub use store::{BackupArgs, DumpArgs, StoreArgs, StoreCommand};

const ABOUT: &str = "An analytical SQL engine that reads each byte once and shows the count.";

const LONG_ABOUT: &str = "\
An analytical SQL engine that reads each byte once and shows the count.

PATH is a database directory, made if it is not there; without it the database lives in memory and ends with the \
process. SQL comes from -c and -f, in the order given, or from standard input if that is not a terminal; otherwise \
the shell starts. Results go to standard output; errors, notices, progress and the footer go to standard error.";

const EXAMPLES: &str = "\
Examples:
  onehop                                             a shell on a database in memory
  onehop flights.onehop                              a shell on a database directory
  onehop -c \"SELECT * FROM 'trips.parquet' LIMIT 5\"   SQL over a file
  onehop flights.onehop -f load.sql -c 'SHOW TABLES' a script, then a statement
  onehop flights.onehop --format json < report.sql   a script from standard input, results as JSON
  onehop check flights.onehop                        every checksum, verified
  onehop explain flights.onehop -c 'FROM trips'      how a query is run
  onehop doctor                                      what this machine offers
  onehop serve flights.onehop                        for psql and PostgreSQL's drivers, at 127.0.0.1:5488

A database whose directory is named like a command is opened as ./NAME: `onehop ./doctor`.";

const AFTER_HELP: &str = "\
Formats:
  auto       box if standard output is a terminal, csv if not
  box        a table for people; NULL is bare, the text NULL is in quotes; long results show their two ends
             (--max-rows, .maxrows) if standard output is a terminal
  csv        RFC 4180 with a header line; NULL is empty, the empty text is \"\"
  tsv        a header line, then PostgreSQL's COPY text rules: NULL is \\N; tab, newline, CR and \\ are escaped by \\
  json       an array of objects, one to a line; NULL is null; integers and decimals are numbers with all their digits
  jsonl      an object to a line
  markdown   a table for documents
  arrow      Arrow IPC stream, one stream per result

Exit codes:
  0 done   1 a statement failed   2 wrong usage   3 damaged data found   4 a requirement not met
  130 interrupted";

/// The command line.
#[derive(Debug, Parser)]
#[command(
    name = "onehop",
    version = version::TEXT,
    about = ABOUT,
    long_about = LONG_ABOUT,
    args_conflicts_with_subcommands = true,
    max_term_width = 110
)]
pub struct Args {
    #[command(flatten)]
    pub sql: SqlArgs,

    /// The command to run instead of SQL.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// Commands other than running SQL.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Verify every checksum of a database, and find files that are not where they belong
    Check(CheckArgs),
    /// Copy a whole database to a new directory, also while others write to it
    #[command(after_help = backup::EXAMPLES)]
    Backup(DatabaseBackupArgs),
    /// Restore a database from a backup
    Restore(RestoreArgs),
    /// Print the capabilities of this machine: processor, memory, storage, GPU, libraries
    Doctor(DoctorArgs),
    /// Generate the tables of a benchmark: the Star Schema Benchmark or TPC-H
    #[command(after_help = GEN_EXAMPLES)]
    Gen(GenArgs),
    /// Measure: a benchmark's queries, or the paths between files and memory
    #[command(subcommand, after_help = BENCH_EXAMPLES)]
    Bench(BenchCommand),
    /// Show the execution of a query: its operators, blocks, rows, bytes and times
    #[command(after_help = EXPLAIN_EXAMPLES)]
    Explain(ExplainArgs),
    /// Check, print, copy or shrink the file of a store
    #[command(subcommand, after_help = store::EXAMPLES)]
    Store(StoreCommand),
    /// Files on a Ceph cluster: make a file system, list, rename, check, collect
    #[command(subcommand, after_help = rados::EXAMPLES)]
    Rados(RadosCommand),
    /// Serve a database to PostgreSQL's clients: psql, and every driver
    #[command(after_help = serve::EXAMPLES)]
    Serve(ServeArgs),
    /// Manage the users that may log in to a server
    #[command(subcommand, after_help = serve::USER_EXAMPLES)]
    User(UserCommand),
    /// Answer requests: one JSON object a line in, one a line out, for programs in any language
    Pipe(PipeArgs),
    /// Run functions in CUDA for a database, which starts this
    #[command(hide = true)]
    RunFunctions,
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// `onehop check`.
#[derive(Debug, clap::Args)]
pub struct CheckArgs {
    /// Database directory
    pub path: PathBuf,
    /// Print the actions for files that are not where they belong; checksums are not verified
    #[arg(long)]
    pub repair: bool,
    /// With --repair: do it
    #[arg(long, requires = "repair")]
    pub yes: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `onehop doctor`.
#[derive(Debug, clap::Args)]
pub struct DoctorArgs {
    /// The directory whose file system is checked
    #[arg(default_value = ".")]
    pub path: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

const GEN_EXAMPLES: &str = "\
Examples:
  onehop gen ssb --sf 1 --out ssb.onehop                   a database directory
  onehop gen tpch --sf 10 --out tpch --format parquet      a folder of Parquet files, one a table

The data is a function of the scale factor: the same rows whatever the threads, the format or the machine.";

const BENCH_EXAMPLES: &str = "\
Examples:
  onehop bench ssb --sf 1                                  generates data/ssb-sf1.onehop if it is not there
  onehop bench tpch --sf 1 --queries 1,6,12-14 --runs 9 --json figures.json
  onehop bench io /data --bs 64KiB,1MiB --iodepth 1,8      what the disk under /data gives, by every path
  onehop bench q6 /data --plot figure7.svg                 Query 6 by processor and GPU, and what its time goes to
  onehop bench commit /data                                what a durable transaction costs under /data
  onehop bench osp --plot figure4.svg                      flushes of shadow paging and of logs, simulated

Answers are checked against stored ones at scale factors 0.01, 0.1 and 1. A wrong answer gets no time, and exit code 1.";

/// A benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Suite {
    /// The Star Schema Benchmark: five tables, 13 queries
    Ssb,
    /// TPC-H: eight tables, 22 queries
    Tpch,
}

impl Suite {
    /// Returns its name in paths and files.
    pub fn name(self) -> &'static str {
        match self {
            Suite::Ssb => "ssb",
            Suite::Tpch => "tpch",
        }
    }
}

/// The output format of `onehop gen`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum GenFormat {
    /// Tables of a database
    Segments,
    /// A Parquet file per table
    Parquet,
    /// A CSV file per table, with a header
    Csv,
    /// As the benchmark's own generator writes: a pipe after every value, no header
    Tbl,
}

/// `onehop gen`.
#[derive(Debug, clap::Args)]
pub struct GenArgs {
    /// The benchmark
    #[arg(value_enum)]
    pub suite: Suite,
    /// Scale factor: 1 is about 6 million rows in the largest table
    #[arg(long, value_name = "N", default_value_t = 1.0, value_parser = scale_factor, allow_negative_numbers = true)]
    pub sf: f64,
    /// The database directory, or the folder for the files
    #[arg(long, value_name = "PATH")]
    pub out: PathBuf,
    /// The output format
    #[arg(long, value_enum, default_value = "segments")]
    pub format: GenFormat,
    /// Threads; one per core without it
    #[arg(long, value_name = "N", value_parser = thread_count)]
    pub threads: Option<usize>,
    /// Replace existing tables and files
    #[arg(long)]
    pub replace: bool,
    /// Print only errors
    #[arg(short, long)]
    pub quiet: bool,
}

/// `onehop bench`.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// The Star Schema Benchmark: 13 queries, every answer checked, times and bytes
    Ssb(BenchArgs),
    /// TPC-H: 22 queries, every answer checked, times and bytes
    Tpch(BenchArgs),
    /// The paths between a file and memory: rates, latencies, processor time, content checked
    #[command(after_help = io::EXAMPLES)]
    Io(IoArgs),
    /// TPC-H Query 6 by every split of bytes and work between processor and GPU, every answer
    /// checked
    #[command(after_help = q6::EXAMPLES)]
    Q6(Q6Args),
    /// Small transactions on the store: rates, latencies, bytes written, recovery
    #[command(after_help = commit::EXAMPLES)]
    Commit(CommitArgs),
    /// Logistic regression by SQL: whole statements, passes, models checked
    #[command(after_help = logreg::EXAMPLES)]
    Logreg(LogregArgs),
    /// Optimized shadow paging against undo and redo logging: flushes of persistent memory,
    /// simulated
    #[command(after_help = osp::EXAMPLES)]
    Osp(OspArgs),
}

/// `onehop bench ssb|tpch`.
#[derive(Debug, clap::Args)]
pub struct BenchArgs {
    /// Scale factor
    #[arg(long, value_name = "N", default_value_t = 1.0, value_parser = scale_factor, allow_negative_numbers = true)]
    pub sf: f64,
    /// Database directory with the tables; generated if it is missing [default:
    /// data/SUITE-sfN.onehop]
    #[arg(long, value_name = "DIR")]
    pub db: Option<PathBuf>,
    /// Only these queries: names and ranges, as 1.1,2-3 (ssb: 1.1 to 4.3; 2 is all of 2.x) or
    /// q01,6-8 (tpch: 1 to 22)
    #[arg(long, value_name = "IDS")]
    pub queries: Option<String>,
    /// Measured runs of each query, after one to warm up
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = run_count)]
    pub runs: usize,
    /// Threads; one per core without it
    #[arg(long, value_name = "N", value_parser = thread_count)]
    pub threads: Option<usize>,
    /// Change a setting, as SET does (may be repeated)
    #[arg(long, value_name = "NAME=VALUE", value_parser = setting)]
    pub set: Vec<(String, String)>,
    /// Write the figures as JSON to a file, or to standard output in place of the table (-)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Run on a GPU (cuda:0), and nowhere else: as gpu.mode=require, gpu.devices and
    /// exec.fallback=error, which --set can change. Without that GPU exit with 4
    #[arg(long, value_name = "DEVICE", value_parser = device)]
    pub device: Option<String>,
    /// With --device: load the tables into its memory first
    #[arg(long, requires = "device", conflicts_with = "stream")]
    pub resident: bool,
    /// With --device: start each run with nothing in its memory
    #[arg(long, requires = "device")]
    pub stream: bool,
}

impl BenchArgs {
    /// Returns the settings of the flags. Later ones win.
    pub fn settings(&self) -> Vec<(String, String)> {
        let mut settings = Vec::new();
        if let Some(device) = &self.device {
            let device = [("gpu.mode", "require"), ("exec.fallback", "error"), ("gpu.devices", device)];
            settings.extend(device.map(|(name, value)| (name.to_string(), value.to_string())));
        }
        if self.stream {
            settings.push(("gpu.residence".into(), "off".into()));
        }
        settings.extend(self.set.clone());
        settings.extend(self.threads.map(|n| ("threads".into(), n.to_string())));
        settings
    }

    /// Returns true if JSON replaces the table.
    pub fn json_to_stdout(&self) -> bool {
        self.json.as_ref().is_some_and(|path| path.as_os_str() == "-")
    }
}

/// Parses `cuda:0` or `0`.
fn device(text: &str) -> Result<String, String> {
    let number = text.strip_prefix("cuda:").unwrap_or(text);
    number.parse::<u32>().map(|n| format!("cuda:{n}")).map_err(|_| "a device is called cuda:0".into())
}

const EXPLAIN_EXAMPLES: &str = "\
Examples:
  onehop explain flights.onehop -c 'FROM flights'                   the plan; nothing is run
  onehop explain flights.onehop --analyze delays.sql                run, with rows, bytes and times
  onehop explain flights.onehop --analyze --format json delays.sql  for programs
  onehop explain flights.onehop --html delays.sql -o delays.html    a page, with the bytes drawn

A database is opened for reading. The page stands by itself: it loads nothing from anywhere.";

/// The output format of `onehop explain`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ExplainFormat {
    /// A tree for people
    Text,
    /// The same for programs
    Json,
}

/// `onehop explain`.
#[derive(Debug, clap::Args)]
pub struct ExplainArgs {
    /// Database directory, in memory without it; then, without -c and --html, a file with the query
    /// (- is standard input)
    #[arg(value_name = "PATH|FILE", num_args = 0..=2)]
    pub words: Vec<PathBuf>,
    /// The query
    #[arg(short = 'c', long = "command", value_name = "SQL", conflicts_with = "html")]
    pub command: Option<String>,
    /// Run the query, and report its execution
    #[arg(long)]
    pub analyze: bool,
    /// The output format
    #[arg(long, value_enum, default_value = "text", conflicts_with = "html")]
    pub format: ExplainFormat,
    /// Run the query in FILE, and make a page with its plan and the bytes that it moved
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write to a file in place of standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Change a setting, as SET does (may be repeated)
    #[arg(long, value_name = "NAME=VALUE", value_parser = setting)]
    pub set: Vec<(String, String)>,
}

/// `onehop pipe`.
#[derive(Debug, clap::Args)]
pub struct PipeArgs {
    /// Database directory; in memory without it, or as :memory:
    pub path: Option<PathBuf>,
    /// Open the database for reading only
    #[arg(long)]
    pub readonly: bool,
    /// Change a setting, as SET does (may be repeated)
    #[arg(long, value_name = "NAME=VALUE", value_parser = setting)]
    pub set: Vec<(String, String)>,
}

/// Parses a scale factor. The benchmark checks its range.
fn scale_factor(text: &str) -> Result<f64, String> {
    text.parse().map_err(|_| "a number, such as 0.1 or 10".into())
}

fn thread_count(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|n| (1..=4096).contains(n)).ok_or_else(|| "a whole number from 1 to 4096".into())
}

fn run_count(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|n| *n <= 100_000).ok_or_else(|| "a whole number from 0".into())
}

/// The arguments for running SQL.
#[derive(Debug, clap::Args)]
pub struct SqlArgs {
    /// Database directory; in memory without it, or as :memory:
    pub path: Option<PathBuf>,

    /// Run SQL (several statements are fine; may be repeated, and mixed with -f)
    #[arg(short = 'c', long = "command", value_name = "SQL")]
    commands: Vec<String>,

    /// Run a script (- is standard input)
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    files: Vec<PathBuf>,

    /// The format of results
    #[arg(
        long,
        value_enum,
        value_name = "FORMAT",
        default_value = "auto",
        env = "ONEHOP_FORMAT",
        hide_env_values = true
    )]
    pub format: Format,

    /// Rows of a long result that a terminal shows; 0 shows all
    #[arg(long, value_name = "N", default_value_t = 40)]
    pub max_rows: usize,

    /// Open the database for reading only
    #[arg(long)]
    pub readonly: bool,

    /// Keep a new database's segments on a Ceph cluster (rados://POOL[.NAMESPACE]/PATH),
    /// permanently
    #[arg(long, value_name = "URL", requires = "path")]
    pub segments: Option<String>,

    /// Change a setting, as SET does (may be repeated)
    #[arg(long, value_name = "NAME=VALUE", value_parser = setting)]
    set: Vec<(String, String)>,

    /// Worker threads, as --set threads=N
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    threads: Option<u32>,

    /// Memory for queries: 8GiB, 90% ..., as --set memory_limit=SIZE
    #[arg(long, value_name = "SIZE")]
    memory_limit: Option<String>,

    /// Run pipelines on a GPU, or fail: as --set gpu.mode=require and exec.fallback=error; without
    /// a GPU exit with 4
    #[arg(long)]
    pub require_gpu: bool,

    /// Print the footer (rows, time, bytes) even if standard error is not a terminal
    #[arg(long, conflicts_with = "quiet")]
    pub timer: bool,

    /// Print results and errors, nothing else
    #[arg(short, long)]
    pub quiet: bool,

    /// Never show a progress bar
    #[arg(long)]
    pub no_progress: bool,

    /// The `-c` and `-f` in the order given. clap keeps that beside the values.
    #[arg(skip)]
    pub inputs: Vec<Input>,
}

/// A source of SQL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// `-c`.
    Text(String),
    /// `-f`.
    File(PathBuf),
}

impl SqlArgs {
    /// Returns the settings of the flags. Later ones win.
    pub fn settings(&self) -> Vec<(String, String)> {
        let mut settings = self.set.clone();
        settings.extend(self.threads.map(|n| ("threads".into(), n.to_string())));
        settings.extend(self.memory_limit.clone().map(|size| ("memory_limit".into(), size)));
        if self.require_gpu {
            settings.extend([("gpu.mode", "require"), ("exec.fallback", "error")].map(|(n, v)| (n.into(), v.into())));
        }
        settings
    }

    fn order_inputs(&mut self, matches: &ArgMatches) {
        let at = |id| matches.indices_of(id).into_iter().flatten();
        let texts = at("commands").zip(self.commands.iter().cloned().map(Input::Text));
        let files = at("files").zip(self.files.iter().cloned().map(Input::File));
        let mut all: Vec<(usize, Input)> = texts.chain(files).collect();
        all.sort_by_key(|(index, _)| *index);
        self.inputs = all.into_iter().map(|(_, input)| input).collect();
    }
}

/// Parses the command line. If it returns an exit, help or the error has already been printed.
pub fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Args, Exit> {
    let words = suite_first(words.into_iter().collect());
    match try_parse(&words).and_then(misspelt_command) {
        Ok(args) => Ok(args),
        Err(e) if e.kind() == ErrorKind::DisplayHelp => Err(help(&words, e)),
        Err(e) if e.kind() == ErrorKind::ArgumentConflict => Err(conflict(e)),
        Err(e) => Err(say(&e)),
    }
}

/// Moves a benchmark's name before its flags: `bench --sf 1 ssb` becomes `bench ssb --sf 1`. Every
/// flag of `bench` has a value.
fn suite_first(mut words: Vec<OsString>) -> Vec<OsString> {
    if words.get(1).is_none_or(|word| word != "bench") {
        return words;
    }
    let text = |at: usize| words.get(at).and_then(|word| word.to_str());
    let mut at = 2;
    while let Some(flag) = text(at).filter(|word| word.starts_with("--")) {
        at += if flag.contains('=') { 1 } else { 2 };
    }
    let is_suite = text(at)
        .is_some_and(|word| <Suite as clap::ValueEnum>::value_variants().iter().any(|suite| suite.name() == word));
    if at > 2 && is_suite {
        words[2..=at].rotate_right(1);
    }
    words
}

/// Prints help, version or an error to the right stream.
fn say(e: &clap::Error) -> Exit {
    match (e.print(), e.use_stderr()) {
        (_, true) => {
            note_format_by_environment(e);
            Exit::Usage
        }
        (Ok(()), false) => Exit::Done,
        // The requested output could not be printed.
        (Err(e), false) => match Stop::from(e) {
            Stop::PipeClosed => Exit::Done,
            stop => {
                message::report(&stop.into(), &Terminal::detect());
                Exit::Failed
            }
        },
    }
}

/// Adds a note if a wrong format comes from the environment, where a user may not look.
fn note_format_by_environment(e: &clap::Error) {
    let value = match e.get(ContextKind::InvalidValue) {
        Some(ContextValue::String(value)) if e.kind() == ErrorKind::InvalidValue => value,
        _ => return,
    };
    if std::env::var_os("ONEHOP_FORMAT").is_some_and(|set| set == **value) {
        note("The environment variable ONEHOP_FORMAT says so.");
    }
}

fn try_parse(words: &[OsString]) -> Result<Args, clap::Error> {
    let matches = command().try_get_matches_from(words)?;
    let mut args = Args::from_arg_matches(&matches)?;
    args.sql.order_inputs(&matches);
    Ok(args)
}

/// Returns the definition of the command line.
pub fn command() -> clap::Command {
    Args::command().after_help(EXAMPLES).after_long_help(format!("{AFTER_HELP}\n\n{EXAMPLES}"))
}

/// Prints help. The long form includes the engine's settings, which are queried only here, because
/// that costs a session.
fn help(words: &[OsString], e: clap::Error) -> Exit {
    let is_long_root = words.len() == 2 && (words[1] == "--help" || words[1] == "help");
    let e = match is_long_root {
        false => e,
        true => {
            let after = format!("{AFTER_HELP}\n\n{}\n\n{EXAMPLES}", settings::help());
            match command().after_long_help(after).try_get_matches_from(words) {
                Err(longer) => longer,
                Ok(_) => e,
            }
        }
    };
    say(&e)
}

/// Refuses a misspelt command: `onehop docter` would create a database of that name.
fn misspelt_command(args: Args) -> Result<Args, clap::Error> {
    let Some(path) = &args.sql.path else { return Ok(args) };
    let Some(name) = path.to_str().filter(|name| !name.contains(['/', '.'])) else { return Ok(args) };
    let command = command();
    let near = command.get_subcommands().map(clap::Command::get_name).find(|known| is_near(name, known));
    match near {
        Some(near) if !path.exists() => Err(command.clone().error(
            ErrorKind::InvalidSubcommand,
            format!(
                "there is no database '{name}', and no command of that name; did you mean 'onehop {near}'?\nTo make a \
                 database of that name: onehop ./{name}"
            ),
        )),
        _ => Ok(args),
    }
}

/// Returns true if at most a third of the shorter word is wrong. Short names are too similar for
/// more.
fn is_near(name: &str, known: &str) -> bool {
    strsim::damerau_levenshtein(name, known) <= name.len().min(known.len()) / 3
}

/// Explains a second word after PATH. Usually it is SQL, but clap would take it for a command.
fn conflict(e: clap::Error) -> Exit {
    let e = match e.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(word)) if command().find_subcommand(word).is_none() => command().error(
            ErrorKind::UnknownArgument,
            format!("'{word}' is one word too many after PATH; SQL follows -c: onehop PATH -c '...'"),
        ),
        Some(ContextValue::String(word)) => command().error(
            ErrorKind::ArgumentConflict,
            format!("commands come first, and have their own options and PATH: onehop {word} ..."),
        ),
        _ => e,
    };
    say(&e)
}

fn setting(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.trim().is_empty() => Ok((name.trim().to_string(), value.trim().to_string())),
        _ => Err("a setting is written NAME=VALUE, like threads=4".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &[&str]) -> Result<Args, clap::Error> {
        let words = suite_first(std::iter::once(&"onehop").chain(words).map(OsString::from).collect());
        try_parse(&words).and_then(misspelt_command)
    }

    fn sql(words: &[&str]) -> SqlArgs {
        parsed(words).unwrap_or_else(|e| panic!("{e}")).sql
    }

    fn fault(words: &[&str]) -> ErrorKind {
        parsed(words).err().unwrap_or_else(|| panic!("{words:?} was taken")).kind()
    }

    #[test]
    fn the_definition_is_sound() {
        command().debug_assert();
    }

    #[test]
    fn commands_and_files_keep_their_order() {
        let inputs = sql(&["db", "-c", "1", "-f", "a.sql", "-c", "2", "-f", "b.sql"]).inputs;
        let text = |text: &str| Input::Text(text.into());
        let file = |name: &str| Input::File(name.into());
        assert_eq!(inputs, [text("1"), file("a.sql"), text("2"), file("b.sql")]);
        assert_eq!(sql(&[]).inputs, []);
    }

    #[test]
    fn short_flags_for_settings_win_over_set() {
        let args =
            sql(&["--threads", "3", "--set", "threads=2", "--set", "io.path = direct", "--memory-limit", "1GiB"]);
        let pair = |name: &str, value: &str| (name.to_string(), value.to_string());
        assert_eq!(
            args.settings(),
            [pair("threads", "2"), pair("io.path", "direct"), pair("threads", "3"), pair("memory_limit", "1GiB")]
        );
    }

    #[test]
    fn a_benchmark_may_be_named_behind_its_flags() {
        let parsed = |words| match parsed(words) {
            Ok(Args { command: Some(Command::Bench(BenchCommand::Ssb(args))), .. }) => Some((args.sf, args.runs)),
            _ => None,
        };
        assert_eq!(parsed(&["bench", "--sf", "0.1", "--runs=3", "ssb"]), Some((0.1, 3)));
        assert_eq!(parsed(&["bench", "--sf", "0.1", "ssb", "--runs", "3"]), Some((0.1, 3)));
        assert_eq!(parsed(&["bench", "ssb", "--sf", "0.1", "--runs", "3"]), Some((0.1, 3)));
        // A suite's name can be a flag's value.
        assert_eq!(fault(&["bench", "--db", "ssb"]), ErrorKind::UnknownArgument);
        assert_eq!(fault(&["bench", "--sf"]), ErrorKind::UnknownArgument);
    }

    #[test]
    fn wrong_words_are_refused() {
        assert_eq!(fault(&["--nonsense"]), ErrorKind::UnknownArgument);
        assert_eq!(fault(&["--format", "xml"]), ErrorKind::InvalidValue);
        assert_eq!(fault(&["--set", "threads"]), ErrorKind::ValueValidation);
        assert_eq!(fault(&["--threads", "0"]), ErrorKind::ValueValidation);
        assert_eq!(fault(&["--timer", "-q"]), ErrorKind::ArgumentConflict);
    }

    #[test]
    fn a_misspelt_command_is_not_a_database() {
        assert_eq!(fault(&["docter"]), ErrorKind::InvalidSubcommand);
        assert_eq!(sql(&["./docter"]).path, Some("./docter".into()));
        assert_eq!(sql(&["flights"]).path, Some("flights".into()));
        assert_eq!(sql(&["go"]).path, Some("go".into()));
        assert!(matches!(parsed(&["doctor", "--json"]), Ok(Args { command: Some(Command::Doctor(_)), .. })));
    }
}
