// Has the host run generated kernels, so that the very text that a device gets is what tests run.
//
// Every thread of a block is a fiber. One runs until it comes to what its block or warp does together (a barrier, a
// vote, a shuffle), where the next takes over; who comes last lets the others go on. Blocks run one after the other.
// Threads never run at the same time: atomic operations are plain ones, and races are for a device and its sanitizer.
// Every thread of a warp must come to what the warp does together, or the launch ends in a trap.

#define ONEHOP_HOST

#include <math.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#pragma GCC diagnostic ignored "-Wunused-variable"
#pragma GCC diagnostic ignored "-Wunused-but-set-variable"

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;
typedef long long i64;
typedef __int128 i128;
typedef unsigned __int128 u128;

struct Dim {
    unsigned x;
};
static thread_local Dim threadIdx, blockIdx, blockDim, gridDim;

#define INLINE inline
#define SHARED(name) u64* const name = host::shared
#define BLOCK_WORDS(name) static thread_local u64 name[32]
#define WARP_QUEUE(name)                                                                                              \
    static thread_local u16 name##_of_block[THREADS / LANES * QUEUE_ROWS];                                            \
    u16* const name = name##_of_block + threadIdx.x / LANES * QUEUE_ROWS

namespace host {

const u64 MOST_THREADS = 1024, STACK = 64 << 10;

// Threads that wait for each other: a warp, or a block.
struct Meeting {
    unsigned here, round;
};

static thread_local ucontext_t scheduler;
static thread_local ucontext_t fibers[MOST_THREADS];
static thread_local bool done[MOST_THREADS];
static thread_local u64 said[MOST_THREADS];
static thread_local unsigned running, living, living_of_warp[MOST_THREADS / 32];
static thread_local Meeting block, warps[MOST_THREADS / 32];
// A thread's, for as long as it lives: a process runs thousands of kernels, each with stacks of its own.
static thread_local struct Stacks {
    char* all;
    char* of(unsigned thread) {
        if (!all) all = (char*)mmap(0, MOST_THREADS * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        return all + thread * STACK;
    }
    ~Stacks() {
        if (all) munmap(all, MOST_THREADS * STACK);
    }
} stacks;
static thread_local u64 shared[96 << 7];
static thread_local const void* argument;
static thread_local void (*body)(const void*);

static inline void yield() {
    const unsigned me = running;
    swapcontext(&fibers[me], &scheduler);
    running = me, threadIdx.x = me;
}

static inline void meet(Meeting& meeting, const unsigned& expected) {
    const unsigned round = meeting.round;
    meeting.here++;
    while (meeting.round == round) {
        if (meeting.here >= expected) {
            meeting.here = 0, meeting.round++;
            break;
        }
        yield();
    }
}
static inline void meet_warp() { meet(warps[threadIdx.x / 32], living_of_warp[threadIdx.x / 32]); }

// What every lane of the warp says, seen by all of them.
template <class F> static inline u64 hear(u64 value, F of) {
    said[threadIdx.x] = value;
    meet_warp();
    const u64 heard = of(said + threadIdx.x / 32 * 32);
    meet_warp();
    return heard;
}

static void fiber() {
    body(argument);
    done[running] = true;
    living--, living_of_warp[running / 32]--;
    swapcontext(&fibers[running], &scheduler);
}

static inline void launch(unsigned blocks, unsigned threads, const void* from, void (*of)(const void*)) {
    argument = from, body = of;
    gridDim.x = blocks, blockDim.x = threads;
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) {
        living = threads;
        block = Meeting();
        memset(shared, 0xa5, sizeof shared); // a kernel that does not clear it finds something else than zeros
        for (unsigned thread = 0; thread < threads; thread++) {
            done[thread] = false;
            warps[thread / 32] = Meeting();
            living_of_warp[thread / 32] = threads - thread / 32 * 32 < 32 ? threads % 32 : 32;
            getcontext(&fibers[thread]);
            fibers[thread].uc_stack.ss_sp = stacks.of(thread);
            fibers[thread].uc_stack.ss_size = STACK;
            fibers[thread].uc_link = 0;
            makecontext(&fibers[thread], fiber, 0);
        }
        for (unsigned idle = 0; living > 0; idle++) {
            if (idle > 1000000) __builtin_trap(); // they wait for somebody who never comes
            for (unsigned thread = 0; thread < threads; thread++) {
                if (done[thread]) continue;
                running = thread, threadIdx.x = thread;
                swapcontext(&scheduler, &fibers[thread]);
            }
        }
    }
}

static inline i64 bits_of(double value) {
    i64 bits;
    memcpy(&bits, &value, 8);
    return bits;
}

} // namespace host

