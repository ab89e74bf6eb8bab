//! The packed layout, which is permanent: every column of a segment shares this lane geometry.
//!
//! ```text
//! a vector: 1,024 rows over 32 lanes           row 32*i + lane is value i of its lane
//! a packed vector of width W: 32*W words       word w of a lane lies at [w*32 + lane]
//!
//!            lane 0      lane 1    ...  lane 31
//! word 0   [row 0,32..][row 1,33..] ... [row 31,63..]   value i of a lane starts at its bit i*W,
//! word 1   [    ...   ][    ...   ] ... [    ...     ]  low bits first, and may straddle two words
//! ...
//! word W-1
//! ```
//!
//! Reasons: a GPU warp reads 32 neighbouring words at once and its thread `lane` gets the same rows
//! in every column. A CPU unpacks 32 lanes with the same shift and mask, so that plain loops
//! vectorise at any register width and rows come out in their natural order. Width 1 is a bitmap
//! whose word is the live mask of a lane. Width 32 is the natural order itself. Values wider than
//! 32 bits are two planes: the low 32 bits, and the rest.

use std::sync::LazyLock;

/// The rows in a vector.
pub const VECTOR_ROWS: usize = 1024;
/// The lanes of a vector.
pub const LANES: usize = 32;
/// The values of a vector in one lane.
pub const LANE_VALUES: usize = VECTOR_ROWS / LANES;

/// The words in a cache line.
const LINE_WORDS: usize = 16;

const _: () = assert!(LANES * LANE_VALUES == VECTOR_ROWS && LANE_VALUES == u32::BITS as usize);

/// Returns the words in a packed vector of this width.
pub const fn vector_words(width: u32) -> usize {
    LANES * width as usize
}

/// Returns the least width that holds `value`.
pub const fn width_of(value: u64) -> u32 {
    u64::BITS - value.leading_zeros()
}

/// A vector of unpacked values.
pub type Values = [u32; VECTOR_ROWS];

/// A bit per row of a vector: word `i` holds rows `32*i` to `32*i+31`, low bit first.
pub type Mask = [u32; LANE_VALUES];

type Unpack = fn(&[u32], &mut Values);
type Pack = fn(&Values, &mut [u32]);
/// The limits are the least value and its distance to the greatest, both within the width.
type Within = fn(&[u32], u32, u32, &mut Mask);

/// Unpacks one vector of `width` <= 32 bits. `packed` holds exactly [`vector_words`] words.
pub fn unpack(width: u32, packed: &[u32], out: &mut Values) {
    assert_eq!(packed.len(), vector_words(width));
    KERNELS.unpack[width as usize](packed, out);
}

/// Packs one vector into `width` <= 32 bits. Higher bits of the values must be zero.
pub fn pack(width: u32, values: &Values, packed: &mut [u32]) {
    assert_eq!(packed.len(), vector_words(width));
    KERNELS.pack[width as usize](values, packed);
}

/// Computes a mask of the values of a packed vector within `min..=max`. Values are unpacked in
/// registers, compared, and never written.
pub fn within(width: u32, packed: &[u32], min: u32, max: u32, out: &mut Mask) {
    assert_eq!(packed.len(), vector_words(width));
    let max = max.min(mask(width));
    if min > max {
        out.fill(0);
        return;
    }
    KERNELS.within[width as usize](packed, min, max - min, out);
}

/// Returns one value of a packed vector: for the few rows that are left.
#[inline]
pub fn value_at(width: u32, packed: &[u32], row: usize) -> u32 {
    if width == 0 {
        return 0;
    }
    let (value, lane) = (row / LANES, row % LANES);
    let (word, shift) = (value * width as usize / 32, value * width as usize % 32);
    let low = u64::from(packed[word * LANES + lane]);
    // The next word, or the same again: a branch on straddling would be unpredictable, and the mask
    // removes foreign bits.
    let next = word + usize::from(shift + width as usize > 32);
    let high = u64::from(packed[next * LANES + lane]);
    (((high << 32) | low) >> shift) as u32 & mask(width)
}

/// Returns the values of single rows of packed vectors that lie one after the other in `words`.
/// Rows are counted from the first vector's first.
pub fn pick(width: u32, words: &[u32], rows: &[u16], out: &mut [u32]) {
    let vectors = words.len().checked_div(vector_words(width)).unwrap_or(usize::MAX);
    let last = rows.iter().fold(0, |last, row| last.max(*row));
    assert!(rows.is_empty() || usize::from(last) / VECTOR_ROWS < vectors, "row {last} of {vectors} vectors");
    if width == 0 {
        out.fill(0);
        return;
    }
    #[cfg(target_arch = "x86_64")]
    if KERNELS.has_avx512 {
        // SAFETY: the feature was found, and no row lies past the vectors.
        unsafe { pick_avx512(width, words, rows, out) };
        return;
    }
    pick_portable(width, words, rows, out);
}

