/* Requests from stdin, replies to stdout. A request: two uint32, its length and the room for the reply, then its bytes.
 * A reply: three uint32, status, bytes needed, bytes that follow, then those. The buffers are exactly as long as said, so
 * that the address sanitizer sees every byte too far; of no length they are NULL. */
#include "query_artefact.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    uint32_t asked[2], answered[3];
    if (argc > 1 && setlocale(LC_ALL, argv[1]) == NULL) return 77;
    while (fread(asked, sizeof asked, 1, stdin) == 1) {
        char *text = asked[0] > 0 ? malloc(asked[0]) : NULL, *out = asked[1] > 0 ? malloc(asked[1]) : NULL;
        size_t needed = 0;
        if (text != NULL && fread(text, 1, asked[0], stdin) != asked[0]) return 1;
        answered[0] = (uint32_t)kerncast_query_json(NULL, text, asked[0], out, asked[1], &needed);
        answered[1] = (uint32_t)needed;
        answered[2] = needed <= asked[1] ? (uint32_t)needed : asked[1] > 0; /* only the first byte of what did not fit */
        fwrite(answered, sizeof answered, 1, stdout);
        if (out != NULL) fwrite(out, 1, answered[2], stdout);
        fflush(stdout);
        free(text);
        free(out);
    }
    return 0;
}
