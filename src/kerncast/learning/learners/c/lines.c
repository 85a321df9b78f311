/* Lines are in the order of their keys; the last one, of all rows, is for an unknown key. */
static double kc_line_time(const double *keys, const double *lines, int32_t count, int32_t columns, const double *key, double size) {
    int32_t low = 0, high = count, found = count;
    while (low < high) {
        const int32_t middle = (low + high) / 2;
        const double *at = keys + (ptrdiff_t)middle * columns;
        int order = 0;
        for (int32_t i = 0; i < columns && order == 0; i++) order = key[i] < at[i] ? -1 : key[i] > at[i];
        if (order == 0) {
            found = middle;
            break;
        }
        if (order < 0) high = middle;
        else low = middle + 1;
    }
    const double *line = lines + (ptrdiff_t)found * 3;
    const double time_ns = line[0] + line[1] * size, least = line[2] / 10.0;
    return time_ns > least ? time_ns : least;
}
