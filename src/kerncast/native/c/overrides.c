/* -- what exists, and what is fixed ------------------------------------------------------------------- */

/* Remembered answers were chosen among other configs, or by other pins. */
static kerncast_status kc_changed(const kc_model *m, kerncast_context *context) {
    for (int32_t i = 0; i < KC_MEMO; i++) context->memo[i].asked = KERNCAST_TIER_NONE;
    for (int32_t i = 0; i < KC_POOLS; i++) kc_mask_pool(&m->pools[i], &context->states[i], context->available);
    return KERNCAST_OK;
}

static void kc_exported_only(const kc_model *m, kerncast_context *context) {
    for (int32_t i = 0; i < m->denied_count; i++) context->available[m->denied[i]] = 0;
}

kerncast_status kerncast_clear_overrides(kerncast_context *context) {
    const kc_model *const m = KC_MODEL_OF(context);
    if (context == NULL) return KERNCAST_BAD_INPUT;
    memset(context->available, 1, (size_t)m->candidates);
    kc_exported_only(m, context);
    context->pins = 0;
    return kc_changed(m, context);
}

kerncast_status kerncast_set_available(kerncast_context *context, const unsigned char *available, size_t count) {
    const kc_model *const m = KC_MODEL_OF(context);
    if (context == NULL || available == NULL || count != (size_t)m->candidates) return KERNCAST_BAD_INPUT;
    for (size_t i = 0; i < count; i++) context->available[i] = available[i] != 0;
    kc_exported_only(m, context);
    return kc_changed(m, context);
}

kerncast_status kerncast_deny(kerncast_context *context, int32_t candidate) {
    const kc_model *const m = KC_MODEL_OF(context);
    if (context == NULL || candidate < 0 || candidate >= m->candidates) return KERNCAST_BAD_INPUT;
    context->available[candidate] = 0;
    return kc_changed(m, context);
}

/* Refuses a pin that could never be applied: a value that is none of its parameter's, or a config that cannot run the
   problem, if that is complete. */
static kerncast_status kc_check_pin(const kc_model *m, const kerncast_context *context, const kerncast_problem *given, int32_t candidate,
                                    kerncast_answer *answer) {
    const int64_t *pattern = (const int64_t *)given;
    kc_problem problem;
    int whole = 1;
    for (int32_t i = 0; i < m->problem.count; i++) {
        const kc_parameter *parameter = &m->problem.parameters[i];
        if (pattern[i] == KERNCAST_MISSING)
            whole &= parameter->conditional || parameter->optional || parameter->otherwise != KERNCAST_MISSING;
        else if (!kc_in_domain(parameter, pattern[i]))
            return kc_refuse_value(m, answer, KERNCAST_BAD_INPUT, i, "%s must be %s, got %s", parameter, parameter->rule, pattern[i]);
    }
    if (candidate < -1 || candidate >= m->candidates)
        return kc_refuse(m, answer, KERNCAST_BAD_INPUT, -1, "there is no such candidate%.0s%.0s: %lld", "", "", candidate);
    if (candidate == -1) return KERNCAST_OK;
    if (kc_stored(m, candidate) < 0)
        return kc_refuse(m, answer, KERNCAST_BAD_INPUT, -1, "this candidate is in no tier of the artefact%.0s%.0s: %lld", "", "",
                         candidate);
    if (!context->available[candidate])
        return kc_refuse(m, answer, KERNCAST_BAD_INPUT, -1, "a config that is not available cannot be pinned%.0s%.0s: %lld", "", "",
                         candidate);
    if (!whole) return KERNCAST_OK;
    const kerncast_status status = kc_read_problem(m, given, &problem, answer);
    if (status != KERNCAST_OK) return status;
    const char *refusal = kc_pin_refusal(m, context, problem.p, candidate);
    if (refusal == NULL) return KERNCAST_OK;
    return kc_refuse(m, answer, KERNCAST_UNSUPPORTED, -1, "the config cannot run this problem: %s%.0s", refusal, "", 0);
}

kerncast_status kerncast_pin(kerncast_context *context, const kerncast_problem *given, int32_t candidate, kerncast_answer *answer) {
    const kc_model *const m = KC_MODEL_OF(context);
    if (context == NULL) return kc_no_context(answer);
    if (given == NULL) return kc_refuse(m, answer, KERNCAST_BAD_INPUT, -1, "there is no problem%.0s%.0s", "", "", 0);
    const kerncast_status status = kc_check_pin(m, context, given, candidate, answer);
    if (status != KERNCAST_OK) return status;
    const size_t bytes = (size_t)m->problem.count * sizeof(int64_t);
    int32_t kept = 0;
    for (int32_t i = 0; i < context->pins; i++)
        if (memcmp(context->pin[i].key, given, bytes) != 0) context->pin[kept++] = context->pin[i];
    context->pins = kept;
    if (kept == KC_MOST_PINS) {
        kc_changed(m, context);
        return kc_refuse(m, answer, KERNCAST_TOO_SMALL, -1, "a context has room for %s%s%lld pins", "", "", KC_MOST_PINS);
    }
    memcpy(context->pin[kept].key, given, bytes);
    context->pin[kept].candidate = candidate;
    context->pins = kept + 1;
    kc_refuse(m, answer, KERNCAST_OK, -1, "%.0s%.0s", "", "", 0);
    return kc_changed(m, context);
}

