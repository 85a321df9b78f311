/* The engine: the same text in every artefact; the tables above say what it computes. */

/* -- reading a problem ---------------------------------------------------------------------------- */

typedef struct {
    int64_t key[KC_PROBLEM];
    double p[KC_PROBLEM + 1];
} kc_problem;

static int kc_in_domain(const kc_parameter *parameter, int64_t value) {
    if (parameter->values != NULL) {
        for (int32_t i = 0; i < parameter->count; i++)
            if (parameter->values[i] == value) return 1;
        return 0;
    }
    if (value < parameter->low || value > parameter->high) return 0;
    /* Unsigned: the distance of two 64-bit numbers may not fit into a signed one. */
    return ((uint64_t)value - (uint64_t)parameter->low) % (uint64_t)parameter->step == 0;
}

/* Messages have no floating point, so that no locale can change them. */
static kerncast_status kc_refuse(kerncast_answer *answer, kerncast_status status, int32_t parameter, const char *format,
                                 const char *name, const char *rule, int64_t value) {
    if (answer == NULL) return status;
    memset(answer, 0, sizeof *answer);
    answer->status = status;
    answer->candidate = -1;
    answer->parameter = parameter;
    answer->tier = KERNCAST_TIER_NONE;
    answer->time_ns = answer->lower_ns = answer->upper_ns = answer->efficiency = -1.0;
    answer->label = "";
    for (int32_t i = 0; i < KC_CONFIG; i++) ((int64_t *)&answer->config)[i] = KERNCAST_MISSING;
    snprintf(answer->message, sizeof answer->message, format, name, rule, (long long)value);
    return status;
}

/* What a value is called: its label, or the number, written into `digits`. */
static const char *kc_called(const kc_parameter *parameter, int64_t value, char *digits, size_t bytes) {
    if (parameter->labels != NULL && parameter->values == NULL && (value == 0 || value == 1)) return parameter->labels[value];
    for (int32_t i = 0; parameter->labels != NULL && i < parameter->count; i++)
        if (parameter->values[i] == value) return parameter->labels[i];
    snprintf(digits, bytes, "%lld", (long long)value);
    return digits;
}

/* The same for a message that ends with a value of a parameter. */
static kerncast_status kc_refuse_value(kerncast_answer *answer, kerncast_status status, int32_t place, const char *format,
                                       const kc_parameter *parameter, const char *rule, int64_t value) {
    char digits[24];
    kc_refuse(answer, status, place, "%.0s%.0s", "", "", 0);
    if (answer != NULL)
        snprintf(answer->message, sizeof answer->message, format, parameter->name, rule,
                 kc_called(parameter, value, digits, sizeof digits));
    return status;
}

/* Adds to a message, so far as there is room. */
static void kc_add_words(kerncast_answer *answer, const char *words) {
    const size_t length = strlen(answer->message);
    snprintf(answer->message + length, sizeof answer->message - length, "%s", words);
}

static kerncast_status kc_read_values(const kc_parameter *declared, int32_t count, const int32_t *order,
                                      int (*applies)(int32_t, const double *), int (*usual)(int32_t, const double *, int64_t),
                                      const int64_t *given, int64_t *key, double *numbers, kerncast_answer *answer,
                                      kerncast_status refused) {
    for (int32_t place = 0; place < count; place++) {
        const int32_t i = order[place];
        const kc_parameter *parameter = &declared[i];
        int64_t value = given[i];
        if (parameter->conditional && !applies(i, numbers)) {
            if (value != KERNCAST_MISSING)
                return kc_refuse_value(answer, refused, i, "%s does not apply here and must be left out%.0s, got %s", parameter, "",
                                       value);
            key[i] = KERNCAST_MISSING;
            numbers[i] = parameter->inactive;
            continue;
        }
        if (parameter->optional && (value == KERNCAST_MISSING || (double)value == parameter->inactive || usual(i, numbers, value))) {
            key[i] = KERNCAST_MISSING;
            numbers[i] = parameter->inactive;
            continue;
        }
        if (value == KERNCAST_MISSING) value = parameter->otherwise;
        if (value == KERNCAST_MISSING)
            return kc_refuse(answer, refused, i, "%s is missing: it must be %s", parameter->name, parameter->rule, 0);
        if (!kc_in_domain(parameter, value))
            return kc_refuse_value(answer, refused, i, "%s must be %s, got %s", parameter, parameter->rule, value);
        key[i] = value;
        numbers[i] = (double)value;
    }
    return KERNCAST_OK;
}

