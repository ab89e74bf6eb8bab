//! Loops over values, compiled for AVX-512, AVX2 and the baseline. The best version is chosen at
//! run time.
//!
//! All kernels take slices of the live rows. Booleans are bytes 0 and 1, which vectorize without
//! transposing bits.

use onehop_segment::packed::{LANES, Mask};
use onehop_segment::per_isa;

use crate::{ArithmeticOp, CompareOp};

per_isa! {
    /// Returns true if no value is less than the one before it.
    pub(crate) fn is_ascending(values: &[u64]) -> bool {
        let pairs = values.iter().zip(values.iter().skip(1));
        pairs.fold(0, |descents, (a, b)| descents | u8::from(a > b)) == 0
    }
}

macro_rules! ends {
    ($name:ident, $t:ty) => {
        per_isa! {
            /// Returns the least and the greatest value.
            pub(crate) fn $name(values: &[$t]) -> (i64, i64) {
                let (mut least, mut most) = (<$t>::MAX, <$t>::MIN);
                for value in values {
                    least = least.min(*value);
                    most = most.max(*value);
                }
                (i64::from(least), i64::from(most))
            }
        }
    };
}
ends!(ends_i32, i32);
ends!(ends_i64, i64);

macro_rules! within {
    ($name:ident, $t:ty, $unsigned:ty) => {
        per_isa! {
            /// Tests if each value lies in `min..=max`, with one subtraction and one unsigned
            /// comparison.
            pub(crate) fn $name(values: &[$t], min: $t, max: $t, out: &mut [u8]) {
                let span = max.wrapping_sub(min) as $unsigned;
                for (out, value) in out.iter_mut().zip(values) {
                    *out = u8::from(value.wrapping_sub(min) as $unsigned <= span);
                }
            }
        }
    };
}
within!(within_i32, i32, u32);
within!(within_i64, i64, u64);

macro_rules! compare {
    ($name:ident, $t:ty) => {
        per_isa! {
            pub(crate) fn $name(op: CompareOp, left: &[$t], right: &[$t], out: &mut [u8]) {
                macro_rules! each {
                    ($holds:expr) => {
                        for ((out, a), b) in out.iter_mut().zip(left).zip(right) {
                            *out = u8::from($holds(*a, *b));
                        }
                    };
                }
                match op {
                    CompareOp::Equal => each!(|a: $t, b: $t| a == b),
                    CompareOp::NotEqual => each!(|a: $t, b: $t| a != b),
                    CompareOp::Less => each!(|a: $t, b: $t| a < b),
                    CompareOp::LessOrEqual => each!(|a: $t, b: $t| a <= b),
                    CompareOp::Greater => each!(|a: $t, b: $t| a > b),
                    CompareOp::GreaterOrEqual => each!(|a: $t, b: $t| a >= b),
                }
            }
        }
    };
}
compare!(compare_u8, u8);
compare!(compare_i32, i32);
compare!(compare_i64, i64);

macro_rules! arithmetic {
    ($name:ident, $t:ty) => {
        per_isa! {
            /// Computes results that fit the type, as the compiler of the expression guarantees.
            /// Only NULL rows, whose values are arbitrary, may wrap.
            pub(crate) fn $name(op: ArithmeticOp, left: &[$t], right: &[$t], out: &mut [$t]) {
                macro_rules! each {
                    ($f:expr) => {
                        for ((out, a), b) in out.iter_mut().zip(left).zip(right) {
                            *out = $f(*a, *b);
                        }
                    };
                }
                match op {
                    ArithmeticOp::Add => each!(<$t>::wrapping_add),
                    ArithmeticOp::Sub => each!(<$t>::wrapping_sub),
                    ArithmeticOp::Mul => each!(<$t>::wrapping_mul),
                    // Zero divisors were detected before. Here they only must not trap.
                    ArithmeticOp::Div => each!(|a: $t, b: $t| if b == 0 { 0 } else { a.wrapping_div(b) }),
                    ArithmeticOp::Rem => each!(|a: $t, b: $t| if b == 0 { 0 } else { a.wrapping_rem(b) }),
                }
            }
        }
    };
}
arithmetic!(arithmetic_i32, i32);
arithmetic!(arithmetic_i64, i64);

