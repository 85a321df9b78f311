typedef struct {
    int32_t what, one, other, first, count;
    double unseen;
} kc_trait;
