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

typedef struct {
@PROBLEM_FIELDS@
} kerncast_problem;

typedef struct {
@CONFIG_FIELDS@
} kerncast_config;

@ENUMERATIONS@
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

/* The time of any config; KERNCAST_UNSUPPORTED if the tree is the only tier, which knows no times, as of scores and features. */
KERNCAST_API kerncast_status kerncast_predict(const kerncast_problem *problem, const kerncast_config *config,
    kerncast_answer *answer);
/* JSON in, JSON out: an object or a list of objects; see the message of a bad_input reply. `out` may be NULL, to learn how
   much room is needed, and `needed` may be NULL; a NULL text counts as an empty one. */
KERNCAST_API kerncast_status kerncast_query_json(kerncast_context *context, const char *text, size_t length, char *out,
    size_t capacity, size_t *needed);

/* For tests and tools: the features of a vector. */
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
@CALLS@
#ifdef __cplusplus
}
#endif
#endif
