/* -- configs ---------------------------------------------------------------------------------------- */

/* A parameter of the candidate in a row of the tables. */
static int64_t kc_row_value(int32_t row, int32_t parameter) {
#if KC_CONFIG
    const kc_config_number stored = kc_configs[(size_t)row * KC_CONFIG + (size_t)parameter];
    return stored == KC_CONFIG_MISSING ? KERNCAST_MISSING : (int64_t)stored;
#else
    (void)row, (void)parameter;
    return KERNCAST_MISSING;
#endif
}

static int64_t kc_config_value(int32_t candidate, int32_t parameter) { return kc_row_value(kc_stored(candidate), parameter); }

static void kc_config_numbers(int32_t candidate, double *c) {
    const int32_t row = kc_stored(candidate);
    for (int32_t i = 0; i < KC_CONFIG; i++) {
        const int64_t value = kc_row_value(row, i);
        c[i] = value == KERNCAST_MISSING ? kc_config_parameters[i].inactive : (double)value;
    }
}

/* Whether the configs of a band were tried on problems like this one; without `sizes`, on problems with its labels. */
static int kc_within(int32_t band, const double *p, int sizes) {
    for (int32_t i = 0; i < KC_PROBLEM; i++) {
        const ptrdiff_t at = (ptrdiff_t)band * KC_PROBLEM + i;
        const unsigned bit = p[i] < 0.0 ? 0u : p[i] > 63.0 ? 63u : (unsigned)p[i];
        if (sizes && (p[i] < kc_tried_low[at] || p[i] > kc_tried_high[at])) return 0;
        if (!(kc_tried_labels[at] >> bit & 1u)) return 0;
    }
    return 1;
}
