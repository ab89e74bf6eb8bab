//! The clauses that the parser accepts and the planner ignores, each with a suggested replacement
//! and an example statement.
//!
//! [`tree`](super::tree) refuses them. The tests run each example.

use crate::{Error, ErrorKind};

/// A clause that is refused.
#[derive(Debug)]
pub(super) struct Clause {
    /// Its keywords, as the error names it.
    pub name: &'static str,
    /// The hint of the error.
    pub hint: &'static str,
    /// A statement that contains the clause.
    #[cfg(test)]
    pub example: &'static str,
}

impl Clause {
    /// Returns the error for this clause.
    pub fn error(&self) -> Error {
        Error::new(ErrorKind::Invalid, format!("{} is not supported", self.name)).with_hint(self.hint)
    }
}

macro_rules! clauses {
    ($($constant:ident $name:literal, $hint:literal, $example:literal;)*) => {
        $(pub(super) const $constant: Clause = Clause {
            name: $name,
            hint: $hint,
            #[cfg(test)]
            example: $example,
        };)*

        /// All clauses.
        #[cfg(test)]
        pub(super) const ALL: &[&Clause] = &[$(&$constant),*];
    };
}

clauses! {
    LOCKS "FOR UPDATE or FOR SHARE here",
        "the rows that a SELECT, an UPDATE or a DELETE reads can be locked, for the rest of the transaction",
        "SELECT a FROM t FOR UPDATE";
    FOR_XML_OR_JSON "FOR XML or FOR JSON",
        "COPY (SELECT ...) TO 'file.json' writes JSON",
        "SELECT a FROM t FOR JSON AUTO";
    QUERY_SETTINGS "SETTINGS in a query",
        "SET name = value holds for the session",
        "SELECT a FROM t SETTINGS max_threads = 1";
    FORMAT "FORMAT in a query",
        "COPY (SELECT ...) TO 'file.csv' writes a format",
        "SELECT a FROM t FORMAT CSV";
    CTE_FROM "FROM behind a query of WITH",
        "WITH c AS (SELECT ...) SELECT ... FROM c",
        "WITH c AS (SELECT a FROM t) FROM t SELECT a FROM c";
    LIMIT_BY "LIMIT ... BY",
        "QUALIFY row_number() OVER (PARTITION BY a ORDER BY b) <= 2",
        "SELECT a FROM t LIMIT 1 BY a";
    INTERPOLATE "INTERPOLATE",
        "generate_series() makes the rows that are missing, for a LEFT JOIN",
        "SELECT a FROM t ORDER BY a WITH FILL INTERPOLATE";
    WITH_FILL "ORDER BY ... WITH FILL",
        "generate_series() makes the rows that are missing, for a LEFT JOIN",
        "SELECT a FROM t ORDER BY a WITH FILL";
    MODIFIERS "a word of MySQL's behind SELECT",
        "SELECT, and the columns",
        "SELECT SQL_CALC_FOUND_ROWS a FROM t";
    TOP "TOP",
        "LIMIT 10, behind ORDER BY",
        "SELECT TOP 1 a FROM t";
    EXCLUDE_OF_LIST "EXCLUDE of a whole SELECT list",
        "EXCLUDE stands behind the *: SELECT * EXCLUDE (a)",
        "SELECT *, a EXCLUDE (b) FROM t";
    LATERAL_VIEW "LATERAL VIEW",
        "unnest(list) in the SELECT list makes rows of a list",
        "SELECT a FROM t LATERAL VIEW explode(b) x AS y";
    PREWHERE "PREWHERE",
        "WHERE says the same",
        "SELECT a FROM t PREWHERE a > 1";
    CONNECT_BY "CONNECT BY",
        "WITH RECURSIVE walks a tree",
        "SELECT a FROM t START WITH a = 1 CONNECT BY PRIOR a = b";
    WITH_ROLLUP "GROUP BY ... WITH ROLLUP",
        "GROUP BY ROLLUP (a, b) says the same",
        "SELECT a, sum(b) FROM t GROUP BY a WITH ROLLUP";
    WITH_CUBE "GROUP BY ... WITH CUBE",
        "GROUP BY CUBE (a, b) says the same",
        "SELECT a, sum(b) FROM t GROUP BY a WITH CUBE";
    WITH_TOTALS "GROUP BY ... WITH TOTALS",
        "GROUP BY GROUPING SETS ((a, b), ()) has the totals",
        "SELECT a, sum(b) FROM t GROUP BY a WITH TOTALS";
    GROUPING_SETS_BEHIND "GROUP BY a GROUPING SETS (...) without a comma",
        "GROUP BY GROUPING SETS ((a, b), ()) says the same",
        "SELECT a, sum(b) FROM t GROUP BY a GROUPING SETS ((a), ())";
    CLUSTER_BY "CLUSTER BY in a query",
        "ORDER BY sorts the result; CLUSTER BY belongs to CREATE TABLE",
        "SELECT a FROM t CLUSTER BY a";
    DISTRIBUTE_BY "DISTRIBUTE BY",
        "the engine distributes rows by itself",
        "SELECT a FROM t DISTRIBUTE BY a";
    SORT_BY "SORT BY",
        "ORDER BY sorts the result",
        "SELECT a FROM t SORT BY a";
    VALUE_TABLE "SELECT AS STRUCT or AS VALUE",
        "SELECT {'a': a} AS s makes a struct",
        "SELECT AS STRUCT a FROM t";
    SEVERAL_ALIASES "several names for one column",
        "each column has one name: SELECT a AS x, b AS y",
        "SELECT a AS (x, y) FROM t";
    STAR_ILIKE "SELECT * ILIKE",
        "name the columns, or those to leave out: SELECT * EXCLUDE (a)",
        "SELECT * ILIKE 'a%' FROM t";
    STAR_RENAME "SELECT * RENAME",
        "SELECT * EXCLUDE (a), a AS x gives a column another name",
        "SELECT * RENAME (a AS x) FROM t";
    STAR_ALIAS "a name for *",
        "each column has a name of its own",
        "SELECT t.* AS x FROM t";
    STAR_OF_EXPRESSION "* of an expression",
        "s.a takes one value of a struct",
        "SELECT (t).* FROM t";
    GLOBAL_JOIN "GLOBAL JOIN",
        "JOIN says the same",
        "SELECT 1 FROM t GLOBAL JOIN u ON t.a = u.a";
    JOIN_OF_ALL "a JOIN without ON or USING",
        "JOIN ... ON says which rows belong together; CROSS JOIN makes all pairs",
        "SELECT count(*) FROM t JOIN u";
    CROSS_JOIN_ON "CROSS JOIN with ON or USING",
        "JOIN ... ON says which rows belong together",
        "SELECT count(*) FROM t CROSS JOIN u ON t.a = u.a";
    ARRAY_JOIN "ARRAY JOIN",
        "unnest(list) in the SELECT list makes rows of a list",
        "SELECT a FROM t ARRAY JOIN b";
    TABLE_SAMPLE "TABLESAMPLE",
        "WHERE random() < 0.1 keeps about a tenth of the rows",
        "SELECT a FROM (SELECT a FROM t) AS s TABLESAMPLE BERNOULLI (10)";
    TABLE_HINTS "WITH (...) behind a table",
        "the planner chooses by itself",
        "SELECT a FROM t WITH (NOLOCK)";
    TABLE_VERSION "a version of a table",
        "a transaction reads one version: BEGIN",
        "SELECT a FROM t FOR SYSTEM_TIME AS OF '2024-01-01'";
    TABLE_PARTITIONS "PARTITION behind a table",
        "a condition on the column reads no other partition",
        "SELECT a FROM t PARTITION (p0)";
    TABLE_PATH "a path behind a table",
        "s['a'] takes one value of a struct",
        "SELECT 1 FROM t[0].a";
    INDEX_HINTS "USE, FORCE or IGNORE INDEX",
        "the planner chooses by itself",
        "SELECT a FROM t USE INDEX (i)";
    FUNCTION_SETTINGS "SETTINGS of a table function",
        "SET name = value holds for the session",
        "SELECT 1 FROM generate_series(1, 3, SETTINGS x = 1)";
    ORDINALITY "WITH ORDINALITY",
        "unnest() and generate_series() have it; row_number() OVER () counts rows in a query around another",
        "SELECT 1 FROM range(1, 3) WITH ORDINALITY";
    UNNEST_OFFSET "UNNEST ... WITH OFFSET",
        "row_number() OVER () counts rows in a query around it",
        "SELECT 1 FROM unnest([1, 2]) WITH OFFSET";
    TABLE_OF_EXPRESSION "TABLE(...)",
        "a function stands in FROM by itself: FROM generate_series(1, 3)",
        "SELECT 1 FROM TABLE(generate_series(1, 3))";
    JSON_TABLE "JSON_TABLE",
        "files are named in quotes: FROM 'x.json'",
        "SELECT 1 FROM JSON_TABLE('[1]', '$[*]' COLUMNS (x INT PATH '$')) AS j";
    OPEN_JSON "OPENJSON",
        "files are named in quotes: FROM 'x.json'",
        "SELECT 1 FROM OPENJSON('[1]') AS j";
    PIVOT "PIVOT",
        "sum(x) FILTER (WHERE k = 1) for each value of k, with GROUP BY, makes the same columns",
        "SELECT * FROM t PIVOT (sum(b) FOR a IN (1, 2))";
    UNPIVOT "UNPIVOT",
        "UNION ALL makes rows of columns",
        "SELECT * FROM t UNPIVOT (v FOR k IN (a, b))";
    MATCH_RECOGNIZE "MATCH_RECOGNIZE",
        "lag() and lead() look at rows before and behind",
        "SELECT 1 FROM t MATCH_RECOGNIZE (ORDER BY a PATTERN (X) DEFINE X AS a > 1)";
    XML_TABLE "XMLTABLE",
        "XML has to be taken apart before it comes here",
        "SELECT 1 FROM XMLTABLE('/a' PASSING '<a/>' COLUMNS x INT PATH 'b') AS x";
    TYPED_COLUMNS "types behind the columns of a table's alias",
        "CAST(column AS type) in the SELECT list",
        "SELECT x FROM (SELECT 1) AS s(x INT)";
    PARAMETERS_OF_FUNCTION "a function with two lists of arguments",
        "all arguments stand in one list: quantile_cont(x, 0.5)",
        "SELECT quantile_cont(0.5)(a) FROM t";
    QUERY_AS_ARGUMENTS "a query in place of a function's arguments",
        "a query in brackets of its own is an argument: abs((SELECT 1))",
        "SELECT abs(SELECT 1)";
    LIMIT_IN_ARGUMENTS "LIMIT within a function",
        "a subquery in FROM can have a LIMIT",
        "SELECT array_agg(a LIMIT 1) FROM t";
    ON_OVERFLOW "ON OVERFLOW",
        "a text may have 2 GiB",
        "SELECT listagg(a, ',' ON OVERFLOW TRUNCATE WITHOUT COUNT) FROM t";
    HAVING_IN_ARGUMENTS "HAVING MIN or MAX within a function",
        "first_value(a ORDER BY b) takes the value at the least b",
        "SELECT any_value(a HAVING MIN b) FROM t";
    SEPARATOR "SEPARATOR",
        "string_agg(text, separator) takes it as an argument",
        "SELECT group_concat(a SEPARATOR ',') FROM t";
    JSON_CLAUSES "a clause of a JSON function",
        "the function, without ABSENT ON NULL, NULL ON NULL or RETURNING",
        "SELECT json_object('a': 1 ABSENT ON NULL)";
    COLLATION "COLLATE",
        "texts compare by their bytes, as COLLATE \"C\" does; lower(text) compares without regard to case",
        "SELECT a FROM t ORDER BY CAST(a AS VARCHAR) COLLATE nocase";
    OUTER_JOIN_MARK "(+) behind a column",
        "LEFT JOIN says the same",
        "SELECT 1 FROM t, u WHERE t.a = u.a(+)";
}

