//! The columns of JSON files: their keys, and the conversion of values.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::datatypes::{Field, Fields, Schema, SchemaRef};
use datafusion::common::DataFusionError;
use jiter::Peek;

use super::columns::{Column, Object, Unfinished, Unknown};
use super::fault::{Fault, Problem, Types};
use super::kind::Kind;
use super::parser::Json;
use super::records::{Chunk, Resume};
use super::shape::Shape;
use super::walk::{Records, walk};
use crate::pg_types::zone::Zone;

/// The name of the column for records that are not objects.
const VALUE: &str = "json";

/// A column.
#[derive(Clone, Debug, PartialEq)]
struct JsonColumn {
    /// The key in the objects that are records.
    key: String,
    name: String,
    kind: Kind,
}

/// The columns of files.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct JsonPlan {
    columns: Vec<JsonColumn>,
    /// The kind of records: objects, whose keys are columns, or the values of one column.
    of: Of,
    /// True if there were no records to find columns in.
    is_empty: bool,
    pub(super) types: Types,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    Objects,
    Values,
}

impl JsonPlan {
    /// Derives the columns of files whose records have a shape.
    pub(super) fn of(shape: &Shape) -> Self {
        let (of, columns) = match shape.columns() {
            Some(columns) => (Of::Objects, columns),
            None => (Of::Values, vec![(VALUE.to_string(), shape.kind())]),
        };
        let mut taken: Vec<String> = Vec::with_capacity(columns.len());
        let keys: HashSet<String> = columns.iter().map(|(key, _)| key.clone()).collect();
        let column = |(at, (key, kind)): (usize, (String, Kind))| {
            // No query could refer to a column without a name.
            let name = if key.trim().is_empty() { format!("column_{}", at + 1) } else { key.clone() };
            let name = if name == key {
                name
            } else {
                free(name, |name| keys.contains(name) || taken.iter().any(|other| other == name))
            };
            taken.push(name.clone());
            JsonColumn { key, name, kind }
        };
        Self {
            columns: columns.into_iter().enumerate().map(column).collect(),
            of,
            is_empty: shape.is_empty(),
            types: Types::Guessed,
        }
    }

    /// Returns whether columns are keys of objects.
    pub fn is_of_objects(&self) -> bool {
        self.of == Of::Objects
    }

    /// Returns whether the files have no records.
    pub fn is_empty(&self) -> bool {
        self.is_empty
    }

    /// Returns the names of the columns, in the order of their keys.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.columns.iter().map(|column| column.name.as_str())
    }

    /// Returns a plan for the same files with columns of these names and types, in a session of
    /// this zone. Each column is identified by its name in this plan. Other keys are omitted.
    pub fn declared(&self, columns: impl IntoIterator<Item = (String, Field)>, zone: Zone) -> Self {
        let declared = |(found, field): (String, Field)| {
            let known = self.columns.iter().find(|column| column.name == found);
            JsonColumn {
                key: known.map_or(found, |column| column.key.clone()),
                name: field.name().clone(),
                kind: Kind::Declared(field.data_type().clone(), zone),
            }
        };
        // Files without records fit any columns.
        let of = if self.is_empty { Of::Objects } else { self.of };
        let columns = columns.into_iter().map(declared).collect();
        Self { columns, of, is_empty: self.is_empty, types: Types::Declared }
    }

    pub(in crate::files) fn schema(&self) -> SchemaRef {
        let field = |column: &JsonColumn| Field::new(&column.name, column.kind.data_type(), true);
        Arc::new(Schema::new(self.columns.iter().map(field).collect::<Fields>()))
    }

    /// Creates a reader of the columns at `wanted` of a schema, which has some of these.
    pub(super) fn reader(&self, schema: &Schema, wanted: &[usize], batch_rows: usize) -> Reader {
        let name = |at: &usize| schema.fields().get(*at).map(|field| field.name().clone());
        let wanted: Vec<String> = wanted.iter().filter_map(name).collect();
        let kind = |column: &JsonColumn| wanted.contains(&column.name).then(|| column.kind.clone());
        let keys = self.columns.iter().map(|column| (column.key.clone(), kind(column))).collect();
        // Arrays arrive in the order of keys.
        let in_order: Vec<&str> = self.names().filter(|name| wanted.iter().any(|wanted| wanted == name)).collect();
        let order = wanted.iter().filter_map(|name| in_order.iter().position(|known| known == name)).collect();
        let data_type = |name: &String| self.columns.iter().find(|column| column.name == *name);
        let fields: Fields = wanted
            .iter()
            .filter_map(data_type)
            .map(|column| Field::new(&column.name, column.kind.data_type(), true))
            .collect();
        Reader { keys, of: self.of, types: self.types, order, schema: Arc::new(Schema::new(fields)), batch_rows }
    }
}

