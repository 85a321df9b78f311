/* One config with all features, for configs that are in no pool. */
static void kc_row_of(const double *v, const double *p, const double *c, double *time_ns, double *score) {
    double x[KC_FEATURES + 1], raw[KC_RAW];
    kc_features(p, c, x);
    kc_learn(x, p, c, v, raw);
    kc_combine(v, raw, time_ns, score);
}

static void kc_row(const double *p, const double *c, double *time_ns, double *score) {
    double v[KC_VALUES];
    kc_problem_values(p, v);
    kc_row_of(v, p, c, time_ns, score);
}
