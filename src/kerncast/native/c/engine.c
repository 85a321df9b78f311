/* -- choosing ------------------------------------------------------------------------------------------ */

const char *kerncast_status_name(kerncast_status status) {
    static const char *const names[] = {@STATUS_NAMES@};
    return (unsigned)status < sizeof names / sizeof names[0] ? names[status] : "unknown";
}

const char *kerncast_tier_name(kerncast_tier tier) {
    static const char *const names[] = {@TIER_NAMES@};
    return (unsigned)tier < sizeof names / sizeof names[0] ? names[tier] : "unknown";
}

static int kc_has_tier(const kc_model *m, kerncast_tier tier) {
    return (tier == KERNCAST_TIER_TREE && m->has_tree) || (tier == KERNCAST_TIER_PORTFOLIO && m->pools[KC_PORTFOLIO].configs > 0) ||
           (tier == KERNCAST_TIER_FULL && m->pools[KC_FULL].configs > 0);
}

/* Scores of the best tier from `tier` on that has a config for this problem: its size, 0 when there is none.
   `quick`: only the best is needed, so a small forest may rank the portfolio, and screening may drop hopeless configs. */
static int32_t kc_score_from(const kc_model *m, kerncast_context *context, const kc_problem *problem, int quick, kerncast_tier *tier,
                             const int32_t **members) {
    if (*tier <= KERNCAST_TIER_PORTFOLIO && m->pools[KC_PORTFOLIO].configs > 0) {
        *tier = KERNCAST_TIER_PORTFOLIO;
        *members = m->pools[KC_PORTFOLIO].members;
        const int32_t pool = quick && m->pools[KC_QUICK].configs > 0 ? KC_QUICK : KC_PORTFOLIO;
        if (kc_score_pool(m, pool, context, problem->p, quick)) return m->pools[KC_PORTFOLIO].configs;
    }
    *tier = KERNCAST_TIER_FULL;
    *members = m->pools[KC_FULL].members;
    return kc_score_pool(m, KC_FULL, context, problem->p, quick) ? m->pools[KC_FULL].configs : 0;
}

/* The time of one config of a pool: a small forest orders configs without saying how long they take. */
static double kc_time_of(const kc_model *m, const kerncast_context *context, const kc_problem *problem, int32_t place,
                         int32_t candidate) {
    double c[KC_MOST_CONFIG];
    if (context->time_ns[place] >= 0.0) return context->time_ns[place];
    kc_config_numbers(m, candidate, c);
    return kc_time(m, problem->p, c);
}

static kerncast_status kc_no_context(kerncast_answer *answer) {
    return kc_refuse(KC_MODEL_OF((kerncast_context *)NULL), answer, KERNCAST_BAD_INPUT, -1,
                     "there is no context: make one with create or init%.0s%.0s", "", "", 0);
}

static kerncast_status kc_none_valid(const kc_model *m, kerncast_answer *answer) {
    return kc_refuse(m, answer, KERNCAST_NO_VALID_CONFIG, -1, "no config that the model knows can run this problem%.0s%.0s", "", "", 0);
}

static kerncast_status kc_begin(const kc_model *m, const kerncast_context *context, const kerncast_problem *given, kerncast_tier *asked,
                                kc_problem *problem, kerncast_answer *answer) {
    if (context == NULL) return kc_no_context(answer);
    if (given == NULL) return kc_refuse(m, answer, KERNCAST_BAD_INPUT, -1, "there is no problem%.0s%.0s", "", "", 0);
    if (answer == NULL) return KERNCAST_BAD_INPUT;
    kerncast_status status = kc_read_problem(m, given, problem, answer);
    if (status != KERNCAST_OK) return status;
    if (*asked == KERNCAST_TIER_AUTO)
        *asked = m->pools[KC_PORTFOLIO].configs > 0 ? KERNCAST_TIER_PORTFOLIO
                 : m->pools[KC_FULL].configs > 0    ? KERNCAST_TIER_FULL
                                                    : KERNCAST_TIER_TREE;
    const kerncast_tier tier = *asked;
    if (!kc_has_tier(m, tier))
        return kc_refuse(m, answer, KERNCAST_BAD_INPUT, -1,
                         "the tier '%s' is not in this artefact: ask another, or export it with that tier%.0s",
                         kerncast_tier_name(tier), "", 0);
    return KERNCAST_OK;
}

