/* -- a loaded model ---------------------------------------------------------------------------------- */

#define KC_MOST_DEPTH 1024
#define KC_LANES 32
/* A context that needs more memory than this is no model that kerncast exports. */
#define KC_MOST_BYTES ((size_t)1 << 28)

enum { @FACTS@, KC_FACTS_STORED };
enum { @NUMBERS@, KC_NUMBERS_STORED };
enum { @OPERATIONS@, KC_OPERATIONS };
enum { KC_GBDT, KC_LEVEL, KC_LINEAR, KC_NETWORK, KC_KINDS };

typedef uint16_t kc_trees_id;
typedef struct { kc_trees_id condition; int16_t left, right; } kc_trees_node;
typedef kc_trees_node kc_model_node;
typedef struct { int32_t first, count, feature; } kc_feature_slot;
typedef struct { int32_t first, count, value; } kc_problem_slot;
typedef struct { int32_t program, parts; } kc_part_group;
typedef struct { int32_t first, count, row, group, output; } kc_pool_slot;
typedef struct { int32_t count, bits; const uint16_t *member; const double *values; } kc_pool_group;
typedef struct { uint16_t operation, a, b, c; } kc_step;
typedef struct { int32_t feature, left, right; } kc_comparing_node;
typedef int32_t kc_place;

/* Registers are constants, inputs, results, in this order. `inputs` are places in what the program is given. */
typedef struct {
    const double *constants;
    const uint16_t *inputs, *outputs;
    const kc_step *steps;
    int32_t constant_count, input_count, step_count, output_count;
} kc_program;

typedef struct {
    const double *thresholds, *leaves;
    const kc_trees_node *nodes;
    const int32_t *rough;
    const int32_t *first_node, *first_leaf, *first_tree;
    const kc_feature_slot *features;
    const kc_problem_slot *problem_slots;
    const kc_part_group *groups;
    const int32_t *parts;
    int32_t forests, conditions, first_rule, depth, most_thresholds, feature_count, problem_slot_count, group_count, part_count;
} kc_trees;

typedef struct {
    uint64_t *words_of;
    kc_trees_id *rows_of, *row_of_bin, *bin_of;
    uint64_t *rows, *bits, *valid, *there, *sets, *tried, *tried_here;
    double *sums, *out;
    int32_t *rough;
    int32_t (*eight)[8];
} kc_pool_state;

/* The configs of a tier. Without trees they are computed one by one. */
typedef struct {
    const kc_trees *trees;
    kc_pool_state *state;
    const int32_t *members, *band_of;
    const uint16_t *band;
    const kc_pool_group *groups;
    const kc_pool_slot *slots, *static_slots;
    int32_t configs, words, group_count, slot_count, static_slot_count, bands, rows, bits, most_combinations, most_outputs;
    int32_t screens, imitates;
} kc_pool;

typedef struct { int32_t operation, source, offset, rows, weights, bias, columns, rectify, target; } kc_layer;

/* Memory that a model keeps, in a list. */
typedef struct kc_block { struct kc_block *next; } kc_block;

struct kerncast_model {
    kc_block *blocks;
    const char *text, *describe;
    const int64_t *facts;
    const double *numbers;
    const kc_parameter *problem_parameters, *config_parameters, *hull;
    const int32_t *problem_order, *config_order, *applies[2], *usual[2], *labels[2];
    const kc_fact *fact;
    const char *const *rules, *const *family_rules, *const *config_rules;
    const kc_program *programs;
    const double *lookup_values;
    const int32_t *lookup_first, *lookup_sizes;
    int32_t problem, config, candidates, features, values, kind, raw, facts_known, bands, rare_bands, size_bands, efficiency_bands;
    int32_t traits, fallback_count, denied_count, pin_count, label_variants, label_keys, program_count, tables, lookup_size_count, most_registers;
    int32_t has_tree, has_portfolio, has_full, has_quick, tree_nodes, tree_places, most_compared, compared_of_problem;
    int32_t compared_of_config, comparing_count;
    const int64_t *configs, *pin_keys, *label_values;
    const int32_t *label_places, *label_texts, *denied, *pin_candidates, *fallbacks, *tried_band;
    const double *tried_low, *tried_high;
    const uint64_t *tried_labels;
    const double *band_edges, *band_lower, *band_upper, *efficiency_edges, *efficiency, *rare_edges, *size_edges, *size_lower;
    const double *size_upper, *trait_bits;
    const kc_trait *trait;
    const int64_t *trait_values;
    kc_trees model, small;
    kc_pool portfolio, full, quick;
    const int32_t *portfolio_members, *full_members;
    const kc_comparing_node *comparing_nodes;
    const double *tree_threshold, *comparing_threshold, *comparing_leaves, *compared_configs;
    const int32_t *tree_feature, *tree_left, *tree_right, *tree_list, *tree_lists, *tree_compares, *comparing_root;
    const double *line_keys, *lines, *weights, *spread, *codes;
    const int32_t *line_reads, *plain, *coded;
    const kc_layer *layers;
    int32_t line_count, line_columns, layer_count, plain_count, coded_count, widest;
    const int64_t *golden_problems, *golden_configs;
    const int32_t *golden_candidates;
    const double *golden_times, *golden_features;
    int32_t golden_count;
    size_t context_bytes;
};

