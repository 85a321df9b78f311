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
 * Neighbours beyond the strip and steps beyond K are zero (to a zero of the other operand anything may be).
 */

#define KC_FORM(F, T, I)                                                                                      \
    typedef T F##_quad __attribute__((vector_size(4 * sizeof(T)), aligned(sizeof(T)), may_alias));            \
    typedef I F##_quad_mask __attribute__((vector_size(4 * sizeof(I))));

/* Transposing 4 × 4 at a time is what keeps packing cheap for short M or N. */
#define KC_PACKING(F, S, T, G, COPY)                                                                          \
    KC_INLINE void F##_transpose(const S *s, int64_t stride, T *d, int64_t width) {                           \
        F##_quad r0 = F##_row(s), r1 = F##_row(s + stride);                                                   \
        F##_quad r2 = F##_row(s + 2 * stride), r3 = F##_row(s + 3 * stride);                                  \
        F##_quad x0 = KC_PICK(F##_quad, r0, r1, 0, 4, 1, 5), x1 = KC_PICK(F##_quad, r0, r1, 2, 6, 3, 7);      \
        F##_quad y0 = KC_PICK(F##_quad, r2, r3, 0, 4, 1, 5), y1 = KC_PICK(F##_quad, r2, r3, 2, 6, 3, 7);      \
        *(F##_quad *)d = KC_PICK(F##_quad, x0, y0, 0, 1, 4, 5);                                               \
        *(F##_quad *)(d + width) = KC_PICK(F##_quad, x0, y0, 2, 3, 6, 7);                                     \
        *(F##_quad *)(d + 2 * width) = KC_PICK(F##_quad, x1, y1, 0, 1, 4, 5);                                 \
        *(F##_quad *)(d + 3 * width) = KC_PICK(F##_quad, x1, y1, 2, 3, 6, 7);                                 \
    }                                                                                                         \
    KC_INLINE void F##_rest(int64_t q, int64_t cells, int64_t k, int64_t valid, const S *s, int64_t stride, int64_t step, \
                            T *d, const int64_t width) {                                                      \
        for (; q < cells; q++)                                                                                \
            for (int64_t i = 0; i < width; i++) {                                                             \
                const int64_t left = k - q * G;                                                               \
                d[q * width + i] = i < valid && left > 0 ? F##_cell(s + i * stride + q * G * step, step, left < G ? left : G) \
                                                         : (T)0;                                              \
            }                                                                                                 \
    }                                                                                                         \
    KC_INLINE void F##_pack_rows(int64_t k, int64_t valid, const S *s, int64_t stride, T *d, const int64_t width, \
                                 const int64_t unit) {                                                        \
        int64_t q = 0;                                                                                        \
        if (width == 1 && COPY) {                                                                             \
            memcpy(d, s, (size_t)k * sizeof(T));                                                              \
            return;                                                                                           \
        }                                                                                                     \
        /* 16 cells of K: a whole cache line of a group of rows before the next group evicts it. */           \
        for (; width >= 4 && valid == width && q + 16 <= k / G; q += 16)                                      \
            for (int64_t i = 0; i < width; i += 4) {                                                          \
                int64_t g = i + 4 <= width ? i : width - 4;                                                   \
                for (int64_t p = q; p < q + 16; p += 4)                                                       \
                    F##_transpose(s + g * stride + p * G, stride, d + p * width + g, width);                  \
            }                                                                                                 \
        F##_rest(q, (k + unit - 1) / unit * unit / G, k, valid, s, stride, 1, d, width);                      \
    }                                                                                                         \
    KC_INLINE void F##_pack_kmajor(int64_t k, int64_t valid, const S *s, int64_t stride, T *d, const int64_t width, \
                                   const int64_t unit) {                                                      \
        int64_t q = 0;                                                                                        \
        for (; valid == width && q < k / G; q++) {                                                            \
            const S *from = s + q * G * stride;                                                               \
            T *to = d + q * width;                                                                            \
            if (COPY) {                                                                                       \
                memcpy(to, from, (size_t)width * sizeof(T));                                                  \
                continue;                                                                                     \
            }                                                                                                 \
            int64_t i = 0;                                                                                    \
            for (; i + 4 <= width; i += 4) *(F##_quad *)(to + i) = F##_column(from + i, stride);              \
            for (; i < width; i++) to[i] = F##_cell(from + i, stride, G);                                     \
        }                                                                                                     \
        F##_rest(q, (k + unit - 1) / unit * unit / G, k, valid, s, 1, stride, d, width);                      \
    }

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
    KC_INLINE T F##_cell(const T *s, int64_t step, int64_t n) { return *s; }                                  \
    KC_PACKING(F, T, T, 1, 1)
KC_SAME(fp32, float, int32_t)
KC_SAME(fp64, double, int64_t)
KC_SAME(bf16, uint16_t, int16_t)
KC_SAME(int8, int8_t, int8_t)

/* ---- widened to the type that is summed -------------------------------------------------------- */

KC_FORM(bf16_fp32, float, int32_t)
KC_INLINE bf16_fp32_quad bf16_fp32_row(const uint16_t *s) { return (bf16_fp32_quad)bf16_load16(s); }
KC_INLINE bf16_fp32_quad bf16_fp32_column(const uint16_t *s, int64_t stride) { return (bf16_fp32_quad)bf16_load16(s); }
KC_INLINE float bf16_fp32_cell(const uint16_t *s, int64_t step, int64_t n) { return bf16_one(*s); }
KC_PACKING(bf16_fp32, uint16_t, float, 1, 0)

KC_FORM(int8_int32, int32_t, int32_t)
KC_INLINE int8_int32_quad int8_int32_row(const int8_t *s) { return (int8_int32_quad)int8_load16(s); }
KC_INLINE int8_int32_quad int8_int32_column(const int8_t *s, int64_t stride) { return (int8_int32_quad)int8_load16(s); }
KC_INLINE int32_t int8_int32_cell(const int8_t *s, int64_t step, int64_t n) { return *s; }
KC_PACKING(int8_int32, int8_t, int32_t, 1, 0)

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
    }                                                                                                         \
    KC_PACKING(F, S, uint32_t, G, 0)
KC_GROUPS(bf16_pairs, uint16_t, 2, kc_lanes_bf16, , 0xffffu, *(const kc_cells16 *)s, 0u)
KC_GROUPS(int8_pairs, int8_t, 2, kc_lanes_int8, int8_one, 0xffffu, int8_wide16(s), 0u)
KC_GROUPS(int8_quads, int8_t, 4, kc_lanes_int8, int8_one, 0xffu, *(const kc_cells16 *)s, 0u)
/* The unsigned operand of a product unsigned by signed: 128 is added to each, and the kernel takes it away. */
KC_GROUPS(int8_unsigned, int8_t, 4, kc_lanes_int8, int8_one, 0xffu, *(const kc_cells16 *)s, 0x80808080u)

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
