typedef struct {
    uint64_t hash;
    kerncast_tier asked;
    int64_t key[KC_PROBLEM];
    int32_t candidate;
    double time_ns;
} kc_memo;
