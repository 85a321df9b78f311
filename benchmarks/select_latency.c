/* Times an exported model: every problem once per tier, then the memo. Prints `tier p50 p99 own asked`; times are in µs. */

#define _POSIX_C_SOURCE 199309L

#include "picker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MEMO_CALLS 200

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void report(const char *name, double *times, size_t count, size_t own) {
    qsort(times, count, sizeof *times, ascending);
    printf("%s %.4f %.4f %zu %zu\n", name, times[count / 2], times[count * 99 / 100], own, count);
}

int main(int argc, char **argv) {
    static const struct { const char *name; picker_tier tier; } tiers[] = {
        {"tree", PICKER_TIER_TREE}, {"portfolio", PICKER_TIER_PORTFOLIO}, {"full", PICKER_TIER_FULL}};
    picker_context *context;
    picker_answer answer;
    if (argc < 3 || picker_create(&context) != PICKER_OK) return EXIT_FAILURE;
    FILE *file = fopen(argv[1], "rb");
    if (file == NULL) return EXIT_FAILURE;
    const size_t count = (size_t)atol(argv[2]);
    picker_problem *problems = malloc(count * sizeof *problems);
    double *times = malloc(count * sizeof *times);
    if (problems == NULL || times == NULL || fread(problems, sizeof *problems, count, file) != count) return EXIT_FAILURE;
    fclose(file);
    for (size_t t = 0; t < sizeof tiers / sizeof tiers[0]; t++) {
        size_t own = 0, asked = 0;
        for (size_t i = 0; i < count; i++) {
            const double begin = now_us();
            const picker_status status = picker_select(context, &problems[i], tiers[t].tier, &answer);
            const double spent = now_us() - begin;
            if (status != PICKER_OK) break;
            own += answer.tier == tiers[t].tier;
            times[asked++] = spent;
        }
        if (asked == count) report(tiers[t].name, times, count, own);
    }
    const picker_tier some = argc > 3 ? PICKER_TIER_FULL : PICKER_TIER_PORTFOLIO;
    for (size_t i = 0; i < count; i++) {
        picker_select(context, &problems[i], some, &answer);
        const double begin = now_us();
        for (int call = 0; call < MEMO_CALLS; call++) picker_select(context, &problems[i], some, &answer);
        times[i] = (now_us() - begin) / MEMO_CALLS;
    }
    report("memo", times, count, count);
    picker_destroy(context);
    free(problems);
    free(times);
    return EXIT_SUCCESS;
}
