/* -- the public functions of a compiled-in model --------------------------------------------------------- */

static uint64_t kc_bits(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* The checksum of all tables: the sum of each number times its (odd) place. */
static uint64_t kc_checksum(void) {
    uint64_t total = 0, part = 0;
@PARTS@
    (void)part, (void)kc_bits;
    /* Referenced, so that no compiler warns that they are unused: which of them are called depends on the model. */
    (void)kc_read, (void)kc_div, (void)kc_min, (void)kc_max, (void)kc_sqrt, (void)kc_log2, (void)kc_log1p, (void)kc_index;
    return total;
}

static kerncast_status kc_intact(uint64_t schema) {
    if (schema != KERNCAST_SCHEMA) return KERNCAST_MISMATCH;
    return kc_checksum() == UINT64_C(@TOTAL@) ? KERNCAST_OK : KERNCAST_CORRUPT;
}

size_t kerncast_context_bytes(void) { return kc_context_bytes(&kc_this); }

kerncast_status kerncast_init_checked(void *memory, size_t bytes, uint64_t schema, kerncast_context **context) {
    if (context == NULL) return KERNCAST_BAD_INPUT;
    *context = NULL;
    if (memory == NULL) return KERNCAST_BAD_INPUT;
    const kerncast_status status = kc_intact(schema);
    return status == KERNCAST_OK ? kc_init(&kc_this, memory, bytes, context) : status;
}

kerncast_status kerncast_create_checked(uint64_t schema, kerncast_context **context) {
    if (context == NULL) return KERNCAST_BAD_INPUT;
    *context = NULL;
    const kerncast_status status = kc_intact(schema);
    return status == KERNCAST_OK ? kc_create(&kc_this, context) : status;
}

void kerncast_problem_init(kerncast_problem *problem) { kc_clear(&kc_this.problem, (int64_t *)problem); }

void kerncast_config_init(kerncast_config *config) { kc_clear(&kc_this.config, (int64_t *)config); }

kerncast_status kerncast_predict(const kerncast_problem *problem, const kerncast_config *config, kerncast_answer *answer) {
    return kc_predict(&kc_this, problem, config, answer);
}

kerncast_status kerncast_features(const kerncast_problem *problem, const kerncast_config *config, double *features, size_t capacity) {
    return kc_describe(&kc_this, problem, config, features, capacity);
}

int32_t kerncast_candidates(void) { return kc_this.candidates; }

kerncast_status kerncast_candidate(int32_t candidate, kerncast_config *config) { return kc_candidate(&kc_this, candidate, config); }

const char *kerncast_label(int32_t candidate) { return kc_label(&kc_this, candidate); }

const char *kerncast_label_for(const kerncast_problem *problem, int32_t candidate) { return kc_label_for(&kc_this, problem, candidate); }

uint64_t kerncast_schema(void) { return KERNCAST_SCHEMA; }

const char *kerncast_model(void) { return kc_this.describe; }

