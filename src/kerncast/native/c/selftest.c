/* Golden vectors of @PREFIX@.c: problem -> features -> score -> choice, as Python computed them. */

#include "@PREFIX@.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define FEATURES @FEATURES@
#define CONFIGS @CONFIGS@

typedef struct {
    kerncast_problem problem;
    kerncast_config config;
    int32_t candidate;
    double score, time_ns, features[FEATURES + 1];
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
    static double scores[CONFIGS], times[CONFIGS];
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
        double features[FEATURES + 1];
        kerncast_features(&want->problem, &want->config, features, FEATURES);
        for (int j = 0; j < FEATURES; j++) failed += differs("a feature", i, features[j], want->features[j], 1e-14);
        kerncast_select(context, &want->problem, KERNCAST_TIER_@TIER@, &answer);
        failed += differs("the choice", i, answer.candidate, want->candidate, 0.0);
        failed += differs("its time", i, answer.time_ns, want->time_ns, 1e-12);
        kerncast_scores(context, &want->problem, KERNCAST_TIER_@TIER@, scores, times, CONFIGS);
        double best = HUGE_VAL;
        for (int j = 0; j < CONFIGS; j++) best = scores[j] < best ? scores[j] : best;
        failed += differs("the score", i, best, want->score, 1e-12);
    }
    kerncast_destroy(context);
    printf("%d golden vectors, %d differences\n", count, failed);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
