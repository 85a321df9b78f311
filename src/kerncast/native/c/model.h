/* -- a model, as the engine reads it ------------------------------------------------------------------ */

/* The engine is the same text for a model that is compiled in and for one that is loaded. It reads everything that differs
   between models from a `kc_model`. Compiled in, that is a constant of this file, so compilers resolve every size and table.
   Before this text stand the widths of its numbers (kc_id …), the largest sizes (KC_MOST_…) and which parts it needs. What
   is computed by formulas is in functions that are generated, or that interpret programs. */

#if defined(__GNUC__)
#define KC_MAYBE __attribute__((unused)) /* which functions are called depends on the model */
#else
#define KC_MAYBE
#endif
/* What an answer's time depends on: compiled in, it becomes code for this model alone. */
#if defined(__GNUC__) && !KC_LOADED
#define KC_INLINE static inline __attribute__((always_inline))
#else
#define KC_INLINE static
#endif
#define KC_ALIGNMENT 64
#define KC_MISSING KERNCAST_MISSING

typedef struct {
    const char *name, *rule;
    int64_t low, high, step;
    const int64_t *values; /* the only ones, where they are not a range */
    int32_t count;
    int64_t otherwise; /* when it is left out */
    int conditional, optional; /* optional: missing is a value, which reads as `inactive` */
    double inactive;
    const char *const *labels; /* the names of `values`, or of 0 and 1; NULL where values are numbers */
} kc_parameter;

/* The parameters of problems, or of configs; `order`: that in which they are read. */
typedef struct {
    const kc_parameter *parameters;
    const int32_t *order;
    int32_t count;
} kc_space;

/* What all measured values of a parameter have in common. */
typedef struct {
    int32_t parameter;
    int64_t step, rest;
    const char *rule;
} kc_fact;

typedef struct {
    int32_t what, one, other, first, count;
    double unseen;
} kc_trait;

/* A node tests a condition `feature <= threshold`, known by its number. Children below zero are leaves: -1 - leaf. */
typedef struct {
    kc_id condition;
    kc_child left, right;
} kc_node;

/* The conditions that test one number: `from` is its place among the features, or among the numbers of the problem. */
typedef struct {
    int32_t first, count, from;
} kc_slot;

typedef void (*kc_group_function)(const double *v, const double *u, int32_t count, double *out);

/* Forests that score the configs of a pool. */
typedef struct {
    const double *thresholds, *leaves;
    const kc_node *nodes;
    const int32_t *rough; /* leaves in whole numbers */
    const uint32_t *first_node, *first_leaf;
    const int32_t *first_tree;
    const kc_slot *features, *problem_slots;
    int32_t forests, conditions, first_rule, feature_count, problem_slot_count, depth;
#if KC_LOADED
    const kc_part_group *groups;
    const int32_t *parts;
    int32_t group_count, part_count;
#else
    const kc_group_function *compute; /* by group of features: its outputs for all combinations */
#endif
} kc_trees;

/* The distinct combinations of some parts of the configs, and which of them each config has. `bits`: the first of its sets of
   configs, or -1 where there are too many of them. */
typedef struct {
    int32_t count, bits;
    const kc_member *member;
    const double *values;
} kc_pool_group;

typedef struct {
    int32_t first, count, row, group, output;
} kc_pool_slot;

/* The configs of a tier. Without trees they are scored one by one. */
typedef struct {
    const kc_trees *trees;
    const int32_t *members, *band_of;
    const kc_member *band;
    const kc_pool_group *groups;
    const kc_pool_slot *slots, *static_slots;
    int32_t configs, words, group_count, slot_count, static_slot_count, bands, rows, bits, most_combinations, most_outputs;
    int32_t screens;  /* rounded sums first find the configs that may be the best */
    int32_t imitates; /* its forest orders configs as the model does, without times */
} kc_pool;

/* `quick` is the portfolio, ranked by a small forest. */
enum { KC_PORTFOLIO, KC_FULL, KC_QUICK, KC_POOLS };

