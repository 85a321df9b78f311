/* -- what a model says of a row ---------------------------------------------------------------------------- */

static void kc_learn_forests(const kc_model *m, const double *x, double *raw);

static void kc_network(const kc_model *m, const double *x, double *raw) {
    const ptrdiff_t widest = m->loaded.widest;
    double *const first = m->loaded.layer, *in = first;
    double *const buffers[] = {first, first + widest, first + 2 * widest, first + 3 * widest, raw};
    for (int32_t i = 0; i < m->loaded.plain_count; i++) {
        const double value = x[m->loaded.plain[2 * i]];
        const double wide = m->loaded.plain[2 * i + 1] ? log1p(value > 0.0 ? value : 0.0) : value;
        *in++ = kc_clip((wide - m->loaded.spread[2 * i]) / m->loaded.spread[2 * i + 1]);
    }
    for (int32_t i = 0; i < m->loaded.coded_count; i++) *in++ = x[m->loaded.coded[i]] == m->loaded.codes[i];
    for (int32_t i = 0; i < m->loaded.layer_count; i++) {
        const kc_layer *layer = &m->loaded.layers[i];
        const double *source = buffers[layer->source] + layer->offset;
        double *target = buffers[layer->target];
        if (layer->operation == 0)
            kc_dense(source, layer->rows, m->loaded.weights + layer->weights, layer->bias < 0 ? NULL : m->loaded.weights + layer->bias,
                     layer->columns, layer->rectify, target);
        else
            for (int32_t j = 0; j < layer->columns; j++) target[j] = layer->operation == 1 ? target[j] + source[j] : source[j];
    }
    raw[0] = raw[0] * KC_NUMBER(SPREAD) + KC_NUMBER(MIDDLE);
}

static void kc_learn_line(const kc_model *m, const double *p, const double *c, const double *v, double *raw) {
    double key[2 * KC_MOST_PARAMETERS];
    for (int32_t i = 0; i < m->loaded.line_columns; i++) {
        const int32_t place = m->loaded.line_reads[i];
        key[i] = place < m->problem.count ? p[place] : c[place - m->problem.count];
    }
    const double time_ns = kc_line_time(m->loaded.line_keys, m->loaded.lines, m->loaded.line_count, m->loaded.line_columns, key,
                                        v[KC_FACT(LINE_SIZE)]);
    raw[0] = kc_encoded(m, time_ns, v);
}

static void kc_learned(const kc_model *m, const double *x, const double *p, const double *c, const double *v, double *raw) {
    switch (m->loaded.kind) {
    case KC_GBDT: kc_learn_forests(m, x, raw); break;
    case KC_LEVEL: raw[0] = KC_NUMBER(LEVEL); break;
    case KC_LINEAR: kc_learn_line(m, p, c, v, raw); break;
    default: kc_network(m, x, raw);
    }
}

static double kc_score_of(const kc_model *m, const double *v, const double *raw, double time_ns) {
    if (m->loaded.kind == KC_GBDT) return kc_forest_score(m, v, raw, time_ns);
    return m->loaded.raw > 1 ? KC_NUMBER(BLEND_OWN) * kc_log_of_time(m, raw[0], v) + KC_NUMBER(BLEND_OTHER) * raw[1] : time_ns;
}

