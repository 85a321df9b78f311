/* Whether the forest for failures, if there is one, expects the config to run. */
static int kc_runs(const double *p, const double *c) {
#if KC_FAILURE_FORESTS
    double x[KC_FEATURES + 1], raw[KC_RAW];
    unsigned char holds[KC_MODEL_CONDITIONS];
    kc_features(p, c, x);
    kc_hold(x, holds);
    for (int32_t i = 0; i < KC_FAILURE_FORESTS; i++)
        raw[KC_FIRST_FAILURE_FOREST + i] = kc_walk(holds, KC_FIRST_FAILURE_FOREST + i);
    return !kc_fails(raw);
#else
    (void)p, (void)c;
    return 1;
#endif
}

