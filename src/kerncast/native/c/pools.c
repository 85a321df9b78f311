/* -- pools: the configs of a tier, scored together ------------------------------------------------------------ */

/* Trees over sets of configs: a split divides a set in two, a leaf adds its value to the sums of all that reach it. One pass over
   a tree serves every config of a pool, and a split that the problem alone decides takes one test. A set of up to 64 configs is
   one word (`narrow`), one of more is several, a multiple of four (`wide`). */

#if KC_WITH_FORESTS

#if defined(__GNUC__)
#define KC_LOWEST(word) ((unsigned)__builtin_ctzll(word))
#else
static unsigned KC_LOWEST(uint64_t word) {
    unsigned place = 0;
    while (!(word >> place & 1u)) place++;
    return place;
}
#endif

/* Four configs, or four words of a set, at a time. */
#if defined(__GNUC__)
typedef double kc_lanes __attribute__((vector_size(32), aligned(8), may_alias));
typedef int64_t kc_masks __attribute__((vector_size(32)));
typedef uint64_t kc_words __attribute__((vector_size(32), aligned(8), may_alias));
typedef int32_t kc_whole __attribute__((vector_size(32), aligned(4), may_alias));
static const kc_masks kc_nibble[16] = {
    {0, 0, 0, 0},  {-1, 0, 0, 0},  {0, -1, 0, 0},  {-1, -1, 0, 0},  {0, 0, -1, 0},  {-1, 0, -1, 0},  {0, -1, -1, 0},  {-1, -1, -1, 0},
    {0, 0, 0, -1}, {-1, 0, 0, -1}, {0, -1, 0, -1}, {-1, -1, 0, -1}, {0, 0, -1, -1}, {-1, 0, -1, -1}, {0, -1, -1, -1}, {-1, -1, -1, -1}};
#endif

/* A condition is the word of configs for which it holds or, `wide`, the row of them: 0 for none, 1 for all. Features of the problem
   alone: all of them or none. */
KC_INLINE void kc_pool_decide(const kc_trees *t, int wide, const double *value, kc_pool_state *state) {
    for (int32_t i = 0; i < t->problem_slot_count; i++) {
        const int32_t first = t->problem_slots[i].first, count = t->problem_slots[i].count;
        const int32_t bin = kc_bin(t->thresholds + first, count, value[t->problem_slots[i].from]);
        for (int32_t k = 0; k < count; k++) {
            if (wide) state->rows_of[first + k] = k >= bin;
            else state->words_of[first + k] = k >= bin ? ~(uint64_t)0 : 0;
        }
    }
}

KC_INLINE void kc_narrow_rows(const kc_pool *pool, kc_pool_state *state, const kc_pool_slot *slot, const double *value) {
    const kc_pool_group *group = &pool->groups[slot->group];
    const double *threshold = pool->trees->thresholds + slot->first;
    const uint64_t *bits = state->bits + group->bits;
    uint64_t *condition = state->words_of + slot->first, spill = 0;
    memset(condition, 0, (size_t)slot->count * sizeof *condition);
    for (int32_t i = 0; i < group->count; i++) {
        const int32_t bin = kc_bin(threshold, slot->count, value[i]);
        *(bin < slot->count ? &condition[bin] : &spill) |= bits[i];
    }
    for (int32_t k = 1; k < slot->count; k++) condition[k] |= condition[k - 1];
}

KC_INLINE void kc_narrow_walk(const kc_trees *t, const uint64_t *condition, int32_t forest, uint64_t all, double *sums) {
    uint64_t waiting[KC_MOST_DEPTH];
    int16_t place[KC_MOST_DEPTH];
    for (int32_t tree = t->first_tree[forest]; tree < t->first_tree[forest + 1]; tree++) {
        const kc_node *nodes = t->nodes + t->first_node[tree];
        const double *value = t->leaves + t->first_leaf[tree];
        int32_t at = t->first_node[tree + 1] == t->first_node[tree] ? -1 : 0, depth = 0;
        uint64_t set = all;
        for (;;) {
            while (at >= 0) {
                const kc_node node = nodes[at];
                const uint64_t row = condition[node.condition];
                const uint64_t left = set & row, right = set & ~row;
                /* The processor cannot predict the direction, so nothing here branches on it. */
                waiting[depth] = right;
                place[depth] = (int16_t)node.right;
                depth += (left != 0) & (right != 0);
                at = left ? node.left : node.right;
                set = left ? left : right;
            }
            const double add = value[-1 - at];
            do {
                sums[KC_LOWEST(set)] += add;
                set &= set - 1;
            } while (set);
            if (depth == 0) break;
            depth--;
            set = waiting[depth];
            at = place[depth];
        }
    }
}

