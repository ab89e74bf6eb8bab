//! Paths: names between slashes. There is no current directory, and nothing is taken for another name of something else.

use super::super::{Error, Problem, Result};

/// Bytes of a name.
const MAX_NAME_BYTES: usize = 1024;

/// A path, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path<'a> {
    pub whole: &'a str,
    pub names: Vec<&'a str>,
}

impl<'a> Path<'a> {
    /// Slashes at both ends are optional.
    pub fn parse(operation: &'static str, whole: &'a str) -> Result<Self> {
        let trimmed = whole.trim_matches('/');
        let names: Vec<&str> = if trimmed.is_empty() { Vec::new() } else { trimmed.split('/').collect() };
        let bad = |name: &&str| {
            name.is_empty() || *name == "." || *name == ".." || name.len() > MAX_NAME_BYTES || name.contains('\0')
        };
        let path = Self { whole, names };
        if path.names.iter().any(bad) { Err(path.error(operation, Problem::BadName)) } else { Ok(path) }
    }

    /// The names of the directory that it is in, and its own.
    pub fn split(&self, operation: &'static str) -> Result<(&[&'a str], &'a str)> {
        self.names
            .split_last()
            .map(|(name, parents)| (parents, *name))
            .ok_or_else(|| self.error(operation, Problem::Impossible))
    }

    pub fn error(&self, operation: &'static str, problem: Problem) -> Error {
        Error::Path { operation, path: self.whole.into(), problem }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_taken_apart() {
        let path = Path::parse("open", "/a b/ü=1/_x.parquet").unwrap();
        assert_eq!(path.names, ["a b", "ü=1", "_x.parquet"]);
        assert_eq!(Path::parse("open", "a/").unwrap().names, ["a"]);
        assert!(Path::parse("open", "/").unwrap().names.is_empty());
        for bad in ["a//b", "a/./b", "../a", "a\0b"] {
            assert_eq!(Path::parse("open", bad).unwrap_err().problem(), Some(Problem::BadName), "{bad}");
        }
    }
}
