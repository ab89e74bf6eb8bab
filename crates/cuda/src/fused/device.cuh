// What every generated kernel begins with: packed columns, keys and tables, exact sums, SQL's arithmetic.
//
// A warp takes a vector of 1,024 rows; its lane l has rows l, l + 32, ..., one for each bit of its mask of live rows.
// All columns share this geometry, so that a lane meets the same rows in each of them. Widths are template parameters:
// shifts and masks of an unrolled column are constants, which is what makes it as fast as memory.
//
// Everything that kernels add to starts as zeros, so that one fill prepares it: the least and the greatest of values
// are kept as numbers of which zero is the neutral one (`greatest`, `least`), a failed check as the complement of its
// number, rows in chains count from 1.
//
// The same text is compiled for the host, whose `host.h` comes before it.

#ifndef ONEHOP_HOST
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;
typedef long long i64;
typedef __int128 i128;
typedef unsigned __int128 u128;
#define KERNEL(name, Args) extern "C" __global__ void __launch_bounds__(THREADS) name(const __grid_constant__ Args A)
#define SHARED(name) extern __shared__ u64 name[]
#define INLINE __device__ __forceinline__
#define BLOCK_WORDS(name) __shared__ u64 name[32] // one for each warp
#define WARP_QUEUE(name)                                                                                              \
    __shared__ u16 name##_of_block[THREADS / LANES * QUEUE_ROWS];                                                     \
    u16* const name = name##_of_block + threadIdx.x / LANES * QUEUE_ROWS
