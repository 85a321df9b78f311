/* out = in · weights + bias; weights row by row, inputs below zero as zero when `rectify`. */
static void kc_dense(const double *in, int32_t rows, const double *weights, const double *bias, int32_t columns, int rectify,
                     double *out) {
    for (int32_t j = 0; j < columns; j++) out[j] = bias == NULL ? 0.0 : bias[j];
    for (int32_t i = 0; i < rows; i++) {
        const double value = rectify && in[i] < 0.0 ? 0.0 : in[i];
        if (value == 0.0) continue;
        for (int32_t j = 0; j < columns; j++) out[j] += value * weights[(ptrdiff_t)i * columns + j];
    }
}
