//! Checks the syntax tree node by node: the planner reads each field, or this module
//! [refuses](super::clauses) it.
//!
//! The parser's structures have a field for each dialect's clauses. Every field and every variant
//! has a name here, so a field that a later parser adds does not compile until it is handled. `_`
//! marks a field that DataFusion's planner or ours reads, or that cannot change an answer. A
//! comment gives the reason if it is not obvious. All other fields are refused. so where it is not
//! obvious. All others are refused.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Cte, Distinct, Expr, Function, FunctionArgumentClause, FunctionArgumentList, FunctionArguments, GroupByExpr,
    GroupByWithModifier, Join, JoinConstraint, JoinOperator, LimitClause, ObjectName, OrderBy, OrderByExpr,
    OrderByKind, Query, Select, SelectItem, SelectItemQualifiedWildcardKind, TableAlias, TableFactor,
    TableFunctionArgs, TableWithJoins, WildcardAdditionalOptions, With,
};

use super::clauses::{self, Clause};
use crate::Error;

/// Fails for the first clause that is present.
fn none_of<const N: usize>(clauses: [(bool, &Clause); N]) -> ControlFlow<Error> {
    match clauses.iter().find(|(is_there, _)| *is_there) {
        Some((_, clause)) => ControlFlow::Break(clause.error()),
        None => ControlFlow::Continue(()),
    }
}

pub(super) fn query(query: &Query) -> ControlFlow<Error> {
    let Query {
        with,
        body: _,
        order_by,
        limit_clause,
        // See `fetch_first`.
        fetch: _,
        locks,
        for_clause,
        settings,
        format_clause,
        // DataFusion refuses the operators that it does not support.
        pipe_operators: _,
    } = query;
    none_of([
        (!locks.is_empty(), &clauses::LOCKS),
        (for_clause.is_some(), &clauses::FOR_XML_OR_JSON),
        (settings.is_some(), &clauses::QUERY_SETTINGS),
        (format_clause.is_some(), &clauses::FORMAT),
    ])?;
    if let Some(With { with_token: _, recursive: _, cte_tables }) = with {
        cte_tables.iter().try_for_each(cte)?;
    }
    if let Some(OrderBy { kind, interpolate }) = order_by {
        none_of([(interpolate.is_some(), &clauses::INTERPOLATE)])?;
        match kind {
            OrderByKind::All(_) => {}
            OrderByKind::Expressions(keys) => keys.iter().try_for_each(key)?,
        }
    }
    match limit_clause {
        None | Some(LimitClause::OffsetCommaLimit { offset: _, limit: _ }) => ControlFlow::Continue(()),
        Some(LimitClause::LimitOffset { limit: _, offset: _, limit_by }) => {
            none_of([(!limit_by.is_empty(), &clauses::LIMIT_BY)])
        }
    }
}

fn cte(cte: &Cte) -> ControlFlow<Error> {
    // MATERIALIZED does not change an answer.
    let Cte { alias, query: _, from, materialized: _, closing_paren_token: _ } = cte;
    none_of([(from.is_some(), &clauses::CTE_FROM)])?;
    table_alias(alias)
}

fn key(key: &OrderByExpr) -> ControlFlow<Error> {
    let OrderByExpr { expr: _, options: _, with_fill } = key;
    none_of([(with_fill.is_some(), &clauses::WITH_FILL)])
}

pub(super) fn select(select: &Select) -> ControlFlow<Error> {
    let Select {
        select_token: _,
        // These are comments.
        optimizer_hints: _,
        distinct,
        select_modifiers,
        top,
        top_before_distinct: _,
        projection,
        exclude,
        // Refused in a statement that may not create a table.
        into: _,
        from,
        lateral_views,
        prewhere,
        selection: _,
        connect_by,
        group_by,
        cluster_by,
        distribute_by,
        sort_by,
        having: _,
        // See `named_windows`.
        named_window: _,
        qualify: _,
        // This is the order of two clauses.
        window_before_qualify: _,
        value_table_mode,
        // See `from_first`.
        flavor: _,
    } = select;
    none_of([
        (select_modifiers.is_some(), &clauses::MODIFIERS),
        (top.is_some(), &clauses::TOP),
        (exclude.is_some(), &clauses::EXCLUDE_OF_LIST),
        (!lateral_views.is_empty(), &clauses::LATERAL_VIEW),
        (prewhere.is_some(), &clauses::PREWHERE),
        (!connect_by.is_empty(), &clauses::CONNECT_BY),
        (!cluster_by.is_empty(), &clauses::CLUSTER_BY),
        (!distribute_by.is_empty(), &clauses::DISTRIBUTE_BY),
        (!sort_by.is_empty(), &clauses::SORT_BY),
        (value_table_mode.is_some(), &clauses::VALUE_TABLE),
    ])?;
    match distinct {
        None | Some(Distinct::All | Distinct::Distinct | Distinct::On(_)) => {}
    }
    let (GroupByExpr::All(modifiers) | GroupByExpr::Expressions(_, modifiers)) = group_by;
    modifiers.iter().try_for_each(modifier)?;
    projection.iter().try_for_each(item)?;
    from.iter().try_for_each(joins)
}

