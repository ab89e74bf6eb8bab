//! The frame of a kernel: units, vectors, rows, and the columns that they are read from.
//!
//! The following alternatives were measured: star queries over 600,000,000 rows and dimensions of
//! scale 100. Times are those of the kernels alone, including those that build tables, in
//! milliseconds; medians of 27 runs, interleaved with those of the neighbouring variants. One H200,
//! driver 580, NVRTC 13.0, 2026-11-24; `fused_checks --bench 600000000 --scale 100 --blocks 64`.
//!
//! ```text
//!                                                          Q1.1   Q2.1   Q3.1   Q4.1
//! each lane its own rows, bits tested, units dealt         0.810  1.670  2.662  2.494
//!   bits shifted (where_bit)                               0.824  1.685  2.635  2.474
//!   rows queued (queue.rs)                                 0.774  1.310  2.552  2.457
//!   both                                                   0.775  1.314  2.409  2.342
//!   both, units taken (Units::Taken): the current code     0.774  1.298  2.417  2.292
//! both, two blocks of 768 threads on a multiprocessor      0.775  1.461  2.754  2.513
//! both, words of a column all loaded at once, past the
//!   nearest cache, the next vector's prefetched            0.947  1.635  2.871  2.665
//!   units taken as well                                    0.950  1.566  2.758  2.631
//! both, at once, prefetched, units taken, and a bitmap of
//!   up to 203 KiB in shared memory instead of 40           0.937  1.728  2.712  2.609
//! ```
//! Explanation, as far as it is known without a profile: a lane with many rows makes 31 others
//! wait, and queues avoid this. Each variant that makes a warp load more at once takes registers,
//! or warps, and none are to spare: other warps hide its latency already. A larger bitmap is
//! nearer, but takes the multiprocessor's cache away from all other data.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use onehop_pipeline::cpu::Kind;

use super::expr::{Operand, Valid, Writer};
use super::fold::{FOLD, Fold};
use super::probes::Found;
use super::sink::SinkPlan;
use super::{End, Generated, SharedWords, Units, Word, type_of};
use crate::fused::Result;
use crate::fused::image::MOST_FORMS;
use crate::fused::part::form::{self, Layout};
use crate::fused::plan::{ActKind, Plan, Probe, Register, registers_of};
use crate::fused::table::TableShape;

/// Bytes of shared memory for a bitmap and groups together. A kernel has 8 KiB of queues and a few
/// words besides. The total is more than a device provides without opt-in, and less than every
/// device has: 64 KiB, which is also the amount that the device takes out of its cache for 48 KiB.
pub(in crate::fused) const SHARED_BYTES: u64 = 48 << 10;

/// Input of a kernel source.
pub(in crate::fused) struct Input<'a> {
    pub plan: &'a Plan<'a>,
    /// Shapes of the tables of earlier pipelines.
    pub tables: &'a [TableShape],
    /// Shape of the table that it builds, if it builds one.
    pub built: Option<&'a TableShape>,
    /// `true` if groups in global memory are resident one partition of their keys at a time.
    pub splits_groups: bool,
    /// Returns the forms of a column of the source, the most frequent first.
    pub forms: &'a dyn Fn(usize) -> Vec<u32>,
    /// Rows of the source.
    pub rows: u64,
    /// `true` if steps count their rows.
    pub counts: bool,
    /// Minimum number of rows for which a bitmap is copied into every block's shared memory.
    pub many_rows: u64,
    /// Threads of a block, and of one that has a bitmap in shared memory.
    pub threads: [u32; 2],
    /// Sums that collected rows are added to instead, if any.
    pub fold: Option<Fold>,
}

/// State of the generation of a kernel source.
pub(super) struct Builder<'a> {
    pub input: &'a Input<'a>,
    pub w: Writer,
    /// Functions that precede the kernel.
    pub functions: String,
    /// Registers that are read.
    pub used: Vec<bool>,
    /// For each step that is a probe: the variables of its match.
    pub found: Vec<Option<Found>>,
    /// Ends of the scopes that rows have opened.
    pub closers: Vec<String>,
    pub counted: Vec<usize>,
    pub ends: Vec<End>,
    pub shared: SharedWords,
    /// Columns whose codes are tested before the kernel, and the statements of these tests.
    pub codes: Vec<usize>,
    pub ask_codes: String,
    /// The bits and the runs of each screen that has any.
    pub codes_of: Vec<(usize, [String; 2])>,
}

/// Generates a pipeline's kernel source.
///
/// # Errors
/// [`Error::Refused`] if there is no code for the pipeline.
pub(in crate::fused) fn generate(input: &Input<'_>) -> Result<Generated> {
    Builder::new(input).kernel()
}

