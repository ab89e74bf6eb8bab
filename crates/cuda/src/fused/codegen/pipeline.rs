//! The frame of a kernel: vectors, screens over whole columns, rows one by one, probes. The sink is next door.

use std::fmt::Write as _;

use onehop_pipeline::bind::BoundKind;
use onehop_pipeline::cpu::{KeyDigit, Kind, TableKind};
use onehop_pipeline::ir::JoinKind;
use onehop_pipeline::{Interval, Type};

use super::expr::{Operand, Valid, Writer};
use super::{End, Generated, SharedWords, TableWord, Word, type_of};
use crate::fused::image::{MOST_FORMS, form};
use crate::fused::plan::{Act, ActKind, Plan, Probe, Register, registers_of};
use crate::fused::table::{Rows, SHARED_BITMAP_BYTES, TableShape};
use crate::fused::{Error, Result};

/// Columns are looked at whole while this part of the rows is left: of fewer, what is fetched row by row is less.
const WHOLE: f64 = 0.1;
/// An act that lets fewer than this part of the rows through leaves a warp's threads with little to do for the next.
const FEW: f64 = 0.6;

/// Bytes of shared memory for a bitmap and the groups together: what every device has without being asked.
pub(super) const SHARED_BYTES: u64 = 48 << 10;

/// What a text is made of.
pub(in crate::fused) struct Input<'a> {
    pub plan: &'a Plan<'a>,
    /// Of the tables before it.
    pub tables: &'a [TableShape],
    /// The table that it builds, if it does.
    pub built: Option<&'a TableShape>,
    /// Forms of a column of the source, the most frequent first.
    pub forms: &'a dyn Fn(usize) -> Vec<u32>,
    /// Rows of the source.
    pub rows: u64,
    /// Whether steps count their rows.
    pub counts: bool,
    /// Rows from which on it is worth it to copy a bitmap into every block's shared memory.
    pub many_rows: u64,
    /// Threads of a block, and of one that has a bitmap in shared memory.
    pub threads: [u32; 2],
}

/// What is at hand while a text is written.
pub(super) struct Builder<'a> {
    pub input: &'a Input<'a>,
    pub w: Writer,
    /// Functions before the kernel.
    functions: String,
    /// Registers that anything reads.
    used: Vec<bool>,
    /// Of each step that is a probe: the variables of what it found.
    found: Vec<Option<Found>>,
    /// What ends the scopes that rows have opened.
    closers: Vec<String>,
    pub counted: Vec<usize>,
    pub ends: Vec<End>,
    pub shared: SharedWords,
    /// Columns whose codes are asked about beforehand, and the statements that do it.
    codes: Vec<usize>,
    ask_codes: String,
    /// The bits of each screen that has any.
    codes_of: Vec<(usize, String)>,
}

/// What a probe found.
#[derive(Clone, Debug)]
struct Found {
    table: usize,
    /// Where its payload is.
    place: String,
    /// Whether there is any; always, if there is no variable.
    is_there: Option<String>,
}

/// Makes a pipeline's text.
///
/// # Errors
/// [`Error::Refused`] for what there is no code for.
pub(in crate::fused) fn generate(input: &Input<'_>) -> Result<Generated> {
    let plan = input.plan;
    let writer = Writer { registers: vec![None; plan.registers.len()], ..Writer::default() };
    let mut builder = Builder {
        input,
        w: writer,
        functions: String::new(),
        used: vec![false; plan.registers.len()],
        found: vec![None; plan.pipeline.steps.len()],
        closers: Vec::new(),
        counted: Vec::new(),
        ends: Vec::new(),
        shared: SharedWords::default(),
        codes: Vec::new(),
        ask_codes: String::new(),
        codes_of: Vec::new(),
    };
    builder.kernel()
}

