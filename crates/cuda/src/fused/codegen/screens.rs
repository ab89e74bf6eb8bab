//! Screens: filters and probes that test a column of a vector as a whole, with very little work per
//! row. The body is unrolled 32 times for every width.

use std::fmt::Write as _;

use onehop_pipeline::Interval;
use onehop_pipeline::bind::BoundKind;
use onehop_pipeline::cpu::Kind;
use onehop_pipeline::ir::JoinKind;

use super::expr::{Operand, Valid};
use super::pipeline::{Builder, SHARED_BYTES, switch};
use super::sink::SinkPlan;
use super::{PartitionWord, TableWord, Word};
use crate::fused::image::MOST_FORMS;
use crate::fused::part::form::Layout;
use crate::fused::plan::ActKind;
use crate::fused::table::SHARED_BITMAP_BYTES;
use crate::fused::{Error, Result};

/// Columns are tested as a whole while at least this fraction of the rows is left. With fewer rows,
/// reading single values reads less.
const WHOLE: f64 = 0.1;

impl Builder<'_> {
    /// Returns the leading acts that test a whole column, with their registers.
    pub fn screens(&self) -> Vec<(usize, usize)> {
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
                ActKind::Probe(probe) => {
                    let shape = &self.input.tables[probe.table];
                    // A row of another partition has no match here and nevertheless must not
                    // continue.
                    let is_answered = match probe.kind {
                        JoinKind::Inner | JoinKind::Semi => true,
                        JoinKind::Anti => !shape.is_split,
                        JoinKind::Left | JoinKind::NotIn => false,
                    };
                    match probe.keys.as_slice() {
                        [key] if is_answered && probe.condition.is_none() && shape.is_bitmap() => {
                            plan.column_register(key)
                        }
                        _ => None,
                    }
                }
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

    /// Copies the first small bitmap into shared memory.
    pub fn begin_shared(&mut self, screens: &[(usize, usize)], sink: &SinkPlan) {
        let has_offsets = |register: usize| {
            let forms = (self.input.forms)(self.input.plan.column(register).unwrap_or(0));
            let is_computed =
                |form: &u32| matches!(Layout::of(*form), Layout::Packed(_) | Layout::Steps(_) | Layout::Wide(_));
            forms.iter().any(is_computed)
        };
        let bitmap = screens.iter().find_map(|(act, register)| match &self.input.plan.acts[*act].kind {
            ActKind::Probe(probe) if has_offsets(*register) => {
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

    /// Generates one of the screens.
    pub fn screen(&mut self, screens: &[(usize, usize)], number: usize) -> Result<()> {
        let plan = self.input.plan;
        let (act, register) = screens[number];
        let nullable = plan.domains[register].nullable;
        if nullable {
            let is_there = screens[..number].iter().any(|(_, before)| *before == register);
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

    fn range_screen(&mut self, number: usize, register: usize, low: &str, high: &str) {
        let forms = (self.input.forms)(self.input.plan.column(register).unwrap_or(0));
        let mut cases = Vec::new();
        let mut needs_rows = false;
        let mut packed = 0;
        for form in forms {
            let rows = format!("(p, vector, lane, {low}, {high})");
            match Layout::of(form) {
                Layout::Null => cases.push((form, "0".to_string())),
                Layout::Same => {
                    cases.push((form, format!("get_same<i64>(p) >= {low} && get_same<i64>(p) <= {high} ? ~0u : 0")))
                }
                Layout::Packed(width) if packed < MOST_FORMS => {
                    packed += 1;
                    cases.push((form, format!("within<{width}>{rows}")));
                }
                Layout::Steps(width) => cases.push((form, format!("within_steps<{width}>{rows}"))),
                Layout::Codes(width) => cases.push((form, format!("within_codes<i32, {width}>{rows}"))),
                Layout::Codes64(width) => cases.push((form, format!("within_codes<i64, {width}>{rows}"))),
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
            "INLINE u32 screen_{number}(const Args& A, const Part& p, u32 morsel, u32 vector, u32 lane, u32 live) \
             {{\n{body}}}\n\n"
        );
    }

    /// Generates the test of a column of codes by bits. The separate kernel evaluates `test`, a
    /// condition on `x`, for each code beforehand.
    fn codes_screen(&mut self, number: usize, register: usize, width: u32, test: &str) -> String {
        let column = self.input.plan.column(register).unwrap_or(0);
        let name = format!("s{number}_codes");
        let args = &mut self.w.args;
        let first = args.named("const u32*", &format!("{name}_first"), Word::CodeFirst(column));
        // Once for all widths.
        let known = self.codes_of.iter().find(|(of, _)| *of == number).map(|(_, names)| names.clone());
        let [bits, runs] = known.unwrap_or_else(|| {
            let words = args.named("const CodeWord*", &format!("{name}_words"), Word::CodeWords(column));
            let count = args.named("u64", &format!("{name}_count"), Word::CodeCount(column));
            let bits = args.named("u32*", &format!("{name}_bits"), Word::CodeBits(self.codes.len()));
            let runs = args.named("CodeRun*", &format!("{name}_runs"), Word::CodeRuns(self.codes.len()));
            self.codes.push(column);
            let _ = write!(
                self.ask_codes,
                "    for (u64 w = (u64)blockIdx.x * blockDim.x + threadIdx.x; w < {count}; w += (u64)gridDim.x * \
                 blockDim.x)\n        {bits}[w] = code_bits({words}[w], (u32)w, {runs}, [&](i64 x) {{ return {test}; \
                 }});\n"
            );
            self.codes_of.push((number, [bits.clone(), runs.clone()]));
            [bits, runs]
        });
        let is_first = number == 0;
        format!(
            "where_code<{width}, {is_first}>({bits} + {first}[morsel], {runs}[{first}[morsel]], p, vector, lane, live)"
        )
    }

    fn probe_screen(&mut self, number: usize, register: usize, table: usize, load: &str) {
        let forms = (self.input.forms)(self.input.plan.column(register).unwrap_or(0));
        let (digit, is_split) = {
            let shape = &self.input.tables[table];
            (shape.layout.digits_of_parts().next(), shape.is_split)
        };
        let interval = digit.map_or(Interval::EMPTY, |digit| digit.interval);
        let (low, high) = match is_split {
            false => self.w.ends(Kind::I64, interval),
            true => (self.table_word(table, "i64", TableWord::Low), self.table_word(table, "i64", TableWord::High)),
        };
        let mut cases = Vec::new();
        let mut needs_rows = false;
        let mut packed = 0;
        let (is_first, is_shared) = (number == 0, load == "bit");
        let has_all = !is_split && interval.contains(self.input.plan.domains[register].interval);
        let count = match is_split {
            false => {
                let count = interval.count().and_then(|count| u64::try_from(count).ok()).unwrap_or(0);
                self.w.args.value("u64", count)
            }
            true => self.table_word(table, "u64", TableWord::Partition(PartitionWord::Span)),
        };
        let key = format!("bits, {low}, {count}, p, vector, lane, live");
        for form in forms {
            match Layout::of(form) {
                Layout::Null => cases.push((form, "0".to_string())),
                Layout::Same => {
                    let same = "get_same<i64>(p)";
                    cases.push((
                        form,
                        format!(
                            "{same} >= {low} && {same} <= {high} && {load}(bits, (u64){same} - (u64){low}) ? ~0u : 0"
                        ),
                    ));
                }
                Layout::Packed(width) if packed < MOST_FORMS => {
                    packed += 1;
                    cases.push((form, format!("where_bit<{width}, {has_all}, {is_first}, {is_shared}>({key})")));
                }
                Layout::Steps(width) => {
                    cases.push((form, format!("where_step_bit<{width}, {has_all}, {is_first}, {is_shared}>({key})")));
                }
                Layout::Codes(width) | Layout::Codes64(width) => {
                    let bits = self.table_word(table, "const u32*", TableWord::Bits);
                    let test = format!("x >= {low} && x <= {high} && bit_ldg({bits}, (u64)x - (u64){low})");
                    cases.push((form, self.codes_screen(number, register, width, &test)));
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
}
