//! The program: pipelines that build join tables, followed by one whose sink is the answer.
//!
//! ```text
//! table 0 = date                      a source, by its number and name
//!   %0 d_datekey int[19920101..19981231]
//!   %1 d_year int[1992..1998]
//!   filter %1 = 1993                  keeps rows for which it is true
//!   build key (%0) payload ()         a join table: the rows that a key finds
//! result = lineorder
//!   %0 lo_orderdate int[..] ...
//!   inner probe table 0 key (%0)      keeps rows with a match; payload becomes registers
//!   %4 = (%2 * %3)                    a map: computed when it is first needed
//!   aggregate by () sum(%4)           the sink
//! ```
//!
//! Registers are numbered in order of appearance: the source's columns, then the registers that
//! each step adds. A step reads only registers before it. Filters and probes that cannot fail may
//! run in any order that respects this. Steps that can fail stay in the order in which they are
//! written. They see only rows that all other steps let through, except those steps that read their
//! results. A filter on an AND counts as one filter per condition. A map is computed for the rows
//! that reach the first step that reads it.

use std::fmt;

use crate::{Domain, Error, Expr, Result, Type, bind};

/// The most rows of [`Sink::Top`]. For more rows, a full sort takes as little time, and it can
/// spill.
pub const MOST_TOP_ROWS: usize = 1 << 16;

/// Pipelines in execution order. All but the last end in [`Sink::Build`], and table `i` is built by
/// pipeline `i`.
#[derive(Clone, Debug)]
pub struct Program {
    /// The pipelines.
    pub pipelines: Vec<Pipeline>,
}

/// Rows that flow from a source through steps into a sink.
#[derive(Clone, Debug)]
pub struct Pipeline {
    /// Number of the program's source that it reads.
    pub source: usize,
    /// The source's columns that become registers 0, 1, ...
    pub columns: Vec<usize>,
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// The sink of the rows.
    pub sink: Sink,
}

impl Program {
    /// Returns true if the program needs the values of a source's column. Counting only needs its
    /// NULLs.
    pub fn reads_values_of(&self, source: usize, column: usize) -> bool {
        self.pipelines.iter().filter(|pipeline| pipeline.source == source).any(|pipeline| {
            let registers = pipeline.columns.iter().enumerate().filter(|(_, of)| **of == column);
            registers.into_iter().any(|(register, _)| pipeline.reads_values_of(register))
        })
    }
}

impl Pipeline {
    fn reads_values_of(&self, register: usize) -> bool {
        let reads = |expr: &Expr| expr.reads_values_of(register);
        let step_reads = |step: &Step| match step {
            Step::Filter(expr) | Step::Map(expr) => reads(expr),
            Step::Probe(probe) => probe.keys.iter().chain(&probe.condition).any(reads),
        };
        let counts = |aggregate: &Aggregate| matches!(aggregate, Aggregate::Count(Expr::Register(_)));
        let sink_reads = match &self.sink {
            Sink::Aggregate { keys, aggregates } => {
                let computed = aggregates.iter().filter(|aggregate| !counts(aggregate));
                keys.iter().any(reads) || computed.filter_map(Aggregate::argument).any(reads)
            }
            other => other.exprs().any(reads),
        };
        sink_reads || self.steps.iter().any(step_reads)
    }
}

/// One operation on rows.
#[derive(Clone, Debug)]
pub enum Step {
    /// Keeps rows for which it is true.
    Filter(Expr),
    /// Adds a register.
    Map(Expr),
    /// Looks up a key in a join table. A key with a NULL finds nothing.
    Probe(Probe),
}

/// A lookup in a join table.
#[derive(Clone, Debug)]
pub struct Probe {
    /// The table: the number of the pipeline that built it.
    pub table: usize,
    /// Rows that pass the probe.
    pub kind: JoinKind,
    /// The key: as many integers, booleans or strings as in the table's key.
    pub keys: Vec<Expr>,
    /// The table's payload columns that become registers. In a semi or anti join, only its
    /// condition may read them.
    pub payload: Vec<usize>,
    /// Additional condition on the matches of a left, semi or anti join. It reads this probe's
    /// payload, and cannot fail.
    pub condition: Option<Expr>,
}

