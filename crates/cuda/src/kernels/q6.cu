// TPC-H Query 6: sum(l_extendedprice * l_discount) of the rows that three filters leave, over blocks of packed columns
// as segments store them, and over pages of rows.
//
// Each thread adds its products up exactly, in 128 bits, and gives them to one of several sums as four limbs of 32 bits,
// each in a word of 64, so that no carry is ever lost; the host puts them together. A thread goes on to further items
// in steps of all threads: any grid gives the same answer, also that of one thread.
//
// What is read is only as long as the host says: offsets that come from the data are compared with it first, and what
// does not fit is counted as damage.
//
// The structures are those of q6.rs.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;
typedef long long i64;
typedef __int128 i128;
typedef unsigned __int128 u128;

#ifndef KERNEL // else the host's
#define KERNEL(name, Args) extern "C" __global__ void name(const Args args)
#endif

#define LANES 32
#define VECTOR_ROWS 1024

// Sums that threads are spread over, so that they do not queue for one. The word behind them counts damage.
#define SUMS 64

__device__ void give(u64* sums, u64 number, u128 sum) {
    if (sum == 0) return;
    u64* at = sums + number % SUMS * 4;
    for (int limb = 0; limb < 3; limb++) {
        u64 part = (u32)(sum >> (32 * limb));
        if (part != 0) atomicAdd(at + limb, part);
    }
    u64 top = (u64)(i64)((i128)sum >> 96);
    if (top != 0) atomicAdd(at + 3, top);
}

__device__ void damaged(u64* sums) { atomicAdd(sums + SUMS * 4, (u64)1); }

// ---------------------------------------------------------------------------------------------------------------------

#ifdef SHIPDATE_BITS

struct Column {
    u64 at;        // words from the start of the column's bytes to the first vector
    i64 base;      // added to codes
    u32 min, span; // codes that pass: min to min + span
    u32 stored;    // 0: every code is 0
    u32 reserved;
};

struct Piece {
    u32 rows; // up to 64 vectors, of which the last may be short
    u32 reserved;
    Column columns[4]; // shipdate, quantity, discount, extendedprice
};

struct SegmentArgs {
    const Piece* pieces;
    u64 count;
    const u32* words[4];
    const i64* values[2]; // by code, of discount and extendedprice, where they have dictionaries
    u32 entries[2];
    u64* sums;
};

static_assert(sizeof(Column) == 32 && sizeof(Piece) == 136 && sizeof(SegmentArgs) == 80, "as in q6.rs");

// Value i of a lane of a packed vector.
template <int BITS> __device__ u32 code_at(const u32* vector, u32 lane, u32 i) {
    if (BITS == 0) return 0;
    const u32 bit = i * BITS, word = bit / 32, shift = bit % 32;
    u32 code = vector[word * LANES + lane] >> shift;
    if (shift + BITS > 32) code |= vector[(word + 1) * LANES + lane] << ((32 - shift) % 32);
    return BITS == 32 ? code : code & ((1u << (BITS % 32)) - 1);
}

// Which rows of a lane pass.
template <int BITS> __device__ u32 passing(const Column& column, const u32* words, u32 vector, u32 lane) {
    if (BITS == 0 || !column.stored) return 0u - column.min <= column.span ? ~0u : 0;
    const u32* packed = words + column.at + (u64)vector * LANES * BITS;
    u32 pass = 0;
#pragma unroll
    for (u32 i = 0; i < 32; i++) {
        pass |= (u32)(code_at<BITS>(packed, lane, i) - column.min <= column.span) << i;
    }
    return pass;
}

template <int BITS>
__device__ i64 value_at(const SegmentArgs& args, const Column& column, const u32* words, u32 vector, u32 lane, u32 i,
                        int dictionary) {
    u32 code = 0;
    if (BITS != 0 && column.stored) code = code_at<BITS>(words + column.at + (u64)vector * LANES * BITS, lane, i);
    const i64 value = (i64)((u64)column.base + code);
    const i64* values = args.values[dictionary];
    if (values == 0) return value;
    if ((u64)value < args.entries[dictionary]) return values[value];
    damaged(args.sums);
    return 0;
}

