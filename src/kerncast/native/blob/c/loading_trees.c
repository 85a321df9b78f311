/* -- loading forests, pools and learners --------------------------------------------------------------- */

/* The nodes of a tree from its shape: each comes right before its left subtree, and leaves are in order. Returns the longest path,
   or -1 if the shape is not that of one tree. */
static int32_t kc_grow(const uint16_t *conditions, const unsigned char *shape, int32_t count, int32_t limit, kc_node *nodes) {
    int16_t waiting[KC_MOST_DEPTH]; /* nodes whose right side comes next */
    int32_t open = 0, leaf = 0, deepest = 0;
    for (int32_t i = 0; i < count; i++) {
        if (conditions[i] >= limit || shape[i] > 3 || open >= KC_MOST_DEPTH - 4) return -1;
        nodes[i].condition = conditions[i];
        waiting[open++] = (int16_t)i;
        if (open > deepest) deepest = open;
        if (!(shape[i] & 1)) {
            nodes[i].left = (int16_t)(i + 1);
            if (i + 1 == count) return -1;
            continue;
        }
        nodes[i].left = (int16_t)(-1 - leaf++);
        for (;;) {
            if (open == 0) return i + 1 == count ? deepest + 2 : -1;
            const int32_t parent = waiting[--open];
            if (!(shape[parent] & 2)) {
                nodes[parent].right = (int16_t)(i + 1);
                if (i + 1 == count) return -1;
                break;
            }
            nodes[parent].right = (int16_t)(-1 - leaf++);
        }
    }
    return count == 0 ? 1 : -1;
}

/* Conditions from `first` on, `count` of them, that no other feature has. */
static int kc_claim(kc_loading *l, unsigned char *taken, int32_t conditions, int32_t first, int32_t count) {
    KC_NEED(first >= 0 && count >= 1 && count <= conditions && first <= conditions - count, "the conditions of a feature");
    for (int32_t i = first; i < first + count; i++) {
        KC_NEED(!taken[i], "the conditions of a feature");
        taken[i] = 1;
    }
    return 1;
}

static int kc_grow_trees(kc_loading *l, kc_trees *t, const char *word) {
    const uint16_t *conditions;
    const unsigned char *shape;
    const int32_t *counts;
    int32_t trees, nodes, leaves;
    KC_READ(t->first_tree, KC_OF("first_tree"), 'i', -1, &t->forests);
    KC_READ(counts, KC_OF("nodes"), 'i', -1, &trees);
    KC_READ(conditions, KC_OF("conditions"), 'H', -1, &nodes);
    KC_READ(shape, KC_OF("shape"), 'B', nodes, NULL);
    KC_READ(t->leaves, KC_OF("leaves"), 'd', -1, &leaves);
    t->forests -= 1;
    KC_NEED(t->forests >= 1 && t->forests <= KC_MOST_RAW && trees >= 1, KC_OF("first_tree"));
    KC_NEED(t->first_tree[0] == 0 && t->first_tree[t->forests] == trees, KC_OF("first_tree"));
    for (int32_t i = 0; i < t->forests; i++) KC_NEED(t->first_tree[i] < t->first_tree[i + 1], KC_OF("first_tree"));
    kc_node *grown = kc_take(l, (size_t)nodes + 1, sizeof *grown);
    uint32_t *first_node = kc_take(l, (size_t)trees + 1, sizeof *first_node);
    uint32_t *first_leaf = kc_take(l, (size_t)trees + 1, sizeof *first_leaf);
    if (grown == NULL || first_node == NULL || first_leaf == NULL) return 0;
    t->nodes = grown, t->first_node = first_node, t->first_leaf = first_leaf, t->depth = 1;
    for (int32_t i = 0; i < trees; i++) {
        const int32_t first = (int32_t)first_node[i];
        KC_NEED(counts[i] >= 0 && counts[i] <= 32000 && counts[i] <= nodes - first, KC_OF("nodes"));
        const int32_t deep = kc_grow(conditions + first, shape + first, counts[i], t->first_rule, grown + first);
        KC_NEED(deep > 0, KC_OF("shape"));
        if (deep > t->depth) t->depth = deep;
        first_node[i + 1] = (uint32_t)(first + counts[i]);
        first_leaf[i + 1] = first_leaf[i] + (uint32_t)counts[i] + 1;
    }
    KC_NEED(first_node[trees] == (uint32_t)nodes && first_leaf[trees] == (uint32_t)leaves, KC_OF("nodes"));
    return 1;
}

