/* Packers: they bring strips of A and B into k-major order, widened or grouped as the kernel takes them.
 *
 * A strip is `width` neighbours (rows of A, columns of B) over a block of K. It is stored either by rows
 * (element (i, k) at i * stride + k) or k-major (element (i, k) at k * stride + i), and is packed as cells: cell
 * (i, q) at q * width + i holds `group` neighbours along K. A form F of cells brings
 *
 *     F_row(s)             four cells along K, from 4 * group neighbours of one row
 *     F_column(s, stride)  four cells along the width, from `group` steps of K
 *     F_cell(s, step, n)   one cell from its first n elements
 *
 * Steps beyond K are zero (to a zero of the other operand anything may be). Neighbours beyond the strip are any numbers
 * of the strip, or zero: what comes of them is not written to C.
 */

#define KC_FORM(F, T, I)                                                                                      \
    typedef T F##_quad __attribute__((vector_size(4 * sizeof(T)), aligned(sizeof(T)), may_alias));            \
    typedef I F##_quad_mask __attribute__((vector_size(4 * sizeof(I))));

/* 8 × 8 elements of 32 bits: halves of the work of four times 4 × 4, where vectors are of 32 bytes. */
KC_VECTOR(kc_eight, float, 32)
typedef int32_t kc_eight_mask __attribute__((vector_size(32)));
#define KC_LOW(x, y) KC_PICK8(x, y, 0, 8, 1, 9, 4, 12, 5, 13)
#define KC_HIGH(x, y) KC_PICK8(x, y, 2, 10, 3, 11, 6, 14, 7, 15)
#define KC_LOW2(x, y) KC_PICK8(x, y, 0, 1, 8, 9, 4, 5, 12, 13)
#define KC_HIGH2(x, y) KC_PICK8(x, y, 2, 3, 10, 11, 6, 7, 14, 15)
#define KC_EIGHT_ROW(i) kc_eight_v32 r##i = *(const kc_eight_v32 *)(s + i * stride);
#define KC_EIGHT_PUT(i, j, x, y)                                                                              \
    *(kc_eight_v32 *)(d + i * width) = KC_PICK8(x, y, 0, 1, 2, 3, 8, 9, 10, 11);                              \
    *(kc_eight_v32 *)(d + j * width) = KC_PICK8(x, y, 4, 5, 6, 7, 12, 13, 14, 15);
KC_INLINE void kc_transpose8(const float *s, int64_t stride, float *d, const int64_t width) {
    KC_EIGHT_ROW(0) KC_EIGHT_ROW(1) KC_EIGHT_ROW(2) KC_EIGHT_ROW(3)
    KC_EIGHT_ROW(4) KC_EIGHT_ROW(5) KC_EIGHT_ROW(6) KC_EIGHT_ROW(7)
    const kc_eight_v32 x0 = KC_LOW(r0, r1), x1 = KC_LOW(r2, r3), x2 = KC_LOW(r4, r5), x3 = KC_LOW(r6, r7);
    KC_EIGHT_PUT(0, 4, KC_LOW2(x0, x1), KC_LOW2(x2, x3))
    KC_EIGHT_PUT(1, 5, KC_HIGH2(x0, x1), KC_HIGH2(x2, x3))
    const kc_eight_v32 y0 = KC_HIGH(r0, r1), y1 = KC_HIGH(r2, r3), y2 = KC_HIGH(r4, r5), y3 = KC_HIGH(r6, r7);
    KC_EIGHT_PUT(2, 6, KC_LOW2(y0, y1), KC_LOW2(y2, y3))
    KC_EIGHT_PUT(3, 7, KC_HIGH2(y0, y1), KC_HIGH2(y2, y3))
}

/* For packing_cells.h: names of a form's functions, and picks whose form is spelled out first. */
#define KC_JOINED(form, part) KC_JOINED_(form, part)
#define KC_JOINED_(form, part) form##_##part
#define KC_PICK_SPELLED(...) KC_PICK(__VA_ARGS__)

#define KC_PACKER(NAME, F, S, T, WIDTH, UNIT)                                                                 \
    void pack_rows_##NAME##_##WIDTH(int64_t k, int64_t valid, const void *s, int64_t stride, void *d) {       \
        F##_pack_rows(k, valid, (const S *)s, stride, (T *)d, WIDTH, UNIT);                                   \
    }                                                                                                         \
    void pack_kmajor_##NAME##_##WIDTH(int64_t k, int64_t valid, const void *s, int64_t stride, void *d) {     \
        F##_pack_kmajor(k, valid, (const S *)s, stride, (T *)d, WIDTH, UNIT);                                 \
    }

