/* -- loading ------------------------------------------------------------------------------------------- */

static const char *const kc_flag_names[2] = {"false", "true"};

/* Nothing that is read from a file is used before it is checked here: every number that says where something is lies inside its
   table, programs and trees have no loops, and no part is used twice, so that the work of an answer is limited by the file's
   size. */

typedef struct {
    char name[24];
    uint32_t type, nothing;
    uint64_t offset, count;
} kc_entry;

typedef struct {
    kc_model *m;
    const unsigned char *bytes;
    const kc_entry *entries;
    uint32_t tables;
    size_t text_size;
    unsigned char *used; /* by program: whether it has its role */
    kerncast_status status;
    char *message, name[24];
    size_t room;
} kc_loading;

static int kc_fault(kc_loading *l, kerncast_status status, const char *format, const char *what) {
    if (l->status == KERNCAST_OK && l->message != NULL && l->room > 0) snprintf(l->message, l->room, format, what);
    if (l->status == KERNCAST_OK) l->status = status;
    return 0;
}

static int kc_damaged(kc_loading *l, const char *what) {
    return kc_fault(l, KERNCAST_CORRUPT, "the model is damaged (%s): export it again, or restore the file", what);
}

static void *kc_take(kc_loading *l, size_t count, size_t size) {
    if (count > (KC_MOST_BYTES - sizeof(kc_block)) / (size ? size : 1)) {
        kc_damaged(l, "a table is too large");
        return NULL;
    }
    kc_block *block = calloc(1, sizeof(kc_block) + 8 + count * size);
    if (block == NULL) {
        kc_fault(l, KERNCAST_TOO_SMALL, "there is not enough memory for the model%s", "");
        return NULL;
    }
    block->next = l->m->loaded.blocks;
    l->m->loaded.blocks = block;
    return block + 1;
}

static const kc_entry *kc_find(const kc_loading *l, const char *name) {
    for (uint32_t i = 0; i < l->tables; i++)
        if (strncmp(l->entries[i].name, name, sizeof l->entries[i].name) == 0) return &l->entries[i];
    return NULL;
}

/* A table of one type; `count`: how many numbers it must have, or -1 for any. NULL, and a fault, if it is not there. */
static const void *kc_table(kc_loading *l, const char *name, char type, int64_t count, int32_t *found) {
    const kc_entry *entry = kc_find(l, name);
    if (entry == NULL || entry->type != (uint32_t)type || entry->count > INT32_MAX ||
        (count >= 0 && entry->count != (uint64_t)count)) {
        kc_damaged(l, name);
        return NULL;
    }
    if (found != NULL) *found = (int32_t)entry->count;
    return l->bytes + entry->offset;
}

/* The name of a table that several parts of a model have, until the next one is asked for. */
static const char *kc_named(kc_loading *l, const char *word, const char *rest) {
    snprintf(l->name, sizeof l->name, "%s.%s", word, rest);
    return l->name;
}

#define KC_OF(rest) kc_named(l, word, rest)
#define KC_READ(target, name, type, count, found) \
    do { \
        if (((target) = kc_table(l, name, type, count, found)) == NULL) return 0; \
    } while (0)
#define KC_NEED(condition, what) \
    do { \
        if (!(condition)) return kc_damaged(l, what); \
    } while (0)

/* Bytes or 16-bit numbers as 16-bit numbers below `limit`. */
static const uint16_t *kc_small_numbers(kc_loading *l, const char *name, size_t count, int32_t limit) {
    const kc_entry *entry = kc_find(l, name);
    const char type = entry != NULL && entry->type == 'B' ? 'B' : 'H';
    const unsigned char *from = kc_table(l, name, type, (int64_t)count, NULL);
    uint16_t *to = from == NULL ? NULL : kc_take(l, count, sizeof *to);
    for (size_t i = 0; to != NULL && i < count; i++) {
        to[i] = type == 'B' ? from[i] : ((const uint16_t *)(const void *)from)[i];
        if (to[i] >= limit) {
            kc_damaged(l, name);
            return NULL;
        }
    }
    return to;
}