/// Rows of the probe side that pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinKind {
    /// One row for every match.
    Inner,
    /// One row for every match, and one row with a NULL payload for a probe row without a match.
    Left,
    /// Probe rows with a match, once.
    Semi,
    /// Probe rows without a match.
    Anti,
    /// Probe rows without a match, under the three-valued logic of SQL's `NOT IN`. If the table is
    /// empty, all rows pass. Otherwise, no row with a NULL key passes, and no row passes at all if
    /// a key of the table is NULL. The key has one part.
    NotIn,
}

/// Destination of rows.
#[derive(Clone, Debug)]
pub enum Sink {
    /// A join table. Rows with a NULL in their key are left out, because no probe would find them.
    /// The table records that there were any.
    Build {
        /// The key.
        keys: Vec<Expr>,
        /// Columns available to probes.
        payload: Vec<Expr>,
    },
    /// Groups. Without keys there is exactly one group, even without rows.
    Aggregate {
        /// Group keys; NULLs are equal to each other.
        keys: Vec<Expr>,
        /// Aggregates of each group.
        aggregates: Vec<Aggregate>,
    },
    /// The rows themselves, in unspecified order.
    Collect {
        /// The columns.
        columns: Vec<Expr>,
    },
    /// The first rows in an order, in that order. Ties are broken arbitrarily, also at the last
    /// row.
    Top {
        /// Number of rows, at least one and at most [`MOST_TOP_ROWS`].
        rows: usize,
        /// The order: by the first key, with ties broken by the next.
        keys: Vec<SortKey>,
        /// The columns.
        columns: Vec<Expr>,
    },
}

/// A sort key. Integers and booleans (false before true) sort by value, strings by their bytes,
/// doubles in the total order of IEEE 754.
#[derive(Clone, Debug)]
pub struct SortKey {
    /// The value.
    pub expr: Expr,
    /// Values that come first.
    pub direction: Direction,
    /// Place of NULLs.
    pub nulls: Nulls,
}

/// Values that come first in an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The least values.
    Ascending,
    /// The greatest values.
    Descending,
}

/// Place of NULLs in an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nulls {
    /// Before all values.
    First,
    /// After all values.
    Last,
}

/// A function of a group's rows. NULLs are left out. Without values, counts are 0 and all other
/// functions are NULL.
#[derive(Clone, Debug)]
pub enum Aggregate {
    /// Number of rows, NULL or not.
    CountRows,
    /// Number of values.
    Count(Expr),
    /// Number of distinct values. Not for doubles.
    CountDistinct(Expr),
    /// Exact sum. That of doubles does not depend on the order of rows, and is nearly exact.
    Sum(Expr),
    /// Exact sum of distinct integers.
    SumDistinct(Expr),
    /// The least value; doubles compare in the total order of IEEE 754.
    Min(Expr),
    /// The greatest value.
    Max(Expr),
    /// Population variance of doubles.
    VariancePop(Expr),
    /// Sample variance of doubles, NULL for a single value.
    VarianceSamp(Expr),
}

impl Step {
    /// Returns the condition on the matches of a probe.
    fn condition(&self) -> Option<&Expr> {
        match self {
            Self::Probe(probe) => probe.condition.as_ref(),
            Self::Filter(_) | Self::Map(_) => None,
        }
    }
}

impl Sink {
    /// Returns all expressions that it reads.
    fn exprs(&self) -> impl Iterator<Item = &Expr> {
        let (first, second, aggregates, order): (&[Expr], &[Expr], &[Aggregate], &[SortKey]) = match self {
            Self::Build { keys, payload } => (keys, payload, &[], &[]),
            Self::Aggregate { keys, aggregates } => (keys, &[], aggregates, &[]),
            Self::Collect { columns } => (columns, &[], &[], &[]),
            Self::Top { keys, columns, .. } => (columns, &[], &[], keys),
        };
        let aggregates = aggregates.iter().filter_map(Aggregate::argument);
        first.iter().chain(second).chain(aggregates).chain(order.iter().map(|key| &key.expr))
    }
}

