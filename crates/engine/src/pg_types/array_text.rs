//! Arrays in PostgreSQL's format: `{1,2,NULL,"a b"}`.

/// Returns the items of an array's text; an item is `None` if it is NULL. If arrays are `nested`,
/// an item that is an array is its text. Otherwise such an item is malformed. Returns `None` if the
/// text is not an array.
pub fn items(text: &str, nested: bool) -> Option<Vec<Option<String>>> {
    let inner = text.trim().strip_prefix('{')?.strip_suffix('}')?;
    let (mut values, mut rest) = (Vec::new(), inner.chars().peekable());
    if inner.trim().is_empty() {
        return Some(values);
    }
    loop {
        let mut one = String::new();
        while rest.next_if(|c| c.is_whitespace()).is_some() {}
        let is_text = match rest.peek()? {
            '"' => {
                rest.next();
                loop {
                    match rest.next()? {
                        '"' => break,
                        '\\' => one.push(rest.next()?),
                        c => one.push(c),
                    }
                }
                true
            }
            '{' if nested => {
                take_nested(&mut rest, &mut one)?;
                true
            }
            _ => {
                while let Some(c) = rest.next_if(|c| *c != ',') {
                    match c {
                        '{' | '}' | '"' => return None,
                        '\\' => one.push(rest.next()?),
                        c => one.push(c),
                    }
                }
                one.truncate(one.trim_end().len());
                false
            }
        };
        while rest.next_if(|c| c.is_whitespace()).is_some() {}
        if one.is_empty() && !is_text {
            return None;
        }
        values.push(Some(one).filter(|one| is_text || !one.eq_ignore_ascii_case("null")));
        match rest.next() {
            None => return Some(values),
            Some(',') => {}
            Some(_) => return None,
        }
    }
}

/// Copies an array's text up to its closing brace.
fn take_nested(rest: &mut impl Iterator<Item = char>, one: &mut String) -> Option<()> {
    let (mut depth, mut is_quoted) = (0_usize, false);
    loop {
        let c = rest.next()?;
        one.push(c);
        match c {
            '\\' => one.push(rest.next()?),
            '"' => is_quoted = !is_quoted,
            '{' if !is_quoted => depth += 1,
            '}' if !is_quoted => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::items;

    #[test]
    fn items_are_taken_apart() {
        let some = |text: &str| Some(text.to_string());
        assert_eq!(items("{}", false), Some(vec![]));
        assert_eq!(items(" { 1 , 2 } ", false), Some(vec![some("1"), some("2")]));
        assert_eq!(items(r#"{a,"b c",null,"NULL",""}"#, false).map(|items| items.len()), Some(5));
        assert_eq!(items(r#"{null,"null"}"#, false), Some(vec![None, some("null")]));
        assert_eq!(items(r#"{"a\"b",c\,d}"#, false), Some(vec![some("a\"b"), some("c,d")]));
        assert_eq!(items(r#"{{1,2},{"}"}}"#, true), Some(vec![some("{1,2}"), some(r#"{"}"}"#)]));
        for wrong in ["", "1,2", "{1,2", "{1,,2}", "{,}", "{1}2}", "{\"a\"b}", "{{1},{2}}", "{\\}", "{\"a}"] {
            assert_eq!(items(wrong, false), None, "{wrong}");
        }
        for wrong in ["{{1}", "{{1}2}", "{{\"}"] {
            assert_eq!(items(wrong, true), None, "{wrong}");
        }
    }
}
