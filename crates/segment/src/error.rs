//! Errors of segments, with their location.

/// The result of reading or writing a segment.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a segment.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The storage below failed.
    #[error(transparent)]
    Io(#[from] onehop_io::Error),

    /// The storage below failed to read a block.
    #[error("{source} ({place})")]
    Read {
        /// Column and block.
        place: Place,
        /// The operation, the file, the offset, and the system's error.
        source: onehop_io::Error,
    },

    /// Stored bytes are not those that were written.
    #[error("{file} is corrupt: {place}: {reason}")]
    Corrupt {
        /// The file.
        file: String,
        /// Footer, column and block ...
        place: Place,
        /// The inconsistency.
        reason: String,
    },

    /// The file is a segment of a format that this build does not know.
    #[error("{file} is a segment of format {found}, and this build reads format {known}")]
    Version {
        /// The file.
        file: String,
        /// The format of the file.
        found: u32,
        /// The format of this build.
        known: u32,
    },

    /// The file is a segment of this format with a feature that this build does not know.
    #[error(
        "{file} was written by a newer onehop: reading it needs feature bit {bit} of the segment format, which this build does not know"
    )]
    Feature {
        /// The file.
        file: String,
        /// The lowest bit that is set and not known.
        bit: u32,
    },

    /// The format cannot store a column's type.
    #[error("column \"{column}\" has type {data_type}, which tables cannot store{}", hint(.data_type))]
    Type {
        /// The column.
        column: String,
        /// Its Arrow type.
        data_type: arrow_schema::DataType,
    },

    /// A value does not fit its column.
    #[error("a value of column \"{column}\" does not fit: {reason}")]
    Value {
        /// The column.
        column: String,
        /// The reason.
        reason: String,
    },

    /// A NOT NULL column got a NULL.
    #[error("a value of column \"{column}\" does not fit: NULL in a NOT NULL column")]
    Null {
        /// The column.
        column: String,
    },

    /// The caller broke the writer's contract.
    #[error("{0}")]
    Usage(String),
}

fn hint(data_type: &arrow_schema::DataType) -> &'static str {
    use arrow_schema::DataType as T;
    match data_type {
        T::Decimal256(..) => " (38 digits at most: cast it to DECIMAL(38, s))",
        T::List(_) | T::LargeList(_) | T::FixedSizeList(..) | T::ListView(_) | T::LargeListView(_) => {
            " (unnest it, or cast it to VARCHAR)"
        }
        T::Struct(_) | T::Map(..) | T::Union(..) => " (select its fields, or cast it to VARCHAR)",
        T::Binary | T::LargeBinary | T::BinaryView | T::FixedSizeBinary(_) => " (encode it: encode(column, 'hex'))",
        T::Time32(_) | T::Time64(_) | T::Interval(_) => " (cast it to VARCHAR, or store extract(epoch FROM column))",
        T::Duration(_) => " (cast it to VARCHAR or BIGINT)",
        T::Null => " (give it one: CAST(NULL AS INT))",
        _ => "",
    }
}

/// A location in a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The first page or the trailer.
    Frame,
    /// The footer.
    Footer,
    /// A column's description or its dictionary.
    Column(String),
    /// One block of a column.
    Block {
        /// The column's name.
        column: String,
        /// The block's number in its segment, from 0.
        block: usize,
    },
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Frame => f.write_str("first page or trailer"),
            Place::Footer => f.write_str("footer"),
            Place::Column(column) => write!(f, "column \"{column}\""),
            Place::Block { column, block } => write!(f, "column \"{column}\", block {block}"),
        }
    }
}