/* The tree is alone: there is no other tier to ask, so a status, and a fallback. */
static KC_MAYBE kerncast_status kc_unsure(const kc_model *m, const kerncast_context *context, const kc_problem *problem, kerncast_pin_state pin,
                                 kerncast_answer *answer) {
    kc_refuse(m, answer, KERNCAST_UNSURE, -1, "the tree is unsure about this problem%.0s%.0s", "", "", 0);
    kc_fall_back(m, context, problem, answer);
    answer->pin = pin;
    return KERNCAST_UNSURE;
}

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
static int32_t kc_best_running(const kc_model *m, kerncast_context *context, const kc_problem *problem, kerncast_tier tier,
                               const int32_t *members, int32_t configs) {
    double c[KC_MOST_CONFIG];
    for (;;) {
        const int32_t best = kc_best_of(context, members, configs);
        if (best < 0 || m->pools[KC_QUICK].configs == 0 || tier != KERNCAST_TIER_PORTFOLIO) return best;
        kc_config_numbers(m, members[best], c);
        if (kc_runs(m, problem->p, c)) return best;
        context->allowed[best] = 0;
    }
}

kerncast_status kerncast_select(kerncast_context *context, const kerncast_problem *given, kerncast_tier tier,
                                kerncast_answer *answer) {
    const kc_model *const m = KC_MODEL_OF(context);
    kc_problem problem;
    kerncast_status status = kc_begin(m, context, given, &tier, &problem, answer);
    if (status != KERNCAST_OK) return status;
    const uint64_t hash = kc_hash(m, problem.key, tier);
    const kc_memo *known = kc_recall(m, context, problem.key, tier, hash);
    if (known != NULL) {
        kc_accept_in(m, known->interval, answer, KERNCAST_TIER_MEMO, known->candidate, known->time_ns);
        kc_finish(m, context, &problem, answer, known->pin);
        return known->pin == KERNCAST_PIN_DECIDED ? KERNCAST_OK : kc_against_facts(m, &problem, answer);
    }
    status = kc_check_range(m, &problem, answer);
    if (status == KERNCAST_UNSUPPORTED) return status;
    kerncast_pin_state pin;
    if (kc_decided_by_pin(m, context, &problem, status == KERNCAST_OK, answer, &pin)) {
        kc_remember(m, context, &problem, tier, hash, answer);
        return KERNCAST_OK;
    }
    if (status != KERNCAST_OK) {
        kc_fall_back(m, context, &problem, answer);
        answer->pin = pin;
        return status;
    }
#if KC_WITH_TREE
    if (tier == KERNCAST_TIER_TREE) {
        const int32_t candidate = kc_decide(m, context, problem.p);
        if (candidate >= 0) {
            kc_accept(m, &problem, answer, KERNCAST_TIER_TREE, candidate, -1.0);
            kc_finish(m, context, &problem, answer, pin);
            kc_remember(m, context, &problem, tier, hash, answer);
            return kc_against_facts(m, &problem, answer);
        }
    }
#endif
    kerncast_tier answered = tier;
    const int32_t *members;
    int32_t configs = kc_score_from(m, context, &problem, 1, &answered, &members);
    int32_t best = kc_best_running(m, context, &problem, answered, members, configs);
    if (best < 0 && answered == KERNCAST_TIER_PORTFOLIO) {
        answered = KERNCAST_TIER_FULL;
        configs = kc_score_from(m, context, &problem, 1, &answered, &members);
        best = kc_best_running(m, context, &problem, answered, members, configs);
    }
    if (best < 0) return KC_ALONE ? kc_unsure(m, context, &problem, pin, answer) : kc_none_valid(m, answer);
    kc_accept(m, &problem, answer, answered, members[best], kc_time_of(m, context, &problem, best, members[best]));
    kc_finish(m, context, &problem, answer, pin);
    kc_remember(m, context, &problem, tier, hash, answer);
    return kc_against_facts(m, &problem, answer);
}

