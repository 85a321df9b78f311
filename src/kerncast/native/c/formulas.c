/* -- from what is learned to times and scores ------------------------------------------------------------ */

static double kc_base(const kc_model *m, const double *v) {
    const double base = m->target_base < 0 ? 1.0 : v[m->target_base];
    return m->target_tflops ? base / 1e3 : base;
}

static double kc_decode(const kc_model *m, double target, const double *v) {
    if (m->target_rate) {
        const double rate = m->target_log ? expm1(target) : target;
        return kc_base(m, v) / (rate > @LEAST_RATE@ ? rate : @LEAST_RATE@);
    }
    const double time_ns = (m->target_log ? exp(target) : target) * kc_base(m, v);
    return time_ns > 1e-3 ? time_ns : 1e-3;
}

static KC_MAYBE double kc_encoded(const kc_model *m, double time_ns, const double *v) {
    if (m->target_rate) {
        const double rate = kc_base(m, v) / time_ns;
        return m->target_log ? log1p(rate) : rate;
    }
    const double ratio = time_ns / kc_base(m, v);
    return m->target_log ? log(ratio) : ratio;
}

static KC_MAYBE double kc_log_of_time(const kc_model *m, double target, const double *v) {
    return m->target_log && !m->target_rate ? target : log(kc_decode(m, target, v));
}

/* The mean over the bags of a forest. */
static KC_MAYBE double kc_mean(const double *raw, int32_t first, int32_t bags) {
    double total = raw[first];
    for (int32_t i = 1; i < bags; i++) total = total + raw[first + i];
    return bags == 1 ? total : total / (double)bags;
}

static KC_MAYBE double kc_failure_mean(const kc_model *m, const double *raw) {
    return kc_mean(raw, m->time_forests + m->rank_forests, m->failure_forests);
}

/* Whether the forest for failures, if there is one, expects one. */
static KC_MAYBE int kc_fails(const kc_model *m, const double *raw) {
    return m->failure_forests > 0 && kc_failure_mean(m, raw) < @LIKELY_TO_FAIL@;
}

/* The score (low is chosen) of the forests of a gbdt. */
static KC_MAYBE double kc_forest_score(const kc_model *m, const double *v, const double *raw, double time_ns) {
    const int32_t times = m->time_forests, ranks = m->rank_forests, failures = m->failure_forests;
    if (ranks + failures + m->library_forests == 0) return time_ns;
    double value = kc_log_of_time(m, kc_mean(raw, 0, times), v);
    if (ranks > 0) value = m->own * value - m->weight * kc_mean(raw, times, ranks);
    if (m->library_forests > 0) value = value + kc_mean(raw, times + ranks + failures, m->library_forests);
    if (failures > 0) value = value + (kc_fails(m, raw) ? @BEHIND@ : 0.0);
    return value;
}

/* The bounds of the score, from forests whose sums are off by at most `rough_error`. */
static KC_MAYBE void kc_bounds(const kc_model *m, const double *raw, double *low, double *high) {
    const int32_t times = m->time_forests, ranks = m->rank_forests, libraries = m->library_forests;
    double value = m->own * kc_mean(raw, 0, times);
    if (ranks > 0) value -= m->weight * kc_mean(raw, times, ranks);
    if (libraries > 0) value += kc_mean(raw, times + ranks + m->failure_forests, libraries);
    const double off = (m->own + m->weight + (libraries > 0 ? 1.0 : 0.0)) * m->rough_error;
    *low = value - off;
    *high = value + off;
    if (m->failure_forests > 0) {
        const double runs = kc_failure_mean(m, raw);
        if (runs < @LIKELY_TO_FAIL@ - m->rough_error) *low += @BEHIND@;
        if (runs < @LIKELY_TO_FAIL@ + m->rough_error) *high += @BEHIND@;
    }
}

