//! The columns of an Arrow file, in either of its two formats.

use arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use onehop_files::arrow_ipc::ArrowFile;

use super::account::unread;
use super::glob::Found;
use super::named::caught_now;
use super::site::Site;

/// Returns the columns of a file. Blocks.
pub(super) fn of(site: &Site, file: &Found) -> Result<SchemaRef> {
    caught_now(&file.name, || {
        let input = site.input(&file.path, None)?;
        Ok(ArrowFile::open(input).map_err(|fault| unread(&file.name, fault))?.schema())
    })
}