/* Lists the configs of a scored pool, best first, without those that are listed already. Selection one by one: a caller
   wants a few of thousands, and there is no memory to sort in. */
static void kc_list(const kc_model *m, kerncast_context *context, const kc_problem *problem, kerncast_tier tier, const int32_t *members,
                    int32_t configs, kerncast_pin_state pin, kerncast_answer *answers, size_t capacity, size_t *count) {
    for (int32_t i = 0; i < configs; i++)
        for (size_t j = 0; j < *count; j++)
            if (members[i] == answers[j].candidate) context->allowed[i] = 0;
    while (*count < capacity) {
        const int32_t best = kc_best_of(context, members, configs);
        if (best < 0) break;
        context->allowed[best] = 0;
        kerncast_answer *answer = &answers[(*count)++];
        kc_accept(m, problem, answer, tier, members[best], kc_time_of(m, context, problem, best, members[best]));
        /* Only the first answer of a ranking is a choice, so a pin that is not applied is said there. */
        kc_finish(m, context, problem, answer, *count == 1 ? pin : KERNCAST_PIN_NONE);
        kc_against_facts(m, problem, answer);
    }
}

kerncast_status kerncast_rank(kerncast_context *context, const kerncast_problem *given, kerncast_tier tier, kerncast_answer *answers,
                              size_t capacity, size_t *count) {
    const kc_model *const m = KC_MODEL_OF(context);
    kc_problem problem;
    kerncast_answer local, *first = capacity ? answers : &local;
    if (count == NULL) return KERNCAST_BAD_INPUT;
    *count = 0;
    kerncast_status status = kc_begin(m, context, given, &tier, &problem, first);
    if (status == KERNCAST_OK) status = kc_check_range(m, &problem, first);
    if (status != KERNCAST_OK && status != KERNCAST_OUT_OF_RANGE) return status;
    kerncast_pin_state pin;
    const int decided = kc_decided_by_pin(m, context, &problem, status == KERNCAST_OK, first, &pin);
    if (decided) *count = capacity ? 1 : 0;
    if (status == KERNCAST_OUT_OF_RANGE) {
        if (decided) return KERNCAST_OK;
        kc_fall_back(m, context, &problem, first);
        first->pin = pin;
        return status;
    }
    int32_t configs = 0, scored;
    /* A portfolio that is smaller than the list is followed by the other configs. */
    for (kerncast_tier next = tier; configs == 0 || *count < capacity; next = KERNCAST_TIER_FULL) {
        const int32_t *members;
        kerncast_tier answered = next;
        scored = kc_score_from(m, context, &problem, 0, &answered, &members);
        configs += scored;
        kc_list(m, context, &problem, answered, members, scored, pin, answers, capacity, count);
        if (answered == KERNCAST_TIER_FULL || m->pools[KC_FULL].configs == 0) break;
    }
#if KC_ALONE
    configs = kc_list_leaf(m, context, &problem, pin, answers, capacity, count);
#endif
    if (configs == 0 && !decided) return KC_ALONE ? kc_unsure(m, context, &problem, pin, first) : kc_none_valid(m, first);
    return decided || *count == 0 ? KERNCAST_OK : first->status;
}

kerncast_status kerncast_scores(kerncast_context *context, const kerncast_problem *given, kerncast_tier tier, double *scores,
                                double *times_ns, size_t capacity) {
    const kc_model *const m = KC_MODEL_OF(context);
    kc_problem problem;
    kerncast_answer answer;
    const kerncast_status status = kc_begin(m, context, given, &tier, &problem, &answer);
    if (status != KERNCAST_OK) return status;
    kerncast_tier answered = tier;
    const int32_t wanted = tier == KERNCAST_TIER_FULL ? m->pools[KC_FULL].configs : m->pools[KC_PORTFOLIO].configs;
    if (scores == NULL || times_ns == NULL) return KERNCAST_BAD_INPUT;
    if (KC_ALONE) return KERNCAST_UNSUPPORTED;
    if (capacity < (size_t)wanted) return KERNCAST_TOO_SMALL;
    const int32_t *members;
    const int32_t configs = kc_score_from(m, context, &problem, 0, &answered, &members);
    const int same = configs > 0 && answered == (tier == KERNCAST_TIER_TREE ? KERNCAST_TIER_PORTFOLIO : tier);
    for (int32_t i = 0; i < wanted; i++) {
        scores[i] = same && context->allowed[i] ? context->score[i] : HUGE_VAL;
        times_ns[i] = same && context->allowed[i] ? kc_time_of(m, context, &problem, i, members[i]) : -1.0;
    }
    return KERNCAST_OK;
}