impl Aggregate {
    /// Returns the argument.
    pub fn argument(&self) -> Option<&Expr> {
        match self {
            Self::CountRows => None,
            Self::Count(expr)
            | Self::CountDistinct(expr)
            | Self::Sum(expr)
            | Self::SumDistinct(expr)
            | Self::Min(expr)
            | Self::Max(expr)
            | Self::VariancePop(expr)
            | Self::VarianceSamp(expr) => Some(expr),
        }
    }

    /// Returns true if equal values count once.
    pub fn is_distinct(&self) -> bool {
        matches!(self, Self::CountDistinct(_) | Self::SumDistinct(_))
    }
}

/// Shape of a pipeline: the domain of every register, and of the columns of the sink.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Domains of the registers.
    pub registers: Vec<Domain>,
    /// Domains of a join table's keys.
    pub keys: Vec<Domain>,
    /// Domains of a join table's payload, or of the answer's columns.
    pub outputs: Vec<Domain>,
    /// For each register, the first one with the same value in every row: late strings of one row
    /// have one number.
    pub twins: Vec<usize>,
    /// The same for each column of a join table's payload.
    pub output_twins: Vec<usize>,
}

/// Checks a program against its sources' columns, and determines the domain of every register.
///
/// # Errors
/// [`Error::Invalid`] if it breaks a rule of this module, [`Error::Unsupported`] if no backend can
/// run it.
pub fn validate(program: &Program, sources: &[Vec<Domain>]) -> Result<Vec<Shape>> {
    let mut shapes: Vec<Shape> = Vec::with_capacity(program.pipelines.len());
    for (number, pipeline) in program.pipelines.iter().enumerate() {
        let is_last = number + 1 == program.pipelines.len();
        if is_last == matches!(pipeline.sink, Sink::Build { .. }) {
            return Err(Error::Invalid(format!("pipeline {number} ends in the wrong sink")));
        }
        shapes.push(shape(pipeline, sources, &shapes)?);
    }
    if shapes.is_empty() {
        return Err(Error::Invalid("there is no pipeline".into()));
    }
    Ok(shapes)
}

