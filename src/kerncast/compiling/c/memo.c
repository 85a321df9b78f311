typedef struct {
    uint64_t hash;
    kerncast_tier asked;
    int64_t key[KC_PROBLEM];
    int32_t candidate;
    double time_ns;
    int32_t interval;
    kerncast_pin_state pin;
} kc_memo;

/* A choice made by a call: for problems that agree wherever `key` says something; -1 leaves them to the model. */
typedef struct {
    int64_t key[KC_PROBLEM];
    int32_t candidate;
} kc_pin;
