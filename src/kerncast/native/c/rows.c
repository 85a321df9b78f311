/* -- one config with all its features, for configs that are in no pool -------------------------------------- */

#if KC_WITH_FORESTS

/* Thresholds below a value: `value <= threshold[k]` holds from there on. The last few are counted, which needs no branch and
   is done several at a time. */
static int32_t kc_bin(const double *threshold, int32_t count, double value) {
    const double *base = threshold;
    int32_t left = count, below = 0;
    for (; left > 16; left -= left / 2) base += left / 2 & -(base[left / 2 - 1] < value);
    for (int32_t i = 0; i < left; i++) below += base[i] < value;
    return (int32_t)(base - threshold) + below;
}

/* Which conditions one row meets: from its bin on, all thresholds of a feature. */
static void kc_hold(const kc_trees *t, const double *x, unsigned char *holds) {
    for (int32_t i = 0; i < t->feature_count; i++) {
        const int32_t first = t->features[i].first, count = t->features[i].count;
        const int32_t bin = kc_bin(t->thresholds + first, count, x[t->features[i].from]);
        memset(holds + first, 0, (size_t)bin);
        memset(holds + first + bin, 1, (size_t)(count - bin));
    }
}

/* One forest for one row. Eight trees are walked together; those at their leaf wait. While one step waits for memory the
   others proceed, and nothing depends on branch prediction. */
#define KC_TOGETHER 8

static double kc_walk(const kc_trees *t, const unsigned char *holds, int32_t forest) {
    double sum = 0.0;
    const int32_t last = t->first_tree[forest + 1];
    for (int32_t tree = t->first_tree[forest]; tree < last; tree += KC_TOGETHER) {
        const kc_node *nodes[KC_TOGETHER];
        int32_t at[KC_TOGETHER], going = 0;
        for (int32_t i = 0; i < KC_TOGETHER; i++) {
            const int32_t own = tree + i < last ? tree + i : last - 1;
            nodes[i] = t->nodes + t->first_node[own];
            at[i] = t->first_node[own + 1] == t->first_node[own] ? -1 : 0;
            going |= ~at[i];
        }
        while (going < 0) {
            going = 0;
            for (int32_t i = 0; i < KC_TOGETHER; i++) {
                const kc_node node = nodes[i][at[i] < 0 ? 0 : at[i]];
                const int32_t next = holds[node.condition] ? node.left : node.right;
                at[i] = at[i] < 0 ? at[i] : next;
                going |= ~at[i];
            }
        }
        for (int32_t i = 0; i < KC_TOGETHER && tree + i < last; i++)
            sum += t->leaves[t->first_leaf[tree + i] + (uint32_t)(-1 - at[i])];
    }
    return sum;
}

static KC_MAYBE void kc_learn_forests(const kc_model *m, const double *x, double *raw) {
    KC_HOLDS(m, holds);
    kc_hold(&m->model, x, holds);
    for (int32_t forest = 0; forest < m->model.forests; forest++) raw[forest] = kc_walk(&m->model, holds, forest);
}

#endif

#if KC_ALONE

static double kc_time(const kc_model *m, const double *p, const double *c) {
    (void)m, (void)p, (void)c;
    return -1.0;
}

/* What fails is in no leaf. */
static int kc_runs(const kc_model *m, const double *p, const double *c) {
    (void)m, (void)p, (void)c;
    return 1;
}

#else

static void kc_row_of(const kc_model *m, const double *v, const double *p, const double *c, double *time_ns, double *score) {
    double x[KC_MOST_FEATURES], raw[KC_MOST_RAW];
    raw[0] = 0.0; /* compilers do not see that a loaded model writes it */
    kc_features(m, p, c, x);
    kc_learned(m, x, p, c, v, raw);
    *time_ns = kc_decode(m, raw[0], v);
    *score = kc_score_of(m, v, raw, *time_ns);
}

static void kc_row(const kc_model *m, const double *p, const double *c, double *time_ns, double *score) {
    double v[KC_MOST_VALUES];
    kc_problem_values(m, p, v);
    kc_row_of(m, v, p, c, time_ns, score);
}

/* Of forests, only the first one is for times. */
static double kc_time(const kc_model *m, const double *p, const double *c) {
#if KC_WITH_FORESTS
    if (m->model.forests > 0) {
        double v[KC_MOST_VALUES], x[KC_MOST_FEATURES];
        KC_HOLDS(m, holds);
        kc_problem_values(m, p, v);
        kc_features(m, p, c, x);
        kc_hold(&m->model, x, holds);
        return kc_decode(m, kc_walk(&m->model, holds, 0), v);
    }
#endif
    double time_ns, score;
    kc_row(m, p, c, &time_ns, &score);
    return time_ns;
}

/* Whether the forest for failures, if there is one, expects the config to run. */
static KC_MAYBE int kc_runs(const kc_model *m, const double *p, const double *c) {
#if KC_WITH_FORESTS
    if (m->failure_forests > 0) {
        const int32_t first = m->time_forests + m->rank_forests;
        double x[KC_MOST_FEATURES], raw[KC_MOST_RAW];
        KC_HOLDS(m, holds);
        kc_features(m, p, c, x);
        kc_hold(&m->model, x, holds);
        for (int32_t i = 0; i < m->failure_forests; i++) raw[first + i] = kc_walk(&m->model, holds, first + i);
        return !kc_fails(m, raw);
    }
#endif
    (void)m, (void)p, (void)c;
    return 1;
}

#endif

