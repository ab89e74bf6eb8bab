//! Parquet: a chunk is encoded and compressed into a row group in memory, and appended to the file
//! in its turn.

use ::parquet::arrow::ArrowSchemaConverter;
use ::parquet::arrow::add_encoded_arrow_schema_to_metadata;
use ::parquet::arrow::arrow_writer::{ArrowColumnChunk, ArrowRowGroupWriterFactory, compute_leaves};
use ::parquet::basic::{Compression, ZstdLevel};
use ::parquet::file::properties::{WriterProperties, WriterPropertiesPtr};
use ::parquet::file::writer::SerializedFileWriter;
use ::parquet::schema::types::SchemaDescriptor;
use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use std::sync::Arc;

use super::PartialFile;
use crate::generate::Result;

/// Encodes the row groups of one table.
pub(super) struct RowGroups {
    arrow_schema: SchemaRef,
    schema: SchemaDescriptor,
    properties: WriterPropertiesPtr,
    factory: ArrowRowGroupWriterFactory,
}

/// An encoded row group.
pub(super) struct RowGroup {
    rows: u64,
    columns: Vec<ArrowColumnChunk>,
}

/// A Parquet file being written.
pub(super) struct ParquetFile {
    writer: SerializedFileWriter<PartialFile>,
}

impl RowGroups {
    pub(super) fn new(arrow_schema: &SchemaRef) -> Result<Self> {
        let schema = ArrowSchemaConverter::new().convert(arrow_schema)?;
        let mut properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::try_new(1)?))
            .set_created_by(concat!("onehop ", env!("CARGO_PKG_VERSION")).to_owned())
            .build();
        // Without it readers would get Utf8 for Utf8View.
        add_encoded_arrow_schema_to_metadata(arrow_schema, &mut properties);
        let properties = Arc::new(properties);
        // The factory takes schema and properties from a file writer; this one writes nowhere.
        let nowhere = SerializedFileWriter::new(std::io::sink(), schema.root_schema_ptr(), Arc::clone(&properties))?;
        let factory = ArrowRowGroupWriterFactory::new(&nowhere, Arc::clone(arrow_schema));
        Ok(Self { arrow_schema: Arc::clone(arrow_schema), schema, properties, factory })
    }

    pub(super) fn encode(&self, batches: impl Iterator<Item = Result<RecordBatch>>) -> Result<RowGroup> {
        // The index matters to encrypted files only.
        let mut writers = self.factory.create_column_writers(0)?;
        let mut rows = 0;
        for batch in batches {
            let batch = batch?;
            rows += batch.num_rows() as u64;
            let mut leaf_writers = writers.iter_mut();
            for (field, column) in self.arrow_schema.fields().iter().zip(batch.columns()) {
                for (leaf, writer) in compute_leaves(field, column)?.iter().zip(&mut leaf_writers) {
                    writer.write(leaf)?;
                }
            }
        }
        let columns = writers.into_iter().map(|writer| writer.close()).collect::<Result<_, _>>()?;
        Ok(RowGroup { rows, columns })
    }

    pub(super) fn start(&self, file: PartialFile) -> Result<ParquetFile> {
        let writer = SerializedFileWriter::new(file, self.schema.root_schema_ptr(), Arc::clone(&self.properties))?;
        Ok(ParquetFile { writer })
    }
}

impl RowGroup {
    pub(super) fn rows(&self) -> u64 {
        self.rows
    }
}

impl ParquetFile {
    pub(super) fn append(&mut self, group: RowGroup) -> Result<()> {
        let mut writer = self.writer.next_row_group()?;
        for column in group.columns {
            column.append_to_row_group(&mut writer)?;
        }
        writer.close()?;
        Ok(())
    }

    /// Writes the footer.
    pub(super) fn finish(self) -> Result<PartialFile> {
        Ok(self.writer.into_inner()?)
    }
}
