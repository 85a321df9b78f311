/* Every entry point with NULL in every place: a status, never a crash. Prints what does not answer as the header says. */

#include "kerncast.h"

#include <stdio.h>
#include <string.h>

static int failed = 0;

static void is(const char *what, kerncast_status got, kerncast_status wanted) {
    if (got == wanted) return;
    printf("%s: %s, not %s\n", what, kerncast_status_name(got), kerncast_status_name(wanted));
    failed++;
}

#define BAD(call) is(#call, call, KERNCAST_BAD_INPUT)

int main(void) {
    static double scores[4096], times[4096];
    static char out[4096];
    kerncast_context *context = NULL;
    kerncast_problem problem;
    kerncast_config config;
    kerncast_answer answer, answers[2];
    size_t count = 7, needed = 0;

    BAD(kerncast_create(NULL));
    BAD(kerncast_init(scores, sizeof scores, NULL));
    BAD(kerncast_init(NULL, kerncast_context_bytes(), &context));
    is("create", kerncast_create(&context), KERNCAST_OK);
    kerncast_destroy(NULL);
    kerncast_problem_init(NULL);
    kerncast_config_init(NULL);
    kerncast_problem_init(&problem);
    is("candidate", kerncast_candidate(0, &config), KERNCAST_OK);
    BAD(kerncast_candidate(0, NULL));
    PROBLEM

    is("select", kerncast_select(context, &problem, KERNCAST_TIER_AUTO, &answer), KERNCAST_OK);
    BAD(kerncast_select(NULL, &problem, KERNCAST_TIER_AUTO, &answer));
    if (strstr(answer.message, "no context") == NULL) failed += puts("select does not say that there is no context") != EOF;
    BAD(kerncast_select(context, NULL, KERNCAST_TIER_AUTO, &answer));
    if (strstr(answer.message, "no problem") == NULL) failed += puts("select does not say that there is no problem") != EOF;
    BAD(kerncast_select(context, &problem, KERNCAST_TIER_AUTO, NULL));
    BAD(kerncast_select(NULL, NULL, KERNCAST_TIER_AUTO, NULL));

    kerncast_select_many(context, &problem, 1, KERNCAST_TIER_AUTO, NULL);
    for (int i = 1; i <= 2; i++) {
        kerncast_select_many(context, NULL, (size_t)i, KERNCAST_TIER_AUTO, answers);
        is("select_many without problems", answers[i - 1].status, KERNCAST_BAD_INPUT);
        kerncast_select_many(NULL, NULL, (size_t)i, KERNCAST_TIER_AUTO, answers);
        is("select_many without a context", answers[i - 1].status, KERNCAST_BAD_INPUT);
    }

    is("rank of none", kerncast_rank(context, &problem, KERNCAST_TIER_FULL, NULL, 0, &count), KERNCAST_OK);
    is("its count", (kerncast_status)count, KERNCAST_OK);
    BAD(kerncast_rank(context, &problem, KERNCAST_TIER_FULL, NULL, 1, &count));
    BAD(kerncast_rank(context, &problem, KERNCAST_TIER_FULL, answers, 2, NULL));
    BAD(kerncast_rank(context, NULL, KERNCAST_TIER_FULL, answers, 2, &count));
    BAD(kerncast_rank(NULL, &problem, KERNCAST_TIER_FULL, answers, 2, &count));

    unsigned char available[4096];
    memset(available, 1, sizeof available);
    is("set_available", kerncast_set_available(context, available, (size_t)kerncast_candidates()), KERNCAST_OK);
    BAD(kerncast_set_available(NULL, available, (size_t)kerncast_candidates()));
    BAD(kerncast_set_available(context, NULL, (size_t)kerncast_candidates()));
    BAD(kerncast_set_available(context, available, (size_t)kerncast_candidates() + 1));
    is("deny", kerncast_deny(context, 0), KERNCAST_OK);
    BAD(kerncast_deny(NULL, 0));
    BAD(kerncast_deny(context, -1));
    BAD(kerncast_deny(context, kerncast_candidates()));
    BAD(kerncast_pin(context, &problem, 0, &answer));
    if (strstr(answer.message, "not available") == NULL) failed += puts("pin does not say that it is denied") != EOF;
    is("clear_overrides", kerncast_clear_overrides(context), KERNCAST_OK);
    BAD(kerncast_clear_overrides(NULL));
    is("pin", kerncast_pin(context, &problem, 0, &answer), KERNCAST_OK);
    is("pin without an answer", kerncast_pin(context, &problem, 0, NULL), KERNCAST_OK);
    BAD(kerncast_pin(NULL, &problem, 0, &answer));
    BAD(kerncast_pin(context, NULL, 0, &answer));
    BAD(kerncast_pin(context, &problem, kerncast_candidates(), NULL));
    is("select by pin", kerncast_select(context, &problem, KERNCAST_TIER_AUTO, &answer), KERNCAST_OK);
    if (answer.pin != KERNCAST_PIN_DECIDED || answer.candidate != 0) failed += puts("the pin does not decide") != EOF;
    is("unpin", kerncast_pin(context, &problem, -1, NULL), KERNCAST_OK);
    is("select without a pin", kerncast_select(context, &problem, KERNCAST_TIER_AUTO, &answer), KERNCAST_OK);
    if (answer.pin != KERNCAST_PIN_NONE) failed += puts("the pin still decides") != EOF;
    if (kerncast_label(-1)[0] || kerncast_label(kerncast_candidates())[0] || kerncast_label_for(NULL, 0)[0])
        failed += puts("a kernel that there is not has a name") != EOF;
    kerncast_clear_overrides(context);

    is("scores", kerncast_scores(context, &problem, KERNCAST_TIER_FULL, scores, times, 4096), KERNCAST_OK);
    BAD(kerncast_scores(context, &problem, KERNCAST_TIER_FULL, NULL, times, 4096));
    BAD(kerncast_scores(context, &problem, KERNCAST_TIER_FULL, scores, NULL, 4096));
    BAD(kerncast_scores(context, NULL, KERNCAST_TIER_FULL, scores, times, 4096));
    BAD(kerncast_scores(NULL, &problem, KERNCAST_TIER_FULL, scores, times, 4096));

    is("predict", kerncast_predict(&problem, &config, &answer), KERNCAST_OK);
    BAD(kerncast_predict(NULL, &config, &answer));
    BAD(kerncast_predict(&problem, NULL, &answer));
    BAD(kerncast_predict(&problem, &config, NULL));
    BAD(kerncast_predict(NULL, NULL, NULL));

    is("features", kerncast_features(&problem, &config, scores, 4096), KERNCAST_OK);
    BAD(kerncast_features(NULL, &config, scores, 4096));
    BAD(kerncast_features(&problem, NULL, scores, 4096));
    BAD(kerncast_features(&problem, &config, NULL, 4096));

    BAD(kerncast_query_json(context, NULL, 5, out, sizeof out, &needed));
    BAD(kerncast_query_json(context, NULL, 0, out, sizeof out, NULL));
    BAD(kerncast_query_json(NULL, QUERY, strlen(QUERY), out, sizeof out, &needed));
    if (strstr(out, "no context") == NULL) failed += puts("query_json does not say that there is no context") != EOF;
    is("query_json", kerncast_query_json(context, QUERY, strlen(QUERY), out, sizeof out, NULL), KERNCAST_OK);
    is("query_json for its size", kerncast_query_json(context, QUERY, strlen(QUERY), NULL, 0, &needed), KERNCAST_TOO_SMALL);
    is("query_json to nowhere", kerncast_query_json(context, QUERY, strlen(QUERY), NULL, 9999, NULL), KERNCAST_TOO_SMALL);
    kerncast_destroy(context);
    return failed;
}
