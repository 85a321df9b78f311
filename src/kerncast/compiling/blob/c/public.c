/* -- models and contexts ------------------------------------------------------------------------------- */

/* Gives out the memory of a context, part by part; without a base it only counts. */
typedef struct {
    char *base;
    size_t used;
} kc_room;

static void *kc_part(kc_room *room, size_t count, size_t size) {
    void *part = room->base == NULL ? NULL : room->base + room->used;
    if (room->used < KC_MOST_BYTES) room->used += (count * size + KC_ALIGNMENT - 1) / KC_ALIGNMENT * KC_ALIGNMENT;
    return part;
}

static void kc_lay_out_pool(kc_room *room, const kc_pool *pool, kc_pool_state *state) {
    if (pool->trees == NULL || pool->configs == 0) return;
    const kc_trees *t = pool->trees;
    const size_t words = (size_t)pool->words, wide = pool->words > 1, sums = (size_t)t->forests * words * 64;
    state->words_of = kc_part(room, wide ? 1 : (size_t)t->conditions, sizeof *state->words_of);
    state->rows_of = kc_part(room, wide ? (size_t)t->conditions : 1, sizeof *state->rows_of);
    state->row_of_bin = kc_part(room, (size_t)t->conditions + 1, sizeof *state->row_of_bin);
    state->bin_of = kc_part(room, (size_t)pool->most_combinations, sizeof *state->bin_of);
    state->rows = kc_part(room, (wide ? (size_t)pool->rows : 2) * words, sizeof *state->rows);
    state->bits = kc_part(room, ((size_t)pool->bits + 1) * words, sizeof *state->bits);
    state->valid = kc_part(room, words, sizeof *state->valid);
    state->there = kc_part(room, words, sizeof *state->there);
    state->tried_here = kc_part(room, words, sizeof *state->tried_here);
    state->sets = kc_part(room, ((size_t)t->depth + 2) * words, sizeof *state->sets);
    state->tried = kc_part(room, ((size_t)pool->bands + 1) * words, sizeof *state->tried);
    state->sums = kc_part(room, sums, sizeof *state->sums);
    state->out = kc_part(room, (size_t)pool->most_outputs, sizeof *state->out);
    state->rough = kc_part(room, pool->screens ? sums : 1, sizeof *state->rough);
    state->eight = kc_part(room, 256, sizeof *state->eight);
}

/* The bytes of a context, and, with a base, where its parts are. */
static size_t kc_lay_out(const struct kerncast_model *m, kerncast_context *context, char *base) {
    kc_room room = {base, 0};
    kerncast_context unused, *c = context == NULL ? &unused : context;
    const int32_t most = m->full.configs > m->portfolio.configs ? m->full.configs : m->portfolio.configs;
    const kc_pool *const pools[] = {&m->portfolio, &m->full, &m->quick};
    kc_part(&room, 1, sizeof *context);
    c->memo = kc_part(&room, KC_MEMO, sizeof *c->memo);
    c->score = kc_part(&room, (size_t)most + 1, sizeof *c->score);
    c->time_ns = kc_part(&room, (size_t)most + 1, sizeof *c->time_ns);
    c->allowed = kc_part(&room, (size_t)most + 1, 1);
    c->available = kc_part(&room, (size_t)m->candidates, 1);
    c->pin = kc_part(&room, KC_MOST_PINS, sizeof *c->pin);
    c->holds = kc_part(&room, (size_t)m->model.conditions + 1, 1);
    c->registers = kc_part(&room, ((size_t)m->most_registers + 1) * KC_LANES, sizeof *c->registers);
    c->layer = kc_part(&room, 4 * (size_t)m->widest + 1, sizeof *c->layer);
    for (int32_t i = 0; i < 3; i++) kc_lay_out_pool(&room, pools[i], &c->states[i]);
    return room.used;
}

