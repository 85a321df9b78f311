/* Which conditions one row meets: from its bin on, all thresholds of a feature. */
static void kc_hold(const double *x, unsigned char *holds) {
    for (int32_t i = 0; i < KC_MODEL_FEATURES; i++) {
        const int32_t first = kc_model_features[i].first, count = kc_model_features[i].count;
        const int32_t bin = kc_bin(kc_model_thresholds + first, count, x[kc_model_features[i].feature]);
        memset(holds + first, 0, (size_t)bin);
        memset(holds + first + bin, 1, (size_t)(count - bin));
    }
}

/* One forest for one row. Eight trees are walked together; those at their leaf wait. While one step waits for memory the
   others proceed, and nothing depends on branch prediction. */
#define KC_TOGETHER 8

static double kc_walk(const unsigned char *holds, int32_t forest) {
    double sum = 0.0;
    const int32_t last = kc_model_first_tree[forest + 1];
    for (int32_t tree = kc_model_first_tree[forest]; tree < last; tree += KC_TOGETHER) {
        const kc_model_node *nodes[KC_TOGETHER];
        int32_t at[KC_TOGETHER], going = 0;
        for (int32_t i = 0; i < KC_TOGETHER; i++) {
            const int32_t own = tree + i < last ? tree + i : last - 1;
            nodes[i] = kc_model_nodes + kc_model_first_node[own];
            at[i] = kc_model_first_node[own + 1] == kc_model_first_node[own] ? -1 : 0;
            going |= ~at[i];
        }
        while (going < 0) {
            going = 0;
            for (int32_t i = 0; i < KC_TOGETHER; i++) {
                const kc_model_node node = nodes[i][at[i] < 0 ? 0 : at[i]];
                const int32_t next = holds[node.condition] ? node.left : node.right;
                at[i] = at[i] < 0 ? at[i] : next;
                going |= ~at[i];
            }
        }
        for (int32_t i = 0; i < KC_TOGETHER && tree + i < last; i++)
            sum += kc_model_leaves[kc_model_first_leaf[tree + i] + (uint32_t)(-1 - at[i])];
    }
    return sum;
}

static void kc_learn(const double *x, const double *p, const double *c, const double *v, double *raw) {
    unsigned char holds[KC_MODEL_CONDITIONS];
    (void)p, (void)c, (void)v;
    kc_hold(x, holds);
    for (int32_t forest = 0; forest < KC_MODEL_FORESTS; forest++) raw[forest] = kc_walk(holds, forest);
}
