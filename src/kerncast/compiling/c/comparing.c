
/* -- the tree's comparison of a few configs ---------------------------------------------------------- */

/* The sum of the comparing trees, added in order. */
static double kc_compared_sum(const double *x) {
    double sum = 0.0;
    for (int32_t tree = 0; tree < KC_COMPARING; tree++) {
        int32_t at = kc_comparing_root[tree];
        while (at >= 0) {
            const kc_comparing_node node = kc_comparing_nodes[at];
            at = x[node.feature] <= kc_comparing_threshold[at] ? node.left : node.right;
        }
        sum += kc_comparing_leaves[-1 - at];
    }
    return sum;
}

/* The best of the first `most` configs of a list that can run the problem, or -1. The trees do not know what fails, so the
   model is asked about what they put first. */
static int32_t kc_compare(const kerncast_context *context, const double *p, const kc_place *list, int32_t most) {
    double x[KC_COMPARED_VALUES], c[KC_CONFIG + 1], sum[KC_MOST_COMPARED];
    int32_t found[KC_MOST_COMPARED], count = 0;
    kc_compared_problem(p, x);
    for (int32_t i = 0; i < KC_TREE_PLACES && list[i] >= 0 && count < most; i++) {
        if (!kc_fits(context, p, kc_portfolio_members[list[i]], c)) continue;
        for (int32_t k = 0; k < KC_COMPARED_OF_CONFIG; k++)
            x[KC_COMPARED_OF_PROBLEM + k] = kc_compared_configs[(ptrdiff_t)list[i] * KC_COMPARED_OF_CONFIG + k];
        kc_compared_mixed(x);
        found[count] = kc_portfolio_members[list[i]];
        sum[count++] = kc_compared_sum(x);
    }
    for (; count > 0; count--) {
        int32_t best = 0;
        for (int32_t i = 1; i < count; i++)
            if (sum[i] > sum[best] || (sum[i] == sum[best] && found[i] < found[best])) best = i;
        const int32_t candidate = found[best];
        kc_config_numbers(candidate, c);
        if (kc_runs(p, c)) return candidate;
        found[best] = found[count - 1];
        sum[best] = sum[count - 1];
    }
    return -1;
}