/// Prefetches words that are about to be read. They may lie out of bounds.
#[inline]
pub fn prefetch_words(words: &[u32], from: usize, count: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (from..from + count).step_by(LINE_WORDS) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: every x86-64 has it, and it reads nothing, at any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(words.as_ptr().wrapping_add(line).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (words, from, count);
}

/// Prefetches the words of single rows that [`pick`] is about to read.
pub fn prefetch(width: u32, words: &[u32], rows: &[u16]) {
    #[cfg(target_arch = "x86_64")]
    for row in rows {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: every x86-64 has it, and it reads nothing, at any address.
        let bring = |word: *const u32| unsafe { _mm_prefetch::<_MM_HINT_T0>(word.cast()) };
        let (value, lane) = (usize::from(*row) / LANES, usize::from(*row) % LANES);
        let bit = value * width as usize;
        let first = words.as_ptr().wrapping_add(bit / 32 * LANES + lane);
        bring(first);
        if bit % 32 + width as usize > 32 {
            bring(first.wrapping_add(LANES));
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (width, words, rows);
}

fn pick_portable(width: u32, words: &[u32], rows: &[u16], out: &mut [u32]) {
    for (out, row) in out.iter_mut().zip(rows) {
        let (vector, row) = (usize::from(*row) / VECTOR_ROWS, usize::from(*row) % VECTOR_ROWS);
        *out = value_at(width, &words[vector * vector_words(width)..], row);
    }
}

/// Picks 16 rows at a time: rows that lie far apart are cache misses that do not wait for each
/// other.
///
/// # Safety
/// `words` has all vectors that contain `rows`, and `width` is 1 to 32.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn pick_avx512(width: u32, words: &[u32], rows: &[u16], out: &mut [u32]) {
    use std::arch::x86_64::*;
    const AT_ONCE: usize = 16;
    let set = |value: u32| _mm512_set1_epi32(value as i32);
    let (widths, all_bits, wanted) = (set(width), set(32), set(mask(width)));
    let values = |rows: &[u16; AT_ONCE]| {
        // SAFETY: 16 rows are read from an array of 16.
        let rows = _mm512_cvtepu16_epi32(unsafe { _mm256_loadu_si256(rows.as_ptr().cast()) });
        // Value `i` of each lane begins at bit i * width of every 32 rows. This holds for words and
        // rows over all vectors.
        let bit = _mm512_mullo_epi32(_mm512_srli_epi32::<5>(rows), widths);
        let shift = _mm512_and_si512(bit, set(31));
        let lane = _mm512_and_si512(rows, set(31));
        let word = _mm512_or_si512(_mm512_andnot_si512(set(31), bit), lane);
        let straddles = _mm512_cmpgt_epu32_mask(_mm512_add_epi32(shift, widths), all_bits);
        // SAFETY: the caller guarantees the rows' vectors; the second word of a value that
        // straddles two lies in its own vector.
        let (low, high) = unsafe {
            let (base, next) = (words.as_ptr().cast(), _mm512_add_epi32(word, all_bits));
            let low = _mm512_i32gather_epi32::<4>(word, base);
            (low, _mm512_mask_i32gather_epi32::<4>(_mm512_setzero_si512(), straddles, next, base))
        };
        let high = _mm512_sllv_epi32(high, _mm512_sub_epi32(all_bits, shift));
        _mm512_and_si512(_mm512_or_si512(_mm512_srlv_epi32(low, shift), high), wanted)
    };
    let n = rows.len().min(out.len());
    let (chunks, rest) = rows[..n].as_chunks::<AT_ONCE>();
    for (rows, out) in chunks.iter().zip(out.as_chunks_mut::<AT_ONCE>().0) {
        // SAFETY: 16 values are written to an array of 16.
        unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), values(rows)) };
    }
    if let Some(last) = rest.last() {
        let mut rows = [*last; AT_ONCE];
        rows[..rest.len()].copy_from_slice(rest);
        let mut few = [0; AT_ONCE];
        // SAFETY: as above.
        unsafe { _mm512_storeu_si512(few.as_mut_ptr().cast(), values(&rows)) };
        out[n - rest.len()..n].copy_from_slice(&few[..rest.len()]);
    }
}