static kerncast_status kc_read_problem(const kerncast_problem *given, kc_problem *problem, kerncast_answer *answer) {
    const kerncast_status status = kc_read_values(kc_problem_parameters, KC_PROBLEM, kc_problem_order, kc_problem_applies,
                                                  kc_problem_usual, (const int64_t *)given, problem->key, problem->p, answer,
                                                  KERNCAST_BAD_INPUT);
    if (status != KERNCAST_OK) return status;
    const int32_t rule = kc_broken_rule(problem->p);
    if (rule >= 0) return kc_refuse(answer, KERNCAST_BAD_INPUT, -1, "%s%.0s", kc_rules[rule], "", 0);
    return KERNCAST_OK;
}

/* Refuses what the family cannot do at all, then what the model was not trained on. */
static kerncast_status kc_check_range(const kc_problem *problem, kerncast_answer *answer) {
    const int32_t rule = kc_unsupported(problem->p);
    if (rule >= 0) return kc_refuse(answer, KERNCAST_UNSUPPORTED, -1, "%s%.0s", kc_family_rules[rule], "", 0);
    for (int32_t i = 0; i < KC_PROBLEM; i++) {
        if (problem->key[i] == KERNCAST_MISSING || kc_in_domain(&kc_hull[i], problem->key[i])) continue;
        return kc_refuse_value(answer, KERNCAST_OUT_OF_RANGE, i, "%s was trained with %s only, got %s", &kc_problem_parameters[i],
                               kc_hull[i].rule, problem->key[i]);
    }
    return KERNCAST_OK;
}

/* Marks an answer to a problem that is in range but unlike all measured ones. The choice, its time and its interval stay. */
static kerncast_status kc_against_facts(const kc_problem *problem, kerncast_answer *answer) {
    for (int32_t i = 0; i < KC_FACTS; i++) {
        const kc_fact *fact = &kc_facts[i];
        const int64_t value = problem->key[fact->parameter];
        if (value == KERNCAST_MISSING || (value % fact->step + fact->step) % fact->step == fact->rest) continue;
        answer->status = KERNCAST_OUT_OF_RANGE;
        answer->parameter = fact->parameter;
        snprintf(answer->message, sizeof answer->message, "%s was trained with %s only, got %lld: nothing like it was measured",
                 kc_hull[fact->parameter].name, fact->rule, (long long)value);
        return KERNCAST_OUT_OF_RANGE;
    }
    return KERNCAST_OK;
}

/* -- answers ---------------------------------------------------------------------------------------- */

static double kc_factor(const double *edges, const double *factors, int32_t bands, double time_ns) {
    int32_t band = 0;
    while (band < bands - 1 && edges[band] <= time_ns) band++;
    return factors[band];
}

/* `interval`: which of the intervals holds for the problem; without a time there is none, and it does not matter. */
static kerncast_status kc_accept_in(int32_t interval, kerncast_answer *answer, kerncast_tier tier, int32_t candidate, double time_ns) {
    answer->status = KERNCAST_OK;
    answer->tier = tier;
    answer->candidate = candidate;
    answer->parameter = -1;
    answer->pin = KERNCAST_PIN_NONE;
    answer->label = "";
    answer->message[0] = '\0';
    for (int32_t i = 0; i < KC_CONFIG; i++)
        ((int64_t *)&answer->config)[i] = candidate < 0 ? KERNCAST_MISSING : kc_config_value(candidate, i);
    answer->time_ns = time_ns;
    answer->lower_ns = answer->upper_ns = answer->efficiency = -1.0;
    if (time_ns > 0.0 && KC_BANDS > 0) {
        const int32_t rare = interval % KC_RARE_BANDS * KC_BANDS;
        double lower = kc_factor(kc_band_edges, kc_band_lower + rare, KC_BANDS, time_ns);
        double upper = kc_factor(kc_band_edges, kc_band_upper + rare, KC_BANDS, time_ns);
#if KC_SIZE_BANDS > 1
        /* Of the interval by rarity and that by size, the wider half on either side. */
        const int32_t size = interval / KC_RARE_BANDS * KC_BANDS;
        const double below = kc_factor(kc_band_edges, kc_size_lower + size, KC_BANDS, time_ns);
        const double above = kc_factor(kc_band_edges, kc_size_upper + size, KC_BANDS, time_ns);
        if (below < lower) lower = below;
        if (above > upper) upper = above;
#endif
        answer->lower_ns = time_ns * lower;
        answer->upper_ns = time_ns * upper;
    }
    if (time_ns > 0.0 && KC_EFFICIENCY_BANDS > 0)
        answer->efficiency = kc_factor(kc_efficiency_edges, kc_efficiency, KC_EFFICIENCY_BANDS, time_ns);
    return KERNCAST_OK;
}

