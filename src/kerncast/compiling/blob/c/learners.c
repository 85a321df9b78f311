/* -- from what is learned to times and scores ------------------------------------------------------- */

static double kc_base(const kerncast_context *kc, const double *v) {
    const int64_t place = KC_FACT(TARGET_BASE);
    const double base = place < 0 ? 1.0 : v[place];
    return KC_FACT(TARGET_TFLOPS) ? base / 1e3 : base;
}

static double kc_decode(const kerncast_context *kc, double target, const double *v) {
    if (KC_FACT(TARGET_RATE)) {
        const double rate = KC_FACT(TARGET_LOG) ? expm1(target) : target;
        return kc_base(kc, v) / (rate > @LEAST_RATE@ ? rate : @LEAST_RATE@);
    }
    const double time_ns = (KC_FACT(TARGET_LOG) ? exp(target) : target) * kc_base(kc, v);
    return time_ns > 1e-3 ? time_ns : 1e-3;
}

static double kc_encode(const kerncast_context *kc, double time_ns, const double *v) {
    if (KC_FACT(TARGET_RATE)) {
        const double rate = kc_base(kc, v) / time_ns;
        return KC_FACT(TARGET_LOG) ? log1p(rate) : rate;
    }
    const double ratio = time_ns / kc_base(kc, v);
    return KC_FACT(TARGET_LOG) ? log(ratio) : ratio;
}

static double kc_log_time(const kerncast_context *kc, double target, const double *v) {
    return KC_FACT(TARGET_LOG) && !KC_FACT(TARGET_RATE) ? target : log(kc_decode(kc, target, v));
}

/* The mean over the bags of a forest. */
static double kc_mean(const double *raw, int64_t first, int64_t bags) {
    double total = raw[first];
    for (int64_t i = 1; i < bags; i++) total = total + raw[first + i];
    return bags == 1 ? total : total / (double)bags;
}

static int kc_fails(const kerncast_context *kc, const double *raw) {
    return KC_FAILURE_FORESTS > 0 && kc_mean(raw, KC_FIRST_FAILURE_FOREST, KC_FAILURE_FORESTS) < @LIKELY_TO_FAIL@;
}

static void kc_combine(const kerncast_context *kc, const double *v, const double *raw, double *time_ns, double *score) {
    const int64_t times = KC_FACT(TIME_FORESTS), ranks = KC_FACT(RANK_FORESTS), libraries = KC_FACT(LIBRARY_FORESTS);
    *time_ns = kc_decode(kc, raw[0], v);
    *score = *time_ns;
    if (kc->m.kind != KC_GBDT) {
        if (kc->m.raw > 1) *score = KC_NUMBER(BLEND_OWN) * kc_log_time(kc, raw[0], v) + KC_NUMBER(BLEND_OTHER) * raw[1];
        return;
    }
    if (ranks + libraries + KC_FAILURE_FORESTS == 0) return;
    double value = kc_log_time(kc, kc_mean(raw, 0, times), v);
    if (ranks > 0) value = KC_NUMBER(OWN) * value - KC_NUMBER(WEIGHT) * kc_mean(raw, times, ranks);
    if (libraries > 0) value = value + kc_mean(raw, times + ranks + KC_FAILURE_FORESTS, libraries);
    if (KC_FAILURE_FORESTS > 0) value = value + (kc_fails(kc, raw) ? @BEHIND@ : 0.0);
    *score = value;
}

