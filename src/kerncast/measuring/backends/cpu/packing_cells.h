/* The packers of one form of cells (see packing.h): a template, included once for each form.
 *
 *     KC_CELLS   the form's name: its functions begin with it
 *     KC_FROM    the type of an element as it is stored
 *     KC_TO      the type of a cell
 *     KC_GROUP   elements of a cell, 1 unless it says otherwise
 *     KC_COPY    1: a cell is an element as it is; 0 unless it says otherwise
 */

#ifndef KC_GROUP
#define KC_GROUP 1
#endif
#ifndef KC_COPY
#define KC_COPY 0
#endif
#define KC_OF(part) KC_JOINED(KC_CELLS, part)
#define KC_PICKED(...) KC_PICK_SPELLED(KC_OF(quad), __VA_ARGS__)

/* Transposing 4 × 4 at a time is what keeps packing cheap for short M or N. Rows that a cut strip has not are copies of
 * its last one, and steps that are left over are done again with those before them, so that cut strips are packed
 * by vectors as well. */
KC_INLINE void KC_OF(put)(KC_OF(quad) v, KC_TO *d, const int64_t width) {
    if (width >= 4) *(KC_OF(quad) *)d = v;
    else memcpy(d, &v, (size_t)width * sizeof(KC_TO));
}
KC_INLINE void KC_OF(four)(const KC_FROM *s0, const KC_FROM *s1, const KC_FROM *s2, const KC_FROM *s3, KC_TO *d,
                           const int64_t width) {
    KC_OF(quad) r0 = KC_OF(row)(s0), r1 = KC_OF(row)(s1), r2 = KC_OF(row)(s2), r3 = KC_OF(row)(s3);
    KC_OF(quad) x0 = KC_PICKED(r0, r1, 0, 4, 1, 5), x1 = KC_PICKED(r0, r1, 2, 6, 3, 7);
    KC_OF(quad) y0 = KC_PICKED(r2, r3, 0, 4, 1, 5), y1 = KC_PICKED(r2, r3, 2, 6, 3, 7);
    KC_OF(put)(KC_PICKED(x0, y0, 0, 1, 4, 5), d, width);
    KC_OF(put)(KC_PICKED(x0, y0, 2, 3, 6, 7), d + width, width);
    KC_OF(put)(KC_PICKED(x1, y1, 0, 1, 4, 5), d + 2 * width, width);
    KC_OF(put)(KC_PICKED(x1, y1, 2, 3, 6, 7), d + 3 * width, width);
}
KC_INLINE void KC_OF(transpose)(const KC_FROM *s, int64_t stride, KC_TO *d, const int64_t width) {
    KC_OF(four)(s, s + stride, s + 2 * stride, s + 3 * stride, d, width);
}
KC_INLINE void KC_OF(rest)(int64_t q, int64_t cells, int64_t k, int64_t valid, const KC_FROM *s, int64_t stride, int64_t step,
                        KC_TO *d, const int64_t width) {
    for (; q < cells; q++)
        for (int64_t i = 0; i < width; i++) {
            const int64_t left = k - q * KC_GROUP;
            const KC_FROM *from = s + i * stride + q * KC_GROUP * step;
            d[q * width + i] = i < valid && left > 0 ? KC_OF(cell)(from, step, left < KC_GROUP ? left : KC_GROUP) : (KC_TO)0;
        }
}
KC_INLINE void KC_OF(transpose2)(const KC_FROM *s0, const KC_FROM *s1, KC_TO *d, const int64_t width) {
    KC_OF(quad) r0 = KC_OF(row)(s0), r1 = KC_OF(row)(s1);
    KC_OF(quad) x0 = KC_PICKED(r0, r1, 0, 4, 1, 5), x1 = KC_PICKED(r0, r1, 2, 6, 3, 7);
    memcpy(d, &x0, 2 * sizeof(KC_TO)), memcpy(d + width, (KC_TO *)&x0 + 2, 2 * sizeof(KC_TO));
    memcpy(d + 2 * width, &x1, 2 * sizeof(KC_TO)), memcpy(d + 3 * width, (KC_TO *)&x1 + 2, 2 * sizeof(KC_TO));
}
/* 16 cells of K: a whole cache line of a group of rows before the next group evicts it. */
KC_INLINE void KC_OF(block)(const KC_FROM *s, int64_t stride, KC_TO *d, const int64_t width) {
    int64_t i = 0;
    if (KC_COPY && sizeof(KC_TO) == 4 && width % 8 == 0)
        for (; i < width; i += 8) {
            kc_transpose8((const float *)(s + i * stride), stride, (float *)(d + i), width);
            kc_transpose8((const float *)(s + i * stride + 8), stride, (float *)(d + 8 * width + i), width);
        }
    for (; i < width; i += 4) {
        const int64_t g = i + 4 <= width || width % 4 == 2 ? i : width - 4;
        const KC_FROM *row = s + g * stride;
        for (int64_t p = 0; p < 16; p += 4, row += 4 * KC_GROUP)
            if (i + 4 > width && width % 4 == 2) KC_OF(transpose2)(row, row + stride, d + p * width + g, width);
            else KC_OF(transpose)(row, stride, d + p * width + g, width);
    }
}
KC_INLINE void KC_OF(pack_rows)(int64_t k, int64_t valid, const KC_FROM *s, int64_t stride, KC_TO *d, const int64_t width,
                             const int64_t unit) {
    const int64_t whole = k / KC_GROUP < 4 ? 0 : k / KC_GROUP, last = valid - 1;
    if (width == 1 && KC_COPY) {
        memcpy(d, s, (size_t)k * sizeof(KC_TO));
        return;
    }
    int64_t q = 0;
    for (; width >= 4 && valid == width && q + 16 <= whole; q += 16) KC_OF(block)(s + q * KC_GROUP, stride, d + q * width, width);
    for (; q < whole; q += 16)
        for (int64_t i = 0; i < width; i += 4) {
            const int64_t g = i + 4 <= width ? i : width > 4 ? width - 4 : 0, end = q + 16 < whole ? q + 16 : whole;
            const KC_FROM *s0 = s + (g < last ? g : last) * stride, *s1 = s + (g + 1 < last ? g + 1 : last) * stride;
            const KC_FROM *s2 = s + (g + 2 < last ? g + 2 : last) * stride, *s3 = s + (g + 3 < last ? g + 3 : last) * stride;
            for (int64_t p = q; p < end; p += 4) {
                const int64_t at = p + 4 <= whole ? p : whole - 4, e = at * KC_GROUP;
                KC_OF(four)(s0 + e, s1 + e, s2 + e, s3 + e, d + at * width + g, width);
            }
        }
    KC_OF(rest)(whole, (k + unit - 1) / unit * unit / KC_GROUP, k, valid, s, stride, 1, d, width);
}
KC_INLINE void KC_OF(cut_column)(int64_t valid, const KC_FROM *s, int64_t stride, KC_TO *d, const int64_t width) {
    memset(d, 0, (size_t)width * sizeof(KC_TO));
    for (int64_t i = 0; valid >= 4 && i < valid; i += 4) {
        const int64_t g = i + 4 <= valid ? i : valid - 4;
        *(KC_OF(quad) *)(d + g) = KC_OF(column)(s + g, stride);
    }
    for (int64_t i = 0; valid < 4 && i < valid; i++) d[i] = KC_OF(cell)(s + i, stride, KC_GROUP);
}
KC_INLINE void KC_OF(pack_kmajor)(int64_t k, int64_t valid, const KC_FROM *s, int64_t stride, KC_TO *d, const int64_t width,
                               const int64_t unit) {
    const int64_t whole = k / KC_GROUP;
    if (valid < width)
        for (int64_t q = 0; q < whole; q++) KC_OF(cut_column)(valid, s + q * KC_GROUP * stride, stride, d + q * width, width);
    else if (KC_COPY)
        for (int64_t q = 0; q < whole; q++) memcpy(d + q * width, s + q * stride, (size_t)width * sizeof(KC_TO));
    else
        for (int64_t q = 0; q < whole; q++) {
            const KC_FROM *from = s + q * KC_GROUP * stride;
            int64_t i = 0;
            for (; i + 4 <= width; i += 4) *(KC_OF(quad) *)(d + q * width + i) = KC_OF(column)(from + i, stride);
            for (; i < width; i++) d[q * width + i] = KC_OF(cell)(from + i, stride, KC_GROUP);
        }
    KC_OF(rest)(whole, (k + unit - 1) / unit * unit / KC_GROUP, k, valid, s, 1, stride, d, width);
}

#undef KC_OF
#undef KC_PICKED
#undef KC_CELLS
#undef KC_FROM
#undef KC_TO
#undef KC_GROUP
#undef KC_COPY
