/* The first forest is the one for times. */
static double kc_time(const double *p, const double *c) {
    double v[KC_VALUES], x[KC_FEATURES + 1];
    unsigned char holds[KC_MODEL_CONDITIONS];
    kc_problem_values(p, v);
    kc_features(p, c, x);
    kc_hold(x, holds);
    return kc_decode(kc_walk(holds, 0), v);
}

#define kc_model_result kc_combine
#define kc_model_fails kc_fails
