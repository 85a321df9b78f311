/* A stand-in for the engine of an artefact: it answers with the problem itself as the config, so that a test sees what was
 * read, and with every other status by the value of the parameter `case`. */
#include "query_artefact.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { M = 0, CASE = 1, DTYPE = 2 }; /* places in the problem */

void kerncast_problem_init(kerncast_problem *problem) {
    for (size_t i = 0; i < sizeof problem->values / sizeof problem->values[0]; i++) problem->values[i] = KERNCAST_MISSING;
}

const char *kerncast_status_name(kerncast_status status) {
    static const char *const names[] = {"ok",        "out_of_range", "unsupported", "no_valid_config",
                                        "bad_input", "mismatch",     "corrupt",     "too_small"};
    return names[status];
}

const char *kerncast_tier_name(kerncast_tier tier) {
    static const char *const names[] = {"memo", "tree", "portfolio", "full", "auto", "none", "pin"};
    return names[tier];
}

static kerncast_status refuse(
    kerncast_answer *answer, kerncast_status status, int32_t candidate, int32_t parameter, const char *message) {
    answer->tier = KERNCAST_TIER_NONE;
    answer->candidate = candidate;
    answer->parameter = parameter;
    snprintf(answer->message, sizeof answer->message, "%s", message);
    return answer->status = status;
}

kerncast_status kerncast_select(
    kerncast_context *context, const kerncast_problem *problem, kerncast_tier tier, kerncast_answer *answer) {
    (void)context;
    if (problem->values[M] == KERNCAST_MISSING) return refuse(answer, KERNCAST_BAD_INPUT, -1, M, "toy needs M");
    if (problem->values[M] < 1) return refuse(answer, KERNCAST_BAD_INPUT, -1, M, "M must be at least 1: \"raise\" it");
    memcpy(&answer->config, problem, sizeof answer->config);
    answer->candidate = 0;
    answer->tier = tier == KERNCAST_TIER_AUTO ? KERNCAST_TIER_MEMO : tier;
    answer->time_ns = (double)problem->values[M] / 10.0;
    answer->lower_ns = answer->upper_ns = answer->efficiency = -1.0;
    answer->pin = KERNCAST_PIN_NONE;
    answer->label = "";
    switch (problem->values[CASE]) {
    case 0: return refuse(answer, KERNCAST_OUT_OF_RANGE, -1, CASE, "nothing fits");
    case 1: return refuse(answer, KERNCAST_OUT_OF_RANGE, 3, CASE, "another case was trained");
    case 2: return refuse(answer, KERNCAST_UNSUPPORTED, -1, -1, "no");
    case 3: return refuse(answer, KERNCAST_NO_VALID_CONFIG, -1, 1000, "none");
    case 4: return refuse(answer, KERNCAST_MISMATCH, -1, -1, "other header");
    case 5: return refuse(answer, KERNCAST_CORRUPT, -1, -1, "checksum");
    case 6: answer->config.values[DTYPE] = 99; break; /* a label without a name */
    case 7: answer->time_ns = NAN; answer->upper_ns = INFINITY; answer->efficiency = 0.0; break;
    case 8: /* a message cut short inside a character, without an end */
        memset(answer->message, 0xC3, sizeof answer->message);
        answer->candidate = -1;
        return answer->status = KERNCAST_UNSUPPORTED;
    case 9: answer->lower_ns = 0.1; answer->upper_ns = 1e300; answer->efficiency = 2.0 / 3.0; break;
    default: break;
    }
    return answer->status = KERNCAST_OK;
}

void kerncast_select_many(
    kerncast_context *context, const kerncast_problem *problems, size_t count, kerncast_tier tier, kerncast_answer *answers) {
    for (size_t i = 0; i < count; i++) {
        answers[i].candidate = answers[i].parameter = -1;
        kerncast_select(context, &problems[i], tier, &answers[i]);
    }
}