const fn mask(width: u32) -> u32 {
    if width >= 32 { u32::MAX } else { (1 << width) - 1 }
}

#[inline(always)]
fn unpack_body<const W: usize>(packed: &[u32], out: &mut Values) {
    for (value, row) in out.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
        *row = neighbours::<W>(packed, value);
    }
}

/// Returns the 32 values at index `value` of every lane, which are neighbouring rows.
#[inline(always)]
fn neighbours<const W: usize>(packed: &[u32], value: usize) -> [u32; LANES] {
    let mut row = [0; LANES];
    if W == 0 {
        return row;
    }
    let mask = mask(W as u32);
    let (word, shift) = (value * W / 32, value * W % 32);
    let low = &packed[word * LANES..][..LANES];
    if shift + W <= 32 {
        for lane in 0..LANES {
            row[lane] = (low[lane] >> shift) & mask;
        }
    } else {
        let high = &packed[(word + 1) * LANES..][..LANES];
        for lane in 0..LANES {
            row[lane] = ((low[lane] >> shift) | (high[lane] << (32 - shift))) & mask;
        }
    }
    row
}

#[inline(always)]
fn within_body<const W: usize>(packed: &[u32], min: u32, span: u32, out: &mut Mask) {
    for (value, word) in out.iter_mut().enumerate() {
        let row = neighbours::<W>(packed, value);
        let bits = row.iter().enumerate().map(|(lane, v)| u32::from(v.wrapping_sub(min) <= span) << lane);
        *word = bits.fold(0, |word, bit| word | bit);
    }
}

/// Computes the same as [`within_body`]: the comparison of 16 values is a mask already. They are
/// compared at the upper end of a word. The bits below them stay, because they do not affect the
/// result: the limits allow any bits there.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512vbmi2")]
fn within_512<const W: usize>(packed: &[u32], min: u32, span: u32, out: &mut Mask) {
    use std::arch::x86_64::*;
    assert_eq!(packed.len(), vector_words(W as u32));
    if W == 0 {
        // The limits lie within the width.
        return out.fill(u32::MAX);
    }
    let below = 32 - W as u32;
    let mins = _mm512_set1_epi32((min << below) as i32);
    let spans = _mm512_set1_epi32((span << below | !(u32::MAX << below)) as i32);
    // Unrolled, so that each shift is a constant.
    macro_rules! each {
        ($($value:literal)*) => { $(
            let (word, end) = ($value * W / 32, $value * W % 32 + W);
            let half = |half: usize| {
                let at = |word: usize| {
                    // SAFETY: the vector has W words of each lane.
                    unsafe { _mm512_loadu_si512(packed.as_ptr().add(word * LANES + half * LANES / 2).cast()) }
                };
                let top = match end <= 32 {
                    true => _mm512_sllv_epi32(at(word), _mm512_set1_epi32(32 - end as i32)),
                    false => _mm512_shldv_epi32(at(word + 1), at(word), _mm512_set1_epi32(64 - end as i32)),
                };
                u32::from(_mm512_cmple_epu32_mask(_mm512_sub_epi32(top, mins), spans))
            };
            out[$value] = half(0) | half(1) << 16;
        )* };
    }
    each!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31);
}

#[inline(always)]
fn pack_body<const W: usize>(values: &Values, packed: &mut [u32]) {
    if W == 0 {
        return;
    }
    packed.fill(0);
    for (value, row) in values.as_chunks::<LANES>().0.iter().enumerate() {
        let (word, shift) = (value * W / 32, value * W % 32);
        let low = &mut packed[word * LANES..][..LANES];
        for lane in 0..LANES {
            low[lane] |= row[lane] << shift;
        }
        if shift + W > 32 {
            let high = &mut packed[(word + 1) * LANES..][..LANES];
            for lane in 0..LANES {
                high[lane] |= row[lane] >> (32 - shift);
            }
        }
    }
}

/// One function per width, for the best instruction set of this processor.
struct Kernels {
    unpack: [Unpack; 33],
    pack: [Pack; 33],
    within: [Within; 33],
    has_avx512: bool,
}

static KERNELS: LazyLock<Kernels> = LazyLock::new(Kernels::detect);

macro_rules! per_width {
    ($f:ident) => {
        per_width!($f; 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32)
    };
    ($f:ident; $($w:literal)*) => { [$($f::<$w>),*] };
}

