//! Names of columns by their letters: `Id`, `ID` and `id` have the same.
//!
//! A join by USING or NATURAL JOIN finds a column of exactly the name first, and then the only one
//! of the same letters.

use std::collections::HashMap;

/// The names of one side of a join.
pub(super) struct Spellings<'n> {
    /// In their order, each once.
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
    /// The column that a name means, as it is written: exactly that one, or the only one of the
    /// same letters.
    pub fn of(&self, name: &str) -> Option<&'n str> {
        let same = self.by_letters.get(&name.to_lowercase())?;
        match same.as_slice() {
            [only] => Some(only),
            several => several.iter().find(|other| **other == name).copied(),
        }
    }

    /// The names that are also another side's, as each of both writes them. A column that a side
    /// has exactly is no other's.
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
