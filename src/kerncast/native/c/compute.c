static void kc_compute(const kc_model *m, const kc_pool *pool, int32_t number, const double *v, double *out) {
    const kc_pool_group *group = &pool->groups[number];
    (void)m;
    pool->trees->compute[number](v, group->values, group->count, out);
}

