//! The points of combined lists of values, and their measurement.

use std::ops::ControlFlow;

use super::{Effort, Files, Gpu, Measured, Point, Rw, Way, measure};

/// Lists of values. Every value is combined with every other.
#[derive(Clone, Debug)]
pub struct Sweep {
    /// The access patterns.
    pub rw: Vec<Rw>,
    /// The requested paths.
    pub ways: Vec<Way>,
    /// The sizes of a transfer, in bytes.
    pub block_bytes: Vec<usize>,
    /// The numbers of transfers in flight of each job.
    pub depths: Vec<usize>,
    /// The numbers of threads.
    pub jobs: Vec<usize>,
}

impl Sweep {
    /// Returns the points in the order of measurement: paths, which are compared most often, are
    /// adjacent. A path with one transfer in flight at a time has one depth, regardless of the
    /// requested ones.
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

/// Measures a point `repeats` times. Its figures are those of the repeat with the median rate.
/// `watch` may stop the measurement; the result is then `None`.
///
/// # Errors
/// Returns those of [`measure`].
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
        // Each repeat has other blocks, so that it does not find data cached by the one before.
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
        // Host has one depth, uring two; a duplicate block size counts once.
        let points = sweep.points();
        assert_eq!(points.len(), 2 * (1 + 2) * 2 * 2);
        assert_eq!((points[0].way, points[1].way, points[2].depth), (Way::Host, Way::Uring, 8));
    }
}