/* The sets of configs for which each condition of a slot holds, from its values by combination. */
KC_INLINE void kc_wide_rows(const kc_pool *pool, kc_pool_state *state, const kc_pool_slot *slot, const double *value) {
    const kc_pool_group *group = &pool->groups[slot->group];
    const double *threshold = pool->trees->thresholds + slot->first;
    const ptrdiff_t words = pool->words;
    kc_id *const row_of = state->rows_of + slot->first, *const row_of_bin = state->row_of_bin, *const bin_of = state->bin_of;
    uint64_t *const rows = state->rows;
    memset(row_of_bin, 0, ((size_t)slot->count + 1) * sizeof *row_of_bin);
    int32_t last = 0;
    for (int32_t i = 0; i < group->count; i++) {
        const int32_t bin = kc_bin(threshold, slot->count, value[i]);
        bin_of[i] = (kc_id)bin;
        row_of_bin[bin] = 1;
        if (bin > last) last = bin;
    }
    /* Rows in the order of their bins; a condition holds for the bins up to its own. */
    const kc_id first = (kc_id)slot->row;
    kc_id row = first, current = 0;
    const int32_t end = last < slot->count ? last : slot->count;
    for (int32_t bin = 0; bin < end; bin++) {
        if (row_of_bin[bin]) row_of_bin[bin] = current = row++;
        row_of[bin] = current;
    }
    for (int32_t bin = end; bin < slot->count; bin++) row_of[bin] = 1;
    if (row == first) return;
    memset(rows + first * words, 0, (size_t)(row - first) * (size_t)words * sizeof *rows);
    if (group->bits >= 0) {
        for (int32_t i = 0; i < group->count; i++) {
            if (bin_of[i] >= last) continue;
            uint64_t *to = rows + row_of_bin[bin_of[i]] * words;
            const uint64_t *from = state->bits + (group->bits + i) * words;
            for (int32_t w = 0; w < words; w++) to[w] |= from[w];
        }
    } else {
        for (int32_t i = 0; i < pool->configs; i++) {
            const kc_id bin = bin_of[group->member[i]];
            if (bin < last) rows[row_of_bin[bin] * words + (i >> 6)] |= (uint64_t)1 << (i & 63);
        }
    }
    for (uint64_t *to = rows + (first + 1) * words; to < rows + row * words; to += words)
        for (int32_t w = 0; w < words; w++) to[w] |= (to - words)[w];
}

/* Divides a set into left and right; `set` may be the place of either. Returns which are not empty, as bits 1 and 2. */
static int kc_pool_divide(const uint64_t *set, const uint64_t *row, uint64_t *left, uint64_t *right, int32_t from, int32_t to) {
#if defined(__GNUC__)
    kc_words some_left = {0, 0, 0, 0}, some_right = {0, 0, 0, 0};
    for (int32_t w = from; w < to; w += 4) {
        const kc_words here = *(const kc_words *)(set + w), yes = here & *(const kc_words *)(row + w), no = here ^ yes;
        *(kc_words *)(left + w) = yes;
        *(kc_words *)(right + w) = no;
        some_left |= yes;
        some_right |= no;
    }
    return ((some_left[0] | some_left[1] | some_left[2] | some_left[3]) != 0) |
           ((some_right[0] | some_right[1] | some_right[2] | some_right[3]) != 0) << 1;
#else
    uint64_t some_left = 0, some_right = 0;
    for (int32_t w = from; w < to; w++) {
        const uint64_t here = set[w], yes = here & row[w], no = here ^ yes;
        left[w] = yes;
        right[w] = no;
        some_left |= yes;
        some_right |= no;
    }
    return (some_left != 0) | (some_right != 0) << 1;
#endif
}

/* The fours of words that are not empty. */
static void kc_pool_narrow(const uint64_t *set, int32_t *from, int32_t *to) {
    while ((set[*from] | set[*from + 1] | set[*from + 2] | set[*from + 3]) == 0) *from += 4;
    while ((set[*to - 1] | set[*to - 2] | set[*to - 3] | set[*to - 4]) == 0) *to -= 4;
}

