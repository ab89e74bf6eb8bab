//! What a URL names: `rados://POOL[.NAMESPACE]/PATH`.
//!
//! The pool is that of the names, which knows where the bytes are. Its name ends at the first dot; a dot or anything else in it
//! can be written in percent (`%2E`). The path is as it is, without any encoding, as paths in SQL texts are.

use std::fmt;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, percent_decode_str, utf8_percent_encode};

/// What the URLs begin with.
pub const SCHEME: &str = "rados";

/// A file system: a pool of names, and a namespace in it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Authority {
    /// The pool of the names.
    pub pool: String,
    /// The namespace; "" is one as well.
    pub namespace: String,
}

/// A path in a file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// Where.
    pub authority: Authority,
    /// Begins with a slash.
    pub path: String,
}

/// A text that is no such URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{url}' does not name a pool and a path: rados://POOL[.NAMESPACE]/PATH")]
pub struct BadUrl {
    /// The text.
    pub url: String,
}

impl Location {
    /// Takes a URL apart.
    ///
    /// # Errors
    /// Without a pool.
    pub fn parse(url: &str) -> Result<Self, BadUrl> {
        let bad = || BadUrl { url: url.into() };
        let rest = url.strip_prefix(SCHEME).and_then(|rest| rest.strip_prefix("://")).ok_or_else(bad)?;
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (pool, namespace) = authority.split_once('.').unwrap_or((authority, ""));
        let authority =
            Authority { pool: decode(pool).ok_or_else(bad)?, namespace: decode(namespace).ok_or_else(bad)? };
        if authority.pool.is_empty() {
            return Err(bad());
        }
        Ok(Self { authority, path: if path.is_empty() { "/".into() } else { path.into() } })
    }
}

impl fmt::Display for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}://{}", encode(&self.pool))?;
        if self.namespace.is_empty() { Ok(()) } else { write!(f, ".{}", encode(&self.namespace)) }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.authority, self.path)
    }
}

/// What is written as it is: the rest means something in URLs, or might.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_');

fn encode(name: &str) -> PercentEncode<'_> {
    utf8_percent_encode(name, ENCODED)
}

fn decode(name: &str) -> Option<String> {
    percent_decode_str(name).decode_utf8().ok().map(String::from)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_a_pool_a_namespace_and_a_path() {
        for (url, pool, namespace, path) in [
            ("rados://meta", "meta", "", "/"),
            ("rados://meta/", "meta", "", "/"),
            ("rados://meta.a/x y/%41.csv", "meta", "a", "/x y/%41.csv"),
            ("rados://meta.a%2Eb/x", "meta", "a.b", "/x"),
            ("rados://%2Ergw%25/x", ".rgw%", "", "/x"),
            ("rados://my pool/x", "my pool", "", "/x"),
        ] {
            let location = Location::parse(url).unwrap();
            let Location { authority, path: found } = &location;
            assert_eq!((&*authority.pool, &*authority.namespace, &**found), (pool, namespace, path), "{url}");
            assert_eq!(Location::parse(&location.to_string()).unwrap(), location);
        }
        for bad in ["rados:/meta/x", "rados:///x", "rados://.ns/x", "s3://meta/x", "rados://%FF/x"] {
            assert_eq!(Location::parse(bad).unwrap_err().url, bad);
        }
    }
}
