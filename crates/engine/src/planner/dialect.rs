//! `a IS DISTINCT FROM b OR c` is `(a IS DISTINCT FROM b) OR c`.
//!
//! sqlparser 0.62 parses everything after `IS [NOT] DISTINCT FROM` as its right side.
//! `x IS DISTINCT FROM 1 AND y` then compares x with `1 AND y`: wrong rows, or a type error. This
//! module is its generic dialect with PostgreSQL's precedence for that operator: tighter than NOT,
//! AND and OR, looser than comparisons.
//!
//! `x IN ((SELECT max(y) FROM t), 5)` is a list whose first value is a subquery. sqlparser parses
//! the subquery as the whole list and misses the parenthesis after it.
//!
//! A `CASE` or `CAST(` that does not parse might be a column of that name, so the parser
//! backtracks. It tries twice for each enclosing one, so a parenthesis missing in thirty of them
//! takes exponential time. The dialect counts the expressions that the parser begins, and fails if
//! there are many times more than tokens.

use std::any::TypeId;
use std::cell::Cell;

use datafusion::sql::sqlparser::ast::Expr;
use datafusion::sql::sqlparser::dialect::{Dialect as SqlDialect, GenericDialect};
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::parser::{Parser, ParserError};
use datafusion::sql::sqlparser::tokenizer::Token;

/// The maximum number of operators in a chain before IS DISTINCT FROM.
const MAX_LEFT: usize = 100;

/// Returns the number of operators along the left spine, counted up to just above [`MAX_LEFT`].
fn spine(mut expr: &Expr) -> usize {
    let mut length = 0;
    while let Expr::BinaryOp { left, .. } | Expr::IsDistinctFrom(left, _) | Expr::IsNotDistinctFrom(left, _) = expr
        && length <= MAX_LEFT
    {
        length += 1;
        expr = left;
    }
    length
}

