/* Times a compiled-in model and the same model loaded by the runtime, each problem by both in turn, for several rounds.
   Prints `tier round p50 p50`, compiled in and loaded, in µs; then `load µs` and `differences n`. */

#define _POSIX_C_SOURCE 199309L

#include "kerncast_runtime.h"
#include "picker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *times, size_t count) {
    qsort(times, count, sizeof *times, ascending);
    return times[count / 2];
}

int main(int argc, char **argv) {
    static const struct { const char *name; int tier; } tiers[] = {
        {"tree", PICKER_TIER_TREE}, {"portfolio", PICKER_TIER_PORTFOLIO}, {"full", PICKER_TIER_FULL}, {"memo", PICKER_TIER_PORTFOLIO}};
    picker_context *compiled;
    kerncast_context *context;
    kerncast_model *model;
    char message[300];
    if (argc < 5 || picker_create(&compiled) != PICKER_OK) return EXIT_FAILURE;
    const double start = now_us();
    if (kerncast_load_file(argv[3], &model, message, sizeof message) != KERNCAST_OK) return puts(message), EXIT_FAILURE;
    printf("load %.1f\n", now_us() - start);
    if (kerncast_create(model, &context) != KERNCAST_OK) return EXIT_FAILURE;
    FILE *file = fopen(argv[1], "rb");
    const size_t count = (size_t)atol(argv[2]), width = sizeof(picker_problem) / sizeof(int64_t);
    const int rounds = atoi(argv[4]);
    picker_problem *problems = malloc(count * sizeof *problems);
    double *one = malloc(count * sizeof *one), *other = malloc(count * sizeof *other);
    if (file == NULL || problems == NULL || one == NULL || other == NULL) return EXIT_FAILURE;
    if (fread(problems, sizeof *problems, count, file) != count) return EXIT_FAILURE;
    fclose(file);
    size_t differences = 0;
    for (int round = 0; round < rounds; round++)
        for (size_t t = 0; t < sizeof tiers / sizeof tiers[0]; t++) {
            const int again = strcmp(tiers[t].name, "memo") == 0 ? 100 : 1;
            picker_clear_overrides(compiled); /* forgets the answers of earlier rounds */
            kerncast_clear_overrides(context);
            size_t own = 0;
            for (size_t i = 0; i < count; i++) {
                picker_answer a;
                kerncast_answer b;
                const int64_t *numbers = (const int64_t *)problems + i * width;
                if (again > 1) picker_select(compiled, &problems[i], tiers[t].tier, &a);
                if (again > 1) kerncast_select(context, numbers, (kerncast_tier)tiers[t].tier, &b);
                double begin = now_us();
                for (int k = 0; k < again; k++) picker_select(compiled, &problems[i], tiers[t].tier, &a);
                const double between = now_us();
                for (int k = 0; k < again; k++) kerncast_select(context, numbers, (kerncast_tier)tiers[t].tier, &b);
                one[own] = (between - begin) / again, other[own] = (now_us() - between) / again;
                /* What the tree is unsure of, the portfolio answers: that is measured by itself. */
                own += again > 1 || (int)a.tier == tiers[t].tier;
                differences += a.candidate != b.candidate || a.time_ns != b.time_ns || a.lower_ns != b.lower_ns ||
                               a.upper_ns != b.upper_ns || (int)a.status != (int)b.status || (int)a.tier != (int)b.tier;
            }
            printf("%s %d %.4f %.4f\n", tiers[t].name, round, median(one, own), median(other, own));
        }
    printf("differences %zu\n", differences);
    kerncast_destroy(context);
    kerncast_unload(model);
    picker_destroy(compiled);
    free(problems), free(one), free(other);
    return EXIT_SUCCESS;
}