fn modifier(modifier: &GroupByWithModifier) -> ControlFlow<Error> {
    let clause = match modifier {
        GroupByWithModifier::Rollup => &clauses::WITH_ROLLUP,
        GroupByWithModifier::Cube => &clauses::WITH_CUBE,
        GroupByWithModifier::Totals => &clauses::WITH_TOTALS,
        GroupByWithModifier::GroupingSets(_) => &clauses::GROUPING_SETS_BEHIND,
    };
    ControlFlow::Break(clause.error())
}

fn item(item: &SelectItem) -> ControlFlow<Error> {
    match item {
        SelectItem::UnnamedExpr(_) | SelectItem::ExprWithAlias { expr: _, alias: _ } => ControlFlow::Continue(()),
        SelectItem::ExprWithAliases { expr: _, aliases: _ } => ControlFlow::Break(clauses::SEVERAL_ALIASES.error()),
        SelectItem::QualifiedWildcard(SelectItemQualifiedWildcardKind::ObjectName(_), options)
        | SelectItem::Wildcard(options) => star(options),
        SelectItem::QualifiedWildcard(SelectItemQualifiedWildcardKind::Expr(_), _) => {
            ControlFlow::Break(clauses::STAR_OF_EXPRESSION.error())
        }
    }
}

fn star(options: &WildcardAdditionalOptions) -> ControlFlow<Error> {
    let WildcardAdditionalOptions {
        wildcard_token: _,
        opt_ilike,
        opt_exclude: _,
        opt_except: _,
        // See `star_replace`.
        opt_replace: _,
        opt_rename,
        opt_alias,
    } = options;
    none_of([
        (opt_ilike.is_some(), &clauses::STAR_ILIKE),
        (opt_rename.is_some(), &clauses::STAR_RENAME),
        (opt_alias.is_some(), &clauses::STAR_ALIAS),
    ])
}

fn joins(table: &TableWithJoins) -> ControlFlow<Error> {
    // The visitor visits the tables separately.
    let TableWithJoins { relation: _, joins } = table;
    joins.iter().try_for_each(join)
}

fn join(join: &Join) -> ControlFlow<Error> {
    let Join { relation: _, global, join_operator } = join;
    none_of([(*global, &clauses::GLOBAL_JOIN)])?;
    let constraint = match join_operator {
        JoinOperator::Join(constraint)
        | JoinOperator::Inner(constraint)
        | JoinOperator::Left(constraint)
        | JoinOperator::LeftOuter(constraint)
        | JoinOperator::Right(constraint)
        | JoinOperator::RightOuter(constraint)
        | JoinOperator::FullOuter(constraint)
        | JoinOperator::LeftSemi(constraint)
        | JoinOperator::RightSemi(constraint)
        | JoinOperator::LeftAnti(constraint)
        | JoinOperator::RightAnti(constraint) => constraint,
        JoinOperator::CrossJoin(JoinConstraint::None) => return ControlFlow::Continue(()),
        JoinOperator::CrossJoin(_) => return ControlFlow::Break(clauses::CROSS_JOIN_ON.error()),
        JoinOperator::ArrayJoin | JoinOperator::LeftArrayJoin | JoinOperator::InnerArrayJoin => {
            return ControlFlow::Break(clauses::ARRAY_JOIN.error());
        }
        JoinOperator::Semi(_) => {
            return super::refuse(
                "SEMI JOIN is not supported without its side",
                "LEFT SEMI JOIN keeps rows of the left side",
            );
        }
        JoinOperator::Anti(_) => {
            return super::refuse(
                "ANTI JOIN is not supported without its side",
                "LEFT ANTI JOIN keeps rows of the left side",
            );
        }
        JoinOperator::AsOf { match_condition: _, constraint: _ } => return other_join("ASOF JOIN"),
        JoinOperator::CrossApply | JoinOperator::OuterApply => return other_join("APPLY"),
        JoinOperator::StraightJoin(_) => return other_join("STRAIGHT_JOIN"),
    };
    match constraint {
        JoinConstraint::On(_) | JoinConstraint::Using(_) | JoinConstraint::Natural => ControlFlow::Continue(()),
        JoinConstraint::None => ControlFlow::Break(clauses::JOIN_OF_ALL.error()),
    }
}

