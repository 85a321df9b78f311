/* The config to run. The tree answers without a time, and leaves what it is unsure of to the next tier. Without another tier the
   status is KERNCAST_UNSURE, and `config` a fallback. */
KERNCAST_API kerncast_status kerncast_select(kerncast_context *context, const kerncast_problem *problem,
    kerncast_tier tier, kerncast_answer *answer);
/* The same for many problems; each answer has its own status. */
KERNCAST_API void kerncast_select_many(kerncast_context *context, const kerncast_problem *problems, size_t count,
    kerncast_tier tier, kerncast_answer *answers);
/* The best configs, best first: those of the tier, then all others; of a tree alone, those of the problem's leaf. With a capacity
   of 0 `answers` may be NULL. */
KERNCAST_API kerncast_status kerncast_rank(kerncast_context *context, const kerncast_problem *problem, kerncast_tier tier,
    kerncast_answer *answers, size_t capacity, size_t *count);
/* What exists and what is fixed, for one context, from the next call on; remembered answers are forgotten. Configs are named
   by their candidate numbers. */
/* One byte for each of the kerncast_candidates() configs, 0 for those that are never to be chosen. It replaces earlier masks
   and kerncast_deny; what the export denies stays denied. */
KERNCAST_API kerncast_status kerncast_set_available(kerncast_context *context, const unsigned char *available,
    size_t count);
KERNCAST_API kerncast_status kerncast_deny(kerncast_context *context, int32_t candidate);
/* Problems that agree with `problem` in all parameters that are not KERNCAST_MISSING get this config; -1: they are left to
   the model again. The last pin that matches counts. Refused if the config cannot run such a problem or is not available;
   `answer` says why, and may be NULL. A context holds @MOST_PINS@ pins. */
KERNCAST_API kerncast_status kerncast_pin(kerncast_context *context, const kerncast_problem *problem, int32_t candidate,
    kerncast_answer *answer);
KERNCAST_API kerncast_status kerncast_clear_overrides(kerncast_context *context); /* back to what was exported */
/* For tests and tools: scores (low is chosen, infinite where it cannot run) and times of a tier's configs. */
KERNCAST_API kerncast_status kerncast_scores(kerncast_context *context, const kerncast_problem *problem,
    kerncast_tier tier, double *scores, double *times_ns, size_t capacity);
KERNCAST_API const char *kerncast_status_name(kerncast_status status);
KERNCAST_API const char *kerncast_tier_name(kerncast_tier tier);
