#define THREADS 1024

struct Args {
    const Morsel* morsels;
    u64 units;
    u64 unit_vectors;
    Status* status;
    const u32* t0_bits;
    u64 t0_words;
    u64 groups_count;
    u64 copies;
    const Part* c0;
    const Part* c1;
    const Part* c2;
    i64 k11;
    i64 k12;
    i64 k13;
    i64 k14;
    u64 k15;
    i64 k16;
    const u32* t0_next;
    const u32* t0_head;
    const u8* t0_p0;
    i64 k20;
    i64 k21;
    u64* groups;
};

INLINE i32 get_0(const Part& p, u32 vector, u32 lane, u32 i) {
    return get_packed<i32, 12>(p, vector, lane, i);
}

INLINE i32 get_1(const Part& p, u32 vector, u32 lane, u32 i) {
    return get_packed<i32, 4>(p, vector, lane, i);
}

INLINE i32 get_2(const Part& p, u32 vector, u32 lane, u32 i) {
    return get_packed<i32, 24>(p, vector, lane, i);
}

INLINE u32 screen_0(const Args& A, const Part& p, u32 morsel, u32 vector, u32 lane, u32 live) {
    return within<4>(p, vector, lane, A.k11, A.k12);
}

INLINE u32 screen_1(const Args& A, const u32* bits, const Part& p, u32 morsel, u32 vector, u32 lane, u32 live) {
    return where_bit<12, true, false, true>(bits, A.k13, A.k15, p, vector, lane, live);
}

KERNEL(run, Args) {
    const u32 lane = threadIdx.x % LANES;
    SHARED(S);
    for (u64 w = threadIdx.x; w < A.t0_words; w += blockDim.x) S[w] = ((const u64*)A.t0_bits)[w];
    const u32* const bits0 = (const u32*)S;
    u64* const G = S + A.t0_words;
    const u64 state_words = A.groups_count * 3;
    for (u64 w = threadIdx.x; w < state_words * A.copies; w += blockDim.x) G[w] = 0;
    u64* const mine = G + threadIdx.x / LANES % (u32)A.copies * state_words;
    __syncthreads();
    WARP_QUEUE(queue);
    const u32 below = (1u << lane) - 1;
    u64 unit;
    while ((unit = taken_unit(A.status, lane)) < A.units) {
        const u64 number = unit * A.unit_vectors;
        const Morsel morsel = A.morsels[number / MORSEL_VECTORS];
        const u32 first = (u32)(number % MORSEL_VECTORS), end = first + (u32)A.unit_vectors;
        const Part p0 = A.c0[morsel.number];
        const Part p1 = A.c1[morsel.number];
        const Part& p2 = A.c2[morsel.number];
        u32 waiting = 0;
        for (u32 vector = first;; vector++) {
            const bool is_more = vector < end && vector * VECTOR_ROWS < morsel.rows;
            u32 live = 0;
            if (is_more) {
                live = lane_rows(morsel.rows - vector * VECTOR_ROWS, lane);
                live &= screen_0(A, p1, morsel.number, vector, lane, live);
                if (!__any_sync(ALL_LANES, live != 0)) continue;
                live &= screen_1(A, bits0, p0, morsel.number, vector, lane, live);
                if (!__any_sync(ALL_LANES, live != 0)) continue;
            }
            for (;;) {
                const u32 those = __ballot_sync(ALL_LANES, live != 0);
                if (live) {
                    const u32 i = __ffs((int)live) - 1;
                    live &= live - 1;
                    queue[waiting + __popc(those & below)] = (u16)((vector - first) << 10 | i << 5 | lane);
                }
                waiting += __popc(those);
                if (is_more && waiting < LANES) {
                    if (those) continue;
                    break;
                }
                if (waiting == 0) break;
                __syncwarp();
                const u32 queue_taken = waiting < LANES ? waiting : LANES;
                waiting -= queue_taken;
                if (lane < queue_taken) {
                    const u16 row = queue[waiting + lane];
                    do {
                        const u32 vector = first + (row >> 10), i = row >> 5 & 31, lane = row & 31;
                        const i32 r0 = get_0(p0, vector, lane, i);
                        const u64 v1 = digit(r0, A.k16);
                        u32 v2 = A.t0_head[v1];
                        for (; v2 != 0; v2 = A.t0_next[v2 - 1]) {
                            const u64 v3 = v2 - 1;
                            const i32 r1 = get_1(p1, vector, lane, i);
                            const i32 r2 = get_2(p2, vector, lane, i);
                            const i32 v4 = (i32)((u64)A.k20 + A.t0_p0[v3]);
                            const i32 v5 = r2 * r1;
                            const u64 v6 = digit(v4, A.k21);
                            u64* const state = mine + v6;
                            mark_near(state);
                            add_wide_near(state + 1 * A.groups_count, state + 2 * A.groups_count, (u128)(i128)v5);
                        }
                    } while (false);
                }
                __syncwarp();
            }
            if (!is_more) break;
        }
    }
    __syncthreads();
    for (u64 n = threadIdx.x; n < A.groups_count * A.copies; n += blockDim.x) {
        const u64 group = n % A.groups_count;
        u64* const from = G + n / A.groups_count * state_words + group;
        if (!*from) continue;
        u64* const to = A.groups + group;
        raise(to + 0 * A.groups_count, from[0 * A.groups_count]);
        add_wide(to + 1 * A.groups_count, to + 2 * A.groups_count, (u128)made(from[1 * A.groups_count], from[2 * A.groups_count]));
    }
}
