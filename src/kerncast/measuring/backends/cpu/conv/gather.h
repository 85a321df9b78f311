/* Result pixels from source pixels: the forward direction, and the gradient of the input. */

/* Strips of result channels (rows of a tile, or its vectors), each a matrix of all that is summed: blocks of `depth`
 * channels, in them taps, in these channels. */
static void TYPED(pack_weights)(const plan *p, const phase *f, int64_t g, int64_t depth, T *d) {
    const int64_t unit = p->channels_last ? p->lanes : 1, sum = f->taps * p->cs;
    const parts strips = in_parts(divide_up(p->cd, unit), p->channels_last ? p->nv : p->mr), blocks = in_parts(p->cs, depth);
    const T *weights = (const T *)p->other + g * p->cd * p->cs * p->filter[D] * p->filter[H] * p->filter[W];
    for (int64_t s = 0; s < strips.count; s++) {
        const int64_t c0 = begin(strips, s) * unit, width = begin(strips, s + 1) * unit - c0;
        T *to = d + c0 * sum;
        for (int64_t b = 0; b < blocks.count; b++)
            for (int64_t t = 0; t < f->taps; t++) {
                const int64_t k0 = begin(blocks, b), k = begin(blocks, b + 1) - k0;
                const T *from = weights + c0 * p->tap_result + k0 * p->tap_source + f->tap[t] * p->tap_tap;
                TYPED(pack)(from, p->tap_result, p->tap_source, least(width, p->cd - c0), width, k, to);
                to += k * width;
            }
    }
}

/* A tile, put in place where it is cut. (i, j) are rows and vectors; `si`, `sj` how far apart the result has them. */
static inline void TYPED(compute)(const plan *p, int64_t entries, const int64_t *ao, const int64_t *bo, int64_t k, const T *a,
                                  int64_t sa, int64_t ka, const T *b, int64_t sb, T *c, int64_t si, int64_t sj, int64_t rows,
                                  int64_t columns, int add, T *tile) {
    const int64_t vectors = divide_up(columns, p->lanes), width = vectors * p->lanes;
    tile_fn *fn = tile_of(p, rows, vectors);
    if (sj == 1 && columns == width) {
        fn(entries, ao, bo, k, a, sa, ka, b, sb, c, si, add);
        return;
    }
    fn(entries, ao, bo, k, a, sa, ka, b, sb, tile, width, 0);
    TYPED(put)(c, si, sj, tile, width, rows, columns, add);
}

/* ---- direct: tiles of one row of result pixels, read where they are staged ---------------------- */

typedef struct {
    const T *source, *weights;
    T *result, *tile;
    const int64_t *offsets; /* of the taps in a strip of weights */
    int64_t c0, c1, width, k; /* result channels of the strip; its width; channels that are summed */
    int add;
} TYPED(strip);

/* The tiles of one row from x0 to x1 (channels first: counted in vectors); `source` and `result` are where it begins. */
static void TYPED(direct_row)(const plan *p, const phase *f, const TYPED(strip) *s, const T *source, T *result, int64_t x0,
                              int64_t x1) {
    const int64_t step = f->step[W] * p->to.pixel, apart = p->source_step[W] * p->staged.pixel;
    if (p->channels_last) {
        const parts tiles = in_parts(x1 - x0, p->mr);
        for (int64_t t = 0; t < tiles.count; t++) {
            const int64_t x = x0 + begin(tiles, t), rows = x0 + begin(tiles, t + 1) - x;
            TYPED(compute)(p, f->taps, f->offset, s->offsets, s->k, source + x * apart, apart, 1, s->weights, s->width,
                           result + x * step, step, 1, rows, s->c1 - s->c0, s->add, s->tile);
        }
        return;
    }
    const parts tiles = in_parts(x1 - x0, p->nv);
    for (int64_t t = 0; t < tiles.count; t++) {
        const int64_t x = (x0 + begin(tiles, t)) * p->lanes, end = (x0 + begin(tiles, t + 1)) * p->lanes;
        const int64_t columns = least(end, f->count[W]) - x;
        TYPED(compute)(p, f->taps, s->offsets, f->offset, s->k, s->weights, 1, s->width, source + x, p->staged.channel,
                       result + x * step, p->to.channel, step, s->c1 - s->c0, columns, s->add, s->tile);
    }
}