/// Returns the shape of one pipeline, given its sources and the tables before it.
fn shape(pipeline: &Pipeline, sources: &[Vec<Domain>], tables: &[Shape]) -> Result<Shape> {
    let invalid = |reason: String| Error::Invalid(reason);
    let source = sources.get(pipeline.source).ok_or_else(|| invalid(format!("no source {}", pipeline.source)))?;
    let mut registers = Vec::new();
    for column in &pipeline.columns {
        registers.push(source.get(*column).cloned().ok_or_else(|| invalid(format!("no source column {column}")))?);
    }
    let mut twins = twins_among(&registers);
    // After the probe, no step can tell which match these registers belong to.
    let mut hidden: Vec<usize> = Vec::new();
    for step in &pipeline.steps {
        let read = match step {
            Step::Filter(expr) | Step::Map(expr) => std::slice::from_ref(expr),
            Step::Probe(probe) => &probe.keys,
        };
        check_hidden(read.iter().chain(step.condition()), &hidden)?;
        match step {
            Step::Filter(condition) => {
                if bind::bind(condition, &registers)?.domain.ty != Type::Bool {
                    return Err(invalid(format!("a filter on {condition}, which is no boolean")));
                }
            }
            Step::Map(expr) => {
                let domain = bind::bind(expr, &registers)?.domain;
                registers.push(domain);
                twins.push(twins.len());
            }
            Step::Probe(probe) => {
                let Some(table) = tables.get(probe.table) else {
                    return Err(invalid(format!("a probe of table {}, which is not built yet", probe.table)));
                };
                let added = probe_payload(probe, table, &registers)?;
                let first = registers.len();
                registers.extend(added);
                let twin_of = |column: usize| table.output_twins.get(column);
                for column in &probe.payload {
                    let same = |other: &usize| twin_of(*other) == twin_of(*column);
                    twins.push(first + probe.payload.iter().position(same).unwrap_or(0));
                }
                if let Some(condition) = &probe.condition {
                    check_condition(probe, condition, &registers)?;
                    if probe.kind != JoinKind::Left {
                        hidden.extend(first..registers.len());
                    }
                }
            }
        }
    }
    check_hidden(pipeline.sink.exprs(), &hidden)?;
    let (keys, outputs) = match &pipeline.sink {
        Sink::Build { keys, payload } => (key_domains(keys, &registers)?, domains(payload, &registers)?),
        Sink::Aggregate { keys, aggregates } => {
            let mut outputs = domains(keys, &registers)?;
            for aggregate in aggregates {
                outputs.push(aggregate_domain(aggregate, &registers)?);
            }
            (Vec::new(), outputs)
        }
        Sink::Collect { columns } => (Vec::new(), domains(columns, &registers)?),
        Sink::Top { rows, keys, columns } => {
            if *rows == 0 || keys.is_empty() {
                return Err(invalid(format!("the first {rows} rows by {} keys", keys.len())));
            }
            if *rows > MOST_TOP_ROWS {
                return Err(Error::Unsupported(format!("an ORDER BY with a LIMIT of more than {MOST_TOP_ROWS} rows")));
            }
            check_order(keys, &registers)?;
            (Vec::new(), domains(columns, &registers)?)
        }
    };
    let output_twins = match &pipeline.sink {
        Sink::Build { payload, .. } => {
            let value = |expr: &Expr| if let Expr::Register(register) = expr { Some(twins[*register]) } else { None };
            let twin = |(number, expr): (usize, &Expr)| {
                let first = value(expr).and_then(|wanted| payload.iter().position(|e| value(e) == Some(wanted)));
                first.unwrap_or(number)
            };
            payload.iter().enumerate().map(twin).collect()
        }
        Sink::Aggregate { .. } | Sink::Collect { .. } | Sink::Top { .. } => Vec::new(),
    };
    Ok(Shape { registers, keys, outputs, twins, output_twins })
}

/// Returns, for each column of a source, the first column with the same value in every row.
fn twins_among(columns: &[Domain]) -> Vec<usize> {
    let is_twin = |a: &Domain, b: &Domain| match (&a.late, &b.late) {
        (Some(x), Some(y)) => !a.nullable && !b.nullable && x.is_beside(y),
        _ => false,
    };
    let first = |number: usize| columns.iter().position(|other| is_twin(other, &columns[number])).unwrap_or(number);
    (0..columns.len()).map(first).collect()
}

fn check_hidden<'a>(mut read: impl Iterator<Item = &'a Expr>, hidden: &[usize]) -> Result<()> {
    let is_hidden = |expr: &Expr| {
        let mut any = false;
        expr.for_each_register(&mut |register| any |= hidden.contains(&register));
        any
    };
    match read.find(|expr| is_hidden(expr)) {
        Some(expr) => Err(Error::Invalid(format!("{expr}: it reads the payload of a semi or anti join"))),
        None => Ok(()),
    }
}

fn check_condition(probe: &Probe, condition: &Expr, registers: &[Domain]) -> Result<()> {
    let bound = bind::bind(condition, registers)?;
    if matches!(probe.kind, JoinKind::Inner | JoinKind::NotIn) || bound.domain.ty != Type::Bool {
        return Err(Error::Invalid(format!(
            "a probe on {condition}, which is for left, semi and anti joins, and a boolean"
        )));
    }
    match (bound.is_fallible, probe.kind) {
        (true, JoinKind::Left) => {
            Err(Error::Unsupported("an outer join with a condition, beside its equalities, that can fail".into()))
        }
        (true, _) => {
            Err(Error::Unsupported("EXISTS or IN (SELECT ...) with a condition on both queries that can fail".into()))
        }
        (false, _) => Ok(()),
    }
}