impl Kernels {
    fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vl") {
            return Self {
                unpack: per_width!(unpack_avx512),
                pack: per_width!(pack_avx512),
                within: match is_x86_feature_detected!("avx512vbmi2") {
                    true => per_width!(within_vbmi2),
                    false => per_width!(within_avx512),
                },
                has_avx512: true,
            };
        } else if is_x86_feature_detected!("avx2") {
            return Self {
                unpack: per_width!(unpack_avx2),
                pack: per_width!(pack_avx2),
                within: per_width!(within_avx2),
                has_avx512: false,
            };
        }
        Self {
            unpack: per_width!(unpack_body),
            pack: per_width!(pack_body),
            within: per_width!(within_body),
            has_avx512: false,
        }
    }
}

#[cfg(target_arch = "x86_64")]
macro_rules! for_features {
    ($unpack:ident, $pack:ident, $within:ident, $features:literal) => {
        fn $unpack<const W: usize>(packed: &[u32], out: &mut Values) {
            #[target_feature(enable = $features)]
            fn with_features<const W: usize>(packed: &[u32], out: &mut Values) {
                unpack_body::<W>(packed, out);
            }
            // SAFETY: `Kernels::detect` returns this function only after it detected the features.
            unsafe { with_features::<W>(packed, out) }
        }

        fn $within<const W: usize>(packed: &[u32], min: u32, span: u32, out: &mut Mask) {
            #[target_feature(enable = $features)]
            fn with_features<const W: usize>(packed: &[u32], min: u32, span: u32, out: &mut Mask) {
                within_body::<W>(packed, min, span, out);
            }
            // SAFETY: as above.
            unsafe { with_features::<W>(packed, min, span, out) }
        }

        fn $pack<const W: usize>(values: &Values, packed: &mut [u32]) {
            #[target_feature(enable = $features)]
            fn with_features<const W: usize>(values: &Values, packed: &mut [u32]) {
                pack_body::<W>(values, packed);
            }
            // SAFETY: as above.
            unsafe { with_features::<W>(values, packed) }
        }
    };
}

#[cfg(target_arch = "x86_64")]
for_features!(unpack_avx2, pack_avx2, within_avx2, "avx2");
#[cfg(target_arch = "x86_64")]
for_features!(unpack_avx512, pack_avx512, within_avx512, "avx512f,avx512vl");

#[cfg(target_arch = "x86_64")]
fn within_vbmi2<const W: usize>(packed: &[u32], min: u32, span: u32, out: &mut Mask) {
    // SAFETY: `Kernels::detect` returns this function only after it detected the features.
    unsafe { within_512::<W>(packed, min, span, out) }
}