/// Returns the columns of the source that a pipeline's kernel reads.
///
/// # Errors
/// As [`generate`].
pub(in crate::fused) fn columns_read(input: &Input<'_>) -> Result<Vec<usize>> {
    let mut builder = Builder::new(input);
    let sink = builder.sink_plan()?;
    builder.mark_all(&sink);
    let read = (0..input.plan.registers.len()).filter(|register| builder.used[*register]);
    let columns: BTreeSet<usize> = read.filter_map(|register| input.plan.column(register)).collect();
    Ok(columns.into_iter().collect())
}

impl<'a> Builder<'a> {
    fn new(input: &'a Input<'a>) -> Self {
        let registers = input.plan.registers.len();
        Self {
            input,
            w: Writer { registers: vec![None; registers], ..Writer::default() },
            functions: String::new(),
            used: vec![false; registers],
            found: vec![None; input.plan.pipeline.steps.len()],
            closers: Vec::new(),
            counted: Vec::new(),
            ends: Vec::new(),
            shared: SharedWords::default(),
            codes: Vec::new(),
            ask_codes: String::new(),
            codes_of: Vec::new(),
        }
    }

    fn kernel(&mut self) -> Result<Generated> {
        let plan = self.input.plan;
        let sink = self.sink_plan()?;
        self.mark_all(&sink);
        let screens = self.screens();
        let columns: Vec<usize> = (0..plan.registers.len())
            .filter(|register| self.used[*register] && plan.column(*register).is_some())
            .collect();
        for register in &columns {
            self.getter(*register);
        }

        self.w.args.named("const Morsel*", "morsels", Word::Morsels);
        self.w.args.named("u64", "units", Word::Units);
        self.w.args.named("u64", "unit_vectors", Word::UnitVectors);
        self.w.args.named("Status*", "status", Word::Status);
        self.w.depth = 1;
        self.w.line("const u32 lane = threadIdx.x % LANES;");
        let through = screens.len() + self.passes(screens.len());
        let is_queued = self.is_queued(&sink, through);
        self.begin_shared(&screens, &sink);
        self.begin_sink(&sink);
        if is_queued {
            self.begin_queue(through - screens.len());
        }
        let counters = self.w.text.len();
        let units = match self.shared.bitmaps.is_empty() || sink.flush_units().is_some() {
            true => Units::Dealt,
            false => Units::Taken,
        };
        self.begin_units(&sink, units);
        self.w.line("const u64 number = unit * A.unit_vectors;");
        self.w.line("const Morsel morsel = A.morsels[number / MORSEL_VECTORS];");
        self.w.line("const u32 first = (u32)(number % MORSEL_VECTORS), end = first + (u32)A.unit_vectors;");
        for register in &columns {
            let column = plan.column(*register).unwrap_or(0);
            let parts = self.w.args.named("const Part*", &format!("c{column}"), Word::Parts(column));
            // Parts of columns that are read only for queued rows are not held in registers
            // meanwhile.
            let is_screened = screens.iter().any(|(_, screened)| screened == register);
            let part = if is_queued && !is_screened { "const Part&" } else { "const Part" };
            self.w.line(format!("{part} p{register} = {parts}[morsel.number];"));
        }
        match is_queued {
            true => self.queued_vectors(&columns, &screens, through, &sink)?,
            false => self.vectors(&columns, &screens, through, &sink)?,
        }
        self.w.close();
        self.end(&sink, counters);
        Ok(self.finish(sink.into_shape(), units))
    }

    /// Generates the loop over a warp's units.
    fn begin_units(&mut self, sink: &SinkPlan, units: Units) {
        if units == Units::Taken {
            self.w.line("u64 unit;");
            self.w.open("while ((unit = taken_unit(A.status, lane)) < A.units) {");
            return;
        }
        self.w.line("const u64 warps = (u64)gridDim.x * (blockDim.x / LANES);");
        self.w.line("u64 unit = (u64)blockIdx.x * (blockDim.x / LANES) + threadIdx.x / LANES;");
        match sink.flush_units() {
            None => self.w.open("for (; unit < A.units; unit += warps) {"),
            Some(units) => {
                let units = self.w.args.value("u64", units);
                self.w.open("do {");
                self.w
                    .open(format!("for (u64 taken = 0; taken < {units} && unit < A.units; unit += warps, taken++) {{"));
            }
        }
    }