fn domains(all: &[Expr], registers: &[Domain]) -> Result<Vec<Domain>> {
    all.iter().map(|expr| Ok(bind::bind(expr, registers)?.domain)).collect()
}

fn key_domains(keys: &[Expr], registers: &[Domain]) -> Result<Vec<Domain>> {
    let domains = domains(keys, registers)?;
    if domains.is_empty() {
        return Err(Error::Invalid("a join table without a key".into()));
    }
    if domains.iter().any(|domain| domain.ty == Type::Double) {
        return Err(Error::Unsupported("a join on doubles".into()));
    }
    if let Some(texts) = domains.iter().find_map(Domain::late_name) {
        return Err(Error::Unsupported(format!("a join on {texts}")));
    }
    Ok(domains)
}

fn check_order(keys: &[SortKey], registers: &[Domain]) -> Result<()> {
    for key in keys {
        if let Some(texts) = bind::bind(&key.expr, registers)?.domain.late_name() {
            return Err(Error::Unsupported(format!("an ORDER BY of {texts}")));
        }
    }
    Ok(())
}

fn probe_payload(probe: &Probe, table: &Shape, registers: &[Domain]) -> Result<Vec<Domain>> {
    let keys = key_domains(&probe.keys, registers)?;
    if keys.len() != table.keys.len() || keys.iter().zip(&table.keys).any(|(a, b)| a.ty != b.ty) {
        return Err(Error::Invalid(format!("a probe of table {} with a key of another shape", probe.table)));
    }
    let is_different = |(a, b): (&Domain, &Domain)| match (&a.dictionary, &b.dictionary) {
        (Some(a), Some(b)) => !a.is_same_as(b),
        _ => false,
    };
    if keys.iter().zip(&table.keys).any(is_different) {
        return Err(Error::Unsupported("a join on texts of different columns".into()));
    }
    if probe.kind == JoinKind::NotIn && keys.len() != 1 {
        return Err(Error::Unsupported("NOT IN (SELECT ...) of several columns".into()));
    }
    let only_asks = !matches!(probe.kind, JoinKind::Inner | JoinKind::Left) && probe.condition.is_none();
    if only_asks && !probe.payload.is_empty() {
        return Err(Error::Invalid("a semi or anti join without a condition has no payload".into()));
    }
    let column = |column: &usize| {
        let domain = table.outputs.get(*column).cloned();
        let mut domain = domain.ok_or_else(|| Error::Invalid(format!("table {} has no such payload", probe.table)))?;
        domain.nullable |= probe.kind == JoinKind::Left;
        Ok(domain)
    };
    probe.payload.iter().map(column).collect()
}