/// Replaces every NaN by `f64::NAN`, which is after all numbers in IEEE 754's total order.
/// Processors differ in the NaN that an operation returns.
#[inline(always)]
fn one_nan(value: f64) -> f64 {
    if value.is_nan() { f64::NAN } else { value }
}

per_isa! {
    pub(crate) fn arithmetic_f64(op: ArithmeticOp, left: &[f64], right: &[f64], out: &mut [f64]) {
        macro_rules! each {
            ($f:expr) => {
                for ((out, a), b) in out.iter_mut().zip(left).zip(right) {
                    *out = $f(*a, *b);
                }
            };
        }
        match op {
            ArithmeticOp::Add => each!(|a: f64, b: f64| one_nan(a + b)),
            ArithmeticOp::Sub => each!(|a: f64, b: f64| one_nan(a - b)),
            ArithmeticOp::Mul => each!(|a: f64, b: f64| one_nan(a * b)),
            ArithmeticOp::Div => each!(|a: f64, b: f64| one_nan(a / b)),
            ArithmeticOp::Rem => each!(|a: f64, b: f64| one_nan(a % b)),
        }
    }
}

per_isa! {
    /// `out &= other`
    pub(crate) fn and_assign(out: &mut [u8], other: &[u8]) {
        out.iter_mut().zip(other).for_each(|(out, other)| *out &= other);
    }
}

per_isa! {
    pub(crate) fn widen_i32_i64(values: &[i32], out: &mut [i64]) {
        out.iter_mut().zip(values).for_each(|(out, value)| *out = i64::from(*value));
    }
}

per_isa! {
    pub(crate) fn narrow_i64_i32(values: &[i64], out: &mut [i32]) {
        out.iter_mut().zip(values).for_each(|(out, value)| *out = *value as i32);
    }
}

per_isa! {
    pub(crate) fn add_assign_i32(values: &mut [i32], addend: i32) {
        values.iter_mut().for_each(|value| *value = value.wrapping_add(addend));
    }
}

per_isa! {
    pub(crate) fn offsets_i64(offsets: &[u32], base: i64, out: &mut [i64]) {
        out.iter_mut().zip(offsets).for_each(|(out, offset)| *out = base.wrapping_add(i64::from(*offset)));
    }
}

per_isa! {
    pub(crate) fn sum_i32(values: &[i32]) -> i64 {
        values.iter().map(|value| i64::from(*value)).sum()
    }
}

per_isa! {
    pub(crate) fn sum_i64(values: &[i64]) -> i64 {
        values.iter().fold(0, |sum, value| sum.wrapping_add(*value))
    }
}

/// A bitmap for looking up offsets. `delta` is added to an offset, wrapped, and the sum must be
/// below `count`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OffsetBits<'a> {
    pub delta: u32,
    pub count: u32,
    pub bits: &'a [u32],
}

/// Computes the mask of offsets whose bit is set, among the rows in `among`. If these are `few`,
/// their offsets are compressed first. Bits of other rows are arbitrary.
pub(crate) fn mask_bits(
    offsets: &[u32; crate::VECTOR_ROWS],
    set: OffsetBits<'_>,
    among: &Mask,
    few: bool,
    out: &mut Mask,
) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") && set.bits.len() as u64 * 32 >= u64::from(set.count) {
        // SAFETY: the features were detected, and the bitmap is as long as `count` says.
        unsafe {
            match few && is_x86_feature_detected!("bmi2") && is_x86_feature_detected!("popcnt") {
                true => mask_few_bits_avx512(offsets, set, among, out),
                false => mask_bits_avx512(offsets, set, out),
            }
        }
        return;
    }
    let _ = (among, few);
    mask_bits_portable(offsets, set, out);
}