fn other_join(name: &str) -> ControlFlow<Error> {
    super::refuse(
        format!("{name} is not supported"),
        "joins are INNER, LEFT, RIGHT, FULL, CROSS, LEFT SEMI and LEFT ANTI",
    )
}

pub(super) fn table(table: &TableFactor) -> ControlFlow<Error> {
    let alias = match table {
        TableFactor::Table {
            name: _,
            alias,
            args,
            with_hints,
            version,
            with_ordinality,
            partitions,
            json_path,
            sample,
            index_hints,
        } => {
            let has_settings = match args {
                Some(TableFunctionArgs { args: _, settings }) => settings.is_some(),
                None => false,
            };
            none_of([
                (has_settings, &clauses::FUNCTION_SETTINGS),
                (!with_hints.is_empty(), &clauses::TABLE_HINTS),
                (version.is_some(), &clauses::TABLE_VERSION),
                (*with_ordinality, &clauses::ORDINALITY),
                (!partitions.is_empty(), &clauses::TABLE_PARTITIONS),
                (json_path.is_some(), &clauses::TABLE_PATH),
                (sample.is_some(), &clauses::TABLE_SAMPLE),
                (!index_hints.is_empty(), &clauses::INDEX_HINTS),
            ])?;
            alias
        }
        TableFactor::Derived { lateral: _, subquery: _, alias, sample } => {
            none_of([(sample.is_some(), &clauses::TABLE_SAMPLE)])?;
            alias
        }
        TableFactor::Function { lateral: _, name: _, args: _, with_ordinality, alias } => {
            none_of([(*with_ordinality, &clauses::ORDINALITY)])?;
            alias
        }
        TableFactor::UNNEST { alias, array_exprs: _, with_offset, with_offset_alias, with_ordinality } => {
            none_of([
                (*with_offset || with_offset_alias.is_some(), &clauses::UNNEST_OFFSET),
                (*with_ordinality, &clauses::ORDINALITY),
            ])?;
            alias
        }
        TableFactor::NestedJoin { table_with_joins, alias } => {
            joins(table_with_joins)?;
            alias
        }
        TableFactor::TableFunction { .. } => return ControlFlow::Break(clauses::TABLE_OF_EXPRESSION.error()),
        TableFactor::JsonTable { .. } => return ControlFlow::Break(clauses::JSON_TABLE.error()),
        TableFactor::OpenJsonTable { .. } => return ControlFlow::Break(clauses::OPEN_JSON.error()),
        TableFactor::Pivot { .. } => return ControlFlow::Break(clauses::PIVOT.error()),
        TableFactor::Unpivot { .. } => return ControlFlow::Break(clauses::UNPIVOT.error()),
        TableFactor::MatchRecognize { .. } => return ControlFlow::Break(clauses::MATCH_RECOGNIZE.error()),
        TableFactor::XmlTable { .. } => return ControlFlow::Break(clauses::XML_TABLE.error()),
        // The dialect does not parse it.
        TableFactor::SemanticView { .. } => {
            return super::refuse("SEMANTIC_VIEW is not supported", "CREATE VIEW makes a view");
        }
    };
    alias.iter().try_for_each(table_alias)
}

fn table_alias(alias: &TableAlias) -> ControlFlow<Error> {
    // `at` is an index of PartiQL's, which the dialect does not parse.
    let TableAlias { explicit: _, name: _, columns, at: _ } = alias;
    none_of([(columns.iter().any(|column| column.data_type.is_some()), &clauses::TYPED_COLUMNS)])
}

