/* How unlike the measured problems a problem is, as `models/limits/widening.py` computes it: whole numbers, then one sum. */

static int64_t kc_aligned(int64_t size) {
    int64_t power = 0;
    while (power < KC_MOST_ALIGNED && size % ((int64_t)2 << power) == 0) power++;
    return power;
}

static int64_t kc_octave(int64_t size) {
    int64_t octave = 0;
    for (; size > 0; size /= 2) octave++;
    return octave;
}

static int64_t kc_trait_of(const kc_trait *trait, const int64_t *key) {
    const int64_t one = key[trait->one], other = key[trait->other];
    if (one == KERNCAST_MISSING || other == KERNCAST_MISSING) return KC_ABSENT;
    if (trait->what == 0) return kc_aligned(one);
    if (trait->what == 1) return kc_octave(one);
    if (trait->what == 2) return kc_octave(one) - kc_octave(other);
    return one;
}

static double kc_rarity(const kc_model *m, const int64_t *key) {
    double total = 0.0;
    for (int32_t i = 0; i < m->trait_count; i++) {
        const kc_trait *trait = &m->traits[i];
        const int64_t value = kc_trait_of(trait, key);
        double bits = trait->unseen;
        for (int32_t j = trait->first; j < trait->first + trait->count; j++)
            if (m->trait_values[j] == value) {
                bits = m->trait_bits[j];
                break;
            }
        total += bits;
    }
    return total;
}

/* Which of the intervals holds for a problem: its band of rarity, plus `rare_bands` times its band of size. */
static int32_t kc_interval_of(const kc_model *m, const int64_t *key, const double *p) {
    int32_t band = 0, size_band = 0;
    if (m->trait_count > 0) {
        const double rarity = kc_rarity(m, key);
        while (band < m->rare_bands - 1 && m->rare_edges[band] <= rarity) band++;
    }
    if (m->size_bands > 1) {
        double size;
        kc_size(m, p, &size);
        while (size_band < m->size_bands - 1 && m->size_edges[size_band] <= size) size_band++;
    }
    return size_band * m->rare_bands + band;
}

/* -- answers ---------------------------------------------------------------------------------------- */

static double kc_factor(const double *edges, const double *factors, int32_t bands, double time_ns) {
    int32_t band = 0;
    while (band < bands - 1 && edges[band] <= time_ns) band++;
    return factors[band];
}

/* `interval`: which of the intervals holds for the problem; without a time there is none, and it does not matter. */
KC_INLINE kerncast_status kc_accept_in(const kc_model *m, int32_t interval, kerncast_answer *answer, kerncast_tier tier, int32_t candidate,
                                    double time_ns) {
    answer->status = KERNCAST_OK;
    answer->tier = tier;
    answer->candidate = candidate;
    answer->parameter = -1;
    answer->pin = KERNCAST_PIN_NONE;
    answer->label = "";
    answer->message[0] = '\0';
    for (int32_t i = 0; i < m->config.count; i++)
        ((int64_t *)&answer->config)[i] = candidate < 0 ? KERNCAST_MISSING : kc_config_value(m, candidate, i);
    answer->time_ns = time_ns;
    answer->lower_ns = answer->upper_ns = answer->efficiency = -1.0;
    if (time_ns > 0.0 && m->bands > 0) {
        const int32_t rare = interval % m->rare_bands * m->bands;
        double lower = kc_factor(m->band_edges, m->band_lower + rare, m->bands, time_ns);
        double upper = kc_factor(m->band_edges, m->band_upper + rare, m->bands, time_ns);
        if (m->size_bands > 1) {
            /* Of the interval by rarity and that by size, the wider half on either side. */
            const int32_t size = interval / m->rare_bands * m->bands;
            const double below = kc_factor(m->band_edges, m->size_lower + size, m->bands, time_ns);
            const double above = kc_factor(m->band_edges, m->size_upper + size, m->bands, time_ns);
            if (below < lower) lower = below;
            if (above > upper) upper = above;
        }
        answer->lower_ns = time_ns * lower;
        answer->upper_ns = time_ns * upper;
    }
    if (time_ns > 0.0 && m->efficiency_bands > 0)
        answer->efficiency = kc_factor(m->efficiency_edges, m->efficiency, m->efficiency_bands, time_ns);
    return KERNCAST_OK;
}

static kerncast_status kc_accept(const kc_model *m, const kc_problem *problem, kerncast_answer *answer, kerncast_tier tier,
                                 int32_t candidate, double time_ns) {
    return kc_accept_in(m, time_ns > 0.0 ? kc_interval_of(m, problem->key, problem->p) : 0, answer, tier, candidate, time_ns);
}

/* A fallback that can run anyway: the library's own choice or the portfolio, in that order. */
static void kc_fall_back(const kc_model *m, const kerncast_context *context, const kc_problem *problem, kerncast_answer *answer) {
    double c[KC_MOST_CONFIG];
    for (int32_t i = 0; i < m->fallback_count; i++) {
        kc_config_numbers(m, m->fallbacks[i], c);
        if (!context->available[m->fallbacks[i]] || !kc_config_valid(m, problem->p, c)) continue;
        answer->candidate = m->fallbacks[i];
        answer->label = kc_label_of(m, problem->key, m->fallbacks[i]);
        for (int32_t j = 0; j < m->config.count; j++) ((int64_t *)&answer->config)[j] = kc_config_value(m, m->fallbacks[i], j);
        if (m->config.count > 0) kc_add_words(answer, m->fallback_words);
        return;
    }
}

