/* What generated kernels are made of: vector types, sums over lanes, loads that widen bf16 and int8.
 *
 * GNU vector extensions, so gcc and clang build it for any instruction set; products of narrow types are in
 * products.h, packers in packing.h.
 */
#include <stdint.h>
#include <string.h>

#define KC_INLINE static inline __attribute__((always_inline, unused))

#ifdef __clang__
#define KC_PICK(V, x, y, i0, i1, i2, i3) __builtin_shufflevector(x, y, i0, i1, i2, i3)
#define KC_PICK8(x, y, ...) __builtin_shufflevector(x, y, __VA_ARGS__)
#else
#define KC_PICK(V, x, y, i0, i1, i2, i3) __builtin_shuffle(x, y, (V##_mask){i0, i1, i2, i3})
#define KC_PICK8(x, y, ...) __builtin_shuffle(x, y, (kc_eight_mask){__VA_ARGS__})
#endif

/* KC_HOLD keeps a loaded vector in a register: gcc would rather load it again for every product. KC_KEEP, after a
 * product, says that both factors are still wanted, so that the sum must stay in its own register: otherwise gcc
 * lets accumulators wander through the registers of the factors, and moves or spills them all. No code comes of
 * either. */
#if defined(KC_EMULATE) /* vectors wider than the machine's are in no register */
#elif defined(__AVX512F__)
#define KC_REGISTER "v"
#elif defined(__x86_64__)
#define KC_REGISTER "x"
#elif defined(__aarch64__)
#define KC_REGISTER "w"
#endif
#ifdef KC_REGISTER
#define KC_HOLD(x) __asm__ volatile("" : "+" KC_REGISTER(x));
#define KC_KEEP(c, x, y) __asm__ volatile("" : "+" KC_REGISTER(c) : KC_REGISTER(x), KC_REGISTER(y));
#else
#define KC_HOLD(x)
#define KC_KEEP(c, x, y)
#endif

/* KC_PINNED declares a sum in a register of its own; KC_PINNED_WIDE one that only AVX-512 has. */
#if defined(KC_REGISTER) && defined(__x86_64__) && !defined(__clang__)
#define KC_PINNED(V, x, n) register V x __asm__("xmm" #n)
#else
#define KC_PINNED(V, x, n) V x
#endif
#ifdef __AVX512VL__
#define KC_PINNED_WIDE KC_PINNED
#else
#define KC_PINNED_WIDE(V, x, n) V x
#endif

/* Aligned to one element: matrices start anywhere. */
#define KC_VECTOR(D, T, BYTES) typedef T D##_v##BYTES __attribute__((vector_size(BYTES), aligned(sizeof(T)), may_alias));

#define KC_HALVES(D, T, BYTES, HALF)                                \
    KC_INLINE T D##_sum##BYTES(D##_v##BYTES v) {                    \
        union { D##_v##BYTES whole; D##_v##HALF half[2]; } u = {v}; \
        return D##_sum##HALF(u.half[0] + u.half[1]);                \
    }

KC_VECTOR(fp32, float, 16)
KC_VECTOR(fp32, float, 32)
KC_VECTOR(fp32, float, 64)
KC_INLINE float fp32_sum16(fp32_v16 v) { return (v[0] + v[1]) + (v[2] + v[3]); }
KC_HALVES(fp32, float, 32, 16)
KC_HALVES(fp32, float, 64, 32)

KC_VECTOR(fp64, double, 16)
KC_VECTOR(fp64, double, 32)
KC_VECTOR(fp64, double, 64)
KC_INLINE double fp64_sum16(fp64_v16 v) { return v[0] + v[1]; }
KC_HALVES(fp64, double, 32, 16)
KC_HALVES(fp64, double, 64, 32)

KC_VECTOR(int32, int32_t, 16)
KC_VECTOR(int32, int32_t, 32)
KC_VECTOR(int32, int32_t, 64)
KC_INLINE int32_t int32_sum16(int32_v16 v) { return (v[0] + v[1]) + (v[2] + v[3]); }
KC_HALVES(int32, int32_t, 32, 16)
KC_HALVES(int32, int32_t, 64, 32)

/* bf16 is the upper half of an fp32: widening is a shift. */
KC_INLINE float bf16_one(uint16_t x) {
    union { uint32_t bits; float value; } u = {(uint32_t)x << 16};
    return u.value;
}
KC_INLINE int32_t int8_one(int8_t x) { return x; }

/* D_loadN: as many elements as 32-bit lanes; D_allN: one element in every lane; int8_wideN: elements as int16, in
 * the pairs that int16 products take. */
#define KC_WIDEN(BYTES, QUARTER)                                                                              \
    typedef uint32_t kc_cells##BYTES __attribute__((vector_size(BYTES), aligned(4), may_alias));              \
    typedef uint16_t kc_shorts##BYTES __attribute__((vector_size(BYTES), aligned(2), may_alias));             \
    typedef uint16_t kc_half##BYTES __attribute__((vector_size(BYTES / 2), aligned(2), may_alias));           \
    typedef int16_t kc_words##BYTES __attribute__((vector_size(BYTES), aligned(2), may_alias));               \
    typedef int8_t kc_octets##BYTES __attribute__((vector_size(BYTES / 2), aligned(1), may_alias));           \
    typedef int8_t kc_quarter##BYTES __attribute__((vector_size(QUARTER), aligned(1), may_alias));            \
    KC_INLINE fp32_v##BYTES bf16_load##BYTES(const uint16_t *s) {                                             \
        return (fp32_v##BYTES)(__builtin_convertvector(*(const kc_half##BYTES *)s, kc_cells##BYTES) << 16);   \
    }                                                                                                         \
    KC_INLINE fp32_v##BYTES bf16_all##BYTES(uint16_t x) {                                                     \
        return (fp32_v##BYTES)((kc_cells##BYTES)(x - (kc_shorts##BYTES){0}) << 16);                           \
    }                                                                                                         \
    KC_INLINE int32_v##BYTES int8_load##BYTES(const int8_t *s) {                                              \
        kc_quarter##BYTES v;                                                                                  \
        memcpy(&v, s, sizeof v);                                                                              \
        return __builtin_convertvector(v, int32_v##BYTES);                                                    \
    }                                                                                                         \
    KC_INLINE int32_v##BYTES int8_all##BYTES(int8_t x) { return (int32_t)x - (int32_v##BYTES){0}; }           \
    KC_INLINE int32_v##BYTES int8_wide##BYTES(const int8_t *s) {                                              \
        return (int32_v##BYTES)__builtin_convertvector(*(const kc_octets##BYTES *)s, kc_words##BYTES);        \
    }
KC_WIDEN(16, 4)
KC_WIDEN(32, 8)
KC_WIDEN(64, 16)

#ifndef KC_NO_PRODUCTS
#include "products.h"
#endif
#include "packing.h"