static int kc_below(kc_loading *l, const char *name, const int32_t *numbers, int32_t count, int32_t low, int64_t high) {
    for (int32_t i = 0; i < count; i++) KC_NEED(numbers[i] >= low && numbers[i] < high, name);
    return 1;
}

/* A table of numbers from `low` up to `high` (exclusive). */
static int kc_read_below(kc_loading *l, const char *name, int64_t count, int32_t low, int64_t high, const int32_t **to, int32_t *found) {
    int32_t there;
    KC_READ(*to, name, 'i', count, &there);
    if (found != NULL) *found = there;
    return kc_below(l, name, *to, there, low, high);
}

static int kc_read_texts(kc_loading *l, const char *name, int64_t count, const char *const **to, int32_t *found) {
    const int32_t *offsets;
    int32_t there;
    if (!kc_read_below(l, name, count, 0, (int64_t)l->text_size, &offsets, &there)) return 0;
    const char **texts = kc_take(l, (size_t)there + 1, sizeof *texts);
    if (texts == NULL) return 0;
    for (int32_t i = 0; i < there; i++) texts[i] = l->m->loaded.text + offsets[i];
    *to = (const char *const *)texts;
    if (found != NULL) *found = there;
    return 1;
}

static int kc_load_header(kc_loading *l, size_t size) {
    struct { char magic[8]; uint32_t version, tables; uint64_t bytes, checksum; } head;
    const uint16_t one = 1;
    if (size < sizeof head || memcmp(l->bytes, "KERNCAST", 8) != 0)
        return kc_fault(l, KERNCAST_BAD_INPUT, "this is not a model that `kerncast export --to blob` wrote%s", "");
    if (*(const unsigned char *)&one != 1)
        return kc_fault(l, KERNCAST_MISMATCH, "models are little-endian, and this machine is not%s", "");
    memcpy(&head, l->bytes, sizeof head);
    if (head.version != KC_BLOB_VERSION)
        return kc_fault(l, KERNCAST_MISMATCH, "the model has another format than this runtime reads (%s): export both again", KC_BLOB_VERSION_TEXT);
    KC_NEED(head.bytes == size && size % 8 == 0, "its size");
    uint64_t sum = UINT64_C(0xcbf29ce484222325), word;
    for (size_t i = 0; i < size; i += 8) {
        memcpy(&word, l->bytes + i, 8);
        sum = (sum ^ (i == 24 ? 0 : word)) * UINT64_C(0x100000001b3);
    }
    KC_NEED(sum == head.checksum, "its checksum");
    KC_NEED(head.tables <= (size - sizeof head) / sizeof(kc_entry), "its directory");
    l->tables = head.tables;
    l->entries = (const kc_entry *)(const void *)(l->bytes + sizeof head);
    for (uint32_t i = 0; i < l->tables; i++) {
        const kc_entry *entry = &l->entries[i];
        const uint64_t width = entry->type == 'B' ? 1 : entry->type == 'H' || entry->type == 'h' ? 2 : entry->type == 'i' ? 4 : 8;
        KC_NEED(entry->name[23] == '\0' && entry->offset % 8 == 0 && entry->offset <= size, "its directory");
        KC_NEED(entry->count <= (size - entry->offset) / width, "its directory");
    }
    return 1;
}

static int32_t kc_fact_of(kc_loading *l, int fact, int64_t low, int64_t high) {
    const int64_t value = l->m->loaded.facts[fact];
    if (value < low || value > high) kc_damaged(l, "facts");
    return value < low || value > high ? 0 : (int32_t)value;
}

