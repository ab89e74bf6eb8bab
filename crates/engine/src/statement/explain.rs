//! `EXPLAIN [ANALYZE] [VERBOSE] [FORMAT TEXT | JSON] query`, `EXPLAIN (ANALYZE, VERBOSE, FORMAT JSON) query`.
//!
//! DataFusion explains in its own formats (`FORMAT INDENT`, `TREE`, `PGJSON`, `GRAPHVIZ`), and statements
//! that are no query: [`parse`] leaves such a statement as it is.

use std::sync::Arc;
use std::time::Instant;

use arrow::array::{ArrayRef, RecordBatch, StringArray};
use datafusion::physical_plan::memory::MemoryStream;
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use datafusion::sql::parser::{DFParser, Statement as DataFusionStatement};
use datafusion::sql::sqlparser::ast::Statement as Sql;
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::parser::{Parser, ParserError};
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};
use futures::StreamExt;

use super::{Context, Statement, locking, parse_word};
use crate::explain::{node_of, refused_devices};
use crate::explanation::{self, ExplainMode, Explanation, Moment, Refusal, Totals};
use crate::fusing::Fusing;
use crate::planner::PassLog;
use crate::query::{Output, Rows};
use crate::settings::{Fallback, GpuMode};
use crate::{Error, ErrorKind, Result};

/// A parsed `EXPLAIN`.
#[derive(Debug)]
pub(super) struct Explain {
    pub mode: ExplainMode,
    format: Format,
    /// True if the passes over its plan are shown.
    is_verbose: bool,
    pub query: Box<DataFusionStatement>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Text,
    Json,
}

/// Parses `EXPLAIN` if this module runs it. Otherwise returns `None` and consumes nothing.
pub(super) fn parse(parser: &mut DFParser<'_>) -> Result<Option<Statement>> {
    let options = parser.parser.maybe_parse(options).map_err(|e| super::syntax::<()>(Err(e)))?;
    let Some(Options { mode, format, is_verbose }) = options else { return Ok(None) };
    if !is_query(parser.parser.peek_token_ref()) {
        return Err(no_query());
    }
    let query = Box::new(parser.parse_statement()?);
    let format = format.unwrap_or(Format::Text);
    Ok(Some(Statement::Explain(Explain { mode, format, is_verbose, query })))
}

struct Options {
    mode: ExplainMode,
    format: Option<Format>,
    is_verbose: bool,
}

/// Parses the options. Fails unless a query follows or the format is JSON, which only this module
/// has.
fn options(parser: &mut Parser<'_>) -> std::result::Result<Options, ParserError> {
    parser.expect_keyword(Keyword::EXPLAIN)?;
    let is_list = parser.peek_token_ref().token == Token::LParen && !is_query(&parser.peek_nth_token(1));
    let options = if is_list { option_list(parser)? } else { option_words(parser)? };
    if options.format == Some(Format::Json) || is_query(parser.peek_token_ref()) {
        return Ok(options);
    }
    parser.expected_ref("a query", parser.peek_token_ref())
}

fn option_words(parser: &mut Parser<'_>) -> std::result::Result<Options, ParserError> {
    let mode = if parser.parse_keyword(Keyword::ANALYZE) { ExplainMode::Analyze } else { ExplainMode::Plan };
    let is_verbose = parser.parse_keyword(Keyword::VERBOSE);
    let format = if parser.parse_keyword(Keyword::FORMAT) { Some(format(parser)?) } else { None };
    Ok(Options { mode, format, is_verbose })
}

fn option_list(parser: &mut Parser<'_>) -> std::result::Result<Options, ParserError> {
    let mut options = Options { mode: ExplainMode::Plan, format: None, is_verbose: false };
    parser.expect_token(&Token::LParen)?;
    loop {
        if parser.parse_keyword(Keyword::ANALYZE) {
            options.mode = ExplainMode::Analyze;
        } else if parser.parse_keyword(Keyword::VERBOSE) {
            options.is_verbose = true;
        } else {
            parser.expect_keyword(Keyword::FORMAT)?;
            options.format = Some(format(parser)?);
        }
        if !parser.consume_token(&Token::Comma) {
            parser.expect_token(&Token::RParen)?;
            return Ok(options);
        }
    }
}

fn format(parser: &mut Parser<'_>) -> std::result::Result<Format, ParserError> {
    if parse_word(parser, "text") {
        return Ok(Format::Text);
    }
    if parse_word(parser, "json") {
        return Ok(Format::Json);
    }
    parser.expected_ref("TEXT or JSON", parser.peek_token_ref())
}

/// Returns whether a query begins at this token.
fn is_query(token: &TokenWithSpan) -> bool {
    match &token.token {
        Token::LParen => true,
        Token::Word(word) => {
            matches!(word.keyword, Keyword::SELECT | Keyword::WITH | Keyword::VALUES | Keyword::FROM | Keyword::TABLE)
        }
        _ => false,
    }
}

fn no_query() -> Error {
    let error = Error::new(ErrorKind::Invalid, "only queries can be explained in this way");
    error.with_hint(
        "give it one query: SELECT ..., WITH ..., FROM ... or VALUES ...; of INSERT, COPY or CREATE TABLE AS the query \
         whose rows it writes",
    )
}

