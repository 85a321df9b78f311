/* Lines are in the order of their keys; the last one, of all rows, is for an unknown key. */
static double kc_line_time(const double *key, double size) {
    int32_t low = 0, high = KC_LINES, found = KC_LINES;
    while (low < high) {
        const int32_t middle = (low + high) / 2;
        const double *at = kc_line_keys + (ptrdiff_t)middle * KC_LINE_COLUMNS;
        int order = 0;
        for (int32_t i = 0; i < KC_LINE_COLUMNS && order == 0; i++) order = key[i] < at[i] ? -1 : key[i] > at[i];
        if (order == 0) {
            found = middle;
            break;
        }
        if (order < 0) high = middle;
        else low = middle + 1;
    }
    const double *line = kc_lines + (ptrdiff_t)found * 3;
    const double time_ns = line[0] + line[1] * size, least = line[2] / 10.0;
    return time_ns > least ? time_ns : least;
}