/* One strip over a block of rows [r0, r1) and [x0, x1) of each. */
static void TYPED(direct_strip)(const plan *p, const phase *f, const TYPED(strip) *s, int64_t r0, int64_t r1, int64_t x0,
                                int64_t x1) {
    for (int64_t r = r0; r < r1; r++) {
        const int64_t z = r / f->count[H], y = r % f->count[H];
        TYPED(direct_row)(p, f, s, s->source + z * p->source_step[D] * p->staged.slice + y * p->source_step[H] * p->staged.row,
                          s->result + (f->start[D] + z * f->step[D]) * p->to.slice + (f->start[H] + y * f->step[H]) * p->to.row
                              + f->start[W] * p->to.pixel, x0, x1);
    }
}

static void TYPED(direct_group)(const plan *p, const phase *f, int64_t g, const T *source, T *result, char *memory) {
    const int64_t unit = p->channels_last ? p->lanes : 1, across = p->channels_last ? 1 : p->lanes, sum = f->taps * p->cs;
    const parts strips = in_parts(divide_up(p->cd, unit), p->channels_last ? p->nv : p->mr), depths = in_parts(p->cs, p->kc);
    const parts blocks = in_parts(f->count[D] * f->count[H], most(1, p->nc / f->count[W]));
    const parts spans = in_parts(divide_up(f->count[W], across), most(1, p->nc / across));
    const T *packed = (const T *)(memory + p->packed_at) + f->packed + g * strips.extent * unit * sum;
    int64_t *offsets = (int64_t *)(memory + p->lists_at);
    for (int64_t b = 0; b < blocks.count * spans.count; b++)
        for (int64_t d = 0; d < depths.count; d++)
            for (int64_t s = 0; s < strips.count; s++) {
                const int64_t row = b / spans.count, span = b % spans.count;
                const int64_t k0 = begin(depths, d), k = begin(depths, d + 1) - k0;
                const int64_t c0 = begin(strips, s) * unit, width = begin(strips, s + 1) * unit - c0;
                for (int64_t t = 0; t < f->taps; t++) offsets[t] = t * k * width;
                const TYPED(strip) strip = {source + k0 * p->staged.channel, packed + c0 * sum + k0 * f->taps * width,
                    result + (g * p->cd + c0) * p->to.channel, (T *)(memory + p->tile_at), offsets, c0, least(c0 + width, p->cd),
                    width, k, d > 0};
                TYPED(direct_strip)(p, f, &strip, begin(blocks, row), begin(blocks, row + 1), begin(spans, span), begin(spans, span + 1));
            }
}

/* ---- im2col: columns of a block of pixels, and the product with the weights --------------------- */

/* Channels first: strips of neighbouring pixels, each a matrix of all columns [q0, q1). */
static void TYPED(pixel_strips)(const plan *p, const phase *f, const T *s, const TYPED(pixel) *list, int64_t count, int64_t q0,
                                int64_t q1, T *d, int64_t *places) {
    const parts tiles = in_parts(divide_up(count, p->lanes), p->nv);
    for (int64_t t = 0; t < tiles.count; t++) {
        const int64_t x = begin(tiles, t) * p->lanes, width = begin(tiles, t + 1) * p->lanes - x, valid = least(width, count - x);
        T *to = d + x * (q1 - q0);
        for (int64_t q = q0; q < q1;) {
            const int64_t tap = q / p->cs, channel = q - tap * p->cs, n = least(p->cs - channel, q1 - q);
            int64_t inside = 1;
            for (int64_t i = 0; i < width; i++) {
                places[i] = i < valid ? TYPED(element)(p, f, list + x + i, tap) : -1;
                inside &= places[i] >= 0 && places[i] == places[0] + i;
            }
            const T *from = s + channel * p->from.channel;
            for (int64_t c = 0; c < n; c++, from += p->from.channel, to += width) {
                if (inside) memcpy(to, from + places[0], (size_t)width * sizeof(T));
                else TYPED(column)(from, places, width, to, 1);
            }
            q += n;
        }
    }
}

