//! What the blocks of a column are going to be on a device, by what the segments' footers say of them: nothing is read.
//!
//! It is a forecast. What turns out to be otherwise takes another kernel, and is as right.

use onehop_pipeline::backend::{SegmentKey, SegmentRun, Stored};
use onehop_pipeline::cpu::Kind;
use onehop_pipeline::{Domain, Source, Type};
use onehop_segment::packed::{LANES, VECTOR_ROWS};
use onehop_segment::{ColumnType, EncodingCode, Segment};

use crate::fused::{Outlook, by_frequency, form};
use crate::staging::ALIGNMENT;

/// What is known of morsels of a column of a source that is stored; morsels come with their rows.
pub fn foreseen(
    source: &dyn Source,
    stored: &Stored,
    runs: &[SegmentRun],
    column: usize,
    morsels: &[(u32, u32)],
) -> Outlook {
    let place = stored.columns[column];
    let first = runs.first().map(|run| SegmentKey::of(&run.segment));
    let has_one_segment = runs.iter().all(|run| Some(SegmentKey::of(&run.segment)) == first);
    let of = OfColumn { domain: &source.columns()[column], place, has_one_segment };
    let blocks = || morsels.iter().map(|(morsel, _)| &stored.blocks[*morsel as usize]);
    Outlook {
        forms: by_frequency(blocks().map(|(segment, block)| of.form(segment, *block))),
        bytes: blocks().map(|(segment, block)| of.bytes(segment, *block)).collect(),
        codes: runs.iter().map(|run| run.segment.column(place).dictionary_entries as usize).max().unwrap_or(0),
    }
}

struct OfColumn<'a> {
    domain: &'a Domain,
    place: usize,
    has_one_segment: bool,
}

impl OfColumn<'_> {
    /// Bytes of one value, if values are written out one by one.
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

    fn form(&self, segment: &Segment, block: usize) -> u32 {
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
            // Codes of texts are those of the source, if there is but one dictionary.
            EncodingCode::Dictionary if info.column_type.is_text() && self.has_one_segment => form::PACKED + width,
            EncodingCode::Dictionary if info.column_type.is_text() => form::CODES + width,
            EncodingCode::Dictionary => {
                let bias = if info.column_type == ColumnType::UInt64 { 1i128 << 63 } else { 0 };
                let is_narrow = |key: i128| i32::try_from(key + bias).is_ok();
                let keys = info.zone.keys();
                let is_narrow = keys.is_none_or(|(least, greatest)| is_narrow(least) && is_narrow(greatest));
                if is_narrow { form::CODES + width } else { form::CODES64 + width }
            }
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
