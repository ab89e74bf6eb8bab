//! The source of rows to learn from: features and a label as expressions over a table, a view, a
//! file, a registered relation, or a query.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::execution::SessionState;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::sql::sqlparser::ast::{Expr, Query as SqlQuery};
use datafusion::sql::sqlparser::parser::Parser;
use datafusion::sql::sqlparser::tokenizer::Token;

use super::device;
use super::rows::Target;
use crate::identifiers::normal;
use crate::lower::{DeviceFit, plan_fit};
use crate::query::Query;
use crate::{Error, ErrorKind, Result, files, planner, query_planner};

/// The source of rows. All fields except `function` are SQL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Source {
    /// The function's name, for messages.
    pub function: &'static str,
    /// A name, a path, or a query in parentheses.
    pub table: String,
    /// Expressions with numeric values.
    pub features: Vec<String>,
    pub label: String,
}

/// Operators that return the rows: features, then the label.
pub(super) struct Planned {
    pub operators: Arc<dyn ExecutionPlan>,
    /// The names of the features.
    pub features: Vec<String>,
    /// The features as SQL expressions.
    pub expressions: Vec<String>,
    pub label_is_boolean: bool,
    /// The device that sums the rows for a fit, if there is one.
    pub device: Option<DeviceFit>,
}

/// All columns but the label.
const ALL: &str = "*";

impl Source {
    /// Plans the rows, and their sums on a device if `fits` is a target that a device supports.
    ///
    /// # Errors
    /// The errors of parsing and planning; [`ErrorKind::Invalid`] for columns that are not numeric.
    pub async fn plan(&self, state: &SessionState, query: &Arc<Query>, fits: Option<Target>) -> Result<Planned> {
        let table = self.from()?;
        let features = match self.features.as_slice() {
            [all] if all.trim() == ALL => self.all_columns(state, &table).await?,
            texts => {
                let mut features = Vec::new();
                for text in texts {
                    features.extend(self.expressions("features", text)?);
                }
                features
            }
        };
        let label = match <[Expr; 1]>::try_from(self.expressions("label", &self.label)?) {
            Ok([label]) => label,
            Err(several) => {
                return Err(self.invalid(format!("label is {} expressions, and must be one", several.len())));
            }
        };
        let names = features.iter().map(name_of).collect::<Vec<_>>();
        // Columns are named by number, since two features may be equal.
        let columns = features.iter().chain([&label]).enumerate();
        let columns = columns.map(|(place, expr)| format!("{expr} AS \"{place}\"")).collect::<Vec<_>>().join(", ");
        let plan = self.logical(state, &format!("SELECT {columns} FROM {table}")).await?;
        let label_is_boolean = self.check_types(&plan, &names)?;
        let device = match fits {
            Some(target) => plan_fit(&plan, state, query, &device::example(names.len(), target))?,
            None => None,
        };
        // Rows are distributed by hash, or not at all. Round-robin would depend on the speed of
        // threads.
        let mut state = state.clone();
        state.config_mut().options_mut().optimizer.enable_round_robin_repartition = false;
        let operators = query_planner::physical_plan(&state, &plan, query).await?;
        let expressions = features.iter().map(ToString::to_string).collect();
        Ok(Planned { operators, features: names, expressions, label_is_boolean, device })
    }

    fn invalid(&self, problem: impl std::fmt::Display) -> Error {
        Error::new(ErrorKind::Invalid, format!("{}: {problem}", self.function))
    }

    async fn logical(&self, state: &SessionState, text: &str) -> Result<LogicalPlan> {
        planner::plan_text(state, text).await.map_err(|e| Error::from(e).about(self.function))
    }

    /// Returns the table as it is written after FROM.
    fn from(&self) -> Result<String> {
        let text = self.table.trim();
        if text.starts_with('(') {
            let query: Box<SqlQuery> = self.parse("table", text, |parser| {
                parser.expect_token(&Token::LParen)?;
                let query = parser.parse_query()?;
                parser.expect_token(&Token::RParen)?;
                Ok(query)
            })?;
            return Ok(format!("({query}) AS source"));
        }
        if files::is_path(text) {
            return Ok(format!("'{}'", text.replace('\'', "''")));
        }
        let name = self.parse("table", text, |parser| parser.parse_object_name(false))?;
        Ok(name.to_string())
    }

