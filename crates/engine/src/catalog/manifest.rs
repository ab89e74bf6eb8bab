//! The catalog of databases that have no store yet: one text file, which is read and moved into a
//! store.
//!
//! ```text
//! onehop catalog 2 <CRC-32C of the rest, 8 hex digits>\n
//! { ... the catalog as JSON ... }\n
//! ```
//! Format 2 has checksums of segments; format 1 has none. Both are read; neither is written any
//! more.

use std::sync::Arc;

use onehop_io::{Ledger, Volume};

use super::Catalog;
use crate::error::NEWER;
use crate::{Error, ErrorKind, Result};

pub(crate) const FILE: &str = "catalog";
/// The name of the file while it was being written.
pub(crate) const NEW_FILE: &str = "catalog.new";
const FORMAT: &str = "onehop catalog 2";
/// The formats that are read.
const FORMATS: [&str; 2] = ["onehop catalog 1", FORMAT];
const FORMAT_FAMILY: &str = "onehop catalog ";

/// A catalog in a file of its own.
#[derive(Debug)]
pub(super) struct Manifest {
    volume: Arc<dyn Volume>,
}

impl Manifest {
    /// Creates a reader of the catalog in this directory.
    pub fn new(volume: Arc<dyn Volume>) -> Self {
        Self { volume }
    }

    /// Reads the catalog; `None` if the directory has no such file.
    pub fn load(&self) -> Result<Option<Catalog>> {
        let file = match self.volume.open(FILE) {
            Ok(file) => file,
            Err(e) if e.is_not_found() => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        let mut bytes = vec![0; file.len()? as usize];
        if !bytes.is_empty() {
            file.read_at(0, &mut bytes, &Ledger::default())?;
        }
        self.decode(&bytes).map(Some)
    }

    fn corrupt(&self, reason: &str) -> Error {
        let message = format!("the catalog {}/{FILE} is corrupt: {reason}", self.volume.name());
        Error::new(ErrorKind::Corrupt, message)
            .with_hint("restore the database directory from a backup; its segment files may be intact")
    }

    fn decode(&self, bytes: &[u8]) -> Result<Catalog> {
        let text = std::str::from_utf8(bytes).map_err(|_| self.corrupt("it is not text"))?;
        let Some((head, body)) = text.split_once('\n') else { return Err(self.corrupt("it has no first line")) };
        let Some((format, crc)) = head.rsplit_once(' ') else { return Err(self.corrupt("its first line is not ours")) };
        if !FORMATS.contains(&format) {
            if let Some(version) = format.strip_prefix(FORMAT_FAMILY) {
                let message = format!(
                    "{} is a database of catalog format {version}, and this build reads formats 1 and 2",
                    self.volume.name()
                );
                return Err(Error::new(ErrorKind::TooNew, message).with_hint(NEWER));
            }
            return Err(self.corrupt("its first line is not ours"));
        }
        if crc != checksum(body) {
            return Err(self.corrupt("it does not match its checksum"));
        }
        serde_json::from_str(body).map_err(|e| self.corrupt(&e.to_string()))
    }
}

fn checksum(body: &str) -> String {
    format!("{:08x}", crc32c::crc32c(body.as_bytes()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use onehop_io::{MemoryVolume, WriteAt};

    use super::*;

    fn catalog() -> Catalog {
        Catalog { generation: 3, next_id: 9, ..Catalog::default() }
    }

    fn put(volume: &Arc<dyn Volume>, bytes: &[u8]) {
        let file: Arc<dyn WriteAt> = volume.create(FILE).unwrap();
        file.write_at(0, bytes, &Ledger::default()).unwrap();
    }

    #[test]
    fn a_catalog_comes_back_and_every_damage_is_noticed() {
        let volume: Arc<dyn Volume> = Arc::new(MemoryVolume::new("db"));
        let store = Manifest::new(Arc::clone(&volume));
        assert_eq!(store.load().unwrap(), None);
        let body = format!("{}\n", serde_json::to_string_pretty(&catalog()).unwrap());
        let bytes = format!("{FORMAT} {}\n{body}", checksum(&body)).into_bytes();
        put(&volume, &bytes);
        assert_eq!(store.load().unwrap(), Some(catalog()));
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x20;
            put(&volume, &damaged);
            assert!(store.load().is_err(), "byte {at}");
            put(&volume, &bytes[..at]);
            assert!(store.load().is_err(), "cut at {at}");
        }
    }

    #[test]
    fn a_later_format_is_refused_by_name() {
        let volume: Arc<dyn Volume> = Arc::new(MemoryVolume::new("db"));
        put(&volume, b"onehop catalog 3 00000000\n{}\n");
        let error = Manifest::new(volume).load().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooNew);
        assert_eq!(error.message(), "db is a database of catalog format 3, and this build reads formats 1 and 2");
    }

    #[test]
    fn the_format_before_is_read() {
        let volume: Arc<dyn Volume> = Arc::new(MemoryVolume::new("db"));
        let body = concat!(
            r#"{"generation": 7, "next_id": 4, "views": {}, "tables": {"t": {"id": 1, "columns": "#,
            r#"[{"name": "a", "type": "BIGINT", "nullable": true}], "segments": "#,
            r#"[{"file": "t1-2.seg", "rows": 10, "bytes": 9000, "partition": 0}]}}}"#,
            "\n"
        );
        put(&volume, format!("onehop catalog 1 {}\n{body}", checksum(body)).as_bytes());
        let catalog = Manifest::new(volume).load().unwrap().unwrap();
        assert_eq!(catalog.tables["t"].segments[0].checksum, None);
    }
}
