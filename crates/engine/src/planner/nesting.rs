//! Limits on the nesting of a statement, and the balancing of trees that need not be deep.
//!
//! `1 + 1 + ...` is a list to its author. To the parser, the planner and every operator it is a
//! tree as deep as it is long. Trees are cloned, compared, evaluated and dropped recursively, and a
//! stack overflow ends the process.
//!
//! 1. Before parsing, [`of_tokens`] bounds the depth of the tree that the parser can build from the
//!    tokens. It counts operators without a comma between, and brackets in brackets. The bound
//!    determines the parser's stack. [`of_tokens`] also limits words on which the parser recurs
//!    without counting (`INTERVAL INTERVAL ..`, `ARRAY<ARRAY<..`).
//! 2. After parsing, and still on that stack, [`settle`] turns long chains of AND, OR, UNION and
//!    UNION ALL into balanced trees. These operators are associative, and tools write thousands of
//!    terms. A tree that is still deeper than [`MAX_DEPTH`] is refused, and freed on that stack.
//!    From here on every tree fits any stack.
//! 3. Merging projections makes deep expressions of shallow ones. [`check_plan`] refuses them
//!    before they become operators, which run on the stacks of the runtime's threads.

use std::ops::ControlFlow;
use std::sync::Arc;

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion, TreeNodeVisitor};
use datafusion::common::{DataFusionError, Result as DataFusionResult};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::Expr as PlanExpr;
use datafusion::sql::sqlparser::ast::{
    BinaryOperator, Expr, Query, Select, SetExpr, SetOperator, SetQuantifier, TableFactor, Value, Values, VisitMut,
    VisitorMut,
};
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};

use crate::{Error, ErrorKind};

/// The maximum nesting of operators, set operations or tables in parentheses. This many levels fit
/// a thread of 2 MiB in a debug build, when the operators of a query run on it.
pub(super) const MAX_DEPTH: usize = 1000;

/// The maximum number of operators above each other in the final plan. Each takes more stack than
/// an operator in an expression.
const MAX_OPERATORS: usize = 500;

/// The maximum number of tables that one FROM joins. Each is an operator above the one before.
const MAX_JOINS: usize = 200;

/// The maximum number of SELECTs in a statement. The optimizer walks all of them dozens of times.
const MAX_SELECTS: usize = 5_000;

/// The maximum number of WITH queries in a statement. Each is planned again at every use.
const MAX_WITH_QUERIES: usize = 500;

/// The maximum nesting of subqueries in expressions. DataFusion checks each again for every
/// subquery around it, so each level doubles the time.
const MAX_SUBQUERIES: usize = 12;

/// The maximum length of a chain that stays unbalanced.
pub(super) const MAX_UNBALANCED: usize = 64;

/// The maximum repetition in `EXPLAIN EXPLAIN ..`, `INT[][][]..` and `ARRAY<ARRAY<..`.
const MAX_REPEATED: usize = 32;

/// The maximum repetition in `INTERVAL INTERVAL ..`. The parser tries each in two ways.
const MAX_INTERVALS: usize = 4;

/// The maximum number of tokens that follow each other without a comma. The stack for a larger tree
/// could not be allocated.
const MAX_CHAIN: usize = 2_000_000;

/// The stack for parsing a statement of the maximum nesting.
const BASE_STACK_BYTES: usize = 8 << 20;
/// The stack for parsing a short statement: this, plus [`LEVEL_STACK_BYTES`] for each token, which
/// begins at most one level. Such a statement is parsed on the current stack: allocating another
/// takes longer than parsing.
const SHORT_STACK_BYTES: usize = 512 << 10;
const LEVEL_STACK_BYTES: usize = 48 << 10;
/// The stack for visiting and dropping one level. An operator has at least two tokens.
const STACK_BYTES_PER_TOKEN: usize = 512;

/// Returns the bytes of stack that parsing the tokens may take.
pub(super) fn of_tokens(tokens: &[TokenWithSpan]) -> crate::Result<usize> {
    let mut chains = Chains { open: vec![0], sum: 0, longest: 0 };
    let mut repeated = Repeated::default();
    let (mut words, mut selects) = (0, 1);
    for token in tokens {
        if !matches!(token.token, Token::Whitespace(_)) {
            words += 1;
            selects += usize::from(is_set_operator(&token.token));
            chains.add(&token.token);
            repeated.add(&token.token)?;
        }
    }
    // This check precedes the tree, which takes a thousand times the memory of the text. The parser
    // counts nesting.
    if selects > MAX_SELECTS {
        return Err(too_much("the statement has", selects, "SELECTs", MAX_SELECTS));
    }
    if chains.longest > MAX_CHAIN {
        return Err(too_much("the statement has an expression", chains.longest, "tokens without a comma", MAX_CHAIN));
    }
    let for_parser = (SHORT_STACK_BYTES + words * LEVEL_STACK_BYTES).min(BASE_STACK_BYTES);
    Ok(for_parser + chains.longest * STACK_BYTES_PER_TOKEN)
}

