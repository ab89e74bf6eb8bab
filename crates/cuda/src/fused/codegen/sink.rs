//! Sinks of rows: a table, or the rows themselves. Groups are in a module of their own.

use onehop_pipeline::bind::Bound;
use onehop_pipeline::cpu::{KeyDigit, Kind, TableKind};
use onehop_pipeline::ir::{Aggregate, Direction, Nulls, Sink};
use onehop_pipeline::{Domain, Interval, Type};

use super::dense::Dense;
use super::expr::{Operand, Valid};
use super::fold::Fold;
use super::groups::{Groups, Place};
use super::pipeline::Builder;
use super::{End, PartitionWord, TableWord, Word, type_of};
use crate::fused::plan::registers_of;
use crate::fused::table::{Rows, TableShape};
use crate::fused::{Error, Result};

/// Output that the host reads after a kernel.
#[derive(Clone, Debug)]
pub(in crate::fused) enum SinkShape {
    /// A join table.
    Table,
    Groups(Groups),
    /// Rows, as columns. The first rows of an order begin with its keys. If there is a threshold,
    /// rows whose first key comes after it are left out.
    Rows {
        outputs: Vec<Output>,
        has_threshold: bool,
    },
    /// Sums of blocks.
    Fold,
}

impl SinkShape {
    /// Returns the summation of dense rows by vectors, if it is used.
    pub fn dense(&self) -> Option<&Dense> {
        if let Self::Groups(groups) = self { groups.dense.as_ref() } else { None }
    }
}

/// A column of collected rows.
#[derive(Clone, Debug)]
pub(in crate::fused) struct Output {
    pub domain: Domain,
    pub kind: Kind,
}

impl Output {
    pub fn bytes(&self) -> usize {
        match self.kind {
            Kind::Bool => 1,
            Kind::I32 => 4,
            Kind::I64 | Kind::F64 => 8,
            Kind::I128 => 16,
        }
    }
}

/// A sink with its expressions bound.
pub(super) enum SinkPlan {
    Build {
        keys: Vec<Bound>,
        payload: Vec<Option<Bound>>,
        shape: TableShape,
    },
    Groups {
        keys: Vec<Bound>,
        arguments: Vec<Option<Bound>>,
        groups: Groups,
    },
    Rows {
        columns: Vec<Bound>,
        outputs: Vec<Output>,
        threshold: Option<Threshold>,
    },
    /// The rows of `Collect`, added up.
    Fold {
        columns: Vec<Bound>,
        fold: Fold,
    },
}

/// The key of a row for the sink: its parts, and its number, or its place among the resident keys.
pub(super) struct SinkKey {
    pub parts: Vec<Operand>,
    pub key: String,
}

/// Condition for rows that come too late in an order to be among the first. A value's rank is a
/// number that ascends in the direction of the order.
pub(super) struct Threshold {
    first: Bound,
    direction: Direction,
    nulls: Nulls,
}

impl SinkPlan {
    fn exprs(&self) -> Vec<&Bound> {
        match self {
            Self::Build { keys, payload, .. } => keys.iter().chain(payload.iter().flatten()).collect(),
            Self::Groups { keys, arguments, .. } => keys.iter().chain(arguments.iter().flatten()).collect(),
            Self::Rows { columns, .. } | Self::Fold { columns, .. } => columns.iter().collect(),
        }
    }

    pub fn reads(&self) -> Vec<usize> {
        registers_of(self.exprs())
    }

    /// Returns the words of shared memory that groups take.
    pub fn shared_words(&self) -> u64 {
        if let Self::Groups { groups, .. } = self { groups.shared_words() } else { 0 }
    }

    /// Returns the number of units after which registers are combined, if groups are in registers.
    pub fn flush_units(&self) -> Option<u64> {
        match self {
            Self::Groups { groups: Groups { place: Place::Registers { flush_units }, .. }, .. } => Some(*flush_units),
            _ => None,
        }
    }

    pub fn into_shape(self) -> SinkShape {
        match self {
            Self::Build { .. } => SinkShape::Table,
            Self::Groups { groups, .. } => SinkShape::Groups(groups),
            Self::Rows { outputs, threshold, .. } => SinkShape::Rows { outputs, has_threshold: threshold.is_some() },
            Self::Fold { .. } => SinkShape::Fold,
        }
    }
}

