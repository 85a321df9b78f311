/* The gradient of the weights: a sum over output pixels for each tap and pair of channels. */

/* Output pixels that are summed in one pass: whole images, or rows of one, or a part of a row. */
typedef struct {
    const T *source, *output; /* staged, from the first image of the pass on */
    const int64_t *ao, *bo;   /* where rows begin, in the gradient of the output and in the source */
    int64_t entries, x, k;
    int add;
    T *tile;
} TYPED(pass);

static const T *TYPED(stage_output)(const plan *p, char *memory, int64_t n, int64_t images) {
    const T *s = (const T *)p->other + n * p->to.image;
    if (!p->copies_output) return s;
    T *d = (T *)(memory + p->columns_at);
    const int64_t wide = p->output.row - p->result_size[W];
    if (p->channels_last) TYPED(copy)(d, s, images * p->to.image);
    else for (int64_t i = 0; i < images * p->to.image / p->result_size[W]; i++) {
        TYPED(copy)(d + i * p->output.row, s + i * p->result_size[W], p->result_size[W]);
        TYPED(zero)(d + i * p->output.row + p->result_size[W], wide);
    }
    TYPED(zero)(d + images * p->output.image, p->lanes);
    return d;
}

/* Channels last: rows are output channels, vectors run over input channels. */
static void TYPED(direct_last)(const plan *p, const phase *f, const TYPED(pass) *w) {
    const parts strips = in_parts(divide_up(p->cs, p->lanes), p->nv), tiles = in_parts(p->cd, p->mr);
    const int64_t apart = p->source_step[W] * p->staged.pixel, all = f->taps * p->cs;
    for (int64_t g = 0; g < p->groups; g++)
        for (int64_t s = 0; s < strips.count; s++)
            for (int64_t t = 0; t < tiles.count; t++)
                for (int64_t tap = 0; tap < f->taps; tap++) {
                    const int64_t c0 = begin(strips, s) * p->lanes, columns = least(begin(strips, s + 1) * p->lanes, p->cs) - c0;
                    const int64_t k0 = begin(tiles, t), rows = begin(tiles, t + 1) - k0;
                    TYPED(compute)(p, w->entries, w->ao, w->bo, w->k, w->output + g * p->cd + k0 + w->x * p->output.pixel, 1,
                                   p->output.pixel, w->source + g * p->cs + c0 + f->offset[tap] + w->x * apart, apart,
                                   (T *)p->result + (g * p->cd + k0) * all + tap * p->cs + c0, all, 1, rows, columns, w->add,
                                   w->tile);
                }
}

/* Channels first: dot products along rows of pixels; columns are input channels. */
static void TYPED(direct_first)(const plan *p, const phase *f, const TYPED(pass) *w) {
    const parts columns = in_parts(p->cs, p->nv), tiles = in_parts(p->cd, p->mr);
    for (int64_t g = 0; g < p->groups; g++)
        for (int64_t t = 0; t < tiles.count; t++)
            for (int64_t s = 0; s < columns.count; s++)
                for (int64_t tap = 0; tap < f->taps; tap++) {
                    const int64_t c0 = begin(columns, s), wide = begin(columns, s + 1) - c0;
                    const int64_t k0 = begin(tiles, t), rows = begin(tiles, t + 1) - k0;
                    tile_of(p, rows, wide)(w->entries, w->ao, w->bo, w->k, w->output + (g * p->cd + k0) * p->output.channel + w->x,
                                           p->output.channel, 0, w->source + (g * p->cs + c0) * p->staged.channel + f->offset[tap] + w->x,
                                           p->staged.channel, w->tile, wide, 0);
                    TYPED(put)((T *)p->result + ((g * p->cd + k0) * p->cs + c0) * f->taps + tap, p->cs * f->taps, f->taps, w->tile,
                               wide, rows, wide, w->add);
                }
}

/* Channels last: rows are taps along the width of the filter, vectors run over output channels, sums are kept by tap. */
static void TYPED(weight_depthwise_last)(const plan *p, const phase *f, const TYPED(pass) *w, T *sums) {
    const int64_t all = p->groups * p->cd, apart = p->source_step[W] * p->staged.pixel;
    const parts strips = in_parts(divide_up(all, p->lanes), p->nv), tiles = in_parts(p->filter[W], p->mr);
    const int64_t wide = strips.extent * p->lanes, next = f->taps > 1 ? f->offset[1] - f->offset[0] : 0;
    for (int64_t s = 0; s < strips.count; s++)
        for (int64_t line = 0; line < p->filter[D] * p->filter[H]; line++)
            for (int64_t t = 0; t < tiles.count; t++)
                for (int64_t j = 0; j < p->cs; j++) {
                    const int64_t c0 = begin(strips, s) * p->lanes, columns = begin(strips, s + 1) * p->lanes - c0;
                    const int64_t tap = line * p->filter[W] + begin(tiles, t), rows = begin(tiles, t + 1) - begin(tiles, t);
                    TYPED(compute)(p, w->entries, w->bo, w->ao, w->k, w->source + j * p->plane + c0 + f->offset[tap] + w->x * apart,
                                   next, apart, w->output + c0 + w->x * p->output.pixel, p->output.pixel,
                                   sums + (j * f->taps + tap) * wide + c0, wide, 1, rows, columns, w->add, w->tile);
                }
}