    /// Generates the loop over vectors in which each lane processes its own rows.
    fn vectors(
        &mut self,
        columns: &[usize],
        screens: &[(usize, usize)],
        through: usize,
        sink: &SinkPlan,
    ) -> Result<()> {
        self.w.open("for (u32 vector = first; vector < end && vector * VECTOR_ROWS < morsel.rows; vector++) {");
        self.w.line("u32 live = lane_rows(morsel.rows - vector * VECTOR_ROWS, lane);");
        for number in 0..screens.len() {
            self.screen(screens, number)?;
        }
        for register in columns {
            let is_screened = screens.iter().any(|(_, screened)| screened == register);
            if self.input.plan.domains[*register].nullable && !is_screened {
                self.w.line(format!("const u32 valid{register} = valid_rows(p{register}, vector, lane);"));
            }
        }
        for act in screens.len()..through {
            self.pass(act)?;
        }
        if let SinkPlan::Groups { keys, arguments, groups } = sink
            && let Some(dense) = &groups.dense
        {
            self.dense_vector(dense, groups, keys, arguments)?;
        }
        self.w.open("while (live) {");
        self.w.line("const u32 i = __ffs((int)live) - 1;");
        self.w.line("live &= live - 1;");
        self.row(sink, through)?;
        (0..2).for_each(|_| self.w.close());
        Ok(())
    }

    /// Generates the rest of the processing of a row that has passed the first `through` acts.
    pub fn row(&mut self, sink: &SinkPlan, through: usize) -> Result<()> {
        for act in 0..through {
            self.follow(act)?;
        }
        for act in through..self.input.plan.acts.len() {
            self.act(act)?;
        }
        self.take_row(sink)?;
        while let Some(closer) = self.closers.pop() {
            self.w.depth -= 1;
            self.w.line(closer);
        }
        Ok(())
    }

    /// Generates the code after the units.
    fn end(&mut self, sink: &SinkPlan, counters: usize) {
        self.end_sink(sink);
        if sink.flush_units().is_some() {
            self.w.depth -= 1;
            self.w.line("} while (unit < A.units);");
        }
        for counter in 0..self.counted.len() {
            self.w.line(format!("c{counter} = block_sum(c{counter});"));
            self.w.line(format!("if (threadIdx.x == 0 && c{counter}) add(more_of(A.status) + {counter}, c{counter});"));
        }
        let mut declared: String = (0..self.counted.len()).map(|n| format!("    u64 c{n} = 0;\n")).collect();
        for end in 0..self.ends.len() {
            for (name, word) in [("low", 0), ("high", 1)] {
                let (name, at) = (format!("{name}{end}"), self.counted.len() + 2 * end + word);
                let _ = writeln!(declared, "    u64 {name} = 0;");
                self.w.line(format!("{name} = warp_greatest({name});"));
                self.w.line(format!("if (lane == 0 && {name}) raise(more_of(A.status) + {at}, {name});"));
            }
        }
        self.w.text.insert_str(counters, &declared);
    }

    fn finish(&mut self, sink: super::SinkShape, units: Units) -> Generated {
        let writer = std::mem::take(&mut self.w);
        let codes = match self.codes.is_empty() {
            true => String::new(),
            false => format!("KERNEL(codes, Args) {{\n{}}}\n\n", self.ask_codes),
        };
        let threads = self.input.threads[usize::from(!self.shared.bitmaps.is_empty())];
        let threads = sink.dense().map_or(threads, |dense| dense.threads);
        let fold = if self.input.fold.is_some() { FOLD } else { "" };
        let text = format!(
            "{fold}#define THREADS {threads}\n\nstruct Args {{\n{}}};\n\n{}{codes}KERNEL(run, Args) {{\n{}}}\n",
            writer.args.declared, self.functions, writer.text
        );
        Generated {
            text,
            threads,
            units,
            args: writer.args.words,
            checks: writer.checks,
            constants: writer.constants,
            shared: std::mem::take(&mut self.shared),
            sink,
            codes: std::mem::take(&mut self.codes),
            counted: std::mem::take(&mut self.counted),
            ends: std::mem::take(&mut self.ends),
        }
    }

    /// Marks all registers that are read.
    fn mark_all(&mut self, sink: &SinkPlan) {
        let mut read = sink.reads();
        for act in &self.input.plan.acts {
            read.extend(&act.needs);
            if let ActKind::Probe(Probe { condition: Some(condition), .. }) = &act.kind {
                read.extend(registers_of([condition]));
            }
        }
        read.into_iter().for_each(|register| self.mark(register));
    }

    /// Marks a register and the registers that it is computed from.
    fn mark(&mut self, register: usize) {
        if std::mem::replace(&mut self.used[register], true) {
            return;
        }
        if let Register::Map(bound) = &self.input.plan.registers[register] {
            registers_of([bound]).into_iter().for_each(|register| self.mark(register));
        }
    }

