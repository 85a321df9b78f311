/* What follows a product: a bias is added to every row, then an activation is applied. It is done on finished sums, a tile
 * at a time while the tile is still in L1, before they are rounded. */
enum { ACTIVATION_NONE = 0, ACTIVATION_RELU = 1, ACTIVATION_GELU = 2, ACTIVATION_SILU = 3 };

/* Eight floats at once. The blocks at the end of a row are copied, so that they are computed by the same instructions. */
#define LANES 8
typedef int32_v32 lanes_int;
typedef fp32_v32 lanes;

static inline lanes choose(lanes_int mask, lanes yes, lanes no) { return (lanes)((mask & (lanes_int)yes) | (~mask & (lanes_int)no)); }
static inline lanes all(float x) { return x - (lanes){0}; }

/* e^x as 2^n · e^r with |r| ≤ ln 2 / 2, by the series of e^r to r^7: within two units in the last place. */
static inline lanes exponential(lanes x) {
    x = choose((lanes_int)(x < all(-87.0f)), all(-87.0f), x);
    x = choose((lanes_int)(x > all(88.0f)), all(88.0f), x);
    const lanes shifted = x * 1.44269504f + 12582912.0f; /* adding 1.5 · 2^23 rounds to a whole number */
    const lanes n = shifted - 12582912.0f;
    const lanes r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    lanes sum = all(1.0f / 5040);
    sum = sum * r + 1.0f / 720, sum = sum * r + 1.0f / 120, sum = sum * r + 1.0f / 24;
    sum = sum * r + 1.0f / 6, sum = sum * r + 0.5f, sum = sum * r + 1.0f, sum = sum * r + 1.0f;
    const lanes_int power = ((lanes_int)shifted - 0x4b400000 + 127) << 23;
    return sum * (lanes)power;
}

static inline lanes activated_fp32(lanes x, int64_t activation) {
    const lanes zero = all(0.0f);
    const lanes_int negative = (lanes_int)(x < zero);
    if (activation == ACTIVATION_RELU) return choose(negative, zero, x);
    if (activation == ACTIVATION_SILU) return x / (1.0f + exponential(-x));
    if (activation == ACTIVATION_GELU) {
        /* x · Φ(x), the complement of Φ by Abramowitz and Stegun 7.1.26: an error of at most 1e-7 · |x|. */
        const lanes z = choose(negative, -x, x) * 0.707106781f, t = 1.0f / (1.0f + 0.3275911f * z);
        lanes tail = all(0.5f * 1.061405429f);
        tail = tail * t - 0.5f * 1.453152027f, tail = tail * t + 0.5f * 1.421413741f;
        tail = tail * t - 0.5f * 0.284496736f, tail = tail * t + 0.5f * 0.254829592f;
        tail = tail * t * exponential(-z * z);
        return x * choose(negative, tail, 1.0f - tail);
    }
    return x;
}

static double activated_fp64(double x, int64_t activation) {
    if (activation == ACTIVATION_RELU) return x < 0 ? 0 : x;
    if (activation == ACTIVATION_SILU) return x / (1 + exp(-x));
    if (activation == ACTIVATION_GELU) return 0.5 * x * erfc(-x * 0.70710678118654752440);
    return x;
}

typedef struct {
    const char *bias;    /* one element for each column; nothing: none */
    int64_t bias_stride; /* 0: one element for all columns */
    int64_t activation;
} epilogue;

static int has_epilogue(const epilogue *e) { return e->bias != 0 || e->activation != ACTIVATION_NONE; }

/* fp32 sums; a bias for results of bf16 is bf16, too. */
static void finish_fp32(const epilogue *e, int narrow, float *row, int64_t n, int64_t column) {
    for (int64_t j = 0; j < n; j += LANES) {
        const int64_t count = j + LANES <= n ? LANES : n - j;
        float values[LANES] = {0};
        memcpy(values, row + j, (size_t)count * sizeof *values);
        for (int64_t i = 0; e->bias && i < count; i++) {
            const int64_t at = (column + j + i) * e->bias_stride;
            values[i] += narrow ? bf16_one(((const uint16_t *)e->bias)[at]) : ((const float *)e->bias)[at];
        }
        lanes found;
        memcpy(&found, values, sizeof found);
        found = activated_fp32(found, e->activation);
        memcpy(row + j, &found, (size_t)count * sizeof *values);
    }
}

static void finish(const epilogue *e, int64_t result, char *sums, int64_t stride, int64_t m, int64_t n, int64_t column) {
    for (int64_t i = 0; i < m; i++) {
        if (result == RESULT_FP64) {
            double *row = (double *)sums + i * stride;
            for (int64_t j = 0; j < n; j++) {
                if (e->bias) row[j] += ((const double *)e->bias)[(column + j) * e->bias_stride];
                row[j] = activated_fp64(row[j], e->activation);
            }
        } else if (result == RESULT_INT32) {
            int32_t *row = (int32_t *)sums + i * stride;
            for (int64_t j = 0; j < n; j++) {
                if (e->bias) row[j] = (int32_t)((uint32_t)row[j] + (uint32_t)((const int32_t *)e->bias)[(column + j) * e->bias_stride]);
                if (e->activation == ACTIVATION_RELU && row[j] < 0) row[j] = 0;
            }
        } else {
            finish_fp32(e, result == RESULT_BF16, (float *)sums + i * stride, n, column);
        }
    }
}