/* Channels first: dot products; rows are the output channels of a group, columns taps along the height of the filter. */
static void TYPED(weight_depthwise_first)(const plan *p, const phase *f, const TYPED(pass) *w) {
    const int64_t width = p->filter[W], height = p->filter[H];
    const parts columns = in_parts(height, p->nv), tiles = in_parts(p->cd, p->mr);
    const int64_t next = height > 1 ? f->offset[width] - f->offset[0] : 0;
    for (int64_t c = 0; c < p->groups * p->cs; c++)
        for (int64_t t = 0; t < tiles.count; t++)
            for (int64_t zx = 0; zx < p->filter[D] * width; zx++)
                for (int64_t s = 0; s < columns.count; s++) {
                    const int64_t y0 = begin(columns, s), wide = begin(columns, s + 1) - y0;
                    const int64_t k0 = c / p->cs * p->cd + begin(tiles, t), rows = begin(tiles, t + 1) - begin(tiles, t);
                    const int64_t tap = (zx / width * height + y0) * width + zx % width;
                    tile_of(p, rows, wide)(w->entries, w->ao, w->bo, w->k, w->output + k0 * p->output.channel + w->x,
                                           p->output.channel, 0, w->source + c * p->staged.channel + f->offset[tap] + w->x, next,
                                           w->tile, wide, 0);
                    TYPED(put)((T *)p->result + (k0 * p->cs + c % p->cs) * f->taps + tap, p->cs * f->taps, width, w->tile, wide,
                               rows, wide, w->add);
                }
}

/* Direct and depthwise kernels, pass after pass. */
static void TYPED(weight_passes)(const plan *p, const phase *f, char *memory) {
    const int64_t rows = f->count[D] * f->count[H], unit = p->channels_last ? 1 : p->lanes;
    const int64_t together = least(p->images, most(1, p->kc / (rows * f->count[W])));
    const parts lines = in_parts(rows, most(1, p->kc / f->count[W]));
    const parts spans = in_parts(divide_up(f->count[W], unit), most(1, p->kc / unit));
    T *sums = (T *)(memory + p->packed_at);
    int64_t *ao = (int64_t *)(memory + p->lists_at), *bo = ao + together * rows;
    TYPED(pass) w = {.ao = ao, .bo = bo, .tile = (T *)(memory + p->tile_at)};
    for (int64_t n = 0; n < p->images; n += together) {
        const int64_t images = least(together, p->images - n);
        w.source = TYPED(stage)(p, memory, n, images), w.output = TYPED(stage_output)(p, memory, n, images);
        for (int64_t l = 0; l < lines.count; l++) {
            w.entries = 0;
            for (int64_t i = 0; i < images; i++)
                for (int64_t r = begin(lines, l); r < begin(lines, l + 1); r++) {
                    const int64_t z = r / f->count[H], y = r % f->count[H];
                    ao[w.entries] = i * p->output.image + z * p->output.slice + y * p->output.row;
                    bo[w.entries++] = i * p->staged.image + z * p->source_step[D] * p->staged.slice
                                      + y * p->source_step[H] * p->staged.row;
                }
            for (int64_t s = 0; s < spans.count; s++) {
                w.x = begin(spans, s) * unit, w.k = begin(spans, s + 1) * unit - w.x;
                if (p->kernel == DIRECT) (p->channels_last ? TYPED(direct_last) : TYPED(direct_first))(p, f, &w);
                else if (p->channels_last) TYPED(weight_depthwise_last)(p, f, &w, sums);
                else TYPED(weight_depthwise_first)(p, f, &w);
                w.add = 1;
            }
        }
    }
    if (p->kernel != DEPTHWISE || !p->channels_last) return;
    const int64_t all = p->groups * p->cd, wide = divide_up(all, p->lanes) * p->lanes;
    for (int64_t c = 0; c < all; c++)
        for (int64_t t = 0; t < f->taps; t++)
            for (int64_t j = 0; j < p->cs; j++)
                ((T *)p->result)[(c * f->taps + t) * p->cs + j] = sums[(j * f->taps + t) * wide + c];
}

/* ---- im2col: columns of a block of pixels, and the product with the gradient of the output ------ */

