//! Files that operators spill to: without names, in `temp_directory`.
//!
//! A file loses its name as soon as it is open. However the statement ends, and the process, nothing of
//! it is left. Nothing is made before the first operator spills: a directory that cannot be written to
//! is an error of statements that do.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::Bytes;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::{SpillFile, SpillWriter, TempFileFactory};
use futures::{Stream, stream};

use crate::task::spawn_blocking;
use crate::{Error, ErrorKind};

/// Bytes that are read at a time.
const READ_BYTES: usize = 256 << 10;

/// Makes files in a directory.
#[derive(Debug)]
pub(crate) struct SpillFiles {
    directory: PathBuf,
}

impl SpillFiles {
    pub fn new(directory: PathBuf) -> Self {
        Self { directory }
    }

    /// The directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// An empty file without a name.
    ///
    /// # Errors
    /// What the system says.
    pub fn create(&self) -> io::Result<File> {
        tempfile::tempfile_in(&self.directory)
    }
}

impl TempFileFactory for SpillFiles {
    fn create_temp_file(&self, _: &str) -> Result<Arc<dyn SpillFile>> {
        let file = self.create().map_err(|e| {
            let directory = self.directory.display();
            let message = format!("cannot spill to temp_directory, {directory}: {e}");
            Error::new(ErrorKind::Io, message)
                .with_hint("SET temp_directory = 'PATH' of a directory that can be written to, or raise memory_limit")
                .with_source(e)
        })?;
        Ok(Arc::new(Spilled { file: Arc::new(file), bytes: Arc::default() }))
    }
}

/// A file that is written once, and then read.
struct Spilled {
    file: Arc<File>,
    bytes: Arc<AtomicU64>,
}

impl SpillFile for Spilled {
    fn size(&self) -> Option<u64> {
        Some(self.bytes.load(Relaxed))
    }

    fn read_stream(&self) -> Result<Pin<Box<dyn Stream<Item = Result<Bytes>> + Send>>> {
        let file = Arc::clone(&self.file);
        let parts = stream::try_unfold((file, 0_u64), |(file, at)| async move {
            let read = spawn_blocking(move || {
                let mut part = vec![0; READ_BYTES];
                let count = file.read_at(&mut part, at)?;
                part.truncate(count);
                Ok::<_, io::Error>((file, part))
            });
            let (file, part) = read.await.map_err(|e| DataFusionError::ExecutionJoin(Box::new(e)))??;
            let next = at + part.len() as u64;
            Ok((!part.is_empty()).then(|| (Bytes::from(part), (file, next))))
        });
        Ok(Box::pin(parts))
    }

    fn open_writer(&self) -> Result<Box<dyn SpillWriter>> {
        Ok(Box::new(Writer { file: Arc::clone(&self.file), bytes: Arc::clone(&self.bytes) }))
    }
}

/// Appends to a file.
struct Writer {
    file: Arc<File>,
    bytes: Arc<AtomicU64>,
}

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = (&*self.file).write(bytes)?;
        self.bytes.fetch_add(written as u64, Relaxed);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl SpillWriter for Writer {
    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use futures::TryStreamExt;

    use super::*;

    #[tokio::test]
    async fn what_is_written_is_read_and_has_no_name() {
        let folder = tempfile::tempdir().unwrap();
        let files = SpillFiles::new(folder.path().into());
        let spilled = files.create_temp_file("a sort").unwrap();
        let written: Vec<u8> = (0..3 * READ_BYTES + 5).map(|n| n as u8).collect();
        let mut writer = spilled.open_writer().unwrap();
        written.chunks(1000).for_each(|part| writer.write_all(part).unwrap());
        writer.finish().unwrap();
        assert_eq!(spilled.size(), Some(written.len() as u64));
        for _ in 0..2 {
            let parts: Vec<Bytes> = spilled.read_stream().unwrap().try_collect().await.unwrap();
            assert_eq!(parts.concat(), written);
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_directory_of_no_use_is_named_when_something_is_spilled() {
        let files = SpillFiles::new("/nowhere/at all".into());
        let error = Error::from(files.create_temp_file("a sort").err().unwrap());
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.message().contains("temp_directory, /nowhere/at all"), "{error}");
    }
}