fn is_set_operator(token: &Token) -> bool {
    const ALL: [Keyword; 3] = [Keyword::UNION, Keyword::INTERSECT, Keyword::EXCEPT];
    matches!(token, Token::Word(word) if word.quote_style.is_none() && ALL.contains(&word.keyword))
}

/// The number of tokens since the last comma, in all open brackets.
struct Chains {
    open: Vec<usize>,
    sum: usize,
    longest: usize,
}

impl Chains {
    fn add(&mut self, token: &Token) {
        match token {
            Token::LParen | Token::LBracket | Token::LBrace => self.open.push(0),
            Token::RParen | Token::RBracket | Token::RBrace if self.open.len() > 1 => {
                self.sum -= self.open.pop().unwrap_or_default();
            }
            Token::Comma | Token::SemiColon => {
                if let Some(chain) = self.open.last_mut() {
                    self.sum -= std::mem::take(chain);
                }
                return;
            }
            _ => {}
        }
        if let Some(chain) = self.open.last_mut() {
            *chain += 1;
            self.sum += 1;
        }
        self.longest = self.longest.max(self.sum);
    }
}

/// Constructs on which the parser recurs, or of which it builds trees, without counting.
#[derive(Default)]
struct Repeated {
    intervals: usize,
    explains: usize,
    type_arguments: usize,
    /// The number of consecutive `[]` or `[2]`.
    dimensions: usize,
    last: Option<Token>,
}

impl Repeated {
    fn add(&mut self, token: &Token) -> crate::Result<()> {
        let keyword = match token {
            Token::Word(word) if word.quote_style.is_none() => word.keyword,
            _ => Keyword::NoKeyword,
        };
        let is_behind = |wanted: &[Keyword], last: &Option<Token>| match last {
            Some(Token::Word(word)) => word.quote_style.is_none() && wanted.contains(&word.keyword),
            _ => false,
        };
        self.intervals = match keyword {
            Keyword::INTERVAL => self.intervals + 1,
            _ => 0,
        };
        self.explains += usize::from(keyword == Keyword::EXPLAIN);
        match token {
            Token::Lt if is_behind(&[Keyword::ARRAY, Keyword::STRUCT, Keyword::MAP], &self.last) => {
                self.type_arguments += 1;
            }
            Token::Gt => self.type_arguments = self.type_arguments.saturating_sub(1),
            Token::ShiftRight => self.type_arguments = self.type_arguments.saturating_sub(2),
            Token::LBracket if self.last == Some(Token::RBracket) => self.dimensions += 1,
            Token::LBracket | Token::RBracket | Token::Number(..) => {}
            _ => self.dimensions = 0,
        }
        self.last = Some(token.clone());
        for (what, repeated, most) in [
            ("INTERVAL", self.intervals, MAX_INTERVALS),
            ("EXPLAIN", self.explains, MAX_REPEATED),
            ("a type", self.type_arguments.max(self.dimensions), MAX_REPEATED),
        ] {
            if repeated > most {
                return Err(too_deep(what, repeated, most));
            }
        }
        Ok(())
    }
}

/// Balances the trees of long chains, and refuses a tree that is too deep or too large. Must run on
/// the parser's stack.
pub(crate) fn settle(tree: &mut impl VisitMut) -> crate::Result<()> {
    let mut settler = Settler { depth: 0, subqueries: 0, selects: 0, with_queries: 0 };
    match tree.visit(&mut settler) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(error) => Err(*error),
    }
}

struct Settler {
    depth: usize,
    subqueries: usize,
    selects: usize,
    with_queries: usize,
}

type Step = ControlFlow<Box<Error>>;

impl Settler {
    fn enter(&mut self, what: &str) -> Step {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return ControlFlow::Break(Box::new(too_deep(what, self.depth, MAX_DEPTH)));
        }
        ControlFlow::Continue(())
    }

    fn leave(&mut self) -> Step {
        self.depth -= 1;
        ControlFlow::Continue(())
    }

    fn count(count: usize, most: usize, what: &str) -> Step {
        if count > most {
            return ControlFlow::Break(Box::new(too_much("the statement has", count, what, most)));
        }
        ControlFlow::Continue(())
    }
}

