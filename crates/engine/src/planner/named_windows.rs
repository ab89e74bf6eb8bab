//! Windows by name: `OVER w`, `OVER (w ORDER BY v)`, `WINDOW w AS (base ORDER BY v)`.
//!
//! DataFusion reads the name of a window only if it stands alone after OVER, and only in the SELECT
//! list. `sum(v) OVER (w ORDER BY v) .. WINDOW w AS (PARTITION BY id)` loses PARTITION BY. It
//! returns the sum of all rows, not of the rows of an `id` (seen in 55.2.0). So each name is
//! replaced by its definition in the SELECT list, QUALIFY, DISTINCT ON and ORDER BY, before
//! DataFusion plans the statement.
//!
//! The rules are SQL's, as in PostgreSQL. A definition may copy those before it. A copy keeps
//! PARTITION BY, and adds ORDER BY only if the original has none. A window with a frame is used by
//! its name alone: `OVER w`, without parentheses.

use std::collections::HashMap;
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Expr, Function, Ident, NamedWindowDefinition, NamedWindowExpr, OrderBy, Query, Select, VisitMut, VisitorMut,
    WindowSpec, WindowType,
};

use crate::identifiers::normal;
use crate::{Error, ErrorKind, Result};

/// Replaces the names of windows in a SELECT and in the ORDER BY of its query.
///
/// # Errors
/// Fails if a name is used before it is defined, if a name is defined twice, or if SQL forbids a
/// copy.
pub(super) fn rewrite(select: &mut Select, order: Option<&mut OrderBy>) -> Result<()> {
    let mut windows = Windows::of(std::mem::take(&mut select.named_window))?;
    let mut found = select.visit(&mut windows);
    if let (ControlFlow::Continue(()), Some(order)) = (&found, order) {
        found = order.visit(&mut windows);
    }
    match found {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(error) => Err(error),
    }
}

/// The named windows of a SELECT with their definitions.
struct Windows {
    by_name: HashMap<String, WindowSpec>,
    /// The number of queries around the visited expression. They have windows of their own.
    depth: usize,
}

impl Windows {
    fn of(definitions: Vec<NamedWindowDefinition>) -> Result<Self> {
        let mut windows = Self { by_name: HashMap::with_capacity(definitions.len()), depth: 0 };
        for NamedWindowDefinition(name, meaning) in definitions {
            let window = match meaning {
                NamedWindowExpr::NamedWindow(other) => windows.get(&other)?.clone(),
                NamedWindowExpr::WindowSpec(window) => windows.whole(window)?,
            };
            if windows.by_name.insert(normal(&name), window).is_some() {
                return Err(Error::new(ErrorKind::Invalid, format!("window {name} is defined twice"))
                    .with_hint("each window of a WINDOW clause has a name of its own"));
            }
        }
        Ok(windows)
    }

    fn get(&self, name: &Ident) -> Result<&WindowSpec> {
        self.by_name.get(&normal(name)).ok_or_else(|| {
            Error::new(ErrorKind::NotFound, format!("there is no window {name}"))
                .with_hint(format!("WINDOW {name} AS (...) defines it, before the windows that copy it"))
        })
    }

    /// Returns a window with the clauses that it copies.
    fn whole(&self, window: WindowSpec) -> Result<WindowSpec> {
        let Some(name) = &window.window_name else { return Ok(window) };
        let copied = self.get(name)?;
        let refuse = |what: &str, hint: &str| {
            Err(Error::new(ErrorKind::Invalid, format!("a copy of window {name} cannot {what}")).with_hint(hint))
        };
        if !window.partition_by.is_empty() {
            return refuse("have a PARTITION BY", "it has that of the window that it copies");
        }
        if !copied.order_by.is_empty() && !window.order_by.is_empty() {
            return refuse("have an ORDER BY of its own", "the window that it copies has one");
        }
        if copied.window_frame.is_some() {
            return refuse("be made: it has a frame", "OVER and the name, without brackets, use a window as it is");
        }
        let order_by = if window.order_by.is_empty() { copied.order_by.clone() } else { window.order_by };
        let partition_by = copied.partition_by.clone();
        Ok(WindowSpec { window_name: None, partition_by, order_by, window_frame: window.window_frame })
    }

    fn resolve(&self, call: &mut Function) -> Result<()> {
        let window = match &call.over {
            Some(WindowType::NamedWindow(name)) => self.get(name)?.clone(),
            Some(WindowType::WindowSpec(window)) if window.window_name.is_some() => self.whole(window.clone())?,
            _ => return Ok(()),
        };
        call.over = Some(WindowType::WindowSpec(window));
        Ok(())
    }
}

impl VisitorMut for Windows {
    type Break = Error;

    fn pre_visit_query(&mut self, _: &mut Query) -> ControlFlow<Error> {
        self.depth += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &mut Query) -> ControlFlow<Error> {
        self.depth -= 1;
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Error> {
        match expr {
            Expr::Function(call) if self.depth == 0 => match self.resolve(call) {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => ControlFlow::Break(error),
            },
            _ => ControlFlow::Continue(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::{fails, rows};

    const TABLE: &str = "(VALUES (1, 10), (2, 20), (2, 5), (1, 3)) AS t(id, v)";

    #[tokio::test]
    async fn a_copy_has_what_it_copies() {
        for (query, expected) in [
            (
                "SELECT v, sum(v) OVER (w ORDER BY v) AS s FROM t WINDOW w AS (PARTITION BY id) ORDER BY v",
                "3 3,5 5,10 13,20 25",
            ),
            ("SELECT v, count(*) OVER (w) AS s FROM t WINDOW w AS (PARTITION BY id) ORDER BY v", "3 2,5 2,10 2,20 2"),
            (
                "SELECT v FROM t QUALIFY row_number() OVER (W ORDER BY v) = 1 WINDOW w AS (PARTITION BY id) ORDER BY v",
                "3,5",
            ),
            (
                "SELECT v FROM t WINDOW a AS (PARTITION BY id), b AS (a ORDER BY v DESC) ORDER BY rank() OVER b, v",
                "10,20,3,5",
            ),
        ] {
            let query = query.replace("FROM t", &format!("FROM {TABLE}"));
            assert_eq!(rows(&query).await.join(","), expected, "{query}");
        }
    }

    #[tokio::test]
    async fn what_sql_forbids_is_refused_by_name() {
        for (rest, message) in [
            (
                "OVER (w PARTITION BY v) FROM t WINDOW w AS (ORDER BY v)",
                "a copy of window w cannot have a PARTITION BY",
            ),
            ("OVER (w ORDER BY v) FROM t WINDOW w AS (ORDER BY v)", "cannot have an ORDER BY of its own"),
            ("OVER (w) FROM t WINDOW w AS (ORDER BY v ROWS 1 PRECEDING)", "it has a frame"),
            ("OVER nosuch FROM t", "there is no window nosuch"),
            ("OVER a FROM t WINDOW a AS (b), b AS (ORDER BY v)", "there is no window b"),
            ("OVER a FROM t WINDOW a AS (ORDER BY v), A AS (ORDER BY id)", "window A is defined twice"),
        ] {
            let query = format!("SELECT count(*) {rest}").replace("FROM t", &format!("FROM {TABLE}"));
            let error = fails(&query).await;
            assert!(error.message().contains(message), "{query}: {error}");
        }
    }
}