fn mask_bits_portable(offsets: &[u32; crate::VECTOR_ROWS], set: OffsetBits<'_>, out: &mut Mask) {
    for (word, offsets) in out.iter_mut().zip(offsets.as_chunks::<LANES>().0) {
        *word = 0;
        for (lane, offset) in offsets.iter().enumerate() {
            let at = offset.wrapping_add(set.delta);
            let found = if at < set.count { set.bits.get(at as usize / 32).copied().unwrap_or(0) } else { 0 };
            *word |= (found >> (at % 32) & 1) << lane;
        }
    }
}

/// Returns the mask of 16 offsets whose bit is set.
///
/// # Safety
/// The bitmap has at least `count` bits.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn bits_of_16(offsets: std::arch::x86_64::__m512i, set: OffsetBits<'_>) -> u16 {
    use std::arch::x86_64::*;
    let at = _mm512_add_epi32(offsets, _mm512_set1_epi32(set.delta as i32));
    let inside = _mm512_cmplt_epu32_mask(at, _mm512_set1_epi32(set.count as i32));
    let words = _mm512_srli_epi32::<5>(at);
    // SAFETY: only words of positions below `count` are read, and the caller guarantees that these
    // exist.
    let words =
        unsafe { _mm512_mask_i32gather_epi32::<4>(_mm512_setzero_si512(), inside, words, set.bits.as_ptr().cast()) };
    let bit = _mm512_sllv_epi32(_mm512_set1_epi32(1), _mm512_and_si512(at, _mm512_set1_epi32(31)));
    _mm512_test_epi32_mask(words, bit)
}

/// # Safety
/// The bitmap has at least `count` bits.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn mask_bits_avx512(offsets: &[u32; crate::VECTOR_ROWS], set: OffsetBits<'_>, out: &mut Mask) {
    use std::arch::x86_64::*;
    for (word, offsets) in out.iter_mut().zip(offsets.as_chunks::<LANES>().0) {
        // SAFETY: 16 values from 0 or from 16 of an array of 32; the caller guarantees the rest.
        let half = |at: usize| unsafe { bits_of_16(_mm512_loadu_si512(offsets.as_ptr().add(at).cast()), set) };
        *word = u32::from(half(0)) | u32::from(half(16)) << 16;
    }
}

/// Compresses the offsets of the rows in `among`, looks them up 16 at a time, and scatters their
/// bits back.
///
/// # Safety
/// The bitmap has at least `count` bits.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,bmi2,popcnt")]
unsafe fn mask_few_bits_avx512(offsets: &[u32; crate::VECTOR_ROWS], set: OffsetBits<'_>, among: &Mask, out: &mut Mask) {
    use std::arch::x86_64::*;
    const AT_ONCE: usize = 16;
    // Stores write 16 values; later stores overwrite the unwanted ones.
    let mut few = [0u32; crate::VECTOR_ROWS + AT_ONCE];
    let mut n = 0;
    for (halves, word) in offsets.as_chunks::<AT_ONCE>().0.as_chunks::<2>().0.iter().zip(among) {
        for (half, wanted) in halves.iter().zip([*word as u16, (*word >> 16) as u16]) {
            // SAFETY: 16 values of an array of 16; n is at most the number of rows before, so that
            // 16 more fit.
            unsafe {
                let pressed = _mm512_maskz_compress_epi32(wanted, _mm512_loadu_si512(half.as_ptr().cast()));
                _mm512_storeu_si512(few.as_mut_ptr().add(n).cast(), pressed);
            }
            n += wanted.count_ones() as usize;
        }
    }
    // A stream of bits in words of 32, with one more word to read past the last.
    let mut found = [0u32; LANES + 1];
    for (i, chunk) in few[..n.next_multiple_of(AT_ONCE)].as_chunks::<AT_ONCE>().0.iter().enumerate() {
        // SAFETY: 16 values of an array of 16; the caller guarantees the rest.
        let bits = unsafe { bits_of_16(_mm512_loadu_si512(chunk.as_ptr().cast()), set) };
        found[i / 2] |= u32::from(bits) << (i % 2 * AT_ONCE);
    }
    let mut bit = 0;
    for (word, wanted) in out.iter_mut().zip(among) {
        let two = u64::from(found[bit / 32]) | u64::from(found[bit / 32 + 1]) << 32;
        *word = _pdep_u32((two >> (bit % 32)) as u32, *wanted);
        bit += wanted.count_ones() as usize;
    }
}

