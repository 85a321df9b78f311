/* What the pool `pool` works in: sets of configs by condition, their sums by forest. */
typedef struct {
    kc_pool_condition condition[KC_TREES_CONDITIONS];
    uint64_t rows[KC_POOL_ROWS][KC_POOL_WORDS], bits[KC_POOL_BITS][KC_POOL_WORDS], valid[KC_POOL_WORDS];
    uint64_t there[KC_POOL_WORDS]; /* the configs that are available */
    uint64_t sets[KC_TREES_DEPTH + 2][KC_POOL_WORDS];
    double sums[KC_TREES_FORESTS][KC_POOL_WORDS * 64], out[KC_POOL_MOST_OUTPUTS];
    uint64_t tried[KC_POOL_BANDS][KC_POOL_WORDS];
    int32_t rough[KC_TREES_FORESTS][KC_POOL_ROUGH], eight[256][8];
} kc_pool_state;
