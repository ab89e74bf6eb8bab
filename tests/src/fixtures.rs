//! The tables of the golden queries, and their layouts in a database.

use std::fmt;
use std::path::PathBuf;

use futures::TryStreamExt;
use onehop_engine::{Output, Result, Session};

/// Returns the folder of golden files and fixtures. Tests run in their package's folder. A path
/// recorded at compile time could be that of another checkout with the same build cache.
pub fn golden() -> PathBuf {
    std::path::absolute("golden").unwrap_or_else(|_| PathBuf::from("golden"))
}

/// A fixture: a Parquet file of that name, and the columns by which its table can be partitioned
/// and sorted.
#[derive(Clone, Copy, Debug)]
pub struct Fixture {
    /// The name of the table, and the stem of the file.
    pub name: &'static str,
    hash: &'static str,
    cluster: &'static str,
}

/// All fixtures, chosen to stress the layouts: partitions by columns with NULLs, few values or one,
/// and clusters that reverse the file's order or have nothing to sort by.
pub const FIXTURES: [Fixture; 24] = [
    fixture("all_null", "i32", "s, id"),
    fixture("bag_a", "n", "c"),
    fixture("bag_b", "c", "n, c"),
    fixture("big", "g", "u"),
    fixture("calendar", "day", "moment"),
    fixture("constants", "c_int", "c_some, id"),
    fixture("dates", "weekday", "month, day"),
    fixture("empty_table", "id", "s, i8"),
    fixture("floats", "id", "x"),
    fixture("items", "brand", "cost"),
    fixture("keys", "k", "k"),
    fixture("keys_null", "k", "k"),
    fixture("left_side", "word", "k, v"),
    fixture("numbers", "h", "day, a"),
    fixture("one_row", "s", "id"),
    fixture("right_side", "k", "word"),
    fixture("rows_1024", "k", "v, id"),
    fixture("rows_1025", "id", "s"),
    fixture("rows_65536", "s", "v"),
    fixture("sales", "store_id", "item_id, date_key"),
    fixture("stores", "city", "opened"),
    fixture("strings", "t", "s"),
    fixture("tree", "parent", "name"),
    fixture("types", "i64", "d38, u64"),
];

const fn fixture(name: &'static str, hash: &'static str, cluster: &'static str) -> Fixture {
    Fixture { name, hash, cluster }
}

/// The layout of the fixtures in the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Views over the Parquet files.
    Parquet,
    /// Tables with default clauses.
    Segments,
    /// Four partitions each, by the hash of a column.
    Partitions,
    /// Sorted by some columns.
    Clustered,
    /// Temporary tables of the session that loads them.
    Temporary,
}

impl Fixture {
    /// Returns the path of the file.
    pub fn path(&self) -> PathBuf {
        golden().join("fixtures").join(self.name).with_extension("parquet")
    }

    /// Creates the table (or view) in the session's database.
    pub async fn load(&self, session: &Session, layout: Layout) -> Result<()> {
        let Self { name, hash, cluster } = self;
        let (kind, clauses) = match layout {
            Layout::Parquet => ("VIEW", String::new()),
            Layout::Segments => ("TABLE", String::new()),
            Layout::Partitions => ("TABLE", format!("PARTITION BY HASH ({hash}) PARTITIONS 4")),
            Layout::Clustered => ("TABLE", format!("CLUSTER BY ({cluster})")),
            Layout::Temporary => ("TEMPORARY TABLE", String::new()),
        };
        execute(session, &format!("CREATE {kind} {name} {clauses} AS SELECT * FROM '{}'", self.path().display())).await
    }
}

/// Runs a statement to its end and discards its rows.
pub async fn execute(session: &Session, statement: &str) -> Result<()> {
    match session.sql(statement).await? {
        Output::Rows(rows) => rows.try_for_each(|_| async { Ok(()) }).await,
        Output::Done(_) => Ok(()),
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::{FIXTURES, golden};

    #[test]
    fn every_parquet_file_is_a_fixture() {
        let mut stems: Vec<String> = std::fs::read_dir(golden().join("fixtures"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "parquet"))
            .map(|path| path.file_stem().unwrap().to_str().unwrap().to_string())
            .collect();
        stems.sort();
        assert_eq!(stems, FIXTURES.map(|fixture| fixture.name));
    }
}