/* Where a tile of neighbouring pixels goes: one after the other where they lie so, else pixel by pixel. */
static void TYPED(pixels_tile)(const plan *p, const TYPED(pixel) *list, int64_t pixels, int64_t channels, const T *a, int64_t sa,
                               int64_t ka, const T *b, int64_t sb, int64_t k, T *c, int add, T *tile) {
    const int64_t pitch = p->to.pixel, last = p->channels_last;
    if (list[pixels - 1].result - list[0].result == (pixels - 1) * pitch) {
        TYPED(compute)(p, 1, NOWHERE, NOWHERE, k, a, sa, ka, b, sb, c + list[0].result, last ? pitch : p->to.channel, 1,
                       last ? pixels : channels, last ? channels : pixels, add, tile);
        return;
    }
    const int64_t rows = last ? pixels : channels, vectors = divide_up(last ? channels : pixels, p->lanes);
    const int64_t width = vectors * p->lanes;
    tile_of(p, rows, vectors)(1, NOWHERE, NOWHERE, k, a, sa, ka, b, sb, tile, width, 0);
    for (int64_t i = 0; i < pixels; i++)
        TYPED(put)(c + list[i].result, p->to.channel, p->to.channel, tile + (last ? i * width : i), width, last ? 1 : channels,
                   last ? channels : 1, add);
}

static void TYPED(im2col_block)(const plan *p, const phase *f, int64_t g, const TYPED(pixel) *list, int64_t first, int64_t count,
                                int64_t q0, int64_t q1, const T *packed, char *memory, int64_t *places) {
    const int64_t unit = p->channels_last ? p->lanes : 1, sum = f->taps * p->cs, k = q1 - q0;
    const parts strips = in_parts(divide_up(p->cd, unit), p->channels_last ? p->nv : p->mr);
    const parts tiles = p->channels_last ? in_parts(count, p->mr) : in_parts(divide_up(count, p->lanes), p->nv);
    const T *source = (const T *)p->source + g * p->cs * p->from.channel, *columns = (T *)(memory + p->columns_at);
    T *filled = (T *)(memory + p->columns_at), *tile = (T *)(memory + p->tile_at);
    int64_t pitch = k + COLUMN_PAD;
    if (!p->channels_last) TYPED(pixel_strips)(p, f, source, list, count, q0, q1, filled, places);
    else if (p->copies) for (int64_t i = 0; i < count; i++) TYPED(pixel_columns)(p, f, source, list + i, q0, q1, filled + i * pitch);
    else columns = source + first * p->from.pixel + q0, pitch = p->from.pixel;
    for (int64_t s = 0; s < strips.count; s++) {
        const int64_t c0 = begin(strips, s) * unit, width = begin(strips, s + 1) * unit - c0;
        const int64_t channels = least(width, p->cd - c0);
        const T *weights = packed + c0 * sum + q0 * width;
        T *c = (T *)p->result + (g * p->cd + c0) * p->to.channel;
        for (int64_t t = 0; t < tiles.count; t++) {
            if (p->channels_last) {
                const int64_t x = begin(tiles, t), rows = begin(tiles, t + 1) - x;
                TYPED(pixels_tile)(p, list + x, rows, channels, columns + x * pitch, pitch, 1, weights, width, k, c, q0 > 0, tile);
            } else {
                const int64_t x = begin(tiles, t) * p->lanes, wide = begin(tiles, t + 1) * p->lanes - x;
                TYPED(pixels_tile)(p, list + x, least(wide, count - x), channels, weights, 1, width, columns + x * k, wide, k, c,
                                   q0 > 0, tile);
            }
        }
    }
}

static void TYPED(im2col_group)(const plan *p, const phase *f, int64_t g, char *memory) {
    const int64_t unit = p->channels_last ? p->lanes : 1, sum = f->taps * p->cs;
    const parts blocks = in_parts(p->images * f->count[D] * f->count[H] * f->count[W], p->nc), depths = in_parts(sum, p->kc);
    const T *packed = (const T *)(memory + p->packed_at) + f->packed + g * divide_up(p->cd, unit) * unit * sum;
    int64_t *places = (int64_t *)(memory + p->lists_at);
    TYPED(pixel) *list = (TYPED(pixel) *)(places + p->nv * p->lanes);
    for (int64_t b = 0; b < blocks.count; b++) {
        const int64_t first = begin(blocks, b), count = begin(blocks, b + 1) - first;
        TYPED(list_pixels)(p, f, first, count, list);
        for (int64_t d = 0; d < depths.count; d++)
            TYPED(im2col_block)(p, f, g, list, first, count, begin(depths, d), begin(depths, d + 1), packed, memory, places);
    }
}

/* ---- depthwise: a channel of the result meets one channel, or a few, of the source -------------- */

