/* -- the tree --------------------------------------------------------------------------------------- */

#if KC_WITH_TREE

/* The number of the list of the leaf that a problem reaches. */
KC_INLINE int32_t kc_leaf_list(const kc_model *m, const double *p) {
    double value[KC_MOST_TREE_FEATURES];
    int32_t node = m->tree_nodes > 0 ? 0 : -1; /* below zero: the leaf -1 - node */
    kc_tree_values(m, p, value);
    while (node >= 0)
        node = value[m->tree_feature[node]] <= m->tree_threshold[node] ? m->tree_left[node] : m->tree_right[node];
    return m->tree_list[-1 - node];
}

#if KC_WITH_COMPARING

/* `sum` and the comparing trees from `first` up to `end`, added in order. */
static double kc_compared_sum(const kc_model *m, const double *x, int32_t first, int32_t end, double sum) {
    for (int32_t tree = first; tree < end; tree++) {
        int32_t at = m->comparing_root[tree];
        while (at >= 0) {
            const kc_comparing_node node = m->comparing_nodes[at];
            at = x[node.feature] <= m->comparing_threshold[at] ? node.left : node.right;
        }
        sum += m->comparing_leaves[-1 - at];
    }
    return sum;
}

/* What the comparing trees read of a config of the portfolio; what they read of the problem is in `x` already. */
static void kc_compared_config(const kc_model *m, int32_t place, double *x) {
    for (int32_t i = 0; i < m->compared_of_config; i++)
        x[m->compared_of_problem + i] = m->compared_configs[(ptrdiff_t)place * m->compared_of_config + i];
    kc_compared_mixed(m, x);
}

/* Exchange the first place from `start` with the one of the largest sum before `end`; if sums are equal, of the first candidate. */
static void kc_largest_first(const kc_model *m, double *sum, int32_t *place, int32_t start, int32_t end) {
    int32_t best = start;
    for (int32_t i = start + 1; i < end; i++)
        if (sum[i] > sum[best] || (sum[i] == sum[best] && m->tree_members[place[i]] < m->tree_members[place[best]]))
            best = i;
    const double largest = sum[best];
    const int32_t own = place[best];
    sum[best] = sum[start], place[best] = place[start];
    sum[start] = largest, place[start] = own;
}

/* The best of the first `most` configs of a list that can run the problem, or -1. A few trees compare all of these, all trees the
   best few. They do not know what fails, so the model is asked about what they put first. */
static int32_t kc_compare(const kc_model *m, const kerncast_context *context, const double *p, const kc_place *list, int32_t most) {
    double x[KC_MOST_COMPARED_VALUES], c[KC_MOST_CONFIG], sum[KC_MOST_COMPARED];
    int32_t place[KC_MOST_COMPARED], count = 0;
    kc_compared_problem(m, p, x);
    for (int32_t i = 0; i < m->tree_places && list[i] >= 0 && count < most; i++) {
        if (!kc_fits(m, context, p, m->tree_members[list[i]], c)) continue;
        kc_compared_config(m, list[i], x);
        place[count] = list[i];
        sum[count++] = kc_compared_sum(m, x, 0, m->comparing_first, 0.0);
    }
    const int32_t few = count < m->compared_by_all ? count : m->compared_by_all;
    for (int32_t i = 0; i < few; i++) kc_largest_first(m, sum, place, i, count);
    for (int32_t i = 0; i < few; i++) {
        kc_compared_config(m, place[i], x);
        sum[i] = kc_compared_sum(m, x, m->comparing_first, m->comparing_count, sum[i]);
    }
    for (int32_t i = 0; i < count; i++) {
        kc_largest_first(m, sum, place, i, i < few ? few : count);
        const int32_t candidate = m->tree_members[place[i]];
        kc_config_numbers(m, candidate, c);
        if (kc_runs(m, p, c)) return candidate;
    }
    return -1;
}

#endif

/* The candidate that the leaf's list gives, or -1: unsure. It may answer if it is available, by the rules, by where it was
   tried, and by the forest for failures. */
KC_INLINE int32_t kc_decide(const kc_model *m, const kerncast_context *context, const double *p) {
    if (!m->has_tree) return -1;
    const int32_t number = kc_leaf_list(m, p);
    const kc_place *list = m->tree_lists + (ptrdiff_t)number * m->tree_places;
    double c[KC_MOST_CONFIG];
#if KC_WITH_COMPARING
    if (m->tree_compares[number] > 1) return kc_compare(m, context, p, list, m->tree_compares[number]);
#endif
    for (int32_t i = 0; i < m->tree_places && list[i] >= 0; i++) {
        const int32_t candidate = m->tree_members[list[i]];
        if (kc_fits(m, context, p, candidate, c) && kc_runs(m, p, c)) return candidate;
    }
    return -1;
}

#endif

#if KC_ALONE

/* Lists the configs of the problem's leaf that fit, in their order, after a pinned one; returns how many fit. */
static int32_t kc_list_leaf(const kc_model *m, const kerncast_context *context, const kc_problem *problem, kerncast_pin_state pin,
                            kerncast_answer *answers, size_t capacity, size_t *count) {
    const kc_place *list = m->tree_lists + (ptrdiff_t)kc_leaf_list(m, problem->p) * m->tree_places;
    const int32_t pinned = *count > 0 ? answers[0].candidate : -1;
    double c[KC_MOST_CONFIG];
    int32_t fits = 0;
    for (int32_t i = 0; i < m->tree_places && list[i] >= 0; i++) {
        const int32_t candidate = m->tree_members[list[i]];
        if (!kc_fits(m, context, problem->p, candidate, c)) continue;
        fits++;
        if (candidate == pinned || *count == capacity) continue;
        kerncast_answer *answer = &answers[(*count)++];
        kc_accept(m, problem, answer, KERNCAST_TIER_TREE, candidate, -1.0);
        kc_finish(m, context, problem, answer, *count == 1 ? pin : KERNCAST_PIN_NONE);
        kc_against_facts(m, problem, answer);
    }
    return fits;
}

#endif

