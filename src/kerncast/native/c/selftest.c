/* Golden vectors of @PREFIX@.c: problem -> features -> score -> choice, as Python computed them; of a tree alone, the choice. */

#include "@PREFIX@.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define ALONE @ALONE@
#define FEATURES @FEATURES@
#define CONFIGS @CONFIGS@

typedef struct {
    kerncast_problem problem;
    int32_t candidate; /* -1: the tree is unsure */
#if !ALONE
    kerncast_config config;
    double score, time_ns, features[FEATURES + 1];
#endif
} golden;

static const golden vectors[] = {
@VECTORS@
};

static int differs(const char *what, int number, double got, double wanted, double tolerance) {
    if (fabs(got - wanted) <= tolerance * fabs(wanted)) return 0;
    printf("golden vector %d: %s is %.17g, not %.17g\n", number, what, got, wanted);
    return 1;
}

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
        const golden *want = &vectors[i];
        kerncast_answer answer;
        const kerncast_status status = kerncast_select(context, &want->problem, KERNCAST_TIER_@TIER@, &answer);
#if ALONE
        const int32_t chosen = answer.tier == KERNCAST_TIER_TREE ? answer.candidate : -1;
        failed += differs("the choice", i, chosen, want->candidate, 0.0);
        failed += differs("the status", i, status, chosen < 0 ? KERNCAST_UNSURE : KERNCAST_OK, 0.0);
#else
        static double scores[CONFIGS], times[CONFIGS];
        double features[FEATURES + 1], best = HUGE_VAL;
        (void)status;
        kerncast_features(&want->problem, &want->config, features, FEATURES);
        for (int j = 0; j < FEATURES; j++) failed += differs("a feature", i, features[j], want->features[j], 1e-14);
        failed += differs("the choice", i, answer.candidate, want->candidate, 0.0);
        failed += differs("its time", i, answer.time_ns, want->time_ns, 1e-12);
        kerncast_scores(context, &want->problem, KERNCAST_TIER_@TIER@, scores, times, CONFIGS);
        for (int j = 0; j < CONFIGS; j++) best = scores[j] < best ? scores[j] : best;
        failed += differs("the score", i, best, want->score, 1e-12);
#endif
    }
    kerncast_destroy(context);
    printf("%d golden vectors, %d differences\n", count, failed);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
