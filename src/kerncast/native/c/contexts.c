/* -- the memory of a context ------------------------------------------------------------------------------ */

/* Gives out the memory of a context, part by part; without a base it only counts. */
typedef struct {
    char *base;
    size_t used;
} kc_room;

static void *kc_part(kc_room *room, size_t count, size_t size) {
    void *part = room->base == NULL ? NULL : room->base + room->used;
    /* The sizes of a loaded model may be anything. */
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
static size_t kc_lay_out(const kc_model *m, kerncast_context *context, char *base) {
    kc_room room = {base, 0};
    kerncast_context unused, *c = context == NULL ? &unused : context;
    const int32_t full = m->pools[KC_FULL].configs, portfolio = m->pools[KC_PORTFOLIO].configs;
    const size_t most = (size_t)(full > portfolio ? full : portfolio) + 1;
    kc_part(&room, 1, sizeof *context);
    c->memo = kc_part(&room, KC_MEMO, sizeof *c->memo);
    c->score = kc_part(&room, most, sizeof *c->score);
    c->time_ns = kc_part(&room, most, sizeof *c->time_ns);
    c->allowed = kc_part(&room, most, 1);
    c->available = kc_part(&room, (size_t)m->candidates, 1);
    c->pin = kc_part(&room, KC_MOST_PINS, sizeof *c->pin);
#if KC_LOADED
    c->m.loaded.holds = kc_part(&room, (size_t)m->model.conditions + 1, 1);
    c->m.loaded.registers = kc_part(&room, ((size_t)m->loaded.most_registers + 1) * KC_LANES, sizeof(double));
    c->m.loaded.layer = kc_part(&room, 4 * (size_t)m->loaded.widest + 1, sizeof(double));
#endif
    for (int32_t i = 0; i < KC_POOLS; i++) kc_lay_out_pool(&room, &m->pools[i], &c->states[i]);
    return room.used;
}

static size_t kc_context_bytes(const kc_model *m) { return kc_lay_out(m, NULL, NULL); }

static kerncast_status kc_init(const kc_model *m, void *memory, size_t bytes, kerncast_context **context) {
    const size_t needed = kc_context_bytes(m);
    if (bytes < needed || (uintptr_t)memory % KC_ALIGNMENT != 0) return KERNCAST_TOO_SMALL;
    memset(memory, 0, needed);
    kerncast_context *made = memory;
#if KC_LOADED
    made->m = *m;
#endif
    kc_lay_out(m, made, memory);
    *context = made;
    for (int32_t i = 0; i < KC_POOLS; i++) kc_prepare_pool(&m->pools[i], &made->states[i]);
    return kerncast_clear_overrides(made);
}

static kerncast_status kc_create(const kc_model *m, kerncast_context **context) {
    /* Aligned by hand: C99 has no aligned allocation. The pointer to free is right before the context. */
    const size_t needed = kc_context_bytes(m);
    char *memory = malloc(needed + KC_ALIGNMENT + sizeof(void *));
    if (memory == NULL) return KERNCAST_TOO_SMALL;
    const uintptr_t place = (uintptr_t)(memory + sizeof(void *) + KC_ALIGNMENT - 1);
    char *aligned = memory + (place - place % KC_ALIGNMENT - (uintptr_t)memory);
    memcpy(aligned - sizeof(void *), &memory, sizeof(void *));
    const kerncast_status status = kc_init(m, aligned, needed, context);
    if (status != KERNCAST_OK) free(memory);
    return status;
}

void kerncast_destroy(kerncast_context *context) {
    if (context == NULL) return;
    void *memory;
    memcpy(&memory, (char *)context - sizeof(void *), sizeof(void *));
    free(memory);
}

