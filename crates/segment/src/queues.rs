//! What reads the files of segments when many reads are to be in flight: a ring past the page cache, threads elsewhere.

use std::io;
use std::sync::Arc;

use onehop_io::{
    BlockingQueue, Ledger, LentBuf, LocalFile, Path, Queue, ReadAt, RequestedPath, UringQueue, memory_bytes,
};

use crate::{Result, Segment};

/// A read has neighbours with it until it is so long: what comes with it is wanted later than what it is begun for, and a
/// disk that is at its best with a few MiB in flight has then enough of them (0.96 of the rate of 1 MiB front to back, where
/// reads of two blocks of 512 KiB each gave 0.86).
pub(crate) const REQUEST_BYTES: usize = 512 << 10;
/// Reads in flight in a ring, if they are short: there are no more of them than their device wants bytes.
const DEPTH: usize = 64;

/// Queues over the files of segments, by their numbers.
pub(crate) struct Queues {
    pub queues: Vec<Box<dyn Queue<LentBuf>>>,
    /// What they are: `io_uring, host direct`.
    pub way: String,
    /// The files, to ask the page cache; none where it is not asked.
    pub cached: Vec<Arc<LocalFile>>,
    /// Their names, for messages.
    pub names: Vec<String>,
}

/// Who reads what by which path.
pub(crate) struct Wanted<'a> {
    pub path: RequestedPath,
    /// Bytes that are left to read.
    pub left: u64,
    /// Whether what is read stays in memory of ours: then the page cache would have it a second time.
    pub is_kept: bool,
    /// Rings, with a thread each, that share what the device is to have in flight.
    pub rings: usize,
    /// Threads where there is no ring, or the page cache is read: a ring reads that no faster than one thread.
    pub threads: usize,
    pub ledger: &'a Arc<Ledger>,
}

impl Queues {
    /// `None` where there is nothing to be read: the files are in memory.
    ///
    /// # Errors
    /// For a path that was asked for by name and is not to be had.
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

/// Whether the page cache is of no use to what is left to read, because it is kept elsewhere, or because it is more than
/// memory holds. Only where the system says what the page cache has, which is used.
fn passes_page_cache_by(files: &[Arc<LocalFile>], wanted: &Wanted<'_>) -> bool {
    wanted.path == RequestedPath::Auto
        && (wanted.is_kept || wanted.left > memory_bytes())
        && files.first().is_some_and(|file| file.page_cache_has(0, 1).is_some())
}
