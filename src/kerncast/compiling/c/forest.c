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

/* Thresholds below a value: `value <= threshold[k]` holds from there on. The last few are counted, which needs no branch and
   is done several at a time. */
static int32_t kc_bin(const double *threshold, int32_t count, double value) {
    const double *base = threshold;
    int32_t left = count, below = 0;
    for (; left > 16; left -= left / 2) base += left / 2 & -(base[left / 2 - 1] < value);
    for (int32_t i = 0; i < left; i++) below += base[i] < value;
    return (int32_t)(base - threshold) + below;
}