static kerncast_status kc_accept(const kc_problem *problem, kerncast_answer *answer, kerncast_tier tier, int32_t candidate,
                                 double time_ns) {
    return kc_accept_in(time_ns > 0.0 ? kc_interval_of(problem->key, problem->p) : 0, answer, tier, candidate, time_ns);
}

/* A fallback that can run anyway: the library's own choice or the portfolio, in that order. */
static void kc_fall_back(const kerncast_context *context, const kc_problem *problem, kerncast_answer *answer) {
    double c[KC_CONFIG + 1];
    for (int32_t i = 0; i < KC_FALLBACKS; i++) {
        kc_config_numbers(kc_fallbacks[i], c);
        if (!context->available[kc_fallbacks[i]] || !kc_config_valid(problem->p, c)) continue;
        answer->candidate = kc_fallbacks[i];
        answer->label = kc_label_of(problem->key, kc_fallbacks[i]);
        for (int32_t j = 0; j < KC_CONFIG; j++) ((int64_t *)&answer->config)[j] = kc_config_value(kc_fallbacks[i], j);
        if (KC_CONFIG > 0) kc_add_words(answer, kc_fallback_words);
        return;
    }
}

/* -- the memo: 4-way set-associative, places overwritten in turn -------------------------------------- */

static uint64_t kc_hash(const int64_t *key, kerncast_tier tier) {
    uint64_t hash = 0x9e3779b97f4a7c15u + (uint64_t)tier;
    for (int32_t i = 0; i < KC_PROBLEM; i++) {
        hash = (hash ^ (uint64_t)key[i]) * 0xff51afd7ed558ccdu;
        hash ^= hash >> 32;
    }
    return hash;
}

static kc_memo *kc_recall(kerncast_context *context, const int64_t *key, kerncast_tier tier, uint64_t hash) {
    kc_memo *places = &context->memo[(hash % (KC_MEMO / 4)) * 4];
    for (int32_t i = 0; i < 4; i++)
        if (places[i].hash == hash && places[i].asked == tier && memcmp(places[i].key, key, sizeof places[i].key) == 0)
            return &places[i];
    return NULL;
}

static void kc_remember(kerncast_context *context, const kc_problem *problem, kerncast_tier tier, uint64_t hash,
                        const kerncast_answer *answer) {
    kc_memo *place = &context->memo[(hash % (KC_MEMO / 4)) * 4 + (context->turn++ & 3u)];
    place->hash = hash;
    place->asked = tier;
    memcpy(place->key, problem->key, sizeof place->key);
    place->candidate = answer->candidate;
    place->time_ns = answer->time_ns;
    place->interval = answer->time_ns > 0.0 ? kc_interval_of(problem->key, problem->p) : 0;
    place->pin = answer->pin;
}

/* -- pins ------------------------------------------------------------------------------------------- */

/* Whether a value of an optional parameter says the same as leaving it out does, for this problem. */
static int kc_says_nothing(const kc_problem *problem, int32_t i, int64_t value) {
    const kc_parameter *parameter = &kc_problem_parameters[i];
    if (!parameter->optional || problem->key[i] != KERNCAST_MISSING) return 0;
    return (double)value == parameter->inactive || kc_problem_usual(i, problem->p, value);
}

static int kc_matches(const int64_t *pattern, const kc_problem *problem) {
    for (int32_t i = 0; i < KC_PROBLEM; i++)
        if (pattern[i] != KERNCAST_MISSING && pattern[i] != problem->key[i] && !kc_says_nothing(problem, i, pattern[i])) return 0;
    return 1;
}

/* The candidate that is pinned for a problem, or -1. The last pin that matches counts; calls come after the export. */
static int32_t kc_pinned(const kerncast_context *context, const kc_problem *problem) {
    for (int32_t i = context->pins; i-- > 0;)
        if (kc_matches(context->pin[i].key, problem)) return context->pin[i].candidate;
    for (int32_t i = KC_PINS; i-- > 0;)
        if (kc_matches(&kc_pin_keys[(ptrdiff_t)i * KC_PROBLEM], problem)) return kc_pin_candidates[i];
    return -1;
}

/* Why a pinned config is not used on a problem, or NULL. */
static const char *kc_pin_refusal(const kerncast_context *context, const double *p, int32_t candidate) {
    double c[KC_CONFIG + 1];
    if (!context->available[candidate]) return "it is not available";
    kc_config_numbers(candidate, c);
    const int32_t rule = kc_broken_config_rule(p, c);
    return rule < 0 ? NULL : kc_config_rules[rule];
}

