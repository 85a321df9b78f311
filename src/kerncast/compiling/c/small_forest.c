static inline void kc_small_result(const double *v, const double *raw, double *time_ns, double *score) {
    (void)v;
    *time_ns = -1.0;
    *score = -raw[0];
}