// An item is a lane of a vector of a piece: 32 neighbours read neighbouring words.
KERNEL(q6_segments, SegmentArgs) {
    const u64 step = (u64)gridDim.x * blockDim.x;
    u128 sum = 0;
    u64 item = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    const u64 number = item / LANES;
    for (; item < args.count * 64 * LANES; item += step) {
        const Piece& piece = args.pieces[item / (64 * LANES)];
        const u32 vector = (u32)(item / LANES % 64), lane = (u32)(item % LANES);
        if (vector * VECTOR_ROWS >= piece.rows) continue;
        const u32 rows = piece.rows - vector * VECTOR_ROWS;
        u32 live = ~0u;
        if (rows < VECTOR_ROWS) {
            const u32 mine = (rows + LANES - 1 - lane) / LANES;
            live = mine == 32 ? ~0u : (1u << mine) - 1;
        }
        live &= passing<SHIPDATE_BITS>(piece.columns[0], args.words[0], vector, lane);
        if (live != 0) live &= passing<DISCOUNT_BITS>(piece.columns[2], args.words[2], vector, lane);
        if (live != 0) live &= passing<QUANTITY_BITS>(piece.columns[1], args.words[1], vector, lane);
        while (live != 0) {
            const u32 i = __ffs((int)live) - 1;
            live &= live - 1;
            const i64 discount = value_at<DISCOUNT_BITS>(args, piece.columns[2], args.words[2], vector, lane, i, 0);
            const i64 price = value_at<PRICE_BITS>(args, piece.columns[3], args.words[3], vector, lane, i, 1);
            sum += (u128)((i128)discount * price);
        }
    }
    give(args.sums, number, sum);
}

#endif

// ---------------------------------------------------------------------------------------------------------------------

#ifdef ROWS

// Where things lie in a page and in a row. The page's head: its checksum, rows, and number; from its end downwards, where
// each row starts.
#define PAGE_HEAD 16
#define PAGE_ROWS_AT 4
#define ROW_QUANTITY_AT 24
#define ROW_PRICE_AT 32
#define ROW_DISCOUNT_AT 40
#define ROW_SHIPDATE_AT 56
#define ROW_FIXED 77

struct RowArgs {
    const u8* pages;
    u64 count;
    u32 page_bytes;
    i32 shipdate_from, shipdate_before;
    u32 reserved;
    i64 discount_min, discount_max, quantity_below;
    u64* sums;
};

static_assert(sizeof(RowArgs) == 64, "as in q6.rs");

// An item is a lane of a page: every 32nd of its rows.
KERNEL(q6_rows, RowArgs) {
    const u64 step = (u64)gridDim.x * blockDim.x;
    u128 sum = 0;
    u64 item = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    const u64 number = item / LANES;
    for (; item < args.count * LANES; item += step) {
        const u8* page = args.pages + item / LANES * args.page_bytes;
        const u32 rows = *(const u16*)(page + PAGE_ROWS_AT);
        if (PAGE_HEAD + 2 * rows > args.page_bytes) {
            damaged(args.sums);
            continue;
        }
        const u32 end = args.page_bytes - 2 * rows;
        for (u32 row = (u32)(item % LANES); row < rows; row += LANES) {
            const u32 at = *(const u16*)(page + args.page_bytes - 2 * (row + 1));
            if (at % 8 != 0 || at < PAGE_HEAD || at + ROW_FIXED > end) {
                damaged(args.sums);
                continue;
            }
            const i32 shipdate = *(const i32*)(page + at + ROW_SHIPDATE_AT);
            if (shipdate < args.shipdate_from || shipdate >= args.shipdate_before) continue;
            const i64 discount = *(const i64*)(page + at + ROW_DISCOUNT_AT);
            if (discount < args.discount_min || discount > args.discount_max) continue;
            if (*(const i64*)(page + at + ROW_QUANTITY_AT) >= args.quantity_below) continue;
            sum += (u128)((i128)discount * *(const i64*)(page + at + ROW_PRICE_AT));
        }
    }
    give(args.sums, number, sum);
}

#endif
