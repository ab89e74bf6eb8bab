//! Names in SQL: folding, quoting, and the names that Onehop itself takes.

use datafusion::sql::sqlparser::ast::Ident;
use datafusion::sql::sqlparser::keywords::{
    ALL_KEYWORDS, ALL_KEYWORDS_INDEX, Keyword, RESERVED_FOR_COLUMN_ALIAS, RESERVED_FOR_IDENTIFIER,
    RESERVED_FOR_TABLE_ALIAS, RESERVED_FOR_TABLE_FACTOR,
};

/// The catalog's name in three-part names.
pub(crate) const CATALOG: &str = "onehop";
/// The schema's name in two-part names, as in PostgreSQL.
pub(crate) const SCHEMA: &str = "public";
/// The name of a statement's target table in the query that finds the rows to change, and in the
/// query of RETURNING. No table has this name.
pub(crate) const TARGET: &str = "__onehop_target";

/// The names of the system tables.
pub(crate) const SYSTEM_TABLES: [&str; 14] = [
    "onehop_activity",
    "onehop_attached",
    "onehop_columns",
    "onehop_functions",
    "onehop_memory",
    "onehop_model_terms",
    "onehop_models",
    "onehop_passes",
    "onehop_queries",
    "onehop_resident",
    "onehop_segments",
    "onehop_settings",
    "onehop_store",
    "onehop_tables",
];

/// Folds an identifier to the name that it stands for: without quotes, letters become small.
pub(crate) fn normal(ident: &Ident) -> String {
    if ident.quote_style.is_some() { ident.value.clone() } else { ident.value.to_lowercase() }
}

/// Writes a name as a statement takes it, in quotes if it needs them.
pub(crate) fn quoted(name: &str) -> String {
    let is_first = |c: char| c.is_ascii_lowercase() || c == '_';
    let is_plain = name.starts_with(is_first) && name.chars().all(|c| is_first(c) || c.is_ascii_digit());
    if is_plain && !is_reserved(name) {
        return name.into();
    }
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Words that begin a constraint where a column is expected.
const CONSTRAINTS: [Keyword; 10] = [
    Keyword::CHECK,
    Keyword::CONSTRAINT,
    Keyword::EXCLUDE,
    Keyword::FOREIGN,
    Keyword::FULLTEXT,
    Keyword::INDEX,
    Keyword::KEY,
    Keyword::PRIMARY,
    Keyword::SPATIAL,
    Keyword::UNIQUE,
];

fn is_reserved(name: &str) -> bool {
    let Ok(at) = ALL_KEYWORDS.binary_search(&name.to_ascii_uppercase().as_str()) else { return false };
    let reserved = [
        RESERVED_FOR_COLUMN_ALIAS,
        RESERVED_FOR_TABLE_ALIAS,
        RESERVED_FOR_TABLE_FACTOR,
        RESERVED_FOR_IDENTIFIER,
        &CONSTRAINTS,
    ];
    reserved.iter().any(|words| words.contains(&ALL_KEYWORDS_INDEX[at]))
}