/* ---- elements as they are --------------------------------------------------------------------- */

#define KC_SAME(F, T, I)                                                                                      \
    KC_FORM(F, T, I)                                                                                          \
    KC_INLINE F##_quad F##_row(const T *s) { return *(const F##_quad *)s; }                                   \
    KC_INLINE F##_quad F##_column(const T *s, int64_t stride) { return *(const F##_quad *)s; }                \
    KC_INLINE T F##_cell(const T *s, int64_t step, int64_t n) { return *s; }
KC_SAME(fp32, float, int32_t)
#define KC_CELLS fp32
#define KC_FROM float
#define KC_TO float
#define KC_COPY 1
#include "packing_cells.h"
KC_SAME(fp64, double, int64_t)
#define KC_CELLS fp64
#define KC_FROM double
#define KC_TO double
#define KC_COPY 1
#include "packing_cells.h"
KC_SAME(bf16, uint16_t, int16_t)
#define KC_CELLS bf16
#define KC_FROM uint16_t
#define KC_TO uint16_t
#define KC_COPY 1
#include "packing_cells.h"
KC_SAME(int8, int8_t, int8_t)
#define KC_CELLS int8
#define KC_FROM int8_t
#define KC_TO int8_t
#define KC_COPY 1
#include "packing_cells.h"

/* ---- widened to the type that is summed -------------------------------------------------------- */

KC_FORM(bf16_fp32, float, int32_t)
KC_INLINE bf16_fp32_quad bf16_fp32_row(const uint16_t *s) { return (bf16_fp32_quad)bf16_load16(s); }
KC_INLINE bf16_fp32_quad bf16_fp32_column(const uint16_t *s, int64_t stride) { return (bf16_fp32_quad)bf16_load16(s); }
KC_INLINE float bf16_fp32_cell(const uint16_t *s, int64_t step, int64_t n) { return bf16_one(*s); }
#define KC_CELLS bf16_fp32
#define KC_FROM uint16_t
#define KC_TO float
#include "packing_cells.h"

KC_FORM(int8_int32, int32_t, int32_t)
KC_INLINE int8_int32_quad int8_int32_row(const int8_t *s) { return (int8_int32_quad)int8_load16(s); }
KC_INLINE int8_int32_quad int8_int32_column(const int8_t *s, int64_t stride) { return (int8_int32_quad)int8_load16(s); }
KC_INLINE int32_t int8_int32_cell(const int8_t *s, int64_t step, int64_t n) { return *s; }
#define KC_CELLS int8_int32
#define KC_FROM int8_t
#define KC_TO int32_t
#include "packing_cells.h"

/* ---- groups along K: the first element in the lowest bits -------------------------------------- */

/* Four elements as 32-bit lanes, cut to the bits that they take in a cell. */
KC_INLINE kc_cells16 kc_lanes_bf16(const uint16_t *s) { return __builtin_convertvector(*(const kc_half16 *)s, kc_cells16); }
KC_INLINE kc_cells16 kc_lanes_int8(const int8_t *s) { return (kc_cells16)int8_load16(s); }

#define KC_GROUPS(F, S, G, LANES, ONE, MASK, ROW, FLIP)                                                       \
    KC_FORM(F, uint32_t, int32_t)                                                                             \
    KC_INLINE F##_quad F##_row(const S *s) { return (F##_quad)(ROW) ^ FLIP; }                                 \
    KC_INLINE F##_quad F##_column(const S *s, int64_t stride) {                                               \
        kc_cells16 all = {0};                                                                                 \
        for (int64_t e = 0; e < G; e++) all |= (LANES(s + e * stride) & MASK) << (uint32_t)(e * (32 / G));    \
        return (F##_quad)(all ^ FLIP);                                                                        \
    }                                                                                                         \
    KC_INLINE uint32_t F##_cell(const S *s, int64_t step, int64_t n) {                                        \
        uint32_t all = 0;                                                                                     \
        for (int64_t e = 0; e < n; e++) all |= ((uint32_t)ONE(s[e * step]) & MASK) << (e * (32 / G));         \
        return all ^ FLIP;                                                                                    \
    }