static int kc_load_facts(kc_loading *l) {
    kc_model *m = l->m;
    int32_t size;
    KC_READ(m->loaded.facts, "facts", 'q', KC_FACTS_STORED, NULL);
    KC_READ(m->loaded.numbers, "numbers", 'd', KC_NUMBERS_STORED, NULL);
    KC_READ(m->loaded.text, "text", 'B', -1, &size);
    KC_NEED(size > 0 && m->loaded.text[size - 1] == '\0', "text");
    l->text_size = (size_t)size;
    m->fallback_words = l->m->loaded.facts[KC_FACT_FALLBACK_LIBRARY] ? @FALLBACK_LIBRARY@ : @FALLBACK_BEST@;
    m->describe = m->loaded.text + kc_fact_of(l, KC_FACT_DESCRIBE, 0, size - 1);
    m->problem.count = kc_fact_of(l, KC_FACT_PROBLEM, 1, KC_MOST_PARAMETERS - 1);
    m->config.count = kc_fact_of(l, KC_FACT_CONFIG, 0, KC_MOST_PARAMETERS - 1);
    m->candidates = kc_fact_of(l, KC_FACT_CANDIDATES, 1, 1 << 20);
    m->features = kc_fact_of(l, KC_FACT_FEATURES, 0, KC_MOST_FEATURES - 1);
    m->loaded.values = kc_fact_of(l, KC_FACT_VALUES, 0, KC_MOST_VALUES - 1);
    m->loaded.kind = kc_fact_of(l, KC_FACT_KIND, 0, KC_KINDS - 1);
    m->loaded.raw = kc_fact_of(l, KC_FACT_RAW, 1, KC_MOST_RAW);
    m->bands = kc_fact_of(l, KC_FACT_BANDS, 0, 1 << 20);
    m->rare_bands = kc_fact_of(l, KC_FACT_RARE_BANDS, 1, 1 << 20);
    m->size_bands = kc_fact_of(l, KC_FACT_SIZE_BANDS, 1, 1 << 20);
    m->has_tree = kc_fact_of(l, KC_FACT_HAS_TREE, 0, 1);
    for (int i = KC_FACT_HAS_PORTFOLIO; i <= KC_FACT_HAS_QUICK; i++) kc_fact_of(l, i, 0, 1);
    kc_fact_of(l, KC_FACT_MOST_COMPARED, 1, KC_MOST_COMPARED);
    m->stored = m->candidates;
    m->own = m->loaded.numbers[KC_NUMBER_OWN], m->weight = m->loaded.numbers[KC_NUMBER_WEIGHT];
    m->rough_scale = m->loaded.numbers[KC_NUMBER_ROUGH_SCALE], m->rough_error = m->loaded.numbers[KC_NUMBER_ROUGH_ERROR];
    m->target_log = kc_fact_of(l, KC_FACT_TARGET_LOG, 0, 1);
    m->target_rate = kc_fact_of(l, KC_FACT_TARGET_RATE, 0, 1);
    m->target_tflops = kc_fact_of(l, KC_FACT_TARGET_TFLOPS, 0, 1);
    m->target_base = kc_fact_of(l, KC_FACT_TARGET_BASE, -1, (int64_t)m->loaded.values - 1);
    kc_fact_of(l, KC_FACT_MIXED_RULES, 0, 60000);
    return l->status == KERNCAST_OK;
}

/* The number of a program that has its role now; `given`: how many inputs it may read. */
static int kc_role(kc_loading *l, int64_t number, int32_t given, int32_t outputs) {
    KC_NEED(number >= 0 && number < l->m->loaded.program_count && !l->used[number], "a program's role");
    const kc_program *program = &l->m->loaded.programs[number];
    l->used[number] = 1;
    for (int32_t i = 0; i < program->input_count; i++) KC_NEED(program->inputs[i] < given, "program.inputs");
    KC_NEED(program->output_count == outputs, "program.outputs");
    return 1;
}

static int kc_load_steps(kc_loading *l, const kc_program *program) {
    static const unsigned char operands[KC_OPERATIONS] = {@OPERANDS@};
    const int32_t first = program->constant_count + program->input_count;
    for (int32_t i = 0; i < program->step_count; i++) {
        const kc_step step = program->steps[i];
        KC_NEED(step.operation < KC_OPERATIONS, "program.code");
        const int count = operands[step.operation];
        KC_NEED(step.a < first + i && (count > 1 ? step.b < first + i : 1) && (count > 2 ? step.c < first + i : step.c == 0),
                "program.code");
        if (step.operation == KC_OP_INDEX) KC_NEED(step.b < l->m->loaded.lookup_size_count, "program.code");
        else if (step.operation == KC_OP_FETCH) KC_NEED(step.b < l->m->loaded.tables, "program.code");
        else if (count < 2) KC_NEED(step.b == 0, "program.code");
    }
    for (int32_t i = 0; i < program->output_count; i++)
        KC_NEED(program->outputs[i] < first + program->step_count, "program.outputs");
    return 1;
}