per_isa! {
    /// Returns the number of rows with this place.
    pub(crate) fn count_where(places: &[u32], place: u32) -> u32 {
        places.iter().map(|other| u32::from(*other == place)).sum()
    }
}

per_isa! {
    /// Returns the sum of the values of rows with this place.
    pub(crate) fn sum_where_i32(values: &[i32], places: &[u32], place: u32) -> i64 {
        values.iter().zip(places).map(|(value, other)| if *other == place { i64::from(*value) } else { 0 }).sum()
    }
}

per_isa! {
    pub(crate) fn sum_where_i64(values: &[i64], places: &[u32], place: u32) -> i64 {
        let one = |(value, other): (&i64, &u32)| if *other == place { *value } else { 0 };
        values.iter().zip(places).map(one).fold(0, |sum, value| sum.wrapping_add(value))
    }
}

per_isa! {
    /// Adds `(value - min) * stride`, in 32 bits, to each key.
    pub(crate) fn add_digits_i32(values: &[i32], min: i32, stride: u32, keys: &mut [u32]) {
        for (key, value) in keys.iter_mut().zip(values) {
            *key = key.wrapping_add((value.wrapping_sub(min) as u32).wrapping_mul(stride));
        }
    }
}

per_isa! {
    /// Adds digits as [`add_digits_i32`] does, with a separate digit for NULL rows.
    pub(crate) fn add_digits_or_null_i32(
        values: &[i32], valid: &[u8], min: i32, stride: u32, null: u32, keys: &mut [u32],
    ) {
        for ((key, value), valid) in keys.iter_mut().zip(values).zip(valid) {
            let digit = if *valid != 0 { value.wrapping_sub(min) as u32 } else { null };
            *key = key.wrapping_add(digit.wrapping_mul(stride));
        }
    }
}

/// Conversion of a value to a digit of a key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Digit {
    pub min: i64,
    pub stride: u64,
    /// The digit of NULL.
    pub null: u64,
}

macro_rules! add_wide_digits {
    ($name:ident, $or_null:ident, $t:ty) => {
        per_isa! {
            /// Adds `(value - min) * stride`, in 64 bits, to each key.
            pub(crate) fn $name(values: &[$t], digit: Digit, keys: &mut [u64]) {
                for (key, value) in keys.iter_mut().zip(values) {
                    let offset = i64::from(*value).wrapping_sub(digit.min) as u64;
                    *key = key.wrapping_add(offset.wrapping_mul(digit.stride));
                }
            }
        }

        per_isa! {
            /// Adds digits in 64 bits, with a separate digit for NULL rows.
            pub(crate) fn $or_null(values: &[$t], valid: &[u8], digit: Digit, keys: &mut [u64]) {
                for ((key, value), valid) in keys.iter_mut().zip(values).zip(valid) {
                    let offset = i64::from(*value).wrapping_sub(digit.min) as u64;
                    let offset = if *valid != 0 { offset } else { digit.null };
                    *key = key.wrapping_add(offset.wrapping_mul(digit.stride));
                }
            }
        }
    };
}
add_wide_digits!(add_wide_digits_i32, add_wide_digits_or_null_i32, i32);
add_wide_digits!(add_wide_digits_i64, add_wide_digits_or_null_i64, i64);

