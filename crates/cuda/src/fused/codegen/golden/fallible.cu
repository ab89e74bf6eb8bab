struct Args {
    const Morsel* morsels;
    u64 units;
    u64 unit_vectors;
    Status* status;
    const Part* c0;
    const Part* c1;
    i64 k6;
    u64 capacity;
    i32* o0;
};

INLINE i32 get_0(const Part& p, u32 vector, u32 lane, u32 i) {
    return get_packed<i32, 4>(p, vector, lane, i);
}

INLINE i32 get_1(const Part& p, u32 vector, u32 lane, u32 i) {
    return get_same<i32>(p);
}

KERNEL(run, Args) {
    const u32 lane = threadIdx.x % LANES;
    const u64 warps = (u64)gridDim.x * (blockDim.x / LANES);
    u64 unit = (u64)blockIdx.x * (blockDim.x / LANES) + threadIdx.x / LANES;
    for (; unit < A.units; unit += warps) {
        const u64 number = unit * A.unit_vectors;
        const Morsel morsel = A.morsels[number / MORSEL_VECTORS];
        const u32 first = (u32)(number % MORSEL_VECTORS), end = first + (u32)A.unit_vectors;
        const Part p0 = A.c0[morsel.number];
        const Part p1 = A.c1[morsel.number];
        for (u32 vector = first; vector < end && vector * VECTOR_ROWS < morsel.rows; vector++) {
            u32 live = lane_rows(morsel.rows - vector * VECTOR_ROWS, lane);
            const u32 valid0 = valid_rows(p0, vector, lane);
            while (live) {
                const u32 i = __ffs((int)live) - 1;
                live &= live - 1;
                const bool n0 = valid0 >> i & 1;
                const i32 r0 = n0 ? get_0(p0, vector, lane, i) : (i32)0;
                const i32 r1 = get_1(p1, vector, lane, i);
                if (n0 && r0 == 0) { fail(A.status, 0); continue; }
                const i32 v1 = n0 ? (i32)(quotient<i32>((i32)A.k6, r0)) : (i32)0;
                const bool v2 = n0 ? (bool)(v1 < r1) : (bool)0;
                if (!(n0 && v2)) continue;
                const u64 at = atomicAdd(&A.status->rows, (u64)1);
                if (at < A.capacity) {
                    A.o0[at] = r1;
                }
            }
        }
    }
}