/* What an answer with a config ends with: the kernel's name, and what became of a pin. */
static kerncast_status kc_finish(const kerncast_context *context, const kc_problem *problem, kerncast_answer *answer,
                                 kerncast_pin_state pin) {
    answer->label = kc_label_of(problem->key, answer->candidate);
    answer->pin = pin;
    if (pin == KERNCAST_PIN_NOT_APPLIED && answer->status == KERNCAST_OK) {
        const int32_t pinned = kc_pinned(context, problem);
        const char *refusal = pinned < 0 ? NULL : kc_pin_refusal(context, problem->p, pinned);
        snprintf(answer->message, sizeof answer->message, "the pin to candidate %d is not applied: %s", (int)pinned,
                 refusal == NULL ? "" : refusal);
    }
    return answer->status;
}

/* Whether a pin decides. Outside the trained range it does so without a time. */
static int kc_decided_by_pin(const kerncast_context *context, const kc_problem *problem, int in_range, kerncast_answer *answer,
                             kerncast_pin_state *pin) {
    const int32_t pinned = kc_pinned(context, problem);
    double c[KC_CONFIG + 1];
    *pin = KERNCAST_PIN_NONE;
    if (pinned < 0) return 0;
    *pin = KERNCAST_PIN_NOT_APPLIED;
    if (kc_pin_refusal(context, problem->p, pinned) != NULL) return 0;
    *pin = KERNCAST_PIN_DECIDED;
    kc_config_numbers(pinned, c);
    kc_accept(problem, answer, KERNCAST_TIER_PIN, pinned, in_range ? kc_time(problem->p, c) : -1.0);
    kc_finish(context, problem, answer, *pin);
    return 1;
}

/* -- the tree --------------------------------------------------------------------------------------- */

#if KC_HAS_TREE
/* The number of the list of the leaf that a problem reaches. */
static int32_t kc_leaf_list(const double *p) {
    double value[KC_TREE_FEATURES];
    int32_t node = KC_TREE_NODES > 0 ? 0 : -1; /* below zero: the leaf -1 - node */
    kc_tree_values(p, value);
    while (node >= 0)
        node = value[kc_tree_feature[node]] <= kc_tree_threshold[node] ? kc_tree_left[node] : kc_tree_right[node];
    return kc_tree_list[-1 - node];
}
#endif

/* The candidate that the leaf's list gives, or -1: unsure. It may answer if it is available, by the rules, by where it was
   tried, and by the forest for failures. */
static int32_t kc_decide(const kerncast_context *context, const double *p) {
#if KC_HAS_TREE
    const int32_t number = kc_leaf_list(p);
    const kc_place *list = kc_tree_lists + (ptrdiff_t)number * KC_TREE_PLACES;
#if KC_MOST_COMPARED > 1
    if (kc_tree_compares[number] > 1) return kc_compare(context, p, list, kc_tree_compares[number]);
#endif
    double c[KC_CONFIG + 1];
    for (int32_t i = 0; i < KC_TREE_PLACES && list[i] >= 0; i++) {
        const int32_t candidate = kc_tree_members[list[i]];
        if (kc_fits(context, p, candidate, c) && kc_runs(p, c)) return candidate;
    }
#else
    (void)context, (void)p, (void)kc_fits;
#endif
    return -1;
}

/* -- the public functions ---------------------------------------------------------------------------- */

size_t kerncast_context_bytes(void) { return sizeof(kerncast_context); }

kerncast_status kerncast_init_checked(void *memory, size_t bytes, uint64_t schema, kerncast_context **context) {
    if (context == NULL) return KERNCAST_BAD_INPUT;
    *context = NULL;
    if (memory == NULL) return KERNCAST_BAD_INPUT;
    if (schema != KERNCAST_SCHEMA) return KERNCAST_MISMATCH;
    if (bytes < sizeof(kerncast_context) || (uintptr_t)memory % KC_ALIGNMENT != 0) return KERNCAST_TOO_SMALL;
    if (kc_checksum() != KC_CHECKSUM) return KERNCAST_CORRUPT;
    memset(memory, 0, sizeof(kerncast_context));
    *context = memory;
    kc_prepare(*context);
    return kerncast_clear_overrides(*context);
}

