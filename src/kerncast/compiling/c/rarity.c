/* How unlike the measured problems a problem is, as `models/limits/widening.py` computes it: whole numbers, then one sum. */

#if KC_TRAITS
static int64_t kc_aligned(int64_t size) {
    int64_t power = 0;
    while (power < KC_MOST_ALIGNED && size % ((int64_t)2 << power) == 0) power++;
    return power;
}

static int64_t kc_octave(int64_t size) {
    int64_t octave = 0;
    for (; size > 0; size /= 2) octave++;
    return octave;
}

static int64_t kc_trait_of(const kc_trait *trait, const int64_t *key) {
    const int64_t one = key[trait->one], other = key[trait->other];
    if (one == KERNCAST_MISSING || other == KERNCAST_MISSING) return KC_ABSENT;
    if (trait->what == 0) return kc_aligned(one);
    if (trait->what == 1) return kc_octave(one);
    if (trait->what == 2) return kc_octave(one) - kc_octave(other);
    return one;
}

static double kc_rarity(const int64_t *key) {
    double total = 0.0;
    for (int32_t i = 0; i < KC_TRAITS; i++) {
        const kc_trait *trait = &kc_traits[i];
        const int64_t value = kc_trait_of(trait, key);
        double bits = trait->unseen;
        for (int32_t j = trait->first; j < trait->first + trait->count; j++)
            if (kc_trait_values[j] == value) {
                bits = kc_trait_bits[j];
                break;
            }
        total += bits;
    }
    return total;
}
#endif

/* Which of the intervals holds for a problem: its band of rarity, plus KC_RARE_BANDS times its band of size. */
static int32_t kc_interval_of(const int64_t *key, const double *p) {
    int32_t band = 0, size_band = 0;
#if KC_TRAITS
    const double rarity = kc_rarity(key);
    while (band < KC_RARE_BANDS - 1 && kc_rare_edges[band] <= rarity) band++;
#endif
#if KC_SIZE_BANDS > 1
    double size;
    kc_size(p, &size);
    while (size_band < KC_SIZE_BANDS - 1 && kc_size_edges[size_band] <= size) size_band++;
#endif
    (void)key;
    (void)p;
    return size_band * KC_RARE_BANDS + band;
}