/// Converts a bitmap of 1,024 rows in lane geometry to one in row order: word i holds rows 32*i to
/// 32*i+31, low bit first.
///
/// Both are the same 32x32 bit matrix, once by columns and once by rows, so this is a transposition
/// and its own inverse (Warren, Hacker's Delight, 7-3: swap ever smaller off-diagonal squares).
pub fn transpose(bits: &mut [u32; LANES]) {
    let mut size = 16;
    let mut mask = 0x0000_ffff_u32;
    while size != 0 {
        let mut i = 0;
        while i < LANES {
            let swap = ((bits[i] >> size) ^ bits[i + size]) & mask;
            bits[i] ^= swap << size;
            bits[i + size] ^= swap;
            i = (i + size + 1) & !size;
        }
        size >>= 1;
        mask ^= mask << size;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn value(seed: u64, row: usize, width: u32) -> u32 {
        let x = (seed ^ row as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (x >> 29) as u32 & mask(width)
    }

    /// Packs by the definition of the layout, bit by bit.
    fn pack_by_definition(width: u32, values: &Values) -> Vec<u32> {
        let mut packed = vec![0u32; vector_words(width)];
        for (row, value) in values.iter().enumerate() {
            let (i, lane) = (row / 32, row % 32);
            for bit in 0..width as usize {
                let at = i * width as usize + bit;
                packed[at / 32 * 32 + lane] |= (value >> bit & 1) << (at % 32);
            }
        }
        packed
    }

    #[test]
    fn single_rows_are_picked() {
        for width in 0..=32 {
            let mut words = vec![0; 3 * vector_words(width)];
            let vectors: [Values; 3] =
                std::array::from_fn(|v| std::array::from_fn(|row| value(v as u64 + 3, row, width)));
            for (vector, values) in vectors.iter().enumerate() {
                pack(width, values, &mut words[vector * vector_words(width)..][..vector_words(width)]);
            }
            let rows: Vec<u16> = (0..3 * VECTOR_ROWS as u16).filter(|row| row % 7 == 3 || row % 32 == 31).collect();
            let expected: Vec<u32> =
                rows.iter().map(|r| vectors[usize::from(*r) / VECTOR_ROWS][usize::from(*r) % VECTOR_ROWS]).collect();
            let mut out = vec![9; rows.len()];
            pick(width, &words, &rows, &mut out);
            assert_eq!(out, expected, "width {width}");
            if width > 0 {
                pick_portable(width, &words, &rows, &mut out);
                assert_eq!(out, expected, "width {width}, portable");
            }
        }
    }

    #[test]
    fn within_is_unpacked_and_compared() {
        for width in 0..=32 {
            let values: Values = std::array::from_fn(|row| value(7, row, width));
            let mut packed = vec![0; vector_words(width)];
            pack(width, &values, &mut packed);
            let (a, b) = (values[17].min(values[900]), values[17].max(values[900]));
            for (min, max) in [(a, b), (b, b), (0, u32::MAX), (0, a), (b, u32::MAX), (1, 0)] {
                let by_definition: Mask = std::array::from_fn(|word| {
                    let is_in = |lane: &usize| (min..=max).contains(&values[word * 32 + lane]);
                    (0..32).filter(is_in).map(|lane| 1 << lane).sum()
                });
                let mut out = [9; LANE_VALUES];
                within(width, &packed, min, max, &mut out);
                assert_eq!(out, by_definition, "width {width}, {min} to {max}");
                if min <= max {
                    let bodies: [Within; 33] = per_width!(within_body);
                    bodies[width as usize](&packed, min, max - min, &mut out);
                    assert_eq!(out, by_definition, "width {width}, {min} to {max}, portable");
                }
            }
        }
    }

    #[test]
    fn every_width_packs_as_defined_and_comes_back() {
        for width in 0..=32 {
            for seed in 0..4 {
                let values: Values = match seed {
                    0 => [mask(width); VECTOR_ROWS],
                    _ => std::array::from_fn(|row| value(seed, row, width)),
                };
                let mut packed = vec![0xdead_beef; vector_words(width)];
                pack(width, &values, &mut packed);
                assert_eq!(packed, pack_by_definition(width, &values), "width {width}");
                let mut back = [1; VECTOR_ROWS];
                unpack(width, &packed, &mut back);
                assert_eq!(back, values, "width {width}");
                for row in [0, 1, 31, 32, 33, 500, 1023] {
                    assert_eq!(value_at(width, &packed, row), values[row]);
                }
            }
        }
    }

    #[test]
    fn all_instruction_sets_agree() {
        let portable = Kernels {
            unpack: per_width!(unpack_body),
            pack: per_width!(pack_body),
            within: per_width!(within_body),
            has_avx512: false,
        };
        for width in 0..=32u32 {
            let values: Values = std::array::from_fn(|row| value(7, row, width));
            let (mut a, mut b) = (vec![0; vector_words(width)], vec![0; vector_words(width)]);
            portable.pack[width as usize](&values, &mut a);
            pack(width, &values, &mut b);
            assert_eq!(a, b);
            let (mut x, mut y) = ([0; VECTOR_ROWS], [0; VECTOR_ROWS]);
            portable.unpack[width as usize](&a, &mut x);
            unpack(width, &a, &mut y);
            assert_eq!(x, y);
        }
    }

    #[test]
    fn width_32_is_the_natural_order_and_width_1_a_lane_mask() {
        let values: Values = std::array::from_fn(|row| row as u32 * 77_777);
        let mut packed = vec![0; vector_words(32)];
        pack(32, &values, &mut packed);
        assert_eq!(packed, values);

        let bits: Values = std::array::from_fn(|row| value(3, row, 1));
        let mut lanes = [0; LANES];
        pack(1, &bits, &mut lanes);
        for (lane, word) in lanes.iter().enumerate() {
            for i in 0..32 {
                assert_eq!(word >> i & 1, bits[32 * i + lane]);
            }
        }
        transpose(&mut lanes);
        for (i, word) in lanes.iter().enumerate() {
            for bit in 0..32 {
                assert_eq!(word >> bit & 1, bits[32 * i + bit]);
            }
        }
    }

    proptest! {
        #[test]
        fn transposing_twice_changes_nothing(bits: [u32; LANES]) {
            let mut twice = bits;
            transpose(&mut twice);
            transpose(&mut twice);
            prop_assert_eq!(twice, bits);
        }

        #[test]
        fn width_of_is_the_least(value: u64) {
            let width = width_of(value);
            prop_assert!(width == 64 || value >> width == 0);
            prop_assert!(value == 0 && width == 0 || value >> (width - 1) == 1);
        }
    }
}