#define KERNEL(name, Args)                                                                                            \
    static void name##_thread(const Args& A);                                                                         \
    extern "C" void name(unsigned blocks, unsigned threads, void** parameters) {                                      \
        host::launch(blocks, threads, parameters[0], [](const void* A) { name##_thread(*(const Args*)A); });          \
    }                                                                                                                 \
    static void name##_thread(const Args& A)

static inline int __ffs(int bits) { return __builtin_ffs(bits); }
static inline int __clz(int bits) { return bits ? __builtin_clz((unsigned)bits) : 32; }
static inline int __popc(u32 bits) { return __builtin_popcount(bits); }
template <class T> static inline T __ldg(const T* at) { return *at; }
static inline u32 load_now(const u32* at) { return *at; }
template <class T> static inline T opaque(T value) { return value; }
static inline u64 relaxed(const u64* word) { return *(const volatile u64*)word; }
static inline void set_relaxed(u64* word, u64 to) { *(volatile u64*)word = to; }
static inline u64 relaxed_near(const u64* word) { return relaxed(word); }
static inline void set_relaxed_near(u64* word, u64 to) { set_relaxed(word, to); }
static inline u32 __funnelshift_r(u32 low, u32 high, u32 shift) {
    return (u32)(((u64)high << 32 | low) >> (shift & 31));
}

static inline void __syncthreads() { host::meet(host::block, host::living); }
static inline int __any_sync(u32, int holds) {
    return host::hear(holds != 0, [](const u64* of) {
        u64 any = 0;
        for (int lane = 0; lane < 32; lane++) any |= of[lane];
        return any;
    });
}
static inline void __syncwarp() { host::meet_warp(); }
static inline u32 __ballot_sync(u32, int holds) {
    return (u32)host::hear(holds != 0, [](const u64* of) {
        u64 bits = 0;
        for (int lane = 0; lane < 32; lane++) bits |= of[lane] << lane;
        return bits;
    });
}
static inline u64 __shfl_sync(u32, u64 value, unsigned from) {
    return host::hear(value, [=](const u64* of) { return of[from]; });
}
static inline u64 __shfl_down_sync(u32, u64 value, unsigned by) {
    const unsigned lane = threadIdx.x % 32;
    return host::hear(value, [=](const u64* of) { return lane + by < 32 ? of[lane + by] : of[lane]; });
}

template <class T> static inline T atomicAdd(T* at, T by) {
    const T before = *at;
    *at = (T)(before + by);
    return before;
}
template <class T> static inline T atomicOr(T* at, T bits) {
    const T before = *at;
    *at = before | bits;
    return before;
}
template <class T> static inline T atomicXor(T* at, T bits) {
    const T before = *at;
    *at = before ^ bits;
    return before;
}
template <class T> static inline T atomicMax(T* at, T to) {
    const T before = *at;
    if (to > before) *at = to;
    return before;
}
template <class T> static inline T atomicExch(T* at, T to) {
    const T before = *at;
    *at = to;
    return before;
}
template <class T> static inline T atomicCAS(T* at, T expected, T to) {
    const T before = *at;
    if (before == expected) *at = to;
    return before;
}
