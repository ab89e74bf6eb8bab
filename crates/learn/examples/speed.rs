//! The cost of a pass, and of a whole fit: `speed [rows] [threads] [labels]`, labels `noisy` or
//! `separable`.
//!
//! The rows are those of `onehop bench logreg`, in memory; `bench/peers/logreg.py` makes the same
//! ones with NumPy.

use std::time::Instant;

use onehop_learn::logistic::{Irls, Next, Options};
use onehop_learn::{CHUNK_ROWS, Chunk, Extents, Intercept};

const FEATURES: usize = 4;
const MODEL: [f64; FEATURES + 1] = [1.0, 2.0, -3.0, 1.0, 0.5];

/// Returns the n-th number of SplitMix64, between 0 and 1.
fn uniform(n: u64) -> f64 {
    let mut z = n.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

fn chunk(first: usize, rows: usize, is_noisy: bool) -> Chunk {
    let value = |row: usize, column: usize| uniform((row * (FEATURES + 1) + column) as u64);
    let mut columns: Vec<Vec<f64>> =
        (0..FEATURES).map(|column| (first..first + rows).map(|row| 2.0 * value(row, column) - 1.0).collect()).collect();
    let label = |row: usize| {
        let eta = (0..FEATURES).fold(MODEL[0], |eta, n| eta + MODEL[n + 1] * columns[n][row - first]);
        let is_one = match is_noisy {
            true => value(row, FEATURES) < 1.0 / (1.0 + (-eta).exp()),
            false => eta > 0.0,
        };
        f64::from(u8::from(is_one))
    };
    let labels = (first..first + rows).map(label).collect();
    columns.push(labels);
    Chunk::of_columns(&columns.iter().map(Vec::as_slice).collect::<Vec<_>>())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let rows: usize = args.next().map_or(Ok(10_000_000), |text| text.parse())?;
    let threads: usize = args.next().map_or(Ok(2), |text| text.parse())?;
    let is_noisy = args.next().is_none_or(|labels| labels == "noisy");
    let chunks: Vec<Chunk> =
        (0..rows).step_by(CHUNK_ROWS).map(|first| chunk(first, CHUNK_ROWS.min(rows - first), is_noisy)).collect();
    for _ in 0..3 {
        let started = Instant::now();
        let mut extents = Extents::new(FEATURES);
        chunks.iter().for_each(|chunk| extents.merge(&Extents::of(chunk)));
        let known = started.elapsed();
        let mut irls = Irls::new(&extents, Intercept::Fitted, Options::default())?;
        let mut passes = 0;
        let fit = loop {
            passes += 1;
            let mut total = irls.pass();
            let parts = std::thread::scope(|scope| {
                let chunks = &chunks;
                let workers: Vec<_> = (0..threads)
                    .map(|first| {
                        let mut pass = irls.pass();
                        scope.spawn(move || {
                            chunks.iter().skip(first).step_by(threads).for_each(|chunk| pass.add(chunk));
                            pass
                        })
                    })
                    .collect();
                workers.into_iter().map(|worker| worker.join()).collect::<Vec<_>>()
            });
            for part in parts.into_iter().flatten() {
                total.merge(&part);
            }
            if let Next::Done(fit) = irls.step(&total) {
                break fit;
            }
        };
        let seconds = started.elapsed().as_secs_f64();
        println!(
            "{rows} rows, {threads} threads: {seconds:.3} s ({:.3} s for means), {passes} passes, {:.1} ms each, {:.0} M rows/s",
            known.as_secs_f64(),
            (seconds - known.as_secs_f64()) / f64::from(passes) * 1e3,
            rows as f64 * f64::from(passes) / (seconds - known.as_secs_f64()) / 1e6
        );
        println!("log-likelihood {:?}, {:?}, {:?}", fit.log_likelihood, fit.converged, fit.warnings);
        println!("{:?} {:?}", fit.intercept, fit.terms.iter().map(|term| term.coefficient).collect::<Vec<_>>());
    }
    Ok(())
}
