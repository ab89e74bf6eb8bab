//! Estimates the time of a subtree on the CPU and on devices.
//!
//! ```text
//! CPU      stored bytes / (measured rate of a thread x threads)
//! device   launches + bytes to be moved / rate to the device + stored bytes / copy rate
//!          + compiling / COMPILED_FOR
//! devices  the slowest of them + JOINING for each
//! ```
//! Both read the same from storage, so that reading is omitted. All queries of the same shape share
//! a kernel, so one query bears a fraction of its compile time. Summing overlapping stages
//! overestimates the device. The estimate thus favours the CPU, which depends on no driver.

use std::time::Duration;

use onehop_pipeline::backend::{Estimate, Rates};

/// The number of queries that are expected to share a shape.
const COMPILED_FOR: u32 = 10;

/// The overhead of each of several devices: a thread, and merging its answer.
const JOINING: Duration = Duration::from_micros(100);

/// The estimated time of a subtree.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Cost {
    pub cpu: Duration,
    pub device: Duration,
    pub estimate: Estimate,
    /// Bytes that are not on the device yet, but are moved once and stay there.
    pub kept_bytes: u64,
}

/// Returns the cost of a program of `pipelines` pipelines that reads `reads` stored bytes, with
/// `threads` threads that process `cpu_rate` bytes per second each.
pub(super) fn of(
    estimate: &Estimate,
    rates: &Rates,
    pipelines: usize,
    reads: u64,
    cpu_rate: f64,
    threads: usize,
) -> Cost {
    let moved = estimate.read_bytes.saturating_sub(estimate.resident_bytes);
    let device = rates.launch.as_secs_f64() * pipelines as f64
        + seconds(moved, rates.to_device_bytes_per_sec)
        + seconds(estimate.read_bytes, rates.copy_bytes_per_sec)
        + rates.compile.as_secs_f64() * estimate.to_compile as f64 / f64::from(COMPILED_FOR);
    Cost { cpu: on_cpu(reads, cpu_rate, threads), device: duration(device), estimate: *estimate, kept_bytes: 0 }
}

/// Returns the cost on several devices that each run a part: the time of the slowest, and the
/// merge. Each device has its own bus.
pub(super) fn together(each: &[Cost], estimate: &Estimate) -> Cost {
    let last = each.iter().map(|cost| cost.device).max().unwrap_or(Duration::MAX);
    let joining = JOINING * u32::try_from(each.len()).unwrap_or(u32::MAX);
    let cpu = each.first().map_or(Duration::MAX, |cost| cost.cpu);
    let kept_bytes = each.iter().map(|cost| cost.kept_bytes).sum();
    Cost { cpu, device: last.saturating_add(joining), estimate: *estimate, kept_bytes }
}

/// Returns the time of `threads` threads of the CPU for `reads` stored bytes.
pub(super) fn on_cpu(reads: u64, cpu_rate: f64, threads: usize) -> Duration {
    duration(seconds(reads, cpu_rate * threads.max(1) as f64))
}

/// Returns the time in seconds; `f64::MAX` at rate 0.
fn seconds(bytes: u64, rate: f64) -> f64 {
    if rate > 0.0 { bytes as f64 / rate } else { f64::MAX }
}

fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATES: Rates = Rates {
        copy_bytes_per_sec: 4e12,
        to_device_bytes_per_sec: 50e9,
        to_host_bytes_per_sec: 50e9,
        launch: Duration::from_micros(50),
        compile: Duration::from_millis(200),
    };

    fn cost(bytes: u64, resident: u64, to_compile: usize) -> Cost {
        let estimate = Estimate { read_bytes: bytes, resident_bytes: resident, to_compile };
        of(&estimate, &RATES, 2, bytes, 5e9, 16)
    }

    #[test]
    fn what_is_resident_is_the_devices_and_what_is_small_the_cpus() {
        for (bytes, resident, to_compile, is_device) in [
            (10 << 30, 10 << 30, 0, true),
            (10 << 30, 10 << 30, 4, true),
            // The bus delivers no faster than the processor processes.
            (10 << 30, 0, 0, false),
            (1 << 20, 1 << 20, 0, false),
            (1 << 30, 1 << 30, 0, true),
            // Compiling a kernel only pays for large queries.
            (1 << 30, 1 << 30, 2, false),
        ] {
            let cost = cost(bytes, resident, to_compile);
            assert_eq!(cost.device < cost.cpu, is_device, "{bytes} {resident} {to_compile}: {cost:?}");
        }
    }

    #[test]
    fn several_devices_are_for_what_is_large() {
        for (bytes, is_spread) in [(1 << 20, false), (100 << 20, false), (10 << 30, true)] {
            let whole = cost(bytes, bytes, 0);
            let half = cost(bytes / 2, bytes / 2, 0);
            let both = together(&[half, half], &whole.estimate);
            assert_eq!(both.device < whole.device, is_spread, "{bytes}: {both:?} {whole:?}");
            assert_eq!(both.estimate, whole.estimate);
        }
        assert_eq!(together(&[], &Estimate::default()).device, Duration::MAX);
    }

    #[test]
    fn a_device_without_rates_is_never_chosen() {
        let none = Rates { copy_bytes_per_sec: 0.0, ..RATES };
        let estimate = Estimate { read_bytes: 1 << 40, resident_bytes: 1 << 40, to_compile: 0 };
        let cost = of(&estimate, &none, 1, 1 << 40, 5e9, 1);
        assert!(cost.device > cost.cpu && cost.device == Duration::MAX, "{cost:?}");
    }
}