/* Adds to the sums of the configs in one word of a set. Adding +0 to the others changes none of them. */
static void kc_pool_add(double *sums, uint64_t word, double add) {
#if defined(__GNUC__)
    uint64_t few = word;
    for (int32_t i = 0; i < 5 && few; i++) few &= few - 1;
    if (few) {
        const kc_lanes all = {add, add, add, add};
        for (int32_t i = 0; i < 16; i++, word >>= 4)
            ((kc_lanes *)sums)[i] += (kc_lanes)((kc_masks)all & kc_nibble[word & 15]);
        return;
    }
#endif
    while (word) {
        sums[KC_LOWEST(word)] += add;
        word &= word - 1;
    }
}

/* The same in whole numbers, eight at a time: `eight` has the mask of each byte. */
static void kc_pool_add_rough(const int32_t (*eight)[8], int32_t *sums, uint64_t word, int32_t add) {
#if defined(__GNUC__)
    if (word & (word - 1)) {
        const kc_whole all = {add, add, add, add, add, add, add, add};
        for (int32_t i = 0; i < 8; i++) ((kc_whole *)sums)[i] += all & *(const kc_whole *)eight[word >> (8 * i) & 255];
        return;
    }
#endif
    (void)eight;
    while (word) {
        sums[KC_LOWEST(word)] += add;
        word &= word - 1;
    }
}

/* Exact sums; or, if `rough` is not NULL, rounded ones into it. */
KC_INLINE void kc_wide_walk(const kc_pool *pool, const kc_pool_state *state, int32_t forest, const uint64_t *all, double *sums,
                         int32_t *rough) {
    const kc_trees *const t = pool->trees;
    const kc_id *const condition = state->rows_of;
    const uint64_t *const rows = state->rows;
    uint64_t *const sets = state->sets;
    const ptrdiff_t words = pool->words;
    int16_t place[KC_MOST_DEPTH];
    int32_t low[KC_MOST_DEPTH], high[KC_MOST_DEPTH], begin = 0, end = pool->words;
    kc_pool_narrow(all, &begin, &end);
    for (int32_t tree = t->first_tree[forest]; tree < t->first_tree[forest + 1]; tree++) {
        const kc_node *nodes = t->nodes + t->first_node[tree];
        const double *value = t->leaves + t->first_leaf[tree];
        int32_t at = t->first_node[tree + 1] == t->first_node[tree] ? -1 : 0, depth = 0;
        const uint64_t *set = all;
        int32_t from = begin, to = end;
        for (;;) {
            while (at >= 0) {
                const kc_node node = nodes[at];
                const kc_id which = condition[node.condition];
                if (which < 2) {
                    at = which ? node.left : node.right;
                    continue;
                }
                /* The right part waits at `depth`, the left one goes on above it; `set` may be either's old place. */
                uint64_t *right = sets + depth * words, *left = right + words;
                const int sides = kc_pool_divide(set, rows + which * words, left, right, from, to);
                at = sides & 1 ? node.left : node.right;
                set = sides & 1 ? left : right;
                if (sides != 3) continue;
                place[depth] = (int16_t)node.right;
                low[depth] = from;
                high[depth] = to;
                kc_pool_narrow(right, &low[depth], &high[depth]);
                kc_pool_narrow(left, &from, &to);
                depth++;
            }
            if (rough == NULL) {
                for (int32_t w = from; w < to; w++)
                    if (set[w]) kc_pool_add(sums + 64 * (ptrdiff_t)w, set[w], value[-1 - at]);
            } else {
                const int32_t add = t->rough[t->first_leaf[tree] + (uint32_t)(-1 - at)];
                for (int32_t w = from; w < to; w++)
                    if (set[w]) kc_pool_add_rough((const int32_t (*)[8])state->eight, rough + 64 * (ptrdiff_t)w, set[w], add);
            }
            if (depth == 0) break;
            depth--;
            set = sets + depth * words;
            at = place[depth];
            from = low[depth];
            to = high[depth];
        }
    }
}

/* Leaves in `all` only configs that may be the best: those whose score, by rounded sums, may be as low as another's. */
KC_INLINE void kc_screen(const kc_model *m, const kc_pool *pool, kc_pool_state *state, uint64_t *all, double *low) {
    const int32_t forests = pool->trees->forests;
    const ptrdiff_t wide = (ptrdiff_t)pool->words * 64;
    double least = HUGE_VAL, raw[KC_MOST_RAW];
    memset(state->rough, 0, (size_t)forests * (size_t)wide * sizeof *state->rough);
    for (int32_t forest = 0; forest < forests; forest++) kc_wide_walk(pool, state, forest, all, NULL, state->rough + forest * wide);
    for (int32_t i = 0; i < pool->configs; i++) {
        double high;
        for (int32_t forest = 0; forest < forests; forest++) raw[forest] = state->rough[forest * wide + i] / m->rough_scale;
        kc_bounds(m, raw, &low[i], &high);
        if ((all[i >> 6] >> (i & 63) & 1) && high < least) least = high;
    }
    for (int32_t i = 0; i < pool->configs; i++)
        if (low[i] > least) all[i >> 6] &= ~((uint64_t)1 << (i & 63));
}

