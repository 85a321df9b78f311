/* -- the pools of this model ------------------------------------------------------------------------- */

static int kc_any_score(const kerncast_context *kc, const kc_pool *pool, kerncast_context *context, const double *p, int best_only) {
    if (pool->configs == 0) return 0;
    if (pool->trees == NULL) return kc_each_score(kc, pool, context, p, best_only);
    return pool->words == 1 ? kc_narrow_score(kc, pool, context, p, best_only) : kc_wide_score(kc, pool, context, p, best_only);
}

static int kc_portfolio_score(const kerncast_context *kc, kerncast_context *context, const double *p, int best_only) {
    return kc_any_score(kc, &kc->portfolio, context, p, best_only);
}

static int kc_full_score(const kerncast_context *kc, kerncast_context *context, const double *p, int best_only) {
    return kc_any_score(kc, &kc->full, context, p, best_only);
}

static int kc_quick_score(const kerncast_context *kc, kerncast_context *context, const double *p, int best_only) {
    return kc_any_score(kc, &kc->quick, context, p, best_only);
}

/* Both for each pool that has trees: once, and after a change of what is available. */
static void kc_prepare(kerncast_context *kc) {
    const kc_pool *const pools[] = {&kc->portfolio, &kc->full, &kc->quick};
    for (int32_t i = 0; i < 3; i++) {
        if (pools[i]->trees == NULL || pools[i]->configs == 0) continue;
        if (pools[i]->words == 1) kc_narrow_prepare(kc, pools[i], kc);
        else kc_wide_prepare(kc, pools[i], kc);
    }
}

static void kc_mask(const kerncast_context *kc, kerncast_context *context) {
    const kc_pool *const pools[] = {&kc->portfolio, &kc->full, &kc->quick};
    for (int32_t i = 0; i < 3; i++) {
        if (pools[i]->trees == NULL || pools[i]->configs == 0) continue;
        if (pools[i]->words == 1) kc_narrow_mask(kc, pools[i], context);
        else kc_wide_mask(kc, pools[i], context);
    }
}

