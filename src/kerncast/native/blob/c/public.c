kerncast_status kerncast_load(const void *bytes, size_t size, kerncast_model **model, char *message, size_t room) {
    kc_loading l = {0};
    if (message != NULL && room > 0) message[0] = '\0';
    l.message = message, l.room = room;
    if (model == NULL) return KERNCAST_BAD_INPUT;
    *model = NULL;
    if (bytes == NULL) {
        kc_fault(&l, KERNCAST_BAD_INPUT, "there are no bytes to load%s", "");
        return l.status;
    }
    *model = kc_load(bytes, size, &l);
    return l.status;
}

kerncast_status kerncast_load_file(const char *path, kerncast_model **model, char *message, size_t room) {
    kc_loading l = {0};
    l.message = message, l.room = room;
    if (message != NULL && room > 0) message[0] = '\0';
    if (model == NULL) return KERNCAST_BAD_INPUT;
    *model = NULL;
    FILE *file = path == NULL ? NULL : fopen(path, "rb");
    if (file == NULL) {
        kc_fault(&l, KERNCAST_BAD_INPUT, "%s cannot be opened: check the path", path == NULL ? "the path NULL" : path);
        return l.status;
    }
    char *bytes = NULL;
    const long size = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
    if (size >= 0 && (size_t)size < KC_MOST_BYTES && fseek(file, 0, SEEK_SET) == 0) bytes = malloc((size_t)size + 1);
    if (bytes == NULL || fread(bytes, 1, (size_t)size, file) != (size_t)size)
        kc_fault(&l, KERNCAST_BAD_INPUT, "%s cannot be read as a model: check the path", path);
    else
        l.status = kerncast_load(bytes, (size_t)size, model, message, room);
    free(bytes);
    fclose(file);
    return l.status;
}

void kerncast_unload(kerncast_model *model) { kc_unload(model); }

size_t kerncast_context_bytes(const kerncast_model *model) { return model == NULL ? 0 : kc_context_bytes(model); }

kerncast_status kerncast_init(const kerncast_model *model, void *memory, size_t bytes, kerncast_context **context) {
    if (context == NULL) return KERNCAST_BAD_INPUT;
    *context = NULL;
    return model == NULL || memory == NULL ? KERNCAST_BAD_INPUT : kc_init(model, memory, bytes, context);
}

kerncast_status kerncast_create(const kerncast_model *model, kerncast_context **context) {
    if (context == NULL) return KERNCAST_BAD_INPUT;
    *context = NULL;
    return model == NULL ? KERNCAST_BAD_INPUT : kc_create(model, context);
}

void kerncast_select_many(kerncast_context *context, const int64_t *problems, size_t count, kerncast_tier tier, kerncast_answer *answers) {
    if (answers == NULL) return;
    const size_t width = context == NULL ? 0 : (size_t)context->m.problem.count;
    for (size_t i = 0; i < count; i++) kerncast_select(context, problems == NULL ? NULL : problems + i * width, tier, &answers[i]);
}

/* What a compiled-in model does without a context; without one, there is no model here. */

kerncast_status kerncast_predict(const kerncast_context *context, const int64_t *problem, const int64_t *config,
                                 kerncast_answer *answer) {
    if (context == NULL) return kc_no_context(answer);
    return kc_predict(&context->m, problem, config, answer);
}

kerncast_status kerncast_features(const kerncast_context *context, const int64_t *problem, const int64_t *config, double *features,
                                  size_t capacity) {
    return context == NULL ? KERNCAST_BAD_INPUT : kc_describe(&context->m, problem, config, features, capacity);
}

void kerncast_problem_init(const kerncast_context *context, int64_t *problem) {
    if (context != NULL) kc_clear(&context->m.problem, problem);
}

void kerncast_config_init(const kerncast_context *context, int64_t *config) {
    if (context != NULL) kc_clear(&context->m.config, config);
}

int32_t kerncast_candidates(const kerncast_context *context) { return context == NULL ? 0 : context->m.candidates; }

kerncast_status kerncast_candidate(const kerncast_context *context, int32_t candidate, int64_t *config) {
    return context == NULL ? KERNCAST_BAD_INPUT : kc_candidate(&context->m, candidate, config);
}

const char *kerncast_label(const kerncast_context *context, int32_t candidate) {
    return context == NULL ? "" : kc_label(&context->m, candidate);
}