/* Strips of output channels, each a matrix of all pixels of the block. */
static void TYPED(pack_output)(const plan *p, int64_t g, const TYPED(pixel) *list, int64_t count, T *d) {
    const parts tiles = in_parts(p->cd, p->mr);
    const T *s = (const T *)p->other + g * p->cd * p->to.channel;
    for (int64_t t = 0; t < tiles.count; t++) {
        const int64_t k0 = begin(tiles, t), width = begin(tiles, t + 1) - k0;
        T *to = d + k0 * count;
        for (int64_t i = 0; i < count;) {
            int64_t n = 1; /* neighbours that lie one after the other */
            while (i + n < count && list[i + n].result == list[i].result + n * p->to.pixel) n++;
            TYPED(pack)(s + k0 * p->to.channel + list[i].result, p->to.channel, p->to.pixel, width, width, n, to + i * width);
            i += n;
        }
    }
}

/* Strips of columns [q0, q1), each a matrix of all pixels of the block. Channels last: column tap * cs + channel. */
static void TYPED(columns_last)(const plan *p, const phase *f, const T *s, const TYPED(pixel) *list, int64_t count, parts tiles,
                                int64_t q0, int64_t q1, T *d) {
    for (int64_t t = 0; t < tiles.count; t++) {
        const int64_t x = q0 + begin(tiles, t) * p->lanes, width = q0 + begin(tiles, t + 1) * p->lanes - x, end = least(q1, x + width);
        T *to = d + (x - q0) * count;
        for (int64_t i = 0; i < count; i++, to += width) {
            TYPED(pixel_columns)(p, f, s, list + i, x, end, to);
            TYPED(zero)(to + end - x, x + width - end);
        }
    }
}

/* Channels first: column channel * taps + tap. */
static void TYPED(columns_first)(const plan *p, const phase *f, const T *s, const TYPED(pixel) *list, int64_t count, parts tiles,
                                 int64_t q0, int64_t q1, T *d, int64_t *places) {
    for (int64_t tap = 0; tap < f->taps; tap++) {
        for (int64_t i = 0; i < count; i++) places[i] = TYPED(element)(p, f, list + i, tap);
        for (int64_t t = 0; t < tiles.count; t++) {
            const int64_t x = q0 + begin(tiles, t) * p->lanes, width = q0 + begin(tiles, t + 1) * p->lanes - x;
            const int64_t end = least(q1, x + width);
            for (int64_t c = divide_up(most(0, x - tap), f->taps); c * f->taps + tap < end; c++) {
                const int64_t q = c * f->taps + tap;
                TYPED(column)(s + c * p->from.channel, places, count, d + (x - q0) * count + q - x, width);
            }
            for (int64_t q = end; q < x + width && tap == 0; q++)
                for (int64_t i = 0; i < count; i++) d[(x - q0) * count + i * width + q - x] = 0;
        }
    }
}

static void TYPED(weight_im2col)(const plan *p, const phase *f, char *memory) {
    const int64_t all = f->taps * p->cs;
    const parts blocks = in_parts(p->images * f->count[D] * f->count[H] * f->count[W], p->kc);
    const parts wides = in_parts(divide_up(all, p->lanes), most(1, p->nc / p->lanes)), tiles = in_parts(p->cd, p->mr);
    T *packed = (T *)(memory + p->packed_at), *columns = (T *)(memory + p->columns_at), *tile = (T *)(memory + p->tile_at);
    int64_t *places = (int64_t *)(memory + p->lists_at);
    TYPED(pixel) *list = (TYPED(pixel) *)(places + p->kc);
    for (int64_t b = 0; b < blocks.count; b++) {
        const int64_t first = begin(blocks, b), count = begin(blocks, b + 1) - first;
        TYPED(list_pixels)(p, f, first, count, list);
        for (int64_t g = 0; g < p->groups; g++) {
            const T *source = (const T *)p->source + g * p->cs * p->from.channel;
            TYPED(pack_output)(p, g, list, count, packed);
            for (int64_t w = 0; w < wides.count; w++) {
                const int64_t q0 = begin(wides, w) * p->lanes, q1 = least(begin(wides, w + 1) * p->lanes, all);
                const parts vectors = in_parts(begin(wides, w + 1) - begin(wides, w), p->nv);
                if (p->channels_last) TYPED(columns_last)(p, f, source, list, count, vectors, q0, q1, columns);
                else TYPED(columns_first)(p, f, source, list, count, vectors, q0, q1, columns, places);
                for (int64_t v = 0; v < vectors.count; v++)
                    for (int64_t t = 0; t < tiles.count; t++) {
                        const int64_t x = begin(vectors, v) * p->lanes, wide = begin(vectors, v + 1) * p->lanes - x;
                        const int64_t k0 = begin(tiles, t), rows = begin(tiles, t + 1) - k0;
                        TYPED(compute)(p, 1, NOWHERE, NOWHERE, count, packed + k0 * count, 1, rows, columns + x * count, wide,
                                       (T *)p->result + (g * p->cd + k0) * all + q0 + x, all, 1, rows, least(wide, q1 - q0 - x),
                                       b > 0, tile);
                    }
            }
        }
    }
}

static void TYPED(weight)(const plan *p, char *memory) {
    (p->kernel == IM2COL ? TYPED(weight_im2col) : TYPED(weight_passes))(p, p->phases, memory);
}
