//! `onehop rados`: files on a Ceph cluster, outside of SQL.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::sync::Arc;

use arrow::temporal_conversions::timestamp_ms_to_datetime;
use onehop_ceph::{Authority, Location};
use onehop_engine::{Database, DatabaseOptions, Error, ErrorKind, parse_size, units};
use onehop_io::rados::fs::{
    Depth, Entry, FsOptions, Id, Kind, Replace, Transaction, TransactionState, TransactionStatus,
};
use onehop_io::rados::{self, Cluster, FileSystem, Problem};
use serde_json::{Value, json};

use crate::args::{FsckArgs, MkfsArgs, MvArgs, PathArgs, RadosBenchArgs, RadosCommand, RmArgs, TxnArgs, TxnCommand};
use crate::exit::Stop;
use crate::terminal::Terminal;
use crate::{lab, settings};

/// Runs a command.
pub fn run(command: &RadosCommand, terminal: &Terminal) -> Result<(), Stop> {
    match command {
        RadosCommand::Mkfs(args) => mkfs(args),
        RadosCommand::Ls(args) => ls(args),
        RadosCommand::Stat(args) => stat(args),
        RadosCommand::Mkdir(args) => mkdir(args),
        RadosCommand::Mv(args) => mv(args),
        RadosCommand::Rm(args) => rm(args),
        RadosCommand::Fsck(args) => fsck(args),
        RadosCommand::Gc(args) => gc(args),
        RadosCommand::Bench(args) => bench(args, terminal),
        RadosCommand::Txn(TxnCommand::Ls(args)) => transactions(args),
        RadosCommand::Txn(TxnCommand::Show(args)) => show(args),
        RadosCommand::Txn(TxnCommand::Abort(args)) => abort(args),
    }
}

fn mkfs(args: &MkfsArgs) -> Result<(), Stop> {
    let Location { authority, path } = location(&args.url)?;
    refuse_path(&args.url, &path)?;
    let chunk_bytes = parse_size(&args.chunk).and_then(|bytes| u32::try_from(bytes).ok());
    let chunk_bytes =
        chunk_bytes.filter(|bytes| bytes.is_multiple_of(64 << 10) && (64 << 10..=64 << 20).contains(bytes));
    let chunk_bytes = chunk_bytes.ok_or_else(|| {
        misuse(format!("--chunk cannot be '{}': it takes a multiple of 64KiB, from 64KiB to 64MiB", args.chunk))
    })?;
    let (cluster, data) = (connect(&args.common.set)?, args.data.as_deref().unwrap_or(&authority.pool));
    let options = FsOptions { chunk_bytes, ..FsOptions::default() };
    FileSystem::create(&cluster, &authority.pool, data, &authority.namespace, options).map_err(|e| match e.code() {
        Some(rados::Code::EXISTS) => {
            Stop::from(Error::new(ErrorKind::AlreadyExists, format!("there is a file system in {authority} already")))
        }
        _ => stop(e),
    })?;
    let figures = json!({ "url": authority.to_string(), "data_pool": data, "chunk_bytes": chunk_bytes });
    say(
        args.common.json,
        figures,
        &format!("{authority}: bytes in the pool {data}, {} an object", units::memory(u64::from(chunk_bytes))),
    )
}

fn ls(args: &PathArgs) -> Result<(), Stop> {
    let (fs, Location { path, .. }) = open(&args.url, &args.common.set)?;
    let mut out = io::BufWriter::new(io::stdout().lock());
    let mut after = None;
    loop {
        let page = fs.list_page(&path, after.as_deref()).map_err(stop)?;
        for entry in &page.entries {
            match args.common.json {
                true => writeln!(out, "{}", as_json(entry))?,
                false => writeln!(out, "{}", line(entry))?,
            }
        }
        match page.next {
            Some(next) => after = Some(next),
            None => return Ok(out.flush()?),
        }
    }
}

fn stat(args: &PathArgs) -> Result<(), Stop> {
    let (fs, Location { path, .. }) = open(&args.url, &args.common.set)?;
    let entry = fs.stat(&path).map_err(stop)?;
    let mut text = format!("{}\n  {}", args.url, entry.kind);
    if entry.kind == Kind::File {
        let _ = write!(text, " of {} ({} bytes)", units::bytes(entry.len), entry.len);
    }
    let _ = write!(text, "\n  since {}\n  id {}", time(entry.mtime_ms), entry.id);
    say(args.common.json, as_json(&entry), &text)
}

fn mkdir(args: &PathArgs) -> Result<(), Stop> {
    let (fs, Location { path, .. }) = open(&args.url, &args.common.set)?;
    fs.create_directory_all(&path).map_err(stop)?;
    say(args.common.json, json!({ "url": args.url }), &args.url)
}