const char *kerncast_label_for(const kerncast_context *context, const int64_t *problem, int32_t candidate) {
    return context == NULL ? "" : kc_label_for(&context->m, problem, candidate);
}

/* -- the self-test -------------------------------------------------------------------------------------- */

static int kc_differs(double got, double wanted, double tolerance) { return !(fabs(got - wanted) <= tolerance * fabs(wanted)); }

/* What differs from what Python computed for one problem, or NULL. */
static const char *kc_check_golden(kerncast_context *context, int32_t i) {
    const kc_model *m = &context->m;
    const kerncast_tier tier = m->pools[KC_FULL].configs > 0 ? KERNCAST_TIER_FULL : KERNCAST_TIER_PORTFOLIO;
    const int64_t *problem = m->loaded.golden_problems + (ptrdiff_t)i * m->problem.count;
    const int64_t *config = m->loaded.golden_configs + (ptrdiff_t)i * m->config.count;
    double features[KC_MOST_FEATURES];
    kerncast_answer answer;
    if (kerncast_features(context, problem, config, features, KC_MOST_FEATURES) != KERNCAST_OK) return "a problem of the self-test is refused";
    for (int32_t j = 0; j < m->features; j++)
        if (kc_differs(features[j], m->loaded.golden_features[(ptrdiff_t)i * m->features + j], 1e-14)) return "a feature";
    kerncast_select(context, problem, tier, &answer);
    if (answer.candidate != m->loaded.golden_candidates[i]) return "the choice";
    if (kc_differs(answer.time_ns, m->loaded.golden_times[i], 1e-12)) return "its time";
    return NULL;
}

kerncast_status kerncast_self_test(const kerncast_model *model, int32_t *checked, char *message, size_t room) {
    kerncast_context *context;
    const char *fault = NULL;
    if (checked != NULL) *checked = 0;
    if (message != NULL && room > 0) message[0] = '\0';
    const kerncast_status status = kerncast_create(model, &context);
    if (status != KERNCAST_OK) return status;
    for (int32_t i = 0; fault == NULL && i < model->loaded.golden_count; i++) {
        fault = kc_check_golden(context, i);
        if (fault != NULL && message != NULL && room > 0)
            snprintf(message, room, "golden vector %d: %s differs from what Python computed; compile with -ffp-contract=off", (int)i, fault);
        else if (checked != NULL)
            *checked += 1;
    }
    kerncast_destroy(context);
    return fault == NULL ? KERNCAST_OK : KERNCAST_CORRUPT;
}

/* -- what a model is made of --------------------------------------------------------------------------- */

const char *kerncast_describe(const kerncast_model *model) { return model == NULL ? "" : model->describe; }

uint64_t kerncast_schema(const kerncast_model *model) { return model == NULL ? 0 : (uint64_t)model->loaded.facts[KC_FACT_SCHEMA]; }

static const kc_space *kc_side(const kerncast_model *model, kerncast_side side) {
    return side == KERNCAST_PROBLEM ? &model->problem : &model->config;
}

int32_t kerncast_parameters(const kerncast_model *model, kerncast_side side) {
    return model == NULL ? 0 : kc_side(model, side)->count;
}

const char *kerncast_parameter(const kerncast_model *model, kerncast_side side, int32_t place) {
    return place < 0 || place >= kerncast_parameters(model, side) ? "" : kc_side(model, side)->parameters[place].name;
}

int32_t kerncast_place(const kerncast_model *model, kerncast_side side, const char *name) {
    for (int32_t i = 0; name != NULL && i < kerncast_parameters(model, side); i++)
        if (strcmp(kc_side(model, side)->parameters[i].name, name) == 0) return i;
    return -1;
}

int64_t kerncast_code(const kerncast_model *model, kerncast_side side, int32_t place, const char *label) {
    if (label == NULL || place < 0 || place >= kerncast_parameters(model, side)) return KERNCAST_MISSING;
    const kc_parameter *parameter = &kc_side(model, side)->parameters[place];
    for (int32_t i = 0; parameter->labels != NULL && parameter->values != NULL && i < parameter->count; i++)
        if (strcmp(parameter->labels[i], label) == 0) return parameter->values[i];
    return KERNCAST_MISSING;
}