    fn expressions(&self, argument: &str, text: &str) -> Result<Vec<Expr>> {
        self.parse(argument, text, |parser| parser.parse_comma_separated(Parser::parse_expr))
    }

    /// Parses the whole of a text.
    fn parse<T>(
        &self,
        argument: &str,
        text: &str,
        parse: impl FnOnce(&mut Parser<'_>) -> std::result::Result<T, datafusion::sql::sqlparser::parser::ParserError>,
    ) -> Result<T> {
        let parsed = planner::tokens(text).and_then(|tokens| {
            planner::parse_tokens(tokens, |parser| {
                let parser = &mut parser.parser;
                let outcome = parse(parser).and_then(|parsed| {
                    parser.expect_token(&Token::EOF)?;
                    Ok(parsed)
                });
                outcome.map_err(|e| datafusion::common::DataFusionError::from(e).into())
            })
        });
        parsed.map_err(|e| {
            Error::new(ErrorKind::Invalid, format!("{}: {argument} cannot be parsed: {}", self.function, e.message()))
                .with_hint(format!("{argument} is SQL: names of columns, or expressions of them"))
        })
    }

    /// Returns the columns of the table without the label.
    async fn all_columns(&self, state: &SessionState, table: &str) -> Result<Vec<Expr>> {
        let plan = self.logical(state, &format!("SELECT * FROM {table}")).await?;
        let label = self.expressions("label", &self.label)?.first().map(name_of);
        let names = plan.schema().fields().iter().map(|field| field.name().clone());
        let quoted = names.filter(|name| Some(name) != label.as_ref()).map(|name| quoted(&name));
        let columns = quoted.collect::<Vec<_>>().join(", ");
        if columns.is_empty() {
            return Err(self.invalid("the table has no columns beside the label"));
        }
        self.expressions("features", &columns)
    }

    /// Returns whether the label is a boolean. Fails if a column is not numeric.
    fn check_types(&self, plan: &LogicalPlan, names: &[String]) -> Result<bool> {
        let fields = plan.schema().fields();
        for (field, name) in fields.iter().zip(names) {
            if let Some(hint) = no_number(field.data_type()) {
                let what = described(field.data_type());
                return Err(self.invalid(format!("feature {name} is {what}, and must be a number")).with_hint(hint));
            }
        }
        let Some(label) = fields.get(names.len()) else { return Ok(false) };
        if no_number(label.data_type()).is_some() {
            let problem = format!("label {} is {}, and must be a number", self.label, described(label.data_type()));
            let hint = "compare it: label => 'outcome = ''yes''' is a boolean";
            return Err(self.invalid(problem).with_hint(hint));
        }
        Ok(label.data_type() == &DataType::Boolean)
    }
}

/// Returns a hint for a type that is not numeric.
fn no_number(data_type: &DataType) -> Option<&'static str> {
    match data_type {
        DataType::Boolean | DataType::Null => None,
        number if number.is_numeric() => None,
        DataType::Date32 | DataType::Date64 | DataType::Timestamp(..) => {
            Some("date_part('epoch', d) is a number of seconds, date_part('dow', d) a day of the week")
        }
        _ => Some("CASE WHEN c = 'a' THEN 1 ELSE 0 END makes a number of each category"),
    }
}

fn described(data_type: &DataType) -> &'static str {
    match data_type {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => "a text",
        DataType::Dictionary(..) => "a category",
        DataType::Date32 | DataType::Date64 => "a date",
        DataType::Timestamp(..) => "a timestamp",
        DataType::Time32(_) | DataType::Time64(_) => "a time",
        DataType::Interval(_) | DataType::Duration(_) => "an interval",
        DataType::List(_) | DataType::LargeList(_) | DataType::FixedSizeList(..) => "a list",
        DataType::Struct(_) => "a struct",
        _ => "no number",
    }
}

/// Returns the name of an expression: a column's name, or its text.
fn name_of(expr: &Expr) -> String {
    match expr {
        Expr::Identifier(ident) => normal(ident),
        other => other.to_string(),
    }
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