pub(super) fn expr(expr: &Expr) -> ControlFlow<Error> {
    match expr {
        Expr::Function(call) => function(call),
        Expr::Collate { expr: _, collation } if !is_bytewise(collation) => {
            ControlFlow::Break(clauses::COLLATION.error())
        }
        Expr::OuterJoin(_) => ControlFlow::Break(clauses::OUTER_JOIN_MARK.error()),
        Expr::Prior(_) => ControlFlow::Break(clauses::CONNECT_BY.error()),
        // DataFusion's planner plans these with all their fields, or refuses them.
        Expr::Collate { .. }
        | Expr::Identifier(_)
        | Expr::CompoundIdentifier(_)
        | Expr::CompoundFieldAccess { .. }
        | Expr::JsonAccess { .. }
        | Expr::IsFalse(_)
        | Expr::IsNotFalse(_)
        | Expr::IsTrue(_)
        | Expr::IsNotTrue(_)
        | Expr::IsNull(_)
        | Expr::IsNotNull(_)
        | Expr::IsUnknown(_)
        | Expr::IsNotUnknown(_)
        | Expr::IsDistinctFrom(..)
        | Expr::IsNotDistinctFrom(..)
        | Expr::IsNormalized { .. }
        | Expr::InList { .. }
        | Expr::InSubquery { .. }
        | Expr::InUnnest { .. }
        | Expr::Between { .. }
        | Expr::BinaryOp { .. }
        | Expr::Like { .. }
        | Expr::ILike { .. }
        | Expr::SimilarTo { .. }
        | Expr::RLike { .. }
        | Expr::AnyOp { .. }
        | Expr::AllOp { .. }
        | Expr::UnaryOp { .. }
        | Expr::Convert { .. }
        | Expr::Cast { .. }
        | Expr::AtTimeZone { .. }
        | Expr::Extract { .. }
        | Expr::Ceil { .. }
        | Expr::Floor { .. }
        | Expr::Position { .. }
        | Expr::Substring { .. }
        | Expr::Trim { .. }
        | Expr::Overlay { .. }
        | Expr::Nested(_)
        | Expr::Value(_)
        | Expr::Prefixed { .. }
        | Expr::TypedString(_)
        | Expr::Case { .. }
        | Expr::Exists { .. }
        | Expr::Subquery(_)
        | Expr::GroupingSets(_)
        | Expr::Cube(_)
        | Expr::Rollup(_)
        | Expr::Tuple(_)
        | Expr::Struct { .. }
        | Expr::Named { .. }
        | Expr::Dictionary(_)
        | Expr::Map(_)
        | Expr::Array(_)
        | Expr::Interval(_)
        | Expr::MatchAgainst { .. }
        | Expr::Wildcard(_)
        | Expr::QualifiedWildcard(..)
        | Expr::Lambda(_)
        | Expr::MemberOf(_) => ControlFlow::Continue(()),
    }
}

/// Returns whether strings compare under a collation as they do without one. psql writes
/// `pg_catalog.default`.
fn is_bytewise(collation: &ObjectName) -> bool {
    let name = collation.0.last().and_then(|part| part.as_ident()).map(|name| name.value.to_lowercase());
    matches!(name.as_deref(), Some("c" | "posix" | "ucs_basic" | "binary" | "default"))
}

fn function(call: &Function) -> ControlFlow<Error> {
    let Function {
        name,
        // `{fn f(x)}` is `f(x)`.
        uses_odbc_syntax: _,
        parameters,
        args,
        // See `call_clauses`.
        filter: _,
        null_treatment: _,
        over: _,
        within_group: _,
    } = call;
    let is_array =
        name.0.last().and_then(|part| part.as_ident()).is_some_and(|name| name.value.eq_ignore_ascii_case("array"));
    none_of([(*parameters != FunctionArguments::None, &clauses::PARAMETERS_OF_FUNCTION)])?;
    match args {
        FunctionArguments::None => ControlFlow::Continue(()),
        FunctionArguments::Subquery(_) if is_array => ControlFlow::Continue(()),
        FunctionArguments::Subquery(_) => ControlFlow::Break(clauses::QUERY_AS_ARGUMENTS.error()),
        FunctionArguments::List(FunctionArgumentList { duplicate_treatment: _, args: _, clauses }) => {
            clauses.iter().try_for_each(argument_clause)
        }
    }
}

fn argument_clause(clause: &FunctionArgumentClause) -> ControlFlow<Error> {
    let clause = match clause {
        FunctionArgumentClause::IgnoreOrRespectNulls(_) => return ControlFlow::Continue(()),
        FunctionArgumentClause::OrderBy(keys) => return keys.iter().try_for_each(key),
        FunctionArgumentClause::Limit(_) => &clauses::LIMIT_IN_ARGUMENTS,
        FunctionArgumentClause::OnOverflow(_) => &clauses::ON_OVERFLOW,
        FunctionArgumentClause::Having(_) => &clauses::HAVING_IN_ARGUMENTS,
        FunctionArgumentClause::Separator(_) => &clauses::SEPARATOR,
        FunctionArgumentClause::JsonNullClause(_) | FunctionArgumentClause::JsonReturningClause(_) => {
            &clauses::JSON_CLAUSES
        }
    };
    ControlFlow::Break(clause.error())
}
