//! Processes a unit on the CPU.

use onehop_cuda::kernels::q6::{Piece, Place};
use onehop_segment::packed::{LANE_VALUES, LANES, Mask, VECTOR_ROWS, value_at, vector_words, within};
use zerocopy::FromBytes;

use super::plan::{Plan, Shape, Unit, Work};
use super::rows;
use super::{Error, Result};

/// Returns a unit's contribution to the answer. `parts` are its parts as they were read.
///
/// # Errors
/// Returns [`Error::Damaged`].
pub fn add(plan: &Plan, unit: &Unit, parts: &[&[u8]]) -> Result<i128> {
    let damaged = |reason: String| {
        let file = unit.parts.first().and_then(|part| plan.paths.get(part.file));
        Error::Damaged { object: file.map_or("a file".into(), |path| path.display().to_string()), reason }
    };
    match &unit.work {
        Work::Rows(pages) => add_pages(parts.first().copied().unwrap_or_default(), *pages).map_err(damaged),
        Work::Pieces { shape, pieces, part_of } => {
            let mut words: [&[u32]; 4] = [&[]; 4];
            for (words, part) in words.iter_mut().zip(part_of) {
                let Some(bytes) = part.and_then(|part| parts.get(part)) else { continue };
                *words = <[u32]>::ref_from_bytes(&bytes[..bytes.len() / 4 * 4])
                    .map_err(|_| damaged("a buffer that does not begin on a word".into()))?;
            }
            let mut sum = 0i128;
            for piece in &plan.pieces[pieces.clone()] {
                let added = add_piece(&plan.shapes[*shape], piece, &words);
                sum = sum.wrapping_add(added.map_err(|reason| damaged(reason.into()))?);
            }
            Ok(sum)
        }
    }
}

fn add_pages(bytes: &[u8], pages: usize) -> Result<i128, String> {
    let pages = bytes.chunks_exact(rows::PAGE_BYTES).take(pages);
    pages.map(rows::add_page).try_fold(0i128, |sum, page| Ok(sum.wrapping_add(page?)))
}

fn add_piece(shape: &Shape, piece: &Piece, words: &[&[u32]; 4]) -> Result<i128, &'static str> {
    const SHORT: &str = "a buffer is shorter than what was to be read into it";
    let rows = piece.rows as usize;
    let mut sum = 0i128;
    for vector in 0..rows.div_ceil(VECTOR_ROWS) {
        let packed = |place: Place| -> Result<Option<(u32, &[u32])>, &'static str> {
            let (column, bits) = (&piece.columns[place as usize], shape.bits[place as usize]);
            if column.stored == 0 || bits == 0 {
                return Ok(None);
            }
            let at = column.at as usize + vector * vector_words(bits);
            let words = words[place as usize].get(at..at + vector_words(bits)).ok_or(SHORT)?;
            Ok(Some((bits, words)))
        };
        let mut live = live(rows - vector * VECTOR_ROWS);
        for place in [Place::Shipdate, Place::Discount, Place::Quantity] {
            let column = &piece.columns[place as usize];
            match packed(place)? {
                Some((bits, words)) => {
                    let mut pass: Mask = [0; LANE_VALUES];
                    within(bits, words, column.min, column.min + column.span, &mut pass);
                    live.iter_mut().zip(&pass).for_each(|(live, pass)| *live &= pass);
                }
                // All codes are 0.
                None if column.min > 0 => live.fill(0),
                None => {}
            }
        }
        let (discount, price) = (packed(Place::Discount)?, packed(Place::Price)?);
        let value = |place: Place, packed: Option<(u32, &[u32])>, row: usize| {
            let code = packed.map_or(0, |(bits, words)| value_at(bits, words, row));
            let value = piece.columns[place as usize].base.wrapping_add(code.into());
            match &shape.dictionaries[place as usize - 2] {
                None => Ok(value),
                Some(values) => {
                    let entry = usize::try_from(value).ok().and_then(|code| values.get(code));
                    entry.copied().ok_or("a code that its dictionary does not have")
                }
            }
        };
        for (n, word) in live.iter().enumerate() {
            let mut word = *word;
            while word != 0 {
                let row = n * LANES + word.trailing_zeros() as usize;
                word &= word - 1;
                let product =
                    i128::from(value(Place::Discount, discount, row)?) * i128::from(value(Place::Price, price, row)?);
                sum = sum.wrapping_add(product);
            }
        }
    }
    Ok(sum)
}

/// Returns a mask with a bit for each existing row.
fn live(rows: usize) -> Mask {
    std::array::from_fn(|n| match rows.saturating_sub(n * LANES) {
        0 => 0,
        rows if rows >= LANES => u32::MAX,
        rows => (1 << rows) - 1,
    })
}