static int kc_load_all(kc_loading *l, size_t size) {
    struct kerncast_model *m = l->m;
    if (!kc_load_header(l, size) || !kc_load_facts(l) || !kc_load_programs(l) || !kc_load_spaces(l) || !kc_load_rules(l)) return 0;
    if (!kc_load_candidates(l) || !kc_load_answers(l) || !kc_load_pools(l) || !kc_load_tree(l) || !kc_load_golden(l)) return 0;
    const int learned = m->kind == KC_GBDT      ? kc_load_forests_of_gbdt(l)
                        : m->kind == KC_LINEAR  ? kc_load_lines(l)
                        : m->kind == KC_NETWORK ? kc_load_network(l)
                                                : 1;
    if (!learned) return 0;
    m->context_bytes = kc_lay_out(m, NULL, NULL);
    KC_NEED(m->context_bytes < KC_MOST_BYTES, "it needs too much memory");
    return 1;
}

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
    l.m = calloc(1, sizeof *l.m);
    unsigned char *copy = l.m == NULL || size >= KC_MOST_BYTES ? NULL : kc_take(&l, size, 1);
    if (copy == NULL) {
        kc_fault(&l, KERNCAST_TOO_SMALL, "there is not enough memory for the model%s", "");
    } else {
        memcpy(copy, bytes, size);
        l.bytes = copy;
        if (kc_load_all(&l, size)) *model = l.m;
    }
    if (*model == NULL) kerncast_unload(l.m);
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

void kerncast_unload(kerncast_model *model) {
    if (model == NULL) return;
    for (kc_block *block = model->blocks, *next; block != NULL; block = next) {
        next = block->next;
        free(block);
    }
    free(model);
}

size_t kerncast_context_bytes(const kerncast_model *model) { return model == NULL ? 0 : model->context_bytes; }

kerncast_status kerncast_init(const kerncast_model *model, void *memory, size_t bytes, kerncast_context **context) {
    if (context == NULL) return KERNCAST_BAD_INPUT;
    *context = NULL;
    if (model == NULL || memory == NULL) return KERNCAST_BAD_INPUT;
    if (bytes < model->context_bytes || (uintptr_t)memory % KC_ALIGNMENT != 0) return KERNCAST_TOO_SMALL;
    memset(memory, 0, model->context_bytes);
    kerncast_context *made = memory;
    made->m = *model;
    kc_lay_out(model, made, memory);
    made->portfolio = model->portfolio, made->full = model->full, made->quick = model->quick;
    made->portfolio.state = &made->states[0], made->full.state = &made->states[1], made->quick.state = &made->states[2];
    *context = made;
    kc_prepare(made);
    return kerncast_clear_overrides(made);
}

kerncast_status kerncast_create(const kerncast_model *model, kerncast_context **context) {
    if (context == NULL) return KERNCAST_BAD_INPUT;
    *context = NULL;
    if (model == NULL) return KERNCAST_BAD_INPUT;
    /* Aligned by hand: C99 has no aligned allocation. The pointer to free is right before the context. */
    char *memory = malloc(model->context_bytes + KC_ALIGNMENT + sizeof(void *));
    if (memory == NULL) return KERNCAST_TOO_SMALL;
    const uintptr_t place = (uintptr_t)(memory + sizeof(void *) + KC_ALIGNMENT - 1);
    char *aligned = memory + (place - place % KC_ALIGNMENT - (uintptr_t)memory);
    memcpy(aligned - sizeof(void *), &memory, sizeof(void *));
    const kerncast_status status = kerncast_init(model, aligned, model->context_bytes, context);
    if (status != KERNCAST_OK) free(memory);
    return status;
}

void kerncast_select_many(kerncast_context *context, const int64_t *problems, size_t count, kerncast_tier tier, kerncast_answer *answers) {
    if (answers == NULL) return;
    const size_t width = context == NULL ? 0 : (size_t)context->m.problem;
    for (size_t i = 0; i < count; i++) kerncast_select(context, problems == NULL ? NULL : problems + i * width, tier, &answers[i]);
}