/* The bounds of the score, from forests whose sums are off by at most ROUGH_ERROR. */
static void kc_bounds(const kerncast_context *kc, const double *raw, double *low, double *high) {
    const int64_t times = KC_FACT(TIME_FORESTS), ranks = KC_FACT(RANK_FORESTS), libraries = KC_FACT(LIBRARY_FORESTS);
    const double own = KC_NUMBER(OWN), weight = KC_NUMBER(WEIGHT), error = KC_NUMBER(ROUGH_ERROR);
    double value = own * kc_mean(raw, 0, times);
    if (ranks > 0) value -= weight * kc_mean(raw, times, ranks);
    if (libraries > 0) value += kc_mean(raw, times + ranks + KC_FAILURE_FORESTS, libraries);
    const double off = (own + weight + (libraries > 0 ? 1.0 : 0.0)) * error;
    *low = value - off;
    *high = value + off;
    if (KC_FAILURE_FORESTS > 0) {
        const double valid = kc_mean(raw, KC_FIRST_FAILURE_FOREST, KC_FAILURE_FORESTS);
        if (valid < @LIKELY_TO_FAIL@ - error) *low += @BEHIND@;
        if (valid < @LIKELY_TO_FAIL@ + error) *high += @BEHIND@;
    }
}

static int kc_trees_fails(const kerncast_context *kc, const kc_pool *pool, const double *raw) {
    /* The model's own forest is asked about the choice of a small one instead. */
    return !pool->imitates && kc_fails(kc, raw);
}

static void kc_trees_result(const kerncast_context *kc, const kc_pool *pool, const double *v, const double *raw, double *time_ns,
                            double *score) {
    if (pool->imitates) {
        *time_ns = -1.0;
        *score = -raw[0];
    } else
        kc_combine(kc, v, raw, time_ns, score);
}

static void kc_network(const kerncast_context *kc, const double *x, double *raw) {
    const ptrdiff_t widest = kc->m.widest;
    double *const buffers[] = {kc->layer, kc->layer + widest, kc->layer + 2 * widest, kc->layer + 3 * widest, raw};
    double *in = buffers[0];
    for (int32_t i = 0; i < kc->m.plain_count; i++) {
        const double value = x[kc->m.plain[2 * i]];
        const double wide = kc->m.plain[2 * i + 1] ? log1p(value > 0.0 ? value : 0.0) : value;
        *in++ = kc_clip((wide - kc->m.spread[2 * i]) / kc->m.spread[2 * i + 1]);
    }
    for (int32_t i = 0; i < kc->m.coded_count; i++) *in++ = x[kc->m.coded[i]] == kc->m.codes[i];
    for (int32_t i = 0; i < kc->m.layer_count; i++) {
        const kc_layer *layer = &kc->m.layers[i];
        const double *source = buffers[layer->source] + layer->offset;
        double *target = buffers[layer->target];
        if (layer->operation == 0)
            kc_dense(source, layer->rows, kc->m.weights + layer->weights, layer->bias < 0 ? NULL : kc->m.weights + layer->bias,
                     layer->columns, layer->rectify, target);
        else
            for (int32_t j = 0; j < layer->columns; j++) target[j] = layer->operation == 1 ? target[j] + source[j] : source[j];
    }
    raw[0] = raw[0] * KC_NUMBER(SPREAD) + KC_NUMBER(MIDDLE);
}

static void kc_forests(const kerncast_context *kc, const double *x, const double *p, const double *c, const double *v, double *raw);

static void kc_learn(const kerncast_context *kc, const double *x, const double *p, const double *c, const double *v, double *raw) {
    double key[2 * KC_MOST_PARAMETERS];
    switch (kc->m.kind) {
    case KC_GBDT: kc_forests(kc, x, p, c, v, raw); break;
    case KC_LEVEL: raw[0] = KC_NUMBER(LEVEL); break;
    case KC_LINEAR:
        for (int32_t i = 0; i < KC_LINE_COLUMNS; i++) {
            const int32_t place = kc->m.line_reads[i];
            key[i] = place < KC_PROBLEM ? p[place] : c[place - KC_PROBLEM];
        }
        raw[0] = kc_encode(kc, kc_line_time(kc, key, v[KC_FACT(LINE_SIZE)]), v);
        break;
    default: kc_network(kc, x, raw);
    }
}

