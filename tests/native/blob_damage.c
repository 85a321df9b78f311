/* Loads damaged models and asks them, for libFuzzer (-DFUZZ) or for every byte of a file: `PROGRAM MODEL.kcb STRIDE EVERY`. */

#include "kerncast_runtime.c"

static unsigned long loaded, refused;

static void reseal(unsigned char *bytes, size_t size) {
    uint64_t sum = UINT64_C(0xcbf29ce484222325), word, whole = size;
    memcpy(bytes + 16, &whole, 8);
    for (size_t i = 0; i + 8 <= size; i += 8) {
        memcpy(&word, bytes + i, 8);
        sum = (sum ^ (i == 24 ? 0 : word)) * UINT64_C(0x100000001b3);
    }
    memcpy(bytes + 24, &sum, 8);
}

static void ask(kerncast_context *context, const int64_t *problem) {
    kerncast_answer answers[3];
    size_t count;
    for (int tier = 0; tier < 7; tier++) {
        kerncast_select(context, problem, (kerncast_tier)tier, answers);
        kerncast_select(context, problem, (kerncast_tier)tier, answers);
    }
    kerncast_rank(context, problem, KERNCAST_TIER_AUTO, answers, 3, &count);
    kerncast_predict(context, problem, context->m.configs, answers);
    kerncast_label_for(context, problem, 0);
    kerncast_pin(context, problem, 0, answers);
    kerncast_select(context, problem, KERNCAST_TIER_AUTO, answers);
    kerncast_deny(context, 0);
    kerncast_select(context, problem, KERNCAST_TIER_AUTO, answers);
    kerncast_clear_overrides(context);
}

/* Loads a copy of exactly this size, so that a read beyond it is seen, and asks it what an honest model is asked. */
static int try_it(const unsigned char *bytes, size_t size) {
    kerncast_model *model;
    kerncast_context *context;
    char message[300];
    int64_t problem[KC_MOST_PARAMETERS];
    const kerncast_status status = kerncast_load(bytes, size, &model, message, sizeof message);
    if ((status == KERNCAST_OK) != (model != NULL) || (status != KERNCAST_OK && message[0] == '\0')) abort();
    if (status != KERNCAST_OK) return 0;
    if (kerncast_create(model, &context) != KERNCAST_OK) abort();
    for (int32_t i = 0; i < 2 && i < model->loaded.golden_count; i++) ask(context, model->loaded.golden_problems + (ptrdiff_t)i * model->problem.count);
    for (int64_t value = 1; value < 4096; value *= 45) {
        for (int32_t i = 0; i < KC_MOST_PARAMETERS; i++) problem[i] = value;
        ask(context, problem);
    }
    kerncast_self_test(model, NULL, message, sizeof message);
    kerncast_code(model, KERNCAST_PROBLEM, kerncast_place(model, KERNCAST_PROBLEM, "dtype"), "fp16");
    for (const char *at = kerncast_describe(model); *at; at++) problem[0] += *at;
    kerncast_destroy(context);
    kerncast_unload(model);
    return 1;
}

#ifdef FUZZ
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    unsigned char *copy = malloc(size + 1);
    if (copy == NULL) return 0;
    memcpy(copy, data, size);
    if (size >= 32) reseal(copy, size / 8 * 8);
    try_it(copy, size >= 32 ? size / 8 * 8 : size);
    free(copy);
    return 0;
}
#else
int main(int argc, char **argv) {
    static unsigned char bytes[1 << 22], copy[1 << 22];
    FILE *file = argc == 4 ? fopen(argv[1], "rb") : NULL;
    if (file == NULL) return 2;
    const size_t size = fread(bytes, 1, sizeof bytes, file), stride = (size_t)atol(argv[2]), every = (size_t)atol(argv[3]);
    fclose(file);
    if (!try_it(bytes, size)) return 3;
    for (size_t i = 0; i < size; i += every) {
        /* As accidents do it: the checksum tells. Any length but the whole, and a flipped bit of any byte. */
        memcpy(copy, bytes, size);
        copy[i] ^= (unsigned char)(1u << i % 8);
        kerncast_model *model;
        if (kerncast_load(copy, size, &model, NULL, 0) == KERNCAST_OK) return 4;
        if (kerncast_load(bytes, i, &model, NULL, 0) == KERNCAST_OK) return 5;
    }
    for (size_t i = 32; i < size; i += stride) {
        /* As an enemy does it: with the right checksum. */
        static const unsigned char changes[] = {0x01, 0x80, 0xff, 0x40};
        for (size_t k = 0; k < sizeof changes; k++) {
            memcpy(copy, bytes, size);
            copy[i] ^= changes[k];
            reseal(copy, size);
            if (try_it(copy, size)) loaded++;
            else refused++;
        }
    }
    for (size_t i = 32; i < size; i += 8 * stride) {
        memcpy(copy, bytes, i / 8 * 8);
        reseal(copy, i / 8 * 8);
        if (try_it(copy, i / 8 * 8)) return 6;
    }
    printf("%lu refused, %lu answered\n", refused, loaded);
    return 0;
}
#endif
