//! The columns of an Arrow file, in either of its two formats.
//!
//! DataFusion finds them out by itself where a file is a local one. Of others it expects the schema right behind the eight bytes
//! that begin a file, and arrow's own writer puts it behind 64.

use std::io::{Seek, SeekFrom};

use arrow::datatypes::SchemaRef;
use arrow::ipc::reader::{FileReader, StreamReader};
use datafusion::common::Result;

use super::glob::Found;
use super::named::caught_now;
use super::positional;
use super::site::Site;

/// The columns of a file, and whether its messages are older than arrow's reader takes. Blocks.
pub(super) fn of(site: &Site, file: &Found) -> Result<(SchemaRef, bool)> {
    caught_now(&file.name, || {
        let mut reader = site.open_anywhere(&file.path)?;
        let is_old = positional::is_old(&mut reader);
        reader.seek(SeekFrom::Start(0))?;
        let refused = match FileReader::try_new(&mut reader, None) {
            Ok(reader) => return Ok((reader.schema(), is_old)),
            Err(refused) => refused,
        };
        reader.seek(SeekFrom::Start(0))?;
        Ok((StreamReader::try_new(&mut reader, None).map_err(|_| refused)?.schema(), is_old))
    })
}
