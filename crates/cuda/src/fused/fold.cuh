// Sums over rows for fits of linear models. Behind device.cuh, for texts that end in them.
//
// A thread has its own sums, in registers; a block adds them up at its end, lane by lane and warp by warp, and writes one
// number of each. Which rows a thread has depends on the grid alone, so that the same rows in the same grid give the same
// bits. What a block's numbers come to is added by the host, which loses nothing on the way.
//
// A text has the words from FIRST to LAST of all that are wanted: more than registers hold are several texts, each of
// which goes over all rows.

#ifdef ONEHOP_HOST
#define INFINITE ((double)INFINITY)
#else
#define INFINITE (__longlong_as_double(0x7ff0000000000000ll))
#endif

INLINE double double_of(u64 bits) {
#ifdef ONEHOP_HOST
    double value;
    memcpy(&value, &bits, 8);
    return value;
#else
    return __longlong_as_double((long long)bits);
#endif
}

INLINE double passed_down(double value, u32 by) {
    return double_of(__shfl_down_sync(ALL_LANES, (u64)bits_of(value), by));
}

// Over a block, all of whose threads are here; its first one has the result.
template <class F> INLINE double over_block(double value, double neutral, F f) {
    BLOCK_WORDS(words);
    for (u32 by = LANES / 2; by; by >>= 1) value = f(value, passed_down(value, by));
    __syncthreads(); // nobody reads what was there before
    if (threadIdx.x % LANES == 0) words[threadIdx.x / LANES] = (u64)bits_of(value);
    __syncthreads();
    if (threadIdx.x >= LANES) return neutral;
    value = threadIdx.x < blockDim.x / LANES ? double_of(words[threadIdx.x]) : neutral;
    for (u32 by = LANES / 2; by; by >>= 1) value = f(value, passed_down(value, by));
    return value;
}
INLINE double block_total(double value) {
    return over_block(value, 0.0, [](double a, double b) { return a + b; });
}
INLINE double block_least(double value) {
    return over_block(value, INFINITE, [](double a, double b) { return b < a ? b : a; });
}
INLINE double block_greatest(double value) {
    return over_block(value, -INFINITE, [](double a, double b) { return b > a ? b : a; });
}

// ---- columns: how many rows, and of each column its sum and its squares around a number, and its ends -----------------

#define ROW_WORDS 2    // rows, rows with a NULL
#define COLUMN_WORDS 5 // of (x - centre), of its square, the least, the greatest, how many values are of no use

template <int FIRST, int LAST> struct ColumnSums {
    double rows = 0, nulls = 0;
    double sum[LAST - FIRST], squares[LAST - FIRST], least[LAST - FIRST], greatest[LAST - FIRST], odd[LAST - FIRST];

    INLINE ColumnSums() {
#pragma unroll
        for (int at = 0; at < LAST - FIRST; at++) {
            sum[at] = 0, squares[at] = 0, odd[at] = 0;
            least[at] = INFINITE, greatest[at] = -INFINITE;
        }
    }
    template <int COLUMN> INLINE void add(double x, double centre) {
        if constexpr (COLUMN >= FIRST && COLUMN < LAST) {
            constexpr int at = COLUMN - FIRST;
            const double apart = x - centre;
            sum[at] += apart;
            squares[at] = fma(apart, apart, squares[at]);
            least[at] = x < least[at] ? x : least[at];
            greatest[at] = x > greatest[at] ? x : greatest[at];
            odd[at] += fabs(x) < INFINITE ? 0 : 1;
        }
    }
    // Of a label, what is neither 0 nor 1 is of no use.
    template <int COLUMN> INLINE void label(double y, double centre) {
        add<COLUMN>(y, centre);
        if constexpr (COLUMN >= FIRST && COLUMN < LAST) {
            odd[COLUMN - FIRST] += fabs(y) < INFINITE && y != 0 && y != 1 ? 1 : 0;
        }
    }
    INLINE void put(double* to) {
        const double all = block_total(rows), left_out = block_total(nulls);
        if (threadIdx.x == 0) to[0] = all, to[1] = left_out;
#pragma unroll
        for (int at = 0; at < LAST - FIRST; at++) {
            double* const words = to + ROW_WORDS + at * COLUMN_WORDS;
            const double totals[3] = {block_total(sum[at]), block_total(squares[at]), block_total(odd[at])};
            const double ends[2] = {block_least(least[at]), block_greatest(greatest[at])};
            if (threadIdx.x == 0) {
                words[0] = totals[0], words[1] = totals[1], words[2] = ends[0], words[3] = ends[1], words[4] = totals[2];
            }
        }
    }
};

// ---- a model: likelihood, gradient, information -----------------------------------------------------------------------

#define GRADIENT_WORD 2 // after the fit, and how many rows are on the wrong side

// As crates/learn has them: the fit, rows that are not on their side, the gradient, the information's lower triangle row by
// row. Terms begin with the intercept, whose z is 1.
template <int TERMS, int FIRST, int LAST> struct ModelSums {
    double word[LAST - FIRST];
    // Of factors between 1 and 2, whose logarithm is due.
    double product = 1;

    INLINE ModelSums() {
#pragma unroll
        for (int at = 0; at < LAST - FIRST; at++) word[at] = 0;
    }

    INLINE void add(const double (&z)[TERMS], double w, double r, double fit, double wrong) {
        if constexpr (FIRST == 0) word[0] += fit;
        if constexpr (FIRST <= 1 && LAST > 1) word[1 - FIRST] += wrong;
#pragma unroll
        for (int a = 0; a < TERMS; a++) {
            const int slope = GRADIENT_WORD + a, row = GRADIENT_WORD + TERMS + a * (a + 1) / 2;
            if (slope >= FIRST && slope < LAST) word[slope - FIRST] = fma(r, z[a], word[slope - FIRST]);
            if (row + a < FIRST || row >= LAST) continue;
            const double wz = w * z[a];
#pragma unroll
            for (int b = 0; b <= a; b++) {
                if (row + b >= FIRST && row + b < LAST) word[row + b - FIRST] = fma(wz, z[b], word[row + b - FIRST]);
            }
        }
    }

    // With the margin, the linear predictor with the label's sign, and e = exp(-|margin|), nothing is lost where a
    // probability is near 0 or 1.
    INLINE void logistic(const double (&z)[TERMS], double eta, double y) {
        const double sign = y + y - 1, margin = sign * eta;
        const double e = exp(-fabs(margin)), d = 1 / (1 + e);
        const double w = e * d * d, r = sign * (margin > 0 ? e * d : d);
        if constexpr (FIRST == 0) {
            product *= 1 + e;
            if (product > 1e18) settle();
        }
        add(z, w, r, margin < 0 ? margin : 0, margin > 0 ? 0 : 1);
    }
    INLINE void gaussian(const double (&z)[TERMS], double eta, double y) {
        const double r = y - eta;
        add(z, 1, r, r * r, 0);
    }
    INLINE void settle() {
        if constexpr (FIRST == 0) word[0] -= log(product);
        product = 1;
    }

    INLINE void put(double* to) {
        settle();
#pragma unroll
        for (int at = 0; at < LAST - FIRST; at++) {
            const double total = block_total(word[at]);
            if (threadIdx.x == 0) to[at] = total;
        }
    }
};

