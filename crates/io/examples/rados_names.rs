//! How long a cluster takes for what does not depend on bytes: names. How fast bytes come and go is what `onehop rados bench` says.
//!
//!     cargo run --release -p onehop-io --example rados_names -- ceph.conf META_POOL DATA_POOL [FILES]
//!
//! Everything is removed again.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use onehop_io::rados::fs::{FsOptions, Replace};
use onehop_io::rados::{Cluster, ClusterOptions, FileSystem};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const USAGE: &str = "rados_names CONF META_POOL DATA_POOL [FILES]";
const WRITERS: usize = 16;

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let mut next = || args.next();
    let (conf, meta, data) = (next().ok_or(USAGE)?, next().ok_or(USAGE)?, next().ok_or(USAGE)?);
    let files = next().map_or(Ok(10_000), |text| text.parse())?;
    let cluster = Cluster::connect(&ClusterOptions { conf: Some(conf.into()), ..Default::default() })?;
    let space = format!("names-{}", std::process::id());
    let options = FsOptions { grace: Duration::ZERO, ..FsOptions::default() };
    names(&FileSystem::create(&cluster, &meta, &data, &space, options)?, files)
}

fn names(fs: &FileSystem, files: usize) -> Result<()> {
    fs.create_directory_all("/names/many")?;
    fs.create_directory("/elsewhere")?;
    let begin = Instant::now();
    std::thread::scope(|scope| {
        let write = |part: usize| {
            scope.spawn(move || -> std::result::Result<(), onehop_io::rados::Error> {
                for n in (part..files).step_by(WRITERS) {
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
    println!("{files} empty files by {WRITERS} threads: {:.2} s", begin.elapsed().as_secs_f64());
    let mut listed = Vec::new();
    for _ in 0..5 {
        let begin = Instant::now();
        if fs.list("/names/many")?.len() != files {
            return Err("a file is missing".into());
        }
        listed.push(begin.elapsed().as_secs_f64() * 1e3);
    }
    println!("list and stat {files} files: {} ms", spread(&mut listed));
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
        "rename a directory of {files} files here: {} ms; into another directory: {} ms",
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
