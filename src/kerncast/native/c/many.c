/* -- many problems of a family with nothing to choose ------------------------------------------------ */

/* Without configs every feature depends on the problem alone. A condition is a word of the problems (64 at most) that meet
   it. Sums are made tree by tree as in `select`, so the times are the same to the last bit. */
#define KC_TOGETHER_MOST 64

/* One tree for all 64. Every node is visited, parents before their children, so nothing depends on branch prediction. The
   problems that reach a node are in `cell`, at the node's number; the numbers of leaves are negative. */
static void kc_descend(const kc_trees *t, int32_t tree, const uint64_t *condition, uint64_t all, double *sums) {
    const kc_node *nodes = t->nodes + t->first_node[tree];
    const double *value = t->leaves + t->first_leaf[tree];
    const int32_t inner = (int32_t)(t->first_node[tree + 1] - t->first_node[tree]);
    uint64_t cells[2 * KC_MANY_LEAVES], *cell = cells + KC_MANY_LEAVES;
    cell[inner == 0 ? -1 : 0] = all;
    for (int32_t i = 0; i < inner; i++) {
        const kc_node node = nodes[i];
        cell[node.left] = cell[i] & condition[node.condition];
        cell[node.right] = cell[i] & ~condition[node.condition];
    }
    for (int32_t i = 0; i <= inner; i++)
        for (uint64_t set = cell[-1 - i]; set; set &= set - 1) sums[KC_LOWEST(set)] += value[i];
}

static void kc_times(const kc_model *m, const kc_problem *problems, int32_t count, double *time_ns) {
    const kc_trees *const t = &m->model;
    uint64_t condition[KC_MODEL_CONDITIONS];
    double v[KC_TOGETHER_MOST][KC_MOST_VALUES], sums[KC_TOGETHER_MOST] = {0.0};
    const uint64_t all = ~(uint64_t)0 >> (KC_TOGETHER_MOST - count);
    memset(condition, 0, sizeof condition);
    for (int32_t i = 0; i < count; i++) {
        kc_problem_values(m, problems[i].p, v[i]);
        for (int32_t k = 0; k < t->problem_slot_count; k++) {
            const int32_t first = t->problem_slots[k].first, most = t->problem_slots[k].count;
            const int32_t bin = kc_bin(t->thresholds + first, most, v[i][t->problem_slots[k].from]);
            if (bin < most) condition[first + bin] |= (uint64_t)1 << i;
        }
    }
    for (int32_t k = 0; k < t->problem_slot_count; k++)
        for (int32_t j = 1; j < t->problem_slots[k].count; j++)
            condition[t->problem_slots[k].first + j] |= condition[t->problem_slots[k].first + j - 1];
    for (int32_t tree = t->first_tree[0]; tree < t->first_tree[1]; tree++) kc_descend(t, tree, condition, all, sums);
    for (int32_t i = 0; i < count; i++) time_ns[i] = kc_decode(m, sums[i], v[i]);
}

/* Answers those of `count` problems (64 at most) that can be answered; the others are refused. */
static void kc_select_together(const kc_model *m, kerncast_context *context, const kerncast_problem *given, int32_t count,
                               kerncast_tier tier, kerncast_answer *answers) {
    kc_problem problems[KC_TOGETHER_MOST];
    int32_t which[KC_TOGETHER_MOST], asked = 0;
    double time_ns[KC_TOGETHER_MOST];
    kerncast_tier answered = tier;
    for (int32_t i = 0; i < count; i++) {
        kerncast_tier own = tier;
        if (kc_begin(m, context, &given[i], &own, &problems[asked], &answers[i]) != KERNCAST_OK) continue;
        answered = own;
        if (kc_check_range(m, &problems[asked], &answers[i]) != KERNCAST_OK) {
            if (answers[i].status == KERNCAST_OUT_OF_RANGE) kc_fall_back(m, context, &problems[asked], &answers[i]);
            continue;
        }
        which[asked++] = i;
    }
    if (asked == 0) return;
    kc_times(m, problems, asked, time_ns);
    for (int32_t i = 0; i < asked; i++) {
        kc_accept(m, &problems[i], &answers[which[i]], answered, 0, time_ns[i]);
        kc_finish(m, context, &problems[i], &answers[which[i]], KERNCAST_PIN_NONE);
        kc_against_facts(m, &problems[i], &answers[which[i]]);
    }
}

void kerncast_select_many(kerncast_context *context, const kerncast_problem *problems, size_t count, kerncast_tier tier,
                          kerncast_answer *answers) {
    const kc_model *const m = KC_MODEL_OF(context);
    if (answers == NULL) return;
    /* The tree answers without a time, and a single problem is answered from the memo. */
    const int decided = context != NULL && (!context->available[0] || context->pins > 0 || m->pin_count > 0);
    if (problems == NULL || tier == KERNCAST_TIER_TREE || count == 1 || decided) {
        for (size_t i = 0; i < count; i++) kerncast_select(context, problems == NULL ? NULL : &problems[i], tier, &answers[i]);
        return;
    }
    for (size_t i = 0; i < count; i += KC_TOGETHER_MOST) {
        const size_t left = count - i;
        kc_select_together(m, context, problems + i, (int32_t)(left < KC_TOGETHER_MOST ? left : KC_TOGETHER_MOST), tier,
                           answers + i);
    }
}
