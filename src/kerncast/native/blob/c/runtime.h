/* kerncast's runtime: loads models that `kerncast export --to blob` wrote, and answers with them.

   A model is constant: threads share it. A context holds the memo and the memory to work in; it is used by one thread at a time,
   and threads have one each. Memory is allocated only when a model is loaded and a context made. Destroy a model's contexts
   before you unload it. A number that is not known is negative.

   Problems and configs are arrays of numbers, a parameter in each place: see kerncast_place and kerncast_code.

   No pointer may be NULL unless its function says so: one that is gives KERNCAST_BAD_INPUT, said in the answer if there is
   one, and nothing else is written. Functions without a status then do nothing. */

#ifndef KERNCAST_H_@UPPER@_RUNTIME
#define KERNCAST_H_@UPPER@_RUNTIME

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KERNCAST_MISSING INT64_MIN /* a parameter that is not given, or does not apply */
#define KERNCAST_MOST_PARAMETERS @MOST_PARAMETERS@ /* of a problem, and of a config */
#ifndef KERNCAST_API
#define KERNCAST_API
#endif

/* What a problem or a config points to: its first number. Several problems lie one after the other. */
typedef int64_t kerncast_problem, kerncast_config;

@ENUMERATIONS@
typedef enum { KERNCAST_PROBLEM = 0, KERNCAST_CONFIG = 1 } kerncast_side;

typedef struct kerncast_model kerncast_model;
typedef struct kerncast_context kerncast_context;

/* A model from bytes in memory, which are copied, or from a file. One that is damaged, cut off, of another version or made to do
   harm is refused: by its status, and in words in `message`, which may be NULL. */
kerncast_status kerncast_load(const void *bytes, size_t size, kerncast_model **model, char *message, size_t room);
kerncast_status kerncast_load_file(const char *path, kerncast_model **model, char *message, size_t room);
void kerncast_unload(kerncast_model *model); /* or NULL */

/* Ask the model for the problems that are stored with it, and compare with what Python answered. KERNCAST_CORRUPT, and `message`
   says why: this machine computes something else. `checked`: how many agreed; it and `message` may be NULL. */
kerncast_status kerncast_self_test(const kerncast_model *model, int32_t *checked, char *message, size_t room);

/* Make a context: in the caller's memory (aligned to 64 bytes), or allocated. */
size_t kerncast_context_bytes(const kerncast_model *model);
kerncast_status kerncast_init(const kerncast_model *model, void *memory, size_t bytes, kerncast_context **context);
kerncast_status kerncast_create(const kerncast_model *model, kerncast_context **context);
void kerncast_destroy(kerncast_context *context); /* a context from create, or NULL */

/* The parameters of problems or configs: their number, their names, the place of one (-1: there is none), and the number of a
   label such as "fp16" (KERNCAST_MISSING: there is none). */
int32_t kerncast_parameters(const kerncast_model *model, kerncast_side side);
const char *kerncast_parameter(const kerncast_model *model, kerncast_side side, int32_t place);
int32_t kerncast_place(const kerncast_model *model, kerncast_side side, const char *name);
int64_t kerncast_code(const kerncast_model *model, kerncast_side side, int32_t place, const char *label);
const char *kerncast_describe(const kerncast_model *model); /* JSON: family, device, software, kerncast's version */
uint64_t kerncast_schema(const kerncast_model *model);      /* that of a C export of the same family */

/* Set all parameters to KERNCAST_MISSING; those that have a default may stay missing. */
void kerncast_problem_init(const kerncast_context *context, int64_t *problem);
void kerncast_config_init(const kerncast_context *context, int64_t *config);

/* The time of any config. */
kerncast_status kerncast_predict(const kerncast_context *context, const int64_t *problem, const int64_t *config,
                                 kerncast_answer *answer);

int32_t kerncast_candidates(const kerncast_context *context);
kerncast_status kerncast_candidate(const kerncast_context *context, int32_t candidate, int64_t *config);
/* The kernel's name in the training data, or "". Where one config has several names (one for each dtype, say), only the second
   one knows it. */
const char *kerncast_label(const kerncast_context *context, int32_t candidate);
const char *kerncast_label_for(const kerncast_context *context, const int64_t *problem, int32_t candidate);

/* For tests and tools: the features of a vector. */
kerncast_status kerncast_features(const kerncast_context *context, const int64_t *problem, const int64_t *config, double *features,
                                  size_t capacity);
@CALLS@
#ifdef __cplusplus
}
#endif
#endif