kerncast_status kerncast_create_checked(uint64_t schema, kerncast_context **context) {
    if (context == NULL) return KERNCAST_BAD_INPUT;
    /* Aligned by hand: C99 has no aligned allocation. The pointer to free is right before the context. */
    *context = NULL;
    char *memory = malloc(sizeof(kerncast_context) + KC_ALIGNMENT + sizeof(void *));
    if (memory == NULL) return KERNCAST_TOO_SMALL;
    uintptr_t place = (uintptr_t)(memory + sizeof(void *) + KC_ALIGNMENT - 1);
    char *aligned = memory + (place - place % KC_ALIGNMENT - (uintptr_t)memory);
    memcpy(aligned - sizeof(void *), &memory, sizeof(void *));
    const kerncast_status status = kerncast_init_checked(aligned, sizeof(kerncast_context), schema, context);
    if (status != KERNCAST_OK) free(memory);
    return status;
}

void kerncast_destroy(kerncast_context *context) {
    if (context == NULL) return;
    void *memory;
    memcpy(&memory, (char *)context - sizeof(void *), sizeof(void *));
    free(memory);
}

void kerncast_problem_init(kerncast_problem *problem) {
    if (problem == NULL) return;
    for (int32_t i = 0; i < KC_PROBLEM; i++) ((int64_t *)problem)[i] = KERNCAST_MISSING;
}

void kerncast_config_init(kerncast_config *config) {
    if (config == NULL) return;
    for (int32_t i = 0; i < KC_CONFIG; i++) ((int64_t *)config)[i] = KERNCAST_MISSING;
}

static int kc_has_tier(kerncast_tier tier) {
    return (tier == KERNCAST_TIER_TREE && KC_HAS_TREE) || (tier == KERNCAST_TIER_PORTFOLIO && KC_HAS_PORTFOLIO) ||
           (tier == KERNCAST_TIER_FULL && KC_HAS_FULL);
}

/* Scores of the best tier from `tier` on that has a config for this problem: its size, 0 when there is none.
   `quick`: only the best is needed, so a small forest may rank the portfolio, and screening may drop hopeless configs. */
static int32_t kc_score_from(kerncast_context *context, const kc_problem *problem, int quick, kerncast_tier *tier,
                             const int32_t **members) {
    if (*tier <= KERNCAST_TIER_PORTFOLIO && KC_HAS_PORTFOLIO) {
        *tier = KERNCAST_TIER_PORTFOLIO;
        *members = kc_portfolio_members;
        if (quick && KC_HAS_QUICK) {
            if (kc_quick_score(context, problem->p, quick)) return KC_PORTFOLIO_CONFIGS;
        } else
        if (kc_portfolio_score(context, problem->p, quick)) return KC_PORTFOLIO_CONFIGS;
    }
    *tier = KERNCAST_TIER_FULL;
    *members = KC_HAS_FULL ? kc_full_members : NULL;
    return KC_HAS_FULL && kc_full_score(context, problem->p, quick) ? KC_FULL_CONFIGS : 0;
}

/* The time of one config of a pool: a small forest orders configs without saying how long they take. */
static double kc_time_of(const kerncast_context *context, const kc_problem *problem, int32_t place, int32_t candidate) {
    double c[KC_CONFIG + 1];
    if (context->time_ns[place] >= 0.0) return context->time_ns[place];
    kc_config_numbers(candidate, c);
    return kc_time(problem->p, c);
}

static kerncast_status kc_none_valid(kerncast_answer *answer) {
    return kc_refuse(answer, KERNCAST_NO_VALID_CONFIG, -1, "no config that the model knows can run this problem%.0s%.0s", "", "", 0);
}

static kerncast_status kc_begin(const kerncast_context *context, const kerncast_problem *given, kerncast_tier *asked,
                                kc_problem *problem, kerncast_answer *answer) {
    if (context == NULL)
        return kc_refuse(answer, KERNCAST_BAD_INPUT, -1, "there is no context: make one with create or init%.0s%.0s", "", "", 0);
    if (given == NULL) return kc_refuse(answer, KERNCAST_BAD_INPUT, -1, "there is no problem%.0s%.0s", "", "", 0);
    if (answer == NULL) return KERNCAST_BAD_INPUT;
    kerncast_status status = kc_read_problem(given, problem, answer);
    if (status != KERNCAST_OK) return status;
    if (*asked == KERNCAST_TIER_AUTO)
        *asked = KC_HAS_PORTFOLIO ? KERNCAST_TIER_PORTFOLIO : KC_HAS_FULL ? KERNCAST_TIER_FULL : KERNCAST_TIER_TREE;
    const kerncast_tier tier = *asked;
    if (!kc_has_tier(tier))
        return kc_refuse(answer, KERNCAST_BAD_INPUT, -1, "the tier '%s' is not in this artefact: ask another, or export it with that tier%.0s",
                         kerncast_tier_name(tier), "", 0);
    return KERNCAST_OK;
}

