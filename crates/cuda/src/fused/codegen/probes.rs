//! Filters and probes of single rows: keys, lookups, and the location of a match's payload. A row
//! with several matches continues once for each: the code that follows is in a loop.

use onehop_pipeline::cpu::{KeyDigit, Kind, TableKind};
use onehop_pipeline::ir::JoinKind;
use onehop_pipeline::{Interval, Type};

use super::expr::{Operand, Valid};
use super::pipeline::Builder;
use super::{PartitionWord, TableWord, Word, type_of};
use crate::fused::plan::{ActKind, Probe, registers_of};
use crate::fused::table::Rows;
use crate::fused::{Error, Result};

/// Result of a probe.
#[derive(Clone, Debug)]
pub(super) struct Found {
    table: usize,
    /// Place of its payload.
    place: String,
    /// Variable that is true if there is a match; `None` if there always is.
    is_there: Option<String>,
}

impl Builder<'_> {
    /// Generates the lookup of a match for rows that have passed a join's screen: they have a
    /// match, but its place is still unknown.
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

    /// Generates a filter or a probe of one row.
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

    /// Returns the member of the argument for a property of a probed table.
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

    /// Generates the number of a key from its digits. Returns it and the condition that the key is
    /// in the table's domain.
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

    /// Generates the condition that a row belongs to the resident partition of a table. Each row
    /// belongs to exactly one pass. A row whose key is outside the table's domain has no match and
    /// belongs to the last partition, before which all others have been resident.
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

    /// Generates the place of a key of the resident partition of a dense table. For other tables it
    /// is the key itself.
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
        // The key's place, and the result of the lookup.
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

    /// Returns the expression of a key's first row as chains count rows, from 1; 0 if there is
    /// none.
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

    /// Generates probes whose matches must meet a condition.
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
        // Values loaded for the condition are in its scope alone.
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
        // The register of a left join may be NULL although the table's column is not; kinds are the
        // same.
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