struct kerncast_context {
    struct kerncast_model m; /* a copy: what is read for every answer is one step away */
    kc_memo *memo;
    uint64_t turn;
    double *score, *time_ns;
    unsigned char *allowed, *available;
    kc_pin *pin;
    int32_t pins;
    unsigned char *holds;
    double *registers, *layer;
    kc_pool portfolio, full, quick;
    kc_pool_state states[3];
};

static const char *const kc_flag_names[2] = {"false", "true"};
/* A function that is given no context is refused before it reads anything of this one. */
static const kerncast_context kc_nothing;

#define KC_FACT(name) (kc->m.facts[KC_FACT_##name])
#define KC_NUMBER(name) (kc->m.numbers[KC_NUMBER_##name])
#define KC_PROBLEM (kc->m.problem)
#define KC_CONFIG (kc->m.config)
#define KC_CANDIDATES (kc->m.candidates)
/* A blob holds all candidates, and never a tree alone. */
#define KC_STORED KC_CANDIDATES
#define kc_stored(candidate) (candidate)
#define KC_TREE_ALONE 0
#define kc_tree_members kc_portfolio_members
#define KC_FEATURES (kc->m.features)
#define KC_FACTS (kc->m.facts_known)
#define KC_BANDS (kc->m.bands)
#define KC_RARE_BANDS (kc->m.rare_bands)
#define KC_SIZE_BANDS (kc->m.size_bands)
#define KC_EFFICIENCY_BANDS (kc->m.efficiency_bands)
#define KC_TRAITS (kc->m.traits)
#define KC_FALLBACKS (kc->m.fallback_count)
#define KC_DENIED (kc->m.denied_count)
#define kc_fallback_words (KC_FACT(FALLBACK_LIBRARY) ? @FALLBACK_LIBRARY@ : @FALLBACK_BEST@)
#define KC_PINS (kc->m.pin_count)
#define KC_LABEL_VARIANTS (kc->m.label_variants)
#define KC_LABEL_KEYS (kc->m.label_keys)
#define KC_HAS_TREE (kc->m.has_tree)
#define KC_HAS_PORTFOLIO (kc->m.has_portfolio)
#define KC_HAS_FULL (kc->m.has_full)
#define KC_HAS_QUICK (kc->m.has_quick)
#define KC_PORTFOLIO_CONFIGS (kc->m.portfolio.configs)
#define KC_FULL_CONFIGS (kc->m.full.configs)
#define KC_TREE_NODES (kc->m.tree_nodes)
#define KC_TREE_PLACES (kc->m.tree_places)
#define KC_MOST_COMPARED (kc->m.most_compared)
#define KC_COMPARED_OF_PROBLEM (kc->m.compared_of_problem)
#define KC_COMPARED_OF_CONFIG (kc->m.compared_of_config)
#define KC_COMPARING (kc->m.comparing_count)
#define KC_COMPARING_FIRST ((int32_t)KC_FACT(COMPARED_FIRST))
#define KC_COMPARED_BY_ALL ((int32_t)KC_FACT(COMPARED_BY_ALL))
#define KC_FAILURE_FORESTS ((int32_t)KC_FACT(VALID_FORESTS))
#define KC_FIRST_FAILURE_FOREST ((int32_t)(KC_FACT(TIME_FORESTS) + KC_FACT(RANK_FORESTS)))
#define KC_MODEL_FORESTS (kc->m.model.forests)
#define KC_MODEL_FEATURES (kc->m.model.feature_count)
#define KC_ROUGH_SCALE KC_NUMBER(ROUGH_SCALE)
#define KC_LINES (kc->m.line_count)
#define KC_LINE_COLUMNS (kc->m.line_columns)
#define kc_problem_parameters (kc->m.problem_parameters)
#define kc_config_parameters (kc->m.config_parameters)
#define kc_problem_order (kc->m.problem_order)
#define kc_config_order (kc->m.config_order)
#define kc_hull (kc->m.hull)
#define kc_facts (kc->m.fact)
#define kc_rules (kc->m.rules)
#define kc_family_rules (kc->m.family_rules)
#define kc_config_rules (kc->m.config_rules)
#define kc_band_edges (kc->m.band_edges)
#define kc_band_lower (kc->m.band_lower)
#define kc_band_upper (kc->m.band_upper)
#define kc_size_edges (kc->m.size_edges)
#define kc_size_lower (kc->m.size_lower)
#define kc_size_upper (kc->m.size_upper)
#define kc_efficiency_edges (kc->m.efficiency_edges)
#define kc_efficiency (kc->m.efficiency)
#define kc_rare_edges (kc->m.rare_edges)
#define kc_traits (kc->m.trait)
#define kc_trait_values (kc->m.trait_values)
#define kc_trait_bits (kc->m.trait_bits)
#define kc_fallbacks (kc->m.fallbacks)
#define kc_denied (kc->m.denied)
#define kc_pin_keys (kc->m.pin_keys)
#define kc_pin_candidates (kc->m.pin_candidates)
#define kc_tried_low (kc->m.tried_low)
#define kc_tried_high (kc->m.tried_high)
#define kc_tried_labels (kc->m.tried_labels)
#define kc_tried_band (kc->m.tried_band)
#define kc_label_values (kc->m.label_values)
#define kc_label_texts_of (kc->m.label_texts)
#define kc_label_places (kc->m.label_places)
#define kc_portfolio_members (kc->m.portfolio_members)
#define kc_full_members (kc->m.full_members)
#define kc_tree_feature (kc->m.tree_feature)
#define kc_tree_left (kc->m.tree_left)
#define kc_tree_right (kc->m.tree_right)
#define kc_tree_threshold (kc->m.tree_threshold)
#define kc_tree_list (kc->m.tree_list)
#define kc_tree_lists (kc->m.tree_lists)
#define kc_tree_compares (kc->m.tree_compares)
#define kc_comparing_root (kc->m.comparing_root)
#define kc_comparing_nodes (kc->m.comparing_nodes)
#define kc_comparing_threshold (kc->m.comparing_threshold)
#define kc_comparing_leaves (kc->m.comparing_leaves)
#define kc_compared_configs (kc->m.compared_configs)
#define kc_model_features (kc->m.model.features)
#define kc_model_thresholds (kc->m.model.thresholds)
#define kc_model_nodes (kc->m.model.nodes)
#define kc_model_leaves (kc->m.model.leaves)
#define kc_model_first_node (kc->m.model.first_node)
#define kc_model_first_leaf (kc->m.model.first_leaf)
#define kc_model_first_tree (kc->m.model.first_tree)
#define kc_line_keys (kc->m.line_keys)
#define kc_lines (kc->m.lines)
#define KC_POOL_CONFIGS (pool->configs)
#define KC_POOL_GROUPS (pool->group_count)
#define KC_POOL_SLOTS (pool->slot_count)
#define KC_POOL_STATIC_SLOTS (pool->static_slot_count)
#define KC_POOL_BANDS (pool->bands)
#define KC_POOL_SCREENS (pool->screens)
#define KC_TREES_FORESTS (pool->trees->forests)
#define KC_TREES_CONDITIONS (pool->trees->conditions)
#define KC_TREES_FIRST_RULE (pool->trees->first_rule)
#define KC_TREES_PROBLEM_SLOTS (pool->trees->problem_slot_count)
#define kc_pool_members (pool->members)
#define kc_pool_groups (pool->groups)
#define kc_pool_slots (pool->slots)
#define kc_pool_static_slots (pool->static_slots)
#define kc_pool_band (pool->band)
#define kc_pool_band_of (pool->band_of)
#define kc_trees_problem_slots (pool->trees->problem_slots)
#define kc_trees_thresholds (pool->trees->thresholds)
#define kc_trees_nodes (pool->trees->nodes)
#define kc_trees_leaves (pool->trees->leaves)
#define kc_trees_rough (pool->trees->rough)
#define kc_trees_first_node (pool->trees->first_node)
#define kc_trees_first_leaf (pool->trees->first_leaf)
#define kc_trees_first_tree (pool->trees->first_tree)

