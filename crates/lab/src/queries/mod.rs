//! The queries of both benchmarks, one file each, in SQL that all common engines accept.
//!
//! The Star Schema Benchmark's are its specification's, with names for the sums. TPC-H's have the
//! substitution parameters of the specification's query validation, so that their answers at scale
//! factor 1 are the published ones. Q15's view is a common table expression. Q6's bounds 0.06 -
//! 0.01 and 0.06 + 0.01 are written as constants: an engine that reads 0.06 as floating-point would
//! get an upper bound just below 0.07. No query ends with a semicolon.
//!
//! `order by` may leave ties open: SSB Q3.x may tie on revenue, and several of TPC-H's on their
//! last key.

mod choose;

pub use choose::choose;

/// A query of a benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query {
    /// The benchmark's name for it: `q1.1`, `q01`.
    pub id: &'static str,
    /// One SELECT statement.
    pub sql: &'static str,
}

macro_rules! queries {
    ($folder:literal: $($id:literal),+ $(,)?) => {
        [$(Query { id: $id, sql: include_str!(concat!($folder, "/", $id, ".sql")) }),+]
    };
}

/// The 13 queries of the Star Schema Benchmark.
pub const SSB: [Query; 13] = queries!(
    "ssb": "q1.1", "q1.2", "q1.3", "q2.1", "q2.2", "q2.3", "q3.1", "q3.2", "q3.3", "q3.4", "q4.1", "q4.2", "q4.3",
);

/// The 22 queries of TPC-H.
pub const TPCH: [Query; 22] = queries!(
    "tpch": "q01", "q02", "q03", "q04", "q05", "q06", "q07", "q08", "q09", "q10", "q11", "q12", "q13", "q14", "q15",
    "q16", "q17", "q18", "q19", "q20", "q21", "q22",
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_query_is_one_statement() {
        for query in SSB.iter().chain(&TPCH) {
            assert!(query.sql.starts_with("select") || query.sql.starts_with("with"), "{}", query.id);
            assert!(!query.sql.contains(';'), "{}", query.id);
            assert!(!query.sql.contains('\t') && query.sql.ends_with('\n'), "{}", query.id);
        }
    }

    #[test]
    fn identifiers_are_in_order_and_distinct() {
        for ids in [SSB.map(|query| query.id).as_slice(), &TPCH.map(|query| query.id)] {
            assert!(ids.is_sorted() && ids.windows(2).all(|pair| pair[0] != pair[1]));
        }
    }
}