/// Looks up the values of codes. Codes past the end of the table give an unspecified value.
pub(crate) fn look_up(table: &[i32], codes: &[u32], out: &mut [i32]) {
    let n = codes.len().min(out.len());
    let (codes, out) = (&codes[..n], &mut out[..n]);
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") && i32::try_from(table.len()).is_ok() {
        // SAFETY: the feature was detected just above, and positions in the table fit 31 bits.
        unsafe { look_up_avx512(table, codes, out) };
        return;
    }
    look_up_portable(table, codes, out);
}

fn look_up_portable(table: &[i32], codes: &[u32], out: &mut [i32]) {
    for (out, code) in out.iter_mut().zip(codes) {
        *out = table.get(*code as usize).copied().unwrap_or(0);
    }
}

/// # Safety
/// `table` has at most 2^31 - 1 entries.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn look_up_avx512(table: &[i32], codes: &[u32], out: &mut [i32]) {
    use std::arch::x86_64::*;
    const LANES: usize = 16;
    let entries = _mm512_set1_epi32(table.len() as i32);
    let whole = codes.len() / LANES * LANES;
    for at in (0..whole).step_by(LANES) {
        // SAFETY: 16 codes and results from `at` on lie within the slices; only entries of the
        // table are read.
        unsafe {
            let codes = _mm512_loadu_si512(codes.as_ptr().add(at).cast());
            let inside = _mm512_cmplt_epu32_mask(codes, entries);
            let values = _mm512_mask_i32gather_epi32::<4>(_mm512_setzero_si512(), inside, codes, table.as_ptr().cast());
            _mm512_storeu_si512(out.as_mut_ptr().add(at).cast(), values);
        }
    }
    look_up_portable(table, &codes[whole..], &mut out[whole..]);
}

/// Moves the values whose bit is set to the front, in order. The values behind them are arbitrary.
pub(crate) fn compress(values: &mut [u32; crate::VECTOR_ROWS], mask: &Mask) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("popcnt") {
        // SAFETY: the features were detected just above.
        unsafe { compress_avx512(values, mask) };
        return;
    }
    compress_portable(values, mask);
}

fn compress_portable(values: &mut [u32; crate::VECTOR_ROWS], mask: &Mask) {
    let mut n = 0;
    for (i, word) in mask.iter().enumerate() {
        for lane in 0..LANES {
            values[n % crate::VECTOR_ROWS] = values[i * LANES + lane];
            n += (word >> lane & 1) as usize;
        }
    }
}

/// Processes 16 values at a time: compresses the wanted ones in a register and stores the whole
/// register. A store only overwrites values that have been read, since no value moves back.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,popcnt")]
fn compress_avx512(values: &mut [u32; crate::VECTOR_ROWS], mask: &Mask) {
    use std::arch::x86_64::*;
    let values = values.as_mut_ptr();
    let mut n = 0;
    for (i, word) in mask.iter().enumerate() {
        for half in 0..2 {
            let bits = (word >> (16 * half)) as u16;
            // SAFETY: 16 values from a multiple of 16 below 1,024; n is at most that position.
            unsafe {
                let all = _mm512_loadu_si512(values.add(i * LANES + 16 * half).cast());
                _mm512_storeu_si512(values.add(n).cast(), _mm512_maskz_compress_epi32(bits, all));
            }
            n += bits.count_ones() as usize;
        }
    }
}

per_isa! {
    /// Clears the bits that are not set in `other`. Returns the number of bits left.
    pub(crate) fn and_count(mask: &mut Mask, other: &Mask) -> u32 {
        mask.iter_mut().zip(other).map(|(mask, other)| { *mask &= other; mask.count_ones() }).sum()
    }
}

/// Writes the positions of a mask's ones in order, each increased by `base`. Returns their number.
pub(crate) fn places_of_mask(mask: &Mask, base: u16, out: &mut Places) -> usize {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vbmi2")
        && is_x86_feature_detected!("popcnt")
    {
        // SAFETY: the features were detected just above.
        return unsafe { places_of_mask_avx512(mask, base, out) };
    }
    places_of_mask_portable(mask, base, out)
}

