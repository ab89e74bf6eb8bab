//! Readers of segment files for many reads in flight: a ring past the page cache, otherwise
//! threads.

use std::io;
use std::sync::Arc;

use onehop_io::{
    BlockingQueue, Ledger, LentBuf, LocalFile, Path, Queue, ReadAt, RequestedPath, UringQueue, memory_bytes,
};

use crate::{Result, Segment};

/// A read is combined with its neighbours up to this length. The neighbours are wanted later than
/// the bytes it begins with. A disk that is fastest with a few MiB in flight has enough of them
/// then (0.96 of the rate of 1 MiB front to back, compared with 0.86 for reads of two blocks of 512
/// KiB each).
pub(crate) const REQUEST_BYTES: usize = 512 << 10;
/// The maximum number of short reads in flight in a ring: the device's byte limit bounds longer
/// ones.
const DEPTH: usize = 64;

/// Queues over the files of segments, by their numbers.
pub(crate) struct Queues {
    /// The queues.
    pub queues: Vec<Box<dyn Queue<LentBuf>>>,
    /// Their kind: `io_uring, host direct`.
    pub way: String,
    /// The files, to query the page cache; empty if it is not queried.
    pub cached: Vec<Arc<LocalFile>>,
    /// The names of the files, for messages.
    pub names: Vec<String>,
}

/// The parameters of the queues.
pub(crate) struct Wanted<'a> {
    /// The requested path.
    pub path: RequestedPath,
    /// The bytes that are left to read.
    pub left: u64,
    /// True if the bytes that are read stay in the process's memory: then the page cache would hold
    /// a second copy.
    pub is_kept: bool,
    /// The number of rings, with a thread each, that share the device's bytes in flight.
    pub rings: usize,
    /// The number of threads without a ring, or for reads through the page cache, where a ring is
    /// no faster than one thread.
    pub threads: usize,
    /// The counters of the reads.
    pub ledger: &'a Arc<Ledger>,
}

impl Queues {
    /// Creates the queues. Returns `None` if there is nothing to read: the files are in memory.
    ///
    /// # Errors
    /// If a path that was requested by name is unavailable.
    pub fn of(segments: &[Arc<Segment>], wanted: &Wanted<'_>) -> Result<Option<Self>> {
        let files = segments.iter().map(|segment| segment.file_by(wanted.path)).collect::<Result<Vec<_>>>()?;
        let Some(path) = files.first().map(|file| file.hints().path).filter(|path| *path != Path::Memory) else {
            return Ok(None);
        };
        let names = files.iter().map(|file| file.name().to_owned()).collect();
        let locals: Option<Vec<Arc<LocalFile>>> = files.iter().map(|file| Arc::clone(file).as_local()).collect();
        let direct = match (&locals, path) {
            (Some(locals), Path::HostDirect) => Some(locals.clone()),
            (Some(locals), Path::Buffered) if passes_page_cache_by(locals, wanted) => {
                segments.iter().map(|segment| segment.file_by(RequestedPath::HostDirect).ok()?.as_local()).collect()
            }
            _ => None,
        };
        let cached = locals.filter(|_| path == Path::Buffered).unwrap_or_default();
        let (queues, way) = match direct {
            None => (threads(&files, wanted), format!("{} threads, {path}", wanted.threads)),
            Some(direct) => match rings(&direct, wanted) {
                Ok(rings) => (rings, format!("io_uring, {}", Path::HostDirect)),
                Err(_) => {
                    let direct: Vec<_> = direct.into_iter().map(|file| file as Arc<dyn ReadAt>).collect();
                    (threads(&direct, wanted), format!("{} threads, {}", wanted.threads, Path::HostDirect))
                }
            },
        };
        Ok(Some(Self { queues, way, cached, names }))
    }
}

fn rings(files: &[Arc<LocalFile>], wanted: &Wanted<'_>) -> io::Result<Vec<Box<dyn Queue<LentBuf>>>> {
    let ring = |_| -> io::Result<Box<dyn Queue<LentBuf>>> {
        let ring = UringQueue::<LentBuf>::new(files.to_vec(), DEPTH, None, Arc::clone(wanted.ledger))?;
        Ok(Box::new(ring.as_hinted(wanted.rings)))
    };
    (0..wanted.rings).map(ring).collect()
}

fn threads(files: &[Arc<dyn ReadAt>], wanted: &Wanted<'_>) -> Vec<Box<dyn Queue<LentBuf>>> {
    let queue =
        |_| -> Box<dyn Queue<LentBuf>> { Box::new(BlockingQueue::reader(files.to_vec(), Arc::clone(wanted.ledger))) };
    (0..wanted.threads).map(queue).collect()
}

/// Returns true if the page cache is useless for the remaining reads, because the bytes are kept
/// elsewhere, or because they exceed memory. Only on systems that report the contents of the page
/// cache, which are used.
fn passes_page_cache_by(files: &[Arc<LocalFile>], wanted: &Wanted<'_>) -> bool {
    wanted.path == RequestedPath::Auto
        && (wanted.is_kept || wanted.left > memory_bytes())
        && files.first().is_some_and(|file| file.page_cache_has(0, 1).is_some())
}
