//! Checks the queues on a machine with a GPU: every way, byte for byte, with the conformance suite
//! of all queues.
//!
//! ```text
//! cargo run -p onehop-cuda --example device_checks -- DIR [--gpu N] [--only WAY,...]
//! ```
//!
//! Creates a folder of its own in DIR, and removes it. Prints the number of passed checks for each
//! way and, for cuFile, the observed path. Exits with 1 if any check failed, and with 2 if there is
//! no device to run on: a skipped check has not passed. `make test-gpu` runs it, also under
//! compute-sanitizer; `onehop bench io` measures.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path as FsPath, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use onehop_cuda::cufile::Counting;
use onehop_cuda::queue::conformance::{Writes, check_queues};
use onehop_cuda::queue::{DeviceFile, Ring};
use onehop_cuda::{Context, Cufile, Driver, Verdict, Way};
use onehop_io::{Ledger, LocalFile, Path, RequestedPath};

/// Small, so that transfers have several parts.
const RING: Ring = Ring { buffers: 3, buffer_bytes: 16 << 10 };

fn main() -> ExitCode {
    let outcome = Options::parse(std::env::args().skip(1)).and_then(|options| run(&options));
    match outcome {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("device_checks: {why}");
            ExitCode::from(2)
        }
    }
}

struct Options {
    folder: PathBuf,
    gpu: usize,
    only: Vec<String>,
}

impl Options {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self { folder: PathBuf::new(), gpu: 0, only: Vec::new() };
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} needs a value"));
            match word.as_str() {
                "--gpu" => options.gpu = value()?.parse().map_err(|_| "--gpu takes a number".to_string())?,
                "--only" => options.only = value()?.split(',').map(String::from).collect(),
                dir if !dir.starts_with('-') && options.folder.as_os_str().is_empty() => options.folder = dir.into(),
                other => return Err(format!("what is {other}? DIR [--gpu N] [--only WAY,...]")),
            }
        }
        match options.folder.is_dir() {
            true => Ok(options),
            false => Err("name a directory on the storage that is to be read from".into()),
        }
    }
}

/// A folder that is removed when this is dropped.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn said(e: &onehop_cuda::Error) -> String {
    e.cure().map_or(e.to_string(), |cure| format!("{e}\n  fix: {cure}"))
}

/// Runs the checks, and returns the number of ways that failed.
fn run(options: &Options) -> Result<usize, String> {
    let devices = Driver::load().and_then(|driver| driver.devices()).map_err(|e| said(&e))?;
    let device = devices.get(options.gpu).ok_or("the driver lists no such device")?;
    let context = device.context().map_err(|e| said(&e))?;
    println!("gpu     {} at {}", device.name, device.pci);
    let cufile = Cufile::open(&context, Counting::On).map_err(|e| said(&e));
    println!("cufile  {}", cufile.as_ref().map_or_else(|why| format!("no: {why}"), |cufile| cufile.describe()));
    let scratch = Scratch(options.folder.join(format!(".onehop-device-checks-{}", std::process::id())));
    std::fs::create_dir(&scratch.0).map_err(|e| format!("{}: {e}", scratch.0.display()))?;

    let (mut passed, mut failed) = (0, 0);
    for (name, way) in
        Way::ALL.into_iter().filter(|(name, _)| options.only.is_empty() || options.only.iter().any(|only| only == name))
    {
        for (path, requested) in
            [("past the page cache", RequestedPath::HostDirect), ("through it", RequestedPath::Buffered)]
        {
            let head = format!("{name:<18} {path:<19}");
            match check(way, requested, &context, &cufile, &scratch.0) {
                Ok((checks, verdict)) => {
                    passed += checks;
                    println!("{head}  {checks} passed  {verdict}");
                }
                Err(why) => {
                    failed += 1;
                    println!("{head}  FAILED  {why}");
                }
            }
        }
    }
    println!("device checks: {passed} passed, {failed} failed");
    Ok(failed)
}

/// Checks one way. Returns the number of passed checks and the observed path.
fn check(
    way: Way,
    requested: RequestedPath,
    context: &Arc<Context>,
    cufile: &Result<Arc<Cufile>, String>,
    folder: &FsPath,
) -> Result<(usize, Verdict), String> {
    let cufile = match (way.is_cufile(), cufile) {
        (false, _) => None,
        (true, Ok(cufile)) => Some(cufile),
        (true, Err(why)) => return Err(why.clone()),
    };
    let before = cufile.map(|cufile| cufile.counts());
    let path = if requested == RequestedPath::HostDirect { Path::HostDirect } else { Path::Buffered };
    let writes = Writes::of(way, path);
    let open = |path: &FsPath, depth| {
        let local = LocalFile::open_for_update(path, requested).map_err(std::io::Error::other)?;
        let file = DeviceFile::open(way, &Arc::new(local), cufile)?;
        way.queue(context, &file, depth, RING, Arc::new(Ledger::default()))
    };
    let checks = catch_unwind(AssertUnwindSafe(|| check_queues(context, folder, writes, &open)));
    let checks = checks.map_err(|panic| match panic.downcast_ref::<String>() {
        Some(text) => text.clone(),
        None => panic.downcast_ref::<&str>().unwrap_or(&"a panic without words").to_string(),
    })?;
    let verdict = match (cufile, &before) {
        (Some(cufile), Some(before)) => cufile.verdict(before),
        _ => Verdict::staged(),
    };
    Ok((checks, verdict))
}