impl<'a> Builder<'a> {
    fn kernel(&mut self) -> Result<Generated> {
        let plan = self.input.plan;
        let sink = self.sink_plan()?;
        let mut read = sink.reads();
        plan.acts.iter().for_each(|act| read.extend(&act.needs));
        for act in &plan.acts {
            if let ActKind::Probe(Probe { condition: Some(condition), .. }) = &act.kind {
                read.extend(registers_of([condition]));
            }
        }
        read.into_iter().for_each(|register| self.mark(register));
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
        self.begin_shared(&screens, &sink);
        self.begin_sink(&sink);
        let counters = self.w.text.len();

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
        self.w.line("const u64 number = unit * A.unit_vectors;");
        self.w.line("const Morsel morsel = A.morsels[number / MORSEL_VECTORS];");
        self.w.line("const u32 first = (u32)(number % MORSEL_VECTORS), end = first + (u32)A.unit_vectors;");
        for register in &columns {
            let column = plan.column(*register).unwrap_or(0);
            let parts = self.w.args.named("const Part*", &format!("c{column}"), Word::Parts(column));
            self.w.line(format!("const Part p{register} = {parts}[morsel.number];"));
        }
        self.w.open("for (u32 vector = first; vector < end && vector * VECTOR_ROWS < morsel.rows; vector++) {");
        self.w.line("u32 live = lane_rows(morsel.rows - vector * VECTOR_ROWS, lane);");
        for (number, (act, register)) in screens.iter().enumerate() {
            self.screen(number, *act, *register)?;
        }
        for register in &columns {
            if plan.domains[*register].nullable && !screens.iter().any(|(_, screened)| screened == register) {
                self.w.line(format!("const u32 valid{register} = valid_rows(p{register}, vector, lane);"));
            }
        }
        let passes = self.passes(screens.len());
        for act in screens.len()..screens.len() + passes {
            self.pass(act)?;
        }
        self.w.open("while (live) {");
        self.w.line("const u32 i = __ffs((int)live) - 1;");
        self.w.line("live &= live - 1;");
        for act in 0..screens.len() + passes {
            self.follow(act)?;
        }
        for act in screens.len() + passes..plan.acts.len() {
            self.act(act)?;
        }
        self.take_row(&sink)?;
        while let Some(closer) = self.closers.pop() {
            self.w.depth -= 1;
            self.w.line(closer);
        }
        (0..3).for_each(|_| self.w.close());
        self.end_sink(&sink);
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
        Ok(self.finish(sink.into_shape()))
    }

