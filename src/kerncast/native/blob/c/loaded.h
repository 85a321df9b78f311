/* -- what only a loaded model has ------------------------------------------------------------------------ */

#define KC_LANES 32
/* A context that needs more memory than this is no model that kerncast exports. */
#define KC_MOST_BYTES ((size_t)1 << 28)

enum { @FACTS@, KC_FACTS_STORED };
enum { @NUMBERS@, KC_NUMBERS_STORED };
enum { @OPERATIONS@, KC_OPERATIONS };
enum { KC_GBDT, KC_LEVEL, KC_LINEAR, KC_NETWORK, KC_KINDS };

/* A group of features: its program, and how many parts of a config it reads. */
typedef struct { int32_t program, parts; } kc_part_group;
typedef struct { uint16_t operation, a, b, c; } kc_step;

/* Registers are constants, inputs, results, in this order. `inputs` are places in what the program is given. */
typedef struct {
    const double *constants;
    const uint16_t *inputs, *outputs;
    const kc_step *steps;
    int32_t constant_count, input_count, step_count, output_count;
} kc_program;

typedef struct { int32_t operation, source, offset, rows, weights, bias, columns, rectify, target; } kc_layer;

/* Memory that a model keeps, in a list. */
typedef struct kc_block { struct kc_block *next; } kc_block;

typedef struct {
    kc_block *blocks;
    const char *text;
    const int64_t *facts;
    const double *numbers;
    const int32_t *applies[2], *usual[2], *labels[2];
    const kc_program *programs;
    const double *lookup_values;
    const int32_t *lookup_first, *lookup_sizes;
    int32_t kind, values, raw, program_count, tables, lookup_size_count, most_registers;
    const double *line_keys, *lines, *weights, *spread, *codes;
    const int32_t *line_reads, *plain, *coded;
    const kc_layer *layers;
    int32_t line_count, line_columns, layer_count, plain_count, coded_count, widest;
    const int64_t *golden_problems, *golden_configs;
    const int32_t *golden_candidates;
    const double *golden_times, *golden_features;
    int32_t golden_count;
    unsigned char *holds; /* memory to work in, of a context's own copy */
    double *registers, *layer;
} kc_loaded;

