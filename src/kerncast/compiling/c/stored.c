/* -- which candidates the tables hold --------------------------------------------------------------- */

/* The row of a candidate in the tables, or -1: tiers that are not exported may know more configs. */
static int32_t kc_stored(int32_t candidate) {
#if KC_STORED == KC_CANDIDATES
    return candidate;
#else
    int32_t low = 0, high = KC_STORED;
    while (low < high) {
        const int32_t middle = low + (high - low) / 2;
        if (kc_stored_candidates[middle] < candidate)
            low = middle + 1;
        else
            high = middle;
    }
    return low < KC_STORED && kc_stored_candidates[low] == candidate ? low : -1;
#endif
}