/* -- the memo: 4-way set-associative, places overwritten in turn -------------------------------------- */

KC_INLINE uint64_t kc_hash(const kc_model *m, const int64_t *key, kerncast_tier tier) {
    uint64_t hash = 0x9e3779b97f4a7c15u + (uint64_t)tier;
    for (int32_t i = 0; i < m->problem.count; i++) {
        hash = (hash ^ (uint64_t)key[i]) * 0xff51afd7ed558ccdu;
        hash ^= hash >> 32;
    }
    return hash;
}

KC_INLINE kc_memo *kc_recall(const kc_model *m, kerncast_context *context, const int64_t *key, kerncast_tier tier, uint64_t hash) {
    kc_memo *places = &context->memo[(hash % (KC_MEMO / 4)) * 4];
    for (int32_t i = 0; i < 4; i++)
        if (places[i].hash == hash && places[i].asked == tier && memcmp(places[i].key, key, (size_t)m->problem.count * sizeof *key) == 0)
            return &places[i];
    return NULL;
}

static void kc_remember(const kc_model *m, kerncast_context *context, const kc_problem *problem, kerncast_tier tier, uint64_t hash,
                        const kerncast_answer *answer) {
    kc_memo *place = &context->memo[(hash % (KC_MEMO / 4)) * 4 + (context->turn++ & 3u)];
    place->hash = hash;
    place->asked = tier;
    memcpy(place->key, problem->key, (size_t)m->problem.count * sizeof *place->key);
    place->candidate = answer->candidate;
    place->time_ns = answer->time_ns;
    place->interval = answer->time_ns > 0.0 ? kc_interval_of(m, problem->key, problem->p) : 0;
    place->pin = answer->pin;
}

/* -- pins ------------------------------------------------------------------------------------------- */

/* Whether a value of an optional parameter says the same as leaving it out does, for this problem. */
static int kc_says_nothing(const kc_model *m, const kc_problem *problem, int32_t i, int64_t value) {
    const kc_parameter *parameter = &m->problem.parameters[i];
    if (!parameter->optional || problem->key[i] != KERNCAST_MISSING) return 0;
    return (double)value == parameter->inactive || kc_usual(m, &m->problem, i, problem->p, value);
}

static int kc_matches(const kc_model *m, const int64_t *pattern, const kc_problem *problem) {
    for (int32_t i = 0; i < m->problem.count; i++)
        if (pattern[i] != KERNCAST_MISSING && pattern[i] != problem->key[i] && !kc_says_nothing(m, problem, i, pattern[i])) return 0;
    return 1;
}

/* The candidate that is pinned for a problem, or -1. The last pin that matches counts; calls come after the export. */
static int32_t kc_pinned(const kc_model *m, const kerncast_context *context, const kc_problem *problem) {
    for (int32_t i = context->pins; i-- > 0;)
        if (kc_matches(m, context->pin[i].key, problem)) return context->pin[i].candidate;
    for (int32_t i = m->pin_count; i-- > 0;)
        if (kc_matches(m, &m->pin_keys[(ptrdiff_t)i * m->problem.count], problem)) return m->pin_candidates[i];
    return -1;
}

/* Why a pinned config is not used on a problem, or NULL. */
static const char *kc_pin_refusal(const kc_model *m, const kerncast_context *context, const double *p, int32_t candidate) {
    double c[KC_MOST_CONFIG];
    if (!context->available[candidate]) return "it is not available";
    kc_config_numbers(m, candidate, c);
    const int32_t rule = kc_broken_config_rule(m, p, c);
    return rule < 0 ? NULL : m->config_rules[rule];
}

/* What an answer with a config ends with: the kernel's name, and what became of a pin. */
static kerncast_status kc_finish(const kc_model *m, const kerncast_context *context, const kc_problem *problem, kerncast_answer *answer,
                                 kerncast_pin_state pin) {
    answer->label = kc_label_of(m, problem->key, answer->candidate);
    answer->pin = pin;
    if (pin == KERNCAST_PIN_NOT_APPLIED && answer->status == KERNCAST_OK) {
        const int32_t pinned = kc_pinned(m, context, problem);
        const char *refusal = pinned < 0 ? NULL : kc_pin_refusal(m, context, problem->p, pinned);
        snprintf(answer->message, sizeof answer->message, "the pin to candidate %d is not applied: %s", (int)pinned,
                 refusal == NULL ? "" : refusal);
    }
    return answer->status;
}

/* Whether a pin decides. Outside the trained range it does so without a time. */
static int kc_decided_by_pin(const kc_model *m, const kerncast_context *context, const kc_problem *problem, int in_range,
                             kerncast_answer *answer, kerncast_pin_state *pin) {
    const int32_t pinned = kc_pinned(m, context, problem);
    double c[KC_MOST_CONFIG];
    *pin = KERNCAST_PIN_NONE;
    if (pinned < 0) return 0;
    *pin = KERNCAST_PIN_NOT_APPLIED;
    if (kc_pin_refusal(m, context, problem->p, pinned) != NULL) return 0;
    *pin = KERNCAST_PIN_DECIDED;
    kc_config_numbers(m, pinned, c);
    kc_accept(m, problem, answer, KERNCAST_TIER_PIN, pinned, in_range ? kc_time(m, problem->p, c) : -1.0);
    kc_finish(m, context, problem, answer, *pin);
    return 1;
}

