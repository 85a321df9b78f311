/* @TITLE@, by kerncast. Generated: `kerncast export` makes it again.

   A context holds the memo and the memory to work in. It is used by one thread at a time; threads have one each,
   and share nothing else. Nothing is allocated after it is made. A number that is not known is negative.

   No pointer may be NULL unless its function says so: one that is gives KERNCAST_BAD_INPUT, said in the answer if there is
   one, and nothing else is written. Functions without a status then do nothing. */

#ifndef KERNCAST_H_@UPPER@
#define KERNCAST_H_@UPPER@

#include <stddef.h>
#include <stdint.h>

/* Of a shared library: KERNCAST_SHARED everywhere, KERNCAST_BUILDING where it is built. The CMake project defines both. */
#ifndef KERNCAST_API
#if !defined(KERNCAST_SHARED)
#define KERNCAST_API
#elif defined(_WIN32) && defined(KERNCAST_BUILDING)
#define KERNCAST_API __declspec(dllexport)
#elif defined(_WIN32)
#define KERNCAST_API __declspec(dllimport)
#elif defined(__GNUC__)
#define KERNCAST_API __attribute__((visibility("default")))
#else
#define KERNCAST_API
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define KERNCAST_SCHEMA UINT64_C(@SCHEMA@)
#define KERNCAST_MISSING INT64_MIN /* a parameter that is not given, or does not apply */

@LABELS@

@ENUMERATIONS@
typedef struct {
@PROBLEM_FIELDS@
} kerncast_problem;

typedef struct {
@CONFIG_FIELDS@
} kerncast_config;

typedef struct {
    kerncast_status status;
    kerncast_tier tier;
    int32_t candidate; /* the config's number, or -1 */
    int32_t parameter; /* the problem parameter at fault, or -1 */
    kerncast_config config;
    double time_ns, lower_ns, upper_ns; /* expected, and the 90 % interval */
    double efficiency;                  /* expected: best time over this config's */
    kerncast_pin_state pin;
    const char *label; /* the kernel's name in the training data; empty if it has none */
    char message[@MESSAGE_BYTES@];
} kerncast_answer;

typedef struct kerncast_context kerncast_context;

/* Make a context: in the caller's memory (aligned to 64 bytes), or allocated. */
#define kerncast_init(memory, bytes, context) kerncast_init_checked(memory, bytes, KERNCAST_SCHEMA, context)
#define kerncast_create(context) kerncast_create_checked(KERNCAST_SCHEMA, context)
KERNCAST_API size_t kerncast_context_bytes(void);
KERNCAST_API kerncast_status kerncast_init_checked(void *memory, size_t bytes, uint64_t schema, kerncast_context **context);
KERNCAST_API kerncast_status kerncast_create_checked(uint64_t schema, kerncast_context **context);
KERNCAST_API void kerncast_destroy(kerncast_context *context); /* a context from create, or NULL */

/* Set all parameters to KERNCAST_MISSING; those that have a default may stay missing. */
KERNCAST_API void kerncast_problem_init(kerncast_problem *problem);
KERNCAST_API void kerncast_config_init(kerncast_config *config);

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

/* The time of any config; KERNCAST_UNSUPPORTED if the tree is the only tier, which knows no times, as of scores and features. */
KERNCAST_API kerncast_status kerncast_predict(const kerncast_problem *problem, const kerncast_config *config,
    kerncast_answer *answer);
/* JSON in, JSON out: an object or a list of objects; see the message of a bad_input reply. `out` may be NULL, to learn how
   much room is needed, and `needed` may be NULL; a NULL text counts as an empty one. */
KERNCAST_API kerncast_status kerncast_query_json(kerncast_context *context, const char *text, size_t length, char *out,
    size_t capacity, size_t *needed);

/* For tests and tools: scores (low is chosen, infinite where it cannot run) and times of a tier's configs, and features. */
KERNCAST_API kerncast_status kerncast_scores(kerncast_context *context, const kerncast_problem *problem,
    kerncast_tier tier, double *scores, double *times_ns, size_t capacity);
KERNCAST_API kerncast_status kerncast_features(const kerncast_problem *problem, const kerncast_config *config,
    double *features, size_t capacity);
/* How many configs the model knows, and the parameters of one; KERNCAST_BAD_INPUT if no tier of the artefact answers with it. */
KERNCAST_API int32_t kerncast_candidates(void);
KERNCAST_API kerncast_status kerncast_candidate(int32_t candidate, kerncast_config *config);
/* The kernel's name in the training data, or "". Where one config has several names (one for each dtype, say), only the second
   one knows it; `problem` may be NULL in neither. */
KERNCAST_API const char *kerncast_label(int32_t candidate);
KERNCAST_API const char *kerncast_label_for(const kerncast_problem *problem, int32_t candidate);
KERNCAST_API uint64_t kerncast_schema(void);
KERNCAST_API const char *kerncast_model(void); /* JSON: family, device, software, kerncast's version */
KERNCAST_API const char *kerncast_status_name(kerncast_status status);
KERNCAST_API const char *kerncast_tier_name(kerncast_tier tier);

#ifdef __cplusplus
}
#endif
#endif
