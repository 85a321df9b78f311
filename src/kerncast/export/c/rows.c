/* -- the pool `pool`, config by config ------------------------------------------------------------------ */

/* Scores and times of every config that can run the problem; 0 when there is none. */
static int kc_pool_score(kerncast_context *context, const double *p, int best_only) {
    (void)best_only;
    double v[KC_VALUES], c[KC_CONFIG + 1];
    int some = 0;
    kc_problem_values(p, v);
    for (int32_t i = 0; i < KC_POOL_CONFIGS; i++) {
        kc_config_numbers(kc_pool_members[i], c);
        context->allowed[i] = (unsigned char)kc_config_valid(p, c);
        some |= context->allowed[i];
        if (context->allowed[i]) kc_row_of(v, p, c, &context->time_ns[i], &context->score[i]);
    }
    return some;
}
