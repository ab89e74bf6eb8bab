//! Counters that survive crashes, and the cost of a commit: the changed page of a file, the changed
//! lines of memory.
//!
//! `cargo run --release --example counters -- /tmp/counters.store` (a file), or a path on
//! `/dev/shm` (mapped memory)

use onehop_store::{MediumKind, Options, Result, Store};

const COMMITS: u64 = 1000;

fn main() -> Result<()> {
    let path = std::env::args().nth(1).unwrap_or_else(|| "counters.store".into());
    let medium = if path.starts_with("/dev/shm") { MediumKind::Pmem } else { MediumKind::Auto };
    let store = Store::open(&path, &Options::default().medium(medium))?;
    let before = store.stats();
    for i in 0..COMMITS {
        let transaction = store.write()?;
        let mut counters = transaction.tree("counters")?;
        let key = (i % 10).to_be_bytes();
        let count = counters.get(key)?.map_or(0, |value| value.iter().rev().fold(0_u64, |n, b| n << 8 | u64::from(*b)));
        counters.insert(key, (count + 1).to_le_bytes())?;
        transaction.commit()?;
    }
    let after = store.stats();
    let per_commit = |what: fn(&onehop_store::Stats) -> u64| (what(&after) - what(&before)) as f64 / COMMITS as f64;
    println!("lines changed per commit: {:.2}", per_commit(|stats| stats.changed_lines));
    println!("bytes written per commit: {:.0}", per_commit(|stats| stats.backend.written_bytes));
    println!("lines flushed per commit: {:.2}", per_commit(|stats| stats.backend.flushes));
    println!("fences per commit:        {:.2}", per_commit(|stats| stats.backend.fences));
    Ok(())
}