/* The tree is alone: there is no other tier to ask, so a status, and a fallback. */
static kerncast_status kc_unsure(const kerncast_context *context, const kc_problem *problem, kerncast_pin_state pin,
                                 kerncast_answer *answer) {
    kc_refuse(answer, KERNCAST_UNSURE, -1, "the tree is unsure about this problem%.0s%.0s", "", "", 0);
    kc_fall_back(context, problem, answer);
    answer->pin = pin;
    return KERNCAST_UNSURE;
}

#if KC_TREE_ALONE

/* Lists the configs of the problem's leaf that fit, in their order, after a pinned one; returns how many fit. */
static int32_t kc_list_leaf(const kerncast_context *context, const kc_problem *problem, kerncast_pin_state pin,
                            kerncast_answer *answers, size_t capacity, size_t *count) {
    const kc_place *list = kc_tree_lists + (ptrdiff_t)kc_leaf_list(problem->p) * KC_TREE_PLACES;
    const int32_t pinned = *count > 0 ? answers[0].candidate : -1;
    double c[KC_CONFIG + 1];
    int32_t fits = 0;
    for (int32_t i = 0; i < KC_TREE_PLACES && list[i] >= 0; i++) {
        const int32_t candidate = kc_tree_members[list[i]];
        if (!kc_fits(context, problem->p, candidate, c)) continue;
        fits++;
        if (candidate == pinned || *count == capacity) continue;
        kerncast_answer *answer = &answers[(*count)++];
        kc_accept(problem, answer, KERNCAST_TIER_TREE, candidate, -1.0);
        kc_finish(context, problem, answer, *count == 1 ? pin : KERNCAST_PIN_NONE);
        kc_against_facts(problem, answer);
    }
    return fits;
}

#endif

/* The place of the best config of a scored pool that is not listed yet, or -1. */
static int32_t kc_best_of(const kerncast_context *context, const int32_t *members, int32_t configs) {
    int32_t best = -1;
    for (int32_t i = 0; i < configs; i++)
        if (context->allowed[i] == 1 && (best < 0 || context->score[i] < context->score[best] ||
                                         (context->score[i] == context->score[best] && members[i] < members[best])))
            best = i;
    return best;
}

/* The same for a choice. A small forest does not know what fails, so the model is asked about what it puts first. */
static int32_t kc_best_running(kerncast_context *context, const kc_problem *problem, kerncast_tier tier, const int32_t *members,
                               int32_t configs) {
    double c[KC_CONFIG + 1];
    for (;;) {
        const int32_t best = kc_best_of(context, members, configs);
        if (best < 0 || !KC_HAS_QUICK || tier != KERNCAST_TIER_PORTFOLIO) return best;
        kc_config_numbers(members[best], c);
        if (kc_runs(problem->p, c)) return best;
        context->allowed[best] = 0;
    }
}

kerncast_status kerncast_select(kerncast_context *context, const kerncast_problem *given, kerncast_tier tier,
                                kerncast_answer *answer) {
    kc_problem problem;
    kerncast_status status = kc_begin(context, given, &tier, &problem, answer);
    if (status != KERNCAST_OK) return status;
    const uint64_t hash = kc_hash(problem.key, tier);
    const kc_memo *known = kc_recall(context, problem.key, tier, hash);
    if (known != NULL) {
        kc_accept_in(known->interval, answer, KERNCAST_TIER_MEMO, known->candidate, known->time_ns);
        kc_finish(context, &problem, answer, known->pin);
        return known->pin == KERNCAST_PIN_DECIDED ? KERNCAST_OK : kc_against_facts(&problem, answer);
    }
    status = kc_check_range(&problem, answer);
    if (status == KERNCAST_UNSUPPORTED) return status;
    kerncast_pin_state pin;
    if (kc_decided_by_pin(context, &problem, status == KERNCAST_OK, answer, &pin)) {
        kc_remember(context, &problem, tier, hash, answer);
        return KERNCAST_OK;
    }
    if (status != KERNCAST_OK) {
        kc_fall_back(context, &problem, answer);
        answer->pin = pin;
        return status;
    }
    if (tier == KERNCAST_TIER_TREE) {
        const int32_t candidate = kc_decide(context, problem.p);
        if (candidate >= 0) {
            kc_accept(&problem, answer, KERNCAST_TIER_TREE, candidate, -1.0);
            kc_finish(context, &problem, answer, pin);
            kc_remember(context, &problem, tier, hash, answer);
            return kc_against_facts(&problem, answer);
        }
    }
    kerncast_tier answered = tier;
    const int32_t *members;
    int32_t configs = kc_score_from(context, &problem, 1, &answered, &members);
    int32_t best = kc_best_running(context, &problem, answered, members, configs);
    if (best < 0 && answered == KERNCAST_TIER_PORTFOLIO) {
        answered = KERNCAST_TIER_FULL;
        configs = kc_score_from(context, &problem, 1, &answered, &members);
        best = kc_best_running(context, &problem, answered, members, configs);
    }
    if (best < 0) return KC_TREE_ALONE ? kc_unsure(context, &problem, pin, answer) : kc_none_valid(answer);
    kc_accept(&problem, answer, answered, members[best], kc_time_of(context, &problem, best, members[best]));
    kc_finish(context, &problem, answer, pin);
    kc_remember(context, &problem, tier, hash, answer);
    return kc_against_facts(&problem, answer);
}