impl VisitorMut for Settler {
    type Break = Box<Error>;

    fn pre_visit_query(&mut self, query: &mut Query) -> Step {
        balance_set_operations(&mut query.body);
        self.enter("a query")?;
        let depth = depth_of_set_operations(&query.body);
        if self.depth + depth > MAX_DEPTH {
            return ControlFlow::Break(Box::new(too_deep("a set operation", self.depth + depth, MAX_DEPTH)));
        }
        self.with_queries += query.with.as_ref().map_or(0, |with| with.cte_tables.len());
        Self::count(self.with_queries, MAX_WITH_QUERIES, "WITH queries")
    }

    fn post_visit_query(&mut self, _: &mut Query) -> Step {
        self.leave()
    }

    fn pre_visit_select(&mut self, select: &mut Select) -> Step {
        self.selects += 1;
        Self::count(self.selects, MAX_SELECTS, "SELECTs")?;
        let tables = select.from.iter().map(|table| 1 + table.joins.len()).sum();
        Self::count(tables, MAX_JOINS, "tables in one FROM")
    }

    fn pre_visit_table_factor(&mut self, _: &mut TableFactor) -> Step {
        self.enter("a table in FROM")
    }

    fn post_visit_table_factor(&mut self, _: &mut TableFactor) -> Step {
        self.leave()
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> Step {
        balance_conditions(expr);
        self.subqueries += usize::from(is_subquery(expr));
        if self.subqueries > MAX_SUBQUERIES {
            return ControlFlow::Break(Box::new(too_deep("a subquery", self.subqueries, MAX_SUBQUERIES)));
        }
        self.enter("an expression")
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> Step {
        self.subqueries -= usize::from(is_subquery(expr));
        self.leave()
    }
}

fn is_subquery(expr: &Expr) -> bool {
    matches!(expr, Expr::Subquery(_) | Expr::Exists { .. } | Expr::InSubquery { .. })
}

fn balance_conditions(expr: &mut Expr) {
    let Expr::BinaryOp { op, .. } = &*expr else { return };
    if !matches!(op, BinaryOperator::And | BinaryOperator::Or) {
        return;
    }
    let op = op.clone();
    let is_link = |expr: &Expr| matches!(expr, Expr::BinaryOp { op: other, .. } if *other == op);
    let mut length = 0;
    let mut next = &*expr;
    while let Expr::BinaryOp { left, .. } = next
        && is_link(next)
    {
        length += 1;
        next = left;
    }
    if length <= MAX_UNBALANCED {
        return;
    }
    let nothing = || Expr::Value(Value::Null.into());
    let mut rest = std::mem::replace(expr, nothing());
    let mut terms = Vec::with_capacity(length + 1);
    while is_link(&rest) {
        let Expr::BinaryOp { left, right, .. } = rest else { break };
        terms.push(*right);
        rest = *left;
    }
    terms.push(rest);
    terms.reverse();
    let join = &mut |left, right| Expr::BinaryOp { left: Box::new(left), op: op.clone(), right: Box::new(right) };
    if let Some(balanced) = balanced(terms, join) {
        *expr = balanced;
    }
}

/// Returns the quantifier under which a set operation is associative with the one below it.
fn chained(body: &SetExpr) -> Option<SetQuantifier> {
    match body {
        SetExpr::SetOperation { op: SetOperator::Union, set_quantifier, .. } => match set_quantifier {
            SetQuantifier::All => Some(SetQuantifier::All),
            SetQuantifier::None | SetQuantifier::Distinct => Some(SetQuantifier::Distinct),
            _ => None,
        },
        _ => None,
    }
}

fn balance_set_operations(body: &mut SetExpr) {
    let Some(quantifier) = chained(body) else { return };
    let is_link = |body: &SetExpr| chained(body) == Some(quantifier);
    let mut length = 0;
    let mut next = &*body;
    while let SetExpr::SetOperation { left, .. } = next
        && is_link(next)
    {
        length += 1;
        next = left;
    }
    if length <= MAX_UNBALANCED {
        return;
    }
    let nothing = SetExpr::Values(Values { explicit_row: false, value_keyword: false, rows: Vec::new() });
    let mut rest = std::mem::replace(body, nothing);
    let mut terms = Vec::with_capacity(length + 1);
    while is_link(&rest) {
        let SetExpr::SetOperation { left, right, .. } = rest else { break };
        terms.push(*right);
        rest = *left;
    }
    terms.push(rest);
    terms.reverse();
    let join = &mut |left, right| SetExpr::SetOperation {
        op: SetOperator::Union,
        set_quantifier: quantifier,
        left: Box::new(left),
        right: Box::new(right),
    };
    if let Some(balanced) = balanced(terms, join) {
        *body = balanced;
    }
}

/// Joins terms to a tree of logarithmic depth.
pub(super) fn balanced<T>(mut terms: Vec<T>, join: &mut impl FnMut(T, T) -> T) -> Option<T> {
    if terms.len() <= 1 {
        return terms.pop();
    }
    let right = terms.split_off(terms.len() / 2);
    let left = balanced(terms, join)?;
    let right = balanced(right, join)?;
    Some(join(left, right))
}

fn depth_of_set_operations(body: &SetExpr) -> usize {
    let mut deepest = 0;
    let mut open = vec![(body, 0)];
    while let Some((body, depth)) = open.pop() {
        deepest = deepest.max(depth);
        if let SetExpr::SetOperation { left, right, .. } = body {
            open.push((left.as_ref(), depth + 1));
            open.push((right.as_ref(), depth + 1));
        }
    }
    deepest
}

/// Refuses expressions that have become too deep, and too many operators above each other.
pub(crate) fn check_plan(plan: &LogicalPlan) -> DataFusionResult<()> {
    let mut operators = Operators { depth: 0 };
    plan.visit_with_subqueries(&mut operators).map(drop)
}

struct Operators {
    depth: usize,
}

impl<'n> TreeNodeVisitor<'n> for Operators {
    type Node = LogicalPlan;

    fn f_down(&mut self, plan: &'n LogicalPlan) -> DataFusionResult<TreeNodeRecursion> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(DataFusionError::from(too_deep("the plan", self.depth, MAX_DEPTH)));
        }
        plan.apply_expressions(|expr| {
            expr.visit(&mut Terms { depth: 0 })?;
            Ok(TreeNodeRecursion::Continue)
        })
    }

    fn f_up(&mut self, _: &'n LogicalPlan) -> DataFusionResult<TreeNodeRecursion> {
        self.depth -= 1;
        Ok(TreeNodeRecursion::Continue)
    }
}

struct Terms {
    depth: usize,
}

impl<'n> TreeNodeVisitor<'n> for Terms {
    type Node = PlanExpr;

