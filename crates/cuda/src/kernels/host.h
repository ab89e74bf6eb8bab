// Has the host run kernels: each launch is a loop over blocks and threads, one after the other. For texts whose threads
// neither wait for each other nor share memory but by atomic additions.

#include <math.h>

struct Dim {
    unsigned x;
};
static thread_local Dim threadIdx, blockIdx, blockDim, gridDim;

#define __device__ static inline
#define __global__

static inline int __ffs(int bits) { return __builtin_ffs(bits); }
template <class T> static T atomicAdd(T* at, T by) { return __atomic_fetch_add(at, by, __ATOMIC_RELAXED); }

#define KERNEL(name, Args)                                                                                            \
    static void name##_thread(const Args& args);                                                                      \
    extern "C" void name(unsigned blocks, unsigned threads, void** parameters) {                                      \
        gridDim.x = blocks, blockDim.x = threads;                                                                     \
        for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++)                                                       \
            for (threadIdx.x = 0; threadIdx.x < threads; threadIdx.x++) name##_thread(*(const Args*)parameters[0]);   \
    }                                                                                                                 \
    static void name##_thread(const Args& args)
