//! Selects queries by the names that people use.
//!
//! 1. A text is a comma-separated list of items; an item is a name or a range of two (`1.1-2.3`,
//!    `q01..q06`).
//! 2. A name is a number as the benchmark writes it, with or without `q`, leading zeroes or
//!    capitals: `q2.1`, `2.1`, `Q01`, `1`. The number of a group is the whole group: `2` of the
//!    Star Schema Benchmark is q2.1 to q2.3.
//! 3. A range goes from the first query of its first name to the last of its second.
//! 4. Queries are returned in the order in which they were named, each once.

use super::Query;

/// Returns the queries among `all` that `text` names.
///
/// # Errors
/// Returns a message with the unknown name and the known ones.
pub fn choose(all: &[Query], text: &str) -> Result<Vec<Query>, String> {
    let mut chosen: Vec<Query> = Vec::new();
    for item in text.split(',') {
        let range = item.split_once("..").or_else(|| item.split_once('-'));
        let (first, last) = range.unwrap_or((item, item));
        let (start, _) = find(all, first)?;
        let (_, end) = find(all, last)?;
        if start >= end {
            return Err(format!("{} ends before it begins; {}", item.trim(), known(all)));
        }
        chosen.extend(&all[start..end]);
    }
    let mut seen = std::collections::HashSet::new();
    chosen.retain(|query| seen.insert(query.id));
    Ok(chosen)
}

/// Returns the start and the end of the queries of a name.
fn find(all: &[Query], name: &str) -> Result<(usize, usize), String> {
    let unknown = || match name.trim() {
        "" => format!("the name of a query is missing; {}", known(all)),
        name => format!("there is no query {name}; {}", known(all)),
    };
    let wanted = parse(name).ok_or_else(unknown)?;
    let fits =
        |query: &Query| parse(query.id).is_some_and(|id| id.0 == wanted.0 && (wanted.1.is_none() || id == wanted));
    let start = all.iter().position(fits).ok_or_else(unknown)?;
    let end = all.iter().rposition(fits).ok_or_else(unknown)?;
    Ok((start, end + 1))
}

/// Parses `q2.1` as (2, Some(1)), `Q06` as (6, None).
fn parse(name: &str) -> Option<(u8, Option<u8>)> {
    let name = name.trim();
    let number = name.strip_prefix(['q', 'Q']).unwrap_or(name);
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten();
    match number.split_once('.') {
        Some((group, query)) => Some((digits(group)?, Some(digits(query)?))),
        None => Some((digits(number)?, None)),
    }
}

fn known(all: &[Query]) -> String {
    let ids: Vec<&str> = all.iter().map(|query| query.id).collect();
    format!("there are {}", ids.join(", "))
}

#[cfg(test)]
mod tests {
    use super::super::{SSB, TPCH};
    use super::*;

    fn ids(all: &[Query], text: &str) -> String {
        match choose(all, text) {
            Ok(queries) => queries.iter().map(|query| query.id).collect::<Vec<_>>().join(" "),
            Err(message) => message,
        }
    }

    #[test]
    fn names_are_taken_as_people_write_them() {
        for name in ["q1.1", "1.1", "Q1.1", " q01.1 "] {
            assert_eq!(ids(&SSB, name), "q1.1");
        }
        for name in ["q01", "q1", "1", "Q01", "01"] {
            assert_eq!(ids(&TPCH, name), "q01");
        }
        assert_eq!(ids(&TPCH, "22"), "q22");
    }

    #[test]
    fn a_group_is_all_its_queries() {
        assert_eq!(ids(&SSB, "1"), "q1.1 q1.2 q1.3");
        assert_eq!(ids(&SSB, "q3"), "q3.1 q3.2 q3.3 q3.4");
    }

    #[test]
    fn lists_and_ranges_keep_their_order_and_repeat_nothing() {
        assert_eq!(ids(&SSB, "4.1,1.2-2.1, 1.3"), "q4.1 q1.2 q1.3 q2.1");
        assert_eq!(ids(&SSB, "3.4..4"), "q3.4 q4.1 q4.2 q4.3");
        assert_eq!(ids(&TPCH, "q20-22,1..3"), "q20 q21 q22 q01 q02 q03");
        assert_eq!(choose(&SSB, "1.1..4.3"), Ok(SSB.to_vec()));
        assert_eq!(choose(&TPCH, "1-22"), Ok(TPCH.to_vec()));
    }

    #[test]
    fn what_is_no_name_brings_those_that_are() {
        for (all, text) in [
            (SSB.as_slice(), "5"),
            (&SSB, "1.4"),
            (&SSB, "q"),
            (&SSB, "1.1.1"),
            (&SSB, "+1"),
            (&TPCH, "23"),
            (&TPCH, "0"),
            (&TPCH, "1.1"),
            (&TPCH, "257"),
        ] {
            let message = ids(all, text);
            assert!(message.starts_with(&format!("there is no query {text}; there are {}, ", all[0].id)), "{message}");
        }
        assert!(ids(&SSB, "1.1,").starts_with("the name of a query is missing; there are q1.1, "));
        assert!(ids(&SSB, "").starts_with("the name of a query is missing"));
        assert!(ids(&TPCH, "5-2").starts_with("5-2 ends before it begins; there are q01, "));
    }
}
