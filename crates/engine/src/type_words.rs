//! Arrow's names of types in messages of libraries, as SQL has them: `Int64 + Utf8` is
//! `BIGINT + VARCHAR`.

const NAMES: [(&str, &str); 20] = [
    ("Binary", "BYTEA"),
    ("BinaryView", "BYTEA"),
    ("Boolean", "BOOLEAN"),
    ("Date32", "DATE"),
    ("Date64", "DATE"),
    ("Float32", "REAL"),
    ("Float64", "DOUBLE"),
    ("Int16", "SMALLINT"),
    ("Int32", "INTEGER"),
    ("Int64", "BIGINT"),
    ("Int8", "TINYINT"),
    ("LargeBinary", "BYTEA"),
    ("LargeUtf8", "VARCHAR"),
    ("Null", "NULL"),
    ("UInt16", "SMALLINT UNSIGNED"),
    ("UInt32", "INTEGER UNSIGNED"),
    ("UInt64", "BIGINT UNSIGNED"),
    ("UInt8", "TINYINT UNSIGNED"),
    ("Utf8", "VARCHAR"),
    ("Utf8View", "VARCHAR"),
];

/// The text with SQL's names. What is within quotes stays as it is.
pub(crate) fn in_sql(text: &str) -> String {
    let mut written = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let (piece, after) = match first {
            '\'' | '"' => match rest[1..].find(first) {
                Some(end) => (rest[..end + 2].to_string(), &rest[end + 2..]),
                None => (first.to_string(), &rest[1..]),
            },
            _ if is_of_word(first) => {
                let word = rest.split(|c| !is_of_word(c)).next().unwrap_or_default();
                type_at(rest, word).unwrap_or_else(|| (word.to_string(), &rest[word.len()..]))
            }
            _ => (first.to_string(), &rest[first.len_utf8()..]),
        };
        written.push_str(&piece);
        rest = after;
    }
    written
}

fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The type that a text begins with, of which `word` is the first word, and what follows.
fn type_at<'t>(text: &'t str, word: &str) -> Option<(String, &'t str)> {
    let after = &text[word.len()..];
    if let Some((_, name)) = NAMES.iter().find(|(arrow, _)| *arrow == word) {
        return Some(((*name).to_string(), after));
    }
    if !["Decimal128", "Decimal256", "Timestamp", "Time32", "Time64", "Interval", "Duration", "List", "LargeList"]
        .contains(&word)
    {
        return None;
    }
    let (arguments, after) = bracketed(after)?;
    let name = match word {
        "Decimal128" | "Decimal256" => format!("DECIMAL({arguments})"),
        "Timestamp" if arguments.contains('"') => "TIMESTAMPTZ".to_string(),
        "Timestamp" => "TIMESTAMP".to_string(),
        "Time32" | "Time64" => "TIME".to_string(),
        "Interval" | "Duration" => "INTERVAL".to_string(),
        _ => format!("{}[]", in_sql(arguments.trim_start_matches("non-null "))),
    };
    Some((name, after))
}

/// The text within the brackets that a text begins with, and the text behind them.
fn bracketed(text: &str) -> Option<(&str, &str)> {
    let mut depth = 0_usize;
    for (at, c) in text.char_indices() {
        match (c, depth) {
            ('(', _) => depth += 1,
            (_, 0) => return None,
            (')', 1) => return Some((&text[1..at], &text[at + 1..])),
            (')', _) => depth -= 1,
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::in_sql;

    #[test]
    fn types_have_names_of_sql() {
        for (said, expected) in [
            ("Cannot coerce Int64 + Utf8View to valid types", "Cannot coerce BIGINT + VARCHAR to valid types"),
            ("from Time64(ns) to Interval(MonthDayNano)", "from TIME to INTERVAL"),
            ("Timestamp(µs, \"UTC\") and Timestamp(ns), not", "TIMESTAMPTZ and TIMESTAMP, not"),
            ("List(Decimal128(10, 2)) LIKE Int32", "DECIMAL(10, 2)[] LIKE INTEGER"),
            ("the column 'Int64' of \"Utf8\" isn't Date32", "the column 'Int64' of \"Utf8\" isn't DATE"),
            ("Int64s, MyInt64, Timestamp, List(", "Int64s, MyInt64, Timestamp, List("),
            ("Timestamp) is no List)", "Timestamp) is no List)"),
        ] {
            assert_eq!(in_sql(said), expected);
        }
    }
}