// A load that is carried out where it stands. Others are put off by the compiler until their value is needed, which takes
// fewer registers, and has a warp wait for memory over and over.
INLINE u32 load_now(const u32* at) {
    u32 value;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(at));
    return value;
}
// A value that the compiler knows nothing of: it is kept as it is, and not made of something else over and over.
INLINE u32 opaque(u32 value) {
    asm("" : "+r"(value));
    return value;
}
INLINE const u32* opaque(const u32* value) {
    asm("" : "+l"(value));
    return value;
}
// Words that other threads write at the same time, with atomic operations or with these: whoever reads finds what one of
// them wrote, whole, and not what happened to be in a cache.
INLINE u64 relaxed(const u64* word) {
    u64 value;
    asm volatile("ld.relaxed.gpu.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
}
INLINE void set_relaxed(u64* word, u64 to) {
    asm volatile("st.relaxed.gpu.u64 [%0], %1;" : : "l"(word), "l"(to) : "memory");
}
// The same of words in shared memory.
INLINE u64 relaxed_near(const u64* word) {
    u64 value;
    const u32 at = (u32)__cvta_generic_to_shared(word);
    asm volatile("ld.relaxed.cta.shared.u64 %0, [%1];" : "=l"(value) : "r"(at) : "memory");
    return value;
}
INLINE void set_relaxed_near(u64* word, u64 to) {
    const u32 at = (u32)__cvta_generic_to_shared(word);
    asm volatile("st.relaxed.cta.shared.u64 [%0], %1;" : : "r"(at), "l"(to) : "memory");
}
#endif

#define LANES 32
#define VECTOR_ROWS 1024
#define ALL_LANES 0xffffffffu
// Rows that a queue of a warp has room for: less than 32 wait when up to 32 come.
#define QUEUE_ROWS 64

// ---- what lies in memory: as image.rs and run.rs have it ------------------------------------------------------------

// A column of a morsel. `form` says what the rest means.
struct Part {
    u64 low, high; // packed words, or values; those above 32 bits
    u64 valid;     // a bit a row in lane geometry; 0: every row has a value
    u64 table;     // what codes stand for
    i64 base;      // added to what is packed, wrapped around, and then
    u64 bias;      // this; how many codes there are; how far steps are apart
    u32 form;
    u32 reserved;
};
static_assert(sizeof(Part) == 56, "as in image.rs");

struct Morsel {
    u32 number; // of the parts
    u32 rows;
};
static_assert(sizeof(Morsel) == 8, "as in run.rs");

// What a kernel says beside its results.
struct Status {
    u64 failed;   // complement of the least number of a failed check
    u64 rows;     // that came to the sink, or positions given out there
    u64 keyless;  // whether some had no key
    u64 repeated; // whether a key came twice
    u64 full;     // whether a table had no room
    // Where units are taken as they come: the first that no warp of this launch has taken.
    u64 next_unit;
};
static_assert(sizeof(Status) == 48, "as in run.rs");
// Behind it: rows out of each step, where they are counted, and the ends of what a table was built of.
INLINE u64* more_of(Status* status) { return (u64*)(status + 1); }

// Vectors of a morsel, at most. A unit of work is a part of them.
#define MORSEL_VECTORS 64

// Forms: what a part holds, times 64, plus the width of a packed one less 1.
#define FORM_SAME 0     // the base in every row
#define FORM_NULL 1     // nothing: every row is NULL
#define FORM_ROWS 2     // base + number of the row
#define FORM_I32 3
#define FORM_I64 4
#define FORM_I128 5
#define FORM_F64 6
#define FORM_ANY 7      // packed, of a width that is known when it is read: `reserved`
#define FORM_PACKED 64  // base + low
#define FORM_STEPS 128  // base + low * bias
#define FORM_WIDE 192   // base + (high, low); the width is that of both
#define FORM_CODES 256  // table of i32 at low
#define FORM_CODES64 320

// ---- rows -----------------------------------------------------------------------------------------------------------

// ---- codes: what they stand for is asked about once, and rows ask a bit for their code --------------------------------

// Up to 32 values of a table of a segment.
struct CodeWord {
    u64 values;
    u32 first; // the number of the table's first word
    u16 count;
    u16 is_wide; // 64 bits each
};
static_assert(sizeof(CodeWord) == 16, "as in image.rs");

// Of the codes of a table, those that something holds of. If there are as many as lie between the least and the greatest,
// as with a year of dates, a row need not look at a bit.
struct CodeRun {
    u32 not_least; // the complement, so that it starts as 0
    u32 end;       // the greatest, plus 1
    u32 count;
    u32 unused;
};
static_assert(sizeof(CodeRun) == 16, "as in run.rs");

// Which of the values of word `w` `f` holds of; the table's run is at the place of its first word.
template <class F> INLINE u32 code_bits(const CodeWord& of, u32 w, CodeRun* runs, F f) {
    u32 bits = 0;
    for (u32 n = 0; n < of.count; n++) {
        const i64 value = of.is_wide ? ((const i64*)of.values)[n] : (i64)((const i32*)of.values)[n];
        bits |= (u32)f(value) << n;
    }
    if (bits) {
        const u32 code = (w - of.first) * 32;
        atomicMax(&runs[of.first].not_least, ~(code + __ffs((int)bits) - 1));
        atomicMax(&runs[of.first].end, code + 32 - __clz((int)bits));
        atomicAdd(&runs[of.first].count, (u32)__popc(bits));
    }
    return bits;
}

// Which rows of a lane there are, of a vector that has so many.
INLINE u32 lane_rows(u32 rows, u32 lane) {
    if (rows >= VECTOR_ROWS) return ~0u;
    const u32 mine = (rows + LANES - 1 - lane) / LANES;
    return mine >= 32 ? ~0u : (1u << mine) - 1;
}

// ---- packed columns -------------------------------------------------------------------------------------------------

template <int W> INLINE u32 mask_of() {
    if constexpr (W >= 32) return ~0u;
    else return (1u << W) - 1;
}

// The words of a lane in a vector.
template <int W> INLINE const u32* words(u64 plane, u32 vector, u32 lane) {
    return (const u32*)plane + (u64)vector * (LANES * W) + lane;
}

// Value i of a lane: for the rows that are left.
template <int W> INLINE u32 at(const u32* lane_words, u32 i) {
    const u32 bit = i * W, word = bit / 32, shift = bit % 32;
    const u32 low = __ldg(lane_words + word * LANES);
    u32 high = 0;
    if constexpr (32 % W != 0) {
        if (shift + W > 32) high = __ldg(lane_words + (word + 1) * LANES);
    }
    return __funnelshift_r(low, high, shift) & mask_of<W>();
}

INLINE u32 at_any(u64 plane, u32 width, u32 vector, u32 lane, u32 i) {
    const u32* lane_words = (const u32*)plane + (u64)vector * LANES * width + lane;
    const u32 bit = i * width, word = bit / 32, shift = bit % 32;
    const u32 low = __ldg(lane_words + word * LANES);
    const u32 high = shift + width > 32 ? __ldg(lane_words + (word + 1) * LANES) : 0;
    const u32 value = __funnelshift_r(low, high, shift);
    return width >= 32 ? value : value & ((1u << width) - 1);
}

// A whole column of a vector: W coalesced words a lane, its 32 values out of registers at constant places.
template <int W> struct Column {
    u32 word[W];
    INLINE void load(const u32* lane_words) {
#pragma unroll
        for (int w = 0; w < W; w++) word[w] = __ldg(lane_words + w * LANES);
    }
    // All of it at once, and beside other columns that are.
    INLINE void load_now(const u32* lane_words) {
#pragma unroll
        for (int w = 0; w < W; w++) word[w] = ::load_now(lane_words + w * LANES);
    }
    template <int I> INLINE u32 get() const {
        constexpr int bit = I * W, w = bit / 32, shift = bit % 32;
        u32 value;
        if constexpr (shift + W > 32) value = __funnelshift_r(word[w], word[w + 1], shift);
        else value = word[w] >> shift;
        return value & mask_of<W>();
    }
};

template <int I, int W, class F> INLINE void each_value(const Column<W>& column, F f) {
    if constexpr (I < 32) {
        f(I, column.template get<I>());
        each_value<I + 1, W>(column, f);
    }
}

// A function of each row of a lane, which knows its number when it is compiled.
template <int I> struct Row {
    static constexpr int number = I;
};
template <int I, class F> INLINE void each_row(F f) {
    if constexpr (I < 32) {
        f(Row<I>());
        each_row<I + 1>(f);
    }
}

// The bits of the rows for which `f` holds of what is packed, where `f` is next to nothing, and has no branch: it is
// there 32 times. Rows that are not live are asked about as well, and hold anything.
template <int W, class F> INLINE u32 where_packed(const Part& p, u32 vector, u32 lane, F f) {
    Column<W> column;
    column.load(words<W>(p.low, vector, lane));
    u32 keep = 0;
    each_value<0, W>(column, [&](int i, u32 value) { keep |= (u32)f(value) << i; });
    return keep;
}

// The same of live rows alone: for an `f` that goes to memory for its answer.
template <int W, class F> INLINE u32 where_live(const Part& p, u32 vector, u32 lane, u32 live, F f) {
    Column<W> column;
    column.load(words<W>(p.low, vector, lane));
    u32 keep = 0;
    each_value<0, W>(column, [&](int i, u32 value) {
        if (live >> i & 1) keep |= (u32)f(value) << i;
    });
    return keep;
}

// The last bits of what `f` says of each row of a lane, by its number and what is packed. They are shifted into their places
// one after the other, which takes fewer instructions than to test each and to set it where it belongs.
template <int W, class F> INLINE u32 where_shifted(const Part& p, u32 vector, u32 lane, F f) {
    Column<W> column;
    column.load(words<W>(p.low, vector, lane));
    u32 keep = 0;
    each_value<0, W>(column, [&](int i, u32 value) { keep = __funnelshift_r(keep, f(i, value), 1); });
    return keep;
}

// The rows of a lane whose codes are among those that something holds of.
template <int W, bool is_first>
INLINE u32 where_code(const u32* bits, const CodeRun& run, const Part& p, u32 vector, u32 lane, u32 live) {
    const u32 least = ~run.not_least, count = run.count;
    if (count == 0) return 0;
    if (run.end - least == count) {
        return where_packed<W>(p, vector, lane, [&](u32 code) { return code - least < count; });
    }
    const auto of = [&](u32 code) { return __ldg(bits + (code >> 5)) >> (code & 31) & 1; };
    if constexpr (is_first) return where_packed<W>(p, vector, lane, of);
    else return where_live<W>(p, vector, lane, live, of);
}

// The same of any function of a row.
template <class F> INLINE u32 where_rows(u32 live, F f) {
    u32 keep = 0;
    while (live) {
        const u32 i = __ffs((int)live) - 1;
        live &= live - 1;
        keep |= (u32)f(i) << i;
    }
    return keep;
}

INLINE u64 row_of(u32 vector, u32 lane, u32 i) { return (u64)vector * VECTOR_ROWS + i * LANES + lane; }

// Of what no kernel that reads it writes: a load need not wait for what was stored before it, not even in shared memory.
template <class T> INLINE T load(u64 address, u64 at) {
    if constexpr (sizeof(T) <= 8) return __ldg((const T*)address + at);
    else return ((const T*)address)[at];
}

// A row's value, of each form. Sums wrap around as they were written.
template <class T> INLINE T stored(const Part& p, u64 offset) {
    if constexpr (sizeof(T) == 16) return (T)(i64)((u64)p.base + offset) + (T)p.bias;
    else return (T)((u64)p.base + offset + p.bias);
}
template <class T> INLINE T get_same(const Part& p) { return stored<T>(p, 0); }
template <class T, int W> INLINE T get_packed(const Part& p, u32 vector, u32 lane, u32 i) {
    return stored<T>(p, at<W>(words<W>(p.low, vector, lane), i));
}
template <class T> INLINE T get_any(const Part& p, u32 vector, u32 lane, u32 i) {
    const u32 width = p.reserved;
    u64 offset = at_any(p.low, width < 32 ? width : 32, vector, lane, i);
    if (width > 32) offset |= (u64)at_any(p.high, width - 32, vector, lane, i) << 32;
    return stored<T>(p, offset);
}
template <class T, int W> INLINE T get_wide(const Part& p, u32 vector, u32 lane, u32 i) {
    const u64 low = at<32>(words<32>(p.low, vector, lane), i);
    const u64 high = at<W - 32>(words<W - 32>(p.high, vector, lane), i);
    return stored<T>(p, high << 32 | low);
}
// Multiplied and added in as many bits as the value has, wrapped around: the value itself fits.
template <class T> INLINE T stepped(i64 base, u64 step, u32 code) {
    if constexpr (sizeof(T) <= 4) return (T)((u32)base + code * (u32)step);
    else if constexpr (sizeof(T) == 8) return (T)((u64)base + code * step);
    else return (T)(i64)((u64)base + code * step);
}
template <class T, int W> INLINE T get_steps(const Part& p, u32 vector, u32 lane, u32 i) {
    return stepped<T>(p.base, p.bias, at<W>(words<W>(p.low, vector, lane), i));
}
template <class T, class E, int W> INLINE T get_code(const Part& p, u32 vector, u32 lane, u32 i) {
    return (T)load<E>(p.table, at<W>(words<W>(p.low, vector, lane), i));
}
template <class T, class E> INLINE T get_plain(const Part& p, u32 vector, u32 lane, u32 i) {
    return (T)load<E>(p.low, row_of(vector, lane, i));
}
template <class T> INLINE T get_row(const Part& p, u32 vector, u32 lane, u32 i) {
    return stored<T>(p, row_of(vector, lane, i));
}

// A bit for each row of a lane that has a value.
INLINE u32 valid_rows(const Part& p, u32 vector, u32 lane) {
    if (p.form == FORM_NULL) return 0;
    return p.valid ? __ldg((const u32*)p.valid + (u64)vector * LANES + lane) : ~0u;
}

// ---- ranges of what is packed ---------------------------------------------------------------------------------------

// Values from `low` to `high`, as offsets of a part with values of `bits` bits. Empty: `count` is 0 and `all` is not set.
struct Range {
    u32 low, span;
    bool none;
};

template <int W> INLINE Range range_of(const Part& p, i64 low, i64 high) {
    Range range;
    const i128 base = (i128)p.base + p.bias;
    i128 from = (i128)low - base, to = (i128)high - base;
    const i128 most = mask_of<W>();
    if (from < 0) from = 0;
    if (to > most) to = most;
    range.none = from > to;
    range.low = (u32)from, range.span = (u32)(to - from);
    return range;
}

template <int W> INLINE u32 within(const Part& p, u32 vector, u32 lane, i64 low, i64 high) {
    const Range range = range_of<W>(p, low, high);
    if (range.none) return 0;
    return where_packed<W>(p, vector, lane, [&](u32 value) { return value - range.low <= range.span; });
}

// The same of steps: the first that is not less than `low`, and the last that is not greater than `high`.
template <int W> INLINE u32 within_steps(const Part& p, u32 vector, u32 lane, i64 low, i64 high) {
    if (high < p.base || low > high) return 0;
    const u64 from = low <= p.base ? 0 : ((u64)low - (u64)p.base - 1) / p.bias + 1, most = mask_of<W>();
    const u64 to = ((u64)high - (u64)p.base) / p.bias, last = to < most ? to : most;
    if (from > last) return 0;
    return where_packed<W>(p, vector, lane, [&](u32 code) { return code - (u32)from <= (u32)(last - from); });
}

// How many values of a table, which ascend, are less than one, or not greater.
template <class T, bool or_equal> INLINE u32 count_below(u64 table, u32 count, i64 value) {
    u32 from = 0;
    while (count > 0) {
        const u32 half = count / 2;
        const i64 there = ((const T*)table)[from + half];
        if (or_equal ? there <= value : there < value) from += half + 1, count -= half + 1;
        else count = half;
    }
    return from;
}

// Codes are in the order of what they stand for, so that a range of values is one of codes.
template <class T, int W> INLINE u32 within_codes(const Part& p, u32 vector, u32 lane, i64 low, i64 high) {
    const u32 from = count_below<T, false>(p.table, (u32)p.bias, low);
    const u32 to = count_below<T, true>(p.table, (u32)p.bias, high);
    if (from >= to) return 0;
    return where_packed<W>(p, vector, lane, [&](u32 code) { return code - from < to - from; });
}

// ---- keys and bitmaps -----------------------------------------------------------------------------------------------

INLINE bool bit(const u32* bits, u64 at) { return bits[at >> 5] >> (at & 31) & 1; }
INLINE bool bit_ldg(const u32* bits, u64 at) { return __ldg(bits + (at >> 5)) >> (at & 31) & 1; }

template <bool which, class A, class B> struct Conditional { using Type = A; };
template <class A, class B> struct Conditional<false, A, B> { using Type = B; };

// Which rows have a key in a bitmap that begins with the key `low`, and ends before `count` more: of all rows, or, if
// many are gone, of the live ones. `has_all` says that there is no other key, so that rows need not be compared.
template <int W, bool has_all, bool is_first, bool is_shared>
INLINE u32 where_bit(const u32* bits, i64 low, u64 count, const Part& p, u32 vector, u32 lane, u32 live) {
    const i128 from = (i128)p.base + p.bias - low; // the place of what is packed as 0
    const u32 last = (u32)(count - 1);
    if (!has_all && (from + mask_of<W>() < 0 || from > last)) return 0;
    // Wrapped around what lies below is far above, unless all 32 bits are there: then nothing is wrapped around. Whatever
    // there is, the bitmap is not left.
    using Place = typename Conditional<!has_all && (W >= 32), u64, u32>::Type;
    // Of a bitmap that is far away, the address of a word of the part's own: one that a constant says is read anew for
    // each row.
    const u32 skipped = has_all && !is_shared && from >= 0 && from <= last ? (u32)(i64)from & ~31u : 0;
    const u32* const words_of_part = is_shared ? bits : opaque(bits + skipped / 32);
    const Place base = (Place)(i64)from - skipped, end = last - skipped;
    return where_shifted<W>(p, vector, lane, [&](int i, u32 x) {
        const Place at = base + x;
        // A live row has a key that there is, if `has_all` says so.
        const u32 near = (u32)(has_all && is_first && at > end ? end : at), word = opaque(near >> 5);
        u32 found = 0;
        if ((is_first || live >> i & 1) && (has_all || at <= end)) {
            found = is_shared ? words_of_part[word] : __ldg(words_of_part + word);
        }
        return found >> (near & 31);
    });
}

// The same of steps. What lies below wraps around to behind all keys, for no key is greater than 64 bits go.
template <int W, bool has_all, bool is_first, bool is_shared>
INLINE u32 where_step_bit(const u32* bits, i64 low, u64 count, const Part& p, u32 vector, u32 lane, u32 live) {
    const u64 last = count - 1;
    const auto of = [&](u32 code) {
        const u64 at = (u64)stepped<i64>(p.base, p.bias, code) - (u64)low, near = at < last ? at : last;
        const bool is_set = is_shared ? bit(bits, near) : bit_ldg(bits, near);
        return has_all ? is_set : is_set & (at <= last);
    };
    if constexpr (is_first) return where_packed<W>(p, vector, lane, of);
    else return where_live<W>(p, vector, lane, live, of);
}

// How far a value is from the least of its part of a key; far too far if it is below.
INLINE u64 digit(i32 value, i64 least) { return (u64)(i64)value - (u64)least; }
INLINE u64 digit(i64 value, i64 least) { return (u64)value - (u64)least; }
INLINE u64 digit(bool value, i64 least) { return (u64)value - (u64)least; }
INLINE u64 digit(i128 value, i64 least) {
    const u128 offset = (u128)value - (u128)(i128)least;
    return offset >> 64 ? ~0ull : (u64)offset;
}

#define NO_KEY (~0ull)

INLINE u64 mixed(u64 key) {
    key ^= key >> 32;
    key *= 0xd6e8feb86659fd93ull;
    key ^= key >> 32;
    key *= 0xd6e8feb86659fd93ull;
    return key ^ key >> 32;
}

// Whether a key is of one of the partitions that hashes make, by their high half, as slots are by the low one.
INLINE bool is_of(u64 key, u64 partition, u64 count) { return (mixed(key) >> 32) * count >> 32 == partition; }

// Where a key is in a table of open addressing, or NO_KEY.
INLINE u64 find(const u64* keys, u64 mask, u64 key) {
    for (u64 slot = mixed(key) & mask;; slot = (slot + 1) & mask) {
        const u64 there = keys[slot];
        if (there == key) return slot;
        if (there == NO_KEY) return NO_KEY;
    }
}

// Where a key is, or is put. NO_KEY if there is no room: tables are kept half empty, so that runs are short, and one
// that is longer than this means that it is all but full.
INLINE u64 place(u64* keys, u64 mask, u64 key) {
    u64 slot = mixed(key) & mask;
    for (u32 tries = 0; tries < 512; tries++) {
        u64 there = relaxed(keys + slot);
        if (there == NO_KEY) there = atomicCAS(keys + slot, NO_KEY, key);
        if (there == NO_KEY || there == key) return slot;
        slot = (slot + 1) & mask;
    }
    return NO_KEY;
}

// ---- aggregates -----------------------------------------------------------------------------------------------------

// Numbers of which the greatest is kept, and 0 is less than none.
INLINE u64 ordered(i64 value) { return (u64)value ^ 1ull << 63; }
INLINE u64 greatest(i64 value) { return ordered(value); }
INLINE u64 least(i64 value) { return ~ordered(value); }
INLINE i64 bits_of(double value) {
#ifdef ONEHOP_HOST
    return host::bits_of(value);
#else
    return __double_as_longlong(value);
#endif
}
// Doubles in the total order of IEEE 754.
INLINE i64 total(double value) {
    const i64 bits = bits_of(value);
    return bits ^ (i64)((u64)(bits >> 63) >> 1);
}
INLINE i64 compared(double value) { return total(value == 0 ? 0.0 : value); }

INLINE void add(u64* word, u64 by) { atomicAdd(word, by); }
// Two words, the low one first. Who makes the low one wrap around carries: each carry is somebody's.
INLINE void add_wide(u64* low, u64* high, u128 by) {
    const u64 part = (u64)by, before = atomicAdd(low, part);
    const u64 rest = (u64)(by >> 64) + (before + part < before);
    if (rest) atomicAdd(high, rest);
}
// The same in shared memory, where only halves of 32 bits are added by hardware: a word of 64 would be a loop. Values
// are small more often than not, and then the first half is all there is to add.
INLINE void add_near(u64* word, u64 by) {
    u32* const half = (u32*)word;
    const u32 part = (u32)by, before = atomicAdd(half, part);
    const u32 rest = (u32)(by >> 32) + (before + part < before);
    if (rest) atomicAdd(half + 1, rest);
}
INLINE void add_wide_near(u64* low, u64* high, u128 by) {
    u32 carry = 0;
    for (int half = 0; half < 4; half++) {
        u32* const at = (u32*)(half < 2 ? low : high) + half % 2;
        const u64 part = (u64)(u32)(by >> 32 * half) + carry;
        if ((u32)part) {
            const u32 before = atomicAdd(at, (u32)part);
            carry = (u32)(part >> 32) + ((u32)(before + (u32)part) < before);
        } else {
            carry = (u32)(part >> 32);
        }
    }
}
INLINE void raise(u64* word, u64 to) {
    if (relaxed(word) < to) atomicMax(word, to);
}
INLINE void raise_near(u64* word, u64 to) {
    if (relaxed_near(word) < to) atomicMax(word, to);
}
// The same of a variable.
INLINE void keep_greatest(u64& most, u64 value) { most = value > most ? value : most; }
INLINE void mark(u64* word) {
    if (!relaxed(word)) set_relaxed(word, 1);
}
INLINE void mark_near(u64* word) {
    if (!relaxed_near(word)) set_relaxed_near(word, 1);
}

// Whether a place in front of the groups, in shared memory, is a group's: it is of the first that comes.
INLINE bool owns(u64* owner, u64 group) {
    u64 of = relaxed_near(owner);
    if (of == NO_KEY) {
        of = atomicCAS(owner, NO_KEY, group);
        if (of == NO_KEY) of = group;
    }
    return of == group;
}

// Over a warp; all lanes are here.
INLINE u64 warp_sum(u64 value) {
    for (int by = 16; by; by >>= 1) value += __shfl_down_sync(ALL_LANES, value, by);
    return value;
}
// Of values of so many bits, which the first lane gets.
template <int BITS> INLINE u64 warp_total(u64 value) {
#if defined(ONEHOP_HOST) || __CUDA_ARCH__ < 800
    return warp_sum(value);
#else
    if constexpr (BITS <= 27) return __reduce_add_sync(ALL_LANES, (u32)value);
    else return warp_total<27>(value & 0x7ffffff) + (warp_total<BITS - 27>(value >> 27) << 27);
#endif
}
// The number of a unit that no other warp has; all lanes are here.
INLINE u64 taken_unit(Status* status, u32 lane) {
    u64 unit = 0;
    if (lane == 0) unit = atomicAdd(&status->next_unit, (u64)1);
    return __shfl_sync(ALL_LANES, unit, 0);
}
// Over a block, all of whose threads are here; its first one has the sum. A word that all warps of a grid add to is what
// they queue for: one of each block does it for the others.
INLINE u64 block_sum(u64 value) {
    BLOCK_WORDS(words);
    value = warp_sum(value);
    __syncthreads(); // nobody reads what was there before
    if (threadIdx.x % LANES == 0) words[threadIdx.x / LANES] = value;
    __syncthreads();
    if (threadIdx.x >= LANES) return 0;
    return warp_sum(threadIdx.x < blockDim.x / LANES ? words[threadIdx.x] : 0);
}
INLINE u128 warp_sum_wide(u128 value) {
    for (int by = 16; by; by >>= 1) {
        const u64 low = __shfl_down_sync(ALL_LANES, (u64)value, by);
        const u64 high = __shfl_down_sync(ALL_LANES, (u64)(value >> 64), by);
        value += (u128)high << 64 | low;
    }
    return value;
}
INLINE u64 warp_greatest(u64 value) {
    for (int by = 16; by; by >>= 1) {
        const u64 other = __shfl_down_sync(ALL_LANES, value, by);
        value = other > value ? other : value;
    }
    return value;
}

// ---- arithmetic -----------------------------------------------------------------------------------------------------

INLINE void fail(Status* status, u64 check) { raise(&status->failed, ~check); }

template <class T> INLINE T quotient(T a, T b) { return b == -1 ? (T)(0 - (u128)a) : a / b; }
template <class T> INLINE T remainder_of(T a, T b) { return b == -1 ? 0 : a % b; }
INLINE double remainder_of(double a, double b) { return fmod(a, b); }

INLINE i128 made(u64 low, u64 high) { return (i128)((u128)high << 64 | low); }
#define WIDE_MIN ((i128)((u128)1 << 127))

// Exact, or false.
INLINE bool add_fits(i128 a, i128 b, i128& out) {
    out = (i128)((u128)a + (u128)b);
    return ((a ^ out) & (b ^ out)) >= 0;
}
INLINE bool sub_fits(i128 a, i128 b, i128& out) {
    out = (i128)((u128)a - (u128)b);
    return ((a ^ b) & (a ^ out)) >= 0;
}
INLINE bool mul_fits(i128 a, i128 b, i128& out) {
    out = (i128)((u128)a * (u128)b);
    if (a == 0 || b == 0) return true;
    if ((a == -1 && b == WIDE_MIN) || (b == -1 && a == WIDE_MIN)) return false;
    return quotient(out, b) == a;
}
INLINE bool div_fits(i128 a, i128 b, i128& out) {
    out = 0;
    if (b == -1 && a == WIDE_MIN) return false;
    out = quotient(a, b);
    return true;
}
INLINE bool rem_fits(i128 a, i128 b, i128& out) {
    out = 0;
    if (b == -1 && a == WIDE_MIN) return false;
    out = remainder_of(a, b);
    return true;
}

// Half away from zero.
template <class T> INLINE T rounded(T value, T divisor) {
    const T whole = value / divisor, rest = value % divisor;
    const T half = divisor - divisor / 2;
    return whole + (rest >= half ? 1 : rest <= -half ? -1 : 0);
}

INLINE bool in_list(i64 value, const i64* list, u64 count) {
    u64 from = 0;
    while (count > 0) {
        const u64 half = count / 2;
        if (list[from + half] < value) from += half + 1, count -= half + 1;
        else count = half;
    }
    return list[from] == value; // an entry behind the last is one of them
}
INLINE bool in_list(i128 value, const i64* list, u64 count) {
    return value == (i128)(i64)value && in_list((i64)value, list, count);
}
INLINE bool in_list(i32 value, const i64* list, u64 count) { return in_list((i64)value, list, count); }

// A part of a day since 1970-01-01: 0 the year, 1 the quarter, 2 the month, 3 the day (Hinnant, "chrono-compatible
// low-level date algorithms").
template <int PART> INLINE i32 date_part(i32 days) {
    const i64 shifted = (i64)days + 719468;
    const i64 era = (shifted >= 0 ? shifted : shifted - 146096) / 146097;
    const i32 day_of_era = (i32)(shifted - era * 146097);
    const i32 year = (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146096) / 365;
    const i32 day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    const i32 shifted_month = (5 * day_of_year + 2) / 153;
    const i32 month = shifted_month < 10 ? shifted_month + 3 : shifted_month - 9;
    if constexpr (PART == 0) return (i32)(year + era * 400) + (month <= 2);
    else if constexpr (PART == 1) return (month + 2) / 3;
    else if constexpr (PART == 2) return month;
    else return day_of_year - (153 * shifted_month + 2) / 5 + 1;
}

// ---------------------------------------------------------------------------------------------------------------------