fn aggregate_domain(aggregate: &Aggregate, registers: &[Domain]) -> Result<Domain> {
    let count = crate::Interval::new(0, i64::MAX.into());
    let Some(argument) = aggregate.argument() else { return Ok(Domain::int(count, false)) };
    let argument = bind::bind(argument, registers)?.domain;
    if let (Some(texts), false) = (argument.late_name(), matches!(aggregate, Aggregate::Count(_))) {
        let call = match aggregate {
            Aggregate::CountDistinct(_) => "count(DISTINCT ...)",
            Aggregate::Min(_) => "min()",
            Aggregate::Max(_) => "max()",
            _ => "a sum",
        };
        return Err(Error::Unsupported(format!("{call} of {texts}")));
    }
    Ok(match aggregate {
        Aggregate::CountRows | Aggregate::Count(_) | Aggregate::CountDistinct(_) => Domain::int(count, false),
        Aggregate::Sum(_) if argument.ty == Type::Double => Domain::double(true),
        Aggregate::Sum(_) | Aggregate::SumDistinct(_) if argument.ty != Type::Int => {
            return Err(Error::Unsupported(format!("a sum of {}s", argument.ty)));
        }
        Aggregate::Sum(_) | Aggregate::SumDistinct(_) => Domain::int(crate::Interval::ALL, true),
        Aggregate::Min(_) | Aggregate::Max(_) => Domain { nullable: true, ..argument },
        Aggregate::VariancePop(_) | Aggregate::VarianceSamp(_) if argument.ty != Type::Double => {
            return Err(Error::Unsupported(format!("a variance of {}s", argument.ty)));
        }
        Aggregate::VariancePop(_) | Aggregate::VarianceSamp(_) => Domain::double(true),
    })
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, pipeline) in self.pipelines.iter().enumerate() {
            match pipeline.sink {
                Sink::Build { .. } => writeln!(f, "table {number} = source {}", pipeline.source)?,
                _ => writeln!(f, "result = source {}", pipeline.source)?,
            }
            write!(f, "{pipeline}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (register, column) in self.columns.iter().enumerate() {
            writeln!(f, "  %{register} = column {column}")?;
        }
        let mut next = self.columns.len();
        for step in &self.steps {
            match step {
                Step::Filter(condition) => writeln!(f, "  filter {condition}")?,
                Step::Map(expr) => {
                    writeln!(f, "  %{next} = {expr}")?;
                    next += 1;
                }
                Step::Probe(probe) => {
                    let kind = format!("{:?}", probe.kind).to_lowercase();
                    write!(f, "  {kind} probe table {} key {}", probe.table, list(&probe.keys))?;
                    for column in &probe.payload {
                        write!(f, " %{next} = payload {column}")?;
                        next += 1;
                    }
                    if let Some(condition) = &probe.condition {
                        write!(f, " if {condition}")?;
                    }
                    writeln!(f)?;
                }
            }
        }
        match &self.sink {
            Sink::Build { keys, payload } => writeln!(f, "  build key {} payload {}", list(keys), list(payload)),
            Sink::Aggregate { keys, aggregates } => {
                write!(f, "  aggregate by {}", list(keys))?;
                aggregates.iter().try_for_each(|aggregate| write!(f, " {aggregate}"))?;
                writeln!(f)
            }
            Sink::Collect { columns } => writeln!(f, "  collect {}", list(columns)),
            Sink::Top { rows, keys, columns } => {
                let keys = keys.iter().map(SortKey::to_string).collect::<Vec<_>>().join(", ");
                writeln!(f, "  first {rows} by ({keys}) of {}", list(columns))
            }
        }
    }
}

impl fmt::Display for Aggregate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CountRows => f.write_str("count(*)"),
            Self::Count(expr) => write!(f, "count({expr})"),
            Self::CountDistinct(expr) => write!(f, "count(distinct {expr})"),
            Self::Sum(expr) => write!(f, "sum({expr})"),
            Self::SumDistinct(expr) => write!(f, "sum(distinct {expr})"),
            Self::Min(expr) => write!(f, "min({expr})"),
            Self::Max(expr) => write!(f, "max({expr})"),
            Self::VariancePop(expr) => write!(f, "var_pop({expr})"),
            Self::VarianceSamp(expr) => write!(f, "var_samp({expr})"),
        }
    }
}

impl fmt::Display for SortKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let direction = if self.direction == Direction::Ascending { "" } else { " desc" };
        let nulls = if self.nulls == Nulls::First { "first" } else { "last" };
        write!(f, "{}{direction} nulls {nulls}", self.expr)
    }
}

