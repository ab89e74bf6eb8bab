#define THREADS 128

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
    const Part* c3;
    const Part* c4;
    i64 k11;
    i64 k12;
    i64 k13;
    i64 k14;
    i64 k15;
    i64 k16;
    i64 k17;
    u64* groups;
};

INLINE i32 get_0(const Part& p, u32 vector, u32 lane, u32 i) {
    return get_packed<i32, 2>(p, vector, lane, i);
}

INLINE i32 get_1(const Part& p, u32 vector, u32 lane, u32 i) {
    return get_packed<i32, 24>(p, vector, lane, i);
}

INLINE i32 get_2(const Part& p, u32 vector, u32 lane, u32 i) {
    return get_code<i32, i32, 4>(p, vector, lane, i);
}

INLINE i32 get_3(const Part& p, u32 vector, u32 lane, u32 i) {
    return get_packed<i32, 12>(p, vector, lane, i);
}

INLINE i32 get_4(const Part& p, u32 vector, u32 lane, u32 i) {
    return get_steps<i32, 6>(p, vector, lane, i);
}

INLINE u32 screen_0(const Args& A, const Part& p, u32 morsel, u32 vector, u32 lane, u32 live) {
    return within<12>(p, vector, lane, A.k11, A.k12);
}

KERNEL(run, Args) {
    const u32 lane = threadIdx.x % LANES;
    SHARED(S);
    u64* const G = S;
    const u64 state_words = A.groups_count * 4;
    for (u64 w = threadIdx.x; w < state_words * A.copies; w += blockDim.x) G[w] = 0;
    u64* const mine = G + threadIdx.x / LANES % (u32)A.copies * state_words;
    u64* const sums = G + state_words * A.copies;
    u64* const d0 = (u64*)((u32*)sums + 0) + threadIdx.x;
    for (u32 g = 0; g <= 4; g++) d0[g * THREADS] = 0;
    u32* const d1 = (u32*)((u32*)sums + 1280) + threadIdx.x;
    for (u32 g = 0; g <= 4; g++) d1[g * THREADS] = 0;
    u32 held = 0;
    __syncthreads();
    const u64 warps = (u64)gridDim.x * (blockDim.x / LANES);
    u64 unit = (u64)blockIdx.x * (blockDim.x / LANES) + threadIdx.x / LANES;
    for (; unit < A.units; unit += warps) {
        const u64 number = unit * A.unit_vectors;
        const Morsel morsel = A.morsels[number / MORSEL_VECTORS];
        const u32 first = (u32)(number % MORSEL_VECTORS), end = first + (u32)A.unit_vectors;
        const Part p0 = A.c0[morsel.number];
        const Part p1 = A.c1[morsel.number];
        const Part p2 = A.c2[morsel.number];
        const Part p3 = A.c3[morsel.number];
        const Part p4 = A.c4[morsel.number];
        for (u32 vector = first; vector < end && vector * VECTOR_ROWS < morsel.rows; vector++) {
            u32 live = lane_rows(morsel.rows - vector * VECTOR_ROWS, lane);
            live &= screen_0(A, p3, morsel.number, vector, lane, live);
            if (!__any_sync(ALL_LANES, live != 0)) continue;
            if (p0.form == 66 && p1.form == 88 && p2.form == 260 && p4.form == 134 && __any_sync(ALL_LANES, __popc(live) >= 8)) {
                Column<2> w0;
                w0.load_now(words<2>(p0.low, vector, lane));
                Column<24> w1;
                w1.load_now(words<24>(p1.low, vector, lane));
                Column<4> w2;
                w2.load_now(words<4>(p2.low, vector, lane));
                Column<6> w4;
                w4.load_now(words<6>(p4.low, vector, lane));
                const i32 base0 = stored<i32>(p0, 0);
                const i32 base1 = stored<i32>(p1, 0);
                const i64 base4 = p4.base;
                const u64 step4 = p4.bias;
                const u32 first_group = ((u32)base0 - (u32)A.k13) * 1u;
                each_row<0>([&](auto row) {
                    constexpr int i = decltype(row)::number;
                    const u32 q0 = w0.template get<i>();
                    const i32 r0 = base0 + (i32)q0;
                    const u32 q1 = w1.template get<i>();
                    const i32 r1 = base1 + (i32)q1;
                    const u32 q2 = w2.template get<i>();
                    const i32 r2 = (i32)load<i32>(p2.table, q2);
                    const u32 q4 = w4.template get<i>();
                    const i32 r4 = stepped<i32>(base4, step4, q4);
                    const u32 at = (live & 1u << i ? first_group + q0 * 1u : 4u) * THREADS;
                    const i32 v1 = r1 * r2;
                    const u64 b0 = ((u64)1 << 54) | ((u64)((u64)(i64)v1 - (u64)A.k14)) | ((u64)r4 << 34);
                    d0[at] += b0;
                    const u32 b1 = ((u32)r1);
                    d1[at] += b1;
                });
                if (++held == 4) {
                    held = 0;
                    for (u32 g = 0; g < 4; g++) {
                        u64* const state = mine + g;
                        const u64 f0 = warp_total<8>((u64)d0[g * THREADS] >> 54 & 0xffull);
                        const u64 f1 = warp_total<31>((u64)d1[g * THREADS] >> 0 & 0x7fffffffull);
                        const u64 f2 = warp_total<34>((u64)d0[g * THREADS] >> 0 & 0x3ffffffffull);
                        const u64 f3 = warp_total<20>((u64)d0[g * THREADS] >> 34 & 0xfffffull);
                        if (lane == 0 && f0) {
                            add_near(state, f0);
                            add_near(state + 1 * A.groups_count, (u64)((u128)f1));
                            add_near(state + 2 * A.groups_count, (u64)((u128)f2 + (u128)(i128)A.k15 * f0));
                            add_near(state + 3 * A.groups_count, (u64)((u128)f3));
                        }
                        d0[g * THREADS] = 0;
                        d1[g * THREADS] = 0;
                    }
                }
                continue;
            }
            while (live) {
                const u32 i = __ffs((int)live) - 1;
                live &= live - 1;
                const i32 r0 = get_0(p0, vector, lane, i);
                const i32 r1 = get_1(p1, vector, lane, i);
                const i32 r2 = get_2(p2, vector, lane, i);
                const i32 r4 = get_4(p4, vector, lane, i);
                const i32 v2 = r1 * r2;
                const u64 v3 = digit(r0, A.k16);
                u64* const state = mine + v3;
                add_near(state, 1);
                add_near(state + 1 * A.groups_count, (u64)(i64)r1);
                add_near(state + 2 * A.groups_count, (u64)(i64)v2);
                add_near(state + 3 * A.groups_count, (u64)(i64)r4);
            }
        }
    }
    held = 0;
    for (u32 g = 0; g < 4; g++) {
        u64* const state = mine + g;
        const u64 f0 = warp_total<8>((u64)d0[g * THREADS] >> 54 & 0xffull);
        const u64 f1 = warp_total<31>((u64)d1[g * THREADS] >> 0 & 0x7fffffffull);
        const u64 f2 = warp_total<34>((u64)d0[g * THREADS] >> 0 & 0x3ffffffffull);
        const u64 f3 = warp_total<20>((u64)d0[g * THREADS] >> 34 & 0xfffffull);
        if (lane == 0 && f0) {
            add_near(state, f0);
            add_near(state + 1 * A.groups_count, (u64)((u128)f1));
            add_near(state + 2 * A.groups_count, (u64)((u128)f2 + (u128)(i128)A.k17 * f0));
            add_near(state + 3 * A.groups_count, (u64)((u128)f3));
        }
        d0[g * THREADS] = 0;
        d1[g * THREADS] = 0;
    }
    __syncthreads();
    for (u64 n = threadIdx.x; n < A.groups_count * A.copies; n += blockDim.x) {
        const u64 group = n % A.groups_count;
        u64* const from = G + n / A.groups_count * state_words + group;
        if (!*from) continue;
        u64* const to = A.groups + group;
        if (from[0 * A.groups_count]) add(to + 0 * A.groups_count, from[0 * A.groups_count]);
        if (from[1 * A.groups_count]) add(to + 1 * A.groups_count, from[1 * A.groups_count]);
        if (from[2 * A.groups_count]) add(to + 2 * A.groups_count, from[2 * A.groups_count]);
        if (from[3 * A.groups_count]) add(to + 3 * A.groups_count, from[3 * A.groups_count]);
    }
}
