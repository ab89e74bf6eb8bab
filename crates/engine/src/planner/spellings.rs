//! Names of columns that ignore case: `Id`, `ID` and `id` match.
//!
//! A join by USING or NATURAL JOIN prefers an exact match. Otherwise it finds the only column that
//! matches if case is ignored.

use std::collections::HashMap;

/// The names of one side of a join.
pub(super) struct Spellings<'n> {
    /// The names in their order, without repetition.
    names: Vec<&'n str>,
    by_letters: HashMap<String, Vec<&'n str>>,
}

impl<'n> FromIterator<&'n str> for Spellings<'n> {
    fn from_iter<T: IntoIterator<Item = &'n str>>(all: T) -> Self {
        let (mut names, mut by_letters) = (Vec::new(), HashMap::<String, Vec<&str>>::new());
        for name in all {
            let same = by_letters.entry(name.to_lowercase()).or_default();
            if !same.contains(&name) {
                same.push(name);
                names.push(name);
            }
        }
        Self { names, by_letters }
    }
}

impl<'n> Spellings<'n> {
    /// Returns the column to which a name refers, as it is spelled: an exact match, or the only one
    /// that matches if case is ignored.
    pub fn of(&self, name: &str) -> Option<&'n str> {
        let same = self.by_letters.get(&name.to_lowercase())?;
        match same.as_slice() {
            [only] => Some(only),
            several => several.iter().find(|other| **other == name).copied(),
        }
    }

    /// Returns the names that another side has as well, in the spelling of each side. A column that
    /// a side has exactly matches no other.
    pub fn common<'m>(&self, others: &Spellings<'m>) -> Vec<(&'n str, &'m str)> {
        let pair = |name: &&'n str| {
            let other = others.of(name)?;
            (self.of(other) == Some(*name)).then_some((*name, other))
        };
        self.names.iter().filter_map(pair).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_means_one_column() {
        let of = |names: &[&'static str]| names.iter().copied().collect::<Spellings<'static>>();
        let several = of(&["Id", "x", "ID", "Id"]);
        for (name, expected) in [("Id", Some("Id")), ("ID", Some("ID")), ("id", None), ("X", Some("x")), ("y", None)] {
            assert_eq!(several.of(name), expected, "{name}");
        }
        assert_eq!(several.common(&of(&["X", "ID", "id"])), [("x", "X"), ("ID", "ID")]);
        assert_eq!(of(&["Id", "b"]).common(&of(&["ID", "c"])), [("Id", "ID")]);
        assert_eq!(of(&["Id"]).common(&several), [("Id", "Id")]);
        assert!(of(&["iD"]).common(&several).is_empty());
    }
}
