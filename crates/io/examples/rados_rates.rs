//! What the file layer does with a cluster, beside what `rados bench` does with it, by turns.
//!
//!     cargo run --release -p onehop-io --example rados_rates -- ceph.conf META_POOL DATA_POOL [MIB_PER_FILE] [FILES] [ROUNDS]
//!
//! Rates are MiB/s. What was read is compared with what was written. Everything is removed again.

use std::error::Error;
use std::io::Read;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use onehop_io::rados::fs::{FsOptions, Replace};
use onehop_io::rados::{Cluster, ClusterOptions, FileSystem};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const USAGE: &str = "rados_rates CONF META_POOL DATA_POOL [MIB_PER_FILE] [FILES] [ROUNDS]";
/// Requests in flight, here and in `rados bench`.
const IN_FLIGHT: usize = 4;

struct Settings {
    conf: PathBuf,
    meta: String,
    data: String,
    file_bytes: usize,
    files: usize,
    rounds: usize,
}

fn settings() -> Result<Settings> {
    let mut args = std::env::args().skip(1);
    let mut next = || args.next();
    let (conf, meta, data) = (next().ok_or(USAGE)?, next().ok_or(USAGE)?, next().ok_or(USAGE)?);
    let mut number = |or: usize| next().map_or(Ok(or), |text| text.parse());
    let (mib, files, rounds) = (number(128)?, number(4)?, number(3)?);
    Ok(Settings { conf: conf.into(), meta, data, file_bytes: mib << 20, files, rounds })
}

fn main() -> Result<()> {
    let settings = settings()?;
    let cluster = Cluster::connect(&ClusterOptions { conf: Some(settings.conf.clone()), ..Default::default() })?;
    let space = format!("rates-{}", std::process::id());
    let chunk_bytes = FsOptions::default().chunk_bytes;
    let window_bytes = IN_FLIGHT * chunk_bytes as usize;
    let options =
        FsOptions { grace: Duration::ZERO, window_bytes, read_ahead_bytes: window_bytes, ..FsOptions::default() };
    let fs = FileSystem::create(&cluster, &settings.meta, &settings.data, &space, options)?;
    println!(
        "files of {} MiB, {} a round; chunks of {} MiB, {IN_FLIGHT} in flight",
        settings.file_bytes >> 20,
        settings.files,
        chunk_bytes >> 20
    );
    println!("{:>5}  {:>14} {:>14}  {:>14} {:>14}", "round", "bench write", "write", "bench read", "read");
    for round in 0..settings.rounds {
        let write =
            |bench: bool| if bench { bench_rate(&settings, chunk_bytes, "write") } else { write_files(&fs, &settings) };
        let read =
            |bench: bool| if bench { bench_rate(&settings, chunk_bytes, "seq") } else { read_files(&fs, &settings) };
        // Who is first changes: the one after finds the other's work still on its way to the disk.
        let first = round % 2 == 0;
        let (one, other) = (write(first)?, write(!first)?);
        let (third, fourth) = (read(first)?, read(!first)?);
        let in_order = |a, b| if first { (a, b) } else { (b, a) };
        let ((bench_write, our_write), (bench_read, our_read)) = (in_order(one, other), in_order(third, fourth));
        println!("{round:>5}  {bench_write:>14.1} {our_write:>14.1}  {bench_read:>14.1} {our_read:>14.1}");
        fs.remove_all("/files")?;
        fs.collect()?;
        bench(&settings, &["cleanup", "--run-name", "onehop"])?;
    }
    names(&fs)
}

