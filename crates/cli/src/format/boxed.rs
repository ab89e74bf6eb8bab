//! A table for people, streamed.
//!
//! 1. Rows are held back until there are more than [`SAMPLE_ROWS`] of them or the result ends. They
//!    determine the widths, which are fixed from then on. Later rows are cut to them on a terminal,
//!    and stick out elsewhere.
//! 2. Without a row limit, further rows are written as they arrive. With one, the first half of the
//!    limit is written. Later rows are kept (as batches, not text) only as far as the last half
//!    needs them, until the result ends.
//!
//! Memory is therefore bounded by the sample and the tail, independent of the result. NULL is bare;
//! the string NULL is quoted.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::io::Write;

use onehop_engine::arrow::datatypes::SchemaRef;
use onehop_engine::arrow::record_batch::RecordBatch;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::RowWriter;
use super::layout::{Slot, Wish, lay_out};
use super::text::{Column, columns, escape, is_number, sql_type};
use crate::exit::Stop;
use crate::terminal::Paint;
use onehop_engine::units;

/// The number of rows that determine the widths.
const SAMPLE_ROWS: usize = 1_000;

/// The capabilities of the output.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// The width in display columns; `None` for no limit.
    pub width: Option<usize>,
    /// The number of rows to show of a long result; `None` for all.
    pub max_rows: Option<usize>,
    /// True if colours are permitted.
    pub color: bool,
}

/// The writer.
pub struct Boxed {
    look: Look,
    heads: Vec<Head>,
    /// The rows held back until there is a layout; after that, the tail of a limited result.
    held: VecDeque<RecordBatch>,
    held_rows: usize,
    layout: Option<Vec<Slot>>,
    total: u64,
}

struct Head {
    name: String,
    kind: String,
    is_number: bool,
}

enum Rule {
    Top,
    Middle,
    Bottom,
}

impl Boxed {
    /// Creates a writer for results of this schema.
    pub fn new(schema: &SchemaRef, look: Look) -> Self {
        let head = |field: &onehop_engine::arrow::datatypes::FieldRef| Head {
            name: cell(field.name(), look.width),
            kind: cell(&sql_type(field.data_type()), look.width),
            is_number: is_number(field.data_type()),
        };
        let heads = schema.fields().iter().map(head).collect();
        Self { look, heads, held: VecDeque::new(), held_rows: 0, layout: None, total: 0 }
    }

    fn hold(&mut self, batch: RecordBatch) {
        self.held_rows += batch.num_rows();
        self.held.push_back(batch);
    }

    /// Drops the rows that the tail does not need.
    fn trim(&mut self, keep: usize) {
        while let Some(first) = self.held.front() {
            let excess = self.held_rows - keep.min(self.held_rows);
            match first.num_rows() {
                _ if excess == 0 => return,
                n if n <= excess => {
                    self.held_rows -= n;
                    self.held.pop_front();
                }
                n => {
                    self.held[0] = first.slice(excess, n - excess);
                    self.held_rows -= excess;
                    return;
                }
            }
        }
    }

    fn is_long(&self) -> bool {
        self.look.max_rows.is_some_and(|max| self.total > max as u64)
    }

    fn head_rows(&self) -> usize {
        self.look.max_rows.map_or(usize::MAX, |max| max.div_ceil(2))
    }

    fn tail_rows(&self) -> usize {
        self.look.max_rows.map_or(usize::MAX, |max| max / 2)
    }

    /// Chooses widths by the held rows. Writes the header and the rows before any gap.
    fn open(&mut self, out: &mut dyn Write) -> Result<(), Stop> {
        let layout = self.choose_layout()?;
        self.rule(Rule::Top, &layout, out)?;
        self.header(&layout, out)?;
        let is_long = self.is_long();
        let mut left = if is_long { self.head_rows() } else { usize::MAX };
        if self.held_rows > 0 {
            self.rule(Rule::Middle, &layout, out)?;
        }
        let held = std::mem::take(&mut self.held);
        self.held_rows = 0;
        for batch in held {
            let now = left.min(batch.num_rows());
            self.rows(&batch.slice(0, now), &layout, out)?;
            left -= now;
            if now < batch.num_rows() {
                self.hold(batch.slice(now, batch.num_rows() - now));
            }
        }
        self.layout = Some(layout);
        self.trim(self.tail_rows());
        Ok(())
    }

    fn choose_layout(&self) -> Result<Vec<Slot>, Stop> {
        let mut widest = vec![0; self.heads.len()];
        let mut text = String::new();
        for batch in &self.held {
            for (column, widest) in columns(batch)?.iter().zip(&mut widest) {
                for row in 0..batch.num_rows() {
                    *widest = (*widest).max(self.value(column, row, &mut text)?.0.width());
                }
            }
        }
        let wish = |(head, widest): (&Head, usize)| {
            let header = head.name.width().max(head.kind.width());
            if head.is_number { Wish::number(header, widest) } else { Wish::text(header.max(widest)) }
        };
        let wishes: Vec<Wish> = self.heads.iter().zip(widest).map(wish).collect();
        Ok(lay_out(&wishes, self.look.width))
    }

    /// Returns the text of a cell, and true if it is NULL.
    fn value(&self, column: &Column<'_>, row: usize, text: &mut String) -> Result<(String, bool), Stop> {
        Ok(match column.read(row, text)? {
            false => ("NULL".into(), true),
            true if text == "NULL" => ("'NULL'".into(), false),
            true => (cell(text, self.look.width), false),
        })
    }