/// Explains a query, or `EXPLAIN` of one, whose own mode and format are ignored.
pub(crate) async fn explain(text: &str, mode: ExplainMode, context: &Context<'_>) -> Result<Explanation> {
    match super::parse(text)? {
        Statement::Explain(Explain { query, is_verbose, .. }) => {
            explained(*query, None, mode, is_verbose, context).await
        }
        Statement::Other(query) => explained(*query, Some(text), mode, false, context).await,
        _ => Err(no_query()),
    }
}

impl Explain {
    /// Runs the statement.
    pub async fn run(self, context: &Context<'_>) -> Result<Output> {
        let (mode, format) = (self.mode, self.format);
        let explanation = explained(*self.query, None, mode, self.is_verbose, context).await?;
        let text = match format {
            Format::Text if self.is_verbose => format!("{}\n{}", explanation.text(), explanation.passes_text()),
            Format::Text => explanation.text(),
            Format::Json => format!("{:#}", explanation.json()),
        };
        let name = match mode {
            ExplainMode::Plan => "plan",
            ExplainMode::Analyze | ExplainMode::Time => "analyzed_plan",
        };
        let column = |text: &str| -> ArrayRef { Arc::new(StringArray::from_iter_values([text])) };
        let batch = RecordBatch::try_from_iter([("plan_type", column(name)), ("plan", column(&text))])?;
        let schema = batch.schema();
        let stream = MemoryStream::try_new(vec![batch], schema, None)?;
        Ok(Output::Rows(Rows::new(Box::pin(stream), &context.query)))
    }
}

/// Explains a query. `text` is its source text, if that is known.
async fn explained(
    mut query: DataFusionStatement,
    text: Option<&str>,
    mode: ExplainMode,
    is_verbose: bool,
    context: &Context<'_>,
) -> Result<Explanation> {
    match &query {
        DataFusionStatement::Statement(sql) if matches!(**sql, Sql::Query(_)) => {}
        _ => return Err(no_query()),
    }
    let sql = text.map_or_else(|| query.to_string(), |text| text.trim().trim_end_matches(';').trim_end().into());
    locking::take_out(&mut query);
    let settled = (mode == ExplainMode::Plan).then(|| planning(context)).transpose()?;
    let context = settled.as_ref().unwrap_or(context);
    let log = (mode.runs() || is_verbose).then(|| PassLog::new(is_verbose));
    let logged = log.as_ref().map(|log| with_log(context, log)).transpose()?;
    let context = logged.as_ref().unwrap_or(context);
    let plan = context.plan(query).await?;
    let physical = context.physical_plan(plan).await?;
    context.query.planned();
    let totals = match mode {
        ExplainMode::Plan => None,
        ExplainMode::Analyze => {
            context.query.count_steps();
            Some(run(&physical, context).await?)
        }
        ExplainMode::Time => Some(run(&physical, context).await?),
    };
    let refused = context.query.lowering().refused;
    let not_fused = explanation::reasons(&refused);
    let is_refused = mode == ExplainMode::Plan && context.settings().exec_fallback() == Fallback::Error;
    let first = refused.iter().find(|refusal| is_refused && !refusal.tables.is_empty());
    let fails =
        first.map(|Refusal { reason, .. }| format!("no fused pipeline can run {reason} (exec.fallback = 'error')"));
    let is_required = is_refused && context.settings().gpu_mode() == GpuMode::Require;
    let unmet = is_required.then(|| refused_devices(&physical)).flatten();
    let fails = fails.or(unmet.map(|why| format!("a GPU is required, and {why} (exec.fallback = 'error')")));
    let moment = if mode.runs() { Moment::Ended } else { Moment::Planned };
    let passes = log.map(|log| log.runs()).unwrap_or_default();
    Ok(Explanation { sql, plan: node_of(&physical, &refused, moment), not_fused, fails, totals, passes })
}

/// Returns a context in which passes over plans add themselves to a log.
fn with_log<'a>(context: &Context<'a>, log: &PassLog) -> Result<Context<'a>> {
    let mut state = context.state()?.as_ref().clone();
    log.bind(&mut state);
    Ok(context.with_state(&context.snapshot, state))
}

/// Returns a context that plans a statement without running it. A plan that the fallback setting
/// would refuse is reported instead of failing.
pub(super) fn planning<'a>(context: &Context<'a>) -> Result<Context<'a>> {
    let mut state = context.state()?.as_ref().clone();
    let fusing = state.config().get_extension::<Fusing>();
    if let Some(fusing) = fusing.filter(|fusing| fusing.fallback == Fallback::Error) {
        let told = Fusing { fallback: Fallback::Warn, ..fusing.as_ref().clone() };
        state.config_mut().set_extension(Arc::new(told));
    }
    Ok(context.with_state(&context.snapshot, state))
}

/// Runs a plan to its end.
async fn run(physical: &Arc<dyn ExecutionPlan>, context: &Context<'_>) -> Result<Totals> {
    let began = Instant::now();
    let mut stream = execute_stream(Arc::clone(physical), context.state()?.task_ctx())?;
    let work = async move {
        let (mut rows, mut bytes) = (0, 0);
        while let Some(batch) = stream.next().await {
            let batch = batch?;
            rows += batch.num_rows() as u64;
            bytes += explanation::answer_bytes(&batch);
        }
        Ok((rows, bytes))
    };
    let (rows, answer_bytes) = context.query.apart(work).await?;
    Ok(Totals {
        plan_time: context.query.plan_time(),
        run_time: began.elapsed(),
        rows,
        answer_bytes,
        ledger: context.query.ledger(),
    })
}
