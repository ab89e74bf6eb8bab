//! A page about one query: its text, what it took, where its bytes went, and its plan.
//!
//! It stands by itself: one file, no script, nothing loaded from anywhere, which its content security policy enforces.
//! Light or dark as the reader's system is. The plan folds with the keyboard. Whatever comes from the query, its data's
//! names included, is escaped.

use std::fmt::Write;

use onehop_engine::{Explanation, Node};

use super::sankey::Flow;

const STYLE: &str = include_str!("page.css");

/// The page.
pub fn page(explanation: &Explanation) -> String {
    let mut body = format!("<pre class=\"sql\"><code>{}</code></pre>\n", escaped(&explanation.sql));
    if let Some(totals) = &explanation.totals {
        body += "<dl>\n";
        for (name, line) in totals.lines() {
            let _ = writeln!(body, "<div><dt>{name}</dt><dd>{}</dd></div>", escaped(&line));
        }
        body += "</dl>\n<h2>Bytes from storage to answer</h2>\n<figure>\n";
        let flow = Flow::of(explanation, totals);
        body += &flow.svg();
        let _ =
            write!(body, "<details><summary>The same as a table</summary>\n{}</details>\n</figure>\n", flow.table());
    }
    body += "<h2>Plan</h2>\n<div class=\"plan\">\n";
    tree(&explanation.plan, &mut body);
    body += "</div>\n";
    if !explanation.not_fused.is_empty() {
        body += "<h2>Not fused</h2>\n<ul>\n";
        for reason in &explanation.not_fused {
            let _ = writeln!(body, "<li>{}</li>", escaped(reason));
        }
        body += "</ul>\n";
    }
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>Onehop: a query explained</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n\
         <h1>A query explained</h1>\n{body}</main>\n</body>\n</html>\n"
    )
}

fn tree(node: &Node, out: &mut String) {
    let _ = write!(
        out,
        "<details open><summary><b>{}</b> <code>{}</code></summary>\n<ul class=\"figures\">\n",
        escaped(&node.operator),
        escaped(&node.title())
    );
    for line in node.figures() {
        let _ = writeln!(out, "<li>{}</li>", escaped(&line));
    }
    *out += "</ul>\n";
    node.inputs.iter().for_each(|input| tree(input, out));
    *out += "</details>\n";
}

/// A text as HTML has it, between tags and in attributes.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\'' => out += "&#39;",
            // Which HTML does not allow.
            '\0'..='\x08' | '\x0b' | '\x0c' | '\x0e'..='\x1f' | '\x7f'..='\u{9f}' => out.push('\u{fffd}'),
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::escaped;

    #[test]
    fn nothing_of_a_query_is_markup() {
        assert_eq!(escaped("<script a='1' b=\"2\">&"), "&lt;script a=&#39;1&#39; b=&quot;2&quot;&gt;&amp;");
        assert_eq!(escaped("a\u{0}b\n\tc"), "a\u{fffd}b\n\tc");
    }
}