/* Channels last: weights as [tap][channel of the group][result channel]; first: [result channel][tap][channel]. */
static void TYPED(pack_depthwise)(const plan *p, const phase *f, T *d) {
    const int64_t filter = p->filter[D] * p->filter[H] * p->filter[W], all = p->groups * p->cd;
    const int64_t wide = divide_up(all, p->lanes) * p->lanes;
    for (int64_t c = 0; c < wide; c++)
        for (int64_t t = 0; t < f->taps; t++)
            for (int64_t j = 0; j < p->cs; j++) {
                const int64_t at = c / p->cd * p->cd * p->cs * filter + c % p->cd * p->tap_result + j * p->tap_source;
                const T w = c < all ? ((const T *)p->other)[at + f->tap[t] * p->tap_tap] : 0;
                d[p->channels_last ? (t * p->cs + j) * wide + c : (c * f->taps + t) * p->cs + j] = w;
            }
}

/* Where taps lie in the source and among the packed weights. */
typedef struct {
    int64_t *source, *weights, count;
} TYPED(taps);

/* The taps of a row of result pixels, and of one of its pixels unless x < 0, that meet the source. */
static void TYPED(taps_within)(const plan *p, const phase *f, int64_t z, int64_t y, int64_t x, int64_t wide, TYPED(taps) *taps) {
    taps->count = 0;
    for (int64_t t = 0; t < f->taps; t++) {
        const int64_t sz = z * p->source_step[D] + f->at[3 * t + D], sy = y * p->source_step[H] + f->at[3 * t + H];
        const int64_t sx = x < 0 ? 0 : x * p->source_step[W] + f->at[3 * t + W];
        if (p->clips && (sz < 0 || sz >= p->source_size[D] || sy < 0 || sy >= p->source_size[H] || sx < 0 || sx >= p->source_size[W]))
            continue;
        taps->source[taps->count] = f->offset[t], taps->weights[taps->count++] = t * p->cs * wide;
    }
}

/* Result pixels of a row of which every tap is within the width of the source: from *x0 to *x1. */
static void TYPED(inner_pixels)(const plan *p, const phase *f, int64_t *x0, int64_t *x1) {
    const int64_t step = p->source_step[W];
    *x0 = 0, *x1 = f->count[W];
    for (int64_t t = 0; t < f->taps && p->clips; t++) {
        const int64_t at = f->at[3 * t + W], last = p->source_size[W] - 1 - at;
        *x0 = most(*x0, at < 0 ? divide_up(-at, step) : 0), *x1 = least(*x1, last < 0 ? 0 : last / step + 1);
    }
    if (*x1 <= *x0) *x0 = *x1 = least(*x0, f->count[W]);
}

/* Tiles of neighbouring pixels of a row by vectors of channels; where the source has no rim of zeros, pixels at the edge
 * are tiles of their own, with the taps that they meet. */
static void TYPED(depthwise_last)(const plan *p, const phase *f, const T *source, T *result, char *memory) {
    const int64_t all = p->groups * p->cd, step = f->step[W] * p->to.pixel, apart = p->source_step[W] * p->staged.pixel;
    const parts strips = in_parts(divide_up(all, p->lanes), p->nv);
    const parts blocks = in_parts(f->count[D] * f->count[H], most(1, p->nc / f->count[W]));
    const T *packed = (const T *)(memory + p->packed_at) + f->packed;
    int64_t *lists = (int64_t *)(memory + p->lists_at), x0, x1;
    TYPED(taps) inner = {lists, lists + f->taps}, edge = {lists + 2 * f->taps, lists + 3 * f->taps};
    TYPED(inner_pixels)(p, f, &x0, &x1);
    const parts tiles = in_parts(x1 - x0, p->mr);
    const int64_t wide = strips.extent * p->lanes, whole = x1 > x0 ? tiles.count : 0, edges = f->count[W] - (x1 - x0);
    for (int64_t b = 0; b < blocks.count; b++)
        for (int64_t s = 0; s < strips.count; s++) {
            const int64_t c0 = begin(strips, s) * p->lanes, columns = least(begin(strips, s + 1) * p->lanes, all) - c0;
            for (int64_t r = begin(blocks, b); r < begin(blocks, b + 1); r++) {
                const int64_t z = r / f->count[H], y = r % f->count[H];
                const T *from = source + c0 + z * p->source_step[D] * p->staged.slice + y * p->source_step[H] * p->staged.row;
                T *to = result + c0 + (f->start[D] + z * f->step[D]) * p->to.slice + (f->start[H] + y * f->step[H]) * p->to.row
                        + f->start[W] * p->to.pixel;
                TYPED(taps_within)(p, f, z, y, -1, wide, &inner);
                for (int64_t t = 0; t < whole + edges; t++) {
                    const int64_t x = t < whole ? x0 + begin(tiles, t) : t - whole < x0 ? t - whole : t - whole + x1 - x0;
                    const int64_t rows = t < whole ? x0 + begin(tiles, t + 1) - x : 1;
                    if (t >= whole) TYPED(taps_within)(p, f, z, y, x, wide, &edge);
                    const TYPED(taps) *taps = t < whole ? &inner : &edge;
                    TYPED(compute)(p, taps->count, taps->source, taps->weights, p->cs, from + x * apart, apart, p->plane,
                                   packed + c0, wide, to + x * step, step, 1, rows, columns, 0, (T *)(memory + p->tile_at));
                }
            }
        }
}

