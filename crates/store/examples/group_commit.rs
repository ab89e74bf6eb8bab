//! Many threads commit at the same time, and share the waits for the device.
//!
//! `cargo run --release --example group_commit -- /var/tmp/group.store`

use std::time::Instant;

use onehop_store::{Options, Result, Store};

const COMMITS: u64 = 800;

fn main() -> Result<()> {
    let path = std::env::args().nth(1).unwrap_or_else(|| "group.store".into());
    let store = Store::open(&path, &Options::default())?;
    for threads in [1, 2, 4, 8, 16] {
        let before = store.stats();
        let began = Instant::now();
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads)
                .map(|worker| {
                    let store = &store;
                    scope.spawn(move || work(store, worker, threads))
                })
                .collect();
            workers.into_iter().try_for_each(|worker| match worker.join() {
                Ok(done) => done,
                Err(panic) => std::panic::resume_unwind(panic),
            })
        })?;
        let after = store.stats();
        println!(
            "{threads:2} threads: {:6.0} commits a second, {:.1} transactions a batch",
            COMMITS as f64 / began.elapsed().as_secs_f64(),
            (after.transactions - before.transactions) as f64 / (after.batches - before.batches) as f64
        );
    }
    Ok(())
}

fn work(store: &Store, worker: u64, workers: u64) -> Result<()> {
    for i in 0..COMMITS / workers {
        let transaction = store.write()?;
        transaction.tree("t")?.insert((worker << 32 | i).to_be_bytes(), "value")?;
        transaction.commit()?;
    }
    Ok(())
}
