/* Fixed kernels that tell how fast this machine is now: the sentinels, and the rates of the device profile. */
#define _GNU_SOURCE
#include "kernels.h"
#include "tiles.h"
#include <time.h>

#if defined(__AVX512F__) || defined(KC_EMULATE)
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
int64_t kc_bf16_group(void) { return KC_BF16_GROUP; }
int64_t kc_int8_group(void) { return KC_INT8_GROUP; }
int64_t kc_tile_rows(void) { return KC_TILE_ROWS; }

/* Twelve independent chains hide the latency of two FMA units (4 or 5 cycles each) in 16 registers. */
#define FMA(NAME, T)                                                                                       \
    int64_t NAME(int64_t launches, int64_t steps) {                                                        \
        typedef T v __attribute__((vector_size(WIDE)));                                                    \
        /* Read again each time: chains that begin alike would be computed once. */                         \
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

/* Products of narrow types by the best instruction there is: as many of a step's as kc_products_* say. */
#define CHAINS 12
#define V_(NAME, BYTES) NAME##BYTES
#define V(NAME, BYTES) V_(NAME, BYTES)
#define PRODUCTS(NAME, SUM, MULTIPLY)                                                                      \
    static int64_t NAME##_vectors(int64_t count) {                                                         \
        volatile int32_t seed = 0;                                                                         \
        V(SUM##_v, WIDE) c0 = {0}, c1 = {0}, c2 = {0}, c3 = {0}, c4 = {0}, c5 = {0}, c6 = {0}, c7 = {0};   \
        V(SUM##_v, WIDE) c8 = {0}, c9 = {0}, c10 = {0}, c11 = {0};                                         \
        V(int32_v, WIDE) x = seed - (V(int32_v, WIDE)){0}, y = x;                                          \
        const int64_t start = now();                                                                       \
        for (int64_t i = 0; i < count; i++) {                                                              \
            CHAIN(MULTIPLY, c0) CHAIN(MULTIPLY, c1) CHAIN(MULTIPLY, c2) CHAIN(MULTIPLY, c3)                \
            CHAIN(MULTIPLY, c4) CHAIN(MULTIPLY, c5) CHAIN(MULTIPLY, c6) CHAIN(MULTIPLY, c7)                \
            CHAIN(MULTIPLY, c8) CHAIN(MULTIPLY, c9) CHAIN(MULTIPLY, c10) CHAIN(MULTIPLY, c11)              \
        }                                                                                                  \
        const int64_t spent = now() - start;                                                               \
        seed = (int32_t)(c0 + c1 + c2 + c3 + c4 + c5 + c6 + c7 + c8 + c9 + c10 + c11)[0];                  \
        return spent;                                                                                      \
    }
/* x may have changed, for all the compiler knows: every product is made again. */
#define CHAIN(MULTIPLY, C)                                                                                 \
    KC_HOLD(x)                                                                                             \
    C = V(MULTIPLY##_v, WIDE)(C, x, y);                                                                    \
    KC_HOLD(C)
#if KC_TILE_ROWS == 16
/* Four chains of tile registers: 16 × 16 sums of 16 cells each. */
#define TILES(NAME, MULTIPLY)                                                                              \
    static int64_t NAME##_tiles(int64_t count) {                                                           \
        begin_tiles();                                                                                     \
        KC_TILE_ZERO(0); KC_TILE_ZERO(1); KC_TILE_ZERO(2); KC_TILE_ZERO(3);                                \
        KC_TILE_ZERO(4); KC_TILE_ZERO(5); KC_TILE_ZERO(6); KC_TILE_ZERO(7);                                \
        const int64_t start = now();                                                                       \
        for (int64_t i = 0; i < count; i++) {                                                              \
            MULTIPLY(0, 4, 6); MULTIPLY(1, 4, 7); MULTIPLY(2, 5, 6); MULTIPLY(3, 5, 7);                    \
        }                                                                                                  \
        const int64_t spent = now() - start;                                                               \
        end_tiles();                                                                                       \
        return spent;                                                                                      \
    }
#define TILE_PRODUCTS (4 * 16 * 16 * 16)
#else
#define TILES(NAME, MULTIPLY) static int64_t NAME##_tiles(int64_t count) { return 0; }
#define TILE_PRODUCTS 0
#endif
#define RATE(NAME, GROUP, TILE_GROUP)                                                                      \
    int64_t kc_products_##NAME(void) { return tiles_allowed() ? TILE_GROUP * TILE_PRODUCTS : CHAINS * WIDE / 4 * GROUP; } \
    int64_t kc_multiply_##NAME(int64_t launches, int64_t steps) {                                          \
        return tiles_allowed() ? NAME##_tiles(launches * steps) : NAME##_vectors(launches * steps);        \
    }
#if KC_BF16_GROUP == 2
PRODUCTS(bf16, fp32, pairs_bf16)
#else
static int64_t bf16_vectors(int64_t count) { return kc_fma_fp32(1, count); }
#endif
#if KC_INT8_GROUP == 4
PRODUCTS(int8, int32, quads_int8)
#else
PRODUCTS(int8, int32, pairs_int8)
#endif
TILES(bf16, KC_TILE_BF16)
TILES(int8, KC_TILE_INT8)
RATE(bf16, KC_BF16_GROUP, 2)
RATE(int8, (KC_INT8_GROUP == 4 ? 4 : 2), 4)

/* One addition a cycle, each waiting for the one before: the clock. What is added is in a register: with a
   constant, a recent Xeon seemed to run at 13.6 GHz instead of 3.5, probably because its cores combine such additions. */
int64_t kc_clock(int64_t launches, int64_t steps) {
    int64_t x = 0, one = 1;
    const int64_t start = now();
    for (int64_t i = 0; i < launches * steps; i++) {
#define ADD x += one; __asm__ volatile("" : "+r"(x), "+r"(one));
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