/* Leaves in whole numbers, whose sums must fit into 32 bits. */
static int kc_round_leaves(kc_loading *l, kc_trees *t) {
    const double scale = l->m->rough_scale;
    int32_t *rough = kc_take(l, (size_t)t->first_leaf[t->first_tree[t->forests]], sizeof *rough);
    if (rough == NULL) return 0;
    for (int32_t forest = 0; forest < t->forests; forest++) {
        double total = 0.0;
        for (int32_t tree = t->first_tree[forest]; tree < t->first_tree[forest + 1]; tree++) {
            double most = 0.0;
            for (uint32_t i = t->first_leaf[tree]; i < t->first_leaf[tree + 1]; i++) {
                const double value = floor(t->leaves[i] * scale + 0.5);
                KC_NEED(fabs(value) < 2e9, "model.leaves");
                rough[i] = (int32_t)value;
                if (fabs(value) > most) most = fabs(value);
            }
            total += most;
        }
        KC_NEED(total < 2.1e9, "model.leaves");
    }
    t->rough = rough;
    return 1;
}

static int kc_load_trees(kc_loading *l, kc_trees *t, const char *word, int own) {
    kc_model *m = l->m;
    const int32_t rules = (int32_t)m->loaded.facts[KC_FACT_MIXED_RULES];
    int32_t numbers;
    KC_READ(t->thresholds, KC_OF("thresholds"), 'd', -1, &t->conditions);
    KC_NEED(t->conditions >= rules && t->conditions <= 60000, KC_OF("thresholds"));
    t->first_rule = t->conditions - rules;
    if (!kc_grow_trees(l, t, word)) return 0;
    unsigned char *taken = kc_take(l, (size_t)t->conditions + 1, 1);
    if (taken == NULL) return 0;
    KC_READ(t->features, KC_OF("features"), 'i', -1, &numbers);
    KC_NEED(numbers % 3 == 0, KC_OF("features"));
    t->feature_count = numbers / 3;
    for (int32_t i = 0; i < t->feature_count; i++) {
        const kc_slot slot = t->features[i];
        KC_NEED(slot.from >= 0 && slot.from < m->features, KC_OF("features"));
        if (!kc_claim(l, taken, t->first_rule, slot.first, slot.count)) return 0;
    }
    /* A row is walked by its features: each condition of a node must be one of theirs. */
    for (int32_t i = 0; i < t->first_rule; i++) KC_NEED(taken[i], KC_OF("features"));
    if (!kc_read_below(l, KC_OF("parts"), -1, 0, m->loaded.values, &t->parts, &t->part_count)) return 0;
    KC_READ(t->problem_slots, KC_OF("problem_slots"), 'i', -1, &numbers);
    KC_NEED(numbers % 3 == 0, KC_OF("problem_slots"));
    t->problem_slot_count = numbers / 3;
    KC_READ(t->groups, KC_OF("groups"), 'i', -1, &numbers);
    KC_NEED(numbers % 2 == 0, KC_OF("groups"));
    t->group_count = numbers / 2;
    return !own || kc_round_leaves(l, t);
}