    fn rule(&self, rule: Rule, layout: &[Slot], out: &mut dyn Write) -> Result<(), Stop> {
        let [left, cross, right] = match rule {
            Rule::Top => ["┌", "┬", "┐"],
            Rule::Middle => ["├", "┼", "┤"],
            Rule::Bottom => ["└", "┴", "┘"],
        };
        let parts: Vec<String> = layout.iter().map(|slot| "─".repeat(slot.width() + 2)).collect();
        Ok(writeln!(out, "{left}{}{right}", parts.join(cross))?)
    }

    fn header(&self, layout: &[Slot], out: &mut dyn Write) -> Result<(), Stop> {
        let names = |i: usize| Ok((self.heads[i].name.clone(), Some(Paint::Bold)));
        self.line(layout, names, out)?;
        let kinds = |i: usize| Ok((self.heads[i].kind.clone(), Some(Paint::Dim)));
        self.line(layout, kinds, out)
    }

    fn rows(&self, batch: &RecordBatch, layout: &[Slot], out: &mut dyn Write) -> Result<(), Stop> {
        let columns = columns(batch)?;
        let mut text = String::new();
        for row in 0..batch.num_rows() {
            let value = |i: usize| {
                let (value, is_null) = self.value(&columns[i], row, &mut text)?;
                Ok((value, is_null.then_some(Paint::Dim)))
            };
            self.line(layout, value, out)?;
        }
        Ok(())
    }

    fn line(
        &self,
        layout: &[Slot],
        mut cell: impl FnMut(usize) -> Result<(String, Option<Paint>), Stop>,
        out: &mut dyn Write,
    ) -> Result<(), Stop> {
        for slot in layout {
            let (text, paint, is_number) = match slot {
                Slot::Column(i, _) => {
                    let (text, paint) = cell(*i)?;
                    (text, paint, self.heads[*i].is_number)
                }
                Slot::Gap => ("…".into(), None, false),
            };
            let text = if self.look.width.is_some() { cut(&text, slot.width()) } else { Cow::Borrowed(text.as_str()) };
            let blanks = " ".repeat(slot.width().saturating_sub(text.width()));
            let text = match paint {
                Some(paint) if self.look.color => Cow::Owned(paint.apply(&text)),
                _ => text,
            };
            match is_number {
                true => write!(out, "│ {blanks}{text} ")?,
                false => write!(out, "│ {text}{blanks} ")?,
            }
        }
        Ok(writeln!(out, "│")?)
    }

    /// Returns a note about the rows and columns that are not shown.
    fn summary(&self, layout: &[Slot]) -> Option<String> {
        let mut parts = Vec::new();
        if self.is_long() {
            let shown = self.look.max_rows.unwrap_or(0) as u64;
            parts.push(format!(
                "{}, {} shown (.maxrows or --max-rows changes that)",
                units::plural(self.total, "row"),
                units::count(shown)
            ));
        }
        if layout.contains(&Slot::Gap) {
            parts.push(format!("{} columns, {} shown", self.heads.len(), layout.len() - 1));
        }
        (!parts.is_empty()).then(|| parts.join("; "))
    }
}

impl RowWriter for Boxed {
    fn begin(&mut self, _out: &mut dyn Write) -> Result<(), Stop> {
        Ok(())
    }

    fn batch(&mut self, batch: &RecordBatch, out: &mut dyn Write) -> Result<(), Stop> {
        self.total += batch.num_rows() as u64;
        if let Some(layout) = &self.layout
            && self.look.max_rows.is_none()
        {
            return self.rows(batch, layout, out);
        }
        self.hold(batch.clone());
        match self.layout {
            Some(_) => self.trim(self.tail_rows()),
            None if self.held_rows > SAMPLE_ROWS => self.open(out)?,
            None => {}
        }
        Ok(())
    }

    fn finish(&mut self, out: &mut dyn Write) -> Result<(), Stop> {
        if self.heads.is_empty() {
            return Ok(());
        }
        if self.layout.is_none() {
            self.open(out)?;
        }
        let layout = self.layout.take().unwrap_or_default();
        if self.is_long() {
            self.line(&layout, |_| Ok(("·".into(), Some(Paint::Dim))), out)?;
        }
        for batch in std::mem::take(&mut self.held) {
            self.rows(&batch, &layout, out)?;
        }
        self.rule(Rule::Bottom, &layout, out)?;
        match self.summary(&layout) {
            Some(summary) => Ok(writeln!(out, "{summary}")?),
            None => Ok(()),
        }
    }
}

impl Slot {
    fn width(&self) -> usize {
        match self {
            Slot::Column(_, width) => *width,
            Slot::Gap => 1,
        }
    }
}

/// Escapes a text, up to the length that a terminal of this width could show.
fn cell(text: &str, width: Option<usize>) -> String {
    let mut cell = String::with_capacity(text.len().min(256));
    escape(text, width.map_or(usize::MAX, |width| width + 1), &mut cell);
    cell
}

/// Returns `text`, or its longest prefix that leaves space for `…` within `width` display columns.
fn cut(text: &str, width: usize) -> Cow<'_, str> {
    if text.width() <= width {
        return Cow::Borrowed(text);
    }
    let mut used = 0;
    let mut end = 0;
    for (at, c) in text.char_indices() {
        used += c.width().unwrap_or(0);
        if used + 1 > width {
            break;
        }
        end = at + c.len_utf8();
    }
    Cow::Owned(format!("{}…", &text[..end]))
}
