//! A directory of a cluster's files as a [`Volume`]: for files that are written once, front to back, and then only read.
//!
//! - A file that is being created has no name before [`WriteAt::sync`], which waits until all of it is in the cluster and then
//!   gives it its name in one operation. Bytes and name are durable together, so [`Volume::sync`] has nothing to do.
//! - A name that is taken stays whose it is: creating it again is an error.
//! - What is dropped before it is synced is given up, and cleaned up where the cluster answers.
//! - Nothing is written over: files cannot be opened for updates, and those being written cannot be read.
//!
//! Bytes are counted when the file takes them: its last chunk is on its way only in `sync`, which has no ledger to count in.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use super::fs::{BLOCK_BYTES, File, Kind, Replace, Writer};
use super::{FileSystem, Location, Problem};
use crate::{Error, Hop, IoHints, Ledger, Operation, Path, ReadAt, Result, Volume, WriteAt};

/// A directory of a file system. Cheap to clone.
#[derive(Clone, Debug)]
pub struct RadosVolume {
    fs: FileSystem,
    /// Begins with a slash and ends without one; the root's is empty.
    path: String,
    name: String,
}

impl RadosVolume {
    /// The directory that a location names, which must be there when something is asked of it.
    pub fn new(fs: FileSystem, location: &Location) -> Self {
        let path = match location.path.trim_matches('/') {
            "" => String::new(),
            path => format!("/{path}"),
        };
        Self { fs, name: format!("{}{path}", location.authority), path }
    }

    /// The file system that it is a directory of.
    pub fn fs(&self) -> &FileSystem {
        &self.fs
    }

    /// The directory's path, as the file system wants it.
    pub fn path(&self) -> &str {
        if self.path.is_empty() { "/" } else { &self.path }
    }

    fn path_of(&self, name: &str) -> String {
        format!("{}/{name}", self.path)
    }

    fn url_of(&self, name: &str) -> String {
        format!("{}/{name}", self.name)
    }
}

impl Volume for RadosVolume {
    fn name(&self) -> &str {
        &self.name
    }

    fn open(&self, name: &str) -> Result<Arc<dyn ReadAt>> {
        let url = self.url_of(name);
        match self.fs.open_file(&self.path_of(name)) {
            Ok(file) => Ok(Arc::new(Stored { file, url })),
            Err(e) => Err(Error::new(Operation::Open, url, e)),
        }
    }

    fn open_for_update(&self, name: &str) -> Result<Arc<dyn WriteAt>> {
        // What is not there is that, first.
        self.open(name)?;
        let reason = "files on a cluster are written once";
        Err(Error::new(Operation::Open, self.url_of(name), io::Error::new(io::ErrorKind::Unsupported, reason)))
    }

    fn create(&self, name: &str) -> Result<Arc<dyn WriteAt>> {
        let url = self.url_of(name);
        // The writer counts elsewhere: see above.
        match self.fs.create_file(&self.path_of(name), Replace::Never, Arc::default()) {
            Ok(writer) => Ok(Arc::new(WriteOnce { url, state: Mutex::new(State { writer: Some(writer), len: 0 }) })),
            Err(e) => Err(Error::new(Operation::Create, url, e)),
        }
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let renamed = self.fs.rename(&self.path_of(from), &self.path_of(to), Replace::File);
        renamed.map_err(|e| Error::new(Operation::Rename, self.url_of(from), e))
    }

    fn remove(&self, name: &str) -> Result<()> {
        let removed = self.fs.remove_file(&self.path_of(name));
        removed.map_err(|e| Error::new(Operation::Remove, self.url_of(name), e))
    }

    fn list(&self) -> Result<Vec<String>> {
        let entries = self.fs.list(self.path()).map_err(|e| Error::new(Operation::List, &self.name, e))?;
        Ok(entries.into_iter().filter(|entry| entry.kind == Kind::File).map(|entry| entry.name).collect())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn folder(&self, name: &str) -> Result<Arc<dyn Volume>> {
        let folder = Self { fs: self.fs.clone(), path: self.path_of(name), name: self.url_of(name) };
        match self.fs.create_directory(&folder.path) {
            Err(e) if e.problem() != Some(Problem::Exists) => Err(Error::new(Operation::Create, folder.name, e)),
            _ => Ok(Arc::new(folder)),
        }
    }
}

/// A file that is read, under its whole name.
#[derive(Debug)]
struct Stored {
    file: File,
    url: String,
}

impl ReadAt for Stored {
    fn name(&self) -> &str {
        &self.url
    }

    fn hints(&self) -> IoHints {
        self.file.hints()
    }

    fn len(&self) -> Result<u64> {
        Ok(self.file.size())
    }

    fn try_read_at(&self, offset: u64, buf: &mut [u8], ledger: &Ledger) -> io::Result<usize> {
        self.file.try_read_at(offset, buf, ledger)
    }
}

/// A file that is being written.
#[derive(Debug)]
struct WriteOnce {
    url: String,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// `None` when it has its name, or never will.
    writer: Option<Writer>,
    len: u64,
}

impl WriteOnce {
    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl ReadAt for WriteOnce {
    fn name(&self) -> &str {
        &self.url
    }

    fn hints(&self) -> IoHints {
        IoHints {
            path: Path::Remote,
            alignment: 1,
            concurrency: 1,
            in_flight_bytes: BLOCK_BYTES,
            coalesce_gap_bytes: 0,
            max_request_bytes: usize::MAX,
        }
    }

    fn len(&self) -> Result<u64> {
        Ok(self.with(|state| state.len))
    }

    fn try_read_at(&self, _offset: u64, _buf: &mut [u8], _ledger: &Ledger) -> io::Result<usize> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "a file on a cluster is not read through who writes it"))
    }
}

