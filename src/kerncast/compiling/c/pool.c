/* -- the pool `pool` ---------------------------------------------------------------------------------- */

#if KC_POOL_WORDS == 1

/* A condition is the word of configs for which it holds. Features of the problem alone: all of them or none. */
static void kc_pool_decide(const double *value, kc_pool_state *state) {
    for (int32_t i = 0; i < KC_TREES_PROBLEM_SLOTS; i++) {
        const int32_t first = kc_trees_problem_slots[i].first, count = kc_trees_problem_slots[i].count;
        const int32_t bin = kc_bin(kc_trees_thresholds + first, count, value[kc_trees_problem_slots[i].value]);
        for (int32_t k = 0; k < count; k++) state->condition[first + k] = k >= bin ? ~(uint64_t)0 : 0;
    }
}

static void kc_pool_rows(kc_pool_state *state, const kc_pool_slot *slot, const double *value) {
    const kc_pool_group *group = &kc_pool_groups[slot->group];
    const double *threshold = kc_trees_thresholds + slot->first;
    uint64_t *condition = state->condition + slot->first, spill = 0;
    memset(condition, 0, (size_t)slot->count * sizeof *condition);
    for (int32_t i = 0; i < group->count; i++) {
        const int32_t bin = kc_bin(threshold, slot->count, value[i]);
        *(bin < slot->count ? &condition[bin] : &spill) |= state->bits[group->bits + i][0];
    }
    for (int32_t k = 1; k < slot->count; k++) condition[k] |= condition[k - 1];
}

#else

/* A condition is the row of configs for which it holds: 0 for none, 1 for all. Features of the problem alone: either. */
static void kc_pool_decide(const double *value, kc_pool_state *state) {
    for (int32_t i = 0; i < KC_TREES_PROBLEM_SLOTS; i++) {
        const int32_t first = kc_trees_problem_slots[i].first, count = kc_trees_problem_slots[i].count;
        const int32_t bin = kc_bin(kc_trees_thresholds + first, count, value[kc_trees_problem_slots[i].value]);
        for (int32_t k = 0; k < count; k++) state->condition[first + k] = k >= bin;
    }
}

/* The sets of configs for which each condition of a slot holds, from its values by combination. */
static void kc_pool_rows(kc_pool_state *state, const kc_pool_slot *slot, const double *value) {
    const kc_pool_group *group = &kc_pool_groups[slot->group];
    const double *threshold = kc_trees_thresholds + slot->first;
    kc_trees_id *row_of = state->condition + slot->first;
    kc_trees_id row_of_bin[KC_TREES_MOST_THRESHOLDS + 1];
    kc_trees_id bin_of[KC_POOL_MOST_COMBINATIONS];
    memset(row_of_bin, 0, ((size_t)slot->count + 1) * sizeof *row_of_bin);
    int32_t last = 0;
    for (int32_t i = 0; i < group->count; i++) {
        const int32_t bin = kc_bin(threshold, slot->count, value[i]);
        bin_of[i] = (kc_trees_id)bin;
        row_of_bin[bin] = 1;
        if (bin > last) last = bin;
    }
    /* Rows in the order of their bins; a condition holds for the bins up to its own. */
    kc_trees_id row = (kc_trees_id)slot->row, current = 0;
    const int32_t end = last < slot->count ? last : slot->count;
    for (int32_t bin = 0; bin < end; bin++) {
        if (row_of_bin[bin]) row_of_bin[bin] = current = row++;
        row_of[bin] = current;
    }
    for (int32_t bin = end; bin < slot->count; bin++) row_of[bin] = 1;
    if (row == (kc_trees_id)slot->row) return;
    memset(state->rows[slot->row], 0, (size_t)(row - (kc_trees_id)slot->row) * sizeof state->rows[0]);
    if (group->bits >= 0) {
        for (int32_t i = 0; i < group->count; i++) {
            if (bin_of[i] >= last) continue;
            uint64_t *to = state->rows[row_of_bin[bin_of[i]]];
            const uint64_t *from = state->bits[group->bits + i];
            for (int32_t w = 0; w < KC_POOL_WORDS; w++) to[w] |= from[w];
        }
    } else {
        for (int32_t i = 0; i < KC_POOL_CONFIGS; i++) {
            const kc_trees_id bin = bin_of[group->member[i]];
            if (bin < last) state->rows[row_of_bin[bin]][i >> 6] |= (uint64_t)1 << (i & 63);
        }
    }
    for (kc_trees_id next = (kc_trees_id)(slot->row + 1); next < row; next++)
        for (int32_t w = 0; w < KC_POOL_WORDS; w++) state->rows[next][w] |= state->rows[next - 1][w];
}

#endif