fn places_of_mask_portable(mask: &Mask, base: u16, out: &mut Places) -> usize {
    let mut n = 0;
    for (i, word) in mask.iter().enumerate() {
        let mut word = *word;
        while word != 0 {
            out[n] = base + (i * LANES) as u16 + word.trailing_zeros() as u16;
            word &= word - 1;
            n += 1;
        }
    }
    n
}

/// Processes 32 positions at a time: compresses the wanted ones in a register and stores the whole
/// register. Later stores overwrite the rest.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,popcnt")]
fn places_of_mask_avx512(mask: &Mask, base: u16, out: &mut Places) -> usize {
    use std::arch::x86_64::*;
    let mut n = 0;
    let lanes = _mm512_set_epi16(
        31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2,
        1, 0,
    );
    let mut rows = _mm512_add_epi16(lanes, _mm512_set1_epi16(base as i16));
    for word in mask {
        // Always stored and kept if wanted: there is no branch to mispredict.
        let pressed = _mm512_maskz_compress_epi16(*word, rows);
        // SAFETY: n is at most the number of rows before this word, so that 32 more fit.
        unsafe { _mm512_storeu_si512(out.as_mut_ptr().add(n).cast(), pressed) };
        n += word.count_ones() as usize;
        rows = _mm512_add_epi16(rows, _mm512_set1_epi16(LANES as i16));
    }
    n
}

/// Buffer for the positions of a vector's rows, with room for a whole store past the last one.
pub(crate) type Places = [u16; crate::VECTOR_ROWS + 32];

/// Writes the positions of the ones in `keep`, in order. Returns their number.
pub(crate) fn places(keep: &[u8], out: &mut Places) -> usize {
    places_of_mask(&mask_of(keep), 0, out)
}

/// Returns a bit per byte: 1 if the byte is not 0. Missing bytes count as 0.
pub(crate) fn mask_of(bytes: &[u8]) -> Mask {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vl") {
        // SAFETY: the features were detected just above.
        return unsafe { mask_of_avx512(bytes) };
    }
    mask_of_portable(bytes)
}

fn mask_of_portable(bytes: &[u8]) -> Mask {
    let mut mask = [0; LANES];
    for (word, bytes) in mask.iter_mut().zip(bytes.chunks(LANES)) {
        let bits = bytes.iter().enumerate().map(|(bit, byte)| u32::from(*byte != 0) << bit);
        *word = bits.fold(0, |word, bit| word | bit);
    }
    mask
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512bw,avx512vl")]
fn mask_of_avx512(bytes: &[u8]) -> Mask {
    use std::arch::x86_64::*;
    let mut mask = [0; LANES];
    let (chunks, rest) = bytes.as_chunks::<LANES>();
    for (word, bytes) in mask.iter_mut().zip(chunks) {
        // SAFETY: 32 bytes are read from an array of 32.
        let bytes = unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) };
        *word = _mm256_test_epi8_mask(bytes, bytes);
    }
    if let Some(word) = mask.get_mut(chunks.len()) {
        *word = mask_of_portable(rest)[0];
    }
    mask
}

/// Looks up values in a bitmap whose bit `i` stands for `min + i`, of `count` values. Writes the
/// bit and `i`. For values outside, `i` is arbitrary.
pub(crate) fn probe_bits(values: &[i32], min: i32, count: u32, bits: &[u32], found: &mut [u8], places: &mut [i32]) {
    let n = values.len().min(found.len()).min(places.len());
    let (values, found, places) = (&values[..n], &mut found[..n], &mut places[..n]);
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && bits.len() as u64 * 32 >= u64::from(count)
    {
        // SAFETY: the features were detected just above, and the bitmap is as long as `count` says.
        unsafe { probe_bits_avx512(values, min, count, bits, found, places) };
        return;
    }
    probe_bits_portable(values, min, count, bits, found, places);
}

