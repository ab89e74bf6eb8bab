// Decodes a column that lies on the device as it is stored, to an array of plain values, one thread for each row of a lane.
//
// A warp takes a vector of 1,024 rows of a morsel, 32 rows at a time, so that what it writes are whole lines. Widths are not
// known when this is compiled: it is done once for each column, and takes less time than writing the values does.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;
typedef long long i64;

#ifndef KERNEL // else the host's
#define KERNEL(name, Args) extern "C" __global__ void name(const Args args)
#endif

#define LANES 32
#define VECTOR_ROWS 1024

// As fused/part.rs has it.
struct Part {
    u64 low, high, valid, table;
    i64 base;
    u64 bias;
    u32 form, width;
};
static_assert(sizeof(Part) == 56, "as in part.rs");

#define FORM_SAME 0
#define FORM_NULL 1
#define FORM_ROWS 2
#define FORM_I32 3
#define FORM_I64 4
#define FORM_F64 6
#define FORM_PACKED 64
#define FORM_STEPS 128
#define FORM_WIDE 192
#define FORM_CODES 256
#define FORM_CODES64 320

struct Morsel {
    u64 first; // of all rows
    u32 rows;
    u32 reserved;
};
static_assert(sizeof(Morsel) == 16, "as in decode.rs");

struct Status {
    u64 nulls;   // rows without a value
    u64 inexact; // values that no double is equal to
    u64 unknown; // rows of a form that nobody has told of
};
static_assert(sizeof(Status) == 24, "as in decode.rs");

struct DecodeArgs {
    const Part* parts;
    const Morsel* morsels;
    u64 count;   // of morsels
    u64 vectors; // of a morsel, at most
    u64 to;
    Status* status;
    u64 element; // as decode.rs numbers them
};

// What is packed in `width` bits, at most 32: value i of a lane.
__device__ u32 at_any(u64 plane, u32 width, u32 vector, u32 lane, u32 i) {
    if (width == 0) return 0;
    const u32* words = (const u32*)plane + (u64)vector * LANES * width + lane;
    const u32 bit = i * width, word = bit / 32, shift = bit % 32;
    u64 both = words[word * LANES];
    if (shift + width > 32) both |= (u64)words[(word + 1) * LANES] << 32;
    const u64 value = both >> shift;
    return (u32)(width >= 32 ? value : value & ((1ull << width) - 1));
}

// A value as it is stored: an integer, wrapped around to 64 bits, or a double.
struct Value {
    i64 integer;
    double real;
    bool is_real;
};

__device__ bool value_of(const Part& p, u32 vector, u32 lane, u32 i, Value& value) {
    const u64 row = (u64)vector * VECTOR_ROWS + i * LANES + lane;
    const u32 low_width = p.width < 32 ? p.width : 32;
    value.is_real = false;
    if (p.form == FORM_F64) {
        value.real = ((const double*)p.low)[row];
        value.is_real = true;
        return true;
    }
    if (p.form == FORM_SAME || p.form == FORM_ROWS) {
        value.integer = (i64)((u64)p.base + p.bias + (p.form == FORM_ROWS ? row : 0));
    } else if (p.form == FORM_I32) {
        value.integer = ((const i32*)p.low)[row];
    } else if (p.form == FORM_I64) {
        value.integer = ((const i64*)p.low)[row];
    } else if (p.form > FORM_CODES64) {
        value.integer = ((const i64*)p.table)[at_any(p.low, low_width, vector, lane, i)];
    } else if (p.form > FORM_CODES) {
        value.integer = ((const i32*)p.table)[at_any(p.low, low_width, vector, lane, i)];
    } else if (p.form > FORM_WIDE || (p.form > FORM_PACKED && p.form <= FORM_STEPS)) {
        u64 offset = at_any(p.low, low_width, vector, lane, i);
        if (p.width > 32) offset |= (u64)at_any(p.high, p.width - 32, vector, lane, i) << 32;
        value.integer = (i64)((u64)p.base + offset + p.bias);
    } else if (p.form > FORM_STEPS) {
        value.integer = (i64)((u64)p.base + at_any(p.low, low_width, vector, lane, i) * p.bias);
    } else {
        return false;
    }
    return true;
}

#define QUIET_NAN 0x7ff8000000000000ull

__device__ double as_double(u64 bits) {
    union {
        u64 bits;
        double value;
    } both;
    both.bits = bits;
    return both.value;
}

// Puts a value at its row; whether it is what was stored.
__device__ bool put(u64 element, u64 to, u64 row, const Value& value) {
    const i64 n = value.integer;
    switch (element) {
    case 1: // 8 bits, 16, 32, 64: a sign is nothing but how they are read
        ((u8*)to)[row] = (u8)n;
        return true;
    case 2:
        ((u16*)to)[row] = (u16)n;
        return true;
    case 4:
        ((u32*)to)[row] = (u32)n;
        return true;
    case 8:
        ((i64*)to)[row] = n;
        return true;
    case 14: // a float
        ((float*)to)[row] = value.is_real ? (float)value.real : (float)n;
        return true;
    case 18: { // a double
        const double real = value.is_real ? value.real : (double)n;
        ((double*)to)[row] = real;
        // Beyond 2^53 not every integer is one; 2^63 itself is no i64.
        return value.is_real || (real < 9223372036854775808.0 && (i64)real == n);
    }
    case 19: { // a double of an integer without a sign
        const double real = (double)(u64)n;
        ((double*)to)[row] = real;
        return real < 18446744073709551616.0 && (u64)real == (u64)n;
    }
    default: return false;
    }
}

__device__ void put_null(u64 element, u64 to, u64 row) {
    const Value zero = {0, as_double(QUIET_NAN), true};
    const Value none = {0, 0.0, false};
    put(element == 19 ? 18 : element, to, row, element >= 14 ? zero : none);
}

KERNEL(decode_column, DecodeArgs) {
    const u64 thread = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    const u64 warps = (u64)gridDim.x * blockDim.x / LANES;
    const u32 lane = (u32)(thread % LANES);
    for (u64 unit = thread / LANES; unit < args.count * args.vectors; unit += warps) {
        const Morsel morsel = args.morsels[unit / args.vectors];
        const u32 vector = (u32)(unit % args.vectors);
        if ((u64)vector * VECTOR_ROWS >= morsel.rows) continue;
        const Part& p = args.parts[unit / args.vectors];
        u32 valid = ~0u;
        if (p.form == FORM_NULL) valid = 0;
        else if (p.valid) valid = ((const u32*)p.valid)[(u64)vector * LANES + lane];
        u64 nulls = 0, inexact = 0, unknown = 0;
        for (u32 i = 0; i < 32; i++) {
            const u32 row = vector * VECTOR_ROWS + i * LANES + lane;
            if (row >= morsel.rows) break;
            const u64 to = morsel.first + row;
            Value value = {0, 0.0, false};
            if (!(valid >> i & 1)) nulls++, put_null(args.element, args.to, to);
            else if (!value_of(p, vector, lane, i, value)) unknown++;
            else if (!put(args.element, args.to, to, value)) inexact++;
        }
        if (nulls) atomicAdd(&args.status->nulls, nulls);
        if (inexact) atomicAdd(&args.status->inexact, inexact);
        if (unknown) atomicAdd(&args.status->unknown, unknown);
    }
}
