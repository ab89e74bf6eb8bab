//! The points that lists of values make, and how each is measured.

use std::ops::ControlFlow;

use super::{Effort, Files, Gpu, Measured, Point, Rw, Way, measure};

/// Every value is combined with every other.
#[derive(Clone, Debug)]
pub struct Sweep {
    /// What is done.
    pub rw: Vec<Rw>,
    /// By which ways.
    pub ways: Vec<Way>,
    /// Bytes of a transfer.
    pub block_bytes: Vec<usize>,
    /// Transfers in flight of each job.
    pub depths: Vec<usize>,
    /// Threads.
    pub jobs: Vec<usize>,
}

impl Sweep {
    /// The points in the order in which they are measured: what is compared most often, the ways, side by side. A way
    /// that has one transfer in flight at a time has one depth, whatever was asked for.
    pub fn points(&self) -> Vec<Point> {
        let mut points: Vec<Point> = Vec::new();
        for &rw in &self.rw {
            for &block_bytes in &self.block_bytes {
                for &jobs in &self.jobs {
                    for &way in &self.ways {
                        for &depth in &self.depths {
                            let depth = if way.has_depth() { depth } else { 1 };
                            let point = Point { rw, way, block_bytes, depth, jobs };
                            if !points.contains(&point) {
                                points.push(point);
                            }
                        }
                    }
                }
            }
        }
        points
    }
}

/// Measures a point `repeats` times; its figures are those of the repeat with the median rate. `watch` may stop it: then
/// there is `None`.
///
/// # Errors
/// Those of [`measure`].
pub fn repeat(
    files: &Files,
    gpu: &Result<Gpu, String>,
    point: Point,
    effort: &Effort,
    repeats: usize,
    watch: &mut dyn FnMut() -> ControlFlow<()>,
) -> onehop_io::Result<Option<Measured>> {
    let mut all = Vec::with_capacity(repeats);
    for number in 0..repeats.max(1) {
        // Other blocks in each, so that a repeat does not find what the one before has left in some cache.
        let effort = Effort { seed: effort.seed.wrapping_add(number as u64), ..*effort };
        match measure(files, gpu, point, &effort, watch)? {
            Some(figures) => all.push(figures),
            None => return Ok(None),
        }
    }
    Ok(Measured::of(all, files.first().memory_kind()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_meets_every_other_once() {
        let sweep = Sweep {
            rw: vec![Rw::Read, Rw::RandWrite],
            ways: vec![Way::Host, Way::Uring],
            block_bytes: vec![4096, 8192, 4096],
            depths: vec![1, 8],
            jobs: vec![1, 2],
        };
        // Host has one depth, uring two; a block size that is there twice counts once.
        let points = sweep.points();
        assert_eq!(points.len(), 2 * (1 + 2) * 2 * 2);
        assert_eq!((points[0].way, points[1].way, points[2].depth), (Way::Host, Way::Uring, 8));
    }
}
