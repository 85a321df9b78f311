/* A name is a label whose ASCII letters may be of either case. */
typedef enum { QUERY_NUMBER, QUERY_FLAG, QUERY_LABEL, QUERY_NAME } query_kind;
typedef struct { const char *name; size_t length; int64_t code; } query_label;
/* `rule` completes "must be"; `nullable`: where it does not apply, null says so. */
typedef struct {
    const char *name;
    size_t length;
    const char *rule;
    query_kind kind;
    bool nullable;
    const query_label *labels;
    size_t label_count;
} query_parameter;
typedef struct { const query_parameter *parameters; size_t count; } query_space;
/* A number that stands for a label, and the label's code. */
typedef struct { int64_t given, code; } query_code;
/* A key of a request: the keys inside it, and what a value there says of which parameters (none: nothing). */
typedef struct {
    const char *name;
    size_t length;
    const char *path;
    size_t first_child, children, first_place, places;
    int64_t present; /* the flag that an object here sets, or -1 */
    int64_t product; /* what is given here instead of two sizes, or -1 */
    bool leaf, once;
    const query_label *names;
    size_t name_count;
    const query_code *numbers;
    size_t number_count;
} query_node;
/* A number that may be given instead of the two sizes whose product it is; `needs` says why not, or is NULL. */
typedef struct {
    const char *name, *rule, *parted, *needs;
    int64_t most;
    size_t first;
    int64_t first_low, first_high, first_step;
    size_t second;
    int64_t second_low, second_high, second_step;
} query_product;
/* What a name of the op says of a parameter. */
typedef struct { int64_t name; size_t place; int64_t value; } query_assignment;
/* What a model was trained on: as a whole, the value of a part, or NAME=VALUE, whose value begins at `value`. */
typedef struct { const char *name; size_t length, value; bool hexadecimal; } query_software_name;
/* A value that equals another parameter's (or its default, if that is not given) is written as `value`. */
typedef struct { size_t place, as; int64_t otherwise, value; } query_same_as;
