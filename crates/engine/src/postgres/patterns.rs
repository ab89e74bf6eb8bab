//! Rewrites patterns of LIKE and SIMILAR TO with an escape character for DataFusion.

/// Replaces the escape character of a pattern by backslashes. Returns `None` if the pattern ends
/// with it.
pub(crate) fn escaped(pattern: &str, escape: Option<char>) -> Option<String> {
    let mut written = String::with_capacity(pattern.len() + 8);
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        let meant = if Some(c) == escape { Some(chars.next()?) } else { None };
        match meant {
            Some(meant) => written.extend(['\\', meant]),
            None if c == '\\' => written.push_str("\\\\"),
            None => written.push(c),
        }
    }
    Some(written)
}

/// Converts a pattern to a regular expression. Returns `None` if the pattern ends with the escape
/// character.
pub(crate) fn regular(pattern: &str, escape: Option<char>) -> Option<String> {
    let mut written = String::from("^(?s:");
    let mut is_class = false;
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        match c {
            c if Some(c) == escape => {
                let meant = chars.next()?;
                let is_class_of_letters = matches!(meant, 'd' | 'D' | 's' | 'S' | 'w' | 'W');
                if is_class_of_letters || (!meant.is_alphanumeric() && meant.is_ascii()) {
                    written.push('\\');
                }
                written.push(meant);
            }
            '\\' => written.push_str("\\\\"),
            ']' if is_class => {
                is_class = false;
                written.push(']');
            }
            // A class such as `[:alpha:]`.
            '[' if is_class && chars.as_str().starts_with(':') => {
                let (name, rest) = chars.as_str().split_once(":]")?;
                written.extend(["[", name, ":]"]);
                chars = rest.chars();
            }
            '[' if is_class => written.push_str("\\["),
            c if is_class => written.push(c),
            '[' => {
                is_class = true;
                written.push('[');
            }
            '%' => written.push_str(".*"),
            '_' => written.push('.'),
            '.' | '^' | '$' => written.extend(['\\', c]),
            c => written.push(c),
        }
    }
    written.push_str(")$");
    Some(written)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_become_backslashes() {
        for (pattern, escape, meant) in [
            ("a/_b/%//%", Some('/'), Some("a\\_b\\%\\/%")),
            ("a\\_", Some('/'), Some("a\\\\_")),
            ("a/\\b", Some('/'), Some("a\\\\b")),
            ("a\\_", None, Some("a\\\\_")),
            ("a/", Some('/'), None),
        ] {
            assert_eq!(escaped(pattern, escape).as_deref(), meant, "{pattern}");
        }
    }
}
