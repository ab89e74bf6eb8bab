//! Filters and probes of single rows: keys, lookups, and what the payload of a match is read from. A row that has several
//! matches goes on once for each: what follows is in a loop.

use onehop_pipeline::cpu::{KeyDigit, Kind, TableKind};
use onehop_pipeline::ir::JoinKind;
use onehop_pipeline::{Interval, Type};

use super::expr::{Operand, Valid};
use super::pipeline::Builder;
use super::{PartitionWord, TableWord, Word, type_of};
use crate::fused::plan::{ActKind, Probe, registers_of};
use crate::fused::table::Rows;
use crate::fused::{Error, Result};

/// What a probe found.
#[derive(Clone, Debug)]
pub(super) struct Found {
    table: usize,
    /// Where its payload is.
    place: String,
    /// Whether there is any; always, if there is no variable.
    is_there: Option<String>,
}

impl Builder<'_> {
    /// A row that is through a join's screen has found something: what remains is to say where.
    pub fn follow(&mut self, number: usize) -> Result<()> {
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
        let (key, _) = self.key(&keys, &domains, &digits);
        let place = self.place_of(probe.table, &key);
        self.unconditional(act.step, probe, &keys, &place, "true")
    }

    /// A filter or a probe, at the row.
    pub fn act(&mut self, number: usize) -> Result<()> {
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
    pub fn table_word(&mut self, table: usize, ty: &str, word: TableWord) -> String {
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
            TableWord::Partition(word) => word.name().into(),
            TableWord::Low => "low".into(),
            TableWord::High => "high".into(),
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

    /// Whether a row is dealt with while this partition of a table is there. Each row is in one of the passes: one that
    /// has no key that there could be, and finds nothing, in that of the last partition, before which all others of the
    /// table have been there.
    fn is_of_partition(&mut self, table: usize, kind: TableKind, key: &str, is_key: &str) -> String {
        let mut word = |word| self.table_word(table, "u64", TableWord::Partition(word));
        let is_there = match kind {
            TableKind::Direct => {
                let (first, span) = (word(PartitionWord::First), word(PartitionWord::Span));
                format!("{key} - {first} < {span}")
            }
            TableKind::Hashed => {
                let (number, count) = (word(PartitionWord::Number), word(PartitionWord::Count));
                format!("is_of({key}, {number}, {count})")
            }
        };
        if is_key == "true" {
            return is_there;
        }
        let is_last = word(PartitionWord::IsLast);
        format!("{is_key} ? {is_there} : {is_last} != 0")
    }

    /// Where a key of the partition that is there is in a dense table; of others the key itself.
    fn place_of(&mut self, table: usize, key: &str) -> String {
        let shape = &self.input.tables[table];
        if !shape.is_split || shape.kind == TableKind::Hashed {
            return key.into();
        }
        let first = self.table_word(table, "u64", TableWord::Partition(PartitionWord::First));
        let place = self.w.variable();
        self.w.line(format!("const u64 {place} = {key} - {first};"));
        place
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
        if shape.is_split {
            let is_there = self.is_of_partition(probe.table, shape.kind, &key, &is_key);
            self.w.line(format!("if (!({is_there})) continue;"));
        }
        let key = self.place_of(probe.table, &key);
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

    pub fn payload(&mut self, register: usize, step: usize, column: usize) -> Result<Operand> {
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
}