    /// Counts the rows that an act lets through: `more` of them.
    pub fn count(&mut self, act: usize, more: &str) {
        if !self.input.counts {
            return;
        }
        self.counted.push(act);
        self.w.line(format!("c{} += {more};", self.counted.len() - 1));
    }

    /// Generates a function for a column's value of a row, in each of its forms.
    pub fn getter(&mut self, register: usize) {
        let plan = self.input.plan;
        let ty = type_of(Kind::of(&plan.domains[register]));
        let mut forms = (self.input.forms)(plan.column(register).unwrap_or(0));
        let mut cases: Vec<(u32, String)> = Vec::new();
        let mut packed = 0;
        let mut needs_any = false;
        forms.retain(|form| *form != form::NULL);
        for form in forms {
            let layout = Layout::of(form);
            if layout.width_of_offset().is_some() {
                packed += 1;
                if packed > MOST_FORMS {
                    needs_any = true;
                    continue;
                }
            }
            let rows = "p, vector, lane, i";
            let value = match layout {
                Layout::Same | Layout::Null => format!("get_same<{ty}>(p)"),
                Layout::Rows => format!("get_row<{ty}>({rows})"),
                Layout::I32 => format!("get_plain<{ty}, i32>({rows})"),
                Layout::I64 => format!("get_plain<{ty}, i64>({rows})"),
                Layout::I128 => format!("get_plain<{ty}, i128>({rows})"),
                Layout::F64 => format!("get_plain<{ty}, double>({rows})"),
                Layout::Packed(width) => format!("get_packed<{ty}, {width}>({rows})"),
                Layout::Steps(width) => format!("get_steps<{ty}, {width}>({rows})"),
                Layout::Wide(width) => format!("get_wide<{ty}, {width}>({rows})"),
                Layout::Codes(width) => format!("get_code<{ty}, i32, {width}>({rows})"),
                Layout::Codes64(width) => format!("get_code<{ty}, i64, {width}>({rows})"),
            };
            cases.push((form, value));
        }
        if needs_any {
            cases.push((u32::MAX, format!("get_any<{ty}>(p, vector, lane, i)")));
        }
        let body = switch(&cases, &format!("({ty})0"));
        let _ = write!(
            self.functions,
            "INLINE {ty} get_{register}(const Part& p, u32 vector, u32 lane, u32 i) {{\n{body}}}\n\n"
        );
    }

    /// Generates a register's operand for the current row, unless it is loaded.
    pub fn load(&mut self, register: usize) -> Result<()> {
        if self.w.registers[register].is_some() {
            return Ok(());
        }
        let plan = self.input.plan;
        let domain = &plan.domains[register];
        let kind = Kind::of(domain);
        let ty = type_of(kind);
        let operand = match &plan.registers[register] {
            Register::Column(_) => {
                let get = format!("get_{register}(p{register}, vector, lane, i)");
                match domain.nullable {
                    false => {
                        self.w.line(format!("const {ty} r{register} = {get};"));
                        Operand { text: format!("r{register}"), kind, valid: Valid::Always }
                    }
                    true => {
                        self.w.line(format!("const bool n{register} = valid{register} >> i & 1;"));
                        self.w.line(format!("const {ty} r{register} = n{register} ? {get} : ({ty})0;"));
                        Operand { text: format!("r{register}"), kind, valid: Valid::If(format!("n{register}")) }
                    }
                }
            }
            Register::Payload { step, column } => self.payload(register, *step, *column)?,
            Register::Map(bound) => {
                let bound = bound.clone();
                self.load_all(registers_of([&bound]))?;
                self.w.expr(&bound)?
            }
        };
        self.w.registers[register] = Some(operand);
        Ok(())
    }

    pub fn load_all(&mut self, registers: impl IntoIterator<Item = usize>) -> Result<()> {
        registers.into_iter().try_for_each(|register| self.load(register))
    }
}

/// Generates the selection of a value by a part's form: a single case without a test, or a switch
/// whose last case is the default.
pub(super) fn switch(cases: &[(u32, String)], none: &str) -> String {
    match cases {
        [] => format!("    return {none};\n"),
        [(_, only)] => format!("    return {only};\n"),
        [first @ .., (_, last)] => {
            let mut text = "    switch (p.form) {\n".to_string();
            for (form, value) in first {
                let _ = writeln!(text, "        case {form}: return {value};");
            }
            let _ = write!(text, "        default: return {last};\n    }}\n");
            text
        }
    }
}
