/* Golden vectors of @PREFIX@.c: problem -> choice of the tree, as Python made it. */

#include "@PREFIX@.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct {
    kerncast_problem problem;
    int32_t candidate; /* -1: the tree is unsure */
} golden;

static const golden vectors[] = {
@VECTORS@
};

int main(void) {
    kerncast_context *context;
    const int count = (int)(sizeof vectors / sizeof vectors[0]);
    int failed = 0;
    const kerncast_status made = kerncast_create(&context);
    if (made != KERNCAST_OK) {
        printf("no context: %s\n", kerncast_status_name(made));
        return EXIT_FAILURE;
    }
    for (int i = 0; i < count; i++) {
        kerncast_answer answer;
        const kerncast_status status = kerncast_select(context, &vectors[i].problem, KERNCAST_TIER_TREE, &answer);
        const int32_t chosen = answer.tier == KERNCAST_TIER_TREE ? answer.candidate : -1;
        const int said = chosen < 0 ? status == KERNCAST_UNSURE : status == KERNCAST_OK;
        if (chosen == vectors[i].candidate && said) continue;
        printf("golden vector %d: the choice is %d (%s), not %d\n", i, (int)chosen, kerncast_status_name(status),
               (int)vectors[i].candidate);
        failed++;
    }
    kerncast_destroy(context);
    printf("%d golden vectors, %d differences\n", count, failed);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
