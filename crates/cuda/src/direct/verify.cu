// Verifies blocks that were read straight to the device: what the host finds when it verifies what it has read.
//
// Of each block, by its planes (a bit per row that is not NULL, the low 32 bits of values, the bits above them):
//   CRC-32C    a plane is rows of 32 words, and lane l has word l of each. A lane's state s becomes A(s) ^ word with each row,
//              where A multiplies by x^1024, the bits of a row, modulo the polynomial: four lookups in shared memory. At the end
//              lane l's state is multiplied by x^(32 (32 - l)), for the words behind its own, and the lanes' are added up; their
//              sum is multiplied by x^1024 for every row of the plane that comes after, and added to the plane's. As in the
//              usual order a checksum begins with 32 ones: they are added to the first word. That it ends with them is the
//              host's affair.
//   bits       of the rows that are not NULL, all that are set, as many as there should be
//   values     none may lie outside of the least and the greatest: of rows that are not NULL, or of all. What kernels look
//              up by a value is not checked again.
//
// A warp takes some vectors of one block, of all its planes: a unit. Sums and bits come together by atomic operations; the host
// compares.

#define THREADS 128

#define POLYNOMIAL 0x82f63b78u // reflected: bit 31 is x^0
#define ONE 0x80000000u

// As in verify.rs. Addresses are 0 where there is no such plane.
struct Block {
    const u32* low;
    const u32* high;
    const u32* valid;
    i64 base;
    i64 least;
    i64 most;
    u32 low_bits;
    u32 high_bits;
    u32 rows;
    u32 has_all; // rows that are NULL are not to lie outside, either
    u32 first_unit;
    u32 nothing;
};

struct Found {
    u32 low;
    u32 high;
    u32 valid;
    u32 valid_rows;
    u32 outside;
    u32 nothing;
};

struct Args {
    const Block* blocks;
    Found* found;
    u64 block_count;
    u64 units;
    u64 unit_vectors;
    u64 words[5]; // x^(32 * 2^k)
    u64 rows[12]; // x^(1024 * 2^k)
};

INLINE u32 times(u32 a, u32 b) {
    u32 product = 0;
    for (u32 bit = ONE; bit != 0; bit >>= 1) {
        if (a & bit) product ^= b;
        b = (b >> 1) ^ (b & 1 ? POLYNOMIAL : 0);
    }
    return product;
}

// Times a power of x of which `powers` has those of two.
INLINE u32 times_power(u32 value, u32 exponent, const u64* powers) {
    for (u32 at = 0; exponent != 0; at++, exponent >>= 1) {
        if (exponent & 1) value = times(value, (u32)powers[at]);
    }
    return value;
}

INLINE u32 after_row(const u32* table, u32 state) {
    return table[state & 255] ^ table[256 + (state >> 8 & 255)] ^ table[512 + (state >> 16 & 255)] ^ table[768 + (state >> 24)];
}

// Adds what the lanes have of a plane to what others have.
INLINE void add_up(u32* to, u32 state, u32 lane_power, u32 rows_after, const u64* powers) {
    state = times(state, lane_power);
    for (u32 by = 16; by > 0; by >>= 1) state ^= (u32)__shfl_down_sync(ALL_LANES, (u64)state, by);
    if (threadIdx.x % LANES == 0) atomicXor(to, times_power(state, rows_after, powers));
}

KERNEL(run, Args) {
    SHARED(memory);
    u32* const table = (u32*)memory;
    for (u32 entry = threadIdx.x; entry < 1024; entry += THREADS) {
        table[entry] = times((u32)A.rows[0], (entry & 255) << (entry >> 8) * 8);
    }
    __syncthreads();
    const u32 lane = threadIdx.x % LANES;
    const u32 lane_power = times_power((u32)A.words[0], LANES - 1 - lane, A.words);
    const u64 warps = (u64)gridDim.x * (THREADS / LANES);
    for (u64 unit = (u64)blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES; unit < A.units; unit += warps) {
        u32 number = 0, end = (u32)A.block_count; // the last block whose first unit is not behind this one
        while (end - number > 1) {
            const u32 middle = number + (end - number) / 2;
            if (A.blocks[middle].first_unit <= unit) number = middle;
            else end = middle;
        }
        const Block block = A.blocks[number];
        Found* const found = A.found + number;
        const u32 vectors = (block.rows + VECTOR_ROWS - 1) / VECTOR_ROWS;
        const u32 first = (u32)((unit - block.first_unit) * A.unit_vectors);
        const u32 last = first + (u32)A.unit_vectors < vectors ? first + (u32)A.unit_vectors : vectors;
        u32 of_low = 0, of_high = 0, of_valid = 0, valid_rows = 0, outside = 0;
        for (u32 vector = first; vector < last; vector++) {
            const u32 rows = block.rows - vector * VECTOR_ROWS;
            const u32 start = vector == 0 && lane == 0 ? 0xffffffffu : 0;
            u32 valid = 0xffffffffu;
            if (block.valid) {
                valid = block.valid[vector * LANES + lane];
                of_valid = after_row(table, of_valid) ^ valid ^ start;
                valid_rows += __popc(valid);
            }
            if (!block.low) continue;
            // A bit for each of the lane's rows that is looked at.
            u32 wanted = block.has_all ? 0xffffffffu : valid;
            if (rows < VECTOR_ROWS) {
                const u32 mine = rows > lane ? (rows - lane - 1) / LANES + 1 : 0;
                wanted &= mine < 32 ? (1u << mine) - 1 : 0xffffffffu;
            }
            const u32* low = block.low + (u64)vector * block.low_bits * LANES + lane;
            const u32* high = block.high + (u64)vector * block.high_bits * LANES + lane;
            const u64 low_mask = ((u64)1 << block.low_bits) - 1, high_mask = ((u64)1 << block.high_bits) - 1;
            u64 low_words = 0, high_words = 0;
            u32 low_left = 0, high_left = 0, at_low = 0, at_high = 0;
            for (u32 i = 0; i < 32; i++) {
                while (low_left < block.low_bits) {
                    const u32 word = low[at_low * LANES];
                    of_low = after_row(table, of_low) ^ word ^ (at_low == 0 ? start : 0);
                    low_words |= (u64)word << low_left;
                    low_left += 32, at_low++;
                }
                u64 offset = low_words & low_mask;
                low_words >>= block.low_bits, low_left -= block.low_bits;
                if (block.high) {
                    while (high_left < block.high_bits) {
                        const u32 word = high[at_high * LANES];
                        of_high = after_row(table, of_high) ^ word ^ (at_high == 0 ? start : 0);
                        high_words |= (u64)word << high_left;
                        high_left += 32, at_high++;
                    }
                    offset |= (high_words & high_mask) << 32;
                    high_words >>= block.high_bits, high_left -= block.high_bits;
                }
                const i64 value = (i64)((u64)block.base + offset);
                if (wanted >> i & 1) outside |= value < block.least || value > block.most;
            }
        }
        const u32 after = vectors - last;
        if (block.valid) {
            add_up(&found->valid, of_valid, lane_power, after, A.rows);
            atomicAdd(&found->valid_rows, valid_rows);
        }
        if (block.low) {
            add_up(&found->low, of_low, lane_power, after * block.low_bits, A.rows);
            if (block.high) add_up(&found->high, of_high, lane_power, after * block.high_bits, A.rows);
            if (outside) atomicOr(&found->outside, 1u);
        }
    }
}