/* Tiles of neighbouring rows by vectors of pixels, of one channel. */
static void TYPED(depthwise_first)(const plan *p, const phase *f, int64_t g, const T *source, T *result, char *memory) {
    const parts tiles = in_parts(f->count[H], p->mr), vectors = in_parts(divide_up(f->count[W], p->lanes), p->nv);
    const T *packed = (const T *)(memory + p->packed_at) + f->packed;
    int64_t *offsets = (int64_t *)(memory + p->lists_at);
    for (int64_t t = 0; t < f->taps; t++) offsets[t] = t * p->cs;
    for (int64_t c = g * p->cd; c < (g + 1) * p->cd; c++)
        for (int64_t z = 0; z < f->count[D]; z++)
            for (int64_t t = 0; t < tiles.count; t++) {
                const int64_t y = begin(tiles, t), rows = begin(tiles, t + 1) - y;
                const T *from = source + z * p->source_step[D] * p->staged.slice + y * p->source_step[H] * p->staged.row;
                T *to = result + c * p->to.channel + (f->start[D] + z * f->step[D]) * p->to.slice
                        + (f->start[H] + y * f->step[H]) * p->to.row + f->start[W] * p->to.pixel;
                for (int64_t v = 0; v < vectors.count; v++) {
                    const int64_t x = begin(vectors, v) * p->lanes;
                    const int64_t columns = least(begin(vectors, v + 1) * p->lanes, f->count[W]) - x;
                    TYPED(compute)(p, f->taps, f->offset, offsets, p->cs, from + x, p->source_step[H] * p->staged.row,
                                   p->staged.channel, packed + c * f->taps * p->cs, 1, to + x * f->step[W],
                                   f->step[H] * p->to.row, f->step[W], rows, columns, 0, (T *)(memory + p->tile_at));
                }
            }
}

static void TYPED(gather)(const plan *p, char *memory) {
    const int64_t unit = p->channels_last ? p->lanes : 1;
    for (int64_t i = 0; i < p->phase_count; i++) {
        const phase *f = p->phases + i;
        T *packed = (T *)(memory + p->packed_at) + f->packed;
        if (p->kernel == DEPTHWISE) TYPED(pack_depthwise)(p, f, packed);
        else for (int64_t g = 0; g < p->groups; g++)
            TYPED(pack_weights)(p, f, g, p->kernel == DIRECT ? p->kc : p->cs,
                                packed + g * divide_up(p->cd, unit) * unit * f->taps * p->cs);
    }
    if (p->kernel == IM2COL) {
        for (int64_t i = 0; i < p->phase_count; i++)
            for (int64_t g = 0; g < p->groups; g++) TYPED(im2col_group)(p, p->phases + i, g, memory);
        return;
    }
    for (int64_t n = 0; n < p->images; n++) {
        T *result = (T *)p->result + n * p->to.image;
        if (p->channels_last) {
            const T *source = TYPED(stage)(p, memory, n, 1);
            for (int64_t i = 0; i < p->phase_count; i++) {
                if (p->kernel == DEPTHWISE) TYPED(depthwise_last)(p, p->phases + i, source, result, memory);
                else for (int64_t g = 0; g < p->groups; g++)
                    TYPED(direct_group)(p, p->phases + i, g, source + g * p->cs, result, memory);
            }
        } else {
            for (int64_t g = 0; g < p->groups; g++) { /* what is staged for one group is still in the cache */
                const T *source = TYPED(stage_group)(p, memory, n, g);
                for (int64_t i = 0; i < p->phase_count; i++)
                    (p->kernel == DEPTHWISE ? TYPED(depthwise_first) : TYPED(direct_group))(p, p->phases + i, g, source, result,
                                                                                            memory);
            }
        }
    }
}
