#include <math.h>
#include <stddef.h>

static inline double kc_saturate(double x) {
    return x > @LARGEST@ ? @LARGEST@ : x < -@LARGEST@ ? -@LARGEST@ : x;
}
static inline double kc_read(double x) { return x != x ? 0.0 : kc_saturate(x); }
static inline double kc_div(double a, double b) { return b == 0.0 ? 0.0 : kc_saturate(a / b); }
static inline double kc_min(double a, double b) { return b < a ? b : a; }
static inline double kc_max(double a, double b) { return b > a ? b : a; }
static inline double kc_sqrt(double x) { return x > 0.0 ? sqrt(x) : 0.0; }
static inline double kc_log2(double x) { return log(kc_max(x, @SMALLEST@)) / @LN_TWO@; }
static inline double kc_log1p(double x) { return log1p(kc_max(x, @ABOVE_MINUS_ONE@)); }
static inline size_t kc_index(double i, size_t size) {
    return i >= (double)size ? size - 1 : i >= 1.0 ? (size_t)i : 0;
}