#[cfg(test)]
mod tests {
    use super::ALL;
    use crate::planner::tests::fails;
    use crate::planner::{parse_tokens, tokens};
    use crate::{Error, ErrorKind};
    use datafusion::sql::sqlparser::tokenizer::Token;

    /// The clauses that the dialect does not parse. They are refused by name as soon as it does.
    const NOT_PARSED: &[&str] = &[
        "FROM behind a query of WITH",
        "EXCLUDE of a whole SELECT list",
        "SELECT AS STRUCT or AS VALUE",
        "a name for *",
        "* of an expression",
        "CROSS JOIN with ON or USING",
        "a version of a table",
        "a path behind a table",
        "USE, FORCE or IGNORE INDEX",
        "a query in place of a function's arguments",
        "a clause of a JSON function",
        "(+) behind a column",
    ];

    /// The clauses whose keywords the dialect reads as a column.
    const ARE_COLUMNS: &[&str] = &["a word of MySQL's behind SELECT"];

    /// Parses the whole text as one statement.
    fn parse(text: &str) -> Result<(), Error> {
        parse_tokens(tokens(text)?, |parser| {
            parser.parse_statement()?;
            match parser.parser.peek_token().token {
                Token::EOF => Ok(()),
                other => Err(Error::new(ErrorKind::Syntax, format!("{other} is left"))),
            }
        })
    }

    #[tokio::test]
    async fn every_clause_is_refused_by_name() {
        let mut wrong = Vec::new();
        for clause in ALL {
            let is_parsed = parse(clause.example).is_ok();
            if is_parsed == NOT_PARSED.contains(&clause.name) {
                wrong.push(format!("{}: parsed: {is_parsed}", clause.example));
            }
            if !is_parsed || ARE_COLUMNS.contains(&clause.name) {
                continue;
            }
            let error = fails(clause.example).await;
            if error.message() != format!("{} is not supported", clause.name) {
                wrong.push(format!("{}: {error}", clause.example));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}
