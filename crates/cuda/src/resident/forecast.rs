//! Forecast of the form of a column's blocks on a device, from the footers of segments and the
//! meaning of codes. It reads no blocks.
//!
//! A wrong forecast costs another kernel, but not correctness.

use onehop_pipeline::backend::{SegmentRun, Stored};
use onehop_pipeline::cpu::Kind;
use onehop_pipeline::{Domain, Source, Type};
use onehop_segment::packed::{LANES, VECTOR_ROWS};
use onehop_segment::{CodeTable, ColumnType, EncodingCode, Segment};

use crate::fused::{CodeMeaning, Outlook, by_frequency, form};
use crate::staging::ALIGNMENT;

/// Returns the forecast for morsels of a stored column of a source. Morsels come with their rows.
pub fn foreseen(
    source: &dyn Source,
    stored: &Stored,
    runs: &[SegmentRun],
    column: usize,
    morsels: &[(u32, u32)],
) -> Outlook {
    let place = stored.columns[column];
    let of = OfColumn { domain: &source.columns()[column], place };
    let blocks = || morsels.iter().map(|(morsel, _)| stored.blocks.at(*morsel as usize));
    let mut known: Option<(&CodeTable, u32)> = None;
    let mut codes = |morsel: usize| match (source.code_table(morsel, column), known) {
        // Codes of strings, for which there is only one dictionary.
        (None, _) => form::PACKED,
        (Some(table), Some((before, form))) if table.is(before) => form,
        (Some(table), _) => {
            let form = form_of_codes(table);
            known = Some((table, form));
            form
        }
    };
    let forms = morsels
        .iter()
        .zip(blocks())
        .map(|((morsel, _), (segment, block))| of.form(segment, block, codes(*morsel as usize)));
    Outlook {
        forms: by_frequency(forms),
        bytes: blocks().map(|(segment, block)| of.bytes(segment, block)).collect(),
        codes: runs.iter().map(|run| run.segment.column(place).dictionary_entries as usize).max().unwrap_or(0),
    }
}

/// Returns the form to which the width of codes is added.
fn form_of_codes(table: &CodeTable) -> u32 {
    match (CodeMeaning::of(table), table) {
        (CodeMeaning::Steps { step: 1, .. }, _) => form::PACKED,
        (CodeMeaning::Steps { .. }, _) => form::STEPS,
        (_, CodeTable::I32(_)) => form::CODES,
        (_, CodeTable::I64(_)) => form::CODES64,
    }
}

struct OfColumn<'a> {
    domain: &'a Domain,
    place: usize,
}

impl OfColumn<'_> {
    /// Returns the bytes of one value, if values are decoded one by one.
    fn decoded(&self, segment: &Segment) -> Option<usize> {
        let info = segment.column(self.place);
        let is_float = matches!(info.column_type, ColumnType::Float32 | ColumnType::Float64);
        let is_plain = matches!(info.encoding, EncodingCode::Plain | EncodingCode::Text);
        (is_float || is_plain).then(|| match Kind::of(self.domain) {
            Kind::Bool | Kind::I32 => 4,
            Kind::I64 | Kind::F64 => 8,
            Kind::I128 => 16,
        })
    }

    /// Returns the form of a block. For codes, it is `codes` plus their width.
    fn form(&self, segment: &Segment, block: usize, codes: u32) -> u32 {
        let (info, zone) = (segment.column(self.place), segment.zone(self.place, block));
        if zone.null_count == zone.rows {
            return form::NULL;
        }
        if self.domain.late.is_some() {
            return form::ROWS;
        }
        if let Some(bytes) = self.decoded(segment) {
            return match (self.domain.ty, bytes) {
                (Type::Double, _) => form::F64,
                (_, 4) => form::I32,
                (_, 8) => form::I64,
                _ => form::I128,
            };
        }
        let validity = if zone.null_count > 0 { (zone.rows as usize).div_ceil(VECTOR_ROWS) * LANES * 4 } else { 0 };
        let width = u32::from(info.width);
        if width == 0 || segment.stored_bytes(self.place, block) as usize <= validity {
            return form::SAME;
        }
        match info.encoding {
            EncodingCode::Dictionary => codes + width,
            _ if width > 32 => form::WIDE + width,
            _ => form::PACKED + width,
        }
    }

    fn bytes(&self, segment: &Segment, block: usize) -> usize {
        let rows = segment.block_rows(block);
        let vectors = rows.div_ceil(VECTOR_ROWS);
        let values = match self.decoded(segment) {
            _ if self.domain.late.is_some() => vectors * LANES * 4,
            Some(bytes) => rows * bytes + vectors * LANES * 4,
            None => segment.stored_bytes(self.place, block) as usize,
        };
        values + 3 * ALIGNMENT
    }
}