fn free(name: String, is_taken: impl Fn(&str) -> bool) -> String {
    let numbered = (1..).map(|n| format!("{name}_{n}"));
    std::iter::once(name.clone()).chain(numbered).find(|name| !is_taken(name)).unwrap_or(name)
}

/// A reader of chunks.
#[derive(Debug)]
pub(super) struct Reader {
    /// All keys, with the kinds of those whose values are wanted.
    keys: Vec<(String, Option<Kind>)>,
    of: Of,
    pub types: Types,
    /// The places of the wanted columns among those of the keys.
    order: Vec<usize>,
    schema: SchemaRef,
    batch_rows: usize,
}

/// The error that ends the reading of a chunk.
#[derive(Debug)]
pub(super) enum Unread {
    Fault(Fault),
    Internal(DataFusionError),
}

impl From<Fault> for Unread {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl Reader {
    /// Returns the rows of a chunk, and the start of its last record if that is incomplete.
    pub fn chunk(&self, chunk: &Chunk) -> Result<(Vec<RecordBatch>, Option<Resume>), Unread> {
        let mut rows = Rows::new(self);
        let resume = walk(chunk, &mut rows)?;
        let (arrays, count) = rows.finish().map_err(|e| match e {
            Unfinished::Value { at, path, text, type_name } => {
                let problem = Problem::Value { at, path, text, type_name };
                Unread::Fault(problem.within(&chunk.bytes, chunk.position))
            }
            Unfinished::Arrow(e) => Unread::Internal(e.into()),
        })?;
        let ordered: Vec<ArrayRef> = self.order.iter().filter_map(|at| arrays.get(*at).cloned()).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(count));
        let batch = RecordBatch::try_new_with_options(Arc::clone(&self.schema), ordered, &options)
            .map_err(|e| Unread::Internal(e.into()))?;
        let starts = (0..count).step_by(self.batch_rows.max(1));
        let batches = starts.map(|start| batch.slice(start, self.batch_rows.max(1).min(count - start)));
        Ok((batches.collect(), resume))
    }
}

/// The rows of a chunk.
enum Rows {
    Objects(Object),
    Values(Column),
    /// The number of rows, if no column is wanted.
    Count(usize),
}

impl Rows {
    fn new(reader: &Reader) -> Self {
        let unknown = match reader.types {
            Types::Guessed => Unknown::Refused,
            Types::Declared => Unknown::Skipped,
        };
        match (reader.of, reader.keys.first()) {
            _ if reader.order.is_empty() => Self::Count(0),
            (Of::Values, Some((_, Some(kind)))) => Self::Values(Column::new(kind)),
            (Of::Values, _) => Self::Count(0),
            (Of::Objects, _) => Self::Objects(Object::new(reader.keys.iter().cloned(), unknown)),
        }
    }

    fn finish(self) -> Result<(Vec<ArrayRef>, usize), Unfinished> {
        Ok(match self {
            Self::Objects(object) => {
                let rows = object.rows();
                (object.finish()?, rows)
            }
            Self::Values(column) => {
                let rows = column.len();
                (vec![column.finish()?], rows)
            }
            Self::Count(rows) => (Vec::new(), rows),
        })
    }
}

impl Records for Rows {
    fn record(&mut self, json: &mut Json<'_>, peek: Peek) -> Result<(), Problem> {
        match self {
            Self::Objects(object) => match peek {
                Peek::Object => object.push(json)?,
                Peek::Null => {
                    json.known_null()?;
                    object.push_null();
                }
                _ => return Err(super::columns::other_type(json, peek, "an object").below(VALUE)),
            },
            Self::Values(column) => column.push(json, peek)?,
            Self::Count(rows) => {
                json.known_skip(peek)?;
                *rows += 1;
            }
        }
        Ok(())
    }

    fn forget(&mut self) {
        match self {
            Self::Objects(object) => object.truncate(object.rows()),
            Self::Values(column) => column.truncate(column.len()),
            Self::Count(_) => {}
        }
    }
}
