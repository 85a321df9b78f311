/* Trees over sets of configs: a split divides a set in two, a leaf adds its value to the sums of all that reach it.

   One pass over a tree serves every config of a pool, and a split that the problem alone decides takes one test. */

#if defined(__GNUC__)
#define KC_LOWEST(word) ((unsigned)__builtin_ctzll(word))
#else
static unsigned KC_LOWEST(uint64_t word) {
    unsigned place = 0;
    while (!(word >> place & 1u)) place++;
    return place;
}
#endif

/* Thresholds below a value: `value <= threshold[k]` holds from there on. */
static int32_t kc_bin(const double *threshold, int32_t count, double value) {
    const double *base = threshold;
    int32_t left = count;
    while (left > 1) {
        const int32_t half = left / 2;
        base += base[half - 1] < value ? half : 0;
        left -= half;
    }
    return (int32_t)(base - threshold) + (*base < value);
}