impl WriteAt for WriteOnce {
    fn try_write_at(&self, offset: u64, buf: &[u8], ledger: &Ledger) -> io::Result<usize> {
        let refused = |reason: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        self.with(|state| {
            let Some(writer) = &mut state.writer else { return refused("the file has been written to its end") };
            if offset != state.len {
                return refused("files on a cluster are written front to back");
            }
            writer.append(buf)?;
            state.len += buf.len() as u64;
            ledger.write_op();
            // Into a chunk, and the library's copy of that.
            ledger.moved(Hop::HostToHost, buf.len() * 2);
            ledger.moved(Hop::HostToStorage, buf.len());
            Ok(buf.len())
        })
    }

    fn sync(&self) -> Result<()> {
        match self.with(|state| state.writer.take()) {
            Some(writer) => writer.close().map(drop).map_err(|e| Error::new(Operation::Sync, &self.url, e)),
            None => Ok(()),
        }
    }
}

impl Drop for WriteOnce {
    fn drop(&mut self) {
        if let Some(writer) = self.with(|state| state.writer.take()) {
            writer.abort();
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::fs::{Depth, SystemClock};
    use super::super::{Code, FsOptions, SimClient, SimCluster, SimFault};
    use super::*;

    fn volume() -> (SimClient, RadosVolume) {
        let client = SimCluster::default().client();
        let (names, bytes) = (client.replicated("names"), client.erasure_coded("bytes"));
        let options = FsOptions { chunk_bytes: 64 << 10, ..FsOptions::default() };
        let fs = FileSystem::create_on(names, bytes, "bytes", Arc::new(SystemClock), options).unwrap();
        fs.create_directory_all("/a/b").unwrap();
        (client, RadosVolume::new(fs, &Location::parse("rados://names/a/b/").unwrap()))
    }

    #[test]
    fn a_file_is_there_when_it_is_synced_and_then_stays_as_it_is() {
        let (_, volume) = volume();
        let ledger = Ledger::default();
        assert_eq!(volume.name(), "rados://names/a/b");
        assert!(volume.open("x").unwrap_err().is_not_found());
        assert!(volume.open_for_update("x").unwrap_err().is_not_found());
        let bytes: Vec<u8> = (0..200_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let file = volume.create("x").unwrap();
        file.write_at(0, &bytes[..100_000], &ledger).unwrap();
        file.write_at(100_000, &bytes[100_000..], &ledger).unwrap();
        assert!(file.write_at(7, b"back", &ledger).is_err());
        assert_eq!((file.len().unwrap(), volume.list().unwrap().len()), (200_000, 0));
        file.sync().unwrap();
        file.sync().unwrap();
        assert!(file.write_at(200_000, b"more", &ledger).is_err());
        drop(file);
        assert_eq!(volume.list().unwrap(), ["x"]);
        assert_eq!(ledger.snapshot().hop(Hop::HostToStorage), 200_000);

        let read = volume.open("x").unwrap();
        assert_eq!((read.name(), read.len().unwrap()), ("rados://names/a/b/x", 200_000));
        for (offset, len) in [(0, 200_000), (65_535, 2), (131_072, 1), (199_999, 1), (200_000, 0)] {
            let mut buf = vec![0; len];
            read.read_at(offset as u64, &mut buf, &ledger).unwrap();
            assert_eq!(buf, bytes[offset..offset + len], "{len} bytes at {offset}");
        }
        let e = read.read_at(199_999, &mut [0; 2], &ledger).unwrap_err();
        assert_eq!((e.object.as_str(), e.extent), ("rados://names/a/b/x", Some((199_999, 2))));

        // It is nobody else's.
        assert!(volume.create("x").is_err() && volume.open_for_update("x").is_err());
        volume.rename("x", "y").unwrap();
        let folder = volume.folder("f").unwrap();
        folder.create("x").unwrap().sync().unwrap();
        assert_eq!(volume.folder("f").unwrap().list().unwrap(), ["x"]);
        assert_eq!(volume.list().unwrap(), ["y"]);
        volume.remove("y").unwrap();
        assert!(volume.remove("y").unwrap_err().is_not_found());
        // Who has it open goes on reading.
        read.read_at(0, &mut [0; 9], &ledger).unwrap();
        volume.sync().unwrap();
    }

    #[test]
    fn what_is_not_synced_is_nowhere() {
        let (client, volume) = volume();
        let ledger = Ledger::default();
        volume.create("x").unwrap().write_at(0, &vec![1; 300_000], &ledger).unwrap();
        assert!(volume.list().unwrap().is_empty());
        let findings = volume.fs().check(Depth::Objects).unwrap();
        assert!(findings.damage.is_empty() && findings.unknown.is_empty(), "{findings:?}");
        for at in 0..12 {
            client.fail_at(at, SimFault::Refuse(Code::NO_SPACE));
            let written = volume.create("x").and_then(|file| {
                file.write_at(0, &vec![1; 300_000], &ledger)?;
                file.sync()
            });
            client.fail_at(u64::MAX / 2, SimFault::LoseReply);
            assert_eq!(volume.list().unwrap().len(), usize::from(written.is_ok()), "{at}: {written:?}");
            if let Err(e) = written {
                assert!(e.to_string().contains("rados://names/a/b/x") && e.to_string().contains("full"), "{at}: {e}");
                continue;
            }
            volume.remove("x").unwrap();
        }
    }
}