static int kc_load_programs(kc_loading *l) {
    kc_model *m = l->m;
    const int32_t *rows;
    const double *constants;
    const uint16_t *inputs, *code, *outputs;
    int32_t count, sizes[4], firsts, values;
    KC_READ(rows, "program.numbers", 'i', -1, &count);
    KC_READ(constants, "program.constants", 'd', -1, &sizes[0]);
    KC_READ(inputs, "program.inputs", 'H', -1, &sizes[1]);
    KC_READ(code, "program.code", 'H', -1, &sizes[2]);
    KC_READ(outputs, "program.outputs", 'H', -1, &sizes[3]);
    KC_READ(m->loaded.lookup_first, "lookup.first", 'i', -1, &firsts);
    KC_READ(m->loaded.lookup_values, "lookup.values", 'd', -1, &values);
    if (!kc_read_below(l, "lookup.sizes", -1, 1, INT32_MAX, &m->loaded.lookup_sizes, &m->loaded.lookup_size_count)) return 0;
    KC_NEED(count % 8 == 0 && sizes[2] % 4 == 0 && firsts > 0 && m->loaded.lookup_first[0] == 0, "program.numbers");
    for (int32_t i = 1; i < firsts; i++) KC_NEED(m->loaded.lookup_first[i] > m->loaded.lookup_first[i - 1], "lookup.first");
    KC_NEED(m->loaded.lookup_first[firsts - 1] == values, "lookup.first");
    m->loaded.tables = firsts - 1;
    m->loaded.program_count = count / 8;
    sizes[2] /= 4;
    kc_program *programs = kc_take(l, (size_t)m->loaded.program_count + 1, sizeof *programs);
    l->used = kc_take(l, (size_t)m->loaded.program_count + 1, 1);
    if (programs == NULL || l->used == NULL) return 0;
    m->loaded.programs = programs;
    int32_t next[4] = {0, 0, 0, 0};
    for (int32_t i = 0; i < m->loaded.program_count; i++, rows += 8) {
        for (int32_t k = 0; k < 4; k++) {
            KC_NEED(rows[2 * k] == next[k] && rows[2 * k + 1] >= 0 && rows[2 * k + 1] <= sizes[k] - next[k], "program.numbers");
            KC_NEED(rows[2 * k + 1] <= 60000, "program.numbers");
        }
        programs[i].constants = constants + next[0], programs[i].constant_count = rows[1];
        programs[i].inputs = inputs + next[1], programs[i].input_count = rows[3];
        programs[i].steps = (const kc_step *)(const void *)(code + 4 * (size_t)next[2]), programs[i].step_count = rows[5];
        programs[i].outputs = outputs + next[3], programs[i].output_count = rows[7];
        for (int32_t k = 0; k < 4; k++) next[k] += rows[2 * k + 1];
        const int32_t registers = rows[1] + rows[3] + rows[5];
        if (registers > m->loaded.most_registers) m->loaded.most_registers = registers;
        if (!kc_load_steps(l, &programs[i])) return 0;
    }
    return 1;
}

/* Rows of low, high, step, first value, values, default, conditional, optional, flag. */
static int kc_load_parameters(kc_loading *l, const char *word, int32_t count, kc_parameter *to) {
    const int64_t *rows, *values;
    int32_t there, next = 0;
    KC_READ(rows, KC_OF("numbers"), 'q', (int64_t)count * 9, NULL);
    KC_READ(values, KC_OF("values"), 'q', -1, &there);
    for (int32_t i = 0; i < count; i++, rows += 9) {
        KC_NEED(rows[2] >= 1 && rows[3] == next && rows[4] >= 0 && rows[4] <= there - next, KC_OF("numbers"));
        KC_NEED((rows[6] | 1) == 1 && (rows[7] | 1) == 1 && (rows[8] | 1) == 1, KC_OF("numbers"));
        to[i].low = rows[0], to[i].high = rows[1], to[i].step = rows[2];
        to[i].values = rows[4] ? values + next : NULL, to[i].count = (int32_t)rows[4];
        to[i].otherwise = rows[5], to[i].conditional = (int)rows[6], to[i].optional = (int)rows[7];
        to[i].labels = rows[8] ? kc_flag_names : NULL;
        next += (int32_t)rows[4];
    }
    return next == there ? 1 : kc_damaged(l, KC_OF("values"));
}