/// Returns whether `[NOT] IN ((SELECT ..), ..` or `IN ((SELECT ..) + 1 ..` follows.
fn is_list_of_subquery(parser: &Parser<'_>) -> bool {
    let mut tokens = (0..).map(|place| parser.peek_nth_token_no_skip(place).token);
    let mut tokens = tokens.by_ref().filter(|token| !matches!(token, Token::Whitespace(_)));
    let is_word = |token: Option<Token>, keywords: &[Keyword]| matches!(token, Some(Token::Word(word)) if word.quote_style.is_none() && keywords.contains(&word.keyword));
    let first = tokens.next();
    let is_in = match is_word(first.clone(), &[Keyword::NOT]) {
        true => is_word(tokens.next(), &[Keyword::IN]),
        false => is_word(first, &[Keyword::IN]),
    };
    let opens = |token: Option<Token>| token == Some(Token::LParen);
    if !is_in
        || !opens(tokens.next())
        || !opens(tokens.next())
        || !is_word(tokens.next(), &[Keyword::SELECT, Keyword::WITH])
    {
        return false;
    }
    let mut depth = 1_usize;
    for token in tokens.by_ref() {
        match token {
            Token::LParen => depth += 1,
            Token::RParen => depth -= 1,
            Token::EOF => return false,
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    let of_query = [
        Keyword::UNION,
        Keyword::EXCEPT,
        Keyword::INTERSECT,
        Keyword::MINUS,
        Keyword::ORDER,
        Keyword::LIMIT,
        Keyword::OFFSET,
        Keyword::FETCH,
    ];
    match tokens.next() {
        Some(Token::RParen | Token::EOF) | None => false,
        token => !is_word(token, &of_query),
    }
}

/// The number of expressions that the parser may begin: per token, plus a constant.
const ATTEMPTS_PER_TOKEN: usize = 32;
const ATTEMPTS: usize = 100_000;

/// The SQL dialect of one statement text.
#[derive(Debug)]
pub(crate) struct Dialect {
    attempts_left: Cell<usize>,
}

impl Dialect {
    /// Creates a dialect for a statement of `tokens` tokens.
    pub fn for_tokens(tokens: usize) -> Self {
        Self { attempts_left: Cell::new(ATTEMPTS + tokens.saturating_mul(ATTEMPTS_PER_TOKEN)) }
    }

    /// Returns whether parsing stopped at the limit.
    pub fn gave_up(&self) -> bool {
        self.attempts_left.get() == 0
    }
}

/// Delegates to the generic dialect. The list must name every method that it overrides.
macro_rules! as_generic {
    ($($method:ident)*) => {
        $(fn $method(&self) -> bool {
            GenericDialect.$method()
        })*
    };
}

impl SqlDialect for Dialect {
    /// The parser checks in some places for the generic dialect.
    fn dialect(&self) -> TypeId {
        TypeId::of::<GenericDialect>()
    }

    fn parse_prefix(&self, _: &mut Parser<'_>) -> Option<Result<Expr, ParserError>> {
        self.attempts_left.set(self.attempts_left.get().saturating_sub(1));
        self.gave_up().then_some(Err(ParserError::RecursionLimitExceeded))
    }

    fn parse_infix(&self, parser: &mut Parser<'_>, left: &Expr, precedence: u8) -> Option<Result<Expr, ParserError>> {
        use Keyword::{DISTINCT, FROM, IN, IS, NOT};
        if is_list_of_subquery(parser) {
            // The left side is copied here, too.
            if spine(left) > MAX_LEFT {
                return Some(Err(ParserError::RecursionLimitExceeded));
            }
            let negated = parser.parse_keyword(NOT);
            let begins = parser.expect_keyword_is(IN).and_then(|()| parser.expect_token(&Token::LParen).map(|_| ()));
            let list = begins.and_then(|()| parser.parse_comma_separated(Parser::parse_expr));
            let list = list.and_then(|list| parser.expect_token(&Token::RParen).map(|_| list));
            return Some(list.map(|list| Expr::InList { expr: Box::new(left.clone()), list, negated }));
        }
        let operator: fn(Box<Expr>, Box<Expr>) -> Expr = if parser.parse_keywords(&[IS, DISTINCT, FROM]) {
            Expr::IsDistinctFrom
        } else if parser.parse_keywords(&[IS, NOT, DISTINCT, FROM]) {
            Expr::IsNotDistinctFrom
        } else {
            return None;
        };
        // The left side is copied each time.
        if spine(left) > MAX_LEFT {
            return Some(Err(ParserError::RecursionLimitExceeded));
        }
        let right = parser.parse_subexpr(precedence);
        Some(right.map(|right| operator(Box::new(left.clone()), Box::new(right))))
    }

    fn is_delimited_identifier_start(&self, ch: char) -> bool {
        GenericDialect.is_delimited_identifier_start(ch)
    }

    fn is_identifier_start(&self, ch: char) -> bool {
        GenericDialect.is_identifier_start(ch)
    }

    fn is_identifier_part(&self, ch: char) -> bool {
        GenericDialect.is_identifier_part(ch)
    }

    /// As in PostgreSQL from 16 on, and DuckDB. Otherwise `1_000` is 1 with the alias `_000`.
    fn supports_numeric_literal_underscores(&self) -> bool {
        true
    }

    as_generic! {
        supports_unicode_string_literal
        supports_partition_by_after_order_by
        supports_array_join_syntax
        supports_group_by_expr
        supports_group_by_with_modifier
        supports_left_associative_joins_without_parens
        supports_connect_by
        supports_match_recognize
        supports_pipe_operator
        supports_start_transaction_modifier
        supports_window_function_null_treatment_arg
        supports_dictionary_syntax
        supports_window_clause_named_window_reference
        supports_parenthesized_set_variables
        supports_select_wildcard_except
        support_map_literal_syntax
        allow_extract_custom
        allow_extract_single_quotes
        supports_extract_comma_syntax
        supports_create_view_comment_syntax
        supports_parens_around_table_factor
        supports_values_as_table_factor
        supports_create_index_with_clause
        supports_explain_with_utility_options
        supports_limit_comma
        supports_update_order_by
        supports_from_first_select
        supports_projection_trailing_commas
        supports_asc_desc_in_column_definition
        supports_try_convert
        supports_bitwise_shift_operators
        supports_comment_on
        supports_load_extension
        supports_named_fn_args_with_assignment_operator
        supports_struct_literal
        supports_empty_projections
        supports_nested_comments
        supports_multiline_comment_hints
        supports_user_host_grantee
        supports_string_escape_constant
        supports_array_typedef_with_brackets
        supports_match_against
        supports_set_names
        supports_comma_separated_set_assignments
        supports_filter_during_aggregation
        supports_select_wildcard_exclude
        supports_data_type_signed_suffix
        supports_interval_options
        supports_quote_delimited_string
        supports_select_wildcard_replace
        supports_select_wildcard_ilike
        supports_select_wildcard_rename
        supports_optimize_table
        supports_install
        supports_detach
        supports_prewhere
        supports_with_fill
        supports_limit_by
        supports_interpolate
        supports_settings
        supports_select_format
        supports_comment_optimizer_hint
        supports_constraint_keyword_without_name
        supports_key_column_option
        supports_comma_separated_trim
        supports_cte_without_as
        supports_select_item_multi_column_alias
        supports_xml_expressions
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::ops::ControlFlow;

    use datafusion::sql::sqlparser::ast::visit_expressions_mut;

    use super::*;

    /// Returns the expression without its parentheses.
    fn parse(text: &str) -> Expr {
        let dialect = Dialect::for_tokens(0);
        let mut parser = Parser::new(&dialect).try_with_sql(text).unwrap();
        let mut expr = parser.parse_expr().unwrap();
        assert_eq!(parser.peek_token().token, Token::EOF, "{text}");
        let _ = visit_expressions_mut(&mut expr, |expr| {
            if let Expr::Nested(inner) = expr {
                *expr = inner.as_ref().clone();
            }
            ControlFlow::<()>::Continue(())
        });
        expr
    }

    #[test]
    fn is_distinct_from_binds_tighter_than_and() {
        for (text, meant) in [
            ("a IS DISTINCT FROM b OR c", "(a IS DISTINCT FROM b) OR c"),
            ("a IS NOT DISTINCT FROM b AND c", "(a IS NOT DISTINCT FROM b) AND c"),
            ("NOT a IS DISTINCT FROM b", "NOT (a IS DISTINCT FROM b)"),
            ("a IS DISTINCT FROM b + c", "a IS DISTINCT FROM (b + c)"),
            ("a + b IS DISTINCT FROM c", "(a + b) IS DISTINCT FROM c"),
            ("a IS DISTINCT FROM b = c", "a IS DISTINCT FROM (b = c)"),
            ("a IS DISTINCT FROM NOT b OR c", "(a IS DISTINCT FROM (NOT b)) OR c"),
            ("CASE WHEN a IS DISTINCT FROM b OR c THEN d END", "CASE WHEN (a IS DISTINCT FROM b) OR c THEN d END"),
        ] {
            assert_eq!(parse(text), parse(meant), "{text}");
        }
    }

    #[test]
    fn a_list_may_begin_with_a_subquery() {
        for (text, negates, values) in [
            ("a IN ((SELECT max(b) FROM t), 5)", false, 2),
            ("a NOT IN ((SELECT (1)), (SELECT 2), c)", true, 3),
            ("a IN ( ( WITH q AS (SELECT 1) SELECT * FROM q ) , NULL)", false, 2),
            ("a IN ((SELECT 1) + 1, 4)", false, 2),
            ("a IN ((SELECT 1)::int)", false, 1),
        ] {
            let Expr::InList { list, negated, .. } = parse(text) else { panic!("{text}") };
            assert_eq!((list.len(), negated), (values, negates), "{text}");
        }
        for text in ["a IN ((SELECT 1))", "a IN ((SELECT 1) UNION (SELECT 2))", "a IN ((SELECT 1) LIMIT 1)"] {
            assert!(matches!(parse(text), Expr::InSubquery { .. }), "{text}");
        }
        assert!(matches!(parse("a IN ((1), 2)"), Expr::InList { .. }));
    }

    #[test]
    fn the_rest_is_the_generic_dialect() {
        let dialect = Dialect::for_tokens(0);
        let ours: &dyn SqlDialect = &dialect;
        assert!(ours.is::<GenericDialect>());
        for text in [
            "SELECT * EXCLUDE (a) FROM t QUALIFY row_number() OVER (PARTITION BY b ORDER BY c) = 1",
            "FROM t",
            "SELECT sum(a) FILTER (WHERE b), {'a': 1}, [1, 2], a IS NOT NULL, `b`, extract(year FROM d) FROM t LIMIT 1, 2",
            "SELECT a FROM t GROUP BY GROUPING SETS ((a), ()) HAVING count(*) > 1 /* /* nested */ */",
        ] {
            let generic = Parser::parse_sql(&GenericDialect, text).unwrap();
            assert_eq!(Parser::parse_sql(ours, text).unwrap(), generic, "{text}");
        }
    }
}
