//! How deep a statement may nest, and trees made flat that need not be deep.
//!
//! `1 + 1 + ...` is a list to whoever writes it and a tree as deep as it is long to the parser, the planner and every
//! operator; trees are cloned, compared, evaluated and dropped recursively, and a stack that is full ends the process.
//!
//! 1. Before parsing, [`of_tokens`] bounds the depth of what the parser can make of the tokens: operators that follow
//!    each other without a comma between, brackets in brackets. The parser's stack is chosen by it. Words that the parser
//!    recurs on without counting (`INTERVAL INTERVAL ..`, `ARRAY<ARRAY<..`) are limited here.
//! 2. After parsing, and still on that stack, [`settle`] makes long chains of AND, OR, UNION and UNION ALL into balanced
//!    trees: they are associative, and tools write thousands of terms. What is deeper than [`MAX_DEPTH`] then is
//!    refused, and freed where there is room for it. From here on every tree fits any stack.
//! 3. Merging projections makes deep expressions of shallow ones: [`check_plan`] refuses them before they become
//!    operators, which run on the stacks of the runtime's threads.

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

/// Levels that operators, set operations or tables in parentheses may nest: so many fit a thread of 2 MiB in a debug
/// build, when the operators of a query run on it.
pub(super) const MAX_DEPTH: usize = 1000;

/// Operators above each other, counted in the end: each takes more of a stack than an operator in an expression.
const MAX_OPERATORS: usize = 500;

/// Tables that one FROM may join: each is an operator above the one before.
const MAX_JOINS: usize = 200;

/// SELECTs that one statement may have. The optimizer walks all of them some dozens of times.
const MAX_SELECTS: usize = 5_000;

/// WITH queries of one statement. Each is planned again wherever it is used.
const MAX_WITH_QUERIES: usize = 500;

/// Subqueries that expressions of subqueries may hold. DataFusion checks each again for every one that it is in: twice
/// the time a level.
const MAX_SUBQUERIES: usize = 12;

/// Chains up to this length stay as they were written.
pub(super) const MAX_UNBALANCED: usize = 64;

/// `EXPLAIN EXPLAIN ..`, `INT[][][]..`, `ARRAY<ARRAY<..`
const MAX_REPEATED: usize = 32;

/// `INTERVAL INTERVAL ..`: the parser tries each in two ways.
const MAX_INTERVALS: usize = 4;

/// Tokens that may follow each other without a comma: the stack for the tree of more would not be had.
const MAX_CHAIN: usize = 2_000_000;

/// Stack for parsing what nests as deeply as it may.
const BASE_STACK_BYTES: usize = 8 << 20;
/// Stack for parsing a short statement: this, and so much for each token, which begins a level at most. Such a statement is parsed
/// on the stack that is there: to get another one takes longer than to parse it.
const SHORT_STACK_BYTES: usize = 512 << 10;
const LEVEL_STACK_BYTES: usize = 48 << 10;
/// Stack for visiting and dropping one level. An operator has at least two tokens.
const STACK_BYTES_PER_TOKEN: usize = 512;

/// Bytes of stack that parsing the tokens may take.
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
    // Before there is a tree of them, which takes a thousand times their text. What nests, the parser counts.
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

/// Tokens since the last comma, in all brackets that are open.
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

/// What the parser recurs on, or makes trees of, without counting.
#[derive(Default)]
struct Repeated {
    intervals: usize,
    explains: usize,
    type_arguments: usize,
    /// `[]` or `[2]` behind each other.
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

/// Makes balanced trees of long chains, and refuses what is too deep or too large. To be called on the parser's stack.
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

/// What makes a set operation associative with the one below it.
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

/// Of small depth, however many there are.
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

/// Refuses expressions that have become too deep, and operators too many above each other.
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

/// Refuses operators too many above each other, and expressions that are too deep in the end: DataFusion merges
/// projections of operators, too.
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
