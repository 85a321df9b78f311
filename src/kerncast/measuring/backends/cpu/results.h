/* What becomes of sums: they are added to others, and a result that is narrower (bf16) is rounded from them. */
enum { RESULT_FP32 = 0, RESULT_FP64 = 1, RESULT_BF16 = 2, RESULT_INT32 = 3 };

/* m × n sums of a tile or of a thread, added to what is there or put in its place: by vectors, half vectors, one. */
#define MERGE_BY(V, N)                                                                                      \
    for (; j + N <= n; j += N) {                                                                            \
        if (add) *(V *)(x + j) += *(const V *)(y + j);                                                      \
        else *(V *)(x + j) = *(const V *)(y + j);                                                           \
    }
#define MERGE(NAME, D, T)                                                                                   \
    static void NAME(char *to, int64_t to_stride, const char *from, int64_t from_stride, int64_t m, int64_t n, int add) { \
        for (int64_t i = 0; i < m; i++) {                                                                   \
            T *x = (T *)to + i * to_stride;                                                                 \
            const T *y = (const T *)from + i * from_stride;                                                 \
            int64_t j = 0;                                                                                  \
            MERGE_BY(D##_v32, 32 / (int64_t)sizeof(T))                                                      \
            MERGE_BY(D##_v16, 16 / (int64_t)sizeof(T))                                                      \
            for (; j < n; j++) x[j] = add ? x[j] + y[j] : y[j];                                             \
        }                                                                                                   \
    }
MERGE(merge_fp32, fp32, float)
MERGE(merge_fp64, fp64, double)
MERGE(merge_int32, int32, int32_t)

static void merge(int64_t result, char *to, int64_t to_stride, const char *from, int64_t from_stride, int64_t m, int64_t n,
                  int add) {
    void (*merges)(char *, int64_t, const char *, int64_t, int64_t, int64_t, int) = merge_fp32;
    if (result == RESULT_FP64) merges = merge_fp64;
    if (result == RESULT_INT32) merges = merge_int32;
    merges(to, to_stride, from, from_stride, m, n, add);
}

/* To the nearest bf16, ties to even; what is not a number stays one. */
#define ROUND 8
typedef uint32_t words __attribute__((vector_size(4 * ROUND), aligned(4), may_alias));
typedef uint16_t halves __attribute__((vector_size(2 * ROUND), aligned(2), may_alias));

static uint16_t rounded(uint32_t x) {
    return (uint16_t)((x & 0x7fffffff) > 0x7f800000 ? x >> 16 | 64 : (x + 0x7fff + (x >> 16 & 1)) >> 16);
}

static void round_to_bf16(char *to, int64_t to_stride, const char *from, int64_t from_stride, int64_t m, int64_t n) {
    for (int64_t i = 0; i < m; i++) {
        uint16_t *y = (uint16_t *)to + i * to_stride;
        const char *row = from + i * from_stride * 4;
        int64_t j = 0;
        for (; j + ROUND <= n; j += ROUND) {
            const words x = *(const words *)(row + 4 * j), even = x + 0x7fff + (x >> 16 & 1), nan = x | 0x400000;
            const words is_nan = (words)((x & 0x7fffffff) > 0x7f800000);
            *(halves *)(y + j) = __builtin_convertvector(((even & ~is_nan) | (nan & is_nan)) >> 16, halves);
        }
        for (; j < n; j++) {
            uint32_t x;
            memcpy(&x, row + 4 * j, 4);
            y[j] = rounded(x);
        }
    }
}