/* Lists the configs of a scored pool, best first, without those that are listed already. Selection one by one: a caller
   wants a few of thousands, and there is no memory to sort in. */
static void kc_list(kerncast_context *context, const kc_problem *problem, kerncast_tier tier, const int32_t *members,
                    int32_t configs, kerncast_pin_state pin, kerncast_answer *answers, size_t capacity, size_t *count) {
    for (int32_t i = 0; i < configs; i++)
        for (size_t j = 0; j < *count; j++)
            if (members[i] == answers[j].candidate) context->allowed[i] = 0;
    while (*count < capacity) {
        const int32_t best = kc_best_of(context, members, configs);
        if (best < 0) break;
        context->allowed[best] = 0;
        kerncast_answer *answer = &answers[(*count)++];
        kc_accept(problem, answer, tier, members[best], kc_time_of(context, problem, best, members[best]));
        /* Only the first answer of a ranking is a choice, so a pin that is not applied is said there. */
        kc_finish(context, problem, answer, *count == 1 ? pin : KERNCAST_PIN_NONE);
        kc_against_facts(problem, answer);
    }
}

kerncast_status kerncast_rank(kerncast_context *context, const kerncast_problem *given, kerncast_tier tier, kerncast_answer *answers,
                              size_t capacity, size_t *count) {
    kc_problem problem;
    kerncast_answer local, *first = capacity ? answers : &local;
    if (count == NULL) return KERNCAST_BAD_INPUT;
    *count = 0;
    kerncast_status status = kc_begin(context, given, &tier, &problem, first);
    if (status == KERNCAST_OK) status = kc_check_range(&problem, first);
    if (status != KERNCAST_OK && status != KERNCAST_OUT_OF_RANGE) return status;
    kerncast_pin_state pin;
    const int decided = kc_decided_by_pin(context, &problem, status == KERNCAST_OK, first, &pin);
    if (decided) *count = capacity ? 1 : 0;
    if (status == KERNCAST_OUT_OF_RANGE) {
        if (decided) return KERNCAST_OK;
        kc_fall_back(context, &problem, first);
        first->pin = pin;
        return status;
    }
    int32_t configs = 0, scored;
    /* A portfolio that is smaller than the list is followed by the other configs. */
    for (kerncast_tier next = tier; configs == 0 || *count < capacity; next = KERNCAST_TIER_FULL) {
        const int32_t *members;
        kerncast_tier answered = next;
        scored = kc_score_from(context, &problem, 0, &answered, &members);
        configs += scored;
        kc_list(context, &problem, answered, members, scored, pin, answers, capacity, count);
        if (answered == KERNCAST_TIER_FULL || !KC_HAS_FULL) break;
    }
#if KC_TREE_ALONE
    configs = kc_list_leaf(context, &problem, pin, answers, capacity, count);
#endif
    if (configs == 0 && !decided) return KC_TREE_ALONE ? kc_unsure(context, &problem, pin, first) : kc_none_valid(first);
    return decided || *count == 0 ? KERNCAST_OK : first->status;
}

kerncast_status kerncast_scores(kerncast_context *context, const kerncast_problem *given, kerncast_tier tier, double *scores,
                                double *times_ns, size_t capacity) {
    kc_problem problem;
    kerncast_answer answer;
    const kerncast_status status = kc_begin(context, given, &tier, &problem, &answer);
    if (status != KERNCAST_OK) return status;
    kerncast_tier answered = tier;
    const int32_t wanted = tier == KERNCAST_TIER_FULL ? KC_FULL_CONFIGS : KC_PORTFOLIO_CONFIGS;
    if (scores == NULL || times_ns == NULL) return KERNCAST_BAD_INPUT;
    if (KC_TREE_ALONE) return KERNCAST_UNSUPPORTED;
    if (capacity < (size_t)wanted) return KERNCAST_TOO_SMALL;
    const int32_t *members;
    const int32_t configs = kc_score_from(context, &problem, 0, &answered, &members);
    const int same = configs > 0 && answered == (tier == KERNCAST_TIER_TREE ? KERNCAST_TIER_PORTFOLIO : tier);
    for (int32_t i = 0; i < wanted; i++) {
        scores[i] = same && context->allowed[i] ? context->score[i] : HUGE_VAL;
        times_ns[i] = same && context->allowed[i] ? kc_time_of(context, &problem, i, members[i]) : -1.0;
    }
    return KERNCAST_OK;
}