typedef struct {
    kc_comparing_id feature, left, right;
} kc_comparing_node;

typedef struct kerncast_model kc_model;

struct kerncast_model {
    kc_space problem, config;
    const kc_parameter *hull;
    const kc_fact *facts;
    const char *const *rules, *const *family_rules, *const *config_rules;
    int32_t fact_count, features, candidates, stored;
    const int32_t *stored_candidates; /* those that the tables hold, where they do not hold all */
    const kc_config_number *configs;
    const double *tried_low, *tried_high;
    const uint64_t *tried_labels;
    const kc_band *tried_band;
    const char *const *label_names;
    const int32_t *label_places, *label_texts;
    const int64_t *label_values;
    int32_t label_variants, label_keys, denied_count, pin_count, fallback_count;
    const int32_t *denied, *pin_candidates, *fallbacks;
    const int64_t *pin_keys;
    const char *fallback_words, *describe;
    /* intervals, by time, rarity and size, and the expected efficiency */
    const double *band_edges, *band_lower, *band_upper, *rare_edges, *size_edges, *size_lower, *size_upper;
    const double *efficiency_edges, *efficiency, *trait_bits;
    const int64_t *trait_values;
    const kc_trait *traits;
    int32_t bands, rare_bands, size_bands, efficiency_bands, trait_count;
    /* from what is learned to times and scores; `base` is a place among the numbers of the problem, or -1 */
    int32_t target_log, target_rate, target_base, target_tflops;
    int32_t time_forests, rank_forests, failure_forests, library_forests;
    double own, weight, rough_scale, rough_error;
    kc_trees model, small;
    kc_pool pools[KC_POOLS];
    /* the tree, and the few trees that compare the configs of a list */
    const int32_t *tree_feature, *tree_left, *tree_right, *tree_list, *tree_members, *comparing_root;
    const double *tree_threshold, *comparing_threshold, *comparing_leaves, *compared_configs;
    const kc_place *tree_lists, *tree_compares;
    const kc_comparing_node *comparing_nodes;
    int32_t has_tree, tree_nodes, tree_places, comparing_count, comparing_first, compared_by_all;
    int32_t compared_of_problem, compared_of_config;
#if KC_LOADED
    kc_loaded loaded;
#endif
};

/* -- a context --------------------------------------------------------------------------------------- */

typedef struct {
    uint64_t hash;
    kerncast_tier asked;
    int64_t key[KC_MOST_PROBLEM];
    int32_t candidate;
    double time_ns;
    int32_t interval;
    kerncast_pin_state pin;
} kc_memo;

/* A choice made by a call: for problems that agree wherever `key` says something; -1 leaves them to the model. */
typedef struct {
    int64_t key[KC_MOST_PROBLEM];
    int32_t candidate;
} kc_pin;

/* What a pool works in: sets of configs, and their sums by forest. A condition is the set of configs that meet it, in a pool of one
   word; else the row of that set: 0 for none, 1 for all. */
typedef struct {
    uint64_t *words_of;
    kc_id *rows_of, *row_of_bin, *bin_of;
    uint64_t *rows, *bits, *valid, *sets, *tried, *tried_here;
    uint64_t *there; /* the configs that are available */
    double *sums, *out;
    int32_t *rough;
    int32_t (*eight)[8];
} kc_pool_state;

struct kerncast_context {
#if KC_LOADED
    kc_model m; /* a copy with memory of its own: what is read for every answer is one step away */
#endif
    kc_memo *memo;
    uint64_t turn;
    double *score, *time_ns;
    unsigned char *allowed, *available; /* available: by candidate, whether it may be chosen */
    kc_pin *pin;
    int32_t pins;
    kc_pool_state states[KC_POOLS];
};

#if KC_LOADED
static const kc_model kc_no_model;
#define KC_MODEL_OF(context) ((context) == NULL ? &kc_no_model : &(context)->m)
#else
static const kc_model kc_this;
#define KC_MODEL_OF(context) (&kc_this)
#endif

