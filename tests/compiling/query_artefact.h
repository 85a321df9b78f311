/* A stand-in for the header of an artefact: the names that the JSON entry point is written against. */
#ifndef KERNCAST_QUERY_ARTEFACT_H
#define KERNCAST_QUERY_ARTEFACT_H
#include <stddef.h>
#include <stdint.h>

#define KERNCAST_MISSING INT64_MIN

typedef enum {
    KERNCAST_OK = 0,
    KERNCAST_OUT_OF_RANGE,
    KERNCAST_UNSUPPORTED,
    KERNCAST_NO_VALID_CONFIG,
    KERNCAST_BAD_INPUT,
    KERNCAST_MISMATCH,
    KERNCAST_CORRUPT,
    KERNCAST_TOO_SMALL
} kerncast_status;
typedef enum {
    KERNCAST_TIER_MEMO = 0,
    KERNCAST_TIER_TREE,
    KERNCAST_TIER_PORTFOLIO,
    KERNCAST_TIER_FULL,
    KERNCAST_TIER_AUTO,
    KERNCAST_TIER_NONE,
    KERNCAST_TIER_PIN
} kerncast_tier;
typedef enum { KERNCAST_PIN_NONE = 0, KERNCAST_PIN_DECIDED, KERNCAST_PIN_NOT_APPLIED } kerncast_pin_state;

/* Laid out like one int64_t member for each parameter. */
typedef struct {
    int64_t values[PROBLEM_COUNT ? PROBLEM_COUNT : 1];
} kerncast_problem;
typedef struct {
    int64_t values[CONFIG_COUNT ? CONFIG_COUNT : 1];
} kerncast_config;
typedef struct {
    kerncast_status status;
    kerncast_tier tier;
    int32_t candidate, parameter;
    kerncast_config config;
    double time_ns, lower_ns, upper_ns, efficiency;
    kerncast_pin_state pin;
    const char *label;
    char message[240];
} kerncast_answer;
typedef struct kerncast_context kerncast_context;

void kerncast_problem_init(kerncast_problem *problem);
void kerncast_select_many(
    kerncast_context *context, const kerncast_problem *problems, size_t count, kerncast_tier tier, kerncast_answer *answers);
kerncast_status kerncast_select(
    kerncast_context *context, const kerncast_problem *problem, kerncast_tier tier, kerncast_answer *answer);
kerncast_status kerncast_query_json(
    kerncast_context *context, const char *text, size_t length, char *out, size_t capacity, size_t *needed);
const char *kerncast_status_name(kerncast_status status);
const char *kerncast_tier_name(kerncast_tier tier);
#endif
