//! Commits of one key on a file, compared with the minimum of any store: one `pwrite` of 4,096
//! bytes and one `fdatasync`.
//!
//! ```text
//! cargo run --release -p onehop-store --example flip_commits -- [DIRECTORY [KEYS [SECONDS]]]
//! ```
//! Loads `KEYS` keys with values of 100 bytes. Then, for `SECONDS`, overwrites one at a time,
//! chosen uniformly, each durable before the next. All bytes count: checkpoints and superblocks
//! too. The baseline writes blocks of an allocated file of the same size in the same directory, one
//! after the other and at random. The example checks the values that it wrote, and exits with an
//! error if they are not there.

use std::error::Error;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use onehop_store::{Options, Store, medium};

const BLOCK_BYTES: usize = 4096;
const LOAD_BATCH: u64 = 10_000;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().unwrap_or_else(|| ".".into());
    let keys: u64 = arguments.next().map_or(Ok(1_000_000), |keys| keys.parse())?;
    let seconds: u64 = arguments.next().map_or(Ok(10), |seconds| seconds.parse())?;
    let directory = Path::new(&directory).join(format!("flip_commits-{}", std::process::id()));
    std::fs::create_dir(&directory)?;
    let done = compare(&directory, keys, Duration::from_secs(seconds));
    std::fs::remove_dir_all(&directory)?;
    done
}

fn compare(directory: &Path, keys: u64, duration: Duration) -> Result<(), Box<dyn Error>> {
    let path = directory.join("store");
    let store = Store::create_on(Arc::new(medium::File::create(&path)?), &Options::default())?;
    for from in (0..keys).step_by(LOAD_BATCH as usize) {
        let transaction = store.write()?;
        let mut tree = transaction.tree("numbers")?;
        for key in from..keys.min(from + LOAD_BATCH) {
            tree.insert(key_of(key), [0; 100])?;
        }
        drop(tree);
        transaction.commit()?;
    }
    store.checkpoint()?;
    println!("{keys} keys, a file of {} MiB, {} s each", path.metadata()?.len() >> 20, duration.as_secs());

    let bytes = path.metadata()?.len();
    raw("pwrite + fdatasync, ascending", &directory.join("raw"), bytes, duration, |i, blocks| i % blocks)?;
    raw("pwrite + fdatasync, at random", &directory.join("raw"), bytes, duration, |i, blocks| spread(i) % blocks)?;

    let (before, begin) = (store.stats(), Instant::now());
    let mut commits = 0_u64;
    while begin.elapsed() < duration {
        let key = spread(commits) % keys;
        let transaction = store.write()?;
        transaction.tree("numbers")?.insert(key_of(key), [commits as u8; 100])?;
        transaction.commit()?;
        commits += 1;
    }
    let (after, seconds) = (store.stats(), begin.elapsed().as_secs_f64());
    let per_commit = |after: u64, before: u64| (after - before) as f64 / commits as f64;
    println!(
        "{:<32} {:>8.0} /s  {:>6.0} bytes, {:.3} fences a commit; {} checkpoints",
        "store, one key a commit",
        commits as f64 / seconds,
        per_commit(after.backend.written_bytes, before.backend.written_bytes),
        per_commit(after.backend.fences, before.backend.fences),
        after.backend.checkpoints - before.backend.checkpoints,
    );
    // As if the process had ended.
    std::mem::forget(store);
    let begin = Instant::now();
    let store = Store::open_on(Arc::new(medium::File::open(&path)?), &Options::default())?;
    println!("opened again, not having been closed, in {:.1} ms", begin.elapsed().as_secs_f64() * 1e3);
    verify(&store, keys, commits)
}

/// Prints the number of blocks a second that the file system makes durable one by one.
fn raw(
    name: &str,
    path: &Path,
    bytes: u64,
    duration: Duration,
    block: impl Fn(u64, u64) -> u64,
) -> Result<(), Box<dyn Error>> {
    let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
    let blocks = bytes / BLOCK_BYTES as u64;
    if file.metadata()?.len() < bytes {
        for at in 0..blocks {
            file.write_all_at(&[1; BLOCK_BYTES], at * BLOCK_BYTES as u64)?;
        }
        file.sync_all()?;
    }
    let (begin, mut writes) = (Instant::now(), 0_u64);
    while begin.elapsed() < duration {
        file.write_all_at(&[writes as u8; BLOCK_BYTES], block(writes, blocks) * BLOCK_BYTES as u64)?;
        file.sync_data()?;
        writes += 1;
    }
    println!("{name:<32} {:>8.0} /s  {BLOCK_BYTES:>6} bytes", writes as f64 / begin.elapsed().as_secs_f64());
    Ok(())
}

/// Checks that each key has the value of its last commit.
fn verify(store: &Store, keys: u64, commits: u64) -> Result<(), Box<dyn Error>> {
    let mut expected = vec![0_u8; keys as usize];
    (0..commits).for_each(|commit| expected[(spread(commit) % keys) as usize] = commit as u8);
    let transaction = store.read()?;
    let tree = transaction.tree("numbers")?;
    for key in 0..keys {
        let value = tree.get(key_of(key))?.ok_or_else(|| format!("key {key} is not there"))?;
        if value[..] != [expected[key as usize]; 100] {
            return Err(format!("key {key} has a value that was not its last").into());
        }
    }
    println!("all {keys} values are the last ones");
    Ok(())
}

fn key_of(key: u64) -> [u8; 8] {
    key.to_be_bytes()
}

/// Returns pseudorandom numbers (`SplitMix64`).
fn spread(i: u64) -> u64 {
    let x = i.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}
