/* For libFuzzer: whatever the request, the reply fits the room that was said to be needed, is itself JSON (the entry point
 * finds no fault in its grammar), and is the same twice. */
#include "query_artefact.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int holds) {
    if (!holds) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    size_t needed = 0, again = 0;
    char *out, shown[4096];
    kerncast_status first = kerncast_query_json(NULL, (const char *)data, size, NULL, 0, &needed), second;
    must(first == KERNCAST_TOO_SMALL && needed > 2);
    out = malloc(needed);
    must(out != NULL);
    must(kerncast_query_json(NULL, (const char *)data, size, out, needed - 1, &again) == KERNCAST_TOO_SMALL);
    must(again == needed && out[0] == '\0');
    second = kerncast_query_json(NULL, (const char *)data, size, out, needed, &again);
    must(second != KERNCAST_TOO_SMALL && again == needed && strlen(out) == needed - 1);
    /* A reply read as a request has a key that nobody knows, `status`; every reply of a list has. */
    first = kerncast_query_json(NULL, out, needed - 1, shown, sizeof shown, &again);
    if (out[0] == '{') must(first == KERNCAST_BAD_INPUT && strstr(shown, "unknown key \\\"status\\\"") != NULL);
    else must(first == KERNCAST_OK || first == KERNCAST_TOO_SMALL);
    free(out);
    return 0;
}