/* The slots of a pool: which conditions a combination decides. Those of all pools of a forest are the same but for their rows. */
static int kc_load_slots(kc_loading *l, kc_pool *pool, const kc_trees *t, const char *word, kc_pool_group *groups) {
    const int32_t *mixed, *fixed;
    int32_t slots, statics, row = 2;
    unsigned char *taken = kc_take(l, (size_t)t->conditions + 1, 1);
    KC_READ(mixed, KC_OF("slots"), 'i', -1, &slots);
    KC_READ(fixed, KC_OF("static_slots"), 'i', -1, &statics);
    KC_NEED(slots % 4 == 0 && statics % 2 == 0, KC_OF("slots"));
    pool->slot_count = slots / 4, pool->static_slot_count = statics / 2;
    KC_NEED(pool->group_count == t->group_count + pool->static_slot_count, KC_OF("static_slots"));
    kc_pool_slot *to = kc_take(l, (size_t)pool->slot_count + (size_t)pool->static_slot_count + 1, sizeof *to);
    if (taken == NULL || to == NULL) return 0;
    pool->slots = to, pool->static_slots = to + pool->slot_count;
    for (int32_t i = 0; i < t->problem_slot_count; i++) {
        KC_NEED(t->problem_slots[i].from >= 0 && t->problem_slots[i].from < l->m->loaded.values, KC_OF("problem_slots"));
        if (!kc_claim(l, taken, t->conditions, t->problem_slots[i].first, t->problem_slots[i].count)) return 0;
    }
    for (int32_t i = 0; i < pool->slot_count + pool->static_slot_count; i++, to++) {
        if (i < pool->slot_count) {
            to->first = mixed[4 * i], to->count = mixed[4 * i + 1], to->group = mixed[4 * i + 2], to->output = mixed[4 * i + 3];
            /* Groups come in order, each with a slot for each of its outputs. */
            KC_NEED(to->group >= 0 && to->group < t->group_count, KC_OF("slots"));
            KC_NEED(i == 0 ? to->group == 0 : to->group == to[-1].group || to->group == to[-1].group + 1, KC_OF("slots"));
            KC_NEED(to->output >= 0 && to->output < l->m->loaded.programs[t->groups[to->group].program].output_count, KC_OF("slots"));
        } else
            to->first = fixed[2 * (i - pool->slot_count)], to->count = fixed[2 * (i - pool->slot_count) + 1],
            to->group = t->group_count + i - pool->slot_count, to->output = 0;
        if (!kc_claim(l, taken, t->conditions, to->first, to->count)) return 0;
        to->row = row;
        row += (groups[to->group].count < to->count ? groups[to->group].count : to->count) + 1;
        KC_NEED(row < 65000, KC_OF("slots"));
    }
    for (int32_t i = 0; i < t->conditions; i++) KC_NEED(taken[i], KC_OF("slots"));
    pool->rows = row;
    return 1;
}

/* `members` are read already. */
static int kc_load_pool(kc_loading *l, kc_pool *pool, const kc_trees *t, const char *trees, const char *word, int imitates) {
    kc_model *m = l->m;
    const int32_t *counts;
    const double *values;
    int32_t numbers;
    int64_t next = 0;
    pool->trees = t, pool->imitates = imitates;
    pool->words = pool->configs <= 64 ? 1 : (pool->configs + 255) / 256 * 4;
    pool->screens = !imitates && pool->words > 1 && m->loaded.facts[KC_FACT_SCREENS] != 0;
    if (!kc_read_below(l, KC_OF("combinations"), -1, 1, (int64_t)pool->configs + 1, &counts, &pool->group_count)) return 0;
    const uint16_t *member = kc_small_numbers(l, KC_OF("member"), (size_t)pool->group_count * (size_t)pool->configs, 65535);
    KC_READ(values, KC_OF("values"), 'd', -1, &numbers);
    KC_NEED(pool->group_count >= t->group_count, KC_OF("combinations"));
    kc_pool_group *groups = kc_take(l, (size_t)pool->group_count + 1, sizeof *groups);
    if (member == NULL || groups == NULL) return 0;
    pool->groups = groups, pool->most_combinations = 1, pool->most_outputs = 1;
    for (int32_t i = 0; i < pool->group_count; i++, member += pool->configs) {
        const int64_t parts = i < t->group_count ? t->groups[i].parts : 1;
        const int64_t outputs = i < t->group_count ? m->loaded.programs[t->groups[i].program].output_count : 1;
        KC_NEED(parts >= 0 && parts * counts[i] <= numbers - next, KC_OF("values"));
        for (int32_t k = 0; k < pool->configs; k++) KC_NEED(member[k] < counts[i], KC_OF("member"));
        groups[i].count = counts[i], groups[i].member = member, groups[i].values = values + next;
        groups[i].bits = counts[i] <= @MOST_SETS@ ? pool->bits : -1;
        pool->bits += groups[i].bits < 0 ? 0 : counts[i];
        if (counts[i] > pool->most_combinations) pool->most_combinations = counts[i];
        KC_NEED(outputs * counts[i] < (int64_t)KC_MOST_BYTES / 8, KC_OF("combinations"));
        if (outputs * counts[i] > pool->most_outputs) pool->most_outputs = (int32_t)(outputs * counts[i]);
        next += parts * counts[i];
    }
    if (!kc_read_below(l, KC_OF("band_of"), -1, 0, l->m->candidates, &pool->band_of, &pool->bands)) return 0;
    for (int32_t i = 0; i < pool->bands; i++) {
        int32_t cells = 0;
        kc_table(l, "tried.low", 'd', -1, &cells);
        KC_NEED(pool->band_of[i] < cells / m->problem.count, KC_OF("band_of"));
    }
    pool->band = kc_small_numbers(l, KC_OF("band"), (size_t)pool->configs, pool->bands);
    return pool->band != NULL && kc_load_slots(l, pool, t, trees, groups);
}