/* -- one config ------------------------------------------------------------------------------------------ */

/* What the public functions of both forms do; those of a loaded model are given a context, and those of a compiled-in one are
   not. */

static kerncast_status kc_predict(const kc_model *m, const kerncast_problem *given, const kerncast_config *config,
                                  kerncast_answer *answer) {
    kc_problem problem;
    double c[KC_MOST_CONFIG];
    if (given == NULL || config == NULL)
        return kc_refuse(m, answer, KERNCAST_BAD_INPUT, -1, "there is no problem or no config%.0s%.0s", "", "", 0);
    if (answer == NULL) return KERNCAST_BAD_INPUT;
    kerncast_status status = kc_read_problem(m, given, &problem, answer);
    if (status == KERNCAST_OK) status = kc_read_config(m, config, c, answer);
    if (status == KERNCAST_OK) status = kc_check_range(m, &problem, answer);
    if (status != KERNCAST_OK) return status;
    if (!kc_config_valid(m, problem.p, c))
        return kc_refuse(m, answer, KERNCAST_UNSUPPORTED, -1, "the config breaks a rule of its family on this problem%.0s%.0s", "", "",
                         0);
#if KC_ALONE
    return kc_refuse(m, answer, KERNCAST_UNSUPPORTED, -1,
                     "a tree alone knows no times: export the portfolio or the full tier, too%.0s%.0s", "", "", 0);
#else
    double time_ns, score;
    kc_row(m, problem.p, c, &time_ns, &score);
    kc_accept(m, &problem, answer, KERNCAST_TIER_NONE, -1, time_ns);
    memcpy(&answer->config, config, (size_t)m->config.count * sizeof(int64_t));
    return kc_against_facts(m, &problem, answer);
#endif
}

static kerncast_status kc_describe(const kc_model *m, const kerncast_problem *given, const kerncast_config *config, double *features,
                                   size_t capacity) {
    kc_problem problem;
    kerncast_answer answer;
    double c[KC_MOST_CONFIG];
    if (given == NULL || config == NULL || features == NULL) return KERNCAST_BAD_INPUT;
    kerncast_status status = kc_read_problem(m, given, &problem, &answer);
    if (status == KERNCAST_OK) status = kc_read_config(m, config, c, &answer);
    if (status != KERNCAST_OK) return status;
#if KC_ALONE
    (void)capacity;
    return KERNCAST_UNSUPPORTED;
#else
    if (capacity < (size_t)m->features) return KERNCAST_TOO_SMALL;
    kc_features(m, problem.p, c, features);
    return KERNCAST_OK;
#endif
}

static kerncast_status kc_candidate(const kc_model *m, int32_t candidate, kerncast_config *config) {
    if (config == NULL || candidate < 0 || candidate >= m->candidates || kc_stored(m, candidate) < 0) return KERNCAST_BAD_INPUT;
    for (int32_t i = 0; i < m->config.count; i++) ((int64_t *)config)[i] = kc_config_value(m, candidate, i);
    return KERNCAST_OK;
}

static const char *kc_label(const kc_model *m, int32_t candidate) {
    return m->label_keys == 0 ? kc_label_of(m, NULL, candidate) : "";
}

static const char *kc_label_for(const kc_model *m, const kerncast_problem *given, int32_t candidate) {
    kc_problem problem;
    if (given == NULL || kc_read_problem(m, given, &problem, NULL) != KERNCAST_OK) return "";
    return kc_label_of(m, problem.key, candidate);
}

static void kc_clear(const kc_space *space, int64_t *values) {
    for (int32_t i = 0; values != NULL && i < space->count; i++) values[i] = KERNCAST_MISSING;
}

