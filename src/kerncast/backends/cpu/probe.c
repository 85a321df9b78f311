/* Fixed kernels that tell how fast this machine is now: the sentinels, and the rates of the device profile. */
#define _GNU_SOURCE
#include <stdint.h>
#include <time.h>

#if defined(__AVX512F__)
#define WIDE 64
#elif defined(__AVX__)
#define WIDE 32
#else
#define WIDE 16
#endif

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int64_t kc_vector_bytes(void) { return WIDE; }

/* Twelve independent chains hide the latency of two FMA units (4 or 5 cycles each) in 16 registers. */
#define FMA(NAME, T)                                                                                       \
    int64_t NAME(int64_t launches, int64_t steps) {                                                        \
        typedef T v __attribute__((vector_size(WIDE)));                                                    \
        /* Read anew each time: chains that begin alike would be computed once. */                         \
        volatile T sink, seed = (T)0.5;                                                                    \
        v zero = {0}, x = zero + seed, y = zero + seed, c0 = zero + seed, c1 = zero + seed;                \
        v c2 = zero + seed, c3 = zero + seed, c4 = zero + seed, c5 = zero + seed, c6 = zero + seed;        \
        v c7 = zero + seed, c8 = zero + seed, c9 = zero + seed, c10 = zero + seed, c11 = zero + seed;      \
        const int64_t start = now();                                                                       \
        for (int64_t i = 0; i < launches * steps; i++) {                                                   \
            c0 = c0 * x + y, c1 = c1 * x + y, c2 = c2 * x + y, c3 = c3 * x + y, c4 = c4 * x + y;           \
            c5 = c5 * x + y, c6 = c6 * x + y, c7 = c7 * x + y, c8 = c8 * x + y, c9 = c9 * x + y;           \
            c10 = c10 * x + y, c11 = c11 * x + y;                                                          \
        }                                                                                                  \
        const int64_t spent = now() - start;                                                               \
        v all = c0 + c1 + c2 + c3 + c4 + c5 + c6 + c7 + c8 + c9 + c10 + c11;                               \
        sink = all[0];                                                                                     \
        (void)sink;                                                                                        \
        return spent;                                                                                      \
    }
FMA(kc_fma_fp32, float)
FMA(kc_fma_fp64, double)

/* One addition a cycle, each waiting for the one before: the clock. */
int64_t kc_clock(int64_t launches, int64_t steps) {
    int64_t x = 0;
    const int64_t start = now();
    for (int64_t i = 0; i < launches * steps; i++) {
#define ADD x += 1; __asm__ volatile("" : "+r"(x));
        ADD ADD ADD ADD ADD ADD ADD ADD ADD ADD ADD ADD ADD ADD ADD ADD
    }
    return now() - start;
}

/* Reads `bytes` (a multiple of 256) once a launch. */
int64_t kc_stream(int64_t launches, const void *data, int64_t bytes) {
    typedef int32_t v __attribute__((vector_size(WIDE), aligned(4), may_alias));
    volatile int32_t sink;
    v s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
    const int64_t start = now();
    for (int64_t i = 0; i < launches; i++)
        for (const char *p = data, *end = p + bytes; p < end; p += 4 * WIDE) {
            s0 += *(const v *)p, s1 += *(const v *)(p + WIDE);
            s2 += *(const v *)(p + 2 * WIDE), s3 += *(const v *)(p + 3 * WIDE);
        }
    const int64_t spent = now() - start;
    v all = s0 + s1 + s2 + s3;
    sink = all[0];
    (void)sink;
    return spent;
}