fn list(all: &[Expr]) -> String {
    format!("({})", all.iter().map(Expr::to_string).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::{CompareOp, Interval};

    fn star() -> (Program, Vec<Vec<Domain>>) {
        let column = |min, max| Domain::int(Interval::new(min, max), false);
        let dates = Pipeline {
            source: 0,
            columns: vec![0, 1],
            steps: vec![Step::Filter(Expr::compare(CompareOp::Equal, Expr::Register(1), Expr::int(1993)))],
            sink: Sink::Build { keys: vec![Expr::Register(0)], payload: vec![Expr::Register(1)] },
        };
        let facts = Pipeline {
            source: 1,
            columns: vec![0, 1],
            steps: vec![Step::Probe(Probe {
                table: 0,
                kind: JoinKind::Inner,
                keys: vec![Expr::Register(0)],
                payload: vec![0],
                condition: None,
            })],
            sink: Sink::Aggregate {
                keys: vec![Expr::Register(2)],
                aggregates: vec![Aggregate::Sum(Expr::Register(1)), Aggregate::CountRows],
            },
        };
        let sources = vec![vec![column(19_920_101, 19_981_231), column(1992, 1998)], vec![column(0, 9), column(0, 99)]];
        (Program { pipelines: vec![dates, facts] }, sources)
    }

    #[test]
    fn a_program_can_be_read() {
        let (program, sources) = star();
        let shapes = validate(&program, &sources).unwrap();
        assert_eq!(shapes[1].registers.len(), 3);
        assert_eq!(shapes[1].outputs.len(), 3);
        let text = "table 0 = source 0\n  %0 = column 0\n  %1 = column 1\n  filter %1 = 1993\n  \
                    build key (%0) payload (%1)\nresult = source 1\n  %0 = column 0\n  %1 = column 1\n  \
                    inner probe table 0 key (%0) %2 = payload 0\n  aggregate by (%2) sum(%1) count(*)\n";
        assert_eq!(program.to_string(), text);
    }

    #[test]
    fn what_is_only_counted_is_not_read() {
        let (mut program, _) = star();
        assert!(program.reads_values_of(0, 0) && program.reads_values_of(0, 1) && program.reads_values_of(1, 0));
        let last = program.pipelines.last_mut().unwrap();
        let is_null = Expr::Not(Box::new(Expr::IsNull(Box::new(Expr::Register(1)))));
        last.steps.push(Step::Filter(is_null));
        last.sink = Sink::Aggregate { keys: vec![], aggregates: vec![Aggregate::Count(Expr::Register(1))] };
        assert!(!program.reads_values_of(1, 1) && program.reads_values_of(1, 0));
        let last = program.pipelines.last_mut().unwrap();
        last.sink = Sink::Aggregate { keys: vec![], aggregates: vec![Aggregate::Min(Expr::Register(1))] };
        assert!(program.reads_values_of(1, 1));
    }

    #[test]
    fn an_order_can_be_read() {
        let (mut program, sources) = star();
        let key = |expr, direction, nulls| SortKey { expr, direction, nulls };
        let keys = vec![
            key(Expr::Register(1), Direction::Descending, Nulls::First),
            key(Expr::Register(2), Direction::Ascending, Nulls::Last),
        ];
        program.pipelines[1].sink = Sink::Top { rows: 10, keys, columns: vec![Expr::Register(0)] };
        assert_eq!(validate(&program, &sources).unwrap()[1].outputs.len(), 1);
        assert!(program.to_string().ends_with("  first 10 by (%1 desc nulls first, %2 nulls last) of (%0)\n"));
    }

    #[test]
    fn broken_programs_are_refused() {
        type Break = fn(&mut Program);
        let breaks: [Break; 8] = [
            |p| p.pipelines[1].sink = Sink::Top { rows: 1, keys: Vec::new(), columns: Vec::new() },
            |p| {
                let key = SortKey { expr: Expr::Register(0), direction: Direction::Ascending, nulls: Nulls::Last };
                p.pipelines[1].sink = Sink::Top { rows: 0, keys: vec![key], columns: Vec::new() };
            },
            |p| p.pipelines.truncate(1),
            |p| p.pipelines[1].source = 9,
            |p| p.pipelines[1].columns[0] = 9,
            |p| p.pipelines.swap(0, 1),
            |p| p.pipelines[0].steps = vec![Step::Filter(Expr::Register(0))],
            |p| {
                let Step::Probe(probe) = &mut p.pipelines[1].steps[0] else { return };
                probe.payload = vec![3];
            },
        ];
        for (number, f) in breaks.iter().enumerate() {
            let (mut program, sources) = star();
            f(&mut program);
            assert!(matches!(validate(&program, &sources), Err(Error::Invalid(_))), "{number}");
        }
    }
}
