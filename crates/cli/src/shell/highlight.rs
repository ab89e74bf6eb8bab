//! Colours for a line of SQL. They add no width.

use super::lex::{Kind, lex};
use super::words::is_keyword;

/// Returns `line` with its keywords, strings, numbers and comments coloured.
pub fn highlight(line: &str) -> String {
    let mut out = String::with_capacity(line.len() * 2);
    let mut done = 0;
    for token in lex(line) {
        let text = &line[token.at.clone()];
        out.push_str(&line[done..token.at.start]);
        done = token.at.end;
        let code = match token.kind {
            Kind::Word if is_keyword(text) => "1;34",
            Kind::Text => "32",
            Kind::Number => "36",
            Kind::Comment => "2",
            Kind::Word | Kind::Name | Kind::Symbol => {
                out.push_str(text);
                continue;
            }
        };
        out.push_str(&format!("\x1b[{code}m{text}\x1b[0m"));
    }
    out.push_str(&line[done..]);
    out
}

#[cfg(test)]
mod tests {
    use super::highlight;

    #[test]
    fn only_colours_are_added() {
        assert_eq!(highlight("select a, 1 "), "\x1b[1;34mselect\x1b[0m a, \x1b[36m1\x1b[0m ");
        assert_eq!(highlight("  'x"), "  \x1b[32m'x\x1b[0m");
        assert_eq!(highlight(""), "");
    }
}