static kerncast_status kc_read_config(const kerncast_config *given, double *c, kerncast_answer *answer) {
#if KC_CONFIG
    int64_t key[KC_CONFIG];
    return kc_read_values(kc_config_parameters, KC_CONFIG, kc_config_order, kc_config_applies, kc_config_usual, (const int64_t *)given, key, c, answer,
                          KERNCAST_BAD_INPUT);
#else
    (void)given, (void)c, (void)answer;
    return KERNCAST_OK;
#endif
}

kerncast_status kerncast_predict(const kerncast_problem *given, const kerncast_config *config, kerncast_answer *answer) {
    kc_problem problem;
    double c[KC_CONFIG + 1];
    if (given == NULL || config == NULL)
        return kc_refuse(answer, KERNCAST_BAD_INPUT, -1, "there is no problem or no config%.0s%.0s", "", "", 0);
    if (answer == NULL) return KERNCAST_BAD_INPUT;
    kerncast_status status = kc_read_problem(given, &problem, answer);
    if (status == KERNCAST_OK) status = kc_read_config(config, c, answer);
    if (status == KERNCAST_OK) status = kc_check_range(&problem, answer);
    if (status != KERNCAST_OK) return status;
    if (!kc_config_valid(problem.p, c))
        return kc_refuse(answer, KERNCAST_UNSUPPORTED, -1, "the config breaks a rule of its family on this problem%.0s%.0s", "", "", 0);
#if KC_TREE_ALONE
    return kc_refuse(answer, KERNCAST_UNSUPPORTED, -1,
                     "a tree alone knows no times: export the portfolio or the full tier, too%.0s%.0s", "", "", 0);
#else
    double time_ns, score;
    kc_row(problem.p, c, &time_ns, &score);
    kc_accept(&problem, answer, KERNCAST_TIER_NONE, -1, time_ns);
#if KC_CONFIG
    memcpy(&answer->config, config, sizeof answer->config);
#endif
    return kc_against_facts(&problem, answer);
#endif
}

kerncast_status kerncast_features(const kerncast_problem *given, const kerncast_config *config, double *features, size_t capacity) {
    kc_problem problem;
    kerncast_answer answer;
    double c[KC_CONFIG + 1];
    if (given == NULL || config == NULL || features == NULL) return KERNCAST_BAD_INPUT;
    kerncast_status status = kc_read_problem(given, &problem, &answer);
    if (status == KERNCAST_OK) status = kc_read_config(config, c, &answer);
    if (status != KERNCAST_OK) return status;
#if KC_TREE_ALONE
    (void)capacity;
    return KERNCAST_UNSUPPORTED;
#else
    if (capacity < KC_FEATURES) return KERNCAST_TOO_SMALL;
    kc_features(problem.p, c, features);
    return KERNCAST_OK;
#endif
}

int32_t kerncast_candidates(void) { return KC_CANDIDATES; }

kerncast_status kerncast_candidate(int32_t candidate, kerncast_config *config) {
    if (config == NULL || candidate < 0 || candidate >= KC_CANDIDATES || kc_stored(candidate) < 0) return KERNCAST_BAD_INPUT;
#if KC_CONFIG
    for (int32_t i = 0; i < KC_CONFIG; i++) ((int64_t *)config)[i] = kc_config_value(candidate, i);
#else
    (void)config;
#endif
    return KERNCAST_OK;
}

uint64_t kerncast_schema(void) { return KERNCAST_SCHEMA; }

const char *kerncast_model(void) { return kc_model; }

const char *kerncast_status_name(kerncast_status status) {
    static const char *const names[] = {@STATUS_NAMES@};
    return (unsigned)status < sizeof names / sizeof names[0] ? names[status] : "unknown";
}

const char *kerncast_tier_name(kerncast_tier tier) {
    static const char *const names[] = {@TIER_NAMES@};
    return (unsigned)tier < sizeof names / sizeof names[0] ? names[tier] : "unknown";
}
