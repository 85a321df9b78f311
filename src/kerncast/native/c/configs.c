/* -- configs ---------------------------------------------------------------------------------------- */

/* The row of a candidate in the tables, or -1: tiers that are not exported may know more configs. */
static int32_t kc_stored(const kc_model *m, int32_t candidate) {
    if (m->stored == m->candidates) return candidate;
    int32_t low = 0, high = m->stored;
    while (low < high) {
        const int32_t middle = low + (high - low) / 2;
        if (m->stored_candidates[middle] < candidate)
            low = middle + 1;
        else
            high = middle;
    }
    return low < m->stored && m->stored_candidates[low] == candidate ? low : -1;
}

/* A parameter of the candidate in a row of the tables. */
static int64_t kc_row_value(const kc_model *m, int32_t row, int32_t parameter) {
    const kc_config_number number = m->configs[(size_t)row * (size_t)m->config.count + (size_t)parameter];
    return number == KC_CONFIG_MISSING ? KERNCAST_MISSING : (int64_t)number;
}

static int64_t kc_config_value(const kc_model *m, int32_t candidate, int32_t parameter) {
    return kc_row_value(m, kc_stored(m, candidate), parameter);
}

static void kc_config_numbers(const kc_model *m, int32_t candidate, double *c) {
    const int32_t row = kc_stored(m, candidate);
    for (int32_t i = 0; i < m->config.count; i++) {
        const int64_t value = kc_row_value(m, row, i);
        c[i] = value == KERNCAST_MISSING ? m->config.parameters[i].inactive : (double)value;
    }
}

/* Whether the configs of a band were tried on problems like this one; without `sizes`, on problems with its labels. */
static int kc_within(const kc_model *m, int32_t band, const double *p, int sizes) {
    for (int32_t i = 0; i < m->problem.count; i++) {
        const ptrdiff_t at = (ptrdiff_t)band * m->problem.count + i;
        const unsigned bit = p[i] < 0.0 ? 0u : p[i] > 63.0 ? 63u : (unsigned)p[i];
        if (sizes && (p[i] < m->tried_low[at] || p[i] > m->tried_high[at])) return 0;
        if (!(m->tried_labels[at] >> bit & 1u)) return 0;
    }
    return 1;
}

static int kc_config_valid(const kc_model *m, const double *p, const double *c) { return kc_broken_config_rule(m, p, c) < 0; }

/* Whether a candidate is available, obeys the rules, and was tried on such problems; `c` gets its parameters. */
static KC_MAYBE int kc_fits(const kc_model *m, const kerncast_context *context, const double *p, int32_t candidate, double *c) {
    kc_config_numbers(m, candidate, c);
    return context->available[candidate] && kc_config_valid(m, p, c) && kc_within(m, m->tried_band[kc_stored(m, candidate)], p, 1);
}

/* -- names of kernels ------------------------------------------------------------------------------- */

/* The name of a candidate as the data have it; it may depend on some parameters of the problem. Empty: not known. */
static const char *kc_label_of(const kc_model *m, const int64_t *key, int32_t candidate) {
    const int32_t row = candidate < 0 || candidate >= m->candidates ? -1 : kc_stored(m, candidate);
    for (int32_t variant = 0; variant < m->label_variants && row >= 0; variant++) {
        int same = 1;
        for (int32_t i = 0; i < m->label_keys; i++)
            same &= m->label_values[variant * m->label_keys + i] == key[m->label_places[i]];
        if (!same) continue;
        const int32_t text = m->label_texts[(size_t)variant * m->stored + (size_t)row];
        return text < 0 ? "" : m->label_names[text];
    }
    return "";
}

