//! Corrections that a debug build omits: `ONEHOP_WITHOUT=lossy_casts,order_names`.
//!
//! A test restores an old fault in this way, to prove that random queries find it: see
//! `tests/differential/mutations.py`. A [pass](passes) is omitted by its name, any other correction
//! by one of [`OTHERS`]. The variable is read once. A release build ignores it.

use std::sync::LazyLock;

use super::passes;
use crate::{Error, ErrorKind, Result};

/// The variable that lists the omitted corrections, separated by commas.
const VARIABLE: &str = "ONEHOP_WITHOUT";

/// The corrections of syntax trees and of functions, which are not passes.
const OTHERS: [&str; 26] = [
    "array_literals",
    "checked_sum",
    "coalesce",
    "decimal_division",
    "float_extremes",
    "grouping",
    "interval_arithmetic",
    "like_escapes",
    "literals",
    "moment_medians",
    "named_windows",
    "nearest_names",
    "order_names",
    "outer_aggregates",
    "quantified",
    "refused",
    "regexp_replacement",
    "regressions",
    "rounded_averages",
    "row_values",
    "same_names",
    "similar_to",
    "subqueries_as_values",
    "table_names",
    "temporal",
    "with_names",
];

static LEFT_OUT: LazyLock<Vec<String>> = LazyLock::new(|| {
    let names = std::env::var(VARIABLE).unwrap_or_default();
    names.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
});

/// Returns true unless the correction of that name is omitted.
pub(super) fn keeps(name: &str) -> bool {
    !cfg!(debug_assertions) || !LEFT_OUT.iter().any(|left_out| left_out == name)
}

/// Fails if an omitted name is unknown. The error lists all names.
pub(crate) fn check() -> Result<()> {
    if !cfg!(debug_assertions) || LEFT_OUT.is_empty() {
        return Ok(());
    }
    let names = names();
    match LEFT_OUT.iter().find(|left_out| !names.contains(left_out)) {
        None => Ok(()),
        Some(unknown) => {
            let message = format!("{VARIABLE}: there is no correction \"{unknown}\"");
            Err(Error::new(ErrorKind::Invalid, message).with_hint(format!("there are: {}", names.join(", "))))
        }
    }
}

/// Returns all names in order.
fn names() -> Vec<String> {
    let mut names: Vec<String> = passes::corrections().into_iter().chain(OTHERS).map(str::to_owned).collect();
    names.sort_unstable();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_and_another_correction_have_names_of_their_own() {
        for name in OTHERS {
            assert!(!passes::corrections().contains(&name), "{name} is a pass as well");
        }
        assert!(names().contains(&"lossy_casts".to_owned()));
        assert!(!names().contains(&"type_coercion".to_owned()));
    }
}
