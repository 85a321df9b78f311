/* -- names of kernels ------------------------------------------------------------------------------- */

/* The name of a candidate as the data have it; it may depend on some parameters of the problem. Empty: not known. */
static const char *kc_label_of(const int64_t *key, int32_t candidate) {
    const int32_t row = candidate < 0 || candidate >= KC_CANDIDATES ? -1 : kc_stored(candidate);
    for (int32_t variant = 0; variant < KC_LABEL_VARIANTS && row >= 0; variant++) {
        int same = 1;
        for (int32_t i = 0; i < KC_LABEL_KEYS; i++)
            same &= kc_label_values[variant * KC_LABEL_KEYS + i] == key[kc_label_places[i]];
        if (!same) continue;
        const int32_t text = kc_label_texts_of[(size_t)variant * KC_STORED + (size_t)row];
        return text < 0 ? "" : kc_label_texts[text];
    }
    return "";
}