static int kc_load_pools(kc_loading *l) {
    kc_model *m = l->m;
    const int64_t *facts = m->loaded.facts;
    const int has_portfolio = facts[KC_FACT_HAS_PORTFOLIO] != 0, has_full = facts[KC_FACT_HAS_FULL] != 0;
    const int has_quick = facts[KC_FACT_HAS_QUICK] != 0;
    KC_NEED(has_portfolio || !has_quick, "facts");
    if (!kc_read_below(l, "portfolio.members", -1, 0, m->candidates, &m->pools[KC_PORTFOLIO].members, &m->pools[KC_PORTFOLIO].configs)) return 0;
    int32_t *all = kc_take(l, (size_t)m->candidates, sizeof *all);
    if (all == NULL) return 0;
    for (int32_t i = 0; i < m->candidates; i++) all[i] = i;
    m->pools[KC_FULL].members = all, m->pools[KC_FULL].configs = has_full ? m->candidates : 0;
    KC_NEED((m->pools[KC_PORTFOLIO].configs > 0) == has_portfolio && m->pools[KC_PORTFOLIO].configs <= 60000, "portfolio.members");
    KC_NEED(m->pools[KC_FULL].configs <= 60000, "facts");
    KC_NEED(has_portfolio || has_full || m->has_tree, "facts");
    m->pools[KC_QUICK].members = m->tree_members = m->pools[KC_PORTFOLIO].members;
    m->pools[KC_QUICK].configs = has_quick ? m->pools[KC_PORTFOLIO].configs : 0;
    for (int which = 0; which < 2; which++) {
        const char *const word = which ? "small" : "model";
        kc_trees *t = which ? &m->small : &m->model;
        if (which ? !has_quick : m->loaded.kind != KC_GBDT) continue;
        if (!kc_load_trees(l, t, word, !which)) return 0;
        KC_NEED(which ? t->forests == 1 : t->forests == m->loaded.raw, KC_OF("first_tree"));
        for (int32_t i = 0; i < t->group_count; i++) {
            KC_NEED(t->groups[i].parts >= 0 && t->groups[i].parts <= KC_MOST_VALUES, KC_OF("groups"));
            KC_NEED(t->groups[i].program >= 0 && t->groups[i].program < m->loaded.program_count, KC_OF("groups"));
            const int32_t outputs = m->loaded.programs[t->groups[i].program].output_count;
            if (!kc_role(l, t->groups[i].program, t->part_count + t->groups[i].parts, outputs)) return 0;
        }
    }
    if (m->loaded.kind == KC_GBDT) {
        const kc_trees *t = &m->model;
        if (has_portfolio && !kc_load_pool(l, &m->pools[KC_PORTFOLIO], t, "model", "portfolio", 0)) return 0;
        if (has_full && !kc_load_pool(l, &m->pools[KC_FULL], t, "model", "full", 0)) return 0;
    }
    return !has_quick || kc_load_pool(l, &m->pools[KC_QUICK], &m->small, "small", "quick", 1);
}