fn mv(args: &MvArgs) -> Result<(), Stop> {
    let (fs, from) = open(&args.url, &args.common.set)?;
    let to = location(&args.to)?;
    if from.authority != to.authority {
        let message = format!("'{}' and '{}' are in two file systems", args.url, args.to);
        return Err(Error::new(ErrorKind::Invalid, message).with_hint("copy it, and remove it here").into());
    }
    let replace = if args.replace { Replace::File } else { Replace::Never };
    fs.rename(&from.path, &to.path, replace).map_err(|e| match e.problem() {
        Some(Problem::Exists) if !args.replace => Stop::from(
            Error::new(
                ErrorKind::AlreadyExists,
                format!("cannot rename '{}': '{}' is there already", args.url, args.to),
            )
            .with_hint("--replace replaces a file"),
        ),
        _ => stop(e),
    })?;
    say(args.common.json, json!({ "from": args.url, "to": args.to, "copied_bytes": 0 }), &args.to)
}

fn rm(args: &RmArgs) -> Result<(), Stop> {
    let (fs, Location { path, .. }) = open(&args.url, &args.common.set)?;
    let removed = if args.recursive { fs.remove_all(&path) } else { fs.remove_file(&path) };
    removed.map_err(|e| match e.problem() {
        Some(Problem::IsADirectory) => {
            Stop::from(Error::from(e).with_hint("--recursive removes a directory with all that is in it"))
        }
        _ => stop(e),
    })?;
    say(args.common.json, json!({ "url": args.url }), &format!("{} is gone", args.url))
}

/// Checks a file system. Damage is an error, so that the exit code reports it too.
fn fsck(args: &FsckArgs) -> Result<(), Stop> {
    let (fs, Location { authority, path }) = open(&args.url, &args.common.set)?;
    refuse_path(&args.url, &path)?;
    let depth = match (args.deep, args.objects) {
        (true, _) => Depth::Bytes,
        (false, true) => Depth::Objects,
        (false, false) => Depth::Chunks,
    };
    let found = fs.check(depth).map_err(stop)?;
    let figures = json!({
        "url": authority.to_string(),
        "directories": found.directories,
        "files": found.files,
        "bytes": found.bytes,
        "unfinished": found.unfinished,
        "transactions": found.transactions,
        "damage": found.damage,
        "unknown_objects": found.unknown,
    });
    let mut text = format!(
        "directories {}, files {} of {}, left for the collector {}",
        units::count(found.directories),
        units::count(found.files),
        units::bytes(found.bytes),
        units::count(found.unfinished)
    );
    found.damage.iter().for_each(|damage| _ = write!(text, "\ndamaged: {damage}"));
    found.unknown.iter().for_each(|object| _ = write!(text, "\nnobody knows {object}"));
    say(args.common.json, figures, &text)?;
    if found.damage.is_empty() {
        return Ok(());
    }
    let problems = units::plural(found.damage.len() as u64, "problem");
    Err(Error::new(ErrorKind::Corrupt, format!("{problems} in {authority}"))
        .with_hint("see `ceph health detail`; what is damaged has to be written again")
        .into())
}

fn gc(args: &PathArgs) -> Result<(), Stop> {
    let (fs, Location { authority, path }) = open(&args.url, &args.common.set)?;
    refuse_path(&args.url, &path)?;
    let done = fs.collect().map_err(stop)?;
    let figures = json!({
        "url": authority.to_string(),
        "directories": done.directories,
        "condemned": done.condemned,
        "moves": done.moves,
        "transactions": done.transactions,
        "removed": done.removed,
        "waiting": done.waiting,
    });
    let text = format!(
        "{} removed, {} taken from writers that are gone, {} renames ended, {} not due yet",
        done.removed, done.condemned, done.moves, done.waiting
    );
    say(args.common.json, figures, &text)
}

fn bench(args: &RadosBenchArgs, terminal: &Terminal) -> Result<(), Stop> {
    refuse_path(&args.url, &location(&args.url)?.path)?;
    lab::rados::run(args, terminal, |options| Ok(open_with(&args.url, &args.common.set, options)?.0))
}

fn transactions(args: &PathArgs) -> Result<(), Stop> {
    let (fs, Location { path, .. }) = open(&args.url, &args.common.set)?;
    refuse_path(&args.url, &path)?;
    let mut out = io::BufWriter::new(io::stdout().lock());
    for status in fs.transactions().map_err(stop)? {
        match args.common.json {
            true => writeln!(out, "{}", status_as_json(&status))?,
            false => writeln!(out, "{}  {:<10}  {}", status.id, status.state, of_tasks(&status))?,
        }
    }
    Ok(out.flush()?)
}

fn show(args: &TxnArgs) -> Result<(), Stop> {
    let status = transaction(args)?.status().map_err(stop)?;
    let mut text = format!("{}\n  {}, {}", status.id, status.state, of_tasks(&status));
    if status.state == TransactionState::Pending {
        let _ = write!(text, "\n  may be aborted by others after {}", time(status.due_ms));
    }
    status.replaced.iter().for_each(|path| _ = write!(text, "\n  replaces {}", path.escape_debug()));
    let attempts = |(task, attempt): &(String, String)| {
        let _ = write!(text, "\n  task {}: attempt {}", task.escape_debug(), attempt.escape_debug());
    };
    status.committed.iter().for_each(attempts);
    say(args.common.json, status_as_json(&status), &text)
}

