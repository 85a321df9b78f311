
/* -- the tree's comparison of a few configs ---------------------------------------------------------- */

/* `sum` and the comparing trees from `first` up to `end`, added in order. */
static double kc_compared_sum(const double *x, int32_t first, int32_t end, double sum) {
    for (int32_t tree = first; tree < end; tree++) {
        int32_t at = kc_comparing_root[tree];
        while (at >= 0) {
            const kc_comparing_node node = kc_comparing_nodes[at];
            at = x[node.feature] <= kc_comparing_threshold[at] ? node.left : node.right;
        }
        sum += kc_comparing_leaves[-1 - at];
    }
    return sum;
}

/* What the comparing trees read of a config of the portfolio; what they read of the problem is in `x` already. */
static void kc_compared_config(int32_t place, double *x) {
    for (int32_t i = 0; i < KC_COMPARED_OF_CONFIG; i++)
        x[KC_COMPARED_OF_PROBLEM + i] = kc_compared_configs[(ptrdiff_t)place * KC_COMPARED_OF_CONFIG + i];
    kc_compared_mixed(x);
}

/* Exchange the first place from `start` with the one of the largest sum before `end`; if sums are equal, of the first candidate. */
static void kc_largest_first(double *sum, int32_t *place, int32_t start, int32_t end) {
    int32_t best = start;
    for (int32_t i = start + 1; i < end; i++)
        if (sum[i] > sum[best] || (sum[i] == sum[best] && kc_tree_members[place[i]] < kc_tree_members[place[best]]))
            best = i;
    const double largest = sum[best];
    const int32_t own = place[best];
    sum[best] = sum[start], place[best] = place[start];
    sum[start] = largest, place[start] = own;
}

/* The best of the first `most` configs of a list that can run the problem, or -1. A few trees compare all of these, all trees the
   best few. They do not know what fails, so the model is asked about what they put first. */
static int32_t kc_compare(const kerncast_context *context, const double *p, const kc_place *list, int32_t most) {
    double x[KC_COMPARED_VALUES], c[KC_CONFIG + 1], sum[KC_MOST_COMPARED];
    int32_t place[KC_MOST_COMPARED], count = 0;
    kc_compared_problem(p, x);
    for (int32_t i = 0; i < KC_TREE_PLACES && list[i] >= 0 && count < most; i++) {
        if (!kc_fits(context, p, kc_tree_members[list[i]], c)) continue;
        kc_compared_config(list[i], x);
        place[count] = list[i];
        sum[count++] = kc_compared_sum(x, 0, KC_COMPARING_FIRST, 0.0);
    }
    const int32_t few = count < KC_COMPARED_BY_ALL ? count : KC_COMPARED_BY_ALL;
    for (int32_t i = 0; i < few; i++) kc_largest_first(sum, place, i, count);
    for (int32_t i = 0; i < few; i++) {
        kc_compared_config(place[i], x);
        sum[i] = kc_compared_sum(x, KC_COMPARING_FIRST, KC_COMPARING, sum[i]);
    }
    for (int32_t i = 0; i < count; i++) {
        kc_largest_first(sum, place, i, i < few ? few : count);
        const int32_t candidate = kc_tree_members[place[i]];
        kc_config_numbers(candidate, c);
        if (kc_runs(p, c)) return candidate;
    }
    return -1;
}
