/* -- the pool `pool`, config by config ------------------------------------------------------------------ */

/* Scores and times of every available config that can run the problem, or only of those tried on such problems, else on its
   labels, if there are any; 0 if there is none. */
static int kc_pool_score(kerncast_context *context, const double *p, int best_only) {
    double v[KC_VALUES], c[KC_CONFIG + 1];
    unsigned char most = 0;
    (void)best_only;
    for (int32_t i = 0; i < KC_POOL_CONFIGS; i++) {
        const int32_t band = kc_tried_band[kc_stored(kc_pool_members[i])];
        kc_config_numbers(kc_pool_members[i], c);
        context->allowed[i] = (unsigned char)(context->available[kc_pool_members[i]] && kc_config_valid(p, c));
        if (context->allowed[i]) context->allowed[i] = (unsigned char)(1 + kc_within(band, p, 0) + kc_within(band, p, 1));
        if (context->allowed[i] > most) most = context->allowed[i];
    }
    if (!most) return 0;
    kc_problem_values(p, v);
    for (int32_t i = 0; i < KC_POOL_CONFIGS; i++) {
        context->allowed[i] = context->allowed[i] == most;
        if (!context->allowed[i]) continue;
        kc_config_numbers(kc_pool_members[i], c);
        kc_row_of(v, p, c, &context->time_ns[i], &context->score[i]);
    }
    return 1;
}