/* The names of a parameter's values, where the first of them has one. */
static int kc_name_values(kc_loading *l, const char *name, int32_t count, int32_t values, const int32_t *texts, kc_parameter *to) {
    const char **names = kc_take(l, (size_t)values + 1, sizeof *names);
    int32_t first = 0;
    if (names == NULL) return 0;
    for (int32_t i = 0; i < count; first += to[i++].count) {
        if (to[i].count == 0 || texts[first] < 0) continue;
        for (int32_t k = first; k < first + to[i].count; k++) {
            KC_NEED(texts[k] >= 0, name);
            names[k] = l->m->loaded.text + texts[k];
        }
        to[i].labels = names + first;
    }
    return 1;
}

static int kc_load_space(kc_loading *l, int side, kc_space *space, const char *word) {
    kc_model *m = l->m;
    const int32_t count = space->count, **const order = &space->order;
    kc_parameter *parameters = kc_take(l, (size_t)count + 1, sizeof *parameters);
    const char *const *names, *const *rules;
    const double *inactive;
    unsigned char seen[KC_MOST_PARAMETERS] = {0};
    if (parameters == NULL || !kc_load_parameters(l, word, count, parameters)) return 0;
    if (!kc_read_texts(l, KC_OF("names"), count, &names, NULL) || !kc_read_texts(l, KC_OF("rules"), count, &rules, NULL)) return 0;
    KC_READ(inactive, KC_OF("inactive"), 'd', count, NULL);
    if (!kc_read_below(l, KC_OF("order"), count, 0, count, order, NULL)) return 0;
    if (!kc_read_below(l, KC_OF("applies"), count, -1, m->loaded.program_count, &m->loaded.applies[side], NULL)) return 0;
    if (!kc_read_below(l, KC_OF("usual"), count, -1, m->loaded.program_count, &m->loaded.usual[side], NULL)) return 0;
    int32_t values = 0;
    for (int32_t i = 0; i < count; i++) {
        KC_NEED(!seen[(*order)[i]], KC_OF("order"));
        seen[(*order)[i]] = 1;
        /* A number that fits into 64 bits, so that it may be converted. */
        KC_NEED(inactive[i] > -9e18 && inactive[i] < 9e18, KC_OF("inactive"));
        parameters[i].name = names[i], parameters[i].rule = rules[i], parameters[i].inactive = inactive[i];
        if (m->loaded.applies[side][i] >= 0 && !kc_role(l, m->loaded.applies[side][i], count, 1)) return 0;
        if (m->loaded.usual[side][i] >= 0 && !kc_role(l, m->loaded.usual[side][i], count, 1)) return 0;
        values += parameters[i].count;
    }
    space->parameters = parameters;
    return kc_read_below(l, KC_OF("labels"), values, -1, (int64_t)l->text_size, &m->loaded.labels[side], NULL) &&
           kc_name_values(l, KC_OF("labels"), count, values, m->loaded.labels[side], parameters);
}

