//! The equivalent command of gdsio, NVIDIA's own benchmark of cuFile.
//!
//! gdsio overwrites the whole file that it writes to, the header included, so writes have a file of
//! their own beside ours. It has no ramp, and whole seconds.

use std::path::Path;

use super::{Effort, Point, Rw, Way};

/// Returns the words of a command that measures a point of a file of this size with this GPU.
///
/// # Errors
/// Returns the reason if gdsio has no equivalent.
pub fn command(
    point: &Point,
    effort: &Effort,
    file: &Path,
    file_bytes: u64,
    gpu: usize,
) -> Result<Vec<String>, &'static str> {
    use onehop_cuda::Way as Device;
    let (transfer, workers) = match point.way {
        Way::Device(Device::CufileSync) => (0, point.jobs),
        Way::Host => (1, point.jobs),
        Way::Device(Device::Staged | Device::StagedPread) => (2, point.depth * point.jobs),
        Way::Device(Device::CufileAsync) => (5, point.depth * point.jobs),
        // The threads of a batch are its entries.
        Way::Device(Device::CufileBatchWait) if point.jobs == 1 => (6, point.depth),
        Way::Device(Device::CufileBatchWait) => return Err("gdsio has one job with batches"),
        Way::Device(Device::CufileBatch | Device::CufileBatchSlots) => {
            return Err("gdsio waits for all of a batch: cufile-batch-wait is the same");
        }
        Way::Buffered | Way::Uring | Way::UringBuffered => return Err("gdsio has no such path; --emit fio has"),
    };
    let pattern = match point.rw {
        Rw::Read => 0,
        Rw::Write => 1,
        Rw::RandRead => 2,
        Rw::RandWrite => 3,
    };
    let mut name = file.display().to_string();
    if point.rw.writes() {
        name += ".gdsio";
    }
    let seconds = effort.runtime.as_secs_f64().ceil().max(1.0);
    let kib = |bytes: u64| format!("{}K", (bytes / 1024).max(4));
    let mut words = vec!["gdsio".into(), "-f".into(), name];
    for (flag, value) in [
        ("-d", gpu.to_string()),
        ("-w", workers.to_string()),
        ("-s", kib(file_bytes)),
        ("-i", kib(point.block_bytes as u64)),
        ("-x", transfer.to_string()),
        ("-I", pattern.to_string()),
        ("-T", seconds.to_string()),
    ] {
        words.extend([flag.to_string(), value]);
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn line(rw: Rw, way: &str, depth: usize, jobs: usize) -> Result<String, &'static str> {
        let way = Way::of_name(way).ok_or("no such way")?;
        let point = Point { rw, way, block_bytes: 1 << 20, depth, jobs };
        let effort =
            Effort { runtime: Duration::from_millis(2500), ramp: Duration::ZERO, seed: 7, verify: false, touch: false };
        Ok(command(&point, &effort, Path::new("/data/f"), 1 << 30, 2)?.join(" "))
    }

    #[test]
    fn ways_have_its_numbers() {
        let said = line(Rw::Read, "cufile-sync", 1, 4);
        assert_eq!(said.as_deref(), Ok("gdsio -f /data/f -d 2 -w 4 -s 1048576K -i 1024K -x 0 -I 0 -T 3"));
        let said = line(Rw::RandWrite, "cufile-batch-wait", 32, 1);
        assert_eq!(said.as_deref(), Ok("gdsio -f /data/f.gdsio -d 2 -w 32 -s 1048576K -i 1024K -x 6 -I 3 -T 3"));
        assert!(
            line(Rw::Read, "cufile-async", 8, 1).is_ok_and(|said| said.contains(" -w 8 ") && said.contains("-x 5"))
        );
        assert!(line(Rw::Read, "cufile-batch", 8, 1).is_err_and(|why| why.contains("cufile-batch-wait")));
        assert!(line(Rw::Read, "uring", 8, 1).is_err_and(|why| why.contains("--emit fio")));
    }
}