KC_INLINE void kc_pool_rows(const kc_pool *pool, kc_pool_state *state, const kc_pool_slot *slot, const double *value) {
    if (pool->words == 1) kc_narrow_rows(pool, state, slot, value);
    else kc_wide_rows(pool, state, slot, value);
}

/* Keeps in `all` those that were tried on such problems, else on its labels, if there are any. */
KC_INLINE void kc_keep_tried(const kc_model *m, const kc_pool *pool, kc_pool_state *state, const double *p, uint64_t *all) {
    const ptrdiff_t words = pool->words;
    uint64_t *const tried = state->tried_here, some = 0;
    for (int sizes = 1; !some && sizes >= 0; sizes--) {
        memset(tried, 0, (size_t)words * sizeof *tried);
        for (int32_t band = 0; band < pool->bands; band++)
            if (kc_within(m, pool->band_of[band], p, sizes))
                for (int32_t w = 0; w < words; w++) tried[w] |= state->tried[band * words + w];
        for (int32_t w = 0; w < words; w++) some |= all[w] & tried[w];
        for (int32_t w = 0; some && w < words; w++) all[w] &= tried[w];
    }
}

/* The sets of configs that meet each condition; returns whether any available config obeys the rules. */
KC_INLINE int kc_pool_begin(const kc_model *m, const kc_pool *pool, kc_pool_state *state, const double *value) {
    const kc_trees *const t = pool->trees;
    const int32_t words = pool->words;
    uint64_t *const all = state->valid, some = 0;
    kc_pool_decide(t, words > 1, value, state);
    const kc_pool_slot *slot = pool->slots, *end = pool->slots + pool->slot_count;
    for (int32_t g = 0; slot < end; g++) {
        const kc_pool_group *group = &pool->groups[g];
        kc_compute(m, pool, g, value, state->out);
        for (; slot < end && slot->group == g; slot++)
            kc_pool_rows(pool, state, slot, state->out + (ptrdiff_t)slot->output * group->count);
    }
    memcpy(all, state->there, (size_t)words * sizeof *all);
    for (int32_t k = t->first_rule; k < t->conditions; k++) {
        const uint64_t *breaks = words == 1 ? state->words_of + k : state->rows + (ptrdiff_t)state->rows_of[k] * words;
        for (int32_t w = 0; w < words; w++) all[w] &= ~breaks[w];
    }
    for (int32_t w = 0; w < words; w++) some |= all[w];
    return some != 0;
}

/* Scores and times of every available config that can run the problem, by the rules and by the forest for failures (or,
   `best_only`, of those that may be the best); 0 when there is none. */
KC_INLINE int kc_score_sets(const kc_model *m, const kc_pool *pool, kc_pool_state *state, kerncast_context *context, const double *p,
                         int best_only) {
    const kc_trees *const t = pool->trees;
    const ptrdiff_t wide = (ptrdiff_t)pool->words * 64;
    double value[KC_MOST_VALUES], raw[KC_MOST_RAW];
    uint64_t *const all = state->valid;
    double *const sums = state->sums;
    int runs = 0;
    kc_problem_values(m, p, value);
    if (!kc_pool_begin(m, pool, state, value)) return 0;
    kc_keep_tried(m, pool, state, p, all);
    /* Borrows the place of the times, which are computed later. */
    if (best_only && pool->screens) kc_screen(m, pool, state, all, context->time_ns);
    memset(sums, 0, (size_t)t->forests * (size_t)wide * sizeof *sums);
    for (int32_t forest = 0; forest < t->forests; forest++) {
        if (pool->words == 1) kc_narrow_walk(t, state->words_of, forest, all[0], sums + forest * wide);
        else kc_wide_walk(pool, state, forest, all, sums + forest * wide, NULL);
    }
    for (int32_t i = 0; i < pool->configs; i++) {
        context->allowed[i] = (unsigned char)(all[i >> 6] >> (i & 63) & 1);
        if (!context->allowed[i]) continue;
        for (int32_t forest = 0; forest < t->forests; forest++) raw[forest] = sums[forest * wide + i];
        if (pool->imitates) { /* the model's own forest is asked about the choice */
            context->time_ns[i] = -1.0;
            context->score[i] = -raw[0];
        } else if (kc_fails(m, raw)) {
            context->allowed[i] = 0;
            continue;
        } else {
            context->time_ns[i] = kc_decode(m, raw[0], value);
            context->score[i] = kc_forest_score(m, value, raw, context->time_ns[i]);
        }
        runs = 1;
    }
    return runs;
}