static int kc_load_spaces(kc_loading *l) {
    kc_model *m = l->m;
    if (!kc_load_space(l, 0, &m->problem, "problem")) return 0;
    if (!kc_load_space(l, 1, &m->config, "config")) return 0;
    kc_parameter *hull = kc_take(l, (size_t)m->problem.count, sizeof *hull);
    const char *const *rules;
    if (hull == NULL || !kc_load_parameters(l, "hull", m->problem.count, hull)) return 0;
    if (!kc_read_texts(l, "hull.rules", m->problem.count, &rules, NULL)) return 0;
    for (int32_t i = 0; i < m->problem.count; i++) hull[i].name = m->problem.parameters[i].name, hull[i].rule = rules[i];
    m->hull = hull;
    const int64_t *rows;
    if (!kc_read_texts(l, "fact.rules", -1, &rules, &m->fact_count)) return 0;
    KC_READ(rows, "fact.numbers", 'q', (int64_t)m->fact_count * 3, NULL);
    kc_fact *facts = kc_take(l, (size_t)m->fact_count + 1, sizeof *facts);
    if (facts == NULL) return 0;
    for (int32_t i = 0; i < m->fact_count; i++, rows += 3) {
        KC_NEED(rows[0] >= 0 && rows[0] < m->problem.count && rows[1] >= 1 && rows[1] < INT64_C(1) << 62, "fact.numbers");
        facts[i].parameter = (int32_t)rows[0], facts[i].step = rows[1], facts[i].rest = rows[2], facts[i].rule = rules[i];
    }
    m->facts = facts;
    return 1;
}

static int kc_load_rules(kc_loading *l) {
    kc_model *m = l->m;
    const int32_t both = m->problem.count + m->config.count;
    int32_t counts[3];
    if (!kc_read_texts(l, "rules", -1, &m->rules, &counts[0]) || !kc_read_texts(l, "family_rules", -1, &m->family_rules, &counts[1]) ||
        !kc_read_texts(l, "config_rules", -1, &m->config_rules, &counts[2]))
        return 0;
    if (!kc_role(l, m->loaded.facts[KC_FACT_RULE_VALUES], m->problem.count, counts[0])) return 0;
    if (!kc_role(l, m->loaded.facts[KC_FACT_FAMILY_RULE_VALUES], m->problem.count, counts[1])) return 0;
    if (!kc_role(l, m->loaded.facts[KC_FACT_CONFIG_RULE_VALUES], both, counts[2])) return 0;
    if (!kc_role(l, m->loaded.facts[KC_FACT_PROBLEM_VALUES], m->problem.count, m->loaded.values)) return 0;
    if (!kc_role(l, m->loaded.facts[KC_FACT_FEATURE_VALUES], both, m->features)) return 0;
    return m->size_bands == 1 || kc_role(l, m->loaded.facts[KC_FACT_SIZE_VALUES], m->problem.count, 1);
}

/* Numbers of 16, 32 or 64 bits, of which the lowest stands for a missing one. */
static int kc_load_configs(kc_loading *l, int64_t cells) {
    const kc_entry *entry = kc_find(l, "configs");
    const char type = entry != NULL && (entry->type == 'h' || entry->type == 'i') ? (char)entry->type : 'q';
    const void *from = kc_table(l, "configs", type, cells, NULL);
    int64_t *to = from == NULL ? NULL : kc_take(l, (size_t)cells + 1, sizeof *to);
    if (to == NULL) return 0;
    for (int64_t i = 0; i < cells; i++) {
        if (type == 'h') to[i] = ((const int16_t *)from)[i] == INT16_MIN ? KERNCAST_MISSING : ((const int16_t *)from)[i];
        else if (type == 'i') to[i] = ((const int32_t *)from)[i] == INT32_MIN ? KERNCAST_MISSING : ((const int32_t *)from)[i];
        else to[i] = ((const int64_t *)from)[i];
    }
    l->m->configs = to;
    return 1;
}

