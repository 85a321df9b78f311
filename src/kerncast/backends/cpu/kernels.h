/* Vector types, sums over lanes, and the packers that bring strips of A and B into k-major order.
 *
 * A strip is `width` neighbours (rows of A, columns of B) over a block of K. It is stored either by rows
 * (element (i, k) at i * stride + k) or k-major (element (i, k) at k * stride + i). Generated kernels and
 * packers include this file; GNU vector extensions alone, so gcc and clang build it for any instruction set.
 */
#include <stdint.h>
#include <string.h>

#define KC_INLINE static inline __attribute__((always_inline, unused))

#ifdef __clang__
#define KC_PICK(V, x, y, i0, i1, i2, i3) __builtin_shufflevector(x, y, i0, i1, i2, i3)
#else
#define KC_PICK(V, x, y, i0, i1, i2, i3) __builtin_shuffle(x, y, (V##_mask){i0, i1, i2, i3})
#endif

/* KC_HOLD keeps a loaded vector in a register: gcc would rather load it again for every product. KC_KEEP, after a
 * product, says that both factors are still wanted, so that the sum must stay in its own register: otherwise gcc
 * lets accumulators wander through the registers of the factors, and moves or spills them all. No code comes of
 * either. */
#if defined(__AVX512F__)
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

/* Aligned to one element: matrices start anywhere. */
#define KC_VECTOR(D, T, BYTES) typedef T D##_v##BYTES __attribute__((vector_size(BYTES), aligned(sizeof(T)), may_alias));

#define KC_HALVES(D, T, BYTES, HALF)                                \
    KC_INLINE T D##_sum##BYTES(D##_v##BYTES v) {                    \
        union { D##_v##BYTES whole; D##_v##HALF half[2]; } u = {v}; \
        return D##_sum##HALF(u.half[0] + u.half[1]);                \
    }

/* Transposing 4 × 4 at a time is what keeps packing cheap for short M or N. */
#define KC_PACKING(D, T, I)                                                                               \
    typedef T D##_quad __attribute__((vector_size(4 * sizeof(T)), aligned(sizeof(T)), may_alias));        \
    typedef I D##_quad_mask __attribute__((vector_size(4 * sizeof(I))));                                  \
    KC_INLINE void D##_transpose(const T *s, int64_t stride, T *d, int64_t width) {                       \
        D##_quad r0 = *(const D##_quad *)s, r1 = *(const D##_quad *)(s + stride);                         \
        D##_quad r2 = *(const D##_quad *)(s + 2 * stride), r3 = *(const D##_quad *)(s + 3 * stride);      \
        D##_quad x0 = KC_PICK(D##_quad, r0, r1, 0, 4, 1, 5), x1 = KC_PICK(D##_quad, r0, r1, 2, 6, 3, 7);  \
        D##_quad y0 = KC_PICK(D##_quad, r2, r3, 0, 4, 1, 5), y1 = KC_PICK(D##_quad, r2, r3, 2, 6, 3, 7);  \
        *(D##_quad *)d = KC_PICK(D##_quad, x0, y0, 0, 1, 4, 5);                                           \
        *(D##_quad *)(d + width) = KC_PICK(D##_quad, x0, y0, 2, 3, 6, 7);                                 \
        *(D##_quad *)(d + 2 * width) = KC_PICK(D##_quad, x1, y1, 0, 1, 4, 5);                             \
        *(D##_quad *)(d + 3 * width) = KC_PICK(D##_quad, x1, y1, 2, 3, 6, 7);                             \
    }                                                                                                     \
    KC_INLINE void D##_pack_rows(int64_t k, int64_t valid, const T *s, int64_t stride, T *d, const int64_t width) { \
        int64_t q = 0;                                                                                    \
        if (width == 1) {                                                                                 \
            memcpy(d, s, (size_t)k * sizeof(T));                                                          \
            return;                                                                                       \
        }                                                                                                 \
        /* 16 steps of K: a whole cache line of a group of rows before the next group evicts it. */       \
        for (; width >= 4 && valid == width && q + 16 <= k; q += 16)                                      \
            for (int64_t i = 0; i < width; i += 4) {                                                      \
                int64_t g = i + 4 <= width ? i : width - 4;                                               \
                for (int64_t p = q; p < q + 16; p += 4)                                                   \
                    D##_transpose(s + g * stride + p, stride, d + p * width + g, width);                  \
            }                                                                                             \
        for (; q < k; q++)                                                                                \
            for (int64_t i = 0; i < width; i++) d[q * width + i] = i < valid ? s[i * stride + q] : (T)0;  \
    }                                                                                                     \
    KC_INLINE void D##_pack_kmajor(int64_t k, int64_t valid, const T *s, int64_t stride, T *d, const int64_t width) { \
        for (int64_t q = 0; q < k; q++, s += stride, d += width) {                                        \
            if (valid == width) {                                                                         \
                memcpy(d, s, (size_t)width * sizeof(T));                                                  \
                continue;                                                                                 \
            }                                                                                             \
            for (int64_t i = 0; i < width; i++) d[i] = i < valid ? s[i] : (T)0;                           \
        }                                                                                                 \
    }

#define KC_PACKER(D, T, WIDTH)                                                                            \
    void pack_rows_##D##_##WIDTH(int64_t k, int64_t valid, const void *s, int64_t stride, void *d) {      \
        D##_pack_rows(k, valid, (const T *)s, stride, (T *)d, WIDTH);                                     \
    }                                                                                                     \
    void pack_kmajor_##D##_##WIDTH(int64_t k, int64_t valid, const void *s, int64_t stride, void *d) {    \
        D##_pack_kmajor(k, valid, (const T *)s, stride, (T *)d, WIDTH);                                   \
    }

KC_VECTOR(fp32, float, 16)
KC_VECTOR(fp32, float, 32)
KC_VECTOR(fp32, float, 64)
KC_INLINE float fp32_sum16(fp32_v16 v) { return (v[0] + v[1]) + (v[2] + v[3]); }
KC_HALVES(fp32, float, 32, 16)
KC_HALVES(fp32, float, 64, 32)
KC_PACKING(fp32, float, int32_t)

KC_VECTOR(fp64, double, 16)
KC_VECTOR(fp64, double, 32)
KC_VECTOR(fp64, double, 64)
KC_INLINE double fp64_sum16(fp64_v16 v) { return v[0] + v[1]; }
KC_HALVES(fp64, double, 32, 16)
KC_HALVES(fp64, double, 64, 32)
KC_PACKING(fp64, double, int64_t)
