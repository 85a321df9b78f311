/* Four configs, or four words of a set, at a time. */
#if defined(__GNUC__)
typedef double kc_lanes __attribute__((vector_size(32), aligned(8), may_alias));
typedef int64_t kc_masks __attribute__((vector_size(32)));
typedef uint64_t kc_words __attribute__((vector_size(32), aligned(8), may_alias));
typedef int32_t kc_whole __attribute__((vector_size(32), aligned(4), may_alias));
static const kc_masks kc_nibble[16] = {
    {0, 0, 0, 0},  {-1, 0, 0, 0},  {0, -1, 0, 0},  {-1, -1, 0, 0},  {0, 0, -1, 0},  {-1, 0, -1, 0},  {0, -1, -1, 0},  {-1, -1, -1, 0},
    {0, 0, 0, -1}, {-1, 0, 0, -1}, {0, -1, 0, -1}, {-1, -1, 0, -1}, {0, 0, -1, -1}, {-1, 0, -1, -1}, {0, -1, -1, -1}, {-1, -1, -1, -1}};
#endif
