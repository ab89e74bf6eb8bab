//! Conformance checks for queues of device buffers: a function that panics on a violation. The
//! tests here run it over host memory, `examples/device_checks.rs` over a GPU.

use std::fs;
use std::io;
use std::path::Path as FsPath;
use std::sync::Arc;

use onehop_io::{Advance, Direction, PAGE_BYTES, Path, Queue, Transfer};

use super::Way;
use crate::{Context, DeviceBuf};

/// Initial content of buffers that are read into.
const POISON: u8 = 0xee;

/// Offset of the transfers in their buffers.
const SKIP: usize = 4096;

/// Opens a queue of a file, for a number of concurrent transfers.
pub type Open<'a> = dyn Fn(&FsPath, usize) -> io::Result<Box<dyn Queue<DeviceBuf>>> + 'a;

/// Sizes of the writes that a queue supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writes {
    /// Any size.
    Any,
    /// Whole pages. `io_uring` passes sizes on unchanged, and past the page cache the system
    /// accepts only whole pages.
    WholePages,
}

impl Writes {
    /// Returns the supported sizes for a way, over a file that was opened by this path.
    pub fn of(way: Way, path: Path) -> Self {
        if way == Way::Staged && path == Path::HostDirect { Self::WholePages } else { Self::Any }
    }
}

/// Checks queues over files in this folder, and returns the number of checks.
///
/// # Panics
/// Panics if a queue breaks the contract of [`Queue`].
#[allow(clippy::unwrap_used, clippy::missing_panics_doc)]
pub fn check_queues(context: &Arc<Context>, folder: &FsPath, writes: Writes, open: &Open<'_>) -> usize {
    let path = folder.join("conformance");
    // Blocks and files of whole pages and of other sizes, with one block and with many.
    let shapes = [(4096, 100_000_usize, 1), (20_480, 400_000, 5), (65_536, 1 << 20, 8), (262_144, 300_001, 2)];
    for (number, (block, all, depth)) in shapes.into_iter().enumerate() {
        let all = if writes == Writes::WholePages { all.next_multiple_of(PAGE_BYTES) } else { all };
        let content = noise(all, block as u64);
        fs::write(&path, &content).unwrap();
        let mut queue = open(&path, depth).unwrap();
        let mut found = vec![0; all];
        move_all(queue.as_mut(), context, Direction::Read, &mut found, block).unwrap();
        assert!(found == content, "read in blocks of {block}");
        let mut other = noise(all, number as u64 + 99);
        move_all(queue.as_mut(), context, Direction::Write, &mut other, block).unwrap();
        drop(queue);
        assert!(fs::read(&path).unwrap() == other, "written in blocks of {block}");
    }
    let ends = check_ends(context, &path, open);
    let drops = check_drops(context, &path, open);
    fs::remove_file(&path).unwrap();
    2 * shapes.len() + ends + drops
}

/// Checks that reads past the end of a file truncated under an open queue are errors with the
/// offset. The queue stays usable.
#[allow(clippy::unwrap_used)]
fn check_ends(context: &Arc<Context>, path: &FsPath, open: &Open<'_>) -> usize {
    let content = noise(100_000, 3);
    let cuts = [0, 1, 4096, 65_536, 70_000, 99_999];
    for left in cuts {
        fs::write(path, &content).unwrap();
        let mut queue = open(path, 2).unwrap();
        fs::OpenOptions::new().write(true).open(path).unwrap().set_len(left as u64).unwrap();
        let error = move_all(queue.as_mut(), context, Direction::Read, &mut vec![0; 100_000], 32_768).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "cut at {left}: {error}");
        assert!(error.to_string().contains("the file ends at "), "cut at {left}: {error}");
        take_back(queue.as_mut());
        let mut found = vec![0; left];
        move_all(queue.as_mut(), context, Direction::Read, &mut found, 32_768).unwrap();
        assert!(found == content[..left], "what is left of it at {left}");
    }
    cuts.len()
}

/// Checks that dropping a queue waits for its transfers in flight.
#[allow(clippy::unwrap_used)]
fn check_drops(context: &Arc<Context>, path: &FsPath, open: &Open<'_>) -> usize {
    fs::write(path, noise(1 << 20, 3)).unwrap();
    let reaped = [0, 1, 3];
    for reaps in reaped {
        let mut queue = open(path, 6).unwrap();
        for i in 0..queue.depth() as u64 {
            let buffer = DeviceBuf::new(context, 65_536).unwrap();
            queue.submit(transfer(Direction::Read, i * 65_536, 65_536, buffer, i));
        }
        let mut done = Vec::new();
        queue.reap(reaps, &mut done).unwrap();
        assert!(done.len() >= reaps);
        drop(queue);
    }
    reaped.len()
}

/// Returns a transfer of a whole buffer.
pub(super) fn transfer(
    direction: Direction,
    offset: u64,
    bytes: usize,
    buffer: DeviceBuf,
    tag: u64,
) -> Transfer<DeviceBuf> {
    Transfer { direction, file: 0, offset, at: 0, bytes, needed: bytes, buffer, tag }
}

/// Returns pseudo-random bytes of a seed.
pub(super) fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut x = seed | 1;
    let next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 32) as u8
    };
    std::iter::repeat_with(next).take(bytes).collect()
}

/// Waits for all transfers in flight.
#[allow(clippy::unwrap_used)]
fn take_back(queue: &mut dyn Queue<DeviceBuf>) {
    let mut done = Vec::new();
    queue.reap(queue.in_flight(), &mut done).unwrap();
    assert_eq!(queue.in_flight(), 0, "everything is back");
}

/// Moves the whole file in blocks, with an offset into each buffer. Reads store their bytes in
/// `content`.
#[allow(clippy::unwrap_used)]
pub(super) fn move_all(
    queue: &mut dyn Queue<DeviceBuf>,
    context: &Arc<Context>,
    direction: Direction,
    content: &mut [u8],
    block: usize,
) -> io::Result<()> {
    let (mut done, mut at, all) = (Vec::new(), 0, content.len());
    loop {
        while queue.in_flight() < queue.depth() && at < all {
            let mut buffer = DeviceBuf::new(context, SKIP + block).unwrap();
            buffer.fill(POISON).unwrap();
            let needed = block.min(all - at);
            // At the end of the file, reads still request whole blocks; writes do not.
            let bytes = if direction == Direction::Read { block } else { needed };
            if direction == Direction::Write {
                buffer.copy_from(SKIP, &content[at..at + needed]).unwrap();
            }
            let (offset, tag) = (at as u64, at as u64);
            queue.submit(Transfer { direction, file: 0, offset, at: SKIP, bytes, needed, buffer, tag });
            at += block;
        }
        if queue.in_flight() == 0 {
            return Ok(());
        }
        queue.reap(1, &mut done)?;
        assert!(!done.is_empty());
        for one in done.drain(..) {
            match one.advance() {
                Advance::Rest(transfer) => queue.submit(transfer),
                Advance::Failed(_, e) => return Err(e),
                Advance::Whole(transfer) if direction == Direction::Read => {
                    let at = transfer.tag as usize;
                    let n = block.min(all - at);
                    transfer.buffer.copy_to(SKIP, &mut content[at..at + n]).unwrap();
                    let mut before = vec![0; SKIP];
                    transfer.buffer.copy_to(0, &mut before).unwrap();
                    assert!(before.iter().all(|byte| *byte == POISON), "bytes before the part were written to");
                }
                Advance::Whole(_) => {}
            }
        }
    }
}