static int kc_load_forests_of_gbdt(kc_loading *l) {
    const int64_t *f = l->m->loaded.facts;
    int64_t total = 0;
    for (int i = KC_FACT_TIME_FORESTS; i <= KC_FACT_LIBRARY_FORESTS; i++) {
        KC_NEED(f[i] >= 0 && f[i] <= KC_MOST_RAW, "facts");
        total += f[i];
    }
    KC_NEED(f[KC_FACT_TIME_FORESTS] >= 1 && total == l->m->loaded.raw, "facts");
    l->m->time_forests = (int32_t)f[KC_FACT_TIME_FORESTS], l->m->rank_forests = (int32_t)f[KC_FACT_RANK_FORESTS];
    l->m->failure_forests = (int32_t)f[KC_FACT_FAILURE_FORESTS], l->m->library_forests = (int32_t)f[KC_FACT_LIBRARY_FORESTS];
    return 1;
}

static int kc_load_lines(kc_loading *l) {
    kc_model *m = l->m;
    int32_t keys, numbers;
    if (!kc_read_below(l, "lines.reads", -1, 0, m->problem.count + m->config.count, &m->loaded.line_reads, &m->loaded.line_columns)) return 0;
    KC_READ(m->loaded.line_keys, "lines.keys", 'd', -1, &keys);
    KC_READ(m->loaded.lines, "lines.lines", 'd', -1, &numbers);
    KC_NEED(numbers >= 3 && numbers % 3 == 0 && m->loaded.line_columns <= 2 * KC_MOST_PARAMETERS, "lines.lines");
    m->loaded.line_count = numbers / 3 - 1;
    KC_NEED((int64_t)m->loaded.line_count * m->loaded.line_columns == keys, "lines.keys");
    KC_NEED(m->loaded.facts[KC_FACT_LINE_SIZE] >= 0 && m->loaded.facts[KC_FACT_LINE_SIZE] < m->loaded.values, "facts");
    return 1;
}

static int kc_load_network(kc_loading *l) {
    kc_model *m = l->m;
    int32_t numbers, weights;
    KC_READ(m->loaded.plain, "scaling.plain", 'i', -1, &m->loaded.plain_count);
    KC_NEED(m->loaded.plain_count % 2 == 0, "scaling.plain");
    m->loaded.plain_count /= 2;
    for (int32_t i = 0; i < m->loaded.plain_count; i++) KC_NEED(m->loaded.plain[2 * i] >= 0 && m->loaded.plain[2 * i] < m->features, "scaling.plain");
    KC_READ(m->loaded.spread, "scaling.spread", 'd', (int64_t)m->loaded.plain_count * 2, NULL);
    if (!kc_read_below(l, "scaling.coded", -1, 0, m->features, &m->loaded.coded, &m->loaded.coded_count)) return 0;
    KC_READ(m->loaded.codes, "scaling.codes", 'd', m->loaded.coded_count, NULL);
    KC_READ(m->loaded.weights, "network.weights", 'd', -1, &weights);
    KC_READ(m->loaded.layers, "network.steps", 'i', -1, &numbers);
    KC_NEED(numbers % 9 == 0 && numbers > 0 && (int64_t)m->loaded.plain_count + m->loaded.coded_count < 1 << 16, "network.steps");
    m->loaded.layer_count = numbers / 9, m->loaded.widest = m->loaded.plain_count + m->loaded.coded_count + 1;
    for (int32_t i = 0; i < m->loaded.layer_count; i++) {
        const kc_layer *y = &m->loaded.layers[i];
        KC_NEED(y->operation >= 0 && y->operation <= 2 && y->source >= 0 && y->source <= 3 && y->target >= 1 && y->target <= 4, "network.steps");
        KC_NEED(y->source != y->target && y->columns >= 1 && y->columns < 1 << 16, "network.steps");
        KC_NEED(y->offset >= 0 && y->offset < 1 << 16 && y->rows >= 0 && y->rows < 1 << 16, "network.steps");
        KC_NEED(y->target == 4 ? y->columns == m->loaded.raw && y->operation == 0 : 1, "network.steps");
        const int64_t cells = (int64_t)y->rows * y->columns;
        KC_NEED(y->operation != 0 || (y->weights >= 0 && cells <= weights && y->weights <= weights - cells), "network.steps");
        KC_NEED(y->operation != 0 || (y->bias >= -1 && (y->bias < 0 || y->bias <= weights - y->columns)), "network.steps");
        const int32_t reads = y->offset + (y->operation == 0 ? y->rows : y->columns);
        if (reads > m->loaded.widest) m->loaded.widest = reads;
        if (y->columns > m->loaded.widest) m->loaded.widest = y->columns;
    }
    KC_NEED(m->loaded.layers[m->loaded.layer_count - 1].target == 4, "network.steps");
    return 1;
}