static int kc_load_candidates(kc_loading *l) {
    kc_model *m = l->m;
    const int64_t cells = (int64_t)m->candidates * m->config.count;
    int32_t cells_tried, names, texts;
    if (!kc_load_configs(l, cells)) return 0;
    KC_READ(m->tried_low, "tried.low", 'd', -1, &cells_tried);
    KC_READ(m->tried_high, "tried.high", 'd', cells_tried, NULL);
    KC_READ(m->tried_labels, "tried.labels", 'q', cells_tried, NULL);
    KC_NEED(cells_tried % m->problem.count == 0, "tried.low");
    if (!kc_read_below(l, "tried.band", m->candidates, 0, cells_tried / m->problem.count, &m->tried_band, NULL)) return 0;
    if (!kc_read_below(l, "denied", -1, 0, m->candidates, &m->denied, &m->denied_count)) return 0;
    if (!kc_read_below(l, "pin.candidates", -1, 0, m->candidates, &m->pin_candidates, &m->pin_count)) return 0;
    KC_READ(m->pin_keys, "pin.keys", 'q', (int64_t)m->pin_count * m->problem.count, NULL);
    if (!kc_read_below(l, "fallbacks", -1, 0, m->candidates, &m->fallbacks, &m->fallback_count)) return 0;
    if (!kc_read_below(l, "label.places", -1, 0, m->problem.count, &m->label_places, &m->label_keys)) return 0;
    KC_NEED(m->label_keys <= m->problem.count, "label.places");
    if (!kc_read_texts(l, "label.names", -1, &m->label_names, &texts)) return 0;
    if (!kc_read_below(l, "label.texts", -1, -1, texts, &m->label_texts, &names)) return 0;
    KC_NEED(names % m->candidates == 0, "label.texts");
    m->label_variants = names / m->candidates;
    KC_READ(m->label_values, "label.values", 'q', (int64_t)m->label_variants * m->label_keys, NULL);
    return 1;
}

static int kc_load_answers(kc_loading *l) {
    kc_model *m = l->m;
    const int64_t bands = m->bands;
    const int32_t *rows;
    const double *unseen;
    int32_t values, next = 0;
    KC_READ(m->band_edges, "band.edges", 'd', bands ? bands - 1 : 0, NULL);
    KC_READ(m->band_lower, "band.lower", 'd', bands * m->rare_bands, NULL);
    KC_READ(m->band_upper, "band.upper", 'd', bands * m->rare_bands, NULL);
    KC_READ(m->rare_edges, "rare.edges", 'd', m->rare_bands - 1, NULL);
    KC_READ(m->efficiency, "efficiency", 'd', -1, &m->efficiency_bands);
    KC_READ(m->efficiency_edges, "efficiency.edges", 'd', m->efficiency_bands ? m->efficiency_bands - 1 : 0, NULL);
    KC_READ(m->size_edges, "size.edges", 'd', m->size_bands - 1, NULL);
    KC_READ(m->size_lower, "size.lower", 'd', m->size_bands > 1 ? bands * m->size_bands : 0, NULL);
    KC_READ(m->size_upper, "size.upper", 'd', m->size_bands > 1 ? bands * m->size_bands : 0, NULL);
    KC_READ(unseen, "trait.unseen", 'd', -1, &m->trait_count);
    KC_READ(rows, "trait.numbers", 'i', (int64_t)m->trait_count * 5, NULL);
    KC_READ(m->trait_values, "trait.values", 'q', -1, &values);
    KC_READ(m->trait_bits, "trait.bits", 'd', values, NULL);
    kc_trait *traits = kc_take(l, (size_t)m->trait_count + 1, sizeof *traits);
    if (traits == NULL) return 0;
    for (int32_t i = 0; i < m->trait_count; i++, rows += 5) {
        KC_NEED(rows[0] >= 0 && rows[1] >= 0 && rows[1] < m->problem.count && rows[2] >= 0 && rows[2] < m->problem.count, "trait.numbers");
        KC_NEED(rows[3] == next && rows[4] >= 0 && rows[4] <= values - next, "trait.numbers");
        traits[i].what = rows[0], traits[i].one = rows[1], traits[i].other = rows[2], traits[i].first = next;
        traits[i].count = rows[4], traits[i].unseen = unseen[i];
        next += rows[4];
    }
    m->traits = traits;
    return 1;
}

static int kc_load_golden(kc_loading *l) {
    kc_model *m = l->m;
    if (!kc_read_below(l, "golden.candidates", -1, 0, m->candidates, &m->loaded.golden_candidates, &m->loaded.golden_count)) return 0;
    const int64_t count = m->loaded.golden_count;
    KC_READ(m->loaded.golden_problems, "golden.problems", 'q', count * m->problem.count, NULL);
    KC_READ(m->loaded.golden_configs, "golden.configs", 'q', count * m->config.count, NULL);
    KC_READ(m->loaded.golden_times, "golden.times", 'd', count, NULL);
    KC_READ(m->loaded.golden_features, "golden.features", 'd', count * m->features, NULL);
    return 1;
}

