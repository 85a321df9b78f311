
/* -- what exists, and what is fixed ------------------------------------------------------------------- */

/* Remembered answers were chosen among other configs, or by other pins. */
static kerncast_status kc_changed(kerncast_context *context) {
    for (int32_t i = 0; i < KC_MEMO; i++) context->memo[i].asked = KERNCAST_TIER_NONE;
    kc_mask(context);
    return KERNCAST_OK;
}

static void kc_exported_only(kerncast_context *context) {
    for (int32_t i = 0; i < KC_DENIED; i++) context->available[kc_denied[i]] = 0;
}

kerncast_status kerncast_clear_overrides(kerncast_context *context) {
    if (context == NULL) return KERNCAST_BAD_INPUT;
    memset(context->available, 1, sizeof context->available);
    kc_exported_only(context);
    context->pins = 0;
    return kc_changed(context);
}

kerncast_status kerncast_set_available(kerncast_context *context, const unsigned char *available, size_t count) {
    if (context == NULL || available == NULL || count != KC_CANDIDATES) return KERNCAST_BAD_INPUT;
    for (size_t i = 0; i < count; i++) context->available[i] = available[i] != 0;
    kc_exported_only(context);
    return kc_changed(context);
}

kerncast_status kerncast_deny(kerncast_context *context, int32_t candidate) {
    if (context == NULL || candidate < 0 || candidate >= KC_CANDIDATES) return KERNCAST_BAD_INPUT;
    context->available[candidate] = 0;
    return kc_changed(context);
}

/* Refuses a pin that could never be applied: a value that is none of its parameter's, or a config that cannot run the
   problem, if that is complete. */
static kerncast_status kc_check_pin(const kerncast_context *context, const kerncast_problem *given, int32_t candidate,
                                    kerncast_answer *answer) {
    const int64_t *pattern = (const int64_t *)given;
    kc_problem problem;
    int whole = 1;
    for (int32_t i = 0; i < KC_PROBLEM; i++) {
        const kc_parameter *parameter = &kc_problem_parameters[i];
        if (pattern[i] == KERNCAST_MISSING)
            whole &= parameter->conditional || parameter->optional || parameter->otherwise != KERNCAST_MISSING;
        else if (!kc_in_domain(parameter, pattern[i]))
            return kc_refuse_value(answer, KERNCAST_BAD_INPUT, i, "%s must be %s, got %s", parameter, parameter->rule, pattern[i]);
    }
    if (candidate < -1 || candidate >= KC_CANDIDATES)
        return kc_refuse(answer, KERNCAST_BAD_INPUT, -1, "there is no such candidate%.0s%.0s: %lld", "", "", candidate);
    if (candidate == -1) return KERNCAST_OK;
    if (kc_stored(candidate) < 0)
        return kc_refuse(answer, KERNCAST_BAD_INPUT, -1, "this candidate is in no tier of the artefact%.0s%.0s: %lld", "", "",
                         candidate);
    if (!context->available[candidate])
        return kc_refuse(answer, KERNCAST_BAD_INPUT, -1, "a config that is not available cannot be pinned%.0s%.0s: %lld", "", "",
                         candidate);
    if (!whole) return KERNCAST_OK;
    const kerncast_status status = kc_read_problem(given, &problem, answer);
    if (status != KERNCAST_OK) return status;
    const char *refusal = kc_pin_refusal(context, problem.p, candidate);
    if (refusal == NULL) return KERNCAST_OK;
    return kc_refuse(answer, KERNCAST_UNSUPPORTED, -1, "the config cannot run this problem: %s%.0s", refusal, "", 0);
}

kerncast_status kerncast_pin(kerncast_context *context, const kerncast_problem *given, int32_t candidate, kerncast_answer *answer) {
    if (context == NULL)
        return kc_refuse(answer, KERNCAST_BAD_INPUT, -1, "there is no context: make one with create or init%.0s%.0s", "", "", 0);
    if (given == NULL) return kc_refuse(answer, KERNCAST_BAD_INPUT, -1, "there is no problem%.0s%.0s", "", "", 0);
    const kerncast_status status = kc_check_pin(context, given, candidate, answer);
    if (status != KERNCAST_OK) return status;
    int32_t kept = 0;
    for (int32_t i = 0; i < context->pins; i++)
        if (memcmp(context->pin[i].key, given, sizeof context->pin[i].key) != 0) context->pin[kept++] = context->pin[i];
    context->pins = kept;
    if (kept == KC_MOST_PINS) {
        kc_changed(context);
        return kc_refuse(answer, KERNCAST_TOO_SMALL, -1, "a context has room for %s%s%lld pins", "", "", KC_MOST_PINS);
    }
    memcpy(context->pin[kept].key, given, sizeof context->pin[kept].key);
    context->pin[kept].candidate = candidate;
    context->pins = kept + 1;
    kc_refuse(answer, KERNCAST_OK, -1, "%.0s%.0s", "", "", 0);
    return kc_changed(context);
}

const char *kerncast_label(int32_t candidate) {
    return KC_LABEL_KEYS == 0 ? kc_label_of(NULL, candidate) : "";
}

const char *kerncast_label_for(const kerncast_problem *given, int32_t candidate) {
    kc_problem problem;
    if (given == NULL || kc_read_problem(given, &problem, NULL) != KERNCAST_OK) return "";
    return kc_label_of(problem.key, candidate);
}
