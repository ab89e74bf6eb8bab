#define THREADS 256

struct Args {
    const Morsel* morsels;
    u64 units;
    u64 unit_vectors;
    Status* status;
    u64 groups_count;
    u64 copies;
    const Part* c0;
    const Part* c1;
    const Part* c2;
    i64 k9;
    i64 k10;
    i64 k11;
    const u32* t0_bits;
    i64 k13;
    const u8* t0_p0;
    i64 k15;
    i64 k16;
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
    return within<4>(p, vector, lane, A.k9, A.k10);
}

KERNEL(run, Args) {
    const u32 lane = threadIdx.x % LANES;
    SHARED(S);
    u64* const G = S;
    const u64 state_words = A.groups_count * 3;
    for (u64 w = threadIdx.x; w < state_words * A.copies; w += blockDim.x) G[w] = 0;
    u64* const mine = G + threadIdx.x / LANES % (u32)A.copies * state_words;
    __syncthreads();
    WARP_QUEUE(queue);
    WARP_QUEUE(left);
    const u32 below = (1u << lane) - 1;
    const u64 warps = (u64)gridDim.x * (blockDim.x / LANES);
    u64 unit = (u64)blockIdx.x * (blockDim.x / LANES) + threadIdx.x / LANES;
    for (; unit < A.units; unit += warps) {
        const u64 number = unit * A.unit_vectors;
        const Morsel morsel = A.morsels[number / MORSEL_VECTORS];
        const u32 first = (u32)(number % MORSEL_VECTORS), end = first + (u32)A.unit_vectors;
        const Part& p0 = A.c0[morsel.number];
        const Part p1 = A.c1[morsel.number];
        const Part& p2 = A.c2[morsel.number];
        u32 waiting = 0, ready = 0;
        for (u32 vector = first;; vector++) {
            const bool is_more = vector < end && vector * VECTOR_ROWS < morsel.rows;
            u32 live = 0;
            if (is_more) {
                live = lane_rows(morsel.rows - vector * VECTOR_ROWS, lane);
                live &= screen_0(A, p1, morsel.number, vector, lane, live);
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
                if (waiting == 0 && ready == 0) break;
                __syncwarp();
                const u32 queue_taken = waiting < LANES ? waiting : LANES;
                waiting -= queue_taken;
                bool keep = false;
                u16 which = 0;
                if (lane < queue_taken) {
                    const u16 row = queue[waiting + lane];
                    do {
                        const u32 vector = first + (row >> 10), i = row >> 5 & 31, lane = row & 31;
                        const u32 valid2 = valid_rows(p2, vector, lane);
                        const i32 r0 = get_0(p0, vector, lane, i);
                        const u64 v1 = digit(r0, A.k11);
                        const bool v3 = bit_ldg(A.t0_bits, v1);
                        const u64 v2 = v1;
                        if (!v3) continue;
                        keep = true;
                        which = row;
                    } while (false);
                }
                const u32 kept = __ballot_sync(ALL_LANES, keep);
                __syncwarp();
                if (keep) left[ready + __popc(kept & below)] = which;
                ready += __popc(kept);
                while (ready >= LANES || (!is_more && waiting == 0 && ready != 0)) {
                    __syncwarp();
                    const u32 left_taken = ready < LANES ? ready : LANES;
                    ready -= left_taken;
                    if (lane < left_taken) {
                        const u16 row = left[ready + lane];
                        do {
                            const u32 vector = first + (row >> 10), i = row >> 5 & 31, lane = row & 31;
                            const u32 valid2 = valid_rows(p2, vector, lane);
                            const i32 r0 = get_0(p0, vector, lane, i);
                            const u64 v4 = digit(r0, A.k13);
                            const bool n2 = valid2 >> i & 1;
                            const i32 r2 = n2 ? get_2(p2, vector, lane, i) : (i32)0;
                            const i32 v5 = (i32)((u64)A.k15 + A.t0_p0[v4]);
                            const u64 v6 = digit(v5, A.k16);
                            u64* const state = mine + v6;
                            mark_near(state);
                            if (n2) {
                                add_near(state + 1 * A.groups_count, (u64)(i64)r2);
                                mark_near(state + 2 * A.groups_count);
                            }
                        } while (false);
                    }
                    __syncwarp();
                }
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
        if (from[1 * A.groups_count]) add(to + 1 * A.groups_count, from[1 * A.groups_count]);
        raise(to + 2 * A.groups_count, from[2 * A.groups_count]);
    }
}