static void kc_pool_prepare(kerncast_context *context) {
    kc_pool_state *state = &context->pool;
#if KC_POOL_SCREENS
    for (int32_t byte = 0; byte < 256; byte++)
        for (int32_t i = 0; i < 8; i++) state->eight[byte][i] = byte >> i & 1 ? -1 : 0;
#endif
    for (int32_t i = 0; i < KC_POOL_CONFIGS; i++) {
        state->rows[1][i >> 6] |= (uint64_t)1 << (i & 63);
        state->tried[kc_pool_band[i]][i >> 6] |= (uint64_t)1 << (i & 63);
    }
    for (int32_t g = 0; g < KC_POOL_GROUPS; g++)
        for (int32_t i = 0; kc_pool_groups[g].bits >= 0 && i < KC_POOL_CONFIGS; i++)
            state->bits[kc_pool_groups[g].bits + kc_pool_groups[g].member[i]][i >> 6] |= (uint64_t)1 << (i & 63);
    for (int32_t i = 0; i < KC_POOL_STATIC_SLOTS; i++)
        kc_pool_rows(state, &kc_pool_static_slots[i], kc_pool_groups[kc_pool_static_slots[i].group].values);
}

#if KC_POOL_WORDS == 1

static void kc_pool_walk(const kc_pool_state *state, int32_t first, int32_t last, uint64_t all, double *sums) {
    uint64_t waiting[KC_TREES_DEPTH];
    int16_t place[KC_TREES_DEPTH];
    for (int32_t tree = first; tree < last; tree++) {
        const kc_trees_node *nodes = kc_trees_nodes + kc_trees_first_node[tree];
        const double *value = kc_trees_leaves + kc_trees_first_leaf[tree];
        int32_t at = kc_trees_first_node[tree + 1] == kc_trees_first_node[tree] ? -1 : 0, depth = 0;
        uint64_t set = all;
        for (;;) {
            while (at >= 0) {
                const kc_trees_node node = nodes[at];
                const uint64_t row = state->condition[node.condition];
                const uint64_t left = set & row, right = set & ~row;
                /* The processor cannot predict the direction, so nothing here branches on it. */
                waiting[depth] = right;
                place[depth] = node.right;
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

#else

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

#if KC_POOL_SCREENS

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

#endif

/* Exact sums; or, if `rough` is not NULL, rounded ones into it. */
static void kc_pool_walk(kc_pool_state *state, int32_t first, int32_t last, const uint64_t *all, double *sums, int32_t *rough) {
    int16_t place[KC_TREES_DEPTH + 1];
    int32_t low[KC_TREES_DEPTH + 1], high[KC_TREES_DEPTH + 1], begin = 0, end = KC_POOL_WORDS;
    kc_pool_narrow(all, &begin, &end);
    for (int32_t tree = first; tree < last; tree++) {
        const kc_trees_node *nodes = kc_trees_nodes + kc_trees_first_node[tree];
        const double *value = kc_trees_leaves + kc_trees_first_leaf[tree];
        int32_t at = kc_trees_first_node[tree + 1] == kc_trees_first_node[tree] ? -1 : 0, depth = 0;
        const uint64_t *set = all;
        int32_t from = begin, to = end;
        for (;;) {
            while (at >= 0) {
                const kc_trees_node node = nodes[at];
                const kc_trees_id which = state->condition[node.condition];
                if (which < 2) {
                    at = which ? node.left : node.right;
                    continue;
                }
                /* The right part waits at `depth`, the left one goes on above it; `set` may be either's old place. */
                uint64_t *right = state->sets[depth], *left = state->sets[depth + 1];
                const int sides = kc_pool_divide(set, state->rows[which], left, right, from, to);
                at = sides & 1 ? node.left : node.right;
                set = sides & 1 ? left : right;
                if (sides != 3) continue;
                place[depth] = node.right;
                low[depth] = from;
                high[depth] = to;
                kc_pool_narrow(right, &low[depth], &high[depth]);
                kc_pool_narrow(left, &from, &to);
                depth++;
            }
            if (rough == NULL) {
                for (int32_t w = from; w < to; w++)
                    if (set[w]) kc_pool_add(sums + 64 * (ptrdiff_t)w, set[w], value[-1 - at]);
            }
#if KC_POOL_SCREENS
            else {
                const int32_t add = kc_trees_rough[kc_trees_first_leaf[tree] + (uint32_t)(-1 - at)];
                for (int32_t w = from; w < to; w++)
                    if (set[w]) kc_pool_add_rough((const int32_t (*)[8])state->eight, rough + 64 * (ptrdiff_t)w, set[w], add);
            }
#endif
            if (depth == 0) break;
            depth--;
            set = state->sets[depth];
            at = place[depth];
            from = low[depth];
            to = high[depth];
        }
    }
}

#endif

#if KC_POOL_SCREENS

/* Leaves in `all` only configs that may be the best: those whose score, by rounded sums, may be as low as another's. */
static void kc_pool_screen(kerncast_context *context, uint64_t *all) {
    kc_pool_state *state = &context->pool;
    /* Borrows the place of the times, which are computed later. */
    double least = HUGE_VAL, *low = context->time_ns, raw[KC_TREES_FORESTS];
    memset(state->rough, 0, sizeof state->rough);
    for (int32_t forest = 0; forest < KC_TREES_FORESTS; forest++)
        kc_pool_walk(state, kc_trees_first_tree[forest], kc_trees_first_tree[forest + 1], all, NULL, state->rough[forest]);
    for (int32_t i = 0; i < KC_POOL_CONFIGS; i++) {
        double high;
        for (int32_t forest = 0; forest < KC_TREES_FORESTS; forest++) raw[forest] = state->rough[forest][i] / KC_ROUGH_SCALE;
        kc_bounds(raw, &low[i], &high);
        if ((all[i >> 6] >> (i & 63) & 1) && high < least) least = high;
    }
    for (int32_t i = 0; i < KC_POOL_CONFIGS; i++)
        if (low[i] > least) all[i >> 6] &= ~((uint64_t)1 << (i & 63));
}

#endif

/* Takes over which configs are available. */
static void kc_pool_mask(kerncast_context *context) {
    kc_pool_state *state = &context->pool;
    memset(state->there, 0, sizeof state->there);
    for (int32_t i = 0; i < KC_POOL_CONFIGS; i++)
        if (context->available[kc_pool_members[i]]) state->there[i >> 6] |= (uint64_t)1 << (i & 63);
}

/* Scores and times of every available config that can run the problem, by the rules and by the forest for failures (or,
   `best_only`, of those that may be the best); 0 when there is none. */
static int kc_pool_score(kerncast_context *context, const double *p, int best_only) {
    kc_pool_state *state = &context->pool;
    double value[KC_VALUES], *out = state->out;
    kc_problem_values(p, value);
    kc_pool_decide(value, state);
    const kc_pool_slot *slot = kc_pool_slots, *end = kc_pool_slots + KC_POOL_SLOTS;
    for (int32_t g = 0; slot < end; g++) {
        const kc_pool_group *group = &kc_pool_groups[g];
        kc_trees_compute[g](value, group->values, group->count, out);
        for (; slot < end && slot->group == g; slot++) kc_pool_rows(state, slot, out + (ptrdiff_t)slot->output * group->count);
    }
    uint64_t *all = state->valid, some = 0;
    memcpy(all, state->there, sizeof state->valid);
    for (int32_t k = KC_TREES_FIRST_RULE; k < KC_TREES_CONDITIONS; k++)
#if KC_POOL_WORDS == 1
        all[0] &= ~state->condition[k];
#else
        for (int32_t w = 0; w < KC_POOL_WORDS; w++) all[w] &= ~state->rows[state->condition[k]][w];
#endif
    for (int32_t w = 0; w < KC_POOL_WORDS; w++) some |= all[w];
    if (some == 0) return 0;
    /* Keeps those that were tried on such problems, else on its labels, if there are any. */
    some = 0;
    for (int sizes = 1; !some && sizes >= 0; sizes--) {
        uint64_t tried[KC_POOL_WORDS] = {0};
        for (int32_t band = 0; band < KC_POOL_BANDS; band++)
            if (kc_within(kc_pool_band_of[band], p, sizes))
                for (int32_t w = 0; w < KC_POOL_WORDS; w++) tried[w] |= state->tried[band][w];
        for (int32_t w = 0; w < KC_POOL_WORDS; w++) some |= all[w] & tried[w];
        for (int32_t w = 0; some && w < KC_POOL_WORDS; w++) all[w] &= tried[w];
    }
#if KC_POOL_SCREENS
    if (best_only) kc_pool_screen(context, all);
#endif
    (void)best_only;
    memset(state->sums, 0, sizeof state->sums);
    for (int32_t forest = 0; forest < KC_TREES_FORESTS; forest++)
#if KC_POOL_WORDS == 1
        kc_pool_walk(state, kc_trees_first_tree[forest], kc_trees_first_tree[forest + 1], all[0], state->sums[forest]);
#else
        kc_pool_walk(state, kc_trees_first_tree[forest], kc_trees_first_tree[forest + 1], all, state->sums[forest], NULL);
#endif
    int runs = 0;
    for (int32_t i = 0; i < KC_POOL_CONFIGS; i++) {
        double raw[KC_TREES_FORESTS];
        context->allowed[i] = (unsigned char)(all[i >> 6] >> (i & 63) & 1);
        if (!context->allowed[i]) continue;
        for (int32_t forest = 0; forest < KC_TREES_FORESTS; forest++) raw[forest] = state->sums[forest][i];
        if (kc_trees_fails(raw)) {
            context->allowed[i] = 0;
            continue;
        }
        runs = 1;
        kc_trees_result(value, raw, &context->time_ns[i], &context->score[i]);
    }
    return runs;
}
