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

static void kc_unload(struct kerncast_model *model) {
    if (model == NULL) return;
    for (kc_block *block = model->blocks, *next; block != NULL; block = next) {
        next = block->next;
        free(block);
    }
    free(model);
}

/* A model from bytes, which are copied; NULL, and why, if they are not one. */
static struct kerncast_model *kc_loaded(const void *bytes, size_t size, kc_loading *l) {
    l->m = calloc(1, sizeof *l->m);
    unsigned char *copy = l->m == NULL || size >= KC_MOST_BYTES ? NULL : kc_take(l, size, 1);
    l->bytes = copy;
    if (copy != NULL) memcpy(copy, bytes, size);
    else kc_fault(l, KERNCAST_TOO_SMALL, "there is not enough memory for the model%s", "");
    if (copy != NULL && kc_load_all(l, size)) return l->m;
    kc_unload(l->m);
    return NULL;
}

static kerncast_status kc_init(const struct kerncast_model *model, void *memory, size_t bytes, kerncast_context **context) {
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

static kerncast_status kc_create(const struct kerncast_model *model, kerncast_context **context) {
    /* Aligned by hand: C99 has no aligned allocation. The pointer to free is right before the context. */
    char *memory = malloc(model->context_bytes + KC_ALIGNMENT + sizeof(void *));
    if (memory == NULL) return KERNCAST_TOO_SMALL;
    const uintptr_t place = (uintptr_t)(memory + sizeof(void *) + KC_ALIGNMENT - 1);
    char *aligned = memory + (place - place % KC_ALIGNMENT - (uintptr_t)memory);
    memcpy(aligned - sizeof(void *), &memory, sizeof(void *));
    const kerncast_status status = kc_init(model, aligned, model->context_bytes, context);
    if (status != KERNCAST_OK) free(memory);
    return status;
}