    fn finish(&mut self, sink: super::SinkShape) -> Generated {
        let writer = std::mem::take(&mut self.w);
        let codes = match self.codes.is_empty() {
            true => String::new(),
            false => format!("KERNEL(codes, Args) {{\n{}}}\n\n", self.ask_codes),
        };
        let threads = self.input.threads[usize::from(!self.shared.bitmaps.is_empty())];
        let text = format!(
            "#define THREADS {threads}\n\nstruct Args {{\n{}}};\n\n{}{codes}KERNEL(run, Args) {{\n{}}}\n",
            writer.args.declared, self.functions, writer.text
        );
        Generated {
            text,
            threads,
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

    /// A register is read, and what it is made of.
    fn mark(&mut self, register: usize) {
        if std::mem::replace(&mut self.used[register], true) {
            return;
        }
        if let Register::Map(bound) = &self.input.plan.registers[register] {
            registers_of([bound]).into_iter().for_each(|register| self.mark(register));
        }
    }

    /// Counts the rows that an act lets through: `more` of them.
    fn count(&mut self, act: usize, more: &str) {
        if !self.input.counts {
            return;
        }
        self.counted.push(act);
        self.w.line(format!("c{} += {more};", self.counted.len() - 1));
    }

    // ---- columns ----

    /// A function for a column's value of a row, in each of its forms.
    fn getter(&mut self, register: usize) {
        let plan = self.input.plan;
        let ty = type_of(Kind::of(&plan.domains[register]));
        let mut forms = (self.input.forms)(plan.column(register).unwrap_or(0));
        let mut cases: Vec<(u32, String)> = Vec::new();
        let mut packed = 0;
        let mut needs_any = false;
        forms.retain(|form| *form != form::NULL);
        for form in forms {
            if (form::PACKED..form::CODES).contains(&form) {
                packed += 1;
                if packed > MOST_FORMS {
                    needs_any = true;
                    continue;
                }
            }
            let rows = "p, vector, lane, i";
            let value = match form {
                form::SAME => format!("get_same<{ty}>(p)"),
                form::ROWS => format!("get_row<{ty}>({rows})"),
                form::I32 => format!("get_plain<{ty}, i32>({rows})"),
                form::I64 => format!("get_plain<{ty}, i64>({rows})"),
                form::I128 => format!("get_plain<{ty}, i128>({rows})"),
                form::F64 => format!("get_plain<{ty}, double>({rows})"),
                form::PACKED..form::WIDE => format!("get_packed<{ty}, {}>({rows})", form - form::PACKED),
                form::WIDE..=form::CODES => format!("get_wide<{ty}, {}>({rows})", form - form::WIDE),
                193..form::CODES64 => format!("get_code<{ty}, i32, {}>({rows})", form - form::CODES),
                _ => format!("get_code<{ty}, i64, {}>({rows})", form - form::CODES64),
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

    /// Makes a register's operand be there, at the row.
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

    fn payload(&mut self, register: usize, step: usize, column: usize) -> Result<Operand> {
        let domain = &self.input.plan.domains[register];
        let found = self.found[step].clone();
        let Some(Found { table, place, is_there }) = found else {
            return Err(Error::refused("payload of a table that is not probed yet"));
        };
        let Some(element) = &self.input.tables[table].payload[column] else {
            return Err(Error::refused("payload that the table was built without"));
        };
        let values = self.table_word(table, &format!("const {}*", element.stored), TableWord::Payload(column));
        // The register of a left join may be NULL though the table's column is not; kinds are the same.
        let kind = Kind::of(domain);
        let mut valid = Vec::new();
        valid.extend(is_there);
        if element.nullable {
            let there = self.table_word(table, "const u8*", TableWord::PayloadValid(column));
            let name = self.w.variable();
            let test = valid.iter().map(|there| format!("{there} && ")).collect::<String>();
            self.w.line(format!("const bool {name} = {test}{there}[{place}];"));
            valid = vec![name];
        }
        let valid = valid.pop().map_or(Valid::Always, Valid::If);
        let stored = format!("{values}[{place}]");
        let value = match element.least {
            Some(0) | None => format!("({}){stored}", type_of(kind)),
            Some(least) => {
                let least = self.w.args.value("i64", least as u64);
                format!("({})((u64){least} + {stored})", type_of(kind))
            }
        };
        Ok(self.w.computed_if(kind, valid, &value))
    }

    // ---- screens ----

    /// The first acts that are answered by a whole column, with its register.
    fn screens(&self) -> Vec<(usize, usize)> {
        let plan = self.input.plan;
        let mut screens = Vec::new();
        let mut left = 1.0;
        for (number, act) in plan.acts.iter().enumerate() {
            let register = match &act.kind {
                _ if act.is_fallible || left < WHOLE => None,
                ActKind::Filter(bound) => match &bound.kind {
                    BoundKind::Within { inner, .. } => plan.column_register(inner),
                    _ => None,
                },
                ActKind::Probe(probe) => match (probe.kind, probe.keys.as_slice()) {
                    (JoinKind::Inner | JoinKind::Semi | JoinKind::Anti, [key])
                        if probe.condition.is_none() && self.input.tables[probe.table].is_bitmap() =>
                    {
                        plan.column_register(key)
                    }
                    _ => None,
                },
            };
            let is_short = |register: &usize| Kind::of(&plan.domains[*register]) <= Kind::I64;
            match register.filter(is_short) {
                Some(register) => screens.push((number, register)),
                None => break,
            }
            left *= act.passes;
        }
        screens
    }

    /// Copies the first bitmap that is small into shared memory.
    fn begin_shared(&mut self, screens: &[(usize, usize)], sink: &super::sink::SinkPlan) {
        let is_packed = |register: usize| {
            let forms = (self.input.forms)(self.input.plan.column(register).unwrap_or(0));
            forms.iter().any(|form| (form::PACKED..=form::CODES).contains(form))
        };
        let bitmap = screens.iter().find_map(|(act, register)| match &self.input.plan.acts[*act].kind {
            ActKind::Probe(probe) if is_packed(*register) => {
                let bytes = self.input.tables[probe.table].bitmap_bytes();
                let fits = bytes <= SHARED_BITMAP_BYTES && bytes + sink.shared_words() * 8 <= SHARED_BYTES;
                (fits && self.input.rows >= self.input.many_rows).then_some(probe.table)
            }
            ActKind::Probe(_) | ActKind::Filter(_) => None,
        });
        if bitmap.is_none() && sink.shared_words() == 0 {
            return;
        }
        self.w.line("SHARED(S);");
        if let Some(table) = bitmap {
            let bits = self.table_word(table, "const u32*", TableWord::Bits);
            let words = self.w.args.named("u64", &format!("t{table}_words"), Word::BitmapWords(table));
            self.w.line(format!(
                "for (u64 w = threadIdx.x; w < {words}; w += blockDim.x) S[w] = ((const u64*){bits})[w];"
            ));
            self.w.line(format!("const u32* const bits{table} = (const u32*)S;"));
            self.shared.bitmaps.push(table);
        }
        self.shared.groups = sink.shared_words();
    }

    fn screen(&mut self, number: usize, act: usize, register: usize) -> Result<()> {
        let plan = self.input.plan;
        let nullable = plan.domains[register].nullable;
        if nullable {
            let is_there = (0..number).any(|before| self.screened_register(before) == Some(register));
            if !is_there {
                self.w.line(format!("const u32 valid{register} = valid_rows(p{register}, vector, lane);"));
            }
        }
        match &plan.acts[act].kind {
            ActKind::Filter(bound) => {
                let BoundKind::Within { interval, .. } = &bound.kind else {
                    return Err(Error::refused("a screen that is no interval"));
                };
                let wide = Operand { text: "x".into(), kind: Kind::I64, valid: Valid::Always };
                let (low, high) = self.w.ends(wide.kind, *interval);
                self.range_screen(number, register, &low, &high);
                let keep = format!("screen_{number}(A, p{register}, morsel.number, vector, lane, live)");
                let valid = if nullable { format!(" & valid{register}") } else { String::new() };
                self.w.line(format!("live &= {keep}{valid};"));
            }
            ActKind::Probe(probe) => {
                let table = probe.table;
                let bits = match self.shared.bitmaps.contains(&table) {
                    true => format!("bits{table}"),
                    false => self.table_word(table, "const u32*", TableWord::Bits),
                };
                let load = if self.shared.bitmaps.contains(&table) { "bit" } else { "bit_ldg" };
                self.probe_screen(number, register, table, load);
                let valid = if nullable { format!(" & valid{register}") } else { String::new() };
                let hit = format!("screen_{number}(A, {bits}, p{register}, morsel.number, vector, lane, live{valid})");
                match probe.kind {
                    JoinKind::Anti if nullable => self.w.line(format!("live &= ~({hit} & valid{register});")),
                    JoinKind::Anti => self.w.line(format!("live &= ~{hit};")),
                    _ => self.w.line(format!("live &= {hit}{valid};")),
                }
            }
        }
        self.count(act, "__popc(live)");
        self.w.line("if (!__any_sync(ALL_LANES, live != 0)) continue;");
        Ok(())
    }

    fn screened_register(&self, number: usize) -> Option<usize> {
        self.screens().get(number).map(|(_, register)| *register)
    }

    fn range_screen(&mut self, number: usize, register: usize, low: &str, high: &str) {
        let forms = (self.input.forms)(self.input.plan.column(register).unwrap_or(0));
        let mut cases = Vec::new();
        let mut needs_rows = false;
        let mut packed = 0;
        for form in forms {
            match form {
                form::NULL => cases.push((form, "0".to_string())),
                form::SAME => {
                    cases.push((form, format!("get_same<i64>(p) >= {low} && get_same<i64>(p) <= {high} ? ~0u : 0")))
                }
                form if (form::PACKED..form::WIDE).contains(&form) && packed < MOST_FORMS => {
                    packed += 1;
                    let width = form - form::PACKED;
                    cases.push((form, format!("within<{width}>(p, vector, lane, {low}, {high})")));
                }
                form if form > form::CODES => {
                    let (ty, width) =
                        if form < form::CODES64 { ("i32", form - form::CODES) } else { ("i64", form - form::CODES64) };
                    cases.push((form, format!("within_codes<{ty}, {width}>(p, vector, lane, {low}, {high})")));
                }
                _ => needs_rows = true,
            }
        }
        if needs_rows || cases.is_empty() {
            let test = format!(
                "where_rows(live, [&](u32 i) {{ const i64 x = get_{register}(p, vector, lane, i); return x >= {low} && \
                 x <= {high}; }})"
            );
            cases.push((u32::MAX, test));
        }
        let body = switch(&cases, "0");
        let _ = write!(
            self.functions,
            "INLINE u32 screen_{number}(const Args& A, const Part& p, u32 morsel, u32 vector, u32 lane, u32 live) {{\n{body}}}\n\n"
        );
    }

    /// Which rows of a column of codes go on, by the bits of what is found out about each code beforehand: whether it
    /// meets `test`, of `x`.
    fn codes_screen(&mut self, number: usize, register: usize, form: u32, test: &str) -> String {
        let column = self.input.plan.column(register).unwrap_or(0);
        let width = if form < form::CODES64 { form - form::CODES } else { form - form::CODES64 };
        let name = format!("s{number}_codes");
        let args = &mut self.w.args;
        let first = args.named("const u32*", &format!("{name}_first"), Word::CodeFirst(column));
        // Once for all widths.
        let known = self.codes_of.iter().find(|(of, _)| *of == number).map(|(_, bits)| bits.clone());
        let bits = known.unwrap_or_else(|| {
            let words = args.named("const CodeWord*", &format!("{name}_words"), Word::CodeWords(column));
            let count = args.named("u64", &format!("{name}_count"), Word::CodeCount(column));
            let bits = args.named("u32*", &format!("{name}_bits"), Word::CodeBits(self.codes.len()));
            self.codes.push(column);
            let _ = write!(
                self.ask_codes,
                "    for (u64 w = (u64)blockIdx.x * blockDim.x + threadIdx.x; w < {count}; w += (u64)gridDim.x * \
                 blockDim.x)\n        {bits}[w] = code_bits({words}[w], [&](i64 x) {{ return {test}; }});\n"
            );
            self.codes_of.push((number, bits.clone()));
            bits
        });
        let codes = format!("const u32* const codes = {bits} + {first}[morsel]; return");
        let of = "[&](u32 code) { return bit_ldg(codes, code); }";
        match number {
            0 => format!("[&] {{ {codes} where_packed<{width}>(p, vector, lane, {of}); }}()"),
            _ => format!("[&] {{ {codes} where_live<{width}>(p, vector, lane, live, {of}); }}()"),
        }
    }

    fn probe_screen(&mut self, number: usize, register: usize, table: usize, load: &str) {
        let forms = (self.input.forms)(self.input.plan.column(register).unwrap_or(0));
        let digit = self.input.tables[table].layout.digits_of_parts().next();
        let interval = digit.map_or(Interval::EMPTY, |digit| digit.interval);
        let (low, high) = self.w.ends(Kind::I64, interval);
        let mut cases = Vec::new();
        let mut needs_rows = false;
        let mut packed = 0;
        let (is_first, is_shared) = (number == 0, load == "bit");
        let has_all = interval.contains(self.input.plan.domains[register].interval);
        let count = interval.count().and_then(|count| u64::try_from(count).ok()).unwrap_or(0);
        let count = self.w.args.value("u64", count);
        let key = format!("bits, {low}, {count}, p, vector, lane, live");
        for form in forms {
            match form {
                form::NULL => cases.push((form, "0".to_string())),
                form::SAME => {
                    let same = "get_same<i64>(p)";
                    cases.push((
                        form,
                        format!(
                            "{same} >= {low} && {same} <= {high} && {load}(bits, (u64){same} - (u64){low}) ? ~0u : 0"
                        ),
                    ));
                }
                form if (form::PACKED..form::WIDE).contains(&form) && packed < MOST_FORMS => {
                    packed += 1;
                    let width = form - form::PACKED;
                    cases.push((form, format!("where_bit<{width}, {has_all}, {is_first}, {is_shared}>({key})")));
                }
                form if form > form::CODES => {
                    let bits = self.table_word(table, "const u32*", TableWord::Bits);
                    let test = format!("x >= {low} && x <= {high} && bit_ldg({bits}, (u64)x - (u64){low})");
                    cases.push((form, self.codes_screen(number, register, form, &test)));
                }
                _ => needs_rows = true,
            }
        }
        if needs_rows || cases.is_empty() {
            let test = format!(
                "where_rows(live, [&](u32 i) {{ const i64 x = get_{register}(p, vector, lane, i); return x >= {low} && \
                 x <= {high} && {load}(bits, (u64)x - (u64){low}); }})"
            );
            cases.push((u32::MAX, test));
        }
        let body = switch(&cases, "0");
        let _ = write!(
            self.functions,
            "INLINE u32 screen_{number}(const Args& A, const u32* bits, const Part& p, u32 morsel, u32 vector, \
             u32 lane, u32 live) {{\n{body}}}\n\n"
        );
    }

    // ---- passes ----

    /// How many acts from one on are carried out for all rows of a vector before any row goes further: those that leave
    /// few of them, so that a warp's threads are not kept waiting by the one that has most left to do.
    fn passes(&self, from: usize) -> usize {
        let plan = self.input.plan;
        let is_pass = |act: &&Act| {
            let finds_one = match &act.kind {
                ActKind::Filter(_) => true,
                ActKind::Probe(probe) => {
                    let shape = &self.input.tables[probe.table];
                    // What is hashed is not looked up twice.
                    let is_read = probe.added.clone().any(|register| self.used[register]);
                    let is_near = shape.kind == TableKind::Direct || !is_read;
                    probe.condition.is_none() && probe.kind != JoinKind::Left && shape.rows != Rows::Chains && is_near
                }
            };
            let is_stored = act.needs.iter().all(|register| self.is_stored(*register));
            finds_one && is_stored && !act.is_fallible && act.passes < FEW
        };
        plan.acts[from..].iter().take_while(is_pass).count()
    }

    /// Whether a register is made of columns alone.
    fn is_stored(&self, register: usize) -> bool {
        match &self.input.plan.registers[register] {
            Register::Column(_) => true,
            Register::Payload { .. } => false,
            Register::Map(bound) => registers_of([bound]).into_iter().all(|register| self.is_stored(register)),
        }
    }

    fn pass(&mut self, number: usize) -> Result<()> {
        let before = self.w.registers.clone();
        self.w.open("{");
        self.w.line("u32 keep = 0;");
        self.w.open("for (u32 rest = live; rest != 0;) {");
        self.w.line("const u32 i = __ffs((int)rest) - 1;");
        self.w.line("rest &= rest - 1;");
        self.act(number)?;
        self.w.line("keep |= 1u << i;");
        self.w.close();
        self.w.line("live = keep;");
        self.w.close();
        // What was loaded was of its rows alone.
        self.w.registers = before;
        self.found[self.input.plan.acts[number].step] = None;
        Ok(())
    }

    // ---- rows ----

    /// A row that is through a join's screen has found something: what remains is to say where.
    fn follow(&mut self, number: usize) -> Result<()> {
        let act = &self.input.plan.acts[number];
        let ActKind::Probe(probe) = &act.kind else { return Ok(()) };
        let shape = &self.input.tables[probe.table];
        let is_read = probe.added.clone().any(|register| self.used[register]);
        if probe.kind != JoinKind::Inner || !is_read && shape.rows != Rows::Chains {
            return Ok(());
        }
        self.load_all(act.needs.iter().copied())?;
        let keys = probe.keys.iter().map(|key| self.w.expr(key)).collect::<Result<Vec<_>>>()?;
        let digits: Vec<KeyDigit> = shape.layout.digits_of_parts().collect();
        let domains: Vec<Interval> = probe.keys.iter().map(|key| key.domain.interval).collect();
        let (place, _) = self.key(&keys, &domains, &digits);
        self.unconditional(act.step, probe, &keys, &place, "true")
    }

    /// A filter or a probe, at the row.
    fn act(&mut self, number: usize) -> Result<()> {
        let act = &self.input.plan.acts[number];
        match &act.kind {
            ActKind::Filter(bound) => {
                self.load_all(act.needs.iter().copied())?;
                let holds = self.w.expr(bound)?;
                self.w.line(format!("if (!{}) continue;", holds.is_true()));
            }
            ActKind::Probe(probe) => self.probe(number, probe)?,
        }
        self.count(number, "1");
        Ok(())
    }

    /// The member of the argument for a part of a table that is probed.
    fn table_word(&mut self, table: usize, ty: &str, word: TableWord) -> String {
        let name = match word {
            TableWord::Bits => "bits".into(),
            TableWord::Keys => "keys".into(),
            TableWord::Mask => "mask".into(),
            TableWord::Head => "head".into(),
            TableWord::Next => "next".into(),
            TableWord::Payload(column) => format!("p{column}"),
            TableWord::PayloadValid(column) => format!("v{column}"),
            TableWord::Capacity => "capacity".into(),
            TableWord::IsEmpty => "is_empty".into(),
            TableWord::HasKeyless => "has_keyless".into(),
        };
        self.w.args.named(ty, &format!("t{table}_{name}"), Word::Table(table, word))
    }

    /// The number of a key's digits, and whether there is one.
    pub fn key(&mut self, parts: &[Operand], domains: &[Interval], digits: &[KeyDigit]) -> (String, String) {
        let mut tests: Vec<String> = Vec::new();
        let mut sum: Vec<String> = Vec::new();
        for ((part, domain), digit) in parts.iter().zip(domains).zip(digits) {
            let least = if digit.interval.is_empty() { 0 } else { digit.interval.min as i64 };
            let least = self.w.args.value("i64", least as u64);
            let offset = self.w.variable();
            let value = format!("digit({}, {least})", part.text);
            let value = match (&part.valid, digit.null) {
                (Valid::Always, _) => value,
                (Valid::Never, Some(null)) => self.w.args.value("u64", null),
                (Valid::Never, None) => {
                    tests.push("false".into());
                    "0".into()
                }
                (Valid::If(valid), Some(null)) => {
                    let null = self.w.args.value("u64", null);
                    format!("{valid} ? {value} : {null}")
                }
                (Valid::If(valid), None) => {
                    tests.push(valid.clone());
                    value
                }
            };
            self.w.line(format!("const u64 {offset} = {value};"));
            if !digit.interval.contains(*domain) {
                let count = digit.interval.count().and_then(|count| u64::try_from(count).ok()).unwrap_or(0);
                let count = self.w.args.value("u64", count + u64::from(digit.null.is_some()));
                tests.push(format!("{offset} < {count}"));
            }
            match parts.len() {
                1 => sum.push(offset),
                _ => {
                    let stride = self.w.args.value("u64", digit.stride);
                    sum.push(format!("{offset} * {stride}"));
                }
            }
        }
        let is_key = if tests.is_empty() { "true".to_string() } else { tests.join(" && ") };
        if let [only] = sum.as_slice() {
            return (only.clone(), is_key);
        }
        let key = self.w.variable();
        let sum = if sum.is_empty() { "0".to_string() } else { sum.join(" + ") };
        self.w.line(format!("const u64 {key} = {sum};"));
        (key, is_key)
    }

    fn probe(&mut self, number: usize, probe: &Probe) -> Result<()> {
        let act = &self.input.plan.acts[number];
        let shape = &self.input.tables[probe.table];
        self.load_all(act.needs.iter().copied())?;
        let keys = probe.keys.iter().map(|key| self.w.expr(key)).collect::<Result<Vec<_>>>()?;
        let domains: Vec<Interval> = probe.keys.iter().map(|key| key.domain.interval).collect();
        if probe.keys.iter().any(|key| matches!(key.domain.ty, Type::LateText | Type::Double)) {
            return Err(Error::refused("a join on what is no integer, boolean or text of a dictionary"));
        }
        let digits: Vec<KeyDigit> = shape.layout.digits_of_parts().collect();
        let (key, is_key) = self.key(&keys, &domains, &digits);
        // Where the key is, and whether it is there.
        let (place, found) = (self.w.variable(), self.w.variable());
        match shape.kind {
            TableKind::Direct => {
                let bits = self.table_word(probe.table, "const u32*", TableWord::Bits);
                let load = if is_key == "true" {
                    format!("bit_ldg({bits}, {key})")
                } else {
                    format!("{is_key} && bit_ldg({bits}, {key})")
                };
                self.w.line(format!("const bool {found} = {load};"));
                self.w.line(format!("const u64 {place} = {key};"));
            }
            TableKind::Hashed => {
                let slots = self.table_word(probe.table, "const u64*", TableWord::Keys);
                let mask = self.table_word(probe.table, "u64", TableWord::Mask);
                self.w.line(format!("const u64 {place} = {is_key} ? find({slots}, {mask}, {key}) : NO_KEY;"));
                self.w.line(format!("const bool {found} = {place} != NO_KEY;"));
            }
        }
        match &probe.condition {
            Some(_) => self.conditional(act.step, probe, &place, &found),
            None => self.unconditional(act.step, probe, &keys, &place, &found),
        }
    }

    /// The row after the first of a key, as chains count; 0 if it has none.
    fn head(&mut self, table: usize, place: &str, found: &str) -> String {
        let head = self.table_word(table, "const u32*", TableWord::Head);
        if found == "true" { format!("{head}[{place}]") } else { format!("{found} ? {head}[{place}] : 0") }
    }

    fn unconditional(&mut self, step: usize, probe: &Probe, keys: &[Operand], place: &str, found: &str) -> Result<()> {
        let table = probe.table;
        let has_chains = self.input.tables[table].rows == Rows::Chains;
        let mut result = Found { table, place: place.into(), is_there: None };
        match (probe.kind, has_chains) {
            (JoinKind::Semi, _) => self.w.line(format!("if (!{found}) continue;")),
            (JoinKind::Anti, _) => self.w.line(format!("if ({found}) continue;")),
            (JoinKind::NotIn, _) => {
                let empty = self.table_word(table, "u64", TableWord::IsEmpty);
                let keyless = self.table_word(table, "u64", TableWord::HasKeyless);
                let is_there = keys[0].is_valid().to_string();
                self.w.line(format!("if (!{empty} && (!{is_there} || {keyless} || {found})) continue;"));
            }
            (JoinKind::Inner, false) if found == "true" => {}
            (JoinKind::Inner, false) => self.w.line(format!("if (!{found}) continue;")),
            (JoinKind::Left, false) => result.is_there = Some(found.into()),
            (JoinKind::Inner | JoinKind::Left, true) => {
                let (next, row, at) =
                    (self.table_word(table, "const u32*", TableWord::Next), self.w.variable(), self.w.variable());
                let head = self.head(table, place, found);
                self.w.line(format!("u32 {row} = {head};"));
                match probe.kind {
                    JoinKind::Inner => {
                        self.w.open(format!("for (; {row} != 0; {row} = {next}[{row} - 1]) {{"));
                        self.closers.push("}".into());
                    }
                    _ => {
                        self.w.open("do {");
                        self.closers.push(format!("}} while ({row} != 0 && ({row} = {next}[{row} - 1]) != 0);"));
                        let there = self.w.variable();
                        self.w.line(format!("const bool {there} = {row} != 0;"));
                        result.is_there = Some(there);
                    }
                }
                self.w.line(format!("const u64 {at} = {row} - 1;"));
                result.place = at;
            }
        }
        self.found[step] = Some(result);
        Ok(())
    }

    /// Probes whose matches have to meet a condition.
    fn conditional(&mut self, step: usize, probe: &Probe, place: &str, found: &str) -> Result<()> {
        let Some(condition) = probe.condition.clone() else { return Ok(()) };
        let table = probe.table;
        let has_chains = self.input.tables[table].rows == Rows::Chains;
        let (left, at, hit) = (self.w.variable(), self.w.variable(), self.w.variable());
        let head = if has_chains { self.head(table, place, found) } else { found.to_string() };
        self.w.line(format!("u32 {left} = {head};"));
        let mut ends = None;
        if probe.kind == JoinKind::Left {
            let (any, more) = (self.w.variable(), self.w.variable());
            self.w.line(format!("bool {any} = false, {more} = true;"));
            self.w.open(format!("while ({more}) {{"));
            self.closers.push("}".into());
            ends = Some((any, more));
        }
        self.w.line(format!("bool {hit} = false;"));
        self.w.line(format!("u64 {at} = 0;"));
        self.w.open(format!("while ({left} != 0 && !{hit}) {{"));
        match has_chains {
            true => {
                let next = self.table_word(table, "const u32*", TableWord::Next);
                self.w.line(format!("{at} = {left} - 1;"));
                self.w.line(format!("{left} = {next}[{at}];"));
            }
            false => self.w.line(format!("{at} = {place}, {left} = 0;")),
        }
        // What is loaded for the condition is in its scope alone.
        let before = self.w.registers.clone();
        self.found[step] = Some(Found { table, place: at.clone(), is_there: None });
        self.load_all(registers_of([&condition]))?;
        let holds = self.w.expr(&condition)?;
        self.w.line(format!("{hit} = {};", holds.is_true()));
        self.w.close();
        self.w.registers = before;
        match probe.kind {
            JoinKind::Semi => self.w.line(format!("if (!{hit}) continue;")),
            JoinKind::Anti => self.w.line(format!("if ({hit}) continue;")),
            _ => {
                if let Some((any, more)) = ends {
                    self.w.open(format!("if (!{hit}) {{"));
                    self.w.line(format!("{more} = false;"));
                    self.w.line(format!("if ({any}) break;"));
                    self.w.close();
                    self.w.line(format!("{any} = true;"));
                }
                self.found[step] = Some(Found { table, place: at, is_there: Some(hit) });
            }
        }
        Ok(())
    }
}

/// A value by the form of a part: the only one there is, or a choice; the last is for all others.
fn switch(cases: &[(u32, String)], none: &str) -> String {
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
