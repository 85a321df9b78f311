/* Loads models and compares their answers with those that are stored in them: `@PREFIX@_selftest MODEL.kcb ...`. */

#include "@PREFIX@_runtime.h"

#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    int failed = argc < 2;
    if (failed) printf("usage: %s MODEL.kcb ...\n", argv[0]);
    for (int i = 1; i < argc; i++) {
        kerncast_model *model;
        char message[512];
        int32_t checked = 0;
        kerncast_status status = kerncast_load_file(argv[i], &model, message, sizeof message);
        if (status == KERNCAST_OK) status = kerncast_self_test(model, &checked, message, sizeof message);
        if (status == KERNCAST_OK)
            printf("%s: %d golden vectors, 0 differences\n", argv[i], (int)checked);
        else
            printf("%s: %s: %s\n", argv[i], kerncast_status_name(status), message);
        failed |= status != KERNCAST_OK;
        kerncast_unload(model);
    }
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