#endif

#if KC_WITH_ROWS

/* The same for a model that is computed config by config: of those tried on such problems, else on its labels, if there are any. */
KC_INLINE int kc_score_rows(const kc_model *m, const kc_pool *pool, kerncast_context *context, const double *p) {
    double v[KC_MOST_VALUES], c[KC_MOST_CONFIG];
    unsigned char most = 0;
    for (int32_t i = 0; i < pool->configs; i++) {
        const int32_t candidate = pool->members[i], band = m->tried_band[kc_stored(m, candidate)];
        kc_config_numbers(m, candidate, c);
        context->allowed[i] = (unsigned char)(context->available[candidate] && kc_config_valid(m, p, c));
        if (context->allowed[i]) context->allowed[i] = (unsigned char)(1 + kc_within(m, band, p, 0) + kc_within(m, band, p, 1));
        if (context->allowed[i] > most) most = context->allowed[i];
    }
    if (!most) return 0;
    kc_problem_values(m, p, v);
    for (int32_t i = 0; i < pool->configs; i++) {
        context->allowed[i] = context->allowed[i] == most;
        if (!context->allowed[i]) continue;
        kc_config_numbers(m, pool->members[i], c);
        kc_row_of(m, v, p, c, &context->time_ns[i], &context->score[i]);
    }
    return 1;
}

#endif

KC_INLINE int kc_score_configs(const kc_model *m, const kc_pool *pool, kc_pool_state *state, kerncast_context *context, const double *p,
                               int best_only) {
    if (pool->configs == 0) return 0;
#if KC_WITH_FORESTS
    if (pool->trees != NULL) return kc_score_sets(m, pool, state, context, p, best_only);
#endif
    (void)m, (void)state, (void)context, (void)p, (void)best_only;
#if KC_WITH_ROWS
    return kc_score_rows(m, pool, context, p);
#else
    return 0;
#endif
}

/* Compiled in, each pool has code of its own, in which its sizes are constants. */
static int kc_score_pool(const kc_model *m, int32_t number, kerncast_context *context, const double *p, int best_only) {
    const kc_pool *const pools = m->pools;
    kc_pool_state *const states = context->states;
    if (number == KC_PORTFOLIO) return kc_score_configs(m, &pools[KC_PORTFOLIO], &states[KC_PORTFOLIO], context, p, best_only);
    if (number == KC_FULL) return kc_score_configs(m, &pools[KC_FULL], &states[KC_FULL], context, p, best_only);
    return kc_score_configs(m, &pools[KC_QUICK], &states[KC_QUICK], context, p, best_only);
}

static void kc_prepare_pool(const kc_pool *pool, kc_pool_state *state) {
#if KC_WITH_FORESTS
    if (pool->trees == NULL || pool->configs == 0) return;
    const ptrdiff_t words = pool->words;
    for (int32_t byte = 0; byte < 256; byte++)
        for (int32_t i = 0; i < 8; i++) state->eight[byte][i] = byte >> i & 1 ? -1 : 0;
    for (int32_t i = 0; i < pool->configs; i++) {
        state->rows[words + (i >> 6)] |= (uint64_t)1 << (i & 63);
        state->tried[pool->band[i] * words + (i >> 6)] |= (uint64_t)1 << (i & 63);
    }
    for (int32_t g = 0; g < pool->group_count; g++) {
        const kc_pool_group *group = &pool->groups[g];
        for (int32_t i = 0; group->bits >= 0 && i < pool->configs; i++)
            state->bits[(group->bits + group->member[i]) * words + (i >> 6)] |= (uint64_t)1 << (i & 63);
    }
    for (int32_t i = 0; i < pool->static_slot_count; i++)
        kc_pool_rows(pool, state, &pool->static_slots[i], pool->groups[pool->static_slots[i].group].values);
#else
    (void)pool, (void)state;
#endif
}

/* Takes over which configs are available. */
static void kc_mask_pool(const kc_pool *pool, kc_pool_state *state, const unsigned char *available) {
    if (pool->trees == NULL || pool->configs == 0) return;
    memset(state->there, 0, (size_t)pool->words * sizeof *state->there);
    for (int32_t i = 0; i < pool->configs; i++)
        if (available[pool->members[i]]) state->there[i >> 6] |= (uint64_t)1 << (i & 63);
}