/* -- the self-test -------------------------------------------------------------------------------------- */

static int kc_differs(double got, double wanted, double tolerance) { return !(fabs(got - wanted) <= tolerance * fabs(wanted)); }

/* What differs from what Python computed for one problem, or NULL. */
static const char *kc_check_golden(kerncast_context *context, int32_t i) {
    const struct kerncast_model *m = &context->m;
    const kerncast_tier tier = m->has_full ? KERNCAST_TIER_FULL : KERNCAST_TIER_PORTFOLIO;
    const int64_t *problem = m->golden_problems + (ptrdiff_t)i * m->problem;
    const int64_t *config = m->golden_configs + (ptrdiff_t)i * m->config;
    double features[KC_MOST_FEATURES];
    kerncast_answer answer;
    if (kerncast_features(context, problem, config, features, KC_MOST_FEATURES) != KERNCAST_OK) return "a problem of the self-test is refused";
    for (int32_t j = 0; j < m->features; j++)
        if (kc_differs(features[j], m->golden_features[(ptrdiff_t)i * m->features + j], 1e-14)) return "a feature";
    kerncast_select(context, problem, tier, &answer);
    if (answer.candidate != m->golden_candidates[i]) return "the choice";
    if (kc_differs(answer.time_ns, m->golden_times[i], 1e-12)) return "its time";
    return NULL;
}

kerncast_status kerncast_self_test(const kerncast_model *model, int32_t *checked, char *message, size_t room) {
    kerncast_context *context;
    const char *fault = NULL;
    if (checked != NULL) *checked = 0;
    if (message != NULL && room > 0) message[0] = '\0';
    const kerncast_status status = kerncast_create(model, &context);
    if (status != KERNCAST_OK) return status;
    for (int32_t i = 0; fault == NULL && i < model->golden_count; i++) {
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

uint64_t kerncast_schema(const kerncast_model *model) { return model == NULL ? 0 : (uint64_t)model->facts[KC_FACT_SCHEMA]; }

static const kc_parameter *kc_side(const kerncast_model *model, kerncast_side side, int32_t *count) {
    if (model == NULL) return NULL;
    *count = side == KERNCAST_PROBLEM ? model->problem : model->config;
    return side == KERNCAST_PROBLEM ? model->problem_parameters : model->config_parameters;
}

int32_t kerncast_parameters(const kerncast_model *model, kerncast_side side) {
    int32_t count = 0;
    kc_side(model, side, &count);
    return count;
}

const char *kerncast_parameter(const kerncast_model *model, kerncast_side side, int32_t place) {
    int32_t count = 0;
    const kc_parameter *parameters = kc_side(model, side, &count);
    return place < 0 || place >= count ? "" : parameters[place].name;
}

int32_t kerncast_place(const kerncast_model *model, kerncast_side side, const char *name) {
    int32_t count = 0;
    const kc_parameter *parameters = kc_side(model, side, &count);
    for (int32_t i = 0; name != NULL && i < count; i++)
        if (strcmp(parameters[i].name, name) == 0) return i;
    return -1;
}

int64_t kerncast_code(const kerncast_model *model, kerncast_side side, int32_t place, const char *label) {
    int32_t count = 0, first = 0;
    const kc_parameter *parameters = kc_side(model, side, &count);
    if (label == NULL || place < 0 || place >= count) return KERNCAST_MISSING;
    for (int32_t i = 0; i < place; i++) first += parameters[i].count;
    for (int32_t i = 0; i < parameters[place].count; i++) {
        const int32_t text = model->labels[side == KERNCAST_PROBLEM ? 0 : 1][first + i];
        if (text >= 0 && strcmp(model->text + text, label) == 0) return parameters[place].values[i];
    }
    return KERNCAST_MISSING;
}