    fn f_down(&mut self, _: &'n PlanExpr) -> DataFusionResult<TreeNodeRecursion> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(DataFusionError::from(too_deep("an expression", self.depth, MAX_DEPTH)));
        }
        Ok(TreeNodeRecursion::Continue)
    }

    fn f_up(&mut self, _: &'n PlanExpr) -> DataFusionResult<TreeNodeRecursion> {
        self.depth -= 1;
        Ok(TreeNodeRecursion::Continue)
    }
}

/// Refuses too many operators above each other, and expressions that are too deep in the final
/// plan. DataFusion merges projections of operators as well.
pub(super) fn check_operators(plan: &Arc<dyn ExecutionPlan>) -> DataFusionResult<()> {
    let mut deepest = 0;
    let mut open = vec![(plan, 1)];
    while let Some((plan, depth)) = open.pop() {
        deepest = deepest.max(depth);
        open.extend(plan.children().into_iter().map(|child| (child, depth + 1)));
        plan.apply_expressions(&mut |expr| {
            let depth = depth_of_expression(expr);
            if depth > MAX_DEPTH {
                return Err(too_deep("an expression", depth, MAX_DEPTH).into());
            }
            Ok(TreeNodeRecursion::Continue)
        })?;
    }
    if deepest > MAX_OPERATORS {
        return Err(too_deep("the plan", deepest, MAX_OPERATORS).into());
    }
    Ok(())
}

fn depth_of_expression(expr: &Arc<dyn PhysicalExpr>) -> usize {
    let mut deepest = 0;
    let mut open = vec![(expr, 1)];
    while let Some((expr, depth)) = open.pop() {
        deepest = deepest.max(depth);
        if depth <= MAX_DEPTH {
            open.extend(expr.children().into_iter().map(|child| (child, depth + 1)));
        }
    }
    deepest
}

fn too_deep(what: &str, levels: usize, most: usize) -> Error {
    let message = format!("{what} nests {levels} levels deep or more; the limit is {most}");
    Error::new(ErrorKind::Invalid, message).with_hint(
        "split it: into several statements, several columns of a subquery, or a list (x IN (..), VALUES (..), ..)",
    )
}

fn too_much(start: &str, count: usize, what: &str, most: usize) -> Error {
    Error::new(ErrorKind::Invalid, format!("{start} {count} {what} or more; the limit is {most}"))
        .with_hint("split it into several statements, or put the values into a table")
}