KC_GROUPS(bf16_pairs, uint16_t, 2, kc_lanes_bf16, , 0xffffu, *(const kc_cells16 *)s, 0u)
#define KC_CELLS bf16_pairs
#define KC_FROM uint16_t
#define KC_TO uint32_t
#define KC_GROUP 2
#include "packing_cells.h"
KC_GROUPS(int8_pairs, int8_t, 2, kc_lanes_int8, int8_one, 0xffffu, int8_wide16(s), 0u)
#define KC_CELLS int8_pairs
#define KC_FROM int8_t
#define KC_TO uint32_t
#define KC_GROUP 2
#include "packing_cells.h"
KC_GROUPS(int8_quads, int8_t, 4, kc_lanes_int8, int8_one, 0xffu, *(const kc_cells16 *)s, 0u)
#define KC_CELLS int8_quads
#define KC_FROM int8_t
#define KC_TO uint32_t
#define KC_GROUP 4
#include "packing_cells.h"
/* The unsigned operand of a product unsigned by signed: 128 is added to each, and the kernel takes it away. */
KC_GROUPS(int8_unsigned, int8_t, 4, kc_lanes_int8, int8_one, 0xffu, *(const kc_cells16 *)s, 0x80808080u)
#define KC_CELLS int8_unsigned
#define KC_FROM int8_t
#define KC_TO uint32_t
#define KC_GROUP 4
#include "packing_cells.h"

/* ---- for dot products: each neighbour's elements together, k apart ------------------------------ */

#define KC_ALONG(F, S, C)                                                                                     \
    KC_INLINE void F##_pack_rows(int64_t k, int64_t valid, const S *s, int64_t stride, S *d, int64_t width, int64_t unit) { \
        for (int64_t i = 0; i < valid; i++) memcpy(d + i * k, s + i * stride, (size_t)k * sizeof(S));         \
    }                                                                                                         \
    KC_INLINE void F##_pack_kmajor(int64_t k, int64_t valid, const S *s, int64_t stride, S *d, int64_t width, int64_t unit) { \
        for (int64_t q = 0; k >= 4 && q < k; q += 4)                                                          \
            for (int64_t i = 0; valid >= 4 && i < valid; i += 4) {                                            \
                const int64_t g = i + 4 <= valid ? i : valid - 4, at = q + 4 <= k ? q : k - 4;                \
                const S *from = s + at * stride + g;                                                          \
                C##_transpose(from, stride, d + g * k + at, k);                                               \
            }                                                                                                 \
        for (int64_t q = 0; (k < 4 || valid < 4) && q < k; q++)                                               \
            for (int64_t i = 0; i < valid; i++) d[i * k + q] = s[q * stride + i];                             \
    }
KC_ALONG(fp32_along, float, fp32)
KC_ALONG(fp64_along, double, fp64)
KC_ALONG(bf16_along, uint16_t, bf16)
KC_ALONG(int8_along, int8_t, int8)

/* ---- the left operand of a tile product: 64 bytes of each row together ------------------------- */

#define KC_LINES(F, S, G)                                                                                     \
    KC_INLINE void F##_pack(int64_t k, int64_t valid, const S *s, int64_t stride, int64_t step, S *d, int64_t width) { \
        for (int64_t q = 0; q < k; q += G)                                                                    \
            for (int64_t i = 0; i < width; i++, d += G) {                                                     \
                const int64_t n = i < valid ? (k - q < G ? k - q : G) : 0;                                    \
                const S *from = s + i * stride + q * step;                                                    \
                if (n < G) memset(d, 0, G * sizeof(S));                                                       \
                if (step == 1) memcpy(d, from, (size_t)n * sizeof(S));                                        \
                else for (int64_t e = 0; e < n; e++) d[e] = from[e * step];                                   \
            }                                                                                                 \
    }                                                                                                         \
    KC_INLINE void F##_pack_rows(int64_t k, int64_t valid, const S *s, int64_t stride, S *d, int64_t width, int64_t unit) { \
        F##_pack(k, valid, s, stride, 1, d, width);                                                           \
    }                                                                                                         \
    KC_INLINE void F##_pack_kmajor(int64_t k, int64_t valid, const S *s, int64_t stride, S *d, int64_t width, int64_t unit) { \
        F##_pack(k, valid, s, 1, stride, d, width);                                                           \
    }
KC_LINES(bf16_lines, uint16_t, 32)
KC_LINES(int8_lines, int8_t, 64)