fn probe_bits_portable(values: &[i32], min: i32, count: u32, bits: &[u32], found: &mut [u8], places: &mut [i32]) {
    for ((value, found), place) in values.iter().zip(found).zip(places) {
        let offset = value.wrapping_sub(min) as u32;
        let word = if offset < count { bits.get(offset as usize / 32).copied().unwrap_or(0) } else { 0 };
        *found = (word >> (offset % 32) & 1) as u8;
        *place = offset as i32;
    }
}

/// Processes 16 values at a time, and gathers the words of those within the bitmap.
///
/// # Safety
/// `bits` has at least `count` bits.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn probe_bits_avx512(values: &[i32], min: i32, count: u32, bits: &[u32], found: &mut [u8], places: &mut [i32]) {
    use std::arch::x86_64::*;
    const LANES: usize = 16;
    let whole = values.len() / LANES * LANES;
    let (mins, counts, ones) = (_mm512_set1_epi32(min), _mm512_set1_epi32(count as i32), _mm512_set1_epi32(1));
    for at in (0..whole).step_by(LANES) {
        // SAFETY: 16 values from `at` on lie within the slice.
        let values = unsafe { _mm512_loadu_si512(values.as_ptr().add(at).cast()) };
        let offsets = _mm512_sub_epi32(values, mins);
        let inside = _mm512_cmplt_epu32_mask(offsets, counts);
        let words = _mm512_srli_epi32::<5>(offsets);
        // SAFETY: only words of offsets below `count` are read, and the caller guarantees that
        // these exist.
        let words =
            unsafe { _mm512_mask_i32gather_epi32::<4>(_mm512_setzero_si512(), inside, words, bits.as_ptr().cast()) };
        let bit = _mm512_sllv_epi32(ones, _mm512_and_si512(offsets, _mm512_set1_epi32(31)));
        let hits = _mm512_test_epi32_mask(words, bit);
        // SAFETY: `found` and `places` are as long as `values`.
        unsafe {
            _mm_storeu_si128(found.as_mut_ptr().add(at).cast(), _mm_maskz_set1_epi8(hits, 1));
            _mm512_storeu_si512(places.as_mut_ptr().add(at).cast(), offsets);
        }
    }
    probe_bits_portable(&values[whole..], min, count, bits, &mut found[whole..], &mut places[whole..]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::VECTOR_ROWS;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn places_are_those_of_ones(keep in proptest::collection::vec(0u8..2, 0..=VECTOR_ROWS)) {
            let expected: Vec<u16> = (0..keep.len()).filter(|i| keep[*i] == 1).map(|i| i as u16).collect();
            let mut out = [0; VECTOR_ROWS + 32];
            let n = places(&keep, &mut out);
            prop_assert_eq!(&out[..n], &expected[..]);
            let n = places_of_mask_portable(&mask_of_portable(&keep), 0, &mut out);
            prop_assert_eq!(&out[..n], &expected[..]);
        }

        #[test]
        fn places_are_those_of_a_mask(words in proptest::collection::vec(any::<u32>(), LANES), base in 0u16..64) {
            let mask: Mask = std::array::from_fn(|i| words[i] & words[31 - i].rotate_left(7));
            let base = base * VECTOR_ROWS as u16;
            let is_set = |i: &usize| mask[i / 32] >> (i % 32) & 1 == 1;
            let expected: Vec<u16> = (0..VECTOR_ROWS).filter(is_set).map(|i| base + i as u16).collect();
            let mut out = [0; VECTOR_ROWS + 32];
            let n = places_of_mask(&mask, base, &mut out);
            prop_assert_eq!(&out[..n], &expected[..]);
            let n = places_of_mask_portable(&mask, base, &mut out);
            prop_assert_eq!(&out[..n], &expected[..]);
        }

        #[test]
        fn values_of_a_mask_are_pressed_together(words in proptest::collection::vec(any::<u32>(), LANES)) {
            let mask: Mask = std::array::from_fn(|i| words[i] | words[31 - i].rotate_left(7));
            let values: [u32; VECTOR_ROWS] = std::array::from_fn(|i| i as u32 * 7);
            let is_set = |i: &usize| mask[i / 32] >> (i % 32) & 1 == 1;
            let expected: Vec<u32> = (0..VECTOR_ROWS).filter(is_set).map(|i| values[i]).collect();
            let (mut a, mut b) = (values, values);
            compress(&mut a, &mask);
            compress_portable(&mut b, &mask);
            prop_assert_eq!(&a[..expected.len()], &expected[..]);
            prop_assert_eq!(&b[..expected.len()], &expected[..]);
        }

        #[test]
        fn codes_are_looked_up(table: Vec<i32>, codes in proptest::collection::vec(0u32..200, 0..100)) {
            let mut out = vec![7; codes.len()];
            look_up(&table, &codes, &mut out);
            for (code, out) in codes.iter().zip(&out) {
                prop_assert_eq!(*out, table.get(*code as usize).copied().unwrap_or(0));
            }
        }

        #[test]
        fn bits_of_offsets_are_found(
            delta in -40i32..40, bits in proptest::collection::vec(any::<u32>(), 1..40), short in 0u32..32,
            among: Mask, sparser: Mask,
        ) {
            let count = bits.len() as u32 * 32 - short;
            let offsets: [u32; VECTOR_ROWS] = std::array::from_fn(|i| i as u32 * 3);
            let expected: Mask = std::array::from_fn(|word| (0..32).map(|lane| {
                let at = offsets[word * 32 + lane] as i64 + i64::from(delta);
                let is_set = (0..i64::from(count)).contains(&at) && bits[at as usize / 32] >> (at % 32) & 1 == 1;
                u32::from(is_set) << lane
            }).sum());
            let set = OffsetBits { delta: delta as u32, count, bits: &bits };
            let mut out = [7; LANES];
            mask_bits_portable(&offsets, set, &mut out);
            prop_assert_eq!(out, expected);
            let sparse = std::array::from_fn(|word| among[word] & sparser[word]);
            let edge = std::array::from_fn(|word| if word < LANES - 1 { 0 } else { u32::MAX });
            for among in [among, sparse, edge, [0; LANES], [u32::MAX; LANES]] {
                for few in [false, true] {
                    mask_bits(&offsets, set, &among, few, &mut out);
                    for (word, (out, expected)) in out.iter().zip(&expected).enumerate() {
                        prop_assert_eq!(out & among[word], expected & among[word]);
                    }
                }
            }
        }

        #[test]
        fn bits_are_found(
            values in proptest::collection::vec(-40i32..200, 0..100),
            min in -20i32..20,
            bits in proptest::collection::vec(any::<u32>(), 1..4),
            short in 0u32..32,
        ) {
            let count = bits.len() as u32 * 32 - short;
            let mut found = vec![2; values.len()];
            let mut places = vec![0; values.len()];
            probe_bits(&values, min, count, &bits, &mut found, &mut places);
            for (i, value) in values.iter().enumerate() {
                let offset = i64::from(*value) - i64::from(min);
                let is_in = (0..i64::from(count)).contains(&offset);
                let expected = is_in && bits[offset as usize / 32] >> (offset % 32) & 1 == 1;
                prop_assert_eq!(found[i] == 1, expected);
                if expected {
                    prop_assert_eq!(i64::from(places[i]), offset);
                }
            }
        }

        #[test]
        fn within_is_both_comparisons(values: Vec<i32>, a: i32, b: i32) {
            let (min, max) = (a.min(b), a.max(b));
            let mut out = vec![2; values.len()];
            within_i32(&values, min, max, &mut out);
            for (value, out) in values.iter().zip(&out) {
                prop_assert_eq!(*out == 1, (min..=max).contains(value));
            }
        }
    }
}