fn abort(args: &TxnArgs) -> Result<(), Stop> {
    let transaction = transaction(args)?;
    transaction.abort().map_err(stop)?;
    let id = transaction.id().to_string();
    say(
        args.common.json,
        json!({ "id": id, "state": TransactionState::Aborted.to_string() }),
        &format!("{id} is aborted"),
    )
}

fn transaction(args: &TxnArgs) -> Result<Transaction, Stop> {
    let id = Id::parse(&args.id)
        .ok_or_else(|| misuse(format!("'{}' is no id of a transaction: it has 32 hexadecimal digits", args.id)))?;
    let (fs, Location { path, .. }) = open(&args.url, &args.common.set)?;
    refuse_path(&args.url, &path)?;
    Ok(fs.transaction(id))
}

fn of_tasks(status: &TransactionStatus) -> String {
    let committed = units::plural(status.committed.len() as u64, "task");
    format!("{committed} committed, {} begun", units::plural(status.attempts, "attempt"))
}

fn status_as_json(status: &TransactionStatus) -> Value {
    let committed = status.committed.iter().map(|(task, attempt)| json!({ "task": task, "attempt": attempt }));
    json!({
        "id": status.id.to_string(),
        "state": status.state.to_string(),
        "due_ms": status.due_ms,
        "attempts": status.attempts,
        "committed": committed.collect::<Vec<_>>(),
        "replaced": status.replaced,
        "touched": status.touched,
        "schema_version": 1,
    })
}

fn location(url: &str) -> Result<Location, Stop> {
    Location::parse(url).map_err(|e| misuse(e.to_string()))
}

fn refuse_path(url: &str, path: &str) -> Result<(), Stop> {
    match path {
        "/" => Ok(()),
        _ => Err(misuse(format!("'{url}' has a path: a file system is named rados://POOL[.NAMESPACE]"))),
    }
}

fn misuse(message: String) -> Stop {
    Stop::Misuse(Error::new(ErrorKind::Invalid, message))
}

/// Connects to the cluster of the settings.
fn connect(set: &[(String, String)]) -> Result<Arc<Cluster>, Stop> {
    settings::effective(set)?;
    let options = DatabaseOptions { settings: set.to_vec(), ..DatabaseOptions::default() };
    let options = Database::memory(&options).and_then(|database| database.session()).map(|session| session.ceph())?;
    Cluster::connect(&options).map_err(stop)
}

fn open(url: &str, set: &[(String, String)]) -> Result<(FileSystem, Location), Stop> {
    open_with(url, set, FsOptions::default())
}

fn open_with(url: &str, set: &[(String, String)], options: FsOptions) -> Result<(FileSystem, Location), Stop> {
    let location = location(url)?;
    let (cluster, Authority { pool, namespace }) = (connect(set)?, &location.authority);
    let fs = FileSystem::open(&cluster, pool, namespace, options).map_err(|e| match e.code() {
        Some(rados::Code::NOT_FOUND) if matches!(e, rados::Error::Object { .. }) => {
            let message = format!("there is no file system in {}: {e}", location.authority);
            let hint = format!("onehop rados mkfs {} --data POOL", location.authority);
            Stop::from(Error::new(ErrorKind::NotFound, message).with_hint(hint))
        }
        _ => stop(e),
    })?;
    Ok((fs, location))
}

/// Converts an error of the cluster.
pub fn stop(e: rados::Error) -> Stop {
    Error::from(e).into()
}

/// Prints a result as JSON or as a line.
fn say(is_json: bool, mut figures: Value, text: &str) -> Result<(), Stop> {
    figures["schema_version"] = 1.into();
    let text = if is_json { format!("{figures:#}\n") } else { format!("{text}\n") };
    Ok(io::stdout().lock().write_all(text.as_bytes())?)
}

fn as_json(entry: &Entry) -> Value {
    json!({
        "name": entry.name,
        "kind": entry.kind.to_string(),
        "bytes": entry.len,
        "mtime_ms": entry.mtime_ms,
        "id": entry.id.to_string(),
        "schema_version": 1,
    })
}

/// Formats an entry. A name with control characters is escaped.
fn line(entry: &Entry) -> String {
    let slash = if entry.kind == Kind::Directory { "/" } else { "" };
    let name = match entry.name.chars().any(char::is_control) {
        true => entry.name.escape_debug().to_string(),
        false => entry.name.clone(),
    };
    format!("{:>16}  {}  {name}{slash}", entry.len, time(entry.mtime_ms))
}

/// Formats a time in UTC.
fn time(ms: u64) -> String {
    let at = i64::try_from(ms).ok().and_then(timestamp_ms_to_datetime);
    at.map_or_else(String::new, |at| at.format("%F %TZ").to_string())
}
