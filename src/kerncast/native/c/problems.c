/* -- reading a problem ---------------------------------------------------------------------------- */

typedef struct {
    int64_t key[KC_MOST_PROBLEM];
    double p[KC_MOST_PROBLEM];
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
static kerncast_status kc_refuse(const kc_model *m, kerncast_answer *answer, kerncast_status status, int32_t parameter, const char *format,
                                 const char *name, const char *rule, int64_t value) {
    if (answer == NULL) return status;
    memset(answer, 0, sizeof *answer);
    answer->status = status;
    answer->candidate = -1;
    answer->parameter = parameter;
    answer->tier = KERNCAST_TIER_NONE;
    answer->time_ns = answer->lower_ns = answer->upper_ns = answer->efficiency = -1.0;
    answer->label = "";
    for (int32_t i = 0; i < m->config.count; i++) ((int64_t *)&answer->config)[i] = KERNCAST_MISSING;
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
static kerncast_status kc_refuse_value(const kc_model *m, kerncast_answer *answer, kerncast_status status, int32_t place, const char *format,
                                       const kc_parameter *parameter, const char *rule, int64_t value) {
    char digits[24];
    kc_refuse(m, answer, status, place, "%.0s%.0s", "", "", 0);
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

/* Reads a problem or a config: `key` gets its numbers, and `numbers` what formulas read. */
KC_INLINE kerncast_status kc_read_values(const kc_model *m, const kc_space *space, const int64_t *given, int64_t *key, double *numbers,
                                      kerncast_answer *answer) {
    for (int32_t place = 0; place < space->count; place++) {
        const int32_t i = space->order[place];
        const kc_parameter *parameter = &space->parameters[i];
        int64_t value = given[i];
        if (parameter->conditional && !kc_applies(m, space, i, numbers)) {
            if (value != KERNCAST_MISSING)
                return kc_refuse_value(m, answer, KERNCAST_BAD_INPUT, i, "%s does not apply here and must be left out%.0s, got %s",
                                       parameter, "", value);
            key[i] = KERNCAST_MISSING;
            numbers[i] = parameter->inactive;
            continue;
        }
        if (parameter->optional &&
            (value == KERNCAST_MISSING || (double)value == parameter->inactive || kc_usual(m, space, i, numbers, value))) {
            key[i] = KERNCAST_MISSING;
            numbers[i] = parameter->inactive;
            continue;
        }
        if (value == KERNCAST_MISSING) value = parameter->otherwise;
        if (value == KERNCAST_MISSING)
            return kc_refuse(m, answer, KERNCAST_BAD_INPUT, i, "%s is missing: it must be %s", parameter->name, parameter->rule, 0);
        if (!kc_in_domain(parameter, value))
            return kc_refuse_value(m, answer, KERNCAST_BAD_INPUT, i, "%s must be %s, got %s", parameter, parameter->rule, value);
        key[i] = value;
        numbers[i] = (double)value;
    }
    return KERNCAST_OK;
}

static kerncast_status kc_read_problem(const kc_model *m, const kerncast_problem *given, kc_problem *problem, kerncast_answer *answer) {
    const kerncast_status status = kc_read_values(m, &m->problem, (const int64_t *)given, problem->key, problem->p, answer);
    if (status != KERNCAST_OK) return status;
    const int32_t rule = kc_broken_rule(m, problem->p);
    if (rule >= 0) return kc_refuse(m, answer, KERNCAST_BAD_INPUT, -1, "%s%.0s", m->rules[rule], "", 0);
    return KERNCAST_OK;
}

static kerncast_status kc_read_config(const kc_model *m, const kerncast_config *given, double *c, kerncast_answer *answer) {
    int64_t key[KC_MOST_CONFIG];
    return kc_read_values(m, &m->config, (const int64_t *)given, key, c, answer);
}

/* Refuses what the family cannot do at all, then what the model was not trained on. */
static kerncast_status kc_check_range(const kc_model *m, const kc_problem *problem, kerncast_answer *answer) {
    const int32_t rule = kc_unsupported(m, problem->p);
    if (rule >= 0) return kc_refuse(m, answer, KERNCAST_UNSUPPORTED, -1, "%s%.0s", m->family_rules[rule], "", 0);
    for (int32_t i = 0; i < m->problem.count; i++) {
        if (problem->key[i] == KERNCAST_MISSING || kc_in_domain(&m->hull[i], problem->key[i])) continue;
        return kc_refuse_value(m, answer, KERNCAST_OUT_OF_RANGE, i, "%s was trained with %s only, got %s", &m->problem.parameters[i],
                               m->hull[i].rule, problem->key[i]);
    }
    return KERNCAST_OK;
}

/* Marks an answer to a problem that is in range but unlike all measured ones. The choice, its time and its interval stay. */
static kerncast_status kc_against_facts(const kc_model *m, const kc_problem *problem, kerncast_answer *answer) {
    for (int32_t i = 0; i < m->fact_count; i++) {
        const kc_fact *fact = &m->facts[i];
        const int64_t value = problem->key[fact->parameter];
        if (value == KERNCAST_MISSING || (value % fact->step + fact->step) % fact->step == fact->rest) continue;
        answer->status = KERNCAST_OUT_OF_RANGE;
        answer->parameter = fact->parameter;
        snprintf(answer->message, sizeof answer->message, "%s was trained with %s only, got %lld: nothing like it was measured",
                 m->hull[fact->parameter].name, fact->rule, (long long)value);
        return KERNCAST_OUT_OF_RANGE;
    }
    return KERNCAST_OK;
}