static int kc_load_comparing(kc_loading *l) {
    kc_model *m = l->m;
    const int32_t *counts;
    int32_t roots, nodes, leaves, total = 0;
    KC_READ(counts, "compared.counts", 'i', 3, NULL);
    for (int32_t i = 0; i < 3; i++) KC_NEED(counts[i] >= 0 && counts[i] < KC_MOST_VALUES / 3, "compared.counts");
    m->compared_of_problem = counts[0], m->compared_of_config = counts[1];
    const int32_t values = counts[0] + counts[1] + counts[2];
    KC_READ(m->compared_configs, "compared.configs", 'd', (int64_t)counts[1] * m->pools[KC_PORTFOLIO].configs, NULL);
    KC_READ(m->comparing_root, "comparing.root", 'i', -1, &roots);
    KC_READ(m->comparing_nodes, "comparing.nodes", 'i', -1, &nodes);
    KC_READ(m->comparing_leaves, "comparing.leaves", 'd', -1, &leaves);
    KC_NEED(nodes % 3 == 0, "comparing.nodes");
    nodes /= 3;
    KC_READ(m->comparing_threshold, "comparing.threshold", 'd', nodes, NULL);
    int32_t *longest = kc_take(l, (size_t)nodes + 1, sizeof *longest);
    if (longest == NULL) return 0;
    for (int32_t i = nodes; i-- > 0;) {
        const kc_comparing_node node = m->comparing_nodes[i];
        KC_NEED(node.feature >= 0 && node.feature < values, "comparing.nodes");
        KC_NEED(node.left < nodes && node.right < nodes && (node.left < 0 || node.left > i) && (node.right < 0 || node.right > i), "comparing.nodes");
        KC_NEED(node.left >= -leaves && node.right >= -leaves, "comparing.nodes");
        const int32_t left = node.left < 0 ? 0 : longest[node.left], right = node.right < 0 ? 0 : longest[node.right];
        longest[i] = 1 + (left > right ? left : right);
    }
    for (int32_t i = 0; i < roots; i++) {
        KC_NEED(m->comparing_root[i] < nodes && m->comparing_root[i] >= -leaves, "comparing.root");
        /* Trees that do not share their nodes have no longer paths than this. */
        total += m->comparing_root[i] < 0 ? 0 : longest[m->comparing_root[i]];
        KC_NEED(total <= nodes, "comparing.root");
    }
    m->comparing_count = roots;
    m->comparing_first = kc_fact_of(l, KC_FACT_COMPARED_FIRST, 0, roots);
    m->compared_by_all = kc_fact_of(l, KC_FACT_COMPARED_BY_ALL, 0, KC_MOST_COMPARED);
    KC_NEED(l->status == KERNCAST_OK, "facts");
    return kc_role(l, m->loaded.facts[KC_FACT_COMPARED_PROBLEM], m->problem.count, counts[0]) &&
           kc_role(l, m->loaded.facts[KC_FACT_COMPARED_MIXED], counts[0] + counts[1], counts[2]);
}

