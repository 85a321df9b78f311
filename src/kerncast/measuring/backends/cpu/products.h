/* Products of bf16 and int8 that are summed in groups along K, 32 bits of either operand a lane (a cell).
 *
 *     pairs_bf16   two bf16 products           AVX512-BF16
 *     pairs_int8   two int16 products          VNNI, else SSE2 and up, else GNU vectors
 *     quads_int8   four products, unsigned by signed         VNNI
 *     amx_*        16 rows of 16 cells by 16 × 16 cells      AMX
 *
 * With KC_EMULATE all of them are computed in plain C, so that layouts and kernels can be tested on a CPU without
 * the instructions.
 */
#if defined(__AVX512F__) || defined(__AVXVNNI__)
#include <immintrin.h>
#endif

#if defined(KC_EMULATE) || (defined(__AVX512BF16__) && defined(__AVX512VL__))
#define KC_BF16_GROUP 2
#else
#define KC_BF16_GROUP 1
#endif
#if defined(KC_EMULATE) || (defined(__AVX512VNNI__) && defined(__AVX512VL__)) || defined(__AVXVNNI__)
#define KC_INT8_GROUP 4
#else
#define KC_INT8_GROUP 1
#endif
/* clang 14 names them without the second underscore. */
#if (defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__)) || \
    (defined(__AMXTILE__) && defined(__AMXBF16__) && defined(__AMXINT8__)) || defined(KC_EMULATE)
#define KC_TILE_ROWS 16
#else
#define KC_TILE_ROWS 1
#endif

/* ---- int16 pairs: int8 widened by the packer, so no sum of two overflows ---------------------- */

#define KC_PLAIN_PAIRS(BYTES)                                                                                 \
    KC_INLINE int32_v##BYTES pairs_int8_v##BYTES(int32_v##BYTES c, int32_v##BYTES x, int32_v##BYTES y) {      \
        return c + (x << 16 >> 16) * (y << 16 >> 16) + (x >> 16) * (y >> 16);                                 \
    }
#define KC_X86_PAIRS(BYTES, MULTIPLY, W)                                                                      \
    KC_INLINE int32_v##BYTES pairs_int8_v##BYTES(int32_v##BYTES c, int32_v##BYTES x, int32_v##BYTES y) {      \
        return c + (int32_v##BYTES)MULTIPLY((W)x, (W)y);                                                      \
    }
#define KC_INTRINSIC(NAME, BYTES, V, CALL)                                                                    \
    KC_INLINE V##_v##BYTES NAME##_v##BYTES(V##_v##BYTES c, int32_v##BYTES x, int32_v##BYTES y) {              \
        return (V##_v##BYTES)CALL;                                                                            \
    }
typedef int16_t kc_int16_8 __attribute__((vector_size(16)));
typedef int16_t kc_int16_16 __attribute__((vector_size(32)));

#if defined(KC_EMULATE) || !defined(__SSE2__)
KC_PLAIN_PAIRS(16)
KC_PLAIN_PAIRS(32)
KC_PLAIN_PAIRS(64)
#else
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
KC_INTRINSIC(pairs_int8, 16, int32, _mm_dpwssd_epi32((__m128i)c, (__m128i)x, (__m128i)y))
KC_INTRINSIC(pairs_int8, 32, int32, _mm256_dpwssd_epi32((__m256i)c, (__m256i)x, (__m256i)y))
KC_INTRINSIC(pairs_int8, 64, int32, _mm512_dpwssd_epi32((__m512i)c, (__m512i)x, (__m512i)y))
#else
#ifdef __AVXVNNI__
KC_INTRINSIC(pairs_int8, 16, int32, _mm_dpwssd_avx_epi32((__m128i)c, (__m128i)x, (__m128i)y))
KC_INTRINSIC(pairs_int8, 32, int32, _mm256_dpwssd_avx_epi32((__m256i)c, (__m256i)x, (__m256i)y))
#else
KC_X86_PAIRS(16, __builtin_ia32_pmaddwd128, kc_int16_8)
#ifdef __AVX2__
KC_X86_PAIRS(32, __builtin_ia32_pmaddwd256, kc_int16_16)
#else
KC_PLAIN_PAIRS(32)
#endif
#endif
#ifdef __AVX512BW__
KC_INTRINSIC(pairs_int8, 64, int32, _mm512_add_epi32((__m512i)c, _mm512_madd_epi16((__m512i)x, (__m512i)y)))
#else
KC_PLAIN_PAIRS(64)
#endif
#endif
#endif

/* ---- bf16 pairs and int8 quads: only where there are instructions ----------------------------- */

