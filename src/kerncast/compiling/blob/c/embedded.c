/* -- the model, which is in this file -------------------------------------------------------------------- */

/* Unpacked once for the whole process, when it is first asked. */
static struct kerncast_model *kc_shared;

#if defined(_MSC_VER)
#include <intrin.h>
#define KC_SHARED() ((struct kerncast_model *)_InterlockedCompareExchangePointer((void *volatile *)&kc_shared, NULL, NULL))
#define KC_SHARE(model) (_InterlockedCompareExchangePointer((void *volatile *)&kc_shared, model, NULL) == NULL)
#elif defined(__GNUC__)
#define KC_SHARED() __atomic_load_n(&kc_shared, __ATOMIC_ACQUIRE)
static int KC_SHARE(struct kerncast_model *model) {
    struct kerncast_model *none = NULL;
    return __atomic_compare_exchange_n(&kc_shared, &none, model, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}
#else /* make the first context before the second thread */
#define KC_SHARED() kc_shared
#define KC_SHARE(model) (kc_shared = (model), 1)
#endif

/* Five characters are four bytes. */
static void kc_read_text(unsigned char *to) {
    for (size_t line = 0; line < sizeof kc_text / sizeof kc_text[0]; line++)
        for (const char *at = kc_text[line]; *at; at += 5, to += 4) {
            uint32_t word = 0;
            for (int i = 0; i < 5; i++) word = word * 85 + (uint32_t)(at[i] - 35 - (at[i] > 63) - (at[i] > 92));
            for (int i = 0; i < 4; i++) to[i] = (unsigned char)(word >> (24 - 8 * i));
        }
}

/* The model, or NULL and a status. Threads that ask at the same time may each unpack it; all of them use the first one's. */
static const struct kerncast_model *kc_embedded(kerncast_status *status) {
    struct kerncast_model *model = KC_SHARED();
    *status = KERNCAST_OK;
    if (model != NULL) return model;
    unsigned char *packed = malloc(KC_PACKED_BYTES + 4), *bytes = malloc(KC_BLOB_BYTES);
    kc_loading l = {0};
    if (packed == NULL || bytes == NULL) l.status = KERNCAST_TOO_SMALL;
    else {
        kc_read_text(packed);
        if (!kc_inflate(packed, KC_PACKED_BYTES, bytes, KC_BLOB_BYTES)) l.status = KERNCAST_CORRUPT;
        else model = kc_loaded(bytes, KC_BLOB_BYTES, &l);
    }
    free(packed);
    free(bytes);
    *status = l.status;
    if (model == NULL || KC_SHARE(model)) return model;
    kc_unload(model);
    return KC_SHARED();
}

/* What a function without a context works in. */
static const kerncast_context *kc_alone(kc_own_memory *memory) {
    kerncast_status status;
    const struct kerncast_model *model = kc_embedded(&status);
    if (model == NULL) return NULL;
    kerncast_context *made = &memory->context;
    memset(made, 0, sizeof *made);
    made->m = *model;
    made->registers = memory->registers, made->holds = memory->holds, made->layer = memory->layer;
    return made;
}

size_t kerncast_context_bytes(void) {
    kerncast_status status;
    const struct kerncast_model *model = kc_embedded(&status);
    return model == NULL ? 0 : model->context_bytes;
}

kerncast_status kerncast_init_checked(void *memory, size_t bytes, uint64_t schema, kerncast_context **context) {
    kerncast_status status;
    if (context == NULL) return KERNCAST_BAD_INPUT;
    *context = NULL;
    if (memory == NULL) return KERNCAST_BAD_INPUT;
    if (schema != KERNCAST_SCHEMA) return KERNCAST_MISMATCH;
    const struct kerncast_model *model = kc_embedded(&status);
    return model == NULL ? status : kc_init(model, memory, bytes, context);
}

kerncast_status kerncast_create_checked(uint64_t schema, kerncast_context **context) {
    kerncast_status status;
    if (context == NULL) return KERNCAST_BAD_INPUT;
    *context = NULL;
    if (schema != KERNCAST_SCHEMA) return KERNCAST_MISMATCH;
    const struct kerncast_model *model = kc_embedded(&status);
    return model == NULL ? status : kc_create(model, context);
}

void kerncast_select_many(kerncast_context *context, const kerncast_problem *problems, size_t count, kerncast_tier tier,
                          kerncast_answer *answers) {
    if (answers == NULL) return;
    for (size_t i = 0; i < count; i++) kerncast_select(context, problems == NULL ? NULL : &problems[i], tier, &answers[i]);
}

uint64_t kerncast_schema(void) { return KERNCAST_SCHEMA; }

const char *kerncast_model(void) {
    kerncast_status status;
    const struct kerncast_model *model = kc_embedded(&status);
    return model == NULL ? "" : model->describe;
}