impl Builder<'_> {
    pub fn sink_plan(&self) -> Result<SinkPlan> {
        let plan = self.input.plan;
        let bind_all =
            |all: &[onehop_pipeline::Expr]| all.iter().map(|expr| plan.bind(expr)).collect::<Result<Vec<_>>>();
        match &plan.pipeline.sink {
            Sink::Build { keys, payload } => {
                let Some(shape) = self.input.built else { return Err(Error::refused("a table of no known shape")) };
                let wanted = |(expr, element): (_, &Option<_>)| element.as_ref().map(|_| plan.bind(expr)).transpose();
                let payload = payload.iter().zip(&shape.payload).map(wanted).collect::<Result<Vec<_>>>()?;
                Ok(SinkPlan::Build { keys: bind_all(keys)?, payload, shape: shape.clone() })
            }
            Sink::Aggregate { keys, aggregates } => {
                let keys = bind_all(keys)?;
                let argument = |aggregate: &Aggregate| aggregate.argument().map(|expr| plan.bind(expr)).transpose();
                let arguments = aggregates.iter().map(argument).collect::<Result<Vec<_>>>()?;
                let groups = self.groups(&keys, aggregates, &arguments)?;
                Ok(SinkPlan::Groups { keys, arguments, groups })
            }
            Sink::Collect { columns } => match self.input.fold {
                Some(fold) => Ok(SinkPlan::Fold { columns: bind_all(columns)?, fold }),
                None => rows_plan(bind_all(columns)?),
            },
            Sink::Top { keys, columns, .. } => {
                let exprs: Vec<_> = keys.iter().map(|key| key.expr.clone()).chain(columns.iter().cloned()).collect();
                let mut sink = rows_plan(bind_all(&exprs)?)?;
                if let SinkPlan::Rows { columns, threshold, .. } = &mut sink
                    && let (Some(key), Some(first)) = (keys.first(), columns.first())
                {
                    // A row that fails must be evaluated, whatever its position.
                    let may_fail = columns.iter().any(|column| plan.may_fail(column));
                    let is_short = Kind::of(&first.domain) != Kind::I128;
                    let (first, direction, nulls) = (first.clone(), key.direction, key.nulls);
                    *threshold = (is_short && !may_fail).then_some(Threshold { first, direction, nulls });
                }
                Ok(sink)
            }
        }
    }

    /// Generates the code before the rows.
    pub fn begin_sink(&mut self, sink: &SinkPlan) {
        match sink {
            SinkPlan::Groups { groups, .. } => self.begin_groups(groups),
            SinkPlan::Build { shape, .. } if shape.rows != Rows::Chains => self.w.line("u64 built = 0;"),
            SinkPlan::Fold { fold, .. } => self.begin_fold(*fold),
            _ => {}
        }
        if self.w.text.contains("SHARED(S);") {
            self.w.line("__syncthreads();");
        }
    }

    /// Generates the processing of a row by the sink.
    pub fn take_row(&mut self, sink: &SinkPlan) -> Result<()> {
        if let SinkPlan::Rows { threshold: Some(threshold), .. } = sink {
            self.leave_out(threshold)?;
        }
        let key = self.leave_to_others(sink)?;
        self.load_all(sink.reads())?;
        match sink {
            SinkPlan::Build { keys, payload, shape } => self.build_row(keys, payload, shape, key),
            SinkPlan::Groups { keys, arguments, groups } => self.group_row(keys, arguments, groups, key),
            SinkPlan::Rows { columns, outputs, .. } => self.collect_row(columns, outputs),
            SinkPlan::Fold { columns, fold } => self.fold_row(columns, *fold),
        }
    }

    /// Skips rows of other partitions of a split output before other values of the row are read,
    /// and returns the row's key. If an expression can fail, the row is evaluated as a whole first,
    /// in every pass: an error must not depend on the order of the passes.
    fn leave_to_others(&mut self, sink: &SinkPlan) -> Result<Option<SinkKey>> {
        let keys = match sink {
            SinkPlan::Build { keys, shape, .. } if shape.is_split => keys,
            SinkPlan::Groups { keys, groups, .. } if groups.is_split => keys,
            _ => return Ok(None),
        };
        if sink.exprs().into_iter().any(|expr| self.input.plan.may_fail(expr)) {
            return Ok(None);
        }
        self.load_all(registers_of(keys))?;
        let parts = self.operands(keys)?;
        Ok(match sink {
            SinkPlan::Build { shape, .. } => Some(self.build_key(keys, parts, shape)),
            SinkPlan::Groups { groups, .. } => Some(self.group_key(keys, parts, groups)),
            SinkPlan::Rows { .. } | SinkPlan::Fold { .. } => None,
        })
    }

    /// Skips a row that comes too late, before other values of it are read.
    fn leave_out(&mut self, threshold: &Threshold) -> Result<()> {
        self.load_all(registers_of([&threshold.first]))?;
        let key = self.w.expr(&threshold.first)?;
        let number = match key.kind {
            // -0.0 and 0.0 give 0.0: both zeros are equal.
            Kind::F64 => format!("total(({}) + 0.0)", key.text),
            _ => key.as_kind(Kind::I64),
        };
        let rank = match threshold.direction {
            Direction::Ascending => format!("ordered({number})"),
            Direction::Descending => format!("~ordered({number})"),
        };
        let null = if threshold.nulls == Nulls::First { "0ull" } else { "~0ull" };
        let rank = match &key.valid {
            Valid::Always => rank,
            Valid::Never => null.into(),
            Valid::If(valid) => format!("({valid} ? {rank} : {null})"),
        };
        let last = self.w.args.named("u64", "threshold", Word::Threshold);
        self.w.line(format!("if ({rank} > {last}) continue;"));
        Ok(())
    }

    pub fn operands(&mut self, all: &[Bound]) -> Result<Vec<Operand>> {
        all.iter().map(|bound| self.w.expr(bound)).collect()
    }

    fn collect_row(&mut self, columns: &[Bound], outputs: &[Output]) -> Result<()> {
        let values = self.operands(columns)?;
        let capacity = self.w.args.named("u64", "capacity", Word::Capacity);
        self.w.line("const u64 at = atomicAdd(&A.status->rows, (u64)1);");
        self.w.open(format!("if (at < {capacity}) {{"));
        for (number, (value, output)) in values.iter().zip(outputs).enumerate() {
            let ty = type_of(output.kind);
            let to = self.w.args.named(&format!("{ty}*"), &format!("o{number}"), Word::Output(number));
            let text = value.as_kind(output.kind);
            self.w.line(format!("{to}[at] = {text};"));
            if output.domain.nullable {
                let to = self.w.args.named("u8*", &format!("ov{number}"), Word::OutputValid(number));
                self.w.line(format!("{to}[at] = {};", value.is_valid()));
            }
        }
        self.w.close();
        Ok(())
    }

    fn built_word(&mut self, ty: &str, name: &str, word: TableWord) -> String {
        self.w.args.named(ty, &format!("built_{name}"), Word::Built(word))
    }

    /// Generates the key of a row that has one and is in the resident partition.
    fn build_key(&mut self, keys: &[Bound], parts: Vec<Operand>, shape: &TableShape) -> SinkKey {
        let domains: Vec<Interval> = keys.iter().map(|key| key.domain.interval).collect();
        let digits: Vec<KeyDigit> = shape.layout.digits_of_parts().collect();
        let (mut key, is_key) = self.key(&parts, &domains, &digits);
        if is_key != "true" {
            self.w.line(format!("if (!({is_key})) {{ mark(&A.status->keyless); continue; }}"));
        }
        if shape.is_split {
            let word = TableWord::Partition;
            let is_range = shape.kind == TableKind::Direct;
            key = self.leave_others(is_range, &key, |b, of| b.built_word("u64", of.name(), word(of)));
        }
        SinkKey { parts, key }
    }

    /// Skips rows of other partitions. The returned key of a range is the distance from its first
    /// key.
    pub fn leave_others(
        &mut self,
        is_range: bool,
        key: &str,
        mut word: impl FnMut(&mut Self, PartitionWord) -> String,
    ) -> String {
        if !is_range {
            let (number, count) = (word(self, PartitionWord::Number), word(self, PartitionWord::Count));
            self.w.line(format!("if (!is_of({key}, {number}, {count})) continue;"));
            return key.into();
        }
        let (first, span) = (word(self, PartitionWord::First), word(self, PartitionWord::Span));
        let place = self.w.variable();
        self.w.line(format!("const u64 {place} = {key} - {first};"));
        self.w.line(format!("if ({place} >= {span}) continue;"));
        place
    }

    fn build_row(
        &mut self,
        keys: &[Bound],
        payload: &[Option<Bound>],
        shape: &TableShape,
        key: Option<SinkKey>,
    ) -> Result<()> {
        let parts = key.as_ref().map(|key| Ok(key.parts.clone())).unwrap_or_else(|| self.operands(keys))?;
        let values = payload.iter().map(|bound| bound.as_ref().map(|bound| self.w.expr(bound)).transpose());
        let values = values.collect::<Result<Vec<_>>>()?;
        let SinkKey { parts, key } = key.unwrap_or_else(|| self.build_key(keys, parts, shape));
        let place = match shape.kind {
            TableKind::Direct => key.clone(),
            TableKind::Hashed => {
                let slots = self.built_word("u64*", "keys", TableWord::Keys);
                let mask = self.built_word("u64", "mask", TableWord::Mask);
                let place = self.w.variable();
                self.w.line(format!("const u64 {place} = place({slots}, {mask}, {key});"));
                self.w.line(format!("if ({place} == NO_KEY) {{ mark(&A.status->full); continue; }}"));
                place
            }
        };
        let is_direct = shape.kind == TableKind::Direct;
        if is_direct {
            let bits = self.built_word("u32*", "bits", TableWord::Bits);
            match shape.rows {
                Rows::Unique => {
                    self.w.line(format!("const u32 bit_of = 1u << ({key} & 31);"));
                    self.w.line(format!(
                        "if (atomicOr({bits} + ({key} >> 5), bit_of) & bit_of) mark(&A.status->repeated);"
                    ));
                }
                _ => self
                    .w
                    .line(format!("if (!bit({bits}, {key})) atomicOr({bits} + ({key} >> 5), 1u << ({key} & 31));")),
            }
        }
        let row = match shape.rows {
            Rows::Chains => {
                let capacity = self.built_word("u64", "capacity", TableWord::Capacity);
                let head = self.built_word("u32*", "head", TableWord::Head);
                let next = self.built_word("u32*", "next", TableWord::Next);
                self.w.line("const u64 row = atomicAdd(&A.status->rows, (u64)1);");
                self.w.line(format!("if (row >= {capacity}) {{ mark(&A.status->full); continue; }}"));
                self.w.line(format!("{next}[row] = atomicExch({head} + {place}, (u32)row + 1);"));
                "row".to_string()
            }
            Rows::Unique if !is_direct => {
                // A slot that already belongs to another row.
                let head = self.built_word("u32*", "head", TableWord::Head);
                self.w.line(format!("if (atomicExch({head} + {place}, 1u)) mark(&A.status->repeated);"));
                self.w.line("built++;");
                place
            }
            Rows::Unique | Rows::Keys => {
                self.w.line("built++;");
                place
            }
        };
        if let [key] = keys
            && key.domain.ty != Type::Bool
            && let [part] = parts.as_slice()
        {
            self.keep_ends(End::Key, part);
        }
        for (number, value) in values.iter().enumerate() {
            let (Some(value), Some(element)) = (value, &shape.payload[number]) else { continue };
            if matches!(element.kind, Kind::I32 | Kind::I64) {
                self.keep_ends(End::Payload(number), value);
            }
            let to =
                self.built_word(&format!("{}*", element.stored), &format!("p{number}"), TableWord::Payload(number));
            let text = match element.least {
                None => value.as_kind(element.kind),
                Some(least) => {
                    let least = self.w.args.value("i64", least as u64);
                    format!("({})digit({}, {least})", element.stored, value.text)
                }
            };
            self.w.line(format!("{to}[{row}] = {text};"));
            if element.nullable {
                let to = self.built_word("u8*", &format!("v{number}"), TableWord::PayloadValid(number));
                self.w.line(format!("{to}[{row}] = {};", value.is_valid()));
            }
        }
        Ok(())
    }

    /// Tracks the minimum and the maximum of values.
    fn keep_ends(&mut self, end: End, value: &Operand) {
        let number = self.ends.len();
        self.ends.push(end);
        let test = match &value.valid {
            Valid::Always => String::new(),
            Valid::Never => return,
            Valid::If(valid) => format!("if ({valid}) "),
        };
        self.w.line(format!("{test}keep_greatest(low{number}, least({}));", value.text));
        self.w.line(format!("{test}keep_greatest(high{number}, greatest({}));", value.text));
    }

    /// Generates the code after the rows.
    pub fn end_sink(&mut self, sink: &SinkPlan) {
        match sink {
            SinkPlan::Build { shape, .. } if shape.rows != Rows::Chains => {
                self.w.line("built = block_sum(built);");
                self.w.line("if (threadIdx.x == 0 && built) add(&A.status->rows, built);");
            }
            SinkPlan::Groups { groups, .. } => self.end_groups(groups),
            SinkPlan::Fold { fold, .. } => self.end_fold(*fold),
            _ => {}
        }
    }
}

fn rows_plan(columns: Vec<Bound>) -> Result<SinkPlan> {
    let outputs = columns.iter().map(|bound| Output { domain: bound.domain.clone(), kind: Kind::of(&bound.domain) });
    let outputs = outputs.collect();
    Ok(SinkPlan::Rows { columns, outputs, threshold: None })
}
