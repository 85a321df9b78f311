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

/* What all measured values of a parameter have in common. */
typedef struct {
    int32_t parameter;
    int64_t step, rest;
    const char *rule;
} kc_fact;

#define KC_ALIGNMENT 64
#define KC_MISSING KERNCAST_MISSING