/// Bytes that do not compress.
fn content(len: usize) -> Vec<u8> {
    let mut x = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        bytes.extend(x.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

fn rate(bytes: usize, begin: Instant) -> f64 {
    bytes as f64 / f64::from(1 << 20) / begin.elapsed().as_secs_f64()
}

fn write_files(fs: &FileSystem, settings: &Settings) -> Result<f64> {
    fs.create_directory_all("/files")?;
    // A few megabytes again and again: making them must not be what is measured.
    let piece = content(1 << 20);
    let begin = Instant::now();
    for n in 0..settings.files {
        let mut writer = fs.create_file(&format!("/files/{n}"), Replace::Never, Arc::default())?;
        let mut left = settings.file_bytes;
        while left > 0 {
            let now = left.min(piece.len());
            writer.append(&piece[..now])?;
            left -= now;
        }
        writer.close()?;
    }
    Ok(rate(settings.files * settings.file_bytes, begin))
}

fn read_files(fs: &FileSystem, settings: &Settings) -> Result<f64> {
    let piece = content(1 << 20);
    let mut buf = vec![0; piece.len()];
    let begin = Instant::now();
    for n in 0..settings.files {
        let mut reader = fs.open_file(&format!("/files/{n}"))?.reader(0..u64::MAX, Arc::default());
        let mut left = settings.file_bytes;
        while left > 0 {
            let now = left.min(buf.len());
            reader.read_exact(&mut buf[..now])?;
            if buf[..now] != piece[..now] {
                return Err("what was read is not what was written".into());
            }
            left -= now;
        }
    }
    Ok(rate(settings.files * settings.file_bytes, begin))
}

fn bench(settings: &Settings, args: &[&str]) -> Result<String> {
    let output =
        Command::new("rados").arg("-c").arg(&settings.conf).args(["-p", &settings.data]).args(args).output()?;
    if !output.status.success() {
        return Err(format!("rados {args:?}: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// Rate of `rados bench`, as many bytes as ours, or for five seconds.
fn bench_rate(settings: &Settings, chunk_bytes: u32, what: &str) -> Result<f64> {
    let (bytes, in_flight) = (chunk_bytes.to_string(), IN_FLIGHT.to_string());
    let objects = (settings.files * settings.file_bytes / chunk_bytes as usize).to_string();
    let mut args = vec!["bench", "60", what, "-t", &in_flight, "--run-name", "onehop"];
    if what == "write" {
        args.extend(["-b", &bytes, "-O", &bytes, "--max-objects", &objects, "--no-cleanup"]);
    }
    let said = bench(settings, &args)?;
    let line = said.lines().find_map(|line| line.strip_prefix("Bandwidth (MB/sec):"));
    Ok(line.ok_or("rados bench has said no bandwidth")?.trim().parse()?)
}

/// Names: what does not depend on bytes.
fn names(fs: &FileSystem) -> Result<()> {
    const FILES: usize = 10_000;
    const WRITERS: usize = 16;
    fs.create_directory_all("/names/many")?;
    fs.create_directory("/elsewhere")?;
    let begin = Instant::now();
    std::thread::scope(|scope| {
        let write = |part: usize| {
            scope.spawn(move || -> std::result::Result<(), onehop_io::rados::Error> {
                for n in (part..FILES).step_by(WRITERS) {
                    fs.create_file(&format!("/names/many/{n:05}"), Replace::Never, Arc::default())?.close()?;
                }
                Ok(())
            })
        };
        let threads: Vec<_> = (0..WRITERS).map(write).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().map_err(|_| "a writer has panicked")?.map_err(Box::<dyn Error>::from))
    })?;
    println!("{FILES} empty files by {WRITERS} threads: {:.2} s", begin.elapsed().as_secs_f64());
    let mut listed = Vec::new();
    for _ in 0..5 {
        let begin = Instant::now();
        if fs.list("/names/many")?.len() != FILES {
            return Err("a file is missing".into());
        }
        listed.push(begin.elapsed().as_secs_f64() * 1e3);
    }
    println!("list and stat {FILES} files: {} ms", spread(&mut listed));
    let (mut here, mut over) = (Vec::new(), Vec::new());
    for n in 0..10 {
        let (from, to) = if n % 2 == 0 { ("/names/many", "/names/more") } else { ("/names/more", "/names/many") };
        let begin = Instant::now();
        fs.rename(from, to, Replace::Never)?;
        here.push(begin.elapsed().as_secs_f64() * 1e3);
        let (from, to) = (to, "/elsewhere/here");
        let begin = Instant::now();
        fs.rename(from, to, Replace::Never)?;
        over.push(begin.elapsed().as_secs_f64() * 1e3);
        fs.rename(to, from, Replace::Never)?;
    }
    println!(
        "rename a directory of {FILES} files here: {} ms; into another directory: {} ms",
        spread(&mut here),
        spread(&mut over)
    );
    let begin = Instant::now();
    fs.remove_all("/names")?;
    println!("remove it: {:.1} ms", begin.elapsed().as_secs_f64() * 1e3);
    let begin = Instant::now();
    fs.collect()?;
    println!("collect it: {:.2} s", begin.elapsed().as_secs_f64());
    Ok(())
}

/// Least, median, greatest.
fn spread(values: &mut [f64]) -> String {
    values.sort_by(f64::total_cmp);
    let (Some(least), Some(greatest)) = (values.first(), values.last()) else { return String::new() };
    format!("{least:.1} / {:.1} / {greatest:.1}", values[values.len() / 2])
}
