//! Renders a page about one query: its text, its totals, its data movement and its plan.
//!
//! The page is self-contained: one file, without scripts and external resources, which its content
//! security policy enforces. It is light or dark as the reader's system is. The plan folds with the
//! keyboard. All text from the query, including names in its data, is escaped.

use std::fmt::Write;

use super::sankey::Flow;
use super::{Explanation, Node};

/// The style sheet of an explanation.
pub const STYLE: &str = include_str!("page.css");

/// Returns the page.
pub(super) fn page(explanation: &Explanation) -> String {
    let (sql, body) = (escaped(&explanation.sql), body(explanation));
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>Onehop: a query explained</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n\
         <h1>A query explained</h1>\n<pre class=\"sql\" tabindex=\"0\"><code>{sql}</code></pre>\n{body}</main>\n</body>\n\
         </html>\n"
    )
}

/// Returns the totals, the data movement and the plan.
pub(super) fn body(explanation: &Explanation) -> String {
    let mut body = String::new();
    if let Some(totals) = &explanation.totals {
        body += "<dl>\n";
        for (name, line) in totals.lines() {
            let _ = writeln!(body, "<div><dt>{name}</dt><dd>{}</dd></div>", escaped(&line));
        }
        body += "</dl>\n";
    }
    body += "<div class=\"parts\">\n";
    if let Some(totals) = &explanation.totals {
        body += &figure(&Flow::of(explanation, totals));
    }
    body += "<section class=\"plan\">\n<h2>Plan</h2>\n";
    tree(&explanation.plan, &mut body);
    body += "</section>\n</div>\n";
    if !explanation.not_fused.is_empty() {
        body += "<h2>Not fused</h2>\n<ul>\n";
        for reason in &explanation.not_fused {
            let _ = writeln!(body, "<li>{}</li>", escaped(reason));
        }
        body += "</ul>\n";
    }
    body
}

/// Returns the drawing, its legend, and its figures.
fn figure(flow: &Flow) -> String {
    let head = "<section class=\"flow\">\n<h2>Bytes from storage to answer</h2>\n";
    if flow.is_empty() {
        return format!("{head}<p>None: nothing was read, from storage or from memory.</p>\n</section>\n");
    }
    let legend = [
        ("origin", "storage and caches"),
        ("scan", "scans"),
        ("table", "join tables and groups"),
        ("answer", "answer"),
    ];
    let legend = legend.map(|(class, what)| format!("<li><i class=\"{class}\"></i>{what}</li>")).concat();
    // The region is focusable, so that it scrolls without a mouse.
    format!(
        "{head}<figure>\n<div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"Diagram\">\n{}</div>\n\
         <ul class=\"legend\">{legend}</ul>\n\
         <details><summary>The same as a table</summary>\n<div class=\"wide\" tabindex=\"0\" role=\"region\" \
         aria-label=\"Table\">\n{}</div></details>\n</figure>\n</section>\n",
        flow.svg(),
        flow.table()
    )
}

fn tree(node: &Node, out: &mut String) {
    // The fraction of its pipeline's time, as a bar.
    let share = node.sampled.map(|sampled| (sampled.share * 100.0).clamp(0.0, 100.0));
    let share = share.map(|percent| {
        format!(
            " <span class=\"share\" title=\"about {percent:.0} % of the time of its pipeline's threads\"><i \
             style=\"width:{percent:.0}%\"></i><span>{percent:.0} %</span></span>"
        )
    });
    let class = if ["Cpu", "Gpu"].iter().any(|ours| node.operator.starts_with(ours)) { "ours" } else { "others" };
    let _ = write!(
        out,
        "<details open><summary><b class=\"{class}\">{}</b> <code>{}</code>{}</summary>\n<ul class=\"figures\">\n",
        escaped(&node.operator),
        escaped(&node.title()),
        share.unwrap_or_default()
    );
    for line in node.figures() {
        let _ = writeln!(out, "<li>{}</li>", escaped(&line));
    }
    *out += "</ul>\n";
    node.inputs.iter().for_each(|input| tree(input, out));
    *out += "</details>\n";
}

/// Escapes text for HTML, between tags and in attributes.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\'' => out += "&#39;",
            // Characters that HTML does not allow.
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