#ifdef KC_EMULATE
#define KC_EMULATED(BYTES)                                                                                    \
    KC_INLINE fp32_v##BYTES pairs_bf16_v##BYTES(fp32_v##BYTES c, int32_v##BYTES x, int32_v##BYTES y) {        \
        const int32_v##BYTES upper = (int32_v##BYTES){0} + (int32_t)0xffff0000;                               \
        return c + (fp32_v##BYTES)(x << 16) * (fp32_v##BYTES)(y << 16)                                        \
               + (fp32_v##BYTES)(x & upper) * (fp32_v##BYTES)(y & upper);                                     \
    }                                                                                                         \
    KC_INLINE int32_v##BYTES quads_int8_v##BYTES(int32_v##BYTES c, int32_v##BYTES x, int32_v##BYTES y) {      \
        for (int bit = 0; bit < 32; bit += 8) c += (x >> bit & 255) * (y << (24 - bit) >> 24);                \
        return c;                                                                                             \
    }
KC_EMULATED(16)
KC_EMULATED(32)
KC_EMULATED(64)
#else
#if KC_BF16_GROUP == 2
KC_INTRINSIC(pairs_bf16, 16, fp32, _mm_dpbf16_ps((__m128)c, (__m128bh)x, (__m128bh)y))
KC_INTRINSIC(pairs_bf16, 32, fp32, _mm256_dpbf16_ps((__m256)c, (__m256bh)x, (__m256bh)y))
KC_INTRINSIC(pairs_bf16, 64, fp32, _mm512_dpbf16_ps((__m512)c, (__m512bh)x, (__m512bh)y))
#endif
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
KC_INTRINSIC(quads_int8, 16, int32, _mm_dpbusd_epi32((__m128i)c, (__m128i)x, (__m128i)y))
KC_INTRINSIC(quads_int8, 32, int32, _mm256_dpbusd_epi32((__m256i)c, (__m256i)x, (__m256i)y))
KC_INTRINSIC(quads_int8, 64, int32, _mm512_dpbusd_epi32((__m512i)c, (__m512i)x, (__m512i)y))
#elif defined(__AVXVNNI__)
KC_INTRINSIC(quads_int8, 16, int32, _mm_dpbusd_avx_epi32((__m128i)c, (__m128i)x, (__m128i)y))
KC_INTRINSIC(quads_int8, 32, int32, _mm256_dpbusd_avx_epi32((__m256i)c, (__m256i)x, (__m256i)y))
#endif
#endif

/* ---- tiles: 16 rows of 64 bytes each; the driver has configured all eight registers so -------- */

#ifdef KC_EMULATE
static _Thread_local union { int32_t i[16][16]; float f[16][16]; uint16_t h[16][32]; int8_t b[16][64]; } kc_tiles[8];
KC_INLINE void kc_tile_move(int t, char *at, int64_t stride, int store) {
    for (int i = 0; i < 16; i++) {
        if (store) memcpy(at + i * stride, kc_tiles[t].i[i], 64);
        else memcpy(kc_tiles[t].i[i], at + i * stride, 64);
    }
}
KC_INLINE void kc_tile_product(int c, int a, int b, int bf16) {
    for (int m = 0; m < 16; m++)
        for (int k = 0; k < 16; k++)
            for (int n = 0; n < 16; n++) {
                for (int e = 0; bf16 && e < 2; e++)
                    kc_tiles[c].f[m][n] += bf16_one(kc_tiles[a].h[m][2 * k + e]) * bf16_one(kc_tiles[b].h[k][2 * n + e]);
                for (int e = 0; !bf16 && e < 4; e++)
                    kc_tiles[c].i[m][n] += kc_tiles[a].b[m][4 * k + e] * kc_tiles[b].b[k][4 * n + e];
            }
}
#define KC_TILE_ZERO(T) memset(&kc_tiles[T], 0, sizeof kc_tiles[T])
#define KC_TILE_LOAD(T, AT, STRIDE) kc_tile_move(T, (char *)(AT), STRIDE, 0)
#define KC_TILE_STORE(T, AT, STRIDE) kc_tile_move(T, (char *)(AT), STRIDE, 1)
#define KC_TILE_BF16(C, A, B) kc_tile_product(C, A, B, 1)
#define KC_TILE_INT8(C, A, B) kc_tile_product(C, A, B, 0)
#elif KC_TILE_ROWS == 16
#define KC_TILE_ZERO(T) _tile_zero(T)
#define KC_TILE_LOAD(T, AT, STRIDE) _tile_loadd(T, AT, STRIDE)
#define KC_TILE_STORE(T, AT, STRIDE) _tile_stored(T, AT, STRIDE)
#define KC_TILE_BF16(C, A, B) _tile_dpbf16ps(C, A, B)
#define KC_TILE_INT8(C, A, B) _tile_dpbssd(C, A, B)
#endif