static int kc_load_tree(kc_loading *l) {
    kc_model *m = l->m;
    int32_t features, leaves, places;
    if (!m->has_tree) return 1;
    const int64_t most = m->loaded.facts[KC_FACT_MOST_COMPARED];
    KC_NEED(m->pools[KC_PORTFOLIO].configs > 0, "facts");
    m->tree_places = kc_fact_of(l, KC_FACT_TREE_PLACES, 1, 60000);
    const int64_t program = m->loaded.facts[KC_FACT_TREE_VALUES];
    KC_NEED(l->status == KERNCAST_OK && program >= 0 && program < m->loaded.program_count, "facts");
    features = m->loaded.programs[program].output_count;
    if (!kc_role(l, program, m->problem.count, features)) return 0;
    KC_NEED(features <= KC_MOST_FEATURES, "facts");
    if (!kc_read_below(l, "tree.feature", -1, 0, features, &m->tree_feature, &m->tree_nodes)) return 0;
    KC_READ(m->tree_threshold, "tree.threshold", 'd', m->tree_nodes, NULL);
    if (!kc_read_below(l, "tree.lists", -1, -1, m->pools[KC_PORTFOLIO].configs, &m->tree_lists, &places)) return 0;
    KC_NEED(places > 0 && places % m->tree_places == 0, "tree.lists");
    if (!kc_read_below(l, "tree.compares", places / m->tree_places, 1, most + 1, &m->tree_compares, NULL)) return 0;
    if (!kc_read_below(l, "tree.list", -1, 0, places / m->tree_places, &m->tree_list, &leaves)) return 0;
    KC_NEED(leaves > 0, "tree.list");
    if (!kc_read_below(l, "tree.left", m->tree_nodes, -leaves, m->tree_nodes, &m->tree_left, NULL)) return 0;
    if (!kc_read_below(l, "tree.right", m->tree_nodes, -leaves, m->tree_nodes, &m->tree_right, NULL)) return 0;
    for (int32_t i = 0; i < m->tree_nodes; i++)
        KC_NEED((m->tree_left[i] < 0 || m->tree_left[i] > i) && (m->tree_right[i] < 0 || m->tree_right[i] > i), "tree.left");
    return most == 1 || kc_load_comparing(l);
}

static int kc_load_all(kc_loading *l, size_t size) {
    kc_model *m = l->m;
    if (!kc_load_header(l, size) || !kc_load_facts(l) || !kc_load_programs(l) || !kc_load_spaces(l) || !kc_load_rules(l)) return 0;
    if (!kc_load_candidates(l) || !kc_load_answers(l) || !kc_load_pools(l) || !kc_load_tree(l) || !kc_load_golden(l)) return 0;
    const int learned = m->loaded.kind == KC_GBDT      ? kc_load_forests_of_gbdt(l)
                        : m->loaded.kind == KC_LINEAR  ? kc_load_lines(l)
                        : m->loaded.kind == KC_NETWORK ? kc_load_network(l)
                                                : 1;
    if (!learned) return 0;
    KC_NEED(kc_context_bytes(m) < KC_MOST_BYTES, "it needs too much memory");
    return 1;
}

static void kc_unload(kc_model *model) {
    if (model == NULL) return;
    for (kc_block *block = model->loaded.blocks, *next; block != NULL; block = next) {
        next = block->next;
        free(block);
    }
    free(model);
}

/* A model from bytes, which are copied; NULL, and why, if they are not one. */
static kc_model *kc_load(const void *bytes, size_t size, kc_loading *l) {
    l->m = calloc(1, sizeof *l->m);
    unsigned char *copy = l->m == NULL || size >= KC_MOST_BYTES ? NULL : kc_take(l, size, 1);
    l->bytes = copy;
    if (copy != NULL) memcpy(copy, bytes, size);
    else kc_fault(l, KERNCAST_TOO_SMALL, "there is not enough memory for the model%s", "");
    if (copy != NULL && kc_load_all(l, size)) return l->m;
    kc_unload(l->m);
    return NULL;
}

